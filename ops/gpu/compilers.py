"""Threads that compile kernels while more of a plan is bound.

What none of them has begun when the program ends, or when Ctrl-C ends who binds or waits, is dropped:
its future is cancelled, and who launches such a kernel compiles it first."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait

from ostinato.ops.core.helpers import begin_to_help
from ostinato.ops.core.locks import make_lock


class Compilers:
    """Up to so many threads, which end when nothing waits for them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = make_lock()
        self._threads: set[threading.Thread] = set()
        self._waiting: deque[tuple[Future[None], Callable[[], None]]] = deque()

    def submit(self, work: Callable[[], None]) -> Future[None]:
        asked = Future[None]()
        with self._lock:
            self._waiting.append((asked, work))
            if len(self._threads) < self.count:
                thread = threading.Thread(
                    target=self._serve, name="ostinato-compiler", daemon=False
                )
                with contextlib.suppress(RuntimeError):  # the interpreter begins no more of them
                    thread.start()
                    self._threads.add(thread)
            started = bool(self._threads)
        if not started:
            self.drop()
        return asked

    def _serve(self) -> None:
        begin_to_help()
        while True:
            if not threading.main_thread().is_alive():  # the program ends, and waits for this
                self.drop()
            with self._lock:
                if not self._waiting:
                    self._threads.discard(threading.current_thread())
                    return
                asked, work = self._waiting.popleft()
            asked.set_running_or_notify_cancel()
            try:
                work()
            except BaseException as error:
                asked.set_exception(error)
            else:
                asked.set_result(None)

    def drop(self) -> None:
        """Leave what waits to who launches it."""
        with self._lock:
            dropped = [asked for asked, _ in self._waiting]
            self._waiting.clear()
        for asked in dropped:
            asked.cancel()
            asked.set_running_or_notify_cancel()  # which wakes who waits

    @contextlib.contextmanager
    def dropping(self) -> Iterator[None]:
        """Drop what waits if this fails, or is interrupted."""
        try:
            yield
        except BaseException:
            self.drop()
            raise

    def wait(self, asked: Future[None]) -> None:
        with self.dropping():
            wait((asked,))
