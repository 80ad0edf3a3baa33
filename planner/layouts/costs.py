"""What layouts cost on a machine: a node run in a way, and a value brought from one layout to another.

On the worker that has most to do. A relayout is what `communicate` makes of it: addends are summed
along each axis (all-reduce, or reduce-scatter where the sum is wanted in parts), then a worker gets
what it needs and does not have; each collective takes a message's time more, in which workers meet.
All of it follows from the sizes of the mesh's axes, in microseconds, for any number of workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, Mesh, Shape
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.traffic import legs
from ostinato.planner.machine import Link, Machine
from ostinato.planner.plan import largest_part

from .ways import Way


def way_seconds(machine: Machine, node: Node, ins: Sequence[Spec], way: Way) -> float:
    """What a node takes that is run in a way, its operands being where it needs them."""
    needs = [largest_part(s.at(n)) for s, n in zip(ins, way.needs, strict=True)]
    gives = [largest_part(s.at(g)) for s, g in zip(node.specs, way.gives, strict=True)]
    return kernel_seconds(machine, node, needs, gives)


def kernel_seconds(
    machine: Machine, node: Node, ins: Sequence[Spec], outs: Sequence[Spec]
) -> float:
    op = OPS[node.op]
    if op.view is not None:
        return 0.0
    flops, touched = op.cost(tuple(ins), tuple(outs), node.kw)
    if op.scalar:  # fused with its neighbours: what it reads was made there
        touched = sum([s.nbytes for s in outs])
    dtype = next((s.dtype.name for s in (*ins, *outs) if s.dtype.kind in "fcV"), "float32")
    return machine.kernel_seconds(flops, touched, op.dense, dtype)


def graph_seconds(machine: Machine, graph: Graph) -> float:
    """What a graph with layouts takes, one node after the other."""
    return sum([seconds for _, seconds in node_seconds(machine, graph)])


def node_seconds(machine: Machine, graph: Graph, times: int = 1) -> Iterator[tuple[Node, float]]:
    """What each node takes, those of bodies as often as they run; of a branch both sides count."""
    for node in graph.nodes:
        ins = [graph.specs[v] for v in node.inputs]
        inner = [g for _, g in node.subgraphs()]
        for g in inner:
            yield from node_seconds(machine, g, times * max(1, repeats(node)))
        if node.op == "relayout":
            pairs = zip(ins, node.specs, strict=True)
            yield node, times * sum([spec_seconds(machine, s, out) for s, out in pairs])
        elif not inner:
            outs = [largest_part(s) for s in node.specs]
            took = kernel_seconds(machine, node, [largest_part(s) for s in ins], outs)
            yield node, times * took


def repeats(node: Node) -> int:
    """How often the bodies of a node may be expected to run."""
    kw = node.kw
    return int(kw["trips"]) if "trips" in kw else max(1, kw.get("most", 0) // 2)


def spec_seconds(machine: Machine, has: Spec, needs: Spec) -> float:
    assert has.layout is not None
    assert needs.layout is not None
    return relayout_seconds(machine, has.shape, has.dtype.itemsize, has.layout, needs.layout)


@lru_cache(1 << 18)
def relayout_seconds(
    machine: Machine, shape: Shape, itemsize: int, has: Layout, needs: Layout
) -> float:
    """What it takes to bring a value from one layout to another."""
    if has is needs or (0 in shape and not has.partial_axes):
        return 0.0
    links, total = machine.links(has.mesh), 0.0
    sums, (here, there), _, begins = legs(has, needs, shape)
    for each in sums:
        size = _local(each.here, shape) * itemsize
        if each.scatters:
            (axis,) = each.axes
            total += links[axis].seconds + links[axis].reduce_scatter(has.mesh[axis], size)
        else:
            total += links[each.axes[0]].seconds
            total += machine.all_reduce(has.mesh, each.axes, size)[0]
    if begins:
        total += machine.kernel_seconds(0, _local(needs, shape) * itemsize, False, "float32")
    if here is there or _has_copy(here, there):
        return total
    return total + _move_seconds(links, shape, itemsize, here, there)


def _gathered(links: Sequence[Link], mesh: Mesh, axes: Sequence[int], whole: float) -> float:
    """An all-gather along several axes: the outer ones first, where the fewest bytes are sent."""
    size = whole / math.prod([mesh[a] for a in axes])
    total = links[axes[0]].seconds
    for axis in axes:
        size *= mesh[axis]
        total += links[axis].all_gather(mesh[axis], size)
    return total


def _has_copy(has: Layout, needs: Layout) -> bool:
    """Whether each worker has what it needs: every dimension is whole, or cut by the same axes first."""
    if has.mesh != needs.mesh:
        return has.is_whole
    for d in {s for s in has.splits if isinstance(s, int)}:
        axes = has.axes(d)
        if needs.axes(d)[: len(axes)] != axes or needs.window(d) or has.blocks != needs.blocks:
            return False
    return True


def _move_seconds(
    links: Sequence[Link], shape: Shape, itemsize: int, has: Layout, needs: Layout
) -> float:
    wanted = _local(needs, shape)
    if has.mesh != needs.mesh:
        n = has.workers
        size = (wanted - wanted // n) * itemsize
        return max([link.message(size) for link in links]) + (n - 2) * min(k.seconds for k in links)
    there = 1.0
    for d, size in enumerate(shape):
        before, after = has.axes(d), needs.axes(d)
        if before == after and needs.window(d) is not None:
            there *= min(has.largest(shape)[d], needs.largest(shape)[d])
        else:
            there *= size / math.prod([has.mesh[a] for a in {*before, *after}])
    moved = max(0.0, wanted - there) * itemsize
    axes = [a for a, (i, j) in enumerate(zip(has.splits, needs.splits, strict=True)) if i != j]
    near = [a for d, _ in needs.windows for a in needs.axes(d) if has.axes(d) == needs.axes(d)]
    if near and not axes:  # with the neighbours on both sides
        slowest = max([links[a] for a in near], key=lambda link: link.message(moved))
        return (1 + 2 * len(near)) * slowest.seconds + moved / slowest.bandwidth
    axes = axes or near or [a for a, n in enumerate(has.mesh) if n > 1]
    n = math.prod([has.mesh[a] for a in axes])
    slowest = max([links[a] for a in axes], key=lambda link: link.message(moved))
    whole = moved * n / max(n - 1, 1)  # of which a worker gets all but its own part
    if all(needs.splits[a] is None for a in axes):
        return _gathered(links, has.mesh, axes, whole)
    return slowest.seconds + slowest.all_to_all(n, whole)


def _local(layout: Layout, shape: Shape) -> int:
    return math.prod(layout.largest(shape))
