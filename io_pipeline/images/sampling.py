"""Images as seen through a matrix: each pixel of the result looks at a place of the image.

    place = N @ (column, row, 1), divided by its third number; places are counted in pixels, from the middle
    of the first one

Places are rounded to 1/2048 of a pixel, and what lies between four pixels is mixed in whole numbers (of
floats by these weights); so machine code, NumPy and devices give the same bits. Around the image
everything is `fill`. "nearest" takes the pixel in which the place lies."""

from __future__ import annotations

from typing import Any

import numpy as np
from ostinato.ops.cpu.jit import llvm

from .sampling_code import BITS, LINEAR, MIXED, MOST_CHANNELS, NEAREST, SIZES, function
from .values import in_order, moved_in

Image = Any
Matrix = tuple[float, ...]  # of 3 x 3 numbers, row by row
Size = tuple[int, int]


def seen(
    xp: Any, x: Image, matrix: Matrix, size: Size, way: str, fill: Any = 0, out: Image = None
) -> Image:
    """An image, or a mask without channels, as `size` pixels that look at it through a matrix."""
    channels = x.shape[2] if x.ndim == 3 else 1
    kind = MIXED.get(x.dtype.name, "") if way == LINEAR else f"i{8 * x.dtype.itemsize}"
    is_known = kind in SIZES and channels <= MOST_CHANNELS
    if xp is not np or not is_known or _reach(x) >= 1 << 31 or llvm.why_not():
        around = moved_in(xp, np.broadcast_to(np.asarray(fill, x.dtype.name), x.shape[2:]))
        return (_nearest if way == NEAREST else _linear)(xp, x, matrix, size, around)
    x = in_order(x)
    shape = (*size, *x.shape[2:])
    if out is None or out.shape != shape or out.dtype != x.dtype or not out.flags.c_contiguous:
        out = np.empty(shape, x.dtype)
    is_affine = matrix[6:] == (0.0, 0.0, 1.0)
    run = function(way, kind, channels, is_affine)
    numbers, around = np.array(matrix), np.empty(channels, x.dtype)
    around[:] = fill
    places = np.empty((3, size[1]), np.int32)
    pointers = numbers.ctypes.data, around.ctypes.data, places.ctypes.data
    run(x.ctypes.data, x.strides[0], *x.shape[:2], out.ctypes.data, *size, *pointers)
    return out


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
