"""From a program somewhere to the lead of a crew: one connection, on which both have proven that
they know a secret, and everything that is said is signed and numbered.

    program ── orders (orders.py), values ──► lead
            ◄── a: done so far, r: an answer, v: a value, e: an error, .: alive ──

Runs of plans are not answered one by one: so many may be on their way, and what went wrong is told
with the number of its order. Nothing that is received is unpickled; who says something damaged,
repeated, or without a signature is cut off. A message begins with a head of fixed size, which says
how much follows and is believed before that is waited for; what has begun has to go on."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found, unused-ignore]  # as signal, in a tenth of the time
import contextlib
import hashlib
import hmac
import itertools
import json
import logging
import math
import os
import secrets
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np
from ostinato.ops.core.encode import decode_spec, integer, listing, need
from ostinato.ops.core.helpers import begin_to_help
from ostinato.ops.core.spec import DTYPES, empty_aligned
from ostinato.runtime.messages.communicator import octets

from ostinato import settings
from ostinato.errors import CommunicatorError

from . import forks
from .crew import BEAT, GREET, Lead, callers, exactly
from .orders import HEAD, KINDS, RUN, Order, described, is_quiet, length_of, pack, rebuilt, unpack

IN_FLIGHT = 64  # runs that may be on their way
TOLD = 16  # of which so many are acknowledged together, unless nothing else comes
SIGNED = 16  # bytes of a signature
TURNS = 8  # in which somebody waits for a sign of life
AT_ONCE = 1 << 14  # bytes that are received together: many orders
PARTING = 3.0  # seconds for a lead to say that it has ended
PIECE = 1 << 24  # bytes of a value that are signed together
BUSY = (1 << 64) - 1  # what a lead has got that does something else than to wait
_BACK = struct.Struct("<cxxxIQ")  # kind, length of the text, number
_log = logging.getLogger("distributed.worker.ostinato")  # what Dask shows of its workers


class Broken(Exception):
    """The connection ended, or what came over it cannot be believed."""


class Wire:
    """A connection after both sides have introduced themselves."""

    def __init__(self, sock: socket.socket, key: bytes, mine: bytes, theirs: bytes) -> None:
        self.sock = sock
        self.mine, self.theirs = mine, theirs
        self.keyed = {
            side: hashlib.blake2b(key=key, digest_size=SIGNED, person=side)
            for side in (mine, theirs)
        }
        self.sent = self.got = 0  # what was signed, and believed
        self.came = bytearray()  # and was not looked at
        self.turns, self.always = 1, True
        self.is_idle = False  # waiting for a message of which nothing is there
        self.lock = threading.Lock()

    def expect(self, within: float, always: bool) -> None:
        """Something has to arrive all the time, or, if not always, until a message that has begun is there.
        Waited for in turns: where all processes were stopped for a while, one turn is over, and nobody is
        lost."""
        self.sock.settimeout(None)
        turn = divmod(int(1e6 * within / TURNS), 1_000_000)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", *turn))
        self.turns, self.always = TURNS, always

    def _got(self, receive: Callable[[Any], Any], what: Any) -> Any:
        for _ in range(self.turns):
            with contextlib.suppress(BlockingIOError):
                found = receive(what)
                if not found:
                    raise Broken("the connection ended")
                return found
        raise TimeoutError("a message that does not go on")

    def _signed(self, data: Any) -> bytes:
        self.sent += 1
        return self._sign(self.mine, self.sent, data)

    def _sign(self, side: bytes, count: int, data: Any) -> bytes:
        made = self.keyed[side].copy()
        made.update(count.to_bytes(8, "little"))
        made.update(data)
        return made.digest()

    def send(self, head: bytes, rest: bytes = b"", value: Any = None) -> None:
        """A message: its head, what that says follows, and the bytes of an array behind it."""
        with self.lock:
            said = head + self._signed(head)
            self.sock.sendall(said + rest + self._signed(rest) if rest else said)
            for start in range(0, 0 if value is None else value.size, PIECE):
                piece = memoryview(value[start : start + PIECE])
                sign = self._signed(piece)
                self.sock.sendall(piece)
                self.sock.sendall(sign)

    def receive(self, size: int, length_of: Callable[[bytes], int]) -> bytes:
        """The next message, whose head has so many bytes and says how many there are in all."""
        self.is_idle = True
        while not (self.always or self.has_more):
            with contextlib.suppress(TimeoutError):
                self._read(1)
        self.is_idle = False
        head = self._believed(size)
        return head + self._believed(length_of(head) - size)

    def _believed(self, count: int) -> bytes:
        """So many bytes, with the signature that follows them."""
        if not count:
            return b""
        self._read(count + SIGNED)
        found = bytes(memoryview(self.came)[:count])
        del self.came[:count]
        self._believe(found)
        return found

    def _read(self, count: int) -> None:
        """Until so many bytes are there, not yet believed."""
        while (lacks := count - len(self.came)) > 0:
            self.came += self._got(self.sock.recv, min(max(lacks, AT_ONCE), 1 << 20))

    @property
    def has_more(self) -> bool:
        """Whether a message, or the beginning of one, is there."""
        if not self.came:
            with contextlib.suppress(BlockingIOError):
                self.came += self.sock.recv(AT_ONCE, socket.MSG_DONTWAIT)
        return bool(self.came)

    def _believe(self, data: Any) -> None:
        """The signature that follows is that of these bytes, in their place."""
        self._read(SIGNED)
        sign = bytes(memoryview(self.came)[:SIGNED])
        del self.came[:SIGNED]
        if not hmac.compare_digest(sign, self._sign(self.theirs, self.got + 1, data)):
            raise Broken("a message whose signature is wrong")
        self.got += 1

    def array(self, shape: Sequence[int], dtype: Any) -> Any:
        """An array whose bytes come next. Where there is no memory for it they pass all the same, as more is
        said behind them, and this is the error."""
        size = math.prod(shape) * dtype.itemsize
        found: Any
        try:
            found = empty_aligned(shape, dtype)
            out = octets(found) if size else None
        except MemoryError as error:
            found, out = error.with_traceback(None), None
        scrap = np.empty(min(size, PIECE) if out is None else 0, np.uint8)
        for start in range(0, size, PIECE):
            rest = min(size - start, PIECE)
            self._fill(scrap[:rest] if out is None else out[start : start + rest])
        return found

    def _fill(self, out: Any) -> None:
        """With a piece of an array."""
        piece = memoryview(out)
        at = min(len(self.came), len(piece))
        piece[:at] = self.came[:at]
        del self.came[:at]
        while at < len(piece):
            at += self._got(self.sock.recv_into, piece[at:])
        self._believe(piece)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def greet(sock: socket.socket, secret: bytes, leads: bool) -> Wire:
    """Prove to each other that both know the secret, without saying it."""
    until = time.monotonic() + GREET
    sock.settimeout(GREET)
    mine = secrets.token_bytes(32)
    sock.sendall(mine)
    me, you = (b"lead", b"program") if leads else (b"program", b"lead")
    theirs = _said(sock, until)
    nonces = mine + theirs if leads else theirs + mine
    sock.sendall(hmac.digest(secret, me + nonces, "sha256"))
    if not hmac.compare_digest(_said(sock, until), hmac.digest(secret, you + nonces, "sha256")):
        raise Broken("somebody who does not know the secret")
    return Wire(sock, hmac.digest(secret, b"key" + nonces, "sha256"), me, you)


def _said(sock: socket.socket, until: float) -> bytes:
    found = exactly(sock, 32, until)
    if found is None:
        raise Broken("the connection ended")
    return found


def whole(send: Callable[[], None]) -> None:
    """Call this without Ctrl-C in its midst: that comes afterwards, unless it is asked for twice."""
    handler = _signal.getsignal(_signal.SIGINT)
    if threading.get_ident() != threading.main_thread().ident or not callable(handler):
        send()
        return
    came: list[Any] = []

    def later(number: int, frame: FrameType | None) -> None:
        came.append(frame)
        if len(came) > 1:
            handler(number, frame)

    _signal.signal(_signal.SIGINT, later)
    try:
        send()
    finally:
        _signal.signal(_signal.SIGINT, handler)
    if came:
        handler(_signal.SIGINT, came[0])


# -- at the lead ---------------------------------------------------------------------------
class Desk:
    """Where the lead takes orders from a program."""

    def __init__(self, lead: Lead, secret: bytes, host: str = "127.0.0.1") -> None:
        self.lead = lead
        self.secret = secret
        self.server = socket.create_server((host, 0), backlog=4)
        self.address: tuple[str, int] = self.server.getsockname()[:2]

    def serve(self, waits: float = 60.0) -> None:
        """One program, until it ends."""
        until = time.monotonic() + waits
        greeted = callers(self.server, lambda sock: greet(sock, self.secret, leads=True), until)
        with contextlib.closing(greeted):
            wire = next((wire for _, wire in greeted), None)
        if wire is not None:
            _Talk(self.lead, wire).serve()


class _Talk:
    """A conversation with one program."""

    def __init__(self, lead: Lead, wire: Wire) -> None:
        self.lead = lead
        self.wire = wire
        self.last = 0  # its last order
        self.epoch = 0  # failures that it was told of
        self.numbers: dict[int, int] = {}  # the lead's number of an order -> the program's
        self.untold = 0
        self.alive = True

    def serve(self) -> None:
        threading.Thread(target=self._beat, name="ostinato-beat", daemon=True).start()
        self.wire.expect(settings.heartbeat, always=False)
        try:
            while self._one():
                pass
        except Exception as error:  # whatever it said: it is cut off, and the crew is free
            _log.warning("ostinato: the program is gone: %s", str(error))
        finally:
            self.alive = False
            self.wire.close()

    def _beat(self) -> None:
        while self.alive:
            try:
                self._back(b".", self.wire.got if self.wire.is_idle else BUSY)
                self._look()
            except OSError:
                return
            if self.lead.gone.wait(BEAT):  # at once: mpiexec may end the lead, too
                with contextlib.suppress(OSError):
                    self._look()
                return

    def _look(self) -> None:
        """Tell of what went wrong while nothing is asked; a failure that leaves the crew whole waits for
        the next order."""
        if self.lead.fatal is not None:
            self._wrong(self.lead.fatal, self.last)

    def _back(self, kind: bytes, number: int, text: bytes = b"", value: Any = None) -> None:
        self.wire.send(_BACK.pack(kind, len(text), number), text, value)

    def _one(self) -> bool:
        if self.untold and not self.wire.has_more:
            self._tell()
        order = unpack(self.wire.receive(HEAD.size, length_of))
        need(order.number > self.last, f"order {order.number} after {self.last}")
        self.last = order.number
        value = self._value(order)
        if order.epoch != self.epoch & 255:  # it did not know yet of a failure
            if not is_quiet(order):
                self._wrong(CommunicatorError("an order before this one failed."), order.number)
            return True
        if order.kind == "end":
            self._back(b"r", order.number, b"null")
            return False
        self.numbers[self.lead.number + 1] = order.number
        if len(self.numbers) > 4 * IN_FLIGHT:
            for old in list(self.numbers)[: 2 * IN_FLIGHT]:
                del self.numbers[old]
        before = len(self.lead.lost)
        try:
            if isinstance(value, MemoryError):
                raise value
            self._do(order, value)
        except Exception as error:
            self.epoch += 1
            begun = self.lead.lost[-1][0] if len(self.lead.lost) > before else 0
            self._wrong(error, self.numbers.get(begun, order.number))
        return True

    def _value(self, order: Order) -> Any:
        if order.kind != "put":
            return None
        spec = decode_spec(order.text)
        return self.wire.array(spec.shape, spec.dtype)

    def _do(self, order: Order, value: Any) -> None:
        lead = self.lead
        if order.kind == "run":
            lead.run(order.plan, order.operands, order.first, order.freed)
            if not self.wire.has_more:
                lead.settle()
            self._count()
            return
        need(order.kind not in ("recover", "reset"), f"an order of kind {order.kind}")
        found = lead.order(
            order.kind,
            plan=order.plan,
            operands=order.operands,
            freed=order.freed,
            first=order.first,
            text=order.text,
            value=value,
        )
        if is_quiet(order):
            self._count()
        elif isinstance(found, np.ndarray):
            said = [list(found.shape), found.dtype.name]
            self._back(b"v", order.number, json.dumps(said).encode(), octets(found))
        else:
            self._back(b"r", order.number, json.dumps(found).encode())

    def _count(self) -> None:
        """One more was done of which nothing is said, until there are some."""
        self.untold += 1
        if self.untold >= TOLD:
            self._tell()

    def _tell(self) -> None:
        self.untold = 0
        self._back(b"a", self.last)

    def _wrong(self, error: BaseException, number: int) -> None:
        said = described(error) | {"number": number, "epoch": self.epoch}
        said["fatal"] = self.lead.fatal is not None
        self._back(b"e", number, json.dumps(said).encode())


# -- at the program ------------------------------------------------------------------------
class Channel:
    """What a program has in the place of a lead."""

    member = None
    client: Any = None  # of the Dask cluster whose workers these are
    crew = ""
    addresses: Sequence[str] = ()  # of each worker

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        size: int,
        threads: int,
        name: str,
        heartbeat: float,
    ) -> None:
        self.size = size
        self.threads = threads
        self.name = name
        self.heartbeat = heartbeat  # the lead's: seconds after which silence is a loss
        self.number = 0
        self.epoch = 0
        self.done = 0  # runs that were acknowledged
        self.lost: list[tuple[int, int, str]] = []
        self.fatal: CommunicatorError | None = None
        self.failed: BaseException | None = None  # to be told to the user
        self.ordering = threading.RLock()
        self.sessions = itertools.count()
        self.plans = Counter[bytes]()
        self.counts = dict.fromkeys(KINDS, 0)
        self.bytes = dict.fromkeys(KINDS, 0)
        self.asked = 0  # an order whose answer somebody waits for
        self.answers: dict[int, Any] = {}  # to this one
        self.last = 0  # the order that ends all
        self.changed = threading.Condition()
        self.alive = True
        self.forked = False  # since, and this is the child
        self.until_closed = contextlib.ExitStack()  # what is needed as long as this
        sock = socket.create_connection(address, timeout=GREET)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wire = greet(sock, secret, leads=False)
        self.wire.expect(heartbeat, always=True)
        self.lacks = 0, 0.0  # what an idle lead has got of what was sent, and since when it says so
        self.listener = threading.Thread(target=self._listen, name="ostinato-channel", daemon=True)
        self.listener.start()
        forks.share(self)

    # -- what comes back -------------------------------------------------------------------
    def _listen(self) -> None:
        begin_to_help()
        try:
            while self.alive:
                self._hear()
        except TimeoutError:
            self._end(f"{self.name} gave no sign of life for {self.heartbeat:g} s")
        except (Broken, OSError) as error:
            self._end(f"{self.name} is gone ({error})")
        except Exception as error:  # what it says makes no sense
            self._end(f"{self.name} said what cannot be ({type(error).__name__}: {error})")

    def _hear(self) -> None:
        said = self.wire.receive(_BACK.size, lambda head: _BACK.size + _BACK.unpack(head)[1])
        kind, _, number = _BACK.unpack_from(said)
        found: Any = json.loads(said[_BACK.size :]) if len(said) > _BACK.size else None
        if kind == b".":
            self._check_arrived(number)
        elif kind == b"v":
            shape, dtype = listing(found)
            found = self.wire.array([integer(n, 0) for n in listing(shape)], DTYPES[dtype])
        with self.changed:
            if kind == b"a":
                self.done = number
            elif kind in (b"r", b"v"):
                self.done = number
                if number == self.asked:  # and nobody was interrupted meanwhile
                    self.answers[number] = found
                if number == self.last:
                    self.alive = False  # it may hang up
            elif kind == b"e":
                self._failed(number, found)
            self.changed.notify_all()

    def _check_arrived(self, got: int) -> None:
        """An end where the lead waits for what was sent so long ago."""
        now = time.monotonic()
        if got >= self.wire.sent or got != self.lacks[0]:
            self.lacks = got, now
        elif now - self.lacks[1] > self.heartbeat:
            raise Broken("it does not get what it is sent")

    def _failed(self, number: int, found: dict[str, Any]) -> None:
        error = rebuilt(found, self.name)
        if found["fatal"]:
            self.fatal = self.fatal or CommunicatorError(str(error))
            return
        if found["epoch"] == self.epoch:  # of an order that came after the one that failed
            return
        self.lost.append((number, self.number, str(error)))
        self.epoch = found["epoch"]
        self.done = self.number
        self.failed = error

    def _end(self, why: str) -> None:
        with self.changed:
            if self.alive:
                self.fatal = self.fatal or CommunicatorError(
                    f"{why}; what the workers held is lost: start again (a checkpoint keeps values)."
                )
            self.changed.notify_all()
        self.wire.close()  # who sends waits for nobody now

    # -- orders ----------------------------------------------------------------------------
    def check(self) -> None:
        """Tell the user what happened since the last order."""
        if self.forked:
            raise forks.not_here()
        if self.failed is not None:
            with self.changed:
                error, self.failed = self.failed, None
            if error is not None:
                raise error
        if self.fatal is not None:
            raise self.fatal

    def run(self, plan: bytes, operands: Sequence[int], first: int, freed: Sequence[int]) -> int:
        """A plan, once; the order's number. Returns before it has run."""
        if self.failed is not None or self.fatal is not None or self.forked:
            self.check()
        if self.number - self.done >= IN_FLIGHT:
            self._until(lambda: self.number - self.done < IN_FLIGHT)
        self.number += 1
        said = pack(RUN, self.number, self.epoch & 255, plan, operands, freed, first)
        self._send("run", said)
        return self.number

    def tell(self, kind: str, **what: Any) -> None:
        """Send what needs no answer, as runs do not."""
        self.check()
        if self.number - self.done >= IN_FLIGHT:
            self._until(lambda: self.number - self.done < IN_FLIGHT)
        self.number += 1
        self._send(kind, Order(kind, self.number, self.epoch & 255, **what).pack())

    def order(self, kind: str, value: Any = None, **what: Any) -> Any:
        """Anything else, with what an Order has; the lead's answer."""
        self.check()
        self.number += 1
        number, epoch = self.number, self.epoch
        order = Order(kind, number, epoch & 255, **what)
        if kind == "end":
            self.last = number
        self.asked = number
        try:
            self._send(kind, order.pack(), octets(value) if kind == "put" else None)
            self._until(lambda: number in self.answers or self.epoch != epoch)
            self.check()
            found = self.answers[number]
            if isinstance(found, MemoryError):
                raise found
            return found
        finally:
            with self.changed:
                self.asked = 0
                self.answers.clear()

    def wait(self, freed: Sequence[int] = ()) -> None:
        """Until everybody has done all that was ordered."""
        self.order("wait", freed=freed)

    def _send(self, kind: str, said: bytes, value: Any = None) -> None:
        self.counts[kind] += 1
        self.bytes[kind] += len(said) + SIGNED

        def send() -> None:
            try:
                self.wire.send(said[: HEAD.size], said[HEAD.size :], value)
            except OSError as error:
                self._end(f"{self.name} is gone ({error})")
                self.check()
            except BaseException:
                self._end(f"{self.name} got a part of a message, which was interrupted")
                raise

        whole(send)

    def _until(self, happened: Callable[[], bool]) -> None:
        with self.changed:
            while not happened() and self.fatal is None:
                self.changed.wait()
        if self.fatal is not None and not happened():
            self.check()

    def stats(self) -> dict[str, Any]:
        """Messages and bytes that orders took, by their kind."""
        return {
            k: {"messages": self.counts[k], "bytes": self.bytes[k]} for k in KINDS if self.counts[k]
        }

    def let_go(self) -> list[Any]:
        """In a forked child: the connection is the parent's, which a word here, or its end, would spoil."""
        os.close(self.wire.sock.detach())
        return [self, self.client, self.until_closed]

    def close(self) -> None:
        """Let the crew go."""
        if self.forked:
            return
        if self.fatal is None:
            late = threading.Timer(PARTING, self._end, [f"{self.name} is busy"])
            late.daemon = True
            late.start()
            with contextlib.suppress(Exception):
                self.order("end")
            late.cancel()
        self.alive = False
        self.wire.close()
        with contextlib.suppress(Exception):  # of a scheduler that is gone
            self.until_closed.close()
