"""How workers that are processes talk: a Communicator over MPI.

Everything is made of messages between two workers that are sent and received without blocking, so a
wait can end when another worker fails, and what is combined is combined in the order of ranks: the
bits are those that threads get. Messages from one worker to another are numbered as they are
started, which is the same order on both sides.

An operation is a generator that gives the requests of MPI's that have to be done before it goes on;
`wait` drives it to its end, or, for one that was left to itself (`overlap`), a thread does."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.device import Messages
from ostinato.ops.core.helpers import begin_to_help
from ostinato.ops.core.signals import Living

from ostinato import settings
from ostinato.errors import CommunicatorError

from .communicator import (
    Arrays,
    Communicator,
    Group,
    Prepared,
    Request,
    Unpacked,
    flat,
    fold,
    octets,
)
from .persistent import Mail, Pending

LONGEST = 1 << 30  # bytes of one message; MPI counts in 31 bits
AT_ONCE = 1 << 18  # bytes: what is smaller goes to everybody of a group, instead of a part to each
TAGS = 1 << 20  # numbers of messages on the way from one worker to another
LAST = TAGS + 1  # of the last message on a communicator
READY = LAST + 1  # and above: of messages that were made ready
EAGER = 64  # looks for a message before others may have the core
AWAKE = 0.002  # seconds of looking before a wait begins to sleep
NAP = 50e-6
SLEEP = 5e-3  # seconds: the longer a wait has been, the longer are its naps, up to this

clock = time.perf_counter

Steps = Iterator[Pending]


class Flow:
    """An operation on its way."""

    __slots__ = ("_comm", "_lock", "_pending", "_steps", "done", "error")

    def __init__(self, comm: MpiCommunicator, steps: Steps) -> None:
        self._comm = comm
        self._steps = steps
        self._lock: threading.Lock | None = None  # if a thread drives it, too
        self.error: BaseException | None = None  # that the thread met
        began = clock()
        self._pending: Pending = next(steps, ([], []))
        comm.talking += clock() - began
        comm.going.add(self)
        self.done = False

    def share(self) -> None:
        self._lock = threading.Lock()

    def advance(self) -> bool:
        """Go as far as what has arrived allows; whether that is the end."""
        if self._lock is None:
            return self._advance()
        with self._lock:
            return self._advance()

    def _advance(self) -> bool:
        if self.error is not None:
            raise self.error
        while not self.done:
            for requests in self._pending:
                while requests:
                    if not requests[-1].Test():
                        return False
                    requests.pop()
            try:
                self._pending = next(self._steps)
            except StopIteration:
                self._comm.going.discard(self)
                self.done = True
        return True

    def wait(self) -> None:
        began = clock()
        if not self.advance():
            self._comm.until(self.advance)
        self._comm.talking += clock() - began

    def stop(self) -> Pending:
        """Go no further; what was under way."""
        with self._lock or contextlib.nullcontext():
            pending, self._pending, self._steps = self._pending, ([], []), iter(())
            self.done = True
            return pending


def _says_so() -> bool:
    """Ask the library whether it sends memory of GPUs: Open MPI, and MPICH from 4 on, by a
    function; Cray's by a setting."""
    import mpi4py.MPI as mpi

    for place in (mpi.__file__, None):  # what mpi4py was linked with, or has loaded
        try:
            asked = ctypes.CDLL(place).MPIX_Query_cuda_support
        except (AttributeError, OSError):
            continue
        asked.restype = ctypes.c_int
        return bool(asked())
    return os.environ.get("MPICH_GPU_SUPPORT_ENABLED", "") == "1"


class MpiCommunicator(Communicator):
    """A worker's end of an MPI communicator that is its own."""

    xp: Any = np
    how = "by MPI"
    talking = 0.0  # seconds that its worker spent in operations
    on_device = in_graphs = one_queue = False

    def __init__(self, comm: Any, beside: int = 1) -> None:
        self.comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.beside = beside  # workers on this machine
        self.error: BaseException | None = None  # why nobody should wait any longer
        self.sent = [0] * self.size  # messages to each, modulo TAGS
        self.got = [0] * self.size
        self.spare: dict[Any, list[Any]] = {}  # memory for what is received, by its shape and dtype
        self.going: set[Flow | Mail] = set()  # operations under way
        self.mails = Living[Mail]()
        self.posting: Pending = ([], [])  # the messages that were started last
        self.left: deque[Flow] = deque()  # operations that the thread drives
        self.work = threading.Event()
        self.helper: threading.Thread | None = None
        self.closed = False
        self.bytes_to = [0] * self.size  # sent to each
        self.heard = np.zeros(self.size, np.uint8)  # signals
        self.told: Callable[[], None] | None = None  # who else is to hear of a failure
        import mpi4py.MPI as mpi

        self.byte = mpi.BYTE

    def ready(self, in_order: bool = True) -> Communicator:
        return self

    @property
    def takes_device_memory(self) -> bool:
        """Whether this process's MPI sends from a GPU's memory, and receives there."""
        return settings.mpi == "device" or (settings.mpi == "auto" and _says_so())

    def on_abort(self, tell: Callable[[], None]) -> None:
        """Somebody else who is to hear of a failure."""
        self.told = tell

    # -- waiting ---------------------------------------------------------------------------
    def until(self, happened: Any) -> None:
        """Look until it has happened, or somebody failed."""
        looks, since = 0, 0.0
        while not happened():
            self.check()
            looks += 1
            if looks < EAGER:
                continue
            now = time.perf_counter()
            since = since or now
            if now - since < AWAKE:
                os.sched_yield()
            else:
                time.sleep(max(NAP, min(SLEEP, (now - since) / 20)))

    def check(self) -> None:
        if self.error is not None:
            raise CommunicatorError("a worker waited for another that failed.") from self.error

    def overlap(self, request: Request) -> Request:
        """An operation that goes on while its worker computes."""
        flow = request.request if isinstance(request, Unpacked) else request
        if isinstance(flow, Flow) and not flow.advance():
            flow.share()
            self.left.append(flow)
            if self.helper is None:
                self.helper = threading.Thread(
                    target=self._help, name="ostinato-messages", daemon=True
                )
                self.helper.start()
            self.work.set()
        return request

    def _help(self) -> None:
        begin_to_help()
        with np.errstate(all="ignore"):
            while not self.closed:
                if not self.left:
                    self.work.wait()
                    self.work.clear()
                with contextlib.suppress(IndexError):  # others let go of them meanwhile
                    for _ in range(len(self.left)):
                        self._help_on(self.left.popleft())
                time.sleep(NAP)

    def _help_on(self, flow: Flow) -> None:
        try:
            if not flow.advance():
                self.left.append(flow)
        except BaseException as error:  # found by whoever waits
            flow.error = error

    def close(self) -> None:
        """Give back what MPI keeps for this; all workers do so at the same time."""
        self.closed = True
        self.work.set()
        self._free()

    def _free(self) -> None:
        for mail in self.mails:
            mail.free()
        self.comm.Free()

    # -- messages --------------------------------------------------------------------------
    def _tags(self, peer: int) -> tuple[int, int]:
        """The next numbers of messages to a worker, and from it."""
        return self._there(peer), self._here(peer)

    def _there(self, peer: int) -> int:
        turn = self.sent[peer]
        self.sent[peer] = (turn + 1) % TAGS
        return turn

    def _here(self, peer: int) -> int:
        turn = self.got[peer]
        self.got[peer] = (turn + 1) % TAGS
        return turn

    def _posted(self) -> Pending:
        """For requests that an operation is going to start. They are known here, should it be interrupted
        meanwhile."""
        made: Pending = ([], [])
        self.posting = made
        return made

    def _send(self, pending: Pending, octets: Any, to: int, tag: int) -> None:
        self.bytes_to[to] += octets.size
        for piece in (octets,) if octets.size <= LONGEST else _pieces(octets):
            pending[1].append(self.comm.Isend((piece, self.byte), to, tag))

    def _receive(self, pending: Pending, octets: Any, source: int, tag: int) -> None:
        for piece in (octets,) if octets.size <= LONGEST else _pieces(octets):
            pending[0].append(self.comm.Irecv((piece, self.byte), source, tag))

    def _take(self, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
        """Memory for what is received: as an array, and as bytes."""
        kept = self.spare.get((shape, dtype))
        if kept:
            return kept.pop()
        made = np.empty(shape, dtype)
        return made, octets(made)

    def _give(self, blocks: Sequence[tuple[Any, Any]]) -> None:
        for block in blocks:
            self.spare.setdefault((block[0].shape, block[0].dtype), []).append(block)

    def signal(self, to: int) -> None:
        """Somebody is as far as this."""
        request = self.comm.Isend((_SIGNAL, self.byte), to, TAGS)
        if not request.Test():
            self.until(request.Test)

    def signals(self) -> None:
        """Everybody else is as far as this."""
        heard, byte = self.heard, self.byte
        requests = [
            self.comm.Irecv((heard[r : r + 1], byte), r, TAGS)
            for r in range(self.size)
            if r != self.rank
        ]
        for request in requests:
            if not request.Test():
                self.until(request.Test)

    # -- operations ------------------------------------------------------------------------
    def start_all_reduce(self, ins: Arrays, outs: Arrays, monoid: str, group: Group) -> Request:
        if len(group) == 1:
            fold([ins], outs, monoid)
            return Flow(self, iter(()))
        size = sum(x.nbytes for x in ins)
        count = ins[0].size
        small = size * (len(group) - 1) <= AT_ONCE or count < len(group)
        if small or any(x.size != count for x in ins):
            return Flow(self, self._gathered(ins, outs, monoid, group))
        return Flow(self, self._shared(ins, outs, monoid, group))

    def _gathered(self, ins: Arrays, outs: Arrays, monoid: str, group: Group) -> Steps:
        """Everybody gets all addends."""
        own = [octets(x) for x in ins]
        blocks: list[Any] = []
        states: list[Arrays] = []
        pending = self._posted()
        for r in group:
            if r == self.rank:
                states.append(ins)
                continue
            there, here = self._tags(r)
            state = []
            for x, said in zip(ins, own, strict=True):
                block = self._take(x.shape, x.dtype)
                self._receive(pending, block[1], r, here)
                self._send(pending, said, r, there)
                state.append(block[0])
                blocks.append(block)
            states.append(state)
        yield pending
        fold(states, outs, monoid)
        self._give(blocks)

    def _shared(self, ins: Arrays, outs: Arrays, monoid: str, group: Group) -> Steps:
        """Everybody combines a part of all addends, and sends the result to all."""
        mine = group.index(self.rank)
        others = [(k, r) for k, r in enumerate(group) if r != self.rank]
        lines = [[self._tags(r) for _, r in others] for _ in range(2)]
        cuts = [k * ins[0].size // len(group) for k in range(len(group) + 1)]
        own = slice(cuts[mine], cuts[mine + 1])
        rows = [flat(x) for x in ins]
        blocks: list[Any] = []
        states: dict[int, list[Any]] = {mine: [x[own] for x in rows]}
        pending = self._posted()
        for x in rows:
            for (k, r), (there, here) in zip(others, lines[0], strict=True):
                block = self._take((cuts[mine + 1] - cuts[mine],), x.dtype)
                self._receive(pending, block[1], r, here)
                states.setdefault(k, []).append(block[0])
                blocks.append(block)
                self._send(pending, octets(x[cuts[k] : cuts[k + 1]]), r, there)
        yield pending
        made = [_flat_or_new(out) for out in outs]
        fold([states[k] for k in range(len(group))], [m[own] for m in made], monoid)
        self._give(blocks)
        pending = self._posted()
        for m in made:
            for (k, r), (there, here) in zip(others, lines[1], strict=True):
                self._receive(pending, octets(m[cuts[k] : cuts[k + 1]]), r, here)
                self._send(pending, octets(m[own]), r, there)
        yield pending
        for m, out in zip(made, outs, strict=True):
            _fill(out, m)

    def start_reduce_scatter(
        self, x: Any, out: Any, monoid: str, group: Group, parts: Sequence[tuple[slice, ...]]
    ) -> Request:
        return Flow(self, self._scattered(x, out, monoid, group, parts))

    def _scattered(
        self, x: Any, out: Any, monoid: str, group: Group, parts: Sequence[tuple[slice, ...]]
    ) -> Steps:
        addends: list[Any] = []
        blocks, pending = [], self._posted()
        for r, part in zip(group, parts, strict=True):
            if r == self.rank:
                addends.append(x[part])
                continue
            there, here = self._tags(r)
            block = self._take(out.shape, x.dtype)
            self._receive(pending, block[1], r, here)
            addends.append(block[0])
            blocks.append(block)
            self._send(pending, octets(x[part]), r, there)
        yield pending
        fold([(a,) for a in addends], (out,), monoid)
        self._give(blocks)

    def start_exchange(self, sends: Messages, receives: Messages) -> Request:
        return Flow(self, self._exchanged(sends, receives))

    def _exchanged(self, sends: Messages, receives: Messages) -> Steps:
        pending = self._posted()
        late = []
        for peer, out in receives:
            got = _flat_or_new(out)
            self._receive(pending, octets(got), peer, self._here(peer))
            if not out.flags.c_contiguous:
                late.append((got, out))
        for peer, x in sends:
            self._send(pending, octets(x), peer, self._there(peer))
        yield pending
        for got, out in late:
            _fill(out, got)

    def prepare(self, sends: Messages, receives: Messages) -> Prepared | None:
        mail = Mail(self, sends, receives, READY)
        self.mails.add(mail)
        return mail

    def start_broadcast(self, x: Any, out: Any, root: int, group: Group) -> Request:
        return Flow(self, self._broadcast(x, out, root, group))

    def _broadcast(self, x: Any, out: Any, root: int, group: Group) -> Steps:
        """Down a tree: who has it sends it to the one as far away as possible, then nearer."""
        size, first = len(group), group.index(root)
        place = (group.index(self.rank) - first) % size
        below = 1
        while below < size and not place & below:
            below *= 2
        source = group[(place - below + first) % size]
        here = self._here(source) if place else 0
        lines = []
        while below > 1:
            below //= 2
            if place + below < size:
                to = group[(place + below + first) % size]
                lines.append((to, self._there(to)))
        got = _flat_or_new(out) if place else flat(x)
        if place:
            pending = self._posted()
            self._receive(pending, octets(got), source, here)
            yield pending
        pending = self._posted()
        for to, tag in lines:
            self._send(pending, octets(got), to, tag)
        yield pending
        if out is not x or place:
            _fill(out, got)

    def barrier(self) -> None:
        token = np.zeros(1, np.uint8)
        everybody = tuple(range(self.size))
        self.start_all_reduce((token,), (token.copy(),), "max", everybody).wait()

    def gather_text(self, value: Any, root: int) -> list[Any] | None:
        """Gather what everybody says at the root, in the order of ranks."""
        said = np.frombuffer(json.dumps(value).encode(), np.uint8)
        if self.rank != root:
            self.send(np.array([said.size]), root)
            self.send(said, root)
            return None
        found = []
        for rank in range(self.size):
            length = np.array([said.size])
            if rank != root:
                self.receive(length, rank)
            got = said if rank == root else np.empty(int(length[0]), np.uint8)
            if rank != root:
                self.receive(got, rank)
            found.append(json.loads(got.tobytes()))
        return found

    def abort(self, error: BaseException) -> None:
        """Here only: whoever made this communicator tells the others."""
        self.error = self.error or error
        if self.told is not None:
            self.told()

    def restart(self, comm: Any, until: Callable[[Any], None]) -> None:
        """Begin anew on another communicator after a failure, when all have given up what was under way.
        What was to be received will not be; what was sent is taken, and thrown away."""
        sent: list[Any] = []
        self.left.clear()
        for receives, sends in (self.posting, *(flow.stop() for flow in tuple(self.going))):
            for request in filter(None, receives):  # those that are done are no more
                request.Cancel()
                until(request.Test)
            sent += filter(None, sends)
        self._empty(until)
        for request in sent:
            until(request.Test)
        self._free()
        self.comm = comm
        self.going.clear()
        self.posting = [], []
        self.sent, self.got = [0] * self.size, [0] * self.size

    def _empty(self, until: Callable[[Any], None]) -> None:
        """Take all messages that are on their way here: MPI would give them to a later communicator, to
        which it gives this one's number. Each worker's last one says that it is the last."""
        from mpi4py import MPI

        others = [r for r in range(self.size) if r != self.rank]
        last = [self.comm.Isend((_SIGNAL, self.byte), r, LAST) for r in others]
        status, left = MPI.Status(), set(others)
        while left:
            until(lambda: self.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status))
            source, tag = status.Get_source(), status.Get_tag()
            room = np.empty(status.Get_count(self.byte), np.uint8)
            until(self.comm.Irecv((room, self.byte), source, tag).Test)
            if tag == LAST:
                left.discard(source)
        for request in last:
            until(request.Test)


_SIGNAL = np.zeros(1, np.uint8)


def _flat_or_new(out: Any) -> Any:
    """Where elements may be received: the array's own memory, or, if that has gaps, another."""
    return out.reshape(-1) if out.flags.c_contiguous else np.empty(out.size, out.dtype)


def _fill(out: Any, flat: Any) -> None:
    """With what has been received, unless that was its own memory."""
    if not np.may_share_memory(flat, out):
        np.copyto(out, flat.reshape(out.shape))


def _pieces(octets: Any) -> Iterator[Any]:
    """Bytes in pieces that MPI can count."""
    for start in range(0, octets.size, LONGEST):
        yield octets[start : start + LONGEST]
