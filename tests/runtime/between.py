"""Somebody between a program and the lead of a crew, who changes what they say: a real connection to each."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

GREETING = 64  # bytes that each side says first: a number, and the proof
HEAD = {"program": 48, "lead": 16}  # bytes of a message's head, which says how long it is
LENGTH = {"program": 0, "lead": 4}  # where
SIGNED = 16


class Change(NamedTuple):
    """What is done with a stream at one place."""

    who: str  # says what is changed
    at: int
    flip: int = 0  # bits of the byte there
    cut: int = 0  # bytes that are left out
    put: bytes = b""  # what comes in between
    ends: bool = False  # nothing that follows is let through
    has_begun: bool = False  # a message, of which the rest never comes

    def of(self, data: bytes, first: int) -> bytes:
        """What becomes of these bytes, the first of which has this place."""
        at = self.at - first
        here = b""
        if 0 <= at < len(data):
            here = bytes([data[at] ^ self.flip]) if self.flip else self.put
        after = max(0, at + max(self.cut, int(self.flip > 0)))
        return data[: max(0, at)] + here + (b"" if self.ends else data[after:])


class Between:
    def __init__(self, lead: tuple[str, int], change: Change) -> None:
        self.change = change
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.server.getsockname()[:2]
        self.lead = socket.create_connection(lead)
        self.lines = [self.server, self.lead]
        threading.Thread(target=self._meet, daemon=True).start()

    def _meet(self) -> None:
        with contextlib.suppress(OSError):
            program, _ = self.server.accept()
            self.lines.append(program)
            ways = {"program": (program, self.lead), "lead": (self.lead, program)}
            for who, way in ways.items():
                threading.Thread(target=self._carry, args=(who, *way), daemon=True).start()

    def _carry(self, who: str, source: socket.socket, to: socket.socket) -> None:
        place = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                first, place = place, place + len(data)
                to.sendall(self.change.of(data, first) if who == self.change.who else data)
            to.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Between:
        return self

    def __exit__(self, *_: object) -> None:
        for line in self.lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()


def changes() -> Iterator[tuple[str, Change]]:
    """In the greeting of each, in the head of its first message, within its second, and between two."""
    for who, head in HEAD.items():
        second = GREETING + head + SIGNED
        places = {"greeting": 40, "head": GREETING + 9, "rest": second + head + SIGNED + 3}
        for name, at in places.items():
            begun = who == "program" and name != "greeting"
            yield f"{who}: a bit of its {name}", Change(who, at, flip=4)
            yield f"{who}: without a byte of its {name}", Change(who, at, cut=1)
            yield f"{who}: one more in its {name}", Change(who, at, put=b"x")
            yield f"{who}: not the rest of its {name}", Change(who, at, ends=True, has_begun=begun)
        for byte in range(4):
            yield (
                f"{who}: a length, byte {byte}",
                Change(who, GREETING + LENGTH[who] + byte, flip=1),
            )
        yield f"{who}: a signature", Change(who, second - 1, flip=128)
        yield f"{who}: nothing after a message", Change(who, second, ends=True)
        yield f"{who}: not its first message", Change(who, GREETING, cut=head + SIGNED)
