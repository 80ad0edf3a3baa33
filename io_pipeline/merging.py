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
import threading
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from ostinato.ops.core.layout import Box, Shape

from .source import LITTLE, PARSING, Source, fill

NOTED = 24  # bytes of a row's key, its place and what sorting takes
KNOWN = 256  # places of which it is kept where they are in the runs


class SortedRuns(Source):
    """The keys of a .npy file that has a row for each column of this array, in runs that begin and end at
    `bounds`; each column in order."""

    kind = "sorted"

    def __init__(
        self, path: str, shape: Shape, dtype: np.dtype[Any], bounds: Sequence[int], falls: bool
    ) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        self.bounds, self.falls = tuple(bounds), falls
        self.cuts: dict[int, Sequence[tuple[int, list[int]]]] = {}  # of each column, by places
        self.lock = threading.Lock()

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
        """Of each run what lies from one place of the order to another."""
        return [*zip(self._starts(line, lo), self._starts(line, hi), strict=True)]

    def _merge(self, line: int, out: np.ndarray[Any, Any], lo: int, hi: int) -> None:
        """The keys of a column from one place of the order to another."""
        self._fill(line, out, self.parts(line, lo, hi))
        out.sort()

    def _fill(self, line: int, out: np.ndarray[Any, Any], parts: Sequence[tuple[int, int]]) -> None:
        """What these parts of a line have, one behind the other."""
        row, size, done = self.lines[line], self.lines.itemsize, 0
        begin = self.lines.offset + line * row.nbytes  # type: ignore[attr-defined]
        for a, b in parts:
            if not fill(self.handle, out[done : done + b - a], begin + a * size):
                raise self.changed()
            done += b - a

    def _starts(self, line: int, rank: int) -> list[int]:
        """Where in each run the keys begin that have this place in the order, or a later one. Of equal
        ones those of earlier runs come first."""
        starts, ends = [*self.bounds[:-1]], [*self.bounds[1:]]
        with self.lock:
            known = [(0, starts), (self.shape[0], ends), *self.cuts.get(line, ())]
        below = max((k for k in known if k[0] <= rank), key=lambda k: k[0])
        above = min((k for k in known if k[0] >= rank), key=lambda k: k[0])
        if rank in (below[0], above[0]):
            return below[1] if rank == below[0] else above[1]
        more, less = rank - below[0], above[0] - rank
        pairs = [*zip(below[1], above[1], strict=True)]
        lows = [max(a, b - less) for a, b in pairs]
        highs = [min(b, a + more) for a, b in pairs]
        found = _halved(
            self.lines[line].view(np.ndarray), lows, highs, rank - sum(lows) + sum(starts)
        )
        with self.lock:
            most = max(2, KNOWN // len(self.lines))
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


def _halved(row: Any, lows: list[int], highs: list[int], left: int) -> list[int]:
    """Of each run the end of its part of the `left` smallest keys between `lows` and `highs`."""
    while True:
        runs = [k for k, (a, b) in enumerate(zip(lows, highs, strict=True)) if a < b]
        if not left or not runs:
            return lows
        key = _middle(row, [(lows[k], highs[k]) for k in runs])
        before, behind = lows.copy(), lows.copy()
        for k in runs:
            part = row[lows[k] : highs[k]]
            before[k] += int(np.searchsorted(part, key, "left"))
            behind[k] += int(np.searchsorted(part, key, "right"))
        smaller = sum(before) - sum(lows)
        if left < smaller:
            highs = before
        elif left > sum(behind) - sum(lows):
            left -= sum(behind) - sum(lows)
            lows = behind
        else:
            left -= smaller
            for k in runs:
                count = min(left, behind[k] - before[k])
                before[k], left = before[k] + count, left - count
            return before


def _middle(row: Any, parts: Sequence[tuple[int, int]]) -> Any:
    """A key that about as many are smaller than as larger: the middle one of the parts' own middles,
    each of which counts as often as its part is long."""
    keys = np.array([row[(a + b) // 2] for a, b in parts], row.dtype)
    order = np.argsort(keys)
    lengths = np.cumsum([parts[k][1] - parts[k][0] for k in order])
    return keys[order[int(np.searchsorted(lengths, lengths[-1] / 2))]]
