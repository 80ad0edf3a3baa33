"""Functions of whole numbers, and the parts of a floating number."""

from __future__ import annotations

import numpy as np

from ostinato.errors import DTypeError

from ..core.apply import as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from ..core.spec import DType, float32, int32, promote, uint8, uint64
from ..core.user_line import misfit
from ..flow.while_loops import while_loop
from .arithmetic import abs as absolute
from .arithmetic import floor, floor_divide, remainder
from .casts import astype
from .comparisons import equal, isfinite, logical_and, not_equal
from .elementary import ldexp, magnitude
from .elementwise import alike, binary_function, floating, where
from .reduction import any as any_of
from .shape import broadcast_arrays
from .transcendental import log2

__all__ = ["bitwise_count", "frexp", "gcd", "lcm"]


@binary_function
def gcd(x1: Operandish, x2: Operandish) -> Array:
    """The greatest common divisors, by Euclid's algorithm: one loop for all of them.

    >>> ost.gcd([12, 20, 0], 18)
    Array([ 6,  2, 18], dtype=int64)
    """
    x, y = alike("gcd", x1, x2)
    return astype(_common(magnitude(x), magnitude(y)), x.dtype)


def _common(x: Array, y: Array) -> Array:
    def step(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = pair
        ends = equal(b, 0)
        return where(ends, a, b), where(ends, 0, remainder(a, where(ends, 1, b)))

    pair = tuple(broadcast_arrays(x, y))
    return while_loop(lambda pair: any_of(not_equal(pair[1], 0)), step, pair)[0]


@binary_function
def lcm(x1: Operandish, x2: Operandish) -> Array:
    """The least common multiples; 0 where one is 0.

    >>> ost.lcm([4, 6, 0], 10)
    Array([20, 30,  0], dtype=int64)
    """
    x, y = alike("lcm", x1, x2)
    a, b = magnitude(x), magnitude(y)
    common = _common(a, b)
    return astype(floor_divide(a, where(equal(common, 0), 1, common)) * b, x.dtype)


def bitwise_count(x: Operandish) -> Array:
    """How many bits of |x| are set.

    >>> ost.bitwise_count([0, 7, -8])
    Array([0, 3, 1], dtype=uint8)
    """
    v = as_array(x)
    if v.dtype.kind not in "biu":
        raise misfit(DTypeError, "bitwise_count", got=v.dtype.name, needed="whole numbers")
    n = astype(magnitude(v), uint64)
    for bits, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)):
        few = np.uint64(mask)
        n = (n & few) + ((n >> np.uint64(bits)) & few)
    return astype((n * np.uint64(0x0101010101010101)) >> np.uint64(56), uint8)


def frexp(x: Operandish) -> tuple[Array, Array]:
    """Mantissas from [0.5, 1), and exponents: x is mantissa * 2**exponent.

    >>> ost.frexp([8.0, -0.75])
    (Array([ 0.5 , -0.75], dtype=float64), Array([4, 0], dtype=int32))
    """
    v = as_array(x)
    if v.dtype.kind == "c":
        raise misfit(DTypeError, "frexp", got=v.dtype.name, needed="real numbers")
    kind: DType = floating(v, like="sqrt").dtype
    v = astype(v, promote(kind, float32))
    counts = logical_and(isfinite(v), not_equal(v, 0))
    size = where(counts, absolute(v), 1)
    small = size < 2.0**-100  # also what is below the normal numbers
    size = where(small, size * 2.0**100, size)
    power = astype(floor(log2(size)), int32) + 1
    half = ldexp(size, -power)
    power = power + where(half >= 1, 1, where(half < 0.5, -1, 0))  # log2 rounds
    signed = where(small, v * 2.0**100, v)
    mantissa = where(counts, ldexp(signed, -power), v)
    return astype(mantissa, kind), where(counts, power - where(small, 100, 0), 0).astype(int32)
