"""Sources made of sources: several side by side or in turn, or some of the samples. Each is a source like any
other, so it is shuffled, and gone on from, in the same way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from ostinato.ops.core.tree import Structure
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from .fields import Fields
from .plain import as_plain, from_plain
from .samples import InFiles, Samples, Stream, Through, digest, made_source, source_as_data

MOST_TURNS = 1000  # samples after which the sources of a mixture come in the same order again


def _check_known(who: str, sources: Sequence[Samples]) -> None:
    if not sources or any(isinstance(s, Stream) for s in sources):
        got = "a stream" if sources else "none"
        raise misfit(ArgumentError, who, got=got, needed="sources whose samples have numbers")


class Zipped(Samples):
    """Samples of the same number, as tuples."""

    def __init__(self, sources: Sequence[Samples]) -> None:
        _check_known("zip", sources)
        lengths = [len(s) for s in sources]
        if len({*lengths}) > 1:
            got = f"sources of {', '.join(map(str, lengths))} samples"
            raise misfit(ArgumentError, "zip", got=got, needed="equally many in each")
        self.sources = tuple(sources)
        known = [s.fields for s in sources if s.fields is not None]
        self.fields = _side_by_side(known) if len(known) == len(sources) else None

    def as_data(self) -> Any:
        return [source_as_data(s) for s in self.sources]

    @classmethod
    def from_data(cls, said: Any) -> Samples:
        return cls([made_source(s) for s in said])

    def __len__(self) -> int:
        return len(self.sources[0])

    def read(self, index: int) -> tuple[list[Any], Fields]:
        found = [s.read(index) for s in self.sources]
        leaves = list(itertools.chain.from_iterable(values for values, _ in found))
        return leaves, self.fields or _side_by_side([fields for _, fields in found])

    def parts(self, index: int) -> tuple[list[Any], Fields]:
        found = [s.parts(index) for s in self.sources]
        leaves = list(itertools.chain.from_iterable(values for values, _ in found))
        return leaves, self.fields or _side_by_side([fields for _, fields in found])

    def expect(self, indices: Sequence[int]) -> None:
        for source in self.sources:
            source.expect(indices)

    def identity(self) -> str:
        return digest("zip", *(s.identity() for s in self.sources))

    def name(self, index: int) -> str:
        return " and ".join(s.name(index) for s in self.sources)

    def made_of(self, index: int) -> str:
        return "\0".join(s.made_of(index) for s in self.sources)

    def inner(self) -> Sequence[Samples]:
        return self.sources


def _side_by_side(given: Sequence[Fields]) -> Fields:
    kinds = tuple(itertools.chain.from_iterable(f.kinds for f in given))
    return Fields(kinds, Structure(tuple, None, tuple(f.structure for f in given)))


class Mixed(Through):
    """Samples of several sources, in turns by their weights. All of them have every sample at least once;
    those that come up more often than they are long begin again."""

    def __init__(self, sources: Sequence[Samples], weights: Sequence[float] | None) -> None:
        _check_known("mix", sources)
        if any(not len(s) for s in sources):
            raise misfit(ArgumentError, "mix", got="an empty source", needed="samples in each")
        given = [1.0] * len(sources) if weights is None else list(weights)
        if len(given) != len(sources) or not all(0 < w < math.inf for w in given):
            got, needed = f"weights={given!r}", "a number above 0 for each source"
            raise misfit(ArgumentError, "mix", got=got, needed=needed)
        self.sources, self.weights = tuple(sources), given
        self.counts = _whole(given)
        self.turn = _spread(self.counts)  # the sources of a turn, in order
        seen = [0] * len(sources)
        self.before = []  # of the same source, for each place of a turn
        for k in self.turn:
            self.before.append(seen[k])
            seen[k] += 1
        turns = max(-(-len(s) // n) for s, n in zip(sources, self.counts, strict=True))
        self.length = turns * len(self.turn)

    def as_data(self) -> Any:
        return [[source_as_data(s) for s in self.sources], as_plain(self.weights)]

    @classmethod
    def from_data(cls, said: Any) -> Samples:
        sources, weights = said
        return cls([made_source(s) for s in sources], from_plain(weights))

    def __len__(self) -> int:
        return self.length

    def find(self, index: int) -> tuple[Samples, int]:
        turn, place = divmod(index, len(self.turn))
        k = self.turn[place]
        source = self.sources[k]
        return source, (turn * self.counts[k] + self.before[place]) % len(source)

    def identity(self) -> str:
        return digest("mix", self.counts, *(s.identity() for s in self.sources))

    def inner(self) -> Sequence[Samples]:
        return self.sources


def _whole(weights: Sequence[float]) -> list[int]:
    """Whole numbers in the same proportions, about, of not too large a sum."""
    least = min(weights)
    parts = [Fraction(w / least).limit_denominator(8) for w in weights]
    common = math.lcm(*(p.denominator for p in parts))
    counts = [int(p * common) for p in parts]
    if sum(counts) > MOST_TURNS:
        counts = [max(round(w / sum(weights) * MOST_TURNS), 1) for w in weights]
    return [n // math.gcd(*counts) for n in counts]


def _spread(counts: Sequence[int]) -> list[int]:
    """Each as often as it counts, and evenly: the next is whoever is furthest behind."""
    total, done = sum(counts), [0] * len(counts)
    found = []
    for place in range(total):
        behind = [n * (place + 1) - d * total for n, d in zip(counts, done, strict=True)]
        k = behind.index(max(behind))
        done[k] += 1
        found.append(k)
    return found


class Selected(Through):
    """Some of the samples, by their numbers."""

    def __init__(self, source: Samples, which: Any) -> None:
        _check_known("select", [source])
        found = np.asarray(which)
        if found.dtype == bool and found.shape == (len(source),):
            found = np.flatnonzero(found)
        good = found.ndim == 1 and (found.dtype.kind in "iu" or not found.size)
        if not good or (found.size and not 0 <= found.min() <= found.max() < len(source)):
            needed = f"numbers from 0 to {len(source) - 1}, or a mask of {len(source)}"
            raise misfit(ArgumentError, "select", got=f"{which!r:.60}", needed=needed)
        self.source, self.which = source, found.astype(np.int64)
        self.fields = source.fields
        self.labels = None if source.labels is None else np.asarray(source.labels)[self.which]

    def as_data(self) -> Any:
        return [source_as_data(self.source), as_plain(self.which)]

    @classmethod
    def from_data(cls, said: Any) -> Samples:
        source, which = said
        return cls(made_source(source), from_plain(which))

    def __len__(self) -> int:
        return len(self.which)

    def find(self, index: int) -> tuple[Samples, int]:
        return self.source, int(self.which[index])

    def files(self, indices: Sequence[int]) -> InFiles | None:
        return self.source.files(self.which[indices].tolist())

    def has_read(self, indices: Sequence[int], files: InFiles) -> None:
        self.source.has_read(self.which[indices].tolist(), files)

    def identity(self) -> str:
        return digest("select", self.source.identity(), self.which.tobytes().hex())
