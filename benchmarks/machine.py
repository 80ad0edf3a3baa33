"""What the machine can do, so that times can be read: its parts, and three probes.

python -m benchmarks.machine
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .workload import Workload

THREADS = int(os.environ.get("BENCHMARK_THREADS", "2"))
_PACKAGES = (
    "numpy",
    "numba",
    "jax",
    "jaxlib",
    "torch",
    *("onnxruntime", "onednn-cpu-gomp"),
    "dask",
    "distributed",
    "heat",
    "mpi4py",
    "ray",
    *("cupy", "cupy-cuda12x", "cupy-cuda13x", "nvmath-python", "cuda-bindings", "triton"),
    *("nvidia-cublas-cu12", "nvidia-cublas", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)
ASKED = (
    "name,driver_version,memory.total,power.limit,clocks.max.sm,mig.mode.current,ecc.mode.current"
)


def two_cpus() -> set[int]:
    """Two processors to measure on, of different cores if there are such; empty if nobody can say.

    All systems get the same two, so that none can have more than the others."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
    free = sorted(os.sched_getaffinity(0))
    seen: dict[str, int] = {}
    for cpu in free:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        text = str(cpu)
        with contextlib.suppress(OSError):
            text = siblings.read_text().strip()
        seen.setdefault(text, cpu)
    chosen = list(seen.values())[:2]
    return set(chosen if len(chosen) == 2 else free[:2])


def versions() -> dict[str, str]:
    """Of all packages that are measured and installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _best(run: Callable[[], object], times: int = 7) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def copy_bandwidth() -> float:
    """Bytes per second that two threads read and write while they copy."""
    import numpy as np

    size = 64 << 20
    pairs = [(np.ones(size, np.uint8), np.zeros(size, np.uint8)) for _ in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        seconds = _best(lambda: list(pool.map(lambda p: np.copyto(p[1], p[0]), pairs)))
    return 2 * THREADS * size / seconds


def matmul_rate() -> float:
    """Operations per second of a float32 matrix product."""
    import numpy as np

    n = 1536
    a, b = np.ones((n, n), np.float32), np.ones((n, n), np.float32)
    out = np.empty((n, n), np.float32)
    return 2 * n**3 / _best(lambda: np.matmul(a, b, out))


def fast_products() -> dict[str, str]:
    """What makes NumPy's OpenBLAS use all of this processor, where it would not by itself: the roof
    is what the machine can do.
    """
    with contextlib.suppress(OSError):
        if "avx512f" in Path("/proc/cpuinfo").read_text():
            return {"OPENBLAS_CORETYPE": "SKYLAKEX"}
    return {}


def call_overhead() -> float:
    """Seconds of a call of a Python function that does nothing."""

    def nothing(x: object) -> object:
        return x

    def calls(n: int = 100_000) -> None:
        for _ in range(n):
            nothing(n)

    def turns(n: int = 100_000) -> None:
        for _ in range(n):
            pass

    return (_best(calls) - _best(turns)) / 100_000


def probe() -> dict[str, Any]:
    """All that is known of the machine; takes about a second."""
    from ostinato.planner.machine import processor

    return {
        "cpu": processor(),
        "cpus": os.cpu_count(),
        "threads": THREADS,
        "system": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "copy_bytes_per_s": round(copy_bandwidth()),
        "sgemm_flops": round(matmul_rate()),
        "python_call_s": round(call_overhead(), 10),
        "versions": versions(),
    }


def gpus() -> list[str]:
    """What the driver says of each GPU; why it says nothing, if it does not."""
    command = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"nvidia-smi: {error}"]
    lines = (done.stdout if not done.returncode else done.stderr or done.stdout).splitlines()
    return [line.strip() for line in lines if line.strip()]


def floor(machine: dict[str, Any], workload: Workload) -> float:
    """Seconds that a workload must take at least: its traffic at the speed of copies, or its
    operations at that of matrix products.
    """
    moved = workload.traffic / machine["copy_bytes_per_s"]
    return max(moved, workload.flops / machine["sgemm_flops"])


def in_words(machine: dict[str, Any]) -> str:
    known = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    return (
        f"{machine['cpu']}, {machine['threads']} of {machine['cpus']} processors, load "
        f"{machine['load']}: copies {machine['copy_bytes_per_s'] / 1e9:.1f} GB/s, sgemm "
        f"{machine['sgemm_flops'] / 1e9:.0f} GFLOP/s, a Python call "
        f"{machine['python_call_s'] * 1e9:.0f} ns\n{known}"
    )


if __name__ == "__main__":
    json.dump(probe(), sys.stdout)
