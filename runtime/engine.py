"""Engines: who runs plans. The protocol, and the engine of this process.

`LocalEngine(1)` runs in the calling thread with all cores. `LocalEngine(n)` has n workers that are
threads: each runs the same plan over its own parts and talks through its communicator, exactly as
processes on a cluster do."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, cast

import numpy as np
from ostinato.ops.core.device import DEVICES
from ostinato.ops.core.exchange import chunks_of, held_pieces, written
from ostinato.ops.core.helpers import begin_to_help, check_thread, helper
from ostinato.ops.core.layout import Box, Layout, Mesh, slices
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.signals import Living
from ostinato.ops.core.spec import Spec, empty_aligned, is_own, lent
from ostinato.ops.core.targets import targets
from ostinato.ops.cpu.threads import blas_threads
from ostinato.planner.plan import Measured, Plan, Program

from ostinato.errors import CommunicatorError, OstinatoError, SessionError

from .bound import may_fail_later
from .messages.communicator import Alone, ThreadWorld
from .timing import trials
from .worker import CLOSED, Loaded, Worker

MOST_UNSURE = 10_000  # results of which nobody knows yet whether all went well
FILES = 4  # threads for files at the most
MIN_THREADED_BYTES = 1 << 20  # bytes of an array for which no thread is started
Task = Callable[[Worker], list[Any]]
Launcher = Callable[[Sequence[Operand]], list[Operand]]


class Engine(Protocol):
    """Keeps operands and runs plans."""

    mesh: Mesh
    device: str
    closed: bool

    @property
    def lock(self) -> threading.RLock:
        """Return the lock that one run at a time holds. Threads that a run waits for must not have
        it."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether none of its workers is this process."""

    @property
    def is_lost(self) -> bool:
        """Whether a worker died, and with it what all of them held."""

    @property
    def threads(self) -> int:
        """Return the number of threads of each worker."""

    def put(self, value: Any, layout: Layout, again: bool = False) -> Operand:
        """An operand of a value in the caller's memory. What the engine is given, it may keep. `again`: more
        like it will come, each for a while."""

    def attach(self, source: Any, layout: Layout) -> Operand:
        """An operand that stays in its file, where workers read it block after block."""

    def read(self, source: Any, layout: Layout) -> Operand:
        """An operand of the array in a file, of which each worker reads its part."""

    def target(self, sink: Any, number: int, layout: Layout) -> Operand:
        """An operand of plans that write to a file: its number."""

    def write(self, operand: Operand, sink: Any) -> list[Any]:
        """Write a value to a file, each box of it by one worker that has it. What the sink gave
        for each. Other threads may run plans meanwhile."""

    def get(self, operand: Operand) -> np.ndarray[Any, Any]:
        """The whole value, to be read only."""

    def launcher(self, plan: Plan) -> Launcher:
        """Make a function that runs a plan: the program's results; operands stay as they are,
        unless the plan was given them."""

    def forget(self, plan_id: str) -> None:
        """Drop a plan."""

    def plan_of(self, plan_id: str) -> Plan | None:
        """The plan that it runs by this id, which may be another's with the same graph, as far as that is
        known here."""

    def ran_lately(self, plan_id: str) -> bool:
        """Whether a plan ran since this was asked last, as far as that is known here."""

    def measured(self, plan_id: str) -> Measured | None:
        """Return what the runs of a plan have shown."""

    def trials(self, programs: Sequence[Program], limit: float) -> Sequence[Sequence[float]]:
        """Programs that do the same, timed in turn on one worker for so many seconds."""

    def wait(self) -> None:
        """Return when all that was asked is done."""

    def stats(self) -> dict[str, Any]:
        """Messages and bytes that it took to ask, by kind, and the state of each worker."""

    def record(self) -> None:
        """Write down from now on when which operation ran on each worker."""

    def recorded(self) -> list[dict[str, Any]]:
        """End the recording, and return it as data."""

    def check_open(self) -> None:
        """An error if it was closed."""

    def rest(self) -> None:
        """Give plans, memory and threads back until something runs again. Operands stay."""

    def abandon(self) -> bool:
        """Nobody will run anything here again: rest, unless that would wait for somebody. Whether it did."""

    def close(self) -> None:
        """Give everything back. Whether its operands can still be read depends on where they lie."""


class Held(Operand):
    """An operand that an engine of this process holds: its part on each worker."""

    __slots__ = ("parts",)
    engine: LocalEngine

    @property
    def source(self) -> Any:
        """Return the source of what lies in a file."""
        return self.parts[0]

    def __init__(self, spec: Spec, engine: LocalEngine, parts: tuple[Any, ...]) -> None:
        self.spec = spec
        self.shared = self.spoiled = False
        self.engine = engine
        self.parts = parts


class _Lost(tuple[Any, ...]):
    """Parts of what was made while something went wrong."""

    def __new__(cls, why: BaseException) -> _Lost:
        made = super().__new__(cls)
        made.why = why
        return made

    why: BaseException

    def __getitem__(self, _: Any) -> Any:
        raise self.why

    def __iter__(self) -> Any:
        raise self.why


class LocalEngine:
    is_elsewhere = is_lost = False

    def __init__(
        self,
        workers: int = 1,
        mesh: Mesh | None = None,
        threads: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.device = device
        self.memory = DEVICES[device]  # of its workers
        self.mesh = mesh if mesh is not None else (workers,)
        self.size = workers
        self.closed = False
        self._lock = make_lock()
        self.launchers: dict[str, Launcher] = {}
        # made since somebody looked whether all went well
        self.unsure: list[weakref.ref[Held]] = []
        # of whom it was made for, where somebody else's lines are known; of the last run since then
        self.at_lines: Callable[[OstinatoError], OstinatoError] | None = None
        if workers == 1:
            self.workers = [Worker(0, Alone(), self.memory, threads)]
            self.team = None
        else:
            self.world = ThreadWorld(workers)
            self.workers = [
                Worker(r, self.world.communicator(r, self.memory), self.memory, threads)
                for r in range(workers)
            ]
            self.team = _Team(self.workers, self.world)

    @property
    def lock(self) -> threading.RLock:
        check_thread()
        return self._lock

    @property
    def threads(self) -> int:
        """Return the number of threads of each worker."""
        return self.workers[0].threads

    # -- operands --------------------------------------------------------------------------
    def put(self, value: Any, layout: Layout, again: bool = False) -> Operand:
        self.check_open()
        spec = Spec(value.shape, value.dtype, layout)
        if self.size == 1:
            move = self.memory.next_from_host if again else self.memory.from_host
            return Held(spec, self, (move(value),))
        is_borrowed = isinstance(value, np.ndarray) and not is_own(value)  # it is only read then
        everything = tuple((0, n) for n in value.shape)
        parts = []
        for worker in self.workers:
            part = value[(*slices(layout.box(value.shape, worker.rank), everything), ...)]
            stays = is_borrowed and part.flags.c_contiguous and part.dtype.isnative
            if again and not self.memory.is_host:
                parts.append(self.memory.next_from_host(part))
                continue
            parts.append((self.memory.from_host if stays else self.memory.copy_from_host)(part))
        return Held(spec, self, tuple(parts))

    def attach(self, source: Any, layout: Layout) -> Operand:
        self.check_open()
        return Held(Spec(source.shape, source.dtype, layout.on_disk), self, (source,) * self.size)

    def read(self, source: Any, layout: Layout) -> Operand:
        self.check_open()
        spec = Spec(source.shape, source.dtype, layout)
        boxes = [layout.box(spec.shape, rank) for rank in range(self.size)]
        parts = self._side_by_side(partial(box_of, source), boxes, spec)
        return Held(spec, self, tuple(map(self.memory.from_host, parts)))

    def target(self, sink: Any, number: int, layout: Layout) -> Operand:
        targets[number] = sink
        return self.put(np.asarray(number), layout)

    def write(self, operand: Operand, sink: Any) -> list[Any]:
        self.look()
        spec = operand.spec
        layout, chunks = spec.layout, sink.chunks
        assert layout is not None
        if layout.stored and chunks is None:
            chunks = chunks_of(layout, spec.shape, spec.dtype.itemsize)
        boxes = [b for share in written(layout, spec.shape, chunks) for b in share]

        def write(box: Box) -> Any:
            return sink.write(self._box(operand, box), box)

        if layout.stored and operand.parts[0].in_turn:  # type: ignore[attr-defined]
            return [*map(write, boxes)]
        return self._side_by_side(write, boxes, spec)

    def _side_by_side(
        self, work: Callable[[Box], Any], boxes: Sequence[Box], of: Spec
    ) -> list[Any]:
        """Work on files, in threads beside the workers, who may be busy with plans."""
        threads = min(len(boxes), self.size * self.threads, FILES)
        if threads < 2 or of.nbytes < MIN_THREADED_BYTES:
            return [*map(work, boxes)]
        with ThreadPoolExecutor(threads, "ostinato-files", begin_to_help) as pool:
            return list(pool.map(work, boxes))

    def _box(self, operand: Operand, box: Box) -> np.ndarray[Any, Any]:
        """A box of a value, put together if no worker has all of it."""
        assert isinstance(operand, Held)
        spec, layout = operand.spec, operand.spec.layout
        assert layout is not None
        if layout.stored:
            return box_of(operand.parts[0], box)
        whole: Any = None
        for rank, piece in held_pieces(layout, spec.shape, box):
            part = operand.parts[rank][(*slices(piece, layout.box(spec.shape, rank)), ...)]
            part = self.memory.to_host(part)
            if piece == box:
                return part
            whole = (
                empty_aligned([hi - lo for lo, hi in box], spec.dtype) if whole is None else whole
            )
            whole[slices(piece, box)] = part
        return whole

    def look(self) -> None:
        """An error if a run on a device found something wrong; what was made since the look before is lost."""
        if not self.unsure:
            return
        made, self.unsure = self.unsure, []
        at_lines, self.at_lines = self.at_lines, None
        wrong: OstinatoError | None = None
        for worker in self.workers:
            try:
                worker.look()
            except OstinatoError as error:
                wrong = wrong or error
        if wrong is None:
            return
        wrong = wrong if at_lines is None else at_lines(wrong)
        for known in made:
            if (operand := known()) is not None:
                operand.parts = _Lost(wrong)
        raise wrong

    def _unsure(self, made: list[Operand]) -> list[Operand]:
        self.unsure += [weakref.ref(cast(Held, x)) for x in made]
        if len(self.unsure) > MOST_UNSURE:
            self.look()
        return made

    def get(self, operand: Operand) -> np.ndarray[Any, Any]:
        assert isinstance(operand, Held)
        self.look()
        spec, layout = operand.spec, operand.spec.layout
        assert layout is not None
        whole: np.ndarray[Any, Any]
        if layout.stored:
            whole = np.empty(spec.shape, spec.dtype)
            operand.parts[0].read(whole, tuple((0, n) for n in spec.shape))
        elif self.size == 1 or layout.is_whole:
            operand.shared = operand.shared or self.memory.is_host
            return lent(self.memory.to_host(operand.parts[0]))
        else:
            whole = np.empty(spec.shape, spec.dtype)
            everything = tuple((0, n) for n in spec.shape)
            for rank, part in enumerate(operand.parts):
                whole[slices(layout.box(spec.shape, rank), everything)] = self.memory.to_host(part)
        whole.flags.writeable = False
        return whole

    # -- plans -----------------------------------------------------------------------------
    def launcher(self, plan: Plan) -> Launcher:
        found = self.launchers.get(plan.id)
        if found is None:
            self.check_open()
            with self.lock:
                for worker in self.workers:
                    worker.load(plan)
                found = self.launchers[plan.id] = self._launcher(plan)
        return found

    def _launcher(self, plan: Plan) -> Launcher:
        specs, lock, loaded = plan.program.graph.out_specs, self._lock, self.loaded(plan.id)
        if self.team is None:
            step, mine = self.workers[0].step, loaded[0]

            def launch(operands: Sequence[Operand]) -> list[Operand]:
                if helper.on:
                    check_thread()
                with lock:
                    made = step(mine, [o.parts[0] for o in operands])  # type: ignore[attr-defined]
                return [Held(spec, self, (value,)) for spec, value in zip(specs, made)]  # noqa: B905

            def launch_one(operands: Sequence[Operand]) -> list[Operand]:
                if helper.on:
                    check_thread()
                with lock:
                    made = step(mine, [o.parts[0] for o in operands])  # type: ignore[attr-defined]
                return [Held(specs[0], self, tuple(made))]

            one = launch_one if len(specs) == 1 else launch
            return giving(plan, self._looked_at(plan, one), loaded)
        team, share, multiplies = self.team, self.threads, loaded[0].multiplies

        def launch_all(operands: Sequence[Operand]) -> list[Operand]:
            def part(worker: Worker) -> list[Any]:
                r = worker.rank
                return worker.step(loaded[r], [o.parts[r] for o in operands])  # type: ignore[attr-defined]

            check_thread()
            with lock, blas_threads(share) if multiplies else nullcontext():
                made = team.run(part)
            columns = zip(*made, strict=True)
            return [Held(spec, self, parts) for spec, parts in zip(specs, columns, strict=True)]

        return giving(plan, self._looked_at(plan, launch_all), loaded)

    def _looked_at(self, plan: Plan, launch: Launcher) -> Launcher:
        """Make a launcher that notes results which a device may find wrong later."""
        if self.memory.is_host or not may_fail_later(plan.program):
            return launch
        return lambda operands: self._unsure(launch(operands))

    def ran_lately(self, plan_id: str) -> bool:
        found = False
        for loaded in self.loaded(plan_id):
            found |= loaded.runs != loaded.seen
            loaded.seen = loaded.runs
        return found

    def plan_of(self, plan_id: str) -> Plan | None:
        loaded = self.loaded(plan_id)
        return loaded[0].plan if loaded else None

    def forget(self, plan_id: str) -> None:
        """Drop a plan that the cache let go."""
        with self.lock:
            self.launchers.pop(plan_id, None)
            for worker in self.workers:
                worker.unload(plan_id)

    def loaded(self, plan_id: str) -> list[Loaded]:
        """Return what each worker knows of a plan: how often it ran, and how long."""
        return [w.plans[plan_id] for w in self.workers if plan_id in w.plans]

    def measured(self, plan_id: str) -> Measured | None:
        return measured(self.loaded(plan_id))

    def trials(self, programs: Sequence[Program], limit: float) -> list[list[float]]:
        with self.lock, np.errstate(all="ignore"):
            return trials(programs, limit, self.threads, self.memory)

    def wait(self) -> None:
        """A run on the host returns when it is done."""
        self.check_open()
        self.memory.clock()
        self.look()

    def stats(self) -> dict[str, Any]:
        return {"orders": {}, "workers": [w.state() for w in self.workers]}

    def record(self) -> None:
        with self.lock:
            for worker in self.workers:
                worker.record()

    def recorded(self) -> list[dict[str, Any]]:
        with self.lock:
            return [worker.recorded() for worker in self.workers]

    def check_open(self) -> None:
        if self.closed:
            raise SessionError(CLOSED)

    def rest(self) -> None:
        with self.lock:
            self._rest(wait=True)

    def _rest(self, wait: bool) -> None:
        self.launchers.clear()
        for worker in self.workers:
            worker.rest()
        if self.team is not None:
            self.team.rest(wait)

    def abandon(self) -> bool:
        if self.closed:
            return True
        if self._lock._is_owned() or not self._lock.acquire(blocking=False):
            return False
        try:
            self._close(wait=False)
        finally:
            self._lock.release()
        return True

    def close(self) -> None:
        with self.lock:
            self._close(wait=True)

    def _close(self, wait: bool) -> None:
        if not self.closed:
            self.closed = True
            for worker in self.workers:
                worker.closed = True
            self._rest(wait)


def giving(plan: Plan, launch: Launcher, loaded: Sequence[Loaded]) -> Launcher:
    """Make a launcher that gives operands away. Who fails after it began leaves operands spoiled
    that it may have written to."""
    reuse = [k for _, k in plan.program.reuse]

    def launch_given(operands: Sequence[Operand]) -> list[Operand]:
        before = [known.runs for known in loaded]
        try:
            return launch(operands)
        except BaseException:
            if [known.runs for known in loaded] != before:
                for k in reuse:
                    operands[k].spoiled = True
            raise

    return launch_given if reuse else launch


def measured(known: Sequence[Loaded]) -> Measured | None:
    """Collect what the runs of a plan have shown, on the slowest of these workers."""
    if not known or known[0].best == float("inf"):
        return None
    slowest = max(known, key=lambda w: w.seconds)
    nodes = {id(n): k for k, n in enumerate(slowest.plan.program.graph.nodes)}
    steps: dict[int, float] = {}
    for row in slowest.rows:
        if id(row.node) in nodes:
            steps[nodes[id(row.node)]] = row.seconds
    mean = slowest.seconds / slowest.clocked if slowest.clocked else slowest.best
    how = slowest.replay.how if slowest.replay is not None else ""
    return Measured(slowest.runs, slowest.best, mean, steps, how)


def box_of(source: Any, box: Box) -> np.ndarray[Any, Any]:
    """A box of the array in a file."""
    made: np.ndarray[Any, Any] = empty_aligned([hi - lo for lo, hi in box], source.dtype)
    source.read(made, box)
    return made


@dataclass(eq=False, slots=True)
class _Job:
    """A task for all workers, and how it ended on each."""

    task: Task
    workers: Sequence[Worker]
    begun: list[bool]
    ended: list[tuple[list[Any], BaseException | None] | None]
    bell: SimpleQueue[None] = field(default_factory=SimpleQueue)  # rings when a worker has ended


class _Team:
    """Threads that wait for work, one per worker.

    Ctrl-C may come between any two steps of who waits for them, so nothing that matters is only on the
    way: each worker writes down how a job ended, and a job that it has seen before is no job."""

    def __init__(self, workers: Sequence[Worker], world: ThreadWorld) -> None:
        self.workers = workers
        self.world = world
        self.jobs: list[SimpleQueue[_Job | None]] = [SimpleQueue() for _ in workers]
        self.last: _Job | None = None  # of which something may have to be cleared away
        self.threads: list[threading.Thread] = []
        self.forked = False
        weakref.finalize(self, _dismiss, self.jobs).atexit = False
        _teams.add(self)

    def _start(self) -> None:
        if self.workers[0].closed:
            raise SessionError(CLOSED)
        if self.forked:
            raise SessionError(
                "this process was forked and has no workers; call ost.connect() again."
            )
        for k, jobs in enumerate(self.jobs):
            name = f"ostinato-worker-{k}"
            thread = threading.Thread(target=_serve, args=(k, jobs), name=name, daemon=True)
            thread.start()
            self.threads.append(thread)

    def run(self, task: Task) -> list[list[Any]]:
        """Run a task, and return its results, worker by worker."""
        if len(self.threads) < len(self.jobs):
            self.rest(wait=False)  # of those that were started before somebody interrupted this
            self._start()
        if self.last is not None:
            self._clear(self.last)
        begun = [False] * len(self.workers)
        job = self.last = _Job(task, self.workers, begun, [None] * len(self.workers))
        interrupted = self._done(job)
        found = [e[0] for e in job.ended if e is not None]
        errors = [e[1] for e in job.ended if e is not None and e[1] is not None]
        began = self.world.error  # what the others' errors follow from
        if errors or interrupted is not None:
            self._clear(job)
        self.last = None
        if interrupted is not None:
            raise interrupted
        if errors:
            first = [e for e in errors if not isinstance(e, CommunicatorError)]
            raise first[0] if first else began or errors[0]
        return found

    def _done(self, job: _Job) -> BaseException | None:
        """Have all workers do a job to its end; Ctrl-C if it came meanwhile."""
        interrupted: BaseException | None = None
        while None in job.ended:
            try:
                if interrupted is not None:  # let the workers come to an end first
                    self.workers[0].communicator.abort(interrupted)
                for k, jobs in enumerate(self.jobs):
                    if not job.begun[k]:
                        jobs.put(job)
                while None in job.ended:
                    job.bell.get()
            except KeyboardInterrupt as e:
                interrupted = e
        return interrupted

    def _clear(self, job: _Job) -> None:
        """Forget what a job that failed, or was left, was about to say."""
        self._done(job)
        self.world.recover()
        for worker in self.workers:
            worker.communicator.restart()  # type: ignore[attr-defined]
        self.last = None

    def rest(self, wait: bool) -> None:
        """The threads end; others begin when there is work."""
        before, self.threads = self.threads, []
        _dismiss(self.jobs)
        self.jobs[:] = [SimpleQueue() for _ in self.workers]
        for thread in before if wait else ():
            if thread is not threading.current_thread():
                thread.join(timeout=5)


def _serve(k: int, jobs: SimpleQueue[_Job | None]) -> None:
    """Run jobs in a worker's thread. It knows no team, so that a team of which nobody knows can
    end."""
    begin_to_help()
    while (job := jobs.get()) is not None:
        if not job.begun[k]:
            job.begun[k] = True
            worker = job.workers[k]
            try:
                job.ended[k] = job.task(worker), None
            except BaseException as e:  # reported to the caller
                worker.communicator.abort(e)
                job.ended[k] = [], e
            job.bell.put(None)
            del worker
        del job  # which must not keep arrays alive while this thread waits


def _dismiss(jobs: Sequence[SimpleQueue[_Job | None]]) -> None:
    for queue in jobs:
        queue.put(None)


_teams: Living[_Team] = Living()


def _in_child() -> None:
    """A forked child has none of these threads."""
    for team in _teams:
        team.threads, team.forked = [], True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
