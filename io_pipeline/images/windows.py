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
import functools
import glob
import os
import sys
import threading
from typing import Any

import numpy as np
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import Words, address_of, once

from .backends import pillow

Image = np.ndarray[Any, Any]
SIDE = 8  # columns that are decoded on each side and left out
ALIGNED = 32  # columns that a window begins sooner, at most: libjpeg begins at a whole block
SAVED = 0.8  # a window of more than this part of the image is not worth it

VERSION, SIZE = 62, 632  # of libjpeg's interface, and of its struct jpeg_decompress_struct
COLOURS, WIDE, TALL = 64, 136, 140  # offsets of out_color_space, output_width, output_height
ERRORS = SIZE  # behind it lies a struct jpeg_error_mgr,
SAYS, WARNINGS, JUMP = 16, 128, 168  # of which these are fields: output_message, num_warnings;
LEAVE = JUMP + 512  # a jmp_buf behind it, and the address of longjmp
STATE = ERRORS + LEAVE + 8  # bytes of all of this
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
def calls() -> Words | None:
    """The functions of the library that TEXT calls; None if they are not there."""
    library = _library()
    if library is None or llvm.why_not():
        return None
    host = ctypes.CDLL(None)
    homes = [(library, name) for name in CALLS] + [(host, "_setjmp"), (host, "longjmp")]
    try:
        return Words(*(address_of(home, name) for home, name in homes))
    except AttributeError:
        return None


@once
def _function() -> Any:
    table = calls()
    if table is None:
        return None
    word, long, pointer = ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p
    kinds = (pointer, pointer, ctypes.c_char_p, long, word, word, word, pointer, long, pointer)
    function = llvm.linked(TEXT).function(ctypes.c_int, *kinds)
    return functools.partial(function, table)


def _call(k: int, result: str, kind: str, arguments: str, more: str = "") -> str:
    """A call of the k-th function of the table."""
    return (
        f"  %f{k} = getelementptr ptr, ptr %table, i64 {k}\n"
        f"  %g{k} = load ptr, ptr %f{k}\n"
        f"  {f'%{result} = ' if result else ''}call {kind} %g{k}({arguments}) {more}nounwind"
    )


TEXT = f"""
define internal void @give_up(ptr %image) nounwind {{
  %errors = load ptr, ptr %image
  %jump = getelementptr i8, ptr %errors, i64 {JUMP}
  %there = getelementptr i8, ptr %errors, i64 {LEAVE}
  %leave = load ptr, ptr %there
  call void %leave(ptr %jump, i32 1) noreturn nounwind
  unreachable
}}

define internal void @be_quiet(ptr %image) nounwind {{
  ret void
}}

define i32 @run(ptr %table, ptr %image, ptr %data, i64 %size, i32 %colours, i32 %top, i32 %height,
                ptr %columns, i64 %most, ptr %out) nounwind {{
entry:
  %row = alloca ptr
  %errors = getelementptr i8, ptr %image, i64 {ERRORS}
{_call(0, "made", "ptr", "ptr %errors")}
  store ptr @give_up, ptr %errors
  %says = getelementptr i8, ptr %errors, i64 {SAYS}
  store ptr @be_quiet, ptr %says
  %longjmp_at = getelementptr ptr, ptr %table, i64 {len(CALLS) + 1}
  %longjmp = load ptr, ptr %longjmp_at
  %there = getelementptr i8, ptr %errors, i64 {LEAVE}
  store ptr %longjmp, ptr %there
  store ptr %errors, ptr %image
  %jump = getelementptr i8, ptr %errors, i64 {JUMP}
{_call(len(CALLS), "came", "i32", "ptr %jump", "returns_twice ")}
  %failed = icmp ne i32 %came, 0
  br i1 %failed, label %bad, label %begin
begin:
{_call(1, "", "void", f"ptr %image, i32 {VERSION}, i64 {SIZE}")}
{_call(3, "", "void", "ptr %image, ptr %data, i64 %size")}
{_call(4, "header", "i32", "ptr %image, i32 1")}
  %space = getelementptr i8, ptr %image, i64 {COLOURS}
  store i32 %colours, ptr %space
{_call(5, "started", "i32", "ptr %image")}
  %width = getelementptr i8, ptr %columns, i64 4
{_call(6, "", "void", "ptr %image, ptr %columns, ptr %width")}
  %wide_at = getelementptr i8, ptr %image, i64 {WIDE}
  %wide32 = load i32, ptr %wide_at
  %wide = zext i32 %wide32 to i64
  %is_grey = icmp eq i32 %colours, {GREY}
  %channels = select i1 %is_grey, i64 1, i64 3
  %stride = mul i64 %wide, %channels
  %fits = icmp ule i64 %stride, %most
  br i1 %fits, label %place, label %bad
place:
  %above = icmp ugt i32 %top, 0
  br i1 %above, label %skip, label %lines
skip:
{_call(7, "skipped", "i32", "ptr %image, i32 %top")}
  %all = icmp eq i32 %skipped, %top
  br i1 %all, label %lines, label %bad
lines:
  %k = phi i32 [0, %place], [0, %skip], [%kn, %next]
  %k64 = zext i32 %k to i64
  %offset = mul i64 %k64, %stride
  %here = getelementptr i8, ptr %out, i64 %offset
  store ptr %here, ptr %row
{_call(8, "read", "i32", "ptr %image, ptr %row, i32 1")}
  %one = icmp eq i32 %read, 1
  br i1 %one, label %next, label %bad
next:
  %kn = add nuw i32 %k, 1
  %more = icmp ult i32 %kn, %height
  br i1 %more, label %lines, label %look
look:
  %tall_at = getelementptr i8, ptr %image, i64 {TALL}
  %tall = load i32, ptr %tall_at
  %below = add i32 %top, %height
  %is_last = icmp eq i32 %below, %tall
  br i1 %is_last, label %finish, label %done
finish:
{_call(9, "finished", "i32", "ptr %image")}
  br label %done
done:
  %warned_at = getelementptr i8, ptr %errors, i64 {WARNINGS}
  %warned = load i64, ptr %warned_at
  %odd = icmp ne i64 %warned, 0
  br label %end
bad:
  br label %end
end:
  %answer = phi i1 [%odd, %done], [true, %bad]
{_call(2, "", "void", "ptr %image")}
  %code = zext i1 %answer to i32
  ret i32 %code
}}
"""
