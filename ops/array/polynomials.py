"""Polynomials, by NumPy's names: rows of coefficients, that of the highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from ostinato.errors import ArgumentError

from .. import linalg
from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from ..core.user_line import misfit
from .casts import astype
from .concatenation import add_zeros, concat
from .creation import zeros
from .elementwise import floating
from .numerical import convolve
from .shape import reshape, whole_number
from .slicing import slice_axes

__all__ = ["poly", "polyadd", "polyder", "polyint", "polymul", "polysub", "roots"]


def _row(p: Operandish, name: str) -> Array:
    x = as_array(p)
    x = reshape(x, (1,)) if x.ndim == 0 else x
    if x.ndim != 1:
        raise misfit(ArgumentError, name, got=f"shape {x.shape}", needed="one row of coefficients")
    return x


def _alike(a1: Operandish, a2: Operandish, name: str) -> tuple[Array, Array]:
    x, y = _row(a1, name), _row(a2, name)
    n = max(x.size, y.size)
    return add_zeros(x, (n - x.size, 0)), add_zeros(y, (n - y.size, 0))


def polyadd(a1: Operandish, a2: Operandish) -> Array:
    """The sum of two polynomials.

    >>> ost.polyadd([1, 2], [3, 0, 0])
    Array([3, 1, 2], dtype=int64)
    """
    x, y = _alike(a1, a2, "polyadd")
    return x + y


def polysub(a1: Operandish, a2: Operandish) -> Array:
    """The difference of two polynomials.

    >>> ost.polysub([1, 2], [1, 0])
    Array([0, 2], dtype=int64)
    """
    x, y = _alike(a1, a2, "polysub")
    return x - y


def polymul(a1: Operandish, a2: Operandish) -> Array:
    """The product of two polynomials.

    >>> ost.polymul([1, 1], [1, -1])
    Array([ 1,  0, -1], dtype=int64)
    """
    return convolve(_row(a1, "polymul"), _row(a2, "polymul"))


def polyder(p: Operandish, m: int = 1) -> Array:
    """The m-th derivative.

    >>> ost.polyder([1, 2, 3])
    Array([2, 2], dtype=int64)
    """
    x = _row(p, "polyder")
    for _ in range(whole_number(m, "polyder", 0)):
        n = max(x.size - 1, 0)
        x = slice_axes(x, {0: (0, n, 1)}) * np.arange(n, 0, -1)
    return x


def polyint(p: Operandish, m: int = 1, k: Any = None) -> Array:
    """The m-th integral, with constants k.

    >>> ost.polyint([2.0, 2.0])
    Array([1., 2., 0.], dtype=float64)
    """
    x = _row(p, "polyint")
    x = floating(x)
    m = whole_number(m, "polyint", 0)
    given = [0.0] * m if k is None else [k] * m if np.ndim(k) == 0 else list(k)
    if len(given) != m:
        raise misfit(ArgumentError, "polyint", got=f"{len(given)} constants", needed=f"{m}")
    for constant in given:
        last = reshape(astype(as_array(constant), x.dtype), (1,))
        x = concat([x / np.arange(x.size, 0, -1), last])
    return x


def roots(p: Operandish) -> Array:
    """Where a polynomial is 0, as complex numbers: eigenvalues of its companion matrix. Its first coefficient
    must not be 0.

    >>> ost.sort(ost.real(ost.roots([1.0, 0.0, -4.0])))
    Array([-2.,  2.], dtype=float64)
    """
    x = _row(p, "roots")
    x = floating(x)
    n = x.size - 1
    if n < 1:
        return zeros((0,), dtype=np.result_type(x.dtype, np.complex64))
    first = reshape(-x[1:] / x[0], (1, n))
    rest = apply("full", shape=(n - 1, n), value=0, dtype=x.dtype)
    below = concat([first, rest + np.eye(n - 1, n, dtype=x.dtype)]) if n > 1 else first
    return linalg.eigvals(below)


def poly(seq_of_zeros: Operandish) -> Array:
    """The polynomial with these roots; of a matrix, its characteristic polynomial.

    >>> ost.poly([2.0, -2.0])
    Array([ 1.,  0., -4.], dtype=float64)
    """
    x = as_array(seq_of_zeros)
    if x.ndim == 2:
        x = linalg.eigvals(x)
    x = _row(x, "poly")
    x = floating(x)
    found = reshape(astype(as_array(1.0), x.dtype), (1,))
    for k in range(x.size):
        longer = add_zeros(found, (0, 1))
        found = longer - x[k] * add_zeros(found, (1, 0))
    return found
