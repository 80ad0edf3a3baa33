"""What plans say that they need is what they take: of the arena, to its last byte, and of the process, as the
system counts it."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests import example_models
from tests.planner.test_recompute import arrays, attending, deep, step_of
from tests.sessions import JOB, use

pytestmark = pytest.mark.skipif(JOB > 1, reason="the arena of this process's worker is looked at")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MARK, NEAR = 0xA5, 0.1
OTHERS = 4 << 20  # bytes of threads, caches and small arrays of the library's own


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from example_models.models(monkeypatch)


def trained(model: Any, *shape: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A step of a network, and what it takes."""

    model = model.init(seed=1)

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            return (ost.nn.combine(weights, model).apply(x)[0] ** 2).mean()

        return ost.value_and_grad(loss)(weights)

    x = np.random.default_rng(0).normal(size=shape).astype("f4")
    return step, (ost.nn.parameters(model), ost.asarray(x))


def named(name: str, models: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if name == "unet":
        return trained(models("unet").unet(1, 2, width=8, levels=2), 1, 1, 32, 32, 32)
    if name == "cosmoflow":
        return trained(models("cosmoflow").cosmoflow(32), 6, 4, 32, 32, 32)
    if name == "attention":
        return step_of(attending), arrays(4, 24, 256, wide=64)
    return step_of(deep), arrays(5, 12_000, wide=64)


def status(what: str) -> int:
    found = re.search(rf"{what}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1]) << 10


def grown(session: Any, run: Callable[[], Any]) -> int:
    """By how many bytes the process was larger at most, of a session whose plans rest before."""
    session.engine.rest()
    gc.collect()
    before = status("VmRSS")
    CLEAR.write_text("5")
    run()
    return status("VmHWM") - before


@pytest.mark.parametrize("name", ["deep", "attention", "unet", "cosmoflow"])
def test_a_training_step_takes_what_its_plan_says(name: str, models: Any) -> None:
    step, given = named(name, models)
    with use((1,)) as session:
        function = ost.compile(step)
        function(*given)
        plan, (worker,) = function.plan, session.engine.workers  # type: ignore[attr-defined]
        if name == "deep":
            limit = plan.peak_bytes - int(0.4 * plan.arena_bytes)
            function = ost.compile(memory_limit=limit, offload=True)(step)
            function(*given)
            plan = function.plan
        worker.arena[:] = MARK
        function(*given)
        touched = int(np.flatnonzero(worker.arena != MARK)[-1]) + 1
        assert (1 - NEAR) * plan.arena_bytes <= touched <= plan.arena_bytes
        if not CLEAR.exists():
            return
        needs = plan.arena_bytes + plan.result_bytes
        most = grown(session, lambda: function(*given))
        assert most <= (1 + NEAR) * needs + OTHERS  # less where a process has had more before
