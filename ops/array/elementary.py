"""Functions of elements by NumPy's names that are a few of the others' (arithmetic.py)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ostinato.errors import DTypeError

from ..core.apply import apply, as_array, unify
from ..core.array import Array
from ..core.array_methods import Operandish
from ..core.spec import bool_, float32, float64, is_inexact, promote
from ..core.user_line import misfit
from .arithmetic import abs as absolute
from .arithmetic import copysign, floor_divide, imag, remainder, trunc
from .arithmetic import round as nearest
from .casts import astype
from .comparisons import equal, greater_equal, isinf
from .elementwise import alike, binary_function, floating, together, unary_function, where
from .shape import stop_gradient
from .transcendental import exp2, expm1, log1p, pow

__all__ = [
    "divmod",
    "fabs",
    "float_power",
    "fmod",
    "iscomplex",
    "iscomplexobj",
    "isreal",
    "isrealobj",
    "ldexp",
    "logaddexp2",
    "modf",
    "rint",
]


@unary_function
def fabs(x: Operandish) -> Array:
    """|x| of real numbers, as floating numbers.

    >>> ost.fabs([-1, 2])
    Array([1., 2.], dtype=float64)
    """
    (v,) = _real("fabs", x)
    return absolute(floating(v, like="fabs"))


def _real(name: str, *given: Operandish) -> list[Array]:
    found = unify(*given)
    for x in found:
        if x.dtype.kind == "c":
            raise misfit(DTypeError, name, got=x.dtype.name, needed="real numbers")
    return found


@unary_function
def rint(x: Operandish) -> Array:
    """The nearest whole number, halves to even, as a floating number.

    >>> ost.rint([0.5, 1.5])
    Array([0., 2.], dtype=float64)
    """
    return nearest(floating(x, like="rint"))


def divmod(x1: Operandish, x2: Operandish) -> tuple[Array, Array]:
    """x1 // x2 and x1 % x2.

    >>> ost.divmod([7, -7], 3)
    (Array([ 2, -3], dtype=int64), Array([1, 2], dtype=int64))
    """
    return floor_divide(x1, x2), remainder(x1, x2)


@binary_function
def fmod(x1: Operandish, x2: Operandish) -> Array:
    """The remainder that has the sign of x1, as C's; `remainder` has that of x2.

    >>> ost.fmod([7.0, -7.0], 3.0)
    Array([ 1., -1.], dtype=float64)
    """
    x, y = alike("fmod", *_real("fmod", x1, x2))
    size = remainder(magnitude(x), magnitude(y))
    if x.dtype.kind == "i":
        size = astype(size, x.dtype)
        return where(x < 0, -size, size)
    if x.dtype.kind == "u":
        return size
    size = where(isinf(y) & (absolute(x) < math.inf), absolute(x), size)
    return copysign(size, x)


def magnitude(x: Array) -> Array:
    """|x|, of integers in an unsigned dtype, as the least one has none in its own."""
    size = absolute(x)
    return astype(size, np.dtype(f"u{x.dtype.itemsize}")) if x.dtype.kind == "i" else size


@binary_function
def float_power(x1: Operandish, x2: Operandish) -> Array:
    """x1 ** x2 in float64, or in complex128.

    >>> ost.float_power([1, 2], -1)
    Array([1. , 0.5], dtype=float64)
    """
    x, y = together("float_power", x1, x2)
    wide = np.dtype(np.complex128) if "c" in (x.dtype.kind, y.dtype.kind) else float64
    return pow(astype(x, wide), astype(y, wide))


@binary_function
def logaddexp2(x1: Operandish, x2: Operandish) -> Array:
    """log2(2**x1 + 2**x2), without overflow.

    >>> ost.logaddexp2(3.0, 3.0)
    Array(4., dtype=float64)
    """
    x, y = alike("logaddexp2", x1, x2)
    kind = x.dtype
    x, y = (astype(each, promote(kind, float32)) for each in (x, y))  # halves are rounded once
    ahead = greater_equal(x, y)
    more, less = where(ahead, x, y), where(ahead, y, x)
    finite = absolute(more) < math.inf
    top = stop_gradient(where(finite, more, 0))  # so that derivatives hold where x is y, too
    rest = expm1((more - top) * math.log(2.0)) + exp2(less - top)
    return astype(where(finite, top + log1p(rest) * (1 / math.log(2.0)), more), kind)


@binary_function
def ldexp(x1: Operandish, x2: Operandish) -> Array:
    """x1 * 2**x2, for whole x2.

    >>> ost.ldexp([1.5, 1.0], [3, -1])
    Array([12. ,  0.5], dtype=float64)
    """
    (k,) = _real("ldexp", x2)
    if is_inexact(k.dtype):
        got = f"exponents of {k.dtype.name}"
        raise misfit(DTypeError, "ldexp", got=got, needed="whole numbers")
    x = floating(x1, like="sqrt")
    half = floor_divide(k, 2)  # so that neither power overflows where the product does not
    first, second = (exp2(astype(p, x.dtype)) for p in (half, k - half))
    return where(equal(x + x, x), x, x * first * second)  # zeros and infinities stay


def modf(x: Operandish) -> tuple[Array, Array]:
    """Return what is behind the point, and what is before it.

    >>> ost.modf([2.5, -2.5])
    (Array([ 0.5, -0.5], dtype=float64), Array([ 2., -2.], dtype=float64))
    """
    (given,) = _real("modf", x)
    v = floating(given, like="sqrt")
    whole = trunc(v)
    return copysign(where(isinf(v), 0, v - whole), v), whole


def isreal(x: Operandish) -> Array:
    """Whether the imaginary part is 0.

    >>> ost.isreal([1.0, 1.0j])
    Array([ True, False], dtype=bool)
    """
    v = as_array(x)
    if v.dtype.kind == "c":
        return equal(imag(v), 0)
    return apply("full", shape=v.shape, value=True, dtype=bool_)


def iscomplex(x: Operandish) -> Array:
    """Whether the imaginary part is not 0.

    >>> ost.iscomplex([1.0, 1.0j])
    Array([False,  True], dtype=bool)
    """
    return ~isreal(x)


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype is one of complex numbers.

    >>> ost.iscomplexobj(ost.ones(2) * 1j)
    True
    """
    return as_array(x).dtype.kind == "c"


def isrealobj(x: Any) -> bool:
    """Whether the dtype is none of complex numbers.

    >>> ost.isrealobj(ost.ones(2))
    True
    """
    return not iscomplexobj(x)
