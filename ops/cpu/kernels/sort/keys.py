"""Keys: whole numbers in the order of the numbers that they are made of, alone or with the place where each
was; and how machine code reads and writes them (radix.py, networks.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ostinato.ops.core.spec import DType
from ostinato.ops.cpu.jit.emitter import Code
from ostinato.ops.cpu.jit.llvm import vector_bits

DIGIT = 256
# What modules are told about lines; behind it each other axis, with its extent and the steps of both arrays.
LINES = (
    *("turns", "threads", "n", "first", "step_x", "step_out", "start", "room"),
    *("lines", "dims"),
)
BODY = "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {\nentry:"
END = "define internal void @finish(ptr %data, ptr %meta) {\nentry:"
NOTHING = f"{END}\n  ret void\n}}"


class KeyKind(NamedTuple):
    """What a module puts in order."""

    dtype: DType
    places: bool  # whether places are made, or the numbers themselves
    descending: bool
    dense: bool  # whether a line's numbers lie side by side, and so do its results
    selects: bool  # whether only the first ones are wanted

    @property
    def bits(self) -> int:
        return 8 * self.dtype.itemsize

    @property
    def item(self) -> int:
        """Bytes of a key, with its place."""
        return (16 if self.bits == 64 else 8) if self.places else self.dtype.itemsize

    @property
    def lanes(self) -> int:
        """Lines side by side."""
        return vector_bits() // (64 if self.places or self.bits == 64 else 32)

    @property
    def row(self) -> int:
        """Bytes of a key of each of these, with its place."""
        return self.lanes * max(self.item, 4)

    def shift(self, digit: int) -> int:
        """The bit where it begins; a place is below its key, or beside it."""
        return 8 * digit + (32 if self.places and self.bits < 64 else 0)


class SortKeys:
    """What modules that put keys in order are written with."""

    def __init__(self, kind: KeyKind) -> None:
        self.kind = kind
        self.key = f"i{kind.bits}"
        self.one = "i64" if kind.places else self.key  # what holds a key with its place, or a half
        self.declared: set[str] = set()

    def function(self, head: str, code: Code, result: str = "void") -> str:
        self.declared |= code.lines.declared
        return "\n".join([head, *code.entry, *code.lines.text, f"  ret {result}", "}"])

    # -- numbers and keys
    def number(self, code: Code, base: str, index: str, step: str, size: int) -> str:
        """Where it is."""
        if self.kind.dense:
            return code.let(f"getelementptr i{8 * size}, ptr {base}, i64 {index}")
        return code.let(f"getelementptr i8, ptr {base}, i64 {code.times(index, step)}")

    def key_of(self, code: Code, at: str) -> str:
        kind, bits, dtype = self.key, self.kind.bits, self.kind.dtype
        top = -(1 << (bits - 1))
        made = code.let(f"load {kind}, ptr {at}, align {bits // 8}")
        if dtype.kind == "i":
            made = code.let(f"xor {kind} {made}, {top}")
        elif dtype.kind not in "ub":
            size = code.let(f"and {kind} {made}, {-1 - top}")
            if self.kind.places:  # both zeros are one number
                zero = code.let(f"icmp eq {kind} {size}, 0")
                made = code.let(f"select i1 {zero}, {kind} 0, {kind} {made}")
            sign = code.let(f"ashr {kind} {made}, {bits - 1}")
            turned = code.let(f"xor {kind} {made}, {code.let(f'or {kind} {sign}, {top}')}")
            nan = code.let(f"icmp ugt {kind} {size}, {_bits(dtype, np.inf)}")
            last = top | _bits(dtype, np.nan)
            made = code.let(f"select i1 {nan}, {kind} {last}, {kind} {turned}")
        return code.let(f"xor {kind} {made}, -1") if self.kind.descending else made

    def number_of(self, code: Code, key: str) -> str:
        kind, bits, dtype = self.key, self.kind.bits, self.kind.dtype
        top = -(1 << (bits - 1))
        key = code.let(f"xor {kind} {key}, -1") if self.kind.descending else key
        if dtype.kind == "i":
            return code.let(f"xor {kind} {key}, {top}")
        if dtype.kind in "ub":
            return key
        below = code.let(f"xor {kind} {code.let(f'ashr {kind} {key}, {bits - 1}')}, -1")
        return code.let(f"xor {kind} {key}, {code.let(f'or {kind} {below}, {top}')}")

    def read(self, code: Code, at: str, index: str) -> list[str]:
        """A number's key, with its place if that is wanted."""
        key = self.key_of(code, at)
        if not self.kind.places:
            return [key]
        if self.kind.bits == 64:
            return [key, index]
        wide = code.let(f"zext {self.key} {key} to i64")
        return [code.let(f"or i64 {code.let(f'shl i64 {wide}, 32')}, {index}")]

    def write(self, code: Code, found: Sequence[str], base: str, index: str) -> None:
        """The number, or its place."""
        if self.kind.places:
            last = found[-1]
            made = last if len(found) == 2 else code.let(f"and i64 {last}, {(1 << 32) - 1}")
            to = self.number(code, base, index, "%step_out", 8)
            code.add(f"store i64 {made}, ptr {to}, align 8")
        else:
            size = self.kind.dtype.itemsize
            to = self.number(code, base, index, "%step_out", size)
            made = self.number_of(code, found[0])
            code.add(f"store {self.key} {made}, ptr {to}, align {size}")

    # -- keys in memory
    def addresses(self, code: Code, base: str, index: str) -> list[str]:
        size = self.kind.item
        first = code.let(f"getelementptr i{8 * size}, ptr {base}, i64 {index}")
        return (
            [first, code.let(f"getelementptr i64, ptr {first}, i64 1")] if size == 16 else [first]
        )

    def load(self, code: Code, base: str, index: str) -> list[str]:
        return [
            code.let(f"load {self.one}, ptr {at}, align 1")
            for at in self.addresses(code, base, index)
        ]

    def store(self, code: Code, found: Sequence[str], base: str, index: str) -> None:
        for one, at in zip(found, self.addresses(code, base, index), strict=True):
            code.add(f"store {self.one} {one}, ptr {at}, align 1")

    def digit(self, code: Code, found: Sequence[str], shift: str, most: int = DIGIT) -> str:
        """Extract a digit of a key, from this bit on."""
        one = found[0]
        if self.one != "i64":
            one = code.let(f"zext {self.one} {one} to i64")
        return code.let(f"and i64 {code.let(f'lshr i64 {one}, {shift}')}, {most - 1}")

    # -- lines
    def begin(self) -> Code:
        """Begins with what modules know about lines."""
        code = Code()
        for k, name in enumerate(LINES):
            code.add(f"%{name} = call i64 @fact(ptr %meta, i64 {k})")
        code.add(f"%axes = getelementptr i64, ptr %meta, i64 {len(LINES)}")
        code.add(f"%own = add i64 %start, {code.times('%thread', '%room')}")
        return code


def _bits(dtype: DType, number: float) -> int:
    return int(np.array(number, dtype).view(f"u{dtype.itemsize}"))
