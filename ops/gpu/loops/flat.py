"""Elementwise operations, and reductions of their rows, as one CUDA kernel.

    without reductions    a thread makes a few neighbours, which it reads and writes as one vector where they
                          lie so; the rows of other layouts are blocks' second index
    with reductions       a row belongs to a thread, to a warp, or to a block, by its length; a single long
                          row to many blocks, of which the last one to end combines what the others left

Who adds what depends on extents only, and what rounding loses is kept (Neumaier), so a sum has the same bits
in each run. A kernel's text has neither extents nor strides, so that few kernels serve many shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import bool_, int64
from ostinato.ops.jit.combining import Combination, element
from ostinato.ops.jit.loops import Loops
from ostinato.ops.jit.moves import has_moves
from ostinato.ops.jit.random_bits import numbers_in
from ostinato.ops.jit.scalar import numbers
from ostinato.ops.jit.values import Value, cast

from ..jit.lines import CudaLines, c_type, memory_type
from .schedule import MAX_THREAD_TERMS, SOME, THREADS, VECTOR, WARP
from .text import Kernel, known_numbers, whole
from .totals import Total, reduce_block, reduce_warp

EACH = 16  # terms that a thread of many blocks adds at the least
MOST_BLOCKS = 1024  # that share a row
MOST_ROWS = 65535  # of blocks, in their second index
WIDE = 128  # elements of a row from which rows are blocks' second index


class ElementWriter:
    """One kernel's text."""

    def __init__(self, body: Graph, loops: Loops) -> None:
        self.body, self.loops = body, loops
        self.dtypes = [s.dtype for s in (*body.inputs, *body.out_specs)]
        self.last = len(loops.extents) - 1
        self.known = {part: f"known{n}" for n, part in enumerate(numbers(body))}
        self.steps = [s[-1] for s in loops.strides]
        self.counted = numbers_in(body)  # operands that only tell which element is which
        # a division of 64 bits takes a GPU as long as a hundred additions
        self.index = "u32" if math.prod(loops.extents) < 1 << 31 else "s64"

    # -- what it is given ----------------------------------------------------------------------
    def parameters(self) -> list[str]:
        given = [f"u8* q{k}" for k in range(len(self.dtypes))]
        given += [f"s64 e{d}" for d in range(self.last + 1)]
        for k in range(len(self.dtypes)):
            given += [f"s64 s{k}_{d}" for d in range(self.last + 1)]
        given += [f"s64 bits{n}" for n in range(len(self.known))]
        return given

    def facts(self) -> tuple[int, ...]:
        flat = [x for steps in self.loops.strides for x in steps]
        return (*self.loops.extents, *flat, *numbers(self.body).values())

    def rows(self) -> list[str]:
        """Where operands and results begin in row `o`."""
        found = [f"u8* p{k} = q{k};" for k in range(len(self.dtypes))]
        if self.last:
            found.append(f"{self.index} rest = ({self.index})o;")
        for d in reversed(range(self.last)):
            extent = f"({self.index})e{d}"
            found.append(f"const s64 x{d} = {f'rest % {extent}' if d else 'rest'};")
            found += [f"rest /= {extent};"] if d else []
            found += [f"p{k} += s{k}_{d} * x{d};" for k in range(len(self.dtypes))]
        return found

    # -- an element ----------------------------------------------------------------------------
    def element(
        self, lines: CudaLines, loads: dict[int, Value]
    ) -> tuple[list[tuple[int, Value]], list[Combination]]:
        """Emit one element: results, and terms of sums."""
        return element(self.body, lines, [loads[k] for k in range(len(loads))], self.known)

    def load(self, lines: CudaLines, k: int) -> Value:
        """Load element `i` of a row."""
        dtype = self.dtypes[k]
        if k in self.counted:
            return self.number(lines, k, "i")
        read = f"*(const {memory_type(dtype)}*)({self.address(k)})"
        return lines.write(f"{read} != 0" if dtype == bool_ else read, dtype)

    def number(self, lines: CudaLines, k: int, i: str) -> Value:
        """An element's number: how far it is from the first, whose own stands in memory."""
        further = f" + s{k}_{self.last} * ({i})" if self.steps[k] else ""
        return lines.write(f"*(const s64*)q{k} + (p{k} - q{k}){further}", int64)

    def store(self, lines: CudaLines, k: int, value: Value) -> None:
        kind = memory_type(self.dtypes[k])
        lines.text.append(f"*({kind}*)({self.address(k)}) = {value.name};")

    def address(self, k: int) -> str:
        size = self.dtypes[k].itemsize
        if self.steps[k] == 0:
            return f"p{k}"
        return f"p{k} + {f'{size} * i' if self.steps[k] == size else f's{k}_{self.last} * i'}"

    def one(self, lines: CudaLines) -> list[Combination]:
        """All of one element, from memory to memory."""
        loads = {k: self.load(lines, k) for k in range(len(self.body.inputs))}
        made, sums = self.element(lines, loads)
        for k, value in made:
            self.store(lines, k, value)
        return sums


def _lines_after(lines: CudaLines) -> CudaLines:
    """More statements of the same function."""
    more = CudaLines()
    more.count = lines.count
    more.declared = lines.declared
    return more


def kernel_of(body: Graph, loops: Loops) -> Kernel:
    """The kernel of a body whose operands and results lie so; `loops.extents[-1]` are the terms of a row
    where it has reductions."""
    return kernel_by(ElementWriter(body, loops))


def kernel_by(writer: ElementWriter) -> Kernel:
    """The kernel of a writer of elements."""
    reduces = any(OPS[n.op].reduce for n in writer.body.nodes)
    return _reducing(writer) if reduces else _mapping(writer)


def _kernel(
    writer: ElementWriter,
    code: Sequence[str],
    declared: set[str],
    grid: tuple[int, int],
    room: int = 0,
) -> Kernel:
    given = writer.parameters() + ["u8* room"] * (room > 0)
    code = [*known_numbers(writer.body, writer.known), *code]
    return whole("fused", given, code, declared, grid, writer.facts(), room)


# -- without reductions --------------------------------------------------------------------------
def _mapping(writer: ElementWriter) -> Kernel:
    *outer, inner = writer.loops.extents
    rows = math.prod(outer)
    each = _beside(writer)
    lines = CudaLines()
    if outer and inner < WIDE:  # an element for each thread, which finds its row
        writer.one(lines)
        code = [
            "const s64 n = (s64)blockIdx.x * blockDim.x + threadIdx.x;",
            f"if (n >= {' * '.join(f'e{d}' for d in range(writer.last + 1))}) return;",
            f"const {writer.index} at = ({writer.index})n, many = ({writer.index})e{writer.last};",
            "const s64 o = at / many, i = at % many;",
            *writer.rows(),
            *lines.text,
        ]
        return _kernel(writer, code, lines.declared, grid=(-(-rows * inner // THREADS), 1))
    writer.one(lines)
    end = f"e{writer.last}"
    code = [f"const s64 first = ((s64)blockIdx.x * blockDim.x + threadIdx.x) * {each};"]
    code += [f"if (first >= {end}) return;"]
    turn = writer.rows()
    if each > 1:
        wide = _lines_after(lines)
        _vectors(writer, wide, each)
        lines.declared |= wide.declared
        tests = " && ".join(
            f"((u64)p{k} & {each * dtype.itemsize - 1}) == 0"
            for k, dtype in enumerate(writer.dtypes)
            if writer.steps[k] and k not in writer.counted
        )
        turn += [f"if (first + {each} <= {end} && {tests}) {{", *wide.text, "} else {"]
        turn += [f"for (s64 i = first; i < {end} && i < first + {each}; ++i) {{"]
        turn += [*lines.text, "}", "}"]
    else:
        turn += ["const s64 i = first;", *lines.text]
    if outer:
        count = " * ".join(f"e{d}" for d in range(writer.last))
        code += [f"for (s64 o = blockIdx.y; o < {count}; o += gridDim.y) {{", *turn, "}"]
    else:
        code += turn
    grid = -(-inner // (THREADS * each)), max(1, min(rows, MOST_ROWS))
    return _kernel(writer, code, lines.declared, grid=grid)


def _beside(writer: ElementWriter) -> int:
    """Elements that a thread makes: as many as are one vector in memory, if all lie side by side."""
    if has_moves(writer.body):
        return 1
    lies = [
        (step, dtype.itemsize)
        for k, (step, dtype) in enumerate(zip(writer.steps, writer.dtypes, strict=True))
        if k not in writer.counted
    ]
    if any(step not in (0, size) for step, size in lies):
        return 1
    if not all(writer.steps[len(writer.body.inputs) :]):  # there is but one
        return 1
    return max(1, VECTOR // max(size for _, size in lies))


def _vectors(writer: ElementWriter, lines: CudaLines, each: int) -> None:
    """All of a few neighbours."""
    many = len(writer.body.inputs)
    for k in range(many):
        kind = memory_type(writer.dtypes[k])
        if writer.steps[k] and k not in writer.counted:
            lines.text.append(
                f"const Beside<{kind}, {each}> v{k} = *(const Beside<{kind}, {each}>*)"
                f"(p{k} + {writer.dtypes[k].itemsize} * first);"
            )
    outs = range(many, len(writer.dtypes))
    for k in outs:
        lines.text.append(f"Beside<{memory_type(writer.dtypes[k])}, {each}> v{k};")
    lines.text.append("#pragma unroll")
    lines.text.append(f"for (int j = 0; j < {each}; ++j) {{")
    loads = {}
    for k in range(many):
        dtype = writer.dtypes[k]
        if k in writer.counted:
            loads[k] = writer.number(lines, k, "first + j")
        elif not writer.steps[k]:
            loads[k] = writer.load(lines, k)
        else:
            tail = " != 0" if dtype == bool_ else ""
            loads[k] = lines.write(f"v{k}.at[j]{tail}", dtype)
    made, _ = writer.element(lines, loads)
    lines.text += [f"v{k}.at[j] = {value.name};" for k, value in made]
    lines.text.append("}")
    for k in outs:
        kind = memory_type(writer.dtypes[k])
        at = f"p{k} + {writer.dtypes[k].itemsize} * first"
        lines.text.append(f"*(Beside<{kind}, {each}>*)({at}) = v{k};")


# -- with reductions -----------------------------------------------------------------------------
def team_of(terms: int) -> int:
    """Threads that share a row."""
    if terms <= MAX_THREAD_TERMS:
        return 1
    return WARP if terms <= SOME else THREADS


def blocks_of(terms: int, rows: int) -> int:
    """Blocks that share a row, where there is only one."""
    if rows > 1 or team_of(terms) < THREADS:
        return 1
    return max(1, min(MOST_BLOCKS, terms // (THREADS * EACH)))


def _reducing(writer: ElementWriter) -> Kernel:
    *outer, terms = writer.loops.extents
    rows = math.prod(outer)
    team, blocks = team_of(terms), blocks_of(terms, rows)
    lines = CudaLines()
    sums = writer.one(lines)
    totals = [Total(s.kind, s.dtype, str(n)) for n, s in enumerate(sums)]
    added = _lines_after(lines)
    for total, s in zip(totals, sums, strict=True):
        total.add(added, Value(added, s.value.name, s.dtype))
    end, count = f"e{writer.last}", " * ".join(f"e{d}" for d in range(writer.last)) or "1"
    lane = f"threadIdx.x % {team}" if team < THREADS else "threadIdx.x"
    if team < THREADS:
        row = f"((s64)blockIdx.x * blockDim.x + threadIdx.x) / {team}"
    else:
        row = "blockIdx.x" if blocks == 1 else "0"
    code = [f"const s64 o = {row};", f"const int lane = {lane};"]
    # all threads of a block go on to the end, as they wait for each other there
    code += [f"const bool is_row = o < {count};", *writer.rows()]
    code += [line for total in totals for line in total.declared()]
    first = f"lane + (s64)blockIdx.x * {THREADS}" if blocks > 1 else "lane"
    step = f"{THREADS} * (s64)gridDim.x" if blocks > 1 else str(team)
    code += [
        f"if (is_row) for (s64 i = {first}; i < {end}; i += {step}) {{",
        *lines.text,
        *added.text,
        "}",
    ]
    declared = lines.declared | added.declared
    if team > 1:
        code += reduce_warp(added, totals)
    if team == THREADS:
        code += reduce_block(added, totals)
    declared |= added.declared
    if blocks > 1:
        code += _shared_by_blocks(added, totals)
        room = 16 + 16 * blocks * len(totals)
        code += _finished(added, writer, totals, sums)
        return _kernel(writer, code, declared, grid=(blocks, 1), room=room)
    code += ["if (is_row && lane == 0) {", *_results(added, writer, totals, sums), "}"]
    per_block = THREADS // team
    return _kernel(writer, code, declared, grid=(-(-rows // per_block), 1))


def _shared_by_blocks(lines: CudaLines, totals: Sequence[Total]) -> list[str]:
    """The block that ends last has them all, in their order. `room`: a count of those that have ended, and
    what each left."""

    def left(n: int, k: int, block: str) -> str:
        return f"room + {16 + 8 * k} + 16 * ({n} * gridDim.x + {block})"

    code = ["__shared__ bool is_last;", "if (threadIdx.x == 0) {"]
    for n, total in enumerate(totals):
        for k, (name, dtype, _) in enumerate(total.registers):
            code.append(f"*({c_type(dtype)}*)({left(n, k, 'blockIdx.x')}) = {name};")
    code += [
        "__threadfence();",
        "is_last = atomicAdd((u32*)room, 1u) + 1 == gridDim.x;",
        "}",
        "__syncthreads();",
        "if (!is_last) return;",
        "__threadfence();",
    ]
    inner = _lines_after(lines)
    for n, total in enumerate(totals):
        names = []
        for k, (name, dtype, first) in enumerate(total.registers):
            code.append(f"{name} = {first};")
            kind = c_type(dtype)
            inner.text.append(f"const {kind} left_{name} = *(volatile {kind}*)({left(n, k, 'b')});")
            names.append(f"left_{name}")
        total.merge(inner, names)
    lines.count = inner.count
    code.append("for (u32 b = threadIdx.x; b < gridDim.x; b += blockDim.x) {")
    return [*code, *inner.text, "}", "__syncthreads();"]


def _finished(
    lines: CudaLines, writer: ElementWriter, totals: Sequence[Total], sums: Sequence[Combination]
) -> list[str]:
    """The last block's total; its memory is as it was."""
    code = reduce_warp(lines, totals) + reduce_block(lines, totals, again=True)
    results = _results(lines, writer, totals, sums)
    return [*code, "if (threadIdx.x == 0) {", "*(u32*)room = 0;", *results, "}"]


def _results(
    lines: CudaLines, writer: ElementWriter, totals: Sequence[Total], sums: Sequence[Combination]
) -> list[str]:
    made = _lines_after(lines)
    for total, s in zip(totals, sums, strict=True):
        (found,) = total.found(made)
        if s.divisor:
            found = found / Value(made, s.divisor, s.dtype)
        found = cast(found, writer.dtypes[s.out])
        made.text.append(f"*({memory_type(writer.dtypes[s.out])}*)p{s.out} = {found.name};")
    lines.count = made.count
    lines.declared |= made.declared
    return made.text
