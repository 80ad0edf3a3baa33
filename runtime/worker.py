"""A worker: one arena, and the plans that it has bound.

An iteration is `step(plan, operands)`, which gives the results. Their buffers are kept by the plan
that made them, and used again once nobody else refers to them: so a plan that runs again and again
allocates nothing."""

from __future__ import annotations

import contextvars
import os
import platform
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ostinato.ops.core import activity
from ostinato.ops.core.device import Device, GraphCapture
from ostinato.ops.core.garbage import seldom_collected
from ostinato.ops.core.notes import Notes
from ostinato.ops.core.signals import Living
from ostinato.ops.core.spec import Spec, is_own, left, no_memory
from ostinato.ops.cpu.threads import follow, most_threads
from ostinato.planner.plan import Plan, folder_of
from ostinato.planner.title import title

from ostinato.errors import OstinatoError, SessionError

from .bind import bind
from .bound import Bound, Row, blamed, calls_blas
from .graph_capture import Replay, has_messages, why_not
from .messages.communicator import Communicator
from .packed_weights import Prepacked
from .profile_tape import Tape
from .run_progress import frame_of

KEPT = 4  # buffers of a result at the most
CLOCKED = 16  # the first runs are measured, then every so many, or all that are slow
SLOW = 100e-6  # seconds
LONG_RUN_SECONDS = 1e-3  # of runs that may once take a second, which somebody may watch
TIMED = 3  # the run of a plan that is timed step by step
WORTH_TIMING = 20e-6  # seconds; shorter runs are not
CLOSED = "the session was closed; call ost.connect() for a new one."
SHRINK = 64  # plans that were dropped between two looks at the arena's size
MAX_TIMED_NODES = 2000  # nodes; longer plans are not timed step by step

references = sys.getrefcount


def _unused() -> int:
    """The count of references to a buffer that only a list of kept ones has, seen from a loop."""
    kept = [object()]
    for buffer in kept:
        return references(buffer)
    raise AssertionError


UNUSED = _unused()


@dataclass(slots=True, weakref_slot=True, eq=False)
class Result:
    """What a plan makes on a worker, and the buffers that it made it in."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kept: list[Any] = field(default_factory=list)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Loaded:
    """A plan on this worker. Who launches it may keep it for longer than the cache of plans does."""

    plan: Plan
    bound: Bound | None = None
    talks: Communicator | None = None  # who does so in its runs
    replay: Replay | None = None  # on devices that repeat runs as one call
    results: tuple[Result, ...] = ()
    reuse: dict[int, int] = field(default_factory=dict)  # results over operands given away
    runs: int = 0
    first: float = 0.0  # seconds of the first run, without the wait for others that compile yet
    resting: int = 0  # runs when another plan was bound last
    clocked: int = 0  # later runs that were measured, and what they took together
    seen: int = 0  # runs when the cache of plans last asked
    seconds: float = 0.0
    talking: float = 0.0  # of those seconds, in communication
    best: float = float("inf")
    multiplies: bool = field(init=False)  # by NumPy's library, perhaps
    rows: list[Row] = field(default_factory=list)  # its operations, as timed in one run
    # runs to
    going: deque[tuple[bool, Any, Any, float, Sequence[Row]]] = field(default_factory=deque)
    # which the device has not come yet: whether it is the first, marks of begin and end, communication,
    # and its operations if they were timed

    def __post_init__(self) -> None:
        self.multiplies = calls_blas(self.plan.program)

    def clock(self, device: Device) -> None:
        """Record what runs took that are done."""
        while self.going:
            is_first, begin, end, talking, rows = self.going[0]
            took = device.seconds(begin, end)
            if took is None:
                return
            self.going.popleft()
            for row in rows:
                row.settle(device)
            if is_first:
                self.first = took - talking
            else:
                self.seconds += took
                self.talking += talking
                self.clocked += 1
            self.best = min(self.best, took)

    def unbind(self) -> None:
        """It is bound anew before its next run."""
        self.let_go()
        self.bound = self.talks = self.replay = None

    def let_go(self) -> None:
        """Drop what its products keep of operands, and what it has elsewhere."""
        if self.bound is not None:
            for operand in self.bound.stays:
                operand.forget()
            if self.bound.away is not None:
                self.bound.away.let_go()


class Worker:
    def __init__(
        self, rank: int, communicator: Communicator, device: Device, threads: int | None = None
    ) -> None:
        self.rank = rank
        self.asked = threads
        self.communicator = communicator
        self.device = device
        self.plans: dict[str, Loaded] = {}
        self.kept_plans: Living[Loaded] = Living()  # by whomever
        self.arena: Any = device.arena(0)
        self.allocations = 0
        self.awake: set[Loaded] = set()  # that have buffers, or keep operands
        self.unloaded = 0
        self.closed = False
        self.capture: GraphCapture | None = None
        self.last_try = False  # of a run that had too little memory
        self.tape: Tape | None = None  # of who wants to know when what ran
        self.kept = Prepacked()
        self.notes = None if device.is_host else Notes(device)  # what kernels found wrong
        self.restart()
        _workers.add(self)

    @property
    def threads(self) -> int:
        """Its share of the threads that this process may have, or was asked to have."""
        most = most_threads()
        return max(1, min(most, self.asked or most) // self.communicator.beside)

    def state(self) -> dict[str, Any]:
        """About this worker, for people."""
        return {
            "rank": self.rank,
            "host": platform.node(),
            "process": os.getpid(),
            "threads": self.threads,
            "device": self.device.label,
            "messages": self.communicator.how,
            "cpu_seconds": time.process_time(),
            "arena_bytes": int(self.arena.size),
            "kept_bytes": self.kept.bytes,
            "memory": self.device.memory(),
            "plans": {plan: loaded.runs for plan, loaded in self.plans.items()},
        }

    def load(self, plan: Plan) -> None:
        self.kept_plans.add(self.plans.setdefault(plan.id, Loaded(plan)))

    def unload(self, plan_id: str) -> None:
        if (loaded := self.plans.pop(plan_id, None)) is not None:
            self._still(loaded)
            self.unloaded += 1
            if self.unloaded % SHRINK == 0:
                self._shrink()

    def _still(self, loaded: Loaded) -> None:
        loaded.unbind()
        for result in loaded.results:
            result.kept.clear()
        self.awake.discard(loaded)

    def _shrink(self) -> None:
        """The arena of what is bound, where that is much less than of what was."""
        bound = [p for p in self.kept_plans if p.bound is not None]
        needed = max((p.plan.program.arena_bytes for p in bound), default=0)
        if needed < self.arena.size // 2:
            self.arena = self.device.arena(needed)
            for plan in bound:
                plan.unbind()

    def rest(self) -> None:
        """Give all memory back; plans are bound anew when they run again."""
        for loaded in self.kept_plans:
            self._still(loaded)
        self.plans.clear()
        self.arena = self.device.arena(0)
        self.capture = None

    def restart(self) -> None:
        """After a failure: bound plans may have been in the middle of a run, as of a thread that a
        forked child has not."""
        self.context = contextvars.Context()
        self.context.run(np.seterr, all="ignore")
        self.context.run(_within.set, weakref.ref(self))
        for loaded in self.kept_plans:
            loaded.unbind()

    def record(self) -> None:
        """Write down from now on when which operation ran."""
        self.tape = Tape(self.device, self.rank)
        self.restart()

    def recorded(self) -> dict[str, Any]:
        """End the recording, and return it."""
        tape, self.tape = self.tape, None
        self.restart()
        return tape.as_data() if tape is not None else {}

    def _bind(self, loaded: Loaded, timed: bool = False) -> Bound:
        program = loaded.plan.program
        if self.closed:
            raise SessionError(CLOSED)
        self.device.check_process()
        self._rest()
        if program.arena_bytes > self.arena.size:
            # by a quarter at least, so that a row of growing plans is not bound anew again and again
            least = self.arena.size + self.arena.size // 4
            try:
                self.arena = self.device.arena(max(program.arena_bytes, least))
            except MemoryError:
                self._make_room()
                try:
                    self.arena = self.device.arena(program.arena_bytes)
                except MemoryError:
                    what, free = "intermediates", self.device.free_bytes()
                    raise _no_memory(loaded, program.peak_node, what, free) from None
            for other in self.kept_plans:  # they were bound to the old one
                other.unbind()
        if not loaded.results:
            loaded.results = tuple(Result(*_local(s, self.rank)) for s in program.graph.out_specs)
        loaded.reuse = dict(program.reuse)
        loaded.talks = self.communicator.ready(loaded.plan.target.numerics != "fast")
        if timed:
            return self._bound(loaded, timed=True)
        loaded.replay = self._replay(loaded)
        return self._bound(loaded)

    def _bound(self, loaded: Loaded, timed: bool = False) -> Bound:
        """In this arena, and with what repeats its runs."""
        replay = None if timed else loaded.replay
        assert loaded.talks is not None
        with seldom_collected():
            bound = bind(
                loaded.plan.program,
                self.rank,
                loaded.talks,
                self.device,
                self.arena,
                f"<plan {loaded.plan.id}>",
                self.threads,
                timed or self.tape is not None,
                self.tape.row if self.tape is not None else None,
                self.notes,
                replay.parts if replay is not None else None,
                folder_of(loaded.plan.target),
            )
        if replay is not None:
            replay.renew(bound)
        return bound

    def _replay(self, loaded: Loaded) -> Replay | None:
        """Make a function that repeats its runs as one call; None where the device does not, or
        steps are timed."""
        if self.tape is not None:
            return None
        self.capture = self.capture or self.device.graph_capture()
        if self.capture is None:
            return None
        program, talks = loaded.plan.program, loaded.talks
        assert talks is not None
        why, apart, counted = why_not(program, talks, self.capture.unconditional)
        together = talks.in_graphs and not why and has_messages(program, talks.size)
        agree = talks.agree if together else None
        name = f"<plan {loaded.plan.id}>"
        return Replay(program, self.device, self.capture, why, apart, counted, name, agree)

    def _rest(self) -> None:
        """Plans that did not run since this was done last let go of their buffers."""
        for plan in tuple(self.awake):
            if plan.runs == plan.resting:
                for result in plan.results:
                    result.kept.clear()
                plan.let_go()
                self.awake.discard(plan)
            plan.resting = plan.runs

    def step(self, loaded: Loaded, arrays: list[Any]) -> list[Any]:
        """Run a plan on this worker's parts of the operands; its parts of the results, or an
        error."""
        follow()
        bound = loaded.bound
        if bound is None:
            bound = loaded.bound = self._bind(loaded)
        elif loaded.replay is not None and loaded.replay.is_stale:
            bound = loaded.bound = self._bound(loaded)
        loaded.runs += 1
        first = len(arrays)
        short: BaseException | None = None
        for result in loaded.results:
            if (
                loaded.reuse
                and (k := len(arrays) - first) in loaded.reuse
                and is_own(given := arrays[loaded.reuse[k]])
            ):
                arrays.append(given)
                if self.kept.found:
                    self.kept.changes(id(arrays[-1]))
                continue
            for buffer in result.kept:
                if references(buffer) == UNUSED:
                    arrays.append(buffer)
                    break
            else:
                try:
                    arrays.append(self._buffer(result, loaded))
                except MemoryError:
                    short = self._no_result(loaded, len(arrays) - first)
                    break
        if short is not None:
            del arrays[first:], bound
            return self._once_more(loaded, arrays, short)
        if bound.stays:
            self._look(bound, arrays, loaded)
        call = bound.call if loaded.replay is None else loaded.replay.run
        clocked = loaded.runs < CLOCKED or not loaded.runs % CLOCKED or loaded.best > SLOW
        if clocked:
            talking = self.communicator.talking
            if loaded.runs == TIMED and (timed := self._timing(loaded, bound)) is not bound:
                bound, call = timed, timed.call
            long = loaded.runs <= CLOCKED or loaded.best > LONG_RUN_SECONDS
            if activity.listeners and long and not self.rank:
                call = self._watched(loaded, bound, call)
            start = self.device.mark()
        try:
            self.context.run(call, *arrays)
        except BaseException as error:
            if self.communicator.size == 1 and _within.get()() is self:
                return self._beside(loaded.plan, arrays[:first])
            if bound.away is not None:
                bound.away.settle()
            blamed = self._blamed(error, loaded, bound)
            if not isinstance(error, MemoryError):
                if blamed is error:
                    raise
                raise blamed from error
            short = blamed
            self.last_try = self.last_try or self.communicator.size > 1 or bool(loaded.reuse)
        if short is not None:
            del arrays[first:], bound, call
            return self._once_more(loaded, arrays, short)
        if clocked:
            end, talking = self.device.mark(), self.communicator.talking - talking
            loaded.going.append((loaded.runs == 1, start, end, talking, bound.rows))
            loaded.clock(self.device)
        return arrays[first:]

    def _blamed(self, error: BaseException, loaded: Loaded, bound: Bound) -> BaseException:
        """The error of a run as the user should see it."""
        more = ""
        if isinstance(error, MemoryError):
            more = f", in plan {loaded.plan.id[:8]}{left(self.device.free_bytes())}"
        return bound.blame(error, f"<plan {loaded.plan.id}>", more)

    def look(self) -> None:
        """An error if a run found something wrong of which nobody knows yet."""
        found = self.notes.look() if self.notes is not None else None
        if found is not None:
            raise blamed(*found)

    def _no_result(self, loaded: Loaded, k: int) -> BaseException:
        graph = loaded.plan.program.graph
        made = graph.producers[graph.outputs[k]]
        return _no_memory(loaded, made, "a result", self.device.free_bytes())

    def _make_room(self) -> None:
        """Drop what is kept for later runs, as there is too little memory for this one. All plans
        are bound anew."""
        for loaded in self.kept_plans:
            self._still(loaded)
        self.arena, self.capture = self.device.arena(0), None
        self.device.give_back()

    def _once_more(self, loaded: Loaded, arrays: list[Any], error: BaseException) -> list[Any]:
        """Run a plan for which there was too little memory with all there is."""
        self._make_room()
        if self.last_try:  # or it has begun to write to what it was given, or to talk to others
            self.last_try = False
            arrays.clear()
            raise error
        loaded.runs -= 1
        self.last_try = True
        try:
            return self.step(loaded, arrays)
        finally:
            self.last_try = False

    def _beside(self, plan: Plan, arrays: list[Any]) -> list[Any]:
        """Run a plan within a run, as finalizers and handlers of signals do: the arena is in use."""
        other = Worker(self.rank, self.communicator, self.device, self.asked)
        other.load(plan)
        return other.step(other.plans[plan.id], arrays)

    def _watched(
        self, loaded: Loaded, bound: Bound, run: Callable[..., None]
    ) -> Callable[..., None]:
        """Make the function tell, for who asks meanwhile, how far it is."""
        name, thread = f"<plan {loaded.plan.id}>", threading.get_ident()

        def look() -> tuple[float | None, str]:
            frame = frame_of(name, thread)
            return bound.map.share(frame) if frame is not None else (None, "")

        def call(*arrays: Any) -> None:
            what = f"running {loaded.plan.called or 'pending operations'}"
            with activity.task(activity.RUN, what, look=look):
                run(*arrays)

        return call

    def _look(self, bound: Bound, arrays: list[Any], loaded: Loaded) -> None:
        """Products keep operands that were the same a few times, which then no plan writes over
        again."""
        for operand in bound.stays:
            array = arrays[operand.number]
            if not operand.is_due(array):
                continue
            for result in [r for plan in self.awake for r in plan.results]:
                result.kept[:] = [buffer for buffer in result.kept if buffer is not array]
            self.awake.add(loaded)
            operand.keep(array, self.kept)

    def _buffer(self, result: Result, loaded: Loaded) -> Any:
        """A new one, that stays in the place of the oldest."""
        made = self.device.empty(result.shape, result.dtype)
        self.allocations += 1
        self.awake.add(loaded)
        if len(result.kept) == KEPT:
            del result.kept[0]
        result.kept.append(made)
        return made

    def _timing(self, loaded: Loaded, bound: Bound) -> Bound:
        """Bind the function with a clock between its steps, for this one run."""
        if self.tape is not None:
            return bound
        wanted = (
            loaded.best >= WORTH_TIMING and len(loaded.plan.program.graph.nodes) <= MAX_TIMED_NODES
        )
        agree = loaded.replay.agree if loaded.replay is not None else None
        if not (wanted if agree is None else all(agree(int(wanted)))):
            return bound
        if loaded.replay is not None or loaded.talks is None:
            if bound.away is not None:  # it takes as much room as this one
                bound.away.let_go()
            timed = self._bind(loaded, timed=True)
        else:
            timed = bound.timed(f"<plan {loaded.plan.id}>", loaded.talks)
        loaded.rows = timed.rows
        return timed


_workers: Living[Worker] = Living()
_within: contextvars.ContextVar[Callable[[], Worker | None]] = contextvars.ContextVar(
    "ostinato_worker", default=lambda: None
)  # whose run this is


def bind_anew() -> None:
    """Plans that are bound are so no more. A forked child does that, as it has one thread and they were
    made for more; and who changes what is looked for."""
    for worker in _workers:
        worker.restart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=bind_anew)


def _no_memory(loaded: Loaded, k: int, what: str, free: int | None) -> OstinatoError:
    """At the operation that needs most, or makes what there is no memory for."""
    graph = loaded.plan.program.graph
    if what == "intermediates":
        size = loaded.plan.program.arena_bytes
    else:
        size = graph.nodes[k].specs[0].nbytes
    name = f"plan {loaded.plan.id[:8]}"
    if k < 0:
        return no_memory(size, what, name, free=free)
    return no_memory(size, f"{what} of {name}", title(graph.nodes[k]), graph.nodes[k].line, free)


def _local(spec: Spec, rank: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    assert spec.layout is not None
    return spec.layout.local_shape(spec.shape, rank), spec.dtype
