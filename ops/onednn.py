"""Matrix products by oneDNN, through its C interface, which is the same in all of 3.x.

A product is prepared once, for arrays that lie in one way; a call then hands three addresses over.
The library is found by the wheel that brings it (`onednn-cpu-gomp`), or as the system's own."""

from __future__ import annotations

import ctypes
import importlib.metadata
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ostinato import settings

from .native import around, function_of, symbol
from .spec import DType
from .threads import LIMITS, address_of, has_pool, pool

_WHEEL, _FILE = "onednn-cpu-gomp", "libdnnl.so.3"
_TYPES = {"float16": 1, "bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6}
_FLOATS = ("float32", "bfloat16", "float16")
_KINDS = {(name,) * 3 for name in _FLOATS} | {(name, name, "float32") for name in _FLOATS}
_KINDS |= {("int8", "int8", "int32"), ("uint8", "int8", "int32")}
_SOURCE, _WEIGHTS, _RESULT, _SCRATCHPAD = 1, 33, 17, 80  # dnnl.h's names for operands
_CPU, _USER_SCRATCHPAD, _OPENMP = 1, 1, 2
_QUERY_NAME, _QUERY_SCRATCHPAD = 8, 136


class Stack(NamedTuple):
    """How matrices lie: extents and strides (in elements) of batches, rows, columns. What is
    repeated along a batch has a stride of 0 there.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Unable(Exception):
    """oneDNN has no good way to do this."""


class _Version(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("major", "minor", "patch")),
        ("hash", ctypes.c_char_p),
        ("threads", ctypes.c_uint),
        ("gpu", ctypes.c_uint),
    )


class _Argument(ctypes.Structure):
    _fields_ = (("which", ctypes.c_int), ("memory", ctypes.c_void_p))


@lru_cache(1)
def library() -> Any:
    """oneDNN, or why there is none as a string."""
    if settings.onednn == "off":
        return "OSTINATO_ONEDNN is off"
    if not has_pool():
        return "there is no libgomp (Debian: libgomp1), whose threads it would use"
    try:
        found = ctypes.CDLL(settings.onednn or _path())
        found.dnnl_version.restype = ctypes.POINTER(_Version)
    except (OSError, AttributeError) as error:
        return f"no {_FILE}: pip install {_WHEEL} ({error})"
    version = found.dnnl_version().contents
    if version.major != 3:
        return f"{_FILE} is version {version.major}.{version.minor}; needed 3.x"
    if version.threads != _OPENMP:
        return f"{_FILE} was built with other threads than OpenMP's: pip install {_WHEEL}"
    found.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    found.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
    return found


def _path() -> str:
    """Where the wheel put it; else its name, for the system to find."""
    try:
        files = importlib.metadata.files(_WHEEL) or ()
    except importlib.metadata.PackageNotFoundError:
        return _FILE
    return next((str(f.locate()) for f in files if f.name == _FILE), _FILE)


def in_words() -> str:
    """The library and its version, or why there is none."""
    found = library()
    if isinstance(found, str):
        return found
    v = found.dnnl_version().contents
    return f"oneDNN {v.major}.{v.minor}.{v.patch}"


# What processors need for operands narrower than their result: flags of dnnl_cpu_isa_t.
_NEEDS = {"int8": 0x48, "uint8": 0x48, "bfloat16": 0x80, "float16": 0x100}


def can_widen(a: DType, b: DType, out: DType) -> bool:
    """Whether products of these into that are made, exactly and fast, from what is narrow."""
    found = library()
    if isinstance(found, str) or (a.name, b.name, out.name) not in _KINDS or a == out:
        return False
    return bool(found.dnnl_get_effective_cpu_isa() & _NEEDS[a.name])


# -- objects of the library ----------------------------------------------------------------
class _Owner:
    """Makes the library's objects, and destroys them together."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.made: list[tuple[str, ctypes.c_void_p]] = []

    def make(self, kind: str, function: str, *args: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if status := getattr(self.library, function)(ctypes.byref(handle), *args):
            raise Unable(f"{function}: status {status}")
        self.made.append((kind, handle))
        return handle

    def destroy(self) -> None:
        for kind, handle in reversed(self.made):
            getattr(self.library, f"dnnl_{kind}_destroy")(handle)
        self.made.clear()

    def descriptor(self, stack: Stack) -> ctypes.c_void_p:
        n = len(stack.shape)
        pairs = list(zip(stack.shape, stack.strides, strict=True))
        shape = [1 if step == 0 and d < n - 2 else size for d, (size, step) in enumerate(pairs)]
        strides = _plain(shape, [step for _, step in pairs])
        return self.make(
            "memory_desc",
            "dnnl_memory_desc_create_with_strides",
            n,
            (ctypes.c_int64 * n)(*shape),
            _TYPES[stack.dtype.name],
            (ctypes.c_int64 * n)(*strides),
        )

    def memory(self, descriptor: Any, address: int) -> ctypes.c_void_p:
        return self.make(
            "memory", "dnnl_memory_create", descriptor, _engine(), ctypes.c_void_p(address)
        )


def _plain(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Strides with those of axes of one element as they would be in order."""
    made = list(strides)
    for d in reversed(range(len(shape))):
        if shape[d] == 1:
            inner = [(made[e] * shape[e]) for e in range(d + 1, len(shape))]
            made[d] = max(inner, default=1)
    return made


@lru_cache(1)
def _engine() -> ctypes.c_void_p:
    return _Owner(library()).make("engine", "dnnl_engine_create", _CPU, ctypes.c_size_t(0))


@lru_cache(1)
def _stream() -> ctypes.c_void_p:
    return _Owner(library()).make("stream", "dnnl_stream_create", _engine(), 1)


@contextmanager
def _team(threads: int) -> Iterator[None]:
    """Primitives are made for as many threads as OpenMP would give the caller."""
    most = ctypes.CFUNCTYPE(ctypes.c_int)(pool()["omp_get_max_threads"])
    limit = ctypes.CFUNCTYPE(None, ctypes.c_int)(pool()["omp_set_num_threads"])
    before = most()
    limit(threads)
    try:
        yield
    finally:
        limit(before)


# -- products ------------------------------------------------------------------------------
def onednn_product(
    a: Stack, b: Stack, out: Stack, turned: bool, threads: int, packed: bool, quick: bool
) -> Callable[..., None]:
    """The function of three arrays that lie so; `Unable` if oneDNN cannot do it well.

    turned: the function is called with b, a, out. packed: by the algorithm that packs both
    operands. quick: not worth letting other Python threads run meanwhile."""
    found = library()
    if isinstance(found, str):
        raise Unable(found)
    if (a.dtype.name, b.dtype.name, out.dtype.name) not in _KINDS:
        raise Unable("these dtypes")
    owner = _Owner(found)
    try:
        with _team(threads):
            primitive, memories, pad = _prepare(owner, (a, b, out), packed)
    except Unable:
        owner.destroy()
        raise
    which = (_SOURCE, _WEIGHTS, _RESULT, _SCRATCHPAD)
    arguments = (_Argument * 4)(*(_Argument(w, m) for w, m in zip(which, memories, strict=True)))
    facts = [1, 0 if quick else 1, 0, threads, primitive.value, _stream().value, 4]
    given = [memories[k] for k in ((1, 0, 2) if turned else (0, 1, 2))]
    facts += [ctypes.addressof(arguments), *(m.value for m in given)]
    about = np.array(facts, np.int64)
    weakref.finalize(about, _release, owner, arguments, pad)
    return function_of(_text(3), about)


def _release(owner: _Owner, *kept: Any) -> None:
    owner.destroy()


def _prepare(
    owner: _Owner, stacks: Sequence[Stack], packed: bool
) -> tuple[ctypes.c_void_p, list[ctypes.c_void_p], Any]:
    """The primitive, its memories, and the room that it works in."""
    found = owner.library
    attributes = owner.make("primitive_attr", "dnnl_primitive_attr_create")
    found.dnnl_primitive_attr_set_scratchpad_mode(attributes, _USER_SCRATCHPAD)
    forms = [owner.descriptor(s) for s in stacks]
    made = _algorithm(owner, forms, attributes, "gemm" if packed else "")
    if made is None:
        raise Unable("only the reference implementation can")
    primitive = owner.make("primitive", "dnnl_primitive_create", made)
    form = ctypes.c_void_p(found.dnnl_primitive_desc_query_md(made, _QUERY_SCRATCHPAD, 0))
    pad = np.empty(found.dnnl_memory_desc_get_size(form) + 64, np.uint8)
    memories = [owner.memory(f, 0) for f in forms]
    memories.append(owner.memory(form, pad.ctypes.data + -pad.ctypes.data % 64))
    return primitive, memories, pad


def _algorithm(
    owner: _Owner, forms: Sequence[Any], attributes: Any, wanted: str
) -> ctypes.c_void_p | None:
    """The library's first choice among the algorithms whose name begins so; none is a last resort."""
    found = owner.library
    given = (_engine(), forms[0], forms[1], None, forms[2], attributes)
    made = owner.make("primitive_desc", "dnnl_matmul_primitive_desc_create", *given)
    name = ctypes.c_char_p()
    while not found.dnnl_primitive_desc_query(made, _QUERY_NAME, 0, ctypes.byref(name)):
        said = (name.value or b"").decode()
        if "ref" not in said and said.startswith(wanted):
            return made
        if found.dnnl_primitive_desc_next_impl(made):
            break
    return None


# -- machine code --------------------------------------------------------------------------
@lru_cache(8)
def _text(many: int) -> str:
    """Facts: turns, threads, status, threads of the library, primitive, stream, count of arguments,
    arguments, and the memories that take the arrays' addresses.
    """
    for name in ("dnnl_memory_set_data_handle", "dnnl_primitive_execute"):
        symbol(name, address_of(library(), name))
    for name in LIMITS:
        symbol(name, pool()[name])
    check_symbols()
    facts = ("status", "team", "primitive", "stream", "count", "arguments")
    code = [
        "declare i32 @dnnl_memory_set_data_handle(ptr, ptr)",
        "declare i32 @dnnl_primitive_execute(ptr, ptr, i32, ptr)",
        "declare i32 @omp_get_max_threads()",
        "declare void @omp_set_num_threads(i32)",
        "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {",
    ]
    for k, fact in enumerate(facts, 2):
        code.append(f"  %{fact}_at = getelementptr i64, ptr %meta, i64 {k}")
        code.append(f"  %{fact} = load i64, ptr %{fact}_at")
    code += [f"  %{x}_p = inttoptr i64 %{x} to ptr" for x in ("primitive", "stream", "arguments")]
    for k in range(many):
        code += [
            f"  %memory{k}_at = getelementptr ptr, ptr %meta, i64 {2 + len(facts) + k}",
            f"  %memory{k} = load ptr, ptr %memory{k}_at",
            f"  %array{k}_at = getelementptr ptr, ptr %data, i64 {k}",
            f"  %array{k} = load ptr, ptr %array{k}_at",
            f"  %set{k} = call i32 @dnnl_memory_set_data_handle(ptr %memory{k}, ptr %array{k})",
        ]
    return "\n".join([*code, _REST, CHECKED, around(many, "shared")])


def check_symbols() -> None:
    """What `CHECKED` calls."""
    symbol("Py_DecRef", address_of(ctypes.pythonapi, "Py_DecRef"))
    symbol("memory_error", id(MemoryError))


_REST = """
  %before = call i32 @omp_get_max_threads()
  %team32 = trunc i64 %team to i32
  %count32 = trunc i64 %count to i32
  call void @omp_set_num_threads(i32 %team32)
  %done = call i32 @dnnl_primitive_execute(ptr %primitive_p, ptr %stream_p, i32 %count32, ptr %arguments_p)
  call void @omp_set_num_threads(i32 %before)
  %done64 = sext i32 %done to i64
  store i64 %done64, ptr %status_at
  ret void
}
"""

# A `run` that looks whether the library said, in the first of its facts, that it could not.
CHECKED = """
declare void @Py_DecRef(ptr)
@memory_error = external global i8
@no_memory = private constant [33 x i8] c"oneDNN had no memory to multiply\\00"

define internal void @finish(ptr %data, ptr %meta) {
  ret void
}

define ptr @run(ptr %self, ptr %args, i64 %given) {
  %made = call ptr @shared(ptr %self, ptr %args, i64 %given)
  %wrong = icmp eq ptr %made, null
  br i1 %wrong, label %end, label %look
look:
  %m = getelementptr i8, ptr %self, i64 16
  %meta = load ptr, ptr %m
  %status_at = getelementptr i64, ptr %meta, i64 2
  %status = load i64, ptr %status_at
  %failed = icmp ne i64 %status, 0
  br i1 %failed, label %fail, label %end
fail:
  store i64 0, ptr %status_at
  call void @Py_DecRef(ptr %made)
  call void @PyErr_SetString(ptr @memory_error, ptr @no_memory)
  ret ptr null
end:
  ret ptr %made
}
"""
