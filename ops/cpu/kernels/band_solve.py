"""Banded equations as machine code: systems side by side in vectors, shared among threads.

What is left of the rows that reach into a column, some numbers of each system, stays in the nearest
cache; a pivot's row is kept for the way back, its number inverted. Which row is the pivot's is chosen by
selection and not by branches, for each system by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.spec import DType, bool_
from ostinato.ops.cpu.jit.emitter import Code, memory_type
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits, why_not
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.loops import loops_over
from ostinato.ops.jit.pairs import Pair
from ostinato.ops.jit.values import Value, where
from ostinato.ops.linalg.banded import NARROW

from .element_code import ElementCode, text_of

WIDE = 128  # systems side by side at the most
CACHE = 1 << 17  # bytes of what is kept of them
MIN_NEIGHBOURS = 4  # neighbours that are worth a vector
STRAIGHT, SAME, STEPPED = "straight", "same", "stepped"


class BandedKey(NamedTuple):
    """What a text depends on."""

    dtype: DType
    below: int  # diagonals
    above: int
    transposed: bool
    lies: tuple[str, ...]  # how the systems of each array lie
    bits: int


_FACTS = ("turns", "threads", "n", "inner", "wide", "groups", "room", "each", "dims")


def banded_kernel(
    arrays: Sequence[Any], threads: int, *, lower: int, axis: int, transposed: bool, **_: Any
) -> Any:
    """The function of diagonals, right-hand sides and results that lie so; None if the operation's own
    kernel does it."""
    out, upper = arrays[-1], len(arrays) - 3 - lower
    if why_not() or not out.size or max(lower, upper) > NARROW:
        return None
    below, above = (upper, lower) if transposed else (lower, upper)
    n, item = out.shape[axis], out.dtype.itemsize
    others = [d for d in range(out.ndim) if d != axis]
    steps = [[a.strides[d] for d in others] for a in arrays]
    loops = loops_over(tuple(out.shape[d] for d in others), steps)
    axes = list(zip(loops.extents, *loops.strides, strict=True))
    near = [k for k, a in enumerate(axes) if a[-1] == item and a[0] >= MIN_NEIGHBOURS]
    best = near[-1] if near else max(range(len(axes)), key=lambda k: axes[k][0])
    inner, *across = axes.pop(best)
    many = math.prod(a[0] for a in axes)
    kept = below + above + 1
    vector = vector_bits() // (8 * item)
    wide = max(vector, min(WIDE, CACHE // (n * (kept + 1) * item) // vector * vector))
    work = out.size * (below + 1) * (kept + 1)
    worth = 0 if work <= LIMITS.scan_quick else max(1, min(threads, work // LIMITS.scan_wake))
    if worth > 1 and many < worth:
        wide = max(vector, min(wide, -(-inner // (worth * vector)) * vector))
    wide = min(wide, inner)
    groups = -(-inner // wide)
    turns = groups * many
    worth = min(worth, turns)
    each = n * kept * wide * item
    room = np.empty(max(1, worth) * each, np.int8)
    facts = [turns, worth, n, inner, wide, groups, room.ctypes.data, each, len(axes)]
    facts += [s for a, step in zip(arrays, across, strict=True) for s in (a.strides[axis], step)]
    lies = tuple(
        STRAIGHT if s == item or inner == 1 else SAME if s == 0 else STEPPED for s in across
    )
    form = BandedKey(out.dtype, below, above, transposed, lies, vector_bits())
    return function_of(
        _text(form), np.array([*facts, *(n for a in axes for n in a)], np.int64), room
    )


# -- text ----------------------------------------------------------------------------------
@lru_cache(32)
def _text(form: BandedKey) -> str:
    code, many = Code(), len(form.lies)
    steps = [f"{word}{k}" for k in range(many) for word in ("along", "across")]
    _Writer(form, code).turns()
    return text_of(code, (*_FACTS, *steps), many, ["  %last = sub i64 %n, 1"])


class _Writer(ElementCode):
    """The body of a kernel. Rows are lists: what is left in columns that follow each other, and of the
    right-hand side."""

    def __init__(self, form: BandedKey, code: Code) -> None:
        super().__init__(code, form.dtype)
        self.form = form
        self.lanes = 0 if form.dtype.kind == "c" and form.below > 1 else self.part  # LLVM gives up
        self.wide = form.below + form.above + 1
        self.zero = code.lines.constant(0, form.dtype)
        # all but the column that a row before began in
        self.state = [[self.cells() for _ in range(self.wide)] for _ in range(form.below)]

    def cells(self) -> str:
        name = self.code.name("state")
        self.code.entry.append(
            f"  {name} = alloca [{WIDE} x {memory_type(self.form.dtype)}], align 64"
        )
        return name

    def element(self, bases: Sequence[str], lane: str, i: str, o: int, column: str) -> Value:
        """a[i, i + o], or zero outside of the matrix."""
        form, code = self.form, self.code
        if not -form.below <= o <= form.above:
            return self.zero
        array, place = (form.above - o, column) if form.transposed else (form.below + o, i)
        inside = code.let(f"icmp slt i64 {column if o > 0 else i}, %n")
        return self.read(bases, array, lane, place, inside)

    def right(self, bases: Sequence[str], lane: str, i: str) -> Value:
        return self.read(bases, self.wide, lane, i, self.code.let(f"icmp slt i64 {i}, %n"))

    def read(self, bases: Sequence[str], array: int, lane: str, i: str, inside: str) -> Value:
        found = self.load(self.address(bases, array, lane, self.code.least(i, "%last")))
        return where(Value(self.code.lines, inside, bool_), found, self.zero)

    def address(self, bases: Sequence[str], array: int, lane: str, i: str) -> str:
        """Where a system's element of an array is; the last is of results."""
        base = self.advance(bases[array], i, f"%along{array}")
        lies = self.form.lies[array]
        if lies == SAME:
            return base
        return self.advance(base, lane, str(self.item) if lies == STRAIGHT else f"%across{array}")

    # -- all systems of a turn
    def turns(self) -> None:
        code, many = self.code, len(self.form.lies)
        with code.loop("%lo", "%hi") as t:
            which, g = (code.let(f"{op} i64 {t}, %groups") for op in ("udiv", "urem"))
            first = code.times(g, "%wide")
            width = code.least(code.let(f"sub i64 %inner, {first}"), "%wide")
            bases = [
                self.advance(base, first, f"%across{k}")
                for k, base in enumerate(code.begins(which, range(many)))
            ]
            room = self.advance(code.let("inttoptr i64 %room to ptr"), "%thread", "%each")
            with code.loop("0", width, lanes=self.lanes) as lane:
                self.begin(bases, lane)
            with code.loop("0", "%n") as k, code.loop("0", width, lanes=self.lanes) as lane:
                self.forth(bases, room, lane, k)
            with code.loop("0", "%n") as back:
                k = code.let(f"sub i64 %last, {back}")
                with code.loop("0", width, lanes=self.lanes) as lane:
                    self.back(bases, room, lane, k)

    def begin(self, bases: Sequence[str], lane: str) -> None:
        for i, row in enumerate(self.state):
            made = [self.element(bases, lane, str(i), j - i, str(j)) for j in range(self.wide - 1)]
            for cell, x in zip(row, [*made, self.right(bases, lane, str(i))], strict=True):
                self.store(x, self.advance(cell, lane, str(self.item)))

    def forth(self, bases: Sequence[str], room: str, lane: str, k: str) -> None:
        """Column k: one row more reaches into it; the pivot's row is kept, the others go on."""
        code, below = self.code, self.form.below
        rows = []
        for cells in self.state:
            *had, right = [self.load(self.advance(c, lane, str(self.item))) for c in cells]
            rows.append([*had, self.zero, right])
        i = code.sum(k, str(below))
        columns = [code.sum(k, str(j)) for j in range(self.wide)]
        new = [self.element(bases, lane, i, j - below, c) for j, c in enumerate(columns)]
        pivot, *others = [*rows, [*new, self.right(bases, lane, i)]]
        for n, row in enumerate(others):
            larger = _size(row[0]) > _size(pivot[0])
            others[n] = [where(larger, y, x) for x, y in zip(row, pivot, strict=True)]
            pivot = [where(larger, x, y) for x, y in zip(row, pivot, strict=True)]
        inverse = 1.0 / pivot[0]
        for row, cells in zip(others, self.state, strict=True):
            factor = row[0] * inverse
            for x, y, cell in zip(row[1:], pivot[1:], cells, strict=True):
                self.store(x - factor * y, self.advance(cell, lane, str(self.item)))
        for j, x in enumerate([inverse, *pivot[1:-1]]):
            self.store(x, self.kept(room, lane, k, j))
        self.store(pivot[-1], self.address(bases, self.wide + 1, lane, k))

    def back(self, bases: Sequence[str], room: str, lane: str, k: str) -> None:
        found = self.load(self.address(bases, self.wide + 1, lane, k))
        for j in range(1, self.wide):
            later = self.code.least(self.code.sum(k, str(j)), "%last")
            known = self.load(self.address(bases, self.wide + 1, lane, later))
            found = found - self.load(self.kept(room, lane, k, j)) * known
        made = found * self.load(self.kept(room, lane, k, 0))
        self.store(made, self.address(bases, self.wide + 1, lane, k))

    def kept(self, room: str, lane: str, k: str, j: int) -> str:
        row = self.code.sum(self.code.times(k, str(self.wide)), str(j))
        base = self.advance(room, self.code.times(row, "%wide"), str(self.item))
        return self.advance(base, lane, str(self.item))


def _size(x: Value) -> Value:
    """By which LAPACK chooses pivots."""
    return abs(x.real) + abs(x.imag) if isinstance(x, Pair) else abs(x)
