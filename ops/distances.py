"""Squared distances of all pairs from products: |x|² + |c|² - 2 x·c, which loses digits where a
distance is short beside the lengths. What lost more than three bits is made anew from differences,
so each result is as good as a sum of squares, but for these three bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ostinato.errors import DTypeError

from .core.index import Indices
from .core.parameters import unfit
from .core.registry import Params, Specs, op
from .core.spec import DType, Spec, float32, float64
from .cpu.jit.emitter import Code, loop_facts
from .cpu.jit.llvm import function_of, vector_bits, why_not
from .cpu.jit.parallel import around
from .cpu.jit.values import literal, llvm_type
from .cpu.kernels.gemm import GRAIN, _loaded

BLOCK = 64  # columns that are looked at together
NEAR = 1 / 8  # of the squared lengths: a shorter distance is made from differences


def _indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    return Indices((("i", "j"), ("i",), ("j",), ("i", None), ("j", None)), (("i", "j"),))


def _kernel(xp: Any, out: Any, products: Any, a: Any, b: Any, x: Any, c: Any) -> None:
    size = a[:, None] + b
    made = size - 2 * products
    far = made > size * NEAR
    xp.copyto(out, made)
    for i in range(len(x)):
        (near,) = xp.nonzero(~far[i])
        out[i, near] = xp.square(x[i] - c[near]).sum(-1)


def _native(arrays: Sequence[Any], threads: int, **_: Any) -> Callable[..., None] | None:
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


def _cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    return 4.0 * outs[0].size, float(sum(s.nbytes for s in (*ins, *outs)))


# What the planner makes of differences that are squared and summed.
def _rule(products: Spec, a: Spec, b: Spec, x: Spec, c: Spec) -> Spec:
    ins = (products, a, b, x, c)
    shapes = products.shape, (*a.shape, *b.shape), (*x.shape[:1], *c.shape[:1])
    square = len(set(shapes)) == 1 and [s.ndim for s in ins] == [2, 1, 1, 2, 2]
    if not square or x.shape[1] != c.shape[1]:
        raise unfit("pair_distances", ins, "lengths of rows, of columns, and both tables")
    if len({s.dtype for s in ins}) > 1 or products.dtype not in (float32, float64):
        raise unfit("pair_distances", ins, "float32 or float64 everywhere", DTypeError)
    return products.bare


op(
    "pair_distances",
    infer=_rule,
    made_by="passes",
    indices=_indices,
    kernel=_kernel,
    native=_native,
    cost=_cost,
    overwrite=(0,),
)


# -- machine code --------------------------------------------------------------------------
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
        self.near = literal(NEAR, dtype)

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
        arrays = _loaded("%data", 0, ("products", "a", "b", "x", "c", "out"), "ptr")
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
        facts = [*arrays, *_loaded("%meta", 0, _FACTS)]
        text = [head, "entry:", *code.entry, *facts, *code.lines.text, "  ret void", "}"]
        return "\n".join(text)
