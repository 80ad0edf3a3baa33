"""Operators that work element by element."""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import Any

import numpy as np

import ostinato as ost
from ostinato import nn
from ostinato.ops.core.spec import is_float

from .operators import (
    TABLE,
    NodeCall,
    Value,
    cast,
    dtype_of,
    is_ours,
    known,
    operator,
    ours,
    saturated,
)

# Functions that NumPy and we have under one name.
_ALIKE = {
    "Abs": "abs",
    "Acos": "arccos",
    "Acosh": "arccosh",
    "Add": "add",
    "And": "logical_and",
    "Asin": "arcsin",
    "Asinh": "arcsinh",
    "Atan": "arctan",
    "Atanh": "arctanh",
    "BitwiseAnd": "bitwise_and",
    "BitwiseNot": "invert",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Equal": "equal",
    "Exp": "exp",
    "Floor": "floor",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "IsNaN": "isnan",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Log": "log",
    "Mul": "multiply",
    "Neg": "negative",
    "Not": "logical_not",
    "Or": "logical_or",
    "Reciprocal": "reciprocal",
    "Round": "rint",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Sub": "subtract",
    "Tan": "tan",
    "Tanh": "tanh",
    "Where": "where",
    "Xor": "logical_xor",
}
# Functions of one array that only we have.
_OURS: dict[str, Any] = {
    "Celu": lambda at, x: nn.celu(x, at["alpha"]),
    "Elu": lambda at, x: nn.elu(x, at["alpha"]),
    "Erf": lambda at, x: ost.erf(x),
    "Gelu": lambda at, x: nn.gelu(x, approximate=at["approximate"] == "tanh"),
    "HardSigmoid": lambda at, x: ost.clip(x * at["alpha"] + at["beta"], 0, 1),
    "HardSwish": lambda at, x: x * nn.hard_sigmoid(x),
    "LeakyRelu": lambda at, x: nn.leaky_relu(x, at["alpha"]),
    "Mish": lambda at, x: nn.mish(x),
    "PRelu": lambda at, x, slope: ost.where(x < 0, x * _beside(slope, x), x),
    "Relu": lambda at, x: nn.relu(x),
    "Selu": lambda at, x: nn.elu(x, at["alpha"]) * at["gamma"],
    "Shrink": lambda at, x: _shrunk(x, at["lambd"], at["bias"]),
    "Sigmoid": lambda at, x: ost.sigmoid(x),
    "Softplus": lambda at, x: ost.softplus(x),
    "Softsign": lambda at, x: nn.softsign(x),
    "Swish": lambda at, x: x * ost.sigmoid(x * at["alpha"]),
    "ThresholdedRelu": lambda at, x: ost.where(x > at["alpha"], x, 0),
}


def _alike(at: NodeCall, *xs: Value, name: str) -> Value:
    return getattr(at.xp, name)(*xs)


def _of_arrays(at: NodeCall, *xs: Value, function: Any) -> Value:
    arrays = [ours(x) for x in xs]
    return cast(function(at, *arrays), arrays[0].dtype)


for _op, _name in _ALIKE.items():
    TABLE["", _op] = partial(_alike, name=_name)
for _op, _function in _OURS.items():
    TABLE["", _op] = partial(_of_arrays, function=_function)


def _beside(slope: Any, x: Any) -> Any:
    """A number for each channel, as before opset 7, if it is not for the last axis."""
    if slope.ndim == 1 < x.ndim and slope.size not in (1, x.shape[-1]):
        return slope.reshape([-1 if d == 1 else 1 for d in range(x.ndim)])
    return slope


def _shrunk(x: Any, edge: float, bias: float) -> Any:
    return ost.where(x < -edge, x + bias, ost.where(x > edge, x - bias, 0))


@operator("Div")
def divide(at: NodeCall, a: Value, b: Value) -> Value:
    """Quotients; those of integers are cut towards zero."""
    if is_float(a.dtype) or a.dtype.kind in "fc":
        return at.xp.divide(a, b)
    quotient = at.xp.floor_divide(at.xp.abs(a), at.xp.abs(b))
    return cast(quotient * at.xp.sign(a) * at.xp.sign(b), a.dtype)


@operator("Mod")
def modulo(at: NodeCall, a: Value, b: Value) -> Value:
    """With the sign of the divisor, or of what is divided."""
    return at.xp.fmod(a, b) if at["fmod"] else at.xp.remainder(a, b)


@operator("Pow")
def power(at: NodeCall, a: Value, b: Value) -> Value:
    """In the dtype of the base."""
    if a.dtype != b.dtype and is_float(a.dtype):
        b = cast(b, a.dtype)
    return cast(at.xp.power(a, b), a.dtype)


@operator("BitShift")
def bit_shift(at: NodeCall, a: Value, b: Value) -> Value:
    return (at.xp.left_shift if at["direction"] == "LEFT" else at.xp.right_shift)(a, b)


def _joined(at: NodeCall, *xs: Value, name: str) -> Value:
    return reduce(getattr(at.xp, name), xs)


for _op, _name in {"Max": "maximum", "Min": "minimum", "Sum": "add"}.items():
    TABLE["", _op] = partial(_joined, name=_name)


@operator("Mean")
def mean(at: NodeCall, *xs: Value) -> Value:
    return cast(reduce(at.xp.add, xs) / len(xs), xs[0].dtype)


@operator("Clip")
def clip(at: NodeCall, x: Value, low: Value = None, high: Value = None) -> Value:
    """Bounds are attributes up to opset 6, and inputs later."""
    low = at.get("min") if low is None else low
    high = at.get("max") if high is None else high
    if low is not None:
        x = at.xp.maximum(x, at.xp.asarray(low, dtype=x.dtype))
    if high is not None:
        x = at.xp.minimum(x, at.xp.asarray(high, dtype=x.dtype))
    return x


@operator("IsInf")
def is_infinite(at: NodeCall, x: Value) -> Value:
    found = at.xp.isinf(x)
    if not at["detect_positive"]:
        found = at.xp.logical_and(found, x < 0)
    if not at["detect_negative"]:
        found = at.xp.logical_and(found, x > 0)
    return found


@operator("Identity")
def identity(at: NodeCall, x: Value = None) -> Value:
    return x


# -- casts -----------------------------------------------------------------------------------
def _parsed(x: Any, dtype: np.dtype[Any]) -> Any:
    """Numbers of text."""
    numbers = np.array([float(t) for t in x.reshape(-1)], np.float64).reshape(x.shape)
    return cast(numbers, dtype)


def _text(x: Any) -> Any:
    return x.astype(np.str_).astype(object)


@operator("Cast")
def convert(at: NodeCall, x: Value) -> Value:
    return _cast_to(at, x, dtype_of(at["to"]) if at["to"] != 8 else np.dtype(object))


@operator("CastLike")
def convert_like(at: NodeCall, x: Value, like: Value) -> Value:
    return _cast_to(at, x, like.dtype)


def _cast_to(at: NodeCall, x: Value, dtype: np.dtype[Any]) -> Value:
    if "O" in (dtype.kind, x.dtype.kind):
        if dtype.kind == x.dtype.kind:
            return x
        return _text(known(x)) if dtype.kind == "O" else _parsed(known(x), dtype)
    if "float8_e8m0" in dtype.name:
        from onnx.numpy_helper import to_float8e8m0

        wide = known(x).astype(np.float32)
        return to_float8e8m0(wide, bool(at.get("saturate", 1)), at.get("round_mode", "up"))
    if "float8" in dtype.name and at.get("saturate", 1) and x.dtype != dtype:
        return saturated(x, dtype)
    return cast(x, dtype)


@operator("BitCast")
def bit_cast(at: NodeCall, x: Value) -> Value:
    dtype = dtype_of(at["to"])
    if not is_ours(dtype) or not is_ours(x.dtype):
        return known(x).view(dtype)
    return known(x).view(dtype) if at.known else ost.asarray(x).view(dtype)


# -- dropout and draws -----------------------------------------------------------------------
@operator("Dropout")
def dropout(at: NodeCall, x: Value, ratio: Value = None, training: Value = None) -> Value:
    """As in inference unless an input says that it trains."""
    if training is None or at.version < 12 or not known(training).any():
        return (x, ost.ones(x.shape, dtype=bool)) if at.wants(1) else x
    rate = 0.5 if ratio is None else float(known(ratio))
    if rate == 0:
        return x, ost.ones(x.shape, dtype=bool)
    seed = at.get("seed")
    kept = nn.dropout(ost.ones(x.shape, dtype=x.dtype), rate, seed=seed)
    return ours(x) * kept, kept > 0


def _seed(at: NodeCall) -> int | None:
    seed = at.get("seed")
    return None if seed is None or math.isnan(seed) else int(seed)


def _rng(at: NodeCall) -> Any:
    return ost.random if _seed(at) is None else ost.random.default_rng(_seed(at))


def _drawn(at: NodeCall, shape: tuple[int, ...], dtype: np.dtype[Any], normal: bool) -> Value:
    if normal:
        return cast(_rng(at).normal(at["mean"], at["scale"], shape), dtype)
    return cast(_rng(at).uniform(at["low"], at["high"], shape), dtype)


@operator("RandomNormalLike", "RandomUniformLike")
def draw_like(at: NodeCall, x: Value) -> Value:
    dtype = dtype_of(at["dtype"]) if at.get("dtype") else x.dtype
    return _drawn(at, x.shape, dtype, "Normal" in at.node.op)


@operator("RandomNormal", "RandomUniform")
def draw(at: NodeCall) -> Value:
    return _drawn(at, tuple(at["shape"]), dtype_of(at["dtype"]), "Normal" in at.node.op)


@operator("Bernoulli")
def bernoulli(at: NodeCall, x: Value) -> Value:
    dtype = dtype_of(at["dtype"]) if at.get("dtype") else x.dtype
    return cast(_rng(at).uniform(0.0, 1.0, x.shape) < x, dtype)
