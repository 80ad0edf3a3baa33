"""Beside others: what calls take on a machine that is busy, and what they take on a quiet one.

`busy` rows run beside twice as many processes as there are processors, each of which computes without
a pause; they note how many times as long that takes as the same process needed before. Load that
others put on the machine is in all rows: quiet ones are quiet if nobody else is there."""

from __future__ import annotations

import atexit
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .kernels import workload
from .loops import numbers
from .machine import THREADS
from .training import mlp
from .workload import Case, Numbers, Workload

LONG = 0.1  # seconds of a sample: some turns of everybody
QUIET = 7  # samples before the others begin
BOUND = 300  # seconds after which they end, whoever is there
# Whoever has started it may be killed, with nobody else to end it.
WORK = (
    "import os, time; parent, end = os.getppid(), time.monotonic() + {0}\n"
    "while os.getppid() == parent and time.monotonic() < end: sum(range(10_000))"
)


class Others:
    """Processes that compute until they are told to end."""

    def __init__(self, many: int, seconds: float = BOUND) -> None:
        work = [sys.executable, "-c", WORK.format(seconds)]
        self.processes = [subprocess.Popen(work) for _ in range(many)]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def beside(make: Callable[[], Case], many: int = 2 * THREADS) -> Case:
    """The case beside so many others, which begin when it is known what it takes without them. They stop,
    and end, with this process: they are its children."""
    made = make()
    assert made.loop is not None
    loop, busy = made.loop, list[float]()
    quiet, count = 0.0, 1

    def sample() -> float:
        start = time.perf_counter()
        loop(count)
        return (time.perf_counter() - start) / count

    def answer() -> Any:
        nonlocal quiet, count
        found = made.answer()
        count = max(1, round(LONG / min(sample() for _ in range(3))))
        quiet = statistics.median(sample() for _ in range(QUIET))
        atexit.register(Others(many).end)
        return found

    def clock() -> float:
        busy.append(sample())
        return busy[-1]

    return Case(
        answer, clock=clock, note=lambda: f"{statistics.median(busy) / quiet:.1f} x without others"
    )


def both(quiet: Workload) -> Workload:
    """A workload on a quiet machine, and beside others."""
    cases = {name: quiet.cases[name] for name in ("ostinato", "jax", "numpy")}
    busy = {f"{name}/busy": functools.partial(beside, make) for name, make in cases.items()}
    return replace(quiet, cases={**cases, **busy}, traffic=0, flops=0, seconds=4.0)


def of(
    name: str,
    about: str,
    function: Callable[..., Any],
    operands: Callable[[], tuple[Numbers, ...]],
) -> Workload:
    return both(workload(name, about, function, operands, 0))


# -- the work ------------------------------------------------------------------------------
def kmeans(xp: Any, x: Any, c: Any) -> Any:
    near = xp.one_hot(((x[:, None, :] - c[None]) ** 2).sum(-1).argmin(1), c.shape[0])
    return (near.T @ x) / near.sum(0)[:, None]


def grayscott(xp: Any, u: Any, v: Any) -> Any:
    def around(x: Any) -> Any:
        return xp.roll(x, 1, 0) + xp.roll(x, -1, 0) + xp.roll(x, 1, 1) + xp.roll(x, -1, 1) - 4 * x

    def step(s: Any) -> tuple[Any, Any]:
        u, v = s
        both = u * v * v
        return (
            u + 0.16 * around(u) - both + 0.035 * (1 - u),
            v + 0.08 * around(v) + both - 0.1 * v,
        )

    return xp.turns(20, step, (u, v))


def products(xp: Any, a: Any, x: Any) -> Any:
    return xp.turns(20, lambda x: a @ x, x)


def turning(n: int) -> Numbers:
    """A matrix whose powers neither grow nor vanish."""
    return np.linalg.qr(numbers(3, n, n).astype(np.float64))[0].astype(np.float32)


def cloud() -> tuple[Numbers, Numbers]:
    x = numbers(1, 200_000, 16)
    return x, x[:8]


def fields() -> tuple[Numbers, Numbers]:
    u = np.abs(np.sin(numbers(2, 512, 512)))
    return u, 1 - u


WORKLOADS = (
    of("kmeans", "README's step: 200,000 x 16, 8 centres", kmeans, cloud),
    of("grayscott", "Gray and Scott's equations, 512 x 512, 20 steps", grayscott, fields),
    of(
        "products",
        "20 products of 300 x 300 in a loop",
        products,
        lambda: (turning(300), numbers(4, 300, 300)),
    ),
    both(mlp(1)),
)
