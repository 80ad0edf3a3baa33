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

from ostinato.ops.collective import COLLECTIVES
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.spec import Spec
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import Values, map_bodies, rebuild

from .order import ordered


def overlap(graph: Graph, target: Target, donated: Collection[int] = ()) -> Graph:
    """The pass: other work moves between a collective's operand and its first reader. Idempotent,
    as it leaves no whole collective that has something to overlap with."""
    if target.workers == 1:
        return graph
    nodes = [map_bodies(n, lambda g: overlap(g, target)) for n in graph.nodes]
    graph = Graph(graph.inputs, tuple(nodes), graph.outputs)
    if not any(n.op in COLLECTIVES for n in nodes):
        return graph
    halves = rebuild(graph, _in_halves, keep_order=True)
    halves = ordered(halves, target, donated)
    both = {(a, b) for a, b in pairwise(halves.nodes) if (a.op, b.op) == ("start", "wait")}
    starts = {a for a, b in both if halves.nodes[halves.producers[b.inputs[0]]] is a}

    def whole(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        if node in starts:
            params = tuple(p for p in node.params if p[0] != "collective")
            specs = [Spec(s.shape, s.dtype, s.layout) for s in node.specs]
            return builder.add(node.kw["collective"], inputs, params, specs, node.line)
        made = builder.maker(inputs[0]) if node.op == "wait" else None
        return inputs[: len(node.specs)] if made and made.op in COLLECTIVES else None

    return rebuild(halves, whole, keep_order=True)


def _in_halves(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
    if node.op not in COLLECTIVES:
        return None
    params = tuple(sorted((*node.params, ("collective", node.op))))
    specs = [Spec(s.shape, s.dtype, s.layout, True) for s in node.specs]
    pending = builder.add("start", inputs, params, specs, node.line)
    return builder.add("wait", (*pending, *inputs), (), node.specs, node.line)
