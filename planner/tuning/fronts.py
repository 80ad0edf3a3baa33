"""Fronts of seconds and bytes: what a batch costs in micro-batches, and how one memory serves many kernels.

    kernel(256) needs 256 MiB, and 64 MiB are there     4 x kernel(64): the same work, a quarter of the memory

A kernel that is done part after part takes the sum of the parts' seconds and the most of their bytes, since
they use the same scratch memory one after the other (`divisions`; workspace reuse in the literature). Kernels
that are alive at once add up their bytes, and those that are not share them (`share_memory`; workspace division
is the case in which all are). Both are exact: of two candidates the one that is neither faster nor smaller is
dropped, as nothing that follows could make up for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

# Of a batch: units that divisions are made of, and equal parts that it may be divided into.
MOST_PARTS = {"units": 256, "even": 8}


class Point(NamedTuple):
    """Something that takes so long and needs so much memory: runs of so many elements, each in a way."""

    seconds: float
    bytes: int
    runs: tuple[tuple[int, str], ...] = ()


def front(points: Iterable[Point]) -> list[Point]:
    """Find those that no other one beats: the more bytes, the fewer seconds."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.bytes, p.seconds)):
        if not found or point.seconds < found[-1].seconds:
            found.append(point)
    return found


def sizes(count: int) -> list[int]:
    """Extents of parts to look at: all of it, equal parts, powers of two."""
    equal = {-(-count // parts) for parts in range(1, MOST_PARTS["even"] + 1)}
    return sorted({2**k for k in range(count.bit_length())} | equal) if count > 0 else []


def divisions(
    count: int, kernels: Mapping[int, Sequence[Point]], limit: float = math.inf
) -> list[Point]:
    """Find the front of all ways to do `count` elements in parts, by kernels that do so many at once. Some
    part has at most half of the elements, so it is enough to put those in front of what is left."""
    best: list[list[Point]] = [[] for _ in range(count + 1)]
    fits = {n: front(p for p in points if p.bytes <= limit) for n, points in kernels.items()}
    for b in range(1, count + 1):
        found = list(fits.get(b, ()))
        for s, points in fits.items():
            if s <= b // 2:
                found += [
                    Point(p.seconds + rest.seconds, max(p.bytes, rest.bytes), p.runs + rest.runs)
                    for p, rest in itertools.product(points, best[b - s])
                ]
        best[b] = front(found)
    return best[count]


def unit_of(count: int) -> int:
    """Elements that stay together, so that there are not too many parts to look at."""
    return max(1, -(-count // MOST_PARTS["units"]))


class Line(NamedTuple):
    """Seconds of so many elements, as few measurements suggest."""

    start: float
    each: float

    def __call__(self, n: int) -> float:
        return self.start + self.each * n

    @staticmethod
    def through(measured: Mapping[int, float]) -> Line:
        """The nearest line in the relative sense; neither a start nor an element takes less than nothing."""
        weights = {n: 1 / max(t, 1e-12) ** 2 for n, t in measured.items()}
        total = sum(weights.values())
        n_mean = sum(w * n for n, w in weights.items()) / total
        t_mean = sum(w * measured[n] for n, w in weights.items()) / total
        spread = sum(w * (n - n_mean) ** 2 for n, w in weights.items())
        slope = sum(w * (n - n_mean) * (measured[n] - t_mean) for n, w in weights.items())
        each = max(0.0, slope / spread) if spread > 0 else t_mean / n_mean
        if t_mean < each * n_mean:  # a line through nothing at no elements
            squares = sum(w * n * n for n, w in weights.items())
            return Line(0.0, sum(w * n * measured[n] for n, w in weights.items()) / squares)
        return Line(t_mean - each * n_mean, each)


# -- one memory for many -------------------------------------------------------------------------
class _Chosen(NamedTuple):
    """What was chosen so far: its seconds, what those need that are still alive, by when they end, and the
    choices as a chain."""

    seconds: float
    held: tuple[tuple[int, int], ...]
    chain: tuple[object, int] | None


def share_memory(
    fronts: Sequence[Sequence[Point]], alive: Sequence[tuple[int, int]], room: Sequence[float]
) -> list[int] | None:
    """One point of each front, so that all take least time together and, at each moment, those that are alive
    (from a first moment to a last one) need no more than the `room` then; None if there is no such choice."""
    states = [_Chosen(0.0, (), None)]
    least: dict[tuple[int, int], float] = {}

    def room_in(begin: int, end: int) -> float:
        if (begin, end) not in least:
            least[begin, end] = min(room[begin : end + 1])
        return least[begin, end]

    def fits(held: Sequence[tuple[int, int]], begin: int, last: int) -> bool:
        above = sum(size for _, size in held)
        for end, size in held:
            if begin > last:
                break
            if above > room_in(begin, min(end, last)):
                return False
            begin, above = end + 1, above - size
        return True

    order = sorted(range(len(fronts)), key=lambda k: (alive[k], k))
    for k in order:
        begin, last = alive[k]
        found: list[_Chosen] = []
        for state in states:
            for choice, point in enumerate(fronts[k]):
                ends = {end: size for end, size in state.held if end >= begin}
                ends[last] = ends.get(last, 0) + point.bytes
                held = tuple(sorted(ends.items()))
                if fits(held, begin, last):
                    seconds = state.seconds + point.seconds
                    found.append(_Chosen(seconds, held, (state.chain, choice)))
        states = _undominated(found)
    if not states:
        return None
    chain: Any = min(states, key=lambda s: s.seconds).chain
    choices = [0] * len(fronts)
    for k in reversed(order):
        chain, choices[k] = chain
    return choices


def _undominated(states: list[_Chosen]) -> list[_Chosen]:
    """Without those that another one beats in seconds and in what is held at every moment from now on."""
    ends = sorted({end for s in states for end, _ in s.held})
    kept: list[tuple[tuple[int, ...], _Chosen]] = []
    rows = list[tuple[float, tuple[int, ...], _Chosen]]()
    for state in states:
        held, above, row = dict(state.held), 0, list[int]()
        for end in reversed(ends):
            above += held.get(end, 0)
            row.append(above)
        rows.append((state.seconds, tuple(reversed(row)), state))
    rows.sort(key=lambda r: r[:2])
    for _, mine, state in rows:
        others = kept[-1:] if len(ends) == 1 else kept  # of one number the last kept is the least
        if not any(all(a <= b for a, b in zip(other, mine, strict=True)) for other, _ in others):
            kept.append((mine, state))
    return [state for _, state in kept]
