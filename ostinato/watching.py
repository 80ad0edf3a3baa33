"""What `ostinato run` shows: a script that it has started writes down which plans ran how often.

The file is named by OSTINATO_WATCH. A thread writes it twice a second, and once more at the end; the
iterations themselves do nothing for it."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import threading
import time
from typing import Any, Protocol

from ostinato.ops.core.disk import write_whole
from ostinato.ops.core.locks import make_lock
from ostinato.planner.cache import PlanCache
from ostinato.runtime.engine import Engine

EVERY = 0.5  # seconds


class WatchedSession(Protocol):
    engine: Engine
    plans: PlanCache


_seen: dict[tuple[int, str], dict[str, Any]] = {}  # of each session's plans, what was found last
_sessions: dict[WatchedSession, int] = {}
_numbers = itertools.count()
_path = ""
_lock = make_lock()


def begin(session: WatchedSession) -> None:
    """Watch a session, if that was asked for."""
    global _path
    with _lock:
        if not _path:
            _path = os.environ.pop("OSTINATO_WATCH", "")  # what this process starts is not watched
            if not _path:
                return
            atexit.register(look)
            os.register_at_fork(after_in_child=_forget)
            threading.Thread(target=_again, name="ostinato-watch", daemon=True).start()
        _sessions[session] = next(_numbers)


def end(session: WatchedSession) -> None:
    """A session closes: what it knows is asked for the last time."""
    if session in _sessions:
        look()
        with _lock:
            _sessions.pop(session, None)


def look() -> None:
    """Write what is known."""
    with _lock, contextlib.suppress(OSError):
        for session, number in _sessions.items():
            _note(session, number)
        write_whole(_path, json.dumps(list(_seen.values())).encode())


def _forget() -> None:
    """A forked child is not watched."""
    _sessions.clear()
    atexit.unregister(look)


def _note(session: WatchedSession, number: int) -> None:
    if session.engine.is_elsewhere:  # workers of Dask's, which has a dashboard
        return
    with session.plans.lock:
        plans = tuple(session.plans.plans.values())
    for plan in plans:
        found = plan.measured
        if found is not None:
            _seen[number, plan.id] = {
                "plan": plan.id,
                "name": plan.called or "outside of functions",
                "runs": found.runs,
                "seconds": found.mean,
            }


def _again() -> None:
    while True:
        time.sleep(EVERY)
        look()
