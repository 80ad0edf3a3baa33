"""Metrics as TensorBoard's event files."""

from __future__ import annotations

import os
import time
from typing import Any

from ostinato.errors import ArgumentError
from ostinato.ops.core.user_line import misfit


class Events:
    """A callback of `fit` that writes scalars of epochs to a folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            needed, do = "TensorBoard's package", "pip install tensorboard"
            raise misfit(
                ArgumentError, "fit(tensorboard=)", got="no tensorboard", needed=needed, do=do
            ) from None
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer = EventFileWriter(os.fspath(folder))

    def on_epoch(self, run: Any) -> None:
        row = run.history.epochs[-1]
        values = [
            self._summary.Value(tag=name, simple_value=x)
            for name, x in row.items()
            if name not in ("epoch", "step")
        ]
        summary = self._summary(value=values)
        self._writer.add_event(
            self._event(wall_time=time.time(), step=int(row["step"]), summary=summary)
        )

    def on_end(self, run: Any) -> None:
        self._writer.close()
