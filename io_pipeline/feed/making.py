"""How a thread makes the samples of a chunk: rows of arrays all at once, images by machine code with one
call, and all others one by one, through all stages; and what becomes of those that cannot be made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.errors import OstinatoError, SampleError

from ..source import short
from .assembly import Assembly
from .batches import Batch, Failure, Recipe, fits_in
from .chain import Sample, undecoded
from .faults import RAISE, REPLACE, TRIES, Fault, Policy
from .fields import fields_of, hosted
from .file_reads import reads
from .native import Run, Workspace, can
from .sample_draws import REPLACED
from .stage import Rejected
from .stats import Costs

GATHERED = 16  # times as many rows of arrays as samples a thread takes at a time,
AT_ONCE = 2  # and images that machine code makes


class Maker:
    """Makes the samples of an epoch. Threads call it side by side."""

    def __init__(
        self, recipe: Recipe, epoch: int, assembly: Assembly, halt: np.ndarray[Any, Any]
    ) -> None:
        """halt: a word that is not 0 once threads are to end."""
        self.recipe, self.epoch, self.assembly, self.halt = recipe, epoch, assembly, halt
        self.gathers = False  # whether batches are the source's rows
        self.native: Run | None = None  # what makes images of chunks by machine code,
        self.first: list[Any] = []  # what was read of a sample
        self.is_native_known = not (can() and recipe.chain.stages and recipe.batched is not None)
        forms = recipe.source.forms()
        is_plain = not recipe.chain.stages and recipe.slabs is None
        if is_plain and assembly.is_stacked and forms is not None:
            assert recipe.source.fields is not None
            assembly.form, self.gathers = (recipe.source.fields, list(forms)), True

    @property
    def chunks_per_call(self) -> int:
        """Times as many samples as a chunk's that are worth a call."""
        return GATHERED if self.gathers else AT_ONCE if self.native is not None else 1

    def is_stopped(self) -> bool:
        return bool(self.halt[0])

    def make(self, batch: Batch, rows: range, sample: Sample, hand: Hand, costs: Costs) -> None:
        """The samples of a chunk. sample, hand, costs: the thread's own."""
        if self.gathers and self._gather(batch, rows, costs):
            return
        left = dict.fromkeys(rows)
        if batch.slots is not None and (run := self._native(batch)) is not None:
            left = self._make_natively(run, batch, rows, sample, hand, costs)
        for row, error in left.items():
            if self.is_stopped():
                return
            timed = costs if row == rows.start else None
            try:
                self._make(batch, row, sample, timed, error)
            except BaseException as error:  # of the pipe itself
                batch.error = batch.error or error

    def _gather(self, batch: Batch, rows: range, costs: Costs) -> bool:
        """Rows of arrays, all at once; False if something is wrong with one of them."""
        assert batch.slots is not None
        costs.begin(len(rows))
        out = [s[rows.start : rows.stop] for s in batch.slots]
        try:
            self.recipe.source.gather(batch.portion.samples[rows.start : rows.stop], out)
        except Exception:
            return False
        costs.end(0, out)
        return True

    def _native(self, batch: Batch) -> Run | None:
        """Return the machine code that makes a chunk of such a batch; None if that cannot be."""
        first = self.first
        if not self.is_native_known and first:
            self.native, self.is_native_known = self._found_native(batch, first), True
            self.first = []
        return self.native

    def _found_native(self, batch: Batch, first: list[Any]) -> Run | None:
        source, fields = self.recipe.source, batch.fields
        n = None if fields is None or batch.portion.items is not None else fields.sized()
        if n is None or fields is None or batch.slots is None or not batch.count:
            return None
        if not isinstance(batch.slots[n], np.ndarray) or source.fields not in (None, fields):
            return None
        in_files = n == 0 and source.files(batch.portion.samples[:1]) is not None
        reader = reads() if in_files else None
        run = self.recipe.chain.native(fields, first[n], batch.slots[n][0], reader)
        if run is not None:
            run.fields, run.leaf = fields, n
        return run

    def _make_natively(
        self, run: Run, batch: Batch, rows: range, sample: Sample, hand: Hand, costs: Costs
    ) -> dict[int, Exception | None]:
        """The images of a chunk by machine code, with one call; the rows that are left to be made, with
        what reading them has raised. Of a batch the first one is left, to be timed stage by stage."""
        slots, n, source = batch.slots, run.leaf, self.recipe.source
        if slots is None or batch.fields != run.fields or slots[n].shape[1:] != run.shape:
            return dict.fromkeys(rows)
        left: dict[int, Exception | None] = {} if rows.start else {0: None}
        rows = rows[len(left) :]
        samples = batch.portion.samples[rows.start : rows.stop]
        files = source.files(samples) if run.reads else None
        if run.reads and files is None:
            return left | dict.fromkeys(rows)
        if files is not None:
            values, columns = files.names, files.columns
        else:
            leaves, errors = [], {}
            for row, index in zip(rows, samples, strict=True):
                try:
                    read, fields = source.read(index)
                    leaves.append(hosted(read, fields.kinds))
                except Exception as error:
                    errors[row] = error
            if errors or not rows:
                return left | {row: errors.get(row) for row in rows}
            columns = [list(column) for column in zip(*leaves, strict=True)]
            values = columns.pop(n)
        rest = [slot for k, slot in enumerate(slots) if k != n]
        for slot, column in zip(rest, columns, strict=True):
            if not hand.puts(slot, rows, column):
                return left | dict.fromkeys(rows)
        first = _address(slots[n]) + rows.start * run.bytes
        places = batch.portion.places[rows.start : rows.stop]
        stamps = None if files is None else files.stamps
        answers = run(hand.room, sample.draws.keys, values, places, first, self.halt, stamps)
        if files is not None:
            source.has_read(samples, files)
        return left | {row: None for row, answer in zip(rows, answers, strict=True) if answer}

    def _make(
        self,
        batch: Batch,
        row: int,
        sample: Sample,
        costs: Costs | None,
        failed: Exception | None = None,
    ) -> None:
        """One sample of a batch, or what takes its place. failed: what reading it has raised."""
        recipe, portion = self.recipe, batch.portion
        sample.place = place = portion.places[row]
        index = portion.samples[row]
        item = None if portion.items is None else portion.items[row]
        for attempt in range(TRIES):
            sample.step, sample.out = None, None
            if batch.slots is not None and batch.fields is not None:
                sample.out = [s[row] if isinstance(s, np.ndarray) else None for s in batch.slots]
            if costs is not None:
                costs.begin()
            try:
                if failed is not None and not attempt:
                    raise failed
                if item is not None:
                    sample.fields, sample.values = fields_of(item, recipe.source.kinds)  # type: ignore[attr-defined]
                elif recipe.slabs is not None:
                    recipe.slabs.read(sample, index, self.is_stopped)
                else:
                    sample.values, sample.fields = recipe.source.read(index)
                if costs is not None:
                    costs.end(0, sample.values)
                assert sample.fields is not None
                if not self.is_native_known:
                    self.first = list(hosted(sample.values, sample.fields.kinds))
                recipe.chain.run(sample, costs)
                self.assembly.put(batch, row, sample.values, sample.fields, sample.out)
                return
            except Rejected:
                if costs is not None:
                    self._left_out(sample, costs)
                return
            except Exception as error:
                policy, fault = self._fault(sample, index, error)
                if policy.do == REPLACE and item is None and attempt + 1 < TRIES:
                    batch.faults.append(fault)
                    draws = sample.draws.seek(place, REPLACED + attempt)
                    index = draws.integer(0, len(recipe.source))
                    continue
                raised = None
                if policy.do in (RAISE, REPLACE):
                    raised = self._error(sample, fault, error)
                batch.failures.append(Failure(row, fault, raised))
                return

    def _left_out(self, sample: Sample, costs: Costs) -> None:
        """A filter's time, also where nothing comes behind it."""
        if sample.step is not None:
            costs.end(sample.step.k + 1, ())

    def _fault(self, sample: Sample, index: int, error: Exception) -> tuple[Policy, Fault]:
        step = sample.step
        stage = step.stage.name if step is not None else "read"
        policy = step.placed.policy if step is not None else self.recipe.policy
        name = self.recipe.source.name(index)
        return policy, Fault(self.epoch, sample.place, index, name, stage, short(error))

    def _error(self, sample: Sample, fault: Fault, error: Exception) -> SampleError:
        """The error that names the file, the sample, the stage and the user's line."""
        step = sample.step
        name = f"sample {fault.sample}"
        what = name if fault.name == name else f"{name}, {fault.name}"
        got, needed, do = undecoded(step, sample.values, error)
        is_ours = isinstance(error, OstinatoError)
        made = SampleError.because(
            f"{what}, in {fault.stage} (place {fault.place} of epoch {fault.epoch})",
            got=got or (str(error).rstrip(".") if is_ours else fault.reason),
            needed=needed,
            do=do,
            line=step.placed.line if step is not None else "",
        )
        assert isinstance(made, SampleError)
        made.__cause__ = error
        return made


class Hand:
    """What a thread has to make chunks by machine code."""

    def __init__(self) -> None:
        self.room = Workspace()
        # of numbers of Python's, whether they are a slot's
        self._fits: dict[tuple[type, Any], bool] = {}

    def puts(self, slot: Any, rows: range, column: Sequence[Any]) -> bool:
        """Leaves that are no images to their places; False if they are not of one form."""
        if isinstance(slot, np.ndarray):
            for value in column:
                kind = type(value)
                if kind in (int, float, bool):
                    fits = self._fits.get((kind, slot.dtype))
                    if fits is None:
                        fits = self._fits[kind, slot.dtype] = fits_in(slot, value)
                    fits = fits and slot.ndim == 1
                else:
                    fits = fits_in(slot, value)
                if not fits:
                    return False
        slot[rows.start : rows.stop] = column
        return True


def _address(x: np.ndarray[Any, Any]) -> int:
    found: int = x.__array_interface__["data"][0]
    return found
