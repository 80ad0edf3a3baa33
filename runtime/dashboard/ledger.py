"""What the workers of a cluster told of their runs, added up: totals since the beginning, and the last
seconds.

Communication and waiting: of the seconds that workers spend in the communication of a plan, those of
the worker that spends least are communication, since even who comes last spends them. What others
spend beyond is waiting for it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

RECENT = 5.0  # seconds of "now"
SMOOTH = 2.0  # seconds of each point
HISTORY = 240  # points of the past
PIPES = 8  # that are shown, the last ones
MAX_PLANS = 256  # plans whose operations and pictures are kept, the last ones


@dataclass(slots=True)
class Tally:
    """Runs of a plan on a worker; seconds are those of the runs that were clocked."""

    runs: float = 0
    clocked: float = 0
    seconds: float = 0.0
    talking: float = 0.0
    first: float = 0.0  # of the first run, which is no measure of others

    def add(self, other: Tally) -> None:
        self.runs += other.runs
        self.clocked += other.clocked
        self.seconds += other.seconds
        self.talking += other.talking
        self.first += other.first

    @property
    def later(self) -> float:
        """Runs behind the first."""
        return self.runs - (self.first > 0)

    @property
    def each(self) -> float:
        """Seconds of a run."""
        return self.seconds / self.clocked if self.clocked else self.first

    @property
    def talk(self) -> float:
        """Seconds of these in communication."""
        return self.talking / self.clocked if self.clocked else 0.0


@dataclass(slots=True)
class Shares:
    """Where the seconds of a worker went."""

    compute: float = 0.0
    communication: float = 0.0
    waiting: float = 0.0
    idle: float = 0.0

    @property
    def total(self) -> float:
        return self.compute + self.communication + self.waiting + self.idle


@dataclass(slots=True)
class Batch:
    """What a worker told at one time."""

    at: float
    span: float
    plans: dict[str, Tally]
    sent: dict[str, int]


@dataclass
class WorkerRow:
    name: str
    rank: int
    plans: dict[str, Tally] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)  # bytes along each axis of the mesh
    computing: float = 0.0  # seconds of all runs, estimated from those that were clocked
    talking: float = 0.0
    span: float = 0.0
    memory: dict[str, Any] = field(default_factory=dict)
    feeds: dict[str, dict[str, Any]] = field(default_factory=dict)  # of pipes, what was told last
    recent: deque[Batch] = field(default_factory=deque)


@dataclass
class Ledger:
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)  # as they were described
    # seconds of operations, on each worker, and those of them in communication
    steps: dict[str, dict[str, dict[int, tuple[float, float]]]] = field(default_factory=dict)
    workers: dict[str, WorkerRow] = field(default_factory=dict)  # by address
    history: deque[tuple[float, dict[str, float]]] = field(
        default_factory=lambda: deque(maxlen=HISTORY)
    )  # runs per second of each plan
    began: float = field(default_factory=time.time)

    # -- writing ---------------------------------------------------------------------------
    def hear(self, address: str, said: dict[str, Any], now: float | None = None) -> Batch:
        """A worker's counts since it spoke last."""
        now = time.time() if now is None else now
        worker = self.workers.setdefault(address, WorkerRow("", 0))
        worker.rank, worker.memory = said["rank"], said["memory"]
        worker.name = f"worker {worker.rank}"
        worker.feeds.update((name, stats) for name, stats in said["feeds"] if stats)
        for old in list(worker.feeds)[:-PIPES]:
            del worker.feeds[old]
        batch = Batch(
            now, said["span"], {p: Tally(*ran) for p, ran in said["plans"].items()}, said["sent"]
        )
        for described in said["described"]:
            self.plans[described["id"]] = described
        for plan, took in said["steps"].items():
            self.steps.setdefault(plan, {})[address] = {
                int(k): (each, talk) for k, (each, talk) in took.items()
            }
        for kept in (self.plans, self.steps):
            for old in list(kept)[:-MAX_PLANS]:
                del kept[old]
        for plan, tally in batch.plans.items():
            total = worker.plans.setdefault(plan, Tally())
            total.add(tally)
            seen = tally if tally.clocked else total
            worker.computing += tally.first + tally.later * max(0.0, seen.each - seen.talk)
            worker.talking += tally.later * seen.talk
        for axis, count in batch.sent.items():
            worker.sent[axis] = worker.sent.get(axis, 0) + count
        worker.span += batch.span
        worker.recent.append(batch)
        while worker.recent and worker.recent[0].at < now - RECENT:
            worker.recent.popleft()
        if worker.rank == 0 and batch.span > 0:
            plans, _, span = self.lately(worker, SMOOTH)
            self.history.append((now, {plan: tally.runs / span for plan, tally in plans.items()}))
        return batch

    def leave(self, address: str) -> None:
        self.workers.pop(address, None)

    # -- reading ---------------------------------------------------------------------------
    @property
    def places(self) -> list[tuple[str, WorkerRow]]:
        """Workers and their addresses, in the order of ranks."""
        return sorted(self.workers.items(), key=lambda item: item[1].rank)

    @property
    def crew(self) -> list[WorkerRow]:
        return [worker for _, worker in self.places]

    @property
    def ran(self) -> list[str]:
        """Plans, those that were loaded first in front."""
        known = dict.fromkeys(self.plans)
        return list(known | dict.fromkeys(p for w in self.crew for p in w.plans))

    def called(self, plan: str) -> str:
        return str(self.plans[plan]["name"]) if plan in self.plans else plan[:8]

    def total(self, plan: str) -> Tally:
        """Seconds of the worker that took longest."""
        found = [w.plans[plan] for w in self.crew if plan in w.plans]
        return max(found, key=lambda t: (t.runs, t.seconds), default=Tally())

    def lately(
        self, worker: WorkerRow, over: float = RECENT
    ) -> tuple[dict[str, Tally], dict[str, int], float]:
        """Runs, bytes and seconds of the last moments."""
        plans: dict[str, Tally] = {}
        sent: dict[str, int] = {}
        span = 0.0
        last = worker.recent[-1].at if worker.recent else 0.0
        for batch in worker.recent:
            if batch.at < last - over:
                continue
            span += batch.span
            for plan, tally in batch.plans.items():
                plans.setdefault(plan, Tally()).add(tally)
            for axis, count in batch.sent.items():
                sent[axis] = sent.get(axis, 0) + count
        return plans, sent, span

    def rate(self, plan: str) -> float:
        """Runs per second, lately."""
        best = 0.0
        for worker in self.crew:
            plans, _, span = self.lately(worker)
            if plan in plans and span > 0:
                best = max(best, plans[plan].runs / span)
        return best

    def shares(self, always: bool = False) -> list[Shares]:
        """Where each worker's time went, lately or since the beginning."""
        seen = []
        least: dict[str, float] = {}  # seconds of communication in a run of each plan
        for worker in self.crew:
            plans, _, span = self.lately(worker)
            if always:
                plans, span = worker.plans, worker.span
            means = {p: t if t.clocked else worker.plans[p] for p, t in plans.items()}
            for plan, mean in means.items():
                if mean.clocked:
                    least[plan] = min(least.get(plan, mean.talk), mean.talk)
            seen.append((plans, means, span))
        return [_share(*what, least) for what in seen]

    def plan_shares(self, plan: str) -> Shares:
        """Shares of a run of a plan, on average over workers."""
        tallies = [w.plans[plan] for w in self.crew if plan in w.plans and w.plans[plan].clocked]
        if not tallies:
            return Shares()
        least, count = min(t.talk for t in tallies), len(tallies)
        compute = sum(max(0.0, t.each - t.talk) for t in tallies) / count
        return Shares(compute, least, sum(t.talk - least for t in tallies) / count)

    def measured(self, plan: str, row: dict[str, Any]) -> float:
        """Seconds of an operation in one run: on the slowest worker, or, where workers wait for each other,
        on the one that waits least."""
        found = [
            sum(took[k][0] for k in row["nodes"] if k in took)
            for took in self.steps.get(plan, {}).values()
        ]
        return (min if row["collective"] else max)(found, default=0.0)

    def imbalance(self, always: bool = False) -> float:
        """By how much the worker that computes most is above the mean."""
        computing = [s.compute for s in self.shares(always)]
        mean = sum(computing) / max(len(computing), 1)
        return max(computing) / mean - 1 if mean > 0 else 0.0

    def traffic(self) -> dict[str, tuple[int, float]]:
        """For each axis of the mesh: bytes since the beginning, and bytes per second lately."""
        found: dict[str, tuple[int, float]] = {}
        for worker in self.crew:
            _, sent, span = self.lately(worker)
            for axis, count in worker.sent.items():
                total, rate = found.get(axis, (0, 0.0))
                more = sent.get(axis, 0) / span if span > 0 else 0.0
                found[axis] = total + count, rate + more
        return dict(sorted(found.items()))

    @property
    def pipes(self) -> list[str]:
        """The pipes that fed workers."""
        return list(dict.fromkeys(name for w in self.crew for name in w.feeds))

    @property
    def mesh(self) -> list[int]:
        last = next(reversed(self.plans.values()), None)
        return list(last["mesh"]) if last is not None else [max(1, len(self.workers))]


def _share(
    plans: dict[str, Tally], means: dict[str, Tally], span: float, least: dict[str, float]
) -> Shares:
    """Runs of one worker, seconds of one, and of its communication at least."""
    share = Shares()
    for plan, tally in plans.items():
        mean, talk = means[plan], least.get(plan, 0.0)
        share.compute += tally.first
        if mean.clocked:
            share.compute += tally.later * max(0.0, mean.each - mean.talk)
            share.communication += tally.later * talk
            share.waiting += tally.later * (mean.talk - talk)
    share.idle = max(0.0, span - share.total)
    return share
