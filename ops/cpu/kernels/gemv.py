"""A vector times a matrix of long rows, or a matrix times a vector where its columns lie in one piece, where
memory limits them. Rows are read in four streams that lie far from each other: each goes on from row to row
without a step, as processors like to read ahead. BLAS reads neighbouring rows side by side, and begins anew
with each few of them.

What is summed in which order depends on extents only, so bits do not depend on threads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DTYPES, DType, float32, float64, int64, uint8
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits
from ostinato.ops.cpu.jit.parallel import TABLES, around
from ostinato.ops.cpu.jit.routine import Routine, functions, smaller
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.stacks import Stack
from ostinato.ops.jit.values import Value

STREAMS = 4
PART = LIMITS.part_bytes
PARTS = 32  # ... in so many parts at the most
BLOCK = LIMITS.sums_bytes
WIDE = LIMITS.streamed_row
MIN_STREAMED_BYTES = LIMITS.streamed_matrix
TALL = 4  # ... and rows for each of these
FACTS = ("first", "rows", "columns", "row", "step", "parts")  # behind turns and threads


def can_stream(a: Stack) -> bool:
    """Whether a matrix's columns lie in one piece each."""
    return len(a.shape) == 2 and a.dtype in (float32, float64) and a.strides[-2] == 1 != a.shape[-2]


def streams_pay(a: Stack) -> bool:
    """Whether they are quicker than BLAS for this matrix and a column, as timed over a grid of shapes."""
    (rows, terms), item = a.shape[-2:], a.dtype.itemsize
    return (
        rows * item >= WIDE and terms >= TALL * rows and rows * terms * item >= MIN_STREAMED_BYTES
    )


def vector_product(a: Stack, b: Stack, out: Stack, turned: bool, threads: int) -> Any:
    """The function of three arrays for the product of a matrix with one column; `turned`: the matrix is
    the second array. None if the vector has gaps."""
    (rows, terms), item = a.shape[-2:], a.dtype.itemsize
    if (terms > 1 and b.strides[-2] != 1) or b.shape[-1] != 1:
        return None
    along, step = a.strides[-1] * item, out.strides[-2] * item
    parts = max(1, min(PARTS, rows * terms * item // PART))
    facts = [parts, min(threads, parts), turned, terms, rows, along, step, parts]
    waiting = np.zeros(-(-parts * rows * item // 8), np.int64)
    text = _text(a.dtype.name, vector_bits() // 8 // item, BLOCK // item)
    return function_of(text, np.concatenate([facts, waiting]))


@lru_cache(8)
def _text(dtype: str, lanes: int, block: int) -> str:
    """Sums of parts wait behind the facts."""
    kind, at = DTYPES[dtype], {name: k for k, name in enumerate(FACTS, 2)}
    facts = {"rows": at["columns"], "row": at["step"], "parts": at["parts"]}
    last = added_up(kind, facts, columns=1, column=0, room=2 + len(FACTS))
    return "\n".join([TABLES, *functions(last, _columns(kind, lanes, block)), around(3)])


def added_up(dtype: DType, facts: Mapping[str, int], **known: int) -> Routine:
    """`finish`: parts of a sum, which wait in memory, become elements of a result of rows and columns. What
    it needs to know are facts, or numbers."""
    made = Routine(None, "finish", data=[int64], meta=[int64])
    data, meta = made.given
    about = {name: meta[k] for name, k in facts.items()}
    about |= {name: made.whole(n) for name, n in known.items()}
    rows, columns, parts = (about[name] for name in ("rows", "columns", "parts"))
    result, waiting = made.memory(data[2], uint8), meta.further(about["room"]).view(dtype)
    every = rows * columns
    with made.given_that(parts > 0), made.each(every) as e:
        total = made.variable(made.lines.constant(0, dtype))
        with made.each(parts) as p:
            total.now = total.now + waiting[p * every + e]
        i, j = (made.lines.do(word, int64, e, columns) for word in ("udiv", "urem"))
        result.further(i * about["row"] + j * about["column"]).view(dtype)[0] = total.now
    return made


def _columns(dtype: DType, lanes: int, block: int) -> Routine:
    """`body`: a part's rows are added up block after block of the columns, four of them at a time, then the
    rest."""
    made = Routine(None, "body", data=[int64], meta=[int64], lo=int64, hi=int64, thread=int64)
    data, meta, lo, hi, _ = made.given
    first, rows, columns, row, _, parts = (meta[2 + k] for k in range(len(FACTS)))
    matrix, vector = (
        made.memory(data[k], kind) for k, kind in ((first, uint8), (1 - first, dtype))
    )

    def more(total: Value, terms: Any) -> Value:
        for x, y in terms:
            total = total.lines.call("fmuladd", dtype, x, y, total)
        return total

    with made.each(hi, lo) as o:
        begin, stop = (made.lines.do("sdiv", int64, n * rows, parts) for n in (o, o + 1))
        apart = made.lines.do("udiv", int64, stop - begin, made.whole(STREAMS))
        sums = meta.further(2 + len(FACTS)).view(dtype).further(o * columns)
        with made.each(columns, step=block) as c:
            end = smaller(c + block, columns)
            full = end - ((end - c) & (lanes - 1))
            with made.each(end, c) as k:
                sums[k] = made.lines.constant(0, dtype)
            with made.each(apart) as i:
                which = [begin + i + apart * s for s in range(STREAMS)]
                lines = [matrix.further(r * row).view(dtype) for r in which]
                numbers = [vector[r] for r in which]
                wide = [made.spread(x, lanes) for x in numbers]
                with made.each(full, c, step=lanes) as j:
                    terms = [(a.lanes(j, lanes), x) for a, x in zip(lines, wide, strict=True)]
                    sums.put(j, more(sums.lanes(j, lanes), terms))
                with made.each(end, full) as j:
                    sums[j] = more(
                        sums[j], [(a[j], x) for a, x in zip(lines, numbers, strict=True)]
                    )
            with made.each(stop, begin + apart * STREAMS) as r:
                line, x = matrix.further(r * row).view(dtype), vector[r]
                with made.each(end, c) as k:
                    sums[k] = more(sums[k], [(line[k], x)])
    return made
