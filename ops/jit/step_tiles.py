"""Several steps over the same elements, tile by tile of one axis: which rows of each step a tile of the result
needs. What lies between the steps then stays in cache, and the edges of tiles are computed twice.

    v = (roll(u, 1) + roll(u, -1)) / 2        rows [40, 80) of w need [39, 81) of v and [38, 82) of u;
    w = (roll(v, 1) + roll(v, -1)) / 2        [0, 40) need [0, 41) of v, and [n-1, n)

A step is a kernel whose body says where it reads (moves.py)."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import Shape

from .moves import Look, Part, boxes_of, shapes_of

Ranges = tuple[tuple[int, int], ...]  # of rows, in order, apart from each other
# bytes of a line of the cache, and those by which rows that lie apart are no
LINE, PAGE = (1 << 6, 1 << 12)
# multiples, as stores seem to hold up loads that are whole pages away
SHORT_BYTES = 1 << 9  # of rows that lie side by side


class Work(NamedTuple):
    """Rows of a step that lie in one of its parts."""

    step: int
    part: int
    begin: int
    end: int


class Tile(NamedTuple):
    """What is done for some rows of the result, in order, and which rows of what lies between are there."""

    works: tuple[Work, ...]
    held: dict[int, Ranges]


class Alike(NamedTuple):
    """Tiles one behind the other that are the first one further on."""

    tile: Tile
    many: int


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of which the last one gives the results, cut along an axis of theirs."""

    body: Graph
    shapes: tuple[Shape, ...]  # of all values
    parts: tuple[tuple[Part, ...], ...]  # of each step
    axes: dict[int, int]  # of values that are made, which dimension is cut
    reads: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]  # in each part of each step:
    # the values that a step before made, and how many rows further on

    @property
    def rows(self) -> int:
        last = self.body.outputs[0]
        return self.shapes[last][self.axes[last]]

    def axis(self, k: int) -> int:
        return self.axes[self.body.starts[k]]

    def between(self) -> list[int]:
        return [v for v in self.axes if v not in self.body.outputs]

    def row_bytes(self, v: int) -> int:
        """From one row to the next, where a value lies between steps."""
        shape, d = self.shapes[v], self.axes[v]
        size = math.prod((*shape[:d], *shape[d + 1 :])) * self.body.specs[v].dtype.itemsize
        if size < SHORT_BYTES:
            return size
        size = -(-size // LINE) * LINE
        return size + LINE * (size % PAGE == 0)

    # -- one tile --------------------------------------------------------------------------
    def tile(self, begin: int, end: int) -> Tile:
        needed: dict[int, list[tuple[int, int]]] = {v: [] for v in self.axes}
        needed |= {v: [(begin, end)] for v in self.body.outputs}
        works, held = list[Work](), dict[int, Ranges]()
        for k in reversed(range(len(self.parts))):
            made = self.body.outs(k)
            rows = _merged(r for v in made for r in needed[v])
            held |= dict.fromkeys(made, rows)
            for p in reversed(range(len(self.parts[k]))):
                lo, hi = self.parts[k][p].box[self.axis(k)]
                for a, b in ((max(a, lo), min(b, hi)) for a, b in rows):
                    if a < b:
                        works.append(Work(k, p, a, b))
                        for v, further in self.reads[k][p]:
                            needed[v].append((a + further, b + further))
        return Tile(tuple(works[::-1]), {v: held[v] for v in self.between()})

    def tiles(self, height: int) -> Iterator[Alike]:
        """All of them, of so many rows each but the last one."""
        begin, n = 0, self.rows
        while begin < n:
            tile, count = self.tile(begin, min(n, begin + height)), 1
            if begin + height <= n:
                count += max(0, self._room(tile, begin, begin + height)) // height
            yield Alike(tile, count)
            begin += count * height

    def _room(self, tile: Tile, begin: int, end: int) -> int:
        """How many rows further on the same is done; below zero if no tile beside it is like it."""
        spans = {self.body.producers[v]: rows for v, rows in tile.held.items()}
        spans[len(self.parts) - 1] = ((begin, end),)
        found = []
        for k, rows in spans.items():
            edges = sorted({x for part in self.parts[k] for x in part.box[self.axis(k)]})
            for a, b in rows:
                found.append(edges[bisect_right(edges, a)] - b)
        return min(found) if all(len(rows) == 1 for rows in spans.values()) else -1

    # -- how much ----------------------------------------------------------------------------
    def slots(self) -> dict[int, int]:
        """Which values between the steps may lie at one place, as they are not read at one time."""
        last = {v: k for k, node in enumerate(self.body.nodes) for v in node.inputs}
        free, found, count = list[int](), dict[int, int](), 0
        for k, node in enumerate(self.body.nodes):
            for v in self.body.outs(k) if k < len(self.parts) - 1 else ():
                found[v] = free.pop() if free else count
                count = max(count, found[v] + 1)
            free += [found[v] for v in dict.fromkeys(node.inputs) if v in found and last[v] == k]
        return found

    def sizes(self, tiles: Iterable[Tile]) -> list[int]:
        """Bytes of each of these places, of which none begins where another does within a page."""
        slots = self.slots()
        found = [0] * (1 + max(slots.values(), default=-1))
        for tile in tiles:
            for v, rows in tile.held.items():
                size = _many(rows) * self.row_bytes(v)
                found[slots[v]] = max(found[slots[v]], size)
        return [-(-n // PAGE) * PAGE + PAGE // len(found) // LINE * LINE for n in found]

    def height(self, room: int, count: int) -> int:
        """The most rows of a tile for which what lies between fits so many bytes, about, and there are so
        many tiles; 0 for none."""
        tile, slots = self._middle(), self.slots()
        most, least = dict[int, int](), dict[int, int]()
        for v, held in tile.held.items():
            size = self.row_bytes(v)
            least[slots[v]] = max(least.get(slots[v], 0), size * (_many(held) - 1))
            most[slots[v]] = max(most.get(slots[v], 0), size)
        rows = max(0, room - sum(least.values())) // max(1, sum(most.values()))
        rows = min(rows, self.rows // count)
        return -(-self.rows // -(-self.rows // rows)) if rows else 0

    def beyond(self) -> list[int]:
        """How many rows more than those of the tile each step makes."""
        held = self._middle().held
        return [_many(held[self.body.starts[k]]) - 1 for k in range(len(self.parts) - 1)] + [0]

    def _middle(self) -> Tile:
        return self.tile(self.rows // 2, self.rows // 2 + 1)


@lru_cache(256)
def steps_along(body: Graph, given: tuple[Shape, ...], axis: int) -> Steps | None:
    """The steps of a body of kernels over operands of these shapes, cut along an axis of the results; None
    if what one makes is not read row by row."""
    shapes, parts = list(given), list[tuple[Part, ...]]()
    for node in body.nodes:
        inner, ins = node.kw["body"], tuple([shapes[v] for v in node.inputs])
        known = shapes_of(inner, ins)
        shapes += [known[v] for v in inner.outputs]
        parts.append(boxes_of(inner, ins, shapes[-1]))
    axes = dict.fromkeys(body.outputs, axis)
    reads = list[tuple[tuple[tuple[int, int], ...], ...]]()
    for k in reversed(range(len(body.nodes))):
        made = {axes[v] for v in body.outs(k) if v in axes}
        if len(made) != 1:
            return None
        (d,) = made
        axes |= dict.fromkeys(body.outs(k), d)
        looks = [list(_looks(body, k, part)) for part in parts[k]]
        for v, look in itertools.chain(*looks):
            if dims := [n for n, at in enumerate(look) if at.axis == d]:
                axes.setdefault(v, dims[0])
        found = [
            _further(part.box[d], own, axes, d) for part, own in zip(parts[k], looks, strict=True)
        ]
        if any(one is None for one in found):
            return None
        reads.append(tuple([one for one in found if one is not None]))
    return Steps(body, tuple(shapes), tuple(parts), axes, tuple(reads[::-1]))


def _looks(body: Graph, k: int, part: Part) -> Iterator[tuple[int, Look]]:
    """Iterate over the values that a part reads and other steps made."""
    for what, look in part.reads:
        if isinstance(what, int) and (v := body.nodes[k].inputs[what]) >= len(body.inputs):
            yield v, look


def _further(
    rows: tuple[int, int], looks: Sequence[tuple[int, Look]], axes: dict[int, int], axis: int
) -> tuple[tuple[int, int], ...] | None:
    """How many rows further on values are read in a part with these rows; None if not row by row."""
    found = dict[tuple[int, int], None]()
    for v, look in looks:
        if v not in axes or any(at.axis == axis and d != axes[v] for d, at in enumerate(look)):
            return None
        at = look[axes[v]]
        alone = at.axis < 0 and rows[1] - rows[0] == 1
        if not alone and (at.axis != axis or at.step != 1):
            return None
        found[v, at.offset - rows[0] * alone] = None
    return tuple(found)


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found = list[tuple[int, int]]()
    for a, b in sorted(ranges):
        if found and a <= found[-1][1]:
            found[-1] = found[-1][0], max(b, found[-1][1])
        else:
            found.append((a, b))
    return tuple(found)


def _many(rows: Sequence[tuple[int, int]]) -> int:
    return sum(b - a for a, b in rows)
