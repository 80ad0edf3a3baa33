"""Runs, or parts of them, as CUDA graphs: what a worker's stream is asked for is captured, and launched as
a whole.

    warm-up       a run on a stream of its own, whose memory comes from a pool of its own: after it all
                  kernels are compiled, and the pool has what the run needs
    taking        the same while the stream captures. Nothing is computed; addresses, extents and
                  numbers are those of this run
    launch        on whatever stream is current

Kernels that are written against `xp` allocate what they need in between. A graph writes there in each of
its runs, so that memory is the pool's for good; graphs of one worker never run at once, and share it.
While the stream captures, the driver refuses all that could not be repeated: to wait, to allocate, to
read a value (cudaStreamCaptureModeThreadLocal). What it would let pass and must not be repeated is
a number that comes from the host's memory, which is another one by then: that is refused here.
The driver also refuses to end a graph in a thread that captures, and what is captured is then lost: graphs
that nobody holds any more are kept until no thread captures (`CapturedGraph`).
Conditions of loops and branches are looked at by the GPU (conditions.py)."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ostinato.ops.core.device import Branch, Function, GraphCapture, Loop
from ostinato.ops.core.locks import make_lock

from .conditions import CAPTURE, WARM_UP, Bodies, GpuBranch, GpuLoop
from .loops.foreach import COPIES, copy_kernel
from .loops.schedule import THREADS, VECTOR
from .loops.text import OPTIONS

_capturing: set[int] = set()  # threads
_changes = make_lock()
_off: list[bool] = []  # whether Python looks for garbage again when none of them does
_unheld: list[Any] = []  # graphs that nobody holds, until none of them does


class CapturedGraph:
    """A launch of a graph."""

    def __init__(self, graph: Any) -> None:
        self.graph, self.launch = graph, graph.launch

    def __call__(self) -> None:
        self.launch()

    def __del__(self) -> None:
        if _capturing:
            _unheld.append(self.graph)


class Captures(GraphCapture):
    """Of one worker, on the GPU that its thread uses. `driver`: cuda-bindings', or why there is none."""

    def __init__(self, xp: Any, driver: Any, has_kernels: bool = False) -> None:
        self.xp, self.has_kernels = xp, has_kernels
        self.copying: tuple[Any, Any] | None = None  # a kernel, and its table
        self.stream = xp.cuda.Stream(non_blocking=True)
        self.pool = xp.cuda.MemoryPool()
        self.unconditional = driver if isinstance(driver, str) else ""
        self.bodies = Bodies(xp, driver)

    @contextlib.contextmanager
    def warm_up(self) -> Iterator[None]:
        """After all that was asked before, and before all that is asked later."""
        outside = self.xp.cuda.get_current_stream()
        self.stream.wait_event(outside.record())
        try:
            with self.aside(), self.bodies.running(WARM_UP):
                yield
        finally:
            outside.wait_event(self.stream.record())

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """On this stream, with this memory."""
        with self.stream, self.xp.cuda.using_allocator(self.pool.malloc):
            yield

    @contextlib.contextmanager
    def capturing(self) -> Iterator[list[Function]]:
        mode = self.xp.cuda.runtime.streamCaptureModeThreadLocal
        made: list[Function] = []
        with _alone(self.xp), self.aside():
            self.stream.begin_capture(mode)
            try:
                with self.bodies.running(CAPTURE):
                    yield made
            except BaseException:
                with contextlib.suppress(Exception):  # that it is worth nothing is known
                    self.stream.end_capture()
                raise
            made.append(CapturedGraph(self.stream.end_capture()))

    def was_spoiled(self, error: Exception) -> bool:
        return getattr(error, "status", 0) == 901  # cudaErrorStreamCaptureInvalidated

    def where(self, array: Any) -> int:
        at: int = array.data.ptr
        return at

    def copy(self, to: Any, given: Any) -> None:
        if to.flags.c_contiguous and given.flags.c_contiguous and to.nbytes:
            to.data.copy_from_device_async(given.data, to.nbytes)  # a third of what `copyto` costs
        else:
            self.xp.copyto(to, given)

    def copy_all(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """By one kernel, where there are several that lie in order."""
        flat = [
            (to, given)
            for to, given in pairs
            if to.nbytes and to.flags.c_contiguous and given.flags.c_contiguous
        ]
        if not self.has_kernels or len(flat) < 3:
            super().copy_all(pairs)
            return
        chosen = {id(to) for to, _ in flat}
        super().copy_all([(to, given) for to, given in pairs if id(to) not in chosen])
        if self.copying is None:
            kernel, table = copy_kernel()
            self.copying = self.xp.RawKernel(kernel.text, kernel.name, OPTIONS), table
        run, table = self.copying
        for first in range(0, len(flat), COPIES):
            some = flat[first : first + COPIES]
            words = [n for to, given in some for n in (to.data.ptr, given.data.ptr, to.nbytes)]
            table["words"][: len(words)] = words
            blocks = -(-max(to.nbytes for to, _ in some) // (VECTOR * 4 * THREADS))
            run((blocks, len(some)), (THREADS,), (table,))

    def loop(self, test: Any, most: int) -> Loop:
        return GpuLoop(self.bodies, test, most)

    def branch(self) -> Branch:
        return GpuBranch(self.bodies)


@contextlib.contextmanager
def _alone(xp: Any) -> Iterator[None]:
    """CuPy sends values by way of pinned memory, which it uses again for others, so a thread that captures gets
    none; and finalizers, which may wait for values, run when no thread captures any more."""
    usual = xp.get_default_pinned_memory_pool().malloc

    def refusing(size: int) -> Any:
        if threading.get_ident() in _capturing:
            raise RuntimeError("values come from the host's memory")
        return usual(size)

    with _changes:
        if not _capturing and gc.isenabled():
            gc.disable()
            _off.append(True)
        _capturing.add(threading.get_ident())
        xp.cuda.set_pinned_memory_allocator(refusing)
    try:
        yield
    finally:
        with _changes:
            _capturing.discard(threading.get_ident())
            if not _capturing:
                _unheld.clear()
                xp.cuda.set_pinned_memory_allocator(usual)
                if _off:
                    _off.clear()
                    gc.enable()
