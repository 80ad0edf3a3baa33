"""NumPy's memory between pages that nobody may touch: a read or write beside an array ends the process.

The end of an array, rounded up to 16 bytes, is the end of a page; every other array begins where a page
begins. Memory that was freed is gone. So are arenas, results and operands of this process's main thread,
as they are NumPy's arrays too."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import llvmlite.binding as llvm
import numpy as np

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Handler(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", ctypes.c_void_p),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", _FREE),
    )


_areas: dict[int, tuple[int, int, int]] = {}  # of each array: its pages, their bytes, its own
_KEPT = 1 << 16
_gone = (ctypes.c_int64 * (1 + _KEPT))()  # how many, and where the last ones were
_taken = [0]  # how many of them are unmapped
_NOTE = """
define void @note(ptr %gone, ptr %at, i64 %size) {
entry:
  %none = icmp eq ptr %at, null
  br i1 %none, label %done, label %some
some:
  %count = load i64, ptr %gone
  %more = add i64 %count, 1
  store i64 %more, ptr %gone
  %nth = and i64 %more, 65535
  %after = add i64 %nth, 1
  %place = getelementptr i64, ptr %gone, i64 %after
  store ptr %at, ptr %place
  br label %done
done:
  ret void
}
"""  # what is freed goes with the next that is asked for: while an error is on its way, no Python may run


def _noting() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_NOTE), machine)
    engine.finalize_object()
    return engine


def _malloc(ctx: Any, size: int) -> int | None:
    while _taken[0] < _gone[0]:
        _taken[0] += 1
        _free(_gone[1 + _taken[0] % _KEPT])
    room = -(-max(size, 1) // _PAGE) * _PAGE
    base = _libc.mmap(None, room + 2 * _PAGE, 0, 0x22, -1, 0)
    if base in (None, ctypes.c_void_p(-1).value):
        return None
    first = int(base) + _PAGE
    _libc.mprotect(first, room, mmap.PROT_READ | mmap.PROT_WRITE)
    at = first + (room - -(-size // 16) * 16 if len(_areas) % 2 else 0)
    _areas[at] = int(base), room + 2 * _PAGE, size
    ctypes.memset(at, 0xA5, size)  # what nobody has written shows
    return at


def _calloc(ctx: Any, count: int, each: int) -> int | None:
    at = _malloc(ctx, count * each)
    if at is not None:
        ctypes.memset(at, 0, count * each)
    return at


def _free(at: int) -> None:
    _libc.munmap(*_areas.pop(at)[:2])


def _realloc(ctx: Any, at: int | None, size: int) -> int | None:
    made = _malloc(ctx, size)
    if made is not None and at is not None:
        ctypes.memmove(made, at, min(size, _areas[at][2]))
        _free(at)
    return made


for function in (_malloc, _calloc, _free, _realloc):  # no part of a trace that they interrupt
    function.__code__ = function.__code__.replace(co_filename=np.__file__)
_engine = _noting()
_handler = _Handler(
    *(b"guarded", 1, ctypes.addressof(_gone), _MALLOC(_malloc), _CALLOC(_calloc)),
    *(_REALLOC(_realloc), _FREE(_engine.get_function_address("note"))),
)


def install() -> None:
    """From now on, in this thread."""
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(np._core._multiarray_umath._ARRAY_API, None)
    put = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[304]  # PyDataMem_SetHandler
    ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(put)(
        capsule(ctypes.addressof(_handler), b"mem_handler", None)
    )


def at_the_edge() -> None:
    """Arenas and results without room around them."""
    from ostinato.ops.core import spec
    from ostinato.ops.cpu.cpu_device import Cpu
    from ostinato.runtime import engine

    def bare(shape: Any, dtype: Any) -> Any:
        return np.empty(tuple(shape), dtype)

    spec.empty_aligned = engine.empty_aligned = bare  # type: ignore[attr-defined]
    Cpu.empty = lambda self, shape, dtype: bare(shape, dtype)  # type: ignore[method-assign]
    Cpu.arena = lambda self, size: np.empty(size, np.uint8)  # type: ignore[method-assign]
