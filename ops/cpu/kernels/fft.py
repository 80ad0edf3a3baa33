"""Fourier transforms: NumPy's, whose lines threads share. Of one long line NumPy's thread is the only
one; to make it of short ones took as long on two cores, since those lie across memory.

The threads are Python's, as NumPy lets go of the lock that Python holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any

import numpy as np

LEAST = 1 << 14  # elements for each thread: to wake one takes as long as some thousand


@lru_cache(1)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "ostinato-fft")


def transforming(
    arrays: Sequence[Any], axis: int, threads: int, transform: Callable[..., Any]
) -> Callable[..., None] | None:
    """What transforms lines of arrays that lie as these do: `transform(x, axis=, out=)` of parts."""
    x = arrays[0]
    longest = max((d for d in range(x.ndim) if d != axis), key=lambda d: x.shape[d], default=axis)
    parts = 1 if longest == axis else min(threads, x.shape[longest], x.size // LEAST)
    if parts < 2:
        return lambda x, out: transform(x, axis=axis, out=out)
    n = x.shape[longest]
    cuts = [
        (*(slice(None),) * longest, slice(k * n // parts, (k + 1) * n // parts))
        for k in range(parts)
    ]

    def run(x: Any, out: Any) -> None:
        pool = _threads(threads - 1)
        others: Sequence[Future[Any]] = [
            pool.submit(transform, x[cut], axis=axis, out=out[cut]) for cut in cuts[1:]
        ]
        try:
            transform(x[cuts[0]], axis=axis, out=out[cuts[0]])
        finally:
            wait(others)  # whatever happens: nobody writes to this memory afterwards
        for other in others:
            other.result()

    return run


def both_ways(inverse: bool, norm: Any) -> Callable[..., Any]:
    function = np.fft.ifft if inverse else np.fft.fft
    return lambda x, axis, out: function(x, axis=axis, norm=norm, out=out)


def of_real(norm: Any) -> Callable[..., Any]:
    return lambda x, axis, out: np.fft.rfft(x, axis=axis, norm=norm, out=out)


def to_real(n: int, norm: Any) -> Callable[..., Any]:
    return lambda x, axis, out: np.fft.irfft(x, n, axis=axis, norm=norm, out=out)
