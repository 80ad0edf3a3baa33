"""Layers that normalise; names of weights are PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ostinato.ops.array.shape import listed

from ...core.apply import as_array
from ...core.array import Array
from ...core.array_methods import Operandish
from ..normalization import (
    batch_norm,
    batch_norm_train,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    rms_norm,
)
from .dense import counted
from .initializers import Initializer, ones, zeros
from .layer import Initial, Layer

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "LocalResponseNorm", "RMSNorm"]


class _Affine(Layer):
    """A scale and a bias for each channel."""

    def __init__(
        self,
        shape: tuple[int, ...],
        eps: float,
        affine: bool,
        scale_init: Initializer | None,
        bias: bool = True,
    ) -> None:
        self.weight: Any = Initial(shape, scale_init or ones()) if affine else None
        self.bias: Any = Initial(shape, zeros()) if affine and bias else None
        self.eps = eps


class BatchNorm(_Affine):
    """Each channel with mean 0 and variance 1, then scaled and shifted: in training over the batch, else
    by the running mean and variance, to which `apply` adds those of batches with a weight of `momentum`
    (the variance as PyTorch does, over n - 1). samples: statistics of so many samples at a time instead,
    as a group of workers would have them, on any number of workers; their mean is what is learnt.

    >>> model = ost.nn.BatchNorm(2).init()
    >>> y, model = model.apply(ost.asarray([[1.0, 2.0], [3.0, 6.0]]))
    >>> y, model.running_var
    (Array([[-1., -1.],
           [ 1.,  1.]], dtype=float64), Array([1.1, 1.7], dtype=float32))
    """

    statistics: ClassVar[tuple[str, ...]] = ("running_mean", "running_var")

    def __init__(
        self,
        channels: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        layout: str | None = None,
        samples: int | None = None,
        scale_init: Initializer | None = None,
    ) -> None:
        counted("BatchNorm", channels=channels, **({} if samples is None else {"samples": samples}))
        super().__init__((channels,), eps, affine, scale_init)
        self.running_mean: Any = Initial((channels,), zeros())
        self.running_var: Any = Initial((channels,), ones())
        self.momentum = momentum
        self.layout = layout
        self.samples = samples

    def forward(self, x: Operandish) -> Array:
        how: dict[str, Any] = {"eps": self.eps, "layout": self.layout}
        if not self.training:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, **how)
        x = as_array(x)
        y, mean, var = batch_norm_train(x, self.weight, self.bias, samples=self.samples, **how)
        count = x.size // max(mean.size, 1)
        if self.samples is not None:
            whole = x.shape[(self.layout or "N").index("N")]
            count = count // max(whole, 1) * min(self.samples, whole)
        var = var * (count / max(count - 1, 1))
        self.update(
            running_mean=lambda old: self._blended(old, mean),
            running_var=lambda old: self._blended(old, var),
        )
        return y

    def _blended(self, old: Array, new: Array) -> Array:
        return old + (new.astype(old.dtype) - old) * self.momentum


class LayerNorm(_Affine):
    """Mean 0 and variance 1 along the last axes, of this shape, then scaled and shifted.

    >>> ost.nn.LayerNorm(3).init()([[1.0, 2.0, 3.0]])
    Array([[-1.2247,  0.    ,  1.2247]], dtype=float64)
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        *,
        eps: float = 1e-5,
        affine: bool = True,
        bias: bool = True,
        scale_init: Initializer | None = None,
    ) -> None:
        sizes = listed(shape, "LayerNorm")
        super().__init__(sizes, eps, affine, scale_init, bias)
        self.axes = len(sizes)

    def forward(self, x: Operandish) -> Array:
        axes = tuple(range(-self.axes, 0))
        return layer_norm(x, self.weight, self.bias, axis=axes, epsilon=self.eps)


class RMSNorm(_Affine):
    """Divided by the root of the mean square along the last axes, of this shape, then scaled.

    >>> ost.nn.RMSNorm(4).init()([3.0, 4.0, 0.0, 0.0])
    Array([1.2, 1.6, 0. , 0. ], dtype=float64)
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        *,
        eps: float = 1e-6,
        affine: bool = True,
        scale_init: Initializer | None = None,
    ) -> None:
        sizes = listed(shape, "RMSNorm")
        super().__init__(sizes, eps, affine, scale_init, bias=False)
        self.axes = len(sizes)

    def forward(self, x: Operandish) -> Array:
        return rms_norm(x, self.weight, axis=tuple(range(-self.axes, 0)), eps=self.eps)


class GroupNorm(_Affine):
    """Mean 0 and variance 1 over all places and so many groups of channels, sample by sample, then scaled
    and shifted channel by channel.

    >>> ost.nn.GroupNorm(2, 4).init()([[1.0, 3.0, 2.0, 6.0]])
    Array([[-1.,  1., -1.,  1.]], dtype=float64)
    """

    def __init__(
        self,
        groups: int,
        channels: int,
        *,
        eps: float = 1e-5,
        affine: bool = True,
        layout: str | None = None,
        scale_init: Initializer | None = None,
    ) -> None:
        counted("GroupNorm", groups=groups, channels=channels)
        super().__init__((channels,), eps, affine, scale_init)
        self.groups = groups
        self.layout = layout

    def forward(self, x: Operandish) -> Array:
        how: dict[str, Any] = {"eps": self.eps, "layout": self.layout}
        return group_norm(x, self.groups, self.weight, self.bias, **how)


class InstanceNorm(_Affine):
    """Mean 0 and variance 1 of each channel of each sample, then scaled and shifted if `affine`.

    >>> ost.nn.InstanceNorm(1)([[[1.0, 3.0]]])
    Array([[[-1.,  1.]]], dtype=float64)
    """

    def __init__(
        self,
        channels: int,
        *,
        eps: float = 1e-5,
        affine: bool = False,
        layout: str | None = None,
        scale_init: Initializer | None = None,
    ) -> None:
        counted("InstanceNorm", channels=channels)
        super().__init__((channels,), eps, affine, scale_init)
        self.layout = layout

    def forward(self, x: Operandish) -> Array:
        how: dict[str, Any] = {"eps": self.eps, "layout": self.layout}
        return instance_norm(x, self.weight, self.bias, **how)


class LocalResponseNorm(Layer):
    """As `ost.nn.local_response_norm` does.

    >>> ost.nn.LocalResponseNorm(3, 3.0, 1.0)([[[1.0], [2.0], [3.0]]]).shape
    (1, 3, 1)
    """

    def __init__(
        self, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, **how: Any
    ) -> None:
        self.numbers = (size, alpha, beta, k)
        self.options = how

    def forward(self, x: Operandish) -> Array:
        return local_response_norm(x, *self.numbers, **self.options)
