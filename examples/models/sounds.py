"""Made speech: vowels by two resonances of a voice, a hiss, and silence."""

from __future__ import annotations

from typing import Any

import numpy as np

RATE, HOP = 8000, 80
VOWELS = {"a": (730, 1090), "e": (530, 1840), "i": (270, 2290), "o": (570, 840), "u": (300, 870)}
LETTERS = [*VOWELS, "s", " "]


def sound(letter: str, count: int, rng: Any) -> Any:
    """So many samples of a voice of some pitch that says a letter: its harmonics near two resonances."""
    noise = rng.normal(size=count)
    if letter == "s":
        return 0.1 * np.diff(noise, prepend=0)
    if letter == " ":
        return 0.001 * noise
    t, pitch = np.arange(count) / RATE, rng.uniform(90, 220)
    harmonics = np.arange(1, int(3500 / pitch)) * pitch
    loud = sum(1 / (1 + ((harmonics - f * rng.normal(1, 0.03)) / 80) ** 2) for f in VOWELS[letter])
    phases = 2 * np.pi * harmonics[:, None] * t + rng.uniform(0, 6, (len(harmonics), 1))
    return 0.2 * (loud[:, None] * np.sin(phases)).sum(0) + 0.005 * noise


def speech(samples: int, frames: int, rng: Any) -> tuple[Any, Any]:
    """Waves, and which letter each frame is."""
    waves, labels = [], []
    for _ in range(samples):
        wave, said = np.zeros(0), np.zeros(0, int)
        while len(said) < frames:
            k, length = rng.integers(len(LETTERS)), rng.integers(8, 20)
            wave = np.append(wave, sound(LETTERS[k], length * HOP, rng))
            said = np.append(said, np.full(length, k))
        waves.append(wave[: (frames - 1) * HOP + 1])
        labels.append(said[:frames])
    return np.stack(waves).astype(np.float32), np.stack(labels)
