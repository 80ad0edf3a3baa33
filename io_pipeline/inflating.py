"""Compressed chunks by machine code: read, inflated, put where they are wanted in an array; many with one call,
in which Python and its lock have no part.

Codecs are the libraries' own: libdeflate, where it is there (`pip install deflate`), which takes half of
zlib's time; zlib; and those that numcodecs brings, for Zstandard, LZ4 and Blosc. Whatever is not plainly good
(a damaged chunk, one that is not there) is left to those who read it by themselves, and know what to say."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.layout import Box
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import CodeAddress, address_of, once, symbol

Index = tuple[int, ...]
Row = list[int]  # what tells of a chunk: FIXED, and how much of it is wanted along each axis
DIMENSIONS = 8  # at most
FIXED = ("path", "file", "offset", "bytes", "out", "answer")  # of a chunk, before its extents
HOST = ("open", "read", "close", "pread")
SHUFFLED = (
    0,
    2,
    4,
    8,
)  # bytes of numbers of which the first bytes, the second bytes, ... may lie together
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class Codec(NamedTuple):
    """A function of machine code."""

    name: str
    code: CodeAddress


# -- libraries ---------------------------------------------------------------------------------
def _library(module: str, *names: str) -> Any:
    """The library of an extension module, if it offers these functions."""
    try:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            return None
        found = ctypes.CDLL(spec.origin)
        for name in names:
            getattr(found, name)
    except (ImportError, ValueError, OSError, AttributeError):
        return None
    return found


@once
def libdeflate() -> Any:
    """The package's, or the system's; None if there is none."""
    names = "libdeflate_zlib_decompress_ex", "libdeflate_gzip_decompress_ex"
    found = _library("deflate._deflate", *names)
    if found is not None:
        return found
    try:
        found = ctypes.CDLL("libdeflate.so.0")
        return found if all(hasattr(found, n) for n in names) else None
    except OSError:
        return None


_ALL_USED = """  %good = icmp eq i32 %said, 0
  %u = load i64, ptr %used
  %m = load i64, ptr %made
  %all = icmp eq i64 %u, %n
  %right = icmp eq i64 %m, %size
  %a = and i1 %good, %all
  %b = and i1 %a, %right
  %bad = xor i1 %b, true
  %answer = zext i1 %bad to i64
  ret i64 %answer
}
"""  # no error, all of the input read, and as much made as was to be
_BY_LIBDEFLATE = (
    """
declare i32 @ostinato_libdeflate_KIND(ptr, ptr, i64, ptr, i64, ptr, ptr) nonlazybind
define i64 @run(ptr %context, ptr %in, i64 %n, ptr %out, i64 %size) nounwind {
  %used = alloca i64
  %made = alloca i64
  store i64 0, ptr %used
  store i64 0, ptr %made
  %said = call i32 @ostinato_libdeflate_KIND(ptr %context, ptr %in, i64 %n, ptr %out, i64 %size,
    ptr %used, ptr %made)
"""
    + _ALL_USED
)
_BY_ZLIB = (
    """
declare i32 @ostinato_uncompress2(ptr, ptr, ptr, ptr) nonlazybind
define i64 @run(ptr %context, ptr %in, i64 %n, ptr %out, i64 %size) nounwind {
  %used = alloca i64
  %made = alloca i64
  store i64 %n, ptr %used
  store i64 %size, ptr %made
  %said = call i32 @ostinato_uncompress2(ptr %out, ptr %made, ptr %in, ptr %used)
"""
    + _ALL_USED
)
_BY_ZSTD = """
declare i64 @ostinato_zstd(ptr, i64, ptr, i64) nonlazybind
define i64 @run(ptr %context, ptr %in, i64 %n, ptr %out, i64 %size) nounwind {
  %made = call i64 @ostinato_zstd(ptr %out, i64 %size, ptr %in, i64 %n)
  %bad = icmp ne i64 %made, %size
  %answer = zext i1 %bad to i64
  ret i64 %answer
}
"""
_BY_LZ4 = """
declare i32 @ostinato_lz4(ptr, ptr, i32, i32) nonlazybind
define i64 @run(ptr %context, ptr %in, i64 %n, ptr %out, i64 %size) nounwind {
entry:
  %long = icmp sgt i64 %n, 4
  %short = icmp slt i64 %size, 2147483647
  %may = and i1 %long, %short
  br i1 %may, label %look, label %not
look:
  %said = load i32, ptr %in, align 1
  %size32 = trunc i64 %size to i32
  %same = icmp eq i32 %said, %size32
  br i1 %same, label %make, label %not
make:
  %from = getelementptr i8, ptr %in, i64 4
  %left = sub i64 %n, 4
  %left32 = trunc i64 %left to i32
  %made = call i32 @ostinato_lz4(ptr %from, ptr %out, i32 %left32, i32 %size32)
  %bad = icmp ne i32 %made, %size32
  %answer = zext i1 %bad to i64
  ret i64 %answer
not:
  ret i64 1
}
"""
_BY_BLOSC = """
declare i32 @ostinato_blosc(ptr, ptr, i64, i32) nonlazybind
define i64 @run(ptr %context, ptr %in, i64 %n, ptr %out, i64 %size) nounwind {
entry:
  %long = icmp sge i64 %n, 16
  br i1 %long, label %look, label %not
look:
  %sp = getelementptr i8, ptr %in, i64 4
  %s32 = load i32, ptr %sp, align 1
  %s = zext i32 %s32 to i64
  %np = getelementptr i8, ptr %in, i64 12
  %n32 = load i32, ptr %np, align 1
  %nn = zext i32 %n32 to i64
  %same0 = icmp eq i64 %s, %size
  %same1 = icmp eq i64 %nn, %n
  %same = and i1 %same0, %same1
  br i1 %same, label %make, label %not
make:
  %made = call i32 @ostinato_blosc(ptr %in, ptr %out, i64 %size, i32 1)
  %made64 = sext i32 %made to i64
  %bad = icmp ne i64 %made64, %size
  %answer = zext i1 %bad to i64
  ret i64 %answer
not:
  ret i64 1
}
"""
_OTHERS = {
    "zstd": ("numcodecs.zstd", "ZSTD_decompress", _BY_ZSTD),
    "lz4": ("numcodecs.lz4", "LZ4_decompress_safe", _BY_LZ4),
    "blosc": ("numcodecs.blosc", "blosc_decompress_ctx", _BY_BLOSC),
}


@once
def codec(name: str) -> Codec | None:
    """Of a codec's name, as inflate.py has it; None if there is no machine code for it here."""
    if llvm.why_not():
        return None
    if name in ("zlib", "gzip"):
        library = libdeflate()
        if library is not None:
            called = f"libdeflate_{name}_decompress_ex"
            symbol(f"ostinato_libdeflate_{name}", address_of(library, called))
            return Codec(name, llvm.linked(_BY_LIBDEFLATE.replace("KIND", name)))
        library = _library("zlib", "uncompress2") if name == "zlib" and zlib else None
        if library is None:
            return None
        symbol("ostinato_uncompress2", address_of(library, "uncompress2"))
        return Codec(name, llvm.linked(_BY_ZLIB))
    if name not in _OTHERS:
        return None
    module, called, text = _OTHERS[name]
    library = _library(module, called)
    if library is None:
        return None
    symbol(f"ostinato_{name}", address_of(library, called))
    return Codec(name, llvm.linked(text))


# -- a thread's memory -------------------------------------------------------------------------
class _Decompressor:
    """Libdeflate's own memory."""

    def __init__(self, library: Any) -> None:
        library.libdeflate_alloc_decompressor.restype = ctypes.c_void_p
        self.free = library.libdeflate_free_decompressor
        self.free.argtypes, self.free.restype = [ctypes.c_void_p], None
        self.at = library.libdeflate_alloc_decompressor() or 0

    def __del__(self) -> None:
        if self.at:
            self.free(self.at)


class _Own(threading.local):
    """Memory of each thread, and a decompressor."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)
        self._decompressor: _Decompressor | None = None

    def room(self, size: int) -> np.ndarray[Any, Any]:
        """At least so many bytes, to be held as long as they are used."""
        if len(self.memory) < size:
            self.memory = np.empty(size, np.uint8)
        return self.memory

    def context(self) -> int:
        if self._decompressor is None:
            library = libdeflate()
            if library is None:
                return 0
            self._decompressor = _Decompressor(library)
        return self._decompressor.at


_own = _Own()


# -- chunks ------------------------------------------------------------------------------------
class Scatter:
    """What brings chunks of one form to their places in an array."""

    def __init__(
        self, codec: Codec, chunk: Sequence[int], out: np.ndarray[Any, Any], shuffled: int = 0
    ) -> None:
        self.codec, self.ndim = codec, len(chunk)
        self.size = int(np.prod(chunk)) * out.itemsize
        strides = np.cumprod([out.itemsize, *chunk[:0:-1]])[::-1]
        self.about = np.array([self.size, *strides, *out.strides], np.int64)
        self.function = _function(codec.code, self.ndim, out.itemsize, shuffled)
        self.shuffled = shuffled

    def left(self, chunks: Sequence[Index], rows: Sequence[Row | None], most: int) -> list[Index]:
        """Of chunks that rows tell of, those that are left to be read; so are all that have none. None
        has more than so many bytes in its file."""
        told = np.array([row for row in rows if row is not None], np.int64)
        if not len(told):
            return list(chunks)
        self._bring(told, most)
        answers = iter(told[:, FIXED.index("answer")].tolist())
        return [i for i, row in zip(chunks, rows, strict=True) if row is None or not next(answers)]

    def _bring(self, chunks: np.ndarray[Any, Any], most: int) -> None:
        """Fill in the answers of chunks."""
        two = self.size + 64
        room = _own.room(most + 64 + two * (2 if self.shuffled else 1))
        context = _context(self.codec)
        if context is None:
            return
        at = room.ctypes.data
        first = at + most + 64
        given = chunks.ctypes.data, len(chunks), self.about.ctypes.data
        self.function(context, *given, at, most, first, first + two)


class Inside:
    """Where chunks are in memory that holds a box of an array."""

    def __init__(
        self, chunk: Sequence[int], shape: Sequence[int], box: Box, out: np.ndarray[Any, Any]
    ) -> None:
        self.out, self.at = out, out.ctypes.data
        self.axes = list(zip(chunk, shape, box, out.strides, strict=True))

    def row(self, index: Index, path: int, file: int, offset: int, size: int) -> Row | None:
        """What tells of a chunk, as FIXED has it, and its extents; None if the box has not all of it. It is
        in a file of its own, or so many bytes of an open one."""
        at, extents = self.at, []
        for k, (n, end, (lo, hi), step) in zip(index, self.axes, strict=True):
            begin, stop = k * n, min((k + 1) * n, end)
            if begin < lo or stop > hi:
                return None
            at += (begin - lo) * step
            extents.append(stop - begin)
        return [path, file, offset, size, at, 0, *extents]


def can(chunk: Sequence[int], out: np.ndarray[Any, Any], shuffled: int = 0) -> bool:
    return (
        1 <= len(chunk) <= DIMENSIONS and shuffled in SHUFFLED and out.strides[-1] == out.itemsize
    )


def inflated(name: str, data: bytes, size: int) -> np.ndarray[Any, Any] | None:
    """The bytes of one chunk; None if it is not plainly good, or there is no machine code for it."""
    known = codec(name)
    if known is None:
        return None
    context = _context(known)
    if context is None:
        return None
    out = np.empty(size, np.uint8)
    call = _caller(known.code)
    return None if call(context, data, len(data), out.ctypes.data, size) else out


@once
def _caller(code: CodeAddress) -> Any:
    long, pointer = ctypes.c_ssize_t, ctypes.c_void_p
    return code.function(long, pointer, ctypes.c_char_p, long, pointer, long)


def _context(known: Codec) -> int | None:
    """What its function needs of a thread; None if there is no memory for it."""
    if not known.name.startswith(("zlib", "gzip")) or libdeflate() is None:
        return 0
    return _own.context() or None


def address(name: bytes) -> int:
    """Where a file's name lies, which ends with a zero."""
    found = ctypes.cast(ctypes.c_char_p(name), ctypes.c_void_p).value
    assert found is not None
    return found


@once
def _function(codec: CodeAddress, ndim: int, itemsize: int, shuffled: int) -> Any:
    host = ctypes.CDLL(None)
    for name in HOST:
        symbol(f"ostinato_{name}", address_of(host, name))
    long, pointer = ctypes.c_ssize_t, ctypes.c_void_p
    kinds = (pointer, pointer, long, pointer, pointer, long, pointer, pointer)
    call = llvm.linked(_text(ndim, itemsize, shuffled)).function(None, pointer, *kinds)
    return lambda *given: call(codec, *given)


def _text(ndim: int, itemsize: int, shuffled: int) -> str:
    """`run`: codec, context, chunks, how many, facts; memory for what is in a file, of so many bytes, and
    for what it becomes, and for its numbers once their bytes are together."""
    extents = len(FIXED)
    loads = "\n".join(
        f"  %{n}_p = getelementptr i64, ptr %chunk, i64 {k}\n  %{n} = load i64, ptr %{n}_p"
        for k, n in enumerate(FIXED[:-1])
    )
    facts = "\n".join(
        f"  %{n}{d}_p = getelementptr i64, ptr %about, i64 {1 + k * ndim + d}\n"
        f"  %{n}{d} = load i64, ptr %{n}{d}_p"
        for k, n in enumerate(("from", "to"))
        for d in range(ndim)
    )
    sides = "\n".join(
        f"  %e{d}_p = getelementptr i64, ptr %chunk, i64 {extents + d}\n  %e{d} = load i64, ptr %e{d}_p"
        for d in range(ndim)
    )
    together = ""
    if shuffled:
        moves = "\n".join(
            f"  %so{b} = mul i64 %count, {b}\n  %sk{b} = add i64 %so{b}, %u\n"
            f"  %sp{b} = getelementptr i8, ptr %made, i64 %sk{b}\n  %sv{b} = load i8, ptr %sp{b}\n"
            f"  %dk{b} = add i64 %uo, {b}\n  %dp{b} = getelementptr i8, ptr %numbers, i64 %dk{b}\n"
            f"  store i8 %sv{b}, ptr %dp{b}"
            for b in range(shuffled)
        )
        together = f"""
  %count = udiv i64 %size, {shuffled}
  br label %byte
byte:
  %u = phi i64 [0, %inflated], [%un, %byte]
  %uo = mul i64 %u, {shuffled}
{moves}
  %un = add nuw nsw i64 %u, 1
  %umore = icmp ult i64 %un, %count
  br i1 %umore, label %byte, label %scatter
"""
    else:
        together = "  br label %scatter"
    source = "%numbers" if shuffled else "%made"
    return f"""
declare i32 @ostinato_open(ptr, i32, ...) nonlazybind
declare i64 @ostinato_read(i32, ptr, i64) nonlazybind
declare i64 @ostinato_pread(i32, ptr, i64, i64) nonlazybind
declare i32 @ostinato_close(i32) nonlazybind
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @run(ptr %codec, ptr %context, ptr %chunks, i64 %n, ptr %about, ptr noalias %in, i64 %most,
    ptr noalias %made, ptr noalias %numbers) nounwind {{
entry:
  %size = load i64, ptr %about
{facts}
  br label %chunk_loop
chunk_loop:
  %i = phi i64 [0, %entry], [%in_next, %next]
  %io = mul i64 %i, {extents + ndim}
  %chunk = getelementptr i64, ptr %chunks, i64 %io
{loads}
{sides}
  %answer_p = getelementptr i64, ptr %chunk, i64 {FIXED.index("answer")}
  store i64 0, ptr %answer_p
  %has_path = icmp ne i64 %path, 0
  br i1 %has_path, label %own_file, label %part
own_file:
  %name = inttoptr i64 %path to ptr
  %handle = call i32 (ptr, i32, ...) @ostinato_open(ptr %name, i32 {_FLAGS}) nounwind
  %is_open = icmp sge i32 %handle, 0
  br i1 %is_open, label %opened, label %next
opened:
  %got = call i64 @ostinato_read(i32 %handle, ptr %in, i64 %most)
  %closed = call i32 @ostinato_close(i32 %handle)
  %some = icmp sgt i64 %got, 0
  %whole = icmp slt i64 %got, %most
  %right0 = and i1 %some, %whole
  br i1 %right0, label %read, label %next
part:
  %file32 = trunc i64 %file to i32
  %fits = icmp ule i64 %bytes, %most
  br i1 %fits, label %there, label %next
there:
  %got1 = call i64 @ostinato_pread(i32 %file32, ptr %in, i64 %bytes, i64 %offset)
  %right1 = icmp eq i64 %got1, %bytes
  br i1 %right1, label %read, label %next
read:
  %length = phi i64 [%got, %opened], [%bytes, %there]
  %said = call i64 %codec(ptr %context, ptr %in, i64 %length, ptr %made, i64 %size)
  %good = icmp eq i64 %said, 0
  br i1 %good, label %inflated, label %next
inflated:
{together}
scatter:
  %to = inttoptr i64 %out to ptr
{_loops(ndim, itemsize, source)}
  store i64 1, ptr %answer_p
  br label %next
next:
  %in_next = add i64 %i, 1
  %more = icmp slt i64 %in_next, %n
  br i1 %more, label %chunk_loop, label %end
end:
  ret void
}}
"""


def _loops(ndim: int, itemsize: int, source: str) -> str:
    """One loop in the other; rows of the last axis are copied in one piece."""
    lines = [f"  %row = mul i64 %e{ndim - 1}, {itemsize}"]
    a, b, before = source, "%to", "scatter"
    for d in range(ndim - 1):
        lines += [
            f"  br label %l{d}",
            f"l{d}:",
            f"  %k{d} = phi i64 [0, %{before}], [%k{d}n, %x{d}]",
            f"  %a{d}o = mul i64 %k{d}, %from{d}",
            f"  %a{d} = getelementptr i8, ptr {a}, i64 %a{d}o",
            f"  %b{d}o = mul i64 %k{d}, %to{d}",
            f"  %b{d} = getelementptr i8, ptr {b}, i64 %b{d}o",
        ]
        a, b, before = f"%a{d}", f"%b{d}", f"l{d}"
    lines.append(f"  call void @llvm.memcpy.p0.p0.i64(ptr {b}, ptr {a}, i64 %row, i1 false)")
    lines.append(f"  br label %{f'x{ndim - 2}' if ndim > 1 else 'stored'}")
    for d in reversed(range(ndim - 1)):
        lines += [
            f"x{d}:",
            f"  %k{d}n = add i64 %k{d}, 1",
            f"  %m{d} = icmp slt i64 %k{d}n, %e{d}",
            f"  br i1 %m{d}, label %l{d}, label %{f'x{d - 1}' if d else 'stored'}",
        ]
    return "\n".join([*lines, "stored:"])
