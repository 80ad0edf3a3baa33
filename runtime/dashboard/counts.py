"""What a worker of a crew did since it was asked last: runs, seconds, bytes, memory.

The engine's thread only adds to numbers that it has anyway (`Loaded`, `talking`, `bytes_to`); whoever
asks takes differences, in a thread of its own. Plans are described once, by the lead."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.core.layout import Mesh
from ostinato.planner.machine import known
from ostinato.planner.plan import Plan
from ostinato.planner.prediction import steps
from ostinato.planner.seeing.explain import amount, name_of
from ostinato.planner.seeing.picture import svg
from ostinato.planner.simulation import simulate
from ostinato.runtime.crew.crew_feeding import Portion
from ostinato.runtime.crew.member import Member
from ostinato.runtime.crew.orders import LEAD
from ostinato.runtime.worker import TIMED, Loaded

LISTED = 200  # operations of a plan that are listed
_log = logging.getLogger("distributed.worker.ostinato")


@dataclass(slots=True)
class _Told:
    """What was told of a plan already."""

    loaded: Loaded
    counted: tuple[float, ...] = (0, 0, 0.0, 0.0, 0.0)
    timed: bool = False  # its operations


class Counts:
    """The counters of one member, as differences since the last look."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.told: dict[str, _Told] = {}
        self.sent = [0] * member.communicator.size
        self.asked = time.perf_counter()
        self.described: deque[dict[str, Any]] = deque()
        self.writer: threading.Thread | None = None  # of descriptions
        self.ended = False

    def take(self) -> dict[str, Any]:
        """Plain data: what happened since this was called last."""
        before, self.asked = self.asked, time.perf_counter()
        now = dict(self.member.worker.plans)
        fresh = [loaded for name, loaded in now.items() if name not in self.told]
        self.told |= {loaded.plan.id: _Told(loaded) for loaded in fresh}
        if fresh and self.member.rank == LEAD:
            plans = [loaded.plan for loaded in fresh]
            self.writer = threading.Thread(target=self._describe, args=(plans,), daemon=True)
            self.writer.start()
        described = [self.described.popleft() for _ in range(len(self.described))]
        found = {
            "rank": self.member.rank,
            "span": self.asked - before,
            "plans": {name: ran for name, told in self.told.items() if (ran := _ran(told))},
            "steps": {name: took for name, told in self.told.items() if (took := _steps(told))},
            "sent": self._sent(),
            "memory": self._memory(),
            "feeds": self._feeds(),
            "described": described,
        }
        for name in self.told.keys() - now.keys():  # let go since, and counted above
            del self.told[name]
        return found

    def _describe(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            try:
                self.described.append(description(plan))
            except Exception:  # numbers go on
                _log.exception("ostinato: plan %s cannot be described", plan.id[:8])

    def _mesh(self) -> Mesh:
        known = next(iter(self.told.values()), None)
        size = self.member.communicator.size
        return known.loaded.plan.target.mesh if known is not None else (size,)

    def _sent(self) -> dict[str, int]:
        """Bytes along each axis of the mesh."""
        before, self.sent = self.sent, list(self.member.communicator.bytes_to)
        mesh, found = self._mesh(), dict[str, int]()
        for peer, (old, new) in enumerate(zip(before, self.sent, strict=True)):
            if new > old:
                axis = axis_between(self.member.rank, peer, mesh)
                found[axis] = found.get(axis, 0) + new - old
        return found

    def _feeds(self) -> list[Any]:
        """The epochs of pipes that are under way here, by what the pipes are."""
        if self.ended:
            return []
        parts = list(self.member.parts.values())
        return [[x.share.name, x.share.stats()] for x in parts if isinstance(x, Portion)]

    def _memory(self) -> dict[str, Any]:
        plans = [told.loaded.plan for told in self.told.values()]
        limits = [p.target.memory_limit for p in plans if p.target.memory_limit is not None]
        operands = sum(getattr(x, "nbytes", 0) for x in list(self.member.parts.values()))
        device = self.member.worker.device
        device.use()
        there = {} if self.ended else device.memory()
        elsewhere = sum(p.offloaded_bytes for p in plans)
        return {
            "operands": 0 if self.ended else operands,
            "arena": 0 if self.ended else int(self.member.worker.arena.size),
            "peak": max((p.peak_bytes for p in plans), default=0),
            "limit": min(limits, default=None),
            **({"elsewhere": elsewhere} if elsewhere else {}),
            **{f"device {kind}": size for kind, size in there.items()},
        }


def _ran(told: _Told) -> list[float] | None:
    """Runs, those that were clocked, their seconds, those in communication, and the first run's."""
    loaded, before = told.loaded, told.counted
    now = loaded.runs, loaded.clocked, loaded.seconds, loaded.talking, loaded.first
    told.counted = now
    return [a - b for a, b in zip(now, before, strict=True)] if now[0] > before[0] else None


def _steps(told: _Told) -> dict[str, list[float]] | None:
    """The seconds of single operations, and those in communication, once they are known."""
    if told.timed or not told.loaded.rows or told.loaded.runs <= TIMED:
        return None
    told.timed = True
    nodes = {id(node): k for k, node in enumerate(told.loaded.plan.program.graph.nodes)}
    timed = [row for row in told.loaded.rows if id(row.node) in nodes]
    return {str(nodes[id(row.node)]): [row.seconds, row.talking] for row in timed}


def axis_between(rank: int, peer: int, mesh: Mesh) -> str:
    """Along which axis of the mesh two workers are neighbours; "several" if their places differ in more."""
    found = []
    for axis in reversed(range(len(mesh))):
        rank, here = divmod(rank, mesh[axis])
        peer, there = divmod(peer, mesh[axis])
        if here != there:
            found.append(axis)
    return str(found[0]) if len(found) == 1 else "several"


def description(plan: Plan) -> dict[str, Any]:
    """Describe a plan for people, as plain data."""
    machine = known(plan.target.device, plan.target.mesh, apart=True)
    rows = list[dict[str, Any]]()
    graph = plan.program.graph
    number = {id(node): k for k, node in enumerate(graph.nodes)}
    waits = {
        graph.producers[v]: k
        for k, node in enumerate(graph.nodes)
        if node.op == "wait"
        for v in node.inputs
    }
    predicted = simulate(plan.program, machine, plan.target.mesh).seconds
    for step in steps(plan.program, machine):
        k = number.get(id(step.node), -1)
        spec = step.node.specs[0] if step.node.specs else None
        rows.append(
            {
                "nodes": [k, waits[k]] if step.collective and k in waits else [k],
                "depth": step.depth,
                "collective": bool(step.collective),
                "name": name_of(step),
                "result": str(spec.bare) if spec is not None else "",
                "traffic": f"{amount(step.sent)} sent" if step.collective else amount(step.moved),
                "predicted": step.predicted * step.turns,
                "line": step.node.line,
            }
        )
    line = next((row["line"] for row in rows if row["line"]), "read")
    return {
        "id": plan.id,
        "name": line.rpartition("/")[2] if plan.called in ("", "<lambda>") else plan.called,
        "mesh": list(plan.target.mesh),
        "predicted": predicted,
        "rows": rows[:LISTED],
        "more": max(0, len(rows) - LISTED),
        "operands": plan.operand_bytes,
        "results": plan.result_bytes,
        "arena": plan.arena_bytes,
        "peak": plan.peak_bytes,
        "limit": plan.target.memory_limit,
        "picture": svg(plan),
    }
