"""Loops as one kernel: what they compute, and which loops are."""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS as ost_ops
from ostinato.ops.core.spec import Spec, float64
from ostinato.ops.cpu.loops import loop_kernel, loop_writer
from ostinato.ops.flow.control import ONE_KERNEL, WHOLE
from ostinato.planner.cpu import loop_kernels

import ostinato as ost
from ostinato.errors import BoundsError, OstinatoError
from tests import sessions

N, M = 5, 7
Text = list[tuple[Any, ...]]


class Plain:
    """NumPy as arrays that do not change."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def put(self, x: Any, key: Any, v: Any, mode: str) -> Any:
        made = np.array(x)
        if mode == "set":
            made[key] = v
        else:
            {"add": np.add, "max": np.maximum, "multiply": np.multiply}[mode].at(made, key, v)
        return made

    def repeat(self, count: int, step: Callable[..., Any], state: Any) -> Any:
        for _ in range(count):
            state = step(state)
        return state

    def scan(self, step: Callable[..., Any], state: Any, xs: Any, reverse: bool) -> Any:
        made = []
        order = range(len(xs))
        for k in reversed(order) if reverse else order:
            state, y = step(state, xs[k])
            made.append(y)
        return state, np.stack(made[::-1] if reverse else made)

    def while_loop(
        self, on: Callable[..., Any], step: Callable[..., Any], state: Any, most: int | None
    ) -> Any:
        for _ in itertools.count() if most is None else range(most):
            if not on(state):
                break
            state = step(state)
        return state

    def cond(self, test: Any, yes: Callable[..., Any], no: Callable[..., Any], *xs: Any) -> Any:
        return (yes if test else no)(*xs)


class Ours:
    def __getattr__(self, name: str) -> Any:
        return getattr(ost, name)

    def put(self, x: Any, key: Any, v: Any, mode: str) -> Any:
        return getattr(x.at[key], mode)(v)

    def scan(self, step: Callable[..., Any], state: Any, xs: Any, reverse: bool) -> Any:
        return ost.scan(step, state, xs, reverse=reverse)

    def while_loop(
        self, on: Callable[..., Any], step: Callable[..., Any], state: Any, most: int | None
    ) -> Any:
        return ost.while_loop(on, step, state, most=most)


# What a turn may do, by the kinds of its operands: a number, an index, rows of N and M, a table.
RULES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "add": ("s s", "s", lambda xp, a, b: xp.tanh(a + b)),
    "next": ("i", "i", lambda xp, i: (i * 3 + 1) % N),
    "back": ("i", "i", lambda xp, i: i % N - N),
    "larger": ("s s i", "i", lambda xp, a, b, i: xp.where(a > b, i, 0)),
    "first": ("n", "i", lambda xp, a: xp.argmax(a)),
    "sum": ("n", "s", lambda xp, a: xp.tanh((a * a).sum() / N)),
    "mean": ("t", "s", lambda xp, t: t.mean()),
    "most": ("m", "s", lambda xp, a: a.max()),
    "dot": ("m m", "s", lambda xp, a, b: xp.tanh(a @ b / M)),
    "element": ("n i", "s", lambda xp, a, i: a[i]),
    "cell": ("t i i", "s", lambda xp, t, i, j: t[i, j]),
    "row": ("t i", "m", lambda xp, t, i: t[i]),
    "column": ("t i", "n", lambda xp, t, i: t[:, i]),
    "scaled": ("n s", "n", lambda xp, a, s: 0.5 * a + 0.5 * s),
    "both": ("n n", "n", lambda xp, a, b: 0.3 * xp.sin(a - 2 * b)),
    "turned": ("m", "m", lambda xp, a: xp.roll(a, 1)),
    "flipped": ("m", "m", lambda xp, a: a[::-1]),
    "neighbours": ("m", "m", lambda xp, a: xp.concatenate([a[:1], 0.5 * (a[1:] - a[:-1])])),
    "padded": ("m", "m", lambda xp, a: xp.pad(a[1:-1], 1)),
    "gathered": ("m m", "m", lambda xp, a, b: a[xp.where(b > 0, 1, 2)]),
    "outer": ("n m", "t", lambda xp, a, b: xp.tanh(a[:, None] * b[None])),
    "faded": ("t t", "t", lambda xp, a, b: 0.5 * a - 0.25 * b),
    "product": ("t m", "n", lambda xp, t, a: xp.tanh(t @ a)),
    "left": ("n t", "m", lambda xp, a, t: xp.tanh(a @ t)),
    "rows": ("t", "m", lambda xp, t: xp.tanh(t.sum(0))),
    "columns": ("t", "n", lambda xp, t: t.min(1)),
    "flat": ("t", "t", lambda xp, t: xp.reshape(xp.reshape(t, (-1,))[::-1], (N, M))),
    "set": ("n i s", "n", lambda xp, a, i, s: xp.put(a, i, s, "set")),
    "put": ("t i m", "t", lambda xp, t, i, a: xp.put(t, i, a, "set")),
    "more": ("t i m", "t", lambda xp, t, i, a: xp.put(t, i, a, "max")),
    "down": ("t i n", "t", lambda xp, t, i, a: xp.put(t, (slice(None), i), a, "set")),
    "cells": ("t i i s", "t", lambda xp, t, i, j, s: xp.put(t, (i, j), s, "set")),
    "inside": ("t t", "t", lambda xp, t, u: xp.put(t, (slice(1, -1), slice(1, -1)),
               0.5 * (u[2:, 1:-1] - t[:-2, 1:-1]), "set")),
    "some": ("m m", "m", lambda xp, a, b: xp.put(a, xp.where(b > 0, 1, 3), b, "set")),
    "joined": ("t", "t", lambda xp, t: xp.concatenate([t[:, 3:], -xp.sin(t[:, :3])], 1)),
    "stacked": ("t", "t", lambda xp, t: xp.concatenate([0.5 * t[2:], xp.cos(t[:2])], 0)),
    "repeated": ("t t", "t", lambda xp, t, u: 0.5 * t + 0.1 * u[:, :1]),
    "normed": ("t n", "n", lambda xp, t, a: a / (1 + xp.sqrt((t * t).sum(1)))),
    "pairs": ("n n", "n", lambda xp, a, b: xp.tanh(xp.stack([a, b], 1)[:, ::-1].sum(1) + a)),
    "standing": ("n n", "n", lambda xp, a, b: xp.tanh(
        xp.reshape(xp.reshape(a, (N, 1)) * xp.reshape(b, (N, 1)), (N,)))),
    "beside": ("n", "n", lambda xp, a: 0.9 * (a[:, None] * xp.ones((N, 2)))[:, 1]),
    "moved": ("m", "m", lambda xp, a: xp.concatenate([0.9 * a[3:], a[:3]])),
    "kept": ("t t n", "t", lambda xp, t, u, a: xp.where((a > 0)[:, None], t, 0.7 * u)),
    "chosen": ("n n", "n", lambda xp, a, b: xp.where(a > b, a, 0.3 * b)),
    "either": ("t m i", "t", lambda xp, t, a, i: xp.cond(
        t[i, 0] > 0, lambda t, a: xp.put(t, i, a, "set"), lambda t, a: t, t, a)),
    "choice": ("s n", "n", lambda xp, s, a: xp.cond(s > 0, lambda a: a + 1, lambda a: a[::-1], a)),
    "inner": ("t i s", "t", lambda xp, t, i, s: xp.repeat(
        3, lambda u: (xp.put(u[0], (i, u[1]), xp.tanh(u[0][i, u[1] + 1] + s), "set"), u[1] + 1), (t, 0))[0]),
    "summed": ("m s", "m", lambda xp, a, s: xp.scan(
        lambda c, v: (xp.tanh(c + v), c - v), s, a, True)[1]),
    "until": ("n s", "n", lambda xp, a, s: xp.while_loop(
        lambda u: (u[0] * u[0]).sum() > 0.5, lambda u: (u[0] * 0.5 - 0.01 * u[1], u[1]), (a, s), 9)[0]),
    "up to": ("n i s", "n", lambda xp, a, i, s: xp.while_loop(
        lambda u: u[0] < i, lambda u: (u[0] + 1, xp.put(u[1], u[0], 0.5 * u[1][u[0] - 1] + s, "set")),
        (i * 0, a), None)[1]),
}  # fmt: skip
STATE = "sinmtt"  # what is carried


def body(rng: random.Random, length: int) -> tuple[Text, list[int]]:
    """Steps of a turn, each with the operands that it reads, and which values become the state."""
    kinds, text = [*STATE, "i"], Text()
    for _ in range(length):
        name = rng.choice(list(RULES))
        wants, gives, _ = RULES[name]
        operands = []
        for want in wants.split():
            own = [k for k, kind in enumerate(kinds) if kind == want]
            operands.append(rng.choice(own[-2:] if rng.random() < 0.6 else own))
        text.append((name, operands))
        kinds.append(gives)
    ends = []
    for want in STATE:
        own = [k for k, kind in enumerate(kinds) if kind == want]
        ends.append(rng.choice(own[-2:] if rng.random() < 0.7 else own))
    return text, ends


def run(xp: Any, text: Text, ends: list[int], turns: int, *state: Any) -> Any:
    def step(state: Any, count: Any) -> Any:
        values = [*state, count]
        for name, operands in text:
            values.append(RULES[name][2](xp, *(values[k] for k in operands)))
        return tuple(values[k] for k in ends), values[ends[0]] + values[ends[2]]

    made, ys = xp.scan(step, tuple(state), xp.arange(turns) % N, False)
    return (*made, ys)


def given(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    rest = [rng.standard_normal(s) for s in ((N,), (M,), (N, M), (N, M))]
    return [np.float64(0.3), np.int64(2), *rest]


def ops(f: Any) -> list[str]:
    """What its plan runs, without views."""
    graph = f.plan.program.graph
    return [n.op for n in graph.nodes if n.inputs and ost_ops[n.op].view is None]


KERNELS = {*ONE_KERNEL.values(), WHOLE}


def same(f: Any, want: Any, *state: Any) -> None:
    for _ in range(2):
        for x, y in zip(f(*state), want, strict=True):
            np.testing.assert_allclose(np.asarray(x), y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", [*range(25), 52, 104, 133, 172])
def test_any_short_body(seed: int) -> None:
    """Longer ones end sooner, before what they do grows out of small differences."""
    rng = random.Random(seed)
    text, ends = body(rng, rng.randint(2, 9) if seed < 20 else rng.randint(20, 40))
    turns = rng.choice([300, 301]) if seed < 20 else rng.choice([6, 9])
    state = given(seed)
    want = run(Plain(), text, ends, turns, *state)
    with sessions.use():
        f = ost.compile(lambda *state: run(Ours(), text, ends, turns, *state))
        same(f, want, *state)
        assert seed >= 20 or not {*ops(f)} & {"loop", "while", "branch"}


@pytest.mark.parametrize("seed", range(30, 38))
def test_turns_go_on_where_a_call_ended(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_kernel, "SLICE_SECONDS", 1e-6)
    rng = random.Random(seed)
    text, ends = body(rng, rng.randint(2, 9))
    state = given(seed)
    want = run(Plain(), text, ends, 301, *state)
    with sessions.use():
        f = ost.compile(lambda *state: run(Ours(), text, ends, 301, *state))
        same(f, want, *state)


def test_what_is_copied_before_the_first_turn_counts_for_none() -> None:
    rows = Spec((500, 8), float64)
    with sessions.use():
        f = ost.compile(
            lambda x, k: ost.repeat(300, lambda s: (s[0].at[s[1]].add(1.0), s[1] + 1), (x, k))
        )
        np.asarray(f(np.zeros((500, 8)), 0)[0])
        (node,) = [n for n in f.plan.program.graph.nodes if n.op == "fused_loop"]
    specs = (rows, *(s.bare for s in node.specs[1:]))
    text = loop_kernel._written_in_order(node.op, node, (*specs, *specs))
    assert text is not None
    assert text.instructions < 8 * 50 < rows.size


@pytest.mark.parametrize("mesh", [(2,), (3,)])
def test_each_worker_runs_the_turns_that_all_have(mesh: tuple[int, ...]) -> None:
    def swing(x: Any, y: Any) -> Any:
        return ost.repeat(300, lambda s: (s[0] - 0.1 * s[1], s[1] + 0.1 * s[0]), (x, y))

    x, y = 0.5, 0.25
    for _ in range(300):
        x, y = x - 0.1 * y, y + 0.1 * x
    text, ends = body(random.Random(3), 8)
    state = given(3)
    with sessions.use(mesh):
        f = ost.compile(swing)
        same(f, (x, y), np.float64(0.5), np.float64(0.25))
        assert KERNELS.intersection(ops(f))
        assert "no communication" in f.plan.explain()
        f = ost.compile(lambda *state: run(Ours(), text, ends, 300, *state))
        same(f, run(Plain(), text, ends, 300, *state), *state)


# -- which loops, and how much is one kernel ------------------------------------------------
def recurrence(x: Any) -> Any:
    return ost.scan(lambda s, v: (0.9 * s + 0.1 * v, s), x[0, 0] * 0, x[0])[1]


def tridiagonal(x: Any) -> Any:
    def forth(s: Any, v: Any) -> Any:
        m = 1 / (4 - v * s[0])
        s = (0.5 * m, (v - s[1]) * m)
        return s, s

    _, (c, d) = ost.scan(forth, (x[0] * 0, x[0] * 0), x)
    return ost.scan(lambda y, v: (v[1] - v[0] * y,) * 2, x[0] * 0, (c, d), reverse=True)[1]


def triangular(x: Any) -> Any:
    def step(s: Any) -> Any:
        y, i = s
        return y.at[i].set((x[1, i] - (x[i] * y).sum()) / (4 + x[i, i])), i + 1

    return ost.repeat(len(x), step, (x[0] * 0, 0))[0]


def lu(x: Any) -> Any:
    later = ost.arange(len(x))

    def step(s: Any) -> Any:
        a, k = s
        below = ost.where(later > k, a[:, k] / (4 + a[k, k]), 0.0)
        a = a - below[:, None] * ost.where(later > k, a[k], 0.0)
        return a.at[:, k].set(ost.where(later > k, below, a[:, k])), k + 1

    return ost.repeat(len(x), step, (x, 0))[0]


def orthogonal(x: Any) -> Any:
    def step(s: Any) -> Any:
        q, k = s
        v = q[:, k] / ost.sqrt((q[:, k] * q[:, k]).sum())
        w = ost.where(ost.arange(len(x)) > k, v @ q, 0.0)
        return (q - v[:, None] * w).at[:, k].set(v), k + 1

    return ost.repeat(len(x), step, (x, 0))[0]


def seidel(x: Any) -> Any:
    def row(s: Any) -> Any:
        def column(t: Any) -> Any:
            u, j = t
            v = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])
            return u.at[i, j].set(v), j + 1

        u, i = s
        return ost.repeat(len(x) - 2, column, (u, 1))[0], i + 1

    return ost.repeat(len(x) - 2, row, (x, 1))[0]


def roots(x: Any) -> Any:
    a = abs(x) + 1
    return ost.while_loop(
        lambda r: (abs(r * r - a) > 1e-6).any(), lambda r: (r + a / r) / 2, a, most=300
    )


def pivots(x: Any) -> Any:
    def step(s: Any) -> Any:
        a, k = s
        large = abs(a[k, k]) > 0.5
        return ost.cond(large, lambda a: a.at[k].set(a[k] / a[k, k]), lambda a: a, a), k + 1

    return ost.repeat(len(x), step, (x, 0))[0]


@pytest.mark.parametrize(
    "f", [recurrence, tridiagonal, triangular, lu, orthogonal, seidel, roots, pivots]
)
def test_all_turns_are_one_kernel(f: Callable[..., Any]) -> None:
    x = np.random.default_rng(1).standard_normal((90, 90))
    with sessions.use():
        made = ost.compile(f)
        found = np.asarray(made(x))
        assert 1 <= sum(op in KERNELS for op in ops(made)) <= 2
        assert not {*ops(made)} & {"loop", "while", "branch"}
        assert "as one kernel" in made.plan.explain()
        assert "@turns" in made.plan.source(llvm=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop_kernels, "WORTH", 1 << 60)
            other = ost.compile(lambda x: f(x + 0))
            np.testing.assert_allclose(found, np.asarray(other(x)), rtol=1e-9, atol=1e-12)
            assert not KERNELS.intersection(ops(other))


def both_ways(f: Callable[..., Any], *given: Any) -> list[list[Any]]:
    """Results of a function's loops as kernels, and as loops of kernels."""
    found = []
    for worth in (0, 1 << 60):
        sessions.forget_plans()
        with sessions.use(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop_kernels, "WORTH", worth)
            made = ost.compile(f)
            found.append([np.asarray(y) for y in made(*given)])
            assert bool(KERNELS.intersection(ops(made))) == (worth == 0)
    return found


@pytest.mark.parametrize("f", [tridiagonal, triangular, seidel])
def test_slopes_of_loops(f: Callable[..., Any]) -> None:
    x = np.random.default_rng(2).standard_normal((9, 9))
    for made, want in zip(
        *both_ways(lambda x: [ost.grad(lambda x: f(x).sum())(x)], x), strict=True
    ):
        np.testing.assert_allclose(made, want, rtol=1e-9, atol=1e-12)


def test_equations_side_by_side_are_those_of_each(capfd: pytest.CaptureFixture[str]) -> None:
    """Its turns look at parts of what one loop makes: these are in memory before."""

    def pendulum(t: Any, y: Any) -> Any:
        return [y[1], -ost.sin(y[0])]

    def last(angle: Any) -> Any:
        start = ost.stack([angle, 0.0])
        return ost.solve.rk45(pendulum, (0.0, 10.0), start, t_eval=[10.0], rtol=1e-8).y[-1]

    angles = np.array([0.1, 1.0, 2.0])
    with sessions.use():
        made = np.asarray(ost.vmap(last)(ost.asarray(angles)))
        each = np.stack([np.asarray(last(a)) for a in angles])
    np.testing.assert_allclose(made, each, rtol=1e-10)
    assert capfd.readouterr().err == "", "LLVM tells of what it was told and could not do"


def test_a_loop_for_each_row() -> None:
    x = np.random.default_rng(3).standard_normal((4, 9, 9))
    for made, want in zip(*both_ways(lambda x: [ost.vmap(triangular)(x)], x), strict=True):
        np.testing.assert_allclose(made, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "dtype", ["float32", "complex128", "int16", "uint8", "float16", "bfloat16"]
)
def test_elements_have_the_bits_of_other_kernels(dtype: str) -> None:
    def step(s: Any) -> Any:
        x, y, k = s
        z = ost.where(abs(y) > abs(x), x * y + x, y)
        return x[::-1] - y, z.at[k % 5].add(x[k % 5]), k + 1

    def f(x: Any) -> Any:
        x = x.astype(getattr(ost, dtype))
        made = ost.repeat(70, step, (x, x[::-1], 0))
        wide = ost.float32 if dtype.endswith("float16") else made[0].dtype
        return [made[0].astype(wide), made[1].astype(wide)]

    for made, want in zip(*both_ways(f, np.arange(5.0) - 2), strict=True):
        np.testing.assert_array_equal(made, want)


def test_what_stands_around_a_short_loop_is_in_its_kernel() -> None:
    def f(x: Any) -> Any:
        y, z = ost.repeat(400, lambda s: (s[0] - 0.1 * s[1], s[1] + 0.1 * s[0]), (x[0], x[1]))
        return ost.stack([z, y * 2])

    with sessions.use():
        made = ost.compile(f)
        y, z = 0.5, 0.25
        for _ in range(400):
            y, z = y - 0.1 * z, z + 0.1 * y
        assert np.asarray(made(np.array([0.5, 0.25]))).tolist() == [z, y * 2]
        assert ops(made) == [WHOLE]


@pytest.mark.parametrize(
    "step",
    [
        lambda x: 0.5 * x + x.T,  # many elements, of rows that read others
        lambda x: x @ x / 600,  # a large product
        lambda x: ost.sort(x, axis=0),  # what no kernel can
    ],
)
def test_what_others_do_faster_stays(step: Callable[..., Any]) -> None:
    with sessions.use():
        f = ost.compile(lambda x: ost.repeat(100, step, x))
        f(np.eye(300))
        assert "loop" in ops(f)


def test_bits_of_other_policies() -> None:
    def sums(x: Any) -> Any:
        return ost.repeat(300, lambda s: 0.5 * s + 0.1 * (s * s).sum(), x)

    def sines(x: Any) -> Any:
        return ost.repeat(300, lambda s: ost.sin(s) + x, x)

    def plain(x: Any) -> Any:
        return ost.repeat(300, lambda s: 0.5 * s[::-1] + x, x)

    x = np.array([0.5, 0.25])
    for f, is_kernel in ((sums, False), (sines, False), (plain, True)):
        with sessions.use((2,), "any-workers"):
            made = ost.compile(f)
            np.testing.assert_allclose(np.asarray(made(x)), np.asarray(f(x)), rtol=1e-12)
            assert bool(KERNELS.intersection(ops(made))) == is_kernel


def test_a_loop_inside_that_has_no_end_lets_others_run_and_ends_by_a_signal() -> None:
    """Its kernel gives the interpreter away, and asks for signals, after so many instructions."""

    def f(x: Any) -> Any:
        return ost.repeat(5, lambda v: ost.while_loop(lambda u: u < 2, lambda u: u * 0.5, v), x)

    def interrupt() -> None:  # it has to get the interpreter for that
        signal.raise_signal(signal.SIGINT)

    with sessions.use():
        g, x = ost.compile(f), ost.asarray(3.0)
        assert float(g(x)) == 3.0
        assert ops(g) == ["fused_loop"]
        endless = ost.asarray(1.0)
        other = threading.Timer(0.1, interrupt)  # of the kernel, which only this ends
        with pytest.raises(KeyboardInterrupt):
            other.start(), np.asarray(g(endless))
        other.join()


def test_a_place_outside_is_told_at_the_line() -> None:
    def f(x: Any, i: Any) -> Any:
        return ost.repeat(300, lambda s: (s[0].at[s[1]].set(s[0][s[1]] + 1), s[1] + 1), (x, i))[0]

    with sessions.use():
        made = ost.compile(f)
        assert np.asarray(made(np.zeros(400), 7)).sum() == 300
        with pytest.raises(
            BoundsError, match="index 400 is out of bounds for an axis with 400"
        ) as e:
            np.asarray(made(np.zeros(400), 200))
        assert "test_loop_kernels.py" in str(e.value)


class Unread(np.ndarray[Any, Any]):
    """An array whose elements are not there."""

    def reshape(self, *shape: Any, **options: Any) -> Any:
        assert options.get("copy") is False, "a copy reads elements"
        return super().reshape(*shape, **options)


def test_nothing_is_read_while_a_kernel_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shape that is no other look at what lies there, as the process might end."""
    blank = loop_writer.strided_like
    monkeypatch.setattr(loop_writer, "strided_like", lambda *given: blank(*given).view(Unread))
    loop_kernel.written.cache_clear()

    def f(x: Any) -> Any:
        return ost.repeat(300, lambda s: 0.5 * s[:, ::-1].reshape(6, 4).T + x, x)

    x = np.arange(24.0).reshape(4, 6)
    with sessions.use():
        made = ost.compile(f)
        wanted = x
        for _ in range(300):
            wanted = 0.5 * wanted[:, ::-1].reshape(6, 4).T + x
        np.testing.assert_allclose(np.asarray(made(x)), wanted, rtol=1e-12)
        assert KERNELS.intersection(ops(made))


def test_graphs_inside_are_given_what_they_take() -> None:
    spec = Spec((3,), float64)
    body = Graph((spec,), (), (0,))
    assert ost_ops[WHOLE].infer(spec, body=body) == (spec,)
    for given in ((), (spec, spec), (Spec((4,), float64),)):
        with pytest.raises(OstinatoError, match="needed float64"):
            ost_ops[WHOLE].infer(*given, body=body)
