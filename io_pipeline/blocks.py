"""Arrays that a program's own code makes, block by block: a function of a block's place, or something to
iterate over, whose pieces follow each other along the first axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.layout import Box, Shape
from ostinato.ops.core.locks import make_lock

from ostinato.errors import ArgumentError

from .source import Source

WHO = "from_blocks"
READERS = 8  # iterators that go on where they are, for workers that read other parts


class _Made(Source):
    """What both have in common."""

    def __init__(self, given: Any, shape: Shape, dtype: np.dtype[Any]) -> None:
        self.given, self.shape, self.dtype = given, shape, dtype
        named = getattr(given, "__qualname__", type(given).__qualname__)
        self.path = f"<blocks of {named}>"

    def as_data(self) -> dict[str, Any]:
        got = "workers that are other processes"
        do = "save it to a file in a session of this process, and load that"
        raise ArgumentError.because(WHO, got=got, needed="what they can open, too", do=do)

    def array(self, found: Any) -> np.ndarray[Any, Any]:
        """Convert what the program made, if it may become numbers of this dtype."""
        made = np.asarray(found)
        if not np.can_cast(made.dtype, self.dtype, "same_kind"):
            got = f"a block of {made.dtype}"
            raise ArgumentError.because(WHO, got=got, needed=f"one of {self.dtype}, as was said")
        return made


class FromFunction(_Made):
    """`given` makes a block of its place: slices that cut it from the whole."""

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        made = self.array(self.given(tuple(slice(lo, hi) for lo, hi in box)))
        wanted = tuple(hi - lo for lo, hi in box)
        if made.shape != wanted:
            got = f"a block of shape {made.shape}"
            raise ArgumentError.because(WHO, got=got, needed=f"{wanted}, as its slices say")
        out[...] = made


@dataclass(slots=True)
class _Reader:
    """How far one has come, and the piece where that is."""

    pieces: Iterator[Any]
    begin: int = 0
    piece: np.ndarray[Any, Any] | None = None

    @property
    def end(self) -> int:
        return self.begin + (0 if self.piece is None else len(self.piece))


class FromIterable(_Made):
    """Pieces in order. An iterator gives them once: what was passed can not be read again."""

    in_turn = True

    def __init__(self, given: Iterable[Any], shape: Shape, dtype: np.dtype[Any]) -> None:
        super().__init__(given, shape, dtype)
        first = iter(given)
        self.once = first is given
        self.readers = [_Reader(first)]
        self.lock = make_lock()

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        (lo, hi), *inner = box
        reader, at = self._near(lo), lo
        while at < hi:
            piece = self._piece(reader, at)
            end = min(hi, reader.end)
            rows = piece[at - reader.begin : end - reader.begin]
            out[at - lo : end - lo] = rows[(slice(None), *(slice(*cut) for cut in inner))]
            at = end
        with self.lock:
            self.readers = [*self.readers[1 - READERS :], reader]

    def _near(self, row: int) -> _Reader:
        """The reader that is nearest before a row, taken from those who wait; a new one from the
        beginning, if there is none."""
        with self.lock:
            found = max(
                (r for r in self.readers if r.begin <= row), key=lambda r: r.begin, default=None
            )
            if found is not None:
                self.readers = [r for r in self.readers if r is not found]
                return found
        if self.once:
            raise ArgumentError.because(
                WHO,
                got=f"a second read of row {row}, which an iterator has passed",
                needed="one read of each block, in order, by one worker",
                do="give a function of a block's slices, or what can be iterated over again; or "
                "save it to a file first",
            )
        return _Reader(iter(self.given))

    def _piece(self, reader: _Reader, row: int) -> np.ndarray[Any, Any]:
        """The piece that has a row. Those before are dropped."""
        while reader.piece is None or row >= reader.end:
            try:
                made = self.array(next(reader.pieces))
            except StopIteration:
                got = f"an end after {reader.end} rows"
                raise ArgumentError.because(WHO, got=got, needed=f"{self.shape[0]}") from None
            if made.shape[1:] != self.shape[1:] or not made.ndim:
                needed = "rows of " + "x".join(map(str, self.shape[1:])) if made.ndim else "rows"
                got = f"a block of shape {made.shape}"
                raise ArgumentError.because(WHO, got=got, needed=needed)
            reader.begin, reader.piece = reader.end, made
        return reader.piece
