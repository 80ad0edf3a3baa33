"""Other libraries, set up as their documentation says for speed. Imports them when asked."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from .machine import THREADS

EAGER = bool(os.environ.get("BENCHMARK_EAGER"))  # torch without its compiler
DEVICE = os.environ.get("BENCHMARK_DEVICE", "")  # where torch computes; "": on the host


def torch_tensor(x: Any) -> Any:
    import torch  # type: ignore[import-not-found, unused-ignore]

    return torch.from_numpy(x).to(DEVICE) if DEVICE else torch.from_numpy(x)


def torch_host(x: Any) -> Any:
    return x.detach().cpu().numpy()


def torch_end(_: Any) -> None:
    if DEVICE.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def ostinato_end(_: Any) -> None:
    """When the workers have done all that was asked of them."""
    import ostinato as ost

    ost.session().wait()


def ostinato_plans() -> str:
    """What was decided for the plans of this process, what was timed for it, and how they run."""
    import ostinato as ost

    plans = ost.session().plans
    with plans.lock:
        found = list(plans.plans.values())
    return "\n\n".join(plan.explain() for plan in found)


def torch_compiled(function: Callable[..., Any], dynamic: bool | None = False) -> Any:
    """torch.compile for fixed shapes. `dynamic=None` keeps a Python number from being a constant."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    torch.set_num_threads(THREADS)
    if DEVICE and EAGER:
        return function
    if DEVICE.startswith("cuda"):
        compiled = torch.compile(function, dynamic=dynamic, mode="max-autotune")

        def next_step(*given: Any) -> Any:
            torch.compiler.cudagraph_mark_step_begin()  # results of the step before may go
            return compiled(*given)

        return next_step
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
