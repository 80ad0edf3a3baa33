"""Which trace hears of what this thread calls (call_events.py)."""

from __future__ import annotations

import threading

here = threading.local()  # its `reach`


class unheard:
    """Within it nothing that runs is part of a trace: a value is made that does not depend on it."""

    __slots__ = ("outer",)

    def __enter__(self) -> None:
        self.outer = getattr(here, "reach", None)
        here.reach = None

    def __exit__(self, *_: object) -> None:
        here.reach = self.outer
