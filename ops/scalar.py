"""Scalar expressions as LLVM instructions: what generated kernels compute for one element.

An op's `scalar` text is evaluated with `Value`s, whose operators write instructions: so
`1 / (1 + exp(-{0}))` becomes what it says. Basic operations are IEEE's and give the bits that
NumPy gives. The functions below are written without branches, so that LLVM can make vectors of
them; they are within 4 units in the last place (erf in float64 within 6), and right at infinities,
NaN and denormals."""

from __future__ import annotations

import ast
import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

from . import elementwise
from .registry import OPS
from .spec import DTYPES, DType, bool_, float32, float64

KINDS = {
    n: d for n, d in DTYPES.items() if n not in ("float16", "bfloat16", "complex64", "complex128")
}
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
        return Value(self, literal(value, dtype), dtype)


def llvm_type(dtype: DType) -> str:
    """As a register holds it; a bool is one bit there."""
    if dtype.kind == "f":
        return "float" if dtype.itemsize == 4 else "double"
    return "i1" if dtype.kind == "b" else f"i{8 * dtype.itemsize}"


def literal(value: Any, dtype: DType) -> str:
    """A number as LLVM writes it, to the last bit."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind != "f":
        return str(int(value))
    with np.errstate(all="ignore"):
        exact = float(dtype.type(value))
    return "0x" + struct.pack(">d", exact).hex().upper()


class Value:
    """A number in a register."""

    __slots__ = ("dtype", "lines", "name")

    def __init__(self, lines: Lines, name: str, dtype: DType) -> None:
        self.lines = lines
        self.name = name
        self.dtype = dtype

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
            raise Unsupported("integer division")
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
    if dtype.kind == "b":
        return x != 0
    if dtype.kind == "f":
        if old.kind == "f":
            word = "fpext" if dtype.itemsize > old.itemsize else "fptrunc"
        else:
            word = "sitofp" if old.kind == "i" else "uitofp"
    elif old.kind == "f":
        raise Unsupported("floats to integers")
    elif dtype.itemsize > old.itemsize or old.kind == "b":
        word = "sext" if old.kind == "i" else "zext"
    elif dtype.itemsize < old.itemsize:
        word = "trunc"
    else:
        return Value(x.lines, x.name, dtype)
    return x.lines.write(f"{word} {x.kind} {x.name} to {llvm_type(dtype)}", dtype)


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


def bits(x: Value) -> Value:
    """A float's bits as an integer."""
    dtype = np.dtype(f"int{8 * x.dtype.itemsize}")
    return x.lines.write(f"bitcast {x.kind} {x.name} to {llvm_type(dtype)}", dtype)


def unbits(x: Value) -> Value:
    dtype = np.dtype(f"float{8 * x.dtype.itemsize}")
    return x.lines.write(f"bitcast {x.kind} {x.name} to {llvm_type(dtype)}", dtype)


def shift(x: Value, word: str, n: int) -> Value:
    return x.lines.write(f"{word} {x.kind} {x.name}, {n}", x.dtype)


def copysign(x: Value, y: Value) -> Value:
    return x.lines.call("copysign", x.dtype, x, x.like(y))


def _floating(x: Value) -> bool:
    if x.dtype.kind != "f":
        raise Unsupported("a function of integers")
    return x.dtype == float64


def _by_intrinsic(name: str) -> Function:
    def function(x: Value) -> Value:
        _floating(x)
        return x.lines.call(name, x.dtype, x)

    return function


def _larger(x: Value, y: Any) -> Value:
    y = x.like(y)
    if x.dtype.kind != "f":
        return where(x >= y, x, y)
    return where((x >= y) | (x != x), x, y)  # as NumPy: NaN if there is one


def _smaller(x: Value, y: Any) -> Value:
    y = x.like(y)
    if x.dtype.kind != "f":
        return where(x <= y, x, y)
    return where((x <= y) | (x != x), x, y)


def _sign(x: Value) -> Value:
    if x.dtype.kind in "ub":
        return where(x > 0, x.like(1), 0)
    positive = where(x > 0, x.like(1), 0)
    found = where(x < 0, x.like(-1), positive)
    return where(x != x, x, found) if x.dtype.kind == "f" else found


# -- exponentials --------------------------------------------------------------------------
_LOG2E = math.log2(math.e)
_LN2 = {float64: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
        float32: (6.9314575195e-01, 1.4286067653e-06)}  # fmt: skip
_ROUND = {float64: 1.5 * 2.0**52, float32: 1.5 * 2.0**23}  # adding it rounds to integers
_LEAST = {float64: -746.0, float32: -105.0}
_MOST = {float64: 710.0, float32: 89.5}
_EXP = {float64: [1 / math.factorial(k) for k in range(13, 0, -1)],
        float32: [1 / math.factorial(k) for k in range(7, 0, -1)]}  # fmt: skip


def _power_of_two(n: Value) -> Value:
    """2 to the n, for an integer that a normal number's exponent can hold."""
    mantissa, bias = (52, 1023) if n.dtype.itemsize == 8 else (23, 127)
    return unbits(shift(n + bias, "shl", mantissa))


def _reduced(x: Value) -> tuple[Value, Value]:
    """The integer n nearest to x / log 2, and the rest of x."""
    magic = _ROUND[x.dtype]
    t = fma(x, _LOG2E, magic)
    high, low = _LN2[x.dtype]
    n = t - magic
    return bits(t) - bits(t.like(magic)), fma(n, -low, fma(n, -high, x))


def _scaled(p: Value, n: Value) -> Value:
    """p times 2 to the n, in two steps, as neither may overflow or lose bits before its time."""
    half = shift(n, "ashr", 1)
    return p * _power_of_two(half) * _power_of_two(n - half)


def _within(x: Value) -> Value:
    low, high = _LEAST[x.dtype], _MOST[x.dtype]
    return where(x > low, where(x < high, x, high), low)  # NaN becomes low


def exp(x: Value) -> Value:
    _floating(x)
    n, r = _reduced(_within(x))
    return where(x != x, x, _scaled(fma(horner(r, _EXP[x.dtype]), r, 1.0), n))


def exp2(x: Value) -> Value:
    _floating(x)
    low, high = (-1080.0, 1025.0) if x.dtype == float64 else (-155.0, 129.0)
    inside = where(x > low, where(x < high, x, high), low)
    magic = _ROUND[x.dtype]
    t = inside + magic
    r = (inside - (t - magic)) * math.log(2)
    n = bits(t) - bits(t.like(magic))
    return where(x != x, x, _scaled(fma(horner(r, _EXP[x.dtype]), r, 1.0), n))


def expm1(x: Value) -> Value:
    _floating(x)
    most = 600.0 if x.dtype == float64 else 80.0
    n, r = _reduced(_within(where(x < most, x, most)))
    s = _power_of_two(where(n < -60, n.like(-60), n))
    small = fma(s, horner(r, _EXP[x.dtype]) * r, s - 1.0)
    found = where(x > most, exp(x), small)
    return where(x == 0, x, where(x != x, x, found))  # -0 stays


def tanh(x: Value) -> Value:
    wide = _floating(x)
    a = abs(x)
    t = expm1(a + a)
    return copysign(where(a > (22.0 if wide else 10.0), x.like(1.0), t / (t + 2.0)), x)


# -- logarithms ----------------------------------------------------------------------------
_LOG = {  # the even part of log(1 + f) in s = f / (2 + f), as fdlibm has it
    float64: [1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
              2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
              6.666666666666735130e-01],
    float32: [0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693],
}  # fmt: skip
_LN2_SHORT = {float64: _LN2[float64], float32: (6.9313812256e-01, 9.0580006145e-06)}


def _taken_apart(x: Value) -> tuple[Value, Value]:
    """Exponent (as a float) and mantissa between sqrt(1/2) and sqrt(2), of a positive number."""
    wide = x.dtype == float64
    mantissa, tiny = (52, 2.0**-1022) if wide else (23, 2.0**-126)
    small = x < tiny
    b = bits(where(small, x * 2.0 ** (mantissa + 2), x))
    over = b - bits(x.like(math.sqrt(0.5)))
    e = shift(over, "ashr", mantissa)
    m = unbits(b - shift(e, "shl", mantissa))
    exponent = cast(e, x.dtype)
    return where(small, exponent - float(mantissa + 2), exponent), m


def _log_parts(x: Value) -> tuple[Value, Value, Value, Value]:
    """e, f, f*f/2 and the correction: log x = e log 2 + f - (f*f/2 - correction)."""
    e, m = _taken_apart(x)
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    return e, f, half, s * (half + z * horner(z, _LOG[x.dtype]))


def _at_edges(x: Value, found: Value) -> Value:
    found = where(x == math.inf, x, found)
    found = where(x == 0, x.like(-math.inf), found)
    return where(x < 0, x.like(math.nan), where(x != x, x, found))


def log(x: Value) -> Value:
    _floating(x)
    e, f, half, correction = _log_parts(x)
    high, low = _LN2_SHORT[x.dtype]
    found = fma(e, high, f - (half - fma(e, low, correction)))
    return _at_edges(x, found)


def log2(x: Value) -> Value:
    _floating(x)
    e, f, half, correction = _log_parts(x)
    natural = f - (half - correction)
    top = x.dtype.type(_LOG2E)
    return _at_edges(x, fma(natural, float(top), e) + natural * (_LOG2E - float(top)))


def log1p(x: Value) -> Value:
    _floating(x)
    u = x + 1.0
    lost = (x - (u - 1.0)) / u
    found = log(u) + where((u == 0) | (abs(x) == math.inf), x.like(0), lost)
    return where(u == 1.0, x, found)


def _erf(x: Value) -> Value:
    a = abs(x)
    t = a * a
    small = horner(t, elementwise._ERF_SMALL) * a
    part = 2.0 / (a + 2.0)
    large = 1.0 - exp(horner(part, elementwise._ERF_LARGE) - t) * part
    return copysign(where(t < 0.5625, small, large), x)


# -- whole expressions ---------------------------------------------------------------------
FUNCTIONS: dict[str, Function] = {
    "abs": abs,
    "and_": lambda a, b: a & b,
    "bool": lambda x: cast(x, bool_),
    "ceil": _by_intrinsic("ceil"),
    "copysign": copysign,
    "erf": _erf,
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "floor": _by_intrinsic("floor"),
    "isfinite": lambda x: abs(x) < math.inf,
    "isinf": lambda x: abs(x) == math.inf,
    "log": log,
    "log1p": log1p,
    "log2": log2,
    "max": _larger,
    "min": _smaller,
    "not_": lambda x: ~cast(x, bool_),
    "or_": lambda a, b: a | b,
    "rint": _by_intrinsic("rint"),
    "sign": _sign,
    "sqrt": _by_intrinsic("sqrt"),
    "tanh": tanh,
    "trunc": _by_intrinsic("trunc"),
    "where": where,
}
INEXACT = ("erf", "exp", "exp2", "expm1", "log", "log1p", "log2", "tanh")  # not NumPy's bits


class _Branchless(ast.NodeTransformer):
    """`a if c else b`, `and`, `or`, `not` as calls."""

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        return _call("where", node.test, node.body, node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        return _call(name, *node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        return _call("not_", node.operand) if isinstance(node.op, ast.Not) else node


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


@lru_cache(1024)
def _code(text: str) -> tuple[CodeType, frozenset[str]]:
    tree = ast.parse(text.format("x0", "x1", "x2"), mode="eval")
    called = {
        n.func.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    tree = ast.fix_missing_locations(_Branchless().visit(tree))
    return compile(tree, "<ostinato scalar>", "eval"), frozenset(called)


@lru_cache(4096)
def _loop_types(ufunc: str, *dtypes: DType) -> tuple[DType, ...]:
    """What NumPy's function turns its operands into first."""
    try:
        return tuple(getattr(np, ufunc).resolve_dtypes((*dtypes, None))[:-1])
    except TypeError:
        raise Unsupported(ufunc) from None


def lower(name: str, operands: Sequence[Value], dtype: DType) -> Value:
    """One operation on registers."""
    op = OPS[name]
    if name == "astype":
        return cast(operands[0], dtype)
    if not op.scalar:
        raise Unsupported(name)
    given = list(operands)
    if op.ufunc:
        types = _loop_types(op.ufunc, *(x.dtype for x in operands))
        given = [cast(x, t) for x, t in zip(operands, types, strict=True)]
    if any(x.dtype not in KINDS.values() for x in given):
        raise Unsupported(name)
    words: dict[str, Any] = {**FUNCTIONS, **{f"x{k}": x for k, x in enumerate(given)}}
    try:
        found = eval(_code(op.scalar)[0], {"__builtins__": {}}, words)
    except (NameError, TypeError) as error:
        raise Unsupported(f"{name}: {error}") from None
    if not isinstance(found, Value):
        raise Unsupported(name)
    return cast(found, dtype)


@lru_cache(4096)
def can_lower(name: str, dtypes: tuple[DType, ...], out: DType) -> bool:
    """Whether kernels can be generated for an operation on these dtypes."""
    if out not in KINDS.values() or any(d not in KINDS.values() for d in dtypes):
        return False
    lines = Lines()
    try:
        lower(name, [Value(lines, f"%x{k}", d) for k, d in enumerate(dtypes)], out)
    except Unsupported:
        return False
    return True


@lru_cache(1024)
def has_own_bits(name: str) -> bool:
    """Whether a generated kernel's results may differ from NumPy's in the last bits."""
    return bool(_code(OPS[name].scalar)[1] & set(INEXACT)) if OPS[name].scalar else False
