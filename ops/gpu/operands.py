"""Products of what is made, element by element, as it is read, and what is made of them as they are written: a
kernel of ours (loops/tiles.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.device import Function
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.spec import Shape
from ostinato.ops.jit.epilogues import begin_of, rest_of
from ostinato.ops.jit.stacks import Stack, stacked

from .jit.lines import makes_elements
from .loops import tiles
from .products import TILES, Launching, layout_like, tiled_product


def with_operands(
    launching: Launching | None, arrays: Sequence[Any], body: Graph, way: str = TILES
) -> Function | None:
    """The function of the operands and results of a kernel that is a product, what its matrices are made of,
    and what is made of it, element by element; None if it is not to be ours."""
    node, count = body.nodes[begin_of(body)], len(body.inputs)
    rest, used = rest_of(body)
    out = arrays[count]
    done = [n for n in rest.nodes if n.op != "constant"]
    if not out.size or not all(makes_elements(rest, n) for n in done):
        return None
    found = [_side(body, arrays, v) for v in node.inputs]
    dtypes = {node.specs[0].dtype, *(body.specs[v].dtype for v in node.inputs)}
    if len(dtypes) > 1 or any(s % x.dtype.itemsize for x in arrays for s in x.strides):
        return None
    (a, made_a, read_a), (b, made_b, read_b) = found
    over = [np.broadcast_to(layout_like(x), out.shape) for x in (arrays[v] for v in used)]
    results = [layout_like(x) for x in arrays[count:]]
    if made_a or made_b:
        stacks: Sequence[Stack] | None = [a, b, *(_over(x, out.shape) for x in (*results, *over))]
    else:
        stacks = stacked(*(layout_like(arrays[v]) for v in node.inputs), *results, *over)
    if stacks is None:
        return None
    first = 2 + len(results)
    behind = tiles.Behind(rest, tuple(stacks[first:]), tuple(stacks[3:first]))
    plain = not done and rest.outputs == (0,)
    run = tiled_product(launching, stacks[:3], way, None if plain else behind, (made_a, made_b))
    if run is None:
        return None
    places = [read_a[0], read_b[0], *range(count, len(arrays)), *used, *read_a[1:], *read_b[1:]]
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
