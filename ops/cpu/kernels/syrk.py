"""The product of a matrix's transpose with itself, of which one triangle is computed: half of the
multiplications, and a result that is symmetric to the bit.

Where the sum is long, it is cut into parts, which threads share. A thread copies a chunk of rows into
panels, each two vectors wide, that stay in its cache; both sides of the product are read from these.
Tiles of the triangle are summed in registers over a chunk, and added to what waits of their part. Parts
are added up in order at the end. Where it is not, but the result is large, BLAS multiplies blocks of
the result. All of this depends on extents only, so the number of threads changes no bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.device import Classes
from ostinato.ops.core.index import Indices
from ostinato.ops.core.registry import Params, Scratch, Specs, op
from ostinato.ops.core.spec import DType, Shape, Spec, float32, float64, int8, strided_like
from ostinato.ops.cpu.jit.emitter import Code, loaded
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits, why_not
from ostinato.ops.cpu.jit.parallel import around
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.threads import blas, most_threads

from .gemm import mirrored_product, product, ways
from .gemm_tiles import Tiles

TRIANGLE, MIRRORED = "triangle", "mirrored"
COLUMNS = 16  # fewer leave vectors half empty
MIN_COLUMNS, MIN_TERMS = 384, 32  # columns of a result in blocks, and terms of its sums at least
DEEP = 1024  # rows of a part at least,
FEWEST, PARTS = 4, 32  # parts at least, for threads to share, and at the most,
WAITING = LIMITS.triangles
CHUNK = 64, 128  # rows of a chunk at least and at the most,
PACKED = LIMITS.panel_bytes
TURNED = 512  # bytes of a row, below which it costs too much to gather rows from columns


class Cut(NamedTuple):
    """How a product is cut: by extents and this machine's vectors."""

    dtype: DType
    lanes: int
    rows: int  # of a tile
    panels: int
    parts: int
    chunk: int

    @property
    def waiting(self) -> int:
        """Elements of a part, whose panels are complete down to where the diagonal leaves a vector."""
        return self.lanes**2 * self.panels * (2 * self.panels + 1)

    @property
    def packed(self) -> int:
        return 2 * self.lanes * self.panels * self.chunk

    def bytes(self, threads: int) -> int:
        elements = self.parts * self.waiting + max(threads, 1) * self.packed
        return elements * self.dtype.itemsize + 64


def cut_of(shape: Shape, dtype: DType) -> Cut:
    (depth, columns), bits, item = shape, vector_bits(), dtype.itemsize
    lanes = bits // (8 * item)
    panels = -(-columns // (2 * lanes))
    chunk = max(CHUNK[0], min(CHUNK[1], PACKED // (panels * 2 * lanes * item)))
    chunk = chunk // lanes * lanes
    whole = Cut(dtype, lanes, min(8 if bits == 512 else 4, lanes), panels, 1, chunk)
    parts = min(PARTS, depth // DEEP, WAITING // whole.waiting)
    return whole._replace(parts=max(parts, 1))


def pays(spec: Spec) -> bool:
    """Whether half of the multiplications outweigh what it takes to leave out the others."""
    if spec.dtype not in (float32, float64) or spec.shape[1] < COLUMNS or why_not():
        return False
    return _is_deep(spec) or _is_wide(spec)


def _is_deep(spec: Spec) -> bool:
    """Whether threads can share the terms of the sums."""
    return cut_of(spec.shape, spec.dtype).parts >= FEWEST


def _is_wide(spec: Spec) -> bool:
    """Whether they can share the result."""
    return spec.shape[1] >= MIN_COLUMNS and spec.shape[0] >= MIN_TERMS and blas() is not None


def triangle(x: Any, out: Any, threads: int, room: Any) -> Callable[..., None] | None:
    """The function of a matrix that lies so; None if neither rows nor columns are in order."""
    item = x.itemsize
    if item not in x.strides or min(*x.strides, *out.strides) < item:
        return None
    turned = x.strides[1] != item
    cut = cut_of(x.shape, x.dtype)
    sums = -(-room.ctypes.data // 64) * 64
    panels = sums + cut.parts * cut.waiting * item
    if panels + max(threads, 1) * cut.packed * item > room.ctypes.data + room.nbytes:
        return None
    facts = [cut.parts, min(threads, cut.parts), *x.shape, x.strides[int(turned)]]
    facts += [*out.strides, cut.chunk, cut.panels, sums, panels]
    text = _text(x.dtype, cut.lanes, cut.rows, turned)
    return function_of(text, np.array(facts, np.int64), room)


# -- the operation -------------------------------------------------------------------------
def _indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    return Indices((("k", None),), ((None, None),), (("k", "sum"),))


def _kernel(xp: Any, out: Any, x: Any) -> None:
    xp.matmul(x.T, x, out=out)


def gram_native(
    arrays: Sequence[Any], threads: int, *, scratch: Sequence[Any], way: str = ""
) -> Callable[..., None] | None:
    x, out = arrays
    fits = x.strides[1] == x.itemsize or x.shape[1] * x.itemsize >= TURNED
    if scratch and (way == TRIANGLE or fits):
        found = triangle(x, out, threads, scratch[0])
        if found is not None:
            return found
    if way == MIRRORED or (way == "" and _is_wide(Spec(x.shape, x.dtype))):
        found = mirrored_product(x, out, threads)
        if found is not None:
            return found
    whole = product(x.T, x, out, threads, way)
    return None if whole is None else lambda x, out: whole(x.T, x, out)


def gram_ways(ins: Specs, outs: Specs, p: Params, threads: int) -> Classes:
    x, out = (strided_like(s.shape, s.dtype) for s in (*ins, *outs))
    own = {TRIANGLE: _is_deep(ins[0]), MIRRORED: _is_wide(ins[0])}
    names = [*(way for way in own if own[way]), *ways(x.T, x, out, threads)]
    return [(way,) for way in names]


def gram_scratch(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], way: str = ""
) -> Sequence[Scratch]:
    x = Spec(ins[0], specs[0].dtype)
    if way not in ("", TRIANGLE) or not _is_deep(x):
        return []
    return [Scratch((cut_of(x.shape, x.dtype).bytes(most_threads()),), int8)]


def _cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    return float(outs[0].size * ins[0].shape[0]), float(ins[0].nbytes + outs[0].nbytes)


# What the planner makes of a product of a value's transpose with the value.
op(
    "gram",
    infer=lambda x: Spec((x.shape[1], x.shape[1]), x.dtype),
    made_by="machine",
    indices=_indices,
    kernel=_kernel,
    cost=_cost,
    dense=True,
)


# -- machine code --------------------------------------------------------------------------
_FACTS = (
    *("parts", "threads", "depth", "columns", "step", "down", "along", "chunk", "panels"),
    *("sums", "packs"),
)


@lru_cache(8)
def _text(dtype: DType, lanes: int, rows: int, turned: bool) -> str:
    writer = _Writer(dtype, lanes, rows)
    functions = [writer.tile("wide", 2), writer.tile("half", 1)]
    functions += [writer.pack_turned(2) if turned else writer.pack(2)]
    functions += [writer.chunk(turned), writer.body(turned), writer.finish()]
    return "\n".join([*sorted(writer.declared), *functions, around(2)])


class _Writer(Tiles):
    """The functions of a kernel, for one dtype and one kind of vectors."""

    def __init__(self, dtype: DType, lanes: int, rows: int) -> None:
        super().__init__(dtype, lanes)
        self.rows, self.width = rows, 2 * lanes
        self.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")

    def with_facts(self, name: str, arguments: str, code: Code) -> str:
        return self.function(name, arguments, code, loaded("%meta", 0, _FACTS))

    def panel(self, code: Code, q: str) -> str:
        """Where a panel of a triangle begins, in elements."""
        odd = code.let(f"add i64 {code.times(q, '2')}, 1")
        return code.times(code.times(q, odd), str(self.lanes**2))

    def bounds(self, code: Code, q: str) -> tuple[str, str, str]:
        """The first row for which one vector of a panel is enough, the end of its rows, and where
        that vector begins: its second one, or its first one where no more columns are left."""
        begin = code.times(q, str(self.width))
        second, end = (code.sum(begin, str(n)) for n in (self.lanes, self.width))
        narrow = code.let(f"icmp sle i64 %columns, {second}")
        middle = code.let(f"select i1 {narrow}, i64 0, i64 {second}")
        shift = code.let(f"select i1 {narrow}, i64 0, i64 {self.lanes}")
        return middle, code.least(end, "%columns"), shift

    # -- a tile
    def tile(self, name: str, width: int) -> str:
        """Adds to a tile the products of a chunk, whose panels have its rows on the left and its
        columns on the right. On its way it asks memory for lines that come next."""
        code = Code()
        cells = [[self.sum_cell(code) for _ in range(width)] for _ in range(self.rows)]
        with code.loop("0", "%many") as r:
            ahead = code.times(code.least(r, "%last"), "%step")
            soon = code.let(f"getelementptr i8, ptr %next, i64 {ahead}")
            code.fetch(soon)
            skip = code.times(r, str(self.width))
            left, right = (self.address(code, base, skip) for base in ("%left", "%right"))
            columns = [
                self.load(code, self.address(code, right, str(j * self.lanes)))
                for j in range(width)
            ]
            for i, row in enumerate(cells):
                x = self.everywhere(code, self.address(code, left, str(i)))
                for cell, y in zip(row, columns, strict=True):
                    code.add(f"store {self.vector} {self.fma(code, x, y, cell)}, ptr {cell}")
        for n, cell in enumerate(c for row in cells for c in row):
            at = self.address(code, "%tile", str(n * self.lanes))
            total = code.let(f"load {self.vector}, ptr {cell}")
            self.store(code, code.let(f"fadd {self.vector} {self.load(code, at)}, {total}"), at)
        return self.function(
            name,
            "ptr %left, ptr %right, ptr %tile, i64 %many, ptr %next, i64 %step, i64 %last",
            code,
        )

    # -- a chunk
    def chunk(self, turned: bool) -> str:
        """Some rows into panels, then all tiles of the triangle."""
        code = Code()
        size = code.times("%chunk", str(self.width))
        pack = "pack_turned2" if turned else "pack2"
        with code.loop("0", "%panels") as q:
            column = code.times(q, str(self.width))
            left = code.let(f"sub i64 %columns, {column}")
            skip = code.times(column, "%step" if turned else str(self.item))
            from_ = code.let(f"getelementptr i8, ptr %x, i64 {skip}")
            to = self.address(code, "%panel", code.times(q, size))
            code.add(f"call void @{pack}(ptr {from_}, i64 %step, i64 %many, i64 {left}, ptr {to})")
        ahead = code.times("%many", str(self.item) if turned else "%step")
        next_ = code.let(f"getelementptr i8, ptr %x, i64 {ahead}")
        runs, length = ("%columns", "%many") if turned else ("%many", "%columns")
        lines = code.let(f"sdiv i64 {code.sum(code.times(length, str(self.item)), '63')}, 64")
        code.entry.append("  %line = alloca i64")
        code.add("store i64 0, ptr %line")
        with code.loop("0", "%panels") as q:
            right = self.address(code, "%panel", code.times(q, size))
            middle, end, shift = self.bounds(code, q)
            tiles = self.address(code, "%sum", self.panel(code, q))
            with code.loop("0", middle, step=self.rows) as i:
                left = self.row_of(code, i, size)
                tile = self.address(code, tiles, code.times(i, str(self.width)))
                line = code.let("load i64, ptr %line")
                code.add(f"store i64 {code.sum(line, '1')}, ptr %line")
                passed = code.times(code.let(f"udiv i64 {line}, {lines}"), "%many")
                last = code.let(f"sub i64 {runs}, {code.sum(passed, '1')}")
                asks = code.let(f"icmp sge i64 {last}, 0")
                skip = code.sum(
                    code.times(passed, "%step"),
                    code.times(code.let(f"urem i64 {line}, {lines}"), "64"),
                )
                far = code.let(f"getelementptr i8, ptr {next_}, i64 {skip}")
                soon = code.let(f"select i1 {asks}, ptr {far}, ptr {left}")
                step = code.let(f"select i1 {asks}, i64 %step, i64 0")
                code.add(
                    f"call void @wide(ptr {left}, ptr {right}, ptr {tile}, i64 %many, "
                    f"ptr {soon}, i64 {step}, i64 {last})"
                )
            halves = self.address(code, tiles, code.times(middle, str(self.width)))
            vector = self.address(code, right, shift)
            with code.loop(middle, end, step=self.rows) as i:
                left = self.row_of(code, i, size)
                down = code.let(f"sub i64 {i}, {middle}")
                tile = self.address(code, halves, code.times(down, str(self.lanes)))
                code.add(
                    f"call void @half(ptr {left}, ptr {vector}, ptr {tile}, i64 %many, "
                    f"ptr {left}, i64 0, i64 0)"
                )
        return self.with_facts("chunk", "ptr %x, i64 %many, ptr %sum, ptr %panel, ptr %meta", code)

    def row_of(self, code: Code, i: str, size: str) -> str:
        """Where in the panels a row of the triangle is a column."""
        which, within = (code.let(f"{op} i64 {i}, {self.width}") for op in ("udiv", "urem"))
        return self.address(code, "%panel", code.sum(code.times(which, size), within))

    # -- parts
    def body(self, turned: bool) -> str:
        code = Code()
        x = code.let("load ptr, ptr %data")
        sums, packs = (code.let(f"inttoptr i64 %{room} to ptr") for room in ("sums", "packs"))
        size = code.times("%panels", str(self.width))
        mine = self.address(code, packs, code.times("%thread", code.times(size, "%chunk")))
        part = self.panel(code, "%panels")
        with code.loop("%lo", "%hi") as p:
            after = code.sum(p, "1")
            from_, to = (
                code.let(f"sdiv i64 {code.times('%depth', n)}, %parts") for n in (p, after)
            )
            sum_ = self.address(code, sums, code.times(p, part))
            bytes_ = code.times(part, str(self.item))
            code.add(f"call void @llvm.memset.p0.i64(ptr {sum_}, i8 0, i64 {bytes_}, i1 false)")
            length = code.let(f"sub i64 {to}, {from_}")
            chunks = code.let(f"sdiv i64 {code.sum(length, '%chunk', '-1')}, %chunk")
            with code.loop("0", chunks) as k:
                row = code.sum(from_, code.times(k, "%chunk"))
                many = code.least(code.let(f"sub i64 {to}, {row}"), "%chunk")
                down = code.times(row, str(self.item) if turned else "%step")
                rows = code.let(f"getelementptr i8, ptr {x}, i64 {down}")
                code.add(
                    f"call void @chunk(ptr {rows}, i64 {many}, ptr {sum_}, ptr {mine}, ptr %meta)"
                )
        return self.with_facts("body", "ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread", code)

    def finish(self) -> str:
        """Adds the parts to the first one, each element of which then has two places."""
        code = Code()
        out = code.let("load ptr, ptr " + code.let("getelementptr ptr, ptr %data, i64 1"))
        sums = code.let("inttoptr i64 %sums to ptr")
        part = self.panel(code, "%panels")
        with code.loop("0", part, step=self.lanes) as e:
            at, total = self.address(code, sums, e), self.sum_cell(code)
            with code.loop("0", "%parts") as p:
                more = self.load(code, self.address(code, at, code.times(p, part)))
                before = code.let(f"load {self.vector}, ptr {total}")
                made = code.let(f"fadd {self.vector} {before}, {more}")
                code.add(f"store {self.vector} {made}, ptr {total}")
            self.store(code, code.let(f"load {self.vector}, ptr {total}"), at)
        with code.loop("0", "%panels") as q:
            wide = self.address(code, sums, self.panel(code, q))
            begin = code.times(q, str(self.width))
            middle, end, shift = self.bounds(code, q)
            halves = self.address(code, wide, code.times(middle, str(self.width)))
            self.mirror(code, out, wide, begin, ("0", middle), self.width)
            self.mirror(code, out, halves, code.sum(begin, shift), (middle, end), self.lanes)
        return self.with_facts("finish", "ptr %data, ptr %meta", code)

    def mirror(
        self, code: Code, out: str, tiles: str, begin: str, rows: tuple[str, str], width: int
    ) -> None:
        """Rows of tiles, from the diagonal on, to both of their places."""
        with code.loop(*rows) as i:
            down = code.times(code.let(f"sub i64 {i}, {rows[0]}"), str(width))
            row = self.address(code, tiles, down)
            with code.loop("0", str(width)) as c:
                j = code.sum(begin, c)
                inside = code.let(f"icmp slt i64 {j}, %columns")
                above = code.let(f"icmp sle i64 {i}, {j}")
                with code.when(code.let(f"and i1 {inside}, {above}")):
                    x = code.let(f"load {self.kind}, ptr {self.address(code, row, c)}")
                    for a, b in ((i, j), (j, i)):
                        place = code.sum(code.times(a, "%down"), code.times(b, "%along"))
                        to = code.let(f"getelementptr i8, ptr {out}, i64 {place}")
                        code.add(f"store {self.kind} {x}, ptr {to}")
