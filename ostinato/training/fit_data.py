"""Data as batches, epoch by epoch: of pipes, arrays, iterables, and functions that give these."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from ostinato.errors import ArgumentError
from ostinato.io_pipeline.feed.entries import Cut
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.ops.core.tree import flatten
from ostinato.ops.core.user_line import misfit


class Piped:
    """The batches of a pipe, which knows where it is."""

    again = True

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe

    def epoch(self, epoch: int, skip: int, feed: Any) -> tuple[Iterator[Any], int | None]:
        """The batches of an epoch that are left behind the first ones, and how many it has."""
        if feed is not None:
            self.pipe.restore(feed)
        found = self.pipe.epoch(epoch)
        try:
            return iter(found), skip + len(found)
        except TypeError:  # of a stream
            return iter(found), None

    def state(self) -> Any:
        return self.pipe.state()


class Iterated:
    """The batches of whatever can be iterated over. What was used before is read again."""

    def __init__(self, make: Callable[[int], Iterable[Any]], again: bool) -> None:
        self.make = make
        self.again = again

    def epoch(self, epoch: int, skip: int, feed: Any) -> tuple[Iterator[Any], int | None]:
        found = self.make(epoch)
        count = len(found) if isinstance(found, Sized) else None
        return itertools.islice(iter(found), skip, None), count

    def state(self) -> Any:
        return None


Batches = Piped | Iterated


def batches_of(who: str, data: Any, batch: int | None, shuffle: int | None) -> Batches:
    """Data as it is given, as batches."""
    if isinstance(data, Pipe):
        is_cut = any(isinstance(e.what, Cut) for e in data.entries)
        return Piped(data if is_cut or batch is None else data.batch(batch))
    if are_arrays(data):
        from ostinato import io

        pipe = io.arrays(data)
        pipe = pipe if shuffle is None else pipe.shuffle(seed=shuffle)
        return Piped(pipe.batch(32 if batch is None else batch))
    if batch is not None or shuffle is not None:
        got = f"batch= or shuffle= and {type(data).__name__}"
        needed = "arrays or a pipe, which can be cut into batches"
        raise misfit(ArgumentError, who, got=got, needed=needed)
    if callable(data):
        try:
            inspect.signature(data).bind(0)
        except (TypeError, ValueError):
            return Iterated(lambda epoch: data(), True)
        return Iterated(data, True)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, dict)):
        return Iterated(lambda epoch: data, iter(data) is not data)
    needed = "a pipe, arrays, something to iterate over, or a function that gives that"
    raise misfit(ArgumentError, who, got=f"data of type {type(data).__name__}", needed=needed)


def are_arrays(data: Any) -> bool:
    """Whether these are arrays of samples: one, or a tuple or dict of some."""
    leaves = flatten(data)[0] if isinstance(data, (tuple, dict)) else [data]
    return bool(leaves) and all(getattr(x, "shape", ()) and hasattr(x, "dtype") for x in leaves)


def count_samples(batch: Any) -> int:
    """How many samples a batch has: the length of its first array."""
    for x in flatten(batch)[0]:
        if getattr(x, "shape", ()):
            return int(x.shape[0])
    return 1
