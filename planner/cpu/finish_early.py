"""What leads to one result only is done as soon as all that it reads is there: then that is in cache,
and may go.

before                                   after
%2 = tanh(%0) : float32[n]               %2 = tanh(%0) : float32[n]
%3 = sort(%2; ...) : float32[n]          %3 = subtract(%1, %2) : float32[n]
%4 = negative(%3) : float32[n]           %4 = sort(%2; ...) : float32[n]
%5 = multiply(%1, %3) : float32[n]       %5 = negative(%4) : float32[n]
%6 = subtract(%1, %2) : float32[n]       %6 = multiply(%1, %4) : float32[n]
return %4, %5, %6                        return %5, %6, %3

So a network's new weights are made behind the product that read the old ones last. All others read an
operand that was given away before its place may be taken. Where workers speak to each other, the order
is that of `overlap`. This belongs to this machine: plan files hold the graph without it. Idempotent."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.planner.plan import Target

ALONE = -1  # what leads to several results, or is one and is read, too


def finish_early(graph: Graph, target: Target, donated: Collection[int] = ()) -> Graph:
    """The pass."""
    if math.prod(target.mesh) > 1:
        return graph
    ends, readers = _ends(graph), _readers(graph, donated)
    begins: dict[int, int] = {}  # for each end, the last node that it waits for
    for k, node in enumerate(graph.nodes):
        for v in node.inputs:
            for other in (graph.producers[v], *readers.get(v, ())):
                if other < 0 or ends[other] != ends[k]:
                    begins[ends[k]] = max(begins.get(ends[k], -1), other)
    order = [(k, 0, k) for k in range(len(graph.nodes))]
    for k, end in enumerate(ends):
        if end != ALONE and begins.get(end, -1) < k:
            order[k] = begins.get(end, -1), 1, k
    return _in_order(graph, [k for _, _, k in sorted(order)])


def _ends(graph: Graph) -> list[int]:
    """For each node the one that makes the only result to which it leads."""
    ends = [ALONE] * len(graph.nodes)
    for k in reversed(range(len(graph.nodes))):
        outs = graph.outs(k)
        behind = {ends[u] for v in outs for u in graph.uses[v]}
        if not behind:
            ends[k] = k
        elif len(behind) == 1 and not any(v in graph.outputs for v in outs):
            (ends[k],) = behind
    return ends


def _readers(graph: Graph, donated: Collection[int]) -> dict[int, list[int]]:
    """Who reads what was given away, by each value that looks at it."""
    shown = {v: v for v in donated}
    readers: dict[int, list[int]] = {v: [] for v in donated}
    for k, node in enumerate(graph.nodes):
        looked = [shown[v] for v in node.inputs if v in shown]
        for v in looked:
            readers[v].append(k)
        if looked and OPS[node.op].only_looks:
            shown.update(dict.fromkeys(graph.outs(k), looked[0]))
    return {v: readers[whole] for v, whole in shown.items()}


def _in_order(graph: Graph, order: Sequence[int]) -> Graph:
    if list(order) == list(range(len(graph.nodes))):
        return graph
    builder, values = Builder(graph.inputs), {v: v for v in range(len(graph.inputs))}
    for k in order:
        node = graph.nodes[k]
        made = builder.add(
            node.op, [values[v] for v in node.inputs], node.params, node.specs, node.line
        )
        values.update(zip(graph.outs(k), made, strict=True))
    return Graph(builder.inputs, tuple(builder.nodes), tuple(values[v] for v in graph.outputs))
