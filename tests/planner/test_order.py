"""In which order nodes run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.show import parse
from ostinato.planner.passes.order import order
from ostinato.planner.passes.overlap import overlap
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

import ostinato as ost
from ostinato import settings
from tests import sessions

HERE, TWO = Target((1,)), Target((2,))


BEFORE = """
    (%0: float32[9], %1: float32[9])
    %2 = tanh(%0) : float32[9]
    %3 = exp(%2) : float32[9]
    %4 = negative(%3) : float32[9]
    %5 = multiply(%1, %3) : float32[9]
    %6 = subtract(%1, %2) : float32[9]
    return %4, %5, %6
"""
AFTER = """
    (%0: float32[9], %1: float32[9])
    %2 = tanh(%0) : float32[9]
    %3 = subtract(%1, %2) : float32[9]
    %4 = exp(%2) : float32[9]
    %5 = negative(%4) : float32[9]
    %6 = multiply(%1, %4) : float32[9]
    return %5, %6, %3
"""


def test_before_and_after() -> None:
    before, after = parse(BEFORE), parse(AFTER)
    assert order(before, HERE) == after
    assert order(after, HERE) is after


def test_under_a_memory_limit_what_frees_memory_runs_first() -> None:
    before = parse("""
        (%0: float32[900,9])
        %1 = tanh(%0) : float32[900,9]
        %2 = exp(%0) : float32[900,9]
        %3 = sin(%2) : float32[900,9]
        %4 = sum(%1; axes=(0,)) : float32[9]
        %5 = add(%3, %4) : float32[900,9]
        return %5
    """)
    after = parse("""
        (%0: float32[900,9])
        %1 = tanh(%0) : float32[900,9]
        %2 = sum(%1; axes=(0,)) : float32[9]
        %3 = exp(%0) : float32[900,9]
        %4 = sin(%3) : float32[900,9]
        %5 = add(%4, %2) : float32[900,9]
        return %5
    """)
    assert order(before, HERE) is before
    short = Target((1,), memory_limit=1)
    assert order(before, short) == after
    assert order(after, short) is after


def test_what_was_given_away_is_read_by_others_first() -> None:
    assert order(parse(BEFORE), HERE, donated=(1,)) == parse(BEFORE)


def test_where_workers_meet_the_order_is_that_of_the_plan() -> None:
    """What leads to one result alone comes early, the start behind it and the wait as late as can be;
    the second collective stays second, though its operand is there first."""
    before = parse("""
        (%0: float32[4] @ partial sum of 2, %1: float32[4] @ whole of 2)
        %2 = start(%0; axes=(0,), collective='all_reduce', monoid='sum') : pending float32[4] @ whole of 2
        %3 = wait(%2, %0) : float32[4] @ whole of 2
        %4 = exp(%3) : float32[4] @ whole of 2
        %5 = start(%0; axes=(0,), collective='all_reduce', monoid='max') : pending float32[4] @ whole of 2
        %6 = tanh(%1) : float32[4] @ whole of 2
        %7 = negative(%6) : float32[4] @ whole of 2
        %8 = sin(%6) : float32[4] @ whole of 2
        %9 = wait(%5, %0) : float32[4] @ whole of 2
        return %4, %9, %7, %8
    """)
    after = order(before, TWO)
    ops = [n.op if n.op != "start" else n.kw["monoid"] for n in after.nodes]
    assert ops == ["sum", "tanh", "negative", "sin", "wait", "max", "exp", "wait"]
    assert order(after, TWO) is after


def test_what_is_sent_is_made_first() -> None:
    """The second collective needs the first node alone."""
    made = overlap(
        parse("""
        (%0: float32[4] @ whole of 2)
        %1 = tanh(%0) : float32[4] @ whole of 2
        %2 = exp(%1) : float32[4] @ whole of 2
        %3 = cos(%2) : float32[4] @ whole of 2
        %4 = all_gather(%3) : float32[4] @ whole of 2
        %5 = negative(%1) : float32[4] @ whole of 2
        %6 = all_gather(%5) : float32[4] @ whole of 2
        return %2, %4, %6
        """),
        TWO,
    )
    ops = [n.op for n in made.nodes]
    assert ops == ["tanh", "negative", "start", "exp", "cos", "start", "wait", "wait"]
    assert overlap(made, TWO) == made


def test_new_weights_follow_who_reads_the_old_ones_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where those are seen transposed. So they take their place, and slopes need not wait."""
    monkeypatch.setattr(settings, "tune", "off")  # a timing may take kernels apart
    rng = np.random.default_rng(0)
    layers = [(rng.uniform(-0.1, 0.1, (160, 160)).astype(np.float32),) for _ in range(4)]
    x = rng.uniform(-1, 1, (130, 160)).astype(np.float32)

    def step(layers: Any, x: Any) -> Any:
        def loss(layers: Any, x: Any) -> Any:
            for (w,) in layers:
                x = ost.tanh(x @ w)
            return (x * x).sum()

        return ost.tree_map(lambda p, g: p - 0.1 * g, layers, ost.grad(loss)(layers, x))

    f = ost.compile(step, donate=("layers",))
    with sessions.use():
        f(*ost.tree_map(ost.asarray, (layers, x)))
        graph = f.plan.program.graph
    assert sorted(v for v, _ in f.plan.program.reuse) == [0, 1, 2, 3]
    ends = sorted(graph.producers[v] for v in graph.outputs)
    assert ends[-1] - ends[0] > 3  # not all at the end


def test_what_is_replaced_stands_where_it_stood() -> None:
    """And what only it read is gone; where nothing is chosen nothing is made again."""
    graph = parse(BEFORE)
    exp = 1

    def squares(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        return builder.add("square", (values[0],), (), node.specs, node.line)

    made = replace(graph, [exp], squares)
    assert [n.op for n in made.nodes] == ["tanh", "square", "negative", "multiply", "subtract"]
    whole = Graph(graph.inputs, graph.nodes, graph.outputs[:2])
    assert [n.op for n in replace(whole, [exp], squares).nodes] == [
        "square",
        "negative",
        "multiply",
    ]
    assert replace(graph, [], squares, lambda body: body) is graph
