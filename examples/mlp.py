"""Training a network on two spirals. The learning rate changes each step; the plan stays the same."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import ostinato as ost

SIZES = (2, 64, 64, 2)


def forward(layers: Any, x: Any) -> Any:
    for layer in layers[:-1]:
        x = ost.tanh(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def loss(layers: Any, x: Any, y: Any) -> Any:
    return ost.nn.cross_entropy(forward(layers, x), y)


@ost.compile(donate=("layers", "momenta"))
def step(layers: Any, momenta: Any, x: Any, y: Any, rate: float) -> Any:
    value, slopes = ost.value_and_grad(loss)(layers, x, y)
    momenta = ost.tree_map(lambda m, g: 0.9 * m + g, momenta, slopes)
    return ost.tree_map(lambda p, m: p - rate * m, layers, momenta), momenta, value


def spirals(n: int) -> tuple[Any, Any]:
    t = ost.random.uniform((n,), low=0.3, high=3.0, seed=1)
    y = ost.random.integers(0, 2, (n,), seed=2)
    angle = t * 3.0 + 3.14159 * y
    x = ost.stack([t * ost.cos(angle), t * ost.sin(angle)], axis=1)
    return x + ost.random.normal((n, 2), std=0.05, seed=3), y


def main(rows: int = 2000, steps: int = 400, workers: Any = None) -> tuple[list[float], float]:
    """The loss along the way, and the share of points that the network gets right."""
    with ost.connect(workers=workers):
        x, y = (v.resplit(0) for v in spirals(rows))
        weights = [
            ost.random.normal((m, n), std=m**-0.5, seed=k)
            for k, (m, n) in enumerate(pairwise(SIZES))
        ]
        layers: Any = [{"w": w, "b": ost.zeros(w.shape[1], dtype=w.dtype)} for w in weights]
        momenta = ost.tree_map(ost.zeros_like, layers)
        losses = []
        for k in range(steps):
            layers, momenta, value = step(layers, momenta, x, y, 0.3 / (1 + k / 200))
            losses.append(float(value))
        right = float((forward(layers, x).argmax(1) == y).mean())
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {right:.1%} right; {step}")
        return losses, right


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
