"""A crew: the processes that one MPI job has started. One of them, the lead, gives orders; all obey.

    lead ── order ──► the others, down a tree of messages: MPI
      │
      └──── lifeline ──► each of the others: a socket

An order is one small message (orders.py). Who waits for the next one looks for it for some
milliseconds, then sleeps; as the lead knows when it said something last, it knows who may sleep and
rings. The lifeline carries what cannot wait for its turn: the bell, "stop, somebody failed", errors
on their way back, and a sign of life every second. Where it ends, the process at its other end has
died: the lead tells its user, and the others end, too.

After a failure, orders that are on their way are skipped until the lead orders to begin anew."""

from __future__ import annotations

import atexit
import contextlib
import hmac
import itertools
import json
import logging
import os
import platform
import queue
import secrets
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from ostinato.ops.core import activity
from ostinato.ops.core.device import find
from ostinato.ops.core.encode import need
from ostinato.runtime.messages import mpi
from ostinato.runtime.messages.mpi import MpiCommunicator

from ostinato import settings
from ostinato.errors import ArgumentError, CommunicatorError, OstinatoError

from . import forks
from .member import Member, own_address
from .orders import (
    KINDS,
    LEAD,
    NOBODY,
    RUN,
    WAIT,
    Order,
    described,
    laid_out,
    length_of,
    rebuilt,
    unpack,
)
from .preload import unname_memory, watch

FIRST_BYTES = 512  # bytes of an order's first message
AWAKE = 0.005  # seconds of looking for the next order
DOZE = 0.01  # seconds of sleep after which it looks all the same
RING = 0.002  # seconds of silence after which others may sleep
BEAT = 1.0  # seconds between signs of life
JOIN = 120.0  # seconds for all to come together
GREET = 10.0  # seconds for somebody to introduce himself
LONGEST = 1 << 20  # bytes of a message on a lifeline; errors are shorter (`described`)
_log = logging.getLogger("distributed.worker.ostinato")
T = TypeVar("T")
clock = time.perf_counter
_Run = tuple[int, bytes, Sequence[int], int, Sequence[int]]  # number, plan, operands, first, freed
_SAID = struct.Struct("<cI")  # what a message on a lifeline is, and how long
_STOP = struct.Struct("<QQ")  # the epoch and the order in which somebody failed


class _Failed:
    """An error that happened somewhere, on its way to the user."""

    def __init__(self, number: int, error: BaseException, cause: bool) -> None:
        self.number = number
        self.error = error
        self.cause = cause  # else it followed from another's


class Crew:
    """What lead and others have in common."""

    def __init__(self, comm: Any, threads: int | None = None, device: str = "cpu") -> None:
        memory = find(device)
        _assemble(comm)
        unname_memory()
        watch()
        self.given = comm
        self.base = comm.Dup()  # to make others from
        self.control = comm.Dup()
        self.rank: int = comm.rank
        self.size: int = comm.size
        place, beside = self._beside(comm)
        memory.use(place)
        self.communicator = MpiCommunicator(comm.Dup(), beside)
        self.member = Member(self.communicator, threads, memory)
        self.number = 0  # of the last order
        self.epoch = 0  # failures so far
        low = self.rank & -self.rank if self.rank else self.size
        self.parent = self.rank - low if self.rank else 0
        steps = (1 << k for k in range(self.size.bit_length()))
        self.children = [self.rank + s for s in steps if s < low and self.rank + s < self.size][
            ::-1
        ]
        self.alive = True
        self.forked = False  # since, and this is the child
        self.fatal: CommunicatorError | None = None
        self.saying = bytearray(FIRST_BYTES)  # of the order that is on its way to those below
        self.ways: dict[int, list[Any]] = {}  # by an order's length, how it gets there
        self.sending: list[Any] = []  # messages on their way
        self.turn = threading.RLock()  # of what is known of failures

    @staticmethod
    def _beside(comm: Any) -> tuple[int, int]:
        """Its place among the workers of this machine, and their number."""
        from mpi4py import MPI

        here = comm.Split_type(MPI.COMM_TYPE_SHARED)
        found = int(here.rank), int(here.size)
        here.Free()
        return found

    def _forward(self, data: bytes) -> None:
        """To those below in the tree: a message of fixed size, and what is longer in others. They take it,
        whatever fails meanwhile."""
        if not self.children:
            return
        if self.sending:  # an interrupt came between
            self._taken()
        head = data[:FIRST_BYTES]
        self.saying[: len(head)] = head
        self._start(len(head))
        if len(data) > FIRST_BYTES:
            rest = np.frombuffer(data, np.uint8)[FIRST_BYTES:]
            with self.undisturbed():
                self.sending = self.sending + [
                    self.control.Isend((piece, self.communicator.byte), child)
                    for child in self.children
                    for piece in mpi._pieces(rest)
                ]
        self._taken()

    def _start(self, length: int) -> None:
        """Start to send what is to be said."""
        ways = self.ways.get(length)
        if ways is None:
            said = memoryview(self.saying)[:length], self.communicator.byte
            ways = self.ways[length] = [self.control.Send_init(said, c) for c in self.children]
        self.sending = ways
        for request in ways:
            request.Start()

    def _taken(self) -> None:
        """Wait until those below have what they were sent."""
        for request in self.sending:
            if not request.Test():
                self._until(request.Test)
        self.sending = []

    def _until(self, happened: Callable[[], bool]) -> None:
        """Wait for what others do, unless one of them died."""
        for _ in range(mpi.EAGER):
            if happened():
                return
        while not happened():
            if self.fatal is not None:
                raise self.fatal
            time.sleep(mpi.NAP)

    def _meet(self, undone: int) -> int:
        """Everybody begins anew; the first order that somebody did not do."""
        comm, request = self.base.Idup()
        self._until(request.Test)
        mine, least = np.array([undone]), np.empty(1, np.int64)
        request = comm.Iallreduce(mine, least, op=_least())
        self._until(request.Test)
        self.member.recover(comm, self._until)
        return int(least[0])

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Ctrl-C waits until something is done that must not be left half done."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        presses: list[int] = []
        before = signal.signal(signal.SIGINT, lambda *_: self._pressed(presses))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)

    def _pressed(self, presses: list[int]) -> None:
        presses.append(1)
        if len(presses) == 1:
            sys.stderr.write(
                "ostinato: waiting for workers that still compute; Ctrl-C again gives them up.\n"
            )
        else:
            self.give_up("the program was interrupted while it waited for workers")

    def give_up(self, why: str) -> None:
        """Go on without the others."""

    def _free(self) -> None:
        """Give back what MPI keeps for this crew; all do so at its end."""
        from mpi4py import MPI

        if not self.member.is_host:
            self.member.worker.rest()  # graphs go before what they talk by
            self.member.talks.close()
        self.communicator.close()
        for request in itertools.chain(*self.ways.values()):
            request.Free()
        self.control.Free()
        self.base.Free()
        if self.given not in (MPI.COMM_WORLD, MPI.COMM_SELF):
            self.given.Free()


def _least() -> Any:
    from mpi4py import MPI

    return MPI.MIN


# -- the lead ------------------------------------------------------------------------------
class Lead(Crew):
    """The one who gives orders, and works, too."""

    def __init__(
        self, comm: Any, threads: int | None = None, host: str = "", device: str = "cpu"
    ) -> None:
        super().__init__(comm, threads, device)
        self.told = 0.0  # when it said something last
        self.did = 0  # the last order that it has done itself
        self.late: _Run | None = None  # the one after that, if it is put off
        self.failed: _Failed | None = None  # to be told to the user
        self.broken = False  # the others wait to begin anew
        self.ordering = threading.RLock()  # one order at a time, whatever session it is of
        self.sessions = itertools.count()
        self.plans = Counter[bytes]()  # sessions that use each
        self.lost: list[tuple[int, int, str]] = []  # orders without results: from, to, and why
        self.counts = [0] * len(KINDS)
        self.bytes = [0] * len(KINDS)
        self.lines: dict[int, socket.socket] = {}
        self.names: dict[int, str] = {}
        self.processes: dict[int, int] = {}  # of workers on this machine
        self.seen: dict[int, float] = {}
        self.lock = threading.RLock()  # of lifelines
        self.gone = threading.Event()  # a worker, and with it the crew
        self.watch = threading.Thread(target=self._watch, name="ostinato-lifelines", daemon=True)
        self._gather(comm, host)
        self.watch.start()
        forks.share(self)

    def _gather(self, comm: Any, host: str) -> None:
        """Tell everybody where to come, and wait until all are there."""
        token = secrets.token_hex(16)
        local = self.communicator.beside == self.size
        host = "127.0.0.1" if local else host or own_address()
        with socket.create_server((host, 0), backlog=self.size) as server:
            said = json.dumps([host, server.getsockname()[1], token]).encode()
            comm.Bcast(
                [np.frombuffer(said.ljust(FIRST_BYTES), np.uint8), self.communicator.byte], LEAD
            )
            comes = callers(server, lambda line: _hello(line, token), time.monotonic() + JOIN)
            with contextlib.closing(comes):
                for line, hello in itertools.islice(comes, self.size - 1):
                    rank, process, machine = int(hello["rank"]), int(hello["pid"]), hello["host"]
                    self.lines[rank] = line
                    if machine == platform.node():
                        self.processes[rank] = process
                    self.names[rank] = f"worker {rank} (process {process} on {machine})"
                    self.seen[rank] = time.monotonic()
                    line.settimeout(2 * BEAT)
        if len(self.lines) < self.size - 1:
            raise _too_few(self.size)

    # -- lifelines -------------------------------------------------------------------------
    def _watch(self) -> None:
        limit = settings.heartbeat
        with selectors.DefaultSelector() as selector:
            for rank, line in self.lines.items():
                selector.register(line, selectors.EVENT_READ, rank)
            before = time.monotonic()
            while selector.get_map() and self.fatal is None:
                for key, _ in selector.select(BEAT / 2):
                    try:
                        said = _hear(self.lines[key.data])
                    except OSError:
                        said = None
                    if said is None:
                        selector.unregister(self.lines[key.data])
                        if self.alive:
                            self.give_up(f"{self.names[key.data]} died")
                        continue
                    self.seen[key.data] = time.monotonic()
                    if said[0] == b"e":
                        self._reported(key.data, said[1])
                now = time.monotonic()
                if now - before > limit / 2:  # this process itself was stopped
                    self.seen = dict.fromkeys(self.seen, now)
                before = now
                late = [r for r, seen in self.seen.items() if now - seen > limit]
                if late and self.alive:
                    self.give_up(f"{self.names[late[0]]} gave no sign of life for {limit:g} s")

    def give_up(self, why: str) -> None:
        self.fatal = CommunicatorError(
            f"{why}; what the workers held is lost: start again (a checkpoint keeps values)."
        )
        self.communicator.abort(self.fatal)
        self.gone.set()
        for rank in self.lines:
            self._say(rank, b"q")

    def _reported(self, rank: int, text: bytes) -> None:
        """A worker failed: nobody should wait for it."""
        found = json.loads(text)
        error = rebuilt(found, self.names[rank])
        with self.turn:
            if found["epoch"] != self.epoch:
                return
            known = self.failed
            if known is None or (found["cause"], -found["number"]) > (known.cause, -known.number):
                self.failed = _Failed(found["number"], error, found["cause"])
            self.broken = True
            if found["number"] <= self.did + 1:  # else what is before that is done first
                self.communicator.abort(error)
            epoch = self.epoch
        self._stop(epoch, found["number"])

    def _stop(self, epoch: int, number: int) -> None:
        for rank in self.lines:
            self._say(rank, b"x", _STOP.pack(epoch, number))

    def _say(self, rank: int, kind: bytes, text: bytes = b"") -> None:
        with contextlib.suppress(OSError), self.lock:
            _tell(self.lines[rank], kind, text)

    # -- orders ----------------------------------------------------------------------------
    def run(self, plan: bytes, operands: Sequence[int], first: int, freed: Sequence[int]) -> int:
        """A plan, once; the order's number. The lead does its own share of a short one when it has given
        the next order, which the others find when they are done."""
        if self.failed is not None or self.fatal is not None or self.broken:
            self.check()
        try:
            self._said(RUN, plan, operands, freed, first)
            late, self.late = self.late, (self.number, plan, operands, first, freed)
            if late is not None:
                self._do(late)
            if not (self.children and self.member.is_short(plan)):
                self._finish()
        except BaseException as error:
            raise self._own(error) from error.__cause__
        return self.number

    def _do(self, run: _Run) -> None:
        number, plan, operands, first, freed = run
        if self.broken:  # perhaps by somebody who is as far as this, for whom nobody should wait
            with self.turn:
                if self.failed is not None:
                    self.communicator.abort(self.failed.error)
        self.member.free(freed)
        self.member.run(plan, operands, first)
        self.did = number

    def _finish(self) -> None:
        late, self.late = self.late, None
        if late is not None:
            self._do(late)

    def settle(self) -> None:
        """The lead has done its share of all that was ordered."""
        try:
            self._finish()
        except BaseException as error:
            raise self._own(error) from error.__cause__

    def wait(self, freed: Sequence[int] = ()) -> None:
        """Until everybody has done all that was ordered."""
        self.check()
        try:
            self._said(WAIT, NOBODY, (), freed, 0)
            self._finish()
            self.member.free(freed)
            self.member.wait()
            self.did = self.number
        except BaseException as error:
            raise self._own(error) from error.__cause__

    def _said(
        self, code: int, plan: bytes, operands: Sequence[int], freed: Sequence[int], first: int
    ) -> None:
        """An order without text is on its way, written where it is sent from if it is short."""
        self.number += 1
        form, facts = laid_out(code, self.number, self.epoch & 255, plan, operands, freed, first)
        self.counts[code] += 1
        self.bytes[code] += form.size
        if form.size > FIRST_BYTES:
            self._send(form.pack(*facts))
            return
        self._ring()
        if self.sending:  # an interrupt came between
            self._taken()
        form.pack_into(self.saying, 0, *facts)
        self._start(form.size)
        self._taken()

    def order(self, kind: str, value: Any = None, **what: Any) -> Any:
        """Anything else, with what an Order has; what the lead answers. For a plan, the value is the
        plan itself."""
        self.check()
        try:
            self.number += 1
            order = Order(kind, self.number, self.epoch & 255, **what)
            said = order.pack()
            self._count(kind, said)
            self._send(said)
            self._finish()
            found = self.member.obey(order, value) if kind != "end" else None
            self.did = self.number
            return found
        except BaseException as error:
            raise self._own(error) from error.__cause__

    def tell(self, kind: str, **what: Any) -> None:
        """Send what needs no answer."""
        self.order(kind, **what)

    def _count(self, kind: str, said: bytes) -> None:
        code = KINDS.index(kind)
        self.counts[code] += 1
        self.bytes[code] += len(said)

    def _send(self, data: bytes) -> None:
        self._ring()
        self._forward(data)

    def _ring(self) -> None:
        """Wake those who may sleep, since nobody said anything for a while."""
        before, self.told = self.told, clock()
        if self.told - before > RING:
            for rank in self.lines:
                self._say(rank, b"w")

    def _own(self, error: BaseException) -> BaseException:
        """Error that the user is to see for one at the lead, which may follow from another's."""
        with self.undisturbed():
            if self.fatal is not None:
                return self.fatal
            cause, undone = not isinstance(error, CommunicatorError), self.did + 1
            with self.turn:
                self.broken = True
                if self.failed is None or (cause and not self.failed.cause) or _is_request(error):
                    self.failed = _Failed(undone, error, cause)
                found = self.failed.error
                self.communicator.abort(error)
                epoch = self.epoch
            if found is error:
                _failed(self.rank, undone, error)
            self._stop(epoch, undone)
            try:
                self._recover()
            except CommunicatorError as lost:
                return lost
            return found

    def check(self) -> None:
        """Tell the user what happened since the last order."""
        if self.forked:
            raise forks.not_here()
        if self.fatal is not None:
            raise self.fatal
        if self.broken:
            found = self.failed
            with self.undisturbed():
                self._recover()
            if found is not None:
                raise found.error

    def _recover(self) -> None:
        """All begin anew; what was to be made since the failure is lost."""
        late, self.late = self.late, None
        if late is not None:
            self.member.free(late[-1])
        with self.turn:
            assert self.failed is not None
            why = str(self.failed.error)
            self.epoch += 1
            self.number += 1
            self.failed = None
            self.broken = False
            self.communicator.error = None
        said = Order("recover", self.number, self.epoch & 255).pack()
        self._count("recover", said)
        self._send(said)
        self.lost.append((self._meet(self.did + 1), self.number, why))
        self.did = self.number

    def let_go(self) -> list[Any]:
        """In a forked child: who waits at the other ends hears when the parent ends."""
        self.alive, self.broken = False, True
        for line in self.lines.values():
            os.close(line.detach())
        return [self, self.member]

    def stats(self) -> dict[str, Any]:
        """Messages and bytes that orders took, by their kind."""
        counted = zip(KINDS, self.counts, self.bytes, strict=True)
        return {k: {"messages": n, "bytes": size} for k, n, size in counted if n}

    def end(self) -> None:
        """Send everybody home."""
        if not self.alive:
            return
        self.alive = False  # who hangs up from now on does not die
        if self.fatal is None:
            with contextlib.suppress(OstinatoError):
                self.order("end")
                self._free()
        if self.fatal is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            for process in self.processes.values():  # one that was stopped does not hear
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            if len(self.processes) < len(self.lines):
                self.base.Abort(1)
            os._exit(1)  # MPI would wait for those who are gone
        self.watch.join(JOIN)  # the others hang up first
        for line in self.lines.values():
            line.close()


# -- the others ----------------------------------------------------------------------------
class Hand(Crew):
    """One who obeys."""

    def __init__(self, comm: Any, threads: int | None = None, device: str = "cpu") -> None:
        super().__init__(comm, threads, device)
        said = np.empty(FIRST_BYTES, np.uint8)
        comm.Bcast([said, self.communicator.byte], LEAD)
        host, port, token = json.loads(said.tobytes())
        self.line = socket.create_connection((host, port), timeout=JOIN)
        self.line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = {"token": token, "rank": self.rank, "pid": os.getpid(), "host": platform.node()}
        _tell(self.line, b"h", json.dumps(hello).encode())
        self.bell = threading.Event()
        self.failed = False
        self.undone = 0  # the first order that it did not do since it failed
        self.stopped = -1, 0  # the last epoch in which somebody failed, and in which order
        self.first = bytearray(FIRST_BYTES)  # of the next order
        self.coming = self.control.Recv_init((self.first, self.communicator.byte), self.parent)
        self.lock = threading.Lock()
        threading.Thread(target=self._watch, name="ostinato-lifeline", daemon=True).start()

    def _watch(self) -> None:
        threading.Thread(target=self._beat, name="ostinato-heartbeat", daemon=True).start()
        self.line.settimeout(None)
        while True:
            try:
                said = _hear(self.line)
            except OSError:
                said = None
            if said is None or said[0] == b"q":
                if self.alive:  # the lead died, or gave up
                    os._exit(1)
                return
            if said[0] == b"w":
                self.bell.set()
            elif said[0] == b"x":
                epoch, number = _STOP.unpack(said[1])
                with self.turn:
                    known, before = self.stopped
                    self.stopped = epoch, min(number, before) if epoch == known else number
                    self._look()

    def _look(self) -> None:
        """Wait for nobody any more in the order in which somebody failed, or later ones. All do those
        before it to their end."""
        epoch, number = self.stopped
        if epoch == self.epoch and self.number >= number:
            self.communicator.abort(CommunicatorError("another worker failed."))
            self.bell.set()

    def _beat(self) -> None:
        while self.alive:
            self._say(b".")
            time.sleep(BEAT)

    def _say(self, kind: bytes, text: bytes = b"") -> None:
        with contextlib.suppress(OSError), self.lock:
            _tell(self.line, kind, text)

    def serve(self) -> None:
        """Obey until the lead says that it is enough. An engine that ends otherwise counts as dead."""
        try:
            while (order := self._next()).kind != "end":
                self._obey(order)
            self.coming.Free()
            self._free()
        finally:
            self.alive = False
            with contextlib.suppress(OSError):
                self.line.shutdown(socket.SHUT_RDWR)

    def _obey(self, order: Order) -> None:
        number, self.number = self.number, order.number
        if order.kind == "recover":
            self._recover(order)
            return
        if self.stopped[0] == self.epoch:
            self._look()
        try:
            if order.number != number + 1:
                raise CommunicatorError(
                    f"worker {self.rank} got order {order.number} after {number}: workers do not do "
                    "the same."
                )
            if self.failed or order.epoch != self.epoch & 255:
                if order.kind in ("load", "forget"):  # which need nobody else
                    self.member.obey(order)
                self.member.free(order.freed)
                return
            self.member.obey(order)
        except BaseException as error:
            if not self.failed:
                self.failed, self.undone = True, order.number
            cause = self.communicator.error is None or not isinstance(error, CommunicatorError)
            if cause:
                _failed(self.rank, order.number, error)
            said = described(error) | {"number": order.number, "epoch": self.epoch, "cause": cause}
            self._say(b"e", json.dumps(said).encode())

    def _recover(self, order: Order) -> None:
        self._meet(self.undone or order.number)
        with self.turn:
            self.epoch += 1
            self.failed, self.undone = False, 0
            self.communicator.error = None
            self._look()

    def _next(self) -> Order:
        self.coming.Start()
        self._listen(self.coming)
        length = length_of(self.first)
        data = memoryview(self.first)[:length].tobytes()
        if length > FIRST_BYTES:
            rest = np.empty(length - FIRST_BYTES, np.uint8)
            for piece in mpi._pieces(rest):
                self._listen(self.control.Irecv((piece, self.communicator.byte), self.parent))
            data += rest.tobytes()
        if self.children:
            self._forward(data)
        return unpack(data)

    def _listen(self, request: Any) -> None:
        """Look for a while, then sleep until the bell rings."""
        looks, end = 0, 0.0
        while not request.Test():
            looks += 1
            if looks % mpi.EAGER:
                continue
            os.sched_yield()
            now = time.perf_counter()
            end = end or now + AWAKE
            if now < end:
                continue
            while not self.bell.wait(DOZE) and not request.Test():
                pass
            self.bell.clear()
            end = 0.0


def _assemble(comm: Any) -> None:
    """Wait for all processes, but not for ever: one may have failed before it came here."""
    request, end = comm.Ibarrier(), time.monotonic() + JOIN
    while not request.Test():
        if time.monotonic() > end:
            atexit.register(os._exit, 1)  # MPI would wait for the others at its end
            raise _too_few(comm.size)
        time.sleep(mpi.NAP)


def _is_request(error: BaseException) -> bool:
    """Whether the user wanted it: an interrupt is told, whatever else went wrong."""
    return not isinstance(error, Exception)


def _too_few(size: int) -> OstinatoError:
    got = f"fewer than {size} processes within {JOIN:g} s"
    do = "see whether one failed before it came to ost.connect()"
    return CommunicatorError.because("connect", got=got, needed="all that mpiexec started", do=do)


def callers(
    server: socket.socket, greet: Callable[[socket.socket], T], until: float
) -> Generator[tuple[socket.socket, T], None, None]:
    """Connections whose greeting was right, as they come. Each is greeted in a thread of its own, so that
    nobody waits for one who is silent; whatever else one says, it is sent away."""
    good = queue.SimpleQueue[tuple[socket.socket, T]]()

    def meet(line: socket.socket) -> None:
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            good.put((line, greet(line)))
        except Exception as error:
            _log.warning("ostinato: refused a connection: %s", str(error))
            line.close()

    def listen() -> None:
        while server.fileno() >= 0:
            try:
                line, _ = server.accept()
            except OSError:  # the door is closed, or a caller was gone at once
                time.sleep(mpi.NAP)
                continue
            threading.Thread(target=meet, args=(line,), daemon=True).start()

    threading.Thread(target=listen, name="ostinato-door", daemon=True).start()
    try:
        while True:
            yield good.get(timeout=max(0.0, until - time.monotonic()))
    except queue.Empty:
        return
    finally:
        with contextlib.suppress(OSError):  # accept() would wait on
            server.shutdown(socket.SHUT_RDWR)
        server.close()


def _hello(line: socket.socket, token: str) -> dict[str, Any]:
    """Receive the greeting of one of this crew."""
    until = time.monotonic() + GREET
    kind, length = _SAID.unpack(exactly(line, _SAID.size, until) or b"")
    need(kind == b"h" and length <= FIRST_BYTES, f"no greeting, but {kind!r} of {length} bytes")
    said = json.loads(exactly(line, length, until) or b"")
    need(hmac.compare_digest(str(said["token"]).encode(), token.encode()), "a wrong token")
    found: dict[str, Any] = said
    return found


def _failed(rank: int, number: int, error: BaseException) -> None:
    name = type(error).__name__
    _log.error("ostinato: worker %d failed in order %d: %s: %s", rank, number, name, str(error))


def _tell(line: socket.socket, kind: bytes, text: bytes = b"") -> None:
    line.sendall(_SAID.pack(kind, len(text)) + text)


def _hear(line: socket.socket) -> tuple[bytes, bytes] | None:
    """The next message; None where the line ended, or says what nobody does."""
    head = exactly(line, _SAID.size)
    if head is None:
        return None
    kind, length = _SAID.unpack(head)
    text = exactly(line, length) if length <= LONGEST else None
    return None if text is None else (kind, text)


def exactly(line: socket.socket, count: int, until: float | None = None) -> bytes | None:
    """So many bytes, at the latest then; None where the line ended."""
    found = bytearray()
    while len(found) < count:
        if until is not None:
            line.settimeout(max(1e-3, until - time.monotonic()))
        more = line.recv(count - len(found))
        if not more:
            return None
        found += more
    return bytes(found)


# -- a crew of this job --------------------------------------------------------------------
_crew: Lead | None = None
_RANKS = (
    "PMI_SIZE",
    "PMIX_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_NUM_TASKS",
)


def among_processes() -> bool:
    """Whether mpiexec started others beside this process, which serve nobody yet."""
    named = any(os.environ.get(n, "1") not in ("", "1") for n in _RANKS)
    return _crew is None and named and forks.is_rank()


def job_size() -> int:
    """How many processes mpiexec started beside this one, itself included; 1 without it."""
    if not forks.is_rank():
        return 1
    if _crew is not None:
        return _crew.size
    if not among_processes() and "mpi4py.MPI" not in sys.modules:
        return 1
    try:
        MPI = _mpi()
    except ImportError:
        return 1
    return int(MPI.COMM_WORLD.size) if MPI.Is_initialized() and not MPI.Is_finalized() else 1


def _mpi() -> Any:
    """MPI, which ends with this process, and not with a forked child of it: it would wait for all."""
    if "mpi4py.MPI" not in sys.modules:
        import mpi4py

        if mpi4py.rc.finalize is None:
            mpi4py.rc.finalize = False
            atexit.register(_finalize, os.getpid())
    from mpi4py import MPI

    return MPI


def _finalize(owner: int) -> None:
    from mpi4py import MPI

    if os.getpid() == owner and MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()


def job_crew(threads: int | None = None, device: str = "cpu") -> Lead:
    """The crew of this MPI job, for its lead. The others serve here, and then leave the script."""
    global _crew
    if _crew is None:
        MPI = _mpi()
        if MPI.COMM_WORLD.rank != LEAD:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the lead decides
            activity.listeners = ()  # and shows how far all are
            Hand(MPI.COMM_WORLD, threads, device).serve()
            sys.exit()
        _crew = Lead(MPI.COMM_WORLD, threads, device=device)
        forks.be_rank()
        atexit.register(_crew.end)
    asked, has = _crew.member.worker.asked, _crew.member.memory.name
    first = "as at the first connect of these processes"
    if threads is not None and threads != asked:
        got, needed = f"threads={threads}", f"threads={asked}, {first}"
        raise ArgumentError.because("connect", got=got, needed=needed)
    if device != has:
        got, needed = f"device={device!r}", f"device={has!r}, {first}"
        raise ArgumentError.because("connect", got=got, needed=needed)
    return _crew
