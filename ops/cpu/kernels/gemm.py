"""Matrix products as functions of three arrays: oneDNN's, or OpenBLAS's in blocks that the threads
share, or our own with a vector.

A function is made once, for arrays that lie in one way. Blocks are those of the result; where the
result is small and the sum long, they are of the sum, in a number that depends on extents only."""

from __future__ import annotations

import atexit
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from ostinato.ops.core.device import Keeping
from ostinato.ops.core.spec import float32, float64, int64
from ostinato.ops.cpu.jit.code import symbol
from ostinato.ops.cpu.jit.emitter import Code
from ostinato.ops.cpu.jit.llvm import function_of, why_not
from ostinato.ops.cpu.jit.parallel import around
from ostinato.ops.cpu.jit.routine import Routine, functions
from ostinato.ops.cpu.libraries.onednn import Unable, onednn_product, with_weights
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.threads import blas
from ostinato.ops.jit.stacks import Stack, blocks_of, most_square, stacked, step_of, transposed

from .gemv import STREAMS, added_up, can_stream, streams_pay, vector_product
from .ordered_gemm import INTEGERS, KINDS, ordered_product

Product = Callable[..., None]  # (left, right, result)

_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
TINY = LIMITS.product_tiny
GRAIN = LIMITS.product_wake
QUICK, QUICK_READS = LIMITS.product_quick, LIMITS.reads_quick
BOTH = LIMITS.packs_both
NARROW, FEW, SMALL, LARGE = LIMITS.narrow, LIMITS.few, LIMITS.small, LIMITS.large
FEWEST = 4  # rows and columns of integers that are not left to NumPy
LONG = 1 << 14  # terms of a sum that make a block
PARTS = 32  # blocks of a sum at the most
MOST_TURNS = 1 << 14
LINE = LIMITS.line
SMALLEST, LARGEST = 128, 512  # rows and columns of blocks of what is symmetric


Maker = Callable[[], Product | Keeping | None]


def product(a: Any, b: Any, out: Any, threads: int, way: str = "") -> Product | None:
    """The function for arrays that lie as these do, made in this way if that can be; None if NumPy
    does as well.
    """
    found = any_product(a, b, out, threads, way, stays=False)
    return found.function if isinstance(found, Keeping) else found


def any_product(
    a: Any, b: Any, out: Any, threads: int, way: str, stays: bool
) -> Product | Keeping | None:
    """The same; `stays`: the right matrix may be the same in many calls."""
    known = ways(a, b, out, threads, stays)
    made = (known[name]() for name in sorted(known, key=lambda name: name != way))
    return next((f for f in made if f is not None), None)


def ways(a: Any, b: Any, out: Any, threads: int, stays: bool = False) -> Mapping[str, Maker]:
    """How arrays that lie as these do can be multiplied: by name, what makes the function, or None
    where a library cannot after all. The first is what the rule takes; others may be faster.
    """
    if out.size == 0 or a.size == 0 or why_not():
        return {}
    stacks = stacked(a, b, out)
    if stacks is None:
        return {}
    left, right, result = stacks
    m, n, k = *result.shape[-2:], left.shape[-1]
    work = result.size * k
    same = a.dtype == b.dtype == out.dtype
    if same and out.dtype.name in INTEGERS:
        return {"tiles": partial(_of_integers, left, right, result, threads)}
    alike = same and out.dtype.name in _LETTERS
    found: dict[str, Maker] = {}
    if alike and _blas_pays(left, right, result):
        found["blas"] = partial(_blas_product, left, right, result, threads)
    if not alike or (out.dtype == np.float32 and work > TINY and min(m, n) > 1):
        most = max(1, min(threads, work // GRAIN))
        whole = len(result.shape) == 2 and _packing_pays(left, right, result, stays)
        for packed in (whole, not whole) if len(result.shape) == 2 else (False,):
            name = "onednn packed" if packed else "onednn kept" if stays else "onednn"
            keeps = stays and not packed
            found[name] = partial(
                _by_onednn, left, right, result, most, packed, work <= QUICK, keeps
            )
    if alike:
        found.setdefault("blas", partial(_blas_product, left, right, result, threads))
    matrix = transposed(right) if m == 1 else left
    if alike and min(m, n) == 1 and max(m, n) >= STREAMS and can_stream(matrix):
        found["streams"] = partial(_in_streams, left, right, result, threads)
        if streams_pay(matrix):
            found = dict(reversed(found.items()))
    return found


def _blas_pays(a: Stack, b: Stack, out: Stack) -> bool:
    """Whether it is quicker than oneDNN: as timed over a grid of shapes."""
    rows, columns = out.shape[-2:]
    in_rows = a.strides[-1] == b.strides[-1] == 1
    narrow = NARROW if a.strides[-1] == 1 else 2 * NARROW
    return columns < narrow or (rows < FEW and in_rows and b.shape[-2] * columns <= SMALL)


def _packing_pays(a: Stack, b: Stack, out: Stack, stays: bool) -> bool:
    """Whether to copy both operands in an order that suits the processor first, as timed."""
    rows, columns = out.shape[-2:]
    turned = a.strides[-1] != 1, b.strides[-1] != 1
    if rows < FEW:
        return not stays and (turned == (False, True) or b.shape[-2] * columns > LARGE)
    if turned == (True, False):
        return not stays or columns < 4 * NARROW
    return not stays and min(rows, columns) >= BOTH


def _by_onednn(
    a: Stack, b: Stack, out: Stack, threads: int, packed: bool, quick: bool, keeps: bool
) -> Product | Keeping | None:
    turned = out.shape[-1] > 1 and out.strides[-1] != 1  # the transposes' product
    if turned:
        a, b, out = transposed(b), transposed(a), transposed(out)
    with contextlib.suppress(Unable):
        function = onednn_product(a, b, out, turned, threads, packed, quick)
        if not keeps or turned or len(out.shape) > 2:
            return function
        return Keeping(function, partial(_kept, a, b, out, threads, quick))
    return None


def _of_integers(a: Stack, b: Stack, out: Stack, threads: int) -> Product | None:
    return None if min(out.shape[-2:]) < FEWEST else _in_order(a, b, out, threads)


def in_order(a: Any, b: Any, out: Any, threads: int) -> Product | None:
    """What multiplies arrays that lie as these do, each sum term by term: the bits of an element depend
    on its row and its column only. None where there is no machine code for it."""
    same = a.dtype == b.dtype == out.dtype and out.dtype.name in KINDS
    if not same or out.size == 0 or a.size == 0 or why_not():
        return None
    stacks = stacked(a, b, out)
    return None if stacks is None else _made_in_order(*stacks, threads)


@lru_cache(64)
def _made_in_order(a: Stack, b: Stack, out: Stack, threads: int) -> Product | None:
    return _in_order(a, b, out, threads)


atexit.register(_made_in_order.cache_clear)  # machine code goes before LLVM does


def _in_order(a: Stack, b: Stack, out: Stack, threads: int) -> Product | None:
    """As it is, or as the transposes' product: in whichever the result's rows lie in one piece, and are
    the longer ones."""
    rows, columns = out.shape[-2:]
    if (columns > 1 or rows == 1) and (found := ordered_product(a, b, out, threads)) is not None:
        return found
    turned = ordered_product(transposed(b), transposed(a), transposed(out), threads)
    if turned is not None:
        return lambda a, b, out: turned(b, a, out)
    return ordered_product(a, b, out, threads) if columns == 1 else None


def _in_streams(a: Stack, b: Stack, out: Stack, threads: int) -> Product | None:
    turned = out.shape[-2] == 1
    if turned:
        a, b, out = transposed(b), transposed(a), transposed(out)
    work = out.size * a.shape[-1]
    count = 0 if work <= QUICK_READS else max(1, min(threads, work // GRAIN))
    return vector_product(a, b, out, turned, count)


def _kept(
    a: Stack, b: Stack, out: Stack, threads: int, quick: bool, weights: Any
) -> tuple[Product, int] | None:
    with contextlib.suppress(Unable, MemoryError):
        return with_weights(a, b, out, threads, quick, weights)
    return None


# -- BLAS, in blocks -----------------------------------------------------------------------
_PLAIN, _TURNED = 111, 112  # cblas.h's names
_FORMS = ("turn_a", "turn_b", "step_a", "step_b", "step_c")
_FACTS = ("first", *_FORMS, "parts", "rows", "columns", "row", "column", "room")
_TABLE = 2 + len(_FACTS)  # where the table begins: for each turn three offsets and three extents


def _blas_product(a: Stack, b: Stack, out: Stack, threads: int) -> Product | None:
    """By BLAS, if it can read and write the matrices where they are."""
    found = blas()
    if found is None:
        return None
    row = out.shape[-2] == 1 < out.shape[-1]
    turned = row or (out.shape[-1] > 1 and out.strides[-1] != 1)  # the transposes' product
    if turned:
        a, b, out = transposed(b), transposed(a), transposed(out)
    (m, n), k, item = out.shape[-2:], a.shape[-1], out.dtype.itemsize
    vector = n == 1
    forms = _vector_forms(a, b, out) if vector else _forms(a, b, out)
    if forms is None:
        return None
    work, matrices = out.size * k, math.prod(out.shape[:-2])
    worth = max(1, min(threads, work // GRAIN))
    parts = _parts(m, n, k) if matrices == 1 and out.dtype.kind == "f" else 0
    block = (
        (m, n, -(-k // parts))
        if parts
        else (*most_square(m, n, -(-blocks_of(out, k) // matrices)), k)
    )
    table = _table(a, b, out, block, parts > 0)
    if len(table) > MOST_TURNS:
        return None
    turn_a, turn_b, *steps = forms
    if parts:
        steps[2] = n
    if vector and turn_a == _TURNED:
        table[:, [3, 5]] = table[:, [5, 3]]
    table[:, :3] *= item
    count = 0 if work <= (QUICK_READS if vector else QUICK) else min(worth, len(table))
    room = _TABLE + table.size
    facts = [len(table), count, turned, turn_a, turn_b, *steps]
    facts += [parts, m, n, *(s * item for s in out.strides[-2:]), room]
    waiting = -(-parts * m * n * item // 8)
    about = np.array([*facts, *table.reshape(-1), *[0] * waiting], np.int64)
    return function_of(_text(_LETTERS[out.dtype.name], vector, found.wide), about)


def mirrored_product(x: Any, out: Any, threads: int) -> Product | None:
    """The function of a matrix and its transpose's product with it, of which BLAS makes the blocks on the
    diagonal and below, and those are copied to the other side."""
    stacks, found = stacked(x.T, x, out), blas()
    if stacks is None or found is None or x.dtype.name not in ("float32", "float64"):
        return None
    a, b, c = stacks
    c = c if c.strides[-1] == 1 else transposed(c)
    forms = _forms(a, b, c)
    if forms is None:
        return None
    columns, depth = c.shape[-1], a.shape[-1]
    blocks = np.array(sorted(_below(0, columns), key=lambda b: -b[2] * b[3]), np.int64)
    (i, j), item = blocks[:, :2].T, x.itemsize
    starts = i * a.strides[-2], j * b.strides[-1], i * c.strides[-2] + j, j * c.strides[-2] + i
    at_a, at_b, at_c, across = (start * item for start in starts)
    depths = np.full(len(blocks), depth)
    table = np.column_stack([at_a, at_b, at_c, *blocks[:, 2:].T, depths, across])
    count = max(1, min(threads, columns**2 * depth // GRAIN, len(table)))
    facts = [len(table), count, 0, *forms, 0, columns, columns, c.strides[-2] * item, item, 0]
    about = np.array([*facts, *table.reshape(-1)], np.int64)
    whole = function_of(_text(_LETTERS[x.dtype.name], False, found.wide, True), about)
    return lambda x, out: whole(x.T, x, out)


def _below(begin: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Blocks of a square on its diagonal and below: first row, first column, rows, columns."""
    if size <= SMALLEST:
        yield begin, begin, size, size
        return
    half = step_of(size, 2)
    middle = begin + half
    for i in range(middle, begin + size, LARGEST):
        for j in range(begin, middle, LARGEST):
            yield i, j, min(LARGEST, begin + size - i), min(LARGEST, middle - j)
    yield from _below(begin, half)
    yield from _below(middle, size - half)


def _form(s: Stack) -> tuple[int, int] | None:
    """How BLAS reads a matrix: as it is or turned, and the elements from row to row."""
    (rows, columns), (down, along) = s.shape[-2:], s.strides[-2:]
    if (along == 1 or columns == 1) and (down >= columns or rows == 1):
        return _PLAIN, max(down, columns) if rows > 1 else columns
    if (down == 1 or rows == 1) and (along >= rows or columns == 1):
        return _TURNED, max(along, rows) if columns > 1 else rows
    return None


def _forms(a: Stack, b: Stack, out: Stack) -> tuple[int, ...] | None:
    forms = _form(a), _form(b), _form(out)
    if None in forms or forms[2][0] == _TURNED:  # type: ignore[index]
        return None
    (turn_a, step_a), (turn_b, step_b), (_, step_c) = forms  # type: ignore[misc]
    return turn_a, turn_b, step_a, step_b, step_c


def _vector_forms(a: Stack, b: Stack, out: Stack) -> tuple[int, ...] | None:
    form = _form(a)
    steps = [s.strides[-2] if s.shape[-2] > 1 else 1 for s in (b, out)]
    return None if form is None or min(steps) < 1 else (form[0], 0, form[1], *steps)


def _parts(m: int, n: int, k: int) -> int:
    """Blocks of the sum, where it is long and the result small; by extents only, so that bits do
    not depend on the number of threads.
    """
    return min(PARTS, k // LONG) if k >= 2 * LONG and m * n <= LONG else 0


def _table(a: Stack, b: Stack, out: Stack, block: Sequence[int], apart: bool) -> Any:
    """For each turn where the operands and the result begin, and rows, columns and terms."""
    extents = *out.shape[-2:], a.shape[-1]
    starts = [np.arange(0, n, step) for n, step in zip(extents, block, strict=True)]
    grid = (*(np.arange(n) for n in out.shape[:-2]), *starts)
    places = np.stack(np.meshgrid(*grid, indexing="ij"), -1).reshape(-1, len(grid))
    zero = (0,)
    strides = (
        (*a.strides[:-1], *zero, a.strides[-1]),
        (*b.strides[:-2], *zero, b.strides[-1], b.strides[-2]),
        (*out.strides, *zero),
    )
    offsets = places @ np.array(strides).T
    if apart:
        offsets[:, 2] = np.arange(len(places)) * extents[0] * extents[1]
    sizes = np.minimum(np.array(block), np.array(extents) - places[:, -3:])
    return np.concatenate([offsets, sizes], 1)


# -- machine code --------------------------------------------------------------------------
@lru_cache(32)
def _text(letter: str, vector: bool, wide: bool, mirrors: bool = False) -> str:
    """Turns are calls of BLAS; parts of a sum wait behind the table until `finish` adds them up. If it
    mirrors, a turn's last number says where the block's transpose goes."""
    found = blas()
    assert found is not None
    kind = {"s": "float", "d": "double"}.get(letter, "ptr")
    name = f"cblas_{letter}gem{'v' if vector else 'm'}"
    for called in (name, "openblas_get_num_threads", "openblas_set_num_threads"):
        symbol(called, found.address(called))
    symbol("blas_state", _state)
    whole = "i64" if wide else "i32"

    def number(what: str) -> str:
        return f"{whole} %{what}" if wide else f"{whole} %{what}_short"

    one, zero = ("1.0", "0.0") if kind != "ptr" else ("@one", "@zero")
    sizes = (number("m"), number("k")) if vector else tuple(map(number, "mnk"))
    turns = ("i32 %turn_a_short",) if vector else ("i32 %turn_a_short", "i32 %turn_b_short")
    arguments = ["i32 101", *turns, *sizes, f"{kind} {one}", "ptr %a", number("step_a"), "ptr %b"]
    arguments += [number("step_b"), f"{kind} {zero}", "ptr %c", number("step_c")]
    types = ", ".join(a.split()[0] for a in arguments)
    code = [
        f"declare void @{name}({types})",
        "declare i32 @openblas_get_num_threads()",
        "declare void @openblas_set_num_threads(i32)",
        "@blas_state = external global [2 x i64]",
        "@one = private constant [2 x double] [double 1.0, double 0.0]",
        "@zero = private constant [2 x double] zeroinitializer",
        "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {",
        "entry:",
        *_loaded("%meta", 2, _FACTS),
        *_BASES,
    ]
    code += [
        "turn:",
        "  %o = phi i64 [%lo, %entry], [%o1, %done]",
        f"  %skip = mul i64 %o, {7 if mirrors else 6}",
        f"  %start = add i64 %skip, {_TABLE}",
        "  %line = getelementptr i64, ptr %meta, i64 %start",
        *_loaded("%line", 0, ("at_a", "at_b", "at_c", "m", "n", "k")),
        *(f"  %{x} = getelementptr i8, ptr %base_{x}, i64 %at_{x}" for x in "abc"),
        *(f"  %{x}_short = trunc i64 %{x} to i32" for x in (*_FORMS, "m", "n", "k")),
        f"  call void @{name}({', '.join(arguments)})",
        *(_MIRRORS if mirrors else ("  br label %done",)),
        "done:",
        "  %o1 = add i64 %o, 1",
        "  %more = icmp slt i64 %o1, %hi",
        "  br i1 %more, label %turn, label %end",
        "end:",
        "  ret void",
        "}",
    ]
    if letter == "c":
        code = [line.replace("double", "float") for line in code]
    places = {name: k for k, name in enumerate(_FACTS, 2)}
    last = Routine(None, "finish", data=[int64], meta=[int64])
    if kind != "ptr" and not mirrors:
        last = added_up(float32 if letter == "s" else float64, places)
    if mirrors:
        code.append(_mirror(kind, {"float": 4, "double": 8}[kind]))
    return "\n".join([*code, *functions(last), _GUARDED, around(3, "shared")])


def _mirror(kind: str, item: int) -> str:
    """Copies a block's transpose, a line of the cache of each row at a time; of one on the diagonal what
    is below to what is above."""
    code = Code()
    with code.loop("0", "%m", LINE // item) as begin:
        end = code.least(code.sum(begin, str(LINE // item)), "%m")
        with code.loop("0", "%n") as j:
            below = code.let(f"select i1 %same, i64 {code.sum(j, '1')}, i64 0")
            low = code.let(f"call i64 @llvm.smax.i64(i64 {begin}, i64 {below})")
            with code.loop(low, end) as i:
                for name, (down, along) in {"from": (i, j), "to": (j, i)}.items():
                    skip = code.sum(code.times(down, "%row"), code.times(along, str(item)))
                    code.add(f"%{name}_at = getelementptr i8, ptr %{name}, i64 {skip}")
                code.add(f"%value = load {kind}, ptr %from_at")
                code.add(f"store {kind} %value, ptr %to_at")
    head = "define internal void @mirror(ptr %from, ptr %to, i64 %m, i64 %n, i64 %row) noinline {"
    same = "  %same = icmp eq ptr %from, %to"
    text = [head, "entry:", *code.entry, same, *code.lines.text, "  ret void", "}"]
    return "\n".join(["declare i64 @llvm.smax.i64(i64, i64)", *text])


_state = np.zeros(2, np.int64)  # products at work, and OpenBLAS's threads before the first


def _loaded(base: str, start: int, names: Sequence[str], kind: str = "i64") -> list[str]:
    lines = []
    for k, name in enumerate(names, start):
        lines.append(f"  %{name}_at = getelementptr {kind}, ptr {base}, i64 {k}")
        lines.append(f"  %{name} = load {kind}, ptr %{name}_at")
    return lines


_MIRRORS = (
    *_loaded("%line", 6, ("at_t",)),
    "  %t = getelementptr i8, ptr %base_c, i64 %at_t",
    "  call void @mirror(ptr %c, ptr %t, i64 %m, i64 %n, i64 %row)",
    "  br label %done",
)

_BASES = (
    "  %second = sub i64 1, %first",
    "  %data_a = getelementptr ptr, ptr %data, i64 %first",
    "  %data_b = getelementptr ptr, ptr %data, i64 %second",
    "  %data_c = getelementptr ptr, ptr %data, i64 2",
    "  %base_a = load ptr, ptr %data_a",
    "  %base_b = load ptr, ptr %data_b",
    "  %result = load ptr, ptr %data_c",
    "  %waiting = getelementptr i64, ptr %meta, i64 %room",
    "  %apart = icmp sgt i64 %parts, 0",
    "  %base_c = select i1 %apart, ptr %waiting, ptr %result",
    "  %some = icmp slt i64 %lo, %hi",
    "  br i1 %some, label %turn, label %end",
)

# While products are at work, OpenBLAS has one thread. Python's lock is held where they are counted.
_GUARDED = """
define ptr @run(ptr %self, ptr %args, i64 %given) {
  %m = getelementptr i8, ptr %self, i64 16
  %meta = load ptr, ptr %m
  %threads_at = getelementptr i64, ptr %meta, i64 1
  %threads = load i64, ptr %threads_at
  %quick = icmp eq i64 %threads, 0
  br i1 %quick, label %simple, label %guarded
simple:
  %made = call ptr @shared(ptr %self, ptr %args, i64 %given)
  ret ptr %made
guarded:
  %before_at = getelementptr i64, ptr @blas_state, i64 1
  %others = load i64, ptr @blas_state
  %more = add i64 %others, 1
  store i64 %more, ptr @blas_state
  %is_first = icmp eq i64 %others, 0
  br i1 %is_first, label %limit, label %work
limit:
  %now = call i32 @openblas_get_num_threads()
  %now64 = sext i32 %now to i64
  store i64 %now64, ptr %before_at
  call void @openblas_set_num_threads(i32 1)
  br label %work
work:
  %result = call ptr @shared(ptr %self, ptr %args, i64 %given)
  %still = load i64, ptr @blas_state
  %fewer = sub i64 %still, 1
  store i64 %fewer, ptr @blas_state
  %is_last = icmp eq i64 %fewer, 0
  br i1 %is_last, label %restore, label %end
restore:
  %before = load i64, ptr %before_at
  %before32 = trunc i64 %before to i32
  call void @openblas_set_num_threads(i32 %before32)
  br label %end
end:
  ret ptr %result
}
"""
