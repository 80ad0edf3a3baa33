"""Elementwise operations, and reductions of their rows, as one CUDA kernel.

    without reductions    a thread makes a few neighbours, which it reads and writes as one vector where they
                          lie so; the rows of other layouts are blocks' second index
    with reductions       a row belongs to a thread, to a warp, or to a block, by its length; one of few long
                          rows to many blocks, of which the last one to end combines what the others left

Who adds what depends on extents only, and what rounding loses is kept (Neumaier), so a sum has the same bits
in each run. A kernel's text has neither extents nor strides, so that few kernels serve many shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, int64, real_of
from ostinato.ops.jit.combining import Combination, element
from ostinato.ops.jit.kept_values import MAX_THREAD_TERMS
from ostinato.ops.jit.loops import Loops
from ostinato.ops.jit.moves import has_moves
from ostinato.ops.jit.random_bits import numbers_in
from ostinato.ops.jit.registers import order_for_registers
from ostinato.ops.jit.scalar import numbers
from ostinato.ops.jit.values import Value, cast

from ..jit.lines import CudaLines, c_type, memory_type
from .schedule import BLOCKS, SOME, THREADS, VECTOR, WAITING, WARP, WRITTEN
from .text import Kernel, known_numbers, whole
from .totals import Total, reduce_block, reduce_warp

EACH = 16  # terms that a thread of many blocks adds at the least
MOST_ROWS = 65535  # of blocks, in their second index
FULL = 0.9  # share of threads that have elements where rows are blocks' second index


class ElementWriter:
    """One kernel's text."""

    def __init__(self, body: Graph, loops: Loops) -> None:
        self.body, self.loops = body, loops
        self.dtypes = [s.dtype for s in (*body.inputs, *body.out_specs)]
        self.last = len(loops.extents) - 1
        self.known = {part: f"known{n}" for n, part in enumerate(numbers(body))}
        self.steps = [s[-1] for s in loops.strides]
        self.counted = numbers_in(body)  # operands that only tell which element is which
        # a division of 64 bits takes a GPU as long as a hundred additions, a product as long as four
        self.index = "u32" if math.prod(loops.extents) < 1 << 31 else "s64"
        self.place = "s32" if self.reach() < 1 << 30 else "s64"  # an index, or bytes in an array
        self.divisors: dict[str, int] = {}

    def reach(self) -> int:
        """How many elements there are, or bytes from the first element of an array to the last, if
        that is more."""
        extents = self.loops.extents
        spans = [
            sum(abs(step) * n for step, n in zip(own, extents, strict=True))
            for own in self.loops.strides
        ]
        return max(math.prod(extents), *spans)

    # -- what it is given ----------------------------------------------------------------------
    def parameters(self) -> list[str]:
        given = [f"u8* q{k}" for k in range(len(self.dtypes))]
        given += [f"s64 e{d}" for d in range(self.last + 1)]
        for k in range(len(self.dtypes)):
            given += [f"s64 s{k}_{d}" for d in range(self.last + 1)]
        given += [f"s64 bits{n}" for n in range(len(self.known))]
        many = range(len(self.divisors))
        return given + [f"s64 {word}{n}" for n in many for word in ("times", "right")]

    def facts(self) -> tuple[int, ...]:
        flat = [x for steps in self.loops.strides for x in steps]
        known = (*self.loops.extents, *flat, *numbers(self.body).values())
        return (*known, *(x for n in self.divisors.values() for x in _multiplier(n)))

    def divided(self, what: str, by: str, number: int) -> str:
        """A quotient of numbers below 2**31, by a product and a shift if they have 32 bits."""
        if self.index == "s64":
            return f"{what} / {by}"
        self.divisors.setdefault(by, number)
        n = list(self.divisors).index(by)
        return f"(u32)((u64){what} * (u32)times{n} >> (u32)right{n})"

    def rows(self) -> list[str]:
        """Where operands and results begin in row `o`."""
        found, plus = self.places(range(self.last)) if self.last else [], " + "
        for k, strides in enumerate(self.loops.strides):
            terms = [f"({self.place})s{k}_{d} * x{d}" for d in range(self.last) if strides[d]]
            found.append(f"u8* p{k} = q{k}{f' + ({plus.join(terms)})' if terms else ''};")
        return found

    def places(self, axes: Sequence[int]) -> list[str]:
        """The indices of row `o` along its axes."""
        found, kind, rest = [], self.index, "o"
        for d in reversed(axes):
            if d == axes[0]:
                found.append(f"const {self.place} x{d} = ({self.place}){rest};")
                continue
            whole = self.divided(f"({kind}){rest}", f"({kind})e{d}", self.loops.extents[d])
            found.append(f"const {kind} rest{d} = {whole};")
            place = f"({kind}){rest} - rest{d} * ({kind})e{d}"
            found.append(f"const {self.place} x{d} = ({self.place})({place});")
            rest = f"rest{d}"
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
        return lines.load(self.address(k), dtype)

    def number(self, lines: CudaLines, k: int, i: str) -> Value:
        """An element's number: how far it is from the first, whose own stands in memory."""
        further = f" + s{k}_{self.last} * ({i})" if self.steps[k] else ""
        return lines.write(f"*(const s64*)q{k} + (p{k} - q{k}){further}", int64)

    def store(self, lines: CudaLines, k: int, value: Value) -> None:
        lines.store(self.address(k), value)

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

    # -- neighbours ----------------------------------------------------------------------------
    def count_beside(self) -> int:
        """Elements that a thread makes, which are one vector in memory."""
        return neighbours_of(self)

    def vectors(self, lines: CudaLines, each: int) -> None:
        """All of these, from `first` on."""
        _vectors(self, lines, each)

    def aligned(self, each: int) -> str:
        """Whether arrays begin where vectors may."""
        return " && ".join(
            f"((u64)p{k} & {each * dtype.itemsize - 1}) == 0"
            for k, dtype in enumerate(self.dtypes)
            if self.steps[k] and k not in self.counted
        )

    # -- which thread has which ----------------------------------------------------------------
    def share_rows(self, each: int, turn: Sequence[str]) -> tuple[list[str], tuple[int, int]]:
        """Code in which each thread finds its row `o` and its `first` element there, and does a turn;
        and the grid of blocks."""
        *outer, inner = self.loops.extents
        rows, along, place = math.prod(outer), -(-inner // each), self.place
        wide = f"({place})e{self.last}"
        mine = f"({place})blockIdx.x * {THREADS} + ({place})threadIdx.x"
        if not outer:
            code = [f"const {place} first = ({mine}) * {each};", f"if (first >= {wide}) return;"]
            return [*code, *turn], (-(-along // THREADS), 1)
        if along < -(-along // THREADS) * THREADS * FULL:  # or many threads had nothing to do
            kind = self.index
            whole = self.divided("at", f"{kind}_along", along)
            code = [f"const {kind} at = ({kind})blockIdx.x * {THREADS} + threadIdx.x;"]
            code += [f"const {kind} {kind}_along = ({kind})((e{self.last} + {each - 1}) / {each});"]
            code += [f"const {kind} o = {whole};"]
            code += [f"const {place} first = ({place})(at - o * {kind}_along) * {each};"]
            code += [f"if (o >= ({kind})({self.count()})) return;"]
            return [*code, *turn], (-(-rows * along // THREADS), 1)
        code = [f"const {place} first = ({mine}) * {each};", f"if (first >= {wide}) return;"]
        code += [f"for ({place} o = blockIdx.y; o < {self.count()}; o += gridDim.y) {{", *turn, "}"]
        return code, (-(-along // THREADS), max(1, min(rows, MOST_ROWS)))

    def count(self) -> str:
        """How many rows there are."""
        return " * ".join(f"({self.place})e{d}" for d in range(self.last))


def lines_after(lines: CudaLines) -> CudaLines:
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
    each = writer.count_beside()
    lines = CudaLines()
    writer.one(lines)
    turn = writer.rows()
    if each > 1:
        wide = lines_after(lines)
        turn += vectors(writer, wide, lines, each, f"({writer.place})e{writer.last}")
        lines.declared |= wide.declared
    else:
        turn += [f"const {writer.place} i = first;", *lines.text]
    code, grid = writer.share_rows(each, turn)
    return _kernel(writer, code, lines.declared, grid=grid)


def _multiplier(n: int) -> tuple[int, int]:
    """By what and how far to the right x // n is for x below 2**31: a product of 64 bits, shifted."""
    bits = (n - 1).bit_length()
    return -((-1 << (31 + bits)) // n), 31 + bits


def neighbours_of(writer: ElementWriter, few: bool = True) -> int:
    """Elements that a thread makes: as many as are one vector in memory, if all lie side by side; where there
    are `few` elements, fewer, so that more multiprocessors have some."""
    if has_moves(writer.body):
        return 1
    lies = [
        (step, dtype.itemsize)
        for k, (step, dtype) in enumerate(zip(writer.steps, writer.dtypes, strict=True))
        if k not in writer.counted
    ]
    if any(step not in (0, size) for step, size in lies):
        return 1
    if max(order_for_registers(writer.body, range(len(writer.body.nodes)))[1], default=0) > WARP:
        return 1  # or its values and those of its neighbours were more than a thread's registers
    if few and not all(writer.steps[len(writer.body.inputs) :]):  # there is but one
        return 1
    each = max(1, VECTOR // max(size for _, size in lies))
    while few and each > 1 and not _rows_begin_at_vectors(writer, each):
        each //= 2
    while few and each > 1 and math.prod(writer.loops.extents) < BLOCKS * THREADS * each:
        each //= 2
    return each


def _rows_begin_at_vectors(writer: ElementWriter, each: int) -> bool:
    """Whether all rows of an array lie to vectors as its first one does."""
    lies = enumerate(zip(writer.loops.strides, writer.dtypes, strict=True))
    apart = [(own, d) for k, (own, d) in lies if own[-1] and k not in writer.counted]
    return not any(step % (each * d.itemsize) for own, d in apart for step in own[:-1])


def vectors(
    writer: ElementWriter, wide: CudaLines, lines: CudaLines, each: int, end: str
) -> list[str]:
    """All of a few neighbours from the `first` on: as `wide` says, if they are there and aligned, or one by
    one, which is rare."""
    writer.vectors(wide, each)
    code = [f"if (first + {each} <= {end} && {writer.aligned(each)}) {{", *wide.text, "} else {"]
    code += ["#pragma unroll 1"]
    code += [f"for ({writer.place} i = first; i < {end} && i < first + {each}; ++i) {{"]
    return [*code, *lines.text, "}", "}"]


def _vectors(writer: ElementWriter, lines: CudaLines, each: int) -> None:
    many = len(writer.body.inputs)
    for k in range(many):
        kind = _beside_of(writer.dtypes[k], each)
        if writer.steps[k] and k not in writer.counted:
            lines.text.append(
                f"const {kind} v{k} = *(const {kind}*)(p{k} + {writer.dtypes[k].itemsize} * first);"
            )
    outs = range(many, len(writer.dtypes))
    for k in outs:
        lines.text.append(f"{_beside_of(writer.dtypes[k], each)} v{k};")
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
            loads[k] = lines.load(f"(u8*)&v{k}.at[{1 + (dtype.kind == 'c')} * j]", dtype)
    made, _ = writer.element(lines, loads)
    for k, value in made:
        lines.store(f"(u8*)&v{k}.at[{1 + (value.dtype.kind == 'c')} * j]", value)
    lines.text.append("}")
    for k in outs:
        kind, size = _beside_of(writer.dtypes[k], each), writer.dtypes[k].itemsize
        lines.text.append(f"*({kind}*)(p{k} + {size} * first) = v{k};")


def _beside_of(dtype: DType, each: int) -> str:
    """The type of some neighbours; of complex numbers, of twice as many parts."""
    return f"Beside<{_parts_of(dtype, each)}>"


# -- with reductions -----------------------------------------------------------------------------
def team_of(terms: int, rows: int = 1) -> int:
    """Threads that share a row. Warps have longer ones if there are enough, as a block's threads take as long
    to put together what they have as to make some ten elements each."""
    if terms <= MAX_THREAD_TERMS:
        return 1
    most = 8 * SOME if rows * WARP >= BLOCKS * THREADS else SOME
    return WARP if terms <= most else THREADS


def blocks_of(terms: int, rows: int) -> int:
    """Blocks that share a row, where there are so few that else some multiprocessors had none."""
    if team_of(terms, rows) < THREADS:
        return 1
    return max(1, min(BLOCKS // rows, terms // (THREADS * EACH)))


def adding(
    writer: ElementWriter, lines: CudaLines
) -> tuple[CudaLines, list[Total], list[Combination]]:
    """Write how an element is made, and how it is added: the latter, totals, and what these are of."""
    sums = writer.one(lines)
    totals = [Total(s.kind, s.dtype, str(n)) for n, s in enumerate(sums)]
    added = lines_after(lines)
    for total, s in zip(totals, sums, strict=True):
        total.add(added, Value(added, s.value.name, s.dtype))
    return added, totals, sums


def _reducing(writer: ElementWriter) -> Kernel:
    *outer, terms = writer.loops.extents
    rows = math.prod(outer)
    team, blocks = team_of(terms, rows), blocks_of(terms, rows)
    batches = team > 1 and not has_moves(writer.body)
    each = neighbours_of(writer, few=False) if batches else 1
    lines = CudaLines()
    added, totals, sums = adding(writer, lines)
    end, count = f"e{writer.last}", " * ".join(f"e{d}" for d in range(writer.last)) or "1"
    lane = f"threadIdx.x % {team}" if team < THREADS else "threadIdx.x"
    if team < THREADS:
        row = f"((s64)blockIdx.x * blockDim.x + threadIdx.x) / {team}"
    else:
        row = "blockIdx.x" if blocks == 1 else "blockIdx.y"
    code = [f"const s64 o = {row};", f"const int lane = {lane};"]
    # all threads of a block go on to the end, as they wait for each other there
    code += [f"const bool is_row = o < {count};", *writer.rows()]
    code += [line for total in totals for line in total.declared()]
    place = f"lane + (s64)blockIdx.x * {THREADS}" if blocks > 1 else "lane"
    step = f"{THREADS} * (s64)gridDim.x" if blocks > 1 else str(team)
    code += [f"const s64 place = {place}, step = {step};"]
    declared = lines.declared | added.declared
    if batches:
        vectors = lines_after(added)
        _batches(writer, vectors, totals, each)
        code += vectors.text
        declared |= vectors.declared
        added.count = vectors.count
    rest = f"{end} - {end} % {each} + place" if each > 1 else "place"
    if not batches or each > 1:  # elements behind the last whole vector
        head = f"for (s64 i = is_row ? {rest} : {end}; i < {end}; i += step) {{"
        code += [f"#pragma unroll {1 if batches else 4}", head, *lines.text, *added.text, "}"]
    if team > 1:
        code += reduce_warp(added, totals)
    if team == THREADS:
        code += reduce_block(added, totals)
    declared |= added.declared
    if blocks > 1:
        code.append(f"u8* const mine = room + (s64)o * (16 + {16 * len(totals)} * gridDim.x);")
        code += shared_by_blocks(added, totals)
        room = rows * (16 + 16 * blocks * len(totals))
        code += finished(added, writer, totals, sums)
        return _kernel(writer, code, declared, grid=(blocks, rows), room=room)
    code += ["if (is_row && lane == 0) {", *_results(added, writer, totals, sums), "}"]
    per_block = THREADS // team
    return _kernel(writer, code, declared, grid=(-(-rows // per_block), 1))


def _at_once(writer: ElementWriter, each: int) -> int:
    """Vectors that a thread reads before it uses the first."""
    steps = zip(writer.steps, writer.dtypes[: len(writer.body.inputs)], strict=False)
    words = sum(-(-dtype.itemsize * each // 4) for step, dtype in steps if step)
    most = min(MAX_THREAD_TERMS, WRITTEN // (each * max(1, len(writer.body.nodes))))
    return 1 << max(0, min(WAITING // max(1, words), most).bit_length() - 1)


def _batches(writer: ElementWriter, lines: CudaLines, totals: Sequence[Total], each: int) -> None:
    """The whole vectors of a row. All of a batch are on their way before the first one is used."""
    body, end, text, many = writer.body, f"e{writer.last}", lines.text, _at_once(writer, each)
    streams = [
        k
        for k in range(len(writer.dtypes))
        if writer.steps[k] and k not in writer.counted and (each > 1 or k < len(body.inputs))
    ]
    for k in streams if each > 1 else ():
        size = each * writer.dtypes[k].itemsize
        text.append(f"const bool wide{k} = ((u64)p{k} & {size - 1}) == 0;")
    text.append(f"for (s64 begin = is_row ? {each} * place : {end}; begin < {end};")
    text.append(f"begin += {each * many} * step) {{")
    loop = [
        "#pragma unroll",
        f"for (int n = 0; n < {many}; ++n) {{",
        f"const s64 first = begin + {each} * n * step;",
        f"if (first + {each} <= {end}) {{",
    ]
    text += [f"{_beside_of(writer.dtypes[k], each)} v{k}[{many}];" for k in streams]
    text += loop
    for k in streams:
        if k < len(body.inputs):
            kind = _parts_of(writer.dtypes[k], each)
            at = writer.address(k).replace("* i", "* first")
            wide = f"wide{k}" if each > 1 else "true"
            text.append(f"v{k}[n] = taken<{kind}>({at}, {wide});")
    text += ["}", "}", *loop]
    if each > 1:
        text += ["#pragma unroll", f"for (int j = 0; j < {each}; ++j) {{"]
    text.append(f"const s64 i = first{' + j' if each > 1 else ''};")
    j = "j" if each > 1 else "0"
    loads = {}
    for k in range(len(body.inputs)):
        dtype = writer.dtypes[k]
        if k in streams:
            loads[k] = lines.load(f"(u8*)&v{k}[n].at[{1 + (dtype.kind == 'c')} * {j}]", dtype)
        else:
            loads[k] = writer.load(lines, k)
    made, sums = writer.element(lines, loads)
    for k, value in made:
        if k in streams:
            lines.store(f"(u8*)&v{k}[n].at[{1 + (value.dtype.kind == 'c')} * j]", value)
        else:
            writer.store(lines, k, value)
    for total, s in zip(totals, sums, strict=True):
        total.add(lines, Value(lines, s.value.name, s.dtype))
    text += ["}"] * (each > 1)
    for k, value in made:
        if k in streams:
            at = writer.address(k).replace("* i", "* first")
            text.append(f"put<{_parts_of(value.dtype, each)}>({at}, v{k}[n], wide{k});")
    text += ["}", "}", "}"]


def _parts_of(dtype: DType, each: int) -> str:
    """The type and the number of what some neighbours are in memory."""
    return f"{memory_type(real_of(dtype))}, {each * (1 + (dtype.kind == 'c'))}"


def shared_by_blocks(
    lines: CudaLines, totals: Sequence[Total], block: str = "blockIdx.x", blocks: str = "gridDim.x"
) -> list[str]:
    """The block of a row that ends last has them all, in their order. What is `mine`, of each row: a count of
    those that have ended, and what each left."""

    def left(n: int, k: int, block: str) -> str:
        return f"mine + {16 + 8 * k} + 16 * ({n} * {blocks} + {block})"

    code = ["__shared__ bool is_last;", "if (threadIdx.x == 0) {"]
    for n, total in enumerate(totals):
        for k, (name, dtype, _) in enumerate(total.registers):
            code.append(f"*({c_type(dtype)}*)({left(n, k, block)}) = {name};")
    code += [
        "__threadfence();",
        f"is_last = atomicAdd((u32*)mine, 1u) + 1 == {blocks};",
        "}",
        "__syncthreads();",
        "if (!is_last) return;",
        "__threadfence();",
    ]
    # all that a thread reads is on its way before it is put together
    turns, inner = BLOCKS // THREADS, lines_after(lines)
    at = f"const u32 b = threadIdx.x + {THREADS} * n;"
    loop = ["#pragma unroll", f"for (u32 n = 0; n < {turns}; ++n) {{", at]
    for n, total in enumerate(totals):
        names = []
        for k, (name, dtype, first) in enumerate(total.registers):
            kind = c_type(dtype)
            code += [f"{name} = {first};", f"{kind} left_{name}[{turns}];"]
            at = f"*(volatile {kind}*)({left(n, k, 'b')})"
            loop.append(f"left_{name}[n] = b < {blocks} ? {at} : {first};")
            names.append(f"left_{name}[n]")
        total.merge(inner, names)
    lines.count = inner.count
    merged = ["#pragma unroll", f"for (u32 n = 0; n < {turns}; ++n) {{", *inner.text, "}"]
    return [*code, *loop, "}", *merged, "__syncthreads();"]


def finished(
    lines: CudaLines, writer: ElementWriter, totals: Sequence[Total], sums: Sequence[Combination]
) -> list[str]:
    """The last block's total; its memory is as it was."""
    code = reduce_warp(lines, totals) + reduce_block(lines, totals, again=True)
    results = _results(lines, writer, totals, sums)
    return [*code, "if (threadIdx.x == 0) {", "*(u32*)mine = 0;", *results, "}"]


def _results(
    lines: CudaLines, writer: ElementWriter, totals: Sequence[Total], sums: Sequence[Combination]
) -> list[str]:
    made = lines_after(lines)
    for total, s in zip(totals, sums, strict=True):
        (found,) = total.found(made)
        if s.divisor:
            found = found / Value(made, s.divisor, s.dtype)
        part = real_of(writer.dtypes[s.out])
        made.store(f"p{s.out} + {s.part * part.itemsize}", cast(found, part))
    lines.count = made.count
    lines.declared |= made.declared
    return made.text
