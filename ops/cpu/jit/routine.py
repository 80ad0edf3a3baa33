"""Functions of machine code that are no kernels of arrays: numbers, memory, loops and calls of C.

    add = Routine(int64, x=[float32], count=int64, by=float32)  # a list: memory of such numbers
    x, count, by = add.given
    with add.each(count) as k:
        x[k] = x[k] + by
    add.ends(count)
    run = add.made()                                            # as Python calls it

What is computed is written with the operators of `Value`; of several numbers at once, too, once they were
read as lanes of a vector or spread over them."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from ostinato.ops.core.spec import DType, int64
from ostinato.ops.jit.values import Value

from . import llvm
from .code import address_of, symbol
from .emitter import Code
from .lines import VectorLines, llvm_type

Number = Value | int
_POINTER = "ptr"


class Routine(Code):
    """A function as it is written. Its parameters are numbers of a dtype, or memory that no other one of
    them leads to."""

    def __init__(self, result: DType | None, title: str = "run", /, **given: Any) -> None:
        super().__init__()
        self.result, self.title, self.kinds = result, title, given
        self.used: dict[str, Routine] = {}
        self.given: tuple[Any, ...] = tuple(
            Memory(self, f"%{n}", kind[0]) if isinstance(kind, list) else Value(self.lines, f"%{n}", kind)
            for n, kind in given.items()
        )  # fmt: skip

    def whole(self, number: Number) -> Value:
        """A Python number as one of 64 bits."""
        return number if isinstance(number, Value) else self.lines.constant(number, int64)

    # -- memory
    def memory(self, address: Value, dtype: DType) -> Memory:
        return Memory(self, self.let(f"inttoptr i64 {address.name} to ptr"), dtype)

    def own(self, count: int, dtype: DType) -> Memory:
        """Room for so many numbers while the function runs."""
        name = self.name("own")
        self.entry.append(f"  {name} = alloca [{count} x {llvm_type(dtype)}], align 16")
        return Memory(self, name, dtype)

    def code_of(self, other: Routine) -> Memory:
        """The address of another one."""
        self.used[other.title] = other
        return Memory(self, f"@{other.title}", int64)

    def variable(self, value: Value) -> Variable:
        return Variable(self, value)

    # -- what happens when
    @contextlib.contextmanager
    def each(self, end: Number, begin: Number = 0, step: int = 1) -> Iterator[Value]:
        with self.loop(self.whole(begin).name, self.whole(end).name, step) as k:
            yield Value(self.lines, k, int64)

    @contextlib.contextmanager
    def given_that(self, condition: Value) -> Iterator[None]:
        with self.when(condition.name):
            yield

    def leaves_if(self, condition: Value, answer: Number | None = None) -> None:
        """The function ends, if something holds."""
        with self.when(condition.name):
            self.ends(answer)
            self.label()

    def label(self) -> None:
        """Goes on behind an end."""
        self.lines.text.append(f"{self.name('beyond')[1:]}:")

    def ends(self, answer: Number | None = None) -> None:
        if self.result is None or answer is None:
            self.add("ret void")
            return
        found = answer if isinstance(answer, Value) else self.lines.constant(answer, self.result)
        self.add(f"ret {found.kind} {found.name}")

    def call(
        self, name: str, result: DType | None, *given: Value | Memory, facts: str = ""
    ) -> Value:
        """A function of C, of a symbol (code.py)."""
        kinds = ", ".join(_kind(x) for x in given)
        kind = "void" if result is None else llvm_type(result)
        self.lines.declared.add(f"declare {kind} @{name}({kinds}) nonlazybind nounwind {facts}")
        return self._call(name, result, given)

    def does(self, other: Routine, *given: Value | Memory) -> Value:
        """Another one, which is then part of this one's module."""
        self.used[other.title] = other
        return self._call(other.title, other.result, given)

    def calls(self, other: Routine, *given: Value | Memory) -> Value:
        """Another one, which is a module of its own: made once for all that call it."""
        text = other.text()
        name = f"{other.title}_{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
        symbol(name, llvm.linked(text))
        return self.call(name, other.result, *given)

    def _call(self, name: str, result: DType | None, given: Sequence[Value | Memory]) -> Value:
        args = ", ".join(f"{_kind(x)} {x.name}" for x in given)
        if result is None:
            self.add(f"call void @{name}({args})")
            return self.whole(0)
        text = f"call {llvm_type(result)} @{name}({args})"
        return Value(self.lines, self.let(text), result)

    # -- several at once
    def lanes(self, count: int) -> VectorLines:
        return _Lanes(self, count)

    def spread(self, value: Value, count: int) -> Value:
        """A number in all lanes."""
        lines, kind = self.lanes(count), f"<{count} x {value.kind}>"
        one = self.let(f"insertelement {kind} poison, {value.kind} {value.name}, i32 0")
        text = f"shufflevector {kind} {one}, {kind} poison, <{count} x i32> zeroinitializer"
        return Value(lines, self.let(text), value.dtype)

    def chosen(self, x: Value, lanes: Sequence[int]) -> Value:
        """Some lanes of a vector, in this order."""
        mask = ", ".join(f"i32 {k}" for k in lanes)
        text = f"shufflevector {x.kind} {x.name}, {x.kind} poison, <{len(lanes)} x i32> <{mask}>"
        return Value(self.lanes(len(lanes)), self.let(text), x.dtype)

    def recast(self, x: Value, dtype: DType, count: int) -> Value:
        """The bits of a vector as so many numbers."""
        lines = self.lanes(count)
        text = f"bitcast {x.kind} {x.name} to {lines.kind(dtype)}"
        return Value(lines, self.let(text), dtype)

    def lane(self, x: Value, k: int) -> Value:
        text = f"extractelement {x.kind} {x.name}, i32 {k}"
        return Value(self.lines, self.let(text), x.dtype)

    def product(self, x: Value, y: int) -> tuple[Value, Value]:
        """The lower and the upper half of a product of two words without signs."""
        wide = self.let(f"zext i64 {x.name} to i128")
        both = self.let(f"mul i128 {wide}, {y}")
        upper = self.let(f"lshr i128 {both}, 64")
        low, high = (self.let(f"trunc i128 {v} to i64") for v in (both, upper))
        return Value(self.lines, low, int64), Value(self.lines, high, int64)

    def fence(self) -> None:
        """Behind what went past the caches."""
        self.add("fence seq_cst")

    # -- all of it
    def text(self) -> str:
        """A module, in which this one is `run`."""
        parts, waiting = dict[str, str](), [self]
        declared = set[str]()
        while waiting:
            one = waiting.pop()
            waiting += [other for title, other in one.used.items() if title not in parts]
            if one.title not in parts:
                parts[one.title] = one._own_text(one is self)
                declared |= one.lines.declared
        return "\n".join([*sorted(declared), *parts.values()])

    def _own_text(self, is_run: bool) -> str:
        kind = "void" if self.result is None else llvm_type(self.result)
        given = ", ".join(
            f"ptr noalias %{n}" if isinstance(k, list) else f"{llvm_type(k)} %{n}"
            for n, k in self.kinds.items()
        )
        body = [*self.entry, *self.lines.text]
        if not body or not body[-1].startswith("  ret "):
            body.append("  ret void" if self.result is None else "  unreachable")
        how = "" if is_run else "internal "
        head = f"define {how}{kind} @{self.title if not is_run else 'run'}({given}) nounwind {{"
        return "\n".join([head, "entry:", *body, "}"])

    def made(self) -> Any:
        """The function, as Python calls it, which lets other threads run meanwhile."""
        result = None if self.result is None else _C[self.result.name]
        kinds = [
            ctypes.c_void_p if isinstance(k, list) else _C[k.name] for k in self.kinds.values()
        ]
        return llvm.linked(self.text()).function(result, *kinds)


def functions(*made: Routine) -> list[str]:
    """For a module that has another `run`: what these declare, then each by its title."""
    declared = set[str]().union(*(one.lines.declared for one in made))
    return [*sorted(declared), *(one._own_text(False) for one in made)]


_C: dict[str, Any] = {
    "int64": ctypes.c_ssize_t,
    "int32": ctypes.c_int32,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


def _kind(x: Value | Memory) -> str:
    return _POINTER if isinstance(x, Memory) else x.kind


class Memory:
    """Numbers of a dtype, one behind the other, at whatever multiple of bytes they begin."""

    __slots__ = ("code", "dtype", "name")

    def __init__(self, code: Routine, name: str, dtype: DType) -> None:
        self.code, self.name, self.dtype = code, name, dtype

    def _place(self, k: Number) -> str:
        number = self.code.whole(k)
        if number.number == 0:
            return self.name
        return self.code.let(
            f"getelementptr {llvm_type(self.dtype)}, ptr {self.name}, i64 {number.name}"
        )

    def further(self, k: Number) -> Memory:
        return Memory(self.code, self._place(k), self.dtype)

    def view(self, dtype: DType) -> Memory:
        """Its bytes as other numbers."""
        return Memory(self.code, self.name, dtype)

    @property
    def address(self) -> Value:
        name = self.code.let(f"ptrtoint ptr {self.name} to i64")
        return Value(self.code.lines, name, int64)

    def select(self, condition: Value, other: Memory) -> Memory:
        """This where something holds, else another one."""
        text = f"select i1 {condition.name}, ptr {self.name}, ptr {other.name}"
        return Memory(self.code, self.code.let(text), self.dtype)

    def __getitem__(self, k: Number) -> Value:
        text = f"load {llvm_type(self.dtype)}, ptr {self._place(k)}, align 1"
        return Value(self.code.lines, self.code.let(text), self.dtype)

    def __setitem__(self, k: Number, value: Number | Memory) -> None:
        place = self._place(k)
        found = self.code.lines.constant(value, self.dtype) if isinstance(value, int) else value
        self.code.add(f"store {_kind(found)} {found.name}, ptr {place}, align 1")

    def latest(self) -> Value:
        """The first number, which others may change meanwhile."""
        text = (
            f"load volatile {llvm_type(self.dtype)}, ptr {self.name}, align {self.dtype.itemsize}"
        )
        return Value(self.code.lines, self.code.let(text), self.dtype)

    def lanes(self, k: Number, count: int) -> Value:
        """So many numbers from the k-th on."""
        lines = self.code.lanes(count)
        text = f"load {lines.kind(self.dtype)}, ptr {self._place(k)}, align 1"
        return Value(lines, self.code.let(text), self.dtype)

    def put(self, k: Number, value: Value) -> None:
        """Several numbers from the k-th on."""
        self.code.add(f"store {value.kind} {value.name}, ptr {self._place(k)}, align 1")

    def put_line(self, k: Number, value: Value) -> None:
        """A whole cache line, past the caches."""
        size = value.lines.lanes * self.dtype.itemsize  # type: ignore[attr-defined]
        self.code.lines.declared.add("!0 = !{i32 1}")
        place = self._place(k)
        self.code.add(
            f"store {value.kind} {value.name}, ptr {place}, align {size}, !nontemporal !0"
        )

    def put_some(self, k: Number, value: Value, count: Value) -> None:
        """The first so many of several numbers."""
        many = value.lines.lanes  # type: ignore[attr-defined]
        mask = self.code.inside(count.name, many)
        self.code.masked_store(value.name, self._place(k), value.kind, mask)

    def copy(self, source: Memory, size: Value) -> None:
        """So many bytes from elsewhere. C's own function, as for LLVM's its loader counts no memory."""
        symbol("ostinato_memcpy", address_of(ctypes.CDLL(None), "memcpy"))
        self.code.call("ostinato_memcpy", int64, self, source, size)


class Variable:
    """A number, or a vector, that changes."""

    def __init__(self, code: Routine, value: Value) -> None:
        self.code, self.lines, self.dtype, self.kind = code, value.lines, value.dtype, value.kind
        self.cell = code.name("cell")
        code.entry.append(f"  {self.cell} = alloca {self.kind}")
        self.now = value

    @property
    def now(self) -> Value:
        return Value(self.lines, self.code.let(f"load {self.kind}, ptr {self.cell}"), self.dtype)

    @now.setter
    def now(self, value: Value) -> None:
        self.code.add(f"store {self.kind} {value.name}, ptr {self.cell}")


class _Lanes(VectorLines):
    """Instructions of vectors in a routine's text."""

    def __init__(self, code: Routine, count: int) -> None:
        super().__init__(count)
        self.code, self.text, self.declared = code, code.lines.text, code.lines.declared

    def write(self, instruction: str, dtype: DType) -> Value:
        return Value(self, self.code.let(instruction), dtype)


def smaller(x: Value, y: Any) -> Value:
    """The first one unless the second one is less, as NumPy's `minimum` of numbers."""
    other = x.like(y)
    return x.selected(x < other, other)


def larger(x: Value, y: Any) -> Value:
    other = x.like(y)
    return x.selected(x > other, other)


def whole_of(x: Value, dtype: DType) -> Value:
    """The integer part of a float that fits."""
    return x.lines.convert("fptosi", x, dtype)
