"""Threads: how many cores this process may use, and the one pool that shares work among them.

The pool is libgomp's: generated kernels (ops/cpu/loops/flat.py) and matrix products
(ops/cpu/kernels/gemm.py) use it alike. A second pool would wait for its next work on the same cores; so
the linear algebra library that NumPy brings, which has threads of its own, is kept at one thread where it
works beside the pool."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .jit.code import CodeAddress, address_of, once

_is_child = False
# As it was asked for: Dask sets it for the processes that it starts, and leaves it so in this one.
ASKED = os.environ.get("OMP_NUM_THREADS", "")


# -- cores ---------------------------------------------------------------------------------
def most_threads() -> int:
    """As many as this process has cores, or OMP_NUM_THREADS; 1 without libgomp, or in a forked
    child.
    """
    return 1 if _is_child or not has_pool() else _asked(cores())


@lru_cache(1)
def cores() -> int:
    """Cores that this process may run on, by its affinity and by its control groups' limits."""
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return math.ceil(min(count, quota()))


def _asked(count: int) -> int:
    """OMP_NUM_THREADS if it asks for fewer; of a list, the first number."""
    first = ASKED.split(",")[0].strip()
    return min(count, int(first)) if first.isdigit() and int(first) else count


def quota(root: Path = Path("/")) -> float:
    """The cores' worth of time that control groups (v1 or v2) leave to this process."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return math.inf
    least = math.inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controllers and "cpu")
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            least = min(least, _limit(folder, bool(controllers)))
            if folder == mount:
                break
    return least


def _limit(folder: Path, old: bool) -> float:
    """One group's limit; infinite where there is none."""
    try:
        if old:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            time, period = ((folder / name).read_text().strip() for name in names)
        else:
            time, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return math.inf
    return int(time) / int(period) if time.isdigit() and int(period) else math.inf


# -- the pool ------------------------------------------------------------------------------
POOL = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
OF_POOL = ("omp_get_max_threads", "omp_set_num_threads")


@once
def pool() -> dict[str, CodeAddress | None]:
    """libgomp's entry points; without it (Debian: libgomp1, 0.3 MB) there is one thread."""
    # Threads wait awake for some milliseconds: to wake one may take half a millisecond.
    os.environ.setdefault("GOMP_SPINCOUNT", "100000")
    try:
        library = ctypes.CDLL("libgomp.so.1")
    except OSError:
        return dict.fromkeys((*POOL, *OF_POOL))  # never called
    return {name: address_of(library, name) for name in (*POOL, *OF_POOL)}


def has_pool() -> bool:
    return pool()["GOMP_parallel"] is not None


# -- NumPy's linear algebra library --------------------------------------------------------
@dataclass(frozen=True)
class Blas:
    """OpenBLAS as NumPy brings it."""

    library: Any
    prefix: str
    suffix: str

    @property
    def wide(self) -> bool:
        """Its integers have 64 bits."""
        return self.suffix == "64_"

    def address(self, name: str) -> CodeAddress:
        return address_of(self.library, f"{self.prefix}{name}{self.suffix}")

    def threads(self) -> int:
        return int(getattr(self.library, f"{self.prefix}openblas_get_num_threads{self.suffix}")())

    def limit(self, threads: int) -> None:
        getattr(self.library, f"{self.prefix}openblas_set_num_threads{self.suffix}")(threads)

    @property
    def kernels(self) -> str:
        """Which processor's kernels it picked."""
        name = getattr(self.library, f"{self.prefix}openblas_get_corename{self.suffix}")
        name.restype = ctypes.c_char_p
        return str(name().decode())


@once
def blas() -> Blas | None:
    """The library behind NumPy's products; None if it is not OpenBLAS."""
    try:
        inside = importlib.import_module("numpy._core._multiarray_umath")
        library = ctypes.CDLL(inside.__file__)  # looks in what it needs, too
    except (ImportError, OSError):
        return None
    for prefix in ("scipy_", ""):
        for suffix in ("64_", ""):
            if hasattr(library, f"{prefix}openblas_set_num_threads{suffix}"):
                return Blas(library, prefix, suffix)
    return None


@contextlib.contextmanager
def blas_threads(most: int) -> Iterator[None]:
    """OpenBLAS has at most so many threads of its own meanwhile: workers share the cores."""
    found = blas()
    before = found.threads() if found is not None else 0
    if found is None or before <= most:
        yield
        return
    found.limit(most)
    try:
        yield
    finally:
        found.limit(before)


def _after_fork() -> None:
    """A child has none of the pool's threads, and would wait for them forever."""
    global _is_child
    _is_child = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
