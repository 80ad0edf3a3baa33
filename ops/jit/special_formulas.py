"""Special functions of numbers: branchless formulas, and loops that end by themselves.

They are computed in double precision, so a float's result is right to its last bit but one; those of
special_floats.py take half of the time in float32.
Polynomials are interpolants at Chebyshev's nodes (ops/jit/special_tables.py). Loops
(`Lines.repeat`) are functions of their own, which a processor runs element by element: those of
the incomplete functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from ostinato.ops.array import transcendental

from . import special_floats as floats
from . import special_tables as tables
from .math_functions import INEXACT, evaluate_through, through_double
from .values import Function, Value, bits, copysign, floating, fma, horner, intrinsic, unbits, where

_sqrt, _rint, _floor = intrinsic("sqrt"), intrinsic("rint"), intrinsic("floor")
_EPS = 2.0**-53
_LOG_ROOT_2PI = 0.9189385332046728


def elementary(name: str) -> Function:
    """The device's own, or ours."""

    def function(*xs: Value) -> Value:
        found = xs[0].lines.function(name, *xs)
        return INEXACT[name](*xs) if found is None else found

    return function


_exp, _expm1, _log, _log1p = (elementary(n) for n in ("exp", "expm1", "log", "log1p"))
_pow, _sin, _cos = (elementary(n) for n in ("pow", "sin", "cos"))


# -- pieces --------------------------------------------------------------------------------
_SIN_PI = [
    (-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(11, -1, -1)
]


def _is_odd(x: Value) -> Value:
    """Test whether whole numbers are odd."""
    half = x * 0.5
    return _floor(half) != half


def _of_half_turns(x: Value, quarter: bool) -> Value:
    """sin(pi x), or cos(pi x): of the rest that the nearest whole number leaves, which is exact."""
    whole = _rint(x)
    r = x - whole
    r = 0.5 - abs(r) if quarter else r
    found = r * horner(r * r, _SIN_PI)
    return where(_is_odd(whole), -found, found)


def table(x: Value, name: str) -> Value:
    """A polynomial of numbers up to 1, which has no root there; with fewer powers if what it is a
    factor or an addend of becomes a float."""
    return horner(x, _shorter(name) if x.lines.rounds else getattr(tables, name))


@lru_cache(64)
def _shorter(name: str) -> Sequence[float]:
    """Without the last of Chebyshev's polynomials that it is a sum of, as far as that is less
    than 1/64 of a float's last bit."""
    from numpy.polynomial import chebyshev  # 3 ms of each start, if it were above

    coefficients = getattr(tables, name)
    sums = chebyshev.poly2cheb(coefficients[::-1])
    least = np.abs(np.polyval(coefficients, np.linspace(-1, 1, 257))).min()
    left = np.abs(sums)[::-1].cumsum() < 2.0**-30 * least
    return chebyshev.cheb2poly(sums[: len(sums) - left.sum()])[::-1].tolist()


def sin_pi(x: Value) -> Value:
    return _of_half_turns(x, False)


def cos_pi(x: Value) -> Value:
    return _of_half_turns(x, True)


def _stirling(x: Value) -> Value:
    """log gamma(x) less (x - 1/2) log(x) - x + log(2 pi) / 2, from 8 on."""
    w = 1.0 / x
    return w * horner(w * w, _STIRLING)


_STIRLING = [
    -3617 / 122400,
    1 / 156,
    -691 / 360360,
    1 / 1188,
    -1 / 1680,
    1 / 1260,
    -1 / 360,
    1 / 12,
]


def _to_two(x: Value) -> tuple[Value, Value, Value]:
    """The nearest whole number n of 0 <= x < 8.5, e = x - n, and what gamma(2 + e) is multiplied
    by (n >= 2) or divided by (else) to give gamma(x)."""
    n = _rint(x)
    up = x.like(1.0)
    for k in range(1, 7):
        up = up * where(n >= k + 2.0, x - float(k), 1.0)
    down = where(n >= 1.0, x, x * (x + 1.0))
    return n, x - n, where(n >= 2.0, up, down)


def log1p_less(u: Value, whole: Value) -> Value:
    """log(1 + u) - u, where 1 + u is known, too."""
    s = u / (u + 2.0)
    z = s * s
    near = s * (2.0 * z * horner(z, _ATANH) - u)
    return where(abs(u) < 0.5, near, _log(whole) - u)


_ATANH = [1 / k for k in range(35, 2, -2)]


# -- gamma and its logarithm ---------------------------------------------------------------
def gammaln_positive(x: Value) -> Value:
    large = x >= 8.0
    n, e, more = _to_two(where(large, x.like(2.0), x))
    outside = _log(more)
    near = fma(e, table(e, "GAMMALN"), where(n >= 2.0, outside, -outside))
    far = (x - 0.5) * (_log(x) - 1.0) + (_stirling(x) + (_LOG_ROOT_2PI - 0.5))
    return where(large, far, near)


@through_double
def gammaln(x: Value) -> Value:
    a = abs(x)
    right = gammaln_positive(a)
    turned = abs(sin_pi(a))
    left = _log(math.pi / (a * turned)) - right
    left = where((turned == 0) | (a == math.inf), x.like(math.inf), left)
    found = where((x < 0) & (a > 2.0**-60), left, right)
    return where(a == math.inf, a, found)


def _gamma_positive(x: Value) -> tuple[Value, Value]:
    """gamma(x) as a product of two numbers, of which neither is too large before gamma is."""
    large = x >= 8.0
    n, e, more = _to_two(where(large, x.like(2.0), x))
    middle = table(e, "GAMMA")
    near = where(n >= 2.0, middle * more, middle / more)
    a = where(x < 8.0, x.like(8.0), where(x < 250.0, x, 250.0))
    root = _pow(a, a * 0.5)
    s = _stirling(a)
    tail = fma(s, fma(s, fma(s, fma(s, fma(s, 1 / 120, 1 / 24), 1 / 6), 0.5), 1.0), 1.0)
    tail = tail * _sqrt((2 * math.pi) / a)
    return where(large, root * _exp(-a), near), where(large, root * tail, 1.0)


@through_double
def gamma(x: Value) -> Value:
    a = abs(x)
    first, second = _gamma_positive(a)
    turned = sin_pi(a)
    left = -math.pi / (a * turned) / first / second
    left = where(turned == 0, x.like(math.nan), left)
    found = where(x < 0, where(a > 2.0**-60, left, 1.0 / x), first * second)
    found = where(x == 0, 1.0 / x, found)
    return where((x != x) | (x == -math.inf), x.like(math.nan), found)


@through_double
def digamma(x: Value) -> Value:
    a = abs(x)
    large = a >= 10.0
    inside = where(large, a.like(1.5), a)
    # to (1, 2], by as many steps as it takes: their reciprocals as one fraction
    up, down = inside.like(0.0), inside.like(1.0)
    u = inside
    for _ in range(8):
        on = u > 2.0
        u = where(on, u - 1.0, u)
        up = where(on, fma(up, u, down), up)
        down = where(on, down * u, down)
    small = inside < 1.0
    up, down = where(small, up.like(-1.0), up), where(small, inside, down)
    u = where(small, u + 1.0, u)
    middle = table(u * 2.0 - 3.0, "DIGAMMA") * ((u - _ROOT[0]) - _ROOT[1])
    w = 1.0 / a
    far = _log(a) - (0.5 * w + w * w * horner(w * w, _DIGAMMA))
    right = where(large, far, middle + up / down)
    turned = sin_pi(a)
    left = right + w + math.pi * cos_pi(a) / turned
    left = where((turned == 0) | (a == math.inf), x.like(math.nan), left)
    return where(x == 0, -1.0 / x, where(x < 0, left, right))


_DIGAMMA = [1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12]
_ROOT = tables.ROOTS["digamma"]


@through_double
def trigamma(x: Value) -> Value:
    beyond = where(x < 0, 1.0 - x, x)
    y, total = beyond, x.like(0.0)
    for _ in range(8):
        on = y < 8.0
        total = total + where(on, 1.0 / (y * y), 0.0)
        y = where(on, y + 1.0, y)
    w = 1.0 / y
    z = w * w
    right = total + fma(w * z, horner(z, _TRIGAMMA), fma(z, 0.5, w))
    turned = sin_pi(x)
    return where(x < 0, math.pi**2 / (turned * turned) - right, right)


_TRIGAMMA = [-236364091 / 2730, 854513 / 138, -174611 / 330, 43867 / 798, -3617 / 510, 7 / 6,
             -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6]  # fmt: skip


def _are_poles(p: Value, s: Value) -> Value:
    """Where gamma(p) / gamma(s) is the limit of a quotient of poles: (-1)**q gamma(1 - s) / gamma(1 - p), for
    s = p + q."""
    return (p <= 0) & (s <= 0) & (_floor(p) == p) & (_floor(s) == s)


@through_double
def betaln(a: Value, b: Value) -> Value:
    p, q = where(a < b, a, b), where(a < b, b, a)
    most = p > 2.0**900  # whose sum may be too large
    p, q = (where(most, v * 2.0**-100, v) for v in (p, q))
    s = p + q
    h = p / s
    rest = _log1p(-h)
    outer = _stirling(q) - _stirling(s)
    both = (_stirling(p) + outer) + (_LOG_ROOT_2PI - 0.5 * _log(q))
    both = both + ((p - 0.5) * _log(h) + q * rest)
    poles = _are_poles(p, s)
    one = gammaln(where(poles, 1.0 - s, p))
    large = one + (outer + p - p * _log(s) + (q - 0.5) * rest)
    small = one + gammaln(q) - gammaln(where(poles, 1.0 - p, s))
    found = where((q >= 8.0) & (s >= 8.0), large, small)
    found = where(p >= 8.0, both, found)
    found = where(most, found * 2.0**100, found)
    found = where((q == math.inf) & (p > 0), q.like(-math.inf), found)
    return where((a != a) | (b != b), a + b, found)


def _sign_of_gamma(x: Value) -> Value:
    return where((x < 0) & _is_odd(_floor(x)), x.like(-1.0), 1.0)


@through_double
def beta(a: Value, b: Value) -> Value:
    signs = _sign_of_gamma(a) * _sign_of_gamma(b) * _sign_of_gamma(a + b)
    least, most = where(a < b, a, b), where(a < b, b, a)
    limits = where(_is_odd(_floor(most)), a.like(-1.0), 1.0)
    signs = where(_are_poles(least, a + b), limits, signs)
    return signs * _exp(betaln(a, b))


# -- normal distribution -------------------------------------------------------------------
def _scaled_tail(a: Value) -> tuple[Value, Value]:
    """erfc(a) exp(a * a) from 1 on, as a factor and the exponent of another one."""
    part = 2.0 / (a + 2.0)
    return part, table(part * 3.0 - 1.0, "ERFCX")


def _cut(x: Value) -> Value:
    """Its first bits, whose square is exact."""
    return unbits(bits(x) & -(1 << 32))


def _tail(a: Value) -> Value:
    """erfc of numbers from 1 on."""
    a = where(a < 40.0, a, 40.0)
    part, q = _scaled_tail(a)
    z = _cut(a)
    return part * _exp(-(z * z)) * _exp(q - (a - z) * (a + z))


def _near(x: Value) -> Value:
    """erf of numbers up to 1."""
    return horner(x * x, transcendental.ERF_SMALL) * x


@through_double
def erfc(x: Value) -> Value:
    a = abs(x)
    tail = _tail(a)
    found = where(a < 1.0, 1.0 - _near(x), where(x < 0, 2.0 - tail, tail))
    return where(x != x, x, found)


def _lower_tail(x: Value) -> Value:
    """The normal distribution's below -|x|, from sqrt(2) on."""
    a = abs(x)
    a = where(a < 50.0, a, 50.0)
    part, q = _scaled_tail(a * math.sqrt(0.5))
    z = _cut(a)
    return 0.5 * part * _exp(z * z * -0.5) * _exp(q - 0.5 * (a - z) * (a + z))


@through_double
def ndtr(x: Value) -> Value:
    tail = _lower_tail(x)
    near = abs(x) < math.sqrt(2)
    found = where(near, 0.5 + 0.5 * _near(x * math.sqrt(0.5)), where(x < 0, tail, 1.0 - tail))
    return where(x != x, x, found)


def _as_they_are(doubles: Function, floats: Function) -> Function:
    """A function of doubles, and one of floats that does without them."""

    return lambda x: doubles(x) if floating(x) else floats(x)


def _log_ndtr(x: Value) -> Value:
    a = abs(x)
    part, q = _scaled_tail(a * math.sqrt(0.5))
    below = x < -math.sqrt(2)
    above = where(a < math.sqrt(2), 0.5 - 0.5 * _near(x * math.sqrt(0.5)), _lower_tail(x))
    whole = where(below, part, 1.0 - above)
    lost = where(below, x.like(0.0), ((1.0 - whole) - above) / whole)
    found = _log(whole) + lost
    found = where(below, found + ((q - math.log(2)) - 0.5 * x * x), found)
    return where((x != x) | (x == -math.inf), x, found)


# Wichura's rational functions (AS 241), the highest power first.
_CENTRE = (
    [2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
     4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
     1.3314166789178437745e2, 3.3871328727963666080e0],
    [5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
     2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
     4.2313330701600911252e1, 1.0],
)  # fmt: skip
_SIDE = (
    [7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
     1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0,
     4.63033784615654529590e0, 1.42343711074968357734e0],
    [1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
     1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0,
     2.05319162663775882187e0, 1.0],
)  # fmt: skip
_END = (
    [2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
     2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0,
     5.46378491116411436990e0, 6.65790464350110377720e0],
    [2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
     7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
     5.99832206555887937690e-1, 1.0],
)  # fmt: skip


def _quantile(q: Value, tail: Value) -> Value:
    """Compute the normal distribution's quantile at 1/2 + q, beyond which there is so much of it."""
    r = _sqrt(-_log(tail))
    centre, end = abs(q) <= 0.425, r > 5.0
    t = where(centre, 0.180625 - q * q, where(end, r - 5.0, r - 1.6))
    up, down = (
        where(centre, horner(t, c), where(end, horner(t, e), horner(t, s)))
        for c, s, e in zip(_CENTRE, _SIDE, _END, strict=True)
    )
    found = up / down
    found = where(centre, q * found, copysign(found, q))
    found = where(tail == 0, copysign(q.like(math.inf), q), found)
    return where(tail >= 0, found, q.like(math.nan))


def _ndtri(p: Value) -> Value:
    q = p - 0.5
    return _quantile(q, where(q < 0, p, 1.0 - p))


def _erfinv(y: Value) -> Value:
    return _quantile(y * 0.5, (1.0 - abs(y)) * 0.5) * math.sqrt(0.5)


@through_double
def erfcinv(y: Value) -> Value:
    return _quantile((1.0 - y) * 0.5, where(y < 1.0, y, 2.0 - y) * 0.5) * math.sqrt(0.5)


# -- logarithms of probabilities -----------------------------------------------------------
def _logit(p: Value) -> Value:
    """Compute the logarithm of p / (1 - p), by way of the smaller of the two."""
    less = p < 0.5
    part = where(less, p, 1.0 - p)
    tiny = abs(part) < 2.0**-120
    more = (1.0 - 2.0 * part) / where(tiny, part * 2.0**64, part)  # less one
    found = _log1p(more) + where(tiny, p.like(64 * math.log(2)), 0.0)
    found = where(part == 0, p.like(math.inf), found)
    return where(less, -found, found)


log_ndtr = _as_they_are(_log_ndtr, floats.log_ndtr)
ndtri = _as_they_are(_ndtri, floats.ndtri)
erfinv = _as_they_are(_erfinv, floats.erfinv)
logit = _as_they_are(_logit, floats.logit)


@through_double
def xlogy(x: Value, y: Value) -> Value:
    return where((x == 0) & (y == y), x.like(0.0), x * _log(y))


@through_double
def xlog1py(x: Value, y: Value) -> Value:
    return where((x == 0) & (y == y), x.like(0.0), x * _log1p(y))


@through_double
def entr(x: Value) -> Value:
    found = where(x == 0, x.like(0.0), -(x * _log(x)))
    return where(x < 0, x.like(-math.inf), found)


_FAR_LOG = 1100 * math.log(2)


def _log_quotient(x: Value, y: Value) -> Value:
    """log(x / y), also where x / y is too large or too small for a number."""
    less, more, one = (x.like(v) for v in (2.0**-600, 2.0**500, 1.0))
    large, small = x * less > y * 2.0**400, y * less > x * 2.0**400
    p = x * where(large, less, where(small, more, one))
    q = y * where(large, more, where(small, less, one))
    return _log(p / q) + where(large, x.like(_FAR_LOG), where(small, x.like(-_FAR_LOG), 0.0))


def _log_ratio(x: Value, y: Value) -> Value:
    """log(x / y), to its last digits where they are near."""
    near = (x + x > y) & (y + y > x)
    return where(near, _log1p((x - y) / y), _log_quotient(x, y))


@through_double
def rel_entr(x: Value, y: Value) -> Value:
    found = where((x > 0) & (y > 0), x * _log_ratio(x, y), x.like(math.inf))
    found = where((x == 0) & (y >= 0), x.like(0.0), found)
    return where((x != x) | (y != y), x + y, found)


@through_double
def kl_div(x: Value, y: Value) -> Value:
    v = (y - x) / x
    usual = where(abs(v) < 0.5, -x * log1p_less(v, y / x), x * _log_quotient(x, y) - x + y)
    found = where((x > 0) & (y > 0), usual, x.like(math.inf))
    found = where((x == 0) & (y >= 0), y, found)
    return where((x != x) | (y != y), x + y, found)


@through_double
def exprel(x: Value) -> Value:
    found = where(x == 0, x.like(1.0), _expm1(x) / x)
    return where(x == math.inf, x, found)


@through_double
def sinc(x: Value) -> Value:
    found = where(x == 0, x.like(1.0), sin_pi(x) / (x * math.pi))
    return where(abs(x) == math.inf, x.like(0.0), found)


# -- Bessel functions ----------------------------------------------------------------------
def _less_root(a: Value, name: str) -> Value:
    """a * a less the square of a root."""
    high, low = tables.ROOTS[name]
    return ((a - high) - low) * (a + high)


def _j_below(order: int, a: Value, y: Value) -> Value:
    roots = _less_root(a, f"j{order}_1") * _less_root(a, f"j{order}_2")
    found = roots * horner(y * 2.0 - 1.0, tables.J0_SMALL if order == 0 else tables.J1_SMALL)
    return found if order == 0 else found * a


def _oscillating(order: int, a: Value) -> tuple[Value, Value]:
    """J and Y from 8 on (Hankel)."""
    w = 8.0 / a
    t = w * w * 2.0 - 1.0
    p = horner(t, tables.P0 if order == 0 else tables.P1)
    q = w * horner(t, tables.Q0 if order == 0 else tables.Q1)
    s, c = _sin(a), _cos(a)
    cosine, sine = (c + s, s - c) if order == 0 else (s - c, -(s + c))
    size = _sqrt((1 / math.pi) / a)
    return size * (p * cosine - q * sine), size * (p * sine + q * cosine)


def _inner(a: Value) -> tuple[Value, Value]:
    inside = where(a < 8.0, a, 8.0)
    return inside, inside * inside * (1 / 64)


def _j(order: int) -> Function:
    @through_double
    def function(x: Value) -> Value:
        a = abs(x)
        large = _oscillating(order, where(a < 8.0, a.like(8.0), a))[0]
        found = where(a < 8.0, _j_below(order, *_inner(a)), large)
        found = where(a == math.inf, a.like(0.0), found)
        return found if order == 0 else where(x < 0, -found, found)

    return function


def _y(order: int) -> Function:
    @through_double
    def function(x: Value) -> Value:
        inside, y = _inner(x)
        j = _j_below(order, inside, y)
        if order == 0:
            small = fma(_log(inside) * j, 2 / math.pi, horner(y * 2.0 - 1.0, tables.Y0_SMALL))
        else:
            rest = inside * horner(y * 2.0 - 1.0, tables.Y1_SMALL)
            small = fma(_log(inside) * j - 1.0 / inside, 2 / math.pi, rest)
        large = _oscillating(order, where(x < 8.0, x.like(8.0), x))[1]
        found = where(x < 8.0, small, large)
        found = where(x == math.inf, x.like(0.0), found)
        found = where(x == 0, x.like(-math.inf), found)
        return where((x < 0) | (x != x), x.like(math.nan), found)

    return function


j0, j1, y0, y1 = _j(0), _j(1), _y(0), _y(1)


def _i(order: int, scaled: bool) -> Function:
    small, large = f"I{order}_SMALL", f"I{order}_LARGE"

    def function(x: Value) -> Value:
        a = abs(x)
        inside, y = _inner(a)
        near = table(y, small) if order == 0 else inside * table(y, small)
        far = table(16.0 / where(a < 8.0, a.like(8.0), a) - 1.0, large) / _sqrt(a)
        if scaled:
            near = near * _exp(-inside)
        else:  # in two steps, as neither may be too large before its time
            half = _exp(0.5 * a)
            far = where(a == math.inf, a, far * half * half)
        found = where(a < 8.0, near, far)
        return where(x < 0, -found, found) if order else found

    return lambda x: evaluate_through(function, x)


i0, i0e, i1, i1e = _i(0, False), _i(0, True), _i(1, False), _i(1, True)


def _k(order: int, scaled: bool) -> Function:
    small = tables.K0_SMALL if order == 0 else tables.K1_SMALL

    @through_double
    def function(x: Value) -> Value:
        inside = where(x < 2.0, x, 2.0)
        y = inside * inside
        rising = horner(y * (1 / 64), tables.I0_SMALL if order == 0 else tables.I1_SMALL)
        near = horner(y * 0.25, small)
        height = _log(inside * 0.5)
        near = (
            near - height * rising
            if order == 0
            else fma(inside, fma(height, rising, near), 1.0 / inside)
        )
        far = table(4.0 / where(x < 2.0, x.like(2.0), x) - 1.0, f"K{order}_LARGE") / _sqrt(x)
        near, far = (near * _exp(inside), far) if scaled else (near, far * _exp(-x))
        found = where(x == 0, x.like(math.inf), where(x <= 2.0, near, far))
        return where((x < 0) | (x != x), x.like(math.nan), found)

    return function


k0, k0e, k1, k1e = _k(0, False), _k(0, True), _k(1, False), _k(1, True)


# -- zeta ----------------------------------------------------------------------------------
_TERMS = 9  # added one by one
# 2n-th Bernoulli numbers over (2n)!
_EULER = [1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000,
          1 / 74724249600, -3617 / 10670622842880000, 43867 / 5109094217170944000]  # fmt: skip


@through_double
def zeta(s: Value, q: Value) -> Value:
    total = s.like(0.0)
    for k in range(_TERMS):
        total = total + _pow(q + float(k), -s)
    w = q + float(_TERMS)
    power = _pow(w, -s)
    total = total + fma(power, w / (s - 1.0), power * 0.5)
    limited = where(s < 2.0**60, s, 2.0**60)
    inverse = 1.0 / w
    factor = limited * inverse
    for n, c in enumerate(_EULER):
        total = fma(power * factor, c, total)
        factor = (
            factor * ((limited + (2 * n + 1.0)) * inverse) * ((limited + (2 * n + 2.0)) * inverse)
        )
    found = where(s == math.inf, where(q > 1, s.like(0.0), where(q < 1, s, 1.0)), total)
    found = where(s == 1, s.like(math.inf), found)
    found = where(q == 0, s.like(math.inf), found)
    # Riemann's goes on below 1, and then by what it is above
    gone = (s < 1) & ((s < -0.25) | (q != 1))
    return where(gone | (q < 0) | (s != s) | (q != q), s.like(math.nan), found)


# -- incomplete functions ------------------------------------------------------------------
MAX_ITERATIONS = 5000


def _gamma_front(a: Value, x: Value) -> Value:
    """x^a e^-x / gamma(a + 1)."""
    high = where(a < 8.0, a.like(8.0), a)
    u = (x - high) / high
    far = _exp(high * log1p_less(u, x / high) - _stirling(high)) / _sqrt(high * (2 * math.pi))
    inside = where(a < 8.0, a, 8.0)
    limited = where(x < 2000.0, x, 2000.0)
    first, second = _gamma_positive(inside + 1.0)
    near = _pow(limited, inside) * _exp(-limited) / first / second
    return where(a < 8.0, near, far)


def _series_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    """Four terms by one division."""
    total, term, n = state
    x, on = given
    a, b, c, n = n + 1.0, n + 2.0, n + 3.0, n + 4.0
    cd = c * n
    term = term * (x / (a * b * cd))
    squared = x * x
    total = total + term * fma(b + x, cd, squared * (n + x))
    term = term * (squared * x)
    return (on > 0) & (term > total * _EPS), [total, term, n]


def _fraction_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    """Two steps of the upper incomplete gamma function's fraction, as numerators and
    denominators."""
    found, n, y, z, p0, p1, q0, q1 = state
    for _ in range(2):
        n, y, z = n + 1.0, y + 1.0, z + 2.0
        more = n * y
        p0, p1 = p1, fma(p1, z, -(p0 * more))
        q0, q1 = q1, fma(q1, z, -(q0 * more))
    scale = where(abs(p1) > 2.0**200, found.like(2.0**-200), 1.0)
    p0, p1, q0, q1 = (v * scale for v in (p0, p1, q0, q1))
    made = p1 / q1
    go = (given[0] > 0) & (abs(made - found) > abs(made) * (2 * _EPS))
    return go, [made, n, y, z, p0, p1, q0, q1]


def _small_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    total, term, n = state
    a, x, on = given
    n = n + 1.0
    term = -(term * (x / n))
    more = term / (a + n)
    return (on > 0) & (abs(more) > abs(total) * _EPS), [total + more, term, n]


def _uniform(a: Value, u: Value) -> tuple[Value, Value]:
    """Temme's expansion where x is near a = x / (1 + u), both large: P and Q."""
    less = -log1p_less(u, u + 1.0)
    y = a * less
    eta = copysign(_sqrt(less + less), u)
    inverse = 1.0 / a
    total = horner(eta, tables.TEMME[-1])
    for row in tables.TEMME[-2::-1]:
        total = fma(total, inverse, horner(eta, row))
    height = _exp(-y)
    rest = height / _sqrt(a * (2 * math.pi)) * total
    root = _sqrt(y)
    part, q = _scaled_tail(root)
    tail = 0.5 * where(root < 1.0, 1.0 - _near(root), part * _exp(q) * height)
    below = u < 0
    return where(below, tail, 1.0 - tail) - rest, where(below, 1.0 - tail, tail) + rest


def _incomplete_gamma(a: Value, x: Value) -> tuple[Value, Value]:
    u = (x - a) / a
    uniform = (a > 20.0) & (abs(u) < 0.4)
    far = (a > 2.0**100) & ~uniform  # all is below, or nothing
    front = _gamma_front(a, x)
    low = x < 1.1
    edge = where(x <= 0.5, -0.4 / _log(x), x * 1.1)
    small = low & (edge >= a) & ~uniform
    inner = ~uniform & ~far
    lower = where(low, ~small, x < a) & inner
    upper = ~low & (x >= a) & inner
    one, zero = x.like(1.0), x.like(0.0)

    def on(which: Value) -> Value:
        return where(which, one, zero)

    series = x.lines.repeat(
        "gamma_series",
        _series_step,
        [one, one, a],
        [where(lower, x, zero), on(lower)],
        MAX_ITERATIONS,
    )
    p_series = front * series
    # beyond 10 ** 6 nothing is left of x ^ a exp(-x)
    inside, shape = where(upper, where(x < 1e6, x, 1e6), one), where(upper, a, one)
    z = inside + 2.0 - shape
    begin = [zero, 1.0 - shape, z, one, inside + 1.0, inside, z * inside]
    fraction = x.lines.repeat(
        "gamma_fraction", _fraction_step, [begin[4] / begin[6], *begin], [on(upper)], MAX_ITERATIONS
    )
    q_fraction = front * a * fraction
    there = where(small, x, zero)
    rest = x.lines.repeat(
        "gamma_small", _small_step, [zero, one, zero], [a, there, on(small)], MAX_ITERATIONS
    )
    # of small a and x: 1 - x^a / gamma(a + 1), less what follows
    inside = where(small, a, zero)
    log_of = inside * horner(inside * 1.6 - 1.0, tables.GAMMALN1P)
    exponent = where(small, inside * _log(where(small, x, one)) - log_of, zero)
    q_small = -_expm1(exponent) - _exp(exponent) * inside * rest
    p_uniform, q_uniform = _uniform(where(uniform, a, 30.0), where(uniform, u, zero))
    p = where(uniform, p_uniform, where(lower, p_series, 1.0 - where(upper, q_fraction, q_small)))
    q = where(uniform, q_uniform, where(lower, 1.0 - p_series, where(upper, q_fraction, q_small)))
    below = x < a
    p = where(far, where(below, zero, one), p)
    return p, where(far, where(below, one, zero), q)


def _at_ends(a: Value, x: Value, found: Value, nothing: float, all_: float) -> Value:
    """Where one of a and x is 0 or infinite, or neither is a number for it."""
    found = where((x == 0) | (a == math.inf), x.like(nothing), found)
    found = where((a == 0) | ((x == math.inf) & (a < math.inf)), x.like(all_), found)
    wrong = (a < 0) | (x < 0) | ((a == 0) & (x == 0)) | ((a == math.inf) & (x == math.inf))
    return where(wrong | (a != a) | (x != x), x.like(math.nan), found)


@through_double
def gammainc(a: Value, x: Value) -> Value:
    return _at_ends(a, x, _incomplete_gamma(a, x)[0], 0.0, 1.0)


@through_double
def gammaincc(a: Value, x: Value) -> Value:
    return _at_ends(a, x, _incomplete_gamma(a, x)[1], 1.0, 0.0)


def _beta_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    """Two of Lentz's steps, of the incomplete beta function."""
    h, m, c, d = state
    a, b, x = given
    m = m + 1.0
    twice = a + 2.0 * m
    even = m * (b - m) * x / ((twice - 1.0) * twice)
    d = 1.0 / fma(even, d, 1.0)
    c = 1.0 + even / c
    h = h * (c * d)
    odd = -((a + m) * (a + b + m) * x / (twice * (twice + 1.0)))
    d = 1.0 / fma(odd, d, 1.0)
    c = 1.0 + odd / c
    change = c * d
    return abs(change - 1.0) > 2 * _EPS, [h * change, m, c, d]


@through_double
def betainc(a: Value, b: Value, x: Value) -> Value:
    fine = (a > 0) & (b > 0) & (x > 0) & (x < 1) & (a < math.inf) & (b < math.inf)
    a1, b1 = where(fine, a, 1.0), where(fine, b, 1.0)
    x1 = where(fine, x, 0.5)
    turned = x1 > (a1 + 1.0) / (a1 + b1 + 2.0)
    y1 = 1.0 - x1
    p, q = where(turned, b1, a1), where(turned, a1, b1)
    u, v = where(turned, y1, x1), where(turned, x1, y1)
    both = (p >= 8.0) & (q >= 8.0)
    high_p, high_q = where(both, p, 8.0), where(both, q, 8.0)
    skew = u * high_q - v * high_p
    whole = high_p + high_q
    far = high_p * log1p_less(skew / high_p, u * whole / high_p)
    far = far + high_q * log1p_less(-skew / high_q, v * whole / high_q)
    far = far + (_stirling(whole) - _stirling(high_p) - _stirling(high_q))
    far = _exp(far) * _sqrt(high_p * (high_q / whole) * (0.5 / math.pi))
    near = _exp(p * _log(u) + q * where(turned, _log(v), _log1p(-u)) - betaln(p, q))
    front = where(both, far, near) / p
    first = 1.0 / (1.0 - (p + q) * u / (p + 1.0))
    one = x.like(1.0)
    fraction = x.lines.repeat(
        "beta_fraction", _beta_step, [first, x.like(0.0), one, first], [p, q, u], MAX_ITERATIONS
    )
    small = front * fraction
    found = where(turned, 1.0 - small, small)
    none = (x == 0) | (b == 0) | (a == math.inf)
    found = where(none, x.like(0.0), found)
    found = where((x == 1) | (a == 0) | (b == math.inf), one, found)
    wrong = (a < 0) | (b < 0) | (x < 0) | (x > 1) | ((a == 0) & (b == 0))
    wrong = wrong | ((a == math.inf) & (b == math.inf))
    return where(wrong | (a != a) | (b != b) | (x != x), x.like(math.nan), found)


# -- by name -------------------------------------------------------------------------------
SPECIAL: dict[str, Function] = {
    "beta": beta,
    "betainc": betainc,
    "betaln": betaln,
    "digamma": digamma,
    "entr": entr,
    "erfc": erfc,
    "erfcinv": erfcinv,
    "erfinv": erfinv,
    "exprel": exprel,
    "gamma": gamma,
    "gammainc": gammainc,
    "gammaincc": gammaincc,
    "gammaln": gammaln,
    "i0": i0,
    "i0e": i0e,
    "i1": i1,
    "i1e": i1e,
    "j0": j0,
    "j1": j1,
    "k0": k0,
    "k0e": k0e,
    "k1": k1,
    "k1e": k1e,
    "kl_div": kl_div,
    "log_ndtr": log_ndtr,
    "logit": logit,
    "ndtr": ndtr,
    "ndtri": ndtri,
    "rel_entr": rel_entr,
    "sinc": sinc,
    "trigamma": trigamma,
    "xlog1py": xlog1py,
    "xlogy": xlogy,
    "y0": y0,
    "y1": y1,
    "zeta": zeta,
}
