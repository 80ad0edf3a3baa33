"""Stages that turn, move, stretch and tilt images, and put pixels around them.

Masks see the nearest pixel at the same places. A box becomes the bounds of its moved corners, cut off at the
image's edges; one of which less than the part `least` is left becomes 0, 0, 0, 0: rows of boxes stand beside
those of their labels, and `drop_boxes` takes both out. What comes from outside the image is `fill`, in its own
numbers: one, or one for each channel; in masks it is `mask_fill`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ostinato.ops.core.locks import cached_property
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..feed.sample_draws import Draws
from ..feed.stage import DEVICE, HOST, Shape, Stage, stage
from .pixel_values import (
    Image,
    Range,
    check_chance,
    check_number,
    check_order,
    check_range,
    moved_in,
    spread,
)
from .sampling import LINEAR, NEAREST, Matrix, Size, seen

Pair = tuple[float, float]
Fill = float | tuple[float, ...]
# where pixels go, counted from the image's corner; the size of the result
Placed = tuple[Matrix, Size]


# -- matrices ----------------------------------------------------------------------------------
def product(m: Matrix, *more: Matrix) -> Matrix:
    for n in more:
        a, b, c, d, e, f, g, h, i = m
        r, s, t, u, v, w, x, y, z = n
        m = (
            *(a * r + b * u + c * x, a * s + b * v + c * y, a * t + b * w + c * z),
            *(d * r + e * u + f * x, d * s + e * v + f * y, d * t + e * w + f * z),
            *(g * r + h * u + i * x, g * s + h * v + i * y, g * t + h * w + i * z),
        )
    return m


def inverse(m: Matrix) -> Matrix:
    a, b, c, d, e, f, g, h, i = m
    minors = (
        *(e * i - f * h, c * h - b * i, b * f - c * e),
        *(f * g - d * i, a * i - c * g, c * d - a * f),
        *(d * h - e * g, b * g - a * h, a * e - b * d),
    )
    whole = a * minors[0] + b * minors[3] + c * minors[6]
    found = tuple(v / whole for v in minors)
    return (*found[:6], 0.0, 0.0, 1.0) if (g, h, i) == (0.0, 0.0, 1.0) else found


def shifted(x: float, y: float) -> Matrix:
    return (1.0, 0.0, x, 0.0, 1.0, y, 0.0, 0.0, 1.0)


def turned(degrees: float) -> Matrix:
    """Against the clock, as people see it; quarters are exact."""
    quarter, rest = divmod(degrees, 90.0)
    if rest == 0:
        cos, sin = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))[int(quarter) % 4]
    else:
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return (cos, sin, 0.0, -sin, cos, 0.0, 0.0, 0.0, 1.0)


def around_middle(m: Matrix, shape: Shape) -> Matrix:
    x, y = shape[1] / 2, shape[0] / 2
    return product(shifted(x, y), m, shifted(-x, -y))


def affinity(shape: Shape, angle: float, translate: Pair, scale: float, shear: Pair) -> Matrix:
    """Sheared, stretched and turned around the middle, then moved by parts of width and height."""
    sheared = product(
        turned(angle),
        (scale, 0.0, 0.0, 0.0, scale, 0.0, 0.0, 0.0, 1.0),
        (1.0, math.tan(math.radians(shear[0])), 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
        (1.0, 0.0, 0.0, math.tan(math.radians(shear[1])), 1.0, 0.0, 0.0, 0.0, 1.0),
    )
    move = shifted(translate[0] * shape[1], translate[1] * shape[0])
    return product(move, around_middle(sheared, shape))


def between(start: Sequence[Pair], end: Sequence[Pair]) -> Matrix:
    """Compute the perspective matrix that takes four points to four others."""
    rows, wanted = [], []
    for (x, y), (u, v) in zip(start, end, strict=True):
        rows += [(x, y, 1, 0, 0, 0, -u * x, -u * y), (0, 0, 0, x, y, 1, -v * x, -v * y)]
        wanted += [u, v]
    return (*np.linalg.solve(np.array(rows, float), np.array(wanted, float)).tolist(), 1.0)


# -- boxes -------------------------------------------------------------------------------------
def moved_boxes(xp: Any, boxes: Any, matrix: Matrix, size: Size, least: float) -> Any:
    """The bounds of boxes' corners, where a matrix takes them, within an image of this size."""
    a, b, c, d, e, f, g, h, i = matrix
    given = boxes.astype(xp.float64)
    x = given[:, [0, 2, 0, 2]]
    y = given[:, [1, 1, 3, 3]]
    depth = g * x + h * y + i
    across, down = (a * x + b * y + c) / depth, (d * x + e * y + f) / depth
    return bounded(
        xp,
        xp.stack((across.min(axis=1), down.min(axis=1), across.max(axis=1), down.max(axis=1)), -1),
        size,
        least,
    )


def bounded(xp: Any, boxes: Any, size: Size, least: float) -> Any:
    """Boxes within an image; without those of which too little is left."""
    limit = moved_in(xp, np.array([size[1], size[0]] * 2, np.float64))
    found = xp.minimum(xp.maximum(boxes, 0), limit)
    if least > 0:
        left, whole = (
            xp.maximum(b[:, 2] - b[:, 0], 0) * xp.maximum(b[:, 3] - b[:, 1], 0)
            for b in (found, boxes)
        )
        found = xp.where((left >= least * whole)[:, None], found, 0.0)
    return found.astype(xp.float32)


# -- stages ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Filled(Stage):
    """What stages have in common that move pixels and fill what is left."""

    interpolation: str = field(default=LINEAR, kw_only=True)
    fill: Fill = field(default=0.0, kw_only=True)
    mask_fill: int = field(default=0, kw_only=True)
    least: float = field(default=0.0, kw_only=True)

    moves = True
    places = (HOST, DEVICE)

    def __post_init__(self) -> None:
        if self.interpolation not in (LINEAR, NEAREST):
            got, needed = f"interpolation={self.interpolation!r}", "'linear' or 'nearest'"
            raise misfit(ArgumentError, self.name, got=got, needed=needed)
        check_number(self.name, "least", self.least, 0, 1)
        check_fill(self.name, self.fill)


@dataclass(frozen=True)
class Warp(Filled):
    """A stage that says by a matrix where pixels go."""

    exact = True

    def placed(self, drawn: Any, shape: Shape) -> Placed | None:
        """Where pixels go; None if they stay."""
        raise NotImplementedError

    def image(self, xp: Any, x: Image, drawn: Any, out: Image = None) -> Image:
        check_order(x)
        placed = self.placed(drawn, x.shape)
        if placed is None:
            return x
        return seen(xp, x, looking(placed[0]), placed[1], self.interpolation, self.fill, out)

    def mask(self, xp: Any, x: Image, drawn: Any) -> Image:
        placed = self.placed(drawn, x.shape)
        if placed is None:
            return x
        return seen(xp, x, looking(placed[0]), placed[1], NEAREST, self.mask_fill)

    def boxes(self, xp: Any, x: Any, drawn: Any, shape: Shape) -> Any:
        placed = self.placed(drawn, shape)
        return x if placed is None else moved_boxes(xp, x, *placed, self.least)


def looking(matrix: Matrix) -> Matrix:
    """Where pixels of the result look, counted from the middle of the first pixel."""
    return product(shifted(-0.5, -0.5), inverse(matrix), shifted(0.5, 0.5))


def check_fill(who: str, fill: Any) -> None:
    numbers = fill if isinstance(fill, tuple) else (fill,)
    if not numbers or not all(isinstance(v, (int, float)) for v in numbers):
        got = f"fill={fill!r}"
        raise misfit(ArgumentError, who, got=got, needed="a number, or one for each channel")


def rotated(shape: Shape, angle: float, expand: bool) -> Placed:
    height, width = shape[:2]
    if not expand:
        return around_middle(turned(angle), shape), (height, width)
    cos, sin = (abs(v) for v in turned(angle)[:2])
    size = (
        math.ceil(height * cos + width * sin - 1e-9),
        math.ceil(width * cos + height * sin - 1e-9),
    )
    back = shifted(-width / 2, -height / 2)
    return product(shifted(size[1] / 2, size[0] / 2), turned(angle), back), size


@stage("rotate")
@dataclass(frozen=True)
class Rotate(Warp):
    """Turned against the clock, in degrees, around the middle. expand: the result is as large as it
    takes to hold all of it."""

    angle: float
    expand: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "angle", self.angle)

    def placed(self, drawn: Any, shape: Shape) -> Placed | None:
        return rotated(shape, self.angle, self.expand)


@stage("random_rotate")
@dataclass(frozen=True)
class RandomRotate(Warp):
    """Turned by an angle out of a range; of one number, by so many degrees at most, to either side."""

    degrees: Range
    expand: bool = False
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_chance(self.name, self.p)
        _ = self._range  # which is checked

    @cached_property
    def _range(self) -> Pair:
        return spread(self.name, "degrees", self.degrees, 0.0, -math.inf)

    def draw(self, rng: Draws, shape: Shape) -> float | None:
        chance, where = rng.random(2).tolist()
        low, high = self._range
        return low + (high - low) * where if chance < self.p else None

    def placed(self, drawn: float | None, shape: Shape) -> Placed | None:
        return None if drawn is None else rotated(shape, drawn, self.expand)


@stage("affine")
@dataclass(frozen=True)
class Affine(Warp):
    """Turned by degrees against the clock, moved to the right and down by parts of width and height,
    stretched by a factor, and sheared by two angles: along rows, and along columns."""

    angle: float = 0.0
    translate: Pair = (0.0, 0.0)
    scale: float = 1.0
    shear: Pair = (0.0, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "angle", self.angle)
        check_number(self.name, "scale", self.scale, 1e-3)
        check_pair(self.name, "translate", self.translate)
        check_pair(self.name, "shear", self.shear, -89, 89)

    def placed(self, drawn: Any, shape: Shape) -> Placed | None:
        given = self.angle, self.translate, self.scale, self.shear
        return affinity(shape, *given), (shape[0], shape[1])


@stage("random_affine")
@dataclass(frozen=True)
class RandomAffine(Warp):
    """As `affine`, by random numbers. degrees and shear: ranges, or so much at most to either side; shear
    along rows, or a range each for rows and columns. translate: at most such parts of width and
    height. scale: a range of factors."""

    degrees: Range = 0.0
    translate: Pair = (0.0, 0.0)
    scale: Pair = (1.0, 1.0)
    shear: Range | tuple[Pair, Pair] = 0.0
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_chance(self.name, self.p)
        _ = self._ranges  # which are checked

    @cached_property
    def _ranges(self) -> tuple[Pair, ...]:
        """Return the ranges of the angle, the moves to the right and down, the factor, and both
        shears."""
        check_pair(self.name, "translate", self.translate, 0, 1)
        return (
            spread(self.name, "degrees", self.degrees, 0.0, -math.inf),
            *((-most, most) for most in self.translate),
            check_range(self.name, "scale", self.scale, 1e-3),
            *self._shears(),
        )

    def _shears(self) -> tuple[Pair, Pair]:
        shear = self.shear
        if isinstance(shear, tuple) and len(shear) == 2 and isinstance(shear[0], Sequence):
            rows, columns = (check_range(self.name, "shear", s, -89, 89) for s in shear)
            return rows, columns
        return spread(self.name, "shear", shear, 0.0, -89, 89), (0.0, 0.0)

    def draw(self, rng: Draws, shape: Shape) -> tuple[Any, ...] | None:
        chance, *where = rng.random(7).tolist()
        if chance >= self.p:
            return None
        angle, x, y, scale, rows, columns = (
            low + (high - low) * w for (low, high), w in zip(self._ranges, where, strict=True)
        )
        return angle, (x, y), scale, (rows, columns)

    def placed(self, drawn: tuple[Any, ...] | None, shape: Shape) -> Placed | None:
        return None if drawn is None else (affinity(shape, *drawn), (shape[0], shape[1]))


@stage("random_perspective")
@dataclass(frozen=True)
class RandomPerspective(Warp):
    """Tilted, with a chance of p: the corners move inwards, each by at most this part of half the width
    and height."""

    distortion: float = 0.5
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_chance(self.name, self.p)
        check_number(self.name, "distortion", self.distortion, 0, 0.99)

    def draw(self, rng: Draws, shape: Shape) -> Matrix | None:
        chance, *where = rng.random(9).tolist()
        if chance >= self.p:
            return None
        height, width = shape[:2]
        corners = [(0.0, 0.0), (width, 0.0), (width, height), (0.0, height)]
        moved = []
        for k, (x, y) in enumerate(corners):
            inwards = self.distortion / 2 * width * where[2 * k]
            downwards = self.distortion / 2 * height * where[2 * k + 1]
            moved.append(
                (x + inwards if x == 0 else x - inwards, y + downwards if y == 0 else y - downwards)
            )
        return between(corners, moved)

    def placed(self, drawn: Matrix | None, shape: Shape) -> Placed | None:
        return None if drawn is None else (drawn, (shape[0], shape[1]))


def check_pair(
    who: str, name: str, value: Any, low: float = -math.inf, high: float = math.inf
) -> None:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise misfit(ArgumentError, who, got=f"{name}={value!r}", needed="two numbers")
    for number in value:
        check_number(who, name, number, low, high)


MODES = ("constant", "edge", "reflect")


@stage("pad")
@dataclass(frozen=True)
class Pad(Stage):
    """Pixels around the image: as many on all sides; above and below, left and right; or above, below,
    left and right. mode: "constant" for `fill`, "edge" for the last ones again, "reflect" for those
    behind the edge."""

    pixels: int | tuple[int, ...]
    fill: Fill = 0.0
    mode: str = "constant"
    mask_fill: int = 0

    moves = True
    places = (HOST, DEVICE)
    exact = True

    def __post_init__(self) -> None:
        self.sides()
        check_fill(self.name, self.fill)
        if self.mode not in MODES:
            needed = " or ".join(map(repr, MODES))
            raise misfit(ArgumentError, self.name, got=f"mode={self.mode!r}", needed=needed)

    def sides(self) -> tuple[int, int, int, int]:
        given = (self.pixels,) if isinstance(self.pixels, int) else tuple(self.pixels)
        if len(given) not in (1, 2, 4) or not all(isinstance(n, int) and n >= 0 for n in given):
            needed = "1, 2 or 4 numbers of pixels"
            raise misfit(ArgumentError, self.name, got=f"pixels={self.pixels!r}", needed=needed)
        top, bottom, left, right = {
            1: given * 4,
            2: (given[0], given[0], given[-1], given[-1]),
            4: given,
        }[len(given)]
        return top, bottom, left, right

    def _padded(self, xp: Any, x: Image, fill: Any) -> Image:
        top, bottom, left, right = self.sides()
        height, width = x.shape[:2]
        if self.mode != "constant":
            around = ((top, bottom), (left, right), *[(0, 0)] * (x.ndim - 2))
            return xp.pad(x, around, mode=self.mode)
        out = xp.empty((top + height + bottom, left + width + right, *x.shape[2:]), x.dtype)
        out[...] = moved_in(xp, np.asarray(fill, x.dtype.name))
        out[top : top + height, left : left + width] = x
        return out

    def image(self, xp: Any, x: Image, drawn: Any) -> Image:
        check_order(x)
        return self._padded(xp, x, self.fill)

    def mask(self, xp: Any, x: Image, drawn: Any) -> Image:
        return self._padded(xp, x, self.mask_fill)

    def boxes(self, xp: Any, x: Any, drawn: Any, shape: Shape) -> Any:
        top, _, left, _ = self.sides()
        return x.astype(xp.float32) + moved_in(xp, np.array([left, top] * 2, np.float32))
