"""Threads of ours for which somebody waits, who may hold any lock meanwhile.

The garbage collector may call finalizers of the user's in them. One that waited there for such a lock would
wait for ever, so whatever may have to is refused."""

from __future__ import annotations

import threading

from ostinato.errors import SessionError


class _Helper(threading.local):
    on = False


helper = _Helper()  # of each thread, whether it is one


def begin_to_help() -> None:
    helper.on = True


def check_thread() -> None:
    if helper.on:
        raise SessionError(
            "nothing can be computed or closed here: a finalizer was called in a thread of Ostinato's, "
            "for which others wait; let it do without arrays, or call it in a thread of the program's."
        )
