"""Products of what is made, element by element, as it is read: a kernel of ours (loops/tiles.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.device import Function
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.spec import Shape
from ostinato.ops.jit.epilogues import begin_of
from ostinato.ops.jit.stacks import Stack

from .loops import tiles
from .products import Launching, layout_like


def with_operands(
    launching: Launching | None, arrays: Sequence[Any], body: Graph
) -> Function | None:
    """The function of the operands and the result of a kernel that ends with a product."""
    node, count = body.nodes[begin_of(body)], len(body.inputs)
    out = arrays[count]
    lies = [x.strides for x in arrays]
    if (
        launching is None
        or not out.size
        or any(step % x.dtype.itemsize for x, own in zip(arrays, lies, strict=True) for step in own)
    ):
        return None
    found = [_side(body, arrays, v) for v in node.inputs]
    (a, made_a, read_a), (b, made_b, read_b) = found
    d = _over(out, out.shape)
    (m, k), n, batch = a.shape[-2:], b.shape[-1], math.prod(out.shape[:-2])
    best = tiles.fastest(m, n, k, batch, out.dtype, launching.rates)
    if best is None:
        return None
    kernel = tiles.kernel_of(a, b, d, (), 1.0, best[1], (made_a, made_b))
    if kernel is None:
        return None
    run = launching.of(kernel)
    places = [read_a[0], read_b[0], count, *read_a[1:], *read_b[1:]]
    return lambda *given: run(*[given[k] for k in places])


def _side(
    body: Graph, arrays: Sequence[Any], v: int
) -> tuple[Stack, tiles.Made | None, Sequence[int]]:
    """An operand of the product as it lies, what makes its elements, and the operands that they are made of,
    that with all of them first."""
    if v < len(body.inputs):
        return _over(arrays[v], arrays[v].shape), None, [v]
    shape = body.specs[v].shape
    inside: set[int] = set()
    waiting, read = [v], dict[int, None]()
    while waiting:
        u = waiting.pop()
        if u < len(body.inputs):
            read[u] = None
        elif (maker := body.producers[u]) not in inside:
            inside.add(maker)
            waiting += body.nodes[maker].inputs
    order = sorted(read, key=lambda u: body.specs[u].shape != shape)
    number = {u: n for n, u in enumerate(order)}
    nodes = []
    for k in sorted(inside):
        n = body.nodes[k]
        nodes.append(Node(n.op, tuple([number[u] for u in n.inputs]), n.params, n.specs, n.line))
        number[body.starts[k]] = len(number)
    cone = Graph(tuple([body.specs[u] for u in order]), tuple(nodes), (number[v],))
    first, *others = [_over(arrays[u], shape) for u in order]
    return first, tiles.Made(cone, tuple(others)), order


def _over(x: Any, shape: Shape) -> Stack:
    """As it lies over elements of that shape."""
    seen = np.broadcast_to(layout_like(x), shape)
    return Stack(tuple(shape), tuple([step // x.dtype.itemsize for step in seen.strides]), x.dtype)
