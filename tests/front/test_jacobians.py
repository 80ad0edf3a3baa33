"""Forward mode, Jacobians and Hessians, against finite differences and each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.tree import flatten, unflatten

import ostinato as ost
from ostinato.errors import GradientError
from tests.helpers import assert_same
from tests.ops.smooth import SMOOTH

RNG = np.random.default_rng(11)
MATRIX, X = RNG.normal(size=(4, 3)), RNG.normal(size=3)


def difference(function: Callable[..., Any], x: Any, step: float = 1e-6) -> Any:
    """The Jacobian by central differences: the result's shape, then the argument's."""
    columns = []
    for k in range(x.size):
        unit = np.zeros(x.size)
        unit[k] = step
        ends = [np.asarray(function(ost.asarray(x + s * unit.reshape(x.shape)))) for s in (1, -1)]
        columns.append((ends[0] - ends[1]) / (2 * step))
    return np.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


def network(x: Any) -> Any:
    return ost.sigmoid(ost.asarray(MATRIX) @ x) * x.sum()


def looping(x: Any) -> Any:
    state, ys = ost.scan(lambda s, v: (ost.sin(s) * v + x, s[:2]), x, x)
    return ost.concat([state, ys.ravel()])


def until(x: Any) -> Any:
    return ost.while_loop(
        lambda s: (s[0] ** 2).sum() < 50, lambda s: (s[0] * (x + 3), s[1] + 1), (x + 2, 0)
    )[0]


def sides(x: Any) -> Any:
    return ost.cond(x[0] > 0, lambda v: v * v[1], lambda v: ost.exp(v) + x, x)


FUNCTIONS = [
    network,
    looping,
    sides,
    lambda x: ost.linalg.inv(ost.outer(x, x) + np.eye(3)),
    lambda x: ost.repeat(4, lambda s: s * x, 2 * x),
    ost.checkpoint(lambda x: ost.sin(x) ** 2),
    lambda x: (ost.sort(x), x.max(), ost.argmax(x) * x)[0],
    lambda x: x[np.array([0, 0, 2])] ** 2,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_both_modes(function: Callable[..., Any]) -> None:
    wanted = difference(function, X)
    for mode in ("forward", "reverse", None):
        for run in (
            ost.jacobian(function, mode=mode),
            ost.compile(ost.jacobian(function, mode=mode)),
        ):
            np.testing.assert_allclose(run(X), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("function", [*FUNCTIONS, until])
def test_jvp(function: Callable[..., Any]) -> None:
    change = RNG.normal(size=3)
    wanted = difference(function, X) @ change
    value, moved = ost.jvp(function, (X,), (change,))
    np.testing.assert_allclose(value, function(ost.asarray(X)))
    np.testing.assert_allclose(moved, wanted, rtol=1e-6, atol=1e-7)
    value, linear = ost.linearize(function, X)
    np.testing.assert_allclose(linear(change), moved)
    np.testing.assert_allclose(linear(2 * change), 2 * np.asarray(moved))
    both = ost.compile(lambda x, t: ost.jvp(function, (x,), (t,)))
    np.testing.assert_allclose(both(X, change)[1], moved)


# a function in Python has the gradient that it is given, which nobody can turn
@pytest.mark.parametrize("name", sorted(SMOOTH.keys() - {"callback"}))
def test_forward_is_backward_turned(name: str) -> None:
    """<w, J t> = <Jᵀ w, t> for every operation with a gradient."""
    samples = SMOOTH[name]
    for function, inputs in samples[:: 1 + len(samples) // 5]:
        xs = [x for x in inputs if x.dtype.kind in "fc"]
        if len(xs) < len(inputs):
            continue
        ts = [like(x) for x in xs]
        made, moved = ost.jvp(function, xs, ts)
        ys, structure = flatten(made)
        ws = [like(np.asarray(y)) for y in ys]
        cts = ost.vjp(function, *xs)[1](unflatten(structure, ws))
        left = pairing(flatten(moved)[0], ws)
        np.testing.assert_allclose(left, pairing(cts, ts), rtol=1e-6, atol=1e-8)


def like(x: Any) -> Any:
    """Other numbers of its shape and dtype; zeros of whole ones, which nothing flows through."""
    if x.dtype.kind not in "fc":
        return np.zeros_like(x)
    turned = 1j * RNG.normal(size=x.shape) if x.dtype.kind == "c" else 0
    return np.asarray(RNG.normal(size=x.shape) + turned).astype(x.dtype)


def pairing(xs: Any, ys: Any) -> Any:
    return sum(np.sum(np.asarray(x) * np.asarray(y)).real for x, y in zip(xs, ys, strict=True))


def test_hessians() -> None:
    def f(x: Any) -> Any:
        return ost.log(1 + ost.exp(ost.asarray(MATRIX) @ x)).sum() * x[0]

    wanted = difference(ost.grad(f), X, 1e-5)
    for run in (ost.hessian(f), ost.compile(ost.hessian(f)), ost.jacobian(ost.grad(f))):
        np.testing.assert_allclose(run(X), wanted, rtol=1e-6, atol=1e-8)
    third = ost.jacobian(ost.hessian(lambda x: (x**4).sum()))(X)
    np.testing.assert_allclose(np.einsum("iii->i", np.asarray(third)), 24 * X, rtol=1e-12)
    batch = ost.vmap(ost.hessian(f))(np.stack([X, 2 * X]))
    np.testing.assert_allclose(batch[0], wanted, rtol=1e-6, atol=1e-8)


def test_trees_and_values() -> None:
    def f(p: Any, x: Any) -> Any:
        return {"y": p["w"] @ x + p["b"], "n": (x**2).sum()}

    p = {"w": MATRIX, "b": np.zeros(4)}
    for mode in ("forward", "reverse"):
        value, slopes = ost.value_and_jacobian(f, (0, 1), mode=mode)(p, X)
        np.testing.assert_allclose(value["y"], MATRIX @ X)
        by_p, by_x = slopes["y"]
        np.testing.assert_allclose(by_p["b"], np.eye(4))
        np.testing.assert_allclose(by_p["w"], np.einsum("ij,k->ijk", np.eye(4), X))
        np.testing.assert_allclose(by_x, MATRIX)
        np.testing.assert_allclose(slopes["n"][1], 2 * X)
        assert slopes["n"][0]["w"].shape == (4, 3)
    slopes, aux = ost.jacobian(lambda x: (x**2, "aside"), has_aux=True)(X)
    assert aux == "aside"
    np.testing.assert_allclose(slopes, np.diag(2 * X))
    with pytest.raises(GradientError, match=r"has_aux=True.*type Array; needed a pair"):
        ost.jacobian(lambda x: x**2, has_aux=True)(X)


def test_each_mode_takes_the_fewer_sweeps() -> None:
    """A row of a Jacobian is one sweep backwards, a column one forwards."""
    wide = ost.compile(ost.jacobian(lambda x: ost.sin(x).sum(keepdims=True)))
    wide(np.ones(50))
    tall = ost.compile(ost.jacobian(lambda x: ost.sin(x * np.arange(50.0))))
    tall(np.ones(1))
    for compiled in (wide, tall):
        assert max(s.size for s in compiled.plan.traced.specs) == 50


def test_layouts() -> None:
    def f(w: Any, x: Any) -> Any:
        return ost.jacobian(lambda x: ost.tanh(w @ x))(x)

    def wanted(w: Any, x: Any) -> Any:
        return (1 - np.tanh(w @ x) ** 2)[:, None] * w

    assert_same(f, wanted, MATRIX, X)


def test_a_forward_sweep_keeps_nothing() -> None:
    """Of a loop only the state, and its change, whatever the number of turns."""
    f = ost.compile(lambda x: ost.jvp(lambda x: ost.repeat(500, ost.sin, x), (x,), (x,))[1])
    x = np.ones(1000)
    f(x)
    assert f.plan.peak_bytes < 20 * x.nbytes


def test_errors() -> None:
    with pytest.raises(GradientError, match="a tangent of shape"):
        ost.jvp(ost.sin, (X,), (np.ones(4),))
    with pytest.raises(GradientError, match="needed the structure of the arguments"):
        ost.jvp(ost.sin, (X,), ((X, X),))
    with pytest.raises(GradientError, match="real arguments and results"):
        ost.jacobian(ost.sin)(X * 1j)
    with pytest.raises(GradientError, match="of dtype int64"):
        ost.jvp(ost.sin, (np.arange(3),), (X,))
