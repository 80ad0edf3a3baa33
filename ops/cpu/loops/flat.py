"""Kernels as machine code: a chain of elementwise operations in one loop, made with LLVM.

A kernel's text depends on what it computes, on dtypes, and on how operands are repeated, but not on
extents, so that few kernels serve many shapes. ops/cpu/jit/llvm.py makes a function of it that Python
calls directly, with arrays; ops/cpu/jit/parallel.py shares large ones among threads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Shape, bool_, real_of
from ostinato.ops.cpu.jit.emitter import memory_type
from ostinato.ops.cpu.jit.kept_text import kept_on_disk
from ostinato.ops.cpu.jit.lines import LlvmLines, literal, llvm_type, number_at
from ostinato.ops.cpu.jit.llvm import function_of, processor, vector_bits
from ostinato.ops.cpu.jit.parallel import around
from ostinato.ops.cpu.limits import LIMITS, ZEN_4
from ostinato.ops.jit.combining import Combination, compensated, element, joined, ordered, unordered
from ostinato.ops.jit.kept_values import MAX_FIXED_EXTENT
from ostinato.ops.jit.loops import Loops, loops_of
from ostinato.ops.jit.pairs import Pair
from ostinato.ops.jit.random_bits import numbers_in
from ostinato.ops.jit.scalar import Part, numbers
from ostinato.ops.jit.values import Value

from .stages import CHUNK

GRAIN = LIMITS.loops_wake
BLOCK = 16384  # elements that one turn sums
# Elements; and bytes between neighbours, from which tiles pay.
LEAST_TILED, FAR_APART = LIMITS.least_tiled, LIMITS.far_apart
TILE_ROWS, TILE_COLUMNS = LIMITS.tile, LIMITS.tile
FEW_BESIDE = 4  # turns of an innermost loop that is written out ...
MANY_TURNS = 64  # ... where the next one has so many
FEW_APART = 4  # elements from one to the next in operands that are put side by side first ...
MAX_STEP_BYTES = 16  # ... if these are fewer bytes, or it is every second one, and ...
MANY_APART = 128  # ... a loop has so many turns
SHARE = LIMITS.last_share


def tiled(loops: Loops, sizes: Sequence[int]) -> Loops:
    """Loops of which some operand is a transpose, so that its lines of the cache are used up before they
    go; the same for others. `sizes` are the bytes of their elements."""
    last = len(loops.extents) - 1
    whole = math.prod(loops.extents)
    for size, steps in zip(sizes, loops.strides, strict=True):
        if last < 1 or whole < LEAST_TILED or abs(steps[last]) < FAR_APART:
            continue
        for d in range(last):
            if abs(steps[d]) == size and loops.extents[d] > 1:
                return _tiled(loops, d)
    return loops


def all_beside(loops: Loops) -> Loops:
    """Loops of which the innermost has so few turns, as the channels of a picture, that they are written
    one after the other, and the next loop is the one that has vectors."""
    *outer, count = loops.extents
    if not outer or not 1 <= count <= FEW_BESIDE or outer[-1] < MANY_TURNS:
        return loops
    beside = tuple(tuple(c * steps[-1] for steps in loops.strides) for c in range(count))
    return Loops(tuple(outer), tuple(steps[:-1] for steps in loops.strides), None, beside)


def _tiled(loops: Loops, d: int) -> Loops:
    def outer(n: int, size: int) -> int:
        return -(-n // size)

    *others, columns = loops.extents
    rows = others[d]
    others[d] = outer(rows, TILE_ROWS)
    extents = (*others, outer(columns, TILE_COLUMNS), TILE_ROWS, TILE_COLUMNS)
    strides = []
    for *steps, along in loops.strides:
        down = steps[d]
        steps[d] *= TILE_ROWS
        strides.append((*steps, along * TILE_COLUMNS, down, along))
    return Loops(extents, tuple(strides), (d, rows, columns))


# -- text ----------------------------------------------------------------------------------
def kernel_text(body: Graph, loops: Loops, share: int = SHARE) -> str:
    """A module in LLVM's language: `body` for some turns, `finish` for what is put together at the end, and
    `run` for Python."""
    return f"{kernel_code(body, loops, share)}\n{around(len(body.inputs) + len(body.outputs))}"


def kernel_code(body: Graph, loops: Loops, share: int = SHARE) -> str:
    """`body` and `finish`."""
    return _code(body, loops, streams(body, loops, share))


@kept_on_disk
def _code(body: Graph, loops: Loops, past: bool) -> str:
    """The two; results go past the caches if that is said.

    A turn is an element, a row of the innermost loop where there are more, or a block of elements
    where all of them are reduced."""
    declared, code = kernel_parts(body, loops, past)
    return "\n".join([*sorted(declared), code])


def kernel_parts(body: Graph, loops: Loops, past: bool) -> tuple[set[str], str]:
    """Return the declarations that `body` and `finish` need, which a module has once, and these."""
    dtypes = [s.dtype for s in (*body.inputs, *body.out_specs)]
    many, last = len(dtypes), len(loops.extents) - 1
    lines, hoisted, loads = LlvmLines(), list[str](), list[str]()
    known = {part: f"%known{n}" for n, part in enumerate(numbers(body))}
    counted = numbers_in(body)
    apart = _apart(body, loops)
    stores, sums, written = list[str](), list[Combination](), list[tuple[int, DType]]()
    for first in range(many, many * (1 + len(loops.beside)), many) if loops.beside else (0,):
        values: list[Value] = []
        for k, s in enumerate(body.inputs):
            step = loops.strides[k][-1]
            text = loads if step else hoisted
            if k in counted:
                values.append(_number(lines, hoisted, text, first + k, step))
            elif k in apart:
                values.append(_load(lines, text, k, s.dtype, s.dtype.itemsize, "near"))
            else:
                values.append(_load(lines, text, first + k, s.dtype, step))
        made, reduced = element(body, lines, values, known)
        sums += reduced
        for k, value in made:
            _store(stores, first + k, value, loops.strides[k][-1], "tile" if past else "p")
            written.append((k, dtypes[k]))
    blocks = bool(sums) and last == 0
    data = _data(body, known, _meta_of(many, last))
    room = _meta_of(many, last) + len(known)  # for partial results
    once, each, after = _places(loops, many)
    short = last > 0 and loops.extents[-1] <= MAX_FIXED_EXTENT
    extent = str(loops.extents[-1]) if short else "%extent"
    code = [
        "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {",
        "entry:",
        *(f"  %m{k} = getelementptr i64, ptr %meta, i64 {k}" for k in range(3 + last)),
        "  %extent = load i64, ptr %m2",
        *(f"  %e{d} = load i64, ptr %m{3 + d}" for d in range(last)),
        *data,
        *once,
        *(_buffers("buffer", written) if past else []),
        *_buffers("beside", [(k, dtypes[k]) for k in apart]),
    ]
    turns = last > 0 or blocks
    if turns:
        code += [
            "  %some = icmp slt i64 %lo, %hi",
            "  br i1 %some, label %row, label %end",
            "row:",
            "  %o = phi i64 [%lo, %entry], [%o1, %rowend]",
        ]
    begin, stop = ("0", extent) if last else ("%lo", "%hi")
    start = "row" if turns else "entry"
    code += each
    # steps that are known make vectors of what is beside
    for c, offsets in enumerate(loops.beside, 1):
        for k, offset in enumerate(offsets):
            code.append(f"  %p{c * many + k} = getelementptr i8, ptr %p{k}, i64 {offset}")
            code.append(f"  %step{c * many + k} = add i64 {loops.strides[k][-1]}, 0")
    if loops.tiled is not None:
        code += _inside_tile(last, loops.tiled[0], room)
        stop, start = "%stop", "inside"
    code += hoisted
    if blocks:
        code += [
            f"  %begin = mul i64 %o, {BLOCK}",
            f"  %full = add i64 %begin, {BLOCK}",
            "  %least = icmp slt i64 %full, %extent",
            "  %stop = select i1 %least, i64 %full, i64 %extent",
        ]
        begin, stop = "%begin", "%stop"
    work = [*loads, *lines.text]
    near = _brought_near(apart, dtypes)
    lines.declared |= {_picking(step, dtypes[k]) for k, step in apart.items()}
    if sums:
        code += _reduced(lines, sums, near, work, stores, begin, stop, short)
        code += _partials(sums, blocks, room)
    elif past or near:
        code += _tile_by_tile(near, work, stores, written if past else (), begin, stop, start)
        lines.declared |= {_STREAM} if past else set()
    else:
        code += [
            f"  %any = icmp slt i64 {begin}, {stop}",
            "  br i1 %any, label %loop, label %rowend",
            "loop:",
            f"  %i = phi i64 [{begin}, %{start}], [%i1, %loop]",
            *work,
            *stores,
            "  %i1 = add nsw i64 %i, 1",
            f"  %more = icmp slt i64 %i1, {stop}",
            "  br i1 %more, label %loop, label %rowend, !llvm.loop !0",
        ]
    code.append("rowend:")
    if turns:
        code += [
            *after,
            "  %o1 = add nsw i64 %o, 1",
            "  %rest = icmp slt i64 %o1, %hi",
            "  br i1 %rest, label %row, label %end",
        ]
    else:
        code.append("  br label %end")
    # stores past the caches are in no order with others
    fence = ["  fence seq_cst"] if past else []
    code += ["end:", *fence, "  ret void", "}"]
    code += _finish(lines, sums if blocks else [], data, room)
    body_text = "\n".join(code)
    sizes = [real_of(t).itemsize for t in dtypes]
    if any(loops.strides[k][-1] == -dtypes[k].itemsize for k in range(many)):
        # of such loads LLVM has two prices, and where these choose two widths it ends the process
        lines.declared.add(
            "!10 = distinct !{!10, !2, !11}\n"
            f'!11 = !{{!"llvm.loop.vectorize.width", i32 {vector_bits() // 8 // max(sizes)}}}'
        )
        body_text = body_text.replace("!llvm.loop !0", "!llvm.loop !10")
    return lines.declared, body_text


def _places(loops: Loops, many: int) -> tuple[list[str], list[str], list[str]]:
    """Where each operand begins in a turn: what is found out once, in each turn, and at its end,
    when the outermost loops' counters go on like those of a clock."""
    last = len(loops.extents) - 1
    once, each, after = list[str](), list[str](), list[str]()
    if last:
        once.append(f"  %r{last} = add i64 %lo, 0")
        for d in reversed(range(1, last)):
            once += [f"  %f{d} = urem i64 %r{d + 1}, %e{d}", f"  %r{d} = udiv i64 %r{d + 1}, %e{d}"]
        once.append("  %f0 = add i64 %r1, 0")
        each += [f"  %x{d} = phi i64 [%f{d}, %entry], [%n{d}, %rowend]" for d in range(last)]
        after.append(f"  %u{last - 1} = add i64 %x{last - 1}, 1")
        for d in reversed(range(1, last)):
            after += [
                f"  %over{d} = icmp eq i64 %u{d}, %e{d}",
                f"  %n{d} = select i1 %over{d}, i64 0, i64 %u{d}",
                f"  %carry{d} = zext i1 %over{d} to i64",
                f"  %u{d - 1} = add i64 %x{d - 1}, %carry{d}",
            ]
        after.append("  %n0 = add i64 %u0, 0")
    for k in range(many):
        at = _meta_of(k, last)
        once.append(f"  %q{k}_0 = load ptr, ptr {_slot('%data', k, 'ptr', once)}")
        for d in range(last):
            once.append(f"  %s{k}_{d} = load i64, ptr {_slot('%meta', at + d, 'i64', once)}")
            each.append(f"  %w{k}_{d} = mul i64 %s{k}_{d}, %x{d}")
            each.append(f"  %q{k}_{d + 1} = getelementptr i8, ptr %q{k}_{d}, i64 %w{k}_{d}")
        once.append(f"  %step{k} = load i64, ptr {_slot('%meta', at + last, 'i64', once)}")
        each.append(f"  %p{k} = getelementptr i8, ptr %q{k}_{last}, i64 0")
    return once, each, after


def _inside_tile(last: int, d: int, room: int) -> list[str]:
    """Leaves out the rows of a tile that are none of the operand's, and its columns."""
    return [
        f"  %rows_p = getelementptr i64, ptr %meta, i64 {room}",
        "  %rows = load i64, ptr %rows_p",
        f"  %columns_p = getelementptr i64, ptr %meta, i64 {room + 1}",
        "  %columns = load i64, ptr %columns_p",
        f"  %above = mul i64 %x{d}, {TILE_ROWS}",
        f"  %here = add i64 %above, %x{last - 1}",
        f"  %before = mul i64 %x{last - 2}, {TILE_COLUMNS}",
        "  %left = sub i64 %columns, %before",
        f"  %few = icmp slt i64 %left, {TILE_COLUMNS}",
        f"  %stop = select i1 %few, i64 %left, i64 {TILE_COLUMNS}",
        "  %in = icmp slt i64 %here, %rows",
        "  br i1 %in, label %inside, label %rowend",
        "inside:",
    ]


def _meta_of(k: int, last: int) -> int:
    """Where the meta array has an operand's strides. Before them: turns, threads, the
    innermost extent, the other extents; behind them numbers, and room for partial results."""
    return 3 + last + k * (1 + last)


def _data(body: Graph, known: Mapping[Part, str], begin: int) -> list[str]:
    """Loads of the numbers that are data: `%known0`, ..."""
    code = list[str]()
    for n, ((v, _), name) in enumerate(known.items()):
        code += [
            f"  {name}_p = getelementptr i64, ptr %meta, i64 {begin + n}",
            f"  {name} = load {llvm_type(real_of(body.specs[v].dtype))}, ptr {name}_p",
        ]
    return code


# -- reductions ----------------------------------------------------------------------------
def _reduced(
    lines: LlvmLines,
    sums: Sequence[Combination],
    near: Sequence[str],
    work: Sequence[str],
    stores: Sequence[str],
    begin: str,
    stop: str,
    short: bool,
) -> list[str]:
    """A turn: chunks, whose sums are free in order, and their sum, which is compensated."""
    inside, between = LlvmLines(), LlvmLines()
    inside.count = lines.count
    accumulated = []
    for n, s in enumerate(sums):
        value, total = (
            Value(inside, s.value.name, s.dtype),
            Value(inside, f"%acc{n}", s.inside[0]),
        )
        if s.ordered:
            value = ordered(s.kind, value)
        # within a chunk the order is free, so that lanes can share it
        accumulated.append(joined(s.kind, total, value, "reassoc"))
    between.count = inside.count
    made = [Value(between, a.name, a.dtype) for a in accumulated]
    made = [unordered(a) if s.ordered else a for s, a in zip(sums, made, strict=True)]
    totals = [_onto(between, s, n, made[n].name) for n, s in enumerate(sums)]
    lines.count = between.count
    lines.declared |= inside.declared | between.declared
    code = [
        f"  %any = icmp slt i64 {begin}, {stop}",
        "  br i1 %any, label %chunk, label %summed",
        "chunk:",
        f"  %c = phi i64 [{begin}, %row], [%cend, %chunkend]",
    ]
    code += [
        *_carried(sums, totals, "tot", "lost", "row", "chunkend"),
        f"  %cfull = add i64 %c, {MAX_FIXED_EXTENT if short else CHUNK}",
        f"  %cless = icmp slt i64 %cfull, {stop}",
        f"  %cend = select i1 %cless, i64 %cfull, i64 {stop}",
        *near,
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [%c, %chunk], [%i1, %loop]",
    ]
    for n, s in enumerate(sums):
        dtype, first = s.inside
        start, again = literal(first, dtype), accumulated[n].name
        code.append(f"  %acc{n} = phi {llvm_type(dtype)} [{start}, %chunk], [{again}, %loop]")
    code += [
        *work,
        *inside.text,
        *stores,
        "  %i1 = add nsw i64 %i, 1",
        "  %more = icmp slt i64 %i1, %cend",
        "  br i1 %more, label %loop, label %chunkend, !llvm.loop !0",
        "chunkend:",
        *between.text,
        f"  %cmore = icmp slt i64 %cend, {stop}",
        "  br i1 %cmore, label %chunk, label %summed",
        "summed:",
        *_ended(sums, totals, "row", "chunkend"),
    ]
    return code


def _carried(
    sums: Sequence[Combination],
    totals: Sequence[tuple[str, str]],
    total: str,
    lost: str,
    before: str,
    back: str,
) -> list[str]:
    """Totals and what rounding lost, as they come into a block of code from two others."""
    code = []
    for n, s in enumerate(sums):
        kind, (made, kept) = llvm_type(s.dtype), totals[n]
        start = literal(s.start, s.dtype)
        code.append(f"  %{total}{n} = phi {kind} [{start}, %{before}], [{made}, %{back}]")
        if s.compensated:
            zero = literal(0, s.dtype)
            code.append(f"  %{lost}{n} = phi {kind} [{zero}, %{before}], [{kept}, %{back}]")
    return code


def _ended(
    sums: Sequence[Combination], totals: Sequence[tuple[str, str]], before: str, back: str
) -> list[str]:
    """The sums after a loop, named `_total` of each."""
    code = _carried(sums, totals, "sum", "rest", before, back)
    for n, s in enumerate(sums):
        if s.compensated:
            code.append(f"  {_total(s, n)} = fadd {llvm_type(s.dtype)} %sum{n}, %rest{n}")
    return code


def _total(s: Combination, n: int) -> str:
    return f"%all{n}" if s.compensated else f"%sum{n}"


def _onto(lines: LlvmLines, s: Combination, n: int, more: str) -> tuple[str, str]:
    """The total with one more, and what rounding lost."""
    total, value = Value(lines, f"%tot{n}", s.dtype), Value(lines, more, s.dtype)
    if not s.compensated:
        return joined(s.kind, total, value).name, ""
    made, kept = compensated(total, Value(lines, f"%lost{n}", s.dtype), value)
    return made.name, kept.name


def _final(lines: list[str], s: Combination, n: int) -> str:
    """The name of a finished sum."""
    name = _total(s, n)
    if not s.divisor:
        return name
    lines.append(f"  %mean{n} = fdiv {llvm_type(s.dtype)} {name}, {s.divisor}")
    return f"%mean{n}"


def _part(lines: list[str], address: str, s: Combination) -> str:
    """Where a sum's part of a result lies."""
    if not s.part:
        return address
    name = f"%second{len(lines)}"
    lines.append(f"  {name} = getelementptr {llvm_type(s.dtype)}, ptr {address}, i64 {s.part}")
    return name


def _partials(sums: Sequence[Combination], blocks: bool, room: int) -> list[str]:
    """A turn's results: to their place, or, where blocks are put together later, to a waiting room."""
    code: list[str] = []
    if blocks:
        code.append("  %turns = load i64, ptr %meta")
    for n, s in enumerate(sums):
        kind = llvm_type(s.dtype)
        if not blocks:
            name = _final(code, s, n)
            to = _part(code, f"%p{s.out}", s)
            code.append(f"  store {kind} {name}, ptr {to}, align {s.dtype.itemsize}")
            continue
        code += _waiting(n, room)
        code.append(f"  store {kind} {_total(s, n)}, ptr %wait{n}, align 8")
    return [*code, "  br label %rowend"]


def _waiting(n: int, room: int) -> list[str]:
    """Where turn %o's part of a sum waits: behind the meta array's facts."""
    return [
        f"  %room{n} = mul i64 %turns, {n}",
        f"  %seat{n} = add i64 %room{n}, %o",
        f"  %spot{n} = add i64 %seat{n}, {room}",
        f"  %wait{n} = getelementptr i64, ptr %meta, i64 %spot{n}",
    ]


def _finish(
    lines: LlvmLines, sums: Sequence[Combination], data: Sequence[str], room: int
) -> list[str]:
    """Puts the blocks' results together, in their order."""
    code = ["define internal void @finish(ptr %data, ptr %meta) {", "entry:", *data]
    if not sums:
        return [*code, "  ret void", "}"]
    between = LlvmLines()
    totals = [_onto(between, s, n, f"%part{n}") for n, s in enumerate(sums)]
    lines.declared |= between.declared
    code += [
        "  %turns = load i64, ptr %meta",
        "  %any = icmp slt i64 0, %turns",
        "  br i1 %any, label %loop, label %summed",
        "loop:",
        "  %o = phi i64 [0, %entry], [%o1, %loop]",
        *_carried(sums, totals, "tot", "lost", "entry", "loop"),
    ]
    for n, s in enumerate(sums):
        code += _waiting(n, room)
        code.append(f"  %part{n} = load {llvm_type(s.dtype)}, ptr %wait{n}, align 8")
    code += [
        *between.text,
        "  %o1 = add nsw i64 %o, 1",
        "  %more = icmp slt i64 %o1, %turns",
        "  br i1 %more, label %loop, label %summed",
        "summed:",
        *_ended(sums, totals, "entry", "loop"),
    ]
    for n, s in enumerate(sums):
        kind = llvm_type(s.dtype)
        name = _final(code, s, n)
        base = _slot("%data", s.out, "ptr", code)
        code += [f"  %to{n} = load ptr, ptr {base}"]
        to = _part(code, f"%to{n}", s)
        code.append(f"  store {kind} {name}, ptr {to}, align {s.dtype.itemsize}")
    return [*code, "  ret void", "}"]


# -- large results -------------------------------------------------------------------------
TILE = LIMITS.written_tile
ROW = 4  # tiles that a row has at the least


@lru_cache(1)
def _last_cache() -> int:
    """Its bytes; those of a small one if the system does not say."""
    try:
        found = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (AttributeError, ValueError, OSError):
        found = 0
    return found if found > 0 else 32 << 20


def _apart(body: Graph, loops: Loops) -> dict[int, int]:
    """Operands whose neighbours are a few elements from each other, as the channels of a picture are or
    every second number: how many. They are put side by side chunk by chunk, whose loop then has vectors.
    """
    if loops.tiled is not None or loops.beside or loops.extents[-1] < MANY_APART:
        return {}
    nowhere, found = numbers_in(body), {}
    for k, s in enumerate(body.inputs):
        step, over = divmod(loops.strides[k][-1], s.dtype.itemsize)
        near = s.dtype.itemsize <= 8 and (step == 2 or step * s.dtype.itemsize < MAX_STEP_BYTES)
        if k not in nowhere and not over and near and 1 < step <= FEW_APART:
            found[k] = step
    return found


def streams(body: Graph, loops: Loops, share: int = SHARE) -> bool:
    """Whether results go to memory past the caches: where no cache holds them anyway, a store that
    reads the line first, to write a part of it, moves half as many bytes again. Never if `share` is 0.
    """
    if not share or loops.extents[-1] < ROW * TILE or loops.beside:
        return False
    if any(OPS[n.op].reduce for n in body.nodes):
        return False
    specs, nowhere, apart = (*body.inputs, *body.out_specs), numbers_in(body), _apart(body, loops)
    lies = [
        (s.dtype.itemsize, own, k in apart)
        for k, (s, own) in enumerate(zip(specs, loops.strides, strict=True))
        if k not in nowhere
    ]
    if any(own[-1] not in (0, size) for size, own, brought in lies if not brought):
        return False
    moved = sum(
        size * math.prod(n for n, step in zip(loops.extents, own, strict=True) if step)
        for size, own, _ in lies
    )
    if processor() == ZEN_4:  # which writes whole lines that it has not read, and keeps more
        return moved > LIMITS.zen_caches * _last_cache()
    return share * moved > _last_cache()


def _buffers(name: str, wanted: Sequence[tuple[int, DType]]) -> list[str]:
    return [f"  %{name}{k} = alloca [{TILE} x {memory_type(t)}], align 64" for k, t in wanted]


def _brought_near(apart: Mapping[int, int], dtypes: Sequence[DType]) -> list[str]:
    """For a chunk from %c to %cend: what operands have in it, side by side."""
    code = ["  %many = sub i64 %cend, %c", "  %ago = sub i64 0, %c"] if apart else []
    for k, step in apart.items():
        kind = _whole(dtypes[k])
        code += [
            f"  %skip{k} = mul i64 %c, {step}",
            f"  %there{k} = getelementptr {kind}, ptr %p{k}, i64 %skip{k}",
            f"  call void @pick{step}_{kind}(ptr %beside{k}, ptr %there{k}, i64 %many) noinline",
            f"  %near{k} = getelementptr {kind}, ptr %beside{k}, i64 %ago",
        ]
    return code


def _whole(dtype: DType) -> str:
    """An element of which nobody looks at the parts."""
    return f"i{8 * dtype.itemsize}" if dtype.kind == "c" else memory_type(dtype)


def _picking(step: int, dtype: DType) -> str:
    """A function that copies every so manieth element. A vector of them is picked from a few that are
    read whole; one more element follows, so that nothing behind the last one is read."""
    kind, lanes = _whole(dtype), min(16, 64 // dtype.itemsize)
    whole, places = f"<{step * lanes} x {kind}>", ", ".join(f"i32 {step * n}" for n in range(lanes))
    return f"""
define internal void @pick{step}_{kind}(ptr %to, ptr %from, i64 %count) {{
entry:
  %least = icmp slt i64 {lanes}, %count
  br i1 %least, label %vector, label %rest
vector:
  %i = phi i64 [0, %entry], [%i1, %vector]
  %over = mul i64 %i, {step}
  %at = getelementptr {kind}, ptr %from, i64 %over
  %read = load {whole}, ptr %at, align {dtype.itemsize}
  %made = shufflevector {whole} %read, {whole} poison, <{lanes} x i32> <{places}>
  %there = getelementptr {kind}, ptr %to, i64 %i
  store <{lanes} x {kind}> %made, ptr %there, align {dtype.itemsize}
  %i1 = add i64 %i, {lanes}
  %next = add i64 %i1, {lanes}
  %more = icmp slt i64 %next, %count
  br i1 %more, label %vector, label %rest
rest:
  %k = phi i64 [0, %entry], [%i1, %vector], [%k1, %one]
  %left = icmp slt i64 %k, %count
  br i1 %left, label %one, label %end
one:
  %skip = mul i64 %k, {step}
  %source = getelementptr {kind}, ptr %from, i64 %skip
  %x = load {kind}, ptr %source, align {dtype.itemsize}
  %target = getelementptr {kind}, ptr %to, i64 %k
  store {kind} %x, ptr %target, align {dtype.itemsize}
  %k1 = add i64 %k, 1
  br label %rest
end:
  ret void
}}
"""


def _tile_by_tile(
    near: Sequence[str],
    work: Sequence[str],
    stores: Sequence[str],
    written: Sequence[tuple[int, DType]],
    begin: str,
    stop: str,
    start: str,
) -> list[str]:
    """Work tile by tile: operands were prefetched, and what is `written` is made in a buffer, then copied.
    Tiles begin where the first result's lines of the cache do."""
    code = []
    if written:
        first, size = written[0][0], written[0][1].itemsize
        code = [f"  %from = ptrtoint ptr %p{first} to i64", f"  %skew = udiv i64 %from, {size}"]
    code += [
        f"  %any = icmp slt i64 {begin}, {stop}",
        "  br i1 %any, label %tile, label %rowend",
        "tile:",
        f"  %c = phi i64 [{begin}, %{start}], [%cend, %made]",
        f"  %cplace = add i64 %c, {'%skew' if written else 0}",
        f"  %cwhole = and i64 %cplace, {-TILE}",
        f"  %cstart = sub i64 %cwhole, {'%skew' if written else 0}",
        f"  %cfull = add i64 %cstart, {TILE}",
        f"  %cless = icmp slt i64 %cfull, {stop}",
        f"  %cend = select i1 %cless, i64 %cfull, i64 {stop}",
        "  %count = sub i64 %cend, %c",
        "  %back = sub i64 0, %c",
    ]
    for k, t in written:
        code += [
            f"  %to{k} = getelementptr {memory_type(t)}, ptr %p{k}, i64 %c",
            f"  %bytes{k} = mul i64 %count, {t.itemsize}",
            f"  %tile{k} = getelementptr {memory_type(t)}, ptr %buffer{k}, i64 %back",
        ]
    code += near
    code += ["  br label %loop", "loop:", "  %i = phi i64 [%c, %tile], [%i1, %loop]"]
    code += [
        *work,
        *stores,
        "  %i1 = add nsw i64 %i, 1",
        "  %more = icmp slt i64 %i1, %cend",
        "  br i1 %more, label %loop, label %made, !llvm.loop !0",
        "made:",
    ]
    code += [
        f"  call void @stream(ptr %to{k}, ptr %buffer{k}, i64 %bytes{k}) noinline"
        for k, _ in written
    ]
    return [
        *code,
        f"  %again = icmp slt i64 %cend, {stop}",
        "  br i1 %again, label %tile, label %rowend",
    ]


_STREAM = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define internal void @stream(ptr %to, ptr %from, i64 %bytes) {
entry:
  %at = ptrtoint ptr %to to i64
  %minus = sub i64 0, %at
  %gap = and i64 %minus, 63
  %short = icmp ult i64 %gap, %bytes
  %head = select i1 %short, i64 %gap, i64 %bytes
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %head, i1 false)
  %rest = sub i64 %bytes, %head
  %lines = and i64 %rest, -64
  %end = add i64 %head, %lines
  %some = icmp ult i64 %head, %end
  br i1 %some, label %line, label %tail
line:
  %k = phi i64 [%head, %entry], [%k1, %line]
  %source = getelementptr i8, ptr %from, i64 %k
  %target = getelementptr i8, ptr %to, i64 %k
  %whole = load <16 x i32>, ptr %source, align 4
  store <16 x i32> %whole, ptr %target, align 64, !nontemporal !3
  %k1 = add i64 %k, 64
  %more = icmp ult i64 %k1, %end
  br i1 %more, label %line, label %tail
tail:
  %left = sub i64 %bytes, %end
  %after = getelementptr i8, ptr %to, i64 %end
  %last = getelementptr i8, ptr %from, i64 %end
  call void @llvm.memcpy.p0.p0.i64(ptr %after, ptr %last, i64 %left, i1 false)
  ret void
}
!3 = !{i32 1}
"""


# -- loads and stores ----------------------------------------------------------------------
def _slot(base: str, k: int, kind: str, lines: list[str]) -> str:
    name = f"%g{len(lines)}"
    lines.append(f"  {name} = getelementptr {kind}, ptr {base}, i64 {k}")
    return name


def _address(text: list[str], k: int, dtype: DType, step: int, base: str = "p") -> str:
    if step == 0:
        return f"%p{k}"
    if step == dtype.itemsize:
        text.append(f"  %a{k} = getelementptr {memory_type(dtype)}, ptr %{base}{k}, i64 %i")
    else:
        # LLVM makes vectors of what is backwards, if it knows
        known = str(step) if step == -dtype.itemsize else f"%step{k}"
        text.append(f"  %b{k} = mul nsw i64 {known}, %i")
        text.append(f"  %a{k} = getelementptr i8, ptr %p{k}, i64 %b{k}")
    return f"%a{k}"


def _load(
    lines: LlvmLines, text: list[str], k: int, dtype: DType, step: int, base: str = "p"
) -> Value:
    address = _address(text, k, dtype, step, base)
    kind, part = memory_type(real_of(dtype)), real_of(dtype)
    known = f"align {part.itemsize}, !llvm.access.group !1"
    if dtype.kind == "c":  # of which LLVM reads whole vectors and takes them apart
        text += [
            f"  %l{k}_r = load {kind}, ptr {address}, {known}",
            f"  %h{k} = getelementptr {kind}, ptr {address}, i64 1",
            f"  %l{k}_i = load {kind}, ptr %h{k}, {known}",
        ]
        return lines.named(f"%l{k}", dtype)
    text.append(f"  %l{k} = load {kind}, ptr {address}, {known}")
    if dtype != bool_:
        return Value(lines, f"%l{k}", dtype)
    text.append(f"  %l{k}b = icmp ne i8 %l{k}, 0")
    return Value(lines, f"%l{k}b", dtype)


def _number(lines: LlvmLines, row: list[str], text: list[str], k: int, step: int) -> Value:
    """Which one an element is among all: the number of its row's first one, and how far it is from there."""
    found = number_at(lines, row, f"number{k}", f"%q{k}_0", f"%p{k}")
    if step == 0:
        return found
    along = "%i"
    if step != 1:
        known = "-1" if step == -1 else f"%step{k}"
        text.append(f"  %number{k}_i = mul nsw i64 {known}, %i")
        along = f"%number{k}_i"
    text.append(f"  %number{k}_at = add i64 {found.name}, {along}")
    return Value(lines, f"%number{k}_at", found.dtype)


def _store(text: list[str], k: int, value: Value, step: int, base: str) -> None:
    if isinstance(value, Pair):
        address, part = _address(text, k, value.dtype, step, base), value.real.dtype
        text.append(f"  %h{k} = getelementptr {llvm_type(part)}, ptr {address}, i64 1")
        for x, at in ((value.real, address), (value.imag, f"%h{k}")):
            known = f"align {part.itemsize}, !llvm.access.group !1"
            text.append(f"  store {x.kind} {x.name}, ptr {at}, {known}")
        return
    name, kind = value.name, llvm_type(value.dtype)
    if value.dtype == bool_:
        text.append(f"  %z{k} = zext i1 {name} to i8")
        name, kind = f"%z{k}", "i8"
    address = _address(text, k, value.dtype, step, base)
    size = value.dtype.itemsize
    text.append(f"  store {kind} {name}, ptr {address}, align {size}, !llvm.access.group !1")


def native_kernel(
    body: Graph,
    shape: Shape,
    strides: Sequence[Sequence[int]],
    threads: int,
    axes: int = 0,
    share: int = SHARE,
) -> Callable[..., None] | None:
    """The kernel for operands and results that lie so, called as `kernel(*operands, *results)`.

    `shape` is that of the elements on this worker, `strides` are of all operands and results, in
    bytes along each axis of the shape (0 along what a result is reduced over: the last `axes` of
    them). None if they lie so that rows are no single loop."""
    made = _told(body, tuple(shape), tuple(map(tuple, strides)), threads, axes, share)
    return None if made is None else function_of(made[0], np.array(made[1], np.int64))


@lru_cache(256)
def _told(
    body: Graph,
    shape: Shape,
    strides: tuple[tuple[int, ...], ...],
    threads: int,
    axes: int,
    share: int,
) -> tuple[str, list[int]] | None:
    """A kernel's text, and what it is told."""
    loops = loops_of(shape, strides, axes)
    if loops is None:
        return None
    return _text_and_facts(body, loops, threads, axes, share)


def loops_kernel(
    body: Graph, loops: Loops, threads: int, axes: int, share: int = SHARE
) -> Callable[..., None]:
    text, meta = _text_and_facts(body, loops, threads, axes, share)
    return function_of(text, np.array(meta, np.int64))


def _text_and_facts(
    body: Graph, loops: Loops, threads: int, axes: int, share: int
) -> tuple[str, list[int]]:
    loops = _arranged(body, loops, axes)
    return kernel_text(body, loops, share), kernel_facts(body, loops, threads, axes)


def code_and_facts(
    body: Graph, loops: Loops, threads: int, axes: int, share: int
) -> tuple[str, list[int]]:
    """The loops without what Python calls, and what they are told."""
    loops = _arranged(body, loops, axes)
    return kernel_code(body, loops, share), kernel_facts(body, loops, threads, axes)


def _arranged(body: Graph, loops: Loops, axes: int) -> Loops:
    if not axes and not numbers_in(body):
        loops = all_beside(loops)
    if not axes and not loops.beside:
        loops = tiled(loops, [s.dtype.itemsize for s in (*body.inputs, *body.out_specs)])
    return loops


def kernel_facts(body: Graph, loops: Loops, threads: int, axes: int = 0) -> list[int]:
    """The meta array of a text for such loops."""
    size = math.prod(loops.extents)
    worth = size * max(1, len(loops.beside)) * max(1, len(body.nodes)) // GRAIN
    last = len(loops.extents) - 1
    turns = (-(-size // BLOCK) if axes else size) if last == 0 else math.prod(loops.extents[:-1])
    # threads: none for what is too short to let other Python threads run meanwhile
    meta = [turns, min(threads, worth, turns), loops.extents[-1], *loops.extents[:-1]]
    for steps in loops.strides:
        meta += steps
    meta += numbers(body).values()
    meta += loops.tiled[1:] if loops.tiled is not None else ()
    if last == 0 and axes:
        meta += [0] * (turns * sum(1 + (s.dtype.kind == "c") for s in body.out_specs))
    return meta
