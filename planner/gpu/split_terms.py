"""Products of few results and very many terms, such as `x.T @ y` of tall tables, are cut along the terms: parts
that occupy all multiprocessors, then their sum.

before                                     after
%2 = permute_dims(%0) : float32[16,n]      %2 = reshape(%0; ...) : float32[p,q,16]
%3 = matmul(%2, %1) : float32[16,8]        %3 = permute_dims(%2; ...) : float32[p,16,q]
                                           %4 = reshape(%1; ...) : float32[p,q,8]
                                           %5 = matmul(%3, %4) : float32[p,16,8]
                                           %6 = sum(%5; axes=(0,)) : float32[16,8]

What is left of the terms behind whole parts is a product of its own, which is added. The library divides such
sums, too, but by tiles of 64 x 64 results. This belongs to this machine: plan files hold the graph without
it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ostinato.ops.array.expressions import permuted, reshaped, sliced
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Spec
from ostinato.planner.fusion.stage_groups import slides
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

SIDE = 128  # rows and columns up to which results are few
MIN_TERMS = 1 << 14  # terms that are many
PARTS = 512  # that occupy a GPU: some for each multiprocessor
TERMS, ALIGNED = 64, 4  # terms of which a part has a multiple, and at the least


def split_terms(graph: Graph, target: Target) -> Graph:
    """The pass."""
    found = (
        []
        if target.numerics == "any-workers"
        else [k for k in range(len(graph.nodes)) if _is_long(graph, k)]
    )

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        (m, terms), (made,) = graph.specs[node.inputs[0]].shape, node.specs
        n, line = made.shape[1], node.line
        each = _terms_of_part(terms)
        parts = terms // each
        left = _Side(graph, node.inputs[0], 1)
        right = _Side(graph, node.inputs[1], 0)
        pairs = [side.parts(builder, values, parts, each, line) for side in (left, right)]
        spec = Spec((parts, m, n), made.dtype, made.layout)
        (stack,) = builder.add(node.op, pairs, node.params, (spec,), line)
        (total,) = builder.add(
            "sum", [stack], (("axes", (0,)), ("dtype", made.dtype)), (made,), line
        )
        if parts * each < terms:
            rest = [side.rest(builder, values, parts * each, line) for side in (left, right)]
            (more,) = builder.add(node.op, rest, node.params, (made,), line)
            (total,) = builder.add(MONOIDS["sum"].ufunc, [total, more], (), (made,), line)
        return [total]

    return replace(graph, found, make, lambda g: split_terms(g, target))


def _terms_of_part(terms: int) -> int:
    """All alike and aligned if that is possible."""
    least = -(-terms // PARTS)
    alike = (n for n in range(-(-least // ALIGNED) * ALIGNED, 2 * least, ALIGNED) if not terms % n)
    return next(alike, -(-least // TERMS) * TERMS)


class _Side:
    """An operand, or what it is the transpose of: an array of which one axis, `axis`, are the terms."""

    def __init__(self, graph: Graph, v: int, axis: int) -> None:
        maker = graph.producers[v]
        turns = maker >= 0 and op_of(graph.nodes[maker].op).rearranges
        self.turned = turns and graph.nodes[maker].kw.get("axes") == (1, 0)
        self.v = graph.nodes[maker].inputs[0] if self.turned else v
        self.axis, self.place = axis, 1 - axis if self.turned else axis
        self.spec = graph.specs[self.v]

    def parts(
        self, builder: Builder, values: Sequence[int], parts: int, each: int, line: str
    ) -> int:
        """A stack of matrices as the product reads them."""
        shape, x, spec = [*self.spec.shape], values[self.v], self.spec
        if parts * each < shape[self.place]:
            shape[self.place] = parts * each
            spec = Spec(tuple(shape), spec.dtype, spec.layout)
            x = sliced(builder, x, (0, 0), spec, line)
        shape[self.place : self.place + 1] = parts, each
        cut = Spec(tuple(shape), spec.dtype, spec.layout)
        x = reshaped(builder, x, cut, line)
        other = 2 if self.place == 0 else 0
        axes = (self.place, other, self.place + 1)
        if self.axis == 0:
            axes = (self.place, self.place + 1, other)
        if axes == (0, 1, 2):
            return x
        seen = Spec(tuple([shape[a] for a in axes]), spec.dtype, spec.layout)
        return permuted(builder, x, axes, seen, line)

    def rest(self, builder: Builder, values: Sequence[int], first: int, line: str) -> int:
        shape, starts = [*self.spec.shape], [0, 0]
        shape[self.place], starts[self.place] = shape[self.place] - first, first
        spec = Spec(tuple(shape), self.spec.dtype, self.spec.layout)
        x = sliced(builder, values[self.v], tuple(starts), spec, line)
        if self.turned:
            seen = Spec(spec.shape[::-1], spec.dtype, spec.layout)
            x = permuted(builder, x, (1, 0), seen, line)
        return x


def _is_long(graph: Graph, k: int) -> bool:
    node = graph.nodes[k]
    product = OPS[node.op].product if node.op in OPS else None
    if product is None or not product.gemm or node.params or slides(graph, node):
        return False
    specs = [*(graph.specs[v] for v in node.inputs), *node.specs]
    if any(s.ndim != 2 or s.layout is None or not s.layout.is_whole for s in specs):
        return False
    terms = specs[0].shape[1]
    fits = (specs[0].shape[0], specs[1].shape[1]) == specs[2].shape and specs[1].shape[0] == terms
    return (
        fits
        and max(specs[2].shape) <= SIDE
        and terms >= MIN_TERMS
        and terms >= 64 * math.prod(specs[2].shape) ** 0.5
    )
