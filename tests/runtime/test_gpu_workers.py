"""Workers with a GPU each, on fake ones: plans whose messages go by NCCL, beside kernels and within graphs."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu.capture import Captures
from ostinato.runtime.messages import on_device
from ostinato.runtime.worker import Worker

import ostinato as ost
from ostinato.errors import CommunicatorError
from tests import fake_cuda, fake_nccl, fake_xp
from tests.fake_xp import counted
from tests.planner.test_any_layout import overlapping, splits_for
from tests.programs import make_program
from tests.runtime.gpu_team import session
from tests.sessions import JOB

pytestmark = pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
X = np.random.default_rng(0).normal(size=(300, 40))
MESHES: tuple[tuple[int, ...], ...] = ((2,), (3,), (2, 2))
Patch = pytest.MonkeyPatch


def since(before: dict[str, int]) -> dict[str, int]:
    return {name: n - before[name] for name, n in vars(counted).items()}


def replays(made: Any) -> list[Any]:
    """Of the plan that ran last, on each worker."""
    return [list(w.plans.values())[-1].replay for w in made.engine.workers]


# -- what it computes -------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_again_and_again(seed: int, monkeypatch: Patch) -> None:
    """In random layouts, with other operands in each run."""
    r = random.Random(seed)
    program, mesh = make_program(r), r.choice(MESHES)
    monkeypatch.setattr(on_device, "AT_ONCE", r.choice((0, on_device.AT_ONCE)))
    first = program.inputs
    numerics = r.choice(("same-plan", "any-workers", "fast"))
    with session(mesh, monkeypatch, numerics=numerics):
        run = ost.compile(program.by_ostinato)
        splits = [splits_for(r, x.ndim, mesh) for x in first]
        kept = []
        for k in range(5):
            program.inputs = [np.flip(x).copy() if k % 2 else x for x in first]
            pairs = zip(program.inputs, splits, strict=True)
            given = [ost.asarray(x, split=s) for x, s in pairs]
            kept.append((run(*given), program.by_numpy()))
        for found, wanted in kept:
            for y, z in zip(found, wanted, strict=True):
                np.testing.assert_allclose(np.asarray(y), z, 1e-8, 1e-8)


@pytest.mark.parametrize("seed", range(8))
def test_random_relayouts(seed: int, monkeypatch: Patch) -> None:
    r = random.Random(seed)
    workers = r.choice((4, 6))
    meshes = [(a, workers // a) for a in range(1, workers + 1) if workers % a == 0]
    shape = tuple(r.choice((0, 1, 3, 5, 7)) for _ in range(r.randint(1, 3)))
    x = r.random() + np.arange(np.prod(shape)).reshape(shape)
    with session((workers,), monkeypatch):
        y = ost.asarray(x)
        for _ in range(4):
            mesh = r.choice(meshes)
            y = y.resplit(splits_for(r, len(shape), mesh), mesh=mesh)
        np.testing.assert_array_equal(np.asarray(y), x)
        z = overlapping(r, x, (workers,)) * 2.0
        np.testing.assert_array_equal(np.asarray(z), x * 2)


def test_bits_are_those_of_threads(monkeypatch: Patch) -> None:
    """Sums of floats are made in the order of ranks, in halves in float32."""

    def f(x: Any) -> tuple[Any, ...]:
        narrow = x.astype("float16")
        return x.sum(0), narrow.sum(0), x.argmin(0), x.var(0), (x * 100).astype("int32").sum(0)

    found = []
    for at_once in (0, 1 << 18):
        monkeypatch.setattr(on_device, "AT_ONCE", at_once)
        for device in ("cpu", "fake"):
            with session((3,), monkeypatch) if device == "fake" else ost.connect(3):
                run, x = ost.compile(f), ost.asarray(X.astype("f4"), split=0)
                found.append([np.asarray(y) for y in [run(x) for _ in range(4)][-1]])
    for other in found[1:]:
        for y, z in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(y, z)


def test_what_goes_on_from_worker_to_worker(monkeypatch: Patch) -> None:
    with session((3,), monkeypatch) as made:
        f = ost.compile(lambda x: ost.cumulative_sum(x, axis=0))
        for k in range(5):
            y = f(ost.asarray(X + k, split=0))
            np.testing.assert_allclose(np.asarray(y), np.cumsum(X + k, 0), 1e-9, 1e-9)
        assert all(r.launched or r.why for r in replays(made))


# -- graphs ----------------------------------------------------------------------------------------
def test_a_training_step_is_one_launch_on_each(monkeypatch: Patch) -> None:
    """With its all-reduces; nothing is allocated, waited for, or sent over the bus."""

    def loss(w: Any, x: Any, y: Any) -> Any:
        return ((ost.tanh((x * w).sum(1)) - y) ** 2).mean()

    @ost.compile(donate="w")
    def step(w: Any, x: Any, y: Any) -> tuple[Any, Any]:
        value, slope = ost.value_and_grad(loss)(w, x, y)
        return w - 0.1 * slope, value

    def train(runs: int) -> tuple[Any, list[Any]]:
        w, x, y = ost.zeros(40), ost.asarray(X, split=0), ost.asarray(X[:, 0], split=0)
        values = []
        for _ in range(runs):
            w, value = step(w, x, y)
            values.append(value)
        return w, values

    with ost.connect():
        wanted = [np.asarray(x) for x in train(20)[1]]
    with session((3,), monkeypatch) as made:
        w, values = train(20)
        np.testing.assert_allclose([np.asarray(x) for x in values], wanted, 1e-9)
        assert all(r.launched >= 14 for r in replays(made))
        x, y = ost.asarray(X, split=0), ost.asarray(X[:, 0], split=0)
        for _ in range(12):
            w, _ = step(w, x, y)
        before, calls = vars(counted).copy(), fake_nccl.counted["calls"]
        for _ in range(10):
            w, _ = step(w, x, y)
        did = since(before)
        most = 10 * sum(1 + len(r.places) for r in replays(made))
        assert did["launches"] <= most, "a graph, and what is small goes to its place"
        assert (did["waits"], did["from_host"], did["to_host"]) == (0, 0, 0)
        assert fake_nccl.counted["calls"] == calls, "they are within graphs"
        assert "as one graph" in step.plan.explain()


def test_workers_whose_memory_lies_otherwise_agree_on_graphs(monkeypatch: Patch) -> None:
    """One of them makes all anew; what is captured, and which graph is launched, stays common to all
    (fake_nccl finds what is not)."""
    with session((3,), monkeypatch) as made:
        f = ost.compile(lambda x: (x * 2.0).sum(0) + x.max())
        xs = [ost.asarray(X + k, split=0) for k in range(3)]
        for turn in range(12):
            if turn == 5:
                made.engine.workers[1]._make_room()  # type: ignore[attr-defined]
            y = f(xs[turn % 3])
            x = X + turn % 3
            np.testing.assert_allclose(np.asarray(y), (x * 2).sum(0) + x.max())
        assert len({r.launched for r in replays(made)[::2]}) == 1
        assert all(r.launched for r in replays(made))


def test_what_no_graph_can_have_runs_between_those_of_all(monkeypatch: Patch) -> None:
    """Messages are within the graphs around it, or, where they are under way meanwhile, beside them."""
    with session((3,), monkeypatch) as made:
        f = ost.compile(lambda x, y: (ost.sort(x * 2.0, 1).sum(0) / x.max(), ost.sort(y, 1).sum(0)))
        x, y = (ost.asarray(z, split=0) for z in (X, X[::-1].copy()))
        for _ in range(8):
            found = f(x, y)
            wanted = np.sort(X * 2, 1).sum(0) / X.max(), np.sort(X, 1).sum(0)
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(np.asarray(a), b)
        assert all(r.launched >= 3 and r.parts.count > 1 for r in replays(made))
        assert "operation by operation sort" in f.plan.explain()


@pytest.mark.parametrize("knows", [True, False])
def test_what_one_cannot_take_down_all_leave_out(knows: bool, monkeypatch: Patch) -> None:
    """And run it apart, if that one knows what it is."""
    own, kernel = Captures.capturing, fake_xp.xp.sin

    @contextlib.contextmanager
    def capturing(self: Any) -> Iterator[Any]:
        with own(self) as found:
            yield found
            if not knows and fake_cuda.Device().id == 1:
                raise RuntimeError("not on this one")

    def sin(*given: Any, **how: Any) -> Any:
        if knows and fake_cuda.Device().id == 1 and fake_cuda.capturing() is not None:
            raise RuntimeError("not on this one")
        return kernel(*given, **how)

    monkeypatch.setattr(Captures, "capturing", capturing)
    monkeypatch.setattr(fake_xp.xp, "sin", sin)
    with session((3,), monkeypatch) as made:
        f = ost.compile(lambda x: (ost.exp(x) + ost.sin(x[:, ::-1])).sum(0) * 2.0)
        x = ost.asarray(X, split=0)
        for _ in range(8):
            wanted = (np.exp(X) + np.sin(X[:, ::-1])).sum(0) * 2
            np.testing.assert_allclose(np.asarray(f(x)), wanted)
        found = replays(made)
        if knows:
            assert all(r.launched >= 2 for r in found)
            assert len({(r.launched, *r.apart) for r in found}) == 1
            assert ["not on this one" in r.how for r in found] == [False, True, False]
            assert ["another worker could not" in r.how for r in found] == [True, False, True]
        else:
            assert all(r.why and not r.launched for r in found)


def test_messages_and_kernels_overlap(monkeypatch: Patch) -> None:
    """Between start and wait kernels run that wait for no message."""
    with session((2,), monkeypatch):
        f = ost.compile(lambda x, y: (x.sum(0), ost.sin(y) * 2))
        x, y = ost.asarray(X, split=0), ost.asarray(X, split=0)
        f(x, y)
        ops = [(n.op, n.kw.get("op", "")) for n in f.plan.program.graph.nodes]
        start = next(k for k, (op, _) in enumerate(ops) if op == "start")
        wait = next(k for k, (op, _) in enumerate(ops) if op == "wait")
        assert wait - start > 1, ops
        for found, wanted in zip(f(x, y), (X.sum(0), np.sin(X) * 2), strict=True):
            np.testing.assert_allclose(np.asarray(found), wanted)


# -- without NCCL -----------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["absent", "shared"])
def test_by_way_of_the_hosts_memory(how: str, monkeypatch: Patch) -> None:
    if how == "absent":
        monkeypatch.setattr(fake_nccl, "available", False)
    else:
        monkeypatch.setattr(fake_cuda.Device, "pci_bus_id", "0000:00:00.0")
    with session((3,), monkeypatch) as made:
        f = ost.compile(lambda x: x.sum(0))
        before = fake_nccl.counted["calls"]
        for _ in range(4):
            np.testing.assert_allclose(np.asarray(f(ost.asarray(X, split=0))), X.sum(0))
        assert fake_nccl.counted["calls"] == before
        why = {"absent": "worker 0 has no library", "shared": "workers 0 and 1 share a device"}[how]
        assert all(why in w["messages"] for w in made.stats()["workers"])
        assert "workers meet on the host" in f.plan.explain()


# -- failures ---------------------------------------------------------------------------------------
def test_a_worker_that_fails_releases_the_others_and_all_begin_anew(monkeypatch: Patch) -> None:

    def fails(worker: Any, *given: Any) -> Any:
        if worker.rank == 1:
            raise ZeroDivisionError("here")
        return step(worker, *given)

    step = Worker.step
    with session((3,), monkeypatch) as made:
        f = ost.compile(lambda x: ost.roll((x * 2.0).sum(0), 1))
        x = ost.asarray(X, split=0)
        for _ in range(5):
            y = f(x)
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(Worker, "step", fails)
                with pytest.raises(ZeroDivisionError, match="here"):
                    f(x)
            for _ in range(4):
                y = f(x)
            np.testing.assert_allclose(np.asarray(y), np.roll((X * 2).sum(0), 1))
        assert all(r.launched for r in replays(made))


def test_a_worker_that_never_comes_is_an_error(monkeypatch: Patch) -> None:
    """Its GPU is gone: what others wait for is given up."""
    with session((2,), monkeypatch) as made:
        f = ost.compile(lambda x: x.sum(0))
        x = ost.asarray(X, split=0)
        f(x)
        lost = made.engine.workers[1].communicator  # type: ignore[attr-defined]
        lost.messenger.abort()
        with pytest.raises(
            CommunicatorError, match=r"worker \d cannot talk to other workers|waited"
        ):
            f(x)
        np.testing.assert_allclose(np.asarray(f(x)), X.sum(0))
