"""Volumes that several workers share: each reads and makes only its slab of every sample.

    whole volume      D x H x W  --draws, extents of each stage-->  D' x H' x W'
    this worker's     box to read  <--back through the stages--     its part of the result

What is drawn for a sample is drawn for the whole of it, so all workers draw the same. Then each stage says,
from the last one to the first, of which part of a volume a part of its result is made; that is read from
the file, and goes through the stages. Labels and the like are on all workers that share the sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .borders import Borders, Leaf
from .chain import Chain, Placed, Sample, Step
from .fields import MASK, VOLUME, Fields
from .samples import Row, Samples
from .stage import Box3, Shape

SAMPLES, *AXES = NAMES = ("samples", "depth", "height", "width")
Splits = tuple[str, ...]  # one for each axis of the workers' mesh, or one for all of them


def axes_of(kind: str, ndim: int, first: int) -> tuple[int, ...]:
    """Where samples, depth, height and width are in a batch of fields of this kind, each of so many
    axes; for fields without depth, only samples. first: axes in front of a volume's depth."""
    if kind not in (VOLUME, MASK) or ndim < 3:
        return (0,)
    at = first if kind == VOLUME else 0
    return (0, at + 1, at + 2, at + 3)


def first_axis(stages: Sequence[Placed]) -> int:
    """Axes that stages put in front of a volume's depth."""
    return int(any(getattr(p.stage, "layout", None) == "cdhw" for p in stages))


class SlabStep(Step):
    """A stage of a part of a sample, whose random numbers were drawn for the whole."""

    def run(self, sample: Sample) -> Step | None:
        following, values = self.following(), sample.values
        drawn = sample.planned[self.k]
        out = sample.out if following is None else None
        for n, method, _, fills in self.calls:
            if fills and out is not None and out[n] is not None:
                values[n] = method(np, values[n], drawn, out=out[n])
            else:
                values[n] = method(np, values[n], drawn)
        if self.together is not None:
            self.together(self.fields, values)
        sample.fields = self.fields
        return following


class SlabChain(Chain):
    """Stages of parts of samples."""

    def make(self, k: int, fields: Fields) -> Step:
        return SlabStep(self, k, fields)


class Slabs:
    """Reads one worker's part of samples."""

    def __init__(
        self,
        source: Samples,
        stages: Sequence[Placed],
        box: Callable[[Shape], Box3],
        borders: Borders | None = None,
    ) -> None:
        self.source, self.stages, self.box = source, tuple(stages), box
        self.borders = borders if borders is not None and len(borders.ranks) > 1 else None
        self.first = first_axis(stages)
        self.whole: Shape | None = None  # depth, height and width of all results

    def read(self, sample: Sample, index: int, is_stopped: Callable[[], bool]) -> None:
        """Read the part of a sample that is needed here, and what was drawn for it."""
        leaves, fields = self.source.parts(index)
        deep = [k for k in fields.select_kind(VOLUME, MASK) if np.ndim(leaves[k]) >= 3]
        if not deep:
            raise ValueError(f"samples of {', '.join(fields.kinds)}, where a volume is needed")
        shape = tuple(leaves[deep[0]].shape)
        drawn, shapes = [], [shape]
        for p in self.stages:
            random = None
            if p.stage.is_random:
                random = p.stage.draw(sample.draws.seek(sample.place, p.draw), shape)
            drawn.append(random)
            shapes.append(shape := p.stage.result(random, shape))
        if self.whole is None:
            self.whole = shape[:3]
        if self.whole != shape[:3]:
            found, others = (" x ".join(map(str, s)) for s in (shape[:3], self.whole))
            raise ValueError(f"a volume of {found} voxels, where others have {others}")
        box, planned = self._back(self.box(shape[:3]), drawn, shapes)
        boxes: dict[int, Box3] = {}
        if self.borders is not None:
            for r in self.borders.ranks:
                boxes[r] = self._back(self.borders.boxes(r, shape[:3]), drawn, shapes)[0]
        out = sample.out if not self.stages else None
        values, shared = [], []
        for k, leaf in enumerate(leaves):
            own = box if len(axes_of(fields.kinds[k], np.ndim(leaf), 0)) > 1 else ()
            if not isinstance(leaf, Row):
                values.append(leaf[tuple(slice(lo, hi) for lo, hi in own)] if own else leaf)
                continue
            values.append(leaf.room(own, None if out is None else out[k]))
            if self.borders is not None and own and leaf.source.inflates:
                x = leaf.as_in_file(values[k])
                shared.append(Leaf(leaf, self.borders.rank, boxes, x))
            else:
                leaf.read(own, values[k])
        if self.borders is not None and shared:
            self.borders.read(sample.place, fields, shared, is_stopped)
        sample.values, sample.fields, sample.planned = values, fields, planned

    def _back(
        self, box: Box3, drawn: Sequence[Any], shapes: Sequence[Shape]
    ) -> tuple[Box3, list[Any]]:
        """Find the part of a sample that makes a part of the result, and what was drawn as seen from there."""
        planned = list(drawn)
        for k in reversed(range(len(self.stages))):
            box, planned[k] = self.stages[k].stage.slab(drawn[k], shapes[k], box)
        return box, planned

    def whole_of(self, kind: str, shape: Shape) -> Shape:
        """The extents of a whole sample, of those of its part here."""
        axes = axes_of(kind, len(shape), self.first)
        found = list(shape)
        for axis, size in zip(axes[1:], self.whole or (), strict=False):
            found[axis - 1] = size
        return tuple(found)
