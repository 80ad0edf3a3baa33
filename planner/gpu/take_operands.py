"""What a short product reads is made as it is read, if nothing else reads it.

before                                       after
%2 = subtract(%0, %1) : float32[n,16]        %2 = permute_dims(%0) : float32[16,n]
%3 = permute_dims(%2) : float32[16,n]        ...
%4 = matmul(%3, %2) : float32[16,16]         %5 = fused_tiles(%2, %0, %3, %1; body={
                                                 ... subtract, subtract, matmul }) : float32[16,16]

Products that a kernel of ours does (ops/gpu/loops/tiles.py), of which one tile has all lines of the
other matrix, so that each element is made once. One operand may have all elements, others the same for
all rows or all columns, as means have. This belongs to this machine: plan files hold the graph without
it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.ops.array.expressions import permuted, reshaped
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Shape, Spec
from ostinato.ops.gpu.jit.lines import makes_elements
from ostinato.ops.gpu.loops.tiles import rates_of, tiling_of
from ostinato.planner.fusion.groups import is_gemm
from ostinato.planner.fusion.stage_groups import PRODUCT, slides
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand: the nodes that make its elements, in order, what these read, all elements first, and the
    views through which the product sees them."""

    value: int
    members: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    views: tuple[int, ...] = ()  # the product's first


def take_operands(graph: Graph, target: Target) -> Graph:
    """The pass."""
    chosen: dict[int, tuple[_Side, _Side]] = {}
    if target.numerics != "any-workers":
        for k in range(len(graph.nodes)):
            if (sides := _sides(graph, k, target)) is not None:
                chosen[k] = sides

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, sides = graph.nodes[k], chosen[k]
        outer: list[int] = []  # operands of the kernel: those with all elements first
        inner: list[list[int]] = [[], []]  # which of them a side reads
        for n, side in enumerate(sides):
            reads = side.reads or (side.value,)
            inner[n].append(len(outer))
            outer.append(_seen(builder, graph, side, reads[0], values))
        for n, side in enumerate(sides):
            for v in side.reads[1:]:
                inner[n].append(len(outer))
                outer.append(_seen(builder, graph, side, v, values))
        body = Builder([builder.specs[v] for v in outer])
        ends = []
        for n, (side, v) in enumerate(zip(sides, node.inputs, strict=True)):
            known = (
                dict(zip(side.reads, inner[n], strict=True)) if side.members else {v: inner[n][0]}
            )
            shape = graph.specs[v].shape
            for member in side.members:
                own = graph.nodes[member]
                (made,) = own.specs
                size = shape if made.shape else ()
                spec = Spec(size, made.dtype, made.layout)
                given = [known[u] for u in own.inputs]
                (known[graph.starts[member]],) = body.add(
                    own.op, given, own.params, (spec,), own.line
                )
            ends.append(known[graph.starts[side.members[-1]] if side.members else v])
        total = body.add(node.op, ends, node.params, node.specs, node.line)
        how = (("body", body.graph([*total])),)
        return builder.add("fused_tiles", outer, how, node.specs, node.line)

    return replace(graph, chosen, make, lambda g: take_operands(g, target))


def _sides(graph: Graph, k: int, target: Target) -> tuple[_Side, _Side] | None:
    """The operands of a product of which at least one is made as it is read."""
    node = graph.nodes[k]
    product = OPS[node.op].product if node.op in OPS else None
    if product is None or not product.gemm or node.params or slides(graph, node):
        return None
    specs = [*(graph.specs[v] for v in node.inputs), *node.specs]
    whole = all(s.layout is not None and s.layout.is_whole and s.ndim >= 2 for s in specs)
    a, b, d = specs
    if not whole or len({s.dtype for s in specs}) > 1 or a.shape[:-2] != b.shape[:-2]:
        return None
    (m, n), terms = d.shape[-2:], a.shape[-1]
    rates = rates_of(target.machine.about, described(target.device).model())
    tiling = tiling_of(m, n, terms, math.prod(d.shape[:-2]), d.dtype, rates)
    fast = target.numerics == "fast" and target.math != "libm"
    if tiling is None or d.shape[:-2] != a.shape[:-2] or target.math == "libm":
        return None
    if is_gemm(graph, node, PRODUCT) and described(target.device).epilogue_of(graph, k, fast):
        return None
    able = tiling.columns >= n, tiling.rows >= m
    left, right = (
        _side(graph, v, k) if fits else _Side(v) for v, fits in zip(node.inputs, able, strict=True)
    )
    return (left, right) if left.members or right.members else None


def _side(graph: Graph, v: int, product: int) -> _Side:
    """An operand that is made as it is read, if it can be."""
    plain, views, value = _Side(v), list[int](), v
    while True:
        maker = graph.producers[value]
        if maker < 0 or not _leads_to(graph, value, product):
            return plain
        if not _is_view(graph, maker):
            break
        views.append(maker)
        (value,) = graph.nodes[maker].inputs
    shape = graph.specs[value].shape
    members, reads = list[int](), dict[int, None]()
    waiting = [value]
    while waiting:
        u = waiting.pop()
        k = graph.producers[u]
        if k in members:
            continue
        constant = k >= 0 and graph.nodes[k].op == "constant"
        inside = {*members, k}
        if constant or (
            k >= 0
            and graph.specs[u].shape == shape
            and makes_elements(graph, graph.nodes[k])
            and op_of(graph.nodes[k].op).work[1] <= 1
            and (u == value or inside.issuperset(graph.uses[u]))
        ):
            members.append(k)
            waiting += graph.nodes[k].inputs
        else:
            reads[u] = None
    full = [u for u in reads if graph.specs[u].shape == shape]
    if not graph.nodes[graph.producers[value]].inputs or len(members) > 8:
        return plain
    short = [
        _shape_seen(graph, views, graph.specs[u].shape, len(shape)) for u in reads if u not in full
    ]
    if len(full) != 1 or any(s is None or 1 not in s[-2:] for s in short):
        return plain
    order = (*full, *(u for u in reads if u not in full))
    return _Side(v, tuple(sorted(members)), order, tuple(views))


def _leads_to(graph: Graph, v: int, product: int) -> bool:
    """Whether only the product reads a value, directly or through views."""
    if v in graph.outputs or not graph.uses[v]:
        return False
    return all(
        k == product or (_is_view(graph, k) and _leads_to(graph, graph.starts[k], product))
        for k in graph.uses[v]
    )


def _is_view(graph: Graph, k: int) -> bool:
    """An order of axes, or an axis that is cut in two."""
    node = graph.nodes[k]
    if not op_of(node.op).moves.same_elements or len(node.inputs) != 1:
        return False
    return "axes" in node.kw or _cut_axis(graph, k) is not None


def _cut_axis(graph: Graph, k: int) -> int | None:
    node = graph.nodes[k]
    before, after = graph.specs[node.inputs[0]].shape, node.specs[0].shape
    if "shape" not in node.kw or len(after) != len(before) + 1:
        return None
    for axis, n in enumerate(before):
        cut = after[axis] * after[axis + 1] == n
        if cut and after[:axis] == before[:axis] and after[axis + 2 :] == before[axis + 1 :]:
            return axis
    return None


def _shape_seen(graph: Graph, views: Sequence[int], shape: Shape, ndim: int) -> Shape | None:
    """The shape of what is repeated over an operand's elements, behind the views."""
    seen = (1,) * (ndim - len(shape)) + shape
    for k in reversed(views):
        if len(graph.nodes[k].kw.get("axes", seen)) != len(seen):
            return None
        seen = _behind(graph, k, seen)
    return seen


def _behind(graph: Graph, k: int, shape: Shape) -> Shape:
    """The shape of what has such a shape before a view."""
    node = graph.nodes[k]
    if "axes" in node.kw:
        return tuple([shape[axis] for axis in node.kw["axes"]])
    axis = _cut_axis(graph, k)
    assert axis is not None
    parts = node.specs[0].shape[axis : axis + 2] if shape[axis] > 1 else (1, 1)
    return (*shape[:axis], *parts, *shape[axis + 1 :])


def _seen(builder: Builder, graph: Graph, side: _Side, v: int, values: Sequence[int]) -> int:
    """A value through the views of the side that reads it."""
    if not side.members:
        return values[v]
    spec, x = graph.specs[v], values[v]
    shape: Shape = spec.shape
    ndim = graph.specs[graph.starts[side.members[-1]]].ndim
    if len(shape) < ndim:
        shape = (1,) * (ndim - len(shape)) + shape
        x = reshaped(builder, x, Spec(shape, spec.dtype, spec.layout))
    for k in reversed(side.views):
        node, shape = graph.nodes[k], _behind(graph, k, shape)
        made = Spec(shape, spec.dtype, spec.layout)
        if "axes" in node.kw:
            x = permuted(builder, x, node.kw["axes"], made, node.line)
        else:
            x = reshaped(builder, x, made, node.line)
    return x
