"""Runs that a GPU repeats as one graph, on a fake one (tests/fake_cuda.py): what is captured is not computed,
results hold rubbish until a graph is launched, and all that could not be repeated is refused."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu.capture import Captures
from ostinato.runtime.replay import FORMS, MOST_TAKEN, SMALL

import ostinato as ost
from tests import fake_cuda
from tests.fake_device import FAKE, KERNELS
from tests.fake_xp import counted, to_host, xp
from tests.programs import make_program
from tests.sessions import JOB, use

pytestmark = pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
X = np.random.default_rng(0).normal(size=(300, 400))


def since(before: dict[str, int]) -> dict[str, int]:
    return {name: n - before[name] for name, n in vars(counted).items()}


def chain(x: Any) -> Any:
    return ost.exp(ost.sin(x) * 0.5) + ost.roll(x, 1, axis=0)


def in_numpy(x: Any) -> Any:
    return np.exp(np.sin(x) * 0.5) + np.roll(x, 1, axis=0)


def replay_of(session: Any) -> Any:
    """Of the plan that ran last."""
    (worker,) = session.engine.workers
    return list(worker.plans.values())[-1].replay


# -- one call --------------------------------------------------------------------------------------
def test_a_repeated_plan_is_one_launch_and_nothing_else() -> None:
    """No allocation, no wait, nothing over the bus; of whatever the operations are."""
    for device in ("fake", KERNELS):
        with ost.connect(device=device) as session:
            f = ost.compile(chain)
            x = ost.asarray(X)
            for _ in range(4):
                y = f(x)
            before = vars(counted).copy()
            for _ in range(20):
                y = f(x)
            did = since(before)
            assert did["launches"] == 20, did
            assert (did["allocations"], did["waits"], did["from_host"], did["to_host"]) == (0,) * 4
            assert did["asked"] >= 20
            np.testing.assert_allclose(np.asarray(y), in_numpy(X), 1e-11, 1e-14)
            f(x)
            assert replay_of(session).launched >= 20
            assert "as one graph" in f.plan.explain()


def test_a_training_step_whose_weights_are_given_away() -> None:
    """Its buffers alternate; the rate is a new number each time, and losses are kept."""

    @ost.compile(donate="w")
    def step(w: Any, x: Any, rate: Any) -> tuple[Any, Any]:
        error = ost.tanh((x * w).sum(1)) - 1.0
        slope = (error[:, None] * x).mean(0)
        return w - rate * slope, (error**2).mean()

    def wanted() -> tuple[Any, list[float]]:
        w, losses = np.zeros(400), []
        for k in range(30):
            error = np.tanh((X * w).sum(1)) - 1
            w = w - 0.1 / (k + 1) * (error[:, None] * X).mean(0)
            losses.append((error**2).mean())
        return w, losses

    with ost.connect(device="fake") as session:
        x, w, losses = ost.asarray(X), ost.zeros(400), []
        for k in range(30):
            w, loss = step(w, x, 0.1 / (k + 1))
            losses.append(loss)
        for found, right in zip((w, losses), wanted(), strict=True):
            np.testing.assert_allclose(np.asarray(found, np.float64), right, 1e-10)
        replay = replay_of(session)
        assert replay.launched >= 25
        assert 1 <= len(replay.forms) <= FORMS
        assert replay.places


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_again_and_again(seed: int) -> None:
    """Each run has other operands; results of earlier ones stay as they are."""
    r = random.Random(seed)
    program = make_program(r)
    first = program.inputs
    with use(device=r.choice(("fake", KERNELS)) if seed % 4 == 0 else "fake"):
        run = ost.compile(program.by_ostinato)
        kept = []
        for k in range(6):
            program.inputs = [np.flip(x).copy() if k % 2 else x for x in first]
            kept.append((run(*map(ost.asarray, program.inputs)), program.by_numpy()))
        for found, wanted in kept:
            for y, z in zip(found, wanted, strict=True):
                np.testing.assert_allclose(np.asarray(y), z, 1e-8, 1e-8)


def test_loops_are_part_of_it() -> None:
    def power(x: Any) -> Any:
        y, rows = ost.scan(lambda c, k: (c * 0.5 + k, c.sum()), x, ost.arange(5.0))
        return y, rows

    with ost.connect(device="fake") as session:
        f = ost.compile(power)
        for k in range(6):
            y, rows = f(ost.asarray(X[0] + k))
        c, sums = X[0] + 5, []
        for k in range(5):
            sums.append(c.sum())
            c = c * 0.5 + k
        np.testing.assert_allclose(np.asarray(y), c)
        np.testing.assert_allclose(np.asarray(rows), sums)
        assert replay_of(session).launched


# -- where operands lie ----------------------------------------------------------------------------
def test_large_operands_are_known_by_where_they_lie() -> None:
    """Nothing is copied: there is a form for each place."""
    assert X.nbytes > SMALL
    with ost.connect(device="fake") as session:
        f = ost.compile(chain)
        xs = [ost.asarray(X + k) for k in range(3)]
        for _ in range(4):
            for k, x in enumerate(xs):
                np.testing.assert_allclose(np.asarray(f(x)), in_numpy(X + k), 1e-11, 1e-14)
        replay = replay_of(session)
        assert not replay.places
        assert len(replay.forms) == 3
        before = vars(counted).copy()
        for x in xs:
            f(x)
        assert since(before)["launches"] == 3


def test_small_operands_have_places_while_large_ones_have_forms() -> None:
    with ost.connect(device="fake") as session:
        f = ost.compile(lambda x, rate: ost.roll(x, 1, axis=0) * rate)
        xs = [ost.asarray(X + k) for k in range(2)]
        for turn in range(8):
            for k, x in enumerate(xs):
                found = f(x, turn + 0.5)
                np.testing.assert_array_equal(
                    np.asarray(found), np.roll(X + k, 1, 0) * (turn + 0.5)
                )
        replay = replay_of(session)
        assert len(replay.places) == 1
        assert len(replay.forms) <= 6


def test_operands_that_are_new_each_time_give_up_the_graph() -> None:
    with ost.connect(device="fake") as session:
        f = ost.compile(lambda x: x * 2.0 + x.sum(1, keepdims=True))
        xs = [ost.asarray(X + k) for k in range(MOST_TAKEN + 3)]
        for x in xs:
            y = f(x)
            assert len(replay_of(session).forms) <= FORMS
        last = X + MOST_TAKEN + 2
        np.testing.assert_allclose(np.asarray(y), 2 * last + last.sum(1, keepdims=True))
        f(x)
        assert replay_of(session).taken == MOST_TAKEN
        assert "operation by operation: its operands lie elsewhere" in f.plan.explain()


def test_a_larger_arena_makes_graphs_anew() -> None:
    """What was captured wrote to the old one."""
    with ost.connect(device="fake") as session:
        f, g = ost.compile(chain), ost.compile(lambda x: chain(ost.concat([x, x])))
        x = ost.asarray(X)
        for _ in range(4):
            f(x)
        (worker,) = session.engine.workers  # type: ignore[attr-defined]
        (loaded,) = worker.plans.values()
        old = loaded.replay
        for _ in range(3):
            np.testing.assert_allclose(
                np.asarray(g(x)), in_numpy(np.concatenate([X, X])), 1e-11, 1e-14
            )
        assert loaded.replay is None
        for _ in range(4):
            np.testing.assert_allclose(np.asarray(f(x)), in_numpy(X), 1e-11, 1e-14)
        assert loaded.replay is not old


# -- what cannot be repeated ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("function", "wanted", "why"),
    [
        (
            lambda x: ost.linalg.det(x[:300, :300]) * 2.0,
            lambda x: np.linalg.det(x[:300, :300]) * 2,
            r"det \(tests/runtime/test_replay.py:\d+\): calling cuSOLVER API during stream capture",
        ),
        (
            lambda x: ost.sort(x, 0) + 1.0,
            lambda x: np.sort(x, 0) + 1,
            r"sort \(tests/runtime/test_replay.py:\d+\): .*not permitted when stream is capturing",
        ),
        (
            lambda x: ost.while_loop(lambda x: ost.abs(x).max() > 1.0, lambda x: x * 0.5, x),
            lambda x: x * 0.5 ** np.ceil(np.log2(np.abs(x).max())),
            r"while \(tests/runtime/test_replay.py:\d+\): the host looks at its condition",
        ),
        (
            lambda x: x[ost.argmax(x, 0)[:3]] * 2.0,
            lambda x: x[np.argmax(x, 0)[:3]] * 2,
            "",
        ),
    ],
)
def test_what_cannot_be_says_which_operation(function: Any, wanted: Any, why: str) -> None:
    """It runs as before, and is tried once."""
    with ost.connect(device="fake") as session:
        f = ost.compile(lambda x: function(x))
        x = ost.asarray(X)
        for _ in range(5):
            np.testing.assert_allclose(np.asarray(f(x)), wanted(X), 1e-9)
        replay = replay_of(session)
        if why:
            assert not replay.forms
            assert re.search(f"operation by operation: {why}", f.plan.explain()), f.plan.explain()
        np.testing.assert_allclose(np.asarray(ost.compile(chain)(x)), in_numpy(X), 1e-11, 1e-14)


def test_a_profile_times_operation_by_operation() -> None:
    with ost.connect(device="fake") as session:
        f = ost.compile(chain)
        x = ost.asarray(X)
        for _ in range(4):
            f(x)
        with ost.profile() as report:
            f(x)
        assert replay_of(session) is None
        assert "concat" in str(report)
        for _ in range(3):
            np.testing.assert_allclose(np.asarray(f(x)), in_numpy(X), 1e-11, 1e-14)
        assert replay_of(session).launched


# -- the capture itself ---------------------------------------------------------------------------
def test_values_of_the_host_do_not_enter_a_graph() -> None:
    captures, x = Captures(xp), xp.empty(3)
    with pytest.raises(RuntimeError, match="values come from the host's memory"):
        captures.taken(lambda: x.set(np.ones(3)))
    x.set(np.ones(3))
    with captures.rehearsal():
        y = xp.zeros(3) + 1.0
    launch = captures.taken(lambda: xp.add(y, 1.0, y))
    assert to_host(y).tolist() == [1, 1, 1]
    launch()
    launch()
    assert to_host(y).tolist() == [3, 3, 3]


def test_a_graph_needs_no_memory_of_others() -> None:
    """What it allocates comes from its pool, which a rehearsal has filled."""
    captures = Captures(xp)
    x, y = FAKE.from_host(np.ones(3)), xp.zeros(3)

    def run() -> None:
        xp.copyto(y, x * 2.0 + 1.0)

    with pytest.raises(RuntimeError, match="not permitted"):
        captures.taken(run)
    with captures.rehearsal():
        run()
    captures.taken(run)()
    assert to_host(y).tolist() == [3, 3, 3]


def test_a_rehearsal_waits_for_what_was_asked_before_and_is_waited_for() -> None:
    captures = Captures(xp)
    x = xp.zeros(3)
    xp.add(x, 1.0, x)
    with captures.rehearsal():
        xp.add(x, 1.0, x)
    xp.add(x, 1.0, x)
    assert to_host(x).tolist() == [3, 3, 3]
    with captures.aside(), pytest.raises(AssertionError, match="is not waited for"):
        xp.add(x, 1.0, x)


def test_the_fake_finds_streams_that_do_not_wait() -> None:
    a, b = (fake_cuda.Stream(non_blocking=True) for _ in range(2))
    with a:
        x = xp.zeros(3)
    with b, pytest.raises(AssertionError, match="is not waited for"):
        x + 1.0
    b.wait_event(a.record())
    with b:
        y = x + 1.0
    with a, pytest.raises(AssertionError, match="is not waited for"):
        xp.add(x, 1.0, x)  # while it is read
    b.synchronize()
    with a:
        xp.add(x, y, x)
