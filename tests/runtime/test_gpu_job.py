"""Processes with a GPU each, on fake ones, by way of the host's memory (gpu_jobs.py)."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from ostinato.ops.gpu.device import Gpu

import ostinato as ost
from tests import fake_cuda
from tests.clusters import needs_mpi
from tests.fake_xp import xp
from tests.runtime.test_job import mpiexec

X = np.random.default_rng(0).normal(size=(301, 7))


def said(count: int, *arguments: str, **settings: str) -> dict[str, object]:
    job = mpiexec(count, "-m", "tests.runtime.gpu_jobs", *arguments, **settings)
    assert job.returncode == 0, job.stdout[-2000:] + job.stderr[-2000:]
    found: dict[str, object] = {}
    for line in job.stdout.splitlines():
        if line.startswith("{"):
            found |= json.JSONDecoder().raw_decode(line)[0]
    return found


@needs_mpi
def test_each_process_has_a_gpu_of_its_own() -> None:
    """As many as there are: by its place on its machine."""
    found = said(3, "everything")
    assert found["values"] is found["stored"] is found["fed"] is True
    labels = [device for device, _ in found["states"]]  # type: ignore[attr-defined]
    assert labels == ["fake 0", "fake 1", "fake 0"]
    how = {messages for _, messages in found["states"]}  # type: ignore[attr-defined]
    assert how == {
        "by MPI, and through the host's memory: worker 0 has no library for messages between devices"
    }
    np.testing.assert_allclose(found["running"], X.sum(0))  # type: ignore[arg-type]
    w, values = np.zeros(7), []
    for _ in range(6):
        y = np.tanh(X @ w)
        values.append(((y - X[:, 0]) ** 2).mean())
        w = w - 0.1 * X.T @ (2 * (y - X[:, 0]) * (1 - y**2)) / len(X)
    np.testing.assert_allclose(found["trained"], [*values, *w], 1e-9)  # type: ignore[arg-type]


@needs_mpi
@pytest.mark.parametrize("rank", [0, 1])
def test_one_fails_and_all_begin_anew(rank: int) -> None:
    found = said(2, "fails", str(rank))
    assert "by test" in str(found["text"])
    np.testing.assert_allclose(found["sum"], X.sum(0))  # type: ignore[arg-type]
    first, second = found["outside"]  # type: ignore[misc]
    assert "index 777 is out of bounds for an axis with 301 elements" in first
    assert "index 777 is out of bounds" in second
    assert "make it again" in second
    np.testing.assert_allclose(found["picked"], X[:9].sum(0))  # type: ignore[arg-type]
    assert found["other"] == (
        "connect: got device='cpu'; needed device='fake', as at the first connect of these processes."
    )


def test_threads_of_one_process_ask_its_gpu() -> None:
    gpu, seen = Gpu("one of several", xp), []
    with fake_cuda.devices(4):
        gpu.use(6)

        def look() -> None:
            gpu.use()
            seen.append(fake_cuda.Device().id)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        look()
        Gpu("another", xp).use(0)
    assert seen == [2, 2]
    assert gpu.label == "one of several 2"


def test_a_device_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(ost.errors.ArgumentError, match=r"device='gpu'.*needed one of 'cpu'"):
        ost.connect(device="gpu")
