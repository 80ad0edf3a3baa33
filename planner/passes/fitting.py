"""What a plan does to stay within its memory limit.

Operands that are given away are written over, and places in memory are used again, in every plan
(memory.py); under a limit, what gives memory back runs first (order.py). If that does not do, values can
be made block after block, so that they never exist as a whole (blocking.py), or be made again where they
are read next, so that they are not kept in between (recompute.py), or both; or they go to the host's
memory or to a disk in between (offload.py), all, or those that take longer to make again. Each of these,
and one after the other, is planned to the end and run on the model of the machine; the one that fits and
takes the least time is taken. The pass tells what each of its steps frees, and what it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.locks import cached_property
from ostinato.planner.plan import (
    Program,
    Rung,
    Target,
    local_bytes,
    offloaded_bytes,
    peak_bytes,
)
from ostinato.planner.simulation import simulate

from .blocking import PARTS, cut_fixed_blocks, cut_further, roughly
from .offload import OFF, named_place, place_of
from .recompute import followed, recomputed, recomputed_below

REUSED, WRITTEN_OVER = "places used again", "operands written over"
TURNS, AGAIN = "made in turns", "made again"
NEARER = 0.95  # of the peak before: a part in turns that brings less is the last
MAX_DETAILED_NODES = 120  # nodes of a graph that is not looked at in each detail, nor,
MAX_NODES = 200  # if it has more than so many, even where nothing else helps
NEARLY_FREE = 1.05  # times as long as without a limit: a large graph is not cut into turns then
TAKEN = 3  # ways to cut a part into turns that are compared by time


def fit_memory(
    graph: Graph,
    target: Target,
    donated: Sequence[int] = (),
    told: dict[str, Any] | None = None,
) -> Graph:
    """The pass; nothing unless the plan needs more memory than it may, nor if nothing helps: then the
    least that it could do with is told."""
    limit, asked, target = target.memory_limit, target, replace(target, offload=OFF)
    if limit is None:
        return graph
    if 2 * roughly(graph, target, donated) <= limit:  # kernels need less than nodes
        return graph
    start = _Candidate(graph, target, followed(graph, target, donated))
    if told is not None:
        told["ladder"] = anyway(start.program)
    if start.peak <= limit:
        return graph
    nodes = len(graph.nodes)
    found = list(_candidates(start, target, donated, limit, nodes > MAX_DETAILED_NODES))
    if MAX_DETAILED_NODES < nodes <= MAX_NODES and all(c.peak > limit for c in found):
        found += _candidates(start, target, donated, limit, False)
    enough = NEARLY_FREE * start.seconds if nodes > MAX_NODES else 0.0
    if place_of(asked) and all(
        c.peak > limit or (asked.offload and c.seconds > enough) for c in found
    ):
        found += _moved(start, found, asked, donated, limit)
    fit = [c for c in found if c.peak <= limit]
    if not fit:
        if told is not None:
            told["least"] = min(c.peak for c in [start, *found])
        return graph
    best = min(fit, key=lambda c: c.seconds)
    if told is not None:
        told["ladder"] += best.ladder
    return best.graph


def anyway(program: Program) -> tuple[Rung, ...]:
    """List the steps of every plan, and what they free against a place of its own for each value."""
    saved = sum(local_bytes(program.graph.out_specs[k]) for k, _ in program.reuse)
    rungs = (REUSED, _alone(program) - program.arena_bytes), (WRITTEN_OVER, saved)
    return tuple(Rung(how, freed, 0.0) for how, freed in rungs if freed)


def _alone(program: Program) -> int:
    """The arena in which no place is used twice."""
    places = zip(program.slots, program.graph.specs, strict=True)
    own = sum(local_bytes(spec) for slot, spec in places if slot.kind == "arena")
    inner = sum(max(map(_alone, bodies), default=0) for bodies in program.bodies.values())
    return max(own + inner, program.arena_bytes)


@dataclass(frozen=True)
class _Candidate:
    """A graph on its way into memory, and how it came there."""

    graph: Graph
    target: Target
    given: Program | None  # where it is known
    before: _Candidate | None = None
    how: str = ""
    donated: Sequence[int] = ()

    @cached_property
    def program(self) -> Program:
        return self.given or followed(self.graph, self.target, self.donated)

    @cached_property
    def peak(self) -> int:
        return peak_bytes(self.program)

    @cached_property
    def seconds(self) -> float:
        return simulate(self.program, self.target.machine, self.target.mesh).seconds

    @property
    def ladder(self) -> tuple[Rung, ...]:
        """List the steps, with the bytes that each freed and the seconds that it took."""
        if self.before is None:
            return ()
        freed, took = self.before.peak - self.peak, self.seconds - self.before.seconds
        return (*self.before.ladder, Rung(self.how, freed, took))


def _candidates(
    start: _Candidate, target: Target, donated: Sequence[int], limit: int, quickly: bool
) -> Iterator[_Candidate]:
    """Ways to need less, those that fit and those that come near."""

    def again(here: _Candidate) -> _Candidate:
        graph, program = recomputed(here.graph, here.program, target, donated, limit)
        return _Candidate(graph, target, program, here, AGAIN)

    programs: dict[Graph, Program] = {start.graph: start.program}

    def program_of(graph: Graph) -> Program:
        if graph not in programs:
            programs[graph] = followed(graph, target, donated)
        return programs[graph]

    kept_less = again(start)
    yield kept_less
    large = len(start.graph.nodes) > MAX_NODES
    if large and kept_less.peak <= limit and kept_less.seconds < NEARLY_FREE * start.seconds:
        return
    here = start
    if target.numerics == "any-workers":
        graph = cut_fixed_blocks(start.graph)
        here = _Candidate(graph, target, program_of(graph))
    for _ in range(PARTS):
        graphs = cut_further(
            here.graph, target, donated, limit, lambda g: peak_bytes(program_of(g)), quickly
        )
        made = [_Candidate(g, target, program_of(g), here, TURNS) for g in graphs[:TAKEN]]
        yield from made
        if not made or made[0].peak <= limit or made[0].peak > here.peak * NEARER:
            break
        here = made[0]
        yield again(here)


def _moved(
    start: _Candidate,
    others: Sequence[_Candidate],
    target: Target,
    donated: Sequence[int],
    limit: int,
) -> Iterator[_Candidate]:
    """Ways of which values leave memory: as it is; with what takes less time to make again than to bring
    back; and those that did not need little enough by other means."""
    alone, link = start.target, target.machine.offload
    priced = recomputed_below(start.graph, start.program, alone, limit, 2 / link.bandwidth)
    found = [start]
    if priced != start.graph:
        found.append(_Candidate(priced, alone, None, start, AGAIN, donated))
    if len(start.graph.nodes) <= MAX_NODES:
        found += sorted((c for c in others if c.peak > limit), key=lambda c: c.peak)[:TAKEN]
    how = f"moved to {named_place(place_of(target))} and back"
    for here in found:
        moved = followed(here.graph, target, donated)
        if offloaded_bytes(moved):
            yield _Candidate(here.graph, target, moved, here, how)
