"""Attention with the products around it."""

from __future__ import annotations

from typing import Any

from ostinato.ops.array.contraction import matmul
from ostinato.ops.array.shape import matrix_transpose, reshape, swapaxes
from ostinato.ops.array.slicing import slice_axes
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, ShapeError

from ...core.apply import as_array
from ...core.array import Array
from ...core.array_methods import Operandish
from ..attending import attention
from .dense import Linear, counted
from .initializers import Initializer, glorot_uniform, zeros
from .layer import Initial, Layer

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(Layer):
    """Attention in several heads, of x to itself or to a context, both (..., length, features). With fewer
    `kv_heads`, groups of heads share keys and values. Names and shapes of weights are PyTorch's:
    `in_proj_weight` makes queries, keys and values, in this order.

    >>> heads = ost.nn.MultiHeadAttention(8, 2).init(seed=0)
    >>> heads(ost.ones((1, 5, 8)), is_causal=True).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        weight_init: Initializer | None = None,
    ) -> None:
        shared = heads if kv_heads is None else kv_heads
        counted("MultiHeadAttention", features=features, heads=heads, kv_heads=shared)
        if features % heads or heads % shared:
            got = f"{features} features, {heads} heads and kv_heads={shared}"
            needed = "as many features in each head, and as many heads for each of kv_heads"
            raise misfit(ArgumentError, "MultiHeadAttention", got=got, needed=needed)
        made = features + 2 * (features // heads) * shared
        fans = (features, features)
        self.in_proj_weight: Any = Initial((made, features), weight_init or glorot_uniform(), fans)
        self.in_proj_bias: Any = Initial((made,), zeros(), fans) if bias else None
        self.out_proj = Linear(features, features, bias=bias, weight_init=weight_init)
        self.heads = heads
        self.kv_heads = shared

    def forward(
        self,
        x: Operandish,
        context: Operandish | None = None,
        *,
        mask: Operandish | None = None,
        is_causal: bool = False,
    ) -> Array:
        x = as_array(x)
        features = self.in_proj_weight.shape[1]
        rest = (self.in_proj_weight.shape[0] - features) // 2
        if x.ndim < 2 or x.shape[-1] != features:
            needed = f"(..., length, {features})"
            raise misfit(ShapeError, "MultiHeadAttention", got=str(x.shape), needed=needed)
        bounds = [(0, features), (features, rest), (features + rest, rest)]
        if context is None:
            made = self._projected(x, 0, features + 2 * rest)
            parts = [slice_axes(made, {made.ndim - 1: (n, m, 1)}) for n, m in bounds]
        else:
            of = [x, *[as_array(context)] * 2]
            parts = [self._projected(v, n, m) for v, (n, m) in zip(of, bounds, strict=True)]
        q, k, v = (self._in_heads(part) for part in parts)
        y = attention(q, k, v, mask=mask, is_causal=is_causal)
        return self.out_proj(reshape(swapaxes(y, -3, -2), x.shape))

    def _projected(self, x: Array, begin: int, count: int) -> Array:
        part = {0: (begin, count, 1)}
        y = matmul(x, matrix_transpose(slice_axes(self.in_proj_weight, part)))
        return y if self.in_proj_bias is None else y + slice_axes(self.in_proj_bias, part)

    def _in_heads(self, x: Array) -> Array:
        """(..., heads, length, features of a head)"""
        size = self.in_proj_weight.shape[1] // self.heads
        return swapaxes(reshape(x, (*x.shape[:-1], x.shape[-1] // size, size)), -3, -2)
