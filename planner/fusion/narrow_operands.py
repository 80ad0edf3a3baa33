"""Products of operands that are cast to a wider dtype first read them as they are, where the device
multiplies small integers or halves faster than what they are cast to.

before                                             after
%2 = astype(%0; dtype=dtype int32) : int32[4,6]    %2 = wide_matmul(%0, %1; dtype=dtype int32) : int32[4,5]
%3 = astype(%1; dtype=dtype int32) : int32[6,5]    return %2
%4 = matmul(%2, %3) : int32[4,5]
return %4

This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import Device, described
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import looked_at, replace


def narrow(graph: Graph, target: Target) -> Graph:
    """The pass; nothing changes where no product's operands are casts."""
    device = described(target.device)
    found = {k: s for k, node in enumerate(graph.nodes) if (s := _sources(graph, node, device))}

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, product = graph.nodes[k], OPS[graph.nodes[k].op].product
        assert product is not None
        inputs = [looked_at(builder, values[v], views) for v, views in found[k]]
        params = {**node.kw, "dtype": node.specs[0].dtype}
        return builder.add(product.wide, inputs, params, node.specs, node.line)

    return replace(graph, found, make, lambda g: narrow(g, target))


def _sources(graph: Graph, node: Node, device: Device) -> list[tuple[int, list[Node]]]:
    """Find what a product's operands are cast from, and the views of the casts; nothing where one is
    no cast, or gains nothing."""
    product = OPS[node.op].product
    if product is None or not product.wide:
        return []
    found = [
        (v, views)
        for v, views in (uncast(graph, v, True) for v in node.inputs)
        if views is not None
    ]
    if len(found) < len(node.inputs):
        return []
    left, right = (graph.specs[v].dtype for v, _ in found)
    return found if device.widens(left, right, node.specs[0].dtype) else []


def uncast(graph: Graph, v: int, reshaped: bool = False) -> tuple[int, list[Node] | None]:
    """A value before it was cast, and what looks at it since; None if it was not. `reshaped`: even with other
    shapes that may be copies."""
    views: list[Node] = []
    while (k := graph.producers[v]) >= 0:
        node = graph.nodes[k]
        if OPS[node.op].moves.converts:
            source = node.inputs[0]
            same = graph.specs[source].layout == node.specs[0].layout
            return source, views[::-1] if same else None
        looks = OPS[node.op].is_view or (reshaped and OPS[node.op].reshapes)
        if not looks or len(node.inputs) != 1 or len(node.specs) != 1:
            break
        views.append(node)
        v = node.inputs[0]
    return v, None
