"""Arrays that go into files as they are made: block after block of what is read from others, so that
they never exist as a whole.

What is pending ends in a `write`, which the planner cuts in space and in time as it cuts a sum. Values
that somebody holds on the way stay pending: to keep them would take the memory that this is to save."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from ostinato import settings
from ostinato.io_pipeline.merging import OrderOfRuns, SortedRuns, columns_of
from ostinato.io_pipeline.sinks import NpySink
from ostinato.io_pipeline.source import Source
from ostinato.ops.core import disk_cache
from ostinato.ops.core.array import Array, File, Operand, Term, term_of
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout, every_bounds
from ostinato.ops.core.spec import Spec, int64, is_inexact, uint32, uint64
from ostinato.ops.core.targets import new_number, targets
from ostinato.ops.core.trace import Collected, collect
from ostinato.ops.expressions import Expression, where
from ostinato.planner.machine import memory
from ostinato.planner.passes.blocking import READ_BYTES
from ostinato.planner.passes.file_blocks import turns_of
from ostinato.planner.plan import Key, Target
from ostinato.planner.rewrite import inline
from ostinato.runtime.engine import Launcher

from .sessions import Session, one_by_one

SHARE = 4  # of the memory there is: what takes more than such a part of it is not kept unasked


def is_large(spec: Spec, target: Target) -> bool:
    """Whether to keep an array in memory would leave little for anything else."""
    limit = target.memory_limit
    room = memory() if limit is None else limit * target.workers
    return spec.nbytes * SHARE > room


def reads_files(found: Collected) -> bool:
    """Whether pending operations read arrays that stay in files."""
    return any(in_file(o) for o in found.held if o is not None)


def in_file(operand: Operand) -> bool:
    return isinstance(operand, File) or _stored(operand.spec)


def not_kept(found: Collected, session: Session) -> set[Term]:
    """Pending operations on the way whose results are made again when they are asked for themselves:
    large ones, of files that stay where they are."""
    files = [
        ref
        for ref, o in zip(found.captured, found.held, strict=True)
        if o is not None and in_file(o)
    ]
    if not files:
        return set()
    made = {term for term, _ in files}
    for term in found.terms:
        if any(t in made for t, _ in term.inputs):
            made.add(term)
    return {t for t in made if any(is_large(s, session.target) for s in t.specs)}


def streamable(x: Array, session: Session) -> Collected | None:
    """The graph of a pending array that is to be written block by block: a large one of what is in
    files, or one that memory has no room for."""
    if x._operand is not None or is_small(x.spec, session):
        return None
    term, k = term_of(x)
    if term.is_traced or (term.operands is not None and term.operands[k] is not None):
        return None
    found = collect([(term, k)])
    return found if is_large(x.spec, session.target) or reads_files(found) else None


def is_small(spec: Spec, session: Session) -> bool:
    return spec.nbytes <= READ_BYTES and not is_large(spec, session.target)


def stream(found: Collected, sink: Any, session: Session) -> None:
    """Run what was collected, into a sink."""
    with one_by_one(session.settling, session):
        operands = [
            session.hold_leaf(t, k, operand)
            for (t, k), operand in zip(found.captured, found.held, strict=True)
            if operand is not None
        ]
        with sorted_before(found.graph, operands, session, sink.path) as (graph, given):
            _run(graph, given, sink, session, session.target, "save")


def _run(
    graph: Graph,
    operands: Sequence[Operand],
    sink: Any,
    session: Session,
    target: Target,
    called: str,
) -> None:
    """Write the result of a graph."""
    number = new_number()
    try:
        place = session.engine.target(sink, number, session.everywhere)
        given = [*operands, place]
        writes = _writing(graph, [o.spec for o in given])
        plan, _ = session.plan(Key(writes, target), called=called)
        (count,) = session.launcher(plan)(given)
        written = int(session.engine.get(count)[()])
        session.engine.wait()
    finally:
        targets.pop(number, None)
    assert written == graph.out_specs[0].size, "all of it, by one worker each"


# -- what is sorted on the way -----------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Step:
    """What a graph needs in a file of its own before the rest can run."""

    graph: Graph  # whose result goes into the file, made of all operands so far
    called: str
    source: Callable[[NpySink], Source]  # what the rest reads there, as its next operand


@contextmanager
def sorted_before(
    graph: Graph, operands: Sequence[Operand], session: Session, beside: str | None = None
) -> Iterator[tuple[Graph, list[Operand]]]:
    """The graph, over operands of which those that it would have to sort as a whole are sorted."""
    specs = tuple(o.spec for o in operands)
    if specs != graph.inputs:  # something came from elsewhere
        graph = Graph(specs, graph.nodes, graph.outputs)
    steps, rest = in_steps(graph, session.target)
    with stepped(steps, operands, session, session.target, beside) as given:
        yield rest, given


def in_steps(graph: Graph, target: Target) -> tuple[list[Step], Graph]:
    """What a graph would have to sort as a whole, step by step, and the rest, which has one operand more
    for each: runs that fit into memory are put in order and written to a file, of which the rest reads
    any places of the order (io_pipeline/merging.py)."""
    steps = list[Step]()
    while (k := _first_to_sort(graph, target)) is not None:
        step, graph = _sorted_at(graph, k, target)
        steps.append(step)
    return steps, graph


@contextmanager
def stepped(
    steps: Sequence[Step],
    operands: Sequence[Operand],
    session: Session,
    target: Target,
    beside: str | None = None,
) -> Iterator[list[Operand]]:
    """The operands, and those that the steps make of them. Their files lie beside another one, or in the
    cache's folder, as long as this lasts."""
    given, sinks = list(operands), list[NpySink]()
    folder = disk_cache.at(settings.cache).root or Path(gettempdir())
    try:
        for step in steps:
            (made,) = step.graph.out_specs
            sink = NpySink(
                f"{beside or folder / step.called}.runs.npy", None, made.shape, made.dtype
            )
            sinks.append(sink)
            sink.create()
            _run(step.graph, given, sink, session, target, step.called)
            given.append(session.attach(step.source(sink)))
        yield given
    finally:
        for sink in sinks:
            sink.discard()


def behind(steps: Sequence[Step], launch: Launcher, session: Session, target: Target) -> Launcher:
    """Runs the steps, and then what needs them."""
    me = weakref.ref(session)

    def run(operands: Sequence[Operand]) -> list[Operand]:
        session = me()
        assert session is not None, "who runs a plan has its session"
        with stepped(steps, operands, session, target) as given:
            return launch(given)

    return run


def _stored(spec: Spec) -> bool:
    return spec.layout is not None and spec.layout.stored


def _first_to_sort(graph: Graph, target: Target) -> int | None:
    """The first node that sorts what is made of files, and too large, along the axis in which it is
    read."""
    made = {v for v, spec in enumerate(graph.inputs) if _stored(spec)}
    for k, node in enumerate(graph.nodes):
        if made.isdisjoint(node.inputs):
            continue
        made.update(graph.outs(k))
        spec = graph.specs[node.inputs[0]]
        along = node.op in ("sort", "argsort") and node.kw["axis"] == 0
        if along and is_large(spec, target) and turns_of(spec, target) > 1:
            return k
    return None


def _sorted_at(graph: Graph, k: int, target: Target) -> tuple[Step, Graph]:
    """What puts in order what a node sorts, and the graph that reads that."""
    node, spec = graph.nodes[k], graph.specs[graph.nodes[k].inputs[0]]
    runs, falls, bounds = _runs_of(graph, k, target), node.kw["descending"], _bounds(spec, target)
    kind = runs.out_specs[0].dtype

    def source(sink: NpySink) -> Source:
        if node.op == "argsort":
            return OrderOfRuns(sink.part, spec.shape, int64, bounds, falls=False)
        return SortedRuns(sink.part, spec.shape, kind, bounds, falls)

    made = Spec(
        spec.shape, int64 if node.op == "argsort" else kind, Layout.whole(target.mesh).on_disk
    )

    def read(builder: Builder, value: int) -> int:
        if node.op == "sort":
            return builder.call("sorted_numbers", value, of=spec.dtype, line=node.line)
        if made.shape == node.specs[0].shape:
            return value
        order = Expression(builder, value, node.line)
        return order.slice([(0, n, 1) for n in node.specs[0].shape]).value

    return Step(runs, "sort", source), _without(graph, k, made, read)


def _runs_of(graph: Graph, k: int, target: Target) -> Graph:
    """The keys of what a node sorts, of each column a row, in sorted runs; of an `argsort` with the
    places that they come from."""
    node = graph.nodes[k]
    builder = Builder(graph.inputs)
    (value,) = inline(
        builder, Graph(graph.inputs, graph.nodes, node.inputs), range(len(graph.inputs))
    )
    spec, bounds, op = builder.specs[value], _bounds(builder.specs[value], target), "sort_of_parts"
    if node.op == "argsort" and is_inexact(spec.dtype):  # to which both zeros are alike
        x = Expression(builder, value, node.line)
        value = where(x.call("equal", x.number(0)), 0, x).value
    keys = builder.call("sort_keys", value, line=node.line)
    if node.op == "argsort":
        small = builder.specs[keys].dtype.itemsize <= 4 and spec.shape[0] <= 1 << 32
        wide = Expression(builder, keys, node.line).astype(uint32 if small else uint64)
        wide = wide.call("bitwise_invert") if node.kw["descending"] else wide
        keys, op = wide.value, "order_of_parts"
    table = spec.shape[0], columns_of(spec.shape)
    if spec.shape != table:
        keys = builder.call("reshape", keys, shape=table, line=node.line)
    rows = builder.call("permute_dims", keys, axes=(1, 0), line=node.line)
    rows = builder.call("resplit", rows, split=1, mesh=None, line=node.line)
    return builder.graph([builder.call(op, rows, bounds=bounds, line=node.line)])


def _bounds(spec: Spec, target: Target) -> tuple[int, ...]:
    """Where runs begin and end: each worker's rows, in as many turns as they take."""
    mesh = (*target.mesh, turns_of(spec, target))
    rows = Layout(mesh, (0,) * len(mesh), (), target.numerics == "any-workers")
    starts, _ = every_bounds(rows, spec.shape[0], 0)
    return (*starts.tolist(), spec.shape[0])


def _without(graph: Graph, k: int, made: Spec, read: Callable[[Builder, int], int]) -> Graph:
    """The graph over one more operand, from which it reads what a node made."""
    builder = Builder([*graph.inputs, made])
    values = list(range(len(graph.inputs)))
    for j, other in enumerate(graph.nodes):
        if j == k:
            values.append(read(builder, len(graph.inputs)))
            continue
        inputs = [values[v] for v in other.inputs]
        values.extend(builder.add(other.op, inputs, other.params, other.specs, other.line))
    for v in graph.outputs:  # a result stays, and the file goes
        if values[v] == len(graph.inputs):
            (values[v],) = builder.add("read", (values[v],), (), (made.bare,), graph.nodes[k].line)
    return builder.graph([values[v] for v in graph.outputs])


def _writing(graph: Graph, specs: list[Spec]) -> Graph:
    """The graph with a `write` of its result at the end; the file's number is its last input."""
    builder = Builder(specs)
    (value,) = inline(builder, graph, list(range(len(specs) - 1)))
    (line,) = [*graph.lines()][-1:] or [""]
    return builder.graph(
        builder.add("write", (value, len(specs) - 1), (), (Spec((), int64),), line)
    )
