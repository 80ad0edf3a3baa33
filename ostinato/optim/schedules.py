"""Learning rates as functions of the step: `ost.optim.Adam(lr=ost.optim.Cosine(1e-3, 10_000))`.

A schedule is called with the number of updates that were made before, which is an array of the plan,
so a rate that changes is no new plan. Any function of that number will do in its place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ostinato.errors import ArgumentError
from ostinato.ops.array.arithmetic import floor, maximum, minimum
from ostinato.ops.array.casts import astype
from ostinato.ops.array.elementwise import where
from ostinato.ops.array.transcendental import cos, exp
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array
from ostinato.ops.core.spec import float32
from ostinato.ops.core.user_line import misfit

Rate = Any  # a number, an array, or a schedule


def rate_at(rate: Rate, step: Any) -> Any:
    """A rate at a step."""
    return rate(step) if callable(rate) else rate


def _count(step: Any) -> Array:
    return astype(as_array(step), float32)


def _check_steps(who: str, **given: Any) -> None:
    for name, n in given.items():
        if type(n) is not int or n < 1:
            got, needed = f"{name}={n!r:.60}", "a whole number of steps of 1 or more"
            raise misfit(ArgumentError, who, got=got, needed=needed)


def _between(first: Any, last: Any, share: Any) -> Any:
    """From one number to another along half a wave."""
    return last + (first - last) * (1 + cos(math.pi * share)) / 2


@dataclass(frozen=True)
class StepDecay:
    """A rate that is multiplied by `factor` every so many steps.

    >>> ost.optim.StepDecay(0.1, every=30)(60)
    Array(0.001, dtype=float32)
    """

    lr: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check_steps("StepDecay", every=self.every)

    def __call__(self, step: Any) -> Array:
        times = floor(_count(step) / self.every)
        return as_array(self.lr * exp(times * math.log(self.factor)))


@dataclass(frozen=True)
class Exponential:
    """A rate that is `decay` times as large after every so many steps, smoothly.

    >>> ost.optim.Exponential(1.0, decay=0.25, every=2)(1)
    Array(0.5, dtype=float32)
    """

    lr: float
    decay: float
    every: int = 1

    def __post_init__(self) -> None:
        _check_steps("Exponential", every=self.every)

    def __call__(self, step: Any) -> Array:
        return as_array(self.lr * exp(_count(step) * (math.log(self.decay) / self.every)))


@dataclass(frozen=True)
class Cosine:
    """Half a wave from `lr` down to `end`, where it stays after so many steps.

    >>> ost.optim.Cosine(1.0, steps=100)(50)
    Array(0.5, dtype=float32)
    """

    lr: float
    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        _check_steps("Cosine", steps=self.steps)

    def __call__(self, step: Any) -> Array:
        return as_array(_between(self.lr, self.end, minimum(_count(step) / self.steps, 1.0)))


@dataclass(frozen=True)
class Polynomial:
    """From `lr` to `end` within so many steps: a line, or its `power`.

    >>> ost.optim.Polynomial(1.0, steps=100, power=2.0)(50)
    Array(0.25, dtype=float32)
    """

    lr: float
    steps: int
    end: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        _check_steps("Polynomial", steps=self.steps)

    def __call__(self, step: Any) -> Array:
        left = 1 - minimum(_count(step) / self.steps, 1.0)
        return as_array(self.end + (self.lr - self.end) * left**self.power)


@dataclass(frozen=True)
class Warmup:
    """A line from `start` up to a rate within so many steps, then that rate, whose steps count from there.

    >>> rate = ost.optim.Warmup(ost.optim.Cosine(1.0, steps=90), steps=10)
    >>> rate(5), rate(10)
    (Array(0.5, dtype=float32), Array(1., dtype=float32))
    """

    lr: Rate
    steps: int
    start: float = 0.0

    def __post_init__(self) -> None:
        _check_steps("Warmup", steps=self.steps)

    def __call__(self, step: Any) -> Array:
        count = _count(step)
        behind = rate_at(self.lr, maximum(count - self.steps, 0.0))
        rising = self.start + (rate_at(self.lr, 0) - self.start) * (count / self.steps)
        return where(count < self.steps, rising, behind)


@dataclass(frozen=True)
class OneCycle:
    """Up to `lr` and down again, each half a wave: Smith's cycle, as PyTorch has it.

    rising: the part of all steps on the way up. It begins at lr / first, and ends at a last-th of that.

    >>> ost.optim.OneCycle(1.0, steps=101)(29.3)
    Array(1., dtype=float32)
    """

    lr: float
    steps: int
    rising: float = 0.3
    first: float = 25.0
    last: float = 1e4

    def __post_init__(self) -> None:
        _check_steps("OneCycle", steps=self.steps)

    def __call__(self, step: Any) -> Array:
        count = _count(step)
        top, begin = self.rising * self.steps - 1, self.lr / self.first
        up = _between(begin, self.lr, count / max(top, 1e-9))
        share = minimum((count - top) / max(self.steps - 1 - top, 1e-9), 1.0)
        return where(count <= top, up, _between(self.lr, begin / self.last, share))


@dataclass(frozen=True)
class Piecewise:
    """Constants, each from a step on: one more than there are `boundaries`.

    >>> ost.optim.Piecewise((0.1, 0.01), boundaries=(1000,))(1000)
    Array(0.01, dtype=float32)
    """

    values: tuple[float, ...]
    boundaries: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.boundaries) + 1 or [*self.boundaries] != sorted(
            self.boundaries
        ):
            got = f"{len(self.values)} values and boundaries={self.boundaries!r:.60}"
            needed = "boundaries that rise, and one value more than these"
            raise misfit(ArgumentError, "Piecewise", got=got, needed=needed)

    def __call__(self, step: Any) -> Array:
        count = _count(step)
        found = 0 * count + self.values[0]
        for value, begin in zip(self.values[1:], self.boundaries, strict=True):
            found = where(count >= begin, value, found)
        return found
