"""A product whose rows are reduced as they are made, as distances of which the least is wanted: one kernel, so
that the matrix is never in memory.

    block      has some rows and all of their columns: tile after tile, in registers (tiles.py)
    thread     makes what is made of its elements, and combines that along each of its rows, in order
    at the end the threads of a row, which are lanes of a warp, put together what they have, in pairs

What is made of an element may also read what lies over the matrix: all of it, a number for each row, or one
for each column. Who combines what depends on extents, dtypes and the kind of GPU only, and sums keep what
rounding loses, so bits are the same in each run. Prices are those of tiles.py, and an instruction for each
statement behind the sums."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Shape, int32, strided_like
from ostinato.ops.jit.epilogues import begin_of
from ostinato.ops.jit.labels import combines
from ostinato.ops.jit.scalar import lower, number
from ostinato.ops.jit.stacks import Stack, stacked
from ostinato.ops.jit.values import Value, cast

from ..jit.lines import CudaLines, c_type
from .text import Kernel
from .tiles import (
    BEGIN,
    COLUMN,
    END,
    LIMITS,
    MULTIPLY,
    ROW,
    TileRates,
    TileText,
    Tiling,
    seconds,
    tilings,
)
from .totals import Total, reduce_warp


def kernel_of(body: Graph, arrays: Sequence[Any], rates: TileRates) -> Kernel | None:
    """Make the kernel of a body that begins with a product and ends with reductions of its rows, for operands
    and results that lie so; None where there is nothing to do, or an array begins between elements."""
    node, count = body.nodes[begin_of(body)], len(body.inputs)
    arrays = [strided_like(x.shape, x.dtype, x.strides) for x in arrays]  # without memory
    a, b = (arrays[v] for v in node.inputs)
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    rest = sorted({v for n in body.nodes if n is not node for v in n.inputs if v < count})
    over = [*(x[..., None] for x in arrays[count:]), *(arrays[v] for v in rest)]
    found = stacked(a, b, *(np.broadcast_to(x, shape) for x in over))
    best = fastest(body, shape, a.shape[-1], rates)
    if found is None or best is None or len(found[2].shape) > 6:
        return None
    places = [*node.inputs, *range(count, len(arrays)), *rest]
    return RowsText(best[1], found, body, places).kernel()


def fastest(body: Graph, shape: Shape, terms: int, rates: TileRates) -> tuple[float, Tiling] | None:
    """Return the seconds of the fastest tiling for a product of such a shape, and it."""
    node = body.nodes[begin_of(body)]
    lines = CudaLines()
    dtypes = [s.dtype for s in body.specs]
    loads = {v: Value(lines, f"x{v}", dtype) for v, dtype in enumerate(dtypes)}
    totals = totals_of(body, "")
    _combine(body, lines, loads, totals, "place")
    whole = [s for s in body.inputs if s.shape == node.specs[0].shape]
    (m, n), count = shape[-2:], math.prod(shape[:-2])
    # what combines two comparisons is a part of the second one
    behind = len(whole) + sum("= (bool)(" not in line for line in lines.text)
    more = m * n * count * sum(s.dtype.itemsize for s in whole)
    kept = sum(-(-d.itemsize // 4) for t in totals.values() for _, d, _ in t.registers)
    return _fastest(m, n, terms, count, dtypes[body.starts[begin_of(body)]], rates,
                    behind, more, kept)  # fmt: skip


@functools.lru_cache(4096)
def _fastest(
    m: int, n: int, k: int, count: int, dtype: DType, rates: TileRates, behind: int, more: int,
    kept: int,
) -> tuple[float, Tiling] | None:  # fmt: skip
    """`kept`: registers of what is combined of a row."""
    if not (m and n and k and count) or n >= 1 << 31:
        return None
    able = find_tilings(m, n, k, count, dtype, rates, kept)
    priced = ((seconds(t, m, n, k, count, dtype, rates, float(behind), more), t) for t in able)
    return min(priced, key=lambda pair: pair[0], default=None)


def find_tilings(
    m: int, n: int, k: int, count: int, dtype: DType, rates: TileRates, kept: int
) -> list[Tiling]:
    """List those for which a block has registers, `kept` for each row besides, and shared memory."""
    size = dtype.itemsize
    return [
        t for t in tilings(m, n, k, count, dtype, rates)
        if t.slices == 1
        and t.registers(size) + t.down * kept < 256
        and t.shared_bytes(t.through(n, k), size) <= LIMITS.shared
    ]  # fmt: skip


def totals_of(body: Graph, n: str) -> dict[int, Total]:
    """Name the registers of each reduction, by its node; their names end with `n`."""
    return {
        k: Total(combines(body, node)[0], node.specs[0].dtype, f"{k}{n}", places=int32)
        for k, node in enumerate(body.nodes)
        if OPS[node.op].reduce is not None and not OPS[node.op].product
    }


def _combine(
    body: Graph, lines: CudaLines, loads: Mapping[int, Value], totals: Mapping[int, Total],
    place: str,
) -> None:  # fmt: skip
    """Make what is made of an element of the product, and combine it with those before. `loads`: the product's
    and the operands' elements."""
    values = dict(loads)
    for k, node in enumerate(body.nodes):
        v, ins = body.starts[k], [values[u] for u in node.inputs if u in values]
        if node.op == "constant":
            values[v] = number(lines, node, v, lambda *_: None)
        elif k in totals:
            made = lower(node.op, ins, node.specs[0].dtype)
            totals[k].add(lines, made, Value(lines, place, int32))
        elif k != begin_of(body):
            values[v] = lower(node.op, ins, node.specs[0].dtype)


class RowsText(TileText):
    """The text of such a kernel."""

    prefix, along = "product_rows", True

    def __init__(
        self, tiling: Tiling, stacks: Sequence[Stack], body: Graph, places: Sequence[int]
    ) -> None:
        """`places`: which of what the kernel is given each of the stacks is."""
        (m, k), n = stacks[0].shape[-2:], stacks[1].shape[-1]
        super().__init__(tiling, stacks, (0, 1), (m, n, k))
        self.body, self.places = body, [*places]
        self.results = range(2, 2 + len(body.outputs))  # behind both matrices
        self.others = range(self.results.stop, len(stacks))
        self.totals = totals_of(body, "[i]")
        self.lines = CudaLines()

    def _loop(self) -> list[str]:
        """Behind the last terms of a tile its elements are combined, while the next one is on its way."""
        lines, begin = self.lines, begin_of(self.body)
        loads = {self.body.starts[begin]: Value(lines, "sums[i][j]", self.dtype)}
        for n in self.others:
            v, (down, across) = self.places[n], self.stacks[n].strides[-2:]
            at = [f"row * down{n}"] * (down != 0) + [f"(n0 + column) * across{n}"] * (across != 0)
            loads[v] = lines.load(f"p{n} + ({' + '.join(at) or '0'})", self.body.specs[v].dtype)
        _combine(self.body, lines, loads, self.totals, "place")
        kept = [one for total in self.totals.values() for one in total.registers]
        code = [f"{c_type(dtype)} {name.replace('[i]', '[TM]')};" for name, dtype, _ in kept]
        code += [_EACH_ROW, *(f"{name} = {first};" for name, _, first in kept), "}"]
        code += [BEGIN, _AHEAD, MULTIPLY, _DONE, *lines.text, _NEXT, END]
        return [line for part in code for line in part.splitlines()]

    def _end(self) -> list[str]:
        """The first of a row's threads writes what all of them have combined."""
        ends, lines = totals_of(self.body, "_"), self.lines
        code = [_EACH_ROW]
        for k, total in ends.items():
            pairs = zip(total.registers, self.totals[k].registers, strict=True)
            code += [f"{c_type(dtype)} {name} = {of};" for (name, dtype, _), (of, *_) in pairs]
        code += reduce_warp(lines, [*ends.values()], self.tiling.columns // self.tiling.across)
        lines.text = []
        found = dict[int, Value]()
        for k, total in ends.items():
            made = total.found(lines)
            found.update(zip(self.body.outs(k), made, strict=False))
        for n, v in zip(self.results, self.body.outputs, strict=True):
            lines.store(f"p{n} + row * down{n}", cast(found[v], self.body.specs[v].dtype))
        code += [f"const int row = {ROW};", "if (tx == 0 && here && row < below) {"]
        return [*code, *lines.text, "}", "}"]


_EACH_ROW = "#pragma unroll\nfor (int i = 0; i < TM; ++i) {"
_AHEAD = """\
  if (first >= terms) {
    first = 0;
    p1 += BN * across1;
    const s64 from = n0 + BN;
    right = (int)(columns - from < BN ? columns - from : BN);
  }"""
_DONE = f"""\
if (first == 0) {{
  const int wide = (int)(columns - n0 < BN ? columns - n0 : BN);
  #pragma unroll
  for (int j = 0; j < TN; ++j) {{
    const int column = {COLUMN};
    const s32 place = (s32)n0 + column;
    #pragma unroll
    for (int i = 0; i < TM; ++i) {{
      const int line = {ROW};
      const s64 row = line < below ? line : below - 1;
      if (column < wide) {{"""
_NEXT = """\
      }
      sums[i][j] = 0;
    }
  }
  n0 += BN;
}"""
