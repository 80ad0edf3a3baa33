"""Operands of products as stacks of matrices: how they lie, with as few axes of batches as can be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.spec import DType


class Stack(NamedTuple):
    """How matrices lie: extents and strides (in elements) of batches, rows, columns. What is
    repeated along a batch has a stride of 0 there."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def stacked(a: Any, b: Any, *made: Any) -> tuple[Stack, ...] | None:
    """All of them with rows, columns and the same batches, of which neighbours that can be are one: the
    matrices, the product, and what else lies over its elements."""
    item = [x.dtype.itemsize for x in (a, b, *made)]
    if any(s % size for x, size in zip((a, b, *made), item, strict=True) for s in x.strides):
        return None
    views = [a[None, :] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b]
    for x in made:
        x = x[..., None] if b.ndim == 1 else x
        views.append(x[..., None, :] if a.ndim == 1 else x)
    batch = views[2].shape[:-2]
    steps = []
    for x, size in zip(views, item, strict=True):
        x = np.broadcast_to(x, (*batch, *x.shape[-2:]))
        steps.append([s // size for s in x.strides])
    kept = _joined(batch, steps)
    found = []
    for x, own in zip(views, steps, strict=True):
        shape = (*(n for n, _ in kept), *x.shape[-2:])
        strides = (*(own[d] for _, d in kept), *own[-2:])
        found.append(Stack(shape, strides, x.dtype))
    return _in_rows(*found)


def _in_rows(a: Stack, b: Stack, *made: Stack) -> tuple[Stack, ...]:
    """Batches that share the right matrix are more rows of the left one, if they follow each other."""
    if len(made[0].shape) == 2 or b.strides[-3] != 0:
        return a, b, *made
    rows = a.shape[-2]
    if rows > 1 and any(s.strides[-3] != s.strides[-2] * rows for s in (a, *made)):
        return a, b, *made
    left, *others = (
        Stack(
            (*s.shape[:-3], s.shape[-3] * rows, s.shape[-1]),
            (*s.strides[:-3], s.strides[-2 if rows > 1 else -3], s.strides[-1]),
            s.dtype,
        )
        for s in (a, *made)
    )
    right = Stack((*b.shape[:-3], *b.shape[-2:]), (*b.strides[:-3], *b.strides[-2:]), b.dtype)
    return left, right, *others


def _joined(batch: Sequence[int], steps: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Extents of the fewest axes of batches, and the axis whose strides each has."""
    kept: list[tuple[int, int]] = []
    for d, n in enumerate(batch):
        if n == 1:
            continue
        if kept and all(s[kept[-1][1]] == s[d] * n for s in steps):
            kept[-1] = kept[-1][0] * n, d
        else:
            kept.append((n, d))
    return kept


def transposed(s: Stack) -> Stack:
    return Stack(
        (*s.shape[:-2], s.shape[-1], s.shape[-2]),
        (*s.strides[:-2], s.strides[-1], s.strides[-2]),
        s.dtype,
    )


BLOCK_WORK, FEW_BLOCKS = 1 << 17, 4  # multiplications of a block where there are at most so many,
LARGE_BLOCK_WORK, MANY_BLOCKS = 1 << 22, 8  # or so many,
BLOCK_ELEMENTS = 1 << 17  # and elements of one where there are more


def blocks_of(out: Stack, k: int) -> int:
    """In how many blocks, a power of two, threads share a result: by its extent and the terms of its sums
    only, so no number of threads changes a bit."""
    work = out.size * k
    many = max(MANY_BLOCKS, out.size // BLOCK_ELEMENTS)
    most = max(FEW_BLOCKS, min(work // LARGE_BLOCK_WORK, many))
    return 1 << (max(1, min(work // BLOCK_WORK, most)).bit_length() - 1)


def most_square(m: int, n: int, count: int) -> tuple[int, int]:
    """Rows and columns of the most square of so many blocks of a result."""
    down = min(
        (d for d in range(1, count + 1) if count % d == 0), key=lambda d: m / d + n * d / count
    )
    return step_of(m, down, 8), step_of(n, count // down)


def step_of(extent: int, count: int, whole: int = 16) -> int:
    """Full vectors of what is divided."""
    return extent if count == 1 else -(-extent // (whole * count)) * whole
