"""Kaldi's TDNN-F (mini_librispeech, 1j): dense layers over two frames each, of which every first one goes
through a bottleneck that is kept semi-orthogonal, so that the product stays well behaved."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from training import train

import ostinato as ost
from ostinato import nn

STRIDES = (1, 1, 1, 0, 3, 3, 3, 3, 3, 3, 3, 3)


def beside(x: Any, stride: int) -> Any:
    """Each frame of (samples, frames, features), and the one so many later."""
    return ost.concat([x[:, :-stride], x[:, stride:]], axis=-1) if stride else x


def norm(features: int) -> nn.BatchNorm:
    return nn.BatchNorm(features, affine=False, layout="NWC")


class Factored(nn.Layer):
    """A layer over frames t - s, t and t + s, in two factors, beside which its operand goes on."""

    def __init__(self, features: int, bottleneck: int, stride: int, rate: float = 0.0) -> None:
        frames = 2 if stride else 1
        self.linear = nn.Linear(frames * features, bottleneck, bias=False)
        self.affine = nn.Linear(frames * bottleneck, features)
        self.norm, self.drop = norm(features), nn.Dropout(rate)
        self.stride = stride

    def forward(self, x: Any) -> Any:
        y = self.affine(beside(self.linear(beside(x, self.stride)), self.stride))
        return (
            self.drop(self.norm(nn.relu(y))) + 0.66 * x[:, self.stride : x.shape[1] - self.stride]
        )


class Head(nn.Layer):
    def __init__(self, inputs: int, features: int, outputs: int) -> None:
        self.affine, self.norm = nn.Linear(inputs, features), norm(features)
        self.linear, self.norm_2 = nn.Linear(features, inputs, bias=False), norm(inputs)
        self.out = nn.Linear(inputs, outputs)

    def forward(self, x: Any) -> Any:
        return self.out(self.norm_2(self.linear(self.norm(nn.relu(self.affine(x))))))


class TDNNF(nn.Layer):
    """Scores of sounds for each third of (samples, frames, features), of which some at both ends are context.
    Of two heads one is for the loss of sequences, and one for the cross-entropy that steadies it."""

    def __init__(
        self,
        inputs: int = 220,
        outputs: int = 2336,
        features: int = 768,
        bottleneck: int = 96,
        last: int = 192,
        strides: tuple[int, ...] = STRIDES,
        heads: int = 2,
        every: int = 3,
    ) -> None:
        self.first, self.norm = nn.Linear(inputs, features), norm(features)
        self.layers = nn.Sequential(*[Factored(features, bottleneck, s) for s in strides])
        self.last = nn.Linear(features, last, bias=False)
        self.heads = [Head(last, features, outputs) for _ in range(heads)]
        self.context, self.every = sum(strides), every

    def forward(self, x: Any) -> Any:
        y = self.layers(self.norm(nn.relu(self.first(x))))
        made = [head(self.last(y[:, :: self.every])) for head in self.heads]
        return made[0] if len(made) == 1 else tuple(made)


def constrained(weight: Any) -> Any:
    """A step of a matrix with short rows towards a multiple of one whose columns are orthonormal, as Kaldi
    does every fourth time."""
    m = weight.T if weight.shape[0] > weight.shape[1] else weight
    p = m @ m.T
    scale = ost.sum(p * p) / ost.linalg.trace(p)
    off = ost.sum(p * p) * p.shape[0] / ost.linalg.trace(p) ** 2
    rate = ost.where(off > 1.1, 0.25, ost.where(off > 1.02, 0.5, 1.0)) / 8
    m = m - 4 * (rate / scale) * (p - scale * ost.eye(p.shape[0], dtype=m.dtype)) @ m
    return m.T if weight.shape[0] > weight.shape[1] else m


def main(features: int = 32, steps: int = 20) -> list[float]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, (4, 20))
    means = rng.normal(size=(6, 20))
    x = np.pad(means[labels.repeat(3, 1)], [(0, 0), (5, 5), (0, 0)]) + rng.normal(size=(4, 70, 20))
    model = TDNNF(20, 6, features, 8, 16, (1, 1, 0, 3), heads=1).init(seed=1)
    return train(model, x.astype(np.float32), labels, steps=steps, rate=0.1)[1]


if __name__ == "__main__":
    print(nn.summary(TDNNF(), (1, 150, 220)))
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32)
