"""Functions of networks, composed of the operations of other families."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from ostinato.ops.array.arithmetic import abs as absolute
from ostinato.ops.array.comparisons import isfinite
from ostinato.ops.array.creation import ANYWHERE, one_hot
from ostinato.ops.array.elementwise import floating, where
from ostinato.ops.array.indexing import take
from ostinato.ops.array.reduction import max, sum
from ostinato.ops.array.shape import axes_of, axis_of, listed, stop_gradient
from ostinato.ops.array.slicing import slice_axes
from ostinato.ops.array.transcendental import erf, exp, expm1, log, sigmoid, softplus, tanh
from ostinato.ops.core.spec import float32, is_inexact, is_integer
from ostinato.ops.core.user_line import misfit
from ostinato.ops.random.draws import _unit

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..core.apply import as_array
from ..core.array import Array
from ..core.array_methods import Axis, Operandish
from .spatial import order_of

__all__ = [
    "celu",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_tanh",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "one_hot",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "spatial_dropout",
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
        got = f"{x.shape[d]} along axis {d}"
        raise misfit(ShapeError, "glu", got=got, needed="an even number of them")
    first, second = (slice_axes(x, {d: (k * half, half, 1)}) for k in range(2))
    return first * sigmoid(second)


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


def shifted(x: Array, axes: tuple[int, ...]) -> Array:
    """Less the largest along axes, so that exponentials are at most 1."""
    top = stop_gradient(max(x, axis=axes, keepdims=True))
    return x - where(isfinite(top), top, 0)


def softmax(x: Operandish, /, axis: Axis = -1) -> Array:
    """exp(x) over its sum along an axis, without overflow.

    >>> ost.nn.softmax([1.0, 1.0])
    Array([0.5, 0.5], dtype=float64)
    """
    x = floating(x)
    axes = axes_of(axis, x.ndim, "softmax")
    e = exp(shifted(x, axes))
    return e / sum(e, axis=axes, keepdims=True)


def log_softmax(x: Operandish, /, axis: Axis = -1) -> Array:
    """log(softmax(x)), without overflow.

    >>> ost.nn.log_softmax([1.0, 1.0])
    Array([-0.6931, -0.6931], dtype=float64)
    """
    x = floating(x)
    axes = axes_of(axis, x.ndim, "log_softmax")
    below = shifted(x, axes)
    return below - log(sum(exp(below), axis=axes, keepdims=True))


def dropout(
    x: Operandish,
    rate: Operandish = 0.5,
    /,
    *,
    seed: object = None,
    shared: int | Sequence[int] = (),
) -> Array:
    """Elements set to 0 with a probability, the others scaled up to keep the mean; along `shared` axes all or
    none. Each call of a compiled function draws anew unless a seed is given.

    >>> ost.nn.dropout(ost.ones(6), 0.5, seed=1)
    Array([0., 0., 2., 0., 2., 2.], dtype=float64)
    """
    x = as_array(x)
    if isinstance(rate, (int, float)) and not 0 <= rate < 1:
        raise misfit(ArgumentError, "dropout", got=f"rate {rate}", needed="0 <= rate < 1")
    if not is_inexact(x.dtype):
        raise misfit(DTypeError, "dropout", got=x.dtype.name, needed="a floating dtype")
    alike = axes_of(tuple(listed(shared, "dropout")), x.ndim, "dropout")
    each = tuple([1 if d in alike else n for d, n in enumerate(x.shape)])
    kept = _unit(each, "dropout", seed, float32, ANYWHERE) >= rate
    return where(kept, x / (1 - cast(Any, rate)), 0)


def spatial_dropout(
    x: Operandish, rate: Operandish = 0.5, /, *, seed: object = None, layout: str | None = None
) -> Array:
    """Dropout of whole channels of each sample. `layout` as in `conv`.

    >>> ost.nn.spatial_dropout(ost.ones((1, 4, 2)), 0.5, seed=1)
    Array([[[0., 0.],
            [0., 0.],
            [2., 2.],
            [0., 0.]]], dtype=float64)
    """
    x = as_array(x)
    space = order_of(layout, x, "spatial_dropout").axes[1:-1]
    return dropout(x, rate, seed=seed, shared=space)


def embedding(ids: Operandish, table: Operandish, /) -> Array:
    """The rows of a table at these places, one for each id.

    >>> ost.nn.embedding([2, 0], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    Array([[5., 6.],
           [1., 2.]], dtype=float64)
    """
    rows, places = as_array(table), as_array(ids)
    if rows.ndim < 1 or not is_integer(places.dtype):
        got = f"ids {places.spec.bare} of a table {rows.spec.bare}"
        raise misfit(DTypeError, "embedding", got=got, needed="integers, and a table with rows")
    return take(rows, places, axis=0)
