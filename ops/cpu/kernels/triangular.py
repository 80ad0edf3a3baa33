"""Triangular systems as machine code: stacks of small matrices, and few right-hand sides, that are shared among
threads; what is larger is BLAS's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.spec import DType
from ostinato.ops.cpu.jit.emitter import Code
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits, why_not
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.loops import loops_over
from ostinato.ops.linalg.factorizations import SINGULAR

from .element_code import ElementCode, text_of

MAX_ROWS, MAX_COLUMNS = 256, 64  # rows, and columns on the right, of what is BLAS's


class TriangularKey(NamedTuple):
    """What a text depends on."""

    dtype: DType
    upper: bool
    unit: bool
    one: bool  # whether there is one column on the right
    straight: bool  # whether columns lie without steps
    bits: int


_FACTS = (
    *("turns", "threads", "n", "columns", "wide", "groups", "dims"),
    *("down0", "along0", "down1", "along1", "down2", "along2"),
)


def triangular_kernel(
    arrays: Sequence[Any], threads: int, *, upper: bool, unit: bool, **_: Any
) -> Any:
    """The function of matrices, right-hand sides and results that lie so; None if the operation's own
    kernel does it."""
    (n, columns), batch = arrays[2].shape[-2:], arrays[2].shape[:-2]
    if why_not() or not arrays[2].size or n > MAX_ROWS or columns > MAX_COLUMNS:
        return None
    whole = [np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in arrays]
    loops = loops_over(batch, [x.strides[:-2] for x in whole])
    axes = list(zip(loops.extents, *loops.strides, strict=True))
    many, dtype = math.prod(a[0] for a in axes), arrays[2].dtype
    work = many * n * n * columns // 2
    worth = 0 if work <= LIMITS.scan_quick else max(1, min(threads, work // LIMITS.scan_wake))
    facts = [many, min(worth, many), n, columns, columns, 1, len(axes)]
    facts += [s for x in whole for s in x.strides[-2:]]
    straight = all(x.strides[-1] == dtype.itemsize for x in whole[1:])
    form = TriangularKey(dtype, upper, unit, columns == 1, straight, vector_bits())
    run = function_of(_text(form), np.array([*facts, *(n for a in axes for n in a)], np.int64))

    def solve(a: Any, b: Any, out: Any) -> None:
        if not np.diagonal(a, 0, -2, -1).all():
            raise np.linalg.LinAlgError(SINGULAR)
        run(a, b, out)

    return run if unit else solve


# -- text ----------------------------------------------------------------------------------
@lru_cache(32)
def _text(form: TriangularKey) -> str:
    code = Code()
    writer = _Writer(form, code)
    with code.loop("%lo", "%hi") as t:
        a, b, out = code.begins(t, (0, 1, 2))
        with code.loop("0", "%n") as r:
            i = code.let(f"sub i64 %last, {r}") if form.upper else r
            (writer.one if form.one else writer.several)(a, b, out, i)
    return text_of(code, _FACTS, 3, ["  %last = sub i64 %n, 1"])


class _Writer(ElementCode):
    """A row of a system, from those that are solved."""

    def __init__(self, form: TriangularKey, code: Code) -> None:
        super().__init__(code, form.dtype)
        self.form = form
        self.steps = [str(self.item) if form.straight else f"%along{k}" for k in (1, 2)]

    def known(self, i: str) -> tuple[str, str]:
        """Which rows are solved."""
        return (self.code.sum(i, "1"), "%n") if self.form.upper else ("0", i)

    def one(self, a: str, b: str, out: str, i: str) -> None:
        code, row = self.code, self.advance(a, i, "%down0")
        rest = code.cell(self.dtype)
        code.put(rest, self.load(self.advance(b, i, "%down1")))
        with code.loop(*self.known(i)) as j:
            factor = self.load(self.advance(row, j, "%along0"))
            x = self.load(self.advance(out, j, "%down2"))
            code.put(rest, code.get(rest, self.dtype) - factor * x)
        made = code.get(rest, self.dtype)
        if not self.form.unit:
            made = made / self.load(self.advance(row, i, "%along0"))
        self.store(made, self.advance(out, i, "%down2"))

    def several(self, a: str, b: str, out: str, i: str) -> None:
        code, row = self.code, self.advance(a, i, "%down0")
        given, made = self.advance(b, i, "%down1"), self.advance(out, i, "%down2")
        with code.loop("0", "%columns", lanes=self.part) as c:
            self.store(
                self.load(self.advance(given, c, self.steps[0])),
                self.advance(made, c, self.steps[1]),
            )
        with code.loop(*self.known(i)) as j:
            factor, x = self.load(self.advance(row, j, "%along0")), self.advance(out, j, "%down2")
            with code.loop("0", "%columns", lanes=self.part) as c:
                at = self.advance(made, c, self.steps[1])
                before = self.load(self.advance(x, c, self.steps[1]))
                self.store(self.load(at) - factor * before, at)
        if not self.form.unit:
            pivot = self.load(self.advance(row, i, "%along0"))
            with code.loop("0", "%columns", lanes=self.part) as c:
                at = self.advance(made, c, self.steps[1])
                self.store(self.load(at) / pivot, at)
