"""Fourier transforms: by SciPy where it is installed, which transforms several lines in one vector, else by
NumPy, whose lines threads of Python's share, as NumPy lets go of the lock that Python holds.

The bits of a line are the same whatever lines are beside it. Of one long line there is one thread; to make it
of short ones took as long on two cores, since those lie across memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache, partial
from typing import Any

import numpy as np
from ostinato.ops.cpu.libraries import scipy_fft

# elements for each thread: to wake one takes as long as some thousand
MIN_THREAD_ELEMENTS = 1 << 14
Transform = Callable[..., Any]


@lru_cache(1)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "ostinato-fft")


def transforming(
    arrays: Sequence[Any], axis: int, threads: int, name: str, norm: str, n: int = 0
) -> Callable[..., None]:
    """Make a function that transforms lines of arrays that lie as these do, by a function that both
    libraries have."""
    theirs = scipy_fft.function(name)
    if theirs is None:
        function, size = getattr(np.fft, name), {"n": n} if name == "irfft" else {}
        return shared(
            arrays,
            axis,
            threads,
            lambda x, axis, out: function(x, axis=axis, out=out, norm=norm, **size),
        )
    workers = max(1, min(threads, arrays[0].size // MIN_THREAD_ELEMENTS))
    return partial(theirs, axis=axis, workers=workers, norm=norm)


def shared(
    arrays: Sequence[Any], axis: int, threads: int, transform: Transform
) -> Callable[..., None]:
    """Make a function whose threads share the lines, by `transform(x, axis=, out=)` of parts."""
    x = arrays[0]
    longest = max((d for d in range(x.ndim) if d != axis), key=lambda d: x.shape[d], default=axis)
    parts = 1 if longest == axis else min(threads, x.shape[longest], x.size // MIN_THREAD_ELEMENTS)
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
