"""Differential equations: Runge and Kutta's method of order 5, whose error of order 4 chooses the steps
(Dormand and Prince; SciPy's RK45), with its interpolation between steps.

Gradients are those of the equation, not of the steps: one more equation backwards in time (the
adjoint), from each time that was asked for to the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

from ostinato.errors import ArgumentError

from ..array.arithmetic import abs as size_of
from ..array.arithmetic import clip, convert, maximum, minimum, sqrt
from ..array.casts import astype
from ..array.concatenation import concat
from ..array.elementwise import where
from ..array.shape import reshape, whole_number, zero_of
from ..autodiff.gradient import vjp
from ..autodiff.tangents import Tangents, pushed, solid
from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.graph import Graph
from ..core.spec import int64, is_inexact, promote, real_of
from ..core.trace import inline
from ..core.user_line import misfit
from ..flow.repeat_scan import scan
from ..flow.while_loops import while_loop
from .implicit import forward, kind, solution
from .linear import Raveled, square

NODES = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0)
STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
)
WEIGHTS = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
ERRORS = (-71 / 57600, 0.0, 71 / 16695, -71 / 1920, 17253 / 339200, -22 / 525, 1 / 40)
BETWEEN = (  # powers 1 to 4 of how far it is, for each stage
    (1.0, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432),
    (0.0, 0.0, 0.0, 0.0),
    (0.0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799),
    (0.0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072),
    (0.0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632),
    (0.0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844),
    (0.0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423),
)
POWERS = 4
Field = Callable[[Array, Array], Array]
Law = Callable[[Array, Array], list[Array]]


class Trajectory(NamedTuple):
    """Times, the state at each of them (its first axis), and 0 if all were reached, else how many
    steps were taken in vain.

    >>> int(ost.solve.rk45(lambda t, y: -y, (0.0, 9.0), ost.ones(1), maxiter=2).info)
    2
    """

    t: Array
    y: Any
    info: Array


def rk45(
    function: Callable[[Any, Any], Any],
    t_span: tuple[Any, Any],
    y0: Any,
    *,
    t_eval: Any = None,
    rtol: float = 1e-3,
    atol: float = 1e-6,
    first_step: float | None = None,
    maxiter: int = 100_000,
) -> Trajectory:
    """The solution of `dy/dt = function(t, y)` with `y(t_span[0]) == y0` at the times `t_eval`, which
    lie in order between those of `t_span`; without them at the end. The error of a step is at most
    `atol + rtol * abs(y)`. y may be a tree; times may lead backwards.

    >>> times = ost.asarray([0.5, 1.0])
    >>> ost.solve.rk45(lambda t, y: -y, (0.0, 1.0), ost.ones(1), t_eval=times, rtol=1e-8).y
    Array([[0.6065],
           [0.3679]], dtype=float64)
    """
    tree = Raveled(y0, "rk45")
    y, most = tree.value, whole_number(maxiter, "rk45", 0)
    if rtol <= 0 or atol < 0:
        got = f"rtol={rtol}, atol={atol}"
        raise misfit(ArgumentError, "rk45", got=got, needed="rtol > 0 and atol >= 0")
    timely = real_of(y.dtype)
    begin, end = (astype(as_array(t), timely) for t in t_span)
    times = reshape(end, (1,)) if t_eval is None else astype(as_array(t_eval), timely)

    def law(t: Array, y: Array) -> list[Array]:
        return [tree.join(function(t, tree.split(y)), "the derivative of rk45")]

    first = None if first_step is None else float(first_step)
    made, done, steps = _trajectory(
        law, y, begin, end, times, rtol=rtol, atol=atol, first=first, most=most
    )
    info = where(done, 0, astype(steps, int64))
    return Trajectory(times, tree.split(made), info)


def _trajectory(
    law: Law,
    y: Array,
    begin: Array,
    end: Array,
    times: Array,
    *,
    rtol: float,
    atol: float,
    most: int,
    first: float | None = None,
) -> tuple[Array, Array, Array]:
    """The states at these times, which have gradients, whether all were reached, and the steps."""

    def field(t: Array, y: Array) -> Array:
        return law(t, y)[0]

    made, done, steps = _marched(
        field, y, begin, end, times, rtol=rtol, atol=atol, first=first, most=most
    )
    (made,) = solution(
        [made],
        law,
        [begin.spec, y.spec],
        kind="ode",
        given=[times, begin, y],
        rtol=rtol,
        atol=atol,
        most=most,
    )
    return made, done, steps


def _sum(terms: Iterable[tuple[float, Array]]) -> Array:
    return reduce(lambda a, b: a + b, [w * x for w, x in terms if w])


def _norm(x: Array, scale: Array) -> Array:
    """The root of the mean square, in what each element may be off by."""
    return sqrt(square(x / scale) / max(x.size, 1))


def _first_step(field: Field, start: Array, y: Array, f: Array, rtol: float, atol: float) -> Array:
    """Hairer's choice, which takes the derivative once more."""
    scale = atol + rtol * size_of(y)
    size, slope = _norm(y, scale), _norm(f, scale)
    tiny = (size < 1e-5) | (slope < 1e-5)
    near = where(tiny, 1e-6, 0.01 * size / where(tiny, 1, slope))
    bend = _norm(field(start + near, y + near * f) - f, scale) / near
    most = maximum(slope, bend)
    flat = most <= 1e-15
    far = where(flat, maximum(1e-6, near * 1e-3), (0.01 / where(flat, 1, most)) ** 0.2)
    return minimum(100 * near, far)


def _marched(
    field: Field,
    y: Array,
    begin: Array,
    end: Array,
    times: Array,
    *,
    rtol: float,
    atol: float,
    first: float | None,
    most: int,
) -> tuple[Array, Array, Array]:
    """The states at these times, whether all were reached, and the steps that were taken. Inside, time
    runs from 0 upwards."""
    way = astype(where(end >= begin, 1.0, -1.0), begin.dtype)
    goal = (end - begin) * way

    def rate(s: Array, y: Array) -> Array:
        return way * field(begin + way * s, y)

    def step(state: _State) -> _State:
        s, y = state.s, state.y
        h = minimum(state.h, goal - s)
        ks = [state.f]
        for node, row in zip(NODES[1:], STAGES[1:], strict=True):
            ks.append(rate(s + node * h, y + h * _sum(zip(row, ks, strict=True))))
        made = y + h * _sum(zip(WEIGHTS, ks, strict=True))
        ks.append(rate(s + h, made))
        scale = atol + rtol * maximum(size_of(y), size_of(made))
        error = _norm(h * _sum(zip(ERRORS, ks, strict=True)), scale)
        good = error <= 1
        grown = where(error > 0, 0.9 * where(error > 0, error, 1) ** -0.2, 10.0)
        free = good & (state.n == state.kept)  # not after a step that was too long
        highest = where(free, 10.0, astype(free, h.dtype) + 1)
        factor = where(error == error, clip(grown, 0.2, highest), 0.2)
        curve = [
            _sum((row[p], k) for row, k in zip(BETWEEN, ks, strict=True)) for p in range(POWERS)
        ]
        n = state.n + 1
        return _State(
            s=where(good, where(h >= goal - s, goal, s + h), s),
            h=h * factor,
            y=where(good, made, y),
            f=where(good, ks[-1], state.f),
            past_s=where(good, s, state.past_s),
            past_y=where(good, y, state.past_y),
            curve=[where(good, a, b) for a, b in zip(curve, state.curve, strict=True)],
            n=n,
            kept=where(good, n, state.kept),
        )

    def reach(state: _State, target: Array) -> tuple[_State, Array]:
        """Steps until a time is behind, and the state there."""
        target = minimum(target, goal)
        state = while_loop(lambda u: (u.s < target) & (u.n < most), step, state)
        length = state.s - state.past_s
        still = length <= 0
        part = where(still, 0.0, (target - state.past_s) / where(still, 1.0, length))
        inner = reduce(lambda a, b: a * part + b, reversed(state.curve))
        between = state.past_y + length * part * inner
        return state, where(target >= state.s, state.y, between)

    zero, none = zero_of(begin), apply("constant", value=0, dtype=int64)
    f = rate(zero, y)
    h = _first_step(rate, zero, y, f, rtol, atol) if first is None else zero + first
    start = _State(zero, h, y, f, zero, y, [zero_of(y)] * POWERS, none, none)
    state, made = scan(reach, start, (times - begin) * way)
    reached = state.s >= minimum((times[-1] - begin) * way, goal)
    return made, reached, state.n


class _State(NamedTuple):
    """Where a march is; where it was one step before, and what is between; steps taken, and how many
    there were when the last one was good enough."""

    s: Array
    h: Array
    y: Array
    f: Array
    past_s: Array
    past_y: Array
    curve: list[Array]
    n: Array
    kept: Array


# -- gradients -------------------------------------------------------------------------------
class _Joined:
    """Several Arrays as one state."""

    def __init__(self, xs: Sequence[Array]) -> None:
        self.specs = [x.spec for x in xs]
        self.dtype = promote(*(x.dtype for x in xs))

    def join(self, xs: Sequence[Array]) -> Array:
        return concat([reshape(astype(x, self.dtype), (-1,)) for x in xs])

    def parts(self, whole: Array) -> list[Array]:
        at, found = 0, []
        for spec in self.specs:
            own = reshape(whole[..., at : at + spec.size], (*whole.shape[:-1], *spec.shape))
            found.append(convert(own, spec.dtype))
            at += spec.size
        return found


@kind("ode")
def _ode_grad(
    gs: Sequence[Array],
    xs: Sequence[Array],
    given: Sequence[Array],
    *,
    law: Graph,
    method: str,
    rtol: float,
    atol: float,
    most: int,
) -> Sequence[Array | None]:
    (g,), (y,) = gs, xs
    times, begin, y0, *rest = given
    live = [k for k, x in enumerate(rest) if is_inexact(x.dtype)]

    shared = [rest[k] for k in live]
    joined = _Joined([y0, y0, *shared])

    def back(t: Array, whole: Array) -> list[Array]:
        """The equation, and how cotangents of the state and of all else go with it."""
        state, weight, *_ = joined.parts(whole)
        own = [apply("mark", x) for x in (state, *rest)]
        (rate,) = inline(law, [t, *own])
        found = vjp([rate], own, [weight])
        by_state = solid(found[0], state)
        return [joined.join([rate, -by_state, *(-solid(found[1 + k], rest[k]) for k in live)])]

    def interval(state: Sequence[Array], item: Any) -> tuple[list[Array], Array]:
        later, sooner, here, ct = item
        rate = inline(law, [later, here, *rest])[0]
        start = joined.join([here, state[0] + ct, *state[1:]])
        to = reshape(sooner, (1,))
        made, _, _ = _trajectory(back, start, later, sooner, to, rtol=rtol, atol=atol, most=most)
        return joined.parts(made[0])[1:], (ct * rate).sum()

    before = concat([reshape(begin, (1,)), times[:-1]])
    start = [zero_of(x) for x in (y0, *shared)]
    end, by_times = scan(interval, start, (times, before, y, g), reverse=True)
    by_begin = -(end[0] * inline(law, [begin, y0, *rest])[0]).sum()
    cts: list[Array | None] = [None] * len(rest)
    for k, ct in zip(live, end[1:], strict=True):
        cts[k] = ct
    return [by_times, by_begin, end[0], *cts]


@forward("ode")
def _ode_forward(
    changes: Tangents,
    xs: Sequence[Array],
    given: Sequence[Array],
    *,
    law: Graph,
    method: str,
    rtol: float,
    atol: float,
    most: int,
) -> Sequence[Array | None]:
    """The equation, and how a change of its state goes with it."""
    (y,), (times, begin, y0, *rest) = xs, given
    by_times, by_begin, by_start, *by_rest = changes
    joined = _Joined([y0, y0])

    def rates(t: Array, y: Array) -> Array:
        return inline(law, [t, y, *rest])[0]

    def both(t: Array, whole: Array) -> list[Array]:
        state, change = joined.parts(whole)
        made, moved = pushed(law, [t, state, *rest], [None, change, *by_rest])
        return [joined.join([made[0], solid(moved[0], made[0])])]

    change = solid(by_start, y0)
    if by_begin is not None:
        change = change - rates(begin, y0) * by_begin
    start = joined.join([y0, change])
    made, _, _ = _trajectory(both, start, begin, times[-1], times, rtol=rtol, atol=atol, most=most)
    found = joined.parts(made)[1]
    if by_times is not None:

        def later(state: None, item: Any) -> tuple[None, Array]:
            return None, rates(item[0], item[1]) * item[2]

        found = found + scan(later, None, (times, y, by_times))[1]
    return [found]
