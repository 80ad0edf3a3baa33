"""Sets: the values that occur. With `size` there are so many results, the rest filled, as compiled
functions need it; without, as many as the data has, which is read.

    distinct    j -> ., whole; or each worker finds the values of its part, of which the `size`
                smallest travel: the smallest of all are among them

Positions and counts, and what two sets have in common, follow from a sort of one row, which is
needed whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from ostinato.errors import ArgumentError, ShapeError

from ..core import array
from ..core.apply import apply, as_array, unify
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.graph import Graph
from ..core.index import LETTERS, Indices
from ..core.parameters import BOUNDS, unfit, whole
from ..core.registry import Params, Place, Specs, op
from ..core.spec import DType, Spec, bfloat16, bool_, float32, int64, is_inexact, promote
from ..core.trace import graph_of
from ..core.user_line import misfit
from ..linalg.blocked import parts_of
from .arithmetic import minimum
from .casts import astype
from .comparisons import equal, less, logical_and, logical_not, logical_or, logical_xor, not_equal
from .concatenation import concat, stack, unstack
from .cumulative import cumulative_sum
from .elementwise import where
from .indexing import take_along_axis
from .reduction import any as anywhere
from .reduction import argmax
from .reduction import sum as sum_of
from .segments import tally
from .shape import broadcast_to, expand_dims, moveaxis, reshape, whole_number
from .slicing import slice_axes
from .sorting import argsort, keys_of, lexsort, numbers_of, searchsorted, sort

__all__ = [
    "intersect1d",
    "isin",
    "setdiff1d",
    "setxor1d",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]


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


def _member_rule(x: Spec, table: Spec) -> Spec:
    if x.dtype != table.dtype or x.dtype.kind == "c" or table.ndim != 1 or not table.size:
        raise unfit("is_member", (x, table), "elements, and a row of the same dtype")
    return Spec(x.shape, bool_)


def _member_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = tuple(LETTERS[: ins[0].ndim])
    return Indices((labels, (None,)), (labels,))


def _member_kernel(xp: Any, out: Any, x: Any, table: Any) -> None:
    wide, known = (v.astype(np.float32) if v.dtype == bfloat16 else v for v in (x, table))
    known = xp.sort(known)
    place = xp.minimum(xp.searchsorted(known, wide), len(table) - 1)
    xp.equal(known.take(place), wide, out)


op(
    "is_member",  # whether an element is one of these
    infer=_member_rule,
    indices=_member_indices,
    kernel=_member_kernel,
    cost=lambda ins, outs, p: (20.0 * ins[0].size, float(ins[0].nbytes + outs[0].nbytes)),
)


@export
def isin(
    x: Operandish,
    /,
    test_elements: Operandish,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
) -> Array:
    """Whether each element is one of these, which every worker has whole. How they are looked up is not
    the user's to say: `assume_unique` and `kind` are there since NumPy has them.

    >>> ost.isin([1, 2, 3], [2, 4])
    Array([False,  True, False], dtype=bool)
    """
    x, e = unify(x, test_elements)
    both = promote(x.dtype, e.dtype)
    x, e = astype(x, both), reshape(astype(e, both), (-1,))
    if x.dtype.kind == "c":
        found = anywhere(equal(expand_dims(x, axis=x.ndim), e), axis=-1)
    elif e.size == 0:
        found = apply("full", shape=x.shape, value=False, dtype=bool_)
    else:
        found = apply("is_member", x, e)
    return logical_not(found) if invert else found


# -- as many results as the data has -----------------------------------------------------------
def _read(name: str, function: Callable[..., Any], *given: Operandish) -> list[Array]:
    xs = unify(*given)
    kind = xs[0].dtype if name == "setdiff1d" else promote(*(x.dtype for x in xs))
    known = [array.reader.known(x, name, shape=True) for x in xs]
    known = [x.astype(float32) if x.dtype == bfloat16 else x for x in known]
    found = function(*known)
    values, *rest = found if isinstance(found, tuple) else (found,)
    return [as_array(part) for part in (values.astype(kind, copy=False), *rest)]


# -- the values ----------------------------------------------------------------------------------
def _distinct_rule(x: Spec, *, size: int) -> Spec:
    if x.dtype.kind == "c" or x.ndim != 1 or not x.size or not size:
        raise unfit("distinct", (x,), "a row of numbers with an order, not empty")
    return Spec((size,), x.dtype)


def _distinct_kernel(xp: Any, out: Any, x: Any, *, size: int) -> None:
    real = is_inexact(x.dtype)
    ordered = keys_of(xp, x) if real else x
    ordered = xp.sort(ordered)
    ordered = numbers_of(xp, ordered, x.dtype) if real else ordered
    fresh = xp.concatenate([xp.ones(1, np.bool_), ordered[1:] != ordered[:-1]])
    found = xp.compress(fresh, ordered)[:size]
    out[: len(found)] = found
    out[len(found) :] = found[:1]


def _are_values(x: Array, count: Any) -> Array:
    """Which of the results, along the last axis, are values: those behind are the first again.
    `count` elements were looked at; several NaN are several values."""
    size = x.shape[-1]
    k = apply("iota", shape=(size,), axis=0, dtype=int64)
    others = logical_or(equal(k, 0), not_equal(x, x[..., :1]))
    return logical_and(others, less(k, count))


def _distinct_grad(g: Array, y: Array, x: Array, *, size: int) -> Sequence[Array | None]:
    """In equal shares to the elements that have the value; what is filled is the first one's."""
    there = _are_values(y, x.size)
    rising = where(there, y, astype(math.inf, y.dtype))
    own = where(there, g, 0)
    more = sum_of(where(there, 0, g))
    own = own + where(equal(apply("iota", shape=(size,), axis=0, dtype=int64), 0), more, 0)
    place = minimum(searchsorted(rising, x), size - 1)
    found = equal(apply("take", rising, place, axis=0), x)
    many = tally(where(found, place, -1), size)
    share = own / astype(where(equal(many, 0), 1, many), own.dtype)
    return (where(found, apply("take", share, place, axis=0), 0),)


def _distinct_by_parts(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    """Each part's values, then those of all of these."""
    (x,), size = ins, p["size"]
    layout = x.layout
    if layout is None or layout.blocks or layout.windows or set(layout.splits) == {None}:
        return ()
    bounds = parts_of(x)
    lengths = [b - a for a, b in itertools.pairwise(bounds)]
    if min(lengths) == 0 or len(lengths) * size >= x.size:
        return ()

    def run(x: Array) -> Sequence[Array]:
        made = apply("distinct_of_parts", x, bounds=bounds, size=size)
        counts = reshape(stack([as_array(n) for n in lengths]), (len(lengths), 1))
        there = _are_values(made, counts)
        least = sort(made[:, 0])[:1]
        return (apply("distinct", reshape(where(there, made, least), (-1,)), size=size),)

    return [graph_of(run, ins)]


op(
    "distinct",  # the smallest values that occur, in order, behind them the first one again
    infer=_distinct_rule,
    takes={"size": whole(1)},
    indices=lambda ins, outs, p: Indices(((None,),), ((None,),)),
    kernel=_distinct_kernel,
    grad=_distinct_grad,
    algorithms=_distinct_by_parts,
    cost=lambda ins, outs, p: (200.0 * ins[0].size, float(ins[0].nbytes + outs[0].nbytes)),
)


def _parts_rule(x: Spec, *, bounds: tuple[int, ...], size: int) -> Spec:
    fits = bounds[-1:] == x.shape and all(a < b for a, b in itertools.pairwise(bounds))
    if not fits or x.dtype.kind == "c" or not size:
        raise unfit("distinct_of_parts", (x,), "a row of numbers with an order, in parts")
    return Spec((len(bounds) - 1, size), x.dtype)


def _parts_kernel(
    xp: Any, out: Any, x: Any, *, bounds: tuple[int, ...], size: int, at: Place
) -> None:
    start = at.ins[0][0][0]
    for k, part in enumerate(range(*at.outs[0][0])):
        rows = x[bounds[part] - start : bounds[part + 1] - start]
        _distinct_kernel(xp, out[k], rows, size=size)


op(
    "distinct_of_parts",
    infer=_parts_rule,
    takes={"bounds": BOUNDS, "size": whole(1)},
    made_by="passes",
    indices=lambda ins, outs, p: Indices((("p",),), (("p", None),), parts=(("p", p["bounds"]),)),
    kernel=_parts_kernel,
    placed=True,
    cost=lambda ins, outs, p: (200.0 * ins[0].size, float(ins[0].nbytes + outs[0].nbytes)),
)


# -- as many as are asked for ------------------------------------------------------------------
def _row(x: Operandish, name: str) -> Array:
    row = reshape(as_array(x), (-1,))
    if not row.size:
        raise misfit(ShapeError, name, got="no elements and a size", needed="at least one element")
    return row


def _fresh(ordered: Array) -> Array:
    """Whether an element is not what stands before it."""
    n = ordered.size
    first = apply("full", shape=(1,), value=True, dtype=bool_)
    later, sooner = slice_axes(ordered, {0: (1, n - 1, 1)}), slice_axes(ordered, {0: (0, n - 1, 1)})
    return concat([first, not_equal(later, sooner)])


def _kept(values: Array, keep: Array, size: int, fill_value: Any) -> Array:
    """The values to keep, in order, the rest filled: with the first of them, unless said
    otherwise."""
    rank = cumulative_sum(astype(keep, int64)) - 1
    slot = where(logical_and(keep, less(rank, size)), rank, size)
    if fill_value is None:
        place = argmax(keep)
        fill = apply("take", values, reshape(place, (1,)), axis=0)
        fill = where(apply("take", keep, reshape(place, (1,)), axis=0), fill, 0)
    else:
        fill = as_array(fill_value)
    room = broadcast_to(astype(fill, values.dtype), (size + 1,))
    return slice_axes(apply("put", room, slot, values, axis=0, mode="set"), {0: (0, size, 1)})


def _sized(x: Array, size: int, fill_value: Any) -> tuple[Array, Array, Array, Array]:
    """The values, where each stands first, which of them each element is, and how often they
    occur: 0 where they are filled."""
    order = argsort(x)
    ordered = take_along_axis(x, order, axis=0)
    fresh = _fresh(ordered)
    rank = cumulative_sum(astype(fresh, int64)) - 1
    inverse = apply("put", rank, order, rank, axis=0, mode="set")
    values = _kept(ordered, fresh, size, fill_value)
    return values, _kept(order, fresh, size, None), inverse, tally(inverse, size)


@export
def unique_all(x: Operandish, /, *, size: int | None = None, fill_value: Any = None) -> UniqueAll:
    """The values that occur, where first, which of them each element is, and how often they occur.

    >>> ost.unique_all([3, 1, 3]).indices
    Array([1, 0], dtype=int64)
    """
    if size is None:
        return UniqueAll(*_read("unique_all", np.unique_all, x))
    row = _row(x, "unique_all")
    values, first, inverse, counts = _sized(row, whole_number(size, "unique_all", 0), fill_value)
    return UniqueAll(values, first, reshape(inverse, as_array(x).shape), counts)


def _most(dtype: DType) -> Any:
    """Return the value that none is larger than."""
    if is_inexact(dtype):
        return math.inf
    return True if dtype.kind == "b" else int(np.iinfo(dtype).max)


@export
def unique_counts(
    x: Operandish, /, *, size: int | None = None, fill_value: Any = None
) -> UniqueCounts:
    """The values that occur, and how often.

    >>> ost.unique_counts([3, 1, 3])
    UniqueCounts(values=Array([1, 3], dtype=int64), counts=Array([1, 2], dtype=int64))
    """
    if size is None:
        return UniqueCounts(*_read("unique_counts", np.unique_counts, x))
    row = _row(x, "unique_counts")
    size = whole_number(size, "unique_counts", 0)
    if not size:
        return UniqueCounts(row[:0], tally(row[:0] == row[:0], 0))
    found = apply("distinct", row, size=size)
    there, real = _are_values(found, row.size), equal(found, found)
    most = apply("full", shape=(size,), value=_most(row.dtype), dtype=row.dtype)
    rising = where(logical_and(there, real), found, most)
    place = minimum(searchsorted(rising, row), size - 1)
    is_it = equal(apply("take", rising, place, axis=0), row)
    counts = tally(where(is_it, place, -1), size)
    counts = where(there, where(real, counts, 1), 0)  # each NaN is a value of its own
    values = found if fill_value is None else where(there, found, astype(fill_value, row.dtype))
    return UniqueCounts(values, counts)


@export
def unique_inverse(
    x: Operandish, /, *, size: int | None = None, fill_value: Any = None
) -> UniqueInverse:
    """The values that occur, and which of them each element is.

    >>> ost.unique_inverse([3, 1, 3]).inverse_indices
    Array([1, 0, 1], dtype=int64)
    """
    if size is None:
        return UniqueInverse(*_read("unique_inverse", np.unique_inverse, x))
    row = _row(x, "unique_inverse")
    values, _, inverse, _ = _sized(row, whole_number(size, "unique_inverse", 0), fill_value)
    return UniqueInverse(values, reshape(inverse, as_array(x).shape))


@export
def unique_values(x: Operandish, /, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The values that occur, in order. With `size`, so many, the rest filled (with the first value,
    unless said otherwise); that works inside compiled functions too. Of split data so many values
    of each part travel, and nothing else.

    >>> ost.unique_values([3, 1, 3])
    Array([1, 3], dtype=int64)
    """
    if size is None:
        return _read("unique_values", lambda x: np.unique(x, equal_nan=False), x)[0]
    row = _row(x, "unique_values")
    size = whole_number(size, "unique_values", 0)
    if not size:
        return row[:0]
    found = apply("distinct", row, size=size)
    if fill_value is None:
        return found
    return where(_are_values(found, row.size), found, astype(fill_value, row.dtype))


# -- of two sets -------------------------------------------------------------------------------
def _two(x: Operandish, y: Operandish, name: str) -> tuple[Array, Array]:
    one, other = unify(x, y)
    a, b = (reshape(v, (-1,)) for v in (one, other))
    both = concat([a, b])
    _row(both, name)
    return astype(a, both.dtype), astype(b, both.dtype)


def union1d(
    ar1: Operandish, ar2: Operandish, *, size: int | None = None, fill_value: Any = None
) -> Array:
    """The values that are in either, in order; with `size`, so many, the rest filled.

    >>> ost.union1d([1, 2], [2, 3])
    Array([1, 2, 3], dtype=int64)
    """
    if size is None:
        return _read("union1d", np.union1d, ar1, ar2)[0]
    return unique_values(concat(_two(ar1, ar2, "union1d")), size=size, fill_value=fill_value)


def intersect1d(
    ar1: Operandish,
    ar2: Operandish,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The values that are in both, in order; with `size`, so many, the rest filled. `return_indices`
    gives where each stands first in the one and in the other, too.

    >>> ost.intersect1d([1, 2], [2, 3])
    Array([2], dtype=int64)
    """
    if size is None:
        how = {"assume_unique": assume_unique, "return_indices": return_indices}
        found = _read("intersect1d", partial(np.intersect1d, **how), ar1, ar2)
        return tuple(found) if return_indices else found[0]
    if return_indices:
        got, needed = "return_indices=True and a size", "one of them"
        raise misfit(ArgumentError, "intersect1d", got=got, needed=needed)
    a, b = _two(ar1, ar2, "intersect1d")
    return _picked(a, lambda x: isin(x, b), size, fill_value, "intersect1d")


def setdiff1d(
    ar1: Operandish, ar2: Operandish, *, size: int | None = None, fill_value: Any = None
) -> Array:
    """The values of the first that are not in the second, in order; with `size`, so many, the rest
    filled.

    >>> ost.setdiff1d([1, 2], [2, 3])
    Array([1], dtype=int64)
    """
    if size is None:
        return _read("setdiff1d", np.setdiff1d, ar1, ar2)[0]
    a, b = _two(ar1, ar2, "setdiff1d")
    return _picked(a, lambda x: isin(x, b, invert=True), size, fill_value, "setdiff1d")


def setxor1d(
    ar1: Operandish, ar2: Operandish, *, size: int | None = None, fill_value: Any = None
) -> Array:
    """The values that are in one of both only, in order; with `size`, so many, the rest filled.

    >>> ost.setxor1d([1, 2], [2, 3])
    Array([1, 3], dtype=int64)
    """
    if size is None:
        return _read("setxor1d", np.setxor1d, ar1, ar2)[0]
    a, b = _two(ar1, ar2, "setxor1d")
    return _picked(concat([a, b]), lambda x: _not_in_both(x, a, b), size, fill_value, "setxor1d")


def _not_in_both(x: Array, a: Array, b: Array) -> Array:
    """NaN is in neither, as it is not itself."""
    found = logical_xor(isin(x, a), isin(x, b))
    return logical_or(found, not_equal(x, x))


def _picked(
    x: Array, wanted: Callable[[Array], Array], size: int, fill_value: Any, name: str
) -> Array:
    ordered = sort(_row(x, name))
    keep = logical_and(_fresh(ordered), wanted(ordered))
    return _kept(ordered, keep, whole_number(size, name, 0), fill_value)


@overload
def unique(
    ar: Operandish,
    return_index: Literal[False] = False,
    return_inverse: Literal[False] = False,
    return_counts: Literal[False] = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
    size: int | None = None,
    fill_value: Any = None,
) -> Array: ...
@overload
def unique(
    ar: Operandish,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
    size: int | None = None,
    fill_value: Any = None,
) -> Any: ...
def unique(
    ar: Operandish,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The values that occur, or with `axis` the slices along it, always in order; if asked for, with the
    first place of each, with which of them each element is, and with how often each occurs. With `size` so
    many, as compiled functions need it: there each NaN is a value of its own, else all NaN are one.

    >>> ost.unique([2, 1, 2], return_counts=True)
    (Array([1, 2], dtype=int64), Array([1, 2], dtype=int64))
    >>> ost.unique([[1, 2], [0, 3], [1, 2]], axis=0)
    Array([[0, 3],
           [1, 2]], dtype=int64)
    """
    asked = (return_index, return_inverse, return_counts)
    if size is None:
        numpys: Any = np.unique

        def run(x: Any) -> Any:
            return numpys(x, *asked, axis=axis, equal_nan=equal_nan)

        found = _read("unique", run, ar)
    elif axis is not None:
        found = _slices(as_array(ar), axis, whole_number(size, "unique", 0), fill_value)
    elif any(asked):
        found = list(unique_all(ar, size=size, fill_value=fill_value))
    else:
        return unique_values(ar, size=size, fill_value=fill_value)
    rest = found[1:] if size is None else itertools.compress(found[1:], asked)
    return (found[0], *rest) if any(asked) else found[0]


def _slices(x: Array, axis: int, size: int, fill_value: Any) -> list[Array]:
    """The slices along an axis that occur, in order of their elements from the first to the last, where
    each stands first, which of them each slice is, and how often they occur."""
    lines = moveaxis(x, axis, 0)
    if not lines.size:
        got = f"shape {x.shape} and a size"
        raise misfit(ShapeError, "unique", got=got, needed="at least one element")
    rows = reshape(lines, (lines.shape[0], -1))
    order = lexsort(list(unstack(rows, axis=1))[::-1])
    ordered = apply("take", rows, order, axis=0)
    first = apply("full", shape=(1,), value=True, dtype=bool_)
    fresh = concat([first, anywhere(not_equal(ordered[1:], ordered[:-1]), axis=1)])
    rank = cumulative_sum(astype(fresh, int64)) - 1
    inverse = apply("put", rank, order, rank, axis=0, mode="set")
    places = _kept(order, fresh, size, None)
    values = apply("take", lines, places, axis=0)
    if fill_value is not None:
        there = less(apply("iota", shape=(size,), axis=0, dtype=int64), rank[-1] + 1)
        there = reshape(there, (size, *(1,) * (lines.ndim - 1)))
        values = where(there, values, astype(fill_value, values.dtype))
    return [moveaxis(values, 0, axis), places, inverse, tally(inverse, size)]
