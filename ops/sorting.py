"""Order: `. j -> . j`, whole along the axis that is sorted; by machine code where there is one
(ops/cpu/kernels/sort/order.py).

NumPy is given bfloat16 as float32, since it loses its way among bfloat16's NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from .core import array
from .core.array import Array, Operandish, apply, as_array, export, unify
from .core.index import LETTERS, Indices
from .core.parameters import AXIS, FLAG, one_of, unfit
from .core.parameters import whole as whole_from
from .core.registry import Params, Specs, op
from .core.spec import Spec, bfloat16, bool_, float32, int64, is_inexact, promote
from .core.user_line import misfit
from .elementwise import astype, equal, logical_not, minimum, not_equal, where
from .indexing import take_along_axis
from .reduction import any, cumulative_sum, running
from .shape import axis_of, broadcast_to, concat, expand_dims, reshape, slice_axes, whole_number

__all__ = [
    "argsort",
    "isin",
    "searchsorted",
    "sort",
    "topk",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]


def _sort_cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    return 20.0 * ins[0].size, float(ins[0].nbytes + outs[0].nbytes)


def _ordered(x: Spec, name: str) -> Spec:
    if x.dtype.kind == "c":
        raise misfit(DTypeError, name, got=x.dtype.name, needed="a dtype with an order")
    return x


def _keys(xp: Any, x: Any) -> Any:
    """Whole numbers in the order of the numbers, and back: NaN is the largest of all, and of two zeros the
    negative one comes first, as it does by machine code."""
    whole = x if x.dtype.kind == "i" else x.view(f"i{x.itemsize}")
    return xp.where(whole < 0, whole ^ np.iinfo(whole.dtype).max, whole)


def _sort_kernel(xp: Any, out: Any, x: Any, *, axis: int, descending: bool, stable: bool) -> None:
    real = is_inexact(x.dtype)
    made = _keys(xp, xp.where(x == x, x, x.dtype.type(np.nan))) if real else x
    made = xp.sort(made, axis=axis)
    made = xp.flip(made, axis) if descending else made
    xp.copyto(out, _keys(xp, made).view(x.dtype) if real else made)


def _sort_grad(
    g: Array, y: Array, x: Array, *, axis: int, descending: bool, stable: bool
) -> Sequence[Array | None]:
    order = argsort(x, axis=axis, descending=descending)
    return (take_along_axis(g, argsort(order, axis=axis), axis=axis),)


op(
    "sort",
    infer=lambda x, *, axis, descending, stable: Spec(_ordered(x, "sort").shape, x.dtype),
    takes={"axis": AXIS, "descending": FLAG, "stable": FLAG},
    indices=running,
    kernel=_sort_kernel,
    grad=_sort_grad,
    cost=_sort_cost,
)


@export
def sort(
    x: Operandish, /, axis: int = -1, *, descending: bool = False, stable: bool = True
) -> Array:
    """The elements in order along an axis; NaN counts as the largest."""
    x = as_array(x)
    return apply(
        "sort", x, axis=axis_of(axis, x.ndim, "sort"), descending=descending, stable=stable
    )


def _argsort_rule(x: Spec, *, axis: int, descending: bool, stable: bool, count: int) -> Spec:
    shape = _ordered(x, "argsort").shape
    if count > shape[axis]:
        raise unfit("argsort", (x,), f"{count} elements along axis {axis}")
    return Spec((*shape[:axis], count, *shape[axis + 1 :]), int64)


def _argsort_kernel(
    xp: Any, out: Any, x: Any, *, axis: int, descending: bool, stable: bool, count: int
) -> None:
    kind, n = "stable" if stable else None, x.shape[axis]
    x = x.astype(xp.float32) if x.dtype == bfloat16 else x
    places = xp.argsort(xp.flip(x, axis) if descending else x, axis=axis, kind=kind)
    if descending:
        places = n - 1 - xp.flip(places, axis)
    xp.copyto(out, places[(slice(None),) * axis + (slice(count),)])


op(
    "argsort",  # the first ones
    infer=_argsort_rule,
    takes={"axis": AXIS, "descending": FLAG, "stable": FLAG, "count": whole_from(0)},
    indices=running,
    kernel=_argsort_kernel,
    cost=_sort_cost,
)


def _order(x: Array, axis: int, descending: bool, stable: bool, count: int) -> Array:
    facts = {"descending": descending, "stable": stable, "count": count}
    return apply("argsort", x, axis=axis, **facts)


@export
def argsort(
    x: Operandish, /, axis: int = -1, *, descending: bool = False, stable: bool = True
) -> Array:
    """The places that the elements in order come from."""
    x = as_array(x)
    d = axis_of(axis, x.ndim, "argsort")
    return _order(x, d, descending, stable, x.shape[d])


@export
def topk(x: Operandish, k: int, /, *, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """The k largest (or smallest) elements along an axis, in order, and their places."""
    x = as_array(x)
    d = axis_of(axis, x.ndim, "topk")
    k = whole_number(k, "topk")
    if not 0 <= k <= x.shape[d]:
        raise misfit(
            ShapeError, "topk", got=f"k={k}", needed=f"0 to {x.shape[d]}, as many as the axis has"
        )
    places = _order(x, d, largest, True, k)
    return take_along_axis(x, places, axis=d), places


# -- searching -----------------------------------------------------------------------------
def _search_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = tuple(LETTERS[: ins[1].ndim])
    return Indices(((None,), labels), (labels,))


def _search_kernel(xp: Any, out: Any, x: Any, v: Any, *, side: str) -> None:
    xp.copyto(out, xp.searchsorted(x, v, side=side))


def _search_rule(x: Spec, v: Spec, *, side: str) -> Spec:
    if x.ndim != 1:
        raise misfit(ShapeError, "searchsorted", got=f"shape {x.shape}", needed="one axis, sorted")
    if x.dtype != v.dtype or x.dtype == bfloat16:
        raise unfit("searchsorted", (x, v), "one dtype", DTypeError)
    return Spec(_ordered(v, "searchsorted").shape, int64)


op(
    "searchsorted",
    infer=_search_rule,
    takes={"side": one_of("left", "right")},
    indices=_search_indices,
    kernel=_search_kernel,
    cost=lambda ins, outs, p: (20.0 * ins[1].size, float(ins[1].nbytes + outs[0].nbytes)),
)


@export
def searchsorted(
    x: Operandish, v: Operandish, /, *, side: str = "left", sorter: Any = None
) -> Array:
    """Where each v belongs among the sorted x."""
    x, v = as_array(x), as_array(v)
    if side not in ("left", "right"):
        raise misfit(
            ArgumentError, "searchsorted", got=f"side={side!r}", needed="'left' or 'right'"
        )
    if sorter is not None:
        x = apply("take", x, as_array(sorter), axis=0)
    kind = promote(_ordered(x.spec, "searchsorted").dtype, _ordered(v.spec, "searchsorted").dtype)
    kind = float32 if kind == bfloat16 else kind
    return apply("searchsorted", astype(x, kind), astype(v, kind), side=side)


@export
def isin(x: Operandish, elements: Operandish, /, *, invert: bool = False) -> Array:
    """Whether each element is one of these."""
    x, e = unify(x, elements)
    e = reshape(e, (-1,))
    if x.dtype.kind == "c":
        found = any(equal(expand_dims(x, axis=x.ndim), e), axis=-1)
    elif e.size == 0:
        found = apply("full", shape=x.shape, value=False, dtype=bool_)
    else:
        e = sort(e)
        place = minimum(searchsorted(e, x), e.size - 1)
        found = equal(apply("take", e, place, axis=0), x)
    return logical_not(found) if invert else found


# -- sets: as many results as the data has values ------------------------------------------
class UniqueAll(NamedTuple):
    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    values: Array
    inverse_indices: Array


def _read(x: Operandish, name: str, numpy_function: Callable[..., Any]) -> list[Array]:
    x = as_array(x)
    kind = x.dtype
    known = array.reader.known(x, name, shape=True)
    found = numpy_function(known.astype(float32) if kind == bfloat16 else known)
    values, *rest = found if isinstance(found, tuple) else (found,)
    return [as_array(part) for part in (values.astype(kind, copy=False), *rest)]


def _unique(x: Any) -> Any:
    """In order, as np.unique_values is not; each NaN is a value of its own, as it is there."""
    return np.unique(x, equal_nan=False)


@export
def unique_all(x: Operandish, /) -> UniqueAll:
    """The values that occur, where first, which of them each element is, and how often they
    occur.
    """
    return UniqueAll(*_read(x, "unique_all", np.unique_all))


@export
def unique_counts(x: Operandish, /) -> UniqueCounts:
    """The values that occur, and how often."""
    return UniqueCounts(*_read(x, "unique_counts", np.unique_counts))


@export
def unique_inverse(x: Operandish, /) -> UniqueInverse:
    """The values that occur, and which of them each element is."""
    return UniqueInverse(*_read(x, "unique_inverse", np.unique_inverse))


@export
def unique_values(x: Operandish, /, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The values that occur, in order. With `size`, so many, the rest filled (with the first value,
    unless said otherwise); that works inside compiled functions too."""
    x = as_array(x)
    if size is None:
        return _read(x, "unique_values", _unique)[0]
    size = whole_number(size, "unique_values", 0)
    ordered = sort(reshape(x, (-1,)))
    n = ordered.shape[0]
    if n == 0:
        raise misfit(
            ShapeError, "unique_values", got="no elements and a size", needed="at least one element"
        )
    first = apply("full", shape=(1,), value=True, dtype=bool_)
    later, sooner = slice_axes(ordered, {0: (1, n - 1, 1)}), slice_axes(ordered, {0: (0, n - 1, 1)})
    fresh = concat([first, not_equal(later, sooner)])
    rank = cumulative_sum(astype(fresh, int64)) - 1
    slot = where(fresh & (rank < size), rank, size)
    fill = slice_axes(ordered, {0: (0, 1, 1)})
    if fill_value is not None:
        fill = astype(as_array(fill_value), x.dtype)
    room = broadcast_to(fill, (size + 1,))
    return slice_axes(apply("put", room, slot, ordered, axis=0, mode="set"), {0: (0, size, 1)})
