"""What is read in slices only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.graph import Graph, canonical
from ostinato.ops.core.show import parse
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.planner.cpu.slices import MAX_SLICES, slice_first
from ostinato.planner.plan import Target

import ostinato as ost
from tests import sessions
from tests.helpers import assert_same

HERE = Target((1,))

BEFORE = """
    (%0: uint8[9,3], %1: float32[9,3])
    %2 = astype(%0; dtype=dtype float32) : float32[9,3]
    %3 = divide(%2, %1) : float32[9,3]
    %4 = slice(%3; sizes=(9, 1), starts=(0, 2), steps=(1, 1)) : float32[9,1]
    %5 = squeeze(%4; axes=(1,)) : float32[9]
    %6 = exp(%5) : float32[9]
    return %6
"""
AFTER = """
    (%0: uint8[9,3], %1: float32[9,3])
    %2 = slice(%0; sizes=(9, 1), starts=(0, 2), steps=(1, 1)) : uint8[9,1]
    %3 = squeeze(%2; axes=(1,)) : uint8[9]
    %4 = astype(%3; dtype=dtype float32) : float32[9]
    %5 = slice(%1; sizes=(9, 1), starts=(0, 2), steps=(1, 1)) : float32[9,1]
    %6 = squeeze(%5; axes=(1,)) : float32[9]
    %7 = divide(%4, %6) : float32[9]
    %8 = exp(%7) : float32[9]
    return %8
"""


def test_before_and_after() -> None:
    before, after = parse(BEFORE), parse(AFTER)
    assert canonical(slice_first(before, HERE)) == canonical(after)
    assert slice_first(after, HERE) is after


def test_what_stays() -> None:
    repeated = """
        (%0: float32[9,3], %1: float32[3])
        %2 = add(%0, %1) : float32[9,3]
        %3 = slice(%2; sizes=(9, 1), starts=(0, 2), steps=(1, 1)) : float32[9,1]
        return %3
    """
    again = """
        (%0: float32[9])
        %1 = exp(%0) : float32[9]
        %2 = slice(%1; sizes=(8,), starts=(1,), steps=(1,)) : float32[8]
        %3 = slice(%1; sizes=(8,), starts=(0,), steps=(1,)) : float32[8]
        %4 = subtract(%2, %3) : float32[8]
        return %4
    """
    for text in (BEFORE.replace("return %6", "return %6, %3"), repeated, again):
        graph = parse(text)
        assert slice_first(graph, HERE) is graph
    cheap = parse(again.replace("exp(%0)", "negative(%0)"))
    assert [n.op for n in slice_first(cheap, HERE).nodes].count("negative") == 2


@pytest.mark.parametrize("wide", [False, True])
def test_long_chains_are_planned_at_once(wide: bool) -> None:
    """Neither in as many steps as there are ways through them, nor one call in another."""
    spec = "float32[1000000]"
    chain = [f"%{k} = multiply(%{k - 1}, %{k - 1 if wide else 0}) : {spec}" for k in range(1, 1500)]
    end = ["%1500 = slice(%1499; sizes=(1,), starts=(0,), steps=(1,)) : float32[1]", "return %1500"]
    nodes = [f"(%0: {spec})", *chain, *end]
    made = slice_first(parse("\n".join(nodes)), HERE)
    assert [n.op for n in made.nodes] == ["slice"] + ["multiply"] * 1499
    assert {n.specs[0].shape for n in made.nodes} == {(1,)}


def test_what_is_read_in_many_slices_stays() -> None:
    def rows(count: int) -> Graph:
        begin = [f"(%0: float32[{count},9])", f"%1 = negative(%0) : float32[{count},9]"]
        slices = [
            f"%{k + 2} = slice(%1; sizes=(1, 9), starts=({k}, 0), steps=(1, 1)) : float32[1,9]"
            for k in range(count)
        ]
        end = "return " + ", ".join(f"%{k + 2}" for k in range(count))
        return parse("\n".join([*begin, *slices, end]))

    many, few = rows(MAX_SLICES + 1), rows(MAX_SLICES)
    assert slice_first(many, HERE) is many
    assert [n.op for n in slice_first(few, HERE).nodes].count("negative") == MAX_SLICES


GRAY = np.array([0.299, 0.587, 0.114], np.float32)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_channels_of_a_picture_are_one_kernel() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (70, 90, 3)).astype(np.uint8)

    def gray(x: Any) -> Any:
        x = ost.astype(x, ost.float32)
        return sum(x[..., k] * GRAY[k] for k in range(3))

    with sessions.use():
        compiled = ost.compile(gray)
        wanted = sum(picture[..., k].astype(np.float32) * GRAY[k] for k in range(3))
        np.testing.assert_array_equal(np.asarray(compiled(ost.asarray(picture))), wanted)
        ops = [n.op for n in compiled.plan.program.graph.nodes]
        assert [op for op in ops if op not in ("slice", "squeeze")] == ["fused"]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_slices_of_anything(data: Any) -> None:
    """Of chains of two operands, looked at in up to three ways; some values are read whole, too."""
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    cuts = []
    for _ in range(data.draw(st.integers(1, 3))):
        parts: list[Any] = []
        for n in shape:
            begin = data.draw(st.integers(0, n - 1))
            one = data.draw(st.booleans())
            parts.append(begin if one else slice(begin, None, data.draw(st.sampled_from([1, 2]))))
        cuts.append(tuple(parts))
    chain = data.draw(st.lists(st.sampled_from(["scale", "add", "root", "clip"]), max_size=4))
    whole = data.draw(st.booleans())

    def program(xp: Any) -> Any:
        def run(x: Any, y: Any) -> Any:
            for step in chain:
                match step:
                    case "scale":
                        x = x * 2.5 - 1
                    case "add":
                        x = x + y
                    case "root":
                        x = xp.sqrt(xp.abs(x))
                    case "clip":
                        x = xp.where(x > 0, x, y)
            looks = [x[c] for c in cuts]
            return (*looks, looks[0] * 3, *([x] if whole else []))

        return run

    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    assert_same(program(ost), program(np), rng.random(shape), rng.random(shape), few=True)
