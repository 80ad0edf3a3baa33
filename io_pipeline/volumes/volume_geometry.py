"""Stages that move voxels by whole steps: crops, mirrors, quarter turns; masks go with them.

A volume is depth x height x width, or with channels behind. What comes of it is a view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..feed.fields import VOLUME
from ..feed.sample_draws import Draws
from ..feed.stage import DEVICE, HOST, Box3, Shape, Stage, stage
from ..images.pixel_values import check_chance

Volume = Any
Size = int | tuple[int, int, int]
Corner = tuple[int, int, int]
ALL = "all"  # instead of what was drawn: what is there is what is wanted


def triple(who: str, name: str, value: Any, least: int = 1) -> tuple[int, int, int]:
    """Three whole numbers; of one, the same for all axes."""
    found = (value,) * 3 if isinstance(value, int) else value
    good = isinstance(found, Sequence) and len(found) == 3
    if not good or not all(isinstance(n, int) and n >= least for n in found):
        needed = f"a whole number, {least} or more, or one each for depth, height and width"
        raise misfit(ArgumentError, who, got=f"{name}={value!r}", needed=needed)
    a, b, c = found
    return a, b, c


def _check_room(shape: Shape, size: Corner) -> None:
    if any(n < m for n, m in zip(shape, size, strict=False)):
        got, wanted = (" x ".join(map(str, s[:3])) for s in (shape, size))
        raise ValueError(f"a volume of {got} voxels is smaller than {wanted}")


def _cut(x: Volume, corner: Corner, size: Corner) -> Volume:
    a, b, c = (slice(first, first + n) for first, n in zip(corner, size, strict=True))
    return x[a, b, c]


@dataclass(frozen=True)
class Moving(Stage):
    """What all of them have in common: they are exact anywhere, and masks do as volumes do."""

    needs = (VOLUME,)
    moves = True
    places = (HOST, DEVICE)
    exact = True

    def volume(self, xp: Any, x: Volume, drawn: Any) -> Volume:
        raise NotImplementedError

    def mask(self, xp: Any, x: Volume, drawn: Any) -> Volume:
        return self.volume(xp, x, drawn)


@dataclass(frozen=True)
class Stepping(Moving):
    """By whole steps, so a box of the result is made of a box."""

    def why_whole(self) -> str:
        return ""


def _moved(box: Box3, corner: Sequence[int]) -> Box3:
    return tuple((lo + k, hi + k) for (lo, hi), k in zip(box, corner, strict=True))


def _mirrored(box: Box3, axes: Sequence[int], shape: Shape) -> Box3:
    return tuple(
        (n - hi, n - lo) if axis in axes else (lo, hi)
        for axis, ((lo, hi), n) in enumerate(zip(box, shape, strict=False))
    )


@stage("center_crop3d")
@dataclass(frozen=True)
class CenterCrop3d(Stepping):
    """The middle of a volume."""

    size: Size

    def __post_init__(self) -> None:
        triple(self.name, "size", self.size)

    def volume(self, xp: Any, x: Volume, drawn: Any) -> Volume:
        size = triple(self.name, "size", self.size)
        if drawn is ALL:
            return x
        return _cut(x, self._corner(x.shape, size), size)

    def _corner(self, shape: Shape, size: Corner) -> Corner:
        _check_room(shape, size)
        a, b, c = ((n - m) // 2 for n, m in zip(shape, size, strict=False))
        return a, b, c

    def result(self, drawn: Any, shape: Shape) -> Shape:
        size = triple(self.name, "size", self.size)
        _check_room(shape, size)
        return (*size, *shape[3:])

    def slab(self, drawn: Any, shape: Shape, box: Box3) -> tuple[Box3, Any]:
        return _moved(box, self._corner(shape, triple(self.name, "size", self.size))), ALL


@stage("random_crop3d")
@dataclass(frozen=True)
class RandomCrop3d(Stepping):
    """A part of this size, anywhere in the volume."""

    size: Size

    def __post_init__(self) -> None:
        triple(self.name, "size", self.size)

    def draw(self, rng: Draws, shape: Shape) -> Corner:
        size = triple(self.name, "size", self.size)
        _check_room(shape, size)
        a, b, c = (rng.integer(0, n - m + 1) for n, m in zip(shape, size, strict=False))
        return a, b, c

    def volume(self, xp: Any, x: Volume, drawn: Any) -> Volume:
        return x if drawn is ALL else _cut(x, drawn, triple(self.name, "size", self.size))

    def result(self, drawn: Corner, shape: Shape) -> Shape:
        return (*triple(self.name, "size", self.size), *shape[3:])

    def slab(self, drawn: Corner, shape: Shape, box: Box3) -> tuple[Box3, Any]:
        return _moved(box, drawn), ALL


@stage("random_flip3d")
@dataclass(frozen=True)
class RandomFlip3d(Stepping):
    """Mirrored along each of these axes, with a chance of p each."""

    p: float = 0.5
    axes: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        check_chance(self.name, self.p)
        axes = self.axes
        if not isinstance(axes, tuple) or not {*axes} <= {0, 1, 2} or len({*axes}) != len(axes):
            needed = "some of (0, 1, 2)"
            raise misfit(ArgumentError, self.name, got=f"axes={axes!r}", needed=needed)

    def draw(self, rng: Draws, shape: Shape) -> tuple[int, ...]:
        chances = rng.random(3).tolist()
        return tuple(axis for axis in self.axes if chances[axis] < self.p)

    def volume(self, xp: Any, x: Volume, drawn: tuple[int, ...]) -> Volume:
        a, b, c = (slice(None, None, -1 if axis in drawn else None) for axis in range(3))
        return x[a, b, c]

    def slab(self, drawn: tuple[int, ...], shape: Shape, box: Box3) -> tuple[Box3, Any]:
        return _mirrored(box, drawn, shape), drawn

    def as_rows(self, drawn: list[tuple[int, ...]]) -> Any:
        return np.array([[k in axes for k in range(3)] for axes in drawn], bool).reshape(-1, 3)

    def volume_rows(self, xp: Any, x: Volume, drawn: Any) -> Volume:
        for k in self.axes:
            turned = x[(slice(None),) * (k + 1) + (slice(None, None, -1),)]
            x = xp.where(drawn[:, k].reshape(-1, *[1] * (x.ndim - 1)), turned, x)
        return x

    mask_rows = volume_rows


@stage("random_rotate90")
@dataclass(frozen=True)
class RandomRotate90(Stepping):
    """Turned by 0, 1, 2 or 3 quarters in the plane of two axes, from the first to the second of them, with a
    chance of p. Where they differ in length, a quarter turn changes the shape."""

    axes: tuple[int, int] = (1, 2)
    p: float = 1.0

    def __post_init__(self) -> None:
        check_chance(self.name, self.p)
        axes = self.axes
        if (
            not isinstance(axes, tuple)
            or len(axes) != 2
            or not {*axes} < {0, 1, 2}
            or len({*axes}) < 2
        ):
            needed = "two of (0, 1, 2)"
            raise misfit(ArgumentError, self.name, got=f"axes={axes!r}", needed=needed)

    def draw(self, rng: Draws, shape: Shape) -> int:
        """How many quarters."""
        return rng.integer(0, 4) if rng.chance(self.p) else 0

    def volume(self, xp: Any, x: Volume, drawn: int) -> Volume:
        first, second = self.axes
        if drawn % 2:
            x = x.swapaxes(first, second)
        turned = [slice(None)] * 3
        for axis in self._mirrored_axes(drawn):
            turned[axis] = slice(None, None, -1)
        return x[tuple(turned)]

    def _mirrored_axes(self, drawn: int) -> list[int]:
        """Axes that are mirrored after they changed places."""
        first, second = self.axes
        return [*([first] if drawn in (1, 2) else []), *([second] if drawn in (2, 3) else [])]

    def result(self, drawn: int, shape: Shape) -> Shape:
        return self._swapped(drawn, shape)

    def slab(self, drawn: int, shape: Shape, box: Box3) -> tuple[Box3, Any]:
        after = self._swapped(drawn, shape)
        return self._swapped(drawn, _mirrored(box, self._mirrored_axes(drawn), after)), drawn

    def _swapped(self, drawn: int, of: tuple[Any, ...]) -> tuple[Any, ...]:
        found, (first, second) = list(of), self.axes
        if drawn % 2:
            found[first], found[second] = found[second], found[first]
        return tuple(found)
