"""Images made larger or smaller, as ONNX `Resize` defines it: along one axis after the other, each
element from a few elements, whose places and shares are known when it is planned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from ostinato.ops.array.casts import astype
from ostinato.ops.array.contraction import matmul
from ostinato.ops.array.elementwise import floating, where
from ostinato.ops.array.indexing import near_places
from ostinato.ops.array.shape import broadcast_to, listed, moveaxis, reshape, widened
from ostinato.ops.array.slicing import slice_axes
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from .spatial import for_each, order_of

__all__ = ["resize", "upsample"]

Numbers = np.ndarray[Any, Any]
Mode = Literal["nearest", "linear", "cubic"]


def _linear(t: Numbers) -> Numbers:
    return np.maximum(1 - np.abs(t), 0)


def _cubic(t: Numbers, a: float) -> Numbers:
    t = np.abs(t)
    near, far = ((a + 2) * t - (a + 3)) * t * t + 1, a * (((t - 5) * t + 8) * t - 4)
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


_ROUND: dict[str, Callable[[Numbers], Numbers]] = {
    "round_prefer_floor": lambda c: np.ceil(c - 0.5),
    "round_prefer_ceil": lambda c: np.floor(c + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)


def _coordinates(n: int, m: int, scale: float, mode: str, roi: tuple[float, float]) -> Numbers:
    """Where each of `m` results is among `n` elements. A scale that is m/n is divided by exactly."""
    i = np.arange(m, dtype=float)
    exact = scale == m / n
    long = m if exact else scale * n

    def back(c: Numbers) -> Numbers:
        return c * n / m if exact else c / scale

    match mode:
        case "asymmetric":
            return back(i)
        case "align_corners":
            return i * (n - 1) / (long - 1) if long != 1 else i * 0
        case "tf_crop_and_resize":
            begin, end = roi
            if long == 1:
                return np.full(m, (begin + end) * (n - 1) / 2)
            return begin * (n - 1) + i * (end - begin) * (n - 1) / (long - 1)
        case "pytorch_half_pixel" if long == 1:
            return i * 0
        case "half_pixel_symmetric":
            return n / 2 * (1 - m / long) + back(i + 0.5) - 0.5
    return back(i + 0.5) - 0.5


def _taps(
    c: Numbers, n: int, of: Callable[[Numbers], Numbers], reach: int, stretch: float, inside: bool
) -> tuple[Numbers, Numbers]:
    """For each result the places that it reads, and their shares: `of` the distance to each, which
    `stretch` makes smaller where an antialiased image does. What is outside is the edge, or left out."""
    begin = math.floor(-reach / stretch) + 1
    base = np.ceil(c) - 1
    places = base[:, None] + np.arange(begin, 2 - begin if reach > 1 or stretch < 1 else 2)
    shares = of((places - c[:, None]) * stretch)
    if inside:
        shares = np.where((places >= 0) & (places < n), shares, 0)
    total = shares.sum(1, keepdims=True)
    shares = shares / np.where(total == 0, 1, total)
    return np.clip(places, 0, n - 1).astype(np.int64), shares


def _times(n: int, places: Numbers) -> int:
    """How often each of `n` elements is repeated, if that is what is at the places; else 0."""
    m = len(places)
    return m // n if m % n == 0 and (places == np.arange(m) // max(m // n, 1)).all() else 0


def _repeated(x: Array, times: Mapping[int, int]) -> Array:
    """Elements again and again along several axes at once."""
    apart = [(n, 1) if d in times else (n,) for d, n in enumerate(x.shape)]
    wide = [(n, times[d]) if d in times else (n,) for d, n in enumerate(x.shape)]
    spread = reshape(x, tuple([n for own in apart for n in own]))
    spread = broadcast_to(spread, tuple([n for own in wide for n in own]))
    return reshape(spread, tuple([math.prod(own) for own in wide]))


def _at(x: Array, d: int, places: Numbers) -> Array:
    """The elements at known places: repeated, in steps, or one by one."""
    m = len(places)
    if times := _times(x.shape[d], places):
        return x if times == 1 else _repeated(x, {d: times})
    steps = np.diff(places)
    if m > 1 and steps[0] > 0 and (steps == steps[0]).all():
        return slice_axes(x, {d: (int(places[0]), m, int(steps[0]))})
    near = near_places(places, x.shape[d])
    return apply("take_near", x, as_array(places), axis=d, near=near)


def _mixed(x: Array, d: int, places: Numbers, shares: Numbers) -> Array:
    """Sums of shares of what is at places; of many places by a product of matrices."""
    m, taps = places.shape
    if taps > 4:
        whole = np.zeros((m, x.shape[d]))
        np.add.at(whole, (np.arange(m)[:, None], places), shares)
        factor = as_array(whole.T.astype(x.dtype))
        return moveaxis(matmul(moveaxis(x, d, -1), factor), -1, d)
    along = (m, *(1,) * (x.ndim - d - 1))
    total = None
    for k in range(taps):
        if shares[:, k].any():
            part = _at(x, d, places[:, k]) * as_array(shares[:, k].astype(x.dtype).reshape(along))
            total = part if total is None else total + part
    return x if total is None else total


def _one_of(value: object, choices: Sequence[str], name: str, what: str) -> None:
    if value not in choices:
        got = f"{what}={value!r:.40}"
        raise misfit(ArgumentError, name, got=got, needed=f"one of {', '.join(choices)}")


def _extents(
    x: Array, axes: Sequence[int], size: Any, scale: Any, name: str
) -> list[tuple[int, int, float]]:
    """For each axis its number, the results, and the scale."""
    k = len(axes)
    if (size is None) == (scale is None):
        got = f"size={size!r:.40} and scale={scale!r:.40}"
        raise misfit(ArgumentError, name, got=got, needed="one of the two")
    if size is not None:
        sizes = for_each(size, k, name, "size")
        pairs = zip(axes, sizes, strict=True)
        return [(d, m, m / x.shape[d] if x.shape[d] else 1.0) for d, m in pairs]
    given = [float(s) for s in (scale if isinstance(scale, Sequence) else [scale])]
    given = given * k if len(given) == 1 else given
    if len(given) != k or not all(0 < s < math.inf for s in given):
        got = f"scale={scale!r:.40}"
        raise misfit(ArgumentError, name, got=got, needed=f"one number above 0, or {k} of them")
    return [(d, math.floor(x.shape[d] * s), s) for d, s in zip(axes, given, strict=True)]


def resize(
    x: Operandish,
    /,
    size: int | Sequence[int] | None = None,
    *,
    scale: float | Sequence[float] | None = None,
    mode: Mode = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    antialias: bool = False,
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    roi: Sequence[tuple[float, float]] | None = None,
    extrapolation_value: float = 0.0,
    axes: int | Sequence[int] | None = None,
    layout: str | None = None,
) -> Array:
    """Images of another size in space, or with other extents along `axes`, as `Resize` of ONNX has them, whose
    names and defaults these are: each element is the nearest one, or a mix of 2 or 4 along each axis (with
    `antialias` of all that it covers). `roi`: a pair of begin and end for each axis, from 0 to 1.

    >>> ost.nn.resize([[[1.0, 3.0]]], 4, mode="linear")
    Array([[[1. , 1.5, 2.5, 3. ]]], dtype=float64)
    """
    name = "resize"
    _one_of(mode, ("nearest", "linear", "cubic"), name, "mode")
    _one_of(nearest_mode, tuple(_ROUND), name, "nearest_mode")
    at = coordinate_transformation_mode
    _one_of(at, _COORDINATES, name, "coordinate_transformation_mode")
    x = as_array(x) if mode == "nearest" else floating(x)
    dims = listed(axes, name) if axes is not None else sorted(order_of(layout, x, name).axes[1:-1])
    dims = [d % x.ndim for d in dims]
    crop = [(0.0, 1.0)] * len(dims) if roi is None else list(roi)
    wide = x if mode == "nearest" else widened(x)
    times = dict[int, int]()  # of axes along which elements are repeated, at the end
    for (d, m, s), part in zip(_extents(x, dims, size, scale, name), crop, strict=True):
        n = x.shape[d]
        if m == n and s == 1 and part == (0.0, 1.0):
            continue
        if not n:
            got = f"{x.spec.bare}"
            raise misfit(ArgumentError, name, got=got, needed=f"elements along axis {d}")
        c = _coordinates(n, m, s, at, part)
        if mode == "nearest":
            places = np.clip(_ROUND[nearest_mode](c), 0, n - 1).astype(np.int64)
            if at != "tf_crop_and_resize" and (many := _times(n, places)):
                times |= {d: many} if many > 1 else {}
                continue
            wide = _at(wide, d, places)
        else:
            reach = 1 if mode == "linear" else 2
            of = _linear if mode == "linear" else lambda t: _cubic(t, cubic_coeff_a)
            stretch = min(s, 1.0) if antialias else 1.0
            wide = _mixed(wide, d, *_taps(c, n, of, reach, stretch, exclude_outside))
        there = (c >= 0) & (c <= n - 1)
        if at == "tf_crop_and_resize" and not there.all():
            mask = as_array(there.reshape(m, *(1,) * (x.ndim - d - 1)))
            wide = where(mask, wide, extrapolation_value)
    return astype(_repeated(wide, times) if times else wide, x.dtype)


def upsample(
    x: Operandish,
    scale: float | Sequence[float] | None = None,
    /,
    *,
    size: int | Sequence[int] | None = None,
    mode: Mode = "nearest",
    align_corners: bool = False,
    layout: str | None = None,
) -> Array:
    """Images enlarged by a scale, or to a size, as PyTorch does: elements are repeated, or mixed of their
    neighbours ("linear", "cubic"), whose corners stay where they were with `align_corners`.

    >>> ost.nn.upsample([[[1.0, 3.0]]], 2)
    Array([[[1., 1., 3., 3.]]], dtype=float64)
    """
    at = "align_corners" if align_corners else "half_pixel"
    return resize(
        x,
        size,
        scale=scale,
        mode=mode,
        coordinate_transformation_mode="asymmetric" if mode == "nearest" else at,
        nearest_mode="floor",
        layout=layout,
    )
