"""Random numbers that depend on where they are drawn alone: on the seed, the epoch, the sample's place in it
and the stage. So no thread, chunk, worker or interruption changes them.

They are Philox's (Salmon et al., 2011): a function of a key and a counter. A thread has one generator and
sets its counter, which takes a tenth of the time of making another one."""

from __future__ import annotations

from typing import Any

import numpy as np

from .sample_order import keyed

Numbers = np.ndarray[Any, np.dtype[np.float64]]
REPLACED = (1 << 63) + 1  # in place of a stage's number: which samples replace others


class Draws:
    """Random numbers of a sample for a stage. What is drawn are float64 in [0, 1), of 53 bits each;
    all else is made of them, so that another device can draw the same."""

    __slots__ = ("_counter", "_generator", "_random", "_state")

    def __init__(self, seed: int, epoch: int) -> None:
        key = [keyed(seed, epoch, 1), keyed(seed, epoch, 2)]
        self._generator = np.random.Philox(key=np.array(key, np.uint64))
        self._state: Any = self._generator.state
        self._counter = self._state["state"]["counter"]
        self._random = np.random.Generator(self._generator)

    def seek(self, place: int, stage: int) -> Draws:
        """From the beginning of what there is to draw for a sample in a stage."""
        counter = self._counter
        counter[0], counter[1], counter[2] = 0, place, stage
        self._generator.state = self._state
        return self

    @property
    def keys(self) -> tuple[int, int]:
        """Return the keys that they depend on besides counters, as signed words."""
        first, second = self._state["state"]["key"].view(np.int64).tolist()
        return first, second

    @property
    def place(self) -> int:
        """Return the sample's place in the epoch."""
        return int(self._counter[1])

    @property
    def generator(self) -> np.random.Generator:
        """NumPy's own, for distributions that this class lacks."""
        return self._random

    def random(self, size: int | tuple[int, ...] | None = None) -> Any:
        return self._random.random(size)

    def uniform(self, low: float, high: float, size: int | tuple[int, ...] | None = None) -> Any:
        return low + (high - low) * self._random.random(size)

    def chance(self, p: float) -> bool:
        return bool(self._random.random() < p)

    def integer(self, low: int, high: int) -> int:
        """One of low..high-1."""
        return low + int((high - low) * self._random.random())

    def normal(self, size: int | tuple[int, ...] | None = None) -> Any:
        """By Box and Muller's method."""
        radius = np.sqrt(-2.0 * np.log1p(-self._random.random(size)))
        return radius * np.cos(2.0 * np.pi * self._random.random(size))
