"""First values of weights: `he_normal(fan="out")` is a function that draws them.

Each takes a shape, how many inputs and outputs each element of it has a part in (`fans`), a dtype and a
seed. The numbers are those of `ost.random`: the same for any number of workers."""

from __future__ import annotations

import math
from typing import Literal, Protocol

from ostinato.ops.array.casts import as_dtype
from ostinato.ops.array.creation import full
from ostinato.ops.array.shape import matrix_transpose, reshape
from ostinato.ops.core.array import Array
from ostinato.ops.core.spec import DType, Shape
from ostinato.ops.core.user_line import misfit
from ostinato.ops.linalg.functions import qr
from ostinato.ops.random import draws
from ostinato.ops.special.special_functions import erfinv

from ostinato.errors import ArgumentError

__all__ = [
    "constant",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "lecun_normal",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "zeros",
]


def __dir__() -> list[str]:
    return __all__


Fan = Literal["in", "out", "mean"]
Fans = tuple[int, int]


class Initializer(Protocol):
    """A function that makes the first values of weights."""

    def __call__(self, shape: Shape, fans: Fans, dtype: DType, seed: int, /) -> Array: ...


def constant(value: float) -> Initializer:
    """All are one value.

    >>> ost.nn.Linear(2, 1, bias_init=ost.nn.initializers.constant(0.1)).init().bias
    Array([0.1], dtype=float32)
    """

    def make(shape: Shape, fans: Fans, dtype: DType, seed: int, /) -> Array:
        return full(shape, value, dtype=dtype)

    return make


def zeros() -> Initializer:
    """All are 0.

    >>> ost.nn.Linear(2, 1, bias_init=ost.nn.initializers.zeros()).init().bias
    Array([0.], dtype=float32)
    """
    return constant(0.0)


def ones() -> Initializer:
    """All are 1.

    >>> ost.nn.Linear(2, 1, bias_init=ost.nn.initializers.ones()).init().bias
    Array([1.], dtype=float32)
    """
    return constant(1.0)


def normal(std: float = 0.01) -> Initializer:
    """Normally distributed around 0.

    >>> weights = ost.nn.Linear(99, 99, weight_init=ost.nn.initializers.normal(0.5)).init().weight
    >>> round(float(weights.std()), 1)
    0.5
    """

    def make(shape: Shape, fans: Fans, dtype: DType, seed: int, /) -> Array:
        return draws.normal(shape, std=std, dtype=dtype, seed=seed)

    return make


def truncated_normal(std: float = 0.01, limit: float = 2.0) -> Initializer:
    """Normally distributed around 0, but for what is more than `limit` times `std` from there.

    >>> make = ost.nn.initializers.truncated_normal(0.1)
    >>> bool(abs(ost.nn.Linear(99, 99, weight_init=make).init().weight).max() <= 0.2)
    True
    """
    inside = math.erf(limit / math.sqrt(2))

    def make(shape: Shape, fans: Fans, dtype: DType, seed: int, /) -> Array:
        share = draws.uniform(shape, low=-inside, high=inside, dtype=dtype, seed=seed)
        return erfinv(share) * (math.sqrt(2) * std)

    return make


def uniform(bound: float = 0.01) -> Initializer:
    """Evenly distributed between `-bound` and `bound`.

    >>> make = ost.nn.initializers.uniform(0.1)
    >>> bool(abs(ost.nn.Linear(99, 99, weight_init=make).init().weight).max() <= 0.1)
    True
    """

    def make(shape: Shape, fans: Fans, dtype: DType, seed: int, /) -> Array:
        return draws.uniform(shape, low=-bound, high=bound, dtype=dtype, seed=seed)

    return make


def _scaled(gain: float, fan: Fan, even: bool) -> Initializer:
    """Draw with a variance of `gain` over the number of inputs, of outputs, or the mean of both."""
    if fan not in ("in", "out", "mean"):
        got = f"fan={fan!r:.40}"
        raise misfit(ArgumentError, "initializer", got=got, needed="'in', 'out' or 'mean'")

    def make(shape: Shape, fans: Fans, dtype: DType, seed: int, /) -> Array:
        count = {"in": fans[0], "out": fans[1], "mean": sum(fans) / 2}[fan]
        std = math.sqrt(gain / max(count, 1))
        drawn = uniform(std * math.sqrt(3)) if even else normal(std)
        return drawn(shape, fans, dtype, seed)

    return make


def glorot_uniform() -> Initializer:
    """Evenly distributed, with a variance of 1 over the mean number of inputs and outputs (Xavier).

    >>> weights = ost.nn.Linear(99, 99, weight_init=ost.nn.initializers.glorot_uniform()).init().weight
    >>> round(float(weights.std()) * 99**0.5, 1)
    1.0
    """
    return _scaled(1.0, "mean", True)


def glorot_normal() -> Initializer:
    """Normally distributed, with a variance of 1 over the mean number of inputs and outputs.

    >>> weights = ost.nn.Linear(99, 99, weight_init=ost.nn.initializers.glorot_normal()).init().weight
    >>> round(float(weights.std()) * 99**0.5, 1)
    1.0
    """
    return _scaled(1.0, "mean", False)


def he_normal(fan: Fan = "in") -> Initializer:
    """Normally distributed, with a variance of 2 over the number of inputs (or outputs): what keeps the
    size of activations behind ReLU (Kaiming).

    >>> weights = ost.nn.Linear(50, 99, weight_init=ost.nn.initializers.he_normal()).init().weight
    >>> round(float(weights.std()), 1)
    0.2
    """
    return _scaled(2.0, fan, False)


def he_uniform(fan: Fan = "in") -> Initializer:
    """Evenly distributed, with the variance of `he_normal`.

    >>> weights = ost.nn.Linear(50, 99, weight_init=ost.nn.initializers.he_uniform()).init().weight
    >>> round(float(weights.std()), 1)
    0.2
    """
    return _scaled(2.0, fan, True)


def lecun_normal() -> Initializer:
    """Normally distributed, with a variance of 1 over the number of inputs.

    >>> weights = ost.nn.Linear(99, 50, weight_init=ost.nn.initializers.lecun_normal()).init().weight
    >>> round(float(weights.std()), 1)
    0.1
    """
    return _scaled(1.0, "in", False)


def orthogonal(gain: float = 1.0) -> Initializer:
    """Rows (or columns, where there are fewer of these) that are orthogonal, of length `gain`; of more
    than two axes all but the first are one.

    >>> w = ost.nn.Linear(3, 2, weight_init=ost.nn.initializers.orthogonal()).init().weight
    >>> bool(ost.allclose(w @ w.T, ost.eye(2), atol=1e-6))
    True
    """

    def make(shape: Shape, fans: Fans, dtype: DType, seed: int, /) -> Array:
        rows, columns = shape[0], math.prod(shape[1:])
        tall = (max(rows, columns), min(rows, columns))
        q = qr(draws.normal(tall, dtype=as_dtype(dtype), seed=seed)).Q * gain
        return reshape(q if rows >= columns else matrix_transpose(q), shape)

    return make
