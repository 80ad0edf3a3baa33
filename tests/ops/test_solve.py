"""Solvers against SciPy, and their gradients against those of what they solve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse.linalg
from scipy.integrate import solve_ivp

import ostinato as ost
from ostinato.errors import ArgumentError, ShapeError
from tests.helpers import assert_same

RNG = np.random.default_rng(3)
SIZE = 9
_ROOT = RNG.normal(size=(SIZE, SIZE))
GENERAL = _ROOT + 5 * np.eye(SIZE)
DEFINITE = _ROOT @ _ROOT.T + np.eye(SIZE)
B = RNG.normal(size=SIZE)
METHODS = ["cg", "bicgstab", "gmres"]


def matrix_of(method: str) -> Any:
    return DEFINITE if method == "cg" else GENERAL


def solver(method: str) -> Callable[..., Any]:
    made: Callable[..., Any] = getattr(ost.solve, method)
    return made


# -- linear systems --------------------------------------------------------------------------
@pytest.mark.parametrize("method", METHODS)
def test_linear_systems(method: str) -> None:
    a, solve = matrix_of(method), solver(method)
    wanted = np.linalg.solve(a, B)
    x, info = solve(a, B, rtol=1e-12)
    np.testing.assert_allclose(x, wanted, rtol=1e-8)
    assert int(info) == 0
    x, info = ost.compile(lambda a, b: solve(lambda v: a @ v, b, rtol=1e-12))(a, B)
    np.testing.assert_allclose(x, wanted, rtol=1e-8)
    x, info = solve(a.tolist(), B.tolist(), x0=(0 * B).tolist(), rtol=1e-12)
    np.testing.assert_allclose(x, wanted, rtol=1e-8)
    near = np.linalg.inv(a + 0.01 * np.eye(SIZE))
    x, info = solve(a, B, x0=wanted + 1, rtol=1e-10, M=near, maxiter=6)
    np.testing.assert_allclose(x, wanted, rtol=1e-6)
    assert int(info) == 0


@pytest.mark.parametrize("method", METHODS)
def test_as_many_turns_as_scipy_takes(method: str) -> None:
    a, turns = matrix_of(method), []
    b = np.ones(SIZE)
    theirs = getattr(scipy.sparse.linalg, method)
    cycles = {"callback_type": "x", "restart": 5} if method == "gmres" else {}
    theirs(a, b, rtol=1e-6, atol=0.0, callback=lambda _: turns.append(1), **cycles)
    mine = {"restart": 5} if method == "gmres" else {}
    found = solver(method)(a, b, rtol=1e-6, maxiter=len(turns) + 1, **mine)
    assert int(found.info) == 0
    few = len(turns) - 1
    assert int(solver(method)(a, b, rtol=1e-6, maxiter=few, **mine).info) == few


@pytest.mark.parametrize("method", METHODS)
def test_complex_systems_and_trees(method: str) -> None:
    a = matrix_of(method) + 1j * (_ROOT - _ROOT.T)
    x, _ = solver(method)(a, B + 1j, rtol=1e-12)
    np.testing.assert_allclose(x, np.linalg.solve(a, B + 1j), rtol=1e-8)
    b = {"u": np.ones((2, 2)), "v": np.arange(3.0)}
    x, info = solver(method)(lambda t: {"u": 2 * t["u"], "v": 3 * t["v"]}, b)
    np.testing.assert_allclose(x["u"], b["u"] / 2, rtol=1e-5)
    np.testing.assert_allclose(x["v"], b["v"] / 3, rtol=1e-5)
    assert int(info) == 0


def norm_of(method: str) -> Callable[[Any, Any], Any]:
    return lambda a, b: (solver(method)(a, b, rtol=1e-13).x ** 3).sum()


def exact(a: Any, b: Any) -> Any:
    return (ost.linalg.solve(a, b) ** 3).sum()


def alike(found: Any, wanted: Any, rtol: float = 1e-6) -> None:
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_of_linear_systems(method: str) -> None:
    a, f = matrix_of(method), norm_of(method)
    wanted = ost.grad(exact, (0, 1))(a, B)
    alike(ost.grad(f, (0, 1))(a, B), wanted)
    alike(ost.compile(ost.grad(f, (0, 1)))(a, B), wanted)
    alike([ost.hessian(f, 1)(a, B)], [ost.hessian(exact, 1)(a, B)])
    change = RNG.normal(size=SIZE)
    found = ost.jvp(lambda b: f(a, b), (B,), (change,))
    alike(found, ost.jvp(lambda b: exact(a, b), (B,), (change,)))


@pytest.mark.parametrize("method", METHODS)
def test_gradients_use_the_preconditioner(method: str) -> None:
    """Transposed, as their systems are: without it so few turns would not do."""
    n, twist = 100, np.triu(RNG.normal(size=(100, 100)), 1) / 30
    scale = np.logspace(0, 5, n)
    a = np.diag(scale) if method == "cg" else np.diag(scale) @ (np.eye(n) + twist)
    near = np.linalg.inv(a + 1e-3 * np.eye(n))
    b, few = RNG.normal(size=n), {"rtol": 1e-12, "maxiter": 6}
    with_m = {
        "matrix": near,
        "function": lambda v: ost.asarray(near) @ v,
    }
    if method == "cg":  # Hermitian, so nothing is transposed
        with_m["python"] = lambda v: ost.callback(lambda v: near @ v, ost.spec((n,), "f8"), v)

    def value(solve: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        return lambda a, b: (ost.asarray(scale) * solve(a, b)).sum() ** 2

    whole = value(ost.linalg.solve)
    wanted = ost.grad(whole, (0, 1))(a, b)
    second = ost.grad(lambda b: (ost.grad(whole, 1)(a, b) ** 2).sum())(b)
    for m in with_m.values():
        f = value(lambda a, b, m=m: solver(method)(a, b, M=m, **few).x)
        for x, w in zip(ost.grad(f, (0, 1))(a, b), wanted, strict=True):
            np.testing.assert_allclose(x, w, atol=1e-6 * float(abs(w).max()))
        found = ost.grad(lambda b, f=f: (ost.grad(f, 1)(a, b) ** 2).sum())(b)
        np.testing.assert_allclose(found, second, atol=1e-6 * float(abs(second).max()))


@pytest.mark.parametrize("method", METHODS)
def test_many_systems(method: str) -> None:
    """One loop for all, in either order with gradients."""
    a = np.stack([matrix_of(method) * k + np.eye(SIZE) for k in (1, 2, 5)])
    b = RNG.normal(size=(3, SIZE))
    f = norm_of(method)
    for axes, given in (((0, 0), (a, b)), ((None, 0), (a[0], b)), ((0, None), (a, b[0]))):
        mapped, wanted = ost.vmap(f, axes), ost.vmap(exact, axes)
        alike([mapped(*given)], [wanted(*given)])
        outside = ost.grad(lambda a, b, m=mapped: m(a, b).sum(), (0, 1))(*given)
        alike(outside, ost.grad(lambda a, b, m=wanted: m(a, b).sum(), (0, 1))(*given))
        inside = ost.vmap(ost.grad(f, (0, 1)), axes)(*given)
        alike(inside, ost.vmap(ost.grad(exact, (0, 1)), axes)(*given))


def test_solvers_in_loops() -> None:
    """A gradient goes through a loop whose turns solve."""

    def f(solve: Callable[..., Any], b: Any) -> Any:
        turn = lambda s, _: (ost.sin(solve(DEFINITE, s)) + b, s.sum())  # noqa: E731
        state, ys = ost.scan(turn, b, length=3)
        return state.sum() + ys.sum()

    found = ost.grad(lambda b: f(lambda a, s: ost.solve.cg(a, s, rtol=1e-13).x, b))(B)
    alike([found], [ost.grad(lambda b: f(ost.linalg.solve, b))(B)])
    kept = ost.checkpoint(lambda b: ost.solve.cg(DEFINITE, b, rtol=1e-13).x)
    wanted = ost.grad(lambda b: ost.linalg.solve(DEFINITE, b).sum())(B)
    alike([ost.grad(lambda b: kept(b).sum())(B)], [wanted])


@pytest.mark.parametrize("method", METHODS)
def test_layouts(method: str) -> None:
    assert_same(
        lambda a, b: solver(method)(a, b, rtol=1e-12).x,
        np.linalg.solve,
        matrix_of(method),
        B,
        rtol=1e-7,
        few=True,
    )


# -- roots and minima ------------------------------------------------------------------------
def test_newton() -> None:
    def cubes(x: Any, a: Any) -> Any:
        return x**3 + x.sum() - a

    a = np.array([2.0, 8.0, 27.0])

    def root(a: Any) -> Any:
        return ost.solve.newton(lambda x: cubes(x, a), np.full(3, 2.0))

    wanted = scipy.optimize.root(lambda x: cubes(x, a), np.full(3, 2.0), tol=1e-12).x
    np.testing.assert_allclose(root(a).x, wanted, rtol=1e-9)
    assert int(root(a).info) == 0
    slopes = np.linalg.inv(np.diag(3 * wanted**2) + 1)
    np.testing.assert_allclose(ost.jacobian(lambda a: root(a).x)(a), slopes, rtol=1e-8)
    np.testing.assert_allclose(
        ost.jacobian(lambda a: root(a).x, mode="reverse")(a), slopes, rtol=1e-8
    )
    many = np.stack([a, 2 * a])
    np.testing.assert_allclose(ost.vmap(lambda a: root(a).x)(many)[0], wanted, rtol=1e-9)
    assert int(ost.solve.newton(lambda x: cubes(x, a), np.full(3, 2.0), maxiter=2).info) == 2


def rosenbrock(x: Any) -> Any:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def test_lbfgs() -> None:
    found = ost.compile(lambda x: ost.solve.lbfgs(rosenbrock, x, gtol=1e-8, ftol=0.0))(np.zeros(6))
    theirs = scipy.optimize.minimize(rosenbrock, np.zeros(6), method="L-BFGS-B", jac=None)
    np.testing.assert_allclose(found.x, 1, rtol=1e-6)
    assert int(found.info) == 0
    assert float(found.fun) < 1e-12
    assert int(found.nit) < 3 * theirs.nit
    starts = RNG.normal(size=(4, 3))
    many = ost.vmap(lambda x: ost.solve.lbfgs(rosenbrock, x, gtol=1e-8, ftol=0.0).x)(starts)
    np.testing.assert_allclose(many, 1, rtol=1e-5)


def test_gradients_of_a_minimum() -> None:
    """Ridge regression, whose minimum is a formula."""
    x, y = RNG.normal(size=(20, 4)), RNG.normal(size=20)

    def fitted(weight: Any, y: Any) -> Any:
        loss = lambda w: ((x @ w["a"] - y) ** 2).sum() + weight * (w["a"] ** 2).sum()  # noqa: E731
        return ost.solve.lbfgs(loss, {"a": np.zeros(4)}, gtol=1e-10, ftol=0.0).x["a"]

    def formula(weight: Any, y: Any) -> Any:
        return ost.linalg.solve(x.T @ x + weight * np.eye(4), x.T @ y)

    np.testing.assert_allclose(fitted(0.5, y), formula(0.5, y), rtol=1e-7)
    for argnum in (0, 1):
        found = ost.jacobian(fitted, argnum)(0.5, y)
        np.testing.assert_allclose(found, ost.jacobian(formula, argnum)(0.5, y), rtol=1e-5)


def test_levenberg_marquardt() -> None:
    t = np.linspace(0, 3, 40)
    y = 2.5 * np.exp(-1.3 * t) + 0.01 * np.sin(37 * t)

    def off(p: Any, y: Any, xp: Any = ost) -> Any:
        return p[0] * xp.exp(-p[1] * t) - y

    def fitted(y: Any) -> Any:
        return ost.solve.levenberg_marquardt(lambda p: off(p, y), np.array([1.0, 1.0]))

    def theirs(y: Any) -> Any:
        return scipy.optimize.least_squares(
            lambda p: off(p, y, np), [1, 1], xtol=1e-14, ftol=1e-14
        ).x

    found = fitted(y)
    np.testing.assert_allclose(found.x, theirs(y), rtol=1e-6)
    assert int(found.info) == 0
    change = RNG.normal(size=40)
    wanted = (theirs(y + 1e-4 * change) - theirs(y - 1e-4 * change)) / 2e-4
    moved = ost.jvp(lambda y: fitted(y).x, (y,), (change,))[1]
    np.testing.assert_allclose(moved, wanted, rtol=1e-4)
    many = ost.vmap(lambda y: fitted(y).x)(np.stack([y, y * 1.1]))
    np.testing.assert_allclose(many[1], theirs(y * 1.1), rtol=1e-6)


# -- differential equations ------------------------------------------------------------------
TIMES = np.linspace(0, 4, 9)
START = np.array([3.0, 1.0])


def hunted(t: Any, y: Any, a: Any = 1.5, xp: Any = ost) -> Any:
    return xp.stack([a * y[0] - y[0] * y[1], y[0] * y[1] - 3 * y[1] + 0.1 * xp.sin(t)])


def test_the_steps_are_scipys() -> None:
    for span, times in (((0.0, 4.0), TIMES), ((4.0, 0.0), TIMES[::-1]), ((0.0, 4.0), TIMES[3:5])):
        theirs = solve_ivp(
            lambda t, y: hunted(t, y, xp=np), span, START, t_eval=times, rtol=1e-6, atol=1e-9
        )
        for run in (
            ost.solve.rk45,
            ost.compile(lambda f, *a, **k: ost.solve.rk45(hunted, *a, **k)),
        ):
            found = run(hunted, span, START, t_eval=times.copy(), rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(found.y, theirs.y.T, rtol=1e-9, atol=1e-10)
            assert int(found.info) == 0
    end = ost.solve.rk45(hunted, (0.0, 4.0), START, rtol=1e-9, atol=1e-12)
    assert end.y.shape == (1, 2)
    stopped = ost.solve.rk45(hunted, (0.0, 4.0), START, maxiter=3)
    assert int(stopped.info) == 3


def test_narrow_states() -> None:
    """The dtype of the state is that of all else."""
    made = ost.vmap(lambda y: ost.solve.rk45(hunted, (0.0, 1.0), y))(START.astype(np.float32)[None])
    assert made.y.dtype == made.t.dtype == np.float32
    wanted = ost.solve.rk45(hunted, (0.0, 1.0), START, rtol=1e-8).y
    np.testing.assert_allclose(made.y[0], wanted, rtol=1e-2)
    for method in METHODS:
        x, info = solver(method)(matrix_of(method).astype(np.float32), B.astype(np.float32))
        assert (x.dtype, int(info)) == (np.float32, 0)


def test_trees_of_states() -> None:
    found = ost.solve.rk45(
        lambda t, y: {"a": -y["a"], "b": y["b"] * 0 + 1},
        (0.0, 1.0),
        {"a": np.ones((2, 2)), "b": np.zeros(3)},
        t_eval=np.array([0.5, 1.0]),
        rtol=1e-8,
    )
    np.testing.assert_allclose(
        found.y["a"], np.exp(-found.t.numpy())[:, None, None] * np.ones((2, 2, 2)), rtol=1e-6
    )
    np.testing.assert_allclose(found.y["b"], np.broadcast_to([[0.5], [1.0]], (2, 3)))


def ended(y0: Any, a: Any, times: Any, span: Any = (0.0, 2.0)) -> Any:
    made = ost.solve.rk45(
        lambda t, y: hunted(t, y, a), span, y0, t_eval=times, rtol=1e-10, atol=1e-12
    )
    return (made.y**2).sum()


def slope(f: Callable[[float], Any], step: float = 1e-5) -> float:
    return float((np.asarray(f(step)) - np.asarray(f(-step))) / (2 * step))


def test_gradients_of_a_trajectory() -> None:
    """Of the start, of what the equation uses, and of the times."""
    times = np.array([0.0, 0.5, 1.3, 2.0])
    y0, a = ost.asarray(START), 1.5
    by_start, by_a, by_times = ost.grad(ended, (0, 1, 2))(y0, a, times)
    assert float(by_a) == pytest.approx(slope(lambda h: ended(y0, a + h, times)), rel=1e-5)
    for k in range(2):
        unit = np.eye(2)[k]
        wanted = slope(lambda h, u=unit: ended(y0 + h * u, a, times))
        assert float(by_start[k]) == pytest.approx(wanted, rel=1e-5)
    for k in (1, 2):
        unit = np.eye(4)[k]
        wanted = slope(lambda h, u=unit: ended(y0, a, times + h * u))
        assert float(by_times[k]) == pytest.approx(wanted, rel=1e-5)
    moved = ost.jvp(lambda a: ended(y0, a, times), (a,), (1.0,))[1]
    assert float(moved) == pytest.approx(float(by_a), rel=1e-5)
    moved = ost.jvp(lambda y, t: ended(y, a, t), (y0, times), (y0, times[::-1] - 1))[1]
    wanted = by_start @ y0 + (by_times * ost.asarray(times[::-1] - 1)).sum()
    assert float(moved) == pytest.approx(float(wanted), rel=1e-5)


def test_second_derivatives_of_a_trajectory() -> None:
    times = np.array([0.4, 1.0])
    by_a = ost.compile(ost.grad(lambda a: ended(ost.asarray(START), a, times)))
    wanted = slope(lambda h: by_a(1.5 + h), 1e-4)
    for twice in (ost.grad(by_a), ost.jacobian(by_a, mode="forward")):
        assert float(twice(1.5)) == pytest.approx(wanted, rel=1e-4)


def test_many_trajectories() -> None:
    starts, rates = START * RNG.uniform(0.5, 2, size=(5, 2)), RNG.uniform(1, 2, 5)
    times = np.array([0.7, 2.0])
    f = ost.vmap(ended, in_axes=(0, 0, None))
    wanted = [
        np.asarray(ended(ost.asarray(y), a, times)) for y, a in zip(starts, rates, strict=True)
    ]
    np.testing.assert_allclose(f(starts, rates, times), np.stack(wanted), rtol=1e-7)
    inside = ost.vmap(ost.grad(ended, 1), in_axes=(0, 0, None))(starts, rates, times)
    outside = ost.grad(lambda a: f(starts, a, times).sum())(rates)
    alone = [
        np.asarray(ost.grad(ended, 1)(ost.asarray(y), a, times))
        for y, a in zip(starts, rates, strict=True)
    ]
    np.testing.assert_allclose(inside, np.stack(alone), rtol=1e-6)
    np.testing.assert_allclose(outside, np.stack(alone), rtol=1e-6)


def test_trajectories_in_any_layout() -> None:
    y0 = RNG.normal(size=6)
    assert_same(
        lambda y: ost.solve.rk45(lambda t, y: -y, (0.0, 1.0), y, rtol=1e-10, atol=1e-12).y,
        lambda y: np.exp(-1) * y[None],
        y0,
        rtol=1e-8,
        few=True,
    )


# -- errors ----------------------------------------------------------------------------------
def test_errors() -> None:
    with pytest.raises(ShapeError, match=r"A of shape \(9, 9\) and b float64\[4\]"):
        ost.solve.cg(DEFINITE, np.ones(4))
    with pytest.raises(ShapeError, match=r"A of cg.*\(9,\)"):
        ost.solve.cg(lambda v: v[:3], B)
    with pytest.raises(ArgumentError, match="got int64"):
        ost.solve.cg(DEFINITE, np.arange(9))
    with pytest.raises(ShapeError, match="one real floating number"):
        ost.solve.lbfgs(lambda x: x, B)
    with pytest.raises(ShapeError, match="3 results of 9 numbers"):
        ost.solve.newton(lambda x: x[:3], B)
    with pytest.raises(ArgumentError, match="rtol > 0"):
        ost.solve.rk45(hunted, (0.0, 1.0), START, rtol=0.0)


def test_lists_of_numbers_as_for_scipy() -> None:
    with ost.connect():
        way = ost.solve.rk45(lambda t, y: [y[1], -y[0]], (0.0, 1.0), [1, 0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(np.asarray(way.y[-1]), [np.cos(1), -np.sin(1)], rtol=1e-7)
        root = ost.solve.newton(lambda x: (x[0] - 2, x[1] ** 2 - 9), [0.0, 1.0]).x
        np.testing.assert_allclose(np.asarray(root), [2, 3])
        tree = ost.solve.newton(lambda x: [x[0] - ost.ones(2)], [ost.zeros(2)]).x
        assert type(tree) is list
        with pytest.raises(ShapeError, match="newton"):
            ost.solve.newton(lambda x: [x[0], x[1], x[0]], [0.0, 1.0])
