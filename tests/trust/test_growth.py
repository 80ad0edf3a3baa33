"""What is not used any more is given back, whatever a program repeats; misses stay as cheap as they were.

Counted are the objects of ours that live, the bytes of arenas and buffers, threads of ours, open files, mapped memory, and calls."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from ostinato.planner import cache
from ostinato.runtime import engine
from ostinato.runtime.worker import Worker

import ostinato as ost
from ostinato import sessions, signature_cache

Tally = Callable[[str, int], None]
Census = collections.Counter[str]
PATIENCE = 60.0  # seconds that a thread has to end


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with sessions.using(None):
        yield
        while (made := sessions.here()) is not None:
            made.close()
    gc.collect()


def living(kind: type) -> list[Any]:
    """What is there of a kind, but for what was there before: the collector looks at no other."""
    return [x for x in gc.get_objects() if type(x) is kind]


_caches: list[Any] = []


@pytest.fixture(autouse=True, scope="module")
def caches_are_seen() -> Iterator[None]:
    """Also those that were there before the tests, among half a million objects of the tests themselves:
    tests/conftest.py hides them from the collector."""
    gc.unfreeze()
    _caches[:] = living(functools._lru_cache_wrapper)
    gc.collect()
    gc.freeze()
    yield
    _caches.clear()


def threads() -> set[threading.Thread]:
    """Ours that are there to stay. Those of a session that nobody has any more were told to end, and
    nobody waits until they have, as finalizers must not; this does."""
    serving = {t for team in engine._teams for t in team.threads}
    for t in set(threading.enumerate()) - serving:
        if t.name.startswith("ostinato-worker"):
            t.join(PATIENCE)
    return {t for t in threading.enumerate() if t.name.startswith("ostinato")}


def census() -> Census:
    """What lives now, but for what caches of a fixed size hold, and threads that are told to end."""
    gc.collect()
    threads()
    for x in (*_caches, *living(functools._lru_cache_wrapper)):
        if x.__module__.startswith("ostinato") and (x.cache_parameters()["maxsize"] or 0) >= 64:
            x.cache_clear()
    gc.collect()
    found: Census = collections.Counter()
    for x in gc.get_objects():
        module = getattr(type(x), "__module__", None)
        if isinstance(module, str) and module.startswith("ostinato"):
            found[type(x).__name__] += 1
        if type(x) is Worker:
            found["bytes"] += x.arena.nbytes + x.kept.bytes
            found["bytes"] += sum(
                b.nbytes for p in x.kept_plans for result in p.results for b in result.kept
            )
    found["threads"] = len(threads())
    with contextlib.suppress(OSError):
        found["files"] = len(os.listdir("/proc/self/fd"))
        with open("/proc/self/maps") as maps:
            found["maps"] = sum(1 for _ in maps)
    return found


def check_flat(before: Census, after: Census, count: int) -> None:
    """Nothing grew by more than a little of the times that something was repeated."""
    for what in after:
        more = {"bytes": 1 << 16, "maps": 64}.get(what)  # later shapes are larger
        slack = 3 + count // 30 if more is None else more + before[what] // 4
        assert after[what] <= before[what] + slack, (
            f"{what}: {before[what]}, then {after[what]} after {count} more"
        )


def grows_not(turn: Callable[[int], Any], warm: int, count: int) -> None:
    """Repeat something: from the end of the warm-up on nothing grows."""
    census()  # with it caches lose what others filled them with, and are filled in the warm-up again
    for k in range(warm):
        turn(k)
    before = census()
    for k in range(warm, warm + count):
        turn(k)
    check_flat(before, census(), count)


def work(f: Any, x: Any) -> None:
    """What programs do: functions, arrays outside of functions, random numbers, parts."""
    y = ost.asarray(x, split=0)
    assert float((f(y) + ost.random.uniform((4,))[0] * 0.0).sum()) == 2.0 * x.sum()
    assert float((y * 0.5 + y).sum()) == 1.5 * x.sum()


# -- sessions ------------------------------------------------------------------------------
def left_open(n: int, use: Callable[[], None]) -> None:
    """As cells of a notebook do: nobody keeps the session, and nobody closes it."""
    ost.connect(n)
    use()


def kept_open(kept: list[Any]) -> Callable[[int, Callable[[], None]], None]:
    """The notebook keeps what the cell gave."""

    def turn(n: int, use: Callable[[], None]) -> None:
        kept.append(ost.connect(n))
        use()

    return turn


def closed(n: int, use: Callable[[], None]) -> None:
    session = ost.connect(n)
    use()
    session.close()


def entered(n: int, use: Callable[[], None]) -> None:
    with ost.connect(n):
        use()


def in_thread(n: int, use: Callable[[], None]) -> None:
    """A thread that connects and ends."""

    def run() -> None:
        ost.connect(n)
        use()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


@pytest.mark.parametrize("how", [left_open, closed, entered, in_thread])
def test_sessions(how: Callable[..., None], tally: Tally, thorough: bool) -> None:
    count = 300 if thorough else 30
    f = ost.compile(lambda x: x * 2.0)
    x = np.arange(2000.0)
    grows_not(lambda k: how(1 + k % 3, lambda: work(f, x)), 24, count)
    tally("sessions", count)


def test_sessions_that_are_kept_rest(tally: Tally, thorough: bool) -> None:
    """What a session took is given back when another takes its place, and there again when it is used."""
    count = 100 if thorough else 20
    kept: list[Any] = []
    f = ost.compile(lambda x: x * 2.0)
    x = np.arange(20_000.0)
    turn = kept_open(kept)
    for k in range(count):
        turn(1 + k % 3, lambda: work(f, x))
        if k == 3:
            before = census()
    after = census()
    for what in ("threads", "files", "bytes", "Loaded", "Plan", "Entry"):
        most = before[what] + (before[what] // 4 if what == "bytes" else 3)
        assert after[what] <= most, f"{what}: {before[what]}, then {after[what]}"
    for session in reversed(kept[-10:]):
        assert ost.session() is session
        work(f, x)
        session.close()
    tally("sessions that were kept", count)


def test_arrays_outlive_their_sessions(tally: Tally) -> None:
    """Closed, dropped, or put aside: what they made stays, and neither memory nor threads of theirs do."""
    before = threads()
    arrays = []
    for n in (1, 2, 3):
        for how in (left_open, closed, entered, in_thread):

            def use(n: int = n) -> None:
                x = ost.asarray(np.arange(5.0) + n, split=0) * 1.0
                ost.evaluate(x)
                arrays.append((x, np.arange(5.0) + n))

            how(n, use)
    while (session := sessions.here()) is not None:
        session.close()
    gc.collect()
    assert not threads() - before
    for x, value in arrays:
        np.testing.assert_array_equal(np.asarray(x), value)
        np.testing.assert_array_equal(np.asarray(x + 1.0), value + 1.0)
    tally("arrays of sessions that ended", len(arrays))


def test_a_session_comes_back(tally: Tally) -> None:
    """`with` inside what was connected for the whole script."""
    ost.connect(3)
    for n in (1, 2):
        with ost.connect(n):
            assert ost.session().workers == n
            assert float(ost.ones(3).sum()) == 3.0
        assert ost.session().workers == 3
    inner = ost.connect(2)
    assert float(ost.ones(3).sum()) == 3.0
    inner.close()
    assert ost.session().workers == 3
    assert float(ost.ones(3).sum()) == 3.0
    tally("sessions that came back", 3)


# -- what functions keep -------------------------------------------------------------------
class Model:
    def __init__(self, k: int) -> None:
        self.w = ost.asarray(np.full(50, float(k)))
        self.rate = 0.5

    @ost.compile
    def loss(self, x: Any) -> Any:
        return ((x - self.w) ** 2).sum() * self.rate


def test_instances(tally: Tally, thorough: bool) -> None:
    count = 300 if thorough else 60
    x = ost.zeros(50)

    def turn(k: int) -> None:
        model = Model(k)
        for _ in range(2):
            assert float(model.loss(x)) == 25.0 * k * k

    grows_not(turn, 20, count)
    assert not living(Model)
    assert len(Model.loss.entries) <= 1
    tally("instances", count)


def test_functions_that_are_made_again_and_again(tally: Tally, thorough: bool) -> None:
    count = 2000 if thorough else 200
    x = ost.asarray(np.arange(4.0))

    def turn(k: int) -> None:
        scale = float(k % 2)
        f = ost.compile(lambda x: x * 2.0 + scale)
        for _ in range(2):
            assert float(f(x)[1]) == 2.0 + scale

    grows_not(turn, 16, count)
    tally("functions", count)


def test_signatures_of_one_plan(tally: Tally, thorough: bool, monkeypatch: Any) -> None:
    """Values that make no difference to the plan, and a set of forms that never ends."""
    most, count = (signature_cache.MAX_SIGNATURES, 6000) if thorough else (100, 400)
    monkeypatch.setattr(signature_cache, "MAX_SIGNATURES", most)
    f = ost.compile(lambda x, name, rows: x * 2.0, static="name")
    x = ost.asarray(np.arange(4.0))

    def turn(k: int) -> None:
        assert float(f(x, f"run {k}", {f"row {k}": 1.0})[1]) == 2.0

    grows_not(turn, most + 20, count)
    assert len(f.entries) <= most
    assert len(f.quick) <= most
    tally("signatures", count)


# -- plans ---------------------------------------------------------------------------------
def calls_of(function: Callable[[], Any]) -> int:
    """How many functions it calls."""
    count = 0

    def see(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("on_disk", [False, True])
def test_shapes(
    on_disk: bool, tally: Tally, thorough: bool, monkeypatch: Any, tmp_path: Any
) -> None:
    """More shapes than plans are kept: nothing grows, each miss does the same work, what runs all the
    time stays, and what went comes back."""
    kept, count = (cache.KEPT, 3000) if thorough else (64, 300)
    monkeypatch.setattr(cache, "KEPT", kept)
    if on_disk:
        monkeypatch.setattr("ostinato.settings.cache", tmp_path)
    f = ost.compile(lambda x: ((x * 2.0 + 1.0) * x).sum())
    steady = ost.compile(lambda x: x + 1.0)
    y = ost.zeros(4)
    f(ost.ones(1000 + count))  # an arena that grows has all plans bound anew
    work: dict[int, int] = {}
    probe = {*range(20, 30), *range(count // 2, count // 2 + 10), *range(count - 10, count)}

    def turn(k: int) -> None:
        x = ost.asarray(np.ones(1000 + k))
        if k in probe:
            work[k] = calls_of(lambda: f(x))
        assert float(f(x)) == 3.0 * (1000 + k)
        y.sum()
        assert float(steady(y)[0]) == 1.0

    grows_not(turn, kept + 16, count - kept - 16)
    steps = [sorted(work[k] for k in sorted(probe)[10 * i : 10 * i + 10])[5] for i in range(3)]
    assert max(steps) < 1.3 * min(steps), f"calls of a miss: {steps}"
    assert len(f.entries) <= kept
    assert len(steady.misses) == 1, "what runs all the time is not forgotten"
    turn(3)
    tally("shapes", count)


def test_large_plans_leave(tally: Tally, monkeypatch: Any) -> None:
    """The arena is as large as the plans that are kept need, and rests where nothing runs."""
    monkeypatch.setattr(cache, "KEPT", 8)
    f = ost.compile(lambda x: (ost.sort(x * 2.0) + ost.sort(x * 3.0)).sum())
    session = ost.connect(1)
    (worker,) = session.engine.workers  # type: ignore[attr-defined]
    f(ost.ones(1_000_000))
    assert worker.arena.nbytes > 8_000_000
    for k in range(100):
        f(ost.ones(100 + k))
    assert worker.arena.nbytes < 1_000_000
    session.rest()
    assert worker.arena.nbytes == 0
    assert float(f(ost.ones(100))) == 500.0
    tally("shapes", 101)


# -- iterations ----------------------------------------------------------------------------
def test_iterations(tally: Tally, thorough: bool) -> None:
    """Loops in plain Python with numbers that change, gradients, seeds, slices, and functions."""
    count = 50_000 if thorough else 3_000
    step = ost.compile(lambda w, x, rate: w - rate * ost.grad(lambda w: ((w * x) ** 2).sum())(w))
    x, w, v = ost.asarray(np.full(8, 0.5)), ost.ones(8), ost.ones(8)

    def turn(k: int) -> None:
        nonlocal w, v
        w = step(w, x, 0.01 / (1 + k))
        if not k % 10:
            v = v * 0.5 + x[k % 8] + ost.random.normal((8,)) * 0.0
            ost.evaluate(v)
            g = ost.grad(lambda v: (v * x).sum())(v)
            assert float(g.sum()) == 4.0
        if not k % 100:
            float(w.sum())

    grows_not(turn, 600, count)
    tally("iterations", count)
