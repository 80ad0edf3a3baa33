"""Control flow made of control flow: one of several functions, a function of each element, and what an
associative function makes of all elements up to each.

    switch              a tree of `cond`, so that one of n functions is found by log2(n) conditions
    map                 `scan` without a state, over batches of elements, if a size is said
    associative_scan    pairs of neighbours first, then pairs of these: 2 log2(n) calls of the function"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..array.comparisons import less
from ..array.concatenation import concat, stack
from ..array.shape import axis_of, reshape, whole_number
from ..array.slicing import slice_axes
from ..autodiff.batching import each, given_axis
from ..core.apply import as_array
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.spec import is_integer
from ..core.tracebacks import door
from ..core.tree import flatten, unflatten
from ..core.user_line import misfit
from .branches import cond
from .repeat_scan import scan

__all__ = ["associative_scan", "map", "switch"]

S = TypeVar("S")


# -- one of several ------------------------------------------------------------------------
@export
@door
def switch(index: Operandish, branches: Sequence[Callable[..., S]], *operands: Any) -> S:
    """`branches[index](*operands)`; only that one runs. An index that is outside is brought to the nearest
    inside, as JAX does.

    >>> ost.switch(1, [lambda x: x + 1, lambda x: x * x, lambda x: -x], 5)
    Array(25, dtype=int64)
    """
    k = as_array(index)
    if k.shape or not is_integer(k.dtype):
        raise misfit(DTypeError, "switch", got=f"an index {k.spec.bare}", needed="one whole number")
    if not branches:
        raise misfit(ArgumentError, "switch", got="no branches", needed="one function or more")

    def among(first: int, end: int) -> Callable[..., S]:
        middle = (first + end) // 2
        if first == middle:
            return branches[first]
        lower, upper = among(first, middle), among(middle, end)
        return lambda *args: cond(less(k, middle), lower, upper, *args)

    return among(0, len(branches))(*operands)


# -- each by itself ------------------------------------------------------------------------
@export
@door
def map(function: Callable[[Any], S], xs: Any, *, batch_size: int | None = None) -> S:
    """The function of each x along the first axis, one after the other; the results, stacked. With
    `batch_size`, of so many at a time, as `ost.vmap` would.

    >>> ost.map(lambda row: row.sum(), ost.asarray([[1, 2], [3, 4]]))
    Array([3, 7], dtype=int64)
    """
    leaves, structure = flatten(xs)
    rows = [as_array(x) for x in leaves]
    if len({x.shape[:1] for x in rows}) != 1 or not rows[0].shape:
        got = " and ".join(str(x.shape) for x in rows) or "no arrays"
        raise misfit(ShapeError, "map", got=got, needed="arrays with a common first axis")
    if batch_size is None:
        made: S = scan(lambda s, x: (s, function(x)), None, unflatten(structure, rows))[1]
        return made
    many, size = rows[0].shape[0], whole_number(batch_size, "map", 1)
    size = min(size, max(many, 1))
    whole, found = many - many % size, list[Any]()

    def batch(parts: Sequence[Array]) -> list[Array]:
        def one(*xs: Array) -> list[Array]:
            ys, shape = flatten(function(unflatten(structure, list(xs))))
            found[:] = [shape]
            return [as_array(y) for y in ys]

        count = parts[0].shape[0]
        return [given_axis(y, count) for y in each(one, [(x, True) for x in parts], count)]

    def part(x: Array, start: int, end: int) -> Array:
        return slice_axes(x, {0: (start, end - start, 1)})

    batches = [reshape(part(x, 0, whole), (whole // size, size, *x.shape[1:])) for x in rows]
    _, stacks = scan(lambda s, xs: (s, batch(xs)), None, batches)
    stacks = [reshape(y, (whole, *y.shape[2:])) for y in stacks]
    if whole < many:
        rest = batch([part(x, whole, many) for x in rows])
        stacks = [concat(pair) for pair in zip(stacks, rest, strict=True)]
    together: S = unflatten(found[0], stacks)
    return together


# -- all up to each ------------------------------------------------------------------------
@export
@door
def associative_scan(
    function: Callable[[Any, Any], Any], xs: Any, *, reverse: bool = False, axis: int = 0
) -> Any:
    """For each place along an axis what an associative function makes of all elements up to there, as
    `cumulative_sum` does with +. It is given arrays of many elements each, or trees of them, and gives
    as many; `reverse` begins at the end.

    >>> ost.associative_scan(lambda a, b: a * b, ost.asarray([1, 2, 3, 4]))
    Array([ 1,  2,  6, 24], dtype=int64)
    """
    leaves, structure = flatten(xs)
    rows = [as_array(x) for x in leaves]
    dims = [axis_of(axis, x.ndim, "associative_scan") for x in rows]
    lengths = {x.shape[d] for x, d in zip(rows, dims, strict=True)}
    if len(lengths) != 1:
        got = " and ".join(str(x.shape) for x in rows) or "no arrays"
        needed = f"arrays with one extent along axis {axis}"
        raise misfit(ShapeError, "associative_scan", got=got, needed=needed)

    def combine(a: Sequence[Array], b: Sequence[Array]) -> list[Array]:
        made, found = flatten(
            function(unflatten(structure, list(a)), unflatten(structure, list(b)))
        )
        ys = [as_array(y) for y in made]
        if found != structure or [y.spec.bare for y in ys] != [x.spec.bare for x in a]:
            got = f"{found} of {', '.join(str(y.spec.bare) for y in ys)} coming out of the function"
            needed = f"what goes in, {structure} of {', '.join(str(x.spec.bare) for x in a)}"
            raise misfit(ShapeError, "associative_scan", got=got, needed=needed)
        return ys

    def part(xs: Sequence[Array], start: int, count: int, step: int = 1) -> list[Array]:
        return [slice_axes(x, {d: (start, count, step)}) for x, d in zip(xs, dims, strict=True)]

    def scanned(xs: Sequence[Array]) -> list[Array]:
        n = xs[0].shape[dims[0]]
        if n < 2:
            return list(xs)
        odd = scanned(combine(part(xs, 0, n // 2, 2), part(xs, 1, n // 2, 2)))
        more = (n - 1) // 2  # even places behind the first
        even = part(xs, 0, 1)
        if more:
            behind = combine(part(odd, 0, more), part(xs, 2, more, 2))
            even = [concat(p, axis=d) for *p, d in zip(even, behind, dims, strict=True)]
        found = []
        for a, b, d, x in zip(even, odd, dims, xs, strict=True):
            pairs = stack([slice_axes(a, {d: (0, n // 2, 1)}), b], axis=d + 1)
            y = reshape(pairs, (*x.shape[:d], n // 2 * 2, *x.shape[d + 1 :]))
            found.append(concat([y, slice_axes(a, {d: (n // 2, 1, 1)})], axis=d) if n % 2 else y)
        return found

    def turned(xs: Sequence[Array]) -> list[Array]:
        (n,) = lengths
        return part(xs, n - 1, n, -1) if reverse and n > 1 else list(xs)

    return unflatten(structure, turned(scanned(turned(rows))))
