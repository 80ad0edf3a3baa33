"""Stages that change colours, and leave pixels where they are: masks and boxes stay as they are.

What treats each value by itself is a table of 256 values for uint8, and a formula for all else. `change` of
a stage is that formula: of values as floats, of what is white, and of its parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.exact import Keys
from ostinato.ops.core.locks import cached_property
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..feed.sample_draws import Draws
from ..feed.stage import DEVICE, HOST, Shape, Stage, stage
from .backends import opencv
from .pixel_values import (
    Image,
    Range,
    Sometimes,
    but_alpha,
    check_chance,
    check_range,
    contiguous_rows,
    full,
    kept_table,
    looked_up,
    narrowed,
    pointwise,
    spread,
    table,
    wide,
)
from .pixels import LUMA, saturated, turned


# -- formulas, of each value by itself ---------------------------------------------------------
def _scaled(xp: Any, v: Any, white: float, factor: float) -> Any:
    return v * factor


def _apart(xp: Any, v: Any, white: float, factor: float, middle: float) -> Any:
    return middle + (v - middle) * factor


def _bent(xp: Any, v: Any, white: float, gamma: float) -> Any:
    return white * (v / white) ** gamma


def _coarse(xp: Any, v: Any, white: float, bits: int) -> Any:
    """Steps of whole numbers end below white + 1."""
    step = (white if white == 1 else white + 1) / (1 << bits)
    return xp.minimum(xp.floor(v / step), (1 << bits) - 1) * step


# -- of all values together --------------------------------------------------------------------
def middle_of(xp: Any, x: Image) -> Any:
    """The mean luma of an image: a number, on a device an array."""
    weights = LUMA if x.shape[-1] == 3 else (1 / x.shape[-1],) * x.shape[-1]
    if xp is np and x.dtype == np.uint8 and len(weights) <= 4 and (cv := opencv()) is not None:
        means = cv.mean(contiguous_rows(x))
    else:
        sums = x.sum(axis=(0, 1), dtype=xp.float64)
        means = [sums[c] / (x.shape[0] * x.shape[1]) for c in range(len(weights))]
    return sum(w * m for w, m in zip(weights, means, strict=False))


def contrasted(xp: Any, x: Image, factor: float) -> Image:
    middle = middle_of(xp, x)
    if xp is np and x.dtype == np.uint8:
        return looked_up(xp, x, table(_apart, factor, middle))
    return narrowed(xp, _apart(xp, wide(xp, x), full(x), factor, middle), x.dtype, full(x))


def counts(xp: Any, x: Image) -> Any:
    """How often each channel has each value: 256 x channels."""
    channels = range(x.shape[-1])
    if xp is np and (cv := opencv()) is not None:
        x = contiguous_rows(x)
        found = [cv.calcHist([x], [c], None, [256], [0, 256]).reshape(256) for c in channels]
        return np.stack(found, -1).astype(np.int64)
    found = [xp.bincount(x[..., c].ravel(), minlength=256) for c in channels]
    return xp.stack(found, axis=-1)


def _check_bytes(who: str, x: Image) -> None:
    if x.dtype != np.uint8:
        raise TypeError(f"{who} of an image of {x.dtype}, where uint8 is needed")


# -- stages ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Colours(Sometimes):
    """A stage of colours, which gives the same bits wherever it runs."""

    places = (HOST, DEVICE)
    exact = True


@stage("brightness")
@dataclass(frozen=True)
class Brightness(Colours):
    """All values times a factor."""

    factor: float

    limits = (("factor", 0, math.inf),)

    def changed(self, xp: Any, x: Image) -> Image:
        return pointwise(xp, x, _scaled, self.factor)


@stage("contrast")
@dataclass(frozen=True)
class Contrast(Colours):
    """All values so many times as far from the image's mean luma."""

    factor: float

    exact = False  # means are summed in another order
    limits = (("factor", 0, math.inf),)

    def changed(self, xp: Any, x: Image) -> Image:
        return contrasted(xp, x, self.factor)


@stage("saturation")
@dataclass(frozen=True)
class Saturation(Colours):
    """The colours of a pixel so many times as far from its luma; 0 makes it grey."""

    factor: float

    limits = (("factor", 0, math.inf),)

    def changed(self, xp: Any, x: Image) -> Image:
        return saturated(xp, x, self.factor)


@stage("hue")
@dataclass(frozen=True)
class Hue(Colours):
    """The hue moved on by this part of the circle of hues."""

    shift: float

    limits = (("shift", -0.5, 0.5),)

    def changed(self, xp: Any, x: Image) -> Image:
        return turned(xp, x, self.shift)


Steps = tuple[tuple[str, float], ...]


@stage("color_jitter")
@dataclass(frozen=True)
class ColorJitter(Stage):
    """Brightness, contrast, saturation and hue, by random factors and in random order.

    Each a range of factors, or how far they are from 1 at most; of hue, parts of the circle, or how far
    they are from 0."""

    brightness: Range = 0.0
    contrast: Range = 0.0
    saturation: Range = 0.0
    hue: Range = 0.0
    p: float = 1.0

    places = (HOST, DEVICE)

    def __post_init__(self) -> None:
        check_chance(self.name, self.p)
        _ = self._ranges  # which are checked

    @cached_property
    def _ranges(self) -> tuple[tuple[int, str, float, float], ...]:
        """List those that change anything: their number, name and range."""
        found = [
            (k, name, *spread(self.name, name, getattr(self, name), 1.0, 0.0))
            for k, name in enumerate(("brightness", "contrast", "saturation"))
        ]
        found = [one for one in found if one[2:] != (1.0, 1.0)]
        low, high = spread(self.name, "hue", self.hue, 0.0, -0.5, 0.5)
        return (*found, *([(3, "hue", low, high)] if (low, high) != (0.0, 0.0) else []))

    def draw(self, rng: Draws, shape: Shape) -> Steps:
        chance, *numbers = rng.random(9).tolist()
        if chance >= self.p:
            return ()
        found = [
            (numbers[k], name, low + (high - low) * numbers[4 + k])
            for k, name, low, high in self._ranges
        ]
        return tuple((name, value) for _, name, value in sorted(found))

    def image(self, xp: Any, x: Image, drawn: Steps) -> Image:
        return but_alpha(xp, x, lambda xp, y: _jittered(xp, y, drawn)) if drawn else x


def _jittered(xp: Any, x: Image, steps: Steps) -> Image:
    """One after another; what is pointwise and follows each other is one table."""
    if x.dtype != np.uint8 or xp is not np:
        for name, value in steps:
            x = _STEPS[name](xp, x, value)
        return x
    waiting = None  # a table that is still to be applied
    for name, value in steps:
        if name == "brightness":
            made = table(_scaled, value)
            waiting = made if waiting is None else made[waiting]
            continue
        if waiting is not None:
            x, waiting = looked_up(xp, x, waiting), None
        if name == "contrast":
            waiting = table(_apart, value, middle_of(xp, x))
        else:
            x = _STEPS[name](xp, x, value)
    return x if waiting is None else looked_up(xp, x, waiting)


_STEPS = {
    "brightness": lambda xp, x, factor: pointwise(xp, x, _scaled, factor),
    "contrast": contrasted,
    "saturation": saturated,
    "hue": turned,
}


def grey(xp: Any, x: Image, channels: int) -> Image:
    """Its luma, so many times."""
    if x.shape[-1] == 3:
        x = saturated(xp, x, 0.0)[..., :1]
    elif x.shape[-1] != 1:
        raise ValueError(f"an image of {x.shape[-1]} channels, where colours are needed")
    return x if channels == 1 else xp.repeat(x, channels, axis=-1)


@stage("grayscale")
@dataclass(frozen=True)
class Grayscale(Stage):
    """The luma of colours, in so many channels: 1, or 3 of the same. What alpha there is goes."""

    channels: int = 1

    places = (HOST, DEVICE)
    exact = True

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            got = f"channels={self.channels!r}"
            raise misfit(ArgumentError, self.name, got=got, needed="1 or 3")

    def image(self, xp: Any, x: Image, drawn: Any) -> Image:
        return grey(xp, x[..., :-1] if x.shape[-1] in (2, 4) else x, self.channels)


@stage("random_grayscale")
@dataclass(frozen=True)
class RandomGrayscale(Colours):
    """Without colours, with a chance of p; as many channels as before."""

    p: float = 0.1

    def changed(self, xp: Any, x: Image) -> Image:
        return x if x.shape[-1] == 1 else saturated(xp, x, 0.0)


@stage("gamma")
@dataclass(frozen=True)
class Gamma(Colours):
    """What is between 0 and 1 to the power of gamma: above 1 darker, below it brighter."""

    gamma: float

    exact = False  # powers, but for uint8
    limits = (("gamma", 0, math.inf),)

    def changed(self, xp: Any, x: Image) -> Image:
        return pointwise(xp, x, _bent, self.gamma)


@stage("random_gamma")
@dataclass(frozen=True)
class RandomGamma(Stage):
    """To a power out of a range."""

    range: tuple[float, float] = (0.7, 1.5)
    p: float = 1.0

    places = (HOST, DEVICE)

    def __post_init__(self) -> None:
        check_chance(self.name, self.p)
        check_range(self.name, "range", self.range, 0)

    def draw(self, rng: Draws, shape: Shape) -> float | None:
        chance, where = rng.random(2).tolist()
        low, high = self.range
        return low + (high - low) * where if chance < self.p else None

    def image(self, xp: Any, x: Image, drawn: float | None) -> Image:
        if drawn is None:
            return x
        return but_alpha(xp, x, lambda xp, y: pointwise(xp, y, _bent, drawn))


@stage("invert")
@dataclass(frozen=True)
class Invert(Colours):
    """White becomes black, and black white."""

    def changed(self, xp: Any, x: Image) -> Image:
        return pointwise(xp, x, lambda xp, v, white: white - v)


@stage("posterize")
@dataclass(frozen=True)
class Posterize(Colours):
    """Only the upper bits of each value; of floats, so many steps."""

    bits: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in range(1, 9):
            got = f"bits={self.bits!r}"
            raise misfit(ArgumentError, self.name, got=got, needed="a whole number from 1 to 8")

    def changed(self, xp: Any, x: Image) -> Image:
        return pointwise(xp, x, _coarse, self.bits)


@stage("solarize")
@dataclass(frozen=True)
class Solarize(Colours):
    """What is at least as bright as the threshold, a part of white, is inverted."""

    threshold: float

    limits = (("threshold", -math.inf, math.inf),)

    def changed(self, xp: Any, x: Image) -> Image:
        return pointwise(
            xp,
            x,
            lambda xp, v, white, threshold: xp.where(v >= threshold * white, white - v, v),
            self.threshold,
        )


@stage("autocontrast")
@dataclass(frozen=True)
class AutoContrast(Colours):
    """Each channel stretched, so that its darkest value is black and its brightest white."""

    def changed(self, xp: Any, x: Image) -> Image:
        if x.dtype == np.uint8 and xp is np:
            bright = [np.flatnonzero(column)[[0, -1]] for column in counts(xp, x).T if x.size]
            tables = [kept_table(_stretched, Keys((int(a), int(b)))) for a, b in bright]
            return looked_up(xp, x, np.stack(tables, -1)) if len(tables) else x
        low, high = x.min(axis=(0, 1)), x.max(axis=(0, 1))
        kind = xp.float64 if x.dtype.kind == "u" else wide(xp, x).dtype
        y, low, high = x.astype(kind), low.astype(kind), high.astype(kind)
        return narrowed(xp, _stretched(xp, y, full(x), low, high), x.dtype, full(x))


def _stretched(xp: Any, v: Any, white: float, low: Any, high: Any) -> Any:
    """A channel of one value stays as it is."""
    room = high - low
    return xp.where(room == 0, v, (v - low) * (white / xp.where(room == 0, 1, room)))


@stage("equalize")
@dataclass(frozen=True)
class Equalize(Colours):
    """Each channel such that all values are about as frequent, as Pillow's `ImageOps.equalize` does it.
    Of uint8."""

    def changed(self, xp: Any, x: Image) -> Image:
        _check_bytes("the equalization", x)
        found = counts(xp, x)
        sums = xp.cumsum(found, axis=0)
        # the brightest value that there is ends the range, so its count makes no step
        total = sums[-1]
        brightest = (sums < total).sum(axis=0)
        step = (total - found[brightest, xp.arange(x.shape[-1])]) // 255
        before = sums - found
        new = xp.minimum((before + step // 2) // xp.maximum(step, 1), 255)
        plain = xp.arange(256)[:, None]
        tables = xp.where(step == 0, plain, new).astype(xp.uint8)
        return looked_up(xp, x, tables)
