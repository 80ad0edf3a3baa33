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

from ..core.apply import apply, apply_all, as_array
from ..core.array import Array
from ..core.array_methods import Axis, Operandish, export, functions
from ..core.index import LETTERS, Indices
from ..core.monoid import highest, identity, lowest
from ..core.parameters import AXES, DTYPE
from ..core.parameters import unfit as _unfit
from ..core.registry import Params, Place, Reduce, Specs, op
from ..core.spec import DType, DTypeLike, Shape, Spec, bool_, int64, is_inexact, uint64
from ..core.user_line import misfit
from ..planned import in_blocks
from .arithmetic import add, maximum, minimum, multiply
from .casts import as_dtype, astype
from .comparisons import equal, isfinite, not_equal
from .elementwise import Out, broadcast, floating, put_out, where
from .picked import Picked, takes_picks
from .shape import (
    accumulator,
    add_up,
    axes_of,
    axis_of,
    broadcast_to,
    expand_dims,
    permute_dims,
    reshape,
    stop_gradient,
)
from .slicing import flip
from .transcendental import exp, log

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "logsumexp",
    "max",
    "min",
    "prod",
    "sum",
]


SHORT_ROWS = 64  # elements; sums over rows of more, and over other axes, are done in turn


def read_cost(flops_each: float) -> Callable[[Specs, Specs, Params], tuple[float, float]]:
    """Work in proportion to what is read."""

    def cost(ins: Specs, outs: Specs, params: Params) -> tuple[float, float]:
        return flops_each * ins[0].size, float(ins[0].nbytes + builtins.sum(s.nbytes for s in outs))

    return cost


def reduced(monoid: str) -> Callable[[Specs, Specs, Params], Indices]:
    """`... -> .`, the given axes combined with a monoid; each output of the shape that is left
    carries it."""

    def indices(ins: Specs, outs: Specs, p: Params) -> Indices:
        labels = tuple(LETTERS[: ins[0].ndim])
        left = tuple(labels[d] for d in range(ins[0].ndim) if d not in p["axes"])
        return Indices(
            (labels,),
            tuple(left if s.ndim else () for s in outs),
            tuple((labels[a], monoid) for a in p["axes"]),
        )

    return indices


def shape_left(x: Spec, axes: tuple[int, ...]) -> Shape:
    return tuple(n for d, n in enumerate(x.shape) if d not in axes)


def check_kind(name: str, x: Spec) -> None:
    """Means of whole numbers and halves are made of wider ones."""
    if not is_inexact(x.dtype) or accumulator(x.dtype) != x.dtype:
        raise _unfit(name, (x,), "floating numbers of 32 bits or more", DTypeError)


def _adds_up(name: str) -> Callable[..., Spec]:
    """Sums and products in a dtype that takes what there is."""

    def infer(x: Spec, *, axes: tuple[int, ...], dtype: DType) -> Spec:
        check_dtype(name, x, dtype)
        return Spec(shape_left(x, axes), dtype)

    return infer


@functools.lru_cache(1024)
def _takes(source: DType, target: DType) -> bool:
    return accumulator(target) == target and np.can_cast(source, target, "same_kind")


def check_dtype(name: str, x: Spec, dtype: DType) -> None:
    if not _takes(x.dtype, dtype):
        got = f"{x.bare} in {dtype.name}"
        needed = "a dtype of 32 bits or more that holds such numbers"
        raise misfit(DTypeError, name, got=got, needed=needed, do="convert with x.astype(...)")


def restore(y: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return expand_dims(y, axis=axes) if keepdims and axes else y


def spread(g: Array, x: Array, axes: tuple[int, ...]) -> Array:
    """A result's value at each of the elements that it was made of."""
    return broadcast_to(expand_dims(g, axis=axes), x.shape)


# -- which elements count ------------------------------------------------------------------
def mask_of(x: Array, which: Operandish, name: str) -> Array:
    """`where=` as an Array of bools that says it for each element."""
    mask = as_array(which)
    if mask.dtype != bool_:
        raise misfit(DTypeError, f"{name}(where=)", got=mask.dtype.name, needed="bools")
    if broadcast(name, mask.shape, x.shape) != x.shape:
        got, needed = f"a mask of shape {mask.shape}", f"one that broadcasts to {x.shape}"
        raise misfit(ShapeError, f"{name}(where=)", got=got, needed=needed)
    return mask


def only_where(x: Array, which: Operandish | None, monoid: str) -> Array:
    """The elements that count, and what changes nothing in the place of others."""
    if which is None or (x.dtype.kind == "c" and monoid in ("min", "max")):
        return x  # the latter is refused elsewhere
    neutral = identity(monoid, x.dtype)
    return where(mask_of(x, which, monoid), x, astype(neutral, x.dtype))


def _begun(
    y: Array, initial: Operandish | None, combine: Callable[[Array, Array], Array], name: str
) -> Array:
    """Combined with what it was to begin with."""
    if initial is None:
        return y
    first = as_array(initial)
    if first.shape:
        got = f"shape {first.shape}"
        raise misfit(ShapeError, f"{name}(initial=)", got=got, needed="one number")
    return combine(y, astype(first, y.dtype))


# -- sum and product --------------------------------------------------------------------------
_WIDE = 1024  # elements of the rows that many shorter ones are folded into


def add_along(xp: Any, x: Any, axes: tuple[int, ...], dtype: DType, out: Any) -> None:
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


op(
    "sum",
    infer=_adds_up("sum"),
    takes={"axes": AXES, "dtype": DTYPE},
    indices=reduced("sum"),
    reduce=Reduce(),
    kernel=lambda xp, out, x, *, axes, dtype: add_along(xp, x, axes, dtype, out),
    grad=lambda g, y, x, *, axes, dtype: (spread(g, x, axes),),
    cost=read_cost(1),
    in_blocks=in_blocks.total,
    adds=((0,),),
)


def sum_dtype(x: Spec, dtype: Any) -> DType:
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
    axes, kind = axes_of(axis, x.ndim, "sum"), sum_dtype(x.spec, dtype)
    y = only_where(x, where, "sum")
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


def as_floats(x: Array, dtype: DTypeLike | None = None, name: str = "") -> Array:
    """Convert to what can be averaged: the dtype that is said, or as it is."""
    if dtype is None:
        return floating(x)
    kind = as_dtype(dtype)
    if not is_inexact(kind):
        raise misfit(DTypeError, name, got=f"dtype={kind.name}", needed="a floating dtype")
    return astype(x, kind)


def _prod_grad(
    g: Array, y: Array, x: Array, *, axes: tuple[int, ...], dtype: DType
) -> Sequence[Array | None]:
    """g times the product of all others, which exists where an element is 0 too."""
    last = [d for d in range(x.ndim) if d not in axes]
    rows = _fold(x, last, axes)
    left = functions["cumulative_prod"](rows, axis=1, include_initial=True)[:, :-1]
    right = flip(
        functions["cumulative_prod"](flip(rows, axis=1), axis=1, include_initial=True), axis=1
    )[:, 1:]
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
    kernel=lambda xp, out, x, *, axes, dtype: xp.multiply.reduce(
        x, axis=axes, dtype=dtype, out=out
    ),
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
    axes, kind = axes_of(axis, x.ndim, "prod"), sum_dtype(x.spec, dtype)
    y = apply("prod", only_where(x, where, "prod"), axes=axes, dtype=accumulator(kind))
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
            needed = "at least one element, as nothing is the " + (
                "smallest" if name == "min" else "largest"
            )
            raise misfit(ShapeError, name, got=f"shape {x.shape} along axes {axes}", needed=needed)
        return Spec(shape_left(x, axes), x.dtype)

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
        needed = "what nothing has for its " + ("smallest" if name == "min" else "largest")
        do = f"pass initial=, e.g. {'ost.inf' if name == 'min' else '-ost.inf'}"
        raise misfit(ArgumentError, name, got="where= and no initial=", needed=needed, do=do)
    if initial is not None and x.size == 0 and x.dtype.kind != "c":
        y = broadcast_to(astype(identity(name, x.dtype), x.dtype), shape_left(x.spec, axes))
    else:
        y = apply(name, only_where(x, which, name), axes=axes)
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
            needed = "one axis, and at least one element along it"
            raise misfit(ShapeError, name, got=f"shape {x.shape} along axes {axes}", needed=needed)
        return Spec(shape_left(x, axes), x.dtype), Spec(shape_left(x, axes), int64)

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
        return Spec(shape_left(x, axes), bool_)

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
        restore(apply("any", only_where(x, where, "any"), axes=axes), axes, keepdims), out, "any"
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
        restore(apply("all", only_where(x, where, "all"), axes=axes), axes, keepdims), out, "all"
    )


@export
def count_nonzero(x: Operandish, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """How many elements along axes are not zero.

    >>> ost.count_nonzero([0, 3, 4])
    Array(2, dtype=int64)
    """
    return sum(not_equal(x, 0), axis=axis, keepdims=keepdims)


@export
def logsumexp(x: Operandish, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """log(sum(exp(x))), without overflow.

    >>> ost.logsumexp([1000.0, 1000.0])
    Array(1000.6931, dtype=float64)
    """
    x = as_floats(as_array(x))
    axes = axes_of(axis, x.ndim, "logsumexp")
    top = stop_gradient(apply("max", x, axes=axes))
    top = where(isfinite(top), top, 0)
    return restore(log(sum(exp(x - expand_dims(top, axis=axes)), axis=axes)) + top, axes, keepdims)
