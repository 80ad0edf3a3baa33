"""Stages that mix pixels with their neighbours, or paint over some. Masks and boxes stay as they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..feed.sample_draws import Draws
from ..feed.stage import DEVICE, HOST, Shape, Stage, Window, stage
from .backends import opencv
from .pixel_values import (
    Image,
    Sometimes,
    check_chance,
    check_number,
    check_order,
    check_range,
    contiguous_rows,
    full,
    moved_in,
    narrowed,
    rows_of,
    wide,
)
from .warps import Fill, check_fill

TRIES = 10  # parts that are drawn before none is erased
NOISE = "noise"


def bell(sigma: float) -> Any:
    """Weights of neighbours by their distance, as far as three sigmas, which sum to 1."""
    reach = max(math.ceil(3 * sigma), 1)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    return (weights / weights.sum()).astype(np.float32)


def blurred(xp: Any, x: Image, sigma: float) -> Image:
    """Each pixel the mean of its neighbourhood, weighted by a normal distribution; the image goes on behind
    its edges as in a mirror."""
    weights = bell(sigma)
    cv = opencv() if xp is np and x.dtype.name in ("uint8", "uint16", "float32") else None
    if cv is not None:
        found = cv.sepFilter2D(contiguous_rows(x), cv.CV_32F, weights, weights).reshape(x.shape)
        if x.dtype == np.uint8:
            return cv.convertScaleAbs(found).reshape(x.shape)
        return narrowed(np, found, x.dtype, full(x)) if x.dtype.kind == "u" else found
    reach = len(weights) // 2
    y = wide(xp, x)
    for axis in (0, 1):
        count = x.shape[axis]
        around = xp.pad(
            y, [(reach, reach) if a == axis else (0, 0) for a in range(3)], mode="reflect"
        )
        part = [slice(None)] * 3
        total: Any = None
        for k, weight in enumerate(weights.tolist()):
            part[axis] = slice(k, k + count)
            found = around[tuple(part)] * y.dtype.type(weight)
            total = found if total is None else total + found
        y = total
    return narrowed(xp, y, x.dtype, full(x)) if x.dtype.kind == "u" else y.astype(x.dtype)


def sharpened(xp: Any, x: Image, factor: float) -> Image:
    """So many times as far from the mean of the neighbourhood, in which the pixel itself counts five times;
    the pixels of the edge stay."""
    if min(x.shape[:2]) < 3:
        return x
    white = full(x)
    cv = opencv() if xp is np and x.dtype.name in ("uint8", "uint16", "float32") else None
    if cv is not None:
        weights = np.full((3, 3), (1 - factor) / 13, np.float32)
        weights[1, 1] = factor + 5 * (1 - factor) / 13
        x = contiguous_rows(x)
        found = cv.filter2D(x, -1, weights).reshape(x.shape)
        if x.dtype.kind == "f":
            found = np.clip(found, 0, 1)
        found[0], found[-1], found[:, 0], found[:, -1] = x[0], x[-1], x[:, 0], x[:, -1]
        return found
    y = wide(xp, x)
    height, width = x.shape[:2]
    inner = y[1:-1, 1:-1]
    total = inner * 4
    for down in range(3):
        for on in range(3):
            total = total + y[down : height - 2 + down, on : width - 2 + on]
    mean = total / 13
    out = x.copy()
    out[1:-1, 1:-1] = narrowed(xp, mean + (inner - mean) * factor, x.dtype, white)
    return out


@stage("sharpness")
@dataclass(frozen=True)
class Sharpness(Sometimes):
    """Sharper with a factor above 1, smoother with one below it."""

    factor: float

    places = (HOST, DEVICE)
    limits = (("factor", 0, math.inf),)

    def changed(self, xp: Any, x: Image) -> Image:
        return sharpened(xp, x, self.factor)


@stage("gaussian_blur")
@dataclass(frozen=True)
class GaussianBlur(Stage):
    """Blurred by a normal distribution, whose sigma in pixels comes from a range, or is a number."""

    sigma: float | tuple[float, float] = (0.1, 2.0)
    p: float = 1.0

    places = (HOST, DEVICE)

    def __post_init__(self) -> None:
        check_chance(self.name, self.p)
        if isinstance(self.sigma, (int, float)):
            check_number(self.name, "sigma", self.sigma, 1e-3, 1e3)
        else:
            check_range(self.name, "sigma", self.sigma, 1e-3, 1e3)

    @property
    def is_random(self) -> bool:
        return self.p < 1 or not isinstance(self.sigma, (int, float))

    def draw(self, rng: Draws, shape: Shape) -> float:
        """0 for none."""
        chance, where = rng.random(2).tolist()
        low, high = self._range()
        return low + (high - low) * where if chance < self.p else 0.0

    def _range(self) -> tuple[float, float]:
        sigma = self.sigma
        return sigma if isinstance(sigma, tuple) else (float(sigma), float(sigma))

    def image(self, xp: Any, x: Image, drawn: float | None) -> Image:
        check_order(x)
        sigma = self._range()[0] if drawn is None else drawn
        return blurred(xp, x, sigma) if sigma else x


@stage("random_erasing")
@dataclass(frozen=True)
class RandomErasing(Stage):
    """A part of the image painted over, with a chance of p (Zhong et al., 2017). scale: its area as a part
    of the image's; ratio: its height by its width; fill: a number, one for each channel, or "noise".
    It may stand behind `normalize`."""

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    fill: Fill | str = 0.0

    places = (HOST, DEVICE)
    exact = True

    def __post_init__(self) -> None:
        check_chance(self.name, self.p)
        check_range(self.name, "scale", self.scale, 0, 1)
        check_range(self.name, "ratio", self.ratio, 1e-3)
        if isinstance(self.fill, str):
            if self.fill != NOISE:
                needed = "a number, one for each channel, or 'noise'"
                raise misfit(ArgumentError, self.name, got=f"fill={self.fill!r}", needed=needed)
        else:
            check_fill(self.name, self.fill)

    def draw(self, rng: Draws, shape: Shape) -> tuple[Window, Any] | None:
        """Which part, and what it is painted with, if that is noise."""
        if not rng.chance(self.p):
            return None
        rows = rows_of(shape)
        height, width = shape[rows : rows + 2]
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(TRIES):
            a, b, c, d = rng.random(4).tolist()
            area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * a)
            ratio = math.exp(low + (high - low) * b)
            h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < h < height and 0 < w < width:
                window = int(c * (height - h + 1)), int(d * (width - w + 1)), h, w
                form = (*shape[:rows], h, w, *shape[rows + 2 :])
                return window, rng.random(form) if self.fill == NOISE else None
        return None

    def image(self, xp: Any, x: Image, drawn: tuple[Window, Any] | None) -> Image:
        if drawn is None:
            return x
        (top, left, height, width), noise = drawn
        rows = rows_of(x.shape)
        if noise is None:
            paint = np.asarray(self.fill, x.dtype.name)
            paint = paint[:, None, None] if rows and paint.ndim else paint
        elif x.dtype.kind == "u":
            paint = np.floor(noise * (full(x) + 1)).astype(x.dtype.name)
        else:
            paint = noise.astype(x.dtype.name)
        found = x.copy()
        part = (slice(None),) * rows + (slice(top, top + height), slice(left, left + width))
        found[part] = moved_in(xp, paint)
        return found
