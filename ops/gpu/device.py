"""A GPU as a device: CuPy's arrays in its memory, and the ops' own kernels, one after another on a stream.

Who calls a kernel does not wait for it. Only values that are read are waited for, and what a run took is
known from events."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.device import (
    Absent,
    Device,
    Function,
    Keeping,
    Repeater,
    add,
    later,
)
from ostinato.ops.core.graph import Node
from ostinato.ops.core.registry import Specs
from ostinato.ops.core.spec import Shape, Spec, bfloat16, in_line, no_memory
from ostinato.ops.jit.loops import lies, loops_of

from .capture import Captures
from .loops import flat, stages
from .loops.schedule import THREADS, analyse, in_squares
from .loops.text import OPTIONS, Kernel

NAME = "cuda"
FLAT, IN_STAGES = ("fused", "fused_rows"), "fused_nest"


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
        if node.op == IN_STAGES:
            shapes, steps = [x.shape for x in arrays], [x.strides for x in arrays]
            nest = analyse(**node.kw, shapes=shapes, strides=steps)
            return None if nest is None else self.launching(stages.kernel_of(nest))
        if node.op not in FLAT:
            return None
        body, whole, strides, axes = lies(node, shape, arrays)
        loops = loops_of(whole, strides, axes)
        if loops is None or math.prod(whole) == 0:
            return None
        squares = None if axes else in_squares(body, loops)
        if squares is not None:
            return self.launching(stages.kernel_of(squares))
        return self.launching(flat.kernel_of(body, loops))

    def launching(self, kernel: Kernel) -> Function:
        """Compiled by NVRTC, and kept on disk by CuPy."""
        room = (self.xp.zeros(kernel.room, np.uint8),) if kernel.room else ()
        first = self.launched(kernel, room)
        if kernel.then is None:
            return first
        second = self.launched(kernel.then, room)

        def launch(*arrays: Any) -> None:
            first(*arrays)
            second(*arrays)

        return launch

    def launched(self, kernel: Kernel, room: Sequence[Any]) -> Function:
        run = self.xp.RawKernel(kernel.text, kernel.name, OPTIONS)
        more = (*map(np.int64, kernel.facts), *room)
        grid, block = kernel.grid, (THREADS,)

        def launch(*arrays: Any) -> None:
            run(grid, block, (*arrays, *more))

        return launch

    def repeater(self) -> Repeater:
        return Captures(self.xp)

    # -- memory --------------------------------------------------------------------------------
    def from_host(self, value: Any) -> Any:
        """When it returns, the host's memory may change. What is here already stays where it is."""
        if isinstance(value, self.xp.ndarray):
            return self.xp.ascontiguousarray(value)
        dtype = value.dtype.newbyteorder("=")
        try:
            made = self.xp.empty(value.shape, dtype)
        except MemoryError:
            self.give_back()
            try:
                made = self.xp.empty(value.shape, dtype)
            except MemoryError:
                free = self.free_bytes()
                raise no_memory(value.nbytes, "an operand", free=free) from None
        made.set(np.asarray(value, made.dtype, order="C"))
        return made

    def to_host(self, value: Any) -> Any:
        made = in_line(value.shape, value.dtype)
        made[...] = value.get()
        return made

    def copy_from_host(self, value: Any) -> Any:
        if isinstance(value, self.xp.ndarray):
            return value.copy(order="C")
        return self.from_host(value)

    def borrow(self, x: Any) -> Any:
        """By DLPack, whose makers let our stream wait for theirs; else by the CUDA Array Interface, whose
        `stream` CuPy waits for."""
        if isinstance(x, self.xp.ndarray):
            return x
        if type(x).__module__ == "torch":
            x = x.detach().resolve_conj().resolve_neg()
            if str(x.dtype) == "torch.bfloat16":
                halves = self.xp.from_dlpack(x.view(sys.modules["torch"].int16))
                return halves.view(bfloat16)
        if hasattr(x, "__dlpack__"):
            return self.xp.from_dlpack(x)
        return self.xp.asarray(x)

    def free_bytes(self) -> int:
        """Of the GPU's, and what the pool has and nobody uses."""
        free: int = self.xp.cuda.runtime.memGetInfo()[0]
        return free + int(self.xp.get_default_memory_pool().free_bytes())

    def give_back(self) -> None:
        self.xp.get_default_memory_pool().free_all_blocks()

    def memory(self) -> dict[str, int]:
        free, total = self.xp.cuda.runtime.memGetInfo()
        pool = self.xp.get_default_memory_pool()
        used, kept = pool.used_bytes(), pool.free_bytes()
        return {"total": total, "free": free, "arrays": used, "kept": kept}

    def clock(self) -> float:
        self.xp.cuda.get_current_stream().synchronize()
        return time.perf_counter()

    def ranges(self) -> tuple[Callable[[str], None], Callable[[], None]] | None:
        nvtx = self.xp.cuda.nvtx
        return (nvtx.RangePush, nvtx.RangePop) if nvtx.available else None

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
