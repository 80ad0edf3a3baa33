"""Images as seen through a matrix: each pixel of the result looks at a place of the image.

    place = N @ (column, row, 1), divided by its third number; places are counted in pixels, from the middle
    of the first one

Places are rounded to 1/2048 of a pixel, and what lies between four pixels is mixed in whole numbers (of
floats by these weights); so machine code, NumPy and devices give the same bits. Around the image
everything is `fill`. "nearest" takes the pixel in which the place lies."""

from __future__ import annotations

from typing import Any

import numpy as np
from ostinato.ops.core.spec import DType, float32, float64, int32, int64, uint8
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once
from ostinato.ops.cpu.jit.routine import Memory, Routine, larger, smaller, whole_of
from ostinato.ops.jit.values import Value, cast, shift, where

from .pixel_values import contiguous_rows, moved_in

Image = Any
BITS = 11  # of a place's fraction
LINEAR, NEAREST = "linear", "nearest"
MAX_CHANNELS = 8  # of which there is machine code, that mixes uint8 and float32, and copies all of 1 to 8 bytes
Matrix = tuple[float, ...]  # of 3 x 3 numbers, row by row
Size = tuple[int, int]


def seen(
    xp: Any, x: Image, matrix: Matrix, size: Size, way: str, fill: Any = 0, out: Image = None
) -> Image:
    """An image, or a mask without channels, as `size` pixels that look at it through a matrix."""
    channels = x.shape[2] if x.ndim == 3 else 1
    kind = x.dtype if way == LINEAR else _BITS.get(x.dtype.itemsize)
    is_known = kind in ((uint8, float32) if way == LINEAR else _BITS.values())
    is_known = is_known and channels <= MAX_CHANNELS
    if xp is not np or not is_known or _reach(x) >= 1 << 31 or llvm.why_not():
        around = moved_in(xp, np.broadcast_to(np.asarray(fill, x.dtype.name), x.shape[2:]))
        return (_nearest if way == NEAREST else _linear)(xp, x, matrix, size, around)
    x = contiguous_rows(x)
    shape = (*size, *x.shape[2:])
    if out is None or out.shape != shape or out.dtype != x.dtype or not out.flags.c_contiguous:
        out = np.empty(shape, x.dtype)
    is_affine = matrix[6:] == (0.0, 0.0, 1.0)
    assert kind is not None
    run = _function(way, kind, channels, is_affine)
    numbers, around = np.array(matrix), np.empty(channels, x.dtype)
    around[:] = fill
    places = np.empty((3, size[1]), np.int32)
    pointers = numbers.ctypes.data, around.ctypes.data, places.ctypes.data
    run(x.ctypes.data, x.strides[0], *x.shape[:2], out.ctypes.data, *size, *pointers)
    return out


_BITS: dict[int, DType] = {n: np.dtype(f"int{8 * n}") for n in (1, 2, 4, 8)}


def _reach(x: Image) -> int:
    """How many bytes are between an image's first and last pixel, about."""
    return max(x.nbytes, abs(x.strides[0]) * x.shape[0])


def _places(xp: Any, matrix: Matrix, shape: Size, size: Size) -> list[Any]:
    """Where pixels look: columns and rows."""
    a, b, c, d, e, f, g, h, i = matrix
    k, r = xp.arange(size[1], dtype=xp.float64), xp.arange(size[0], dtype=xp.float64)[:, None]
    found = [a * k + (b * r + c), d * k + (e * r + f)]
    if (g, h, i) != (0.0, 0.0, 1.0):
        depth = g * k + (h * r + i)
        is_before = depth > 0
        by = xp.where(is_before, depth, 1.0)
        found = [xp.where(is_before, v / by, -2.0) for v in found]
    return [
        xp.minimum(xp.maximum(v, -2.0), n + 1.0) for v, n in zip(found, shape[::-1], strict=True)
    ]


def _nearest(xp: Any, x: Image, matrix: Matrix, size: Size, fill: Any) -> Image:
    columns, rows = _places(xp, matrix, x.shape[:2], size)
    return _pixels(xp, x, xp.floor(rows + 0.5), xp.floor(columns + 0.5), fill)


def _pixels(xp: Any, x: Image, rows: Any, columns: Any, fill: Any) -> Any:
    height, width = x.shape[:2]
    is_inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    rows = xp.minimum(xp.maximum(rows, 0), height - 1).astype(xp.int64)
    columns = xp.minimum(xp.maximum(columns, 0), width - 1).astype(xp.int64)
    if x.ndim == 3:
        is_inside = is_inside[..., None]
    return xp.where(is_inside, x[rows, columns], fill)


def _linear(xp: Any, x: Image, matrix: Matrix, size: Size, fill: Any) -> Image:
    one = 1 << BITS
    columns, rows = (
        xp.floor(v * one + 0.5).astype(xp.int64) for v in _places(xp, matrix, x.shape[:2], size)
    )
    is_whole = x.dtype.kind == "u"
    kind = xp.int64 if is_whole else xp.float64 if x.dtype == np.float64 else xp.float32
    right, low = ((v & (one - 1)).astype(kind) for v in (columns, rows))
    columns, rows = columns >> BITS, rows >> BITS
    total: Any = None
    for down, by_row in ((0, one - low), (1, low)):
        for on, by_column in ((0, one - right), (1, right)):
            weight = by_row * by_column
            weight = weight[..., None] if x.ndim == 3 else weight
            found = _pixels(xp, x, rows + down, columns + on, fill).astype(kind) * weight
            total = found if total is None else total + found
    if is_whole:
        return ((total + (1 << (2 * BITS - 1))) >> (2 * BITS)).astype(x.dtype)
    return (total * 2.0 ** (-2 * BITS)).astype(x.dtype)


# -- machine code ------------------------------------------------------------------------------
@once
def _function(way: str, kind: DType, channels: int, is_affine: bool) -> Any:
    """For each row: where its pixels look, which LLVM turns into vectors; then what they see."""
    made = Routine(
        None, image=[uint8], stride=int64, height=int64, width=int64, out=[kind], rows=int64,
        columns=int64, m=[float64], fill=[kind], xs=[int32],
    )  # fmt: skip
    image, stride, height, width, out, rows, columns, m, fill, xs = made.given
    matrix, ends = [m[k] for k in range(9)], [cast(n, float64) + 1.0 for n in (width, height)]
    places = [xs, xs.further(columns)]
    with made.each(rows) as r:
        starts = [matrix[k + 1] * cast(r, float64) + matrix[k + 2] for k in (0, 3, 6)]
        with made.each(columns) as k:
            on = cast(cast(k, int32), float64)
            found = [a * on + b for a, b in zip(matrix[::3], starts, strict=True)]
            for v, end, place in zip(found, ends, places, strict=False):
                at = v if is_affine else where(found[2] > 0.0, v / found[2], -2.0)
                at = smaller(larger(at, -2.0), end) * float(1 << BITS if way == LINEAR else 1)
                place[k] = whole_of(at.lines.call("floor", float64, at + 0.5), int32)
        with made.each(columns) as k:
            x, y = (place[k] for place in places)
            to = out.further((r * columns + k) * channels)
            source = _Source(made, image, stride, height, width, fill, channels)
            if way == NEAREST:
                source.copied(cast(y, int64), cast(x, int64), to)
            else:
                source.mixed(y, x, to, k < columns - 1)
    return made.made()


class _Source:
    """An image that pixels look at, and what is around it."""

    def __init__(
        self, made: Routine, image: Memory, stride: Value, height: Value, width: Value, fill: Memory,
        channels: int,
    ) -> None:  # fmt: skip
        self.made, self.image, self.stride, self.fill = made, image, stride, fill
        self.height, self.width, self.channels = height, width, channels

    def pixel(self, row: Value, column: Value) -> Memory:
        at = row * self.stride + column * (self.channels * self.fill.dtype.itemsize)
        return self.image.further(at).view(self.fill.dtype)

    def around(self, row: Value, column: Value) -> Memory:
        """A pixel, or one of what is around the image."""
        is_inside = _is_below(row, self.height) & _is_below(column, self.width)
        return self.pixel(row, column).select(is_inside, self.fill)

    def copied(self, row: Value, column: Value, to: Memory) -> None:
        found = self.around(row, column)
        for c in range(self.channels):
            to[c] = found[c]

    def mixed(self, y: Value, x: Value, to: Memory, has_next: Value) -> None:
        """Mixes four neighbours: where all are inside, all channels at once; three are read and written as
        four, which the last pixel of a row has no room for."""
        made, one = self.made, (1 << BITS) - 1
        row, column = (cast(shift(v, "ashr", BITS), int64) for v in (y, x))
        down, on, last = y & one, x & one, 2 if self.channels == 3 else 1
        is_inside = _is_below(row, self.height - 1) & _is_below(column, self.width - last)
        is_inside = is_inside & has_next if self.channels == 3 else is_inside
        with made.given_that(is_inside):
            lanes = 4 if self.channels == 3 else self.channels
            corners = [
                self.pixel(row + i, column + j).lanes(0, lanes) for i in (0, 1) for j in (0, 1)
            ]
            to.put(0, self._sum(corners, down, on, lanes))
        with made.given_that(~is_inside):
            sees = _is_below(row + 1, self.height + 1) & _is_below(column + 1, self.width + 1)
            if self.fill.dtype == uint8:
                with made.given_that(~sees):
                    for c in range(self.channels):
                        to[c] = self.fill[c]
            with made.given_that(sees if self.fill.dtype == uint8 else ~is_inside):
                pixels = [self.around(row + i, column + j) for i in (0, 1) for j in (0, 1)]
                for c in range(self.channels):
                    to[c] = self._sum([p[c] for p in pixels], down, on, 0)

    def _sum(self, corners: list[Value], down: Value, on: Value, lanes: int) -> Value:
        """Four pixels times their weights: of floats in the order in which NumPy's text adds them."""

        def wide(x: Value) -> Value:
            return self.made.spread(x, lanes) if lanes else x

        if self.fill.dtype == uint8:
            down, on, (a, b, c, d) = wide(down), wide(on), [cast(v, int32) for v in corners]
            both = _between(_between(a, b, on), _between(c, d, on), down)
            return cast(shift(both + (1 << (2 * BITS - 1)), "lshr", 2 * BITS), uint8)
        weights = [a * b for a in ((1 << BITS) - down, down) for b in ((1 << BITS) - on, on)]
        parts = [x * wide(cast(w, float32)) for x, w in zip(corners, weights, strict=True)]
        return (parts[0] + parts[1] + parts[2] + parts[3]) * 2.0 ** (-2 * BITS)


def _between(a: Value, b: Value, by: Value) -> Value:
    return shift(a, "shl", BITS) + (b - a) * by


def _is_below(place: Value, end: Value) -> Value:
    return (place >= 0) & (place < end)
