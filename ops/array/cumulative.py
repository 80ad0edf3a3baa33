"""Running sums, products and extremes along an axis, and differences."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, DTypeError

from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.graph import Graph
from ..core.index import Indices, along
from ..core.monoid import MONOIDS, identity
from ..core.parameters import AXIS, DTYPE, one_of
from ..core.parameters import unfit as _unfit
from ..core.registry import Params, Place, Scratch, Specs, op, stream_cost
from ..core.spec import DType, DTypeLike, Shape, Spec, int64, is_inexact
from ..core.trace import graph_of
from ..core.user_line import misfit
from ..flow.repeat_scan import scan
from .casts import astype
from .comparisons import equal, not_equal
from .concatenation import concat
from .elementwise import where
from .picked import Picked
from .reduction import check_dtype, sum_dtype
from .shape import accumulator, axis_of, broadcast_to, moveaxis, reshape, zero_of
from .slicing import flip, slice_axes

__all__ = ["cumulative_max", "cumulative_min", "cumulative_prod", "cumulative_sum", "diff"]


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
    """Combine what the block before ended with with the first elements, so that products overflow
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
    """Combine what is there with all before it. CuPy does so for sums and products; of extremes each
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
    """Go through a file in blocks along the axis. Sums of floats would be rounded otherwise than in
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


def _passes(ins: Specs, outs: Specs, p: Params) -> float:
    """A long line is read twice if there are few: for totals of its parts, too."""
    n = ins[0].shape[p["axis"]]
    return 1.5 if n > 4096 and ins[0].size < 2048 * n else 1.0


def _running(
    name: str, monoid: str, grad: Callable[..., Sequence[Array | None]]
) -> Callable[..., Array]:
    ufunc = MONOIDS[monoid].ufunc

    def kernel(xp: Any, out: Any, x: Any, *, axis: int, dtype: DType) -> None:
        getattr(xp, ufunc).accumulate(x, axis=axis, dtype=dtype, out=out)

    def infer(x: Spec, *, axis: int, dtype: DType) -> Spec:
        check_dtype(name, x, dtype)
        return Spec(x.shape, dtype)

    op(
        name,
        infer=infer,
        takes={"axis": AXIS, "dtype": DTYPE},
        indices=running,
        running=monoid,
        kernel=kernel,
        grad=grad,
        algorithms=_block_by_block(monoid),
        cost=stream_cost(1),
        passes=_passes,
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
                got = f"shape {x.shape} and no axis"
                raise misfit(ArgumentError, name, got=got, needed="an axis", do="pass axis=")
            axis = 0
            x = x if x.ndim else reshape(x, (1,))
        d, kind = axis_of(axis, x.ndim, name), sum_dtype(x.spec, dtype)
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
    too."""
    n = x.shape[axis]
    if n == 0:
        return (x,)
    before = slice_axes(cumulative_prod(x, axis=axis, include_initial=True), {axis: (0, n, 1)})
    follow = concat(
        [slice_axes(x, {axis: (1, n - 1, 1)}), zero_of(slice_axes(x, {axis: (0, 1, 1)}))], axis=axis
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
        running=monoid,
        kernel=kernel,
        grad=grad,
        algorithms=_block_by_block(monoid),
        cost=stream_cost(1),
        passes=_passes,
    )

    def function(x: Operandish, axis: int | None) -> Array:
        x = as_array(x)
        if isinstance(x, Picked) and axis in (None, 0, -1):
            return x.running(lambda row: function(row, 0), identity(monoid, x.dtype))
        if axis is None and x.ndim > 1:
            got = f"shape {x.shape} and no axis"
            raise misfit(ArgumentError, name, got=got, needed="an axis", do="pass axis=")
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
