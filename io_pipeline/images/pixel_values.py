"""What stages that change values share: what an image's numbers mean, tables, rounding, chances.

Numbers of an image lie between 0 and `full`: 255 of uint8, 65535 of uint16, 1 of floats. A stage says which
number is right; whole ones are rounded to it once, and all are cut off at 0 and `full`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from ostinato.ops.core.exact import Keys
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..feed.sample_draws import Draws
from ..feed.stage import Shape, Stage
from .backends import opencv

Image = Any
Range = float | tuple[float, float]
# (xp, values as floats, full, *parameters): the values as they should be
Change = Callable[..., Any]


def full(x: Image) -> float:
    """Return the value of white."""
    kind = x.dtype.kind
    if kind == "f":
        return 1.0
    if kind != "u":
        raise TypeError(f"an image of {x.dtype}, where unsigned integers or floats are needed")
    return float(np.iinfo(x.dtype.name).max)


def wide(xp: Any, x: Image) -> Image:
    """As floats, which hold all values of the image."""
    return x.astype(xp.float32 if x.dtype.itemsize <= 2 else xp.float64, copy=False)


def narrowed(xp: Any, y: Any, dtype: Any, white: float) -> Image:
    """As numbers of an image."""
    y = xp.minimum(xp.maximum(y, 0), white)
    return (xp.rint(y) if dtype.kind == "u" else y).astype(dtype, copy=False)


def moved_in(xp: Any, x: Any) -> Any:
    """An array of the host's, where `xp` computes."""
    if xp is np:
        return x
    there = xp.empty(x.shape, x.dtype)
    there.set(np.ascontiguousarray(x).reshape(x.shape))
    return there


def contiguous_rows(x: Any) -> Any:
    """An image whose rows lie in memory as libraries of the host expect it, which what was mirrored
    does not."""
    if x.ndim == 3 and x.strides[2] == x.itemsize and x.strides[0] >= 0:
        if x.strides[1] == x.shape[2] * x.itemsize:
            return x
        cv = opencv()
        if x.strides[1] == -x.shape[2] * x.itemsize and cv is not None and x.dtype.kind in "uf":
            return cv.flip(x[:, ::-1], 1).reshape(x.shape)  # a tenth of NumPy's time
    return np.ascontiguousarray(x)


# -- tables ------------------------------------------------------------------------------------
_BYTES = np.arange(256, dtype=np.float64)


def table(change: Change, *given: Any) -> Any:
    """Tabulate what becomes of each value of uint8."""
    return narrowed(np, change(np, _BYTES, 255.0, *given), np.dtype(np.uint8), 255.0)


@lru_cache(256)
def kept_table(change: Change, given: Keys) -> Any:
    """Tabulate a change once for numbers that come again."""
    return table(change, *given)


def looked_up(xp: Any, x: Image, tables: Any) -> Image:
    """The values that tables have for those of an image of uint8: one table of 256, which may lie on the
    host, or 256 x channels where the image is."""
    cv = opencv() if xp is np else None
    if cv is not None and x.ndim == 3:
        return cv.LUT(contiguous_rows(x), tables if tables.ndim == 1 else tables[None]).reshape(
            x.shape
        )
    if tables.ndim == 1:
        return xp.take(moved_in(xp, tables), x)
    return tables[x.astype(xp.intp), xp.arange(x.shape[-1])]


def pointwise(xp: Any, x: Image, change: Change, *given: Any) -> Image:
    """Each value by itself: of uint8 by a table."""
    if x.dtype == np.uint8:
        return looked_up(xp, x, kept_table(change, Keys(given)))
    white = full(x)
    return narrowed(xp, change(xp, wide(xp, x), white, *given), x.dtype, white)


def rows_of(shape: Shape) -> int:
    """Which axis of an image its rows are: the second one behind few channels, as `normalize` puts them,
    else the first."""
    return int(len(shape) == 3 and shape[0] <= 4 < shape[2])


def check_dtype(who: str, name: str) -> None:
    """Check that a model may be given this dtype."""
    good = ("float32", "float16", "bfloat16", "float64")
    if name not in good:
        needed = " or ".join(map(repr, good))
        raise misfit(ArgumentError, who, got=f"dtype={name!r}", needed=needed)


def check_order(x: Image) -> None:
    """Refuse what `normalize` gave: stages would take its channels for rows."""
    check_shape(x.shape)


def check_shape(shape: Shape) -> None:
    """Check by an image's shape that channels are behind."""
    if rows_of(shape):
        told = " x ".join(map(str, shape))
        raise ValueError(
            f"an image of {told}, whose channels are in front: write this stage before `normalize`"
        )


def but_alpha(xp: Any, x: Image, change: Callable[[Any, Image], Image]) -> Image:
    """Change the colours of an image; alpha, which is none of them, stays."""
    check_order(x)
    if x.shape[-1] not in (2, 4):
        return change(xp, x)
    return xp.concatenate((change(xp, x[..., :-1]), x[..., -1:]), axis=-1)


# -- parameters --------------------------------------------------------------------------------
def check_chance(who: str, p: Any) -> None:
    if not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise misfit(ArgumentError, who, got=f"p={p!r}", needed="a chance from 0 to 1")


def check_number(
    who: str, name: str, value: Any, low: float = -math.inf, high: float = math.inf
) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= value <= high:
        got = f"{name}={value!r}"
        raise misfit(ArgumentError, who, got=got, needed=f"a number{_from(low, high)}")


def check_range(
    who: str, name: str, value: Any, low: float = -math.inf, high: float = math.inf
) -> tuple[float, float]:
    """Two numbers, the smaller one first."""
    good = isinstance(value, Sequence) and len(value) == 2
    good = good and all(isinstance(v, (int, float)) and math.isfinite(v) for v in value)
    if not good or not low <= value[0] <= value[1] <= high:
        needed = f"two numbers{_from(low, high)}, the smaller one first"
        raise misfit(ArgumentError, who, got=f"{name}={value!r}", needed=needed)
    return float(value[0]), float(value[1])


def spread(
    who: str, name: str, value: Any, middle: float, low: float, high: float = math.inf
) -> tuple[float, float]:
    """A range: of one number, what is so far from the middle."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        check_number(who, name, value, 0.0, high - middle)
        return max(middle - value, low), middle + value
    return check_range(who, name, value, low, high)


def _from(low: float, high: float) -> str:
    if high < math.inf:
        return f" from {low:g} to {high:g}"
    return f", {low:g} or more" if low > -math.inf else ""


@dataclass(frozen=True)
class Sometimes(Stage):
    """A stage with a chance of p, and else nothing. What it does is `changed`."""

    p: float = field(default=1.0, kw_only=True)
    limits: ClassVar[tuple[tuple[str, float, float], ...]] = ()  # of its numbers

    def __post_init__(self) -> None:
        check_chance(self.name, self.p)
        for name, low, high in self.limits:
            check_number(self.name, name, getattr(self, name), low, high)

    @property
    def is_random(self) -> bool:
        return self.p < 1

    def draw(self, rng: Draws, shape: Shape) -> Any:
        return rng.chance(self.p)

    def image(self, xp: Any, x: Image, drawn: Any) -> Image:
        return x if drawn is False else but_alpha(xp, x, self.changed)

    def changed(self, xp: Any, x: Image) -> Image:
        raise NotImplementedError
