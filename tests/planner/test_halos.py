"""What workers send of networks that are cut in space: halos, one for all neighbours of a value, and one sum of
slopes for all cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.registry import OPS
from ostinato.planner.seeing.explain import facts

import ostinato as ost
from tests.forced import forced
from tests.sessions import use
from tests.thorough import some

Layer = Callable[..., Any]
CHANNELS, SIDE, BYTES = 16, 96, 4


def spec(*shape: int, split: Any = None) -> Any:
    return ost.spec(shape, "float32", split=split)


def norm(x: Any, scale: Any, bias: Any) -> Any:
    return ost.nn.batch_norm_train(x, scale, bias)[0]


W, TWO, ONE = spec(16, 16, 3, 3, 3), spec(16, 16, 2, 2, 2), spec(16)
# a layer, its weights, and how many halos it has, and how many with slopes
LAYERS: dict[str, tuple[Layer, list[Any], int, int]] = {
    "conv": (lambda x, w: ost.nn.conv(x, w, padding=1), [W], 1, 2),
    "strides": (lambda x, w: ost.nn.conv(x, w, padding=1, stride=2), [W], 1, 2),
    "dilation": (lambda x, w: ost.nn.conv(x, w, padding=2, dilation=2), [W], 1, 2),
    "enlarged": (lambda x, w: ost.nn.conv_transpose(x, w, stride=2), [TWO], 0, 0),
    "transpose": (lambda x, w: ost.nn.conv_transpose(x, w, stride=2, padding=1), [W], 1, 2),
    "skip": (lambda x, w: ost.concat([ost.nn.conv(x, w, padding=1), x], axis=1), [W], 1, 2),
    "max pool": (lambda x: ost.nn.max_pool(x, 2), [], 0, 0),
    "wide max pool": (lambda x: ost.nn.max_pool(x, 3, stride=2, padding=1), [], 1, 3),
    "wide mean": (lambda x: ost.nn.avg_pool(x, 3, stride=2, padding=1), [], 1, 2),
    "mean of what is there": (
        lambda x: ost.nn.avg_pool(x, 3, stride=2, padding=1, count_include_pad=False),
        [],
        1,
        2,
    ),
    "repeated": (lambda x: ost.nn.upsample(x, 2), [], 0, 0),
    "linear": (lambda x: ost.nn.upsample(x, 2, mode="linear"), [], 1, 3),
    "corners": (lambda x: ost.nn.upsample(x, 2, mode="linear", align_corners=True), [], 1, 3),
    "cubic": (lambda x: ost.nn.upsample(x, 2, mode="cubic"), [], 1, 5),
    "odd": (lambda x: ost.nn.resize(x, scale=1.5, mode="linear"), [], 1, 3),
    "norm": (norm, [ONE, ONE], 0, 0),
}
AXIS_BY_AXIS = ("linear", "corners", "cubic", "odd")


def sent(function: Any, *given: Any, mesh: Any) -> tuple[dict[str, int], int]:
    plan = ost.plan(function, *given, mesh=mesh, machine="h200-ib", memory_limit=10**13)
    found = facts(plan)
    return found["collectives"], found["sent"]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("mesh", "split"), [((4,), 2), ((2, 2), (2, 3))], ids=["slabs", "blocks"])
def test_layers_that_are_cut_in_space_send_halos_only(name: str, mesh: Any, split: Any) -> None:
    """Forward and backward, at once to all neighbours along all axes; slopes of weights are summed once, small
    sums as one; and no worker gets more than a few planes of each of its neighbours."""
    layer, weights, forward, both = LAYERS[name]
    if name in AXIS_BY_AXIS and len(mesh) > 1:
        forward, both = 2 * forward, 2 * both
    x = spec(2, CHANNELS, SIDE, SIDE, SIDE, split=split)
    found, size = sent(layer, x, *weights, mesh=mesh)
    found.pop("all_reduce", 0)  # of statistics
    assert found == ({"halo": forward} if forward else {})

    def loss(x: Any, weights: Any) -> Any:
        return (layer(x, *weights) ** 2).sum()

    if name == "cubic" and len(mesh) > 1:
        return  # slopes of four shares along each axis: the price may say that others move
    found, more = sent(ost.grad(loss, (0, 1)), x, weights, mesh=mesh)
    sums = found.pop("all_reduce", 0)
    assert sums <= (2 if name == "norm" else 1), "along both axes of the mesh at once"
    assert bool(weights) == bool(sums)
    assert found.keys() <= {"halo"}
    assert bool(both) <= found.get("halo", 0) <= both, "of some that follow each other, one may do"
    planes = 2 * (4 - 1) * 2 * CHANNELS * SIDE * SIDE * BYTES  # one, each way, between four slabs
    assert size <= planes * max(5 * forward, 0.1)
    assert more <= planes * max(8 * both, 0.1)


def test_a_value_that_is_read_in_several_orders_is_sent_once() -> None:
    """As a convolution reads images, and its filters' slopes do."""

    def function(x: Any) -> Any:
        y = ost.permute_dims(x, (2, 0, 1))
        a, b = x[2:] - x[:-2], y[:, 2:] * y[:, 1:-1]
        c = ost.permute_dims(x, (1, 2, 0))[:, :, 1:-1]
        return a.sum((1, 2)), b.sum((0, 2)), c.sum((0, 1))

    x = np.random.default_rng(0).normal(size=(13, 3, 4))
    wanted = (
        (x[2:] - x[:-2]).sum((1, 2)),
        (x[2:] * x[1:-1]).sum((1, 2)),
        x[1:-1].sum((1, 2)),
    )
    for mesh, split in (((3,), 0), ((2, 2), (0, 1))):
        with use(mesh):
            run = ost.compile(lambda x: function(x))
            for y, z in zip(run(ost.asarray(x, split=split)), wanted, strict=True):
                np.testing.assert_allclose(np.asarray(y), z, 1e-12, 1e-12)
    large = ost.spec((1_000_000, 30, 40), split=0)
    assert sent(function, large, mesh=(4,))[0] == {"halo": 1}


def test_windows_of_what_is_made_of_nothing_are_made() -> None:
    def function(x: Any) -> Any:
        ones = ost.broadcast_to(ost.arange(x.shape[0])[:, None], x.shape)
        return x[1:] + ones[:-1], x + ones[::-1]

    x = np.random.default_rng(0).normal(size=(14, 3))
    ramp = np.arange(14.0)[:, None]
    for seed in some(range(6)):
        with use((3,)), forced(seed):
            a, b = ost.compile(lambda x: function(x))(ost.asarray(x, split=0))
            np.testing.assert_allclose(np.asarray(a), x[1:] + ramp[:-1], 1e-12)
            np.testing.assert_allclose(np.asarray(b), x + ramp[::-1], 1e-12)


@pytest.mark.parametrize(
    ("mesh", "split", "channels"),
    [((4,), 2, 8), ((2, 2), (2, 3), 8), ((2, 2), (0, 2), 8), ((4,), 2, 256)],
)
def test_slopes_of_weights_are_summed_once_as_soon_as_they_are_there(
    mesh: Any, split: Any, channels: int
) -> None:
    """Over all splits at once, small ones together, and large ones while slopes of layers before are made."""
    layers = 4

    def loss(x: Any, weights: Any) -> Any:
        for w in weights:
            x = ost.nn.relu(ost.nn.conv(x, w, padding=1))
        return (x**2).sum()

    x = spec(2, channels, 64, 64, 64, split=split)
    weights = [spec(channels, channels, 3, 3, 3)] * layers
    plan = ost.plan(
        ost.grad(loss, 1), x, weights, mesh=mesh, machine="h200-ib", memory_limit=10**13
    )
    graph, summed = plan.program.graph, list[int]()
    convs = [k for k, n in enumerate(graph.nodes) if n.op == "conv" and n.specs[0].ndim == 6]
    for k, node in enumerate(graph.nodes):
        if "all_reduce" not in (node.op, node.kw.get("collective")):
            continue
        assert {*node.kw["axes"]} == {*range(len(mesh))}
        summed += [graph.specs[v].size for v in node.inputs]
        last = max(graph.producers[v] for v in node.inputs)
        while OPS[graph.nodes[last].op].view is not None:
            last = graph.producers[graph.nodes[last].inputs[0]]
        assert not any(last < c < k for c in convs), "a sum that waits for others"
    assert summed == [27 * channels**2] * layers
    first = next(k for k, n in enumerate(graph.nodes) if n.kw.get("monoid") == "sum")
    assert (channels == 256) == any(c > first for c in convs), "large ones go while others are made"
