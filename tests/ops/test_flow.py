"""switch, map and associative_scan against Python, on several workers, with gradients and under vmap."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError, DTypeError, ShapeError
from tests.helpers import assert_same

RNG = np.random.default_rng(3)
X = RNG.normal(size=(7, 3))
BRANCHES = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x - 2 * y,
    lambda x, y: y,
    lambda x, y: x.sum(0, keepdims=True) + y,
]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_switch(count: int) -> None:
    def wanted(k: Any, x: Any) -> Any:
        return BRANCHES[min(max(int(k), 0), count - 1)](x, 2.0 + 0 * x)

    for k in range(-1, count + 2):
        assert_same(
            lambda k, x: ost.switch(k, BRANCHES[:count], x, 2.0 + 0 * x),
            wanted,
            *(np.int64(k), X),
            few=True,
        )


def test_only_one_branch_runs_in_a_loop() -> None:
    ran: list[int] = []

    def branch(k: int) -> Any:
        def tell(x: Any) -> Any:
            ran.append(k)
            return x

        return lambda s: ost.callback(tell, ost.spec((), "float64"), s) + k

    last, _ = ost.scan(
        lambda s, k: (ost.switch(k, [branch(0), branch(1), branch(2)], s), None),
        ost.asarray(0.5),
        ost.asarray([2, 0, 1, 9]),
    )
    assert float(last) == 5.5
    assert ran == [2, 0, 1, 2]


def test_gradients_and_elements_of_switch() -> None:
    def f(k: Any, x: Any) -> Any:
        return ost.switch(k, [lambda x: x, lambda x: x * x, lambda x: x**3], x).sum()

    x = ost.asarray(X[0])
    for k, slope in enumerate((np.ones(3), 2 * X[0], 3 * X[0] ** 2)):
        np.testing.assert_allclose(np.asarray(ost.grad(f, argnums=1)(ost.asarray(k), x)), slope)
    found = ost.compile(ost.vmap(f))(ost.arange(3), ost.asarray(X[:3]))
    np.testing.assert_allclose(
        np.asarray(found), [(X[k] ** (k + 1)).sum() for k in range(3)], rtol=1e-12
    )


def test_wrong_switches() -> None:
    with pytest.raises(DTypeError, match=r"switch .*an index float64\[\]"):
        ost.switch(1.0, BRANCHES[:2], X, X)
    with pytest.raises(ArgumentError, match="no branches"):
        ost.switch(0, [])


@pytest.mark.parametrize("size", [None, 1, 3, 7, 20])
def test_map(size: int | None) -> None:
    def f(xs: Any) -> Any:
        return {"a": xs[0].sum() * xs[1], "b": (xs[0] > 0, 1)}

    def ours(x: Any, y: Any) -> Any:
        made = ost.map(f, (x, y), batch_size=size)
        return [made["a"], *made["b"]]

    def wanted(x: Any, y: Any) -> Any:
        return [x.sum(1) * y, x > 0, np.ones(7, np.int64)]

    assert_same(ours, wanted, X, X[:, 0], few=True)
    slope = ost.grad(lambda x: ost.map(lambda r: (r * r).sum(), x, batch_size=size).sum())
    np.testing.assert_allclose(np.asarray(slope(ost.asarray(X))), 2 * X)


def test_map_of_nothing_alike() -> None:
    with pytest.raises(ShapeError, match=r"\(7, 3\) and \(3,\); needed arrays with a common first"):
        ost.map(lambda xs: xs[0], (X, X[0]))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 6, 7])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_associative_scan(n: int, reverse: bool, axis: int) -> None:
    """Of linear recurrences, which are no numbers that commute."""
    a, b = RNG.normal(size=(2, n, 3) if axis == 0 else (2, 3, n))

    def affine(p: Any, q: Any) -> Any:
        return q[0] * p[0], q[0] * p[1] + q[1]

    def wanted(a: Any, b: Any) -> Any:
        a, b = (np.moveaxis(x, axis, 0)[:: -1 if reverse else 1].copy() for x in (a, b))
        for k in range(1, n):
            a[k], b[k] = affine((a[k - 1], b[k - 1]), (a[k].copy(), b[k]))
        return [np.moveaxis(x[:: -1 if reverse else 1], 0, axis) for x in (a, b)]

    def ours(a: Any, b: Any) -> Any:
        return list(ost.associative_scan(affine, (a, b), reverse=reverse, axis=axis))

    assert_same(ours, wanted, a, b, few=True)


def test_gradients_of_associative_scan() -> None:
    x = ost.asarray(X[:, 0])
    slope = ost.grad(lambda x: (ost.associative_scan(operator.mul, x) ** 2).sum())(x)
    wanted = ost.grad(lambda x: (ost.cumulative_prod(x) ** 2).sum())(x)
    np.testing.assert_allclose(np.asarray(slope), np.asarray(wanted), rtol=1e-10)


def test_functions_that_change_what_they_are_given() -> None:
    with pytest.raises(ShapeError, match=r"associative_scan .*coming out of the function"):
        ost.associative_scan(lambda a, b: (a + b).sum(), X)
    with pytest.raises(ShapeError, match="one extent along axis 1"):
        ost.associative_scan(operator.add, (X, X[:, :2]), axis=1)
