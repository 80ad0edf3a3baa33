"""What the machine can do: a handful of rates, measured once, from which a plan's time is predicted.

Layouts are chosen by bytes, and between algorithms by the rates of a machine that is the same
everywhere (`NOMINAL`), so a plan (and its id) never depends on what was measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np
from ostinato.ops.core import disk_cache

from ostinato import settings

NEAR = 1 << 18  # bytes that a kernel may touch and still work in cache


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates per worker."""

    name: str
    call_seconds: float  # to start one kernel
    near_bandwidth: float  # bytes per second within cache
    far_bandwidth: float  # from memory
    gemm_rate: float  # operations per second of a large float32 product
    element_rate: float  # of elementwise functions
    link_seconds: float  # to start one message
    link_bandwidth: float  # bytes per second between workers

    def kernel_seconds(self, flops: float, moved: float, dense: bool) -> float:
        """The longer of computing and moving, and the start."""
        bandwidth = self.near_bandwidth if moved <= NEAR else self.far_bandwidth
        rate = self.gemm_rate if dense else self.element_rate
        return self.call_seconds + max(flops / rate, moved / bandwidth)

    def message_seconds(self, moved: float) -> float:
        return self.link_seconds + moved / self.link_bandwidth


NOMINAL = Machine("nominal", 2e-6, 1e11, 2e10, 1e11, 2e9, 30e-6, 5e9)


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
            rates = [float(known[f.name]) for f in fields(Machine)[1:]]
            return Machine(name, *rates)
    found = measure(name)
    disk.write("machine.json", json.dumps(asdict(found)).encode())
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
        link_seconds=30e-6,
        link_bandwidth=far.nbytes / copied,
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
