"""What kernels of a device note instead of raising it: whether all places that they were given are inside, and
whether matrices have the factors that were asked for. The host would have to wait for them to know; so each
kernel goes on, with places that are anywhere inside, or with what is no factor, and whoever reads a value looks
at the notes.

    word     the least and the greatest place that one kernel has seen since somebody looked
    site     the words of an operation of a plan, in the order in which its kernel asks for them"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ROOM = 4096  # words of a worker; what finds none free waits for its places
NOTHING = (0, -1)  # which is inside of whatever there is
_now = threading.local()  # the site of the kernel that this thread calls


def noted(places: Any, size: int, otherwise: str = "") -> bool:
    """Whether a device notes that places are inside, so that nobody has to look now."""
    note = noting(size, otherwise)
    if note is not None:
        note(places)
    return note is not None


def noting(size: int, otherwise: str = "") -> Callable[[Any], None] | None:
    """A function that notes places in one word, if a device does that here; `otherwise`: said of a matrix if
    some are outside."""
    site: Site | None = getattr(_now, "site", None)
    return None if site is None else site.noting(size, otherwise)


class Notes:
    """Of one worker."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.words: Any = None
        self.free = list(range(ROOM))
        self.left: list[int] = []  # words of plans that are gone, which nobody looked at yet
        # what is kept there: a node, an extent, what is said of a matrix
        self.about: dict[int, tuple[Any, int, str]] = {}

    def site(self, node: Any) -> Site:
        return Site(self, node)

    def word(self, node: Any, size: int, otherwise: str) -> int | None:
        if self.words is None:
            self.words = self.device.from_host(np.tile(np.array(NOTHING), (ROOM, 1)))
        if not self.free:
            return None
        found = self.free.pop()
        self.about[found] = node, size, otherwise
        return found

    def leave(self, words: Sequence[int]) -> None:
        self.left += words

    def look(self) -> tuple[Any, int, int, str] | None:
        """A node, a place that is not inside and the extent there, or what is said of a matrix; None if all
        were. All is forgotten then."""
        if not self.about:
            return None
        found, wrong = self.device.to_host(self.words), None
        for word, (node, size, otherwise) in self.about.items():
            low, high = map(int, found[word])
            if wrong is None and (low < -size or high >= size):
                wrong = node, low if low < -size else high, size, otherwise
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

    def noting(self, size: int, otherwise: str) -> Callable[[Any], None] | None:
        if self.next == len(self.words):
            found = self.notes.word(self.node, size, otherwise)
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
        """The kernel, which notes here."""

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
