"""A sheet of samples as they are in their files and as they come out of a pipe, side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from .batches import Recipe
from .chain import Chain, Sample
from .draws import Draws
from .fields import IMAGE, VOLUME, Fields
from .stage import Stage

SIDE, GAP = 160, 6  # pixels of a picture, and between pairs
WHITE = 255

Picture = np.ndarray[Any, np.dtype[np.uint8]]


def before(recipe: Recipe, index: int) -> Picture:
    """What a sample is in its source; decoded, if that is what the pipe does with it."""
    sample = Sample(Draws(recipe.seed, 0))
    sample.values, sample.fields = recipe.source.read(index)
    stages = recipe.chain.stages
    for k, placed in enumerate(stages):
        if type(placed.stage).part is not Stage.part:  # it decodes
            Chain(stages[: k + 1]).run(sample)
            break
    assert sample.fields is not None
    return picture(sample.values, sample.fields, ())


def picture(values: Sequence[Any], fields: Fields, stages: Sequence[Stage]) -> Picture:
    """A sample's image, or the middle of its volume, as people see it."""
    found = fields.of_kind(IMAGE) or fields.of_kind(VOLUME)
    if not found:
        got = f"samples of {', '.join(fields.kinds) or 'nothing'}"
        raise misfit(ArgumentError, "preview", got=got, needed="an image or a volume")
    x = np.asarray(values[found[0]])
    if x.dtype.kind not in "iuf" or x.ndim < 2:
        got = f"{x.dtype} of shape {list(x.shape)}"
        raise misfit(ArgumentError, "preview", got=got, needed="images that are decoded")
    if fields.kinds[found[0]] == VOLUME:
        x = x[len(x) // 2]
        low, high = float(x.min()), float(x.max())
        x = ((x - low) / ((high - low) or 1.0)).astype(np.float32)
    else:
        last = next((s for s in reversed(stages) if s.name == "normalize"), None)
        if last is not None and x.dtype.kind == "f":  # as it was before
            if last.layout == "chw":  # type: ignore[attr-defined]
                x = np.moveaxis(x, 0, -1)
            x = x * np.array(last.std) + np.array(last.mean)  # type: ignore[attr-defined]
    x = x[..., None] if x.ndim == 2 else x
    scale = 1.0 if x.dtype.kind == "f" else np.iinfo(x.dtype).max
    shown = np.clip(np.round(x.astype(np.float64) * (WHITE / scale)), 0, WHITE).astype(np.uint8)
    return shown[..., :3] if x.shape[-1] >= 3 else np.repeat(shown[..., :1], 3, -1)


def sheet(pairs: Sequence[tuple[Picture, Picture]]) -> Picture:
    """Pairs in rows, each on a square as large as the others."""
    columns = max(round(math.sqrt(len(pairs) / 2)), 1)
    rows = -(-len(pairs) // columns)
    step = SIDE + GAP
    made = np.full((rows * step + GAP, columns * (2 * SIDE + 2 * GAP) + GAP, 3), WHITE, np.uint8)
    for k, pair in enumerate(pairs):
        top, left = GAP + k // columns * step, GAP + k % columns * 2 * step
        for n, x in enumerate(pair):
            small = _thumbnail(x)
            h, w = small.shape[:2]
            y, z = top + (SIDE - h) // 2, left + n * (SIDE + GAP // 2) + (SIDE - w) // 2
            made[y : y + h, z : z + w] = small
    return made


def _thumbnail(x: Picture) -> Picture:
    """As large as fits; each pixel the mean of those that it stands for, or one of them, larger."""
    ratio = SIDE / max(x.shape[:2])
    for axis in (0, 1):
        size = max(round(x.shape[axis] * ratio), 1)
        edges = np.arange(size + 1) * x.shape[axis] // size
        if size >= x.shape[axis]:
            x = np.take(x, edges[:-1], axis)
        else:
            sums = np.add.reduceat(x.astype(np.uint32), edges[:-1], axis)
            counts = np.diff(edges).reshape([-1, 1, 1] if axis == 0 else [1, -1, 1])
            x = ((sums + counts // 2) // counts).astype(np.uint8)
    return x


def save(x: Picture, path: str | os.PathLike[str]) -> str:
    """Write a picture; the form is that of the file's ending."""
    from ..images.backends import needed, opencv, pillow

    if pillow() is not None:
        pillow().fromarray(x).save(os.fspath(path))
    else:
        cv2 = needed("preview", opencv(), "Pillow")
        if not cv2.imwrite(os.fspath(path), x[..., ::-1]):
            raise OSError(f"{os.fspath(path)} cannot be written")
    return os.fspath(path)
