"""Lines of arrays along one axis: where each begins, for kernels that do something to whole lines.

A line's number counts the other axes, the last one fastest, so lines with neighbouring numbers are
neighbours in memory where the axis lies across. Axes that lie in order in all arrays count as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LinePlaces:
    extents: tuple[int, ...]  # of the other axes
    count: int  # elements along the axis, of the first array
    steps: tuple[int, ...]  # bytes along the axis, of each array
    strides: tuple[tuple[int, ...], ...]  # bytes along the others, of each array

    @property
    def lines(self) -> int:
        return math.prod(self.extents)

    def is_across(self, k: int) -> bool:
        """Whether neighbours in memory belong to different lines."""
        others = self.strides[k]
        return bool(others) and self.extents[-1] > 1 and abs(others[-1]) < abs(self.steps[k])

    # -- in a kernel's text ----------------------------------------------------------------------
    def parameters(self) -> list[str]:
        given = [f"u8* q{k}" for k in range(len(self.steps))] + ["s64 n", "s64 lines"]
        given += [f"s64 e{d}" for d in range(len(self.extents))]
        for k in range(len(self.steps)):
            given += [f"s64 step{k}", *[f"s64 s{k}_{d}" for d in range(len(self.extents))]]
        return given

    def facts(self) -> tuple[int, ...]:
        pairs = zip(self.steps, self.strides, strict=True)
        own = [x for step, others in pairs for x in (step, *others)]
        return (self.count, self.lines, *self.extents, *own)

    def begin(self, k: int, line: str) -> list[str]:
        """Declare `p{k}`, where this line of array `k` begins."""
        code = [f"u8* p{k} = q{k};", "{", f"s64 rest = {line};"]
        for d in reversed(range(len(self.extents))):
            code += [f"p{k} += s{k}_{d} * (rest % e{d});", f"rest /= e{d};"]
        return [*code, "}"]


def line_places(arrays: Sequence[Any], axis: int) -> LinePlaces:
    """The lines of arrays, whose other axes are the same."""
    first = arrays[0]
    extents, strides = list[int](), [list[int]() for _ in arrays]
    for d, n in enumerate(first.shape):
        if d == axis or n == 1:
            continue
        now = [x.strides[d] for x in arrays]
        if extents and all(s[-1] == n * step for s, step in zip(strides, now, strict=True)):
            extents[-1] *= n
            for s, step in zip(strides, now, strict=True):
                s[-1] = step
        else:
            extents.append(n)
            for s, step in zip(strides, now, strict=True):
                s.append(step)
    steps = tuple([x.strides[axis] for x in arrays])
    return LinePlaces(tuple(extents), first.shape[axis], steps, tuple(map(tuple, strides)))
