"""Threads of epochs, and what holds for the process while there are any."""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import os
import sys
import threading
from typing import Protocol

from ostinato.ops.core.signals import Living

SWITCH = 2e-5  # seconds after which a thread of Python's gives way, while a pipe runs
PR_SET_TIMERSLACK, SLACK = 29, 1000  # nanoseconds that Linux may wake a thread late; else 50,000


class Runs(Protocol):
    """An epoch that threads work on."""

    has_left: bool

    def work(self, number: int) -> None:
        """Work in a thread until the epoch is made."""

    def fail(self, error: BaseException) -> None:
        """A thread cannot go on."""

    def gone(self) -> None:
        """A thread has ended."""

    def stop(self) -> None:
        """Threads are to end."""

    def join(self) -> None:
        """Wait until they have."""


class Thread(threading.Thread):
    """One of an epoch's threads. It is a daemon, since what ends the interpreter ends it before."""

    def __init__(self, work: Runs, number: int, context: contextvars.Context) -> None:
        super().__init__(name=f"ostinato-feed-{number}", daemon=True)
        self.work_on, self.number, self.context = work, number, context

    def run(self) -> None:
        if sys.platform == "linux":  # or each wait for a busy main thread takes 50 us longer
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, SLACK, 0, 0, 0)
        try:
            self.context.run(self.work_on.work, self.number)
        except BaseException as error:  # of the pipe itself, or no memory: nobody waits for it
            self.work_on.fail(error)
        finally:
            work = self.work_on
            del self.work_on, self.context
            work.gone()


def run_times(thread: int) -> tuple[int, int]:
    """Nanoseconds that a thread was on a core, and that it waited for one; zeros where nobody knows."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            on, off, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0, 0
    return on, off


class Running:
    """Epochs that are being made, and what holds meanwhile: threads of Python give way sooner, or one that
    decodes would wait 5 ms for a busy main thread each time it comes back from its library."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.works: Living[Runs] = Living()
        self.count = 0
        self.before = 0.0

    def enter(self, work: Runs) -> None:
        with self.lock:
            self.works.add(work)
            self.count += 1
            if self.count == 1:
                self.before = sys.getswitchinterval()
                if self.before > SWITCH:
                    sys.setswitchinterval(SWITCH)

    def leave(self, work: Runs) -> None:
        with self.lock:
            if not work.has_left:
                work.has_left = True
                self.count -= 1
                if self.count == 0 and abs(sys.getswitchinterval() - SWITCH) < SWITCH / 100:
                    sys.setswitchinterval(self.before)

    def end(self) -> None:
        works = list(self.works)
        for work in works:
            work.stop()
        for work in works:
            work.join()

    def forked(self) -> None:
        """In a child nothing of it goes on."""
        before, was = self.before, self.count
        self.__init__()  # type: ignore[misc]
        if was and before:
            sys.setswitchinterval(before)


running = Running()
atexit.register(running.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=running.forked)
