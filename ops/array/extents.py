"""How far it is from one whole number to another, where both are found out as it runs but differ by a fixed
number, as the ends of x[i - 1:i + 2] and x[n * i:n * (i + 1)] do.

A number is told as a sum of others, each times a fixed number, and a fixed one: then those of two
numbers that are the same are left out."""

from __future__ import annotations

from typing import Any

from ..core.array import Array, Term, term_of
from ..core.operand import Host
from ..core.spec import DType, is_integer

_MAX_OPERATIONS = 200  # operations that are looked at


def distance(a: Any, b: Any) -> int | None:
    """b - a; None if that is no fixed number as far as can be seen."""
    sums = _Sums()
    try:
        one, other = sums.coefficients(a), sums.coefficients(b)
    except _TooLong:
        return None
    left = {k for k in (*one, *other) if one.get(k, 0) != other.get(k, 0)}
    return other.get(None, 0) - one.get(None, 0) if left <= {None} else None


class _TooLong(Exception):
    pass


def _is_wide(dtype: DType) -> bool:
    """Whether sums of places do not come round to where they began."""
    return is_integer(dtype) and dtype.itemsize >= 4


class _Sums:
    def __init__(self) -> None:
        self.known: dict[tuple[int, int], dict[Any, int]] = {}
        self.kept: list[Term] = []  # which are known by address

    def coefficients(self, x: Any) -> dict[Any, int]:
        """How often each number is in a sum; that of None is the fixed one."""
        if isinstance(x, Array):
            return self.term(*term_of(x))
        return {None: int(x)}

    def term(self, term: Term, k: int) -> dict[Any, int]:
        at = id(term), k
        if at not in self.known:
            if len(self.known) == _MAX_OPERATIONS:
                raise _TooLong
            self.kept.append(term)
            self.known[at] = self._found(term, k)
        return self.known[at]

    def _found(self, term: Term, k: int) -> dict[Any, int]:
        name = term.op.name if term.op is not None else ""
        params = dict(term.params)
        if name == "constant" and _is_wide(params["dtype"]):
            return {None: int(params["value"])}
        operand = term.operands[k] if term.operands is not None else None
        if isinstance(operand, Host) and _is_wide(operand.value.dtype) and not term.specs[k].shape:
            return {None: int(operand.value)}
        if not name:
            return {(id(term), k): 1}
        inputs = [self.term(t, j) for t, j in term.inputs]
        if term.specs[k].shape or not _is_wide(term.specs[k].dtype):
            return {self._same(term, k, inputs): 1}
        whole = all(_is_wide(t.specs[j].dtype) for t, j in term.inputs)
        match name:
            case "add":
                return _added(inputs[0], inputs[1], 1)
            case "subtract":
                return _added(inputs[0], inputs[1], -1)
            case "negative":
                return _added({}, inputs[0], -1)
            case "multiply":
                for x, y in (inputs, inputs[::-1]):
                    if x.keys() <= {None}:
                        return _added({}, y, x.get(None, 0))
            case "astype" | "mark" if whole:
                return inputs[0]
        return {self._same(term, k, inputs): 1}

    def _same(self, term: Term, k: int, inputs: list[dict[Any, int]]) -> Any:
        """Make a key that equal operations on equal numbers have in common."""
        found = tuple([frozenset(x.items()) for x in inputs])
        assert term.op is not None
        try:
            hash(term.params)
        except TypeError:
            return id(term), k
        return term.op.name, term.params, found, k


def _added(x: dict[Any, int], y: dict[Any, int], times: int) -> dict[Any, int]:
    return {k: x.get(k, 0) + times * y.get(k, 0) for k in {*x, *y}}
