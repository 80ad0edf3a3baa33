"""Selection: the elements that would stand at some ranks, without putting all in order.

    order_statistics    j -> ., whole along the axes; by introselect
    partition           . j -> . j, as NumPy has it

Where an axis is split over workers, nobody gathers the data: ranks are found digit by digit, the
highest first. In each round every worker counts, among its elements whose higher digits are
known to be the right ones, how often each digit occurs; the counts are one all-reduce, and say
in which digit a rank lies. So 3 rounds of 11 bits find any element of float32, and 6 one of
float64, with memory in proportion to a part. Of files, where a round is a pass over all, digits are
as wide as counts need no more memory than a block: 2 rounds of 16 bits, and 4. Short lines, and
lines in two or three parts, are gathered, or brought together each on one worker, where the planner
finds that this takes less time than so many rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.errors import BoundsError, DTypeError

from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from ..core.graph import Graph
from ..core.index import LETTERS, Indices
from ..core.parameters import AXES, AXIS, DTYPE, PLACES, unfit
from ..core.registry import Params, Specs, op, stream_cost
from ..core.spec import DType, Spec, bfloat16, float64, int64, is_inexact
from ..core.trace import graph_of
from ..core.user_line import misfit
from .arithmetic import minimum
from .casts import astype
from .comparisons import equal, greater, less, less_equal
from .concatenation import concat
from .cumulative import cumulative_sum, running
from .elementwise import where
from .indexing import take_along_axis
from .reduction import argmax
from .reduction import max as largest
from .reduction import sum as sum_of
from .segments import segment_sum, tally
from .shape import axis_of, broadcast_to, expand_dims, listed, reshape
from .sorting import argsort, keys_of, lines_lie_apart, numbers_of

__all__ = ["argpartition", "partition"]

WIDEST, WIDE, NARROW = 16, 11, 8  # bits of a digit: of files, of few ranks at a time, and of many
MAX_WIDE_RANKS = 1 << 6


# -- keys --------------------------------------------------------------------------------------
def _unsigned(dtype: DType) -> DType:
    return np.dtype(f"u{dtype.itemsize}")


def _keys_kernel(xp: Any, out: Any, x: Any) -> None:
    """Without a sign, the smallest is 0."""
    if x.dtype.kind in "ub":
        xp.copyto(out, x.astype(out.dtype))
        return
    real = is_inexact(x.dtype)
    signed = keys_of(xp, x) if real else x
    top = np.iinfo(signed.dtype).min
    xp.copyto(out, (signed ^ top).view(out.dtype))


def _numbers_kernel(xp: Any, out: Any, keys: Any, *, of: DType) -> None:
    if of.kind in "ub":
        xp.copyto(out, keys.astype(of))
        return
    signed = keys.view(f"i{keys.itemsize}") ^ np.iinfo(f"i{keys.itemsize}").min
    xp.copyto(out, numbers_of(xp, signed, of) if is_inexact(of) else signed)


def _keys_rule(x: Spec) -> Spec:
    if x.dtype.kind == "c":
        raise unfit("sort_keys", (x,), "a dtype with an order", DTypeError)
    return Spec(x.shape, _unsigned(x.dtype))


def _numbers_rule(keys: Spec, *, of: DType) -> Spec:
    if of.kind == "c" or keys.dtype != _unsigned(of):
        raise unfit("sorted_numbers", (keys,), f"keys of {of.name}", DTypeError)
    return Spec(keys.shape, of)


# whole numbers without a sign, in the order of the numbers; NaN is the largest
op("sort_keys", infer=_keys_rule, kernel=_keys_kernel, scalar="sort_key({0})", cost=stream_cost(2))
op(
    "sorted_numbers",  # the numbers that have such keys
    infer=_numbers_rule,
    takes={"of": DTYPE},
    kernel=_numbers_kernel,
    cost=stream_cost(2),
)


# -- ranks -------------------------------------------------------------------------------------
def _ranks_rule(x: Spec, ranks: Spec, *, axes: tuple[int, ...]) -> Spec:
    left = tuple(n for d, n in enumerate(x.shape) if d not in axes)
    fits = ranks.ndim == len(left) + 1 and all(
        n in (1, m) for n, m in zip(ranks.shape, left, strict=False)
    )
    if x.dtype.kind == "c" or ranks.dtype != int64 or not fits:
        raise unfit("order_statistics", (x, ranks), "numbers with an order, and ranks of each line")
    if math.prod(x.shape[a] for a in axes) == 0 and math.prod(left) * ranks.shape[-1]:
        got = f"shape {x.shape}"
        raise misfit(BoundsError, "order_statistics", got=got, needed="at least one element")
    return Spec((*left, ranks.shape[-1]), x.dtype)


def _ranks_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    x, ranks = ins
    labels = tuple(None if d in p["axes"] else LETTERS[d] for d in range(x.ndim))
    left = tuple(c for c in labels if c is not None)
    sizes = outs[0].shape
    own = tuple(c if n == m else None for c, n, m in zip(left, ranks.shape, sizes, strict=False))
    return Indices((labels, (*own, None)), ((*left, None),))


def lines_of(x: Any, axes: tuple[int, ...]) -> Any:
    """A row for each of the lines along these axes."""
    left = [d for d in range(x.ndim) if d not in axes]
    count = math.prod(x.shape[a] for a in axes)
    return x.transpose((*left, *axes)).reshape((*(x.shape[d] for d in left), count))


def _ranks_kernel(xp: Any, out: Any, x: Any, ranks: Any, *, axes: tuple[int, ...]) -> None:
    if not out.size:
        return
    lines = lines_of(x, axes)
    real = is_inexact(x.dtype)
    ordered = keys_of(xp, lines) if real else lines
    ordered = xp.sort(ordered, axis=-1)
    places = xp.broadcast_to(ranks, out.shape)
    found = xp.take_along_axis(ordered, places, axis=-1)
    xp.copyto(out, numbers_of(xp, found, x.dtype) if real else found)


def _ranks_grad(
    g: Array, y: Array, x: Array, ranks: Array, *, axes: tuple[int, ...]
) -> Sequence[Array | None]:
    """To the elements that are equal to what was found, in equal shares."""
    total: Array | None = None
    for k in range(y.shape[-1]):
        one, slope = (expand_dims(v[..., k], axis=axes) for v in (y, g))
        won = equal(x, one)
        many = sum_of(astype(won, x.dtype), axes, keepdims=True)
        share = where(won, slope / where(equal(many, 0), astype(1, x.dtype), many), 0)
        total = share if total is None else total + share
    return total, None


def _select_cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    """A sample and passes, after a copy of lines that lie apart."""
    each = 60.0 if lines_lie_apart(ins[0], p["axes"]) else 40.0
    return each * ins[0].size, float(ins[0].nbytes + outs[0].nbytes)


def _by_digits(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    """Where a line is in parts, all workers count."""
    x, axes = ins[0], p["axes"]
    layout = x.layout
    if layout is None or layout.windows or not {*axes} & {*layout.splits}:
        return ()
    bits = WIDE if outs[0].size <= MAX_WIDE_RANKS else NARROW
    if layout.stored:
        room = x.nbytes // (layout.workers * 8 * max(outs[0].size, 1))
        bits = max(bits, min(room.bit_length() - 1, WIDEST))
    return [graph_of(lambda x, ranks: (_radix_select(x, ranks, axes, bits),), ins)]


def _radix_select(x: Array, ranks: Array, axes: tuple[int, ...], bits: int = WIDE) -> Array:
    keys = apply("sort_keys", x)
    shape = (*(n for d, n in enumerate(x.shape) if d not in axes), ranks.shape[-1])
    ranks = broadcast_to(ranks, shape)
    left = 8 * keys.dtype.itemsize
    prefix: Array | None = None  # the digits that each rank's element is known to have
    while left:
        width = min(bits, left)
        left -= width
        counts = _digits(keys, prefix, axes, left, width, shape[-1])
        upto = cumulative_sum(counts, axis=counts.ndim - 1)
        before = less_equal(upto, expand_dims(ranks, axis=len(shape)))
        digit = sum_of(astype(before, int64), axis=-1)
        ranks = ranks - sum_of(where(before, counts, 0), axis=-1)
        digit = astype(digit, keys.dtype)
        prefix = digit if prefix is None else prefix * (1 << width) + digit
    assert prefix is not None
    return apply("sorted_numbers", prefix, of=x.dtype)


def _digits(
    keys: Array, prefix: Array | None, axes: tuple[int, ...], left: int, width: int, many: int
) -> Array:
    """How often each digit follows the digits that are known, for each rank. An element is counted once,
    for the first rank with its digits; who has the same ones is told so."""
    count, lines = 1 << width, keys.ndim - len(axes)
    digit = _below(_above(keys, left), count)
    if prefix is None:
        return expand_dims(tally(astype(digit, _least(count)), count, axes), axis=lines)
    high, place = _above(keys, left + width), as_array(-1)
    digit = astype(digit, _least(many * count))
    for k in reversed(range(many)):
        same = equal(high, expand_dims(prefix[..., k], axis=axes))
        place = where(same, digit + k * count, astype(place, digit.dtype))
    found = tally(place, many * count, axes)
    found = reshape(found, (*found.shape[:-1], many, count))
    alike = equal(expand_dims(prefix, axis=lines + 1), expand_dims(prefix, axis=lines))
    first = argmax(astype(alike, np.dtype(np.int8)), axis=lines + 1)
    return take_along_axis(found, expand_dims(first, axis=lines + 1), axis=lines)


def _least(count: int) -> DType:
    """The fewest bytes for so many numbers, and -1."""
    return np.dtype(np.int16 if count <= 1 << 15 else np.int32)


def weighted_select(row: Array, weights: Array, line: Array, lines: int, shares: Array) -> Array:
    """Find, for each line and each share, the first element in order up to which that share of its
    weights goes. The lines' elements are in one row, with the number of their line."""
    keys, many = apply("sort_keys", row), shares.size
    total = expand_dims(segment_sum(weights, line, lines), axis=1)
    before = apply("full", shape=(lines, many), value=0.0, dtype=float64)
    prefix: Array | None = None
    left = 8 * keys.dtype.itemsize
    while left:
        width = min(NARROW, left)
        left, count = left - width, 1 << width
        digit = astype(_below(_above(keys, left), count), int64) + line * count
        sums = []
        for k in range(many if prefix is not None else 1):
            place = digit
            if prefix is not None:
                known = apply("take", prefix[:, k], line, axis=0)
                place = where(equal(_above(keys, left + width), known), digit, -1)
            sums.append(reshape(segment_sum(weights, place, lines * count), (lines, 1, count)))
        each = broadcast_to(concat(sums, axis=1), (lines, many, count))
        upto = expand_dims(before, axis=2) + cumulative_sum(each, axis=2)
        share = upto / expand_dims(total, axis=2)
        short = less(share, reshape(shares, (1, many, 1))) | less_equal(upto, 0.0)
        found = sum_of(astype(short, int64), axis=-1)
        numbers = apply("iota", shape=(1, 1, count), axis=2, dtype=int64)
        last = largest(where(greater(each, 0), numbers, 0), axis=-1)  # sums of parts are rounded
        found = minimum(found, last)
        before = before + sum_of(
            where(less(numbers, expand_dims(found, axis=2)), each, 0.0), axis=-1
        )
        found = astype(found, keys.dtype)
        prefix = found if prefix is None else prefix * count + found
    assert prefix is not None
    return apply("sorted_numbers", prefix, of=row.dtype)


def _above(keys: Array, bits: int) -> Array:
    """Without so many lowest bits."""
    return keys >> bits if bits else keys


def _below(keys: Array, count: int) -> Array:
    return keys & (count - 1) if count <= np.iinfo(keys.dtype).max else keys


op(
    "order_statistics",  # the elements at these ranks along axes; NaN is the largest
    infer=_ranks_rule,
    takes={"axes": AXES},
    indices=_ranks_indices,
    kernel=_ranks_kernel,
    grad=_ranks_grad,
    algorithms=_by_digits,
    cost=_select_cost,
)


# -- partitions --------------------------------------------------------------------------------
def _partition_rule(x: Spec, *, axis: int, places: tuple[int, ...]) -> Spec:
    if x.dtype.kind == "c":
        raise unfit("partition", (x,), "a dtype with an order", DTypeError)
    if any(k >= x.shape[axis] for k in places):
        needed = f"places along an axis of {x.shape[axis]} elements"
        raise misfit(BoundsError, "partition", got=f"places {places}", needed=needed)
    return Spec(x.shape, x.dtype)


def _partition_kernel(xp: Any, out: Any, x: Any, *, axis: int, places: tuple[int, ...]) -> None:
    real = is_inexact(x.dtype)
    made = keys_of(xp, x) if real else x
    made = xp.sort(made, axis=axis)
    xp.copyto(out, numbers_of(xp, made, x.dtype) if real else made)


def _argpartition_kernel(xp: Any, out: Any, x: Any, *, axis: int, places: tuple[int, ...]) -> None:
    xp.copyto(out, xp.argsort(x.astype(xp.float32) if x.dtype == bfloat16 else x, axis=axis))


def _partition_grad(
    g: Array, y: Array, x: Array, *, axis: int, places: tuple[int, ...]
) -> Sequence[Array | None]:
    """By rank: what is the k-th of the result is the k-th of the operand."""
    ordered = take_along_axis(g, argsort(y, axis=axis), axis=axis)
    rank = argsort(argsort(x, axis=axis), axis=axis)
    return (take_along_axis(ordered, rank, axis=axis),)


def _partition_cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    each = 150.0 if lines_lie_apart(ins[0], (p["axis"],)) else 15.0
    return each * ins[0].size, float(ins[0].nbytes + outs[0].nbytes)


op(
    "partition",
    infer=_partition_rule,
    takes={"axis": AXIS, "places": PLACES},
    indices=running,
    kernel=_partition_kernel,
    grad=_partition_grad,
    ranked="order_statistics",
    cost=_partition_cost,
)
op(
    "argpartition",
    infer=lambda x, *, axis, places: Spec(
        _partition_rule(x, axis=axis, places=places).shape, int64
    ),
    takes={"axis": AXIS, "places": PLACES},
    indices=running,
    kernel=_argpartition_kernel,
    cost=_partition_cost,
)


def _divided(a: Operandish, kth: int | Sequence[int], axis: int | None, name: str) -> Array:
    x = as_array(a)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    d = axis_of(axis, x.ndim, name)
    n = x.shape[d]
    places = tuple(sorted({k + n if k < 0 else k for k in listed(kth, name)}))
    if any(not 0 <= k < n for k in places):
        needed = f"{-n} to {n - 1}, as the axis has {n} elements"
        raise misfit(BoundsError, name, got=f"kth={kth}", needed=needed)
    return apply(name, x, axis=d, places=places)


def partition(a: Operandish, kth: int | Sequence[int], axis: int | None = -1) -> Array:
    """The elements along an axis with the k-th in its place: what stands before it is not larger,
    what stands behind it not smaller. A line is needed whole; `median` and `quantile` are not so.

    >>> ost.partition([3, 1, 2], 0)[0]
    Array(1, dtype=int64)
    """
    return _divided(a, kth, axis, "partition")


def argpartition(a: Operandish, kth: int | Sequence[int], axis: int | None = -1) -> Array:
    """The places that the elements of a partition come from.

    >>> ost.argpartition([3, 1, 2], 0)[0]
    Array(1, dtype=int64)
    """
    return _divided(a, kth, axis, "argpartition")
