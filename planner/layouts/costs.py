"""What layouts cost on a machine: a node run in a way, and a value brought from one layout to another.

On the worker that has most to do. A relayout is what `communicate` makes of it: addends are summed
along each axis (all-reduce, or reduce-scatter where the sum is wanted in parts), then a worker gets
what it needs and does not have (`move_legs`, by which programs are predicted, too); each collective
takes a message's time more, in which workers meet. All of it follows from the sizes of the mesh's
axes, in microseconds, for any number of workers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, Mesh, Shape
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.traffic import legs
from ostinato.ops.flow.control import ONE_KERNEL
from ostinato.planner.machine import Machine
from ostinato.planner.plan import largest_part

from .shardings import Sharding

UNKNOWN = 100  # iterations of a loop that ends when it ends
REPEATED = {"loop": "trips", ONE_KERNEL["loop"]: "trips", "blocks": "turns"}
UNTIL = ("while", ONE_KERNEL["while"])


def sharding_seconds(
    machine: Machine, node: Node, ins: Sequence[Spec], sharding: Sharding, squared: bool = False
) -> float:
    """Seconds of a node that is run in a way, its operands being where it needs them. Of the product of a
    matrix and its own transpose (`squared`) one triangle is computed, if workers have both."""
    needs = [largest_part(s.at(n)) for s, n in zip(ins, sharding.needs, strict=True)]
    gives = [largest_part(s.at(g)) for s, g in zip(node.specs, sharding.gives, strict=True)]
    both = squared and not any(isinstance(s, int) for s in sharding.gives[0].splits)
    return kernel_seconds(machine, node, needs, gives, 0.5 if both else 1.0)


def kernel_seconds(
    machine: Machine,
    node: Node,
    ins: Sequence[Spec],
    outs: Sequence[Spec],
    share: float = 1.0,  # of the operations, that is done
) -> float:
    """Estimate a kernel's seconds; reads that fit into a cache come from there."""
    if OPS[node.op].view is not None:
        return 0.0
    computing, touched = kernel_work(machine, node, ins, outs)
    return machine.call_seconds + machine.overlapped(
        share * computing, machine.moving_seconds(touched, touched)
    )


def kernel_work(
    machine: Machine, node: Node, ins: Sequence[Spec], outs: Sequence[Spec]
) -> tuple[float, float]:
    """The seconds that a kernel computes, and the bytes that it moves."""
    op = OPS[node.op]
    flops, touched = op.cost(tuple(ins), tuple(outs), node.kw)
    if op.scalar:  # fused with its neighbours: what it reads was made there
        touched = sum([s.nbytes for s in outs])
    dtype = next((s.dtype.name for s in (*ins, *outs) if s.dtype.kind in "fcV"), "float32")
    return machine.flops_seconds(flops, op.run.dense, dtype), touched


def graph_seconds(machine: Machine, graph: Graph) -> float:
    """Seconds of a graph with layouts, one node after the other."""
    return sum([seconds for _, seconds in node_seconds(machine, graph)])


def node_seconds(machine: Machine, graph: Graph, times: int = 1) -> Iterator[tuple[Node, float]]:
    """Seconds of each node, those of bodies as often as they run; of a branch both sides count."""
    for node in graph.nodes:
        ins = [graph.specs[v] for v in node.inputs]
        inner = [g for _, g in node.subgraphs()]
        for g in inner:
            yield from node_seconds(machine, g, times * max(1, repeats(node)))
        if node.op == "relayout":
            yield node, times * together_seconds(machine, ins, node.specs)
        elif not inner:
            outs = [largest_part(s) for s in node.specs]
            took = kernel_seconds(machine, node, [largest_part(s) for s in ins], outs)
            yield node, times * took


def repeats(node: Node) -> int:
    """How often the bodies of a node run. Of a loop that ends when it ends, how often they may be
    expected to: half as often as they may at the most, or UNKNOWN times if that is less."""
    kw = node.kw
    if node.op in UNTIL:
        return UNKNOWN if kw["most"] < 0 else min(UNKNOWN, -(-kw["most"] // 2))
    return int(kw[REPEATED[node.op]]) if node.op in REPEATED else 1


def together_seconds(machine: Machine, has: Sequence[Spec], needs: Sequence[Spec]) -> float:
    """Seconds to bring several arrays to other layouts; addends that belong together, such as a
    minimum and its place, are one message."""
    pairs = [(s, s.layout, t.layout) for s, t in zip(has, needs, strict=True)]
    total, sizes = 0.0, dict[tuple[tuple[int, ...], bool], int]()
    for spec, here, there in pairs:
        assert here is not None
        assert there is not None
        if len(pairs) > 1 and here.partial_axes:
            route = legs(here, there, spec.shape, True)
            for s in route.sums:
                key = s.axes, s.scatters
                sizes[key] = sizes.get(key, 0) + _local(s.here, spec.shape) * spec.dtype.itemsize
            here, there = route.move
        total += relayout_seconds(machine, spec.shape, spec.dtype.itemsize, here, there)
    mesh = pairs[0][1].mesh if pairs and pairs[0][1] is not None else ()
    return total + sum([sum_seconds(machine, mesh, *key, size) for key, size in sizes.items()])


def sum_seconds(
    machine: Machine, mesh: Mesh, axes: Sequence[int], scatters: bool, size: float
) -> float:
    """To sum addends of so many bytes along axes of a mesh."""
    links = machine.links(mesh)
    if scatters:
        (axis,) = axes
        return links[axis].seconds + links[axis].reduce_scatter(mesh[axis], size)
    return links[axes[0]].seconds + machine.all_reduce(mesh, axes, size)[0]


@lru_cache(1 << 18)
def relayout_seconds(
    machine: Machine, shape: Shape, itemsize: int, has: Layout, needs: Layout
) -> float:
    """Seconds to bring a value from one layout to another."""
    if has is needs or (0 in shape and not has.partial_axes):
        return 0.0
    total = 0.0
    sums, (here, there), _, begins = legs(has, needs, shape)
    for each in sums:
        size = _local(each.here, shape) * itemsize
        total += sum_seconds(machine, has.mesh, each.axes, each.scatters, size)
    if begins:
        total += machine.kernel_seconds(0, _local(needs, shape) * itemsize, False, "float32")
    if here is there or _has_copy(here, there) or _fits(here, there, shape):
        return total
    route = move_legs(machine, shape, itemsize, here, there)
    return total + machine.levels[route[0][0]][1].seconds + sum([seconds for _, seconds in route])


def _fits(here: Layout, there: Layout, shape: Shape) -> bool:
    """Whether windows are there already: with halos, or of parts that are cut alike."""
    return bool(here.windows or there.windows) and here.has_copy(there, shape)


def _has_copy(has: Layout, needs: Layout) -> bool:
    """Whether each worker has what it needs: every dimension is whole, or cut by the same axes first."""
    if has.mesh != needs.mesh:
        return has.is_whole
    for d in {s for s in has.splits if isinstance(s, int)}:
        axes = has.axes(d)
        if needs.axes(d)[: len(axes)] != axes or needs.window(d) or has.blocks != needs.blocks:
            return False
    return True


@lru_cache(1 << 16)
def move_legs(
    machine: Machine, shape: Shape, itemsize: int, has: Layout, needs: Layout
) -> tuple[tuple[int, float], ...]:
    """Levels of the links that a collective uses which only moves parts, and seconds on each."""
    levels, wanted = machine.levels_of(has.mesh), _local(needs, shape)
    links = [machine.levels[k][1] for k in levels]

    def slowest(axes: Iterable[int], size: float) -> int:
        return max(axes, key=lambda a: links[a].message(size))

    if has.mesh != needs.mesh:
        n = has.workers
        size = (wanted - wanted // n) * itemsize
        a = slowest(range(len(links)), size)
        more = max(n - 2, 0) * min(k.seconds for k in links)
        return ((levels[a], size / links[a].bandwidth + more),)
    there = 1.0
    for d, size in enumerate(needs.largest(shape)):  # of which it has what none of the others has
        before, after = has.axes(d), needs.axes(d)
        if before == after:
            there *= min(has.largest(shape)[d], size)
        else:
            there *= size / math.prod([has.mesh[a] for a in {*before} - {*after}])
    moved = max(0.0, wanted - there) * itemsize
    axes = [a for a, (i, j) in enumerate(zip(has.splits, needs.splits, strict=True)) if i != j]
    near = [a for d, _ in needs.windows for a in needs.axes(d) if has.axes(d) == needs.axes(d)]
    if near and not axes:  # with the neighbours on both sides
        a = slowest(near, moved)
        return ((levels[a], 2 * len(near) * links[a].seconds + moved / links[a].bandwidth),)
    axes = axes or near or [a for a, n in enumerate(has.mesh) if n > 1]
    n = math.prod([has.mesh[a] for a in axes])
    whole = moved * n / max(n - 1, 1)  # of which a worker gets all but its own part
    if any(needs.splits[a] is not None for a in axes):
        a = slowest(axes, moved)
        return ((levels[a], links[a].all_to_all(n, whole)),)
    share, found = whole / n, list[tuple[int, float]]()
    for a in axes:  # the outer ones first, where the fewest bytes are sent
        share *= has.mesh[a]
        found.append((levels[a], links[a].all_gather(has.mesh[a], share)))
    return tuple(found)


def _local(layout: Layout, shape: Shape) -> int:
    return math.prod(layout.largest(shape))
