"""How a value is looked at: a cut, or places along an axis; and what that is of a reshape's operand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ostinato.ops.core.build import Builder
from ostinato.ops.core.spec import Shape, int64
from ostinato.ops.expressions import Expression, constant, iota, where

SPARSE = 8  # times as much between the first and the last as is wanted

Part = tuple[int, int, int]  # of an axis a start, a size and a step


@dataclass(frozen=True, slots=True)
class Cut:
    """Of some axes a start, a size and a step."""

    parts: tuple[tuple[int, int, int, int], ...]  # axis first

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(part[0] for part in self.parts)

    def on(self, axes: dict[int, int]) -> Cut | None:
        parts = tuple((axes[a], *rest) for a, *rest in self.parts if a in axes)
        return Cut(tuple(sorted(parts))) if parts else None  # type: ignore[arg-type]

    def then(self, other: Cut) -> Cut:
        """This one, then another of what it leaves."""
        parts = {a: (start, size, step) for a, start, size, step in self.parts}
        for a, start, size, step in other.parts:
            begin, _, by = parts.get(a, (0, 0, 1))
            parts[a] = begin + by * start, size, by * step
        return Cut(tuple((a, *part) for a, part in sorted(parts.items())))

    def shape(self, builder: Builder, shape: Shape) -> Shape:
        sizes = {a: size for a, _, size, _ in self.parts}
        return tuple(sizes.get(d, n) for d, n in enumerate(shape))


def cut_of(parts: Iterable[Part], shape: Shape) -> Cut | None:
    """What is cut of an array of this shape, if anything is."""
    found = [
        (d, start, size, step if size > 1 else 1)
        for d, ((start, size, step), n) in enumerate(zip(parts, shape, strict=True))
        if (start, size, step if size > 1 else 1) != (0, n, 1)
    ]
    return Cut(tuple(found)) if found else None


@dataclass(frozen=True, slots=True)
class Pick:
    """Places along an axis."""

    axis: int
    places: int  # a value, with one axis

    @property
    def axes(self) -> tuple[int, ...]:
        return (self.axis,)

    def on(self, axes: dict[int, int]) -> Pick | None:
        return Pick(axes[self.axis], self.places) if self.axis in axes else None

    def shape(self, builder: Builder, shape: Shape) -> Shape:
        return (*shape[: self.axis], *builder.specs[self.places].shape, *shape[self.axis + 1 :])


Look = Cut | Pick


# -- reshapes -----------------------------------------------------------------------------------
def groups(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Neighbouring dimensions of both that have the same elements."""
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + len(olds), j + len(news)
        left, right = math.prod(old[d] for d in olds), math.prod(new[d] for d in news)
        while left != right:
            if left < right:
                olds, left, i = [*olds, i], left * old[i], i + 1
            else:
                news, right, j = [*news, j], right * new[j], j + 1
        yield olds, news


class Fold:
    """What is wanted of a group of dimensions, and the rows of the old ones that have it."""

    def __init__(
        self, olds: list[int], news: list[int], old: Shape, new: Shape, look: Look
    ) -> None:
        self.news, self.new_sizes = news, tuple(new[d] for d in news)
        self.is_touched = any(d in news for d in look.axes)
        self.size = math.prod(self.new_sizes)
        self.big = next((d for d in olds if old[d] > 1), olds[0] if olds else -1)
        self.inner = self.size // (old[self.big] if self.big >= 0 else 1)
        given = {a: (s, n, t) for a, s, n, t in look.parts} if isinstance(look, Cut) else {}
        self.parts: list[Part] = [given.get(d, (0, new[d], 1)) for d in news]
        self.between = self.rest = self.parts
        if not self.is_touched:
            return
        ends = [sorted((s, s + step * (n - 1))) for s, n, step in self.parts]
        steps = [math.prod(self.new_sizes[d + 1 :]) for d in range(len(news))]
        p = next((d for d, (lo, hi) in enumerate(ends) if lo < hi), len(news) - 1)
        begin = sum(lo * n for (lo, _), n in zip(ends[: p + 1], steps, strict=False))
        span = ends[p][1] - ends[p][0] + 1
        end = begin + span * steps[p]
        self.is_sparse = end - begin > SPARSE * math.prod(n for _, n, _ in self.parts)
        self.rows: list[tuple[int, Part]] = []
        size, left, low, high = self.size, self.size, begin, end
        for d in olds:  # down to the dimension along which more than one place is needed
            left //= old[d]
            first, last = low // left, -(-high // left)
            self.rows.append((d, (first, last - first, 1)))
            low, high, size = low - first * left, high - first * left, (last - first) * left
            if last - first > 1:
                break
        self.between = [(low, end - begin, 1)]
        self.shapes: tuple[Shape, Shape] = (
            (size,),
            (*(1,) * p, span, *self.new_sizes[p + 1 :]),
        )
        start, count, step = self.parts[p]
        self.rest = [*[(0, 1, 1)] * p, (start - ends[p][0], count, step), *self.parts[p + 1 :]]

    def places(self, builder: Builder, look: Look, line: str) -> Expression:
        """The number of each wanted element in the group; one behind all, if it is nowhere."""
        sizes = [n for _, n, _ in self.parts]
        if isinstance(look, Pick):
            sizes[self.news.index(look.axis)] = builder.specs[look.places].size
        total, wrong = constant(builder, 0, line=line), None
        for d, (start, n, step) in enumerate(self.parts):
            if isinstance(look, Pick) and self.news[d] == look.axis:
                own = Expression(builder, look.places, line).astype(int64)
                shape = [m if k == d else 1 for k, m in enumerate(sizes)]
                wrong = ((own < -n) | (own >= n)).reshape(*shape)
                own = where(own < 0, own + n, own).reshape(*shape)
            else:
                own = iota(builder, tuple(sizes), d, line) * step + start
            total = total + own * math.prod(self.new_sizes[d + 1 :])
        if wrong is not None:
            total = where(wrong, self.size, total)
        return total.reshape(math.prod(sizes))
