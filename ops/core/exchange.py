"""Which messages turn one layout into another, and who writes or has which part of an array.

    has: split 0 of 3          needs: split 1 of 3        pieces_to(rank 1)
    0 0 0                      0 1 2                      . 0 .      from rank 0
    1 1 1                      0 1 2                      . 1 .      is there
    2 2 2                      0 1 2                      . 2 .      from rank 2

Where replicas hold what a worker needs, it comes from the one that lies as the worker does along the
mesh axes of the replicas: itself, if it has it; so each replica serves its own share of the workers.

A worker's messages are found dimension by dimension, from which parts meet an interval, in time that
grows with their number and not with the number of workers."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from .layout import Box, Layout, Mesh, Shape, balanced, grid_bounds, intersect, part_at, volume

LOOKED_AT = 8  # workers, of whose messages the largest is found
CHUNK = 32 << 20  # bytes of a chunk of a file, about,
SHARE = 4  # or such a part of a memory limit


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message: a box of the global array from one rank to another."""

    source: int
    target: int
    box: Box


# -- the messages of one worker ----------------------------------------------------------------
def pieces_to(has: Layout, needs: Layout, shape: Shape, rank: int) -> tuple[Transfer, ...]:
    """List the pieces a worker gets, and from whom; what is there already comes from itself. By the
    ranks of the first who has each."""
    _check(has, needs)
    wanted = needs.box(shape, rank)
    if not volume(wanted):
        return ()
    if intersect(has.box(shape, rank), wanted) == wanted:
        return (Transfer(rank, rank, wanted),)
    coords, strides = has.coords(rank), _strides(has.mesh)
    mine = sum(coords[a] * strides[a] for a, s in enumerate(has.splits) if s is None)
    return tuple([Transfer(first + mine, rank, box) for first, box in _cells(has, shape, wanted)])


def pieces_from(has: Layout, needs: Layout, shape: Shape, rank: int) -> tuple[Transfer, ...]:
    """List the pieces a worker gives, in the order of those who get them; what stays there goes to
    itself.

    On another mesh, those whom another replica serves are looked at, too."""
    _check(has, needs)
    own = has.box(shape, rank)
    if not volume(own):
        return ()
    coords, strides = has.coords(rank), _strides(needs.mesh)
    alike = [a for a, s in enumerate(has.splits) if s is None]
    fixed = {a: coords[a] for a in alike} if has.mesh == needs.mesh else {}
    places = [
        [(k * strides[a], (0, 0)) for k in ((fixed[a],) if a in fixed else range(needs.mesh[a]))]
        for a, s in enumerate(needs.splits)
        if s is None
    ]
    dims = [list(meeting(needs, size, d, own[d], fixed)) for d, size in enumerate(shape)]
    found = []
    for choice in itertools.product(*dims, *places):
        target = sum(at for at, _ in choice)
        if not fixed and alike:
            other = has.coords(target)
            if any(other[a] != coords[a] for a in alike):
                continue
        found.append(Transfer(rank, target, tuple([part for _, part in choice[: len(shape)]])))
    return tuple(sorted(found, key=lambda p: p.target))


@lru_cache(4096)
def largest_piece(has: Layout, needs: Layout, shape: Shape) -> int:
    """About how many elements the largest message between two workers has, the same for whoever asks:
    no more than a part before and a part after have in common; of windows, what is found with some
    workers who are spread over all."""
    if not needs.windows:
        return math.prod(map(min, has.largest(shape), needs.largest(shape)))
    ranks = {k * (has.workers - 1) // (LOOKED_AT - 1) for k in range(LOOKED_AT)}
    return max(
        (
            volume(p.box)
            for rank in sorted(ranks)
            for p in pieces_to(has, needs, shape, rank)
            if p.source != rank
        ),
        default=0,
    )


def _check(has: Layout, needs: Layout) -> None:
    assert not has.partial_axes
    assert not needs.partial_axes
    assert not has.windows, "who has overlapping parts sends none of them"
    assert has.workers == needs.workers


def _strides(mesh: Mesh) -> list[int]:
    """By how much a rank grows along each axis."""
    return [math.prod(mesh[a + 1 :]) for a in range(len(mesh))]


def _cells(layout: Layout, shape: Shape, box: Box) -> list[tuple[int, Box]]:
    """The parts that have some of a box: the first rank that has each, and what it has of the box."""
    dims = [list(meeting(layout, size, d, box[d], {})) for d, size in enumerate(shape)]
    found = [
        (sum(at for at, _ in choice), tuple([part for _, part in choice]))
        for choice in itertools.product(*dims)
    ]
    return sorted(found)


def meeting(
    layout: Layout, size: int, dim: int, interval: tuple[int, int], fixed: Mapping[int, int]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """The parts of a dimension that meet an interval: what their coordinates add to a rank, and what
    they have in common with it. `fixed`: coordinates of which no other is asked for."""
    axes, window = layout.axes(dim), layout.window(dim)
    if not axes:
        yield 0, interval
        return
    count = window.count if window is not None else size
    lo, hi = interval
    # a part [a, b) of the outputs meets the interval if a < before and after < b
    before, after = hi, lo
    if window is not None:
        before, after = window.outputs(lo, hi)
    grid = grid_bounds(count) if layout.blocks else None
    if grid is not None:
        before, after = bisect_left(grid, before), bisect_right(grid, after) - 1
    strides = _strides(layout.mesh)

    def inside(depth: int, start: int, end: int, at: int) -> Iterator[tuple[int, int, int]]:
        if depth == len(axes):
            yield at, start, end
            return
        a = axes[depth]
        n = layout.mesh[a]
        first, last = part_at(start, end, n, after), part_at(start, end, n, before - 1)
        last = min(last, end - start - 1)  # behind it all are empty
        if a in fixed:
            first, last = max(first, fixed[a]), min(last, fixed[a])
        for k in range(first, last + 1):
            lo, hi = balanced(start, end, n, k)
            if lo < hi and lo < before and after < hi:
                yield from inside(depth + 1, lo, hi, at + k * strides[a])

    for at, start, end in inside(0, 0, len(grid) - 1 if grid is not None else count, 0):
        if grid is not None:
            start, end = grid[start], grid[end]
        part = window.image(start, end, size) if window is not None else (start, end)
        common = max(lo, part[0]), min(hi, part[1])
        if common[0] < common[1]:
            yield at, common


# -- files --------------------------------------------------------------------------------------
@lru_cache(4096)
def chunks_of(layout: Layout, shape: Shape, itemsize: int, limit: int | None = None) -> Shape:
    """Extents of chunks for a file that the holders of these parts write: a part, or, of a large one,
    its share along the first axes. `limit`: bytes that a worker may take, to read it again, too."""
    most = CHUNK if limit is None else min(CHUNK, max(limit // SHARE, 1))
    chunks = [max(1, n) for n in layout.without_halos.largest(shape)]
    for d, n in enumerate(chunks):
        pieces = min(n, -(-math.prod(chunks) * itemsize // most))
        even = next((k for k in range(pieces, min(n, 2 * pieces) + 1) if n % k == 0), pieces)
        chunks[d] = -(-n // even)
    return tuple(chunks)


@lru_cache(4096)
def written(
    layout: Layout, shape: Shape, chunks: Shape | None = None
) -> tuple[tuple[Box, ...], ...]:
    """Which boxes each rank writes, so that all is written, by one writer each: its part, if no rank
    before has the same one; or whole chunks, of which it has some and no rank before has any. Halos
    are their neighbours'."""
    layout, shares = layout.without_halos, []
    taken: set[Box] = set()
    for rank in range(layout.workers):
        part = layout.box(shape, rank)
        boxes = [part] if chunks is None else _chunks_in(part, chunks, shape)
        mine = tuple(b for b in boxes if volume(part) and b not in taken)
        taken.update(mine)
        shares.append(mine)
    return tuple(shares)


def _chunks_in(box: Box, chunks: Shape, shape: Shape) -> Iterator[Box]:
    return itertools.product(
        *(
            [(k * n, min((k + 1) * n, end)) for k in range(lo // n, -(-hi // n))]
            for (lo, hi), n, end in zip(box, chunks, shape, strict=True)
        )
    )


def held_pieces(layout: Layout, shape: Shape, box: Box) -> Iterator[tuple[int, Box]]:
    """The ranks that together hold a box, and which piece of it each has: one rank, if there is one
    that has all."""
    if volume(box):
        yield from _cells(layout, shape, box)
    elif intersect(layout.box(shape, 0), box) == box:
        yield 0, box
