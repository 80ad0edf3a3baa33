"""Networks cut over workers along any index of any layer, also where nobody would: the same as on one worker."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.tree import flatten

import ostinato as ost
from ostinato import nn
from tests import example_models
from tests.forced import forced, halos_widened, interiors_cut
from tests.sessions import JOB, MESHES, use
from tests.thorough import THOROUGH, few

Layer = tuple[Callable[..., Any], list[Any]]  # of images and weights; the weights
SEVERAL = [m for m in (*MESHES, (2, 2, 2)) if np.prod(m) > 1 and JOB in (1, np.prod(m))]
ALONE = (1,) if JOB == 1 else (JOB,)


# -- layers ----------------------------------------------------------------------------------------
def norm(x: Any, scale: Any, bias: Any) -> Any:
    return ost.nn.batch_norm_train(x, scale, bias)[0]


def some_layer(draw: random.Random, channels: int, k: int) -> Layer:
    """A layer for images of so many channels in `k` axes of space."""
    rng = np.random.default_rng(draw.randrange(1 << 30))
    each = lambda *values: tuple(draw.choices(values, k=k))  # noqa: E731
    kinds = [
        "conv",
        "conv",
        "conv",
        "conv_transpose",
        "max_pool",
        "avg_pool",
        "norm",
        "upsample",
        "resize",
        "skip",
    ]
    match draw.choice(kinds):
        case "conv":
            groups = draw.choice([1, 1, channels])
            outs, sizes = groups * draw.randint(1, 3), each(1, 2, 3)
            pads = [(draw.randint(0, 2), draw.randint(0, 2)) for _ in range(k)]
            p: dict[str, Any] = {"stride": each(1, 1, 2, 3), "dilation": each(1, 1, 2)}
            p |= {"padding": draw.choice(["same", 1, pads]), "groups": groups}
            weights = [rng.normal(size=(outs, channels // groups, *sizes)), rng.normal(size=outs)]
            return lambda x, w, b: ost.nn.conv(x, w, b, **p), weights
        case "conv_transpose":
            w, p = rng.normal(size=(channels, 2, *each(1, 2, 3))), {"stride": each(1, 2)}
            p["padding"] = draw.choice([0, "same"])
            return lambda x, w: ost.nn.conv_transpose(x, w, **p), [w]
        case "max_pool" | "avg_pool" as name:
            sizes, p = each(1, 2, 3), {"stride": each(1, 2, 2), "ceil_mode": draw.random() < 0.3}
            p["padding"] = [[draw.randint(0, (s - 1) // 2) for _ in range(2)] for s in sizes]
            p |= {"count_include_pad": draw.random() < 0.5} if name == "avg_pool" else {}
            return lambda x: getattr(ost.nn, name)(x, sizes, **p), []
        case "norm":
            return norm, [rng.normal(size=channels), rng.normal(size=channels)]
        case "upsample":
            scale = each(1, 2, 3)
            return lambda x: ost.nn.upsample(x, scale), []
        case "resize":
            corners, mode = draw.random() < 0.5, draw.choice(["linear", "cubic"])
            return lambda x: ost.nn.upsample(x, 2, mode=mode, align_corners=corners), []
    w = rng.normal(size=(2, channels, *(3,) * k))
    return lambda x, w: ost.concat([ost.nn.relu(ost.nn.conv(x, w, padding=1)), x], axis=1), [w]


def some_network(draw: random.Random) -> tuple[Any, Any, Any]:
    """A few layers as a function of images and weights, which gives a loss, its slopes and the last layer's
    images; and operands."""
    k = draw.choice([1, 2, 2, 3])
    space = [draw.randint(3, {1: 13, 2: 8, 3: 6}[k]) for _ in range(k)]
    shape: tuple[int, ...] = (draw.randint(1, 3), draw.randint(1, 3), *space)
    x = np.random.default_rng(draw.randrange(1 << 30)).normal(size=shape)
    layers: list[Layer] = []
    while not layers or (len(layers) < 3 and draw.random() < 0.6):
        layer, weights = some_layer(draw, shape[1], k)
        made = ost.plan(layer, ost.spec(shape), *[ost.spec(w.shape) for w in weights]).out_specs[0]
        if 0 < made.size < 3000:
            layers.append((layer, weights))
            shape = made.shape

    def images(x: Any, weights: Any) -> Any:
        for (layer, _), own in zip(layers, weights, strict=True):
            x = layer(x, *own)
        return x

    def loss(x: Any, weights: Any) -> Any:
        y = images(x, weights)
        return (y * y * y).sum() + ost.sin(y).sum()

    def step(x: Any, weights: Any) -> Any:
        return ost.value_and_grad(loss, (0, 1))(x, weights), images(x, weights)

    return step, x, [weights for _, weights in layers]


def values(tree: Any) -> list[Any]:
    return [np.asarray(v) for v in flatten(tree)[0]]


def assert_alike(found: Any, wanted: Any) -> None:
    for x, y in zip(values(found), values(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10 * (1 + np.abs(y).max()))


@pytest.mark.parametrize("seed", range(few(64)))
def test_layers_in_any_layout(seed: int) -> None:
    draw = random.Random(seed)
    with use(ALONE):
        step, x, weights = some_network(draw)
        wanted = values(ost.compile(step)(x, weights))
    mesh, numerics = draw.choice(SEVERAL), draw.choice(["same-plan"] * 3 + ["any-workers"])
    split = tuple(draw.choice([None, *range(x.ndim)]) for _ in mesh)
    cut = nullcontext() if seed % 4 == 3 else interiors_cut()
    wide = nullcontext() if seed % 3 == 2 else halos_widened()
    with use(mesh, numerics), forced(seed), cut, wide:
        assert_alike(ost.compile(lambda *a: step(*a))(ost.asarray(x, split=split), weights), wanted)


# -- networks --------------------------------------------------------------------------------------
models = pytest.fixture(example_models.models)


def network_of(models: Any, name: str) -> tuple[Any, Any, Any, Any]:
    """A model in float64 as NumPy's arrays, its loss, and a batch."""
    rng = np.random.default_rng(0)
    if name == "cosmoflow":
        model, loss = models(name).cosmoflow(16, width=2), nn.mse_loss
        x, y = abs(rng.normal(size=(2, 4, 16, 16, 16))), rng.normal(size=(2, 4))
    else:
        model, loss = models(name).unet(width=1, levels=1), models(name).loss
        x = rng.normal(size=(2, 1, 16, 16, 16))
        y = np.digitize(x[:, 0], [-0.5, 0.5])

    def wide(w: Any) -> Any:
        return np.asarray(w).astype(np.float64 if w.dtype == np.float32 else w.dtype)

    with use(ALONE):
        return ost.tree_map(wide, model.init(seed=1)), loss, x, y


def trained(models: Any, network: Any, mesh: tuple[int, ...], split: Any, seed: int | None) -> Any:
    """Losses, weights and state of two whole training steps; in layouts that are drawn if there is a seed."""
    state, loss, x, y = network
    momenta, found = ost.tree_map(np.zeros_like, nn.parameters(state)), []
    with use(mesh), nullcontext() if seed is None else forced(seed), interiors_cut():
        step, x, y = (
            models("training").step_of(loss, 0.05),
            ost.asarray(x, split=split),
            ost.asarray(y),
        )
        for key in range(2):
            state, momenta, value = step(state, momenta, x, y, key)
            found.append(float(value))
        return found, values((state, momenta))


# a mesh, how the batch is cut, and the seed of drawn layouts
CUTS: Any = [
    ("cosmoflow", (2, 2), (2, 4), 1),
    ("unet", (2,), 2, 1),
    ("cosmoflow", (3,), 2, None),
    ("unet", (2, 2), (2, 4), 2),
    ("cosmoflow", (4,), 3, 2),
    ("unet", (3,), 4, 3),
    ("cosmoflow", (2, 2), (0, 3), None),
    ("unet", (4,), 3, None),
    ("cosmoflow", (2,), 2, 3),
]
CUTS = [cut for cut in CUTS if JOB in (1, np.prod(cut[1]))]


@pytest.mark.parametrize(("name", "mesh", "split", "seed"), CUTS if THOROUGH else CUTS[:3])
def test_training_steps(name: str, mesh: Any, split: Any, seed: int | None, models: Any) -> None:
    network = network_of(models, name)
    losses, wanted = trained(models, network, ALONE, None, None)
    assert losses[1] < losses[0]
    assert_alike(trained(models, network, mesh, split, seed), (losses, wanted))
