"""The tuner of a pipe that several workers make: all run alike, and change that at the same batch.

Each records its laps. Who has waited longest is the slowest, by whom the lead's tuner decides; what it
says then holds for all from the next batch on."""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..feed.executor import Work
from .drive import Drive, Move
from .feed_tuner import Measure
from .model import Config

Row = list[float]  # seconds of a lap's step and wait, of threads, batches made, whether it is stale
MOST_LAPS = 256


class Together(Drive):
    """One worker's side of it."""

    def __init__(self, identity: str, size: int) -> None:
        super().__init__(identity, size)
        self.now: Config | None = None  # as all run; None as long as nobody has decided
        self._laps: list[Measure] = []
        self._work: weakref.ref[Work] | None = None

    def attend(self, work: Work, move: Callable[[], Move | None] = lambda: None) -> None:
        super().attend(work, move)
        self._work = weakref.ref(work)
        if self.now is not None:
            self._go_on(work, self.now)

    def _heard(self, work: Work, measure: Measure) -> None:
        self._laps = [*self._laps[1 - MOST_LAPS :], measure]

    def told(self) -> Row | None:
        """The laps since this was asked last; None if there were none."""
        laps, self._laps = self._laps, []
        if not laps:
            return None
        columns = zip(*((x.step, x.wait, x.busy, x.made) for x in laps), strict=True)
        return [*map(statistics.fmean, columns), float(laps[0].is_stale)]

    def decide(self, told: Sequence[Row | None]) -> list[Any]:
        """At the lead: how all go on, and whether anything is still to be found out."""
        work = self._work() if self._work is not None else None
        if work is None or not work.batch_bytes or None in told:
            return [None, self.tuner is None or not self.tuner.is_settled]
        if self.tuner is None:
            self.tuner = self._begin(work)
            work.decisions = self.tuner.decisions
        step, wait, busy, made, stale = slowest([t for t in told if t is not None])
        config = self.tuner.add(Measure(step, wait, busy, made, stale > 0))
        work.is_tried = not self.tuner.is_settled
        self._remember()
        return [[config.threads, config.ahead, config.chunk], work.is_tried]

    def go_on(self, said: Sequence[int] | None) -> None:
        work = self._work() if self._work is not None else None
        if said is None or work is None:
            return
        config = Config(*said)
        if config != self.now:
            self.now, self._stale = config, len(work.open)
            self._go_on(work, config)


def slowest(rows: Sequence[Row]) -> Row:
    """Who waited longest for its own part; else whose threads worked most, for others wait for it."""
    return max(rows, key=lambda row: (row[1], row[2]))
