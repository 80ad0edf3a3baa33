"""Whether matrices had the factors that CuPy's `linalg` was asked for.

cuSOLVER and cuBLAS leave that in the GPU's memory. CuPy looks there only if it was told to raise, and then
waits; else what it gives is no factor, and nobody says so. It hands these words to two functions of its own:
here they are noted instead (ops/core/notes.py), by a kernel, so that the error comes with the read. Where
CuPy has no such functions, or no word is free, it looks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.notes import noting

CHECKS = (
    "_check_cusolver_dev_info_if_synchronization_allowed",
    "_check_cublas_info_array_if_synchronization_allowed",
)
_now = threading.local()  # what notes the words of this thread's calls
_first = make_lock()


@contextlib.contextmanager
def factoring(xp: Any, otherwise: str) -> Iterator[None]:
    """While CuPy factors matrices."""
    if not _is_watched(xp):
        import cupyx  # type: ignore[import-not-found, unused-ignore]

        with cupyx.errstate(linalg="raise"):
            yield
        return
    before, _now.note = getattr(_now, "note", None), noting(1, otherwise) or _looked_at
    try:
        yield
    finally:
        _now.note = before


def _looked_at(words: Any) -> None:
    """Each is 0, or tells which minor is singular."""
    if (words > 0).any():
        raise np.linalg.LinAlgError


def _is_watched(xp: Any) -> bool:
    """Whether CuPy has these functions; ours stand in their place then."""
    room = getattr(xp.linalg, "_util", None)
    if not all(hasattr(room, name) for name in CHECKS):
        return False
    with _first:
        for name in CHECKS:
            check = getattr(room, name)
            if not hasattr(check, "ostinato"):
                setattr(room, name, _watching(check))
    return True


def _watching(check: Callable[..., None]) -> Callable[..., None]:
    def watched(routine: Any, words: Any) -> None:
        note = getattr(_now, "note", None)
        if note is None:
            check(routine, words)
        else:
            note(words)

    watched.ostinato = True  # type: ignore[attr-defined]
    return watched
