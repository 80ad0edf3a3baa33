"""Who decides about sites: what was timed on this machine before, or timing, while there is time left.

Noise is met by taking turns (runtime/timing.py), by asking for a clear gain in most of the rounds, and by
the rule that a tie changes nothing. What a busy moment shows is measured again before it is kept, for it is
kept long: what was found is kept for the machine that it was found on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from ostinato.ops.core import disk_cache
from ostinato.ops.core.device import Device
from ostinato.ops.core.graph import Graph
from ostinato.ops.cpu.libraries.onednn import describe_library
from ostinato.planner.file import code_version
from ostinato.planner.machine import processor
from ostinato.planner.plan import ONE_THREAD, Choice, Program, Tuned, local_bytes, peak_bytes

from ostinato import settings

from .sites import Site

GAIN = 0.05  # of its time that another way must save
OFTEN = 0.75  # of the rounds that it must win
SHARED = 1.2  # times as fast that all threads have to be, or one leaves the others' cores to others
ROUNDS = 3  # fewer show nothing
BUSY = 1.5  # times its best that the median of a way's rounds takes while the machine does other things
TRIES = 2  # to find it calm
SITE_SECONDS = 0.5  # for one site, unless more was granted
MOST_BYTES = 1 << 32  # of operands and results that are made for timing,
BYTES_PER_SECOND = 1 << 29  # and for each second that it may take

Stopwatch = Callable[[Sequence[Program], float], Sequence[Sequence[float]]]


def decide(site: Site, rounds: Sequence[Sequence[float]]) -> Choice:
    """The way that a few rounds speak for; `rounds` have the seconds of each way, infinite where it
    was given up."""
    if len(rounds) < ROUNDS:
        return Choice(site.what, site.line)
    times = {}
    for k, way in enumerate(site.ways):
        known = [r[k] for r in rounds if math.isfinite(r[k])]
        if known:
            times[way] = statistics.median(known)
    best, least = 0, 1 - GAIN
    for k, way in enumerate(site.ways[1:], 1):
        ratio, often = _compared(rounds, k, 0, 1.0)
        if ratio < least and often and way != ONE_THREAD:
            best, least = k, ratio
    taken = site.ways[best] if best else ""
    if ONE_THREAD in site.ways[1:]:
        ratio, often = _compared(rounds, site.ways.index(ONE_THREAD), best, SHARED)
        if ratio < SHARED and often:
            taken = ONE_THREAD
    return Choice(site.what, site.line, taken, tuple(times.items()))


def _compared(
    rounds: Sequence[Sequence[float]], k: int, other: int, least: float
) -> tuple[float, bool]:
    """A way's time by another's, infinite if one was given up; whether it is below that often enough."""
    ratios = [r[k] / r[other] for r in rounds if math.isfinite(r[k] + r[other])]
    if len(ratios) < len(rounds):
        return math.inf, False
    return statistics.median(ratios), sum(x < least for x in ratios) >= OFTEN * len(ratios)


def is_calm(rounds: Sequence[Sequence[float]]) -> bool:
    """Whether the rounds of each way are alike."""
    known = [[t for t in times if math.isfinite(t)] for times in zip(*rounds, strict=True)]
    return all(statistics.median(times) <= BUSY * min(times) for times in known if times)


def machine(threads: int, device: Device) -> str:
    """Key of what times and choices depend on: processor, threads, and everybody's versions."""
    told = (
        f"{processor()}, {os.cpu_count()} cores; {threads} threads; NumPy {np.__version__}; "
        f"{describe_library()}; {code_version()}"
    )
    return "; ".join([told, *device.environment()])


class Known:
    """What was timed on one machine: in memory, and in a file with a line of JSON for each kind of
    site, which any number of processes may add to.

    A line that is damaged says nothing; of several about one kind the last one counts."""

    MOST = 10_000  # lines; when there are more, the older half goes

    def __init__(self, folder: Path | None, machine: str) -> None:
        self.machine = machine
        digest = hashlib.blake2b(machine.encode(), digest_size=8).hexdigest()
        self.disk, self.name = disk_cache.open_cache(folder), f"tuned/{digest}.jsonl"
        self.choices: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {}
        lines = self.disk.lines(self.name)
        self.count = len(lines)  # of those that were read, and added since
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                found = json.loads(line)
                times = tuple((str(k), float(t)) for k, t in found["times"].items())
                self.choices[str(found["kind"])] = str(found["way"]), times

    def get(self, site: Site) -> Choice | None:
        """Look up the choice for this kind, if it is still one of the ways."""
        found = self.choices.get(site.kind)
        if found is None or found[0] not in ("", *site.ways):
            return None
        return Choice(site.what, site.line, *found)

    def put(self, site: Site, choice: Choice) -> None:
        self.choices[site.kind] = choice.way, choice.times
        line = {"kind": site.kind, "what": site.what, "way": choice.way}
        lines = [json.dumps({**line, "times": dict(choice.times)})]
        if not self.count:
            lines.insert(0, json.dumps({"machine": self.machine}))
        self.disk.add(self.name, lines)
        self.count += 1
        if self.count > self.MOST:
            self._drop_older()

    def _drop_older(self) -> None:
        """Keep who the machine is, and the newer half of what others have added, too."""
        lines = self.disk.lines(self.name)
        newer = [*lines[:1], *lines[1:][-self.MOST // 2 :]]
        self.disk.rewrite(self.name, newer)
        self.count = len(newer)


@dataclass
class Budget:
    """Seconds that timing may take, all together, by default those that are set; `site` for one site."""

    seconds: float | None = None
    site: float = SITE_SECONDS
    spent: float = 0.0

    @property
    def left(self) -> float:
        most = settings.tune_seconds if self.seconds is None else self.seconds
        return max(0.0, most - self.spent)


@dataclass
class Tuner:
    """Decides about sites: from what is known, or by timing while there is time left."""

    stopwatch: Stopwatch
    known: Known
    budget: Budget
    times: bool = True  # else only what is known counts
    again: bool = False  # time also what is known
    # What was timed here, and whether the machine was calm, so that it was kept.
    report: list[tuple[Site, Choice, bool]] = field(default_factory=list)

    def __call__(self, found: Sequence[Site], room: int | None = None) -> Tuned:
        """`room`: bytes that operands for timing may take."""
        return Tuned(self.known.machine, tuple([self._decide(site, room) for site in found]))

    def was_calm(self, tuned: Tuned) -> bool:
        """Whether none of these choices was timed here while the machine was busy."""
        return not any(c in tuned.choices for _, c, calm in self.report if not calm)

    def _decide(self, site: Site, room: int | None) -> Choice:
        choice = None if self.again and self._is_new(site) else self.known.get(site)
        if choice is not None:
            return choice
        choice = Choice()
        if len(site.ways) > 1 and self.times:
            limit = min(self.budget.left, self.budget.site)
            most = int(min(MOST_BYTES, limit * BYTES_PER_SECOND))
            most = most if room is None else min(room, most)
            if limit > 0 and _bytes(site.graphs[0]) <= most:
                choice = self._timed(site, limit, most)
        return choice

    def _is_new(self, site: Site) -> bool:
        return all(other.kind != site.kind for other, _, calm in self.report if calm)

    def _timed(self, site: Site, limit: float, most: int) -> Choice:
        programs = site.programs()
        if max(map(peak_bytes, programs)) > most:
            return Choice()
        for _ in range(TRIES):
            start = time.perf_counter()
            rounds = self.stopwatch(programs, limit)
            self.budget.spent += time.perf_counter() - start
            choice, calm = decide(site, rounds), is_calm(rounds)
            limit = min(self.budget.left, self.budget.site)
            if calm or limit <= 0:
                break
        choice = choice if calm else replace(choice, way="")
        if choice.times:
            self.report.append((site, choice, calm))
            if calm:
                self.known.put(site, choice)
        return choice


def _bytes(graph: Graph) -> int:
    return sum(map(local_bytes, (*graph.inputs, *graph.out_specs)))
