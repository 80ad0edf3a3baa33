"""Means, variances and standard deviations, and the monoid that combines them."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from ..core.apply import apply, apply_all, as_array
from ..core.array import Array
from ..core.array_methods import Axis, Operandish, export
from ..core.parameters import AXES, whole
from ..core.parameters import unfit as _unfit
from ..core.registry import Reduce, Scratch, Specs, op
from ..core.spec import DTypeLike, Shape, Spec, float64, int64, real_of
from ..planned import in_blocks
from .arithmetic import conj, real, sqrt
from .casts import astype
from .elementwise import Out, put_out, where
from .picked import takes_picks
from .reduction import (
    add_along,
    as_floats,
    check_kind,
    mask_of,
    only_where,
    read_cost,
    reduced,
    restore,
    shape_left,
    spread,
)
from .shape import accumulator, axes_of, broadcast_to, widened

__all__ = ["mean", "std", "var"]


def _mean_kernel(xp: Any, out: Any, x: Any, *, axes: tuple[int, ...], count: int) -> None:
    add_along(xp, x, axes, x.dtype, out)
    xp.divide(out, count, out)


def _mean_rule(x: Spec, *, axes: tuple[int, ...], count: int) -> Spec:
    check_kind("mean", x)
    if count != math.prod(x.shape[a] for a in axes):
        raise _unfit("mean", (x,), f"{count} elements along axes {axes}")
    return Spec(shape_left(x, axes), x.dtype)


op(
    "mean",
    infer=_mean_rule,
    takes={"axes": AXES, "count": whole(0)},
    indices=reduced("sum"),
    reduce=Reduce(divisor="count"),
    kernel=_mean_kernel,
    grad=lambda g, y, x, *, axes, count: (spread(g / count, x, axes),),
    cost=read_cost(1),
    in_blocks=in_blocks.mean,
)


def _count(x: Array, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[a] for a in axes)


def _number(x: Array, which: Operandish, axes: tuple[int, ...], name: str) -> Array:
    """How many elements count."""
    mask = broadcast_to(mask_of(x, which, name), x.shape)
    return apply("sum", mask, axes=axes, dtype=int64)


@export
@takes_picks()
def mean(
    x: Operandish,
    /,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Out = None,
    keepdims: bool = False,
    *,
    where: Operandish | None = None,
) -> Array:
    """The mean over axes, all of them for None, of the elements `where` a mask is True; NaN of none.
    Summed in `dtype`, if one is said.

    >>> ost.mean([[1.0, 2.0], [3.0, 4.0]], axis=1)
    Array([1.5, 3.5], dtype=float64)
    """
    x = as_floats(as_array(x), dtype, "mean")
    axes = axes_of(axis, x.ndim, "mean")
    wide, count = accumulator(x.dtype), _count(x, axes)
    if where is not None:
        total = apply("sum", only_where(x, where, "sum"), axes=axes, dtype=wide)
        y = astype(total / _number(x, where, axes, "mean"), x.dtype)
    elif wide == x.dtype:
        y = apply("mean", x, axes=axes, count=count)
    else:
        y = astype(apply("sum", x, axes=axes, dtype=wide) / float(count), x.dtype)
    return put_out(restore(y, axes, keepdims), out, "mean")


def _moments_rule(x: Spec, *, axes: tuple[int, ...]) -> Specs:
    check_kind("moments", x)
    left = shape_left(x, axes)
    return Spec((), float64), Spec(left, x.dtype), Spec(left, real_of(x.dtype))


_BLOCK = 65536  # elements that are read twice while they are in cache


def _moments_scratch(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], *, axes: tuple[int, ...]
) -> Sequence[Scratch]:
    """Deviations of a block of rows; a mean if nobody wants it; a block's own mean and square."""
    (rows, *rest), dtype = ins[0] or (1,), specs[0].dtype
    row = builtins.max(math.prod(rest), 1)
    step = builtins.max(rows, 1)
    if row <= _BLOCK // 16:
        step = builtins.min(step, _BLOCK // row)
    own = outs[1] if step < rows and 0 in axes else (0,)
    return (
        Scratch((step, *rest), dtype),
        Scratch(outs[1], dtype),
        Scratch(own, dtype),
        Scratch(own, real_of(dtype)),
    )


def _moments_kernel(
    xp: Any, out: Sequence[Any], x: Any, *, axes: tuple[int, ...], scratch: Sequence[Any]
) -> None:
    """Block after block of the first axis. Blocks are put together by Chan's formula if that axis
    is reduced."""
    count, mean, square = out
    deviation, held, own_mean, own_square = scratch
    n = math.prod(x.shape[a] for a in axes)
    mean = held if mean is None else mean
    if count is not None:
        count[...] = n
    if square is None:
        add_along(xp, x, axes, x.dtype, mean)
        xp.divide(mean, builtins.max(n, 1), mean)
        return
    step = deviation.shape[0]
    if x.ndim == 0 or x.shape[0] <= step:
        work = deviation[: x.shape[0]] if x.ndim else deviation.reshape(())
        _block_moments(xp, x, axes, mean, square, work)
        return
    done = 0
    for lo in range(0, x.shape[0], step):
        rows = x[lo : lo + step]
        work = deviation[: rows.shape[0]]
        if 0 not in axes:
            hi = lo + rows.shape[0]
            _block_moments(xp, rows, axes, mean[lo:hi], square[lo:hi], work)
            continue
        here = rows.shape[0] * (n // x.shape[0])
        if lo == 0:
            _block_moments(xp, rows, axes, mean, square, work)
        else:
            _block_moments(xp, rows, axes, own_mean, own_square, work)
            weight = here / (done + here)
            off = own_mean - mean
            square += own_square + (off * off.conj()).real * (done * weight)
            mean += xp.where(xp.isfinite(mean), off * weight, own_mean)
        done += here


def _block_moments(
    xp: Any, x: Any, axes: tuple[int, ...], mean: Any, square: Any, work: Any
) -> None:
    add_along(xp, x, axes, x.dtype, mean)
    xp.divide(mean, builtins.max(math.prod(x.shape[a] for a in axes), 1), mean)
    xp.subtract(x, xp.expand_dims(mean, axes), work)
    if x.dtype.kind == "c":
        xp.multiply(work, work.conj(), work)
        work = work.real
    else:
        xp.multiply(work, work, work)
    add_along(xp, work, axes, work.dtype, square)


def _moments_grad(
    g: Sequence[Array | None], y: Sequence[Array], x: Array, *, axes: tuple[int, ...]
) -> Sequence[Array | None]:
    _, by_mean, by_square = g
    total: Array | None = None
    if by_mean is not None:
        total = spread(by_mean / _count(x, axes), x, axes)
    if by_square is not None:
        part = spread(2 * by_square, x, axes) * conj(x - spread(y[1], x, axes))
        total = part if total is None else total + part
    return (total,)


op(
    "moments",
    infer=_moments_rule,
    takes={"axes": AXES},
    indices=reduced("moments"),
    reduce=Reduce(),
    kernel=_moments_kernel,
    scratch=_moments_scratch,
    grad=_moments_grad,
    cost=read_cost(4),
    in_blocks=in_blocks.moments,
)


def _count_kernel(xp: Any, out: Any, x: Any, *, axes: tuple[int, ...]) -> None:
    out[...] = math.prod(x.shape[a] for a in axes)


op(  # of the elements that moments are made of, where these are made in kernels
    "count",
    infer=lambda x, *, axes: Spec((), float64),
    takes={"axes": AXES},
    made_by="machine",
    indices=reduced("sum"),
    kernel=_count_kernel,
    cost=lambda ins, outs, params: (0.0, 8.0),
)


@export
@takes_picks()
def var(
    x: Operandish,
    /,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Out = None,
    ddof: float | None = None,
    keepdims: bool = False,
    *,
    correction: float = 0.0,
    where: Operandish | None = None,
) -> Array:
    """The variance over axes, of the elements `where` a mask is True; the sum of squares is divided by
    their number less the correction, which NumPy calls `ddof`. NaN where nothing is left of that number.

    >>> ost.var([1.0, 2.0, 3.0])
    Array(0.6667, dtype=float64)
    """
    x = as_floats(as_array(x), dtype, "var")
    correction = correction if ddof is None else ddof
    axes = axes_of(axis, x.ndim, "var")
    if where is not None:
        return restore(_var_where(x, axes, where, correction), axes, keepdims)
    square = apply_all("moments", widened(x), axes=axes)[2]
    count = float(_count(x, axes) - correction)
    found = square / (count if count > 0 else math.nan)
    return put_out(restore(astype(found, real_of(x.dtype)), axes, keepdims), out, "var")


def _var_where(x: Array, axes: tuple[int, ...], which: Operandish, correction: float) -> Array:
    """The variance of the elements that count."""
    wide = widened(x)
    off = only_where(wide - mean(wide, axes, keepdims=True, where=which), which, "sum")
    square = apply("sum", real(off * conj(off)), axes=axes, dtype=real_of(wide.dtype))
    left = _number(x, which, axes, "var") - float(correction)
    return astype(square / where(left > 0, left, math.nan), real_of(x.dtype))


def moments_of(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean and variance along axes, which are kept."""
    _, centre, square = apply_all("moments", widened(x), axes=axes)
    variance = square / float(_count(x, axes))
    return (
        restore(astype(centre, x.dtype), axes, True),
        restore(astype(variance, real_of(x.dtype)), axes, True),
    )


@export
@takes_picks()
def std(
    x: Operandish,
    /,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Out = None,
    ddof: float | None = None,
    keepdims: bool = False,
    *,
    correction: float = 0.0,
    where: Operandish | None = None,
) -> Array:
    """The standard deviation over axes: the root of `var`.

    >>> ost.std([1.0, 2.0, 3.0])
    Array(0.8165, dtype=float64)
    """
    correction = correction if ddof is None else ddof
    found = var(x, axis, dtype=dtype, correction=correction, keepdims=keepdims, where=where)
    return put_out(sqrt(found), out, "std")
