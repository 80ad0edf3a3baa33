"""Which trace hears of what this thread calls (call_events.py)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

here = threading.local()  # its `reach`


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Within it nothing that runs is part of a trace: a value is made that does not depend on it."""
    outer = getattr(here, "reach", None)
    here.reach = None
    try:
        yield
    finally:
        here.reach = outer
