"""What the stages of a pipe cost. Of every chunk of samples one is timed, stage by stage, which costs less
than a microsecond per sample; each thread has figures of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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

    def begin(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def end(self, stage: int, values: Sequence[Any], samples: int = 1) -> None:
        """A stage is done with the sample that is timed, or with several at once."""
        wall, cpu = time.perf_counter(), time.thread_time()
        cost = self.of[stage]
        cost.timed += samples
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
