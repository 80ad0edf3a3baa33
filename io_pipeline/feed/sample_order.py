"""In which order an epoch takes its samples, as a function: from a place in the epoch to a sample. No list is
shuffled and no buffer filled, so any place of any epoch is as near as the first.

A shuffle is a bijection of 0..n-1: a Feistel network permutes the numbers of the next power of two, and
what lands at n or beyond is sent through it again until it does not (Black and Rogaway, 2002)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Places = np.ndarray[Any, np.dtype[np.int64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]

ROUNDS = 8
MAX_SORTED = 1 << 12  # up to here numbers are sorted by a hash: few bits make a poor network
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """A hash of 64 bits (the end of splitmix64)."""
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def keyed(*parts: int) -> int:
    """One number of 64 bits of several of any size."""
    key = len(parts)
    for part in parts:
        while True:
            key, part = mix(key ^ (part & _MASK)), part >> 64
            if part in (0, -1):
                break
        key ^= part & 1  # -1 is not 2**64 - 1
    return key


def _mixed(x: Words) -> Words:
    """`mix` of many."""
    x = x + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Bijection:
    """A permutation of 0..n-1, chosen by a key."""

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        self.table: Places | None = None
        if n <= MAX_SORTED:
            hashes = _mixed(np.arange(n, dtype=np.uint64) ^ np.uint64(mix(key)))
            self.table = np.argsort(hashes, kind="stable")
            return
        bits = (n - 1).bit_length()
        self.low, self.high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
        self.keys = [np.uint64(keyed(key, k)) for k in range(ROUNDS)]

    def __call__(self, places: Places) -> Places:
        if self.table is not None:
            return self.table[places]
        found = self._network(places.astype(np.uint64))
        n = np.uint64(self.n)
        while (outside := np.flatnonzero(found >= n)).size:
            found[outside] = self._network(found[outside])
        return found.astype(np.int64)

    def _network(self, x: Words) -> Words:
        """A permutation of the numbers below a power of two. The two halves may differ by a bit, so
        they change places from round to round, and with them their widths."""
        low, high = self.low, self.high
        for key in self.keys:
            mask = (np.uint64(1) << high) - np.uint64(1)
            right = x & ((np.uint64(1) << low) - np.uint64(1))
            left = (x >> low) ^ (_mixed(right ^ key) & mask)
            x = (right << high) | left
            low, high = high, low
        return x


@dataclass(frozen=True)
class Order:
    """The samples of an epoch: `passes` times all `n` of them, each time shuffled anew if there is a
    seed. With `block`, runs of so many samples stay near each other: a shuffled row of blocks, and
    `window` of them shuffled together."""

    n: int
    seed: int | None = None
    passes: int = 1
    block: int = 0
    window: int = 1

    def __len__(self) -> int:
        return self.n * self.passes

    def samples(self, epoch: int, places: Places) -> Places:
        """Which samples are at these places of an epoch."""
        if self.passes == 1:
            return self._one(epoch, 0, places)
        rounds = places // self.n if self.n else places
        found = np.empty_like(places)
        for k in np.unique(rounds):
            here = rounds == k
            found[here] = self._one(epoch, int(k), places[here] - k * self.n)
        return found

    def _one(self, epoch: int, turn: int, places: Places) -> Places:
        if self.seed is None:
            return places
        if not self.block:
            return _bijection(self.n, keyed(self.seed, epoch, turn))(places)
        return self._local(places, keyed(self.seed, epoch, turn))

    def _local(self, places: Places, key: int) -> Places:
        """Whole windows of whole blocks are permuted, and what lands beyond the last sample is sent
        through again."""
        blocks = -(-self.n // self.block)
        windows = -(-blocks // self.window)
        span = self.window * self.block
        outer = _bijection(windows * self.window, keyed(key, 1))

        def permuted(x: Places) -> Places:
            window, inner = x // span, x % span
            mixed = np.empty_like(inner)
            for w in np.unique(window):
                here = window == w
                mixed[here] = _bijection(span, keyed(key, 2, int(w)))(inner[here])
            slot = window * self.window + mixed // self.block
            return outer(slot) * self.block + mixed % self.block

        found = permuted(places)
        while (outside := np.flatnonzero(found >= self.n)).size:
            found[outside] = permuted(found[outside])
        return found


@dataclass(frozen=True, eq=False)
class Weighted(Order):
    """Samples drawn one after another with chances as their weights say: of all at each place, or of those
    that were not drawn yet (Efraimidis and Spirakis, 2006: whose clock rings first)."""

    weights: np.ndarray[Any, Any] = field(kw_only=True)
    replacement: bool = field(kw_only=True)
    _tables: dict[int, Any] = field(default_factory=dict, init=False)

    def _one(self, epoch: int, turn: int, places: Places) -> Places:
        key = keyed(self.seed or 0, epoch, turn, 4)
        if not self.replacement:
            return self._table(key)[places]
        ends = np.cumsum(self.weights)
        found = np.searchsorted(ends, _uniform(key, places) * ends[-1], "right")
        last = np.flatnonzero(self.weights)[-1]  # what rounding up leads behind
        return np.minimum(found, last).astype(np.int64)

    def _table(self, key: int) -> Places:
        """The samples of an epoch's pass, the last of which stays here."""
        if key not in self._tables:
            self._tables.clear()
            self._tables[key] = self._drawn(key)
        found: Places = self._tables[key]
        return found

    def _drawn(self, key: int) -> Places:
        (there,) = np.nonzero(self.weights)
        clocks = -_log(_uniform(key, there)) / self.weights[there]
        return there[np.argsort(clocks, kind="stable")[: self.n]]


@dataclass(frozen=True, eq=False)
class Balanced(Weighted):
    """As many samples of each class, each at most once, shuffled. weights: numbers of classes."""

    def _drawn(self, key: int) -> Places:
        samples = np.arange(len(self.weights), dtype=np.int64)
        shuffled = np.lexsort((_uniform(key, samples), self.weights))  # within each class
        sizes = np.bincount(self.weights)
        first = np.cumsum(sizes) - sizes
        turns, classes = np.divmod(np.arange(self.n), len(sizes))
        found: Places = shuffled[first[classes] + turns]
        return found[_bijection(self.n, keyed(key, 1))(np.arange(self.n))]


def _uniform(key: int, places: Places) -> np.ndarray[Any, Any]:
    """Numbers in (0, 1), each of its place."""
    bits = _mixed(places.astype(np.uint64) ^ np.uint64(mix(key)))
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _log(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The logarithm to some 1e-14, of sums and products alone: libraries differ in the last bit from
    machine to machine, and orders must not."""
    part, power = np.frexp(x)
    t = (part - 0.75) / (part + 0.75)
    square = t * t
    series = np.zeros_like(t)
    for k in range(19, 0, -2):
        series = series * square + 1.0 / k
    return 2.0 * t * series + (power * 0.6931471805599453 - 0.2876820724517809)


class Buckets:
    """An order in which the samples of a batch are about as long: of so many batches that follow each
    other, the samples are sorted by length, and the batches shuffled."""

    def __init__(self, order: Order, lengths: Places, size: int, window: int) -> None:
        self.order, self.lengths, self.size, self.window = order, lengths, size, window

    def __len__(self) -> int:
        return len(self.order)

    def samples(self, epoch: int, places: Places) -> Places:
        span = self.size * self.window
        windows = places // span
        found = np.empty_like(places)
        for w in np.unique(windows):
            here = windows == w
            found[here] = self._window(epoch, int(w))[places[here] - w * span]
        return found

    def _window(self, epoch: int, w: int) -> Places:
        first = w * self.size * self.window
        last = min(first + self.size * self.window, len(self))
        samples = self.order.samples(epoch, np.arange(first, last, dtype=np.int64))
        samples = samples[np.argsort(self.lengths[samples], kind="stable")]
        whole = (last - first) // self.size
        batches = Bijection(whole, keyed(self.order.seed or 0, epoch, 3, w))
        turned = batches(np.arange(whole, dtype=np.int64))
        mixed = samples[: whole * self.size].reshape(whole, self.size)[turned]
        return np.concatenate((mixed.reshape(-1), samples[whole * self.size :]))


def _bijection(n: int, key: int) -> Bijection:
    """The last few, since batches that follow each other need the same ones."""
    made = _kept.get((n, key))
    if made is None:
        while len(_kept) >= KEPT:
            _kept.pop(next(iter(_kept)), None)
        made = _kept[n, key] = Bijection(n, key)
    return made


KEPT = 64
_kept: dict[tuple[int, int], Bijection] = {}
