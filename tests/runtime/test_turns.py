"""Loops whose turns need no Python: as NumPy does them turn by turn, for any bodies, counts and workers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.sequence import sequence
from ostinato.planner.cpu import fuse

import ostinato as ost
from ostinato.errors import NaNError
from tests import sessions
from tests.helpers import counts_traces

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())
ALL = mock.patch.multiple(fuse, WORTH=1, BESIDE=1)  # everything becomes kernels
TURNS = 9000
N = 5  # of vectors; matrices are N x N
Step = Callable[[Any, Any, list[Any]], list[Any]]


def bodies(seed: int, states: int, length: int) -> Step:
    """A random turn over vectors, matrices and numbers: `step(xp, x, state)`, whose values stay small."""

    def step(xp: Any, x: Any, state: list[Any]) -> list[Any]:
        rng = np.random.default_rng(seed)
        values = [*state, x]
        for _ in range(length):
            a, b = (values[k] for k in rng.integers(0, len(values), 2))
            matrices = [v for v in values if v.ndim == 2]
            vectors = [v for v in values if v.ndim == 1]
            match rng.integers(0, 9):
                case 0:
                    made = xp.tanh(a + b * 0.5)
                case 1:
                    made = xp.where(a > b, a, b * 0.25)
                case 2 if matrices and vectors:
                    made = xp.tanh(matrices[0] @ vectors[-1])
                case 3 if matrices:
                    made = xp.tanh(matrices[-1] @ matrices[0].T)
                case 4 if vectors:
                    made = xp.roll(vectors[0], int(rng.integers(1, N)))
                case 5 if vectors:
                    v = vectors[-1]
                    made = xp.concat([v[2:], v[:2] * 0.5])
                case 6 if matrices:
                    made = xp.sum(matrices[-1], axis=0) / N
                case 7 if matrices:
                    made = xp.max(matrices[0])
                case _:
                    made = xp.exp(-a * a)
            values.append(made)
        ends = [next((v for v in reversed(values) if v.shape == s.shape), s) for s in state]
        return [e * 0.9 for e in ends]

    return step


def start(seed: int, states: int) -> list[Any]:
    rng = np.random.default_rng((seed, 1))
    shapes = [(N,), (N, N), (), (N,)][:states]
    return [rng.standard_normal(s) for s in shapes]


def by_hand(step: Step, xs: Any, state: list[Any], reverse: bool) -> tuple[list[Any], list[Any]]:
    made: list[Any] = [None] * len(xs)
    for k in reversed(range(len(xs))) if reverse else range(len(xs)):
        with np.errstate(all="ignore"):
            state = [np.asarray(v) for v in step(np, xs[k], state)]
        made[k] = state[0]
    return state, made


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    states=st.integers(1, 4),
    length=st.integers(1, 6),
    turns=st.sampled_from([1, 2, 3, 40]),
    reverse=st.booleans(),
    workers=st.sampled_from([1, 1, 2]),
)
def test_random_loops(
    seed: int, states: int, length: int, turns: int, reverse: bool, workers: int
) -> None:
    step, state = bodies(seed, states, length), start(seed, states)
    xs = np.random.default_rng((seed, 2)).standard_normal((turns, N))
    wanted, rows = by_hand(step, xs, state, reverse)

    def loop(state: Any, xs: Any) -> Any:
        def turn(state: Any, x: Any) -> Any:
            ends = step(ost, x, state)
            return ends, ends[0]

        return ost.scan(turn, state, xs, reverse=reverse)

    with sessions.use((workers,)), ALL:
        ends, made = ost.compile(loop)(state, xs)
        for y, z in zip([*ends, made], [*wanted, np.stack(rows)], strict=True):
            np.testing.assert_allclose(np.asarray(y), z, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    states=st.integers(1, 3),
    turns=st.integers(0, 7),
    most=st.sampled_from([None, 0, 3, 4]),
)
def test_random_loops_that_end_when_they_end(
    seed: int, states: int, turns: int, most: int | None
) -> None:
    step, state = bodies(seed, states, 4), start(seed, states)
    x = np.full(N, 0.3)
    wanted, _ = by_hand(step, [x] * min(turns, turns if most is None else most), state, False)

    def loop(state: Any, x: Any) -> Any:
        def turn(s: Any) -> Any:
            return s[0] + 1, step(ost, x, s[1])

        return ost.while_loop(lambda s: s[0] < turns, turn, (ost.zeros(()), state), most=most)[1]

    with sessions.use(), ALL:
        for y, z in zip(ost.compile(loop)(state, x), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(y), z, rtol=1e-9, atol=1e-12)


def lorenz(s: Any) -> Any:
    x, y, z = s
    return x + 0.01 * 10 * (y - x), y + 0.01 * (x * (28 - z) - y), z + 0.01 * (x * y - 8 / 3 * z)


def relaxed(u: Any) -> Any:
    return ost.pad((u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]) * 0.25, 1)


def inside(u: Any) -> Any:
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    u = u.at[1:-1, 1:-1].set(around / 4)
    return u.at[0].set(u[1]).at[:, -1].set(u[:, -2])


def filtered(xs: Any) -> Any:
    def turn(s: Any, x: Any) -> Any:
        s = 0.9 * s + 0.1 * x
        return s, s

    return ost.scan(turn, ost.zeros(()), xs)[1]


def newton(a: Any) -> Any:
    return ost.while_loop(lambda x: ost.max(abs(x * x - a)) > 1e-9, lambda x: (x + a / x) / 2, a)


def one_after_another(a: Any, b: Any) -> Any:
    def turn(s: Any) -> Any:
        x, k = s
        x = x.at[k].set((b[k] - (a[k] * x).sum() + a[k, k] * x[k]) / a[k, k])
        return x, (k + 1) % 20

    return ost.repeat(2000, turn, (b * 0, ost.asarray(0)))[0]


def kalman(f: Any, h: Any, zs: Any) -> Any:
    def turn(s: Any, z: Any) -> Any:
        x, p = s
        x, p = f @ x, f @ p @ f.T + 0.1 * ost.eye(4)
        gain = ost.linalg.solve(h @ p @ h.T + ost.eye(2), h @ p).T
        x = x + gain @ (z - h @ x)
        return (x, p - gain @ (h @ p)), x

    return ost.scan(turn, (ost.zeros(4, dtype=f.dtype), ost.eye(4, dtype=f.dtype)), zs)[1]


ones = np.ones(())
LOOPS: dict[str, tuple[Any, list[Any]]] = {
    "lorenz": (lambda *s: ost.repeat(2000, lorenz, s), [ones, ones, ones]),
    "stencil": (lambda u: ost.repeat(2000, relaxed, u), [np.eye(20)]),
    "inside": (lambda u: ost.repeat(2000, inside, u), [np.eye(20)]),
    "inside, complex": (lambda u: ost.repeat(2000, inside, u), [np.eye(20) * 1j]),
    "power": (
        lambda a, v: ost.repeat(2000, lambda v: (a @ v) / ost.sqrt(ost.sum(v * v)), v),
        [np.eye(20) * 0.5, np.ones(20)],
    ),
    "wave": (
        lambda u: ost.repeat(2000, lambda u: (ost.roll(u, 1) + ost.roll(u, -1)) / 2, u),
        [np.arange(30.0)],
    ),
    "filter": (filtered, [np.ones(2000)]),
    "kalman": (kalman, [np.eye(4) * 0.9, np.arange(8.0).reshape(2, 4), np.ones((2000, 2))]),
    "seidel": (one_after_another, [np.eye(20) * 9 + 1, np.arange(20.0)]),
    "newton": (newton, [np.arange(1.0, 20.0)]),
}


def python_calls(f: Callable[[], Any]) -> int:
    """Of any function, while this is done."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        f()
    finally:
        sys.setprofile(None)
    return count


@counts_traces
@pytest.mark.parametrize("name", LOOPS)
def test_turns_need_no_python(name: str) -> None:
    f, given = LOOPS[name]
    with sessions.use():
        compiled = ost.compile(f)
        given = [ost.asarray(x) for x in given]
        compiled(*given)
        assert python_calls(lambda: compiled(*given)) < 200
        if name == "seidel":
            np.testing.assert_allclose(given[0] @ compiled(*given), given[1], rtol=1e-9, atol=1e-9)


def test_a_nan_is_looked_for_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ost.settings, "check_nan", True)
    with sessions.use(), pytest.raises(NaNError):
        np.asarray(ost.compile(lambda x: ost.repeat(500, lambda x: ost.log(x), x))(ost.ones(3) * 9))


def test_a_loop_is_timed_as_a_whole() -> None:
    x = np.eye(20)
    with sessions.use():
        f = ost.compile(lambda u: ost.sin(ost.repeat(TURNS, relaxed, u)))
        f(x)
        assert max(python_calls(lambda: f(x)) for _ in range(4)) < TURNS
        (line,) = [s for s in f.plan.explain().splitlines() if s.startswith("loop as one kernel")]
        assert line.count("µs") + line.count(" ms") == 2


def test_what_is_no_array_is_refused() -> None:
    made = sequence([], 1)
    with pytest.raises(TypeError, match="two numbers and arrays"):
        made.run(0, 1)
    made.run(0, 3, np.zeros(1))
    assert made.state.tolist() == [3, 0]


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_what_is_drawn_in_turns_depends_on_no_layout(kind: str) -> None:
    def walk(x: Any) -> Any:
        def step(s: Any, _: Any) -> tuple[Any, Any]:
            drawn = getattr(ost.random, kind)((6,))
            return s + drawn, drawn

        return ost.scan(step, x, length=TURNS)

    found = []
    for workers in (1, 3):
        with sessions.use((workers,)):
            ost.random.seed(3)
            f = ost.compile(walk)
            x = ost.asarray(np.zeros(6, np.float32), split=0 if workers > 1 else None)
            end, drawn = (np.asarray(y) for y in f(x))
            if workers == 1:
                assert not np.array_equal(np.asarray(f(x)[1]), drawn)  # the next seed
                f(x)  # what the third run makes, it makes once
                assert max(python_calls(lambda f=f, x=x: f(x)) for _ in range(4)) < TURNS
        assert np.unique(drawn).size > 0.99 * drawn.size
        np.testing.assert_allclose(drawn.sum(0), end, rtol=1e-4, atol=1e-4)
        found.append(drawn)
    assert found[0].tobytes() == found[1].tobytes()
    mean, width = (0.0, 1.0) if kind == "normal" else (0.5, 12**-0.5)
    assert abs(found[0].mean() - mean) < 5 * width / found[0].size ** 0.5
    assert abs(found[0].std() - width) < 0.05


@pytest.mark.parametrize("index", [np.int64(20), np.array([3, -21])])
def test_places_outside_are_found_in_any_turn(index: Any) -> None:
    x = np.arange(20.0)
    with sessions.use():
        f = ost.compile(lambda x, k: ost.repeat(300, lambda s: s * 0.5 + ost.exp(x[k]).sum(), x))
        f(x, np.zeros_like(index))
        with pytest.raises(ost.errors.BoundsError, match="out of bounds for an axis with 20"):
            np.asarray(f(x, index))
