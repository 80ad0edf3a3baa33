"""Members of a zip file that are deflated, read at any place.

Deflated bytes can only be inflated in order. So a read goes on where another one ended, or begins at the
nearest place of which the state of the decompressor was kept on the way: there is one for every 4 MiB,
or for every 64th part of what is larger. Whoever reads in order inflates everything once; workers
who begin elsewhere inflate what is before their part, once. Who comes to the end in order finds
whether all is as it was written."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from ostinato.ops.core.locks import make_lock

if TYPE_CHECKING:
    from zipfile import ZipInfo

    from .source import Get, Source

TAKEN = 1 << 16  # bytes of a file at a time
SKIPPED = 1 << 20  # bytes that are inflated at a time where nobody wants them
APART, POINTS = 4 << 20, 64  # bytes between two states that are kept, and how many at the most
READERS = 8  # places where reads ended, of which one may go on


@dataclass(slots=True)
class _State:
    """How far one has come."""

    inflater: Any
    taken: int = 0  # bytes of the file
    at: int = 0  # bytes that they became
    sum: int = 0  # of all of these

    def copied(self) -> _State:
        return _State(self.inflater.copy(), self.taken, self.at, self.sum)


class ArchiveMember:
    """The bytes of one, from a byte of a file on."""

    def __init__(self, source: Source, begin: int, about: ZipInfo) -> None:
        self.read: Get = source.fill  # type: ignore[attr-defined]
        self.trouble, self.begin, self.about = source.trouble, begin, about
        self.lock = make_lock()
        self.apart = max(APART, -(-about.file_size // POINTS))
        self.points = [_State(zlib.decompressobj(-zlib.MAX_WBITS))]
        self.ended: list[_State] = []  # where reads ended, the last one last

    def fill(self, out: np.ndarray[Any, Any], at: int) -> bool:
        """Read an array's bytes; False if there are not as many."""
        left = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        if at + len(left) > self.about.file_size:
            return False
        state = self._near(at)
        while state.at < at:
            self._more(state, min(at - state.at, SKIPPED))
        while left:
            made = self._more(state, len(left))
            left[: len(made)] = made
            left = left[len(made) :]
        with self.lock:
            self.ended = [*self.ended[1 - READERS :], state]
        return True

    def _near(self, at: int) -> _State:
        """The nearest state before a byte, for its reader alone."""
        with self.lock:
            point = max((p for p in self.points if p.at <= at), key=lambda p: p.at)
            own = max((s for s in self.ended if s.at <= at), key=lambda s: s.at, default=None)
            if own is None or own.at < point.at:
                return point.copied()
            self.ended = [s for s in self.ended if s is not own]
            return own

    def _more(self, state: _State, most: int) -> bytes:
        """The next bytes, so many at the most."""
        most = min(most, SKIPPED, self._next_point(state) - state.at)
        size, made = self.about.compress_size, b""
        try:
            while not made:
                data = state.inflater.unconsumed_tail
                if not data and state.taken < size:
                    taken = np.empty(min(TAKEN, size - state.taken), np.uint8)
                    if not self.read(taken, self.begin + state.taken):
                        raise ValueError("which is cut off")
                    state.taken += len(taken)
                    data = taken.tobytes()
                made = state.inflater.decompress(data, most)
                if not made and (
                    state.inflater.eof or not (data or state.inflater.unconsumed_tail)
                ):
                    raise ValueError(f"which ends after {state.at} bytes")
        except (zlib.error, ValueError) as error:
            got = f"member {self.about.filename!r:.60}, {error}"
            raise self.trouble(got, "it undamaged") from None
        state.at, state.sum = state.at + len(made), zlib.crc32(made, state.sum)
        if state.at == self.about.file_size and state.sum != self.about.CRC:
            got = f"member {self.about.filename!r:.60} with another checksum"
            raise self.trouble(got, "what was written")
        if state.at % self.apart == 0:
            with self.lock:
                if all(p.at != state.at for p in self.points):
                    self.points.append(state.copied())
        return made

    def _next_point(self, state: _State) -> int:
        return (state.at // self.apart + 1) * self.apart
