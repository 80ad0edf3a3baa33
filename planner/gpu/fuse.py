"""Elementwise operations over the same elements, and reductions of their rows, become one kernel; so do
reductions, short products and all that is between them, in stages.

before                                  after
%1 = multiply(%0, 2) : float32[n]       %1 = fused(%0; body={
%2 = exp(%1) : float32[n]                   %1 = multiply(%0, 2)
return %2                                   ... })
                                        return %1

What goes together is decided in planner/fusion. Even a single operation becomes a kernel of our own,
which has the bits of the CPU's (ops/gpu/loops/flat.py). A product takes in of what follows it what the
library does as it writes the product (`Device.epilogue_of`), with bits for a relu's slope (relu_bits.py). This
belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.gpu.jit.lines import can_lower, can_lower_real
from ostinato.ops.gpu.loops.schedule import BLOCKS, analyse_in_order
from ostinato.ops.jit.scalar import has_own_bits
from ostinato.planner.fusion.counting import count_in_kernels, differs_by_part
from ostinato.planner.fusion.groups import fits, groups_of, is_gemm, kernel_of, with_kernels
from ostinato.planner.fusion.joins import gather_joins, spread_joins
from ostinato.planner.fusion.kernel_draws import draw_in_kernels
from ostinato.planner.fusion.stage_groups import (
    PRODUCT,
    Nested,
    count_apart,
    does_more,
    fits_by,
    is_single,
    nest_of,
    slides,
    worthy_nests,
)
from ostinato.planner.fusion.window_kernels import with_gpu_products, with_windows
from ostinato.planner.plan import Target
from ostinato.planner.prediction import GPU, machine_of
from ostinato.planner.rewrite import is_kernel, map_bodies, with_nodes

from .relu_bits import keep_bits
from .spread_numbers import spread_vectors


def fuse(graph: Graph, target: Target, larger: bool = True) -> Graph:
    """The pass. Without the `larger` kernels none has stages or a product."""
    graph = draw_in_kernels(graph, target)
    graph = count_in_kernels(graph, can_lower, only=differs_by_part)
    larger = larger and target.numerics != "any-workers"
    if larger:
        graph = keep_bits(graph, target) if _is_fast(target) else graph
        graph = with_gpu_products(graph, target)
        graph = count_apart(graph, can_lower_real)
        graph, staged = with_windows(graph, target, partial(_staged, target=target))
        graph = with_kernels(graph, target, staged, nest_of) if staged else graph
        graph = spread_vectors(graph, target)
    graph = count_in_kernels(graph, can_lower)
    behind = {k for ks in (_products(graph, target) if larger else {}).values() for k in ks}
    able = partial(fits, graph, lowers=can_lower_real)
    graph = gather_joins(graph, able, windows=True, kept=behind)
    products = _products(graph, target) if larger else {}
    groups = groups_of(
        graph, target, _alone(graph, target), can_lower, products, most=1024, sinks=True
    )
    groups = [g for g in groups if not g.product or len(g.members) > 1]
    graph = with_kernels(graph, target, groups, kernel_of) if groups else graph
    graph = spread_joins(graph)

    def inside(node: Node) -> Node:
        return map_bodies(node, partial(fuse, target=target))

    return with_nodes(graph, [n if is_kernel(n) else inside(n) for n in graph.nodes])


def _staged(graph: Graph, target: Target) -> list[Nested]:
    """The kernels in stages that are worth it."""
    taken = {k for behind in _products(graph, target).values() for k in behind}
    alone = _alone(graph, target) | taken | price_by_library(graph, target).keys()
    is_worth = partial(_is_worth, graph)
    return worthy_nests(graph, target, can_lower_real, alone, is_worth, _fits, BLOCKS)


def _products(graph: Graph, target: Target) -> dict[int, Collection[int]]:
    """Find the products that are done together with nodes that follow them, and these."""
    device = described(target.device)
    fast = _is_fast(target)
    found: dict[int, Collection[int]] = {}
    for k, node in enumerate(graph.nodes):
        if is_gemm(graph, node, PRODUCT) and (behind := device.epilogue_of(graph, k, fast)):
            found[k] = frozenset(behind)
    return found


def price_by_library(graph: Graph, target: Target) -> dict[int, float]:
    """Find the products that the library multiplies sooner than a kernel in stages, and the seconds that it
    takes, its result written and read again."""
    machine, found = machine_of(target), dict[int, float]()
    for k, node in enumerate(graph.nodes):
        if not is_gemm(graph, node, 0) or slides(graph, node):  # windows would be copied
            continue
        ins, (made,) = tuple([graph.specs[v] for v in node.inputs]), node.specs
        flops = op_of(node.op).cost(ins, node.specs, node.kw)[0]
        elements = machine.flops_seconds(flops, False, made.dtype.name)
        apart = machine.flops_seconds(flops, True, made.dtype.name) + machine.call_seconds
        apart += machine.moving_seconds(2 * made.nbytes, 2 * made.nbytes)
        if GPU.staged * elements > apart:
            found[k] = apart
    return found


def _is_fast(target: Target) -> bool:
    return target.numerics == "fast" and target.math != "libm"


def _alone(graph: Graph, target: Target) -> set[int]:
    """Functions that are to be those of the library."""
    if target.math != "libm":
        return set()
    return {k for k, n in enumerate(graph.nodes) if n.op in OPS and has_own_bits(n.op)}


def _is_worth(graph: Graph, group: Nested) -> bool:
    runs = any(op_of(graph.nodes[k].op).element.running for k in group.members)
    return does_more(graph, group, can_lower_real) and (runs or not is_single(graph, group))


_fits = fits_by(analyse_in_order)
