"""How the stages of a kernel run on a CPU: units of rows, whose innermost loops run along the *lane*, and what
is held in cache.

In a unit, the innermost loop of each stage runs along the lane: the rows themselves where all else is short
(a unit is then up to 256 rows), or else the index along which most of the work is. `stages.py` writes it.

Running sums go along an index that is no lane. If one pass does all that runs over it, the stages
run tile after tile of it, and only what the sums carry on is kept; else all of the index is in cache
(`walks.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.kept_values import MAX_FIXED_EXTENT, is_apart, is_near, is_swept, kept, step
from ostinato.ops.jit.stage_values import Stages, stages_of, strides_in_order

from .walks import runs_once

LANES = (256, 128, 64)  # rows of a unit where lanes run along the rows: as many as fit
TILE = 16  # elements of a tile, as many as a square that is transposed has at the most
BLOCKS, UNITS = ("64", "128", "256", "512"), " rows at a time"  # ways of a kernel in stages
WIDE, TOGETHER = LIMITS.wide, LIMITS.together
ABREAST = 4  # rows whose totals are in registers together, if windows of theirs overlap
MIN_NEAR_LANE = 15  # an index of more turns may be the lane, if its elements are neighbours
HELD = LIMITS.unit_bytes
ROW_BYTES = LIMITS.row_bytes


@dataclass
class Nest(Stages):
    """Stages, and how their loops run."""

    lane: int = -1
    lanes: int = LANES[0]
    held: set[int] = field(default_factory=set)  # values in cache
    packed: set[int] = field(default_factory=set)  # those that are the same for all units
    walked: int = -1  # the label along which sums run, and
    tile: int = 0  # how many elements of it are in cache
    # the label of which a unit has ABREAST rows, that read most elements together
    abreast: int = -1

    @property
    def across(self) -> bool:
        """Whether lanes run along rows."""
        return self.lane in self.rows

    def inner(self, v: int) -> tuple[int, ...]:
        """The labels of a value in a unit, the lane last."""
        own = [x for x in self.labels(v) if x not in self.rows or x in (self.lane, self.abreast)]
        return tuple(sorted(own, key=lambda x: x == self.lane))

    @property
    def tiled(self) -> int:
        """The label along which the stages run tile after tile; or -1."""
        return self.walked if self.walked >= 0 and self.tile < self.extents[self.walked] else -1

    def width(self, label: int) -> int:
        """How many elements a unit has along a label."""
        if label in (self.walked, self.abreast):
            return self.tile if label == self.walked else ABREAST
        return self.lanes if label == self.lane and self.across else self.extents[label]

    def held_bytes(self, v: int) -> int:
        """Bytes of a value of a unit, up to whole cache lines."""
        return -(-self.volume(v) * self.body.specs[v].dtype.itemsize // 64) * 64

    def volume(self, v: int) -> int:
        return math.prod(self.width(x) for x in self.inner(v))


def analyse(
    body: Graph,
    dims: Sequence[Sequence[int]],
    rows: Sequence[int],
    shapes: Sequence[Shape],
    strides: Sequence[Sequence[int]],
    lanes: Sequence[int] = LANES,
    steps: Sequence[Sequence[int]] = (),
    begins: Sequence[Sequence[int]] = (),
) -> Nest | None:
    """The nest of a body for operands and results that lie so; None if no kernel can do it. (`steps` says how
    they lie where that is not known.)"""
    found = stages_of(body, dims, rows, shapes, strides, LANES[-1], begins)
    nest = Nest(**vars(found)) if found is not None else None
    return nest if nest is not None and _arrange(nest, lanes) else None


def analyse_in_order(
    body: Graph,
    dims: Sequence[Sequence[int]],
    rows: Sequence[int],
    shapes: Sequence[Shape],
    way: str = "",
    steps: Sequence[Sequence[int]] = (),
) -> Nest | None:
    """The nest of a body for operands and results whose elements lie one behind the other."""
    strides = strides_in_order(body, shapes, steps)
    return analyse(body, dims, rows, shapes, strides, lanes_of(way))


def lanes_of(way: str) -> Sequence[int]:
    """How many rows a unit may have, if timing did not say it."""
    count = way.removesuffix(UNITS)
    return (int(count), *LANES) if way.endswith(UNITS) and count in BLOCKS else LANES


def _arrange(nest: Nest, most: Sequence[int]) -> bool:
    """Choose the lane, and what is held in cache; where lanes run along rows, as many as fit."""
    worked = [k for k in range(len(nest.body.nodes)) if nest.works(k)]
    others = frozenset().union(*map(nest.iterates, worked)) - set(nest.rows)
    running = {*nest.running.values()}
    if any(step(nest, x) is None or x in running for x in nest.rows):
        return False
    others -= running
    long = [
        x
        for x in others
        if nest.extents[x] > (MIN_NEAR_LANE if is_near(nest, x) else MAX_FIXED_EXTENT)
    ]
    long = [x for x in long if step(nest, x) is not None]
    lanes = sorted((*nest.rows, *long), key=lambda x: _along(nest, x, bool(long)))
    return any(_fits(nest, lane, most) for lane in lanes)


def _fits(nest: Nest, lane: int, most: Sequence[int]) -> bool:
    """Run lanes along this label, if what is held then fits into cache."""
    nest.lane, nest.abreast = lane, -1
    body, nest.held = nest.body, kept(nest, {lane})
    if nest.across:
        nest.lanes = min(most)
        if is_near(nest, lane) and not nest.running:
            nest.held = {v for v in nest.held if nest.held_bytes(v) <= HELD or not _again(nest, v)}
        for a, lies in enumerate(nest.strides):
            v = a if a < nest.operands else body.outputs[a - nest.operands]
            apart = len(lies) > 1 and is_apart(nest, v, lies, lane)
            if apart and (a >= nest.operands or is_swept(body, v)):
                nest.held.add(v)
    else:
        nest.held |= {v for v in range(nest.operands) if _can_pack(nest, v, lane)}
    nest.walked = next(iter(nest.running.values()), -1)
    if nest.walked >= 0:
        whole = -(-nest.extents[nest.walked] // TILE) * TILE
        nest.tile = min(TILE, whole) if runs_once(nest, nest.walked, lane) else whole
    nest.packed = {v for v in _packed(nest) if nest.tiled not in nest.labels(v)}
    if nest.across:
        rest = [x for x in nest.rows if x != lane]
        slid = [x for x in rest if any(nest.slid_with(a, x) for a in range(nest.operands))]
        nest.abreast = slid[-1] if slid and not (nest.gathered or nest.running) else -1
        nest.rows = (lane, *rest) if nest.packed or slid else (*rest, lane)
    limits = (LIMITS.walk_bytes, HELD) if nest.tiled >= 0 else (HELD,)
    for limit in limits if nest.across else (ROW_BYTES,):
        for lanes in most if nest.across else LANES[:1]:
            nest.lanes = lanes
            if sum(nest.held_bytes(v) for v in nest.held) <= limit:
                return True
    return False


def _again(nest: Nest, v: int) -> bool:
    """Whether a value can be made again where it is read, which is sooner done than to run lanes along
    elements that are no neighbours, as what fits into cache would have to."""
    op = OPS[nest.body.nodes[nest.body.producers[v]].op]
    return op.computes and not op.reduce and op.moves.places != "read"


def _along(nest: Nest, lane: int, choose: bool) -> tuple[float, int]:
    """Cost of the loops if lanes run along a label: what has no lanes is done one by one, sums of
    lanes are combined, and operands with strides are copied."""
    cost, body, n = 0.0, nest.body, max(nest.extents[lane], 1)
    wide = WIDE if n > MAX_FIXED_EXTENT else n / -(-n // WIDE)  # of a vector
    for k, node in enumerate(body.nodes if choose else ()):
        op = OPS[node.op]
        if not nest.works(k):
            continue
        labels = nest.iterates(k)
        work = math.prod(nest.extents[x] for x in labels)
        if lane in labels:
            cost += work / wide
        else:  # LLVM finds vectors of its own, but not where one element waits for the last
            waits = op.reduce and body.starts[k] not in nest.gathered
            cost += work if waits else work / 4
        if op.reduce and lane in labels - {*nest.dims[body.starts[k]]}:
            cost += TOGETHER * work / nest.extents[lane]
    for a, lies in enumerate(nest.strides if choose else ()):
        v = a if a < nest.operands else body.outputs[a - nest.operands]
        if is_apart(nest, v, lies, lane) and not (a < nest.operands and _can_pack(nest, a, lane)):
            turned = lane in nest.rows and any(
                nest.extents[x] <= MAX_FIXED_EXTENT and is_near(nest, x)
                for x in lies
                if x not in nest.rows
            )
            cost += math.prod(nest.extents[x] for x in lies) / (4 if turned else 1)
    return cost, step(nest, lane) or 0


def _can_pack(nest: Nest, v: int, lane: int) -> bool:
    """Whether an operand that all rows read is to be copied, so that lanes are neighbours."""
    lies, size = nest.strides[v], nest.body.specs[v].dtype.itemsize
    if len(lies) < 2 or not is_apart(nest, v, lies, lane) or not lies.keys().isdisjoint(nest.rows):
        return False
    return math.prod(nest.extents[x] for x in lies) * size <= HELD and is_swept(nest.body, v)


def _packed(nest: Nest) -> set[int]:
    """The operands in cache that stay the same while other rows than the lane go on."""
    others = {x for x in nest.rows if x != nest.lane}
    return {
        v for v in nest.held if v < nest.operands and others and others.isdisjoint(nest.labels(v))
    }
