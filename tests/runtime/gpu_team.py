"""Workers that are threads, each with a GPU of its own that is not there (tests/fake_cuda.py), between which
messages go by NCCL (tests/fake_nccl.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu.gpu_device import Gpu
from ostinato.runtime import engine as engines
from ostinato.runtime.messages.communicator import ThreadWorld
from ostinato.runtime.messages.on_device import DeviceCommunicator

import ostinato as ost
from ostinato.errors import CommunicatorError
from ostinato.sessions import Session
from tests import fake_cuda
from tests.fake_xp import to_host, xp


def team(size: int, work: Callable[[Any], Any], abort: bool = True) -> list[Any]:
    """What each of some threads makes of its communicator, which takes arrays of the host here."""
    world = ThreadWorld(size)
    found: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        gpu = Gpu("one of several", xp)
        gpu.use(rank)
        comm = DeviceCommunicator(world.communicator(rank), gpu)
        try:
            assert comm.ready() is (comm if size > 1 else comm.host)
            found[rank] = work(OfHost(comm.ready(), gpu))
            comm.check()
            comm.close()
        except BaseException as error:
            if abort:
                comm.abort(error)
            errors.append(error)

    with fake_cuda.devices(size):
        threads = [threading.Thread(target=run, args=(r,)) for r in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not any(t.is_alive() for t in threads), "a worker hangs"
    if errors:
        raise sorted(errors, key=lambda e: isinstance(e, CommunicatorError))[0]
    assert not world.board, "nothing is left behind"
    return found


class OfHost:
    """A communicator of a device for tests that have arrays of the host."""

    def __init__(self, comm: Any, gpu: Any) -> None:
        self.comm, self.gpu = comm, gpu
        self.rank, self.size = comm.rank, comm.size
        self.barrier, self.abort, self.agree = comm.barrier, comm.abort, comm.agree

    def _start(self, given: Sequence[Any], outs: Sequence[Any], start: Callable[..., Any]) -> Any:
        if not self.comm.on_device:
            return start(given, outs)
        there = [self.gpu.from_host(x) for x in outs]
        request = start([self.gpu.from_host(x) for x in given], there)

        class Waiting:
            def wait(self) -> None:
                request.wait()
                for x, out in zip(there, outs, strict=True):
                    out[...] = to_host(x)

        return Waiting()

    def start_all_reduce(self, ins: Any, outs: Any, monoid: str, group: Any) -> Any:
        start = self.comm.start_all_reduce
        return self._start(ins, outs, lambda xs, ys: start(xs, ys, monoid, group))

    def start_reduce_scatter(self, x: Any, out: Any, monoid: str, group: Any, parts: Any) -> Any:
        start = self.comm.start_reduce_scatter
        return self._start([x], [out], lambda xs, ys: start(xs[0], ys[0], monoid, group, parts))

    def start_broadcast(self, x: Any, out: Any, root: int, group: Any) -> Any:
        start = self.comm.start_broadcast
        return self._start([x], [out], lambda xs, ys: start(xs[0], ys[0], root, group))

    def start_exchange(self, sends: Any, receives: Any) -> Any:
        start = self.comm.start_exchange
        peers, sources = [r for r, _ in sends], [r for r, _ in receives]
        return self._start(
            [x for _, x in sends],
            [x for _, x in receives],
            lambda xs, ys: start([*zip(peers, xs, strict=True)], [*zip(sources, ys, strict=True)]),
        )

    def send(self, x: Any, to: int) -> None:
        self.start_exchange([(to, x)], []).wait()

    def receive(self, out: Any, source: int) -> None:
        self.start_exchange([], [(source, out)]).wait()


@contextmanager
def session(
    mesh: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, device: str = "fake", **options: Any
) -> Iterator[Session]:
    """One whose workers are threads with a GPU each."""
    size = int(np.prod(mesh))

    def communicator(world: ThreadWorld, rank: int, device: Any) -> Any:
        gpu = Gpu("one of several", xp)
        gpu.index = rank
        return DeviceCommunicator(own(world, rank), gpu)

    def serve(k: int, jobs: Any) -> None:
        fake_cuda.Device(k).use()
        before(k, jobs)

    def run(self: Any, task: Any) -> Any:
        """Whose thread puts and gets values here waits for all GPUs."""
        fake_cuda.synchronize()
        try:
            return whole(self, task)
        finally:
            fake_cuda.synchronize()

    def clear(self: Any, job: Any) -> None:
        """As members of a crew do."""
        forget(self, job)
        for worker in self.workers:
            worker.restart()

    own, before, whole = ThreadWorld.communicator, engines._serve, engines._Team.run
    forget = engines._Team._clear
    with monkeypatch.context() as patched, fake_cuda.devices(size):
        patched.setattr(ThreadWorld, "communicator", communicator)
        patched.setattr(engines, "_serve", serve)
        patched.setattr(engines._Team, "run", run)
        patched.setattr(engines._Team, "_clear", clear)
        with ost.connect(mesh=mesh, device=device, **options) as made:
            yield made
