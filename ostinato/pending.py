"""Operations outside of compiled functions: what is known of those that ran, so that an iteration of a
loop of Python's finds the plan of the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ostinato.ops.core.exact import exact
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.trace import Collected
from ostinato.planner.plan import Plan, Target
from ostinato.runtime.engine import Launcher

FORMS = 128  # of pending operations, and keys of each, that are known
LARGEST = 4096  # operations of what is looked up by its form
COPIED = 1 << 20  # bytes that are copied sooner than a plan is made


Numbers = tuple[Any, ...]


class Ready:
    """How operations that ran are run again, until their plan goes."""

    __slots__ = ("__weakref__", "launch", "results", "target")

    def __init__(self, plan: Plan, target: Target, launch: Launcher) -> None:
        self.target: Target | None = target
        self.launch, self.results = launch, plan.results

    def drop(self) -> None:
        self.target = None

    def run(self, operands: Sequence[Operand]) -> list[Operand]:
        """The results of the plan's source, in its order."""
        made = self.launch(operands)
        found = []
        for where, k in self.results:
            found.append(made[k] if where == "out" else operands[k])
            if where == "in":
                operands[k].shared = True
        return found


class Pending:
    """Operations that are alike but for their numbers: those that were others before are operands, so
    that a step that counts, or goes on to the next row, is one plan."""

    def __init__(self, values: Numbers) -> None:
        self.last = values
        self.vary = set[int]()
        self.ready: dict[Numbers, Ready] = {}  # by the numbers that do not vary

    def varying(self, found: Collected, now: Numbers) -> list[int]:
        """The numbers that are to be operands. There are more and more of them, so that the count
        of the others tells which they are."""
        if self.last != now:
            new = {k for k, was in enumerate(self.last) if was != now[k]} - self.vary
            if new:
                self.vary |= new - _known(found)
            if len(self.ready) >= FORMS:
                self.ready.clear()
        self.last = now
        return sorted(self.vary)


def exact_values(found: Collected) -> Numbers:
    """The numbers among operations, to the bit."""
    assert found.form
    return tuple([exact(x) for x in found.values])


def _known(found: Collected) -> set[int]:
    """The numbers that kernels had better know: exponents, as they make x * x of x to the power of 2, and
    where begins what is no longer read as it lies then, if it takes long to copy."""
    leads, known = dict[int, set[int]](), set[int]()
    for k, (term, _) in enumerate(found.numbers):
        if not term.inputs:
            leads[id(term)] = {k}
        elif min([t.specs[j].nbytes for t, j in (*term.inputs, (term, 0))]) > COPIED:
            known.add(k)
    for term in found.terms:
        inputs = set[int]().union(*[leads.get(id(t), ()) for t, _ in term.inputs])
        assert term.op is not None
        if term.op.name == "pow":
            known |= inputs
        elif inputs and (term.op.is_view or term.op.moves.converts):
            leads[id(term)] = inputs
    return known
