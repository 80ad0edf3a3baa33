"""Volumes bent as if they were made of rubber.

Each point of a coarse grid is moved by random numbers of voxels, and what is between them by a smooth curve
through these (Catmull and Rom, 1974). A voxel of the result looks at the place where it came from: a volume
mixes the eight voxels around that, a mask takes the nearest one. Behind its faces a volume goes on with their
voxels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..feed.sample_draws import Draws
from ..feed.stage import Shape, stage
from ..images.pixel_values import check_chance, check_number, moved_in
from . import bending
from .volume_geometry import Moving, Volume, triple

Grid = Any  # 3 x points of the grid: how far each of them moves along the axes, in voxels


@lru_cache(64)
def curve(count: int, points: int) -> tuple[Any, Any]:
    """For each of the voxels along an axis: the four points around it, and their weights."""
    at = (np.arange(count) + 0.5) / count * points - 0.5
    low = np.floor(at)
    t = at - low
    weights = 0.5 * np.stack(
        (t * (t * (2 - t) - 1), t * t * (3 * t - 5) + 2, t * (t * (4 - 3 * t) + 1), t * t * (t - 1))
    )
    near = low.astype(np.int64) + np.arange(-1, 3)[:, None]
    return np.clip(near, 0, points - 1), weights.astype(np.float32)


def spread_out(xp: Any, grid: Any, shape: tuple[int, ...]) -> Any:
    """How far each voxel moves: from 3 x points to 3 x voxels, along as many axes as the shape has."""
    for axis, count in enumerate(shape, 1):
        near, weights = curve(count, grid.shape[axis])
        form = [1] * 4
        form[axis] = count
        total: Any = None
        for k in range(4):
            part = xp.take(grid, moved_in(xp, near[k]), axis=axis)
            part = part * moved_in(xp, weights[k]).reshape(form)
            total = part if total is None else total + part
        grid = total
    return grid


def places(xp: Any, grid: Grid, shape: tuple[int, ...]) -> list[Any]:
    """Where voxels look, along each axis."""
    moved = spread_out(xp, moved_in(xp, grid.astype(np.float32)), shape)
    found = []
    for axis, count in enumerate(shape):
        form = [1] * 3
        form[axis] = count
        own = xp.arange(count, dtype=xp.float32).reshape(form)
        found.append(xp.minimum(xp.maximum(own + moved[axis], 0), count - 1))
    return found


def bend_compiled(xp: Any, x: Volume, grid: Grid, is_mixed: bool) -> Volume | None:
    if xp is not np:
        return None
    rows = spread_out(np, grid.astype(np.float32), x.shape[:2])
    return bending.bent(x, rows, *curve(x.shape[2], grid.shape[3]), is_mixed)


def bent(xp: Any, x: Volume, grid: Grid) -> Volume:
    """Mixed from eight voxels; whole numbers are rounded."""
    shape = x.shape[:3]
    kind = (
        xp.float64
        if x.dtype == np.float64 or (x.dtype.itemsize > 2 and x.dtype.kind in "iu")
        else xp.float32
    )
    low, share = [], []
    for at, count in zip(places(xp, grid, shape), shape, strict=True):
        first = xp.minimum(xp.floor(at), max(count - 2, 0))
        low.append(first.astype(xp.int32))
        part = (at - first).astype(kind)
        share.append(part if x.ndim == 3 else part[..., None])
    high = [xp.minimum(v + 1, count - 1) for v, count in zip(low, shape, strict=True)]

    def mixed(a: Any, b: Any, by: Any) -> Any:
        return a + (b - a) * by

    def along_width(d: Any, h: Any) -> Any:
        return mixed(x[d, h, low[2]].astype(kind), x[d, h, high[2]].astype(kind), share[2])

    planes = [
        mixed(along_width(d, low[1]), along_width(d, high[1]), share[1]) for d in (low[0], high[0])
    ]
    found = mixed(planes[0], planes[1], share[0])
    return (xp.rint(found) if x.dtype.kind in "iu" else found).astype(x.dtype)


def nearest(xp: Any, x: Volume, grid: Grid) -> Volume:
    d, h, w = (xp.floor(at + 0.5).astype(xp.int32) for at in places(xp, grid, x.shape[:3]))
    return x[d, h, w]


@stage("elastic")
@dataclass(frozen=True)
class Elastic(Moving):
    """Bent at random. strength: how far points of the grid move along each axis, in voxels: the standard
    deviation of a normal distribution, cut off at three. points: how many of them along the axes."""

    strength: float = 4.0
    points: int | tuple[int, int, int] = 5
    p: float = 1.0

    def __post_init__(self) -> None:
        check_chance(self.name, self.p)
        check_number(self.name, "strength", self.strength, 0)
        triple(self.name, "points", self.points, 2)

    def draw(self, rng: Draws, shape: Shape) -> Grid | None:
        if not rng.chance(self.p):
            return None
        found = rng.normal((3, *triple(self.name, "points", self.points)))
        return np.clip(found, -3, 3) * self.strength

    def volume(self, xp: Any, x: Volume, drawn: Grid | None) -> Volume:
        if drawn is None:
            return x
        found = bend_compiled(xp, x, drawn, True)
        return bent(xp, x, drawn) if found is None else found

    def mask(self, xp: Any, x: Volume, drawn: Grid | None) -> Volume:
        if drawn is None:
            return x
        found = bend_compiled(xp, x, drawn, False)
        return nearest(xp, x, drawn) if found is None else found
