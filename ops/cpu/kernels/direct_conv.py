"""Convolutions as one kernel: results of some neighbouring places and some vectors of filters (or of groups,
where each has one channel and one filter) are summed in registers, over all elements of windows.

Images are surrounded with zeros first where windows reach beyond them, and filters are packed in the order in
which they are read. A turn is a row of places, or a part of one, and a block of filters; the bits depend on
extents only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.spec import DTYPES, DType, Shape, int64, uint8
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits
from ostinato.ops.cpu.jit.parallel import TABLES, around
from ostinato.ops.cpu.jit.routine import Routine, functions, smaller
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.values import Value

PLACES = {1: 8, 2: 8, 3: 8, 4: 6}  # side by side, by vectors of a block
QUICK, GRAIN = LIMITS.product_quick, LIMITS.ordered_wake
_FACTS = ("terms", "step", "over", "table")  # behind turns and threads
_TURN = ("begin", "result", "weights", "first", "last", "left")


class Lanes(NamedTuple):
    """What lies in vectors: so many filters of each of `units` groups, or all groups of one unit, in blocks of
    some vectors."""

    units: int
    many: int
    width: int  # elements of a block
    lanes: int
    summed: bool = False  # channels lie in vectors instead, for each of few filters

    @property
    def blocks(self) -> int:
        return -(-self.many // self.width)

    @property
    def vectors(self) -> int:
        return max(1, self.width // self.lanes)

    @property
    def term(self) -> int:
        """Packed numbers of one term of a sum."""
        return max(self.width, self.lanes)

    def packed(self, over: Shape, channels: int) -> Shape:
        if self.summed:
            return (self.units, self.many, *over, channels)
        return (self.units, self.blocks, *over, channels, self.width)

    @property
    def is_ragged(self) -> bool:
        return self.many % self.width != 0


def lanes_of(groups: int, channels: int, filters: int, item: int) -> Lanes:
    """Vectors of filters, or of groups of one of each; blocks of which least is left over."""
    lanes = vector_bits() // 8 // item
    apart = groups > 1 and filters == 1
    count, units = (groups, 1) if apart else (filters, groups)
    if 2 * filters < lanes and channels % lanes == 0:
        return Lanes(groups, filters, 1, lanes, summed=True)
    whole = -(-count // lanes)
    most = 4 if vector_bits() == 512 else 2
    vectors = min(range(most, 0, -1), key=lambda v: -(-whole // v) * v)
    return Lanes(units, count, vectors * lanes, lanes)


def direct_rows(
    x: Any, out: Any, lanes: Lanes, terms: Any, strides: Sequence[int], apart: bool, threads: int
) -> Callable[..., None] | None:
    """The function of images `n, space..., groups, channels` with all that windows read, packed filters, and
    results. `terms`: the byte of each element of a window."""
    item, width, made = x.itemsize, lanes.width, out.shape[1:-2]
    along = out.strides[-2] if apart else out.strides[-1]
    if along != item and lanes.many > 1 and not lanes.summed:
        return None
    along = along if lanes.summed else item
    places = min(PLACES[lanes.vectors], made[-1])
    rows = math.prod(made[:-1]) * len(out)
    parts = min(made[-1] // places, -(-LIMITS.conv_turns // (rows * lanes.units * lanes.blocks)))
    each = -(-made[-1] // (parts * places)) * places
    parts = made[-1] // each or 1
    shape = (len(out), *made[:-1], parts, lanes.units, lanes.blocks)
    block = np.indices(shape, np.int64).reshape(len(shape), -1)
    *outer, part, unit, nth = block
    steps = [x.strides[0], *(s * t for s, t in zip(x.strides[1:-3], strides[:-1], strict=True))]
    begins = sum(a * s for a, s in zip(outer, steps, strict=True))
    results = sum(a * s for a, s in zip(outer, out.strides[:-3], strict=True))
    begins = begins + (nth * width * x.strides[-2] if apart else unit * x.strides[-2])
    results = results + (
        nth * width * item if apart else unit * out.strides[-2] + nth * width * along
    )
    filters = (unit * lanes.blocks + nth) * (len(terms) * lanes.term * item)
    last = np.where(part == parts - 1, made[-1], (part + 1) * each)
    lines = np.stack([begins, results, filters, part * each, last, lanes.many - nth * width], -1)
    work, turns = out.size * len(terms) * lanes.term // width, len(lines)
    team = 0 if work <= QUICK else max(1, min(threads, work // GRAIN, turns))
    step = x.strides[-3] * strides[-1]
    facts = [turns, team, len(terms), step, out.strides[-3], 2 + len(_FACTS) + len(terms)]
    about = np.concatenate([facts, terms, lines.reshape(-1)]).astype(np.int64)
    form = x.dtype.name, lanes.lanes, lanes.vectors, places, apart, lanes.is_ragged, lanes.summed
    return function_of(_text(*form), about)


@lru_cache(32)
def _text(dtype: str, lanes: int, vectors: int, places: int, *how: bool) -> str:
    kind = DTYPES[dtype]
    last = Routine(None, "finish", data=[int64], meta=[int64])
    body = _body(kind, lanes, vectors, places, *how)
    return "\n".join([TABLES, *functions(last, body), around(3)])


def _body(
    dtype: DType, lanes: int, vectors: int, places: int, apart: bool, ragged: bool, summed: bool
) -> Routine:
    made = Routine(None, "body", data=[int64], meta=[int64], lo=int64, hi=int64, thread=int64)
    data, meta, lo, hi, _ = made.given
    terms, step, over, table = (meta[2 + k] for k in range(len(_FACTS)))
    images, filters, results = (made.memory(data[k], uint8) for k in range(3))
    offsets = meta.further(2 + len(_FACTS))

    with made.each(hi, lo) as turn:
        line = meta.further(table + turn * len(_TURN))
        begin, result, weights, first, last, count = (line[k] for k in range(len(_TURN)))
        ours, packed = images.further(begin), filters.further(weights).view(dtype)
        with made.each(last, first, step=places) as place:
            at = smaller(place, last - places)  # the last ones are made twice
            rows = [ours.further((at + p) * step) for p in range(places)]
            zero = made.spread(made.lines.constant(0, dtype), lanes)
            sums = [[made.variable(zero) for _ in range(vectors)] for _ in rows]
            with made.each(terms) as t:
                offset = offsets[t]
                here = packed.further(t * (vectors * lanes))
                factors = [here.lanes(v * lanes, lanes) for v in range(vectors)]
                for row, own in zip(rows, sums, strict=True):
                    seen = row.further(offset).view(dtype)
                    one = made.spread(seen[0], lanes)
                    for v, (total, w) in enumerate(zip(own, factors, strict=True)):
                        x = seen.lanes(v * lanes, lanes) if apart or summed else one
                        total.now = w.lines.call("fmuladd", dtype, x, w, total.now)
            for p, own in enumerate(sums):
                to = results.further(result + (at + p) * over).view(dtype)
                for v, total in enumerate(own):
                    if summed:
                        to[0] = _total(made, total.now, lanes)
                    elif ragged:
                        to.put_some(v * lanes, total.now, count - v * lanes)
                    else:
                        to.put(v * lanes, total.now)
    return made


def _total(made: Routine, x: Value, lanes: int) -> Value:
    """The sum of a vector's numbers."""
    while lanes > 1:
        lanes //= 2
        x = made.chosen(x, range(lanes)) + made.chosen(x, range(lanes, 2 * lanes))
    return made.lane(x, 0)
