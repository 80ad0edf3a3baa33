"""A matrix product and its epilogue, what is elementwise behind it, block by block: a thread multiplies
some rows and columns, and at once runs the kernel of the rest over them, while they are in its cache. The
product itself is nowhere else.

The blocks are made of tiles (gemm_tiles.py), or are oneDNN's sgemm, one thread each; the rest is a kernel
as ops/cpu/loops/flat.py writes it, over the elements, or rows, of a block. Where operands lie so that
this cannot be, the two follow each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.device import Classes
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS, Params, Scratch, Specs
from ostinato.ops.core.spec import DType, Shape, Spec, float32, int8, strided_like
from ostinato.ops.cpu.jit.code import address_of, symbol
from ostinato.ops.cpu.jit.emitter import Code, loaded
from ostinato.ops.cpu.jit.llvm import function_of
from ostinato.ops.cpu.jit.parallel import around
from ostinato.ops.cpu.libraries.onednn import CHECKED, check_symbols, library, omp
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.loops.flat import kernel_code, native_kernel
from ostinato.ops.cpu.threads import most_threads
from ostinato.ops.jit.epilogues import rest_of
from ostinato.ops.jit.kept_values import MAX_FIXED_EXTENT
from ostinato.ops.jit.loops import Loops, loops_over, strides_over
from ostinato.ops.jit.random_bits import numbers_in
from ostinato.ops.jit.scalar import numbers
from ostinato.ops.jit.stacks import Stack, stacked

from .gemm import _PLAIN, GRAIN, QUICK, _form, product
from .gemm_tiles import AREA, CALLED, Area, GemmKey, block_function, gemm_key
from .turned_gemm import block_of_turned, turned_room, turning_pays

Behind = Callable[..., None]

TILES, SGEMM = "tiles", "sgemm"  # ways of it
BYTES, SGEMM_BYTES, STRIP = LIMITS.block_bytes, LIMITS.sgemm_bytes, LIMITS.sgemm_strip
LANES, TURNED_BY_TILES = LIMITS.wide, LIMITS.sgemm_small
MIN_BLOCK_ROWS = 32  # rows of a block, of which each packs the right matrix anew
MIN_ROWS = 2 * MIN_BLOCK_ROWS  # rows from which blocks are worth it
VECTORS = LIMITS.strip_vectors
# Rows that take as long to multiply as a row of the right matrix, or of its transpose, takes to pack;
# and columns that take as long as to read a row that another thread has made.
PACKING, READING = (8, 24), 24


def multiplies(dtype: DType) -> bool:
    """Whether blocks of products of such matrices can be made."""
    with_tiles = gemm_key(dtype) is not None
    return with_tiles or (dtype == float32 and not isinstance(library(), str))


def epilogue_ways(ins: Specs, outs: Specs, p: Params, threads: int) -> Classes:
    """Who makes the blocks; the rule looks at how they lie, too."""
    form = gemm_key(ins[0].dtype, right=ins[1].dtype)
    both = form is not None and ins[0].dtype == float32 and not isinstance(library(), str)
    return [("as they lie",), (TILES,), (SGEMM,)] if both else []


def shape_of(a: Shape, b: Shape) -> Shape:
    """Return the shape of a product of matrices."""
    return (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


class BlockGrid(NamedTuple):
    """How a product is cut into blocks."""

    block: int  # rows of one
    blocks: int
    strip: int  # columns of one
    strips: int
    width: int  # columns that a block has in memory


def _most_rows(width: int, size: int = BYTES) -> int:
    """Rows of a block at the most, for them to stay in cache."""
    return max(MIN_BLOCK_ROWS, size // (4 * width))


def _strip(n: int, whole: bool) -> int:
    """Columns that sgemm makes at once, which depend on `n` alone."""
    return n if whole else min(n, -(-n // -(-n // STRIP) // LANES) * LANES)


def blocks_of_sgemm(m: int, n: int, batches: int, threads: int, whole: bool) -> BlockGrid:
    """Large ones, since each packs its part of the right matrix anew, and about as many for each thread.
    Rows that are to be `whole` are not cut."""
    strip = _strip(n, whole)
    strips = -(-n // strip)
    share = -(-m // (threads // math.gcd(threads, batches * strips)))
    block = -(-share // -(-share // _most_rows(strip, SGEMM_BYTES)))
    return BlockGrid(block, -(-m // block), strip, strips, strip)


def blocks_of_tiles(
    form: GemmKey, m: int, n: int, k: int, batches: int, threads: int, turned: bool, whole: bool
) -> BlockGrid:
    """For tiles: rows for each thread, or strips of columns, of which each packs its part of the right
    matrix only, but reads rows that others have made. Rows that are to be `whole` are not cut."""
    count = -(-threads // batches)
    most = 1 if whole or n <= MAX_FIXED_EXTENT else max(1, n // (VECTORS * form.lanes))

    def cost(down: int) -> float:
        """Estimate the cost of a block, in its products."""
        rows, columns = -(-m // down), form.width(-(-n * down // count))
        others = READING * rows if down < count else 0
        return (rows + PACKING[turned] * form.pairs) * columns + others

    down = min((d for d in range(1, count + 1) if count % d == 0 and count // d <= most), key=cost)
    strip = min(n, form.width(-(-n * down // count)))
    size = SGEMM_BYTES if form.amx else BYTES
    if form.amx and most > 1:  # what packs both matrices packs the one more often, or the other
        least = VECTORS * form.lanes
        strip = min(strip, least * max(size // (4 * m * least), 2))
    width, share = form.width(strip), -(-m // down)
    limit = _most_rows(width, size)
    if form.packs_left:
        limit = min(limit, max(MIN_BLOCK_ROWS, size // (2 * k)))
    block = -(-share // -(-share // limit))
    block = min(m, -(-block // form.rows) * form.rows)
    return BlockGrid(block, -(-m // block), strip, -(-n // strip), width)


def _room(
    form: GemmKey | None, width: int, block: int, panels: int, k: int
) -> tuple[int, int, int]:
    """Bytes that a thread needs for a block of so many rows, and for panels of so many, or what is turned
    of the left matrix, in whole lines of the cache; and where in them the two begin."""
    if form is None:
        end = _lines(4 * width * block)
        return end + turned_room(panels), 0, end
    above, below = form.beyond
    end = _lines(4 * width * (above + block + below))
    return end + _lines(form.panel_bytes(panels, k)), 4 * width * above, end


def _lines(n: int) -> int:
    return -(-n // 64) * 64


def epilogue_scratch(
    ins: Sequence[Shape],
    outs: Sequence[Shape],
    specs: Sequence[Spec],
    *,
    body: Graph,
    way: str = "",
) -> Sequence[Scratch]:
    """A block and panels for each thread, however the matrices lie and are cut."""
    (*batches, m, n), k = shape_of(*ins[:2]), ins[0][-1]
    rows = m * math.prod(batches)
    needed = _sgemm_bytes(m, n, k, math.prod(batches), most_threads())
    for form in (gemm_key(specs[0].dtype, turned, specs[1].dtype) for turned in (False, True)):
        if form is None:
            continue
        width, size = max(1, form.width(n)), SGEMM_BYTES if form.amx else BYTES
        block = min(rows, _most_rows(width, size) + form.rows)
        copied = min(rows, max(MIN_BLOCK_ROWS, size // (2 * max(k, 1))) + form.rows)
        needed = max(needed, _room(form, width, block, copied, k)[0] * most_threads())
    return [Scratch((needed + 64,), int8)]


@lru_cache(256)
def _sgemm_bytes(m: int, n: int, k: int, batches: int, threads: int) -> int:
    """Bytes that blocks of sgemm need in up to so many threads, of which each then has smaller ones."""
    needed, beside = 0, turning_pays(m, n, k)
    for whole in (False, True) if m * n * batches else ():
        for count in range(1, threads + 1):
            grid = blocks_of_sgemm(m, n, batches, count, whole)
            room, *_ = _room(None, grid.width, grid.block, grid.block * beside, k)
            needed = max(needed, room * count)
    return needed


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
    like = strided_like(shape_of(a.shape, b.shape), float32)
    if like.size == 0 or a.size == 0:
        return None
    others = [*(arrays[v] for v in used), *arrays[len(body.inputs) :]]
    axes = int(any(OPS[n.op].reduce for n in graph.nodes))
    strides = strides_over(graph, like.shape, [like, *others], axes)
    rest = _Rest(graph, used, like, strides, axes)
    return _in_blocks(arrays, rest, threads, scratch, way) or _in_turn(arrays, rest, threads)


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
    arrays: Sequence[Any], rest: _Rest, threads: int, scratch: Sequence[Any], way: str
) -> Behind | None:
    """None if the matrices lie so that blocks cannot be read, or no place was kept."""
    stacks = stacked(arrays[0], arrays[1], rest.like)
    if stacks is None or not scratch:
        return None
    a, b, out = stacks
    left, right = _form(a), _form(b)
    if left is None or right is None:
        return None
    (m, n), k = out.shape[-2:], a.shape[-1]
    batches, work, items = out.size // (m * n), out.size * k, [x.itemsize for x in arrays[:2]]
    threads = max(1, min(threads, work // GRAIN))
    form = gemm_key(arrays[0].dtype, left[0] != _PLAIN, arrays[1].dtype)
    sgemm = arrays[0].dtype == float32 and not isinstance(library(), str)
    if sgemm and (
        way == SGEMM or (way != TILES and (right[0] == _PLAIN or n * k > TURNED_BY_TILES))
    ):
        form = None  # it reads a matrix in rows where that lies
    if form is not None and ((m < form.rows and not form.amx) or k % form.pairs):
        form = None
    whole = rest.axes > 0 or bool(numbers_in(rest.body))
    if form is not None:
        turned = right[0] != _PLAIN
        grid = blocks_of_tiles(form, m, n, k, batches, threads, turned, whole)
    elif sgemm:
        grid = blocks_of_sgemm(m, n, batches, threads, whole)
    else:
        return None
    like = strided_like((*rest.like.shape[:-1], grid.width), float32)[..., :n]
    strides = [like.strides, *rest.strides[1:]]
    loops = _loops(like.shape, strides, rest.axes, grid.strips > 1)
    if loops is None:
        return None
    turns_left = form is None and left[0] != _PLAIN and turning_pays(m, n, k)
    turned_rows = grid.block if form is not None or turns_left else 0
    room, place, panels = _room(form, grid.width, grid.block, turned_rows, k)
    start = -(-scratch[0].ctypes.data // 64) * 64
    if start + room * threads > scratch[0].ctypes.data + scratch[0].nbytes:
        return None
    turns = grid.blocks * grid.strips * batches
    count = 0 if work <= QUICK else min(threads, turns)
    told = []
    for strip in range(grid.strips):
        last = min(grid.strip, n - strip * grid.strip) if grid.strips > 1 else loops.extents[-1]
        told += [1, 1, last, *loops.extents[:-1], *sum(loops.strides, ())]
        told += numbers(rest.body).values()
    behind = np.array(told, np.int64)
    if form is None:
        forms = [ord("N" if seen == _PLAIN else "T") for seen, _ in (left, right)]
        steps = [left[1], right[1]]
    else:
        forms = [int(seen != _PLAIN) for seen, _ in (left, right)]
        steps = [items[0] * left[1], items[1] * right[1]]
    facts = [turns, count, 0, m, grid.block, grid.blocks, n, grid.strip, grid.strips, k, *forms]
    facts += [*steps, items[0] * a.strides[-2], items[1] * b.strides[-1]]
    facts += [grid.width if len(loops.extents) == 1 else 1, 4 * grid.width]
    facts += [behind.ctypes.data, behind.nbytes // grid.strips, start, room, place, panels]
    starts = [_starts(s, item) for s, item in zip((a, b), items, strict=True)]
    about = np.concatenate([facts, np.stack(starts, 1).reshape(-1)])
    results = range(len(arrays) - len(rest.body.outputs), len(arrays))
    text = _text(rest.body, loops, (*rest.used, *results), len(arrays), form, turns_left)
    return function_of(text, about, (behind, scratch))


def _starts(s: Stack, item: int) -> Any:
    """The byte at which each matrix begins."""
    found = np.zeros(1, np.int64)
    for extent, stride in zip(s.shape[:-2], s.strides[:-2], strict=True):
        found = np.add.outer(found, item * stride * np.arange(extent)).reshape(-1)
    return found


def _loops(shape: Shape, strides: Sequence[Sequence[int]], axes: int, cut: bool) -> Loops | None:
    """Loops of which a row of the product is a turn, or so many elements of the only one, unless
    rows are cut."""
    loops = loops_over(shape, strides, len(shape) - 1 if axes or cut else -1)
    if len(loops.extents) == 1 and not axes and not cut:
        return loops
    loops = loops_over(shape, strides, len(shape) - 1)
    return loops if len(loops.extents) > 1 and loops.extents[-1] == shape[-1] else None


# -- machine code --------------------------------------------------------------------------
_FACTS = (
    *("status", "rows", "block", "blocks", "n", "strip", "strips", "k", "turn_a", "turn_b"),
    *("step_a", "step_b", "row_a", "column_b", "unit", "row_c", "behind", "each", "place", "room"),
    *("to_block", "to_panels"),
)
_TABLE = 2 + len(_FACTS)  # behind them: for each batch where its two matrices begin


@lru_cache(256)
def _text(
    rest: Graph,
    loops: Loops,
    others: tuple[int, ...],
    many: int,
    form: GemmKey | None,
    turns_left: bool,
) -> str:
    """A turn is a block: multiplied into the thread's own memory, then the rest's kernel, which finds
    the block where it looks for these rows and columns of the whole."""
    check_symbols()
    kernel = kernel_code(rest, loops).replace("@body(", "@rest(").replace("@finish(", "@ended(")
    multiplied, called, declared = _by_sgemm(turns_left) if form is None else _by_tiles(form)
    last = len(loops.extents) - 1
    code = [
        kernel,
        declared,
        "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {",
        "entry:",
        f"  %given = alloca [{1 + len(others)} x ptr]",
        *loaded("%meta", 2, _FACTS),
        *loaded("%data", 0, ("a", "b"), "ptr"),
        f"  %table = getelementptr i64, ptr %meta, i64 {_TABLE}",
        *multiplied,
    ]
    beside, given = list[str](), list[str]()
    for k, other in enumerate(others, 1):
        code += [
            f"  %from{k} = getelementptr ptr, ptr %data, i64 {other}",
            f"  %array{k} = load ptr, ptr %from{k}",
        ]
        beside += [
            f"  %along{k}_at = getelementptr i64, ptr %kernel, i64 {3 + last + k * (1 + last) + last}",
            f"  %along{k} = load i64, ptr %along{k}_at",
            f"  %skip{k} = mul i64 %column, %along{k}",
            f"  %strip{k} = getelementptr i8, ptr %array{k}, i64 %skip{k}",
        ]
        given += [
            f"  %to{k} = getelementptr ptr, ptr %given, i64 {k}",
            f"  store ptr %strip{k}, ptr %to{k}",
        ]
    if form is not None:
        code.append(f"  %ahead = alloca [{AREA * (1 + len(others))} x i8], align 8")
        called = _areas(loops, len(others)) + called
    turns = _TURNS.replace("GIVEN", "\n".join(given)).replace("BESIDE", "\n".join(beside))
    turns = turns.replace("CALLED", "\n".join(called))
    after = "  call void @omp_set_num_threads(i32 %before)\n" if form is None else ""
    shared = around(many, "shared", held=form is None)
    return "\n".join([*code, turns.replace("AFTER", after), CHECKED, shared])


def _by_sgemm(turns_left: bool) -> tuple[list[str], list[str], str]:
    """Write what stands before the iterations, in each of them, and before all."""
    symbol("dnnl_sgemm", address_of(library(), "dnnl_sgemm"))
    for name, code in omp().items():
        symbol(name, code)
    before = [
        "  %char_a = trunc i64 %turn_a to i8",
        "  %char_b = trunc i64 %turn_b to i8",
        "  %width = udiv i64 %row_c, 4",
        "  %before = call i32 @omp_get_max_threads()",
        "  call void @omp_set_num_threads(i32 1)",
    ]
    given: Sequence[tuple[str, str]] = _TURNED if turns_left else _ARGUMENTS
    name = block_of_turned() if turns_left else "dnnl_sgemm"
    wide = "%done64" if turns_left else "%done"
    kind = "i64" if turns_left else "i32"
    called = [f"  {wide} = call {kind} @{name}({', '.join(f'{k} {v}' for k, v in given)})"]
    called += [] if turns_left else ["  %done64 = sext i32 %done to i64"]
    called += [
        "  %was = load i64, ptr %status_at",
        "  %worse = or i64 %was, %done64",
        "  store i64 %worse, ptr %status_at",
    ]
    declared = f"declare {kind} @{name}({', '.join(k for k, _ in given)})"
    return before, called, declared + _DECLARED


def _by_tiles(form: GemmKey) -> tuple[list[str], list[str], str]:
    name = block_function(form)
    values = (
        *("%here_a", "%step_a", "%count", "%here_b", "%step_b", "%turned_b", "%columns", "%k"),
        *("%made", "%row_c", "%panels", "%ahead"),
    )
    given = ", ".join(f"{kind} {v}" for kind, v in zip(CALLED.split(", "), values, strict=True))
    return (
        ["  %turned_b = trunc i64 %turn_b to i1"],
        [f"  call void @{name}({given})"],
        f"declare void @{name}({CALLED})",
    )


def _areas(loops: Loops, many: int) -> list[str]:
    """The list of what the rest reads and writes of a block, if its rows are one loop."""
    code, last, listed = Code(), len(loops.extents) - 1, 0
    for k in range(1, many + 1) if last < 2 else ():
        row = code.let(f"getelementptr i64, ptr %kernel, i64 {3 + last + k * (1 + last)}")
        step, rows = code.let(f"load i64, ptr {row}"), "%count"
        if last:
            bytes_ = code.times("%columns", f"%along{k}")
            one = code.let(f"icmp eq i64 {step}, 0")
            rows = code.let(f"select i1 {one}, i64 1, i64 %count")
        else:
            bytes_ = step = code.times(step, "%unit")
        from_ = code.let(f"getelementptr i8, ptr %strip{k}, i64 {code.times('%first', step)}")
        at = code.let(f"ptrtoint ptr {from_} to i64")
        to = code.let(f"getelementptr i8, ptr %ahead, i64 {AREA * listed}")
        Area(at, rows, at, rows, step, code.sum(at, bytes_, "-1")).store(code, to)
        listed += 1
    to = code.let(f"getelementptr i8, ptr %ahead, i64 {AREA * listed}")
    at = code.let("ptrtoint ptr %ahead to i64")
    Area(at, "0", at, "0", "0", at).store(code, to)
    return code.lines.text


_ARGUMENTS = (
    *(("i8 signext", "%char_a"), ("i8 signext", "%char_b")),
    *(("i64", "%count"), ("i64", "%columns"), ("i64", "%k"), ("float", "1.0")),
    *(("ptr", "%here_a"), ("i64", "%step_a"), ("ptr", "%here_b"), ("i64", "%step_b")),
    *(("float", "0.0"), ("ptr", "%made"), ("i64", "%width")),
)
_TURNED = (
    *(("ptr", "%here_a"), ("i64", "%step_a"), ("i64", "%count"), ("ptr", "%here_b")),
    *(("i64", "%step_b"), ("i64", "%turn_b"), ("i64", "%columns"), ("i64", "%k")),
    *(("ptr", "%made"), ("i64", "%width"), ("ptr", "%panels")),
)
_DECLARED = """
declare i32 @omp_get_max_threads()
declare void @omp_set_num_threads(i32)
"""

_TURNS = """
  %own = mul i64 %thread, %room
  %mine = add i64 %place, %own
  %made_at = add i64 %mine, %to_block
  %made = inttoptr i64 %made_at to ptr
  %panels_in = add i64 %mine, %to_panels
  %panels = inttoptr i64 %panels_in to ptr
  %each_matrix = mul i64 %blocks, %strips
  %some = icmp slt i64 %lo, %hi
  br i1 %some, label %turn, label %end
turn:
  %o = phi i64 [%lo, %entry], [%o1, %turn]
  %batch = udiv i64 %o, %each_matrix
  %part = urem i64 %o, %each_matrix
  %which_strip = udiv i64 %part, %blocks
  %which = urem i64 %part, %blocks
  %row = mul i64 %which, %block
  %left = sub i64 %rows, %row
  %full = icmp slt i64 %block, %left
  %count = select i1 %full, i64 %block, i64 %left
  %column = mul i64 %which_strip, %strip
  %beside = sub i64 %n, %column
  %wide = icmp slt i64 %strip, %beside
  %columns = select i1 %wide, i64 %strip, i64 %beside
  %pair = shl i64 %batch, 1
  %line = getelementptr i64, ptr %table, i64 %pair
  %over_a = load i64, ptr %line
  %next = getelementptr i64, ptr %line, i64 1
  %over_b = load i64, ptr %next
  %down_a = mul i64 %row, %row_a
  %to_a = add i64 %over_a, %down_a
  %here_a = getelementptr i8, ptr %a, i64 %to_a
  %along_b = mul i64 %column, %column_b
  %to_b = add i64 %over_b, %along_b
  %here_b = getelementptr i8, ptr %b, i64 %to_b
  %over_kernel = mul i64 %which_strip, %each
  %kernel_at = add i64 %behind, %over_kernel
  %kernel = inttoptr i64 %kernel_at to ptr
  %batch_row = mul i64 %batch, %rows
  %first = add i64 %batch_row, %row
  %last = add i64 %first, %count
BESIDE
CALLED
  %bytes = mul i64 %first, %row_c
  %up = sub i64 0, %bytes
  %whole = getelementptr i8, ptr %made, i64 %up
  store ptr %whole, ptr %given
GIVEN
  %begin = mul i64 %first, %unit
  %stop = mul i64 %last, %unit
  call void @rest(ptr %given, ptr %kernel, i64 %begin, i64 %stop, i64 %thread)
  %o1 = add i64 %o, 1
  %more = icmp slt i64 %o1, %hi
  br i1 %more, label %turn, label %end
end:
AFTER  ret void
}
"""
