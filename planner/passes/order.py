"""The order in which nodes run.

before                                   after
%2 = tanh(%0) : float32[n]               %2 = tanh(%0) : float32[n]
%3 = sort(%2; ...) : float32[n]          %3 = subtract(%1, %2) : float32[n]
%4 = negative(%3) : float32[n]           %4 = sort(%2; ...) : float32[n]
%5 = multiply(%1, %3) : float32[n]       %5 = negative(%4) : float32[n]
%6 = subtract(%1, %2) : float32[n]       %6 = multiply(%1, %4) : float32[n]
return %4, %5, %6                        return %5, %6, %3

Of the nodes whose operands exist, these run first: those that start a collective; those that lead to one
collective only, or, where there is one worker, to one result, once all that leads there can run (its
operands are in cache then, and may go); then the one that stood first; and a wait for a collective only
when nothing else is left. So slopes are sent while those of the layers before are made, and a network's
new weights are made behind the product that read the old ones last: all others read an operand that was
given away before its place may be taken.

Workers meet in collectives, so these keep the order in which they stood, which is the same for all
(`overlap`), whatever else each worker's machine makes of the graph.

Under a memory limit, what gives more memory back than it takes comes first: a product that makes the slope
of a small weight of two large arrays which nobody else will read. Idempotent."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from itertools import pairwise

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.planned.collective import COLLECTIVES
from ostinato.planner.plan import Target, local_bytes
from ostinato.planner.rewrite import reorder

STARTS, FREES, ENDS, OTHERS, WAITS = range(5)  # which of the nodes that can run comes first
STARTING = (*COLLECTIVES, "start")
ALONE = -1  # what leads to several results, or is one and is read, too


def order(graph: Graph, target: Target, donated: Collection[int] = ()) -> Graph:
    return ordered(graph, target, donated, meetings(graph, target.workers))


def ordered(
    graph: Graph, target: Target, donated: Collection[int], in_turn: Sequence[int] = ()
) -> Graph:
    """The graph in that order; some nodes in turn, other collectives as soon as they can start."""
    starts = {k for k in meetings(graph, target.workers) if graph.nodes[k].op in STARTING}
    ends = _ends(graph, starts)
    if target.workers > 1:  # what leads to no collective is what others overlap with
        ends = [end if end in starts else ALONE for end in ends]
    waits = _waits(graph, ends, donated)
    waits |= {(a, b) for a, b in pairwise(in_turn) if b in starts}
    memory = _Memory(graph) if target.memory_limit is not None else None
    return reorder(graph, schedule(graph, in_turn, ends, waits, memory))


class _Memory:
    """Who still has to read each value that has a place of its own."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.root = list(range(len(graph.specs)))
        # of each value the nodes that read it, also through looks
        self.left: dict[int, set[int]] = {}
        outputs = {*graph.outputs}
        for k, node in enumerate(graph.nodes):
            if self.looks(k):
                for v, source in zip(graph.outs(k), node.inputs, strict=False):
                    self.root[v] = self.root[source]
            else:
                for v in node.inputs:
                    self.left.setdefault(self.root[v], set()).add(k)
        kept = {self.root[v] for v in outputs}
        for v in (*range(len(graph.inputs)), *kept):
            self.left.pop(v, None)

    def looks(self, k: int) -> bool:
        node = self.graph.nodes[k]
        return OPS[node.op].is_view or node.op == "barrier"

    def frees(self, k: int) -> bool:
        """Whether more is given back after a node than it takes; what only looks at others is free."""
        if self.looks(k):
            return True
        node = self.graph.nodes[k]
        read = {self.root[v] for v in node.inputs}
        last = sum(local_bytes(self.graph.specs[v]) for v in read if self.left.get(v) == {k})
        return last > sum(map(local_bytes, node.specs))

    def done(self, k: int) -> list[int]:
        """Take note that a node has run; the last readers of what one node alone has still to read."""
        found: list[int] = []
        for v in {self.root[v] for v in self.graph.nodes[k].inputs} if not self.looks(k) else ():
            left = self.left.get(v, set())
            left.discard(k)
            found += left if len(left) == 1 else ()
        return found


def meetings(graph: Graph, workers: int) -> list[int]:
    return [k for k, node in enumerate(graph.nodes) if workers > 1 and meets(node)]


def meets(node: Node) -> bool:
    """Whether workers meet in a node, or in its bodies."""
    if node.op in (*STARTING, "wait"):
        return True
    return any(meets(n) for _, body in node.subgraphs() for n in body.nodes)


def schedule(
    graph: Graph,
    in_turn: Sequence[int] = (),
    ends: Sequence[int] = (),
    waits: Collection[tuple[int, int]] = (),
    memory: _Memory | None = None,
) -> list[int]:
    """The nodes in running order. `ends`: of each node the one that makes the only result to which it
    leads; `waits`: nodes and ends that wait for them; `memory`: knows who gives some back. The graph's
    own order may be any."""
    nodes, producers = graph.nodes, graph.producers
    left = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    pairs = [(p, k) for k, n in enumerate(nodes) for v in n.inputs if (p := producers[v]) >= 0]
    for p, k in (*pairs, *pairwise(in_turn)):
        readers[p].append(k)
        left[k] += 1
    open_: dict[int, int] = {}  # how many nodes an end waits for
    opens: dict[int, list[int]] = {}
    for k, end in waits:
        open_[end] = open_.get(end, 0) + 1
        opens.setdefault(k, []).append(end)
    trees: dict[int, list[int]] = {}
    for k, end in enumerate(ends):
        if end != ALONE:
            trees.setdefault(end, []).append(k)
    ready: list[tuple[int, int, int]] = []
    found: list[int] = []
    done = [False] * len(nodes)

    def enter(k: int) -> None:
        op = nodes[k].op
        if op in STARTING:
            heapq.heappush(ready, (STARTS, k, k))
        elif op == "wait":
            heapq.heappush(ready, (WAITS, len(found), k))
        elif memory is not None and memory.frees(k):
            heapq.heappush(ready, (FREES, k, k))
        else:
            early = ends and ends[k] != ALONE and not open_.get(ends[k])
            heapq.heappush(ready, (ENDS if early else OTHERS, k, k))

    for k, n in enumerate(left):
        if not n:
            enter(k)
    while ready:
        k = heapq.heappop(ready)[2]
        if done[k]:
            continue
        done[k] = True
        found.append(k)
        for r in readers[k]:
            left[r] -= 1
            if not left[r]:
                enter(r)
        for r in memory.done(k) if memory is not None else ():
            if not left[r] and not done[r]:
                enter(r)
        for end in opens.get(k, ()):
            open_[end] -= 1
            if not open_[end]:
                for j in trees[end]:
                    if not left[j] and not done[j]:
                        enter(j)
    assert len(found) == len(nodes), "nodes that wait for each other"
    return found


def _ends(graph: Graph, starts: Collection[int]) -> list[int]:
    """For each node the one that makes the only result to which it leads, or that starts the only
    collective."""
    ends = [ALONE] * len(graph.nodes)
    outputs = {*graph.outputs}
    for k in reversed(range(len(graph.nodes))):
        outs = graph.outs(k)
        behind = {ends[u] for v in outs for u in graph.uses[v]}
        if graph.nodes[k].op == "wait":  # which reads what its collective sends, too
            ends[k] = graph.producers[graph.nodes[k].inputs[0]]
        elif not behind or k in starts:
            ends[k] = k
        elif len(behind) == 1 and outputs.isdisjoint(outs):
            (ends[k],) = behind
    return ends


def _waits(graph: Graph, ends: Sequence[int], donated: Collection[int]) -> set[tuple[int, int]]:
    """Find what has to run before all that leads to an end can, and who else reads what was given
    away and is read there."""
    readers, found = _readers(graph, donated), set[tuple[int, int]]()
    for k, node in enumerate(graph.nodes):
        end = ends[k]
        for v in node.inputs if end != ALONE else ():
            for other in (graph.producers[v], *readers.get(v, ())):
                if other >= 0 and ends[other] != end:
                    found.add((other, end))
    return found


def _readers(graph: Graph, donated: Collection[int]) -> dict[int, list[int]]:
    """Who reads what was given away, by each value that looks at it."""
    shown = {v: v for v in donated}
    readers: dict[int, list[int]] = {v: [] for v in donated}
    for k, node in enumerate(graph.nodes):
        looked = [shown[v] for v in node.inputs if v in shown]
        for v in looked:
            readers[v].append(k)
        if looked and OPS[node.op].is_view:
            shown.update(dict.fromkeys(graph.outs(k), looked[0]))
    return {v: readers[whole] for v, whole in shown.items()}
