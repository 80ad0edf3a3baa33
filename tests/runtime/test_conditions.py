"""Loops and branches within graphs, whose conditions a GPU looks at: on a fake one, whose driver checks how nodes
are made (tests/fake_driver.py), and whose kernels run on the host."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.tree import flatten
from ostinato.ops.gpu import conditions
from ostinato.ops.gpu.loops.text import OPTIONS
from ostinato.runtime import graph_capture

import ostinato as ost
from tests import fake_driver, nvrtc
from tests.cuda_host import COMPILER
from tests.fake_device import BARE, FAKE, KERNELS
from tests.fake_xp import counted, xp
from tests.planner.test_in_place import CASES, LOOPS, N, copied_bytes, numbers
from tests.runtime.gpu_team import session as team
from tests.sessions import JOB
from tests.thorough import some

pytestmark = [
    pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]
X = np.random.default_rng(0).normal(size=(30, 40))


def replay_of(session: Any) -> Any:
    return list(session.engine.workers[0].plans.values())[-1].replay


def halved(x: Any, most: int | None = None) -> Any:
    """Reads what is around the loop, too; behind it something follows."""
    small = ost.minimum(ost.abs(x).mean(), 0.25)
    y, n = ost.while_loop(
        lambda s: ost.abs(s[0]).max() > 1.0 + small,
        lambda s: (s[0] * 0.5 + small, s[1] + 1),
        (x, ost.asarray(0)),
        most=most,
    )
    return ost.sin(y) + n, n


def halved_in_numpy(x: Any, most: int | None = None) -> Any:
    small, n = min(np.abs(x).mean(), 0.25), 0
    while np.abs(x).max() > 1.0 + small and n != most:
        x, n = x * 0.5 + small, n + 1
    return np.sin(x) + n, n


def collatz(x: Any) -> Any:
    """A loop in a loop, and a branch in that: how many steps until 1, for each of a few numbers."""

    def turn(state: Any) -> Any:
        k, counts = state

        def step(state: Any) -> Any:
            n, c = state
            return ost.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n), c + 1

        _, count = ost.while_loop(lambda s: s[0] > 1, step, (k, ost.asarray(0)))
        return k - 1, counts + count

    return ost.while_loop(lambda s: s[0] > 0, turn, (x, ost.asarray(0)))[1]


def collatz_in_numpy(x: int) -> int:
    total = 0
    for k in range(1, x + 1):
        while k > 1:
            k, total = (k // 2 if k % 2 == 0 else 3 * k + 1), total + 1
    return total


# -- loops -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["fake", KERNELS])
@pytest.mark.parametrize("most", [None, 0, 3])
def test_a_loop_is_part_of_one_graph(device: str, most: int | None) -> None:
    """It makes as many turns as its values ask for: many, one, none. The host waits for nothing."""
    with ost.connect(device=device) as session:
        f = ost.compile(lambda x: halved(x, most))
        for k in (7.0, 7.0, 7.0, 100.0, 0.0, 2.0, 1e6):
            y, n = f(ost.asarray(X * k))
            wanted, turns = halved_in_numpy(X * k, most)
            assert int(n) == turns
            np.testing.assert_allclose(np.asarray(y), wanted, 1e-12)
        x = ost.asarray(X * 50)
        if most == 0:
            assert "while (tests/runtime/test_conditions.py" in f.plan.explain()
            assert "has not turned yet" in f.plan.explain()
            return
        for _ in range(4):
            f(x)
        before = vars(counted).copy()
        for _ in range(10):
            y, n = f(x)
        did = {name: n - before[name] for name, n in vars(counted).items()}
        assert (did["allocations"], did["waits"], did["from_host"], did["to_host"]) == (0,) * 4
        assert did["launches"] <= 10 * (1 + len(replay_of(session).places))
        np.testing.assert_allclose(np.asarray(y), halved_in_numpy(X * 50, most)[0], 1e-12)
        assert "as one graph" in f.plan.explain()


def test_loops_and_branches_within_loops() -> None:
    with ost.connect(device="fake"):
        f = ost.compile(collatz)
        for x in (6, 6, 9, 1, 12, 9, 0):
            assert int(f(ost.asarray(x))) == collatz_in_numpy(x)
        assert "as one graph" in f.plan.explain()


def test_a_loop_of_a_loop_with_a_count() -> None:
    """Turns that are repeated as they stand, within turns that the device counts."""
    with ost.connect(device="fake") as session:
        f = ost.compile(
            lambda x: ost.while_loop(
                lambda x: x.max() > 0.1, lambda x: ost.repeat(5, lambda y: ost.sin(y) * 0.9, x), x
            )
        )
        for _ in range(5):
            y, wanted = f(ost.asarray(X)), X
            while wanted.max() > 0.1:
                for _ in range(5):
                    wanted = np.sin(wanted) * 0.9
            np.testing.assert_allclose(np.asarray(y), wanted, 1e-12)
        assert replay_of(session).launched


@pytest.mark.parametrize("trips", [5, 6])
def test_turns_of_long_loops_are_counted_by_the_device(
    trips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of a graph that has them all."""
    monkeypatch.setattr(graph_capture, "MOST_CALLS", 12)
    with ost.connect(device="fake") as session:
        f = ost.compile(
            lambda x: (
                ost.repeat(
                    trips,
                    lambda c: (ost.sin(c[0]) + c[1] + c[0].mean(), c[1] + 1.0),
                    (x, ost.asarray(0.5)),
                )[0]
                * 2.0
            )
        )
        for _ in range(6):
            y, wanted = f(ost.asarray(X)), X
            for k in range(trips):
                wanted = np.sin(wanted) + (k + 0.5) + wanted.mean()
            np.testing.assert_allclose(np.asarray(y), wanted * 2, 1e-12)
        assert replay_of(session).counted
        assert replay_of(session).launched >= 3
        assert "as one graph" in f.plan.explain()


def test_a_counted_turn_knows_its_number() -> None:
    captures = FAKE.graph_capture()
    loop, index, total = captures.loop(None, 4), xp.zeros((), np.int64), xp.zeros((), np.int64)

    def run() -> None:
        loop.begin((), (), ())
        turn = 0
        while not loop.ends(turn):
            loop.number(index, turn)
            turn += 1
            xp.multiply(total, 10, total)
            xp.add(total, index, total)

    run()
    assert int(total) == 123
    with captures.warm_up():
        run()
    with captures.capturing() as made:
        run()
    for _ in range(2):
        total.fill(0)
        made[0]()
        assert int(total) == 123


@pytest.mark.parametrize(("case", "loop"), some([*itertools.product(CASES, LOOPS)], 2))
def test_what_turns_update_stays_where_it_is(
    case: str, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the graph has all turns, the device counts them, or it looks at their condition: no turn copies
    what it leaves as it was, and no operand is written over."""
    if loop == "repeat":
        monkeypatch.setattr(graph_capture, "MOST_CALLS", 40)
    turn, shapes = CASES[case]
    value = numbers(shapes)
    with ost.connect(device="fake") as session:
        given = ost.tree_map(ost.asarray, value)
        f = ost.compile(lambda s: LOOPS[loop](turn, s))
        found = [flatten(f(given))[0] for _ in range(5)]
        assert copied_bytes(f.plan) <= (8 * N * 4 if case == "rows that are read later" else 0)
        graphs = replay_of(session).launched
        results = [[np.asarray(x) for x in xs] for xs in found]
        left = [np.asarray(x) for x in flatten(given)[0]]
        assert graphs or "branch" in str(f.plan.program.graph)  # which may have gone one way only
    with ost.connect():
        wanted = f(ost.tree_map(ost.asarray, value))
        last = [np.asarray(x) for x in flatten(wanted)[0]]
    for made in results:
        for x, y in zip(made, last, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12)
    for x, y in zip(left, flatten(value)[0], strict=True):
        np.testing.assert_array_equal(x, y)


# -- branches --------------------------------------------------------------------------------------
def test_a_branch_is_taken_down_when_both_ways_are_known() -> None:
    with ost.connect(device="fake") as session:
        f = ost.compile(
            lambda x: (
                ost.cond(x.sum() > 0.0, lambda x: x.sum(0) * 2.0, lambda x: ost.exp(x)[0], x) + 1.0
            )
        )
        positive, negative = ost.asarray(np.abs(X)), ost.asarray(-np.abs(X))

        def check() -> None:
            np.testing.assert_allclose(np.asarray(f(positive)), np.abs(X).sum(0) * 2 + 1, 1e-12)

        for _ in range(4):
            check()
        f(positive)
        assert not replay_of(session).launched
        assert re.search(r"branch \(.*\) has gone one way only", f.plan.explain()), f.plan.explain()
        for _ in range(4):
            np.testing.assert_allclose(np.asarray(f(negative)), np.exp(-np.abs(X))[0] + 1, 1e-12)
            check()
        assert replay_of(session).launched >= 5
        before = counted.waits
        f(negative)
        f(positive)
        assert counted.waits == before


# -- where it cannot be ----------------------------------------------------------------------------
def test_without_the_drivers_nodes_the_host_looks() -> None:
    """At the loop; what lies around is launched."""
    with ost.connect(device=BARE) as session:
        f = ost.compile(halved)
        for _ in range(6):
            y, _ = f(ost.asarray(X * 9))
            np.testing.assert_allclose(np.asarray(y), halved_in_numpy(X * 9)[0], 1e-12)
        said = f.plan.explain()
        assert re.search(
            r"as 2 graphs.*while \(.*\): the host looks at its condition: cuda-bindings is not",
            " ".join(said.split()),
        ), said
        assert replay_of(session).launched


def test_messages_around_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's are part of the graph, and in no body; all workers launch the same."""
    with team((2,), monkeypatch) as made:
        x = ost.asarray(X, split=0)
        f = ost.compile(lambda x: (halved(x.sum(0))[0] * x).sum(0))
        for _ in range(6):
            y = np.asarray(f(x))
        f(x)
        np.testing.assert_allclose(y, (halved_in_numpy(X.sum(0))[0] * X).sum(0), 1e-12)
        assert "as one graph" in f.plan.explain()
        for worker in made.engine.workers:  # type: ignore[attr-defined]
            assert next(iter(worker.plans.values())).replay.launched >= 4


def test_what_a_body_cannot_have_is_named() -> None:
    with ost.connect(device="fake"):
        f = ost.compile(
            lambda x: (
                ost.while_loop(
                    lambda x: x[0, 0] > 0.1, lambda x: ost.sort(x, 0)[::-1] * 0.5, ost.abs(x) + 1.0
                )
                + 1.0
            )
        )
        for _ in range(6):
            y, wanted = f(ost.asarray(X)), np.abs(X) + 1
            while wanted[0, 0] > 0.1:
                wanted = np.sort(wanted, 0)[::-1] * 0.5
            np.testing.assert_allclose(np.asarray(y), wanted + 1, 1e-12)
        said = f.plan.explain()
        assert re.search(r"while \(.*\): sort \(.*\): .*not permitted", said), said


# -- how nodes are made ----------------------------------------------------------------------------
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for driver, version, why in (
        (None, "13.0.0", r"cuda-bindings is not installed"),
        (
            fake_driver,
            "12.9.1",
            r"cuda-bindings 12.9.1 is too old: pip install 'cuda-bindings>=13'",
        ),
        (fake_driver, "13.0.0", r"the driver is of CUDA 12.4, which is older than 12.8"),
    ):
        monkeypatch.setattr(fake_driver, "version", 12040)
        bindings = SimpleNamespace(__version__=version, driver=driver)
        monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=bindings))
        monkeypatch.setitem(sys.modules, "cuda.bindings", bindings if driver else None)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)  # type: ignore[arg-type]
        assert re.search(why, str(conditions.found()))
    monkeypatch.setattr(fake_driver, "version", 12080)
    assert conditions.found() is fake_driver


def test_the_fake_driver_has_the_real_ones_names() -> None:
    real = pytest.importorskip("cuda.bindings.driver")
    for name, function in vars(fake_driver).items():
        if name.startswith("cu") and callable(function):
            head = getattr(real, name).__doc__.splitlines()[0]
            wanted = [part.split(":")[0].split()[-1] for part in _arguments(head)]
            code = function.__code__
            assert [*code.co_varnames[: code.co_argcount]] == wanted, name
    for kind in fake_driver.enum.IntEnum.__subclasses__():
        if kind.__module__ == fake_driver.__name__:
            for member in kind:
                assert int(getattr(getattr(real, kind.__name__), member.name)) == int(member)
    params = real.CUgraphNodeParams()
    params.type = real.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = real.CUgraphConditionalHandle(1 << 63)
    params.conditional.type = real.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    params.conditional.size = 1
    params.conditional.ctx = real.CUcontext(0)
    assert int(params.conditional.handle) == 1 << 63
    assert len(params.conditional.phGraph_out) == 1
    assert int(real.CUstream(77)) == 77


def _arguments(head: str) -> list[str]:
    inside, depth, found = head[head.index("(") + 1 : head.rindex(")")], 0, [""]
    for c in inside:
        depth += (c == "[") - (c == "]")
        if c == "," and not depth:
            found.append("")
        else:
            found[-1] += c
    return [x for x in found if x.strip()]


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC's wheel")
def test_the_kernel_that_sets_a_condition_compiles() -> None:
    assert "cudaGraphSetConditional" in nvrtc.compiled(conditions.TEXT, OPTIONS)


def test_the_fake_driver_finds_wrong_nodes() -> None:
    """A condition that nothing sets, a body that forgets it, a node that nothing waits for."""
    captures = FAKE.graph_capture()
    bodies, flag = captures.bodies, FAKE.from_host(np.array(True))  # type: ignore[attr-defined]
    bodies.prepare()
    turns, x = xp.zeros((), np.int64), FAKE.from_host(np.ones(3))

    def looping(first: bool, again: bool) -> None:
        def start(handle: int) -> None:
            if first:
                bodies.set(handle, flag, turns, 5, True)

        handle, (body,) = bodies.node("CU_GRAPH_COND_TYPE_WHILE", 1, start)
        bodies.enter(body)
        xp.add(x, 1.0, x)
        if again:
            bodies.set(handle, flag, turns, 5, False)
        bodies.leave()

    for first, again in ((True, True), (False, True), (True, False)):
        with captures.capturing() as made:
            looping(first, again)
        if first and again:
            made[0]()
            assert FAKE.to_host(x).tolist() == [6, 6, 6]
        else:
            with pytest.raises(AssertionError, match="no kernel has set the condition"):
                made[0]()
    update, fake_driver.cuStreamUpdateCaptureDependencies = (
        fake_driver.cuStreamUpdateCaptureDependencies,
        lambda *_: (fake_driver.GOOD,),
    )
    try:
        with pytest.raises(RuntimeError, match="nothing waits for"), captures.capturing():
            looping(True, True)
    finally:
        fake_driver.cuStreamUpdateCaptureDependencies = update
