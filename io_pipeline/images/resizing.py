"""Images in another size: Pillow's bits, on all machines.

Pixels are squares: the middle of the k-th of n new ones is at (k + 1/2) * old / n of the old ones. Where an
image shrinks, a filter is as much wider as new pixels are, so that all old ones count; without antialiasing
it is not. Weights are whole numbers of 2**-22, and rows that have the new width are rounded to whole numbers.

By "linear", images of uint8 are resized by machine code. All else is Pillow's, channel by channel."""

from __future__ import annotations

from typing import Any

import numpy as np
from ostinato.ops.cpu.jit import llvm

from .backends import needed, pillow
from .resizing_code import CHANNELS, function, notes_bytes

Image = Any
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
    function(channels, smooth)(x.ctypes.data, x.strides[0], height, width, *at)
    return out


def by_pillow(x: Image, size: tuple[int, int], filter_: str) -> Image:
    """The same by Pillow, with antialiasing; numbers other than uint8 are mixed as float32."""
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
