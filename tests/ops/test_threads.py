"""How threads share the turns of kernels: what is claimed, who is waited for, what the system allows.

Regions are played with boxes of their own, so that helpers come when a test says."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.cpu import threads
from ostinato.ops.cpu.jit import code, llvm, parallel
from ostinato.ops.cpu.libraries import onednn
from ostinato.ops.cpu.threads import ALLOWED, HELPERS, SPIN
from ostinato.ops.jit.stacks import stacked, transposed

import ostinato as ost

pytestmark = pytest.mark.skipif(
    not threads.has_pool() or bool(llvm.why_not()), reason="no threads, or no machine code"
)
LONG = 60  # seconds that nothing takes
Body = Callable[[int, int, int], None]
_BODY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)


class Stage:
    """Facts and boxes that are played, and the machine code that goes by them."""

    def __init__(self, allowed: int = 2, helpers: int = 1, spin: int = 1000) -> None:
        self.facts = np.zeros(8, np.int64)
        self.facts[[ALLOWED, HELPERS, SPIN]] = allowed, helpers, spin
        self.boxes = np.zeros((helpers, threads.BOX), np.int64)
        system = ctypes.CDLL(None)
        for box in self.boxes:
            for semaphore in (parallel.WAKE, parallel.BACK):
                system.sem_init(ctypes.c_void_p(box.ctypes.data + semaphore), 0, 0)
        parallel._ready()
        number = next(_numbers)
        for name, array in (("facts_of_threads", self.facts), ("boxes_of_helpers", self.boxes)):
            code.symbol(f"{name}_{number}", array)

        def played(text: str, result: Any, many: int) -> Any:
            for name in ("facts_of_threads", "boxes_of_helpers"):
                text = text.replace(f"@{name}", f"@{name}_{number}")
            return llvm._load_or_make(text).function(result, *[ctypes.c_void_p] * many)

        self.region = played(parallel._region(), None, 3)
        self.helper = played(parallel._helper(), ctypes.c_void_p, 1)
        self.end = played(parallel._ending(), ctypes.c_int64, 1)

    def run(self, turns: int, wanted: int, body: Body) -> None:
        """All turns, by this thread and whoever comes."""
        meta = np.array([turns, wanted], np.int64)
        called = _BODY(lambda _, __, lo, hi, t: body(lo, hi, t))
        self.region(None, meta.ctypes.data, ctypes.cast(called, ctypes.c_void_p))

    @contextlib.contextmanager
    def helping(self, which: int = 0) -> Iterator[None]:
        """A helper that is at its box."""
        at = self.boxes[which].ctypes.data
        thread = threading.Thread(target=self.helper, args=(at,))
        thread.start()
        yield
        while not self.end(at):
            pass
        thread.join(LONG)
        assert not thread.is_alive()


_numbers = itertools.count()


class Notes:
    """Which turns were done, by whom."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int, int]] = []

    def __call__(self, lo: int, hi: int, t: int) -> None:
        self.done.append((lo, hi, t))

    def check(self, turns: int) -> None:
        ranges = sorted((lo, hi) for lo, hi, _ in self.done)
        assert [k for lo, hi in ranges for k in range(lo, hi)] == list(range(turns))

    @property
    def who(self) -> set[int]:
        return {t for _, _, t in self.done}


# -- claims --------------------------------------------------------------------------------
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), st.integers(1, 300), st.data())
def test_each_turn_is_claimed_once_in_any_order(n: int, turns: int, data: Any) -> None:
    """Threads begin in any order, when another one has done any number of slices, or never."""
    order = data.draw(st.permutations(range(n)))[: data.draw(st.integers(1, n))]
    after = [data.draw(st.integers(0, 8 * n)) for _ in order[1:]]
    take = llvm.linked(parallel._slices()).function(None, ctypes.c_void_p)
    notes, waiting = Notes(), list(zip(after, order[1:], strict=True))
    region = np.zeros((n + 1, parallel.LINE // 8), np.int64)

    def body(_: int, __: int, lo: int, hi: int, t: int) -> None:
        notes(lo, hi, t)
        while waiting and len(notes.done) > waiting[0][0]:
            take(region[1 + waiting.pop(0)[1]].ctypes.data)

    called, meta = _BODY(body), np.array([turns, n], np.int64)
    region[0, 1:4] = meta.ctypes.data, ctypes.cast(called, ctypes.c_void_p).value or 0, n
    region[1:, 1], region[1:, 2] = region.ctypes.data, range(n)
    take(region[1 + order[0]].ctypes.data)
    notes.check(turns)


@pytest.mark.parametrize("state", [parallel.FREE, parallel.ASLEEP])
def test_who_never_comes_is_not_waited_for(state: int) -> None:
    """Whether it is awake, or asleep and slow to wake; its box is as if nobody had asked."""
    stage, notes = Stage(), Notes()
    stage.boxes[0, 0] = state
    for turns in (1, 5, 100):
        stage.run(turns, 2, notes)
        notes.check(turns)
        assert notes.who == {0}
        assert stage.boxes[0, 0] == parallel.FREE
        notes.done.clear()


def test_who_comes_late_finds_nothing_to_do() -> None:
    """It is woken by a region that is over when it looks: no word of that is left where it does."""
    stage, notes = Stage(), Notes()
    stage.boxes[0, 0] = parallel.ASLEEP
    stage.run(50, 2, notes)
    with stage.helping():
        while stage.boxes[0, 0] != parallel.ASLEEP:
            pass
    assert notes.who == {0}
    notes.check(50)


def test_who_is_held_is_waited_for_with_its_slice_only() -> None:
    """A lock holds the helper in the middle of its first slice until all others are done."""
    stage, notes, begun, others = Stage(), Notes(), threading.Event(), threading.Event()

    def body(lo: int, hi: int, t: int) -> None:
        if t == 1 and not begun.is_set():
            begun.set()
            assert others.wait(LONG)
        notes(lo, hi, t)
        if t == 0:
            assert begun.wait(LONG)
            if len(notes.done) == 15:
                others.set()

    with stage.helping():
        stage.run(64, 2, body)
    notes.check(64)
    assert sum(t == 1 for _, _, t in notes.done) == 1
    assert notes.who == {0, 1}


def test_who_is_done_does_not_wait_awake_for_who_has_no_core() -> None:
    """The caller is held in its first slice until the helper, which did all others, sleeps."""
    stage, notes, until = Stage(), Notes(), time.monotonic() + LONG
    begun = threading.Event()

    def body(lo: int, hi: int, t: int) -> None:
        if t == 0:
            begun.set()
        assert begun.wait(LONG)
        while t == 0 and stage.boxes[0, 0] != parallel.RESTS:
            assert time.monotonic() < until
        notes(lo, hi, t)

    with stage.helping():
        for _ in range(3):
            stage.run(64, 2, body)
            notes.check(64)
            assert sum(t == 0 for _, _, t in notes.done) == 1
            assert stage.boxes[0, 0] == parallel.ASLEEP
            notes.done.clear()
            begun.clear()


def test_one_that_is_at_work_elsewhere_is_not_asked() -> None:
    """A region inside another's slice finds the helper taken, and does without."""
    stage, inner, begun, over = Stage(), Notes(), threading.Event(), threading.Event()

    def outer(_: int, __: int, t: int) -> None:
        if t == 1:
            begun.set()
            assert over.wait(LONG)
        elif begun.wait(LONG) and not over.is_set():
            stage.run(30, 2, inner)
            over.set()

    with stage.helping():
        stage.run(16, 2, outer)
    inner.check(30)
    assert inner.who == {0}


# -- accounts ------------------------------------------------------------------------------
def after(account: int, worked: int, own: int, theirs: int) -> tuple[int, int]:
    """A helper's account, and for how long it is left alone, when it had done so many slices."""
    text = parallel._Text()
    parallel._back(text, "%box", "%line", "%worked", "%own", "1000")
    head = "void @run(ptr %box, ptr %line, i64 %worked, i64 %own)"
    many = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2
    back = llvm.linked(text.function(head, "ret void")).function(None, *many)
    box, line = np.zeros(threads.BOX, np.int64), np.zeros(8, np.int64)
    box[0], box[parallel.ACCOUNT // 8] = parallel.DONE, account
    line[parallel.MADE // 8] = theirs
    begin = time.monotonic_ns()
    back(box.ctypes.data, line.ctypes.data, worked, own)
    assert box[0] == parallel.FREE
    until = int(box[parallel.UNTIL // 8])
    return int(box[parallel.ACCOUNT // 8]), until - begin if until else 0


def test_an_account_has_what_was_saved_and_no_more_than_that_is_spent() -> None:
    second = 10**9
    assert after(0, second, 8, 8) == (parallel.MOST_SAVED, 0)
    account, alone = after(-20 * second, 4 * second, 8, 4)  # it saved 2 seconds
    assert account == 0
    assert 18 * parallel.PATIENCE <= alone / second < 19 * parallel.PATIENCE
    account, alone = after(-20 * second, 4 * second, 1, 15)  # no more than the other one worked
    assert 16 * parallel.PATIENCE <= alone / second < 17 * parallel.PATIENCE
    account, alone = after(0, 0, 0, 1)  # waiting has cost a moment
    assert account == 0
    assert alone > 0


def test_who_is_left_alone_is_not_asked() -> None:
    """All turns are then one call."""
    stage, notes = Stage(allowed=3, helpers=2), Notes()
    stage.boxes[:, parallel.UNTIL // 8] = 1 << 62
    stage.run(40, 3, notes)
    assert notes.done == [(0, 40, 0)]
    stage.boxes[1, parallel.UNTIL // 8] = 0
    stage.run(40, 3, notes)
    assert len(notes.done) == 1 + 3 * parallel.SLICES, "the second one was asked"


@pytest.mark.parametrize(("allowed", "wanted"), [(1, 2), (2, 1), (0, 5)])
def test_who_may_use_one_thread_asks_nobody(allowed: int, wanted: int) -> None:
    stage, notes = Stage(allowed=allowed), Notes()
    stage.run(9, wanted, notes)
    assert notes.done == [(0, 9, 0)]


# -- bits ----------------------------------------------------------------------------------
def bits(count: int, run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    monkeypatch.setattr("ostinato.runtime.worker.most_threads", lambda: count)
    with ost.connect(threads=count):
        return [np.asarray(x).tobytes() for x in run()]


@pytest.mark.parametrize("busy", [False, True])
def test_bits_are_those_of_one_thread(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if helpers are left alone in every second region."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((700, 90)), rng.standard_normal((90, 300))
    f = x.astype(np.float32), w.astype(np.float32)

    def run() -> list[Any]:
        @ost.compile
        def step(x: Any, w: Any) -> tuple[Any, ...]:
            y = x @ w
            near = ((x[:, None, :8] - x[None, :5, :8]) ** 2).sum(-1).argmin(1)
            soft = ost.exp(y - y.max(1, keepdims=True))
            return y, (soft / soft.sum(1, keepdims=True)).sum(0), near, ost.tanh(y).mean(), y.std(0)

        found = []
        for given_ in ((x, w), f):
            for k in range(2):
                threads.boxes[:, parallel.UNTIL // 8] = (1 << 62) * (busy and k)
                found += step(*given_)
        threads.boxes[:, parallel.UNTIL // 8] = 0
        return found

    one = bits(1, run, monkeypatch)
    for count in (2, 4):
        assert bits(count, run, monkeypatch) == one


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_blocks_of_onednn_are_the_product_with_any_threads(data: Any) -> None:
    if isinstance(onednn.library(), str):
        pytest.skip(str(onednn.library()))
    m, n = (data.draw(st.sampled_from([2, 17, 64, 130, 300])) for _ in range(2))
    k, batch = data.draw(st.sampled_from([3, 40, 257])), data.draw(st.sampled_from([0, 0, 1, 5]))
    lead = (batch,) if batch else ()
    rng = np.random.default_rng(m * n + k)

    def matrix(*shape: int) -> Any:
        turned = data.draw(st.booleans())
        made = rng.standard_normal(lead + shape[::-1] if turned else lead + shape)
        made = made.astype(np.float32)
        return made.swapaxes(-1, -2) if turned else made

    a, b, found = matrix(m, k), matrix(k, n), []
    turned = data.draw(st.booleans())
    for count in (1, 2, 4):
        out = np.zeros((*lead, n, m) if turned else (*lead, m, n), np.float32)
        out = out.swapaxes(-1, -2) if turned else out
        stacks = stacked(a, b, out)
        assert stacks is not None
        left, right, result = stacks
        if turned:
            left, right, result = transposed(right), transposed(left), transposed(result)
        run = onednn.onednn_product(left, right, result, turned, count, False, False)
        run(a, b, out)
        np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-3)
        found.append(out.tobytes())
    assert found[1:] == found[:1] * 2


@pytest.mark.parametrize("shape", [(40, 300, 600), (300, 64, 300), (2, 500, 1000)])
def test_packed_weights_of_blocks(shape: tuple[int, int, int]) -> None:
    if isinstance(onednn.library(), str):
        pytest.skip(str(onednn.library()))
    m, k, n = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    out, plain = np.empty((2, m, n), np.float32)
    stacks = stacked(a, b, out)
    assert stacks is not None
    onednn.onednn_product(*stacks, False, 2, False, False)(a, b, plain)
    with contextlib.suppress(onednn.Unable):  # where they lie best as they are
        run, kept = onednn.with_weights(*stacks, 2, False, b)
        assert kept >= b.nbytes
        b[:] = 0  # which it does not look at
        run(a, b, out)
        assert out.tobytes() == plain.tobytes()


# -- what the system, and the user, allow --------------------------------------------------
@pytest.mark.cpu_only
@pytest.mark.skipif(threads.cores() < 2, reason="there is one core")
def test_kernels_follow_the_affinity() -> None:
    x = ost.asarray(np.random.default_rng(0).standard_normal(1 << 20))
    step = ost.compile(lambda x: ost.exp(x) * ost.sin(x))
    ost.evaluate(step(x))
    anywhere, own = os.sched_getaffinity(0), os.getpid()
    one = {min(anywhere)}
    helpers = threads.boxes[: threads.facts[HELPERS], threads.NUMBER].tolist()
    assert helpers
    assert 0 not in helpers
    wanted = np.asarray(step(x)).tobytes()
    try:
        os.sched_setaffinity(own, one)
        threads.look()
        assert threads.facts[ALLOWED] == 1
        assert all(os.sched_getaffinity(number) == one for number in helpers)
        assert np.asarray(step(x)).tobytes() == wanted
    finally:
        os.sched_setaffinity(own, anywhere)
        threads.look()
    assert threads.facts[ALLOWED] == threads.ANY
    assert all(os.sched_getaffinity(number) == anywhere for number in helpers)


def test_plans_look_at_what_is_allowed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[float]()
    monkeypatch.setattr(threads, "look", looks.append)
    monkeypatch.setattr(threads, "_allowed", threads._Allowed())
    step = ost.compile(lambda x: x + 1)
    for _ in range(3):
        monkeypatch.setattr(time, "monotonic", lambda: 100.0)
        float(step(1.0))
    assert looks == [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 + threads.OFTEN)
    float(step(1.0))
    assert looks == [100.0, 100.0 + threads.OFTEN]


def test_control_groups_that_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.setattr(threads, "_allowed", threads._Allowed(os.sched_getaffinity(0)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    before = threads.facts.copy()
    try:
        for quota, allowed in ((3.5, 4), (0.5, 1), (8.0, threads.ANY), (np.inf, threads.ANY)):
            monkeypatch.setattr(threads, "quota", lambda quota=quota: quota)
            threads._allowed.next_quota = 0
            threads.look()
            assert threads.facts[ALLOWED] == allowed
    finally:
        threads.facts[:] = before


PROGRAM = """
import os, numpy as np
before = dict(os.environ)
import ostinato as ost
from ostinato.ops.cpu import threads
x = ost.asarray(np.ones((900, 900), np.float32))
ost.evaluate(ost.compile(lambda x: ost.exp((x @ x) * 1e-3).sum(1) @ x)(x))
assert dict(os.environ) == before, "it is the user's"
numbers = threads.boxes[: threads.facts[threads.HELPERS], threads.NUMBER].tolist()
assert all(os.sched_getaffinity(n) == threads.AT_START for n in numbers)
print(threads.facts[threads.SPIN], len(numbers), threads.PLACED)
"""


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    ("variables", "spin", "helps", "placed"),
    [
        ({}, 50_000, True, False),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, 0, True, False),
        ({"OMP_WAIT_POLICY": "active"}, 10_000_000, True, False),
        ({"OMP_NUM_THREADS": "1"}, 50_000, False, False),
        ({"OMP_PROC_BIND": "false"}, 50_000, True, False),
        ({"OMP_PROC_BIND": "close", "GOMP_SPINCOUNT": "7"}, 50_000, True, True),
    ],
)
def test_openmps_variables_hold(
    variables: dict[str, str], spin: int, helps: bool, placed: bool
) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=clean | variables, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    helpers = int(helps and threads.cores() > 1)
    said = ran.stdout.split()
    assert (int(said[0]), min(1, int(said[1])), said[2]) == (spin, helpers, str(placed))
