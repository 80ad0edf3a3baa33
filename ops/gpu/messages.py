"""Messages between GPUs, by NCCL: on a stream of their own, which waits for the current one by an event, and
for which the current one waits by another. Nothing here waits for a GPU.

    current   kernels ─┬─ kernels that need no message ─┬─ kernels
    own                └─ pack ─ send, receive ─ fold ──┘

While the current stream captures, what is done here becomes part of the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ostinato.ops.core.device import Function, Messages, Messenger

# what CuPy calls NCCL's types and operations
_TYPES = {
    "int8": "NCCL_INT8",
    "uint8": "NCCL_UINT8",
    "int32": "NCCL_INT32",
    "uint32": "NCCL_UINT32",
    "int64": "NCCL_INT64",
    "uint64": "NCCL_UINT64",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
}
_SUMS = {"sum": "NCCL_SUM", "prod": "NCCL_PROD"}
_BESTS = {"min": "NCCL_MIN", "max": "NCCL_MAX"}
_FLAGS = {"any": "NCCL_MAX", "all": "NCCL_MIN"}  # of bools, which are bytes of 0 and 1
FIRST = -1  # priority of its stream: a message that waits holds up others


class Nccl(Messenger):
    """One worker's, on the GPU that its thread uses."""

    def __init__(self, xp: Any, rank: int, size: int, invitation: bytes) -> None:
        self.xp, self.nccl, self.rank = xp, xp.cuda.nccl, rank
        self.stream = xp.cuda.Stream(non_blocking=True, priority=FIRST)
        self.comm = self.nccl.NcclCommunicator(size, invitation, rank)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        self.stream.wait_event(self._moment(self.xp.cuda.get_current_stream()))
        with self.stream:
            yield

    def joined(self) -> Function:
        moment = self._moment(self.stream)
        return lambda: self.xp.cuda.get_current_stream().wait_event(moment)

    def _moment(self, stream: Any) -> Any:
        return stream.record(self.xp.cuda.Event(disable_timing=True))

    def exchange(self, sends: Messages, receives: Messages) -> None:
        comm, octet, on = self.comm, self.nccl.NCCL_UINT8, self.stream.ptr
        self.nccl.groupStart()
        try:
            for peer, x in sends:
                comm.send(x.data.ptr, x.nbytes, octet, peer, on)
            for peer, x in receives:
                comm.recv(x.data.ptr, x.nbytes, octet, peer, on)
        except BaseException:
            with contextlib.suppress(Exception):  # that it is worth nothing is known
                self.nccl.groupEnd()
            raise
        self.nccl.groupEnd()

    def combine(self, x: Any, out: Any, monoid: str, in_order: bool) -> bool:
        """Integers and bools, as their bits are the same in any order; NCCL's sums of floats are those of
        the way that it chooses, and its extremes know no NaN."""
        kind = x.dtype.kind
        if x.dtype != out.dtype:
            return False
        if kind == "b":
            name, how = "uint8", _FLAGS.get(monoid, "")
        else:
            name, how = (
                x.dtype.name,
                _SUMS.get(monoid, "" if kind == "f" else _BESTS.get(monoid, "")),
            )
        is_exact = kind in "biu"
        if not how or name not in _TYPES or not (is_exact or not in_order):
            return False
        type_, op = getattr(self.nccl, _TYPES[name]), getattr(self.nccl, how)
        self.comm.allReduce(x.data.ptr, out.data.ptr, x.size, type_, op, self.stream.ptr)
        return True

    def broadcast(self, x: Any, out: Any, root: int) -> None:
        given = x if self.rank == root else out
        octet, on = self.nccl.NCCL_UINT8, self.stream.ptr
        self.comm.broadcast(given.data.ptr, out.data.ptr, out.nbytes, octet, root, on)

    def check(self) -> None:
        self.comm.check_async_error()

    def abort(self) -> None:
        self.comm.abort()

    def close(self) -> None:
        self.comm.destroy()
