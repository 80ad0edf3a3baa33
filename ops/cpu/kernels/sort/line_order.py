"""Order by machine code: which way, and with how much memory. Numbers become keys (keys.py). Short lines are
put in order side by side (networks.py), others digit by digit (radix.py); threads share lines, or the parts of
one. One long line of plain numbers is NumPy's, where its vectors put it in order twice as fast as two threads
of ours (`python -m benchmarks keep`, row `sort`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.registry import Scratch
from ostinato.ops.core.spec import DType, Shape, int8
from ostinato.ops.cpu.jit.llvm import function_of, processor, why_not
from ostinato.ops.cpu.limits import LIMITS, ZEN_4
from ostinato.ops.cpu.threads import most_threads

from .keys import DIGIT, KeyKind
from .networks import lanes_text
from .radix import lines_text, part_text, phases

EXCHANGES = 1 << 10  # keys of a line that is put in order side by side with others
MIN_SHARED_KEYS = 1 << 16  # keys of a line that threads share
PARTS = 4  # of such a line, for each thread
QUICK = LIMITS.sort_quick
GRAIN = LIMITS.sort_wake
PLAIN = LIMITS.sort_plain
SELECTED_SHARE = 8  # one of so many is wanted: then the others are left out before


class _Way(NamedTuple):
    """How lines are put in order."""

    turns: int
    threads: int
    parts: int  # of a line, if threads share it
    inside: bool  # whether some of its keys are where the result will be
    lanes: int  # lines side by side
    room: int  # bytes for one line, or for one thread

    @property
    def bytes(self) -> int:
        return (1 if self.parts else max(1, self.threads)) * self.room


def _way(x: Shape, dtype: DType, axis: int, first: int, places: bool) -> _Way:
    """Choose how to sort, for any number of threads that there may be later."""
    threads = most_threads()
    n, lines = x[axis], math.prod(x) // x[axis]
    kind = KeyKind(dtype, places, False, True, False)
    lanes = kind.lanes if n <= EXCHANGES and 2 * lines > kind.lanes else 0
    shared = n >= MIN_SHARED_KEYS and lines < max(threads, 2) and first * SELECTED_SHARE > n
    parts = PARTS * threads if shared else 0
    inside = shared and not places and first == n and math.prod(x[axis:]) == n
    counts = 8 * DIGIT * (parts or dtype.itemsize)
    room = (1 if inside else 2) * (n * kind.item + 64) + counts
    if lanes:
        rows = -(-n // lanes) * lanes
        room = rows * (kind.row + lanes * (8 if places else dtype.itemsize))
    turns = parts or -(-lines // max(1, lanes))
    worth = max(1, min(threads, n * lines // GRAIN, turns))
    threads = worth if n * lines > QUICK else 0
    return _Way(turns, threads, parts, inside, lanes, -(-room // 64) * 64)


def sort_scratch(x: Shape, dtype: DType, axis: int, first: int, places: bool) -> list[Scratch]:
    """Memory for keys: of a line for each thread, or of one that all share."""
    if not has_keys(dtype) or 0 in x:
        return []
    way = _way(x, dtype, axis, first, places)
    if way.inside and _is_numpys(dtype):
        return []
    return [Scratch((way.bytes + 64,), int8)]


def has_keys(dtype: DType) -> bool:
    return not why_not() and dtype.kind != "c"


def sort_function(
    x: Any,
    out: Any,
    threads: int,
    axis: int,
    descending: bool,
    places: bool,
    scratch: Sequence[Any],
) -> Callable[..., None] | None:
    """The function of numbers and their order, of which as many are wanted as the result has."""
    n, first = x.shape[axis], out.shape[axis]
    if not has_keys(x.dtype) or out.size == 0 or n >= 1 << 31:
        return None
    lines, dtype = x.size // n, x.dtype
    way = _way(x.shape, dtype, axis, first, places)
    if way.inside and _is_numpys(dtype):
        return _by_numpy(axis, descending)
    if not scratch:
        return None
    threads = min(threads, way.threads)
    start = -(-scratch[0].ctypes.data // 64) * 64
    steps = x.strides[axis], out.strides[axis]
    if start + way.bytes > scratch[0].ctypes.data + scratch[0].nbytes:
        return None
    if way.inside and steps[1] != out.itemsize:
        return None
    dense = steps == (x.itemsize, out.itemsize) or n == 1
    kind = KeyKind(dtype, places, descending, dense, first * SELECTED_SHARE <= n and not way.lanes)
    if way.parts:
        return _in_parts(kind, x, out, axis, way._replace(threads=threads), start, scratch)
    others = [d for d in range(x.ndim) if d != axis and x.shape[d] > 1]
    facts = [way.turns, threads, n, first, *steps, start, way.room, lines, len(others)]
    for d in others:
        facts += [x.shape[d], x.strides[d], out.strides[d]]
    text = lanes_text if way.lanes else lines_text
    return function_of(text(kind), np.array(facts, np.int64), scratch)


def _is_numpys(dtype: DType) -> bool:
    """Whether NumPy has vectors to sort such numbers, and there are no more threads than these are worth."""
    plain = dtype.kind in "iuf" and dtype.itemsize in (4, 8)
    return plain and most_threads() <= PLAIN and _has_vectors()


@lru_cache(1)
def _has_vectors() -> bool:
    """Whether NumPy knows this processor as one whose vectors it sorts by, and these are quick: Zen 4 takes
    hundreds of cycles to write the elements of a vector that a mask says, NumPy there 6 to 14 times as long
    as we."""
    if processor() == ZEN_4:
        return False
    try:
        from numpy._core._multiarray_umath import (  # type: ignore[import-not-found, unused-ignore]
            __cpu_features__,
        )
    except ImportError:
        return False
    return any(__cpu_features__.get(name) for name in ("AVX2", "AVX512_SKX"))


def _by_numpy(axis: int, descending: bool) -> Callable[..., None]:
    """The function of a few long lines."""

    def run(x: Any, out: Any) -> None:
        np.copyto(out, x)
        out.sort(axis)
        lines = np.moveaxis(out, axis, -1)
        for at in np.ndindex(lines.shape[:-1]):
            line = lines[at]
            if out.dtype.kind == "f":
                zero, nan = line.dtype.type(0), line.dtype.type(np.nan)
                line[np.searchsorted(line, nan) :] = nan  # of any sign
                zeros = line[np.searchsorted(line, zero) : np.searchsorted(line, zero, "right")]
                negative = np.count_nonzero(np.signbit(zeros))
                zeros[:negative], zeros[negative:] = -0.0, 0.0
            if descending:
                line[...] = line[::-1]

    return run


def _in_parts(
    kind: KeyKind, x: Any, out: Any, axis: int, way: _Way, start: int, scratch: Sequence[Any]
) -> Callable[..., None]:
    """The function of a few long lines, one after the other."""
    n, steps = x.shape[axis], (x.strides[axis], out.strides[axis])
    room = -(-n * kind.item // 64) * 64
    state = np.zeros(3, np.int64)  # where keys are, where they go, and in which bits they differ
    turns = []
    for place in np.ndindex(tuple(1 if d == axis else s for d, s in enumerate(x.shape))):
        at = [sum(i * s for i, s in zip(place, a.strides, strict=True)) for a in (x, out)]
        shared = [way.parts, way.threads, n, out.shape[axis], *steps, *at, start]
        shared += [0, start + room] if way.inside else [start + room, start + 2 * room]
        shared.append(state.ctypes.data)
        for phase, digit in phases(kind):
            about = np.array([*shared, kind.shift(digit)], np.int64)
            turns.append(function_of(part_text(kind, phase), about, (state, scratch)))

    def run(x: Any, out: Any) -> None:
        for turn in turns:
            turn(x, out)

    return run
