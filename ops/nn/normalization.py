"""Norms: values with mean 0 and variance 1 of a batch, a sample, a group of channels or a place, and
values divided by what is around them. Statistics of halves are in float32; results have the operand's
dtype."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.array.arithmetic import rsqrt, sqrt, square
from ostinato.ops.array.casts import astype
from ostinato.ops.array.concatenation import concat
from ostinato.ops.array.elementwise import floating
from ostinato.ops.array.moments import mean as mean_of
from ostinato.ops.array.moments import moments_of
from ostinato.ops.array.padding import pad
from ostinato.ops.array.shape import axes_of, broadcast_to, reshape, widened
from ostinato.ops.array.slicing import slice_axes
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, ShapeError

from ..core.array import Array
from ..core.array_methods import Operandish
from .spatial import Pair, for_each, order_of

__all__ = [
    "batch_norm",
    "batch_norm_train",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
    "rms_norm",
]


def _axes(x: Array, layout: str | None, name: str, least: int = 2) -> tuple[int, int, Pair]:
    """The axis of samples, that of channels, and those of space, of which there may be none."""
    if x.ndim == 2 >= least and layout in (None, "NC"):
        return 0, 1, ()
    samples, *space, channels = order_of(layout, x, name).axes
    return samples, channels, tuple(sorted(space))


def _along(v: Operandish, x: Array, d: int, name: str, what: str) -> Array:
    """A number for each channel, beside the others."""
    v = floating(v)
    if v.shape != (x.shape[d],):
        needed = f"shape ({x.shape[d]},): one number for each channel"
        raise misfit(ShapeError, name, got=f"{what} {v.spec.bare}", needed=needed)
    return reshape(v, tuple([n if k == d else 1 for k, n in enumerate(x.shape)]))


def _scaled(
    y: Array, x: Array, d: int, scale: Operandish | None, bias: Operandish | None, name: str
) -> Array:
    """Scaled and shifted channel by channel, in the dtype of `x`."""
    if scale is not None:
        y = y * _along(scale, x, d, name, "scale")
    if bias is not None:
        y = y + _along(bias, x, d, name, "bias")
    return astype(y, x.dtype)


def batch_norm(
    x: Operandish,
    /,
    mean: Operandish,
    var: Operandish,
    scale: Operandish | None = None,
    bias: Operandish | None = None,
    *,
    eps: float = 1e-5,
    layout: str | None = None,
) -> Array:
    """Channels with given means and variances as those with mean 0 and variance 1, then scaled and shifted:
    what a trained network does. `layout` as in `conv`; arrays of samples and channels have no space.

    >>> ost.nn.batch_norm([[1.0, 2.0], [3.0, 6.0]], [2.0, 4.0], [1.0, 4.0], eps=0.0)
    Array([[-1., -1.],
           [ 1.,  1.]], dtype=float64)
    """
    x = floating(x)
    d = _axes(x, layout, "batch_norm")[1]
    centre = _along(mean, x, d, "batch_norm", "mean")
    factor = rsqrt(widened(_along(var, x, d, "batch_norm", "var")) + eps)
    if scale is not None:
        factor = factor * _along(scale, x, d, "batch_norm", "scale")
    return _scaled((widened(x) - centre) * factor, x, d, None, bias, "batch_norm")


def batch_norm_train(
    x: Operandish,
    /,
    scale: Operandish | None = None,
    bias: Operandish | None = None,
    *,
    eps: float = 1e-5,
    layout: str | None = None,
    samples: int | None = None,
) -> tuple[Array, Array, Array]:
    """Each channel with mean 0 and variance 1 over the whole batch, however workers share it, then scaled
    and shifted; with the means and variances (of which a network keeps running ones for `batch_norm`).
    samples: so many at a time are a group with a mean and variance of its own, and what is left over is
    one, too; what is given back are the groups' means, weighted by samples.

    >>> y, mean, var = ost.nn.batch_norm_train([[1.0, 2.0], [3.0, 6.0]], eps=0.0)
    >>> mean, var
    (Array([2., 4.], dtype=float64), Array([1., 4.], dtype=float64))
    """
    name = "batch_norm_train"
    x = floating(x)
    first, d, space = _axes(x, layout, name)
    wide = widened(x)
    if samples is None:
        mean, var = moments_of(wide, tuple(sorted((first, *space))))
    else:
        mean, var = _in_groups(wide, first, space, for_each(samples, 1, name, "samples")[0])
    factor = rsqrt(var + eps)
    if scale is not None:
        factor = factor * _along(scale, x, d, name, "scale")
    y = _scaled((wide - mean) * factor, x, d, None, bias, name)
    if samples is not None:
        mean, var = (mean_of(v, first) for v in (mean, var))
    return y, reshape(mean, (x.shape[d],)), reshape(var, (x.shape[d],))


def _in_groups(x: Array, first: int, space: Pair, samples: int) -> tuple[Array, Array]:
    """Means and variances of each sample's group. Only those of samples, which are small, are taken apart,
    so that images are gone through wherever workers have them."""
    centres, spreads = moments_of(x, space) if space else (x, None)
    count, shape, found = x.shape[first], centres.shape, []
    whole = count - count % samples
    for begin, size, each in ((0, whole, samples), (whole, count - whole, count - whole)):
        if size or (not count and each):
            cut = {first: (begin, size, 1)}
            part = slice_axes(centres, cut), None if spreads is None else slice_axes(spreads, cut)
            parts = (*shape[:first], size // each, each, *shape[first + 1 :])
            found.append(_together(*part, parts, first + 1))
    means, variances = zip(*found, strict=True)
    return concat(means, axis=first), concat(variances, axis=first)


def group_norm(
    x: Operandish,
    /,
    groups: int,
    scale: Operandish | None = None,
    bias: Operandish | None = None,
    *,
    eps: float = 1e-5,
    layout: str | None = None,
) -> Array:
    """Mean 0 and variance 1 over all places and so many groups of channels, sample by sample, then scaled
    and shifted channel by channel. `layout` as in `batch_norm`.

    >>> ost.nn.group_norm([[1.0, 3.0, 2.0, 6.0]], 2, eps=0.0)
    Array([[-1.,  1., -1.,  1.]], dtype=float64)
    """
    x = floating(x)
    _, d, space = _axes(x, layout, "group_norm")
    (count,) = for_each(groups, 1, "group_norm", "groups")
    each, odd = divmod(x.shape[d], count)
    if odd:
        got = f"groups={count} of {x.shape[d]} channels"
        raise misfit(ArgumentError, "group_norm", got=got, needed="groups of as many channels each")
    wide = widened(x)
    centre, variance = moments_of(wide, space) if space else (wide, None)
    parts = (*centre.shape[:d], count, each, *centre.shape[d + 1 :])
    centre, variance = _together(centre, variance, parts, d + 1)
    factor = rsqrt(variance + eps)
    if scale is not None:
        factor = factor * _along(scale, x, d, "group_norm", "scale")
    return _scaled((wide - centre) * factor, x, d, None, bias, "group_norm")


def _together(mean: Array, var: Array | None, parts: Pair, axis: int) -> tuple[Array, Array]:
    """Combine means and variances of as many elements each along an axis of their parts, and put them beside
    each: so images are gone through channel by channel, which those of a group need not lie beside."""
    means = reshape(mean, parts)
    centre = mean_of(means, axis=axis, keepdims=True)
    apart = square(means - centre)
    spread = mean_of(
        apart if var is None else apart + reshape(var, parts), axis=axis, keepdims=True
    )
    centre, spread = (reshape(broadcast_to(v, parts), mean.shape) for v in (centre, spread))
    return centre, spread


def instance_norm(
    x: Operandish,
    /,
    scale: Operandish | None = None,
    bias: Operandish | None = None,
    *,
    eps: float = 1e-5,
    layout: str | None = None,
) -> Array:
    """Mean 0 and variance 1 of each channel of each sample, then scaled and shifted channel by channel.

    >>> ost.nn.instance_norm([[[1.0, 3.0], [2.0, 6.0]]], eps=0.0)
    Array([[[-1.,  1.],
            [-1.,  1.]]], dtype=float64)
    """
    x = floating(x)
    _, d, space = _axes(x, layout, "instance_norm", least=3)
    return _scaled(_centred(widened(x), space, eps), x, d, scale, bias, "instance_norm")


def _centred(x: Array, axes: Sequence[int], eps: float) -> Array:
    centre, variance = moments_of(x, tuple(sorted(axes)))
    return (x - centre) * rsqrt(variance + eps)


def layer_norm(
    x: Operandish,
    scale: Operandish | None = None,
    bias: Operandish | None = None,
    /,
    *,
    axis: int | Sequence[int] = -1,
    epsilon: float = 1e-5,
) -> Array:
    """Mean 0 and variance 1 along axes, from one pass over the data, then scaled and shifted.

    >>> ost.nn.layer_norm([1.0, 2.0, 3.0])
    Array([-1.2247,  0.    ,  1.2247], dtype=float64)
    """
    x = floating(x)
    y = _centred(widened(x), axes_of(axis, x.ndim, "layer_norm"), epsilon)
    y = y if scale is None else y * scale
    return astype(y if bias is None else y + bias, x.dtype)


def rms_norm(
    x: Operandish,
    /,
    scale: Operandish | None = None,
    *,
    axis: int | Sequence[int] = -1,
    eps: float = 1e-6,
) -> Array:
    """Divided by the root of the mean square along axes, then scaled.

    >>> ost.nn.rms_norm([3.0, 4.0, 0.0, 0.0])
    Array([1.2, 1.6, 0. , 0. ], dtype=float64)
    """
    x = floating(x)
    wide = widened(x)
    square = mean_of(wide * wide, axes_of(axis, x.ndim, "rms_norm"), keepdims=True)
    y = wide * rsqrt(square + eps)
    return astype(y if scale is None else y * scale, x.dtype)


def local_response_norm(
    x: Operandish,
    /,
    size: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    *,
    divide: bool = True,
    layout: str | None = None,
) -> Array:
    """x / (k + alpha/size * s)**beta, with the sum s of the squares of `size` channels around (of an even
    number, one more behind). AlexNet's paper does not divide alpha and has k=2; Caffe, PyTorch and ONNX do.

    >>> ost.nn.local_response_norm([[[1.0], [2.0], [3.0]]], 3, 3.0, 1.0)
    Array([[[0.1667],
            [0.1333],
            [0.2143]]], dtype=float64)
    """
    name = "local_response_norm"
    x = floating(x)
    _, d, _ = _axes(x, layout, name)
    (n,) = for_each(size, 1, name, "size")
    wide = widened(x)
    around = [(0, 0)] * x.ndim
    around[d] = ((n - 1) // 2, n // 2)
    squares, channels = pad(wide * wide, around), x.shape[d]
    near = slice_axes(squares, {d: (0, channels, 1)})
    for r in range(1, n):
        near = near + slice_axes(squares, {d: (r, channels, 1)})
    base = near * (alpha / n if divide else alpha) + k
    if beta == 0.75:  # roots are faster than powers
        root = rsqrt(base)
        return astype(wide * (root * sqrt(root)), x.dtype)
    return astype(wide * base**-beta, x.dtype)
