"""Programs of which it is written down how many kernels, nodes and bytes they need (pinned.json).

python -m tests.planner.pinned     writes down what they need now
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.cpu import threads
from ostinato.ops.cpu.fused import FUSED
from ostinato.ops.flow.control import ONE_KERNEL, WHOLE
from ostinato.planner.cpu import fuse
from ostinato.planner.fusion import stage_groups as stages
from ostinato.planner.plan import Plan

import ostinato as ost
from ostinato import nn, settings
from tests.helpers import on
from tests.programs import make_program

KERNELS = (*FUSED, *ONE_KERNEL.values(), WHOLE)
FILE = Path(__file__).with_suffix(".json")
SEEDS, WORKERS = 120, (1, 3)  # random programs, all of whose operations are worth kernels
Figures = tuple[int, int, int]  # kernels; nodes that do something; bytes of the arena


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


# -- programs ------------------------------------------------------------------------------
def spread(loss: Callable[..., Any], update: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A step of training: new weights, the slope times a rate away from the old ones."""
    return lambda weights, *data: ost.tree_map(
        update, weights, ost.grad(lambda w: loss(w, *data))(weights)
    )


def descend(w: Any, g: Any) -> Any:
    return w - 0.01 * g


def network(layers: Any, x: Any, t: Any) -> Any:
    for w, b in layers[:-1]:
        x = nn.relu(x @ w + b)
    w, b = layers[-1]
    return ((x @ w + b - t) ** 2).mean()


def with_dropout(layers: Any, x: Any, t: Any) -> Any:
    for k, (w, b) in enumerate(layers):
        x = nn.dropout(nn.gelu(nn.layer_norm(x) @ w + b), 0.1, seed=k) + x
    return nn.cross_entropy(x, t)


def checkpointed(layers: Any, x: Any, t: Any) -> Any:
    for w, b in layers:
        x = ost.checkpoint(lambda x, w=w, b=b: ost.tanh(x @ w + b) + x)(x)
    return ((x - t) ** 2).mean()


def attention(w: Any, x: Any) -> Any:
    q, k, v = (x @ w[name] for name in "qkv")
    near = nn.softmax(q @ k.swapaxes(1, 2) * 0.125, axis=-1)
    return (near @ v) @ w["o"] + x


def block(w: Any, x: Any, t: Any) -> Any:
    y = attention(w, nn.layer_norm(x))
    y = y + nn.gelu(nn.layer_norm(y) @ w["up"]) @ w["down"]
    return ((y - t) ** 2).mean()


def adam(w: Any, m: Any, v: Any, x: Any, t: Any) -> Any:
    g = ost.grad(network)(w, x, t)
    m = ost.tree_map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = ost.tree_map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
    return ost.tree_map(lambda w, m, v: w - 0.01 * m / (ost.sqrt(v) + 1e-8), w, m, v), m, v


def lloyd(x: Any, c: Any) -> Any:
    near = nn.one_hot(((x[:, None] - c) ** 2).sum(-1).argmin(1), c.shape[0])
    return (near.T @ x) / near.sum(0)[:, None]


def black_scholes(s: Any, k: Any, t: Any) -> Any:
    def normal(x: Any) -> Any:
        return 0.5 * (1 + ost.erf(x / 2**0.5))

    d = (ost.log(s / k) + 0.06 * t) / (0.2 * ost.sqrt(t))
    e = d - 0.2 * ost.sqrt(t)
    rest = k * ost.exp(-0.04 * t)
    call = s * normal(d) - rest * normal(e)
    return call, call - s + rest, ost.exp(-d * d / 2)


def heat(u: Any) -> Any:
    def step(u: Any) -> Any:
        inner = u[1:-1, 1:-1]
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        return ost.pad(inner + 0.1 * (around - 4 * inner), 1)

    return ost.repeat(10, step, u)


def shallow(h: Any, u: Any, v: Any) -> Any:
    """A step of shallow water: three fields, each of which reads its neighbours'."""

    def dx(a: Any) -> Any:
        return ost.roll(a, -1, 0) - ost.roll(a, 1, 0)

    def dy(a: Any) -> Any:
        return ost.roll(a, -1, 1) - ost.roll(a, 1, 1)

    du, dv = u * dx(u) + v * dy(u) + 9.81 * dx(h), u * dx(v) + v * dy(v) + 9.81 * dy(h)
    return h - 0.1 * (dx(h * u) + dy(h * v)), u - 0.1 * du, v - 0.1 * dv


def whitened(x: Any) -> Any:
    off = (x - x.mean(0)) / (x.std(0) + 1e-6)
    return off, off.T @ off / x.shape[0], ost.sort(off, axis=0)[:9]


def sorted_between(x: Any, w: Any) -> Any:
    """What is elementwise on both sides of what is not."""
    y = ost.exp(x) * 2
    z = ost.sort(y @ w, axis=1)
    return ost.tanh(x) + y * 0.5, z - y, ost.sqrt(ost.abs(z)) + x


def logistic(w: Any, x: Any, y: Any) -> Any:
    p = 1 / (1 + ost.exp(-(x @ w)))
    return w - 0.1 * (x.T @ (p - y)), -(y * ost.log(p) + (1 - y) * ost.log1p(-p)).mean()


def drawn(x: Any) -> Any:
    noise = ost.random.normal(x.shape, seed=3)
    kept = ost.random.bernoulli(0.5, x.shape, seed=4)
    return ost.where(kept, ost.sort(x, axis=0) + noise, 0.0), (noise * noise).sum(1)


LAYERS = [(array(256, 256), array(256)) for _ in range(4)]
X, LONG = array(512, 256), array(200_000)
HEADS = {n: array(256, 256) for n in "qkvo"} | {"up": array(256, 1024), "down": array(1024, 256)}
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[str | int, ...]]] = {
    "network": (spread(network, descend), (LAYERS, X, X), (0,)),
    "network kept": (spread(network, descend), (LAYERS, X, X), ()),
    "dropout": (spread(with_dropout, descend), (LAYERS, X, array(512, dtype=np.int64)), (0,)),
    "checkpointed": (spread(checkpointed, descend), (LAYERS, X, X), (0,)),
    "transformer": (spread(block, descend), (HEADS, array(8, 64, 256), array(8, 64, 256)), (0,)),
    "attention": (attention, (HEADS, array(8, 64, 256)), ()),
    "adam": (adam, (LAYERS, LAYERS, LAYERS, X, X), (0, 1, 2)),
    "k-means": (lloyd, (array(20_000, 8), array(16, 8)), ()),
    "black-scholes": (black_scholes, (LONG, LONG, LONG), ()),
    "heat": (heat, (array(500, 500),), ()),
    "shallow water": (shallow, (array(400, 400), array(400, 400), array(400, 400)), ()),
    "whitened": (whitened, (array(5000, 40),), ()),
    "sorted between": (sorted_between, (X, array(256, 256)), ()),
    "logistic": (logistic, (array(30), array(50_000, 30), array(50_000)), ()),
    "drawn": (drawn, (array(300, 400),), ()),
}


def plans() -> Iterator[tuple[str, Plan]]:
    """All of them, for machines of two cores."""
    with mock.patch.object(threads, "cores", lambda: 2), mock.patch.object(settings, "tune", "off"):
        yield from _plans()


def _plans() -> Iterator[tuple[str, Plan]]:
    for workers in WORKERS:
        for name, (function, operands, donated) in PROGRAMS.items():
            with on(workers):
                f = ost.compile(function, donate=donated)
                yield f"{name} on {workers}", f.plan_for(*map(_laid, operands))
    with contextlib.ExitStack() as stack:
        for module, limit, value in (
            (fuse, "WORTH", 0),
            (fuse, "MIN_FUSED_ELEMENTS", 0),
            (stages, "ROWS", 1),
            (stages, "NEGLIGIBLE_BYTES", -1),
        ):
            stack.enter_context(mock.patch.object(module, limit, value))
        for workers in WORKERS:
            with on(workers):
                for seed in range(SEEDS):
                    program = make_program(random.Random(seed), 4 + seed % 12)
                    f = ost.compile(program.by_ostinato)
                    yield f"{seed} on {workers}", f.plan_for(*map(_laid, program.inputs))


def _laid(x: Any) -> Any:
    """Data are split; weights are everybody's."""
    if isinstance(x, np.ndarray):
        return ost.asarray(x, split=0 if x.ndim else None)
    return ost.tree_map(ost.asarray, x)


# -- figures -------------------------------------------------------------------------------
def figures(plan: Plan) -> Figures:
    return (*counts(plan.program.graph), plan.arena_bytes)


def counts(graph: Graph) -> tuple[int, int]:
    """Kernels that the planner made, and all nodes but those that only look at memory."""
    free = ("constant", "barrier", "start", "wait", "numbers", "first_number", "check_bounds")
    kernels = [n for n in graph.nodes if n.op in KERNELS]
    others = [n for n in graph.nodes if n not in kernels]
    within = [counts(body) for n in others for _, body in n.subgraphs()]
    done = [n for n in others if n.op not in free and not OPS[n.op].is_view]
    return (
        len(kernels) + sum(k for k, _ in within),
        len(kernels) + len(done) + sum(n for _, n in within),
    )


def pinned() -> dict[str, Figures]:
    return {name: tuple(found) for name, found in json.loads(FILE.read_text()).items()}


def main() -> None:
    found = {name: figures(plan) for name, plan in plans()}
    lines = (f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in found)
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(*(sum(f[k] for f in found.values()) for k in range(3)))


if __name__ == "__main__":
    main()
