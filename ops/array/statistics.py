"""Averages, what leaves NaN out, and how columns go together, by NumPy's names; made of reductions."""

from __future__ import annotations

from typing import Any, Literal, overload

import ml_dtypes

from ostinato.errors import ArgumentError, ShapeError

from ..core.apply import as_array
from ..core.array import Array, another
from ..core.array_methods import Axis, Operandish, is_count
from ..core.spec import DTypeLike, float64, int64, is_inexact, promote, real_of
from ..core.user_line import misfit
from .arithmetic import abs as absolute
from .arithmetic import conj, imag, maximum, real, sqrt
from .assigning import written
from .casts import as_dtype, astype
from .comparisons import (
    equal,
    greater,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
)
from .concatenation import concat
from .contraction import diagonal, matmul
from .creation import ones
from .elementwise import floating, where
from .joining import atleast_2d, cumprod, cumsum
from .moments import mean
from .reduction import all as all_of
from .reduction import argmax, argmin, prod
from .reduction import max as largest
from .reduction import min as smallest
from .reduction import sum as sum_of
from .shape import broadcast_to, expand_dims, reshape

__all__ = [
    "allclose",
    "array_equal",
    "array_equiv",
    "average",
    "corrcoef",
    "cov",
    "isclose",
    "isneginf",
    "isposinf",
    "nan_to_num",
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "ptp",
]


# -- equal, or nearly so ---------------------------------------------------------------------------
def isclose(
    a: Operandish, b: Operandish, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Array:
    """Whether elements differ by at most `atol + rtol * abs(b)`.

    >>> ost.isclose([1.0, 2.0], [1.0 + 1e-9, 2.1])
    Array([ True, False], dtype=bool)
    """
    x, y = as_array(a), floating(b)
    near = less_equal(absolute(x - y), atol + rtol * absolute(y))
    found = logical_or(logical_and(near, isfinite(y)), equal(x, y))
    return logical_or(found, logical_and(isnan(x), isnan(y))) if equal_nan else found


def allclose(
    a: Operandish, b: Operandish, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Array:
    """Whether all elements do.

    >>> ost.allclose([1.0, 2.0], [1.0 + 1e-9, 2.0])
    Array(True, dtype=bool)
    """
    return all_of(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1: Operandish, a2: Operandish, equal_nan: bool = False) -> Array:
    """Whether two arrays have the same shape and elements.

    >>> ost.array_equal([1, 2], [1, 2])
    Array(True, dtype=bool)
    """
    x, y = as_array(a1), as_array(a2)
    if x.shape != y.shape:
        return as_array(False)
    return _all_equal(x, y, equal_nan)


def array_equiv(a1: Operandish, a2: Operandish) -> Array:
    """Whether two arrays are equal when one is repeated to the shape of the other.

    >>> ost.array_equiv([1, 2], [[1, 2], [1, 2]])
    Array(True, dtype=bool)
    """
    x, y = as_array(a1), as_array(a2)
    try:
        return _all_equal(x, y, False)
    except ShapeError:
        return as_array(False)


def _all_equal(x: Array, y: Array, equal_nan: bool) -> Array:
    same = equal(x, y)
    if equal_nan and is_inexact(x.dtype) and is_inexact(y.dtype):
        same = logical_or(same, logical_and(isnan(x), isnan(y)))
    return all_of(same)


def isposinf(x: Operandish) -> Array:
    """Whether an element is infinite and positive.

    >>> ost.isposinf([np.inf, -np.inf])
    Array([ True, False], dtype=bool)
    """
    return logical_and(isinf(x), greater(x, 0))


def isneginf(x: Operandish) -> Array:
    """Whether an element is infinite and negative.

    >>> ost.isneginf([np.inf, -np.inf])
    Array([False,  True], dtype=bool)
    """
    return logical_and(isinf(x), less(x, 0))


# -- averages --------------------------------------------------------------------------------------
@overload
def average(
    a: Operandish,
    axis: Axis = None,
    weights: Operandish | None = None,
    returned: Literal[False] = False,
    *,
    keepdims: bool = False,
) -> Array: ...
@overload
def average(
    a: Operandish,
    axis: Axis = None,
    weights: Operandish | None = None,
    *,
    returned: Literal[True],
    keepdims: bool = False,
) -> tuple[Array, Array]: ...
def average(
    a: Operandish,
    axis: Axis = None,
    weights: Operandish | None = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Array | tuple[Array, Array]:
    """The mean over axes; each element counts by its weight. Weights of one axis go along that one. With
    `returned`, the sums of weights as well.

    >>> ost.average([1.0, 2.0], weights=[3, 1])
    Array(1.25, dtype=float64)
    """
    if weights is None and not returned:
        return mean(a, axis, keepdims=keepdims)
    x = as_array(a)
    w = ones(x.shape, dtype=int64) if weights is None else as_array(weights)
    if x.shape != w.shape:
        if w.ndim != 1 or not is_count(axis) or x.shape[axis] != w.shape[0]:
            needed = f"those of the array, {x.shape}, or one axis and that axis"
            raise misfit(ArgumentError, "average", got=f"weights of shape {w.shape}", needed=needed)
        beside = [1] * x.ndim
        beside[axis] = w.shape[0]
        w = broadcast_to(reshape(w, tuple(beside)), x.shape)
    kinds = (x.dtype, w.dtype) if is_inexact(x.dtype) else (x.dtype, w.dtype, float64)
    x, w = (astype(v, promote(*kinds)) for v in (x, w))
    total = sum_of(w, axis, keepdims=keepdims)
    found = sum_of(x * w, axis, keepdims=keepdims) / total
    return (found, total) if returned else found


def ptp(a: Operandish, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The largest element less the smallest.

    >>> ost.ptp([1, 5, 3])
    Array(4, dtype=int64)
    """
    return largest(a, axis, keepdims=keepdims) - smallest(a, axis, keepdims=keepdims)


# -- NaN left out ------------------------------------------------------------------------------------
def nan_to_num(
    x: Operandish, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Array:
    """Numbers in the place of NaN, and of infinities: the largest and the smallest, unless said otherwise.
    With copy=False, the array itself is that from now on.

    >>> ost.nan_to_num([1.0, np.nan])
    Array([1., 0.], dtype=float64)
    """
    if not copy and isinstance(x, Array):
        return written(x, nan_to_num(x, True, nan, posinf, neginf), "nan_to_num")
    y = as_array(x)
    if y.dtype.kind == "c":
        first, second = (nan_to_num(part, True, nan, posinf, neginf) for part in (real(y), imag(y)))
        return first + second * 1j
    if not is_inexact(y.dtype):
        return another(y)
    facts: Any = ml_dtypes.finfo  # which knows bfloat16, too
    end = float(facts(y.dtype).max)
    most = astype(end if posinf is None else posinf, y.dtype)
    least = astype(-end if neginf is None else neginf, y.dtype)
    y = where(isnan(y), astype(nan, y.dtype), y)
    return where(isposinf(y), most, where(isneginf(y), least, y))


def _without(a: Operandish, instead: Any) -> tuple[Array, Array | None]:
    """Elements with a number in the place of NaN, and which these are."""
    x = as_array(a)
    if not is_inexact(x.dtype):
        return x, None
    gone = isnan(x)
    return _filled(x, gone, instead), gone


def _filled(x: Array, gone: Array, instead: Any) -> Array:
    return where(gone, astype(instead, x.dtype), x)


def nansum(
    a: Operandish,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    initial: Operandish | None = None,
    where: Operandish | None = None,
) -> Array:
    """The sum over axes of what is not NaN.

    >>> ost.nansum([1.0, np.nan])
    Array(1., dtype=float64)
    """
    x, _ = _without(a, 0)
    return sum_of(x, axis, dtype=dtype, keepdims=keepdims, initial=initial, where=where)


def nanprod(
    a: Operandish,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    initial: Operandish | None = None,
    where: Operandish | None = None,
) -> Array:
    """The product over axes of what is not NaN.

    >>> ost.nanprod([2.0, np.nan])
    Array(2., dtype=float64)
    """
    x, _ = _without(a, 1)
    return prod(x, axis, dtype=dtype, keepdims=keepdims, initial=initial, where=where)


def nancumsum(a: Operandish, axis: int | None = None, dtype: Any = None) -> Array:
    """Sums up to each place, of what is not NaN; of all elements in a row for None.

    >>> ost.nancumsum([1.0, np.nan, 2.0])
    Array([1., 1., 3.], dtype=float64)
    """
    return cumsum(_without(a, 0)[0], axis, dtype=dtype)


def nancumprod(a: Operandish, axis: int | None = None, dtype: Any = None) -> Array:
    """Products up to each place, of what is not NaN; of all elements in a row for None.

    >>> ost.nancumprod([2.0, np.nan, 3.0])
    Array([2., 2., 6.], dtype=float64)
    """
    return cumprod(_without(a, 1)[0], axis, dtype=dtype)


def _cast(a: Operandish, dtype: Any, what: str = "a mean without NaN") -> Operandish:
    if dtype is None:
        return a
    kind = as_dtype(dtype)
    if not is_inexact(kind):
        raise misfit(ArgumentError, what, got=kind.name, needed="a floating dtype")
    return astype(as_array(a), kind)


def _count(x: Array, gone: Array, axis: Axis, keepdims: bool, which: Operandish | None) -> Array:
    kind = real_of(x.dtype)
    there = sum_of(astype(logical_not(gone), int64), axis, keepdims=keepdims, where=which)
    return astype(there, kind)


def nanmean(
    a: Operandish,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    where: Operandish | None = None,
) -> Array:
    """The mean over axes of what is not NaN; NaN where there is nothing else.

    >>> ost.nanmean([1.0, np.nan, 3.0])
    Array(2., dtype=float64)
    """
    x, gone = _without(_cast(a, dtype), 0)
    if gone is None:
        return mean(x, axis, keepdims=keepdims, where=where)
    total = sum_of(x, axis, keepdims=keepdims, where=where)
    return total / _count(x, gone, axis, keepdims, where)


def nanvar(
    a: Operandish,
    axis: Axis = None,
    *,
    dtype: Any = None,
    ddof: float = 0.0,
    correction: float | None = None,
    keepdims: bool = False,
    where: Operandish | None = None,
) -> Array:
    """The variance over axes of what is not NaN; the sum of squares is divided by their number less
    `correction`, or `ddof`, which is NumPy's name for it.

    >>> ost.nanvar([1.0, np.nan, 3.0])
    Array(1., dtype=float64)
    """
    x = floating(_cast(a, dtype))
    gone = isnan(x)
    off = _filled(x - nanmean(x, axis, keepdims=True, where=where), gone, 0)
    square = sum_of(real(off * conj(off)), axis, keepdims=keepdims, where=where)
    count = _count(x, gone, axis, keepdims, where)
    return _divided(square, count - (ddof if correction is None else correction), dtype)


def _divided(square: Array, left: Array, dtype: Any) -> Array:
    """The variance; NaN where no number is left."""
    found = square / where(left > 0, left, astype(float("nan"), left.dtype))
    return found if dtype is None else astype(found, dtype)


def nanstd(
    a: Operandish,
    axis: Axis = None,
    *,
    dtype: Any = None,
    ddof: float = 0.0,
    correction: float | None = None,
    keepdims: bool = False,
    where: Operandish | None = None,
) -> Array:
    """The standard deviation over axes of what is not NaN.

    >>> ost.nanstd([1.0, np.nan, 3.0])
    Array(1., dtype=float64)
    """
    correction = ddof if correction is None else correction
    found = nanvar(a, axis, dtype=dtype, correction=correction, keepdims=keepdims, where=where)
    return sqrt(found)


def nanmax(
    a: Operandish,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    initial: Operandish | None = None,
    where: Operandish | None = None,
) -> Array:
    """The largest element over axes that is not NaN; NaN where there is nothing else.

    >>> ost.nanmax([1.0, np.nan, 3.0])
    Array(3., dtype=float64)
    """
    x, gone = _without(a, float("-inf"))
    found = largest(x, axis, keepdims=keepdims, initial=initial, where=where)
    if gone is None or initial is not None:
        return found
    return _or_nan(found, gone, axis, keepdims)


def nanmin(
    a: Operandish,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    initial: Operandish | None = None,
    where: Operandish | None = None,
) -> Array:
    """The smallest element over axes that is not NaN; NaN where there is nothing else.

    >>> ost.nanmin([1.0, np.nan, 3.0])
    Array(1., dtype=float64)
    """
    x, gone = _without(a, float("inf"))
    found = smallest(x, axis, keepdims=keepdims, initial=initial, where=where)
    if gone is None or initial is not None:
        return found
    return _or_nan(found, gone, axis, keepdims)


def _or_nan(found: Array, gone: Array, axis: Axis, keepdims: bool) -> Array:
    none = all_of(gone, axis, keepdims=keepdims)
    return where(none, astype(float("nan"), found.dtype), found)


def nanargmax(a: Operandish, axis: int | None = None) -> Array:
    """The place of the largest element that is not NaN; 0 where there is nothing else.

    >>> ost.nanargmax([1.0, np.nan, 3.0])
    Array(2, dtype=int64)
    """
    return argmax(_without(a, float("-inf"))[0], axis)


def nanargmin(a: Operandish, axis: int | None = None) -> Array:
    """The place of the smallest element that is not NaN; 0 where there is nothing else.

    >>> ost.nanargmin([np.nan, 1.0, 3.0])
    Array(1, dtype=int64)
    """
    return argmin(_without(a, float("inf"))[0], axis)


# -- how variables go together -----------------------------------------------------------------------
def cov(
    m: Operandish,
    y: Operandish | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Operandish | None = None,
    aweights: Operandish | None = None,
    *,
    dtype: DTypeLike | None = None,
) -> Array:
    """The covariances of variables, each a row (or a column, with `rowvar=False`) of samples. A product of
    matrices: where samples are split over workers, their sums are one message. Divided by the number of
    samples less `ddof`: 1, or 0 with `bias`. In float64, unless `dtype` says otherwise.

    >>> ost.cov([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])
    Array([[ 1. , -0.5],
           [-0.5,  1. ]], dtype=float64)
    """
    ddof = int(not bias) if ddof is None else ddof
    x = _variables(m, rowvar)
    if y is not None:
        x = concat([x, _variables(y, rowvar)])
    x = as_array(_cast(x, promote(x.dtype, float64) if dtype is None else dtype, "cov"))
    w: Array | None = None
    for given in (fweights, aweights):
        if given is not None:
            one = astype(as_array(given), real_of(x.dtype))
            w = one if w is None else w * one
    if w is None:
        count: Any = float(x.shape[1])
        off = x - mean(x, 1, keepdims=True)
        weighed, over = off, max(count - ddof, 0.0)
    else:
        count = sum_of(w)
        off = x - expand_dims(sum_of(x * w, 1) / count, axis=1)
        weighed = off * w
        share = sum_of(w * astype(aweights, w.dtype)) / count if aweights is not None else 1.0
        over = maximum(count - ddof * share, 0.0)
    found = matmul(weighed, conj(off).T) / over
    return reshape(found, ()) if found.shape == (1, 1) else found


def _variables(m: Operandish, rowvar: bool) -> Array:
    x = floating(m)
    if x.ndim > 2:
        raise misfit(ArgumentError, "cov", got=f"shape {x.shape}", needed="one axis or two")
    rows = atleast_2d(x)
    return rows if rowvar or x.ndim < 2 else rows.T


def corrcoef(
    x: Operandish,
    y: Operandish | None = None,
    rowvar: bool = True,
    *,
    dtype: DTypeLike | None = None,
) -> Array:
    """The correlations of variables, each a row (or a column, with `rowvar=False`) of samples. In
    float64, unless `dtype` says otherwise.

    >>> ost.corrcoef([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])
    Array([[ 1. , -0.5],
           [-0.5,  1. ]], dtype=float64)
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    each = sqrt(real(diagonal(c)))
    return c / (each[:, None] * each)
