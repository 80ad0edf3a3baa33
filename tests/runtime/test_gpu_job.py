"""Processes with a GPU each, on fake ones, by way of the host's memory (gpu_jobs.py)."""

from __future__ import annotations

import json
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu.gpu_device import Gpu
from ostinato.runtime.messages import mpi
from ostinato.runtime.messages.on_device import ByMpi

import ostinato as ost
from ostinato import settings
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
@pytest.mark.parametrize("mpi", ["auto", "device"])
def test_each_process_has_a_gpu_of_its_own(mpi: str) -> None:
    """As many as there are: by its place on its machine. `device`: MPI is given the GPUs' memory, as the
    fakes' arrays lie in the host's."""
    found = said(3, "everything", OSTINATO_MPI=mpi)
    assert found["values"] is found["stored"] is found["fed"] is True
    labels = [device for device, _ in found["states"]]  # type: ignore[attr-defined]
    assert labels == ["fake 0", "fake 1", "fake 0"]
    how = {messages for _, messages in found["states"]}  # type: ignore[attr-defined]
    why = "through the host's memory: worker 0 has no library for messages between devices"
    by = {"auto": f"by MPI, and {why}", "device": "by MPI, from device to device"}
    assert how == {by[mpi]}
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


def test_the_library_is_asked_whether_it_takes_a_gpus_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its own function, where it has one; Cray's by a setting."""
    comm = object.__new__(mpi.MpiCommunicator)

    found: dict[bool, int] = {}  # what it says, as what mpi4py was linked with, or had loaded

    class Library:
        def __init__(self, place: str | None) -> None:
            if (says := found.get(place is None)) is not None:
                self.MPIX_Query_cuda_support = Function(says)

    class Function:
        restype: Any = None

        def __init__(self, says: int) -> None:
            self.says = says

        def __call__(self) -> int:
            return self.says

    library = SimpleNamespace(__file__="MPI.so")
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=library))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", library)  # type: ignore[arg-type]
    monkeypatch.setattr(mpi.ctypes, "CDLL", Library)
    for said_so, variable, wanted in (
        ({False: 1}, "", True),
        ({True: 1}, "", True),
        ({False: 0}, "1", False),
        ({}, "1", True),
        ({}, "", False),
    ):
        found.clear()
        found |= said_so
        monkeypatch.setenv("MPICH_GPU_SUPPORT_ENABLED", variable)
        assert comm.takes_device_memory == wanted
        for setting in ("device", "host"):
            with monkeypatch.context() as patched:
                patched.setattr(settings, "mpi", setting)
                assert comm.takes_device_memory == (setting == "device")


def test_mpi_is_given_memory_that_is_made() -> None:
    """The library knows no stream: the host waits for what was asked before."""
    gpu, sent = Gpu("one of several", xp), []

    class Host:
        rank, size = 0, 3

        def start_exchange(self, sends: Any, receives: Any) -> Any:
            assert fake_cuda.get_current_stream().done
            sent.extend(["to", *(r for r, _ in sends), "from", *(r for r, _ in receives)])
            return SimpleNamespace(wait=lambda: sent.append("waited"))

    messenger, x = ByMpi(Host(), gpu), gpu.from_host(np.ones(5))
    with messenger.aside():
        y = x + 1.0
        assert not fake_cuda.get_current_stream().done
        messenger.exchange([(1, y)], [(2, x)])
        messenger.broadcast(y, x, 0)
        messenger.broadcast(y, y, 2)
    messenger.joined()()
    assert sent == ["to", 1, "from", 2, "waited", "to", 1, 2, "from", "waited",
                    "to", "from", 2, "waited"]  # fmt: skip
    assert gpu.to_host(x).tolist() == [2] * 5


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
