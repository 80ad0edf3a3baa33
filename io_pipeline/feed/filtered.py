"""Epochs of pipes with a filter: which samples are in which batch is known once those before were looked at.

    groups of places --> threads: read, stages, filter --> what stays, in order --> full batches

Threads make groups of a few places each, side by side as ever. What stays of them is taken in the order of
places, and as soon as there are enough samples, the thread that made the last of them puts a batch
together. So batches are full, and depend on the samples alone. An epoch goes on behind the last place of
the batch that was handed out last.

Of several workers each makes all samples and keeps its rows, since nobody else knows which ones stay."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from .batches import Batch, Recipe
from .chain import Sample
from .executor import MAX_AHEAD, MIN_AHEAD, Work
from .faults import MIN_SAMPLES, Fault
from .fields import Fields
from .portions import Portion, Portions
from .sample_draws import Draws
from .slots import Slots
from .stats import Costs


class Kept(NamedTuple):
    """What the filter has left, and what came to nothing."""

    place: int
    number: int
    sample: tuple[list[Any], Fields] | None
    fault: Fault | None


class FilteredWork(Work):
    """An epoch of which samples are regrouped."""

    def __init__(self, recipe: Recipe, portions: Portions, epoch: int, slots: Slots) -> None:
        super().__init__(recipe, portions, epoch, slots)
        assert recipe.regroups is not None
        self.size, self.keeps, self.rows = recipe.regroups
        self.kept: deque[Kept] = deque()
        self.count = self.said = 0  # samples among these, and faults
        self.broken: BaseException | None = None  # the error that the epoch ends with,
        self.is_ended = False  # once it is told
        self.number = 0  # of the next batch, since the epoch was begun or gone on with
        self.ready: deque[Batch] = deque()

    @property
    def coming(self) -> deque[Batch]:
        return self.ready

    def _is_over(self) -> bool:
        enough = 1 if self.keeps else self.size
        is_made = self.is_at_end and not self.open and not self.ready
        return is_made and self.count < enough and not self.said and self.broken is None

    def _has_room(self) -> bool:
        waiting = len(self.open)
        if not self.ready:  # one batch can always be made
            return waiting < max(MIN_AHEAD, 2 * -(-self.size // self.portions.size))
        held = self.count + sum(batch.count for batch in self.ready)
        groups = held // self.portions.size + waiting + 1
        return waiting < MAX_AHEAD and groups * self.batch_bytes <= self.ahead

    # -- batches ---------------------------------------------------------------------------------
    def _complete(self, batch: Batch, sample: Sample, costs: Costs) -> None:
        with self.lock:
            batch.is_done = True
        self._regroup(sample, costs)

    def _open(self) -> None:
        super()._open()
        if self.is_at_end:  # perhaps all of it is made
            self._regroup(Sample(Draws(self.recipe.seed, self.epoch)), self.behind[0])

    def _regroup(self, sample: Sample, costs: Costs) -> None:
        """Put together the batches that can be."""
        while True:
            with self.lock:
                self._take_groups()
                batch, rows = self._next()
                if batch is None:
                    self.to_do.notify_all()
                    self.done.notify_all()
                    return
                self.ready.append(batch)
            if batch.error is None and batch.portion.end is not None:
                for row, (values, fields) in enumerate(rows):
                    self.assembly.stack(batch, row, values, fields, None)
                super()._complete(batch, sample, costs)
            with self.lock:
                batch.is_done = True

    def _take_groups(self) -> None:
        """Take what stays of the first groups that are made; nothing behind an error."""
        while self.open and self.open[0].is_done:
            group = self.open.popleft()
            failures = {f.row: f for f in group.failures}
            indices = group.portion.samples
            for row, place in enumerate(group.portion.places):
                if self.broken is not None:
                    break
                faults = [f for f in group.faults if f.place == place]
                if (failure := failures.get(row)) is not None:
                    faults.append(failure.fault)
                    self.broken = failure.error
                self.kept += [Kept(place, indices[row], None, fault) for fault in faults]
                self.said += len(faults)
                if (found := group.loose.get(row)) is not None:
                    self.kept.append(Kept(place, indices[row], found, None))
                    self.count += 1
            self.broken = self.broken or group.error

    def _next(self) -> tuple[Batch | None, list[tuple[list[Any], Fields]]]:
        """The next batch, and its samples; or one without any, which brings faults or an error."""
        if self.is_ended:
            return None, []
        is_end = self.is_at_end and not self.open
        most = min(self.size, self.count)
        if most == self.size or (is_end and self.keeps and most and self.broken is None):
            return self._batch(most)
        if self.broken is not None or self.said >= MIN_SAMPLES or (is_end and self.said):
            faults = [k.fault for k in self.kept if k.fault is not None]
            self.kept = deque(k for k in self.kept if k.fault is None)
            self.said = 0
            self.is_ended = self.broken is not None
            found = Batch(Portion(self.number, [], []), faults=faults, error=self.broken)
            return found, []
        return None, []

    def _batch(self, most: int) -> tuple[Batch, list[tuple[list[Any], Fields]]]:
        """So many samples, and the faults among them."""
        samples: list[Kept] = []
        faults: list[Fault] = []
        while len(samples) < most:
            kept = self.kept.popleft()
            if kept.fault is not None:
                faults.append(kept.fault)
            else:
                samples.append(kept)
        self.count -= most
        self.said -= len(faults)
        lo, hi = self.rows(most)
        mine = samples[lo:hi]
        places, indices = [k.place for k in mine], [k.number for k in mine]
        portion = Portion(self.number, places, indices, end=samples[-1].place + 1)
        self.number += 1
        return Batch(portion, faults=faults), [k.sample for k in mine if k.sample is not None]
