"""Pools: the largest of windows of images, or their mean.

... [y:r] [x:s] c -> ... y x c        r, s combined by max or sum"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ostinato.ops.array.arithmetic import minimum
from ostinato.ops.array.casts import astype
from ostinato.ops.array.creation import iota, ones, ones_like
from ostinato.ops.array.elementwise import floating
from ostinato.ops.array.indexing import take
from ostinato.ops.array.moments import mean
from ostinato.ops.array.reduction import max as largest
from ostinato.ops.array.reduction import sum as total_of
from ostinato.ops.array.shape import accumulator, reshape
from ostinato.ops.core.index import Indices, taps, windowed
from ostinato.ops.core.layout import Box
from ostinato.ops.core.monoid import MONOIDS, identity
from ostinato.ops.core.parameters import PLACES, STRIDES, unfit
from ostinato.ops.core.registry import Cost, Params, Place, Reduce, Specs, op
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from .spatial import Order, Pair, backwards, extent, for_each, order_of, padding_of, windows_of

__all__ = [
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "avg_pool",
    "global_avg_pool",
    "global_max_pool",
    "max_pool",
]

_READ = {1: "[x:s]", 2: "[y:r] [x:s]", 3: "[z:q] [y:r] [x:s]"}
_MADE = {1: "x", 2: "y x", 3: "z y x"}
_OVER = {1: "s", 2: "r s", 3: "q r s"}
_BY = {"sum": "sums", "max": "max"}
_TAKES = {
    **dict.fromkeys(("sizes", "every", "extents"), PLACES),
    **dict.fromkeys(("strides", "dilation", "offsets"), STRIDES),
}


def _rule(
    x: Spec,
    *,
    sizes: Pair,
    strides: Pair,
    dilation: Pair,
    offsets: Pair,
    every: Pair,
    extents: Pair,
) -> Spec:
    k = len(extents)
    alike = {k} == {len(p) for p in (sizes, strides, dilation, offsets, every)} and k in _READ
    if not alike or x.ndim < k + 1:
        raise unfit("a pool", (x,), "axes of space before that of channels, and a window for each")
    if not all((*strides, *dilation)) or min(*sizes, *every) < 1:
        raise unfit("a pool", (x,), "windows of one element or more, and steps that are not 0")
    return Spec((*x.shape[: -k - 1], *extents, x.shape[-1]), x.dtype)


def _kernel(
    xp: Any, out: Any, x: Any, *, monoid: str, sizes: Pair, extents: Pair, at: Place, **steps: Pair
) -> None:
    wide = accumulator(out.dtype) if monoid == "sum" else out.dtype
    made = out if wide == out.dtype else xp.zeros(out.shape, wide)
    made[...] = identity(monoid, wide)
    combine = getattr(xp, MONOIDS[monoid].ufunc)
    for ours, theirs in _pairs(sizes, at.outs[0], at.ins[0], steps):
        part = made[ours]
        combine(part, x[theirs].astype(wide, copy=False), out=part)
    if made is not out:
        xp.copyto(out, made, casting="unsafe")


def _pairs(sizes: Pair, outs: Box, ins: Box, steps: Any) -> Iterator[tuple[Any, Any]]:
    """For each element of windows the outputs that have it, and where they do."""
    windows, k = windows_of(sizes, **steps), len(sizes)
    for rs in itertools.product(*map(range, sizes)):
        ours, theirs = taps(windows, outs[-k - 1 : -1], ins[-k - 1 : -1], rs)
        yield (..., *ours, slice(None)), (..., *theirs, slice(None))


def _indices_by(monoid: str) -> Callable[[Specs, Specs, Params], Indices]:
    rules = {
        k: windowed(f"... {_READ[k]} c -> ... {_MADE[k]} c", **{_BY[monoid]: _OVER[k]})
        for k in _READ
    }
    return lambda ins, outs, p: rules[len(p["extents"])](ins, outs, p)


def _cost(ins: Specs, outs: Specs, p: Params) -> Cost:
    each = math.prod(p["sizes"]) / math.prod(p["every"])
    return outs[0].size * each, float(sum([s.nbytes for s in (*ins, *outs)]))


def _sum_grad(g: Array, y: Array, x: Array, **p: Any) -> Sequence[Array]:
    k = len(p["extents"])
    return (apply("sum_pool", g, **backwards(p, x.shape[-k - 1 : -1])),)


def _max_grad(g: Array, y: Array, x: Array, **p: Any) -> Sequence[Array]:
    """To all that are as large as the largest, in equal shares, as of any maximum."""
    k = len(p["extents"])
    share = g / apply("matching_pool", y, x, ones_like(x), **p)
    return (apply("matching_pool", x, y, share, **backwards(p, x.shape[-k - 1 : -1])),)


for _monoid, _slopes in (("sum", _sum_grad), ("max", _max_grad)):
    op(
        f"{_monoid}_pool",
        infer=_rule,
        takes=_TAKES,
        indices=_indices_by(_monoid),
        reduce=Reduce(),
        kernel=partial(_kernel, monoid=_monoid),
        grad=_slopes,
        cost=_cost,
        placed=True,
    )


def _matching_rule(
    a: Spec,
    b: Spec,
    v: Spec,
    *,
    sizes: Pair,
    strides: Pair,
    dilation: Pair,
    offsets: Pair,
    every: Pair,
    extents: Pair,
) -> Spec:
    p = {"strides": strides, "dilation": dilation, "offsets": offsets, "every": every}
    seen = _rule(b, sizes=sizes, extents=extents, **p)
    if b.bare is not v.bare or seen.bare is not a.bare:
        raise unfit(
            "matching_pool", (a, b, v), "as many values as there are, and one for each window"
        )
    return seen


def _matching_kernel(
    xp: Any,
    out: Any,
    a: Any,
    b: Any,
    v: Any,
    *,
    sizes: Pair,
    extents: Pair,
    at: Place,
    **steps: Pair,
) -> None:
    wide = accumulator(out.dtype)
    made = out if wide == out.dtype else xp.zeros(out.shape, wide)
    made[...] = 0
    both = [_pairs(sizes, at.outs[0], box, steps) for box in at.ins[1:]]  # one may have more
    for (ours, theirs), (_, values) in zip(*both, strict=True):
        part = made[ours]
        xp.add(part, xp.where(a[ours] == b[theirs], v[values], 0).astype(wide), out=part)
    if made is not out:
        xp.copyto(out, made, casting="unsafe")


_MATCHING = {
    k: windowed(
        f"... {_MADE[k]} c, ... {_READ[k]} c, ... {_READ[k]} c -> ... {_MADE[k]} c", sums=_OVER[k]
    )
    for k in _READ
}


def _matching_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    twice = {name: value * 2 for name, value in p.items()}  # windows of two operands
    return _MATCHING[len(p["extents"])](ins, outs, twice)


def _matching_grad(
    g: Array, y: Array, a: Array, b: Array, v: Array, **p: Any
) -> Sequence[Array | None]:
    """Gradient of the values alone; what is compared has none."""
    k = len(p["extents"])
    return None, None, apply("matching_pool", b, a, g, **backwards(p, b.shape[-k - 1 : -1]))


# The sum of the values `v` in each window of those elements of `b` that are equal to the window's `a`.
op(
    "matching_pool",
    infer=_matching_rule,
    takes=_TAKES,
    indices=_matching_indices,
    reduce=Reduce("{2} if {0} == {1} else 0"),
    kernel=_matching_kernel,
    grad=_matching_grad,
    cost=_cost,
    placed=True,
)


# -- what users call -------------------------------------------------------------------------
def _asked(
    x: Operandish,
    window: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    layout: str | None,
    name: str,
) -> tuple[Array, Order, dict[str, Pair], list[tuple[int, int]]]:
    """The operand with channels last, its order, the windows and the padding."""
    x = as_array(x)
    order = order_of(layout, x, name)
    k = x.ndim - 2
    x = order.inside(x)
    sizes = for_each(window, k, name, "window")
    strides = sizes if stride is None else for_each(stride, k, name, "stride")
    steps = for_each(dilation, k, name, "dilation")
    space = x.shape[1:-1]
    reaches = tuple([d * (m - 1) + 1 for d, m in zip(steps, sizes, strict=True)])
    pads = padding_of(padding, space, strides, reaches, name)
    found = zip(space, pads, reaches, strides, strict=True)
    extents = tuple([extent(*each, ceil_mode) for each in found])
    if any(max(pair) >= r > 0 for pair, r in zip(pads, reaches, strict=True)):
        needed = "less than a window on each side, so that no window is empty"
        raise misfit(ArgumentError, name, got=f"padding={padding!r:.40}", needed=needed)
    p = {
        "sizes": sizes,
        "strides": strides,
        "dilation": steps,
        "offsets": tuple([-before for before, _ in pads]),
        "every": (1,) * k,
        "extents": extents,
    }
    return x, order, p, pads


def max_pool(
    x: Operandish,
    window: int | Sequence[int],
    /,
    *,
    stride: int | Sequence[int] | None = None,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    layout: str | None = None,
) -> Array:
    """The largest element of each window, channel by channel; windows are beside each other if no stride
    is given. With `ceil_mode` the last one may reach beyond the padding. `padding` and `layout` as in `conv`.

    >>> ost.nn.max_pool([[[1.0, 3.0, 2.0, 5.0, 4.0]]], 2)
    Array([[[3., 5.]]], dtype=float64)
    """
    x, order, p, _ = _asked(x, window, stride, padding, dilation, ceil_mode, layout, "max_pool")
    return order.outside(apply("max_pool", x, **p))


def avg_pool(
    x: Operandish,
    window: int | Sequence[int],
    /,
    *,
    stride: int | Sequence[int] | None = None,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: str | None = None,
) -> Array:
    """The mean of each window, channel by channel, as `max_pool` has them; of the elements that are there if
    zeros around do not count.

    >>> ost.nn.avg_pool([[[1.0, 3.0, 2.0, 4.0]]], 2)
    Array([[[2., 3.]]], dtype=float64)
    """
    x, order, p, pads = _asked(x, window, stride, padding, dilation, ceil_mode, layout, "avg_pool")
    total = apply("sum_pool", floating(x), **p)
    space = x.shape[1:-1]
    around = [sum(pair) if count_include_pad else 0 for pair in pads]
    begins = [0 if count_include_pad else -before for before, _ in pads]
    rows = [p[name] for name in ("strides", "dilation", "sizes", "extents")]
    whole = all(
        begin >= 0 and begin + s * (e - 1) + d * (m - 1) < n + more
        for begin, n, more, s, d, m, e in zip(begins, space, around, *rows, strict=True)
    )
    if whole:
        return order.outside(total / math.prod(p["sizes"]))
    there = ones((1, *(n + m for n, m in zip(space, around, strict=True)), 1), dtype=total.dtype)
    return order.outside(total / apply("sum_pool", there, **{**p, "offsets": tuple(begins)}))


def _over_space(x: Operandish, layout: str | None, name: str, by: Callable[..., Array]) -> Array:
    x = as_array(x)
    return by(x, axis=tuple(sorted(order_of(layout, x, name).axes[1:-1])))


def global_max_pool(x: Operandish, /, *, layout: str | None = None) -> Array:
    """The largest element of each channel, of each sample.

    >>> ost.nn.global_max_pool([[[1.0, 3.0, 2.0]]])
    Array([[3.]], dtype=float64)
    """
    return _over_space(x, layout, "global_max_pool", largest)


def global_avg_pool(x: Operandish, /, *, layout: str | None = None) -> Array:
    """The mean of each channel, of each sample.

    >>> ost.nn.global_avg_pool([[[1.0, 3.0, 2.0]]])
    Array([[2.]], dtype=float64)
    """
    return _over_space(x, layout, "global_avg_pool", mean)


def _adaptive(
    x: Operandish,
    size: int | Sequence[int],
    layout: str | None,
    name: str,
    by: Callable[..., Array],
) -> Array:
    """One axis of space after the other: window `i` of `m` has the places from `i*n // m` to before
    `-(-(i + 1)*n // m)`, of which those of shorter ones come twice or do not count."""
    x = as_array(x)
    axes = order_of(layout, x, name).axes[1:-1]
    for d, m in zip(axes, for_each(size, len(axes), name, "size"), strict=True):
        n = x.shape[d]
        if n % m == 0:
            x = by(reshape(x, (*x.shape[:d], m, n // m, *x.shape[d + 1 :])), axis=d + 1)
            continue
        most = max(-(-(i + 1) * n // m) - i * n // m for i in range(m))
        i, r = iota((m, most), 0), iota((m, most), 1)
        begin, end = i * n // m, -(-(i + 1) * n // m)
        near = take(x, reshape(minimum(begin + r, end - 1), (m * most,)), axis=d)
        near = reshape(near, (*x.shape[:d], m, most, *x.shape[d + 1 :]))
        if by is mean:
            share = reshape(
                astype(begin + r < end, near.dtype) / astype(end - begin, near.dtype),
                (m, most, *(1,) * (x.ndim - d - 1)),
            )
            x = total_of(near * share, axis=d + 1)
        else:
            x = by(near, axis=d + 1)
    return x


def adaptive_max_pool(
    x: Operandish, size: int | Sequence[int], /, *, layout: str | None = None
) -> Array:
    """The largest elements of so many windows, which are as alike as can be.

    >>> ost.nn.adaptive_max_pool([[[1.0, 3.0, 2.0]]], 2)
    Array([[[3., 3.]]], dtype=float64)
    """
    return _adaptive(x, size, layout, "adaptive_max_pool", largest)


def adaptive_avg_pool(
    x: Operandish, size: int | Sequence[int], /, *, layout: str | None = None
) -> Array:
    """The means of so many windows, which are as alike as can be.

    >>> ost.nn.adaptive_avg_pool([[[1.0, 3.0, 2.0]]], 2)
    Array([[[2. , 2.5]]], dtype=float64)
    """
    return _adaptive(floating(x), size, layout, "adaptive_avg_pool", mean)
