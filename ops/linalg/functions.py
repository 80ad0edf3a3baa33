"""Linear algebra: the functions of the array API's extension, and some more.

A matrix is found to be singular, or not to be positive definite, when it is read: then `LinAlgError`
names the operation and the line that asked for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from ostinato.ops.array import contraction
from ostinato.ops.array.arithmetic import abs as absolute
from ostinato.ops.array.arithmetic import conj, convert, real
from ostinato.ops.array.concatenation import stack
from ostinato.ops.array.contraction import matmul, tensordot, vecdot
from ostinato.ops.array.creation import eye
from ostinato.ops.array.elementwise import floating, where
from ostinato.ops.array.indexing import take_along_axis
from ostinato.ops.array.reduction import count_nonzero, max, min, sum
from ostinato.ops.array.shape import (
    axes_of,
    axis_of,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    reshape,
    squeeze,
    whole_number,
)
from ostinato.ops.core.spec import DTypeLike, promote, real_of
from ostinato.ops.core.user_line import misfit
from ostinato.ops.random.draws import normal

from ostinato.errors import ArgumentError, ShapeError

from ..core.apply import apply, apply_all, as_array, called, unify
from ..core.array import Array
from ..core.array_methods import Operandish, is_count
from .matrices import adjoint, matrix

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "kron",
    "lstsq",
    "lu",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
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
    "tensorinv",
    "tensorsolve",
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


class EigResult(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array


class SlogdetResult(NamedTuple):
    sign: Array
    logabsdet: Array


class LUResult(NamedTuple):
    P: Array
    L: Array
    U: Array


class LResult(NamedTuple):
    L: Array
    U: Array


class LstsqResult(NamedTuple):
    x: Array
    residuals: Array
    rank: Array
    singular_values: Array


# -- factors ---------------------------------------------------------------------------------
def cholesky(x: Operandish, /, *, upper: bool = False) -> Array:
    """The lower L of x = L Lᴴ, or the upper U of x = Uᴴ U, for positive definite x.

    >>> ost.linalg.cholesky([[4.0, 2.0], [2.0, 2.0]])
    Array([[2., 0.],
           [1., 1.]], dtype=float64)
    """
    return apply("cholesky", floating(x), upper=bool(upper))


@overload
def qr(x: Operandish, /, mode: Literal["reduced", "complete"] = "reduced") -> QRResult: ...
@overload
def qr(x: Operandish, /, mode: Literal["r"]) -> Array: ...
def qr(x: Operandish, /, mode: Literal["reduced", "complete", "r"] = "reduced") -> QRResult | Array:
    """x = Q R with orthonormal columns in Q and an upper triangle R, whose diagonal is not negative:
    of a matrix of full rank there is one such pair, whatever the layout. `mode="r"` gives R alone.

    >>> ost.linalg.qr([[3.0, 1.0], [4.0, 2.0]]).R
    Array([[5. , 2.2],
           [0. , 0.4]], dtype=float64)
    """
    if mode == "r":
        return qr(x).R
    if mode not in ("reduced", "complete"):
        needed = "'reduced', 'complete' or 'r'"
        raise misfit(ArgumentError, "qr", got=f"mode={mode!r}", needed=needed)
    return QRResult(*apply_all("qr", floating(x), mode=mode))


@overload
def svd(
    x: Operandish,
    /,
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    hermitian: bool = False,
) -> SVDResult: ...
@overload
def svd(
    x: Operandish,
    /,
    full_matrices: bool = True,
    *,
    compute_uv: Literal[False],
    hermitian: bool = False,
) -> Array: ...
def svd(
    x: Operandish, /, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> SVDResult | Array:
    """x = U diag(S) Vh, singular values from the largest to the smallest; S alone, without
    `compute_uv`. A matrix that is said to be `hermitian` is taken as any other.

    >>> ost.linalg.svd([[3.0, 0.0], [0.0, 4.0]]).S
    Array([4., 3.], dtype=float64)
    """
    if not compute_uv:
        return svdvals(x)
    x = floating(x)
    m, n = matrix("svd", x.spec).shape[-2:]
    full = bool(full_matrices) and m != n
    if m >= n:
        return SVDResult(*apply_all("svd", x, full=full))
    v, s, uh = apply_all("svd", adjoint(x), full=full)
    return SVDResult(adjoint(uh), s, adjoint(v))


def svdvals(x: Operandish, /) -> Array:
    """Singular values, from the largest to the smallest.

    >>> ost.linalg.svdvals([[3.0, 0.0], [0.0, 4.0]])
    Array([4., 3.], dtype=float64)
    """
    return svd(x, full_matrices=False).S


def svd_lowrank(
    x: Operandish, /, rank: int, *, oversample: int = 10, iterations: int = 2, seed: Any = 0
) -> SVDResult:
    """Nearly the `rank` largest singular values and their vectors, by products with random numbers
    (Halko, Martinsson and Tropp). Each iteration looks at x twice more, for values that decay slowly.

    >>> ost.linalg.svd_lowrank(ost.outer(ost.arange(20.0), ost.ones(15)), 1).S.shape
    (1,)
    """
    x = floating(x)
    m, n = matrix("svd_lowrank", x.spec).shape[-2:]
    rank = whole_number(rank, "svd_lowrank")
    more, times = (whole_number(k, "svd_lowrank", 0) for k in (oversample, iterations))
    if not 0 < rank <= _least(m, n):
        got = f"rank={rank} of {x.spec.bare}"
        raise misfit(ArgumentError, "svd_lowrank", got=got, needed=f"1 to {_least(m, n)}")
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


def eigh(x: Operandish, /, UPLO: Literal["L", "U"] = "L") -> EighResult:
    """Eigenvalues of Hermitian matrices, from the smallest to the largest, and their vectors as
    columns. What is read is the lower triangle, or the upper one.

    >>> ost.linalg.eigh([[2.0, 0.0], [0.0, 1.0]]).eigenvalues
    Array([1., 2.], dtype=float64)
    """
    if UPLO not in ("L", "U"):
        raise misfit(ArgumentError, "eigh", got=f"UPLO={UPLO!r}", needed="'L' or 'U'")
    x = floating(x)
    return EighResult(*apply_all("eigh", adjoint(x) if UPLO == "U" else x))


def eigvalsh(x: Operandish, /, UPLO: Literal["L", "U"] = "L") -> Array:
    """Eigenvalues of Hermitian matrices, from the smallest to the largest.

    >>> ost.linalg.eigvalsh([[2.0, 1.0], [1.0, 2.0]])
    Array([1., 3.], dtype=float64)
    """
    return eigh(x, UPLO).eigenvalues


def eig(x: Operandish, /) -> EigResult:
    """Eigenvalues of square matrices, always complex and in no order, and their vectors of length 1 as
    columns. Stacks need no communication; a matrix that is split is gathered first. They have
    gradients where eigenvalues are distinct and what is made of the vectors does not depend on their
    phases.

    >>> ost.linalg.eig([[2.0, 0.0], [0.0, 2.0]]).eigenvalues
    Array([2.+0.j, 2.+0.j], dtype=complex128)
    """
    return EigResult(*apply_all("eig", floating(x)))


def eigvals(x: Operandish, /) -> Array:
    """Eigenvalues of square matrices, always complex and in no order: those of `eig`.

    >>> ost.linalg.eigvals([[2.0, 0.0], [0.0, 2.0]])
    Array([2.+0.j, 2.+0.j], dtype=complex128)
    """
    return eig(x).eigenvalues


@overload
def lu(
    x: Operandish, /, permute_l: Literal[False] = False, *, p_indices: bool = False
) -> LUResult: ...
@overload
def lu(x: Operandish, /, permute_l: Literal[True], *, p_indices: bool = False) -> LResult: ...
def lu(x: Operandish, /, permute_l: bool = False, *, p_indices: bool = False) -> LUResult | LResult:
    """x = P L U: a permutation, a lower triangle with ones on its diagonal, an upper triangle; by
    partial pivoting. As `p_indices`, P is for each row of x the row of L U that it is;
    `permute_l` gives P L and U.

    >>> ost.linalg.lu([[4.0, 2.0], [2.0, 2.0]])[2]
    Array([[4., 2.],
           [0., 1.]], dtype=float64)
    """
    x = floating(x)
    order, lower, upper = apply_all("lu", x)
    if permute_l:
        return LResult(take_along_axis(lower, _back(order)[..., None], axis=-2), upper)
    if p_indices:
        return LUResult(_back(order), lower, upper)
    return LUResult(permutation(order, x.dtype), lower, upper)


def _back(order: Array) -> Array:
    """The place at which each number from 0 on is."""
    from ostinato.ops.array.sorting import argsort

    return argsort(order, axis=-1)


def permutation(order: Array, dtype: Any) -> Array:
    """The matrix that puts row k of what it multiplies to row order[k]."""
    from ostinato.ops.array.creation import one_hot

    return matrix_transpose(one_hot(order, order.shape[-1], dtype=dtype))


# -- equations -------------------------------------------------------------------------------
def _sides(name: str, a: Operandish, b: Operandish) -> tuple[Array, Array, bool]:
    """The matrix and right-hand sides as columns; whether it was one vector."""
    a, b = map(floating, unify(a, b))
    matrix(name, a.spec)
    if b.ndim == 0:
        got = f"a right-hand side {b.spec.bare}"
        raise misfit(ShapeError, name, got=got, needed="one axis or more")
    dtype = promote(a.dtype, b.dtype)
    vector = b.ndim == 1
    return convert(a, dtype), convert(expand_dims(b, axis=-1) if vector else b, dtype), vector


def solve(a: Operandish, b: Operandish, /) -> Array:
    """x of a x = b, for each column of b (one axis: a vector).

    >>> ost.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0])
    Array([1. , 0.5], dtype=float64)
    """
    a, b, vector = _sides("solve", a, b)
    x = apply("solve", a, b)
    return squeeze(x, -1) if vector else x


def solve_triangular(
    a: Operandish,
    b: Operandish,
    /,
    trans: Literal[0, 1, 2, "N", "T", "C"] = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    *,
    transpose: bool = False,
) -> Array:
    """x of a x = b, of which only one triangle of a is read. SciPy's `trans`: of aᵀ x = b with 1 or "T", as
    with `transpose`; of aᴴ x = b with 2 or "C".

    >>> ost.linalg.solve_triangular([[2.0, 0.0], [1.0, 1.0]], [2.0, 3.0], lower=True)
    Array([1., 2.], dtype=float64)
    """
    a, b, vector = _sides("solve_triangular", a, b)
    turns = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}
    if isinstance(trans, bool) or trans not in turns:
        got, needed = f"trans={trans!r}", "0, 1, 2, 'N', 'T' or 'C'"
        raise misfit(ArgumentError, "solve_triangular", got=got, needed=needed)
    turn, upper = turns[trans] or int(transpose), not lower
    if turn:
        a, upper = adjoint(a) if turn == 2 else matrix_transpose(a), not upper
    x = apply("solve_triangular", a, b, upper=upper, unit=bool(unit_diagonal))
    return squeeze(x, -1) if vector else x


def inv(x: Operandish, /) -> Array:
    """The inverse. To solve equations, use solve.

    >>> ost.linalg.inv([[2.0, 0.0], [0.0, 4.0]])
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float64)
    """
    x = floating(x)
    n = matrix("inv", x.spec, square=True).shape[-1]
    return called("inv", apply("solve", x, eye(n, dtype=x.dtype)))


def lstsq(
    a: Operandish, b: Operandish, /, rcond: float | None = None, *, rtol: float | None = None
) -> LstsqResult:
    """The x for which a x is nearest to b, the shortest of them where there are several. Singular
    values up to `rtol`, or `rcond` (eps times the larger extent, if not given), of the largest count
    as 0. The residuals are the sums of squares of what is left, one for each column of b.

    >>> ost.linalg.lstsq([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [1.0, 3.0, 5.0])[0]
    Array([1., 2.], dtype=float64)
    """
    rtol = rcond if rtol is None else rtol
    a, b, vector = _sides("lstsq", a, b)
    if a.ndim != b.ndim:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a = broadcast_to(a, (*batch, *a.shape[-2:]))
        b = broadcast_to(b, (*batch, *b.shape[-2:]))
    x, rank, values = apply_all("lstsq", a, b, rtol=_tolerance(a, rtol, "lstsq"))
    rest = absolute(b - a @ x)
    residuals = sum(rest * rest, axis=-2)
    return LstsqResult(squeeze(x, -1) if vector else x, residuals, rank, values)


def _tolerance(x: Array, rtol: Any, name: str) -> float:
    if rtol is None:
        return float(np.finfo(x.dtype).eps) * _most(x.shape[-2:])
    try:
        return float(rtol)
    except (TypeError, ValueError):
        got = f"rtol={rtol!r}"
        raise misfit(ArgumentError, name, got=got, needed="one number, or none") from None


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


def pinv(
    x: Operandish, /, rcond: Any = None, hermitian: bool = False, *, rtol: Any = None
) -> Array:
    """The pseudo-inverse, also of what is said to be `hermitian`. Singular values up to `rtol`, or
    `rcond` (eps times the larger extent, if not given; one number, or one for each matrix), of the
    largest count as 0.

    >>> ost.linalg.pinv([[2.0], [0.0]])
    Array([[0.5, 0. ]], dtype=float64)
    """
    rtol = rcond if rtol is None else rtol
    x = floating(x)
    matrix("pinv", x.spec)
    if isinstance(rtol, np.ndarray) or (isinstance(rtol, Array) and rtol.weak is None):
        return _pinv_by_svd(x, as_array(rtol))
    tolerance = _tolerance(x, rtol, "pinv")
    if x.shape[-1] > x.shape[-2]:
        return adjoint(apply("pinv", adjoint(x), rtol=tolerance))
    return apply("pinv", x, rtol=tolerance)


# -- numbers of matrices -----------------------------------------------------------------------
def det(x: Operandish, /) -> Array:
    """Determinants.

    >>> ost.linalg.det([[2.0, 0.0], [0.0, 4.0]])
    Array(8., dtype=float64)
    """
    return apply("det", floating(x))


def slogdet(x: Operandish, /) -> SlogdetResult:
    """Sign and logarithm of the size of determinants, which may be too large or small themselves.

    >>> ost.linalg.slogdet([[2.0, 0.0], [0.0, -4.0]]).sign
    Array(-1., dtype=float64)
    """
    return SlogdetResult(*apply_all("slogdet", floating(x)))


def matrix_rank(
    x: Operandish, /, tol: Any = None, hermitian: bool = False, *, rtol: Any = None
) -> Array:
    """How many singular values are larger than `tol`, or than `rtol` (eps times the larger extent, if
    not given) of the largest. Of a Hermitian matrix they are the sizes of the eigenvalues.

    >>> ost.linalg.matrix_rank([[1.0, 2.0], [2.0, 4.0]])
    Array(1, dtype=int64)
    """
    x = floating(x)
    matrix("matrix_rank", x.spec)
    values = absolute(eigvalsh(x)) if hermitian else svdvals(x)
    if not values.shape[-1]:
        return count_nonzero(values, axis=-1)
    if tol is not None:
        return count_nonzero(values > expand_dims(as_array(tol), axis=-1), axis=-1)
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
    0 for 0.

    >>> ost.linalg.vector_norm([3.0, 4.0])
    Array(5., dtype=float64)
    """
    x = floating(x)
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


def _largest(x: Array, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Array:
    """Return the largest norm; that of nothing is 0."""
    none = any(x.shape[a] == 0 for a in axes_of(axis, x.ndim, "norm"))
    return (sum if none else max)(x, axis=axis, keepdims=keepdims)


def _root(x: Array, power: float = 0.5) -> Array:
    """The square root, or another one, whose slope at 0 is 0."""
    return where(x == 0, 0 if power > 0 else math.inf, where(x == 0, 1, x) ** power)


_SUMS: dict[float, tuple[int, Callable[..., Array]]] = {
    1: (-2, _largest),
    -1: (-2, min),
    math.inf: (-1, _largest),
    -math.inf: (-1, min),
}


def matrix_norm(x: Operandish, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """'fro', 'nuc' (the sum of singular values), 2 and -2 (the largest and smallest of them), 1 and -1
    (of the columns' sums), inf and -inf (of the rows').

    >>> ost.linalg.matrix_norm([[3.0, 0.0], [0.0, 4.0]])
    Array(5., dtype=float64)
    """
    x = floating(x)
    if x.ndim < 2:
        got = str(x.spec.bare)
        raise misfit(ShapeError, "matrix_norm", got=got, needed="a matrix: two axes or more")
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in _SUMS:
        axis, extreme = _SUMS[ord]
        sums = sum(absolute(x), axis=axis, keepdims=True)
        found = extreme(sums, axis=-3 - axis, keepdims=True)
    elif ord in ("nuc", 2, -2):
        picks: dict[Any, Callable[..., Array]] = {"nuc": sum, 2: _largest, -2: min}
        pick = picks[ord]
        found = expand_dims(pick(svdvals(x), axis=-1), axis=(-2, -1))
    else:
        needed = "'fro', 'nuc', 1, -1, 2, -2, inf or -inf"
        raise misfit(ArgumentError, "matrix_norm", got=f"ord={ord!r}", needed=needed)
    return found if keepdims else squeeze(found, (-2, -1))


def norm(
    x: Operandish, ord: Any = None, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> Array:
    """NumPy's: of all elements the root of the sum of squares, if `ord` is not given; of one axis, or
    of an array with one, `vector_norm`; of two `matrix_norm`. Whole numbers become float64.

    >>> ost.linalg.norm([3.0, 4.0])
    Array(5., dtype=float64)
    """
    x = floating(x)
    if ord is None and (axis is None or not is_count(axis)):
        return vector_norm(x, axis=axis, keepdims=keepdims)
    axes = tuple(range(x.ndim)) if axis is None else axes_of(axis, x.ndim, "norm")
    if len(axes) == 1:
        return vector_norm(x, axis=axes, keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        needed = "one axis for a vector's norm, two for a matrix's"
        raise misfit(ShapeError, "norm", got=f"ord={ord!r} along {len(axes)} axes", needed=needed)
    if isinstance(axis, Sequence):  # in the order in which they are given: rows, columns
        first, second = (axis_of(a, x.ndim, "norm") for a in axis)
    else:
        first, second = axes
    found = matrix_norm(moveaxis(x, (first, second), (-2, -1)), ord=ord)
    return expand_dims(found, axis=tuple(sorted((first, second)))) if keepdims else found


def diagonal(x: Operandish, /, *, offset: int = 0) -> Array:
    """The diagonals of the last two axes; `ost.diagonal` takes any two.

    >>> ost.linalg.diagonal([[1, 2], [3, 4]], offset=1)
    Array([2], dtype=int64)
    """
    return contraction.diagonal(x, offset, -2, -1)


def trace(x: Operandish, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Array:
    """The sums of the diagonals of the last two axes; `ost.trace` takes any two.

    >>> ost.linalg.trace([[1, 2], [3, 4]])
    Array(5, dtype=int64)
    """
    return contraction.trace(x, offset, -2, -1, dtype)


def cond(x: Operandish, /, p: Any = None) -> Array:
    """How much a matrix magnifies relative errors: the largest singular value over the smallest, or
    for other norms `matrix_norm(x, ord=p)` times that of the inverse.

    >>> ost.linalg.cond([[2.0, 0.0], [0.0, 1.0]])
    Array(2., dtype=float64)
    """
    x = floating(x)
    if p is None or p in (2, -2):
        values = svdvals(x)
        largest, smallest = values[..., 0], values[..., -1]
        return smallest / largest if p == -2 else largest / smallest
    return matrix_norm(x, ord=p) * matrix_norm(inv(x), ord=p)


# -- products ----------------------------------------------------------------------------------
def multi_dot(arrays: Sequence[Operandish], /) -> Array:
    """The product of several matrices, in the order that multiplies least; the first and the last may
    be vectors.

    >>> ost.linalg.multi_dot([ost.ones((2, 9)), ost.ones((9, 3)), ost.ones(3)])
    Array([27., 27.], dtype=float64)
    """
    given = unify(*arrays)
    if len(given) < 2:
        raise misfit(ArgumentError, "multi_dot", got=f"{len(given)} arrays", needed="two or more")
    ends = (given[0].ndim, given[-1].ndim)
    if not {*ends} <= {1, 2} or any(x.ndim != 2 for x in given[1:-1]):
        got = " and ".join(str(x.shape) for x in given)
        needed = "matrices, and perhaps vectors at both ends"
        raise misfit(ShapeError, "multi_dot", got=got, needed=needed)
    if ends[0] == 1:
        given[0] = expand_dims(given[0], axis=0)
    if ends[1] == 1:
        given[-1] = expand_dims(given[-1], axis=1)
    made = _in_order(given, _orders([x.shape[0] for x in given] + [given[-1].shape[1]]))
    gone = tuple(axis for axis, ndim in enumerate(ends) if ndim == 1)
    return squeeze(made, gone) if gone else made


def _orders(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where to cut each chain of matrices in two, for the fewest products of numbers."""
    many = len(sizes) - 1
    costs = {(k, k + 1): 0 for k in range(many)}
    cuts = {}
    for length in range(2, many + 1):
        for a in range(many - length + 1):
            b = a + length
            ways = [
                (costs[a, k] + costs[k, b] + sizes[a] * sizes[k] * sizes[b], k)
                for k in range(a + 1, b)
            ]
            costs[a, b], cuts[a, b] = sorted(ways)[0]
    return cuts


def _in_order(chain: Sequence[Array], cuts: dict[tuple[int, int], int]) -> Array:
    def product(a: int, b: int) -> Array:
        if b == a + 1:
            return chain[a]
        return product(a, cuts[a, b]) @ product(cuts[a, b], b)

    return product(0, len(chain))


def tensorsolve(a: Operandish, b: Operandish, /, axes: Sequence[int] | None = None) -> Array:
    """x of tensordot(a, x, x.ndim) = b; `axes` of a go to its end first.

    >>> ost.linalg.tensorsolve(2 * ost.eye(4).reshape(2, 2, 2, 2), ost.ones((2, 2)))
    Array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float64)
    """
    a, b = as_array(a), as_array(b)
    if axes is not None:
        gone = [axis_of(k, a.ndim, "tensorsolve") for k in axes]
        a = moveaxis(a, gone, tuple(range(a.ndim - len(gone), a.ndim)))
    shape = a.shape[b.ndim :]
    if math.prod(shape) != b.size:
        needed = "as many elements of b as of x, which has a's other axes"
        raise misfit(ShapeError, "tensorsolve", got=f"a {a.shape}, b {b.shape}", needed=needed)
    return reshape(solve(reshape(a, (b.size, b.size)), reshape(b, (b.size,))), shape)


def tensorinv(a: Operandish, /, ind: int = 2) -> Array:
    """The inverse of x -> tensordot(a, x), whose results have a's first `ind` axes.

    >>> ost.linalg.tensorinv(2 * ost.eye(4).reshape(2, 2, 2, 2)).shape
    (2, 2, 2, 2)
    """
    a = as_array(a)
    ind = whole_number(ind, "tensorinv", 1)
    many, others = math.prod(a.shape[:ind]), math.prod(a.shape[ind:])
    if many != others:
        got = f"{a.shape} cut at {ind}"
        raise misfit(ShapeError, "tensorinv", got=got, needed="as many elements before as behind")
    return reshape(inv(reshape(a, (many, many))), (*a.shape[ind:], *a.shape[:ind]))


def matrix_power(x: Operandish, n: int, /) -> Array:
    """x multiplied by itself n times, by repeated squaring; of the inverse for negative n.

    >>> ost.linalg.matrix_power([[1.0, 1.0], [1.0, 0.0]], 5)
    Array([[8., 5.],
           [5., 3.]], dtype=float64)
    """
    n = whole_number(n, "matrix_power")
    x = floating(x) if n < 0 else as_array(x)
    side = matrix("matrix_power", x.spec, square=True, dtypes=None).shape[-1]
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
    """The vector product of vectors with three elements along an axis.

    >>> ost.linalg.cross([1, 0, 0], [0, 1, 0])
    Array([0, 0, 1], dtype=int64)
    """
    a, b = unify(a, b)
    d = axis_of(axis, _least(a.ndim, b.ndim), "cross") - _least(a.ndim, b.ndim)
    if a.shape[d] != 3 or b.shape[d] != 3:
        got = f"{a.shape} and {b.shape}"
        raise misfit(ShapeError, "cross", got=got, needed=f"three elements along axis {axis}")
    x, y = ([moveaxis(v, d, 0)[k] for k in range(3)] for v in (a, b))
    parts = [x[i] * y[j] - x[j] * y[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return moveaxis(stack(parts), 0, d)


def outer(a: Operandish, b: Operandish, /) -> Array:
    """Each element of one vector times each of the other; `ost.outer` takes any arrays.

    >>> ost.linalg.outer([1, 2], [3, 4])
    Array([[3, 4],
           [6, 8]], dtype=int64)
    """
    a, b = unify(a, b)
    if a.ndim != 1 or b.ndim != 1:
        raise misfit(ShapeError, "outer", got=f"{a.shape} and {b.shape}", needed="two vectors")
    return contraction.outer(a, b)


def kron(a: Operandish, b: Operandish, /) -> Array:
    """Each element of a times all of b, as blocks.

    >>> ost.linalg.kron([1, 2], [1, 1])
    Array([1, 1, 2, 2], dtype=int64)
    """
    a, b = unify(a, b)
    rank = a.ndim if a.ndim > b.ndim else b.ndim
    x = reshape(a, (1,) * (rank - a.ndim) + a.shape)
    y = reshape(b, (1,) * (rank - b.ndim) + b.shape)
    shape = tuple(m * n for m, n in zip(x.shape, y.shape, strict=True))
    odd, even = tuple(range(1, 2 * rank, 2)), tuple(range(0, 2 * rank, 2))
    return reshape(expand_dims(x, axis=odd) * expand_dims(y, axis=even), shape)
