"""What a forked child has of its parent's crews: nothing. Connections, locks and threads are the parent's;
whoever uses them in the child would speak in the parent's name, or wait for threads that are not there."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Protocol

from ostinato.ops.core.signals import Living
from ostinato.ops.core.user_line import misfit

from ostinato.errors import OstinatoError, SessionError

RANK = "OSTINATO_RANK"  # the process of a job that is one of its ranks; whom it starts is not


class Shared(Protocol):
    """Something that other processes answer to."""

    ordering: Any  # a lock, which another thread may have had
    forked: bool

    def let_go(self) -> list[Any]:
        """Give up what is the parent's, without a word to others; what must never be cleared away."""


_shared: Living[Any] = Living()
_kept: list[Any] = []  # whose end would end the parent's


def share(what: Shared) -> None:
    _shared.add(what)


def _leave() -> None:
    for what in _shared:
        what.forked = True
        what.ordering._at_fork_reinit()
        with contextlib.suppress(Exception):
            _kept.append(what.let_go())
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)


def not_here() -> OstinatoError:
    """The error of who uses a session of the parent's."""
    got = "a process that was forked while it was open: its workers answer to the parent alone"
    do = "call ost.connect() here, and read what it shall have (np.asarray) before the fork"
    return misfit(SessionError, "the session", got=got, needed="a session of this process", do=do)


def is_rank() -> bool:
    """Whether this process may be one of a job's, as its environment says, and not one that such a one has
    started or forked."""
    return os.environ.get(RANK, str(os.getpid())) == str(os.getpid())


def be_rank() -> None:
    os.environ[RANK] = str(os.getpid())
