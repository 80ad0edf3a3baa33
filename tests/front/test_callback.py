"""Functions in Python as operations of a plan."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import scipy.special

import ostinato as ost
from ostinato.errors import ArgumentError, ExecutionError, GradientError
from tests.helpers import assert_same, on

X = np.linspace(0.5, 3, 12).reshape(4, 3)


def gamma(x: Any) -> Any:
    return ost.callback(scipy.special.gamma, ost.spec(x.shape, x.dtype), x)


def test_a_function_of_another_library() -> None:
    assert_same(lambda x: gamma(x * 2) + 1, lambda x: scipy.special.gamma(x * 2) + 1, X)


def test_several_results_and_dtypes() -> None:
    def parts(x: Any, n: Any) -> Any:
        assert not x.flags.writeable
        return np.sort(x), np.argmax(x) + n

    result = (ost.spec((12,), "float64"), ost.spec((), "int64"))
    f = ost.compile(lambda x: ost.callback(parts, result, x.ravel(), 5))
    ordered, place = f(X)
    np.testing.assert_array_equal(ordered, X.ravel())
    assert int(place) == 16


def test_it_runs_when_the_plan_runs() -> None:
    calls = []

    def seen(x: Any) -> Any:
        calls.append(x.copy())
        return x

    f = ost.compile(lambda x: ost.callback(seen, ost.spec((3,), "float64"), x) + 1)
    for k in range(3):
        np.testing.assert_array_equal(f(np.full(3, float(k))), k + 1)
    assert [float(x[0]) for x in calls] == [0, 1, 2]
    lazy = ost.callback(seen, ost.spec((3,), "float64"), np.zeros(3))
    assert len(calls) == 3
    np.asarray(lazy)
    assert len(calls) == 4
    with on(3):
        np.asarray(ost.callback(seen, ost.spec((3,), "float64"), np.zeros(3)))
    assert len(calls) == 7


def test_in_loops_and_maps() -> None:
    found = ost.repeat(3, lambda x: ost.callback(np.negative, ost.spec(x.shape, x.dtype), x) * 2, X)
    np.testing.assert_array_equal(found, -8 * X)
    np.testing.assert_allclose(ost.vmap(lambda x: gamma(x).sum())(X), scipy.special.gamma(X).sum(1))


def test_gradients() -> None:
    def slope(g: Any, x: Any) -> Any:
        return g * ost.callback(
            lambda x: scipy.special.gamma(x) * scipy.special.digamma(x),
            ost.spec(x.shape, x.dtype),
            x,
        )

    def f(x: Any) -> Any:
        return ost.callback(
            scipy.special.gamma, ost.spec(x.shape, x.dtype), x, gradient=slope
        ).sum()

    wanted = scipy.special.gamma(X) * scipy.special.digamma(X)
    np.testing.assert_allclose(ost.grad(f)(X), wanted)
    np.testing.assert_allclose(ost.vmap(ost.grad(f))(X), wanted)
    np.testing.assert_allclose(ost.grad(lambda x: ost.vmap(f)(x).sum())(X), wanted)
    with pytest.raises(GradientError, match=r"gradient of callback\(gamma\).*pass gradient="):
        ost.grad(lambda x: gamma(x).sum())(X)


def test_forwards() -> None:
    """From the gradient: transposed, or element by element where that is in Python, too."""
    calls: list[int] = []

    def turn(x: Any) -> Any:
        return np.stack([x[0] * x[1], np.sin(x[1])])

    def turned(g: Any, x: Any) -> Any:
        calls.append(1)
        return np.stack([g[0] * x[1], g[0] * x[0] + g[1] * np.cos(x[1])])

    def slope(g: Any, x: Any) -> Any:
        return ost.callback(turned, ost.spec(x.shape, x.dtype), g, x)

    def own(g: Any, x: Any) -> Any:
        return ost.stack([g[0] * x[1], g[0] * x[0] + g[1] * ost.cos(x[1])])

    x, t = np.array([2.0, 3.0]), np.array([0.5, -1.0])
    wanted = [t[0] * x[1] + t[1] * x[0], t[1] * np.cos(x[1])]
    for gradient in (own, slope):

        def f(x: Any, gradient: Any = gradient) -> Any:
            return ost.callback(turn, ost.spec((2,), "float64"), x, gradient=gradient)

        np.testing.assert_allclose(ost.jvp(f, (x,), (t,))[1], wanted)
        looped = ost.jvp(lambda x, f=f: ost.repeat(1, f, x), (x,), (t,))
        np.testing.assert_allclose(looped[1], wanted)
        np.testing.assert_allclose(
            ost.jacobian(f)(x), [[x[1], x[0]], [0, np.cos(x[1])]], atol=1e-15
        )
    assert len(calls) >= 4

    def many(x: Any) -> Any:
        same = ost.spec(x.shape, x.dtype)
        return ost.callback(
            np.sin, same, x, gradient=lambda g, x: ost.callback(np.multiply, same, g, x)
        )

    with pytest.raises(
        GradientError,
        match=r"jvp of callback\(multiply\) \(.*test_callback.py:\d+\): got 65 results.*ost.vjp",
    ):
        ost.jvp(many, (np.zeros(65),), (np.zeros(65),))


def test_errors() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("no such thing")

    lazy = ost.callback(fails, ost.spec((3,), "float64"), np.zeros(3))  # this line
    with pytest.raises(
        ExecutionError, match=r"test_callback.py:\d+.*fails raised ValueError: no s"
    ):
        np.asarray(lazy)
    wrong = ost.callback(lambda x: x[:2], ost.spec((3,), "float64"), np.zeros(3))
    with pytest.raises(ExecutionError, match=r"gave float64\[2\], and was declared to give"):
        np.asarray(wrong)
    with pytest.raises(ArgumentError, match=r"pass ost.spec"):
        ost.callback(np.sin, (3,), X)
    with pytest.raises(ArgumentError, match="a function, and the result"):
        ost.callback(np.sin, (), X)


def test_functions_go_with_what_uses_them() -> None:
    """A plan in a cache does not keep what a function holds; who may still call it does."""
    gone: list[Any] = []

    def adding(k: float) -> Any:
        def add(x: Any) -> Any:
            return x + k

        gone.append(weakref.ref(add))
        return lambda x: ost.callback(add, ost.spec(x.shape, x.dtype), x)

    def turned(x: Any) -> Any:
        return ost.repeat(2, adding(4), x)

    with on(1) as session:
        np.testing.assert_array_equal(adding(1.0)(X) * 2, (X + 1) * 2)
        f = ost.compile(lambda x: turned(adding(2.0)(x)))
        plan = ost.compile(lambda x: adding(3.0)(x)).plan_for(X)
        kept = len(session.plans.plans)
        gc.collect()
        for _ in range(2):
            np.testing.assert_array_equal(f(X), X + 10)
            gc.collect()
        np.testing.assert_array_equal(ost.run(plan, ost.asarray(X)), X + 3)
        assert len(session.plans.plans) == kept + 1
        assert [g() is None for g in gone] == [True, False, False, False]
        del f, plan
        gc.collect()
        assert [g() is None for g in gone] == [True] * 4


def test_a_function_that_is_there_has_one_name() -> None:
    class Scale:
        def times(self, x: Any) -> Any:
            return x * 3

    def plus(x: Any) -> Any:
        return x + 1

    scale = Scale()
    with on(1) as session:
        for read in (lambda: scale.times, lambda: np.negative, lambda: plus):
            seen = set[int]()
            for _ in range(3):
                y = ost.callback(read(), ost.spec(X.shape, X.dtype), X)
                np.testing.assert_array_equal(y, read()(X))
                del y
                gc.collect()
                seen.add(len(session.plans.plans))
            assert len(seen) == 1
