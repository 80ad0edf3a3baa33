"""Under `any-workers`: reductions whose bits depend on the order of addition become fixed blocks in
a fixed tree (ops/planned/reproducible.py), as their ops say (`in_blocks`).

before                                              after
(%0: float32[9,4])                                  (%0: float32[9,4])
%1 = mean(%0; axes=(0,), count=9) : float32[4]      %1 = fixed_sum(%0; axis=0, monoid='sum') : float32[4]
return %1                                           %2 = constant(; dtype=dtype float32, value=9.0) : float32[]
                                                    %3 = divide(%1, %2) : float32[4]
                                                    return %3

The other numerics need no pass: a plan runs its steps in one order, and communicators combine in
the order of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.array.expressions import Expression
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import is_inexact
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import Values, rebuild


def fix_order(graph: Graph, target: Target) -> Graph:
    """The pass; nothing unless the target asks for `any-workers`."""
    if target.numerics != "any-workers":
        return graph

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        in_blocks = OPS[node.op].parallel.in_blocks
        if in_blocks is None or not is_inexact(node.specs[-1].dtype):
            return None
        made = in_blocks(node, *(Expression(builder, v, node.line) for v in inputs))
        return [x.value for x in made]

    return rebuild(graph, rule, lambda g: fix_order(g, target))
