"""What this machine can do, measured with the workers of a session: plans of one kind of work each.

    stream     x * 2 + 1 of arrays from 64 KiB to 256 MiB: bytes per second, by all that is looked at
    products   small and large squares of each dtype: the rate, and from which size on it is reached
    links      a sum over workers, and changes of layout, along each axis of the mesh
    away       bytes to a disk and back, as they lie there; from a GPU, to the host's memory and back

Everything goes through compiled functions, so what is measured is what plans get: their kernels, their
threads, their communicator. All workers do the same at the same time. What is found is kept for
`planner.machine.known`."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ostinato import settings
from ostinato.ops.array.arithmetic import maximum
from ostinato.ops.array.creation import full, zeros
from ostinato.ops.array.cumulative import cumulative_sum
from ostinato.ops.array.transcendental import exp, log, sin, tanh
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array
from ostinato.ops.core.device import DEVICES
from ostinato.ops.core.layout import Mesh
from ostinato.ops.core.spec import bfloat16, float16, float32, float64
from ostinato.ops.flow.repeat_scan import repeat
from ostinato.ops.linalg import cholesky
from ostinato.ops.planned.collective import REDUCING
from ostinato.planner.machine import NOMINAL, Link, Machine, Rate, Seen, keep, memory, unmeasured
from ostinato.planner.plan import Plan
from ostinato.runtime.crew.crew_engine import CrewEngine
from ostinato.runtime.disk_store import DiskStore

from .compiled import compile
from .sessions import Session, current

STREAM = tuple(1 << k for k in (16, 18, 20, 21, 22, 23, 24, 25, 26, 28))  # bytes per worker
SIDES, GPU_SIDES = (96, 256, 768), (256, 1024, 4096)  # of products, and on a GPU
FEW_ELEMENTS, MANY_ELEMENTS = 1 << 8, 1 << 20  # elements of collectives
# seconds of one sample, at least: short ones are seldom disturbed by others
MIN_SAMPLE_SECONDS = 5e-4
SAMPLES = 64
QUICK = 1 << 21  # bytes that are looked at in less time than it takes to start a plan
TURNS = 64
SURE = 0.25  # of the time of a turn, which is not all noise of what starts it
SOONEST = 1e-6  # seconds of a message: one thread wakes another
AWAY = 1 << 16, 1 << 26  # bytes of what goes to the host or a disk, and comes back
ROWS = 8  # of what is summed over workers, on each


class Calibration:
    """One session's workers, being measured."""

    def __init__(self, session: Session, seconds: float) -> None:
        self.session = session
        self.mesh: Mesh = session.target.mesh
        self.workers = session.workers
        self.end = time.perf_counter() + seconds
        self.each = seconds / 50  # for one plan
        self.call = self.run = 0.0
        self.memory = NOMINAL.stream
        self.device = session.target.device
        self.on_gpu = self.device != "cpu"  # which only large work occupies

    # -- clock -----------------------------------------------------------------------------
    def took(self, work: Callable[..., Any], *operands: Any) -> float:
        """Seconds of a run, of the fastest sample."""
        return self.timed(work, *operands)[0]

    def timed(self, work: Callable[..., Any], *operands: Any) -> tuple[float, Plan]:
        made: Any = compile(work)
        for _ in range(4):  # the third one is timed step by step
            made(*operands)
        start = time.perf_counter()
        made(*operands)
        self.session.wait()
        times = max(1, int(MIN_SAMPLE_SECONDS / max(time.perf_counter() - start, 1e-7)))
        best, end = math.inf, start + self.each
        for k in range(SAMPLES):
            start = time.perf_counter()
            if k > 2 and start > end:
                break
            for _ in range(times):
                made(*operands)
            self.session.wait()
            best = min(best, (time.perf_counter() - start) / times)
        return best, made.plan

    def beyond(self, work: Callable[..., Any], *operands: Any) -> float:
        """Seconds of work, without those that start a plan and its kernel. Some are left if a start that was
        disturbed took more."""
        whole = self.took(work, *operands)
        return max(whole - self.run - self.call, SURE * whole)

    # -- what is measured ------------------------------------------------------------------
    def parts(self, rows: int, *more: int, dtype: Any = float32) -> Array:
        """An array of which each worker has so many rows."""
        splits = (0,) * len(self.mesh)
        split = splits if len(self.mesh) > 1 else 0
        return full((rows * self.workers, *more), 0.5, dtype=dtype, split=split)

    def overheads(self) -> float:
        """Measure what starts a plan and a kernel; return seconds of a kernel in a loop without Python."""
        x = self.parts(8, 8)

        def chain(n: int) -> Callable[..., Any]:
            def work(x: Any) -> Any:
                for _ in range(n):  # each of them is a kernel by itself
                    x = x @ x if self.on_gpu else cumulative_sum(x, axis=1)
                return x

            return work

        one, many = self.took(chain(1), x), self.took(chain(33), x)
        self.call = max((many - one) / 32, 1e-8)
        self.run = max(one - self.call, 0.0)
        few, more = (
            self.took(lambda x, n=n: repeat(n, lambda s: s * 0.5 + 1, x), x) for n in (200, 2200)
        )
        return max((more - few) / 2000, 1e-9)

    def stream(self, again: float) -> list[tuple[float, float]]:
        found = list[tuple[float, float]]()
        room = memory() / 4 / self.workers
        for size in STREAM:
            if size > room:
                break
            x = self.parts(size // 8)
            if size <= QUICK:  # a plan would take longer to start
                work = partial(repeat, TURNS, lambda s: s * 0.5 + 1)
                turn = (self.beyond(work, x) + self.call) / TURNS
                took = max(turn - again, SURE * turn)
            else:
                took = self.beyond(lambda x: x * 2 + 1, x)
            found.append((float(size), size / took))
        for k in reversed(range(len(found) - 1)):  # fewer bytes come no slower: others disturbed it
            found[k] = found[k][0], max(found[k][1], found[k + 1][1])
        self.memory = tuple(found)
        return found

    def elements(self) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """Sums and products, and functions, per second, where memory does not matter."""
        size, rounds = (1 << 24, 4) if self.on_gpu else (1 << 18, 1)

        def sums(x: Any) -> Any:
            y = x
            for _ in range(16 * rounds):
                y = maximum(y * x, 0.25) - x
            return y

        def functions(x: Any) -> Any:
            for _ in range(rounds):
                x = tanh(exp(x) * 0.25) + log(x) * sin(x)
            return x

        plain, slow = list[tuple[str, float]](), list[tuple[str, float]]()
        for dtype in (float32, float64):
            x = self.parts(size, dtype=dtype)
            plain.append((dtype.name, 48 * rounds * size / self.beyond(sums, x)))
            slow.append((dtype.name, 4 * rounds * size / self.beyond(functions, x)))
        return plain, slow

    def products(self) -> list[Rate]:
        found = []
        for dtype in (float32, float64, bfloat16, float16):
            points = []
            sides = GPU_SIDES if self.on_gpu else SIDES
            for n in sides if self.on_gpu or dtype in (float32, float64) else sides[:2]:
                x, w = self.parts(n, n, dtype=dtype), as_array(np.full((n, n), 0.5, dtype))
                times = max(2, min(64, (1 << 28) // n**3))  # so that what starts a plan is little
                chain = partial(_multiplied, times)
                points.append((2.0 * n**3, self.beyond(chain, x, w) / times))
            found.append(rate_of(dtype.name, points))
        return found

    def factors(self) -> list[Rate]:
        found = []
        for dtype in (float32, float64):
            points = []
            for n in (128, 640):
                x = self.parts(1, n, n, dtype=dtype) + n * np.eye(n, dtype=dtype)
                points.append((n**3 / 3, self.beyond(cholesky, x)))
                if points[-1][1] < self.run:
                    points.pop()  # of which little is the work
            found.append(rate_of(dtype.name, points))
        return found

    # -- links -----------------------------------------------------------------------------
    def levels(self) -> tuple[tuple[int, Link], ...]:
        """The link of each axis of the mesh, from the innermost."""
        found: list[tuple[int, Link]] = []
        span = 1
        for axis in reversed(range(len(self.mesh))):
            span *= self.mesh[axis]
            if self.mesh[axis] > 1:
                found.append((span, self.link(axis)))
        if not found:
            return NOMINAL.levels
        return (*found[:-1], (0, found[-1][1]))

    def added(self, size: float) -> float:
        """Seconds in which a worker sums so many bytes."""
        known = replace(NOMINAL, stream=self.memory)
        return self.call + known.moving_seconds(size, size)

    def link(self, axis: int) -> Link:
        n = self.mesh[axis]

        def along(split: int | None) -> Any:
            splits: list[int | None] = [None] * len(self.mesh)
            splits[axis] = split
            return tuple(splits) if len(splits) > 1 else split

        def begin(length: int, rows: int) -> Array:
            return zeros((n * rows, length), dtype=float32, split=along(0))

        def total(x: Any) -> Any:
            return x.sum(0)

        ways: list[tuple[str, Callable[..., Any]]] = [
            ("all_reduce", total),
            ("reduce_scatter", lambda x: x.sum(0).resplit(along(0))),
            ("all_gather", lambda x: x.resplit(along(None))),
            ("all_to_all", lambda x: x.resplit(along(1))),
        ]
        seen = []
        for kind, work in ways:
            points = []
            for length in (FEW_ELEMENTS, MANY_ELEMENTS):
                sums = kind in REDUCING
                took, plan = self.timed(work, begin(length, ROWS if sums else 1))
                if kinds_of(plan) == [kind]:
                    size = length * 4.0 * (n if kind == "all_gather" else 1)
                    made = self.added(ROWS * length * 4) if sums else 0.0
                    points.append((size, max(took - self.run - made, 1e-7)))
            if len(points) == 2:
                (few, short), (many, long) = points
                fastest = replace(NOMINAL, stream=self.memory).bandwidth(many)
                slope = max((long - short) / (many - few), 1 / fastest)  # all goes through memory
                seen.append(Seen(kind, n, max(short - few * slope, SOONEST), 1 / slope))
        if seen:  # nothing is sent for nothing: what was lost in noise is as for the others
            middle = sorted(s.seconds for s in seen)[len(seen) // 2]
            seen = [replace(s, seconds=max(s.seconds, middle / 4)) for s in seen]
        exchange = next((s for s in seen if s.kind == "all_to_all"), seen[-1] if seen else None)
        if exchange is None:
            return NOMINAL.levels[0][1]
        others = 1 - 1 / n
        return Link(exchange.seconds, exchange.bandwidth * others, f"axis {axis}", tuple(seen))

    def background(self) -> float:
        """The share of a collective that goes on while its worker computes."""
        axis = next((a for a, n in enumerate(self.mesh) if n > 1), None)
        if axis is None:
            return 1.0
        splits = (0,) * len(self.mesh) if len(self.mesh) > 1 else 0
        x, w = self.parts(384, 384), as_array(np.full((384, 384), 0.5, np.float32))
        y = zeros((self.workers * ROWS, MANY_ELEMENTS // 4), dtype=float32, split=splits)
        alone = self.took(lambda x, w: (x @ w) @ w, x, w), self.took(lambda y: y.sum(0), y)
        both = self.took(lambda x, w, y: ((x @ w) @ w, y.sum(0)), x, w, y)
        hidden = (sum(alone) - both) / max(min(alone) - self.run, 1e-9)
        return min(1.0, max(0.0, hidden))

    def away(self) -> Link:
        """Measure where values go if memory is short: the host's memory from a GPU, a disk."""
        device = DEVICES[self.device]
        store = device.away() or DiskStore()
        times, places = [], [(size, store.place(size)) for size in AWAY]
        for size, at in (places[0], *places):  # the first time memory or a file is made for all
            x = device.from_host(np.zeros(size, np.uint8))
            begin = time.perf_counter()
            store.stash(at, x).wait()
            store.flush()
            store.fetch(at, x).wait()
            device.clock()
            times.append((time.perf_counter() - begin) / 2)
        _, short, long = times
        rate = (AWAY[1] - AWAY[0]) / max(long - short, 1e-9)
        where = "disk" if device.is_host else "host"
        return Link(max(short - AWAY[0] / rate, SOONEST), rate, where)

    # -- all of it -------------------------------------------------------------------------
    def found(self) -> Machine:
        again = self.overheads()
        stream = self.stream(again)
        elements, functions = self.elements()
        products, factors = self.products(), self.factors()
        engine = self.session.engine
        apart, known = isinstance(engine, CrewEngine), unmeasured(self.device)
        return Machine(
            platform.node(),
            self.call,
            tuple(stream),
            tuple([replace(r, terms=known.products[0].terms) for r in products]),
            tuple(elements),
            tuple(functions),
            self.levels(),
            tuple(factors),
            self.run,
            again,
            self.background(),
            known.memory if self.on_gpu else math.inf if apart else memory() / self.workers,
            self.device,
            f"measured with {self.workers} workers of {engine.threads} threads",
            known.units,
            away=self.away(),
            combine_seconds=known.combine_seconds,
        )


def _multiplied(times: int, x: Any, w: Any) -> Any:
    for _ in range(times):
        x = x @ w
    return x


def rate_of(dtype: str, points: Sequence[tuple[float, float]]) -> Rate:
    """The line through small and large products, by relative errors: time is (operations + half) / most."""
    a = np.array([[flops / took, 1 / took] for flops, took in points])
    slope, start = np.linalg.lstsq(a, np.ones(len(points)), rcond=None)[0]
    if slope <= 0 or start < 0:
        return Rate(dtype, max(flops / took for flops, took in points))
    return Rate(dtype, 1 / slope, start / slope)


def kinds_of(plan: Plan) -> list[str]:
    from ostinato.planner.seeing.explain import count

    return [kind for kind, n in count(plan.program)[1].items() for _ in range(n)]


def calibrate(seconds: float = 50.0) -> Machine:
    """Measure the workers of the session in use, and keep what was found."""
    session = current()
    target, before = session.target, (settings.tune, settings.machine)
    settings.tune, settings.machine = "read", "nominal"  # not by what was measured before
    session.target = replace(target, named=None)
    try:
        found = Calibration(session, seconds).found()
    finally:
        (settings.tune, settings.machine), session.target = before, target
    keep(found, session.workers, isinstance(session.engine, CrewEngine))
    return found
