"""The tuner beside a pipe: it is told each lap, and threads are parked or called, from epoch to epoch."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import replace

from ostinato import settings

from ..feed.executor import MAX_AHEAD, MIN_AHEAD, Work
from ..feed.stats import Lap
from .feed_tuner import Measure, Tuner
from .model import Config, Space
from .place import Known, own_cores, own_memory

NEW = 2  # laps behind a move that are no measure: whoever takes batches has a new plan
TIMES, MOST_THREADS = 4, 64  # threads for a core that compute, and altogether
CHUNKS = (1, 2, 4, 8, 16, 32, 64)


Move = Callable[[int], None]  # to another place


class Drive:
    """Of one pipe, as long as it lives. What the user has said stays."""

    def __init__(self, identity: str, size: int) -> None:
        self.identity, self.size = identity, size  # of the pipe, and samples of a batch
        self.tuner: Tuner | None = None
        self._sizes = ""
        self._kept: tuple[Config, float] | None = None

    @property
    def place(self) -> int:
        """Where stages are that may move, for the next epoch."""
        return self.tuner.now.place if self.tuner is not None else 0

    def attend(self, work: Work, move: Callable[[], Move | None] = lambda: None) -> None:
        """Tune while an epoch is made. move: what lets stages move, as long as it is there."""
        self._busy, self._made = 0.0, 0
        self._is_first, self._stale = True, 0
        self._move, self._place = move, int(work.recipe.later is not None)
        self._now = there = weakref.ref(work)  # which knows this

        def watch(lap: Lap) -> None:
            found = there()
            if found is not None and self._now is there:  # else others go on behind it
                self._lap(found, lap)

        work.consumer.watch = watch
        if self.tuner is not None:
            self._go_on(work, self.tuner.now)
            work.decisions = self.tuner.decisions

    def _lap(self, work: Work, lap: Lap) -> None:
        if not work.batch_bytes or (work.running == 0 and work.is_at_end):
            return  # the rest of the epoch is made
        busy, made = work.so_far()
        if self._is_first:  # of an epoch: threads began before its first lap
            self._busy, self._made, self._is_first = busy, made, False
            return
        share = 1 / lap.count
        batches = (made - self._made) / self.size
        measure = Measure(
            lap.step, lap.wait, (busy - self._busy) * share, batches * share, self._stale > 0
        )
        self._stale -= lap.count
        self._busy, self._made = busy, made
        self._heard(work, measure)

    def _heard(self, work: Work, measure: Measure) -> None:
        if self.tuner is None:
            self.tuner = self._begin(work)
            work.decisions = self.tuner.decisions
        now = self.tuner.now
        config = self.tuner.add(measure)
        work.is_tried = not self.tuner.is_settled
        if config != now:
            self._stale = len(work.open)
            self._go_on(work, config)
        self._remember()

    def _remember(self) -> None:
        assert self.tuner is not None
        if self.tuner.result != self._kept and self.tuner.result is not None:
            self._kept = self.tuner.result
            Known(settings.cache).put(self._sizes, *self._kept)

    def _go_on(self, work: Work, config: Config) -> None:
        recipe = work.recipe
        if recipe.movable and config.place != self._place and (move := self._move()) is not None:
            self._place = config.place
            move(config.place)  # which attends to what goes on, and comes back here for that
            self._stale = NEW
            return
        ahead = recipe.ahead
        if "ahead" not in recipe.given and work.batch_bytes:
            ahead = config.ahead * work.batch_bytes  # as another run with more room may have found
            ahead = min(ahead, recipe.most_ahead or ahead)
        work.run_with(config.threads, config.chunk, ahead)

    def _begin(self, work: Work) -> Tuner:
        """Space of choices for this pipe here, and what was chosen before."""
        recipe, size = work.recipe, work.batch_bytes
        ahead = min(max(recipe.ahead // size, MIN_AHEAD), MAX_AHEAD)
        start = Config(work.active, ahead, work.chunk)
        read = work.costs[0].of[0] if work.costs else None
        sample = read.bytes / read.timed if read is not None and read.timed else 1
        self._sizes = f"{self.identity} {size} {int(sample).bit_length()} {sorted(recipe.given)}"
        known = Known(settings.cache).get(self._sizes)
        most = math.ceil(TIMES * own_cores() * work.patience())
        most = max(most, work.active, known[0].threads if known is not None else 0)
        most = min(most, MOST_THREADS)
        memory = min(own_memory(), recipe.most_ahead or own_memory())
        room = min(max(memory // size, ahead), MAX_AHEAD)
        space = Space(
            [start.threads] if "threads" in recipe.given else range(1, most + 1),
            [start.chunk]
            if "chunk" in recipe.given
            else sorted({c for c in CHUNKS if c <= self.size} | {start.chunk}),
            [ahead]
            if "ahead" in recipe.given
            else sorted({ahead, *(n for n in (2 * ahead, 4 * ahead) if n <= room)}),
        )
        movable, spared, added = recipe.movable, 0.0, 0.0
        if movable:
            rows = [[costs.of[k] for k in range(len(costs.of))] for costs in work.costs]
            wall = [sum(c.wall for c in row) for row in zip(*rows, strict=True)]
            timed = max(sum(row[-1].timed for row in rows), 1)
            spared = sum(wall[-movable:]) / max(sum(wall), 1e-9)
            cpu = sum(c.cpu for row in rows for c in row[-movable:])
            added = cpu / timed * self.size / own_cores()
            space = replace(space, places=(0, 1), spared=spared, added=added)
        if known is not None and known[0] not in [*space]:
            known = None
        self._kept = known
        return Tuner(space, start, known)
