"""A window of a JPEG file, without what is around it: bit for bit what decoding all of it would give there.

libjpeg-turbo can leave out columns and rows (`jpeg_crop_scanline`, `jpeg_skip_scanlines`): bits have to be
read from the file's beginning to the window's last row, but only the window is transformed and coloured.
No package for Python offers that, but Pillow's wheel brings the library itself, whose interface has been the
same since version 6b. The function that calls it is made here by LLVM, for libjpeg reports errors by a call
that must not return: it jumps back to where the function began (`setjmp`).

Neighbouring pixels of colour are interpolated, so some columns on both sides are decoded as well and left
out again. Whatever is not plainly good (a warning, an odd file) is left to those who decode all of it. As they
do, it reads what is behind the last row, if that is in the window: a file is damaged for both or neither."""

from __future__ import annotations

import ctypes
import glob
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.spec import float64, int32, int64, uint8, uint32
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import address_of, once, symbol
from ostinato.ops.cpu.jit.routine import Routine, larger, smaller
from ostinato.ops.jit.values import Value, cast, where

from .backends import pillow

Image = np.ndarray[Any, Any]
SIDE = 8  # columns that are decoded on each side and left out
ALIGNED = 32  # columns that a window begins sooner, at most: libjpeg begins at a whole block
SAVED = 0.8  # a window of more than this part of the image is not worth it

VERSION, SIZE = 62, 632  # of libjpeg's interface, and of its struct jpeg_decompress_struct
COLOURS, WIDE, TALL = 64, 136, 140  # offsets of out_color_space, output_width, output_height
ERRORS = SIZE  # behind it lies a struct jpeg_error_mgr,
SAYS, WARNINGS, JUMP = 16, 128, 168  # of which these are fields: output_message, num_warnings;
LEAVE = JUMP + 512  # a jmp_buf behind it
STATE = ERRORS + LEAVE  # bytes of all of this
CALLS = (
    "jpeg_std_error",
    "jpeg_CreateDecompress",
    "jpeg_destroy_decompress",
    "jpeg_mem_src",
    "jpeg_read_header",
    "jpeg_start_decompress",
    "jpeg_crop_scanline",
    "jpeg_skip_scanlines",
    "jpeg_read_scanlines",
    "jpeg_finish_decompress",
)
GREY, RGB = 1, 2  # libjpeg's numbers of colours


def taken(size: Sequence[Value], window: Sequence[Value]) -> tuple[Value, Value, Value, Value]:
    """Finds where the columns and the rows of a window begin that are decoded, and how many there are: all,
    where the window is most of an image of this size."""
    top, left, height, width = window
    is_most = cast(height * width, float64) > cast(size[0] * size[1], float64) * SAVED
    begin = larger(left - SIDE, 0)
    wide = smaller(left + width + SIDE, size[1]) - begin
    return (
        where(is_most, 0, begin), where(is_most, size[1], wide),
        where(is_most, 0, top), where(is_most, size[0], height),
    )  # fmt: skip


class _Memory(threading.local):
    """Each thread's own, for the library's state."""

    def __init__(self) -> None:
        self.state = ctypes.create_string_buffer(STATE + 16)
        self.at = -(-ctypes.addressof(self.state) // 16) * 16


_memory = _Memory()


def decode_window(
    data: bytes, size: tuple[int, int], window: tuple[int, int, int, int], channels: int
) -> Image | None:
    """A window (top, left, height, width) of an image of this size; None if it has to be decoded whole."""
    top, left, height, width = window
    if channels not in (1, 3) or height * width > SAVED * size[0] * size[1]:
        return None
    function = _function()
    if function is None or b"\xff\xd9" not in data[-64:]:  # truncated: behind the window, perhaps
        return None
    begin = max(left - SIDE, 0)
    wide = min(left + width + SIDE, size[1]) - begin
    out = np.empty(height * (wide + ALIGNED) * channels, np.uint8)
    found = (ctypes.c_uint32 * 2)(begin, wide)
    colours = GREY if channels == 1 else RGB
    most = (wide + ALIGNED) * channels
    at = out.ctypes.data
    if function(_memory.at, data, len(data), colours, top, height, found, most, at):
        return None
    begin, wide = found
    if begin > left or begin + wide < left + width:
        return None
    rows = out[: height * wide * channels].reshape(height, wide, channels)
    return rows[:, left - begin : left - begin + width]


@once
def _library() -> Any:
    """The libjpeg that Pillow brings, if it is one that can do this."""
    found = pillow()
    if found is None or not sys.platform.startswith("linux"):
        return None
    home = os.path.dirname(os.path.dirname(os.path.abspath(found.__file__)))
    for path in sorted(glob.glob(os.path.join(glob.escape(home), "pillow.libs", "libjpeg-*.so*"))):
        try:
            library = ctypes.CDLL(path)
            for name in CALLS:
                getattr(library, name)
        except (OSError, AttributeError):
            continue
        return library
    return None


@once
def decoder() -> Routine | None:
    """A function that decodes a window to memory of so many bytes for a row: 0 if all is plainly good. It is
    told where the window's columns begin and how many there are, and says the same of those that it took.
    None if the library's functions are not there."""
    library = _library()
    if library is None or llvm.why_not():
        return None
    host = ctypes.CDLL(None)
    homes = [(library, name) for name in CALLS] + [(host, "_setjmp"), (host, "longjmp")]
    try:
        for home, name in homes:
            symbol(f"ostinato_{name}", address_of(home, name))
    except AttributeError:
        return None
    made = Routine(
        int32, "decode_window", state=[uint8], data=[uint8], size=int64, colours=int32, top=int32,
        height=int32, columns=[int32], most=int64, out=[uint8],
    )  # fmt: skip
    image, data, size, colours, top, height, columns, most, out = made.given
    errors, one = image.further(ERRORS), made.lines.constant(1, int32)

    def call(name: str, *given: Any, result: Any = None, facts: str = "") -> Value:
        return made.call(f"ostinato_{name}", result, *given, facts=facts)

    def leaves_if(failed: Value) -> None:
        with made.given_that(failed):
            call("jpeg_destroy_decompress", image)
            made.ends(1)
            made.label()

    call("jpeg_std_error", errors, result=int64)
    errors.view(int64)[0] = made.code_of(_gives_up())
    errors.further(SAYS).view(int64)[0] = made.code_of(_is_quiet())
    image.view(int64)[0] = errors
    came = call("_setjmp", errors.further(JUMP), result=int32, facts="returns_twice")
    leaves_if(came != 0)
    call("jpeg_CreateDecompress", image, made.lines.constant(VERSION, int32), made.whole(SIZE))
    call("jpeg_mem_src", image, data, size)
    call("jpeg_read_header", image, one, result=int32)
    image.further(COLOURS).view(int32)[0] = colours
    call("jpeg_start_decompress", image, result=int32)
    call("jpeg_crop_scanline", image, columns, columns.further(1))
    wide = cast(cast(image.further(WIDE).view(int32)[0], uint32), int64)
    stride = wide * where(colours == GREY, made.whole(1), made.whole(3))
    leaves_if(stride > most)
    with made.given_that(top > 0):
        skipped = call("jpeg_skip_scanlines", image, top, result=int32)
        leaves_if(skipped != top)
    row = made.own(1, int64)
    with made.each(cast(height, int64)) as k:
        row[0] = out.further(k * stride)
        read = call("jpeg_read_scanlines", image, row, one, result=int32)
        leaves_if(read != 1)
    with made.given_that(top + height == image.further(TALL).view(int32)[0]):
        call("jpeg_finish_decompress", image, result=int32)
    warned = errors.further(WARNINGS).view(int64)[0] != 0
    call("jpeg_destroy_decompress", image)
    made.ends(cast(warned, int32))
    return made


def _gives_up() -> Routine:
    """Goes back to where `decoder` began: libjpeg calls it for an error."""
    made = Routine(None, "give_up", image=[int64])
    (image,) = made.given
    jump = made.memory(image[0] + JUMP, int64)
    made.call("ostinato_longjmp", None, jump, made.lines.constant(1, int32), facts="noreturn")
    return made


def _is_quiet() -> Routine:
    return Routine(None, "be_quiet", image=[int64])


@once
def _function() -> Any:
    made = decoder()
    return None if made is None else made.made()
