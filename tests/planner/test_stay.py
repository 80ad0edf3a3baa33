"""Which products may keep their right matrix."""

from __future__ import annotations

import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.show import parse
from ostinato.ops.cpu.libraries import onednn
from ostinato.planner.cpu.prepack import mark_prepacked
from ostinato.planner.plan import Target

import ostinato as ost
from tests.sessions import use

pytestmark = pytest.mark.skipif(isinstance(onednn.library(), str), reason=onednn.describe_library())

HERE = Target((1,))


def graph(op: str = "matmul(%0, %1)", rows: int = 16, weights: str = "float32[900,900]") -> Graph:
    return parse(
        f"""
        (%0: float32[{rows},900] @ whole of 1, %1: {weights} @ whole of 1)
        %2 = {op} : float32[{rows},900] @ whole of 1
        return %2
        """
    )


def test_before_and_after() -> None:
    before, after = graph(), graph("matmul(%0, %1; stays=True)")
    assert mark_prepacked(before, HERE) == after
    assert mark_prepacked(after, HERE) is after
    assert mark_prepacked(before, HERE, donated=(0,)) == after


def test_what_does_not_stay_or_would_not_pay() -> None:
    before = graph()
    for target in (
        Target((1,), numerics="any-workers"),
        Target((1,), memory_limit=1 << 30),
    ):
        assert mark_prepacked(before, target) is before
    assert mark_prepacked(before, HERE, donated=(1,)) is before
    long = graph(rows=901)
    assert mark_prepacked(long, HERE) is long


def marked(function: object, *shapes: tuple[int, ...]) -> str:
    with use():
        given = [ost.zeros(shape, dtype=ost.float32) for shape in shapes]
        return str(ost.compile(function).plan_for(*given).program.graph)  # type: ignore[call-overload]


def test_looks_at_operands_stay_and_what_is_computed_does_not() -> None:
    shapes = (16, 900), (900, 900)
    assert "stays=True" in marked(lambda x, w: x @ w.T, *shapes)
    assert "stays=True" not in marked(lambda x, w: x @ (w + 1), *shapes)


def test_operands_stay_in_bodies_of_loops() -> None:
    def steps(x: object, w: object) -> object:
        return ost.repeat(3, lambda x: (x @ w) * 1e-3, x)  # type: ignore[operator]

    assert "stays=True" in marked(steps, (16, 900), (900, 900))
