"""What Dask loads into each process that we start for it. Those beside the program that started them end
with it, though nobody ends them (keeper.py); those on other machines with mpiexec, or the scheduler."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import platform
import sys
import threading
import time
from typing import Any

from . import keeper

MEMORY = "/dev/shm/mpich_shm_"
# seconds in which somebody else should have ended this process, and one more for each rank
LATE = 3.0


def environment() -> dict[str, str]:
    """Environment of a job's processes that Dask starts."""
    return {
        "DASK_DISTRIBUTED__WORKER__PRELOAD": __name__,
        "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": __name__,
    }


def dask_setup(server: Any) -> None:
    """Watch the program that started this cluster, if it is on this machine."""
    atexit.register(_leave)
    unname_memory()
    watch()


def unname_memory() -> None:
    """Remove the name of the memory that MPICH shares between the processes of a machine, which all of
    them have by now: who is killed, or does not wait for the others at MPI's end, would leave it there."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for path in {line.split(maxsplit=5)[5].strip() for line in maps if MEMORY in line}:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _leave() -> None:
    """MPI would wait at its end for everybody, also for those who died."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@functools.cache
def watch() -> None:
    """End when the program that started this job has ended, if it is on this machine."""
    program, _, machine = os.environ.get(keeper.PROGRAM, "").rpartition("@")
    if program and machine == platform.node():
        threading.Thread(
            target=_watch, args=(program,), name="ostinato-parent", daemon=True
        ).start()


def _watch(program: str) -> None:
    while keeper.is_there(program):
        time.sleep(1)
    rank = os.environ.get("PMI_RANK", "")
    time.sleep(LATE + (int(rank) if rank.isdigit() else 0))  # the keeper was killed, too
    keeper.sweep_beside(os.environ[keeper.MARK], os.environ[keeper.FOLDER])
    time.sleep(keeper.SURELY)
    os._exit(1)
