"""Elements of arrays as kernels of linear algebra read and write them: real and complex numbers at so many
bytes from each other."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.spec import DType, real_of
from ostinato.ops.cpu.jit.emitter import Code, loop_facts, memory_type, places
from ostinato.ops.cpu.jit.llvm import vector_bits
from ostinato.ops.cpu.jit.parallel import TABLES, around
from ostinato.ops.jit.pairs import Pair
from ostinato.ops.jit.values import Value


class ElementCode:
    """Those of one dtype, in the text of a kernel."""

    def __init__(self, code: Code, dtype: DType) -> None:
        self.code, self.dtype = code, dtype
        self.item, self.part = dtype.itemsize, real_of(dtype).itemsize

    def advance(self, base: str, count: str, step: str) -> str:
        """An address so many steps of bytes on."""
        return self.code.let(f"getelementptr i8, ptr {base}, i64 {self.code.times(count, step)}")

    def load(self, at: str, dtype: DType | None = None) -> Value:
        dtype = dtype or self.dtype
        if dtype.kind == "c":
            part = real_of(dtype)
            return Pair(self.load(at, part), self.load(self.code.second(at, part), part))
        fact = f"align {dtype.itemsize}, !llvm.access.group !1"
        found = self.code.let(f"load {memory_type(dtype)}, ptr {at}, {fact}")
        return Value(self.code.lines, found, dtype)

    def store(self, x: Value, at: str) -> None:
        if isinstance(x, Pair):
            self.store(x.real, at)
            self.store(x.imag, self.code.second(at, x.real.dtype))
            return
        fact = f"align {x.dtype.itemsize}, !llvm.access.group !1"
        self.code.add(f"store {x.kind} {x.name}, ptr {at}, {fact}")


def text_of(code: Code, facts: Sequence[str], arrays: int, more: Sequence[str] = ()) -> str:
    """A kernel of so many arrays, whose turns this does; the facts by their names, then those of axes."""
    entry = [f"  %{name} = call i64 @fact(ptr %meta, i64 {k})" for k, name in enumerate(facts)]
    entry += [f"  %axes = getelementptr i64, ptr %meta, i64 {len(facts)}", *more]
    head = "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {"
    finish = "define internal void @finish(ptr %data, ptr %meta) {\n  ret void\n}"
    body = "\n".join([head, "entry:", *code.entry, *entry, *code.lines.text, "  ret void", "}"])
    about = [around(arrays), loop_facts(vector_bits())]
    return "\n".join([TABLES, places(arrays), *sorted(code.lines.declared), body, finish, *about])
