"""k-means on a cluster of processes, with Dask's dashboard. Try: python examples/cluster.py 4"""

from __future__ import annotations

import sys
import time
from typing import Any

import ostinato as ost


@ost.compile
def lloyd(x: Any, c: Any) -> Any:
    """One step: assign each point to the nearest centre, move the centres to the means."""
    d = ((x[:, None, :] - c[None]) ** 2).sum(-1)
    near = ost.nn.one_hot(d.argmin(1), c.shape[0])
    moved = (near.T @ x) / ost.maximum(near.sum(0), 1)[:, None]
    return moved, d.min(1).mean()


def main(workers: int = 2, points: int = 1_000_000, steps: int = 200) -> dict[str, Any]:
    """Starts the workers, runs, and says what the steps took and what had to be said for them."""
    with ost.LocalCluster(workers) as cluster:
        print(f"{workers} workers; the dashboard: {cluster.dashboard_link}")
        homes = ost.random.normal((8, 4), std=6.0, seed=1)
        which = ost.random.integers(0, 8, (points,), seed=2, split=0)
        x = ost.take(homes, which, axis=0) + ost.random.normal((points, 4), seed=3, split=0)
        c = x[:8].resplit(None)
        c, first = lloyd(x, c)  # plans; the others send the plan's id
        before, start = float(first), time.perf_counter()
        for _ in range(steps):
            c, loss = lloyd(x, c)
        after = float(loss)  # waits for all steps
        took = (time.perf_counter() - start) / steps
        runs = cluster.stats()["orders"]["run"]
        print(f"mean squared distance {before:.3f} -> {after:.3f}")
        print(
            f"{took * 1e3:.2f} ms a step, {runs['bytes'] / runs['messages']:.0f} bytes sent for it"
        )
        return {"before": before, "after": after, "orders": runs}


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else 2)
