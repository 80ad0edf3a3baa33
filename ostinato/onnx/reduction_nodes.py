"""Operators that reduce, sort, accumulate or multiply."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

import ostinato as ost
from ostinato import nn
from ostinato.ops.core.spec import is_float

from .operators import (
    READS,
    TABLE,
    NodeCall,
    Value,
    attribute_or_input,
    axes_of,
    cast,
    dtype_of,
    known,
    number,
    operator,
    ours,
    saturated,
)

_REDUCTIONS: dict[str, Any] = {
    "ReduceL1": lambda xp, x, **how: xp.sum(xp.abs(x), **how),
    "ReduceL2": lambda xp, x, **how: xp.sqrt(xp.sum(_wide(xp, x) ** 2, **how)),
    "ReduceLogSum": lambda xp, x, **how: xp.log(xp.sum(_wide(xp, x), **how)),
    "ReduceLogSumExp": lambda xp, x, **how: _log_sum_exp(ours(_wide(xp, x)), **how),
    "ReduceMax": lambda xp, x, **how: _extreme(xp, x, "max", **how),
    "ReduceMean": lambda xp, x, **how: xp.mean(x, **how),
    "ReduceMin": lambda xp, x, **how: _extreme(xp, x, "min", **how),
    "ReduceProd": lambda xp, x, **how: xp.prod(x, **how),
    "ReduceSum": lambda xp, x, **how: xp.sum(x, **how),
    "ReduceSumSquare": lambda xp, x, **how: xp.sum(x * x, **how),
}


def _wide(xp: Any, x: Any) -> Any:
    return x if is_float(x.dtype) else cast(x, np.dtype(np.float64))


def _log_sum_exp(x: Any, **how: Any) -> Any:
    return ost.logsumexp(x, **how) if x.size else ost.log(ost.sum(x, **how))


def _extreme(xp: Any, x: Any, name: str, axis: tuple[int, ...], keepdims: bool) -> Any:
    """The extreme; that of nothing is the other end of what the dtype has."""
    if math.prod([x.shape[d] for d in axis]):
        return getattr(xp, name)(x, axis=axis, keepdims=keepdims)
    down = name == "max"
    if x.dtype == bool:
        end: Any = not down
    elif is_float(x.dtype):
        end = -math.inf if down else math.inf
    else:
        end = getattr(np.iinfo(x.dtype), "min" if down else "max")
    left = [1 if d in axis else n for d, n in enumerate(x.shape) if keepdims or d not in axis]
    return xp.full(tuple(left), end, dtype=x.dtype)


def _reduced(at: NodeCall, x: Value, given: Value = None, *, function: Any) -> Value:
    axes = attribute_or_input(at, "axes", given)
    if not axes:
        if at.get("noop_with_empty_axes", 0):
            return cast(function(at.xp, x[None], axis=(0,), keepdims=False), x.dtype)
        axes = list(range(x.ndim))
    keep = bool(at["keepdims"])
    return cast(function(at.xp, x, axis=axes_of(axes, x.ndim), keepdims=keep), x.dtype)


for _op, _function in _REDUCTIONS.items():
    TABLE["", _op] = partial(_reduced, function=_function)
    READS["", _op] = (1,)


@operator("ArgMax", "ArgMin")
def position(at: NodeCall, x: Value) -> Value:
    (d,) = axes_of([at["axis"]], x.ndim)
    x = ours(x)
    find = ost.argmax if at.node.op == "ArgMax" else ost.argmin
    if at.get("select_last_index", 0):
        found = x.shape[d] - 1 - find(ost.flip(x, d), axis=d, keepdims=bool(at["keepdims"]))
    else:
        found = find(x, axis=d, keepdims=bool(at["keepdims"]))
    return cast(found, np.dtype(np.int64))


@operator("TopK", reads=[1])
def top(at: NodeCall, x: Value, k: Value = None) -> Value:
    count = at.get("k") if k is None else int(number(k))
    (d,) = axes_of([at["axis"]], x.ndim)
    return tuple(ost.topk(ours(x), count, axis=d, largest=bool(at.get("largest", 1))))


@operator("CumSum", "CumProd", reads=[1])
def accumulated(at: NodeCall, x: Value, axis: Value) -> Value:
    x = ours(x)
    (d,) = axes_of([int(number(axis))], x.ndim)
    x = ost.flip(x, d) if at["reverse"] else x
    sums = at.node.op == "CumSum"
    y = (ost.cumsum if sums else ost.cumprod)(x, axis=d, dtype=x.dtype)
    if at["exclusive"]:
        key = (slice(None),) * d
        first = (ost.zeros_like if sums else ost.ones_like)(y[(*key, slice(0, 1))])
        y = ost.concat([first, y[(*key, slice(0, x.shape[d] - 1))]], axis=d)
    return ost.flip(y, d) if at["reverse"] else y


# -- softmax and its like --------------------------------------------------------------------
def _rows(at: NodeCall, x: Any, function: Any) -> Value:
    """Over an axis, up to opset 12 over all that are behind it, too."""
    (d,) = axes_of([at["axis"]], x.ndim)
    if at.version >= 13:
        return cast(function(x, d), x.dtype)
    flat = x.reshape((math.prod(x.shape[:d]), math.prod(x.shape[d:])))
    return cast(function(flat, 1).reshape(x.shape), x.dtype)


@operator("Softmax")
def softmax(at: NodeCall, x: Value) -> Value:
    return _rows(at, ours(x), lambda v, d: nn.softmax(v, axis=d))


@operator("LogSoftmax")
def log_softmax(at: NodeCall, x: Value) -> Value:
    return _rows(at, ours(x), lambda v, d: nn.log_softmax(v, axis=d))


def _first_largest(x: Any, d: int) -> Any:
    row = ost.arange(x.shape[d]).reshape((-1, *(1,) * (x.ndim - d - 1)))
    return ost.argmax(x, axis=d, keepdims=True) == row


@operator("Hardmax")
def hardmax(at: NodeCall, x: Value) -> Value:
    return _rows(at, ours(x), lambda v, d: cast(_first_largest(v, d), v.dtype))


@operator("LpNormalization")
def lp_normalization(at: NodeCall, x: Value) -> Value:
    x, d, p = ours(x), at["axis"], at["p"]
    power = ost.sum(ost.abs(x) ** p, axis=d, keepdims=True)
    norm = ost.sqrt(power) if p == 2 else power
    return ost.where(norm == 0, 0, x / ost.where(norm == 0, 1, norm))


# -- products --------------------------------------------------------------------------------
@operator("MatMul")
def matmul(at: NodeCall, a: Value, b: Value) -> Value:
    return at.xp.matmul(a, b)


@operator("Gemm")
def gemm(at: NodeCall, a: Value, b: Value, c: Value = None) -> Value:
    a, b = ours(a), ours(b)
    y = ost.matmul(a.T if at["transA"] else a, b.T if at["transB"] else b)
    y = y if at["alpha"] == 1 else cast(y * at["alpha"], a.dtype)
    if c is None or at["beta"] == 0:
        return y
    return y + (c if at["beta"] == 1 else cast(ours(c) * at["beta"], a.dtype))


@operator("Einsum")
def einsum(at: NodeCall, *xs: Value) -> Value:
    return ost.einsum(at["equation"].replace(" ", ""), *map(ours, xs))


@operator("Det")
def det(at: NodeCall, x: Value) -> Value:
    return ost.linalg.det(ours(x))


# -- integers in the place of floats ---------------------------------------------------------
def _shaped(x: Value, like: Value, axis: int) -> Value:
    """Numbers for the places along an axis."""
    x = ours(x)
    if x.ndim != 1 or (x.size == 1 and like.ndim != 1):
        return x.reshape(()) if x.size == 1 else x
    (d,) = axes_of([axis], like.ndim)
    return x.reshape([-1 if e == d else 1 for e in range(like.ndim)])


def _each_block(x: Value, like: Value, axis: int, block: int) -> Value:
    """As many numbers as `like` has places, of one for each block along an axis."""
    if not block:
        return _shaped(x, like, axis)
    (d,) = axes_of([axis], like.ndim)
    wide = ost.repeat(ours(x), block, axis=d)
    return wide[(slice(None),) * d + (slice(0, like.shape[d]),)]


@operator("DequantizeLinear")
def dequantize(at: NodeCall, x: Value, scale: Value, zero: Value = None) -> Value:
    axis, block = at.get("axis", 1), at.get("block_size", 0)
    made = scale.dtype
    wide = cast(ours(x), np.dtype(np.float32))
    if zero is not None:
        wide = wide - cast(_each_block(zero, x, axis, block), wide.dtype)
    each = cast(_each_block(scale, x, axis, block), wide.dtype)
    kind = at.get("output_dtype", 0)

    return cast(wide * each, dtype_of(kind) if kind else made)


@operator("QuantizeLinear")
def quantize(at: NodeCall, x: Value, scale: Value, zero: Value = None) -> Value:

    axis, block = at.get("axis", 1), at.get("block_size", 0)
    kind = at.get("output_dtype", 0)
    dtype = zero.dtype if zero is not None else dtype_of(kind) if kind else np.dtype(np.uint8)
    wide = cast(ours(x), np.dtype(np.float32))
    y = wide / cast(_each_block(scale, x, axis, block), wide.dtype)
    return quantized(y, zero, dtype, x, axis, block)


def quantized(
    y: Any, zero: Value, dtype: np.dtype[Any], like: Value, axis: int = 1, block: int = 0
) -> Value:
    if dtype.kind not in "iu" and "int" not in dtype.name:
        return saturated(y, dtype) if "float8" in dtype.name else known(y).astype(dtype)
    y = ost.rint(y)
    if zero is not None:
        y = y + cast(_each_block(zero, like, axis, block), y.dtype)
    low, high = _ends(dtype)
    return cast(ost.clip(y, low, high), dtype)


def _ends(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.kind in "iu" and "int" in dtype.name and dtype.name[-1] not in "42":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    import ml_dtypes

    info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(at: NodeCall, x: Value) -> Value:
    x = ours(x)
    low, high = ost.minimum(ost.min(x), 0), ost.maximum(ost.max(x), 0)
    scale = (high - low) / 255
    zero = ost.clip(ost.rint(-low / scale), 0, 255)
    y = ost.clip(ost.rint(x / scale) + zero, 0, 255)
    byte = np.dtype(np.uint8)
    return cast(y, byte), scale, cast(zero, byte)


def centred(x: Value, zero: Value, axis: int) -> Any:
    wide = cast(ours(x), np.dtype(np.int32))
    if zero is None:
        return wide
    z = cast(ours(zero), np.dtype(np.int32))
    if z.ndim == 1 and z.size > 1:
        z = z.reshape([-1 if e == axis % x.ndim else 1 for e in range(x.ndim)])
    return wide - (z.reshape(()) if z.size == 1 else z)


@operator("MatMulInteger")
def matmul_integer(
    at: NodeCall, a: Value, b: Value, a_zero: Value = None, b_zero: Value = None
) -> Value:
    return ost.matmul(centred(a, a_zero, -2), centred(b, b_zero, -1))


@operator("QLinearMatMul")
def quantized_matmul(
    at: NodeCall,
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    y_scale: Value,
    y_zero: Value,
) -> Value:
    y = ost.matmul(centred(a, a_zero, -2), centred(b, b_zero, -1))
    wide = np.dtype(np.float64)
    factor = cast(ours(a_scale), wide) * cast(ours(b_scale), wide) / cast(ours(y_scale), wide)
    return quantized(cast(y, wide) * factor, y_zero, y_zero.dtype, y)
