"""What a run waits for: how much sooner it is done where one thing of the machine is twice as fast, and how
much more it does in its time where there is more to do.

limited by  Ethernet (twice as fast: 38% less time), products (21%), starts of kernels (4%)
with more   x, y twice as long (16384): 31% less time for each element

Each line is a simulation of the same program on another machine, or of another plan on this one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ostinato.planner.machine import Link, Machine, Rate
from ostinato.planner.plan import Plan, export
from ostinato.planner.simulation import Simulation, link_name, simulate, worker_classes

from ostinato.errors import OstinatoError

TOLD = 0.02  # of the time that something twice as fast saves, from which it is told
MAX_NODES = 4000  # nodes, beyond which `explain` does not look


@dataclass(frozen=True, slots=True)
class Limit:
    """A part of a machine, and the share of a run's time that is saved if it is twice as fast."""

    what: str
    saves: float


@export
def limits(found: Simulation) -> tuple[Limit, ...]:
    """Find what a run waits for; that of which it waits most comes first."""
    if found.program is None or not found.seconds:
        return ()
    rows, classes = [], worker_classes(found.program, found.mesh)
    for what, machine in _faster(found.machine, [link.name for link in found.links]):
        sooner = simulate(found.program, machine, found.mesh, classes=classes).seconds
        rows.append(Limit(what, 1 - sooner / found.seconds))
    return tuple(sorted([r for r in rows if r.saves >= TOLD], key=lambda r: -r.saves))


def _faster(machine: Machine, used: Collection[str]) -> Iterator[tuple[str, Machine]]:
    """The machine with one part twice as fast."""
    twice = tuple([Rate(r.dtype, 2 * r.most, r.half) for r in machine.products])
    factors = tuple([Rate(r.dtype, 2 * r.most, r.half) for r in machine.factors])
    yield "products", replace(machine, products=twice, factors=factors)
    elements, functions = (
        tuple([(dtype, 2 * rate) for dtype, rate in rates])
        for rates in (machine.elements, machine.functions)
    )
    yield "functions of elements", replace(machine, elements=elements, functions=functions)
    yield "memory", replace(machine, stream=tuple([(n, 2 * b) for n, b in machine.stream]))
    again = machine.again_seconds and machine.again_seconds / 2
    call, run = machine.call_seconds / 2, machine.run_seconds / 2
    sooner = replace(machine, again_seconds=again, call_seconds=call, run_seconds=run)
    yield "starts of kernels", sooner
    for k in range(len(machine.levels)):
        name = link_name(machine, k)
        if name not in used:
            continue
        yield name, _with_link(machine, k, _wider)
        yield f"starts of messages on {name}", _with_link(machine, k, _sooner)


def _with_link(machine: Machine, level: int, change: Callable[[Link], Link]) -> Machine:
    levels = list(machine.levels)
    levels[level] = (levels[level][0], change(levels[level][1]))
    return replace(machine, levels=tuple(levels))


def _wider(link: Link) -> Link:
    seen = tuple([replace(s, bandwidth=2 * s.bandwidth) for s in link.seen])
    return replace(link, bandwidth=2 * link.bandwidth, seen=seen)


def _sooner(link: Link) -> Link:
    seen = tuple([replace(s, seconds=s.seconds / 2) for s in link.seen])
    return replace(link, seconds=link.seconds / 2, seen=seen)


def waits(plan: Plan, found: Simulation) -> list[str]:
    if len(plan.program.graph.nodes) > MAX_NODES:
        return []
    rows = limits(found)
    named = [f"{r.what} ({r.saves:.0%})" for r in rows]
    if rows:
        named[0] = f"{rows[0].what} (twice as fast: {rows[0].saves:.0%} less time)"
    lines = [f"limited by {', '.join(named[:4])}"] if rows else []
    more = _larger(plan, found)
    return [*lines, f"with more  {more}"] if more else lines


def _larger(plan: Plan, found: Simulation) -> str:
    """Describe the gain of twice the size along the mesh's first axis, where that can be planned."""
    if plan.again is None or not found.seconds:
        return ""
    try:
        other: Any = plan.again(found.mesh, False, 2)
    except OstinatoError:
        return ""
    pairs = zip(plan.traced.inputs, other.traced.inputs, strict=True)
    grown = [k for k, (a, b) in enumerate(pairs) if a.shape != b.shape]
    if not grown:
        return ""
    each = other.simulate(found.machine).seconds / 2
    less = 1 - each / found.seconds
    names = [plan.names[k] if k < len(plan.names) else f"operand {k}" for k in grown]
    of = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    a, b = plan.traced.inputs[grown[0]].shape, other.traced.inputs[grown[0]].shape
    (size,) = [n for m, n in zip(a, b, strict=True) if m != n][:1]
    if less < TOLD:
        return f"{of} twice as long ({size}) take twice the time"
    return f"{of} twice as long ({size}): {less:.0%} less time for each element"
