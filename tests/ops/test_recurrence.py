"""LSTM, GRU and plain recurrent networks against NumPy's loop over samples and times."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError, ShapeError
from tests.helpers import assert_same, on

from .test_gradients import check, pullback

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def turn(name: str, x: Any, h: Any, c: Any, one: Any, **how: Any) -> tuple[Any, Any]:
    """One sample at one time, with PyTorch's names: reset r, update z, new n."""
    w, u, b, bu = one
    a, s, m = w @ x + b, u @ h + bu, len(h)
    if name == "lstm":
        i, f, g, o = np.split(a + s, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    if name == "rnn":
        return np.tanh(a + s) if how.get("activation") != "relu" else np.maximum(a + s, 0), c
    r, z = (sigmoid(a[k : k + m] + s[k : k + m]) for k in (0, m))
    if how.get("linear_before_reset", True):
        n = np.tanh(a[2 * m :] + r * s[2 * m :])
    else:
        n = np.tanh(a[2 * m :] + u[2 * m :] @ (r * h) + bu[2 * m :])
    return (1 - z) * n + z * h, c


def whole(
    name: str, x: Any, weights: Any, h0: Any, c0: Any, both: bool, lengths: Any, **how: Any
) -> Any:
    """Of (samples, time, features): results, and last states of all layers and directions."""
    hs, cs = [], []
    for k in range(0, len(weights), 1 + both):
        made = []
        for j in range(1 + both):
            one = weights[k + j]
            y = np.zeros((*x.shape[:2], one[1].shape[1]))
            ends = []
            for i in range(len(x)):
                h, c = h0[k + j, i], c0[k + j, i]
                times = range(lengths[i])
                for t in reversed(times) if j else times:
                    h, c = turn(name, x[i, t], h, c, one, **how)
                    y[i, t] = h
                ends.append((h, c))
            hs.append([h for h, _ in ends])
            cs.append([c for _, c in ends])
            made.append(y)
        x = np.concatenate(made, 2)
    last = np.array(hs), np.array(cs)
    return x, last if name == "lstm" else last[0]


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("seed", range(3))
def test_against_the_loop(name: str, seed: int) -> None:
    draw = random.Random(f"{name}{seed}")
    rng = np.random.default_rng(seed)
    both, layers = bool(seed % 2), draw.randint(1, 2)
    samples, long, features, size = 3, draw.randint(2, 5), draw.randint(1, 3), draw.randint(1, 3)
    rows = GATES[name] * size
    weights = []
    for k in range(layers):
        for _ in range(1 + both):
            many = features if k == 0 else size * (1 + both)
            shapes = (rows, many), (rows, size), (rows,), (rows,)
            weights.append(tuple(rng.normal(size=s) for s in shapes))
    x = rng.normal(size=(samples, long, features))
    h, c = rng.normal(size=(2, len(weights), samples, size))
    given = seed != 1
    lengths = np.array([draw.randint(0, long) for _ in range(samples)]) if seed else None
    how: dict[str, Any] = {}
    if name == "gru":
        how["linear_before_reset"] = seed != 2
    if name == "rnn":
        how["activation"] = ("tanh", "relu")[seed == 2]

    def function(x: Any, h: Any, c: Any, *flat: Any, **more: Any) -> Any:
        ws = [flat, *weights[1:]]
        start = None if not given else (h, c) if name == "lstm" else h
        p = {"bidirectional": both, "lengths": lengths, **how, **more}
        return getattr(ost.nn, name)(x, ws, start, **p)

    def reference(x: Any, h: Any, c: Any, *flat: Any) -> Any:
        ends = np.full(samples, long) if lengths is None else lengths
        return whole(name, x, weights, h * given, c * given, both, ends, **how)

    flat = weights[0]
    begin = lambda x, h, c: function(x, h, c, *flat)  # noqa: E731
    assert_same(begin, reference, x, h, c, few=True, meshes=(((3,), 2),))
    begin = lambda x, w, u: function(x, h, c, w, u, *flat[2:])  # noqa: E731
    wanted = lambda x, *_: reference(x, h, c)  # noqa: E731
    assert_same(begin, wanted, x, *flat[:2], few=True, meshes=(((2, 2), 2),))
    with on(1):
        check(function, x, h, c, *flat, rtol=1e-5)
        if not seed:
            check(pullback(function), x, h, c, *flat, rtol=1e-5)
            two = ost.vmap(lambda x: function(x, h, c, *flat)[0])(np.stack([x, -x]))
            np.testing.assert_allclose(np.asarray(two)[1], reference(-x, h, c)[0])
        y = function(np.moveaxis(x, 0, 1), h, c, *flat, layout="TNC")[0]
        np.testing.assert_allclose(np.moveaxis(np.asarray(y), 0, 1), reference(x, h, c)[0])


def test_biases_that_are_left_out_or_added_before() -> None:
    rng = np.random.default_rng(5)
    x, zero = rng.normal(size=(2, 4, 3)), np.zeros(8)
    w, u, a, b = (rng.normal(size=s) for s in ((8, 3), (8, 2), (8,), (8,)))
    for less, more in (((w, u), (w, u, zero, zero)), ((w, u, a + b), (w, u, a, b))):
        found, wanted = (np.asarray(ost.nn.lstm(x, [one])[0]) for one in (less, more))
        np.testing.assert_allclose(found, wanted)


@pytest.mark.parametrize("name", GATES)
def test_a_turn_multiplies_the_state_alone(name: str) -> None:
    """Inputs are multiplied for all times at once, and a turn is one product and one kernel. States of halves
    are float32."""
    rng = np.random.default_rng(5)
    rows = 16 * GATES[name]
    weights = [(rng.normal(size=(rows, 8)) / 4, rng.normal(size=(rows, 16)) / 4, np.zeros(rows))]
    x = rng.normal(size=(32, 30, 8))
    with on(1):
        made = ost.compile(lambda x: getattr(ost.nn, name)(x, weights)[0])
        exact = np.asarray(made(ost.asarray(x)))
        nodes = made.plan.traced.nodes
        (loop,) = [n for n in nodes if n.op == "loop"]
        for part in (nodes, loop.kw["body"].nodes):
            assert [n.op for n in part].count("matmul") == 1
        (loop,) = [n for n in made.plan.program.graph.nodes if "loop" in n.op]
        if loop.op == "loop":  # or else all turns are one kernel
            ops = [n.op for n in loop.kw["body"].nodes if n.op not in ("slice", "permute_dims")]
            assert len(ops) <= 3
        half = getattr(ost.nn, name)(ost.asarray(x, dtype="float16"), weights)[0]
        assert half.dtype == ost.float16
        np.testing.assert_allclose(np.asarray(half).astype(float), exact, 5e-3, 5e-3)


@pytest.mark.parametrize("both", [False, True])
def test_what_a_layer_gives_the_next_one_is_dropped(both: bool) -> None:
    """Of layers that give back what they get, all is seen: the rate, a mask for each, the scale, and that
    nothing is dropped behind the last one."""
    same, apart = np.eye(6), np.eye(6)
    if both:  # each direction gives one half, and gets both
        same, apart = np.eye(12), np.eye(12).reshape(2, 6, 12)
    x = np.random.default_rng(1).uniform(1, 2, (7, 30, len(same)))

    def run(layers: int, rate: float, seed: Any, **how: Any) -> Any:
        one = [(w, np.zeros((6, 6))) for w in (apart if both else [apart])]
        return np.asarray(
            ost.nn.rnn(
                x, one * layers, activation="relu", bidirectional=both, dropout=rate, seed=seed, **how
            )[0]
        )  # fmt: skip

    for layers, rate in ((1, 0.5), (2, 0.25), (3, 0.5)):
        made = []
        for workers in (1, 3):
            with on(workers):
                made.append(run(layers, rate, 3) / x)
        np.testing.assert_array_equal(*made)
        scale = (1 - rate) ** (1 - layers)
        assert set(np.unique(made[0].round(9))) <= {0.0, round(scale, 9)}
        assert (made[0] > 0).mean() == pytest.approx(1 / scale, abs=0.06)
    assert not np.array_equal(run(2, 0.5, 3), run(2, 0.5, 4))
    assert not np.array_equal(run(2, 0.5, None), run(2, 0.5, None))


@pytest.mark.parametrize("kind", [ost.nn.LSTM, ost.nn.GRU])
def test_layers_with_dropout(kind: Any) -> None:
    model = kind(3, 4, layers=3, bidirectional=True, dropout=0.4).init(seed=2, dtype="float64")
    plain = model.replace(dropout=0.0)
    x = np.random.default_rng(2).normal(size=(5, 6, 3))
    close = np.testing.assert_allclose
    runs = []
    for workers in (1, 3):
        with on(workers):
            y, states = model(x, train=True, key=7)
            runs.append((np.asarray(y), np.asarray(states[0])))
            close(model(x)[0], plain(x)[0])
            assert not np.allclose(runs[-1][0], model(x)[0])
            assert not np.allclose(runs[-1][0], model(x, train=True, key=8)[0])
    for a, b in zip(*runs, strict=True):
        close(a, b)
    with on(1):
        close(model.replace(layers=1)(x, train=True)[0], plain.replace(layers=1)(x)[0])
        names = ("weight_ih_l0", "weight_hh_l1", "weight_ih_l2_reverse")
        of = lambda x, *w: model.replace(**dict(zip(names, w, strict=True)))(  # noqa: E731
            x, train=True, key=7
        )[0]
        check(of, x, *(np.asarray(getattr(model, n)) for n in names), rtol=1e-5)
        one_way = kind(3, 4, layers=2, dropout=0.4).init(dtype="float64")
        first, states = one_way(x[:, :2])
        rest, _ = one_way(x[:, 2:], states)
        close(np.concatenate([first, rest], 1), one_way(x)[0])
        zeros = ost.tree_map(ost.zeros_like, states)
        close(one_way(x, zeros, train=True, key=1)[0], one_way(x, train=True, key=1)[0])


X, W = ost.ones((2, 4, 3)), (ost.ones((8, 3)), ost.ones((8, 2)))
WRONG = [
    (lambda: ost.nn.lstm(X[0], [W]), ArgumentError, "layout='NTC' of 2 axes; needed 'NTC' or"),
    (lambda: ost.nn.lstm(X, [W], bidirectional=True), ArgumentError, "1 tuples .* and direction"),
    (lambda: ost.nn.gru(X, [W]), ShapeError, r"shapes \(8, 3\), \(8, 2\); needed \(3 \* size, 3\)"),
    (lambda: ost.nn.lstm(X, [(*W, ost.ones(4))]), ShapeError, "one or two biases of 4"),
    (
        lambda: ost.nn.lstm(X, [W], (ost.ones((2, 2)), ost.ones((2, 2)))),
        ShapeError,
        r"an initial state .*; needed shape \(1, 2, 2\)",
    ),
    (lambda: ost.nn.LSTM(3, 2, dropout=1.0), ArgumentError, "LSTM.*got rate 1.0; needed 0 <= rate"),
    (
        lambda: ost.nn.lstm(X, [W, (ost.ones((8, 2)),) * 2], dropout=-1),
        ArgumentError,
        "dropout.*got rate -1; needed 0 <= rate < 1",
    ),
    (lambda: ost.nn.rnn(X, [W], activation="erf"), ArgumentError, "activation='erf'; needed"),
]


@pytest.mark.parametrize(("run", "error", "text"), WRONG, ids=[str(k) for k in range(len(WRONG))])
def test_wrong(run: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        run()
    assert f"test_recurrence.py:{run.__code__.co_firstlineno}" in str(caught.value)
