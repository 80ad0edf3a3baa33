"""Loops and branches: values in every layout, structures of state, and what they refuse."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError, DTypeError, ShapeError, TracedValueError
from tests.helpers import assert_same

X = np.random.default_rng(0).normal(size=(5, 3))
W = np.random.default_rng(1).normal(size=(3, 3)) / 3


# -- repeat --------------------------------------------------------------------------------
@pytest.mark.parametrize("times", [0, 1, 2, 7])
def test_repeat(times):
    def plain(x, w):
        for _ in range(times):
            x = np.tanh(x @ w) + 1
        return x

    assert_same(lambda x, w: ost.repeat(times, lambda s: ost.tanh(s @ w) + 1, x), plain, X, W)


def test_repeat_reduces_over_workers_in_each_turn():
    def plain(x):
        for _ in range(4):
            x = x - x.mean(0) * 0.5 + x.max()
        return x

    assert_same(lambda x: ost.repeat(4, lambda s: s - s.mean(0) * 0.5 + s.max(), x), plain, X)


def test_power_iteration():
    a = X.T @ X

    def turn(v):
        u = a @ v if isinstance(v, np.ndarray) else ost.asarray(a) @ v
        return u / ((u * u).sum() ** 0.5)

    def plain(v):
        for _ in range(50):
            v = turn(v)
        return v

    assert_same(lambda v: ost.repeat(50, turn, v), plain, np.ones(3))


Point = namedtuple("Point", "x y")


@dataclass
class State:
    weights: Any
    steps: Any


def test_states_of_any_structure():
    def turn(s):
        p, q, d = s["p"], s["q"], s["d"]
        return {
            "p": Point(p.y, p.x + 1),
            "q": [q[0] * 2, (q[1][0] - 1, None)],
            "d": State(d.weights + p.x.sum(), d.steps + 1),
        }

    def start(x):
        return {"p": Point(x, x * 2), "q": [x, (x, None)], "d": State(x, x.sum() * 0)}

    def plain(x):
        s = start(x)
        for _ in range(3):
            s = turn(s)
        return s

    made = ost.repeat(3, turn, start(ost.asarray(X)))
    assert type(made["p"]) is Point
    assert type(made["d"]) is State
    assert made["q"][1][1] is None
    assert_same(lambda x: ost.repeat(3, turn, start(x)), plain, X)


def test_numbers_as_state():
    made = ost.repeat(3, lambda s: (s[0] + 1, s[1] * 2.5), (0, 1.0))
    assert (int(made[0]), float(made[1])) == (3, 2.5**3)
    assert (made[0].dtype, made[1].dtype) == (ost.int64, ost.float64)


def test_the_standards_repeat_is_another():
    assert_same(lambda x: ost.repeat(x, 2, axis=1), lambda x: np.repeat(x, 2, 1), X)


# -- scan ----------------------------------------------------------------------------------
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse):
    def plain(c, xs, w):
        ys, rows = [], range(len(xs))
        for k in reversed(rows) if reverse else rows:
            c = np.tanh(c @ w + xs[k])
            ys.append((c * 2, c.sum()))
        ys = ys[::-1] if reverse else ys
        return c, (np.stack([a for a, _ in ys]), np.stack([b for _, b in ys]))

    def loop(c, xs, w):
        def turn(c, x):
            c = ost.tanh(c @ w + x)
            return c, (c * 2, c.sum())

        return ost.scan(turn, c, xs, reverse=reverse)

    assert_same(loop, plain, X[0], X, W)


def test_scan_of_trees_and_lengths():
    state, ys = ost.scan(
        lambda s, x: (s + x["a"] * x["b"][0], {"s": s}),
        ost.zeros(3),
        {"a": ost.asarray(X), "b": [ost.arange(5.0)]},
    )
    np.testing.assert_allclose(np.asarray(state), (X * np.arange(5)[:, None]).sum(0))
    assert ys["s"].shape == (5, 3)
    state, ys = ost.scan(lambda s, x: (s * 2, (s, x)), 1.0, length=np.int64(4))
    assert (float(state), np.asarray(ys[0]).tolist(), ys[1]) == (16, [1, 2, 4, 8], None)
    state, ys = ost.scan(lambda s, x: (s, x * 2), 1.0, np.zeros((0, 3)))
    assert ys.shape == (0, 3)
    state, ys = ost.scan(lambda s, x: (s + x, None), 0.0, np.arange(4.0))
    assert (float(state), ys) == (6, None)


def test_a_loop_among_many_operands():
    """Operands have names as what is made on the way has; none is another's."""
    xs = [np.full((2, 3), float(k)) for k in range(60)]

    @ost.compile
    def f(xs):
        return ost.scan(lambda s, x: (s + 1, [a * 2 for a in x]), 0, xs)[1]

    for k, y in enumerate(f(xs)):
        assert np.array_equal(y, xs[k] * 2)


def test_scan_over_columns():
    """Whatever the split, each worker goes through all turns."""
    assert_same(
        lambda x: ost.scan(lambda s, row: (s + row, s * row), ost.zeros(3), x),
        lambda x: (x.sum(0), np.concatenate([np.zeros((1, 3)), x.cumsum(0)[:-1]]) * x),
        X,
    )


def test_loops_in_loops_and_branches():
    def plain(x):
        for _ in range(3):
            if x.sum() > 0:
                for _ in range(2):
                    x = x * 0.5 - 0.1
            else:
                x = x + 1
        return x

    def loop(x):
        def turn(s):
            return ost.cond(
                s.sum() > 0,
                lambda s: ost.repeat(2, lambda t: t * 0.5 - 0.1, s),
                lambda s: s + 1,
                s,
            )

        return ost.repeat(3, turn, x)

    for x in (X, -X, X * 10):
        assert_same(loop, plain, x, few=True)


# -- while ---------------------------------------------------------------------------------
def test_while():
    def plain(x, limit):
        n = 0
        while np.abs(x).sum() < limit and n < 6:
            x, n = x * 1.5 + 0.01, n + 1
        return x, np.int64(n)

    def loop(x, limit):
        return ost.while_loop(
            lambda s: ost.abs(s[0]).sum() < limit,
            lambda s: (s[0] * 1.5 + 0.01, s[1] + 1),
            (x, 0),
            most=6,
        )

    for limit in (0.0, 30.0, 50.0, 1e9):
        assert_same(loop, plain, X, np.float64(limit), few=limit != 50)


def test_newtons_method():
    root = ost.while_loop(
        lambda s: ost.abs(s * s - 2) > 1e-12, lambda s: s - (s * s - 2) / (2 * s), 1.0
    )
    assert float(root) == pytest.approx(2**0.5, rel=1e-12)


# -- cond ----------------------------------------------------------------------------------
def test_only_one_side_runs():
    """The other side would look outside of its array."""
    i = ost.asarray([9])
    made = ost.cond(ost.asarray(True), lambda x: x[0], lambda x: ost.take(x, i, axis=0)[0], X)
    np.testing.assert_array_equal(np.asarray(made), X[0])


def test_cond_takes_what_is_around_it():
    def loop(x, w):
        big = w * 10
        return ost.cond(x[0, 0] > 0, lambda: x @ w, lambda: x @ big)

    assert_same(loop, lambda x, w: x @ w if x[0, 0] > 0 else x @ (w * 10), X, W)
    assert_same(loop, lambda x, w: x @ w if x[0, 0] > 0 else x @ (w * 10), -X, W)


@pytest.mark.parametrize("numerics", ["same-plan", "any-workers"])
def test_what_only_one_side_of_a_branch_in_a_loop_reads_in_parts(numerics):
    def loop(x, v):
        def turn(s):
            return ost.cond(s.sum() > 0, lambda s: s - 0.4, lambda s: s + x.T @ (x @ s), s)

        return ost.repeat(3, turn, v)

    def plain(x, v):
        for _ in range(3):
            v = v - 0.4 if v.sum() > 0 else v + x.T @ (x @ v)
        return v

    for sign in (-1, 1):
        assert_same(loop, plain, X, sign * np.ones(3), numerics=numerics)


def test_conditions_may_be_python_bools():
    for flag in (True, False):
        made = ost.cond(flag, lambda x: x + 1, lambda x: x - 1, ost.asarray(X))
        np.testing.assert_array_equal(np.asarray(made), X + 1 if flag else X - 1)


# -- what is wrong -------------------------------------------------------------------------
A = ost.ones((2, 3))
WRONG = [
    (lambda: ost.repeat(-1, lambda s: s, A), ArgumentError, "repeat.*-1; needed .* 0 or more"),
    (lambda: ost.repeat(2.5, lambda s: s, A), ArgumentError, "repeat.*2.5; needed a whole number"),
    (
        lambda: ost.scan(lambda s, x: (s, x), A, length=-3),
        ArgumentError,
        "scan.*needed .* 0 or more",
    ),
    (lambda: ost.scan(lambda s, x: (s, x), A, length=2.5), ArgumentError, "scan.*a whole number"),
    (
        lambda: ost.repeat(2, lambda s: s[:1], A),
        ShapeError,
        r"state of shape \(2, 3\) going in and \(1, 3\) coming out",
    ),
    (
        lambda: ost.repeat(2, lambda s: {"a": s["a"] / 2}, {"a": ost.asarray(1)}),
        DTypeError,
        r"state\['a'\] of dtype int64 going in and float64 coming out.*astype\(ost.float64\)",
    ),
    (lambda: ost.repeat(2, lambda s: (s, s), A), ArgumentError, "the structure that goes in"),
    (
        lambda: ost.repeat(lambda s: s / 2, 2, A),
        ArgumentError,
        r"a function in the place of the number of turns.*write repeat\(n, function, state\)",
    ),
    (lambda: ost.scan(lambda s, x: (s, x), A), ShapeError, "scan.*a common first axis, or length"),
    (
        lambda: ost.scan(lambda s, x: (s, x), A, (A, A[0])),
        ShapeError,
        r"scan.*\(2, 3\) and \(3,\)",
    ),
    (lambda: ost.scan(lambda s, x: (s, x), A, A, length=3), ShapeError, "scan.*and length=3"),
    (lambda: ost.scan(lambda s, x: (s, x), A, 1.0), ShapeError, "scan.*a common first axis"),
    (
        lambda: ost.scan(lambda s, x: s, A, A),
        ArgumentError,
        "scan.*needed a pair: the state after the turn, and what it yields",
    ),
    (lambda: ost.while_loop(lambda s: s, lambda s: s, A), DTypeError, "needed one bool; use .all"),
    (
        lambda: ost.while_loop(lambda s: s.any(), lambda s: s, A > 0, most=-1),
        ArgumentError,
        "while_loop.*got -1; needed a whole number of 0 or more",
    ),
    (
        lambda: ost.while_loop(lambda s: s.all(), lambda s: s[0], A > 0),
        ShapeError,
        "state of shape",
    ),
    (lambda: ost.cond(A > 0, lambda: A, lambda: A), DTypeError, r"cond.*a condition bool\[2,3\]"),
    (
        lambda: ost.cond(True, lambda: A, lambda: A[0]),
        ShapeError,
        r"float64\[2,3\] from one side and .*float64\[3\] from the other",
    ),
    (
        lambda: ost.repeat(2, lambda s: s if s.sum() > 0 else -s, A),
        TracedValueError,
        "bool.*while repeat is traced.*ost.where or ost.cond",
    ),
]


@pytest.mark.parametrize(("run", "error", "text"), WRONG, ids=[str(k) for k in range(len(WRONG))])
def test_wrong(run, error, text):
    with pytest.raises(error, match=text) as caught:
        run()
    first = run.__code__.co_firstlineno
    lines = [f"test_control.py:{n})" for n in range(first, first + 2)]
    assert any(line in str(caught.value) for line in lines)
