"""Files of images to a trained network: a pipe reads, decodes and augments beside compiled steps."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import ostinato as ost

KINDS: Any = {"rings": np.hypot, "stripes": lambda y, x: x, "bows": lambda y, x: x + y * y / 40}


def write_images(folder: Path, count: int, seed: int) -> str:
    """JPEG files of patterns in any place and colours, in a folder for each kind; where they are."""
    r = np.random.default_rng(seed)
    for k in range(count):
        for kind, across in KINDS.items():
            y, x = np.mgrid[:80, :100] - r.uniform(20, 60, (2, 1, 1))
            light = 0.5 + 0.5 * np.sin(across(y, x) / r.uniform(1.5, 3))
            (a, b), noise = r.uniform(0, 255, (2, 3)), r.normal(0, 8, (80, 100, 3))
            picture = np.clip(a + light[..., None] * (b - a) + noise, 0, 255).astype(np.uint8)
            (folder / kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(folder / kind / f"{k:04}.jpg", quality=90)
    return str(folder)


def network(w: Any, x: Any) -> Any:
    """What each patch of 8 x 8 pixels looks like, what patches beside it do, and what that is."""
    x = x.reshape((-1, 3, 8, 8, 8, 8)).transpose(0, 2, 4, 1, 3, 5).reshape((-1, 64, 192))
    x = ost.nn.gelu(x @ w["look"])
    x = x + ost.nn.gelu(w["mix"] @ ost.nn.layer_norm(x))
    return ost.nn.layer_norm(x).mean(1) @ w["name"]


@ost.compile(donate=("w", "m"))
def step(w: Any, m: Any, x: Any, y: Any) -> Any:
    loss, slopes = ost.value_and_grad(lambda w: ost.nn.cross_entropy(network(w, x), y))(w)
    m = ost.tree_map(lambda m, g: 0.9 * m + g, m, slopes)
    return ost.tree_map(lambda w, m: w - 0.05 * m, w, m), m, loss


def main(count: int = 200, epochs: int = 10, workers: Any = None, to: str = "sheet.png") -> Any:
    """The share of images that were not trained with and are named right, after each epoch."""
    right, r = [], np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder, ost.connect(workers=workers):
        files = (write_images(Path(folder, str(n)), n, n) for n in (count, count // 4))
        train, test = (ost.io.images(f, labels="folder").decode() for f in files)
        train = train.shuffle(seed=7).random_resized_crop(64, scale=(0.5, 1.0)).random_flip()
        train, test = (p.normalize(0.5, 0.25).batch(50) for p in (train, test.center_crop(64)))
        shapes = {"look": (192, 128), "mix": (64, 64), "name": (128, len(KINDS))}
        w = {n: ost.asarray(r.normal(0, s[0] ** -0.5, s).astype("f4")) for n, s in shapes.items()}
        m = ost.tree_map(ost.zeros_like, w)
        for epoch in range(epochs):
            for x, y in train.epoch(epoch, progress=True):
                w, m, loss = step(w, m, x, y)
            hits = [float((network(w, x).argmax(1) == y).mean()) for x, y in test.epoch()]
            right.append(sum(hits) / len(hits))
            print(f"epoch {epoch}: loss {float(loss):.3f}, {right[-1]:.0%} right")
        print(f"{train.explain()}\nsome images as they come: {train.preview(8, to)}")
    return right


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
