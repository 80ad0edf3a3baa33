"""When each operation ran on a worker: what profiles are made of.

As long as a worker has a tape, its plans are bound with a clock between their steps, as for the one run
of each that is timed anyway. Without one, nothing of this is there."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, field
from typing import Any

from ostinato.ops.core import activity
from ostinato.ops.core.activity import Task
from ostinato.ops.core.device import Device
from ostinato.ops.core.graph import Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.user_line import short
from ostinato.ops.planned.collective import collective_of
from ostinato.planner.title import title

from .bound import Row

MAX_SPANS = 100_000  # operations that are written down
WHOLE, WAIT = "run", "file"  # a plan's run, and a wait for what is read


@dataclass(slots=True)
class TapedRow(Row):
    """An operation of a plan that tells its tape when it ran."""

    tape: Tape | None = None
    number: int = 0

    def span(self, device: Device, first: Any, last: Any) -> None:
        self.count += 1
        assert self.tape is not None
        self.tape.ran(self.number, first, last)


@dataclass(slots=True)
class Tape:
    """What one worker did."""

    device: Device
    rank: int
    labels: list[tuple[str, str, str, int]] = field(default_factory=list)  # name, kind, line, depth
    spans: list[tuple[int, Any, Any]] = field(default_factory=list)
    missed: int = 0
    origin: Any = None
    began: float = 0.0  # on the clock of the wall

    def __post_init__(self) -> None:
        self.device.clock()  # when all that came before is done
        self.origin, self.began = self.device.mark(), time.time()

    def row(self, node: Node, depth: int, kind: str = "", name: str = "") -> TapedRow:
        """One for a line of a plan's function."""
        if not kind:
            collective = collective_of(node.op, node.kw)
            waits = node.op == "wait"
            dense = OPS[node.op].run.dense
            kind = "message" if collective or waits else "product" if dense else "kernel"
            kind = "file" if node.op == "read" else kind
            name = "wait for messages" if waits else collective or title(node)
        line = short(node.line) if node.line else ""
        self.labels.append((name, kind, line, depth))
        return TapedRow(node, depth, tape=self, number=len(self.labels) - 1)

    def ran(self, number: int, first: Any, last: Any) -> None:
        if len(self.spans) < MAX_SPANS:
            self.spans.append((number, first, last))
        else:
            self.missed += 1

    def as_data(self) -> dict[str, Any]:
        """Names, and seconds since the epoch."""
        self.device.clock()
        found = []
        for number, first, last in self.spans:
            begin, took = (self.device.seconds(*p) for p in ((self.origin, first), (first, last)))
            if begin is not None and took is not None:
                found.append([number, self.began + begin, self.began + begin + took])
        return {
            "rank": self.rank,
            "labels": [list(label) for label in self.labels],
            "spans": found,
            "missed": self.missed,
            **whose(),
        }


def whose() -> dict[str, Any]:
    """Name the process that this is of."""
    return {"host": platform.node(), "process": os.getpid()}


class Steps:
    """The steps of a process that take long: plans, compilation, files. A listener."""

    def __init__(self) -> None:
        self.offset = time.time() - time.perf_counter()
        self.found: list[tuple[str, str, str, bool, float, float]] = []

    def began(self, task: Task) -> None:
        pass

    def ended(self, task: Task) -> None:
        if len(self.found) < MAX_SPANS:
            at = task.begin + self.offset, task.end + self.offset
            self.found.append((task.kind, task.what, task.thread.name, task.minor, *at))

    def as_data(self) -> dict[str, Any]:
        return {"steps": [list(step) for step in self.found], **whose()}

    def begin(self) -> None:
        activity.listen(self)

    def end(self) -> None:
        activity.leave(self)
