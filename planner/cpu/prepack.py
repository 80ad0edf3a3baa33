"""Products whose right matrix is an operand of the plan, which may be the same in many runs.

before                                       after
(%0: float32[16,900], %1: float32[900,900])  (%0: float32[16,900], %1: float32[900,900])
%2 = matmul(%0, %1) : float32[16,900]        %2 = matmul(%0, %1; stays=True) : float32[16,900]
return %2                                    return %2

What was given away does not stay; and where there are more rows than columns, the order in which the
library reads a matrix hardly matters. This belongs to this machine: plan files hold the graph without
it. Idempotent."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, Product
from ostinato.ops.cpu.fused import STEPS
from ostinato.ops.cpu.libraries.onednn import library
from ostinato.ops.jit.epilogues import begin_of
from ostinato.planner.passes.reads import seen_as
from ostinato.planner.plan import Target, largest_part
from ostinato.planner.rewrite import is_kernel, with_nodes


def mark_prepacked(graph: Graph, target: Target, donated: Sequence[int] = ()) -> Graph:
    """The pass. Under a limit of memory nothing is kept, and under `any-workers` products are others."""
    free = target.memory_limit is None and target.numerics != "any-workers"
    if not free:
        return graph
    marked = _marked(graph, {v for v in range(len(graph.inputs)) if v not in donated})
    return graph if marked is graph or isinstance(library(), str) else marked


def _marked(graph: Graph, staying: Collection[int]) -> Graph:
    """With these inputs staying."""
    stays = set(staying)
    nodes = list(graph.nodes)
    for k, node in enumerate(nodes):
        product = _product(node)
        if OPS[node.op].is_view and len(node.inputs) == 1 and node.inputs[0] in stays:
            stays.update(graph.outs(k))
        elif product is None:
            nodes[k] = node if is_kernel(node) else _with_marked_bodies(node, stays)
        elif node.inputs[product.right] in stays and (
            _pays(graph, node) if product.gemm else product.keeps
        ):
            params = tuple(sorted({**node.kw, "stays": True}.items()))
            nodes[k] = Node(node.op, node.inputs, params, node.specs, node.line)
    return with_nodes(graph, nodes)


def _product(node: Node) -> Product | None:
    if node.op != STEPS:
        return OPS[node.op].product
    body: Graph = node.kw["body"]
    return OPS[body.nodes[begin_of(body)].op].product


def _with_marked_bodies(node: Node, stays: Collection[int]) -> Node:
    inside: dict[str, set[int]] = {}
    for j, places in seen_as(node).items():
        for name, v in places if node.inputs[j] in stays else ():
            inside.setdefault(name, set()).add(v)
    if not inside:
        return node
    params = tuple((k, _marked(v, inside[k]) if k in inside else v) for k, v in node.params)
    same = all(new is old for (_, new), (_, old) in zip(params, node.params, strict=True))
    return node if same else Node(node.op, node.inputs, params, node.specs, node.line)


def _pays(graph: Graph, node: Node) -> bool:
    left, right = (largest_part(graph.specs[v]) for v in node.inputs)
    return right.ndim == 2 and math.prod(left.shape[:-1]) <= right.shape[-1]
