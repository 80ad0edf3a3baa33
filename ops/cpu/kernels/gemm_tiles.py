"""Blocks of matrix products as machine code of our own, for those who do something with a block while
it is in cache (gemm_epilogue.py).

A block is made panel by panel. A panel of the right matrix, up to three vectors wide, is copied in
order; tiles of the block, some rows of a panel, are summed in registers, term by term. So the bits of
an element depend on its row and its column only. Meanwhile a tile asks memory for the next panel's
lines, which no processor would guess. Two numbers of bfloat16 that follow each other in a sum are one
element of a panel, where the processor multiplies such pairs. Where it multiplies matrices of pairs (AMX),
tiles are of two by three of these, and the left matrix is copied in their order, too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ostinato.ops.core.spec import DType, bfloat16, float32, uint32
from ostinato.ops.cpu.jit.code import symbol
from ostinato.ops.cpu.jit.emitter import Code
from ostinato.ops.cpu.jit.lines import llvm_type
from ostinato.ops.cpu.jit.llvm import has, linked, vector_bits, why_not
from ostinato.ops.cpu.libraries.onednn import multiplies_squares
from ostinato.ops.cpu.limits import LIMITS

VECTORS = LIMITS.tile_vectors


class GemmKey(NamedTuple):
    """What a module multiplies: the left matrix's dtype, and whether that is seen transposed."""

    dtype: DType
    turned: bool
    rounded: bool  # whether the right one is float32, and rounded to the dtype
    bits: int  # of a vector
    amx: bool = False  # whether instructions multiply matrices of 16 rows of 16 pairs

    @property
    def lanes(self) -> int:
        """Sums in a vector."""
        return self.bits // 32

    @property
    def rows(self) -> int:
        """Return the rows of a tile."""
        return 2 * self.lanes if self.amx else 8 if self.bits == 512 else 4

    @property
    def pairs(self) -> int:
        """Terms in an element of a panel."""
        return 4 // self.dtype.itemsize

    @property
    def packs_left(self) -> bool:
        """Whether the left matrix is copied, too: where pairs, or all of an instruction's, are not side
        by side."""
        return self.amx or (self.turned and self.pairs > 1)

    @property
    def beyond(self) -> tuple[int, int]:
        """Rows above and below a block that tiles may write to."""
        return (0, self.rows) if self.packs_left else (self.rows, 0)

    def width(self, columns: int) -> int:
        """Columns in whole vectors."""
        return -(-columns // self.lanes) * self.lanes

    def panel_bytes(self, rows: int, depth: int) -> int:
        """Bytes that panels for a block of so many rows need."""
        deep = -(-depth // (self.pairs * self.lanes)) * self.lanes
        square = max(self.rows, self.lanes)
        left = -(-rows // square) * square * deep if self.packs_left else 0
        return 4 * (VECTORS * self.lanes * deep + left)


def gemm_key(dtype: DType, turned: bool = False, right: DType | None = None) -> GemmKey | None:
    """None if this processor has not what tiles are made of."""
    if why_not() or dtype not in (float32, bfloat16) or right not in (None, dtype, float32):
        return None
    amx = dtype == bfloat16 and has("amx-bf16") and multiplies_squares()
    form = GemmKey(dtype, turned, right not in (None, dtype), vector_bits(), amx)
    needs = {"avx512f", "avx512bf16"} if dtype == bfloat16 else {"fma"}
    return form if form.bits > 128 and has(*needs) else None


def block_function(form: GemmKey) -> str:
    """The name by which texts may call what makes a block (`CALLED`); it is there from now on."""
    kinds = "_turned" * form.turned + "_rounded" * form.rounded + "_amx" * form.amx
    name = f"block_of_{form.dtype.name}{kinds}"
    symbol(name, linked(_text(form)))
    return name


# The left matrix's first row, bytes from row to row (of its transpose, if that is what lies there), and
# rows; the right one's first column, bytes from row to row of what lies there, whether that is its
# transpose, and columns; terms; the block, and bytes from row to row; room for panels; a
# list of areas that who goes on with the block will look at.
CALLED = "ptr, i64, i64, ptr, i64, i1, i64, i64, ptr, i64, ptr, ptr"
_NAMED = (
    "ptr %a, i64 %step_a, i64 %rows, ptr %b, i64 %step_b, i1 %turned_b, i64 %columns, i64 %depth, "
    "ptr %c, i64 %step_c, ptr %room, ptr %ahead"
)
_PANEL = "ptr %from, i64 %step, i64 %many, i64 %left, ptr %to"


@lru_cache(8)
def _text(form: GemmKey) -> str:
    writer = _Blocks(form)
    functions = []
    for vectors in range(1, VECTORS + 1):
        functions += [writer.tile(vectors), writer.panel(vectors)]
        functions += [writer.pack(vectors), writer.pack_turned(vectors)]
    if form.packs_left:
        functions.append(writer.pack_left())
    functions.append(writer.block())
    return "\n".join([*sorted(writer.declared), *functions])


class Tiles:
    """What products in panels are written with; elements of panels are `dtype`."""

    def __init__(self, dtype: DType, lanes: int) -> None:
        self.lanes, self.kind, self.item = lanes, llvm_type(dtype), dtype.itemsize
        self.vector = f"<{lanes} x {self.kind}>"
        self.suffix = f"v{lanes}{'f' if dtype.kind == 'f' else 'i'}{8 * self.item}"
        self.declared: set[str] = set()
        if dtype.kind == "f":
            given = ", ".join([self.vector] * 3)
            self.declared.add(f"declare {self.vector} @llvm.fma.{self.suffix}({given})")

    def function(
        self,
        name: str,
        arguments: str,
        code: Code,
        loaded: Sequence[str] = (),
        internal: bool = True,
    ) -> str:
        self.declared |= code.lines.declared
        head = f"define {'internal ' * internal}void @{name}({arguments}) noinline {{\nentry:"
        return "\n".join([head, *code.entry, *loaded, *code.lines.text, "  ret void", "}"])

    def address(self, code: Code, base: str, index: str) -> str:
        return code.let(f"getelementptr {self.kind}, ptr {base}, i64 {index}")

    def advance(self, code: Code, base: str, count: str, step: str) -> str:
        """So many steps of bytes on."""
        return code.let(f"getelementptr i8, ptr {base}, i64 {code.times(count, step)}")

    def load(self, code: Code, at: str) -> str:
        return code.let(f"load {self.vector}, ptr {at}, align {self.item * self.lanes}")

    def store(self, code: Code, vector: str, at: str) -> None:
        code.add(f"store {self.vector} {vector}, ptr {at}, align {self.item * self.lanes}")

    def first(self, code: Code, at: str, many: str, kind: str = "") -> str:
        """The first elements of a row as a vector, zeros behind."""
        vector = f"<{self.lanes} x {kind or self.kind}>"
        return code.masked_load(at, vector, code.inside(many, self.lanes))

    def near(self, code: Code, r: str, end: str, many: str) -> tuple[str, str]:
        """A row, or the last one, of which then no elements are there: even to load nothing from
        elsewhere is slow."""
        there = code.let(f"icmp slt i64 {r}, {end}")
        last = code.let(f"sub i64 {end}, 1")
        return code.least(r, last), code.let(f"select i1 {there}, i64 {many}, i64 0")

    def everywhere(self, code: Code, at: str, align: int = 0) -> str:
        """An element in all lanes."""
        x = code.let(f"load {self.kind}, ptr {at}, align {align or self.item}")
        one = code.let(f"insertelement {self.vector} poison, {self.kind} {x}, i64 0")
        lanes = f"<{self.lanes} x i32> zeroinitializer"
        return code.let(f"shufflevector {self.vector} {one}, {self.vector} poison, {lanes}")

    def sum_cell(self, code: Code, vector: str = "") -> str:
        vector = vector or self.vector
        cell = code.name("sum")
        code.entry.append(f"  {cell} = alloca {vector}")
        code.add(f"store {vector} zeroinitializer, ptr {cell}")
        return cell

    def fma(self, code: Code, x: str, y: str, cell: str) -> str:
        total = code.let(f"load {self.vector}, ptr {cell}")
        given = ", ".join(f"{self.vector} {v}" for v in (x, y, total))
        return code.let(f"call {self.vector} @llvm.fma.{self.suffix}({given})")

    @property
    def bytes_taken(self) -> int:
        """That become an element of a panel."""
        return self.item

    def taken(self, code: Code, at: str, many: str) -> str:
        """The first elements of a row for a panel."""
        return self.first(code, at, many)

    def pack_turned(self, vectors: int) -> str:
        """Columns, square by square."""
        code, lanes = Code(), self.lanes
        with code.loop("0", "%many", step=lanes) as r, code.loop("0", str(vectors)) as part:
            rows = code.let(f"sub i64 %many, {r}")
            base = self.advance(code, "%from", r, str(self.bytes_taken))
            column = code.times(part, str(lanes))
            found = []
            for k in range(lanes):
                near, many = self.near(code, code.sum(column, str(k)), "%left", rows)
                found.append(self.taken(code, self.advance(code, base, near, "%step"), many))
            for k, made in enumerate(code.turned(found, self.vector)):
                row = code.times(code.sum(r, str(k)), str(vectors * lanes))
                self.store(code, made, self.address(code, "%to", code.sum(row, column)))
        return self.function(f"pack_turned{vectors}", _PANEL, code)

    def pack(self, vectors: int) -> str:
        """Rows, of which a panel takes some vectors; beyond the last column are zeros."""
        code = Code()
        many = [code.let(f"sub i64 %left, {v * self.lanes}") for v in range(vectors)]
        with code.loop("0", "%many") as r:
            from_ = self.advance(code, "%from", r, "%step")
            to = self.address(code, "%to", code.times(r, str(vectors * self.lanes)))
            for v, left in enumerate(many):
                skip = str(v * self.lanes)
                made = self.first(code, self.address(code, from_, skip), left)
                self.store(code, made, self.address(code, to, skip))
        return self.function(f"pack{vectors}", _PANEL, code)


class _Blocks(Tiles):
    """The functions of a module."""

    def __init__(self, form: GemmKey) -> None:
        super().__init__(float32 if form.pairs == 1 else uint32, form.lanes)
        self.form = form
        self.sums = f"<{form.lanes} x float>"
        if form.pairs > 1 and not form.amx:
            self.declared.add(f"declare {self.sums} {_DOTS}({self.sums}, {_HALVES}, {_HALVES})")

    # -- a tile
    def tile(self, vectors: int) -> str:
        """Some rows of a panel's columns. `%ahead` is the area to ask memory for."""
        if self.form.amx:
            return self.tile_of_squares(vectors)
        code, rows = Code(), self.form.rows
        cells = [[self.sum_cell(code, self.sums) for _ in range(vectors)] for _ in range(rows)]
        ahead = _Ahead(code)
        with code.loop("0", "%many") as p:
            ahead.ask()
            right = self.address(code, "%right", code.times(p, str(vectors * self.lanes)))
            columns = [
                self.load(code, self.address(code, right, str(v * self.lanes)))
                for v in range(vectors)
            ]
            for i, row in enumerate(cells):
                if self.form.turned:
                    at = self.address(code, self.advance(code, "%left", p, "%down"), str(i))
                else:
                    at = self.address(code, self.advance(code, "%left", str(i), "%down"), p)
                x = self.everywhere(code, at, 4 // self.form.pairs)
                for cell, y in zip(row, columns, strict=True):
                    code.add(f"store {self.sums} {self.fma(code, x, y, cell)}, ptr {cell}")
        ahead.keep()
        for i, row in enumerate(cells):
            to = self.advance(code, "%to", str(i), "%step")
            for v, cell in enumerate(row):
                at = code.let(f"getelementptr float, ptr {to}, i64 {v * self.lanes}")
                total = code.let(f"load {self.sums}, ptr {cell}")
                code.add(f"store {self.sums} {total}, ptr {at}, align {4 * self.lanes}")
        return self.function(f"tile{vectors}", _TILE, code)

    def tile_of_squares(self, vectors: int) -> str:
        """Two squares by some, by instructions that multiply squares. Memory is asked for nothing: what
        copies the matrices reads rows, which processors guess."""
        code, lanes = Code(), self.lanes
        right, left = 2 * VECTORS, 2 * VECTORS + 1
        sums = [[v + i * vectors for v in range(vectors)] for i in range(2)]
        for k in range(2 * vectors):
            self.amx(code, "tilezero", f"i8 {k}")
        with code.loop("0", "%many", step=lanes) as p:
            columns = self.address(code, "%right", code.times(p, str(vectors * lanes)))
            rows = self.address(code, "%left", code.times(p, str(lanes)))
            for v in range(vectors):
                self.square(code, right, self.address(code, columns, str(v * lanes)), vectors)
                for i, row in enumerate(sums):
                    self.square(code, left, self.advance(code, rows, str(i), "%down"))
                    self.amx(code, "tdpbf16ps", f"i8 {row[v]}", f"i8 {left}", f"i8 {right}")
        for i, row in enumerate(sums):
            to = self.advance(code, "%to", str(lanes * i), "%step")
            for v, k in enumerate(row):
                at = code.let(f"getelementptr float, ptr {to}, i64 {v * lanes}")
                self.amx(code, "tilestored64", f"i8 {k}", f"ptr {at}", "i64 %step")
        return self.function(f"tile{vectors}", _TILE, code)

    def square(self, code: Code, tile: int, at: str, vectors: int = 1) -> None:
        """Load rows, which lie so many vectors apart."""
        apart = 4 * self.lanes * vectors
        self.amx(code, "tileloadd64", f"i8 {tile}", f"ptr {at}", f"i64 {apart}")

    def amx(self, code: Code, name: str, *given: str) -> None:
        kinds = ", ".join(word.split()[0] for word in given)
        self.declared.add(f"declare void @llvm.x86.{name}({kinds})")
        code.add(f"call void @llvm.x86.{name}({', '.join(given)})")

    def fma(self, code: Code, x: str, y: str, cell: str) -> str:
        if self.form.pairs == 1:
            return super().fma(code, x, y, cell)
        total = code.let(f"load {self.sums}, ptr {cell}")
        halves = [code.let(f"bitcast {self.vector} {v} to {_HALVES}") for v in (x, y)]
        given = ", ".join([f"{self.sums} {total}", *(f"{_HALVES} {v}" for v in halves)])
        return code.let(f"call {self.sums} {_DOTS}({given})")

    # -- panels
    def pack(self, vectors: int) -> str:
        """Pack two rows at a time where elements are pairs, a number of each beside the other."""
        return super().pack(vectors) if self.form.pairs == 1 else self.pack_pairs(vectors)

    def pack_pairs(self, vectors: int, left_one: bool = False) -> str:
        code, name = Code(), "pack_left" if left_one else f"pack{vectors}"
        rounded = self.form.rounded and not left_one
        item = self.form.dtype.itemsize if left_one else self.right_item
        deep = "%many"
        if self.form.amx:
            deep = code.let(f"and i64 {code.sum('%many', str(self.lanes - 1))}, {-self.lanes}")
        with code.loop("0", deep) as r:
            near, columns = self.near(code, r, "%many", "%left") if self.form.amx else (r, "%left")
            to = self.address(code, "%to", code.times(r, str(vectors * self.lanes)))
            for v in range(vectors):
                from_ = code.let(f"getelementptr i8, ptr %from, i64 {v * self.lanes * item}")
                left = code.let(f"sub i64 {columns}, {v * self.lanes}")
                both = self.pairs(code, from_, near, left, rounded)
                self.store(code, both, self.address(code, to, str(v * self.lanes)))
        return self.function(name, _PANEL, code)

    def pairs(self, code: Code, from_: str, r: str, many: str, rounded: bool) -> str:
        """Two rows, a number of each beside the other."""
        upper = self.advance(code, from_, code.times(r, "2"), "%step")
        lower = code.let(f"getelementptr i8, ptr {upper}, i64 %step")
        return self.interleave(code, *(self.halves(code, v, many, rounded) for v in (upper, lower)))

    def pack_left(self) -> str:
        """Some rows of the left matrix, pair by pair; as squares where instructions multiply these, one
        behind the other, with zeros beyond what there is."""
        if not self.form.amx:
            return self.pack_pairs(1, left_one=True)
        code, lanes = Code(), self.lanes
        with code.loop("0", "%many", step=lanes) as p:
            ahead, found = code.let(f"sub i64 %many, {p}"), []
            for k in range(lanes):
                if self.form.turned:
                    near, many = self.near(code, code.sum(p, str(k)), "%many", "%left")
                    found.append(self.pairs(code, "%from", near, many, False))
                else:
                    near, many = self.near(code, str(k), "%left", ahead)
                    row = self.advance(code, "%from", near, "%step")
                    found.append(self.first(code, self.address(code, row, p), many))
            if self.form.turned:
                found = code.turned(found, self.vector)
            to = self.address(code, "%to", code.times(p, str(lanes)))
            for k, made in enumerate(found):
                self.store(code, made, self.address(code, to, str(k * lanes)))
        return self.function("pack_left", _PANEL, code)

    @property
    def right_item(self) -> int:
        """Bytes of an element of the right matrix."""
        return 4 if self.form.rounded else self.form.dtype.itemsize

    @property
    def bytes_taken(self) -> int:
        return self.form.pairs * self.right_item

    def halves(self, code: Code, at: str, many: str, rounded: bool = True) -> str:
        """The first elements of a row, as numbers of bfloat16."""
        if rounded:
            whole = self.first(code, at, many, "float")
            return code.let(f"fptrunc {self.sums} {whole} to <{self.lanes} x bfloat>")
        found = self.first(code, at, many, "i16")
        return code.let(f"bitcast <{self.lanes} x i16> {found} to <{self.lanes} x bfloat>")

    def interleave(self, code: Code, first: str, second: str, order: str = "pairs") -> str:
        """Two vectors of halves as one of pairs: one of each, or those of the first before the others."""
        n, kind = self.lanes, f"<{self.lanes} x bfloat>"
        places = [k // 2 + n * (k % 2) if order == "pairs" else k for k in range(2 * n)]
        mask = ", ".join(f"i32 {k}" for k in places)
        whole = code.let(f"shufflevector {kind} {first}, {kind} {second}, <{2 * n} x i32> <{mask}>")
        return code.let(f"bitcast {_HALVES} {whole} to {self.vector}")

    def taken(self, code: Code, at: str, many: str) -> str:
        if not self.form.rounded:
            return super().taken(code, at, many)
        terms = code.times(many, "2")
        after = code.let(f"getelementptr i8, ptr {at}, i64 {4 * self.lanes}")
        left = code.let(f"sub i64 {terms}, {self.lanes}")
        return self.interleave(
            code, self.halves(code, at, terms), self.halves(code, after, left), ""
        )

    def panel(self, vectors: int) -> str:
        """A panel, and all tiles of its columns. The last one begins in the one before it, or above
        the block, if there are fewer rows left."""
        code, form = Code(), self.form
        given = "ptr %b, i64 %step_b, i64 %many, i64 %left, ptr %panel"
        with code.when("%turned_b"):
            code.add(f"call void @pack_turned{vectors}({given})")
        with code.when(code.let("xor i1 %turned_b, true")):
            code.add(f"call void @pack{vectors}({given})")
        item, unit_b = str(form.dtype.itemsize), str(self.right_item)
        unit = code.let(f"select i1 %turned_b, i64 %step_b, i64 {unit_b}")
        rows = code.let("select i1 %turned_b, i64 %next, i64 %depth")
        long = code.let("select i1 %turned_b, i64 %depth, i64 %next")
        next_ = self.advance(code, "%b", str(vectors * self.lanes), unit)
        own = _area(code, next_, rows, "%step_b", code.times(long, unit_b))
        code.entry.append("  %area = alloca ptr")
        some = code.let("icmp sgt i64 %next, 0")
        first = code.let("load ptr, ptr %areas")
        code.add(f"store ptr {code.let(f'select i1 {some}, ptr {own}, ptr {first}')}, ptr %area")
        last = code.let(f"sub i64 %rows, {form.rows}")
        with code.loop("0", "%rows", step=form.rows) as i:
            if form.amx:
                row, down = i, code.times("%deep", str(4 * self.lanes))
                left = self.address(code, "%a", code.times(i, "%deep"))
            elif form.packs_left:
                row, down = i, str(4 * self.lanes)
                which, within = (code.let(f"{op} i64 {i}, {self.lanes}") for op in ("udiv", "urem"))
                skip = code.times(which, code.times("%deep", str(self.lanes)))
                left = self.address(code, "%a", code.sum(skip, within))
            else:
                row, down = code.least(i, last), "%step_a"
                left = self.advance(code, "%a", row, item if form.turned else "%step_a")
            to = self.advance(code, "%c", row, "%step_c")
            code.add(
                f"call void @tile{vectors}(ptr {left}, i64 {down}, ptr %panel, i64 %many, ptr {to}, "
                f"i64 %step_c, ptr {code.let('load ptr, ptr %area')})"
            )
            _go_on(code)
        return self.function(f"panel{vectors}", _PANEL_OF, code)

    def block(self) -> str:
        code, form = Code(), self.form
        item, lanes = str(form.dtype.itemsize), self.lanes
        many = code.let(f"udiv i64 %depth, {form.pairs}")
        deep = code.let(f"and i64 {code.sum(many, str(lanes - 1))}, {-lanes}")
        areas = code.name("areas")
        code.entry.append(f"  {areas} = alloca ptr")
        code.add(f"store ptr %ahead, ptr {areas}")
        if form.amx:
            told = code.integers(len(_SHAPES))
            for k, word in enumerate(_SHAPES):
                at = code.let(f"getelementptr i64, ptr {told}, i64 {k}")
                code.add(f"store volatile i64 {word}, ptr {at}")  # else a section of constants
            self.amx(code, "ldtilecfg", f"ptr {told}")
        a, unit = "%a", code.let(f"select i1 %turned_b, i64 %step_b, i64 {self.right_item}")
        if form.packs_left:
            a = self.address(code, "%room", code.times(deep, str(VECTORS * lanes)))
            above = str(form.rows - 1 if form.amx else 0)
            end = code.let(f"and i64 {code.sum('%rows', above)}, {-form.rows if form.amx else -1}")
            with code.loop("0", end, step=lanes) as i:
                from_ = self.advance(code, "%a", i, item if form.turned else "%step_a")
                left = code.let(f"sub i64 %rows, {i}")
                to = self.address(code, a, code.times(i, deep))
                code.add(
                    f"call void @pack_left(ptr {from_}, i64 %step_a, i64 {many}, i64 {left}, ptr {to})"
                )
        with code.loop("0", "%columns", step=VECTORS * lanes) as j:
            left = code.let(f"sub i64 %columns, {j}")
            b = self.advance(code, "%b", j, unit)
            c = self.advance(code, "%c", j, "4")
            more = code.let(f"sub i64 {left}, {VECTORS * lanes}")
            next_ = code.least(more, str(VECTORS * lanes))
            for vectors in range(1, VECTORS + 1):
                above = code.let(f"icmp sgt i64 {left}, {(vectors - 1) * lanes}")
                most = code.let(f"icmp sle i64 {left}, {vectors * lanes}")
                fits = "true" if vectors == VECTORS else most
                with code.when(code.let(f"and i1 {above}, {fits}")):
                    code.add(
                        f"call void @panel{vectors}(ptr {a}, i64 %step_a, i64 %rows, ptr {b}, "
                        f"i64 %step_b, i1 %turned_b, i64 {left}, i64 {next_}, i64 %depth, "
                        f"i64 {many}, i64 {deep}, ptr {c}, i64 %step_c, ptr %room, ptr {areas})"
                    )
        if form.amx:
            self.amx(code, "tilerelease")
        return self.function("run", _NAMED, code, internal=False)


_TILE = "ptr %left, i64 %down, ptr %right, i64 %many, ptr %to, i64 %step, ptr %ahead"
# Of each of 8 tiles the bytes of a row, and rows, in the eight words that say so.
_SHAPES = (1, 0, 0x40004000400040, 0x40004000400040, 0, 0, 0x1010101010101010, 0)
_DOTS = "@llvm.x86.avx512bf16.dpbf16ps.512"
_HALVES = "<32 x bfloat>"
_PANEL_OF = (
    "ptr %a, i64 %step_a, i64 %rows, ptr %b, i64 %step_b, i1 %turned_b, i64 %left, i64 %next, "
    "i64 %depth, i64 %many, i64 %deep, ptr %c, i64 %step_c, ptr %panel, ptr %areas"
)


# -- what is asked of memory ---------------------------------------------------------------
class Area(NamedTuple):
    """Lines that will be read or written soon: of some rows the first ones, then the second ones, and
    so on. A list of areas ends with one that has no rows, and stays where it is."""

    at: str  # of the next line,
    left: str  # rows that have one beside it,
    line: str  # and the first of these
    rows: str
    step: str  # bytes from row to row
    last: str  # byte of the first row

    def store(self, code: Code, to: str) -> None:
        for k, value in enumerate(self):
            at = code.let(f"getelementptr i64, ptr {to}, i64 {k}")
            code.add(f"store i64 {value}, ptr {at}")


AREA = 8 * len(Area._fields)  # bytes


def _area(code: Code, from_: str, rows: str, step: str, bytes_: str) -> str:
    """An area in memory that is in no list."""
    cell = code.name("own")
    code.entry.append(f"  {cell} = alloca [{AREA} x i8], align 8")
    first = code.let(f"ptrtoint ptr {from_} to i64")
    Area(first, rows, first, rows, step, code.sum(first, bytes_, "-1")).store(code, cell)
    return cell


def _go_on(code: Code) -> None:
    """To the next area, where all of one has been asked for."""
    area = code.let("load ptr, ptr %area")
    line, last, rows = (
        code.let(f"load i64, ptr {code.let(f'getelementptr i64, ptr {area}, i64 {k}')}")
        for k in (2, 5, 3)
    )
    ended, more = code.let(f"icmp sgt i64 {line}, {last}"), code.let(f"icmp sgt i64 {rows}, 0")
    listed = code.let("load ptr, ptr %areas")
    with code.when(code.let(f"and i1 {ended}, {more}")):
        own = code.let(f"icmp ne ptr {area}, {listed}")
        next_ = code.let(f"getelementptr i8, ptr {area}, i64 {AREA}")
        after = code.let(f"select i1 {own}, ptr {listed}, ptr {next_}")
        code.add(f"store ptr {after}, ptr %area")
        code.add(f"store ptr {after}, ptr %areas")


class _Ahead:
    """The area of a tile, which asks for a line with each of its terms."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.places = [code.let(f"getelementptr i64, ptr %ahead, i64 {k}") for k in range(6)]
        known = [code.let(f"load i64, ptr {place}") for place in self.places]
        self.rows, self.step = known[3:5]
        self.cells = [code.name("cell") for _ in range(3)]
        for cell, value in zip(self.cells, known, strict=False):
            code.entry.append(f"  {cell} = alloca i64")
            code.add(f"store i64 {value}, ptr {cell}")

    def ask(self) -> None:
        code = self.code
        at, left, line = (code.let(f"load i64, ptr {cell}") for cell in self.cells)
        place = code.let(f"inttoptr i64 {at} to ptr")
        code.fetch(place)
        fewer = code.let(f"sub i64 {left}, 1")
        ends = code.let(f"icmp eq i64 {fewer}, 0")
        next_ = code.sum(line, "64")
        after, before = (next_, self.rows, next_), (code.sum(at, self.step), fewer, line)
        for cell, a, b in zip(self.cells, after, before, strict=True):
            value = code.let(f"select i1 {ends}, i64 {a}, i64 {b}")
            code.add(f"store i64 {value}, ptr {cell}")

    def keep(self) -> None:
        for cell, place in zip(self.cells, self.places, strict=False):
            value = self.code.let(f"load i64, ptr {cell}")
            self.code.add(f"store i64 {value}, ptr {place}")
