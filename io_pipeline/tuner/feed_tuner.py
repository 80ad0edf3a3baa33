"""Who decides how a feed runs: measure, solve, verify, remember.

    skip 2 laps -> a window as it is (A) -> up to 6 probes of a lap, each where the model says most
        -> the model's best: two windows of it (B, B) -> a window as it was (A) -> kept, or rolled back
        -> on guard: back if the next 16 laps take longer; anew when step or wait drift

A lap is an iteration of the loop that takes batches, its own step and its wait; short ones are taken
together. What counts is its median, not how much the feed could make. It is all in the thread of who takes
batches, costs nothing between laps, and has no clock: so it is tested without one."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .model import Config, Model, Space

SKIP = 2  # laps that are no measure: first calls, empty queues
WINDOW = 8  # laps
PROBES, PATIENCE = 6, 3  # configurations that are looked at, and laps of one that makes nothing
REACH = 4  # times beyond what was seen that the model is believed
GAIN = 0.02  # of its time that another configuration must save, and that may never be lost
SLIGHT = 0.01  # that a cheaper one may cost, all together
WINS = 7  # of 8 pairs: by chance 1 in 28;
SURE = 3  # or so many standard errors
BURST = 4  # laps whose mean is one number: batches may be done several at a time
TURNS = 3  # configurations that are verified one after another
GUARD = 16  # laps after a change
CALM = 32  # laps from which drift is measured
SPARE = 0.9  # of the step that a cheaper feed may need, where the step binds
SLACK, ALARM = 0.5, 12.0  # of the CUSUM, in deviations,
MIN_SPREAD = 0.05  # which are at least so much of a lap
STALE = 16  # laps that are let by after a change, for batches that were begun before it
QUIET, LONGEST = 64, 8192  # laps after which it is tuned anew; twice as many each time that nothing
# better is found, since it is others who make it faster and slower
AGAIN = 256  # laps for which what was refused is not tried; each time twice as many
KEPT = 10  # decisions that are told
MOVED = 1.3  # times: the same configuration in two windows, if something else has changed
RESTARTS = 3, 1  # for that, until it stays as it is; and once something was decided
CLOSE = 1.1  # times what is remembered that a lap may take


@dataclass(frozen=True)
class Measure:
    """A lap: seconds of an iteration, and what the threads did meanwhile."""

    step: float
    wait: float
    busy: float  # seconds of all threads
    made: float  # batches
    is_stale: bool = False  # its batch was begun before the last change

    @property
    def time(self) -> float:
        return self.step + self.wait


Laps = list[Measure]
Watching = Generator[None, Measure, Any]


class Tuner:
    """Is given laps, and says how to go on."""

    def __init__(
        self, space: Space, start: Config, known: tuple[Config, float] | None = None
    ) -> None:
        self.space, self.now = space, start
        self.model = Model(self.space.spared, self.space.added)
        self.laps = 0
        self.is_settled = False
        self.result: tuple[Config, float] | None = None  # to be remembered, with a lap's time
        self.decisions: deque[str] = deque(maxlen=KEPT)
        self._refused: dict[Config, tuple[int, int]] = {}  # until which lap, and for how many
        self._lost = 1.0  # times as long as at the beginning, by what was verified
        self._quiet = QUIET // 2
        self._has_moved = False  # what is measured, for other reasons
        self._is_decided = known is not None
        self._run = self._tune(known)
        next(self._run)

    def add(self, lap: Measure) -> Config:
        """How to go on after a lap."""
        self.laps += 1
        if lap.time > 0:
            self._run.send(lap)
        return self.now

    def _tell(self, said: str) -> None:
        self.decisions.append(f"lap {self.laps}: {said}")

    # -- measuring -------------------------------------------------------------------------------
    def _take(self, config: Config, count: int) -> Generator[None, Measure, Laps]:
        self.now = config
        laps: Laps = []
        stale = 0
        while len(laps) < count:
            lap = yield
            if lap.is_stale and stale < STALE:
                stale += 1
                continue
            self.model.add(config, lap.step, lap.wait, lap.busy, lap.made)
            laps.append(lap)
        return laps

    def _probe(self, config: Config) -> Watching:
        """As many laps as it takes to make a batch."""
        made = 0.0
        for _ in range(PATIENCE):
            (lap,) = yield from self._take(config, 1)
            made += lap.made
            if made >= 0.9:
                return

    # -- the course of it ------------------------------------------------------------------------
    def _tune(self, known: tuple[Config, float] | None) -> Watching:
        for _ in range(SKIP):
            yield
        if known is not None:
            self.now, wanted = known
            yield
            found = median((yield from self._take(self.now, WINDOW)))
            said = f"{told(self.now)}, as remembered: {ms(found)} a lap, {ms(wanted)} then"
            if found <= CLOSE * wanted:
                self._tell(said)
                yield from self._guard(found)
            else:  # which may be the machine's, so it is kept unless another one is better
                self._tell(f"{said}; is there a better one by now?")
        while True:
            before = self.now
            reference = yield from self._search()
            is_kept = self.now == before
            self._quiet = min(2 * self._quiet, LONGEST) if is_kept else QUIET
            yield from self._guard(reference)
            self.model = Model(self.space.spared, self.space.added)

    def _search(self) -> Generator[None, Measure, float]:
        """Find and verify better configurations; the time of a lap in the end."""
        self.is_settled = False
        for _ in range(1 + RESTARTS[self._is_decided]):
            laps = yield from self._compare()
            if not self._has_moved:
                break
            self.model, self._has_moved = Model(self.space.spared, self.space.added), False
        self.is_settled = self._is_decided = True
        time = median(laps)
        self._tell(f"{told(self.now)} it stays, at {ms(time)} a lap")
        self.result = self.now, time
        return time

    def _compare(self) -> Generator[None, Measure, Laps]:
        """Verify what the model says, a few times; the last laps of what is kept."""
        laps = yield from self._take(self.now, WINDOW)
        yield from self._look_around()
        for turn in range(TURNS + len(self.space.places) - 1):
            before = self.now
            self.model.fit()
            other = self._better(before, turn > 0)
            if other == before:
                break
            laps, is_kept = yield from self._verify(before, laps, other)
            if self._has_moved:
                break
            if is_kept and not (yield from self._stays(before, other, laps)):
                break
        return laps

    def _better(self, before: Config, is_later: bool) -> Config:
        """Find what is better by the model; stages only move when nothing else is to be gained."""
        for is_move in (False, True):
            places = [p for p in self.space.places if (p != before.place) == is_move]
            if places:
                space = replace(self.space, places=places)
                other = self.model.best(space, before, self._barred())
                gain = 1 - self.model.time(other) / self.model.time(before)
                if other != before and (gain >= GAIN or not (is_later or is_move)):
                    return other
        return before

    def _look_around(self) -> Watching:
        """Probe where the model is open, each time anew: threads, then chunks."""
        start = self.now
        for _ in range(PROBES):
            config = self._open(start)
            if config is None:
                break
            yield from self._probe(config)
        self.now = start

    def _open(self, start: Config) -> Config | None:
        """Choose what the model knows least about of what it has to decide."""
        threads = sorted({c.threads for c in self.model.seen})
        chunks = sorted({c.chunk for c in self.model.seen})
        self.model.fit()
        seen = self.model.seen.keys()

        def other(t: int, c: int) -> Config | None:
            found = Config(t, start.ahead, c, start.place)
            known = any((s.threads, s.chunk) == (t, c) for s in seen)
            return None if known or found in self._barred() else found

        near = [t for t in self.space.threads if threads[0] / REACH <= t <= threads[-1] * REACH]
        reach = [c for c in self.space.chunks if chunks[0] / REACH <= c <= chunks[-1] * REACH]
        one = [start.ahead], [start.place]
        close = Space(near or [start.threads], reach or [start.chunk], *one)
        best = self.model.best(close, start, self._barred())
        if len(threads) < 3 and len(self.space.threads) >= 3:
            low, high = threads[0], threads[-1]
            if len(threads) == 1:
                half = nearest(self.space.threads, low / 2)
                aim = half if half != low else nearest(self.space.threads, 2 * high)
            elif best.threads < low:
                aim = best.threads
            else:  # well beyond, since two points say little of where it turns
                aim = nearest(self.space.threads, max(best.threads, 2 * high))
            if aim not in threads:
                return other(aim, start.chunk)
        if len(chunks) < 3 and len(self.space.chunks) >= 3:
            grows = len(chunks) == 1 or best.chunk >= chunks[-1]
            ends = chunks[-1] * REACH, chunks[0] / REACH
            nearby = nearest(self.space.chunks, ends[0] if grows else ends[1])
            if nearby in chunks:
                nearby = nearest(
                    self.space.chunks, chunks[0] / REACH if grows else chunks[-1] * REACH
                )
            if nearby not in chunks:
                return other(best.threads, nearby) or other(start.threads, nearby)
        return other(best.threads, best.chunk)

    def _barred(self) -> list[Config]:
        return [c for c, (until, _) in self._refused.items() if until > self.laps]

    # -- verifying -------------------------------------------------------------------------------
    def _verify(
        self, before: Config, first: Laps, other: Config
    ) -> Generator[None, Measure, tuple[Laps, bool]]:
        """Windows of both in the order A, B, B, A; the last laps of what is kept."""
        theirs = yield from self._take(other, 2 * WINDOW)
        last = yield from self._take(before, WINDOW)
        ours = [*first[-WINDOW:], *last]
        change = median(last) / median(first[-WINDOW:])
        if not 1 / MOVED < change < MOVED:
            self._tell(f"a lap takes {change:.2g} times as long as before: not compared")
            self._has_moved = True
            return last, False
        ratio = median(theirs) / median(first[-WINDOW:], last)
        wins, pairs = sum(b < a for a, b in zip(twos(ours), twos(theirs), strict=True)), WINDOW
        halves = [
            median(theirs[:WINDOW]) / median(first[-WINDOW:]),
            median(theirs[WINDOW:]) / median(last),
        ]
        unsure = doubt(ours, theirs)
        # of batches that are done several at a time few laps are long, and pairs say little
        is_sure = wins >= WINS or ratio * (1 + SURE * unsure) <= 1 - GAIN
        is_better = ratio <= 1 - GAIN and is_sure and max(halves) < 1
        is_cheaper = other.threads < before.threads or (
            other.threads == before.threads and other.ahead < before.ahead
        )
        made, busy = sum(b.made for b in theirs), sum(b.busy for b in theirs)
        step = statistics.median(b.step for b in theirs)
        needs = busy / made / other.threads if made else 0.0
        fits = needs <= SPARE * step or median(theirs) > step / SPARE
        is_free = is_cheaper and fits and wins >= pairs // 2 - 1
        is_free &= ratio * self._lost <= 1 + SLIGHT
        is_free &= ratio * self._lost + unsure <= 1 + GAIN  # or noise hides more
        kept = is_better or is_free
        self._tell(
            f"{told(before)} -> {told(other)}: {ms(median(theirs) / ratio)} -> {ms(median(theirs))} "
            f"a lap, faster in {wins} of {pairs} pairs: {'kept' if kept else 'rolled back'}"
        )
        if kept:
            self._lost = max(self._lost * ratio, 1.0) if is_free and not is_better else self._lost
            self.now = other
            return theirs, True
        self._refuse(other)
        return last, False

    def _refuse(self, config: Config) -> None:
        _, span = self._refused.get(config, (0, AGAIN // 2))
        self._refused[config] = self.laps + 2 * span, 2 * span

    def _stays(self, before: Config, other: Config, laps: Laps) -> Generator[None, Measure, bool]:
        """Whether what was kept is as good when what was made before is used up."""
        wanted = median(laps)
        later = yield from self._take(other, GUARD)
        laps[:] = later
        if median(later) <= (1 + GAIN) * wanted:
            return True
        again = yield from self._take(before, WINDOW)
        if median(later) <= median(again):
            self.now = other
            return True
        laps[:] = again
        self._refuse(other)
        self._tell(
            f"{told(other)} took {ms(median(later))} a lap afterwards, {told(before)} "
            f"{ms(median(again))}: rolled back"
        )
        return False

    # -- on guard --------------------------------------------------------------------------------
    def _guard(self, reference: float) -> Watching:
        """Until step or wait have drifted, by CUSUM."""
        self.is_settled = True
        laps = yield from self._take(self.now, CALM)
        has_moved = not 1 / MOVED < median(laps) / reference < MOVED
        middles, spreads = [], []
        for part in ([a.step for a in laps], [a.wait for a in laps]):
            most = 4 * statistics.median(part) + MIN_SPREAD * reference
            cut = [min(x, most) for x in part]
            middles.append(statistics.fmean(cut))
            spreads.append(max(statistics.pstdev(cut), MIN_SPREAD * reference))
        sums = [0.0] * 4
        calm = 0
        while calm < self._quiet or not (has_moved or max(sums) > ALARM):
            lap = yield
            calm += 1
            for k, x in enumerate((lap.step, lap.wait)):
                off = min(max((x - middles[k]) / spreads[k], -3.0), 3.0)  # one long lap is none
                sums[2 * k] = max(sums[2 * k] + off - SLACK, 0.0)
                sums[2 * k + 1] = max(sums[2 * k + 1] - off - SLACK, 0.0)
        if calm > LONGEST:
            self._quiet = QUIET // 2
        if has_moved:
            self._tell(f"{ms(median(laps))} a lap, {ms(reference)} before: tuned anew")
        else:
            what = ("step", "wait")[sums.index(max(sums)) // 2]
            self._tell(f"the loop's {what} has drifted")


def median(*windows: Sequence[Measure]) -> float:
    """Median of laps' times, or of the means of a few that follow each other."""
    return statistics.median(
        statistics.fmean(lap.time for lap in laps[k : k + BURST])
        for laps in windows
        for k in range(len(laps) - BURST + 1)
    )


def doubt(a: Sequence[Measure], b: Sequence[Measure]) -> float:
    """How far the ratio of two means may be from what it would be of many laps: its standard error."""
    times = ([lap.time for lap in laps] for laps in (a, b))
    return math.hypot(
        *(statistics.stdev(t) / statistics.fmean(t) / math.sqrt(len(t)) for t in times)
    )


def twos(laps: Sequence[Measure]) -> list[float]:
    return [a.time + b.time for a, b in zip(laps[::2], laps[1::2], strict=True)]


def nearest(known: Sequence[int], wanted: float) -> int:
    return min(known, key=lambda k: abs(math.log2(k / wanted)))


def told(config: Config) -> str:
    where = ", the last stages on the device" if config.place else ""
    return f"{config.threads} threads, chunk {config.chunk}, {config.ahead} ahead{where}"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
