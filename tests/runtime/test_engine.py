"""Engines: operands, threads, failures, and control flow as data."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.show import parse
from ostinato.ops.cpu.cpu_device import CPU
from ostinato.planner.passes.memory import assign_memory
from ostinato.runtime import engine
from ostinato.runtime.bind import bind
from ostinato.runtime.messages.communicator import Alone
from ostinato.runtime.worker import Worker

import ostinato as ost
from ostinato import sessions, settings
from ostinato.errors import BoundsError, ExecutionError, NaNError, SessionError
from tests.sessions import MESHES, use


@pytest.mark.parametrize("mesh", MESHES)
def test_what_is_put_comes_back(mesh: tuple[int, ...]) -> None:
    x = np.arange(35.0).reshape(7, 5)
    with use(mesh):
        for split in (None, 0, 1):
            y = ost.asarray(x, split=split)
            np.testing.assert_array_equal(np.asarray(y), x)
            assert y.layout.mesh == mesh


@pytest.mark.parametrize(("split", "shares"), [(0, True), (None, True), (1, False)])
def test_borrowed_memory_is_not_copied_for_threads(split: int | None, shares: bool) -> None:
    x = np.arange(60.0).reshape(12, 5)
    with use((3,)):
        for copy in (False, True):
            y = ost.asarray(x, copy=copy, split=split)
            operand: Any = sessions.current().hold_array(y)
            shared = [np.shares_memory(part, x) for part in operand.parts]
            assert shared == [shares and not copy] * 3
            z = ost.compile(lambda y: y * 2, donate=["y"])(y)
            np.testing.assert_array_equal(np.asarray(z), np.arange(60.0).reshape(12, 5) * 2)
    np.testing.assert_array_equal(x, np.arange(60.0).reshape(12, 5))


def test_memory_is_freed() -> None:
    """Of what was put at once; of results when their plan rests while others are made."""
    with use((3,)):
        x = ost.asarray(np.ones((6, 2)), split=0)
        y = ost.compile(lambda x: x * 2)(x)
        parts = [weakref.ref(p) for v in (x, y) for p in v._operand.parts]
        assert all(p() is not None for p in parts)
        del x, y
        gc.collect()
        assert [p() is None for p in parts] == [True] * 3 + [False] * 3
        for n in (2, 3):
            ost.evaluate(ost.ones(n) + 1)
        gc.collect()
        assert all(p() is None for p in parts)


def test_an_exported_array_is_not_written_over() -> None:
    """A view that NumPy has keeps its values while the plan runs on."""
    with use():
        f = ost.compile(lambda x: x + 1)
        x = f(ost.zeros(4))
        view = np.asarray(x)
        assert not view.flags.writeable
        for _ in range(10):
            x = f(x)
        assert view.tolist() == [1, 1, 1, 1]
        assert np.asarray(x).tolist() == [11] * 4


def test_threads_call_at_once() -> None:
    with use():
        f = ost.compile(lambda x, k: ost.tanh(x @ x.T).sum() * k)
        x = ost.asarray(np.random.default_rng(0).normal(size=(60, 60)))
        expected = float(f(x, 1.0))
        found: list[float] = []
        shapes: list[float] = []

        def work(k: int) -> None:
            for _ in range(30):
                found.append(float(f(x, float(k))) / k)
                shapes.append(float(f(ost.ones((k, 3)), 1.0)) - k * k * np.tanh(3.0))

        team = [threading.Thread(target=work, args=(k,)) for k in range(1, 6)]
        for t in team:
            t.start()
        for t in team:
            t.join(60)
        assert len(found) == 150
        np.testing.assert_allclose(found, expected)
        np.testing.assert_allclose(shapes, 0, atol=1e-9)
        assert len(f.misses) == 6


def test_threads_trace_at_once() -> None:
    """Two functions traced at the same time know nothing of each other."""
    with use():
        gate = threading.Barrier(4)
        results: list[Any] = []

        def work(k: int) -> None:
            def body(x: Any) -> Any:
                gate.wait(60)
                y = x * k
                gate.wait(60)
                return ost.random.uniform((3,)) * 0 + y.sum()

            results.append((k, float(ost.compile(body)(ost.ones(3)).sum())))

        team = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in team:
            t.start()
        for t in team:
            t.join(60)
        assert sorted(results) == [(k, 9.0 * k) for k in range(4)]


@pytest.mark.parametrize("mesh", [(1,), (3,)])
def test_a_failing_operation_names_itself_and_the_line(mesh: tuple[int, ...]) -> None:
    with use(mesh):
        f = ost.compile(lambda x, i: ost.take(x, i, axis=0) * 2)
        x = ost.asarray(np.ones((6, 2)), split=0)
        with pytest.raises(
            BoundsError, match=r"take \(.*test_engine.py:\d+\): got index 17 is out of bounds"
        ):
            f(x, ost.asarray([1, 17]))
        assert np.asarray(f(x, ost.asarray([1, 2]))).tolist() == [[2, 2], [2, 2]], (
            "and works afterwards"
        )


def test_a_failure_in_a_later_turn_of_a_loop() -> None:
    def turn(s: Any) -> Any:
        i, x = s
        return i + 1, x + ost.take(ost.arange(5), i)  # the line that fails in turn 5

    with use():
        f = ost.compile(lambda i: ost.repeat(8, turn, (i, ost.asarray(0))))
        with pytest.raises(BoundsError, match=r"take \(.*test_engine.py:\d+\): got index 5"):
            f(ost.asarray(0))


def test_one_worker_fails_alone() -> None:
    """The others wait in a collective and are released; the next run is fine."""
    with use((4,)):
        f = ost.compile(lambda x, i: (ost.take(ost.arange(8.0), i) * x).sum())
        x = ost.asarray(np.ones(8), split=0)
        bad = ost.asarray(np.array([0, 1, 2, 3, 4, 5, 6, 99]), split=0)
        good = ost.asarray(np.arange(8), split=0)
        for _ in range(3):
            with pytest.raises((BoundsError, ExecutionError), match="index 99"):
                f(x, bad)
            assert float(f(x, good)) == 28


def test_nan_check_names_the_first_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "check_nan", True)
    with ost.connect():
        f = ost.compile(lambda x: ost.exp(ost.log(x) * 2).sum())
        assert float(f(ost.ones(3))) == 3
        with pytest.raises(
            NaNError, match=r"log \(.*test_engine.py:\d+\): got 1 NaN in float64\[3\] from operands"
        ):
            f(ost.asarray([1.0, -1.0, 2.0]))
        g = ost.compile(lambda x: ost.repeat(3, lambda s: ost.sqrt(s - 1), x))
        with pytest.raises(NaNError, match="sqrt"):
            g(ost.ones(3))
        assert np.isnan(np.asarray(f(ost.asarray([np.nan, 1.0, 1.0]))))


def test_without_the_check_nan_passes() -> None:
    with use():
        assert np.isnan(float(ost.log(ost.asarray(-1.0))))


def test_no_warnings_leak_and_no_settings_either() -> None:
    before = np.geterr()
    with use():
        assert float(ost.asarray(1.0) / ost.asarray(0.0)) == np.inf
    assert np.geterr() == before


def test_arrays_outlive_their_session() -> None:
    with ost.connect(workers=2) as session:
        x = ost.asarray(np.arange(8.0).reshape(4, 2), split=0)
        y = x * 2
        ost.evaluate(y)
    assert np.asarray(y).tolist() == [[0, 2], [4, 6], [8, 10], [12, 14]]
    assert float((x + y).sum()) == 84, "the session before is in use again"
    for again in (lambda: session.put(np.ones(2)), session.__enter__):
        with pytest.raises(SessionError, match=r"closed; call ost.connect\(\) for a new one"):
            again()


def test_arrays_move_between_sessions() -> None:
    with use((1,)):
        x = ost.asarray(np.arange(12.0).reshape(6, 2)) + 0
        ost.evaluate(x)
        with use((3,)):
            y = ost.compile(lambda x: x.sum(0))(x)
            assert np.asarray(y).tolist() == [30, 36]
            z = x.resplit(0) * 1
            ost.evaluate(z)
            with use((2, 2)):
                assert np.asarray((z * 2).sum()).item() == 132
                assert z.split == 0


def test_closing_ends_the_threads() -> None:
    before = {*threading.enumerate()}  # others may end meanwhile

    def new() -> list[str]:
        return [t.name for t in {*threading.enumerate()} - before if "progress" not in t.name]

    with ost.connect(workers=4):
        float(ost.ones(4, split=0).sum())
        assert len(new()) == 4
    assert new() == []


# -- a worker's program as data --------------------------------------------------------------------
def run_text(text: str, *inputs: np.ndarray) -> list[np.ndarray]:
    """Lower and run a graph that no pass has seen."""
    program = assign_memory(parse(text), CPU)
    worker = Worker(0, Alone(), CPU)
    arena = np.zeros(program.arena_bytes, np.uint8)
    bound = bind(program, 0, worker.communicator, CPU, arena, "<plan test>")
    outs = [np.empty(s.shape, s.dtype) for s in program.graph.out_specs]
    bound.call(*inputs, *outs)
    return outs


def test_a_loop_over_blocks_with_an_accumulator() -> None:
    """Rows in blocks of 2: x.T @ x accumulated, and each block's row sums written to its place."""
    (gram, sums) = run_text(
        """
        (%0: float64[3,2,4] @ whole of 1)
        %1 = full(; dtype=dtype float64, shape=(4, 4), value=0.0) : float64[4,4] @ whole of 1
        %2, %3 = loop(%1, %0; body={
            (%0: int64[] @ whole of 1, %1: float64[4,4] @ whole of 1, %2: float64[2,4] @ whole of 1)
            %3 = permute_dims(%2; axes=(1, 0)) : float64[4,2] @ whole of 1
            %4 = matmul(%3, %2) : float64[4,4] @ whole of 1
            %5 = add(%1, %4) : float64[4,4] @ whole of 1
            %6 = sum(%2; axes=(1,), dtype=dtype float64) : float64[2] @ whole of 1
            return %5, %6
        }, counts=(0, 1, 1), reverse=False, trips=3) : float64[4,4] @ whole of 1, float64[3,2] @ whole of 1
        return %2, %3
        """,
        x := np.random.default_rng(0).normal(size=(3, 2, 4)),
    )
    rows = x.reshape(6, 4)
    np.testing.assert_allclose(gram, rows.T @ rows)
    np.testing.assert_allclose(sums.reshape(-1), rows.sum(1))


def test_a_while_inside_a_repeat() -> None:
    (found,) = run_text(
        """
        (%0: float64[2] @ whole of 1)
        %1 = loop(%0; body={
            (%0: int64[] @ whole of 1, %1: float64[2] @ whole of 1)
            %2 = while(%1; body={
                (%0: float64[2] @ whole of 1)
                %1 = constant(; dtype=dtype float64, value=0.5) : float64[] @ whole of 1
                %2 = multiply(%0, %1) : float64[2] @ whole of 1
                return %2
            }, condition={
                (%0: float64[2] @ whole of 1)
                %1 = max(%0; axes=(0,)) : float64[] @ whole of 1
                %2 = constant(; dtype=dtype float64, value=1.0) : float64[] @ whole of 1
                %3 = greater(%1, %2) : bool[] @ whole of 1
                return %3
            }, counts=(0, 1), most=-1) : float64[2] @ whole of 1
            %3 = constant(; dtype=dtype float64, value=3.0) : float64[] @ whole of 1
            %4 = add(%2, %3) : float64[2] @ whole of 1
            return %4
        }, counts=(0, 1, 0), reverse=False, trips=4) : float64[2] @ whole of 1
        return %1
        """,
        np.array([5.0, 8.0]),
    )
    x = np.array([5.0, 8.0])
    for _ in range(4):
        while x.max() > 1:
            x = x * 0.5
        x = x + 3
    np.testing.assert_allclose(found, x)


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 6])
def test_carried_values_alternate_without_copies(trips: int) -> None:
    with use():
        f = ost.compile(lambda x, y: ost.repeat(trips, lambda s: (s[1], s[0] + s[1]), (x, y)))
        a, b = f(ost.asarray(1.0), ost.asarray(1.0))
        x, y = 1.0, 1.0
        for _ in range(trips):
            x, y = y, x + y
        assert (float(a), float(b)) == (x, y)
        heavy = ost.compile(lambda x: ost.repeat(trips, lambda s: s * 2.0, x))
        heavy(ost.ones(1000))
        assert "copy" not in [n.op for n in heavy.plan.program.graph.nodes]


def test_a_converging_algorithm_is_one_message() -> None:
    """All turns of a while run inside one plan."""
    with use() as session:

        def root(x: Any) -> Any:
            return ost.while_loop(
                lambda s: ost.abs(s * s - x) > 1e-12, lambda s: 0.5 * (s + x / s), x
            )

        f = ost.compile(root)
        f(ost.asarray(2.0))
        loaded = session.engine.workers[0].plans[f.plan.id]
        before = loaded.runs
        assert abs(float(f(ost.asarray(2.0))) - 2**0.5) < 1e-12
        assert loaded.runs == before + 1


def test_rows_of_a_program_know_their_lines() -> None:
    node = Node(
        "exp", (0,), (), parse("(%0: float64[2] @ whole of 1)\nreturn %0").inputs, "train.py:7"
    )
    graph = Graph(node.specs, (node,), (1,))
    bound = bind(
        assign_memory(graph, CPU), 0, Alone(), CPU, np.empty(0, np.uint8), "<plan x>", timed=True
    )
    out = np.empty(2)
    bound.call(np.zeros(2), out)
    assert out.tolist() == [1, 1]
    assert [(r.node.line, r.count) for r in bound.rows] == [("train.py:7", 1)]
    assert bound.rows[0].seconds > 0


def test_sessions_may_be_closed_in_any_order() -> None:
    """What is in use is the last one that is open."""
    before = sessions.here()
    first = ost.connect(2)
    second = ost.connect(3)
    third = ost.connect(2)
    second.close()
    assert ost.session() is third
    third.close()
    assert ost.session() is first
    assert float(ost.asarray(np.ones(4), split=0).sum()) == 4
    first.close()
    assert sessions.here() is before


def test_ctrl_c_between_any_two_steps_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when a worker has just said that it is done, and nobody took notice yet."""

    class Bell(SimpleQueue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            super().get(block, timeout)
            raise KeyboardInterrupt

    made = engine._Job

    def job(*args: Any) -> Any:
        found = made(*args)
        found.bell = Bell()
        return found

    with use((3,)):
        f = ost.compile(lambda x: x * 2 + x.sum(0))
        x = ost.asarray(np.ones((6, 2)), split=0)
        f(x)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_Job", job)
            with pytest.raises(KeyboardInterrupt):
                f(x)
        np.testing.assert_array_equal(np.asarray(f(x)), np.full((6, 2), 8.0))


def test_a_loop_that_talks_to_nobody_ends_with_ctrl_c() -> None:
    with use((2,)):
        count = ost.while_loop(
            lambda k: k >= 0, lambda k: k + 1, ost.zeros(()), most=400_000_000_000
        )
        interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        start = time.monotonic()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
        try:
            with pytest.raises(KeyboardInterrupt):
                interrupt.start(), np.asarray(count)
        finally:
            signal.signal(signal.SIGINT, before)
        assert time.monotonic() - start < 60, "all turns take several minutes"


def test_a_plan_that_the_cache_let_go_holds_no_old_memory() -> None:
    """Its function still has it: it is bound anew with the others."""
    with ost.connect() as session:
        worker = session.engine.workers[0]
        f = ost.compile(lambda x: ost.tanh(x @ x) @ x)
        x = ost.ones((50, 50)) * 0.01
        before = np.asarray(f(x))
        session.engine.forget(f.plan.id)
        arena = weakref.ref(worker.arena.base)
        np.testing.assert_array_equal(np.asarray(f(x)), before)
        f.__wrapped__(ost.ones((500, 500))).numpy()
        gc.collect()
        assert arena() is None
        np.testing.assert_array_equal(np.asarray(f(x)), before)
