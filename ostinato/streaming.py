"""Arrays that go into files as they are made: block after block of what is read from others, so that
they never exist as a whole.

What is pending ends in a `write`, which the planner cuts in space and in time as it cuts a sum. Values
that somebody holds on the way stay pending: to keep them would take the memory that this is to save."""

from __future__ import annotations

from typing import Any

from ostinato.ops.core.array import Array, File, Operand, Term, term_of
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.trace import Collected, collect
from ostinato.planner.passes.blocking import READ_BYTES

from .external import is_large, is_stored, run_into, sorted_before
from .sessions import Session, one_by_one


def reads_files(found: Collected) -> bool:
    """Whether pending operations read arrays that stay in files."""
    return any(in_file(o) for o in found.held if o is not None)


def in_file(operand: Operand) -> bool:
    return isinstance(operand, File) or is_stored(operand.spec)


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
            run_into(graph, given, sink, session, session.target, "save")
