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
from ostinato.ops.core.device import Prepackable
from ostinato.ops.core.spec import DType, float32, float64, int32, int64, uint8
from ostinato.ops.cpu.jit.code import symbol
from ostinato.ops.cpu.jit.llvm import function_of, why_not
from ostinato.ops.cpu.jit.parallel import around
from ostinato.ops.cpu.jit.routine import Memory, Routine, functions, larger, smaller
from ostinato.ops.cpu.libraries.onednn import Unable, onednn_product, with_weights
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.threads import blas
from ostinato.ops.jit.stacks import Stack, blocks_of, most_square, stacked, step_of, transposed
from ostinato.ops.jit.values import Value, cast, where

from .gemv import STREAMS, added_up, can_stream, streams_pay, vector_product
from .ordered_gemm import INTEGERS, KINDS, ordered_product
from .turned_gemm import turned_product, turning_pays

Product = Callable[..., None]  # (left, right, result)

_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
TINY = LIMITS.product_tiny
GRAIN = LIMITS.product_wake
QUICK, QUICK_READS = LIMITS.product_quick, LIMITS.reads_quick
BOTH = LIMITS.packs_both
FEWEST = 4  # rows and columns of integers that are not left to NumPy
BLOCK_TERMS = 1 << 14  # terms of a sum that make a block
PARTS = 32  # blocks of a sum at the most
MOST_TURNS = 1 << 14
LINE = LIMITS.line
SMALLEST, LARGEST = 128, 512  # rows and columns of blocks of what is symmetric


Maker = Callable[[], Product | Prepackable | None]


def product(a: Any, b: Any, out: Any, threads: int, way: str = "") -> Product | None:
    """The function for arrays that lie as these do, made in this way if that can be; None if NumPy
    does as well."""
    found = any_product(a, b, out, threads, way, stays=False)
    return found.function if isinstance(found, Prepackable) else found


def any_product(
    a: Any, b: Any, out: Any, threads: int, way: str, stays: bool
) -> Product | Prepackable | None:
    """Make the function, or a product that can be prepacked; `stays`: the right matrix may be the
    same in many calls."""
    known = ways(a, b, out, threads, stays)
    made = (known[name]() for name in sorted(known, key=lambda name: name != way))
    return next((f for f in made if f is not None), None)


def ways(a: Any, b: Any, out: Any, threads: int, stays: bool = False) -> Mapping[str, Maker]:
    """How arrays that lie as these do can be multiplied: by name, what makes the function, or None
    where a library cannot after all. The first is what the rule takes; others may be faster."""
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
        if same and out.dtype == np.float32 and _is_turned(left, right, result):
            turned = partial(_with_turned, left, right, result, most)
            found = {"turned": turned, **found} if not stays else {**found, "turned": turned}
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
    narrow = LIMITS.blas_columns * (1 if a.strides[-1] == 1 else 2)
    small = rows < LIMITS.blas_rows and b.shape[-2] * columns <= LIMITS.blas_elements
    return columns < narrow or (small and in_rows)


def _packing_pays(a: Stack, b: Stack, out: Stack, stays: bool) -> bool:
    """Whether to copy both operands in an order that suits the processor first, as timed."""
    rows, columns = out.shape[-2:]
    turned = a.strides[-1] != 1, b.strides[-1] != 1
    if rows < LIMITS.blas_rows:
        return not stays and (
            turned == (False, True) or b.shape[-2] * columns > LIMITS.packed_elements
        )
    if turned == (True, False):
        return not stays or columns < 4 * LIMITS.blas_columns
    return not stays and min(rows, columns) >= BOTH


def _is_turned(a: Stack, b: Stack, out: Stack) -> bool:
    """Whether to turn parts of the left matrix first pays: in a product of two matrices, of which the
    left one lies transposed."""
    forms = [_form(s) for s in (a, b, out)]
    if len(out.shape) > 2 or None in forms or forms[0][0] == _PLAIN or forms[2][0] != _PLAIN:  # type: ignore[index]
        return False
    (m, n), k = out.shape, a.shape[-1]
    return turning_pays(m, n, k)


def _with_turned(a: Stack, b: Stack, out: Stack, threads: int) -> Product | None:
    (_, step_a), (turn_b, step_b) = _form(a), _form(b)  # type: ignore[misc]
    return turned_product(a, b, out, step_a, step_b, turn_b != _PLAIN, threads)


def _by_onednn(
    a: Stack, b: Stack, out: Stack, threads: int, packed: bool, quick: bool, keeps: bool
) -> Product | Prepackable | None:
    turned = out.shape[-1] > 1 and out.strides[-1] != 1  # the transposes' product
    if turned:
        a, b, out = transposed(b), transposed(a), transposed(out)
    with contextlib.suppress(Unable):
        function = onednn_product(a, b, out, turned, threads, packed, quick)
        if not keeps or turned or len(out.shape) > 2:
            return function
        return Prepackable(function, partial(_kept, a, b, out, threads, quick))
    return None


def _of_integers(a: Stack, b: Stack, out: Stack, threads: int) -> Product | None:
    return None if min(out.shape[-2:]) < FEWEST else _in_order(a, b, out, threads)


def make_ordered_product(a: Any, b: Any, out: Any, threads: int) -> Product | None:
    """Make a function that multiplies arrays that lie as these do, each sum term by term: the bits
    of an element depend on its row and its column only. None where there is no machine code for it.
    """
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
    not depend on the number of threads."""
    return min(PARTS, k // BLOCK_TERMS) if k >= 2 * BLOCK_TERMS and m * n <= BLOCK_TERMS else 0


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
_state = np.zeros(2, np.int64)  # products at work, and OpenBLAS's threads before the first


@lru_cache(32)
def _text(letter: str, vector: bool, wide: bool, mirrors: bool = False) -> str:
    """Turns are calls of BLAS; parts of a sum wait behind the table until `finish` adds them up. If it
    mirrors, a turn's last number says where the block's transpose goes."""
    found = blas()
    assert found is not None
    name = f"cblas_{letter}gem{'v' if vector else 'm'}"
    for called in (name, "openblas_get_num_threads", "openblas_set_num_threads"):
        symbol(called, found.address(called))
    symbol("blas_state", _state)
    kind = {"s": float32, "d": float64}.get(letter)
    mirror = [_mirror(kind)] if mirrors and kind is not None else []
    body = _body(letter, name, vector, int64 if wide else int32, *mirror)
    last = Routine(None, "finish", data=[int64], meta=[int64])
    if kind is not None and not mirrors:
        last = added_up(kind, {name: k for k, name in enumerate(_FACTS, 2)})
    return "\n".join([*functions(*mirror, body, last), _guarded().text(), around(3, "shared")])


def _body(letter: str, name: str, vector: bool, size: DType, *mirror: Routine) -> Routine:
    made = Routine(None, "body", data=[int64], meta=[int64], lo=int64, hi=int64, thread=int64)
    data, meta, lo, hi, _ = made.given
    about = {fact: meta[k] for k, fact in enumerate(_FACTS, 2)}
    a, b, result = (
        made.memory(data[k], uint8) for k in (about["first"], 1 - about["first"], made.whole(2))
    )
    out = meta.further(about["room"]).view(uint8).select(about["parts"] > 0, result)
    one, zero = _factors(made, letter)
    step_a, step_b, step_c = (cast(about[f"step_{x}"], size) for x in "abc")
    turns = [cast(about[f"turn_{x}"], int32) for x in ("a" if vector else "ab")]
    with made.each(hi, lo) as o:
        line = meta.further(o * (7 if mirror else 6) + _TABLE)
        at_a, at_b, at_c, m, n, k = (line[j] for j in range(6))
        sizes = [cast(x, size) for x in ((m, k) if vector else (m, n, k))]
        order = made.lines.constant(101, int32)  # row by row
        read = one, a.further(at_a), step_a, b.further(at_b), step_b
        made.call(name, None, order, *turns, *sizes, *read, zero, out.further(at_c), step_c)
        for other in mirror:
            made.does(other, out, at_c, line[6], m, n, about["row"])
    return made


def _factors(made: Routine, letter: str) -> list[Value | Memory]:
    """1 and 0, as BLAS is told them."""
    if letter in "sd":
        kind = float32 if letter == "s" else float64
        return [made.lines.constant(x, kind) for x in (1.0, 0.0)]
    part = "float" if letter == "c" else "double"
    for name, x in (("one", "1.0"), ("zero", "0.0")):
        pair = f"[{part} {x}, {part} 0.0]"
        made.lines.declared.add(f"@{name} = private constant [2 x {part}] {pair}")
    return [Memory(made, f"@{name}", int64) for name in ("one", "zero")]


def _mirror(dtype: DType) -> Routine:
    """Copies a block's transpose, a line of the cache of each row at a time; of one on the diagonal what
    is below to what is above."""
    made = Routine(
        None, "mirror", out=[uint8], here=int64, there=int64, m=int64, n=int64, row=int64
    )
    out, here, there, m, n, row = made.given
    item, is_same = dtype.itemsize, here == there
    step = LINE // item
    with made.each(m, step=step) as begin:
        end = smaller(begin + step, m)
        with made.each(n) as j:
            first = larger(begin, where(is_same, j + 1, made.whole(0)))
            with made.each(end, first) as i:
                value = out.further(here + i * row + j * item).view(dtype)[0]
                out.further(there + j * row + i * item).view(dtype)[0] = value
    return made


def _guarded() -> Routine:
    """While products are at work, OpenBLAS has one thread. Python's lock is held where they are counted."""
    run = Routine(int64, "run", self=[int64], args=[int64], given=int64)
    me, args, count = run.given
    run.lines.declared.add("@blas_state = external global [2 x i64]")
    state = Memory(run, "@blas_state", int64)

    def product() -> Value:
        text = f"call ptr @shared(ptr {me.name}, ptr {args.name}, i64 {count.name})"
        return Memory(run, run.let(text), int64).address

    with run.given_that(run.memory(me[2], int64)[1] == 0):
        run.ends(product())
        run.label()
    others = state[0]
    state[0] = others + 1
    with run.given_that(others == 0):
        state[1] = cast(run.call("openblas_get_num_threads", int32), int64)
        run.call("openblas_set_num_threads", None, run.lines.constant(1, int32))
    made = product()
    fewer = state[0] - 1
    state[0] = fewer
    with run.given_that(fewer == 0):
        run.call("openblas_set_num_threads", None, cast(state[1], int32))
    run.ends(made)
    return run
