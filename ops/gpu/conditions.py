"""Loops and branches within a CUDA graph, whose conditions the GPU looks at.

    outer stream    ─ kernels ─ set ─ node ─ kernels ─     captures a graph
                                       │
    inner stream                       └─ kernels ─ set    captures the node's body

A node is one of the driver's conditional nodes: its body runs while, or if, a word is not zero, which a
kernel sets from a bool of the device: before the node, and at the end of each turn. A turn of a loop is the
same kernels each time, so it ends with a copy of what it made to where it reads, unless it wrote over that.
CuPy 14 has no such nodes; its streams are the driver's, so here the driver's own functions add them
(cuda-bindings).

What a body allocates comes from the pool's share for its stream, so a warm-up runs it on that stream,
too, with the host looking at the conditions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.device import Branch, Loop

from .loops.text import OPTIONS

WARM_UP, CAPTURE = "warm up", "capture"  # how a run goes on that is repeated later
VERSION = 12080  # of the driver that has nodes with two bodies
BINDINGS = 13
NAME = "set_condition"
TEXT = f"""\
typedef long long s64;
extern "C" __device__ __cudart_builtin__ void CUDARTAPI cudaGraphSetConditional(
    cudaGraphConditionalHandle handle, unsigned int value);
extern "C" __global__ void {NAME}(s64 handle, const bool* test, s64* turns, s64 most, s64 first) {{
  const s64 turn = first ? 0 : *turns + 1;
  *turns = turn;
  cudaGraphSetConditional((cudaGraphConditionalHandle)handle, *test && turn != most);
}}
"""


def found() -> Any:
    """The driver's functions, or why there are no conditional nodes."""
    try:
        import cuda.bindings
        from cuda.bindings import driver
    except ImportError:
        return "cuda-bindings is not installed: pip install 'ostinato[gpu]'"
    version = cuda.bindings.__version__
    if int(version.split(".")[0]) < BINDINGS:
        return f"cuda-bindings {version} is too old: pip install 'cuda-bindings>={BINDINGS}'"
    try:
        error, has = driver.cuDriverGetVersion()
    except Exception as missing:  # it looks for the library at the first call
        return f"cuda-bindings finds no driver: {missing}"
    if int(error) or has < VERSION:
        return f"the driver is of CUDA {has // 1000}.{has % 1000 // 10}, which is older than 12.8"
    return driver


class DriverError(RuntimeError):
    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status  # the driver's number, as CuPy's errors have it


class Bodies:
    """Of one worker: the streams on which bodies run, one within the other."""

    def __init__(self, xp: Any, driver: Any) -> None:
        self.xp, self.driver = xp, driver
        self.mode = ""
        self.streams: list[Any] = []
        # From which stream, to which, and whether it captures.
        self.entered: list[tuple[Any, Any, bool]] = []
        self.kernel: Any = None

    def prepare(self) -> None:
        """Nothing is compiled while a stream captures."""
        if self.kernel is None and not isinstance(self.driver, str):
            self.kernel = self.xp.RawKernel(TEXT, NAME, OPTIONS)
            self.kernel.compile()

    @contextlib.contextmanager
    def running(self, mode: str) -> Iterator[None]:
        self.mode = mode
        try:
            yield
        finally:
            self.mode = ""
            while self.entered:  # after an error
                with contextlib.suppress(Exception):
                    self.leave()

    def enter(self, body: Any = None) -> None:
        """A body: what comes now is captured into it, or computed, if this is none of a graph."""
        outer = self.xp.cuda.get_current_stream()
        depth = len(self.entered)
        if depth == len(self.streams):
            self.streams.append(self.xp.cuda.Stream(non_blocking=True))
        inner = self.streams[depth]
        if body is None:
            inner.wait_event(outer.record())
        else:
            mode = self.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            self._ask("cuStreamBeginCaptureToGraph", self._of(inner), body, None, None, 0, mode)
        inner.__enter__()
        self.entered.append((outer, inner, body is not None))

    def leave(self) -> None:
        outer, inner, captures = self.entered.pop()
        inner.__exit__(None, None, None)
        if captures:
            self._ask("cuStreamEndCapture", self._of(inner))
        else:
            outer.wait_event(inner.record())

    def node(self, kind: str, bodies: int, set_first: Callable[[int], None]) -> tuple[int, Any]:
        """A node behind what the current stream has captured: what its condition is set by, and its bodies."""
        driver = self.driver
        stream = self._of(self.xp.cuda.get_current_stream())
        (context,) = self._ask("cuCtxGetCurrent")
        graph = self._ask("cuStreamGetCaptureInfo", stream)[2]
        (handle,) = self._ask("cuGraphConditionalHandleCreate", graph, context, 0, 0)
        set_first(int(handle))
        before, edges, count = self._ask("cuStreamGetCaptureInfo", stream)[3:6]
        params = driver.CUgraphNodeParams()
        params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = handle
        params.conditional.type = getattr(driver.CUgraphConditionalNodeType, kind)
        params.conditional.size = bodies
        params.conditional.ctx = context
        (node,) = self._ask("cuGraphAddNode", graph, before, edges, count, params)
        instead = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
        self._ask("cuStreamUpdateCaptureDependencies", stream, [node], None, 1, int(instead))
        return int(handle), list(params.conditional.phGraph_out)[:bodies]

    def set(self, handle: int, test: Any, turns: Any, most: int, first: bool) -> None:
        """By a kernel on the current stream."""
        bits = np.uint64(handle).view(np.int64)
        given = (bits, test, turns, np.int64(most), np.int64(first))
        self.kernel((1,), (1,), given)

    def _of(self, stream: Any) -> Any:
        return self.driver.CUstream(stream.ptr)

    def _ask(self, name: str, *given: Any) -> Sequence[Any]:
        error, *found = getattr(self.driver, name)(*given)
        if int(error):
            raise DriverError(f"{name}: {getattr(error, 'name', error)}", int(error))
        return found


class GpuLoop(Loop):
    def __init__(self, bodies: Bodies, test: Any, most: int) -> None:
        self.bodies, self.test, self.most = bodies, test, most
        bodies.prepare()
        self.turns = bodies.xp.zeros((), np.int64)
        self.flag = bodies.xp.ones((), np.bool_) if test is None else test
        self.handle = 0
        self.copies: Sequence[tuple[Any, Any]] = ()  # to where a turn reads

    def begin(self, inits: Sequence[Any], firsts: Sequence[Any], seconds: Sequence[Any]) -> Any:
        if self.bodies.mode != CAPTURE:
            return inits
        for init, *places in zip(inits, firsts, seconds, strict=True):
            for place in places:
                if place is not init:
                    self.bodies.xp.copyto(place, init)
        self.copies = [*zip(seconds, firsts, strict=True)]
        return seconds

    def ends(self, turn: int) -> bool:
        bodies = self.bodies
        if bodies.mode == CAPTURE:
            return self._taken(turn)
        stops = turn == self.most or not (self.test is None or bool(self.test[()]))
        if bodies.mode == WARM_UP and not stops and not turn:
            bodies.enter()
        elif bodies.mode == WARM_UP and stops and turn:
            bodies.leave()
            self.is_known = True
        return stops

    def _taken(self, turn: int) -> bool:
        bodies = self.bodies
        if not turn:
            self.handle, (body,) = bodies.node(
                "CU_GRAPH_COND_TYPE_WHILE", 1, lambda handle: self._set(handle, True)
            )
            bodies.enter(body)
            return False
        for to, made in self.copies:
            bodies.xp.copyto(to, made)
        self.copies = ()
        self._set(self.handle, False)
        bodies.leave()
        return True

    def _set(self, handle: int, first: bool) -> None:
        self.bodies.set(handle, self.flag, self.turns, self.most, first)

    def number(self, index: Any, turn: int) -> None:
        if self.bodies.mode == CAPTURE:
            self.bodies.xp.copyto(index, self.turns)
        else:
            index[()] = turn


class GpuBranch(Branch):
    def __init__(self, bodies: Bodies) -> None:
        self.bodies = bodies
        bodies.prepare()
        self.turns = bodies.xp.zeros((), np.int64)
        self.gone: set[bool] = set()

    def sides(self, flag: Any) -> Iterator[bool]:
        bodies = self.bodies
        if bodies.mode == CAPTURE:
            _, found = bodies.node(
                "CU_GRAPH_COND_TYPE_IF",
                2,
                lambda handle: bodies.set(handle, flag, self.turns, -1, True),
            )
            for side, body in zip((True, False), found, strict=True):
                bodies.enter(body)
                yield side
                bodies.leave()
            return
        side = bool(flag[()])
        if bodies.mode != WARM_UP:
            yield side
            return
        bodies.enter()
        yield side
        bodies.leave()
        self.gone.add(side)
        self.is_known = len(self.gone) == 2
