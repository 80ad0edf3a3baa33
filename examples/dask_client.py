"""Workers of a Dask cluster that is running already. Try: python examples/dask_client.py tcp://10.0.0.1:8786

Without an address a cluster is started here first, as `ostinato worker` would add workers to one."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
from distributed import Client

import ostinato as ost


@ost.compile
def step(a: Any, x: Any) -> Any:
    """Power iteration: the vector nears the direction that `a` stretches most."""
    y = a @ x
    return y / ost.sqrt((y * y).sum())


def main(
    address: str | None = None, size: int = 2000, steps: int = 100, security: Any = None
) -> float:
    """The largest eigenvalue of a matrix that no worker has as a whole."""
    with contextlib.ExitStack() as stack:
        if address is None:
            cluster = ost.LocalCluster(2)
            stack.callback(cluster.close)
            address, security = cluster.scheduler_address, cluster.security
        # Dask's own client, of use for Dask's things, too
        client = stack.enter_context(Client(address, security=security))
        session = stack.enter_context(ost.connect(client))
        print(f"{session}; the dashboard: {client.dashboard_link}")
        u = np.random.default_rng(0).normal(size=size) / size**0.5
        a = ost.asarray(np.eye(size) + np.outer(u, u), split=0)  # each worker gets its rows
        x = ost.ones((size,))
        for _ in range(steps):
            x = step(a, x)  # returns at once: many steps are on their way
        value = float((x * (a @ x)).sum())
        print(f"largest eigenvalue {value:.6f}, by NumPy {1 + u @ u:.6f}")
        return value


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
