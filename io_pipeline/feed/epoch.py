"""Who iterates over an epoch: batches in order, what went wrong, where it is."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ostinato.ops.core.tracebacks import shorten

from ostinato.errors import CommunicatorError, SampleError, SessionError

from ..tuner.drive import Drive
from .batch_arrays import LATE, converter
from .batches import Batch, Recipe, form_of_rows
from .entries import Cut
from .executor import Work
from .faults import RAISE, Quarantine, Rate
from .fields import Fields
from .filtered import FilteredWork
from .portions import Portions
from .progress_line import Line
from .slabs import NAMES, axes_of, first_axis
from .slots import Slots


@dataclass
class Cursor:
    """Where who iterates over a pipe is."""

    epoch: int = 0
    place: int = 0  # samples of the epoch that were handed out, to all workers together
    beyond: set[int] = field(default_factory=set)  # batches behind it that were, too
    is_restored: bool = False  # the next epoch of this number begins there
    quarantine: Quarantine = field(default_factory=Quarantine)
    work: Work | None = None  # the last one, for its figures
    source: str | None = None  # its identity, once somebody asked for it
    drive: Drive | None = None  # the tuner
    has_begun: bool = False
    held: Any = None  # what workers elsewhere know of it, or why they do not, in words
    fed: weakref.ref[Any] | None = None  # the epoch that they make, if anybody takes it
    figures: list[dict[str, Any]] = field(default_factory=list)  # theirs, when they were asked last
    slots: Slots = field(default_factory=Slots)  # memory for batches, from epoch to epoch

    def took(self, number: int, size: int) -> None:
        """A batch was handed out, perhaps ahead of others."""
        self.beyond.add(number)
        while self.place // size in self.beyond:
            self.beyond.discard(self.place // size)
            self.place = (self.place // size + 1) * size


class Epoch:
    """An iterator over the batches of an epoch. `close` ends its threads; so does letting go of it."""

    def __init__(
        self,
        recipe: Recipe,
        portions: Portions,
        epoch: int,
        *,
        cursor: Cursor,
        cut: Cut,
        target: str,
        count: int | None,
        again: Callable[[int], Recipe],
        progress: bool = False,
    ) -> None:
        """count: of batches, if that is known. again: the recipe with the stages that may move left to
        who takes batches, or not."""
        self._convert = converter(target) if recipe.batched is not None else None
        self._cursor, self._portions, self._cut = cursor, portions, cut
        self._is_late, self._again, self._left = target in LATE, again, count
        self._line = Line(epoch, self._left) if progress and recipe.batched is not None else None
        if self._line is not None:
            weakref.finalize(self, self._line.stop)
        self._process = os.getpid()
        self.rate, self.checks_rate = Rate(), True  # unless all workers' are looked at together
        self._single: Iterator[Any] = iter(())
        kind = Work if recipe.regroups is None else FilteredWork
        self._work = work = kind(recipe, portions, epoch, cursor.slots)
        self._cursor.work = work
        self._works = [work]  # and those that go on behind it, since stages move
        if self._cursor.drive is not None:
            self._cursor.drive.attend(work, weakref.WeakMethod(self._move))
        self._is_shared = portions.rows(2) != (0, 2) or not (
            recipe.regroups is None or recipe.regroups.rows(2) == (0, 2)
        )
        # of batches, as known before or as the last one that was handed out
        self._form: Any = work.assembly.form if work.maker.gathers else None
        self._end = weakref.finalize(self, _stop, self._works)
        self._end.atexit = False
        work.begin()

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        """Batches that are still to come, of a source whose length is known."""
        if self._left is None:
            raise TypeError("how many batches there are is known at the end")
        return self._left

    def __next__(self) -> Any:
        try:
            return self._next()
        except Exception as error:
            shorten(error)
            raise

    def _next(self) -> Any:
        if self._work.recipe.batched is None:
            return self._next_single()
        while True:
            batch = self._batch()
            portion = batch.portion
            if portion.end is not None:
                self._cursor.place = portion.end
            else:
                self._cursor.took(portion.number, self._portions.size)
            if portion.places or self._is_shared:  # of several workers' parts some may be empty
                return self._value(batch)

    def _next_single(self) -> Any:
        while True:
            for place, (values, fields) in self._single:
                self._cursor.place = place + 1
                return fields.tree(values)
            batch = self._batch()
            rows = sorted(batch.loose)
            places = batch.portion.places
            self._single = iter([(places[row], batch.loose[row]) for row in rows])

    def _batch(self) -> Batch:
        """The next batch that holds no error."""
        if self._process != os.getpid():
            raise SessionError(
                "this epoch's threads are in the process that it was begun in, and no child has them: "
                "begin it after the fork, with pipe.epoch(...)."
            )
        try:
            while (batch := self._work.take()) is None and len(self._works) > 1:
                self._works.pop(0).join()
                self._work = self._cursor.work = self._works[0]
            if batch is None:
                raise StopIteration
            self._look_at(batch)
            if self._work.recipe.regroups is not None and batch.portion.end is None:
                return self._batch()  # it only brought faults
        except CommunicatorError:  # another worker's, while this one waited: threads go on
            raise
        except BaseException:
            self.close()
            raise
        if self._left is not None:
            self._left -= 1
        if self._line is not None:
            self._line.step(self._work)
        return batch

    def _look_at(self, batch: Batch) -> None:
        """Raise what went wrong, note what was left out or replaced."""
        for said in self._work.recipe.source.remarks():
            warnings.warn(said, stacklevel=5)
        failures = sorted(batch.failures, key=lambda f: f.row)
        faults = sorted([*batch.faults, *(f.fault for f in failures)], key=lambda f: f.place)
        raised = next((f.error for f in failures if f.error is not None), None)
        self.rate.add(len(faults), len(batch.portion.samples), faults[-1] if faults else None)
        for fault in faults:
            self._cursor.quarantine.add(fault)
        if raised is not None:
            raise raised
        if batch.error is not None:
            raise batch.error
        if faults and self.checks_rate:
            self.rate.check(self.most)

    @property
    def most(self) -> float:
        """The part of all samples that may fail."""
        recipe = self._work.recipe
        policies = [recipe.policy, *(p.policy for p in recipe.chain.stages)]
        return min((p.most for p in policies if p.do != RAISE), default=0.0)

    def _value(self, batch: Batch) -> Any:
        """A batch as users see it."""
        slots, fields = batch.slots, batch.fields
        if slots is None or fields is None:
            if self._form is None:
                raise SampleError(
                    "nothing is known of a batch without samples, since none came before it."
                )
            fields, slots = self._form[0], self._work.assembly.arrays(0, self._form[1])
        elif self._is_shared:
            self._form = fields, list(map(form_of_rows, slots))
        convert = self._convert
        assert convert is not None
        batch.slots = None
        if self._cut.has_slabs and self._is_late:
            return fields.tree(self._placed(fields, slots))
        if (left := self._work.recipe.later) is not None:
            return fields.tree(left.made(fields, slots, batch.drawn, convert))
        return fields.tree([convert(s) if isinstance(s, np.ndarray) else s for s in slots])

    def _placed(self, fields: Fields, slots: Sequence[Any]) -> list[Any]:
        """Arrays of which workers share the samples' depth, height or width."""
        assert self._convert is not None
        first = first_axis(self._work.recipe.chain.stages)
        found = []
        for kind, x in zip(fields.kinds, slots, strict=True):
            if isinstance(x, np.ndarray):
                axes = dict(zip(NAMES, axes_of(kind, x.ndim - 1, first), strict=False))
                split = tuple(axes.get(name) for name in self._cut.split)
                halos = {axes[name]: n for name, n in self._cut.halos.items() if name in axes}
                x = self._convert(x, split if len(split) > 1 else split[0], halos)  # type: ignore[call-arg]
            found.append(x)
        return found

    def close(self) -> None:
        """End its threads."""
        self._end.detach()
        if self._line is not None:
            self._line.stop(self._work)
        if self._process == os.getpid():
            for work in self._works:
                work.join()

    def _move(self, place: int) -> None:
        """From the next batch that nobody has begun on, stages that may move are left to who takes
        batches, or are not."""
        self._works[-1].finish()
        work = Work(self._again(place), self._portions, self._work.epoch, self._cursor.slots)
        self._works.append(work)
        assert self._cursor.drive is not None
        self._cursor.drive.attend(work, weakref.WeakMethod(self._move))
        work.begin()

    def __repr__(self) -> str:
        left = "" if self._left is None else f", {self._left:,} batches left"
        return f"<Epoch {self._work.epoch}{left}>"

    def __enter__(self) -> Epoch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stop(works: Sequence[Work]) -> None:
    for work in works:
        work.stop()
