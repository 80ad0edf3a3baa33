"""Collectives start as soon as their operand exists and are awaited when nothing else is left to
do.

before                              after
%1 = matmul(...)                    %1 = matmul(...)
%2 = all_reduce(%1)                 %2 = start(%1; collective='all_reduce')
%3 = matmul(...)                    %3 = matmul(...)
%4 = add(%2, %3)                    %4 = wait(%2, %1)
return %4                           %5 = add(%4, %3)
                                    return %5

The wait reads the operand too, which therefore keeps its memory until then. All workers have the
same order, so collectives meet."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from ostinato.ops.collective import COLLECTIVES
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.spec import Spec
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import map_bodies


def overlap(graph: Graph, target: Target) -> Graph:
    """The pass: other work moves between a collective's operand and its first reader. Idempotent,
    as it leaves no whole collective that has something to overlap with."""
    if target.workers == 1:
        return graph
    nodes = [map_bodies(n, lambda g: overlap(g, target)) for n in graph.nodes]
    graph = Graph(graph.inputs, tuple(nodes), graph.outputs)
    if not any(n.op in COLLECTIVES for n in nodes):
        return graph
    return _emit(graph, _order(graph))


def _order(graph: Graph) -> list[tuple[int, bool]]:
    """Node numbers in running order; a collective stands twice, as its start and (True) its
    wait.
    """
    left = [0] * len(graph.nodes)
    readers: list[set[int]] = [set() for _ in graph.nodes]
    for k, node in enumerate(graph.nodes):
        for p in {graph.producers[v] for v in node.inputs} - {-1}:
            readers[p].add(k)
            left[k] += 1
    ready: list[int] = []
    starts: list[int] = []
    flying: deque[int] = deque()
    order: list[tuple[int, bool]] = []

    def enter(k: int) -> None:
        heapq.heappush(starts if graph.nodes[k].op in COLLECTIVES else ready, k)

    def finish(k: int) -> None:
        for r in readers[k]:
            left[r] -= 1
            if not left[r]:
                enter(r)

    for k, waiting in enumerate(left):
        if not waiting:
            enter(k)
    while starts or ready or flying:
        if starts:
            flying.append(heapq.heappop(starts))
            order.append((flying[-1], False))
        elif ready:
            order.append((heapq.heappop(ready), False))
            finish(order[-1][0])
        else:
            order.append((flying.popleft(), True))
            finish(order[-1][0])
    return order


def _emit(graph: Graph, order: Sequence[tuple[int, bool]]) -> Graph:
    values = list(range(len(graph.inputs))) + [-1] * (len(graph.specs) - len(graph.inputs))
    pending: dict[int, tuple[int, ...]] = {}
    made: list[Node] = []
    count = len(graph.inputs)

    def put(
        op: str, inputs: Sequence[int], params: object, specs: Sequence[Spec], line: str
    ) -> tuple[int, ...]:
        nonlocal count
        made.append(Node(op, tuple(inputs), params, tuple(specs), line))  # type: ignore[arg-type]
        count += len(specs)
        return tuple(range(count - len(specs), count))

    for at, (k, awaited) in enumerate(order):
        node = graph.nodes[k]
        inputs = [values[v] for v in node.inputs]
        if awaited:
            if k not in pending:
                continue
            outs = put("wait", (*pending[k], *inputs), (), node.specs, node.line)
        elif node.op in COLLECTIVES and order[at + 1] != (k, True):
            params = tuple(sorted((*node.params, ("collective", node.op))))
            specs = [Spec(s.shape, s.dtype, s.layout, True) for s in node.specs]
            pending[k] = put("start", inputs, params, specs, node.line)
            continue
        else:
            outs = put(node.op, inputs, node.params, node.specs, node.line)
        for v, new in zip(graph.outs(k), outs, strict=True):
            values[v] = new
    return Graph(graph.inputs, tuple(made), tuple(values[v] for v in graph.outputs))
