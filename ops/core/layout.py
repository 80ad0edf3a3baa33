"""How an array lies on the workers: a function from a worker's rank to the box that it holds.

A mesh is a tuple of axis sizes, ranks run through it row by row. A layout has one entry per mesh
axis:

    mesh (3, 2), array (6, 4):   split=(0, 1)            split=(0, None)        split=(0, 0)
                                 rows by axis 0,         rows by axis 0,        rows by axis 0, then
                                 columns by axis 1       replicas on axis 1     again by axis 1

Parts are balanced, the larger ones first. With a `Window` the parts are the images of another
array's parts and may overlap (halos). With `blocks`, parts are made of whole blocks of a fixed
grid.

`exchange_lists` is the one routine that turns "what each has" and "what each needs" into messages.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Shape = tuple[int, ...]
Mesh = tuple[int, ...]
Box = tuple[tuple[int, int], ...]

BLOCKS = 24  # of the fixed grid: even for 1, 2, 3, 4, 6, 8, 12 and 24 workers


@dataclass(frozen=True, slots=True)
class Partial:
    """Each worker holds one addend; the monoid combines them."""

    monoid: str

    def __repr__(self) -> str:
        return f"partial {self.monoid}"


@dataclass(frozen=True, slots=True)
class Window:
    """The parts of `count` outputs, seen from their input: `[a, b)` needs `[offset + stride*a, ...
    + reach)`.
    """

    count: int
    offset: int
    stride: int
    reach: int

    def image(self, lo: int, hi: int, size: int) -> tuple[int, int]:
        """The inputs that the outputs `[lo, hi)` need, out of `size`."""
        if lo >= hi:
            return 0, 0
        first, last = self.offset + self.stride * lo, self.offset + self.stride * (hi - 1)
        start = max(0, min(first, last))
        return start, max(start, min(size, max(first, last) + self.reach))

    def covers(self, size: int) -> bool:
        """Whether it is no window at all: each output needs just its own input."""
        return (self.count, self.offset, self.stride, self.reach) == (size, 0, 1, 1)


Placement = int | Partial | None


def grid_size(size: int) -> int:
    """How many blocks the fixed grid cuts an index of this size into."""
    return max(1, min(BLOCKS, size))


def grid_bounds(size: int) -> tuple[int, ...]:
    """The bounds of the fixed grid's blocks."""
    blocks = grid_size(size)
    return tuple(size * b // blocks for b in range(blocks + 1))


def balanced(lo: int, hi: int, parts: int, k: int) -> tuple[int, int]:
    """The k-th of `parts` parts of `[lo, hi)`, the larger parts first."""
    each, more = divmod(hi - lo, parts)
    start = lo + k * each + min(k, more)
    return start, start + each + (k < more)


class Layout:
    """One layout; interned like Spec, so that equal layouts are the same object."""

    __slots__ = ("blocks", "mesh", "splits", "stored", "windows")
    mesh: Mesh
    splits: tuple[Placement, ...]
    windows: tuple[tuple[int, Window], ...]
    blocks: bool
    stored: bool

    _made: dict[tuple[Any, ...], Layout] = {}  # noqa: RUF012
    _lock = threading.Lock()

    def __new__(
        cls,
        mesh: Mesh,
        splits: tuple[Placement, ...],
        windows: tuple[tuple[int, Window], ...] = (),
        blocks: bool = False,
        stored: bool = False,
    ) -> Layout:
        # An axis with one worker splits nothing, and a grid without a split aligns nothing.
        splits = tuple(s if n > 1 else None for s, n in zip(splits, mesh, strict=True))
        windows = tuple(w for w in windows if w[0] in splits)
        blocks = blocks and any(isinstance(s, int) for s in splits)
        key = (mesh, splits, windows, blocks, stored)
        found = cls._made.get(key)
        if found is None:
            with cls._lock:
                found = cls._made.get(key)
                if found is None:
                    found = object.__new__(cls)
                    for name, value in zip(
                        ("mesh", "splits", "windows", "blocks", "stored"), key, strict=True
                    ):
                        object.__setattr__(found, name, value)
                    cls._made[key] = found
        return found

    @classmethod
    def whole(cls, mesh: Mesh) -> Layout:
        """A replica on every worker."""
        return cls(mesh, (None,) * len(mesh))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"a Layout does not change; make another: Layout(..., {name}={value!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout, (self.mesh, self.splits, self.windows, self.blocks, self.stored)

    @property
    def workers(self) -> int:
        return math.prod(self.mesh)

    @property
    def is_whole(self) -> bool:
        return all(s is None for s in self.splits)

    @property
    def partial_axes(self) -> tuple[int, ...]:
        return tuple(a for a, s in enumerate(self.splits) if isinstance(s, Partial))

    def with_split(self, axis: int, split: Placement) -> Layout:
        """The same, but for one mesh axis."""
        splits = (*self.splits[:axis], split, *self.splits[axis + 1 :])
        return Layout(self.mesh, splits, self.windows, self.blocks)

    def in_turns(self, turns: int, split: Placement) -> Layout:
        """The same on a mesh with one more axis, along which this is cut too."""
        return Layout((*self.mesh, turns), (*self.splits, split), self.windows, self.blocks)

    @property
    def resident(self) -> Layout:
        """The same in memory."""
        return Layout(self.mesh, self.splits, self.windows, self.blocks)

    @property
    def on_disk(self) -> Layout:
        """The same in a file that all workers can read."""
        return Layout(self.mesh, self.splits, self.windows, self.blocks, True)

    @property
    def at_once(self) -> Layout:
        """The same without the last mesh axis."""
        return Layout(self.mesh[:-1], self.splits[:-1], self.windows, self.blocks)

    def coords(self, rank: int) -> tuple[int, ...]:
        return _coords(self.mesh, rank)

    def box(self, shape: Shape, rank: int) -> Box:
        """What a worker holds of an array of this shape."""
        return _boxes(self, shape)[rank]

    def local_shape(self, shape: Shape, rank: int) -> Shape:
        return tuple(hi - lo for lo, hi in self.box(shape, rank))

    def largest(self, shape: Shape) -> Shape:
        """Per dimension, the largest extent that any worker holds."""
        return _largest(self, shape)

    def has_copy(self, other: Layout, shape: Shape) -> bool:
        """Whether each worker already holds all that it would hold in `other`."""
        return _contains(self, other, shape)

    def __repr__(self) -> str:
        words = []
        for axis, split in enumerate(self.splits):
            if split is None:
                continue
            window = dict(self.windows).get(split) if isinstance(split, int) else None
            text = f"split {split}" if isinstance(split, int) else repr(split)
            if window is not None:
                text += f" window {window.count}:{window.offset}:{window.stride}:{window.reach}"
            words.append(text + (f" on axis {axis}" if len(self.mesh) > 1 else ""))
        text = ", ".join(words) or "whole"
        mesh = "x".join(map(str, self.mesh))
        more = (" in blocks" if self.blocks else "") + (" on disk" if self.stored else "")
        return f"{text} of {mesh}{more}"


@lru_cache(65536)
def _coords(mesh: Mesh, rank: int) -> tuple[int, ...]:
    coords = []
    for size in reversed(mesh):
        rank, k = divmod(rank, size)
        coords.append(k)
    return tuple(reversed(coords))


def _bounds(layout: Layout, size: int, dim: int, coords: tuple[int, ...]) -> tuple[int, int]:
    """Which part of one dimension the worker at these coordinates holds."""
    axes = [a for a, s in enumerate(layout.splits) if s == dim and isinstance(s, int)]
    if not axes:
        return 0, size
    window = dict(layout.windows).get(dim)
    count = window.count if window is not None else size
    grid = grid_bounds(count) if layout.blocks else None
    lo, hi = 0, (len(grid) - 1 if grid is not None else count)
    for a in axes:
        lo, hi = balanced(lo, hi, layout.mesh[a], coords[a])
    if grid is not None:
        lo, hi = grid[lo], grid[hi]
    return window.image(lo, hi, size) if window is not None else (lo, hi)


@lru_cache(65536)
def _boxes(layout: Layout, shape: Shape) -> tuple[Box, ...]:
    """The boxes of all ranks."""
    ranks = [_coords(layout.mesh, r) for r in range(layout.workers)]
    dims = []
    for dim, size in enumerate(shape):
        if dim in layout.splits:
            dims.append([_bounds(layout, size, dim, c) for c in ranks])
        else:
            dims.append([(0, size)] * len(ranks))
    return tuple(zip(*dims, strict=True)) if dims else ((),) * len(ranks)


@lru_cache(65536)
def _largest(layout: Layout, shape: Shape) -> Shape:
    if not any(isinstance(s, int) for s in layout.splits):
        return shape
    boxes = _boxes(layout, shape)
    return tuple(max(b[d][1] - b[d][0] for b in boxes) for d in range(len(shape)))


@lru_cache(65536)
def _contains(has: Layout, needs: Layout, shape: Shape) -> bool:
    if has.partial_axes or needs.partial_axes or has.workers != needs.workers:
        return has is needs
    pairs = zip(_boxes(has, shape), _boxes(needs, shape), strict=True)
    return all(
        n_lo == n_hi or (h_lo <= n_lo and n_hi <= h_hi)
        for h, n in pairs
        for (h_lo, h_hi), (n_lo, n_hi) in zip(h, n, strict=True)
    )


def volume(box: Box) -> int:
    return math.prod(hi - lo for lo, hi in box)


def intersect(a: Box, b: Box) -> Box:
    """The common box; its volume is 0 if there is none."""
    common = []
    for (alo, ahi), (blo, bhi) in zip(a, b, strict=True):
        lo, hi = max(alo, blo), min(ahi, bhi)
        common.append((lo, max(lo, hi)))
    return tuple(common)


def slices(box: Box, inside: Box) -> tuple[slice, ...]:
    """Where a box lies in the array that holds another."""
    return tuple(slice(lo - o, hi - o) for (lo, hi), (o, _) in zip(box, inside, strict=True))


@dataclass(frozen=True, slots=True)
class Piece:
    """One message: a box of the global array from one rank to another."""

    source: int
    target: int
    box: Box


@lru_cache(4096)
def exchange_lists(has: Layout, needs: Layout, shape: Shape) -> tuple[Piece, ...]:
    """The messages that turn one layout into another, pieces that stay where they are included.

    Where several workers hold the same part, a worker takes its own copy if it has one, else that
    of a holder picked by its rank, so that replicas share the work."""
    assert not has.partial_axes
    assert not needs.partial_axes
    assert has.workers == needs.workers
    holders: dict[Box, list[int]] = {}
    for rank, box in enumerate(_boxes(has, shape)):
        if volume(box):
            holders.setdefault(box, []).append(rank)
    cells = [(box, ranks, set(ranks)) for box, ranks in holders.items()]
    pieces = []
    for target, wanted in enumerate(_boxes(needs, shape)):
        if not volume(wanted):
            continue
        own = has.box(shape, target)
        if intersect(own, wanted) == wanted:
            pieces.append(Piece(target, target, wanted))
            continue
        for box, ranks, owners in cells:
            common = intersect(box, wanted)
            if volume(common):
                source = target if target in owners else ranks[target % len(ranks)]
                pieces.append(Piece(source, target, common))
    return tuple(pieces)


CHUNK = 32 << 20  # bytes of a chunk of a file, about


@lru_cache(4096)
def chunks_of(layout: Layout, shape: Shape, itemsize: int) -> Shape:
    """Extents of chunks for a file that the holders of these parts write: a part, or, of a large one,
    its share along the first axes."""
    chunks = [max(1, n) for n in layout.largest(shape)]
    for d, n in enumerate(chunks):
        pieces = min(n, -(-math.prod(chunks) * itemsize // CHUNK))
        even = next((k for k in range(pieces, min(n, 2 * pieces) + 1) if n % k == 0), pieces)
        chunks[d] = -(-n // even)
    return tuple(chunks)


@lru_cache(4096)
def written(
    layout: Layout, shape: Shape, chunks: Shape | None = None
) -> tuple[tuple[Box, ...], ...]:
    """Which boxes each rank writes, so that all is written, by one writer each: its part, if no rank
    before has the same one; or whole chunks, of which it has some and no rank before has any.
    """
    shares = []
    taken: set[Box] = set()
    for part in _boxes(layout, shape):
        boxes = [part] if chunks is None else _chunks_in(part, chunks, shape)
        mine = tuple(b for b in boxes if volume(part) and b not in taken)
        taken.update(mine)
        shares.append(mine)
    return tuple(shares)


def _chunks_in(box: Box, chunks: Shape, shape: Shape) -> Iterator[Box]:
    """The chunks that have some of a box."""
    return itertools.product(
        *(
            [(k * n, min((k + 1) * n, end)) for k in range(lo // n, -(-hi // n))]
            for (lo, hi), n, end in zip(box, chunks, shape, strict=True)
        )
    )


def held_pieces(layout: Layout, shape: Shape, box: Box) -> Iterator[tuple[int, Box]]:
    """The ranks that together hold a box, and which piece of it each has: one rank, if there is one
    that has all."""
    ranks: dict[Box, int] = {}
    for rank, part in enumerate(_boxes(layout, shape)):
        ranks.setdefault(part, rank)
    pieces = [(rank, intersect(part, box)) for part, rank in ranks.items()]
    alone = [(rank, piece) for rank, piece in pieces if piece == box]
    yield from alone[:1] or (p for p in pieces if volume(p[1]))


@lru_cache(65536)
def moved(has: Layout, needs: Layout, shape: Shape) -> int:
    """How many elements cross between workers when one layout is turned into another, reductions
    included.
    """
    if has is needs:
        return 0
    total = 0
    here = has
    for axis in has.partial_axes:
        scatter = _scatters(here, needs, axis)
        there = here.with_split(axis, needs.splits[axis] if scatter else None)
        parts = sum(volume(b) for b in _boxes(there, shape)) // (1 if scatter else has.mesh[axis])
        total += parts * (has.mesh[axis] - 1) * (1 if scatter else 2)
        here = there
    if here is needs or here.has_copy(needs, shape):
        return total
    return total + sum(
        volume(needed) - volume(intersect(held, needed))
        for held, needed in zip(_boxes(here, shape), _boxes(needs, shape), strict=True)
    )


def _scatters(here: Layout, needs: Layout, axis: int) -> bool:
    """Whether the partial sums on an axis may go straight to their owners (a reduce-scatter)."""
    split = needs.splits[axis] if here.mesh == needs.mesh else None
    return (
        isinstance(split, int)
        and not needs.windows
        and here.blocks in (needs.blocks, False)
        # a dimension that two axes split must be split by the outer axis first
        and not any(s == split for s in here.splits)
    )


def part_ranks(mesh: Mesh, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The ranks that lie with this one on a line (or plane) of the mesh."""
    coords = _coords(mesh, rank)
    choices: Iterator[tuple[int, ...]] = itertools.product(
        *(range(n) if a in axes else (coords[a],) for a, n in enumerate(mesh))
    )
    strides = [math.prod(mesh[a + 1 :]) for a in range(len(mesh))]
    return tuple(sum(c * s for c, s in zip(p, strides, strict=True)) for p in choices)
