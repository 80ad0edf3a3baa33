"""Locks that are free in a forked child, which has none of the threads that held one meanwhile."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .signals import Living

T = TypeVar("T")
_locks = Living[Any]()


def make_lock() -> Any:
    """A lock of threads, which the one that has it may take again: a finalizer or a handler of signals may
    come back to where it is held."""
    return free_in_child(threading.RLock())


def free_in_child(lock: Any) -> Any:
    """In a forked child nobody holds this lock but, if it did, the thread that forked."""
    _locks.add(lock)
    return lock


class cached_property(functools.cached_property[T]):
    """The standard library's. In Python 3.11 threads take turns there."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        super().__init__(make)
        self.lock = make_lock()


def _free() -> None:
    for lock in _locks:
        if not lock._is_owned():
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
