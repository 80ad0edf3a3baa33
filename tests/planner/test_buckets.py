"""Small all-reduces are one message, in any program, and give the same bits as apart."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import Graph
from ostinato.planner import pipeline
from ostinato.planner.passes import buckets
from ostinato.planner.plan import Plan

import ostinato as ost
from ostinato import settings
from tests.sessions import forget_plans, use


def sums(plan: Plan) -> list[int]:
    """How many arrays each all-reduce of a plan has."""
    return [
        sum(not s.pending for s in n.specs) or len(n.specs)
        for n in plan.lowered.nodes
        if n.op == "all_reduce" or n.kw.get("collective") == "all_reduce"
    ]


@pytest.fixture
def everything_is_small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def generous(*given: Any) -> float:
        return 1e9 if given[0].op == "all_reduce" and len(given[0].inputs) == 1 else 0.0

    monkeypatch.setattr(buckets, "_limit", generous)
    forget_plans()
    yield
    forget_plans()


def draw(r: random.Random) -> tuple[Any, int]:
    """A program in which sums depend on sums, on some of them, and are read in any order."""
    steps = [(r.random() < 0.5, r.randrange(99), r.uniform(-1, 1)) for _ in range(r.randint(4, 12))]

    def program(x: Any) -> list[Any]:
        rows, totals = [x], []
        for adds, at, number in steps:
            row = rows[at % len(rows)]
            if adds or not totals:
                totals.append((row * number).sum(0))
            else:
                rows.append(row + totals[at % len(totals)] * 0.01)
        return [*totals[::-1], *rows[1:]]

    return program, len(steps)


@pytest.mark.usefixtures("everything_is_small")
@pytest.mark.parametrize("seed", range(60))
def test_sums_of_sums_fill_buckets_one_after_another(seed: int) -> None:
    r = random.Random(seed)
    program, _ = draw(r)
    x = np.random.default_rng(seed).normal(size=(24, 3))
    with use(r.choice([(2,), (3,), (2, 2)])):
        f = ost.compile(program)
        found = f(ost.asarray(x, split=0))
        for y, z in zip(found, program(x), strict=True):
            np.testing.assert_allclose(np.asarray(y), z, rtol=1e-9, atol=1e-9)


def longest(graph: Graph) -> int:
    """The all-reduces of a graph that wait for one another."""
    depth = [0] * len(graph.inputs)
    for node in graph.nodes:
        needs = max([depth[v] for v in node.inputs], default=0)
        starts = node.op == "all_reduce" or node.kw.get("collective") == "all_reduce"
        depth += [needs + starts] * len(node.specs)
    return max(depth)


@pytest.mark.usefixtures("everything_is_small")
def test_no_more_messages_than_sums_that_wait_for_each_other() -> None:
    def program(x: Any) -> Any:
        a, b, c = x.sum(0), (x * 2).sum(0), ost.abs(x).sum(0)
        return (x - a).sum(0) + b, (x * x - b).sum(0) + c

    with use((4,)):
        f = ost.compile(program)
        x = np.arange(12000.0).reshape(4000, 3) / 12000
        for y, z in zip(f(ost.asarray(x, split=0)), program(x), strict=True):
            np.testing.assert_allclose(np.asarray(y), z, rtol=1e-12)
        assert len(sums(f.plan)) == longest(f.plan.lowered) == 2


def network(layers: Any, x: Any) -> Any:
    def loss(layers: Any) -> Any:
        y = x
        for w, b in layers:
            y = ost.tanh(y @ w + b)
        return (y * y).mean()

    value, slopes = ost.value_and_grad(loss)(layers)
    return ost.tree_map(lambda w, g: w - 0.1 * g, layers, slopes), value


def test_slopes_of_a_small_network_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "machine", "nominal")
    r = np.random.default_rng(0)
    layers = [(r.normal(size=(16, 16)) * 0.3, r.normal(size=16)) for _ in range(2)]
    x = r.normal(size=(4096, 16))
    answers = []
    for passes in (pipeline.PASSES, [p for p in pipeline.PASSES if p is not buckets.fill_buckets]):
        monkeypatch.setattr(pipeline, "PASSES", tuple(passes))
        forget_plans()
        with use((4,)):
            f = ost.compile(network)
            new, loss = f(ost.tree_map(ost.asarray, layers), ost.asarray(x, split=0))
            answers.append([loss, *(y for layer in new for y in layer)])
            arrays = sums(f.plan)
            assert sum(arrays) == 5, "each slope, and the loss"
            assert len(arrays) == (1 if len(answers) == 1 else 5)
    forget_plans()
    once, apart = (np.concatenate([np.ravel(y) for y in a]) for a in answers)
    np.testing.assert_array_equal(once, apart)


def test_large_sums_go_alone() -> None:
    x = np.ones((4, 1 << 20), np.float32)
    with use((4,)):
        f = ost.compile(lambda x: (x.sum(0), (x * 2).sum(0), ost.max(x, 0)))
        f(ost.asarray(x, split=0))
        assert sums(f.plan) in ([1, 1, 1], []), "or they are summed in parts"
