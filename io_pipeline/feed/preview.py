"""A sheet of samples as they are in their files and as they come out of a pipe, side by side: images under the
colours of their masks, with boxes, and their labels below; labels of boxes stand in these."""

from __future__ import annotations

import colorsys
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from .batches import Recipe
from .chain import Chain, Sample
from .fields import BOXES, IMAGE, LABEL, MASK, VOLUME, Fields
from .sample_draws import Draws
from .stage import Stage

SIDE, GAP, LINE = 160, 6, 14  # pixels of a picture, between pairs, and of a line of text
WHITE, MIXED = 255, 0.5  # the part that a mask's colours have
MAX_CLASSES = 3  # weights of classes that are told

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Box = tuple[float, ...]  # x0, y0, x1, y1, as parts of width and height


@dataclass(frozen=True)
class Picture:
    """A sample as people see it."""

    pixels: Pixels
    boxes: Sequence[tuple[Box, str]] = ()  # with their labels
    label: str = ""


def source_picture(recipe: Recipe, index: int) -> Picture:
    """Show a sample as it is in its source; decoded, if that is what the pipe does with it."""
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
    found = fields.select_kind(IMAGE) or fields.select_kind(VOLUME)
    if not found:
        got = f"samples of {', '.join(fields.kinds) or 'nothing'}"
        raise misfit(ArgumentError, "preview", got=got, needed="an image or a volume")
    x = np.asarray(values[found[0]])
    if (x.dtype.kind not in "iuf" and x.dtype.name != "bfloat16") or x.ndim < 2:
        got = f"{x.dtype} of shape {list(x.shape)}"
        raise misfit(ArgumentError, "preview", got=got, needed="images that are decoded")
    is_volume = fields.kinds[found[0]] == VOLUME
    if is_volume:
        x = x[len(x) // 2]
        low, high = float(x.min()), float(x.max())
        x = ((x - low) / ((high - low) or 1.0)).astype(np.float32)
    else:
        last = next((s for s in reversed(stages) if s.name == "normalize"), None)
        if last is not None and x.dtype.kind not in "iu":  # as it was before
            if last.layout == "chw":  # type: ignore[attr-defined]
                x = np.moveaxis(x, 0, -1)
            x = x * np.array(last.std) + np.array(last.mean)  # type: ignore[attr-defined]
    x = x[..., None] if x.ndim == 2 else x
    scale = np.iinfo(x.dtype).max if x.dtype.kind in "iu" else 1.0
    shown = np.clip(np.round(x.astype(np.float64) * (WHITE / scale)), 0, WHITE).astype(np.uint8)
    shown = shown[..., :3] if x.shape[-1] >= 3 else np.repeat(shown[..., :1], 3, -1)
    for n in fields.select_kind(MASK):
        mask = np.asarray(values[n])
        mask = mask[len(mask) // 2] if is_volume and mask.ndim == 3 else mask
        if mask.shape == shown.shape[:2] and mask.dtype.kind in "biu":
            shown = _under(shown, mask)
    height, width = shown.shape[:2]
    boxes = [v / ((width, height) * 2) for n in fields.select_kind(BOXES) for v in _rows(values[n])]
    return Picture(shown, *_labelled(boxes, [values[n] for n in fields.select_kind(LABEL)]))


def _rows(boxes: Any) -> Any:
    return np.asarray(boxes, np.float64).reshape(-1, 4)


def _labelled(boxes: Sequence[Box], labels: Sequence[Any]) -> tuple[list[tuple[Box, str]], str]:
    """Boxes that are not empty, with their labels where there is one for each; and those of the sample."""
    own, others = [""] * len(boxes), list[str]()
    for label in labels:
        x = np.asarray(label)
        if boxes and x.ndim == 1 and len(x) == len(boxes) and x.dtype.kind in "iu":
            own = [str(v) for v in x]
        elif x.ndim == 1 and x.size and x.dtype.kind not in "OSUiub":  # weights of classes
            most = np.argsort(-x, kind="stable")[:MAX_CLASSES]
            others.append(", ".join(f"{k}: {x[k]:.2g}" for k in most if x[k] > 0))
        else:
            others.append(
                str(label.decode(errors="replace") if isinstance(label, bytes) else label)
            )
    is_some = [box[2] > box[0] and box[3] > box[1] for box in boxes]
    pairs = zip(boxes, own, strict=True)
    return [pair for pair, some in zip(pairs, is_some, strict=True) if some], "; ".join(others)


def _colour(number: int) -> Pixels:
    """Choose the colour of a class; neighbours differ."""
    part = colorsys.hsv_to_rgb(number * 0.618034 % 1.0, 0.9, 1.0)
    return np.array([round(WHITE * v) for v in part], np.uint8)


def _under(x: Pixels, mask: Any) -> Pixels:
    """An image under the colours of classes, but for the first one."""
    classes, places = np.unique(mask, return_inverse=True)
    colours = np.array([_colour(int(k)) for k in classes])[places.reshape(mask.shape)]
    mixed = np.rint(x * (1 - MIXED) + colours * MIXED).astype(np.uint8)
    return np.where((mask != 0)[..., None], mixed, x)


def sheet(pairs: Sequence[tuple[Picture, Picture]]) -> Pixels:
    """Pairs in rows, each on a square as large as the others, above a line for labels if there are any."""
    columns = max(round(math.sqrt(len(pairs) / 2)), 1)
    rows = -(-len(pairs) // columns)
    step = SIDE + GAP + LINE * any(picture.label for pair in pairs for picture in pair)
    made = np.full((rows * step + GAP, columns * (2 * SIDE + 2 * GAP) + GAP, 3), WHITE, np.uint8)
    texts: list[tuple[int, int, str, Any]] = []
    for k, pair in enumerate(pairs):
        top, left = GAP + k // columns * step, GAP + k % columns * 2 * (SIDE + GAP)
        for n, picture in enumerate(pair):
            small = _thumbnail(picture.pixels)
            h, w = small.shape[:2]
            y, z = top + (SIDE - h) // 2, left + n * (SIDE + GAP // 2) + (SIDE - w) // 2
            room = made[y : y + h, z : z + w]
            room[:] = small
            for number, (box, label) in enumerate(picture.boxes):
                colour = _colour(int(label) if label else number)
                x0, y0 = _outline(room, box, colour)
                texts.append((y + y0 + 1, z + x0 + 3, label, colour))
            texts.append((y + h + 1, z, picture.label, WHITE))
    return _written(made, texts)


def _outline(x: Pixels, box: Box, colour: Pixels) -> tuple[int, int]:
    """Draw a box; where its first corner is."""
    ends = [int(np.clip(part, 0, 1) * (x.shape[1 - k % 2] - 1) + 0.5) for k, part in enumerate(box)]
    x0, y0, x1, y1 = ends
    for row in (y0, y1):
        x[row, x0 : x1 + 1] = colour
    for column in (x0, x1):
        x[y0 : y1 + 1, column] = colour
    return x0, y0


def _written(x: Pixels, texts: Sequence[tuple[int, int, str, Any]]) -> Pixels:
    """With texts at these rows and columns, on light shades of colours; without Pillow there are none."""
    from ..images.backends import pillow

    library, texts = pillow(), [text for text in texts if text[2]]
    if library is None or not texts:
        return x
    from PIL import ImageDraw

    made = library.fromarray(x)
    draw = ImageDraw.Draw(made)
    for top, left, said, colour in texts:
        while draw.textlength(said) > SIDE:
            said = said.removesuffix("…")[:-1] + "…"
        shade = tuple((WHITE - (WHITE - np.broadcast_to(colour, 3)) // 2).tolist())
        draw.rectangle(draw.textbbox((left, top), said), fill=shade)
        draw.text((left, top), said, fill=(0, 0, 0))
    return np.asarray(made)


def _thumbnail(x: Pixels) -> Pixels:
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


def save(x: Pixels, path: str | os.PathLike[str]) -> str:
    """Write a picture; the form is that of the file's ending."""
    from ..images.backends import needed, opencv, pillow

    if pillow() is not None:
        pillow().fromarray(x).save(os.fspath(path))
    else:
        cv2 = needed("preview", opencv(), "Pillow")
        if not cv2.imwrite(os.fspath(path), x[..., ::-1]):
            raise OSError(f"{os.fspath(path)} cannot be written")
    return os.fspath(path)
