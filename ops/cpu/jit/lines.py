"""Instructions as LLVM's text."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DType, float16, float32, float64, int64, uint32
from ostinato.ops.jit import scalar
from ostinato.ops.jit.values import HALVES, Lines, Unsupported, Value, bits, held, shift, where

from .llvm import has


class LlvmLines(Lines):
    def kind(self, dtype: DType) -> str:
        return llvm_type(dtype)

    def write(self, instruction: str, dtype: DType) -> Value:
        self.count += 1
        self.text.append(f"  %t{self.count} = {instruction}")
        return Value(self, f"%t{self.count}", dtype)

    def do(self, word: str, dtype: DType, *ins: Value) -> Value:
        if word == "select":
            return self.write(f"select {', '.join(f'{x.kind} {x.name}' for x in ins)}", dtype)
        names = ", ".join(x.name for x in ins)
        return self.write(f"{word} {ins[0].kind} {names}", dtype)

    def convert(self, word: str, x: Value, dtype: DType) -> Value:
        return self.write(f"{word} {x.kind} {x.name} to {llvm_type(dtype)}", dtype)

    def call(self, name: str, dtype: DType, *args: Value) -> Value:
        kind = llvm_type(dtype)
        full = f"@llvm.{name}.f{8 * dtype.itemsize}"
        self.declared.add(f"declare {kind} {full}({', '.join([kind] * len(args))})")
        return self.write(
            f"call {kind} {full}({', '.join(f'{kind} {a.name}' for a in args)})", dtype
        )

    def constant(self, value: Any, dtype: DType) -> Value:
        return Value(self, literal(value, dtype), dtype, value)

    def entry(self, table: str, numbers: Sequence[float], index: Value) -> Value:
        kind = f"[{len(numbers)} x double]"
        text = ", ".join(f"double {literal(v, float64)}" for v in numbers)
        self.declared.add(f"@{table} = private unnamed_addr constant {kind} [{text}]")
        place = self.write(
            f"getelementptr double, ptr @{table}, {index.kind} {index.name}", index.dtype
        )
        return self.write(f"load double, ptr {place.name}, align 8, !llvm.access.group !1", float64)

    def widened_half(self, x: Value) -> Value:
        if not _has_halves():
            raise Unsupported("float16")
        half = self.write(f"bitcast i16 {x.name} to half", float16)
        return self.write(f"fpext half {half.name} to float", float32)

    def narrowed_half(self, x: Value) -> Value:
        if not _has_halves():
            raise Unsupported("float16")
        # or LLVM rounds a double only once, by a function that there is not
        known = where(x != x, math.nan, x)
        half = self.write(f"fptrunc float {known.name} to half", float16)
        made = self.write(f"bitcast half {half.name} to i16", float16)
        sign = shift(Value(self, bits(x).name, uint32), "lshr", 16) & 0x8000
        return self.do("or", float16, made, self.convert("trunc", sign, float16))


def llvm_type(dtype: DType) -> str:
    """As a register holds it; a bool is one bit there."""
    if dtype.kind == "f" and dtype.itemsize > 2:
        return "float" if dtype.itemsize == 4 else "double"
    return "i1" if dtype.kind == "b" else f"i{8 * dtype.itemsize}"


def literal(value: Any, dtype: DType) -> str:
    """A number as LLVM writes it, to the last bit."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype in HALVES:
        return str(int(held(value, dtype).view(np.int16)))
    if dtype.kind != "f":
        return str(int(value))
    return "0x" + struct.pack(">d", float(held(value, dtype))).hex().upper()


@lru_cache(1)
def _has_halves() -> bool:
    """Whether this processor converts float16."""
    return has("f16c") or not has("sse2")


def number_at(lines: Lines, text: list[str], name: str, first: str, address: str) -> Value:
    """The number at an address: the first one's, and a byte for each element."""
    text += [
        f"  %{name}_a = ptrtoint ptr {address} to i64",
        f"  %{name}_f = ptrtoint ptr {first} to i64",
        f"  %{name}_n = load i64, ptr {first}, align 8, !llvm.access.group !1",
        f"  %{name}_d = sub i64 %{name}_a, %{name}_f",
        f"  %{name} = add i64 %{name}_n, %{name}_d",
    ]
    return Value(lines, f"%{name}", int64)


def can_lower(name: str, dtypes: tuple[DType, ...], out: DType) -> bool:
    """Whether kernels can have an operation on these dtypes."""
    return scalar.can_lower(name, dtypes, out, LlvmLines)


def can_square(dtypes: tuple[DType, ...], out: DType) -> bool:
    return can_lower("square", dtypes, out)
