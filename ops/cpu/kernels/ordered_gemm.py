"""Products of matrices whose sums are made term by term, in order: of integers, for which there is no
library, and of floats whose bits must not depend on how matrices are cut. Tiles of some rows and a few
vectors of columns are summed in registers. Integers that do not fit wrap around, as NumPy's do; each
product of floats is rounded before it is added."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DType
from ostinato.ops.cpu.jit.emitter import Code, places
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits
from ostinato.ops.cpu.jit.parallel import TABLES, around
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.stacks import Stack

from .gemm_tiles import Tiles

ROWS, VECTORS = LIMITS.ordered_rows, LIMITS.ordered_vectors
DEEP = 256  # terms whose columns are copied in order
QUICK = LIMITS.product_quick
GRAIN = LIMITS.ordered_wake
INTEGERS = ("int32", "int64", "uint32", "uint64")
KINDS = (*INTEGERS, "float32", "float64")

_FACTS = (
    *("turns", "threads", "rows", "columns", "terms", "down_a", "along_a", "down_b", "along_b"),
    *("down_c", "panels", "block", "blocks", "dims"),
)


def ordered_product(a: Stack, b: Stack, out: Stack, threads: int) -> Any:
    """The function of three arrays that lie so, of one of these kinds; None if the result's rows do not
    lie in one piece."""
    if out.shape[-1] > 1 and out.strides[-1] != 1:
        return None
    (rows, columns), terms, item = out.shape[-2:], a.shape[-1], out.dtype.itemsize
    lanes = vector_bits() // (8 * item)
    work, many = out.size * terms, math.prod(out.shape[:-2])
    team = 0 if work <= QUICK else max(1, min(threads, work // GRAIN))
    panels = -(-columns // (VECTORS * lanes))
    apart = min(-(-rows // (8 * ROWS)), -(-4 * team // (panels * many))) if team > 1 else 1
    block = -(-rows // (apart * ROWS)) * ROWS
    blocks = -(-rows // block)
    turns = panels * blocks * many
    steps = [item * s for x in (a, b, out) for s in x.strides[-2:]][:5]
    facts = [turns, min(team, turns), rows, columns, terms, *steps, panels, block, blocks]
    axes = [
        [out.shape[d], *(item * x.strides[d] for x in (a, b, out))]
        for d in range(len(out.shape) - 2)
    ]
    about = np.array([*facts, len(axes), *(n for axis in axes for n in axis)], np.int64)
    return function_of(_text(out.dtype, lanes, b.strides[-1] == 1), about)


@lru_cache(32)
def _text(dtype: DType, lanes: int, straight: bool) -> str:
    writer = _Writer(dtype, lanes)
    functions = [writer.panel(straight), writer.tile(), writer.body()]
    functions.append("define internal void @finish(ptr %data, ptr %meta) {\n  ret void\n}")
    return "\n".join([TABLES, places(3), *sorted(writer.declared), *functions, around(3)])


class _Writer(Tiles):
    def __init__(self, dtype: DType, lanes: int) -> None:
        super().__init__(dtype, lanes)
        self.width = VECTORS * lanes
        self.zero = "0.0" if dtype.kind == "f" else "0"
        self.multiply, self.add = ("fmul", "fadd") if dtype.kind == "f" else ("mul", "add")

    def panel(self, straight: bool) -> str:
        """Some terms of a panel's columns in order, and zeros behind the last column: whatever else may lie
        there could be denormal, with which processors are slow."""
        code = Code()
        along = str(self.item) if straight else "%along"
        some = code.least("%left", str(self.width))
        with code.loop("0", "%many") as k:
            from_ = self.advance(code, "%from", k, "%down")
            to = self.address(code, "%to", code.times(k, str(self.width)))
            with code.loop("0", some) as j:
                x = code.let(f"load {self.kind}, ptr {self.advance(code, from_, j, along)}")
                code.add(f"store {self.kind} {x}, ptr {self.address(code, to, j)}")
            with code.loop(some, str(self.width)) as j:
                code.add(f"store {self.kind} {self.zero}, ptr {self.address(code, to, j)}")
        head = "ptr %from, i64 %down, i64 %along, i64 %many, i64 %left, ptr %to"
        return self.function("panel", head, code)

    def tile(self) -> str:
        """Adds the products of some terms to a tile, or begins it. Where rows are left out, the last one
        is done several times."""
        code = Code()
        sums = [[self.sum_cell(code) for _ in range(VECTORS)] for _ in range(ROWS)]
        last = code.let("sub i64 %rows, 1")
        which = [code.least(str(r), last) for r in range(ROWS)]
        rows = [self.advance(code, "%a", r, "%down_a") for r in which]
        outs = [self.advance(code, "%c", r, "%down_c") for r in which]
        full = code.let(f"icmp sge i64 %left, {self.width}")
        partly = code.let(f"xor i1 {full}, true")
        with code.when("%goes_on"):
            with code.when(full):
                for at, _, cell in self.cells(code, sums, outs):
                    was = code.let(f"load {self.vector}, ptr {at}, align {self.item}")
                    code.add(f"store {self.vector} {was}, ptr {cell}")
            with code.when(partly):
                for at, v, cell in self.cells(code, sums, outs):
                    was = self.first(code, at, code.sum("%left", str(-v * self.lanes)))
                    code.add(f"store {self.vector} {was}, ptr {cell}")
        with code.loop("0", "%many") as k:
            row = self.address(code, "%b", code.times(k, str(self.width)))
            columns = [
                self.load(code, self.address(code, row, str(v * self.lanes)))
                for v in range(VECTORS)
            ]
            for a, cells in zip(rows, sums, strict=True):
                x = self.everywhere(code, self.advance(code, a, k, "%along_a"))
                for cell, y in zip(cells, columns, strict=True):
                    more = code.let(f"{self.multiply} {self.vector} {x}, {y}")
                    was = code.let(f"load {self.vector}, ptr {cell}")
                    made = code.let(f"{self.add} {self.vector} {was}, {more}")
                    code.add(f"store {self.vector} {made}, ptr {cell}")
        with code.when(full):
            for at, _, cell in self.cells(code, sums, outs):
                made = code.let(f"load {self.vector}, ptr {cell}")
                code.add(f"store {self.vector} {made}, ptr {at}, align {self.item}")
        with code.when(partly):
            for at, v, cell in self.cells(code, sums, outs):
                made = code.let(f"load {self.vector}, ptr {cell}")
                inside = code.inside(code.sum("%left", str(-v * self.lanes)), self.lanes)
                code.masked_store(made, at, self.vector, inside)
        head = (
            "ptr %a, i64 %down_a, i64 %along_a, i64 %rows, ptr %b, i64 %many, ptr %c, i64 %down_c, "
            "i64 %left, i1 %goes_on"
        )
        return self.function("tile", head, code)

    def cells(self, code: Code, sums: list[list[str]], outs: list[str]) -> Any:
        """Where each vector of a tile is in the result, which one of its row it is, and its sum."""
        for out, cells in zip(outs, sums, strict=True):
            for v, cell in enumerate(cells):
                yield self.address(code, out, str(v * self.lanes)), v, cell

    def body(self) -> str:
        code = Code()
        loaded = [
            f"  %{name} = call i64 @fact(ptr %meta, i64 {k})" for k, name in enumerate(_FACTS)
        ]
        loaded.append(f"  %axes = getelementptr i64, ptr %meta, i64 {len(_FACTS)}")
        loaded.append(f"  %room = alloca [{DEEP * self.width} x {self.kind}], align 64")
        parts = code.times("%panels", "%blocks")
        with code.loop("%lo", "%hi") as t:
            which, part = (code.let(f"{op} i64 {t}, {parts}") for op in ("udiv", "urem"))
            p, r = (code.let(f"{op} i64 {part}, %blocks") for op in ("udiv", "urem"))
            a, b, c = code.begins(which, (0, 1, 2))
            column, row = code.times(p, str(self.width)), code.times(r, "%block")
            left = code.let(f"sub i64 %columns, {column}")
            end = code.least(code.sum(row, "%block"), "%rows")
            b, c = self.advance(code, b, column, "%along_b"), self.address(code, c, column)
            with code.loop("0", "%terms", step=DEEP) as k:
                many = code.least(code.let(f"sub i64 %terms, {k}"), str(DEEP))
                from_ = self.advance(code, b, k, "%down_b")
                code.add(
                    f"call void @panel(ptr {from_}, i64 %down_b, i64 %along_b, i64 {many}, "
                    f"i64 {left}, ptr %room)"
                )
                goes_on = code.let(f"icmp sgt i64 {k}, 0")
                terms = self.advance(code, a, k, "%along_a")
                with code.loop(row, end, step=ROWS) as i:
                    rows = code.let(f"sub i64 {end}, {i}")
                    here, to = (
                        self.advance(code, x, i, step)
                        for x, step in ((terms, "%down_a"), (c, "%down_c"))
                    )
                    code.add(
                        f"call void @tile(ptr {here}, i64 %down_a, i64 %along_a, i64 {rows}, "
                        f"ptr %room, i64 {many}, ptr {to}, i64 %down_c, i64 {left}, i1 {goes_on})"
                    )
        head = "ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread"
        return self.function("body", head, code, loaded)
