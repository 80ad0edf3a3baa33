"""Work of a read that several threads share."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable

from ostinato.ops.core.helpers import begin_to_help

MIN_THREADED_BYTES = 1 << 22  # bytes for which it is worth to start threads,
FEWEST_THREADS, MOST_THREADS = 4, 16  # as many as there are processors

Index = tuple[int, ...]


def each_of(
    work: Callable[[Index], None], chunks: Iterable[Index], size: int, threads: int = 0
) -> None:
    """Does it for all chunks, several at a time if there are many bytes in them: codecs and checksums take
    long, and let other threads run. threads: so many, for what waits rather than computes."""
    if size < MIN_THREADED_BYTES and not threads:
        for index in chunks:
            work(index)
        return

    count = threads or min(MOST_THREADS, max(FEWEST_THREADS, len(os.sched_getaffinity(0))))
    shares, errors = _Shares(chunks), dict[int, BaseException]()
    begun: list[threading.Thread] = []

    def work_on() -> None:
        number = -1
        try:
            while not errors:
                number, index = shares.take()
                if index is None:
                    return
                work(index)
        except BaseException as error:
            errors[number] = error

    def help_too(more: int) -> None:
        """In a thread, which begins another one first: nobody waits for more than one to begin."""
        begin_to_help()
        begin(more)
        work_on()

    def begin(more: int) -> None:
        if more and not errors and not shares.is_empty:
            made = threading.Thread(target=help_too, args=(more - 1,), name="ostinato-files")
            with contextlib.suppress(RuntimeError):  # no more threads can be had
                made.start()
                begun.append(made)

    begin(count - 1)
    work_on()
    for thread in begun:  # each has begun the next one before it ends
        thread.join()
    if errors:
        raise errors[min(errors)]  # the same one every time


class _Shares:
    """Chunks to be dealt with."""

    def __init__(self, chunks: Iterable[Index]) -> None:
        self.chunks = iter(chunks)
        self.lock, self.taken, self.is_empty = threading.Lock(), 0, False

    def take(self) -> tuple[int, Index | None]:
        """The next one, and its number; None at the end."""
        with self.lock:
            index = next(self.chunks, None)
            self.is_empty, self.taken = index is None, self.taken + 1
            return self.taken, index
