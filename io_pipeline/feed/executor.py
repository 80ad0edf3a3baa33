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

import atexit
import contextlib
import contextvars
import ctypes
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.signals import Living

from ostinato.errors import OstinatoError, SampleError

from ..source import short
from .chain import Chain, Sample, undecoded
from .draws import REPLACED, Draws
from .faults import RAISE, REPLACE, TRIES, Fault, Policy
from .fields import Fields, fields_of
from .later import Later
from .native import Room, Run, can
from .portions import Portion, Portions, Rows
from .processes import needed_by
from .reading import reads
from .samples import Samples
from .slabs import Slabs
from .slots import Slots
from .stage import Rejected
from .stats import Consumer, Costs

CHUNK = 8  # samples that a thread takes at a time
GATHERED = 16  # times as many rows of arrays,
AT_ONCE = 2  # and images that machine code makes
AHEAD = 256 << 20  # bytes of batches that wait to be taken
LEAST, MOST = 2, 64  # batches that are made at a time, whatever they hold
SWITCH = 2e-5  # seconds after which a thread of Python's gives way, while a pipe runs
PR_SET_TIMERSLACK, SLACK = 29, 1000  # nanoseconds that Linux may wake a thread late; else 50,000
CHECKED = 0.05  # seconds between looks whether others failed, where there are any
PATIENCE = 5.0  # seconds for threads to end with the sample that they work on


class Regroups(NamedTuple):
    """Batches of those samples that a filter leaves."""

    size: int
    keeps: bool  # what is left at the end
    rows: Rows  # that are wanted here


@dataclass(frozen=True)
class Recipe:
    """What makes batches, but for which samples they have."""

    source: Samples
    chain: Chain
    batched: Chain | None  # stages of whole batches; None if samples stay single
    policy: Policy  # of the source
    seed: int
    threads: int
    chunk: int = CHUNK
    ahead: int = AHEAD
    pad: float | None = None  # what arrays of other shapes are filled up with
    given: frozenset[str] = frozenset()  # what of threads, chunk and ahead the user has said
    later: Later | None = None  # stages that are left to who takes batches
    line: str = ""  # where the user asked for batches
    relaxed: bool = False  # batches are handed out as they are made
    slabs: Slabs | None = None  # reads only a part of each sample
    regroups: Regroups | None = None  # samples are put in batches once it is known which stay
    movable: int = 0  # of the last stages, how many may be left to who takes batches, if that pays


@dataclass
class Failure:
    """A sample that could not be made."""

    row: int
    fault: Fault
    error: SampleError | None  # None: it is left out


@dataclass
class Batch:
    """A batch that is being made."""

    portion: Portion
    taken: int = 0  # samples that a thread has taken
    left: int = 0  # samples that are not done yet
    fields: Fields | None = None
    slots: list[Any] | None = None  # of each leaf: an array of all samples, or a list
    loose: dict[int, tuple[list[Any], Fields]] = field(default_factory=dict)  # what fits none
    drawn: list[Any] = field(default_factory=list)  # for stages that are left to who takes it
    failures: list[Failure] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)  # also of what was replaced
    error: BaseException | None = None
    is_done: bool = False

    @property
    def count(self) -> int:
        return len(self.portion.places)


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
        self.form: tuple[Fields, list[Any]] | None = None  # of batches, as the last one was
        self.gathers = False  # whether batches are the source's rows
        self.native: Run | None = None  # what makes images of chunks by machine code,
        self.first: list[Any] = []  # what was read of a sample
        self.is_native_known = not (can() and recipe.chain.stages and recipe.batched is not None)
        forms = recipe.source.forms()
        is_plain = not recipe.chain.stages and recipe.slabs is None
        if is_plain and recipe.batched is not None and forms is not None:
            assert recipe.source.fields is not None
            self.form, self.gathers = (recipe.source.fields, list(forms)), True
        self.slots = slots
        self.is_stacked = recipe.batched is not None and recipe.regroups is None  # as it is made
        self.batch_bytes = 0
        self.active, self.chunk, self.ahead = recipe.threads, recipe.chunk, recipe.ahead
        self.costs: list[Costs] = []  # of each thread: of the source and of stages of samples,
        self.behind: list[Costs] = []  # and of putting batches together and of stages behind that
        self.consumer = Consumer()
        self.decisions: Sequence[str] = ()  # of the tuner, in words
        self.made = 0  # samples
        self.busy = 0.0  # seconds that threads worked, all together, until
        self.at = time.perf_counter()
        self.running = 0  # threads that work since then
        self.clocks = time.perf_counter(), time.process_time()  # when it was begun,
        self.cores = 0.0  # and what the process has used since then, once it is made
        self.on_core, self.off_core = 0, 0  # nanoseconds of threads that have ended, see `delay`
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
        _running.enter(self)
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

    def delay(self) -> float:
        """Seconds that threads waited for a core that others used, for each that they were on one."""
        on, off = self.on_core, self.off_core
        for thread in self.threads:
            if thread.is_alive():
                more = run_times(thread.native_id or 0)
                on, off = on + more[0], off + more[1]
        return off / on if on else 0.0

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
        _running.leave(self)

    # -- threads ---------------------------------------------------------------------------------
    def work(self, number: int) -> None:
        """What a thread does until the epoch is made."""
        sample = Sample(Draws(self.recipe.seed, self.epoch))
        costs = self.costs[number]
        hand = Hand(sample.draws.keys)
        while (task := self._task(number)) is not None:
            batch, rows = task
            if self.gathers and self._gather(batch, rows, costs):
                rows = range(0)
            left = dict.fromkeys(rows)
            if batch.slots is not None and (run := self._native(batch)) is not None:
                left = self._make_natively(run, batch, rows, hand, costs)
            for row, error in left.items():
                if self.is_stopped:
                    return
                timed = costs if row == rows.start else None
                try:
                    self._make(batch, row, sample, timed, error)
                except BaseException as error:  # of the pipe itself
                    batch.error = batch.error or error
            self._finish(batch, len(task[1]), sample, self.behind[number])

    def _gather(self, batch: Batch, rows: range, costs: Costs) -> bool:
        """Rows of arrays, all at once; False if something is wrong with one of them."""
        assert batch.slots is not None
        costs.begin(len(rows))
        out = [s[rows.start : rows.stop] for s in batch.slots]
        try:
            self.recipe.source.gather(batch.portion.samples[rows.start : rows.stop], out)
        except Exception:
            return False
        costs.end(0, out)
        return True

    def _native(self, batch: Batch) -> Run | None:
        """What makes a chunk of such a batch by machine code; None if that cannot be."""
        first = self.first
        if not self.is_native_known and first:
            self.native, self.is_native_known = self._found_native(batch, first), True
            self.first = []
        return self.native

    def _found_native(self, batch: Batch, first: list[Any]) -> Run | None:
        source, fields = self.recipe.source, batch.fields
        n = None if fields is None or batch.portion.items is not None else fields.sized()
        if n is None or fields is None or batch.slots is None or not batch.count:
            return None
        if not isinstance(batch.slots[n], np.ndarray) or source.fields not in (None, fields):
            return None
        in_files = n == 0 and source.files(batch.portion.samples[:1]) is not None
        reader = reads() if in_files else None
        run = self.recipe.chain.native(fields, first[n], batch.slots[n][0], reader)
        if run is not None:
            run.fields, run.leaf = fields, n
            beside = [s for k, s in enumerate(batch.slots) if k != n]
            run.beside = sum(s[0].nbytes if isinstance(s, np.ndarray) else 8 for s in beside)
        return run

    def _make_natively(
        self, run: Run, batch: Batch, rows: range, hand: Hand, costs: Costs
    ) -> dict[int, Exception | None]:
        """The images of a chunk by machine code, with one call; the rows that are left to be made, with
        what reading them has raised."""
        slots, n, source = batch.slots, run.leaf, self.recipe.source
        if slots is None or batch.fields != run.fields or slots[n].shape[1:] != run.shape:
            return dict.fromkeys(rows)
        times = None if rows.start else run.times()  # of one sample in a batch
        if times is not None:
            costs.begin()
        samples = batch.portion.samples[rows.start : rows.stop]
        files = source.files(samples) if run.reads else None
        if run.reads:
            if files is None:
                return dict.fromkeys(rows)
            values, others = files.names, files.columns
        else:
            leaves, errors = [], {}
            for row, index in zip(rows, samples, strict=True):
                try:
                    leaves.append(source.read(index)[0])
                except Exception as error:
                    errors[row] = error
            if errors:
                return {row: errors.get(row) for row in rows}
            columns = [list(column) for column in zip(*leaves, strict=True)]
            values, others = columns.pop(n), columns
        rest = [slot for k, slot in enumerate(slots) if k != n]
        for slot, column in zip(rest, others, strict=True):
            if not hand.puts(slot, rows, column):
                return dict.fromkeys(rows)
        first = _address(slots[n]) + rows.start * run.bytes
        places = batch.portion.places[rows.start : rows.stop]
        stamps = None if files is None else files.stamps
        answers = run(hand.room, hand.keys, values, places, first, self.halt, times, stamps)
        if files is not None:
            source.has_read(samples, files)
        if times is not None and not answers[0]:
            times[-1, 2] = run.bytes
            times[:, 2] += run.beside
            costs.ended(run.stages, times)
        if not any(answers):
            return {}
        return {row: None for row, answer in zip(rows, answers, strict=True) if answer}

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
                        more = AT_ONCE if self.native is not None else 1
                        chunk = self.chunk * (GATHERED if self.gathers else more)
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
    def room(self) -> int:
        """Batches that may be open: being made, or waiting to be taken."""
        size = self.batch_bytes
        return min(max(self.ahead // size, LEAST), MOST) if size else LEAST

    def _open(self) -> None:
        """Find out what is in the next batch. One thread at a time."""
        portion: Portion | None = None
        error: BaseException | None = None
        try:
            portion = self.portions.new()
        except BaseException as found:
            error = found
        with self.lock:
            self.is_opening = False
            if portion is None:
                self.is_at_end, self.error = True, error
            else:
                batch = Batch(portion, left=len(portion.places))
                if self.form is not None and batch.count and self.is_stacked:
                    batch.fields = self.form[0]
                    batch.slots = self._slots(batch.count, self.form[1])
                    self.batch_bytes = self.batch_bytes or _total(batch.slots)
                if not batch.count:
                    batch.is_done = True
                self.open.append(batch)
            self._wake()

    def _slots(self, count: int, forms: Sequence[Any]) -> list[Any]:
        return [
            self.slots.array((count, *form[0]), form[1]) if form is not None else [None] * count
            for form in forms
        ]

    # -- samples ---------------------------------------------------------------------------------
    def _make(
        self,
        batch: Batch,
        row: int,
        sample: Sample,
        costs: Costs | None,
        failed: Exception | None = None,
    ) -> None:
        """One sample of a batch, or what takes its place. failed: what reading it has raised."""
        recipe, portion = self.recipe, batch.portion
        sample.place = place = portion.places[row]
        index = portion.samples[row]
        item = None if portion.items is None else portion.items[row]
        for attempt in range(TRIES):
            sample.step, sample.out = None, None
            if batch.slots is not None and batch.fields is not None:
                sample.out = [s[row] if isinstance(s, np.ndarray) else None for s in batch.slots]
            if costs is not None:
                costs.begin()
            try:
                if failed is not None and not attempt:
                    raise failed
                if item is not None:
                    sample.fields, sample.values = fields_of(item, recipe.source.kinds)  # type: ignore[attr-defined]
                elif recipe.slabs is not None:
                    recipe.slabs.read(sample, index)
                else:
                    sample.values, sample.fields = recipe.source.read(index)
                if costs is not None:
                    costs.end(0, sample.values)
                if not self.is_native_known:
                    self.first = list(sample.values)
                recipe.chain.run(sample, costs)
                assert sample.fields is not None
                self._put(batch, row, sample.values, sample.fields, sample.out)
                return
            except Rejected:
                if costs is not None:
                    self._left_out(sample, costs)
                return
            except Exception as error:
                policy, fault = self._fault(sample, index, error)
                if policy.do == REPLACE and item is None and attempt + 1 < TRIES:
                    batch.faults.append(fault)
                    draws = sample.draws.at(place, REPLACED + attempt)
                    index = draws.integer(0, len(recipe.source))
                    continue
                raised = None
                if policy.do in (RAISE, REPLACE):
                    raised = self._error(sample, fault, error)
                batch.failures.append(Failure(row, fault, raised))
                return

    def _left_out(self, sample: Sample, costs: Costs) -> None:
        """A filter's time, also where nothing comes behind it."""
        if sample.step is not None:
            costs.end(sample.step.k + 1, ())

    def _fault(self, sample: Sample, index: int, error: Exception) -> tuple[Policy, Fault]:
        step = sample.step
        stage = step.stage.name if step is not None else "read"
        policy = step.placed.policy if step is not None else self.recipe.policy
        name = self.recipe.source.name(index)
        return policy, Fault(self.epoch, sample.place, index, name, stage, short(error))

    def _error(self, sample: Sample, fault: Fault, error: Exception) -> SampleError:
        """The error that names the file, the sample, the stage and the user's line."""
        step = sample.step
        name = f"sample {fault.sample}"
        what = name if fault.name == name else f"{name}, {fault.name}"
        got, needed, do = undecoded(step, sample.values, error)
        is_ours = isinstance(error, OstinatoError)
        made = SampleError.because(
            f"{what}, in {fault.stage} (place {fault.place} of epoch {fault.epoch})",
            got=got or (str(error).rstrip(".") if is_ours else fault.reason),
            needed=needed,
            do=do,
            line=step.placed.line if step is not None else "",
        )
        assert isinstance(made, SampleError)
        made.__cause__ = error
        return made

    def _put(
        self, batch: Batch, row: int, values: list[Any], fields: Fields, out: Sequence[Any] | None
    ) -> None:
        """A sample to its place in the batch."""
        if not self.is_stacked:
            own = [_own(v) for v in values]
            batch.loose[row] = own, fields
            self.batch_bytes = self.batch_bytes or batch.count * sum(map(_bytes, own))
            return
        self._stack(batch, row, values, fields, out)

    def _stack(
        self, batch: Batch, row: int, values: list[Any], fields: Fields, out: Sequence[Any] | None
    ) -> None:
        slots = batch.slots
        if slots is None:
            with self.lock:
                if batch.slots is None:
                    forms = [_form(v) for v in values]
                    batch.fields, batch.slots = fields, self._slots(batch.count, forms)
                    self.batch_bytes = _total(batch.slots)
                    self.form = self.form or (fields, forms)
                slots = batch.slots
        if fields is not batch.fields and fields != batch.fields:
            batch.loose[row] = list(values), fields
            return
        for k, (slot, value) in enumerate(zip(slots, values, strict=True)):
            if out is not None and value is out[k] and value is not None:
                continue
            if isinstance(slot, list) or _fits(slot, value):
                slot[row] = value
            else:
                batch.loose[row] = list(values), fields
                return

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
        """All samples of a batch are there."""
        try:
            if self.recipe.batched is not None and batch.error is None:
                costs.begin(batch.count)
                self._collate(batch)
                costs.end(0, batch.slots or ())
                if batch.slots is not None and self.recipe.batched.stages:
                    self._run_batched(batch, sample, costs)
                if self.recipe.later is not None:
                    self._draw_later(self.recipe.later, batch, sample.draws)
        except BaseException as error:
            batch.error = error
        with self.lock:
            batch.is_done = True
            self.done.notify_all()

    def _collate(self, batch: Batch) -> None:
        """Samples in one array each, without those that are left out."""
        failures = sorted(batch.failures, key=lambda f: f.row)
        if any(f.error is not None for f in failures):
            return
        gone = {f.row for f in failures}
        keep = [row for row in range(batch.count) if row not in gone]
        if batch.loose:
            rows = [batch.loose.get(row) or self._row(batch, row) for row in keep]
            batch.fields, batch.slots = self._stacked(batch, keep, rows)
        elif gone and batch.slots is not None:
            batch.slots = [
                s[keep] if isinstance(s, np.ndarray) else [s[row] for row in keep]
                for s in batch.slots
            ]
        if gone:
            places = batch.portion.places
            batch.portion.places[:] = [places[row] for row in keep]

    def _row(self, batch: Batch, row: int) -> tuple[list[Any], Fields]:
        assert batch.slots is not None
        assert batch.fields is not None
        return [slot[row] for slot in batch.slots], batch.fields

    def _stacked(
        self, batch: Batch, keep: list[int], rows: Sequence[tuple[list[Any], Fields]]
    ) -> tuple[Fields, list[Any]]:
        """Samples that do not have the form of the last ones: they may agree in another."""
        values, fields = rows[0]
        forms = [_form(v) for v in values]
        found: list[Any] = [[] for _ in values]
        pads = self.recipe.pad is not None
        for row, (others, theirs) in zip(keep, rows, strict=True):
            shapes = [_form(v) for v in others]
            if theirs != fields or not all(
                _alike(a, b, pads) for a, b in zip(forms, shapes, strict=False)
            ):
                raise self._not_alike(
                    batch,
                    keep[0],
                    row,
                    _told(fields, forms),
                    _told(theirs, shapes),
                    fields == theirs,
                )
            for k, value in enumerate(others):
                found[k].append(value)
        slots = [
            _put_together(column, self.recipe.pad) if form is not None else column
            for form, column in zip(forms, found, strict=True)
        ]
        with self.lock:
            self.form = fields, [_form(v) for v in values]
        return fields, slots

    def _not_alike(
        self, batch: Batch, first: int, row: int, wanted: str, found: str, same_fields: bool
    ) -> OstinatoError:
        """The error of two samples that cannot be in one batch."""
        name = self.recipe.source.name
        samples = batch.portion.samples
        do = "give samples the same fields with map, before `batch`"
        if same_fields:
            do = "bring them to one shape with resize or center_crop, fill arrays up with "
            do += "batch(pad=0), or take samples that are about as long together with bucket"
        return SampleError.because(
            "batch",
            got=f"a sample of {found} ({name(samples[row])})",
            needed=f"one of {wanted}, as the first of its batch ({name(samples[first])})",
            do=do,
            line=self.recipe.line,
        )

    def _run_batched(self, batch: Batch, sample: Sample, costs: Costs) -> None:
        assert self.recipe.batched is not None
        assert batch.slots is not None
        sample.values, sample.fields, sample.out = batch.slots, batch.fields, None
        sample.places = batch.portion.places
        sample.place = sample.places[0] if sample.places else 0
        try:
            self.recipe.batched.run(sample, costs)
        except Exception as error:
            step = sample.step
            if step is None:  # its fields are none for the first of these stages
                raise
            got, needed, do = undecoded(step, sample.values, error)
            made = SampleError.because(
                f"batch {batch.portion.number} of epoch {self.epoch}, in {step.stage.name}",
                got=got or short(error),
                needed=needed,
                do=do,
                line=step.placed.line,
            )
            raise made from error
        batch.slots, batch.fields = sample.values, sample.fields

    def _draw_later(self, later: Later, batch: Batch, draws: Draws) -> None:
        """The random numbers of stages that who takes the batch will run."""
        if batch.slots is None or batch.fields is None:
            return
        try:
            batch.drawn = later.draw(draws, batch.portion.places, batch.fields, batch.slots)
        except Exception as error:
            names = " and ".join(later.names)
            raise SampleError.because(
                f"batch {batch.portion.number} of epoch {self.epoch}, in {names}",
                got=short(error),
                line=later.stages[0].line,
            ) from error

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
            and (self.portions.next - self.open[0].portion.number >= MOST)
        )


class Hand:
    """What a thread has to make chunks by machine code."""

    def __init__(self, keys: tuple[int, int]) -> None:
        self.keys = keys
        self._room: Room | None = None
        self._fits: dict[
            tuple[type, Any], bool
        ] = {}  # numbers of Python's: whether they are a slot's

    @property
    def room(self) -> Room:
        if self._room is None:
            self._room = Room()
        return self._room

    def puts(self, slot: Any, rows: range, column: Sequence[Any]) -> bool:
        """Leaves that are no images to their places; False if they are not of one form."""
        if isinstance(slot, np.ndarray):
            for value in column:
                kind = type(value)
                if kind in (int, float, bool):
                    fits = self._fits.get((kind, slot.dtype))
                    if fits is None:
                        fits = self._fits[kind, slot.dtype] = _fits(slot, value)
                    fits = fits and slot.ndim == 1
                else:
                    fits = _fits(slot, value)
                if not fits:
                    return False
        slot[rows.start : rows.stop] = column
        return True


class Thread(threading.Thread):
    """One of an epoch's threads. It is a daemon, since what ends the interpreter ends it before."""

    def __init__(self, work: Work, number: int, context: contextvars.Context) -> None:
        super().__init__(name=f"ostinato-feed-{number}", daemon=True)
        self.work_on, self.number, self.context = work, number, context

    def run(self) -> None:
        if sys.platform == "linux":  # or each wait for a busy main thread takes 50 us longer
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, SLACK, 0, 0, 0)
        try:
            self.context.run(self.work_on.work, self.number)
        except BaseException as error:  # of the pipe itself, or no memory: nobody waits for it
            self.work_on.fail(error)
        finally:
            work = self.work_on
            del self.work_on, self.context
            work.gone()


def _address(x: np.ndarray[Any, Any]) -> int:
    found: int = x.__array_interface__["data"][0]
    return found


def run_times(thread: int) -> tuple[int, int]:
    """Nanoseconds that a thread was on a core, and that it waited for one; zeros where nobody knows."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            on, off, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0, 0
    return on, off


def _alike(a: Any, b: Any, pads: bool) -> bool:
    """Whether values of these forms can lie in one array."""
    if a is None or b is None:
        return a is b
    return len(a[0]) == len(b[0]) if pads else a[0] == b[0]


def _put_together(column: Sequence[Any], pad: float | None) -> np.ndarray[Any, Any]:
    """Values in one array, as large as the largest of them along each axis."""
    arrays = [np.asarray(v) for v in column]
    if pad is None or len({a.shape for a in arrays}) == 1:
        return np.stack(arrays)
    shape = [max(sizes) for sizes in zip(*(a.shape for a in arrays), strict=True)]
    made = np.full((len(arrays), *shape), pad, np.result_type(*{a.dtype for a in arrays}))
    for row, a in zip(made, arrays, strict=True):
        row[tuple(map(slice, a.shape))] = a
    return made


def _total(slots: Sequence[Any]) -> int:
    return sum(s.nbytes for s in slots if isinstance(s, np.ndarray))


def _own(value: Any) -> Any:
    """A value that users may write to: no view of the source's memory."""
    is_view = isinstance(value, np.ndarray) and not value.flags.owndata
    return value.copy() if is_view else value


def _bytes(value: Any) -> int:
    size: int = getattr(value, "nbytes", 64)
    return size


def _form(value: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and dtype of what lies in an array; None for what lies in a list."""
    if isinstance(value, (np.ndarray, np.generic)):
        return (
            (value.shape, value.dtype)
            if value.dtype.kind not in "OUSV" or value.dtype.name == "bfloat16"
            else None
        )
    if isinstance(value, (bool, int, float, complex)):
        return (), np.asarray(value).dtype
    return None


def _fits(slot: np.ndarray[Any, Any], value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.shape == slot.shape[1:] and value.dtype == slot.dtype
    form = _form(value)
    return form is not None and form == (slot.shape[1:], slot.dtype)


def _told(fields: Fields, forms: Sequence[Any]) -> str:
    """A sample's fields in words."""
    names = [name.strip("[]'.") or "sample" for name in fields.names]
    return ", ".join(
        f"{name} {form[1]}{list(form[0])}" if form is not None else name
        for name, form in zip(names, forms, strict=True)
    )


# -- while pipes run ---------------------------------------------------------------------------
class Running:
    """Epochs that are being made, and what holds meanwhile: threads of Python give way sooner, or one that
    decodes would wait 5 ms for a busy main thread each time it comes back from its library."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.works: Living[Work] = Living()
        self.count = 0
        self.before = 0.0
        self.leaving: list[Callable[[], None]] = []

    def enter(self, work: Work) -> None:
        with self.lock:
            self.works.add(work)
            self.count += 1
            if self.count == 1:
                self.before = sys.getswitchinterval()
                if self.before > SWITCH:
                    sys.setswitchinterval(SWITCH)

    def leave(self, work: Work) -> None:
        with self.lock:
            if not work.has_left:
                work.has_left = True
                self.count -= 1
                if self.count == 0 and abs(sys.getswitchinterval() - SWITCH) < SWITCH / 100:
                    sys.setswitchinterval(self.before)

    def end(self) -> None:
        """The interpreter ends."""
        works = list(self.works)
        for work in works:
            work.stop()
        for work in works:
            work.join()

    def forked(self) -> None:
        """In a child nothing of it goes on."""
        before, was = self.before, self.count
        self.__init__()  # type: ignore[misc]
        if was and before:
            sys.setswitchinterval(before)


_running = Running()
atexit.register(_running.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.forked)
