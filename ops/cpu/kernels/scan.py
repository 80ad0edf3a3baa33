"""Running sums and products as machine code, shared among threads.

Lines along the axis are done side by side, each in order, so bits are those of NumPy: where the results
of a line follow each other in memory, some lines at a time are turned in registers; else vectors hold
what lies side by side. A long line is cut into blocks, by its extent only: first the sum of each block,
then of all blocks before it, from which the block goes on. Products of floats are not cut, since a
block's own product may overflow where the line's does not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.registry import Piece
from ostinato.ops.core.spec import DType, bfloat16, int64
from ostinato.ops.cpu.jit.emitter import Code, loop_facts, memory_type, places
from ostinato.ops.cpu.jit.lines import literal, llvm_type
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits, why_not
from ostinato.ops.cpu.jit.parallel import TABLES, around
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.loops.copies import Pieces
from ostinato.ops.jit.loops import loops_over
from ostinato.ops.jit.values import KINDS, Value, cast

MIN_CUT_LINE = 4096  # elements of a line that is cut
NARROW, WIDE = 256, 2048  # neighbours that are done side by side
MIN_NEIGHBOURS = 4  # fewer lines are done one by one
ROWS = 4  # of neighbours that are done together
CHUNK = 64  # elements of a line that are put in order first
QUICK, GRAIN = LIMITS.scan_quick, LIMITS.scan_wake
ONCE, SUMS, REST = "once", "sums", "rest"  # a line in one turn; blocks' sums; blocks from there on


class ScanKey(NamedTuple):
    """What a text depends on."""

    product: bool
    source: DType
    dtype: DType
    way: str  # squares, neighbours, or singles
    straight: tuple[bool, bool]  # whether operand and result lie without steps along the vectors
    phase: str
    cut: bool
    bits: int

    @property
    def lanes(self) -> int:
        return self.bits // (8 * self.dtype.itemsize)

    @property
    def width(self) -> int:
        """Lines in a turn, at the most."""
        return self.lanes if self.way == "squares" else WIDE


class ScanLines(NamedTuple):
    """Lines that lie so: their elements, how many side by side, bytes along and across in operand and
    result; the other axes, with bytes in both."""

    length: int
    along: tuple[int, int]
    inner: int
    across: tuple[int, int]
    outer: tuple[tuple[int, int, int], ...]

    @property
    def many(self) -> int:
        return math.prod(n for n, _, _ in self.outer)


def running_kernel(x: Any, out: Any, axis: int, product: bool, threads: int) -> Any:
    """The function of an operand and a result that lie so; None if NumPy does it."""
    source, dtype = x.dtype, out.dtype
    if why_not() or out.size == 0 or not _knows(source, dtype):
        return None
    count, along = x.shape[axis], (x.strides[axis], out.strides[axis])
    others = [d for d in range(x.ndim) if d != axis]
    steps = [[a.strides[d] for d in others] for a in (x, out)]
    loops = loops_over(tuple(x.shape[d] for d in others), steps)
    axes = list(zip(loops.extents, *loops.strides, strict=True))
    cut = count >= MIN_CUT_LINE and not (product and dtype.kind == "f")
    near = [
        k for k, (n, _, step) in enumerate(axes) if step == dtype.itemsize and n >= MIN_NEIGHBOURS
    ]
    beside = bool(near) and along[1] != dtype.itemsize
    inner = axes.pop(near[-1] if beside else max(range(len(axes)), key=lambda k: axes[k][0]))
    lines = ScanLines(count, along, inner[0], inner[1:], tuple(axes))
    way = "neighbours" if beside else "squares" if cut or inner[0] >= MIN_NEIGHBOURS else "singles"
    unit = (inner if beside else (0, *along))[1:]
    simple = beside or source != bfloat16
    straight = unit[0] == source.itemsize and simple, unit[1] == dtype.itemsize
    form = ScanKey(product, source, dtype, way, straight, ONCE, cut, vector_bits())
    return _function(form, lines, threads)


def _knows(source: DType, dtype: DType) -> bool:
    if dtype.kind not in "iuf" or dtype.itemsize < 4:
        return False
    if source == bfloat16:
        return dtype.name == "float32"
    return source.name in KINDS and np.can_cast(source, dtype, "same_kind")


def _word(source: DType, dtype: DType) -> str:
    """The instruction that makes one dtype of another; none where the bits stay."""
    if dtype.kind == "f" and source.kind == "f":
        words = "fptrunc", "", "fpext"
    elif dtype.kind == "f":
        words = ("sitofp" if source.kind == "i" else "uitofp",) * 3
    else:
        words = (
            "trunc",
            "zext" if source.kind == "b" else "",
            "sext" if source.kind == "i" else "zext",
        )
    size = 1 if source.kind == "b" else source.itemsize
    return words[1 + (dtype.itemsize > size) - (dtype.itemsize < size)]


def block_of(count: int) -> int:
    """Elements of a block: about as many as there are blocks, but no power of two, since lines of
    the cache that far apart would take each other's place."""
    found = -(-math.isqrt(count) // 16) * 16
    return found + 16 if found % 256 == 0 else found


def _function(form: ScanKey, lines: ScanLines, threads: int) -> Any:
    size, block = lines.length * lines.inner * lines.many, block_of(lines.length)
    worth = 0 if size <= QUICK else max(1, min(threads, size // GRAIN))
    lanes, team = form.way == "squares", max(worth, 1)
    wide = form.lanes
    if not lanes:
        wide = max(NARROW, min(WIDE, -(-lines.inner // (128 * team)) * 64))
    groups = -(-lines.inner // wide)
    turns = groups * lines.many
    if not form.cut or turns >= 2 * team or (worth <= 1 and not lanes):
        return function_of(_text(form), _facts(lines, turns, worth, wide, block))
    blocks = -(-lines.length // block)
    room = np.empty(blocks * lines.inner * lines.many, form.dtype)
    if lanes:  # blocks become the lines, but for one that is shorter
        outer = (*lines.outer, (lines.inner, *lines.across))
        across = block * lines.along[0], block * lines.along[1]
        lines = ScanLines(lines.length, lines.along, lines.length // block, across, outer)
        turns = (-(-lines.inner // wide) + (lines.length % block > 0)) * lines.many
    else:
        turns *= blocks
    facts = _facts(lines, turns, worth, wide, block, room.ctypes.data)
    parts = [_text(form._replace(phase=phase)) for phase in (SUMS, REST)]
    return Pieces([(function_of(text, facts.copy(), room), Piece(0)) for text in parts])


_FACTS = (
    *("turns", "threads", "n", "along0", "along1", "inner", "across0", "across1"),
    *("wide", "groups", "block", "blocks", "room", "dims"),
)


def _facts(
    lines: ScanLines, turns: int, threads: int, wide: int, block: int, room: int = 0
) -> np.ndarray[Any, Any]:
    facts = [turns, min(threads, turns), lines.length, *lines.along, lines.inner, *lines.across]
    facts += [wide, -(-lines.inner // wide), block, -(-lines.length // block), room]
    facts += [len(lines.outer), *(n for axis in lines.outer for n in axis)]
    return np.array(facts, np.int64)


# -- text ----------------------------------------------------------------------------------
@lru_cache(64)
def _text(form: ScanKey) -> str:
    writer = _Writer(form)
    functions = [] if form.phase == REST else [writer.lines_("sums", False)] if form.cut else []
    functions += [] if form.phase == SUMS else [writer.lines_("runs", True)]
    functions += [writer.body(), writer.finish()]
    declared = sorted(writer.declared)
    return "\n".join([TABLES, places(2), *declared, *functions, around(2), loop_facts(form.bits)])


_LINES = (
    "ptr %x, i64 %along0, i64 %across0, ptr %out, i64 %along1, i64 %across1, "
    "i64 %width, i64 %count, ptr %carry"
)


class _Writer:
    """The functions of a kernel."""

    def __init__(self, form: ScanKey) -> None:
        self.form, self.dtype, self.lanes = form, form.dtype, form.lanes
        self.item, self.kind = form.dtype.itemsize, llvm_type(form.dtype)
        self.vector = f"<{self.lanes} x {self.kind}>"
        self.nothing = literal(1 if form.product else -0.0, form.dtype)
        self.declared: set[str] = set()

    def function(self, head: str, code: Code, loaded: Sequence[str] = ()) -> str:
        self.declared |= code.lines.declared
        top = f"define internal void {head} noinline {{\nentry:"
        return "\n".join([top, *code.entry, *loaded, *code.lines.text, "  ret void", "}"])

    def lines_(self, name: str, keeps: bool) -> str:
        """Some lines, from what they carry on; or only what they carry in the end."""
        make = getattr(self, self.form.way)
        found: str = make(name, keeps)
        return found

    def with_next(self, a: Value, b: Value) -> Value:
        return a * b if self.form.product else a + b

    # -- elements
    def address(self, code: Code, base: str, *terms: tuple[str, str | int]) -> str:
        """An address so many steps of bytes on."""
        for count, step in terms:
            if count != "0":
                base = code.let(f"getelementptr i8, ptr {base}, i64 {code.times(count, str(step))}")
        return base

    def read(self, code: Code, at: str) -> Value:
        """An operand's element as the result's dtype."""
        dtype = self.form.source
        found = code.let(
            f"load {memory_type(dtype)}, ptr {at}, align {dtype.itemsize}, !llvm.access.group !1"
        )
        if dtype.kind == "b":
            found = code.let(f"icmp ne i8 {found}, 0")
        return cast(Value(code.lines, found, dtype), self.dtype)

    def load(self, code: Code, at: str) -> Value:
        found = code.let(f"load {self.kind}, ptr {at}, align {self.item}, !llvm.access.group !1")
        return Value(code.lines, found, self.dtype)

    def store(self, code: Code, value: Value, at: str) -> None:
        code.add(
            f"store {self.kind} {value.name}, ptr {at}, align {self.item}, !llvm.access.group !1"
        )

    # -- neighbours
    def neighbours(self, name: str, keeps: bool) -> str:
        """Row after row of lines that lie side by side."""
        code = Code()
        steps = [
            dtype.itemsize if straight else f"%across{k}"
            for k, (dtype, straight) in enumerate(
                zip((self.form.source, self.dtype), self.form.straight, strict=True)
            )
        ]
        rest = code.let(f"urem i64 %count, {ROWS}")
        whole = code.let(f"sub i64 %count, {rest}")
        for begin, end, rows in (("0", whole, ROWS), (whole, "%count", 1)):
            with code.loop(begin, end, step=rows) as r:
                ats = []
                for n in range(rows):
                    row = code.sum(r, str(n))
                    ats.append(
                        [
                            self.address(code, f"%{a}", (row, f"%along{k}"))
                            for k, a in enumerate(("x", "out"))
                        ]
                    )
                with code.loop("0", "%width", lanes=self.item) as c:
                    carry = self.address(code, "%carry", (c, self.item))
                    made = self.load(code, carry)
                    for x, out in ats:
                        value = self.read(code, self.address(code, x, (c, steps[0])))
                        made = self.with_next(made, value)
                        if keeps:
                            self.store(code, made, self.address(code, out, (c, steps[1])))
                    self.store(code, made, carry)
        return self.function(f"@{name}({_LINES})", code)

    # -- singles
    def singles(self, name: str, keeps: bool) -> str:
        """Line after line."""
        code = Code()
        cell = code.cell(self.dtype)
        with code.loop("0", "%width") as r:
            x, out = (
                self.address(code, f"%{a}", (r, f"%across{k}")) for k, a in enumerate(("x", "out"))
            )
            carry = self.address(code, "%carry", (r, self.item))
            code.put(cell, self.load(code, carry))
            with code.loop("0", "%count") as i:
                value = self.read(code, self.address(code, x, (i, "%along0")))
                made = self.with_next(code.get(cell, self.dtype), value)
                code.put(cell, made)
                if keeps:
                    self.store(code, made, self.address(code, out, (i, "%along1")))
            self.store(code, code.get(cell, self.dtype), carry)
        return self.function(f"@{name}({_LINES})", code)

    # -- squares
    def squares(self, name: str, keeps: bool) -> str:
        """As many lines as a vector has lanes, chunk after chunk, each put in order if it isn't."""
        code, row = Code(), CHUNK * self.item
        direct = self.form.straight[0], self.form.straight[1] or not keeps
        rooms = [code.name("room") for _ in direct]
        for room in rooms:
            code.entry.append(f"  {room} = alloca [{self.lanes * CHUNK} x {self.kind}], align 64")
        chunk = "%count" if all(direct) else str(CHUNK)
        chunks = code.let(f"sdiv i64 {code.sum('%count', chunk, '-1')}, {chunk}")
        with code.loop("0", chunks) as k:
            j = code.times(k, chunk)
            many = self.up_to(code, "%count", j, chunk)
            x, out = (
                self.address(code, f"%{a}", (j, f"%along{k}")) for k, a in enumerate(("x", "out"))
            )
            if not direct[0]:
                with self.each(code, many) as (r, i):
                    value = self.read(code, self.address(code, x, (r, "%across0"), (i, "%along0")))
                    self.store(code, value, self.address(code, rooms[0], (r, row), (i, self.item)))
            given = ", ".join(
                f"ptr {there}, i64 %across{k}" if direct[k] else f"ptr {rooms[k]}, i64 {row}"
                for k, there in enumerate((x, out))
            )
            code.add(f"call void @{name}_turned({given}, i64 %width, i64 {many}, ptr %carry)")
            if not direct[1]:
                with self.each(code, many) as (r, i):
                    value = self.load(code, self.address(code, rooms[1], (r, row), (i, self.item)))
                    self.store(
                        code, value, self.address(code, out, (r, "%across1"), (i, "%along1"))
                    )
        return f"{self.turned(name, keeps)}\n{self.function(f'@{name}({_LINES})', code)}"

    @contextmanager
    def each(self, code: Code, many: str) -> Iterator[tuple[str, str]]:
        with code.loop("0", "%width") as r, code.loop("0", many, lanes=self.item) as i:
            yield r, i

    def turned(self, name: str, keeps: bool) -> str:
        """Lines in order. Where there are too few, the last one is done several times."""
        code, lanes = Code(), self.lanes
        cell = code.name("carry")
        code.entry.append(f"  {cell} = alloca {self.vector}")
        first = code.let(f"load {self.vector}, ptr %carry, align {self.item}")
        code.add(f"store {self.vector} {first}, ptr {cell}")
        last = code.let("sub i64 %width, 1")
        rows = [code.least(str(k), last) for k in range(lanes)]
        xs = [self.address(code, "%x", (r, "%row0")) for r in rows]
        outs = [self.address(code, "%out", (r, "%row1")) for r in rows] if keeps else []
        rest = code.let(f"urem i64 %count, {lanes}")
        whole = code.let(f"sub i64 %count, {rest}")
        with code.loop("0", whole, step=lanes) as j:
            self.square(code, xs, outs, j, cell, "")
        with code.when(code.let(f"icmp sgt i64 {rest}, 0")):
            self.square(code, xs, outs, whole, cell, code.inside(rest, lanes))
        final = code.let(f"load {self.vector}, ptr {cell}")
        code.add(f"store {self.vector} {final}, ptr %carry, align {self.item}")
        head = "ptr %x, i64 %row0, ptr %out, i64 %row1, i64 %width, i64 %count, ptr %carry"
        return self.function(f"@{name}_turned({head})", code)

    def square(
        self, code: Code, xs: Sequence[str], outs: Sequence[str], j: str, cell: str, mask: str
    ) -> None:
        """A square of elements, or those columns of it that are inside."""
        vector = self.vector
        word = ("mul" if self.form.product else "add") if self.dtype.kind != "f" else None
        word = word or ("fmul" if self.form.product else "fadd")
        rows = [self.row(code, x, j, mask) for x in xs]
        total = code.let(f"load {vector}, ptr {cell}")
        columns = []
        for column in code.turned(rows, vector):
            total = code.let(f"{word} {vector} {total}, {column}")
            columns.append(total)
        code.add(f"store {vector} {total}, ptr {cell}")
        if not outs:
            return
        for row, out in zip(code.turned(columns, vector), outs, strict=True):
            at = self.address(code, out, (j, self.item))
            if mask:
                code.masked_store(row, at, vector, mask)
            else:
                code.add(f"store {vector} {row}, ptr {at}, align {self.item}")

    def row(self, code: Code, x: str, j: str, mask: str) -> str:
        """Elements of a line as a vector; nothing where the mask ends."""
        source = self.form.source if self.form.straight[0] else self.dtype
        kind, lanes = memory_type(source), self.lanes
        vector, at = f"<{lanes} x {kind}>", self.address(code, x, (j, source.itemsize))
        if not mask:
            found = code.let(f"load {vector}, ptr {at}, align {source.itemsize}")
        else:
            found = code.masked_load(at, vector, mask)
        if source.kind == "b":
            found = code.let(f"icmp ne {vector} {found}, zeroinitializer")
            vector = f"<{lanes} x i1>"
        word = _word(source, self.dtype)
        if word:
            found = code.let(f"{word} {vector} {found} to {self.vector}")
        if mask:
            nothing = f"<{', '.join([f'{self.kind} {self.nothing}'] * lanes)}>"
            found = code.let(f"select {mask}, {self.vector} {found}, {self.vector} {nothing}")
        return found

    # -- turns
    def body(self) -> str:
        code, form = Code(), self.form
        loaded = [f"  %{n} = call i64 @fact(ptr %meta, i64 {k})" for k, n in enumerate(_FACTS)]
        loaded.append(f"  %axes = getelementptr i64, ptr %meta, i64 {len(_FACTS)}")
        loaded += [
            f"  %{name} = alloca [{form.width} x {self.kind}], align 64"
            for name in ("carry", "before")
        ]
        with code.loop("%lo", "%hi") as t:
            if form.phase == ONCE:
                which, g = (code.let(f"{op} i64 {t}, %groups") for op in ("udiv", "urem"))
                self.whole_lines(code, which, g)
            elif form.way == "squares":
                self.lined_blocks(code, t)
            else:
                parts = code.times("%groups", "%blocks")
                which, part = (code.let(f"{op} i64 {t}, {parts}") for op in ("udiv", "urem"))
                b, g = (code.let(f"{op} i64 {part}, %groups") for op in ("udiv", "urem"))
                first = code.times(g, "%wide")
                width = self.up_to(code, "%inner", first, "%wide")
                begin = code.times(b, "%block")
                count = self.up_to(code, "%n", begin, "%block")
                xs = self.begin(code, which, (first, "%across"), (begin, "%along"))
                place = code.times(code.sum(code.times(which, "%blocks"), b), "%inner")
                self.a_block(code, xs, width, count, code.sum(place, first))
        head = "@body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread)"
        return self.function(head, code, loaded)

    def up_to(self, code: Code, whole: str, begin: str, most: str) -> str:
        return code.least(code.let(f"sub i64 {whole}, {begin}"), most)

    def begin(self, code: Code, which: str, *terms: tuple[str, str]) -> list[str]:
        """Where operand and result begin, at one place along the other axes."""
        found = code.begins(which, (0, 1))
        return [
            self.address(code, a, *((count, f"{step}{k}") for count, step in terms))
            for k, a in enumerate(found)
        ]

    def call(self, code: Code, name: str, xs: Sequence[str], width: str, count: str) -> None:
        x, out = xs
        code.add(
            f"call void @{name}(ptr {x}, i64 %along0, i64 %across0, ptr {out}, i64 %along1, "
            f"i64 %across1, i64 {width}, i64 {count}, ptr %carry)"
        )

    def fill(self, code: Code, name: str, many: str, source: str = "") -> None:
        """A number for each line: the one from there, or nothing."""
        with code.loop("0", many, lanes=self.item) as k:
            value = Value(code.lines, self.nothing, self.dtype)
            if source:
                value = self.load(code, self.address(code, source, (k, self.item)))
            self.store(code, value, self.address(code, name, (k, self.item)))

    def many(self, width: str) -> str:
        """Lines that carry something on: all that a vector has."""
        return str(self.lanes) if self.form.way == "squares" else width

    def whole_lines(self, code: Code, which: str, g: str) -> None:
        first = code.times(g, "%wide")
        width = self.up_to(code, "%inner", first, "%wide")
        many = self.many(width)
        xs = self.begin(code, which, (first, "%across"))
        if not self.form.cut:
            self.fill(code, "%carry", many)
            self.call(code, "runs", xs, width, "%n")
            return
        self.fill(code, "%before", many)
        with code.loop("0", "%blocks") as b:
            begin = code.times(b, "%block")
            count = self.up_to(code, "%n", begin, "%block")
            here = [self.address(code, x, (begin, f"%along{k}")) for k, x in enumerate(xs)]
            self.fill(code, "%carry", many, "%before")
            self.call(code, "runs", here, width, count)
            self.fill(code, "%carry", many)
            self.call(code, "sums", here, width, count)
            with code.loop("0", many, lanes=self.item) as k:
                own, at = (self.address(code, a, (k, self.item)) for a in ("%carry", "%before"))
                self.store(code, self.with_next(self.load(code, at), self.load(code, own)), at)

    def lined_blocks(self, code: Code, t: str) -> None:
        """A turn of blocks as lines: some whole ones, or what is left of the line."""
        rest = code.let("srem i64 %n, %block")
        more = code.let(f"icmp sgt i64 {rest}, 0")
        parts = code.sum("%groups", code.let(f"zext i1 {more} to i64"))
        which, g = (code.let(f"{op} i64 {t}, {parts}") for op in ("udiv", "urem"))
        is_rest = code.let(f"icmp eq i64 {g}, %groups")
        own = code.times(g, "%wide")
        first = code.let(f"select i1 {is_rest}, i64 %inner, i64 {own}")
        some = self.up_to(code, "%inner", own, "%wide")
        width = code.let(f"select i1 {is_rest}, i64 1, i64 {some}")
        count = code.let(f"select i1 {is_rest}, i64 {rest}, i64 %block")
        xs = self.begin(code, which, (first, "%across"))
        place = code.sum(code.times(which, "%blocks"), first)
        self.a_block(code, xs, width, count, place)

    def a_block(self, code: Code, xs: Sequence[str], width: str, count: str, place: str) -> None:
        room = code.let("inttoptr i64 %room to ptr")
        seat = self.address(code, room, (place, self.item))
        many = self.many(width)
        self.fill(code, "%carry", many)
        if self.form.phase == SUMS:
            self.call(code, "sums", xs, width, count)
            self.fill(code, seat, width, "%carry")
        else:
            self.fill(code, "%carry", width, seat)
            if many != width:  # the last line, several times
                last = code.let(f"sub i64 {width}, 1")
                end = self.load(code, self.address(code, seat, (last, self.item)))
                with code.loop(width, many) as k:
                    self.store(code, end, self.address(code, "%carry", (k, self.item)))
            self.call(code, "runs", xs, width, count)

    def finish(self) -> str:
        """From the sums of blocks to those of all before them."""
        code = Code()
        names = ("inner", "blocks", "room", "dims")
        loaded = [f"  %{n} = call i64 @fact(ptr %meta, i64 {_FACTS.index(n)})" for n in names] + [
            f"  %axes = getelementptr i64, ptr %meta, i64 {len(_FACTS)}"
        ]
        if self.form.phase == SUMS:
            side = "1" if self.form.way == "squares" else "%inner"
            cell, many = code.cell(self.dtype), code.cell(int64)
            code.add(f"store i64 1, ptr {many}")
            with code.loop("0", "%dims") as d:
                n = code.let(f"load i64, ptr {self.address(code, '%axes', (d, 24))}")
                was = code.let(f"load i64, ptr {many}")
                code.add(f"store i64 {code.times(was, n)}, ptr {many}")
            room = code.let("inttoptr i64 %room to ptr")
            all_ = code.let(f"load i64, ptr {many}")
            with code.loop("0", all_) as o, code.loop("0", side) as c:
                code.put(cell, Value(code.lines, self.nothing, self.dtype))
                with code.loop("0", "%blocks") as b:
                    place = code.times(code.sum(code.times(o, "%blocks"), b), side)
                    at = self.address(code, room, (code.sum(place, c), self.item))
                    own, before = self.load(code, at), code.get(cell, self.dtype)
                    self.store(code, before, at)
                    code.put(cell, self.with_next(before, own))
        return self.function("@finish(ptr %data, ptr %meta)", code, loaded)
