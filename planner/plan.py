"""What planning makes: a Plan, plain data that a worker runs without knowing how it came about."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar, cast

from ostinato.ops.core.disk import writing
from ostinato.ops.core.encode import digest, encode_graph, encode_spec
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Mesh
from ostinato.ops.core.locks import cached_property
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.user_line import short
from ostinato.ops.flow.callback import name_functions
from ostinato.ops.planned.offloaded import STASH

from ostinato import settings
from ostinato.errors import OstinatoError, PlanFileError

from .machine import Machine, deciding
from .policy import AS_WRITTEN
from .shown import Picture, Text

F = TypeVar("F", bound=Callable[..., Any])
# What plans can do by modules that know them: these write themselves in here (file.py, seeing/).
functions: dict[str, Callable[..., Any]] = {}
FORMAT = 3  # of plans and plan files; part of every id


@dataclass(frozen=True, slots=True)
class Target:
    """What a plan is made for."""

    mesh: Mesh = (1,)
    device: str = "cpu"
    numerics: str = "same-plan"  # or "any-workers", "fast"
    memory_limit: int | None = None  # bytes per worker
    math: str = field(default_factory=lambda: settings.math)  # whose functions: "own" or "libm"
    precision: str = AS_WRITTEN  # the text of a policy (policy.py)
    named: Machine | None = field(default=None, compare=False, repr=False)  # if a user names one
    scratch_limit: int | None = None  # bytes that one operation may have while it runs
    # where values go for a while if memory is short: "", as the device does; "off"; "on", "host", "disk",
    # or a folder
    offload: str = ""

    @property
    def workers(self) -> int:
        count = 1
        for n in self.mesh:
            count *= n
        return count

    @property
    def machine(self) -> Machine:
        """By which it is decided; no part of what is asked."""
        return self.named or deciding(self.device, self.mesh)


Numerics = Literal["same-plan", "any-workers", "fast"]
NUMERICS = ("same-plan", "any-workers", "fast")
MATH = ("own", "libm")
ONE_THREAD = "one thread"  # a way of any kernel


@dataclass(frozen=True, slots=True)
class Measured:
    """What runs have shown."""

    runs: int
    best: float  # seconds of a whole run
    mean: float
    steps: dict[int, float]  # seconds of each top-level node, of one run that was timed so
    how: str = ""  # it is run, where there are several ways


@dataclass(frozen=True, slots=True)
class Choice:
    """How one node is done, of several ways; empty where nothing was timed."""

    what: str = ""
    line: str = ""
    way: str = ""  # empty: as the rules say
    times: tuple[tuple[str, float], ...] = ()  # seconds of each way, the rules' first


@dataclass(frozen=True, slots=True)
class Tuned:
    """What timing on a machine decided, node by node; see planner/tuning/sites.py."""

    machine: str
    choices: tuple[Choice, ...]

    @property
    def ways(self) -> list[str]:
        return [c.way for c in self.choices]


@dataclass(frozen=True, slots=True)
class Rung:
    """One thing that was done so that a plan fits into memory; see passes/fitting.py."""

    how: str
    freed: int  # bytes of the peak
    seconds: float  # in addition, as predicted


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value lives.

    input, output: the k-th of the program's;  arena: at a byte offset;  alias: a view of another
    value; part: where that value joins it with others;  constant: a number of the program itself;
    none: nobody reads it."""

    kind: str
    at: int = 0


@dataclass(frozen=True)
class Program:
    """A graph in running order, with the place of each value. The same for all workers; sizes are
    those of the largest part."""

    graph: Graph
    slots: tuple[Slot, ...]  # of each value
    # of each node: offsets of the memory it needs while it runs
    scratch: tuple[tuple[int, ...], ...]
    bodies: Mapping[int, tuple[Program, ...]]  # of control nodes: the programs of their graphs
    bases: Mapping[int, int]  # where a control node's bodies have their arena
    arena_bytes: int
    peak_node: int = -1  # the node that runs when the arena is fullest
    # (result, operand): written over an operand that was given away
    reuse: tuple[tuple[int, int], ...] = ()

    def with_lines(self, now: Mapping[str, str]) -> Program:
        """Copy the program for other lines of the user's."""
        bodies = {k: tuple(b.with_lines(now) for b in inner) for k, inner in self.bodies.items()}
        return replace(self, graph=self.graph.with_lines(now), bodies=bodies)


@dataclass(frozen=True)
class Key:
    """What identifies a plan, in named parts, so that a miss can say which differs."""

    graph: Graph  # canonical, as traced; its inputs are the signature
    target: Target
    donated: tuple[int, ...] = ()
    gathered: tuple[int, ...] = ()  # its gathers of operands that are given to it; see gathered.py

    @cached_property
    def parts(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "signature": [encode_spec(s) for s in self.graph.inputs],
            "graph": digest(self.graph),
            "mesh": list(self.target.mesh),
            "device": self.target.device,
            "policy": {
                "numerics": self.target.numerics,
                "memory_limit": self.target.memory_limit,
                "math": self.target.math,
                "precision": self.target.precision,
                "donated": list(self.donated),
            },
            "format": FORMAT,
        }
        if self.target.scratch_limit is not None:
            found["policy"]["scratch_limit"] = self.target.scratch_limit
        if self.target.offload:
            found["policy"]["offload"] = self.target.offload
        if self.gathered:
            found["gathered"] = list(self.gathered)
        return found

    @cached_property
    def id(self) -> str:
        """The plan id: 128 bits over the parts, the same in every process and on every machine."""
        text = json.dumps(self.parts, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Again(Protocol):
    """Makes a plan once more, for another mesh."""

    def __call__(self, mesh: Mesh, grow: bool, times: int = 1) -> Plan:
        """`grow`: extents that were split grow as the mesh does. Those that its first axis splits are so
        many times as large."""


@dataclass(frozen=True, repr=False)
class Plan:
    """Everything decided about one graph.

    >>> step = ost.compile(lambda x: x + 1)
    >>> step(ost.arange(3))
    Array([1, 2, 3], dtype=int64)
    >>> len(step.plan.id) > 8
    True
    """

    key: Key
    lowered: Graph  # as every machine may have it
    program: Program  # as this machine runs it
    # of each output of the source: ("out", k) of the program, or ("in", k)
    results: tuple[tuple[str, int], ...]
    names: tuple[str, ...] = ()  # what the user calls the inputs; no part of the id
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)  # of each pass
    gap: float | None = field(default=None, compare=False)  # how much better layouts may be
    ladder: tuple[Rung, ...] = field(default=(), compare=False)  # what was done to fit into memory
    witness: list[Callable[[], Measured | None]] = field(default_factory=list, compare=False)
    tuned: Tuned | None = None  # no part of the id
    called: str = ""  # the user's function; no part of the id
    report: list[str] = field(default_factory=list, compare=False)  # of what was measured for it
    original: Plan | None = field(default=None, compare=False)  # whose user's lines differ
    again: Again | None = field(default=None, compare=False)  # as `ost.plan` made it

    @property
    def id(self) -> str:
        return self.key.id

    @property
    def traced(self) -> Graph:
        """Return the graph of the user's function, before any pass."""
        return self.key.graph

    @property
    def target(self) -> Target:
        return self.key.target

    @cached_property
    def content(self) -> dict[str, Any]:
        """The plan as JSON-able data; see file.py."""
        return {
            "id": self.id,
            "source": encode_graph(self.traced, lines=True),
            "program": encode_graph(self.lowered, lines=True),
            "results": [list(r) for r in self.results],
            "names": list(self.names),
            "called": self.called,
            "mesh": list(self.target.mesh),
            "device": self.target.device,
            "numerics": self.target.numerics,
            "memory_limit": self.target.memory_limit,
            "scratch_limit": self.target.scratch_limit,
            "offload": self.target.offload,
            "math": self.target.math,
            "precision": self.target.precision,
            # what decided, where there was something to decide: a part of no id
            "machine": self.target.machine.data if self.target.workers > 1 else None,
            "donated": list(self.key.donated),
            "gathered": list(self.key.gathered),
            "tuned": _in_lists(self.tuned) if self.tuned is not None else None,
            "ladder": [[r.how, r.freed, r.seconds] for r in self.ladder],
        }

    def for_trace(self, key: Key, names: tuple[str, ...], called: str) -> Plan:
        """This plan as another trace of the same graph knows it: by its own lines and names. Engines are
        given the original."""
        names, called = names or self.names, called or self.called
        if key is self.key and (names, called) == (self.names, self.called):
            return self
        pairs = zip(self.traced.lines(), key.graph.lines(), strict=True)
        now = {before: today for before, today in pairs if before != today}
        if (
            not now
            and name_functions(key.graph) is key.graph
            and (names, called) == (self.names, self.called)
        ):
            return self
        tuned = self.tuned
        if tuned is not None:
            choices = [replace(c, line=now.get(c.line, c.line)) for c in tuned.choices]
            tuned = replace(tuned, choices=tuple(choices))
        return replace(
            self,
            key=key,
            lowered=self.lowered.with_lines(now),
            program=self.program.with_lines(now),
            names=names,
            tuned=tuned,
            called=called,
            original=self.original or self,
        )

    def with_its_lines(self, error: OstinatoError, ran: Plan) -> OstinatoError:
        """An error of a run of the same plan with other lines, with this one's line."""
        if error.line:
            pairs = zip(ran.traced.lines(), self.traced.lines(), strict=True)
            for before, today in pairs:
                before, today = before.partition(" (")[0], today.partition(" (")[0]
                for line, instead in ((before, today), (short(before), short(today))):
                    if line == error.line:
                        made = type(error)(str(error).replace(f"({line})", f"({instead})", 1))
                        made.line = instead
                        return made.with_traceback(error.__traceback__)
        return error

    @cached_property
    def out_specs(self) -> tuple[Spec, ...]:
        """Return the specs of the source's outputs, with their layouts."""
        made = self.program.graph.out_specs
        return tuple(
            made[k] if where == "out" else self.traced.inputs[k] for where, k in self.results
        )

    # -- memory, per worker ----------------------------------------------------------------
    @cached_property
    def operand_bytes(self) -> int:
        return sum(local_bytes(s) for s in self.program.graph.inputs)

    @cached_property
    def result_bytes(self) -> int:
        return sum(local_bytes(s) for s in self.program.graph.out_specs)

    @property
    def arena_bytes(self) -> int:
        return self.program.arena_bytes

    @cached_property
    def offloaded_bytes(self) -> int:
        """The bytes of the host's memory, or on a disk, of values that are not in memory for a while."""
        return offloaded_bytes(self.program)

    @property
    def peak_bytes(self) -> int:
        """The most memory that the worker with the largest parts needs."""
        return peak_bytes(self.program)

    # -- for people ------------------------------------------------------------------------
    @property
    def measured(self) -> Measured | None:
        """Return what its runs have shown, if it ran in this process."""
        return self.witness[-1]() if self.witness else None

    def explain(self) -> Text:
        """Show what was decided, what it should cost, and what it did cost, with the lines that
        asked for it: text that shows itself, in a notebook with a table."""
        return Text(functions["explain"](self, self.measured), self._repr_html_)

    def why(self, name: str) -> Text:
        """Why an operand or a result ("w", "result 0") lies as it does: what the next best layouts would
        cost more, and at which line."""
        return Text(functions["why"](self, name))

    def source(self, *, llvm: bool = False, assembly: bool = False) -> Text:
        """The generated kernels with the user's own lines as comments; on demand as they are given
        to LLVM, and the machine code that it makes of them here."""
        return Text(functions["source"](self, llvm, assembly))

    def diff(self, other: Plan) -> Text:
        """In what another plan differs from this one."""
        return Text(functions["differences"](self, other))

    def draw(self, path: str | os.PathLike[str] | None = None) -> Picture:
        """The program as a picture (SVG), which a notebook shows; written to a file, if there is a path."""
        return Picture(functions["draw"](self, path))

    def simulate(self, machine: Machine | str | os.PathLike[str] | None = None) -> Any:
        """A run on the model of a machine: the one that the plan was made for, or a preset ("h200-ib"),
        a file that describes one, or a `Machine`. A `Simulation` (simulation.py)."""
        return functions["simulated"](self, machine)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write what `simulate` gives as a trace for chrome://tracing or Perfetto (JSON)."""
        functions["trace"](self.simulate(), path)

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as a file that holds data, no code."""
        with writing(path, PlanFileError, "plan file"):
            functions["write_plan"](self, path)

    @staticmethod
    def from_file(path: str | os.PathLike[str], *, limit: float | None = 86400.0) -> Plan:
        """The plan of a file, after a proof that it computes what it says; PlanFileError if it is no
        good. Nor is it if it would run for more than `limit` seconds, needs more memory than there
        is, or is larger than people's plans are (16 MiB, 65,536 operations); None allows all that.
        """
        return cast(Plan, functions["read_plan"](path, limit=limit))

    def __str__(self) -> str:
        return str(Text(functions["summary"](self)))

    def __repr__(self) -> str:
        return f"<Plan {self.id[:12]}: {len(self.program.graph.nodes)} nodes>"

    def _repr_html_(self) -> str:
        return cast(str, functions["as_html"](self, self.measured))


def export(function: F) -> F:
    """Make a function available to plans under its own name."""
    functions[function.__name__] = function
    return function


def _in_lists(tuned: Tuned) -> list[Any]:
    rows = [[c.what, c.line, c.way, [list(t) for t in c.times]] for c in tuned.choices]
    return [tuned.machine, rows]


def peak_bytes(program: Program) -> int:
    """The most memory that the worker with the largest parts needs: operands, results, arena."""
    graph = program.graph
    saved = sum(local_bytes(graph.out_specs[k]) for k, _ in program.reuse)
    held = sum(map(local_bytes, (*graph.inputs, *graph.out_specs)))
    return held - saved + program.arena_bytes


def offloaded_bytes(program: Program) -> int:
    """Count the bytes that a worker puts elsewhere for a while, each place once."""
    graph = program.graph
    mine = sum(local_bytes(graph.specs[n.inputs[0]]) for n in graph.nodes if n.op == STASH)
    return mine + sum(offloaded_bytes(b) for bodies in program.bodies.values() for b in bodies)


def folder_of(target: Target) -> str | None:
    """The folder that a user named for values that leave memory for a while."""
    return target.offload if os.sep in target.offload else None


def largest_part(spec: Spec) -> Spec:
    """The largest part that a worker holds, as an array of its own."""
    return Spec(spec.layout.largest(spec.shape), spec.dtype) if spec.layout else spec


def local_bytes(spec: Spec) -> int:
    """The bytes of the largest part that a worker holds."""
    if spec.layout is None:
        return spec.nbytes
    if spec.layout.stored:
        return 0
    if spec.layout.is_whole:
        return spec.nbytes
    size = spec.dtype.itemsize
    for n in spec.layout.largest(spec.shape):
        size *= n
    return size
