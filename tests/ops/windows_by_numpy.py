"""Convolutions and pools by their definition, in NumPy: of channels first, one element of a window after
the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Pairs = Sequence[tuple[int, int]]


def views(
    x: Array, sizes: Any, stride: Any, pads: Pairs, dilation: Any, value: Any, extents: Any = None
) -> list[Array]:
    """For each element of a window what all windows have there."""
    if extents is None:
        given = zip(x.shape[2:], pads, dilation, sizes, stride, strict=True)
        extents = [(n + sum(p) - d * (m - 1) - 1) // s + 1 for n, p, d, m, s in given]
    far = [
        s * (e - 1) + d * (m - 1) + 1
        for s, e, d, m in zip(stride, extents, dilation, sizes, strict=True)
    ]
    around = [(b, max(a, f - n - b)) for (b, a), f, n in zip(pads, far, x.shape[2:], strict=True)]
    wide = np.pad(x, [(0, 0), (0, 0), *around], constant_values=value)
    found = []
    for rs in itertools.product(*map(range, sizes)):
        cuts = [
            slice(r * d, r * d + s * (e - 1) + 1, s)
            for r, d, s, e in zip(rs, dilation, stride, extents, strict=True)
        ]
        found.append(wide[(slice(None), slice(None), *cuts)])
    return found


def conv(x: Array, w: Array, stride: Any, pads: Pairs, dilation: Any, groups: int = 1) -> Array:
    """Of NCHW images and OIHW filters."""
    made: Any = 0
    taps = views(x, w.shape[2:], stride, pads, dilation, 0)
    for tap, factor in zip(taps, np.moveaxis(w.reshape(*w.shape[:2], -1), -1, 0), strict=True):
        parts = np.split(tap, groups, 1), np.split(factor, groups)
        made = made + np.concatenate(
            [np.einsum("nc...,oc->no...", a, b) for a, b in zip(*parts, strict=True)], 1
        )
    return made


def pool(
    x: Array,
    by: Callable[..., Array],
    sizes: Any,
    stride: Any,
    pads: Pairs,
    dilation: Any,
    extents: Any,
) -> Array:
    value = -np.inf if by is np.max else np.nan
    return by(np.stack(views(x, sizes, stride, pads, dilation, value, extents)), axis=0)
