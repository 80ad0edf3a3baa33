"""What Ctrl-C does not find half done.

Handlers of signals that are functions of Python run in the main thread, wherever that is. What they raise
there in a destructor or a callback, Python prints and forgets; LLVM's objects in Python have destructors,
and are gone right after work that takes long. So such work has a thread of its own, for which the main
one waits; and what is to be done once an object is gone waits for that, too."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any, Generic, TypeVar

from .helpers import begin_to_help

T = TypeVar("T")


def aside(work: Callable[[], T]) -> T:
    """Call this in a thread that is not the main one. Who is interrupted while waiting for it
    leaves, and it is done to its end."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    made = Future[T]()

    def run() -> None:
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    try:
        thread_for(run).start()
    except RuntimeError:  # the interpreter ends, and begins no more threads
        run()
    return made.result()


def thread_for(work: Callable[[], object]) -> threading.Thread:
    """One that does this; its warnings are at the line of who has begun it, who waits."""
    frame = beginner() or sys._getframe(1)

    def run() -> None:
        begin_to_help()
        _begun.frame = frame
        work()

    return threading.Thread(target=run, name="ostinato-compiler")


def beginner() -> FrameType | None:
    """Where this thread was begun, if it is one of these."""
    return getattr(_begun, "frame", None)


_begun = threading.local()


class Living(Generic[T]):
    """A set of things as long as they live. What is gone leaves it without a line of Python, other than a
    `weakref.WeakSet`'s, in which Ctrl-C would be lost."""

    def __init__(self) -> None:
        self._known: set[weakref.ref[T]] = set()

    def add(self, thing: T) -> None:
        self._known.add(weakref.ref(thing, self._known.discard))

    def clear(self) -> None:
        self._known.clear()

    def __iter__(self) -> Iterator[T]:
        """Iterate over those that live now; meanwhile others may come and go."""
        return iter([x for known in list(self._known) if (x := known()) is not None])


class _Last(weakref.ref[Any]):
    """What is to be done when an object is gone."""

    __slots__ = ("then",)
    then: Callable[[], object]


_kept: dict[int, _Last] = {}
_gone: deque[_Last] = deque()  # as the interpreter lists them, without a line of Python


def once_gone(thing: Any, then: Callable[[], object]) -> None:
    """To be done some time after an object is gone: at the next `clear`."""
    last = _Last(thing, _gone.append)
    last.then = then
    _kept[id(last)] = last


def clear() -> None:
    """Do what is to be done for what is gone by now. Before something new is made of the same kind."""
    if _gone:
        aside(_clear)


def _clear() -> None:
    while True:
        try:
            last = _gone.popleft()
        except IndexError:
            return
        del _kept[id(last)]
        last.then()
