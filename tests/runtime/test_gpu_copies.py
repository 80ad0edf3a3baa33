"""Batches on their way to a GPU while it computes, on a fake one: a ring of pinned memory that nobody writes to
while it is read, a stream of its own, and places that are used again when nobody reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu import copies
from ostinato.ops.gpu.copies import KEPT, Copies

import ostinato as ost
from tests import fake_cuda
from tests.fake_device import FAKE
from tests.fake_xp import to_host, xp
from tests.sessions import JOB, use

pytestmark = pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")


def batch(k: int, n: int = 1000) -> Any:
    return np.random.default_rng(k).integers(0, 255, (n, 40)).astype(np.uint8)


@pytest.mark.parametrize("piece", [1 << 24, 7000, 40_000])
def test_values_arrive_in_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "PIECE", piece)
    there = Copies(xp)
    for k in range(8):
        given = batch(k, 1000 + k)
        found = there.send(given)
        given[...] = 0
        np.testing.assert_array_equal(to_host(found * 1), batch(k, 1000 + k))
    for k in range(12):
        there.send(batch(k))
    there.stream.synchronize()


def test_places_are_used_again_but_not_while_somebody_has_them() -> None:
    there, kept, seen = Copies(xp), [], set()
    for k in range(30):
        x = there.send(batch(k))
        seen.add(x.data.ptr)
        if k in (3, 7):
            kept.append((k, x))
        y = x.astype(np.float32) + 1.0
        np.testing.assert_array_equal(to_host(y), batch(k) + np.float32(1))
        del x
    assert len(seen) <= KEPT + len(kept)
    for k, x in kept:
        np.testing.assert_array_equal(to_host(x), batch(k))


def test_a_copy_waits_for_the_step_before_the_last_only() -> None:
    """What reads a place was asked before somebody saw that nobody has it."""
    there = Copies(xp)
    steps = []
    for k in range(12):
        x = there.send(batch(k))
        line = fake_cuda.get_current_stream().line
        steps.append((there.stream.clock.get(line, 0), fake_cuda.get_current_stream().clock[line]))
        for _ in range(5):
            x = x + 1
    late = [now - waited for waited, now in steps[4:]]
    assert min(late) >= 5, "a whole step is not waited for"


def test_who_writes_to_memory_on_its_way_is_found() -> None:
    memory = np.frombuffer(fake_cuda.alloc_pinned_memory(100), np.uint8, 100)
    stream, x = fake_cuda.Stream(non_blocking=True), xp.zeros(100, np.uint8)
    stream.wait_event(fake_cuda.get_current_stream().record())
    x.data.copy_from_host_async(memory.ctypes.data, 100, stream)
    memory[:] = 1
    with pytest.raises(AssertionError, match="memory changed while it was copied"):
        stream.synchronize()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pipe_whose_last_stages_are_on_the_gpu(workers: int, tmp_path: Path) -> None:
    """uint8 crosses, once; the step is one graph."""
    images = batch(0, 64 * 40 * 40).reshape(64, 40, 40, 40)[..., :3].copy()
    np.save(tmp_path / "x.npy", images)

    def pipe() -> Any:
        found = ost.io.arrays(tmp_path / "x.npy", kinds=("image",))
        return found.normalize((0.5,) * 3, (0.2,) * 3).batch(16).on_device("normalize")

    wanted = []
    for device in ("cpu", "fake"):
        with use((workers,), device=device) as session:
            step = ost.compile(lambda x: (x * x).mean())
            found = []
            for epoch in range(4):
                found += map(step, pipe().epoch(epoch))
            found = [float(x) for x in found]
            if device == "cpu":
                wanted = found
            else:
                np.testing.assert_allclose(found, wanted, 1e-5)
                assert FAKE.copies is not None
                assert any(dtype == np.uint8 for _, dtype in FAKE.copies.places)
                if workers == 1:
                    (worker,) = session.engine.workers  # type: ignore[attr-defined]
                    assert list(worker.plans.values())[-1].replay.launched
