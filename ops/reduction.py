"""Reductions: `i j -> i`, j combined with a monoid.

The primitives drop the axes that they reduce; `keepdims` puts them back as a view. What `where` leaves
out is replaced by what changes nothing. Sums, means and
products of float16 and bfloat16 are float32 until all is added up. The gradient of min and max is
shared equally among the elements that attain it."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from . import in_blocks
from .arithmetic import add, conj, maximum, minimum, multiply, real, sqrt
from .casts import as_dtype, astype
from .comparisons import equal, isfinite, not_equal
from .control import scan
from .core.array import Array, Axis, Operandish, apply, apply_all, as_array, export
from .core.graph import Graph
from .core.index import LETTERS, Indices, along
from .core.monoid import MONOIDS, highest, identity, lowest
from .core.parameters import AXES, AXIS, DTYPE, one_of, whole
from .core.parameters import unfit as _unfit
from .core.registry import Params, Place, Reduce, Scratch, Specs, op, stream_cost
from .core.spec import (
    DType,
    DTypeLike,
    Shape,
    Spec,
    bool_,
    float64,
    int64,
    is_inexact,
    real_of,
    uint64,
)
from .core.trace import graph_of
from .core.user_line import misfit
from .elementwise import Out, broadcast, floating, put_out, where
from .picked import Picked, takes_picks
from .shape import (
    accumulator,
    add_up,
    axes_of,
    axis_of,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    reshape,
    slice_axes,
    stop_gradient,
    zero_of,
)
from .transcendental import exp, log

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "cumulative_max",
    "cumulative_min",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "logsumexp",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
]


SHORT_ROWS = 64  # elements; sums over rows of more, and over other axes, are done in turn


def read_cost(flops_each: float) -> Callable[[Specs, Specs, Params], tuple[float, float]]:
    """Work in proportion to what is read."""

    def cost(ins: Specs, outs: Specs, params: Params) -> tuple[float, float]:
        return flops_each * ins[0].size, float(ins[0].nbytes + builtins.sum(s.nbytes for s in outs))

    return cost


def reduced(monoid: str) -> Callable[[Specs, Specs, Params], Indices]:
    """`... -> .`, the given axes combined with a monoid; each output of the shape that is left
    carries it.
    """

    def indices(ins: Specs, outs: Specs, p: Params) -> Indices:
        labels = tuple(LETTERS[: ins[0].ndim])
        left = tuple(labels[d] for d in range(ins[0].ndim) if d not in p["axes"])
        return Indices(
            (labels,),
            tuple(left if s.ndim else () for s in outs),
            tuple((labels[a], monoid) for a in p["axes"]),
        )

    return indices


def _left(x: Spec, axes: tuple[int, ...]) -> Shape:
    return tuple(n for d, n in enumerate(x.shape) if d not in axes)


def _real_or_complex(name: str, x: Spec) -> None:
    """Means of whole numbers and halves are made of wider ones."""
    if not is_inexact(x.dtype) or accumulator(x.dtype) != x.dtype:
        raise _unfit(name, (x,), "floating numbers of 32 bits or more", DTypeError)


def _adds_up(name: str) -> Callable[..., Spec]:
    """Sums and products in a dtype that takes what there is."""

    def infer(x: Spec, *, axes: tuple[int, ...], dtype: DType) -> Spec:
        _taken(name, x, dtype)
        return Spec(_left(x, axes), dtype)

    return infer


@functools.lru_cache(1024)
def _takes(source: DType, target: DType) -> bool:
    return accumulator(target) == target and np.can_cast(source, target, "same_kind")


def _taken(name: str, x: Spec, dtype: DType) -> None:
    if not _takes(x.dtype, dtype):
        raise misfit(
            DTypeError,
            name,
            got=f"{x.bare} in {dtype.name}",
            needed="a dtype of 32 bits or more that holds such numbers",
            do="convert with x.astype(...)",
        )


def restore(y: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return expand_dims(y, axis=axes) if keepdims and axes else y


def spread(g: Array, x: Array, axes: tuple[int, ...]) -> Array:
    """A result's value at each of the elements that it was made of."""
    return broadcast_to(expand_dims(g, axis=axes), x.shape)


# -- which elements count ------------------------------------------------------------------
def _mask(x: Array, which: Operandish, name: str) -> Array:
    """`where=` as an Array of bools that says it for each element."""
    mask = as_array(which)
    if mask.dtype != bool_:
        raise misfit(DTypeError, f"{name}(where=)", got=mask.dtype.name, needed="bools")
    if broadcast(name, mask.shape, x.shape) != x.shape:
        raise misfit(
            ShapeError,
            f"{name}(where=)",
            got=f"a mask of shape {mask.shape}",
            needed=f"one that broadcasts to {x.shape}",
        )
    return mask


def _only(x: Array, which: Operandish | None, monoid: str) -> Array:
    """The elements that count, and what changes nothing in the place of others."""
    if which is None or (x.dtype.kind == "c" and monoid in ("min", "max")):
        return x  # the latter is refused elsewhere
    neutral = identity(monoid, x.dtype)
    return where(_mask(x, which, monoid), x, astype(neutral, x.dtype))


def _begun(
    y: Array, initial: Operandish | None, combine: Callable[[Array, Array], Array], name: str
) -> Array:
    """Combined with what it was to begin with."""
    if initial is None:
        return y
    first = as_array(initial)
    if first.shape:
        raise misfit(
            ShapeError, f"{name}(initial=)", got=f"shape {first.shape}", needed="one number"
        )
    return combine(y, astype(first, y.dtype))


# -- sum, mean, product --------------------------------------------------------------------
_WIDE = 1024  # elements of the rows that many shorter ones are folded into


def _add(xp: Any, x: Any, axes: tuple[int, ...], dtype: DType, out: Any) -> None:
    """The sum over axes. Of many short rows, as of a (1000000, 16) over axis 0, groups are added as
    if they were one long row: that is some six times as fast."""
    inner = math.prod(x.shape[len(axes) :])
    rows, fold = (x.size // inner, _WIDE // inner) if inner > 1 else (0, 0)
    leading = axes == tuple(range(len(axes))) and x.dtype == dtype and x.flags.c_contiguous
    if fold < 2 or rows < 8 * fold or not leading:
        xp.add.reduce(x, axis=axes, dtype=dtype, out=out)
        return
    whole = rows - rows % fold
    short, total = x.reshape(rows, inner), out.reshape(inner)
    long = xp.add.reduce(short[:whole].reshape(-1, fold * inner), axis=0)
    xp.add.reduce(long.reshape(fold, inner), axis=0, out=total)
    if whole < rows:
        xp.add(total, xp.add.reduce(short[whole:], axis=0), total)


def _sum_kernel(xp: Any, out: Any, x: Any, *, axes: tuple[int, ...], dtype: DType) -> None:
    _add(xp, x, axes, dtype, out)


op(
    "sum",
    infer=_adds_up("sum"),
    takes={"axes": AXES, "dtype": DTYPE},
    indices=reduced("sum"),
    reduce=Reduce(),
    kernel=_sum_kernel,
    grad=lambda g, y, x, *, axes, dtype: (spread(g, x, axes),),
    cost=read_cost(1),
    in_blocks=in_blocks.total,
    adds=((0,),),
)


def _sum_dtype(x: Spec, dtype: Any) -> DType:
    if dtype is not None:
        return as_dtype(dtype)
    if x.dtype.kind in "bi":
        return int64
    return uint64 if x.dtype.kind == "u" else x.dtype


@export
@takes_picks()
def sum(
    x: Operandish,
    /,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Out = None,
    keepdims: bool = False,
    *,
    initial: Operandish | None = None,
    where: Operandish | None = None,
) -> Array:
    """The sum over axes, all of them for None, of the elements `where` a mask is True, and `initial`.

    >>> ost.sum([[1, 2], [3, 4]], axis=0)
    Array([4, 6], dtype=int64)
    """
    x = as_array(x)
    axes, kind = axes_of(axis, x.ndim, "sum"), _sum_dtype(x.spec, dtype)
    y = _only(x, where, "sum")
    for some in _in_turn(x.shape, axes):
        y = apply("sum", y, axes=some, dtype=accumulator(kind))
    return put_out(
        restore(_begun(astype(y, kind), initial, add, "sum"), axes, keepdims), out, "sum"
    )


def _in_turn(shape: Shape, axes: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    """First the last axes, if they make long rows and others are not beside them: rows are summed in the order
    of memory."""
    first = len(shape)
    while first - 1 in axes:
        first -= 1
    rows = tuple(range(first, len(shape)))
    others = tuple(d for d in axes if d < first)
    return (rows, others) if others and math.prod(shape[first:]) > SHORT_ROWS else (axes,)


def _mean_kernel(xp: Any, out: Any, x: Any, *, axes: tuple[int, ...], count: int) -> None:
    _add(xp, x, axes, x.dtype, out)
    xp.divide(out, count, out)


def _mean_rule(x: Spec, *, axes: tuple[int, ...], count: int) -> Spec:
    _real_or_complex("mean", x)
    if count != math.prod(x.shape[a] for a in axes):
        raise _unfit("mean", (x,), f"{count} elements along axes {axes}")
    return Spec(_left(x, axes), x.dtype)


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


def _floating(x: Array, dtype: DTypeLike | None = None, name: str = "") -> Array:
    """What can be averaged: in the dtype that is said, or as it is."""
    if dtype is None:
        return floating(x)
    kind = as_dtype(dtype)
    if not is_inexact(kind):
        raise misfit(DTypeError, name, got=f"dtype={kind.name}", needed="a floating dtype")
    return astype(x, kind)


def _count(x: Array, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[a] for a in axes)


def _number(x: Array, which: Operandish, axes: tuple[int, ...], name: str) -> Array:
    """How many elements count."""
    mask = broadcast_to(_mask(x, which, name), x.shape)
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
    x = _floating(as_array(x), dtype, "mean")
    axes = axes_of(axis, x.ndim, "mean")
    wide, count = accumulator(x.dtype), _count(x, axes)
    if where is not None:
        total = apply("sum", _only(x, where, "sum"), axes=axes, dtype=wide)
        y = astype(total / _number(x, where, axes, "mean"), x.dtype)
    elif wide == x.dtype:
        y = apply("mean", x, axes=axes, count=count)
    else:
        y = astype(apply("sum", x, axes=axes, dtype=wide) / float(count), x.dtype)
    return put_out(restore(y, axes, keepdims), out, "mean")


def _prod_kernel(xp: Any, out: Any, x: Any, *, axes: tuple[int, ...], dtype: DType) -> None:
    xp.multiply.reduce(x, axis=axes, dtype=dtype, out=out)


def _prod_grad(
    g: Array, y: Array, x: Array, *, axes: tuple[int, ...], dtype: DType
) -> Sequence[Array | None]:
    """g times the product of all others, which exists where an element is 0 too."""
    last = [d for d in range(x.ndim) if d not in axes]
    rows = _fold(x, last, axes)
    left = cumulative_prod(rows, axis=1, include_initial=True)[:, :-1]
    right = flip(cumulative_prod(flip(rows, axis=1), axis=1, include_initial=True), axis=1)[:, 1:]
    others = reshape(left * right, [x.shape[d] for d in (*last, *axes)])
    back = permute_dims(others, np.argsort((*last, *axes)).tolist())
    return (spread(g, x, axes) * back,)


def _fold(x: Array, keep: Sequence[int], axes: Sequence[int]) -> Array:
    """A matrix: kept axes by reduced axes."""
    rows = math.prod(x.shape[d] for d in keep)
    return reshape(permute_dims(x, (*keep, *axes)), (rows, math.prod(x.shape[a] for a in axes)))


op(
    "prod",
    infer=_adds_up("prod"),
    takes={"axes": AXES, "dtype": DTYPE},
    indices=reduced("prod"),
    reduce=Reduce(),
    kernel=_prod_kernel,
    grad=_prod_grad,
    cost=read_cost(1),
    in_blocks=in_blocks.total,
)


@export
@takes_picks()
def prod(
    x: Operandish,
    /,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Out = None,
    keepdims: bool = False,
    *,
    initial: Operandish | None = None,
    where: Operandish | None = None,
) -> Array:
    """The product over axes, all of them for None, of the elements `where` a mask is True, and
    `initial`.

    >>> ost.prod([1, 2, 3, 4])
    Array(24, dtype=int64)
    """
    x = as_array(x)
    axes, kind = axes_of(axis, x.ndim, "prod"), _sum_dtype(x.spec, dtype)
    y = apply("prod", _only(x, where, "prod"), axes=axes, dtype=accumulator(kind))
    return put_out(
        restore(_begun(astype(y, kind), initial, multiply, "prod"), axes, keepdims), out, "prod"
    )


# -- smallest and largest ------------------------------------------------------------------
def _extreme(name: str) -> None:
    def kernel(xp: Any, out: Any, x: Any, *, axes: tuple[int, ...]) -> None:
        if x.size and name == "min":  # CuPy's takes `out` for a dtype
            out[...] = x.min(axis=axes)
        elif x.size:
            getattr(x, name)(axis=axes, out=out)
        else:  # a worker may have nothing
            out[...] = identity(name, x.dtype)

    def grad(g: Array, y: Array, x: Array, *, axes: tuple[int, ...]) -> Sequence[Array | None]:
        won = astype(equal(x, spread(y, x, axes)), x.dtype)
        return (won * spread(g / add_up(won, axes), x, axes),)

    def infer(x: Spec, *, axes: tuple[int, ...]) -> Spec:
        if x.dtype.kind == "c":
            raise misfit(DTypeError, name, got=x.dtype.name, needed="a dtype with an order")
        if x.size == 0 and math.prod(x.shape[a] for a in axes) == 0 and axes:
            raise misfit(
                ShapeError,
                name,
                got=f"shape {x.shape} along axes {axes}",
                needed="at least one element, as nothing is the "
                + ("smallest" if name == "min" else "largest"),
            )
        return Spec(_left(x, axes), x.dtype)

    op(
        name,
        infer=infer,
        takes={"axes": AXES},
        indices=reduced(name),
        reduce=Reduce(),
        kernel=kernel,
        grad=grad,
        cost=read_cost(1),
    )


_extreme("min")
_extreme("max")


def _extreme_of(
    name: str,
    given: Operandish,
    axis: Axis,
    keepdims: bool,
    initial: Operandish | None,
    which: Operandish | None,
) -> Array:
    x = as_array(given)
    axes = axes_of(axis, x.ndim, name)
    if which is not None and initial is None:
        raise misfit(
            ArgumentError,
            name,
            got="where= and no initial=",
            needed="what nothing has for its " + ("smallest" if name == "min" else "largest"),
            do=f"pass initial=, e.g. {'ost.inf' if name == 'min' else '-ost.inf'}",
        )
    if initial is not None and x.size == 0 and x.dtype.kind != "c":
        y = broadcast_to(astype(identity(name, x.dtype), x.dtype), _left(x.spec, axes))
    else:
        y = apply(name, _only(x, which, name), axes=axes)
    return restore(_begun(y, initial, minimum if name == "min" else maximum, name), axes, keepdims)


@export
@takes_picks(highest)
def min(
    x: Operandish,
    /,
    axis: Axis = None,
    out: Out = None,
    keepdims: bool = False,
    *,
    initial: Operandish | None = None,
    where: Operandish | None = None,
) -> Array:
    """The smallest element along axes, and `initial`; NaN if there is one. With `where`, of the elements
    where that mask is True; as there may be none, this needs `initial`.

    >>> ost.min([[1, 5], [3, 4]], axis=1)
    Array([1, 3], dtype=int64)
    """
    return put_out(_extreme_of("min", x, axis, keepdims, initial, where), out, "min")


@export
@takes_picks(lowest)
def max(
    x: Operandish,
    /,
    axis: Axis = None,
    out: Out = None,
    keepdims: bool = False,
    *,
    initial: Operandish | None = None,
    where: Operandish | None = None,
) -> Array:
    """The largest element along axes, and `initial`; NaN if there is one. With `where`, of the elements
    where that mask is True; as there may be none, this needs `initial`.

    >>> ost.max([[1, 5], [3, 4]], axis=1)
    Array([5, 4], dtype=int64)
    """
    return put_out(_extreme_of("max", x, axis, keepdims, initial, where), out, "max")


def _position(name: str, worst: Callable[[DType], Any]) -> Callable[[Array, int], Array]:
    def infer(x: Spec, *, axes: tuple[int, ...]) -> Specs:
        if x.dtype.kind == "c":
            raise misfit(DTypeError, name, got=x.dtype.name, needed="a dtype with an order")
        if len(axes) != 1 or x.shape[axes[0]] == 0:
            raise misfit(
                ShapeError,
                name,
                got=f"shape {x.shape} along axes {axes}",
                needed="one axis, and at least one element along it",
            )
        return Spec(_left(x, axes), x.dtype), Spec(_left(x, axes), int64)

    def kernel(xp: Any, out: Sequence[Any], x: Any, *, axes: tuple[int, ...], at: Place) -> None:
        value, position = out
        (axis,) = axes
        if x.shape[axis] == 0:
            if position is not None:
                position[...] = -1
            if value is not None:
                value[...] = worst(x.dtype)
            return
        found = getattr(xp, name)(x, axis=axis, out=position)
        if value is not None:
            index = xp.expand_dims(found, axis)
            xp.copyto(value, xp.take_along_axis(x, index, axis=axis).squeeze(axis))
        if position is not None and at.ins[0][axis][0]:
            xp.add(position, at.ins[0][axis][0], position)

    op(
        f"{name}_pair",
        infer=infer,
        takes={"axes": AXES},
        indices=reduced(name),
        reduce=Reduce(),
        kernel=kernel,
        cost=read_cost(1),
        placed=True,
    )
    return lambda x, axis: apply_all(f"{name}_pair", x, axes=(axis,))[1]


_argmin, _argmax = _position("argmin", highest), _position("argmax", lowest)


def _arg(x: Operandish, axis: int | None, keepdims: bool, name: str) -> Array:
    x = as_array(x)
    find = _argmin if name == "argmin" else _argmax
    if isinstance(x, Picked) and (axis is None or (x.ndim == 1 and axis in (0, -1))):
        worst = highest if name == "argmin" else lowest
        found = x.place(lambda row: find(row, 0), worst(x.dtype))
        return reshape(found, (1,) * x.ndim) if keepdims else found
    if axis is None:
        found = find(reshape(x, (-1,)), 0)
        return reshape(found, (1,) * x.ndim) if keepdims else found
    d = axis_of(axis, x.ndim, name)
    return restore(find(x, d), (d,), keepdims)


@export
def argmin(
    x: Operandish, /, axis: int | None = None, out: Out = None, *, keepdims: bool = False
) -> Array:
    """Where the smallest element is; the first of equal ones.

    >>> ost.argmin([1, 5, 3])
    Array(0, dtype=int64)
    """
    return put_out(_arg(x, axis, keepdims, "argmin"), out, "argmin")


@export
def argmax(
    x: Operandish, /, axis: int | None = None, out: Out = None, *, keepdims: bool = False
) -> Array:
    """Where the largest element is; the first of equal ones.

    >>> ost.argmax([1, 5, 3])
    Array(1, dtype=int64)
    """
    return put_out(_arg(x, axis, keepdims, "argmax"), out, "argmax")


# -- truth ---------------------------------------------------------------------------------
def _truth(name: str) -> None:
    def kernel(xp: Any, out: Any, x: Any, *, axes: tuple[int, ...]) -> None:
        getattr(x, name)(axis=axes, out=out)

    def infer(x: Spec, *, axes: tuple[int, ...]) -> Spec:
        if x.dtype != bool_:
            raise _unfit(name, (x,), "bools", DTypeError)
        return Spec(_left(x, axes), bool_)

    op(
        name,
        infer=infer,
        takes={"axes": AXES},
        indices=reduced(name),
        reduce=Reduce(),
        kernel=kernel,
        cost=read_cost(1),
    )


_truth("any")
_truth("all")


@export
@takes_picks()
def any(
    x: Operandish,
    /,
    axis: Axis = None,
    out: Out = None,
    keepdims: bool = False,
    *,
    where: Operandish | None = None,
) -> Array:
    """Whether some element along axes is true, of those `where` a mask is True.

    >>> ost.any([True, False])
    Array(True, dtype=bool)
    """
    x = as_array(x)
    axes = axes_of(axis, x.ndim, "any")
    x = x if x.dtype == bool_ else not_equal(x, 0)
    return put_out(
        restore(apply("any", _only(x, where, "any"), axes=axes), axes, keepdims), out, "any"
    )


@export
@takes_picks()
def all(
    x: Operandish,
    /,
    axis: Axis = None,
    out: Out = None,
    keepdims: bool = False,
    *,
    where: Operandish | None = None,
) -> Array:
    """Whether all elements along axes are true, of those `where` a mask is True.

    >>> ost.all([True, False])
    Array(False, dtype=bool)
    """
    x = as_array(x)
    axes = axes_of(axis, x.ndim, "all")
    x = x if x.dtype == bool_ else not_equal(x, 0)
    return put_out(
        restore(apply("all", _only(x, where, "all"), axes=axes), axes, keepdims), out, "all"
    )


@export
def count_nonzero(x: Operandish, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """How many elements along axes are not zero.

    >>> ost.count_nonzero([0, 3, 4])
    Array(2, dtype=int64)
    """
    return sum(not_equal(x, 0), axis=axis, keepdims=keepdims)


# -- moments -------------------------------------------------------------------------------
def _moments_rule(x: Spec, *, axes: tuple[int, ...]) -> Specs:
    _real_or_complex("moments", x)
    left = _left(x, axes)
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
    is reduced.
    """
    count, mean, square = out
    deviation, held, own_mean, own_square = scratch
    n = math.prod(x.shape[a] for a in axes)
    mean = held if mean is None else mean
    if count is not None:
        count[...] = n
    if square is None:
        _add(xp, x, axes, x.dtype, mean)
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
    _add(xp, x, axes, x.dtype, mean)
    xp.divide(mean, builtins.max(math.prod(x.shape[a] for a in axes), 1), mean)
    xp.subtract(x, xp.expand_dims(mean, axes), work)
    if x.dtype.kind == "c":
        xp.multiply(work, work.conj(), work)
        work = work.real
    else:
        xp.multiply(work, work, work)
    _add(xp, work, axes, work.dtype, square)


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
    x = _floating(as_array(x), dtype, "var")
    correction = correction if ddof is None else ddof
    axes = axes_of(axis, x.ndim, "var")
    if where is not None:
        return restore(_var_where(x, axes, where, correction), axes, keepdims)
    square = apply_all("moments", astype(x, accumulator(x.dtype)), axes=axes)[2]
    count = float(_count(x, axes) - correction)
    found = square / (count if count > 0 else math.nan)
    return put_out(restore(astype(found, real_of(x.dtype)), axes, keepdims), out, "var")


def _var_where(x: Array, axes: tuple[int, ...], which: Operandish, correction: float) -> Array:
    """The variance of the elements that count."""
    wide = astype(x, accumulator(x.dtype))
    off = _only(wide - mean(wide, axes, keepdims=True, where=which), which, "sum")
    square = apply("sum", real(off * conj(off)), axes=axes, dtype=real_of(wide.dtype))
    left = _number(x, which, axes, "var") - float(correction)
    return astype(square / where(left > 0, left, math.nan), real_of(x.dtype))


def moments_of(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean and variance along axes, which are kept."""
    _, centre, square = apply_all("moments", astype(x, accumulator(x.dtype)), axes=axes)
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


@export
def logsumexp(x: Operandish, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """log(sum(exp(x))), without overflow.

    >>> ost.logsumexp([1000.0, 1000.0])
    Array(1000.6931, dtype=float64)
    """
    x = _floating(as_array(x))
    axes = axes_of(axis, x.ndim, "logsumexp")
    top = stop_gradient(apply("max", x, axes=axes))
    top = where(isfinite(top), top, 0)
    return restore(log(sum(exp(x - expand_dims(top, axis=axes)), axis=axes)) + top, axes, keepdims)


# -- running sums and products -------------------------------------------------------------
def running(ins: Specs, outs: Specs, p: Params) -> Indices:
    """`. j -> . j`: whole along one axis."""
    labels = along((p["axis"],), ins[0])
    return Indices((labels,) * len(ins), (labels,) * len(outs))


def _accumulate_kernel(
    xp: Any,
    out: Any,
    x: Any,
    *,
    axis: int,
    monoid: str,
    dtype: DType,
    at: Place,
    scratch: Sequence[Any],
) -> None:
    """What the block before ended with is combined with the first elements, so that products overflow
    where NumPy's do, and rounding is the same wherever blocks begin."""
    if not out.size:
        return
    before = (slice(None),) * axis
    first, last = (*before, slice(1)), (*before, slice(-1, None))
    (end,), combine = scratch, getattr(xp, MONOIDS[monoid].ufunc)
    if at.outs[0][axis][0] == 0:
        _run_along(xp, combine, out, x, axis, dtype=dtype)
    else:
        xp.copyto(out, x)
        combine(end, out[first], out=out[first])
        _run_along(xp, combine, out, out, axis)
    xp.copyto(end, out[last])


def _run_along(xp: Any, combine: Any, out: Any, x: Any, axis: int, **more: Any) -> None:
    """What is there combined with all before it. CuPy does so for sums and products; of extremes each
    place looks at one before, then twice as far each time."""
    try:
        combine.accumulate(x, axis=axis, out=out, **more)
    except NotImplementedError:
        xp.copyto(out, x)
        before, far = (slice(None),) * axis, 1
        while far < x.shape[axis]:
            later = out[(*before, slice(far, None))]
            combine(later, out[(*before, slice(None, -far))].copy(), out=later)
            far *= 2


def _end_of_block(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], *, axis: int, **_: Any
) -> Sequence[Scratch]:
    (shape,) = outs
    return (Scratch((*shape[:axis], 1, *shape[axis + 1 :]), specs[-1].dtype),)


op(
    "accumulate",  # a running sum, block after block: what is cut goes on from the block before
    infer=lambda x, *, axis, monoid, dtype: Spec(x.shape, dtype),
    takes={"axis": AXIS, "monoid": one_of("sum", "prod", "min", "max"), "dtype": DTYPE},
    made_by="passes",
    kernel=_accumulate_kernel,
    placed=True,
    scratch=_end_of_block,
    carries_state=True,
    cost=stream_cost(1),
)


def _block_by_block(monoid: str) -> Callable[[Specs, Specs, Params], Sequence[Graph]]:
    """Of a file that is read in blocks along the axis. Sums of floats would be rounded otherwise than in
    memory, which `any-workers` may not do."""

    def algorithms(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
        axis, layout = p["axis"], ins[0].layout
        if layout is None or not layout.stored or axis not in layout.splits:
            return ()
        if layout.blocks and is_inexact(outs[0].dtype) and not MONOIDS[monoid].exact:
            return ()
        params = {"axis": axis, "monoid": monoid, "dtype": outs[0].dtype}
        return [graph_of(lambda x: [apply("accumulate", x, **params)], ins)]

    return algorithms


def _running(
    name: str, monoid: str, grad: Callable[..., Sequence[Array | None]]
) -> Callable[..., Array]:
    ufunc = MONOIDS[monoid].ufunc

    def kernel(xp: Any, out: Any, x: Any, *, axis: int, dtype: DType) -> None:
        getattr(xp, ufunc).accumulate(x, axis=axis, dtype=dtype, out=out)

    def infer(x: Spec, *, axis: int, dtype: DType) -> Spec:
        _taken(name, x, dtype)
        return Spec(x.shape, dtype)

    op(
        name,
        infer=infer,
        takes={"axis": AXIS, "dtype": DTYPE},
        indices=running,
        kernel=kernel,
        grad=grad,
        algorithms=_block_by_block(monoid),
        cost=stream_cost(1),
    )

    def function(
        x: Operandish, axis: int | None, dtype: Any, include_initial: bool, first: int
    ) -> Array:
        x = as_array(x)
        if isinstance(x, Picked) and not include_initial and axis in (None, 0, -1):
            return x.running(
                lambda row: function(row, 0, dtype, False, first), identity(monoid, x.dtype)
            )
        if axis is None:
            if x.ndim > 1:
                raise misfit(
                    ArgumentError,
                    name,
                    got=f"shape {x.shape} and no axis",
                    needed="an axis",
                    do="pass axis=",
                )
            axis = 0
            x = x if x.ndim else reshape(x, (1,))
        d, kind = axis_of(axis, x.ndim, name), _sum_dtype(x.spec, dtype)
        y = astype(apply(name, x, axis=d, dtype=accumulator(kind)), kind)
        if include_initial:
            edge = (*x.shape[:d], 1, *x.shape[d + 1 :])
            y = concat([apply("full", shape=edge, value=first, dtype=y.dtype), y], axis=d)
        return y

    return function


def _cumsum_grad(
    g: Array, y: Array, x: Array, *, axis: int, dtype: DType
) -> Sequence[Array | None]:
    return (flip(cumulative_sum(flip(g, axis=axis), axis=axis), axis=axis),)


def _cumprod_grad(
    g: Array, y: Array, x: Array, *, axis: int, dtype: DType
) -> Sequence[Array | None]:
    """dx_j = (product before j) * s_j with s_j = g_j + x_{j+1} s_{j+1}: right where an element is 0
    too.
    """
    n = x.shape[axis]
    if n == 0:
        return (x,)
    before = slice_axes(cumulative_prod(x, axis=axis, include_initial=True), {axis: (0, n, 1)})
    follow = concat(
        [slice_axes(x, {axis: (1, n - 1, 1)}), zero_of(slice_axes(x, {axis: (0, 1, 1)}))],
        axis=axis,
    )

    def step(s: Array, gx: tuple[Array, Array]) -> tuple[Array, Array]:
        s = gx[0] + gx[1] * s
        return s, s

    rows = (moveaxis(g, axis, 0), moveaxis(follow, axis, 0))
    _, found = scan(step, zero_of(rows[0][0]), rows, reverse=True)
    return (before * moveaxis(found, 0, axis),)


def _running_extreme(name: str, monoid: str) -> Callable[[Operandish, int | None], Array]:
    def kernel(xp: Any, out: Any, x: Any, *, axis: int) -> None:
        _run_along(xp, getattr(xp, MONOIDS[monoid].ufunc), out, x, axis)

    def infer(x: Spec, *, axis: int) -> Spec:
        if x.dtype.kind == "c":
            raise _unfit(name, (x,), "a dtype with an order", DTypeError)
        return Spec(x.shape, x.dtype)

    def grad(g: Array, y: Array, x: Array, *, axis: int) -> Sequence[Array | None]:
        """All that it is the extreme of goes to the first element that is."""
        n = x.shape[axis]
        if n == 0:
            return (x,)
        rest = flip(cumulative_sum(flip(g, axis=axis), axis=axis), axis=axis)
        before, after = ({axis: (k, n - 1, 1)} for k in (0, 1))
        fresh = not_equal(slice_axes(y, after), slice_axes(y, before))
        first = slice_axes(equal(y, y), {axis: (0, 1, 1)})
        fresh = concat([equal(first, first), fresh], axis=axis)
        numbers = apply("iota", shape=x.shape, axis=axis, dtype=int64)
        next_one = flip(
            cumulative_min(flip(where(fresh, numbers, n), axis=axis), axis=axis), axis=axis
        )
        edge = {axis: (0, 1, 1)}
        end = broadcast_to(as_array(n), slice_axes(numbers, edge).shape)
        next_one = concat([slice_axes(next_one, after), end], axis=axis)
        later = concat([rest, zero_of(slice_axes(rest, edge))], axis=axis)
        taken = apply("take_along_axis", later, next_one, axis=axis)
        return (where(fresh, rest - taken, 0),)

    op(
        name,
        infer=infer,
        takes={"axis": AXIS},
        indices=running,
        kernel=kernel,
        grad=grad,
        algorithms=_block_by_block(monoid),
        cost=stream_cost(1),
    )

    def function(x: Operandish, axis: int | None) -> Array:
        x = as_array(x)
        if isinstance(x, Picked) and axis in (None, 0, -1):
            return x.running(lambda row: function(row, 0), identity(monoid, x.dtype))
        if axis is None and x.ndim > 1:
            raise misfit(
                ArgumentError,
                name,
                got=f"shape {x.shape} and no axis",
                needed="an axis",
                do="pass axis=",
            )
        x = x if x.ndim else reshape(x, (1,))
        return apply(name, x, axis=axis_of(axis or 0, x.ndim, name))

    return function


_cummax = _running_extreme("cumulative_max", "max")
_cummin = _running_extreme("cumulative_min", "min")
_cumsum = _running("cumulative_sum", "sum", _cumsum_grad)
_cumprod = _running("cumulative_prod", "prod", _cumprod_grad)


@export
def cumulative_sum(
    x: Operandish,
    /,
    axis: int | None = None,
    *,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Array:
    """Running sums along an axis.

    >>> ost.cumulative_sum([1, 2, 3])
    Array([1, 3, 6], dtype=int64)
    """
    return _cumsum(x, axis, dtype, include_initial, 0)


@export
def cumulative_prod(
    x: Operandish,
    /,
    axis: int | None = None,
    *,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Array:
    """Running products along an axis.

    >>> ost.cumulative_prod([1, 2, 3])
    Array([1, 2, 6], dtype=int64)
    """
    return _cumprod(x, axis, dtype, include_initial, 1)


@export
def cumulative_max(x: Operandish, /, axis: int | None = None) -> Array:
    """The largest of all elements so far along an axis; NaN once there was one.

    >>> ost.cumulative_max([1, 3, 2])
    Array([1, 3, 3], dtype=int64)
    """
    return _cummax(x, axis)


@export
def cumulative_min(x: Operandish, /, axis: int | None = None) -> Array:
    """The smallest of all elements so far along an axis; NaN once there was one.

    >>> ost.cumulative_min([2, 3, 1])
    Array([2, 2, 1], dtype=int64)
    """
    return _cummin(x, axis)


@export
def diff(
    x: Operandish, /, n: int = 1, axis: int = -1, *, prepend: Any = None, append: Any = None
) -> Array:
    """Differences of neighbours along an axis, n times.

    >>> ost.diff([1, 4, 9])
    Array([3, 5], dtype=int64)
    """
    x = as_array(x)
    d = axis_of(axis, x.ndim, "diff")
    if n < 0:
        raise misfit(ArgumentError, "diff", got=f"n={n}", needed="0 or more")
    edge = (*x.shape[:d], 1, *x.shape[d + 1 :])
    ends = [
        None if e is None else e if np.ndim(e) else broadcast_to(e, edge) for e in (prepend, append)
    ]
    if ends != [None, None]:
        x = concat([e for e in (ends[0], x, ends[1]) if e is not None], axis=d)
    for _ in range(n):
        m = builtins.max(x.shape[d], 1)
        later, sooner = slice_axes(x, {d: (1, m - 1, 1)}), slice_axes(x, {d: (0, m - 1, 1)})
        x = later != sooner if x.dtype.kind == "b" else later - sooner
    return x
