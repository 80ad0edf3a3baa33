"""Functions of networks, composed of the operations of other families."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
from ostinato.ops.array.arithmetic import abs as absolute
from ostinato.ops.array.arithmetic import rsqrt
from ostinato.ops.array.comparisons import isfinite
from ostinato.ops.array.contraction import matmul
from ostinato.ops.array.creation import ANYWHERE, iota, one_hot
from ostinato.ops.array.elementwise import floating, where
from ostinato.ops.array.indexing import take_along_axis
from ostinato.ops.array.moments import mean, moments_of
from ostinato.ops.array.reduction import max, sum
from ostinato.ops.array.shape import (
    axes_of,
    axis_of,
    expand_dims,
    matrix_transpose,
    squeeze,
    stop_gradient,
)
from ostinato.ops.array.slicing import slice_axes
from ostinato.ops.array.transcendental import erf, exp, expm1, log, sigmoid, softplus, tanh
from ostinato.ops.core.spec import bool_, float32, is_inexact, is_integer
from ostinato.ops.core.user_line import misfit
from ostinato.ops.random.draws import _unit

from ostinato.errors import ArgumentError, BoundsError, DTypeError, ShapeError

from ..core.apply import as_array
from ..core.array import Array
from ..core.array_methods import Axis, Operandish
from ..core.operand import Host

__all__ = [
    "attention",
    "celu",
    "cross_entropy",
    "dropout",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_tanh",
    "layer_norm",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "mse_loss",
    "one_hot",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "tanh",
]


def relu(x: Operandish, /) -> Array:
    """max(x, 0); its slope at 0 is 0.

    >>> ost.nn.relu([-1.0, 2.0])
    Array([0., 2.], dtype=float64)
    """
    x = as_array(x)
    return where(x <= 0, 0, x)  # NaN stays


def leaky_relu(x: Operandish, /, slope: float = 0.01) -> Array:
    """x above 0, slope * x below.

    >>> ost.nn.leaky_relu([-1.0, 2.0])
    Array([-0.01,  2.  ], dtype=float64)
    """
    x = as_array(x)
    return where(x >= 0, x, x * slope)


def elu(x: Operandish, /, alpha: float = 1.0) -> Array:
    """x above 0, alpha * (exp(x) - 1) below.

    >>> ost.nn.elu([-1.0, 2.0])
    Array([-0.6321,  2.    ], dtype=float64)
    """
    x = as_array(x)
    return where(x > 0, x, expm1(where(x > 0, 0, x)) * alpha)


def celu(x: Operandish, /, alpha: float = 1.0) -> Array:
    """x above 0, alpha * (exp(x / alpha) - 1) below.

    >>> ost.nn.celu([1.0, -1.0], 2.0)
    Array([ 1.    , -0.7869], dtype=float64)
    """
    x = as_array(x)
    return where(x > 0, x, expm1(where(x > 0, 0, x) / alpha) * alpha)


def selu(x: Operandish, /) -> Array:
    """elu, scaled so that layers keep mean 0 and variance 1.

    >>> ost.nn.selu([0.0, 1.0])
    Array([0.    , 1.0507], dtype=float64)
    """
    return elu(x, 1.6732632423543772) * 1.0507009873554805


def relu6(x: Operandish, /) -> Array:
    """Between 0 and 6.

    >>> ost.nn.relu6([-1.0, 3.0, 9.0])
    Array([0., 3., 6.], dtype=float64)
    """
    x = as_array(x)
    return where(x >= 6, 6, relu(x))


def hard_tanh(x: Operandish, /) -> Array:
    """Between -1 and 1.

    >>> ost.nn.hard_tanh([-3.0, 0.5])
    Array([-1. ,  0.5], dtype=float64)
    """
    x = as_array(x)
    return where(x > 1, 1, where(x < -1, -1, x))


def hard_sigmoid(x: Operandish, /) -> Array:
    """x / 6 + 1 / 2, between 0 and 1.

    >>> ost.nn.hard_sigmoid([-3.0, 0.0])
    Array([0. , 0.5], dtype=float64)
    """
    return relu6(as_array(x) + 3.0) / 6.0


def softsign(x: Operandish, /) -> Array:
    """x / (1 + |x|)

    >>> ost.nn.softsign([1.0, -3.0])
    Array([ 0.5 , -0.75], dtype=float64)
    """
    x = floating(x)
    return x / (1.0 + absolute(x))


def mish(x: Operandish, /) -> Array:
    """x * tanh(softplus(x))

    >>> ost.nn.mish([0.0, 1.0])
    Array([0.    , 0.8651], dtype=float64)
    """
    x = floating(x)
    return x * tanh(softplus(x))


def glu(x: Operandish, /, axis: int = -1) -> Array:
    """The first half along an axis, times the sigmoid of the second half.

    >>> ost.nn.glu([2.0, 0.0])
    Array([1.], dtype=float64)
    """
    x = floating(x)
    d = axis_of(axis, x.ndim, "glu")
    half, odd = divmod(x.shape[d], 2)
    if odd:
        raise misfit(
            ShapeError, "glu", got=f"{x.shape[d]} along axis {d}", needed="an even number of them"
        )
    first, second = (slice_axes(x, {d: (k * half, half, 1)}) for k in range(2))
    return first * sigmoid(second)


def attention(
    query: Operandish,
    key: Operandish,
    value: Operandish,
    /,
    *,
    mask: Operandish | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Array:
    """softmax(query @ key.mT * scale) @ value, of (..., length, features); the scale is 1 over the root of the
    features. A mask of bools says which keys a query sees, one of numbers is added; with `is_causal` a query
    sees those that are not behind it. (JAX has heads behind the length: swap these axes.)

    >>> ost.nn.attention(ost.ones((2, 3)), ost.ones((2, 3)), ost.eye(2))
    Array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float64)
    """
    q, k, v = map(floating, (query, key, value))
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise misfit(
            ShapeError,
            "attention",
            got=" and ".join(str(x.shape) for x in (q, k, v)),
            needed="(..., length, features) each",
        )
    scores = matmul(q, matrix_transpose(k)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        n, m = scores.shape[-2:]
        seen = iota((n, m), 0) >= iota((n, m), 1)
        scores = where(seen, scores, -math.inf)
    if mask is not None:
        given = as_array(mask)
        scores = where(given, scores, -math.inf) if given.dtype == bool_ else scores + given
    return matmul(softmax(scores, axis=-1), v)


def silu(x: Operandish, /) -> Array:
    """x * sigmoid(x)

    >>> ost.nn.silu([-1.0, 2.0])
    Array([-0.2689,  1.7616], dtype=float64)
    """
    x = as_array(x)
    return x * sigmoid(x)


def gelu(x: Operandish, /, *, approximate: bool = False) -> Array:
    """x times the normal distribution's probability below x; or its approximation by tanh.

    >>> ost.nn.gelu([-1.0, 2.0])
    Array([-0.1587,  1.9545], dtype=float64)
    """
    x = floating(x)
    if approximate:
        return 0.5 * x * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def log_sigmoid(x: Operandish, /) -> Array:
    """log(sigmoid(x)), without overflow.

    >>> ost.nn.log_sigmoid([0.0])
    Array([-0.6931], dtype=float64)
    """
    return -softplus(-as_array(x))


def _shifted(x: Array, axes: tuple[int, ...]) -> Array:
    top = stop_gradient(max(x, axis=axes, keepdims=True))
    return x - where(isfinite(top), top, 0)


def softmax(x: Operandish, /, axis: Axis = -1) -> Array:
    """exp(x) over its sum along an axis, without overflow.

    >>> ost.nn.softmax([1.0, 1.0])
    Array([0.5, 0.5], dtype=float64)
    """
    x = floating(x)
    axes = axes_of(axis, x.ndim, "softmax")
    e = exp(_shifted(x, axes))
    return e / sum(e, axis=axes, keepdims=True)


def log_softmax(x: Operandish, /, axis: Axis = -1) -> Array:
    """log(softmax(x)), without overflow.

    >>> ost.nn.log_softmax([1.0, 1.0])
    Array([-0.6931, -0.6931], dtype=float64)
    """
    x = floating(x)
    axes = axes_of(axis, x.ndim, "log_softmax")
    shifted = _shifted(x, axes)
    return shifted - log(sum(exp(shifted), axis=axes, keepdims=True))


def cross_entropy(
    logits: Operandish,
    targets: Operandish,
    /,
    *,
    axis: int = -1,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Array:
    """The loss of class indices, or of distributions over the classes, under softmax(logits).

    An index of no class is an error. What is computed later, as in compiled functions, counts negative
    ones from the last class, as `x[-1]` does.

    >>> ost.nn.cross_entropy([[2.0, 0.0], [0.0, 2.0]], [0, 1])
    Array(0.1269, dtype=float64)
    """
    x, t = floating(logits), as_array(targets)
    d = axis_of(axis, x.ndim, "cross_entropy")
    left = (*x.shape[:d], *x.shape[d + 1 :])
    logp = log_softmax(x, axis=d)
    if is_integer(t.dtype):
        if t.shape != left:
            raise misfit(
                ShapeError,
                "cross_entropy",
                got=f"class indices of shape {t.shape}",
                needed=f"shape {left}",
            )
        _check_classes(t, x.shape[d])
        losses = -squeeze(take_along_axis(logp, expand_dims(t, axis=d), axis=d), d)
    else:
        if t.shape != x.shape:
            raise misfit(
                ShapeError,
                "cross_entropy",
                got=f"targets {t.spec.bare} for logits of shape {x.shape}",
                needed="class indices, or a distribution in the shape of the logits",
            )
        losses = -sum(t * logp, axis=d)
    return _reduced(losses, reduction, "cross_entropy")


def _check_classes(t: Array, classes: int) -> None:
    """All are classes, as far as they are known and lie in this process."""
    known = t._operand
    parts = [known.value] if isinstance(known, Host) else getattr(known, "parts", ())
    for part in parts:
        if not isinstance(part, np.ndarray) or not part.size:
            continue
        low, high = int(part.min()), int(part.max())
        if low < 0 or high >= classes:
            raise misfit(
                BoundsError,
                "cross_entropy",
                got=f"class {low if low < 0 else high}",
                needed=f"classes from 0 to {classes - 1}",
                do="give what has no class one, and weight 0: ost.where(known, losses, 0) of "
                "the losses by reduction='none'",
            )


def _reduced(losses: Array, reduction: str, name: str) -> Array:
    match reduction:
        case "mean":
            return mean(losses)
        case "sum":
            return sum(losses)
        case "none":
            return losses
    raise misfit(
        ArgumentError, name, got=f"reduction={reduction!r}", needed="'mean', 'sum' or 'none'"
    )


def mse_loss(
    x: Operandish, y: Operandish, /, *, reduction: Literal["mean", "sum", "none"] = "mean"
) -> Array:
    """Squared differences.

    >>> ost.nn.mse_loss([1.0, 2.0], [1.0, 4.0])
    Array(2., dtype=float64)
    """
    difference = as_array(x) - y
    return _reduced(difference * difference, reduction, "mse_loss")


def layer_norm(
    x: Operandish,
    scale: Operandish | None = None,
    shift: Operandish | None = None,
    /,
    *,
    axis: int | Sequence[int] = -1,
    epsilon: float = 1e-5,
) -> Array:
    """Mean 0 and variance 1 along axes, from one pass over the data, then scaled and shifted.

    >>> ost.nn.layer_norm([1.0, 2.0, 3.0])
    Array([-1.2247,  0.    ,  1.2247], dtype=float64)
    """
    x = floating(x)
    axes = axes_of(axis, x.ndim, "layer_norm")
    centre, variance = moments_of(x, axes)
    y = (x - centre) * rsqrt(variance + epsilon)
    if scale is not None:
        y = y * scale
    return y if shift is None else y + shift


def dropout(x: Operandish, rate: Operandish = 0.5, /, *, seed: object = None) -> Array:
    """Elements set to 0 with a probability, the others scaled up to keep the mean. Each call of a
    compiled function draws anew unless a seed is given.

    >>> ost.nn.dropout(ost.ones(6), 0.5, seed=1)
    Array([0., 0., 2., 0., 2., 2.], dtype=float64)
    """
    x = as_array(x)
    if isinstance(rate, (int, float)) and not 0 <= rate < 1:
        raise misfit(ArgumentError, "dropout", got=f"rate {rate}", needed="0 <= rate < 1")
    if not is_inexact(x.dtype):
        raise misfit(DTypeError, "dropout", got=x.dtype.name, needed="a floating dtype")
    kept = _unit(x.shape, "dropout", seed, float32, ANYWHERE) >= rate
    return where(kept, x / (1 - cast(Any, rate)), 0)
