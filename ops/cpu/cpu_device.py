"""The CPU as a device: NumPy's arrays in lines of the cache, generated kernels and libraries."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from ostinato.ops.core.device import Device, Function, InTurns, Prepackable, add, plain
from ostinato.ops.core.graph import Node
from ostinato.ops.core.registry import OPS, Place, Specs
from ostinato.ops.core.spec import DType, Shape, Spec, copied, empty_aligned
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.loops.flat import SHARE, native_kernel
from ostinato.ops.jit.foreach_parts import FOREACH
from ostinato.ops.jit.loops import space, strides_over
from ostinato.ops.jit.moves import has_moves

from . import natives
from .fused import FUSED
from .jit.llvm import processor_in_words, together
from .kernels.gemm import make_ordered_product
from .libraries import lapack
from .libraries.onednn import can_widen, describe_library, library
from .loops.boxed_loops import boxed_kernel
from .loops.copies import copy_by_rows, copy_of_pieces, copying
from .loops.foreach import foreach_kernel
from .loops.record import Record
from .threads import most_threads

LINE = LIMITS.line
PAGE = 1 << 12


class Cpu(Device):
    is_host = True

    def empty(self, shape: Sequence[int], dtype: DType) -> Any:
        return empty_aligned(shape, dtype)

    def arena(self, size: int) -> Any:
        """It starts on a line of the cache, a large one on a page, from which files may be written."""
        if size == 0:
            return np.empty(0, np.uint8)
        start = PAGE if size >= 256 * PAGE else LINE
        raw = np.empty(size + start, np.uint8)
        skip = -raw.ctypes.data % start
        return raw[skip : skip + size]

    def from_host(self, value: Any) -> Any:
        return value

    def copy_from_host(self, value: Any) -> Any:
        return copied(value)

    def to_host(self, value: Any, out: Any = None) -> Any:
        if out is None:
            return value
        np.copyto(out, value)
        return out

    def widens(self, left: DType, right: DType, out: DType) -> bool:
        return can_widen(left, right, out)

    def multiplies(self, ops: Collection[str]) -> str:
        missing = library()
        if isinstance(missing, str) and any(OPS[name].product for name in ops):
            return f"by NumPy's library, {missing}"
        return ""

    def traits(self, multiplies: bool) -> Sequence[str]:
        libraries = [describe_library()] if multiplies else []
        return [processor_in_words(), f"{most_threads()} threads", *libraries]

    @property
    def lapack(self) -> Any:
        return lapack if lapack.found() else None

    def ordered_product(self, a: Any, b: Any, out: Any) -> Function | None:
        return make_ordered_product(a, b, out, 1)

    def together(self) -> AbstractContextManager[None]:
        return together()

    def recorder(self, fixed: Mapping[str, Any]) -> Record:
        return Record(fixed)

    def copying_part(self, source: Any, target: Any, threads: int) -> Function | None:
        return copying(source.shape, source.itemsize, source.strides, target.strides, threads)

    # -- kernels ---------------------------------------------------------------------------
    def kernel(
        self,
        node: Node,
        specs: Specs,
        shape: Callable[[Spec], Shape],
        arrays: Sequence[Any],
        threads: int,
        scratch: Sequence[Any],
        often: bool,
        at: Place | None = None,
        read_next: bool = False,
    ) -> Function | Prepackable | InTurns | None:
        native, op = self.natives.get(node.op), OPS[node.op]
        if native is None and node.op in FUSED:
            return _generated(node, shape, arrays, threads, 1 if read_next else SHARE)
        in_parts = op.run.placed and any(
            x.shape != s.shape for x, s in zip(arrays, specs, strict=True)
        )
        if in_parts and (native is None or not native.placed):
            return None  # such a function knows no places: everything has to be here
        if op.moves.pieces is not None and not in_parts:
            parts = op.moves.pieces([x.shape for x in arrays[: len(node.inputs)]], **plain(node.kw))
            found = None if parts is None else copy_of_pieces(parts, arrays, threads, often)
            if found is not None:
                return found
        if native is None or (not often and max(x.size for x in arrays) < native.least):
            return None
        made: Function | Prepackable | InTurns | None = native.made(
            node, arrays, threads, scratch, at
        )
        return made


def _generated(
    node: Node, shape: Callable[[Spec], Shape], arrays: Sequence[Any], threads: int, share: int
) -> Function | None:
    """A loop over a body's elements. What is larger than 1 / `share` of the last cache goes past it."""
    if node.op == FOREACH:
        return foreach_kernel(node, shape, arrays, threads, share)
    body, whole, axes = space(node, shape)
    if has_moves(body):
        if not math.prod(whole):
            return None
        return boxed_kernel(body, whole, arrays, threads, axes, share)
    strides = strides_over(body, whole, arrays, axes)
    kernel = native_kernel(body, whole, strides, threads, axes, share)
    return kernel or copy_by_rows(body, whole, arrays, threads, axes)


CPU = add(Cpu("cpu", np), np.ndarray)
natives.register(CPU)
