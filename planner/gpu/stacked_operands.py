"""Operands of stacks of small products are copied in order where the library would be called for a part of the
stack at a time: it knows one step from matrix to matrix.

before                                                       after
%1 = permute_dims(%0; axes=(0, 2, 1, 3)) : float32[8,6,n,d]  %1 = permute_dims(%0; ...) : float32[8,6,n,d]
%3 = matmul(%1, %2) : float32[8,6,n,n]                       %2 = copy(%1) : float32[8,6,n,d]
                                                             %4 = matmul(%2, %3) : float32[8,6,n,n]

Heads of attention lie so, and each is read by several products, whose copy is one. This belongs to this
machine: plan files hold the graph without it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ostinato.ops.array.expressions import permuted
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Shape, Spec
from ostinato.planner.plan import Target
from ostinato.planner.prediction import machine_of
from ostinato.planner.rewrite import replace


def line_up_stacks(graph: Graph, target: Target) -> Graph:
    """The pass."""
    read = {k: found for k, n in enumerate(graph.nodes) if (found := _apart(graph, n, target))}
    copied = dict[tuple[int, tuple[int, ...]], int]()

    def lined_up(builder: Builder, v: int, values: Sequence[int], line: str) -> int:
        """A copy whose rows are those in memory, as it is read: one for a matrix and its transpose."""
        turn = graph.nodes[graph.producers[v]]
        (source,), axes, spec = turn.inputs, tuple(turn.kw["axes"]), graph.specs[v]
        swap = (*range(len(axes) - 2), len(axes) - 1, len(axes) - 2)
        crosswise = axes[-2] > axes[-1]
        if crosswise:
            axes = tuple([axes[d] for d in swap])
        if (source, axes) not in copied:
            shape = tuple([graph.specs[source].shape[d] for d in axes])
            lies = Spec(shape, spec.dtype, spec.layout)
            turned = permuted(builder, values[source], axes, lies, line)
            (copied[source, axes],) = builder.add("copy", (turned,), (), (lies,), line)
        made = copied[source, axes]
        return permuted(builder, made, swap, spec, line) if crosswise else made

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        inputs = [
            lined_up(builder, v, values, node.line) if v in read[k] else values[v]
            for v in node.inputs
        ]
        return builder.add(node.op, inputs, node.params, node.specs, node.line)

    return replace(graph, read, make, lambda g: line_up_stacks(g, target))


def _apart(graph: Graph, node: Node, target: Target) -> list[int]:
    """The operands to copy."""
    product = OPS[node.op].product if node.op in OPS else None
    if product is None or not product.gemm or "text" in node.kw or target.workers > 1:
        return []
    (out,), ins = node.specs, [graph.specs[v] for v in node.inputs]
    stack = [n for n in out.shape[:-2] if n > 1]
    if len(stack) < 2 or any(s.shape[:-2] != out.shape[:-2] for s in ins):
        return []
    found = list[int]()
    for v in dict.fromkeys(node.inputs):
        k = graph.producers[v]
        if k < 0 or not op_of(graph.nodes[k].op).is_view:
            continue
        (source, *_) = graph.nodes[k].inputs
        before = graph.producers[source]
        if not OPS[graph.nodes[k].op].turns_axes or (
            before >= 0 and _is_apart(graph, source, before)
        ):
            return []  # who knows how it lies
        if not _is_one_step(graph.specs[source].shape, graph.nodes[k].kw["axes"]):
            found.append(v)
    machine = machine_of(target)
    flops = OPS[node.op].cost(tuple(ins), node.specs, node.kw)[0]
    calls = math.prod(stack) // max(stack)
    rate = machine.flops_seconds(flops, True, out.dtype.name)
    apart = calls * (
        machine.call_seconds + machine.flops_seconds(flops / calls, True, out.dtype.name)
    )
    moved = sum(2.0 * graph.specs[v].nbytes for v in found)
    copies = len(found) * machine.call_seconds + machine.moving_seconds(moved, moved)
    return found if found and copies + rate < apart else []


def _is_apart(graph: Graph, v: int, k: int) -> bool:
    """Whether a value is a view that shows its operand's elements in another order, or some of them."""
    while k >= 0 and op_of(graph.nodes[k].op).is_view:
        if not op_of(graph.nodes[k].op).moves.keeps_order:
            return True
        (v, *_) = graph.nodes[k].inputs
        k = graph.producers[v]
    return False


def _is_one_step(shape: Shape, axes: Sequence[int]) -> bool:
    """Whether it is as far from each matrix of a stack to the next one, of an array in order whose axes are
    turned so."""
    steps = [math.prod(shape[a + 1 :]) for a in axes]
    stack = [(shape[a], step) for a, step in zip(axes[:-2], steps, strict=False) if shape[a] > 1]
    return all(a[1] == b[0] * b[1] for a, b in itertools.pairwise(stack))
