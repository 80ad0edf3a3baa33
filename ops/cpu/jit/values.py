"""Values in registers, whose operators write LLVM instructions."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DTYPES, DType, bfloat16, bool_, float16, float32, float64, uint32

from .llvm import has

# Numbers of 16 bits, which a register holds as such; what is done with them is done in float32.
HALVES = (float16, bfloat16)
KINDS = {n: d for n, d in DTYPES.items() if d.kind != "c" and d not in HALVES}
Function = Callable[..., "Value"]


class Unsupported(Exception):
    """What generated kernels cannot do; NumPy does it then."""


class Lines:
    """Instructions as they are written, and what they declare."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.declared: set[str] = set()
        self.count = 0

    def write(self, instruction: str, dtype: DType) -> Value:
        self.count += 1
        self.text.append(f"  %t{self.count} = {instruction}")
        return Value(self, f"%t{self.count}", dtype)

    def call(self, name: str, dtype: DType, *args: Value) -> Value:
        """An intrinsic of LLVM for this type."""
        kind = llvm_type(dtype)
        full = f"@llvm.{name}.f{8 * dtype.itemsize}"
        self.declared.add(f"declare {kind} {full}({', '.join([kind] * len(args))})")
        return self.write(
            f"call {kind} {full}({', '.join(f'{kind} {a.name}' for a in args)})", dtype
        )

    def constant(self, value: Any, dtype: DType) -> Value:
        return Value(self, literal(value, dtype), dtype, value)

    def entry(self, table: str, numbers: Sequence[float], index: Value) -> Value:
        """A number of a table, which stands in the module under a name."""
        kind = f"[{len(numbers)} x double]"
        text = ", ".join(f"double {literal(v, float64)}" for v in numbers)
        self.declared.add(f"@{table} = private unnamed_addr constant {kind} [{text}]")
        place = self.write(
            f"getelementptr double, ptr @{table}, {index.kind} {index.name}", index.dtype
        )
        return self.write(f"load double, ptr {place.name}, align 8, !llvm.access.group !1", float64)


def llvm_type(dtype: DType) -> str:
    """As a register holds it; a bool is one bit there."""
    if dtype.kind == "f" and dtype.itemsize > 2:
        return "float" if dtype.itemsize == 4 else "double"
    return "i1" if dtype.kind == "b" else f"i{8 * dtype.itemsize}"


def can_add(dtype: DType) -> bool:
    """Whether registers add and compare such numbers."""
    return dtype.kind in "iuf" and dtype not in HALVES


def literal(value: Any, dtype: DType) -> str:
    """A number as LLVM writes it, to the last bit."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype in HALVES:
        return str(int(_held(value, dtype).view(np.int16)))
    if dtype.kind != "f":
        return str(int(value))
    return "0x" + struct.pack(">d", float(_held(value, dtype))).hex().upper()


def _held(value: Any, dtype: DType) -> Any:
    """A number as a dtype has it; what is too large is infinite."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def as_bits(value: Any, dtype: DType) -> int:
    """A number as it lies in memory, in a whole of eight bytes."""
    return int.from_bytes(_held(value, dtype).tobytes().ljust(8, b"\0"), sys.byteorder, signed=True)


class Value:
    """A number in a register."""

    __slots__ = ("dtype", "lines", "name", "number")

    def __init__(
        self, lines: Lines, name: str, dtype: DType, number: int | float | None = None
    ) -> None:
        self.lines = lines
        self.name = name
        self.dtype = dtype
        self.number = number  # of a constant

    @property
    def kind(self) -> str:
        return llvm_type(self.dtype)

    def like(self, other: Any) -> Value:
        """A Python number, or a Value of the same type."""
        if isinstance(other, Value):
            if other.dtype != self.dtype:
                raise Unsupported(f"{self.dtype} with {other.dtype}")
            return other
        if not isinstance(other, int) and not (isinstance(other, float) and self.dtype.kind == "f"):
            raise Unsupported(f"{other!r} with {self.dtype}")
        return self.lines.constant(other, self.dtype)

    def _arithmetic(self, other: Any, real: str, whole: str, swap: bool = False) -> Value:
        a, b = self, self.like(other)
        if swap:
            a, b = b, a
        if self.dtype.kind == "b":
            raise Unsupported("arithmetic of bools")
        word = real if self.dtype.kind == "f" else whole
        if not word:
            raise Unsupported("a quotient of integers")
        return self.lines.write(f"{word} {self.kind} {a.name}, {b.name}", self.dtype)

    def __add__(self, other: Any) -> Value:
        return self._arithmetic(other, "fadd", "add")

    def __radd__(self, other: Any) -> Value:
        return self._arithmetic(other, "fadd", "add", swap=True)

    def __sub__(self, other: Any) -> Value:
        return self._arithmetic(other, "fsub", "sub")

    def __rsub__(self, other: Any) -> Value:
        return self._arithmetic(other, "fsub", "sub", swap=True)

    def __mul__(self, other: Any) -> Value:
        return self._arithmetic(other, "fmul", "mul")

    def __rmul__(self, other: Any) -> Value:
        return self._arithmetic(other, "fmul", "mul", swap=True)

    def __truediv__(self, other: Any) -> Value:
        return self._arithmetic(other, "fdiv", "")

    def __rtruediv__(self, other: Any) -> Value:
        return self._arithmetic(other, "fdiv", "", swap=True)

    def __floordiv__(self, other: Any) -> Value:
        return divided(self, self.like(other))[0]

    def __mod__(self, other: Any) -> Value:
        return divided(self, self.like(other))[1]

    def __neg__(self) -> Value:
        if self.dtype.kind == "f":
            return self.lines.write(f"fneg {self.kind} {self.name}", self.dtype)
        return 0 - self

    def __abs__(self) -> Value:
        if self.dtype.kind == "f":
            return self.lines.call("fabs", self.dtype, self)
        return self if self.dtype.kind in "ub" else where(self < 0, -self, self)

    def _bits(self, other: Any, word: str) -> Value:
        if self.dtype.kind == "f":
            raise Unsupported("bits of floats")
        return self.lines.write(
            f"{word} {self.kind} {self.name}, {self.like(other).name}", self.dtype
        )

    def __and__(self, other: Any) -> Value:
        return self._bits(other, "and")

    def __or__(self, other: Any) -> Value:
        return self._bits(other, "or")

    def __xor__(self, other: Any) -> Value:
        return self._bits(other, "xor")

    def __lshift__(self, other: Any) -> Value:
        return self._shifted(other, "shl", self.like(0))

    def __rshift__(self, other: Any) -> Value:
        if self.dtype.kind == "u":
            return self._shifted(other, "lshr", self.like(0))
        return self._shifted(other, "ashr", where(self < 0, self.like(-1), 0))

    def _shifted(self, other: Any, word: str, beyond: Value) -> Value:
        """By as many bits as there are, or more, nothing is left but the sign."""
        if self.dtype.kind == "b":
            raise Unsupported("shifts of bools")
        n, width = self.like(other), 8 * self.dtype.itemsize
        inside = (n >= 0) & (n < width)
        return where(inside, self._bits(where(inside, n, 0), word), beyond)

    def __invert__(self) -> Value:
        return self._bits(self.lines.constant(1, bool_) if self.dtype.kind == "b" else -1, "xor")

    def _compare(self, other: Any, real: str, signed: str) -> Value:
        b = self.like(other)
        if self.dtype.kind == "f":
            word = f"fcmp {real}"
        else:
            unsigned = self.dtype.kind in "ub" and signed not in ("eq", "ne")
            word = f"icmp {signed.replace('s', 'u', 1) if unsigned else signed}"
        return self.lines.write(f"{word} {self.kind} {self.name}, {b.name}", bool_)

    def __lt__(self, other: Any) -> Value:
        return self._compare(other, "olt", "slt")

    def __le__(self, other: Any) -> Value:
        return self._compare(other, "ole", "sle")

    def __gt__(self, other: Any) -> Value:
        return self._compare(other, "ogt", "sgt")

    def __ge__(self, other: Any) -> Value:
        return self._compare(other, "oge", "sge")

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return self._compare(other, "oeq", "eq")

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return self._compare(other, "une", "ne")

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise Unsupported("a branch")

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(name)


def cast(x: Value, dtype: DType) -> Value:
    """As NumPy's astype, where that is defined."""
    old = x.dtype
    if old == dtype:
        return x
    if old in HALVES:
        return cast(_widened(x), dtype)
    if dtype in HALVES:
        return _halved(x if old == float32 else _exactly(x), dtype)
    if dtype.kind == "b":
        return x != 0
    if dtype.kind == "f":
        if old.kind == "f":
            word = "fpext" if dtype.itemsize > old.itemsize else "fptrunc"
        else:
            word = "sitofp" if old.kind == "i" else "uitofp"
    elif old.kind == "f":
        return _whole(x, dtype)
    elif dtype.itemsize > old.itemsize or old.kind == "b":
        word = "sext" if old.kind == "i" else "zext"
    elif dtype.itemsize < old.itemsize:
        word = "trunc"
    else:
        return Value(x.lines, x.name, dtype)
    return x.lines.write(f"{word} {x.kind} {x.name} to {llvm_type(dtype)}", dtype)


@lru_cache(1)
def _has_halves() -> bool:
    """Whether this processor converts float16."""
    return has("f16c") or not has("sse2")


def _widened(x: Value) -> Value:
    """A number of 16 bits as float32."""
    if x.number is not None:
        return x.lines.constant(float(_held(x.number, x.dtype)), float32)
    if x.dtype == bfloat16:
        whole = x.lines.write(f"zext i16 {x.name} to i32", uint32)
        return unbits(shift(whole, "shl", 16))
    if not _has_halves():
        raise Unsupported("float16")
    half = x.lines.write(f"bitcast i16 {x.name} to half", float16)
    return x.lines.write(f"fpext half {half.name} to float", float32)


def _exactly(x: Value) -> Value:
    """As float32, if that holds all numbers of this kind: what is rounded twice may be wrong."""
    if x.dtype.kind == "f" or x.dtype.itemsize > 2:
        raise Unsupported(f"{x.dtype} to 16 bits")
    return cast(x, float32)


def _halved(x: Value, dtype: DType) -> Value:
    """The nearest number of 16 bits, ties to even; of bfloat16 that is the upper half of a float's bits."""
    if dtype == float16:
        if not _has_halves():
            raise Unsupported("float16")
        # or LLVM rounds a double only once, by a function that there is not
        known = where(x != x, math.nan, x)
        half = x.lines.write(f"fptrunc float {known.name} to half", dtype)
        made = x.lines.write(f"bitcast half {half.name} to i16", dtype)
        sign = shift(Value(x.lines, bits(x).name, uint32), "lshr", 16) & 0x8000  # also of NaN
        sign = x.lines.write(f"trunc i32 {sign.name} to i16", dtype)
        return x.lines.write(f"or i16 {made.name}, {sign.name}", dtype)
    number = bits(x)
    whole = Value(x.lines, number.name, uint32)
    last = shift(whole, "lshr", 16) & 1
    near = shift(whole + last + 0x7FFF, "lshr", 16)
    nan = shift(whole, "lshr", 16) & 0x8000 | 0x7FC0
    made = where(x != x, nan, near)
    return x.lines.write(f"trunc i32 {made.name} to i16", bfloat16)


def _whole(x: Value, dtype: DType) -> Value:
    """A float's integer part. What does not fit has no meaning in NumPy either; it gives what
    conversions of x86 give.
    """
    wide = dtype.itemsize == 8 or dtype.name == "uint32"
    via = np.dtype("int64") if wide else np.dtype("int32")
    if dtype.name == "uint64":
        raise Unsupported("floats to uint64")
    most = 2.0 ** (8 * via.itemsize - 1)
    inside = (x > -most - 1 if x.dtype == float64 and not wide else x >= -most) & (x < most)
    kind = llvm_type(via)
    made = x.lines.write(f"fptosi {x.kind} {where(inside, x, 0).name} to {kind}", via)
    return cast(where(inside, made, np.iinfo(via).min), dtype)


def divided(a: Value, b: Value) -> tuple[Value, Value]:
    """The quotient rounded down and the rest, which has the sign of b, to NumPy's bits; but a quotient
    of infinities is the usual one."""
    if a.dtype.kind == "f":
        return _divided_floats(a, b)
    if a.dtype.kind == "b":
        raise Unsupported("arithmetic of bools")
    lines, kind, word = a.lines, a.kind, "u" if a.dtype.kind == "u" else "s"
    undefined = b == 0  # then NumPy gives 0
    if word == "s":
        undefined = undefined | ((b == -1) & (a == np.iinfo(a.dtype).min))
    safe = where(undefined, b.like(1), b)
    q = lines.write(f"{word}div {kind} {a.name}, {safe.name}", a.dtype)
    r = lines.write(f"{word}rem {kind} {a.name}, {safe.name}", a.dtype)
    if word == "s":
        below = (r != 0) & ((r < 0) != (b < 0))
        q, r = where(below, q - 1, q), where(below, r + b, r)
    return where(b == 0, q.like(0), q), where(undefined, r.like(0), r)


def _divided_floats(a: Value, b: Value) -> tuple[Value, Value]:
    rest = a.lines.write(f"frem {a.kind} {a.name}, {b.name}", a.dtype)
    quotient, plain = (a - rest) / b, a / b
    other = ((b < 0) != (rest < 0)) & (rest != 0)
    quotient = where(other, quotient - 1.0, quotient)
    down = a.lines.call("floor", a.dtype, quotient)
    down = where(quotient - down > 0.5, down + 1.0, down)
    down = where(quotient == 0, copysign(a.like(0.0), plain), down)
    found = where(other, rest + b, where(rest == 0, copysign(a.like(0.0), b), rest))
    infinite = (abs(plain) == math.inf) | (abs(b) == math.inf)
    return where(infinite, plain, down), where(b == 0, rest, found)


# -- pieces --------------------------------------------------------------------------------
def where(c: Value, x: Any, y: Any) -> Value:
    """One of two values."""
    if not isinstance(x, Value):
        x = y.like(x)
    y = x.like(y)
    if c.dtype != bool_:
        raise Unsupported("a condition that is no bool")
    kind = x.kind
    return c.lines.write(f"select i1 {c.name}, {kind} {x.name}, {kind} {y.name}", x.dtype)


def fma(x: Value, y: Any, z: Any) -> Value:
    return x.lines.call("fma", x.dtype, x, x.like(y), x.like(z))


def horner(x: Value, coefficients: Sequence[float]) -> Value:
    """A polynomial; the highest power comes first."""
    y = x.lines.constant(coefficients[0], x.dtype)
    for c in coefficients[1:]:
        y = fma(y, x, c)
    return y


def in_two(x: Value, square: Value, coefficients: Sequence[float]) -> Value:
    """The same, where its square is at hand, as two polynomials that do not wait for each other."""
    odd, even = coefficients[-2::-2][::-1], coefficients[::-2][::-1]
    return fma(horner(square, odd), x, horner(square, even))


def bits(x: Value) -> Value:
    """A float's bits as an integer."""
    dtype = np.dtype(f"int{8 * x.dtype.itemsize}")
    return x.lines.write(f"bitcast {x.kind} {x.name} to {llvm_type(dtype)}", dtype)


def unbits(x: Value) -> Value:
    dtype = np.dtype(f"float{8 * x.dtype.itemsize}")
    return x.lines.write(f"bitcast {x.kind} {x.name} to {llvm_type(dtype)}", dtype)


def shift(x: Value, word: str, n: int) -> Value:
    return x.lines.write(f"{word} {x.kind} {x.name}, {n}", x.dtype)


def nearest(x: Value) -> tuple[Value, Value]:
    """The nearest integer of a number that is not too large: as an integer, and as a float."""
    magic = 1.5 * 2.0 ** (52 if x.dtype == float64 else 23)
    t = x + magic
    return bits(t) - bits(t.like(magic)), t - magic


def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b, and what rounding lost."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def fast_two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """The same where a is the larger one, or 0."""
    s = a + b
    return s, b - (s - a)


def two_product(a: Value, b: Any) -> tuple[Value, Value]:
    """a * b, and what rounding lost."""
    p = a * b
    return p, fma(a, b, -p)


def copysign(x: Value, y: Value) -> Value:
    return x.lines.call("copysign", x.dtype, x, x.like(y))


def floating(x: Value) -> bool:
    """Whether x is a double; functions are of floats only."""
    if x.dtype.kind != "f":
        raise Unsupported("a function of integers")
    return x.dtype == float64


def intrinsic(name: str) -> Function:
    """A function of one float that LLVM has."""

    def function(x: Value) -> Value:
        floating(x)
        return x.lines.call(name, x.dtype, x)

    return function
