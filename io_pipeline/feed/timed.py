"""A source whose reads may take so long and no longer.

A system call that hangs cannot be called back. So samples are read in threads of their own: if one does not
answer in time, its sample is a fault, and another thread takes its place. Whatever it reads in the end is
dropped. So many may hang and no more; from then on each read is a fault until one of them answers."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

from ostinato.errors import DataFileError, OstinatoError

from .fields import Fields
from .samples import Samples

MOST_STUCK = 32  # threads that wait for an answer which is late
IDLE = 0.5  # seconds after which a thread that nobody needs ends


class _Call:
    """A read, and what came of it."""

    __slots__ = ("answer", "error", "index", "is_late", "lock")

    def __init__(self, index: int) -> None:
        self.index = index
        self.answer: tuple[list[Any], Fields] | None = None
        self.error: BaseException | None = None
        self.is_late = False
        self.lock = threading.Lock()
        self.lock.acquire()  # until there is an answer


class _Reader(threading.Thread):
    """Reads for one other thread at a time. A daemon, since what hangs must not keep the interpreter."""

    def __init__(self, home: _Home) -> None:
        super().__init__(name="ostinato-feed-read", daemon=True)
        self.home, self.calls = home, SimpleQueue[_Call]()

    def run(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=IDLE)
            except Empty:
                if self.home.leaves(self):
                    return
                continue
            source = self.home.source()
            try:
                if source is None:
                    raise RuntimeError("nobody waits for this sample")
                call.answer = source.read(call.index)
            except BaseException as error:
                call.error = error
            del source
            call.lock.release()
            if self.home.is_back(self, call):
                return
            del call


class _Home:
    """The readers of one source: those that wait for work, and how many are late."""

    def __init__(self, source: Samples) -> None:
        self.source = weakref.ref(source)
        self.free: deque[_Reader] = deque()
        self.stuck = 0
        self.lock = threading.Lock()

    def reader(self) -> _Reader | None:
        """One that is free; None if too many hang."""
        with self.lock:
            if self.free:
                return self.free.pop()
            if self.stuck >= MOST_STUCK:
                return None
        made = _Reader(self)
        made.start()
        return made

    def is_back(self, reader: _Reader, call: _Call) -> bool:
        """A read is done; whether it was given up meanwhile, and so is its thread."""
        with self.lock:
            self.stuck -= call.is_late
            if not call.is_late:
                self.free.append(reader)
            return call.is_late

    def gives_up(self, call: _Call) -> bool:
        """Whether an answer is really missing."""
        with self.lock:
            if call.answer is not None or call.error is not None:
                return False
            call.is_late = True
            self.stuck += 1
            return True

    def leaves(self, reader: _Reader) -> bool:
        """Nobody needed it; whether nobody does just now."""
        with self.lock:
            try:
                self.free.remove(reader)
            except ValueError:
                return False
            return True


class Timed(Samples):
    """A source of which each read has so many seconds."""

    def __init__(self, source: Samples, seconds: float) -> None:
        self.source, self.seconds = source, seconds
        self.fields = source.fields
        self.kinds = getattr(source, "kinds", None)
        self._home = _Home(source)

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> tuple[list[Any], Fields]:
        reader = self._home.reader()
        if reader is None:
            raise self._late(index, f"no try, since {MOST_STUCK} reads hang already")
        call = _Call(index)
        reader.calls.put(call)
        del reader
        if not call.lock.acquire(timeout=self.seconds) and self._home.gives_up(call):
            raise self._late(index, f"no answer within {self.seconds:g} s")
        if call.error is not None:
            raise call.error
        assert call.answer is not None
        return call.answer

    def _late(self, index: int, got: str) -> OstinatoError:
        needed = "a source that answers, or more time by on_error(timeout=...)"
        return DataFileError.because(self.name(index), got=got, needed=needed)

    def identity(self) -> str:
        return self.source.identity()

    def name(self, index: int) -> str:
        return self.source.name(index)

    def made_of(self, index: int) -> str:
        return self.source.made_of(index)

    def inner(self) -> Sequence[Samples]:
        return (self.source,)
