"""Products that sum over several axes, such as the slopes of weights that whole batches read, become products
of matrices, of which all else here knows how to make them fast.

before                                                      after
%2 = einsum(%0, %1; text='btk,btn->kn') : float32[6,5]      %2 = reshape(%0; shape=(24, 6)) : float32[24,6]
                                                            %3 = permute_dims(%2) : float32[6,24]
                                                            %4 = reshape(%1; shape=(24, 5)) : float32[24,5]
                                                            %5 = matmul(%3, %4) : float32[6,5]

The axes that are summed have to stand side by side in both operands, and only the first of them may be cut, in
parts of one size: then a worker's rows are rows of the matrix, too. This belongs to this machine: layouts are
chosen for the sum over each axis, and plan files hold it."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

WORTH = 1 << 16  # operations


def fold_products(graph: Graph, target: Target) -> Graph:
    found = {k for k, node in enumerate(graph.nodes) if _is_worth_it(graph, node)}

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        inputs, product = [values[v] for v in node.inputs], OPS[node.op].product
        assert product is not None
        assert product.folded is not None
        made = product.folded(builder, node, inputs)
        if made is not None:
            return [made]
        return builder.add(node.op, inputs, node.params, node.specs, node.line)

    return replace(graph, found, make, lambda g: fold_products(g, target))


def _is_worth_it(graph: Graph, node: Node) -> bool:
    op = OPS[node.op]
    if op.product is None or op.product.folded is None:
        return False
    ins = tuple([graph.specs[v] for v in node.inputs])
    return op.cost(ins, node.specs, node.kw)[0] >= WORTH
