"""A file larger than memory, block after block. Try: python examples/out_of_core.py 30 2   (GiB, limit)"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import ostinato as ost


def write(path: Path, rows: int) -> None:
    """16 features of eight clusters; behind them a target, linear in them but for noise."""
    r = np.random.default_rng(1)
    centres, weights = r.normal(0, 4, (8, 16)), np.arange(16) / 16
    data = np.lib.format.open_memmap(path, "w+", np.float32, (rows, 17))
    for start in range(0, rows, 1 << 16):
        n = min(1 << 16, rows - start)
        x = centres[r.integers(0, 8, n)] + r.standard_normal((n, 16))
        data[start : start + n] = np.c_[x, x @ weights + 0.1 * r.standard_normal(n)]


def lloyd(data: Any, c: Any) -> Any:
    """A step of k-means."""
    x = data[:, :16]
    near = ost.nn.one_hot(((c * c).sum(1) - 2 * x @ c.T).argmin(1), c.shape[0])
    return (near.T @ x) / ost.maximum(near.sum(0), 1)[:, None]


def equations(data: Any) -> Any:
    """What least squares needs of the data."""
    return data[:, :16].T @ data[:, :16], data[:, :16].T @ data[:, 16]


def main(gib: float = 1 / 16, limit: float = 1 / 128, workers: Any = None) -> dict[str, Any]:
    """The mean of each column, eight centres, and the weights of a linear fit."""
    found: dict[str, Any] = {}
    session = ost.connect(workers, memory_limit=int(limit * 2**30))
    with tempfile.TemporaryDirectory() as folder, session:
        write(path := Path(folder) / "data.npy", int(gib * 2**30) // 68)
        data = ost.load(path, resident=False, split=0)
        mean, step, fit = (ost.compile(f) for f in (lambda x: x.mean(0), lloyd, equations))
        for name, run in (
            ("mean", lambda: np.asarray(mean(data))),
            ("centres", lambda: np.asarray(step(data, found["mean"][:16] + np.eye(8, 16)))),
            ("weights", lambda: np.linalg.solve(*map(np.asarray, fit(data)))),
        ):
            start, found[name] = time.perf_counter(), run()
            print(f"{name:<8} {gib / (time.perf_counter() - start):6.2f} GiB/s", found[name][:3])
        print(fit.plan.explain())
        return found | {"peak_bytes": max(f.plan.peak_bytes for f in (mean, step, fit))}


if __name__ == "__main__":
    main(*(float(x) for x in sys.argv[1:3]))
