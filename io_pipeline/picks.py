"""A part of a file's array that need not be a box: every third row, columns backwards, some rows.

Of each axis a part has a range, or places in any order, each as often as it likes. What is read of it is
read in boxes of the file: places that follow each other are one, and so are those whose gaps hold
fewer bytes than the system reads anyway (`NEAR`), or which lie in one chunk of what is read in chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.layout import Box

from .source import Source

NEAR = 1 << 12  # bytes between two places that are sooner read than left out
SLAB = (
    1 << 18
)  # bytes of a box that is read beside what is wanted, about; more if chunks are larger
LITTLE = 1 << 20  # bytes that are always there to note places in
NOTES = 40  # bytes for each of them

Places = np.ndarray[Any, np.dtype[np.int64]]
Axis = range | Places
Run = tuple[int, int, Places, Places]  # a range; where in it places are, and where they go


class Part(Source):
    """Some places of each axis of another array."""

    def __init__(self, source: Source, axes: Sequence[Axis]) -> None:
        self.source, self.axes = source, tuple(axes)
        self.path, self.dataset, self.dtype = source.path, source.dataset, source.dtype
        self.shape = tuple(map(len, self.axes))

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        first, *inner = (axis[lo:hi] for axis, (lo, hi) in zip(self.axes, box, strict=True))
        many = len(first) if _is_range(first) else max(out.nbytes // 4, LITTLE) // NOTES
        for k in range(0, len(first), many):
            read_places(self.source, out[k : k + many], [first[k : k + many], *inner])

    def sliced(self, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Source:
        cuts = zip(self.axes, starts, sizes, steps, strict=True)
        return Part(self.source, [_cut(*cut) for cut in cuts])

    def taken(self, places: Any, axis: int) -> Source:
        own = self.axes[axis]
        wanted = _from_front(places, len(own))
        if not isinstance(own, range):
            wanted = own[wanted]
        elif (own.start, own.step) != (0, 1):
            wanted = own.start + own.step * wanted
        return Part(self.source, [*self.axes[:axis], wanted, *self.axes[axis + 1 :]])


def _cut(axis: Axis, start: int, size: int, step: int) -> Axis:
    if not isinstance(axis, range):
        return axis[start + step * np.arange(size)]
    begin, by = axis.start + axis.step * start, axis.step * step
    return range(begin, begin + by * size, by)


def _from_front(places: Any, size: int) -> Places:
    """Places counted from the first; itself, if all are."""
    if not places.size:
        return np.zeros(0, np.int64)
    low, high = int(places.min()), int(places.max())
    if low < -size or high >= size:
        bad = low if low < -size else high
        raise IndexError(f"index {bad} is out of bounds for an axis with {size} elements")
    found: Places = places.astype(np.int64, copy=False)
    return np.where(found < 0, found + size, found) if low < 0 else found


def read_places(source: Source, out: np.ndarray[Any, Any], axes: Sequence[Axis]) -> None:
    """Fill `out`, an array in order, with all that has one of these places on each axis."""
    if all(map(_is_range, axes)):
        source.read(out, tuple((int(a[0]), int(a[-1]) + 1) for a in axes))
        return
    for runs in itertools.product(*_ranges(source, axes)):
        box = tuple((lo, hi) for lo, hi, _, _ in runs)
        if all(map(_straight, runs)) and all(
            hi - lo == len(a) for (lo, hi), a in zip(box[1:], axes[1:], strict=True)
        ):
            first = runs[0][3]
            source.read(out[first[0] : first[-1] + 1], box)
            continue
        found = np.empty([hi - lo for lo, hi in box], out.dtype)
        source.read(found, box)
        out[np.ix_(*(to for _, _, _, to in runs))] = found[np.ix_(*(at for _, _, at, _ in runs))]


def _is_range(axis: Axis) -> bool:
    return isinstance(axis, range) and (axis.step == 1 or len(axis) == 1)


def _straight(run: Run) -> bool:
    """Whether a range is wanted as it is, in one piece."""
    lo, hi, at, to = run
    return len(at) == hi - lo and bool((np.diff(to) == 1).all())


def _span(axis: Axis) -> int:
    if isinstance(axis, range):
        return abs(axis[-1] - axis[0]) + 1
    return int(axis.max() - axis.min()) + 1


def _ranges(source: Source, axes: Sequence[Axis]) -> list[list[Run]]:
    """The ranges of each axis that together have all its places. Those of inner axes are as long as
    they may be, before those of outer ones are."""
    found: list[list[Run]] = [[] for _ in axes]
    size = room = source.dtype.itemsize
    for d in range(len(axes)) if source.by_columns else reversed(range(len(axes))):
        grain = source.grain[d] if source.grain else 1
        most = -(-max(SLAB // room, 1) // grain) * grain
        found[d] = list(_runs(axes[d], NEAR // size, most, grain))
        size *= _span(axes[d])
        room *= max(hi - lo for lo, hi, _, _ in found[d])
    return found


def _runs(axis: Axis, near: int, most: int, grain: int) -> Iterator[Run]:
    """The ranges of one axis: apart if more lies between, and no longer than may be."""
    places = np.arange(axis.start, axis.stop, axis.step) if isinstance(axis, range) else axis
    order = np.argsort(places, kind="stable")
    places = places[order]
    apart = np.diff(places) > 1 + near
    if grain > 1:
        apart &= np.diff(places // grain) > 0
    for run in np.split(np.arange(len(places)), np.flatnonzero(apart) + 1):
        begin = 0
        while begin < len(run):  # in pieces, if it is long
            low = int(places[run[begin]])
            end = begin + int(np.searchsorted(places[run[begin:]], low // grain * grain + most))
            here = run[begin:end]
            yield low, int(places[here[-1]]) + 1, places[here] - low, order[here]
            begin = end
