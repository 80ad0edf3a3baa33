"""Files read and written block after block: the next one is read and the last one written while one is
worked on.

What several operands show of one file, as windows on it do that are some rows apart, is read once: the
rest is copied, from what others have in the same turn and had in the one before."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core import activity
from ostinato.ops.core.helpers import begin_to_help
from ostinato.ops.core.layout import Box
from ostinato.planner.passes.memory import BUFFERS

Step = Sequence[tuple[Any, Box]]  # of each file, where a block goes and which it is


class Piece(NamedTuple):
    """Rows that are in memory: of what, the first and the last but one."""

    what: Hashable
    first: int
    end: int
    rows: Any


class ReadAhead:
    """The blocks of one run, in order; a thread reads them as buffers become free."""

    def __init__(self, steps: Sequence[Step], sources: Sequence[Any]) -> None:
        self.steps = steps
        self.sources = sources
        self.shared = [shown or _overlaps(steps, k) for k, shown in enumerate(_shared(sources))]
        self.in_turn = any(s.in_turn for s, k in zip(sources, self.shared, strict=True) if k)
        self.pieces: list[Piece] = []  # of the turn before
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
                with activity.task("read", "a block", minor=True):
                    self._fill(step)
                self.ready.put([out for out, _ in step])
        except BaseException as error:  # raised where the block is wanted
            self.ready.put(error)

    def _fill(self, step: Step) -> None:
        """The last rows first: what is before them is there from the turn before. Of what is made in order
        the first ones: nothing is made twice then, either."""
        made: list[Piece] = []
        wanted: list[tuple[int, Any, int, Piece, Box]] = []
        for source, is_shared, (out, box) in zip(self.sources, self.shared, step, strict=True):
            if not is_shared:
                source.read(out, box)
                continue
            (at, end), *rest = box
            for key, first, last in source.whose_rows(at, end):
                rows = out[at - box[0][0] : at - box[0][0] + last - first]
                piece = Piece((key, *rest), first, last, rows)
                wanted.append((last, source, at, piece, tuple(rest)))
                at += last - first
        for _, source, at, piece, inner in sorted(
            wanted, key=lambda w: w[3].first if self.in_turn else -w[0]
        ):
            for lo, hi in _copied(piece, (*self.pieces, *made)):
                shift = at - piece.first
                source.read(
                    piece.rows[lo - piece.first : hi - piece.first],
                    ((lo + shift, hi + shift), *inner),
                )
            made.append(piece)
        self.pieces = made

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


def _shared(sources: Sequence[Any]) -> list[bool]:
    """Which of these show something of a file that others show, too."""
    if len(sources) < 2:
        return [False] * len(sources)
    keys = [{key for key, *_ in s.whose_rows(0, s.shape[0])} if s.shape else set() for s in sources]
    count = Counter(key for each in keys for key in each)
    return [any(count[key] > 1 for key in each) for each in keys]


def _overlaps(steps: Sequence[Step], k: int) -> bool:
    """Whether blocks of one file begin with rows of the blocks before."""
    boxes = [step[k][1] for step in steps]
    return any(a and b[0][0] < a[0][1] and b[0] != a[0] for a, b in itertools.pairwise(boxes))


def _copied(piece: Piece, known: Sequence[Piece]) -> list[tuple[int, int]]:
    """Copies what is known of some rows; says which are not."""
    gaps = [(piece.first, piece.end)]
    for other in known:
        if other.what != piece.what:
            continue
        left: list[tuple[int, int]] = []
        for lo, hi in gaps:
            a, b = max(lo, other.first), min(hi, other.end)
            if a >= b:
                left.append((lo, hi))
                continue
            own, theirs = (p.rows[a - p.first : b - p.first] for p in (piece, other))
            np.copyto(own, theirs)
            left += [gap for gap in ((lo, a), (b, hi)) if gap[0] < gap[1]]
        gaps = left
    return gaps


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
