"""How far a run is: by the line of its function at which its thread is, and the turns of its loops.

Nothing is counted while it runs. Who wants to know looks at the frame of the running function, as
a debugger would; operations weigh what they are predicted to cost."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS

FLOPS, BYTES, CALL = 1e10, 1e10, 5e-8  # a second, and seconds of a call


@dataclass(slots=True, frozen=True)
class Span:
    """The lines of a function that do an operation."""

    first: int
    last: int
    graph: Graph
    node: Node

    @property
    def seconds(self) -> float:
        ins = tuple(self.graph.specs[v] for v in self.node.inputs)
        flops, moved = OPS[self.node.op].cost(ins, self.node.specs, self.node.kw)
        return flops / FLOPS + moved / BYTES + CALL


@dataclass(slots=True)
class Turns:
    """Lines that run again and again: a variable of the function says which turn it is."""

    first: int
    name: str
    begin: int = 0
    step: int = 1
    trips: int = 0  # 0: nobody knows
    last: int = 0


@dataclass(slots=True)
class Map:
    """Of a function's lines."""

    spans: list[Span] = field(default_factory=list)
    turns: list[Turns] = field(default_factory=list)

    def cut(self, last: int) -> None:
        """Forget what lies behind a line."""
        self.spans[:] = [s for s in self.spans if s.first <= last]
        self.turns[:] = [t for t in self.turns if t.first <= last]

    def moved(self, now: Mapping[int, int]) -> Map:
        """Copy the map for a function that has the same lines elsewhere."""
        spans = [replace(s, first=now[s.first], last=now[s.last]) for s in self.spans]
        turns = [replace(t, first=now[t.first], last=now[t.last]) for t in self.turns]
        return Map(spans, turns)

    def share(self, frame: FrameType) -> tuple[float | None, str]:
        """How much of the function is done at this moment, if that is known; else the iteration."""
        line = frame.f_lineno
        around = [t for t in self.turns if t.first <= line <= t.last]
        values = frame.f_locals if around else {}
        at = {t.name: t.begin + t.step * v for t in around if (v := values.get(t.name)) is not None}
        endless = next((t for t in around if not t.trips and t.name in at), None)
        words = f"iteration {at[endless.name] + 1:,}" if endless is not None else ""
        share = self._within(line, self.spans, around, at)
        if endless is not None and sum(s.seconds for s in _outermost(self.spans)) < 2 * sum(
            s.seconds for s in _outermost(self.spans) if s.first <= line <= s.last
        ):
            return None, words  # most of the work is in what nobody knows
        return share, words

    def _within(
        self, line: int, spans: Sequence[Span], turns: Sequence[Turns], at: dict[str, int]
    ) -> float:
        """The share that is done of these lines."""
        before = total = 0.0
        for span in _outermost(spans):
            seconds = span.seconds
            total += seconds
            if span.last < line:
                before += seconds
            elif span.first <= line:
                before += seconds * self._of(line, span, spans, turns, at)
        return before / total if total else 0.0

    def _of(
        self,
        line: int,
        span: Span,
        spans: Sequence[Span],
        turns: Sequence[Turns],
        at: dict[str, int],
    ) -> float:
        """The share of one operation that is done."""
        loop = next((t for t in turns if span.first <= t.first and t.last <= span.last), None)
        if loop is None or not loop.trips or loop.name not in at:
            return 0.0
        inner = [s for s in spans if loop.first < s.first and s.last <= loop.last]
        others = [t for t in turns if t is not loop and loop.first < t.first]
        return min(1.0, (at[loop.name] + self._within(line, inner, others, at)) / loop.trips)


def _outermost(spans: Sequence[Span]) -> list[Span]:
    """List the spans that are in no other; one that contains others ends with them or behind them."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.first, -s.last)):
        if not found or span.first > found[-1].last:
            found.append(span)
    return found


def frame_of(name: str, thread: int | None) -> FrameType | None:
    """Where a thread is in the function of this name."""
    frame = sys._current_frames().get(thread or 0)
    while frame is not None and frame.f_code.co_filename != name:
        frame = frame.f_back
    return frame
