"""Kernels as machine code: a chain of elementwise operations in one loop, made with LLVM.

A kernel's text depends on what it computes, on dtypes, and on how operands are repeated, but not on
extents, so that few kernels serve many shapes. It is a function that Python calls directly, with
arrays; large ones are shared among threads by libgomp, which linear algebra libraries use too.
Machine code is kept on disk under a digest of its text and of the processor."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ostinato import settings

from .code import compensated, joined, memory_type, start_of
from .disk import write_whole
from .draws import number_at, numbers_in
from .graph import Graph
from .labels import SHORT, SUMS, Nest
from .nest import CHUNK, Facts, chunk_units, facts
from .registers import Lines, Value, cast, literal, llvm_type
from .scalar import lower, numbers
from .spec import DType, Shape, bool_
from .threads import address_of, most_threads, pool
from .turns import TURNS, WAITING, nest_text

GRAIN = 1 << 18  # elements times operations that are worth waking a thread
MOST_KEPT = 4096  # kernels on disk, of some 10 kB each; the oldest go first
BLOCK = 16384  # elements that one turn sums
LEAST_TILED, FAR_APART = (
    1 << 14,
    256,
)  # elements; and bytes between neighbours, from which tiles pay
TILE_ROWS, TILE_COLUMNS = 64, 64
FEW_BESIDE = 4  # turns of an innermost loop that is written out ...
MANY_TURNS = 64  # ... where the next one has so many
SHARE = 4  # of the last cache: what is larger than its fourth part does not stay there
_DATA = 16  # where an array object keeps the address of its elements


@dataclass(frozen=True, slots=True)
class Loops:
    """Extents and, for each operand, strides of a nest of loops; neighbours that can be are one."""

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    tiled: tuple[int, int, int] | None = None  # if the last two loops make a tile: which loop goes
    # from row to row of tiles (from column to column the third last one does), and the extents of all
    # of a few elements that are done together in each turn of the last loop: where each operand lies
    beside: tuple[tuple[int, ...], ...] = ()


def loops_over(shape: Shape, strides: Sequence[Sequence[int]], apart: int = -1) -> Loops:
    """The fewest loops that visit all elements, in the order of the result; the axis `apart` begins
    a loop of its own.
    """
    extents: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(shape):
        if n == 1 and len(shape) > 1 and d != apart:
            continue
        joins = (
            bool(extents)
            and d != apart
            and all(mine[-1] == own[d] * n for mine, own in zip(steps, strides, strict=True))
        )
        for mine, own in zip(steps, strides, strict=True):
            if joins:
                mine[-1] = own[d]
            else:
                mine.append(own[d])
        if joins:
            extents[-1] *= n
        else:
            extents.append(n)
    if not extents:
        extents, steps = [1], [[0] for _ in strides]
    return Loops(tuple(extents), tuple(map(tuple, steps)))


def in_tiles(loops: Loops, sizes: Sequence[int]) -> Loops:
    """Loops of which some operand is a transpose, so that its lines of the cache are used up before they
    go; the same for others. `sizes` are the bytes of their elements.
    """
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
    if not outer or count > FEW_BESIDE or outer[-1] < MANY_TURNS:
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
@dataclass(frozen=True, slots=True)
class _Sum:
    """A reduction in a kernel: what goes in, how it is combined, where it goes."""

    out: int  # which result
    value: Value
    kind: str  # sum, max or min
    dtype: DType
    divisor: int = -1  # which of the kernel's numbers

    @property
    def start(self) -> str:
        return literal(start_of(self.kind, self.dtype), self.dtype)

    @property
    def compensated(self) -> bool:
        return self.kind == "sum" and self.dtype.kind == "f"


def kernel_text(body: Graph, loops: Loops, share: int = SHARE) -> str:
    """A module in LLVM's language: `body` for some turns, `task` for a thread's share, `finish` for
    what is put together at the end, and `run` for Python.
    """
    return f"{kernel_code(body, loops, share)}\n{around(len(body.inputs) + len(body.outputs))}"


def kernel_code(body: Graph, loops: Loops, share: int = SHARE) -> str:
    """`body` and `finish`.

    A turn is an element, a row of the innermost loop where there are more, or a block of elements
    where all of them are reduced."""
    dtypes = [s.dtype for s in (*body.inputs, *body.out_specs)]
    many, last = len(dtypes), len(loops.extents) - 1
    lines, hoisted, loads = Lines(), list[str](), list[str]()
    known = {v: n for n, v in enumerate(numbers(body))}
    counted = numbers_in(body)
    past = streams(body, loops, share)
    stores, sums, written = list[str](), list[_Sum](), list[tuple[int, DType]]()
    for first in range(many, many * (1 + len(loops.beside)), many) if loops.beside else (0,):
        values: list[Value] = []
        for k, s in enumerate(body.inputs):
            step = loops.strides[k][-1]
            take = _number if k in counted else _load
            values.append(take(lines, loads if step else hoisted, first + k, s.dtype, step))
        for node in body.nodes:
            ins, dtype = [values[v] for v in node.inputs], node.specs[0].dtype
            if node.op == "constant" and len(values) in known:
                values.append(Value(lines, f"%known{known[len(values)]}", dtype))
            elif node.op == "constant":
                values.append(lines.constant(node.kw["value"], dtype))
            elif node.op in SUMS:
                values.append(cast(ins[0], dtype))
            else:
                values.append(lower(node.op, ins, dtype))
        for k, v in enumerate(body.outputs, len(body.inputs)):
            maker = body.nodes[body.producers[v]] if body.producers[v] >= 0 else None
            if maker is not None and maker.op in SUMS:
                kind = "sum" if maker.op == "mean" else maker.op
                sums.append(_Sum(k, values[v], kind, maker.specs[0].dtype, known.get(v, -1)))
            else:
                step = loops.strides[k][-1]
                _store(stores, first + k, values[v], step, "tile" if past else "p")
                written.append((k, dtypes[k]))
    blocks = bool(sums) and last == 0
    data = _data(body, known, _meta_of(many, last))
    room = _meta_of(many, last) + len(known)  # for partial results
    once, each, after = _places(loops, many)
    short = last > 0 and loops.extents[-1] <= SHORT
    extent = str(loops.extents[-1]) if short else "%extent"
    code = [
        "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {",
        "entry:",
        *(f"  %m{k} = getelementptr i64, ptr %meta, i64 {k}" for k in range(3 + last)),
        "  %extent = load i64, ptr %m2",
        *(f"  %e{d} = load i64, ptr %m{3 + d}" for d in range(last)),
        *data,
        *once,
        *(_buffers(written) if past else []),
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
    for c, offsets in enumerate(
        loops.beside, 1
    ):  # steps that are known make vectors of what is beside
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
    if sums:
        code += _reduced(lines, sums, work, stores, begin, stop, short)
        code += _partials(sums, blocks, room)
    elif past:
        code += _streamed(work, stores, written, begin, stop, start)
        lines.declared.add(_STREAM)
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
    fence = (
        ["  fence seq_cst"] if past else []
    )  # stores past the caches are in no order with others
    code += ["end:", *fence, "  ret void", "}"]
    code += _finish(lines, sums if blocks else [], data, room)
    return "\n".join([*sorted(lines.declared), *code])


def _places(loops: Loops, many: int) -> tuple[list[str], list[str], list[str]]:
    """Where each operand begins in a turn: what is found out once, in each turn, and at its end,
    when the outermost loops' counters go on like those of a clock.
    """
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
    innermost extent, the other extents; behind them numbers, and room for partial results.
    """
    return 3 + last + k * (1 + last)


def _data(body: Graph, known: Mapping[int, int], begin: int) -> list[str]:
    """Loads of the numbers that are data: `%known0`, ..."""
    code = list[str]()
    for v, n in known.items():
        kind = llvm_type(body.specs[v].dtype)
        code += [
            f"  %known{n}_p = getelementptr i64, ptr %meta, i64 {begin + n}",
            f"  %known{n} = load {kind}, ptr %known{n}_p",
        ]
    return code


# -- reductions ----------------------------------------------------------------------------
def _reduced(
    lines: Lines,
    sums: Sequence[_Sum],
    work: Sequence[str],
    stores: Sequence[str],
    begin: str,
    stop: str,
    short: bool,
) -> list[str]:
    """A turn: chunks, whose sums are free in order, and their sum, which is compensated."""
    inside, between = Lines(), Lines()
    inside.count = lines.count
    accumulated = [
        joined(
            s.kind,
            Value(inside, f"%acc{n}", s.dtype),
            Value(inside, s.value.name, s.dtype),
            "reassoc",  # within a chunk the order is free, so that lanes can share it
        )
        for n, s in enumerate(sums)
    ]
    between.count = inside.count
    totals = [_onto(between, s, n, accumulated[n].name) for n, s in enumerate(sums)]
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
        f"  %cfull = add i64 %c, {SHORT if short else CHUNK}",
        f"  %cless = icmp slt i64 %cfull, {stop}",
        f"  %cend = select i1 %cless, i64 %cfull, i64 {stop}",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [%c, %chunk], [%i1, %loop]",
    ]
    for n, s in enumerate(sums):
        kind = llvm_type(s.dtype)
        code.append(f"  %acc{n} = phi {kind} [{s.start}, %chunk], [{accumulated[n].name}, %loop]")
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
    sums: Sequence[_Sum],
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
        code.append(f"  %{total}{n} = phi {kind} [{s.start}, %{before}], [{made}, %{back}]")
        if s.compensated:
            zero = literal(0, s.dtype)
            code.append(f"  %{lost}{n} = phi {kind} [{zero}, %{before}], [{kept}, %{back}]")
    return code


def _ended(
    sums: Sequence[_Sum], totals: Sequence[tuple[str, str]], before: str, back: str
) -> list[str]:
    """The sums after a loop, named `_total` of each."""
    code = _carried(sums, totals, "sum", "rest", before, back)
    for n, s in enumerate(sums):
        if s.compensated:
            code.append(f"  {_total(s, n)} = fadd {llvm_type(s.dtype)} %sum{n}, %rest{n}")
    return code


def _total(s: _Sum, n: int) -> str:
    return f"%all{n}" if s.compensated else f"%sum{n}"


def _onto(lines: Lines, s: _Sum, n: int, more: str) -> tuple[str, str]:
    """The total with one more, and what rounding lost."""
    total, value = Value(lines, f"%tot{n}", s.dtype), Value(lines, more, s.dtype)
    if not s.compensated:
        return joined(s.kind, total, value).name, ""
    made, kept = compensated(total, Value(lines, f"%lost{n}", s.dtype), value)
    return made.name, kept.name


def _final(lines: list[str], s: _Sum, n: int) -> str:
    """The name of a finished sum."""
    name = _total(s, n)
    if s.divisor < 0:
        return name
    lines.append(f"  %mean{n} = fdiv {llvm_type(s.dtype)} {name}, %known{s.divisor}")
    return f"%mean{n}"


def _partials(sums: Sequence[_Sum], blocks: bool, room: int) -> list[str]:
    """A turn's results: to their place, or, where blocks are put together later, to a waiting room."""
    code: list[str] = []
    if blocks:
        code.append("  %turns = load i64, ptr %meta")
    for n, s in enumerate(sums):
        kind = llvm_type(s.dtype)
        if not blocks:
            name = _final(code, s, n)
            code.append(f"  store {kind} {name}, ptr %p{s.out}, align {s.dtype.itemsize}")
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


def _finish(lines: Lines, sums: Sequence[_Sum], data: Sequence[str], room: int) -> list[str]:
    """Puts the blocks' results together, in their order."""
    code = ["define internal void @finish(ptr %data, ptr %meta) {", "entry:", *data]
    if not sums:
        return [*code, "  ret void", "}"]
    between = Lines()
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
        code += [
            f"  %to{n} = load ptr, ptr {base}",
            f"  store {kind} {name}, ptr %to{n}, align {s.dtype.itemsize}",
        ]
    return [*code, "  ret void", "}"]


# -- large results -------------------------------------------------------------------------
TILE = 1024  # elements that are made in cache before they go to memory
ROW = 4  # tiles that a row has at the least


@lru_cache(1)
def _last_cache() -> int:
    """Its bytes; those of a small one if the system does not say."""
    try:
        found = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (AttributeError, ValueError, OSError):
        found = 0
    return found if found > 0 else 32 << 20


def streams(body: Graph, loops: Loops, share: int = SHARE) -> bool:
    """Whether results go to memory past the caches: where no cache holds them anyway, a store that
    reads the line first, to write a part of it, moves half as many bytes again.
    """
    if any(n.op in SUMS for n in body.nodes) or loops.extents[-1] < ROW * TILE or loops.beside:
        return False
    specs, nowhere = (*body.inputs, *body.out_specs), numbers_in(body)
    lies = [
        (s.dtype.itemsize, own)
        for k, (s, own) in enumerate(zip(specs, loops.strides, strict=True))
        if k not in nowhere
    ]
    if any(own[-1] not in (0, size) for size, own in lies):
        return False
    moved = sum(
        size * math.prod(n for n, step in zip(loops.extents, own, strict=True) if step)
        for size, own in lies
    )
    return share * moved > _last_cache()


def _buffers(written: Sequence[tuple[int, DType]]) -> list[str]:
    return [f"  %buffer{k} = alloca [{TILE} x {memory_type(t)}], align 64" for k, t in written]


def _streamed(
    work: Sequence[str],
    stores: Sequence[str],
    written: Sequence[tuple[int, DType]],
    begin: str,
    stop: str,
    start: str,
) -> list[str]:
    """Tile after tile: made in a buffer, then copied. Tiles begin where the first result's lines
    do.
    """
    first, size = written[0][0], written[0][1].itemsize
    code = [
        f"  %from = ptrtoint ptr %p{first} to i64",
        f"  %skew = udiv i64 %from, {size}",
        f"  %any = icmp slt i64 {begin}, {stop}",
        "  br i1 %any, label %tile, label %rowend",
        "tile:",
        f"  %c = phi i64 [{begin}, %{start}], [%cend, %made]",
        "  %cplace = add i64 %c, %skew",
        f"  %cwhole = and i64 %cplace, {-TILE}",
        "  %cstart = sub i64 %cwhole, %skew",
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
        kind = "i8" if dtype == bool_ else llvm_type(dtype)
        text.append(f"  %a{k} = getelementptr {kind}, ptr %{base}{k}, i64 %i")
    else:
        text.append(f"  %b{k} = mul i64 %step{k}, %i")
        text.append(f"  %a{k} = getelementptr i8, ptr %p{k}, i64 %b{k}")
    return f"%a{k}"


def _load(lines: Lines, text: list[str], k: int, dtype: DType, step: int) -> Value:
    address = _address(text, k, dtype, step)
    kind = "i8" if dtype == bool_ else llvm_type(dtype)
    text.append(
        f"  %l{k} = load {kind}, ptr {address}, align {dtype.itemsize}, !llvm.access.group !1"
    )
    if dtype != bool_:
        return Value(lines, f"%l{k}", dtype)
    text.append(f"  %l{k}b = icmp ne i8 %l{k}, 0")
    return Value(lines, f"%l{k}b", dtype)


def _number(lines: Lines, text: list[str], k: int, dtype: DType, step: int) -> Value:
    """Which one an element is among all: the first one's number, and how far it is from there."""
    address = _address(text, k, np.dtype(np.int8) if step == 1 else dtype, step)
    return number_at(lines, text, f"n{k}", f"%q{k}_0", address)


def _store(text: list[str], k: int, value: Value, step: int, base: str) -> None:
    name, kind = value.name, llvm_type(value.dtype)
    if value.dtype == bool_:
        text.append(f"  %z{k} = zext i1 {name} to i8")
        name, kind = f"%z{k}", "i8"
    address = _address(text, k, value.dtype, step, base)
    size = value.dtype.itemsize
    text.append(f"  store {kind} {name}, ptr {address}, align {size}, !llvm.access.group !1")


# Each thread has a part of the turns, and takes it slice by slice; who is done takes from others,
# so that one whose core is busy with something else is not waited for.
SLICES = 8
# Once is enough of `body` and `finish`: most of the time goes into optimising them.
_AROUND = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @PyErr_SetString(ptr, ptr)
@none = external global i8
@array_type = external global i8
@type_error = external global i8
@words = private constant [24 x i8] c"a kernel of arrays only\\00"

define internal void @task(ptr %job) {
entry:
  %data = load ptr, ptr %job
  %j1 = getelementptr ptr, ptr %job, i64 1
  %meta = load ptr, ptr %j1
  %counters = getelementptr i8, ptr %job, i64 64
  %turns = load i64, ptr %meta
  %t32 = call i32 @omp_get_thread_num()
  %n32 = call i32 @omp_get_num_threads()
  %t = sext i32 %t32 to i64
  %n = sext i32 %n32 to i64
  %all = mul i64 %n, SLICES
  br label %share
share:
  %d = phi i64 [0, %entry], [%d1, %next]
  %from = add i64 %t, %d
  %whose = urem i64 %from, %n
  %row = mul i64 %whose, 64
  %counter = getelementptr i8, ptr %counters, i64 %row
  %first = mul i64 %whose, SLICES
  br label %slice
slice:
  %k = atomicrmw add ptr %counter, i64 1 monotonic
  %left = icmp slt i64 %k, SLICES
  br i1 %left, label %mine, label %next
mine:
  %s0 = add i64 %first, %k
  %s1 = add i64 %s0, 1
  %x0 = mul i64 %turns, %s0
  %x1 = mul i64 %turns, %s1
  %lo = sdiv i64 %x0, %all
  %hi = sdiv i64 %x1, %all
  %some = icmp slt i64 %lo, %hi
  br i1 %some, label %work, label %slice
work:
  call void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %t) noinline
  br label %slice
next:
  %d1 = add i64 %d, 1
  %others = icmp slt i64 %d1, %n
  br i1 %others, label %share, label %end
end:
  ret void
}

define ptr @run(ptr %self, ptr %args, i64 %given) {
entry:
  %right = icmp eq i64 %given, MANY
  br i1 %right, label %begin, label %wrong
wrong:
  call void @PyErr_SetString(ptr @type_error, ptr @words)
  ret ptr null
begin:
  %data = alloca [MANY x ptr]
  %m = getelementptr i8, ptr %self, i64 16
  %meta = load ptr, ptr %m
  br label %fill
fill:
  %k = phi i64 [0, %begin], [%k1, %array]
  %from = getelementptr ptr, ptr %args, i64 %k
  %object = load ptr, ptr %from
  %kindfield = getelementptr i8, ptr %object, i64 8
  %kind = load ptr, ptr %kindfield
  %is = icmp eq ptr %kind, @array_type
  br i1 %is, label %array, label %wrong
array:
  %field = getelementptr i8, ptr %object, i64 16
  %elements = load ptr, ptr %field
  %to = getelementptr ptr, ptr %data, i64 %k
  store ptr %elements, ptr %to
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, MANY
  br i1 %more, label %fill, label %filled
filled:
  %turns = load i64, ptr %meta
  %m1 = getelementptr i64, ptr %meta, i64 1
  %threads = load i64, ptr %m1
  %small = icmp eq i64 %threads, 0
  br i1 %small, label %alone, label %together
alone:
  call void @body(ptr %data, ptr %meta, i64 0, i64 %turns, i64 0) noinline
  call void @finish(ptr %data, ptr %meta) noinline
  br label %done
together:
  %count32 = trunc i64 %threads to i32
  %state = call ptr @PyEval_SaveThread()
  %one = icmp eq i64 %threads, 1
  br i1 %one, label %single, label %team
single:
  call void @body(ptr %data, ptr %meta, i64 0, i64 %turns, i64 0) noinline
  br label %ready
team:
  %counts = mul i64 %threads, 64
  %bytes = add i64 %counts, 64
  %job = alloca i8, i64 %bytes, align 64
  store ptr %data, ptr %job
  %j1 = getelementptr ptr, ptr %job, i64 1
  store ptr %meta, ptr %j1
  br label %clear
clear:
  %z = phi i64 [%bytes, %team], [%z1, %clear]
  %z1 = sub i64 %z, 64
  %cell = getelementptr i8, ptr %job, i64 %z1
  store i64 0, ptr %cell
  %onward = icmp sgt i64 %z1, 64
  br i1 %onward, label %clear, label %go
go:
  call void @GOMP_parallel(ptr @task, ptr %job, i32 %count32, i32 0)
  br label %ready
ready:
  call void @finish(ptr %data, ptr %meta) noinline
  call void @PyEval_RestoreThread(ptr %state)
  br label %done
done:
  call void @Py_IncRef(ptr @none)
  ret ptr @none
}
!0 = distinct !{!0, !2}
!1 = distinct !{}
!2 = !{!"llvm.loop.parallel_accesses", !1}
"""


# For texts without `around`: numbers and addresses that stand in a row, whether so many arrays were given,
# and calls of other kernels. A function of Python has its entry point in the record that its third word
# leads to, and what it was made with in the fourth.
CALLS = """
declare void @PyErr_SetString(ptr, ptr)
@array_type = external global i8
@type_error = external global i8
@no_arrays = private constant [24 x i8] c"a kernel of arrays only\\00"

define internal i1 @are_arrays(ptr %args, i64 %given, i64 %wanted) {
entry:
  %right = icmp eq i64 %given, %wanted
  br i1 %right, label %next, label %no
next:
  %k = phi i64 [0, %entry], [%k1, %look]
  %more = icmp slt i64 %k, %wanted
  br i1 %more, label %look, label %yes
look:
  %object = call ptr @array(ptr %args, i64 %k)
  %kind = call ptr @array(ptr %object, i64 1)
  %k1 = add i64 %k, 1
  %is = icmp eq ptr %kind, @array_type
  br i1 %is, label %next, label %no
yes:
  ret i1 true
no:
  call void @PyErr_SetString(ptr @type_error, ptr @no_arrays)
  ret i1 false
}

define internal ptr @called(ptr %kernel, ptr %arrays, i64 %count) alwaysinline {
  %record = call ptr @array(ptr %kernel, i64 2)
  %function = call ptr @array(ptr %record, i64 1)
  %own = call ptr @array(ptr %kernel, i64 3)
  %answer = call ptr %function(ptr %own, ptr %arrays, i64 %count)
  ret ptr %answer
}
"""
TABLES = """
define internal i64 @fact(ptr %meta, i64 %k) alwaysinline {
  %at = getelementptr i64, ptr %meta, i64 %k
  %value = load i64, ptr %at
  ret i64 %value
}

define internal ptr @array(ptr %data, i64 %k) alwaysinline {
  %at = getelementptr ptr, ptr %data, i64 %k
  %value = load ptr, ptr %at
  ret ptr %value
}
"""


def around(many: int, name: str = "run") -> str:
    """What Python calls: takes so many arrays' addresses and shares the turns of `body`."""
    text = _AROUND.replace("MANY", str(many)).replace("SLICES", str(SLICES))
    return text.replace("@run(", f"@{name}(")


# -- machine code --------------------------------------------------------------------------
class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL = 0x80
_CALL = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t)


class _Code:
    """A module's entry point, as Python calls it. Who calls it before its machine code is there
    waits for that.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.lock = threading.Lock()
        self.is_ready = False
        self.engine: Any = None  # whose memory the machine code lies in
        self.first = _CALL(self.late)
        address = ctypes.cast(self.first, ctypes.c_void_p).value
        self.definition = _MethodDef(b"kernel", address, _FASTCALL, None)

    def ready(self) -> None:
        """Machine code from disk, or made."""
        with self.lock:
            if not self.is_ready:
                self.definition.function, self.engine = _load_or_make(self.text)
                self.is_ready = True

    def late(self, *call: Any) -> Any:
        self.ready()
        return _CALL(self.definition.function)(*call)


# Each takes three of the maps of memory that a process may have (65,530): so what no function uses any
# more goes, but for the latest.
_made: weakref.WeakValueDictionary[str, _Code] = weakref.WeakValueDictionary()
_latest: deque[_Code] = deque(maxlen=1024)
_asked = threading.local()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Kernels that are asked for in here are compiled at its end, side by side."""
    outer, _asked.codes = getattr(_asked, "codes", None), []
    try:
        yield
        late = [code for code in dict.fromkeys(_asked.codes) if not code.is_ready]
    finally:
        _asked.codes = outer
    waiting = deque(late)

    def work() -> None:
        with contextlib.suppress(IndexError, RuntimeError):  # the end, or what is raised below
            while True:
                waiting.popleft().ready()

    team = [threading.Thread(target=work) for _ in late[1 : most_threads()]]
    for thread in team:
        thread.start()
    work()
    for thread in team:
        thread.join()
    for code in late:
        code.ready()


@lru_cache(1)
def why_not() -> str:
    """Empty if this machine can; else the reason."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "kernels are called as CPython with its lock calls them"
    probe = np.zeros(1)
    if ctypes.c_void_p.from_address(id(probe) + _DATA).value != probe.ctypes.data:
        return "this NumPy keeps its arrays' addresses elsewhere"
    try:
        _tools()
    except (ImportError, OSError, RuntimeError) as error:
        return str(error)
    return ""


@lru_cache(1)
def _tools() -> Any:
    """LLVM, what this processor has, and both in words; the names that kernels call are known."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    features["prefer-256-bit"] = False
    for name in ("PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef", "PyErr_SetString"):
        llvm.add_symbol(name, address_of(ctypes.pythonapi, name))
    for name, thing in (("none", None), ("array_type", np.ndarray), ("type_error", TypeError)):
        llvm.add_symbol(name, id(thing))
    for name, address in pool().items():
        llvm.add_symbol(name, address)
    about = f"{llvm.llvm_version_info} {llvm.get_host_cpu_name()} {features.flatten()}"
    return llvm, features.flatten(), about


def _machine() -> Any:
    """This processor, for one thread."""
    llvm, features, _ = _tools()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic", codemodel="default"
    )


def vector_bits() -> int:
    """Of this machine's widest registers."""
    about = _tools()[2]
    return 512 if "+avx512f" in about else 256 if "+avx" in about else 128


def has(*features: str) -> bool:
    """Whether this processor has what LLVM calls so."""
    return {f"+{name}" for name in features} <= {*_tools()[1].split(",")}


def symbol(name: str, address: int) -> None:
    """A name that texts may call."""
    _tools()[0].add_symbol(name, address)


def linked(text: str) -> int:
    """The address of a module's `run`, for others to call. It stays."""
    return _kept(text)[0]


@cache
def _kept(text: str) -> tuple[int, Any]:
    return _load_or_make(text)


def _compiled(text: str) -> _Code:
    """The entry point of a module's machine code, at once or at the end of `together`."""
    found = _made.get(text)
    if found is None:
        found = _made.setdefault(text, _Code(text))
    _latest.append(found)
    waiting = getattr(_asked, "codes", None)
    if waiting is None:
        found.ready()
    else:
        waiting.append(found)
    return found


def _load_or_make(text: str) -> tuple[int, Any]:
    """The address of `run`, and the engine in which it lies: each has its own, as all have that name."""
    llvm, _, about = _tools()
    digest = hashlib.blake2b(f"{about}\n{text}".encode(), digest_size=16).hexdigest()
    path = settings.cache / "kernels" / f"{digest}.o" if settings.cache is not None else None
    code = _read(path)
    if code is None:
        code = _machine_code(text)
        _write(path, code)
    empty = llvm.parse_assembly("", llvm.create_context())
    # in one piece: code reaches its constants by 32 bits, and pages that lie free may be far apart
    engine = llvm.create_mcjit_compiler(empty, _machine(), use_lmm=True)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return int(engine.get_function_address("run")), engine


def _machine_code(text: str) -> bytes:
    llvm, machine = _tools()[0], _machine()
    module = _optimised(text, machine)
    with llvm.ffi.OutputString() as problem:
        made = _free("TargetMachineEmitToMemory")(machine, module, 1, problem)
        if not made:
            raise RuntimeError(str(problem))
    try:
        library = llvm.ffi.lib
        begin, size = library.LLVMPY_GetBufferStart(made), library.LLVMPY_GetBufferSize(made)
        return ctypes.string_at(begin, size)
    finally:
        library.LLVMPY_DisposeMemoryBuffer(made)


def _optimised(text: str, machine: Any) -> Any:
    """A kernel's text as LLVM's module, ready to become machine code."""
    llvm = _tools()[0]
    module = llvm.parse_assembly(
        f'target triple = "{machine.triple}"\n' + text, llvm.create_context()
    )
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.loop_interleaving = options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    _free("RunNewModulePassManager")(builder.getModulePassManager(), module, builder)
    return module


def _free(name: str) -> Any:
    """A function of LLVM's that takes long, without llvmlite's lock around all of LLVM: our modules
    have a context and a machine of their own.
    """
    locked = getattr(_tools()[0].ffi.lib, f"LLVMPY_{name}")
    return getattr(locked, "_cfn", locked)


def assembly(text: str) -> str:
    """The machine code of a kernel's text, as text."""
    machine = _machine()
    return str(machine.emit_assembly(_optimised(text, machine)))


def _read(path: Path | None) -> bytes | None:
    """Machine code that was kept, if it is whole."""
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, code = data[:16], data[16:]
    return code if hashlib.blake2b(code, digest_size=16).digest() == digest else None


def _write(path: Path | None, code: bytes) -> None:
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, hashlib.blake2b(code, digest_size=16).digest() + code)
        _tidy(path.parent)


@lru_cache(1)  # once in a process: looking at thousands of files takes longer than a kernel
def _tidy(folder: Path) -> None:
    kept = sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime)
    for old in kept[: len(kept) - MOST_KEPT]:
        old.unlink()


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
    apart = len(shape) - axes if axes else -1
    loops = loops_over(shape, strides, apart)
    if axes and math.prod(shape[apart:]) != loops.extents[-1]:
        return None
    if axes and loops.extents[:-1] and math.prod(loops.extents[:-1]) == 1:  # one row: in blocks
        loops = Loops(loops.extents[-1:], tuple(s[-1:] for s in loops.strides))
    if not axes and not numbers_in(body):
        loops = all_beside(loops)
    if not axes and not loops.beside:
        loops = in_tiles(loops, [s.dtype.itemsize for s in (*body.inputs, *body.out_specs)])
    text = kernel_text(body, loops, share)
    size = math.prod(loops.extents)
    worth = size * max(1, len(loops.beside)) * max(1, len(body.nodes)) // GRAIN
    last = len(loops.extents) - 1
    if last == 0:
        turns = -(-size // BLOCK) if axes else size
    else:
        turns = math.prod(loops.extents[:-1])
    # threads: none for what is too short to let other Python threads run meanwhile
    meta = [turns, min(threads, worth, turns), loops.extents[-1], *loops.extents[:-1]]
    for steps in loops.strides:
        meta += steps
    meta += numbers(body).values()
    meta += loops.tiled[1:] if loops.tiled is not None else ()
    if last == 0 and axes:
        meta += [0] * (turns * len(body.outputs))
    return function_of(text, np.array(meta, np.int64))


def strides_over(
    body: Graph, shape: Shape, arrays: Sequence[Any], axes: int
) -> list[tuple[int, ...]]:
    """Of operands and results along each axis of the elements, of which the last `axes` are reduced."""
    found = []
    for array, v in zip(arrays, (*range(len(body.inputs)), *body.outputs), strict=True):
        k = body.producers[v]
        if axes and k >= 0 and body.nodes[k].op in SUMS:
            found.append((*array.strides, *[0] * axes))
        else:
            found.append(np.broadcast_to(array, shape).strides)
    return found


@dataclass(frozen=True, slots=True)
class Crew:
    """How a nest is shared: turns, units of each, threads, and the bytes that all of them need."""

    turns: int
    each: int
    threads: int
    bytes: int


def crew_of(nest: Nest, told: Facts, threads: int) -> Crew:
    """Turns depend on extents only."""
    work = sum(
        math.prod(nest.extents[x] for x in nest.iterates(k)) for k in range(len(nest.body.nodes))
    )
    turns, each = told.units, 1
    if told.waiting:
        step = chunk_units(nest)
        most = max(1, min(TURNS, WAITING // told.waiting, -(-told.units // step)))
        each = max(step, -(-told.units // most // step) * step)
        turns = -(-told.units // each)
    threads = min(threads, work // GRAIN, turns)
    needed = max(threads, 1) * told.room + turns * told.waiting + 64
    return Crew(turns, each, threads, needed)


def nest_kernel(nest: Nest, threads: int, scratch: Sequence[Any] = ()) -> Callable[..., None]:
    """The kernel of a nest of stages, called as `kernel(*operands, *results)`; it works in memory
    that is given, if that is enough.
    """
    told = facts(nest)
    crew = crew_of(nest, told, threads)
    room = scratch[0] if scratch and scratch[0].nbytes >= crew.bytes else None
    if room is None:
        room = np.empty(crew.bytes, np.int8)
    start = -(-room.ctypes.data // 64) * 64
    waiting = start + max(crew.threads, 1) * told.room
    front = [crew.turns, crew.threads, told.units, crew.each]
    front += [start, told.room, waiting, told.waiting]
    return function_of(nest_module(nest), np.array([*front, *told.values], np.int64), room)


def nest_module(nest: Nest) -> str:
    """Its whole text, for this machine's vectors."""
    return f"{nest_text(nest, vector_bits())}\n{around(len(nest.strides))}"


def function_of(text: str, about: Any, held: Any = None) -> Callable[..., None]:
    """A module's `run` as a Python function that knows these facts: turns, threads, and its own;
    `held` is memory that they point to.
    """
    code = _compiled(text)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p]
    about = about.view(_Facts)
    about.held = held, code  # a function lets go of its facts last
    if about[1] > 1:
        _shared[id(about)] = about
    made: Callable[..., None] = new(ctypes.byref(code.definition), about, None)
    return made


def is_kernel(function: Any) -> bool:
    """Whether it is one of these functions, which machine code can call as well."""
    return isinstance(getattr(function, "__self__", None), _Facts)


class _Facts(np.ndarray):
    """A meta array, and the memory that it points to."""

    held: Any = None


# Kernels that use threads, by their meta arrays: a forked child has none of libgomp's threads, and
# would wait for them forever.
_shared: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def _alone() -> None:
    """What a forked child does: all kernels run in one thread from now on."""
    for about in list(_shared.values()):
        about[1] = 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone)
