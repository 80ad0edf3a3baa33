"""Matrix products by oneDNN, through its C interface, which is the same in all of 3.x.

A product is prepared once, for arrays that lie in one way, in blocks of the result that depend on extents
only; a call then hands addresses over. Each block is a product in one thread, and the threads of kernels
share them: the library begins none, for which it would wait.
The library is found by the wheel that brings it (`onednn-cpu-gomp`), or as the system's own."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.signals import clear, once_gone
from ostinato.ops.core.spec import DType
from ostinato.ops.cpu.jit.code import CodeAddress, address_of, once, symbol
from ostinato.ops.cpu.jit.emitter import Code
from ostinato.ops.cpu.jit.llvm import function_of
from ostinato.ops.cpu.jit.parallel import TABLES, around
from ostinato.ops.jit.stacks import Stack, blocks_of, most_square

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
ON_STACK = ("brg", "jit:")
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


def describe_library() -> str:
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


def multiplies_squares() -> bool:
    """Whether the library has asked the system for the tiles of AMX for this process, and got them."""
    found = library()
    return not isinstance(found, str) and bool(found.dnnl_get_effective_cpu_isa() & 0x800)


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
        """Each once, whoever else destroys them at the same time."""
        with suppress(IndexError):
            while True:
                kind, handle = self.made.pop()
                getattr(self.library, f"dnnl_{kind}_destroy")(handle)

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


_OF_THREADS = ("omp_get_max_threads", "omp_set_num_threads")


def omp() -> dict[str, CodeAddress]:
    """Return the functions that say, and set, how many threads a thread that calls the library may
    have."""
    return {name: address_of(library(), name) for name in _OF_THREADS}


@contextmanager
def _alone() -> Iterator[None]:
    """Primitives are made for as many threads as OpenMP would give the caller: one."""
    most, limit = omp().values()
    before = most.function(ctypes.c_int)()
    limit.function(None, ctypes.c_int)(1)
    try:
        yield
    finally:
        limit.function(None, ctypes.c_int)(before)


# -- blocks --------------------------------------------------------------------------------
class _Block(NamedTuple):
    """A part of a product: how its operands lie, and at which byte of theirs they begin."""

    operands: Sequence[Stack]
    begin: tuple[int, ...]


def _blocks(a: Stack, b: Stack, out: Stack) -> list[_Block]:
    k, steps, found = a.shape[-1], list(out.shape), list[_Block]()
    count = blocks_of(out, k)
    if len(steps) > 2:
        lead = min(count, steps[0])
        steps[0], count = -(-steps[0] // lead), count // lead
    steps[-2:] = most_square(steps[-2], steps[-1], max(1, count))
    for at in itertools.product(*(range(0, n, s) for n, s in zip(out.shape, steps, strict=True))):
        *batch, m, n = (min(s, size - p) for s, size, p in zip(steps, out.shape, at, strict=True))
        shapes = (*batch, m, k), (*batch, k, n), (*batch, m, n)
        x, y, z = (s._replace(shape=shape) for s, shape in zip((a, b, out), shapes, strict=True))
        corners = (*at[:-1], 0), (*at[:-2], 0, at[-1]), at
        begin = (
            sum(p * step for p, step in zip(corner, s.strides, strict=True)) * s.dtype.itemsize
            for s, corner in zip((x, y, z), corners, strict=True)
        )
        found.append(_Block((x, y, z), tuple(begin)))
    return found


# -- products ------------------------------------------------------------------------------
class _Way(NamedTuple):
    """How a block's product is made: the algorithm, the forms of its operands, weights that it has
    instead of the given ones, and the library's names for the operands; 0: not one of them."""

    algorithm: ctypes.c_void_p
    forms: Sequence[Any]
    packed: Any = None
    which: Sequence[int] = (_SOURCE, _WEIGHTS, _RESULT)


def onednn_product(
    a: Stack, b: Stack, out: Stack, turned: bool, threads: int, packed: bool, quick: bool
) -> Callable[..., None]:
    """The function of three arrays that lie so; `Unable` if oneDNN cannot do it well.

    turned: the function is called with b, a, out. packed: by the algorithm that packs both
    operands. quick: not worth letting other Python threads run meanwhile."""

    @cache
    def way(operands: Sequence[Stack]) -> _Way:
        forms = [owner.descriptor(s) for s in operands]
        return _Way(_algorithm(owner, forms, "gemm" if packed else ""), forms)

    with _owner(a, b, out) as owner, _alone():
        blocks = _blocks(a, b, out)
        ways = [way(block.operands) for block in blocks]
        return _function(owner, blocks, ways, (1, 0, 2) if turned else (0, 1, 2), threads, quick)


@contextmanager
def _owner(a: Any, b: Any, out: Any) -> Iterator[_Owner]:
    """Make the library's objects for a product, and destroy them at the end."""
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
    blocks: Sequence[_Block],
    ways: Sequence[_Way],
    order: Sequence[int],
    threads: int,
    quick: bool,
    *kept: Any,
) -> Callable[..., None]:
    """A function of arrays, of which the operands are in this order. Each thread has memories of the
    library of its own, that take the addresses."""
    kinds = list({id(w): w for w in ways}.values())
    primitives = [owner.make("primitive", "dnnl_primitive_create", w.algorithm) for w in kinds]
    records, held = list[int](), list[Any](kept)
    team = max(1, min(threads, len(blocks)))
    for _ in range(team):
        stream = owner.make("stream", "dnnl_stream_create", _engine(), 1)
        for primitive, made in zip(primitives, kinds, strict=True):
            memories = [owner.memory(form, 0) for form in made.forms]
            arguments = _arguments(owner, made, memories, held)
            handles = (primitive, stream, arguments, *(memories[k] for k in order))
            records += [handle.value or 0 for handle in handles]
    numbers = {id(w): k for k, w in enumerate(kinds)}
    places = [
        [numbers[id(w)], *(b.begin[k] for k in order)] for b, w in zip(blocks, ways, strict=True)
    ]
    tables = np.array(records, np.int64), np.array(places, np.int64)
    facts = [len(blocks), 0 if quick else team, 0, len(kinds), *(t.ctypes.data for t in tables)]
    about = np.array(facts, np.int64)
    once_gone(about, owner.destroy)
    on_stack = all(_name(owner, made.algorithm).startswith(ON_STACK) for made in kinds)
    return function_of(_text(not on_stack, len(order)), about, (*tables, *held))


def _arguments(
    owner: _Owner, made: _Way, memories: Sequence[ctypes.c_void_p], held: list[Any]
) -> ctypes.c_void_p:
    """Where the list is of what a primitive works on: these memories, and room of its own."""
    query = owner.library.dnnl_primitive_desc_query_md
    form = ctypes.c_void_p(query(made.algorithm, _QUERY_SCRATCHPAD, 0))
    pad, start = _room(owner, form)
    used = list(memories)
    used[1] = made.packed or used[1]
    given = [_Argument(w, m) for w, m in zip(made.which, used, strict=True) if w]
    given += [_Argument(_SCRATCHPAD, owner.memory(form, start))] * (1 + len(used) - len(given))
    arguments = (_Argument * len(given))(*given)
    held += [arguments, pad]
    return ctypes.c_void_p(ctypes.addressof(arguments))


def _room(owner: _Owner, form: ctypes.c_void_p) -> tuple[Any, int]:
    """Memory for what lies so, and where it begins."""
    room = np.empty(owner.library.dnnl_memory_desc_get_size(form) + 64, np.uint8)
    return room, room.ctypes.data + -room.ctypes.data % 64


def _algorithm(owner: _Owner, forms: Sequence[Any], wanted: str) -> ctypes.c_void_p:
    """The library's first choice for a product among the algorithms whose name begins so."""
    given = (_engine(), forms[0], forms[1], None, forms[2])
    return first_choice(owner, "dnnl_matmul_primitive_desc_create", given, wanted)


def user_scratchpad(owner: _Owner, after: Any = None) -> ctypes.c_void_p:
    """Attributes of what gets its memory from us, and does this list of things to what it makes."""
    made = owner.make("primitive_attr", "dnnl_primitive_attr_create")
    owner.library.dnnl_primitive_attr_set_scratchpad_mode(made, _USER_SCRATCHPAD)
    if after is not None:
        owner.library.dnnl_primitive_attr_set_post_ops(made, after)
    return made


def first_choice(
    owner: _Owner,
    function: str,
    given: Sequence[Any],
    wanted: str | tuple[str, ...],
    after: Any = None,
) -> ctypes.c_void_p:
    """The library's first choice among the algorithms whose name begins so; none is a last resort."""
    found = owner.library
    made = owner.make("primitive_desc", function, *given, user_scratchpad(owner, after))
    while said := _name(owner, made):
        if "ref" not in said and said.startswith(wanted):
            return made
        if found.dnnl_primitive_desc_next_impl(made):
            break
    raise Unable("only the reference implementation can")


def _name(owner: _Owner, made: ctypes.c_void_p) -> str:
    """Return the name of an algorithm."""
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
    columns: dict[int, _Packed] = {}  # by where these weights begin

    @cache
    def way(operands: Sequence[Stack], begin: int) -> _Way:
        forms = [owner.descriptor(s) for s in operands]
        n, shape = len(operands[1].shape), operands[1].shape
        kind = (ctypes.c_int64 * n)(*shape), _TYPES[b.dtype.name]
        best = columns[begin].form if begin in columns else owner.make(*_ANYHOW, n, *kind, _ANY)
        made = _algorithm(owner, [forms[0], best, forms[2]], "")
        if begin not in columns:
            query = owner.library.dnnl_primitive_desc_query_md
            best = ctypes.c_void_p(query(made, _QUERY_WEIGHTS, 0))
            if owner.library.dnnl_memory_desc_equal(best, forms[1]):
                raise Unable("they lie best as they are")
            room, start = _room(owner, best)
            columns[begin] = _Packed(best, owner.memory(best, start), room)
            source = owner.memory(forms[1], weights.ctypes.data + begin)
            _reorder(owner, forms[1], source, best, columns[begin].memory)
        return _Way(made, forms, columns[begin].memory)

    with _owner(a, b, out) as owner, _alone():
        blocks = _blocks(a, b, out)
        ways = [way(block.operands, block.begin[1]) for block in blocks]
        function = _function(owner, blocks, ways, (0, 1, 2), threads, quick, columns)
    plain = onednn_product(a, b, out, False, threads, False, quick)
    if not _alike(plain, function, a, out, weights):
        raise Unable("other bits")
    return function, sum(packed.room.nbytes for packed in columns.values())


class _Packed(NamedTuple):
    """Weights in the form that is best: that, the library's memory, and the memory itself."""

    form: ctypes.c_void_p
    memory: ctypes.c_void_p
    room: Any


_ANYHOW = "memory_desc", "dnnl_memory_desc_create_with_tag"


def _reorder(
    owner: _Owner, form: Any, source: ctypes.c_void_p, best: Any, packed: ctypes.c_void_p
) -> None:
    engine = _engine()
    made = owner.make(
        "primitive_desc", "dnnl_reorder_primitive_desc_create", form, engine, best, engine, None
    )
    primitive = owner.make("primitive", "dnnl_primitive_create", made)
    stream = owner.make("stream", "dnnl_stream_create", engine, 1)
    arguments = (_Argument * 2)(_Argument(_FROM, source), _Argument(_TO, packed))
    if status := owner.library.dnnl_primitive_execute(primitive, stream, 2, arguments):
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
@lru_cache(16)
def _text(held: bool, many: int) -> str:
    """Facts: turns, threads, status, kinds of blocks; what each thread has for each kind: primitive, stream,
    arguments, and the memories that take so many arrays' addresses; of each turn the kind, and where the
    arrays begin."""
    names = ("dnnl_memory_set_data_handle", "dnnl_primitive_execute")
    for name, code in {**{n: address_of(library(), n) for n in names}, **omp()}.items():
        symbol(name, code)
    check_symbols()
    c = Code()
    kinds, of_threads, of_turns = (
        c.let(f"call {t} @{f}(ptr %meta, i64 {k})") for t, f, k in _FACTS
    )
    c.add("%before = call i32 @omp_get_max_threads()")
    c.add("call void @omp_set_num_threads(i32 1)")
    with c.loop("%lo", "%hi") as turn:
        row = c.let(f"getelementptr i64, ptr {of_turns}, i64 {c.times(turn, str(1 + many))}")
        number = c.sum(c.times("%thread", kinds), c.let(f"load i64, ptr {row}"))
        own = c.let(f"getelementptr i64, ptr {of_threads}, i64 {c.times(number, str(3 + many))}")
        primitive, stream, arguments, *memories = (
            c.let(f"call ptr @array(ptr {own}, i64 {k})") for k in range(3 + many)
        )
        for k, memory in enumerate(memories):
            begin = c.let(f"call i64 @fact(ptr {row}, i64 {k + 1})")
            whole = c.let(f"call ptr @array(ptr %data, i64 {k})")
            at = c.let(f"getelementptr i8, ptr {whole}, i64 {begin}")
            c.let(f"call i32 @dnnl_memory_set_data_handle(ptr {memory}, ptr {at})")
        given = f"ptr {primitive}, ptr {stream}, i32 {1 + many}, ptr {arguments}"
        done = c.let(f"sext i32 {c.let(f'call i32 @dnnl_primitive_execute({given})')} to i64")
        status = c.let("getelementptr i64, ptr %meta, i64 2")
        c.let(f"atomicrmw or ptr {status}, i64 {done} monotonic")
    c.add("call void @omp_set_num_threads(i32 %before)")
    head = "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {"
    body = "\n".join([head, *c.entry, *c.lines.text, "  ret void", "}"])
    return "\n".join([TABLES, _CALLED, body, CHECKED, around(many, "shared", held)])


_FACTS = (("i64", "fact", 3), ("ptr", "array", 4), ("ptr", "array", 5))
_CALLED = """
declare i32 @dnnl_memory_set_data_handle(ptr, ptr)
declare i32 @dnnl_primitive_execute(ptr, ptr, i32, ptr)
declare i32 @omp_get_max_threads()
declare void @omp_set_num_threads(i32)
"""


def check_symbols() -> None:
    """Define the symbols that `CHECKED` calls."""
    symbol("Py_DecRef", address_of(ctypes.pythonapi, "Py_DecRef"))
    symbol("memory_error", MemoryError)


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
