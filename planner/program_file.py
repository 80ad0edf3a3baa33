"""Programs in the cache: what one kind of machine makes of a lowered graph, as JSON-able data.

A plan file has the graph as any machine may have it. In the cache there is beside it what the passes of
this one made of it, with the places of all values, so that another process runs no pass at all. It is
believed where all is the same that those passes look at: code, processor, libraries, threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ostinato.ops.core.device import described
from ostinato.ops.core.encode import (
    Lines,
    decode_graph,
    encode_graph,
    fields,
    integer,
    listing,
    need,
)
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS

from .plan import Program, Slot, Target


def decided_by(graph: Graph, target: Target) -> list[str]:
    """All that the passes of a machine look at beside a graph and its target."""
    return [*described(target.device).traits(_multiplies(graph))]


def _multiplies(graph: Graph) -> bool:
    return any(
        OPS[node.op].run.dense or any(_multiplies(body) for _, body in node.subgraphs())
        for node in graph.nodes
    )


def encode_program(program: Program) -> dict[str, Any]:
    """A program, down into the bodies of its loops."""
    return {
        "graph": encode_graph(program.graph, lines=True),
        "slots": [[s.kind, s.at] for s in program.slots],
        "scratch": {str(k): list(places) for k, places in enumerate(program.scratch) if places},
        "bodies": {str(k): list(map(encode_program, v)) for k, v in program.bodies.items()},
        "bases": {str(k): base for k, base in program.bases.items()},
        "arena": program.arena_bytes,
        "peak": program.peak_node,
        "reuse": [list(pair) for pair in program.reuse],
    }


def decode_program(value: Any, now: Lines) -> Program:
    """The program, or `Malformed`; `now`: what has become of the lines that were written."""
    names = ("graph", "slots", "scratch", "bodies", "bases", "arena", "peak", "reuse")
    graph, slots, scratch, bodies, bases, arena, peak, reuse = fields(value, *names)
    made = decode_graph(graph, now=now)
    places = tuple([Slot(*listing(s, longest=2)) for s in listing(slots)])
    need(len(places) == len(made.specs), "values without a place")
    room: list[tuple[int, ...]] = [()] * len(made.nodes)
    for k, offsets in _numbered(scratch, made):
        room[k] = tuple(listing(offsets, integer))
    return Program(
        made,
        places,
        tuple(room),
        {k: tuple([decode_program(b, now) for b in v]) for k, v in _numbered(bodies, made)},
        {k: integer(base) for k, base in _numbered(bases, made)},
        integer(arena, 0),
        integer(peak, -1),
        tuple([(integer(a), integer(b)) for a, b in listing(reuse)]),
    )


def _numbered(value: Any, graph: Graph) -> Iterator[tuple[int, Any]]:
    """Iterate over what some nodes have, by their numbers."""
    need(isinstance(value, dict), "no object by the numbers of nodes")
    for k, content in value.items():
        yield integer(int(k), 0, len(graph.nodes) - 1), content
