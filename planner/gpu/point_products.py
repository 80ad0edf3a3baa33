"""Convolutions by windows of one element, their slopes, and those of one window in all, become products of
matrices: these libraries divide long sums among all multiprocessors, and nothing is copied for them.

before                                                       after
%2 = conv(%0, %1; ...) : float32[8,56,56,1,256]              %2 = reshape(%0) : float32[25088,64]
                                                             %3 = squeeze(%1) : float32[64,256]
                                                             %4 = matmul(%2, %3) : float32[25088,256]
                                                             %5 = reshape(%4) : float32[8,56,56,1,256]

This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.array.spelled_windows import multiply_points, points_of
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph
from ostinato.ops.gpu.convolutions import CONVOLUTIONS
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

from .split_terms import split_terms


def multiply_at_points(graph: Graph, target: Target) -> Graph:
    """The pass; what it makes may have few results of very many terms."""
    if target.numerics == "any-workers" or target.workers > 1:
        return graph
    found = {}
    for k, node in enumerate(graph.nodes):
        if node.op in CONVOLUTIONS:
            specs = [graph.specs[v] for v in node.inputs]
            ours = described(target.device).does(node, specs)  # what no library does, kernels may
            if ours and (points := points_of(node, specs)) is not None:
                found[k] = points

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        return [multiply_points(builder, node, [values[v] for v in node.inputs], found[k])]

    made = replace(graph, found, make, lambda g: multiply_at_points(g, target))
    return split_terms(made, target) if found else made
