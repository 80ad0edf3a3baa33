"""A training loop of PyTorch's, fed by a pipe: threads read, decode and augment beside its steps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import ostinato as ost


def write_images(folder: Path, count: int) -> None:
    """JPEG files of noise, a little brighter in one colour, in a folder for each."""
    r = np.random.default_rng(0)
    for channel, kind in enumerate(("reds", "greens", "blues")):
        (folder / kind).mkdir()
        for k in range(count):
            picture = r.normal(110, 40, (96, 128, 3))
            picture[..., channel] += 10
            small = np.clip(picture, 0, 255).astype(np.uint8)
            Image.fromarray(small).save(folder / kind / f"{k:04}.jpg", quality=90)


def feed(folder: str) -> ost.io.Pipe:
    """Tensors share the memory of the batches that threads made."""
    pipe = ost.io.images(folder, labels="folder").shuffle(seed=7).decode()
    pipe = pipe.random_resized_crop(64, scale=(0.3, 1.0)).random_flip().normalize(0.45, 0.25)
    return pipe.batch(32).to("torch")


def train(torch: Any, pipe: ost.io.Pipe, epochs: int) -> list[float]:
    """The share of images that were named right in each epoch, before the step that saw them."""
    torch.manual_seed(0)
    nn, found = torch.nn, list[float]()
    body = nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model = nn.Sequential(*body, nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for epoch in range(epochs):
        right = seen = 0
        for x, y in pipe.epoch(epoch):
            scores = model(x)
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, y).backward()
            optimizer.step()
            right, seen = right + int((scores.argmax(1) == y).sum()), seen + len(y)
        found.append(right / seen)
        print(f"epoch {epoch + 1}: {found[-1]:.0%} right")
    print(pipe.explain())
    return found


def main(count: int = 200, epochs: int = 6) -> list[float]:
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        print("this loop is PyTorch's: pip install torch")
        return []
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), count)
        return train(torch, feed(folder), epochs)


if __name__ == "__main__":
    main()
