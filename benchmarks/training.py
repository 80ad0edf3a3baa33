"""A training step of a network: 784 - 528 ... 528 - 10, a batch of 128, gradient descent."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from .peers import torch_compiled, torch_host, torch_tensor
from .workload import Case, Numbers, Workload

BATCH, RATE, STEPS = 128, 0.01, 3
Layers = list[tuple[Numbers, Numbers]]


def sizes(hidden: int) -> tuple[int, ...]:
    return (784, *(528,) * hidden, 10)


@functools.cache
def batch() -> tuple[Numbers, Numbers]:
    rng = np.random.default_rng(11)
    return rng.standard_normal((BATCH, 784), np.float32), rng.integers(0, 10, BATCH)


def start(hidden: int) -> Layers:
    rng = np.random.default_rng(12)
    return [
        (
            rng.standard_normal((m, n), np.float32) * np.float32((2 / m) ** 0.5),
            np.zeros(n, np.float32),
        )
        for m, n in pairwise(sizes(hidden))
    ]


def case(layers: Any, step: Callable[[Any], Any], host: Callable[[Any], Any]) -> Case:
    """Steps that go on from what the last one made; the answer is what the first few make."""
    state = layers

    def loop(n: int) -> None:
        nonlocal state
        for _ in range(n):
            state = step(state)
        host(state[-1][1])  # waits for the end

    def answer() -> Any:
        loop(STEPS)
        return np.concatenate([np.asarray(host(p)).reshape(-1) for pair in state for p in pair])

    return Case(answer, loop)


def numpy_step(layers: Layers, x: Numbers, y: Numbers) -> Layers:
    """By hand."""
    values = [x]
    for w, b in layers[:-1]:
        values.append(np.maximum(values[-1] @ w + b, 0))
    w, b = layers[-1]
    z = values[-1] @ w + b
    g = np.exp(z - z.max(1, keepdims=True))
    g /= g.sum(1, keepdims=True)
    g[np.arange(len(y)), y] -= 1
    g /= len(y)
    made = []
    for (w, b), value in zip(reversed(layers), reversed(values), strict=True):
        made.append((w - RATE * (value.T @ g), b - RATE * g.sum(0)))
        if value is not x:
            g = (g @ w.T) * (value > 0)
    return made[::-1]


def numpy_case(hidden: int) -> Case:
    x, y = batch()
    return case(start(hidden), lambda layers: numpy_step(layers, x, y), np.asarray)


def ostinato_case(hidden: int, precision: str = "as-written") -> Case:
    import ostinato as ost

    x, y = (ost.asarray(v) for v in batch())

    def loss(layers: Any, x: Any, y: Any) -> Any:
        for w, b in layers[:-1]:
            x = ost.nn.relu(x @ w + b)
        w, b = layers[-1]
        return ost.nn.cross_entropy(x @ w + b, y)

    @ost.compile(donate=("layers",), precision=precision)
    def step(layers: Any, x: Any, y: Any) -> Any:
        slopes = ost.grad(loss)(layers, x, y)
        return ost.tree_map(lambda p, g: p - RATE * g, layers, slopes)

    layers = ost.tree_map(ost.asarray, start(hidden))
    return case(layers, lambda layers: step(layers, x, y), np.asarray)


def jax_case(hidden: int) -> Case:
    import jax  # type: ignore[import-not-found, unused-ignore]

    x, y = (jax.device_put(v) for v in batch())

    def loss(layers: Any, x: Any, y: Any) -> Any:
        for w, b in layers[:-1]:
            x = jax.nn.relu(x @ w + b)
        w, b = layers[-1]
        logp = jax.nn.log_softmax(x @ w + b)
        return -jax.numpy.take_along_axis(logp, y[:, None], axis=1).mean()

    def step(layers: Any, x: Any, y: Any) -> Any:
        slopes = jax.grad(loss)(layers, x, y)
        return jax.tree.map(lambda p, g: p - RATE * g, layers, slopes)

    compiled = jax.jit(step, donate_argnums=0)
    layers = jax.tree.map(jax.device_put, start(hidden))
    return case(layers, lambda layers: compiled(layers, x, y), np.asarray)


def torch_case(hidden: int) -> Case:
    import torch  # type: ignore[import-not-found, unused-ignore]

    x, y = (torch_tensor(v) for v in batch())
    layers = [tuple(torch_tensor(v).requires_grad_() for v in pair) for pair in start(hidden)]
    descent = torch.optim.SGD([p for pair in layers for p in pair], lr=RATE)

    def loss(x: Any, y: Any) -> Any:
        for w, b in layers[:-1]:
            x = torch.relu(x @ w + b)
        w, b = layers[-1]
        return torch.nn.functional.cross_entropy(x @ w + b, y)

    compiled = torch_compiled(loss)

    def step(state: Any) -> Any:
        descent.zero_grad()
        compiled(x, y).backward()
        descent.step()
        return state

    return case(layers, step, torch_host)


def expected(hidden: int) -> Any:
    x, y = batch()
    layers = [(w.astype(np.float64), b.astype(np.float64)) for w, b in start(hidden)]
    for _ in range(STEPS):
        layers = numpy_step(layers, x.astype(np.float64), y)
    return np.concatenate([p.reshape(-1) for pair in layers for p in pair])


def mlp(hidden: int) -> Workload:
    weights = [m * n for m, n in pairwise(sizes(hidden))]
    mixed = {"ostinato/mixed_bf16": functools.partial(ostinato_case, hidden, "mixed_bf16")}
    return Workload(
        f"mlp{hidden}",
        f"a training step, batch {BATCH}, {hidden} hidden layers of 528",
        functools.partial(expected, hidden),
        {
            "ostinato": functools.partial(ostinato_case, hidden),
            "numpy": functools.partial(numpy_case, hidden),
            "jax": functools.partial(jax_case, hidden),
            "torch": functools.partial(torch_case, hidden),
            **(mixed if hidden == 16 else {}),
        },
        tolerance=1e-3,
        traffic=8 * sum(weights),  # that of the weights, read and written once
        flops=2 * BATCH * (3 * sum(weights) - weights[0]),
        seconds=6.0,
    )
