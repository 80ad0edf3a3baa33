"""Collectives start as soon as their operand exists and are awaited when nothing else is left to
do.

before                              after
%1 = matmul(...)                    %1 = matmul(...)
%2 = all_reduce(%1)                 %2 = start(%1; collective='all_reduce')
%3 = matmul(...)                    %3 = matmul(...)
%4 = add(%2, %3)                    %4 = wait(%2, %1)
return %4                           %5 = add(%4, %3)
                                    return %5

The wait reads the operand too, which therefore keeps its memory until then. All workers have the
same order, so collectives meet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import Spec
from ostinato.ops.planned.collective import COLLECTIVES
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace, rewrite_bodies

from .order import ordered


def overlap(graph: Graph, target: Target, donated: Collection[int] = ()) -> Graph:
    """The pass: other work moves between a collective's operand and its first reader. Idempotent,
    as it leaves no whole collective that has something to overlap with."""
    if target.workers == 1:
        return graph
    graph = rewrite_bodies(graph, lambda g: overlap(g, target))
    met = {k for k, node in enumerate(graph.nodes) if node.op in COLLECTIVES}

    def split_halves(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        inputs = [values[v] for v in node.inputs]
        params = tuple(sorted((*node.params, ("collective", node.op))))
        specs = [Spec(s.shape, s.dtype, s.layout, True) for s in node.specs]
        pending = builder.add("start", inputs, params, specs, node.line)
        return builder.add("wait", (*pending, *inputs), (), node.specs, node.line)

    if not met:
        return graph
    halves = ordered(replace(graph, met, split_halves), target, donated)
    together = {
        k
        for k, (a, b) in enumerate(pairwise(halves.nodes))
        if a.op == "start" and b.op == "wait" and b.inputs[0] == halves.starts[k]
    }

    def whole(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = halves.nodes[k]
        inputs = [values[v] for v in node.inputs]
        if node.op == "wait":
            return inputs[: len(node.specs)]
        params = tuple(p for p in node.params if p[0] != "collective")
        specs = [Spec(s.shape, s.dtype, s.layout) for s in node.specs]
        return builder.add(node.kw["collective"], inputs, params, specs, node.line)

    return replace(halves, {k + n for k in together for n in (0, 1)}, whole)
