"""Gradients against central differences, and what they promise at kinks, in loops, for pytrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops import OPS
from ostinato.ops.core.tree import flatten, unflatten

import ostinato as ost
from ostinato.errors import ArgumentError, GradientError
from tests.helpers import MESHES, assert_same
from tests.thorough import THOROUGH, some

from .samples import NOT_SAMPLED
from .smooth import SMOOTH

STEP = 1e-6
NOT_SMOOTH = {
    "stop_gradient": "its gradient is not its derivative, on purpose",
    "while": "has none, and says so",
    "gamma_draw": "its gradient keeps the share of the distribution below; see test_distributions.py",
}
DIFFERENTIABLE = sorted(
    n for n in OPS if OPS[n].grad is not None and n not in NOT_SAMPLED and n not in NOT_SMOOTH
)


def random_like(x: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if x.dtype.kind == "c":
        return rng.normal(size=x.shape) + 1j * rng.normal(size=x.shape)
    return rng.normal(size=x.shape).astype(x.dtype)


def leaves(tree: Any) -> list[Any]:
    return [np.asarray(y) for y in flatten(tree)[0]]


def pair(cotangents: Sequence[Any], tangents: Sequence[Any]) -> float:
    """How a cotangent acts on a change: that of x + iy is df/dx - i df/dy."""
    return sum(float(np.sum(c * t).real) for c, t in zip(cotangents, tangents, strict=True))


def pullback(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a random combination of the function's results."""

    def back(*xs: Any) -> Any:
        outs, run = ost.vjp(function, *xs)
        ys, structure = flatten(outs)
        cts = [random_like(y, 100 + k) for k, y in enumerate(ys)]

        return run(unflatten(structure, cts))

    return back


def check(function: Callable[..., Any], *inputs: Any, rtol: float = 1e-6) -> None:
    """The gradient along a random direction is the central difference."""
    xs = [np.asarray(x) for x in inputs]
    change = [random_like(x, k) for k, x in enumerate(xs)]
    run = ost.compile(lambda *args: function(*args))
    above = leaves(run(*(x + STEP * d for x, d in zip(xs, change, strict=True))))
    below = leaves(run(*(x - STEP * d for x, d in zip(xs, change, strict=True))))
    slope = [(a - b) / (2 * STEP) for a, b in zip(above, below, strict=True)]
    cts = [random_like(y, 100 + k) for k, y in enumerate(above)]
    found = leaves(ost.compile(lambda *args: pullback(function)(*args))(*xs))
    for x, g in zip(xs, found, strict=True):
        assert (g.shape, g.dtype) == (x.shape, x.dtype)
    size = 1 + sum(float(np.abs(s).sum()) for s in slope)
    np.testing.assert_allclose(pair(found, change), pair(cts, slope), rtol=rtol, atol=rtol * size)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_first(name):
    if name not in SMOOTH:
        pytest.fail(f"add smooth({name!r}, ...) in tests/ops/smooth.py")
    for function, inputs in SMOOTH[name]:
        check(function, *inputs)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second(name):
    """The gradient is a function like any other, so it has a gradient."""
    for function, inputs in SMOOTH[name] if THOROUGH else SMOOTH[name][:1]:
        check(pullback(function), *inputs, rtol=1e-5)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_workers(name):
    """Any number of workers finds the same gradient; each operation's on a mesh in turn."""
    for function, inputs in SMOOTH[name] if THOROUGH else SMOOTH[name][-1:]:
        back = pullback(function)
        assert_same(
            back,
            lambda *xs, b=back: tuple(leaves(b(*xs))),
            *inputs,
            rtol=1e-9,
            few=True,
            meshes=some(MESHES, 3, DIFFERENTIABLE.index(name)),
        )


def test_nothing_is_smooth_that_does_not_exist():
    assert set(SMOOTH) <= set(DIFFERENTIABLE)
    assert set(NOT_SMOOTH) <= set(OPS)


def test_a_wrong_gradient_is_found():
    @ost.custom_gradient
    def wrong(x):
        return x * x, lambda g: g * x

    with pytest.raises(AssertionError):
        check(wrong, np.array([1.0, 2.0]))


# -- at kinks, as JAX has it ---------------------------------------------------------------
def slope(function: Callable[..., Any], *xs: Any) -> Any:
    """The gradient of the sum with respect to the first argument."""
    return np.asarray(ost.grad(lambda *a: ost.sum(function(*a)))(*map(ost.asarray, xs)))


KINKS = [
    (ost.abs, [-2.0, 0.0, 3.0], [-1, 0, 1]),
    (ost.nn.relu, [-2.0, 0.0, 3.0], [0, 0, 1]),
    (lambda x: ost.maximum(x, 1.0), [0.0, 1.0, 2.0], [0, 0.5, 1]),
    (lambda x: ost.minimum(1.0, x), [0.0, 1.0, 2.0], [1, 0.5, 0]),
    (lambda x: ost.clip(x, 0.0, 1.0), [-1.0, 0.0, 0.5, 1.0, 2.0], [0, 0.5, 1, 0.5, 0]),
    (lambda x: ost.maximum(x, x), [0.0, 2.0], [1, 1]),
    (lambda x: ost.where(x > 0, x * x, -x), [-1.0, 0.0, 2.0], [-1, -1, 4]),
    (ost.floor, [0.5, 1.0], [0, 0]),
    (ost.round, [0.5, 1.0], [0, 0]),
    (ost.sign, [-1.0, 0.0], [0, 0]),
    (lambda x: x // 0.5, [0.7, 1.0], [0, 0]),
    (lambda x: x % 0.5, [0.7, 1.1], [1, 1]),
    (lambda x: ost.max(x), [3.0, 1.0, 3.0], [0.5, 0, 0.5]),
    (lambda x: ost.min(x), [1.0, 1.0, 1.0, 2.0], [1 / 3, 1 / 3, 1 / 3, 0]),
    (lambda x: x**0, [0.0, 2.0], [0, 0]),
    (lambda x: x**2, [0.0, 2.0], [0, 4]),
    (lambda x: x ** ost.asarray([0.0, 1.0, 2.0]), [0.0, 0.0, 0.0], [0, 1, 0]),
    (lambda x: ost.asarray([0.0, 2.0]) ** x, [1.0, 1.0], [0, 2 * np.log(2)]),
    (lambda x: ost.prod(x), [0.0, 2.0, 3.0], [6, 0, 0]),
    (lambda x: ost.prod(x), [0.0, 0.0, 3.0], [0, 0, 0]),
    (lambda x: ost.logaddexp(x, -np.inf), [1.0], [1]),
    (lambda x: ost.logaddexp(x, 1.0), [np.inf, 1.0, -np.inf], [1, 0.5, 0]),
    (lambda x: ost.linalg.vector_norm(x, ord=3), [0.0, 0.0], [0, 0]),
    (lambda x: 1 / x.at[:1].set(0.0), [1.0, 2.0], [0, -0.25]),
    (lambda x: 1 / x.at[np.array([0])].set(0.0), [1.0, 2.0], [0, -0.25]),
    (lambda x: ost.ones(2).at[np.array([0, 1])].multiply(x), [0.0, 2.0], [1, 1]),
    (lambda x: ost.ones(2).at[np.array([1, 1])].multiply(x), [0.0, 2.0], [2, 0]),
    (lambda x: ost.ones(2).at[np.array([1, 1])].multiply(x), [0.0, 0.0], [0, 0]),
    (ost.nn.softplus, [-1000.0, 0.0, 1000.0], [0, 0.5, 1]),
    (ost.sigmoid, [-1000.0, 0.0, 1000.0], [0, 0.25, 0]),
    (lambda x: ost.sort(x), [2.0, 1.0, 2.0], [1, 1, 1]),
    (lambda x: ost.nn.leaky_relu(x, 0.1), [-1.0, 2.0], [0.1, 1]),
    (lambda x: ost.nn.elu(x), [-1.0, 0.0, 1000.0], [np.exp(-1), 1, 1]),
]


@pytest.mark.parametrize(
    ("function", "x", "wanted"), KINKS, ids=[str(k) for k in range(len(KINKS))]
)
def test_kinks(function, x, wanted):
    np.testing.assert_allclose(slope(function, np.array(x)), wanted, rtol=1e-12, atol=1e-15)


def test_ties_are_shared_by_updates_too():
    x, v = np.array([1.0, 5.0, 3.0]), np.array([1.0, 2.0, 3.0])
    for mode in ("min", "max"):
        spot = lambda x, v, m=mode: getattr(x.at[:], m)(v)  # noqa: E731
        gx, gv = (slope(spot, x, v), slope(lambda v, x, s=spot: s(x, v), v, x))
        np.testing.assert_allclose(gx + gv, 1)
        assert gx.tolist() == ([0.5, 0, 0.5] if mode == "min" else [0.5, 1, 0.5])


# -- complex numbers -----------------------------------------------------------------------
def test_the_cotangent_of_z():
    """That of z = x + iy is df/dx - i df/dy."""
    z = np.array([1 + 2j, -0.5j])
    np.testing.assert_allclose(slope(lambda z: ost.abs(z) ** 2, z), 2 * z.conj())
    np.testing.assert_allclose(slope(lambda z: ost.real(z * z), z), 2 * z)
    np.testing.assert_allclose(slope(lambda z: ost.imag(z * z), z), -2j * z)
    np.testing.assert_allclose(slope(lambda z: ost.real(ost.conj(z)), z), 1)
    x = np.array([1.0, 2.0])
    found = slope(lambda x: ost.real(x * 1j * x), x)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, 0)


# -- shapes of use -------------------------------------------------------------------------
X = np.array([0.5, -1.5, 2.0])


def test_several_uses_of_one_value():
    """Cotangents add up, however many there are."""

    def f(x):
        y = ost.sin(x)
        return y * y + 3 * y + y / 2 + ost.exp(y) - y

    y = np.sin(X)
    np.testing.assert_allclose(slope(f, X), (2 * y + 3 + 0.5 + np.exp(y) - 1) * np.cos(X))
    assert_same(
        lambda x: ost.grad(lambda x: f(x).sum())(x),
        lambda x: (2 * np.sin(x) + 2.5 + np.exp(np.sin(x))) * np.cos(x),
        X,
    )


def test_second_and_third_derivatives():
    f = ost.sin
    for wanted in (np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x)):
        f = (lambda g: lambda x: ost.grad(lambda x: ost.sum(g(x)))(x))(f)
        np.testing.assert_allclose(np.asarray(f(ost.asarray(X))), wanted(X))
        np.testing.assert_allclose(np.asarray(ost.compile(f)(X)), wanted(X))


def test_dtypes_stay():
    for d in ("float16", "bfloat16", "float32", "float64", "complex64"):
        x = ost.ones((3,), dtype=d)
        g = ost.grad(lambda x: ost.sum(ost.real(x * 2.0 + x.mean())).astype(ost.float64))(x)
        assert g.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(g).astype(complex), 3, rtol=1e-2)


def test_halves_are_added_up_in_float32():
    """A bias used by many rows: its gradient is a sum over them."""
    rows = ost.ones((4000, 1), dtype=ost.float16)
    g = ost.grad(lambda b: ost.sum((rows + b) * 0.25))(ost.zeros(1, dtype=ost.float16))
    assert np.asarray(g).tolist() == [1000]


def test_arguments():
    def f(a, b, c=1.0):
        return ost.sum(a * b * c)

    a, b = ost.asarray(X), ost.asarray(X + 1)
    ga, gb = ost.grad(f, argnums=(0, 1))(a, b)
    np.testing.assert_allclose(np.asarray(ga), X + 1)
    np.testing.assert_allclose(np.asarray(gb), X)
    np.testing.assert_allclose(np.asarray(ost.grad(f, argnums=-1)(a, b)), X)
    np.testing.assert_allclose(np.asarray(ost.grad(f)(a, b, c=2.0)), 2 * X + 2)
    np.testing.assert_allclose(np.asarray(ost.grad(f)(X, X + 1)), X + 1)
    assert float(ost.grad(lambda x: x * x)(3.0)) == 6
    twice = ost.grad(f, argnums=(0, -2, np.int64(1), 0))(a, b)
    for found, expected in zip(twice, (X + 1, X + 1, X, X + 1), strict=True):
        np.testing.assert_allclose(np.asarray(found), expected)
    unused = ost.grad(lambda a, b: ost.sum(a), argnums=1)(a, b)
    assert np.asarray(unused).tolist() == [0, 0, 0]


def test_trees():
    params = {"w": ost.asarray(X), "b": [ost.asarray(2.0), (ost.asarray(X + 1),)], "none": None}

    def loss(p, scale):
        return ost.sum(p["w"] * p["b"][0]) * scale + ost.sum(p["b"][1][0] ** 2)

    value, g = ost.value_and_grad(loss)(params, 3.0)
    assert float(value) == pytest.approx(float((X * 2).sum() * 3 + ((X + 1) ** 2).sum()))
    np.testing.assert_allclose(np.asarray(g["w"]), 6)
    np.testing.assert_allclose(float(g["b"][0]), 3 * X.sum())
    np.testing.assert_allclose(np.asarray(g["b"][1][0]), 2 * (X + 1))
    assert g["none"] is None


def test_has_aux():
    def f(x):
        return ost.sum(x * x), {"double": x * 2, "name": "f"}

    (value, aux), g = ost.value_and_grad(f, has_aux=True)(ost.asarray(X))
    assert aux["name"] == "f"
    np.testing.assert_allclose(np.asarray(aux["double"]), 2 * X)
    np.testing.assert_allclose(float(value), (X * X).sum())
    g, aux = ost.grad(f, has_aux=True)(ost.asarray(X))
    np.testing.assert_allclose(np.asarray(g), 2 * X)
    assert aux["name"] == "f"


def test_vjp():
    outs, back = ost.vjp(lambda a, b: {"p": a * b, "s": ost.sum(a)}, ost.asarray(X), ost.asarray(X))
    np.testing.assert_allclose(np.asarray(outs["p"]), X * X)
    for scale in (1.0, 2.0):  # as often as one likes
        ga, gb = back({"p": scale * X, "s": 5.0})
        np.testing.assert_allclose(np.asarray(ga), scale * X * X + 5)
        np.testing.assert_allclose(np.asarray(gb), scale * X * X)


def test_reading_inside():
    """A value that is read on the way keeps its history for the gradient."""

    def f(x):
        y = x * x
        if float(ost.sum(y)) > 0:
            y = y * 3
        return ost.sum(y * y)

    np.testing.assert_allclose(np.asarray(ost.grad(f)(ost.asarray(X))), 4 * 9 * X**3)


def test_compiled_and_compiled_inside():
    square = ost.compile(lambda x: x * x)
    step = ost.compile(ost.grad(lambda x: ost.sum(square(x) * x)))
    for _ in range(2):
        np.testing.assert_allclose(np.asarray(step(ost.asarray(X))), 3 * X * X)
    np.testing.assert_allclose(
        np.asarray(ost.grad(lambda x: ost.sum(square(x)))(ost.asarray(X))), 2 * X
    )


# -- cut, replaced, computed again ---------------------------------------------------------
def test_stop_gradient():
    np.testing.assert_allclose(slope(lambda x: ost.stop_gradient(x) * x, X), X)
    np.testing.assert_allclose(slope(lambda x: x + ost.stop_gradient(x * x), X), 1)


def test_custom_gradient():
    @ost.custom_gradient
    def clipped(x):
        return x * x, lambda g: ost.clip(g, -1.0, 1.0)

    np.testing.assert_allclose(slope(lambda x: clipped(x) * 5, X), 1)
    assert_same(lambda x: clipped(x), np.square, X)

    @ost.custom_gradient
    def two(x, y):
        return (x + y, x * y), lambda g: (g[0] * 10, None)

    def f(x, y):
        s, p = two(x, y)
        return s + p

    np.testing.assert_allclose(slope(f, X, X), 10)
    np.testing.assert_allclose(slope(lambda y, x: f(x, y), X, X), 0)
    assert_same(lambda x: ost.grad(lambda x: ost.sum(f(x, x)))(x), lambda x: np.full(3, 10.0), X)

    @ost.custom_gradient
    def tree(p):
        return p["a"] * p["b"], lambda g: {"a": g, "b": g * 2}

    g = ost.grad(lambda p: ost.sum(tree(p)))({"a": ost.asarray(X), "b": ost.asarray(X)})
    assert (np.asarray(g["a"]).tolist(), np.asarray(g["b"]).tolist()) == ([1] * 3, [2] * 3)

    @ost.custom_gradient
    def wrong(x, y):
        return x * y, lambda g: (g,)

    with pytest.raises(
        ArgumentError, match=r"custom gradient.*got 1 cotangents; needed one for each of 2"
    ):
        ost.grad(lambda x: ost.sum(wrong(x, x)))(ost.asarray(X))


@ost.custom_gradient
def steep(x: Any, w: Any) -> Any:
    """x w, with ten times its slope by x and none by w."""
    return x * w, lambda g: (10 * g * w, None)


def stepping(x: Any) -> Any:
    return ost.scan(lambda s, v: (steep(s, v), steep(v, s)), x, ost.asarray([2.0, 3.0]))


BODIES = {
    "repeat": (lambda x: ost.repeat(2, lambda s: steep(s, 3.0), x), 9, 900),
    "scan": (lambda x: stepping(x)[0], 6, 600),
    "yields": (lambda x: stepping(x)[1][1], 6, 0),
    "nested": (
        lambda x: ost.repeat(2, lambda s: ost.repeat(1, lambda t: steep(t, 3.0), s), x),
        9,
        900,
    ),
    "cond": (lambda x: ost.cond(x > 0, lambda v: steep(v, 3.0), lambda v: v, x), 3, 30),
    "checkpoint": (ost.checkpoint(lambda x: steep(x, 3.0) * 2), 6, 60),
    "compiled": (ost.compile(lambda x: steep(x, 3.0)), 3, 30),
    "mapped": (
        lambda x: ost.repeat(2, lambda s: ost.vmap(steep, (0, None))(s[None], 3.0)[0], x),
        9,
        900,
    ),
    "around": (
        lambda x: ost.vmap(lambda v: ost.repeat(2, lambda s: steep(s, 3.0), v))(x[None])[0],
        9,
        900,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_custom_gradients_in_bodies(name):
    """A body becomes a graph, and its gradients of the user's own with it; forwards, too."""
    f, value, slope_ = BODIES[name]
    x = ost.asarray(1.0)
    assert float(f(x)) == value
    assert float(ost.grad(f)(x)) == slope_
    assert float(ost.compile(ost.grad(f))(x)) == slope_
    assert [float(y) for y in ost.jvp(f, (x,), (ost.asarray(2.0),))] == [value, 2 * slope_]
    found = ost.vmap(ost.grad(f))(ost.asarray([1.0, 1.0]))
    np.testing.assert_array_equal(np.asarray(found), [slope_] * 2)
    assert (
        float(ost.grad(lambda x: ost.grad(lambda y: f(y) * y)(x))(ost.asarray(1.0))) == 2 * slope_
    )


def test_custom_gradients_of_what_has_none_forwards():
    """Only the user's rule is asked, not what the result was made of."""

    @ost.custom_gradient
    def rounded(x):
        return ost.callback(np.rint, ost.spec(x.shape, x.dtype), x), lambda g: g

    x = ost.asarray([0.4, 1.7])
    y, t = ost.jvp(rounded, (x,), (ost.asarray([2.0, 3.0]),))
    assert (np.asarray(y).tolist(), np.asarray(t).tolist()) == ([0, 2], [2, 3])


def layer(x: Any, w: Any) -> Any:
    return ost.tanh(ost.matmul(ost.sin(x), w))


def test_checkpoint():
    """The same gradient, with the body computed again behind a barrier."""
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(5, 4)), rng.normal(size=(4, 4))
    plain = ost.grad(lambda x, w: ost.sum(layer(layer(x, w), w) ** 2), argnums=(0, 1))
    kept = ost.checkpoint(layer)
    again = ost.grad(lambda x, w: ost.sum(kept(kept(x, w), w) ** 2), argnums=(0, 1))
    wanted = [np.asarray(g) for g in plain(x, w)]
    assert_same(again, lambda *_: tuple(wanted), x, w)
    check(pullback(kept), x, w, rtol=1e-5)
    bias = ost.asarray(rng.normal(size=4))
    closed = ost.checkpoint(lambda x: {"y": ost.sin(x * bias), "n": None})
    found = ost.grad(lambda b: ost.sum(ost.checkpoint(lambda x: ost.sin(x * b))(ost.asarray(x))))
    np.testing.assert_allclose(np.asarray(found(bias)), (np.cos(x * np.asarray(bias)) * x).sum(0))
    np.testing.assert_allclose(
        slope(lambda x: closed(x)["y"], x), np.cos(x * np.asarray(bias)) * np.asarray(bias)
    )


# -- control flow --------------------------------------------------------------------------
def unrolled(function: Callable[..., Any], *inputs: Any, loop: Callable[..., Any]) -> None:
    """A loop's value and gradient are those of the same lines written out."""
    pairs = []
    for f in (function, loop):
        value, grads = ost.value_and_grad(f, argnums=tuple(range(len(inputs))))(*inputs)
        pairs.append([np.asarray(value), *map(np.asarray, grads)])
    for a, b in zip(*pairs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    assert_same(
        ost.grad(loop, argnums=tuple(range(len(inputs)))),
        lambda *_: tuple(pairs[0][1:]),
        *inputs,
        rtol=1e-8,
        few=True,
    )


W = np.random.default_rng(0).normal(size=(3, 3)) / 2
XS = np.random.default_rng(1).normal(size=(4, 3))


def test_repeat_with_a_closure():
    def plain(x, w):
        for _ in range(4):
            x = ost.tanh(x @ w) + x
        return ost.sum(x * x)

    def loop(x, w):
        return ost.sum(ost.repeat(4, lambda s: ost.tanh(s @ w) + s, x) ** 2)

    unrolled(plain, X, W, loop=loop)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_with_several_carries_and_closures(reverse):
    def turn(carry, item, w):
        a, (n, b) = carry
        x, k = item
        a = ost.sin(a @ w) + x * k
        return (a, (n + 1, b * 0.9 + ost.sum(a))), {"y": a * b, "n": n}

    def total(a, b, y, n):
        return ost.sum(a) * b + ost.sum(y * y) + ost.sum(n.astype(float) * y.sum(1))

    def plain(x, w, xs):
        carry, ys, ns = (x, (ost.asarray(0), ost.asarray(1.0))), [], []
        rows = list(range(4))
        for k in reversed(rows) if reverse else rows:
            carry, out = turn(carry, (xs[k], 0.5 * k), w)
            ys.append(out["y"])
            ns.append(out["n"])
        if reverse:
            ys, ns = ys[::-1], ns[::-1]
        return total(carry[0], carry[1][1], ost.stack(ys), ost.stack(ns))

    def loop(x, w, xs):
        carry = (x, (ost.asarray(0), ost.asarray(1.0)))
        items = (xs, 0.5 * ost.arange(4.0))
        (a, (_, b)), out = ost.scan(lambda c, i: turn(c, i, w), carry, items, reverse=reverse)
        return total(a, b, out["y"], out["n"])

    unrolled(plain, X, W, XS, loop=loop)


def test_scan_inside_scan():
    def loop(x, w):
        def outer(s, row):
            t, _ = ost.scan(lambda t, k: (ost.sin(t * k + row), None), s, w[0])
            return t, t * row

        s, ys = ost.scan(outer, x, w)
        return ost.sum(s) + ost.sum(ys)

    def plain(x, w):
        total = 0.0
        for i in range(3):
            for k in range(3):
                x = ost.sin(x * w[0, k] + w[i])
            total = total + ost.sum(x * w[i])
        return ost.sum(x) + total

    unrolled(plain, X, W, loop=loop)


@pytest.mark.parametrize("flag", [True, False])
def test_cond_with_closures(flag):
    def plain(x, w):
        y = x * 2
        y = ost.sin(y) @ w if flag else y * w[0] + x
        return ost.sum(y * x)

    def loop(x, w):
        y = x * 2
        c = ost.sum(x) > 0 if flag else ost.sum(x) < 0
        y = ost.cond(c, lambda y: ost.sin(y) @ w, lambda y: y * w[0] + x, y)
        return ost.sum(y * x)

    assert X.sum() > 0
    unrolled(plain, X, W, loop=loop)


def test_cond_with_several_results_and_integers():
    def f(x, n):
        a, b, k = ost.cond(
            ost.sum(x) > 0,
            lambda x, n: (x * 2, ost.sum(x), n + 1),
            lambda x, n: (x, ost.sum(x * x), n),
            x,
            n,
        )
        return ost.sum(a) * b * k

    for sign in (1, -1):
        x = sign * X
        s = x.sum()
        wanted = 4 * 4 * s if sign > 0 else 3 * ((x * x).sum() + s * 2 * x)
        np.testing.assert_allclose(slope(f, x, np.int64(3)), wanted + 0 * x)


def test_loops_of_no_turns():
    np.testing.assert_allclose(slope(lambda x: ost.repeat(0, lambda s: s * s, x), X), 1)
    empty = np.zeros((0, 3))
    np.testing.assert_allclose(
        slope(lambda x: ost.scan(lambda s, y: (s * y, s), x, empty)[0], X), 1
    )


def test_second_derivatives_of_loops():
    for loop in (
        lambda x: ost.repeat(3, lambda s: ost.sin(s) * s, x),
        lambda x: ost.scan(lambda s, y: (s * y, ost.sin(s)), x, ost.asarray(XS))[1],
        lambda x: ost.cond(ost.sum(x) > 0, lambda x: x**3, lambda x: x, x),
    ):
        check(pullback(loop), X, rtol=1e-5)


# -- what has none -------------------------------------------------------------------------
NONE = [
    (lambda: ost.grad(lambda x: x)(X), r"gradient of <lambda>.*float64\[3\]; needed one real"),
    (lambda: ost.grad(lambda x: x.sum() * 1j)(X), "needed one real floating number; reduce it"),
    (
        lambda: ost.grad(lambda x: x.sum())(np.arange(3)),
        "argument 0 of dtype int64; needed a float",
    ),
    (lambda: ost.grad(lambda x: x["a"][0])({"a": [1]}), r"argument 0\['a'\]\[0\] of dtype int64"),
    (lambda: ost.grad(lambda x: x.sum(), argnums=1)(X), "argnums 1 of 1 arguments"),
    (lambda: ost.grad(lambda x: x.sum(), argnums="x")(X), "got argnums 'x' of 1 arguments"),
    (lambda: ost.grad(lambda x: None)(X), "got a result of type NoneType; needed one real"),
    (lambda: ost.grad(lambda x: x.sum(), has_aux=True)(X), "type Array; needed a pair: what to"),
    (
        lambda: ost.grad(ost.custom_gradient(lambda x: (x.sum(), lambda g: g)))(X),
        r"cotangent of shape \(\) for an argument of shape \(3,\)",
    ),
    (lambda: ost.vjp(lambda x: x, X)[1](np.ones(2)), r"shape \(2,\); needed shape \(3,\)"),
    (lambda: ost.vjp(lambda x: x, X)[1]((X,)), r"cotangents tuple.*the structure of the results"),
    (
        lambda: ost.grad(lambda x: ost.nextafter(x, 1.0).sum())(X),
        "nextafter.*an operation that has none",
    ),
    (
        lambda: ost.grad(lambda x: ost.while_loop(lambda s: s < 9, lambda s: s * 2, x))(1.0),
        "gradient of while_loop.*depends on data; needed a number known.*ost.repeat",
    ),
]


@pytest.mark.parametrize(("run", "text"), NONE, ids=[str(k) for k in range(len(NONE))])
def test_no_gradient(run, text):
    with pytest.raises(GradientError, match=text) as caught:
        run()
    assert f"test_gradients.py:{run.__code__.co_firstlineno}" in str(caught.value)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("exponent", ["uint8", "int8", ""])
def test_powers_of_0_are_flat(dtype: str, exponent: str) -> None:
    """Also of numbers whose inverse is infinite, and where one less than 0 is 255."""
    x = np.array(
        [np.finfo(dtype).smallest_subnormal, 2, 0, -3, np.inf, np.nan, np.finfo(dtype).max], dtype
    )
    y = np.zeros(x.shape, exponent or dtype)
    slope = np.asarray(ost.grad(lambda x: (x ** ost.asarray(y)).sum())(x))
    np.testing.assert_array_equal(slope, np.zeros(x.shape))


@pytest.mark.parametrize(
    ("name", "function", "at"),
    [
        ("logaddexp", lambda x: ost.logaddexp(x[0], x[1]), [0.0, 0.0]),
        ("logaddexp2", lambda x: ost.logaddexp2(x[0], x[1]), [1.0, 1.0]),
        ("logaddexp with a number", lambda x: ost.logaddexp(0, x).sum(), [0.0, 0.3]),
        ("sinc", lambda x: ost.sinc(x).sum(), [0.0, 0.01, 0.3]),
        ("pow by its exponent", lambda x: x[0] ** x[1], [2.0, 0.0]),
        ("pow at 0", lambda x: (x**2).sum(), [0.0, 1.0]),
        ("softplus", lambda x: ost.softplus(x).sum(), [0.0, 0.3]),
        ("logsumexp", lambda x: ost.logsumexp(x), [1.0, 1.0, 1.0]),
        ("prod", lambda x: ost.prod(x), [0.0, 0.0, 2.0]),
        ("det", lambda x: ost.linalg.det(x.reshape((2, 2))), [1.0, 2.0, 2.0, 4.0]),
        ("var", lambda x: ost.var(x), [1.0, 1.0, 1.0]),
    ],
)
def test_second_derivatives_where_values_are_special(name: str, function: Any, at: Any) -> None:
    """Ties and zeros are where a rule that was mended with `where` may lose what is behind it."""
    at, step = np.array(at), 1e-5
    slope = ost.grad(function)
    differences = [
        (np.asarray(slope(ost.asarray(at + d))) - np.asarray(slope(ost.asarray(at - d))))
        / (2 * step)
        for d in step * np.eye(at.size)
    ]
    np.testing.assert_allclose(
        ost.hessian(function)(ost.asarray(at)), differences, 1e-4, 1e-5, err_msg=name
    )
