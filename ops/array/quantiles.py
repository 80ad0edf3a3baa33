"""Quantiles, by NumPy's names and methods: between the elements at two ranks (selection.py), so
nobody gathers what is split, and there is a gradient."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..core.apply import apply, as_array
from ..core.array import Array, weak_kind
from ..core.array_methods import Axis, Operandish
from ..core.spec import float64, int64, is_inexact, promote
from ..core.user_line import misfit
from .arithmetic import ceil, clip, floor, maximum, round
from .casts import astype
from .comparisons import equal, isfinite, isnan, logical_not, not_equal
from .concatenation import concat, stack
from .elementwise import floating, where
from .picked import Picked
from .reduction import any as any_of
from .reduction import sum as sum_of
from .segments import segment_sum
from .selection import weighted_select
from .shape import (
    accumulator,
    axes_of,
    broadcast_to,
    expand_dims,
    moveaxis,
    permute_dims,
    reshape,
    stop_gradient,
)

__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]

_BETWEEN = {  # alpha and beta of Hyndman and Fan
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
METHODS = (
    *("linear", "lower", "higher", "midpoint", "nearest", *_BETWEEN),
    *("inverted_cdf", "averaged_inverted_cdf", "closest_observation"),
)

_FUNCTIONS = SimpleNamespace(
    floor=floor, ceil=ceil, round=round, where=where, maximum=maximum, clip=clip
)


def _position(xp: Any, n: Any, q: Any, method: str) -> tuple[Any, Any]:
    """The rank at or below a quantile of n elements, and how far it is from there to the next
    one; of NumPy's numbers or ours."""
    last = (n - 1) * q
    match method:
        case "linear":
            at = last
        case "lower":
            at = xp.floor(last)
        case "higher":
            at = xp.ceil(last)
        case "nearest":
            at = xp.round(last)
        case "midpoint":
            at = 0.5 * (xp.floor(last) + xp.ceil(last))
        case "inverted_cdf" | "averaged_inverted_cdf":
            at = n * q - 1
        case "closest_observation":
            at = n * q - 1 - 0.5
        case _:
            alpha, beta = _BETWEEN[method]
            at = n * q + (alpha + q * (1 - alpha - beta)) - 1
    low = xp.floor(at)
    part = at - low
    if method == "averaged_inverted_cdf":
        part = xp.where(part == 0, 0.5, 1.0)
    elif method == "inverted_cdf":
        part = xp.where(part == 0, 0.0, 1.0)
    elif method == "closest_observation":
        part = xp.where((part == 0) & (low % 2 == 1), 0.0, 1.0)
    return low, part


def _numbers(x: Operandish, name: str) -> Array:
    found = as_array(x)
    if found.dtype.kind == "c":
        raise misfit(DTypeError, name, got=found.dtype.name, needed="a dtype with an order")
    return floating(found)


def _asked(q: Any, scale: float, name: str) -> tuple[Any, Any]:
    """The quantiles as a row of numbers that are known, or an array of ours; and what to promote
    with."""
    beside = None
    if isinstance(q, Array):
        beside = q.dtype if weak_kind(q) is None and is_inexact(q.dtype) else None
        found: Any = reshape(astype(as_array(q), float64), (-1,)) / scale
    else:
        known = np.asarray(q)
        if known.dtype.kind not in "iuf" or known.ndim > 1:
            got = f"q={q!r:.60}"
            raise misfit(ArgumentError, name, got=got, needed="one number, or a row of them")
        if isinstance(q, np.ndarray | np.generic) and known.dtype.kind == "f":
            beside = known.dtype
        found = known.astype(np.float64).reshape(-1) / scale
        if found.size and not (found.min() >= 0 and found.max() <= 1):
            got = f"q={q!r:.60}"
            raise misfit(ArgumentError, name, got=got, needed=f"numbers from 0 to {scale:g}")
    if np.ndim(q) > 1:
        raise misfit(ShapeError, name, got=f"q of shape {q.shape}", needed="one axis at most")
    return found, beside


def _quantile(
    a: Operandish,
    q: Any,
    axis: Axis,
    method: str,
    keepdims: bool,
    leaves: bool,
    name: str,
    scale: float = 1.0,
    weights: Operandish | None = None,
) -> Array:
    """All that has a name; `leaves` out what is NaN."""
    if weights is not None:
        return _weighted(a, q, axis, method, keepdims, leaves, name, scale, weights)
    x = _numbers(a, name)
    if isinstance(x, Picked):
        return _of_picked(x, q, axis, method, keepdims, leaves, name, scale)
    if method not in METHODS:
        raise misfit(ArgumentError, name, got=f"method={method!r}", needed=", ".join(METHODS))
    wanted, beside = _asked(q, scale, name)
    kind = x.dtype if beside is None else promote(x.dtype, beside)
    axes = axes_of(axis, x.ndim, name)
    n = math.prod(x.shape[d] for d in axes)
    rest = tuple(m for d, m in enumerate(x.shape) if d not in axes)
    if not n:
        found = apply("full", shape=(*rest, wanted.size), value=math.nan, dtype=kind)
        return _formed(found, np.ndim(q), axes, keepdims)
    count: Any = n
    if leaves:
        there = sum_of(astype(logical_not(isnan(x)), int64), axes)
        count = astype(expand_dims(there, axis=len(rest)), float64)
    known = isinstance(wanted, np.ndarray) and not leaves
    xp: Any = np if known else _FUNCTIONS
    low, part = _position(xp, count, wanted, method)
    last = xp.maximum(count - 1, 0)
    ranks = [as_array(xp.clip(r, 0, last)) for r in (low, low + 1)]
    wide = accumulator(kind)
    some = wanted.size
    both = [reshape(astype(r, int64), (1,) * (len(rest) + 1 - r.ndim) + r.shape) for r in ranks]
    if not leaves and is_inexact(as_array(a).dtype):  # NaN, if there is one, is the last
        both.append(apply("full", shape=(*both[0].shape[:-1], 1), value=n - 1, dtype=int64))
    found = apply("order_statistics", x, concat(both, axis=-1), axes=axes)
    none = equal(count, 0) if leaves else isnan(found[..., 2 * some :])
    ends = astype(found[..., :some], wide), astype(found[..., some : 2 * some], wide)
    made = _between(*ends, astype(as_array(part), wide))
    if none.size:
        made = where(none, astype(math.nan, wide), made)
    return _formed(astype(made, kind), np.ndim(q), axes, keepdims)


def _of_picked(
    x: Picked,
    q: Any,
    axis: Axis,
    method: str,
    keepdims: bool,
    leaves: bool,
    name: str,
    scale: float,
) -> Array:
    """Compute quantiles of what a mask picks: of all but what is NaN then."""
    if np.ndim(q):
        how = (axis, method, keepdims, leaves, name, scale)
        return stack([_of_picked(x, one, *how) for one in q])

    def function(
        y: Array, axes: tuple[int, ...], *, keepdims: bool, where: Array | None = None
    ) -> Array:
        z = y if where is None else _FUNCTIONS.where(where, y, math.nan)
        return _quantile(z, q, axes, method, keepdims, leaves or where is not None, name, scale)

    made = x.reduced(function, None, axis, keepdims=keepdims)
    if leaves:
        return made
    return where(any_of(isnan(x), axis, keepdims=keepdims), math.nan, made)


def _between(low: Array, high: Array, part: Array) -> Array:
    """Where a share of the way leads."""
    off = high - low
    near = where(part < 0.5, low + off * part, high - off * (1 - part))
    near = where(equal(part, 0.5), low * 0.5 + high * 0.5, near)
    return where(equal(low, high) | equal(part, 0), low, where(equal(part, 1), high, near))


def _weighted(
    a: Operandish,
    q: Any,
    axis: Axis,
    method: str,
    keepdims: bool,
    leaves: bool,
    name: str,
    scale: float,
    weights: Operandish,
) -> Array:
    """The first elements up to which a share of all weights goes, found digit by digit of the
    elements: each round adds up weights by digits, which is one all-reduce."""
    x, w = _numbers(a, name), as_array(weights)
    if method != "inverted_cdf":
        got = f"weights and method={method!r}"
        raise misfit(ArgumentError, name, got=got, needed="'inverted_cdf'")
    axes = axes_of(axis, x.ndim, name)
    if w.shape != x.shape:
        if w.ndim != 1 or len(axes) != 1 or x.shape[axes[0]] != w.shape[0]:
            got = f"weights of shape {w.shape}"
            raise misfit(ShapeError, name, got=got, needed=f"those of {x.shape}")
        w = reshape(w, tuple(w.size if d == axes[0] else 1 for d in range(x.ndim)))
        w = broadcast_to(w, x.shape)
    wanted, beside = _asked(q, scale, name)
    kind = x.dtype if beside is None else promote(x.dtype, beside)
    order = (*(d for d in range(x.ndim) if d not in axes), *axes)
    rest = tuple(m for d, m in enumerate(x.shape) if d not in axes)
    lines, n = math.prod(rest), math.prod(x.shape[d] for d in axes)
    if not n * lines:
        found = apply("full", shape=(*rest, wanted.size), value=math.nan, dtype=kind)
        return _formed(found, np.ndim(q), axes, keepdims)
    row, each = (reshape(permute_dims(v, order), (lines * n,)) for v in (x, astype(w, float64)))
    gone = isnan(row)
    each = where(gone, 0.0, each) if leaves else each
    line = apply("iota", shape=(lines * n,), axis=0, dtype=int64) // n
    made = weighted_select(row, each, line, lines, as_array(wanted))
    equals = equal(expand_dims(row, axis=1), apply("take", made, line, axis=0))
    many = segment_sum(astype(equals, row.dtype), line, lines)
    near = segment_sum(where(equals, expand_dims(row, axis=1), 0), line, lines)
    near = near / where(equal(many, 0), 1, many)  # has the gradient
    made = where(isfinite(made), made + (near - stop_gradient(near)), made)
    none = segment_sum(astype(gone, int64), line, lines)
    none = equal(none, n) if leaves else not_equal(none, 0)
    made = where(expand_dims(none, axis=1), astype(math.nan, made.dtype), made)
    found = reshape(astype(made, kind), (*rest, wanted.size))
    return _formed(found, np.ndim(q), axes, keepdims)


def _formed(found: Array, dims: int, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The quantiles in front, as NumPy has them."""
    made = moveaxis(found, -1, 0)
    if keepdims and axes:
        made = expand_dims(made, axis=tuple(a + 1 for a in axes))
    return made if dims else made[0]


def quantile(
    a: Operandish,
    q: Any,
    axis: Axis = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
    weights: Operandish | None = None,
) -> Array:
    """Return the quantile that a share q of the elements is below, along axes; NaN if there is one.
    By any of NumPy's methods. Of split axes workers count digits: a few all-reduces of some KB.
    With weights, by the method "inverted_cdf", each element counts by its own.

    >>> ost.quantile([1.0, 2.0, 3.0, 4.0], [0.25, 0.5])
    Array([1.75, 2.5 ], dtype=float64)
    """
    return _quantile(a, q, axis, method, keepdims, False, "quantile", 1.0, weights)


def nanquantile(
    a: Operandish,
    q: Any,
    axis: Axis = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
    weights: Operandish | None = None,
) -> Array:
    """Return the quantile of what is not NaN; NaN where there is nothing else.

    >>> ost.nanquantile([1.0, np.nan, 3.0], 0.5)
    Array(2., dtype=float64)
    """
    return _quantile(a, q, axis, method, keepdims, True, "nanquantile", 1.0, weights)


def percentile(
    a: Operandish,
    q: Any,
    axis: Axis = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
    weights: Operandish | None = None,
) -> Array:
    """Quantiles in percent.

    >>> ost.percentile([1.0, 2.0, 3.0], 50)
    Array(2., dtype=float64)
    """
    return _quantile(a, q, axis, method, keepdims, False, "percentile", 100.0, weights)


def nanpercentile(
    a: Operandish,
    q: Any,
    axis: Axis = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
    weights: Operandish | None = None,
) -> Array:
    """Return the percentile of what is not NaN; NaN where there is nothing else.

    >>> ost.nanpercentile([1.0, np.nan, 3.0], 50)
    Array(2., dtype=float64)
    """
    return _quantile(a, q, axis, method, keepdims, True, "nanpercentile", 100.0, weights)


def median(a: Operandish, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The element in the middle along axes, or the mean of the two there; NaN if there is one. Of
    split axes workers count digits: a few all-reduces of some KB.

    >>> ost.median([1.0, 9.0, 3.0])
    Array(3., dtype=float64)
    """
    return _quantile(a, 0.5, axis, "linear", keepdims, False, "median")


def nanmedian(a: Operandish, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The median of what is not NaN; NaN where there is nothing else.

    >>> ost.nanmedian([1.0, np.nan, 3.0])
    Array(2., dtype=float64)
    """
    return _quantile(a, 0.5, axis, "linear", keepdims, True, "nanmedian")
