"""Functions of numbers, without branches, so that LLVM can make vectors of them.

They are within 4 units in the last place, and right at infinities, NaN and denormals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from ostinato.ops.array import transcendental
from ostinato.ops.core.spec import DType, bool_, float32, float64

from .values import (
    Function,
    Value,
    bits,
    cast,
    copysign,
    fast_two_sum,
    floating,
    fma,
    horner,
    intrinsic,
    nearest,
    paired_horner,
    shift,
    two_product,
    two_sum,
    unbits,
    where,
)


# -- choices -------------------------------------------------------------------------------
def larger(x: Value, y: Any) -> Value:
    y = x.like(y)
    if x.dtype.kind != "f":
        return where(x >= y, x, y)
    return where((x >= y) | (x != x), x, y)  # as NumPy: NaN if there is one


def smaller(x: Value, y: Any) -> Value:
    y = x.like(y)
    if x.dtype.kind != "f":
        return where(x <= y, x, y)
    return where((x <= y) | (x != x), x, y)


def sign(x: Value) -> Value:
    if x.dtype.kind in "ub":
        return where(x > 0, x.like(1), 0)
    positive = where(x > 0, x.like(1), 0)
    found = where(x < 0, x.like(-1), positive)
    return where(x != x, x, found) if x.dtype.kind == "f" else found


# -- exponentials --------------------------------------------------------------------------
_LOG2E = math.log2(math.e)
_LN2 = {float64: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
        float32: (6.9314575195e-01, 1.4286067653e-06)}  # fmt: skip
_ROUND = {float64: 1.5 * 2.0**52, float32: 1.5 * 2.0**23}  # adding it rounds to integers
_EXP_MIN = {float64: -746.0, float32: -105.0}
_EXP_MAX = {float64: 710.0, float32: 89.5}
_EXP = {  # (exp(r) - 1) / r for |r| up to log(2) / 2; its last coefficient is exact
    float64: [2.511794940250299e-08, 2.763133599350746e-07, 2.7557216038904966e-06,
              2.480148979626967e-05, 0.00019841269917654123, 0.0013888888947146143,
              0.008333333333307092, 0.041666666666514966, 0.166666666666667, 0.5000000000000013,
              1.0],
    float32: [0.0013950524696793424, 0.008368917578293137, 0.04166620530893333,
              0.1666651860656147, 0.5000000095347926, 1.0],
}  # fmt: skip


def _power_of_two(n: Value) -> Value:
    """2 to the n, for an integer that a normal number's exponent can hold."""
    mantissa, bias = (52, 1023) if n.dtype.itemsize == 8 else (23, 127)
    return unbits(shift(n + bias, "shl", mantissa))


def _reduced(x: Value) -> tuple[Value, Value]:
    """The integer n nearest to x / log 2, and the rest of x."""
    magic = _ROUND[x.dtype]
    t = fma(x, _LOG2E, magic)
    high, low = _LN2[x.dtype]
    n = t - magic
    return bits(t) - bits(t.like(magic)), fma(n, -low, fma(n, -high, x))


def _scaled(p: Value, n: Value) -> Value:
    """p times 2 to the n, in two steps, as neither may overflow or lose bits before its time."""
    half = shift(n, "ashr", 1)
    return p * _power_of_two(half) * _power_of_two(n - half)


def _within(x: Value) -> Value:
    return _between(x, _EXP_MIN[x.dtype], _EXP_MAX[x.dtype])


def _between(x: Value, low: float, high: float) -> Value:
    """The nearest number in a range; NaN stays."""
    x = where(x > high, high, x)
    return where(x < low, low, x)


def exp(x: Value) -> Value:
    floating(x)
    n, r = _reduced(_within(x))
    return _scaled(fma(horner(r, _EXP[x.dtype]), r, 1.0), n)  # NaN times anything is NaN


def exp2(x: Value) -> Value:
    floating(x)
    low, high = (-1080.0, 1025.0) if x.dtype == float64 else (-155.0, 129.0)
    inside = _between(x, low, high)
    magic = _ROUND[x.dtype]
    t = inside + magic
    r = (inside - (t - magic)) * math.log(2)
    n = bits(t) - bits(t.like(magic))
    return _scaled(fma(horner(r, _EXP[x.dtype]), r, 1.0), n)


def _half_expm1(x: Value) -> Value:
    """(exp(x) - 1) / 2; half of what is infinite is not."""
    n, r = _reduced(_between(x, -40.0, 709.8 if floating(x) else 88.73))
    half = _power_of_two(n - 1)  # of a power of two that may be too large
    return fma(half, fma(r * r, horner(r, _EXP[x.dtype][:-1]), r), half - 0.5)


def expm1(x: Value) -> Value:
    found = _half_expm1(x)
    return where(abs(x) < (2.0**-60 if floating(x) else 2.0**-30), x, found + found)  # -0 stays


def tanh(x: Value) -> Value:
    most = 22.0 if floating(x) else 10.0  # from here on it is 1
    a = abs(x)
    a = where(a > most, most, a)
    h = _half_expm1(a + a)
    part = h / (h + 1.0)
    return copysign(where(h < 1.0, fma(-h, part, h), part), x)


# -- logarithms ----------------------------------------------------------------------------
# The even part of log(1 + f) in s = f / (2 + f), as fdlibm has it.
_LOG = [1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
        2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
        6.666666666666735130e-01]  # fmt: skip
# (log(1 + f) - f + f * f / 2) / f**3: a division takes longer than the few more terms.
_LOG_FLOAT = [-0.07634197693928384, 0.12761386804752686, -0.13160204732792688, 0.14201787298878268,
              -0.1662335844118668, 0.20001225601950237, -0.250008209670259,
              0.33333331722630033]  # fmt: skip
_LN2_SHORT = {float64: _LN2[float64], float32: (6.9313812256e-01, 9.0580006145e-06)}


def _taken_apart(x: Value) -> tuple[Value, Value]:
    """Exponent (as a float) and mantissa between sqrt(1/2) and sqrt(2), of a positive number."""
    wide = x.dtype == float64
    mantissa, tiny = (52, 2.0**-1022) if wide else (23, 2.0**-126)
    small = x < tiny
    b = bits(where(small, x * 2.0 ** (mantissa + 2), x))
    over = b - bits(x.like(math.sqrt(0.5)))
    e = shift(over, "ashr", mantissa)
    m = unbits(b - shift(e, "shl", mantissa))
    exponent = cast(e, x.dtype)
    return where(small, exponent - float(mantissa + 2), exponent), m


def _log_parts(x: Value) -> tuple[Value, Value, Value, Value]:
    """e, f, f*f/2 and the correction: log x = e log 2 + f - (f*f/2 - correction)."""
    e, m = _taken_apart(x)
    f = m - 1.0
    square = f * f
    half = square * 0.5
    if x.dtype == float32:
        return e, f, half, square * f * paired_horner(f, square, _LOG_FLOAT)
    s = f / (f + 2.0)
    z = s * s
    return e, f, half, s * (half + z * horner(z, _LOG))


def _at_edges(x: Value, found: Value) -> Value:
    found = where(x == math.inf, x, found)
    found = where(x == 0, x.like(-math.inf), found)
    return where((x < 0) | (x != x), x.like(math.nan), found)


def log(x: Value) -> Value:
    floating(x)
    e, f, half, correction = _log_parts(x)
    high, low = _LN2_SHORT[x.dtype]
    found = fma(e, high, f - (half - fma(e, low, correction)))
    return _at_edges(x, found)


def log2(x: Value) -> Value:
    floating(x)
    e, f, half, correction = _log_parts(x)
    natural = f - (half - correction)
    top = x.dtype.type(_LOG2E)
    return _at_edges(x, fma(natural, float(top), e) + natural * (_LOG2E - float(top)))


def log1p(x: Value) -> Value:
    floating(x)
    u = x + 1.0
    lost = (x - (u - 1.0)) / u
    found = log(u) + where((u == 0) | (abs(x) == math.inf), x.like(0), lost)
    return where(u == 1.0, x, found)


# -- trigonometry --------------------------------------------------------------------------
_TWO_OVER_PI = int(  # its first 1280 bits
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e0"
    "06492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f4"
    "9c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d"
    "7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6babf0cfbc209af4361d",
    16,
)
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
_SIN = [1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
        -1.98412698298579493134e-04, 8.33333333332248946124e-03]  # fmt: skip
_COS = [-1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
        2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02]  # fmt: skip
_SIN_TURN = [0.000158117504713516, -0.004681226624589795, 0.07969257730987056,
             -0.6459640959165048, 1.5707963267866307]  # fmt: skip
_COS_TURN = [-2.483701286426552e-05, 0.0009191537321014645, -0.020863466414223715,
             0.2536695070271071, -1.2337005501166984, 0.9999999999999297]  # fmt: skip


def _bits_of_two_over_pi(dropped: int, count: int, scale: int = 0) -> list[float]:
    """2 / pi as numbers of 53 bits that follow one another, without its first bits; times a power
    of two."""
    rest, found = _TWO_OVER_PI % (1 << (1280 - dropped)), list[float]()
    for _ in range(count):
        low = rest.bit_length() - 53
        found.append(math.ldexp(rest >> low, low - 1280 + scale))
        rest &= (1 << low) - 1
    return found


# Of a large x, the first bits of 2 / pi make whole turns only. A block of 32 exponents shares the
# bits that count; from the 16th on, they are scaled by 2**256.
_BLOCKS = [
    piece
    for block in range(31)
    for piece in _bits_of_two_over_pi(32 * block, 4, 256 if block >= 16 else 0)
]


def _quarter_turns(x: Value) -> tuple[Value, Value, Value]:
    """The number of quarter turns nearest to a double, as an integer, and the rest in radians as
    the sum of two numbers (Payne and Hanek)."""
    a = abs(x)
    exponent = shift(bits(a), "lshr", 52) - (1023 + 54)
    block = shift(where(exponent > 0, exponent, exponent.like(0)), "lshr", 5)
    scaled = where(block > 15, x * 2.0**-256, x)
    first = shift(block, "shl", 2)
    t0, t1, t2, t3 = (x.lines.entry("two_over_pi", _BLOCKS, first + k) for k in range(4))
    p0, e0 = two_product(scaled, t0)
    p1, e1 = two_product(scaled, t1)
    p2, e2 = two_product(scaled, t2)
    turn = fma(_rint(p0 * 0.25), -4.0, p0)
    high, low = two_sum(e0, p1)
    high, lower = two_sum(turn, high)
    n, whole = nearest(high)
    s1, l1 = two_sum(low, lower)
    s2, l2 = two_sum(p2, e1)
    s3, l3 = two_sum(s1, s2)
    high, l4 = two_sum(high - whole, s3)
    high, low = fast_two_sum(high, l4 + (l3 + (l1 + l2) + fma(scaled, t3, e2)))
    y, rest = two_product(high, _HALF_PI[0])
    rest = fma(low, _HALF_PI[0], fma(high, _HALF_PI[1], rest))
    small = a <= math.pi / 4
    return where(small, n.like(0), n), where(small, x, y), where(small, x.like(0.0), rest)


def _of_turns(x: Value) -> tuple[Value, Value, Value]:
    """Quarter turns of a float, and sine and cosine of the rest, as doubles."""
    wide = cast(x, float64)
    a = abs(wide)
    t0, t1 = (wide.like(t) for t in _bits_of_two_over_pi(0, 2))
    for least in (44, 65, 86, 107):  # exponents from which fewer bits count
        large = a >= 2.0**least
        u0, u1 = _bits_of_two_over_pi(least - 25, 2)
        t0, t1 = where(large, t0.like(u0), t0), where(large, t1.like(u1), t1)
    n, whole = nearest(wide * t0)
    s = fma(wide, t1, fma(wide, t0, -whole))
    z = s * s
    return n, horner(z, _SIN_TURN) * s, horner(z, _COS_TURN)


def _sin_and_cos(x: Value) -> tuple[Value, Value, Value]:
    """Quarter turns, sine and cosine of what is left, in double precision."""
    if not floating(x):
        return _of_turns(x)
    n, y, low = _quarter_turns(x)
    z = y * y
    v = z * y
    sine = y - fma(
        v, 1.66666666666666324348e-01, fma(z, fma(low, 0.5, -(v * horner(z, _SIN))), -low)
    )
    half = z * 0.5
    top = 1.0 - half
    cosine = top + (((1.0 - top) - half) + fma(z * z, horner(z, _COS), -(y * low)))
    return n, sine, cosine


def _turned(x: Value, more: int) -> Value:
    n, sine, cosine = _sin_and_cos(x)
    n = n + more
    found = where((n & 1) != 0, cosine, sine)
    return cast(where((n & 2) != 0, -found, found), x.dtype)


def sin(x: Value) -> Value:
    found = _turned(x, 0)
    return where(abs(x) < 2.0**-26, x, found) if floating(x) else found  # -0 stays


def cos(x: Value) -> Value:
    return _turned(x, 1)


def sin_and_cos(x: Value) -> tuple[Value, Value]:
    """Both, of which most is the same work."""
    n, sine, cosine = _sin_and_cos(x)
    odd = (n & 1) != 0
    up, along = where(odd, cosine, sine), where(odd, sine, cosine)
    up = cast(where((n & 2) != 0, -up, up), x.dtype)
    along = cast(where(((n + 1) & 2) != 0, -along, along), x.dtype)
    return where(abs(x) < 2.0**-26, x, up) if floating(x) else up, along


def tan(x: Value) -> Value:
    n, sine, cosine = _sin_and_cos(x)
    odd = (n & 1) != 0
    found = cast(where(odd, -cosine, sine) / where(odd, sine, cosine), x.dtype)
    return where(abs(x) < 2.0**-26, x, found) if floating(x) else found


_ASIN = [3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02,
         2.01212532134862925881e-01, -3.25565818622400915405e-01, 1.66666666666666657415e-01]  # fmt: skip
_ASIN_BELOW = [7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471e00,
               -2.40339491173441421878e00, 1.0]  # fmt: skip
_ATAN = [1.62858201153657823623e-02, -3.65315727442169155270e-02, 4.97687799461593236017e-02,
         -5.83357013379057348645e-02, 6.66107313738753120669e-02, -7.69187620504482999495e-02,
         9.09088713343650656196e-02, -1.11111104054623557880e-01, 1.42857142725034663711e-01,
         -1.99999999998764832476e-01, 3.33333333333329318027e-01]  # fmt: skip


def through_double(function: Function) -> Function:
    def made(*xs: Value) -> Value:
        return cast(evaluate_through(function, *xs, through=float64), xs[0].dtype)

    return made


def evaluate_through(function: Function, *xs: Value, through: DType | None = None) -> Value:
    """A function of numbers as they are, or of others, whose result is rounded as they are."""
    for x in xs:
        floating(x)
    lines = xs[0].lines
    before, lines.rounds = lines.rounds, xs[0].dtype.itemsize < 8
    try:
        return function(*(x if through is None else cast(x, through) for x in xs))
    finally:
        lines.rounds = before


def _asin_parts(x: Value) -> tuple[Value, Value, Value]:
    """Whether |x| is above a half; s, which is |x| or else sqrt((1 - |x|) / 2); asin(s) - s."""
    a = abs(x)
    large = a > 0.5
    z = where(large, (1.0 - a) * 0.5, a * a)
    s = where(large, _sqrt(z), a)
    return large, s, s * (z * horner(z, _ASIN) / horner(z, _ASIN_BELOW))


@through_double
def asin(x: Value) -> Value:
    large, s, more = _asin_parts(x)
    beyond = _HALF_PI[0] - (2.0 * (s + more) - _HALF_PI[1])
    return copysign(where(large, beyond, s + more), x)


@through_double
def acos(x: Value) -> Value:
    large, s, more = _asin_parts(x)
    right = 2.0 * (s + more)
    left = 2 * _HALF_PI[0] - (right - 2 * _HALF_PI[1])
    middle = _HALF_PI[0] - (x - (_HALF_PI[1] - copysign(more, x)))
    return where(large, where(x > 0, right, left), middle)


def _angle(y: Value, x: Value) -> Value:
    """The angle of a point with no negative coordinate."""
    both = (x == math.inf) & (y == math.inf)
    third, second = y > 2.414213562373095 * x, (y > 0.41421356237309503 * x) | both
    up = where(third, -x, where(second, y - x, y))
    down = where(third, y, where(second, y + x, x))
    r = where((y == 0) | both, x.like(0.0), up / down)
    z = r * r
    more = -(r * (z * horner(z, _ATAN)))
    base = where(third, x.like(_HALF_PI[0]), where(second, x.like(_HALF_PI[0] / 2), 0.0))
    low = where(third, x.like(_HALF_PI[1]), where(second, x.like(_HALF_PI[1] / 2), 0.0))
    return base + (r + (more + low))


@through_double
def atan(x: Value) -> Value:
    a = abs(x)
    return where(x != x, x, copysign(_angle(a, a.like(1.0)), x))


def atan2(y: Value, x: Value) -> Value:
    wide = floating(y) and floating(x)
    found = _double_angle(y, x) if wide else _float_angle(y, x)
    return where((x != x) | (y != y), x + y, copysign(found, y))


# atan(q) = q + q z P(z) with z = q q below 1, within 2**-28
_ATAN_FLOAT = [-0.0017935593658740523, 0.010914305318739444, -0.031177238256169724,
               0.05795692503677478, -0.08403406974074695, 0.10952169016977535,
               -0.1426423797227729, 0.19998547864835484, -0.33333299071187467]  # fmt: skip
_FLOAT_HALF_PI = (1.57079637050628662109375, -4.37113882867379e-8)


def _float_angle(y: Value, x: Value) -> Value:
    """In registers of floats, of which a vector has twice as many: the quotient is rounded once."""
    a, b = abs(y), abs(x)
    steep = a > b
    low, high = where(steep, b, a), where(steep, a, b)
    same = where(high == 0, x.like(0.0), 1.0)  # where they have no quotient
    q = where(low == high, same, low / high)
    z = q * q
    found = fma(q * z, horner(z, _ATAN_FLOAT), q)
    high, low = (x.like(part) for part in _FLOAT_HALF_PI)
    found = where(steep, high - (found - low), found)
    return where(bits(x) < 0, high * 2.0 - (found - low * 2.0), found)


def _double_angle(y: Value, x: Value) -> Value:
    a, b = abs(y), abs(x)
    large = (a > 2.0**1000) | (b > 2.0**1000)
    small = (a < 2.0**-900) & (b < 2.0**-900)
    scale = where(large, x.like(2.0**-60), where(small, x.like(2.0**100), 1.0))
    found = _angle(a * scale, b * scale)
    behind = bits(x) < 0
    return where(behind, 2 * _HALF_PI[0] - (found - 2 * _HALF_PI[1]), found)


# -- hyperbolic functions ------------------------------------------------------------------
def _half_exp(x: Value) -> Value:
    """exp(x) / 2, also where exp(x) is too large."""
    top = _EXP_MAX[x.dtype] + 3.0
    n, r = _reduced(where(x < top, x, top))
    return _scaled(fma(horner(r, _EXP[x.dtype]), r, 1.0), n - 1)


def sinh(x: Value) -> Value:
    floating(x)
    a = abs(x)
    t = expm1(a)
    part = 0.5 * t / (t + 1.0)
    near = where(t < 1.0, fma(-t, part, t), fma(t, 0.5, part))
    found = where(a > 30.0, _half_exp(a), near)
    return where(x != x, x, copysign(found, x))


def cosh(x: Value) -> Value:
    floating(x)
    e = _half_exp(abs(x))
    return where(x != x, x, e + 0.25 / e)


def asinh(x: Value) -> Value:
    floating(x)
    a = abs(x)
    large = a > 2.0**28
    inside = where(large, x.like(1.0), a)
    square = inside * inside
    near = log1p(inside + square / (1.0 + _sqrt(square + 1.0)))
    return where(x != x, x, copysign(where(large, log(a) + math.log(2), near), x))


def acosh(x: Value) -> Value:
    floating(x)
    large = x > 2.0**28
    t = where(large, x.like(1.0), x - 1.0)
    found = where(large, log(x) + math.log(2), log1p(t + _sqrt(t * (t + 2.0))))
    return where(x >= 1, found, math.nan)


def atanh(x: Value) -> Value:
    floating(x)
    a = abs(x)
    twice = a + a
    found = where(a <= 1, 0.5 * log1p(twice + twice * a / (1.0 - a)), math.nan)
    return copysign(found, x)


# -- roots and powers ----------------------------------------------------------------------
_CBRT = [0.007235708279356266, -0.07225849165806862, 0.292057930355164, -0.634385757000492,
         0.9777849842149122, 0.4301729059303808]  # fmt: skip
_LOG_REST = [0.10765126886769226, 0.10456028749030954, 0.1176682645681458, 0.1333329622582821,
             0.15384615765102574, 0.18181818179629908, 0.22222222222228522, 0.28571428571428564,
             0.4]  # fmt: skip


def cbrt(x: Value) -> Value:
    wide = floating(x)
    a = abs(x)
    exponent, m = _taken_apart(a)
    n, third = nearest(exponent * (1 / 3))
    left, _ = nearest(fma(third, -3.0, exponent))
    m = m * _power_of_two(left)
    t = horner(m, _CBRT)
    for _ in range(2 if wide else 1):  # Halley's steps triple the digits
        cube = t * t * t
        t = t - t * ((cube - m) / (cube + cube + m))
    square, lost = two_product(t, t)
    rest = fma(square, t, -m) + lost * t
    t = t - rest / (3.0 * square)
    found = copysign(t * _power_of_two(n), x)
    return where((x == 0) | (a == math.inf) | (x != x), x, found)


def _log_in_two(x: Value) -> tuple[Value, Value]:
    """The logarithm of a positive double as a sum of two."""
    e, m = _taken_apart(x)
    below, lost = two_sum(m, m.like(1.0))
    inverse = 1.0 / below
    up = m - 1.0
    s = up * inverse
    t = (fma(-s, below, up) - s * lost) * inverse
    z, z_low = two_product(s, s)
    z_low = fma(s + s, t, z_low)
    cube, cube_low = two_product(z, s)
    cube_low = fma(z, t, fma(z_low, s, cube_low))
    third, third_low = two_product(cube, 0.6666666666666666)
    third_low = third_low + fma(cube, 3.700743415417188e-17, cube_low * 0.6666666666666666)
    rest = cube * z * horner(z, _LOG_REST)
    high, low = _LN2[float64]
    h, l1 = fast_two_sum(e * high, s + s)
    h, l2 = fast_two_sum(h, third)
    return fast_two_sum(h, l1 + l2 + fma(e, low, (t + t) + (third_low + rest)))


def _power_of_doubles(x: Value, y: Value) -> Value:
    h, rest = _log_in_two(x)
    p, lost = two_product(h, y)
    beyond = abs(p) > 800.0  # far too large, or far too small
    lost = where(beyond, p.like(0.0), fma(rest, y, lost))
    p = where(beyond, copysign(p.like(800.0), p), p)
    n, whole = nearest(p * _LOG2E)
    high, low = _LN2[float64]
    r = fma(whole, -high, p) + fma(whole, -low, lost)
    return _scaled(fma(horner(r, _EXP[float64]), r, 1.0), n)


def _power_of_floats(x: Value, y: Value) -> Value:
    """In double precision, to the last bit of floats."""
    e, m = _taken_apart(x)
    s = (m - 1.0) / (m + 1.0)
    p = fma(horner(s * s, _LOG2_SHORT), s, e) * y
    p = where(p > -300.0, where(p < 300.0, p, 300.0), -300.0)
    n, whole = nearest(p)
    return horner((p - whole) * math.log(2), _EXP_SHORT) * _power_of_two(n)


_LOG2_SHORT = [2 * _LOG2E / k for k in range(13, 0, -2)]
_EXP_SHORT = [1 / math.factorial(k) for k in range(8, -1, -1)]


def pow(x: Value, y: Value) -> Value:
    """x to the y, with all of IEEE's exceptions."""
    wide, kind = floating(x), x.dtype
    n = _small_exponent(y)
    if n is not None and n <= (4 if wide else 16):
        return cast(_multiplied(cast(x, float64), n), kind)
    if y.number in (0.5, -0.5):  # the root of -0 is 0 here, and that of -inf infinite
        root = _sqrt(where(x == -math.inf, x.like(math.inf), x) + 0.0)
        return root if y.number > 0 else 1.0 / root
    a = abs(x)
    power = _power_of_doubles if wide else _power_of_floats
    usual = cast(power(cast(where(a > 0, a, 1.0), float64), cast(y, float64)), kind)
    far = where((a > 1) == (y > 0), x.like(math.inf), 0.0)
    found = where((a == 0) | (a == math.inf) | (abs(y) == math.inf), far, usual)
    whole, half = _trunc(y) == y, y * 0.5
    odd = whole & (_trunc(half) != half)
    found = where(odd & (bits(x) < 0), -found, found)
    found = where((x < 0) & (a < math.inf) & ~whole, x.like(math.nan), found)
    found = where((x != x) | (y != y), x + y, found)
    one = (y == 0) | (x == 1) | ((a == 1) & (abs(y) == math.inf))
    return where(one, x.like(1.0), found)


def _small_exponent(y: Value) -> int | None:
    """The exponent, if it is known and a small positive integer."""
    number = y.number
    return int(number) if number is not None and number in range(1, 17) else None


def _multiplied(x: Value, n: int) -> Value:
    found, square = None, x
    while n:
        if n & 1:
            found = square if found is None else found * square
        n >>= 1
        square = square * square if n else square
    assert found is not None
    return found


def hypot(x: Value, y: Value) -> Value:
    """Scaled by powers of two where squares are too large or too small."""
    top, low, up = (500, -400, 600) if floating(x) and floating(y) else (60, -40, 100)
    a, b = abs(x), abs(y)
    large = (a > 2.0**top) | (b > 2.0**top)
    small = (a < 2.0**low) & (b < 2.0**low)
    scale = where(large, x.like(2.0**-up), where(small, x.like(2.0**up), 1.0))
    back = where(large, x.like(2.0**up), where(small, x.like(2.0**-up), 1.0))
    a, b = a * scale, b * scale
    found = _sqrt(fma(a, a, b * b)) * back
    return where((abs(x) == math.inf) | (abs(y) == math.inf), x.like(math.inf), found)


def log10(x: Value) -> Value:
    floating(x)
    e, f, half, correction = _log_parts(x)
    natural = f - (half - correction)
    high, low = _LOG10_2[x.dtype]
    return _at_edges(x, fma(e, high, fma(e, low, natural * math.log10(math.e))))


_LOG10_2 = {float64: (3.01029995663611771306e-01, 3.69423907715893078616e-13),
            float32: (3.0102920532e-01, 7.9034151668e-07)}  # fmt: skip


def logaddexp(x: Value, y: Value) -> Value:
    floating(x)
    top, difference = larger(x, y), abs(x - y)
    same = where(x == y, x.like(0.0), difference)  # infinities, too
    return top + log1p(exp(-same))


# -- the rest ------------------------------------------------------------------------------
def erf(x: Value) -> Value:
    if not floating(x):
        return _erf_of_floats(x)
    a = abs(x)
    t = a * a
    small = horner(t, transcendental.ERF_SMALL) * a
    part = 2.0 / (a + 2.0)
    q = horner(part - 0.5, transcendental.ERF_LARGE)
    large = 1.0 - exp(q - t) * part
    return copysign(where(t < 1.0, small, large), x)


def _erf_of_floats(x: Value) -> Value:
    """1 - exp of a polynomial, which is 1 from 4 on, or an odd polynomial; without a division."""
    a = abs(x)
    t = where(a < 4.25, a, 4.25)
    square = t * t
    n, r = _reduced(paired_horner(t, square, _ERF_LARGE) * t)
    e = fma(horner(r, _EXP_ROUGH), r, 1.0)
    large = copysign(1.0 - unbits(bits(e) + shift(n, "shl", 23)), x)
    return where(a > _ERF_BOUND, large, fma(horner(square, _ERF_SMALL), x, x))  # NaN stays


_ERF_BOUND = 0.927734375
_ERF_SMALL = [-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1,
              1.28379166e-1]  # fmt: skip
_ERF_LARGE = [-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1,
              -6.34846687e-1, -1.128717512]  # fmt: skip
_EXP_ROUGH = [0.008374684273189052, 0.04189850804288274, 0.16666456796548906, 0.49999145306951615,
              1.0]  # fmt: skip


def nextafter(x: Value, y: Value) -> Value:
    floating(x)
    b = bits(x)
    away = (x < y) == (x > 0)
    least = copysign(unbits(b.like(1)), y)
    found = where(x == 0, least, unbits(where(away, b + 1, b - 1)))
    return where((x != x) | (y != y), x + y, where(x == y, y, found))


# -- order ---------------------------------------------------------------------------------
def sort_key(x: Value) -> Value:
    """A whole number without a sign, in the order of the numbers; NaN is the largest."""
    if x.dtype.kind in "ub":
        return cast(x, np.dtype(f"u{x.dtype.itemsize}"))
    found = x if x.dtype.kind == "i" else bits(where(x == x, x, math.nan))
    least = found.like(np.iinfo(found.dtype).min)
    if x.dtype.kind == "f":
        found = where(found < 0, found ^ np.iinfo(found.dtype).max, found)
    return x.lines.signed_as(found ^ least, np.dtype(f"u{x.dtype.itemsize}"))


# -- by name -------------------------------------------------------------------------------
_rint, _trunc, _sqrt = intrinsic("rint"), intrinsic("trunc"), intrinsic("sqrt")
EXACT: dict[str, Function] = {  # to NumPy's bits
    "abs": abs,
    "and_": lambda a, b: a & b,
    "bool": lambda x: cast(x, bool_),
    "ceil": intrinsic("ceil"),
    "copysign": copysign,
    "floor": intrinsic("floor"),
    "isfinite": lambda x: abs(x) < math.inf,
    "isinf": lambda x: abs(x) == math.inf,
    "max": larger,
    "min": smaller,
    "nextafter": nextafter,
    "not_": lambda x: ~cast(x, bool_),
    "or_": lambda a, b: a | b,
    "rint": _rint,
    "sign": sign,
    "signbit": lambda x: bits(x) < 0,
    "sort_key": sort_key,
    "sqrt": _sqrt,
    "trunc": _trunc,
    "where": where,
}
INEXACT: dict[str, Function] = {  # within 4 units in the last place
    "acos": acos,
    "acosh": acosh,
    "asin": asin,
    "asinh": asinh,
    "atan": atan,
    "atan2": atan2,
    "atanh": atanh,
    "cbrt": cbrt,
    "cos": cos,
    "cosh": cosh,
    "erf": erf,
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "hypot": hypot,
    "log": log,
    "log10": log10,
    "log1p": log1p,
    "log2": log2,
    "logaddexp": logaddexp,
    "pow": pow,
    "sin": sin,
    "sinh": sinh,
    "tan": tan,
    "tanh": tanh,
}
FUNCTIONS = {**EXACT, **INEXACT}
