"""Several steps over the same elements as one kernel (ops/jit/step_tiles.py): threads share tiles of the
results' rows, and each tile goes through all steps in a thread's own memory, which its cache holds.

    tile 0: rows [0, 41) of step 0, to the thread's memory; rows [0, 40) of step 1, to the result
    tile 1: rows [39, 81) of step 0; ...

What is done for a tile stands in a table: in which part of which step so many rows are made, and where each
array of that part begins. Tiles that are alike share it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import Scratch
from ostinato.ops.core.spec import Shape, Spec, int8, int64
from ostinato.ops.cpu.jit.llvm import function_of
from ostinato.ops.cpu.jit.parallel import around
from ostinato.ops.cpu.jit.routine import Routine
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.threads import most_threads
from ostinato.ops.jit.loops import Loops, loops_over
from ostinato.ops.jit.moves import Cell
from ostinato.ops.jit.step_tiles import Ranges, Steps, Tile, Work, steps_along

from .boxed_loops import Cells
from .flat import SHARE, all_beside, kernel_facts, kernel_parts, streams

# where an array of a part begins: at an address, in the thread's memory
NOWHERE, ROOM = range(-2, 0)


class Width(NamedTuple):
    """Words of a row of the table."""

    facts: int = 4  # which text, its facts, turns, and how many arrays
    # of each: where it begins, how far from there, and how much further in the next tile
    array: int = 3

    def whole(self, arrays: int) -> int:
        return self.facts + self.array * arrays


WIDTH = Width()


def tiled_steps(
    arrays: Sequence[Any], threads: int, *, scratch: Sequence[Any], body: Graph, axis: int, **_: Any
) -> Callable[..., None] | None:
    """The kernel for operands and results that lie so."""
    steps = _steps(body, tuple([x.shape for x in arrays[: len(body.inputs)]]), axis)
    if steps is None:
        return None
    made = _Made(steps, arrays)
    text = made.text()
    return function_of(text, *made.facts(threads, scratch))


def tiled_scratch(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], *, body: Graph, axis: int
) -> Sequence[Scratch]:
    """Size the memory for what lies between the steps in a tile, for each thread."""
    steps = _steps(body, tuple(ins), axis)
    if steps is None:
        return ()
    return [Scratch((_room(steps, _height(steps)) * most_threads() + LIMITS.line,), int8)]


def _steps(body: Graph, given: tuple[Shape, ...], axis: int) -> Steps | None:
    steps = steps_along(body, given, axis)
    return steps if steps is not None and all(math.prod(n) for n in steps.shapes) else None


def _height(steps: Steps) -> int:
    return max(1, steps.height(LIMITS.tile_bytes, LIMITS.thread_tiles * most_threads()))


def _room(steps: Steps, height: int) -> int:
    return sum(steps.sizes(alike.tile for alike in steps.tiles(height)))


class _Piece(NamedTuple):
    """A part of a step as machine code sees it."""

    text: int
    facts: np.ndarray[Any, Any]
    turns: int  # for each row
    arrays: list[tuple[int, int, int]]  # where they are, how far the part begins from there, and
    # from row to row


class _Made:
    """A kernel's text, and what it knows."""

    def __init__(self, steps: Steps, arrays: Sequence[Any]) -> None:
        self.steps, self.arrays = steps, arrays
        self.texts: dict[tuple[Graph, Loops, int], int] = {}  # by what they are made of
        self.codes: dict[str, int] = {}
        self.declared = set[str]()
        self.cells = Cells(max((n for shape in steps.shapes for n in shape), default=1))
        self.pieces: dict[tuple[int, int], _Piece] = {}
        self.height = _height(steps)
        self.alike = list(steps.tiles(self.height))
        sizes = steps.sizes(a.tile for a in self.alike)
        self.places = [sum(sizes[:k]) for k in range(len(sizes))]
        self.room, self.slots = sum(sizes), steps.slots()
        self.tiles, self.table = list[int](), list[list[int]]()
        for tile, count in self.alike:
            first = len(self.table)
            self.table += [self._record(tile, work) for work in tile.works]
            for k in range(count):
                self.tiles += [first, len(self.table), k]

    # -- where arrays lie ------------------------------------------------------------------
    def _strides(self, v: int) -> list[int]:
        """Return the strides of a value between the steps."""
        steps, step = self.steps, self.steps.body.specs[v].dtype.itemsize
        found = [0] * len(steps.shapes[v])
        for d in reversed(range(len(found))):
            if d != steps.axes[v]:
                found[d], step = step, step * steps.shapes[v][d]
        found[steps.axes[v]] = steps.row_bytes(v)
        return found

    def _lies(self, v: int) -> tuple[int, Sequence[int]]:
        """Where a value is, and its strides."""
        body = self.steps.body
        if v < len(body.inputs):
            return v, self.arrays[v].strides
        if v in body.outputs:
            k = len(body.inputs) + body.outputs.index(v)
            return k, self.arrays[k].strides
        return ROOM, self._strides(v)

    def _values(self, k: int, p: int) -> list[int]:
        """List the values that a part reads, -1 for a number, and those that it makes."""
        node, part = self.steps.body.nodes[k], self.steps.parts[k][p]
        read = [node.inputs[x] if isinstance(x, int) else -1 for x, _ in part.reads]
        return [*read, *self.steps.body.outs(k)]

    def _piece(self, k: int, p: int) -> _Piece:
        part, axis = self.steps.parts[k][p], self.steps.axis(k)
        lies = list[tuple[int, int, Sequence[int]]]()
        last = len(part.box) - 1
        for n, v in enumerate(self._values(k, p)):
            if v < 0:
                cell = part.reads[n][0]
                assert isinstance(cell, Cell)
                row = self.cells.row(cell)
                lies.append(
                    (
                        NOWHERE,
                        row.ctypes.data,
                        [row.itemsize * (d == last) for d in range(last + 1)],
                    )
                )
                continue
            where, strides = self._lies(v)
            if n < len(part.reads):
                offset, steps = part.offset_and_strides(n, strides)
            else:
                offset = sum(s * lo for s, (lo, _) in zip(strides, part.box, strict=True))
                steps = tuple(strides)
            lies.append((where, offset, steps))
        extents = [hi - lo for lo, hi in part.box]
        beside = [d for d in range(last + 1) if d != axis]
        inner = loops_over(
            tuple([extents[d] for d in beside]), [[s[d] for d in beside] for _, _, s in lies]
        )
        many = inner.extents != (1,)
        loops = Loops(
            (extents[axis], *inner.extents[: len(inner.extents) * many]),
            tuple([(s[axis], *own[: len(own) * many])
                   for (_, _, s), own in zip(lies, inner.strides, strict=True)]),
        )  # fmt: skip
        loops = all_beside(loops)
        text = self._text(part.body, loops, SHARE * (k == len(self.steps.parts) - 1))
        facts = np.array(kernel_facts(part.body, loops, 1), np.int64)
        turns = math.prod(loops.extents[1:-1])
        return _Piece(text, facts, turns, [(w, offset, s[axis]) for w, offset, s in lies])

    def _text(self, body: Graph, loops: Loops, share: int) -> int:
        key = body, loops, share
        if key not in self.texts:
            declared, code = kernel_parts(body, loops, streams(body, loops, share))
            self.declared |= declared
            self.texts[key] = self.codes.setdefault(code, len(self.codes))
        return self.texts[key]

    def _record(self, tile: Tile, work: Work) -> list[int]:
        k, p = work.step, work.part
        if (k, p) not in self.pieces:
            self.pieces[k, p] = self._piece(k, p)
        piece, part = self.pieces[k, p], self.steps.parts[k][p]
        rows = work.begin - part.box[self.steps.axis(k)][0]
        found = [piece.text, piece.facts.ctypes.data, piece.turns * (work.end - work.begin)]
        found.append(len(piece.arrays))
        for n, (v, (where, offset, step)) in enumerate(
            zip(self._values(k, p), piece.arrays, strict=True)
        ):
            offset += step * rows
            if where == ROOM:
                at = work.begin if n >= len(part.reads) else self._row(v, k, p, n, work.begin)
                far = self.steps.row_bytes(v)
                offset += self.places[self.slots[v]] - far * (at - _place(tile.held[v], at))
            found += [where, offset, step * self.height if where >= 0 else 0]
        return found

    def _row(self, v: int, k: int, p: int, n: int, begin: int) -> int:
        """Which row of a value between the steps a part begins to read."""
        at = self.steps.parts[k][p].reads[n][1][self.steps.axes[v]]
        return at.position(begin if at.axis >= 0 else 0)

    # -- the whole -------------------------------------------------------------------------
    def text(self) -> str:
        most = max(len(p.arrays) for p in self.pieces.values())
        codes = [
            code.replace("@body(", f"@body{k}(").replace("@finish(", f"@finish{k}(")
            for code, k in self.codes.items()
        ]
        driver = _driver(len(codes), most)
        ends = "define internal void @finish(ptr %data, ptr %meta) {\n  ret void\n}"
        return "\n".join(
            [*sorted(self.declared), *codes, driver, ends, around(len(self.arrays))]
        )  # fmt: skip

    def facts(self, threads: int, scratch: Sequence[Any]) -> tuple[Any, Any]:
        """The meta array, and what it leads to."""
        width = WIDTH.whole(max(len(p.arrays) for p in self.pieces.values()))
        table = np.array([row + [0] * (width - len(row)) for row in self.table], np.int64)
        tiles, count = np.array(self.tiles, np.int64), len(self.tiles) // 3
        threads = min(threads, count, most_threads())
        needed = self.room * max(1, threads) + LIMITS.line
        room = scratch[0] if scratch and scratch[0].nbytes >= needed else np.empty(needed, np.int8)
        begin = -(-room.ctypes.data // LIMITS.line) * LIMITS.line
        meta = [count, threads, begin, self.room, tiles.ctypes.data, table.ctypes.data]
        facts = [p.facts for p in self.pieces.values()]
        return np.array(meta, np.int64), (room, tiles, table, facts, self.cells.made)


def _place(held: Ranges, row: int) -> int:
    """Which of the rows that are there a row is."""
    before = 0
    for a, b in held:
        if a <= row < b:
            return before + row - a
        before += b - a
    raise AssertionError(f"row {row} is not among {held}")


@lru_cache(64)
def _driver(codes: int, most: int) -> str:
    """`body`: some tiles, each with all that is done for it."""
    kinds = {"data": [int64], "meta": [int64], "lo": int64, "hi": int64, "thread": int64}
    run = Routine(None, "tiles", **kinds)
    data, meta, lo, hi, thread = run.given
    room = meta[2] + thread * meta[3]
    tiles, table = run.memory(meta[4], int64), run.memory(meta[5], int64)
    given = run.own(most, int64)
    width = WIDTH.whole(most)
    with run.each(hi, lo) as t:
        about = tiles.further(3 * t)
        with run.each(about[1], about[0]) as w:
            record = table.further(width * w)
            with run.each(record[3]) as k:
                array = record.further(WIDTH.facts + WIDTH.array * k)
                where = run.variable(array[1] + array[2] * about[2])
                with run.given_that(array[0] >= 0):
                    where.now = where.now + data[array[0]]
                with run.given_that(array[0] == ROOM):
                    where.now = where.now + room
                given[k] = where.now
            facts = run.memory(record[1], int64)
            for n in range(codes):
                with run.given_that(record[0] == n):
                    args = f"ptr {given.name}, ptr {facts.name}, i64 0, i64 {record[2].name}"
                    run.add(f"call void @body{n}({args}, i64 {thread.name})")
    return run.text().replace("@run(", "@body(")
