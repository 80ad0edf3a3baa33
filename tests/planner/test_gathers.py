"""Picking one element of each row, and adding to one, in kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import BoundsError
from tests import sessions
from tests.planner.test_nests import large, program_of

N, K = 600, 700
RNG = np.random.default_rng(11)
LOGITS = RNG.standard_normal((N, K))
LABELS = RNG.integers(0, K, N)


def loss(x: Any, y: Any) -> Any:
    return ost.nn.cross_entropy(x, y)


def loss_by_hand(x: Any, y: Any) -> Any:
    return -ost.nn.log_softmax(x)[ost.arange(x.shape[0]), y].mean()


def expected(x: Any, y: Any) -> tuple[Any, Any]:
    """The loss and its gradient."""
    e = np.exp(x - x.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    rows = np.arange(len(x))
    hot = np.zeros_like(x)
    hot[rows, y] = 1
    return -np.log(p[rows, y]).mean(), (p - hot) / len(x)


@pytest.mark.parametrize("function", [loss, loss_by_hand])
def test_cross_entropy_and_its_gradient_are_one_kernel(function: Any) -> None:
    forward = program_of(function, LOGITS, LABELS)
    assert [n.op for n in forward.nodes].count("fused_nest") == 1
    assert not large(forward, 8 * N)
    both = program_of(ost.value_and_grad(function), LOGITS, LABELS)
    assert large(both, 8 * N) == ["fused_nest"]
    (kernel,) = [n for n in both.nodes if n.op == "fused_nest"]
    assert sum(s.shape == (N, K) for s in kernel.specs) == 1
    with sessions.use():
        made = ost.compile(ost.value_and_grad(function))(LOGITS, LABELS)
    for y, z in zip(made, expected(LOGITS, LABELS), strict=True):
        np.testing.assert_allclose(np.asarray(y), z, rtol=1e-11, atol=1e-15)


def test_a_small_loss_behind_large_products_is_kernels() -> None:
    def network(w: Any, v: Any, x: Any, y: Any) -> Any:
        return loss(ost.nn.relu(x @ w) @ v, y)

    rng = np.random.default_rng(12)
    w, v, x = (rng.standard_normal(n) for n in ((200, 300), (300, 10), (64, 200)))
    y = rng.integers(0, 10, 64)
    slopes = ost.grad(network, (0, 1))
    ops = [n.op for n in program_of(slopes, w, v, x, y).nodes]
    assert ops.count("fused_nest") <= 3
    assert {n for n in ops if "matmul" not in n and "fused" not in n} <= {
        "check_bounds",
        "permute_dims",
    }
    h = np.maximum(x @ w, 0)
    g = expected(h @ v, y)[1]
    with sessions.use():
        made = ost.compile(slopes)(w, v, x, y)
    for given, wanted in zip(made, (x.T @ ((g @ v.T) * (h > 0)), h.T @ g), strict=True):
        np.testing.assert_allclose(np.asarray(given), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("workers", [2, 3])
def test_on_several_workers(workers: int) -> None:
    with sessions.use((workers,)):
        f = ost.compile(ost.value_and_grad(loss))
        made = f(ost.asarray(LOGITS, split=0), ost.asarray(LABELS, split=0))
        assert "fused_nest" in [n.op for n in f.plan.program.graph.nodes]
        for y, z in zip(made, expected(LOGITS, LABELS), strict=True):
            np.testing.assert_allclose(np.asarray(y), z, rtol=1e-11, atol=1e-15)


def test_labels_from_the_end() -> None:
    with sessions.use():
        f = ost.compile(ost.value_and_grad(loss))
        given = f(LOGITS, LABELS - K)
        for y, z in zip(given, expected(LOGITS, LABELS), strict=True):
            np.testing.assert_allclose(np.asarray(y), z, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("function", [loss, loss_by_hand, ost.value_and_grad(loss)])
@pytest.mark.parametrize("bad", [K, -K - 1])
def test_an_index_outside_is_refused_at_the_users_line(function: Any, bad: int) -> None:
    wrong = LABELS.copy()
    wrong[77] = bad
    with sessions.use():
        f = ost.compile(function)
        f(LOGITS, LABELS)
        assert "check_bounds" in [n.op for n in f.plan.program.graph.nodes]
        with pytest.raises(BoundsError, match=rf"take_along_axis \(.*py:\d+\): got index {bad} is"):
            np.asarray(f(LOGITS, wrong))  # on a GPU whoever reads is told


def test_indices_that_a_kernel_finds_are_inside() -> None:
    """The smallest distance, by its place; nobody has to look at places before."""

    def nearest(x: Any, c: Any, values: Any) -> Any:
        d = ((x[:, None, :] - c) ** 2).sum(-1)
        place = d.argmin(1)
        return ost.take_along_axis(d, place[:, None], axis=1)[:, 0] * values[place]

    x, c = RNG.standard_normal((2000, 8)), RNG.standard_normal((20, 8))
    values = RNG.standard_normal(20)
    graph = program_of(nearest, x, c, values)
    assert [n.op for n in graph.nodes] == ["fused_nest"]
    d = ((x[:, None, :] - c) ** 2).sum(-1)
    with sessions.use():
        made = np.asarray(ost.compile(nearest)(x, c, values))
    np.testing.assert_allclose(made, d.min(1) * values[d.argmin(1)], rtol=1e-12)


def test_a_shorter_table_than_there_are_places() -> None:
    """Then a place may be outside, and is looked at."""
    x = RNG.standard_normal((2000, 8))

    def f(x: Any, table: Any) -> Any:
        return table[(x * 2).argmax(1)] * x.sum(1)

    for n in (8, 3):
        table = np.arange(1.0, n + 1)
        with sessions.use():
            g = ost.compile(f)
            if n == 8:
                wanted = table[x.argmax(1)] * x.sum(1)
                np.testing.assert_allclose(np.asarray(g(x, table)), wanted, rtol=1e-12)
            else:
                with pytest.raises(BoundsError, match="take"):
                    np.asarray(g(x, table))


def test_embeddings_and_what_is_made_of_them_are_one_kernel() -> None:
    table, places = RNG.standard_normal((5000, 96)), RNG.integers(-5000, 5000, 900)
    shift = RNG.standard_normal((900, 96))

    def embed(table: Any, places: Any, shift: Any) -> Any:
        return ost.nn.layer_norm(table[places] * 3.0 + shift)

    graph = program_of(embed, table, places, shift)
    assert large(graph) == ["fused_nest"]
    x = table[places] * 3 + shift
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    with sessions.use():
        made = np.asarray(ost.compile(embed)(table, places, shift))
    np.testing.assert_allclose(made, wanted, rtol=1e-10, atol=1e-12)


def test_a_lookup_alone_stays_with_numpy() -> None:
    table, places = RNG.standard_normal((5000, 96)), RNG.integers(0, 5000, 900)
    assert [n.op for n in program_of(lambda t, i: t[i], table, places).nodes] == ["take"]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_other_axes(axis: int) -> None:
    x = RNG.standard_normal((40, 30, 50))
    shape = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
    places = RNG.integers(-x.shape[axis], x.shape[axis], shape)

    def f(x: Any, i: Any) -> Any:
        y = x - ost.log(ost.sum(ost.exp(x), axis=axis, keepdims=True))
        return ost.take_along_axis(y, i, axis=axis) * 2

    with sessions.use():
        made = ost.compile(f)(x, places)
        slope = ost.compile(ost.grad(lambda x, i: f(x, i).sum()))(x, places)
        assert np.asarray(slope).shape == x.shape
    y = x - np.log(np.exp(x).sum(axis, keepdims=True))
    np.testing.assert_allclose(
        np.asarray(made), np.take_along_axis(y, places, axis) * 2, rtol=1e-11, atol=1e-12
    )
    hot = np.zeros_like(x)
    np.put_along_axis(hot, places, 2.0, axis)
    soft = np.exp(x) / np.exp(x).sum(axis, keepdims=True)
    np.testing.assert_allclose(np.asarray(slope), hot - 2 * soft, rtol=1e-10, atol=1e-12)


def test_places_in_order_are_counted_only_if_they_are() -> None:
    """`x[i, y]` picks one of each row if i is 0, 1, 2, ...; else it does not."""
    x, y = RNG.standard_normal((5, 9)), np.array([3, 1, -1, 0, 8])
    with sessions.use():
        for i in (np.arange(5), np.array([0, 1, 2, 4, 3]), np.arange(5)[::-1], ost.arange(5)):
            made = np.asarray(ost.compile(lambda x, y, i=i: x[i, y])(x, y))
            np.testing.assert_array_equal(made, x[np.asarray(i), y])
        big = RNG.standard_normal((4, 5, 9, 2))
        made = np.asarray(ost.compile(lambda x, y: x[:, ost.arange(5), y])(big, y))
        np.testing.assert_array_equal(made, big[:, np.arange(5), y])
        made = np.asarray(ost.compile(lambda x, y: x[:, ost.arange(5) + 0, y + 0 * y])(big, y))
        np.testing.assert_array_equal(made, big[:, np.arange(5), y])


def test_the_source_says_where() -> None:
    with sessions.use():
        f = ost.compile(ost.value_and_grad(loss))
        f(LOGITS, LABELS)
        text = f.plan.source()
    assert "t13[i, j] at j = x1[i]" in text
    assert "added at j = x1[i]" in text
