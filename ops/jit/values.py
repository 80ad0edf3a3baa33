"""Values in registers, whose operators write instructions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.spec import (
    DTYPES,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    real_of,
    uint32,
)

# Numbers of 16 bits, which a register holds as such; what is done with them is done in float32.
HALVES = (float16, bfloat16)
KINDS = {n: d for n, d in DTYPES.items() if d.kind != "c" and d not in HALVES}
Function = Callable[..., "Value"]
# (state, what is given) -> whether to go on, and the next state
Step = Callable[[Sequence["Value"], Sequence["Value"]], "tuple[Value, Sequence[Value]]"]


class Unsupported(Exception):
    """What generated kernels cannot do; NumPy does it then."""


class Lines:
    """Instructions as they are written, and what they declare. A writer spells them for a device
    (ops/cpu/jit/lines.py, ops/gpu/jit/lines.py); their names and their meaning are LLVM's."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.declared: set[str] = set()
        self.count = 0
        self.rounds = False  # whether doubles are computed that become floats

    def kind(self, dtype: DType) -> str:
        """The type of a register."""
        raise NotImplementedError

    def write(self, instruction: str, dtype: DType) -> Value:
        """An instruction as it is spelt, and the register that it makes."""
        raise NotImplementedError

    def do(self, word: str, dtype: DType, *ins: Value) -> Value:
        """Arithmetic, a comparison or a selection of registers of one type."""
        raise NotImplementedError

    def convert(self, word: str, x: Value, dtype: DType) -> Value:
        """A register as another type, of numbers or of bits."""
        raise NotImplementedError

    def signed_as(self, x: Value, dtype: DType) -> Value:
        """A whole number with a sign or without: a register's bits are the same."""
        return Value(self, x.name, dtype)

    def call(self, name: str, dtype: DType, *args: Value) -> Value:
        """An intrinsic of LLVM for this type."""
        raise NotImplementedError

    def constant(self, value: Any, dtype: DType) -> Value:
        raise NotImplementedError

    def pair(self, real: Value, imag: Value) -> Value:
        """A complex number of two registers."""
        raise Unsupported("complex numbers")

    def named(self, name: str, dtype: DType) -> Value:
        """A value in a register of this name, or in two."""
        if dtype.kind != "c":
            return Value(self, name, dtype)
        part = real_of(dtype)
        return self.pair(Value(self, f"{name}_r", part), Value(self, f"{name}_i", part))

    def entry(self, table: str, numbers: Sequence[float], index: Value) -> Value:
        """A number of a table of doubles, which has a name."""
        raise NotImplementedError

    def widened_half(self, x: Value) -> Value:
        """A float16, which a register holds as its bits, as float32."""
        raise NotImplementedError

    def narrowed_half(self, x: Value) -> Value:
        """The nearest float16 to a float32, with the sign of NaN."""
        raise NotImplementedError

    def function(self, name: str, *args: Value) -> Value | None:
        """An elementary function, where the device's own is taken rather than ours."""
        return None

    def shared(self, name: str, operands: Sequence[Value], dtype: DType) -> Value | None:
        """An operation as a call of a function, where a text has it too often to be written each time."""
        return None

    def repeat(
        self, name: str, step: Step, state: Sequence[Value], given: Sequence[Value], most: int
    ) -> Value:
        """The first number of a state after a few steps, each of which says whether another one
        follows; of these there are at least one and at most so many."""
        raise NotImplementedError


def can_add(dtype: DType) -> bool:
    """Whether registers add and compare such numbers."""
    return dtype.kind in "iuf" and dtype not in HALVES


def can_combine(monoid: str, dtype: DType) -> bool:
    """Whether registers reduce to such numbers with a monoid: complex ones have sums only."""
    how = MONOIDS.get(monoid)
    if how is None or not (how.scalar or how.order):
        return False
    return can_add(dtype) or (dtype.kind == "c" and monoid == "sum")


def held(value: Any, dtype: DType) -> Any:
    """A number as a dtype has it; what is too large is infinite."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def as_bits(value: Any, dtype: DType) -> int:
    """A number as it lies in memory, in a whole of eight bytes."""
    return int.from_bytes(held(value, dtype).tobytes().ljust(8, b"\0"), sys.byteorder, signed=True)


class Value:
    """A number in a register."""

    __slots__ = ("dtype", "lines", "name", "number")

    def __init__(
        self, lines: Lines, name: Any, dtype: DType, number: int | float | None = None
    ) -> None:
        self.lines = lines
        self.name = name  # of a register; of an array, itself (arrays.py)
        self.dtype = dtype
        self.number = number  # of a constant

    @property
    def kind(self) -> str:
        return self.lines.kind(self.dtype)

    def converted(self, dtype: DType) -> Value:
        """A complex number from this one."""
        part = real_of(dtype)
        return self.lines.pair(cast(self, part), self.lines.constant(0, part))

    def selected(self, c: Value, other: Value) -> Value:
        """This where a condition holds, else another value."""
        return self.lines.do("select", self.dtype, c, self, self.like(other))

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
        return self.lines.do(word, self.dtype, a, b)

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
            return self.lines.do("fneg", self.dtype, self)
        return 0 - self

    def __abs__(self) -> Value:
        if self.dtype.kind == "f":
            return self.lines.call("fabs", self.dtype, self)
        return self if self.dtype.kind in "ub" else where(self < 0, -self, self)

    def _bits(self, other: Any, word: str) -> Value:
        if self.dtype.kind == "f":
            raise Unsupported("bits of floats")
        return self.lines.do(word, self.dtype, self, self.like(other))

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
        return self.lines.do(word, bool_, self, b)

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
    if "c" in (old.kind, dtype.kind):
        return x.converted(dtype)
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
        return x.lines.signed_as(x, dtype)
    return x.lines.convert(word, x, dtype)


def _widened(x: Value) -> Value:
    """A number of 16 bits as float32."""
    if x.number is not None:
        return x.lines.constant(float(held(x.number, x.dtype)), float32)
    if x.dtype == bfloat16:
        return unbits(shift(x.lines.convert("zext", x, uint32), "shl", 16))
    return x.lines.widened_half(x)


def _exactly(x: Value) -> Value:
    """As float32, if that holds all numbers of this kind: what is rounded twice may be wrong."""
    if x.dtype.kind == "f" or x.dtype.itemsize > 2:
        raise Unsupported(f"{x.dtype} to 16 bits")
    return cast(x, float32)


def _halved(x: Value, dtype: DType) -> Value:
    """The nearest number of 16 bits, ties to even; of bfloat16 that is the upper half of a float's bits."""
    if dtype == float16:
        return x.lines.narrowed_half(x)
    number = bits(x)
    whole = Value(x.lines, number.name, uint32)
    last = shift(whole, "lshr", 16) & 1
    near = shift(whole + last + 0x7FFF, "lshr", 16)
    nan = shift(whole, "lshr", 16) & 0x8000 | 0x7FC0
    made = where(x != x, nan, near)
    return x.lines.convert("trunc", made, bfloat16)


def _whole(x: Value, dtype: DType) -> Value:
    """A float's integer part. What does not fit has no meaning in NumPy either; it gives what
    conversions of x86 give."""
    wide = dtype.itemsize == 8 or dtype.name == "uint32"
    via = np.dtype("int64") if wide else np.dtype("int32")
    if dtype.name == "uint64":
        raise Unsupported("floats to uint64")
    most = 2.0 ** (8 * via.itemsize - 1)
    inside = (x > -most - 1 if x.dtype == float64 and not wide else x >= -most) & (x < most)
    made = x.lines.convert("fptosi", where(inside, x, 0), via)
    return cast(where(inside, made, np.iinfo(via).min), dtype)


def divided(a: Value, b: Value) -> tuple[Value, Value]:
    """The quotient rounded down and the rest, which has the sign of b, to NumPy's bits."""
    if a.dtype.kind == "f":
        return _divided_floats(a, b)
    if a.dtype.kind == "b":
        raise Unsupported("arithmetic of bools")
    lines, word = a.lines, "u" if a.dtype.kind == "u" else "s"
    undefined = b == 0  # then NumPy gives 0
    if word == "s":
        undefined = undefined | ((b == -1) & (a == np.iinfo(a.dtype).min))
    safe = where(undefined, b.like(1), b)
    q = lines.do(f"{word}div", a.dtype, a, safe)
    r = lines.do(f"{word}rem", a.dtype, a, safe)
    if word == "s":
        below = (r != 0) & ((r < 0) != (b < 0))
        q, r = where(below, q - 1, q), where(below, r + b, r)
    return where(b == 0, q.like(0), q), where(undefined, r.like(0), r)


def _divided_floats(a: Value, b: Value) -> tuple[Value, Value]:
    rest = a.lines.do("frem", a.dtype, a, b)
    quotient, plain = (a - rest) / b, a / b
    other = ((b < 0) != (rest < 0)) & (rest != 0)
    quotient = where(other, quotient - 1.0, quotient)
    down = a.lines.call("floor", a.dtype, quotient)
    down = where(quotient - down > 0.5, down + 1.0, down)
    down = where(quotient == 0, copysign(a.like(0.0), plain), down)
    found = where(other, rest + b, where(rest == 0, copysign(a.like(0.0), b), rest))
    return where(b == 0, plain, down), where(b == 0, rest, found)


# -- pieces --------------------------------------------------------------------------------
def where(c: Value, x: Any, y: Any) -> Value:
    if not isinstance(x, Value):
        x = y.like(x)
    if c.dtype != bool_:
        raise Unsupported("a condition that is no bool")
    return x.selected(c, y)


def fma(x: Value, y: Any, z: Any) -> Value:
    return x.lines.call("fma", x.dtype, x, x.like(y), x.like(z))


def horner(x: Value, coefficients: Sequence[float]) -> Value:
    """A polynomial; the highest power comes first."""
    y = x.lines.constant(coefficients[0], x.dtype)
    for c in coefficients[1:]:
        y = fma(y, x, c)
    return y


def paired_horner(x: Value, square: Value, coefficients: Sequence[float]) -> Value:
    """Evaluate a polynomial, given the square of x, as two polynomials that do not wait for each
    other."""
    odd, even = coefficients[-2::-2][::-1], coefficients[::-2][::-1]
    return fma(horner(square, odd), x, horner(square, even))


def bits(x: Value) -> Value:
    """A float's bits as an integer."""
    dtype = np.dtype(f"int{8 * x.dtype.itemsize}")
    return x.lines.convert("bitcast", x, dtype)


def unbits(x: Value) -> Value:
    dtype = np.dtype(f"float{8 * x.dtype.itemsize}")
    return x.lines.convert("bitcast", x, dtype)


def shift(x: Value, word: str, n: int) -> Value:
    return x.lines.do(word, x.dtype, x, x.lines.constant(n, x.dtype))


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
    """Add exactly, as a rounded sum and its error, where a is the larger one, or 0."""
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
