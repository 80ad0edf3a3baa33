"""What Dask loads into each process that we start for it: those beside the program that started them
end with it; those on other machines with mpiexec, or the scheduler."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import shutil
import sys
import threading
import time
from typing import Any

MEMORY = "/dev/shm/mpich_shm_"


def environment(folder: str = "") -> dict[str, str]:
    """Of processes that end with this one, and take this folder with them if it cannot."""
    return {
        "OSTINATO_FOLDER": folder,
        "DASK_DISTRIBUTED__WORKER__PRELOAD": __name__,
        "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": __name__,
        "OSTINATO_PARENT": f"{os.getpid()}@{platform.node()}",
    }


def dask_setup(server: Any) -> None:
    """Watch the program that started this cluster, if it is on this machine."""
    atexit.register(_leave)
    unname_memory()
    parent, _, machine = os.environ.get("OSTINATO_PARENT", "").partition("@")
    if parent.isdigit() and machine == platform.node():
        threading.Thread(
            target=_watch, args=(int(parent),), name="ostinato-parent", daemon=True
        ).start()


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


def _watch(parent: int) -> None:
    while True:
        time.sleep(1)
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            if folder := os.environ.get("OSTINATO_FOLDER"):
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)
        except PermissionError:
            pass
