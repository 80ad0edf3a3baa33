"""Work of a read that several threads share."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable

from ostinato.ops.core.helpers import begin_to_help

LARGE = 1 << 22  # bytes for which it is worth to start threads,
SHARE = 4  # chunks that one of them takes at a time
FEWEST_THREADS, MOST_THREADS = 4, 16  # as many as there are processors

Index = tuple[int, ...]


def each_of(
    work: Callable[[Index], None],
    chunks: Iterable[Index],
    size: int,
    together: Callable[[list[Index]], list[Index]] | None = None,
    threads: int = 0,
) -> None:
    """Does it for all chunks, several at a time if there are many bytes in them: codecs and checksums take
    long, and let other threads run. together: does it for many of them, and gives those that are left.
    threads: so many, one chunk at a time, for what waits rather than computes."""
    if size < LARGE and not threads:
        for index in chunks:
            work(index)
        return

    def share(few: list[Index]) -> None:
        for index in few if together is None else together(few):
            work(index)

    count = threads or min(MOST_THREADS, max(FEWEST_THREADS, len(os.sched_getaffinity(0))))
    shares, errors = _Shares(chunks, 1 if threads else SHARE), dict[int, BaseException]()
    begun: list[threading.Thread] = []

    def work_on() -> None:
        number = -1
        try:
            while not errors:
                number, few = shares.take()
                if not few:
                    return
                share(few)
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
    """Chunks to be dealt with, a few at a time."""

    def __init__(self, chunks: Iterable[Index], each: int) -> None:
        self.chunks, self.each = iter(chunks), each
        self.lock, self.taken, self.is_empty = threading.Lock(), 0, False

    def take(self) -> tuple[int, list[Index]]:
        """The next few, and their number; none at the end."""
        with self.lock:
            few = list(itertools.islice(self.chunks, self.each))
            self.is_empty, self.taken = not few, self.taken + 1
            return self.taken, few
