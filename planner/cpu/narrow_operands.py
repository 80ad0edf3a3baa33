"""Products of operands that are cast to a wider dtype first read them as they are, where oneDNN
multiplies small integers and halves faster than what they are cast to.

before                                             after
%2 = astype(%0; dtype=dtype int32) : int32[4,6]    %2 = wide_matmul(%0, %1; dtype=dtype int32) : int32[4,5]
%3 = astype(%1; dtype=dtype int32) : int32[6,5]    return %2
%4 = matmul(%2, %3) : int32[4,5]
return %4

This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.cpu.libraries.onednn import can_widen
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import looked_at, map_bodies, needed


def narrow(graph: Graph, target: Target) -> Graph:
    """The pass; nothing changes where no product's operands are casts."""
    builder, values = Builder(graph.inputs), list(range(len(graph.inputs)))
    changed = False
    for node in graph.nodes:
        whole = map_bodies(node, lambda g: narrow(g, target))
        product = OPS[node.op].product
        wide = product.wide if product is not None else ""
        inputs = _sources(graph, node, builder, values) if wide else None
        changed |= inputs is not None or whole is not node
        if inputs is None:
            inputs, op, params = [values[v] for v in node.inputs], node.op, whole.params
        else:
            op, params = wide, (("dtype", node.specs[0].dtype),)
        values.extend(builder.add(op, inputs, params, node.specs, node.line))
    return needed(builder, [values[v] for v in graph.outputs]) if changed else graph


def _sources(graph: Graph, node: Node, builder: Builder, values: Sequence[int]) -> list[int] | None:
    """What a product's operands are cast from, seen as the casts are."""
    found = [uncast(graph, v) for v in node.inputs]
    dtypes = [graph.specs[v].dtype for v, _ in found]
    if not all(views is not None for _, views in found):
        return None
    if not can_widen(dtypes[0], dtypes[1], node.specs[0].dtype):
        return None
    return [looked_at(builder, values[v], views or ()) for v, views in found]


def uncast(graph: Graph, v: int) -> tuple[int, list[Node] | None]:
    """A value before it was cast, and what looks at it since; None if it was not."""
    views: list[Node] = []
    while (k := graph.producers[v]) >= 0:
        node = graph.nodes[k]
        if OPS[node.op].converts:
            source = node.inputs[0]
            same = graph.specs[source].layout == node.specs[0].layout
            return source, views[::-1] if same else None
        if not OPS[node.op].only_looks or len(node.inputs) != 1 or len(node.specs) != 1:
            break
        views.append(node)
        v = node.inputs[0]
    return v, None
