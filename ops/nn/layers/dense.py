"""Layers without windows: products, tables, masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ostinato.ops.array.contraction import matmul
from ostinato.ops.array.shape import matrix_transpose, reshape
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, ShapeError

from ...core.apply import as_array
from ...core.array import Array
from ...core.array_methods import Operandish
from ..composed_layers import dropout, embedding
from .initializers import Initializer, glorot_uniform, normal, zeros
from .layer import Initial, Layer

__all__ = ["Dropout", "Embedding", "Flatten", "Function", "Linear"]


def counted(name: str, **counts: int) -> None:
    """Whole numbers of 1 or more, or an error."""
    for what, count in counts.items():
        if type(count) is not int or count < 1:
            got = f"{what}={count!r:.40}"
            raise misfit(ArgumentError, name, got=got, needed="a whole number of 1 or more")


def check_rate(name: str, rate: float) -> None:
    """A rate of what is dropped, or an error."""
    if not 0 <= rate < 1:
        raise misfit(ArgumentError, name, got=f"rate {rate}", needed="0 <= rate < 1")


class Linear(Layer):
    """x times a matrix, plus a bias, along the last axis. `weight` has the shape (outputs, inputs).

    >>> ost.nn.Linear(4, 2).init(seed=0)(ost.ones((3, 4))).shape
    (3, 2)
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        counted("Linear", inputs=inputs, outputs=outputs)
        fans = (inputs, outputs)
        self.weight: Any = Initial((outputs, inputs), weight_init or glorot_uniform(), fans)
        self.bias: Any = Initial((outputs,), bias_init or zeros(), fans) if bias else None

    def forward(self, x: Operandish) -> Array:
        x = as_array(x)
        outputs, inputs = self.weight.shape
        if x.ndim < 1 or x.shape[-1] != inputs:
            got, needed = str(x.shape), f"(..., {inputs})"
            raise misfit(ShapeError, f"Linear({inputs}, {outputs})", got=got, needed=needed)
        y = matmul(x, matrix_transpose(self.weight))
        return y if self.bias is None else y + self.bias


class Embedding(Layer):
    """A row of a table for each whole number. `weight` has the shape (count, features).

    >>> ost.nn.Embedding(10, 4).init(seed=0)(ost.asarray([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(
        self, count: int, features: int, *, weight_init: Initializer | None = None
    ) -> None:
        counted("Embedding", count=count, features=features)
        self.weight: Any = Initial((count, features), weight_init or normal(1.0), (count, features))

    def forward(self, x: Operandish) -> Array:
        return embedding(x, self.weight)


class Dropout(Layer):
    """In training, elements set to 0 with a probability, and the others scaled up; else x.

    >>> drop = ost.nn.Dropout(0.5)
    >>> drop(ost.ones(4)), drop(ost.ones(4), train=True, key=1)
    (Array([1., 1., 1., 1.], dtype=float64), Array([2., 0., 0., 2.], dtype=float64))
    """

    def __init__(self, rate: float = 0.5) -> None:
        check_rate("Dropout", rate)
        self.rate = rate

    def forward(self, x: Operandish) -> Array:
        if not self.training or self.rate == 0:
            return as_array(x)
        return dropout(x, self.rate, seed=self.next_seed())


class Flatten(Layer):
    """All axes but the first as one.

    >>> ost.nn.Flatten()(ost.ones((2, 3, 4))).shape
    (2, 12)
    """

    def forward(self, x: Operandish) -> Array:
        x = as_array(x)
        return reshape(x, (x.shape[0], -1) if x.size else (x.shape[0], 0))


class Function(Layer):
    """A function with options, as a layer: what a plain function in `Sequential` is without.

    >>> ost.nn.Function(ost.nn.leaky_relu, slope=0.3)([-1.0, 1.0])
    Array([-0.3,  1. ], dtype=float64)
    """

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def forward(self, x: Operandish) -> Any:
        return self.function(x, *self.args, **self.kwargs)


def listed_layers(name: str, layers: Sequence[Any]) -> tuple[Any, ...]:
    """Layers and functions, or an error."""
    for k, x in enumerate(layers):
        if not callable(x):
            got = f"{x!r:.60} at place {k}"
            raise misfit(ArgumentError, name, got=got, needed="layers or functions")
    return tuple(layers)
