"""Samples in the memory of several workers: who has one gives it to who needs it.

    worker 0: kept {3, 5, 8}  <-- "5?" -- worker 1: kept {1, 2, 9}
                              -- 5 ------>

At the beginning of an epoch all say what they keep, and where they are asked for it. A thread that needs a
sample which another worker has asks for it over a connection of its own; who does not get it in time, or
not at all, makes it. Nothing is kept twice, and nothing that arrives is unpickled: a sample is a line of
JSON and the bytes of arrays. Who connects first says a token that came by the crew's own messages."""

from __future__ import annotations

import base64
import contextlib
import hmac
import itertools
import json
import secrets
import socket
import struct
import threading
import weakref
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from ostinato.ops.core.encode import Malformed, need
from ostinato.ops.core.layout import Box
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.spec import DTYPES

from .fields import Fields
from .plain import Undescribed, as_plain, from_plain

PATIENCE = 10.0  # seconds for an answer
TOKEN = 32  # bytes
LONGEST_LINE, LONGEST = 1 << 20, 1 << 32  # bytes of a sample
_HEAD = struct.Struct("<IQ")  # lengths of the line and of what follows it; nothing: it is not here
_ASKED = struct.Struct("<7q")  # a number, and the bounds of a box: 0 where all is asked for


class Giver(Protocol):
    """What is given away, by numbers, or by numbers and boxes."""

    def get(self, key: Any, /) -> tuple[list[Any], Fields] | None: ...


# -- who has samples ---------------------------------------------------------------------------
class Server:
    """Gives away what is kept."""

    def __init__(self, kept: Giver, host: str) -> None:
        self.token = secrets.token_hex(TOKEN // 2)
        self.socket = socket.create_server((host, 0))
        self.address = list(self.socket.getsockname()[:2])
        lines: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        given = (self.socket, kept, self.token.encode(), lines)
        threading.Thread(target=_listen, args=given, name="ostinato-store", daemon=True).start()
        weakref.finalize(self, _close, self.socket, lines)


def _close(server: socket.socket, lines: weakref.WeakSet[socket.socket]) -> None:
    for line in (server, *lines):
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
        line.close()


def _listen(
    server: socket.socket, kept: Giver, token: bytes, lines: weakref.WeakSet[socket.socket]
) -> None:
    while True:
        try:
            line, _ = server.accept()
        except OSError:
            return
        lines.add(line)
        given = (line, kept, token)
        threading.Thread(target=_serve, args=given, name="ostinato-store", daemon=True).start()


def _serve(line: socket.socket, kept: Giver, token: bytes) -> None:
    """One who asks, until he has gone."""
    with contextlib.suppress(OSError, Malformed), line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.settimeout(PATIENCE)
        if not hmac.compare_digest(_exactly(line, len(token)), token):
            return
        line.settimeout(None)
        while True:
            number, *bounds = _ASKED.unpack(_exactly(line, _ASKED.size))
            box = tuple(itertools.pairwise(bounds))[::2]
            found = kept.get((number, box) if any(bounds) else number)
            try:
                head, parts = packed(*found) if found is not None else (b"", [])
            except Undescribed:
                head, parts = b"", []
            line.sendall(_HEAD.pack(len(head), sum(p.nbytes for p in parts)) + head)
            for part in parts:
                line.sendall(part)


# -- who needs them ----------------------------------------------------------------------------
class Lines:
    """Connections to other workers, of each thread its own."""

    def __init__(self, offers: Sequence[Any]) -> None:
        self.offers = list(offers)
        self._local, self._lock = threading.local(), make_lock()
        self.lost: set[int] = set()
        self.fetched = self.bytes = 0

    def ask(self, holder: int, number: int, box: Box = ()) -> tuple[list[Any], Fields] | None:
        """Ask another worker for the sample of a number, or for a box of it."""
        if holder in self.lost:
            return None
        known = self._lines()
        try:
            if holder not in known:
                known[holder] = self._connect(holder)
            line = known[holder].socket
            bounds = itertools.chain(*box) if box else [0] * 6
            line.sendall(_ASKED.pack(number, *bounds))
            length, size = _HEAD.unpack(_exactly(line, _HEAD.size))
            need(length <= LONGEST_LINE and size <= LONGEST, f"a sample of {size} bytes")
            if not length:
                return None
            head = _exactly(line, length)
            body = _exactly(line, size)
            found = unpacked(head, body)
        except (OSError, ValueError, LookupError, TypeError, MemoryError):
            self.lost.add(holder)  # it is made here
            known.pop(holder, None)
            return None
        with self._lock:
            self.fetched += 1
            self.bytes += size
        return found

    def _lines(self) -> dict[int, _Line]:
        """This thread's connections."""
        try:
            found: dict[int, _Line] = self._local.lines
        except AttributeError:
            found = self._local.lines = {}
        return found

    def _connect(self, holder: int) -> _Line:
        offer = self.offers[holder]
        line = _Line(socket.create_connection(tuple(offer["address"]), PATIENCE))
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.socket.sendall(offer["token"].encode())
        return line


class Others(Lines):
    """What other workers keep."""

    def __init__(self, rank: int, offers: Sequence[Any]) -> None:
        super().__init__(offers)
        self.holder = np.full(max((len(kept_bits(o)) for o in offers), default=0), -1, np.int32)
        mine = offers[rank]
        for k, offer in enumerate(offers):
            if k != rank and offer["cut"] == mine["cut"]:
                bits = kept_bits(offer)
                self.holder[: len(bits)][bits] = k
        self.holder[: len(kept_bits(mine))][kept_bits(mine)] = -1

    def get(self, index: int) -> tuple[list[Any], Fields] | None:
        """A sample, if another worker has it and gives it."""
        holder = int(self.holder[index]) if index < len(self.holder) else -1
        return None if holder < 0 else self.ask(holder, index)


class _Line:
    """A connection, which ends when nobody has it."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    def __del__(self) -> None:
        self.socket.close()


def offer_of(server: Server, kept: Iterable[int], count: int, cut: Any) -> dict[str, Any]:
    """Describe what a worker keeps, for the others: up to four bytes a sample."""
    bits = np.zeros(count, bool)
    bits[list(kept)] = True
    few = zlib.compress(np.packbits(bits).tobytes())
    return {
        "address": server.address,
        "token": server.token,
        "cut": cut,
        "kept": base64.b64encode(few).decode(),
        "count": count,
    }


def kept_bits(offer: Any) -> Any:
    size = -(-offer["count"] // 8)
    few = zlib.decompressobj().decompress(base64.b64decode(offer["kept"]), size)
    return np.unpackbits(np.frombuffer(few, np.uint8), count=offer["count"]).astype(bool)


def _exactly(line: socket.socket, count: int) -> bytearray:
    found = bytearray(count)
    view, at = memoryview(found), 0
    while at < count:
        got = line.recv_into(view[at:])
        if not got:
            raise OSError("the connection ended")
        at += got
    return found


# -- a sample on its way -----------------------------------------------------------------------
def packed(values: Sequence[Any], fields: Fields) -> tuple[bytes, list[Any]]:
    """Its line of JSON, and what follows; `Undescribed` if it has parts that are no data."""
    leaves: list[Any] = []
    parts = []
    for value in values:
        if isinstance(value, np.ndarray) and value.dtype.name in DTYPES:
            x = np.asarray(value, value.dtype.newbyteorder("="), order="C")
            parts.append(x.reshape(-1).view(np.uint8).data)
            leaves.append(["array", value.dtype.name, list(value.shape)])
        elif isinstance(value, bytes):
            parts.append(memoryview(value))
            leaves.append(["bytes", len(value)])
        else:
            leaves.append(["value", as_plain(value)])
    return json.dumps([fields.as_data(), leaves]).encode(), parts


def unpacked(head: bytes | bytearray, body: bytes | bytearray) -> tuple[list[Any], Fields]:
    """The sample; Malformed or an error of its kind if it is none."""
    about, leaves = json.loads(head)
    at, values = 0, list[Any]()
    for kind, *how in leaves:
        if kind == "value":
            values.append(from_plain(how[0]))
            continue
        if kind == "bytes":
            (size,) = how
            values.append(bytes(body[at : at + size]))
        else:
            dtype, shape = DTYPES[how[0]], tuple(how[1])
            made = np.frombuffer(body, dtype, int(np.prod(shape, dtype=np.int64)), at).reshape(
                shape
            )
            made.flags.writeable = False
            size = made.nbytes
            values.append(made)
        need(size >= 0 and at + size <= len(body), f"a sample of {len(body)} bytes")
        at += size
    return values, Fields.from_data(about)
