"""What a machine can do: a handful of rates, from which the planner predicts what a plan takes.

A machine has workers, each with rates of its own, joined by links. `levels` says which link joins how
many of them, from the innermost: 8 GPUs of a node by NVLink, all nodes by InfiniBand. Ranks run through
a mesh row by row, so the last axes of a mesh lie within a node, and each axis has the link of the
smallest level that spans it.

    machine.links((256, 8))     (InfiniBand, NVLink)

No machine is part of a plan's id: the same question may be answered differently on another machine."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np
from ostinato.ops.core import disk_cache
from ostinato.ops.core.layout import Mesh

from ostinato import settings

NEAR = 1 << 18  # bytes that a kernel may touch and still work in cache


@dataclass(frozen=True, slots=True)
class Link:
    """What joins workers. A collective among `n` of them takes the time of its library's best
    algorithm, on a worker that has `size` bytes before it and after it; `size` of a gather or a scatter
    is that of all parts."""

    seconds: float  # to start one message
    bandwidth: float  # bytes per second that a worker sends, and receives, while all do

    def message(self, size: float) -> float:
        return self.seconds + size / self.bandwidth

    def reduce_scatter(self, n: int, size: float) -> float:
        """By recursive halving: half the bytes, then a quarter, ..."""
        if n < 2:
            return 0.0
        return math.ceil(math.log2(n)) * self.seconds + size * (n - 1) / n / self.bandwidth

    all_gather = reduce_scatter  # the same messages in the other order

    def all_reduce(self, n: int, size: float) -> float:
        """Small ones by recursive doubling, each step with all bytes; large ones as a reduce-scatter and
        an all-gather."""
        if n < 2:
            return 0.0
        small = math.ceil(math.log2(n)) * self.message(size)
        return min(small, 2 * self.reduce_scatter(n, size))

    def all_to_all(self, n: int, size: float) -> float:
        """Pairwise; few bytes are gathered by all instead, in fewer messages."""
        if n < 2:
            return 0.0
        pairwise = (n - 1) * self.seconds + size * (n - 1) / n / self.bandwidth
        steps = math.ceil(math.log2(n))
        return min(pairwise, steps * (self.seconds + size / 2 / self.bandwidth))


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates per worker."""

    name: str
    call_seconds: float  # to start one kernel
    near_bandwidth: float  # bytes per second within cache
    far_bandwidth: float  # from memory
    gemm_rate: float  # operations per second of a large float32 product
    element_rate: float  # of elementwise functions
    levels: tuple[tuple[int, Link], ...]  # (workers that the link joins, the link); 0: all

    def kernel_seconds(self, flops: float, moved: float, dense: bool) -> float:
        """The longer of computing and moving, and the start."""
        bandwidth = self.near_bandwidth if moved <= NEAR else self.far_bandwidth
        rate = self.gemm_rate if dense else self.element_rate
        return self.call_seconds + max(flops / rate, moved / bandwidth)

    def message_seconds(self, moved: float) -> float:
        return self.levels[0][1].message(moved)

    def links(self, mesh: Mesh) -> tuple[Link, ...]:
        """The link of each axis of a mesh."""
        found, span = [], 1
        for n in reversed(mesh):
            span *= n
            within = [link for workers, link in self.levels if workers >= span]
            found.append(within[0] if within else self.levels[-1][1])
        return tuple(reversed(found))


NOMINAL = Machine("nominal", 2e-6, 1e11, 2e10, 1e11, 2e9, ((0, Link(30e-6, 5e9)),))
BYTES = Machine(  # on which only what crosses between workers takes time
    "bytes", 0.0, math.inf, math.inf, math.inf, math.inf, ((0, Link(0.0, 1e9)),)
)
MACHINES = {m.name: m for m in (NOMINAL, BYTES)}


def deciding() -> Machine:
    """The machine by which layouts are chosen (`OSTINATO_MACHINE`)."""
    return MACHINES[settings.machine]


@cache
def processor() -> str:
    """What it is called."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def memory() -> int:
    """The bytes that a process here may have: the machine's, or its control group's if that is less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found = min(found, int(Path("/sys/fs/cgroup", name).read_text()))
    return found


@cache
def this_machine() -> Machine:
    """This machine, measured when it is first asked for, and remembered on disk."""
    disk = disk_cache.at(settings.cache)
    name = f"{platform.node()}/{platform.machine()}/{os.cpu_count()}/numpy {np.__version__}"
    with contextlib.suppress(ValueError, TypeError, KeyError):
        known = json.loads(disk.read("machine.json") or b"{}")
        if known["name"] == name:
            rates = [float(known[f.name]) for f in fields(Machine)[1:-1]]
            levels = tuple([(int(n), Link(*map(float, link))) for n, link in known["levels"]])
            return Machine(name, *rates, levels)
    found = measure(name)
    levels = [(n, (link.seconds, link.bandwidth)) for n, link in found.levels]
    disk.write("machine.json", json.dumps({**asdict(found), "levels": levels}).encode())
    return found


def measure(name: str = "") -> Machine:
    """Takes about a tenth of a second."""
    small, near = np.zeros(8, np.float32), np.zeros(NEAR // 12, np.float32)
    out_near = np.empty_like(near)
    far = np.ones(1 << 22, np.float32)
    out_far = np.empty_like(far)
    square = np.ones((512, 512), np.float32)
    product = np.empty_like(square)
    copied = _best(lambda: np.copyto(out_far, far), 4)
    return Machine(
        name,
        call_seconds=_best(lambda: np.add(small, small, small), 1000),
        near_bandwidth=3 * near.nbytes / _best(lambda: np.add(near, near, out_near), 100),
        far_bandwidth=2 * far.nbytes / copied,
        gemm_rate=2 * 512**3 / _best(lambda: np.matmul(square, square, product), 4),
        element_rate=10 * near.size / _best(lambda: np.exp(near, out_near), 50),
        levels=((0, Link(30e-6, far.nbytes / copied)),),
    )


def _best(run: Callable[[], object], times: int) -> float:
    """Seconds per call, of the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(times):
            run()
        best = min(best, (time.perf_counter() - start) / times)
    return best
