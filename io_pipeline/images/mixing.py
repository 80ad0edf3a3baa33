"""Stages of batches that mix samples: behind `batch`.

The samples at places 0 and 1 of an epoch, 2 and 3, and so on, are partners: each takes something of the other,
by random numbers of its own. So what a batch holds depends on seed and epoch alone. A sample whose partner
is not there stays as it is: the last one of an odd batch or of an odd part of a worker, or one whose partner
was skipped.

Labels become rows of weights, of as many classes as `classes` says: from numbers of shape (batch,) to float32
of shape (batch, classes), of kind "label" as before. Rows of weights are mixed as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..feed.fields import IMAGE, VOLUME
from ..feed.sample_draws import Draws
from ..feed.stage import DEVICE, HOST, Shape, Stage, Window, stage
from .pixel_values import check_chance, check_number, moved_in, rows_of
from .pixels import mixed

Batch = Any


class Drawn(NamedTuple):
    place: int
    share: float  # what stays of it
    window: Window = (0, 0, 0, 0)  # what it takes of its partner


@dataclass(frozen=True)
class Mixing(Stage):
    """What both have in common. alpha: shares are drawn from Beta(alpha, alpha); with 1 all are equally
    likely, with less most are near 0 or 1."""

    alpha: float = 1.0
    classes: int = 0
    p: float = 1.0

    moves = True
    batched = True
    places = (HOST, DEVICE)
    exact = True

    def __post_init__(self) -> None:
        check_chance(self.name, self.p)
        check_number(self.name, "alpha", self.alpha, 1e-3, 1e3)
        if not isinstance(self.classes, int) or self.classes < 0:
            got = f"classes={self.classes!r}"
            raise misfit(ArgumentError, self.name, got=got, needed="a whole number of classes")

    def share(self, rng: Draws) -> float:
        """Draw the share of a sample that stays; 1 with a chance of 1 - p."""
        is_mixed = rng.chance(self.p)
        return float(rng.generator.beta(self.alpha, self.alpha)) if is_mixed else 1.0

    def label(self, xp: Any, x: Batch, drawn: Sequence[Drawn]) -> Batch:
        rows = self._rows(xp, x)
        shares, partners = np.ones((len(drawn), 1), np.float32), np.arange(len(drawn))
        for k, other, found in pairs(drawn):
            shares[k], partners[k] = found.share, other
        share = moved_in(xp, shares)
        return rows * share + rows[moved_in(xp, partners)] * (1 - share)

    def _rows(self, xp: Any, x: Batch) -> Any:
        """Weights of classes."""
        if x.ndim == 2 and x.dtype.kind == "f":
            return x.astype(xp.float32)
        if x.ndim != 1 or x.dtype.kind not in "iu":
            raise TypeError(
                f"labels {x.dtype}{list(x.shape[1:])}, where a number of a class or a row of weights is "
                "needed"
            )
        if not self.classes:
            raise ValueError(
                "labels that are numbers, which become rows of weights: say of how many classes, "
                f"as in {self.name}(classes=1000)"
            )
        if xp is np and len(x) and not 0 <= x.min() <= x.max() < self.classes:
            raise ValueError(f"a label of {x.max()}, where there are {self.classes} classes")
        return (x[:, None] == xp.arange(self.classes)).astype(xp.float32)


def pairs(drawn: Sequence[Drawn]) -> Iterator[tuple[int, int, Drawn]]:
    """Samples that take something, with their partners."""
    where = {found.place: k for k, found in enumerate(drawn)}
    for k, found in enumerate(drawn):
        other = where.get(found.place ^ 1)
        if other is not None and found.share < 1:
            yield k, other, found


@stage("mixup")
@dataclass(frozen=True)
class Mixup(Mixing):
    """Each sample a weighted mean of itself and its partner (Zhang et al., 2018)."""

    alpha: float = 0.2

    needs = (IMAGE, VOLUME)

    def draw(self, rng: Draws, shape: Shape) -> Drawn:
        return Drawn(rng.place, self.share(rng))

    def image(self, xp: Any, x: Batch, drawn: Sequence[Drawn]) -> Batch:
        found = xp.empty(x.shape, x.dtype)
        taking = {k: (other, mine.share) for k, other, mine in pairs(drawn)}
        for k in range(len(drawn)):
            if k in taking:
                other, share = taking[k]
                mixed(xp, x[k], x[other], share, found[k])
            else:
                found[k] = x[k]
        return found

    volume = image


@stage("cutmix")
@dataclass(frozen=True)
class CutMix(Mixing):
    """A rectangle of each image is its partner's, and so much of the labels (Yun et al., 2019). Masks take
    the same rectangle."""

    def draw(self, rng: Draws, shape: Shape) -> Drawn:
        share = self.share(rng)
        a, b = rng.random(2).tolist()
        height, width = shape[rows_of(shape) :][:2]
        side = math.sqrt(1 - share)
        top, left = int(a * height), int(b * width)  # the middle
        high, wide = int(side * height / 2), int(side * width / 2)
        y0, y1 = max(top - high, 0), min(top + high, height)
        x0, x1 = max(left - wide, 0), min(left + wide, width)
        area = (y1 - y0) * (x1 - x0)
        return Drawn(rng.place, 1 - area / (height * width), (y0, x0, y1 - y0, x1 - x0))

    def image(self, xp: Any, x: Batch, drawn: Sequence[Drawn]) -> Batch:
        return self._cut(x, drawn, rows_of(x.shape[1:]))

    def mask(self, xp: Any, x: Batch, drawn: Sequence[Drawn]) -> Batch:
        return self._cut(x, drawn, 0)

    def _cut(self, x: Batch, drawn: Sequence[Drawn], rows: int) -> Batch:
        found = x.copy()
        for k, other, mine in pairs(drawn):
            top, left, height, width = mine.window
            part = (slice(None),) * rows + (slice(top, top + height), slice(left, left + width))
            found[(k, *part)] = x[(other, *part)]
        return found
