"""What lies in a file as sorted runs, as if it were sorted as a whole: an external merge.

    rows of one column    | run 0: 1 4 6 9 | run 1: 0 2 4 8 | run 2: 3 5 7 7 |
    places 4 to 8               ^--^               ^              ^--^

Any places of the whole are made by themselves: of each run a stretch that is found by halving, so that
all before them are no larger and all behind no smaller; what is read is as long as what is wanted, and
is put in order where it is wanted. So each worker reads its part, block after block."""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.layout import Box, Shape
from ostinato.ops.core.locks import cached_property, make_lock

from .source import LITTLE, PARSING, Places, Source, fill

NOTED = 24  # bytes of a row's key, its place and what sorting takes
KNOWN = 1 << 16  # ends of parts of runs that are kept


class SortedRuns(Source):
    """The keys of a .npy file that has a row for each column of this array, in runs that begin and end at
    `bounds`; each column in order."""

    kind = "sorted"

    def __init__(
        self, path: str, shape: Shape, dtype: np.dtype[Any], bounds: Sequence[int], falls: bool
    ) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        self.bounds, self.falls = tuple(bounds), falls
        self.cuts: dict[int, Sequence[tuple[int, Places]]] = {}  # of each column, by places
        self.lock = make_lock()

    def as_data(self) -> dict[str, Any]:
        return super().as_data() | {
            "bounds": list(self.bounds),
            "falls": self.falls,
            "kind": self.kind,
        }

    @cached_property
    def lines(self) -> np.ndarray[Any, Any]:
        """The file's rows, to look for keys in."""
        with PARSING:
            found: np.ndarray[Any, Any] = np.lib.format.open_memmap(self.path, mode="r")
        return found

    @cached_property
    def handle(self) -> int:
        handle = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, handle)
        return handle

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        (lo, hi), *rest = box
        if self.falls:
            lo, hi = self.shape[0] - hi, self.shape[0] - lo
        for number, place in enumerate(itertools.product(*(range(*ends) for ends in rest))):
            line = int(np.ravel_multi_index(place, self.shape[1:])) if place else 0
            column: np.ndarray[Any, Any] = out.reshape(hi - lo, -1)[:, number]
            whole = column if column.flags.c_contiguous else np.empty(len(column), self.dtype)
            self._merge(line, whole, lo, hi)
            if whole is not column or self.falls:
                column[...] = whole[::-1] if self.falls else whole
        self.forget()

    def forget(self) -> None:
        """Let go of the pages that were looked at."""
        self.lines._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def parts(self, line: int, lo: int, hi: int) -> list[tuple[int, int]]:
        """List for each run what lies from one place of the order to another."""
        starts, ends = self._starts(line, lo), self._starts(line, hi)
        return [*zip(starts.tolist(), ends.tolist(), strict=True)]

    def _merge(self, line: int, out: np.ndarray[Any, Any], lo: int, hi: int) -> None:
        """The keys of a column from one place of the order to another."""
        self._fill(line, out, self.parts(line, lo, hi))
        out.sort()

    def _fill(self, line: int, out: np.ndarray[Any, Any], parts: Sequence[tuple[int, int]]) -> None:
        """Read these parts of a line, one behind the other."""
        row, size, done = self.lines[line], self.lines.itemsize, 0
        begin = self.lines.offset + line * row.nbytes  # type: ignore[attr-defined]
        for a, b in parts:
            if not fill(self.handle, out[done : done + b - a], begin + a * size):
                raise self.changed()
            done += b - a

    def _starts(self, line: int, rank: int) -> Places:
        """Where in each run the keys begin that have this place in the order, or a later one. Of equal
        ones those of earlier runs come first."""
        bounds = np.array(self.bounds)
        with self.lock:
            known = [(0, bounds[:-1]), (self.shape[0], bounds[1:]), *self.cuts.get(line, ())]
        below = max((k for k in known if k[0] <= rank), key=lambda k: k[0])
        above = min((k for k in known if k[0] >= rank), key=lambda k: k[0])
        if rank in (below[0], above[0]):
            return below[1] if rank == below[0] else above[1]
        lows = np.maximum(below[1], above[1] - (above[0] - rank))
        highs = np.minimum(above[1], below[1] + (rank - below[0]))
        left = rank - int((lows - bounds[:-1]).sum())
        found = cut(self.lines[line].view(np.ndarray), lows, highs, left)
        with self.lock:
            most = max(2, KNOWN // (len(found) * len(self.lines)))
            self.cuts[line] = [*self.cuts.get(line, ())[1 - most :], (rank, found)]
        return found


class OrderOfRuns(SortedRuns):
    """The places that the keys come from, in the keys' order; of equal ones the first comes first. Behind
    the keys' rows the file has a row of places for each."""

    kind = "order"

    def _merge(self, line: int, out: np.ndarray[Any, Any], lo: int, hi: int) -> None:
        parts = self.parts(line, lo, hi)
        found = np.empty(hi - lo, self.lines.dtype)
        self._fill(line, found, parts)
        order = np.argsort(found, kind="stable")
        self._fill(line + len(self.lines) // 2, found, parts)
        out[...] = found[order]


class PlacesOfRuns(SortedRuns):
    """The places that the keys of one column come from, as they follow each other in the runs."""

    kind = "places"

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        found = np.empty(len(out), self.lines.dtype)
        self._fill(len(self.lines) // 2, found, box)
        out[...] = found


class RowsOfRuns(Source):
    """Rows that lie in runs, each run in the order of its keys, as rows of the whole order: of each run a
    stretch. `order`: the keys of all."""

    def __init__(self, rows: Source, order: SortedRuns) -> None:
        self.rows, self.order = rows, order
        self.path, self.shape, self.dtype = rows.path, rows.shape, rows.dtype

    def as_data(self) -> dict[str, Any]:
        return super().as_data() | {"rows": self.rows.as_data(), "order": self.order.as_data()}

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        (lo, hi), *rest = box
        many = max(2 * out.nbytes, LITTLE) // (out.nbytes // (hi - lo) + NOTED)
        for k in range(lo, hi, many):
            self._merge(out[k - lo : k - lo + many], k, min(k + many, hi), rest)
        self.order.forget()

    def _merge(
        self, out: np.ndarray[Any, Any], lo: int, hi: int, rest: Sequence[tuple[int, int]]
    ) -> None:
        parts = self.order.parts(0, lo, hi)
        keys = np.empty(hi - lo, self.order.lines.dtype)
        self.order._fill(0, keys, parts)
        found, done = np.empty_like(out), 0
        for a, b in parts:
            self.rows.read(found[done : done + b - a], ((a, b), *rest))
            done += b - a
        np.take(found, np.argsort(keys, kind="stable"), axis=0, out=out)


RUNS: dict[str, type[SortedRuns]] = {r.kind: r for r in (SortedRuns, OrderOfRuns, PlacesOfRuns)}


def cut(row: Any, lows: Places, highs: Places, left: int) -> Places:
    """Find for each run the end of its part of the `left` smallest keys between `lows` and `highs`.
    Each look is one at all runs, so that many runs take no more of them than few."""
    guessed = True
    while left and (runs := np.flatnonzero(lows < highs)).size:
        key = _middle(row, lows[runs], highs[runs], left, guessed)
        before = _places(row, lows, highs, key, np.less)
        smaller = int((before - lows).sum())
        if left < smaller:
            highs = before
        else:
            same = before < highs
            same[same] = row[before[same]] == key
            behind = _places(row, before, np.where(same, highs, before), key, np.less_equal)
            equal, left = behind - before, left - smaller
            if left <= equal.sum():  # those of the first runs
                return before + np.clip(left - (np.cumsum(equal) - equal), 0, equal)
            lows, left = behind, left - int(equal.sum())
        guessed = not guessed
    return lows


def _places(row: Any, lows: Places, highs: Places, key: Any, is_before: np.ufunc) -> Places:
    """Find for each run how far its keys are before this one, by halving all of them at once."""
    lows, highs = lows.copy(), highs.copy()
    while (runs := np.flatnonzero(lows < highs)).size:
        middle = (lows[runs] + highs[runs]) // 2
        before = is_before(row[middle], key)
        lows[runs[before]] = middle[before] + 1
        highs[runs[~before]] = middle[~before]
    return lows


def _middle(row: Any, lows: Places, highs: Places, left: int, guessed: bool) -> Any:
    """A key that about as many are smaller than as larger: the middle one of the parts' own middles,
    each of which counts as often as its part is long. `guessed`: instead of middles what has as large a
    share before it as is wanted, which is close to the end if all runs are of one kind."""
    lengths = highs - lows
    share = left / int(lengths.sum()) if guessed else 0.5
    keys = row[lows + np.minimum((lengths * share).astype(np.int64), lengths - 1)]
    order = np.argsort(keys)
    sums = np.cumsum(lengths[order])
    return keys[order[min(int(np.searchsorted(sums, sums[-1] * share)), len(order) - 1)]]
