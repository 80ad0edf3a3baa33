"""What loops carry from iteration to iteration: values before their collective, which then runs beside
the next iteration."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.planned.collective import collective_of
from ostinato.planner.machine import NOMINAL, Link
from ostinato.planner.passes import layouts
from ostinato.planner.plan import Plan

import ostinato as ost
from tests.sessions import forget_plans, use

spec = ost.spec
WIDE, ROWS = 1024, 8192


def bodies(plan: Plan) -> list[Graph]:
    return [g for n in plan.lowered.nodes for _, g in n.subgraphs() if n.op in ("loop", "while")]


def collectives(graph: Graph) -> list[str]:
    return [c for n in graph.nodes if (c := collective_of(n.op, n.kw))]


def of_carried(graph: Graph) -> list[str]:
    """Collectives of what comes from the iteration before, as it comes."""
    found = []
    for node in graph.nodes:
        kind = collective_of(node.op, node.kw)
        if kind and all(v < len(graph.inputs) for v in node.inputs):
            found.append(kind)
    return found


def loss(ws: Any, x: Any, y: Any) -> Any:
    for w in ws:
        x = ost.tanh(x @ w)
    return ost.nn.mse_loss(x, y)


def train(ws: Any, x: Any, y: Any) -> Any:
    """Each iteration applies its slopes at once."""

    def step(ws: Any) -> Any:
        slopes = ost.grad(loss)(ws, x, y)
        return [w - 0.1 * g for w, g in zip(ws, slopes, strict=True)]

    return ost.repeat(10, step, ws)


def train_late(ws: Any, x: Any, y: Any) -> Any:
    """Each iteration applies the slopes of the one before."""

    def step(state: Any) -> Any:
        ws, slopes = state
        new = ost.grad(loss)(ws, x, y)
        return [w - 0.1 * g for w, g in zip(ws, slopes, strict=True)], new

    return ost.repeat(10, step, (ws, [ost.zeros_like(w) for w in ws]))[0]


def given(count: int = 4, wide: int = WIDE, rows: int = ROWS) -> tuple[Any, ...]:
    x = spec((rows, wide), split=0)
    return [spec((wide, wide))] * count, x, x


def test_slopes_that_the_next_iteration_applies_are_carried_as_addends() -> None:
    plan = ost.plan(train_late, *given(), mesh=4, machine="cpu-10gbe")
    (body,) = bodies(plan)
    assert of_carried(body) == collectives(body) == ["all_reduce"] * 4


SLOW = replace(NOMINAL, name="slow link", levels=((0, Link(20e-6, 2e9)),))


def test_weights_are_carried_in_parts_that_the_next_iteration_gathers() -> None:
    plan = ost.plan(train, *given(wide=512, rows=2048), mesh=4, machine=SLOW)
    (body,) = bodies(plan)
    assert of_carried(body) == ["all_gather"] * 4
    assert collectives(body).count("reduce_scatter") == 4
    products = [k for k, n in enumerate(body.nodes) if n.op == "matmul"]
    waits = [k for k, n in enumerate(body.nodes) if n.op == "wait"]
    assert waits[0] < products[0] < waits[1] < products[1], "each product waits for its own weights"


def test_weights_that_may_lie_anywhere_lie_in_parts_between_calls() -> None:
    """Without a loop: a call gathers what it read as parts, and leaves its results as these."""

    def step(ws: Any, x: Any, y: Any) -> Any:
        slopes = ost.grad(loss)(ws, x, y)
        return [w - 0.1 * g for w, g in zip(ws, slopes, strict=True)]

    made, x = [], spec((ROWS, WIDE), split=(0, None))
    for split in (None, "auto"):
        ws = [spec((WIDE, WIDE), split=split)] * 4
        made.append(ost.plan(step, ws, x, x, mesh=(4, 2), machine="h200-ib"))
    whole, parts = made
    assert of_carried(whole.lowered) == []
    assert of_carried(parts.lowered) == ["all_gather"] * 4
    assert [s.layout for s in parts.out_specs] == [s.layout for s in parts.traced.inputs[:4]]
    assert parts.simulate().seconds < 0.95 * whole.simulate().seconds


@pytest.mark.parametrize("mesh", [2, 4])
@pytest.mark.parametrize("machine", ["cpu-10gbe", "h200-ib", SLOW], ids=str)
@pytest.mark.parametrize("function", [train, train_late])
def test_it_is_chosen_only_where_less_time_is_predicted(
    function: Any, machine: Any, mesh: int
) -> None:
    took = []
    for sooner in (0.0, layouts.SOONER):
        with mock.patch.object(layouts, "SOONER", sooner):
            took.append(ost.plan(function, *given(), mesh=mesh, machine=machine).simulate().seconds)
    assert took[1] <= took[0]


def test_a_sum_that_only_the_next_iteration_reads_is_carried_as_addends() -> None:
    """Where it is too small to be sent in parts."""

    def centres(x: Any, c: Any) -> Any:
        def step(state: Any) -> Any:
            c, sums = state
            return c + 0.1 * ost.tanh(sums), (ost.tanh(x @ c)[:, None] * x).sum(0)

        return ost.repeat(10, step, (c, ost.zeros_like(c)))

    plan = ost.plan(centres, spec((1 << 18, 7), split=0), spec(7), mesh=8, machine="cpu-10gbe")
    (body,) = bodies(plan)
    assert of_carried(body) == collectives(body) == ["all_reduce"]


# -- values ----------------------------------------------------------------------------------------
def in_both(function: Callable[..., Any], arrays: Any, splits: Any, workers: int) -> list[Any]:
    """As relayouts and kernels add up to least, and as most of what relayouts take is hidden; and the
    program of the latter."""
    found: list[Any] = []
    for sooner in (0.0, float("inf")):
        with mock.patch.object(layouts, "SOONER", sooner), use((workers,)):
            forget_plans()
            compiled = ost.compile(function)
            given = [ost.asarray(x, split=s) for x, s in zip(arrays, splits, strict=True)]
            found.append([np.asarray(y) for y in compiled(*given)])
            plan = compiled.plan
    forget_plans()
    return [*found, plan]


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("function", [train, train_late])
def test_the_bits_are_the_same(function: Any, workers: int) -> None:
    rng = np.random.default_rng(workers)
    ws = [rng.standard_normal((32, 32)).astype(np.float32) * 0.1 for _ in range(3)]
    x, y = (rng.standard_normal((240, 32)).astype(np.float32) for _ in range(2))

    def run(x: Any, y: Any, *ws: Any) -> Any:
        return function(list(ws), x, y)

    one, other, plan = in_both(run, (x, y, *ws), (0, 0, None, None, None), workers)
    assert of_carried(bodies(plan)[0])
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))


Step = Callable[[Any, Sequence[Any], Any], list[Any]]


def random_step(seed: int) -> Step:
    """An iteration over a state of four matrices: new ones are made of sums over all rows of the data,
    and of old ones."""
    draw = random.Random(seed)
    makes = [draw.choice(("slope", "moment", "mix", "keep", "scaled")) for _ in range(4)]
    reads = [[draw.randrange(4) for _ in range(3)] for _ in range(4)]

    def step(xp: Any, state: Sequence[Any], x: Any) -> list[Any]:
        made = []
        for kind, (i, j, k) in zip(makes, reads, strict=True):
            a, b, c = state[i], state[j], made[-1] if made and k % 2 else state[k]
            if kind == "slope":
                made.append(0.01 * x.T @ xp.tanh(x @ (a - 0.1 * b)))
            elif kind == "moment":
                made.append(0.9 * a + 0.01 * (x.T @ xp.sin(x @ b)))
            elif kind == "mix":
                made.append(xp.tanh(a @ b) - 0.3 * c)
            elif kind == "keep":
                made.append(c - 0.2 * a)
            else:
                made.append(0.02 * (x.T @ xp.tanh(x @ a) - x.T @ xp.cos(x @ c)))
        return made

    return step


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("kind", ["repeat", "scan", "while"])
def test_random_loops(kind: str, workers: int) -> None:
    rng, carried = np.random.default_rng(workers), 0
    for seed in range(8):
        step = random_step(seed)
        x = rng.standard_normal((60, 7))
        state = [rng.standard_normal((7, 7)) for _ in range(4)]

        def run(x: Any, *state: Any, step: Step = step) -> Any:
            def turn(state: Any) -> Any:
                return step(ost, state, x)

            if kind == "repeat":
                return ost.repeat(5, turn, list(state))
            if kind == "scan":
                return ost.scan(lambda s, _: (turn(s), s[0].sum()), list(state), length=5)[0]
            end = (ost.asarray(0), list(state))
            more = lambda s: (s[0] + 1, turn(s[1]))  # noqa: E731
            return ost.while_loop(lambda s: s[0] < 5, more, end, most=9)[1]

        one, other, plan = in_both(run, (x, *state), (0, None, None, None, None), workers)
        carried += any(map(of_carried, bodies(plan)))
        for _ in range(5):
            state = step(np, state, x)
        for a, b, wanted in zip(one, other, state, strict=True):
            np.testing.assert_allclose(a, wanted, rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(b, wanted, rtol=1e-9, atol=1e-11)
    assert carried >= 2


def test_minus_zero_is_carried_as_addends() -> None:
    def signs(x: Any, zero: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            c, late = state
            return (c + ost.tanh(late), ost.tanh(x @ c) @ x), ost.copysign(1.0, late)

        return (ost.scan(step, (ost.ones_like(zero), zero), length=4)[1],)

    one, other, plan = in_both(signs, (np.ones((60, 4)), np.full(4, -0.0)), (0, None), 3)
    assert "addend" in [n.op for n in plan.lowered.nodes]
    np.testing.assert_array_equal(one, other)
    assert (other[0][0] == -1).all()
