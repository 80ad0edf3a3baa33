"""What is made of a product's elements, one by one, is made in the registers that hold them, where the product
is ours, or then takes less time than the library's and a kernel behind it.

before                                              after
%2 = matmul(%0, %1) : float32[m,n]                  %2 = fused_tiles(%0, %1; body={
%3 = fused(%2; body={ exp }) : float32[m,n]             %2 = matmul(%0, %1)
                                                        %3 = exp(%2) ... }) : float32[m,n]

The kernel behind may read blocks of columns instead, one behind the other and all as wide, as gates of a
recurrence's step are: a tile then has as many columns of each (ops/gpu/loops/tiles.py). What else reads the
product is given it as one more result. This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container
from dataclasses import dataclass

from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.gpu.jit.lines import makes_elements
from ostinato.ops.gpu.loops.tiles import TileRates, rates_of, tiling_of
from ostinato.ops.jit.epilogues import SLICE, begin_of, rest_of
from ostinato.planner.fusion.convex import Unit, Units
from ostinato.planner.fusion.groups import OPERANDS, Made, is_gemm, with_kernels
from ostinato.planner.fusion.stage_groups import PRODUCT, slides
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import inline, rewrite_bodies

KERNEL = "fused"
WITH_LINEAR = "fused_matmul"


@dataclass(eq=False, slots=True, kw_only=True)
class _Pair(Unit):
    """A product, and the kernel behind it."""

    blocks: tuple[int, ...] = ()  # slices of the product, in order, of which the kernel reads some


def take_results(graph: Graph, target: Target) -> Graph:
    """The pass."""
    graph = rewrite_bodies(graph, lambda g: take_results(g, target))
    rates = rates_of(target.machine.about, described(target.device).model())
    pairs, units = list[_Pair](), Units(graph, target.workers)
    if target.numerics != "any-workers" and target.math != "libm":
        for k, node in enumerate(graph.nodes):
            units.alone(k)
            if node.op == KERNEL and (pair := _pair(graph, k, units, rates)) is not None:
                pairs.append(pair)
                units.merge(pair, units.of[pair.start], units.of[k])
    slices = {k for pair in pairs for k in pair.members[1:-1]}
    return with_kernels(graph, target, pairs, _kernel, slices) if pairs else graph


def _pair(graph: Graph, k: int, units: Units, rates: TileRates) -> _Pair | None:
    """The kernel that is node `k` with the last product that it can be a part of."""
    node = graph.nodes[k]
    space, body = node.specs[0].shape, node.kw["body"]
    elements = all(n.op == "constant" or makes_elements(body, n) for n in body.nodes)
    if any(s.shape != space for s in node.specs) or not elements:
        return None
    heads: dict[int, list[int]] = {}  # values of the kernel, by the product that they are parts of
    for v in node.inputs:
        maker = graph.producers[v]
        if maker >= 0 and graph.nodes[maker].op == SLICE:
            maker = graph.producers[graph.nodes[maker].inputs[0]]
        if maker >= 0 and units.of[maker].members == [maker] and _is_product(graph, maker):
            heads.setdefault(maker, []).append(v)
    for first, values in sorted(heads.items(), reverse=True):
        product, (made,) = graph.nodes[first], graph.outs(first)
        blocks: tuple[int, ...] = ()
        if values != [made]:
            blocks = _blocks(graph, made)
            if not blocks or graph.specs[blocks[0]].shape != space:
                continue
        elif graph.specs[made].shape != space:
            continue
        others = [v for v in node.inputs if v not in (made, *blocks)]
        looks = [graph.producers[v] for v in blocks]
        pair = _Pair(members=[first, *looks, k], start=first, blocks=blocks)
        pair.operands = dict.fromkeys((*product.inputs, *others))
        fits = len(pair.operands) + len(blocks) * (len(product.inputs) - 2) <= OPERANDS
        reader, read = units.of[k], units.of[first]
        reader.operands, read.operands = dict.fromkeys(others), dict.fromkeys(product.inputs)
        if fits and _is_sooner(graph, pair, rates) and units.merges(reader, read):
            return pair
    return None


def _is_product(graph: Graph, k: int) -> bool:
    """Whether a node is a product of matrices that are here, with or without what the library does of it."""
    node = graph.nodes[k]
    body = node.kw.get("body") if node.op == WITH_LINEAR else None
    specs = [*(graph.specs[v] for v in node.inputs), *node.specs]
    if len(node.specs) > 1 or any(s.layout is None or not s.layout.is_whole for s in specs):
        return False
    if body is not None:
        which = begin_of(body)
        rest = (n for n in body.nodes if n is not body.nodes[which])
        alike = all(n.op == "constant" or OPS[n.op].scalar for n in rest)
        return alike and body.nodes[which].inputs == (0, 1) and _is_product(body, which)
    alike = len({s.dtype for s in specs}) == 1
    return is_gemm(graph, node, PRODUCT) and not node.params and alike and not slides(graph, node)


def _blocks(graph: Graph, made: int) -> tuple[int, ...]:
    """The slices of a product that are all of its columns, one behind the other and all as wide, if only they
    read it."""
    makers, shape = dict.fromkeys(graph.uses[made]), graph.specs[made].shape
    wide = shape[-1] // len(makers)
    if made in graph.outputs or wide * len(makers) != shape[-1]:
        return ()
    found: dict[int, int] = {}
    for k in makers:
        p = graph.nodes[k].kw
        known = graph.nodes[k].op == SLICE and graph.nodes[k].specs[0].shape == (*shape[:-1], wide)
        if not known or {*p["steps"]} != {1} or p["starts"][-1] % wide:
            return ()
        found[p["starts"][-1] // wide] = graph.starts[k]
    return tuple([found[n] for n in sorted(found)])


def _is_sooner(graph: Graph, pair: _Pair, rates: TileRates) -> bool:
    """Whether a product of ours that has the kernel in it takes less time than the two."""
    first, k = pair.members[0], pair.members[-1]
    (a, b), kernel = [graph.specs[v] for v in graph.nodes[first].inputs[:2]], graph.nodes[k]
    (m, terms), n, (made,) = a.shape[-2:], b.shape[-1], graph.nodes[first].specs
    moved = sum(graph.specs[v].nbytes for v in kernel.inputs) + sum(s.nbytes for s in kernel.specs)
    apart = rates.start + moved / rates.cache
    extents = m, n, terms, math.prod(made.shape[:-2])
    return tiling_of(*extents, made.dtype, rates, max(1, len(pair.blocks)), apart) is not None


def _kernel(graph: Graph, pair: _Pair, read: Container[int]) -> Made:
    """Both as one node, which reads slices of what lies over all blocks of the product."""
    first, k = pair.members[0], pair.members[-1]
    product, node = graph.nodes[first], graph.nodes[k]
    (made,), (whole,) = graph.outs(first), product.specs
    inner = product.kw.get("body")
    looks = [graph.nodes[graph.producers[v]] for v in pair.blocks]
    over = [v for v in product.inputs[2:] if looks and _is_over(graph.specs[v], whole)]
    operands = [v for v in pair.operands if v not in over or v in node.inputs]
    slices = []
    for v, each in itertools.product(over, looks):
        spec = _cut(graph.specs[v], whole, each)
        starts = (*(0,) * (spec.ndim - 1), each.kw["starts"][-1])
        how = ("sizes", spec.shape), ("starts", starts), ("steps", (1,) * spec.ndim)
        slices.append(Node(SLICE, (v,), how, (spec,), each.line))
    body = Builder([*(graph.specs[v] for v in operands), *(n.specs[0] for n in slices)])
    known = {v: n for n, v in enumerate(operands)}

    rest, used = (None, []) if inner is None else rest_of(inner)
    begin = product if inner is None else inner.nodes[begin_of(inner)]
    matrices = [known[v] for v in product.inputs[:2]]
    (value,) = body.add(begin.op, matrices, begin.params, begin.specs, begin.line)
    ends: list[int] = []
    begins: list[Node | None] = [*looks]
    for n, look in enumerate(begins or [None]):
        (end,) = [value] if look is None else body.add(look.op, [value], look.params, look.specs)
        if rest is not None:
            own = known | {v: len(operands) + m * len(looks) + n for m, v in enumerate(over)}
            given = [end, *(own[product.inputs[v]] for v in used)]
            (end,) = inline(body, rest if look is None else _narrowed(rest, whole, look), given)
        ends.append(end)
    known.update(zip(pair.blocks or (made,), ends, strict=True))
    results = inline(body, node.kw["body"], [known[v] for v in node.inputs])
    more = [v for v in pair.blocks or (made,) if v in read]
    values, results = [*graph.outs(k), *more], [*results, *(known[v] for v in more)]
    specs = tuple([graph.specs[v] for v in values])
    params = (("body", body.graph(results)),)
    return Made(Node("fused_tiles", tuple(operands), params, specs, node.line), values, slices)


def _cut(spec: Spec, product: Spec, look: Node) -> Spec:
    """The spec of as many columns as a slice has of a product, of what lies over all of them."""
    if not _is_over(spec, product):
        return spec
    return Spec((*spec.shape[:-1], look.specs[0].shape[-1]), spec.dtype, spec.layout)


def _is_over(spec: Spec, product: Spec) -> bool:
    return spec.shape[-1:] == product.shape[-1:]


def _narrowed(rest: Graph, product: Spec, look: Node) -> Graph:
    """Make of what is behind a product the same of as many columns as a slice has."""
    ins, *specs = [
        tuple([_cut(s, product, look) for s in own])
        for own in (rest.inputs, *(n.specs for n in rest.nodes))
    ]
    pairs = zip(rest.nodes, specs, strict=True)
    nodes = tuple([Node(n.op, n.inputs, n.params, own, n.line) for n, own in pairs])
    return Graph(ins, nodes, rest.outputs)
