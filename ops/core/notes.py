"""What kernels of a device note instead of raising it: whether all places that they were given are inside, and
whether matrices have the factors that were asked for. The host would have to wait for them to know; so each
kernel goes on, with places that are anywhere inside, or with what is no factor, and whoever reads a value looks
at the notes. Other things that kernels refuse are noted in the same way: as 1 where only 0 is inside.

    word     the least and the greatest place that one kernel has seen since somebody looked
    site     the words of an operation of a plan, in the order in which its kernel asks for them"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.errors import BoundsError, LinAlgError, OstinatoError

from .bounds import outside

ROOM = 4096  # words of a worker; what finds none free waits for its places
NOTHING = (0, -1)  # which is inside of whatever there is
_now = threading.local()  # the site of the kernel that this thread calls


def noted(
    places: Any,
    size: int,
    otherwise: str = "",
    kind: type[OstinatoError] = LinAlgError,
    extent: int = 0,
) -> bool:
    """Whether a device notes that places are inside, so that nobody has to look now; `otherwise`, of some
    kind, is the error if some are not. Where slices begin they have an `extent`."""
    note = noting(size, otherwise, kind, extent)
    if note is not None:
        note(places)
    return note is not None


def noting(
    size: int, otherwise: str = "", kind: type[OstinatoError] = LinAlgError, extent: int = 0
) -> Callable[[Any], None] | None:
    """A function that notes places in one word, if a device does that here."""
    site: Site | None = getattr(_now, "site", None)
    return None if site is None else site.noting((size, otherwise, kind, extent))


About = tuple[int, str, type[OstinatoError], int]


def _error(low: int, high: int, about: About) -> tuple[type[OstinatoError], str] | None:
    """Find the error of places from one to another, if some are outside."""
    size, otherwise, kind, extent = about
    if -size <= low and high < size:
        return None
    if otherwise:
        return kind, otherwise
    place = low if low < -size else high
    if not extent:
        return BoundsError, outside(place, size)
    place += size * (place < 0)  # which places before the first one were noted without
    return BoundsError, outside(place, size + extent - 1, extent, "slice")


class Notes:
    """Of one worker."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.words: Any = None
        self.free = list(range(ROOM))
        self.left: list[int] = []  # words of plans that are gone, which nobody looked at yet
        self.about: dict[int, tuple[Any, About]] = {}  # what is kept there: of which node

    def site(self, node: Any) -> Site:
        return Site(self, node)

    def word(self, node: Any, about: About) -> int | None:
        if self.words is None:
            self.words = self.device.from_host(np.tile(np.array(NOTHING), (ROOM, 1)))
        if not self.free:
            return None
        found = self.free.pop()
        self.about[found] = node, about
        return found

    def leave(self, words: Sequence[int]) -> None:
        self.left += words

    def look(self) -> tuple[Any, type[OstinatoError], str] | None:
        """A node and its error, if one found places outside. All is forgotten then."""
        if not self.about:
            return None
        found, wrong = self.device.to_host(self.words), None
        for word, (node, about) in self.about.items():
            low, high = map(int, found[word])
            if wrong is None and (error := _error(low, high, about)) is not None:
                wrong = node, *error
        left, self.left = self.left, []
        for word in left:
            del self.about[word]
            self.free.append(word)
        if wrong is not None or left:
            self.device.xp.copyto(self.words, self.device.from_host(np.tile(NOTHING, (ROOM, 1))))
        return wrong


class Site:
    """An operation of a plan that is bound."""

    def __init__(self, notes: Notes, node: Any) -> None:
        self.notes, self.node = notes, node
        self.words: list[int] = []
        self.next = 0

    def noting(self, about: About) -> Callable[[Any], None] | None:
        if self.next == len(self.words):
            found = self.notes.word(self.node, about)
            if found is None:
                return None
            self.words.append(found)
        word = self.notes.words[self.words[self.next]]
        self.next += 1

        def note(places: Any) -> None:
            if places.size:
                self.notes.device.note(word, places)

        return note

    def watching(self, kernel: Callable[..., None]) -> Callable[..., None]:
        def run(*given: Any, **how: Any) -> None:
            self.next, before = 0, getattr(_now, "site", None)
            _now.site = self
            try:
                kernel(*given, **how)
            finally:
                _now.site = before

        return run

    def __del__(self) -> None:
        if self.words:
            self.notes.leave(self.words)
