"""Machine code for volumes that are bent (elastic.py): a row of voxels after the other, with the bits of
NumPy's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DTYPES, DType, float32, int16, int32, int64, uint8, uint16
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once
from ostinato.ops.cpu.jit.routine import Memory, Routine, larger, smaller, whole_of
from ostinato.ops.jit.values import Value, cast

Volume = Any
MIXED = (uint8, int16, uint16, float32)
MAX_CHANNELS = 8


def bent(x: Volume, rows: Any, near: Any, weights: Any, is_mixed: bool) -> Volume | None:
    """Read what voxels look at, mixed or the nearest one. rows: 3 x depth x height x points, how
    far points move in each row of voxels; near and weights: of four points for each voxel of a row.
    None where there is no machine code."""
    channels = x.shape[3] if x.ndim == 4 else 1
    kind = x.dtype if is_mixed else DTYPES.get(f"int{8 * x.itemsize}")
    is_known = (not is_mixed or kind in MIXED) and channels <= MAX_CHANNELS
    if kind is None or not is_known or not x.size or llvm.why_not():
        return None
    step = x.itemsize * channels
    if x.strides[2] != step or (x.ndim == 4 and x.strides[3] != x.itemsize):
        x = np.ascontiguousarray(x)
    out = np.empty(x.shape, x.dtype)
    rows = np.ascontiguousarray(rows, np.float32)
    near, places = near.astype(np.int32), np.empty((3, x.shape[2]), np.float32)
    given = out, rows, near, np.ascontiguousarray(weights), places
    run = _function(kind, channels, is_mixed)
    addresses = [v.ctypes.data for v in given]
    run(x.ctypes.data, *x.strides[:2], *x.shape[:3], rows.shape[3], *addresses)
    return out


@once
def _function(kind: DType, channels: int, is_mixed: bool) -> Any:
    """Over depth and height; in a row first the places, then what lies there."""
    made = Routine(
        None, x=[uint8], plane=int64, row=int64, depth=int64, height=int64, width=int64, points=int64,
        out=[kind], rows=[float32], near=[int32], weights=[float32], places=[float32],
    )  # fmt: skip
    x, *strides, depth, height, width, points, out, rows, near, weights, places = made.given
    strides = [*strides, made.whole(kind.itemsize * channels)]
    extents, found = (depth, height, width), [places.further(width * k) for k in range(3)]
    with made.each(depth) as d, made.each(height) as h:
        row = d * height + h
        moves = [rows.further((depth * height * axis + row) * points) for axis in range(3)]
        with made.each(width) as w:
            around = [cast(near[width * k + w], int64) for k in range(4)]
            shares = [weights[width * k + w] for k in range(4)]
            own = cast(d, float32), cast(h, float32), cast(cast(w, int32), float32)
            for axis in range(3):
                parts = [moves[axis][n] * s for n, s in zip(around, shares, strict=True)]
                at = own[axis] + (((parts[0] + parts[1]) + parts[2]) + parts[3])
                found[axis][w] = smaller(larger(at, 0.0), cast(extents[axis] - 1, float32))
        with made.each(width) as w:
            seen = [place[w] for place in found]
            to = out.further((row * width + w) * channels)
            if is_mixed:
                _mix(x, kind, seen, extents, strides, channels, to)
            else:
                _copy(x, kind, seen, strides, channels, to)
    return made.made()


def _floor(x: Value) -> Value:
    return x.lines.call("floor", float32, x)


def _copy(
    x: Memory, kind: DType, at: Sequence[Value], strides: Sequence[Value], channels: int, to: Memory
) -> None:
    """The nearest voxel."""
    d, h, w = (
        cast(whole_of(_floor(v + 0.5), int32), int64) * stride
        for v, stride in zip(at, strides, strict=True)
    )
    voxel = x.further(d + h + w).view(kind)
    for c in range(channels):
        to[c] = voxel[c]


def _mix(
    x: Memory, kind: DType, at: Sequence[Value], extents: Sequence[Value], strides: Sequence[Value],
    channels: int, to: Memory,
) -> None:  # fmt: skip
    """Mixes eight voxels: along the width, then the height, then the depth."""
    ends, shares = [], []
    for v, extent, stride in zip(at, extents, strides, strict=True):
        low = smaller(cast(whole_of(_floor(v), int32), int64), larger(extent - 2, 0))
        shares.append(v - cast(low, float32))
        ends.append((low * stride, smaller(low + 1, extent - 1) * stride))
    voxels = [x.further(d + h + w).view(kind) for d in ends[0] for h in ends[1] for w in ends[2]]
    for c in range(channels):
        found = [cast(voxel[c], float32) for voxel in voxels]
        for share in reversed(shares):
            found = [a + (b - a) * share for a, b in zip(found[::2], found[1::2], strict=True)]
        (mixed,) = found
        if kind == float32:
            to[c] = mixed
        else:
            to[c] = cast(whole_of(mixed.lines.call("rint", float32, mixed), int32), kind)
