"""One CUDA kernel over several groups of arrays with the same expression (ops/jit/foreach_parts.py).

A kernel is given one table by value: the addresses of all arrays, each part's elements, and the first block of
each. A block finds its part there, and does what blocks of that part's own kernel do (flat.py)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.graph import Graph
from ostinato.ops.jit.foreach_parts import reduces
from ostinato.ops.jit.loops import Loops
from ostinato.ops.jit.scalar import numbers

from ..jit.lines import CudaLines
from .flat import (
    ElementWriter,
    adding,
    blocks_of,
    finished,
    lines_after,
    neighbours_of,
    shared_by_blocks,
    vectors,
)
from .schedule import THREADS
from .text import Kernel, known_numbers, whole
from .totals import reduce_block, reduce_warp

COPIES = 4000 // 24  # of one launch, whose table is passed by value: 4 KB at the most


class Launch(NamedTuple):
    """A kernel, and what it is given before its facts: a table whose first words are addresses."""

    kernel: Kernel
    table: Any


def foreach_kernel(body: Graph, steps: Sequence[int], extents: Sequence[int]) -> Launch:
    """The kernel of parts that have this body, so many elements each, and bytes from each to the next of each
    operand and result: its size, or none."""
    writer = ElementWriter(body, Loops((sum(extents),), tuple([(s,) for s in steps])))
    words = len(extents) * len(steps)
    if reduces(body):
        blocks = [blocks_of(n, 1) for n in extents]
        code, declared, totals = _reducing(writer)
        room = 16 * (len(extents) + totals * sum(blocks))
    else:
        each, room = neighbours_of(writer), 0
        blocks = [-(-n // (THREADS * each)) for n in extents]
        code, declared = _mapping(writer, each)
    given = ["const Table table", *(f"s64 bits{n}" for n in range(len(writer.known)))]
    given += ["u8* room"] * (room > 0)
    facts = [*accumulate(blocks, initial=0)]
    table = np.zeros((), [("words", np.int64, (words + len(extents) + len(facts),))])
    table["words"][words:] = [*extents, *facts]
    declared = declared | {f"struct Table {{ s64 words[{table['words'].size}]; }};"}
    code = [*known_numbers(body, writer.known), *_found(len(extents), len(steps)), *code]
    kernel = whole(
        "foreach", given, code, declared, (facts[-1], 1), (*numbers(body).values(),), room
    )
    return Launch(kernel, table)


def copy_kernel() -> Launch:
    """The kernel of copies of bytes, each a row of blocks: its table has where to, from where, and how many."""
    table = np.zeros((), [("words", np.int64, (3 * COPIES,))])
    code = [
        "u8* const to = (u8*)table.words[3 * blockIdx.y];",
        "const u8* const from = (const u8*)table.words[3 * blockIdx.y + 1];",
        "const s64 size = table.words[3 * blockIdx.y + 2];",
        "const s64 vectors = ((u64)to | (u64)from) % 16 ? 0 : size / 16;",
        f"const s64 mine = (s64)blockIdx.x * {THREADS} + threadIdx.x, all = (s64)gridDim.x * {THREADS};",
        "for (s64 i = mine; i < vectors; i += all)",
        "  ((Beside<u32, 4>*)to)[i] = ((const Beside<u32, 4>*)from)[i];",
        "for (s64 i = 16 * vectors + mine; i < size; i += all) to[i] = from[i];",
    ]
    declared = {f"struct Table {{ s64 words[{3 * COPIES}]; }};"}
    return Launch(whole("copies", ["const Table table"], code, declared, (1, 1), ()), table)


def _found(parts: int, arrays: int) -> list[str]:
    """The part of a block, its elements, its blocks and which of these this is, and its arrays."""
    many, first = f"table.words[{parts * arrays} + part]", parts * (arrays + 1)
    return [
        "u32 part = 0;",
        f"for (u32 far = {1 << (parts - 1).bit_length() >> 1}; far > 0; far /= 2)",
        f"  if (part + far < {parts} && table.words[{first} + part + far] <= blockIdx.x) part += far;",
        f"const s64 e0 = {many}, begin = table.words[{first} + part];",
        f"const u32 block = blockIdx.x - begin, blocks = table.words[{first + 1} + part] - begin;",
        *(f"u8* const q{k} = (u8*)table.words[{arrays} * part + {k}];" for k in range(arrays)),
    ]


def _mapping(writer: ElementWriter, each: int) -> tuple[list[str], set[str]]:
    """Elements, of which a thread makes a few neighbours."""
    lines = CudaLines()
    writer.one(lines)
    code = [f"const s64 first = ((s64)block * blockDim.x + threadIdx.x) * {each};"]
    code += ["if (first >= e0) return;", *writer.rows()]
    if each == 1:
        return [*code, "const s64 i = first;", *lines.text], lines.declared
    wide = lines_after(lines)
    code += vectors(writer, wide, lines, each, "e0")
    return code, lines.declared | wide.declared


def _reducing(writer: ElementWriter) -> tuple[list[str], set[str], int]:
    """Sums of all elements of a part, which blocks share; and how many there are."""
    lines = CudaLines()
    added, totals, sums = adding(writer, lines)
    code = [*writer.rows(), *(line for total in totals for line in total.declared())]
    code += [
        "#pragma unroll 4",
        f"for (s64 i = threadIdx.x + (s64)block * {THREADS}; i < e0; i += {THREADS} * (s64)blocks) {{",
        *lines.text,
        *added.text,
        "}",
        *reduce_warp(added, totals),
        *reduce_block(added, totals),
        f"u8* const mine = room + 16 * (part + {len(totals)} * begin);",
        *shared_by_blocks(added, totals, "block", "blocks"),
        *finished(added, writer, totals, sums),
    ]
    return code, lines.declared | added.declared, len(totals)
