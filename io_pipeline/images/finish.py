"""The last stage of an image: from uint8 to the numbers that a model is given, in one step.

Until then images stay uint8, which is a quarter of the memory that float32 takes. The result is x * scale +
bias in float32, each rounded (of narrower numbers once more), whoever computes it: machine code (kernels.py),
tables of 256 values, NumPy, or a device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.exact import Keys
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..feed.fields import IMAGE
from ..feed.native import Form, Native
from ..feed.stage import DEVICE, HOST, Stage, stage
from . import kernels
from .backends import opencv
from .pixel_values import check_dtype

Numbers = float | tuple[float, ...]
CHW, HWC = LAYOUTS = ("chw", "hwc")
Image = Any


@stage("normalize")
@dataclass(frozen=True)
class Normalize(Stage):
    """(x - mean) / std of what is between 0 and 1, in float32 and with channels in front. mean, std: a
    number, or one for each channel. dtype: or "float16", "bfloat16", "float64". layout: "chw" or "hwc"."""

    mean: Numbers = 0.0
    std: Numbers = 1.0
    dtype: str = "float32"
    layout: str = CHW

    needs = (IMAGE,)
    places = (HOST, DEVICE)
    exact = True

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given = getattr(self, name)
            object.__setattr__(self, name, tuple(float(v) for v in np.atleast_1d(given)))
        good = len(self.mean) == len(self.std) or 1 in (len(self.mean), len(self.std))  # type: ignore[arg-type]
        if not good or 0.0 in self.std:  # type: ignore[operator]
            got = f"mean={self.mean!r}, std={self.std!r}"
            needed = "as many numbers in both, none of std 0"
            raise misfit(ArgumentError, "normalize", got=got, needed=needed)
        if self.layout not in LAYOUTS:
            needed = "'chw' or 'hwc'"
            raise misfit(ArgumentError, "normalize", got=f"layout={self.layout!r}", needed=needed)
        check_dtype("normalize", self.dtype)

    def image(self, xp: Any, x: Image, drawn: Any, out: Image = None) -> Image:
        channels = x.shape[-1]
        if self.layout == HWC:
            shape: tuple[int, ...] = x.shape
        else:
            shape = (channels, *x.shape[:-1])
        if out is None or out.shape != shape or out.dtype != self.dtype:
            out = xp.empty(shape, self.dtype)
        if xp is not np or x.dtype != np.uint8 or self.dtype not in kernels.MADE:
            self._computed(xp, x, out)
        elif self.layout == CHW:
            line = self._line(channels, "uint8")
            if not (out.flags.c_contiguous and kernels.planes(x, line.address, out)):
                self._computed(xp, x, out)
        elif channels <= 4 and (cv := opencv()) is not None:
            table = self._table(channels)
            bits = table.view(f"i{table.itemsize}")
            cv.LUT(np.ascontiguousarray(x), bits, out.view(bits.dtype))
        else:
            self._computed(xp, x, out)
        return out

    def image_rows(self, xp: Any, x: Image, drawn: Any) -> Image:
        line = self._line(x.shape[-1], x.dtype.name)
        scale, bias = line.scale, line.bias
        if self.layout == CHW:  # what is moved before has a quarter of the bytes
            x = xp.moveaxis(x, -1, 1)
            scale, bias = scale[:, None, None], bias[:, None, None]
        found = x.astype(np.float32) * xp.asarray(scale) + xp.asarray(bias)
        return found if self.dtype == "float32" else found.astype(self.dtype)

    def native(self, form: Form | None) -> Native | None:
        if form is None or self.layout != CHW or form.dtype != "uint8":
            return None
        if not kernels.can(self.dtype):
            return None
        channels = form.channels
        if not {len(self.mean), len(self.std)} <= {1, channels}:  # type: ignore[arg-type]
            return None
        return Native(line=self._line(channels, "uint8").both, form=Form(channels, self.dtype))

    def _computed(self, xp: Any, x: Image, out: Image) -> None:
        line = self._line(x.shape[-1], str(x.dtype))
        found = x.astype(xp.float32) * xp.asarray(line.scale) + xp.asarray(line.bias)
        out[...] = found if self.layout == HWC else xp.moveaxis(found, -1, 0)

    def _line(self, channels: int, dtype: str) -> ChannelScale:
        return _line(Keys((self.mean, self.std)), channels, dtype)

    def _table(self, channels: int) -> Any:
        return _table(Keys((self.mean, self.std)), channels, self.dtype)


class ChannelScale(NamedTuple):
    """Factor and addend of each channel, and where both lie, for machine code."""

    scale: Any
    bias: Any
    both: Any
    address: int


@lru_cache(64)
def _line(numbers: Keys, channels: int, dtype: str) -> ChannelScale:
    mean, std = numbers
    if not {len(mean), len(std)} <= {1, channels}:
        raise ValueError(f"{max(len(mean), len(std))} numbers for {channels} channels")
    kind = np.dtype(dtype)
    full = float(np.iinfo(kind).max) if kind.kind == "u" else 1.0
    middle, width = np.broadcast_to(mean, channels), np.broadcast_to(std, channels)
    both = np.stack((1 / (full * width), -middle / width)).astype(np.float32)
    return ChannelScale(both[0], both[1], both, both.ctypes.data)


@lru_cache(64)
def _table(numbers: Keys, channels: int, dtype: str) -> Any:
    """The results of all values of uint8: 1 x 256 x channels."""
    line = _line(numbers, channels, "uint8")
    made = np.arange(256, dtype=np.float32)[:, None] * line.scale + line.bias
    return made.astype(dtype)[None]
