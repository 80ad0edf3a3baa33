"""Loops of Python's that were recorded: stretches of many short operations are left to machine code."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.loops import flat, nest_kernels
from ostinato.runtime import bind, worker

import ostinato as ost
from ostinato.errors import BoundsError, LinAlgError
from tests.helpers import compare, on

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())
Step = Callable[[Any, dict[str, Any]], None]
SIZE = 9


def cholesky(a: Any, np: Any) -> Any:
    a = a.copy()
    for i in range(len(a)):
        for j in range(i):
            a[i, j] -= np.dot(a[i, :j], a[j, :j])
            a[i, j] /= a[j, j]
        a[i, i] -= np.dot(a[i, :i], a[i, :i])
        a[i, i] = np.sqrt(a[i, i])
    return np.tril(a)


def lines_of(session: Any, f: Any) -> int:
    """How many lines a worker runs for the last plan of a function."""
    (loaded,) = [p for p in session.engine.workers[0].kept_plans if p.plan is f.plan]
    return len(loaded.bound.source.splitlines())


def steps(number: int) -> list[Step]:
    """Steps of a random program: `step(np, state)`, of arrays under names."""
    rng = random.Random(number)

    def places() -> tuple[Any, Any]:
        n = rng.randint(1, SIZE - 1)
        begins = [rng.randint(0, SIZE - n) for _ in range(2)]
        return slice(begins[0], begins[0] + n), slice(begins[1], begins[1] + n)

    def make() -> Step:
        name, other = rng.choice("xy"), rng.choice("xy")
        to, at = places()
        i, j, k = (rng.randrange(SIZE) for _ in range(3))
        kind = rng.randrange(9)

        def step(np: Any, state: dict[str, Any]) -> None:
            x, y = state[name], state[other]
            match kind:
                case 0:
                    x[i, to] = 0.5 * y[at, j] + 0.25
                case 1:
                    x[i, j] = x[i, j] * 0.5 + np.tanh(y[j, k])
                case 2:
                    x[to, :] = 0.5 * (x[to, :] - y[at, :])
                case 3:
                    x[i, j] -= 0.125 * np.dot(y[j, to], x[i, at])
                case 4:
                    x[:, k] = np.where(y[:, i] > 0, y[j], x[:, k])
                case 5:
                    state[name] = np.sqrt(np.abs(x)) - 0.5
                case 6:
                    x[to, i] = x[to, i][::-1]
                case 7:
                    x[i] = np.sort(y[j])  # what kernels of NumPy's do
                case 8:
                    x[to, j] += y[at, k].sum() / SIZE

        return step

    kinds = [make() for _ in range(12)]
    return [rng.choice(kinds) for _ in range(90)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", range(3))
def test_random_steps(number: int, workers: int) -> None:
    program = steps(number)

    def function(x: Any, y: Any, np: Any) -> Any:
        state = {"x": x.copy(), "y": y.copy()}
        for step in program:
            step(np, state)
        return state["x"], state["y"]

    given = np.random.default_rng(number).normal(size=(2, SIZE, SIZE))
    with on(workers):
        f = ost.compile(lambda x, y: function(x, y, ost))
        arrays = [ost.asarray(x, split=0) for x in given]
        for _ in range(4):  # the third is timed
            made = f(*arrays)
            for got, wanted in zip(made, function(*given, np), strict=True):
                compare(got, wanted, "", 1e-12, 1e-12)
        assert len(f.plan.program.graph.nodes) > bind.STRETCHED_NODES


def test_an_unrolled_factorization_is_few_lines() -> None:
    x = np.random.default_rng(0).random((20, 20))
    x = x @ x.T + 20 * np.eye(20)
    with on() as session:
        f = ost.compile(lambda x: cholesky(x, ost))
        made = f(ost.asarray(x))
        np.testing.assert_allclose(np.asarray(made), np.linalg.cholesky(x), rtol=1e-12)
        assert len(f.plan.program.graph.nodes) > 1000
        assert lines_of(session, f) < 20
        again = f(ost.asarray(2 * x))  # other operands, other results: nothing of the first is left
        np.testing.assert_allclose(np.asarray(again), np.linalg.cholesky(2 * x), rtol=1e-12)
        np.testing.assert_allclose(np.asarray(made), np.linalg.cholesky(x), rtol=1e-12)


def test_what_fails_within_is_named() -> None:
    """Operations that may fail stand by themselves, with their line."""

    def function(x: Any, places: Any) -> Any:
        x = x.copy()
        for k in range(100):
            x[k % 5, 0] = x[k % 5, 1] * 0.5 + x[k % 4, 2]
        x = ost.take(x, places, axis=0)  # here
        return ost.linalg.cholesky(x @ x.T)

    with on():
        f, x = ost.compile(function), ost.zeros((5, 5))
        with pytest.raises(BoundsError, match=r"test_stretches.py:\d+"):
            np.asarray(f(x, ost.asarray([0, 1, 2, 3, 7])))
        with pytest.raises(LinAlgError, match=r"test_stretches.py:\d+"):
            np.asarray(f(x, ost.asarray([0, 1, 2, 3, 4])))


def _steps() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    rng = np.random.default_rng(0)
    x, c = rng.random((3000, 8)), rng.random((16, 8))

    def means(x: Any, c: Any) -> Any:
        near = ((x[:, None] - c) ** 2).sum(-1).argmin(1)
        ones = (near[:, None] == ost.arange(len(c))).astype(ost.float64)
        return (ones.T @ x) / ones.sum(0)[:, None]

    def turns(x: Any, c: Any) -> Any:
        y = ost.repeat(3, lambda y: ost.tanh(y @ x[:8]), c)
        return ost.cond(y.sum() > 0, lambda: ost.sort(y, axis=0), lambda: y)

    def unrolled(x: Any, c: Any) -> Any:
        y = c.copy()
        for k in range(1, 60):
            y[k % 16, k % 8] = y[(k - 1) % 16, k % 7] * 0.5 + x[k, 0]
        return ost.fft.fft(ost.exp(y)).real

    return {"means": (means, (x, c)), "turns": (turns, (x, c)), "unrolled": (unrolled, (x, c))}


@pytest.mark.parametrize("name", _steps())
def test_what_is_timed_is_made_of_nothing_new(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third call on nothing is bound, generated or chosen, also in the one with a clock."""
    function, given = _steps()[name]
    made: list[str] = []

    def counted(module: Any, what: str) -> None:
        before = getattr(module, what)
        monkeypatch.setattr(module, what, lambda *a, **k: (made.append(what), before(*a, **k))[1])

    with on() as session:
        f, arrays = ost.compile(function), [ost.asarray(x) for x in given]
        results = [np.asarray(f(*arrays)) for _ in range(2)]
        for module, what in ((worker, "bind"), (llvm, "_load_or_make"), (session.engine, "trials")):
            counted(module, what)
        counted(flat, "kernel_text")
        counted(nest_kernels, "nest_text")
        monkeypatch.setattr(worker, "WORTH_TIMING", 0.0)
        results += [np.asarray(f(*arrays)) for _ in range(8)]
        (loaded,) = [p for p in session.engine.workers[0].kept_plans if p.plan is f.plan]
        assert made == []
        assert loaded.rows
        assert {row.count for row in loaded.rows} <= {0, 1}  # of a branch one side runs
        assert sum(row.seconds for row in loaded.rows) > 0
        for again in results[1:]:
            np.testing.assert_array_equal(again, results[0])
