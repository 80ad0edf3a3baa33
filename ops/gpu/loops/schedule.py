"""How the stages of a kernel run on a GPU: which rows a block has at a time, along what its threads are
neighbours, and which values stay in shared memory.

A unit is a tile of some rows, all of whose stages one block of threads does, one after another:

    rows are long (softmax)        the threads are neighbours along them; a unit has as many rows as make
                                   some thousand elements
    all else is short (k-means)    the threads are neighbours along the rows

What is chosen depends on extents and on how arrays lie, and never on the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape
from ostinato.ops.jit.kept_values import (
    MAX_FIXED_EXTENT,
    MAX_THREAD_TERMS,
    is_apart,
    is_near,
    is_swept,
    kept,
    step,
)
from ostinato.ops.jit.loops import Loops
from ostinato.ops.jit.random_bits import numbers_in
from ostinato.ops.jit.stage_values import Stages, stages_of, strides_in_order

THREADS = 256  # of a block
WARP = 32
VECTOR = 16  # bytes that a thread reads at once
SOME = 1024  # terms that a warp combines
SHARED = 36 << 10  # bytes of a block's values; there are 48 KiB without asking for more
ITEMS = 4096  # elements of a unit
ACROSS = 32  # an index of at most so many turns is short, even if its elements are neighbours
LEAST_ACROSS, MOST_ACROSS = 32, 4096  # rows of a unit where threads are neighbours along them ...
MOST_ALONG = 64  # ... and where they are not
SIDE, LEAST_SIDE = 32, 8  # of a square; of an index that is cut for it
BLOCKS = 512  # units that keep a GPU busy, all of which run at once
WAITING = 24  # registers of what a thread has asked for and not yet used
WRITTEN = 1024  # operations that are written one by one for what a thread has at once
LEFT = 4  # what all turns leave of what they combined over rows: this part of what is read


@dataclass
class Tiles(Stages):
    """Stages, and how a block does them."""

    cut: dict[int, int] = field(
        default_factory=dict
    )  # row labels of which a unit has some: how many
    near: int = -1  # the label along which threads are neighbours
    held: set[int] = field(default_factory=set)  # values in shared memory
    inlined: set[int] = field(
        default_factory=set
    )  # reductions of few terms, made where they are read

    @property
    def across(self) -> bool:
        """Whether threads are neighbours along rows."""
        return self.near in self.cut

    def is_inside(self, label: int) -> bool:
        """Whether a unit has more than one element along a label."""
        return label in self.cut or label not in self.rows

    def inner(self, v: int, near: int = -1) -> tuple[int, ...]:
        """The labels of a value in a unit; last is that along which threads are neighbours."""
        near = self.near if near < 0 else near
        return tuple(sorted(filter(self.is_inside, self.labels(v)), key=lambda x: x == near))

    def over(self, first: int) -> tuple[int, ...]:
        """The labels in a unit along which a reduction combines."""
        inside = filter(self.is_inside, sorted(self.reductions[first].over))
        return tuple(sorted(inside, key=lambda x: x == self.near))

    def width(self, label: int) -> int:
        return self.cut.get(label, self.extents[label])

    def volume(self, v: int) -> int:
        return math.prod(map(self.width, self.inner(v)))

    def padded(self, v: int) -> bool:
        """Whether the lines of a held value are apart by one more element, so that neighbours along any
        label lie in other banks."""
        inner = self.inner(v)
        return self.across and len(inner) > 1 and inner[-1] == self.near

    def room(self, v: int) -> int:
        """Bytes of a held value, up to whole lines."""
        volume = self.volume(v)
        if self.padded(v):
            volume += volume // self.width(self.near)
        return -(-volume * self.body.specs[v].dtype.itemsize // 64) * 64

    @property
    def units(self) -> int:
        return math.prod(-(-self.extents[x] // self.cut.get(x, 1)) for x in self.rows)

    def team(self, first: int) -> int:
        """Threads that make one result of a reduction."""
        outputs, terms = self.volume(first), self.all_terms(first)
        if self.abreast(first):
            return THREADS
        along = self.near in self.over(first)
        if terms <= MAX_THREAD_TERMS or (
            not along and outputs >= WARP and not self.is_by_columns(first)
        ):
            return 1
        if not along and outputs >= WARP:
            return THREADS // WARP
        return (
            THREADS
            if terms > SOME or (outputs < MAX_THREAD_TERMS and terms > THREADS // 2)
            else WARP
        )

    def abreast(self, first: int) -> tuple[int, ...]:
        """The labels along which each thread combines all results of a long reduction at once, so that what
        they share is made once."""
        over = self.reductions[first].over
        if over & {*self.rows} or MONOIDS[self.reductions[first].kind].width > 1:
            return ()
        if math.prod(self.extents[x] for x in over) <= SOME:
            return ()
        some = [x for x in self.labels(first) if x not in self.rows]
        return tuple(some) if math.prod(self.extents[x] for x in some) <= MAX_THREAD_TERMS else ()

    def is_by_columns(self, first: int) -> bool:
        """Whether neighbouring threads make neighbouring results, and warps share their terms."""
        if self.abreast(first):
            return False
        columns = self.near not in self.over(first) and self.volume(first) >= WARP
        return columns and self.all_terms(first) > MAX_FIXED_EXTENT

    def all_terms(self, first: int) -> int:
        return math.prod(map(self.width, self.over(first)))

    def terms(self, first: int) -> int:
        """Count the terms of a reduction that one thread combines."""
        return -(-self.all_terms(first) // self.team(first))

    @property
    def moved(self) -> int:
        """Bytes of all operands."""
        sizes = [s.dtype.itemsize for s in self.body.inputs]
        return sum(
            size * math.prod(self.extents[x] for x in lies)
            for size, lies in zip(sizes, self.strides, strict=False)
        )

    @property
    def beside(self) -> int:
        """Elements that a thread reads and writes as one vector, where arrays lie in order."""
        sizes = [
            s.dtype.itemsize for v, s in enumerate(self.body.specs) if self.near in self.dims[v]
        ]
        lies = [
            own[self.near] == self.body.specs[self.value_of(a)].dtype.itemsize
            for a, own in enumerate(self.strides)
            if self.near in own
        ]
        return max(1, VECTOR // max(sizes)) if any(lies) else 1


def analyse(
    body: Graph,
    dims: Sequence[Sequence[int]],
    rows: Sequence[int],
    shapes: Sequence[Shape],
    strides: Sequence[Sequence[int]],
    steps: Sequence[Sequence[int]] = (),
    begins: Sequence[Sequence[int]] = (),
) -> Tiles | None:
    """The tiles of a body for operands and results that lie so; None if no kernel can do it. (`steps` says
    how they lie where that is not known.)"""
    found = stages_of(body, dims, rows, shapes, strides, begins=begins)
    if found is None:
        return None
    tiles = Tiles(**vars(found))
    if not _can_be(tiles):
        return None
    long = [x for x in tiles.running.values() if tiles.extents[x] > MAX_FIXED_EXTENT]
    along = max(
        filter(partial(is_near, tiles), long), default=-1
    )  # of whose lines warps have neighbours
    return tiles if (along >= 0 and _arrange(tiles, along)) or _arrange(tiles) else None


def analyse_in_order(
    body: Graph,
    dims: Sequence[Sequence[int]],
    rows: Sequence[int],
    shapes: Sequence[Shape],
    steps: Sequence[Sequence[int]] = (),
) -> Tiles | None:
    """Analyse a kernel whose elements lie one behind the other."""
    return analyse(body, dims, rows, shapes, strides_in_order(body, shapes, steps))


def square_tiles(body: Graph, loops: Loops) -> Tiles | None:
    """The tiles of elementwise loops that read or write something across, as a transpose does: squares, which
    go through shared memory. None if nothing lies so, or if that takes too much of it."""
    labels = range(len(loops.extents))
    lies = [{x: s for x, s in zip(labels, own, strict=True) if s} for own in loops.strides]
    dims = [tuple(own) for own in lies[: len(body.inputs)]]
    for node in body.nodes:
        own = {x for v in node.inputs for x in dims[v]}
        dims += [tuple(sorted(own))] * len(node.specs)
    tiles = Tiles(body, [*dims], [*loops.extents], tuple(labels), {}, lies, len(body.inputs))
    tiles.near = labels[-1]
    apart = [a for a in range(len(lies)) if _is_across(tiles, a)]
    pairs = any(s.dtype.kind == "c" for s in body.specs)
    if not apart or pairs or any(v in body.outputs for v in range(len(body.inputs))):
        return None
    size = min(body.specs[tiles.value_of(a)].dtype.itemsize for a in apart)
    side = SIDE if size >= 4 else 2 * SIDE
    (other, *others) = {x for a in apart for x, s in lies[a].items() if s == _size(tiles, a)}
    tiles.cut = {other: side, tiles.near: side}
    tiles.held = _turned(tiles)
    return tiles if not others and tiles.held and _fits(tiles) else None


def _is_across(tiles: Tiles, a: int) -> bool:
    """Whether the neighbours of an operand or a result are those of another long loop than the last one."""
    lies, size = tiles.strides[a], _size(tiles, a)
    long = [x for x in lies if tiles.extents[x] >= LEAST_SIDE]
    return a not in numbers_in(tiles.body) and tiles.near in long and (
        lies[tiles.near] != size and any(lies[x] == size for x in long)
    )  # fmt: skip


def _size(tiles: Tiles, a: int) -> int:
    return tiles.body.specs[tiles.value_of(a)].dtype.itemsize


def _can_be(tiles: Tiles) -> bool:
    rows = {*tiles.rows}
    if 0 in tiles.extents or any(step(tiles, x) is None for x in rows):
        return False
    inside = [{*tiles.labels(v)} - rows for v in range(len(tiles.body.specs))]
    if any(math.prod(tiles.extents[x] for x in own) >= 1 << 31 for own in inside):
        return False  # as elements of a row are counted in 32 bits
    if any(rows & {*tiles.labels(v)} for v in tiles.gathered) or rows & {*tiles.running.values()}:
        return False
    return not any(
        MONOIDS[r.kind].width == 2 and len(r.over) > 1 for r in tiles.reductions.values()
    )


def _arrange(tiles: Tiles, along: int = -1) -> bool:
    """Choose the tile, along what threads are neighbours (if that is not known), and what is held, if it
    fits."""
    body = tiles.body
    worked = [k for k in range(len(body.nodes)) if tiles.works(k)]
    loops = [tiles.iterates(k) - {*tiles.rows} for k in worked]
    others = frozenset().union(*loops) - {*tiles.running.values()}  # along which one thread goes
    each = max((math.prod(tiles.extents[x] for x in own) for own in loops), default=1)
    tile = min(tiles.rows, key=lambda x: (tiles.extents[x] == 1, step(tiles, x) or 0))
    tiles.cut = {tile: 1}
    inner = max(others, key=lambda x: (is_near(tiles, x), tiles.extents[x]), default=-1)
    short = all(
        tiles.extents[x] <= (ACROSS if is_near(tiles, x) else MAX_FIXED_EXTENT) for x in others
    )
    tiles.near = tile if short or is_near(tiles, tile) else inner
    tiles.near = along if along >= 0 else tiles.near
    least, most = (LEAST_ACROSS, MOST_ACROSS) if tiles.across else (1, MOST_ALONG)
    wanted = max(THREADS if tiles.across and others else 1, ITEMS // each)
    wanted = min(1 << (wanted.bit_length() - 1), most)
    wanted = max(least, min(wanted, 1 << (tiles.extents[tile] - 1).bit_length()))
    at_once = {tiles.near, *(x for v in tiles.reductions for x in tiles.abreast(v))}
    few = {v for v in tiles.reductions if _is_short(tiles, v)}
    made = kept(tiles, at_once, few)
    needed = {v for v in made if _is_reduced(tiles, v) or v in tiles.running}
    for held in (made | _turned(tiles), needed, needed - few):
        tiles.held, tiles.inlined, tiles.cut[tile] = held, few - held, wanted
        while tiles.cut[tile] > least and (not _fits(tiles) or tiles.units < BLOCKS):
            tiles.cut[tile] //= 2
        if _fits(tiles):
            _occupy(tiles, tile)
            return True
    return False


def _occupy(tiles: Tiles, tile: int) -> None:
    """Give a unit some rows more where those of its tile, all there are, are fewer than its threads: pixels,
    beside a few channels."""
    others = [x for x in tiles.rows if x != tile and tiles.extents[x] > 1]
    if not (others and tiles.across) or tiles.running or tiles.gathered:
        return
    beside, width = min(others, key=lambda x: step(tiles, x) or 0), THREADS // tiles.cut[tile]
    width = min(width, 1 << (tiles.extents[beside] - 1).bit_length())
    if tiles.cut[tile] < tiles.extents[tile] or width < 2 or tiles.units < BLOCKS * width:
        return
    tiles.cut[beside] = width
    if not _fits(tiles):
        del tiles.cut[beside]


def _fits(tiles: Tiles) -> bool:
    """Whether there is room for what is held, and each thread of a warp has something to carry along."""
    lines = [
        tiles.volume(v) // tiles.extents[x] for v, x in tiles.running.items() if x != tiles.near
    ]
    return sum(map(tiles.room, tiles.held)) <= SHARED and all(n >= WARP for n in lines)


def _is_short(tiles: Tiles, v: int) -> bool:
    """Whether a thread combines all terms of a reduction where it needs the result."""
    r = tiles.reductions[v]
    alone = r.kind != "moments" and MONOIDS[r.kind].width == 1 and r.over.isdisjoint(tiles.rows)
    return alone and math.prod(tiles.extents[x] for x in r.over) <= MAX_THREAD_TERMS


def _is_reduced(tiles: Tiles, v: int) -> bool:
    k = tiles.body.producers[v]
    return k >= 0 and OPS[tiles.body.nodes[k].op].reduce is not None


def _turned(tiles: Tiles) -> set[int]:
    """Operands and results whose neighbours in memory are not the threads': they are read and written along
    their own lines, by way of shared memory."""
    found = set()
    for a, lies in enumerate(tiles.strides):
        v = tiles.value_of(a)
        if len(tiles.inner(v)) < 2 or tiles.near not in lies or line_of(tiles, a) < 0:
            continue
        if tiles.overlaps(a):
            continue
        if a >= tiles.operands:
            found |= set() if tiles.gathers(v) else {v}
        elif is_swept(tiles.body, v):
            found.add(v)
    return found


def line_of(tiles: Tiles, a: int) -> int:
    """The label along which the neighbours of an operand or a result lie, if it is not the threads'; or -1."""
    lies, v = tiles.strides[a], tiles.value_of(a)
    if not is_apart(tiles, v, lies, tiles.near):
        return -1
    return next((x for x in tiles.inner(v) if lies.get(x) == _size(tiles, a)), -1)
