"""Functions of matrices: the exponential, and the square root, logarithm and sign, which are the
principal ones. Whole along the last two axes; computed in double precision.

They are made of products and inverses, by Newton's iteration in the product form of Denman and
Beavers (Higham, *Functions of Matrices*, 6.29), and of Hermitian matrices by eigenvalues. Newton's
iteration needs a matrix that has an inverse; eigenvectors one that has enough of them. What neither
does, and what no real matrix is, is NaN.

All have the same gradient, from a matrix of twice the size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.ops.array.concatenation import concat
from ostinato.ops.array.elementwise import floating
from ostinato.ops.array.shape import matrix_transpose, zero_of
from ostinato.ops.core.device import device_of
from ostinato.ops.core.registry import op
from ostinato.ops.core.spec import Spec

from ..core.apply import apply
from ..core.array import Array
from ..core.array_methods import Operandish
from .matrices import cubic, each, matrix, put, turned, whole

__all__ = ["expm", "logm", "signm", "sqrtm"]

EPS = 2.0**-52
TURNS = 60  # of Newton's iteration, which converges in fewer than 20 or not at all
GOOD = 1e-8  # the relative error of what is a result


def _rule(name: str) -> Callable[..., Spec]:
    return lambda x: Spec(matrix(name, x, True).shape, x.dtype)


def _kernel(function: Callable[..., Any]) -> Callable[..., None]:
    def kernel(xp: Any, out: Any, x: Any) -> None:
        for a, y in each(x, out):
            n = a.shape[0]
            if not n:
                continue
            a = a.astype("D" if a.dtype.kind == "c" else "d")
            norm = float(abs(a).sum(0).max())
            with np.errstate(all="ignore"):
                made = function(xp, a, norm) if math.isfinite(norm) else None
            put(xp, y, xp.full((n, n), math.nan) if made is None else made)

    return kernel


def _grad(name: str) -> Callable[..., Sequence[Array | None]]:
    def grad(g: Array, y: Array, x: Array) -> Sequence[Array | None]:
        """The upper right corner of f([[Xᵀ, g], [0, Xᵀ]])."""
        n = x.shape[-1]
        turned = matrix_transpose(x)
        above = concat([turned, g], axis=-1)
        below = concat([zero_of(turned), turned], axis=-1)
        return (apply(name, concat([above, below], axis=-2))[..., :n, n:],)

    return grad


# -- the exponential ---------------------------------------------------------------------------
_PADE = (  # of degree 13, and the norm up to which it is exact in double precision
    *(64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800),
    *(129060195264000, 10559470521600, 670442572800, 33522128640, 1323241920),
    *(40840800, 960960, 16380, 182, 1),
)
_NORM = 5.371920351148152


def _exponential(xp: Any, a: Any, norm: float) -> Any:
    """Higham's scaling and squaring."""
    squarings = max(0, math.ceil(math.log2(norm / _NORM))) if norm > _NORM else 0
    a = a / 2.0**squarings
    b, one = _PADE, xp.eye(len(a))
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a2 @ a4
    high = b[13] * a6 + b[11] * a4 + b[9] * a2
    odd = a @ (a6 @ high + b[7] * a6 + b[5] * a4 + b[3] * a2 + b[1] * one)
    high = b[12] * a6 + b[10] * a4 + b[8] * a2
    even = a6 @ high + b[6] * a6 + b[4] * a4 + b[2] * a2 + b[0] * one
    made = xp.linalg.solve(even - odd, even + odd)
    for _ in range(squarings):
        made = made @ made
    return made


# -- roots, and what follows from them ---------------------------------------------------------
def _root(xp: Any, a: Any, norm: float) -> Any:
    if _is_hermitian(a):
        return _of_hermitian(xp, a, "sqrt")
    by_newton = _newtons_root(xp, a)
    tried = [] if by_newton is None else [by_newton]
    if by_newton is None or _error_of_root(by_newton, a, norm) > 1e3 * EPS:
        tried += _of_vectors(a, "sqrt")
    best = min(tried, key=lambda y: _error_of_root(y, a, norm), default=None)
    return best if best is not None and _error_of_root(best, a, norm) < GOOD else None


def _error_of_root(y: Any, a: Any, norm: float) -> float:
    error = float(abs(y @ y - a).sum(0).max())
    return error / norm if math.isfinite(error) else math.inf


def _newtons_root(xp: Any, a: Any) -> Any:
    """Products of factors that tend to 1; None where they do not."""
    n, one = len(a), xp.eye(len(a))
    left, made, scales = a, a, True
    for _ in range(TURNS):
        inverse = _inverse(xp, left)
        if inverse is None:
            return None
        s = _scale(xp, left, 0.25) if scales else 1.0  # its square brings the determinant to 1
        made = s * (made @ (one + inverse / s**2)) / 2
        left = (one + (s**2 * left + inverse / s**2) / 2) / 2
        error = float(abs(left - one).sum(0).max())
        if error <= 4 * n * EPS:
            return made
        scales = scales and error > 0.01
        if not math.isfinite(error):
            return None
    return None


def _inverse(xp: Any, x: Any) -> Any:
    try:
        return xp.linalg.inv(x)
    except np.linalg.LinAlgError:
        return None


def _scale(xp: Any, x: Any, power: float) -> float:
    """|det|^(-2 power / n) of a matrix."""
    _, size = xp.linalg.slogdet(x)
    return math.exp(-2 * power / len(x) * float(size))


def _is_hermitian(a: Any) -> bool:
    return bool((a == turned(a)).all())


def _of_hermitian(xp: Any, a: Any, name: str) -> Any:
    """Apply a function to eigenvalues, which rounding may have made a little less than 0, or other
    than 0."""
    values, vectors = xp.linalg.eigh(a)
    least = len(a) * EPS * float(abs(values).max())
    zeros = (values >= -least) & (values <= (least if name == "sign" else 0))
    values = xp.where(zeros, 0, values)
    made = getattr(xp, name)(values.astype(a.dtype))
    return (vectors * made) @ turned(vectors)


def _of_vectors(a: Any, name: str) -> list[Any]:
    """One matrix, if there are enough eigenvectors, and what is made of them is real if `a` is: by
    LAPACK on the host, as not every device's library has it."""
    device = device_of(a)
    host = device.to_host(a)
    values, vectors = np.linalg.eig(host.astype("D"))
    inverse = _inverse(np, vectors)
    if inverse is None or not _near((vectors * values) @ inverse, host):
        return []
    made = (vectors * getattr(np, name)(values)) @ inverse
    if host.dtype.kind == "f":
        if not _near(made.real, made):
            return []
        made = made.real
    return [device.from_host(np.ascontiguousarray(made))]


def _near(x: Any, y: Any) -> bool:
    return float(abs(x - y).max()) <= GOOD * float(abs(y).max())


# -- the logarithm -----------------------------------------------------------------------------
_PADE_DEGREE, _PADE_RADIUS = 12, 0.58  # of Padé's approximant, and how near to 1 it is exact
_ROOTS = 100  # of the largest number in double precision, with a margin


def _logarithm(xp: Any, a: Any, norm: float) -> Any:
    """Roots until it is near 1, then a sum of fractions (Higham, 11.4)."""
    if _is_hermitian(a):
        return _of_hermitian(xp, a, "log")
    one, near, roots = xp.eye(len(a)), a, 0
    while float(abs(near - one).sum(0).max()) > _PADE_RADIUS:
        near = _newtons_root(xp, near)
        roots += 1
        if near is None or roots > _ROOTS:
            return next(iter(_of_vectors(a, "log")), None)
    x = near - one
    places, weights = np.polynomial.legendre.leggauss(_PADE_DEGREE)
    terms = [
        w / 2 * xp.linalg.solve(one + (p + 1) / 2 * x, x)
        for p, w in zip(places.tolist(), weights.tolist(), strict=True)
    ]
    return 2.0**roots * sum(terms)


# -- the sign ----------------------------------------------------------------------------------
def _sign(xp: Any, a: Any, norm: float) -> Any:
    """By Newton's iteration, scaled by determinants (Higham, 5.5)."""
    if _is_hermitian(a):
        return _of_hermitian(xp, a, "sign")
    made = a
    for _ in range(TURNS):
        inverse = _inverse(xp, made)
        if inverse is None:
            return None
        s = _scale(xp, made, 0.5)
        after = (s * made + inverse / s) / 2
        change = float(abs(after - made).sum(0).max())
        made = after
        if change <= 1e2 * EPS * float(abs(made).sum(0).max()):
            return made
    return None


for _name, _function, _flops in (
    ("expm", _exponential, 30.0),
    ("sqrtm", _root, 60.0),
    ("logm", _logarithm, 200.0),
    ("signm", _sign, 60.0),
):
    op(
        _name,
        infer=_rule(_name),
        indices=whole,
        kernel=_kernel(_function),
        grad=_grad(_name),
        cost=cubic(_flops),
        dense=True,
    )


def expm(x: Operandish, /) -> Array:
    """The exponential of matrices: 1 + x + x @ x / 2 + ...

    >>> ost.linalg.expm([[0.0, 1.0], [0.0, 0.0]])
    Array([[1., 1.],
           [0., 1.]], dtype=float64)
    """
    return apply("expm", floating(x))


def sqrtm(x: Operandish, /) -> Array:
    """The matrix whose square is x and whose eigenvalues have no negative real part. Of a real x with
    negative eigenvalues it is NaN: make x complex. Singular matrices that are not symmetric may have
    few digits, or none (NaN).

    >>> ost.linalg.sqrtm([[4.0, 5.0], [0.0, 9.0]])
    Array([[2., 1.],
           [0., 3.]], dtype=float64)
    """
    return apply("sqrtm", floating(x))


def logm(x: Operandish, /) -> Array:
    """The principal logarithm: the inverse of `expm`. Of a real x with negative eigenvalues it is NaN:
    make x complex.

    >>> ost.linalg.logm([[1.0, 3.0], [0.0, 1.0]])
    Array([[0., 3.],
           [0., 0.]], dtype=float64)
    """
    return apply("logm", floating(x))


def signm(x: Operandish, /) -> Array:
    """The matrix with x's eigenvectors, and the signs of the real parts of its eigenvalues; NaN where
    one of them is 0, unless x is symmetric.

    >>> ost.linalg.signm([[2.0, 1.0], [0.0, -1.0]])
    Array([[ 1.    ,  0.6667],
           [ 0.    , -1.    ]], dtype=float64)
    """
    return apply("signm", floating(x))
