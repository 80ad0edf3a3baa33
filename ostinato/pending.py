"""Operations outside of compiled functions: what is known of those that ran, so that an iteration of a
loop of Python's finds the plan of the one before."""

from __future__ import annotations

from typing import Any

from ostinato.ops.core.array import Term
from ostinato.ops.core.exact import exact
from ostinato.ops.core.trace import Collected
from ostinato.planner.plan import Key

FORMS = 128  # of pending operations, and keys of each, that are known
LARGEST = 4096  # operations of what is looked up by its form


Numbers = tuple[Any, ...]


class Pending:
    """Operations that are alike but for their numbers: those that were others before are operands, so
    that a step that counts is one plan."""

    def __init__(self, found: Collected) -> None:
        self.last = numbers_of(found)
        self.vary = set[int]()
        self.keys: dict[Numbers, Key] = {}  # by the numbers that do not vary

    def varying(self, found: Collected) -> list[Term]:
        """The numbers that are to be operands."""
        now = numbers_of(found)
        if self.last != now:
            new = {k for k, was in enumerate(self.last) if was != now[k]}
            self.vary |= new - _exponents(found)
            if len(self.keys) >= FORMS:
                self.keys.clear()
        self.last = now
        return [found.numbers[k] for k in sorted(self.vary)]


def numbers_of(found: Collected) -> Numbers:
    """The numbers among operations, to the bit."""
    return tuple([exact(dict(t.params)["value"]) for t in found.numbers])


def _exponents(found: Collected) -> set[int]:
    """The numbers that kernels had better know: they make x * x of x to the power of 2."""
    leads = {id(t): {k} for k, t in enumerate(found.numbers)}
    known = set[int]()
    for term in found.terms:
        inputs = set[int]().union(*[leads.get(id(t), ()) for t, _ in term.inputs])
        assert term.op is not None
        if term.op.name == "pow":
            known |= inputs
        elif inputs and (term.op.is_view or term.op.moves.converts):
            leads[id(term)] = inputs
    return known
