"""Peers that are two processes: HeAT, and NumPy in blocks under MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .libraries import Function, case, nothing
from .workload import Case, Numbers

BLOCK = 8192  # rows, so that what is made of them stays in the caches


# -- HeAT ----------------------------------------------------------------------------------
def heat_case(function: Function, operands: Sequence[Numbers], split: Sequence[int]) -> Case:
    """The operands of these positions are split by rows; the others are on both ranks."""
    import heat as ht  # type: ignore[import-not-found, unused-ignore]

    given = [ht.array(x, split=0 if k in split else None) for k, x in enumerate(operands)]
    return case(lambda *xs: function(ht, *xs), given, nothing, lambda y: y.numpy())


def heat_kmeans(ht: Any, x: Any, c: Any) -> Any:
    near = ht.spatial.cdist(x, c, quadratic_expansion=True).argmin(axis=1)
    chosen = (ht.expand_dims(near, 1) == ht.arange(c.shape[0])).astype(ht.float32)
    return ht.matmul(chosen.T, x) / ht.expand_dims(ht.sum(chosen, axis=0), 1)


def heat_cdist(ht: Any, x: Any, y: Any) -> Any:
    return ht.spatial.cdist(x, y, quadratic_expansion=True)


def heat_qr(operands: Sequence[Numbers], summary: Callable[[Any], Any]) -> Case:
    import heat as ht

    x = ht.array(operands[0], split=0)
    made = case(ht.linalg.qr, [x], nothing, nothing)

    def answer() -> Any:
        q, r = ht.linalg.qr(x)
        return summary((q[:1000].numpy(), r.numpy()))

    return Case(answer, made.loop)


# -- MPI -----------------------------------------------------------------------------------
def mpi_case(function: Function, operands: Sequence[Numbers], split: Sequence[int]) -> Case:
    """The operands of these positions are split by rows. A function gives what all ranks have, or
    else rows of the result, as a list of one array."""
    from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]

    comm = MPI.COMM_WORLD
    given = [mine(comm, x) if k in split else x for k, x in enumerate(operands)]

    def host(y: Any) -> Any:
        if not isinstance(y, list):
            return y
        parts = comm.gather(y[0])
        return np.concatenate(parts) if parts else y[0]

    return case(lambda *xs: function(comm, *xs), given, nothing, host)


def mine(comm: Any, x: Numbers) -> Numbers:
    rank, size = comm.Get_rank(), comm.Get_size()
    return x[len(x) * rank // size : len(x) * (rank + 1) // size]


def _blocks(*xs: Numbers) -> Iterator[tuple[Numbers, ...]]:
    for k in range(0, len(xs[0]), BLOCK):
        yield tuple(x[k : k + BLOCK] for x in xs)


def _sum(comm: Any, x: Any) -> Any:
    total = np.empty_like(x)
    comm.Allreduce(x, total)
    return total


def mpi_meanstd(comm: Any, x: Numbers) -> Any:
    sums = np.zeros((2, x.shape[1]))
    for (part,) in _blocks(x):
        sums += part.sum(0), (part * part).sum(0)
    mean, square = _sum(comm, sums) / _sum(comm, np.array([len(x)], float))
    return mean, np.sqrt(square - mean * mean)


def mpi_logistic(comm: Any, x: Numbers, y: Numbers, w: Numbers) -> Any:
    slope = np.zeros_like(w)
    for part, wanted in _blocks(x, y):
        slope += (1 / (1 + np.exp(-(part @ w))) - wanted) @ part
    return w - 0.1 * _sum(comm, slope) / _sum(comm, np.array([len(x)], w.dtype))


def sums_of_near(x: Numbers, c: Numbers) -> Numbers:
    """For each centre the sum of the points that are nearest to it, and how many they are."""
    sums = np.zeros((len(c), x.shape[1] + 1), np.float32)
    norms, ones = (c * c).sum(1), np.arange(len(c))
    for (part,) in _blocks(x):
        near = (norms - 2 * (part @ c.T)).argmin(1)
        chosen = (near[:, None] == ones).astype(np.float32)
        sums[:, :-1] += chosen.T @ part
        sums[:, -1] += chosen.sum(0)
    return sums


def mpi_kmeans(comm: Any, x: Numbers, c: Numbers) -> Any:
    sums = _sum(comm, sums_of_near(x, c))
    return sums[:, :-1] / sums[:, -1:]


def mpi_cdist(comm: Any, x: Numbers, y: Numbers) -> Any:
    found, norms = np.empty((len(x), len(y)), np.float32), (y * y).sum(1)
    for k in range(0, len(x), 256):
        part, out = x[k : k + 256], found[k : k + 256]
        np.matmul(part, y.T, out=out)
        out *= -2
        out += (part * part).sum(1)[:, None]
        out += norms
        np.maximum(out, 0, out=out)
        np.sqrt(out, out=out)
    return [found]


def mpi_gram(comm: Any, x: Numbers) -> Any:
    return _sum(comm, x.T @ x)


def mpi_qr(operands: Sequence[Numbers], summary: Callable[[Any], Any]) -> Case:
    """Of the parts, and then of their triangles."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    x = mine(comm, operands[0])

    def run(x: Numbers) -> Any:
        q, r = np.linalg.qr(x)
        n = len(r)
        both = np.empty((comm.Get_size() * n, n), r.dtype)
        comm.Allgather(r, both)
        inner, r = np.linalg.qr(both)
        return q @ inner[comm.Get_rank() * n :][:n], r

    return Case(lambda: summary(run(x)), case(run, [x], nothing, nothing).loop)
