"""Operators that move elements, make arrays, or tell of shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ostinato as ost

from .operators import (
    NodeCall,
    Value,
    attribute_or_input,
    axes_of,
    bounded,
    cast,
    dtype_of,
    filled,
    is_known,
    known,
    number,
    operator,
    ours,
    space_for,
    whole_numbers,
)


# -- of shapes -------------------------------------------------------------------------------
@operator("Shape")
def shape(at: NodeCall, x: Value) -> Value:
    return np.array(x.shape[slice(at.get("start", 0), at.get("end"))], np.int64)


@operator("Size")
def size(at: NodeCall, x: Value) -> Value:
    return np.array(x.size, np.int64)


@operator("Reshape", reads=[1])
def reshape(at: NodeCall, x: Value, wanted: Value = None) -> Value:
    sizes = whole_numbers(wanted) if wanted is not None else list(at["shape"])
    if not at.get("allowzero", 0):
        sizes = [x.shape[d] if n == 0 else n for d, n in enumerate(sizes)]
    return at.xp.reshape(x, tuple(sizes))


@operator("Flatten")
def flatten(at: NodeCall, x: Value) -> Value:
    d = at["axis"] + (x.ndim if at["axis"] < 0 else 0)
    if not 0 <= d <= x.ndim:
        raise ValueError(f"axis {at['axis']}")
    return at.xp.reshape(x, (math.prod(x.shape[:d]), math.prod(x.shape[d:])))


@operator("Squeeze", reads=[1])
def squeeze(at: NodeCall, x: Value, given: Value = None) -> Value:
    axes = attribute_or_input(at, "axes", given)
    found = [d for d, n in enumerate(x.shape) if n == 1] if axes is None else axes
    return at.xp.squeeze(x, axes_of(found, x.ndim)) if found else x


@operator("Unsqueeze", reads=[1])
def unsqueeze(at: NodeCall, x: Value, given: Value = None) -> Value:
    axes = attribute_or_input(at, "axes", given) or []
    return at.xp.expand_dims(x, axes_of(axes, x.ndim + len(axes)))


@operator("Transpose")
def transpose(at: NodeCall, x: Value) -> Value:
    axes = at.get("perm")
    return at.xp.permute_dims(x, tuple(axes if axes is not None else range(x.ndim)[::-1]))


@operator("Expand", reads=[1])
def expand(at: NodeCall, x: Value, wanted: Value) -> Value:
    found = bounded(np.broadcast_shapes(x.shape, tuple(whole_numbers(wanted))), x.dtype)
    return space_for(at, math.prod(found)).broadcast_to(x, found)


@operator("Tile", reads=[1])
def tile(at: NodeCall, x: Value, repeats: Value) -> Value:
    times = whole_numbers(repeats)
    found = bounded([n * m for n, m in zip(x.shape, times, strict=True)], x.dtype)
    return space_for(at, math.prod(found)).tile(x, tuple(times))


@operator("Concat")
def concat(at: NodeCall, *xs: Value) -> Value:
    return at.xp.concatenate(xs, axis=at["axis"])


@operator("Split", reads=[1])
def split(at: NodeCall, x: Value, given: Value = None) -> Value:
    (d,) = axes_of([at["axis"]], x.ndim)
    sizes = attribute_or_input(at, "split", given)
    if sizes is None:
        count = at.get("num_outputs") or at.results
        each = -(-x.shape[d] // count)
        sizes = [max(min(each, x.shape[d] - k * each), 0) for k in range(count)]
    if min(sizes) < 0 or sum(sizes) != x.shape[d]:
        raise ValueError(f"parts of {sizes} of {x.shape[d]}")
    ends = np.cumsum(sizes)
    return tuple(
        [x[(slice(None),) * d + (slice(e - n, e),)] for e, n in zip(ends, sizes, strict=True)]
    )


@operator("Slice", reads=[1, 2, 3, 4])
def slice_(
    at: NodeCall,
    x: Value,
    starts: Value = None,
    ends: Value = None,
    axes: Value = None,
    steps: Value = None,
) -> Value:
    begins = attribute_or_input(at, "starts", starts) or []
    stops = attribute_or_input(at, "ends", ends) or []
    found = attribute_or_input(at, "axes", axes)
    over = axes_of(range(len(begins)) if found is None else found, x.ndim)
    strides = whole_numbers(steps) if steps is not None else [1] * len(begins)
    key = [slice(None)] * x.ndim
    for d, begin, stop, step in zip(over, begins, stops, strides, strict=True):
        n = x.shape[d]
        if step > 0:
            key[d] = slice(begin, stop, step)
        else:  # an end far below is one before the first
            begin = min(begin + n if begin < 0 else begin, n - 1)
            stop = stop + n if stop < 0 else stop
            key[d] = slice(max(begin, 0), stop if stop >= 0 else None, step)
            if begin < 0:
                key[d] = slice(0, 0)
    return x[tuple(key)]


@operator("Pad", reads=[1, 3])
def pad(
    at: NodeCall, x: Value, pads: Value = None, value: Value = None, axes: Value = None
) -> Value:
    widths = attribute_or_input(at, "pads", pads) or []
    over = axes_of(whole_numbers(axes) if axes is not None else range(x.ndim), x.ndim)
    each = [(0, 0)] * x.ndim
    for d, before, after in zip(over, widths[: len(over)], widths[len(over) :], strict=True):
        each[d] = before, after
    key = [slice(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(x.shape, each, strict=True)]
    if any(min(pair) < 0 for pair in each):
        x = x[tuple(key)]
    more = [(max(b, 0), max(a, 0)) for b, a in each]
    bounded([n + sum(pair) for n, pair in zip(x.shape, more, strict=True)], x.dtype)
    if at["mode"] != "constant":
        return ost.pad(ours(x), more, at["mode"])
    fill = at.get("value", 0.0) if value is None else value
    return ost.pad(ours(x), more, constant_values=ost.asarray(fill, dtype=x.dtype).reshape(()))


# -- making ----------------------------------------------------------------------------------
@operator("Constant")
def constant(at: NodeCall) -> Value:
    for name in ("value", "sparse_value"):
        if at.get(name) is not None:
            return at[name]
    for name, dtype in {"float": np.float32, "int": np.int64, "string": object}.items():
        for found in (at.get(f"value_{name}"), at.get(f"value_{name}s")):
            if found is not None:
                return np.array(found, dtype)
    raise ValueError("no value")


@operator("ConstantOfShape", reads=[0])
def constant_of_shape(at: NodeCall, wanted: Value) -> Value:
    value = at.get("value")
    fill = np.zeros(1, np.float32) if value is None else value.reshape(-1)
    return filled(whole_numbers(wanted), fill[0], fill.dtype)


@operator("Range", reads=[0, 1, 2])
def range_(at: NodeCall, start: Value, limit: Value, delta: Value) -> Value:
    begin, end, step = number(start), number(limit), number(delta)
    count = max(math.ceil((end - begin) / step), 0)
    bounded([count], start.dtype)
    wide = np.float32 if start.dtype.itemsize < 4 and start.dtype.kind not in "iu" else start.dtype
    xp = space_for(at, count)
    return cast(xp.arange(count).astype(wide) * begin.__class__(step) + begin, start.dtype)


@operator("EyeLike")
def eye_like(at: NodeCall, x: Value) -> Value:
    dtype = dtype_of(at["dtype"]) if at.get("dtype") else x.dtype
    rows, columns = x.shape
    return ost.eye(rows, columns, k=at["k"], dtype=dtype)


@operator("OneHot", reads=[1])
def one_hot(at: NodeCall, places: Value, depth: Value, values: Value) -> Value:
    n = int(number(depth))
    (d,) = axes_of([at["axis"]], places.ndim + 1)
    bounded([*places.shape, n], values.dtype)
    i = ost.expand_dims(cast(ours(places), np.dtype(np.int64)), d)
    i = ost.where(i < 0, i + n, i)
    hot = i == ost.arange(n).reshape((n, *(1,) * (places.ndim - d)))
    return ost.where(hot, ours(values)[1], ours(values)[0])


@operator("Trilu", reads=[1])
def triangle(at: NodeCall, x: Value, k: Value = None) -> Value:
    offset = 0 if k is None else int(number(k))
    return (ost.triu if at["upper"] else ost.tril)(ours(x), offset)


# -- gathering and scattering ----------------------------------------------------------------
def _counted(places: Value, n: int) -> Value:
    """Places, where those below 0 count from the end."""
    xp = np if is_known(places) else ost
    return xp.where(places < 0, places + n, places)


@operator("Gather")
def gather(at: NodeCall, x: Value, places: Value) -> Value:
    (d,) = axes_of([at["axis"]], x.ndim)
    if is_known(places):  # as they are, so that bounds are checked and few become slices
        i = _counted(places, x.shape[d])
        if i.size and (i.min() < 0 or i.max() >= x.shape[d]):
            raise IndexError(f"a place beyond {x.shape[d]}")
        if not at.known and i.ndim == 0:
            return x[(slice(None),) * d + (int(i),)]
    else:
        i = _counted(places, x.shape[d])
    return at.xp.take(x, i, axis=d)


@operator("GatherElements")
def gather_elements(at: NodeCall, x: Value, places: Value) -> Value:
    (d,) = axes_of([at["axis"]], x.ndim)
    x, i = ours(x), ours(_counted(places, x.shape[d]))
    for e in range(x.ndim):
        if e != d and i.shape[e] < x.shape[e]:
            x = x[(slice(None),) * e + (slice(0, i.shape[e]),)]
    return ost.take_along_axis(x, i, d)


def _places(x: Any, i: Any, batch: int) -> tuple[Any, ...]:
    """The indices of `i`'s last axis, behind those of so many axes that both have."""
    count = i.shape[-1]
    key = [_counted(i[..., k], x.shape[batch + k]) for k in range(count)]
    around = i.ndim - 1
    front = [
        ost.arange(x.shape[d]).reshape((x.shape[d], *(1,) * (around - d - 1))) for d in range(batch)
    ]
    return (*front, *key)


@operator("GatherND")
def gather_nd(at: NodeCall, x: Value, places: Value) -> Value:
    x, i = ours(x), ours(places)
    return x[_places(x, i, at.get("batch_dims", 0))]


_REDUCTIONS = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


@operator("Scatter", "ScatterElements")
def scatter_elements(at: NodeCall, x: Value, places: Value, updates: Value) -> Value:
    (d,) = axes_of([at["axis"]], x.ndim)
    x, i, v = ours(x), ours(_counted(places, x.shape[d])), ours(updates)
    key = [
        i if e == d else ost.arange(n).reshape((n, *(1,) * (i.ndim - e - 1)))
        for e, n in enumerate(i.shape)
    ]
    return getattr(x.at[tuple(key)], _REDUCTIONS[at.get("reduction", "none")])(v)


@operator("ScatterND")
def scatter_nd(at: NodeCall, x: Value, places: Value, updates: Value) -> Value:
    x, i, v = ours(x), ours(places), ours(updates)
    return getattr(x.at[_places(x, i, 0)], _REDUCTIONS[at.get("reduction", "none")])(v)


@operator("NonZero", reads=[0])
def nonzero(at: NodeCall, x: Value) -> Value:
    return np.array(np.nonzero(known(x)), np.int64)


@operator("Compress", reads=[1])
def compress(at: NodeCall, x: Value, condition: Value) -> Value:
    (places,) = np.nonzero(known(condition).reshape(-1))
    axis = at.get("axis")
    x = at.xp.reshape(x, (-1,)) if axis is None else x
    (d,) = axes_of([axis or 0], x.ndim)
    return at.xp.take(x, places[places < x.shape[d]], axis=d)


@operator("Unique", reads=[0])
def unique(at: NodeCall, x: Value) -> Value:
    values, axis = known(x), at.get("axis")
    found, first, inverse, counts = np.unique(
        values, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not at["sorted"]:
        order = np.argsort(first)
        found = np.take(found, order, axis=axis or 0)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return found, *(i.astype(np.int64) for i in (first, inverse, counts))


@operator("ReverseSequence", reads=[1])
def reverse_sequence(at: NodeCall, x: Value, lengths: Value) -> Value:
    x = ours(x)
    t, b = at["time_axis"], at["batch_axis"]
    n = ours(lengths).reshape([-1 if d == b else 1 for d in range(x.ndim)])
    k = ost.arange(x.shape[t]).reshape([-1 if d == t else 1 for d in range(x.ndim)])
    i = ost.broadcast_to(ost.where(k < n, n - 1 - k, k), x.shape)
    return ost.take_along_axis(x, i, t)


@operator("DepthToSpace")
def depth_to_space(at: NodeCall, x: Value) -> Value:
    n, c, h, w = x.shape
    b = at["blocksize"]
    if at.get("mode", "DCR") == "DCR":
        y = ost.permute_dims(ours(x).reshape((n, b, b, c // b**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = ost.permute_dims(ours(x).reshape((n, c // b**2, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return y.reshape((n, c // b**2, h * b, w * b))


@operator("SpaceToDepth")
def space_to_depth(at: NodeCall, x: Value) -> Value:
    n, c, h, w = x.shape
    b = at["blocksize"]
    y = ours(x).reshape((n, c, h // b, b, w // b, b))
    axes = (0, 3, 5, 1, 2, 4) if at.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return ost.permute_dims(y, axes).reshape((n, c * b * b, h // b, w // b))


@operator("TensorScatter")
def tensor_scatter(at: NodeCall, x: Value, update: Value, begins: Value = None) -> Value:
    x, v = ours(x), ours(update)
    (d,) = axes_of([at.get("axis", -2)], x.ndim)
    first = ost.zeros((x.shape[0],), dtype="int64") if begins is None else ours(begins)
    row = ost.arange(v.shape[d]).reshape([-1 if e == d else 1 for e in range(x.ndim)])
    i = first.reshape((-1, *(1,) * (x.ndim - 1))) + row
    i = i % x.shape[d] if at["mode"] == "circular" else i
    key = [
        i if e == d else ost.arange(n).reshape([-1 if f == e else 1 for f in range(x.ndim)])
        for e, n in enumerate(v.shape)
    ]
    return x.at[tuple(key)].set(v)
