"""Sums of sums become one sum over all of their axes, where few results are left: the blocks of a GPU share it.

before                                                      after
%1 = sum(%0; axes=(2, 3)) : float32[8,64]                   %1 = sum(%0; axes=(0, 2, 3)) : float32[64]
%2 = sum(%1; axes=(0,)) : float32[64]                       return %1
return %2

Rows are summed first when a program is traced, which suits who does it row by row. This belongs to this
machine: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.gpu.loops.schedule import BLOCKS
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace


def sum_at_once(graph: Graph, target: Target) -> Graph:
    """The pass."""
    if target.numerics == "any-workers" or target.workers > 1:
        return graph
    found = dict[int, int]()  # of the second one, the first
    for k, node in enumerate(graph.nodes):
        if node.op != "sum" or (j := graph.producers[node.inputs[0]]) < 0 or j in found:
            continue
        inner, (v,) = graph.nodes[j], node.inputs
        same = inner.op == "sum" and inner.kw["dtype"] == node.kw["dtype"]
        alone = graph.uses[v] == (k,) and v not in graph.outputs
        if same and alone and node.specs[0].size < BLOCKS:
            found[k] = j

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, inner = graph.nodes[k], graph.nodes[found[k]]
        (x,) = inner.inputs
        left = [d for d in range(graph.specs[x].ndim) if d not in inner.kw["axes"]]
        axes = tuple(sorted((*inner.kw["axes"], *(left[a] for a in node.kw["axes"]))))
        return builder.add("sum", [values[x]], {**node.kw, "axes": axes}, node.specs, node.line)

    return replace(graph, found, make, lambda g: sum_at_once(g, target))
