"""Files of images to a trained network: a pipe reads, decodes and augments beside the compiled steps."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import ostinato as ost

KINDS = ("rings", "stripes", "waves")
SIDE, PATCH = 64, 8


def draw(kind: str, r: np.random.Generator) -> Any:
    """A picture of 100 x 80 pixels: one of three patterns, in any colours, somewhere, with noise."""
    y, x = np.mgrid[:80, :100] - r.uniform(20, 60, (2, 1, 1))
    period, turn = r.uniform(10, 20), r.uniform(0, np.pi)
    across = x * np.cos(turn) + y * np.sin(turn)
    if kind == "rings":
        across = np.hypot(x, y)
    elif kind == "waves":
        across = across + 12 * np.sin((y * np.cos(turn) - x * np.sin(turn)) / 8)
    light = 0.5 + 0.5 * np.sin(2 * np.pi * across / period)
    ends = r.uniform(0, 255, (2, 3))
    picture = ends[0] + light[..., None] * (ends[1] - ends[0]) + r.normal(0, 8, (80, 100, 3))
    return np.clip(picture, 0, 255).astype(np.uint8)


def write_images(folder: Path, each: int) -> None:
    """JPEG files, in a folder for each kind."""
    from PIL import Image

    r = np.random.default_rng(0)
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
        for k in range(each):
            Image.fromarray(draw(kind, r)).save(folder / kind / f"{k:04}.jpg", quality=90)


def network(weights: Any, x: Any) -> Any:
    """What each patch of 8 x 8 pixels looks like, what patches beside it do, and what that is."""
    n = SIDE // PATCH
    x = x.reshape((-1, 3, n, PATCH, n, PATCH)).transpose(0, 2, 4, 1, 3, 5)
    x = ost.nn.gelu(x.reshape((-1, n * n, 3 * PATCH * PATCH)) @ weights["look"])
    x = x + ost.nn.gelu(weights["mix"] @ ost.nn.layer_norm(x))
    return ost.nn.layer_norm(x).mean(1) @ weights["name"]


def step(weights: Any, state: Any, x: Any, y: Any) -> Any:
    def loss(weights: Any) -> Any:
        return ost.nn.cross_entropy(network(weights, x), y)

    value, slopes = ost.value_and_grad(loss)(weights)
    mean, square, count = state  # Adam
    count = count + 1
    mean = ost.tree_map(lambda m, g: 0.9 * m + 0.1 * g, mean, slopes)
    square = ost.tree_map(lambda s, g: 0.99 * s + 0.01 * g * g, square, slopes)
    rate = 2e-3 * ost.sqrt(1 - 0.99**count) / (1 - 0.9**count)
    weights = ost.tree_map(
        lambda w, m, s: w - rate * m / (ost.sqrt(s) + 1e-8), weights, mean, square
    )
    return weights, (mean, square, count), value


def main(each: int = 300, epochs: int = 20, workers: Any = None, folder: str = "") -> list[float]:
    """The share of images that were not trained with and are named right, after each epoch."""
    with tempfile.TemporaryDirectory() as temporary, ost.connect(workers=workers):
        root = Path(folder or temporary)
        write_images(root / "train", each)
        write_images(root / "test", each // 4)
        mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
        train = (
            ost.io.images(str(root / "train/**/*.jpg"), labels="folder")
            .shuffle(seed=7)
            .decode()
            .random_resized_crop(SIDE, scale=(0.5, 1.0))
            .random_flip()
            .color_jitter(0.4)
            .normalize(mean, std)
            .batch(60)
        )
        test = (
            ost.io.images(str(root / "test/**/*.jpg"), labels="folder")
            .decode()
            .resize(72)
            .center_crop(SIDE)
            .normalize(mean, std)
            .batch(60, tail="keep")
        )
        r = np.random.default_rng(1)
        shapes = {"look": (192, 128), "mix": (64, 64), "name": (128, len(KINDS))}
        weights = {
            name: ost.asarray(r.normal(0, size[0] ** -0.5, size).astype(np.float32))
            for name, size in shapes.items()
        }
        zeros = ost.tree_map(ost.zeros_like, weights)
        state = (zeros, ost.tree_map(ost.zeros_like, weights), ost.asarray(np.float32(0)))
        run = ost.compile(donate=("weights", "state"))(step)
        guess = ost.compile(lambda weights, x: network(weights, x).argmax(1))
        right = []
        for epoch in range(epochs):
            for x, y in train.epoch(epoch):
                weights, state, loss = run(weights, state, x, y)
            hits = [int((guess(weights, x) == y).sum()) for x, y in test.epoch()]
            right.append(sum(hits) / (len(KINDS) * (each // 4)))
            print(f"epoch {epoch + 1:>2}: loss {float(loss):.3f}, {right[-1]:.0%} right")
    return right


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
