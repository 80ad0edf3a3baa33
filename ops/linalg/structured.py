"""Matrices made of a few numbers, and equations of a matrix that was factored before, by SciPy's names."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ostinato.ops.array.arithmetic import convert
from ostinato.ops.array.casts import astype
from ostinato.ops.array.concatenation import concat
from ostinato.ops.array.contraction import matmul
from ostinato.ops.array.creation import eye, iota, zeros
from ostinato.ops.array.elementwise import floating
from ostinato.ops.array.indexing import take, take_along_axis
from ostinato.ops.array.shape import broadcast_to, expand_dims, reshape
from ostinato.ops.array.sorting import argsort
from ostinato.ops.core.spec import int64, promote
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, ShapeError

from ..core.apply import apply_all, as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from .functions import cholesky, solve_triangular, svd
from .matrices import adjoint

__all__ = [
    "block_diag",
    "cho_factor",
    "cho_solve",
    "circulant",
    "lu_factor",
    "lu_solve",
    "polar",
    "toeplitz",
]


class PolarResult(NamedTuple):
    U: Array
    P: Array


class LUFactors(NamedTuple):
    lu: Array
    order: Array


# -- made of a few numbers -----------------------------------------------------------------------
def block_diag(*arrs: Operandish) -> Array:
    """Matrices along the diagonal, and zeros beside them.

    >>> ost.linalg.block_diag([[1, 2]], [[3]])
    Array([[1, 2, 0],
           [0, 0, 3]], dtype=int64)
    """
    blocks = [reshape(x, (1,) * (2 - x.ndim) + x.shape) for x in map(as_array, arrs)]
    if any(x.ndim != 2 for x in blocks):
        shapes = " and ".join(str(x.shape) for x in blocks)
        raise misfit(ShapeError, "block_diag", got=f"shapes {shapes}", needed="matrices")
    if not blocks:
        return zeros((1, 0))
    wide = sum(x.shape[1] for x in blocks)
    kind = promote(*(x.dtype for x in blocks))
    rows, at = [], 0
    for x in blocks:
        n, m = x.shape
        sides = (zeros((n, at), dtype=kind), astype(x, kind), zeros((n, wide - at - m), dtype=kind))
        rows.append(concat(sides, axis=1))
        at += m
    return concat(rows)


def _line(x: Operandish, name: str) -> Array:
    found = as_array(x)
    if found.ndim != 1:
        raise misfit(ShapeError, name, got=f"shape {found.shape}", needed="one axis")
    return found


def toeplitz(c: Operandish, r: Operandish | None = None) -> Array:
    """The matrix with this first column and row whose diagonals are constant; without a row, its own adjoint.

    >>> ost.linalg.toeplitz([1, 2, 3], [1, 4, 5])
    Array([[1, 4, 5],
           [2, 1, 4],
           [3, 2, 1]], dtype=int64)
    """
    column = _line(c, "toeplitz")
    row = column.conj() if r is None else _line(r, "toeplitz")
    n, m = column.size, row.size
    values = concat([row[:0:-1], column])
    places = iota((n, m), 0, int64) - iota((n, m), 1, int64) + (m - 1)
    return reshape(take(values, reshape(places, (-1,)), axis=0), (n, m))


def circulant(c: Operandish) -> Array:
    """The matrix each column of which is the one before, turned down by one.

    >>> ost.linalg.circulant([1, 2, 3])
    Array([[1, 3, 2],
           [2, 1, 3],
           [3, 2, 1]], dtype=int64)
    """
    column = _line(c, "circulant")
    n = column.size
    places = (iota((n, n), 0, int64) - iota((n, n), 1, int64)) % max(n, 1)
    return reshape(take(column, reshape(places, (-1,)), axis=0), (n, n))


# -- factored once, solved often -----------------------------------------------------------------
def cho_factor(a: Operandish, lower: bool = False) -> tuple[Array, bool]:
    """Cholesky's factor, an upper triangle unless `lower`, and which one it is: for `cho_solve`.

    >>> ost.linalg.cho_factor([[4.0]])[0]
    Array([[2.]], dtype=float64)
    """
    return cholesky(a, upper=not lower), lower


def cho_solve(c_and_lower: tuple[Operandish, bool], b: Operandish) -> Array:
    """The x for which a x = b, of what `cho_factor` made of a.

    >>> ost.linalg.cho_solve(ost.linalg.cho_factor([[4.0]]), [8.0])
    Array([2.], dtype=float64)
    """
    factor, lower = as_array(c_and_lower[0]), bool(c_and_lower[1])
    low = factor if lower else adjoint(factor)
    high = adjoint(factor) if lower else factor
    return solve_triangular(high, solve_triangular(low, b, lower=True), lower=False)


def lu_factor(a: Operandish) -> LUFactors:
    """L, without the ones on its diagonal, and U in one matrix, and which row of a is which of theirs: for
    `lu_solve`. (SciPy says it by pairs of rows that change places.)

    >>> ost.linalg.lu_factor([[0.0, 1.0], [2.0, 0.0]]).order
    Array([1, 0], dtype=int64)
    """
    x = floating(a)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise misfit(ShapeError, "lu_factor", got=f"shape {x.shape}", needed="square matrices")
    order, lower, upper = apply_all("lu", x)
    return LUFactors(lower - eye(x.shape[-1], dtype=lower.dtype) + upper, order)


def lu_solve(lu_and_order: tuple[Operandish, Operandish], b: Operandish, trans: int = 0) -> Array:
    """The x for which a x = b, of what `lu_factor` made of a; or aᵀ x = b with `trans=1`, aᴴ x = b with 2.

    >>> ost.linalg.lu_solve(ost.linalg.lu_factor([[0.0, 1.0], [2.0, 0.0]]), [3.0, 4.0])
    Array([2., 3.], dtype=float64)
    """
    factors, order = map(as_array, lu_and_order)
    y = as_array(b)
    if trans not in (0, 1, 2):
        raise misfit(ArgumentError, "lu_solve", got=f"trans={trans!r}", needed="0, 1 or 2")
    vector = y.ndim == 1
    y = convert(y[:, None] if vector else y, promote(factors.dtype, y.dtype))
    if not trans:
        y = take_along_axis(y, _rows(order, y), axis=-2)
        y = solve_triangular(factors, y, lower=True, unit_diagonal=True)
        x = solve_triangular(factors, y, lower=False)
    else:
        turned = factors.mT if trans == 1 else adjoint(factors)
        y = solve_triangular(turned, y, lower=True)
        y = solve_triangular(turned, y, lower=False, unit_diagonal=True)
        x = take_along_axis(y, _rows(argsort(order, axis=-1), y), axis=-2)
    return x[:, 0] if vector else x


def _rows(order: Array, y: Array) -> Array:
    column = expand_dims(order, axis=-1)
    return broadcast_to(column, (*column.shape[:-1], y.shape[-1]))


def polar(a: Operandish, side: Literal["right", "left"] = "right") -> PolarResult:
    """a = U P, with a unitary U and a P whose eigenvalues are not negative; or a = P U, for the left side.

    >>> ost.linalg.polar([[0.0, 2.0], [1.0, 0.0]]).P
    Array([[1., 0.],
           [0., 2.]], dtype=float64)
    """
    if side not in ("right", "left"):
        raise misfit(ArgumentError, "polar", got=f"side={side!r}", needed="'right' or 'left'")
    u, s, vh = svd(a, full_matrices=False)
    scale = expand_dims(convert(s, u.dtype), axis=-2)
    if side == "right":
        return PolarResult(matmul(u, vh), matmul(adjoint(vh) * scale, vh))
    return PolarResult(matmul(u, vh), matmul(u * scale, adjoint(u)))
