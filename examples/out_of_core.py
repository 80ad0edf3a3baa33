"""A file larger than memory: mean, k-means, least squares, block after block.

Try: python examples/out_of_core.py --gib 30 --limit-gib 2   (writes a file of that size, and removes it)"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import ostinato as ost

COLUMNS = 16  # features; behind them stands the target


def write(path: Path, rows: int) -> None:
    """Features of eight clusters, and a target that is linear in them but for noise."""
    r = np.random.default_rng(1)
    centres, weights = r.normal(0, 4, (8, COLUMNS)), np.arange(COLUMNS) / COLUMNS
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, COLUMNS + 1)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, rows, 1 << 16):
            n = min(1 << 16, rows - start)
            x = centres[r.integers(0, 8, n)] + r.standard_normal((n, COLUMNS), np.float32)
            y = x @ weights + 0.1 * r.standard_normal(n, np.float32)
            file.write(np.column_stack([x, y]).astype("<f4").tobytes())


def lloyd(data: Any, c: Any) -> Any:
    """A step of k-means."""
    x = data[:, :COLUMNS]
    d = (c * c).sum(1) - 2 * x @ c.T
    near = ost.nn.one_hot(d.argmin(1), c.shape[0])
    return (near.T @ x) / ost.maximum(near.sum(0), 1)[:, None]


def equations(data: Any) -> Any:
    """What least squares needs of the data: x.T @ x and x.T @ y."""
    x = data[:, :COLUMNS]
    return x.T @ x, x.T @ data[:, COLUMNS]


def main(gib: float = 1 / 16, limit_gib: float = 1 / 128, workers: int = 1) -> dict[str, Any]:
    """The mean of each column, eight centres, and the weights of a linear fit."""
    limit = int(limit_gib * 2**30)
    with tempfile.TemporaryDirectory() as folder, ost.connect(workers, memory_limit=limit):
        path = Path(folder) / "data.npy"
        write(path, int(gib * 2**30) // (4 * (COLUMNS + 1)))
        data, found = ost.load(path, resident=False, split=0), {}
        mean, step, fit = map(ost.compile, (lambda x: x.mean(0), lloyd, equations))
        for name, run in (
            ("mean", lambda: np.asarray(mean(data))),
            ("centres", lambda: np.asarray(step(data, found["mean"][:COLUMNS] + np.eye(8, 16)))),
            ("weights", lambda: np.linalg.solve(*map(np.asarray, fit(data)))),
        ):
            start = time.perf_counter()
            found[name] = run()
            rate = gib / (time.perf_counter() - start)
            print(f"{name:<8} {rate:6.2f} GiB/s  {found[name].ravel()[:4].round(4)}")
        print(fit.plan.explain())
        return {**found, "peak_bytes": max(f.plan.peak_bytes for f in (mean, step, fit))}


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--gib", type=float, default=1 / 16)
    options.add_argument("--limit-gib", type=float, default=1 / 128)
    options.add_argument("--workers", type=int, default=1)
    given = options.parse_args()
    main(given.gib, given.limit_gib, given.workers)
