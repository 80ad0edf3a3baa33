"""Instructions as CUDA C++, one statement for each.

A register of whole numbers is unsigned, as LLVM's have no sign; the instruction says which one it takes. As
products are not contracted (`OPTIONS` in ops/gpu/loops/text.py), every statement is IEEE's, so kernels of
a GPU and of a CPU give the same bits."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import op_of
from ostinato.ops.core.spec import DType, bool_, float16, float32, float64, real_of
from ostinato.ops.jit import scalar
from ostinato.ops.jit.pairs import Pair, pair_of
from ostinato.ops.jit.values import HALVES, Lines, Step, Unsupported, Value

_now = threading.local()  # which operations are functions in this thread's texts
ARITHMETIC = {
    "fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/",
    "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "lshr": ">>", "ashr": ">>",
    "udiv": "/", "urem": "%", "sdiv": "/", "srem": "%",
}  # fmt: skip
SIGNED = ("ashr", "sdiv", "srem", "slt", "sle", "sgt", "sge")
COMPARED = {
    "olt": "<", "ole": "<=", "ogt": ">", "oge": ">=", "oeq": "==", "une": "!=",
    "eq": "==", "ne": "!=",
    "slt": "<", "sle": "<=", "sgt": ">", "sge": ">=",
    "ult": "<", "ule": "<=", "ugt": ">", "uge": ">=",
}  # fmt: skip
INTRINSICS = ("fabs", "fma", "floor", "ceil", "trunc", "rint", "sqrt", "copysign")
BITCASTS = {  # by what is made
    "float": "__uint_as_float({})",
    "double": "__longlong_as_double((s64){})",
    "u32": "__float_as_uint({})",
    "u64": "(u64)__double_as_longlong({})",
}


def c_type(dtype: DType) -> str:
    """As a register holds it."""
    if dtype.kind == "b":
        return "bool"
    if dtype in (float32, float64):
        return "float" if dtype == float32 else "double"
    if dtype.kind == "c":
        raise Unsupported("complex numbers")
    return f"u{8 * dtype.itemsize}"


def memory_type(dtype: DType) -> str:
    return "u8" if dtype.kind == "b" else c_type(dtype)


def _signed(x: Value) -> str:
    return f"(s{8 * x.dtype.itemsize}){x.name}"


class CudaLines(Lines):
    """Statements of a function, each of which names a register."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: frozenset[str] = getattr(_now, "functions", frozenset())

    def kind(self, dtype: DType) -> str:
        return c_type(dtype)

    def write(self, instruction: str, dtype: DType) -> Value:
        self.count += 1
        self.text.append(f"const {c_type(dtype)} t{self.count} = {instruction};")
        return Value(self, f"t{self.count}", dtype)

    def do(self, word: str, dtype: DType, *ins: Value) -> Value:
        kind, names = c_type(dtype), [x.name for x in ins]
        if word == "select":
            return self.write("{} ? {} : {}".format(*names), dtype)
        if word == "fneg":
            return self.write(f"-{names[0]}", dtype)
        if word == "frem":
            return self.write(
                f"{'fmodf' if kind == 'float' else 'fmod'}({', '.join(names)})", dtype
            )
        _, _, test = word.partition(" ")
        if (test or word) in SIGNED:
            names = [_signed(x) for x in ins]
        if test:
            return self.write(f"{names[0]} {COMPARED[test]} {names[1]}", dtype)
        sign = ARITHMETIC[word]
        if kind in ("float", "double"):
            return self.write(f"{names[0]} {sign} {names[1]}", dtype)
        if kind in ("u8", "u16") and word not in SIGNED:  # or C takes them for int
            names = [f"(u32){name}" for name in names]
        return self.write(f"({kind})({names[0]} {sign} {names[1]})", dtype)

    def convert(self, word: str, x: Value, dtype: DType) -> Value:
        kind = c_type(dtype)
        if word == "bitcast":
            return self.write(BITCASTS[kind].format(x.name), dtype)
        if word in ("sext", "sitofp"):
            signed = f"(s{kind[1:]})" if word == "sext" else ""
            return self.write(f"({kind}){signed}{_signed(x)}", dtype)
        if word == "fptosi":
            return self.write(f"({kind})(s{kind[1:]}){x.name}", dtype)
        return self.write(f"({kind}){x.name}", dtype)

    def call(self, name: str, dtype: DType, *args: Value) -> Value:
        if name not in INTRINSICS:
            raise Unsupported(name)
        full = name + "f" * (dtype == float32)
        return self.write(f"{full}({', '.join(x.name for x in args)})", dtype)

    def constant(self, value: Any, dtype: DType) -> Value:
        if dtype.kind == "c":
            return pair_of(self, complex(value), dtype)
        return Value(self, literal(value, dtype), dtype, value)

    def pair(self, real: Value, imag: Value) -> Value:
        return Pair(real, imag)

    def load(self, address: str, dtype: DType) -> Value:
        """Read memory there; a complex number's parts are neighbours."""
        if dtype.kind == "c":
            part = real_of(dtype)
            return Pair(self.load(address, part), self.load(f"{address} + {part.itemsize}", part))
        read = f"*(const {memory_type(dtype)}*)({address})"
        return self.write(f"{read} != 0" if dtype == bool_ else read, dtype)

    def store(self, address: str, value: Value) -> None:
        if isinstance(value, Pair):
            self.store(address, value.real)
            self.store(f"{address} + {value.real.dtype.itemsize}", value.imag)
        else:
            self.text.append(f"*({memory_type(value.dtype)}*)({address}) = {value.name};")

    def entry(self, table: str, numbers: Sequence[float], index: Value) -> Value:
        text = ", ".join(literal(v, float64) for v in numbers)
        self.declared.add(f"__device__ const double {table}[{len(numbers)}] = {{{text}}};")
        return self.write(f"{table}[{index.name}]", float64)

    def widened_half(self, x: Value) -> Value:
        return self.write(f"half_to_float({x.name})", float32)

    def narrowed_half(self, x: Value) -> Value:
        return self.write(f"float_to_half({x.name})", float16)

    def shared(self, name: str, operands: Sequence[Value], dtype: DType) -> Value | None:
        """A call, unless something is known of its numbers, which a function does not know."""
        known = any(isinstance(x, Pair) or x.number is not None for x in operands)
        if name not in self.functions or known or dtype.kind == "c":
            return None
        inner = CudaLines()
        inner.functions = frozenset()
        given = [Value(inner, f"x{k}", x.dtype) for k, x in enumerate(operands)]
        made = scalar.lower(name, given, dtype)
        word = "_".join([f"f_{name}", *(x.dtype.name for x in operands), dtype.name])
        takes = ", ".join(f"const {c_type(x.dtype)} {x.name}" for x in given)
        body = "\n".join([*inner.text, f"return {made.name};"])
        # behind all that it reads and calls
        whole = f"__noinline__ __device__ {c_type(dtype)} {word}({takes}) {{\n{body}\n}}"
        self.declared |= {*inner.declared, whole}
        return self.write(f"{word}({', '.join(x.name for x in operands)})", dtype)

    def repeat(
        self, name: str, step: Step, state: Sequence[Value], given: Sequence[Value], most: int
    ) -> Value:
        inner = CudaLines()
        now = [Value(inner, f"s{n}", x.dtype) for n, x in enumerate(state)]
        go, after = step(now, [Value(inner, f"g{n}", x.dtype) for n, x in enumerate(given)])
        takes = [f"{c_type(x.dtype)}& s{n}" for n, x in enumerate(state)]
        takes += [f"const {c_type(x.dtype)} g{n}" for n, x in enumerate(given)]
        code = [f"for (int k = 0; k < {most}; ++k) {{", *inner.text]
        code += [f"const {c_type(x.dtype)} r{n} = {x.name};" for n, x in enumerate(after)]
        code += [f"s{n} = r{n};" for n in range(len(now))]
        code += [f"if (!({go.name})) break;", "}"]
        body = "\n".join(code)
        # behind the tables that it reads
        whole = f"__device__ void {name}({', '.join(takes)}) {{\n{body}\n}}"
        self.declared |= {*inner.declared, whole}
        made = []
        for x in state:
            self.count += 1
            self.text.append(f"{c_type(x.dtype)} t{self.count} = {x.name};")
            made.append(Value(self, f"t{self.count}", x.dtype))
        self.text.append(f"{name}({', '.join(x.name for x in (*made, *given))});")
        return made[0]


@contextlib.contextmanager
def sharing(body: Graph, long: int = 8192, few: int = 16) -> Iterator[None]:
    """While the text of a kernel is written: if that would be so long that compilers take more than seconds,
    operations of more than a few instructions are functions, each written once."""
    sizes = dict[str, int]()
    total = 0
    for node in body.nodes:
        kinds = tuple([body.specs[v].dtype for v in node.inputs])
        size = scalar.instructions(node.op, kinds, node.specs[0].dtype, CudaLines) or 0
        sizes[node.op] = max(size, sizes.get(node.op, 0))
        total += size
    _now.functions = frozenset([op for op, n in sizes.items() if n >= few and total > long])
    try:
        yield
    finally:
        _now.functions = frozenset()


def can_lower(name: str, dtypes: tuple[DType, ...], out: DType) -> bool:
    """Whether a GPU's kernels can have an operation on these dtypes."""
    return scalar.can_lower(name, dtypes, out, CudaLines)


def can_lower_real(name: str, dtypes: tuple[DType, ...], out: DType) -> bool:
    """Whether kernels can that have no complex numbers: those in stages, and those with joins."""
    return all(d.kind != "c" for d in (*dtypes, out)) and can_lower(name, dtypes, out)


def makes_elements(graph: Graph, node: Node) -> bool:
    """Whether kernels without complex numbers make its elements, of those at the same place alone."""
    op, dtypes = op_of(node.op), tuple([graph.specs[v].dtype for v in node.inputs])
    own = bool(op.scalar) and not op.element.draws and len(node.specs) == 1
    return own and can_lower_real(node.op, dtypes, node.specs[0].dtype)


def literal(value: Any, dtype: DType) -> str:
    """A number to the last bit."""
    if dtype.kind == "b":
        return "true" if value else "false"
    with np.errstate(all="ignore"):
        held = np.asarray(value).astype(dtype)
    if dtype in HALVES:
        return f"(u16){int(held.view(np.uint16))}u"
    if dtype.kind != "f":
        bits = int(held.view(f"u{dtype.itemsize}"))
        return f"(u{8 * dtype.itemsize}){bits}{'ull' if dtype.itemsize == 8 else 'u'}"
    if not math.isfinite(held):
        if dtype == float32:
            return f"__uint_as_float({int(held.view(np.uint32)):#x}u)"
        return f"__longlong_as_double({int(held.view(np.int64)):#x}ll)"
    return float(held).hex() + "f" * (dtype == float32)
