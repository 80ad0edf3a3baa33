"""Roots and minima of functions: Newton, L-BFGS, Levenberg-Marquardt.

What they find depends on what the functions use from around them, by the implicit function theorem:
of a minimum, that the slope is zero there (implicit.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ostinato.errors import ShapeError

from ..array.arithmetic import abs as size_of
from ..array.arithmetic import maximum, sqrt
from ..array.casts import astype
from ..array.comparisons import isfinite
from ..array.concatenation import concat
from ..array.contraction import matmul
from ..array.creation import eye
from ..array.elementwise import where
from ..array.reduction import max as largest
from ..array.shape import reshape, whole_number
from ..autodiff.batching import each
from ..autodiff.gradient import vjp
from ..autodiff.tangents import push, solid
from ..core.apply import apply, as_array
from ..core.array import Array, from_term, term_of
from ..core.spec import int64
from ..core.tree import flatten
from ..core.user_line import misfit
from ..flow.while_loops import while_loop
from ..linalg import solve as solve_whole
from .implicit import solution
from .linear import DENSE, Raveled, Solution, dot, flat, ratio, square

Function = Callable[[Array], Array]


class Minimum(NamedTuple):
    """Where a solver ended, what the function is there, 0 if that is a minimum (else how many turns
    it took in vain), and how many turns there were.

    >>> int(ost.solve.lbfgs(lambda x: (x**2).sum(), ost.zeros(2)).nit)
    0
    """

    x: Any
    fun: Array
    info: Array
    nit: Array


def _ones(x: Array) -> Array:
    return apply("full", shape=x.shape, value=1, dtype=x.dtype)


def _slope(function: Function, x: Array) -> tuple[Array, Array]:
    """A number, and its gradient."""
    own = apply("mark", x)
    y = function(from_term(*term_of(own)))  # to which it may assign
    (g,) = vjp([y], [own], [_ones(y)])
    return y, solid(g, x)


def _derivative(function: Function, x: Array) -> tuple[Array, Array]:
    """Numbers in a row, and the transpose of their derivative, a row for each element of x."""
    own = apply("mark", x)
    y = function(from_term(*term_of(own)))  # to which it may assign

    def column(change: Array) -> list[Array]:
        _, (t,) = push([y], [own], [change])
        return [solid(t, y)]

    units = reshape(eye(x.size, dtype=x.dtype), (x.size, *x.shape))
    return y, each(column, [(units, True)], x.size)[0][0]


def _number(function: Callable[[Any], Any], tree: Raveled, who: str) -> Function:
    """A user's function of a tree, whose result is one number."""

    def value(x: Array) -> Array:
        y = as_array(function(tree.split(x)))
        if y.shape or y.dtype.kind != "f":
            got = f"a result {y.spec.bare}"
            raise misfit(ShapeError, who, got=got, needed="one real floating number")
        return y

    return value


def _row(function: Callable[[Any], Any], tree: Raveled) -> Function:
    """A user's function of a tree, whose results are numbers in a row."""

    def values(x: Array) -> Array:
        leaves = [flat(as_array(y)) for y in flatten(function(tree.split(x)))[0]]
        return astype(leaves[0] if len(leaves) == 1 else concat(leaves), x.dtype)

    return values


def newton(
    function: Callable[[Any], Any], x0: Any, *, tol: float = 1.48e-8, maxiter: int = 50
) -> Solution:
    """A root of a function of as many numbers as it gives: x with `function(x) == 0`, by Newton's
    method from x0, until a step is no longer than `tol`.

    >>> def root(a):
    ...     return ost.solve.newton(lambda x: x**3 - a, ost.ones(2)).x
    >>> root(ost.asarray([8.0, 27.0]))
    Array([2., 3.], dtype=float64)
    >>> ost.jacobian(root)(ost.asarray([8.0, 27.0]))
    Array([[0.0833, 0.    ],
           [0.    , 0.037 ]], dtype=float64)
    """
    tree = Raveled(x0, "newton")
    most = whole_number(maxiter, "newton", 0)
    values = _row(function, tree)

    def turn(s: Any) -> Any:
        x, _, k = s
        y, turned = _derivative(values, x)
        if y.size != x.size:
            got = f"{y.size} results of {x.size} numbers"
            do = "use ost.solve.levenberg_marquardt for least squares"
            raise misfit(ShapeError, "newton", got=got, needed="as many", do=do)
        step = reshape(solve_whole(turned.T, y), x.shape)
        return x - step, largest(size_of(step)), k + 1

    start = (tree.value, _ones(tree.value.sum() * 0) * float("inf"), 0)
    x, step, turns = while_loop(lambda s: (s[1] > tol) & (s[2] < most), turn, start)
    (x,) = _implied(x, lambda v: reshape(values(v), v.shape), "dense", tol, most)
    return Solution(tree.split(x), where(step <= tol, 0, astype(turns, int64)))


def _implied(x: Array, law: Function, method: str, rtol: float, most: int) -> Sequence[Array]:
    return solution(
        [x], lambda v: [law(v)], [x.spec], kind="root", method=method, rtol=rtol, most=most
    )


def lbfgs(
    function: Callable[[Any], Any],
    x0: Any,
    *,
    maxcor: int = 10,
    gtol: float = 1e-5,
    ftol: float = 2.2e-9,
    maxiter: int = 15000,
    maxls: int = 20,
) -> Minimum:
    """A minimum of a function of many numbers, by limited-memory BFGS from x0, until the largest
    slope is `gtol`, or a turn brings less than `ftol` of the function.

    >>> found = ost.solve.lbfgs(lambda x: ((x - 3) ** 2).sum(), ost.zeros(2))
    >>> found.x
    Array([3., 3.], dtype=float64)
    """
    tree = Raveled(x0, "lbfgs")
    value = _number(function, tree, "lbfgs")
    memory, most = whole_number(maxcor, "lbfgs", 1), whole_number(maxiter, "lbfgs", 0)
    tries = whole_number(maxls, "lbfgs", 1)
    x = tree.value
    f, g = _slope(value, x)
    past = apply("full", shape=(memory, x.size), value=0, dtype=x.dtype)
    start = (x, f, g, past, past, largest(size_of(g)) <= gtol, 0)

    def turn(s: Any) -> Any:
        x, f, g, steps, slopes, _, k = s
        ahead = reshape(_two_loops(flat(g), steps, slopes), x.shape)
        down = dot(ahead, g)
        uphill = down >= 0
        ahead = where(uphill, -g, ahead)
        down = where(uphill, -square(g), down)
        first = where(k == 0, 1 / maximum(sqrt(square(g)), 1), _ones(f))

        def shorter(t: Any) -> Any:
            length, _, tried = t
            return length / 2, value(x + ahead * (length / 2)), tried + 1

        def too_long(t: Any) -> Any:
            length, there, tried = t
            enough = there <= f + 1e-4 * length * down
            return ~enough & (tried < tries)

        length, there, _ = while_loop(too_long, shorter, (first, value(x + ahead * first), 0))
        better = there < f
        step = where(better, ahead * length, 0)
        after, slope = _slope(value, x + step)
        change = slope - g
        curved = dot(step, change) > 1e-10 * square(change)
        steps = where(curved, concat([steps[1:], reshape(step, (1, -1))]), steps)
        slopes = where(curved, concat([slopes[1:], reshape(change, (1, -1))]), slopes)
        scale = maximum(maximum(size_of(f), size_of(after)), 1)
        small = (largest(size_of(slope)) <= gtol) | (f - after <= ftol * scale)
        return x + step, after, slope, steps, slopes, small, k + 1

    made = while_loop(lambda s: ~s[5] & (s[6] < most) & isfinite(s[1]), turn, start)
    found, done, turns = made[0], made[5], astype(made[6], int64)
    method = "dense" if x.size <= DENSE else "cg"
    (found,) = _implied(found, lambda v: _slope(value, v)[1], method, 1e-10, 10 * x.size)
    return Minimum(tree.split(found), value(found), where(done, 0, turns), turns)


def _two_loops(g: Array, steps: Array, slopes: Array) -> Array:
    """The direction that the last steps and changes of the slope make of a slope."""
    count = steps.shape[0]
    q, weights = g, list[Array]()
    for k in reversed(range(count)):
        alpha = ratio(dot(steps[k], q), dot(steps[k], slopes[k]))
        q = q - alpha * slopes[k]
        weights.insert(0, alpha)
    scale = ratio(dot(steps[-1], slopes[-1]), square(slopes[-1]))
    q = where(scale > 0, scale, 1) * q
    for k in range(count):
        beta = ratio(dot(slopes[k], q), dot(steps[k], slopes[k]))
        q = q + (weights[k] - beta) * steps[k]
    return -q


def levenberg_marquardt(
    residuals: Callable[[Any], Any],
    x0: Any,
    *,
    ftol: float = 1e-8,
    xtol: float = 1e-8,
    gtol: float = 1e-8,
    maxiter: int = 200,
) -> Minimum:
    """Least squares: a minimum of `0.5 * sum(residuals(x)**2)`, by Levenberg and Marquardt's damped
    steps from x0, until a turn brings less than `ftol` of the sum, a step is less than `xtol` of x,
    or the largest slope is `gtol`.

    >>> t, y = ost.arange(4.0), 2 * ost.exp(-0.5 * ost.arange(4.0))
    >>> ost.solve.levenberg_marquardt(lambda p: p[0] * ost.exp(-p[1] * t) - y, ost.ones(2)).x
    Array([2. , 0.5], dtype=float64)
    """
    tree = Raveled(x0, "levenberg_marquardt")
    values = _row(residuals, tree)
    most = whole_number(maxiter, "levenberg_marquardt", 0)
    x = tree.value
    cost = square(values(x)) / 2
    start = (x, cost, 1e-3 * _ones(cost), cost != cost, 0)

    def turn(s: Any) -> Any:
        x, cost, damping, _, k = s
        r, turned = _derivative(values, x)
        g, curve = matmul(turned, r), matmul(turned, turned.T)
        diagonal = (turned * turned).sum(axis=1)
        diagonal = where(diagonal > 0, diagonal, 1)
        unit = eye(x.size, dtype=x.dtype)
        step = solve_whole(curve + unit * (damping * diagonal), -g)
        ahead = x + reshape(step, x.shape)
        after = square(values(ahead)) / 2
        better = after < cost
        flat_here = largest(size_of(g)) <= gtol
        short = square(step) <= (xtol * (xtol + sqrt(square(x)))) ** 2
        little = better & (cost - after <= ftol * cost)
        moved = where(better, ahead, x)
        less, more = maximum(damping / 3, 1e-15), damping * 4
        done = flat_here | short | little
        return moved, where(better, after, cost), where(better, less, more), done, k + 1

    made = while_loop(lambda s: ~s[3] & (s[4] < most), turn, start)
    found, done, turns = made[0], made[3], astype(made[4], int64)
    (found,) = _implied(
        found, lambda v: _slope(lambda u: square(values(u)) / 2, v)[1], "dense", 0.0, most
    )
    fun = square(values(found)) / 2
    return Minimum(tree.split(found), fun, where(done, 0, turns), turns)
