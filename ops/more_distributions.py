"""Distributions that are a few of the others, and von Mises' and Zipf's."""

from __future__ import annotations

import math
from typing import Any

from .core.array import Array, Operandish, Split, as_array
from .core.spec import DTypeLike, Shape, ShapeLike, float64, int64
from .creation import ANYWHERE, placed
from .distributions import _size, chisquare, poisson, tried
from .draws import _float_dtype, asked, normal, uniform
from .elementwise import (
    astype,
    expm1,
    floor,
    less_equal,
    log,
    log1p,
    remainder,
    sqrt,
    where,
)
from .seeds import as_seed, fold

__all__ = ["logseries", "noncentral_chisquare", "noncentral_f", "vonmises", "wald", "zipf"]


def _units(shape: Shape, seed: Array, number: int) -> Array:
    """Numbers from (0, 1]."""
    return 1.0 - uniform(shape, dtype=float64, seed=fold(seed, number))


def _doubles(*parameters: Operandish) -> list[Array]:
    return [astype(as_array(x), float64) for x in parameters]


def vonmises(
    mu: Operandish,
    kappa: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Angles from [-pi, pi] around mu, as near to it as kappa says (Best and Fisher).

    >>> ost.random.vonmises(0.0, 4.0, (3,), seed=7)
    Array([ 0.3021, -0.0266,  0.6078], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    kind = _float_dtype(dtype)
    middle, k = _doubles(mu, kappa)
    angle = middle + tried("vonmises_draw", seed, _size("vonmises", shape, middle, k), k)
    angle = remainder(angle + math.pi, 2 * math.pi) - math.pi
    return placed(astype(angle, kind), split)


def zipf(
    a: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike = int64,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Whole numbers k of probabilities in the ratio of k**-a, for a > 1 (Devroye).

    >>> ost.random.zipf(2.0, (4,), seed=7)
    Array([1, 4, 1, 1], dtype=int64)
    """
    shape = shape if size is None else size
    (a,) = _doubles(a)
    return placed(astype(tried("zipf_draw", seed, _size("zipf", shape, a), a), dtype), split)


def wald(
    mean: Operandish,
    scale: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the inverse Gaussian distribution.

    >>> ost.random.wald(1.0, 2.0, (3,), seed=7)
    Array([1.0522, 0.4449, 0.7891], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
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
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Sums of squares of df normally distributed numbers whose squared means add up to nonc.

    >>> ost.random.noncentral_chisquare(3.0, 2.0, (3,), seed=7)
    Array([6.1099, 7.3551, 1.5416], dtype=float32)
    """
    shape, dtype = asked(shape, size, dtype)
    seed = as_seed(seed)
    d, extra = _doubles(df, nonc)
    size = _size("noncentral_chisquare", shape, d, extra)
    more = poisson(extra / 2.0, size, seed=fold(seed, 1))
    return chisquare(d + 2.0 * more, size, dtype=dtype, seed=fold(seed, 2), split=split)


def noncentral_f(
    dfnum: Operandish,
    dfden: Operandish,
    nonc: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers of the F distribution whose numerator's squared means add up to nonc.

    >>> ost.random.noncentral_f(3.0, 5.0, 2.0, (3,), seed=7).shape
    (3,)
    """
    shape, dtype = asked(shape, size, dtype)
    kind, seed = _float_dtype(dtype), as_seed(seed)
    m, n, extra = _doubles(dfnum, dfden, nonc)
    wide = _size("noncentral_f", shape, m, n, extra)
    above = noncentral_chisquare(m, extra, wide, dtype=float64, seed=fold(seed, 3)) / m
    below = chisquare(n, wide, dtype=float64, seed=fold(seed, 4)) / n
    return placed(astype(above / below, kind), split)


def logseries(
    p: Operandish,
    shape: ShapeLike | None = None,
    *,
    size: ShapeLike | None = None,
    dtype: DTypeLike = int64,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Whole numbers k of probabilities in the ratio of p**k / k (Kemp).

    >>> ost.random.logseries(0.6, (4,), seed=7)
    Array([1, 1, 2, 1], dtype=int64)
    """
    shape = shape if size is None else size
    seed = as_seed(seed)
    (p,) = _doubles(p)
    size = _size("logseries", shape, p)
    q = -expm1(log1p(-p) * _units(size, seed, 1))
    v = _units(size, seed, 2)
    k = where(less_equal(v, q * q), floor(1.0 + log(v) / log(q)), where(less_equal(v, q), 2.0, 1.0))
    return placed(astype(k, dtype), split)
