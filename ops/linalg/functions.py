"""Linear algebra: the functions of the array API's extension, and some more.

A matrix is found to be singular, or not to be positive definite, when it is read: then `LinAlgError`
names the operation and the line that asked for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.contraction import diagonal, matmul, outer, tensordot, vecdot
from ostinato.ops.contraction import trace as trace
from ostinato.ops.core.array import Array, Operandish, apply, apply_all, as_array, called, unify
from ostinato.ops.core.spec import is_inexact, promote, real_of
from ostinato.ops.core.user_line import misfit
from ostinato.ops.creation import eye
from ostinato.ops.elementwise import abs as absolute
from ostinato.ops.elementwise import conj, convert, real, where
from ostinato.ops.random import normal
from ostinato.ops.reduction import count_nonzero, max, min, sum
from ostinato.ops.shape import (
    axes_of,
    axis_of,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    reshape,
    squeeze,
    stack,
    whole_number,
)

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from .matrices import adjoint, matrix

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "expm",
    "inv",
    "kron",
    "lstsq",
    "lu",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svd_lowrank",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


def __dir__() -> list[str]:
    return __all__


class QRResult(NamedTuple):
    Q: Array
    R: Array


class SVDResult(NamedTuple):
    U: Array
    S: Array
    Vh: Array


class EighResult(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array


class SlogdetResult(NamedTuple):
    sign: Array
    logabsdet: Array


class LUResult(NamedTuple):
    P: Array
    L: Array
    U: Array


class LstsqResult(NamedTuple):
    x: Array
    residuals: Array
    rank: Array
    singular_values: Array


# -- factors ---------------------------------------------------------------------------------
def cholesky(x: Operandish, /, *, upper: bool = False) -> Array:
    """The lower L of x = L Lᴴ, or the upper U of x = Uᴴ U, for positive definite x."""
    return apply("cholesky", as_array(x), upper=bool(upper))


def qr(x: Operandish, /, *, mode: str = "reduced") -> QRResult:
    """x = Q R with orthonormal columns in Q and an upper triangle R, whose diagonal is not negative:
    of a matrix of full rank there is one such pair, whatever the layout."""
    if mode not in ("reduced", "complete"):
        raise misfit(ArgumentError, "qr", got=f"mode={mode!r}", needed="'reduced' or 'complete'")
    return QRResult(*apply_all("qr", as_array(x), mode=mode))


def svd(x: Operandish, /, *, full_matrices: bool = True) -> SVDResult:
    """x = U diag(S) Vh, singular values from the largest to the smallest."""
    x = as_array(x)
    m, n = matrix("svd", x.spec).shape[-2:]
    full = bool(full_matrices) and m != n
    if m >= n:
        return SVDResult(*apply_all("svd", x, full=full))
    v, s, uh = apply_all("svd", adjoint(x), full=full)
    return SVDResult(adjoint(uh), s, adjoint(v))


def svdvals(x: Operandish, /) -> Array:
    """Singular values, from the largest to the smallest."""
    return svd(x, full_matrices=False).S


def svd_lowrank(
    x: Operandish, /, rank: int, *, oversample: int = 10, iterations: int = 2, seed: Any = 0
) -> SVDResult:
    """Nearly the `rank` largest singular values and their vectors, by products with random numbers
    (Halko, Martinsson and Tropp). Each iteration looks at x twice more, for values that decay slowly."""
    x = as_array(x)
    m, n = matrix("svd_lowrank", x.spec).shape[-2:]
    rank = whole_number(rank, "svd_lowrank")
    more, times = (whole_number(k, "svd_lowrank", 0) for k in (oversample, iterations))
    if not 0 < rank <= _least(m, n):
        raise misfit(
            ArgumentError,
            "svd_lowrank",
            got=f"rank={rank} of {x.spec.bare}",
            needed=f"1 to {_least(m, n)}",
        )
    width = _least(rank + more, _least(m, n))
    start = normal((*x.shape[:-2], n, width), seed=seed, dtype=real_of(x.dtype))
    q = qr(x @ convert(start, x.dtype)).Q
    for _ in range(times):
        q = qr(adjoint(x) @ q).Q
        q = qr(x @ q).Q
    u, s, vh = svd(adjoint(q) @ x, full_matrices=False)
    return SVDResult(q @ u[..., :rank], s[..., :rank], vh[..., :rank, :])


def _least(a: int, b: int) -> int:
    return a if a < b else b


def eigh(x: Operandish, /) -> EighResult:
    """Eigenvalues of Hermitian matrices, from the smallest to the largest, and their vectors as
    columns."""
    return EighResult(*apply_all("eigh", as_array(x)))


def eigvalsh(x: Operandish, /) -> Array:
    """Eigenvalues of Hermitian matrices, from the smallest to the largest."""
    return eigh(x).eigenvalues


def lu(x: Operandish, /) -> LUResult:
    """x = P L U: a permutation, a lower triangle with ones on its diagonal, an upper triangle; by
    partial pivoting."""
    x = as_array(x)
    order, lower, upper = apply_all("lu", x)
    return LUResult(permutation(order, x.dtype), lower, upper)


def permutation(order: Array, dtype: Any) -> Array:
    """The matrix that puts row k of what it multiplies to row order[k]."""
    from ostinato.ops.creation import one_hot

    return matrix_transpose(one_hot(order, order.shape[-1], dtype=dtype))


# -- equations -------------------------------------------------------------------------------
def _sides(name: str, a: Operandish, b: Operandish) -> tuple[Array, Array, bool]:
    """The matrix and right-hand sides as columns; whether it was one vector."""
    a, b = unify(a, b)
    matrix(name, a.spec)
    if b.ndim == 0:
        raise misfit(
            ShapeError, name, got=f"a right-hand side {b.spec.bare}", needed="one axis or more"
        )
    dtype = promote(a.dtype, b.dtype)
    vector = b.ndim == 1
    return convert(a, dtype), convert(expand_dims(b, axis=-1) if vector else b, dtype), vector


def solve(a: Operandish, b: Operandish, /) -> Array:
    """x of a x = b, for each column of b (one axis: a vector)."""
    a, b, vector = _sides("solve", a, b)
    x = apply("solve", a, b)
    return squeeze(x, -1) if vector else x


def solve_triangular(
    a: Operandish,
    b: Operandish,
    /,
    *,
    lower: bool = False,
    transpose: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    """x of a x = b, of which only one triangle of a is read; with `transpose`, of aᵀ x = b."""
    a, b, vector = _sides("solve_triangular", a, b)
    upper = not lower
    if transpose:
        a, upper = matrix_transpose(a), not upper
    x = apply("solve_triangular", a, b, upper=upper, unit=bool(unit_diagonal))
    return squeeze(x, -1) if vector else x


def inv(x: Operandish, /) -> Array:
    """The inverse. To solve equations, use solve."""
    x = as_array(x)
    n = matrix("inv", x.spec, square=True).shape[-1]
    return called("inv", apply("solve", x, eye(n, dtype=x.dtype)))


def lstsq(a: Operandish, b: Operandish, /, *, rtol: float | None = None) -> LstsqResult:
    """The x for which a x is nearest to b, the shortest of them where there are several. Singular
    values up to `rtol` (eps times the larger extent, if not given) of the largest count as 0."""
    a, b, vector = _sides("lstsq", a, b)
    if a.ndim != b.ndim:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a = broadcast_to(a, (*batch, *a.shape[-2:]))
        b = broadcast_to(b, (*batch, *b.shape[-2:]))
    x, rank, values = apply_all("lstsq", a, b, rtol=_tolerance(a, rtol, "lstsq"))
    rest = absolute(b - a @ x)
    residuals = sum(rest * rest, axis=-2)
    if vector:
        x, residuals = squeeze(x, -1), squeeze(residuals, -1)
    return LstsqResult(x, residuals, rank, values)


def _tolerance(x: Array, rtol: Any, name: str) -> float:
    if rtol is None:
        return float(np.finfo(x.dtype).eps) * _most(x.shape[-2:])
    try:
        return float(rtol)
    except (TypeError, ValueError):
        raise misfit(
            ArgumentError, name, got=f"rtol={rtol!r}", needed="one number, or none"
        ) from None


def _most(shape: Sequence[int]) -> int:
    return shape[0] if shape[0] > shape[1] else shape[1]


def _pinv_by_svd(x: Array, rtol: Array) -> Array:
    """With a limit of its own for each matrix of a stack."""
    u, values, vh = svd(x, full_matrices=False)
    if not values.shape[-1]:
        return adjoint(x)
    counts = values > max(values, axis=-1, keepdims=True) * expand_dims(rtol, axis=-1)
    inverse = where(counts, 1 / where(counts, values, 1), 0)
    return (adjoint(vh) * expand_dims(inverse, axis=-2)) @ adjoint(u)


def pinv(x: Operandish, /, *, rtol: Any = None) -> Array:
    """The pseudo-inverse. Singular values up to `rtol` (eps times the larger extent, if not given;
    one number, or one for each matrix) of the largest count as 0."""
    x = as_array(x)
    matrix("pinv", x.spec)
    if isinstance(rtol, np.ndarray) or (isinstance(rtol, Array) and rtol.weak is None):
        return _pinv_by_svd(x, as_array(rtol))
    tolerance = _tolerance(x, rtol, "pinv")
    if x.shape[-1] > x.shape[-2]:
        return adjoint(apply("pinv", adjoint(x), rtol=tolerance))
    return apply("pinv", x, rtol=tolerance)


# -- numbers of matrices -----------------------------------------------------------------------
def det(x: Operandish, /) -> Array:
    """Determinants."""
    return apply("det", as_array(x))


def slogdet(x: Operandish, /) -> SlogdetResult:
    """Sign and logarithm of the size of determinants, which may be too large or small themselves."""
    return SlogdetResult(*apply_all("slogdet", as_array(x)))


def matrix_rank(x: Operandish, /, *, rtol: Any = None) -> Array:
    """How many singular values are larger than `rtol` (eps times the larger extent, if not given) of
    the largest."""
    x = as_array(x)
    matrix("matrix_rank", x.spec)
    values = svdvals(x)
    if not values.shape[-1]:
        return sum(values, axis=-1, dtype="int64")
    if rtol is None:
        rtol = _tolerance(x, None, "matrix_rank")
    elif isinstance(rtol, (Array, np.ndarray)) and as_array(rtol).ndim:
        rtol = expand_dims(as_array(rtol), axis=-1)
    return count_nonzero(values > max(values, axis=-1, keepdims=True) * rtol, axis=-1)


def vector_norm(
    x: Operandish,
    /,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    ord: Any = 2,
) -> Array:
    """(sum |x|^ord)^(1/ord) along axes; the largest for inf, the smallest for -inf, how many are not
    0 for 0."""
    x = _inexact("vector_norm", x)
    axes = axes_of(axis, x.ndim, "vector_norm")
    size = absolute(x)
    if ord == math.inf:
        return _largest(size, axis=axes, keepdims=keepdims)
    if ord == -math.inf:
        return min(size, axis=axes, keepdims=keepdims)
    if ord == 0:
        return convert(count_nonzero(x, axis=axes, keepdims=keepdims), size.dtype)
    if ord == 1:
        return sum(size, axis=axes, keepdims=keepdims)
    if ord == 2:
        square = real(x * conj(x)) if x.dtype.kind == "c" else x * x
        return _root(sum(square, axis=axes, keepdims=keepdims))
    if not isinstance(ord, (int, float, np.number)):
        raise misfit(ArgumentError, "vector_norm", got=f"ord={ord!r}", needed="a number")
    return _root(sum(size**ord, axis=axes, keepdims=keepdims), 1 / ord)


def _largest(x: Array, *, axis: int | Sequence[int], keepdims: bool = False) -> Array:
    """Of norms; that of nothing is 0."""
    none = any(x.shape[a] == 0 for a in axes_of(axis, x.ndim, "norm"))
    return (sum if none else max)(x, axis=axis, keepdims=keepdims)


def _root(x: Array, power: float = 0.5) -> Array:
    """The square root, or another one, whose slope at 0 is 0."""
    return where(x == 0, 0 if power > 0 else math.inf, where(x == 0, 1, x) ** power)


def _inexact(name: str, x: Operandish) -> Array:
    x = as_array(x)
    if not is_inexact(x.dtype):
        raise misfit(
            DTypeError,
            name,
            got=str(x.spec.bare),
            needed="a floating or complex dtype",
            do="convert it first, e.g. x.astype(ost.float64)",
        )
    return x


_SUMS = {1: (-2, _largest), -1: (-2, min), math.inf: (-1, _largest), -math.inf: (-1, min)}


def matrix_norm(x: Operandish, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """'fro', 'nuc' (the sum of singular values), 2 and -2 (the largest and smallest of them), 1 and -1
    (of the columns' sums), inf and -inf (of the rows')."""
    x = _inexact("matrix_norm", x)
    if x.ndim < 2:
        raise misfit(
            ShapeError, "matrix_norm", got=str(x.spec.bare), needed="a matrix: two axes or more"
        )
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in _SUMS:
        axis, extreme = _SUMS[ord]
        sums = sum(absolute(x), axis=axis, keepdims=True)
        found = extreme(sums, axis=-3 - axis, keepdims=True)
    elif ord in ("nuc", 2, -2):
        pick = {"nuc": sum, 2: _largest, -2: min}[ord]
        found = expand_dims(pick(svdvals(x), axis=-1), axis=(-2, -1))
    else:
        raise misfit(
            ArgumentError,
            "matrix_norm",
            got=f"ord={ord!r}",
            needed="'fro', 'nuc', 1, -1, 2, -2, inf or -inf",
        )
    return found if keepdims else squeeze(found, (-2, -1))


# -- products ----------------------------------------------------------------------------------
def matrix_power(x: Operandish, n: int, /) -> Array:
    """x multiplied by itself n times, by repeated squaring; of the inverse for negative n."""
    x = as_array(x)
    side = matrix("matrix_power", x.spec, square=True).shape[-1]
    n = whole_number(n, "matrix_power")
    if n < 0:
        x, n = inv(x), -n
    made: Array | None = None
    while n:
        if n % 2:
            made = x if made is None else made @ x
        n //= 2
        x = x @ x if n else x
    return broadcast_to(eye(side, dtype=x.dtype), x.shape) if made is None else made


def cross(a: Operandish, b: Operandish, /, *, axis: int = -1) -> Array:
    """The vector product of vectors with three elements along an axis."""
    a, b = unify(a, b)
    d = axis_of(axis, _least(a.ndim, b.ndim), "cross") - _least(a.ndim, b.ndim)
    if a.shape[d] != 3 or b.shape[d] != 3:
        raise misfit(
            ShapeError,
            "cross",
            got=f"{a.shape} and {b.shape}",
            needed=f"three elements along axis {axis}",
        )
    x, y = ([moveaxis(v, d, 0)[k] for k in range(3)] for v in (a, b))
    parts = [x[i] * y[j] - x[j] * y[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return moveaxis(stack(parts), 0, d)


def kron(a: Operandish, b: Operandish, /) -> Array:
    """Each element of a times all of b, as blocks."""
    a, b = unify(a, b)
    rank = a.ndim if a.ndim > b.ndim else b.ndim
    x = reshape(a, (1,) * (rank - a.ndim) + a.shape)
    y = reshape(b, (1,) * (rank - b.ndim) + b.shape)
    shape = tuple(m * n for m, n in zip(x.shape, y.shape, strict=True))
    odd, even = tuple(range(1, 2 * rank, 2)), tuple(range(0, 2 * rank, 2))
    return reshape(expand_dims(x, axis=odd) * expand_dims(y, axis=even), shape)


def expm(x: Operandish, /) -> Array:
    """The exponential of matrices: 1 + x + x @ x / 2 + ..."""
    return apply("expm", as_array(x))
