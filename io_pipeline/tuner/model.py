"""What an iteration would take with other threads, chunks and batches ahead.

    feed(threads, chunk) = (w/t + a (t - 1)/t + b (t - 1)) * (1 + o/c + g c)      seconds of a batch

The first factor is the universal scalability law: work that is shared, work that is not (Python's lock, a
disk), and what threads cost each other, so that more of them may be slower. The second one is what a
chunk costs to take, and what large ones cost. All coefficients are 0 or more, and fitted to what was
seen. An iteration takes the loop's own step, which threads may slow down, and a wait: that of a queue of
n places between a feed and a step that vary."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PRIOR = 0.1  # how much less a first look counts that contradicts plain sharing
ROUNDS = 6  # of fitting one factor, and then the other
TOLERANCE = 0.01  # of the best time within which the cheapest is taken

Row = np.ndarray[Any, Any]


@dataclass(frozen=True, order=True)
class Config:
    """How a feed runs."""

    threads: int
    ahead: int  # batches
    chunk: int  # samples
    place: int = 0  # 1: the last stages are made by who takes batches


@dataclass(frozen=True)
class Space:
    """What may be chosen; where the user has said something there is one choice."""

    threads: Sequence[int]
    chunks: Sequence[int]
    ahead: Sequence[int]
    places: Sequence[int] = (0,)
    spared: float = 0.0  # the part of the feed's time that stages need which can be elsewhere
    added: float = 0.0  # seconds that the step is expected to need for them

    def __iter__(self) -> Iterator[Config]:
        for t, n, c, p in itertools.product(self.threads, self.ahead, self.chunks, self.places):
            yield Config(t, n, c, p)


@dataclass
class Seen:
    """What was measured with one configuration."""

    laps: float = 0.0
    step: float = 0.0  # seconds, all together
    wait: float = 0.0
    busy: float = 0.0  # seconds of threads
    made: float = 0.0  # batches

    def add(self, step: float, wait: float, busy: float, made: float) -> None:
        self.laps += 1
        self.step += step
        self.wait += wait
        self.busy += busy
        self.made += made


@dataclass
class Model:
    """Fitted to what was seen."""

    spared: float = 0.0  # as in Space
    added: float = 0.0
    seen: dict[Config, Seen] = field(default_factory=dict)

    def add(self, config: Config, step: float, wait: float, busy: float, made: float) -> None:
        self.seen.setdefault(config, Seen()).add(step, wait, busy, made)

    def fit(self) -> None:
        """Coefficients for all that was seen so far."""
        feeds: dict[tuple[int, int], list[float]] = {}
        for config, seen in self.seen.items():
            if seen.made > 0:
                both = feeds.setdefault((config.threads, config.chunk), [0.0, 0.0])
                both[0] += seen.busy / self._left(config)
                both[1] += seen.made
        self.feeds = {at: busy / made / at[0] for at, (busy, made) in feeds.items() if busy > 0}
        self.shared, self.chunked = np.zeros(3), np.array([1.0, 0.0, 0.0])
        if self.feeds:
            y = np.array([*self.feeds.values()])
            sharing = np.array([_sharing(t) for t, _ in self.feeds])
            chunking = np.array([_chunking(c) for _, c in self.feeds])
            weights = np.sqrt([min(feeds[at][1], 8.0) for at in self.feeds])
            for _ in range(ROUNDS):
                self.shared = _fit(sharing, y / (chunking @ self.chunked), weights)
                found = _fit(chunking, y / np.maximum(sharing @ self.shared, 1e-12), weights)
                self.chunked = found if found.any() else self.chunked
        steps = [
            (c.threads, s.step / s.laps - self.added * c.place, s.laps)
            for c, s in self.seen.items()
        ]
        t, x, laps = (np.array(column) for column in zip(*steps, strict=True))
        self.steps = np.array([np.average(x, weights=laps), 0.0])
        if len({*t.tolist()}) > 1 and self.steps[0] > 0:
            self.steps = _fit(np.stack([np.ones(len(t)), t], 1), x, np.sqrt(laps))
        self.roughness = self._roughness()

    def _roughness(self) -> float:
        """How much of the wait there is that exponential times would give."""
        waits, asked = 0.0, 0.0
        for config, seen in self.seen.items():
            x, y = seen.step / seen.laps, self.feed(config)
            asked += seen.laps * (queue(x, y, config.ahead) - max(y - x, 0.0))
            waits += seen.laps * max(seen.wait / seen.laps - max(y - x, 0.0), 0.0)
        return min(waits / asked, 1.0) if asked > 0 else 0.0

    def feed(self, config: Config) -> float:
        """Seconds of a batch for threads that never wait for room."""
        t, c = config.threads, config.chunk
        known = float(_sharing(t) @ self.shared * (_chunking(c) @ self.chunked))
        if (t, c) in self.feeds and known > 0:
            known = math.sqrt(known * self.feeds[t, c])
        return known * self._left(config)

    def _left(self, config: Config) -> float:
        """The part of the work that is the feed's."""
        return 1 - self.spared * config.place

    def time(self, config: Config) -> float:
        """Seconds of an iteration."""
        x, y = float(self.steps @ (1, config.threads)), self.feed(config)
        x += self.added * config.place
        least = max(y - x, 0.0)
        return x + least + self.roughness * (queue(x, y, config.ahead) - least)

    def best(self, space: Space, now: Config, without: Sequence[Config] = ()) -> Config:
        """The cheapest that takes about as little as any."""
        times = {c: self.time(c) for c in (*space, now) if c not in without or c == now}
        most = min(times.values()) * (1 + TOLERANCE)
        return min((c for c, time in times.items() if time <= most), key=lambda c: cost(c, now))


def cost(config: Config, now: Config) -> tuple[float, ...]:
    """Order settings: those that are less of a burden first; of places and chunks, what is there."""
    return (
        config.place != now.place,
        config.threads,
        config.ahead,
        abs(math.log2(config.chunk / now.chunk)),
        config.chunk,
    )


def queue(x: float, y: float, places: int) -> float:
    """The wait of a consumer that takes x for something that is made in y, over a queue of so many places,
    if both vary as exponential times do (M/M/1/K)."""
    if y <= 0:
        return 0.0
    if x <= 0:
        return y
    ratio = x / y
    if abs(ratio - 1) < 1e-6:
        return y / (places + 1)
    if ratio > 1e3:
        return 0.0
    return y * (1 - ratio) / (1 - ratio ** (places + 1))


def _sharing(t: int) -> Row:
    return np.array([1 / t, (t - 1) / t, t - 1.0])


def _chunking(c: int) -> Row:
    return np.array([1.0, 1 / c, c / 64])


def _fit(rows: Row, y: Row, weights: Row) -> Row:
    """Coefficients of 0 or more with the least relative error. What is little known about goes to the
    first one."""
    relative = rows / y[:, None]
    scales = 1 / np.maximum(relative.max(0), 1e-12)
    a = np.concatenate([relative * weights[:, None], np.diag(PRIOR / scales)[1:]])
    b = np.concatenate([weights, np.zeros(len(scales) - 1)])
    best, least = np.zeros(len(scales)), math.inf
    for count in range(1, len(scales) + 1):
        for chosen in itertools.combinations(range(len(scales)), count):
            found = np.linalg.lstsq(a[:, chosen], b, rcond=None)[0]
            error = float(((a[:, chosen] @ found - b) ** 2).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(len(scales)), error
                best[list(chosen)] = found
    return best
