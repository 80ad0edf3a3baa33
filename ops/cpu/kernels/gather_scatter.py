"""Elements at places that other arrays say, read and written by machine code.

All of it is one nest of loops: over the lines before the axis, over the places, and over a row's elements
behind the axis. It moves elements between what lies `near`, beside the places (the result of `take`, the
values of `put`), and `far`, where places lead. Updates of one place come in the order of the places, whoever
does them: threads share lines, columns, or else the places, each of which belongs to one of them. So bits do
not depend on threads."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.spec import (
    DType,
    Shape,
    bfloat16,
    bool_,
    float32,
    int32,
    int64,
    is_integer,
    real_of,
    strided_like,
    uint8,
)
from ostinato.ops.cpu.jit.code import address_of, symbol
from ostinato.ops.cpu.jit.emitter import Code, loop_facts, memory_type
from ostinato.ops.cpu.jit.lines import llvm_type
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits, why_not
from ostinato.ops.cpu.jit.parallel import TABLES, around
from ostinato.ops.cpu.jit.sequence import Step, chain_kernels
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.loops.copies import _WORDS, copying
from ostinato.ops.jit.loops import loops_over
from ostinato.ops.jit.values import KINDS, Value, cast, where

GRAIN = LIMITS.places_wake
# elements that are not worth vectors, whose text depends on a row's length
MIN_VECTOR_ELEMENTS = 1 << 12
COLUMNS = 1 << 10  # bytes of a row for each thread, from which threads share columns
WIDE = 128  # bytes of a row from which more than two of them share places ...
FAR_BYTES = LIMITS.scatter_far
BUCKETS = 64  # of places, of which each thread has some ...
APART = 128  # ... that neighbours of so many bytes have in common
BLOCK = 512  # places of which a thread sees first which are its own, or whether all are inside
AHEAD, LINES = LIMITS.scatter_ahead, LIMITS.scatter_lines
TAKES, PAIRS = "take", ("take", "set", "add")  # which of a complex number's parts know nothing
Kernel = Callable[..., None]


class _GatherKey(NamedTuple):
    """What the text of a nest depends on."""

    how: str  # take, or a mode of put
    value: DType
    places: DType
    loops: tuple[int, int, int]  # over lines, places, and a row
    lanes: int  # elements that are moved at once in a row, or 1
    rest: int  # those of a row beyond
    steps: tuple[int, int]  # from one to the next near and far: 0, their size, or -1 for others
    along: bool  # a place for each element of a row
    asked: int  # lines of the cache of each row
    # what is shared besides lines: blocks of "places" or of a "row", or "owners" of places
    cut: str
    picks: DType | None  # whether it takes elements one by one from one line, for places side by
    # side; and what holds any place of it


# -- operations ----------------------------------------------------------------------------
def inside(arrays: Sequence[Any], threads: int, *, size: int, **_: Any) -> Kernel | None:
    """Make a kernel of places and a bool, which checks the places: the bool becomes true, or it is
    an error."""
    i, _out = arrays
    known = i.size and is_integer(i.dtype) and not why_not()
    return _checking(i, size, threads, True) if known else None


def taking(arrays: Sequence[Any], threads: int, *, axis: int, **_: Any) -> Kernel | None:
    x, i, out = arrays
    return _nest(TAKES, x, i, out, (axis, i.ndim), threads) if _are_known(x, i, out) else None


def take_along_kernel(arrays: Sequence[Any], threads: int, *, axis: int, **_: Any) -> Kernel | None:
    x, i, out = arrays
    if not _are_known(x, i, out):
        return None
    lines = (*out.shape[:axis], x.shape[axis], *out.shape[axis + 1 :])
    x, i = np.broadcast_to(x, lines), np.broadcast_to(i, out.shape)
    return _nest(TAKES, x, i, out, (axis, 1), threads, along=True)


def putting(
    arrays: Sequence[Any], threads: int, *, axis: int, mode: str, **_: Any
) -> Kernel | None:
    x, i, v, out = arrays
    if v.dtype != out.dtype or not _are_known(x, i, v, out):
        return None
    return _updated(arrays, _nest(mode, out, i, v, (axis, i.ndim), threads), axis, threads)


def adding_along(arrays: Sequence[Any], threads: int, *, axis: int, **_: Any) -> Kernel | None:
    x, i, v, out = arrays
    lines = (*out.shape[:axis], i.shape[axis], *out.shape[axis + 1 :])
    if v.dtype != out.dtype or not i.shape == v.shape == lines or not _are_known(x, i, v, out):
        return None
    return _updated(arrays, _nest("add", out, i, v, (axis, 1), threads, along=True), axis, threads)


def adding_rows(mode: str, x: Any, i: Any, out: Any, threads: int) -> Kernel | None:
    """Make a kernel that adds rows to a result, at places that are known to be inside."""
    if x.dtype != out.dtype or not _are_known(x, i, out):
        return None
    return _nest(mode, out, i, x, (0, 1), threads)


def _are_known(*arrays: Any) -> bool:
    return not why_not() and is_integer(arrays[1].dtype) and all(a.size for a in arrays)


def _updated(arrays: Sequence[Any], nest: Kernel | None, axis: int, threads: int) -> Kernel | None:
    """All places looked at, then the operand copied, if the result is not in its memory, then the nest."""
    x, i, _, out = arrays
    from_, to = (_halves(a) if a.itemsize > 8 else a for a in (x, out))
    # what is written again at once should be in the cache
    copy = copying(to.shape, to.itemsize, from_.strides, to.strides, threads, share=1)
    if nest is None or copy is None:
        return None
    check = _checking(i, out.shape[axis], threads, False)
    same = x.strides == out.strides
    steps = [Step(check, (1,)), Step(copy, (0, 3), unless_one=same), Step(nest, (3, 1, 2))]
    return chain_kernels(steps, len(arrays))


def _halves(x: Any) -> Any:
    """An array of complex numbers as one of pairs."""
    half = real_of(x.dtype)
    return strided_like((*x.shape, 2), half, (*x.strides, half.itemsize))


# -- loops ---------------------------------------------------------------------------------
def _nest(
    how: str,
    far: Any,
    i: Any,
    near: Any,
    places: tuple[int, int],
    threads: int,
    along: bool = False,
) -> Kernel | None:
    """The function of what is far, places, and what is near, that lie so. `places`: the axis of what is
    far, and the axes that stand for it near; `along`: the places have the other axes, too."""
    if near.dtype.kind == "c" and how in PAIRS and (near.itemsize > 8 or how == "add"):
        pairs = strided_like((*i.shape, 2), i.dtype, (*i.strides, 0)) if along else i
        return _nest(how, _halves(far), pairs, _halves(near), places, threads, along)
    axis, count = places
    how, value = _meant(how, near.dtype)
    if value not in (*KINDS.values(), bfloat16):
        return None
    beyond = (*far.strides[:axis], *[0] * count, *far.strides[axis + 1 :])
    shape, strides = near.shape, (near.strides, beyond)
    own = i.strides if along else (*[0] * axis, *i.strides, *[0] * (near.ndim - axis - count))
    ends = (0, axis, axis + count, near.ndim)
    groups = [
        _loops(shape[a:b], [s[a:b] for s in (own, *strides)]) for a, b in itertools.pairwise(ends)
    ]
    lines, turns, row = groups
    along = any(step for _, step, *_ in row)
    size, work = value.itemsize, near.size
    extent = row[-1][0] if row else 1
    worth = min(threads, work // GRAIN)
    many = math.prod(n for n, *_ in lines)
    cut, parts, whole, least = "", 1, 1, 1
    if worth > 1 and many < 4 * worth:
        updated = far.shape[axis] * abs(far.strides[axis])
        if how == TAKES:
            cut, parts, whole = "places", 4 * worth, turns[0][0] if turns else 1
        elif row and extent * size >= worth * COLUMNS:
            cut, parts, whole, least = "row", worth, extent, 64 // size
        elif turns and not along and (extent * size * (worth > 2) >= WIDE or updated >= FAR_BYTES):
            cut, parts = "owners", min(worth, BUCKETS)
            whole = parts
    each = -(-whole // parts // least) * least
    parts = -(-whole // each)
    near_step, far_step = (s if s in (0, size) else -1 for s in (row[-1][2:] if row else (0, 0)))
    in_vectors = near_step >= 0 and far_step == size and value != bfloat16
    wide = in_vectors and not along and work >= MIN_VECTOR_ELEMENTS
    lanes = vector_bits() // 8 // size if wide else 1
    loops = len(lines), len(turns), len(row)
    asked = min(LINES, -(-extent * size // 64)) if cut == "owners" else 0
    steps = near_step, far_step
    picks = None
    one_by_one = turns and not row and turns[-1][1:] == (i.itemsize, size, 0)
    if how == TAKES and one_by_one and far.strides[axis] == size:
        picks = int32 if i.itemsize < 8 and far.shape[axis] < 1 << 31 else int64
    rest = extent % lanes
    form = _GatherKey(how, value, i.dtype, loops, lanes, rest, steps, along, asked, cut, picks)
    apart = max(0, (APART // max(abs(far.strides[axis]), 1)).bit_length() - 1)
    facts = [many * parts, min(worth, many * parts), 0, 0, far.shape[axis], far.strides[axis]]
    facts += [parts, each, apart]
    for group in groups:
        facts += [n for loop in group for n in loop]
    return function_of(_text(form), np.array(facts, np.int64))


def _loops(shape: Shape, strides: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The fewest, each with its extent and the steps of places, near, and far."""
    if math.prod(shape) == 1:
        return []
    found = loops_over(shape, strides)
    return list(zip(found.extents, *found.strides, strict=True))


def _meant(how: str, dtype: DType) -> tuple[str, DType]:
    """Choose the mode and dtype of the machine code: moves take words of the size; bools are bytes."""
    if how in (TAKES, "set"):
        return how, _WORDS.get(dtype.itemsize, dtype)
    if dtype == bool_:
        return {"add": "max", "multiply": "min"}.get(how, how), uint8
    return how, dtype


# -- text ----------------------------------------------------------------------------------
# behind turns, threads, and the least and largest of bad places
_FACTS = ("size", "step", "parts", "each", "apart")
_LOOPS = 4 + len(_FACTS)


@lru_cache(256)
def _text(form: _GatherKey) -> str:
    code = Code()
    for k, name in enumerate(_FACTS, 4):
        code.add(f"%{name} = call i64 @fact(ptr %meta, i64 {k})")
    for k, name in enumerate(("far", "places", "near")):
        code.add(f"%{name} = call ptr @array(ptr %data, i64 {k})")
    code.add("%twice = add i64 %size, %size")
    told = [
        [code.let(f"call i64 @fact(ptr %meta, i64 {_LOOPS + 4 * k + j})") for j in range(4)]
        for k in range(sum(form.loops))
    ]
    a, b = form.loops[0], form.loops[0] + form.loops[1]
    _Nest(code, form, told[:a], told[a:b], told[b:]).write()
    body = [*sorted(code.lines.declared), _HEAD, *code.entry, *code.lines.text, "  ret void", "}"]
    return _whole(body, form.places, 3)


class _Nest:
    """Writes the loops. Where an element is: bytes from the beginning of places, of what is near, and
    far."""

    def __init__(self, code: Code, form: _GatherKey, lines: Any, turns: Any, row: Any) -> None:
        self.code, self.form = code, form
        self.lines, self.turns, self.row = lines, turns, row
        if row:
            told = zip(row[-1][2:], form.steps, strict=True)
            row[-1][2:] = [fact if step < 0 else str(step) for fact, step in told]

    def write(self) -> None:
        code, form = self.code, self.form
        with code.loop("%lo", "%hi") as o, contextlib.ExitStack() as stack:
            line, part = o, "0"
            if form.cut:
                line, part = (code.let(f"{word} i64 {o}, %parts") for word in ("udiv", "urem"))
            at = ["0", "0", "0"]
            for d, loop in reversed([*enumerate(self.lines)]):
                k = code.let(f"urem i64 {line}, {loop[0]}") if d else line
                line = code.let(f"udiv i64 {line}, {loop[0]}") if d else line
                at = self.onward(at, k, loop)
            *several, each = self.turns or [None]
            for d, loop in enumerate(several):
                at = self.onward(at, stack.enter_context(self.turn(loop, d, part)), loop)
            if form.picks is not None:
                self.picked(at, *self.ends(each, len(several), part))
                return
            if form.cut == "owners":
                at = stack.enter_context(self.owned(at, each, part))
            else:
                if each:
                    k = stack.enter_context(self.turn(each, len(several), part))
                    at = self.onward(at, k, each)
                at = at if form.along else self.led(at)
            *outer, last = self.row or [None]
            for loop in outer:
                at = self.onward(at, stack.enter_context(code.loop("0", loop[0])), loop)
            if not last:
                self.element(at)
                return
            begin, end = self.part(part, last[0]) if form.cut == "row" else ("0", last[0])
            if form.lanes == 1:
                k = stack.enter_context(code.loop(begin, end))
                at = self.onward(at, k, last)
                self.element(self.led(at) if form.along else at)
                return
            whole = code.let(f"sub i64 {end}, {form.lanes - 1}")
            with code.loop(begin, whole, form.lanes) as k:
                self.element(self.onward(at, k, last), form.lanes)
            if form.rest:
                ends = code.let(f"icmp eq i64 {end}, {last[0]}")
                stack.enter_context(code.when(ends))
                k = code.let(f"sub i64 {end}, {form.rest}")
                self.element(self.onward(at, k, last), form.rest)

    def onward(self, at: Sequence[str], k: str, loop: Sequence[str]) -> list[str]:
        return [
            x if step == "0" else self.code.sum(self.code.times(k, step), x)
            for x, step in zip(at, loop[1:], strict=True)
        ]

    def ends(self, loop: Sequence[str], d: int, part: str) -> tuple[str, str]:
        cut = self.form.cut == "places" and d == 0
        return self.part(part, loop[0]) if cut else ("0", loop[0])

    def turn(self, loop: Sequence[str], d: int, part: str) -> Any:
        return self.code.loop(*self.ends(loop, d, part))

    def picked(self, at: Sequence[str], begin: str, end: str) -> None:
        """A loop over places side by side, block by block: first all are looked at, then elements are
        taken as vectors."""
        code, lines, form = self.code, self.code.lines, self.form
        index, value = form.places, memory_type(form.value)
        places, near, far = (
            code.let(f"getelementptr i8, ptr %{base}, i64 {k}")
            for base, k in zip(("places", "near", "far"), at, strict=True)
        )

        def place(k: str) -> Value:
            kind = llvm_type(index)
            address = code.let(f"getelementptr {kind}, ptr {places}, i64 {k}")
            name = code.let(f"load {kind}, ptr {address}, align {index.itemsize}{_APART}")
            return Value(lines, name, index)

        cells = [code.cell(index) for _ in range(2)]
        with code.loop(begin, end, BLOCK) as block:
            stop = code.least(code.sum(block, str(BLOCK)), end)
            for cell in cells:
                code.put(cell, lines.constant(0, index))
            with code.loop(block, stop, lanes=index.itemsize) as k:
                found = place(k)
                _widen(code, cells, found)
            low, high = (cast(code.get(cell, index), int64).name for cell in cells)
            below = code.let(f"icmp slt i64 {low}, {code.let('sub i64 0, %size')}")
            above = code.let(f"icmp uge i64 {high}, %size")
            bad = code.let(f"or i1 {below}, {above}")
            with code.when(bad):
                code.add(f"call void @seen(ptr %meta, i64 {low}, i64 {high})")
            with code.when(code.let(f"xor i1 {bad}, true")):
                size = cast(Value(lines, "%size", int64), form.picks or int64)
                each = form.value.itemsize
                with code.loop(block, stop, lanes=each if each in (4, 8) else 0) as k:
                    found = cast(place(k), size.dtype)
                    found = where(found < 0, found + size, found) if index.kind == "i" else found
                    source, target = (
                        code.let(f"getelementptr {value}, ptr {base}, i64 {n}")
                        for base, n in ((far, cast(found, int64).name), (near, k))
                    )
                    aligned = f"align {each}{_APART}"
                    taken = code.let(f"load {value}, ptr {source}, {aligned}")
                    code.add(f"store {value} {taken}, ptr {target}, {aligned}")

    @contextlib.contextmanager
    def owned(self, at: Sequence[str], loop: Sequence[str], part: str) -> Iterator[list[str]]:
        """A loop over the places that are this part's. Which these are is found out before, without
        branches, so it is known where the next ones lead."""
        code = self.code
        room, count, zero = code.integers(BLOCK), code.cell(int64), code.lines.constant(0, int64)
        mine = self.buckets(part)
        with code.loop("0", loop[0], BLOCK) as begin:
            code.put(count, zero)
            with code.loop(begin, code.least(code.sum(begin, str(BLOCK)), loop[0])) as k:
                had = code.get(count, int64)
                seat = code.let(f"getelementptr i64, ptr {room}, i64 {had.name}")
                code.add(f"store i64 {k}, ptr {seat}")
                code.put(count, had + self.is_in(mine, self.place(self.onward(at, k, loop))))
            found = code.get(count, int64).name
            last = code.let(f"sub i64 {found}, 1")
            with code.loop("0", found) as n:
                later = code.least(code.sum(n, str(AHEAD)), last)
                coming, now = (
                    self.led(self.onward(at, self.seated(room, k), loop)) for k in (later, n)
                )
                self.ask_for(coming)
                yield now

    def seated(self, room: str, k: str) -> str:
        seat = self.code.let(f"getelementptr i64, ptr {room}, i64 {k}")
        return self.code.let(f"load i64, ptr {seat}")

    def ask_for(self, at: Sequence[str]) -> None:
        """Rows that are next to each other near come by themselves if they are short."""
        code, lines = self.code, self.form.asked
        for base, begin in (("far", at[2]), ("near", at[1]))[: 1 + (lines > 1)]:
            for line in range(lines):
                there = code.sum(begin, str(64 * line))
                code.fetch(code.let(f"getelementptr i8, ptr %{base}, i64 {there}"))

    def buckets(self, part: str) -> str:
        """A bit for each that is this part's; there are two parts at least."""
        code = self.code
        begin, end = (
            code.let(f"udiv i64 {code.times(k, str(BUCKETS))}, %parts")
            for k in (part, code.sum(part, "1"))
        )
        beyond = code.let(f"shl i64 1, {code.let(f'sub i64 {end}, {begin}')}")
        return code.let(f"shl i64 {code.let(f'sub i64 {beyond}, 1')}, {begin}")

    def is_in(self, mine: str, place: str) -> Value:
        """Whether a place is in one of these buckets, as a number. Neighbours are in one."""
        code = self.code
        mixed = code.let(f"mul i64 {code.let(f'lshr i64 {place}, %apart')}, {_MIX}")
        bucket = code.let(f"lshr i64 {mixed}, {64 - BUCKETS.bit_length() + 1}")
        bit = code.let(f"lshr i64 {mine}, {bucket}")
        return Value(code.lines, code.let(f"and i64 {bit}, 1"), int64)

    def part(self, k: str, extent: str) -> tuple[str, str]:
        begin = self.code.times(k, "%each")
        return begin, self.code.least(self.code.sum(begin, "%each"), extent)

    def led(self, at: Sequence[str]) -> list[str]:
        """To where the place leads."""
        far = self.code.times(self.place(at), "%step")
        return [*at[:2], self.code.sum(far, at[2])]

    def place(self, at: Sequence[str]) -> str:
        """From the front. Who takes looks at each place now, and reads from none outside."""
        code, lines, index = self.code, self.code.lines, self.form.places
        address = code.let(f"getelementptr i8, ptr %places, i64 {at[0]}")
        name = code.let(f"load {llvm_type(index)}, ptr {address}, align {index.itemsize}")
        found, size = cast(Value(lines, name, index), int64), Value(lines, "%size", int64)
        if self.form.how == TAKES:
            signed = index.kind == "i"
            moved, end = ((found + size).name, "%twice") if signed else (found.name, "%size")
            bad = code.let(f"icmp uge i64 {moved}, {end}")
            with code.when(bad):
                low = found.name if signed else "0"
                code.add(f"call void @seen(ptr %meta, i64 {low}, i64 {found.name})")
            found = where(Value(lines, bad, bool_), 0, found)
        return (where(found < 0, found + size, found) if index.kind == "i" else found).name

    def element(self, at: Sequence[str], many: int = 1) -> None:
        """One, or as many neighbours as one vector."""
        code, form, dtype = self.code, self.form, self.form.value
        kind = f"<{many} x {memory_type(dtype)}>" if many > 1 else memory_type(dtype)
        aligned = f"align {dtype.itemsize}"

        def load(base: str, at: str) -> str:
            address = code.let(f"getelementptr i8, ptr %{base}, i64 {at}")
            if base == "near" and many > 1 and form.steps[0] == 0:
                one = code.let(f"load {memory_type(dtype)}, ptr {address}, {aligned}")
                first = code.let(f"insertelement {kind} poison, {memory_type(dtype)} {one}, i64 0")
                zeros = f"<{many} x i32> zeroinitializer"
                return code.let(f"shufflevector {kind} {first}, {kind} poison, {zeros}")
            return code.let(f"load {kind}, ptr {address}, {aligned}")

        made = load("far", at[2]) if form.how == TAKES else load("near", at[1])
        if form.how not in (TAKES, "set"):
            made = _joined(code, form.how, load("far", at[2]), made, dtype, many)
        to, there = ("near", at[1]) if form.how == TAKES else ("far", at[2])
        address = code.let(f"getelementptr i8, ptr %{to}, i64 {there}")
        code.add(f"store {kind} {made}, ptr {address}, {aligned}")


def _joined(code: Code, how: str, old: str, new: str, dtype: DType, many: int = 1) -> str:
    """As NumPy joins them, signs of zeros included."""
    if dtype == bfloat16:
        a, b = (cast(Value(code.lines, x, dtype), float32).name for x in (old, new))
        made = Value(code.lines, _joined(code, how, a, b, float32), float32)
        return cast(made, bfloat16).name
    real = dtype.kind == "f"
    kind = f"<{many} x {llvm_type(dtype)}>" if many > 1 else llvm_type(dtype)
    if how in ("add", "multiply"):
        return code.let(f"{'f' * real}{how[:3]} {kind} {old}, {new}")
    test = "l" if how == "min" else "g"
    word = f"fcmp o{test}t" if real else f"icmp {'u' if dtype.kind == 'u' else 's'}{test}t"
    bit = f"<{many} x i1>" if many > 1 else "i1"
    stays = code.let(f"{word} {kind} {old}, {new}")
    if real:
        none = code.let(f"fcmp uno {kind} {old}, {old}")
        stays = code.let(f"or {bit} {stays}, {none}")
    return code.let(f"select {bit} {stays}, {kind} {old}, {kind} {new}")


# -- places --------------------------------------------------------------------------------
def _checking(i: Any, size: int, threads: int, answers: bool) -> Kernel:
    """The function of places that raises if one is outside. It may answer."""
    loops = _loops(i.shape, [i.strides]) or [(1, 0)]
    unit = loops[-1][1] == i.itemsize
    turns = loops[0][0]
    facts = [turns, min(threads, i.size // (8 * GRAIN), turns), 0, 0, size]
    facts += [n for loop in loops for n in loop]
    return function_of(_check_text(i.dtype, len(loops), unit, answers), np.array(facts, np.int64))


@lru_cache(64)
def _check_text(index: DType, loops: int, unit: bool, answers: bool) -> str:
    code, width = Code(), index.itemsize
    code.add("%places = call ptr @array(ptr %data, i64 0)")
    told = [
        [code.let(f"call i64 @fact(ptr %meta, i64 {5 + 2 * k + j})") for j in range(2)]
        for k in range(loops)
    ]
    if unit:
        told[-1][1] = str(width)
    cells = [code.cell(index) for _ in range(2)]
    for cell in cells:
        code.put(cell, code.lines.constant(0, index))
    with contextlib.ExitStack() as stack:
        at = "0"
        for k, (extent, step) in enumerate(told):
            begin, end = ("0", extent) if k else ("%lo", "%hi")
            lanes = width if unit and k == loops - 1 else 0
            n = stack.enter_context(code.loop(begin, end, lanes=lanes))
            at = code.sum(code.times(n, step), at)
        address = code.let(f"getelementptr i8, ptr %places, i64 {at}")
        place = code.let(f"load {llvm_type(index)}, ptr {address}, align {width}{_APART}")
        _widen(code, cells, Value(code.lines, place, index))
    low, high = (cast(code.get(cell, index), int64).name for cell in cells)
    code.add(f"call void @seen(ptr %meta, i64 {low}, i64 {high})")
    body = [_HEAD, *code.entry, *code.lines.text, "  ret void", "}"]
    return _whole(body, index, 1 + answers, _ANSWER if answers else "")


def _widen(code: Code, cells: Sequence[str], place: Value) -> None:
    """The least and the largest of all places so far."""
    for cell, how in zip(cells, ("min", "max"), strict=True):
        more = _joined(code, how, code.get(cell, place.dtype).name, place.name, place.dtype)
        code.put(cell, Value(code.lines, more, place.dtype))


def _whole(body: Sequence[str], index: DType, many: int, end: str = "") -> str:
    """A module that raises after all if a place was outside."""
    symbol("PyErr_Format", address_of(ctypes.pythonapi, "PyErr_Format"))
    symbol("Py_DecRef", address_of(ctypes.pythonapi, "Py_DecRef"))
    symbol("index_error", IndexError)
    u = "u" if index.name == "uint64" else ""
    told = _TOLD.replace("END", end).replace("UMAX", u + "max").replace("SGE", f"{u or 's'}ge")
    told = told.replace("%lld is", f"%ll{u or 'd'} is")
    return "\n".join([TABLES, *body, told, around(many, "shared"), loop_facts(vector_bits())])


_APART = ", !llvm.access.group !1"  # of loops whose turns are independent
_MIX = 0x9E3779B97F4A7C15 - (1 << 64)
_HEAD = """
define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {
entry:"""
_ANSWER = """
  %answer = call ptr @array(ptr %data, i64 1)
  store i8 1, ptr %answer"""
_TOLD = """
declare ptr @PyErr_Format(ptr, ptr, ...)
declare void @Py_DecRef(ptr)
@index_error = external global i8
@outside = private constant [59 x i8] c"index %lld is out of bounds for an axis with %lld elements\\00"

define internal void @finish(ptr %data, ptr %meta) {END
  ret void
}

define internal void @seen(ptr %meta, i64 %low, i64 %high) noinline {
  %least = getelementptr i64, ptr %meta, i64 2
  %largest = getelementptr i64, ptr %meta, i64 3
  %a = atomicrmw min ptr %least, i64 %low monotonic
  %b = atomicrmw UMAX ptr %largest, i64 %high monotonic
  ret void
}

define ptr @run(ptr %self, ptr %args, i64 %given) {
  %meta = call ptr @array(ptr %self, i64 2)
  %least = getelementptr i64, ptr %meta, i64 2
  %largest = getelementptr i64, ptr %meta, i64 3
  store i64 0, ptr %least
  store i64 0, ptr %largest
  %made = call ptr @shared(ptr %self, ptr %args, i64 %given)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %bad, label %look
look:
  %low = load i64, ptr %least
  %high = load i64, ptr %largest
  %size = call i64 @fact(ptr %meta, i64 4)
  %front = sub i64 0, %size
  %below = icmp slt i64 %low, %front
  %above = icmp SGE i64 %high, %size
  %out = or i1 %below, %above
  br i1 %out, label %raise, label %good
raise:
  call void @Py_DecRef(ptr %made)
  %place = select i1 %below, i64 %low, i64 %high
  %said = call ptr (ptr, ptr, ...) @PyErr_Format(ptr @index_error, ptr @outside, i64 %place, i64 %size)
  br label %bad
good:
  ret ptr %made
bad:
  ret ptr null
}
"""
