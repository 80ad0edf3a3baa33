"""When what leads to one result is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.show import parse
from ostinato.planner.cpu.finish_early import finish_early
from ostinato.planner.plan import Target

import ostinato as ost
from ostinato import settings
from tests import sessions

HERE = Target((1,))


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
    assert finish_early(before, HERE) == after
    assert finish_early(after, HERE) is after
    assert finish_early(before, Target((2,))) is before


def test_what_was_given_away_is_read_by_others_first() -> None:
    assert finish_early(parse(BEFORE), HERE, donated=(1,)) == parse(BEFORE)


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
