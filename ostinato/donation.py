"""Running what is given some of its operands (`donate=`)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ostinato.errors import ArgumentError
from ostinato.ops.core import array
from ostinato.ops.core.array import Array, Term
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.user_line import misfit
from ostinato.runtime.engine import Launcher

from .sessions import Session


def launch_given(
    launch: Launcher,
    operands: list[Any],
    away: Sequence[tuple[int, Any]],
    session: Session,
    who: str,
) -> list[Operand]:
    """Run what is given some of its operands, which are named by number, with what the caller has there.
    Where others hold on to an Array's operand, what is given is one that nobody writes to. Arrays are
    gone when it began, unless it failed without having written to them."""
    before = list(operands)
    passed = Counter(map(id, before))
    taken: list[tuple[int, Array, Term | None]] = []
    try:
        for n, x in away:
            if not isinstance(x, Array):
                continue
            if passed[id(before[n])] > 1:
                got = "an array that is given away and also used as another argument"
                raise misfit(ArgumentError, who, got=got, needed="an array that is passed once")
            term, alone = _take(x)
            taken.append((n, x, term))
            held = term is not None and term.operands is not None
            known = 3 + (held and term.operands[x._k] is operands[n])  # type: ignore[union-attr, index]
            alone = alone and not operands[n].shared and sys.getrefcount(operands[n]) <= known
            lies = operands[n].spec.layout
            if not alone and lies is not None and not lies.stored:
                operands[n] = session.engine.put(session.engine.get(operands[n]), lies)
        return launch(operands)
    except BaseException:
        for n, x, term in taken:
            if not before[n].spoiled:
                with array.changing:
                    x._operand, x._term = before[n], term
        raise


def _take(x: Array) -> tuple[Term | None, bool]:
    """Take an Array's value from it, which one thread can; its Term, and whether nobody else has that.
    Who has the value in hand already is seen by its count of references."""
    with array.changing:
        if x._operand is not None:
            term = x._term
            x._operand = x._term = None
            return term, term is None or sys.getrefcount(term) <= 2
    array.term_of(x)  # raises
    raise AssertionError("an array without a value")
