"""How kernels combine values: sums, the largest, the smallest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.monoid import MONOIDS, identity
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, float32, float64, real_of

from .labels import combines
from .pairs import Pair
from .scalar import Part, expression, lower, number
from .values import Lines, Value, bits, cast, fma, unbits, where


@dataclass(frozen=True, slots=True)
class Combination:
    """A reduction in a kernel: what goes in, how it is combined, where it goes."""

    out: int  # which result
    value: Value
    kind: str  # its monoid
    dtype: DType
    divisor: str = ""  # the register of what it is divided by
    part: int = 0  # which part of the result: of complex numbers, 1 is the imaginary one

    @property
    def start(self) -> Any:
        return start_of(self.kind, self.dtype)

    @property
    def compensated(self) -> bool:
        return self.kind == "sum" and self.dtype.kind == "f"

    @property
    def ordered(self) -> bool:
        return has_order(self.kind, self.dtype)

    @property
    def inside(self) -> tuple[DType, Any]:
        """The dtype in which many are combined, and what that begins with."""
        if not self.ordered:
            return self.dtype, self.start
        dtype = whole_of(self.dtype)
        return dtype, first_of(self.kind, dtype)


def element(
    body: Graph, lines: Lines, loads: Sequence[Value], known: Mapping[Part, str]
) -> tuple[list[tuple[int, Value]], list[Combination]]:
    """Emit one element of a kernel's body: results by their places behind the operands, and what
    reductions take. `known`: the registers of numbers that are data."""

    def told(v: int, part: int) -> Value | None:
        name = known.get((v, part))
        return None if name is None else Value(lines, name, real_of(body.specs[v].dtype))

    values = list(loads)
    for node in body.nodes:
        ins, dtype = [values[v] for v in node.inputs], node.specs[0].dtype
        if node.op == "constant":
            values.append(number(lines, node, len(values), told))
        else:
            values.append(lower(node.op, ins, dtype))
    return results(body, dict(enumerate(values)), known)


def results(
    body: Graph, values: Mapping[int, Value], known: Mapping[Part, str]
) -> tuple[list[tuple[int, Value]], list[Combination]]:
    """Values and reductions of a body's outputs, element by element."""
    made, sums = list[tuple[int, Value]](), list[Combination]()
    for k, v in enumerate(body.outputs, len(body.inputs)):
        maker = body.nodes[body.producers[v]] if body.producers[v] >= 0 else None
        if maker is not None and OPS[maker.op].reduce:
            kind, _ = combines(body, maker)
            value, count = values[v], known.get((v, 0), "")
            parts = (value.real, value.imag) if isinstance(value, Pair) else (value,)
            sums += [Combination(k, x, kind, x.dtype, count, n) for n, x in enumerate(parts)]
        else:
            made.append((k, values[v]))
    return made, sums


def start_of(kind: str, dtype: DType) -> Any:
    """Return the value that combining begins with."""
    return np.asarray(identity(kind, dtype)).item()


def joined(kind: str, a: Value, b: Value, flags: str = "") -> Value:
    """Two values combined; `flags` say what LLVM may do with sums of floats."""
    if isinstance(a, Pair) and isinstance(b, Pair):
        return a.each(lambda x, y: joined(kind, x, y, flags), b)
    scalar, order = MONOIDS[kind].scalar, MONOIDS[kind].order
    if order and a.dtype.kind == "f":
        return a.lines.call(f"{order}imum", a.dtype, a, b)
    if order:
        return where(a > b if order == "max" else a < b, a, b)
    if (word := _FREE.get(scalar)) and flags and a.dtype.kind == "f":
        return a.lines.do(f"{word} {flags}", a.dtype, a, b)
    return cast(expression(scalar, (a, b)), a.dtype)


def carried(kind: str, before: Value, x: Value) -> Value:
    """The next of what is combined in order. NumPy keeps the first of two zeros, and NaN."""
    if (order := MONOIDS[kind].order) and x.dtype.kind == "f":
        wins = x > before if order == "max" else x < before
        return where(wins | (x != x), x, before)
    return joined(kind, before, x)


_FREE = {"{0} + {1}": "fadd", "{0} * {1}": "fmul"}  # what flags are said of
_WHOLE = ("{0} | {1}", "{0} & {1}", "{0} ^ {1}")


def is_free(kind: str) -> bool:
    """Whether compilers find the lanes of a reduction, which combine a share each."""
    how = MONOIDS[kind]
    return bool(how.order) or how.scalar in (*_FREE, *_WHOLE)


def has_order(kind: str, dtype: DType) -> bool:
    """Whether the best of such numbers is better found among whole numbers (`ordered`): LLVM makes dozens
    of instructions of the maximum of a vector's floats, and none of it vectors where few are left over.
    """
    how = MONOIDS[kind]
    return bool(how.order) and how.width == 1 and dtype in (float32, float64)


def whole_of(dtype: DType) -> DType:
    """Whole numbers of as many bits."""
    return np.dtype(f"int{8 * dtype.itemsize}")


def first_of(kind: str, dtype: DType) -> int:
    """Return the whole number that a search for the best begins with; the other end is the best of
    all."""
    most = 2 ** (8 * dtype.itemsize - 1)
    return -most if kind == "max" else most - 1


def ordered(kind: str, x: Value) -> Value:
    """A whole number for a float, in the same order, that of -0.0 below that of 0.0; NaN's is the best."""
    return where(x != x, ~first_of(kind, x.dtype), _turned_below(bits(x)))


def unordered(n: Value) -> Value:
    """The float again."""
    return unbits(_turned_below(n))


def _turned_below(n: Value) -> Value:
    """Numbers below zero the other way round; twice is nothing."""
    top = 8 * n.dtype.itemsize - 1
    return n ^ ((n >> top) & (2**top - 1))


def compensated(total: Value, lost: Value, more: Value) -> tuple[Value, Value]:
    """The total with one more, and what rounding has lost so far (Neumaier)."""
    if isinstance(total, Pair) and isinstance(lost, Pair) and isinstance(more, Pair):
        real, lost_real = compensated(total.real, lost.real, more.real)
        imag, lost_imag = compensated(total.imag, lost.imag, more.imag)
        return Pair(real, imag), Pair(lost_real, lost_imag)
    made = total + more
    gone = where(abs(total) >= abs(more), (total - made) + more, (more - made) + total)
    return made, lost + where(abs(made) < math.inf, gone, 0)


def chan(
    n: Value, mean: Value, square: Value, m: Value, its: Value, squares: Value, inner: Value
) -> tuple[Value, Value]:
    """Mean and squared deviations of n and m rows together, of `inner` elements each."""
    share = m / (n + m)
    off = its - mean
    apart = where(n * m == 0, 0, off)  # whose square may be infinite
    return moved(mean, off, share, its), square + squares + apart * apart * (n * share * inner)


def moved(mean: Value, off: Value, share: Value, more: Value) -> Value:
    """A mean moved by a share of what another one is off; infinite ones stay as sums would."""
    return where(abs(mean) < math.inf, fma(off, share, mean), mean + more)
