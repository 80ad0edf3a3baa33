"""Threads: how many cores this process may use, and what its own helpers (ops/cpu/jit/parallel.py) go by.

Generated kernels and matrix products of all libraries share them. A second pool would wait for its next work
on the same cores; so the linear algebra library that NumPy brings, which has threads of its own, is kept at
one thread where it works beside them."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.core.locks import cached_property

from .jit.code import CodeAddress, address_of, once

_is_child = False
# As it was asked for: Dask sets it for the processes that it starts, and leaves it so in this one.
ASKED = os.environ.get("OMP_NUM_THREADS", "")


# -- cores ---------------------------------------------------------------------------------
def most_threads() -> int:
    """As many as this process has cores, or OMP_NUM_THREADS; 1 where there are no helpers, as in a
    forked child."""
    return 1 if _is_child or not has_pool() else _asked(cores())


# Before an OpenMP library binds who loads it to a place, if it was told to.
AT_START = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()


@lru_cache(1)
def cores() -> int:
    """Cores that this process may run on, by its affinity and by its control groups' limits."""
    return math.ceil(min(len(AT_START) or os.cpu_count() or 1, quota()))


def _asked(count: int) -> int:
    """OMP_NUM_THREADS if it asks for fewer; of a list, the first number."""
    first = ASKED.split(",")[0].strip()
    return min(count, int(first)) if first.isdigit() and int(first) else count


def quota(root: str = "") -> float:
    """The cores' worth of time that control groups (v1 or v2) leave to this process."""
    return min([_limit(names) for names in _limits(root)], default=math.inf)


@lru_cache(8)
def _limits(root: str) -> Sequence[Sequence[str]]:
    """The files that tell the time of each group around it, and per which period."""
    try:
        lines = Path(f"{root}/proc/self/cgroup").read_text()
    except OSError:
        return ()
    found = []
    for line in lines.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        mount = Path(f"{root}/sys/fs/cgroup", controllers and "cpu")
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            found.append([str(folder / name) for name in names])
            if folder == mount:
                break
    return [names for names in found if os.path.exists(names[0])]


def _limit(names: Sequence[str]) -> float:
    """One group's limit; infinite where there is none."""
    said = list[str]()
    try:
        for name in names:
            with open(name) as file:
                said += file.read().split()
        time, period = said
    except (OSError, ValueError):
        return math.inf
    return int(time) / int(period) if time.isdigit() and int(period) else math.inf


# -- helpers -------------------------------------------------------------------------------
# For machine code: how many threads a kernel may use now, how many helpers there are, and for how many
# nanoseconds one waits awake, which is what it takes to wake a thread, if OMP_WAIT_POLICY does not say.
ALLOWED, HELPERS, SPIN = range(3)
ANY = 1 << 20
WAITS = {"passive": 0, "active": 10_000_000}
facts = np.zeros(8, np.int64)
facts[ALLOWED] = ANY
facts[SPIN] = WAITS.get(os.environ.get("OMP_WAIT_POLICY", "").lower(), 50_000)
# What each helper and those who ask for it have in common: among it its number for the system.
MAX_BOXES, BOX, NUMBER = 1024, 16, 3  # boxes, words of one
_room = np.zeros((MAX_BOXES + 1) * BOX, np.int64)
boxes = _room[-_room.ctypes.data // 8 % 8 :][: MAX_BOXES * BOX].reshape(MAX_BOXES, BOX)
# Where the user places threads, one that is bound to its place says nothing about the others.
_BINDS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
PLACED = any(os.environ.get(name, "false").lower() != "false" for name in _BINDS)
OFTEN, SELDOM = 0.02, 1.0  # seconds between looks at the affinity, and at control groups


@dataclass
class _Allowed:
    """What the system was last seen to allow the process: processors, by its main thread's affinity, and
    time, and when that is looked at next."""

    processors: set[int] = field(default_factory=set)
    quota: float = math.inf
    next_look: float = 0.0
    next_quota: float = 0.0


_allowed = _Allowed()


def follow() -> None:
    """Kernels use as many threads, on those processors, as the system allows now. There are no more than
    when the process began: plans have room for those."""
    now = time.monotonic()
    if now >= _allowed.next_look:
        _allowed.next_look = now + OFTEN
        look(now)


def look(now: float = math.inf) -> None:
    if not hasattr(os, "sched_getaffinity") or PLACED or _is_child:
        return
    if now >= _allowed.next_quota:
        _allowed.next_quota = now + SELDOM
        _allowed.quota = quota()
    processors = os.sched_getaffinity(os.getpid())
    count = max(1, math.ceil(min(len(processors), _allowed.quota)))
    facts[ALLOWED] = count if count < cores() else ANY
    if processors != _allowed.processors:
        _allowed.processors = processors
        for number in boxes[: facts[HELPERS], NUMBER].tolist():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(number, processors)


@once
def has_pool() -> bool:
    """Whether the system has what helpers need."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gettid")


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

    @cached_property
    def threads(self) -> Callable[[], int]:
        return self._function("get_num_threads", ctypes.c_int)

    @cached_property
    def limit(self) -> Callable[[int], None]:
        return self._function("set_num_threads", None)

    def _function(self, name: str, kind: Any) -> Any:
        found = getattr(self.library, f"{self.prefix}openblas_{name}{self.suffix}")
        found.restype = kind
        return found

    @property
    def kernels(self) -> str:
        """Which processor's kernels it picked."""
        return str(self._function("get_corename", ctypes.c_char_p)().decode())


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
    """A child has no helpers."""
    global _is_child
    _is_child = True
    boxes[: facts[HELPERS]] = 0
    facts[ALLOWED], facts[HELPERS] = 1, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
