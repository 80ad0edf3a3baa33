"""Values of the host that come again and again, such as batches: on their way while the GPU computes.

    host      copies a piece into pinned memory, of a ring; waits if that piece is still on its way
    stream    of its own: copies it on to the GPU; the current stream waits for the last piece by an event

Where it lies on the GPU is used again when nobody has it any more. A kernel that was asked before may still
read there, so the copy waits for what was asked up to the call in which that was found out, and not for
what was asked since: one that comes with each step overlaps with the step before.

Values that leave the GPU's memory while they are not read go the same way and back (`HostStore`)."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.locks import make_lock

from ostinato.errors import MemoryLimitError

from ..core.user_line import misfit

PIECE = 1 << 24  # bytes of a piece
RING = 4  # pieces
KEPT = 4  # places of one form
FORMS = 16  # forms at once
UNUSED = 2  # references to an array that only its place has, as seen by who counts them


@dataclass(eq=False)
class _Place:
    array: Any
    free: Any = None  # the event after which nobody reads it


class Copies:
    """To one GPU."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.stream = xp.cuda.Stream(non_blocking=True)
        self.ring: list[tuple[Any, Any]] = []  # pinned memory, and the event after which it is free
        self.next = 0
        self.places: dict[Any, list[_Place]] = {}
        self.lock = make_lock()

    def send(self, value: Any) -> Any:
        """An array that will have the value, for who asks for something on the current stream from here on."""
        with self.lock:
            here = self.xp.cuda.get_current_stream()
            array, free = self._place(value.shape, value.dtype, here)
            self.stream.wait_event(free)
            source = value.reshape(-1).view(np.uint8)
            for first in range(0, source.size, PIECE):
                self._piece(source[first : first + PIECE], array.data + first)
            here.wait_event(self._moment(self.stream))
            return array

    def _moment(self, stream: Any) -> Any:
        return stream.record(self.xp.cuda.Event(disable_timing=True))

    def _piece(self, part: Any, to: Any) -> None:
        if len(self.ring) < RING:
            memory = self.xp.cuda.alloc_pinned_memory(PIECE)
            self.ring.append((np.frombuffer(memory, np.uint8, PIECE), None))
        k = self.next % len(self.ring)
        pinned, free = self.ring[k]
        if free is not None:
            free.synchronize()
        np.copyto(pinned[: part.size], part)
        to.copy_from_host_async(pinned.ctypes.data, part.size, self.stream)
        self.ring[k], self.next = (pinned, self._moment(self.stream)), (self.next + 1) % RING

    def _place(self, shape: Any, dtype: Any, here: Any) -> tuple[Any, Any]:
        """Where it goes, and the event that it waits for."""
        key = shape, dtype
        if key not in self.places and len(self.places) == FORMS:
            del self.places[next(iter(self.places))]
        places, now = self.places.setdefault(key, []), self._moment(here)
        ready = None
        for place in places:
            if sys.getrefcount(place.array) > UNUSED:
                place.free = None
            elif place.free is None:
                place.free = now
            elif ready is None:
                ready = place
        if ready is None:
            ready = _Place(self.xp.empty(shape, dtype))
            ready.free = self._moment(here)  # who had that memory before may still use it
            places.append(ready)
            del places[:-KEPT]
        free, ready.free = ready.free, None
        return ready.array, free

    def give_back(self) -> None:
        """Give back what is kept for later."""
        with self.lock:
            self.places.clear()


class _Arrival:
    """A copy that is on its way: what is asked for after `wait` comes after it."""

    def __init__(self, xp: Any, event: Any) -> None:
        self.xp, self.event = xp, event

    def wait(self) -> None:
        self.xp.cuda.get_current_stream().wait_event(self.event)


class HostStore:
    """Places in the host's pinned memory, of one program, for values that leave the GPU's for a while: copied
    on a stream of its own, beside kernels."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.size = 0  # bytes of all places
        self.written = self.read = 0  # bytes, so far
        self.process = os.getpid()  # whose GPU a forked child cannot use
        self.stream: Any = None
        self.memory: Any = None

    def place(self, size: int) -> int:
        """A place for so many bytes: where it begins. All are asked for before the first value leaves."""
        assert self.memory is None, "what was taken for the places so far cannot grow"
        at, self.size = self.size, self.size + -(-size // 512) * 512
        return at

    def stash(self, at: int, x: Any) -> _Arrival:
        """Begin to copy a value to its place."""
        if self.memory is None:
            self.memory = self._pinned()
        self.written += x.nbytes
        return self._copy(x.data.copy_to_host_async, at, x.nbytes)

    def fetch(self, at: int, out: Any) -> _Arrival:
        """Begin to copy it back, when nobody uses the memory any more to which it goes."""
        self.read += out.nbytes
        return self._copy(out.data.copy_from_host_async, at, out.nbytes)

    def _copy(self, copy: Any, at: int, size: int) -> _Arrival:
        here = self.xp.cuda.get_current_stream()
        self.stream.wait_event(here.record(self.xp.cuda.Event(disable_timing=True)))
        copy(self.memory.ctypes.data + at, size, self.stream)
        return _Arrival(self.xp, self.stream.record(self.xp.cuda.Event(disable_timing=True)))

    def _pinned(self) -> Any:
        if self.stream is None:
            self.stream = self.xp.cuda.Stream(non_blocking=True)
        try:
            memory = self.xp.cuda.alloc_pinned_memory(self.size)
        except (MemoryError, self.xp.cuda.runtime.CUDARuntimeError) as error:
            raise misfit(
                MemoryLimitError,
                "values that leave a GPU's memory",
                got=f"{error}"[:80],
                needed=f"{self.size / 2**20:.1f} MiB of the host's memory, pinned",
                do="allow a larger memory_limit, or split the arrays over more workers (split=)",
            ) from None
        return np.frombuffer(memory, np.uint8, self.size)

    def settle(self) -> None:
        """Wait until nothing is on its way."""
        if self.stream is not None and os.getpid() == self.process:
            self.stream.synchronize()

    flush = settle

    def let_go(self) -> None:
        """Take none of the host's memory until something is copied again."""
        self.settle()
        self.memory = None
