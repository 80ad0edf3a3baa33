"""How workers talk whose arrays lie on devices that reach each other: a Communicator whose messages go from
device to device, beside what these compute.

    start    packs, sends, receives, combines and unpacks: all of it asked of the device's queue for
             messages (ops/core/device.py), behind what the worker asked before
    wait     lets what the worker asks from here on run behind that; nobody waits on the host

What is combined is combined in the order of ranks, by messages that are as few and as long as those of a ring:
the bits are those of threads and of MPI. Where no order changes a bit, the library's own way is taken.

Another communicator, of the host, carries what devices cannot: values of the host, invitations, what a
worker that failed has to say. Where devices have no library for messages between them, it carries
everything: from device to device, if its own library can, else through the host's memory."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, cast

import numpy as np
from ostinato.ops.core.device import Device, Messages, Messenger
from ostinato.ops.core.monoid import MONOIDS

from ostinato.errors import CommunicatorError, OstinatoError

from .communicator import ALL, Arrays, Communicator, Group, Request, flat, fold

AT_ONCE = 1 << 18  # bytes: what is smaller goes to everybody of a group, instead of a part to each
ADDRESS = 128  # bytes of what a worker says of its device
LOOK = 0.01  # seconds between two looks whether somebody failed


class _Joined:
    """A started operation."""

    __slots__ = ("wait",)

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait


class ByMpi(Messenger):
    """The host's library, which is given the device's memory: when the device has done what it was asked, as
    the library knows no queue. So the host waits here for messages, and no graph has them."""

    def __init__(self, host: Any, device: Device) -> None:
        self.host, self.device = host, device

    def aside(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def joined(self) -> Callable[[], None]:
        return lambda: None

    def exchange(self, sends: Messages, receives: Messages) -> None:
        if sends or receives:
            self.device.clock()
            self.host.start_exchange(sends, receives).wait()

    def broadcast(self, x: Any, out: Any, root: int) -> None:
        others = [r for r in range(self.host.size) if r != root]
        if self.host.rank != root:
            self.exchange([], [(root, out)])
            return
        self.exchange([(r, x) for r in others], [])
        if out is not x:
            self.device.xp.copyto(out, x)


class DeviceCommunicator(Communicator):
    """A worker's end."""

    on_device = in_graphs = True
    one_queue = False

    def __init__(self, host: Any, device: Device) -> None:
        self.host, self.device, self.xp = host, device, device.xp
        self.rank, self.size, self.beside = host.rank, host.size, host.beside
        self.everybody = tuple(range(self.size))
        self.messenger: Messenger | None = None
        self.in_order = True  # sums of floats, too
        self.why = "there is nobody to talk to" if self.size == 1 else ""  # by way of the host
        host.on_abort(self._abort)

    @property
    def talking(self) -> float:
        return float(self.host.talking)

    @property
    def how(self) -> str:
        """Messages go, for people."""
        if self.why:
            return f"{self.host.how}, and through the host's memory: {self.why}"
        if self.messenger is None:
            return "none yet"
        return f"{'' if self.in_graphs else f'{self.host.how}, '}from device to device"

    # -- beginning and end -------------------------------------------------------------------
    def ready(self, in_order: bool = True) -> Communicator:
        if self.messenger is None and not self.why:
            self._connect()
        if self.messenger is None:
            return cast(Communicator, self.host)
        found = self if in_order else copy(self)
        found.in_order = in_order
        return found

    def _connect(self) -> None:
        """All tell all where their devices are; the first one invites the others."""
        addresses = self._told(self.device.address())
        self.in_graphs = True
        silent = [r for r, said in enumerate(addresses) if not said]
        alike = [(addresses.index(said), r) for r, said in enumerate(addresses)]
        shared = [pair for pair in alike if pair[0] != pair[1]]
        if (silent or shared) and all(self.host.agree(int(self.host.takes_device_memory))):
            self.in_graphs, self.messenger = False, ByMpi(self.host, self.device)
        elif silent:
            self.why = f"worker {silent[0]} has no library for messages between devices"
        elif shared:
            self.why = "workers {} and {} share a device".format(*shared[0])
        else:
            invitation = self._told(self.device.invite() if not self.rank else b"")[0]
            self.messenger = self._in_time(
                lambda: self.device.messenger(self.rank, self.size, invitation)
            )

    def _told(self, said: bytes) -> list[bytes]:
        """Gather what everybody says, which is short."""
        found = [np.zeros(ADDRESS + 1, np.uint8) for _ in self.everybody]
        mine = found[self.rank]
        mine[0] = len(said)
        mine[1 : 1 + len(said)] = np.frombuffer(said, np.uint8)
        others = [r for r in self.everybody if r != self.rank]
        self.host.start_exchange(
            [(r, mine) for r in others], [(r, found[r]) for r in others]
        ).wait()
        return [x[1 : 1 + int(x[0])].tobytes() for x in found]

    def _in_time(self, meet: Callable[[], Messenger]) -> Messenger:
        """Wait for all others; an error if one of them fails meanwhile."""
        found: list[Any] = []
        ended = threading.Event()

        def work() -> None:
            try:
                self.device.use()
                found.append(meet())
            except BaseException as error:
                found.append(error)
            ended.set()

        threading.Thread(target=work, name="ostinato-meeting", daemon=True).start()
        while not ended.wait(LOOK):
            self.host.check()
        (made,) = found
        if isinstance(made, BaseException):
            raise self._wrong(made) from made
        assert isinstance(made, Messenger)
        return made

    def _abort(self) -> None:
        if (messenger := self.messenger) is not None:
            messenger.abort()

    def abort(self, error: BaseException) -> None:
        self.host.abort(error)

    def restart(self, *how: Any) -> None:
        """Begin anew after a failure: the next plan that is bound connects."""
        self._abort()
        self.messenger = None
        self.host.restart(*how)

    def close(self) -> None:
        messenger, self.messenger = self.messenger, None
        if messenger is not None:
            messenger.close()

    def check(self) -> None:
        self.host.check()
        if self.messenger is not None:
            try:
                self.messenger.check()
            except Exception as error:
                raise self._wrong(error) from error

    def _wrong(self, error: BaseException) -> OstinatoError:
        """Name the cause of an error of a library that knows no workers: often another one failed."""
        if isinstance(error, OstinatoError):
            return error
        try:
            self.host.check()
        except OstinatoError as known:
            return known
        return CommunicatorError(f"worker {self.rank} cannot talk to other workers: {error}")

    def agree(self, said: int) -> Sequence[int]:
        found: Sequence[int] = self.host.agree(said)
        return found

    # -- operations --------------------------------------------------------------------------
    def _started(self, work: Callable[[Messenger], None]) -> Request:
        messenger = self.messenger
        if messenger is None:
            raise CommunicatorError("a worker asked for messages between devices before they met.")
        try:
            with messenger.aside():
                work(messenger)
                return _Joined(messenger.joined())
        except RuntimeError as error:  # of the library; what kernels say stays as it is
            if type(error).__name__ == "NcclError":
                raise self._wrong(error) from error
            raise

    def start_all_reduce(self, ins: Arrays, outs: Arrays, monoid: str, group: Group) -> Request:
        return self._started(
            lambda messenger: self._all_reduce(messenger, ins, outs, monoid, group)
        )

    def _all_reduce(
        self, messenger: Messenger, ins: Arrays, outs: Arrays, monoid: str, group: Group
    ) -> None:
        if len(group) == 1:
            self._fold([ins], outs, monoid)
            return
        rows, count = [flat(x, self.xp) for x in ins], ins[0].size
        if group == self.everybody and MONOIDS[monoid].width == 1 and count:
            (out,) = outs
            made = self._line(out)
            if messenger.combine(rows[0], made, monoid, self.in_order):
                self._fill(out, made)
                return
        size = sum(x.nbytes for x in ins)
        small = size * (len(group) - 1) <= AT_ONCE or count < len(group)
        if small or any(x.size != count for x in ins):
            self._gathered(messenger, ins, rows, outs, monoid, group)
        else:
            self._shared(messenger, rows, outs, monoid, group)

    def _gathered(
        self,
        messenger: Messenger,
        ins: Arrays,
        rows: Arrays,
        outs: Arrays,
        monoid: str,
        group: Group,
    ) -> None:
        """Everybody gets all addends."""
        others = [r for r in group if r != self.rank]
        states = {r: [self.xp.empty(x.shape, x.dtype) for x in ins] for r in others}
        sends = [(r, x) for r in others for x in rows if x.size]
        messenger.exchange(sends, [(r, x) for r in others for x in states[r] if x.size])
        self._fold([states.get(r, ins) for r in group], outs, monoid)

    def _shared(
        self, messenger: Messenger, rows: Arrays, outs: Arrays, monoid: str, group: Group
    ) -> None:
        """Everybody combines a part of all addends, and sends the result to all."""
        mine = group.index(self.rank)
        others = [(k, r) for k, r in enumerate(group) if r != self.rank]
        cuts = [k * rows[0].size // len(group) for k in range(len(group) + 1)]
        parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
        own = parts[mine]
        states: dict[int, list[Any]] = {mine: [x[own] for x in rows]}
        for k, _ in others:
            states[k] = [self.xp.empty((own.stop - own.start,), x.dtype) for x in rows]
        messenger.exchange(
            [(r, x[parts[k]]) for k, r in others for x in rows],
            [(r, x) for k, r in others for x in states[k]],
        )
        made = [self._line(out) for out in outs]
        ordered = [states[k] for k in range(len(group))]
        self._fold(ordered, [m[own] for m in made], monoid)
        messenger.exchange(
            [(r, m[own]) for _, r in others for m in made],
            [(r, m[parts[k]]) for k, r in others for m in made],
        )
        for m, out in zip(made, outs, strict=True):
            self._fill(out, m)

    def start_reduce_scatter(
        self, x: Any, out: Any, monoid: str, group: Group, parts: Sequence[tuple[slice, ...]]
    ) -> Request:
        def work(messenger: Messenger) -> None:
            addends: list[Any] = []
            sends, receives = [], []
            for r, part in zip(group, parts, strict=True):
                piece = x[part]
                if r == self.rank:
                    addends.append(piece)
                    continue
                addends.append(self.xp.empty(out.shape, x.dtype))
                sends += [(r, flat(piece, self.xp))] if piece.size else []
                receives += [(r, addends[-1])] if out.size else []
            messenger.exchange(sends, receives)
            self._fold([(a,) for a in addends], (out,), monoid)

        return self._started(work)

    def start_exchange(self, sends: Messages, receives: Messages) -> Request:
        def work(messenger: Messenger) -> None:
            stays = [x for r, x in sends if r == self.rank]
            wanted = [out for r, out in receives if r == self.rank]
            goes = [(r, flat(x, self.xp)) for r, x in sends if r != self.rank and x.size]
            comes = [
                (r, out, self._line(out)) for r, out in receives if r != self.rank and out.size
            ]
            messenger.exchange(goes, [(r, made) for r, _, made in comes])
            for x, out in zip(stays, wanted, strict=True):
                self.xp.copyto(out, x)
            for _, out, made in comes:
                self._fill(out, made)

        return self._started(work)

    def start_broadcast(self, x: Any, out: Any, root: int, group: Group) -> Request:
        def work(messenger: Messenger) -> None:
            made = self._line(out)
            if group == self.everybody:
                messenger.broadcast(flat(x, self.xp) if self.rank == root else made, made, root)
            elif self.rank == root:
                messenger.exchange([(r, flat(x, self.xp)) for r in group if r != root], [])
                self.xp.copyto(out, x)
                return
            else:
                messenger.exchange([], [(root, made)])
            self._fill(out, made)

        return self._started(work) if out.size else _Joined(lambda: None)

    def barrier(self) -> None:
        self.host.barrier()

    def _fold(self, states: Sequence[Arrays], outs: Arrays, monoid: str) -> None:
        """In order; all addends at once, if the device has a kernel for that."""
        how = MONOIDS[monoid]
        if how.width == 1 and len(states) > 2:
            addends = [x for (x,) in states]
            run = self.device.folding(how.ufunc, addends, outs[0])
            if run is not None:
                run(*addends, outs[0])
                return
        fold(states, outs, monoid, self.xp, ALL)

    # -- where elements may be received --------------------------------------------------------
    def _line(self, out: Any) -> Any:
        """The array's own memory in a row, or, if that has gaps, another."""
        return out.reshape(-1) if out.flags.c_contiguous else self.xp.empty(out.size, out.dtype)

    def _fill(self, out: Any, row: Any) -> None:
        """With what has been received, unless that was its own memory."""
        if not out.flags.c_contiguous:
            self.xp.copyto(out, row.reshape(out.shape))
