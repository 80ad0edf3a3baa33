"""A product of a value's transpose with the value is symmetric, so half of it is computed.

before                                                     after
%1 = permute_dims(%0; axes=(1, 0)) : float32[8,90000]      %1 = gram(%0) : float32[8,8]
%2 = matmul(%1, %0) : float32[8,8]                         return %1
return %2

This belongs to this machine: plan files hold the graph without it. Extents decide, those of the
largest part."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.cpu.fused import FUSED
from ostinato.ops.cpu.kernels.syrk import pays
from ostinato.planner.plan import Target, largest_part
from ostinato.planner.rewrite import map_bodies


def halve(graph: Graph, target: Target) -> Graph:
    """The pass; kernels that hold a product keep it."""
    squared = {k: v for k, node in enumerate(graph.nodes) if (v := squared_by(graph, node)) >= 0}
    builder, values = Builder(graph.inputs), {v: v for v in range(len(graph.inputs))}
    changed = bool(squared)
    for k, node in enumerate(graph.nodes):
        if _is_unread(graph, k, squared):
            continue
        if k in squared:
            product = OPS[node.op].product
            assert product is not None
            new = Node(product.squared, (squared[k],), (), node.specs, node.line)
        else:
            new = node if node.op in FUSED else map_bodies(node, lambda g: halve(g, target))
        changed |= new is not node
        inputs = [values[v] for v in new.inputs]
        made = builder.add(new.op, inputs, new.params, new.specs, new.line)
        values.update(zip(graph.outs(k), made, strict=True))
    outputs = tuple(values[v] for v in graph.outputs)
    return Graph(builder.inputs, tuple(builder.nodes), outputs) if changed else graph


def squared_by(graph: Graph, node: Node) -> int:
    """The value whose transpose a product multiplies with it; else -1."""
    product = OPS[node.op].product
    if product is None or not product.squared:
        return -1
    left, right = node.inputs[product.left], node.inputs[product.right]
    if right != _transposed(graph, left) and left != _transposed(graph, right):
        return -1
    return right if pays(largest_part(graph.specs[right])) else -1


def _transposed(graph: Graph, v: int) -> int:
    """The matrix that a value is the transpose of; else -1."""
    k = graph.producers[v]
    if k < 0 or not _is_transpose(graph.nodes[k]):
        return -1
    return graph.nodes[k].inputs[0]


def _is_transpose(node: Node) -> bool:
    return OPS[node.op].same_elements and node.kw.get("axes") == (1, 0) and node.specs[0].ndim == 2


def _is_unread(graph: Graph, k: int, squared: Mapping[int, int]) -> bool:
    """Whether only those products read a transpose, which do not need it."""
    v = graph.starts[k]
    if not _is_transpose(graph.nodes[k]) or v in graph.outputs:
        return False
    return bool(graph.uses[v]) and all(squared.get(u, v) != v for u in graph.uses[v])
