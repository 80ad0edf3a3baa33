"""What a pipe costs: its stages, and the loop that takes its batches. Of every chunk of samples one is
timed, stage by stage, which costs less than a microsecond per sample; each thread has figures of its own.

Nothing here grows with the number of samples: times are kept as averages that forget, and as quantiles
by the P2 method (Jain and Chlamtac, 1985), five numbers each."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

FORGETS = 1 / 16  # part of an average that a new time decides
MIN_LAP_SECONDS = 2e-3  # shorter iterations are taken together: looking at them costs less than 1 %


@dataclass
class Cost:
    """Of one stage: the samples that were timed, and what they took."""

    timed: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    bytes: int = 0  # that came out

    def add(self, other: Cost) -> None:
        self.timed += other.timed
        self.wall += other.wall
        self.cpu += other.cpu
        self.bytes += other.bytes


class Costs:
    """Of all stages, in one thread."""

    def __init__(self, stages: int) -> None:
        self.of = [Cost() for _ in range(stages)]
        self._wall = self._cpu = 0.0
        self._samples = 1

    def begin(self, samples: int = 1) -> None:
        """A sample is timed from now on, or several at once."""
        self._samples = samples
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def end(self, stage: int, values: Sequence[Any]) -> None:
        """A stage is done with what is timed."""
        wall, cpu = time.perf_counter(), time.thread_time()
        cost = self.of[stage]
        cost.timed += self._samples
        cost.wall += wall - self._wall
        cost.cpu += cpu - self._cpu
        cost.bytes += sum(_bytes(v) for v in values)
        self._wall, self._cpu = wall, cpu


def _bytes(value: Any) -> int:
    size: int = getattr(value, "nbytes", 0)
    return size or (len(value) if isinstance(value, (bytes, str)) else 8)


def report(names: Sequence[str], threads: Sequence[Costs]) -> list[dict[str, Any]]:
    """A row for each stage: microseconds per sample on the wall and of CPU time, and bytes."""
    rows = []
    for k, name in enumerate(names):
        total = Cost()
        for costs in threads:
            total.add(costs.of[k])
        timed = max(total.timed, 1)
        rows.append(
            {
                "stage": name,
                "timed": total.timed,
                "wall_us": total.wall / timed * 1e6,
                "cpu_us": total.cpu / timed * 1e6,
                "bytes": total.bytes / timed,
            }
        )
    return rows


# -- who takes batches -------------------------------------------------------------------------
class Quantile:
    """A quantile of numbers that come one by one."""

    def __init__(self, part: float) -> None:
        self.part = part
        self._heights: list[float] = []  # of five markers: least, between, quantile, between, most
        self._places = [0, 1, 2, 3, 4]
        self._count = 0

    def add(self, x: float) -> None:
        heights, places = self._heights, self._places
        self._count += 1
        if len(heights) < 5:
            bisect.insort(heights, x)
            return
        heights[0], heights[4] = min(heights[0], x), max(heights[4], x)
        cell = min(max(bisect.bisect_right(heights, x), 1), 4)
        for k in range(cell, 5):
            places[k] += 1
        for k, part in ((1, self.part / 2), (2, self.part), (3, (1 + self.part) / 2)):
            off = part * (self._count - 1) - places[k]
            if (off >= 1 and places[k + 1] - places[k] > 1) or (
                off <= -1 and places[k - 1] - places[k] < -1
            ):
                step = 1 if off > 0 else -1
                heights[k] = self._moved(k, step)
                places[k] += step

    def _moved(self, k: int, step: int) -> float:
        """A marker's height one place further: on a parabola, or a line if that leaves the order."""
        (a, b, c), (i, j, n) = self._heights[k - 1 : k + 2], self._places[k - 1 : k + 2]
        slopes = (j - i + step) * (c - b) / (n - j) + (n - j - step) * (b - a) / (j - i)
        found = b + step / (n - i) * slopes
        if a < found < c:
            return found
        other = k + step
        return b + step * (self._heights[other] - b) / (self._places[other] - j)

    @property
    def value(self) -> float:
        if self._count > 5:
            return self._heights[2]
        if not self._count:
            return 0.0
        return self._heights[min(int(self.part * self._count), self._count - 1)]


class Series:
    """Times of one thing, again and again."""

    def __init__(self) -> None:
        self.total = self.mean = 0.0
        self._count = 0
        self.median, self.p90 = Quantile(0.5), Quantile(0.9)

    def add(self, seconds: float, count: int = 1) -> None:
        """A time, or the mean of several that were taken together."""
        self.total += seconds * count
        self._count += 1
        self.mean += (seconds - self.mean) * max(FORGETS, 1 / self._count)
        self.median.add(seconds)
        self.p90.add(seconds)

    def as_data(self) -> dict[str, float]:
        """Seconds: all together, lately, and quantiles."""
        return {
            "total": self.total,
            "mean": self.mean,
            "median": self.median.value,
            "p90": self.p90.value,
        }


@dataclass(frozen=True)
class Lap:
    """Iterations of the loop that takes batches."""

    count: int
    step: float  # seconds of each that are the loop's own,
    wait: float  # and that it waited


class Consumer:
    """The loop that takes batches: how long it waits for them, and what it takes itself. The first
    batch is not counted, since nothing was made ahead of it."""

    def __init__(self) -> None:
        self.batches = 0
        self.first = 0.0  # seconds until there was a batch
        self.step, self.wait = Series(), Series()
        self.watch: Callable[[Lap], None] = lambda lap: None
        self._end = 0.0
        self._count, self._step, self._wait = 0, 0.0, 0.0

    def took(self, begin: float, end: float) -> None:
        """It asked for a batch and got it, at these times."""
        self.batches += 1
        before, self._end = self._end, end
        if self.batches == 1:
            self.first = end - begin
            return
        self._count += 1
        self._step += begin - before
        self._wait += end - begin
        if self._step + self._wait >= MIN_LAP_SECONDS:
            lap = Lap(self._count, self._step / self._count, self._wait / self._count)
            self._count, self._step, self._wait = 0, 0.0, 0.0
            self.step.add(lap.step, lap.count)
            self.wait.add(lap.wait, lap.count)
            self.watch(lap)
