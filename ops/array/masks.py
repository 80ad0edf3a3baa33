"""Where a mask is True: the places that depend on data. With `size` there are so many, as compiled
functions need it; without, as many as there are, and the mask is read.

    true_places    j -> ., whole: a mask travels as bytes, one for each element. Of a file's blocks,
                   and of parts where that pays, running counts say which result a place is, and the
                   results are sums over groups of one place each

Everything else follows: `nonzero`, `argwhere`, `where(condition)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.errors import DTypeError, ShapeError

from ..autodiff.batching import Mapped, each
from ..core import array
from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.graph import Graph
from ..core.index import Indices
from ..core.parameters import unfit, whole
from ..core.registry import Params, Specs, op
from ..core.spec import Spec, bool_, int64
from ..core.trace import graph_of
from ..core.user_line import misfit
from .casts import astype
from .concatenation import stack
from .cumulative import cumulative_sum
from .elementwise import where
from .indexing import take
from .joining import atleast_1d
from .picked import places_of
from .shape import copy, reshape, whole_number

__all__ = ["argwhere", "compress", "extract", "flatnonzero", "nonzero"]


def _rule(x: Spec, *, size: int) -> Spec:
    if x.dtype != bool_ or x.ndim != 1:
        raise unfit("true_places", (x,), "a row of bools", DTypeError)
    return Spec((size,), int64)


def _kernel(xp: Any, out: Any, x: Any, *, size: int) -> None:
    """Without a look at how many there are, for which the host would wait."""
    n = x.shape[0]
    found = xp.searchsorted(xp.cumsum(x, dtype=np.int64), xp.arange(1, size + 1))
    xp.copyto(out, xp.where(found < n, found, 0))


def _by_counts(x: Array, size: int) -> Array:
    rank = cumulative_sum(astype(x, int64)) - 1
    slot = where(x & (rank < size), rank, -1)
    numbers = apply("iota", shape=x.shape, axis=0, dtype=int64)
    return apply("segment_sum", numbers, slot, count=size)


def _algorithms(ins: Specs, outs: Specs, p: Params) -> Sequence[Graph]:
    (x,) = ins
    layout = x.layout
    if layout is None or layout.windows or layout.is_whole:
        return ()
    return [graph_of(lambda x: (_by_counts(x, p["size"]),), ins)]


def _batched(many: int, x: Mapped, *, size: int) -> Sequence[Mapped]:
    return each(lambda row: (_by_counts(row, size),), (x,), many)


op(
    "true_places",  # of the first ones that are True, in order, behind them 0
    infer=_rule,
    takes={"size": whole(0)},
    indices=lambda ins, outs, p: Indices(((None,),), ((None,),)),
    kernel=_kernel,
    algorithms=_algorithms,
    batched=_batched,
    cost=lambda ins, outs, p: (2.0 * ins[0].size, float(ins[0].nbytes + outs[0].nbytes)),
)


@export
def nonzero(x: Operandish, /, *, size: int | None = None) -> tuple[Array, ...]:
    """Where the elements are not zero, one array per axis. With `size`, so many places, the rest
    filled with 0. Inside compiled functions, without it, they are places for keys: `x[nonzero(m)]`.

    >>> ost.nonzero([0, 3, 4])[0]
    Array([1, 2], dtype=int64)
    """
    x = as_array(x)
    if x.ndim == 0:
        raise misfit(ShapeError, "nonzero", got="a 0-dimensional array", needed="at least one axis")
    hit = x if x.dtype == bool_ else x != 0
    if size is None:
        if x._is_traced:
            return tuple(places_of(copy(hit) if hit is x else hit))  # it may be assigned to later
        return tuple(as_array(i) for i in np.nonzero(array.reader.known(x, "nonzero", shape=True)))
    size = whole_number(size, "nonzero", 0)
    flat = apply("true_places", reshape(hit, (-1,)), size=size)
    found = [flat]
    for n in reversed(x.shape[1:]):
        found[:1] = found[0] // n, found[0] % n
    return tuple(found)


def argwhere(a: Operandish, *, size: int | None = None) -> Array:
    """The places of what is not zero, a row for each; with `size`, as `nonzero`.

    >>> ost.argwhere([0, 3, 4])
    Array([[1],
           [2]], dtype=int64)
    """
    x = as_array(a)
    return stack(nonzero(atleast_1d(x), size=size), axis=-1)[:, : x.ndim]


def extract(condition: Operandish, arr: Operandish) -> Array:
    """The elements where the condition holds, in one row.

    >>> ost.extract([True, False, True], [1, 2, 3])
    Array([1, 3], dtype=int64)
    """
    return compress(reshape(as_array(condition), (-1,)), arr)


def compress(condition: Operandish, a: Operandish, axis: int | None = None) -> Array:
    """The slices along an axis where the condition holds, or the elements in one row.

    >>> ost.compress([False, True], [[1, 2], [3, 4]], axis=0)
    Array([[3, 4]], dtype=int64)
    """
    return take(a, flatnonzero(condition), axis)


def flatnonzero(a: Operandish, *, size: int | None = None) -> Array:
    """The places of what is not zero, among the elements in one row; with `size`, as `nonzero`.

    >>> ost.flatnonzero([0, 3, 4])
    Array([1, 2], dtype=int64)
    """
    return nonzero(reshape(as_array(a), (-1,)), size=size)[0]
