"""The elements of some ranks of lines.

Of a long line a sample says between which two numbers each wanted one lies, most likely: one pass
counts what is below and keeps what lies between, some hundredths of the line, of which NumPy's
introselect then has to find it. Where the sample misled, the whole line is selected from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.registry import Scratch
from ostinato.ops.core.spec import Shape, Spec, bfloat16

MIN_SAMPLED_LINE = 1 << 14  # elements of a line from which a sample pays
BLOCK = 1 << 16  # elements of a pass at a time, which stay in the cache
FOUND = 1 << 6  # ranks of a line beyond which it is selected from as a whole
SPREAD = 4.0  # standard deviations of a sampled rank to both sides


def order_statistics(
    arrays: Sequence[Any], threads: int, *, axes: tuple[int, ...], scratch: Sequence[Any], **_: Any
) -> Callable[..., None] | None:
    """The function of numbers, ranks and results. The scratch memory is for a copy of lines that
    do not lie one after the other, or that have to be put in order."""
    x, ranks, out = arrays
    if not out.size or x.dtype == bfloat16:
        return None
    alike = all(step == 0 or n == 1 for n, step in zip(ranks.shape, ranks.strides, strict=True))
    several = ranks.ndim > 1 and any(n > 1 for n in ranks.shape[:-1]) and not alike
    order = (*(d for d in range(x.ndim) if d not in axes), *axes)
    apart = scratch[0].reshape([x.shape[d] for d in order])
    lines = scratch[0].reshape((*out.shape[:-1], -1))
    long = lines.shape[-1] >= MIN_SAMPLED_LINE and ranks.shape[-1] <= FOUND
    plain = long and x.transpose(order).flags.c_contiguous

    def run(x: Any, ranks: Any, out: Any) -> None:
        if not plain and not axes:
            np.copyto(apart, x)
        elif not plain:
            _copy_lines(apart, x.transpose(order))
        if long:
            places = np.broadcast_to(ranks, out.shape)
            given = x.transpose(order).reshape(lines.shape) if plain else lines
            for at in np.ndindex(out.shape[:-1]):
                out[at] = _of_long(given[at], places[at], lines[at])
        elif several:
            places = np.broadcast_to(ranks, out.shape)
            for at in np.ndindex(out.shape[:-1]):
                out[at] = _of_lines(lines[at], places[at])
        else:
            out[...] = _of_lines(lines, ranks.reshape(-1)[: out.shape[-1]])

    return run


def _copy_lines(to: Any, lines: Any) -> None:
    """A piece of all lines at a time, so that what lies beside their elements stays in the cache."""
    for k in range(0, lines.shape[-1], 1 << 8):
        np.copyto(to[..., k : k + (1 << 8)], lines[..., k : k + (1 << 8)])


def order_workspace(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], **_: Any
) -> Sequence[Scratch]:
    return (Scratch(ins[0], specs[0].dtype),)


def select(lines: Any, places: Sequence[int]) -> None:
    """One after the other, the middle one first: NumPy has vectors for one place at a time only."""
    if places:
        middle = len(places) // 2
        k = places[middle]
        lines.partition(k, axis=-1)
        select(lines[..., :k], places[:middle])
        select(lines[..., k + 1 :], [n - k - 1 for n in places[middle + 1 :]])


def _of_lines(lines: Any, places: Any) -> Any:
    """The elements at these places of each line, which is put in another order."""
    found, which = np.unique(places, return_inverse=True)
    made = np.empty((*lines.shape[:-1], len(found)), lines.dtype)
    _pick(lines, found.tolist(), made)
    return made[..., which]


def _pick(lines: Any, places: Sequence[int], made: Any) -> None:
    """The first and the last one, and those beside one that is in its place, by a look at all."""
    n = lines.shape[-1]
    if places and places[-1] == n - 1:
        lines.max(-1, out=made[..., -1])  # NaN, if there is one
        places, made = places[:-1], made[..., :-1]
    if places and places[0] == 0:
        np.fmin.reduce(lines, -1, out=made[..., 0])  # NaN, if there is nothing else
        places, made = places[1:], made[..., 1:]
    if places:
        middle = len(places) // 2
        k = places[middle]
        lines.partition(k, axis=-1)
        made[..., middle] = lines[..., k]
        _pick(lines[..., :k], places[:middle], made[..., :middle])
        right = [p - k - 1 for p in places[middle + 1 :]]
        _pick(lines[..., k + 1 :], right, made[..., middle + 1 :])


def _of_long(line: Any, places: Any, room: Any) -> Any:
    """The elements of one line; `room` may be the line itself."""
    found, which = np.unique(places, return_inverse=True)
    n, made = len(line), np.empty(len(found), line.dtype)
    sample = np.sort(line[_spread(n)])
    begin = 0
    for end in _together(found, n):
        wanted = found[begin:end]
        if wanted[0] == n - 1:
            made[begin] = line.max()  # NaN, if there is one
        elif not _between(line, wanted, sample, made[begin:end]):
            if room is not line:
                np.copyto(room, line)
            return _of_lines(room, places)
        begin = end
    return made[which]


def _together(found: Any, n: int) -> Iterator[int]:
    """Where those end that are found in one pass: near each other, the last rank alone."""
    first = found[0]
    for k in range(1, len(found)):
        if found[k] - first > n // 64 or found[k] == n - 1:
            first = found[k]
            yield k
    yield len(found)


def _between(line: Any, wanted: Any, sample: Any, made: Any) -> bool:
    """Finds elements of neighbouring ranks; says whether the sample was right."""
    n, s = len(line), len(sample)
    low, high = (k * s / n for k in (wanted[0], wanted[-1]))
    low -= SPREAD * (low * (1 - low / s)) ** 0.5 + 2
    high += SPREAD * (high * (1 - high / s)) ** 0.5 + 2
    least = None if low < 0 else sample[int(low)]
    most = None if high > s - 1 else sample[int(high)]
    if most != most:
        most = None  # NaN is the last
    if least != least:
        return False
    below, kept = 0, []
    for k in range(0, n, BLOCK):
        some = line[k : k + BLOCK]
        inside = np.ones(len(some), np.bool_) if most is None else some <= most
        if least is not None:
            less = some < least
            below += int(np.count_nonzero(less))
            np.not_equal(inside, less, out=inside)  # what is less is in both
        kept.append(some[inside])
    near = np.concatenate(kept)
    ranks = wanted - below
    if ranks[0] < 0 or ranks[-1] >= len(near):
        return False
    _pick(near, ranks.tolist(), made)
    return True


@lru_cache(8)
def _spread(n: int) -> Any:
    """Places of a sample, spread over a line without a period; the same each time."""
    count = min(1 << 13, n // 8)
    turns = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # the golden ratio
    return ((turns >> np.uint64(11)).astype(np.float64) * (n * 2.0**-53)).astype(np.int64)
