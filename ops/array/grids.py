"""Places of elements, by NumPy's names, and what is put there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..core.apply import apply, as_array
from ..core.array import Array, another
from ..core.array_methods import Operandish
from ..core.spec import DTypeLike, bool_, int64
from ..core.user_line import misfit
from .assigning import changed, written
from .casts import as_dtype, astype
from .concatenation import stack
from .creation import arange, meshgrid, zeros
from .cumulative import cumulative_sum
from .elementwise import where as choice
from .indexing import inside, take
from .joining import ravel
from .masks import nonzero
from .shape import axis_of, broadcast_to, listed, reshape
from .slicing import MODES

__all__ = [
    "copyto",
    "diag_indices",
    "diag_indices_from",
    "fill_diagonal",
    "fromfunction",
    "indices",
    "ix_",
    "place",
    "put",
    "put_along_axis",
    "putmask",
    "ravel_multi_index",
    "tril_indices",
    "tril_indices_from",
    "triu_indices",
    "triu_indices_from",
    "unravel_index",
]


def put_along_axis(
    arr: Operandish,
    indices: Operandish,
    values: Operandish,
    axis: int | None = -1,
    *,
    mode: str = "set",
) -> Array:
    """The array with values at each line's own places along an axis: set there, or joined by `add`,
    `multiply`, `min` or `max`. The array that was given stays, except in a statement, as in NumPy.

    >>> ost.put_along_axis([[3, 1], [2, 4]], [[0], [1]], 9)
    Array([[9, 1],
           [2, 9]], dtype=int64)
    """
    x, i = as_array(arr), as_array(indices)
    if axis is None:
        row = put_along_axis(ravel(x), ravel(i), values, 0, mode=mode)
        made = reshape(row, x.shape)
        return changed(arr, made, "put_along_axis", sys._getframe(1))
    d = axis_of(axis, x.ndim, "put_along_axis")
    if mode not in MODES:
        raise misfit(ArgumentError, "put_along_axis", got=f"mode={mode!r}", needed=", ".join(MODES))
    if i.ndim != x.ndim:
        got = f"{x.shape} and indices {i.shape}"
        raise misfit(ArgumentError, "put_along_axis", got=got, needed="as many axes in both")
    shape = tuple(m if k == d else n for k, (n, m) in enumerate(zip(x.shape, i.shape, strict=True)))
    lines = tuple(
        broadcast_to(i, shape) if k == d else apply("iota", shape=shape, axis=k, dtype=int64)
        for k in range(x.ndim)
    )
    made = getattr(x.at[lines], mode)(values)
    return changed(arr, made, "put_along_axis", sys._getframe(1))


def indices(dimensions: Sequence[int], dtype: DTypeLike = int64, sparse: bool = False) -> Any:
    """For each axis of a grid the places along it; of one line each, in a tuple, if `sparse`.

    >>> ost.indices((2, 2))[1]
    Array([[0, 1],
           [0, 1]], dtype=int64)
    """
    shape = listed(dimensions, "indices")
    kind = as_dtype(dtype)
    if sparse:
        rows = [apply("iota", shape=(n,), axis=0, dtype=kind) for n in shape]
        return tuple(meshgrid(*rows, indexing="ij", sparse=True))
    if not shape:
        return zeros((0,), dtype=kind)
    return stack([apply("iota", shape=shape, axis=d, dtype=kind) for d in range(len(shape))])


def unravel_index(indices: Operandish, shape: Sequence[int]) -> tuple[Array, ...]:
    """The places along each axis that the numbers of elements, counted in one row, stand for.

    >>> ost.unravel_index(5, (2, 3))
    (Array(1, dtype=int64), Array(2, dtype=int64))
    """
    rest, found = astype(as_array(indices), int64), list[Array]()
    for n in reversed(listed(shape, "unravel_index")):
        found.append(rest % n)
        rest = rest // n
    return tuple(reversed(found))


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """The places of the diagonal of a cube.

    >>> ost.diag_indices(2)[0]
    Array([0, 1], dtype=int64)
    """
    return (arange(n),) * ndim


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]:
    """The places on and below the k-th diagonal of a matrix.

    >>> ost.tril_indices(2)[1]
    Array([0, 0, 1], dtype=int64)
    """
    return tuple(map(as_array, np.tril_indices(n, k, m)))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]:
    """The places on and above the k-th diagonal of a matrix.

    >>> ost.triu_indices(2)[1]
    Array([0, 1, 1], dtype=int64)
    """
    return tuple(map(as_array, np.triu_indices(n, k, m)))


def _square(arr: Operandish, name: str) -> Array:
    x = as_array(arr)
    if x.ndim != 2:
        raise misfit(ShapeError, name, got=f"shape {x.shape}", needed="a matrix")
    return x


def diag_indices_from(arr: Operandish) -> tuple[Array, ...]:
    """Return the indices of the diagonal of an array whose axes are of one extent.

    >>> ost.diag_indices_from(ost.eye(2))
    (Array([0, 1], dtype=int64), Array([0, 1], dtype=int64))
    """
    x = as_array(arr)
    if x.ndim < 2 or len({*x.shape}) > 1:
        needed = "two axes or more of one extent"
        raise misfit(ShapeError, "diag_indices_from", got=f"shape {x.shape}", needed=needed)
    return diag_indices(x.shape[0], x.ndim)


def tril_indices_from(arr: Operandish, k: int = 0) -> tuple[Array, ...]:
    """The places on and below the k-th diagonal of this matrix.

    >>> ost.tril_indices_from(ost.eye(2))
    (Array([0, 1, 1], dtype=int64), Array([0, 0, 1], dtype=int64))
    """
    n, m = _square(arr, "tril_indices_from").shape
    return tril_indices(n, k, m)


def triu_indices_from(arr: Operandish, k: int = 0) -> tuple[Array, ...]:
    """The places on and above the k-th diagonal of this matrix.

    >>> ost.triu_indices_from(ost.eye(2))
    (Array([0, 0, 1], dtype=int64), Array([0, 1, 1], dtype=int64))
    """
    n, m = _square(arr, "triu_indices_from").shape
    return triu_indices(n, k, m)


def ix_(*args: Operandish) -> tuple[Array, ...]:
    """Places along each axis, shaped so that `x[ost.ix_(rows, columns)]` is where they cross.

    >>> ost.arange(9).reshape(3, 3)[ost.ix_([0, 2], [1, 2])]
    Array([[1, 2],
           [7, 8]], dtype=int64)
    """
    found = []
    for k, given in enumerate(args):
        x = as_array(given)
        if x.ndim != 1:
            raise misfit(ShapeError, "ix_", got=f"shape {x.shape}", needed="one axis each")
        if x.dtype == bool_:
            (x,) = nonzero(x)
        x = astype(x, int64) if not x.size else x
        found.append(reshape(x, tuple(x.size if k == d else 1 for d in range(len(args)))))
    return tuple(found)


def ravel_multi_index(
    multi_index: Sequence[Operandish], dims: Sequence[int], mode: str = "raise"
) -> Array:
    """The numbers, counted in one row, of elements at these places along each axis. They are not looked at:
    "clip" and "wrap" bring them into bounds.

    >>> ost.ravel_multi_index(([0, 1], [2, 0]), (2, 3))
    Array([2, 3], dtype=int64)
    """
    shape = listed(dims, "ravel_multi_index")
    if len(multi_index) != len(shape):
        got = f"{len(multi_index)} axes of places for {len(shape)} extents"
        raise misfit(ArgumentError, "ravel_multi_index", got=got, needed="as many of both")
    found = zeros((), dtype=int64)
    for places, n in zip(multi_index, shape, strict=True):
        k = astype(as_array(places), int64)
        found = found * n + inside(k, n, mode, "ravel_multi_index")
    return found


def copyto(dst: Array, src: Operandish, casting: str = "same_kind", where: Any = True) -> None:
    """Puts values into an array, or where a mask says so; `casting` as in NumPy, down to "same_kind".

    >>> x = ost.zeros(3)
    >>> ost.copyto(x, [1.0, 2.0, 3.0], where=[True, False, True])
    >>> x
    Array([1., 0., 3.], dtype=float64)
    """
    x = _own(dst, "copyto")
    values = as_array(src)
    if casting != "same_kind":
        if not np.can_cast(values.dtype, x.dtype, casting):  # type: ignore[arg-type]
            got = f"{values.dtype.name} for {x.dtype.name} and casting={casting!r}"
            raise misfit(DTypeError, "copyto", got=got, needed="a cast that this allows")
        values = astype(values, x.dtype)
    made = broadcast_to(values, x.shape) if where is True else choice(where, values, x)
    written(x, another(made) if made is values else made, "copyto")


def put(a: Array, ind: Operandish, v: Operandish, mode: str = "raise") -> None:
    """Puts values at places among the elements in one row, again and again if there are fewer.

    >>> x = ost.zeros(4)
    >>> ost.put(x, [0, -1], [1.0, 2.0])
    >>> x
    Array([1., 0., 0., 2.], dtype=float64)
    """
    x, places, values = _own(a, "put"), ravel(ind), ravel(v)
    if places.size and values.size:
        picks = take(values, arange(places.size) % values.size)
        x.flat[inside(places, x.size, mode, "put")] = picks


def putmask(a: Array, mask: Operandish, values: Operandish) -> None:
    """Puts values where a mask holds, each element's own, as if they were repeated.

    >>> x = ost.arange(4)
    >>> ost.putmask(x, x > 1, [10, 20])
    >>> x
    Array([ 0,  1, 10, 20], dtype=int64)
    """
    x, row = _own(a, "putmask"), ravel(values)
    x[...] = choice(mask, _again(row, arange(x.size), x), x)


def place(arr: Array, mask: Operandish, vals: Operandish) -> None:
    """Puts the first value where a mask holds first, and so on, again and again if there are fewer.

    >>> x = ost.arange(4)
    >>> ost.place(x, x > 1, [10, 20])
    >>> x
    Array([ 0,  1, 10, 20], dtype=int64)
    """
    x, row, held = _own(arr, "place"), ravel(vals), astype(mask, bool_)
    number = cumulative_sum(astype(ravel(held), int64)) - 1
    x[...] = choice(held, _again(row, number, x), x)


def _again(row: Array, numbers: Array, x: Array) -> Array:
    if not row.size:
        raise misfit(ArgumentError, "values", got="none of them", needed="at least one")
    return reshape(take(astype(row, x.dtype), numbers % row.size), x.shape)


def _own(x: Any, name: str) -> Array:
    """An array that can be assigned to."""
    if isinstance(x, Array):
        return x
    raise misfit(ArgumentError, name, got=f"a {type(x).__name__}", needed="an array of ostinato's")


def fill_diagonal(a: Array, val: Operandish, wrap: bool = False) -> None:
    """Puts a value, or one for each place, on the diagonal of an array, which then stands for that. Of a
    matrix with many rows, `wrap` begins it anew, one row further down.

    >>> x = ost.ones((2, 2))
    >>> ost.fill_diagonal(x, 0.0)
    >>> x
    Array([[0., 1.],
           [1., 0.]], dtype=float64)
    """
    if not isinstance(a, Array) or a.ndim < 2:
        got = f"shape {a.shape}" if isinstance(a, Array) else f"a {type(a).__name__}"
        needed = "an array of ostinato's with two axes or more"
        raise misfit(ArgumentError, "fill_diagonal", got=got, needed=needed)
    if a.ndim > 2 and len({*a.shape}) > 1:
        raise misfit(ShapeError, "fill_diagonal", got=f"shape {a.shape}", needed="one extent")
    if wrap and a.ndim == 2:
        a.flat[:: a.shape[1] + 1] = ravel(val)[0] if as_array(val).size == 1 else val
    else:
        a[(arange(min(a.shape)),) * a.ndim] = val


def fromfunction(
    function: Any, shape: Sequence[int], *, dtype: DTypeLike = float, **kwargs: Any
) -> Any:
    """Apply a function to the places along each axis of a grid.

    >>> ost.fromfunction(lambda i, j: 10 * i + j, (2, 3))
    Array([[ 0.,  1.,  2.],
           [10., 11., 12.]], dtype=float64)
    """
    return function(*indices(shape, dtype=dtype), **kwargs)
