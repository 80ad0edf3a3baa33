"""The last step of an image: from uint8 with channels behind to floats with channels in front, in one pass
over the image. A row may be read backwards, so that mirroring is free."""

from __future__ import annotations

from typing import Any

import numpy as np
from ostinato.ops.core.spec import DTYPES, float32, int64, uint8
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once
from ostinato.ops.cpu.jit.routine import Memory, Routine
from ostinato.ops.jit.values import Unsupported, Value, cast

Image = np.ndarray[Any, Any]
LANES = 16  # results of a cache line
MADE = ("float32", "float16", "bfloat16")


def planes(x: Image, line: int, out: Image) -> bool:
    """Fill `out`, channels x height x width, with x * scale + bias, of which there is one per channel at
    this address; False if there is no machine code here, and nothing is done."""
    height, width, channels = x.shape
    if x.strides[2] != 1 or abs(x.strides[1]) != channels:
        x = np.ascontiguousarray(x)
    if not can(out.dtype.name):
        return False
    run = _function(channels, out.dtype.name)
    run(x.ctypes.data, x.strides[0], x.strides[1], height, width, out.ctypes.data, line)
    return True


@once
def can(dtype: str) -> bool:
    """Whether there is machine code that makes such numbers here."""
    try:
        return dtype in MADE and not llvm.why_not() and bool(routine(1, dtype).text())
    except Unsupported:
        return False


@once
def _function(channels: int, dtype: str) -> Any:
    return routine(channels, dtype).made()


def routine(channels: int, dtype: str) -> Routine:
    """Whole lines where results lie at multiples of cache lines, else pixel by pixel; both of them of rows
    that are read forwards or backwards."""
    made = Routine(
        None, "planes", x=[uint8], stride=int64, step=int64, height=int64, width=int64,
        out=[DTYPES[dtype]], line=[float32],
    )  # fmt: skip
    x, stride, step, height, width, out, line = made.given
    odd = (out.address & (4 * LANES - 1)) | (width & (LANES - 1))
    for sign in (channels, -channels):
        is_so = step == sign
        if dtype == "float32":
            with made.given_that(is_so & (odd == 0)):
                part = _rows(channels, sign, dtype, True)
                made.does(part, x, stride, height, width, out, line)
                made.ends()
                made.label()
        with made.given_that(is_so):
            made.does(_rows(channels, sign, dtype, False), x, stride, height, width, out, line)
    return made


def _rows(channels: int, step: int, dtype: str, in_lines: bool) -> Routine:
    name = f"rows_{'lines' if in_lines else 'pixels'}_{'forwards' if step > 0 else 'backwards'}"
    made = Routine(
        None, name, x=[uint8], stride=int64, height=int64, width=int64, out=[DTYPES[dtype]], line=[float32]
    )  # fmt: skip
    x, stride, height, width, out, line = made.given
    each = range(channels)
    lines = [(line[c], line[channels + c]) for c in each]
    if in_lines:
        lines = [(made.spread(a, LANES), made.spread(b, LANES)) for a, b in lines]
    with made.each(height) as r:
        row = x.further(r * stride)
        places = [out.further(height * width * c + r * width) for c in each]
        with made.each(width, step=LANES if in_lines else 1) as k:
            pixels = _pixels(made, row.further(k * step), channels, step, in_lines)
            for (scale, bias), pixel, place in zip(lines, pixels, places, strict=True):
                found = cast(pixel, float32) * scale + bias
                if in_lines:
                    place.put_line(k, found)
                else:
                    place[k] = cast(found, DTYPES[dtype])
    if in_lines:
        made.fence()
    return made


def _pixels(made: Routine, at: Memory, channels: int, step: int, in_lines: bool) -> list[Value]:
    """Each channel of a pixel, or of as many as a cache line has results."""
    if not in_lines:
        return [at[c] for c in range(channels)]
    first = 0 if step > 0 else step * (LANES - 1)  # read backwards, the last one lies first
    both = at.lanes(first, LANES * channels)
    return [
        made.chosen(both, [k * step - first + c for k in range(LANES)]) for c in range(channels)
    ]
