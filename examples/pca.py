"""Principal components of a table with many rows, by the SVD of the table itself: each worker makes
QR of its rows, and only the small triangles travel."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import ostinato as ost


@ost.compile
def components(x: Any, count: int) -> Any:
    """The directions in which the rows differ most, the share of the variance that each explains,
    and the rows seen along them."""
    centred = x - x.mean(0)
    u, s, directions = ost.linalg.svd(centred, full_matrices=False)
    share = s * s / (s * s).sum()
    return directions[:count], share[:count], u[:, :count] * s[:count]


def main(
    rows: int = 1_000_000, columns: int = 32, workers: int | None = None
) -> tuple[float, float]:
    """The variance that three components explain, and the largest difference to NumPy's shares."""
    with ost.connect(workers=workers):
        hidden = ost.random.normal((rows, 3), seed=1, dtype=ost.float64, split=0)
        mix = ost.random.normal((3, columns), seed=2, dtype=ost.float64)
        noise = ost.random.normal((rows, columns), seed=3, dtype=ost.float64, split=0)
        x = hidden @ mix + 0.1 * noise + 5
        directions, share, scores = components(x, 3)
        print("explained", " ".join(f"{v:.3%}" for v in np.asarray(share)))
        print("directions", directions.shape, "scores", scores.shape, scores.layout)
        print(components.plan)

        table = np.asarray(x)
        wanted = np.linalg.svd(np.cov(table.T), compute_uv=False)
        apart = float(np.abs(np.asarray(share) - wanted[:3] / wanted.sum()).max())
        print(f"NumPy's differ by {apart:.1e}")
        return float(share.sum()), apart


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
