"""Plans as files: data, never code.

    ostinato plan 1 <blake2b of the rest> <bytes of the rest>
    {"source": ..., "program": ..., ...}

The file holds the graph as it was traced and as it was lowered. What follows from those (places in
memory, the id) is computed anew when it is read, so a file cannot claim anything about it.
`read_plan` proves, node by node, that the program computes its source. Only what comes from the
cache (ops/core/disk_cache.py), for a key that the caller has, is believed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from functools import cache
from pathlib import Path
from typing import Any

from ostinato.ops.core.code_digest import code_digest, digest_of_operations
from ostinato.ops.core.device import Absent, find
from ostinato.ops.core.disk import write_whole
from ostinato.ops.core.encode import (
    Lines,
    Malformed,
    decode_graph,
    encoded_lines,
    fields,
    integer,
    listing,
    need,
)
from ostinato.ops.core.graph import Graph

from ostinato.errors import PlanFileError

from .check import check_graph, check_layouts, check_source, same_program, seconds_of
from .machine import Machine, memory
from .pipeline import done_so, program_of
from .plan import FORMAT, MATH, NUMERICS, Choice, Key, Plan, Program, Rung, Target, Tuned, export
from .policy import policy_of
from .program_file import decided_by, decode_program, encode_program

MAGIC = b"ostinato plan"
DAY = 86400.0
LARGEST = 1 << 30  # bytes of a file
FOREIGN = 1 << 24  # of one from elsewhere, and
VALUES = 1 << 22  # numbers and lists in it, and
NODES = 1 << 16  # operations of both graphs, and
JOINED = 1 << 14  # operands of one of them, if nothing else is said
_HEAD = 256  # bytes of a first line at the most


@cache
def code_version() -> str:
    """Names the code that plans: another version may decide otherwise, so its plans are not
    ours."""
    digest = hashlib.blake2b(digest_of_operations().encode(), digest_size=6)
    digest.update(code_digest(Path(__file__).resolve().parent).encode())
    return f"{FORMAT}-{digest.hexdigest()}"


def encode_plan(plan: Plan, kept: bool = False) -> bytes:
    """The bytes of a plan file. `kept`: of one for the cache, which also has the program as it runs here."""
    content = plan.content
    if kept:
        here = decided_by(plan.lowered, plan.target)
        content = {**content, "runs": [here, encode_program(plan.program)]}
    rest = json.dumps(content, separators=(",", ":")).encode()
    digest = hashlib.blake2b(rest, digest_size=32).hexdigest()
    return b"%s %d %s %d\n" % (MAGIC, FORMAT, digest.encode(), len(rest)) + rest


@export
def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a file in one step: readers see the old one or the whole new one."""
    write_whole(path, encode_plan(plan), durable=True)


@export
def read_plan(path: str | os.PathLike[str], limit: float | None = DAY) -> Plan:
    """The plan of a file, or PlanFileError. Unless the limit is None, it may take no more than so many
    seconds to run, and be no larger than people's plans are."""
    most = LARGEST if limit is None else FOREIGN
    try:
        with open(
            path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
        ) as file:
            facts = os.fstat(file.fileno())
            size = facts.st_size if stat.S_ISREG(facts.st_mode) else LARGEST + 1
            data = file.read(most) if size <= most else b""
    except OSError as error:
        needed = "a file that can be read"
        raise PlanFileError.because(f"plan file {path}", got=str(error), needed=needed) from None
    try:
        need(stat.S_ISREG(facts.st_mode), "something that is no plain file")
        need(size <= LARGEST, f"{size} bytes")
        _allow(size, most, "bytes")
        return decode_plan(data, limit=limit)
    except TooMuch as error:
        got = str(error)
        needed = "no more than is read of a file from elsewhere"
        do = "pass limit= in seconds, or limit=None if you know who wrote it"
        raise PlanFileError.because(f"plan file {path}", got=got, needed=needed, do=do) from None
    except Malformed as error:
        needed = f"a plan that this version wrote (format {FORMAT})"
        got, do = str(error), "make it again with plan.to_file"
        raise PlanFileError.because(f"plan file {path}", got=got, needed=needed, do=do) from None


class TooMuch(Malformed):
    """More than somebody else's plan may ask for."""


def _allow(count: float, most: float, what: str) -> None:
    if count > most:
        raise TooMuch(f"{count:,.0f} {what}, of which {most:,.0f} are allowed")


def decode_plan(
    data: bytes, key: Key | None = None, trusted: bool = False, limit: float | None = DAY
) -> Plan:
    """The plan of a file's bytes, or Malformed. With a key: the plan of this key, kept here. Trusted is
    what comes from whoever may tell this process what to run: nothing is proven then, nor limited."""
    head, newline, rest = data[:_HEAD].partition(b"\n")[0], data.find(b"\n", 0, _HEAD), b""
    words = head.split(b" ")
    need(newline >= 0 and head.startswith(MAGIC + b" ") and len(words) == 5, "no plan file")
    need(
        words[2].isdigit() and words[4].isdigit() and len(words[2]) < 9,
        "a first line that is damaged",
    )
    version = int(words[2])
    need(version <= FORMAT, f"format {version}, which is newer than this version of ostinato")
    need(version == FORMAT, f"format {version}, which is too old")
    rest = data[newline + 1 :]
    need(
        len(rest) == int(words[4]),
        f"{len(rest)} bytes where {words[4].decode()} were written: cut off",
    )
    digest = hashlib.blake2b(rest, digest_size=32).hexdigest().encode()
    need(digest == words[3], "content that differs from what was written: damaged")
    foreign = key is None and not trusted
    if foreign and limit is not None:
        many = rest.count(b",") + rest.count(b"[") + rest.count(b"{")
        _allow(many, VALUES, "values")
    try:
        return _decode(json.loads(rest), key, foreign, limit)
    except TooMuch:
        raise
    except Malformed as error:
        raise Malformed(_one_line(error)) from None
    except MemoryError:
        raise Malformed("content that is larger than memory") from None
    except Exception as error:
        what = f"content that is no plan ({type(error).__name__}: {_one_line(error)})"
        raise Malformed(what) from None


def _one_line(error: Exception) -> str:
    """Print an error as one line, whatever a file made it say."""
    text = " ".join(str(error).split())
    return "".join(c if c.isprintable() else "?" for c in text)[:400]


def _decode(content: Any, known: Key | None, foreign: bool, limit: float | None) -> Plan:
    key = _key(content) if known is None else known
    if known is not None and known.target.workers > 1:
        (machine,) = fields(content, "machine")
        need(_machine(machine) == known.target.machine, "layouts that another machine decided")
    identity, lowered, results, names = fields(content, "id", "program", "results", "names")
    need(identity == key.id, "an id that is not its content's")
    now = {} if known is None else _moved(content["source"], key.graph)
    graph, program = key.graph, decode_graph(lowered, now=now)
    need(not (foreign and key.gathered), "gathers that somebody else has done")
    count = len(program.inputs) - len(key.gathered)
    signature = program.inputs[:count]
    need(signature == graph.inputs, "a program with another signature than its source")
    made = []
    for pair in listing(results):
        where, k = listing(pair, longest=2)
        need(where in ("in", "out"), f"a result from {where!r:.40}")
        made.append(
            (where, integer(k, 0, len(graph.inputs if where == "in" else program.outputs) - 1))
        )
    need(len(made) == len(graph.outputs), "other results than its source has")
    called = tuple(listing(names))
    need(all(map(_is_name, called)), "names that are no text")
    if foreign:
        if limit is not None:
            _check_size(key.graph, program)
        _prove(key, program, made)
        if limit is not None:
            _check_work(key, program, limit)
    function = content.get("called", "")
    need(_is_name(function), "a function whose name is no text")
    tuned = _tuned(content.get("tuned"), now)
    runs = None if known is None else _kept(content.get("runs"), program, known, now)
    if runs is None:
        ways = tuned.ways if tuned is not None else ()
        runs = done_so(program_of(program, key, made), key, made, ways)
    ladder = _ladder(content.get("ladder", []))
    plan = Plan(
        key, program, runs, tuple(made), called, tuned=tuned, called=function, ladder=ladder
    )
    if foreign and limit is not None:
        _allow(plan.peak_bytes, memory(), "bytes of memory")
    return plan


def _kept(runs: Any, lowered: Graph, key: Key, now: Lines) -> Program | None:
    """The program in the cache, if it was made where all is the same that passes look at."""
    if runs is None:
        return None
    here, program = listing(runs, longest=2)
    return decode_program(program, now) if here == decided_by(lowered, key.target) else None


def _is_name(value: Any) -> bool:
    return type(value) is str and len(value) < 4096 and value.isprintable()


def _check_size(*graphs: Graph) -> None:
    count, widest = 0, 0
    waiting = list(graphs)
    while waiting:
        graph = waiting.pop()
        count += len(graph.nodes)
        widest = max([widest, *(len(n.inputs) for n in graph.nodes)])
        waiting += [body for n in graph.nodes for _, body in n.subgraphs()]
    _allow(count, NODES, "operations")
    _allow(widest, JOINED, "operands of one operation")


def _check_work(key: Key, program: Graph, limit: float) -> None:
    _allow(seconds_of(program) / key.target.workers, limit, "seconds of work")


def _moved(written: Any, source: Graph) -> dict[str, str]:
    """Where the user's lines are today: the same program may have been edited, or be in another file."""
    pairs = zip(encoded_lines(written), source.lines(), strict=True)
    return {before: today for before, today in pairs if before}


def _ladder(value: Any) -> tuple[Rung, ...]:
    """Decode the steps that made the plan fit into memory: for people, so nothing follows from it."""
    found = []
    for row in listing(value, longest=64):
        how, freed, seconds = listing(row, longest=3)
        need(_is_name(how) and type(seconds) is float, "a step into memory that is none")
        found.append(Rung(how, integer(freed, -(1 << 60), 1 << 60), seconds))
    return tuple(found)


def _tuned(value: Any, now: Lines) -> Tuned | None:
    """Decode the choices made by timing. A way that this machine does not have is no way, so
    whatever it says cannot be wrong."""
    if value is None:
        return None
    machine, rows = listing(value, longest=2)
    choices = []
    for row in listing(rows):
        *words, times = listing(row, longest=4)
        need(len(words) == 3 and all(type(w) is str for w in words), "a choice that is none")
        known = []
        for pair in listing(times, longest=64):
            way, seconds = listing(pair, longest=2)
            need(type(way) is str and type(seconds) is float, "a time that is none")
            known.append((way, seconds))
        line = now.get(words[1], words[1])
        choices.append(Choice(words[0], line, words[2], tuple(known)))
    need(type(machine) is str, "a machine without a name")
    return Tuned(machine, tuple(choices))


def _key(content: Any) -> Key:
    """Decode the plan's key."""
    source, mesh, device, donated = fields(content, "source", "mesh", "device", "donated")
    numerics, limit, math, precision, machine = fields(
        content, "numerics", "memory_limit", "math", "precision", "machine"
    )
    scratch, offload = content.get("scratch_limit"), content.get("offload", "")
    need(_is_name(offload), "a place of values that is no text")
    try:
        find(device)
    except Absent as error:
        raise Malformed(f"device {device!r:.40}; needed {error}") from None
    need(numerics in NUMERICS, f"numerics {numerics!r:.40}")
    need(math in MATH, f"math {math!r:.40}")
    need(type(precision) is str, f"precision {precision!r:.40}")
    try:
        policy_of(precision)
    except ValueError as error:
        raise Malformed(str(error)) from None
    target = Target(
        tuple(listing(mesh, lambda n: integer(n, 1, 1 << 20), 8)),
        device,
        numerics,
        None if limit is None else integer(limit, 0),
        math,
        precision,
        _machine(machine),
        None if scratch is None else integer(scratch, 0),
        offload,
    )
    need(1 <= len(target.mesh) <= 4, f"a mesh with {len(target.mesh)} axes")
    need(1 <= target.workers <= 1 << 20, "a mesh of that many workers")
    graph = decode_graph(source)
    away = listing(donated, lambda k: integer(k, 0, len(graph.inputs) - 1))
    gathered = listing(content.get("gathered", []), lambda k: integer(k, 0, 1 << 16))
    for named in (away, gathered):
        need(len({*named}) == len(named), "an operand that is given away, or gathered, twice")
    return Key(graph, target, tuple(away), tuple(gathered))


def _machine(data: Any) -> Machine | None:
    """By which layouts were chosen."""
    try:
        return None if data is None else Machine.from_data(data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Malformed(f"a machine that is none: {error!r:.60}") from None


def _prove(key: Key, program: Any, results: list[tuple[str, int]]) -> None:
    """That everything in the file follows from its source graph."""
    check_source(key.graph)
    check_graph(program)
    check_layouts(program, key.target)
    outputs = tuple(k if where == "in" else program.outputs[k] for where, k in results)
    complete = type(program)(program.inputs, program.nodes, outputs)
    need(
        same_program(key.graph, complete, key.target),
        "a program that computes something else than its source",
    )
