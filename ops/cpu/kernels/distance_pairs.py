"""Squared distances of all pairs, made of products in place (ops/array/distances.py): what lost digits is made
anew from differences, block by block while it is in cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.array.distances import CANCELLING_SHARE
from ostinato.ops.core.spec import DType
from ostinato.ops.cpu.jit.emitter import Code, loaded, loop_facts
from ostinato.ops.cpu.jit.lines import literal, llvm_type
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits, why_not
from ostinato.ops.cpu.jit.parallel import around

from .gemm import GRAIN

BLOCK = 64  # columns that are looked at together


def pair_distances(arrays: Sequence[Any], threads: int, **_: Any) -> Callable[..., None] | None:
    products, a, b, x, c, out = arrays
    item = out.itemsize
    rows = (products, b, x, c, out)
    if why_not() or out.size == 0 or any(r.strides[-1] != item for r in rows):
        return None
    count, columns = out.shape
    threads = max(1, min(threads, out.size // GRAIN * 8, count))
    facts = [count, threads, columns, x.shape[1]]
    facts += [r.strides[0] for r in (products, a, x, c, out)]
    return function_of(_text(out.dtype, vector_bits()), np.array(facts, np.int64))


_FACTS = (
    *("turns", "threads", "columns", "depth"),
    *("step_products", "step_a", "step_x", "step_c", "step_out"),
)
_ALONE = "!llvm.access.group !1"  # what one turn touches is no other's


@lru_cache(8)
def _text(dtype: DType, bits: int) -> str:
    writer = _Writer(dtype)
    finish = "define internal void @finish(ptr %data, ptr %meta) {\n  ret void\n}"
    functions = [writer.direct(), writer.body(), finish]
    return "\n".join([*functions, around(6), loop_facts(bits)])


class _Writer:
    """The functions of the kernel for one dtype."""

    def __init__(self, dtype: DType) -> None:
        self.kind, self.item = llvm_type(dtype), dtype.itemsize
        self.near = literal(CANCELLING_SHARE, dtype)

    def real(self, code: Code, text: str) -> str:
        operation, _, rest = text.partition(" ")
        return code.let(f"{operation} {self.kind} {rest}")

    def load(self, code: Code, base: str, index: str, alone: bool = False) -> str:
        at = code.let(f"getelementptr {self.kind}, ptr {base}, i64 {index}")
        return code.let(f"load {self.kind}, ptr {at}{', ' + _ALONE if alone else ''}")

    def store(self, code: Code, value: str, base: str, index: str, alone: bool = False) -> None:
        at = code.let(f"getelementptr {self.kind}, ptr {base}, i64 {index}")
        code.add(f"store {self.kind} {value}, ptr {at}{', ' + _ALONE if alone else ''}")

    def row(self, code: Code, base: str, i: str, step: str) -> str:
        return code.let(f"getelementptr i8, ptr {base}, i64 {code.times(i, step)}")

    def is_near(self, code: Code, made: str, size: str) -> str:
        """Also what is no number, or was too large for one."""
        limit = self.real(code, f"fmul {size}, {self.near}")
        return code.let(f"fcmp ule {self.kind} {made}, {limit}")

    def direct(self) -> str:
        code = Code()
        code.entry.append(f"  %total = alloca {self.kind}")
        code.add(f"store {self.kind} 0.0, ptr %total")
        with code.loop("0", "%depth") as d:
            apart = self.real(code, f"fsub {self.load(code, '%x', d)}, {self.load(code, '%c', d)}")
            square = self.real(code, f"fmul {apart}, {apart}")
            before = code.let(f"load {self.kind}, ptr %total")
            sum_ = code.let(f"fadd reassoc contract {self.kind} {before}, {square}")
            code.add(f"store {self.kind} {sum_}, ptr %total")
        found = code.let(f"load {self.kind}, ptr %total")
        head = (
            f"define internal {self.kind} @direct(ptr %x, ptr %c, i64 %depth) noinline {{\nentry:"
        )
        tail = [f"  ret {self.kind} {found}", "}"]
        return "\n".join([head, *code.entry, *code.lines.text, *tail])

    def body(self) -> str:
        """Rows, in blocks of columns; a block with something near is gone through once more."""
        code = Code()
        arrays = loaded("%data", 0, ("products", "a", "b", "x", "c", "out"), "ptr")
        code.entry.append("  %count = alloca i64")
        with code.loop("%lo", "%hi") as i:
            length = self.load(code, self.row(code, "%a", i, "%step_a"), "0")
            products = self.row(code, "%products", i, "%step_products")
            x, out = self.row(code, "%x", i, "%step_x"), self.row(code, "%out", i, "%step_out")
            with code.loop("0", "%columns", step=BLOCK) as begin:
                end = code.least(code.sum(begin, str(BLOCK)), "%columns")
                code.add("store i64 0, ptr %count")
                with code.loop(begin, end, lanes=self.item) as j:
                    size = self.real(code, f"fadd {length}, {self.load(code, '%b', j, True)}")
                    product = self.load(code, products, j, True)
                    twice = self.real(code, f"fadd {product}, {product}")
                    made = self.real(code, f"fsub {size}, {twice}")
                    self.store(code, made, out, j, True)
                    one = code.let(f"zext i1 {self.is_near(code, made, size)} to i64")
                    count = code.sum(code.let("load i64, ptr %count"), one)
                    code.add(f"store i64 {count}, ptr %count")
                some = code.let(f"icmp ne i64 {code.let('load i64, ptr %count')}, 0")
                with code.when(some), code.loop(begin, end) as j:
                    size = self.real(code, f"fadd {length}, {self.load(code, '%b', j)}")
                    with code.when(self.is_near(code, self.load(code, out, j), size)):
                        c = self.row(code, "%c", j, "%step_c")
                        anew = code.let(f"call {self.kind} @direct(ptr {x}, ptr {c}, i64 %depth)")
                        self.store(code, anew, out, j)
        head = "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {"
        facts = [*arrays, *loaded("%meta", 0, _FACTS)]
        text = [head, "entry:", *code.entry, *facts, *code.lines.text, "  ret void", "}"]
        return "\n".join(text)
