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
from sounds import HOP, LETTERS, RATE, speech
from tdnnf import TDNNF, constrained

FFT, MELS, STRIDES = 256, 24, (1, 1, 0, 3)


def features(waves: Any) -> Any:
    """The logarithm of how loud each mel band is: (samples, frames, bands)."""
    loud = ost.signal.mel_spectrogram(waves, RATE, n_fft=FFT, hop=HOP, mels=MELS)
    return ost.swapaxes(ost.log(loud + 1e-3), -1, -2)


@ost.compile(donate=("model",))
def tightened(model: Any) -> Any:
    """The model with bottlenecks that are nearer to semi-orthogonal ones."""
    nearer = [(x, constrained(x.linear.weight)) for x in model.layers.layers]
    layers = [x.replace(linear=x.linear.replace(weight=w)) for x, w in nearer]
    return model.replace(layers=model.layers.replace(layers=tuple(layers)))


def main(steps: int = 60, samples: int = 16, frames: int = 90) -> tuple[list[float], float]:
    rng, rule = np.random.default_rng(0), ost.optim.Adam(3e-3)
    model = TDNNF(MELS, len(LETTERS), 48, 16, 24, STRIDES, heads=1).init(seed=1)
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
    for what, said in (("said ", labels[0, inside]), ("heard", found[0])):
        print(what, "".join(LETTERS[k] for k in said))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {right:.0%} of new frames are right; {step}")
    return losses, right


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
