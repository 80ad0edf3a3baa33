"""Kernels that read each other's neighbours, as the time steps of a stencil do, become one that goes through
all of them tile by tile, so that what lies between them stays in cache (ops/jit/step_tiles.py).

before                                              after
%1 = fused_joins(%0; body=step) : float32[n,m]      %1 = fused_steps(%0; axis=0, body={
%2 = fused_joins(%1; body=step) : float32[n,m]          %1 = fused_joins(%0; body=step)
%3 = fused_joins(%2; body=step) : float32[n,m]          %2 = fused_joins(%1; body=step)
return %3                                               %3 = fused_joins(%2; body=step) })
                                                    return %1

That is so where it takes less time by what the machine can do: the edges of tiles are computed again, the more
of them the more steps there are, so long chains become several kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.jit.loops import COUNTED
from ostinato.ops.jit.step_tiles import Steps, steps_along
from ostinato.planner.layouts.costs import kernel_work
from ostinato.planner.plan import Target, largest_part
from ostinato.planner.rewrite import inline, is_kernel, replace

from .joins import is_known

TILED = "fused_steps"


@dataclass(frozen=True, slots=True)
class Room:
    """What a device has for tiles."""

    bytes: int  # that stay in the cache of one thread
    least: int  # tiles, so that all threads have some
    steps: int = 16  # of a kernel at the most
    worth: float = 0.95  # of the time that the kernels take one after the other
    less: float = 0.9  # of that share, which makes shorter chains worth it
    cheapest: Callable[[Chain, Target, Room], tuple[float, int]] | None = None  # if not by rows


@dataclass(frozen=True, slots=True)
class Chain:
    """Kernels as one, over these operands."""

    operands: tuple[int, ...]
    body: Graph
    axis: int


def tile_steps(graph: Graph, target: Target, room: Room) -> Graph:
    """The graph with such kernels, and its bodies."""
    chains = dict(find_chains(graph, target, room))

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, chain = graph.nodes[k], chains[k]
        params = ("axis", chain.axis), ("body", chain.body)
        return builder.add(
            TILED, [values[v] for v in chain.operands], params, node.specs, node.line
        )

    return replace(graph, chains, make, lambda g: tile_steps(g, target, room))


def find_chains(graph: Graph, target: Target, room: Room) -> Iterator[tuple[int, Chain]]:
    """Chains, each by its last kernel."""
    able = {k for k, node in enumerate(graph.nodes) if _is_step(graph, node, room)}
    while able:
        last = max(able)
        best = None
        members = _members(graph, last, able, room.steps)
        for pieces in range(1, len(members)):
            own = members[: -(-len(members) // pieces)]
            if len(own) < 2:
                break
            chain = chain_of(graph, sorted(own))
            share, axis = (room.cheapest or _cheapest)(chain, target, room)
            if best is not None and share > room.less * best[0]:
                break
            best = share, own, replaced(chain, axis=axis)
        if best is not None and best[0] < room.worth:
            yield last, best[2]
            able.difference_update(best[1])
        able.discard(last)


# -- which kernels -------------------------------------------------------------------------
def _is_step(graph: Graph, node: Node, room: Room) -> bool:
    """Whether a kernel makes much, element by element, wherever it is asked to."""
    if not (is_kernel(node) and OPS[node.op].run.writes_parts) or any(
        s.layout is None or s.layout.stored for s in node.specs
    ):
        return False
    body: Graph = node.kw["body"]
    if any(n.op == COUNTED or OPS[n.op].element.draws or OPS[n.op].reduce for n in body.nodes):
        return False
    makers = [graph.nodes[k] for v in node.inputs if (k := graph.producers[v]) >= 0]
    counted = any(n.op == COUNTED for n in makers) or any(s.dtype.kind == "c" for s in body.specs)
    return not counted and largest_part(node.specs[0]).nbytes > room.bytes


def _source(graph: Graph, v: int) -> tuple[int, list[int]]:
    """Find of what a value is a slice, and the nodes by which, the last one first."""
    looks = list[int]()
    while (k := graph.producers[v]) >= 0 and _is_slice(graph, k):
        looks.append(k)
        (v,) = graph.nodes[k].inputs
    return v, looks


def _is_slice(graph: Graph, k: int) -> bool:
    return OPS[graph.nodes[k].op].moves.selects == "slices" and is_known(graph, k)


def _readers(graph: Graph, v: int) -> set[int]:
    """The nodes that read a value, also slices of it; -1 for who gave the graph."""
    found = {-1} if v in graph.outputs else set[int]()
    for k in graph.uses[v]:
        found |= _readers(graph, graph.starts[k]) if _is_slice(graph, k) else {k}
    return found


def _members(graph: Graph, last: int, able: Collection[int], most: int) -> list[int]:
    """A kernel and those before it that nothing else reads, back from there."""
    found, layout = [last], graph.nodes[last].specs[0].layout
    waiting = {last}
    while waiting and len(found) < most:
        k = max(waiting)
        waiting.discard(k)
        if k != last:
            found.append(k)
        for v in graph.nodes[k].inputs:
            p = graph.producers[_source(graph, v)[0]]
            if p in able and graph.nodes[p].specs[0].layout == layout:
                read = set[int]().union(*(_readers(graph, u) for u in graph.outs(p)))
                if read <= {*found}:
                    waiting.add(p)
    return found


def chain_of(graph: Graph, members: Sequence[int]) -> Chain:
    """Kernels as one; the slices that they read are parts of those which read them."""
    made = {v: k for k in members for v in graph.outs(k)}
    read = [[_source(graph, v) for v in graph.nodes[k].inputs] for k in members]
    operands = tuple(dict.fromkeys(v for own in read for v, _ in own if v not in made))
    body = Builder([graph.specs[v] for v in operands])
    known = {v: n for n, v in enumerate(operands)}
    for k, own in zip(members, read, strict=True):
        node, ins = graph.nodes[k], list(dict.fromkeys(v for v, _ in own))
        inner = Builder([graph.specs[v] for v in ins])
        values = list[int]()
        for v, looks in own:
            n = ins.index(v)
            for look in reversed(looks):
                seen = graph.nodes[look]
                (n,) = inner.add(seen.op, (n,), seen.params, seen.specs, seen.line)
            values.append(n)
        params = (("body", inner.graph(inline(inner, node.kw["body"], values))),)
        outs = body.add("fused_joins", [known[v] for v in ins], params, node.specs, node.line)
        known |= dict(zip(graph.outs(k), outs, strict=True))
    outputs = [known[v] for v in graph.outs(members[-1])]
    return Chain(operands, body.graph(outputs), 0)


# -- what it costs -------------------------------------------------------------------------
def _cheapest(chain: Chain, target: Target, room: Room) -> tuple[float, int]:
    """The share of the time apart that tiles take, infinite if there can be none, and along which axis."""
    body, (ndim,) = chain.body, {s.ndim for s in chain.body.out_specs}
    given = tuple([largest_part(s).shape for s in body.inputs])
    found = list[tuple[float, int]]()
    for axis in range(max(1, ndim - 1)):  # rows stay as long as they are
        steps = steps_along(body, given, axis)
        if steps is not None and (rows := steps.height(room.bytes, room.least)):
            found.append((share_of_time(steps, rows, target, room), axis))
    return min(found, default=(math.inf, 0))


def share_of_time(steps: Steps, rows: int, target: Target, room: Room) -> float:
    """How long tiles of so many rows take, where the kernels one after the other take 1."""
    machine, body = target.machine, steps.body
    apart, computing, near = 0.0, 0.0, 0.0
    for node, beyond in zip(body.nodes, steps.beyond(), strict=True):
        ins, outs = [body.specs[v] for v in node.inputs], [largest_part(s) for s in node.specs]
        work, touched = kernel_work(machine, node, [largest_part(s) for s in ins], outs)
        work *= outs[0].size / node.specs[0].size  # what is counted is that of all workers
        apart += machine.call_seconds + machine.overlapped(
            work, machine.moving_seconds(touched, touched)
        )
        computing += work * (rows + beyond) / rows
        near += machine.moving_seconds(touched, 0) * (rows + beyond) / rows
    far = sum(largest_part(s).nbytes for s in (*body.inputs, *body.out_specs))
    moving = near + machine.moving_seconds(far, far)
    return (machine.call_seconds + machine.overlapped(computing, moving)) / apart
