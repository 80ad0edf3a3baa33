"""Which samples are in which batch of an epoch, or of a worker's part of it.

Batch k has the places k*B to (k+1)*B of the epoch, whoever makes it; of n workers each has a part of every
batch, so all of them make equally many."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .sample_order import Buckets, Order
from .samples import Samples, Stream

STRETCH = 2048  # places whose samples are found together
DROP, KEEP, PAD = TAILS = ("drop", "keep", "pad")


Rows = Callable[[int], tuple[int, int]]  # of a batch of so many samples: those that are made here


def rows_of(rank: int, workers: int) -> Rows:
    """One of equal parts."""
    return lambda count: (count * rank // workers, count * (rank + 1) // workers)


@dataclass(frozen=True)
class Portion:
    """A batch that is still to be made."""

    number: int  # in the epoch
    places: list[int]
    samples: list[int]
    items: Sequence[Any] | None = None  # of a stream: the samples themselves
    end: int | None = None  # the place behind it, where that depends on samples


class Portions:
    """The batches of an epoch, from a place on. `open` is called by one thread at a time."""

    def __init__(
        self,
        source: Samples,
        order: Order | Buckets,
        epoch: int,
        size: int,
        tail: str,
        rows: Rows,
        start: int,
        beyond: frozenset[int] = frozenset(),
    ) -> None:
        self.source, self.order, self.epoch = source, order, epoch
        self.size, self.tail, self.rows = size, tail, rows
        self.start, self.next = start, start // size
        self.beyond = beyond  # numbers of batches that were handed out before
        self._first, self._found = 0, np.zeros(0, np.int64)
        self.total = 0 if isinstance(source, Stream) else len(order)

    def __len__(self) -> int:
        """Batches that are left to be opened, of a source whose length is known."""
        return max(self._end() - self.next, 0) - sum(n >= self.next for n in self.beyond)

    def _end(self) -> int:
        whole = self.total // self.size
        return whole if self.tail == DROP else whole + (self.total % self.size > 0)

    def count(self, number: int) -> int:
        """Samples of a batch, of all workers together."""
        left = self.total - number * self.size
        return min(self.size, left) if self.tail == KEEP else self.size

    def new(self) -> Portion | None:
        """The next one that was not handed out; None at the end."""
        while (found := self.open()) is not None and found.number in self.beyond:
            pass
        return found

    def open(self) -> Portion | None:
        """The next one; None at the end."""
        number = self.next
        if number >= self._end():
            return None
        self.next += 1
        first = number * self.size
        last = first + self.count(number)
        lo, hi = self._share(first, last)
        lo, hi = max(lo, self.start), max(hi, self.start)
        return Portion(number, list(range(lo, hi)), self._samples(lo, hi))

    def _samples(self, lo: int, hi: int) -> list[int]:
        """Find the samples of these places. Those of a stretch are found together, since NumPy's
        calls take longer than what they do for a few numbers."""
        first = self._first
        if not first <= lo <= hi <= first + len(self._found):
            first = self._first = lo
            places = np.arange(lo, max(hi, lo + STRETCH), dtype=np.int64) % max(self.total, 1)
            self._found = self.order.samples(self.epoch, places)
        return self._found[lo - first : hi - first].tolist()

    def _share(self, first: int, last: int) -> tuple[int, int]:
        lo, hi = self.rows(last - first)
        return first + lo, first + hi


class StreamPortions(Portions):
    """The same of an iterator. All of it is taken, by every worker."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        assert isinstance(self.source, Stream)
        self.iterator = self.source.begin()
        for _ in itertools.islice(self.iterator, self.next * self.size):
            pass

    def __len__(self) -> int:
        raise TypeError("the length of a stream is not known")

    def open(self) -> Portion | None:
        items = list(itertools.islice(self.iterator, self.size))
        if not items or (len(items) < self.size and self.tail == DROP):
            return None
        first = self.next * self.size
        self.next += 1
        lo, hi = self._share(first, first + len(items))
        lo = min(max(lo, self.start), hi)
        places = list(range(lo, hi))
        return Portion(self.next - 1, places, places, items[lo - first : hi - first])
