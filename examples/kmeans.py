"""k-means, written as one would on paper. Try: python examples/kmeans.py 4   (4 workers)"""

from __future__ import annotations

import sys
from typing import Any

import ostinato as ost


@ost.compile
def lloyd(x: Any, c: Any) -> Any:
    """One step: assign each point to the nearest centre, move the centres to the means."""
    d = ((x[:, None, :] - c[None]) ** 2).sum(-1)
    near = ost.nn.one_hot(d.argmin(1), c.shape[0])
    moved = (near.T @ x) / ost.maximum(near.sum(0), 1)[:, None]
    return moved, d.min(1).mean()


def main(
    points: int = 100_000, clusters: int = 8, workers: int | None = None, steps: int = 20
) -> list[float]:
    """The mean squared distance to the nearest centre, step by step."""
    with ost.connect(workers=workers):
        homes = ost.random.normal((clusters, 4), std=6.0, seed=1)
        which = ost.random.integers(0, clusters, (points,), seed=2, split=0)
        x = ost.take(homes, which, axis=0) + ost.random.normal((points, 4), seed=3, split=0)
        c = x[:clusters].resplit(None)
        losses = []
        for _ in range(steps):
            c, loss = lloyd(x, c)  # the first call plans; the others send the plan's id
            losses.append(float(loss))
        print(lloyd.plan)
        print(f"points lie as {x.layout}; {lloyd}")
        print(" ".join(f"{loss:.3f}" for loss in losses))
        return losses


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
