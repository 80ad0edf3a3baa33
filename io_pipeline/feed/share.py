"""What one worker makes of a pipe's epochs: its rows of each batch, in its memory, ahead of who takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ostinato.errors import SampleError

from .executor import Batch
from .faults import Quarantine
from .pipe import STRICT, Pipe
from .portions import Rows


class Share:
    """An epoch's part of one worker."""

    def __init__(
        self,
        pipe: Pipe,
        epoch: int,
        start: int,
        rows: Rows,
        check: Callable[[], None],
        progress: bool | None,
    ) -> None:
        self.pipe, self.is_own = pipe, progress is not None  # the program's own pipe
        host = replace(pipe, target="numpy", order=STRICT)  # with the same cursor
        self._epoch = host.begin(epoch, start, rows, bool(progress))
        self._epoch._work.check = check
        self.pad = self._epoch._work.recipe.pad
        self.name = pipe.called

    def take(self, number: int) -> tuple[list[Any], Any]:
        """The leaves of a batch and its fields as data, which are not known where no sample was made. Those
        before it that nobody took are let go."""
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
        if (slots is None or fields is None) and self._epoch._work.form is not None:
            fields, forms = self._epoch._work.form
            slots = self._epoch._work._slots(0, forms)
        batch.slots = None
        return list(slots or ()), None if fields is None else fields.as_data()

    def faults(self) -> tuple[int, list[dict[str, Any]]]:
        """What was left out or replaced since this was asked last, unless the program knows."""
        cursor = self.pipe.cursor
        found = cursor.quarantine
        if self.is_own:
            return 0, []
        cursor.quarantine = Quarantine()
        return found.count, [f.as_data() for f in found.faults.values()]

    def stats(self) -> dict[str, Any]:
        return self.pipe.stats()
