"""How much crosses between workers when one layout is turned into another.

    has: split 0 of 4, float32[8, 6]     needed       8 * 6            by all workers
    needs: split 1 of 4                  there        4 of 2 * 2, 2, 1, 1 elements

A worker's part is a product over the dimensions, and its interval of one dimension depends on its
coordinates along the mesh axes that split it. So what all workers need is a product over groups of
dimensions that share no mesh axis, and so is what they have of it. Within a group:

* parts of parts (`split=(0, 0)` from `split=(0, None)`), gathered, sliced or side by side: only how
  large they are counts. Balanced parts have two sizes, the larger ones first, so that a run of
  coordinates is one case: a handful of cases for any mesh.
* one dimension cut by other axes than before: each element of a part is somewhere, once.
* windows on parts: along a run of coordinates where neither extents nor the numbers of outputs change,
  the windows move by equal steps, mostly of 0: one case, or an arithmetic series.
* axes that cross over (`split=(0, 1)` to `split=(1, 0)`): the pairs of parts that have something in
  common, of which there are no more than parts before and after. Blocks: those parts that have some.

So `moved` takes tens of microseconds on 65,536 workers, up to half a millisecond where axes of many
parts cross over or windows of another stride drift along them, and milliseconds for another mesh, where
arrays over all workers are made."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .exchange import meeting
from .layout import (
    BLOCKS,
    Layout,
    Overlap,
    Shape,
    bounds_of_many,
    coords_of_many,
    every_bounds,
    parts_over_edges,
)

# Of each dimension, the extents of what a worker has and needs; and how many workers are in each case.
Cases = dict[tuple[tuple[int, int], ...], int]
Array = np.ndarray[Any, Any]


# -- questions -----------------------------------------------------------------------------------
@lru_cache(65536)
def moved(has: Layout, needs: Layout, shape: Shape) -> int:
    """How many elements cross between workers when one layout is turned into another, reductions
    included."""
    if has is needs:
        return 0
    total = 0
    sums, (here, there), _, _ = legs(has, needs, shape)
    for each in sums:
        n = math.prod([has.mesh[a] for a in each.axes])
        parts = held(each.there, shape)
        total += parts * (n - 1) if each.scatters else 2 * (parts // n) * (n - 1)
    if here is there or here.has_copy(there, shape):
        return total
    return total + held(there, shape) - there_already(here, there, shape)


class Sum(NamedTuple):
    """Addends that are combined along mesh axes: each worker gets the sum, or its part of it."""

    here: Layout
    scatters: bool
    axes: tuple[int, ...]
    there: Layout


class Legs(NamedTuple):
    """How a value comes from one layout to another: it is summed, then moved, both without the addends
    that stay addends, and last becomes the one addend that is not zero along some mesh axes."""

    sums: tuple[Sum, ...]
    move: tuple[Layout, Layout]
    stays: tuple[int, ...]  # mesh axes
    begins: tuple[int, ...]


@lru_cache(65536)
def legs(has: Layout, needs: Layout, shape: Shape, several: bool = False) -> Legs:
    """`several`: it is one of several arrays that are combined together. Halos that are there and do
    not suffice are left behind first, so that everything comes from one worker."""
    if has.windows and not has.has_copy(needs, shape):
        has = has.without_halos
    addends = needs.partial_axes
    end = needs.without(addends)
    stays = tuple(
        [a for a in has.partial_axes if has.mesh == needs.mesh and has.splits[a] == needs.splits[a]]
    )
    found = _legs(has, end, stays, several)
    if stays and not found.move[0].has_copy(end, shape):  # who moves it has to have all of it
        stays = ()
        found = _legs(has, end, stays, several)
    return found._replace(begins=tuple([a for a in addends if a not in stays]))


def _legs(has: Layout, end: Layout, stays: Collection[int], several: bool) -> Legs:
    here, sums = has.without(stays), list[Sum]()
    for axis in here.partial_axes:
        if not several and scatters(here, end, axis):
            splits = here.with_split(axis, end.splits[axis]).splits
            there = Layout(here.mesh, splits, (), end.blocks)
            sums.append(Sum(here, True, (axis,), there))
            here = there
    while here.partial_axes:
        first = here.splits[here.partial_axes[0]]
        axes = tuple([a for a in here.partial_axes if here.splits[a] == first])
        sums.append(Sum(here, False, axes, here.without(axes)))
        here = here.without(axes)
    return Legs(tuple(sums), (here, end), tuple(stays), ())


def held(layout: Layout, shape: Shape) -> int:
    """The elements that all workers together hold."""
    total = math.prod([n for n, s in zip(layout.mesh, layout.splits, strict=True) if not _cuts(s)])
    for dim, size in enumerate(shape):
        total *= _held_along(layout, size, dim)
    return total


@lru_cache(65536)
def there_already(has: Layout, needs: Layout, shape: Shape) -> int:
    """The elements that workers need and have, all together."""
    assert not has.windows
    if 0 in shape:
        return 0
    if has.mesh != needs.mesh:
        return _on_two_meshes(has, needs, shape)
    total = 1
    for dims, axes in _grouped(has, needs, len(shape)):
        if not dims:  # replicas before and after
            total *= math.prod([has.mesh[a] for a in axes])
            continue
        d = dims[0]
        outer, inner, window = has.axes(d), needs.axes(d), needs.window(d)
        if len(dims) == 1 and not {*outer} & {*inner}:
            total *= _held_along(needs, shape[d], d)  # each part is somewhere
        elif (
            len(dims) == 1
            and outer == inner
            and not has.blocks
            and not needs.blocks
            and window
            and window.every == 1
        ):
            total *= _in_windows([has.mesh[a] for a in outer], shape[d], window)
        else:
            found = _by_sizes(has, needs, shape, dims, axes)
            total *= _overlaps(has, needs, shape, dims, axes) if found is None else found
    return total


def scatters(here: Layout, needs: Layout, axis: int) -> bool:
    """Whether the partial sums on an axis may go straight to their owners (a reduce-scatter)."""
    split = needs.splits[axis] if here.mesh == needs.mesh else None
    return (
        isinstance(split, int)
        and not needs.windows
        and here.blocks in (needs.blocks, False)
        # a dimension that two axes split must be split by the outer axis first
        and not any(s == split for s in here.splits)
    )


# -- groups --------------------------------------------------------------------------------------
def _cuts(split: object) -> bool:
    return isinstance(split, int)


def _grouped(has: Layout, needs: Layout, ndim: int) -> list[tuple[list[int], list[int]]]:
    """Dimensions and mesh axes that belong together, since an axis cuts a dimension."""
    group = list(range(ndim))  # of each dimension, its first one
    for i, j in zip(has.splits, needs.splits, strict=True):
        if isinstance(i, int) and isinstance(j, int) and group[i] != group[j]:
            one, other = sorted((group[i], group[j]))
            group = [one if g == other else g for g in group]
    found: dict[int, tuple[list[int], list[int]]] = {}
    for d in range(ndim):
        found.setdefault(group[d], ([], []))[0].append(d)
    for a, (i, j) in enumerate(zip(has.splits, needs.splits, strict=True)):
        cut = i if isinstance(i, int) else j if isinstance(j, int) else None
        found.setdefault(-1 if cut is None else group[cut], ([], []))[1].append(a)
    return list(found.values())


# -- parts of parts ------------------------------------------------------------------------------
def _by_sizes(
    has: Layout, needs: Layout, shape: Shape, dims: Sequence[int], axes: Sequence[int]
) -> int | None:
    """Count the elements that workers have of those they need, all together, in a group where one
    of the two parts of each dimension is always within the other; None if it is not such a group.
    """
    if has.blocks or needs.blocks:
        return None
    place = {d: k for k, d in enumerate(dims)}
    for d in dims:
        outer, inner = has.axes(d), needs.axes(d)
        if needs.window(d) is not None or outer[: len(inner)] != inner[: len(outer)]:
            return None
    roles: list[tuple[int | None, int | None, int]] = []  # axes: what they cut before and after
    for a in axes:
        i, j, n = has.splits[a], needs.splits[a], has.mesh[a]
        k = place[i] if isinstance(i, int) else None
        m = place[j] if isinstance(j, int) else None
        if roles and roles[-1][:2] == (k, m):  # parts of parts are as many as large as of one cut
            n *= roles.pop()[2]
        roles.append((k, m, n))
    cases: Cases = {tuple([(shape[d], shape[d]) for d in dims]): 1}
    for k, m, n in roles:
        cases = _cut(cases, k, m, n)
    return sum(
        [
            workers * math.prod([min(*extents) for extents in case])
            for case, workers in cases.items()
        ]
    )


def _cut(cases: Cases, k: int | None, m: int | None, n: int) -> Cases:
    """Cut the cases along a mesh axis that cuts dimension k of what there is and dimension m of
    what is needed."""
    after: Cases = {}
    for case, workers in cases.items():
        ends = {n}  # of runs of coordinates with the same extents
        if k is not None:
            ends.add(case[k][0] % n)
        if m is not None:
            ends.add(case[m][1] % n)
        lo = 0
        for hi in sorted(ends - {0}):
            made = list(case)
            if k is not None:
                mine, wanted = made[k]
                made[k] = mine // n + (lo < mine % n), wanted
            if m is not None:
                mine, wanted = made[m]
                made[m] = mine, wanted // n + (lo < wanted % n)
            then = tuple(made)
            after[then] = after.get(then, 0) + workers * (hi - lo)
            lo = hi
    return after


# -- what is there already ----------------------------------------------------------------------
def _held_along(layout: Layout, size: int, dim: int) -> int:
    """The extents of all parts of a dimension together. Windows over the array's edges are looked at
    one by one, if they are few."""
    window, axes = layout.window(dim), layout.axes(dim)
    if window is None or not axes:
        return size
    over = parts_over_edges(layout, size, dim)
    if over is not None:
        parts = min(window.count, math.prod([layout.mesh[a] for a in axes]))
        step = abs(window.stride)
        total = step * (window.count - parts) + window.reach * parts
        for lo, hi in over:
            start, end = window.image(lo, hi, size)
            total -= step * (hi - lo - 1) + window.reach - (end - start)
        return total
    los, his = every_bounds(layout, size, dim)
    return int((his - los).sum())


def _in_windows(mesh: Sequence[int], size: int, window: Overlap) -> int:
    """How much workers have of windows on their parts, all together.

    What counts is how long a part is, for how many outputs there are, and how far the first window
    begins behind it. Along a run of coordinates where the former two stay, the latter moves by equal
    steps, mostly of 0: one case then, or in the end an arithmetic series."""
    step, reach = window.stride, window.reach
    cases = {(size, window.count, window.offset): 1}
    total = 0
    for depth, n in enumerate(mesh):
        after: dict[tuple[int, int, int], int] = {}
        for (extent, count, behind), workers in cases.items():
            (q, r), (s, t) = divmod(extent, n), divmod(count, n)
            lo = 0
            for hi in sorted({r, t, n} - {0}):
                mine, outputs, times = q + (lo < r), s + (lo < t), hi - lo
                begin = behind + step * (lo * s + min(lo, t)) - (lo * q + min(lo, r))
                lo = hi
                if not mine or not outputs:
                    continue
                shift, length = step * outputs - mine, abs(step) * (outputs - 1) + reach
                begin += min(0, step * (outputs - 1))
                if depth == len(mesh) - 1:
                    total += workers * _common(mine, length, begin, shift, times)
                    continue
                begin -= min(0, step * (outputs - 1))
                if not shift:
                    case = mine, outputs, begin
                    after[case] = after.get(case, 0) + workers * times
                    continue
                for k in range(times):
                    case = mine, outputs, begin + k * shift
                    after[case] = after.get(case, 0) + workers
        cases = after
    return total


def _common(extent: int, length: int, begin: int, shift: int, times: int) -> int:
    """Count what `[0, extent)` has in common with intervals of one length that begin at `begin`,
    `begin + shift`, ..., all together."""

    def positive(first: int) -> int:
        """The sum of those of `first, first + shift, ...` that are more than 0."""
        if not shift:
            return times * max(0, first)
        low, by = (first, shift) if shift > 0 else (first + shift * (times - 1), -shift)
        count = times - (0 if low > 0 else min(times, -low // by + 1))
        return count * (low + by * (times - 1)) - by * (count * (count - 1) // 2)

    return (
        positive(begin + length)
        - positive(begin)
        - positive(begin + length - extent)
        + positive(begin - extent)
    )


def _overlaps(
    has: Layout, needs: Layout, shape: Shape, dims: Sequence[int], axes: Sequence[int]
) -> int:
    """Count the elements that workers have of those they need, all together, in any group of
    dimensions: in arrays over the mesh axes, of which those are left out that tell nothing. Of a
    dimension that other axes cut than before, the pairs of parts are listed that have something in
    common."""
    cut: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    free = [*axes]
    pairs: tuple[int, Array] | None = None
    coords: list[Any] = [0] * len(has.mesh)
    for d in dims:
        outer, inner = has.axes(d), needs.axes(d)
        if outer and inner and not {*outer} & {*inner} and not needs.window(d):
            if all(needs.splits[a] is None for a in outer):
                free, outer = [a for a in free if a not in outer], ()
            elif all(has.splits[a] is None for a in inner):
                free, inner = [a for a in free if a not in inner], ()
            elif pairs is None:
                first, second, common = _pairs(has, needs, shape[d], d)
                free = [a for a in free if a not in (*outer, *inner)]
                for along, index in ((outer, first), (inner, second)):
                    found = coords_of_many(tuple([has.mesh[a] for a in along]), index)
                    for a, x in zip(along, found, strict=True):
                        coords[a] = x.reshape(-1, *[1] * len(free))
                pairs = d, common.reshape(-1, *[1] * len(free))
        cut[d] = outer, inner
    if pairs is None and (has.blocks or needs.blocks):
        free = _in_blocks(has if has.blocks else needs, shape, dims, free, coords)
    for k, a in enumerate(free):
        i, j = has.splits[a], needs.splits[a]
        # of more parts than blocks only the first ones have some
        grid = (has.blocks and i is not None) or (needs.blocks and j is not None)
        n = min(has.mesh[a], BLOCKS) if grid else has.mesh[a]
        coords[a] = np.arange(n).reshape(-1, *[1] * (len(free) - 1 - k))
    total: Any = np.int64(1)
    for d, (outer, inner) in cut.items():
        if pairs is not None and d == pairs[0]:
            total = total * pairs[1]
            continue
        lo: Any = np.int64(0)
        hi: Any = np.int64(shape[d])
        if outer:
            lo, hi = bounds_of_many(has, shape[d], d, coords)
        if inner:
            first, end = bounds_of_many(needs, shape[d], d, coords)
            lo, hi = np.maximum(lo, first), np.minimum(hi, end)
        total = total * np.maximum(0, hi - lo)
    return int(total.sum())


def _in_blocks(
    layout: Layout, shape: Shape, dims: Sequence[int], free: Sequence[int], coords: list[Any]
) -> list[int]:
    """Where axes cut a dimension of few blocks, only the coordinates of parts that have some: these
    become one row. The other axes are left."""
    d = max(dims, key=lambda d: len(layout.axes(d)))
    axes = layout.axes(d)
    if len(axes) < 2 or not {*axes} <= {*free}:
        return [*free]
    left = [a for a in free if a not in axes]
    parts = meeting(layout, shape[d], d, (0, shape[d]), {})
    ranks = np.array([at for at, _ in parts], np.int64)
    found = coords_of_many(layout.mesh, ranks)
    for a in axes:
        coords[a] = found[a].reshape(-1, *[1] * len(left))
    return left


def _pairs(has: Layout, needs: Layout, size: int, dim: int) -> tuple[Array, Array, Array]:
    """The parts of a dimension before and after that have something in common, and how much."""
    bounds = [every_bounds(layout, size, dim) for layout in (has, needs)]
    starts = np.unique(np.concatenate([lo[lo < hi] for lo, hi in bounds]))
    found = []
    for lo, hi in bounds:
        some = np.flatnonzero(lo < hi)
        found.append(some[np.searchsorted(lo[some], starts, "right") - 1])
    return found[0], found[1], np.diff(starts, append=size)


def _on_two_meshes(has: Layout, needs: Layout, shape: Shape) -> int:
    """Count the elements that workers have of those they need, all together, in arrays over the
    workers."""
    ranks = np.arange(has.workers)
    mine, theirs = coords_of_many(has.mesh, ranks), coords_of_many(needs.mesh, ranks)
    own: Any = np.ones(has.workers, np.int64)
    for d, size in enumerate(shape):
        first, end = bounds_of_many(has, size, d, mine)
        lo, hi = bounds_of_many(needs, size, d, theirs)
        own = own * np.maximum(0, np.minimum(end, hi) - np.maximum(first, lo))
    return int(own.sum())
