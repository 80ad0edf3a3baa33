"""Images in another size: Pillow's bits, on all machines.

Pixels are squares: the middle of the k-th of n new ones is at (k + 1/2) * old / n of the old ones. Where an
image shrinks, a filter is as much wider as new pixels are, so that all old ones count; without antialiasing
it is not. Weights are whole numbers of 2**-22, and rows that have the new width are rounded to whole numbers.

By "linear", images of uint8 are resized by machine code: each row goes to the new width, rounded to whole
numbers, then all columns go to the new height, band by band of the result. Rows go to the new width in groups,
whose pixels are put side by side, 16 numbers for each place in a row: so a weight is that of a whole vector,
whatever its place. All else is Pillow's, channel by channel."""

from __future__ import annotations

from typing import Any

import numpy as np
from ostinato.ops.core.spec import float64, int32, int64, uint8
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once
from ostinato.ops.cpu.jit.routine import Memory, Routine, larger, smaller, whole_of
from ostinato.ops.jit.values import Value, cast, shift, where

from .backends import needed, pillow

Image = Any
BITS = 22  # of a weight
CHANNELS = (1, 3, 4)  # of which there is machine code
GROUP = 16  # numbers of a place in a group of rows
BLOCK = 32  # numbers of a row that are made together
BAND = 64  # rows of the result for which rows of the new width are kept
FILTERS = {"linear": "BILINEAR", "cubic": "BICUBIC", "area": "BOX", "lanczos": "LANCZOS"}


def linear(x: Image, size: tuple[int, int], smooth: bool, out: Image = None) -> Image | None:
    """An image in another size, with antialiasing or without; None if there is no machine code for it."""
    height, width, channels = x.shape
    if channels not in CHANNELS or x.dtype != np.uint8 or not x.size or llvm.why_not():
        return None
    if x.strides[1:] != (channels, 1):
        x = np.ascontiguousarray(x)
    shape = (*size, channels)
    if out is None or out.shape != shape or out.dtype != x.dtype or not out.flags.c_contiguous:
        out = np.empty(shape, np.uint8)
    notes = np.empty(notes_bytes(channels, height, width, *size), np.uint8)
    at = out.ctypes.data, *size, notes.ctypes.data
    _function(channels, smooth)(x.ctypes.data, x.strides[0], height, width, *at)
    return out


def resize_by_pillow(x: Image, size: tuple[int, int], filter_: str) -> Image:
    """Resize by Pillow, with antialiasing; numbers other than uint8 are mixed as float32."""
    library = needed("resize", pillow(), "Pillow")
    way = getattr(library.Resampling, FILTERS[filter_])
    # of both sides Pillow takes the one first that is less work, which changes a bit
    sizes = [(size[1], x.shape[0]), size[::-1]] if filter_ == "linear" else [size[::-1]]

    def resized(plane: Image) -> Image:
        made = library.fromarray(plane)
        for wide, high in sizes:
            made = made.resize((wide, high), way)
        return np.asarray(made)

    is_plain = x.dtype == np.uint8
    if is_plain and x.shape[2] == 3:
        return resized(np.ascontiguousarray(x))
    planes = np.moveaxis(x, -1, 0).astype(np.uint8 if is_plain else np.float32, order="C")
    found = np.stack([resized(plane) for plane in planes], -1)
    if x.dtype.kind in "iu" and not is_plain:
        ends = np.iinfo(x.dtype)
        found = np.clip(np.rint(found), ends.min, ends.max)
    return found.astype(x.dtype, copy=False)


# -- machine code ------------------------------------------------------------------------------
def notes_bytes(channels: int, height: Any, width: Any, rows: Any, columns: Any) -> Any:
    """Memory that the function notes places, weights (at most 2 * old + 3 * new of an axis) and rows in."""
    axes = (height + width) * 8 + (rows + columns) * 28
    band = (height // rows + 1) * (BAND + 2) + GROUP
    return axes + (width + 1) * GROUP + band * (columns * channels + BLOCK)


@once
def _function(channels: int, smooth: bool) -> Any:
    return routine(channels, smooth).made()


def routine(channels: int, smooth: bool) -> Routine:
    """Image, bytes of a row, height, width; result, its height and width; notes. smooth: a pixel is mixed of
    all those that it covers."""
    made = Routine(
        None, "resize", x=[uint8], stride=int64, height=int64, width=int64,
        out=[uint8], rows=int64, columns=int64, free=[uint8],
    )  # fmt: skip
    x, stride, height, width, out, rows, columns, free = made.given
    axis, across, down = _axis(smooth), _across(channels), _down()
    seats, free = [free, free.further(columns * 16)], free.further((columns + rows) * 16)
    axes = []
    for places, old, new in zip(seats, (width, height), (columns, rows), strict=True):
        most = made.whole(3)
        if smooth:  # two for each of those that it covers, and one more
            most = (old + new - 1) // new * 2 + 1
        made.does(axis, old, new, most, places, free)
        axes.append((most, places, free))
        free = free.further(new * most * 4)
    count = columns * channels
    line, group = count + BLOCK, free
    free = free.further((width + 1) * GROUP)
    with made.each(rows, step=BAND) as r:
        end = smaller(r + BAND, rows)
        first = seats[1].view(int64)[2 * r]
        final = [seats[1].view(int64)[2 * end + k] for k in (-2, -1)]
        high = final[0] + final[1] - first
        top = x.further(first * stride)
        made.does(across, top, stride, high, width, columns, *axes[0], group, free, line)
        made.does(down, free.further(-first * line), line, r, end, count, *axes[1], out)
    return made


def _axis(smooth: bool) -> Routine:
    """Finds for each new pixel of an axis the first old one, how many there are, and their weights."""
    made = Routine(None, "axis", old=int64, new=int64, most=int64, places=[int64], weights=[int32])
    old, new, most, places, weights = made.given
    scale = cast(old, float64) / cast(new, float64)
    reach = where(scale < 1.0, 1.0, scale) if smooth else scale.like(1.0)
    nearness = reach.like(1.0) / reach
    with made.each(new) as k:
        middle = (cast(k, float64) + 0.5) * scale
        first = larger(whole_of(middle - reach + 0.5, int64), 0)
        many = smaller(whole_of(middle + reach + 0.5, int64), old) - first
        places[2 * k], places[2 * k + 1] = first, many

        def weight(t: Value, first: Value = first, middle: Value = middle) -> Value:
            away = cast(first + t, float64) - middle + 0.5
            return larger(1.0 - abs(away * nearness), 0.0)

        total = made.variable(scale.like(0.0))
        with made.each(many) as t:
            total.now = total.now + weight(t)
        with made.each(many) as t:
            part = weight(t) / total.now * float(1 << BITS) + 0.5
            weights[k * most + t] = whole_of(part, int32)
    return made


def _mixed(made: Routine, k: Value, x: Memory, step: Value | int, lanes: int) -> Value:
    """The bytes of the k-th of the new pixels, of what lies at `x` and goes on by a step: so many lanes."""
    names = list(made.kinds)
    most, places, weights = (made.given[names.index(n)] for n in ("most", "places", "weights"))
    first, many = places[2 * k], places[2 * k + 1]
    half = made.lines.constant(1 << (BITS - 1), int32)
    total = made.variable(made.spread(half, lanes))
    with made.each(many) as t:
        weight = made.spread(weights[k * most + t], lanes)
        values = cast(x.lanes((first + t) * step, lanes), int32)
        total.now = total.now + values * weight
    return cast(shift(total.now, "lshr", BITS), uint8)


def _across(channels: int) -> Routine:
    made = Routine(
        None, "across", x=[uint8], stride=int64, height=int64, width=int64, columns=int64, most=int64,
        places=[int64], weights=[int32], group=[uint8], found=[uint8], line=int64,
    )  # fmt: skip
    x, stride, height, width, columns, _, _, _, group, found, line = made.given
    slot = 1 if channels == 1 else 4
    many, pixel = GROUP // slot, uint8 if slot == 1 else int32
    final = width - 1
    with made.each(height, step=many) as r:
        rows = [x.further(smaller(r + j, height - 1) * stride) for j in range(many)]
        with made.each(final) as k:
            for j, row in enumerate(rows):
                group.further(k * GROUP + j * slot).view(pixel)[0] = row.further(k * channels).view(
                    pixel
                )[0]
        for j, row in enumerate(rows):  # behind which there may be no fourth number
            for c in range(channels):
                group[final * GROUP + j * slot + c] = row[final * channels + c]
        with made.each(columns) as k:
            parts = made.recast(_mixed(made, k, group, GROUP, GROUP), pixel, many)
            for j in range(many):
                found.further((r + j) * line + k * channels).view(pixel)[0] = made.lane(parts, j)
    return made


def _down() -> Routine:
    made = Routine(
        None, "down", x=[uint8], line=int64, begin=int64, end=int64, count=int64, most=int64,
        places=[int64], weights=[int32], out=[uint8],
    )  # fmt: skip
    x, line, begin, end, count, _, _, _, out = made.given
    rest = count & (BLOCK - 1)
    whole = count - rest
    with made.each(end, begin) as r:
        row = out.further(r * count)
        with made.each(whole, step=BLOCK) as k:
            row.put(k, _mixed(made, r, x.further(k), line, BLOCK))
        with made.given_that(rest != 0):
            row.put_some(whole, _mixed(made, r, x.further(whole), line, BLOCK), rest)
    return made
