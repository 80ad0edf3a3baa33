"""Matrix products by oneDNN, through its C interface, which is the same in all of 3.x.

A product is prepared once, for arrays that lie in one way; a call then hands three addresses over.
The library is found by the wheel that brings it (`onednn-cpu-gomp`), or as the system's own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.signals import clear, once_gone
from ostinato.ops.core.spec import DType
from ostinato.ops.cpu.jit.code import address_of, once, symbol
from ostinato.ops.cpu.jit.llvm import function_of
from ostinato.ops.cpu.jit.parallel import around
from ostinato.ops.cpu.threads import OF_POOL, has_pool, pool
from ostinato.ops.jit.stacks import Stack

from ostinato import settings

_WHEEL, _FILE = "onednn-cpu-gomp", "libdnnl.so.3"
_TYPES = {"float16": 1, "bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6}
_FLOATS = ("float32", "bfloat16", "float16")
_KINDS = {(name,) * 3 for name in _FLOATS} | {(name, name, "float32") for name in _FLOATS}
_KINDS |= {("int8", "int8", "int32"), ("uint8", "int8", "int32")}
_SOURCE, _WEIGHTS, _RESULT, _SCRATCHPAD = 1, 33, 17, 80  # dnnl.h's names for operands
_CPU, _USER_SCRATCHPAD, _OPENMP = 1, 1, 2
_QUERY_NAME, _QUERY_WEIGHTS, _QUERY_SCRATCHPAD = 8, 131, 136
# Algorithms that keep to the stack; that of `dnnl_sgemm`, "gemm:jit", takes other memory for it.
_ON_STACK = "brg"
_ANY, _FROM, _TO = 1, 1, 17  # the form that is best; operands of a reorder


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


@once
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
    import importlib.metadata  # which takes long: with it comes what reads mails

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


@once
def _engine() -> ctypes.c_void_p:
    return _Owner(library()).make("engine", "dnnl_engine_create", _CPU, ctypes.c_size_t(0))


@once
def _stream() -> ctypes.c_void_p:
    return _Owner(library()).make("stream", "dnnl_stream_create", _engine(), 1)


@contextmanager
def _team(threads: int) -> Iterator[None]:
    """Primitives are made for as many threads as OpenMP would give the caller."""
    most, limit = (pool()[name] for name in OF_POOL)
    assert most is not None
    assert limit is not None
    most, limit = most.function(ctypes.c_int), limit.function(None, ctypes.c_int)
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
    with _owner(a, b, out) as owner, _team(threads):
        forms = [owner.descriptor(s) for s in (a, b, out)]
        made = _algorithm(owner, forms, "gemm" if packed else "")
        memories = [owner.memory(f, 0) for f in forms]
        given = [memories[k] for k in ((1, 0, 2) if turned else (0, 1, 2))]
        return _function(owner, made, memories, given, threads, quick)


@contextmanager
def _owner(a: Stack, b: Stack, out: Stack) -> Iterator[_Owner]:
    """What a product of these is made of."""
    found = library()
    if isinstance(found, str):
        raise Unable(found)
    if (a.dtype.name, b.dtype.name, out.dtype.name) not in _KINDS:
        raise Unable("these dtypes")
    clear()
    owner = _Owner(found)
    try:
        yield owner
    except BaseException:
        owner.destroy()
        raise


def _function(
    owner: _Owner,
    made: ctypes.c_void_p,
    memories: Sequence[ctypes.c_void_p],
    given: Sequence[ctypes.c_void_p],
    threads: int,
    quick: bool,
    *kept: Any,
) -> Callable[..., None]:
    """A function that multiplies these memories, of arrays whose addresses the `given` ones take."""
    found = owner.library
    primitive = owner.make("primitive", "dnnl_primitive_create", made)
    form = ctypes.c_void_p(found.dnnl_primitive_desc_query_md(made, _QUERY_SCRATCHPAD, 0))
    pad, start = _room(owner, form)
    which = (_SOURCE, _WEIGHTS, _RESULT, _SCRATCHPAD)
    all_of_them = (*memories, owner.memory(form, start))
    arguments = (_Argument * 4)(*(_Argument(w, m) for w, m in zip(which, all_of_them, strict=True)))
    facts = [1, 0 if quick else 1, 0, threads, primitive.value, _stream().value, 4]
    facts += [ctypes.addressof(arguments), *(m.value for m in given)]
    about = np.array(facts, np.int64)
    once_gone(about, owner.destroy)
    text = _text(len(given), not _name(owner, made).startswith(_ON_STACK))
    return function_of(text, about, (arguments, pad, *kept))


def _room(owner: _Owner, form: ctypes.c_void_p) -> tuple[Any, int]:
    """Memory for what lies so, and where it begins."""
    room = np.empty(owner.library.dnnl_memory_desc_get_size(form) + 64, np.uint8)
    return room, room.ctypes.data + -room.ctypes.data % 64


def _algorithm(owner: _Owner, forms: Sequence[Any], wanted: str) -> ctypes.c_void_p:
    """The library's first choice among the algorithms whose name begins so; none is a last resort."""
    found = owner.library
    attributes = owner.make("primitive_attr", "dnnl_primitive_attr_create")
    found.dnnl_primitive_attr_set_scratchpad_mode(attributes, _USER_SCRATCHPAD)
    given = (_engine(), forms[0], forms[1], None, forms[2], attributes)
    made = owner.make("primitive_desc", "dnnl_matmul_primitive_desc_create", *given)
    while said := _name(owner, made):
        if "ref" not in said and said.startswith(wanted):
            return made
        if found.dnnl_primitive_desc_next_impl(made):
            break
    raise Unable("only the reference implementation can")


def _name(owner: _Owner, made: ctypes.c_void_p) -> str:
    """Of an algorithm."""
    name = ctypes.c_char_p()
    owner.library.dnnl_primitive_desc_query(made, _QUERY_NAME, 0, ctypes.byref(name))
    return (name.value or b"").decode()


# -- products with weights that stay --------------------------------------------------------
def with_weights(
    a: Stack, b: Stack, out: Stack, threads: int, quick: bool, weights: Any
) -> tuple[Callable[..., None], int]:
    """A function like `onednn_product`'s that has the right matrix as it is now, in the form that
    the library likes best, and does not look at its second array; and the bytes that it keeps. To
    the bit it gives what the other one does: `Unable` if it would not."""
    with _owner(a, b, out) as owner, _team(threads):
        found, n = owner.library, len(b.shape)
        forms = [owner.descriptor(s) for s in (a, b, out)]
        shape, kind = (ctypes.c_int64 * n)(*b.shape), _TYPES[b.dtype.name]
        anyhow = owner.make("memory_desc", "dnnl_memory_desc_create_with_tag", n, shape, kind, _ANY)
        made = _algorithm(owner, [forms[0], anyhow, forms[2]], "")
        best = ctypes.c_void_p(found.dnnl_primitive_desc_query_md(made, _QUERY_WEIGHTS, 0))
        if found.dnnl_memory_desc_equal(best, forms[1]):
            raise Unable("they lie best as they are")
        room, start = _room(owner, best)
        packed, unused = owner.memory(best, start), owner.memory(forms[1], 0)
        _reorder(owner, forms[1], weights, best, packed)
        left, result = (owner.memory(f, 0) for f in (forms[0], forms[2]))
        memories, given = (left, packed, result), (left, unused, result)
        function = _function(owner, made, memories, given, threads, quick, room)
    plain = onednn_product(a, b, out, False, threads, False, quick)
    if not _alike(plain, function, a, out, weights):
        raise Unable("other bits")
    return function, room.nbytes


def _reorder(owner: _Owner, form: Any, weights: Any, best: Any, packed: ctypes.c_void_p) -> None:
    engine = _engine()
    made = owner.make(
        "primitive_desc", "dnnl_reorder_primitive_desc_create", form, engine, best, engine, None
    )
    primitive = owner.make("primitive", "dnnl_primitive_create", made)
    source = owner.memory(form, weights.ctypes.data)
    arguments = (_Argument * 2)(_Argument(_FROM, source), _Argument(_TO, packed))
    if status := owner.library.dnnl_primitive_execute(primitive, _stream(), 2, arguments):
        raise Unable(f"dnnl_primitive_execute: status {status}")


def _alike(f: Callable[..., None], g: Callable[..., None], a: Stack, out: Stack, b: Any) -> bool:
    """Whether two functions add up in the same order: whether they make the same of any numbers."""
    left = _some(a)
    first, second = _some(out), _some(out)
    f(left, b, first)
    g(left, b, second)
    return first.tobytes() == second.tobytes()


def _some(lies: Stack) -> Any:
    """An array that lies so, with numbers of different sizes and signs."""
    size = 1 + sum((n - 1) * s for n, s in zip(lies.shape, lies.strides, strict=True))
    rng, whole = np.random.default_rng(0), lies.dtype.kind in "iu"
    numbers = rng.integers(0, 100, size) if whole else rng.standard_normal(size, np.float32)
    steps = [s * lies.dtype.itemsize for s in lies.strides]
    return np.lib.stride_tricks.as_strided(numbers.astype(lies.dtype), lies.shape, steps)


# -- machine code --------------------------------------------------------------------------
@lru_cache(8)
def _text(many: int, held: bool) -> str:
    """Facts: turns, threads, status, threads of the library, primitive, stream, count of arguments,
    arguments, and the memories that take the arrays' addresses.
    """
    for name in ("dnnl_memory_set_data_handle", "dnnl_primitive_execute"):
        symbol(name, address_of(library(), name))
    for name in OF_POOL:
        symbol(name, pool()[name])
    check_symbols()
    facts = ("status", "team", "primitive", "stream", "count", "arguments")
    code = [
        "declare i32 @dnnl_memory_set_data_handle(ptr, ptr)",
        "declare i32 @dnnl_primitive_execute(ptr, ptr, i32, ptr)",
        "declare i32 @omp_get_max_threads()",
        "declare void @omp_set_num_threads(i32)",
        "declare void @gather_threads(i64)",
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
    return "\n".join([*code, _REST, CHECKED, around(many, "shared", held)])


def check_symbols() -> None:
    """What `CHECKED` calls."""
    symbol("Py_DecRef", address_of(ctypes.pythonapi, "Py_DecRef"))
    symbol("memory_error", MemoryError)


_REST = """
  %before = call i32 @omp_get_max_threads()
  %team32 = trunc i64 %team to i32
  %count32 = trunc i64 %count to i32
  call void @gather_threads(i64 %team)
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
