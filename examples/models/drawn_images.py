"""JPEG files of drawn patterns, in a folder for each kind: for whoever has no photographs at hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

DRAWN: Any = {"rings": np.hypot, "stripes": lambda y, x: x, "bows": lambda y, x: x + y * y / 40}


def draw(folder: Path, count: int, seed: int) -> None:
    """Patterns in any place and colours."""
    r = np.random.default_rng(seed)
    for kind, across in DRAWN.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for k in range(count):
            y, x = np.mgrid[:80, :100] - r.uniform(20, 60, (2, 1, 1))
            light = 0.5 + 0.5 * np.sin(across(y, x) / r.uniform(1.5, 3))
            (a, b), noise = r.uniform(0, 255, (2, 3)), r.normal(0, 8, (80, 100, 3))
            picture = np.clip(a + light[..., None] * (b - a) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(picture).save(folder / kind / f"{k:04}.jpg", quality=90)


def drawn(folder: Path, count: int) -> Path:
    """The folder, with `train` and `test` in it; only once."""
    for part, many in (("test", count // 4), ("train", count)):
        if not (folder / part).exists():  # for whoever stopped it while it drew
            draw(folder / "half", many, many)
            (folder / "half").rename(folder / part)
    return folder


def images_in(folder: Path | None, to: Path, count: int) -> tuple[Path, list[str]]:
    """A folder that was given, or one with drawn images, and the names of what is in its `train`."""
    folder = folder or drawn(to, count)
    if not (folder / "train").is_dir():
        sys.exit(
            f"no folder {folder}/train: images are looked for in {folder}/train/KIND, and .../test/KIND"
        )
    return folder, sorted(p.name for p in (folder / "train").iterdir() if p.is_dir())
