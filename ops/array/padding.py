"""More elements around an array (`pad`), by every mode of NumPy: slices, and what is made of them, joined
along one axis after the other."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, ShapeError

from ..core.apply import apply, as_array
from ..core.array import Array, another
from ..core.array_methods import Operandish
from ..core.spec import is_integer
from ..core.user_line import misfit
from .arithmetic import round
from .casts import astype, number_of
from .concatenation import concat
from .creation import linspace
from .moments import mean
from .quantiles import median
from .reduction import max, min
from .shape import axis_of, broadcast_to, squeeze, whole_number
from .slicing import flip, slice_axes

__all__ = ["pad"]


def pad(
    x: Operandish,
    /,
    pad_width: Any,
    mode: str = "constant",
    *,
    value: Operandish = 0,
    constant_values: Any = None,
    stat_length: Any = None,
    end_values: Any = 0,
    reflect_type: str = "even",
) -> Array:
    """More elements around: of a value (`constant_values` to NumPy), or by one of NumPy's modes: "edge",
    "wrap", "reflect", "symmetric", "linear_ramp" to `end_values`, or "maximum", "minimum", "mean" or
    "median" of the `stat_length` elements next to them. Widths, and what else is said of each side, as in
    NumPy: one, a pair, a pair for each axis, or a dict of these by axis.

    >>> ost.pad([1, 2], 1)
    Array([0, 1, 2, 0], dtype=int64)
    >>> ost.pad([1, 2, 3], (0, 2), "reflect")
    Array([1, 2, 3, 2, 1], dtype=int64)
    """
    x = as_array(x)
    if isinstance(pad_width, dict):
        widths = [(0, 0)] * x.ndim
        for d, width in pad_width.items():
            (widths[axis_of(d, x.ndim, "pad")],) = _sides(width, 1, "widths")
    else:
        widths = _sides(pad_width, x.ndim, "widths")
    if any(n < 0 for pair in widths for n in pair):
        raise _no_widths(pad_width, x.ndim)
    if mode in ("constant", "empty"):
        return _with_constants(x, widths, value if constant_values is None else constant_values)
    if mode not in _MODES:
        needed = ", ".join(map(repr, ("constant", "empty", *_MODES)))
        raise misfit(ArgumentError, "pad", got=f"mode {mode!r}", needed=needed)
    ends = _sides(end_values, x.ndim, "end_values")
    counts = _sides(stat_length, x.ndim, "stat_length")
    for d, (before, after) in enumerate(widths):
        if not before and not after:
            continue
        if not x.shape[d]:
            got, needed = f"mode {mode!r} and an axis of 0 elements", "one element at least"
            raise misfit(ShapeError, "pad", got=got, needed=needed, do="use mode='constant'")
        if mode in _MIRRORS:
            x = _mirrored(x, d, (before, after), mode, reflect_type)
            continue
        sides = []
        for side, width in enumerate((before, after)):
            if mode == "linear_ramp":
                ramp = _ramp(x, d, width, ends[d][side], side)
            else:
                ramp = _stretched(_typical(x, d, counts[d][side], side, mode), d, width)
            sides += [ramp] if width else []
        x = concat([*sides[: before > 0], x, *sides[before > 0 :]], axis=d)
    return x


_MIRRORS = ("edge", "wrap", "reflect", "symmetric")
_TYPICAL: dict[str, Any] = {"maximum": max, "minimum": min, "mean": mean, "median": median}
_MODES = (*_MIRRORS, "linear_ramp", *_TYPICAL)


def _no_widths(width: Any, ndim: int) -> Exception:
    needed = "widths of 0 or more: one, a pair, or a pair for each axis"
    return misfit(ArgumentError, "pad", got=f"widths {width} for {ndim} axes", needed=needed)


def _sides(given: Any, ndim: int, what: str) -> list[tuple[Any, Any]]:
    """Expand what is said of both sides of each axis: one for all, a pair for all, or a pair for
    each."""
    if isinstance(given, Array):
        return [(given, given)] * ndim
    try:
        if what == "widths":
            pairs = np.broadcast_to(np.asarray(given, dtype=np.int64), (ndim, 2)).tolist()
        else:
            pairs = np.broadcast_to(np.asarray(given, dtype=object), (ndim, 2)).tolist()
    except ValueError:
        if what == "widths":
            raise _no_widths(given, ndim) from None
        needed = "one, a pair, or a pair for each axis"
        raise misfit(ArgumentError, "pad", got=f"{what}={given!r:.60}", needed=needed) from None
    return [(before, after) for before, after in pairs]


def _with_constants(x: Array, widths: Sequence[tuple[int, int]], values: Any) -> Array:
    """With one value all around, or another on each side, those of later axes in the corners."""
    sides = _sides(values, x.ndim, "constant_values")
    if not any(map(any, widths)):
        return another(x)
    known = not any(isinstance(v, Array) for pair in sides for v in pair)
    numbers = {number_of("pad", v, x.dtype) for pair in sides for v in pair} if known else ()
    if len(numbers) == 1:
        return apply("pad", x, widths=tuple(widths), value=numbers.pop())
    for d, (width, pair) in enumerate(zip(widths, sides, strict=True)):
        made = [
            [broadcast_to(astype(as_array(v), x.dtype), (*x.shape[:d], n, *x.shape[d + 1 :]))]
            if n
            else []
            for v, n in zip(pair, width, strict=True)
        ]
        x = concat([*made[0], x, *made[1]], axis=d)
    return x


def _mirrored(x: Array, d: int, width: tuple[int, int], mode: str, kind: str) -> Array:
    """The elements continued by themselves: NumPy says where each comes from, and what lies in a row
    is one slice. An odd reflection is one about the end's value."""
    if kind not in ("even", "odd"):
        needed = "'even' or 'odd'"
        raise misfit(ArgumentError, "pad", got=f"reflect_type={kind!r}", needed=needed)
    n = x.shape[d]
    period = n - 1 if mode == "reflect" else n
    odd = kind == "odd" and mode in ("reflect", "symmetric") and period > 0
    places = np.pad(np.arange(n), width, mode)  # type: ignore[call-overload]
    parts = []
    for first, count, step in _runs(places):
        part = slice_axes(x, {d: (first, count if step else 1, step or 1)})
        parts.append(part if step else _stretched(part, d, count))
    found = concat(parts, axis=d)
    if not odd:
        return found
    line = (-1, *(1,) * (x.ndim - d - 1))
    turn = np.floor_divide(np.arange(-width[0], n + width[1]), period)
    flipped = turn % 2 == 1
    many_last, many_first = np.where(flipped, turn + 1, turn), np.where(flipped, 1 - turn, -turn)
    sign, last, first_ = (
        as_array(v.astype(x.dtype).reshape(line)) for v in (1 - 2 * flipped, many_last, many_first)
    )
    ends = [slice_axes(x, {d: (k, 1, 1)}) for k in (n - 1, 0)]
    return found * sign + ends[0] * last + ends[1] * first_


def _runs(places: np.ndarray[Any, Any]) -> Iterator[tuple[int, int, int]]:
    """Places that follow each other in steps of 1, -1 or 0: the first one, how many, and the step."""
    steps = np.diff(places)
    turns = np.append(np.flatnonzero(np.diff(steps)) + 1, len(steps))
    start = 0
    while start < len(places):
        step = int(steps[start]) if start < len(steps) else 2
        # the last one, or that at the end, behind which it begins anew
        alone = step not in (-1, 0, 1)
        end = start if alone else int(turns[np.searchsorted(turns, start, side="right")])
        yield int(places[start]), end - start + 1, 1 if alone else step
        start = end + 1


def _stretched(part: Array, d: int, width: int) -> Array:
    return broadcast_to(part, (*part.shape[:d], width, *part.shape[d + 1 :]))


def _ramp(x: Array, d: int, width: int, end: Any, side: int) -> Array:
    """From a value to the outermost elements, without these."""
    edge = squeeze(slice_axes(x, {d: ((x.shape[d] - 1) * side, 1, 1)}), axis=d)
    ramp = linspace(end, edge, width, endpoint=False, dtype=x.dtype, axis=d)
    ramp = broadcast_to(ramp, (*x.shape[:d], width, *x.shape[d + 1 :]))
    return flip(ramp, axis=d) if side else ramp


def _typical(x: Array, d: int, count: Any, side: int, mode: str) -> Array:
    """One number of the elements next to a side."""
    n = x.shape[d]
    count = n if count is None else builtins.min(whole_number(count, "pad", 1), n)
    near = slice_axes(x, {d: ((n - count) * side, count, 1)})
    found = _TYPICAL[mode](near, axis=d, keepdims=True)
    return astype(round(found) if is_integer(x.dtype) else found, x.dtype)
