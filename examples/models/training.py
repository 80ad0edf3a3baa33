"""Training steps of any model, with momentum or an optimizer, and images and volumes that are made."""

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


def told(scores: Any, y: Any) -> dict[str, Any]:
    """How well classes are named."""
    return {"loss": nn.cross_entropy(scores, y), "right": (scores.argmax(1) == y).mean()}


def classifying(optimizer: Any) -> Any:
    """A step for `ost.fit`, of a model and the optimizer's state, by batches of images and classes."""

    def step(state: Any, batch: Any) -> Any:
        model, (x, y) = state["model"], batch

        def loss(weights: Any) -> Any:
            scores, new = nn.combine(weights, model).apply(x)
            made = told(scores, y)
            return made["loss"], (new, made)

        weights = nn.parameters(model)
        slopes, (new, made) = ost.grad(loss, has_aux=True)(weights)
        weights, rest = optimizer.update(weights, slopes, state["optimizer"])
        return {"model": nn.combine(weights, new), "optimizer": rest}, made

    return step


def judge(state: Any, batch: Any) -> dict[str, Any]:
    """How classes of what was not trained with are named."""
    x, y = batch
    return told(state["model"](x), y)


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
