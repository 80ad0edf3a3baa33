"""Elementwise operations over the same elements, and reductions of their rows, become one kernel.

before                                  after
%1 = multiply(%0, 2) : float32[n]       %1 = fused(%0; body={
%2 = exp(%1) : float32[n]                   %1 = multiply(%0, 2)
return %2                                   ... })
                                        return %1

What goes together is decided in planner/fusion. Even a single operation becomes a kernel of our own,
which has the bits of the CPU's (ops/gpu/loops/flat.py). This belongs to this machine: plan files hold
the graph without it."""

from __future__ import annotations

from functools import partial

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.gpu.jit.lines import can_lower
from ostinato.ops.jit.scalar import has_own_bits
from ostinato.planner.fusion.groups import groups_of, kernel_of, with_kernels
from ostinato.planner.fusion.random import draw_in_kernels
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import is_kernel, map_bodies, with_nodes


def fuse(graph: Graph, target: Target) -> Graph:
    """The pass."""
    graph = draw_in_kernels(graph, target)
    alone = set()
    if target.math == "libm":  # functions are to be those of the library
        alone = {k for k, n in enumerate(graph.nodes) if n.op in OPS and has_own_bits(n.op)}
    groups = groups_of(graph, target, alone, can_lower)
    graph = with_kernels(graph, target, groups, kernel_of) if groups else graph

    def inside(node: Node) -> Node:
        return map_bodies(node, partial(fuse, target=target))

    return with_nodes(graph, [n if is_kernel(n) else inside(n) for n in graph.nodes])
