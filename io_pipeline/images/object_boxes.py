"""What concerns boxes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..feed.fields import BOXES, LABEL, Fields
from ..feed.stage import Stage, stage
from .pixel_values import check_number


@stage("drop_boxes")
@dataclass(frozen=True)
class DropBoxes(Stage):
    """Takes out boxes of fewer square pixels than `least`, and what stands beside them: rows of labels that
    are numbers, if there are as many as boxes, and of the fields of a dict that `beside` names."""

    least: float = 1.0
    beside: str | tuple[str, ...] = ()

    needs = (BOXES,)

    def __post_init__(self) -> None:
        check_number(self.name, "least", self.least, 0)
        beside = (self.beside,) if isinstance(self.beside, str) else tuple(self.beside)
        object.__setattr__(self, "beside", beside)

    def check(self, sample: Fields) -> None:
        super().check(sample)
        if len(sample.select_kind(BOXES)) > 1:
            got = "a sample with boxes in several fields"
            raise misfit(ArgumentError, self.name, got=got, needed="one field of boxes")
        lost = [name for name in self.beside if not any(map(_called(name), sample.names))]
        if lost:
            got = f"beside={self.beside!r} for fields {', '.join(sample.names)}"
            raise misfit(ArgumentError, self.name, got=got, needed="names of fields")

    def together(self, fields: Fields, values: list[Any]) -> None:
        (k,) = fields.select_kind(BOXES)
        boxes = values[k]
        stays = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) >= self.least
        if stays.all():
            return
        named = [any(_called(name)(path) for name in self.beside) for path in fields.names]
        for n, kind in enumerate(fields.kinds):
            is_label = kind == LABEL and _is_row_of_numbers(values[n], len(boxes))
            if n == k or named[n] or is_label:
                values[n] = values[n][stays]


def _called(name: str) -> Any:
    return lambda path: path.endswith((f"[{name!r}]", f".{name}"))


def _is_row_of_numbers(x: Any, count: int) -> bool:
    return isinstance(x, np.ndarray) and x.shape == (count,) and x.dtype.kind in "iu"
