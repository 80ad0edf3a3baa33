"""What one worker makes of a pipe's epochs: its rows of each batch, in its memory, ahead of who takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ostinato.errors import SampleError

from ..tuner.together import Together
from . import seeing
from .batch_arrays import WORKERS
from .batches import Batch
from .borders import Borders
from .cached import caches_of
from .faults import Fault, Quarantine, Rate
from .pipe import STRICT, Pipe
from .portions import Rows
from .slabs import axes_of
from .stage import Box3, Shape


class Share:
    """An epoch's part of one worker."""

    def __init__(
        self,
        pipe: Pipe,
        epoch: int,
        start: int,
        rows: Rows,
        boxes: Callable[[int, Shape], Box3] | None,
        rank: int,
        check: Callable[[], None],
        progress: bool | None,
    ) -> None:
        """boxes: what each worker makes of volumes that they share."""
        self.pipe, self.is_own = pipe, progress is not None  # the program's own pipe
        self.drive = self._together(rows)
        self.borders = None if boxes is None else Borders(boxes)
        # what workers give to each other
        self._given: list[Any] = [] if self.borders is None else [self.borders]
        for cache in caches_of(pipe.source):
            self._given.append(cache if boxes is None else cache.share(boxes, rank))
        self.meets = bool(self._given)
        box = None if boxes is None else partial(boxes, rank)
        self._begin = rows, box, epoch, start, check, bool(progress)
        self.pad = pipe._cut().pad
        self.name = pipe.called

    def offers(self, host: str) -> list[Any]:
        """List the samples kept here, and where they are had; workers of the same rows share samples."""
        rows = list(self._begin[0](1 << 30))  # so many that each worker has some
        return [one.offer(host) | {"rows": rows} for one in self._given]

    def meet(self, rank: int, offers: Sequence[Any]) -> None:
        """Record what all workers keep."""
        for one, given in zip(self._given, zip(*offers, strict=True), strict=True):
            one.meet(rank, given)

    def begin(self) -> None:
        """Threads begin to work."""
        rows, box, epoch, start, check, progress = self._begin
        target = "numpy" if self.pipe.moves else WORKERS  # nobody moves stages here
        host = replace(self.pipe, target=target, order=STRICT)  # with the same cursor
        self._epoch = host.begin(epoch, start, rows, progress, box, self.borders)
        self._epoch._work.check, self._epoch.checks_rate = check, False

    def _together(self, rows: Rows) -> Together | None:
        """The tuner, if there is anything to choose."""
        pipe, cursor = self.pipe, self.pipe.cursor
        if not pipe.is_tuned:
            return None
        if not isinstance(cursor.drive, Together):
            lo, hi = rows(pipe._cut().size)
            cursor.drive = Together(pipe.identity(), max(hi - lo, 1))
        return cursor.drive

    def told(self) -> Any:
        return None if self.drive is None else self.drive.told()

    def decide(self, told: Sequence[Any]) -> list[Any]:
        return [None, False] if self.drive is None else self.drive.decide(told)

    def go_on(self, said: Sequence[int] | None) -> None:
        if self.drive is not None:
            self.drive.go_on(said)

    def take(self, number: int) -> tuple[list[Any], list[Any], Any]:
        """The leaves of a batch, and behind them what was drawn for stages that are left to who takes it;
        their forms; and its fields as data, which are not known where no sample was made. Those before it
        that nobody took are let go."""
        while True:
            try:
                batch: Batch = self._epoch._batch()
            except StopIteration:
                raise SampleError(f"batch {number}, which there is none of.") from None
            if batch.portion.number == number:
                break
            if batch.portion.number > number:
                raise SampleError(f"batch {number} was taken before.")
        slots, fields = batch.slots, batch.fields
        assembly = self._epoch._work.assembly
        leaves_stages = self._epoch._work.recipe.later is not None
        if (slots is None or fields is None) and assembly.form is not None and not leaves_stages:
            fields, forms = assembly.form
            slots = assembly.arrays(0, forms)
        batch.slots = None
        if slots is None or fields is None:
            return [], [], None
        forms = list(map(self._form, fields.kinds, slots))
        forms += [(x.shape[1:], x.dtype, (0,)) for x in batch.drawn]
        return [*slots, *batch.drawn], forms, fields.as_data()

    def _form(self, kind: str, value: Any) -> Any:
        """Extents of a whole sample, dtype, and the axes of a batch along which workers may share it."""
        if not isinstance(value, np.ndarray):
            return None
        slabs, shape = self._epoch._work.recipe.slabs, value.shape[1:]
        if slabs is None:
            return shape, value.dtype, (0,)
        axes = axes_of(kind, len(shape), slabs.first)
        return slabs.whole_of(kind, shape), value.dtype, axes

    def rate(self) -> Any:
        """How many samples could not be made here so far."""
        return self._epoch.rate.as_data()

    def check_rate(self, told: Sequence[Any]) -> None:
        """At the lead: an error if on all workers together more failed than may."""
        rate = Rate()
        for faults, seen, last in told:
            rate.add(faults, seen, None if last is None else Fault(**last))
        rate.check(self._epoch.most)

    def faults(self) -> tuple[int, list[dict[str, Any]]]:
        """Report what was left out or replaced since this was asked last, unless the program knows."""
        cursor = self.pipe.cursor
        found = cursor.quarantine
        if self.is_own:
            return 0, []
        cursor.quarantine = Quarantine()
        return found.count, [f.as_data() for f in found.faults.values()]

    def stats(self) -> dict[str, Any]:
        return seeing.as_data(self._epoch._work)
