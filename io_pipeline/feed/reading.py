"""A file read with one call.

Opened, read and closed by Python's own calls, a file lets other threads of Python go on three times, and
three times its thread waits until it may go on itself: if the main thread computes in Python, each time
longer than reading takes. So one function of machine code does all three, and asks when the file was
written, too."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from typing import Any

from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import Words, address_of, once, symbol

from .native import NO_ROOM, NOT_MINE, ROOM, Native, get, made, put

FIRST = 1 << 18  # bytes that are asked for at once,
MOST = 1 << 22  # which grow up to here if files are longer
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
# Of Linux's struct statx, which is the same on all processors: size, and time of the last change
_STATX, _SIZE, _SECONDS, _NANOSECONDS = 256, 40, 112, 120
_ASKED, _EMPTY_PATH = 0x240, 0x1000  # STATX_SIZE | STATX_MTIME, AT_EMPTY_PATH
_SPREAD = 0x9E3779B97F4A7C15
_told = struct.Struct(f"<Q{_SECONDS - _SIZE - 8}xqI").unpack_from


class _Memory(threading.local):
    """Each thread's own."""

    buffer: Any = None

    def take(self, size: int) -> Any:
        """So many bytes, until they are given back: a handler of a signal or a finalizer may read a file
        in this thread before that."""
        buffer, self.buffer = self.buffer, None
        if buffer is None or len(buffer) < size:
            buffer = ctypes.create_string_buffer(size)
        return buffer


class _Guess:
    size = FIRST


_memory = _Memory()


def whole(path: str) -> tuple[bytes, int] | None:
    """What is in a file, and its stamp; None if it has to be read with more care: it is empty, long, or
    cannot be read."""
    function = _function()
    if function is None:
        return None
    size = _Guess.size
    buffer, stat = _memory.take(size), ctypes.create_string_buffer(_STATX)
    count = function(os.fsencode(path), buffer, size, stat)
    data = ctypes.string_at(buffer, count) if 0 < count < size else b""
    _memory.buffer = buffer
    if not data:
        return None
    long, seconds, nanoseconds = _told(stat, _SIZE)
    return data, stamp_of(long, seconds * 1_000_000_000 + nanoseconds)


def stamp_of(size: int, nanoseconds: int) -> int:
    """A number above 0 that is another if a file's size or time is."""
    return (nanoseconds ^ size * _SPREAD) & (1 << 63) - 1 or 1


def expect(size: int) -> None:
    """A file was this long; others may be, too."""
    _Guess.size = max(_Guess.size, min(size + size // 4, MOST))


@once
def reads() -> Native | None:
    """What reads the file of a name, for chunks by machine code; None if there is nothing here."""
    table = _calls()
    if table is None:
        return None
    symbol("ostinato_read_file", made(TEXT))
    return Native(makes=made(NATIVE), numbers=Words(table))


@once
def _calls() -> Words | None:
    if os.name != "posix" or llvm.why_not():
        return None
    host = ctypes.CDLL(None)
    try:
        return Words(*(address_of(host, name) for name in CALLS))
    except AttributeError:
        return None


@once
def _function() -> Any:
    table = _calls()
    if table is None:
        return None
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    kinds = (pointer, text, pointer, ctypes.c_ssize_t, text, pointer)
    function = llvm.linked(TEXT).function(ctypes.c_ssize_t, *kinds)
    return lambda path, out, size, stat: function(table, path, out, size, b"", stat)


CALLS = ("open", "read", "close", "statx")
TEXT = f"""
define i64 @run(ptr %table, ptr %path, ptr %out, i64 %size, ptr %nothing, ptr %stat) nounwind {{
entry:
  %open = load ptr, ptr %table
  %read_at = getelementptr ptr, ptr %table, i64 1
  %read = load ptr, ptr %read_at
  %close_at = getelementptr ptr, ptr %table, i64 2
  %close = load ptr, ptr %close_at
  %file = call i32 (ptr, i32, ...) %open(ptr %path, i32 {_FLAGS}) nounwind
  %good = icmp sge i32 %file, 0
  br i1 %good, label %opened, label %failed
opened:
  %statx_at = getelementptr ptr, ptr %table, i64 3
  %statx = load ptr, ptr %statx_at
  %long = getelementptr i8, ptr %stat, i64 {_SIZE}
  store i64 0, ptr %long
  %seconds = getelementptr i8, ptr %stat, i64 {_SECONDS}
  store i64 0, ptr %seconds
  %nanoseconds = getelementptr i8, ptr %stat, i64 {_NANOSECONDS}
  store i32 0, ptr %nanoseconds
  %asked = call i32 %statx(i32 %file, ptr %nothing, i32 {_EMPTY_PATH}, i32 {_ASKED}, ptr %stat) nounwind
  %count = call i64 %read(i32 %file, ptr %out, i64 %size) nounwind
  %closed = call i32 %close(i32 %file) nounwind
  ret i64 %count
failed:
  ret i64 -1
}}
"""
NATIVE = f"""
{ROOM}
declare i64 @ostinato_read_file(ptr, ptr, ptr, i64, ptr, ptr) nonlazybind
define i64 @run(ptr %s, ptr %numbers) nounwind {{
entry:
  %stat = alloca [{_STATX} x i8], align 8
  %nothing = alloca i8
  store i8 0, ptr %nothing
{get("data", "size", "room", "end", "wanted", "stamp")}
  %name = inttoptr i64 %data to ptr
  br label %letters
letters:
  %k = phi i64 [0, %entry], [%kn, %letter]
  %more = icmp slt i64 %k, %size
  br i1 %more, label %letter, label %named
letter:
  %cp = getelementptr i8, ptr %name, i64 %k
  %c = load i8, ptr %cp
  %is_end = icmp eq i8 %c, 0
  %kn = add i64 %k, 1
  br i1 %is_end, label %bad, label %letters
named:
  %free = sub i64 %end, %room
  %most = lshr i64 %free, 2
  %out = call ptr @take(ptr %s, i64 %most)
  %table = load ptr, ptr %numbers
  %count = call i64 @ostinato_read_file(ptr %table, ptr %name, ptr %out, i64 %most, ptr %nothing,
    ptr %stat)
  %has = icmp sgt i64 %count, 0
  br i1 %has, label %check, label %bad
check:
  %is_all = icmp slt i64 %count, %most
  br i1 %is_all, label %stamps, label %longer
longer:
  %lacks = add i64 %wanted, %free
{put(wanted="%lacks")}
  ret i64 {NO_ROOM}
stamps:
  %long_at = getelementptr i8, ptr %stat, i64 {_SIZE}
  %long = load i64, ptr %long_at
  %seconds_at = getelementptr i8, ptr %stat, i64 {_SECONDS}
  %seconds = load i64, ptr %seconds_at
  %nanoseconds_at = getelementptr i8, ptr %stat, i64 {_NANOSECONDS}
  %nanoseconds32 = load i32, ptr %nanoseconds_at
  %nanoseconds = zext i32 %nanoseconds32 to i64
  %whole = mul i64 %seconds, 1000000000
  %time = add i64 %whole, %nanoseconds
  %spread = mul i64 %long, {_SPREAD - (1 << 64)}
  %both = xor i64 %time, %spread
  %found = and i64 %both, {(1 << 63) - 1}
  %is_none = icmp eq i64 %found, 0
  %new = select i1 %is_none, i64 1, i64 %found
  %is_first = icmp eq i64 %stamp, 0
  %is_same = icmp eq i64 %stamp, %new
  %stays = or i1 %is_first, %is_same
  br i1 %stays, label %good, label %bad
good:
  %there = ptrtoint ptr %out to i64
  %used = add i64 %there, %count
{put(data="%there", size="%count", stamp="%new").replace("_to", "_found")}
{put(room="%used").replace("_to", "_next")}
  ret i64 0
bad:
  ret i64 {NOT_MINE}
}}
"""
