"""Reductions around indices that stay, as those over all pixels of a channel: whether units of what stays would
leave a GPU idle. Then its blocks cut what is reduced instead, and put together what each has of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from ostinato.ops.jit.labels import Labels

# Of a GPU: columns that a unit has side by side; elements that lie one behind the other, or it reads more than
# it needs; and those that one of few units goes through sooner than more kernels begin.
UNIT = {"columns": 32, "neighbours": 32, "elements": 1 << 13}
MIN_CUT_ROWS = 1 << 14  # fewer are not cut, if a longer sum outside of them can be cut instead
Over = tuple[frozenset[int], frozenset[int]]  # what a reduction is over, and what it leaves


def long_labels(labels: Labels, overs: Iterable[Over]) -> Over:
    """Find what some reduction is over, and what it leaves, without labels of one element."""
    none = frozenset[int]()
    own = next(iter(overs), (none, none))
    over, kept = (frozenset(x for x in some if labels.extents[x] > 1) for some in own)
    return over, kept


def is_one_reduction(labels: Labels, overs: Collection[Over], common: frozenset[int]) -> bool:
    """Whether all reductions are over the same labels, which all members have, and leave the same."""
    found = {long_labels(labels, [own]) for own in overs}
    return len(found) == 1 and all(own and own <= common for own in next(iter(found)))


def largest_labels(labels: Labels) -> list[int]:
    """The labels of the largest value, as its axes are."""
    every = [[x for x in dims if x is not None] for dims in labels.dims.values()]
    return max(every, key=lambda own: math.prod(labels.extents[x] for x in own))


def would_idle(
    labels: Labels, lost: frozenset[int], common: frozenset[int], blocks: int, most: int = 0
) -> bool:
    """Whether units of some common indices are too few for a device, where others that each of them has whole
    lie outside of these, and are of more than `most` elements."""
    extents = labels.extents
    units, each = (math.prod(extents[x] for x in some) for some in (common, lost))
    for dims in labels.dims.values():
        known = [x for x in dims if x is not None and extents[x] > 1]
        last = max((n for n, x in enumerate(known) if x in common), default=0)
        inside = math.prod(extents[x] for x in known[last + 1 :])
        if not any(x in lost for x in known[:last]) or 1 < inside < UNIT["neighbours"]:
            continue
        beside = min(units, UNIT["columns"]) if inside == 1 else 1
        if units // beside < blocks and each * beside > most:
            return True
    return False


def outer_labels(
    labels: Labels, some: frozenset[int], inner: frozenset[int], least: int
) -> set[int]:
    """Find the labels among some that are long, and outside of others, of which there are few: to cut those
    instead would make rows that lie across all of memory, and long sums in one go."""
    extents, found = labels.extents, set[int]()
    rows = math.prod(extents[x] for x in inner)
    for dims in labels.dims.values() if some and rows < MIN_CUT_ROWS else ():
        known = [x for x in dims if x is not None]
        if known and known[-1] in inner:
            found |= {x for x in known[:-1] if x in some and extents[x] > least}
    return found


def is_shared(labels: Labels, overs: Collection[Over], blocks: int) -> bool:
    """Whether blocks share a reduction, which those of windows, that go row by row, cannot."""
    every = (long_labels(labels, [own]) for own in overs)
    return any(would_idle(labels, *own, blocks, UNIT["elements"]) for own in every)
