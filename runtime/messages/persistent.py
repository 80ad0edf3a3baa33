"""Small messages that are sent again and again, each time from and to the same memory: MPI is told once what
they are, and from then on only to begin. They need no numbers: both sides begin them in the same order,
in which MPI keeps messages of one tag."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ostinato.ops.core.device import Messages

from .communicator import octets

Pending = tuple[list[Any], list[Any]]  # requests of what is received, and of what is sent


class Sender(Protocol):
    """Whose messages they are."""

    comm: Any
    byte: Any
    going: Any  # operations under way
    bytes_to: list[int]
    talking: float

    def until(self, happened: Any) -> None: ...


clock = time.perf_counter


class Mail:
    """The messages of one operation, whose arrays lie in one piece."""

    __slots__ = (
        *("__weakref__", "_comm", "_finish"),
        *("_receives", "_sends", "_sizes", "_starts", "_tests"),
    )

    def __init__(self, comm: Sender, sends: Messages, receives: Messages, tag: int) -> None:
        self._comm = comm
        self._finish: Callable[[], None] | None = None
        self._sizes = [(to, x.nbytes) for to, x in sends]
        self._sends = [*_requests(comm.comm.Send_init, comm.byte, sends, tag)]
        self._receives = [*_requests(comm.comm.Recv_init, comm.byte, receives, tag)]
        self._starts = [r.Start for r in (*self._receives, *self._sends)]
        self._tests = [r.Test for r in (*self._receives, *self._sends)]

    def start(self, finish: Callable[[], None] | None = None) -> Mail:
        """Begin; who waits for it finishes, when all has arrived."""
        comm = self._comm
        began = clock()
        self._finish = finish
        comm.going.add(self)
        for start in self._starts:
            start()
        for to, size in self._sizes:
            comm.bytes_to[to] += size
        comm.talking += clock() - began
        return self

    def wait(self) -> None:
        comm = self._comm
        began = clock()
        for has_gone in self._tests:
            if not has_gone():
                comm.until(has_gone)
        comm.going.discard(self)
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        comm.talking += clock() - began

    def stop(self) -> Pending:
        """Go no further; what is under way."""
        self._finish = None
        receives, sends = (
            [r for r in requests if not r.Test()] for requests in (self._receives, self._sends)
        )
        return receives, sends

    def free(self) -> None:
        """Give back what MPI keeps for it."""
        receives, self._receives = self._receives, []
        sends, self._sends = self._sends, []
        self._starts.clear()
        self._tests.clear()
        for request in (*receives, *sends):
            request.Free()

    def __del__(self) -> None:
        self.free()


def _requests(make: Callable[..., Any], byte: Any, messages: Messages, tag: int) -> Iterator[Any]:
    """Several to one worker have several tags."""
    count = Counter[int]()
    for peer, x in messages:
        yield make((octets(x), byte), peer, tag + count[peer])
        count[peer] += 1
