"""Special functions in float32 that are fast in registers of floats, of which a vector holds twice as
many; within 4 units in the last place, `log_ndtr` within 7. Polynomials are minimax in relative error."""

from __future__ import annotations

import math

from .math_functions import exp, log
from .values import Value, copysign, fma, horner, intrinsic, where

_sqrt = intrinsic("sqrt")

# erfinv(x) / x with w = -log(1 - x * x): below 5 in w - 2.5, up to 16.7 in sqrt(w) - 3.1, and over
# sqrt(w) up to 103 in 1 / sqrt(w) - 0.27
_CENTRE = [3.3554604749625573e-10, -8.772804739709835e-09, 1.8037128299149017e-08,
           4.658918507457431e-07, -3.4346114379449055e-06, -4.961910790259508e-06,
           0.00021828263103996942, -0.0012527446624870224, -0.004177339405028544,
           0.2466402876358418, 1.5014093535138648]  # fmt: skip
_SIDE = [-2.9219948104879083e-05, 0.00013112070222958343, -0.0001468550027510676,
         -0.00028795367517504876, 0.0013266304734222013, -0.0027207122061231777,
         0.00411937455164707, -0.00569547995142472, 0.00746025307498227, 1.00335607057601,
         2.933231669863707]  # fmt: skip
_END = [-166408.5733208932, 946.6228455269447, 22244.49867879523, 692.6977826634429,
        -1332.6961283973774, -122.77233137753962, 36.817116191842885, 10.609769298136996,
        0.23818261483886438, 0.549177177078231, 0.11378546207558443, -0.194296033915283,
        0.9560188952357097]  # fmt: skip
# erfc(a) exp(a * a) / t with t = 2 / (2 + a), in t - 1/2
_ERFCX = [-0.03689020274706214, -0.0030197889654729262, 0.07083705002678549,
          -0.016666189585387382, -0.08442088134338435, 0.054607923204293446, 0.09887412696459084,
          -0.10373389016067625, -0.17208505859124074, 0.14577083381456074, 0.5589441983489003,
          0.687160668882438, 0.5107913525309018]  # fmt: skip
# (atanh(s) / s - 1) / s**2 in s * s, up to 1/4
_ATANH = [0.15672887357011456, 0.04059052991985958, 0.09761026063846191, 0.11049664661357167,
          0.14288353464568496, 0.19999957915950253, 0.33333333442124646]  # fmt: skip


def erfinv(y: Value) -> Value:
    a = abs(y)
    w = -log((1.0 - a) * (a + 1.0))
    s = _sqrt(w)
    found = y * where(w < 5.0, horner(w - 2.5, _CENTRE), horner(s - 3.1, _SIDE))
    return where(a == 1.0, copysign(y.like(math.inf), y), found)


def ndtri(p: Value) -> Value:
    """As erfinv(2 p - 1), with all digits of small p."""
    q = where(p < 0.5, p, 1.0 - p)
    w = -log(4.0 * q * (1.0 - q))
    s = _sqrt(w)
    found = where(w < 5.0, horner(w - 2.5, _CENTRE), s * horner(1.0 / s - 0.27, _END))
    return found * ((2.0 * p - 1.0) * math.sqrt(2))


def logit(p: Value) -> Value:
    """Twice the area tangent of 2 p - 1 where that is small, which loses no digits there."""
    less = p < 0.5
    q = where(less, p, 1.0 - p)
    s = 1.0 - 2.0 * q
    near = 2.0 * fma(s * (s * s), horner(s * s, _ATANH), s)
    tiny = q < 2.0**-100  # whose inverse may be too large
    far = log(where(tiny, q, (1.0 - q) / q))
    found = where(q > 0.25, near, where(tiny, -far, far))
    return where(less, -found, found)


def log_ndtr(x: Value) -> Value:
    a = abs(x)
    t = 2.0 / fma(a, math.sqrt(0.5), 2.0)
    part = 0.5 * t * horner(t - 0.5, _ERFCX)
    inside = where(x > 20.0, 20.0, x)  # beyond, nothing is left to take from 1
    half = inside * 0.5
    square = half * inside
    lost = fma(half, inside, -square)
    tail = part * exp(-square) * (1.0 - lost)
    below = x < 0
    whole = where(below, part, 1.0 - tail)
    more = where(below, -square - lost, ((1.0 - whole) - tail) / whole)
    return where(square == math.inf, x.like(-math.inf), log(whole) + more)
