"""Instructions that are done at once, on arrays of an `xp`: how an operation that is only written
as a formula of registers runs where there are no generated kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DType, float32, float64

from .scalar import lower
from .values import HALVES, Lines, Step, Unsupported, Value

CHUNK = 8192  # elements at a time, so that what a formula needs stays in cache
LOOK = 8  # turns after which it is looked whether any element goes on

_WORDS = {  # of `xp`, for what LLVM has
    "fsub": "subtract",
    "fmul": "multiply",
    "fdiv": "divide",
    "frem": "fmod",
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "fadd": "add",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "shl": "left_shift",
    "ashr": "right_shift",
    "fneg": "negative",
    "olt": "less",
    "ole": "less_equal",
    "ogt": "greater",
    "oge": "greater_equal",
    "slt": "less",
    "sle": "less_equal",
    "sgt": "greater",
    "sge": "greater_equal",
    "ult": "less",
    "ule": "less_equal",
    "ugt": "greater",
    "uge": "greater_equal",
    "oeq": "equal",
    "eq": "equal",
    "une": "not_equal",
    "ne": "not_equal",
}
_OWN = {  # functions that `xp` has
    **{name: name for name in ("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh")},
    "pow": "power",
}


class ArrayLines(Lines):
    """What a register is to others is an array here, or a number."""

    def __init__(self, xp: Any = np) -> None:
        super().__init__()
        self.xp = xp

    def kind(self, dtype: DType) -> str:
        return dtype.name

    def _do(self, name: str, dtype: DType, *ins: Value) -> Value:
        given = [x.name for x in ins]
        where = np if all(isinstance(x, np.generic) for x in given) else self.xp
        return Value(self, getattr(where, name)(*given), dtype)

    def do(self, word: str, dtype: DType, *ins: Value) -> Value:
        if word == "select":
            return self._do("where", dtype, *ins)
        if word == "lshr" and ins[0].dtype.kind == "i":
            whole = np.dtype(f"uint{8 * dtype.itemsize}")
            x, n = (self.convert("bitcast", v, whole) for v in ins)
            return self.convert("bitcast", self._do("right_shift", whole, x, n), dtype)
        name = "right_shift" if word == "lshr" else _WORDS.get(word.partition(" ")[2] or word)
        if name is None:
            raise Unsupported(word)
        return self._do(name, dtype, *ins)

    def convert(self, word: str, x: Value, dtype: DType) -> Value:
        if word == "bitcast":
            return Value(self, x.name.view(dtype), dtype)
        return Value(self, x.name.astype(dtype), dtype)

    def signed_as(self, x: Value, dtype: DType) -> Value:
        return self.convert("bitcast", x, dtype)

    def call(self, name: str, dtype: DType, *args: Value) -> Value:
        if name == "fma" and dtype == float32:  # of which a double holds the product
            x, y, z = (self.convert("fpext", v, float64) for v in args)
            return self.convert("fptrunc", x * y + z, dtype)
        if name == "fma":
            return args[0] * args[1] + args[2]
        return self._do(name, dtype, *args)

    def constant(self, value: Any, dtype: DType) -> Value:
        return Value(self, np.asarray(value).astype(dtype)[()], dtype, value)

    def function(self, name: str, *args: Value) -> Value | None:
        return self._do(_OWN[name], args[0].dtype, *args) if name in _OWN else None

    def entry(self, table: str, numbers: Sequence[float], index: Value) -> Value:
        xp = self.xp
        return Value(self, xp.take(xp.array(numbers), index.name), np.dtype(np.float64))

    def repeat(
        self, name: str, step: Step, state: Sequence[Value], given: Sequence[Value], most: int
    ) -> Value:
        now, on = list(state), None
        for turn in range(1, most + 1):
            go, after = step(now, given)
            if on is not None:
                pairs = zip(after, now, strict=True)
                after = [self.do("select", new.dtype, on, new, old) for new, old in pairs]
                go = on & go
            now, on = list(after), go
            if turn % LOOK == 0 and not bool(self.xp.any(on.name)):
                break
        return now[0]


def formula_kernel(name: str) -> Callable[..., None]:
    """The kernel of an operation that has a scalar expression, chunk by chunk."""

    def kernel(xp: Any, out: Any, *operands: Any) -> None:
        if not out.size:
            return
        dense = out if out.flags.c_contiguous else xp.empty(out.shape, out.dtype)
        target = dense.reshape(-1)
        flat = [
            x.reshape(-1) if x.size == 1 else xp.broadcast_to(x, out.shape).reshape(-1)
            for x in operands
        ]
        for start in range(0, target.size, CHUNK):
            part = slice(start, start + CHUNK)
            lines = ArrayLines(xp)
            ins = [_widened(lines, x if x.size == 1 else x[part]) for x in flat]
            dtype = float32 if out.dtype in HALVES else out.dtype
            target[part] = lower(name, ins, dtype).name
        if dense is not out:  # which lies with gaps
            out[...] = dense

    return kernel


def _widened(lines: ArrayLines, x: Any) -> Value:
    x = x.astype(float32) if x.dtype in HALVES else x
    return Value(lines, x, x.dtype)
