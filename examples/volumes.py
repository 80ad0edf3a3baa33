"""Volumes that workers share: each reads its slab of every sample and its halo; of the rest plans send these.
`ostinato run -n 2 examples/volumes.py` does so with two processes."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import numpy as np

import ostinato as ost


def write_volumes(folder: str, count: int, size: int) -> dict[str, str]:
    """Noisy balls, and which voxels are theirs, in two files."""
    r, places = np.random.default_rng(0), np.mgrid[:size, :size, :size]
    masks = np.zeros((count, size, size, size), np.uint8)
    for k in np.repeat(np.arange(count), 6):
        at, radius = r.uniform(0, size, (3, 1, 1, 1)), r.uniform(size / 8, size / 4)
        masks[k] |= ((places - at) ** 2).sum(0) < radius**2
    noisy = (100 + 60.0 * masks + r.normal(0, 60, masks.shape)).astype(np.int16)
    files = {name: f"{folder}/{name}.npy" for name in ("volume", "mask")}
    np.save(files["volume"], noisy)
    np.save(files["mask"], masks)
    return files


def smooth(x: Any) -> Any:
    """The mean of each voxel and its six neighbours, of which some are another worker's."""
    a, b, c = x[:, :-2, 1:-1, 1:-1], x[:, 1:-1, :-2, 1:-1], x[:, 1:-1, 1:-1, :-2]
    d, e, f = x[:, 2:, 1:-1, 1:-1], x[:, 1:-1, 2:, 1:-1], x[:, 1:-1, 1:-1, 2:]
    return (a + b + c + d + e + f + x[:, 1:-1, 1:-1, 1:-1]) / 7


def logits(w: Any, x: Any) -> Any:
    """Which voxels belong to a ball, by their values at three scales."""
    y, z = smooth(x), smooth(smooth(x))
    return w[0] * x[:, 2:-2, 2:-2, 2:-2] + w[1] * y[:, 1:-1, 1:-1, 1:-1] + w[2] * z + w[3]


def loss(w: Any, x: Any, y: Any) -> Any:
    z = logits(w, x)
    return (ost.logaddexp(0.0, z) - z * y[:, 2:-2, 2:-2, 2:-2]).mean()


@ost.compile
def step(w: Any, x: Any, y: Any) -> Any:
    value, slope = ost.value_and_grad(loss)(w, x, y)
    return w - 2.0 * slope, value, ((logits(w, x) > 0) == (y[:, 2:-2, 2:-2, 2:-2] > 0)).mean()


def main(count: int = 8, size: int = 64, epochs: int = 12, workers: Any = None) -> list[float]:
    """The share of voxels that are named right, in the last batch of each epoch."""
    w, found = ost.zeros((4,), dtype=ost.float32), []
    with tempfile.TemporaryDirectory() as folder, ost.connect(workers=workers):
        pipe = ost.io.arrays(write_volumes(folder, count, size)).shuffle(seed=1).random_flip3d()
        pipe = pipe.normalize3d(120.0, 60.0).batch(2, split="depth", halo=1)
        for epoch in range(epochs):
            for batch in pipe.epoch(epoch):
                w, value, right = step(w, batch["volume"], batch["mask"])
            found.append(float(right))
            print(f"epoch {epoch + 1}: loss {float(value):.3f}, {found[-1]:.1%} right")
        print(f"volumes of {batch['volume'].shape}: {batch['volume'].layout}")
    return found


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
