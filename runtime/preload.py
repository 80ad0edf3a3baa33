"""What Dask loads into each process of a LocalCluster: it ends with the program that started it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any


def dask_setup(server: Any) -> None:
    """Watch the program that started this cluster."""
    atexit.register(_leave)
    parent = os.environ.get("OSTINATO_PARENT", "")
    if parent.isdigit():
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
