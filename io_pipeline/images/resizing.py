"""Images in another size, with pixels mixed from the four around their place: the bits that OpenCV gives for
uint8 on most machines, on all.

Pixels are squares: the middle of the k-th of n new ones is at (k + 1/2) * old / n of the old ones. Weights
are whole numbers of 1/2048. To half of both extents, a pixel is the middle of four."""

from __future__ import annotations

from typing import Any

import numpy as np
from ostinato.ops.cpu.jit import llvm

from .resizing_code import CHANNELS, function, notes_bytes

Image = Any


def linear(x: Image, size: tuple[int, int], out: Image = None) -> Image | None:
    """An image in another size; None if there is no machine code for it."""
    height, width, channels = x.shape
    if channels not in CHANNELS or x.dtype != np.uint8 or not x.size or llvm.why_not():
        return None
    if x.strides[1:] != (channels, 1):
        x = np.ascontiguousarray(x)
    shape = (*size, channels)
    if out is None or out.shape != shape or out.dtype != x.dtype or not out.flags.c_contiguous:
        out = np.empty(shape, np.uint8)
    notes = np.empty(notes_bytes(size, channels), np.uint8)
    at = out.ctypes.data, *size, notes.ctypes.data
    function(channels)(x.ctypes.data, x.strides[0], height, width, *at)
    return out
