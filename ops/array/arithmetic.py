"""Arithmetic, element by element: signs, rounding, roots, powers, extremes, complex numbers.

Gradients at kinks follow JAX: abs has slope 0 at 0, the two sides of a tie in maximum and minimum get
half each, floor and sign are flat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.errors import DTypeError

from ..core.apply import apply, as_array
from ..core.array import Array, another
from ..core.array_methods import Operandish, export
from ..core.parameters import unfit
from ..core.registry import op
from ..core.spec import DType, Spec, is_integer, real_of
from . import like_numpy
from .casts import astype, number_of
from .comparisons import equal, signbit
from .elementwise import (
    Binary,
    Out,
    Unary,
    binary,
    flat,
    floating,
    no_meaning,
    put_out,
    unary,
    unary_function,
    where,
)

__all__ = [
    "abs",
    "add",
    "atan2",
    "cbrt",
    "ceil",
    "clip",
    "copysign",
    "divide",
    "floor",
    "floor_divide",
    "imag",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "positive",
    "real",
    "reciprocal",
    "remainder",
    "round",
    "rsqrt",
    "sign",
    "sqrt",
    "square",
    "subtract",
    "trunc",
]

# -- sign and rounding ---------------------------------------------------------------------
negative: Unary = unary(
    "negative",
    doc="""-x

    >>> ost.negative([1, -2])
    Array([-1,  2], dtype=int64)
    """,
    grad=lambda g, y, x: (-g,),
    scalar="-{0}",
    adds=((0,),),
)

abs: Unary = unary(
    "abs",
    "absolute",
    doc="""Absolute value.

    >>> ost.abs([-1, 2])
    Array([1, 2], dtype=int64)
    """,
    grad=lambda g, y, x: (g * conj(sign(x)),),
    scalar="abs({0})",
)


def _sign_grad(g: Array, y: Array, x: Array) -> Sequence[Array | None]:
    if x.dtype.kind != "c":
        return (None,)
    size = abs(x)
    flat = (g - real(g * y) * conj(y)) / where(equal(size, 0), 1, size)
    return (where(equal(size, 0), 0, flat),)


def _sign_kernel(xp: Any, out: Any, x: Any) -> None:
    """NumPy's gives numbers for infinities beside NaN."""
    if out.dtype.kind != "c":
        xp.sign(x, out)
        return
    nan = xp.isnan(x)
    xp.sign(x, out)
    xp.copyto(out, complex(math.nan, math.nan), where=nan)


sign: Unary = unary(
    "sign",
    kernel=_sign_kernel,
    doc="""-1, 0 or 1; x / |x| for complex x.

    >>> ost.sign([-3, 0, 3])
    Array([-1,  0,  1], dtype=int64)
    """,
    grad=_sign_grad,
)

floor: Unary = unary(
    "floor",
    doc="""The largest integer not above x.

    >>> ost.floor([1.2, -1.2])
    Array([ 1., -2.], dtype=float64)
    """,
    grad=flat,
)

ceil: Unary = unary(
    "ceil",
    doc="""The smallest integer not below x.

    >>> ost.ceil([1.2, -1.2])
    Array([ 2., -1.], dtype=float64)
    """,
    grad=flat,
)

trunc: Unary = unary(
    "trunc",
    doc="""The integer part of x.

    >>> ost.trunc([1.2, -1.2])
    Array([ 1., -1.], dtype=float64)
    """,
    grad=flat,
)

_rint: Unary = unary("rint", doc="Nearest integer, halves to even.", grad=flat)


@export
def round(x: Operandish, /, decimals: int = 0, out: Out = None) -> Array:
    """Nearest number with so many decimals (before the point if negative); halves go to even.

    >>> ost.round([1.25, 2.5], 0)
    Array([1., 2.], dtype=float64)
    """
    x = as_array(x)
    if decimals == 0 or (is_integer(x.dtype) and decimals > 0):
        made = another(x) if is_integer(x.dtype) else _rint(x)
    elif decimals > 0:
        made = _rint(x * 10.0**decimals) / 10.0**decimals
    else:
        made = astype(_rint(x / 10.0**-decimals) * 10.0**-decimals, x.dtype)
    return put_out(made, out, "round")


@export
@unary_function
def positive(x: Operandish, /) -> Array:
    """+x

    >>> ost.positive([1, -2])
    Array([ 1, -2], dtype=int64)
    """
    x = as_array(x)
    if x.dtype.kind == "b":
        raise no_meaning("positive", [x.spec])
    return another(x)


# -- roots and powers ----------------------------------------------------------------------
sqrt: Unary = unary(
    "sqrt",
    doc="""Square root.

    >>> ost.sqrt([4.0, 9.0])
    Array([2., 3.], dtype=float64)
    """,
    grad=lambda g, y, x: (g * 0.5 / y,),
    flops=4,
)

square: Unary = unary(
    "square",
    doc="""x * x

    >>> ost.square([2, 3])
    Array([4, 9], dtype=int64)
    """,
    grad=lambda g, y, x: (2 * g * x,),
    scalar="{0} * {0}",
)

cbrt: Unary = unary(
    "cbrt",
    doc="""Cube root.

    >>> ost.cbrt([8.0, 27.0])
    Array([2., 3.], dtype=float64)
    """,
    grad=lambda g, y, x: (g / (3 * y * y),),
    flops=10,
)


_reciprocal: Unary = unary(
    "reciprocal",
    kernel=like_numpy.reciprocal,
    doc="1 / x",
    grad=lambda g, y, x: (-g * y * y,),
    scalar="1 / {0}",
)


@export
@unary_function
def reciprocal(x: Operandish, /) -> Array:
    """1 / x; integers are divided as real numbers.

    >>> ost.reciprocal([2.0, 4.0])
    Array([0.5 , 0.25], dtype=float64)
    """
    return _reciprocal(floating(x))


def _rsqrt_kernel(xp: Any, out: Any, x: Any) -> None:
    xp.sqrt(x, out)
    xp.reciprocal(out, out)


rsqrt: Unary = unary(
    "rsqrt",
    like="sqrt",
    doc="""1 / sqrt(x)

    >>> ost.rsqrt([4.0, 16.0])
    Array([0.5 , 0.25], dtype=float64)
    """,
    kernel=_rsqrt_kernel,
    grad=lambda g, y, x: (-0.5 * g * y / x,),
    scalar="1 / sqrt({0})",
    flops=5,
)

# -- complex numbers -----------------------------------------------------------------------
_conj: Unary = unary(
    "conj", "conjugate", doc="", grad=lambda g, y, x: (conj(g),), scalar="conj({0})"
)


def conj(x: Operandish, /) -> Array:
    """The complex conjugate.

    >>> ost.conjugate([1.0 + 2.0j])
    Array([1.-2.j], dtype=complex128)
    """
    x = as_array(x)
    return _conj(x) if x.dtype.kind == "c" else x


def _part(name: str, factor: complex) -> Callable[[Array], Array]:
    def infer(x: Spec) -> Spec:
        if x.dtype.kind != "c":
            raise unfit(f"{name}_part", (x,), "complex numbers", DTypeError)
        return Spec(x.shape, real_of(x.dtype))

    def kernel(xp: Any, out: Any, x: Any) -> None:
        xp.copyto(out, getattr(x, name))

    def grad(g: Array, y: Array, x: Array) -> Sequence[Array | None]:
        return (astype(g, x.dtype) * factor,)

    op(
        f"{name}_part",
        infer=infer,
        kernel=kernel,
        view=lambda xp, x, at: getattr(x, name),
        grad=grad,
        scalar=f"{{0}}.{name}",
    )
    return lambda x: apply(f"{name}_part", x)


_real_part, _imag_part = _part("real", 1), _part("imag", -1j)


@export
def real(x: Operandish, /) -> Array:
    """The real part.

    >>> ost.real([1 + 2j])
    Array([1.], dtype=float64)
    """
    x = as_array(x)
    return _real_part(x) if x.dtype.kind == "c" else x


@export
def imag(x: Operandish, /) -> Array:
    """The imaginary part.

    >>> ost.imag([1 + 2j])
    Array([2.], dtype=float64)
    """
    x = as_array(x)
    if x.dtype.kind == "c":
        return _imag_part(x)
    return apply("full", shape=x.shape, value=number_of("imag", 0, x.dtype), dtype=x.dtype)


# -- arithmetic ----------------------------------------------------------------------------
add: Binary = binary(
    "add",
    doc="""x + y

    >>> ost.add([1, 2], [10, 20])
    Array([11, 22], dtype=int64)
    """,
    grad=lambda g, out, x, y: (g, g),
    scalar="{0} + {1}",
    adds=((0, 1),),
)

subtract: Binary = binary(
    "subtract",
    doc="""x - y

    >>> ost.subtract([1, 2], [10, 20])
    Array([ -9, -18], dtype=int64)
    """,
    grad=lambda g, out, x, y: (g, -g),
    scalar="{0} - {1}",
    adds=((0, 1),),
)

multiply: Binary = binary(
    "multiply",
    doc="""x * y

    >>> ost.multiply([1, 2], [10, 20])
    Array([10, 40], dtype=int64)
    """,
    grad=lambda g, out, x, y: (g * y, g * x),
    scalar="{0} * {1}",
    adds=((0,), (1,)),
)

divide: Binary = binary(
    "divide",
    kernel=like_numpy.divide,
    doc="""x / y

    >>> ost.divide([1, 2], 4)
    Array([0.25, 0.5 ], dtype=float64)
    """,
    grad=lambda g, out, x, y: (g / y, -g * out / y),
    scalar="{0} / {1}",
    flops=4,
    adds=((0,),),
)

floor_divide: Binary = binary(
    "floor_divide",
    doc="""floor(x / y); of infinities NaN, and -1 of what is next to 0 from below, as Python's x // y

    >>> ost.floor_divide([7, -7], 2)
    Array([ 3, -4], dtype=int64)
    """,
    grad=flat,
    scalar="{0} // {1}",
    flops=6,
)

remainder: Binary = binary(
    "remainder",
    doc="""What floor_divide leaves; has the sign of y.

    >>> ost.remainder([7, -7], 3)
    Array([1, 2], dtype=int64)
    """,
    grad=lambda g, out, x, y: (g, -g * floor(x / y)),
    scalar="{0} % {1}",
    flops=6,
)


def _both(g: Array, out: Array, x: Array, y: Array) -> Sequence[Array | None]:
    """The gradient goes to the operand that won; a tie is shared."""
    half = astype(where(equal(x, y), 0.5, 1.0), g.dtype)
    return where(equal(x, out), g * half, 0), where(equal(y, out), g * half, 0)


maximum: Binary = binary(
    "maximum",
    doc="""The larger one; NaN if either is.

    >>> ost.maximum([1, 5], [3, 3])
    Array([3, 5], dtype=int64)
    """,
    grad=_both,
    scalar="max({0}, {1})",
)

minimum: Binary = binary(
    "minimum",
    doc="""The smaller one; NaN if either is.

    >>> ost.minimum([1, 5], [3, 3])
    Array([1, 3], dtype=int64)
    """,
    grad=_both,
    scalar="min({0}, {1})",
)

atan2: Binary = binary(
    "atan2",
    "arctan2",
    doc="""The angle of the point (y, x).

    >>> ost.atan2([1.0, -1.0], [0.0, 0.0])
    Array([ 1.5708, -1.5708], dtype=float64)
    """,
    grad=lambda g, out, y, x: (g * x / (x * x + y * y), -g * y / (x * x + y * y)),
    flops=20,
)

copysign: Binary = binary(
    "copysign",
    doc="""The magnitude of x with the sign of y.

    >>> ost.copysign([1.0, 2.0], [-1.0, 1.0])
    Array([-1.,  2.], dtype=float64)
    """,
    grad=lambda g, out, x, y: (where(equal(signbit(x), signbit(y)), g, -g), None),
)

nextafter: Binary = binary(
    "nextafter",
    kernel=like_numpy.nextafter,
    doc="""The next number after x towards y.

    >>> ost.nextafter(1.0, 2.0) > 1.0
    Array(True, dtype=bool)
    """,
)


@export
def clip(
    x: Operandish,
    /,
    min: Operandish | None = None,
    max: Operandish | None = None,
    out: Out = None,
    *,
    a_min: Operandish | None = None,
    a_max: Operandish | None = None,
) -> Array:
    """x, but at least min and at most max, which NumPy calls `a_min` and `a_max`, too.

    >>> ost.clip([1, 5, 9], 2, 6)
    Array([2, 5, 6], dtype=int64)
    """
    given = x = as_array(x)
    min, max = min if a_min is None else a_min, max if a_max is None else a_max
    for limit, nearer, is_low in ((min, maximum, True), (max, minimum, False)):
        if limit is None:
            continue
        if type(limit) is int and is_integer(x.dtype):
            edge = np.iinfo(x.dtype).min if is_low else np.iinfo(x.dtype).max
            if (limit <= edge) if is_low else (limit >= edge):
                continue  # all of them are within
        x = nearer(x, limit)
    return put_out(another(x) if x is given else x, out, "clip")


def convert(x: Array, dtype: DType) -> Array:
    """The values in another dtype; of complex ones the real part, if it must be (gradients)."""
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = real(x)
    return astype(x, dtype)
