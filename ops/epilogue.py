"""A product and what is elementwise behind it, block of rows after block: a thread multiplies some
rows, and at once does with them what the kernel of the rest does, while they are in its cache. The
product itself is nowhere else.

The blocks are oneDNN's sgemm, one thread each; the rest is a kernel as native.py writes it, over the
elements, or rows, of a block. Where operands lie so that this cannot be, the two follow each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .graph import Graph, Node
from .labels import PRODUCTS, SUMS
from .native import (
    Loops,
    around,
    function_of,
    kernel_code,
    loops_over,
    native_kernel,
    strides_over,
    symbol,
)
from .onednn import CHECKED, Stack, check_symbols, library
from .products import _PLAIN, GRAIN, QUICK, _form, _loaded, _stacks, product
from .registry import Scratch
from .scalar import numbers
from .spec import Shape, Spec, float32, int8, lying
from .threads import LIMITS, address_of, most_threads, pool

Behind = Callable[..., None]

BYTES = 1 << 18  # of a block of the product
LEAST = 32  # rows of a block, of which each packs the right matrix anew


def rest_of(body: Graph) -> tuple[Graph, list[int]]:
    """What is behind the product, which is its first operand, and the other operands that it reads."""
    (which,) = (k for k, n in enumerate(body.nodes) if n.op in PRODUCTS)
    rest = [n for n in body.nodes if n.op not in PRODUCTS]
    made, count = body.starts[which], len(body.inputs)
    used = sorted({v for n in rest for v in n.inputs if v < count})
    others = [v for v in range(count, len(body.specs)) if v != made]
    number = {v: k for k, v in enumerate([made, *used, *others])}
    nodes = [
        Node(n.op, tuple(number[v] for v in n.inputs), n.params, n.specs, n.line) for n in rest
    ]
    specs = (body.specs[made], *(body.inputs[v] for v in used))
    return Graph(specs, tuple(nodes), tuple(number[v] for v in body.outputs)), used


def shape_of(a: Shape, b: Shape) -> Shape:
    """Of the product of matrices."""
    return (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


def _most_rows(n: int) -> int:
    """Rows of a block at the most, for them to stay in cache."""
    return max(LEAST, BYTES // (4 * n))


def _room(shape: Shape) -> int:
    """Bytes of a block of a product, in whole lines of the cache."""
    rows = min(_most_rows(shape[-1]), math.prod(shape[:-1]))
    return -(-rows * shape[-1] * 4 // 64) * 64


def block_rows(m: int, n: int, batches: int, threads: int) -> int:
    """Rows of a block: few enough, and about as many blocks for each thread."""
    share = -(-m // threads) if batches == 1 else m
    return -(-share // -(-share // _most_rows(n)))


def epilogue_room(
    ins: Sequence[Shape],
    outs: Sequence[Shape],
    specs: Sequence[Spec],
    *,
    body: Graph,
    way: str = "",
) -> Sequence[Scratch]:
    """A block for each thread."""
    return [Scratch((_room(shape_of(*ins[:2])) * most_threads() + 64,), int8)]


class _Rest(NamedTuple):
    """What is behind a product, for operands and results that lie in one way."""

    body: Graph
    used: list[int]  # which operands it reads
    like: Any  # an array such as the product would be
    strides: Sequence[Sequence[int]]
    axes: int  # 1 if it reduces rows


def epilogue_native(
    arrays: Sequence[Any], threads: int, *, body: Graph, scratch: Sequence[Any], way: str = ""
) -> Behind | None:
    """The kernel for arrays that lie so; None if NumPy has to go node by node."""
    a, b, *_ = arrays
    graph, used = rest_of(body)
    like = lying(shape_of(a.shape, b.shape), float32)
    if like.size == 0 or a.size == 0:
        return None
    others = [*(arrays[v] for v in used), *arrays[len(body.inputs) :]]
    axes = int(any(n.op in SUMS for n in graph.nodes))
    strides = strides_over(graph, like.shape, [like, *others], axes)
    rest = _Rest(graph, used, like, strides, axes)
    return _in_blocks(arrays, rest, threads, scratch) or _in_turn(arrays, rest, threads)


def _in_turn(arrays: Sequence[Any], rest: _Rest, threads: int) -> Behind | None:
    """The whole product, then the rest: for matrices whose neighbours are nowhere side by side. How
    they lie is known too late for a place in the arena, which all others would have to have, too."""
    like, results = rest.like, len(rest.body.outputs)
    first = product(arrays[0], arrays[1], like, threads)
    second = native_kernel(rest.body, like.shape, rest.strides, threads, rest.axes)
    if first is None or second is None:
        return None

    def both(*given: Any) -> None:
        made = np.empty(like.shape, like.dtype)
        first(given[0], given[1], made)
        second(made, *(given[v] for v in rest.used), *given[-results:])

    return both


def _in_blocks(
    arrays: Sequence[Any], rest: _Rest, threads: int, scratch: Sequence[Any]
) -> Behind | None:
    """None if the matrices lie as sgemm does not read them."""
    stacks = _stacks(arrays[0], arrays[1], rest.like)
    loops = _loops(rest.like.shape, rest.strides, rest.axes)
    if stacks is None or loops is None or isinstance(library(), str) or not scratch:
        return None
    a, b, out = stacks
    left, right = _form(a), _form(b)
    if left is None or right is None:
        return None
    (m, n), k = out.shape[-2:], a.shape[-1]
    batches, work = out.size // (m * n), out.size * k
    threads = max(1, min(threads, work // GRAIN))
    block, room = block_rows(m, n, batches, threads), _room(rest.like.shape)
    start = -(-scratch[0].ctypes.data // 64) * 64
    if start + room * threads > scratch[0].ctypes.data + scratch[0].nbytes:
        return None
    blocks = -(-m // block)
    count = 0 if work <= QUICK else min(threads, blocks * batches)
    told = [1, 1, loops.extents[-1], *loops.extents[:-1], *sum(loops.strides, ())]
    behind = np.array([*told, *numbers(rest.body).values()], np.int64)
    letters = [ord("N" if form == _PLAIN else "T") for form, _ in (left, right)]
    facts = [blocks * batches, count, 0, m, block, blocks, n, k, *letters, left[1], right[1]]
    facts += [4 * a.strides[-2], n if len(loops.extents) == 1 else 1]
    facts += [behind.ctypes.data, start, room]
    about = np.concatenate([facts, np.stack([_starts(a), _starts(b)], 1).reshape(-1)])
    results = range(len(arrays) - len(rest.body.outputs), len(arrays))
    text = _text(rest.body, loops, (*rest.used, *results), len(arrays))
    return function_of(text, about, (behind, scratch))


def _starts(s: Stack) -> Any:
    """The byte at which each matrix begins."""
    found = np.zeros(1, np.int64)
    for extent, stride in zip(s.shape[:-2], s.strides[:-2], strict=True):
        found = np.add.outer(found, 4 * stride * np.arange(extent)).reshape(-1)
    return found


def _loops(shape: Shape, strides: Sequence[Sequence[int]], axes: int) -> Loops | None:
    """Loops of which a row of the product is a turn, or so many elements of the only one."""
    loops = loops_over(shape, strides, len(shape) - 1 if axes else -1)
    if len(loops.extents) == 1 and not axes:
        return loops
    loops = loops_over(shape, strides, len(shape) - 1)
    return loops if len(loops.extents) > 1 and loops.extents[-1] == shape[-1] else None


# -- machine code --------------------------------------------------------------------------
_FACTS = (
    *("status", "rows", "block", "blocks", "n", "k", "turn_a", "turn_b", "step_a", "step_b"),
    *("row_a", "unit", "behind", "place", "room"),
)
_TABLE = 2 + len(_FACTS)  # behind them: for each batch where its two matrices begin


@lru_cache(256)
def _text(rest: Graph, loops: Loops, others: tuple[int, ...], many: int) -> str:
    """A turn is a block: sgemm into the thread's own memory, then the rest's kernel, which finds
    the block where it looks for these rows of the whole.
    """
    symbol("dnnl_sgemm", address_of(library(), "dnnl_sgemm"))
    for name in LIMITS:
        symbol(name, pool()[name])
    check_symbols()
    kernel = kernel_code(rest, loops).replace("@body(", "@rest(").replace("@finish(", "@ended(")
    code = [
        kernel,
        _DECLARED,
        "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {",
        "entry:",
        f"  %given = alloca [{1 + len(others)} x ptr]",
        *_loaded("%meta", 2, _FACTS),
        *_loaded("%data", 0, ("a", "b"), "ptr"),
        f"  %table = getelementptr i64, ptr %meta, i64 {_TABLE}",
    ]
    for k, other in enumerate(others, 1):
        code += [
            f"  %from{k} = getelementptr ptr, ptr %data, i64 {other}",
            f"  %array{k} = load ptr, ptr %from{k}",
            f"  %to{k} = getelementptr ptr, ptr %given, i64 {k}",
            f"  store ptr %array{k}, ptr %to{k}",
        ]
    arguments = ", ".join(f"{kind} {value}" for kind, value in _ARGUMENTS)
    return "\n".join(
        [*code, _TURNS.replace("ARGUMENTS", arguments), CHECKED, around(many, "shared")]
    )


_ARGUMENTS = (
    *(("i8 signext", "%char_a"), ("i8 signext", "%char_b")),
    *(("i64", "%count"), ("i64", "%n"), ("i64", "%k"), ("float", "1.0")),
    *(("ptr", "%here_a"), ("i64", "%step_a"), ("ptr", "%here_b"), ("i64", "%step_b")),
    *(("float", "0.0"), ("ptr", "%made"), ("i64", "%n")),
)
_DECLARED = f"""
declare i32 @dnnl_sgemm({", ".join(kind for kind, _ in _ARGUMENTS)})
declare i32 @omp_get_max_threads()
declare void @omp_set_num_threads(i32)
"""

_TURNS = """
  %char_a = trunc i64 %turn_a to i8
  %char_b = trunc i64 %turn_b to i8
  %kernel = inttoptr i64 %behind to ptr
  %skip = mul i64 %thread, %room
  %mine = add i64 %place, %skip
  %made = inttoptr i64 %mine to ptr
  %before = call i32 @omp_get_max_threads()
  call void @omp_set_num_threads(i32 1)
  %some = icmp slt i64 %lo, %hi
  br i1 %some, label %turn, label %end
turn:
  %o = phi i64 [%lo, %entry], [%o1, %turn]
  %batch = udiv i64 %o, %blocks
  %which = urem i64 %o, %blocks
  %row = mul i64 %which, %block
  %left = sub i64 %rows, %row
  %full = icmp slt i64 %block, %left
  %count = select i1 %full, i64 %block, i64 %left
  %pair = shl i64 %batch, 1
  %line = getelementptr i64, ptr %table, i64 %pair
  %over_a = load i64, ptr %line
  %next = getelementptr i64, ptr %line, i64 1
  %over_b = load i64, ptr %next
  %down_a = mul i64 %row, %row_a
  %to_a = add i64 %over_a, %down_a
  %here_a = getelementptr i8, ptr %a, i64 %to_a
  %here_b = getelementptr i8, ptr %b, i64 %over_b
  %done = call i32 @dnnl_sgemm(ARGUMENTS)
  %done64 = sext i32 %done to i64
  %was = load i64, ptr %status_at
  %worse = or i64 %was, %done64
  store i64 %worse, ptr %status_at
  %batch_row = mul i64 %batch, %rows
  %first = add i64 %batch_row, %row
  %last = add i64 %first, %count
  %elements = mul i64 %first, %n
  %bytes = mul i64 %elements, -4
  %whole = getelementptr i8, ptr %made, i64 %bytes
  store ptr %whole, ptr %given
  %begin = mul i64 %first, %unit
  %stop = mul i64 %last, %unit
  call void @rest(ptr %given, ptr %kernel, i64 %begin, i64 %stop, i64 %thread)
  %o1 = add i64 %o, 1
  %more = icmp slt i64 %o1, %hi
  br i1 %more, label %turn, label %end
end:
  call void @omp_set_num_threads(i32 %before)
  ret void
}
"""
