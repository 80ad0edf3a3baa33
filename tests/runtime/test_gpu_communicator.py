"""Messages between GPUs by NCCL, on fake ones: the tests of communicators, and what only these can do wrong."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ostinato.ops.gpu import gpu_device as device
from ostinato.ops.gpu.gpu_device import Gpu
from ostinato.runtime.messages import on_device
from ostinato.runtime.messages.communicator import fold

from ostinato.errors import CommunicatorError
from tests import fake_cuda, fake_nccl
from tests.cuda_host import COMPILER
from tests.fake_xp import from_host, to_host, xp
from tests.runtime import cases
from tests.runtime import test_communicator as tests
from tests.runtime.gpu_team import team
from tests.sessions import JOB
from tests.thorough import some

pytestmark = pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
TESTS = [n for n in vars(tests) if n.startswith("test_") and n != "test_alone"]


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("at_once", [on_device.AT_ONCE, 0])
def test_as_threads_do(name: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small states go to all, large ones in parts."""
    monkeypatch.setattr(tests, "team", team)
    monkeypatch.setattr(on_device, "AT_ONCE", at_once)
    test = getattr(tests, name)
    found = cases.of(test)
    for arguments in some(found, 2, at_once > 0 and len(found) > 1):
        test(**arguments)


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_addends_are_read_once(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one kernel, in the order of ranks: the bits are those of one after the other."""
    monkeypatch.setattr(device, "FOLDED", 1)
    monkeypatch.setattr(on_device, "AT_ONCE", 0)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    xs = (np.random.default_rng(0).normal(size=(4, 33, 7)) * 3).astype(kind)
    sums, parts = np.empty((33, 7), kind), np.empty((33, 7), kind)
    fold([(x,) for x in xs], (sums,), "sum")
    calls: list[int] = []
    own = Gpu.launched

    def launched(self: Gpu, *how: Any) -> Any:
        run = own(self, *how)
        return lambda *arrays: (calls.append(len(arrays)), run(*arrays))

    monkeypatch.setattr(Gpu, "launched", launched)

    def work(comm: Any) -> Any:
        everybody, out = (0, 1, 2, 3), np.empty((33, 7), kind)
        comm.start_all_reduce((xs[comm.rank],), (out,), "sum", everybody).wait()
        cuts = [(slice(9 * k, min(9 * k + 9, 33)),) for k in everybody]
        part = np.empty(xs[0][cuts[comm.rank]].shape, kind)
        comm.start_reduce_scatter(xs[comm.rank], part, "prod", everybody, cuts).wait()
        return out, part

    found = team(4, work)
    fold([(x,) for x in xs], (parts,), "prod")
    for out, _ in found:
        np.testing.assert_array_equal(out, sums)
    np.testing.assert_array_equal(np.concatenate([part for _, part in found]), parts)
    assert calls == [5] * 8, "four addends and a result, twice on each"


def test_who_waits_for_one_that_failed_is_released_at_once() -> None:
    def work(comm: Any) -> Any:
        if comm.rank == 1:
            raise ZeroDivisionError("here")
        out = np.empty(1)
        comm.start_all_reduce((np.ones(1),), (out,), "sum", (0, 1, 2)).wait()

    with pytest.raises(ZeroDivisionError):
        team(3, work)
    assert list(fake_nccl._worlds.values())[-1].aborted == "aborted", (
        "and not found by its patience"
    )


def test_who_come_first_at_once_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would otherwise wait for others in a world of its own."""
    both = threading.Barrier(2)

    class Slow(fake_nccl._World):
        def __init__(self) -> None:
            super().__init__()
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.1)  # for one more that would be made meanwhile

    monkeypatch.setattr(fake_nccl, "_worlds", defaultdict[bytes, Any](Slow))
    monkeypatch.setattr(fake_nccl, "PATIENCE", 10.0)
    assert team(2, lambda comm: comm.rank) == [0, 1]


def test_one_that_fails_before_they_meet_keeps_nobody() -> None:
    """The others wait for its invitation to be taken."""

    def work(comm: Any) -> Any:
        raise AssertionError("they never meet")

    def refuse(*_: Any) -> Any:
        if fake_cuda.Device().id == 2:
            raise fake_nccl.NcclError(2, "no memory for it")
        return own(*_)

    own = fake_nccl.NcclCommunicator
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fake_nccl, "NcclCommunicator", refuse)
        with pytest.raises(
            CommunicatorError, match=r"worker 2 cannot talk to other.*no memory for it"
        ):
            team(3, work)


def test_an_array_that_claims_more_than_it_has_gets_no_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbers that are counted lie in one element, and have strides for many (ops/planned/element_ids.py): behind it
    lie other arrays, whose messages were lost."""
    monkeypatch.setattr(fake_cuda, "_owners", {})
    first = xp.zeros(1)
    counted = xp.lib.stride_tricks.as_strided(first, (1000, 3), (40, 8))
    assert fake_cuda.base_of(counted._memory) is first._memory
    (owner,) = fake_cuda._owners.values()
    assert owner() is first._memory


def test_memory_is_found_however_an_array_lies() -> None:
    x = from_host(np.zeros((2, 3, 4)).transpose(1, 0, 2))
    fake_cuda.at(x.data.ptr, x.nbytes).view("f8")[...] = np.arange(24)
    np.testing.assert_array_equal(to_host(x), np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2))


# -- what the fake finds ------------------------------------------------------------------------------
def calls(size: int, *works: Any) -> None:
    """Each rank calls NCCL by itself."""

    def work(comm: Any) -> None:
        nccl = comm.comm.messenger
        x, y = xp.zeros(8), xp.zeros(8)
        with nccl.aside():
            works[comm.rank](nccl.comm, x.data.ptr, y.data.ptr, nccl.stream.ptr)

    team(size, work)


SUM, F8 = fake_nccl.NCCL_SUM, fake_nccl.NCCL_FLOAT64


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            lambda c, x, y, on: c.allReduce(x, y, 8, F8, SUM, on),
            lambda c, x, y, on: c.allReduce(x, y, 7, F8, SUM, on),
        ),
        (
            lambda c, x, y, on: c.allReduce(x, y, 8, F8, SUM, on),
            lambda c, x, y, on: c.broadcast(x, y, 8, F8, 0, on),
        ),
        (
            lambda c, x, y, on: c.broadcast(x, y, 8, F8, 0, on),
            lambda c, x, y, on: c.broadcast(x, y, 8, F8, 1, on),
        ),
        (lambda c, x, y, on: c.send(x, 8, F8, 1, on), lambda c, x, y, on: c.recv(y, 4, F8, 0, on)),
        (lambda c, x, y, on: c.send(x, 8, F8, 1, on), lambda c, x, y, on: c.send(x, 8, F8, 0, on)),
        (lambda c, x, y, on: c.send(x + 64, 8, F8, 1, on), lambda c, x, y, on: None),
    ],
    ids=["counts", "kinds", "roots", "sizes", "two sends that wait for each other", "memory"],
)
def test_calls_that_would_hang_or_spoil_memory(
    one: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_nccl, "PATIENCE", 0.2)
    with pytest.raises(AssertionError, match=r"rank|no array of the device"):
        calls(2, one, other)
