"""Copies of large arrays, which threads share: what joins and reshapes arrays does little else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .graph import Builder
from .native import native_kernel, why_not
from .spec import DType, Shape, Spec

LEAST = 1 << 20  # bytes that are worth threads
_WORDS: dict[int, DType] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}

Copy = Callable[..., None]


def copying(
    shape: Shape, item: int, source: Sequence[int], target: Sequence[int], threads: int
) -> Copy | None:
    """The function of two arrays that lie so, which copies the first one's elements, of so many bytes;
    None for those that no register holds."""
    if item not in _WORDS or why_not():
        return None
    builder = Builder([Spec(shape, _WORDS[item])])
    body = builder.graph([builder.call("astype", 0, dtype=_WORDS[item])])
    return native_kernel(body, shape, [source, target], threads)


def copy_native(arrays: Sequence[Any], threads: int, **_: Any) -> Copy | None:
    """Of one array to another, which may have the same elements in another shape, one by one."""
    x, out = arrays
    if out.nbytes < LEAST or x.dtype != out.dtype:
        return None
    if x.shape != out.shape:
        if not out.flags.c_contiguous:
            return None
        out = out.reshape(x.shape)
    return copying(x.shape, x.itemsize, x.strides, out.strides, threads)


def join_native(arrays: Sequence[Any], threads: int, *, axis: int, **_: Any) -> Copy | None:
    """Of several arrays to places behind each other."""
    *xs, out = arrays
    if out.nbytes < LEAST or any(x.dtype != out.dtype for x in xs):
        return None
    parts, end = [], 0
    for x in xs:
        begin, end = end, end + x.shape[axis]
        at = (*(slice(None),) * axis, slice(begin, end))
        copy = copying(x.shape, x.itemsize, x.strides, out[at].strides, threads)
        if copy is None:
            return None
        if x.size:
            parts.append((copy, at))
    return partial(_join, parts) if end == out.shape[axis] else None


def _join(parts: Sequence[tuple[Copy, Any]], *arrays: Any) -> None:
    *xs, out = arrays
    for (copy, at), x in zip(parts, (x for x in xs if x.size), strict=True):
        copy(x, out[at])
