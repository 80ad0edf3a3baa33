"""Sessions that tests share, so that no test waits for threads to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ostinato as ost
from ostinato import sessions
from ostinato.sessions import Session

MESHES: tuple[tuple[int, ...], ...] = ((1,), (2,), (3,), (4,), (5,), (2, 2), (3, 2), (1, 3), (2, 1))
_sessions: dict[tuple[tuple[int, ...], str], Session] = {}


@contextmanager
def use(mesh: tuple[int, ...] = (1,), numerics: str = "same-plan") -> Iterator[Session]:
    """A session with these workers, made current for a while."""
    before = sessions.in_use
    key = (mesh, numerics)
    if key not in _sessions:
        _sessions[key] = ost.connect(mesh=mesh, numerics=numerics)
    sessions.in_use = _sessions[key]
    try:
        yield _sessions[key]
    finally:
        sessions.in_use = before
