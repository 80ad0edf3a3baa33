"""Where a pipe runs: the cores and the memory that are its own, and what was found there before."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from ostinato.ops.core import disk_cache
from ostinato.ops.cpu.threads import cores, quota

from .model import Config

RANKS = (  # what starters of jobs say about processes of a job on this machine
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_LOCAL_SIZE",
    "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE",
)
MOST_LINES = 2000
FADES = 0.9


def ranks_here(environment: Mapping[str, str] = os.environ) -> int:
    """Processes of this job on this machine, itself included."""
    for name in RANKS:
        text = environment.get(name, "")
        if text.isdecimal() and int(text):
            return int(text)
    return 1


def own_cores(ranks: int = 0) -> int:
    """Cores for this process, where those that it may run on are shared with the other ones of its job. If
    each of them was bound to some, these are its own."""
    ranks = ranks or ranks_here()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores()
    is_bound = allowed * ranks <= (os.cpu_count() or 1)
    own = min(allowed if is_bound else allowed / ranks, quota() / ranks)
    return max(math.ceil(own - 0.5), 1)


def own_memory(ranks: int = 0) -> int:
    """Bytes that may wait in front of the loop if the user has said nothing: an eighth of what is free."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = next(line for line in lines if line.startswith("MemAvailable:"))
        free = int(found.split()[1]) << 10
        with contextlib.suppress(OSError, ValueError):
            free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()))
        return free // 8 // (ranks or ranks_here())
    return 0


@lru_cache(1)
def machine() -> str:
    """Key of what times depend on."""
    model = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line for line in lines if line.startswith("model name")).partition(":")[2]
    return f"{model.strip()}, {os.cpu_count()} cores, {platform.python_version()}"


class Known:
    """What was found on this machine with as many cores and ranks: a file, with a line for each pipe, to
    which any number of processes may add. Of several lines about one the last counts; a damaged one says
    nothing."""

    def __init__(self, folder: Path | None, ranks: int = 0) -> None:
        where = (
            f"feeds of {machine()}; {own_cores(ranks)} of them here, {ranks or ranks_here()} ranks"
        )
        digest = hashlib.blake2b(where.encode(), digest_size=8).hexdigest()
        self.disk, self.name = disk_cache.open_cache(folder), f"tuned/{digest}.jsonl"

    def get(self, pipe: str) -> tuple[Config, float] | None:
        """How it ran best, and what a lap took then; since others use the machine, too, the most of the times
        in which that was found, of which older ones fade."""
        found: tuple[Config, float] | None = None
        for line in self.disk.lines(self.name):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                told = json.loads(line)
                if told["pipe"] == pipe:
                    names = ("threads", "ahead", "chunk")
                    threads, ahead, chunk = (int(told[name]) for name in names)
                    config = Config(threads, ahead, chunk, int(told.get("place", 0)))
                    if min(config.threads, config.ahead, config.chunk) > 0 <= config.place:
                        before = found[1] if found is not None and found[0] == config else 0.0
                        found = config, max(float(told["seconds"]), FADES * before)
        return found

    def put(self, pipe: str, config: Config, seconds: float) -> None:
        told = {"pipe": pipe, "threads": config.threads, "ahead": config.ahead}
        told |= {"chunk": config.chunk, "place": config.place}
        line = json.dumps({**told, "seconds": seconds})
        lines = self.disk.lines(self.name)
        if len(lines) >= MOST_LINES:
            self.disk.rewrite(self.name, [*lines[-MOST_LINES // 2 :], line])
        else:
            self.disk.add(self.name, [line])
