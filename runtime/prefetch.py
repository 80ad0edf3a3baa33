"""Files read block after block: the next one while the last is worked on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from ostinato.ops.core.helpers import begin_to_help
from ostinato.ops.core.layout import Box

Step = Sequence[tuple[Any, Box]]  # of each file, where a block goes and which it is
BUFFERS = 2  # of each file, used in turn


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
