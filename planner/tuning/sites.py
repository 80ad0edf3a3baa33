"""Choices that only timing can make: which library multiplies, how many rows a kernel takes at a
time, whether operations are one kernel or several, one thread or all.

before                                          after
%2 = matmul(%0, %1) : float32[512,512]          %2 = matmul(%0, %1; way='blas') : float32[512,512]

A *site* is a node of the graph that a machine runs which may be done in other ways. Each way of it
is a small program; the engine times them in turn, and one is taken only if it is clearly faster
than what the rules would do. Only under `fast` may ways compete whose bits differ: no timing changes
what "same-plan" promises. What was found is kept on disk by kind of site and machine, and
recorded in the plan: whoever runs the plan does the same, and nobody times on his own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import DEVICES
from ostinato.ops.core.divided import done_in, parse
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.cpu.fused import FUSED
from ostinato.ops.flow.control import ONE_KERNEL
from ostinato.planner.cpu.fuse import LARGER
from ostinato.planner.lowering import rules
from ostinato.planner.machine import unmeasured
from ostinato.planner.passes.memory import assign_memory
from ostinato.planner.plan import ONE_THREAD, Program, Target, Tuned, largest_part
from ostinato.planner.rewrite import inline, is_kernel, map_bodies
from ostinato.planner.title import title

APART = "apart"  # the operations of a larger kernel by themselves
WORTH = 30e-6  # seconds that a site must be predicted to take
SHORT_RUN_SECONDS = 1e-3  # seconds below which waking threads may not pay
EXACT = 64  # extents up to this are a class of their own

Tune = Callable[["Sequence[Site]", int | None], Tuned]


@dataclass(frozen=True, slots=True)
class Site:
    """A node and the ways in which it may be done; the first is what the rules would do."""

    kind: str  # operation, form and class of extents, as a digest
    what: str
    line: str
    ways: tuple[str, ...]
    graphs: tuple[Graph, ...]
    device: str = "cpu"

    def programs(self) -> list[Program]:
        return [assign_memory(g, DEVICES[self.device]) for g in self.graphs]


# -- sites ---------------------------------------------------------------------------------
def sites(graph: Graph, target: Target, threads: int) -> list[Site]:
    """All of them in order, those of bodies too."""
    if rules(target).fuse is None:
        return []
    return [_site(around, k, target, threads) for around, k, _ in places(graph, target)]


def places(
    graph: Graph, target: Target, outer: tuple[tuple[int, str], ...] = ()
) -> Iterator[tuple[Graph, int, tuple[tuple[int, str], ...]]]:
    """The graph and the number of each node that is a site, and the nodes around it, outermost first."""
    for k, node in enumerate(graph.nodes):
        if _is_site(graph, node, target):
            yield graph, k, outer
        if not is_kernel(node):
            for _, body in node.subgraphs():
                yield from places(body, target, (*outer, (k, node.op)))


def with_ways(graph: Graph, target: Target, ways: Sequence[str]) -> Graph:
    """The graph whose sites, in the order of `sites`, are done so; "" leaves one to the rules."""
    return _done(graph, target, iter(ways)) if rules(target).fuse is not None else graph


def _done(graph: Graph, target: Target, ways: Iterator[str], inside: bool = False) -> Graph:
    builder = Builder(graph.inputs)
    values = list(range(len(graph.inputs)))
    changed = False
    for node in graph.nodes:
        way = next(ways, "") if _is_site(graph, node, target) else ""
        ins = [values[v] for v in node.inputs]
        fuse = rules(target).fuse
        if way == APART and node.op in LARGER and fuse is not None:
            apart = fuse(node.kw["body"], target)
            if any(n.op == node.op for n in apart.nodes):  # which is what it makes of them again
                apart = fuse(node.kw["body"], target, larger=False)
            values += inline(builder, apart, ins)
            changed = True
            continue
        turns = inside or node.op == "blocks"
        within = partial(_done, target=target, ways=ways, inside=turns)
        new = node if is_kernel(node) else map_bodies(node, within)
        way = "" if inside and parse(way) is not None else way  # turns have places of their own
        params = done_in(new, way).params if way else new.params
        changed = changed or params is not node.params
        values += builder.add(node.op, ins, tuple(sorted(params)), node.specs, node.line)
    outputs = tuple(values[v] for v in graph.outputs)
    return Graph(builder.inputs, tuple(builder.nodes), outputs) if changed else graph


def _is_site(graph: Graph, node: Node, target: Target) -> bool:
    others = {*DEVICES[target.device].natives} - {*ONE_KERNEL.values()}
    if node.op not in FUSED and node.op not in others:
        return False
    specs = [*(graph.specs[v] for v in node.inputs), *node.specs]
    here = all(s.layout is not None and not s.layout.stored for s in specs)
    return here and _seconds(graph, node, target) >= WORTH


def _parts(graph: Graph, node: Node) -> tuple[tuple[Spec, ...], tuple[Spec, ...]]:
    ins = tuple(largest_part(graph.specs[v]) for v in node.inputs)
    return ins, tuple(map(largest_part, node.specs))


def _seconds(graph: Graph, node: Node, target: Target) -> float:
    """By the rates that are assumed of such a device, whoever measured it."""
    op, machine = OPS[node.op], unmeasured(target.device)
    flops, moved = op.cost(*_parts(graph, node), node.kw)
    return machine.kernel_seconds(flops, moved, op.run.dense, node.specs[0].dtype.name)


def _site(graph: Graph, k: int, target: Target, threads: int) -> Site:
    node, alone = graph.nodes[k], _alone(graph, k)
    device = DEVICES[target.device]
    native, threads = device.natives.get(node.op), threads if device.is_host else 1
    rule = native.ways if native is not None and target.numerics != "any-workers" else None
    classes = rule(*_parts(graph, node), node.kw, threads) if rule is not None else ()
    free = target.numerics == "fast"  # else only what has the bits of the rule's way
    ways = [way for alike in (classes if free else classes[:1]) for way in alike]
    if (now := node.kw.get("way")) is not None:  # a division that the limit asks for
        ways = [now, *ways] if free else [now]
    ways = ways or ["all threads" if threads > 1 else "as it is"]
    if free and node.op in LARGER:
        ways.append(APART)
    alike = native is None or not native.by_threads
    if threads > 1 and (free or alike) and _seconds(graph, node, target) < SHORT_RUN_SECONDS:
        ways.append(ONE_THREAD)
    graphs = (alone, *(with_ways(alone, target, [way]) for way in ways[1:]))
    digest = hashlib.blake2b(repr(_kind(alone)).encode(), digest_size=12).hexdigest()
    what = f"{title(node)} -> {', '.join(str(s.bare) for s in node.specs)}"
    kind = f"{digest}-{threads}-{target.numerics}"
    return Site(kind, what, node.line, tuple(ways), graphs, target.device)


def _alone(graph: Graph, k: int) -> Graph:
    """A node, what it looks at its operands through, and its numbers, as a graph of its own."""
    inside: set[int] = set()

    def collect(n: int) -> None:
        inside.add(n)
        for v in graph.nodes[n].inputs:
            m = graph.producers[v]
            if m >= 0 and m not in inside and _is_look(graph.nodes[m]):
                collect(m)

    collect(k)
    read = dict.fromkeys(
        v for n in sorted(inside) for v in graph.nodes[n].inputs if graph.producers[v] not in inside
    )
    builder = Builder([graph.specs[v] for v in read])
    values = {v: n for n, v in enumerate(read)}
    for n in sorted(inside):
        node = graph.nodes[n]
        made = builder.add(node.op, [values[v] for v in node.inputs], node.params, node.specs)
        values.update(zip(graph.outs(n), made, strict=True))
    outputs = tuple(values[v] for v in graph.outs(k))
    return Graph(builder.inputs, tuple(builder.nodes), outputs)


def _is_look(node: Node) -> bool:
    return node.op == "constant" or OPS[node.op].is_view


def _kind(value: Any) -> Any:
    """Key of what timing depends on: operations and dtypes, classes of extents, no other numbers."""
    if isinstance(value, Graph):
        nodes = [
            (n.op, n.inputs, _kind(n.params), [_kind(largest_part(s)) for s in n.specs])
            for n in value.nodes
        ]
        return [_kind(largest_part(s)) for s in value.inputs], nodes, value.outputs
    if isinstance(value, Spec):
        return value.dtype.name, _kind(value.shape)
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= EXACT else f"2^{round(4 * math.log2(abs(value))) / 4}"
    if isinstance(value, np.dtype):
        return value.name
    return "layout" if isinstance(value, Layout) else "number"
