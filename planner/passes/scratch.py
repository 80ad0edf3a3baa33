"""Operations that need more scratch memory than there is are done in parts, one after the other.

before, with a limit of 64 MiB                         after
%2 = conv(%0, %1; ...), which needs 200 MiB            %2 = conv(%0, %1; way='4 x 8 along n', ...)

`scratch_limit` says what one operation may take beside its operands and results; `memory_limit` leaves to each
what the values that are alive beside it leave over, since scratch memory is used again by the next one. Only
what needs more is divided: by whatever index lets its needs fall most, in the parts that take least time
(planner/tuning/fronts.py). What even the smallest part does not fit is done by the operation's own kernel, or,
of a kernel that was made of several, operation by operation.
All follows from the graph and from assumed rates; where timing may choose it does (tuning/divided_sites.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import Device
from ostinato.ops.core.divided import OWN_KERNEL, Division, Stretch, axes_of, done_in, parse
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.flow.control import CONTROL
from ostinato.planner.machine import unmeasured
from ostinato.planner.plan import Program, Target, largest_part, peak_bytes
from ostinato.planner.rewrite import inline, is_kernel, map_bodies
from ostinato.planner.tuning.fronts import Point, divisions, share_memory, sizes, unit_of

from .memory import assign_memory, lifetimes, scratch_bytes

# Times as long as the way before it a way is taken to need, and tries to leave out what an arena loses.
ASSUMED = {"later": 16.0, "tries": 4.0}
Rooms = Sequence[float]


def fit_scratch(
    program: Program,
    target: Target,
    device: Device,
    reuse: Sequence[int] = (),
    fuse: Callable[..., Graph] | None = None,
    larger: Collection[str] = (),
) -> Program:
    """The pass, of a program whose places are assigned. Under `any-workers` nothing is divided. `fuse`: who
    makes kernels of the operations of those that have no parts, the `larger` ones."""
    if (
        target.numerics == "any-workers"
        or (target.scratch_limit, target.memory_limit) == (None,) * 2
    ):
        return program
    limit, best, lost = target.memory_limit, program, 0
    for _ in range(int(ASSUMED["tries"])):
        graph = _divided(program, target, device, fuse, larger, lost)
        if graph is program.graph:
            break
        made = assign_memory(graph, device, reuse)
        if limit is None or peak_bytes(made) < peak_bytes(best) or best is program:
            best = made
        if limit is None or peak_bytes(made) <= limit:
            break
        lost += peak_bytes(made) - limit
    return best


def scratch_of_all(graph: Graph, device: Device) -> Iterator[tuple[Graph, int, int]]:
    """The nodes that need scratch memory, or are divided so that they need less, and how much, down into
    bodies."""
    for k, node in enumerate(graph.nodes):
        if node.op not in CONTROL:
            size = sum(scratch_bytes(device, graph, node))
            if size or parse(node.kw.get("way", "")) is not None:
                yield graph, k, size
        if not is_kernel(node):
            for _, body in node.subgraphs():
                yield from scratch_of_all(body, device)


def room_for(program: Program, target: Target, lost: int = 0) -> tuple[Rooms, dict[int, float]]:
    """The bytes of scratch memory that each node may have; inside of a control node, each of its own."""
    most = math.inf if target.scratch_limit is None else float(target.scratch_limit)
    if target.memory_limit is None:
        return [most] * len(program.graph.nodes), dict.fromkeys(program.bodies, most)
    left = target.memory_limit - (peak_bytes(program) - program.arena_bytes) - lost
    held, inner = lifetimes(program)[1], dict[int, float]()
    for k, bodies in program.bodies.items():
        deepest = max((max(lifetimes(p)[1], default=0) for p in bodies), default=0)
        inner[k] = min(most, float(left - held[k] - deepest))
    return [min(most, float(left - n)) for n in held], inner


# -- parts ---------------------------------------------------------------------------------------
class Divisible(NamedTuple):
    """A node that can be done in parts of an index, of which a worker has at most so much."""

    graph: Graph
    node: Node
    device: Device
    label: str
    extent: int

    def bytes(self, size: int, way: str) -> int:
        """Scratch memory of parts of this size."""
        text = str(Division(self.label, (Stretch(1, size, way),)))
        return sum(scratch_bytes(self.device, self.graph, done_in(self.node, text)))

    def front(
        self, ways: Sequence[str], room: float, seconds: Callable[[int, str], float]
    ) -> list[Point]:
        """List what divisions within the room take, by the seconds of one part in a way."""
        unit = unit_of(self.extent)
        count = -(-self.extent // unit)
        kernels = {
            n: [
                Point(seconds(size, way), self.bytes(size, way), ((size, way),))
                for way in ways
                for size in [min(n * unit, self.extent)]
            ]
            for n in sizes(count)
        }
        return divisions(count, kernels, room)

    def text(self, point: Point) -> str:
        return str(Division.from_parts(self.label, point.runs))


def divisible(
    graph: Graph, k: int, device: Device, way: str = "", room: float = 0.0
) -> Divisible | None:
    """A node by an index of which parts need less scratch memory in a way: if that is enough, by the one with
    the fewest bytes of operands and results that every part reads or adds to; None if there is none."""
    node = graph.nodes[k]
    ins = tuple([graph.specs[v] for v in node.inputs])
    parts = [largest_part(s).shape for s in ins]
    whole = sum(scratch_bytes(device, graph, done_in(node, way)))
    outs = [largest_part(s) for s in node.specs]
    found = list[tuple[bool, int, int, int, Divisible]]()
    for label, axes in axes_of(node, ins).items():
        made = Divisible(graph, done_in(node, ""), device, label, axes.extent(parts))
        if made.extent > 1 and (least := made.bytes(1, way)) < whole:
            again = sum(s.nbytes for s, d in zip(ins, axes.ins, strict=True) if d < 0)
            again += sum(2 * s.nbytes for s, d in zip(outs, axes.outs, strict=True) if d < 0)
            price = (again, least) if least <= room else (least, again)
            found.append((least > room, *price, -made.extent, made))
    return min(found, key=lambda f: f[:4])[4] if found else None


def ways_of(graph: Graph, node: Node, device: Device, threads: int = 1) -> list[str]:
    """How it can be done: as the rules say, in other ways, and by the operation's own kernel."""
    native = device.natives.get(node.op)
    ins = tuple([largest_part(graph.specs[v]) for v in node.inputs])
    outs = tuple(map(largest_part, node.specs))
    rule = native.ways if native is not None else None
    named = rule(ins, outs, node.kw, threads) if rule is not None else ()
    return ["", *[way for alike in named for way in alike][1:], OWN_KERNEL]


def predicted(made: Divisible, target: Target, ways: Sequence[str]) -> Callable[[int, str], float]:
    """Seconds of parts by rates that are assumed, each way being slower than the one before it."""
    node, machine = made.node, unmeasured(target.device)
    op = OPS[node.op]
    ins = tuple([largest_part(made.graph.specs[v]) for v in node.inputs])
    flops, moved = op.cost(ins, tuple(map(largest_part, node.specs)), node.kw)

    def seconds(size: int, way: str) -> float:
        share, kind = size / made.extent, node.specs[0].dtype.name
        alone = machine.kernel_seconds(flops * share, moved * share, op.run.dense, kind)
        return float(alone * ASSUMED["later"] ** ways.index(way))

    return seconds


def _divided(
    program: Program,
    target: Target,
    device: Device,
    fuse: Callable[..., Graph] | None,
    larger: Collection[str],
    lost: int,
) -> Graph:
    """The program's graph with those divided that need more than there is room for."""
    found: list[tuple[Graph, int, Divisible, list[Point], float]] = []
    apart: set[tuple[int, int]] = set()

    def look(graph: Graph, rooms: Sequence[float], bodies: dict[int, float]) -> None:
        for k, node in enumerate(graph.nodes):
            if node.op not in CONTROL and sum(scratch_bytes(device, graph, node)) > rooms[k]:
                made = divisible(graph, k, device, "", rooms[k])
                if made is not None:
                    points = _points(made, ways_of(graph, node, device), target, rooms[k])
                    found.append((graph, k, made, points, max(rooms[k], points[0].bytes)))
                elif node.op in larger:
                    apart.add((id(graph), k))
            if node.op != "blocks" and not is_kernel(node):
                for _, body in node.subgraphs():
                    room = bodies.get(k, min(rooms))
                    look(body, [room] * len(body.nodes), {})

    look(program.graph, *room_for(program, target, lost))
    if not found and not apart:
        return program.graph
    fronts = [points for *_, points, _ in found]
    moments = [(m, m) for m in range(len(found))]  # each is done before the next one begins
    chosen = share_memory(fronts, moments, [room for *_, room in found])
    assert chosen is not None
    texts = {
        (id(graph), k): made.text(points[choice])
        for (graph, k, made, points, _), choice in zip(found, chosen, strict=True)
    }

    def rebuilt(graph: Graph) -> Graph:
        builder, values = Builder(graph.inputs), list(range(len(graph.inputs)))
        for k, node in enumerate(graph.nodes):
            ins, text = [values[v] for v in node.inputs], texts.get((id(graph), k))
            if (id(graph), k) in apart and fuse is not None:
                values += inline(builder, fuse(node.kw["body"], target, larger=False), ins)
                continue
            if text is not None:
                node = done_in(node, text)
            elif node.op != "blocks" and not is_kernel(node):
                node = map_bodies(node, rebuilt)
            values += builder.add(node.op, ins, node.params, node.specs, node.line)
        return Graph(
            builder.inputs, tuple(builder.nodes), tuple([values[v] for v in graph.outputs])
        )

    return rebuilt(program.graph)


def _points(made: Divisible, ways: Sequence[str], target: Target, room: float) -> list[Point]:
    """The front of divisions; if none fits, the one that needs least."""
    if points := made.front(ways, room, predicted(made, target, ways)):
        return points
    size, _, way = min((made.bytes(1, way), n, way) for n, way in enumerate(ways))
    return [Point(0.0, size, ((1, way),) * made.extent)]
