"""A line that shows how far an epoch is, and what it waits for; drawn by rich, when batches are taken."""

from __future__ import annotations

import os
import time
from typing import Any

from ostinato.ops.core import activity
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from . import seeing
from .executor import Work

EVERY = 0.2  # seconds between two looks
BAR = 12  # columns
WIDE = 160  # columns of a line that goes to a file
OTHERS = 30  # that the bar, words and time take, but for the digits of numbers


class Line:
    """Of an epoch. It has no thread of its own."""

    def __init__(self, epoch: int, total: int | None) -> None:
        try:
            from rich import console, progress
        except ImportError:
            do = "pip install rich"
            raise misfit(ArgumentError, "progress", got="no rich", needed="rich", do=do) from None
        screen = console.Console()  # as wide as the terminal or the notebook is now
        if not (screen.is_terminal or screen.is_jupyter or "COLUMNS" in os.environ):
            screen = console.Console(width=WIDE)
        self.shown = progress.Progress(
            progress.TextColumn(f"epoch {epoch}"),
            progress.BarColumn(BAR),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[said]}"),
            console=screen,
            auto_refresh=False,
        )
        self.task: Any = self.shown.add_task("", total=total, said="")
        self.digits = len(str(epoch)) + 2 * len(str(total or "?"))
        self.shown.start()
        self.count, self.total = 0, total
        self.last = 0.0
        self.stands = True
        activity.others += 1  # two lines would write over each other

    def step(self, work: Work) -> None:
        """One more batch was taken."""
        self.count += 1
        now = time.monotonic()
        if now - self.last >= EVERY or self.count == self.total:
            self.last = now
            self.show(work)

    def show(self, work: Work) -> None:
        stats = seeing.as_data(work)
        said = f"{stats['ready']} ready"
        if stats["binds"]:
            wait, step = (seeing.time_of(stats[k]["mean"]) for k in ("wait", "step"))
            said = f"step {step}, wait {wait}, {said}; {seeing.CAUSES[stats['binds']]}"
        room = self.shown.console.width - OTHERS - self.digits
        said = said if len(said) <= room else f"{said[: max(room - 1, 0)]}…"
        self.shown.update(self.task, completed=self.count, said=said)
        self.shown.refresh()

    def stop(self, work: Work | None = None) -> None:
        """Leave the line as it is."""
        if work is not None and self.shown.live.is_started:
            self.show(work)
        self.shown.stop()
        activity.others -= self.stands
        self.stands = False
