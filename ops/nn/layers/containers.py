"""Layers of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ostinato.ops.array.concatenation import concat
from ostinato.ops.core.array import Array

from .dense import listed_layers
from .layer import Layer

__all__ = ["Branches", "Residual", "Sequential"]


class Sequential(Layer):
    """Layers, and functions, one behind the other. `model[k]` is one of them, `model[:k]` a part.

    >>> model = ost.nn.Sequential(ost.nn.Linear(4, 8), ost.nn.relu, ost.nn.Linear(8, 2)).init(seed=0)
    >>> model(ost.ones((3, 4))).shape
    (3, 2)
    """

    unnamed: ClassVar[tuple[str, ...]] = ("layers",)

    def __init__(self, *layers: Callable[..., Any]) -> None:
        self.layers = listed_layers("Sequential", layers)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, k: int | slice) -> Any:
        return Sequential(*self.layers[k]) if isinstance(k, slice) else self.layers[k]


class Residual(Layer):
    """`activation(body(x) + shortcut(x))`; without a shortcut, x itself is added.

    >>> block = ost.nn.Residual(ost.nn.Linear(4, 4), activation=ost.nn.relu).init(seed=0)
    >>> block(ost.ones((3, 4))).shape
    (3, 4)
    """

    def __init__(
        self,
        *body: Callable[..., Any],
        shortcut: Callable[..., Any] | None = None,
        activation: Callable[..., Any] | None = None,
    ) -> None:
        self.body = body[0] if len(body) == 1 else Sequential(*body)
        self.shortcut = shortcut
        self.activation = activation

    def forward(self, x: Any) -> Any:
        y = self.body(x) + (x if self.shortcut is None else self.shortcut(x))
        return y if self.activation is None else self.activation(y)


class Branches(Layer):
    """Several layers of one x, their results joined along an axis, which is that of channels first.

    >>> both = ost.nn.Branches(ost.nn.relu, ost.nn.relu6)
    >>> both([[1.0, 8.0]])
    Array([[1., 8., 1., 6.]], dtype=float64)
    """

    unnamed: ClassVar[tuple[str, ...]] = ("layers",)

    def __init__(self, *layers: Callable[..., Any], axis: int = 1) -> None:
        self.layers = listed_layers("Branches", layers)
        self.axis = axis

    def forward(self, x: Any) -> Array:
        return concat([layer(x) for layer in self.layers], axis=self.axis)
