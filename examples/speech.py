"""From sounds to letters: a log-mel front end and a small TDNN-F (models/tdnnf.py) learn which of five
vowels, a hiss or silence each moment of made speech is. The front end is a part of the training step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import ostinato as ost
from ostinato import nn

sys.path.append(str(Path(__file__).parent / "models"))
from tdnnf import TDNNF, constrained

RATE, HOP, FFT, MELS = 8000, 80, 256, 24
STRIDES = (1, 1, 0, 3)
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


def features(waves: Any) -> Any:
    """The logarithm of how loud each mel band is: (samples, frames, bands)."""
    loud = ost.signal.mel_spectrogram(waves, RATE, n_fft=FFT, hop=HOP, mels=MELS)
    return ost.swapaxes(ost.log(loud + 1e-3), -1, -2)


@ost.compile(donate=("model",))
def tightened(model: Any) -> Any:
    """The model with bottlenecks that are nearer to semi-orthogonal ones."""
    layers = [
        x.replace(linear=x.linear.replace(weight=constrained(x.linear.weight)))
        for x in model.layers.layers
    ]
    return model.replace(layers=model.layers.replace(layers=tuple(layers)))


def main(steps: int = 60, samples: int = 16, frames: int = 90) -> tuple[list[float], float]:
    rng = np.random.default_rng(0)
    model = TDNNF(MELS, len(LETTERS), 48, 16, 24, STRIDES, heads=1).init(seed=1)
    rule = ost.optim.Adam(3e-3)
    inside = slice(sum(STRIDES), frames - sum(STRIDES), 3)  # what is no context

    @ost.compile(donate=("model", "state"))
    def step(model: Any, state: Any, waves: Any, labels: Any) -> Any:
        def loss(weights: Any) -> Any:
            made, new = nn.combine(weights, model).apply(features(waves))
            return nn.cross_entropy(made, labels), new

        weights = nn.parameters(model)
        (value, model), slopes = ost.value_and_grad(loss, has_aux=True)(weights)
        weights, state = rule.update(weights, ost.optim.clip_by_norm(slopes, 1.0), state)
        return nn.combine(weights, model), state, value

    state, losses = rule.init(nn.parameters(model)), []
    for k in range(steps):
        waves, labels = speech(samples, frames, rng)
        model, state, value = step(model, state, waves, labels[:, inside])
        losses.append(float(value))
        if k % 4 == 3:
            model = tightened(model)
    waves, labels = speech(8, frames, rng)
    found = np.asarray(model(features(waves))).argmax(-1)
    right = float((found == labels[:, inside]).mean())
    print("said ", "".join(LETTERS[k] for k in labels[0, inside]))
    print("heard", "".join(LETTERS[k] for k in found[0]))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {right:.0%} of new frames are right; {step}")
    return losses, right


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
