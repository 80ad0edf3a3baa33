"""What is stacked and computed with plane by plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import canonical
from ostinato.ops.core.show import parse
from ostinato.planner.fusion.parted_stacks import part_stacks
from ostinato.planner.plan import Target

import ostinato as ost
from tests.helpers import on

HERE = Target((1,))

BEFORE = """
    (%0: float32[9], %1: float32[9])
    %2 = expand_dims(%0; axes=(0,)) : float32[1,9]
    %3 = expand_dims(%1; axes=(0,)) : float32[1,9]
    %4 = concat(%2, %3; axis=0) : float32[2,9]
    %5 = sum(%4; axes=(0,), dtype=dtype float32) : float32[9]
    %6 = exp(%4) : float32[2,9]
    %7 = slice(%6; sizes=(1, 8), starts=(1, 1), steps=(1, 1)) : float32[1,8]
    return %5, %7
"""
AFTER = """
    (%0: float32[9], %1: float32[9])
    %2 = expand_dims(%0; axes=(0,)) : float32[1,9]
    %3 = expand_dims(%1; axes=(0,)) : float32[1,9]
    %4 = add(%2, %3) : float32[1,9]
    %5 = squeeze(%4; axes=(0,)) : float32[9]
    %6 = exp(%3) : float32[1,9]
    %7 = slice(%6; sizes=(1, 8), starts=(0, 1), steps=(1, 1)) : float32[1,8]
    return %5, %7
"""


def test_before_and_after() -> None:
    before, after = parse(BEFORE), parse(AFTER)
    assert canonical(part_stacks(before, HERE)) == canonical(after)
    assert part_stacks(after, HERE) == after
    assert part_stacks(before, Target((1,), numerics="any-workers")) == before


def test_what_stays() -> None:
    """What somebody wants whole, and what is no stack of planes."""
    for text in (
        BEFORE.replace("return %5", "return %6, %5"),
        BEFORE.replace("sum(%4; axes=(0,)", "sum(%4; axes=(1,)").replace(": float32[9]\n    %6", ": float32[2]\n    %6"),
        BEFORE.replace("sizes=(1, 8), starts=(1, 1)", "sizes=(2, 8), starts=(0, 1)").replace("[1,8]", "[2,8]"),
    ):  # fmt: skip
        graph = parse(text)
        assert part_stacks(graph, HERE) == graph


def mixed(xp: Any, a: Any, b: Any) -> Any:
    s = xp.stack([a, b, a * b])
    t = xp.stack([b, a, a + b])
    return xp.sum(s * t - 2, axis=0) + s[1] * xp.max(t, axis=0)


def relaxed(xp: Any, a: Any, b: Any) -> Any:
    s = xp.stack([a, b])
    aim = xp.stack([xp.sum(s, axis=0) / 2, s[0] - s[1]])
    s = s + (aim - s) / 4
    return s * xp.asarray([[[1.0]], [[2.0]]])


def inner(xp: Any, a: Any, b: Any) -> Any:
    s, t = xp.stack([a, b, b], axis=1), xp.stack([b, b, a], axis=1)
    return xp.exp(s - xp.max(s, axis=1, keepdims=True)) * t[:, :, ::2].sum()


PROGRAMS: dict[str, Callable[..., Any]] = {"mixed": mixed, "relaxed": relaxed, "inner": inner}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_numpys(name: str) -> None:
    """In loops and outside, whole and split."""
    program = PROGRAMS[name]
    a, b = np.random.default_rng(1).standard_normal((2, 30, 40))
    wanted = program(np, a, b)
    for workers, split in ((1, None), (3, 0), (2, 1)):
        with on(workers):
            x, y = (ost.asarray(v, split=split) for v in (a, b))
            once = ost.compile(lambda a, b: program(ost, a, b))

            def turn(s: Any) -> Any:
                a, b, _ = s
                return a, b, program(ost, a, b)

            looped = ost.compile(lambda a, b: ost.repeat(2, turn, (a, b, program(ost, a, b)))[2])
            for f in (once, looped):
                np.testing.assert_allclose(np.asarray(f(x, y)), wanted, rtol=1e-11, atol=1e-12)


def test_nothing_is_joined_but_the_result() -> None:
    with on(1):
        f = ost.compile(lambda a, b: relaxed(ost, a, b)[0] + mixed(ost, a, b))
        f(np.ones((60, 70)), np.ones((60, 70)))
        assert "concat" not in {n.op for n in f.plan.program.graph.nodes}
        f = ost.compile(lambda a, b: relaxed(ost, a, b))
        f(np.ones((60, 70)), np.ones((60, 70)))
        assert "concat" not in {n.op for n in f.plan.program.graph.nodes}
