"""What a GPU does along whole lines by kernels of its own: order, running sums, counts. What these do
not take is left to the ops' own kernels, and so to CuPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from ostinato.ops.array.selection import lines_of
from ostinato.ops.core.device import Function
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import is_inexact, strided_like

from .loops.scans import running
from .loops.selects import first_places, selected
from .loops.sorts import keys_of_lines, sorted_lines
from .loops.tallies import step_of, tally

_OTHER_NORM = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def register(gpu: Any) -> None:
    """Let a GPU run operations along lines so."""

    def runs(op: str, make: Callable[..., Function | None]) -> None:
        def made(arrays: Any, threads: int, scratch: Any, **params: Any) -> Function | None:
            return make(gpu, *arrays, **params) if gpu.has_own_kernels else None

        gpu.runs(op, made)

    runs("sort", _sorted)
    runs("partition", _sorted)
    runs("argsort", _places)
    runs("argpartition", _places)
    runs("order_statistics", _ranked)
    for name, op in OPS.items():
        if kind := op.element.running:
            runs(name, partial(_running, kind=kind))
    runs("tally", _counted)
    runs("fft", _transformed)


def _sorted(
    gpu: Any, x: Any, out: Any, *, axis: int, descending: bool = False, **_: Any
) -> Function | None:
    kernel = sorted_lines(x, out, axis, descending)
    if kernel is not None:
        return gpu.launching(kernel)
    if not is_inexact(x.dtype) or not x.size:
        return None
    there, back, dtype = keys_of_lines(x, out, axis, descending)
    first, last = gpu.launching(there), gpu.launching(back)
    n, xp = x.shape[axis], gpu.xp

    def run(x: Any, out: Any) -> None:
        keys = xp.empty((x.size // n, n), dtype)
        first(x, keys)
        keys.sort(axis=1)
        last(keys, out)

    return run


def _places(
    gpu: Any, x: Any, out: Any, *, axis: int, descending: bool = False, **_: Any
) -> Function | None:
    kernel = sorted_lines(x, out, axis, descending, places=True)
    if kernel is not None:
        return gpu.launching(kernel)
    others, count, xp = [d for d in range(x.ndim) if d != axis], out.shape[axis], gpu.xp
    kernels = first_places(x.transpose(*others, axis), count, descending)
    if kernels is None:
        return None
    find, collect, order = map(gpu.launching, kernels[:3])
    mask, rank = (1 << kernels[3]) - 1, xp.full(1, count - 1, np.int64)
    lines, shape = x.size // x.shape[axis], [x.shape[d] for d in others]

    def run(x: Any, out: Any) -> None:
        last, seen = xp.empty(lines, np.uint64), xp.zeros(lines, np.uint32)
        keys, ordered = (xp.empty((lines, count), np.uint64) for _ in range(2))
        find(x, last, rank)
        collect(x, last, seen, keys)
        order(keys, ordered)
        places = ordered.view(np.int64).reshape(*shape, count)
        xp.bitwise_and(places, mask, out=xp.moveaxis(out, axis, -1))

    return run


def _ranked(gpu: Any, x: Any, ranks: Any, out: Any, *, axes: tuple[int, ...]) -> Function | None:
    if not out.size:
        return None
    left = [d for d in range(x.ndim) if d not in axes]
    step = step_of(x.transpose(*left, *axes)[(0,) * len(left)])  # None: a copy has lines
    shape = (*[x.shape[d] for d in left], math.prod(x.shape[a] for a in axes))
    strides = None if step is None else [*[x.strides[d] for d in left], step]
    every = [s if n > 1 else 0 for n, s in zip(ranks.shape, ranks.strides, strict=True)]
    lines = strided_like(shape, x.dtype, strides)
    kernel = selected(lines, out, strided_like(out.shape, ranks.dtype, every))
    if kernel is None:
        return None
    launch, xp = gpu.launching(kernel), gpu.xp

    def run(x: Any, ranks: Any, out: Any) -> None:
        launch(x if step is not None else xp.ascontiguousarray(lines_of(x, axes)), out, ranks)

    return run


def _running(gpu: Any, x: Any, out: Any, *, axis: int, kind: str, **_: Any) -> Function | None:
    kernel = running(x, out, axis, kind)
    return None if kernel is None else gpu.launching(kernel)


def _counted(gpu: Any, x: Any, out: Any, *, axes: tuple[int, ...], count: int) -> Function | None:
    """Where the axes that are counted along are the last ones."""
    left = x.ndim - len(axes)
    if sorted(axes) != list(range(left, x.ndim)) or step_of(out) != 8:
        return None
    kernel = tally(x, out.size // count if count else 0, count)
    if kernel is None:
        return None
    launch = gpu.launching(kernel)

    def run(x: Any, out: Any) -> None:
        out[...] = 0
        launch(x, out)

    return run


def _transformed(
    gpu: Any, x: Any, out: Any, *, axis: int, inverse: bool, norm: str
) -> Function | None:
    """Transform real numbers: one half is made; the other one mirrors it."""
    if x.dtype.kind == "c":
        return None
    xp, n = gpu.xp, x.shape[axis]
    before = (slice(None),) * axis
    first, rest = (*before, slice(n // 2 + 1)), (*before, slice(n // 2 + 1, None))
    mirrored = (*before, slice((n - 1) // 2, 0, -1))

    def run(x: Any, out: Any) -> None:
        half = xp.fft.rfft(x, axis=axis, norm=_OTHER_NORM[norm] if inverse else norm)
        if inverse:
            xp.conjugate(half, out=out[first])
            xp.copyto(out[rest], half[mirrored])
        else:
            xp.copyto(out[first], half)
            xp.conjugate(half[mirrored], out=out[rest])

    return run
