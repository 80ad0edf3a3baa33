"""Loops as one would write them for Numba, each thread with a part, into arrays that are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .libraries import case, nothing
from .machine import THREADS
from .workload import Case, Numbers


def _parallel(function: Callable[..., Any]) -> Any:
    import numba

    return numba.njit(parallel=True, fastmath=True)(function)


def poly(coefficients: Sequence[float], x: Numbers) -> Case:
    from numba import prange

    a = np.array(coefficients, np.float32)

    @_parallel
    def run(x: Any, out: Any) -> Any:
        for i in prange(x.size):
            y = x[i] * a[0] + a[1]
            for k in range(2, 9):
                y = y * x[i] + a[k]
            out[i] = y
        return out

    return case(run, (x, np.empty_like(x)), nothing, np.asarray)


def blackscholes(s: Numbers, k: Numbers, t: Numbers) -> Case:
    from numba import prange

    rate, vol, half = np.float32(0.02), np.float32(0.3), np.float32(0.5)
    root_half = np.float32(math.sqrt(0.5))

    @_parallel
    def run(s: Any, k: Any, t: Any, calls: Any, puts: Any) -> Any:
        for i in prange(s.size):
            root = vol * math.sqrt(t[i])
            d1 = (math.log(s[i] / k[i]) + (rate + half * vol * vol) * t[i]) / root
            n1 = half + half * math.erf(d1 * root_half)
            n2 = half + half * math.erf((d1 - root) * root_half)
            left = k[i] * math.exp(-rate * t[i])
            calls[i] = s[i] * n1 - left * n2
            puts[i] = calls[i] - s[i] + left
        return calls, puts

    return case(run, (s, k, t, np.empty_like(s), np.empty_like(s)), nothing, np.asarray)


def norm(x: Numbers) -> Case:
    from numba import prange

    @_parallel
    def run(x: Any) -> Any:
        total = np.float32(0)
        for i in prange(x.size):
            total += (x[i] - np.float32(0.5)) ** 2
        return total

    return case(run, (x,), nothing, np.asarray)


def meanstd(x: Numbers) -> Case:
    from numba import prange

    @_parallel
    def run(x: Any, sums: Any) -> Any:
        n, d = x.shape
        for t in prange(THREADS):
            first, second = np.zeros(d), np.zeros(d)
            for i in range(n * t // THREADS, n * (t + 1) // THREADS):
                for j in range(d):
                    first[j] += x[i, j]
                    second[j] += x[i, j] * x[i, j]
            sums[t, 0], sums[t, 1] = first, second
        return sums

    def both(x: Any, sums: Any) -> Any:
        mean, square = run(x, sums).sum(0) / len(x)
        return mean, np.sqrt(square - mean * mean)

    return case(both, (x, np.empty((THREADS, 2, x.shape[1]))), nothing, np.asarray)


def kmeans(x: Numbers, c: Numbers) -> Case:
    from numba import prange

    @_parallel
    def run(x: Any, c: Any, sums: Any) -> Any:
        (n, d), k = x.shape, len(c)
        for t in prange(THREADS):
            mine = np.zeros((k, d + 1), np.float32)
            for i in range(n * t // THREADS, n * (t + 1) // THREADS):
                nearest, least = 0, np.float32(np.inf)
                for m in range(k):
                    distance = np.float32(0)
                    for j in range(d):
                        distance += (x[i, j] - c[m, j]) ** 2
                    if distance < least:
                        nearest, least = m, distance
                for j in range(d):
                    mine[nearest, j] += x[i, j]
                mine[nearest, d] += 1
            sums[t] = mine
        return sums

    def moved(x: Any, c: Any, sums: Any) -> Any:
        total = run(x, c, sums).sum(0)
        return total[:, :-1] / total[:, -1:]

    sums = np.empty((THREADS, len(c), c.shape[1] + 1), np.float32)
    return case(moved, (x, c, sums), nothing, np.asarray)
