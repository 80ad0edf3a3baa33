"""Random numbers that take a few tries, for one element: gamma, Poisson, binomial, hypergeometric, von
Mises and Zipf.

An element's number and the number of the try are all that its words depend on, so tries of one element
touch no other one. All is computed in double precision."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ostinato.ops.core.spec import float64, int64, uint64

from .random_bits import STREAMS, philox
from .special_formulas import cos_pi, elementary, gammaln_positive
from .values import Function, Value, cast, fma, intrinsic, shift, where

_log, _log1p, _exp = elementary("log"), elementary("log1p"), elementary("exp")
_expm1, _pow, _acos = elementary("expm1"), elementary("pow"), elementary("acos")
_sqrt, _floor = intrinsic("sqrt"), intrinsic("floor")
TRIES = 64  # of which each is taken with a probability of more than two thirds
LONGEST = 128  # terms of a distribution with a mean up to 10
SMALL_MEAN = 10.0


def _words(
    seed: Value, index: Value, turn: Value, stream: str
) -> tuple[Value, Value, Value, Value]:
    return philox(seed, index, shift(turn, "shl", 32) | STREAMS[stream])


def _short(word: Value) -> Value:
    """From (0, 1), of 32 bits."""
    return fma(cast(cast(word, int64), float64), 2.0**-32, 2.0**-33)


def _long(low: Value, high: Value) -> Value:
    """From (0, 1), of 52 bits."""
    whole = shift(low | shift(high, "shl", 32), "lshr", 12)
    return fma(cast(cast(whole, int64), float64), 2.0**-52, 2.0**-53)


def _start(index: Value) -> tuple[Value, Value]:
    index = cast(index, uint64)
    return index, index.like(0)


# -- gamma: Marsaglia and Tsang --------------------------------------------------------------
def _gamma_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    _, turn = state
    seed, index, d, c = given
    w0, w1, w2, w3 = _words(seed, index, turn, "gamma")
    x = _sqrt(_log(_long(w0, w1)) * -2.0) * cos_pi(_short(w2) * 2.0)
    v = fma(c, x, 1.0)
    cube = v * v * v
    fine = v > 0
    more = _log(where(fine, cube, 1.0)) - cube + 1.0
    taken = fine & (_log(_short(w3)) < fma(d, more, 0.5 * x * x))
    return ~taken, [d * cube, turn + 1]


def gamma_draw(seed: Value, index: Value, shape: Value) -> Value:
    dtype, alpha = shape.dtype, cast(shape, float64)
    index, zero = _start(index)
    small = alpha < 1.0
    d = where(small, alpha + 1.0, alpha) - 1 / 3
    d = where(d > 0, d, 1.0)
    state, given = [d, zero], [seed, index, d, 1.0 / _sqrt(9.0 * d)]
    found = seed.lines.repeat("gamma_tries", _gamma_step, state, given, TRIES)
    w0, w1, *_ = _words(seed, index, zero, "small_gamma")
    found = where(small, found * _exp(_log(_long(w0, w1)) / alpha), found)
    found = where(alpha > 0, found, where(alpha == 0, alpha, math.nan))
    return cast(found, dtype)


# -- Poisson: one term after the other, or Hörmann's PTRS ------------------------------------
def _few_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    k, term, total = state
    u, mean = given
    total, k = total + term, k + 1.0
    return u > total, [k, term * (mean / (k + 1.0)), total]


def _many_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    _, turn = state
    seed, index, mean, log_mean, on = given
    w0, w1, w2, w3 = _words(seed, index, turn, "poisson")
    u, v = _long(w0, w1) - 0.5, _long(w2, w3)
    b = fma(_sqrt(mean), 2.53, 0.931)
    a = fma(b, 0.02483, -0.059)
    us = 0.5 - abs(u)
    k = _floor((2.0 * a / us + b) * u + mean + 0.43)
    height = _log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b))
    at = where(k > 0, k, 0.0)
    there = fma(at, log_mean, -mean) - gammaln_positive(at + 1.0)
    sure = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2.0))
    taken = sure | ((k >= 0) & ((us >= 0.013) | (v <= us)) & (height <= there))
    return ~taken & (on > 0), [k, turn + 1]


def poisson_draw(seed: Value, index: Value, mean: Value) -> Value:
    lam = cast(mean, float64)
    index, zero = _start(index)
    few = lam < SMALL_MEAN
    w0, w1, *_ = _words(seed, index, zero, "poisson")
    small = where(few & (lam >= 0), lam, 0.0)
    begin = [lam.like(-1.0), _exp(-small), lam.like(0.0)]
    one = seed.lines.repeat("poisson_terms", _few_step, begin, [_long(w0, w1), small], LONGEST)
    on = where(few, lam.like(0.0), 1.0)
    large = where(lam >= SMALL_MEAN, lam, SMALL_MEAN)
    state, given = [lam.like(0.0), zero], [seed, index, large, _log(large), on]
    other = seed.lines.repeat("poisson_tries", _many_step, state, given, TRIES)
    return where(lam >= 0, where(few, one, other), math.nan)


# -- binomial: one term after the other, or Hörmann's BTRS -----------------------------------
def _of_few_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    k, term, total = state
    u, n, odds = given
    total, k = total + term, k + 1.0
    return (u > total) & (k < n), [k, term * ((n - k) / (k + 1.0) * odds), total]


def _of_many_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    _, turn = state
    seed, index, n, p, on = given
    w0, w1, w2, w3 = _words(seed, index, turn, "binomial")
    u, v = _long(w0, w1) - 0.5, _long(w2, w3)
    q = 1.0 - p
    spread = _sqrt(n * p * q)
    b = fma(spread, 2.53, 1.15)
    a = fma(p, 0.01, fma(b, 0.0248, -0.0873))
    us = 0.5 - abs(u)
    k = _floor(fma(2.0 * a / us + b, u, fma(n, p, 0.5)))
    inside = (k >= 0) & (k <= n)
    at = where(inside, k, 0.0)
    mode = _floor((n + 1.0) * p)
    height = _log(v * ((2.83 + 5.1 / b) * spread) / (a / (us * us) + b))
    there = gammaln_positive(mode + 1.0) + gammaln_positive(n - mode + 1.0)
    there = there - gammaln_positive(at + 1.0) - gammaln_positive(n - at + 1.0)
    there = there + (at - mode) * _log(p / q)
    taken = inside & (((us >= 0.07) & (v <= 0.92 - 4.2 / b)) | (height <= there))
    return ~taken & (on > 0), [k, turn + 1]


def binomial_draw(seed: Value, index: Value, count: Value, share: Value) -> Value:
    n, p = cast(count, float64), cast(share, float64)
    index, zero = _start(index)
    fine = (n >= 0) & (p >= 0) & (p <= 1)
    turned = p > 0.5
    s = where(fine, where(turned, 1.0 - p, p), 0.0)
    n = where(fine, n, 0.0)
    few = n * s < SMALL_MEAN
    w0, w1, *_ = _words(seed, index, zero, "binomial")
    small = where(few, s, 0.0)
    begin = [n.like(-1.0), _exp(n * _log1p(-small)), n.like(0.0)]
    given = [_long(w0, w1), where(few, n, 0.0), small / (1.0 - small)]
    one = seed.lines.repeat("binomial_terms", _of_few_step, begin, given, LONGEST)
    on = where(few, n.like(0.0), 1.0)
    given = [seed, index, where(few, n.like(40.0), n), where(few, n.like(0.5), s), on]
    other = seed.lines.repeat("binomial_tries", _of_many_step, [on, zero], given, TRIES)
    found = where(few, one, other)
    return where(fine, where(turned, n - found, found), math.nan)


# -- hypergeometric: Stadlober's HRUA ---------------------------------------------------------
_SOME = 160  # tries, of which each is taken with a probability of more than a fifth


def _log_ways(k: Value, few: Value, many: Value, m: Value) -> Value:
    """How many draws of m have k of the fewer ones, but for what all have in common."""
    terms = [gammaln_positive(x + 1.0) for x in (k, few - k, m - k, many - m + k)]
    return terms[0] + terms[1] + terms[2] + terms[3]


def _mixed_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    _, turn = state
    seed, index, few, many, m, height = given
    share = few / (few + many)
    rest = few + many - m
    var = rest * m * share * (1.0 - share) / where(few + many > 1.0, few + many - 1.0, 1.0)
    c = _sqrt(var + 0.5)
    middle = m * share + 0.5
    end = where(m < few, m, few) + 1.0
    far = _floor(fma(c, 16.0, middle))
    end = where(end < far, end, far)
    w0, w1, w2, w3 = _words(seed, index, turn, "hypergeometric")
    u, v = _long(w0, w1), _long(w2, w3)
    x = middle + fma(c, 1.7155277699214135, 0.8989161620588988) * (v - 0.5) / u
    inside = (x >= 0) & (x < end)
    k = _floor(where(inside, x, 0.0))
    gap = height - _log_ways(k, few, many, m)
    taken = inside & ((u * (4.0 - u) - 3.0 <= gap) | (_log(u) * 2.0 <= gap))
    return ~taken, [k, turn + 1]


def hypergeometric_draw(seed: Value, index: Value, good: Value, bad: Value, count: Value) -> Value:
    good, bad, count = (cast(x, float64) for x in (good, bad, count))
    index, zero = _start(index)
    fine = (good >= 0) & (bad >= 0) & (count >= 0) & (count <= good + bad)
    good, bad, count = (where(fine, x, 1.0) for x in (good, bad, count))
    turned = good > bad
    few, many = where(turned, bad, good), where(turned, good, bad)
    rest = good + bad - count
    fewer = rest < count
    m = where(fewer, rest, count)
    mode = _floor((m + 1.0) * (few + 1.0) / (few + many + 2.0))
    given = [seed, index, few, many, m, _log_ways(mode, few, many, m)]
    k = seed.lines.repeat("hypergeometric_tries", _mixed_step, [mode, zero], given, _SOME)
    k = where(turned, m - k, k)
    return where(fine, where(fewer, good - k, k), math.nan)


# -- von Mises: Best and Fisher ----------------------------------------------------------------
_NARROW = 1e6  # kappa from which angles are normally distributed, as far as doubles tell


def _angle_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    _, turn = state
    seed, index, k, r = given
    w0, w1, w2, w3 = _words(seed, index, turn, "vonmises")
    z = cos_pi(_short(w0))
    turned = (1.0 + r * z) / (r + z)
    c = k * (r - turned)
    taken = _log(_long(w1, w2)) <= _log(c) + 1.0 - c
    side = where(_short(w3) < 0.5, z.like(-1.0), 1.0)
    return ~taken, [side * _acos(turned), turn + 1]


def vonmises_draw(seed: Value, index: Value, kappa: Value) -> Value:
    """Around 0."""
    given = cast(kappa, float64)
    index, zero = _start(index)
    k = where(given > 1e-6, where(given < _NARROW, given, _NARROW), 1e-6)
    tau = 1.0 + _sqrt(fma(k * 4.0, k, 1.0))
    rho = (tau - _sqrt(tau * 2.0)) / (k * 2.0)
    r = fma(rho, rho, 1.0) / (rho * 2.0)
    start = [given.like(0.0), zero]
    wide = seed.lines.repeat("vonmises_tries", _angle_step, start, [seed, index, k, r], TRIES)
    w0, w1, w2, _ = _words(seed, index, zero, "narrow_vonmises")
    x = _sqrt(_log(_long(w0, w1)) * -2.0) * cos_pi(_short(w2) * 2.0)
    angle = where(given > _NARROW, x / _sqrt(given), wide)
    return cast(where(given >= 0, angle, math.nan), kappa.dtype)


# -- Zipf: Devroye -----------------------------------------------------------------------------
_ZIPF_MAX = 2.0**63


def _rank_step(state: Sequence[Value], given: Sequence[Value]) -> tuple[Value, list[Value]]:
    _, turn = state
    seed, index, less_one, least, b = given
    w0, w1, w2, w3 = _words(seed, index, turn, "zipf")
    u, v = _long(w0, w1), _long(w2, w3)
    x = _floor(_pow(fma(1.0 - least, u, least), -1.0 / less_one))
    t = _expm1(less_one * _log1p(1.0 / x))
    taken = (v * x * t / b <= (t + 1.0) / (b + 1.0)) & (x < _ZIPF_MAX)
    return ~taken, [x, turn + 1]


def zipf_draw(seed: Value, index: Value, power: Value) -> Value:
    a = cast(power, float64)
    index, zero = _start(index)
    can_be = a > 1.0
    less_one = where(can_be, where(a < 1024.0, a, 1024.0) - 1.0, 1.0)  # beyond that all are 1
    least = _pow(less_one.like(_ZIPF_MAX), -less_one)
    given = [seed, index, less_one, least, _expm1(less_one * math.log(2))]
    found = seed.lines.repeat("zipf_tries", _rank_step, [a.like(1.0), zero], given, TRIES)
    return where(can_be, found, math.nan)


REJECTION: dict[str, Function] = {
    "binomial_draw": binomial_draw,
    "gamma_draw": gamma_draw,
    "hypergeometric_draw": hypergeometric_draw,
    "poisson_draw": poisson_draw,
    "vonmises_draw": vonmises_draw,
    "zipf_draw": zipf_draw,
}
