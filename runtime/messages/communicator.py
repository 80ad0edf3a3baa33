"""How workers talk: the protocol, and its form for workers that are threads of one process.

A communicator belongs to one worker. Every operation has a started form that returns a request, and
a blocking one. All workers of a group call the same operations in the same order. Reductions
combine in the order of ranks, so the same plan gives the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from ostinato.ops.core.device import Device, Messages
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.spec import is_float

from ostinato.errors import CommunicatorError

Arrays = Sequence[Any]
Group = tuple[int, ...]
IN_CACHE = 1 << 15  # elements that are combined at once where they are widened
ALL = 1 << 62  # of these, on a device


class Request(Protocol):
    """A started operation."""

    def wait(self) -> None:
        """Return when its results are written and its operands may be overwritten."""


class Unpacked:
    """A request whose results come one behind the other."""

    def __init__(self, request: Request, found: Arrays, outs: Arrays, xp: Any = np) -> None:
        self.request, self.found, self.outs, self.xp = request, found, outs, xp

    def wait(self) -> None:
        self.request.wait()
        for x, out in zip(self.found, self.outs, strict=True):
            self.xp.copyto(out, x)


class Prepared(Protocol):
    """Messages that were made ready, to be sent as often as one likes."""

    def start(self, finish: Callable[[], None] | None = None) -> Request:
        """Send what lies in their arrays now; whoever waits for it then finishes."""


class Communicator(Protocol):
    rank: int
    size: int
    beside: int  # workers that share this machine's cores, itself included
    xp: Any  # of the arrays that it takes
    on_device: bool  # whether these are of a device that is not the host
    in_graphs: bool  # whether what it does on a device may be repeated with what is around it
    one_queue: bool  # whether workers share a device, and the order of what they ask it for

    @property
    def how(self) -> str:
        """Messages go, for people."""

    @property
    def talking(self) -> float:
        """Seconds spent in operations, where that is counted."""

    def ready(self, in_order: bool = True) -> Communicator:
        """Who talks for a plan that is bound now; whether sums are made in the order of ranks. All bind the
        same plans in the same order."""

    def start_all_reduce(self, ins: Arrays, outs: Arrays, monoid: str, group: Group) -> Request:
        """Combine a state of one or more arrays over a group; everybody gets the result."""

    def start_reduce_scatter(
        self, x: Any, out: Any, monoid: str, group: Group, parts: Sequence[tuple[slice, ...]]
    ) -> Request:
        """Combine over a group; the k-th of it gets the k-th part."""

    def start_exchange(self, sends: Messages, receives: Messages) -> Request:
        """Messages between any workers: all-gather, all-to-all and halos are made of it."""

    def prepare(self, sends: Messages, receives: Messages) -> Prepared | None:
        """An exchange between arrays in one piece that will be done again and again; None if nothing is
        gained by that. All of a group prepare it, and start it in the same order."""
        return None

    def start_broadcast(self, x: Any, out: Any, root: int, group: Group) -> Request:
        """Start to send what the root has to everybody."""

    def send(self, x: Any, to: int) -> None:
        """One message; returns when x may be overwritten."""
        self.start_exchange([(to, x)], []).wait()

    def receive(self, out: Any, source: int) -> None:
        """The matching message."""
        self.start_exchange([], [(source, out)]).wait()

    def barrier(self) -> None:
        """Return when everybody has come here."""

    def agree(self, said: int) -> Sequence[int]:
        """Gather what everybody says, on the host."""
        found = np.zeros((self.size, 1), np.int64)
        found[self.rank] = said
        others = [r for r in range(self.size) if r != self.rank]
        sends, receives = [(r, found[self.rank]) for r in others], [(r, found[r]) for r in others]
        self.start_exchange(sends, receives).wait()
        return [int(x) for x in found[:, 0]]

    def overlap(self, request: Request) -> Request:
        """A started operation that should go on while its worker computes."""
        return request

    def abort(self, error: BaseException) -> None:
        """Release all others from whatever they wait for."""

    def check(self) -> None:
        """An error if another worker failed: for who computes for long and talks to nobody."""


class ThreadWorld:
    """What the threads share: a board to which messages are pinned, and one condition to wait
    on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.board: dict[Any, Any] = {}
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self.messages = 0
        self.bytes = 0
        self.told: dict[int, Callable[[], None]] = {}  # who else is to hear of a failure, by rank

    def communicator(self, rank: int, device: Device | None = None) -> ThreadCommunicator:
        return ThreadCommunicator(self, rank, device)

    def post(self, key: Any, value: Any) -> None:
        with self.changed:
            self.board[key] = value
            self.changed.notify_all()

    def take(self, key: Any, keep: bool = False) -> Any:
        with self.changed:
            while key not in self.board:
                self.check()
                self.changed.wait()
            return self.board[key] if keep else self.board.pop(key)

    def check(self) -> None:
        if self.error is not None:
            raise CommunicatorError("a worker waited for another that failed.") from self.error

    def recover(self) -> None:
        """Forget what was under way when a run failed."""
        with self.changed:
            self.board.clear()
            self.error = None


class _Later:
    """A request whose work is done when it is awaited; its operands were pinned to the board when
    it started."""

    __slots__ = ("_finish",)

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def wait(self) -> None:
        self._finish()


class ThreadCommunicator(Communicator):
    """A worker's end of a ThreadWorld. Nothing is copied but by its reader. Threads that share a device ask it
    in one queue: what one has shown is made before another reads it."""

    talking = 0.0
    how = "within this process"
    in_graphs = takes_device_memory = False  # they meet on the host
    one_queue = True

    def __init__(self, world: ThreadWorld, rank: int, device: Device | None = None) -> None:
        self.world = world
        self.xp: Any = np if device is None else device.xp
        self.on_device = device is not None and not device.is_host
        self.at_once = ALL if self.on_device else IN_CACHE
        self.rank = rank
        self.size = self.beside = world.size
        self.turns: dict[Any, int] = {}

    def _turn(self, line: Any) -> Any:
        """The next number on a line of communication, the same for all who take part."""
        self.turns[line] = self.turns.get(line, 0) + 1
        return line, self.turns[line]

    def ready(self, in_order: bool = True) -> Communicator:
        return self

    def restart(self) -> None:
        self.turns.clear()

    def on_abort(self, tell: Callable[[], None]) -> None:
        """Somebody else who is to hear of a failure."""
        self.world.told[self.rank] = tell

    def _count(self, moved: int) -> None:
        with self.world.changed:
            self.world.messages += 1
            self.world.bytes += moved

    def _meet(self, value: Any, group: Group, read: Callable[[list[Any]], None]) -> Request:
        """Everybody of a group shows a value, reads the others', and leaves when all have read."""
        key = self._turn(("group", group))
        self.world.post((key, self.rank), value)

        def finish() -> None:
            read([self.world.take((key, r), keep=True) for r in group])
            self.world.post((key, self.rank, "read"), None)
            for r in group:
                self.world.take((key, r, "read"), keep=True)
            self.world.post((key, self.rank, "left"), None)
            if self.rank == group[0]:  # clear up behind the last
                for r in group:
                    self.world.take((key, r, "left"))
                with self.world.changed:
                    for r in group:
                        del self.world.board[key, r]
                        del self.world.board[key, r, "read"]

        return _Later(finish)

    def start_all_reduce(self, ins: Arrays, outs: Arrays, monoid: str, group: Group) -> Request:
        self._count(sum(x.nbytes for x in ins))

        def read(states: list[Arrays]) -> None:
            fold(states, outs, monoid, self.xp, self.at_once)

        return self._meet(ins, group, read)

    def start_reduce_scatter(
        self, x: Any, out: Any, monoid: str, group: Group, parts: Sequence[tuple[slice, ...]]
    ) -> Request:
        self._count(x.nbytes)
        mine = parts[group.index(self.rank)]

        def read(addends: list[Any]) -> None:
            fold([(a[mine],) for a in addends], (out,), monoid, self.xp, self.at_once)

        return self._meet(x, group, read)

    def start_exchange(self, sends: Messages, receives: Messages) -> Request:
        keys = []
        stays = [x for peer, x in sends if peer == self.rank]
        for peer, x in sends:
            if peer == self.rank:
                continue
            key = self._turn(("from", self.rank, "to", peer))
            self.world.post(key, x)
            self._count(x.nbytes)
            keys.append(key)
        comes = [(peer, out) for peer, out in receives if peer != self.rank]
        inbox = [(self._turn(("from", peer, "to", self.rank)), out) for peer, out in comes]

        def finish() -> None:
            for x, (_, out) in zip(stays, [r for r in receives if r[0] == self.rank], strict=True):
                self.xp.copyto(out, x)
            for key, out in inbox:
                self.xp.copyto(out, self.world.take(key))
                self.world.post((key, "read"), None)
            for key in keys:
                self.world.take((key, "read"))

        return _Later(finish)

    def start_broadcast(self, x: Any, out: Any, root: int, group: Group) -> Request:
        self._count(x.nbytes if self.rank == root else 0)

        def read(shown: list[Any]) -> None:
            self.xp.copyto(out, shown[group.index(root)])

        return self._meet(x, group, read)

    def barrier(self) -> None:
        self._meet(None, tuple(range(self.size)), lambda _: None).wait()

    def abort(self, error: BaseException) -> None:
        with self.world.changed:
            self.world.error = self.world.error or error
            self.world.changed.notify_all()
        for tell in self.world.told.values():
            tell()

    def check(self) -> None:
        self.world.check()


def flat(x: Any, xp: Any = np) -> Any:
    """All elements in one piece."""
    return x.reshape(-1) if x.flags.c_contiguous else xp.ascontiguousarray(x).reshape(-1)


def octets(x: Any) -> Any:
    """Its bytes in one piece."""
    return flat(x).view(np.uint8)


def fold(
    states: Sequence[Arrays], outs: Arrays, monoid: str, xp: Any = np, at_once: int = IN_CACHE
) -> None:
    """Combine states in order: ((0 1) 2) 3 ...; sums and products of halves in float32, rounded once."""
    if len(states) == 1:
        for out, x in zip(outs, states[0], strict=True):
            xp.copyto(out, x)
        return
    how = MONOIDS[monoid]
    if how.width == 1 and not how.exact and _is_narrow(states[0][0], outs[0]):
        _fold_wide([x for (x,) in states], outs[0], getattr(xp, how.ufunc), xp, at_once)
        return
    combine = how.combine
    combine(xp, outs, states[0], states[1])
    for state in states[2:]:
        combine(xp, outs, outs, state)


def _is_narrow(x: Any, out: Any) -> bool:
    """Whether it is to be added up in a wider dtype than its own."""
    return is_float(x.dtype) and (x.dtype.itemsize == 2 or x.dtype != out.dtype)


def _fold_wide(addends: Sequence[Any], out: Any, combine: Any, xp: Any, at_once: int) -> None:
    """Combine in the result's dtype, in float32 at the least, so many elements at once."""
    if out.ndim == 0:
        addends, out = [x.reshape(1) for x in addends], out.reshape(1)
    wide = max(out.dtype, np.dtype(np.float32), key=lambda d: d.itemsize)
    rows = max(1, at_once * len(out) // max(out.size, 1))
    work = None if out.dtype == wide else xp.empty((min(rows, len(out)), *out.shape[1:]), wide)
    for first in range(0, len(out), rows):
        part = slice(first, first + rows)
        made = out[part] if work is None else work[: len(out) - first]
        combine(addends[0][part], addends[1][part], out=made, dtype=wide)
        for x in addends[2:]:
            combine(made, x[part], out=made, dtype=wide)
        if work is not None:
            xp.copyto(out[part], made, casting="unsafe")


class Alone(Communicator):
    """The communicator of a single worker, to whom nobody talks."""

    rank, size, beside = 0, 1, 1
    talking = 0.0
    how = "there is nobody to talk to"
    xp: Any = np
    on_device = in_graphs = one_queue = False

    def ready(self, in_order: bool = True) -> Communicator:
        return self

    def start_all_reduce(self, ins: Arrays, outs: Arrays, monoid: str, group: Group) -> Request:
        fold([ins], outs, monoid)
        return _DONE

    def start_reduce_scatter(
        self, x: Any, out: Any, monoid: str, group: Group, parts: Sequence[tuple[slice, ...]]
    ) -> Request:
        np.copyto(out, x)
        return _DONE

    def start_exchange(self, sends: Messages, receives: Messages) -> Request:
        for (_, x), (_, out) in zip(sends, receives, strict=True):
            np.copyto(out, x)
        return _DONE

    def start_broadcast(self, x: Any, out: Any, root: int, group: Group) -> Request:
        np.copyto(out, x)
        return _DONE

    def send(self, x: Any, to: int) -> None:
        raise CommunicatorError("a single worker has nobody to send to.")

    def receive(self, out: Any, source: int) -> None:
        raise CommunicatorError("a single worker has nobody to receive from.")

    def agree(self, said: int) -> Sequence[int]:
        return [said]

    def barrier(self) -> None:
        """Everybody is here."""

    def abort(self, error: BaseException) -> None:
        """Nobody waits."""

    def check(self) -> None:
        """Nobody else is there to fail."""


_DONE: Request = _Later(lambda: None)
