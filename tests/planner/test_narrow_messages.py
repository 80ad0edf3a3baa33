"""What is cast is sent in the narrower dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.show import parse
from ostinato.planner.machine import NOMINAL
from ostinato.planner.passes.narrow_messages import send_narrow
from ostinato.planner.plan import Plan, Target
from ostinato.planner.seeing.explain import steps

import ostinato as ost
from tests.helpers import on

TWO = Target((2,))


def test_the_pass() -> None:
    before = parse("""
        (%0: bfloat16[8,2] @ split 0 of 2, %1: float32[8,2] @ split 0 of 2)
        %2 = astype(%0; dtype=dtype float32) : float32[8,2] @ split 0 of 2
        %3 = permute_dims(%2; axes=(1, 0)) : float32[2,8] @ split 1 of 2
        %4 = relayout(%3) : float32[2,8] @ whole of 2
        %5 = relayout(%1) : float32[8,2] @ whole of 2
        %6 = astype(%5; dtype=dtype bfloat16) : bfloat16[8,2] @ whole of 2
        return %4, %6
    """)
    after = parse("""
        (%0: bfloat16[8,2] @ split 0 of 2, %1: float32[8,2] @ split 0 of 2)
        %2 = permute_dims(%0; axes=(1, 0)) : bfloat16[2,8] @ split 1 of 2
        %3 = relayout(%2) : bfloat16[2,8] @ whole of 2
        %4 = astype(%3; dtype=dtype float32) : float32[2,8] @ whole of 2
        %5 = astype(%1; dtype=dtype bfloat16) : bfloat16[8,2] @ split 0 of 2
        %6 = relayout(%5) : bfloat16[8,2] @ whole of 2
        return %4, %6
    """)
    assert send_narrow(before, TWO) == after
    assert send_narrow(after, TWO) == after
    assert send_narrow(before, Target()) is before


@pytest.mark.parametrize(
    "text",
    [
        """
        (%0: float32[8] @ partial sum of 2)
        %1 = relayout(%0) : float32[8] @ whole of 2
        %2 = astype(%1; dtype=dtype bfloat16) : bfloat16[8] @ whole of 2
        return %2""",
        """
        (%0: float32[8] @ split 0 of 2)
        %1 = relayout(%0) : float32[8] @ whole of 2
        %2 = astype(%1; dtype=dtype bfloat16) : bfloat16[8] @ whole of 2
        return %2, %1""",
        """
        (%0: float32[8] @ split 0 of 2)
        %1 = astype(%0; dtype=dtype bfloat16) : bfloat16[8] @ split 0 of 2
        %2 = relayout(%1) : bfloat16[8] @ whole of 2
        %3 = astype(%2; dtype=dtype float32) : float32[8] @ whole of 2
        return %3""",
        """
        (%0: float32[8] @ split 0 of 2)
        %1 = relayout(%0) : float32[8] @ whole of 2
        %2 = astype(%1; dtype=dtype int8) : int8[8] @ whole of 2
        return %2""",
    ],
)
def test_what_is_sent_as_it_is(text: str) -> None:
    """Addends, what somebody reads as it was, what is narrow already, numbers that would be cut off."""
    graph = parse(text)
    assert send_narrow(graph, TWO) == graph


def test_half_the_bytes_of_split_weights(tmp_path: Path) -> None:
    def f(x: Any, w: Any) -> Any:
        return ost.tanh(x @ w) @ w.T

    x, w = (
        np.random.default_rng(0).normal(size=s).astype(np.float32) for s in ((64, 32), (32, 48))
    )
    sent, values = {}, {}
    for policy in ("as-written", "mixed_bf16"):
        for workers in (1, 2):
            with on(workers):
                g = ost.compile(f, precision=policy)
                made = np.asarray(g(ost.asarray(x, split=0), ost.asarray(w, split=0)))
                sent[policy, workers] = sum(s.sent for s in steps(g.plan.program, NOMINAL))
                values[policy, workers] = made
                path = tmp_path / f"{policy}{workers}"
                g.plan.to_file(path)
                assert Plan.from_file(path) == g.plan
        np.testing.assert_allclose(values[policy, 2], values[policy, 1], rtol=1e-5, atol=1e-4)
    assert 0 < 2 * sent["mixed_bf16", 2] == sent["as-written", 2]
