"""Groups of operations that become one node each."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.show import parse
from ostinato.planner.cpu.fuse import fuse
from ostinato.planner.fusion import convex
from ostinato.planner.fusion.convex import NEVER, Unit, Units
from ostinato.planner.plan import Target
from ostinato.planner.title import title

import ostinato as ost
from tests import sessions

X = np.random.default_rng(0).standard_normal((200, 300))


def program(r: random.Random, n: int) -> Graph:
    """Sums of two values before them, and collectives."""
    lines = ["(%0: float32[9] @ whole of 2)"]
    for v in range(1, n + 1):
        a, b = r.randrange(v), r.randrange(v)
        made = f"all_gather(%{a})" if r.random() < 0.1 else f"add(%{a}, %{b})"
        lines.append(f"%{v} = {made} : float32[9] @ whole of 2")
    return parse("\n".join([*lines, f"return %{n}"]))


def can_run(graph: Graph, of: list[Unit]) -> bool:
    """Whether units can run one after the other, and collectives in their order."""
    met = [k for k in range(len(of)) if graph.nodes[k].op == "all_gather"]
    pairs = {*pairwise(met)}
    for k, node in enumerate(graph.nodes[: len(of)]):
        pairs |= {(p, k) for v in node.inputs if (p := graph.producers[v]) >= 0}
    edges = [(of[p], of[k]) for p, k in pairs if of[p] is not of[k]]
    left = {*map(id, of)}
    while free := left - {id(b) for a, b in edges if id(a) in left}:
        left -= free
    return not left


@pytest.mark.parametrize("long", [4096, 6])
@pytest.mark.parametrize("seed", range(40))
def test_units_can_run_one_after_the_other(
    seed: int, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever joins, or takes in, what may; and what is refused could not run, or would have to wait for
    a collective, or is long ago.
    """
    monkeypatch.setattr(convex, "WINDOW_NODES", long)
    r = random.Random(seed)
    graph = program(r, 40)
    units = Units(graph, 2)
    groups: list[Unit] = []
    refused = 0
    for k, node in enumerate(graph.nodes):
        if node.op == "all_gather" or r.random() < 0.1:
            units.alone(k)
            continue
        group = r.choice([*groups, Unit()])
        outside = [v for v in node.inputs if graph.producers[v] not in group.members]
        if units.joins(group, outside) == NEVER:
            makers = [units.of[p] for v in outside if (p := graph.producers[v]) >= 0]
            late = any(m.before & ~group.before & units._met for m in makers)
            closed = not group.bits
            assert late or closed or not can_run(graph, [*units.of, group])
            refused += 1
            group, outside = Unit(), list(node.inputs)
        group.members.append(k)
        group.operands |= dict.fromkeys(outside)
        units.join(k, group)
        groups += [group] * (group not in groups)
        for other in [g for g in groups if g is not group and reads(graph, group, g)]:
            if units.merges(group, other):
                group.members += other.members
                both = {*group.operands, *other.operands}
                group.operands = {v: None for v in both if graph.producers[v] not in group.members}
                units.merge(group, group, other)
                groups.remove(other)
        assert can_run(graph, units.of)
    assert refused or len(groups) < 4


def reads(graph: Graph, group: Unit, other: Unit) -> bool:
    return any(graph.producers[v] in other.members for v in group.operands)


# -- kernels -------------------------------------------------------------------------------
def kernels(function: Any, *arrays: Any) -> list[str]:
    """What a function becomes; its value is NumPy's."""
    with sessions.use():
        f = ost.compile(lambda *xs: function(ost, *xs))
        made = np.asarray(f(*map(ost.asarray, arrays)))
        nodes = f.plan.program.graph.nodes
    np.testing.assert_allclose(made, function(np, *arrays), rtol=1e-12, atol=1e-12)
    return [title(n) for n in nodes if n.op != "constant" and "slice" not in n.op]


def test_a_kernel_waits_for_what_it_reads_last() -> None:
    made = kernels(lambda xp, x, y: xp.exp(x) * 2 + xp.sort(y, axis=0), X, X + 1)
    assert made == ["sort", "fused(exp, multiply, add)"]


def test_a_kernel_takes_in_another_that_it_reads() -> None:
    made = kernels(lambda xp, x, y: xp.exp(x) + xp.tanh(xp.sort(y, axis=0)), X, X + 1)
    assert made == ["sort", "fused(exp, tanh, add)"]


def test_a_path_that_leaves_a_group_may_not_return() -> None:
    made = kernels(lambda xp, x: xp.exp(x) + xp.tanh(xp.sort(xp.exp(x), axis=0)), X)
    assert made == ["fused(exp)", "sort", "fused(tanh, add)"]


def test_no_kernel_waits_if_that_takes_more_memory() -> None:
    """Two arrays that are read nowhere else would have to stay while a third is made."""

    def around(xp: Any, x: Any) -> Any:
        rows = xp.sort(x, axis=0) + xp.sort(x, axis=1)
        return rows + xp.cumulative_sum(x, axis=1) * 0.5

    made = kernels(around, X)
    assert made == ["sort", "sort", "fused(add)", "cumulative_sum", "fused(multiply, add)"]


def test_no_kernel_waits_for_a_collective() -> None:
    """What is elementwise before it runs while others send."""
    graph = parse("""
        (%0: float32[9,9000] @ partial sum of 2, %1: float32[9,9000] @ whole of 2)
        %2 = start(%0; axes=(0,), collective='all_reduce', monoid='sum') : pending float32[9,9000] @ whole of 2
        %3 = exp(%1) : float32[9,9000] @ whole of 2
        %4 = wait(%2, %0) : float32[9,9000] @ whole of 2
        %5 = add(%3, %4) : float32[9,9000] @ whole of 2
        return %5
    """)
    made = [title(n) for n in fuse(graph, Target((2,))).nodes]
    assert made == ["start", "fused(exp)", "wait", "fused(add)"]
