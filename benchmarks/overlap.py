"""how much of its communication a plan hides behind its computation, on a link of any speed.

    python -m benchmarks overlap [--workload NAME,...] [--workers 2] [--share 0.5] [--latency 50e-6]

Workers are threads of this process, with one core each. What they send to each other arrives no sooner than
over a link of `latency` seconds a message and of so many bytes a second that all messages of a run take
`share` of the time of its computation, as it is planned where no link is slow; then it is planned for this one.

compute  a run whose messages arrive at once
apart    a run that waits for each message as soon as it is sent
run      a run as it is planned
least    no order of the same nodes and messages takes less
hidden   how much of what could be saved is: (apart - run) / (apart - least)"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from ostinato.ops.core.device import Device
from ostinato.ops.core.graph import Graph
from ostinato.planner import lowering, pipeline
from ostinato.planner import machine as machines
from ostinato.planner.passes.interior import split_interiors
from ostinato.planner.passes.overlap import overlap
from ostinato.runtime.messages import communicator
from ostinato.runtime.messages.communicator import Request, ThreadCommunicator

import ostinato as ost
from ostinato import settings

from . import machine, runner
from .predict import some

Made = tuple[Callable[..., Any], tuple[Any, ...]]


# -- the link ------------------------------------------------------------------------------------
@dataclass
class Link:
    latency: float = 0.0
    bandwidth: float = float("inf")

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bandwidth


LINK = Link()


class Due:
    """A request that is not done before its time."""

    def __init__(self, request: Request, when: float) -> None:
        self.request, self.when = request, when

    def wait(self) -> None:
        self.request.wait()
        left = self.when - time.perf_counter()
        if left > 0:
            time.sleep(left)


class Throttled(ThreadCommunicator):
    """A worker's end of a link that carries one message after the other."""

    free = 0.0  # when the link is

    def __init__(
        self, world: communicator.ThreadWorld, rank: int, device: Device | None = None
    ) -> None:
        super().__init__(world, rank, device)
        self.messages: list[float] = []  # bytes of each

    def due(self, request: Request, size: float) -> Request:
        self.messages.append(size)
        self.free = max(self.free, time.perf_counter()) + LINK.seconds(size)
        return Due(request, self.free)

    def start_all_reduce(self, ins: Any, outs: Any, monoid: str, group: Any) -> Request:
        size = 2 * sum(x.nbytes for x in ins) * (len(group) - 1) / len(group)
        return self.due(super().start_all_reduce(ins, outs, monoid, group), size)

    def start_reduce_scatter(
        self, x: Any, out: Any, monoid: str, group: Any, parts: Any
    ) -> Request:
        size = x.nbytes * (len(group) - 1) / len(group)
        return self.due(super().start_reduce_scatter(x, out, monoid, group, parts), size)

    def start_exchange(self, sends: Any, receives: Any) -> Request:
        size = max(sum(x.nbytes for _, x in sends), sum(x.nbytes for _, x in receives))
        return self.due(super().start_exchange(sends, receives), size)

    def start_broadcast(self, x: Any, out: Any, root: int, group: Any) -> Request:
        return self.due(super().start_broadcast(x, out, root, group), out.nbytes)


# -- programs ------------------------------------------------------------------------------------
def network(layers: int = 8, wide: int = 512, rows: int = 1024) -> Made:
    def loss(ws: Any, x: Any, y: Any) -> Any:
        for w in ws:
            x = ost.tanh(x @ w)
        return ost.nn.mse_loss(x, y)

    def step(ws: Any, x: Any, y: Any) -> Any:
        slopes = ost.grad(loss)(ws, x, y)
        return [w - 0.1 * g for w, g in zip(ws, slopes, strict=True)]

    ws = [some(wide, wide, seed=k, split=None) * 0.05 for k in range(layers)]
    return step, (ws, some(rows, wide), some(rows, wide, seed=2))


def transformer(layers: int = 2, wide: int = 256) -> Made:
    def block(w: Any, x: Any) -> Any:
        z = ost.nn.layer_norm(x)
        q, k, v = (z @ w[n] for n in "qkv")
        x = x + (ost.nn.softmax(q @ k.swapaxes(1, 2) * wide**-0.5) @ v) @ w["o"]
        return x + ost.nn.gelu(ost.nn.layer_norm(x) @ w["up"]) @ w["down"]

    def loss(ws: Any, x: Any, y: Any) -> Any:
        for w in ws:
            x = block(w, x)
        return ost.nn.mse_loss(x, y)

    def step(ws: Any, x: Any, y: Any) -> Any:
        slopes = ost.grad(loss)(ws, x, y)
        return ost.tree_map(lambda w, g: w - 0.1 * g, ws, slopes)

    shapes = dict.fromkeys("qkvo", (wide, wide)) | {
        "up": (wide, 4 * wide),
        "down": (4 * wide, wide),
    }
    ws = [
        {n: some(*s, seed=k, split=None) * 0.05 for n, s in shapes.items()} for k in range(layers)
    ]
    return step, (ws, some(16, 128, wide), some(16, 128, wide, seed=2))


def sharded(layers: int = 8, wide: int = 512, rows: int = 1024) -> Made:
    """Weights in parts, which are gathered for who multiplies by them."""

    def run(ws: Any, x: Any) -> Any:
        for w in ws:
            x = ost.tanh(x @ w.resplit(None))
        return x

    return run, ([some(wide, wide, seed=k) * 0.05 for k in range(layers)], some(rows, wide))


def volumes(cube: int = 64, channels: int = 16, layers: int = 4) -> Made:
    """Convolutions of a volume of which workers have slabs."""

    def run(ws: Any, x: Any) -> Any:
        for w in ws:
            x = ost.nn.relu(ost.nn.conv(x, w, padding=1))
        return x

    x = ost.asarray(
        np.random.default_rng(0).random((1, channels, *[cube] * 3), np.float32), split=2
    )
    shape = channels, channels, 3, 3, 3
    return run, ([some(*shape, seed=k, split=None) * 0.05 for k in range(layers)], x)


def plate(rows: int = 2048, turns: int = 4) -> Made:
    """Steps of a stencil."""

    def run(u: Any) -> Any:
        for _ in range(turns):
            around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
            u = ost.tanh(ost.pad(around, 1))
        return u

    return run, (some(rows, rows),)


PROGRAMS: dict[str, Callable[[], Made]] = {
    "network": network,
    "transformer": transformer,
    "sharded": sharded,
    "volumes": volumes,
    "plate": plate,
}


# -- runs ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Row:
    program: str
    messages: int
    compute: float  # seconds
    apart: float
    run: float
    least: float

    @property
    def hidden(self) -> float:
        return (self.apart - self.run) / max(self.apart - self.least, 1e-12)


@contextlib.contextmanager
def linked(workers: int, apart: bool = False) -> Iterator[Any]:
    """Workers on the link, who plan for it."""
    passes = tuple(p for p in pipeline.PASSES if not (apart and p is overlap))
    rules = lowering.RULES["cpu"]
    mine = tuple(p for p in rules.passes if not (apart and p is split_interiors))
    links = ((0, machines.Link(LINK.latency, LINK.bandwidth)),)
    here = (
        replace(machines.NOMINAL, name="throttled", levels=links)
        if LINK.latency
        else machines.NOMINAL
    )
    with (
        mock.patch.dict(lowering.RULES, cpu=replace(rules, passes=mine)),
        mock.patch.dict(machines.MACHINES, {here.name: here}),
        mock.patch.object(settings, "machine", here.name),
        mock.patch.object(communicator, "ThreadCommunicator", Throttled),
        mock.patch.object(pipeline, "PASSES", passes),
        mock.patch.object(settings, "cache", None),  # whose plans have all passes
        ost.connect(workers, threads=workers) as session,
    ):
        yield session


def clocked(run: Callable[[], Any], seconds: float) -> float:
    """The median of its runs."""
    times, end = list[float](), time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(name: str, workers: int, share: float, latency: float, seconds: float) -> Row:
    """Plan for a link that is as slow as `share` says, by what is sent where no link is slow."""
    LINK.latency, LINK.bandwidth = 0.0, float("inf")
    with linked(workers) as session:
        compute, sent, _ = at_once(name, session, seconds)
        if not sent:
            return Row(name, 0, compute, compute, compute, compute)
        LINK.bandwidth = sum(sent) / max(share * compute - latency * len(sent), 1e-6)
        LINK.latency = latency
    with linked(workers) as session:
        compute, sent, again = at_once(name, session, seconds)
        run, plan = clocked(again, seconds), again.plan
        steps = plan.measured.steps
        least = max(compute, sum(map(LINK.seconds, sent)), soonest(plan.program.graph, steps, sent))
    with linked(workers, apart=True):
        work, operands = PROGRAMS[name]()
        eager: Any = ost.compile(work)
        eager(*operands)
        apart = clocked(lambda: eager(*operands), seconds)
    return Row(name, len(sent), compute, apart, run, least)


def at_once(name: str, session: Any, seconds: float) -> tuple[float, list[float], Any]:
    """Seconds of a program whose messages arrive at once, their bytes, and the program."""
    work, operands = PROGRAMS[name]()
    planned: Any = ost.compile(work)

    def again() -> None:
        planned(*operands)

    slow = LINK.latency, LINK.bandwidth
    again()
    again.plan = planned.plan  # type: ignore[attr-defined]
    LINK.latency, LINK.bandwidth = 0.0, float("inf")
    compute = clocked(again, seconds)
    for worker in session.engine.workers:
        worker.communicator.messages.clear()
    again()
    sent = list(session.engine.workers[0].communicator.messages)
    LINK.latency, LINK.bandwidth = slow
    return compute, sent, again


def soonest(graph: Graph, steps: dict[int, float], sent: Sequence[float]) -> float:
    """No order of the nodes is done before: each message waits for all that it needs to be computed, and
    for the link; and what needs it comes behind it."""
    before = [0] * len(graph.inputs)  # of each value, the nodes that it needs, as bits
    chain = [0.0] * len(graph.inputs)  # and the seconds of the longest way to it
    messages = iter(sent)
    asked: list[tuple[float, float]] = []  # when a message may start, and what it takes
    for k, node in enumerate(graph.nodes):
        needs, then, took = 1 << k, 0.0, steps.get(k, 0.0)
        for v in node.inputs:
            needs, then = needs | before[v], max(then, chain[v])
        if node.op == "start":
            took = LINK.seconds(next(messages, 0.0))
            work = sum(s for j, s in steps.items() if needs >> j & 1 and not _talks(graph, j))
            asked.append((work, took))
            then = max(then, work)
        elif node.op == "wait":
            took = 0.0
        before += [needs] * len(node.specs)
        chain += [then + took] * len(node.specs)
    free = 0.0
    for when, took in sorted(asked):
        free = max(free, when) + took
    return max(free, *chain)


def _talks(graph: Graph, k: int) -> bool:
    return graph.nodes[k].op in ("start", "wait")


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks overlap", description=__doc__)
    parser.add_argument("--workload", default="", help="programs, by how their names begin")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--latency", type=float, default=50e-6, help="seconds")
    parser.add_argument("--seconds", type=float, default=2.0, help="of runs for each figure")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(args)
    wanted = tuple(given.workload.split(","))
    if not given.json:
        print(machine.in_words(runner.probe()), flush=True)
        print(
            f"{'program':<14}{'messages':>9}{'compute':>11}{'apart':>11}{'run':>11}"
            f"{'least':>11}{'hidden':>9}"
        )
    for name in PROGRAMS:
        if not name.startswith(wanted):
            continue
        row = measure(name, given.workers, given.share, given.latency, given.seconds)
        if given.json:
            print(json.dumps({**asdict(row), "hidden": row.hidden}), flush=True)
            continue
        figures = [f"{1e3 * s:>8.2f} ms" for s in (row.compute, row.apart, row.run, row.least)]
        print(f"{name:<14}{row.messages:>9}{''.join(figures)}{row.hidden:>9.0%}", flush=True)
    return 0
