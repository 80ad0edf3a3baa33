"""Distributions that are a few of the others, or tries that are drawn again, all that fail at once, in a
`while_loop`. Each try folds its number into the seed, so no layout changes a bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .control import while_loop
from .core.array import Array, Operandish, Split, as_array
from .core.spec import DTypeLike, Shape, ShapeLike, float32, float64, int64
from .creation import ANYWHERE, full, placed
from .distributions import _size, chisquare, poisson
from .draws import _float_dtype, normal, uniform
from .elementwise import (
    acos,
    astype,
    cos,
    expm1,
    floor,
    greater,
    greater_equal,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_not,
    maximum,
    minimum,
    pow,
    remainder,
    sqrt,
    where,
)
from .reduction import any as any_of
from .seeds import as_seed, fold
from .shape import broadcast_to

__all__ = ["logseries", "noncentral_chisquare", "vonmises", "wald", "zipf"]

_MOST = 2.0**63
_NARROW = 1e6  # kappa from which angles are normally distributed, as far as doubles tell


def _units(shape: Shape, seed: Array, number: int) -> Array:
    """Numbers from (0, 1]."""
    return 1.0 - uniform(shape, dtype=float64, seed=fold(seed, number))


def _doubles(*parameters: Operandish) -> list[Array]:
    return [astype(as_array(x), float64) for x in parameters]


def _tries(
    attempt: Callable[[Array], tuple[Array, Array]], can_be: Array, shape: Shape, seed: Array
) -> Array:
    """What `attempt(seed)` gives first that it says is good, of each element; NaN where that cannot
    be, as no try would be the last."""

    def again(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        found, is_open, number = state
        value, is_good = attempt(fold(seed, number))
        taken = logical_and(is_open, is_good)
        return (
            where(taken, value, found),
            logical_and(is_open, logical_not(is_good)),
            number + 1,
        )

    none = full(shape, math.nan, dtype=float64)
    start = (none, broadcast_to(can_be, shape), full((), 0, dtype=int64))
    return while_loop(lambda state: any_of(state[1]), again, start)[0]


def vonmises(
    mu: Operandish,
    kappa: Operandish,
    shape: ShapeLike | None = None,
    *,
    dtype: DTypeLike = float32,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Angles from [-pi, pi] around mu, as near to it as kappa says (Best and Fisher).

    >>> ost.random.vonmises(0.0, 4.0, (3,), seed=7)
    Array([-0.2351, -0.5164,  0.1548], dtype=float32, whole of 1)
    """
    kind = _float_dtype(dtype)
    middle, k = _doubles(mu, kappa)
    size, seed = _size("vonmises", shape, middle, k), as_seed(seed)
    can_be, narrow = greater_equal(k, 0), normal(size, dtype=float64, seed=fold(seed, -1)) / sqrt(k)
    is_narrow = greater(k, _NARROW)
    k = minimum(maximum(k, 1e-6), _NARROW)
    tau = 1.0 + sqrt(1.0 + 4.0 * k * k)
    rho = (tau - sqrt(2.0 * tau)) / (2.0 * k)
    r = (1.0 + rho * rho) / (2.0 * rho)

    def attempt(seed: Array) -> tuple[Array, Array]:
        z = cos(math.pi * _units(size, seed, 1))
        turned = (1.0 + r * z) / (r + z)
        c, u = k * (r - turned), _units(size, seed, 2)
        side = where(less(_units(size, seed, 3), 0.5), -1.0, 1.0)
        good = less_equal(log(u), log(c) + 1.0 - c)
        return side * acos(turned), good

    found = _tries(attempt, can_be, size, seed)
    angle = middle + where(is_narrow, narrow, found)
    angle = remainder(angle + math.pi, 2 * math.pi) - math.pi
    return placed(astype(angle, kind), split)


def zipf(
    a: Operandish,
    shape: ShapeLike | None = None,
    *,
    dtype: DTypeLike = int64,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Whole numbers k of probabilities in the ratio of k**-a, for a > 1 (Devroye).

    >>> ost.random.zipf(2.0, (4,), seed=7)
    Array([1, 1, 5, 1], dtype=int64, whole of 1)
    """
    (a,) = _doubles(a)
    size = _size("zipf", shape, a)
    can_be = greater(a, 1.0)
    less_one = minimum(a, 1024.0) - 1.0  # beyond that all but 1 is rarer than any number says
    least = pow(_MOST, -less_one)
    b = expm1(less_one * math.log(2))

    def attempt(seed: Array) -> tuple[Array, Array]:
        u = least + (1.0 - least) * _units(size, seed, 1)
        x = floor(pow(u, -1.0 / less_one))
        v = _units(size, seed, 2)
        t = expm1(less_one * log1p(1.0 / x))
        good = less_equal(v * x * t / b, (t + 1.0) / (b + 1.0))
        return x, logical_and(good, less(x, _MOST))

    return placed(astype(_tries(attempt, can_be, size, as_seed(seed)), dtype), split)


def wald(
    mean: Operandish,
    scale: Operandish,
    shape: ShapeLike | None = None,
    *,
    dtype: DTypeLike = float32,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the inverse Gaussian distribution.

    >>> ost.random.wald(1.0, 2.0, (3,), seed=7)
    Array([1.0522, 0.4449, 0.7891], dtype=float32, whole of 1)
    """
    kind, seed = _float_dtype(dtype), as_seed(seed)
    m, s = _doubles(mean, scale)
    size = _size("wald", shape, m, s)
    n = normal(size, dtype=float64, seed=fold(seed, 1))
    y = m * n * n / (2.0 * s)
    x = m / (1.0 + y + sqrt(y * (2.0 + y)))  # the smaller root, without cancellation
    found = where(less_equal(_units(size, seed, 2), m / (m + x)), x, m * m / x)
    return placed(astype(found, kind), split)


def noncentral_chisquare(
    df: Operandish,
    nonc: Operandish,
    shape: ShapeLike | None = None,
    *,
    dtype: DTypeLike = float32,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Sums of squares of df normally distributed numbers whose squared means add up to nonc.

    >>> ost.random.noncentral_chisquare(3.0, 2.0, (3,), seed=7)
    Array([6.1099, 7.3551, 1.5416], dtype=float32, whole of 1)
    """
    seed = as_seed(seed)
    d, extra = _doubles(df, nonc)
    size = _size("noncentral_chisquare", shape, d, extra)
    more = poisson(extra / 2.0, size, seed=fold(seed, 1))
    return chisquare(d + 2.0 * more, size, dtype=dtype, seed=fold(seed, 2), split=split)


def logseries(
    p: Operandish,
    shape: ShapeLike | None = None,
    *,
    dtype: DTypeLike = int64,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Whole numbers k of probabilities in the ratio of p**k / k (Kemp).

    >>> ost.random.logseries(0.6, (4,), seed=7)
    Array([1, 1, 2, 1], dtype=int64, whole of 1)
    """
    seed = as_seed(seed)
    (p,) = _doubles(p)
    size = _size("logseries", shape, p)
    q = -expm1(log1p(-p) * _units(size, seed, 1))
    v = _units(size, seed, 2)
    k = where(less_equal(v, q * q), floor(1.0 + log(v) / log(q)), where(less_equal(v, q), 2.0, 1.0))
    return placed(astype(k, dtype), split)
