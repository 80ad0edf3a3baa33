"""Garbage in circles is looked for less often while much is made that stays: a trace and its plan have
hundreds of thousands of objects, all of which each search would go through."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from .locks import make_lock

OBJECTS = 100_000  # new ones between two searches
_lock = make_lock()
_within = 0
_before = gc.get_threshold()


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Within it Python searches after so many objects, if it does at all."""
    global _within, _before
    with _lock:
        if not _within:
            _before = gc.get_threshold()
            if 0 < _before[0] < OBJECTS:
                gc.set_threshold(OBJECTS, *_before[1:])
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within and gc.get_threshold() == (OBJECTS, *_before[1:]):
                gc.set_threshold(*_before)
