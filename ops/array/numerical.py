"""Interpolation, differences, integrals and other functions of samples, by NumPy's names; made of slices,
searches and elementwise operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from ostinato.errors import ArgumentError

from .. import linalg
from ..core.apply import apply, as_array, unify
from ..core.array import Array
from ..core.array_methods import Operandish, is_count
from ..core.spec import DTypeLike, int64, is_inexact, promote
from ..core.user_line import misfit
from .arithmetic import abs as absolute
from .arithmetic import atan2, clip, imag, maximum, minimum, real, sqrt
from .casts import astype
from .comparisons import equal, greater, isnan, less
from .concatenation import concat
from .creation import linspace
from .cumulative import cumulative_sum, diff
from .elementwise import alike, binary_function, floating, where
from .reduction import sum as sum_of
from .shape import axis_of, broadcast_to, moveaxis, reshape
from .slicing import flip, slice_axes
from .sliding import correlation
from .sorting import argsort, searchsorted
from .transcendental import log10, pow, sin

__all__ = [
    "angle",
    "convolve",
    "correlate",
    "deg2rad",
    "degrees",
    "digitize",
    "ediff1d",
    "fmax",
    "fmin",
    "geomspace",
    "gradient",
    "heaviside",
    "interp",
    "logspace",
    "piecewise",
    "polyfit",
    "polyval",
    "rad2deg",
    "radians",
    "select",
    "sinc",
    "trapezoid",
    "unwrap",
    "vander",
]


# -- of elements -----------------------------------------------------------------------------------
def deg2rad(x: Operandish) -> Array:
    """Degrees as radians.

    >>> ost.deg2rad(90.0)
    Array(1.5708, dtype=float64)
    """
    return floating(x, like="deg2rad") * (math.pi / 180)


def rad2deg(x: Operandish) -> Array:
    """Radians as degrees.

    >>> ost.rad2deg(np.pi / 2)
    Array(90., dtype=float64)
    """
    return floating(x, like="rad2deg") * (180 / math.pi)


def radians(x: Operandish) -> Array:
    """Degrees as radians.

    >>> ost.radians(180.0)
    Array(3.1416, dtype=float64)
    """
    return deg2rad(x)


def degrees(x: Operandish) -> Array:
    """Radians as degrees.

    >>> ost.degrees(np.pi)
    Array(180., dtype=float64)
    """
    return rad2deg(x)


def angle(z: Operandish, deg: bool = False) -> Array:
    """The angle of complex numbers; of real ones 0 or pi.

    >>> ost.angle([1j, -1.0])
    Array([1.5708, 3.1416], dtype=float64)
    """
    x = as_array(z)
    found = atan2(imag(x), real(x)) if x.dtype.kind == "c" else atan2(0, x)
    return rad2deg(found) if deg else found


def sinc(x: Operandish) -> Array:
    """sin(pi x) / (pi x), and 1 at 0.

    >>> ost.sinc([0.0, 0.5])
    Array([1.    , 0.6366], dtype=float64)
    """
    y = floating(x) * math.pi
    z = y * y
    near = less(absolute(z), 1e-3)  # a series there, so that derivatives of any order hold at 0
    series = 1 - z / 6 * (1 - z / 20 * (1 - z / 42 * (1 - z / 72)))
    inside = where(near, 1.0, y)
    return where(near, series, sin(inside) / inside)


@binary_function
def heaviside(x1: Operandish, x2: Operandish) -> Array:
    """0 below zero, 1 above, and x2 at zero.

    >>> ost.heaviside([-1.0, 0.0, 1.0], 0.5)
    Array([0. , 0.5, 1. ], dtype=float64)
    """
    y, h = alike("heaviside", x1, x2)
    found = where(less(y, 0), astype(0, y.dtype), where(equal(y, 0), h, astype(1, y.dtype)))
    return where(isnan(y), y, found)


def select(
    condlist: Sequence[Operandish], choicelist: Sequence[Operandish], default: Operandish = 0
) -> Array:
    """Choose for each element the choice whose condition holds first.

    >>> x = ost.arange(4)
    >>> ost.select([x < 1, x > 2], [x, 10 * x], -1)
    Array([ 0, -1, -1, 30], dtype=int64)
    """
    if len(condlist) != len(choicelist) or not condlist:
        got = f"{len(condlist)} conditions and {len(choicelist)} choices"
        raise misfit(ArgumentError, "select", got=got, needed="as many of both, and at least one")
    found = as_array(default)
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        found = where(condition, choice, found)
    return found


def piecewise(x: Operandish, condlist: Any, funclist: Sequence[Any], *args: Any) -> Array:
    """Make each element by the function, or number, of the last condition that holds; where none does, by
    one more function, or 0. Each function gets all elements.

    >>> ost.piecewise([-1.0, 2.0], [[True, False]], [abs, 0.0])
    Array([1., 0.], dtype=float64)
    """
    y = as_array(x)
    several = isinstance(condlist, list | tuple) and not isinstance(condlist[0], bool)
    held = [as_array(c) for c in (condlist if several else [condlist])]
    n = len(held)
    if len(funclist) not in (n, n + 1):
        got = f"{n} conditions and {len(funclist)} functions"
        needed = "as many of both, or one function more"
        raise misfit(ArgumentError, "piecewise", got=got, needed=needed)

    def made(f: Any) -> Array:
        return astype(f(y, *args) if callable(f) else f, y.dtype)

    found = made(funclist[n] if len(funclist) > n else 0)
    for condition, f in zip(held, funclist, strict=False):
        found = where(condition, made(f), found)
    return broadcast_to(found, y.shape)


@binary_function
def fmax(x1: Operandish, x2: Operandish) -> Array:
    """The larger of two; where one is NaN, the other.

    >>> ost.fmax([1.0, ost.nan], 0.0)
    Array([1., 0.], dtype=float64)
    """
    return _or_other(x1, x2, maximum)


@binary_function
def fmin(x1: Operandish, x2: Operandish) -> Array:
    """The smaller of two; where one is NaN, the other.

    >>> ost.fmin([1.0, ost.nan], 0.0)
    Array([0., 0.], dtype=float64)
    """
    return _or_other(x1, x2, minimum)


def _or_other(x1: Operandish, x2: Operandish, better: Callable[..., Array]) -> Array:
    found = better(x1, x2)
    return where(isnan(x2), x1, where(isnan(x1), x2, found)) if is_inexact(found.dtype) else found


def polyfit(
    x: Operandish,
    y: Operandish,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: Operandish | None = None,
    cov: bool | str = False,
) -> Any:
    """The polynomial of a degree that is nearest to points by least squares, the coefficient of the highest
    power first; `y` may have a column for each of several. Weights multiply what is left. `full` gives
    residuals, rank, singular values and `rcond`, too; `cov` the covariances of the coefficients, scaled by
    what is left, or as they are for "unscaled".

    >>> ost.round(ost.polyfit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 1), 6)
    Array([2., 1.], dtype=float64)
    """
    v, target = floating(x), floating(y)
    if v.ndim != 1 or target.ndim not in (1, 2) or target.shape[:1] != v.shape or deg < 0:
        got = f"points of shapes {v.shape} and {target.shape}, degree {deg}"
        needed = "one axis of the same length, and a degree of 0 or more"
        raise misfit(ArgumentError, "polyfit", got=got, needed=needed)
    table = vander(v, deg + 1)
    if w is not None:
        each = floating(w)
        table = table * each[:, None]
        target = target * (each if target.ndim == 1 else each[:, None])
    scale = sqrt(sum_of(table * table, axis=0))
    tall = table / scale
    rcond = float(np.finfo(v.dtype).eps) * v.size if rcond is None else rcond
    solved = linalg.lstsq(tall, target, rcond)
    found = solved.x / (scale if target.ndim == 1 else scale[:, None])
    if full:
        return found, solved.residuals, solved.rank, solved.singular_values, rcond
    if not cov:
        return found
    spread = linalg.inv(tall.T @ tall) / (scale[:, None] * scale)
    if cov != "unscaled":
        share = solved.residuals / (v.size - deg - 1)
        spread = spread * share if target.ndim == 1 else spread[:, :, None] * share
    return found, spread


def polyval(p: Operandish, x: Operandish) -> Array:
    """The polynomial whose coefficients begin with that of the highest power.

    >>> ost.polyval([1, 0, 2], 3)
    Array(11, dtype=int64)
    """
    c, y = as_array(p), as_array(x)
    if c.ndim != 1 or not c.size:
        got = f"shape {c.shape}"
        raise misfit(ArgumentError, "polyval", got=got, needed="coefficients, one axis")
    found = c[0] + y * 0
    for k in range(1, c.size):
        found = found * y + c[k]
    return found


def vander(x: Operandish, N: int | None = None, increasing: bool = False) -> Array:
    """A column for each power, the highest first.

    >>> ost.vander([1, 2, 3])
    Array([[1, 1, 1],
           [4, 2, 1],
           [9, 3, 1]], dtype=int64)
    """
    v = as_array(x)
    if v.ndim != 1:
        raise misfit(ArgumentError, "vander", got=f"shape {v.shape}", needed="one axis")
    v = v if is_inexact(v.dtype) else astype(v, promote(v.dtype, int64))
    count = v.size if N is None else N
    made = [v * 0 + 1]
    for _ in range(1, count):
        made.append(made[-1] * v)
    made = made[:count] if increasing else made[:count][::-1]
    return concat([reshape(c, (-1, 1)) for c in made], axis=1)


# -- of samples ------------------------------------------------------------------------------------
def digitize(x: Operandish, bins: Operandish, right: bool = False) -> Array:
    """Between which of the bounds, which go up or down, each number lies.

    >>> ost.digitize([0.5, 1.5], [0.0, 1.0, 2.0])
    Array([1, 2], dtype=int64)
    """
    side: Literal["left", "right"] = "left" if right else "right"
    if not isinstance(bins, Array):
        known = np.asarray(bins)
        if known.ndim == 1 and known.size > 1 and known[0] > known[-1]:
            return known.size - searchsorted(known[::-1], x, side=side)
        return searchsorted(known, x, side=side)
    if bins.ndim != 1 or bins.size < 2:
        return searchsorted(bins, x, side=side)
    down = greater(bins[0], bins[-1])
    k = searchsorted(where(down, flip(bins), bins), x, side=side)
    return where(down, bins.size - k, k)


def interp(
    x: Operandish,
    xp: Operandish,
    fp: Operandish,
    left: Operandish | None = None,
    right: Operandish | None = None,
    period: float | None = None,
) -> Array:
    """On lines between the points (xp, fp), whose xp go up; beyond them the first and the last fp, unless said
    otherwise. What has a period goes on in circles, and its points are in any order.

    >>> ost.interp([1.5, 2.5], [1, 2, 3], [10, 20, 40])
    Array([15., 30.], dtype=float64)
    """
    at, places, values = floating(x), floating(xp), floating(fp)
    if places.ndim != 1 or places.shape != values.shape or not places.size:
        got = f"points of shapes {places.shape} and {values.shape}"
        needed = "one axis of the same length, not empty"
        raise misfit(ArgumentError, "interp", got=got, needed=needed)
    if period is not None:
        if not period:
            raise misfit(ArgumentError, "interp", got="period=0", needed="another number")
        round_ = abs(period)
        at, places = at % round_, places % round_
        order = argsort(places)
        places, values = (apply("take", v, order, axis=0) for v in (places, values))
        places = concat([places[-1:] - round_, places, places[:1] + round_])
        values = concat([values[-1:], values, values[:1]])
        left = right = None
    n = places.size
    k = clip(searchsorted(places, at, side="right") - 1, 0, max(n - 2, 0))
    x0, y0 = (apply("take", v, k, axis=0) for v in (places, values))
    x1, y1 = (apply("take", v, clip(k + 1, 0, n - 1), axis=0) for v in (places, values))
    wide = where(equal(x1, x0), astype(1, x0.dtype), x1 - x0)
    found = y0 + (y1 - y0) * ((at - x0) / wide)
    found = where(less(at, places[0]), values[0] if left is None else left, found)
    found = where(greater(at, places[-1]), values[-1] if right is None else right, found)
    return where(equal(at, places[-1]), values[-1], found)


def convolve(
    a: Operandish, v: Operandish, mode: Literal["full", "same", "valid"] = "full"
) -> Array:
    """The sums of products of one row with the other one backwards, at each distance: one kernel, which
    reads the longer one through windows, so neighbours send what lies beyond a part's end.

    >>> ost.convolve([1, 2, 3], [1, 1])
    Array([1, 3, 5, 3], dtype=int64)
    """
    x, y = as_array(a), as_array(v)
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        got = f"shapes {x.shape} and {y.shape}"
        raise misfit(ArgumentError, "convolve", got=got, needed="one axis each, not empty")
    if mode not in ("full", "same", "valid"):
        got = f"mode={mode!r}"
        raise misfit(ArgumentError, "convolve", got=got, needed="'full', 'same' or 'valid'")
    x, y = (x, y) if x.size >= y.size else (y, x)
    m, dtype = y.size, promote(x.dtype, y.dtype)
    around = {"full": (m - 1, m - 1), "same": (m // 2, (m - 1) // 2), "valid": (0, 0)}[mode]
    if dtype.kind == "b":  # whether any product is True
        x, y = astype(x, int64), astype(y, int64)
    found = correlation(x, flip(y), *around)
    return found if dtype.kind != "b" else found != 0


def correlate(
    a: Operandish, v: Operandish, mode: Literal["full", "same", "valid"] = "valid"
) -> Array:
    """The sums of products of one row with the conjugate of the other one, at each distance.

    >>> ost.correlate([1, 2, 3], [1, 1])
    Array([3, 5], dtype=int64)
    """
    x, y = as_array(a), as_array(v)
    turned = y[::-1].conj() if y.dtype.kind == "c" else y[::-1]
    if mode == "same" and x.ndim == 1 and 0 < x.size < y.size:  # its middle is the other one's
        full = convolve(x, turned, "full")
        return slice_axes(full, {0: (x.size // 2, y.size, 1)})
    return convolve(x, turned, mode)


def ediff1d(
    ary: Operandish, to_end: Operandish | None = None, to_begin: Operandish | None = None
) -> Array:
    """Differences of neighbours among all elements in one row; with what is given at its ends.

    >>> ost.ediff1d([1, 4, 9])
    Array([3, 5], dtype=int64)
    """
    made = diff(reshape(ary, (-1,)))
    ends = [
        None if v is None else astype(reshape(v, (-1,)), made.dtype) for v in (to_begin, to_end)
    ]
    parts = [v for v in (ends[0], made, ends[1]) if v is not None]
    return concat(parts) if len(parts) > 1 else made


def gradient(
    f: Operandish,
    *varargs: Operandish,
    axis: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> Any:
    """Central differences along axes, one-sided at the ends, of first or second order; a list, if there are
    several. A spacing is a number, or the places along an axis.

    >>> ost.gradient(ost.asarray([1.0, 4.0, 9.0, 16.0]))
    Array([3., 4., 6., 7.], dtype=float64)
    """
    y = floating(f)
    axes: Any = range(y.ndim) if axis is None else [axis] if is_count(axis) else axis
    dims = [axis_of(d, y.ndim, "gradient") for d in axes]
    steps = list(varargs) or [1.0]
    steps = steps * len(dims) if len(steps) == 1 else steps
    if len(steps) != len(dims):
        needed = f"one, or one for each of {len(dims)} axes"
        raise misfit(ArgumentError, "gradient", got=f"{len(steps)} spacings", needed=needed)
    if edge_order not in (1, 2):
        raise misfit(ArgumentError, "gradient", got=f"edge_order={edge_order}", needed="1 or 2")
    made = [_gradient(y, step, d, edge_order) for step, d in zip(steps, dims, strict=True)]
    return made[0] if len(made) == 1 else made


def _gradient(y: Array, spacing: Operandish, d: int, order: int) -> Array:
    n, h = y.shape[d], as_array(spacing)
    step = spacing if isinstance(spacing, int | float) else h  # a plain number has no dtype
    if n <= order:
        needed = f"{('two', 'three')[order - 1]} along each axis"
        raise misfit(ArgumentError, "gradient", got=f"{n} samples", needed=needed)
    if h.ndim and h.shape != (n,):
        got = f"places of shape {h.shape}"
        raise misfit(ArgumentError, "gradient", got=got, needed=f"one for each of {n}")

    def part(x: Array, first: int, count: int, along: int = d) -> Array:
        return slice_axes(x, {along: (first, count, 1)})

    first = part(y, 1, 1) - part(y, 0, 1)
    last = part(y, n - 1, 1) - part(y, n - 2, 1)
    if not h.ndim:
        inner = (part(y, 2, n - 2) - part(y, 0, n - 2)) / (2 * step)
        if order == 2:
            first = 2 * first - (part(y, 2, 1) - part(y, 0, 1)) / 2
            last = 2 * last - (part(y, n - 1, 1) - part(y, n - 3, 1)) / 2
        return concat([first / step, inner, last / step], axis=d)
    beside = (1,) * d + (-1,) + (1,) * (y.ndim - d - 1)
    steps = diff(astype(h, y.dtype))
    before = reshape(part(steps, 0, n - 2, 0), beside)
    after = reshape(part(steps, 1, n - 2, 0), beside)
    inner = (
        -(after / (before * (before + after))) * part(y, 0, n - 2)
        + ((after - before) / (before * after)) * part(y, 1, n - 2)
        + (before / (after * (before + after))) * part(y, 2, n - 2)
    )
    first, last = first / steps[0], last / steps[-1]
    if order == 2:  # what the next slope tells of the curve
        one, two = (first, steps[0]), ((part(y, 2, 1) - part(y, 1, 1)) / steps[1], steps[1])
        first = one[0] - (two[0] - one[0]) * one[1] / (one[1] + two[1])
        one = (last, steps[-1])
        two = ((part(y, n - 2, 1) - part(y, n - 3, 1)) / steps[-2], steps[-2])
        last = one[0] + (one[0] - two[0]) * one[1] / (one[1] + two[1])
    return concat([first, inner, last], axis=d)


def trapezoid(y: Operandish, x: Operandish | None = None, dx: Any = 1.0, axis: int = -1) -> Array:
    """The integral along an axis by the trapezoidal rule, between places x, or equal steps.

    >>> ost.trapezoid([1.0, 2.0, 3.0])
    Array(4., dtype=float64)
    """
    v = as_array(y)
    v = floating(v if x is None else astype(v, promote(v.dtype, as_array(x).dtype)))
    d = axis_of(axis, v.ndim, "trapezoid")
    n = v.shape[d]
    step: Any = dx
    if x is not None:
        places = as_array(x)
        if places.ndim == 1:
            step = reshape(diff(places), (1,) * d + (-1,) + (1,) * (v.ndim - d - 1))
        else:
            step = diff(places, axis=d)
    count = max(n - 1, 0)
    pairs = slice_axes(v, {d: (1, count, 1)}) + slice_axes(v, {d: (0, count, 1)})
    return sum_of(pairs * step / 2.0, axis=d)


def unwrap(
    p: Operandish, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi
) -> Array:
    """Without jumps along an axis: whole periods are added where neighbours are more than `discont` apart,
    half a period if not given.

    >>> ost.unwrap([0.0, 3.0, -3.0])
    Array([0.    , 3.    , 3.2832], dtype=float64)
    """
    x = floating(p)
    d = axis_of(axis, x.ndim, "unwrap")
    step = diff(x, axis=d)
    half = period / 2
    near = (step + half) % period - half
    near = where(equal(near, -half) & greater(step, 0), half, near)
    least = half if discont is None else discont
    more = where(less(where(less(step, 0), -step, step), least), 0, near - step)
    first = slice_axes(x, {d: (0, min(1, x.shape[d]), 1)})
    rest = slice_axes(x, {d: (min(1, x.shape[d]), max(x.shape[d] - 1, 0), 1)})
    return concat([first, rest + cumulative_sum(more, axis=d)], axis=d)


# -- spaces ----------------------------------------------------------------------------------------
def logspace(
    start: Operandish,
    stop: Operandish,
    num: int = 50,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """Powers of a base whose exponents have equal distances; between arrays, along a new axis.

    >>> ost.logspace(0, 2, 3)
    Array([  1.,  10., 100.], dtype=float64)
    """
    found = pow(base, linspace(start, stop, num, endpoint, axis=axis))
    return found if dtype is None else astype(found, dtype)


def geomspace(
    start: Operandish,
    stop: Operandish,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """Numbers each of which is the same multiple of the one before; between arrays, along a new axis.
    Those whose signs differ have none: NaN.

    >>> ost.geomspace(1, 8, 4)
    Array([1., 2., 4., 8.], dtype=float64)
    """
    signs = [np.sign(v) for v in (start, stop) if isinstance(v, (int, float))]
    if 0 in signs or {*signs} == {1, -1}:
        needed = "numbers that are not 0, of one sign"
        raise misfit(ArgumentError, "geomspace", got=f"{start} to {stop}", needed=needed)
    first, last, _ = unify(start, stop, 0.0)
    ratio = log10(last / first)
    place = linspace(0, 1, num, endpoint)
    place = reshape(place, (-1, *(1,) * ratio.ndim))
    found = first * pow(10.0, place * ratio)
    found = where(equal(place, 1), last, found)
    found = moveaxis(found, 0, axis)
    return found if dtype is None else astype(found, dtype)
