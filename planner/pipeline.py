"""The passes, in order, and what runs them."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from typing import Any

from ostinato.ops.core import activity
from ostinato.ops.core.device import DEVICES, Device, described
from ostinato.ops.core.encode import digest
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.spec import Spec

from ostinato import settings
from ostinato.errors import MemoryLimitError, OstinatoError

from .lowering import Pass, lower, run
from .machine import memory
from .passes.blocking import READ_BYTES, roughly, split_time
from .passes.buckets import fill_buckets
from .passes.cache_blocking import stay_in_cache
from .passes.communicate import communicate
from .passes.fitting import anyway, fit_memory
from .passes.layouts import MUCH_SOONER, choose_layouts, places
from .passes.memory import assign_memory
from .passes.narrow_messages import send_narrow
from .passes.narrow_sums import Sum, narrow_sums, sums
from .passes.offload import OFF, named_place, place_of
from .passes.overlap import overlap
from .passes.parts import make_parts
from .passes.scratch import scratch_of_all
from .passes.wide_halos import widen_halos
from .plan import Key, Plan, Program, Target, local_bytes, peak_bytes
from .preparing import PREPARING
from .simulation import simulate
from .title import title
from .tuning.divided_sites import with_parts
from .tuning.sites import Site, Tune, sites, with_ways

Results = Sequence[tuple[str, int]]  # as a plan has them

PASSES: tuple[Pass, ...] = (
    *PREPARING,
    choose_layouts,
    make_parts,
    narrow_sums,
    send_narrow,
    widen_halos,
    communicate,
    split_time,
    fit_memory,
    stay_in_cache,
    fill_buckets,
    overlap,
)
LOWERING = 8  # about so many passes are behind these
LIMITS = 4  # that are tried to say which is enough


def make_plan(key: Key, names: tuple[str, ...] = (), called: str = "", quick: bool = False) -> Plan:
    """Decide everything about a graph, or refuse it, before it runs, if it needs more memory per worker than
    it may. `quick`: the error is not to say which limit is enough, which takes plans to find out."""
    what = f"planning {called or 'pending operations'}"
    with activity.task("plan", what, len(PASSES) + LOWERING) as seen:
        plan, least = _made(key, names, called, seen)
        check_limit(plan, lambda: None if quick else _enough(key, least or plan.peak_bytes, seen))
        return plan


def _made(
    key: Key, names: tuple[str, ...], called: str, seen: activity.Task
) -> tuple[Plan, int | None]:
    """The plan; and about how much it could do with, if it needs more than it may."""
    graph, target = key.graph, key.target
    seconds: dict[str, float] = {}
    told: dict[str, Any] = {}
    _dump(0, "traced", graph)

    def timed(each: Pass, graph: Graph, target: Target, donated: Sequence[int]) -> Graph:
        start = time.perf_counter()
        with activity.task("plan", each.__name__, minor=True):
            made = run(each, graph, target, donated, told)
        seen.step()
        name = each.__name__
        seconds[name] = time.perf_counter() - start
        _show(len(seconds), name, graph, made, seconds[name])
        return made

    for each in PASSES:
        graph = timed(each, graph, target, key.donated)
    graph, results = _strip(graph)
    start, before = time.perf_counter(), sum(seconds.values())
    program = lower(graph, target, key.donated, _to_reuse(key, results), timed)
    took = time.perf_counter() - start
    seconds["assign_memory"] = took - (sum(seconds.values()) - before)
    _dump(len(seconds), "program", program.graph)
    ladder = told.get("ladder", anyway(program) if target.memory_limit is not None else ())
    gap = told.get("gap")
    plan = Plan(key, graph, program, results, names, seconds, called=called, gap=gap, ladder=ladder)
    return plan, told.get("least")


def sums_of(key: Key) -> list[Sum]:
    """The sums of workers' addends in the layouts of a plan, in the order of a policy's letters."""
    graph = key.graph
    if key.target.workers == 1:
        return []
    for each in PASSES[: PASSES.index(narrow_sums)]:
        graph = run(each, graph, key.target, key.donated)
    return list(sums(graph, key.target))


HOLDING = 1e-15  # seconds for a byte of a worker's memory, where that is not short


def place_operands(graph: Graph, target: Target, free: Sequence[int]) -> list[Layout]:
    """Where operands are to lie that may lie anywhere: where the graph runs fastest, with all that it
    does to fit into memory; where it needs least, if it does not fit anywhere."""
    room = min(target.memory_limit or inf, target.machine.memory)
    if not target.offload:  # the last resort, of the place that needs least
        target = replace(target, offload=OFF)
    found: list[tuple[bool, float, Graph]] = []
    for k in range(12):
        told = dict[str, Graph]()
        made, *near = places(graph, target, free, HOLDING * 16**k, told)
        if found and made.inputs == found[-1][2].inputs:
            continue
        if not near and _has_room(told["laid"], target, room):
            return _layouts(made, free)
        try:
            plan = make_plan(Key(made, replace(target, memory_limit=_limit(room))), quick=True)
        except MemoryLimitError:
            peak = make_plan(Key(made, replace(target, memory_limit=None))).peak_bytes
            found.append((True, peak, made))
            continue
        best = simulate(plan.program, target.machine, target.mesh).seconds
        found.append((False, best, made))
        if any(r.seconds for r in plan.ladder):
            continue
        for other in near:
            with suppress(MemoryLimitError):
                plan = make_plan(Key(other, replace(target, memory_limit=_limit(room))), quick=True)
                seconds = simulate(plan.program, target.machine, target.mesh).seconds
                if seconds < MUCH_SOONER * best:
                    found.append((False, seconds, other))
        break  # holding less would only take longer
    return _layouts(min(found, key=lambda f: f[:2])[2], free)


def _has_room(laid: Graph, target: Target, room: float) -> bool:
    """Whether memory is not short, so that no plan is needed to know it."""
    return room == inf or roughly(laid, target) <= 0.8 * room


def _layouts(graph: Graph, free: Sequence[int]) -> list[Layout]:
    return [s.layout for k in free if (s := graph.inputs[k]).layout is not None]


def _limit(room: float) -> int | None:
    return None if room == inf else int(room)


def program_of(graph: Graph, key: Key, results: Results) -> Program:
    """Lower a graph that every machine may have to the program that this one runs."""
    return lower(graph, key.target, key.donated, _to_reuse(key, results))


def _to_reuse(key: Key, results: Results) -> list[int]:
    """Operands whose memory results may take: those given away, unless they are results themselves."""
    return [k for k in key.donated if ("in", k) not in results]


def tune(plan: Plan, decide: Tune, threads: int) -> Plan:
    """The plan with its sites done as timing says, if it has any, and if that fits into memory."""
    by_rule = plan.program
    if plan.tuned is not None and any(plan.tuned.ways):
        by_rule = program_of(plan.lowered, plan.key, plan.results)
    found: Sequence[Site] = sites(by_rule.graph, plan.target, threads)
    if not found:
        return plan
    limit = plan.target.memory_limit
    room = None if limit is None else limit - plan.operand_bytes
    with activity.task("tune", f"timing {plan.called or 'pending operations'}"):
        found = with_parts(found, by_rule, plan.target, threads, lambda some: decide(some, room))
        tuned = decide(found, room)
    program = done_so(by_rule, plan.key, plan.results, tuned.ways)
    if limit is not None and peak_bytes(program) > limit:
        return plan
    return replace(plan, program=program, tuned=tuned)


def done_so(program: Program, key: Key, results: Results, ways: Sequence[str]) -> Program:
    if not any(ways):
        return program
    graph, device = with_ways(program.graph, key.target, ways), DEVICES[key.target.device]
    if _too_much_scratch(graph, key.target, device) is not None:
        return program  # they were chosen on another machine
    return assign_memory(graph, device, _to_reuse(key, results))


def _strip(graph: Graph) -> tuple[Graph, tuple[tuple[str, int], ...]]:
    """Without outputs that are inputs as they came; the caller has those already.

    An output that stands there twice stays twice: each result has memory of its own, so that
    each can be given away."""
    results: list[tuple[str, int]] = []
    kept: list[int] = []
    for v in graph.outputs:
        if v < len(graph.inputs):
            results.append(("in", v))
        else:
            results.append(("out", len(kept)))
            kept.append(v)
    return Graph(graph.inputs, graph.nodes, tuple(kept)), tuple(results)


def _too_much_scratch(graph: Graph, target: Target, device: Device) -> tuple[Node, int] | None:
    """A node that needs more scratch memory than it may."""
    limit = target.scratch_limit
    if limit is None:
        return None
    found = [(around.nodes[k], n) for around, k, n in scratch_of_all(graph, device) if n > limit]
    return max(found, key=lambda f: f[1], default=None)


def check_limit(plan: Plan, enough: Callable[[], int | None] = lambda: None) -> None:
    """Refuse a plan that needs more memory per worker than it may, before it runs; without a limit, one that
    reads a file at once for which the machine has none. `enough`: finds a limit that would do."""
    limit, graph = plan.target.memory_limit, plan.program.graph
    whole = _read_whole(graph)
    above = _too_much_scratch(graph, plan.target, described(plan.target.device))
    if above is not None:
        node, size = above
        fixed = plan.target.numerics == "any-workers"
        raise MemoryLimitError.because(
            f"{title(node)} -> {node.specs[0].bare}",
            got=f"{_mib(size)} of scratch memory" + ", undivided under any-workers" * fixed,
            needed=f"at most scratch_limit={_mib(plan.target.scratch_limit or 0)}",
            do=f"allow scratch_limit={_mib(size)}",
            line=node.line,
        )
    if plan.peak_bytes > (limit if limit is not None else memory() if whole else inf):
        raise _refusal(plan, whole, None if limit is None else enough())


def _enough(key: Key, least: int, seen: activity.Task) -> int | None:
    """A limit with which the plan was made, at least so many bytes; None if none was found."""
    for _ in range(LIMITS):
        least = _in_tenths(least)
        plan, more = _made(
            replace(key, target=replace(key.target, memory_limit=least)), (), "", seen
        )
        if plan.peak_bytes <= least:
            return least
        least = max(more or plan.peak_bytes, least + least // 20)
    return None


def _refusal(plan: Plan, whole: tuple[Spec, Node] | None, enough: int | None) -> OstinatoError:
    """Why a plan is not to run. `enough`: a limit within which it could."""
    limit = plan.target.memory_limit
    if whole is not None:
        spec, reader = whole
        return MemoryLimitError.because(
            f"{title(reader)} of {spec}, which lies in a file",
            got=f"an operation that needs all rows at once, {_mib(plan.peak_bytes)} per worker",
            needed="one that can work through blocks of rows"
            + (f" within memory_limit={_mib(limit)}" if limit is not None else ""),
            do=f"allow memory_limit={_mib(enough)}"
            if enough
            else "work through parts of it, or split it over workers on more machines (split=)",
            line=reader.line,
        )
    assert limit is not None
    what, line = _greatest(plan)
    parts = (
        f"operands {_mib(plan.operand_bytes)} + results {_mib(plan.result_bytes)} "
        f"+ intermediates {_mib(plan.arena_bytes)}"
    )
    return MemoryLimitError.because(
        f"plan {plan.id[:8]}, whose peak is at {what}",
        got=f"{_mib(plan.peak_bytes)} per worker ({parts})",
        needed=f"at most memory_limit={_mib(limit)}, which no split in time reaches"
        + (f", nor making values again{_moving(plan)}: at least {_mib(enough)}" if enough else ""),
        do=_advice(plan, enough),
        line=line,
    )


def _moving(plan: Plan) -> str:
    place = place_of(plan.target)
    return f", nor moving them to {named_place(place)}" if place else ""


def _read_whole(graph: Graph) -> tuple[Spec, Node] | None:
    """The largest file that is read at once, and who wants it so."""
    found: list[tuple[int, Spec, Node]] = []
    for k, node in enumerate(graph.nodes):
        if node.op == "read" and local_bytes(node.specs[0]) > READ_BYTES // 8:
            v = graph.starts[k]
            readers = [graph.nodes[u] for u in graph.uses[v]]
            found += [(local_bytes(node.specs[0]), node.specs[0].bare, r) for r in readers[:1]]
        inner = [_read_whole(g) for _, g in node.subgraphs()]
        found += [(local_bytes(i[0]), *i) for i in inner if i is not None]
    return max(found, key=lambda f: f[0])[1:] if found else None


def _in_tenths(n: int) -> int:
    """At least so many bytes, as people read them."""
    return ceil(ceil(n * 10 / 2**20) / 10 * 2**20) if n >= 2**17 else n


def _mib(n: int) -> str:
    return f"{n / 2**20:.1f} MiB" if n >= 2**17 else f"{n} bytes"


def _greatest(plan: Plan) -> tuple[str, str]:
    """Find what takes most memory, in words, and the user's line of it: an operand, a result, or
    the node at which the arena is fullest."""
    graph, source = plan.program.graph, plan.traced
    found: list[tuple[int, str, str]] = [_fullest(plan.program)]
    for spec, name in itertools.zip_longest(graph.inputs, plan.names):
        if spec is not None:
            found.append(
                (local_bytes(spec), f"operand {name or ''} {spec.bare}".replace("  ", " "), "")
            )
    for v, (where, k) in zip(source.outputs, plan.results, strict=True):
        if where == "out":
            node = source.nodes[source.producers[v]]
            size, spec = local_bytes(graph.out_specs[k]), source.specs[v].bare
            found.append((size, f"{title(node)} -> {spec}", node.line))
    return max(found, key=lambda f: f[0])[1:]


def _fullest(program: Program) -> tuple[int, str, str]:
    """The arena, and the node at which it is fullest, down into loops; of what users typed no line for,
    the one behind it."""
    k = program.peak_node
    inner = [p for p in program.bodies.get(k, ()) if p.peak_node >= 0]
    if inner:
        _, what, line = _fullest(max(inner, key=lambda p: p.arena_bytes))
        return program.arena_bytes, what, line
    nodes = program.graph.nodes[max(k, 0) :]
    if not nodes:
        return 0, "its operands", ""
    node = next((n for n in nodes if n.line), nodes[0])
    made = node.specs[0].bare if node.specs else "nothing"
    return program.arena_bytes, f"{title(node)} -> {made}", node.line


def _advice(plan: Plan, enough: int | None) -> str:
    """Advise what would make this plan take less memory."""
    ways = []
    if plan.target.numerics == "any-workers":
        ways.append(
            'allow numerics="same-plan", where turns may be shorter than the 24 fixed blocks'
        )
    most = max(plan.operand_bytes, plan.result_bytes, plan.arena_bytes)
    if plan.arena_bytes == most:
        ways.append(
            "work through smaller batches, or wrap a part of a differentiated function in ost.checkpoint"
        )
        if not place_of(plan.target):
            ways.append("let values leave memory while nobody reads them (offload=True)")
    elif plan.operand_bytes == most:
        ways.append("split the largest operands over more workers (split=)")
    elif not plan.called:
        ways.append(
            "write it to a file as it is made, with ost.save, or reduce it before it is read"
        )
    sizes = {local_bytes(s) for s in plan.program.graph.inputs}
    alike = not sizes.isdisjoint(map(local_bytes, plan.program.graph.out_specs))
    if alike and plan.names and not plan.key.donated:
        ways.append("give operands away that are not needed again (donate=)")
    if enough:
        ways.append("allow that much")
    return ", or ".join(ways) or "raise the limit"


# -- seeing --------------------------------------------------------------------------------
def _show(number: int, name: str, before: Graph, after: Graph, seconds: float) -> None:
    _dump(number, name, after)
    if settings.debug >= 2:
        print(
            f"  {number} {name:<16} {len(before.nodes):>6} -> {len(after.nodes):>6} nodes "
            f"{seconds * 1e3:8.2f} ms",
            file=sys.stderr,
        )
    if settings.debug >= 3 and before is not after:
        print(after, file=sys.stderr)


def _dump(number: int, name: str, graph: Graph) -> None:
    if settings.dump:
        folder = Path(settings.dump)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{os.getpid()}_{digest(graph)[:8]}_{number:02d}_{name}.txt").write_text(
            f"{graph}\n"
        )
