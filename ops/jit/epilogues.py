"""Kernels that begin with a product: what is behind it."""

from __future__ import annotations

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS

SLICE = "slice"


def begin_of(body: Graph) -> int:
    """The node that is the product."""
    (which,) = (k for k, n in enumerate(body.nodes) if OPS[n.op].product)
    return which


def rest_of(body: Graph) -> tuple[Graph, list[int]]:
    """Split off what follows the product, which is its first operand, or of whose columns slices are its first
    operands, and the other operands that it reads."""
    which = begin_of(body)
    ahead, waiting = set[int](), [which]
    while waiting:  # matrices may be made first
        k = waiting.pop()
        if k >= 0 and body.nodes[k].op != "constant":
            ahead.add(k)
            waiting += [body.producers[v] for v in body.nodes[k].inputs]
    made, count = body.starts[which], len(body.inputs)
    blocks = [k for k in dict.fromkeys(body.uses[made]) if body.nodes[k].op == SLICE]
    blocks.sort(key=lambda k: body.nodes[k].kw["starts"][-1])
    ahead.update(blocks)
    rest = [n for k, n in enumerate(body.nodes) if k not in ahead]
    used = sorted({v for n in rest for v in n.inputs if v < count})
    others = [v for v in range(count, len(body.specs)) if body.producers[v] not in ahead]
    heads = [body.starts[k] for k in blocks] or [made]
    number = {v: k for k, v in enumerate([*heads, *used, *others])}
    nodes = [
        Node(n.op, tuple(number[v] for v in n.inputs), n.params, n.specs, n.line) for n in rest
    ]
    specs = (*(body.specs[v] for v in heads), *(body.inputs[v] for v in used))
    return Graph(specs, tuple(nodes), tuple(number[v] for v in body.outputs)), used
