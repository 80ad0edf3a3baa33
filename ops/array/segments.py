"""Rows that belong together: sums, products, extremes and means of groups, by the groups' numbers.

    segment_sum    r j, r -> . j; r is reduced: each worker adds up what it holds of each group, and
                   the groups are one all-reduce (or one reduce-scatter), however many rows there are
    tally          r -> .; likewise, counts

What lies outside of 0 to `num_segments` - 1 belongs to no group. The gradient of a sum is a
gather; that of an extreme is shared equally among the elements that attain it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..autodiff.batching import Mapped, given_axis
from ..core import array
from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from ..core.index import LETTERS, Indices
from ..core.monoid import identity
from ..core.parameters import AXES, unfit, whole
from ..core.registry import Params, Specs, op
from ..core.spec import Spec, float64, int32, int64, is_inexact, is_integer, real_of
from ..core.user_line import misfit
from .arithmetic import abs as absolute
from .arithmetic import clip, sqrt, square
from .casts import astype
from .comparisons import equal, greater, greater_equal, less, logical_and
from .concatenation import stack
from .elementwise import floating, where
from .indexing import _combine_at
from .reduction import max as largest
from .reduction import min as smallest
from .reduction import read_cost, sum_dtype
from .shape import accumulator, broadcast_to, moveaxis, reshape, whole_number, widened

__all__ = [
    "GroupBy",
    "bincount",
    "groupby",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
]


# -- tally -----------------------------------------------------------------------------------
def _tally_rule(x: Spec, *, axes: tuple[int, ...], count: int) -> Spec:
    if not is_integer(x.dtype):
        raise unfit("tally", (x,), "integers", DTypeError)
    return Spec((*(n for d, n in enumerate(x.shape) if d not in axes), count), int64)


def _tally_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = tuple(LETTERS[: ins[0].ndim])
    left = tuple(c for d, c in enumerate(labels) if d not in p["axes"])
    return Indices((labels,), ((*left, None),), tuple((labels[a], "sum") for a in p["axes"]))


def _tally_kernel(xp: Any, out: Any, x: Any, *, axes: tuple[int, ...], count: int) -> None:
    """All lines at once: the numbers of each line are beside those of others. What is outside
    goes to a place of its own."""
    left = [d for d in range(x.ndim) if d not in axes]
    lines = math.prod(x.shape[d] for d in left)
    rows = x.transpose((*left, *axes)).reshape(lines, math.prod(x.shape[a] for a in axes))
    inside = (rows >= 0) & (rows < count)
    place = xp.where(inside, rows, 0).astype(np.int64) + xp.arange(lines)[:, None] * count
    place = xp.where(inside, place, lines * count)
    found = xp.bincount(place.reshape(-1), minlength=lines * count + 1)
    xp.copyto(out, found[: lines * count].reshape(out.shape))


op(
    "tally",  # how often each of the whole numbers from 0 on occurs; others are not counted
    infer=_tally_rule,
    takes={"axes": AXES, "count": whole(0)},
    indices=_tally_indices,
    kernel=_tally_kernel,
    cost=read_cost(10),
)


def tally(x: Array, count: int, axes: Sequence[int] | None = None) -> Array:
    """How often each of the numbers from 0 to `count` - 1 stands along axes; all of them for
    None."""
    along = tuple(range(x.ndim)) if axes is None else tuple(axes)
    return apply("tally", x, axes=along, count=count)


def bincount(
    x: Operandish,
    weights: Operandish | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
) -> Array:
    """How often each whole number from 0 on occurs, or the sum of the weights there. With `length`,
    so many counts, and numbers beyond are left out; that works inside compiled functions too.
    Without it the largest number is read. Workers send their counts, and nothing else: one
    all-reduce.

    >>> ost.bincount([0, 2, 2])
    Array([1, 0, 2], dtype=int64)
    """
    k = as_array(x)
    if k.ndim != 1:
        raise misfit(ShapeError, "bincount", got=f"shape {k.shape}", needed="one axis")
    if k.dtype.kind == "b":
        k = astype(k, int32)
    if not is_integer(k.dtype):
        if k.size:
            got = k.dtype.name
            raise misfit(DTypeError, "bincount", got=got, needed="whole numbers, none below 0")
        k = astype(k, int64)
    if length is None:
        count = max(whole_number(minlength, "bincount", 0), _reach(k, "bincount"))
    else:
        count = whole_number(length, "bincount", 0)
    if weights is None:
        return tally(k, count)
    w = as_array(weights)
    return segment_sum(astype(w, float64) if not is_inexact(w.dtype) else w, k, count)


def _reach(k: Array, name: str) -> int:
    """One more than the largest number, which is read; none may be below 0."""
    if not k.size:
        return 0
    ends = stack([astype(smallest(k), int64), astype(largest(k), int64)])
    low, high = array.reader.known(ends, name, shape=True)
    if low < 0:
        raise misfit(ArgumentError, name, got=f"{low}", needed="whole numbers, none below 0")
    return int(high) + 1


# -- groups of rows ----------------------------------------------------------------------------
def _segment_rule(name: str) -> Callable[..., Spec]:
    def rule(x: Spec, ids: Spec, *, count: int) -> Spec:
        if not is_integer(ids.dtype) or ids.ndim != 1 or x.shape[:1] != ids.shape:
            raise unfit(name, (x, ids), "rows, and for each the number of its group")
        if x.dtype.kind == "c" and name in ("segment_min", "segment_max"):
            raise unfit(name, (x, ids), "a dtype with an order", DTypeError)
        if accumulator(x.dtype) != x.dtype and name in ("segment_sum", "segment_prod"):
            raise unfit(name, (x, ids), "numbers of 32 bits or more", DTypeError)
        return Spec((count, *x.shape[1:]), x.dtype)

    return rule


def _segment_indices(monoid: str) -> Callable[[Specs, Specs, Params], Indices]:
    def indices(ins: Specs, outs: Specs, p: Params) -> Indices:
        rows, rest = LETTERS[0], tuple(LETTERS[1 : ins[0].ndim])
        return Indices(((rows, *rest), (rows,)), ((None, *rest),), ((rows, monoid),))

    return indices


def _segment_batched(name: str) -> Callable[..., Sequence[Mapped]]:
    def batched(size: int, *xs: Mapped, count: int) -> Sequence[Mapped]:
        """Groups of all elements are groups of rows; of groups of each element's own there are
        more."""
        (x, has_x), (ids, has_ids) = xs
        if not has_ids:
            made = apply(name, moveaxis(x, 0, 1), ids, count=count)
            return [(moveaxis(made, 1, 0), True)]
        x = given_axis((x, has_x), size)
        element = apply("iota", shape=(size, 1), axis=0, dtype=int64)
        inside = logical_and(greater_equal(ids, 0), less(ids, count))
        own = where(inside, astype(ids, int64) + element * count, -1)
        rows = reshape(x, (math.prod(x.shape[:2]), *x.shape[2:]))
        made = apply(name, rows, reshape(own, (own.size,)), count=size * count)
        return [(reshape(made, (size, count, *x.shape[2:])), True)]

    return batched


UFUNCS = {"sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}


def _segment_kernel(monoid: str) -> Callable[..., None]:
    def kernel(xp: Any, out: Any, x: Any, ids: Any, *, count: int) -> None:
        """Combine rows by groups; those of no group go to a row of their own."""
        inside = (ids >= 0) & (ids < count)
        place = xp.where(inside, ids, count).astype(np.int64)
        work = xp.full((count + 1, *x.shape[1:]), identity(monoid, x.dtype), x.dtype)
        _combine_at(xp, getattr(xp, UFUNCS[monoid]), work, (place,), x)
        xp.copyto(out, work[:count])

    return kernel


def _gathered(g: Array, ids: Array, count: int, outside: Any = 0) -> Array:
    """For each row what its group has; of no group, that."""
    if not count:
        return broadcast_to(astype(outside, g.dtype), (ids.size, *g.shape[1:]))
    found = apply("take", g, clip(ids, 0, count - 1), axis=0)
    inside = logical_and(greater_equal(ids, 0), less(ids, count))
    inside = reshape(inside, (ids.size,) + (1,) * (g.ndim - 1))
    return where(inside, found, astype(outside, g.dtype))


def _sum_grad(g: Array, y: Array, x: Array, ids: Array, *, count: int) -> Sequence[Array | None]:
    return _gathered(g, ids, count), None


def _prod_grad(g: Array, y: Array, x: Array, ids: Array, *, count: int) -> Sequence[Array | None]:
    """g times the product of all others, which exists where an element is 0 too."""
    zero = equal(x, 0)
    filled = where(zero, astype(1, x.dtype), x)
    zeros = astype(zero, real_of(x.dtype))
    others = _gathered(apply("segment_prod", filled, ids, count=count), ids, count) / filled
    left = _gathered(apply("segment_sum", zeros, ids, count=count), ids, count) - zeros
    return _gathered(g, ids, count) * where(greater(left, 0), 0, others), None


def _extreme_grad(
    g: Array, y: Array, x: Array, ids: Array, *, count: int
) -> Sequence[Array | None]:
    won = astype(equal(x, _gathered(y, ids, count, math.nan)), x.dtype)
    wide = accumulator(x.dtype)
    many = apply("segment_sum", astype(won, wide), ids, count=count)
    share = g / astype(where(greater(many, 0), many, 1), x.dtype)
    return won * _gathered(share, ids, count), None


_GRADS = {"sum": _sum_grad, "prod": _prod_grad, "min": _extreme_grad, "max": _extreme_grad}
for _monoid in UFUNCS:
    op(
        f"segment_{_monoid}",
        infer=_segment_rule(f"segment_{_monoid}"),
        takes={"count": whole(0)},
        indices=_segment_indices(_monoid),
        kernel=_segment_kernel(_monoid),
        batched=_segment_batched(f"segment_{_monoid}"),
        grad=_GRADS[_monoid],
        cost=read_cost(50),  # what is added to one place waits for what was added before
    )


def _segments(
    monoid: str, data: Operandish, ids: Operandish, count: int | None
) -> tuple[Array, Array, int]:
    name = f"segment_{monoid}"
    x, k = as_array(data), as_array(ids)
    if k.dtype.kind == "b":
        k = astype(k, int32)
    if k.ndim != 1 or x.shape[:1] != k.shape or not is_integer(k.dtype):
        got = f"data of shape {x.shape}, groups {k.spec.bare}"
        raise misfit(ShapeError, name, got=got, needed="a whole number for each row")
    return x, k, _reach(k, name) if count is None else whole_number(count, name, 0)


def _added(monoid: str, data: Operandish, ids: Operandish, count: int | None) -> Array:
    x, k, n = _segments(monoid, data, ids, count)
    kind = sum_dtype(x.spec, None)
    made = apply(f"segment_{monoid}", astype(x, accumulator(kind)), k, count=n)
    return astype(made, kind)


def segment_sum(
    data: Operandish, segment_ids: Operandish, num_segments: int | None = None
) -> Array:
    """The sum of the rows of each group; `segment_ids` has each row's. Without `num_segments` the
    largest number is read. Workers send the groups' sums: one all-reduce.

    >>> ost.segment_sum([1.0, 2.0, 3.0], [0, 1, 0], 2)
    Array([4., 2.], dtype=float64)
    """
    return _added("sum", data, segment_ids, num_segments)


def segment_prod(
    data: Operandish, segment_ids: Operandish, num_segments: int | None = None
) -> Array:
    """The product of the rows of each group: one all-reduce.

    >>> ost.segment_prod([1.0, 2.0, 3.0], [0, 1, 0], 2)
    Array([3., 2.], dtype=float64)
    """
    return _added("prod", data, segment_ids, num_segments)


def segment_min(
    data: Operandish, segment_ids: Operandish, num_segments: int | None = None
) -> Array:
    """The smallest of each group's rows; of none, the largest number that there is. One all-reduce.

    >>> ost.segment_min([1.0, 2.0, 3.0], [0, 1, 0], 2)
    Array([1., 2.], dtype=float64)
    """
    x, k, n = _segments("min", data, segment_ids, num_segments)
    return apply("segment_min", x, k, count=n)


def segment_max(
    data: Operandish, segment_ids: Operandish, num_segments: int | None = None
) -> Array:
    """The largest of each group's rows; of none, the smallest number that there is. One all-reduce.

    >>> ost.segment_max([1.0, 2.0, 3.0], [0, 1, 0], 2)
    Array([3., 2.], dtype=float64)
    """
    x, k, n = _segments("max", data, segment_ids, num_segments)
    return apply("segment_max", x, k, count=n)


def segment_mean(
    data: Operandish, segment_ids: Operandish, num_segments: int | None = None
) -> Array:
    """The mean of each group's rows; NaN where there are none. Sums and counts are one message.

    >>> ost.segment_mean([1.0, 2.0, 3.0], [0, 1, 0], 2)
    Array([2., 2.], dtype=float64)
    """
    return groupby(segment_ids, size=num_segments).mean(data)


# -- groupby -----------------------------------------------------------------------------------
class GroupBy:
    """Rows by the number of their group; what it makes has a row for each group.

    >>> groups = ost.groupby([0, 1, 0])
    >>> groups.count()
    Array([2, 1], dtype=int64)
    """

    def __init__(self, keys: Array, size: int) -> None:
        self.keys = keys
        self.size = size

    def count(self) -> Array:
        """How many rows each group has.

        >>> ost.groupby([0, 1, 0], size=2).count()  # 2, 1
        """
        return tally(self.keys, self.size)

    def sum(self, x: Operandish) -> Array:
        """The sum of each group's rows.

        >>> ost.groupby([0, 1, 0], size=2).sum([1.0, 2.0, 4.0])  # 5, 2
        """
        return segment_sum(x, self.keys, self.size)

    def prod(self, x: Operandish) -> Array:
        """The product of each group's rows."""
        return segment_prod(x, self.keys, self.size)

    def min(self, x: Operandish) -> Array:
        """The smallest of each group's rows."""
        return segment_min(x, self.keys, self.size)

    def max(self, x: Operandish) -> Array:
        """The largest of each group's rows."""
        return segment_max(x, self.keys, self.size)

    def mean(self, x: Operandish) -> Array:
        """The mean of each group's rows; NaN where there are none.

        >>> ost.groupby([0, 1, 0], size=2).mean([1.0, 2.0, 4.0])  # 2.5, 2
        """
        rows = floating(x)
        wide = widened(rows)
        made = segment_sum(wide, self.keys, self.size)
        return astype(made / self._beside(made), rows.dtype)

    def var(self, x: Operandish, *, correction: float = 0.0) -> Array:
        """The variance of each group's rows, of what is left without their mean; the sum of
        squares is divided by their number less the correction. Two all-reduces."""
        rows = floating(x)
        wide = widened(rows)
        off = wide - self.of_each(self.mean(wide))
        if off.dtype.kind == "c":
            off = absolute(off)
        squares = segment_sum(square(off), self.keys, self.size)
        left = self._beside(squares) - correction
        left = where(greater(left, 0), left, astype(math.nan, left.dtype))
        return astype(squares / left, real_of(rows.dtype))

    def std(self, x: Operandish, *, correction: float = 0.0) -> Array:
        """The standard deviation of each group's rows."""
        return sqrt(self.var(x, correction=correction))

    def of_each(self, y: Operandish) -> Array:
        """Return what each row's group has, of something that has a row for each group: NaN, or 0,
        where a row is in none.

        >>> ost.groupby([0, 1, 0], size=2).of_each([2.5, 2.0])  # 2.5, 2, 2.5
        """
        made = as_array(y)
        if made.shape[:1] != (self.size,):
            got = f"shape {made.shape}"
            raise misfit(ShapeError, "of_each", got=got, needed=f"{self.size} rows")
        return _gathered(made, self.keys, self.size, math.nan if is_inexact(made.dtype) else 0)

    def _beside(self, made: Array) -> Array:
        """The counts, in the form of what they divide."""
        count = astype(self.count(), real_of(made.dtype))
        return reshape(count, (self.size,) + (1,) * (made.ndim - 1))


def groupby(keys: Operandish, *, size: int | None = None) -> GroupBy:
    """Groups of rows; `keys` has the number of each row's group, 0 to `size` - 1, and rows with
    other numbers are in none. Without `size` the largest number is read. Of keys that are no such
    numbers `labels, keys = ost.unique_inverse(x, size=n)` makes them.

    >>> ost.groupby([0, 1, 0], size=2).mean([1.0, 2.0, 3.0])
    Array([2., 2.], dtype=float64)
    """
    k = as_array(keys)
    if k.dtype.kind == "b":
        k = astype(k, int32)
    if k.ndim != 1 or not is_integer(k.dtype):
        raise misfit(ShapeError, "groupby", got=f"{k.spec.bare}", needed="a whole number per row")
    return GroupBy(k, _reach(k, "groupby") if size is None else whole_number(size, "groupby", 0))
