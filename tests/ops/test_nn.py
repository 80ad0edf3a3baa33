"""Functions of networks: values in every layout, extremes, gradients, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.spec import DTYPES

import ostinato as ost
from ostinato.errors import ArgumentError, BoundsError, DTypeError, ShapeError
from tests.helpers import assert_same

from .test_gradients import check, slope

RNG = np.random.default_rng(4)
X = RNG.normal(size=(5, 4)) * 3
EXTREME = np.array([-1e4, -50.0, -1.0, -0.0, 0.0, 1.0, 50.0, 1e4, np.inf, -np.inf, np.nan])
erf = np.vectorize(math.erf, otypes=[float])


def softmax(x: Any, axis: Any = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


POINTWISE = {
    "relu": lambda x: np.where(x <= 0, 0, x),
    "leaky_relu": lambda x: np.where(x >= 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "log_sigmoid": lambda x: -np.logaddexp(0, -x),
    "softplus": lambda x: np.logaddexp(0, x),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name):
    function = getattr(ost.nn, name)
    assert_same(function, POINTWISE[name], X)
    assert_same(function, POINTWISE[name], EXTREME, few=True)
    assert_same(function, lambda x: POINTWISE[name](x).astype(np.float32), X.astype(np.float32))
    for dtype in ("float16", "bfloat16", "float32"):
        x = ost.asarray(X, dtype=dtype)
        assert function(x).dtype == x.dtype
        np.testing.assert_allclose(
            np.asarray(function(x)).astype(float),
            POINTWISE[name](np.asarray(x).astype(float)),
            rtol=0.03,
            atol=0.03,
        )
    check(function, X)


def test_gelu_by_tanh():
    def reference(x):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    assert_same(lambda x: ost.nn.gelu(x, approximate=True), reference, X)
    assert ost.nn.gelu(ost.arange(3)).dtype == ost.float64


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_erf_is_exact(dtype):
    """To a few units in the last place of the dtype, everywhere."""
    x = np.concatenate([np.linspace(-6, 6, 5001), np.logspace(-30, 0, 500), [0.0, 27.0]])
    x = x.astype(DTYPES[dtype])
    found = np.asarray(ost.erf(ost.asarray(x)))
    assert found.dtype == x.dtype
    exact = erf(x.astype(float))
    eps = ost.finfo(dtype).eps
    tiny = ost.finfo(dtype).smallest_normal * eps
    np.testing.assert_allclose(found.astype(float), exact, rtol=4 * eps, atol=tiny)
    ends = np.asarray(ost.erf(ost.asarray([-np.inf, np.inf, np.nan], dtype=dtype))).astype(float)
    assert ends[:2].tolist() == [-1, 1]
    assert math.isnan(ends[2])


# -- along axes ----------------------------------------------------------------------------
@pytest.mark.parametrize("axis", [0, 1, -1, (0, 1)])
def test_softmax(axis):
    assert_same(lambda x: ost.nn.softmax(x, axis=axis), lambda x: softmax(x, axis), X)
    assert_same(lambda x: ost.nn.log_softmax(x, axis=axis), lambda x: np.log(softmax(x, axis)), X)
    check(lambda x: ost.nn.softmax(x, axis=axis), X)
    check(lambda x: ost.nn.log_softmax(x, axis=axis), X)


def test_softmax_of_extremes():
    x = np.array([[1e4, 0.0], [-1e4, -2e4], [-np.inf, 0.0], [3.0, 3.0]])
    np.testing.assert_allclose(
        np.asarray(ost.nn.softmax(ost.asarray(x))), [[1, 0], [1, 0], [0, 1], [0.5, 0.5]]
    )
    np.testing.assert_allclose(np.asarray(ost.nn.log_softmax(ost.asarray(x[:2])))[:, 1], -1e4)
    for dtype in ("float16", "bfloat16", "float32"):
        y = ost.nn.softmax(ost.asarray(X, dtype=dtype))
        assert y.dtype == DTYPES[dtype]
        np.testing.assert_allclose(np.asarray(y).astype(float), softmax(X), rtol=0.1, atol=0.02)
    assert ost.nn.softmax(ost.arange(3)).dtype == ost.float64


def test_cross_entropy():
    classes, mixed = np.array([0, 3, 1, 1, 2]), softmax(RNG.normal(size=(5, 4)))
    logp = np.log(softmax(X))

    def picked(x, t):
        return -np.take_along_axis(np.log(softmax(x)), t[:, None], 1)[:, 0]

    for reduction, total in (("none", lambda v: v), ("sum", np.sum), ("mean", np.mean)):
        assert_same(
            lambda x, t, r=reduction: ost.nn.cross_entropy(x, t, reduction=r),
            lambda x, t, f=total: f(picked(x, t)),
            X,
            classes,
        )
        assert_same(
            lambda x, t, r=reduction: ost.nn.cross_entropy(x, t, reduction=r),
            lambda x, t, f=total: f(-(t * np.log(softmax(x))).sum(1)),
            X,
            mixed,
        )
    first = ost.nn.cross_entropy(X.T, classes, axis=0)
    np.testing.assert_allclose(float(first), -logp[np.arange(5), classes].mean())
    g = slope(lambda x: ost.nn.cross_entropy(x, ost.asarray(classes)), X)
    np.testing.assert_allclose(g, (softmax(X) - np.eye(4)[classes]) / 5, atol=1e-12)
    check(lambda x, t: ost.nn.cross_entropy(x, t, reduction="none"), X, mixed)


def test_mse_loss():
    assert_same(ost.nn.mse_loss, lambda x, y: ((x - y) ** 2).mean(), X, X[0])
    assert_same(
        lambda x, y: ost.nn.mse_loss(x, y, reduction="sum"),
        lambda x, y: ((x - y) ** 2).sum(),
        X,
        X[0],
    )
    check(ost.nn.mse_loss, X, X[0])


def test_layer_norm():
    def reference(x, scale=1.0, shift=0.0, axis=-1):
        centre, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
        return (x - centre) / np.sqrt(variance + 1e-5) * scale + shift

    scale, shift = RNG.normal(size=4), RNG.normal(size=4)
    assert_same(ost.nn.layer_norm, reference, X)
    assert_same(ost.nn.layer_norm, reference, X, scale, shift)
    assert_same(lambda x: ost.nn.layer_norm(x, axis=(0, 1)), lambda x: reference(x, axis=(0, 1)), X)
    check(ost.nn.layer_norm, X, scale, shift, rtol=1e-5)
    for dtype in ("float16", "bfloat16", "float32"):
        y = ost.nn.layer_norm(ost.asarray(X, dtype=dtype))
        assert y.dtype == DTYPES[dtype]
        np.testing.assert_allclose(np.asarray(y).astype(float), reference(X), rtol=0.1, atol=0.05)


def test_a_network_learns():
    """Two layers, every function above in its place, the same steps on any number of workers."""
    r = np.random.default_rng(11)
    x, t = r.normal(size=(12, 4)), r.integers(0, 3, 12)
    start = {"w": r.normal(size=(4, 6)) / 2, "b": np.zeros(6), "v": r.normal(size=(6, 3)) / 2}

    def loss(p, x, t):
        h = ost.nn.relu(ost.nn.layer_norm(x @ p["w"] + p["b"]))
        return ost.nn.cross_entropy(h @ p["v"], t)

    @ost.compile
    def step(p, x, t):
        value, g = ost.value_and_grad(loss)(p, x, t)
        return value, {k: p[k] - 0.5 * g[k] for k in p}

    def train(x, t):
        p = {k: ost.asarray(v) for k, v in start.items()}
        values = []
        for _ in range(5):
            value, p = step(p, x, t)
            values.append(value)
        return values, p

    first, weights = train(ost.asarray(x), ost.asarray(t))
    values = [float(v) for v in first]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.8 * values[0]
    wanted = (
        [np.asarray(v) for v in first],
        {k: np.asarray(v) for k, v in weights.items()},
    )
    assert_same(train, lambda *_: wanted, x, t, rtol=1e-9)


# -- what is wrong -------------------------------------------------------------------------
A = ost.ones((2, 3))
WRONG = [
    (lambda: ost.nn.cross_entropy(A, ost.zeros(3, dtype=int)), ShapeError, r"shape \(3,\); needed"),
    (lambda: ost.nn.cross_entropy(A, ost.zeros(3)), ShapeError, "needed class indices, or"),
    (
        lambda: ost.nn.cross_entropy(A, [0, A.shape[1]]),
        BoundsError,
        "cross_entropy.*got class 3; needed classes from 0",
    ),
    (
        lambda: ost.nn.cross_entropy(A, np.array([0, -1])),
        BoundsError,
        "got class -1; needed classes",
    ),
    (
        lambda: ost.nn.cross_entropy(A, A, reduction="max"),
        ArgumentError,
        "reduction='max'; needed 'mean', 'sum' or 'none'",
    ),
    (lambda: ost.nn.softmax(A * 1j), DTypeError, "complex128; needed a dtype with an order"),
    (lambda: ost.nn.softmax(A, axis=3), IndexError, "softmax.*axis 3 of an array with 2 axes"),
    (lambda: ost.nn.layer_norm(A, ost.ones(2)), ShapeError, r"\(2, 3\) and \(2,\)"),
    (lambda: ost.erf(A * 1j), DTypeError, "erf.*got complex128"),
    (lambda: ost.nn.softplus(A * 1j), DTypeError, "softplus.*got complex128"),
]


@pytest.mark.parametrize(("run", "error", "text"), WRONG, ids=[str(k) for k in range(len(WRONG))])
def test_wrong(run, error, text):
    with pytest.raises(error, match=text) as caught:
        run()
    assert f"test_nn.py:{run.__code__.co_firstlineno}" in str(caught.value)
