"""Reads and functions of users that may hang, as those of a network do, and files that take long to decode:
each has so many seconds.

A thread cannot be ended from outside. So the work is done by a thread beside the one that waits for it; one
that does not answer in time is left behind, and ends when it answers. So many may hang and no more; from then
on each try is a fault until one of them answers. Functions in processes of their own need none of this: a
process can be ended (processes.py)."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from ostinato.ops.core.user_line import short

from ostinato.errors import DataFileError, OstinatoError, SampleError

from .fields import Fields
from .processes import InProcesses
from .samples import Samples, Through

MOST_STUCK = 32  # threads that wait for an answer which is late
IDLE = 0.5  # seconds after which a thread that nobody needs ends


class LateError(Exception):
    """There is no answer; its text says so."""


class _Call:
    """Work, and what came of it."""

    __slots__ = ("answer", "error", "is_late", "lock", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work: Callable[[], Any] | None = work
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_late = False
        self.lock = threading.Lock()
        self.lock.acquire()  # until there is an answer


class _Worker(threading.Thread):
    """Works for one other thread at a time. A daemon, since what hangs must not keep the interpreter."""

    def __init__(self, home: Calls) -> None:
        super().__init__(name="ostinato-feed-timed", daemon=True)
        self.home, self.calls = home, SimpleQueue[_Call]()

    def run(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=IDLE)
            except Empty:
                if self.home.leaves(self):
                    return
                continue
            try:
                assert call.work is not None
                call.answer = call.work()
            except BaseException as error:
                call.error = error
            call.work = None
            call.lock.release()
            if self.home.is_back(self, call):
                return
            del call


class Calls:
    """Threads for work that may hang: those that wait for some, and how many are late."""

    def __init__(self) -> None:
        self.free: deque[_Worker] = deque()
        self.stuck = 0
        self.lock = threading.Lock()

    def call_within(self, seconds: float, work: Callable[[], Any]) -> Any:
        """Call this in a thread, for so many seconds at the most: then it is a LateError."""
        worker = self._worker()
        if worker is None:
            raise LateError(f"no try, since {MOST_STUCK} calls hang already")
        call = _Call(work)
        worker.calls.put(call)
        del worker, work
        if not call.lock.acquire(timeout=seconds) and self._gives_up(call):
            raise LateError(f"no answer within {seconds:g} s")
        if call.error is not None:
            raise call.error
        return call.answer

    def _worker(self) -> _Worker | None:
        """One that is free; None if too many hang."""
        with self.lock:
            if self.stuck >= MOST_STUCK:
                return None
            if self.free:
                return self.free.pop()
        made = _Worker(self)
        made.start()
        return made

    def is_back(self, worker: _Worker, call: _Call) -> bool:
        """Work is done; whether it was given up meanwhile, and so is its thread."""
        with self.lock:
            self.stuck -= call.is_late
            if not call.is_late:
                self.free.append(worker)
            return call.is_late

    def _gives_up(self, call: _Call) -> bool:
        """Whether an answer is really missing."""
        with self.lock:
            if call.work is None:
                return False
            call.is_late = True
            self.stuck += 1
            return True

    def leaves(self, worker: _Worker) -> bool:
        """Nobody needed it; whether nobody does just now."""
        with self.lock:
            try:
                self.free.remove(worker)
            except ValueError:
                return False
            return True


class Timed(Through):
    """A source of which each read has so many seconds."""

    def __init__(self, source: Samples, seconds: float) -> None:
        self.source, self.seconds = source, seconds
        self.fields = source.fields
        self.kinds = getattr(source, "kinds", None)
        self._calls = Calls()

    def read(self, index: int) -> tuple[list[Any], Fields]:
        try:
            found: tuple[list[Any], Fields]
            found = self._calls.call_within(self.seconds, partial(self.source.read, index))
        except LateError as error:
            raise self._late(index, str(error)) from None
        return found

    def _late(self, index: int, got: str) -> OstinatoError:
        needed = "a source that answers, or more time by on_error(timeout=...)"
        return DataFileError.because(self.name(index), got=got, needed=needed)

    parts = Samples.parts  # a read of a part would have no time

    def identity(self) -> str:
        return self.source.identity()


# -- functions of users ------------------------------------------------------------------------
def timely(function: Callable[..., Any], seconds: float | None) -> Callable[..., Any]:
    """The function, which fails if it does not return within so many seconds."""
    if seconds is None:
        return function
    if isinstance(function, InProcesses):
        return partial(function.call_within, seconds)
    calls = Calls()

    def call(*given: Any) -> Any:
        context = contextvars.copy_context()
        try:
            return calls.call_within(seconds, lambda: context.run(function, *given))
        except LateError as error:
            got = f"{error} (a thread cannot be ended: it stays)"
            needed = "more time by on_error(timeout=...)"
            do = "processes=True ends what hangs"
            raise SampleError.because(called(function), got=got, needed=needed, do=do) from None

    return call


def called(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    return (
        name if code is None else f"{name} ({short(f'{code.co_filename}:{code.co_firstlineno}')})"
    )
