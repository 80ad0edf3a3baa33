"""JPEG files as photographs are: what pipes of images are measured with."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from .workload import SYSTEMS, Numbers, System, scaled

HEIGHT, WIDTH, SIZE, BATCH = 375, 500, 224, 128
IMAGES = scaled(512, BATCH)  # files
DIFFERENT = 64  # of them; the others are copies, for other files
AGAIN = 100_000  # an epoch has each file many times, so that no sample holds the end of one
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photograph(k: int) -> Numbers:
    """Brightness and colours with a spectrum of 1/f, and a little noise."""
    rng = np.random.default_rng(k)
    f = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    spectrum = 1 / np.maximum(f, 1 / WIDTH)

    def field() -> Numbers:
        phases = np.exp(2j * np.pi * rng.random(f.shape))
        made = np.fft.irfft2(spectrum * phases, s=(HEIGHT, WIDTH))
        return made / made.std()

    light = field()
    x = np.stack([0.9 * light + 0.3 * field() for _ in range(3)], -1) * 50 + 118
    return np.clip(x + rng.normal(0, 4, (HEIGHT, WIDTH, 1)), 0, 255).astype(np.uint8)


@functools.cache
def folder() -> Path:
    """Files of this process and its children, or of the run that is asked to keep them."""
    kept = os.environ.get("BENCHMARK_IMAGES")
    home = Path(kept or tempfile.gettempdir()) / f"ostinato-images-{IMAGES}-{os.getuid()}"
    if not (home / "complete").exists():
        import cv2

        pictures = [cv2.cvtColor(photograph(k), cv2.COLOR_RGB2BGR) for k in range(DIFFERENT)]
        coded = [cv2.imencode(".jpg", x, [cv2.IMWRITE_JPEG_QUALITY, 90])[1] for x in pictures]
        for k in range(IMAGES):
            place = home / f"class{k % 8}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{k:05d}.jpg").write_bytes(coded[k % DIFFERENT].tobytes())
        (home / "complete").touch()
    return home


def files() -> list[str]:
    return sorted(map(str, folder().rglob("*.jpg")))


def label(path: str) -> int:
    return int(os.path.basename(os.path.dirname(path))[5:])


# -- who reads them --------------------------------------------------------------------------
PYTHON = "pip install simplejpeg opencv-python-headless"
HAND = System(("simplejpeg", "cv2"), PYTHON)
OURS = replace(
    SYSTEMS["ostinato"],
    modules=("simplejpeg", "cv2", "PIL"),
    install="pip install 'ostinato[feed]'",
)
FEEDS: Mapping[str, System] = {
    "ostinato": OURS,
    "one core": OURS,
    "threads": HAND,
    "torch": System(("torch", "simplejpeg", "cv2"), f"{PYTHON} torch"),
    "tensorflow": System(("tensorflow",), "pip install tensorflow-cpu"),
    "grain": System(("grain", "simplejpeg", "cv2"), f"{PYTHON} grain"),
    "spdl": System(("spdl.pipeline", "simplejpeg", "cv2"), f"{PYTHON} spdl"),
}
