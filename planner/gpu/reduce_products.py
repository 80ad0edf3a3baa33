"""A product of which only what is made of its rows is wanted is one kernel with that, which writes no matrix.

before                                              after
%2 = matmul(%0, %1) : float32[100000,2000]          %2 = fused_matmul_rows(%0, %1, %3; body={
%4 = subtract(%3, %2) : float32[100000,2000]            ... matmul, subtract, argmin_pair }) : int64[100000]
%5, %6 = argmin_pair(%4; axes=(1,)) : ...

Behind the product are operations on its elements and reductions of whole rows, all that reads it; what else
they read is there before. It is taken where the kernel of ours (ops/gpu/loops/tile_rows.py) is predicted to
take clearly less time than the library's product and a matrix that is written and read again. This belongs
to this machine: plan files hold the graph without it."""

from __future__ import annotations

import math
from functools import partial

from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Spec
from ostinato.ops.gpu.jit.lines import can_lower_real
from ostinato.ops.gpu.loops.tile_rows import fastest
from ostinato.ops.gpu.loops.tiles import DTYPES, LIMITS, TileRates, rates_of
from ostinato.ops.jit.epilogues import begin_of
from ostinato.ops.jit.labels import combines
from ostinato.ops.jit.values import can_combine
from ostinato.planner.fusion.convex import Group
from ostinato.planner.fusion.groups import NODES, OPERANDS, is_elementwise, kernel_of, with_kernels
from ostinato.planner.plan import Target, largest_part
from ostinato.planner.rewrite import rewrite_bodies

from .fuse import price_by_library


def reduce_products(graph: Graph, target: Target) -> Graph:
    """The pass."""
    graph = rewrite_bodies(graph, partial(reduce_products, target=target))
    if target.numerics == "any-workers" or target.math == "libm":
        return graph
    rates = rates_of(target.machine.about, described(target.device).model())
    groups = list[Group]()
    for k, apart in price_by_library(graph, target).items():
        group = _group(graph, k)
        if group is not None and _seconds(graph, group, rates) <= LIMITS.share * apart:
            groups.append(group)
    return with_kernels(graph, target, groups, kernel_of) if groups else graph


def _seconds(graph: Graph, group: Group, rates: TileRates) -> float:
    """Predict what the kernel of a group takes, infinitely long if there is none."""
    every = {v for k in group.members for v in graph.outs(k) if OPS[graph.nodes[k].op].reduce}
    body = kernel_of(graph, group, every).node.kw["body"]
    begin = body.nodes[begin_of(body)]
    shape, terms = largest_part(begin.specs[0]).shape, body.specs[begin.inputs[0]].shape[-1]
    found = fastest(body, shape, terms, rates)
    return found[0] if found is not None else math.inf


def _group(graph: Graph, k: int) -> Group | None:
    """A product, and all that is made of it down to what its rows are reduced to; None if anything else
    reads it."""
    node = graph.nodes[k]
    (made,) = node.specs
    specs = [*(graph.specs[v] for v in node.inputs), made]
    alike = {s.dtype for s in specs} == {made.dtype} and made.dtype in DTYPES
    if node.params or not alike or not all(map(_is_uncut, specs)):
        return None
    members, waiting = {k}, [graph.starts[k]]
    while waiting:
        v = waiting.pop()
        if v in graph.outputs or len(members) > NODES:
            return None
        for u in {*graph.uses[v]} - members:
            if not _reduces_rows(graph, u, made):
                if not _makes_elements(graph, u, made):
                    return None
                waiting += graph.outs(u)
            members.add(u)
    _take_makers(graph, members, made)
    read = [
        v
        for u in sorted(members)
        for v in graph.nodes[u].inputs
        if graph.producers[v] not in members
    ]
    read = [
        v
        for v in read
        if graph.producers[v] < 0 or graph.nodes[graph.producers[v]].op != "constant"
    ]
    behind = {v for u in members for v in graph.outs(u)}  # and what waits for the kernel
    for u in range(k, max(members)):
        if u not in members and not behind.isdisjoint(graph.nodes[u].inputs):
            behind.update(graph.outs(u))
    group = Group(space=(made.shape, made.layout), product=True, rows=1, start=min(members))
    group.members, group.operands = sorted(members), dict.fromkeys([*node.inputs, *read])
    fits = len(members) <= NODES and len(group.operands) <= OPERANDS
    return group if fits and behind.isdisjoint(group.operands) else None


def _take_makers(graph: Graph, members: set[int], made: Spec) -> None:
    """Add what makes elements that only these read."""
    waiting = [*members]
    while waiting:
        for v in graph.nodes[waiting.pop()].inputs:
            k = graph.producers[v]
            alone = v not in graph.outputs and members.issuperset(graph.uses[v])
            if k >= 0 and k not in members and alone and _makes_elements(graph, k, made):
                members.add(k)
                waiting.append(k)


def _makes_elements(graph: Graph, k: int, like: Spec) -> bool:
    node = graph.nodes[k]
    (spec, *more), draws = node.specs, node.op in OPS and OPS[node.op].element.draws
    over = not more and (spec.shape, spec.layout) == (like.shape, like.layout)
    return over and not draws and is_elementwise(graph, node, can_lower_real)


def _reduces_rows(graph: Graph, k: int, like: Spec) -> bool:
    """Whether it combines what lies along the last axis, as kernels can."""
    node, how = graph.nodes[k], op_of(graph.nodes[k].op).reduce
    if how is None or how.divisor or how.element != "{0}" or len(node.inputs) != 1:
        return False
    kind, axes = combines(graph, node)
    over = graph.specs[node.inputs[0]].shape == like.shape and axes == (like.ndim - 1,)
    return (
        over and can_combine(kind, node.specs[0].dtype) and node.specs[0].shape == like.shape[:-1]
    )


def _is_uncut(spec: Spec) -> bool:
    """Whether each worker has whole rows."""
    layout = spec.layout
    if layout is None or layout.partial_axes or layout.stored:
        return False
    return layout.largest(spec.shape)[-1] == spec.shape[-1]
