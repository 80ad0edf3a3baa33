"""Powers, exponentials, logarithms, trigonometry, and functions of learning, element by element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ostinato.errors import ArgumentError, ExecutionError

from ..core.apply import as_array
from ..core.array import Array, another
from ..core.array_methods import Operandish, export
from ..core.device import device_of
from ..core.notes import noted
from ..core.registry import Scratch
from ..core.spec import Shape, Spec, bool_, float32, is_float, is_inexact, is_integer, promote
from ..core.user_line import misfit
from . import like_numpy
from .arithmetic import _reciprocal, sqrt, square
from .comparisons import equal, isinf, isnan, logical_and, logical_or
from .elementwise import Binary, Unary, binary, binary_function, unary, where

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "hypot",
    "log",
    "log10",
    "log1p",
    "log2",
    "logaddexp",
    "pow",
    "sigmoid",
    "sin",
    "sinh",
    "softplus",
    "tan",
    "tanh",
]

# -- exponentials and logarithms -----------------------------------------------------------
exp: Unary = unary(
    "exp",
    doc="""e to the x.

    >>> ost.exp([0.0, 1.0])
    Array([1.    , 2.7183], dtype=float64)
    """,
    grad=lambda g, y, x: (g * y,),
    flops=10,
)

exp2: Unary = unary(
    "exp2",
    doc="""2 to the x.

    >>> ost.exp2([3.0, 4.0])
    Array([ 8., 16.], dtype=float64)
    """,
    grad=lambda g, y, x: (g * y * math.log(2),),
    flops=10,
)


expm1: Unary = unary(
    "expm1",
    kernel=like_numpy.expm1,
    doc="""exp(x) - 1

    >>> ost.expm1([0.0, 1e-10])
    Array([0., 0.], dtype=float64)
    """,
    grad=lambda g, y, x: (g * (y + 1),),
    flops=12,
)

log: Unary = unary(
    "log",
    doc="""Natural logarithm.

    >>> ost.log([1.0, 2.0])
    Array([0.    , 0.6931], dtype=float64)
    """,
    grad=lambda g, y, x: (g / x,),
    flops=10,
)

log1p: Unary = unary(
    "log1p",
    doc="""log(1 + x)

    >>> ost.log1p([0.0, 1e-10])
    Array([0., 0.], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (1 + x),),
    flops=12,
)

log2: Unary = unary(
    "log2",
    kernel=like_numpy.log2,
    doc="""Logarithm to base 2.

    >>> ost.log2([8.0, 2.0])
    Array([3., 1.], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (x * math.log(2)),),
    flops=10,
)

log10: Unary = unary(
    "log10",
    doc="""Logarithm to base 10.

    >>> ost.log10([10.0, 1000.0])
    Array([1., 3.], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (x * math.log(10)),),
    flops=10,
)

# -- trigonometry --------------------------------------------------------------------------
sin: Unary = unary(
    "sin",
    doc="""Sine.

    >>> ost.sin([0.0, 0.5])
    Array([0.    , 0.4794], dtype=float64)
    """,
    grad=lambda g, y, x: (g * cos(x),),
    flops=12,
)

cos: Unary = unary(
    "cos",
    doc="""Cosine.

    >>> ost.cos([0.0, 0.5])
    Array([1.    , 0.8776], dtype=float64)
    """,
    grad=lambda g, y, x: (-g * sin(x),),
    flops=12,
)

tan: Unary = unary(
    "tan",
    doc="""Tangent.

    >>> ost.tan([0.0, 0.5])
    Array([0.    , 0.5463], dtype=float64)
    """,
    grad=lambda g, y, x: (g * (1 + y * y),),
    flops=16,
)

asin: Unary = unary(
    "asin",
    "arcsin",
    doc="""Inverse sine.

    >>> ost.asin([0.0, 1.0])
    Array([0.    , 1.5708], dtype=float64)
    """,
    grad=lambda g, y, x: (g / sqrt(1 - x * x),),
    flops=16,
)

acos: Unary = unary(
    "acos",
    "arccos",
    doc="""Inverse cosine.

    >>> ost.acos([0.0, 1.0])
    Array([1.5708, 0.    ], dtype=float64)
    """,
    grad=lambda g, y, x: (-g / sqrt(1 - x * x),),
    flops=16,
)

atan: Unary = unary(
    "atan",
    "arctan",
    doc="""Inverse tangent.

    >>> ost.atan([0.0, 1.0])
    Array([0.    , 0.7854], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (1 + x * x),),
    flops=16,
)

sinh: Unary = unary(
    "sinh",
    doc="""Hyperbolic sine.

    >>> ost.sinh([0.0, 1.0])
    Array([0.    , 1.1752], dtype=float64)
    """,
    grad=lambda g, y, x: (g * cosh(x),),
    flops=16,
)

cosh: Unary = unary(
    "cosh",
    doc="""Hyperbolic cosine.

    >>> ost.cosh([0.0, 1.0])
    Array([1.    , 1.5431], dtype=float64)
    """,
    grad=lambda g, y, x: (g * sinh(x),),
    flops=16,
)

tanh: Unary = unary(
    "tanh",
    doc="""Hyperbolic tangent.

    >>> ost.tanh([0.0, 1.0])
    Array([0.    , 0.7616], dtype=float64)
    """,
    grad=lambda g, y, x: (g * (1 - y * y),),
    flops=12,
)

asinh: Unary = unary(
    "asinh",
    "arcsinh",
    doc="""Inverse hyperbolic sine.

    >>> ost.asinh([0.0, 1.0])
    Array([0.    , 0.8814], dtype=float64)
    """,
    grad=lambda g, y, x: (g / sqrt(1 + x * x),),
    flops=16,
)

acosh: Unary = unary(
    "acosh",
    "arccosh",
    doc="""Inverse hyperbolic cosine.

    >>> ost.acosh([1.0, 2.0])
    Array([0.   , 1.317], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (sqrt(x - 1) * sqrt(x + 1)),),
    calm=2.0,
    flops=16,
)

atanh: Unary = unary(
    "atanh",
    "arctanh",
    doc="""Inverse hyperbolic tangent.

    >>> ost.atanh([0.0, 0.5])
    Array([0.    , 0.5493], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (1 - x * x),),
    flops=16,
)


# -- learning and statistics ---------------------------------------------------------------
def _sigmoid_kernel(xp: Any, out: Any, x: Any) -> None:
    xp.negative(x, out)
    xp.exp(out, out)
    xp.add(out, 1, out)
    xp.reciprocal(out, out)


sigmoid: Unary = unary(
    "sigmoid",
    like="exp",
    doc="""1 / (1 + exp(-x))

    >>> ost.sigmoid([0.0, 2.0])
    Array([0.5   , 0.8808], dtype=float64)
    """,
    kernel=_sigmoid_kernel,
    grad=lambda g, y, x: (g * y * (1 - y),),
    scalar="(1 if {0} >= 0 else exp(-abs({0}))) / (1 + exp(-abs({0})))",
    flops=14,
)


softplus: Unary = unary(
    "softplus",
    like="cbrt",
    doc="""log(1 + exp(x)), without overflow.

    >>> ost.softplus([0.0, 2.0])
    Array([0.6931, 2.1269], dtype=float64)
    """,
    kernel=lambda xp, out, x: xp.logaddexp(x, out.dtype.type(0), out),
    grad=lambda g, y, x: (g * sigmoid(x),),
    scalar="(max({0}, 0.0) + log1p(exp(-abs({0}))))",
    flops=20,
)

# erf(x) = x * P(x*x) below 1, and 1 - t * exp(Q(t - 1/2) - x*x) with t = 2 / (2 + x) above; Chebyshev
# fits to 1e-19 relative and, of the exponent, 3e-17. Both are the float64 kernels' too.
ERF_SMALL = (
    *(5.957176147748911e-11, -1.1372848856791674e-09, 1.4659775274047436e-08),
    *(-1.6350312701054695e-07, 1.6461000484121368e-06, -1.4925595266831182e-05),
    *(0.0001205533111164271, -0.000854832698083379, 0.0052239776248180145),
    *(-0.026866170645076792, 0.11283791670954879, -0.3761263890318375, 1.1283791670955126),
)

ERF_LARGE = (
    *(-0.4346079254192838, 0.25781661736561406, 0.2898077564737489, -0.35683147810523397),
    *(-0.09592411692365924, 0.34491986658339424, -0.037439949137426355, -0.30026395198979866),
    *(0.11257175260169823, 0.28239803351541576, -0.15796302987693142, -0.3751648818485532),
    *(0.18937322736763207, 1.3452864479553128, -0.6717940840566923),
)

# elements that a kernel with many steps works on at a time, so that they stay in cache
_CHUNK = 8192


def _horner(xp: Any, coefficients: Sequence[float], x: Any, out: Any) -> None:
    xp.multiply(x, coefficients[0], out)
    for c in coefficients[1:-1]:
        xp.add(out, c, out)
        xp.multiply(out, x, out)
    xp.add(out, coefficients[-1], out)


def _erf_kernel(xp: Any, out: Any, x: Any, *, scratch: Sequence[Any]) -> None:
    source, target = x.reshape(-1), out.reshape(-1)
    for start in range(0, source.size, _CHUNK):
        part = source[start : start + _CHUNK]
        a, t, small, large, inner = (s[: part.size] for s in scratch[:5])
        xp.abs(part, out=a)
        xp.multiply(a, a, t)
        _horner(xp, ERF_SMALL, t, small)
        xp.multiply(small, a, small)
        xp.negative(t, t)  # -x*x
        xp.add(a, 2, large)
        xp.divide(2, large, a)  # t of the formula; |x| is found again below
        xp.subtract(a, 0.5, inner)
        _horner(xp, ERF_LARGE, inner, large)
        xp.add(large, t, large)
        xp.exp(large, large)
        xp.multiply(large, a, large)
        xp.subtract(1, large, large)
        inside = scratch[5][: part.size]
        xp.greater(t, -1, inside)
        xp.copyto(large, small, where=inside)
        xp.copysign(large, part, large)
        target[start : start + _CHUNK] = large


def _erf_scratch(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec]
) -> Sequence[Scratch]:
    n, work = min(_CHUNK, math.prod(ins[0])), promote(specs[0].dtype, float32)
    return (*(Scratch((n,), work) for _ in range(5)), Scratch((n,), bool_))


erf: Unary = unary(
    "erf",
    like="cbrt",
    doc="""The error function.

    >>> ost.erf([0.0, 1.0])
    Array([0.    , 0.8427], dtype=float64)
    """,
    kernel=_erf_kernel,
    scratch=_erf_scratch,
    grad=lambda g, y, x: (g * (2 / math.sqrt(math.pi)) * exp(-(x * x)),),
    flops=60,
)


def _pow_grad(g: Array, out: Array, x: Array, y: Array) -> Sequence[Array | None]:
    flat = equal(y, 0)  # where 1 / x may be infinite, and y - 1 no number of y's dtype
    below = where(logical_or(equal(x, 0), isnan(x)), 1, x)
    by_x = where(flat, y / below, y * _pow(x, where(flat, 1, y - 1)))
    by_y = where(equal(x, 0), 0, log(where(equal(x, 0), 1, x)) * out)
    return g * by_x, (g * by_y if is_inexact(y.dtype) else None)


NEGATIVE = "Integers to negative integer powers are not allowed."  # as NumPy says it


def _pow_kernel(xp: Any, out: Any, x: Any, y: Any) -> None:
    """NumPy's takes square roots for exponents 1/2, which differ for -0 and -inf. Other libraries make
    something of whole numbers that have no such power."""
    if is_integer(out.dtype) and not device_of(out).is_host and y.dtype.kind == "i":
        below = y < 0
        if not noted(below, 1, NEGATIVE, ExecutionError) and below.any():
            raise ValueError(NEGATIVE)
    roots = (y == 0.5) if is_float(out.dtype) else None
    if roots is None or not xp.any(roots):
        xp.power(x, y, out)
        return
    zeros, infinite = roots & (x == 0), roots & (x == -math.inf)
    xp.power(x, y, out)
    xp.copyto(out, 0, where=zeros)
    xp.copyto(out, math.inf, where=infinite)


_pow: Binary = binary(
    "pow", "power", kernel=_pow_kernel, doc="x to the y.", grad=_pow_grad, flops=20, refuses=True
)


def _multiplied(x: Array, n: int) -> Array:
    """A power as products, as NumPy makes those of complex numbers."""
    found, power = (x if n & 1 else None), x
    while n := n >> 1:
        power = square(power)
        if n & 1:
            found = power if found is None else found * power
    assert found is not None
    return found


@export
@binary_function
def pow(x: Operandish, y: Operandish, /) -> Array:
    """x to the y.

    >>> ost.pow([1, 2, 3], 2)
    Array([1, 4, 9], dtype=int64)
    """
    if isinstance(x, Array) and is_inexact(x.dtype) and type(y) in (int, float):
        if y == 2:
            return square(x)
        if y == 1:
            return another(x)
        if y == -1:
            return _reciprocal(x)
        if x.dtype.kind == "c" and isinstance(y, int | float) and y in range(3, 17):
            return _multiplied(x, int(y))
    if isinstance(y, int) and y < 0 and not is_inexact(as_array(x).dtype):
        got = f"an integer array to the power {y}"
        needed = "a floating dtype, since the result is a fraction"
        do = "write x.astype(ost.float64) ** y"
        raise misfit(ArgumentError, "pow", got=got, needed=needed, do=do)
    return _pow(x, y)


hypot: Binary = binary(
    "hypot",
    doc="""sqrt(x*x + y*y), without overflow.

    >>> ost.hypot([3.0], [4.0])
    Array([5.], dtype=float64)
    """,
    grad=lambda g, out, x, y: (g * x / out, g * y / out),
    flops=8,
)


def _logaddexp_grad(g: Array, out: Array, x: Array, y: Array) -> Sequence[Array | None]:
    alike = logical_and(isinf(x), equal(x, y))  # which have no difference
    ahead = where(alike, 0, x - y)
    return g * sigmoid(ahead), g * sigmoid(-ahead)


logaddexp: Binary = binary(
    "logaddexp",
    doc="""log(exp(x) + exp(y)), without overflow.

    >>> ost.logaddexp([0.0], [0.0])
    Array([0.6931], dtype=float64)
    """,
    grad=_logaddexp_grad,
    flops=30,
)
