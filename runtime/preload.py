"""What Dask loads into each process that we start for it: those beside the program that started them
end with it; those on other machines with mpiexec, or the scheduler."""

from __future__ import annotations

import atexit
import os
import platform
import sys
import threading
import time
from typing import Any


def environment() -> dict[str, str]:
    """Of processes that end with this one."""
    return {
        "DASK_DISTRIBUTED__WORKER__PRELOAD": __name__,
        "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": __name__,
        "OSTINATO_PARENT": f"{os.getpid()}@{platform.node()}",
    }


def dask_setup(server: Any) -> None:
    """Watch the program that started this cluster, if it is on this machine."""
    atexit.register(_leave)
    parent, _, machine = os.environ.get("OSTINATO_PARENT", "").partition("@")
    if parent.isdigit() and machine == platform.node():
        threading.Thread(
            target=_watch, args=(int(parent),), name="ostinato-parent", daemon=True
        ).start()


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
            os._exit(1)
        except PermissionError:
            pass
