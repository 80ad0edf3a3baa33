"""Images that tests make, in files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(k: int, height: int = 48, width: int = 64, channels: int = 3) -> np.ndarray[Any, Any]:
    """Smooth, so that a JPEG file keeps most of it; each k another."""
    rng = np.random.default_rng(k)
    small = rng.integers(0, 256, (6, 8, channels)).astype(np.uint8)
    planes = [
        np.asarray(Image.fromarray(small[..., c]).resize((width, height), Image.Resampling.BICUBIC))
        for c in range(channels)
    ]
    return np.stack(planes, -1)


def encoded(x: np.ndarray[Any, Any], form: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(x[..., 0] if x.ndim == 3 and x.shape[2] == 1 else x).save(out, form, **options)
    return out.getvalue()


def folder(root: Path, count: int = 24, classes: int = 3, **sizes: int) -> Path:
    """JPEG files in folders called a, b, c, ..."""
    for k in range(count):
        home = root / "abcdefgh"[k % classes]
        home.mkdir(parents=True, exist_ok=True)
        (home / f"{k:03d}.jpg").write_bytes(encoded(picture(k, **sizes), quality=90))
    return root
