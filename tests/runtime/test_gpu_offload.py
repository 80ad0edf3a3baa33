"""Values that leave a GPU's memory for the host's while nobody reads them, on a fake one: on a stream of its
own, with the bits of a plan without a limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu.copies import HostStore
from ostinato.planner.passes import fitting

import ostinato as ost
from ostinato.errors import ArgumentError, MemoryLimitError
from tests import fake_cuda
from tests.fake_xp import from_host, to_host, xp
from tests.planner.test_offload import far, halves, limit_of, same, squares, stores
from tests.sessions import JOB, forget_plans, use

pytestmark = pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is made in turns nor again."""
    monkeypatch.setattr(fitting, "cut_further", lambda *_: [])
    monkeypatch.setattr(fitting, "recomputed", lambda graph, program, *_: (graph, program))
    monkeypatch.setattr(fitting, "recomputed_below", lambda graph, *_: graph)
    forget_plans()
    yield
    forget_plans()


@pytest.mark.parametrize(("workers", "said"), [(1, None), (2, "host")])
def test_plans_have_the_same_bits(alone: None, workers: int, said: Any) -> None:
    """Also where nothing is said, as nothing else fits; kernels between the copies are graphs."""
    x, w = squares(64)
    with use((workers,), device="fake") as session:
        wanted = ost.compile(far)(x, w)
        free = ost.compile(donate=(0,))(far)
        limit = limit_of(free.plan_for(ost.array(x), w), 0.8)
        function = ost.compile(memory_limit=limit, offload=said, donate=(0,))(far)
        for _ in range(4):
            same(function(ost.array(x), w), wanted)
        plan = function.plan
        assert plan.peak_bytes <= limit
        assert halves(plan.program) == {"stash": 1, "fetch": 1}
        found = stores(session)
        assert len(found) == workers
        assert all(isinstance(s, HostStore) for s in found)
        assert all(s.written == s.read > 0 for s in found)  # since they were bound
        plans = [p for w in session.engine.workers for p in w.kept_plans]  # type: ignore[attr-defined]
        replays = [p.replay for p in plans if p.bound is not None and p.bound.away in found]
        assert all(r is not None and r.launched and not r.missed for r in replays)
        assert "moved to the host's memory and back" in str(plan.explain())
        with pytest.raises(MemoryLimitError):
            ost.compile(memory_limit=limit, offload=False)(far)(x, w)


def test_loops_are_asked_for_by_the_host(alone: None) -> None:
    x, w = squares(64)

    def loop(x: Any, w: Any) -> Any:
        return ost.repeat(3, lambda s: far(s, w) * 1e-3 + x, x)

    with use((1,), device="fake"):
        free = ost.compile(loop)
        wanted = free(x, w)
        function = ost.compile(memory_limit=limit_of(free.plan, 0.85))(loop)
        for _ in range(3):
            same(function(x, w), wanted)
        assert function.plan.offloaded_bytes


def test_copies_wait_for_kernels_and_kernels_for_copies() -> None:
    store = HostStore(xp)
    x = from_host(np.arange(1000.0))
    places = [store.place(x.nbytes) for _ in range(2)]
    assert places[1] % 512 == 0
    for n in range(3):
        x += 1
        gone = store.stash(places[n % 2], x)
        gone.wait()
        x *= 0
        back = store.fetch(places[n % 2], x)
        back.wait()
    np.testing.assert_array_equal(to_host(x), np.arange(1000.0) + 3)
    store.settle()
    x += 1
    store.stash(places[0], x)
    with pytest.raises(AssertionError, match="stream"):  # nobody waited
        x *= 0
    fake_cuda.get_current_stream().synchronize()
    store.let_go()
    assert store.memory is None


def test_a_gpu_has_no_disk() -> None:
    with use((1,), device="fake"), pytest.raises(ArgumentError, match=r"needed .host\b"):
        ost.compile(memory_limit=1 << 20, offload="disk")(lambda x: x + 1)(np.ones(3))
