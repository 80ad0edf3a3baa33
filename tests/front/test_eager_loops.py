"""Python loops outside of compiled functions: equal iterations find the plan of the one before."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core import apply, trace
from ostinato.ops.core.array import term_of
from ostinato.ops.core.graph import canonical
from ostinato.ops.core.trace import collect

import ostinato as ost
from ostinato import pending
from tests.helpers import on

Steps = Callable[[Any, int], Iterator[Any]]
STEPS = 60
N = 12


def heat(np: Any, n: int) -> Iterator[Any]:
    x = np.zeros((n, n))
    x[n // 2, n // 2] = 1.0
    while True:
        around = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
        x[1:-1, 1:-1] += 0.1 * (around - 4 * x[1:-1, 1:-1])
        yield x


def reaction(np: Any, n: int) -> Iterator[Any]:
    """Two fields, of which only the first is read."""

    def around(a: Any) -> Any:
        return a[2:, 1:-1] + a[:-2, 1:-1] + a[1:-1, 2:] + a[1:-1, :-2] - 4 * a[1:-1, 1:-1]

    u, v = np.ones((n, n)), np.zeros((n, n))
    v[4:8, 4:8] = 0.5
    while True:
        inner, other = u[1:-1, 1:-1], v[1:-1, 1:-1]
        both = inner * other * other
        du = 0.16 * around(u) - both + 0.06 * (1 - inner)
        v[1:-1, 1:-1] = other + 0.08 * around(v) + both - 0.122 * other
        u[1:-1, 1:-1] = inner + du
        u[0], u[-1] = u[-2], u[1]
        v[0], v[-1] = v[-2], v[1]
        yield u


def waves(np: Any, n: int) -> Iterator[Any]:
    """Three fields, and a number that is another one in each step."""
    ex, ey, hz = np.ones((n, n)), np.ones((n, n)) * 0.5, np.zeros((n, n))
    t = 0
    while True:
        ey[0, :] = 0.25 * t
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
        t += 1
        yield hz


def rows(np: Any, n: int) -> Iterator[Any]:
    """Operations that differ in their places only, again and again."""
    x = np.ones((n, n))
    while True:
        for i in range(1, n):
            x[i] = x[i] * 0.5 + x[i - 1] ** 2 * 0.5
        yield x


def life(np: Any, n: int) -> Iterator[Any]:
    z = np.zeros((n, n), dtype=np.int64)
    z[1:4, 1:4], z[6, 3:9] = 1, 1
    while True:
        near = z[:-2, :-2] + z[:-2, 1:-1] + z[:-2, 2:] + z[1:-1, :-2]
        near = near + z[1:-1, 2:] + z[2:, :-2] + z[2:, 1:-1] + z[2:, 2:]
        stays = ((near == 2) | (near == 3)) & (z[1:-1, 1:-1] == 1)
        lives = stays | ((near == 3) & (z[1:-1, 1:-1] == 0))
        z[...] = 0
        z[1:-1, 1:-1] = np.where(lives, 1, 0)
        yield z


@pytest.mark.parametrize("every", [1, 3, STEPS])
@pytest.mark.parametrize("program", [heat, reaction, waves, rows, life])
def test_equal_steps_are_few_plans(
    program: Steps, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a value is read in each step, or in the last only; on two workers, too."""
    monkeypatch.setattr(apply, "DEEPEST", 120)
    steps, wanted = program(ost, N), program(np, N)
    with on(2 if every == 3 else 1) as session:
        counts = []
        for k in range(1, STEPS + 1):
            x, y = next(steps), next(wanted)
            if k % every == 0:
                assert float(x[N // 2, 5]) == pytest.approx(float(y[N // 2, 5]))
            counts.append(len(session.plans.plans))
        before = counts[STEPS // 2]
        assert counts[-1] - before <= (every == STEPS), (
            counts
        )  # what is left when the last one reads
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-12)


def test_numbers_that_vary_are_operands() -> None:
    """From the second value on; exponents, which decide what is computed, are not."""
    x = np.arange(1.0, 5.0)
    with on() as session:

        def plans(values: Any, f: Any) -> int:
            begun = len(session.plans.plans)
            for value in values:
                made = f(ost.asarray(x), value)
                np.testing.assert_array_equal(np.asarray(made), f(x, value))
            return len(session.plans.plans) - begun

        assert plans([0.5, 0.25, 1.0, 0.0, -0.0, 3.5], lambda x, v: x * v + 1.25) == 2
        assert plans([1.5, 2.5, float("inf"), 0.125], lambda x, v: (x - v) * v / 0.75) == 2
        assert plans([2, 3, 5], lambda x, v: x**v + 0.375) == 3


def test_loops_over_rows_and_batches_are_few_plans() -> None:
    """Rows of a value that is there are operands, and slices of it make no plans for compiled steps; what is
    assigned to it later changes neither."""
    values, weights = np.random.default_rng(0).normal(size=(300, 4)), np.ones(4)
    with on() as session:
        x, w, begun = ost.asarray(values), ost.ones(4), len(session.plans.plans)
        for k, row in enumerate(x):
            w, weights = w * 0.5 + row * x[-1 - k], weights * 0.5 + values[k] * values[-1 - k]
            if k % 10 == 9:
                assert float(w[2]) == pytest.approx(weights[2])
        assert len(session.plans.plans) - begun < 10

        @ost.compile
        def step(w: Any, x: Any, y: Any) -> Any:
            return w - 0.1 * (x.T @ (x @ w - y))

        kept = x[7]
        w = step(w, x[:20], x[::15, 1])
        begun = len(session.plans.plans)
        for k in range(0, 300, 20):
            w = step(w, x[k : k + 20], x[::15, 1])
        assert len(session.plans.plans) == begun
        for k in [0, *range(0, 300, 20)]:
            part = values[k : k + 20]
            weights = weights - 0.1 * (part.T @ (part @ weights - values[::15, 1]))
        np.testing.assert_allclose(np.asarray(w), weights, rtol=1e-9)
        x[7] = 0.0
        assert kept.tolist() == values[7].tolist()
        slope = ost.grad(lambda x: sum((row**2).sum() for row in x))(x)  # of rows that are traced
        np.testing.assert_array_equal(np.asarray(slope), 2 * np.asarray(x))


def test_numbers_keep_their_sign() -> None:
    with on():
        for value in (1.0, 0.0, -0.0, 0.0, -0.0):
            made = np.asarray(ost.ones((2,)) * value)
            assert (np.signbit(made) == np.signbit(value)).all()


def test_a_field_that_nobody_reads_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is made of the same history as what is read, nothing is made again and again."""
    most = 0
    with on() as session:
        launch, sizes = session.launcher, list[int]()
        monkeypatch.setattr(
            session,
            "launcher",
            lambda plan: (sizes.append(len(plan.traced.nodes)), launch(plan))[1],
        )
        for k, u in enumerate(reaction(ost, N)):
            float(u[3, 3])
            if k == 12:
                break
        most = max(sizes[3:])
    assert most < 3 * sizes[0]


def test_what_a_trace_makes_of_arrays_is_left_alone() -> None:
    """A value that is read while a function is traced, which assigns to what hangs on it."""
    with on():
        x, y = ost.ones((3,)), ost.ones((3,))
        for _ in range(30):
            y = x * 0.5 + y
            x = x * 0.75 + 0.25
        box = {"y": y}

        @ost.compile
        def f(a: Any) -> Any:
            box["y"] += a
            return a * float(x[0])

        made = f(ost.ones((3,)))
        np.testing.assert_allclose(np.asarray(made), 1.0)
        np.testing.assert_allclose(np.asarray(box["y"]), 17.0)


def test_what_is_made_later_is_not_made_to_find_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "DEEPEST", 40)
    with on():
        for _ in range(2):
            x = ost.random.normal((4,), seed=ost.random.fold(3, 1))
            y = x.copy()
            for _ in range(60):
                y = y * 0.5 + x
            np.testing.assert_allclose(np.asarray(y), np.asarray(x) * 2, rtol=1e-5)


def test_what_is_collected_is_canonical() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        values = [ost.asarray(rng.normal(size=(4, 4))) for _ in range(3)]
        for _ in range(15):
            a, b = (values[k] for k in rng.integers(len(values), size=2))
            made = [a + b, a * 0.5, ost.exp(a), a @ b, a[1:3, :2].sum() + b, ost.where(a > b, a, b)]
            values.append(made[rng.integers(len(made))])
        roots = [values[k] for k in rng.integers(3, len(values), size=3)]
        found = collect([term_of(x) for x in roots])
        assert canonical(found.graph) == found.graph
        more = found.with_roots([term_of(roots[0])])
        assert canonical(more.graph) == more.graph


def batches(x: Any, k: int) -> Any:
    """Rows from one on, a column, a block and every other place, all of a value that is pending."""
    y = x * 0.5
    return y[k : k + 3, 1].sum() + y[2 * k, 0] + (y[1 : 1 + 2, k : k + 2] * y[5:7, :2]).sum()


def marks(x: Any, k: int) -> Any:
    """Updates at other places each turn, whole rows and parts of them."""
    y = x * 0.5
    y[k] = y[k + 1] + y[-1]
    y[k : k + 2, 1:3] += 0.25
    y[3, k] = 2.0
    return y


def steps(x: Any, k: int) -> Any:
    """With gaps, backwards, and of nothing at all, from another place each turn."""
    y = x * 0.5
    y[k : k + 4 : 2, 0] = y[k + 4 : k : -2, 1]
    return y + y[k:k].sum()


@pytest.mark.parametrize(("program", "few"), [(batches, 2), (marks, 2), (steps, 5)])
@pytest.mark.parametrize("workers", [1, 2])
def test_places_that_vary_are_operands(program: Any, few: int, workers: int) -> None:
    """From the second turn on; those of slices with gaps, which are no boxes, are not."""
    values = np.random.default_rng(3).normal(size=(20, 6))
    with on(workers) as session:
        x = ost.asarray(values, split=0 if workers > 1 else None)
        begun = len(session.plans.plans)
        for k in (0, 1, 3, 2, 4):
            np.testing.assert_array_equal(np.asarray(program(x, k)), program(values, k))
        assert len(session.plans.plans) - begun <= few


def test_places_of_what_takes_long_to_copy_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "COPIED", 80)
    values = np.arange(40.0)
    with on() as session:
        x, begun = ost.asarray(values), len(session.plans.plans)
        for count, plans in ((10, 2), (11, 2 + 4)):
            for k in range(4):
                made = (x * 2.0)[k : k + count] + 1.0
                np.testing.assert_array_equal(np.asarray(made), (values * 2)[k : k + count] + 1)
            assert len(session.plans.plans) - begun == plans


def test_a_plan_that_goes_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of operations that ran goes with their plan, and with what the session kept."""
    x = np.arange(4.0)
    with on() as session:

        def run() -> None:
            np.testing.assert_array_equal(np.asarray(ost.asarray(x) * 3.5 + 0.5), x * 3.5 + 0.5)

        before = {*session.plans.plans}
        run()
        ((key, plan),) = [p for p in session.plans.plans.items() if p[0] not in before]
        del session.plans.plans[key]
        session.plans.dropped(plan)
        assert plan.id not in session.engine.launchers  # type: ignore[attr-defined]
        run()
        assert key in session.plans.plans
        session.rest()
        run()
        assert [*session.plans.plans] == [key]


def test_equal_operations_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules and parameters of equal operations are asked and compared in the first turns only; a new number
    is one constant more, and is told from others to the bit."""
    monkeypatch.setattr(apply, "_made", {})
    monkeypatch.setattr(trace, "_plain", {})
    values = np.random.default_rng(0).normal(size=(8, 5))
    with on():
        x, sizes = ost.asarray(values), list[tuple[int, int]]()
        for k in range(6):
            made = (x[1:6, ::2] * 0.5 + x.sum(axis=0)[:3] * (k + 0.5)).reshape(5, 3).max()
            wanted = (values[1:6, ::2] * 0.5 + values.sum(axis=0)[:3] * (k + 0.5)).max()
            assert float(made) == pytest.approx(wanted)
            sizes.append((len(apply._made), len(trace._plain)))
        assert {(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(sizes[1:])} == {(1, 1)}
        for value in (0.0, -0.0, 1.0):
            assert np.asarray(ost.full((2,), value)).tobytes() == np.full((2,), value).tobytes()


def test_what_is_looked_at_once_holds_nobody() -> None:
    """A function that is called back goes with its last user."""

    class Doubles:
        def __call__(self, x: Any) -> Any:
            return x * 2

    with on() as session:
        for _ in range(2):
            function = Doubles()
            gone = weakref.ref(function)
            made = ost.callback(function, ost.spec((3,), "float64"), ost.ones((3,)))
            np.testing.assert_array_equal(np.asarray(made), 2.0)
            del function, made
            session.rest()
            gc.collect()
            assert gone() is None


def test_rows_are_at_hand_after_their_array_was_used() -> None:
    with on():
        x = ost.asarray(np.arange(12.0).reshape(4, 3))
        np.testing.assert_array_equal(np.asarray(x * 2.0)[1], [6, 8, 10])
        row = x[2]
        assert row._operand is not None
        slope = ost.grad(lambda y: (y[2] * x[2]).sum())(x)
        np.testing.assert_array_equal(np.asarray(slope)[2], np.asarray(row))
