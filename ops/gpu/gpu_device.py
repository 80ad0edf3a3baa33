"""A GPU as a device: CuPy's arrays in its memory, and the ops' own kernels, one after another on a stream.

Who calls a kernel does not wait for it. Only values that are read are waited for, and what a run took is
known from events."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import (
    Absent,
    Classes,
    Device,
    Function,
    GraphCapture,
    Messenger,
    Prepackable,
    add,
    later,
)
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, Params, Place, Scratch, Specs
from ostinato.ops.core.spec import (
    DType,
    Shape,
    Spec,
    bfloat16,
    empty_aligned,
    float32,
    is_float,
    no_memory,
    strided_like,
)
from ostinato.ops.jit.epilogues import begin_of
from ostinato.ops.jit.foreach_parts import FOREACH, parts_of
from ostinato.ops.jit.loops import Loops, dense_loops, loops_of, space, strides_over
from ostinato.ops.jit.moves import has_moves
from ostinato.ops.jit.stacks import stacked
from ostinato.ops.jit.stage_values import begins_at, windows_at
from ostinato.ops.nn.spatial import begins_of

from ostinato.errors import SessionError

from . import conditions, convolutions, factor_notes, gram_qr, products, whole_lines
from .capture import Captures
from .compilers import Compilers
from .copies import Copies, HostStore
from .epilogue import epilogue_of, is_one_call, with_epilogue
from .jit.lines import sharing
from .libraries import cublaslt, cudnn
from .libraries.cublaslt import Library
from .loops import box_moves, flat, stages, streams
from .loops.block_tiles import steps_kernel
from .loops.foreach import Launch, foreach_kernel
from .loops.moved import moved_kernel
from .loops.ordered import TYPES, ordered_kernel
from .loops.schedule import THREADS, analyse, square_tiles
from .loops.tallies import range_of
from .loops.text import OPTIONS, Kernel
from .loops.tile_rows import kernel_of as rows_kernel
from .loops.tiles import TileRates, rates_of
from .messages import Nccl
from .operands import with_operands

NAME = "cuda"
LAYOUTS = 32  # in which operands of one product lay, or addends, that are known at once
FOLDED = 1 << 14  # elements from which what messages brought is combined by a kernel of its own
# Between these, in bytes, a result's memory on the host is pinned: its pages are there, and come back to the
# pool.
SMALL_BYTES, PINNED_BYTES = 1 << 16, 1 << 28
BESIDE = 1 << 16  # bytes from which a batch is copied beside what is computed
KERNELS = 1 << 12  # that are known at once
COMPILERS = Compilers(min(16, os.cpu_count() or 1))
_here = threading.local()  # which of several this thread asks
FLAT, IN_STAGES = ("fused", "fused_joins", "fused_rows"), "fused_nest"
IN_STEPS = "fused_steps"


class Gpu(Device):
    copies: Copies | None = None  # of batches
    index: int | None = None  # of this process's, among those that it sees; None: as CuPy says
    has_own_kernels = True  # what it does along lines, and notes of places

    def __init__(
        self,
        name: str,
        xp: Any,
        library: Library | str | None = None,
        driver: Any = None,
        convolving: cudnn.Convolver | str | None = None,
    ) -> None:
        super().__init__(name, xp)
        self._process = os.getpid()
        self._library, self._driver, self._convolving = library, driver, convolving
        self.folds: dict[Any, Function] = {}  # of messages, by how arrays lie
        self.tall: dict[Any, Any] = {}  # what factors tall matrices, by how they lie
        for op in products.PRODUCTS:
            self.runs(op, self._product, scratch=self._room, ways=self._ways)
        for op in convolutions.CONVOLUTIONS:
            self.runs(
                op,
                functools.partial(self._convolution, op=op),
                scratch=self._convolution_room,
                ways=self._convolution_ways,
                placed=begins_of,
            )
        self.runs("fused_matmul", self._with_epilogue, scratch=self._room, ways=self._ways)
        self.runs("fused_tiles", self._with_operands)
        self.runs("fused_matmul_rows", self._with_rows)
        self.runs(IN_STAGES, self._stages, placed=windows_at)
        whole_lines.register(self)
        box_moves.register(self)
        self._ranges: dict[Any, Any] = {}  # kernels that note places, by their text
        self._compiled: dict[str, tuple[Any, Future[None]]] = {}  # kernels, by their text's digest

    # -- products ------------------------------------------------------------------------------
    @property
    def library(self) -> Library | str:
        """cuBLASLt, or why it is not here; looked for when the first product is planned."""
        if self._library is None:
            self._library = cublaslt.found(self.xp)
        return self._library

    # -- convolutions --------------------------------------------------------------------------
    @property
    def convolving(self) -> cudnn.Convolver | str:
        """cuDNN, or why it is not here; looked for when the first convolution is planned."""
        if self._convolving is None:
            self._convolving = cudnn.found(self.xp)
        return self._convolving

    def does(self, node: Node, specs: Sequence[Spec]) -> bool:
        if node.op not in convolutions.CONVOLUTIONS:
            return super().does(node, specs)
        library = self.convolving
        return not isinstance(library, str) and convolutions.does(
            library, (*specs, *node.specs), node.kw
        )

    def convolves(self, ops: Collection[str]) -> str:
        if {*convolutions.CONVOLUTIONS}.isdisjoint(ops):
            return ""
        library = self.convolving
        if isinstance(library, str):
            return f"by products and kernels: {library}"
        refused = "; ".join(library.refused)
        return f"by products and kernels where cuDNN has no plan: {refused}" if refused else ""

    def _convolution(
        self, arrays: Sequence[Any], threads: int, *, scratch: Sequence[Any], **how: Any
    ) -> Function | None:
        library = self.convolving
        if isinstance(library, str):
            return None
        return convolutions.convolution(library, self.xp, arrays, scratch, **how)

    def _convolution_room(
        self, ins: Sequence[Shape], outs: Sequence[Shape], specs: Specs, **_: Any
    ) -> Sequence[Scratch]:
        return () if isinstance(self.convolving, str) else convolutions.scratch(ins, outs)

    def _convolution_ways(self, ins: Specs, outs: Specs, p: Params, threads: int) -> Classes:
        if isinstance(self.convolving, str):
            return ()
        more = convolutions.TRANSFORMS if ins[0].dtype == float32 else ()
        return [(way,) for way in (*convolutions.PLANS, *more)]

    def widens(self, left: DType, right: DType, out: DType) -> bool:
        wide = left != out and cublaslt.multiplies(left, right, out)
        return wide and not isinstance(self.library, str)

    def epilogue_of(self, graph: Graph, k: int, fast: bool) -> Sequence[int]:
        specs = [*(graph.specs[v] for v in graph.nodes[k].inputs), *graph.nodes[k].specs]
        if not self._is_ours(specs):
            return ()
        return epilogue_of(graph, k, fast).members[1:]

    def is_one_call(self, body: Graph) -> bool:
        node = body.nodes[begin_of(body)]
        specs = [*body.inputs, *body.out_specs]
        if not self._is_ours([*(body.specs[v] for v in node.inputs), *node.specs]):
            return False
        assert not isinstance(self.library, str)
        shapes = [s.layout.largest(s.shape) if s.layout is not None else s.shape for s in specs]
        arrays = [strided_like(n, s.dtype) for n, s in zip(shapes, specs, strict=True)]
        return is_one_call(self.library, body, arrays)

    def multiplies(self, ops: Collection[str]) -> str:
        if {*products.PRODUCTS, "fused_matmul"}.isdisjoint(ops):
            return ""
        if isinstance(self.library, str):
            return f"by CuPy's calls of cuBLAS, which no graph repeats: {self.library}"
        refused = "; ".join(self.library.refused)
        return (
            f"by CuPy's calls of cuBLAS where cuBLASLt has no algorithm: {refused}"
            if refused
            else ""
        )

    def _is_ours(self, specs: Sequence[Spec]) -> bool:
        known = len(specs) == 3 and cublaslt.multiplies(*(s.dtype for s in specs))
        return known and not isinstance(self.library, str)

    def _room(
        self, ins: Sequence[Shape], outs: Sequence[Shape], specs: Specs, **params: Any
    ) -> Sequence[Scratch]:
        body = params.get("body")
        given = _of_product(body) if body is not None else specs
        return products.room(ins, outs, given) if self._is_ours(given) else ()

    def _ways(self, ins: Specs, outs: Specs, p: Params, threads: int) -> Classes:
        body = p.get("body")
        given = _of_product(body) if body is not None else (*ins, *outs)
        if not self._is_ours(given):
            return ()
        own = "text" not in p and self.own_products is not None
        return [(way,) for way in (products.ways(given, self.tile_rates) if own else products.WAYS)]

    @property
    def own_products(self) -> products.Launching | None:
        """Makes functions of kernels of products, where they may be ours."""
        return products.Launching(self.launching, self.tile_rates) if self.has_own_kernels else None

    @functools.cached_property
    def tile_rates(self) -> TileRates:
        return rates_of(self.model())

    def _product(
        self, arrays: Sequence[Any], threads: int, *, scratch: Sequence[Any], **how: Any
    ) -> Function | None:
        library = self.library
        if isinstance(library, str) or not cublaslt.multiplies(*(x.dtype for x in arrays)):
            return None
        make = products.einsum if "text" in how else products.product
        return make(library, self.xp, arrays, scratch, launching=self.own_products, **how)

    def _with_epilogue(
        self,
        arrays: Sequence[Any],
        threads: int,
        *,
        scratch: Sequence[Any],
        body: Graph,
        way: str = "",
    ) -> Function | None:
        if isinstance(self.library, str):
            return None
        given = self.library, self.xp, arrays, scratch, way, body
        return with_epilogue(*given, self._elements, self.own_products)

    def _with_operands(
        self, arrays: Sequence[Any], threads: int, *, scratch: Sequence[Any], body: Graph, **_: Any
    ) -> Function | None:
        return with_operands(self.own_products, arrays, body)

    def _with_rows(
        self, arrays: Sequence[Any], threads: int, *, scratch: Sequence[Any], body: Graph, **_: Any
    ) -> Function | None:
        made = rows_kernel(body, arrays, self.tile_rates) if self.has_own_kernels else None
        return self.launching(made) if made is not None else None

    def _elements(self, body: Graph, arrays: Sequence[Any]) -> Function:
        """Elementwise operations over the last array's elements."""
        shape = arrays[-1].shape
        loops = loops_of(shape, strides_over(body, shape, arrays, 0), 0)
        assert loops is not None
        return self._flat(body, loops, 0)

    def _flat(self, body: Graph, loops: Loops, axes: int) -> Function:
        squares = None if axes else square_tiles(body, loops)
        if squares is not None:
            return self.launching(stages.kernel_of(squares))
        return self.launching(flat.kernel_of(body, loops))

    def scratch(
        self, node: Node, ins: Sequence[Shape], outs: Sequence[Shape], specs: Specs
    ) -> tuple[tuple[Scratch, ...], tuple[Scratch, ...]]:
        """The library needs none of what the ops' own kernels need."""
        own, more = super().scratch(node, ins, outs, specs)
        return (() if more else own), more

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
        at: Place | None = None,
        read_next: bool = False,
    ) -> Function | Prepackable | None:
        if node.op in FLAT:
            with sharing(node.kw["body"]):
                return self._fused(node, shape, arrays)
        if node.op == IN_STEPS:
            tiled = steps_kernel(node.kw["body"], arrays)
            return None if tiled is None else self.launching(tiled)
        native = self.natives.get(node.op)
        if native is not None:
            made: Function | None = native.made(node, arrays, threads, scratch, at)
            return made
        return self._foreach(node, shape, arrays) if node.op == FOREACH else None

    def _stages(
        self, arrays: Sequence[Any], _: int, *, scratch: Sequence[Any], at: Place, **labelled: Any
    ) -> Function | None:
        shapes, steps = [x.shape for x in arrays], [x.strides for x in arrays]
        begins = begins_at(at, labelled)
        with sharing(labelled["body"]):
            nest = analyse(**labelled, shapes=shapes, strides=steps, begins=begins)
            return None if nest is None else self.launching(streams.kernel_of(nest))

    def _fused(
        self, node: Node, shape: Callable[[Spec], Shape], arrays: Sequence[Any]
    ) -> Function | None:
        body, whole, axes = space(node, shape)
        if math.prod(whole) == 0:
            return None
        if has_moves(body):
            return self.launching(moved_kernel(body, whole, arrays, axes))
        loops = loops_of(whole, strides_over(body, whole, arrays, axes), axes)
        if loops is None:
            return None
        return self._flat(body, loops, axes)

    def _foreach(
        self, node: Node, shape: Callable[[Spec], Shape], arrays: Sequence[Any]
    ) -> Function | None:
        """One launch for all parts whose elements lie side by side; those of others have their own."""
        alike: dict[tuple[int, ...], list[tuple[list[int], Graph, int]]] = {}
        runs: list[tuple[Function, list[int]]] = []
        for part in parts_of(node):
            places = part.places(len(node.inputs))
            body, whole, axes = space(part.node, shape)
            loops = dense_loops(body, whole, [arrays[k] for k in places], axes)
            if loops is None:
                return None
            steps = tuple([s[-1] for s in loops.strides])
            sizes = [s.dtype.itemsize for s in (*body.inputs, *body.out_specs)]
            if len(loops.extents) == 1 and all(
                s in (0, n) for s, n in zip(steps, sizes, strict=True)
            ):
                alike.setdefault(steps, []).append((places, body, loops.extents[0]))
            elif math.prod(whole) == 0:
                return None
            else:
                runs.append((self._flat(body, loops, axes), places))
        for steps, parts in alike.items():
            launch = foreach_kernel(parts[0][1], steps, [n for *_, n in parts])
            if launch.kernel.grid[0]:
                runs.append((self.launching_table(launch), [k for p, *_ in parts for k in p]))

        def run(*given: Any) -> None:
            for launch, places in runs:
                launch(*[given[k] for k in places])

        return run

    def launching_table(self, launch: Launch) -> Function:
        """A kernel that is given the addresses of its arrays in a table."""
        kernel, table = launch
        run, compiled = self.compiling(kernel)
        room = (self.xp.zeros(kernel.room, np.uint8),) if kernel.room else ()
        more, block, words = (*map(np.int64, kernel.facts), *room), (THREADS,), table["words"]

        def launch_with(*arrays: Any) -> None:
            words[: len(arrays)] = [x.data.ptr for x in arrays]
            if not compiled.done():
                COMPILERS.wait(compiled)
            run(kernel.grid, block, (table, *more))

        return launch_with

    def dynamic_kernel(self, node: Node, specs: Specs, scratch: Sequence[Any]) -> Function | None:
        """Make the kernel of a product, since CuPy's are no part of a graph: one for each way in
        which arrays lay.
        """
        native, body = self.natives.get(node.op), node.kw.get("body")
        if (
            native is None
            or native.placed
            or not self._is_ours(specs if body is None else _of_product(body))
        ):
            return None
        known: dict[tuple[Any, ...], Function] = {}
        kernel, count = OPS[node.op].kernel, len(node.inputs)

        def node_by_node(*arrays: Any) -> None:
            outs = arrays[count:]
            assert kernel is not None
            kernel(self.xp, outs[0] if len(outs) == 1 else outs, *arrays[:count], **node.kw)

        def run(*arrays: Any) -> None:
            key = tuple([(x.shape, x.strides) for x in arrays])
            if key not in known:
                if len(known) == LAYOUTS:
                    del known[next(iter(known))]
                known[key] = native.make(arrays, 1, scratch=scratch, **node.kw) or node_by_node
            known[key](*arrays)

        return run

    def launching(self, kernel: Kernel) -> Function:
        """Compiled by NVRTC, all cores at once, and kept on disk by CuPy."""
        room = (self.xp.zeros(kernel.room, np.uint8),) if kernel.room else ()
        launches = [self.launched(kernel, room)]
        while kernel.then is not None:
            kernel = kernel.then
            launches.append(self.launched(kernel, room))
        if len(launches) == 1:
            return launches[0]

        def launch(*arrays: Any) -> None:
            for one in launches:
                one(*arrays)

        return launch

    def launched(self, kernel: Kernel, room: Sequence[Any]) -> Function:
        run, compiled = self.compiling(kernel)
        more = (*map(np.int64, kernel.facts), *room)
        grid, block = kernel.grid, (kernel.threads,)

        def launch(*arrays: Any) -> None:
            if not compiled.done():
                COMPILERS.wait(compiled)
            run(grid, block, (*arrays, *more))

        return launch

    def compiling(self, kernel: Kernel) -> tuple[Any, Future[None]]:
        """A kernel that another thread compiles while more of a plan is bound: a network has a hundred texts,
        of which the compiler takes a tenth of a second each. What fails there fails again, and says so, when
        it is launched."""
        found = self._compiled.get(kernel.name)
        if found is None or found[1].cancelled():
            if found is None and len(self._compiled) == KERNELS:
                del self._compiled[next(iter(self._compiled))]
            run = self.xp.RawKernel(kernel.text, kernel.name, OPTIONS)
            place = self.xp.cuda.runtime.getDevice()

            def compile_it() -> None:
                self.xp.cuda.Device(place).use()
                run.compile()

            found = self._compiled[kernel.name] = run, COMPILERS.submit(compile_it)
        return found

    def together(self) -> contextlib.AbstractContextManager[None]:
        return COMPILERS.dropping()

    def ordered_product(self, a: Any, b: Any, out: Any) -> Function | None:
        same = a.dtype == b.dtype == out.dtype and out.dtype.name in TYPES
        if not same or not out.size or not self.has_own_kernels:
            return None
        stacks = stacked(*map(products.layout_like, (a, b, out)))
        return None if stacks is None else self.launching(ordered_kernel(*stacks))

    def folding(self, ufunc: str, addends: Sequence[Any], out: Any) -> Function | None:
        """A kernel that reads each addend once."""
        if ufunc not in ("add", "multiply") or not is_float(out.dtype) or out.size < FOLDED:
            return None
        arrays = (*addends, out)
        key = ufunc, tuple([(x.shape, x.strides, x.dtype) for x in arrays])
        if key not in self.folds:
            body = _fold_of(ufunc, [x.dtype for x in addends], out)
            loops = loops_of(out.shape, strides_over(body, out.shape, arrays, 0), 0)
            if loops is None:
                return None
            if len(self.folds) == LAYOUTS:
                del self.folds[next(iter(self.folds))]
            self.folds[key] = self._flat(body, loops, 0)
        return self.folds[key]

    def thin_qr(self, x: Any, q: Any, near: float) -> tuple[Any, Any] | None:
        return gram_qr.thin_qr(self, x, q, near, self.tall) if self.has_own_kernels else None

    def times(self, q: Any, w: Any) -> bool:
        return self.has_own_kernels and gram_qr.times(self, q, w, self.tall)

    def note(self, word: Any, places: Any) -> None:
        """By one kernel, whose text is the same for all places of a dtype."""
        kernel = range_of(places) if self.has_own_kernels else None
        if kernel is None:
            super().note(word, places)
            return
        if kernel.name not in self._ranges:
            self._ranges[kernel.name] = self.xp.RawKernel(kernel.text, kernel.name, OPTIONS)
        facts = map(np.int64, kernel.facts)
        self._ranges[kernel.name](kernel.grid, (kernel.threads,), (places, word, *facts))

    def factoring(self, otherwise: str) -> contextlib.AbstractContextManager[None]:
        return factor_notes.factoring(self.xp, otherwise)

    def graph_capture(self) -> GraphCapture:
        if self._driver is None:
            self._driver = conditions.found()
        return Captures(self.xp, self._driver, self.has_own_kernels)

    # -- memory --------------------------------------------------------------------------------
    def from_host(self, value: Any) -> Any:
        """When it returns, the host's memory may change. What is here already stays where it is."""
        self.check_process()
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

    def next_from_host(self, value: Any) -> Any:
        if isinstance(value, self.xp.ndarray) or value.nbytes < BESIDE:
            return self.from_host(value)
        if self.copies is None:
            self.copies = Copies(self.xp)
        given = np.asarray(value, value.dtype.newbyteorder("="), order="C")
        try:
            return self.copies.send(given)
        except MemoryError:
            return self.from_host(value)

    def to_host(self, value: Any, out: Any = None) -> Any:
        if out is not None:
            value.get(out=out)
            return out
        pinned = SMALL_BYTES < value.nbytes <= PINNED_BYTES
        made = (self.staging if pinned else empty_aligned)(value.shape, value.dtype)
        value.get(out=made)
        return made

    def staging(self, shape: Sequence[int], dtype: DType) -> Any:
        """Pinned, so that the copies to it and from it need no other."""
        size = math.prod(shape)
        memory = self.xp.cuda.alloc_pinned_memory(max(size * dtype.itemsize, 1))
        return np.frombuffer(memory, dtype, size).reshape(tuple(shape))

    def away(self) -> HostStore:
        return HostStore(self.xp)

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
        """Count the GPU's free bytes, and those that the pool has and nobody uses."""
        free: int = self.xp.cuda.runtime.memGetInfo()[0]
        return free + int(self.xp.get_default_memory_pool().free_bytes())

    def give_back(self) -> None:
        if self.copies is not None:
            self.copies.give_back()
        self.xp.get_default_memory_pool().free_all_blocks()

    def memory(self) -> dict[str, int]:
        free, total = self.xp.cuda.runtime.memGetInfo()
        pool = self.xp.get_default_memory_pool()
        used, kept = pool.used_bytes(), pool.free_bytes()
        return {"total": total, "free": free, "arrays": used, "kept": kept}

    def model(self) -> str:
        runtime = self.xp.cuda.runtime
        name: str = runtime.getDeviceProperties(runtime.getDevice())["name"].decode()
        return name

    def environment(self) -> Sequence[str]:
        name = self.model()
        library = self.library
        by = library if isinstance(library, str) else f"cuBLASLt {library.functions.get_version()}"
        return name, f"CuPy {self.xp.__version__}", by, *cudnn.installed()

    def check_process(self) -> None:
        if os.getpid() != self._process:
            raise SessionError.because(
                "this process",
                got="a GPU of the process that it was forked from",
                needed="a process that begins anew: CUDA works in no forked child",
                do='use multiprocessing.get_context("spawn"), or ost.connect(device="cpu") here',
            )

    # -- one of several ------------------------------------------------------------------------
    def use(self, place: int | None = None) -> None:
        if place is not None:
            self.index = place % self.xp.cuda.runtime.getDeviceCount()
        if self.index is not None and getattr(_here, "index", None) != self.index:
            self.xp.cuda.Device(self.index).use()
            _here.index = self.index

    @property
    def label(self) -> str:
        return self.name if self.index is None else f"{self.name} {self.index}"

    def address(self) -> bytes:
        if not getattr(getattr(self.xp.cuda, "nccl", None), "available", False):
            return b""
        found = f"{platform.node()[:100]} {self.xp.cuda.Device().pci_bus_id}"
        return found.encode()[:127]

    def invite(self) -> bytes:
        return bytes(self.xp.cuda.nccl.get_unique_id())

    def messenger(self, rank: int, size: int, invitation: bytes) -> Messenger:
        return Nccl(self.xp, rank, size, invitation)

    # -- time ----------------------------------------------------------------------------------
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


def _of_product(body: Graph) -> list[Spec]:
    """Return the specs that the product which a kernel begins with reads and gives."""
    node = body.nodes[begin_of(body)]
    return [*(body.specs[v] for v in node.inputs), *node.specs]


def _fold_of(ufunc: str, dtypes: Sequence[DType], out: Any) -> Graph:
    """Make the graph that adds addends of these dtypes, in order, in their dtype, or in one that is
    no narrower than float32.
    """
    builder = Builder([Spec(out.shape, dtype) for dtype in dtypes])
    wide = max(out.dtype, float32, key=lambda d: d.itemsize)
    values = [
        v if dtype == wide else builder.call("astype", v, dtype=wide)
        for v, dtype in enumerate(dtypes)
    ]
    made = functools.reduce(lambda a, b: builder.call(ufunc, a, b), values)
    if out.dtype != wide:
        made = builder.call("astype", made, dtype=out.dtype)
    return builder.graph([made])


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
    with contextlib.suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns where the library is missing
        import cupy.cuda.nccl  # which says whether the library is there
    return add(Gpu(NAME, cupy), cupy.ndarray)


later(NAME, _found)
