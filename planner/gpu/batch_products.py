"""Products of parts of one array with one matrix, as those of a recurrence's inputs, become one product of all
of it, since a GPU has few multiprocessors at work for a small one.

before                                                      after
%2 = slice(%0; starts=(0, 0, 0), ...) : float32[1,64,256]   %2 = reshape(%0; ...) : float32[1024,256]
%3 = squeeze(%2; axes=(0,)) : float32[64,256]               %3 = matmul(%2, %1) : float32[1024,512]
%4 = matmul(%3, %1) : float32[64,512]                       %4 = slice(%3; starts=(0, 0), ...) : float32[64,512]
...                                                         ...

This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ostinato.ops.array.expressions import reshaped, sliced
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace


def batch_products(graph: Graph, target: Target) -> Graph:
    """The pass."""
    parts = {} if target.numerics == "any-workers" else _parts(graph)
    whole: dict[tuple[int, int], int] = {}  # products, by what they are of

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, (v, first) = graph.nodes[k], parts[k]
        w, (spec,), source = node.inputs[1], node.specs, graph.specs[v]
        columns = spec.shape[1]
        if (v, w) not in whole:
            rows = math.prod(source.shape[:-1])
            flat = Spec((rows, source.shape[-1]), source.dtype, source.layout)
            x = reshaped(builder, values[v], flat, node.line)
            made = Spec((rows, columns), spec.dtype, spec.layout)
            (whole[v, w],) = builder.add(node.op, [x, values[w]], node.params, (made,), node.line)
        return [sliced(builder, whole[v, w], (first, 0), spec, node.line)]

    return replace(graph, parts, make, lambda g: batch_products(g, target))


def _parts(graph: Graph) -> dict[int, tuple[int, int]]:
    """Products that go together: the array that each is of a part of, and which of its rows come first."""
    found: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    for k, node in enumerate(graph.nodes):
        if (product := OPS[node.op].product) is None or not product.gemm or node.params:
            continue
        if (part := _part(graph, k)) is not None:
            found.setdefault((part[0], node.inputs[1]), {})[k] = part
    chosen: dict[int, tuple[int, int]] = {}
    for (v, _), own in found.items():
        firsts = {first for _, first in own.values()}
        rows = sum(graph.specs[graph.starts[k]].shape[0] for k in own)
        if 1 < len(firsts) == len(own) and 2 * rows > math.prod(graph.specs[v].shape[:-1]):
            chosen |= own
    return chosen


def _part(graph: Graph, k: int, most: float = 1 << 31) -> tuple[int, int] | None:
    """Find what a product's left matrix is some rows of, and the first of these; None if it is not, or if a
    product of so many operations is as fast by itself."""
    node = graph.nodes[k]
    specs = [*(graph.specs[v] for v in node.inputs), *node.specs]
    if any(s.ndim != 2 or s.layout is None or not s.layout.is_whole for s in specs):
        return None
    if (specs[0].shape[0], specs[1].shape[1]) != specs[2].shape:
        return None
    flops, _ = OPS[node.op].cost(tuple(specs[:2]), node.specs, node.kw)
    maker = graph.producers[node.inputs[0]]
    if flops > most or maker < 0:
        return None
    look = graph.nodes[maker]
    alone = graph.specs[look.inputs[0]].shape == (1, *specs[0].shape) if look.inputs else False
    if OPS[look.op].moves.same_elements and alone:
        maker = graph.producers[look.inputs[0]]
        look = graph.nodes[maker]
    if maker < 0 or OPS[look.op].moves.selects != "slices":
        return None
    (v,) = look.inputs
    shape, starts, sizes = graph.specs[v].shape, look.kw["starts"], look.kw["sizes"]
    layout = graph.specs[v].layout
    rest = (*starts[1:], *look.kw["steps"]) == (*(0,) * (len(shape) - 1), *(1,) * len(shape))
    if not rest or sizes[1:] != shape[1:] or layout is None or not layout.is_whole:
        return None
    return (v, starts[0] * math.prod(shape[1:-1]))
