"""Sessions that tests share, so that no test waits for threads to start.

Under mpiexec there is one crew, and only meshes of that size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ostinato.runtime.crew.crew import job_size

import ostinato as ost
from ostinato import sessions
from ostinato.sessions import Session

JOB = job_size()
FEW = 64  # plans that a session keeps between tests
MESHES: tuple[tuple[int, ...], ...] = ((1,), (2,), (3,), (4,), (5,), (2, 2), (3, 2), (1, 3), (2, 1))
if JOB > 1:
    MESHES = tuple(m for m in (*MESHES, (1, 2), (1, 4)) if math.prod(m) == JOB)
_sessions: dict[tuple[Any, ...], Session] = {}


@contextmanager
def use(
    mesh: tuple[int, ...] = (1,), numerics: str = "same-plan", **options: Any
) -> Iterator[Session]:
    """A session with these workers, made current for a while. It is made once and kept, and so are its
    workers' threads."""
    key = (mesh, numerics, *sorted(options.items()))
    if key not in _sessions:
        with sessions.using(None):
            _sessions[key] = ost.connect(mesh=mesh, numerics=numerics, **options)
    try:
        with sessions.using(_sessions[key]):
            yield _sessions[key]
    finally:
        keep_plans(_sessions[key], FEW)  # their kernels take memory


def keep_plans(session: Session, count: int) -> None:
    """Forgets all but the `count` plans that were used last."""
    plans = session.plans.plans
    while len(plans) > count:
        session._made.forget(plans.popitem(last=False)[1])


def forget_plans() -> None:
    """For a test that plans otherwise than the tests before and after it."""
    for session in _sessions.values():
        keep_plans(session, 0)
