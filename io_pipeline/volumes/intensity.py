"""Stages that change the values of volumes, and leave voxels where they are.

Values have the meaning that they were measured with, and no white: parameters are in the volume's own
numbers. Whole numbers are rounded, and end where their dtype does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..feed.fields import IMAGE, VOLUME
from ..feed.sample_draws import Draws
from ..feed.stage import DEVICE, HOST, Box3, Shape, Stage, stage
from ..images.pixel_values import check_chance, check_dtype, check_number, check_range, moved_in
from .volume_geometry import Volume

Pair = tuple[float, float]
Numbers = float | tuple[float, ...]


def _wide(xp: Any, x: Volume) -> Any:
    is_wide = x.dtype.itemsize > (4 if x.dtype.kind == "f" else 2)
    return x.astype(xp.float64 if is_wide else xp.float32, copy=False)


def _back(xp: Any, y: Any, dtype: Any) -> Volume:
    if dtype.kind == "f":
        return y.astype(dtype, copy=False)
    ends = np.iinfo(dtype.name)
    return xp.minimum(xp.maximum(xp.rint(y), float(ends.min)), float(ends.max)).astype(dtype)


@stage("gaussian_noise")
@dataclass(frozen=True)
class GaussianNoise(Stage):
    """Normally distributed numbers added to volumes and images; their standard deviation comes from a
    range, or is a number."""

    std: float | Pair = 0.1
    p: float = 1.0

    needs = (VOLUME, IMAGE)
    places = (HOST, DEVICE)
    exact = True

    def __post_init__(self) -> None:
        check_chance(self.name, self.p)
        if isinstance(self.std, (int, float)):
            check_number(self.name, "std", self.std, 0)
        else:
            check_range(self.name, "std", self.std, 0)

    def draw(self, rng: Draws, shape: Shape) -> Any:
        """Draw the noise that is added."""
        chance, where = rng.random(2).tolist()
        if chance >= self.p:
            return None
        std = self.std
        low, high = std if isinstance(std, tuple) else (std, std)
        noise = rng.generator.standard_normal(shape, np.float32)
        return noise * np.float32(low + (high - low) * where)

    def why_whole(self) -> str:
        return ""

    def slab(self, drawn: Any, shape: Shape, box: Box3) -> tuple[Box3, Any]:
        cut = tuple(slice(lo, hi) for lo, hi in box)
        return box, None if drawn is None else drawn[cut]

    def volume(self, xp: Any, x: Volume, drawn: Any) -> Volume:
        return x if drawn is None else _back(xp, _wide(xp, x) + moved_in(xp, drawn), x.dtype)

    image = volume


@stage("random_intensity")
@dataclass(frozen=True)
class RandomIntensity(Stage):
    """x * scale + shift, after what is between the smallest and the largest value is bent by gamma; each
    a random number out of a range."""

    scale: Pair = (1.0, 1.0)
    shift: Pair = (0.0, 0.0)
    gamma: Pair = (1.0, 1.0)
    p: float = 1.0

    needs = (VOLUME,)
    places = (HOST, DEVICE)

    def __post_init__(self) -> None:
        check_chance(self.name, self.p)
        check_range(self.name, "scale", self.scale)
        check_range(self.name, "shift", self.shift)
        check_range(self.name, "gamma", self.gamma, 1e-3)

    def draw(self, rng: Draws, shape: Shape) -> tuple[float, float, float] | None:
        chance, *where = rng.random(4).tolist()
        if chance >= self.p:
            return None
        ranges = self.scale, self.shift, self.gamma
        a, b, c = (low + (high - low) * w for (low, high), w in zip(ranges, where, strict=True))
        return a, b, c

    def why_whole(self) -> str:
        return "" if self.gamma == (1.0, 1.0) else "gamma needs the ends of a whole volume"

    def volume(self, xp: Any, x: Volume, drawn: tuple[float, float, float] | None) -> Volume:
        if drawn is None:
            return x
        scale, shift, gamma = drawn
        y = _wide(xp, x)
        if gamma != 1:
            low = y.min()
            room = y.max() - low
            by = xp.where(room > 0, room, 1).astype(y.dtype)
            y = xp.maximum((y - low) / by, 0) ** gamma * room + low
        return _back(xp, y * scale + shift, x.dtype)


@stage("normalize3d")
@dataclass(frozen=True)
class Normalize3d(Stage):
    """(x - mean) / std. mean, std: a number, or one for each channel; without them those of each volume
    itself, of each channel if it has some. clip: what values are cut off at before, as a window of
    Hounsfield units. layout: "cdhw" puts channels in front, and one where there was none."""

    mean: Numbers | None = None
    std: Numbers | None = None
    clip: Pair | None = None
    dtype: str = "float32"
    layout: str | None = None

    needs = (VOLUME,)
    places = (HOST, DEVICE)

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            got = f"mean={self.mean!r}, std={self.std!r}"
            raise misfit(ArgumentError, self.name, got=got, needed="both of them, or none")
        for name in ("mean", "std"):
            given = getattr(self, name)
            if given is not None:
                numbers = tuple(given) if isinstance(given, (tuple, list)) else (given,)
                for number in numbers:
                    check_number(self.name, name, number)
                object.__setattr__(self, name, tuple(map(float, numbers)))
        if self.std is not None and 0.0 in self.std:  # type: ignore[operator]
            got, needed = f"std={self.std!r}", "numbers other than 0"
            raise misfit(ArgumentError, self.name, got=got, needed=needed)
        if self.clip is not None:
            check_range(self.name, "clip", self.clip)
        check_dtype(self.name, self.dtype)
        if self.layout not in (None, "cdhw"):
            got = f"layout={self.layout!r}"
            raise misfit(ArgumentError, self.name, got=got, needed="None or 'cdhw'")

    def why_whole(self) -> str:
        return "" if self.mean is not None else "without mean= and std= it needs those of all of it"

    def volume(self, xp: Any, x: Volume, drawn: Any) -> Volume:
        kind = xp.float64 if self.dtype == "float64" else xp.float32
        y = x.astype(kind)
        if self.clip is not None:
            y = xp.minimum(xp.maximum(y, self.clip[0]), self.clip[1])
        if self.mean is None:
            wide = y.astype(xp.float64)
            mean = wide.mean(axis=(0, 1, 2))
            std = xp.sqrt(((wide - mean) ** 2).mean(axis=(0, 1, 2)))
            std = xp.where(std > 0, std, 1.0)
        else:
            channels = x.shape[3] if x.ndim == 4 else 1
            if not {len(self.mean), len(self.std)} <= {1, channels}:  # type: ignore[arg-type]
                raise ValueError(f"{len(self.mean)} numbers for {channels} channels")  # type: ignore[arg-type]
            mean, std = (moved_in(xp, np.array(v)) for v in (self.mean, self.std))
        y = ((y - mean.astype(kind)) / std.astype(kind)).astype(self.dtype)
        if self.layout is None:
            return y
        return y[None] if x.ndim == 3 else xp.moveaxis(y, -1, 0)
