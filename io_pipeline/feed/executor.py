"""Threads that make batches.

    portions --> a batch is opened --> chunks of its samples --> threads: read, all stages, into the slot
                      ^                                                          |
                      +---- room, once a batch is handed out, in order <---------+

A thread takes a chunk of a batch's samples and brings each of them through all stages, one after another,
so that it stays in the thread's cache; the last stage writes into the batch's own memory. Nothing is
queued per sample: chunks are counted off under a lock, and a batch is done when none of its samples is
left. Threads do not wait for a slow sample, but go on with the batches behind it, as far as memory allows.

What a batch holds depends on its number alone; threads and chunks only decide when it is made."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from .assembly import Assembly
from .batches import Batch, Recipe
from .chain import Sample
from .making import Hand, Maker
from .portions import Portion, Portions
from .processes import needed_by
from .running import Thread, run_times, running
from .sample_draws import Draws
from .slots import Slots
from .stats import Consumer, Costs

MIN_AHEAD, MAX_AHEAD = 2, 64  # batches that are made at a time, whatever they hold
CHECKED = 0.05  # seconds between looks whether others failed, where there are any
PATIENCE = 5.0  # seconds for threads to end with the sample that they work on


class Work:
    """An epoch that is being made. Threads know this, and not the iterator that users hold: when that is
    gone, they stop."""

    def __init__(self, recipe: Recipe, portions: Portions, epoch: int, slots: Slots) -> None:
        self.recipe, self.portions, self.epoch = recipe, portions, epoch
        self.lock = threading.Lock()
        self.to_do = threading.Condition(self.lock)  # for threads: room, or chunks
        self.done = threading.Condition(self.lock)  # for who takes batches
        self.parked = threading.Condition(self.lock)  # for threads above `active`
        self.open: deque[Batch] = deque()  # in order; the first is handed out next
        self.halt = np.zeros(1, np.int64)  # for machine code: not 0 once this is stopped
        self.is_opening = self.is_at_end = self.is_stopped = False
        self.error: BaseException | None = None
        self.assembly = Assembly(recipe, epoch, slots, self.lock)
        self.maker = Maker(recipe, epoch, self.assembly, self.halt)
        self.active, self.chunk, self.ahead = recipe.threads, recipe.chunk, recipe.ahead
        self.costs: list[Costs] = []  # of each thread: of the source and of stages of samples,
        self.behind: list[Costs] = []  # and of putting batches together and of stages behind that
        self.consumer = Consumer()
        self.decisions: Sequence[str] = ()  # of the tuner, in words,
        self.is_tried = False  # and whether it only tries how this runs
        self.made = 0  # samples
        self.busy = 0.0  # seconds that threads worked, all together, until
        self.at = time.perf_counter()
        self.running = 0  # threads that work since then
        self.clocks = time.perf_counter(), time.process_time()  # when it was begun,
        self.cores = 0.0  # and what the process has used since then, once it is made
        self.on_core = self.off_core = 0  # nanoseconds of threads that have ended, see `processors`
        self.threads: list[Thread] = []
        self.alive = 0
        self.has_left = False
        self.check: Callable[[], None] | None = None  # raises if nobody should wait any longer
        self.helpers = needed_by(recipe.source, recipe.chain, recipe.batched)
        self.had = tuple(self.helpers)

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    @is_stopped.setter
    def is_stopped(self, does: bool) -> None:
        self._is_stopped = does
        self.halt[0] = does

    # -- the beginning and the end ---------------------------------------------------------------
    def begin(self) -> None:
        for helper in self.helpers:
            helper.begin()
        running.enter(self)
        for thread in self._more(self.active):
            thread.start()

    def _more(self, count: int) -> list[Thread]:
        """Threads that are missing until there are so many; they are to be started."""
        made = []
        for k in range(len(self.threads), count):
            self.costs.append(Costs(len(self.recipe.chain.stages) + 1))
            behind = self.recipe.batched
            self.behind.append(Costs(len(behind.stages) + 1 if behind is not None else 1))
            made.append(Thread(self, k, contextvars.copy_context()))
        self.threads += made
        self.alive += len(made)
        self._count(len(made))
        return made

    def run_with(self, threads: int, chunk: int, ahead: int) -> None:
        """Go on with so many threads, chunks of this size and bytes ahead. Threads that are too many
        park, until they are needed again or the epoch is made."""
        made: list[Thread] = []
        with self.lock:
            self.active, self.chunk, self.ahead = threads, chunk, ahead
            if self.alive and not self.is_stopped and not self.is_at_end:
                made = self._more(threads)
            self.parked.notify_all()
            self.to_do.notify_all()
        for thread in made:
            thread.start()

    def finish(self) -> None:
        """Open no more batches: others go on with those. What is open is made, and handed out."""
        with self.lock:
            while self.is_opening:
                self.done.wait(0.05)
            self.is_at_end = True
            self._wake()

    def _count(self, change: int) -> None:
        """So many threads begin to work, or cease to."""
        now = time.perf_counter()
        self.busy += self.running * (now - self.at)
        self.at, self.running = now, self.running + change

    def so_far(self) -> tuple[float, int]:
        """Seconds that threads worked, all together, and samples that they made."""
        with self.lock:
            self._count(0)
            return self.busy, self.made

    def used(self) -> float:
        """Cores that the whole process has used while it was made, on average."""
        if self.cores:
            return self.cores
        wall, cpu = self.clocks
        return (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9)

    def processors(self) -> tuple[float, float]:
        """Seconds that threads were on a core, and that they waited for one that others used, all
        together; zeros where nobody knows."""
        on, off = self.on_core, self.off_core
        for thread in self.threads:
            if thread.is_alive():
                more = run_times(thread.native_id or 0)
                on, off = on + more[0], off + more[1]
        return on * 1e-9, off * 1e-9

    def patience(self) -> float:
        """How many times as long threads take as they compute, or are in line for a core: while they wait for
        files and the like, others can compute."""
        (busy, _), computes = self.so_far(), sum(self.processors())
        if not computes:  # nobody knows; what samples took is about that
            rows = [cost for costs in self.costs for cost in costs.of]
            busy, computes = sum(c.wall for c in rows), sum(c.cpu for c in rows)
        return max(busy / computes, 1.0) if computes else 1.0

    def stop(self) -> None:
        """Threads end with the sample that they work on. Waits for nobody, so finalizers may call it."""
        self.is_stopped = True
        if self.lock.acquire(blocking=False):  # else who has it looks at `is_stopped` next
            try:
                self._wake()
            finally:
                self.lock.release()
        self._release()

    def _release(self) -> None:
        """Processes are free for the next epoch; if this one is broken off, they end, and with them what
        threads wait for."""
        with contextlib.suppress(IndexError):
            while True:
                self.helpers.pop().end()
        if self.is_stopped and not self._is_over():
            for helper in self.had:
                helper.drop()

    def join(self) -> None:
        self.is_stopped = True
        with self.lock:
            self._wake()
        self._release()
        until = time.monotonic() + PATIENCE
        for thread in self.threads:
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(until - time.monotonic(), 0.0))
        if self.alive == 0:
            self.open.clear()

    def _wake(self) -> None:
        for waiting in (self.to_do, self.done, self.parked):
            waiting.notify_all()

    def fail(self, error: BaseException) -> None:
        """A thread cannot go on: who takes batches is told."""
        with self.lock:
            self.error, self.is_stopped = self.error or error, True
            self._wake()

    def gone(self) -> None:
        """A thread has ended; with the last one, so has all that holds while they run."""
        with self.lock:
            self.alive -= 1
            self._count(-1)
            on, off = run_times(threading.get_native_id())
            self.on_core, self.off_core = self.on_core + on, self.off_core + off
            if self.alive:
                return
            self.cores = self.used()
            if self.is_stopped:
                self.open.clear()
        self._release()
        running.leave(self)

    # -- threads ---------------------------------------------------------------------------------
    def work(self, number: int) -> None:
        """Work in a thread until the epoch is made."""
        sample = Sample(Draws(self.recipe.seed, self.epoch))
        costs = self.costs[number]
        hand = Hand()
        while (task := self._task(number)) is not None:
            batch, rows = task
            self.maker.make(batch, rows, sample, hand, costs)
            if self.is_stopped:
                return
            self._finish(batch, len(rows), sample, self.behind[number])

    def _task(self, number: int) -> tuple[Batch, range] | None:
        """The next chunk for a thread; None if there is none left."""
        while True:
            with self.lock:
                while True:
                    if self.is_stopped:
                        return None
                    if number >= self.active:
                        if self.is_at_end:
                            return None
                        self._wait(self.parked)
                        continue
                    last = self.open[-1] if self.open else None
                    if last is not None and last.taken < last.count:
                        first = last.taken
                        chunk = self.chunk * self.maker.chunks_per_call
                        last.taken = min(first + chunk, last.count)
                        return last, range(first, last.taken)
                    if self.is_at_end:
                        return None
                    if not self.is_opening and self._has_room():
                        self.is_opening = True
                        break
                    self._wait(self.to_do)
            self._open()

    def _wait(self, condition: threading.Condition) -> None:
        self._count(-1)
        condition.wait(1.0)
        self._count(1)

    def _has_room(self) -> bool:
        return not self._overtakes() and len(self.open) < self.room

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch; 0 as long as nobody knows."""
        return self.assembly.batch_bytes

    @property
    def room(self) -> int:
        """Batches that may be open: being made, or waiting to be taken."""
        size = self.batch_bytes
        return min(max(self.ahead // size, MIN_AHEAD), MAX_AHEAD) if size else MIN_AHEAD

    def _open(self) -> None:
        """Find out what is in the next batch. One thread at a time."""
        portion: Portion | None = None
        error: BaseException | None = None
        try:
            portion = self.portions.new()
            if portion is not None and portion.items is None:
                self.recipe.source.expect(portion.samples)
        except BaseException as found:
            error = found
        with self.lock:
            self.is_opening = False
            if portion is None:
                self.is_at_end, self.error = True, error
            else:
                batch = Batch(portion, left=len(portion.places))
                self.assembly.begin(batch)
                if not batch.count:
                    batch.is_done = True
                self.open.append(batch)
            self._wake()

    # -- batches ---------------------------------------------------------------------------------
    def _finish(self, batch: Batch, rows: int, sample: Sample, costs: Costs) -> None:
        """A chunk is done; with the last one, so is the batch."""
        with self.lock:
            self.made += rows
            batch.left -= rows
            if batch.left:
                return
        self._complete(batch, sample, costs)

    def _complete(self, batch: Batch, sample: Sample, costs: Costs) -> None:
        try:
            self.assembly.finish(batch, sample, costs)
        except BaseException as error:
            batch.error = error
        with self.lock:
            batch.is_done = True
            self.done.notify_all()

    # -- who takes batches -----------------------------------------------------------------------
    def take(self) -> Batch | None:
        """The next batch, once it is made; None at the end."""
        begin = time.perf_counter()
        with self.lock:
            while (ready := self._ready()) is None:
                if self.is_stopped or self._is_over():
                    if self.error is not None:
                        raise self.error
                    return None
                if self.check is not None:
                    self.check()
                self.done.wait(1.0 if self.check is None else CHECKED)
            batch = self.coming[ready]
            del self.coming[ready]
            self.to_do.notify_all()
        self.consumer.took(begin, time.perf_counter())
        return batch

    @property
    def coming(self) -> deque[Batch]:
        """Batches to be handed out, in order."""
        return self.open

    def _is_over(self) -> bool:
        """Whether all batches were handed out."""
        return self.is_at_end and not self.open

    def _ready(self) -> int | None:
        """The batch that is handed out next, by its place among those that are open, once it is made."""
        for k, batch in enumerate(self.coming):
            if batch.is_done:
                return k
            if not self.recipe.relaxed:
                break
        return None

    def _overtakes(self) -> bool:
        """Whether the next batch would be too far ahead of one that is not made yet."""
        return (
            self.recipe.relaxed
            and bool(self.open)
            and (self.portions.next - self.open[0].portion.number >= MAX_AHEAD)
        )
