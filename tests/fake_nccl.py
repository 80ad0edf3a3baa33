"""`cupy.cuda.nccl` for machines without a GPU: CuPy 14's names and order of arguments. Ranks are threads,
each on a GPU of its own (fake_cuda.Device). Data moves when all who take part have come; what would hang
or spoil memory on a GPU is an error here:

    - ranks whose calls differ: in kind, type, number of elements, root or operation; that never come
    - a send or receive outside of a group for which nobody waits
    - memory that is no array of the device, that is written before, or read while, a stream's work on
      it is not waited for (fake_cuda.touch)
    - an operation that is captured on some ranks only, two ranks on one GPU, a call after abort

While a stream captures nothing moves: the whole group becomes a step of the graph."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import fake_cuda

available = True
PATIENCE = 20.0  # seconds for others to come

NCCL_INT8, NCCL_CHAR, NCCL_UINT8, NCCL_INT32, NCCL_INT, NCCL_UINT32 = 0, 0, 1, 2, 2, 3
NCCL_INT64, NCCL_UINT64, NCCL_FLOAT16, NCCL_HALF = 4, 5, 6, 6
NCCL_FLOAT32, NCCL_FLOAT, NCCL_FLOAT64, NCCL_DOUBLE, NCCL_BFLOAT16 = 7, 7, 8, 8, 9
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)
_DTYPES = ("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "u2")
_UFUNCS = (np.add, np.multiply, np.maximum, np.minimum)
_ids = itertools.count(1)
_here = threading.local()
counted = {"groups": 0, "calls": 0}


class NcclError(RuntimeError):
    def __init__(self, status: int, what: str = "") -> None:
        self.status = status
        super().__init__(f"NCCL_ERROR_INVALID_USAGE: {what}")


class _World:
    """What the ranks of one communicator share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.here: dict[int, int] = {}  # rank -> GPU
        self.mail: dict[tuple[int, int], deque[_Call]] = defaultdict(deque)  # by who sends to whom
        self.meetings: dict[int, list[_Call]] = defaultdict(list)
        self.aborted = ""

    def until(self, happened: Callable[[], Any], what: str) -> None:
        """With the lock."""
        end = time.monotonic() + PATIENCE
        while not happened():
            if self.aborted:
                return
            if not self.changed.wait(max(0.0, end - time.monotonic())):
                self.aborted = f"{what}: others did not come"
                self.changed.notify_all()
                raise AssertionError(self.aborted)


_worlds: dict[bytes, _World] = defaultdict(_World)
_made = threading.Lock()  # a world is one, whoever asks for it first


@dataclass(eq=False)
class _Call:
    kind: str
    rank: int
    send: int
    recv: int
    count: int
    type: int
    more: int  # a peer, a root or an operation
    captured: bool
    done: bool = False
    number: int = -1
    said: tuple[Any, ...] = field(default=())

    def __post_init__(self) -> None:
        self.said = (self.kind, self.count, self.type, self.more, self.captured)

    @property
    def size(self) -> int:
        return self.count * np.dtype(_DTYPES[self.type]).itemsize

    def memory(self, address: int) -> Any:
        return fake_cuda.at(address, self.size).view(_DTYPES[self.type])


def get_unique_id() -> bytes:
    return next(_ids).to_bytes(8, "little").ljust(128, b"\x01")


def get_version() -> int:
    return 22703


def groupStart() -> None:
    _here.depth = getattr(_here, "depth", 0) + 1


def groupEnd() -> None:
    assert getattr(_here, "depth", 0) > 0, "groupEnd without groupStart"
    _here.depth -= 1
    if not _here.depth:
        calls, _here.calls = getattr(_here, "calls", []), []
        _together(calls)


class NcclCommunicator:
    def __init__(self, ndev: int, commId: bytes, rank: int, config: Any = None) -> None:
        assert isinstance(commId, bytes)
        assert len(commId) == 128
        assert 0 <= rank < ndev
        with _made:
            self._world = _worlds[commId]
        self._size, self._rank = ndev, rank
        self._device, self._meetings = fake_cuda.Device().id, 0
        self._is_open = True
        world = self._world
        with world.changed:
            if self._device in world.here.values():
                world.aborted = "Duplicate GPU detected"
            world.here[rank] = self._device
            world.changed.notify_all()
            world.until(lambda: len(world.here) == ndev, f"rank {rank} of {ndev} begins")
            if world.aborted:
                raise NcclError(5, world.aborted)

    def rank_id(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def device_id(self) -> int:
        return self._device

    def destroy(self) -> None:
        self._is_open = False

    def abort(self) -> None:
        self._is_open = False
        with self._world.changed:
            self._world.aborted = self._world.aborted or "aborted"
            self._world.changed.notify_all()

    def check_async_error(self) -> None:
        if not self._is_open:
            raise NcclError(4, "no communicator")

    # -- calls -----------------------------------------------------------------------------------
    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        self._call("allReduce", sendbuf, recvbuf, count, datatype, op, stream)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        self._call("broadcast", sendbuff, recvbuff, count, datatype, root, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call("send", sendbuf, 0, count, datatype, peer, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call("recv", 0, recvbuf, count, datatype, peer, stream)

    def _call(
        self, kind: str, send: int, recv: int, count: int, type_: int, more: int, stream: int
    ) -> None:
        if not self._is_open:
            raise NcclError(4, f"{kind} on no communicator")
        for x in (send, recv, count, type_, more, stream):
            assert isinstance(x, int), "CuPy takes addresses and numbers"
        assert fake_cuda.Device().id == self._device, "a thread that uses another GPU"
        if kind in ("send", "recv"):
            assert 0 <= more < self._size
        on = fake_cuda.stream_of(stream)
        counted["calls"] += 1
        call = _Call(kind, self._rank, send, recv, count, type_, more, on.graph is not None)
        if not hasattr(_here, "calls"):
            _here.calls = []
        _here.calls.append((self, on, call))
        if not getattr(_here, "depth", 0):
            calls, _here.calls = _here.calls, []
            _together(calls)


def _together(calls: list[tuple[NcclCommunicator, fake_cuda.Stream, _Call]]) -> None:
    """The calls of one group: done now, or whenever the graph is launched that captures them."""
    if not calls:
        return
    counted["groups"] += 1
    (stream,) = {on for _, on, _ in calls}
    reads = [call.memory(call.send) for _, _, call in calls if _reads(call)]
    writes = [call.memory(call.recv) for _, _, call in calls if call.kind != "send"]

    def work() -> None:
        for comm, _, call in calls:
            _post(comm, call)
        for comm, _, call in calls:
            _wait(comm, call)

    if stream.graph is not None:
        assert stream.graph is fake_cuda.capturing()
        stream.graph.steps.append((work, reads, writes))
        fake_cuda.touch(stream, reads, writes)
        return
    fake_cuda.counted.launches += 1
    fake_cuda.touch(stream, reads, writes)
    work()


def _reads(call: _Call) -> bool:
    return call.kind != "recv" and (call.kind != "broadcast" or call.rank == call.more)


def _post(comm: NcclCommunicator, call: _Call) -> None:
    world = comm._world
    call.done = False
    with world.changed:
        if call.kind in ("send", "recv"):
            pair = (call.rank, call.more) if call.kind == "send" else (call.more, call.rank)
            line = world.mail[pair]
            if line and line[0].kind != call.kind:
                _moved(world, line.popleft(), call)
            else:
                line.append(call)
        else:
            call.number, comm._meetings = comm._meetings, comm._meetings + 1
            calls = world.meetings[call.number]
            calls.append(call)
            if len(calls) == comm._size:
                del world.meetings[call.number]
                _met(world, sorted(calls, key=lambda c: c.rank))
        world.changed.notify_all()


def _wait(comm: NcclCommunicator, call: _Call) -> None:
    with comm._world.changed:
        comm._world.until(lambda: call.done, f"rank {call.rank}: {call.said}")


def _moved(world: _World, one: _Call, other: _Call) -> None:
    send, recv = (one, other) if one.kind == "send" else (other, one)
    if (send.size, send.captured) != (recv.size, recv.captured) or send.type != recv.type:
        world.aborted = f"rank {send.rank} sends {send.said}, rank {recv.rank} has {recv.said}"
        raise AssertionError(world.aborted)
    recv.memory(recv.recv)[...] = send.memory(send.send)
    send.done = recv.done = True


def _met(world: _World, calls: list[_Call]) -> None:
    first = calls[0]
    for call in calls:
        if call.said != first.said:
            world.aborted = f"rank 0 calls {first.said}, rank {call.rank} {call.said}"
            raise AssertionError(world.aborted)
    if first.kind == "broadcast":
        root = calls[first.more]
        sent = root.memory(root.send).copy()
        for call in calls:
            call.memory(call.recv)[...] = sent
            call.done = True
        return
    given = [call.memory(call.send).copy() for call in calls]
    total = given[-1]  # in an order of its own
    with np.errstate(all="ignore"):
        for x in given[:-1]:
            total = _UFUNCS[first.more](total, x)
    for call in calls:
        call.memory(call.recv)[...] = total
        call.done = True
