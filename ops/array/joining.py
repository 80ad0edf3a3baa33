"""Joining, splitting and turning arrays, by NumPy's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, BoundsError

from .. import linalg
from ..core.apply import as_array, unify
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.spec import DTypeLike, bool_
from ..core.user_line import misfit
from .arithmetic import conj, multiply
from .casts import astype
from .concatenation import add_zeros, concat, stack, tile
from .contraction import diagonal, matmul, tensordot, vecdot
from .creation import eye, ones, zeros
from .cumulative import cumulative_prod, cumulative_sum
from .elementwise import Out, put_out, where
from .indexing import inside, take, take_along_axis
from .shape import (
    axis_of,
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    listed,
    moveaxis,
    reshape,
    swapaxes,
    tril,
)
from .slicing import flip, slice_axes

__all__ = [
    "append",
    "apply_over_axes",
    "array_split",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block",
    "choose",
    "column_stack",
    "concatenate",
    "cross",
    "cumprod",
    "cumsum",
    "delete",
    "diag",
    "diagflat",
    "dot",
    "dsplit",
    "dstack",
    "fliplr",
    "flipud",
    "hsplit",
    "hstack",
    "identity",
    "matvec",
    "vecmat",
    "inner",
    "insert",
    "kron",
    "ravel",
    "resize",
    "rollaxis",
    "rot90",
    "row_stack",
    "split",
    "transpose",
    "tri",
    "vdot",
    "vsplit",
    "vstack",
]


def ravel(a: Operandish, order: str = "C") -> Array:
    """The elements in one row; by columns for "F".

    >>> ost.ravel([[1, 2], [3, 4]])
    Array([1, 2, 3, 4], dtype=int64)
    """
    return as_array(a).ravel(order)


def transpose(a: Operandish, axes: Sequence[int] | None = None) -> Array:
    """The axes in another order: the reverse, unless said otherwise.

    >>> ost.transpose(ost.zeros((2, 3))).shape
    (3, 2)
    """
    return as_array(a).transpose(*([] if axes is None else [axes]))


# -- with more axes ------------------------------------------------------------------------------
def _at_least(n: int, arrays: tuple[Operandish, ...]) -> Any:
    def one(x: Array) -> Array:
        if x.ndim >= n:
            return x
        if n == 3 and x.ndim:
            return x[None, :, None] if x.ndim == 1 else x[:, :, None]
        return reshape(x, (1,) * (n - x.ndim) + x.shape)

    found = tuple([one(as_array(x)) for x in arrays])
    return found[0] if len(found) == 1 else found


def atleast_1d(*arys: Operandish) -> Any:
    """With one axis at least; a tuple, if several are given.

    >>> ost.atleast_1d(5)
    Array([5], dtype=int64)
    """
    return _at_least(1, arys)


def atleast_2d(*arys: Operandish) -> Any:
    """With two axes at least: what has one is a row.

    >>> ost.atleast_2d([1, 2])
    Array([[1, 2]], dtype=int64)
    """
    return _at_least(2, arys)


def atleast_3d(*arys: Operandish) -> Any:
    """With three axes at least: of a matrix the last one is new.

    >>> ost.atleast_3d([1, 2]).shape
    (1, 2, 1)
    """
    return _at_least(3, arys)


# -- joining -------------------------------------------------------------------------------------
def concatenate(
    arrays: Sequence[Operandish],
    axis: int | None = 0,
    out: Out = None,
    *,
    dtype: DTypeLike | None = None,
) -> Array:
    """One behind the other along an axis; flat, for None.

    >>> ost.concatenate([[1, 2], [3]])
    Array([1, 2, 3], dtype=int64)
    """
    return put_out(concat(list(arrays), axis=axis, dtype=dtype), out, "concatenate")


def append(arr: Operandish, values: Operandish, axis: int | None = None) -> Array:
    """Values behind an array; both flat, if there is no axis.

    >>> ost.append([1, 2], [3])
    Array([1, 2, 3], dtype=int64)
    """
    if axis is None:
        return concat([ravel(arr), ravel(values)])
    return concat([arr, values], axis=axis)


def vstack(tup: Sequence[Operandish], *, dtype: DTypeLike | None = None) -> Array:
    """As rows below each other.

    >>> ost.vstack([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int64)
    """
    return concatenate([atleast_2d(x) for x in tup], dtype=dtype)


row_stack = vstack


def hstack(tup: Sequence[Operandish], *, dtype: DTypeLike | None = None) -> Array:
    """Beside each other: along the second axis, or the only one.

    >>> ost.hstack([[1, 2], [3]])
    Array([1, 2, 3], dtype=int64)
    """
    rows = [atleast_1d(x) for x in tup]
    return concatenate(rows, axis=0 if rows and rows[0].ndim == 1 else 1, dtype=dtype)


def dstack(tup: Sequence[Operandish]) -> Array:
    """Behind each other along the third axis.

    >>> ost.dstack([[1, 2], [3, 4]]).shape
    (1, 2, 2)
    """
    return concat([atleast_3d(x) for x in tup], axis=2)


def column_stack(tup: Sequence[Operandish]) -> Array:
    """Join along the second axis; what has one axis is a column.

    >>> ost.column_stack([[1, 2], [3, 4]])
    Array([[1, 3],
           [2, 4]], dtype=int64)
    """
    given = [atleast_1d(x) for x in tup]
    return concat([x if x.ndim > 1 else x[:, None] for x in given], axis=1)


def block(arrays: Any) -> Array:
    """Arrays in nested lists, put together: the innermost ones along the last axis, and so on.

    >>> ost.block([[ost.ones(2), ost.zeros(1)]])
    Array([[1., 1., 0.]], dtype=float64)
    """

    def depth(part: Any) -> int:
        return 1 + max(map(depth, part), default=0) if isinstance(part, list) else 0

    def rank(part: Any) -> int:
        return max(map(rank, part)) if isinstance(part, list) else as_array(part).ndim

    levels = depth(arrays)
    if not levels:
        return as_array(arrays)
    wide = max(levels, rank(arrays))

    def joined(part: Any, axis: int) -> Array:
        if not isinstance(part, list):
            x = as_array(part)
            return reshape(x, (1,) * (wide - x.ndim) + x.shape)
        return concat([joined(p, axis + 1) for p in part], axis=axis)

    return joined(arrays, -levels)


def insert(
    arr: Operandish, obj: int | Sequence[int], values: Operandish, axis: int | None = None
) -> Array:
    """With values before some places along an axis, which are counted in what was there; of all elements in
    one row, for None. A number is a place for all values.

    >>> ost.insert([1, 2, 3], 1, 9)
    Array([1, 9, 2, 3], dtype=int64)
    """
    x = as_array(arr)
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    d = axis_of(axis, x.ndim, "insert")
    n = x.shape[d]
    places = [k + n if k < 0 else k for k in listed(obj, "insert")]
    if any(not 0 <= k <= n for k in places):
        raise misfit(BoundsError, "insert", got=f"places {obj}", needed=f"{-n} to {n}")
    v = astype(as_array(values), x.dtype)
    one = isinstance(obj, int)
    if v.ndim and one and v.ndim == x.ndim:
        places = places * v.shape[d]
    elif v.ndim and one and x.ndim == 1:
        places = places * v.size
    elif v.ndim and v.ndim < x.ndim and one:
        v = expand_dims(v, axis=d)
    shape = (*x.shape[:d], len(places), *x.shape[d + 1 :])
    whole = concat([x, broadcast_to(v, shape)], axis=d)
    came = sorted([(k, 1, k) for k in range(n)] + [(p, 0, n + j) for j, p in enumerate(places)])
    return take(whole, np.array([k for *_, k in came], np.int64), axis=d)


def delete(arr: Operandish, obj: int | slice | Sequence[int], axis: int | None = None) -> Array:
    """Without what is at some places along an axis; of all elements in one row, for None.

    >>> ost.delete([1, 2, 3], 1)
    Array([1, 3], dtype=int64)
    """
    x = as_array(arr)
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    d = axis_of(axis, x.ndim, "delete")
    n = x.shape[d]
    some = range(*obj.indices(n)) if isinstance(obj, slice) else listed(obj, "delete")
    if any(not -n <= k < n for k in some):
        raise misfit(BoundsError, "delete", got=f"places {obj}", needed=f"{-n} to {n - 1}")
    gone = {k % n for k in some}
    return take(x, np.array([k for k in range(n) if k not in gone], np.int64), axis=d)


# -- splitting -----------------------------------------------------------------------------------
def array_split(
    ary: Operandish, indices_or_sections: int | Sequence[int], axis: int = 0
) -> list[Array]:
    """In so many parts, the first ones longer by one where it does not divide; or cut at places.

    >>> [part.tolist() for part in ost.array_split(ost.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    x = as_array(ary)
    d = axis_of(axis, x.ndim, "array_split")
    n = x.shape[d]
    if isinstance(indices_or_sections, int):
        if indices_or_sections < 1:
            got = f"{indices_or_sections} parts"
            raise misfit(ArgumentError, "array_split", got=got, needed="1 or more")
        each, more = divmod(n, indices_or_sections)
        cuts = [k * each + min(k, more) for k in range(indices_or_sections + 1)]
    else:
        places = listed(indices_or_sections, "array_split")
        cuts = [0, *(min(max(c + n if c < 0 else c, 0), n) for c in places), n]
    return [slice_axes(x, {d: (lo, max(hi - lo, 0), 1)}) for lo, hi in pairwise(cuts)]


def split(ary: Operandish, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """In so many equal parts, or cut at places.

    >>> [part.tolist() for part in ost.split(ost.arange(4), 2)]
    [[0, 1], [2, 3]]
    """
    x = as_array(ary)
    n = x.shape[axis_of(axis, x.ndim, "split")]
    if isinstance(indices_or_sections, int) and (
        indices_or_sections < 1 or n % indices_or_sections
    ):
        got, needed = f"{indices_or_sections} parts of {n}", "a number that divides it"
        raise misfit(ArgumentError, "split", got=got, needed=needed, do="use array_split")
    return array_split(x, indices_or_sections, axis)


def vsplit(ary: Operandish, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Along the first axis.

    >>> [part.shape for part in ost.vsplit(ost.zeros((4, 2)), 2)]
    [(2, 2), (2, 2)]
    """
    return split(_with_axes(ary, 2, "vsplit"), indices_or_sections, 0)


def hsplit(ary: Operandish, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Along the second axis, or the only one.

    >>> [part.shape for part in ost.hsplit(ost.zeros((2, 4)), 2)]
    [(2, 2), (2, 2)]
    """
    x = _with_axes(ary, 1, "hsplit")
    return split(x, indices_or_sections, 1 if x.ndim > 1 else 0)


def dsplit(ary: Operandish, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Along the third axis.

    >>> [part.shape for part in ost.dsplit(ost.zeros((1, 1, 4)), 2)]
    [(1, 1, 2), (1, 1, 2)]
    """
    return split(_with_axes(ary, 3, "dsplit"), indices_or_sections, 2)


def _with_axes(a: Operandish, least: int, name: str) -> Array:
    x = as_array(a)
    if x.ndim < least:
        raise misfit(ArgumentError, name, got=f"shape {x.shape}", needed=f"{least} axes or more")
    return x


# -- turning -------------------------------------------------------------------------------------
def fliplr(m: Operandish) -> Array:
    """The columns backwards.

    >>> ost.fliplr([[1, 2], [3, 4]])
    Array([[2, 1],
           [4, 3]], dtype=int64)
    """
    return flip(m, axis=1)


def flipud(m: Operandish) -> Array:
    """The rows backwards.

    >>> ost.flipud([[1, 2], [3, 4]])
    Array([[3, 4],
           [1, 2]], dtype=int64)
    """
    return flip(m, axis=0)


def rot90(m: Operandish, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """Turned by quarters, from the first of two axes to the second.

    >>> ost.rot90([[1, 2], [3, 4]])
    Array([[2, 4],
           [1, 3]], dtype=int64)
    """
    x = as_array(m)
    one, two = (axis_of(d, x.ndim, "rot90") for d in axes)
    if one == two:
        raise misfit(ArgumentError, "rot90", got=f"axes={tuple(axes)}", needed="two different axes")
    if k % 4 == 2:
        return flip(x, axis=(one, two))
    if k % 4 == 1:
        return swapaxes(flip(x, axis=two), one, two)
    return flip(swapaxes(x, one, two), axis=two) if k % 4 else x


# -- diagonals -----------------------------------------------------------------------------------
def diag(v: Operandish, k: int = 0) -> Array:
    """The k-th diagonal of a matrix, or the matrix that has it.

    >>> ost.diag([1, 2])
    Array([[1, 0],
           [0, 2]], dtype=int64)
    """
    x = as_array(v)
    if x.ndim == 2:
        return diagonal(x, offset=k)
    if x.ndim != 1:
        raise misfit(ArgumentError, "diag", got=f"shape {x.shape}", needed="one axis or two")
    n = x.size + abs(k)
    column = x if k >= 0 else add_zeros(x, (-k, 0))
    column = add_zeros(column, (0, n - column.size))
    return where(eye(n, k=k, dtype=bool_), column[:, None], astype(0, x.dtype))


def rollaxis(a: Operandish, axis: int, start: int = 0) -> Array:
    """An axis moved to before another.

    >>> ost.rollaxis(ost.zeros((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    x = as_array(a)
    d = axis_of(axis, x.ndim, "rollaxis")
    at = start if start == x.ndim else axis_of(start, x.ndim, "rollaxis")
    return moveaxis(x, d, at - (d < at))


def resize(a: Operandish, new_shape: int | Sequence[int]) -> Array:
    """The elements in a row, again and again, until they fill a shape.

    >>> ost.resize([1, 2, 3], (2, 2))
    Array([[1, 2],
           [3, 1]], dtype=int64)
    """
    row, shape = ravel(a), listed(new_shape, "resize")
    wanted = math.prod(shape)
    if not row.size:
        return zeros(shape, dtype=row.dtype)
    return reshape(tile(row, -(-wanted // row.size))[:wanted], shape)


def choose(a: Operandish, choices: Sequence[Operandish], mode: str = "raise") -> Array:
    """Choose for each element the choice with that number; numbers outside as in `take`.

    >>> ost.choose([1, 0, 1], [[1, 2, 3], [10, 20, 30]])
    Array([10,  2, 30], dtype=int64)
    """
    number, *each = broadcast_arrays(a, *unify(*choices))
    number = expand_dims(inside(number, len(each), mode, "choose"), axis=0)
    return take_along_axis(stack(each), number, axis=0)[0]


def apply_over_axes(func: Callable[..., Any], a: Operandish, axes: int | Sequence[int]) -> Array:
    """Apply a function along one axis after the other; an axis that it takes away is kept, as one
    of extent 1.

    >>> ost.apply_over_axes(ost.sum, ost.ones((2, 3, 4)), (0, 2)).reshape(-1)
    Array([8., 8., 8.], dtype=float64)
    """
    x = as_array(a)
    for axis in [axis_of(d, x.ndim, "apply_over_axes") for d in listed(axes, "apply_over_axes")]:
        made = as_array(func(x, axis))
        x = made if made.ndim == x.ndim else expand_dims(made, axis=axis)
    return x


def diagflat(v: Operandish, k: int = 0) -> Array:
    """The matrix whose k-th diagonal has these elements.

    >>> ost.diagflat([[1], [2]])
    Array([[1, 0],
           [0, 2]], dtype=int64)
    """
    return diag(ravel(v), k)


def identity(n: int, dtype: DTypeLike | None = None) -> Array:
    """Ones on the diagonal of a square.

    >>> ost.identity(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float64)
    """
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> Array:
    """Ones on and below the k-th diagonal.

    >>> ost.tri(3)
    Array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]], dtype=float64)
    """
    return tril(ones((N, N if M is None else M), dtype=dtype), k=k)


# -- products ------------------------------------------------------------------------------------
def dot(a: Operandish, b: Operandish, out: Out = None) -> Array:
    """The sum of products over the last axis of a and the second last of b.

    >>> ost.dot([1, 2], [3, 4])
    Array(11, dtype=int64)
    """
    x, y = as_array(a), as_array(b)
    if not (x.ndim and y.ndim):
        return multiply(x, y, out=out)
    if x.ndim <= 2 and y.ndim <= 2:
        return matmul(x, y, out)
    return put_out(tensordot(x, y, axes=((-1,), (-min(y.ndim, 2),))), out, "dot")


def inner(a: Operandish, b: Operandish) -> Array:
    """The sum of products over both last axes.

    >>> ost.inner([1, 2], [3, 4])
    Array(11, dtype=int64)
    """
    x, y = as_array(a), as_array(b)
    if not (x.ndim and y.ndim):
        return multiply(x, y)
    return tensordot(x, y, axes=((-1,), (-1,)))


def matvec(x1: Operandish, x2: Operandish) -> Array:
    """Matrices times vectors, which have other axes in front.

    >>> ost.matvec([[1, 2], [3, 4]], [1, 10])
    Array([21, 43], dtype=int64)
    """
    return matmul(x1, expand_dims(x2, axis=-1))[..., 0]


def vecmat(x1: Operandish, x2: Operandish) -> Array:
    """Vectors, conjugated, times matrices.

    >>> ost.vecmat([1, 10], [[1, 2], [3, 4]])
    Array([31, 42], dtype=int64)
    """
    return matmul(expand_dims(conj(as_array(x1)), axis=-2), x2)[..., 0, :]


def vdot(a: Operandish, b: Operandish) -> Array:
    """The sum of products of all elements, those of a conjugated.

    >>> ost.vdot([1j], [1j])
    Array(1.+0.j, dtype=complex128)
    """
    return vecdot(ravel(a), ravel(b))


def kron(a: Operandish, b: Operandish) -> Array:
    """Each element of a times all of b, as blocks.

    >>> ost.kron([1, 2], [1, 1])
    Array([1, 1, 2, 2], dtype=int64)
    """
    return linalg.kron(as_array(a), as_array(b))


def cross(
    a: Operandish,
    b: Operandish,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Array:
    """The vectors that are normal to pairs of vectors of three numbers, along an axis of each operand and of
    the result; or along one axis of all.

    >>> ost.cross([1, 0, 0], [0, 1, 0])
    Array([0, 0, 1], dtype=int64)
    """
    if axis is not None:  # counted from the front, they may differ in it
        axisa = axisb = axisc = axis
    x, y = moveaxis(as_array(a), axisa, -1), moveaxis(as_array(b), axisb, -1)
    return moveaxis(linalg.cross(x, y), -1, axisc)


# -- along an axis -------------------------------------------------------------------------------
@export
def cumsum(
    a: Operandish, axis: int | None = None, dtype: DTypeLike | None = None, out: Out = None
) -> Array:
    """Running sums along an axis; of all elements in one row, for None.

    >>> ost.cumsum([1, 2, 3])
    Array([1, 3, 6], dtype=int64)
    """
    x, d = (ravel(a), 0) if axis is None else (as_array(a), axis)
    return put_out(cumulative_sum(x, axis=d, dtype=dtype), out, "cumsum")


@export
def cumprod(
    a: Operandish, axis: int | None = None, dtype: DTypeLike | None = None, out: Out = None
) -> Array:
    """Running products along an axis; of all elements in one row, for None.

    >>> ost.cumprod([1, 2, 3])
    Array([1, 2, 6], dtype=int64)
    """
    x, d = (ravel(a), 0) if axis is None else (as_array(a), axis)
    return put_out(cumulative_prod(x, axis=d, dtype=dtype), out, "cumprod")
