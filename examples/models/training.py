"""A training step of any model, with momentum, and images and volumes that are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ostinato as ost
from ostinato import nn


def step_of(loss: Callable[[Any, Any], Any], rate: float = 0.01, momentum: float = 0.9) -> Any:
    """A compiled step: `loss` is of the model's result and the targets."""

    @ost.compile(donate=("model", "momenta"))
    def step(model: Any, momenta: Any, x: Any, y: Any, key: int) -> Any:
        def value_of(weights: Any) -> Any:
            made, new = nn.combine(weights, model).apply(x, key=key)
            return loss(made, y), new

        weights = nn.parameters(model)
        (value, model), slopes = ost.value_and_grad(value_of, has_aux=True)(weights)
        momenta = ost.tree_map(lambda m, g: momentum * m + g, momenta, slopes)
        weights = ost.tree_map(lambda w, m: w - rate * m, weights, momenta)
        return nn.combine(weights, model), momenta, value

    return step


def train(
    model: Any,
    x: Any,
    y: Any,
    loss: Callable[[Any, Any], Any] = nn.cross_entropy,
    steps: int = 20,
    rate: float = 0.01,
    momentum: float = 0.9,
) -> tuple[Any, list[float]]:
    """The model after some steps on one batch, and the losses on the way."""
    step, losses = step_of(loss, rate, momentum), []
    momenta = ost.tree_map(ost.zeros_like, nn.parameters(model))
    x, y = ost.asarray(x), ost.asarray(y)
    for key in range(steps):
        model, momenta, value = step(model, momenta, x, y, key)
        losses.append(float(value))
    print(f"{type(model).__name__}: loss {losses[0]:.3f} -> {losses[-1]:.3f}; {step}")
    return model, losses


def images(
    count: int, channels: int, *space: int, classes: int = 10, seed: int = 0
) -> tuple[Any, Any]:
    """Waves whose direction and length tell the class, with noise; and the classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    places = np.stack(np.meshgrid(*[np.linspace(0, 1, n) for n in space], indexing="ij"))
    waves = rng.normal(size=(classes, channels, len(space))) * 15
    phase = np.einsum("kcd,d...->kc...", waves, places)[labels]
    noise = rng.normal(size=(count, channels, *space)) * 0.3
    return (np.sin(phase) + noise).astype(np.float32), labels
