"""LLVM text with loops, and how kernels combine values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from ostinato.ops.core.spec import DType, bool_, int64, real_of
from ostinato.ops.cpu.jit.lines import LlvmLines, llvm_type
from ostinato.ops.jit.pairs import Pair
from ostinato.ops.jit.values import Value


class Code:
    """LLVM text with loops. Counters and totals are in memory, which LLVM turns into registers."""

    def __init__(self) -> None:
        self.lines = LlvmLines()
        self.entry: list[str] = []
        self.names = 0
        self.stored = ""  # what is known of all stores

    def add(self, text: str) -> None:
        self.lines.text.append(f"  {text}")

    def name(self, prefix: str = "v") -> str:
        self.names += 1
        return f"%{prefix}_{self.names}"

    def let(self, text: str, prefix: str = "v") -> str:
        name = self.name(prefix)
        self.add(f"{name} = {text}")
        return name

    def fetch(self, address: str) -> None:
        """Ask memory for what will be read soon, into the second cache."""
        self.lines.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.add(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 2, i32 1)")

    def cell(self, dtype: DType) -> str:
        name = self.name("cell")
        kind = memory_type(dtype) if dtype.kind == "c" else llvm_type(dtype)
        self.entry.append(f"  {name} = alloca {kind}")
        return name

    def integers(self, count: int) -> str:
        """Memory for so many integers."""
        name = self.name("room")
        self.entry.append(f"  {name} = alloca [{count} x i64]")
        return name

    def put(self, cell: str, value: Value) -> None:
        if isinstance(value, Pair):
            self.put(cell, value.real)
            self.put(self.second(cell, value.real.dtype), value.imag)
            return
        self.add(f"store {value.kind} {value.name}, ptr {cell}")

    def second(self, address: str, dtype: DType) -> str:
        """Where the imaginary part is of what begins here."""
        return self.let(f"getelementptr {llvm_type(dtype)}, ptr {address}, i64 1", "a")

    def get(self, cell: str, dtype: DType) -> Value:
        if dtype.kind == "c":
            part = real_of(dtype)
            return Pair(self.get(cell, part), self.get(self.second(cell, part), part))
        return Value(self.lines, self.let(f"load {llvm_type(dtype)}, ptr {cell}"), dtype)

    # -- elements in memory, which loops with vectors promise to read and write independently
    def load(self, address: str, dtype: DType, known: str = "") -> Value:
        """An element; `known`: what else is known of who reads it."""
        if dtype.kind == "c":
            part, second = real_of(dtype), self.second(address, real_of(dtype))
            return Pair(self.load(address, part, known), self.load(second, part, known))
        facts = f"align {dtype.itemsize}, !llvm.access.group !1{known}"
        name = self.let(f"load {memory_type(dtype)}, ptr {address}, {facts}")
        if dtype == bool_:
            name = self.let(f"icmp ne i8 {name}, 0")
        return Value(self.lines, name, dtype)

    def store(self, value: Value, address: str) -> None:
        if isinstance(value, Pair):
            self.store(value.real, address)
            self.store(value.imag, self.second(address, value.real.dtype))
            return
        name, kind = value.name, value.kind
        if value.dtype == bool_:
            name, kind = self.let(f"zext i1 {name} to i8"), "i8"
        size = value.dtype.itemsize
        facts = f"align {size}, !llvm.access.group !1{self.stored}"
        self.add(f"store {kind} {name}, ptr {address}, {facts}")

    @contextlib.contextmanager
    def loop(
        self,
        begin: str,
        end: str,
        step: int | str = 1,
        lanes: int = 0,
        vectors: int = 0,
        kept: bool = False,
    ) -> Iterator[str]:
        """A loop while the index is below the end. `lanes` promises that turns are independent, of
        elements of so many bytes, or FREE; `vectors` is how many of them are one turn, 1 or 2, where
        LLVM would take more than there are; `kept`: of so few turns that LLVM would rather write them
        out than make vectors of them."""
        n = self.names = self.names + 1
        cell, i = self.cell(int64), f"%i_{n}"
        self.add(f"store i64 {begin}, ptr {cell}")
        self.add(f"br label %head_{n}")
        self.lines.text.append(f"head_{n}:")
        self.add(f"{i} = load i64, ptr {cell}")
        self.add(f"%more_{n} = icmp slt i64 {i}, {end}")
        self.add(f"br i1 %more_{n}, label %turn_{n}, label %done_{n}")
        self.lines.text.append(f"turn_{n}:")
        yield i
        self.add(f"%next_{n} = add nsw i64 {i}, {step}")
        self.add(f"store i64 %next_{n}, ptr {cell}")
        number = lanes if lanes in (0, FREE) else _WIDTHS.index(lanes) + 3 + 10 * vectors
        number += KEPT if kept and number not in (0, FREE) else 0
        fact = f", !llvm.loop !{number}" if number else ""
        self.add(f"br label %head_{n}{fact}")
        self.lines.text.append(f"done_{n}:")

    @contextlib.contextmanager
    def when(self, condition: str) -> Iterator[None]:
        n = self.names = self.names + 1
        self.add(f"br i1 {condition}, label %then_{n}, label %after_{n}")
        self.lines.text.append(f"then_{n}:")
        yield
        self.add(f"br label %after_{n}")
        self.lines.text.append(f"after_{n}:")

    @contextlib.contextmanager
    def until(self) -> Iterator[Callable[[str], None]]:
        """A loop that ends where it is told that something holds."""
        n = self.names = self.names + 1
        self.add(f"br label %again_{n}")
        self.lines.text.append(f"again_{n}:")

        def ends(condition: str) -> None:
            k = self.names = self.names + 1
            self.add(f"br i1 {condition}, label %over_{n}, label %on_{k}")
            self.lines.text.append(f"on_{k}:")

        yield ends
        self.add(f"br label %again_{n}")
        self.lines.text.append(f"over_{n}:")

    def clear(self, at: str, bytes_: str) -> None:
        self.lines.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        self.add(f"call void @llvm.memset.p0.i64(ptr {at}, i8 0, i64 {bytes_}, i1 false)")

    def sum(self, *terms: str) -> str:
        found = terms[0]
        for t in terms[1:]:
            found = self.let(f"add nsw i64 {found}, {t}") if t != "0" else found
        return found

    def times(self, a: str, b: str) -> str:
        return self.let(f"mul nsw i64 {a}, {b}")

    def least(self, a: str, b: str) -> str:
        less = self.let(f"icmp slt i64 {a}, {b}")
        return self.let(f"select i1 {less}, i64 {a}, i64 {b}")

    # -- squares of vectors
    def inside(self, many: str, lanes: int) -> str:
        """A mask of so many first lanes, with its type."""
        counts = f"<{lanes} x i64>"
        one = self.let(f"insertelement {counts} poison, i64 {many}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        all_ = self.let(f"shufflevector {counts} {one}, {counts} poison, {zeros}")
        numbers = ", ".join(f"i64 {k}" for k in range(lanes))
        return f"<{lanes} x i1> {self.let(f'icmp sgt {counts} {all_}, <{numbers}>')}"

    def masked_load(self, at: str, vector: str, mask: str) -> str:
        """Load a vector where the mask is true, zeros elsewhere."""
        name, size, flags = _masked("load", vector)
        self.lines.declared.add(f"declare {vector} {name}(ptr, i32, {flags}, {vector})")
        return self.let(
            f"call {vector} {name}(ptr {at}, i32 {size}, {mask}, {vector} zeroinitializer)"
        )

    def masked_store(self, made: str, at: str, vector: str, mask: str) -> None:
        name, size, flags = _masked("store", vector)
        self.lines.declared.add(f"declare void {name}({vector}, ptr, i32, {flags})")
        self.add(f"call void {name}({vector} {made}, ptr {at}, i32 {size}, {mask})")

    # -- lines
    def begins(self, turn: str, arrays: Sequence[int]) -> list[str]:
        """Where these arrays begin at a turn over `%dims` axes, about which `places` finds extents and steps
        at `%axes`."""
        ats = self.name("at")
        self.entry.append(f"  {ats} = alloca [{len(arrays)} x ptr]")
        slots = [self.let(f"getelementptr ptr, ptr {ats}, i64 {k}") for k in range(len(arrays))]
        for slot, array in zip(slots, arrays, strict=True):
            base = self.let(f"call ptr @array(ptr %data, i64 {array})")
            self.add(f"store ptr {base}, ptr {slot}")
        self.add(f"call void @places(ptr %axes, i64 %dims, i64 {turn}, ptr {ats})")
        return [self.let(f"load ptr, ptr {slot}") for slot in slots]

    def turned(self, rows: list[str], vector: str, parts: int = 1) -> list[str]:
        """A square of vectors transposed, whose elements may have several parts."""
        step = 1
        while step < len(rows):
            rows = self.exchanged(rows, step, len(rows), vector, parts)
            step *= 2
        return rows

    def exchanged(
        self, rows: list[str], step: int, size: int, vector: str, parts: int = 1
    ) -> list[str]:
        """Pairs of rows that are `step` apart exchange blocks of so many elements."""
        found = list(rows)
        upper = [k if not k & step else size + k - step for k in range(size)]
        lower = [k + step if not k & step else size + k for k in range(size)]
        for k in range(size):
            if not k & step:
                a, b = rows[k], rows[k | step]
                for target, order in ((k, upper), (k | step, lower)):
                    places = [parts * n + part for n in order for part in range(parts)]
                    mask = ", ".join(f"i32 {n}" for n in places)
                    found[target] = self.let(
                        f"shufflevector {vector} {a}, {vector} {b}, <{len(places)} x i32> <{mask}>"
                    )
        return found


def loaded(base: str, start: int, names: Sequence[str], kind: str = "i64") -> list[str]:
    """Names for what stands in a row in memory."""
    lines = []
    for k, name in enumerate(names, start):
        lines.append(f"  %{name}_at = getelementptr {kind}, ptr {base}, i64 {k}")
        lines.append(f"  %{name} = load {kind}, ptr %{name}_at")
    return lines


def _masked(word: str, vector: str) -> tuple[str, int, str]:
    """LLVM's function for such vectors, the bytes of their elements, and the type of masks."""
    lanes, kind = vector[1:-1].split(" x ")
    size = {"float": 4, "double": 8}.get(kind) or int(kind[1:]) // 8
    letter = "i" if kind[0] == "i" else "f"
    return f"@llvm.masked.{word}.v{lanes}{letter}{8 * size}.p0", size, f"<{lanes} x i1>"


@lru_cache(4)
def places(many: int) -> str:
    """A function by which so many addresses go on to where a turn begins, given the axes' extents and steps;
    for texts with `TABLES`."""
    lines = list[str]()
    for k in range(many):
        lines += [
            f"  %step{k} = call i64 @fact(ptr %about, i64 {k + 1})",
            f"  %on{k} = mul i64 %i, %step{k}",
            f"  %at{k} = getelementptr ptr, ptr %at, i64 {k}",
            f"  %was{k} = load ptr, ptr %at{k}",
            f"  %is{k} = getelementptr i8, ptr %was{k}, i64 %on{k}",
            f"  store ptr %is{k}, ptr %at{k}",
        ]
    return _PLACES.replace("MANY", str(many + 1)).replace("  ADDRESSES", "\n".join(lines))


_PLACES = """
define internal void @places(ptr %axes, i64 %dims, i64 %turn, ptr %at) {
entry:
  br label %head
head:
  %d = phi i64 [%dims, %entry], [%d1, %axis]
  %rest = phi i64 [%turn, %entry], [%above, %axis]
  %some = icmp sgt i64 %d, 0
  br i1 %some, label %axis, label %end
axis:
  %d1 = sub i64 %d, 1
  %before = mul i64 %d1, MANY
  %about = getelementptr i64, ptr %axes, i64 %before
  %extent = call i64 @fact(ptr %about, i64 0)
  %i = urem i64 %rest, %extent
  %above = udiv i64 %rest, %extent
  ADDRESSES
  br label %head
end:
  ret void
}
"""


def memory_type(dtype: DType) -> str:
    if dtype.kind == "c":
        return f"[2 x {llvm_type(real_of(dtype))}]"
    return "i8" if dtype == bool_ else llvm_type(dtype)


_WIDTHS = (1, 2, 4, 8, 16)
KEPT = 40  # from the facts of a loop to those of one that is not unrolled before it has vectors
FREE = 33  # a loop of whose vectors LLVM says how wide they are


def loop_facts(bits: int) -> str:
    """Write the metadata of loops: whole vectors of the elements that they make."""
    lines = [f"!{FREE} = distinct !{{!{FREE}, !2}}"]
    for k, size in enumerate(_WIDTHS):
        lines += [
            f"!{k + 3} = distinct !{{!{k + 3}, !2, !{k + 8}}}",
            f'!{k + 8} = !{{!"llvm.loop.vectorize.width", i32 {bits // 8 // size}}}',
        ]
        for vectors in (1, 2):
            this, count = k + 3 + 10 * vectors, 8 + 10 * vectors
            lines.append(f"!{this} = distinct !{{!{this}, !2, !{k + 8}, !{count}}}")
    for k in range(len(_WIDTHS)):
        this = k + 3 + KEPT
        lines.append(f"!{this} = distinct !{{!{this}, !2, !{k + 8}, !{KEPT + 8}}}")
    lines.append(f'!{KEPT + 8} = !{{!"llvm.loop.unroll.disable"}}')
    for vectors in (1, 2):
        fact = f'!"llvm.loop.interleave.count", i32 {vectors}'
        lines.append(f"!{8 + 10 * vectors} = !{{{fact}}}")
    return "\n".join(lines)
