"""Files read and written block after block: the next one is read and the last one written while one is
worked on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from ostinato.ops.core import activity
from ostinato.ops.core.helpers import begin_to_help
from ostinato.ops.core.layout import Box
from ostinato.planner.passes.memory import BUFFERS

Step = Sequence[tuple[Any, Box]]  # of each file, where a block goes and which it is


class ReadAhead:
    """The blocks of one run, in order; a thread reads them as buffers become free."""

    def __init__(self, steps: Sequence[Step], sources: Sequence[Any]) -> None:
        self.steps = steps
        self.sources = sources
        self.free = threading.Semaphore(BUFFERS)
        self.ready: SimpleQueue[Any] = SimpleQueue()
        self.taken = 0
        self.stopped = False
        self.thread = threading.Thread(target=self._read, name="ostinato-reader", daemon=True)
        self.thread.start()

    def _read(self) -> None:
        begin_to_help()
        try:
            for step in self.steps:
                self.free.acquire()
                if self.stopped:
                    return
                for source, (out, box) in zip(self.sources, step, strict=True):
                    with activity.task("read", "a block", minor=True):
                        source.read(out, box)
                self.ready.put([out for out, _ in step])
        except BaseException as error:  # raised where the block is wanted
            self.ready.put(error)

    def take(self) -> list[Any]:
        """The next block of each file. The one before is given back."""
        if self.taken:
            self.free.release()
        self.taken += 1
        found: Any = self.ready.get()
        if isinstance(found, BaseException):
            raise found
        blocks: list[Any] = found
        return blocks

    def close(self) -> None:
        """Stop, and wait until nothing is written any more."""
        self.stopped = True
        self.free.release()
        self.thread.join()


class WriteBehind:
    """What the turns of one run write, in order; a thread writes a block while the next one is made in
    another buffer. `steps`: of each turn, the buffers that it makes its blocks in."""

    def __init__(self, steps: Sequence[Sequence[Any]]) -> None:
        self.steps = steps
        self.changed = threading.Condition()
        self.jobs: deque[tuple[int, Callable[[], object]]] = deque()  # the first one is going on
        self.turn = -1
        self.error: BaseException | None = None
        self.stopped = False
        self.thread: threading.Thread | None = None

    def take(self) -> Sequence[Any]:
        """The buffers of the next turn, as soon as what they had before is written."""
        self.turn += 1
        self._wait(self.turn - BUFFERS)
        return self.steps[self.turn]

    def put(self, job: Callable[[], object]) -> None:
        """Write what this turn has made, when the turns before are written."""
        with self.changed:
            self.jobs.append((self.turn, job))
            self.changed.notify_all()
        if self.thread is None:
            thread = threading.Thread(target=self._write, name="ostinato-writer", daemon=True)
            thread.start()
            self.thread = thread

    def finish(self) -> None:
        """Return when all is written."""
        self._wait(self.turn)

    def _wait(self, turn: int) -> None:
        """Until what this turn and those before have made is written, or something was not."""
        with self.changed:
            while self.error is None and self.jobs and self.jobs[0][0] <= turn:
                self.changed.wait()
            if self.error is not None:
                raise self.error

    def _write(self) -> None:
        begin_to_help()
        while (job := self._next()) is not None:
            try:
                with activity.task("write", "a block", minor=True):
                    job()
            except BaseException as error:  # raised where a buffer is wanted, or at the end
                self.error = error
            with self.changed:
                if self.jobs:
                    self.jobs.popleft()
                self.changed.notify_all()

    def _next(self) -> Callable[[], object] | None:
        with self.changed:
            while not self.jobs and not self.stopped:
                self.changed.wait()
            return None if self.stopped or self.error is not None else self.jobs[0][1]

    def close(self) -> None:
        """Stop, and wait until nothing is written any more."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
        if self.thread is not None:
            self.thread.join()
