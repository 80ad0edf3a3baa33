"""What this process does that may take long, for who looks: progress on a screen, profiles.

A step that may take long is a `Task` while it lasts: a plan that is made, kernels that are compiled, a
file that is read, a run. Where nobody looks, that costs one look at an empty tuple."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

RUN = "run"  # of a plan; whatever else takes long happens once
MAX_ESTIMATE = 0.99  # of what is only estimated, before it has ended

# the share that is done, if that is known; more words
Look = Callable[[], tuple[float | None, str]]


class Task:
    """A step that began, how far it is, and when it has ended."""

    __slots__ = ("begin", "done", "end", "kind", "look", "minor", "thread", "total", "what")

    def __init__(
        self, kind: str, what: str, total: float = 0, look: Look | None = None, minor: bool = False
    ) -> None:
        self.kind = kind
        self.what = what
        self.total = total
        self.done = 0.0
        self.look = look
        self.minor = minor  # a part of another one, that only profiles show
        self.thread = threading.current_thread()
        self.begin = self.end = time.perf_counter()

    def step(self, count: float = 1) -> None:
        """So much more of the total is done."""
        self.done += count

    def share(self) -> tuple[float | None, str]:
        """How much is done, if that is known, and what else there is to say."""
        if self.look is not None:
            return self.look()
        return (min(1.0, self.done / self.total) if self.total else None), ""


class Listener(Protocol):
    """Who looks. Both are called in the task's thread."""

    def began(self, task: Task) -> None: ...

    def ended(self, task: Task) -> None: ...


listeners: tuple[Listener, ...] = ()
others = 0  # lines on the screen that show something else, such as an epoch
_UNSEEN = Task("", "")


def listen(who: Listener) -> None:
    """Tell somebody of all that begins from now on."""
    global listeners
    if who not in listeners:
        listeners = (*listeners, who)


def leave(who: Listener) -> None:
    """Tell somebody no more."""
    global listeners
    listeners = tuple(x for x in listeners if x is not who)


@contextlib.contextmanager
def _seen(task: Task) -> Iterator[Task]:
    told = listeners
    try:
        for who in told:
            who.began(task)
        yield task
    finally:
        task.end = time.perf_counter()
        for who in told:
            who.ended(task)


class _Unseen:
    """What goes on while nobody looks."""

    def __enter__(self) -> Task:
        return _UNSEEN

    def __exit__(self, *error: object) -> None:
        pass


_nobody = _Unseen()


def task(
    kind: str, what: str, total: float = 0, look: Look | None = None, minor: bool = False
) -> Any:
    """A step of this thread, within `with`."""
    return _seen(Task(kind, what, total, look, minor)) if listeners else _nobody


def transfer(kind: str, what: str, nbytes: int) -> Any:
    """A step that reads or writes so many bytes of files, as far as the system counts them."""
    if not listeners:
        return _nobody
    name = "rchar" if kind == "read" else "wchar"
    before = _counted(name)

    def look() -> tuple[float | None, str]:
        now = _counted(name)
        if before is None or now is None or not nbytes:
            return None, ""
        return min(MAX_ESTIMATE, (now - before) / nbytes), ""

    return _seen(Task(kind, what, nbytes, look))


def _counted(name: str) -> int | None:
    """Bytes that this process has read or written so far; None where the system does not count them."""
    try:
        with open("/proc/self/io") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(name))
    except (OSError, StopIteration, ValueError):
        return None
