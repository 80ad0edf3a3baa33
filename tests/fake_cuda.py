"""What CuPy has of CUDA beside arrays (`cupy.cuda`), for machines without a GPU: streams, events, graphs,
pools of memory. All of it is computed by the host, at once; what a GPU would do later, or not at all, is an
error here:

    - work on a stream that reads or writes what another stream wrote, or writes what it reads, without
      an event between them (vector clocks; the legacy stream waits for no stream that does not block)
    - while a stream captures, to wait for anything, to move values from or to the host, to allocate where
      the pool would have to ask the driver, to call cuBLAS or cuSOLVER by way of CuPy, or what sorts
    - memory of a graph that the pool gives to somebody else
    - copies that reach beyond pinned memory of the host

What is captured is not computed: results hold rubbish until the graph is launched."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CALL = 1e-6  # seconds that a function takes on the device
LEGACY = 0  # the stream of who asks for none


@dataclass
class Counts:
    """What went over the bus, and how often a kernel waited for a value."""

    from_host: int = 0
    to_host: int = 0
    waits: int = 0
    asked: int = 0  # functions that were called; the device does them in order, some time later
    done: int = 0  # of these, what it is known to have done
    allocations: int = 0  # arrays that were made
    launches: int = 0  # calls of the host: of functions, and of graphs


counted = Counts()


class CUDARuntimeError(RuntimeError):
    def __init__(self, name: str, text: str) -> None:
        self.status = {
            "cudaErrorStreamCaptureUnsupported": 900,
            "cudaErrorStreamCaptureInvalidated": 901,
            "cudaErrorStreamCaptureUnjoined": 904,
        }.get(name, 0)
        super().__init__(f"{name}: {text}")


class OutOfMemoryError(MemoryError):
    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        super().__init__(
            f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes)."
        )


class Memory:
    """How much there is, where that is limited, and what is used of it."""

    total: int | None = None
    used = 0

    @classmethod
    def take(cls, x: Any) -> None:
        if cls.total is None:
            return
        if cls.used + x.nbytes > cls.total:
            raise OutOfMemoryError(x.nbytes, cls.used)
        cls.used += x.nbytes
        weakref.finalize(base_of(x), cls.give, x.nbytes)

    @classmethod
    def give(cls, size: int) -> None:
        cls.used -= size


@contextlib.contextmanager
def memory_of(size: int) -> Iterator[None]:
    """From here on so many bytes can be had."""
    Memory.total, Memory.used = size, 0
    try:
        yield
    finally:
        Memory.total = None


class Ranges:
    """cupy.cuda.nvtx"""

    available = True
    open: list[str] = []  # noqa: RUF012
    found: list[str] = []  # noqa: RUF012

    @classmethod
    def RangePush(cls, message: str, id_color: int = -1) -> None:
        assert isinstance(message, str)
        cls.open.append(message)

    @classmethod
    def RangePop(cls) -> None:
        cls.found.append(cls.open.pop())


# -- streams -------------------------------------------------------------------------------------
Clock = dict[int, int]  # of each stream, how much of it has happened
_of_host: Clock = {}  # what the host has waited for
_numbers = itertools.count(100)
_streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_here = threading.local()
_is_alone = True  # there is no stream but the legacy one
_clocks = threading.RLock()


def _merge(clock: Clock, other: Clock) -> None:
    for number, n in other.items():
        clock[number] = max(clock.get(number, 0), n)


class Stream:
    null: Stream

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
        global _is_alone
        if not null and not non_blocking:
            raise NotImplementedError("a stream that waits for the legacy one")
        self.ptr = LEGACY if null else next(_numbers)
        self.line = self.ptr  # its name in clocks
        if not null:
            _streams[self.ptr] = self
        self.device_id = Device().id
        self.clock: Clock = {}
        self.graph: Graph | None = None
        self.sent: list[tuple[int, Any, Any]] = []  # copies: when, from where, and what was there
        self.is_broken = False
        _is_alone = _is_alone and null

    def __enter__(self) -> Stream:
        assert self.device_id == Device().id, "a stream of another device"
        _stack().append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _stack().pop()

    def tick(self) -> None:
        _merge(self.clock, _of_host)
        self.clock[self.line] = self.clock.get(self.line, 0) + 1

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        with _clocks:
            self._record(event)
        return event

    def _record(self, event: Event) -> None:
        event.at, event.clock, event.stream = counted.asked, dict(self.clock), self
        event.graph = self.graph

    def wait_event(self, event: Event) -> None:
        if event.graph is not None:
            if self.graph is None:  # from here on it belongs to the graph, too
                self.graph = event.graph
                event.graph.others.append(self)
            elif self.graph is not event.graph:
                raise CUDARuntimeError("cudaErrorStreamCaptureMerge", "two graphs")
        elif self.graph is not None and event.clock:
            self.graph.breaks("an event from outside")
        with _clocks:
            _merge(self.clock, event.clock)

    def synchronize(self) -> None:
        refuse_while_capturing("to wait")
        counted.done = counted.asked
        self.arrived(counted.asked)
        with _clocks:
            _merge(_of_host, self.clock)

    def arrived(self, by: int) -> None:
        """The host's memory was left as it was."""
        for at, now, before in self.sent:
            assert at > by or (now == before).all(), "memory changed while it was copied"
        self.sent[:] = [sent for sent in self.sent if sent[0] > by]

    @property
    def done(self) -> bool:
        return counted.done >= counted.asked

    # -- graphs --------------------------------------------------------------------------------
    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr == LEGACY:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        assert mode == Runtime.streamCaptureModeThreadLocal, "what cannot be repeated passes"
        assert capturing() is None, "this thread captures already"
        self.captures(Graph._of(self))

    def captures(self, graph: Graph) -> None:
        """From here on, into this one."""
        assert self.graph is None, "it captures already"
        graph.around, graph.origin = capturing(), self
        self.graph = _here.graph = graph

    def is_capturing(self) -> bool:
        return self.graph is not None

    def end_capture(self) -> Graph:
        graph, self.graph = self.graph, None
        assert graph is not None
        assert graph.origin is self
        assert capturing() is graph, "a body is captured yet"
        _here.graph = graph.around
        for other in graph.others:
            other.graph = None
            if other.clock.get(other.line, 0) > self.clock.get(other.line, 0):
                raise CUDARuntimeError(
                    "cudaErrorStreamCaptureUnjoined", "a stream was not joined again"
                )
        graph.fails_if_wrong()
        graph.is_executable = graph.around is None
        return graph


class Device:
    """One of several GPUs: each has a legacy stream of its own."""

    count = 1
    nulls: dict[int, Stream] = {}  # noqa: RUF012

    def __init__(self, device: int | None = None) -> None:
        self.id: int = getattr(_here, "device", 0) if device is None else device
        if not 0 <= self.id < self.count:
            raise CUDARuntimeError("cudaErrorInvalidDevice", "invalid device ordinal")

    def use(self) -> Device:
        _here.device = self.id
        return self

    @property
    def pci_bus_id(self) -> str:
        return f"0000:{self.id:02X}:00.0"

    @property
    def null(self) -> Stream:
        with _clocks:
            if self.id not in self.nulls:
                made = self.nulls[self.id] = Stream(null=True)
                if (
                    self.id
                ):  # told apart in clocks only; who asks for its number gets the legacy one's
                    made.line = -self.id
            return self.nulls[self.id]


@contextlib.contextmanager
def devices(count: int) -> Iterator[None]:
    """From here on there are so many."""
    before, Device.count = Device.count, count
    try:
        yield
    finally:
        Device.count = before


Stream.null = Device(0).null


def stream_of(number: int) -> Stream:
    """By CUDA's number: 1 is the legacy one."""
    return Device().null if number in (LEGACY, 1) else _streams[number]


def synchronize() -> None:
    """The host waits for all streams of all devices."""
    with _clocks:
        for stream in (*Device.nulls.values(), *_streams.values()):
            _merge(_of_host, stream.clock)


def let_wait(number: int) -> None:
    """A stream, for what the current one was asked for."""
    here, taker = get_current_stream(), stream_of(number)
    if taker is not here:
        taker.wait_event(here.record())


def _stack() -> list[Stream]:
    if not hasattr(_here, "streams"):
        _here.streams = []
    found: list[Stream] = _here.streams
    return found


def get_current_stream() -> Stream:
    stack = _stack()
    return stack[-1] if stack else Device().null


class Event:
    """A moment on a stream."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.at = -1
        self.has_time = not disable_timing
        self.stream: Stream | None = None
        self.clock: Clock = {}
        self.graph: Graph | None = None

    def record(self, stream: Stream | None = None) -> None:
        (stream or get_current_stream()).record(self)

    @property
    def done(self) -> bool:
        if self.graph is not None:
            refuse_while_capturing("to ask for an event of a graph")
        return counted.done >= self.at

    def synchronize(self) -> None:
        refuse_while_capturing("to wait")
        counted.done = max(counted.done, self.at)
        if self.stream is not None:
            self.stream.arrived(self.at)
        with _clocks:
            _merge(_of_host, self.clock)


def get_elapsed_time(first: Event, last: Event) -> float:
    """Milliseconds."""
    assert all(x.has_time for x in (first, last)), "an event that keeps no time"
    return (last.at - first.at) * CALL * 1e3


# -- graphs --------------------------------------------------------------------------------------
class Graph:
    """What a stream captured."""

    origin: Stream
    others: list[Stream]
    wrong: str
    allocated: int  # bytes of what is needed in between
    around: Graph | None  # of whose node it is the body
    memory: dict[int, tuple[Any, list[_Use]]]
    steps: list[tuple[Callable[[], Any] | Conditional, list[Any], list[Any]]]
    is_executable = False
    ended_in_captures = 0  # of all

    def __init__(self) -> None:
        raise NotImplementedError("graphs are made by capturing")

    @classmethod
    def _of(cls, stream: Stream) -> Graph:
        made = object.__new__(cls)
        made.origin, made.others, made.wrong, made.steps = stream, [], "", []
        made.allocated, made.memory, made.around = 0, {}, None
        return made

    def __del__(self) -> None:
        """The driver refuses it in a thread that captures, and spoils what it captures; CuPy raises nothing."""
        if self.is_executable and (other := capturing()) is not None:
            other.breaks("a graph ended")
            Graph.ended_in_captures += 1

    def breaks(self, why: str) -> None:
        self.wrong = self.wrong or why

    def fails_if_wrong(self) -> None:
        if self.wrong:
            raise CUDARuntimeError("cudaErrorStreamCaptureInvalidated", self.wrong)

    def launch(self, stream: Stream | None = None) -> None:
        refuse_while_capturing("to launch a graph")
        counted.launches += 1
        with np.errstate(all="ignore"):
            self.run(stream or get_current_stream())

    def run(self, on: Stream) -> None:
        counted.asked += len(self.steps)
        for step, reads, writes in self.steps:
            touch(on, reads, writes)
            if isinstance(step, Conditional):
                step.run(on)
            else:
                step()

    def upload(self, stream: Stream | None = None) -> None:
        refuse_while_capturing("to send a graph")


class Conditional:
    """A node whose bodies run as a word says, which kernels set before, and in each turn."""

    UNSET = 0xFFFFFFFF
    MOST = 100_000  # turns

    def __init__(self, word: Any, turns: bool, bodies: Sequence[Graph]) -> None:
        self.word, self.turns, self.bodies = word, turns, bodies

    def said(self) -> int:
        value, self.word.value = self.word.value, self.UNSET
        assert value != self.UNSET, "no kernel has set the condition"
        return int(value)

    def run(self, on: Stream) -> None:
        value = self.said()
        if self.turns:
            for _ in range(self.MOST):
                if not value:
                    return
                self.bodies[0].run(on)
                value = self.said()
            raise AssertionError("a loop that does not end")
        for body in self.bodies[:1] if value else self.bodies[1:]:
            body.run(on)


def capturing() -> Graph | None:
    """What this thread captures."""
    return getattr(_here, "graph", None)


def refuse_while_capturing(what: str) -> None:
    """As the driver, which then also spoils the graph."""
    if (graph := capturing()) is not None:
        graph.breaks(what)
        raise CUDARuntimeError(
            "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"
        )


def refuse_library(name: str) -> None:
    """As CuPy, which calls them with a handle of its own."""
    if capturing() is not None:
        raise NotImplementedError(
            f"calling {name} API during stream capture is currently unsupported"
        )


# -- who may read what -----------------------------------------------------------------------------
@dataclass
class _Use:
    """Of the bytes from `low` to `high`, by a stream, as the n-th that it did."""

    low: int
    high: int
    stream: int
    n: int
    writes: bool


_Known = list[_Use]  # of some memory: its last writes, and reads since
_memory: dict[int, tuple[Any, _Known]] = {}


def base_of(x: Any) -> Any:
    """The array that has its memory. Views by as_strided, which hold it by way of another object, may say
    that they reach further (ops/planned/element_ids.py)."""
    while True:
        base = x.base
        if not isinstance(base, np.ndarray):
            base = getattr(base, "base", None)
        if not isinstance(base, np.ndarray):
            return x
        x = base


_given: dict[int, Any] = {}  # arrays whose addresses somebody asked for, by where they begin


def address_of(x: Any) -> int:
    """Of an array, for libraries that are given no more."""
    base = base_of(x)
    _given[base.ctypes.data] = weakref.ref(base)
    return int(x.ctypes.data)


def array_at(address: int, size: int) -> Any:
    """These bytes, which have to be those of one array."""
    for start, held in _given.copy().items():  # others may come and go
        base = held()
        if base is None:
            _given.pop(start, None)  # unless another thread did
        elif start <= address and address + size <= start + base.nbytes:
            return _octets(base)[address - start : address - start + size]
    raise AssertionError(
        f"{size} bytes at {address:#x} are in no array whose address was asked for"
    )


def _known(x: Any, table: dict[int, tuple[Any, _Known]]) -> _Known:
    base = base_of(x)
    key = id(base)
    found = table.get(key)
    if found is None or found[0]() is not base:
        found = table[key] = weakref.ref(base, lambda _: table.pop(key, None)), []
    return found[1]


_owners: dict[int, Any] = {}  # arrays of the device


def own(x: Any) -> None:
    """An array of the device."""
    base = base_of(x)
    low, high = np.lib.array_utils.byte_bounds(base)
    assert not base.nbytes or high - low == base.nbytes, "who asks for others' memory would find it"
    key = id(base)
    _owners[key] = weakref.ref(base, lambda _: _owners.pop(key, None))


def _octets(base: Any) -> Any:
    """Its memory, in the order of addresses."""
    axes = sorted(range(base.ndim), key=lambda k: -base.strides[k])
    row = base.transpose(axes).reshape(-1)
    assert np.may_share_memory(row, base), "a copy: what is written to it is lost"
    return row.view(np.uint8)


def at(address: int, size: int) -> Any:
    """The bytes of the device that lie there, as what is known of them is found."""
    if not size:
        return np.empty(0, np.uint8)
    for owner in list(_owners.values()):
        base = owner()
        if base is not None and base.nbytes:
            low, high = np.lib.array_utils.byte_bounds(base)
            if low <= address and address + size <= high:
                return _octets(base)[address - low : address - low + size]
    raise AssertionError(f"{size} bytes at {address:#x}, which are no array of the device")


def touch(stream: Stream, reads: Sequence[Any], writes: Sequence[Any]) -> None:
    """Work on a stream."""
    if not _is_alone:
        with _clocks:
            _touch(stream, reads, writes)


def _touch(stream: Stream, reads: Sequence[Any], writes: Sequence[Any]) -> None:
    stream.tick()
    now = stream.clock
    table = _memory if stream.graph is None else stream.graph.memory
    for writes_, xs in ((False, reads), (True, writes)):
        for x in xs:
            if not x.size:
                continue
            known = _known(x, table)
            low, high = np.lib.array_utils.byte_bounds(x)
            kept = []
            for use in known:
                apart = use.high <= low or high <= use.low
                if not apart and (writes_ or use.writes):
                    _after(now, use.stream, use.n)
                inside = low <= use.low and use.high <= high
                same = use.stream == stream.line and not use.writes and inside
                if not (inside and (writes_ or same)):
                    kept.append(use)
            known[:] = [*kept, _Use(low, high, stream.line, now[stream.line], writes_)]


def host_takes(x: Any) -> None:
    """Who uses it on the host, or from there, has waited for what was written."""
    with _clocks:
        for use in _known(x, _memory) if not _is_alone else ():
            if use.writes:
                _after(_of_host, use.stream, use.n)


def _after(now: Clock, stream: int, n: int) -> None:
    assert now.get(stream, 0) >= n, f"what stream {stream} does is not waited for"


def ask(work: Callable[[], Any], reads: Sequence[Any], writes: Sequence[Any] = ()) -> Any:
    """A function of the device: what it gives of NumPy's, or nothing, if it writes to memory."""
    graph = capturing()
    if graph is None:
        counted.asked += 1
        counted.launches += 1
        touch(get_current_stream(), reads, writes)
        found = work()
        if not writes:
            fresh = _fresh(found, reads)
            for x in fresh:
                own(x)
                Memory.take(x)
            touch(get_current_stream(), (), fresh)
            counted.allocations += len(fresh)
            for x in fresh if _allocators() else ():
                _allocators()[-1](x.nbytes)
        return found
    on = get_current_stream()
    assert on.graph is graph, "work on a stream that captures nothing, while another one captures"
    graph.fails_if_wrong()
    if writes:
        graph.steps.append((work, list(reads), list(writes)))
        touch(on, reads, writes)
        return None
    found = work()
    if isinstance(found, np.generic):
        found = np.array(found)
    fresh = _fresh(found, reads)
    if not fresh:
        return found
    counted.allocations += len(fresh)
    pool = _allocators()[-1] if _allocators() else None
    assert pool is not None, "a graph writes to memory that others get"
    for x in fresh:
        own(x)
        pool(x.nbytes)
        x.reshape(-1).view(np.uint8)[...] = 0x5A

    def again() -> None:
        made = work()
        for to, x in zip(_leaves(found), _leaves(made), strict=True):
            to[...] = x

    graph.steps.append((again, list(reads), fresh))
    touch(on, reads, fresh)
    return found


def _leaves(found: Any) -> list[Any]:
    if isinstance(found, tuple | list):
        return [leaf for x in found for leaf in _leaves(x)]
    return [found] if isinstance(found, np.ndarray | np.generic) else []


def _fresh(found: Any, reads: Sequence[Any]) -> list[Any]:
    """What is no view."""
    return [
        x
        for x in _leaves(found)
        if isinstance(x, np.ndarray) and not any(base_of(x) is base_of(y) for y in reads)
    ]


# -- memory ----------------------------------------------------------------------------------------
class MemoryPool:
    """It only counts. What was allocated once on a stream it has, for that stream; more, it has to ask the
    driver for."""

    def __init__(self) -> None:
        self.has: dict[int, int] = {}

    def malloc(self, size: int) -> None:
        graph, stream = capturing(), get_current_stream().ptr
        if graph is None:
            self.has[stream] = self.has.get(stream, 0) + size
            return
        graph.allocated += size
        if graph.allocated > self.has.get(stream, 0):
            refuse_while_capturing("to allocate")

    def used_bytes(self) -> int:
        return Memory.used

    def free_bytes(self) -> int:
        return 0

    def total_bytes(self) -> int:
        return sum(self.has.values())

    def free_all_blocks(self) -> None:
        if capturing() is None:
            self.has.clear()


POOL = MemoryPool()


def _allocators() -> list[Any]:
    if not hasattr(_here, "allocators"):
        _here.allocators = []
    found: list[Any] = _here.allocators
    return found


@contextlib.contextmanager
def using_allocator(allocator: Any = None) -> Iterator[None]:
    _allocators().append(allocator)
    try:
        yield
    finally:
        _allocators().pop()


class Pinned(bytearray):
    """Memory of the host that copies need no other for."""


_pinned: weakref.WeakValueDictionary[int, Pinned] = weakref.WeakValueDictionary()


def alloc_pinned_memory(size: int) -> Pinned:
    refuse_while_capturing("to allocate")
    made = Pinned(size)
    _pinned[np.frombuffer(made, np.uint8).ctypes.data if size else 0] = made
    return made


def pinned_at(address: int, size: int) -> Any:
    """These bytes, which have to be pinned memory that somebody has yet."""
    for start, memory in list(_pinned.items()):
        if start <= address and address + size <= start + len(memory):
            return np.frombuffer(memory, np.uint8)[address - start : address - start + size]
    raise AssertionError(f"{size} bytes at {address:#x}, which are no pinned memory of the host")


class PinnedMemoryPool:
    def malloc(self, size: int) -> None:
        refuse_while_capturing("to allocate")


PINNED = PinnedMemoryPool()
_pin: Any = PINNED.malloc


def set_pinned_memory_allocator(allocator: Any = None) -> None:
    global _pin
    _pin = allocator or PINNED.malloc


def pin(size: int) -> None:
    """What CuPy does before it sends values."""
    _pin(size)


class Runtime:
    streamCaptureModeGlobal = 0
    streamCaptureModeThreadLocal = 1
    streamCaptureModeRelaxed = 2
    CUDARuntimeError = CUDARuntimeError

    @staticmethod
    def getDeviceCount() -> int:
        return Device.count

    @staticmethod
    def getDevice() -> int:
        return 0

    @staticmethod
    def getDeviceProperties(device: int) -> dict[str, Any]:
        return {"name": b"a GPU that is not there", "major": 9, "minor": 0}

    @staticmethod
    def memGetInfo() -> tuple[int, int]:
        total = Memory.total or 1 << 40
        return total - Memory.used, total
