"""Elementwise operations, and reductions of their rows, as one CUDA kernel.

    without reductions    a thread makes a few neighbours, which it reads and writes as one vector where they
                          lie so; the rows of other layouts are blocks' second index
    with reductions       a row belongs to a thread, to a warp, or to a block, by its length; a single long
                          row to many blocks, of which the last one to end combines what the others left

Who adds what depends on extents only, and what rounding loses is kept (Neumaier), so a sum has the same bits
in each run. A kernel's text has neither extents nor strides, so that few kernels serve many shapes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import bool_, int64
from ostinato.ops.jit.combining import (
    Reduction,
    compensated,
    element,
    joined,
    ordered,
    unordered,
)
from ostinato.ops.jit.loops import SUMS, Loops
from ostinato.ops.jit.random_bits import numbers_in
from ostinato.ops.jit.scalar import numbers
from ostinato.ops.jit.values import Value, cast

from ..jit.lines import CudaLines, c_type, literal, memory_type

# IEEE's arithmetic, as on a CPU: no product becomes part of a sum, and denormal numbers are numbers
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
THREADS = 256  # of a block
WARP = 32
VECTOR = 16  # bytes that a thread reads at once
FEW = 8  # terms of a row that a thread adds
SOME = 1024  # terms of a row that a warp adds
EACH = 16  # terms that a thread of many blocks adds at the least
MOST_BLOCKS = 1024  # that share a row
MOST_ROWS = 65535  # of blocks, in their second index
WIDE = 128  # elements of a row from which rows are blocks' second index


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's text, how it is launched, and what it is given behind the addresses of operands and
    results: extents, strides, numbers (all int64), room for partial results."""

    name: str
    text: str
    grid: tuple[int, int]
    facts: tuple[int, ...]
    room: int = 0  # bytes, which are zero when it begins and when it ends


class _Writer:
    """One kernel's text."""

    def __init__(self, body: Graph, loops: Loops) -> None:
        self.body, self.loops = body, loops
        self.dtypes = [s.dtype for s in (*body.inputs, *body.out_specs)]
        self.last = len(loops.extents) - 1
        self.known = {v: f"known{n}" for n, v in enumerate(numbers(body))}
        self.steps = [s[-1] for s in loops.strides]
        self.counted = numbers_in(body)  # operands that only tell which element is which
        # a division of 64 bits takes a GPU as long as a hundred additions
        self.index = "u32" if math.prod(loops.extents) < 1 << 31 else "s64"

    # -- what it is given ----------------------------------------------------------------------
    def parameters(self) -> str:
        given = [f"u8* q{k}" for k in range(len(self.dtypes))]
        given += [f"s64 e{d}" for d in range(self.last + 1)]
        for k in range(len(self.dtypes)):
            given += [f"s64 s{k}_{d}" for d in range(self.last + 1)]
        given += [f"s64 bits{n}" for n in range(len(self.known))]
        return ", ".join(given)

    def facts(self) -> tuple[int, ...]:
        flat = [x for steps in self.loops.strides for x in steps]
        return (*self.loops.extents, *flat, *numbers(self.body).values())

    def numbers(self) -> list[str]:
        """The numbers that are data, by their bits."""
        found = []
        for v, name in self.known.items():
            kind, bits = c_type(self.body.specs[v].dtype), f"bits{name[5:]}"
            made = {
                "float": f"__uint_as_float((u32){bits})",
                "double": f"__longlong_as_double({bits})",
            }.get(kind, f"({kind}){bits}")
            found.append(f"const {kind} {name} = {made};")
        return found

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
    ) -> tuple[list[tuple[int, Value]], list[Reduction]]:
        """What one element gives: results, and terms of sums."""
        return element(self.body, lines, [loads[k] for k in range(len(loads))], self.known)

    def load(self, lines: CudaLines, k: int) -> Value:
        """Of element `i` of a row."""
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

    def one(self, lines: CudaLines) -> list[Reduction]:
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
    reduces = any(n.op in SUMS for n in body.nodes)
    writer = _Writer(body, loops)
    return _reducing(writer) if reduces else _mapping(writer)


def _kernel(writer: _Writer, code: Sequence[str], declared: set[str], **how: object) -> Kernel:
    given = writer.parameters() + (", u8* room" if how.get("room") else "")
    inner = "\n".join(f"  {line}" for line in (*writer.numbers(), *code))
    text = "\n".join(sorted(declared))
    name = f"fused_{hashlib.blake2b((text + given + inner).encode(), digest_size=8).hexdigest()}"
    head = f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}({given})'
    whole = f"{PREAMBLE}{text}\n{head} {{\n{inner}\n}}\n"
    return Kernel(name, whole, facts=writer.facts(), **how)  # type: ignore[arg-type]


# -- without reductions --------------------------------------------------------------------------
def _mapping(writer: _Writer) -> Kernel:
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


def _beside(writer: _Writer) -> int:
    """Elements that a thread makes: as many as are one vector in memory, if all lie side by side."""
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


def _vectors(writer: _Writer, lines: CudaLines, each: int) -> None:
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
    if terms <= FEW:
        return 1
    return WARP if terms <= SOME else THREADS


def blocks_of(terms: int, rows: int) -> int:
    """Blocks that share a row, where there is only one."""
    if rows > 1 or team_of(terms) < THREADS:
        return 1
    return max(1, min(MOST_BLOCKS, terms // (THREADS * EACH)))


def _reducing(writer: _Writer) -> Kernel:
    *outer, terms = writer.loops.extents
    rows = math.prod(outer)
    team, blocks = team_of(terms), blocks_of(terms, rows)
    lines = CudaLines()
    sums = writer.one(lines)
    added = _lines_after(lines)
    _onto(added, sums)
    end, count = f"e{writer.last}", " * ".join(f"e{d}" for d in range(writer.last)) or "1"
    lane = f"threadIdx.x % {team}" if team < THREADS else "threadIdx.x"
    if team < THREADS:
        row = f"((s64)blockIdx.x * blockDim.x + threadIdx.x) / {team}"
    else:
        row = "blockIdx.x" if blocks == 1 else "0"
    code = [f"const s64 o = {row};", f"const int lane = {lane};"]
    # all threads of a block go on to the end, as they wait for each other there
    code += [f"const bool is_row = o < {count};", *writer.rows()]
    code += [_declare(s, n) for n, s in enumerate(sums)]
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
        code += _in_pairs(added, sums)
    if team == THREADS:
        code += _shared_by_block(added, sums)
    declared |= added.declared
    if blocks > 1:
        code += _shared_by_blocks(added, sums)
        room = 16 + 16 * blocks * len(sums)
        code += _finished(added, writer, sums)
        return _kernel(writer, code, declared, grid=(blocks, 1), room=room)
    code += ["if (is_row && lane == 0) {", *_results(added, writer, sums), "}"]
    per_block = THREADS // team
    return _kernel(writer, code, declared, grid=(-(-rows // per_block), 1))


def _start(s: Reduction) -> str:
    dtype, first = s.inside
    return literal(first, dtype)


def _declare(s: Reduction, n: int) -> str:
    lost = f" {c_type(s.dtype)} lost{n} = 0;" if s.compensated else ""
    return f"{c_type(s.inside[0])} tot{n} = {_start(s)};{lost}"


def _onto(lines: CudaLines, sums: Sequence[Reduction]) -> None:
    """Totals, and what they have lost, with an element's."""
    for n, s in enumerate(sums):
        value = Value(lines, s.value.name, s.dtype)
        _add(lines, s, n, ordered(s.kind, value) if s.ordered else value, None)


def _add(lines: CudaLines, s: Reduction, n: int, value: Value, lost: str | None) -> None:
    total = Value(lines, f"tot{n}", s.inside[0])
    if not s.compensated:
        lines.text.append(f"tot{n} = {joined(s.kind, total, value).name};")
        return
    made, kept = compensated(total, Value(lines, f"lost{n}", s.dtype), value)
    more = f" + {lost}" if lost else ""
    lines.text += [f"tot{n} = {made.name};", f"lost{n} = {kept.name}{more};"]


def _in_pairs(lines: CudaLines, sums: Sequence[Reduction]) -> list[str]:
    """Lane 0 has the total of a warp, whose lanes meet in pairs."""
    code = ["#pragma unroll", f"for (int far = {WARP // 2}; far > 0; far /= 2) {{"]
    inner = _lines_after(lines)
    for n, s in enumerate(sums):
        kind = c_type(s.inside[0])
        inner.text.append(f"const {kind} other{n} = from_lane(tot{n}, far);")
        if s.compensated:
            inner.text.append(f"const {kind} rest{n} = from_lane(lost{n}, far);")
        value = Value(inner, f"other{n}", s.inside[0])
        _add(inner, s, n, value, f"rest{n}")
    lines.count = inner.count
    lines.declared |= inner.declared
    return [*code, *inner.text, "}"]


def _shared_by_block(lines: CudaLines, sums: Sequence[Reduction], again: bool = False) -> list[str]:
    """Thread 0 has the total of all warps, whose first lanes have theirs."""
    warps, warp = THREADS // WARP, f"threadIdx.x / {WARP}"
    code = ["__syncthreads();"] if again else []
    for n, s in enumerate(sums):
        kind = c_type(s.inside[0])
        if not again:
            code.append(f"__shared__ {kind} made{n}[{warps}];")
            code += [f"__shared__ {kind} gone{n}[{warps}];"] if s.compensated else []
        code.append(f"if (threadIdx.x % {WARP} == 0) made{n}[{warp}] = tot{n};")
        if s.compensated:
            code.append(f"if (threadIdx.x % {WARP} == 0) gone{n}[{warp}] = lost{n};")
    code.append("__syncthreads();")
    for n, s in enumerate(sums):
        there = f"threadIdx.x < {warps}"
        code.append(f"tot{n} = {there} ? made{n}[threadIdx.x] : {_start(s)};")
        code += [f"lost{n} = {there} ? gone{n}[threadIdx.x] : 0;"] if s.compensated else []
    return [*code, *_in_pairs(lines, sums)]


def _shared_by_blocks(lines: CudaLines, sums: Sequence[Reduction]) -> list[str]:
    """The block that ends last has them all, in their order. `room`: a count of those that have ended, and
    what each left."""
    code = ["__shared__ bool is_last;", "if (threadIdx.x == 0) {"]
    for n, s in enumerate(sums):
        kind = c_type(s.inside[0])
        code.append(f"*({kind}*)(room + 16 + 16 * ({n} * gridDim.x + blockIdx.x)) = tot{n};")
        if s.compensated:
            code.append(f"*({kind}*)(room + 24 + 16 * ({n} * gridDim.x + blockIdx.x)) = lost{n};")
    code += [
        "__threadfence();",
        "is_last = atomicAdd((u32*)room, 1u) + 1 == gridDim.x;",
        "}",
        "__syncthreads();",
        "if (!is_last) return;",
        "__threadfence();",
    ]
    for n, s in enumerate(sums):
        code.append(f"tot{n} = {_start(s)};")
        code += [f"lost{n} = 0;"] if s.compensated else []
    code.append("for (u32 b = threadIdx.x; b < gridDim.x; b += blockDim.x) {")
    inner = _lines_after(lines)
    for n, s in enumerate(sums):
        kind = c_type(s.inside[0])
        at = f"16 * ({n} * gridDim.x + b)"
        inner.text.append(f"const {kind} left{n} = *(volatile {kind}*)(room + 16 + {at});")
        if s.compensated:
            inner.text.append(f"const {kind} more{n} = *(volatile {kind}*)(room + 24 + {at});")
        _add(inner, s, n, Value(inner, f"left{n}", s.inside[0]), f"more{n}")
    lines.count = inner.count
    lines.declared |= inner.declared
    return [*code, *inner.text, "}", "__syncthreads();"]


def _finished(lines: CudaLines, writer: _Writer, sums: Sequence[Reduction]) -> list[str]:
    """The last block's total; its memory is as it was."""
    code = _in_pairs(lines, sums) + _shared_by_block(lines, sums, again=True)
    results = _results(lines, writer, sums)
    return [*code, "if (threadIdx.x == 0) {", "*(u32*)room = 0;", *results, "}"]


def _results(lines: CudaLines, writer: _Writer, sums: Sequence[Reduction]) -> list[str]:
    made = _lines_after(lines)
    for n, s in enumerate(sums):
        total = Value(made, f"tot{n}", s.inside[0])
        if s.ordered:
            total = unordered(total)
        if s.compensated:
            total = total + Value(made, f"lost{n}", s.dtype)
        if s.divisor:
            total = total / Value(made, s.divisor, s.dtype)
        total = cast(total, writer.dtypes[s.out])
        made.text.append(f"*({memory_type(writer.dtypes[s.out])}*)p{s.out} = {total.name};")
    lines.count = made.count
    lines.declared |= made.declared
    return made.text


PREAMBLE = """\
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;
typedef unsigned long long u64; typedef signed char s8; typedef short s16; typedef int s32;
typedef long long s64;
template <typename T, int N> struct alignas(sizeof(T) * N) Beside { T at[N]; };
#ifdef __CUDACC__
__device__ inline float half_to_float(u16 x) {
  float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y;
}
__device__ inline u16 float_to_half(float x) {
  u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return x != x ? (u16)((__float_as_uint(x) >> 16 & 0x8000) | 0x7e00) : y;
}
template <typename T> __device__ inline T from_lane(T x, int far) {
  return __shfl_down_sync(0xffffffffu, x, far);
}
#endif
"""
