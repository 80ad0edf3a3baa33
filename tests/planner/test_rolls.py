"""What is rolled several ways, as one copy with edges around it."""

from __future__ import annotations

import numpy as np
import pytest
from ostinato.ops.core.graph import canonical
from ostinato.ops.core.show import parse
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.planner.cpu.rolls import slice_rolls
from ostinato.planner.plan import Target

import ostinato as ost
from tests.helpers import on

HERE = Target((1,))

BEFORE = """
    (%0: float32[9])
    %1 = slice(%0; sizes=(1,), starts=(8,), steps=(1,)) : float32[1]
    %2 = slice(%0; sizes=(8,), starts=(0,), steps=(1,)) : float32[8]
    %3 = concat(%1, %2; axis=0) : float32[9]
    %4 = slice(%0; sizes=(8,), starts=(1,), steps=(1,)) : float32[8]
    %5 = slice(%0; sizes=(1,), starts=(0,), steps=(1,)) : float32[1]
    %6 = concat(%4, %5; axis=0) : float32[9]
    %7 = add(%3, %6) : float32[9]
    return %7
"""
AFTER = """
    (%0: float32[9])
    %1 = slice(%0; sizes=(1,), starts=(8,), steps=(1,)) : float32[1]
    %2 = slice(%0; sizes=(1,), starts=(0,), steps=(1,)) : float32[1]
    %3 = concat(%1, %0, %2; axis=0) : float32[11]
    %4 = slice(%3; sizes=(9,), starts=(0,), steps=(1,)) : float32[9]
    %5 = slice(%3; sizes=(9,), starts=(2,), steps=(1,)) : float32[9]
    %6 = add(%4, %5) : float32[9]
    return %6
"""


def test_before_and_after() -> None:
    before, after = parse(BEFORE), parse(AFTER)
    assert canonical(slice_rolls(before, HERE)) == canonical(after)
    assert slice_rolls(after, HERE) == after


def test_what_stays() -> None:
    """One roll; what is given back or multiplied; slices that are no roll, and what is split along them."""
    split = BEFORE.replace("[9]", "[9] @ split 0 of 2").replace("[8]", "[8] @ split 0 of 2")
    for text in (
        BEFORE.replace("add(%3, %6)", "add(%3, %3)"),
        BEFORE.replace("return %7", "return %7, %6"),
        BEFORE.replace("add(%3, %6) : float32[9]", "matmul(%3, %6) : float32[]"),
        BEFORE.replace("starts=(1,)", "starts=(0,)"),
        split.replace("[1]", "[1] @ split 0 of 2"),
    ):
        graph = parse(text)
        assert slice_rolls(graph, HERE) == graph


@pytest.mark.parametrize("seed", range(4))
def test_any_rolls_of_any_arrays(seed: int) -> None:
    """In loops and outside, on some workers in several layouts, as NumPy rolls them, and with at most one copy
    for each axis that kernels read rolls of."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(20, 30, int(rng.integers(1, 4))))
    x = rng.standard_normal(shape)
    moves = [tuple(int(s) for s in rng.integers(-2, 3, x.ndim)) for _ in range(5)]

    def step(xp, x):
        rolled = [xp.roll(x, move, tuple(range(x.ndim))) for move in moves]
        return sum(k * y for k, y in enumerate(rolled, 1)) / 15 + 0 * xp.roll(x, 1)

    wanted = step(np, step(np, x))
    for workers, split in ((1, None), (3, 0), (2, x.ndim - 1)):
        with on(workers):
            given = ost.asarray(x, split=split)
            once = ost.compile(lambda x: step(ost, step(ost, x)))
            twice = ost.compile(lambda x: ost.repeat(2, lambda x: step(ost, x), x))
            for f in (once, twice):
                np.testing.assert_allclose(np.asarray(f(given)), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(bool(why_not()), reason="needs LLVM")
def test_a_short_loop_copies_once_for_each_axis_and_a_long_one_not_at_all() -> None:
    around = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
    for shape, turns, op, joins in (((16, 20), 400, "fused_loop", 2), ((60, 70), 3, "loop", 0)):
        with on(1):
            f = ost.compile(
                lambda x: ost.repeat(
                    turns,  # noqa: B023
                    lambda x: sum(ost.roll(x, move, (0, 1)) for move in around) / 9,
                    x,
                )
            )
            f(np.ones(shape, np.float32))
            (loop,) = f.plan.program.graph.nodes
            assert loop.op == op
            names = [n.op for n in loop.kw["body"].nodes]
            assert names.count("concat") == joins * (turns // loop.kw["trips"])
            assert names.count("fused_joins") == (not joins)
