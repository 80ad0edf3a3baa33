"""Where random numbers begin when a call names no seed."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError

from ..array.casts import astype
from ..core.apply import as_array
from ..core.array import Array
from ..core.spec import is_integer, uint64
from ..core.user_line import misfit


def mix(base: int, count: int) -> int:
    """One seed from two numbers (splitmix64)."""
    z = (base + count * 0x9E3779B97F4A7C15) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return z ^ (z >> 31)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def fold(seed: Any, number: Any) -> Array:
    """The seed that a number, or each of several, makes of a seed (splitmix64): `fold(seed, k)` for
    the k-th of many that draw.

    >>> ost.random.fold(7, 1).dtype
    dtype('uint64')
    """
    z = as_seed(seed) + (astype(as_array(number), uint64) + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def as_seed(given: Any) -> Array:
    if given is None:
        given = seeds.next()
    if isinstance(given, int):
        return as_array(np.uint64(given & (2**64 - 1)))
    x = as_array(given)
    if x.shape or not is_integer(x.dtype):
        raise misfit(ArgumentError, "seed", got=f"{x.spec.bare}", needed="one whole number")
    return astype(x, uint64)


class Seeds(threading.local):
    """Where seeds come from when a call names none: a base and a counter, the same for all threads.
    While a function is traced, its own `draw` stands here, so that each call of the compiled
    function, and each turn of a loop, draws anew."""

    draw: Callable[[], Any] | None = None
    _base = int.from_bytes(os.urandom(8), "little")  # another in each process
    _count = itertools.count(1)
    _forks = 0

    def __reduce__(self) -> str:
        return "seeds"

    def next(self) -> Any:
        return self.draw() if self.draw is not None else self.advance()

    def advance(self) -> int:
        return mix(Seeds._base, next(Seeds._count))

    @staticmethod
    def start(base: int) -> None:
        Seeds._base, Seeds._count, Seeds._forks = base, itertools.count(1), 0

    @staticmethod
    def prepare_fork() -> None:
        Seeds._forks += 1

    @staticmethod
    def reseed_child() -> None:
        """A sequence of its own, which the parent's seed and the number of the fork decide."""
        Seeds.start(mix(~Seeds._base & (2**64 - 1), Seeds._forks))

    @contextlib.contextmanager
    def folding(self, number: Array) -> Iterator[None]:
        """Within it, draws differ from turn to turn of a loop, or from element to element of what `vmap` maps
        over. Of loops in loops each folds its turn in, as a sum of turns would come to the same in other
        turns of both."""
        with self._drawing(lambda seed: fold(seed, number)):
            yield

    @contextlib.contextmanager
    def _drawing(self, change: Callable[[Any], Array]) -> Iterator[None]:
        outer = self.draw
        self.draw = lambda: change(outer() if outer else self.advance())
        try:
            yield
        finally:
            self.draw = outer

    @contextlib.contextmanager
    def refused(self, what: str) -> Iterator[None]:
        """Within it, a draw has to name its seed."""

        def refuse() -> Any:
            got = "no seed"
            needed = "a seed of their own, that changes from turn to turn"
            do = "carry one in the state and pass seed="
            raise misfit(ArgumentError, f"random numbers in {what}", got=got, needed=needed, do=do)

        outer, self.draw = self.draw, refuse
        try:
            yield
        finally:
            self.draw = outer


seeds = Seeds()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=Seeds.prepare_fork, after_in_child=Seeds.reseed_child)
