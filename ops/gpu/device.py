"""A GPU as a device: CuPy's arrays in its memory, and the ops' own kernels, one after another on a stream.

Who calls a kernel does not wait for it. Only values that are read are waited for, and what a run took is
known from events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.device import Absent, Device, Function, Keeping, add, later
from ostinato.ops.core.graph import Node
from ostinato.ops.core.registry import Specs
from ostinato.ops.core.spec import Shape, Spec, in_line
from ostinato.ops.jit.loops import lies, loops_of

from .loops.flat import OPTIONS, THREADS, Kernel, kernel_of

NAME = "cuda"
GENERATED = ("fused", "fused_rows")


class Gpu(Device):
    # -- kernels -------------------------------------------------------------------------------
    def kernel(
        self,
        node: Node,
        specs: Specs,
        shape: Callable[[Spec], Shape],
        arrays: Sequence[Any],
        threads: int,
        scratch: Sequence[Any],
        often: bool,
    ) -> Function | Keeping | None:
        if node.op not in GENERATED:
            return None
        body, whole, strides, axes = lies(node, shape, arrays)
        loops = loops_of(whole, strides, axes)
        if loops is None or math.prod(whole) == 0:
            return None
        return self.launching(kernel_of(body, loops))

    def launching(self, kernel: Kernel) -> Function:
        """Compiled by NVRTC, and kept on disk by CuPy."""
        run = self.xp.RawKernel(kernel.text, kernel.name, OPTIONS)
        more: tuple[Any, ...] = tuple(map(np.int64, kernel.facts))
        if kernel.room:
            more += (self.xp.zeros(kernel.room, np.uint8),)
        grid, block = kernel.grid, (THREADS,)

        def launch(*arrays: Any) -> None:
            run(grid, block, (*arrays, *more))

        return launch

    # -- memory --------------------------------------------------------------------------------
    def from_host(self, value: Any) -> Any:
        """When it returns, the host's memory may change."""
        made = self.xp.empty(value.shape, value.dtype.newbyteorder("="))
        made.set(np.asarray(value, made.dtype, order="C"))
        return made

    def to_host(self, value: Any) -> Any:
        made = in_line(value.shape, value.dtype)
        made[...] = value.get()
        return made

    def clock(self) -> float:
        self.xp.cuda.get_current_stream().synchronize()
        return time.perf_counter()

    def mark(self) -> Any:
        event = self.xp.cuda.Event()
        event.record()
        return event

    def seconds(self, first: Any, last: Any) -> float | None:
        if not last.done:
            return None
        taken: float = self.xp.cuda.get_elapsed_time(first, last) / 1e3
        return taken


def _found() -> Device:
    """The GPU, if CuPy is installed and finds one."""
    try:
        import cupy
    except ImportError:
        raise Absent("CuPy, which is not installed: pip install 'ostinato[gpu]'") from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise Absent(f"a GPU and its driver; CuPy says: {error}") from None
    if not count:
        raise Absent("a GPU, and CuPy finds none")
    return add(Gpu(NAME, cupy), cupy.ndarray)


later(NAME, _found)
