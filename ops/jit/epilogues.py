"""Kernels that begin with a product: what is behind it."""

from __future__ import annotations

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS


def begin_of(body: Graph) -> int:
    """The node that is the product."""
    (which,) = (k for k, n in enumerate(body.nodes) if OPS[n.op].product)
    return which


def rest_of(body: Graph) -> tuple[Graph, list[int]]:
    """Split off what follows the product, which is its first operand, and the other operands that
    it reads."""
    which = begin_of(body)
    ahead = {which, body.producers[body.nodes[which].inputs[1]]}  # a matrix may be rounded first
    rest = [n for k, n in enumerate(body.nodes) if k not in ahead]
    made, count = body.starts[which], len(body.inputs)
    used = sorted({v for n in rest for v in n.inputs if v < count})
    others = [v for v in range(count, len(body.specs)) if body.producers[v] not in ahead]
    number = {v: k for k, v in enumerate([made, *used, *others])}
    nodes = [
        Node(n.op, tuple(number[v] for v in n.inputs), n.params, n.specs, n.line) for n in rest
    ]
    specs = (body.specs[made], *(body.inputs[v] for v in used))
    return Graph(specs, tuple(nodes), tuple(number[v] for v in body.outputs)), used
