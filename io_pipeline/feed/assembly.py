"""Samples come to their places in batches, and batches through the stages behind that.

What the last batch was like, the next one is expected to be: it has its arrays before its first sample is made,
which the last stage writes into. Samples of other forms wait beside it until all are there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.errors import OstinatoError, SampleError

from ..source import short
from .batches import (
    Batch,
    Recipe,
    alike,
    bytes_of,
    fits_in,
    form_of,
    form_of_rows,
    form_words,
    own_value,
    put_together,
    total_bytes,
)
from .chain import Sample, undecoded
from .fields import DATA, Fields, fields_of, hosted
from .later import Later
from .sample_draws import Draws
from .slots import Slots
from .stats import Costs


class Assembly:
    """Puts the batches of an epoch together."""

    def __init__(self, recipe: Recipe, epoch: int, slots: Slots, lock: threading.Lock) -> None:
        self.recipe, self.epoch, self.slots, self.lock = recipe, epoch, slots, lock
        self.form: tuple[Fields, list[Any]] | None = None  # of batches, as the last one was
        is_loose = recipe.batched is None or recipe.regroups is not None
        self.is_stacked = not is_loose and recipe.collate is None  # as it is made
        self.batch_bytes = 0

    def begin(self, batch: Batch) -> None:
        """A batch has memory, if it is known what the last one was like. The lock is held."""
        if self.form is not None and batch.count and self.is_stacked:
            batch.fields = self.form[0]
            batch.slots = self.arrays(batch.count, self.form[1])
            self.batch_bytes = self.batch_bytes or total_bytes(batch.slots)

    def arrays(self, count: int, forms: Sequence[Any]) -> list[Any]:
        """Memory for so many samples of these forms."""
        return [
            self.slots.array((count, *form[0]), form[1]) if form is not None else [None] * count
            for form in forms
        ]

    def put(
        self, batch: Batch, row: int, values: list[Any], fields: Fields, out: Sequence[Any] | None
    ) -> None:
        """A sample to its place in the batch."""
        if self.recipe.collate is None:
            values = hosted(values, fields.kinds)
        if not self.is_stacked:
            own = [own_value(v) for v in values]
            batch.loose[row] = own, fields
            self.batch_bytes = self.batch_bytes or batch.count * sum(map(bytes_of, own))
            return
        self.stack(batch, row, values, fields, out)

    def stack(
        self, batch: Batch, row: int, values: list[Any], fields: Fields, out: Sequence[Any] | None
    ) -> None:
        if self.recipe.collate is not None:
            batch.loose[row] = values, fields
            return
        slots = batch.slots
        if slots is None:
            with self.lock:
                if batch.slots is None:
                    forms = [form_of(v) for v in values]
                    batch.fields, batch.slots = fields, self.arrays(batch.count, forms)
                    self.batch_bytes = total_bytes(batch.slots)
                    self.form = self.form or (fields, forms)
                slots = batch.slots
        if fields is not batch.fields and fields != batch.fields:
            batch.loose[row] = list(values), fields
            return
        for k, (slot, value) in enumerate(zip(slots, values, strict=True)):
            if out is not None and value is out[k] and value is not None:
                continue
            if isinstance(slot, list) or fits_in(slot, value):
                slot[row] = value
            else:
                batch.loose[row] = list(values), fields
                return

    # -- whole batches ---------------------------------------------------------------------------
    def finish(self, batch: Batch, sample: Sample, costs: Costs) -> None:
        if self.recipe.batched is None or batch.error is not None:
            return
        costs.begin(batch.count)
        self._collate(batch)
        costs.end(0, batch.slots or ())
        if batch.slots is not None and self.recipe.batched.stages:
            self._run_batched(batch, sample, costs)
        if self.recipe.later is not None:
            self._draw_later(self.recipe.later, batch, sample.draws)

    def _collate(self, batch: Batch) -> None:
        """Samples in one array each, without those that are left out."""
        failures = sorted(batch.failures, key=lambda f: f.row)
        if any(f.error is not None for f in failures):
            return
        gone = {f.row for f in failures}
        keep = [row for row in range(batch.count) if row not in gone]
        if self.recipe.collate is not None:
            self._put_by(self.recipe.collate, batch, [batch.loose[row] for row in keep])
        elif batch.loose:
            rows = [batch.loose.get(row) or self.row(batch, row) for row in keep]
            batch.fields, batch.slots = self._stacked(batch, keep, rows)
        elif gone and batch.slots is not None:
            batch.slots = [
                s[keep] if isinstance(s, np.ndarray) else [s[row] for row in keep]
                for s in batch.slots
            ]
        if gone:
            places = batch.portion.places
            batch.portion.places[:] = [places[row] for row in keep]

    def row(self, batch: Batch, row: int) -> tuple[list[Any], Fields]:
        assert batch.slots is not None
        assert batch.fields is not None
        return [slot[row] for slot in batch.slots], batch.fields

    def _put_by(
        self, collate: Callable[..., Any], batch: Batch, rows: list[tuple[list[Any], Fields]]
    ) -> None:
        """Samples put together by a function of the user's."""
        if not rows:
            return
        try:
            made = collate([fields.tree(values) for values, fields in rows])
        except Exception as error:
            name = getattr(collate, "__name__", "collate")
            raise self._wrong(batch, f"batch(collate={name})", error, self.recipe.line) from error
        fields, leaves = fields_of(made)
        kinds = rows[0][1].kinds
        if {*fields.kinds} == {DATA} and len(kinds) == len(leaves):
            fields = Fields(kinds, fields.structure)
        batch.fields, batch.slots = fields, hosted(leaves, fields.kinds)
        with self.lock:
            self.form = fields, list(map(form_of_rows, batch.slots))

    def _wrong(
        self, batch: Batch, who: str, error: Exception, line: str, got: str = "", **more: str
    ) -> OstinatoError:
        """The error of what a batch as a whole came to."""
        what = f"batch {batch.portion.number} of epoch {self.epoch}, in {who}"
        return SampleError.because(what, got=got or short(error), line=line, **more)

    def _stacked(
        self, batch: Batch, keep: list[int], rows: Sequence[tuple[list[Any], Fields]]
    ) -> tuple[Fields, list[Any]]:
        """Samples that do not have the form of the last ones: they may agree in another."""
        values, fields = rows[0]
        forms = [form_of(v) for v in values]
        found: list[Any] = [[] for _ in values]
        pads = self.recipe.pad is not None
        for row, (others, theirs) in zip(keep, rows, strict=True):
            shapes = [form_of(v) for v in others]
            if theirs != fields or not all(
                alike(a, b, pads) for a, b in zip(forms, shapes, strict=False)
            ):
                raise self._not_alike(
                    batch,
                    keep[0],
                    row,
                    form_words(fields, forms),
                    form_words(theirs, shapes),
                    fields == theirs,
                )
            for k, value in enumerate(others):
                found[k].append(value)
        slots = [
            put_together(column, self.recipe.pad) if form is not None else column
            for form, column in zip(forms, found, strict=True)
        ]
        with self.lock:
            self.form = fields, [form_of(v) for v in values]
        return fields, slots

    def _not_alike(
        self, batch: Batch, first: int, row: int, wanted: str, found: str, same_fields: bool
    ) -> OstinatoError:
        """The error of two samples that cannot be in one batch."""
        name = self.recipe.source.name
        samples = batch.portion.samples
        do = "give samples the same fields with map, before `batch`"
        if same_fields:
            do = "bring them to one shape with resize or center_crop, fill arrays up with "
            do += "batch(pad=0), or take samples that are about as long together with bucket"
        return SampleError.because(
            "batch",
            got=f"a sample of {found} ({name(samples[row])})",
            needed=f"one of {wanted}, as the first of its batch ({name(samples[first])})",
            do=do,
            line=self.recipe.line,
        )

    def _run_batched(self, batch: Batch, sample: Sample, costs: Costs) -> None:
        assert self.recipe.batched is not None
        assert batch.slots is not None
        sample.values, sample.fields, sample.out = batch.slots, batch.fields, None
        sample.places = batch.portion.places
        sample.place = sample.places[0] if sample.places else 0
        try:
            self.recipe.batched.run(sample, costs)
        except Exception as error:
            step = sample.step
            if step is None:  # its fields are none for the first of these stages
                raise
            got, needed, do = undecoded(step, sample.values, error)
            name, line = step.stage.name, step.placed.line
            raise self._wrong(batch, name, error, line, got, needed=needed, do=do) from error
        batch.slots, batch.fields = sample.values, sample.fields

    def _draw_later(self, later: Later, batch: Batch, draws: Draws) -> None:
        """The random numbers of stages that who takes the batch will run."""
        if batch.slots is None or batch.fields is None:
            return
        try:
            batch.drawn = later.draw(draws, batch.portion.places, batch.fields, batch.slots)
        except Exception as error:
            names = " and ".join(later.names)
            raise self._wrong(batch, names, error, later.stages[0].line) from error
