"""How an array lies on the workers: a function from a worker's rank to the box that it holds.

A mesh is a tuple of axis sizes, ranks run through it row by row. A layout has one entry per mesh
axis:

    mesh (3, 2), array (6, 4):   split=(0, 1)            split=(0, None)        split=(0, 0)
                                 rows by axis 0,         rows by axis 0,        rows by axis 0, then
                                 columns by axis 1       replicas on axis 1     again by axis 1

Parts are balanced, the larger ones first. With an `Overlap` the parts are the images of another
array's parts and may overlap (halos). With `blocks`, parts are made of whole blocks of a fixed
grid.

Nothing here lists the workers of a mesh: which part a worker has follows from its coordinates, and
what holds for all workers from how the parts are made. `exchange.py` says which messages turn one
layout into another, `traffic.py` how much they move.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np

from .locks import make_lock

Shape = tuple[int, ...]
Mesh = tuple[int, ...]
Box = tuple[tuple[int, int], ...]

MAX_EDGE_WINDOWS = 32  # outputs whose windows reach over an array's edges
BLOCKS = 24  # of the fixed grid: even for 1, 2, 3, 4, 6, 8, 12 and 24 workers


@dataclass(frozen=True, slots=True)
class Partial:
    """Each worker holds one addend; the monoid combines them."""

    monoid: str

    def __repr__(self) -> str:
        return f"partial {self.monoid}"


class Region(IntEnum):
    """A piece of a part: the interior, and so much at its ends."""

    ALL = 0
    INNER = 1
    LOW = 2
    HIGH = 3


@dataclass(frozen=True, slots=True)
class Overlap:
    """The parts of `count` outputs, seen from their input: `[a, b)` needs `[offset + stride*a, ...
    + reach)`, of which every so many are an element. What the windows of an operation's index
    (`index.Window`) make of a layout. Of each part of outputs a `piece` may be looked at: so many at
    its ends, or what is left without these."""

    count: int
    offset: int
    stride: int
    reach: int
    every: int = 1
    low: int = 0
    high: int = 0
    piece: int = Region.ALL

    def piece_of(self, lo: Any, hi: Any) -> tuple[Any, Any]:
        """The outputs of the part `[lo, hi)` that are looked at; of many parts, as arrays, too."""
        if not self.piece:
            return lo, hi
        begin = np.minimum(lo + self.low, hi)
        end = np.maximum(begin, hi - self.high)
        return ((lo, hi), (begin, end), (lo, begin), (end, hi))[self.piece]

    def image(self, lo: int, hi: int, size: int) -> tuple[int, int]:
        """The inputs that the outputs `[lo, hi)` need, out of `size`."""
        if self.piece:
            lo, hi = map(int, self.piece_of(lo, hi))
        if lo >= hi:
            return 0, 0
        first, last = self.offset + self.stride * lo, self.offset + self.stride * (hi - 1)
        start = max(0, -(-min(first, last) // self.every))
        end = (max(first, last) + self.reach - 1) // self.every + 1
        return start, max(start, min(size, end))

    def outputs(self, lo: int, hi: int) -> tuple[int, int]:
        """Whose windows meet the inputs `[lo, hi)`: what outputs `[a, b)` need does if a is less than
        the first number and b more than the second."""
        first, step = self.offset, abs(self.stride)
        lo, hi = self.every * lo, self.every * (hi - 1) + 1
        if not step:
            return (self.count, -1) if first < hi and lo < first + self.reach else (0, self.count)
        if self.stride > 0:
            return -((first - hi) // step), (lo - first - self.reach) // step + 1
        return -((lo - first - self.reach) // step), (first - hi) // step + 1

    def inside(self, size: int) -> tuple[int, int]:
        """The outputs whose windows are within `[0, size)`; the stride is not 0, and `every` is 1."""
        first, step = self.offset, abs(self.stride)
        if self.stride > 0:
            lo, hi = -(first // step), (size - self.reach - first) // step + 1
        else:
            lo, hi = -((size - self.reach - first) // step), first // step + 1
        lo = min(max(lo, 0), self.count)
        return lo, min(max(hi, lo), self.count)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The fields, without the last ones that say nothing."""
        found = self.count, self.offset, self.stride, self.reach
        if self.piece:
            return (*found, self.every, self.low, self.high, int(self.piece))
        return (*found, self.every) if self.every > 1 else found

    def around(self, other: Overlap) -> Overlap:
        """The windows around these and others that move alike."""
        offset = min(self.offset, other.offset)
        end = max(self.offset + self.reach, other.offset + other.reach)
        return Overlap(self.count, offset, self.stride, end - offset, self.every)

    def covers(self, size: int) -> bool:
        """Whether it is no window at all: each output needs just its own input."""
        return self == Overlap(size, 0, 1, 1)


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


def part_at(lo: int, hi: int, parts: int, x: int) -> int:
    """Which of the balanced parts of `[lo, hi)` has `x`; the first or the last if none has."""
    if x < lo:
        return 0
    if x >= hi:
        return parts - 1
    each, more = divmod(hi - lo, parts)
    large = more * (each + 1)
    x -= lo
    return x // (each + 1) if x < large else more + (x - large) // each


FACTS = "mesh", "splits", "windows", "blocks", "stored", "workers", "is_whole", "partial_axes"


class Layout:
    """One layout; interned like Spec, so that equal layouts are the same object."""

    __slots__ = FACTS
    mesh: Mesh
    splits: tuple[Placement, ...]
    windows: tuple[tuple[int, Overlap], ...]
    blocks: bool
    stored: bool
    workers: int
    is_whole: bool
    partial_axes: tuple[int, ...]

    _made: dict[tuple[Any, ...], Layout] = {}  # noqa: RUF012
    _lock = make_lock()

    def __new__(
        cls,
        mesh: Mesh,
        splits: tuple[Placement, ...],
        windows: tuple[tuple[int, Overlap], ...] = (),
        blocks: bool = False,
        stored: bool = False,
    ) -> Layout:
        asked = mesh, splits, windows, blocks, stored
        found = cls._made.get(asked)
        if found is not None:
            return found
        # An axis with one worker splits nothing, and a grid without a split aligns nothing.
        splits = tuple(s if n > 1 else None for s, n in zip(splits, mesh, strict=True))
        windows = tuple(w for w in windows if w[0] in splits)
        blocks = blocks and any(isinstance(s, int) for s in splits)
        key = (mesh, splits, windows, blocks, stored)
        with cls._lock:
            found = cls._made.get(key)
            if found is None:
                found = object.__new__(cls)
                whole = all(s is None for s in splits)
                partial = tuple(a for a, s in enumerate(splits) if isinstance(s, Partial))
                facts = zip(FACTS, (*key, math.prod(mesh), whole, partial), strict=True)
                for name, value in facts:
                    object.__setattr__(found, name, value)
                cls._made[key] = found
            cls._made[asked] = found  # as it was asked for, which is sooner found next time
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

    def with_split(self, axis: int, split: Placement) -> Layout:
        """Replace the split of one mesh axis."""
        splits = (*self.splits[:axis], split, *self.splits[axis + 1 :])
        return Layout(self.mesh, splits, self.windows, self.blocks)

    def without(self, axes: Collection[int]) -> Layout:
        """Replicate along these mesh axes."""
        splits = [None if a in axes else s for a, s in enumerate(self.splits)]
        return Layout(self.mesh, tuple(splits), self.windows, self.blocks)

    def cut_in_time(self, turns: int, split: Placement) -> Layout:
        """Add an axis to the mesh, along which this is cut too."""
        return Layout((*self.mesh, turns), (*self.splits, split), self.windows, self.blocks)

    @property
    def resident(self) -> Layout:
        """Return this layout in memory."""
        return Layout(self.mesh, self.splits, self.windows, self.blocks)

    @property
    def on_disk(self) -> Layout:
        """Return this layout in a file that all workers can read."""
        return Layout(self.mesh, self.splits, self.windows, self.blocks, True)

    def with_halos(self, halos: Mapping[int, int], shape: Shape) -> Layout:
        """Widen the parts by so many of their neighbours' places on both sides, by dimensions."""
        windows = [(d, Overlap(shape[d], -n, 1, 2 * n + 1)) for d, n in sorted(halos.items()) if n]
        return Layout(self.mesh, self.splits, tuple(windows), self.blocks)

    @property
    def without_halos(self) -> Layout:
        """Narrow the parts to their own places: only replicas have any in common."""
        return Layout(self.mesh, self.splits, (), self.blocks)

    @property
    def without_last_axis(self) -> Layout:
        """Drop the last mesh axis."""
        return Layout(self.mesh[:-1], self.splits[:-1], self.windows, self.blocks)

    def coords(self, rank: int) -> tuple[int, ...]:
        return _coords(self.mesh, rank)

    def box(self, shape: Shape, rank: int) -> Box:
        """Return the box that a worker holds of an array of this shape."""
        return _box(self, shape, rank)

    def local_shape(self, shape: Shape, rank: int) -> Shape:
        return tuple(hi - lo for lo, hi in self.box(shape, rank))

    def largest(self, shape: Shape) -> Shape:
        """Per dimension, the largest extent that any worker holds."""
        return _largest(self, shape)

    def axes(self, dim: int) -> tuple[int, ...]:
        """The mesh axes that split a dimension, the outer first."""
        return tuple([a for a, s in enumerate(self.splits) if isinstance(s, int) and s == dim])

    def window(self, dim: int) -> Overlap | None:
        return next((w for d, w in self.windows if d == dim), None)

    def parts(self, shape: Shape) -> int:
        """How many different parts an array has that are not empty."""
        assert not self.windows
        count = 1
        for dim, size in enumerate(shape):
            cut = math.prod([self.mesh[a] for a in self.axes(dim)])
            count *= min(cut, grid_size(size) if self.blocks and size else size)
        return count

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
                text += f" window {':'.join(map(str, window.numbers))}"
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
    axes = layout.axes(dim)
    if not axes:
        return 0, size
    window = layout.window(dim)
    count = window.count if window is not None else size
    grid = grid_bounds(count) if layout.blocks else None
    lo, hi = 0, (len(grid) - 1 if grid is not None else count)
    for a in axes:
        lo, hi = balanced(lo, hi, layout.mesh[a], coords[a])
    if grid is not None:
        lo, hi = grid[lo], grid[hi]
    return window.image(lo, hi, size) if window is not None else (lo, hi)


def bounds_of_many(
    layout: Layout, size: int, dim: int, coords: Sequence[Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """`_bounds` for arrays of coordinates: one for each mesh axis, which are broadcast."""
    axes, window = layout.axes(dim), layout.window(dim)
    count = window.count if window is not None else size
    grid = np.array(grid_bounds(count)) if layout.blocks and axes else None
    lo: Any = np.int64(0)
    hi: Any = np.int64(size if not axes else len(grid) - 1 if grid is not None else count)
    for a in axes:
        each, more = np.divmod(hi - lo, layout.mesh[a])
        start = lo + coords[a] * each + np.minimum(coords[a], more)
        lo, hi = start, start + each + (coords[a] < more)
    if grid is not None:
        lo, hi = grid[lo], grid[hi]
    if axes and window is not None:
        lo, hi = window.piece_of(lo, hi)
        first, last = window.offset + window.stride * lo, window.offset + window.stride * (hi - 1)
        start = np.maximum(0, -(-np.minimum(first, last) // window.every))
        end = (np.maximum(first, last) + window.reach - 1) // window.every + 1
        end = np.maximum(start, np.minimum(size, end))
        lo, hi = np.where(lo < hi, start, 0), np.where(lo < hi, end, 0)
    return lo, hi


def every_bounds(layout: Layout, size: int, dim: int) -> tuple[Any, Any]:
    """`_bounds` at all coordinates along the axes that split a dimension."""
    lo, hi = bounds_of_many(layout, size, dim, all_coords(layout.mesh, layout.axes(dim)))
    return lo.ravel(), hi.ravel()


def all_coords(mesh: Mesh, axes: Sequence[int]) -> list[Any]:
    """Arrays of coordinates along the mesh, to be broadcast: all along some axes, 0 along others."""
    coords: list[Any] = [0] * len(mesh)
    for k, a in enumerate(axes):
        coords[a] = np.arange(mesh[a]).reshape([-1] + [1] * (len(axes) - 1 - k))
    return coords


@lru_cache(65536)
def _box(layout: Layout, shape: Shape, rank: int) -> Box:
    coords = _coords(layout.mesh, rank)
    return tuple([_bounds(layout, size, dim, coords) for dim, size in enumerate(shape)])


@lru_cache(65536)
def _largest(layout: Layout, shape: Shape) -> Shape:
    if not any(isinstance(s, int) for s in layout.splits):
        return shape
    return tuple([extents(layout, size, dim)[1] for dim, size in enumerate(shape)])


@lru_cache(65536)
def extents(layout: Layout, size: int, dim: int) -> tuple[int, int]:
    """The smallest and the largest extent of a dimension that any worker holds.

    Parts of parts are balanced as those of one cut into as many, so both follow by division. Parts in
    blocks, of which at most 24 are not empty, and windows far over an array's edges are listed, along
    this dimension alone."""
    axes, window = layout.axes(dim), layout.window(dim)
    if not axes:
        return size, size
    parts = math.prod([layout.mesh[a] for a in axes])
    count = window.count if window is not None else size
    if not layout.blocks:
        least, most = count // parts, -(-count // parts)
        if window is None:
            return least, most
        over = parts_over_edges(layout, size, dim)
        if over is not None:
            found = [hi - lo for lo, hi in (window.image(*part, size) for part in over)]
            sizes = [hi - lo for lo, hi in over]
            for n, times in ((least, parts - count % parts), (most, count % parts or parts)):
                if times > sizes.count(n):  # some are within the array
                    found.append(abs(window.stride) * (n - 1) + window.reach if n else 0)
            return min(found), max(found)
    elif grid_size(count) < parts:  # a block or nothing
        parts_in_blocks = itertools.pairwise(grid_bounds(count))
        held = [window.image(*b, size) if window is not None else b for b in parts_in_blocks]
        return 0, max(hi - lo for lo, hi in held)
    los, his = every_bounds(layout, size, dim)
    return int((his - los).min()), int((his - los).max())


def parts_over_edges(layout: Layout, size: int, dim: int) -> list[tuple[int, int]] | None:
    """The outputs of those parts of a dimension whose windows reach over the array's edges; None where
    they are not few."""
    window = layout.window(dim)
    assert window is not None
    if layout.blocks or not window.stride or window.every > 1 or window.piece:
        return None
    first, end = window.inside(size)  # outputs that need nothing from beyond the edges
    if first + window.count - end > MAX_EDGE_WINDOWS:
        return None
    found = set()
    for x in (*range(first), *range(end, window.count)):
        lo, hi = 0, window.count
        for a in layout.axes(dim):
            n = layout.mesh[a]
            lo, hi = balanced(lo, hi, n, part_at(lo, hi, n, x))
        found.add((lo, hi))
    return sorted(found)


@lru_cache(65536)
def _contains(has: Layout, needs: Layout, shape: Shape) -> bool:
    if has.partial_axes or needs.partial_axes or has.workers != needs.workers:
        return has is needs
    return all(_holds(has, needs, size, dim) for dim, size in enumerate(shape))


def _holds(has: Layout, needs: Layout, size: int, dim: int) -> bool:
    """Whether each worker already has what it needs along one dimension: by the rules that cut it; else
    by a worker that has not; and if neither tells, of all workers along its mesh axes."""
    outer, inner = has.axes(dim), needs.axes(dim)
    if not outer:
        return True
    if has.mesh == needs.mesh and has.blocks == needs.blocks:
        cut, wanted = has.window(dim), needs.window(dim)
        if (outer == inner and cut == wanted) or (
            outer == inner[: len(outer)] and cut is None is wanted
        ):
            return True
    for rank in {0, 1, has.workers // 3, has.workers // 2, has.workers - 1}:
        lo, hi = _bounds(needs, size, dim, _coords(needs.mesh, rank))
        own = _bounds(has, size, dim, _coords(has.mesh, rank))
        if lo < hi and not own[0] <= lo <= hi <= own[1]:
            return False
    if has.mesh == needs.mesh:
        axes = sorted({*outer, *inner})
        mine = theirs = all_coords(has.mesh, axes)
    else:
        ranks = np.arange(has.workers)
        mine, theirs = coords_of_many(has.mesh, ranks), coords_of_many(needs.mesh, ranks)
    held, needed = bounds_of_many(has, size, dim, mine), bounds_of_many(needs, size, dim, theirs)
    inside = (held[0] <= needed[0]) & (needed[1] <= held[1])
    return bool((inside | (needed[0] == needed[1])).all())


def coords_of_many(mesh: Mesh, ranks: np.ndarray[Any, Any]) -> list[Any]:
    """The coordinates of many workers, an array for each mesh axis."""
    return [ranks // math.prod(mesh[a + 1 :]) % n for a, n in enumerate(mesh)]


@lru_cache(1 << 14)
def different_shapes(
    arrays: tuple[tuple[Layout, Shape], ...],
) -> tuple[tuple[Shape, ...], ...]:
    """The shapes of the parts that one worker has of each of these arrays, without repetitions."""
    meshes = {layout.mesh for layout, _ in arrays}
    if len(meshes) == 1:
        cut = sorted(
            {a for layout, shape in arrays for d in range(len(shape)) for a in layout.axes(d)}
        )
        coords = {mesh: all_coords(mesh, cut) for mesh in meshes}
    else:
        coords = {mesh: coords_of_many(mesh, np.arange(math.prod(mesh))) for mesh in meshes}
    columns: dict[Any, Any] = {}  # extents along a dimension, by what decides them
    keys: list[list[Any]] = []
    for layout, shape in arrays:
        keys.append([])
        for dim, size in enumerate(shape):
            axes = layout.axes(dim)
            key = layout.mesh, axes, layout.window(dim), layout.blocks, size
            keys[-1].append(key)
            if key not in columns:
                lo, hi = bounds_of_many(layout, size, dim, coords[layout.mesh])
                columns[key] = hi - lo
    extents = [x.ravel() for x in np.broadcast_arrays(*columns.values())]
    case: Any = np.int64(0)  # a number for each combination of extents
    for n in extents:
        found = n - n.min()
        if found.max() > 1:
            found = np.unique(found, return_inverse=True)[1]
        case = case * (found.max() + 1) + found
        if case.max() > 1 << 31:
            case = np.unique(case, return_inverse=True)[1]
    first = np.unique(case, return_index=True)[1]
    at = dict(zip(columns, [n[first].tolist() for n in extents], strict=True))
    each = range(len(first))
    return tuple([tuple([tuple([at[key][k] for key in of]) for of in keys]) for k in each])


def whole_box(shape: Shape) -> Box:
    return tuple([(0, n) for n in shape])


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


def around(at: Sequence[slice], shape: Sequence[int]) -> list[tuple[slice, ...]]:
    """The slabs of an array that are outside of a box."""
    found = []
    for d, cut in enumerate(at):
        first, end, _ = cut.indices(shape[d])
        found += [
            (*at[:d], slab)
            for slab in (slice(0, first), slice(end, shape[d]))
            if slab.start < slab.stop
        ]
    return found


def part_ranks(mesh: Mesh, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The ranks that lie with this one on a line (or plane) of the mesh."""
    coords = _coords(mesh, rank)
    choices: Iterator[tuple[int, ...]] = itertools.product(
        *(range(n) if a in axes else (coords[a],) for a, n in enumerate(mesh))
    )
    strides = [math.prod(mesh[a + 1 :]) for a in range(len(mesh))]
    return tuple(sum(c * s for c, s in zip(p, strides, strict=True)) for p in choices)
