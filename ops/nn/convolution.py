"""Convolutions: products of images with filters, in windows of 1 to 3 axes.

    n [y:r] [x:s] g c, r s c g o -> n y x g o        c, r, s summed; g: groups of channels

Both gradients, and what is called a transposed convolution, are the same operation with other windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from ostinato.ops.array.arithmetic import convert
from ostinato.ops.array.elementwise import broadcast
from ostinato.ops.array.expressions import Expression
from ostinato.ops.array.shape import accumulator, expand_dims, moveaxis, reshape, swapaxes
from ostinato.ops.autodiff.gradient import fitted
from ostinato.ops.core.index import Indices, taps, windowed
from ostinato.ops.core.parameters import DTYPE, PLACES, STRIDES, unfit
from ostinato.ops.core.registry import Cost, Params, Place, Product, Specs, op
from ostinato.ops.core.spec import DType, Spec, promote
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..core.apply import apply, unify
from ..core.array import Array
from ..core.array_methods import Operandish
from .spatial import Pair, backwards, extent, for_each, order_of, padding_of, windows_of

__all__ = ["conv", "conv_transpose"]

_WINDOWS = {1: "[x:s]", 2: "[y:r] [x:s]", 3: "[z:q] [y:r] [x:s]"}
_RULES = {
    k: windowed(f"... n {read} g c, ... {over} c g o -> ... n {made} g o", sums=f"c {over}")
    for k, read in _WINDOWS.items()
    for made, over in [[" ".join(w[i] for w in read.split()) for i in (1, 3)]]
}


def _rule(
    x: Spec, w: Spec, *, strides: Pair, dilation: Pair, offsets: Pair, every: Pair, extents: Pair
) -> Spec:
    k = len(extents)
    alike = {k} == {len(p) for p in (strides, dilation, offsets, every)} and k in _RULES
    if not alike or min(x.ndim, w.ndim) < k + 3 or x.dtype != w.dtype or not all(strides):
        raise unfit("conv", (x, w), "images and filters of one dtype, and a window for each axis")
    if (
        x.shape[-1] != w.shape[-3]
        or x.shape[-2] != w.shape[-2]
        or not all(dilation)
        or min(every) < 1
    ):
        raise unfit("conv", (x, w), "as many channels and groups of both")
    front = broadcast("conv", x.shape[: -k - 3], w.shape[: -k - 3])
    return Spec((*front, x.shape[-k - 3], *extents, *w.shape[-2:]), x.dtype)


def _indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    return _RULES[len(p["extents"])](ins, outs, p)


def _kernel(
    xp: Any, out: Any, x: Any, w: Any, *, extents: Pair, at: Place, in_order: bool, **steps: Pair
) -> None:
    """The sum over elements of windows of products of matrices; `in_order` of products of numbers, so that
    the bits do not depend on the parts."""
    k, wide = len(extents), accumulator(out.dtype)
    ranges, sizes = at.ins[1][-k - 3 : -3], at.in_shapes[1][-k - 3 : -3]
    windows = windows_of(sizes, **steps)
    outs, ins = (box[-k - 2 : -2] for box in (at.outs[0], at.ins[0]))
    made = out if wide == out.dtype else xp.zeros(out.shape, wide)
    made[...] = 0
    if not in_order and math.prod(hi - lo for lo, hi in ranges) > math.prod(out.shape[-k - 2 : -2]):
        _by_results(xp, made, x, w, at, steps, wide)
        ranges = ((0, 0),) * k
    for rs in itertools.product(*(range(*own) for own in ranges)):
        ours, theirs = taps(windows, outs, ins, rs)
        part = made[(..., *ours, slice(None), slice(None))]
        if not part.size:
            continue
        seen = x[(..., *theirs, slice(None), slice(None))].astype(wide, copy=False)
        at_w = [r - lo for r, (lo, _) in zip(rs, ranges, strict=True)]
        factor = w[(..., *at_w, *[slice(None)] * 3)].astype(wide, copy=False)  # c g o
        if in_order or x.shape[-1] == 1:
            for c in range(x.shape[-1]):
                row = factor[..., c, :, :]
                row = row.reshape(*row.shape[:-2], *(1,) * (k + 1), *row.shape[-2:])
                xp.add(part, seen[..., c : c + 1] * row, out=part)
            continue
        rows = xp.moveaxis(seen, -2, -k - 3)  # g n y x c
        inner = rows.shape[-k - 2 : -1]
        rows = xp.ascontiguousarray(rows).reshape(*rows.shape[: -k - 2], math.prod(inner), -1)
        found = xp.matmul(rows, xp.swapaxes(factor, -3, -2))
        turned = xp.moveaxis(part, -2, -k - 3)
        xp.add(turned, found.reshape(*found.shape[:-2], *inner, -1), out=turned)
    if made is not out:
        xp.copyto(out, made, casting="unsafe")


def _by_results(
    xp: Any, made: Any, x: Any, w: Any, at: Place, steps: dict[str, Pair], wide: Any
) -> None:
    """A product of matrices for each result of a window that is larger than all of these, as slopes of
    filters are."""
    k = len(steps["every"])
    turned = {**steps, "strides": steps["dilation"], "dilation": steps["strides"]}
    ranges, ins, outs = at.ins[1][-k - 3 : -3], at.ins[0][-k - 2 : -2], at.outs[0][-k - 2 : -2]
    windows = windows_of(at.out_shapes[0][-k - 2 : -2], **turned)
    for ys in itertools.product(*(range(*own) for own in outs)):
        ours, theirs = taps(windows, ranges, ins, ys)
        seen = x[(..., *theirs, slice(None), slice(None))].astype(wide, copy=False)
        factor = w[(..., *ours, *[slice(None)] * 3)].astype(wide, copy=False)
        rows, columns = xp.moveaxis(seen, -2, -k - 3), xp.moveaxis(factor, -2, -k - 3)  # g first
        count = math.prod(rows.shape[-k - 1 :])
        rows = rows.reshape(*rows.shape[: -k - 1], count)
        columns = columns.reshape(*columns.shape[: -k - 2], count, columns.shape[-1])
        at_y = [y - lo for y, (lo, _) in zip(ys, outs, strict=True)]
        made[(..., *at_y, slice(None), slice(None))] = xp.swapaxes(xp.matmul(rows, columns), -3, -2)


def _by_products(xp: Any, out: Any, x: Any, w: Any, **p: Any) -> None:
    _kernel(xp, out, x, w, in_order=False, **p)


def _by_elements(xp: Any, out: Any, x: Any, w: Any, **p: Any) -> None:
    _kernel(xp, out, x, w, in_order=True, **p)


def _grad(g: Array, y: Array, x: Array, w: Array, **p: Any) -> Sequence[Array]:
    """Slopes by filters with their channels swapped, and images by slopes with samples in the place of
    channels."""
    k = len(p["extents"])
    space = x.shape[-k - 2 : -2], w.shape[-k - 3 : -3]
    slopes = apply("conv", g, swapaxes(w, -3, -1), **backwards(p, space[0]))
    # position = (offset + stride*y + dilation*r) / every, with y and r in each other's place
    p |= {"strides": p["dilation"], "dilation": p["strides"], "extents": space[1]}
    turned = swapaxes(x, -k - 3, -1)  # c y x g n
    beside = _moved(g, k)  # y x n g o
    back = apply("conv", turned, beside, **p)
    return fitted(slopes, x.spec), fitted(_moved(back, k), w.spec)


def _moved(g: Array, k: int) -> Array:
    """Samples behind space: `n y x g o` as `y x n g o`."""
    return moveaxis(g, -k - 3, -3)


def _cost(ins: Specs, outs: Specs, p: Params) -> Cost:
    k = len(p["extents"])
    each = math.prod(ins[1].shape[-k - 3 : -2]) / math.prod(p["every"])
    return 2.0 * outs[0].size * each, float(sum(s.nbytes for s in (*ins, *outs)))


def _in_blocks(node: Any, x: Expression, w: Expression) -> Sequence[Expression]:
    return [x.call("ordered_conv", w, **node.kw)]


_FACTS: dict[str, Any] = {
    "takes": {
        **dict.fromkeys(("strides", "dilation", "offsets"), STRIDES),
        **dict.fromkeys(("every", "extents"), PLACES),
    },
    "aligns": True,
    "indices": _indices,
    "cost": _cost,
    "dense": True,
    "placed": True,
}
op(
    "conv",
    infer=_rule,
    kernel=_by_products,
    grad=_grad,
    product=Product(wide="wide_conv", keeps=True),
    in_blocks=_in_blocks,
    **_FACTS,
)
# The same under `any-workers`, where sums are of one element after the other.
op("ordered_conv", infer=_rule, kernel=_by_elements, made_by="passes", **_FACTS)


def _wide_rule(
    x: Spec,
    w: Spec,
    *,
    dtype: DType,
    strides: Pair,
    dilation: Pair,
    offsets: Pair,
    every: Pair,
    extents: Pair,
) -> Spec:
    p = {"dilation": dilation, "offsets": offsets, "every": every, "extents": extents}
    return Spec(_rule(x, w, strides=strides, **p).shape, dtype)


def _wide_kernel(xp: Any, out: Any, x: Any, w: Any, *, dtype: DType, **p: Any) -> None:
    _by_products(xp, out, x.astype(dtype), w.astype(dtype), **p)


# What the planner makes of one of casts, where a library multiplies what is narrow.
op(
    "wide_conv",
    infer=_wide_rule,
    kernel=_wide_kernel,
    made_by="machine",
    product=Product(keeps=True),
    **{**_FACTS, "takes": {**_FACTS["takes"], "dtype": DTYPE}},
)


# -- what users call -------------------------------------------------------------------------
def _given(
    x: Operandish, w: Operandish, groups: int, layout: str | None, name: str, turned: bool
) -> tuple[Array, Array, Any]:
    """Images with channels last, filters `space, in, out`, and the order that the images had."""
    x, w = unify(x, w)
    dtype = promote(x.dtype, w.dtype)
    x, w = convert(x, dtype), convert(w, dtype)
    order = order_of(layout, x, name)
    if dtype.kind in "bc":
        raise misfit(DTypeError, name, got=dtype.name, needed="real numbers")
    if w.ndim != x.ndim:
        got = f"filters of {w.ndim} axes for images of {x.ndim}"
        needed = "as many: two of channels, and those of space"
        raise misfit(ShapeError, name, got=got, needed=needed)
    if not order.channels_last:  # OIHW as HWIO
        w = moveaxis(w, (1, 0), (-2, -1))
    x = order.inside(x)
    count = for_each(groups, 1, name, "groups")[0]
    wanted, filters = (w.shape[-1], w.shape[-1]) if turned else (w.shape[-2] * count, w.shape[-1])
    if x.shape[-1] != wanted or filters % count or 0 in w.shape[:-2]:
        got = f"{x.shape[-1]} channels, and filters of {w.shape[-2]} to {w.shape[-1]} channels"
        needed = f"{wanted} channels, and as many filters for each of {count} groups"
        do = "give filters as layout says: OIHW beside channels first, HWIO beside channels last"
        raise misfit(ShapeError, name, got=got, needed=needed, do=do)
    x = reshape(x, (*x.shape[:-1], count, x.shape[-1] // count))
    if count == 1:  # any order of memory will do
        return x, expand_dims(w, -2), order
    return x, reshape(w, (*w.shape[:-1], count, w.shape[-1] // count)), order


def _joined(y: Array, bias: Operandish | None, order: Any, name: str) -> Array:
    """Groups side by side, and a number added to each channel."""
    y = reshape(y, (*y.shape[:-2], y.shape[-2] * y.shape[-1]))
    if bias is not None:
        y, b = unify(y, bias)
        if b.shape != y.shape[-1:]:
            got = f"bias {b.spec.bare}"
            raise misfit(ShapeError, name, got=got, needed=f"shape {y.shape[-1:]}")
        y = y + b
    return order.outside(y)


def conv(
    x: Operandish,
    w: Operandish,
    bias: Operandish | None = None,
    /,
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str | None = None,
) -> Array:
    """Sums of products of filters with windows of images in 1 to 3 axes of space, as networks have them.

    `layout` says the order of axes, such as "NCHW" (the default) or "NHWC"; filters are OIHW where
    channels come first (PyTorch), HWIO where they are last (JAX, Keras). `padding`: zeros around, as one
    number, one or a pair for each axis, "valid" (none) or "same" (as many outputs as inputs, divided by the
    stride). In groups, as many as channels for a depthwise one, filters see the channels of their group.

    >>> ost.nn.conv(ost.ones((1, 1, 4)), ost.ones((1, 1, 3)), padding=1)
    Array([[[2., 3., 3., 2.]]], dtype=float64)
    """
    x, w, order = _given(x, w, groups, layout, "conv", turned=False)
    space, sizes = x.shape[1:-2], w.shape[:-3]
    k = len(space)
    strides = for_each(stride, k, "conv", "stride")
    steps = for_each(dilation, k, "conv", "dilation")
    reaches = tuple([d * (m - 1) + 1 for d, m in zip(steps, sizes, strict=True)])
    pads = padding_of(padding, space, strides, reaches, "conv")
    p = {
        "strides": strides,
        "dilation": steps,
        "offsets": tuple([-before for before, _ in pads]),
        "every": (1,) * k,
        "extents": tuple(map(extent, space, pads, reaches, strides)),
    }
    return _joined(apply("conv", x, w, **p), bias, order, "conv")


def conv_transpose(
    x: Operandish,
    w: Operandish,
    bias: Operandish | None = None,
    /,
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str | None = None,
) -> Array:
    """The slopes of a convolution's images, of its results `x`, by its filters `w`: what enlarges by the
    stride, and takes padding away. `output_padding`: more places behind. "same": as many outputs as
    inputs times the stride.

    >>> ost.nn.conv_transpose(ost.ones((1, 1, 2)), ost.ones((1, 1, 3)), stride=2)
    Array([[[1., 1., 2., 1., 1.]]], dtype=float64)
    """
    name = "conv_transpose"
    x, w, order = _given(x, w, groups, layout, name, turned=True)
    space, sizes = x.shape[1:-2], w.shape[:-3]
    k = len(space)
    strides = for_each(stride, k, name, "stride")
    steps = for_each(dilation, k, name, "dilation")
    more = for_each(output_padding, k, name, "output_padding", 0)
    reaches = tuple([d * (m - 1) + 1 for d, m in zip(steps, sizes, strict=True)])
    large = tuple([n * s for n, s in zip(space, strides, strict=True)])
    pads = padding_of(padding, large, strides, reaches, name)
    same = isinstance(padding, str) and padding.lower() == "same"
    whole = [(n - 1) * s + r for n, s, r in zip(space, strides, reaches, strict=True)]
    extents = [n - sum(pad) + m for n, pad, m in zip(whole, pads, more, strict=True)]
    if min(extents) < 0 or any(
        m >= max(s, d) for m, s, d in zip(more, strides, steps, strict=True)
    ):
        got = f"padding={padding!r:.40} and output_padding={output_padding!r:.40}"
        needed = "no more than there is, and an output_padding below the stride or dilation"
        raise misfit(ArgumentError, name, got=got, needed=needed)
    p = {
        "strides": strides,
        "dilation": steps,
        "offsets": tuple([-before for before, _ in pads]),
        "every": (1,) * k,
    }
    y = apply("conv", x, swapaxes(w, -3, -1), **backwards(p, large if same else tuple(extents)))
    return _joined(y, bias, order, name)
