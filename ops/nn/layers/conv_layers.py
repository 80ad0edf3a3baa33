"""Layers of windows: convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ostinato.ops.array.shape import moveaxis
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ...core.array import Array
from ...core.array_methods import Operandish
from ..convolution import conv, conv_transpose
from ..pooling import avg_pool, global_avg_pool, max_pool
from ..spatial import for_each
from .dense import counted
from .initializers import Initializer, glorot_uniform, zeros
from .layer import Initial, Layer

__all__ = ["AvgPool", "Conv", "ConvTranspose", "GlobalAvgPool", "MaxPool"]
Sizes = int | Sequence[int]


class _Filters(Layer):
    """Filters and a bias. Filters are OIHW in each layout, as PyTorch has them."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        window: Sizes,
        *,
        stride: Sizes = 1,
        padding: Any = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        axes: int = 2,
        layout: str | None = None,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        turned: bool = False,
    ) -> None:
        name = type(self).__name__
        counted(name, inputs=inputs, outputs=outputs, groups=groups, axes=axes)
        if layout is not None:
            axes = len(layout) - 2
        elif not isinstance(window, int):
            axes = len(window)
        sizes = for_each(window, axes, name, "window")
        if inputs % groups or outputs % groups:
            got = f"{groups} groups of {inputs} to {outputs} channels"
            raise misfit(ArgumentError, name, got=got, needed="as many channels in each")
        first, second = (inputs, outputs) if turned else (outputs, inputs)
        seen = math.prod(sizes)
        fans = (inputs // groups * seen, outputs * seen)
        shape = (first, second // groups, *sizes)
        self.weight: Any = Initial(shape, weight_init or glorot_uniform(), fans)
        self.bias: Any = Initial((outputs,), bias_init or zeros(), fans) if bias else None
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        self.layout = layout

    @property
    def _filters(self) -> Array:
        """In the order that functions take beside the layout."""
        last = self.layout is not None and self.layout.endswith("C")
        return moveaxis(self.weight, (1, 0), (-2, -1)) if last else self.weight

    @property
    def _windows(self) -> dict[str, Any]:
        names = ("stride", "padding", "dilation", "groups", "layout")
        return {name: getattr(self, name) for name in names}


class Conv(_Filters, init=False):
    """A convolution over 1 to 3 axes of space: as many as `window` or `layout` says, or `axes`. The
    others are as in `ost.nn.conv`. `weight` is OIHW whatever the layout.

    >>> ost.nn.Conv(3, 8, 3, stride=2, padding=1).init(seed=0)(ost.ones((1, 3, 6, 6))).shape
    (1, 8, 3, 3)
    """

    def forward(self, x: Operandish) -> Array:
        return conv(x, self._filters, self.bias, **self._windows)


class ConvTranspose(_Filters):
    """A transposed convolution, as in `ost.nn.conv_transpose`: what enlarges by the stride. `weight` has
    the shape (inputs, outputs / groups, ...).

    >>> ost.nn.ConvTranspose(3, 8, 2, stride=2).init(seed=0)(ost.ones((1, 3, 6, 6))).shape
    (1, 8, 12, 12)
    """

    def __init__(
        self, inputs: int, outputs: int, window: Sizes, *, output_padding: Sizes = 0, **rest: Any
    ) -> None:
        super().__init__(inputs, outputs, window, turned=True, **rest)
        self.output_padding = output_padding

    def forward(self, x: Operandish) -> Array:
        more: dict[str, Any] = {"output_padding": self.output_padding}
        return conv_transpose(x, self._filters, self.bias, **self._windows, **more)


class _Pool(Layer):
    pool: ClassVar[Callable[..., Array]]

    def __init__(self, window: Sizes, *, stride: Sizes | None = None, **rest: Any) -> None:
        self.window = window
        self.options = {"stride": stride, **rest}

    def forward(self, x: Operandish) -> Array:
        return type(self).pool(x, self.window, **self.options)


class MaxPool(_Pool, init=False):
    """The largest element of each window; the options are those of `ost.nn.max_pool`.

    >>> ost.nn.MaxPool(3, stride=2, padding=1)(ost.ones((1, 3, 6, 6))).shape
    (1, 3, 3, 3)
    """

    pool = staticmethod(max_pool)


class AvgPool(_Pool, init=False):
    """The mean of each window; the options are those of `ost.nn.avg_pool`.

    >>> ost.nn.AvgPool(2)(ost.ones((1, 3, 6, 6))).shape
    (1, 3, 3, 3)
    """

    pool = staticmethod(avg_pool)


class GlobalAvgPool(Layer):
    """The mean of each channel: (samples, channels).

    >>> ost.nn.GlobalAvgPool()(ost.ones((1, 3, 6, 6))).shape
    (1, 3)
    """

    def __init__(self, *, layout: str | None = None) -> None:
        self.layout = layout

    def forward(self, x: Operandish) -> Array:
        return global_avg_pool(x, layout=self.layout)
