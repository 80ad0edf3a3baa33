"""Runs that a GPU repeats as one graph, on a fake one (tests/fake_cuda.py): what is captured is not computed,
results hold rubbish until a graph is launched, and all that could not be repeated is refused."""

from __future__ import annotations

import gc
import random
import re
import sys
import threading
from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu.capture import Captures
from ostinato.runtime.capture_segments import Parts
from ostinato.runtime.graph_capture import FORMS, MAX_CAPTURES, MAX_COPIED_BYTES

import ostinato as ost
from ostinato.errors import LinAlgError
from tests import fake_cuda, fake_driver
from tests.cuda_host import COMPILER
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


@pytest.mark.parametrize(
    ("device", "most"), [("cpu", 11), ("fake", 21), *([(KERNELS, 21)] if COMPILER else [])]
)
def test_a_call_is_few_functions_of_python(device: str, most: int) -> None:
    """Nothing is called for what need not be done: each takes a fiftieth of a launch, or more."""
    ours: list[str] = []

    def hear(frame: Any, event: str, arg: Any) -> None:
        where = frame.f_globals.get("__name__") or frame.f_code.co_filename
        if event == "call" and where.startswith(("ostinato", "<ostinato")):
            ours.append(frame.f_code.co_qualname)

    with ost.connect(device=device):
        f, x, found = ost.compile(lambda x: x + 1.0), ost.ones(8), []
        for _ in range(12):
            y = f(x)
        for _ in range(5):  # now and then somebody looks how many processors there are
            ours.clear()
            sys.setprofile(hear)
            try:
                y = f(x)
            finally:
                sys.setprofile(None)
            found.append([*ours])
        assert len(least := min(found, key=len)) <= most, least
        np.testing.assert_array_equal(np.asarray(y), 2.0)


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


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("count", [2, 3, 400])
def test_what_is_small_is_copied_at_once(count: int) -> None:
    """Of any size and dtype, wherever they begin, by a launch for more than a hundred."""
    captures, r = Captures(xp, fake_driver, has_kernels=True), random.Random(count)
    pairs, wanted = [], []
    for k in range(count):
        n, begin, kind = r.choice((0, 1, 5, 64, 3000)), r.choice((0, 1)), r.choice("efdi")
        given = FAKE.from_host(np.arange(k, k + 2 * n + begin).astype(kind))[begin:]
        given = given[:: 1 + (k % 7 == 3)][:n]  # some lie apart
        pairs.append((FAKE.from_host(np.full(n, -1, kind)), given))
        wanted.append(to_host(given).copy())
    before = counted.asked
    captures.copy_all(pairs)
    assert counted.asked - before <= 3 + count / 3  # those that lie apart, and empty ones
    for (to, _), one in zip(pairs, wanted, strict=True):
        np.testing.assert_array_equal(to_host(to), one)


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
    assert X.nbytes > MAX_COPIED_BYTES
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
        xs = [ost.asarray(X + k) for k in range(MAX_CAPTURES + 3)]
        for x in xs:
            y = f(x)
            assert len(replay_of(session).forms) <= FORMS
        last = X + MAX_CAPTURES + 2
        np.testing.assert_allclose(np.asarray(y), 2 * last + last.sum(1, keepdims=True))
        f(x)
        assert replay_of(session).taken == MAX_CAPTURES
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
DET = r"det \(tests/runtime/test_replay.py:\d+\): calling cuSOLVER API during stream capture"
SORT = r"sort \(tests/runtime/test_replay.py:\d+\): .*not permitted when stream is capturing"


@pytest.mark.parametrize(
    ("function", "wanted", "why"),
    [
        (
            lambda x: ost.linalg.det(x[:300, :300]),
            lambda x: np.linalg.det(x[:300, :300]),
            f"operation by operation: {DET}",
        ),
        (
            lambda x: ost.linalg.det(x[:300, :300]) * 2.0,
            lambda x: np.linalg.det(x[:300, :300]) * 2,
            f"as one graph, in .* lie, and operation by operation {DET}",
        ),
        (
            lambda x: ost.exp(ost.sort(ost.sin(x), 0) + 1.0),
            lambda x: np.exp(np.sort(np.sin(x), 0) + 1),
            f"as 2 graphs, in .* lie, and operation by operation {SORT}",
        ),
        (
            lambda x: ost.sort(ost.sin(x), 0) + ost.sort(x * 2.0, 1) + ost.linalg.det(x[:, :300]),
            lambda x: np.sort(np.sin(x), 0) + np.sort(x * 2, 1) + np.linalg.det(x[:, :300]),
            f"as . graphs, .* operation by operation {SORT}; {SORT}; {DET}|operation {DET}; {SORT}",
        ),
        (
            lambda x: x[ost.argmax(x, 0)[:3]] * 2.0,
            lambda x: x[np.argmax(x, 0)[:3]] * 2,
            "as one graph",
        ),
    ],
)
def test_what_cannot_be_runs_apart(function: Any, wanted: Any, why: str) -> None:
    """And says why; what lies before it and behind is still launched."""
    with ost.connect(device="fake"):
        f = ost.compile(lambda x: function(x))
        x = ost.asarray(X)
        for _ in range(9):
            np.testing.assert_allclose(np.asarray(f(x)), wanted(X), 1e-9)
        said = " ".join(f.plan.explain().split())  # in whatever lines
        assert re.search(why, said), said
        np.testing.assert_allclose(np.asarray(ost.compile(chain)(x)), in_numpy(X), 1e-11, 1e-14)


def test_parts_are_launched_and_the_rest_is_called() -> None:
    """A graph before it, a sort, and one behind it; of a view of the operand, too."""
    with ost.connect(device="fake") as session:
        f = ost.compile(lambda x: ost.roll(ost.sort(chain(x), 1), 1, axis=0) + x[::-1] * 2.0)
        x = ost.asarray(X)
        for _ in range(6):
            y = f(x)
        before, launched = vars(counted).copy(), replay_of(session).launched
        for _ in range(10):
            y = f(x)
        did = since(before)
        assert replay_of(session).launched == launched + 10
        calls = did["launches"] / 10
        assert 3 <= calls < did["asked"] / 10
        assert (did["waits"], did["from_host"], did["to_host"]) == (0, 0, 0)
        wanted = np.roll(np.sort(in_numpy(X), 1), 1, 0) + X[::-1] * 2
        np.testing.assert_allclose(np.asarray(y), wanted, 1e-11, 1e-14)
        f(x)
        assert "as 2 graphs" in f.plan.explain()


def test_what_was_given_away_is_written_once() -> None:
    """A part that cannot be captured runs in the same run, behind those that were."""

    @ost.compile(donate="x")
    def step(x: Any) -> Any:
        return ost.sort(x + 1.0, 1) * 0.5

    with ost.connect(device="fake") as session:
        x, y = ost.asarray(X) * 1.0, X
        for _ in range(12):
            x, y = step(x), np.sort(y + 1, 1) * 0.5
        np.testing.assert_allclose(np.asarray(x), y, 1e-12)
        assert replay_of(session).launched


def test_errors_of_what_runs_apart_are_the_users() -> None:
    with ost.connect(device="fake") as session:
        f = ost.compile(lambda x: ost.linalg.cholesky(x * 1.0) * 2.0)
        good, bad = ost.asarray(np.eye(300) * 4), ost.asarray(-np.eye(300))
        for _ in range(6):
            f(good)
        assert replay_of(session).launched
        with pytest.raises(LinAlgError, match=r"cholesky \(tests/runtime/test_replay.py:\d+\)"):
            np.asarray(f(bad))
        np.testing.assert_allclose(np.asarray(f(good)), np.eye(300) * 4)


def test_a_run_that_was_interrupted_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a part has just run, and nobody took notice yet: the next run begins anew."""
    own = Parts.done

    def done(self: Parts, k: int) -> None:
        own(self, k)
        raise KeyboardInterrupt

    with ost.connect(device="fake") as session:
        f = ost.compile(chain)
        for n in range(8):
            if n == 4:
                replay_of(session)._give_up("a test says so")
            if n in (2, 6):
                monkeypatch.setattr(Parts, "done", done)
                with pytest.raises(KeyboardInterrupt):
                    f(ost.asarray(X))
                monkeypatch.undo()
            x = X * (n + 1)
            np.testing.assert_allclose(np.asarray(f(ost.asarray(x))), in_numpy(x), 1e-11, 1e-14)


def test_a_function_of_the_hosts_is_called_once_a_run() -> None:
    """Also in the run that is captured, though it is given nothing that the host would wait for."""
    calls: list[float] = []

    def rate() -> Any:
        calls.append(0.5 ** len(calls))
        return np.float64(calls[-1])

    with ost.connect(device="fake") as session:
        f = ost.compile(lambda x: chain(x) * ost.callback(rate, ost.spec((), "float64")))
        x = ost.asarray(X)
        for k in range(8):
            np.testing.assert_allclose(np.asarray(f(x)), in_numpy(X) * 0.5**k, 1e-11)
            assert len(calls) == k + 1
        assert replay_of(session).launched >= 5
        assert "the host calls it" in f.plan.explain()


def test_workers_that_share_a_device_and_meet_have_no_graphs() -> None:
    """A graph of one is launched on a stream of its own, which the others' operations do not wait for."""
    with ost.connect(3, device="fake") as session:
        f = ost.compile(lambda x: ost.exp(ost.sin(x) * 0.5).sum(0) * 2.0)
        x = ost.asarray(X, split=0)
        for _ in range(6):
            y = f(x)
        np.testing.assert_allclose(np.asarray(y), np.exp(np.sin(X) * 0.5).sum(0) * 2, 1e-11)
        f(x)
        for worker in session.engine.workers:  # type: ignore[attr-defined]
            assert not list(worker.plans.values())[-1].replay.launched
        assert "workers meet on the host" in f.plan.explain()


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
def taken(captures: Captures, run: Any) -> Any:
    with captures.capturing() as made:
        run()
    return made[0]


def test_values_of_the_host_do_not_enter_a_graph() -> None:
    captures, x = Captures(xp, fake_driver), xp.empty(3)
    with pytest.raises(RuntimeError, match="values come from the host's memory"):
        taken(captures, lambda: x.set(np.ones(3)))
    x.set(np.ones(3))
    with captures.warm_up():
        y = xp.zeros(3) + 1.0
    launch = taken(captures, lambda: xp.add(y, 1.0, y))
    assert to_host(y).tolist() == [1, 1, 1]
    launch()
    launch()
    assert to_host(y).tolist() == [3, 3, 3]


def test_no_finalizer_runs_while_any_thread_captures() -> None:
    """One ends while another one goes on: they may wait for values, which would spoil its graph."""
    inside, ended, seen = threading.Barrier(2), threading.Event(), list[bool]()

    def capture(is_first: bool) -> None:
        with Captures(xp, fake_driver).capturing():
            inside.wait(20)
            if not is_first:
                assert ended.wait(20)
                seen.append(gc.isenabled())
        ended.set()

    threads = [threading.Thread(target=capture, args=(k,)) for k in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_graph_needs_no_memory_of_others() -> None:
    """What it allocates comes from its pool, which a warm-up has filled."""
    captures = Captures(xp, fake_driver)
    x, y = FAKE.from_host(np.ones(3)), xp.zeros(3)

    def run() -> None:
        xp.copyto(y, x * 2.0 + 1.0)

    with pytest.raises(RuntimeError, match="not permitted"):
        taken(captures, run)
    with captures.warm_up():
        run()
    taken(captures, run)()
    assert to_host(y).tolist() == [3, 3, 3]


def test_a_warm_up_waits_for_what_was_asked_before_and_is_waited_for() -> None:
    captures = Captures(xp, fake_driver)
    x = xp.zeros(3)
    xp.add(x, 1.0, x)
    with captures.warm_up():
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
