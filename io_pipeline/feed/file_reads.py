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

from ostinato.ops.core.spec import int32, int64, uint8, uint32
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import address_of, once, symbol
from ostinato.ops.cpu.jit.routine import Routine
from ostinato.ops.jit.values import Value, cast, where

FIRST = 1 << 18  # bytes that are asked for at once,
MAX_GUESS_BYTES = 1 << 22  # which grow up to here if files are longer
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
    """Read a file, and its stamp; None if it has to be read with more care: it is empty, long, or
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
    _Guess.size = max(_Guess.size, min(size + size // 4, MAX_GUESS_BYTES))


@once
def _reader() -> Routine | None:
    """Reads a file to memory of so many bytes, and asks what it is; how many there were, or -1."""
    if os.name != "posix" or llvm.why_not():
        return None
    host = ctypes.CDLL(None)
    try:
        for name in ("open", "read", "close", "statx"):
            symbol(f"ostinato_{name}", address_of(host, name))
    except AttributeError:
        return None
    made = Routine(
        int64, "read_file", path=[uint8], out=[uint8], size=int64, nothing=[uint8], stat=[uint8]
    )
    path, out, size, nothing, stat = made.given

    def call(name: str, *given: Any, result: Any = int32) -> Value:
        numbers = (made.lines.constant(x, int32) if isinstance(x, int) else x for x in given)
        return made.call(f"ostinato_{name}", result, *numbers)

    file = call("open", path, _FLAGS)
    made.leaves_if(file < 0, -1)
    for at, kind in ((_SIZE, int64), (_SECONDS, int64), (_NANOSECONDS, int32)):
        stat.further(at).view(kind)[0] = 0
    call("statx", file, nothing, _EMPTY_PATH, _ASKED, stat)
    count = call("read", file, out, size, result=int64)
    call("close", file)
    made.ends(count)
    return made


@once
def _function() -> Any:
    reader = _reader()
    run = None if reader is None else reader.made()
    return None if run is None else lambda path, out, size, stat: run(path, out, size, b"", stat)


@once
def reads() -> Routine | None:
    """Reads the file of a name, for chunks by machine code: how many bytes there are, or 0 if it is for
    others to read, or another file than that of a stamp."""
    reader = _reader()
    if reader is None:
        return None
    made = Routine(
        int64, "read_named", name=[uint8], length=int64, out=[uint8], size=int64, stamp=[int64]
    )
    name, length, out, size, stamp = made.given
    with made.each(length) as k:
        made.leaves_if(name[k] == 0, 0)
    stat, nothing = made.own(_STATX, uint8), made.own(1, uint8)
    nothing[0] = 0
    count = made.does(reader, name, out, size, nothing, stat)
    made.leaves_if((count <= 0) | (count >= size), count)
    long, seconds = (stat.further(at).view(int64)[0] for at in (_SIZE, _SECONDS))
    nanoseconds = cast(stat.further(_NANOSECONDS).view(uint32)[0], int64)
    spread = (long * (_SPREAD - (1 << 64))) ^ (seconds * 1_000_000_000 + nanoseconds)
    found = spread & ((1 << 63) - 1)
    found = where(found == 0, 1, found)
    made.leaves_if((stamp[0] != 0) & (stamp[0] != found), 0)
    stamp[0] = found
    made.ends(count)
    return made
