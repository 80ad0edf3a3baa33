"""A training step of one layer whose weights are given away, as tests of workers run it."""

from __future__ import annotations

from typing import Any

import numpy as np

import ostinato as ost


def loss(w: Any, x: Any, y: Any) -> Any:
    return ((ost.tanh(x @ w) - y) ** 2).mean()


def train(w: Any, x: Any, y: Any, steps: int) -> tuple[Any, list[float]]:
    """The weights then, and the losses on the way."""

    @ost.compile(donate="w")
    def step(w: Any, x: Any, y: Any) -> tuple[Any, Any]:
        value, slope = ost.value_and_grad(loss)(w, x, y)
        return w - 0.1 * slope, value

    values = []
    for _ in range(steps):
        w, value = step(w, x, y)
        values.append(float(value))
    return np.asarray(w), values
