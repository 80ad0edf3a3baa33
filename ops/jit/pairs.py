"""Complex numbers as pairs of registers, so that whatever writes registers writes them.

Sums, differences, products and comparisons are made of those of the parts; quotients and functions
are right at infinities and NaN as C's are (ISO C, Annex G), and do not overflow before their time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ostinato.ops.core.spec import DType, complex_of, float32, float64, real_of

from . import math_functions as of_reals
from .values import (
    Function,
    Lines,
    Unsupported,
    Value,
    cast,
    copysign,
    fma,
    two_product,
    two_sum,
    where,
)


class Pair(Value):
    """A complex number; it has no register of its own, so whoever asks for one cannot do it."""

    __slots__ = ("imag", "real")

    def __init__(self, real: Value, imag: Value) -> None:
        self.lines, self.dtype, self.number = real.lines, complex_of(real.dtype), None
        self.real, self.imag = real, imag

    def each(self, function: Callable[..., Value], *others: Pair) -> Pair:
        """Apply a function to real and to imaginary parts."""
        reals, imags = [x.real for x in others], [x.imag for x in others]
        return Pair(function(self.real, *reals), function(self.imag, *imags))

    def like(self, other: Any) -> Pair:
        if isinstance(other, Value):
            if isinstance(other, Pair) and other.dtype == self.dtype:
                return other
            raise Unsupported(f"{self.dtype} with {other.dtype}")
        return pair_of(self.lines, complex(other), self.dtype)

    def converted(self, dtype: DType) -> Value:
        part = real_of(dtype)
        if dtype.kind == "c":
            return self.each(lambda x: cast(x, part))
        if dtype.kind == "b":
            return self != 0
        raise Unsupported(f"{self.dtype} to {dtype}")

    def selected(self, c: Value, other: Value) -> Value:
        return self.each(lambda x, y: where(c, x, y), self.like(other))

    def _arithmetic(self, other: Any, real: str, whole: str, swap: bool = False) -> Value:
        a, b = self, self.like(other)
        a, b = (b, a) if swap else (a, b)
        if real == "fmul":
            return Pair(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)
        if real == "fdiv":
            return _quotient(a, b)
        return a.each(lambda x, y: x._arithmetic(y, real, whole), b)

    def __neg__(self) -> Value:
        return self.each(lambda x: -x)

    def __abs__(self) -> Value:
        return _size(self.real, self.imag)

    def _compare(self, other: Any, real: str, signed: str) -> Value:
        if signed not in ("eq", "ne"):
            raise Unsupported("the order of complex numbers")
        both = self.each(lambda x, y: x._compare(y, real, signed), self.like(other))
        return both.real & both.imag if signed == "eq" else both.real | both.imag

    __eq__, __ne__, __hash__ = Value.__eq__, Value.__ne__, Value.__hash__


def pair_of(lines: Lines, value: complex, dtype: DType) -> Pair:
    """A number."""
    part = real_of(dtype)
    return Pair(lines.constant(value.real, part), lines.constant(value.imag, part))


def _quotient(a: Pair, b: Pair) -> Pair:
    """Smith's, as NumPy has it: the part of b that is larger divides the other one."""
    wide, none = abs(b.real) >= abs(b.imag), (b.real == 0) & (b.imag == 0)
    large, small = where(wide, b.real, b.imag), where(wide, b.imag, b.real)
    u, v = where(wide, a.real, a.imag), where(wide, a.imag, a.real)
    ratio = small / large
    share = where(none, math.inf, 1.0 / (large + small * ratio))
    real, imag = u + v * ratio, where(wide, v - u * ratio, u * ratio - v)
    return Pair(where(none, a.real, real) * share, where(none, a.imag, imag) * share)


def _size(x: Value, y: Value) -> Value:
    """sqrt(x*x + y*y), of numbers that are made smaller or larger first where squares are no numbers."""
    if x.dtype == float64:
        return of_reals.hypot(x, y)
    a, b = abs(x), abs(y)
    large, small = (a > 2.0**60) | (b > 2.0**60), (a < 2.0**-40) & (b < 2.0**-40)
    scale = where(large, x.like(2.0**-80), where(small, x.like(2.0**100), 1.0))
    back = where(large, x.like(2.0**80), where(small, x.like(2.0**-100), 1.0))
    a, b = a * scale, b * scale
    found = _sqrt(fma(a, a, b * b)) * back
    return where((abs(x) == math.inf) | (abs(y) == math.inf), x.like(math.inf), found)


# -- pieces --------------------------------------------------------------------------------
# From where on exp(x) may be too large, although exp(x) times a sine is not; a power of two that x is
# then made smaller by; and its logarithm in two parts, the first of few bits, so that nothing is lost.
_HIGH = {float32: (88.0, 64, 44.361419677734375, -1.2189787519729715e-07),
         float64: (709.0, 512, 354.89135644669204, -4.496989917391496e-14)}  # fmt: skip


def _below(x: Value) -> tuple[Value, Value]:
    """A number whose exponential is none that is too large, and what that is to be multiplied by."""
    top, power, high, low = _HIGH[x.dtype]
    large = (x > top) & (x < math.inf)
    less = x - high
    below = less - low
    rest = (less - below) - low  # what rounding lost, of a number that is not small
    return where(large, below, x), where(large, 2.0**power * (1.0 + rest), 1.0)


def _finite(x: Value) -> Value:
    return abs(x) < math.inf


def _zero(x: Value, y: Value) -> Value:
    """Zero with the sign of a product."""
    return copysign(x.like(0.0), x) * copysign(y.like(1.0), y)


def _turned(function: Callable[[Pair], Pair]) -> Function:
    """-i f(i z)"""

    def made(z: Pair) -> Pair:
        found = function(Pair(-z.imag, z.real))
        return Pair(found.imag, -found.real)

    return made


# -- functions -----------------------------------------------------------------------------
def exp(z: Pair) -> Pair:
    x, y = z.real, z.imag
    below, scale = _below(x)
    e = of_reals.exp(below)
    sine, cosine = of_reals.sin_and_cos(y)
    odd = ~_finite(y) & (abs(x) == math.inf)
    cosine = where(odd, 1.0, cosine)
    sine = where(odd & (x < 0), copysign(y.like(1.0), y), sine)
    return Pair(e * cosine * scale, where(y == 0, y, e * sine * scale))


def expm1(z: Pair) -> Pair:
    x, y = z.real, z.imag
    far, whole = exp(z), of_reals.sin_and_cos(y)[1]
    half = of_reals.sin(y * 0.5)
    near = fma(of_reals.expm1(x), whole, -2.0 * (half * half))
    return Pair(where((abs(x) < 40.0) & _finite(y), near, far.real - 1.0), far.imag)


def log(z: Pair) -> Pair:
    return Pair(_log_of_size(z.real, z.imag), of_reals.atan2(z.imag, z.real))


def _log_of_size(x: Value, y: Value) -> Value:
    """log(x*x + y*y) / 2 of a sum in two parts, so that nothing is lost where it is near 1."""
    dtype, a, b = x.dtype, cast(abs(x), float64), cast(abs(y), float64)
    if dtype == float64:
        large, small = (a > 2.0**400) | (b > 2.0**400), (a < 2.0**-400) & (b < 2.0**-400)
        scale = where(large, x.like(2.0**-600), where(small, x.like(2.0**600), 1.0))
        a, b = a * scale, b * scale
        more = where(large, x.like(600.0), where(small, x.like(-600.0), 0.0))
    p, q = a * a, b * b
    high, low = two_sum(p, q)
    if dtype == float64:
        low = low + (fma(a, a, -p) + fma(b, b, -q))
    low = where(_finite(high) & (high > 0), low / high, low.like(0.0))
    found = of_reals.log(high) + low
    found = found * 0.5
    if dtype == float64:
        found = fma(more, math.log(2), found)
    found = where((a == math.inf) | (b == math.inf), found.like(math.inf), found)
    return cast(found, dtype)


def log1p(z: Pair) -> Pair:
    """Compute log(1 + z) by way of |1 + z| squared, less 1, where that is small: 2x + x*x + y*y as
    a sum of two numbers."""
    x, y = z.real, z.imag
    far = log(Pair(x + 1.0, y))
    a, b = cast(x, float64), cast(y, float64)
    (p, p_low), (q, q_low) = two_product(a, a), two_product(b, b)
    high, low = two_sum(a + a, q)
    high, lower = two_sum(high, p)
    rest = low + lower + (p_low + q_low)
    near = 0.5 * (of_reals.log1p(high) + rest / (high + 1.0))
    small = (abs(x) < 0.5) & (abs(y) < 0.5)
    return Pair(where(small, cast(near, x.dtype), far.real), far.imag)


def _by(function: Callable[[Pair], Pair], factor: float) -> Function:
    return lambda z: function(z).each(lambda x: x * factor)


def sqrt(z: Pair) -> Pair:
    dtype, x, y = z.real.dtype, cast(z.real, float64), cast(z.imag, float64)
    a, b = abs(x), abs(y)
    back = x.like(1.0)
    if dtype == float64:
        large, small = (a > 2.0**400) | (b > 2.0**400), (a < 2.0**-400) & (b < 2.0**-400)
        scale = where(large, x.like(2.0**-600), where(small, x.like(2.0**600), 1.0))
        back = where(large, x.like(2.0**300), where(small, x.like(2.0**-300), 1.0))
        a, b = a * scale, b * scale
    size = _sqrt(fma(a, a, b * b))
    longer = _sqrt((a + size) * 0.5)
    shorter = where(longer == 0, longer, b / (longer + longer))
    ahead = x >= 0
    real, imag = where(ahead, longer, shorter) * back, where(ahead, shorter, longer) * back
    far = a == math.inf
    real = where(far, where(ahead, a, where(y != y, y, 0.0)), real)
    imag = where(far, where(ahead, where(y != y, y, 0.0), a), imag)
    real, imag = where(b == math.inf, b, real), where(b == math.inf, b, imag)
    return Pair(cast(real, dtype), cast(copysign(imag, y), dtype))


def sign(z: Pair) -> Pair:
    """z / |z|; of numbers with one infinite part the direction of that."""
    ahead, aside = (abs(x) == math.inf for x in (z.real, z.imag))
    far, none = ahead | aside, (ahead & aside) | (z != z)
    z = z.each(lambda x: where(far, copysign(where(abs(x) == math.inf, x.like(1.0), 0.0), x), x))
    scale = where(abs(z) == math.inf, z.real.like(0.5), 1.0)
    z = z.each(lambda x: x * scale)
    size = abs(z)
    size = where(none, math.nan, where(size == 0, 1.0, size))
    return z.each(lambda x: x / size)


def _hyperbolic(x: Value) -> tuple[Value, Value]:
    """sinh and cosh of a number that is not negative."""
    t = of_reals.expm1(x)
    inverse = 1.0 / (t + 1.0)
    ratio = where(t > 2.0**60, 1.0, t * inverse)
    return 0.5 * (t + ratio), 0.5 * (t + 1.0) + 0.5 * inverse


def cosh(z: Pair) -> Pair:
    x, y = z.real, z.imag
    below, scale = _below(abs(x))
    sine, cosine = of_reals.sin_and_cos(y)
    sh, ch = _hyperbolic(below)
    odd = ~_finite(y)
    real = where(odd & (abs(x) == math.inf), x.like(math.inf), ch * cosine * scale)
    imag = copysign(sh, x) * sine * scale
    return Pair(real, where((y == 0) | (odd & (x == 0)), _zero(x, y), imag))


def sinh(z: Pair) -> Pair:
    x, y = z.real, z.imag
    below, scale = _below(abs(x))
    sine, cosine = of_reals.sin_and_cos(y)
    sh, ch = _hyperbolic(below)
    odd = ~_finite(y) & ((x == 0) | (abs(x) == math.inf))
    return Pair(
        where(odd, x, copysign(sh, x) * cosine * scale), where(y == 0, y, ch * sine * scale)
    )


def tanh(z: Pair) -> Pair:
    x, y = z.real, z.imag
    a = abs(x)
    sine, cosine = of_reals.sin_and_cos(y)
    sh, ch = _hyperbolic(a)
    far, both = a > (22.0 if x.dtype == float64 else 11.0), sine * cosine
    part = 1.0 / fma(sh, sh, cosine * cosine)
    less = of_reals.exp(-a)
    real = where(far, x.like(1.0), sh * ch * part)
    imag = where(far, 4.0 * both * (less * less), both * part)
    odd = ~_finite(y)
    real = where(odd & (a < math.inf), where(a == 0, a, math.nan), real)
    imag = where((y == 0) | (odd & (a == math.inf)), copysign(y.like(0.0), y), imag)
    return Pair(copysign(real, x), imag)


def _cos(z: Pair) -> Pair:
    return cosh(Pair(-z.imag, z.real))


_sqrt = of_reals.FUNCTIONS["sqrt"]
EXACT: dict[str, Function] = {
    "bool": lambda x: x != 0,
    "conj": lambda z: Pair(z.real, -z.imag),
    "isfinite": lambda z: _finite(z.real) & _finite(z.imag),
    "isinf": lambda z: (abs(z.real) == math.inf) | (abs(z.imag) == math.inf),
    "not_": lambda z: z == 0,
}
INEXACT: dict[str, Function] = {
    "cos": _cos,
    "cosh": cosh,
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log10": _by(log, math.log10(math.e)),
    "log1p": log1p,
    "log2": _by(log, math.log2(math.e)),
    "sign": sign,
    "sin": _turned(sinh),
    "sinh": sinh,
    "sqrt": sqrt,
    "tan": _turned(tanh),
    "tanh": tanh,
}
FUNCTIONS = {**EXACT, **INEXACT}
