"""From a graph that every machine may have to the program that one kind of machine runs: its own passes,
then memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph

from .cpu import passes as cpu
from .gpu import passes as gpu
from .passes.memory import assign_memory, bytes_of_values
from .passes.offload import offload
from .passes.scratch import fit_scratch
from .plan import Program, Target, peak_bytes

# (graph, target); what the user gives away, if it wants to know; where it tells of its answer, if it does
Pass = Callable[..., Graph]
Runner = Callable[[Pass, Graph, Target, Sequence[int]], Graph]


@dataclass(frozen=True, slots=True)
class Rules:
    """What one kind of device makes of plans."""

    passes: Sequence[Pass] = ()
    need_room: Collection[Pass] = ()  # of these, what is left out where memory is short
    cache: int = 0  # bytes of a turn that stay in cache until they are read; 0: no such turns
    fuse: Pass | None = None  # of these, who makes kernels that have several ways, of which timing
    # takes one; without the `larger` ones, if that is said
    larger: Collection[str] = ()  # kernels that can come apart again


RULES = {
    "cpu": Rules(cpu.PASSES, cpu.NEED_ROOM, cpu.CACHE, cpu.FUSE, cpu.CAN_COME_APART),
    "cuda": Rules(gpu.PASSES, fuse=gpu.FUSE, larger=cpu.CAN_COME_APART),
}
PLAIN = Rules()


def rules(target: Target) -> Rules:
    return RULES.get(target.device, PLAIN)


def run(
    each: Pass,
    graph: Graph,
    target: Target,
    donated: Sequence[int],
    told: dict[str, Any] | None = None,
) -> Graph:
    """One pass. What it tells of its answer, if it does, stands in `told` afterwards."""
    code = each.__code__
    names = code.co_varnames[: code.co_argcount]
    more = {"donated": donated, "told": told}
    return each(graph, target, **{k: v for k, v in more.items() if k in names})


def as_run(
    graph: Graph, target: Target, donated: Sequence[int] = (), runner: Runner = run
) -> Graph:
    """The kernels that a graph becomes."""
    for each in rules(target).passes:
        graph = runner(each, graph, target, donated)
    return graph


def lower(
    graph: Graph,
    target: Target,
    donated: Sequence[int] = (),
    reuse: Sequence[int] = (),
    runner: Runner = run,
) -> Program:
    """The program. `reuse`: operands whose memory results may take. Where the limit leaves no room for
    passes that need some, it is made without them."""
    limit, need_room = target.memory_limit, rules(target).need_room
    took_room = False

    def noting(each: Pass, graph: Graph, target: Target, donated: Sequence[int]) -> Graph:
        nonlocal took_room
        made = runner(each, graph, target, donated)
        took_room |= each in need_room and made is not graph
        return made

    program = placed(as_run(graph, target, donated, noting), target, reuse)
    if limit is None or not took_room or peak_bytes(program) <= limit:
        return program

    def without(each: Pass, graph: Graph, target: Target, donated: Sequence[int]) -> Graph:
        return graph if each in need_room else run(each, graph, target, donated)

    return placed(as_run(graph, target, donated, without), target, reuse)


def placed(graph: Graph, target: Target, reuse: Sequence[int]) -> Program:
    """The program, with as little scratch memory as the limits ask for; of what does not fit then, values
    leave memory for a while, if they may."""
    device, own = described(target.device), rules(target)
    program = assign_memory(graph, device, reuse)
    values = peak_bytes(program) - program.arena_bytes + bytes_of_values(program)
    if target.scratch_limit is None and _exceeds(values, target):  # less scratch is not enough
        moved = offload(program, target, device, reuse)
        if not _exceeds(peak_bytes(moved), target):
            return moved
    program = fit_scratch(program, target, device, reuse, own.fuse, own.larger)
    return offload(program, target, device, reuse)


def _exceeds(size: int, target: Target) -> bool:
    return target.memory_limit is not None and size > target.memory_limit
