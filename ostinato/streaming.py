"""Arrays that go into files as they are made: block after block of what is read from others, so that
they never exist as a whole; and what a graph needs in files of its own before it can run.

What is pending ends in a `write`, which the planner cuts in space and in time as it cuts a sum. Values
that somebody holds on the way stay pending: to keep them would take the memory that this is to save. So
do those on the way to other values, where there is no memory for them.
The planner says in which steps a graph is to run (planner/external.py); the files that they take go at
the end."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from ostinato import settings
from ostinato.io_pipeline.array_files import NpySource
from ostinato.io_pipeline.merging import RUNS, RowsOfRuns, SortedRuns
from ostinato.io_pipeline.sinks import NpySink
from ostinato.io_pipeline.source import Source
from ostinato.ops.core import disk_cache
from ostinato.ops.core.apply import apply
from ostinato.ops.core.array import Array, Term, term_of
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.operand import File, Operand
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.targets import new_number, targets
from ostinato.ops.core.trace import Collected, Ref, collect
from ostinato.planner.external import Read, Step, is_large, memory_of, split_sorts
from ostinato.planner.passes.blocking import READ_BYTES
from ostinato.planner.passes.reads import is_stored
from ostinato.planner.plan import Key, Target
from ostinato.planner.writing import writing
from ostinato.runtime.engine import Launcher

from .sessions import Session, one_by_one


def reads_files(found: Collected) -> bool:
    """Whether pending operations read arrays that stay in files."""
    return any(is_in_file(o) for o in found.held if o is not None)


def is_in_file(operand: Operand) -> bool:
    return isinstance(operand, File) or is_stored(operand.spec)


def held_too(found: Collected, asked: Sequence[Ref], session: Session) -> list[Ref]:
    """Find what somebody holds on the way to what is asked, to be kept with it: smaller ones first,
    as many as memory has room for beside it; no large ones of files that stay where they are. The
    others stay pending, and are made again when they are needed."""
    known = set(asked)
    held = [
        (term, k)
        for term in found.terms
        for k, holder in enumerate(term.holders)
        if holder is not None and holder() is not None and (term, k) not in known
    ]
    if not held:
        return held
    passing = _of_files(found, session) if reads_files(found) else set()
    held = [ref for ref in held if ref[0] not in passing]
    given = [o.spec for o in found.held if o is not None and not is_in_file(o)]
    taken = sum(s.nbytes for s in (*given, *[t.specs[k] for t, k in asked]))
    room = memory_of(session.target) - taken
    if session.target.memory_limit is not None:  # what is made of these needs the rest
        room = min(room, memory_of(session.target) // 2)
    total = sum(map(_size, held))
    if total > room:
        held = smaller(held, len(held))
    while held and total > room:
        total -= _size(held.pop())
    return held


def operands_of(found: Collected, session: Session) -> list[Operand]:
    """Return the leaves of what was collected, as operands of the session."""
    engine = session.engine
    return [
        operand if operand.engine is engine else session.hold_leaf(t, k, operand)
        for (t, k), operand in zip(found.captured, found.held, strict=True)
        if operand is not None
    ]


def smaller(refs: Sequence[Ref], count: int) -> list[Ref]:
    """So many of some results, those that take least."""
    return sorted(refs, key=_size)[:count]


def _size(ref: Ref) -> int:
    term, k = ref
    return term.specs[k].nbytes


def _of_files(found: Collected, session: Session) -> set[Term]:
    """Pending operations on the way that are made of files, and large."""
    made = {
        term
        for (term, _), o in zip(found.captured, found.held, strict=True)
        if o is not None and is_in_file(o)
    }
    for term in found.terms:
        if any(t in made for t, _ in term.inputs):
            made.add(term)
    return {t for t in made if any(is_large(s, session.target) for s in t.specs)}


def streamable(x: Array, session: Session) -> Collected | None:
    """The graph of a pending array that is to be written block by block: a large one of what is in
    files, or one that memory has no room for; one that lies in a file itself, where memory is short."""
    if is_small(x.spec, session):
        return None
    if isinstance(x._operand, File) and session.target.memory_limit is not None:
        x = apply("copy", x)
    if x._operand is not None:
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
    with one_by_one(session.settling, session), _place(sink, session) as place:
        operands = operands_of(found, session)
        graph = writing(rebase(found.graph, operands), session.target)
        with sorted_before(graph, [*operands, place], session, sink.path) as (rest, given):
            _write(rest, given, sink, session, session.target, "save")


@contextmanager
def sorted_before(
    graph: Graph, operands: Sequence[Operand], session: Session, beside: str | None = None
) -> Iterator[tuple[Graph, list[Operand]]]:
    """The graph, over operands of which those that it would have to sort as a whole are sorted."""
    steps, rest = split_sorts(rebase(graph, operands), session.target)
    with stepped(steps, operands, session, session.target, beside) as given:
        yield rest, given


def _folder() -> Path:
    return disk_cache.open_cache(settings.cache).root or Path(gettempdir())


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
    try:
        for step in steps:
            if step.graph is not None:
                (made,) = step.graph.out_specs
                name = f"{beside or _folder() / 'rows'}.runs.npy"
                sinks.append(sink := NpySink(name, None, made.shape, made.dtype))
                sink.create()
                with _place(sink, session) as place:
                    graph = writing(rebase(step.graph, given), target)
                    _write(graph, [*given, place], sink, session, target, "sort")
            given.append(session.attach(_reading(step.reads, [s.part for s in sinks])))
        yield given
    finally:
        for sink in sinks:
            sink.discard()


def run_steps(
    steps: Sequence[Step], launch: Launcher, session: Session, target: Target
) -> Launcher:
    """Runs the steps, and then what needs them."""
    me = weakref.ref(session)

    def run(operands: Sequence[Operand]) -> list[Operand]:
        session = me()
        assert session is not None, "who runs a plan has its session"
        with stepped(steps, operands, session, target) as given:
            return launch(given)

    return run


def rebase(graph: Graph, operands: Sequence[Operand]) -> Graph:
    """The graph over operands as they lie, of which some may have come from elsewhere."""
    specs = tuple([o.spec for o in operands])
    return graph if specs == graph.inputs else Graph(specs, graph.nodes, graph.outputs)


def _reading(said: Read, files: Sequence[str]) -> Source:
    """Files of the steps so far that the rest reads."""
    if said.how == "as_it_is":
        return NpySource(files[-1])
    about = said.spec.shape, said.spec.dtype, said.bounds, said.falls
    if said.how == "rows":
        return RowsOfRuns(NpySource(files[-1]), SortedRuns(files[-2], *about))
    return RUNS[said.how](files[-1], *about)


@contextmanager
def _place(sink: Any, session: Session) -> Iterator[Operand]:
    """The operand that stands for a file in a graph that writes to it."""
    number = new_number()
    try:
        yield session.engine.target(sink, number, session.everywhere)
    finally:
        targets.pop(number, None)


def _write(
    graph: Graph, given: Sequence[Operand], sink: Any, session: Session, target: Target, called: str
) -> None:
    """Run a graph that writes all of a file."""
    plan, _ = session.plan(Key(rebase(graph, given), target), called=called)
    (count,) = session.launcher(plan)(given)
    written = int(session.engine.get(count)[()])
    session.engine.wait()
    assert written * sink.dtype.itemsize == sink.nbytes, "all of it, by one worker each"
