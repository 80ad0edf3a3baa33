"""Each pass on small graphs, written as text: before, after."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.show import parse, show
from ostinato.ops.cpu.cpu_device import CPU
from ostinato.planner import pipeline
from ostinato.planner.cpu import passes as cpu
from ostinato.planner.lowering import lower
from ostinato.planner.passes.communicate import communicate
from ostinato.planner.passes.layouts import choose_layouts
from ostinato.planner.passes.memory import assign_memory, own_outputs
from ostinato.planner.passes.numerics import fix_order
from ostinato.planner.passes.overlap import overlap
from ostinato.planner.passes.simplify import simplify
from ostinato.planner.pipeline import make_plan
from ostinato.planner.plan import Key, Target

from ostinato import settings
from tests.fake_device import FAKE

ONE, TWO = Target(), Target((2,))
EXACT = Target((1,), numerics="any-workers")


def graph(text: str) -> Graph:
    return parse(textwrap.dedent(text).strip())


def same(found: Graph, expected: str) -> None:
    assert show(found) == textwrap.dedent(expected).strip()


# -- simplify ------------------------------------------------------------------------------------
def test_two_permutations_are_one_or_none() -> None:
    before = graph("""
        (%0: float32[4,8])
        %1 = permute_dims(%0; axes=(1, 0)) : float32[8,4]
        %2 = permute_dims(%1; axes=(1, 0)) : float32[4,8]
        %3 = exp(%2) : float32[4,8]
        return %3
    """)
    same(
        simplify(before, ONE),
        """
        (%0: float32[4,8])
        %1 = exp(%0) : float32[4,8]
        return %1
        """,
    )


SIMPLER = {
    "marks": ("%1 = mark(%0) : float32[4]\n%2 = stop_gradient(%1) : float32[4]", "%0"),
    "reshape there and back": (
        "%1 = reshape(%0; shape=(2, 2)) : float32[2,2]\n%2 = reshape(%1; shape=(4,)) : float32[4]",
        "%0",
    ),
    "slice of everything": (
        "%1 = slice(%0; sizes=(4,), starts=(3,), steps=(-1,)) : float32[4]\n"
        "%2 = slice(%1; sizes=(4,), starts=(3,), steps=(-1,)) : float32[4]",
        "%0",
    ),
    "cast up and down": (
        "%1 = astype(%0; dtype=dtype float64) : float64[4]\n"
        "%2 = astype(%1; dtype=dtype float32) : float32[4]",
        "%0",
    ),
    "times one": (
        "%1 = constant(; dtype=dtype float32, value=1.0) : float32[]\n%2 = multiply(%0, %1) : float32[4]",
        "%0",
    ),
    "times an array of ones": (
        "%1 = full(; dtype=dtype float32, shape=(4,), value=1.0) : float32[4]\n"
        "%2 = multiply(%1, %0) : float32[4]",
        "%0",
    ),
    "minus minus": ("%1 = negative(%0) : float32[4]\n%2 = negative(%1) : float32[4]", "%0"),
    "where both are one": (
        "%1 = isnan(%0) : bool[4]\n%2 = where(%1, %0, %0) : float32[4]",
        "%0",
    ),
    "resplit on one worker": (
        "%1 = resplit(%0; mesh=None, split=0) : float32[4]\n%2 = copy(%1) : float32[4]",
        "%0",
    ),
}


@pytest.mark.parametrize("name", SIMPLER)
def test_needless_nodes_go(name: str) -> None:
    body, _ = SIMPLER[name]
    found = simplify(graph(f"(%0: float32[4])\n{body}\nreturn %2"), ONE)
    same(found, "(%0: float32[4])\nreturn %0")


KEPT = {
    "adding 0 turns -0.0 into 0.0": (
        "%1 = constant(; dtype=dtype float32, value=0.0) : float32[]\n%2 = add(%0, %1) : float32[4]"
    ),
    "subtracting -0.0 does too": (
        "%1 = constant(; dtype=dtype float32, value=-0.0) : float32[]\n%2 = subtract(%0, %1) : float32[4]"
    ),
    "a cast down loses something": (
        "%1 = astype(%0; dtype=dtype float16) : float16[4]\n"
        "%2 = astype(%1; dtype=dtype float32) : float32[4]"
    ),
    "a product with one of a larger shape repeats": (
        "%1 = full(; dtype=dtype float32, shape=(3, 4), value=1.0) : float32[3,4]\n"
        "%2 = multiply(%0, %1) : float32[3,4]"
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_changes_a_bit_stays(name: str) -> None:
    before = graph(f"(%0: float32[4])\n{KEPT[name]}\nreturn %2")
    assert len(simplify(before, ONE).nodes) == len(before.nodes)


def test_numbers_are_computed_and_arrays_of_one_number_become_it() -> None:
    before = graph("""
        (%0: float32[4])
        %1 = constant(; dtype=dtype float32, value=2.0) : float32[]
        %2 = constant(; dtype=dtype float32, value=3.0) : float32[]
        %3 = multiply(%1, %2) : float32[]
        %4 = full(; dtype=dtype float32, shape=(4,), value=1.5) : float32[4]
        %5 = add(%4, %3) : float32[4]
        %6 = add(%0, %5) : float32[4]
        return %6
    """)
    same(
        simplify(before, ONE),
        """
        (%0: float32[4])
        %1 = constant(; dtype=dtype float32, value=7.5) : float32[]
        %2 = add(%0, %1) : float32[4]
        return %2
        """,
    )


def test_mean_comes_with_the_variance() -> None:
    before = graph("""
        (%0: float64[9,4])
        %1 = mean(%0; axes=(0,), count=9) : float64[4]
        %2, %3, %4 = moments(%0; axes=(0,)) : float64[], float64[4], float64[4]
        return %1, %4
    """)
    same(
        simplify(before, ONE),
        """
        (%0: float64[9,4])
        %1, %2, %3 = moments(%0; axes=(0,)) : float64[], float64[4], float64[4]
        return %2, %3
        """,
    )


def test_two_loops_of_which_one_yields_more_are_one() -> None:
    import ostinato as ost
    from tests.sessions import use

    with use():
        f = ost.compile(
            ost.value_and_grad(lambda w: ost.repeat(3, lambda s: ost.sin(s * w), w).sum())
        )
        f(ost.ones(4))
        loops = [n for n in f.plan.program.graph.nodes if n.op == "loop"]
    assert len(loops) == 2, "one forwards, which also keeps the states, and one back"


def test_simplify_is_idempotent() -> None:
    for name in SIMPLER:
        once = simplify(graph(f"(%0: float32[4])\n{SIMPLER[name][0]}\nreturn %2"), ONE)
        assert simplify(once, ONE) == once


# -- numerics --------------------------------------------------------------------------------------
def test_sums_become_fixed_sums() -> None:
    before = graph("""
        (%0: float32[9,4])
        %1 = mean(%0; axes=(0,), count=9) : float32[4]
        return %1
    """)
    same(
        fix_order(before, EXACT),
        """
        (%0: float32[9,4])
        %1 = fixed_sum(%0; axis=0, monoid='sum') : float32[4]
        %2 = constant(; dtype=dtype float32, value=9.0) : float32[]
        %3 = divide(%1, %2) : float32[4]
        return %3
        """,
    )
    assert fix_order(before, ONE) is before


def test_whole_numbers_are_left_alone() -> None:
    before = graph("""
        (%0: int64[9,4])
        %1 = sum(%0; axes=(0,), dtype=dtype int64) : int64[4]
        return %1
    """)
    assert fix_order(before, EXACT) == before


# -- layouts, communicate, overlap --------------------------------------------------------------------
def test_layouts_and_relayouts() -> None:
    before = graph("""
        (%0: float32[8,4] @ split 0 of 2, %1: float32[4,3] @ whole of 2)
        %2 = matmul(%0, %1) : float32[8,3]
        %3 = sum(%2; axes=(0,), dtype=dtype float32) : float32[3]
        return %3
    """)
    laid = choose_layouts(before, TWO)
    same(
        laid,
        """
        (%0: float32[8,4] @ split 0 of 2, %1: float32[4,3] @ whole of 2)
        %2 = matmul(%0, %1) : float32[8,3] @ split 0 of 2
        %3 = sum(%2; axes=(0,), dtype=dtype float32) : float32[3] @ partial sum of 2
        %4 = relayout(%3) : float32[3] @ whole of 2
        return %4
        """,
    )
    same(
        communicate(laid, TWO),
        """
        (%0: float32[8,4] @ split 0 of 2, %1: float32[4,3] @ whole of 2)
        %2 = matmul(%0, %1) : float32[8,3] @ split 0 of 2
        %3 = sum(%2; axes=(0,), dtype=dtype float32) : float32[3] @ partial sum of 2
        %4 = all_reduce(%3; axes=(0,), monoid='sum') : float32[3] @ whole of 2
        return %4
        """,
    )


def test_halos_of_one_value_merge() -> None:
    text = """
        (%0: float32[8] @ split 0 of 2)
        %1 = relayout(%0) : float32[8] @ split 0 window 6:0:1:1 of 2
        %2 = slice(%1; sizes=(6,), starts=(0,), steps=(1,)) : float32[6] @ split 0 of 2
        %3 = relayout(%0) : float32[8] @ split 0 window 6:2:1:1 of 2
        %4 = slice(%3; sizes=(6,), starts=(2,), steps=(1,)) : float32[6] @ split 0 of 2
        %5 = add(%2, %4) : float32[6] @ split 0 of 2
        return %5
    """
    same(
        communicate(graph(text), TWO),
        """
        (%0: float32[8] @ split 0 of 2)
        %1 = halo(%0) : float32[8] @ split 0 window 6:0:1:3 of 2
        %2 = slice(%1; sizes=(6,), starts=(0,), steps=(1,)) : float32[6] @ split 0 of 2
        %3 = slice(%1; sizes=(6,), starts=(2,), steps=(1,)) : float32[6] @ split 0 of 2
        %4 = add(%2, %3) : float32[6] @ split 0 of 2
        return %4
        """,
    )


def test_collectives_in_two_halves() -> None:
    before = graph("""
        (%0: float32[4] @ partial sum of 2, %1: float32[4] @ whole of 2)
        %2 = all_reduce(%0; axes=(0,), monoid='sum') : float32[4] @ whole of 2
        %3 = exp(%1) : float32[4] @ whole of 2
        %4 = add(%2, %3) : float32[4] @ whole of 2
        return %4
    """)
    after = overlap(before, TWO)
    same(
        after,
        """
        (%0: float32[4] @ partial sum of 2, %1: float32[4] @ whole of 2)
        %2 = start(%0; axes=(0,), collective='all_reduce', monoid='sum') : pending float32[4] @ whole of 2
        %3 = exp(%1) : float32[4] @ whole of 2
        %4 = wait(%2, %0) : float32[4] @ whole of 2
        %5 = add(%4, %3) : float32[4] @ whole of 2
        return %5
        """,
    )
    assert overlap(after, TWO) == after


def test_a_collective_with_nothing_beside_it_stays_whole() -> None:
    before = graph("""
        (%0: float32[4] @ partial sum of 2)
        %1 = all_reduce(%0; axes=(0,), monoid='sum') : float32[4] @ whole of 2
        return %1
    """)
    assert overlap(before, TWO) == before


# -- memory ---------------------------------------------------------------------------------------------
def test_outputs_own_their_memory() -> None:
    before = graph("""
        (%0: float32[4,2] @ whole of 1)
        %1 = permute_dims(%0; axes=(1, 0)) : float32[2,4] @ whole of 1
        %2 = exp(%0) : float32[4,2] @ whole of 1
        return %1, %2, %2, %0
    """)
    names = [n.op for n in own_outputs(before).nodes]
    assert names == ["permute_dims", "exp", "copy", "copy", "copy"]


def test_slots() -> None:
    program = assign_memory(
        graph("""
        (%0: float32[4] @ whole of 1)
        %1 = exp(%0) : float32[4] @ whole of 1
        %2 = reshape(%1; shape=(2, 2)) : float32[2,2] @ whole of 1
        %3 = matmul(%2, %2) : float32[2,2] @ whole of 1
        %4 = sin(%3) : float32[2,2] @ whole of 1
        return %4
        """),
        CPU,
    )
    kinds = [(s.kind, s.at) for s in program.slots]
    assert kinds == [("input", 0), ("arena", 0), ("alias", 1), ("output", 0), ("output", 0)]
    assert program.arena_bytes == 64


# -- devices -------------------------------------------------------------------------------------
CHAIN = """
    (%0: float32[300,300] @ whole of 1)
    %1 = permute_dims(%0; axes=(1, 0)) : float32[300,300] @ whole of 1
    %2 = matmul(%1, %0) : float32[300,300] @ whole of 1
    %3 = exp(%2) : float32[300,300] @ whole of 1
    %4 = tanh(%3) : float32[300,300] @ whole of 1
    return %4
"""


def test_another_device_has_none_of_the_cpus_passes() -> None:
    before = graph(CHAIN)
    elsewhere = lower(before, Target(device=FAKE.name)).graph
    assert elsewhere == before
    assert any(n.op.startswith("fused") for n in lower(before, ONE).graph.nodes)


def test_every_pass_of_a_device_is_timed_dumped_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "dump", str(tmp_path))
    plan = make_plan(Key(simplify(graph(CHAIN.replace(" @ whole of 1", "")), ONE), ONE))
    named = [run.__name__ for run in (*pipeline.PASSES, *cpu.PASSES)]
    assert list(plan.seconds) == [*named, "assign_memory"]
    numbered = sorted(path.stem.split("_", 3)[2:] for path in tmp_path.iterdir())
    dumped = [name for _, name in numbered]
    assert dumped == ["traced", *named, "program"]
