"""Epochs of pipes on workers that are processes: each makes its rows of every batch where they are needed.

The program, or the lead, tells them once what the pipe is. What cannot be told, such as a function of
`map`, or samples in the program's memory, is made by the program and sent, batch by batch; `pipe.explain()`
says so."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import ostinato.io_pipeline.images
import ostinato.io_pipeline.volumes  # noqa: F401  (stages of both, which workers are told of)
from ostinato.errors import OstinatoError
from ostinato.io_pipeline.feed.described import as_data, from_data
from ostinato.io_pipeline.feed.entries import Cut, OnError
from ostinato.io_pipeline.feed.faults import RAISE, Fault
from ostinato.io_pipeline.feed.fields import Fields
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.plain import Undescribed
from ostinato.io_pipeline.feed.share import Share
from ostinato.io_pipeline.feed.slabs import NAMES
from ostinato.ops.core.array import from_operand
from ostinato.ops.core.operand import Operand
from ostinato.planner.passes.layouts import resolve
from ostinato.runtime.crew.crew_engine import CrewEngine

from .sessions import Session, current

__all__ = ["Fed", "Share", "fed", "from_data"]


def fed(pipe: Pipe, epoch: int, start: int, progress: bool) -> Fed | None:
    """An epoch that the session's workers make, if they are processes and know how."""
    session = current()
    engine = session.engine
    cut = next((e.what for e in pipe.entries if isinstance(e.what, Cut)), None)
    if not isinstance(engine, CrewEngine) or engine.size == 1 or cut is None:
        return None
    cursor = pipe.cursor
    held = cursor.held
    if not (isinstance(held, Operand) and held.engine is engine):
        try:
            held = engine.describe(as_data(pipe), pipe)
        except Undescribed as error:
            held = str(error)
        cursor.held = held
    return None if isinstance(held, str) else Fed(pipe, held, session, epoch, start, cut, progress)


class Fed:
    """An iterator over the batches of an epoch, as Epoch is; what it ends, workers end at the next order."""

    def __init__(
        self,
        pipe: Pipe,
        held: Operand,
        session: Session,
        epoch: int,
        start: int,
        cut: Cut,
        progress: bool,
    ) -> None:
        engine = session.engine
        assert isinstance(engine, CrewEngine)
        self._cursor, self._engine, self._size = pipe.cursor, engine, cut.size
        self._portions = portions = pipe.portions(epoch, start)
        self._number, self._left = portions.next, len(portions)
        blocks = session.target.numerics == "any-workers"
        splits = tuple(map(NAMES.index, cut.split))
        split = splits if len(splits) > 1 else splits[0]
        layout = resolve(split, session.target.mesh, shape := (cut.size, 1, 1, 1), blocks)
        layout = layout.with_halos({NAMES.index(k): n for k, n in cut.halos.items()}, shape)
        policies = [e.what.policy.do for e in pipe.entries if isinstance(e.what, OnError)]
        self._has_faults = any(do != RAISE for do in policies)  # which all count together
        self._varies = cut.pad is not None or self._has_faults
        self._feed: Any = engine.feed(
            held, layout, [epoch, start], cut.size, progress, pipe.is_tuned
        )
        self._later = pipe.left_out()
        self._said: Any = None  # of its samples, as data
        self._fields: Fields | None = None
        self._cursor.fed = weakref.ref(self)

    def __iter__(self) -> Fed:
        return self

    def __len__(self) -> int:
        """Batches that are still to come."""
        return self._left

    def __next__(self) -> Any:
        fields = None
        while fields is None:  # of a batch of which all samples were left out
            if self._feed is None:
                raise StopIteration
            if not self._left:
                self.gather()
                self.look()
                self._feed = None
                raise StopIteration
            number = self._number
            try:
                leaves, fields = self._feed.take(number, self._portions.count(number), self._varies)
            except BaseException:
                self._feed = None
                raise
            self._number, self._left = number + 1, self._left - 1
            self._cursor.place = self._number * self._size
        if fields is not self._said:
            self._said, self._fields = fields, Fields.from_data(fields)
        assert self._fields is not None
        if self._later is not None:
            count = len(self._fields.kinds)
            drawn = leaves[count:]
            leaves = self._later.made(self._fields, leaves[:count], drawn, from_operand)
        return self._fields.tree([from_operand(x) if isinstance(x, Operand) else x for x in leaves])

    def look(self) -> None:
        """Learn what their parts cost."""
        if self._feed is not None and not self._engine.closed:
            self._cursor.figures = self._feed.ask("stats")

    def gather(self) -> None:
        """Learn what other workers left out or replaced."""
        if self._feed is None or not self._has_faults:
            return
        for count, faults in self._feed.ask("faults"):
            quarantine = self._cursor.quarantine
            for fault in faults:
                quarantine.add(Fault(**fault))
            quarantine.count += count - len(faults)

    def close(self) -> None:
        """End its threads, on all workers."""
        if self._feed is not None:
            with contextlib.suppress(OstinatoError):
                self.gather()
            self._feed = None
            with contextlib.suppress(OstinatoError):
                self._engine.wait()  # which tells them

    def __enter__(self) -> Fed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
