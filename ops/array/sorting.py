"""Order: `. j -> . j`, whole along the axis that is sorted; by machine code where there is one
(ops/cpu/kernels/sort/line_order.py).

NumPy is given bfloat16 as float32, since it loses its way among bfloat16's NaN."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..autodiff.batching import Mapped
from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.index import LETTERS, Indices
from ..core.parameters import AXIS, BOUNDS, FLAG, one_of, unfit
from ..core.parameters import whole as whole_from
from ..core.registry import Params, Place, Specs, op, stream_cost
from ..core.spec import (
    DType,
    Spec,
    bfloat16,
    complex64,
    complex_of,
    float32,
    int64,
    is_inexact,
    promote,
)
from ..core.user_line import misfit
from .arithmetic import imag, real
from .casts import astype
from .cumulative import running
from .indexing import take, take_along_axis
from .shape import axis_of, reshape, whole_number

__all__ = ["argsort", "lexsort", "searchsorted", "sort", "sort_complex", "topk"]


def lines_lie_apart(x: Spec, axes: Sequence[int]) -> bool:
    """Whether between neighbours along these axes elements of other lines lie."""
    return any(
        n > 1 for d, n in enumerate(x.shape) if d not in axes and d > min(axes, default=x.ndim)
    )


def _sort_cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    """Short lines side by side, in steps that become more with their length; others digit by digit, and
    elements that lie apart each from another line of the cache."""
    x, axis = ins[0], p.get("axis", 1)
    n = x.shape[axis]
    short = n <= 1 << 10
    each = 3.0 * math.log2(n + 1) if short else 50.0
    if not short and lines_lie_apart(x, (axis,)):
        each = 190.0
    return each * x.size, float(x.nbytes + outs[0].nbytes)


def _ordered(x: Spec, name: str) -> Spec:
    if x.dtype.kind == "c":
        raise misfit(DTypeError, name, got=x.dtype.name, needed="a dtype with an order")
    return x


def keys_of(xp: Any, x: Any) -> Any:
    """Whole numbers in the order of the numbers, and back: NaN is the largest of all, and of two zeros the
    negative one comes first, as it does by machine code."""
    whole = x
    if x.dtype.kind != "i":
        whole = x.view(f"i{x.itemsize}")
        nan = np.array(np.nan, x.dtype).view(whole.dtype)
        whole = xp.where(x == x, whole, int(nan))  # CuPy's `where` has no bfloat16
    return xp.where(whole < 0, whole ^ np.iinfo(whole.dtype).max, whole)


def numbers_of(xp: Any, keys: Any, dtype: DType) -> Any:
    return keys_of(xp, keys).view(dtype)


def _sort_kernel(xp: Any, out: Any, x: Any, *, axis: int, descending: bool, stable: bool) -> None:
    real = is_inexact(x.dtype)
    made = keys_of(xp, x) if real else x
    made = xp.sort(made, axis=axis)
    made = xp.flip(made, axis) if descending else made
    xp.copyto(out, numbers_of(xp, made, x.dtype) if real else made)


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
    ranked="order_statistics",
    cost=_sort_cost,
)


_AT_ONCE = 1 << 16  # places of rows


def _runs_kernel(xp: Any, out: Any, x: Any, *, bounds: tuple[int, ...], at: Place) -> None:
    start, end = at.ins[0][1]
    for a, b in itertools.pairwise(bounds):
        if start <= a < b <= end:
            part = slice(a - start, b - start)
            xp.copyto(out[:, part], xp.sort(x[:, part], axis=1))


def _runs_rule(x: Spec, *, bounds: tuple[int, ...]) -> Spec:
    if x.ndim != 2 or x.dtype.kind != "u" or bounds[-1] != x.shape[1]:
        raise unfit("sort_of_parts", (x,), f"rows of {bounds[-1]} keys")
    return Spec(x.shape, x.dtype)


op(
    "sort_of_parts",  # rows of keys, of which each part is put in order by itself
    infer=_runs_rule,
    takes={"bounds": BOUNDS},
    made_by="passes",
    indices=lambda ins, outs, p: Indices(
        ((None, "p"),), ((None, "p"),), parts=(("p", p["bounds"]),)
    ),
    kernel=_runs_kernel,
    placed=True,
    cost=_sort_cost,
)


def _order_kernel(xp: Any, out: Any, x: Any, *, bounds: tuple[int, ...], at: Place) -> None:
    count, (start, end) = x.shape[0], at.ins[0][1]
    for a, b in itertools.pairwise(bounds):
        if start <= a < b <= end:
            part = slice(a - start, b - start)
            places = xp.argsort(x[:, part], axis=1, kind="stable")
            xp.copyto(out[:count, part], xp.take_along_axis(x[:, part], places, axis=1))
            xp.copyto(out[count:, part], (places + a).astype(out.dtype))


def _order_rule(x: Spec, *, bounds: tuple[int, ...]) -> Spec:
    made = _runs_rule(x, bounds=bounds)
    if x.shape[1] > 1 << 8 * x.dtype.itemsize:
        raise unfit("order_of_parts", (x,), "keys of a dtype that has room for places, too")
    return Spec((2 * made.shape[0], made.shape[1]), made.dtype)


op(
    "order_of_parts",  # the same, and behind the keys' rows one for each: the places they come from
    infer=_order_rule,
    takes={"bounds": BOUNDS},
    made_by="passes",
    indices=lambda ins, outs, p: Indices(
        ((None, "p"),), ((None, "p"),), parts=(("p", p["bounds"]),)
    ),
    kernel=_order_kernel,
    placed=True,
    cost=_sort_cost,
)


def _rows_kernel(xp: Any, out: Any, x: Any, i: Any, *, bounds: tuple[int, ...], at: Place) -> None:
    start = at.ins[0][0][0]
    for k in range(0, len(i), _AT_ONCE):
        places = i[k : k + _AT_ONCE]
        xp.take(x, places - start, axis=0, out=out[k : k + _AT_ONCE])


def _rows_rule(x: Spec, i: Spec, *, bounds: tuple[int, ...]) -> Spec:
    if not x.ndim or i.shape != x.shape[:1] or i.dtype != int64 or bounds[-1] != x.shape[0]:
        raise unfit("rows_of_parts", (x, i), f"{bounds[-1]} rows, and a place for each")
    return Spec(x.shape, x.dtype)


def _rows_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    rows = ("p", *LETTERS[: ins[0].ndim - 1])
    return Indices((rows, ("p",)), (rows,), parts=(("p", p["bounds"]),))


op(
    "rows_of_parts",  # rows at these places, each of which is in the same part as who asks for it
    infer=_rows_rule,
    takes={"bounds": BOUNDS},
    made_by="passes",
    indices=_rows_indices,
    kernel=_rows_kernel,
    placed=True,
    cost=stream_cost(0),
)


def _asked(
    x: Operandish, axis: int | None, kind: str | None, stable: bool | None, name: str
) -> tuple[Array, int, bool]:
    """Check what is to be put in order: the elements in one row, for no axis. Which algorithm, is
    not the user's to say; any of NumPy's kinds may be stable."""
    if kind not in (None, "quicksort", "heapsort", "mergesort", "stable"):
        needed = "'quicksort', 'heapsort', 'mergesort', 'stable' or None"
        raise misfit(ArgumentError, name, got=f"kind={kind!r}", needed=needed)
    x = as_array(x)
    x, axis = (reshape(x, (-1,)), 0) if axis is None else (x, axis)
    return x, axis_of(axis, x.ndim, name), stable is not False or kind in ("stable", "mergesort")


@export
def sort(
    x: Operandish,
    /,
    axis: int | None = -1,
    kind: str | None = None,
    *,
    descending: bool = False,
    stable: bool | None = True,
) -> Array:
    """The elements in order along an axis, or all of them for None; NaN counts as the largest. Complex
    numbers are in the order of their real parts, then of the imaginary ones.

    >>> ost.sort([3, 1, 2])
    Array([1, 2, 3], dtype=int64)
    """
    x, d, stable = _asked(x, axis, kind, stable, "sort")
    if x.dtype.kind == "c":
        return take_along_axis(x, argsort(x, d, descending=descending), axis=d)
    return apply("sort", x, axis=d, descending=descending, stable=stable)


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
    x: Operandish,
    /,
    axis: int | None = -1,
    kind: str | None = None,
    *,
    descending: bool = False,
    stable: bool | None = True,
) -> Array:
    """The places that the elements in order come from.

    >>> ost.argsort([3, 1, 2])
    Array([1, 2, 0], dtype=int64)
    """
    x, d, stable = _asked(x, axis, kind, stable, "argsort")
    if x.dtype.kind != "c":
        return _order(x, d, descending, stable, x.shape[d])
    order = _order(imag(x), d, descending, True, x.shape[d])
    parts = take_along_axis(real(x), order, axis=d)
    return take_along_axis(order, _order(parts, d, descending, True, x.shape[d]), axis=d)


def sort_complex(a: Operandish) -> Array:
    """The elements in order along the last axis, as complex numbers.

    >>> ost.sort_complex([2.0, 1.0])
    Array([1.+0.j, 2.+0.j], dtype=complex128)
    """
    x = as_array(a)
    wide = complex64 if x.dtype.itemsize <= 2 and x.dtype.kind in "iub" else complex_of(x.dtype)
    return sort(astype(x, wide))


@export
def topk(x: Operandish, k: int, /, *, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """The k largest (or smallest) elements along an axis, in order, and their places.

    >>> ost.topk([3, 1, 2], 2)
    (Array([3, 2], dtype=int64), Array([0, 2], dtype=int64))
    """
    x = as_array(x)
    d = axis_of(axis, x.ndim, "topk")
    k = whole_number(k, "topk")
    if not 0 <= k <= x.shape[d]:
        needed = f"0 to {x.shape[d]}, as many as the axis has"
        raise misfit(ShapeError, "topk", got=f"k={k}", needed=needed)
    places = _order(x, d, largest, True, k)
    return take_along_axis(x, places, axis=d), places


# -- searching -----------------------------------------------------------------------------
def _search_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = tuple(LETTERS[: ins[1].ndim])
    return Indices(((None,), labels), (labels,))


def _search_rule(x: Spec, v: Spec, *, side: str) -> Spec:
    if x.ndim != 1:
        raise misfit(ShapeError, "searchsorted", got=f"shape {x.shape}", needed="one axis, sorted")
    if x.dtype != v.dtype or x.dtype == bfloat16:
        raise unfit("searchsorted", (x, v), "one dtype", DTypeError)
    return Spec(_ordered(v, "searchsorted").shape, int64)


def _search_batched(size: int, *xs: Mapped, side: str) -> Sequence[Mapped] | None:
    (x, has_x), (v, _) = xs
    return None if has_x else [(apply("searchsorted", x, v, side=side), True)]


op(
    "searchsorted",
    infer=_search_rule,
    batched=_search_batched,
    takes={"side": one_of("left", "right")},
    indices=_search_indices,
    kernel=lambda xp, out, x, v, *, side: xp.copyto(out, xp.searchsorted(x, v, side=side)),
    cost=lambda ins, outs, p: (20.0 * ins[1].size, float(ins[1].nbytes + outs[0].nbytes)),
)


@export
def searchsorted(
    x: Operandish, v: Operandish, /, side: Literal["left", "right"] = "left", sorter: Any = None
) -> Array:
    """Where each v belongs among the sorted x.

    >>> ost.searchsorted([1, 2, 3], [2, 5])
    Array([1, 3], dtype=int64)
    """
    x, v = as_array(x), as_array(v)
    if side not in ("left", "right"):
        got = f"side={side!r}"
        raise misfit(ArgumentError, "searchsorted", got=got, needed="'left' or 'right'")
    if sorter is not None:
        x = apply("take", x, as_array(sorter), axis=0)
    kind = promote(_ordered(x.spec, "searchsorted").dtype, _ordered(v.spec, "searchsorted").dtype)
    kind = float32 if kind == bfloat16 else kind
    return apply("searchsorted", astype(x, kind), astype(v, kind), side=side)


@export
def lexsort(keys: Operandish | Sequence[Operandish], axis: int = -1) -> Array:
    """The places in order by several keys, the last one first of all: a stable sort by each.

    >>> ost.lexsort(([3, 1, 2], [0, 0, 1]))
    Array([1, 0, 2], dtype=int64)
    """
    each = [as_array(k) for k in keys] if isinstance(keys, list | tuple) else [*as_array(keys)]
    if not each or not each[0].ndim or any(k.shape != each[0].shape for k in each):
        got = " and ".join(str(k.shape) for k in each[:4]) or "nothing"
        raise misfit(ShapeError, "lexsort", got=got, needed="keys of one shape, with an axis")
    order = argsort(each[0], axis=axis)
    pick = take if each[0].ndim == 1 else take_along_axis
    for k in each[1:]:
        again = argsort(pick(k, order, axis=axis), axis=axis)
        order = pick(order, again, axis=axis)
    return order
