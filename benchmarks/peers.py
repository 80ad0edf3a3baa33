"""Other libraries, set up as their documentation says for speed. Imports them when asked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .machine import THREADS


def torch_compiled(function: Callable[..., Any], dynamic: bool | None = False) -> Any:
    """torch.compile for fixed shapes. `dynamic=None` keeps a Python number from being a constant."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    torch.set_num_threads(THREADS)
    return torch.compile(function, dynamic=dynamic)


def dask_threads() -> Callable[[Any], Any]:
    """Computes a dask array on a pool of threads that stays, and keeps the result as an array."""
    from concurrent.futures import ThreadPoolExecutor

    import dask  # type: ignore[import-not-found, unused-ignore]

    pool = ThreadPoolExecutor(THREADS)
    dask.config.set(scheduler="threads", pool=pool)
    return lambda x: x.persist()


@functools.cache
def dask_client() -> Any:
    """A cluster of this process's own, with a worker for each thread."""
    from distributed import Client, LocalCluster  # type: ignore[import-not-found, unused-ignore]

    cluster = LocalCluster(
        n_workers=THREADS,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        worker_dashboard_address=None,
    )
    return Client(cluster)
