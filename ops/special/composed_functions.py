"""Special functions that are a few of the others, by SciPy's names: what is said of how exact they are is of
float64. Part of `ost.special`."""

from __future__ import annotations

import math

from ostinato.errors import ArgumentError

from .. import nn
from ..array.arithmetic import abs as absolute
from ..array.arithmetic import floor, round, sqrt
from ..array.comparisons import equal, greater, isnan, less_equal
from ..array.elementwise import floating, where
from ..array.shape import whole_number
from ..array.transcendental import exp, expm1, log, log1p
from ..core.array import Array
from ..core.array_methods import Operandish
from ..core.user_line import misfit
from .special_functions import beta, gamma, gammaln

__all__ = [
    "binom",
    "boxcox",
    "boxcox1p",
    "comb",
    "exp10",
    "factorial",
    "huber",
    "inv_boxcox",
    "log_expit",
    "multigammaln",
    "pseudo_huber",
]


def binom(x: Operandish, y: Operandish) -> Array:
    """How many sets of y there are among x, which need not be whole: 1 / ((x + 1) beta(x - y + 1, y + 1)).
    To 1e-13 of it below 1e6; NaN for negative whole x.

    >>> ost.special.binom(5.0, 2.0)
    Array(10., dtype=float64)
    """
    n, k = floating(x), floating(y)
    sets = 1.0 / ((1.0 + n) * beta(1.0 + n - k, 1.0 + k))
    return where((n < 0) & equal(n, floor(n)), math.nan, sets)


def comb(N: Operandish, k: Operandish, exact: bool = False, repetition: bool = False) -> Array:
    """How many sets of k there are among N; 0 where there are none. Of those that may hold an element more than
    once, with `repetition`. In floating numbers.

    >>> ost.special.comb(5, 2)
    Array(10., dtype=float64)
    """
    if exact:
        do = "use math.comb(N, k) for one pair"
        raise misfit(ArgumentError, "comb", got="exact=True", needed="floating numbers", do=do)
    n, m = floating(N), floating(k)
    n = n + m - 1 if repetition else n
    found = binom(n, where((m >= 0) & less_equal(m, n), m, 0))
    found = where(equal(n, floor(n)) & equal(m, floor(m)), round(found), found)
    return where((n >= 0) & (m >= 0) & less_equal(m, n), found, 0)


def factorial(n: Operandish, exact: bool = False) -> Array:
    """n!, by the gamma function; 0 below 0. Within 16 ulp.

    >>> ost.special.factorial(5)
    Array(120., dtype=float64)
    """
    if exact:
        do = "use math.factorial(n) for one number"
        raise misfit(ArgumentError, "factorial", got="exact=True", needed="floating numbers", do=do)
    x = floating(n)
    return where(x < 0, 0, gamma(where(x < 0, 0, x) + 1.0))


def exp10(x: Operandish) -> Array:
    """10 to the power x. To 2**-52 (1 + |x log(10)|) of it.

    >>> ost.special.exp10(2.0)
    Array(100., dtype=float64)
    """
    return 10.0 ** floating(x)


def log_expit(x: Operandish) -> Array:
    """log(expit(x)), without overflow.

    >>> ost.special.log_expit(0.0)
    Array(-0.6931, dtype=float64)
    """
    return nn.log_sigmoid(floating(x))


def boxcox(x: Operandish, lmbda: Operandish) -> Array:
    """(x**lmbda - 1) / lmbda, and log(x) where lmbda is 0.

    >>> ost.special.boxcox(4.0, 2.0)
    Array(7.5, dtype=float64)
    """
    v, p = floating(x), floating(lmbda)
    safe = where(equal(p, 0), 1, p)
    return where(equal(p, 0), log(v), expm1(safe * log(v)) / safe)


def boxcox1p(x: Operandish, lmbda: Operandish) -> Array:
    """boxcox(1 + x, lmbda), also for small x.

    >>> ost.special.boxcox1p(3.0, 2.0)
    Array(7.5, dtype=float64)
    """
    v, p = floating(x), floating(lmbda)
    safe = where(equal(p, 0), 1, p)
    return where(equal(p, 0), log1p(v), expm1(safe * log1p(v)) / safe)


def inv_boxcox(y: Operandish, lmbda: Operandish) -> Array:
    """The x of which boxcox is y.

    >>> ost.special.inv_boxcox(7.5, 2.0)
    Array(4., dtype=float64)
    """
    v, p = floating(y), floating(lmbda)
    safe = where(equal(p, 0), 1, p)
    return exp(where(equal(p, 0), v, log1p(v * safe) / safe))


def huber(delta: Operandish, r: Operandish) -> Array:
    """Half the square of r, and a straight line beyond delta.

    >>> ost.special.huber(1.0, 2.0)
    Array(1.5, dtype=float64)
    """
    d, x = floating(delta), absolute(floating(r))
    found = where(greater(x, d), d * (x - 0.5 * d), 0.5 * x * x)
    return where(d < 0, math.inf, where(isnan(d), d, found))


def pseudo_huber(delta: Operandish, r: Operandish) -> Array:
    """Huber's loss, smoothed: delta**2 (sqrt(1 + (r / delta)**2) - 1).

    >>> ost.special.pseudo_huber(3.0, 4.0)
    Array(6., dtype=float64)
    """
    d, x = floating(delta), floating(r)
    safe = where(equal(d, 0), 1, d)
    square = (x / safe) * (x / safe)
    found = d * d * square / (1.0 + sqrt(1.0 + square))  # no cancellation
    return where(d < 0, math.inf, where(equal(d, 0), 0, found))


def multigammaln(a: Operandish, d: int) -> Array:
    """The logarithm of the gamma function of d dimensions, for a > (d - 1) / 2.

    >>> ost.special.multigammaln(2.0, 2)
    Array(0.4516, dtype=float64)
    """
    x, many = floating(a), whole_number(d, "multigammaln", 1)
    found = gammaln(x)
    for j in range(1, many):
        found = found + gammaln(x - j / 2)
    return found + many * (many - 1) / 4 * math.log(math.pi)
