"""Threads and tasks may share arrays and functions, with sessions of their own; nobody waits for ever.

Values are right; of several who give an array away one does, and the others are told."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import ostinato as ost
from ostinato import sessions
from ostinato.errors import DonatedError, SessionError
from tests.clusters import ROOT

from .finalized import WHAT, WHERE

Tally = Callable[[str, int], None]
HANG = 120  # seconds after which threads wait for ever


@pytest.fixture(autouse=True)
def fast_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with sessions.using(None):
        yield
        if (made := sessions.here()) is not None:
            made.close()
    sys.setswitchinterval(before)


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What these functions return, or the error that each ended in; they start together."""
    found: list[Any] = [None] * len(works)
    barrier = threading.Barrier(len(works))

    def run(k: int) -> None:
        barrier.wait(HANG)
        try:
            found[k] = works[k]()
        except BaseException as error:
            found[k] = error

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert not any(t.is_alive() for t in threads), "somebody waits for ever"
    return found


def without_errors(found: list[Any]) -> list[Any]:
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


# -- arrays --------------------------------------------------------------------------------
def grown(rng: random.Random, count: int) -> tuple[list[ost.Array], list[np.ndarray[Any, Any]]]:
    """Pending arrays with a common history, and what they should be."""
    start = np.arange(6.0)
    arrays, values = [ost.asarray(start) * 1.0], [start * 1.0]
    for _ in range(count):
        k, j = rng.randrange(len(arrays)), rng.randrange(len(arrays))
        if rng.random() < 0.2:  # an operation that has several results
            q, r = ost.linalg.qr(arrays[k].reshape((3, 2)))
            arrays.append((q @ r).reshape((6,)))
            values.append(values[k])
        else:
            arrays.append(arrays[k] * 0.5 + arrays[j])
            values.append(values[k] * 0.5 + values[j])
    return arrays, values


def test_reads_of_a_common_history(tally: Tally, thorough: bool) -> None:
    reads = 0
    for seed in range(60 if thorough else 10):
        rng = random.Random(seed)
        arrays, values = grown(rng, 20)
        orders = [rng.sample(range(len(arrays)), len(arrays)) for _ in range(8)]

        def read(order: list[int], arrays: list[Any] = arrays) -> dict[int, Any]:
            return {k: np.asarray(arrays[k]) for k in order}

        found = without_errors(at_once(*[lambda o=o: read(o) for o in orders]))
        for one in found:
            for k, value in one.items():
                np.testing.assert_allclose(value, values[k])
            reads += len(one)
    tally("reads of pending arrays by eight threads", reads)


def test_arrays_grow_while_others_read_them(tally: Tally, thorough: bool) -> None:
    """Each thread builds on arrays that others read, drop and gather."""
    turns = 300 if thorough else 40
    shared: list[Any] = [(ost.asarray(np.float64(k)), float(k)) for k in range(4)]

    def work(seed: int) -> int:
        rng = random.Random(seed)
        for _ in range(turns):
            (x, a), (y, b) = rng.choice(shared), rng.choice(shared)
            z, c = x * 0.5 + y * 0.25, a * 0.5 + b * 0.25
            shared[rng.randrange(len(shared))] = z, c
            if rng.random() < 0.5:
                assert float(z) == c
            if rng.random() < 0.2:
                assert float(x) == a
        return turns

    tally(
        "steps on arrays that others read",
        sum(without_errors(at_once(*[lambda s=s: work(s) for s in range(8)]))),
    )


# -- compiled functions --------------------------------------------------------------------
def test_one_function_from_eight_threads(tally: Tally, thorough: bool) -> None:
    for _ in range(10 if thorough else 3):
        f = ost.compile(lambda x, n: x * 2.0 + n)

        def call(k: int, f: Any = f) -> list[Any]:
            return [(n, k % 2, float(f(ost.ones(n), float(k)).sum())) for n in (3, 4, 5, 3, 4, 5)]

        for k, rows in enumerate(without_errors(at_once(*[lambda k=k: call(k) for k in range(8)]))):
            assert [v for _, _, v in rows] == [n * (2.0 + k) for n, _, _ in rows]
        assert len(f.misses) == 3, "each shape is traced by one of them"
    tally("calls of one function by eight threads", 48 * (10 if thorough else 3))


def pair() -> tuple[Any, Any]:
    """Two functions each of which calls the other while it is traced, when both threads are there."""
    one, gate = ost.ones(3), threading.Barrier(2)

    @ost.compile(static="deep")
    def f(x: Any, deep: bool) -> Any:
        if deep:
            gate.wait(HANG)
            return x + float(g(one, False).sum())
        return x + 1.0

    @ost.compile(static="deep")
    def g(x: Any, deep: bool) -> Any:
        if deep:
            gate.wait(HANG)
            return x + float(f(one, False).sum())
        return x + 2.0

    return lambda: float(f(one, True)[0]), lambda: float(g(one, True)[0])


def test_functions_that_call_each_other(tally: Tally) -> None:
    for _ in range(5):
        assert without_errors(at_once(*pair())) == [1 + 3 * 3.0, 1 + 3 * 2.0]
    tally("pairs of functions that call each other", 5)


def test_seeds_of_a_trace_are_its_own(tally: Tally) -> None:
    tracing, drawn = threading.Event(), threading.Event()

    @ost.compile
    def noisy(x: Any) -> Any:
        tracing.set()
        assert drawn.wait(HANG)
        return x + ost.random.normal((3,))

    def draw() -> list[Any]:
        assert tracing.wait(HANG)
        values = [np.asarray(ost.random.uniform((3,))) for _ in range(8)]
        drawn.set()
        return values

    ost.random.seed(5)
    values = without_errors(at_once(draw, lambda: np.asarray(noisy(ost.zeros(3)))))[0]
    ost.random.seed(5)
    for value in values:
        np.testing.assert_array_equal(value, np.asarray(ost.random.uniform((3,))))
    tally("draws beside a trace", len(values))


# -- giving arrays away --------------------------------------------------------------------
@pytest.mark.parametrize("workers", [1, 2])
def test_one_of_those_who_give_an_array_away_wins(
    workers: int, tally: Tally, thorough: bool
) -> None:
    trials = 1000 if thorough else 150
    with ost.connect(workers):
        step = ost.compile(lambda x: x * 2.0 + 1.0, donate="x")
        look = ost.compile(lambda x: x.sum())
        step(ost.ones(2000)), look(ost.ones(2000))
        lost = 0
        for k in range(trials):
            x = ost.asarray(np.full(2000, float(k)))
            ost.evaluate(x + 0.0)  # or pending ones would be given
            x = x + 0.0
            ost.evaluate(x)
            works: list[Callable[[], Any]] = [lambda x=x: np.asarray(step(x)) for _ in range(3)]  # type: ignore[misc]
            works += [lambda x=x: float(look(x)) for _ in range(2)]  # type: ignore[misc]
            works += [lambda x=x: np.asarray(x + 1.0).copy()]  # type: ignore[misc]
            found = at_once(*works)
            won = [y for y in found[:3] if isinstance(y, np.ndarray)]
            assert len(won) == 1, found[:3]
            np.testing.assert_array_equal(won[0], np.full(2000, 2.0 * k + 1.0))
            for y in found:
                assert isinstance(y, (np.ndarray, float, DonatedError)), y
            lost += sum(isinstance(y, DonatedError) for y in found)
            for y in found[3:5]:
                assert isinstance(y, DonatedError) or y == 2000.0 * k
            if isinstance(found[5], np.ndarray):
                np.testing.assert_array_equal(found[5], np.full(2000, k + 1.0))
        assert lost >= 2 * trials
    tally("arrays given away by three threads", trials)


# -- sessions ------------------------------------------------------------------------------
def test_who_has_no_session_of_his_own_uses_the_main_threads(tally: Tally) -> None:
    """Threads that run already, later ones, pools, and tasks."""
    ready, done = threading.Event(), threading.Event()
    seen: list[int] = []

    def early() -> None:
        assert ready.wait(HANG)
        seen.append(ost.session().workers)
        done.set()

    thread = threading.Thread(target=early)
    thread.start()
    ost.connect(3)
    ready.set()
    thread.join(HANG)
    with ThreadPoolExecutor(2) as pool:
        seen += pool.map(lambda _: ost.session().workers, range(2))

    async def task() -> int:
        return ost.session().workers

    async def all_tasks() -> list[int]:
        return [
            *await asyncio.gather(task(), task()),
            await asyncio.to_thread(lambda: ost.session().workers),
        ]

    seen += asyncio.run(all_tasks())
    with ost.connect(2), ThreadPoolExecutor(2) as pool:
        assert [*pool.map(lambda _: ost.session().workers, range(2))] == [2, 2]
    assert seen == [3] * 6
    ost.session().close()
    tally("threads and tasks that use the main thread's session", 8)


def test_a_threads_session_is_its_own(tally: Tally, thorough: bool) -> None:
    """Threads connect, with `with` and without, compute with what all share, and leave."""
    outer = ost.connect(1)
    weights = ost.asarray(np.arange(12.0)) + 1.0
    ost.evaluate(weights)
    f = ost.compile(lambda x: (x * 2.0).sum())
    turns = 20 if thorough else 4

    def work(k: int) -> int:
        mine = 1 + k % 3
        for turn in range(turns):
            if turn % 2:
                session = ost.connect(mine)
                assert ost.session() is session
                assert float(f(weights)) == 156.0
                session.close()
            else:
                with ost.connect(mine) as session:
                    assert ost.session() is session
                    x = ost.asarray(np.arange(12.0), split=0) + weights
                    assert ost.session().workers == mine
                    assert float(f(weights)) == 156.0
                    assert float(x.sum()) == 144.0
                    with ost.connect(mine + 1) as inner:
                        assert ost.session() is inner
                        assert float(x.sum()) == 144.0
                    assert ost.session() is session
            assert ost.session() is outer
            assert float(f(weights)) == 156.0
        return turns

    found = without_errors(at_once(*[lambda k=k: work(k) for k in range(6)]))
    assert ost.session() is outer
    assert float(f(weights)) == 156.0
    outer.close()
    tally("sessions of threads of their own", sum(found))


def test_a_tasks_session_is_its_own(tally: Tally) -> None:
    outer = ost.connect(1)

    async def task(k: int) -> int:
        assert ost.session() is outer
        with ost.connect(1 + k % 3) as session:
            for _ in range(5):
                await asyncio.sleep(0)
                assert ost.session() is session
                assert float(ost.asarray(np.ones(4), split=0).sum()) == 4.0
            child = asyncio.create_task(inherits(session))
            assert await child
        assert ost.session() is outer
        return 5

    async def inherits(session: Any) -> bool:
        return ost.session() is session

    async def beside() -> int:
        for _ in range(10):
            await asyncio.sleep(0)
            assert ost.session() is outer
        return 10

    async def everything() -> list[int]:
        return await asyncio.gather(*map(task, range(6)), beside())

    tally("turns of tasks with sessions", sum(asyncio.run(everything())))
    assert ost.session() is outer
    outer.close()


def test_a_cell_of_a_notebook_connects_for_the_next(tally: Tally) -> None:
    """Cells are tasks; what one connects, all later ones use."""

    async def cell(work: Callable[[], Any]) -> Any:
        return work()

    async def kernel() -> None:
        for n in (2, 3, 2):
            await asyncio.create_task(cell(lambda n=n: ost.connect(n)))
            assert await asyncio.create_task(cell(lambda: ost.session().workers)) == n
            with ThreadPoolExecutor(1) as pool:
                assert [*pool.map(lambda _: ost.session().workers, [0])] == [n]

    asyncio.run(kernel())
    for _ in range(3):
        ost.session().close()
    tally("cells", 6)


@pytest.mark.parametrize("workers", [1, 3])
def test_close_while_others_run(workers: int, tally: Tally, thorough: bool) -> None:
    """They end with a value, or with one error that says that the session was closed."""
    trials, errors = 20 if thorough else 5, 0
    f = ost.compile(lambda x, n: (x * 2.0).sum() + n)
    for trial in range(trials):
        session = ost.connect(workers)
        x = ost.asarray(np.arange(30.0), split=0) + 0.0
        ost.evaluate(x)
        started = threading.Barrier(5)

        def work(k: int, x: Any = x, started: Any = started) -> int:
            started.wait(HANG)
            for n in range(40):
                assert float(f(x, float(n))) == 870.0 + n
                assert float((x + n).sum()) == 435.0 + 30.0 * n
            return 40

        def close(session: Any = session, started: Any = started, trial: int = trial) -> None:
            started.wait(HANG)
            for _ in range(trial * 20):
                pass
            session.close()

        found = at_once(*[lambda k=k: work(k) for k in range(4)], close)
        for one in found:
            if isinstance(one, SessionError):
                assert "was closed" in str(one), one
                errors += 1
            elif isinstance(one, BaseException):
                raise one
    tally("closings while others run", trials)


# -- finalizers, which run at any moment, in any thread ------------------------------------
class Late:
    """Garbage that computes when it is collected, and leaves other garbage behind."""

    turns = 0
    errors: ClassVar[list[BaseException]] = []
    inside = threading.local()

    def __init__(self, work: Callable[[], None], left: list[int]) -> None:
        self.work, self.left, self.me = work, left, self

    def __del__(self) -> None:
        if getattr(self.inside, "on", False) or not self.left:
            return
        self.left.pop()
        self.inside.on = True
        try:
            Late.turns += 1
            self.work()
        except BaseException as error:
            Late.errors.append(error)
        finally:
            self.inside.on = False
            Late(self.work, self.left)


@pytest.mark.parametrize("workers", [1, 3])
def test_finalizers_compute(workers: int, tally: Tally, thorough: bool) -> None:
    """Wherever garbage is collected: while functions are traced and plans made, and while they run."""
    Late.turns, Late.errors = 0, []
    threshold = gc.get_threshold()
    with ost.connect(workers):
        f = ost.compile(lambda x, n: (ost.cumulative_sum(x) @ x) * n)
        g = ost.compile(  # its turns run in Python
            lambda x, n: ost.while_loop(lambda s: s.sum() < n, lambda s: ost.sort(s) + 1.0, x).sum()
        )
        x, y = ost.asarray(np.arange(8.0), split=0), ost.asarray(np.arange(8.0))
        want = float(np.cumsum(np.arange(8.0)) @ np.arange(8.0))

        def compute(x: Any, n: int) -> None:
            assert float(f(x, float(n))) == n * want
            assert float(g(x, 100.0 + n)) == 28.0 + 8.0 * -(-(72 + n) // 8)
            assert float((x * float(n) + y).sum()) == 28.0 * (n + 1)

        def new(k: int) -> None:
            for n in range(2):
                assert float(ost.asarray(np.arange(3.0 + n + k)).sum()) == sum(range(3 + n + k))

        def both(x: Any, n: int) -> None:
            compute(x, n)
            new(4 * n)

        def repeat(part: Callable[[Any, int], None]) -> None:
            compute(x, 1)
            compute(y, 1)
            gc.set_threshold(1)
            try:
                Late(lambda: compute(y, 2), [0] * (2000 if thorough else 200))
                for n in range(40 if thorough else 10):
                    without_errors(at_once(*[lambda n=n: part(x, n) for _ in range(3)]))  # type: ignore[misc]
            finally:
                gc.set_threshold(*threshold)
                gc.collect()

        repeat(compute)  # whose plans are there
        repeat(both)
    refused = [e for e in Late.errors if not isinstance(e, SessionError)]
    assert not refused, refused[0]
    tally("finalizers that computed", Late.turns)


def test_finalizers_wait_for_nobody(tmp_path: Path, tally: Tally) -> None:
    """In threads of ours they are refused, at once; in those of the program they may compute anything."""
    command = [sys.executable, "-m", "tests.trust.finalized", str(tmp_path / "x.npy")]
    environment = os.environ | {"OSTINATO_CACHE": "off"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=HANG, env=environment, cwd=ROOT
        )
    except subprocess.TimeoutExpired as slow:
        raise AssertionError(f"it waits after {(slow.stdout or b'').decode()}") from None
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(WHERE) * len(WHAT)
    for line in lines:
        where, _, is_right, said = line.split(maxsplit=3)
        wanted = "done" if where == "thread" else "refused: nothing can be computed or closed here"
        assert is_right == "right", line
        assert said.startswith(wanted), line
    assert not done.stderr, done.stderr[-3000:]
    tally("finalizers that computed", len(lines))
