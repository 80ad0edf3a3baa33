"""Stages that move pixels: crops, resizing, flips; masks and boxes go with them.

Pixels are squares whose middles are what is interpolated between, so the image's edges stay where they are
(resizing.py); masks take the nearest one, by the same rule."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.spec import float64, int64
from ostinato.ops.core.user_line import misfit
from ostinato.ops.cpu.jit.code import address_of, symbol
from ostinato.ops.cpu.jit.routine import larger, whole_of
from ostinato.ops.jit.values import Value, cast, shift, where

from ostinato.errors import ArgumentError

from ..feed.native import Form, Look, Native
from ..feed.sample_draws import Draws
from ..feed.stage import DEVICE, HOST, Shape, Stage, Window, stage
from .backends import needed, opencv
from .headers import MOST_PIXELS
from .pixel_values import check_chance, check_order, check_shape
from .resizing import linear, resize_by_pillow

Image = Any
Size = int | tuple[int, int]
FILTERS = ("linear", "nearest", "cubic", "area", "lanczos")
TRIES = 10  # crops that are drawn before the middle is taken


def _pair(who: str, size: Any) -> tuple[int, int]:
    """Height and width; of one number, a square."""
    if type(size) is int and size > 0:
        return size, size
    pair = (
        (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, Sequence) else ()
    )
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        needed = "pixels, or a pair of height and width"
        raise misfit(ArgumentError, who, got=f"size={size!r}", needed=needed)
    return pair[0], pair[1]


def _check_filter(who: str, name: str, antialias: Any) -> None:
    if not isinstance(antialias, bool):
        got = f"antialias={antialias!r}"
        raise misfit(ArgumentError, who, got=got, needed="True or False")
    if name not in FILTERS:
        needed = " or ".join(map(repr, FILTERS))
        raise misfit(ArgumentError, who, got=f"interpolation={name!r}", needed=needed)


# -- what stages share -------------------------------------------------------------------------
def resized(
    x: Image, size: tuple[int, int], interpolation: str, antialias: bool = True, out: Image = None
) -> Image:
    check_order(x)
    if x.shape[:2] == size:
        return x
    if interpolation == "linear" and (found := linear(x, size, antialias, out)) is not None:
        return found
    if antialias and interpolation != "nearest":
        return resize_by_pillow(x, size, interpolation)
    cv = needed("resize", opencv(), "OpenCV")
    way = {"lanczos": "LANCZOS4"}.get(interpolation, interpolation.upper())
    fits = out is not None and out.shape == (*size, *x.shape[2:]) and out.dtype == x.dtype
    room = out if fits and x.shape[2] > 1 else None
    found = cv.resize(x, (size[1], size[0]), dst=room, interpolation=getattr(cv, f"INTER_{way}"))
    return room if room is not None else found.reshape(*size, x.shape[2])


def nearest(xp: Any, x: Image, size: tuple[int, int]) -> Image:
    """A mask in another size."""
    rows, columns = (
        ((2 * xp.arange(n) + 1) * old) // (2 * n) for n, old in zip(size, x.shape, strict=False)
    )
    return x[rows[:, None], columns]


def moved(xp: Any, boxes: Image, window: Window, size: tuple[int, int] | None = None) -> Image:
    """Boxes as seen from a window that is resized, and clipped to it."""
    top, left, height, width = window
    new = size or (height, width)
    scale = xp.asarray([new[1] / width, new[0] / height] * 2, dtype=xp.float32)
    start = xp.asarray([left, top] * 2, dtype=xp.float32)
    found = (boxes.astype(xp.float32) - start) * scale
    limit = xp.asarray([new[1], new[0]] * 2, dtype=xp.float32)
    return xp.minimum(xp.maximum(found, 0), limit)


def cut(x: Image, window: Window) -> Image:
    check_order(x)
    top, left, height, width = window
    return x[top : top + height, left : left + width]


def middle(shape: Shape, size: tuple[int, int]) -> Window:
    return (shape[0] - size[0]) // 2, (shape[1] - size[1]) // 2, *size


def _check_room(shape: Shape, size: tuple[int, int]) -> None:
    if shape[0] < size[0] or shape[1] < size[1]:
        raise ValueError(
            f"an image of {shape[0]} x {shape[1]} pixels is smaller than {size[0]} x {size[1]}; "
            "resize it first"
        )


def _spare(look: Look, size: Size) -> tuple[list[Value], list[Value]]:
    """A size for machine code, and the rows and columns that are beside a crop of it."""
    wanted = [look.size(n) for n in _pair("crop", size)]
    spare = [have.now - n for have, n in zip((look.height, look.width), wanted, strict=True)]
    look.refuse_if((spare[0] < 0) | (spare[1] < 0))
    return wanted, spare


# -- stages ------------------------------------------------------------------------------------
@stage("resize")
@dataclass(frozen=True)
class Resize(Stage):
    """To a height and width; with one number, the shorter side to that, and the other in proportion.

    interpolation: "linear", "nearest", "cubic", "area" or "lanczos". antialias: where images shrink, each
    pixel is mixed of all those that it covers, as Pillow does it; without, of its place's neighbours."""

    size: Size
    interpolation: str = "linear"
    antialias: bool = True

    moves = True

    def __post_init__(self) -> None:
        _pair("resize", self.size)
        _check_filter("resize", self.interpolation, self.antialias)

    def size_of(self, shape: Shape) -> tuple[int, int]:
        if not isinstance(self.size, int):
            return _pair("resize", self.size)
        height, width = shape[:2]
        other = max(self.size * max(height, width) // min(height, width), 1)
        if self.size * other > MOST_PIXELS:  # a file of a few kB may ask for gigabytes
            raise ValueError(
                f"an image of {height} x {width} pixels, of which one with {self.size} at its shorter side "
                f"would have {self.size * other}; there may be {MOST_PIXELS}: give resize both sides"
            )
        return (self.size, other) if height <= width else (other, self.size)

    def shrinks(self, drawn: Any, shape: Shape) -> tuple[Window, tuple[int, int]] | None:
        """With one number the other side is in proportion to that of the image as it is."""
        is_fixed = not isinstance(self.size, int)
        whole = 0, 0, shape[0], shape[1]
        return (whole, self.size_of(shape)) if is_fixed else None

    def image(self, xp: Any, x: Image, drawn: Any, out: Image = None) -> Image:
        return resized(x, self.size_of(x.shape), self.interpolation, self.antialias, out)

    def native(self, form: Form | None) -> Native | None:
        if form is None or self.interpolation != "linear" or form.dtype != "uint8":
            return None

        def plan(look: Look, number: int) -> None:
            if not isinstance(self.size, int):
                return look.resize(*map(look.size, _pair("resize", self.size)))
            height, width, size = look.height.now, look.width.now, look.size(self.size)
            is_flat = height <= width
            short, long = where(is_flat, height, width), where(is_flat, width, height)
            other = larger(size * long // short, 1)
            look.refuse_if(size * other > MOST_PIXELS)
            return look.resize(where(is_flat, size, other), where(is_flat, other, size))

        return Native(plan=plan, smooth=self.antialias)

    def mask(self, xp: Any, x: Image, drawn: Any) -> Image:
        return nearest(xp, x, self.size_of(x.shape))

    def boxes(self, xp: Any, x: Any, drawn: Any, shape: Shape) -> Any:
        return moved(xp, x, (0, 0, shape[0], shape[1]), self.size_of(shape))


@stage("center_crop")
@dataclass(frozen=True)
class CenterCrop(Stage):
    """The middle of an image."""

    size: Size

    moves = True
    places = (HOST, DEVICE)
    exact = True

    def __post_init__(self) -> None:
        _pair("center_crop", self.size)

    def window(self, drawn: Any, shape: Shape) -> tuple[Window, Any]:
        size = _pair("center_crop", self.size)
        _check_room(shape, size)
        return middle(shape, size), drawn

    def image(self, xp: Any, x: Image, drawn: Any) -> Image:
        return cut(x, self.window(drawn, x.shape)[0])

    def native(self, form: Form | None) -> Native | None:
        if form is None or form.dtype != "uint8":
            return None

        def plan(look: Look, number: int) -> None:
            size, spare = _spare(look, self.size)
            look.crop(*(shift(n, "lshr", 1) for n in spare), *size)

        return Native(plan=plan)

    mask = image

    def image_rows(self, xp: Any, x: Image, drawn: Any) -> Image:
        check_shape(x.shape[1:])
        (top, left, height, width), _ = self.window(None, x.shape[1:])
        return x[:, top : top + height, left : left + width]

    mask_rows = image_rows

    def boxes(self, xp: Any, x: Any, drawn: Any, shape: Shape) -> Any:
        return moved(xp, x, self.window(drawn, shape)[0])


@stage("random_crop")
@dataclass(frozen=True)
class RandomCrop(Stage):
    """A part of this size, anywhere in the image. padding: pixels of zeros that are put around it
    first."""

    size: Size
    padding: int = 0

    moves = True
    places = (HOST, DEVICE)
    exact = True

    def __post_init__(self) -> None:
        _pair("random_crop", self.size)

    def draw(self, rng: Draws, shape: Shape) -> Window:
        height, width = _pair("random_crop", self.size)
        more = 2 * self.padding
        _check_room((shape[0] + more, shape[1] + more), (height, width))
        top = rng.integer(0, shape[0] + more - height + 1)
        left = rng.integer(0, shape[1] + more - width + 1)
        return top - self.padding, left - self.padding, height, width

    def image(self, xp: Any, x: Image, drawn: Window) -> Image:
        if not self.padding:
            return cut(x, drawn)
        check_order(x)
        top, left, height, width = drawn
        found = xp.zeros((height, width, *x.shape[2:]), x.dtype)
        above, before = max(-top, 0), max(-left, 0)
        part = x[max(top, 0) : top + height, max(left, 0) : left + width]
        found[above : above + part.shape[0], before : before + part.shape[1]] = part
        return found

    def native(self, form: Form | None) -> Native | None:
        if self.padding or form is None or form.dtype != "uint8":
            return None

        def plan(look: Look, number: int) -> None:
            size, spare = _spare(look, self.size)
            drawn = zip(spare, look.drawn(number), strict=False)
            look.crop(*(whole_of(cast(n + 1, float64) * u, int64) for n, u in drawn), *size)

        return Native(plan=plan)

    mask = image

    def boxes(self, xp: Any, x: Any, drawn: Window, shape: Shape) -> Any:
        return moved(xp, x, drawn)


@stage("random_resized_crop")
@dataclass(frozen=True)
class RandomResizedCrop(Stage):
    """A part of the image, of random area and proportions, in this size (Szegedy et al., 2014).
    interpolation and antialias: as of `resize`."""

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "linear"
    antialias: bool = True

    moves = True

    def __post_init__(self) -> None:
        _pair("random_resized_crop", self.size)
        _check_filter("random_resized_crop", self.interpolation, self.antialias)
        for name, pair in (("scale", self.scale), ("ratio", self.ratio)):
            if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
                got, needed = f"{name}={pair!r}", "two numbers above 0, the smaller one first"
                raise misfit(ArgumentError, "random_resized_crop", got=got, needed=needed)

    def draw(self, rng: Draws, shape: Shape) -> Window:
        height, width = shape[:2]
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(TRIES):
            a, b, c, d = rng.random(4).tolist()
            area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * a)
            ratio = math.exp(low + (high - low) * b)
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return int(c * (height - h + 1)), int(d * (width - w + 1)), h, w
        if width < height * self.ratio[0]:
            return middle(shape, (max(round(width / self.ratio[0]), 1), width))
        if width > height * self.ratio[1]:
            return middle(shape, (height, max(round(height * self.ratio[1]), 1)))
        return 0, 0, height, width

    def window(self, drawn: Window, shape: Shape) -> tuple[Window, Window]:
        return drawn, (0, 0, *drawn[2:])

    def shrinks(self, drawn: Window, shape: Shape) -> tuple[Window, tuple[int, int]]:
        return drawn, _pair("random_resized_crop", self.size)

    def image(self, xp: Any, x: Image, drawn: Window, out: Image = None) -> Image:
        size = _pair("random_resized_crop", self.size)
        return resized(cut(x, drawn), size, self.interpolation, self.antialias, out)

    def native(self, form: Form | None) -> Native | None:
        if form is None or self.interpolation != "linear" or form.dtype != "uint8":
            return None
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        symbol("ostinato_exp", address_of(ctypes.CDLL(None), "exp"))  # the one that Python calls

        def plan(look: Look, number: int) -> None:
            made, old = look.made, (look.height.now, look.width.now)
            given = self.scale[0], self.scale[1] - self.scale[0], low, high - low
            least, more, low_, wide = map(look.number, given)
            turn, found = made.variable(made.whole(0)), [made.variable(n) for n in (*old, *old)]
            with made.until() as ends:
                look.refuse_if(turn.now >= TRIES)
                a, b, c, d = look.drawn(number, turn.now)
                area = cast(old[0] * old[1], float64) * (least + more * a)
                ratio = made.call("ostinato_exp", float64, low_ + wide * b)
                h, w = (
                    whole_of(v.lines.call("rint", float64, v.lines.call("sqrt", float64, v)), int64)
                    for v in (area / ratio, area * ratio)
                )
                tops, lefts = (cast(n - k + 1, float64) for n, k in zip(old, (h, w), strict=True))
                top, left = whole_of(c * tops, int64), whole_of(d * lefts, int64)
                for place, value in zip(found, (top, left, h, w), strict=True):
                    place.now = value
                turn.now = turn.now + 1
                ends(((h > 0) & (h <= old[0]) & (w > 0) & (w <= old[1])).name)
            look.crop(*(n.now for n in found))
            look.resize(*map(look.size, _pair("random_resized_crop", self.size)))

        return Native(plan=plan, smooth=self.antialias)

    def mask(self, xp: Any, x: Image, drawn: Window) -> Image:
        return nearest(xp, cut(x, drawn), _pair("random_resized_crop", self.size))

    def boxes(self, xp: Any, x: Any, drawn: Window, shape: Shape) -> Any:
        return moved(xp, x, drawn, _pair("random_resized_crop", self.size))


@stage("random_flip")
@dataclass(frozen=True)
class RandomFlip(Stage):
    """Left and right change places, with a chance of p; with vertical=True, top and bottom."""

    p: float = 0.5
    vertical: bool = False

    moves = True
    places = (HOST, DEVICE)
    exact = True

    def __post_init__(self) -> None:
        check_chance("random_flip", self.p)

    def draw(self, rng: Draws, shape: Shape) -> bool:
        return rng.chance(self.p)

    def image(self, xp: Any, x: Image, drawn: bool, out: Image = None) -> Image:
        """A view, unless it is the last stage: NumPy copies what lies backwards byte by byte."""
        check_order(x)
        if not drawn:
            return x
        if out is not None and x.dtype == np.uint8 and (out.shape, out.dtype) == (x.shape, x.dtype):
            cv = opencv()
            if cv is not None and out.flags.c_contiguous:
                cv.flip(x, 0 if self.vertical else 1, dst=out)
                return out
        return x[::-1] if self.vertical else x[:, ::-1]

    def native(self, form: Form | None) -> Native | None:
        if form is None or form.dtype != "uint8":
            return None

        def plan(look: Look, number: int) -> None:
            look.mirror(self.vertical, look.drawn(number)[0] < look.number(self.p))

        return Native(plan=plan)

    mask = image

    def image_rows(self, xp: Any, x: Image, drawn: Any) -> Image:
        check_shape(x.shape[1:])
        turned = x[:, ::-1] if self.vertical else x[:, :, ::-1]
        return xp.where(drawn.reshape(-1, *[1] * (x.ndim - 1)), turned, x)

    mask_rows = image_rows

    def boxes(self, xp: Any, x: Any, drawn: bool, shape: Shape) -> Any:
        if not drawn:
            return x
        extent, k = (shape[0], 1) if self.vertical else (shape[1], 0)
        found = x.copy()
        found[:, k], found[:, k + 2] = extent - x[:, k + 2], extent - x[:, k]
        return found
