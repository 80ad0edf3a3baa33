"""Operators that sample images, and choose boxes in them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import ostinato as ost

from .operators import NodeCall, Value, cast, known, number, operator, ours


# -- samples between places ------------------------------------------------------------------
def _mirrored(i: Any, low: float, high: float) -> Any:
    """Places beyond the ends, reflected at them as often as it takes."""
    span = high - low
    if span <= 0:
        return i * 0 + low
    away = (i - low) % (2 * span)
    return low + ost.minimum(away, 2 * span - away)


def _at(x: Any, places: list[Any], mode: str, align: bool) -> Any:
    """The elements of images `n c space...` at places, which are whole numbers, `n points` for each axis."""
    space = x.shape[2:]
    flat: Any = 0
    there: Any = True
    for i, n in zip(places, space, strict=True):
        if mode == "reflection":
            i = ost.rint(_mirrored(i, 0.0, n - 1.0) if align else _mirrored(i, -0.5, n - 0.5))
        elif mode == "zeros":
            there = there & (i >= 0) & (i < n)
        flat = flat * n + cast(ost.clip(i, 0, n - 1), np.dtype(np.int64))
    values = x.reshape((*x.shape[:2], math.prod(space)))
    wide = ost.broadcast_to(flat[:, None], (*x.shape[:2], flat.shape[1]))
    near = ost.take_along_axis(values, wide, 2)
    return ost.where(there[:, None], near, 0) if mode == "zeros" else near


def _shares(t: Any, mode: str) -> list[tuple[int, Any]]:
    """Steps from the place below, and what each counts, for a fraction above it."""
    if mode == "linear":
        return [(0, 1 - t), (1, t)]
    a = -0.75

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [(-1, far(t + 1)), (0, near(t)), (1, near(1 - t)), (2, far(2 - t))]


@operator("GridSample")
def grid_sample(at: NodeCall, x: Value, grid: Value) -> Value:
    x, grid = ours(x), ours(grid)
    space, align, around = x.shape[2:], bool(at["align_corners"]), at["padding_mode"]
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(at["mode"], at["mode"])
    points = grid.reshape((grid.shape[0], math.prod(grid.shape[1:-1]), grid.shape[-1]))
    places = []
    for d, n in enumerate(space):  # the last axis of space comes first
        g = points[..., len(space) - 1 - d]
        i = (g + 1) / 2 * (n - 1) if align else ((g + 1) * n - 1) / 2
        if around == "border":
            i = ost.clip(i, 0, n - 1)
        elif around == "reflection":
            i = _mirrored(i, 0.0, n - 1.0) if align else _mirrored(i, -0.5, n - 0.5)
        places.append(i)
    if mode == "nearest":
        y = _at(x, [ost.rint(i) for i in places], around, align)
    else:
        below = [ost.floor(i) for i in places]
        each = [_shares(i - b, mode) for i, b in zip(places, below, strict=True)]
        y = ost.zeros((*x.shape[:2], points.shape[1]), dtype=x.dtype)
        for taps in itertools.product(*each):
            near = [b + step for b, (step, _) in zip(below, taps, strict=True)]
            y = y + _at(x, near, around, align) * math.prod([w for _, w in taps])[:, None]
    return cast(y.reshape((*x.shape[:2], *grid.shape[1:-1])), x.dtype)


@operator("RoiAlign")
def roi_align(at: NodeCall, x: Value, regions: Value, images: Value) -> Value:
    """Means, or maxima, of samples in the cells of regions."""
    if not at["sampling_ratio"]:  # as many samples as a cell has places
        regions = known(regions)
    x = ours(x)
    half = (
        0.5 if at.get("coordinate_transformation_mode", "output_half_pixel") == "half_pixel" else 0
    )
    sizes, rows = (at["output_height"], at["output_width"]), []
    boxes = ours(regions) * at["spatial_scale"] - half
    for r in range(regions.shape[0]):
        places = []
        for d, m in enumerate(sizes):
            begin, end = boxes[r, 1 - d], boxes[r, 3 - d]
            span = end - begin if half else ost.maximum(end - begin, 1)
            count = at["sampling_ratio"] or max(math.ceil(float(np.asarray(span)) / m), 1)
            i = (ost.arange(m)[:, None] + (ost.arange(count) + 0.5)[None] / count) * (span / m)
            places.append((begin + i, count))
        rows.append(_cells(x, ours(images)[r], places, sizes, at["mode"]))
    return cast(ost.stack(rows), x.dtype)


def _cells(x: Any, image: Any, places: Any, sizes: tuple[int, int], mode: str) -> Any:
    picked = ost.take(x, image.reshape((1,)), axis=0)
    (h, w), counts = sizes, [count for _, count in places]
    ys, xs = (i.reshape((-1,)) for i, _ in places)
    grid = [ost.repeat(ys, xs.shape[0]), ost.tile(xs, (ys.shape[0],))]
    inside: Any = True
    taps = []
    for i, n in zip(grid, x.shape[2:], strict=True):
        inside = inside & (i >= -1) & (i <= n)
        i = ost.clip(i, 0, n - 1)
        below = ost.minimum(ost.floor(i), max(n - 2, 0))
        taps.append([(below, 1 - (i - below)), (below + 1, i - below)])
    found = []
    for (yi, wy), (xi, wx) in itertools.product(*taps):
        found.append(_at(picked, [yi[None], xi[None]], "border", True)[0] * (wy * wx))
    found = [ost.where(inside, v, 0) for v in found]
    value = ost.max(ost.stack(found), axis=0) if mode == "max" else sum(found[1:], found[0])
    cells = value.reshape((x.shape[1], h, counts[0], w, counts[1]))
    return (ost.max if mode == "max" else ost.mean)(cells, axis=(2, 4))


# -- boxes -----------------------------------------------------------------------------------
@operator("NonMaxSuppression", reads=[0, 1, 2, 3, 4])
def suppressed(
    at: NodeCall,
    boxes: Value,
    scores: Value,
    most: Value = None,
    overlap: Value = None,
    least: Value = None,
) -> Value:
    """The best boxes of each class, without those that overlap a better one: how many are known by values."""
    corners, marks = known(boxes).astype(np.float64), known(scores)
    if at["center_point_box"]:
        centre, extent = corners[..., :2], corners[..., 2:] / 2
        corners = np.concatenate([centre - extent, centre + extent], -1)
    low = np.minimum(corners[..., :2], corners[..., 2:])
    high = np.maximum(corners[..., :2], corners[..., 2:])
    count = 0 if most is None else int(number(most))
    limit = 0.0 if overlap is None else float(number(overlap))
    floor = -math.inf if least is None else float(number(least))
    found = []
    for n, c in np.ndindex(marks.shape[:2]):
        row, kept = marks[n, c], list[int]()
        for i in np.argsort(-row, kind="stable"):
            if len(kept) >= count or row[i] <= floor:
                break
            sides = np.minimum(high[n, i], high[n, kept]) - np.maximum(low[n, i], low[n, kept])
            common = np.prod(np.maximum(sides, 0), -1)
            areas = np.prod(high[n] - low[n], -1)
            if not (common > limit * (areas[i] + areas[kept] - common)).any():
                kept.append(int(i))
        found += [(n, c, i) for i in kept]
    return np.array(found, np.int64).reshape(-1, 3)
