"""Captures that something else spoils: they are tried again, and no plan loses its graphs by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests import fake_cuda, fake_device
from tests.sessions import use

X = np.linspace(0, 1, 5000, dtype=np.float32)


def step(x: Any, rate: Any) -> Any:
    return ost.cumulative_sum(x * rate, axis=0) + 1


def ran(run: Any, times: int, more: float = 0.0) -> None:
    """With a number that lies elsewhere each time, so that its first graph is given up."""
    x = ost.asarray(X)
    for k in range(times):
        made = run(x, ost.asarray(np.float32(k)))
        np.testing.assert_allclose(made, np.cumsum(X * np.float32(k)) + 1 + more, 1e-4)


def test_no_graph_ends_while_another_one_is_captured() -> None:
    before = fake_cuda.Graph.ended_in_captures
    with use(device=fake_device.FAKE.name):
        run = ost.compile(step)
        ran(run, 8)
        assert "as one graph" in run.plan.explain()
        for _ in range(20):  # elsewhere each time: graphs make room for others
            run(ost.asarray(X), ost.asarray(np.float32(2)))
        another = ost.compile(lambda x: step(x, 2.0))
        ran(lambda x, rate: another(x) * 0 + step(x, rate), 4)
    assert fake_cuda.Graph.ended_in_captures == before


def test_a_graph_that_ends_in_a_capture_spoils_it() -> None:
    """What the driver does; ours are kept until no thread captures."""
    stream = fake_cuda.Stream(non_blocking=True)

    def captured() -> Any:
        stream.begin_capture(fake_cuda.Runtime.streamCaptureModeThreadLocal)
        return stream.end_capture()

    graph = captured()
    stream.begin_capture(fake_cuda.Runtime.streamCaptureModeThreadLocal)
    del graph
    with pytest.raises(fake_cuda.CUDARuntimeError, match="Invalidated"):
        stream.end_capture()
    captured()


@pytest.mark.parametrize("spoiled", [1, 2, 3, 10])
def test_what_was_spoiled_is_captured_again(spoiled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and after some runs: it never runs operation by operation for good."""
    end, left = fake_cuda.Stream.end_capture, [spoiled]

    def spoiling(self: Any) -> Any:
        if left[0] and self.graph is not None:
            left[0] -= 1
            self.graph.breaks("another thread's call")
        return end(self)

    monkeypatch.setattr(fake_cuda.Stream, "end_capture", spoiling)
    with use(device=fake_device.FAKE.name):
        run = ost.compile(lambda x, rate: step(x, rate) + spoiled)  # a plan of its own
        ran(run, 3, spoiled)
        told = run.plan.explain()
        assert ("as one graph" in told) == (spoiled < 3)
        assert spoiled < 3 or "something else spoiled it" in told
        ran(run, 12, spoiled)
        assert "as one graph" in run.plan.explain()
    assert left == [0]
