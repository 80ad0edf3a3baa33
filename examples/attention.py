"""Attention of several heads learns to look back: each position copies what stood three before it."""

from __future__ import annotations

import sys
from typing import Any

import ostinato as ost

LENGTH, WIDTH, HEADS, BACK = 16, 32, 4, 3


def attention(q: Any, k: Any, v: Any) -> Any:
    """A mean of the values so far, weighted by how their keys match."""
    scores = q @ ost.matrix_transpose(k) / q.shape[-1] ** 0.5
    at = ost.arange(q.shape[-2])
    scores = ost.where(at[:, None] >= at, scores, -ost.inf)
    return ost.nn.softmax(scores, axis=-1) @ v


def layer(weights: Any, x: Any) -> Any:
    def heads(y: Any) -> Any:
        return ost.permute_dims(ost.reshape(y, (*y.shape[:2], HEADS, -1)), (0, 2, 1, 3))

    found = attention(*(heads(x @ weights[name]) for name in "qkv"))
    return ost.reshape(ost.permute_dims(found, (0, 2, 1, 3)), x.shape) @ weights["out"]


def loss(weights: Any, x: Any, wanted: Any) -> Any:
    return ost.nn.mse_loss(layer(weights, x + weights["place"])[:, BACK:], wanted[:, :-BACK])


@ost.compile(donate=("weights", "momenta"))
def step(weights: Any, momenta: Any, x: Any, rate: float) -> Any:
    value, slopes = ost.value_and_grad(loss)(weights, x, x)
    momenta = ost.tree_map(lambda m, g: 0.9 * m + g, momenta, slopes)
    return ost.tree_map(lambda w, m: w - rate * m, weights, momenta), momenta, value


def main(batch: int = 128, steps: int = 400, workers: int | None = None) -> list[float]:
    """The loss along the way."""
    with ost.connect(workers=workers):
        x = ost.random.normal((batch, LENGTH, WIDTH), seed=1, split=0)
        shapes = dict.fromkeys(("q", "k", "v", "out"), (WIDTH, WIDTH))
        shapes["place"] = (LENGTH, WIDTH)
        weights = {
            name: ost.random.normal(shape, std=WIDTH**-0.5, seed=2 + k)
            for k, (name, shape) in enumerate(shapes.items())
        }
        momenta, losses = ost.tree_map(ost.zeros_like, weights), []
        for _ in range(steps):
            weights, momenta, value = step(weights, momenta, x, 0.5)
            losses.append(float(value))
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {step}")
        return losses


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
