"""Factorizations of matrices: `... . . -> ... . .`, whole along the last two axes, any number of
leading ones.

    cholesky, lu, qr             the factors
    solve, solve_triangular      equations
    det, slogdet                 determinants

Those that rest on singular values and eigenvalues are in spectral.py; what can be composed of all
these, in functions.py; how they are spread over workers, in blocked.py. Gradients are written for the
conjugates of cotangents, as textbooks do, where a rule is not holomorphic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.ops.array.arithmetic import abs as absolute
from ostinato.ops.array.arithmetic import conj, convert, imag, real
from ostinato.ops.array.comparisons import logical_not
from ostinato.ops.array.concatenation import concat
from ostinato.ops.array.creation import eye
from ostinato.ops.array.elementwise import broadcast, where
from ostinato.ops.array.reduction import any as anywhere
from ostinato.ops.array.reduction import prod
from ostinato.ops.array.reduction import sum as total
from ostinato.ops.array.shape import (
    expand_dims,
    matrix_transpose,
    moveaxis,
    reshape,
    tril,
    triu,
    zero_of,
)
from ostinato.ops.array.sorting import argsort
from ostinato.ops.autodiff.batching import Mapped, aligned
from ostinato.ops.core.device import device_of
from ostinato.ops.core.index import LETTERS, Indices
from ostinato.ops.core.notes import noted
from ostinato.ops.core.parameters import FLAG, one_of
from ostinato.ops.core.registry import Params, Scratch, Specs, op
from ostinato.ops.core.spec import Shape, Spec, int64, real_of
from ostinato.ops.core.user_line import misfit

from ostinato.errors import DTypeError, GradientError, ShapeError

from ..core.apply import apply, apply_all
from ..core.array import Array
from . import blocked
from .matrices import (
    adjoint,
    as_diagonal,
    bar_of,
    cubic,
    diagonal_of,
    each,
    factoring,
    is_one_call,
    is_tall,
    matrix,
    put,
    sum_bytes,
    turned,
    whole,
)
from .tall_qr import phases, thin_qr, times

# -- cholesky --------------------------------------------------------------------------------
INDEFINITE = "a matrix that is not positive definite"


def _cholesky_kernel(xp: Any, out: Any, x: Any, *, upper: bool) -> None:
    """Factor the lower triangle; the upper factor is the adjoint of the lower."""
    lapack = device_of(x).lapack
    if is_one_call(x) or lapack is None:
        with factoring(x, INDEFINITE):
            lower = xp.linalg.cholesky(x)
        put(xp, out, turned(lower) if upper else lower)
        return
    xp.copyto(out, x)
    for (a,) in each(out):
        if a.size and lapack.potrf(a):
            raise np.linalg.LinAlgError(INDEFINITE)
        for k in range(a.shape[0]):
            a[k, k + 1 :] = 0
        if upper:
            a[...] = a.conj().T.copy()


def _cholesky_grad(g: Array, y: Array, x: Array, *, upper: bool) -> Sequence[Array | None]:
    lower, bar = (adjoint(y), adjoint(conj(g))) if upper else (y, conj(g))
    inner = adjoint(lower) @ tril(bar)
    inner = tril(inner) - as_diagonal(diagonal_of(inner)) / 2
    half = blocked.solved(adjoint(lower), inner, upper=True)  # L⁻ᴴ inner L⁻¹
    whole = adjoint(blocked.solved(adjoint(lower), adjoint(half), upper=True))
    return (conj((whole + adjoint(whole)) / 2),)


op(
    "cholesky",
    infer=lambda x, *, upper: Spec(matrix("cholesky", x, True).shape, x.dtype),
    takes={"upper": FLAG},
    indices=whole,
    kernel=_cholesky_kernel,
    grad=_cholesky_grad,
    algorithms=blocked.cholesky,
    cost=cubic(1 / 3),
    dense=True,
    may_be_singular=True,
)


# -- triangular systems ----------------------------------------------------------------------
SINGULAR = "a singular matrix; use ost.linalg.lstsq or pinv where the rank may be lacking"


def _equations(ins: Specs, outs: Specs, p: Params) -> Indices:
    """Right-hand sides are independent of each other."""
    shape = outs[0].shape
    lead, column = LETTERS[: len(shape) - 2], LETTERS[len(shape)]

    def labels(spec: Spec, *last: str | None) -> tuple[str | None, ...]:
        skip = len(shape) - spec.ndim
        own = spec.shape[:-2]
        return (
            *(lead[skip + d] if n == shape[skip + d] else None for d, n in enumerate(own)),
            *last,
        )

    a, b = ins
    return Indices((labels(a, None, None), labels(b, None, column)), ((*lead, None, column),))


def _equations_rule(name: str, a: Spec, b: Spec) -> Spec:
    matrix(name, a, True)
    matrix(name, b)
    if a.shape[-1] != b.shape[-2]:
        needed = f"as many rows on the right ({b.shape[-2]}) as the matrix has ({a.shape[-1]})"
        raise misfit(ShapeError, name, got=f"{a.bare} and right-hand sides {b.bare}", needed=needed)
    if a.dtype != b.dtype:
        raise misfit(DTypeError, name, got=f"{a.bare} and {b.bare}", needed="one dtype")
    batch = broadcast(name, a.shape[:-2], b.shape[:-2])
    return Spec((*batch, *b.shape[-2:]), a.dtype)


def _equations_batched(name: str) -> Callable[..., Sequence[Mapped]]:
    """A matrix for all elements is factorized once: their right-hand sides are columns side by side."""

    def batched(size: int, *xs: Mapped, **params: Any) -> Sequence[Mapped]:
        (a, has_a), (b, has_b) = xs
        if not has_a and a.ndim == 2:
            columns = moveaxis(b, 0, -2)
            wide = reshape(columns, (*columns.shape[:-2], size * b.shape[-1]))
            made = reshape(apply(name, a, wide, **params), columns.shape)
            return [(moveaxis(made, -2, 0), True)]
        rank = max(a.ndim - has_a, b.ndim - has_b)
        left, right = (aligned(x, rank) for x in xs)
        return [(apply(name, left, right, **params), True)]

    return batched


def _triangular_kernel(xp: Any, out: Any, a: Any, b: Any, *, upper: bool, unit: bool) -> None:
    a = xp.broadcast_to(a, (*out.shape[:-2], *a.shape[-2:]))
    xp.copyto(out, b)
    if not out.size:
        return
    zeros = xp.diagonal(a, 0, -2, -1) == 0
    if not unit and not noted(zeros, 1, SINGULAR) and zeros.any():
        raise np.linalg.LinAlgError(SINGULAR)
    if max(a.shape[-2:]) <= HALVED and a.ndim > 2:
        put(xp, out, xp.linalg.solve(_one_triangle(xp, a, upper, unit), b))
        return
    for y, t in each(out, a):
        triangular(xp, t, y, upper, unit)


def _one_triangle(xp: Any, t: Any, upper: bool, unit: bool) -> Any:
    t = xp.triu(t) if upper else xp.tril(t)
    if unit:
        t = xp.where(xp.eye(t.shape[-1], dtype=bool), 1, t).astype(t.dtype)
    return t


def triangular(xp: Any, t: Any, y: Any, upper: bool, unit: bool = False) -> None:
    """y = t⁻¹ y in place, for `y` whose rows lie in order."""
    lapack = device_of(y).lapack
    if lapack is not None and lapack.rows_in_order(y):
        if lapack.rows_in_order(t):
            lapack.trsm(t, y, upper=upper, left=True, unit=unit)
        elif lapack.rows_in_order(t.T):
            lapack.trsm(t.T, y, upper=not upper, left=True, unit=unit, turned="T")
        else:
            lapack.trsm(np.ascontiguousarray(t), y, upper=upper, left=True, unit=unit)
        return
    solve_by_halves(xp, t, y, upper, unit)


HALVED = 32  # rows that are left to xp.linalg


def solve_by_halves(xp: Any, t: Any, y: Any, upper: bool, unit: bool) -> None:
    """Solve where there is no such function: one half, a product, the other half."""
    n = t.shape[0]
    if n <= HALVED:
        y[...] = xp.linalg.solve(_one_triangle(xp, t, upper, unit), y)
        return
    h = n // 2
    first, then = (slice(h, n), slice(0, h)) if upper else (slice(0, h), slice(h, n))
    solve_by_halves(xp, t[first, first], y[first], upper, unit)
    y[then] -= t[then, first] @ y[first]
    solve_by_halves(xp, t[then, then], y[then], upper, unit)


def _triangular_grad(
    g: Array, y: Array, a: Array, b: Array, *, upper: bool, unit: bool
) -> Sequence[Array | None]:
    back = blocked.solved(matrix_transpose(a), g, upper=not upper, unit=unit)
    ga = -back @ matrix_transpose(y)
    return (triu if upper else tril)(ga, k=(1 if upper else -1) if unit else 0), back


op(
    "solve_triangular",
    infer=lambda a, b, *, upper, unit: _equations_rule("solve_triangular", a, b),
    takes={"upper": FLAG, "unit": FLAG},
    indices=_equations,
    kernel=_triangular_kernel,
    grad=_triangular_grad,
    batched=_equations_batched("solve_triangular"),
    cost=lambda ins, outs, p: (float(outs[0].size * ins[0].shape[-1]), float(sum_bytes(ins, outs))),
    dense=True,
    overwrite=(1,),
    algorithms=blocked.solve_triangular,
    may_be_singular=True,
)


# -- lu --------------------------------------------------------------------------------------
def _lu_rule(x: Spec) -> Specs:
    *batch, m, n = matrix("lu", x).shape
    k = min(m, n)
    return (Spec((*batch, m), int64), Spec((*batch, m, k), x.dtype), Spec((*batch, k, n), x.dtype))


def _lu_kernel(xp: Any, out: Any, x: Any, *, scratch: Sequence[Any]) -> None:
    for one, order, lower, upper in each(x, *out):
        packed, rows = _packed(xp, one, scratch[0])
        k = min(one.shape)
        put(xp, order, rows)
        if lower is not None:
            xp.copyto(lower, xp.tril(packed[:, :k], -1))
            xp.einsum("ii->i", lower[:k])[...] = 1
        if upper is not None:
            xp.copyto(upper, xp.triu(packed[:k]))


def _packed(xp: Any, x: Any, work: Any) -> tuple[Any, Any]:
    """Both factors in one matrix, and where their rows were. `work` has as many elements as x."""
    m, n = x.shape
    rows = xp.arange(m)
    lapack = device_of(x).lapack
    if x.size and lapack is not None:
        turned = work.reshape(-1)[: m * n].reshape(n, m)
        np.copyto(turned, x.T)
        swaps = np.empty(min(m, n), lapack.integer())
        lapack.getrf(turned, swaps)
        for a, b in enumerate(swaps - 1):
            rows[[a, b]] = rows[[b, a]]
        return turned.T, rows
    a = x.copy()
    for c in range(min(m, n)):
        p = c + int(xp.argmax(_size(xp, a[c:, c])))
        if p != c:
            a[[c, p]] = a[[p, c]]
            rows[[c, p]] = rows[[p, c]]
        if a[c, c] != 0:
            a[c + 1 :, c] /= a[c, c]
            a[c + 1 :, c + 1 :] -= a[c + 1 :, c, None] * a[c, None, c + 1 :]
    return a, rows


def _size(xp: Any, x: Any) -> Any:
    """By which LAPACK chooses pivots."""
    return xp.abs(x.real) + xp.abs(x.imag) if x.dtype.kind == "c" else xp.abs(x)


def _copy_of_one(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], **_: Any
) -> Sequence[Scratch]:
    return (Scratch(ins[0][-2:], specs[0].dtype),)


def _lu_grad(g: Sequence[Array | None], y: Sequence[Array], x: Array) -> Sequence[Array | None]:
    """Ā = Pᵀ L⁻ᴴ (below the diagonal of Lᴴ L̄, the rest of Ū Uᴴ) U⁻ᴴ"""
    m, n = x.shape[-2:]
    if m != n:
        got, do = f"matrices {m} x {n}", "use ost.linalg.qr or ost.linalg.lstsq"
        raise misfit(GradientError, "gradient of lu", got=got, needed="square matrices", do=do)
    order, lower, upper = y
    _, gl, gu = (bar_of(part) for part in g)
    inner = None
    if gl is not None:
        inner = tril(adjoint(lower) @ gl, k=-1)
    if gu is not None:
        rest = triu(gu @ adjoint(upper))
        inner = rest if inner is None else inner + rest
    if inner is None:
        return (None,)
    left = blocked.solved(adjoint(lower), inner, upper=True, unit=True)
    permuted = adjoint(blocked.solved(upper, adjoint(left), upper=True))
    back = argsort(order)
    return (conj(rows_of(permuted, back)),)


def rows_of(x: Array, order: Array) -> Array:
    """The rows of matrices in another order."""
    if x.ndim == 2:
        return apply("take", x, order, axis=0)
    from ostinato.ops.array.indexing import take_along_axis

    return take_along_axis(x, expand_dims(order, axis=-1), axis=-2)


op(
    "lu",
    infer=_lu_rule,
    indices=whole,
    kernel=_lu_kernel,
    scratch=_copy_of_one,
    grad=_lu_grad,
    algorithms=blocked.lu,
    cost=cubic(2 / 3),
    dense=True,
)


# -- solve -----------------------------------------------------------------------------------
def _solve_kernel(xp: Any, out: Any, a: Any, b: Any, *, scratch: Sequence[Any]) -> None:
    a = xp.broadcast_to(a, (*out.shape[:-2], *a.shape[-2:]))
    b = xp.broadcast_to(b, out.shape)
    if not out.size:
        return
    if is_one_call(a) or device_of(a).lapack is None:
        with factoring(a, SINGULAR):
            put(xp, out, xp.linalg.solve(a, b))
        return
    before = 0
    for y, one, side in each(out, a, b):
        if one.ctypes.data != before:  # else it is repeated
            before = one.ctypes.data
            factors, rows = _packed(xp, one, scratch[0])
            if not xp.diagonal(factors).all():
                raise np.linalg.LinAlgError(SINGULAR)
        y[...] = side[rows]
        triangular(xp, factors, y, upper=False, unit=True)
        triangular(xp, factors, y, upper=True)


def _solve_grad(g: Array, y: Array, a: Array, b: Array) -> Sequence[Array | None]:
    back = apply("solve", matrix_transpose(a), g)
    return -back @ matrix_transpose(y), back


def _solve_cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    flops, _ = cubic(2 / 3)(ins, outs, p)
    return flops + 2.0 * outs[0].size * ins[0].shape[-1], float(sum_bytes(ins, outs))


op(
    "solve",
    infer=lambda a, b: _equations_rule("solve", a, b),
    indices=_equations,
    kernel=_solve_kernel,
    scratch=_copy_of_one,
    grad=_solve_grad,
    algorithms=blocked.solve,
    batched=_equations_batched("solve"),
    cost=_solve_cost,
    dense=True,
    may_be_singular=True,
)


# -- determinants ----------------------------------------------------------------------------
def _inverse_transposed(x: Array) -> Array:
    return apply("solve", matrix_transpose(x), eye(x.shape[-1], dtype=x.dtype))


def _column(x: Array) -> Array:
    return expand_dims(x, axis=(-2, -1))


def _det_grad(g: Array, y: Array, x: Array) -> Sequence[Array | None]:
    """The cofactors: by the inverse, or, where that is none or a poor one, by singular values."""
    from ..flow.branches import cond

    def inverse_slope(x: Array) -> Array:
        turned = _inverse_transposed(x)
        condition = total(absolute(x), axis=(-2, -1)) * total(absolute(turned), axis=(-2, -1))
        poor = anywhere(logical_not(condition < 1 / math.sqrt(np.finfo(x.dtype).eps)))
        return cond(poor, lambda: _cofactors(x), lambda: _column(apply("det", x)) * turned)

    return (_column(g) * cond(anywhere(y == 0), _cofactors, inverse_slope, x),)


def _cofactors(x: Array) -> Array:
    u, s, vh = apply_all("svd", x, full=False)
    n = x.shape[-1]
    others = where(eye(n, dtype=bool), 1, expand_dims(s, axis=-2))
    weights = convert(prod(others, axis=-1), x.dtype)
    phase = apply("det", u) * apply("det", vh)
    made = (conj(u) * expand_dims(weights, axis=-2)) @ conj(vh)
    return _column(phase) * made


op(
    "det",
    infer=lambda x: Spec(matrix("det", x, True).shape[:-2], x.dtype),
    indices=whole,
    kernel=lambda xp, out, x: put(xp, out, xp.linalg.det(x)),
    grad=_det_grad,
    algorithms=blocked.det,
    cost=cubic(2 / 3),
    dense=True,
)


def _slogdet_rule(x: Spec) -> Specs:
    batch = matrix("slogdet", x, True).shape[:-2]
    return Spec(batch, x.dtype), Spec(batch, real_of(x.dtype))


def _slogdet_kernel(xp: Any, out: Any, x: Any) -> None:
    sign, log_of_size = xp.linalg.slogdet(x)
    put(xp, out[0], sign)
    put(xp, out[1], log_of_size)


def _slogdet_grad(
    g: Sequence[Array | None], y: Sequence[Array], x: Array
) -> Sequence[Array | None]:
    weight = None if g[1] is None else convert(g[1], x.dtype)
    if g[0] is not None and x.dtype.kind == "c":  # the sign turns with the imaginary part
        turning = convert(imag(g[0] * y[0]), x.dtype) * 1j
        weight = turning if weight is None else weight + turning
    return (None if weight is None else _column(weight) * _inverse_transposed(x),)


op(
    "slogdet",
    infer=_slogdet_rule,
    indices=whole,
    kernel=_slogdet_kernel,
    grad=_slogdet_grad,
    algorithms=blocked.slogdet,
    cost=cubic(2 / 3),
    dense=True,
)


# -- qr --------------------------------------------------------------------------------------
def _qr_rule(x: Spec, *, mode: str) -> Specs:
    *batch, m, n = matrix("qr", x).shape
    k = m if mode == "complete" else min(m, n)
    return Spec((*batch, m, k), x.dtype), Spec((*batch, k, n), x.dtype)


def _qr_kernel(xp: Any, out: Any, x: Any, *, mode: str, scratch: Sequence[Any]) -> None:
    if is_one_call(x) and x.size:
        q, r = xp.linalg.qr(x, mode)
        signs = phases(xp, r)
        small = signs.shape[-1]
        q[..., :small] *= signs[..., None, :]
        r[..., :small, :] *= signs.conj()[..., :, None]
        put(xp, out[0], q)
        put(xp, out[1], r)
        return
    for one, q, r in each(x, *out):
        qr_of_one(xp, one, q, r, scratch[0] if scratch else None)


def _qr_scratch(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], *, mode: str
) -> Sequence[Scratch]:
    m, n = ins[0][-2:]
    tall = mode == "reduced" and is_tall(m, n)
    return () if tall else (Scratch((m, n), specs[0].dtype),)


def qr_of_one(xp: Any, x: Any, q: Any, r: Any, work: Any) -> None:
    """One matrix; the diagonal of R is not negative, so that Q and R are the same on any number of
    workers. Tall and reduced if `work`, an array like x, is None."""
    if work is None:
        last, upper = thin_qr(xp, x, q)
        if q is not None and last is not None:
            times(q, last)
        put(xp, r, upper)
        return
    m, n = x.shape
    small = min(m, n)
    if q is not None and q.shape[1] > small:
        q[...] = 0
    lapack = device_of(x).lapack
    if small and lapack is not None:
        np.copyto(work, x)
        tau = np.empty(small, x.dtype)
        lapack.gelqf(work, tau)
        upper = np.triu(work[:small])
        if q is not None:
            q[:, :small] = work[:, :small]
            lapack.orglq(q, tau)
    else:
        whole, upper = xp.linalg.qr(x, "complete")
        put(xp, q, whole if q is None else whole[:, : q.shape[1]])
        upper = upper[:small]
    signs = phases(xp, upper)
    if q is not None:
        q[:, :small] *= signs
    if r is not None:
        r[...] = 0
        r[:small] = signs.conj()[:, None] * upper


def _qr_grad(
    g: Sequence[Array | None], y: Sequence[Array], x: Array, *, mode: str
) -> Sequence[Array | None]:
    """Differentiate QR; of a wide matrix [X Y] by way of X: R is [U QᴴY]."""
    q, r = y
    gq, gr = (bar_of(part) for part in g)
    m, n = x.shape[-2:]
    if mode == "complete" and m > n:
        got, needed = "mode='complete' of a tall matrix", "factors that the matrix determines"
        do = "use mode='reduced'"
        raise misfit(GradientError, "gradient of qr", got=got, needed=needed, do=do)
    if m >= n:
        return (conj(_tall_qr_grad(gq, gr, q, r)),)
    rest, square = x[..., m:], r[..., :m]
    gu = None if gr is None else gr[..., :m]
    if gr is not None:
        more = rest @ adjoint(gr[..., m:])
        gq = more if gq is None else gq + more
    left = _tall_qr_grad(gq, gu, q, square)
    right = zero_of(rest) if gr is None else q @ gr[..., m:]
    return (conj(concat([left, right], axis=-1)),)


def _tall_qr_grad(gq: Array | None, gr: Array | None, q: Array, r: Array) -> Array:
    """Ā = (Q̄ + Q S) R⁻ᴴ with S Hermitian, from the upper triangle of R̄ Rᴴ - QᴴQ̄"""
    inner = None if gr is None else triu(gr) @ adjoint(r)
    if gq is not None:
        turned = adjoint(q) @ gq
        inner = -turned if inner is None else inner - turned
    assert inner is not None
    diagonal = as_diagonal(convert(real(diagonal_of(inner)), inner.dtype))
    strict = triu(inner, k=1)
    left = q @ (strict + adjoint(strict) + diagonal)
    left = left if gq is None else left + gq
    return adjoint(blocked.solved(r, adjoint(left), upper=True))


op(
    "qr",
    infer=_qr_rule,
    takes={"mode": one_of("reduced", "complete")},
    indices=whole,
    kernel=_qr_kernel,
    scratch=_qr_scratch,
    grad=_qr_grad,
    algorithms=blocked.qr,
    cost=cubic(4.0),
    dense=True,
)
