"""Sites under a limit of memory: ways that need more scratch memory than there is are offered in parts.

    way "columns", 200 MiB, where 64 MiB are left      "4 x 8 by columns along n"

Each way is timed in a few sizes of parts, which a line goes through; of the front that follows from these the
fastest division is one more way of the site, and timing confirms it or not, as it does all ways. Times are kept
by kind of site and machine, whatever the limit was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from ostinato.ops.core.device import DEVICES, Device
from ostinato.ops.core.divided import OWN_KERNEL, Division, Stretch, done_in
from ostinato.ops.core.graph import Graph, Node
from ostinato.planner.lowering import rules
from ostinato.planner.machine import unmeasured
from ostinato.planner.passes.memory import scratch_bytes
from ostinato.planner.passes.scratch import Divisible, divisible, room_for, scratch_of_all, ways_of
from ostinato.planner.plan import Program, Target, Tuned

from .fronts import Line, sizes
from .sites import Site, places, with_ways

Measure = Callable[[Sequence[Site]], Tuned]


def with_parts(
    found: Sequence[Site], program: Program, target: Target, threads: int, measure: Measure
) -> list[Site]:
    """The sites, each with no way that needs more than there is, and with the best division of these."""
    limited = (target.scratch_limit, target.memory_limit) != (None, None)
    if not limited and target.numerics != "fast":
        return list(found)
    rooms, inner = room_for(program, target)
    device, made = DEVICES[target.device], list[Site]()
    for site, (graph, k, outer) in zip(found, places(program.graph, target), strict=True):
        room = inner[outer[0][0]] if outer else rooms[k]
        site = _fitting(site, room, device) if limited else site
        in_turns = any(op == "blocks" for _, op in outer)  # each of which has a place of its own
        if target.numerics == "fast" and not in_turns:
            site = _divided(site, graph, k, target, room, threads, measure)
        made.append(site)
    return made


def _fitting(site: Site, room: float, device: Device) -> Site:
    """Without the ways that do not fit, but for the first."""
    kept = [
        n
        for n, g in enumerate(site.graphs)
        if n == 0 or all(size <= room for *_, size in scratch_of_all(g, device))
    ]
    if len(kept) == len(site.ways):
        return site
    return _named(site, [site.ways[n] for n in kept], [site.graphs[n] for n in kept])


def _named(site: Site, ways: Sequence[str], graphs: Sequence[Graph]) -> Site:
    digest = hashlib.blake2b(repr(ways).encode(), digest_size=6).hexdigest()
    kind = f"{site.kind}-{digest}"
    return replace(site, kind=kind, ways=tuple(ways), graphs=tuple(graphs))


def _divided(
    site: Site, graph: Graph, k: int, target: Target, room: float, threads: int, measure: Measure
) -> Site:
    """The site with its fastest division, if some way needs more than there is."""
    device, node = DEVICES[target.device], graph.nodes[k]
    ways = ways_of(graph, done_in(node, ""), device, threads)
    needs = {way: _scratch(graph, done_in(node, way), device) for way in ways if way != OWN_KERNEL}
    large, cache = [way for way, size in needs.items() if size > room], rules(target).cache
    if not large and cache:  # parts whose scratch memory stays in cache may be faster, too
        large = ways = [way for way, size in needs.items() if way and size > cache]
    if not large:
        return site
    made = divisible(graph, k, device, max(large, key=lambda way: needs[way]), room)
    if made is None:
        return site
    if made.bytes(1, large[0]) <= cache:
        room = min(room, cache)
    measured = _lines(site, made, ways, target, room, measure)
    if not measured:
        return site
    # so that of equal divisions the one in fewer parts wins
    call = unmeasured(target.device).call_seconds
    points = made.front([*measured], room, lambda size, way: call + measured[way](size))
    if not points or (text := made.text(points[-1])) in site.ways:
        return site
    return _named(
        site, [*site.ways, text], [*site.graphs, with_ways(site.graphs[0], target, [text])]
    )


def _lines(
    site: Site, made: Divisible, ways: Sequence[str], target: Target, room: float, measure: Measure
) -> dict[str, Line]:
    """Seconds of a part by its size, for each way of which some part fits."""
    texts: dict[str, tuple[str, int]] = {}
    for way in ways:
        # Three sizes are timed, each half as large as the one before.
        fit = [n for n in sizes(made.extent) if made.bytes(n, way) <= room]
        for n in dict.fromkeys(max(fit) >> j for j in range(3)) if fit else ():
            if n:
                texts[str(Division(made.label, (Stretch(1, n, way),)))] = way, n
    if not texts:
        return {}
    graphs = [with_ways(site.graphs[0], target, [text]) for text in texts]
    probe = _named(site, [*texts], graphs)
    (choice,) = measure([probe]).choices
    found: dict[str, dict[int, float]] = {}
    for text, seconds in choice.times:
        way, n = texts[text]
        found.setdefault(way, {})[-(-made.extent // n)] = seconds
    lines = {}
    for way, times in found.items():  # all of it takes a start for each part, and all elements
        line = Line.through(times) if len(times) > 1 else Line(sum(times.values()), 0.0)
        lines[way] = Line(line.each, line.start / made.extent)
    return lines


def _scratch(graph: Graph, node: Node, device: Device) -> int:
    return sum(scratch_bytes(device, graph, node))
