"""Attention: what each place of a sequence takes from others, and where places are."""

from __future__ import annotations

import math

from ostinato.ops.array.casts import astype
from ostinato.ops.array.concatenation import concat, stack
from ostinato.ops.array.contraction import matmul
from ostinato.ops.array.creation import iota
from ostinato.ops.array.elementwise import floating, where
from ostinato.ops.array.reduction import sum as total_of
from ostinato.ops.array.shape import accumulator, broadcast_to, matrix_transpose, reshape, widened
from ostinato.ops.array.slicing import slice_axes
from ostinato.ops.array.transcendental import cos, exp, sin
from ostinato.ops.core.spec import bool_
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, ShapeError

from ..core.apply import as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from .composed_layers import shifted

__all__ = ["attention", "rotary"]


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
    sees those that are not behind it, both counted from the first one. Who sees nothing gets 0. Keys that no
    query of a block may see are not read, so what is NaN there need not spoil a result.

    Before the length there may be heads, of which keys and values may have fewer: each then serves as many
    heads beside each other. (JAX has heads behind the length: swap these axes.)

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
    each = _heads_of_each(q, k, v)
    dtype, n, m = q.dtype, q.shape[-2], k.shape[-2]
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    wide, keys = widened(q), widened(k)
    scores = _times(wide, matrix_transpose(keys), each) * factor
    if is_causal:
        scores = where(iota((n, m), 0) >= iota((n, m), 1), scores, -math.inf)
    if mask is not None:
        given = as_array(mask)
        scores = where(given, scores, -math.inf) if given.dtype == bool_ else scores + given
    e = exp(shifted(scores, (scores.ndim - 1,)))
    total = total_of(e, axis=-1, keepdims=True)
    if mask is not None:
        total = where(total == 0, 1, total)
    if e.dtype == dtype:  # as many divisions as results, and slopes need no weights but these
        return _times(e, v, each) / total
    return _times(astype(e / total, dtype), v, each)


def _heads_of_each(q: Array, k: Array, v: Array) -> int:
    """How many heads of queries share one of keys and values."""
    if (
        min(q.ndim, k.ndim, v.ndim) < 3
        or q.shape[-3] == k.shape[-3]
        or 1 in (q.shape[-3], k.shape[-3])
    ):
        return 1
    each, odd = divmod(q.shape[-3], k.shape[-3] or 1)
    if odd or v.shape[-3] != k.shape[-3]:
        raise misfit(
            ShapeError,
            "attention",
            got=f"{q.shape[-3]} heads of queries, {k.shape[-3]} of keys, {v.shape[-3]} of values",
            needed="as many of keys as of values, and for each as many of queries",
        )
    return each


def _times(x: Array, y: Array, each: int) -> Array:
    """Products of heads, of which `each` so many on the left have one on the right: they are its rows."""
    if each == 1:
        return matmul(x, y)
    *front, heads, n, features = x.shape
    made = matmul(reshape(x, (*front, heads // each, each * n, features)), y)
    return reshape(made, (*made.shape[:-3], heads, n, y.shape[-1]))


def rotary(
    x: Operandish,
    positions: Operandish | None = None,
    /,
    *,
    base: float = 10_000.0,
    features: int | None = None,
    interleaved: bool = False,
) -> Array:
    """Pairs of features turned by angles that say where in a sequence they are: of (..., length, features),
    pair k of place p by p / base**(2*k / features). Pairs are of the first and the second half, or neighbours
    if `interleaved`; behind so many `features` all stay as they are. `positions` are those of the
    sequence, or of each of its samples.

    >>> ost.nn.rotary([[1.0, 0.0], [1.0, 0.0]])
    Array([[1.    , 0.    ],
           [0.5403, 0.8415]], dtype=float64)
    """
    x = floating(x)
    count = features if features is not None else x.shape[-1] if x.ndim > 1 else 0
    if x.ndim < 2 or not 0 < count <= x.shape[-1] or count % 2:
        raise misfit(
            ArgumentError,
            "rotary",
            got=f"features={features} of an array of shape {x.shape}",
            needed="(..., length, features), of which an even number turns",
        )
    wide = accumulator(x.dtype)
    places = iota((x.shape[-2],), 0) if positions is None else as_array(positions)
    speeds = exp(astype(iota((count // 2,), 0), wide) * (-2 * math.log(base) / count))
    angles = astype(places, wide)[..., None] * speeds
    return rotated(x, cos(angles), sin(angles), interleaved)


def rotated(x: Array, cosines: Array, sines: Array, interleaved: bool) -> Array:
    """The first features turned, two for each of these angles."""
    half = cosines.shape[-1]
    wide = widened(x)
    front = slice_axes(wide, {x.ndim - 1: (0, 2 * half, 1)})
    begin, step = (1, 2) if interleaved else (half, 1)
    a, b = (slice_axes(front, {x.ndim - 1: (k, half, step)}) for k in (0, begin))
    turned = [a * cosines - b * sines, b * cosines + a * sines]
    turned = [broadcast_to(t, a.shape) for t in turned]
    made = (
        reshape(stack(turned, axis=x.ndim), front.shape) if interleaved else concat(turned, axis=-1)
    )
    if 2 * half < x.shape[-1]:
        made = concat(
            [made, slice_axes(wide, {x.ndim - 1: (2 * half, x.shape[-1] - 2 * half, 1)})], axis=-1
        )
    return astype(made, x.dtype)
