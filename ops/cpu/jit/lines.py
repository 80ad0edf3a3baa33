"""Instructions as LLVM's text."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DType, bool_, float16, float32, float64, int64, uint32
from ostinato.ops.jit import scalar
from ostinato.ops.jit.pairs import Pair, pair_of
from ostinato.ops.jit.values import (
    HALVES,
    Lines,
    Step,
    Unsupported,
    Value,
    bits,
    held,
    shift,
    where,
)

from .llvm import has, vector_bits


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
        return self.write(f"{word} {x.kind} {x.name} to {self.kind(dtype)}", dtype)

    def suffix(self, dtype: DType) -> str:
        """How the names of intrinsics end."""
        return f"{'f' if dtype.kind == 'f' else 'i'}{_bits(dtype)}"

    def call(self, name: str, dtype: DType, *args: Value) -> Value:
        kind = self.kind(dtype)
        full = f"@llvm.{name}.{self.suffix(dtype)}"
        self.declared.add(f"declare {kind} {full}({', '.join([kind] * len(args))})")
        return self.write(
            f"call {kind} {full}({', '.join(f'{kind} {a.name}' for a in args)})", dtype
        )

    def constant(self, value: Any, dtype: DType) -> Value:
        if dtype.kind == "c":
            return pair_of(self, complex(value), dtype)
        return Value(self, literal(value, dtype), dtype, value)

    def pair(self, real: Value, imag: Value) -> Value:
        return Pair(real, imag)

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

    def repeat(
        self, name: str, step: Step, state: Sequence[Value], given: Sequence[Value], most: int
    ) -> Value:
        """A function of one element, and one of a vector of them, which the loop around may call."""
        lanes = vector_bits() // 64
        kinds = [x.kind for x in (*state, *given)]
        facts = f"noinline nounwind willreturn {_PURE}"
        self.declared |= _repeated(LlvmLines(), name, step, state, given, most, facts)
        if lanes > 1:
            wide = f"{name}_{lanes}"
            self.declared |= _repeated(VectorLines(lanes), wide, step, state, given, most, facts)
            variant = f"_ZGV_LLVM_N{lanes}{'v' * len(kinds)}_{name}({wide})"
            facts += f' "vector-function-abi-variant"="{variant}"'
        names = ", ".join(f"{x.kind} {x.name}" for x in (*state, *given))
        return self.write(f"call {kinds[0]} @{name}({names}) {facts}", state[0].dtype)


class VectorLines(LlvmLines):
    """The same of a few elements at a time."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.lanes = lanes

    def kind(self, dtype: DType) -> str:
        return f"<{self.lanes} x {llvm_type(dtype)}>"

    def suffix(self, dtype: DType) -> str:
        return f"v{self.lanes}{super().suffix(dtype)}"

    def constant(self, value: Any, dtype: DType) -> Value:
        return Value(self, f"splat ({llvm_type(dtype)} {literal(value, dtype)})", dtype, value)


_PURE = "memory(none)"


def _repeated(
    lines: LlvmLines,
    name: str,
    step: Step,
    state: Sequence[Value],
    given: Sequence[Value],
    most: int,
    facts: str,
) -> set[str]:
    """`Lines.repeat` as a function, and what that needs; elements of a vector that are done keep
    what they have."""
    now = [Value(lines, f"%s{n}", x.dtype) for n, x in enumerate(state)]
    go, after = step(now, [Value(lines, f"%g{n}", x.dtype) for n, x in enumerate(given)])
    bits, wide = lines.kind(bool_), isinstance(lines, VectorLines)
    takes = [f"{x.kind} %b{n}" for n, x in enumerate(now)]
    takes += [f"{lines.kind(x.dtype)} %g{n}" for n, x in enumerate(given)]
    code = ["entry:", "  br label %turn", "turn:", "  %k = phi i64 [0, %entry], [%k1, %turn]"]
    code += [f"  %on = phi {bits} [splat (i1 true), %entry], [%on1, %turn]"] if wide else []
    code += [f"  %s{n} = phi {x.kind} [%b{n}, %entry], [%n{n}, %turn]" for n, x in enumerate(now)]
    code += lines.text
    on = "%on" if wide else "true"
    for n, (old, new) in enumerate(zip(now, after, strict=True)):
        code.append(f"  %n{n} = select {bits} {on}, {old.kind} {new.name}, {old.kind} {old.name}")
    any_ = go.name
    if wide:
        reduce = f"@llvm.vector.reduce.or.{lines.suffix(bool_)}"
        lines.declared.add(f"declare i1 {reduce}({bits})")
        code.append(f"  %on1 = and {bits} %on, {go.name}")
        code.append(f"  %any = call i1 {reduce}({bits} %on1)")
        any_ = "%any"
    code += [
        "  %k1 = add i64 %k, 1",
        f"  %left = icmp ult i64 %k1, {most}",
        f"  %more = and i1 %left, {any_}",
        "  br i1 %more, label %turn, label %end",
        "end:",
        f"  ret {now[0].kind} %n0",
    ]
    body = "\n".join(code)
    # as LLVM gives functions of the module's own other operands, and drops those not called yet
    head = f"define weak_odr hidden {now[0].kind} @{name}({', '.join(takes)}) {facts}"
    return {*lines.declared, f"{head} {{\n{body}\n}}"}


def llvm_type(dtype: DType) -> str:
    """As a register holds it; a bool is one bit there, and a complex number needs two."""
    if dtype.kind == "c":
        raise Unsupported("complex numbers in one register")
    if dtype.kind == "f" and dtype.itemsize > 2:
        return "float" if dtype.itemsize == 4 else "double"
    return "i1" if dtype.kind == "b" else f"i{8 * dtype.itemsize}"


def _bits(dtype: DType) -> int:
    return 1 if dtype.kind == "b" else 8 * dtype.itemsize


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
