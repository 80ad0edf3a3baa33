"""A split in time so that what lies between two nodes stays in cache, where it is large and no kernel
takes both: a product, and what is made of it by another one or by a reduction.

before                                            after
%2 = matmul(%0, %1) : float32[n,n]                %2 = blocks(%0, %1, %3; turns=64, body={
%3 = softmax(%2) : float32[n,n]                       ... the same nodes, for so many rows that
%4 = matmul(%3, %5) : float32[n,d]                    their blocks fit into cache })

The means are those of a split under a memory limit (blocking.py); here it is taken if it moves fewer
bytes to memory and back, as counted over the kernels that this would become, with those that the machine
could move while it computes what turns make again, as the edges of windows on windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Mesh
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.flow.control import CONTROL
from ostinato.planner.layouts.costs import repeats
from ostinato.planner.lowering import as_run, rules
from ostinato.planner.machine import Machine
from ostinato.planner.plan import Target, local_bytes, peak_bytes
from ostinato.planner.prediction import local, work_of

from .blocking import MOST_TURNS, running, split_along
from .in_turns import shortest
from .overlap import overlap

MIN_VALUE_BYTES = 1 << 25  # bytes of a value that is worth it
CACHED_BYTES = 1 << 23  # bytes that stay in cache until they are read
START = 100_000  # bytes that could be moved while a node of a turn starts
SHARE = 8  # at least this part of all that is moved has to be saved
PARTS, SEEDS = 4, 3
NODES = 2000  # of graphs that are looked at


def stay_in_cache(graph: Graph, target: Target, donated: Sequence[int] = ()) -> Graph:
    """The pass; nothing where all that is large is an operand or a result, nor if the memory limit then leaves
    no room: what turns make is not written over operands that were given away."""
    made, limit = _in_turns(graph, target), target.memory_limit
    if limit is None or made is graph or peak_bytes(running(made, target, donated)) <= limit:
        return made
    return graph


def _in_turns(graph: Graph, target: Target) -> Graph:
    block = rules(target).cache
    if not block or target.numerics == "any-workers" or len(graph.nodes) > NODES:
        return graph
    for _ in range(PARTS):
        if not any(local_bytes(s) >= MIN_VALUE_BYTES for s in graph.specs[len(graph.inputs) :]):
            break
        lowered = as_run(overlap(graph, target), target)
        machine, mesh, before = target.machine, target.mesh, moved(lowered)
        computes, bandwidth = computing_seconds(lowered, machine, mesh), machine.bandwidth(math.inf)
        made = [
            found[0]
            for v, d, turns in _cuts(graph, lowered, block)
            if (found := split_along(graph, target, v, d, turns, float("inf"))) is not None
        ]
        costs = []
        for k, g in enumerate(made):
            low = as_run(overlap(g, target), target)
            again = max(computing_seconds(low, machine, mesh) - computes, 0.0)
            costs.append((moved(low) + again * bandwidth, k))
        least, k = min(costs, default=(before, -1))
        if k < 0 or before - least < before / SHARE:
            break
        graph = made[k]
    return graph


def _cuts(graph: Graph, lowered: Graph, block: int) -> Iterator[tuple[int, int, int]]:
    """Values that go to memory and come back, each axis of theirs, and the turns for it."""
    between = {
        lowered.specs[v].bare
        for k in range(len(lowered.nodes))
        for v in lowered.outs(k)
        if v not in lowered.outputs and local_bytes(lowered.specs[v]) >= MIN_VALUE_BYTES
    }
    large = [
        v
        for k, node in enumerate(graph.nodes)
        for v in graph.outs(k)
        if graph.specs[v].bare in between and OPS[node.op].run.dense
    ]
    for v in sorted(large, key=lambda v: -local_bytes(graph.specs[v]))[:SEEDS]:
        spec = graph.specs[v]
        turns = -(-local_bytes(spec) // block)
        for d in range(spec.ndim):
            if turns <= min(shortest(spec, d), MOST_TURNS):
                yield v, d, turns


# -- bytes -----------------------------------------------------------------------------------
def moved(graph: Graph) -> float:
    """Count the bytes that go to memory and come back, per worker; what is small stays in cache."""
    total = 0.0
    for k, node in enumerate(graph.nodes):
        if node.op == "blocks":
            total += _of_turns(graph, node)
        elif not _is_free(node) and node.op not in CONTROL:
            values = {*node.inputs, *graph.outs(k)}
            total += sum(_far(graph.specs[v]) for v in values)
    return total


def _of_turns(graph: Graph, node: Node) -> float:
    body, turns = node.kw["body"], node.kw["turns"]
    total = sum(_far(s) for s in node.specs)
    for v, spec in zip(node.inputs, body.inputs, strict=True):
        cut = spec.layout is not None and isinstance(spec.layout.splits[-1], int)
        whole = graph.specs[v]
        total += _far(whole) if cut or local_bytes(whole) <= CACHED_BYTES else turns * _far(whole)
    for k, inner in enumerate(body.nodes):
        if _is_free(inner):
            continue
        total += START * turns
        between = {v for v in (*inner.inputs, *body.outs(k)) if v >= len(body.inputs)}
        total += turns * sum(_far(body.specs[v]) for v in between if v not in body.outputs)
    return total


# -- seconds ---------------------------------------------------------------------------------
def computing_seconds(
    graph: Graph, machine: Machine, mesh: Mesh, ranks: Sequence[int] = (0,)
) -> float:
    """Estimate the seconds that operations take, whatever they move, averaged over these ranks: of turns, up to
    16 from the first to the last one, as those at the ends make fewer edges again."""
    total, parts = 0.0, [local(mesh, r) for r in ranks]
    for node in graph.nodes:
        if node.op == "blocks":
            turns = node.kw["turns"]
            inner = [r * turns + t for r in ranks for t in range(0, turns, -(-turns // 16))]
            total += turns * computing_seconds(node.kw["body"], machine, (*mesh, turns), inner)
        elif node.op in CONTROL:
            bodies = [computing_seconds(g, machine, mesh, ranks) for _, g in node.subgraphs()]
            total += max(1, repeats(node)) * sum(bodies)
        elif not _is_free(node):
            works = [work_of(graph, node, part).seconds(machine, 0.0) for part in parts]
            total += sum(works) / len(works)
    return total


def _far(spec: Spec) -> float:
    size = local_bytes(spec)
    return size if size > CACHED_BYTES else 0.0


def _is_free(node: Node) -> bool:
    return node.op in ("constant", "wait", "barrier") or OPS[node.op].is_view
