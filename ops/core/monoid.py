"""How partial results combine: an identity and an associative operation on a state of one or more
arrays.

The state of `sum` is one array; of `argmin` the pair (value, position); of `moments` the triple
(count, mean, M2), so that mean and variance need one collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .spec import DType, is_float

State = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Monoid:
    name: str
    combine: Callable[[Any, State, State, State], None]  # xp, out, a, b; out may be a
    exact: bool = False  # whether the order of combination cannot change a bit
    ufunc: str = ""  # for states of one array
    width: int = 1
    # What changes nothing when it is combined, and two states as one number, of {0} and {1}: what
    # kernels need to know of a state of one array.
    identity: Callable[[DType], Any] | None = None
    scalar: str = ""
    order: str = ""  # "max" or "min", if it looks for the best


def lowest(dtype: DType) -> Any:
    """Return the least value of a dtype."""
    if dtype.kind == "b":
        return False
    return -np.inf if is_float(dtype) else np.iinfo(dtype).min


def highest(dtype: DType) -> Any:
    """Return the greatest value of a dtype."""
    if dtype.kind == "b":
        return True
    return np.inf if is_float(dtype) else np.iinfo(dtype).max


def identity(name: str, dtype: DType) -> Any:
    """Return the monoid's identity, which changes nothing when it is combined."""
    found = MONOIDS[name].identity
    assert found is not None, f"the monoid {name} has no single identity"
    return found(dtype)


def _zero(dtype: DType) -> Any:
    return dtype.type(0)


def _one(dtype: DType) -> Any:
    return dtype.type(1)


def _by(ufunc: str) -> Callable[[Any, State, State, State], None]:
    def combine(xp: Any, out: State, a: State, b: State) -> None:
        getattr(xp, ufunc)(a[0], b[0], out=out[0])

    return combine


def _position(better: str) -> Callable[[Any, State, State, State], None]:
    def combine(xp: Any, out: State, a: State, b: State) -> None:
        """The better value; of equal ones the earlier; NaN beats all, as in NumPy. A position below
        0 holds nothing."""
        (av, ai), (bv, bi) = a, b
        wins = getattr(xp, better)(bv, av)
        if av.dtype.kind not in "biu":
            wins = (wins | xp.isnan(bv)) & ~xp.isnan(av)
        wins = (wins & (bi >= 0)) | (ai < 0)
        xp.copyto(out[0], xp.where(wins, bv, av))
        xp.copyto(out[1], xp.where(wins, bi, ai))

    return combine


def _moments(xp: Any, out: State, a: State, b: State) -> None:
    """Chan's formula: (count, mean, M2) of two groups together; infinite means stay as sums would."""
    (an, am, as_), (bn, bm, bs) = a, b
    n = an + bn
    weight = xp.where(n == 0, 0.0, bn / xp.maximum(n, 1))
    delta = bm - am
    mean = am + xp.where(xp.isfinite(am), delta * weight.astype(am.dtype), bm)
    apart = xp.where((an == 0) | (bn == 0), 0, delta)  # whose square may be infinite
    square = as_ + bs + (apart * xp.conj(apart)).real * (an * weight).astype(as_.dtype)
    for target, value in zip(out, (n, mean, square), strict=True):
        xp.copyto(target, value)


MONOIDS: dict[str, Monoid] = {
    m.name: m
    for m in (
        Monoid("sum", _by("add"), ufunc="add", identity=_zero, scalar="{0} + {1}"),
        Monoid("prod", _by("multiply"), ufunc="multiply", identity=_one, scalar="{0} * {1}"),
        Monoid("min", _by("minimum"), exact=True, ufunc="minimum", identity=highest,
               scalar="min({0}, {1})", order="min"),
        Monoid("max", _by("maximum"), exact=True, ufunc="maximum", identity=lowest,
               scalar="max({0}, {1})", order="max"),
        Monoid("any", _by("logical_or"), exact=True, ufunc="logical_or", identity=_zero,
               scalar="{0} | {1}"),
        Monoid("all", _by("logical_and"), exact=True, ufunc="logical_and", identity=_one,
               scalar="{0} & {1}"),
        Monoid("argmin", _position("less"), exact=True, width=2, identity=highest, order="min"),
        Monoid("argmax", _position("greater"), exact=True, width=2, identity=lowest, order="max"),
        Monoid("moments", _moments, width=3, identity=_zero),
    )
}  # fmt: skip
