"""A product of a value's transpose with the value is symmetric, so half of it is computed.

before                                                     after
%1 = permute_dims(%0; axes=(1, 0)) : float32[8,90000]      %1 = gram(%0) : float32[8,8]
%2 = matmul(%1, %0) : float32[8,8]                         return %1
return %2

This belongs to this machine: plan files hold the graph without it. Extents decide, those of the
largest part."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.cpu.kernels.syrk import pays
from ostinato.planner.plan import Target, largest_part
from ostinato.planner.rewrite import replace, squared


def halve(graph: Graph, target: Target) -> Graph:
    """The pass; kernels that hold a product keep it."""
    squared = {k: v for k, node in enumerate(graph.nodes) if (v := squared_by(graph, node)) >= 0}

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, product = graph.nodes[k], OPS[graph.nodes[k].op].product
        assert product is not None
        return builder.add(product.squared, (values[squared[k]],), (), node.specs, node.line)

    return replace(graph, squared, make, lambda g: halve(g, target))


def squared_by(graph: Graph, node: Node) -> int:
    """The value whose transpose a product multiplies with it; else -1."""
    right = squared(graph, node)
    return right if right >= 0 and pays(largest_part(graph.specs[right])) else -1
