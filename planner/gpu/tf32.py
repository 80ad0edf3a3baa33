"""Under a policy that says so, products of float32 read their operands as TF32, which has 10 bits of mantissa.

before                                    after, under `mixed_tf32`
%2 = matmul(%0, %1) : float32[8,9]        %2 = matmul(%0, %1; tf32=True) : float32[8,9]

This belongs to this machine: plan files hold the graph without it, and elsewhere float32 is multiplied.
Idempotent."""

from __future__ import annotations

from functools import partial

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import float32
from ostinato.planner.plan import Target
from ostinato.planner.policy import Precision, policy_of
from ostinato.planner.rewrite import map_bodies, with_nodes


def use_tf32(graph: Graph, target: Target) -> Graph:
    """The pass."""
    policy = policy_of(target.precision)
    if not isinstance(policy, Precision) or not policy.allows_tf32:
        return graph

    def marked(node: Node) -> Node:
        product = OPS[node.op].product
        ours = product is not None and (
            product.gemm or product.folded is not None or OPS[node.op].run.placed
        )
        if ours and all(graph.specs[v].dtype == float32 for v in node.inputs):
            params = tuple(sorted({**node.kw, "tf32": True}.items()))
            return Node(node.op, node.inputs, params, node.specs, node.line)
        return map_bodies(node, partial(use_tf32, target=target))

    return with_nodes(graph, [marked(n) for n in graph.nodes])
