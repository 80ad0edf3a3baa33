"""How networks are cut over workers by cost alone: as people cut them by hand."""

from __future__ import annotations

from typing import Any

import pytest
from ostinato.ops.core.layout import Layout, Partial
from ostinato.planner.passes.layouts import choose_layouts
from ostinato.planner.passes.simplify import simplify
from ostinato.planner.plan import Plan
from ostinato.planner.seeing.explain import facts

import ostinato as ost
from ostinato import nn
from tests import example_models

WHOLE, ADDENDS, SAMPLES, DEPTH, CHANNELS = ".", "+", "0", "1", "5"  # of `n z y x groups channels`


models = pytest.fixture(example_models.models)


def planned(model: Any, loss: Any, x: Any, y: Any, limit: int = 10**13) -> Plan:
    """The slopes of a model's weights on 8 workers."""
    weights = ost.tree_map(lambda w: ost.spec(w.shape, w.dtype.name), model.init(seed=1))

    def slopes(model: Any, x: Any, y: Any) -> Any:
        def value(weights: Any) -> Any:
            return loss(nn.combine(weights, model).apply(x, key=0)[0], y)

        return ost.value_and_grad(value)(nn.parameters(model))

    plan = ost.plan(slopes, weights, x, y, mesh=8, machine="h200-ib", memory_limit=limit)
    assert plan.gap < 2e-3  # no price is known so well
    return plan


def cuts(plan: Plan, op: str) -> list[tuple[str, ...]]:
    """How the operands and the result of each of these operations are cut."""

    def cut(layout: Layout) -> str:
        (s,) = layout.splits
        return WHOLE if s is None else ADDENDS if isinstance(s, Partial) else str(s)

    graph = choose_layouts(simplify(plan.traced, plan.target), plan.target)
    return [
        tuple([cut(s.layout) for s in (*(graph.specs[v] for v in n.inputs), *n.specs) if s.layout])
        for n in graph.nodes
        if n.op == op
    ]


def test_alexnet_by_samples_and_its_large_layers_by_features(models: Any) -> None:
    x, y = ost.spec((256, 3, 227, 227), "float32", split=0), ost.spec(256, "int64", split=0)
    plan = planned(models("alexnet").caffe(), nn.cross_entropy, x, y)
    forward, images, filters = (SAMPLES, WHOLE, SAMPLES), 4, 5
    assert cuts(plan, "conv") == [forward] * (5 + images) + [("4", "2", ADDENDS)] * filters
    dense = cuts(plan, "matmul")
    assert {*dense[:3]} == {(WHOLE, "1", "1"), ("1", "0", ADDENDS)}  # in turn: nothing is gathered
    assert ADDENDS not in [made for *_, made in dense[5:]], "slopes of large weights are not summed"


def test_cosmoflow_by_depth_and_its_small_images_by_channels(models: Any) -> None:
    """A sample of 512^3 needs more than one worker has; where few places are left, each has some channels."""
    x, y = ost.spec((1, 4, 512, 512, 512), "float32", split=2), ost.spec((1, 4), "float32")
    plan = planned(models("cosmoflow").cosmoflow(512), nn.mse_loss, x, y, 16 << 30)
    assert plan.peak_bytes < 16 << 30
    assert not [r for r in plan.ladder if r.seconds], "nothing is made again"
    depth = (DEPTH, WHOLE, DEPTH)
    found = cuts(plan, "conv")
    assert found[:5] == [depth] * 5
    assert found[5:7] == [(WHOLE, CHANNELS, CHANNELS), (CHANNELS, "3", ADDENDS)]
    assert found[-7:] == [(DEPTH, "0", ADDENDS)] * 5 + [("0", WHOLE, "0")] * 2
    assert facts(plan)["collectives"]["halo"] == 9, "each image's and each slope's, once"


@pytest.mark.parametrize(("samples", "side", "along"), [(1, 256, DEPTH), (8, 128, SAMPLES)])
def test_unet_by_depth_or_by_samples(samples: int, side: int, along: str, models: Any) -> None:
    """One large volume in slabs, as many volumes as workers one by one: from the top to the bottom."""
    shape = (side,) * 3
    x = ost.spec((samples, 1, *shape), "float32", split=2)
    y = ost.spec((samples, *shape), "int64", split=1)
    plan = planned(models("unet").unet(), models("unet").loss, x, y)
    found = cuts(plan, "conv")
    assert set(found) <= {(along, WHOLE, along), ("1", "0", ADDENDS), (CHANNELS, "3", ADDENDS)}
    assert found.count((along, WHOLE, along)) == 18 + 17  # and their slopes
    allowed = {"halo", "all_reduce"} if along == DEPTH else {"all_to_all", "all_reduce"}
    assert facts(plan)["collectives"].keys() <= allowed
