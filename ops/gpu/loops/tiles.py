"""Products of matrices of which one side is short, or a library's tiles would be few: a kernel of ours.

    tile      rows by columns of a result that threads of a block keep in registers, each a few of both
    depth     terms of the sums that go through shared memory at once, while the next ones are on their way
    slices    teams of threads that share one tile's terms; their sums are added in order
    together  tiles of a block, where matrices are small

Operands are read as they lie, by vectors along the axis whose elements are neighbours. Which tile is taken
depends on extents, dtypes and the kind of GPU only, and so does who adds what: a product has the same bits in
each run and on each GPU of that kind. Behind it comes what is made of its elements, one by one, and of
`blocks` of its columns: gates of a recurrence's step, of which a tile has as many columns of each.

Prices of an H100 are what was measured there, of the library, too; of other cards they follow from these by
the ratios of data sheets."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import DType, bool_, float32, float64
from ostinato.ops.jit.combining import element
from ostinato.ops.jit.scalar import numbers
from ostinato.ops.jit.stacks import Stack, transposed
from ostinato.ops.jit.values import Value

from ..jit.lines import CudaLines, memory_type
from .text import Kernel, known_numbers, whole

DTYPES = (float32, float64)
# Rows and columns of a tile, and of a thread.
TILES = (
    (4, 4, 2, 2), (8, 8, 2, 2), (8, 16, 2, 4), (16, 8, 4, 2), (16, 16, 4, 4), (16, 32, 4, 4),
    (32, 16, 4, 4), (32, 32, 4, 4), (64, 16, 8, 4), (16, 64, 4, 8), (64, 32, 8, 4), (32, 64, 4, 8),
    (128, 16, 8, 4), (128, 32, 8, 4), (64, 64, 8, 4), (128, 64, 8, 8),
)  # fmt: skip
DEPTHS = (4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class TileLimits:
    """Of a kernel, and of what is ours."""

    shared: int = 48 << 10  # bytes of a block
    held: int = 160  # bytes of operands that a thread has on their way to shared memory
    threads: tuple[int, int] = (128, 512)
    tiles: int = 1 << 31
    axes: int = 4  # of stacks
    pad: int = 4  # elements behind a row in shared memory, so that few of a warp use one bank
    operations: float = 1e9  # of products of which no side is short
    side: int = 32  # that is short
    share: float = 0.9  # of the library's time, below which ours is taken
    unrolled: int = 2048  # statements of a thread behind its sums, as often as it has sums


@dataclass(frozen=True, slots=True)
class TileRates:
    """An H100's, and of the library there, as it was measured; what other cards have else."""

    multiprocessors: int = 132
    clock: float = 1.7e9
    lanes: int = 128  # multiplications of a multiprocessor at once
    threads: int = 2048  # of one, with registers, and bytes that they share
    registers: int = 1 << 16
    shared: int = 227 << 10
    memory: float = 2.8e12  # bytes per second
    cache: float = 4.5e12  # of level 2,
    sector: int = 32  # of which so many are read at once
    start: float = 2.5e-6  # seconds of a kernel
    fetch: float = 0.55e-6  # of what is read ahead
    beside: float = 0.15  # of what is hidden beside the longest part
    step: float = 0.16e-6  # seconds of 8 terms, by the library
    shared_sum: float = 6e-6  # of clearing, adding up and scaling where it divides sums
    padded: float = 26e12  # its operations per second, of tiles that need not be full,
    side: int = 32  # with so many rows and columns


LIMITS, H100 = TileLimits(), TileRates()
# By words of the names that the driver gives. Clocks: 0.86 of the data sheet's highest, as an H100 keeps;
# `memory`, `cache` and `padded` as planner/machines has of a card's copies and products to an H100's.
CARDS = {
    "H100": H100,
    "H200": replace(H100, memory=4.0e12, cache=5.7e12),
    "A100": replace(
        H100, multiprocessors=108, clock=1.21e9, lanes=64, shared=163 << 10, memory=1.7e12,
        cache=2.8e12, step=0.22e-6, padded=8.9e12,
    ),
    "RTX 4090": replace(
        H100, multiprocessors=128, clock=2.17e9, threads=1536, shared=99 << 10, memory=0.86e12,
        cache=3.3e12, step=0.13e-6, padded=31e12,
    ),
}  # fmt: skip


def rates_of(*names: str) -> TileRates:
    """Return the rates of the card that the first of these names is of; an H100's of one not known."""
    found = (rates for name in names for word, rates in CARDS.items() if word in name)
    return next(found, H100)


@dataclass(frozen=True, slots=True)
class Tiling:
    rows: int
    columns: int
    down: int  # rows and columns of a thread
    across: int
    depth: int
    slices: int = 1
    together: int = 1
    blocks: int = 1  # of a result's columns, of each of which a tile has as many
    staged: bool = False  # whether sums go through shared memory before what is behind them

    @property
    def span(self) -> int:
        """Columns of a tile that lie side by side."""
        return self.columns // self.blocks

    @property
    def team(self) -> int:
        """Threads of a tile's slice."""
        return (self.rows // self.down) * (self.columns // self.across)

    @property
    def threads(self) -> int:
        return self.team * self.slices * self.together

    def shared_bytes(self, k: int, size: int) -> int:
        pair = self.depth * (self.rows + self.columns + 2 * LIMITS.pad)
        staged = self.buffers(k) * self.slices * pair
        kept = self.slices * self.rows * self.columns if self.is_staged else 0
        return size * self.together * max(staged, kept)

    @property
    def is_staged(self) -> bool:
        return self.staged or self.slices > 1 or self.blocks > 1

    @property
    def held(self) -> int:
        """Elements of operands that a thread holds on their way to shared memory."""
        return -(-self.depth * (self.rows + self.columns) // self.team)

    def registers(self, size: int) -> int:
        """Estimate the registers of a thread: sums, what is multiplied, what is on its way, and places."""
        values = self.down * self.across + 2 * (self.down + self.across) + self.held
        return 48 + size // 4 * values

    def buffers(self, k: int) -> int:
        return min(2, self.turns(k))

    def turns(self, k: int) -> int:
        return max(1, -(-k // (self.depth * self.slices)))

    def through(self, n: int, k: int) -> int:
        """Terms that go through a team's shared memory, in whole turns, if it has all columns of its rows."""
        return -(-n // self.columns) * self.turns(k) * self.depth

    def tiles(self, m: int, n: int) -> int:
        return -(-m // self.rows) * -(-n // self.blocks // self.span)


# -- which ---------------------------------------------------------------------------------------
def tiling_of(
    m: int, n: int, k: int, count: int, dtype: DType, rates: TileRates, blocks: int = 1,
    apart: float = 0.0,
) -> Tiling | None:  # fmt: skip
    """Choose the tiling of a stack of products, or None where the library is as fast. `apart`: seconds of a
    kernel behind, which ours has in it, where that reads so many `blocks` of columns."""
    if dtype not in DTYPES or min(m, n) < 2 or not k or not count:
        return None
    work = 2.0 * m * n * k * count
    short = min(m, n) <= LIMITS.side // (1 if dtype == float32 else 4)
    if not short and (
        work > LIMITS.operations or dtype == float64
    ):  # whose tensor cores only the library uses
        return None
    best = fastest(m, n, k, count, dtype, rates, False, blocks)
    theirs = LIMITS.share * _library_seconds(m, n, k, count, dtype, rates)
    if blocks > 1 and (own := fastest(m, n, k, count, dtype, rates)) is not None:
        theirs = min(theirs, own[0])
    return best[1] if best is not None and best[0] <= theirs + apart else None


@functools.lru_cache(4096)
def fastest(
    m: int, n: int, k: int, count: int, dtype: DType, rates: TileRates, whole_rows: bool = False,
    blocks: int = 1,
) -> tuple[float, Tiling] | None:  # fmt: skip
    """Return the seconds of the fastest tiling, and it; of those that have `whole_rows` a result may lie over
    the left matrix. `blocks`: of columns, of which each tile has as many."""
    found = tilings(m, n, k, count, dtype, rates, blocks)
    able = [t for t in found if t.columns >= n or not whole_rows]
    priced = ((seconds(t, m, n, k, count, dtype, rates), t) for t in able)
    return min(priced, key=lambda pair: pair[0], default=None)


def tilings(
    m: int, n: int, k: int, count: int, dtype: DType, rates: TileRates, blocks: int = 1
) -> Iterator[Tiling]:
    for rows, columns, down, across in TILES:
        columns = columns // (1 << (blocks - 1).bit_length()) * blocks
        if blocks > 1 and (columns < 4 * blocks or columns % across):
            continue
        if (rows >= 2 * m and rows > 8) or (columns >= 2 * n and columns > 8):
            continue
        for depth in DEPTHS:
            if depth >= 2 * k and depth > DEPTHS[0]:
                continue
            for slices in (1, 2, 4, 8, 16):
                if (slices - 1) * depth >= k:
                    continue
                tiling = Tiling(rows, columns, down, across, depth, slices, blocks=blocks)
                tiling = replace(tiling, together=max(1, LIMITS.threads[0] // tiling.threads))
                fits = tiling.shared_bytes(k, dtype.itemsize) <= LIMITS.shared
                fits &= tiling.held * dtype.itemsize <= LIMITS.held
                registers = tiling.registers(dtype.itemsize)
                fits &= registers < 256 and registers * tiling.threads <= rates.registers
                many = tiling.tiles(m, n) * count
                if fits and tiling.threads <= LIMITS.threads[1] and many < LIMITS.tiles:
                    yield tiling


def seconds(
    t: Tiling, m: int, n: int, k: int, count: int, dtype: DType, rates: TileRates,
    behind: float | None = None, more: float = 0.0,
) -> float:  # fmt: skip
    """Estimate the seconds of a product. `behind`: a block has all columns of its rows, and does so many
    instructions with each element instead of writing it. `more`: bytes that are moved besides."""
    size = dtype.itemsize
    tiles = t.tiles(m, n) * count
    along = 1 if behind is None else -(-n // t.columns)  # tiles of a block, one after the other
    blocks = -(-tiles // (t.together * along))
    resident = max(1, min(
        rates.threads // t.threads,
        rates.shared // (t.shared_bytes(k if behind is None else t.through(n, k), size) + 1024),
        rates.registers // (t.registers(size) * t.threads),
    ))  # fmt: skip
    own = -(-blocks // rates.multiprocessors)  # blocks of a multiprocessor
    # a thread reads down + across elements of shared memory for down * across products
    fed = min(1.0, t.down * t.across / (4.0 * (t.down + t.across)))
    warps = min(own, resident) * t.threads / 32
    rate = rates.lanes * rates.clock * fed * 0.8 * min(1.0, warps / 8) / (1 if size == 4 else 2)
    turns = t.turns(k)
    done = turns * (t.depth + 2) * t.slices + (behind or 0.0)  # instructions of an element
    block = t.rows * t.columns * t.together * along * done / rate
    rounds = own / resident if own > resident else 1.0
    waits = rounds * (along * turns * rates.fetch + 0.5e-6 + (0.5e-6 if t.slices > 1 else 0.0))
    written = m * n if behind is None else 0
    moved = (count * (m * k + k * n + written) * size + more) / rates.memory
    columns = t.columns * max(1, rates.sector // (t.span * size))
    fetched = tiles * (t.rows + columns) * k * size / rates.cache
    parts = own * block, waits, moved, fetched
    return rates.start + max(parts) + rates.beside * (sum(parts) - max(parts))


def _library_seconds(m: int, n: int, k: int, count: int, dtype: DType, rates: TileRates) -> float:
    side_m, side_n = (-(-s // rates.side) * rates.side for s in (m, n))
    padded = 2.0 * count * side_m * side_n * max(k, 8)
    moved = count * (m * k + k * n + m * n) * dtype.itemsize / rates.memory
    steps = -(-k // 8) * rates.step
    tiles = count * side_m * side_n / rates.side**2
    shares = min(2 * rates.multiprocessors / tiles, k / 256)  # of a long sum of few tiles
    if shares >= 2:
        steps = min(steps, steps / int(shares) + rates.shared_sum)
    return rates.start + max(steps, padded / rates.padded, moved)


# -- the kernel ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Made:
    """How the elements of an operand are made: `body` has one operand with all of them, the first,
    and others that have the same for all rows or for all columns."""

    body: Graph
    others: tuple[Stack, ...] = ()

    @property
    def dtype(self) -> DType:
        return self.body.out_specs[0].dtype


@dataclass(frozen=True, slots=True)
class Behind:
    """What is made of the product's elements: `body` has as operands those of each block of columns, at the
    same place, then those of `others`; these lie over the first result, as do `more` results."""

    body: Graph
    others: tuple[Stack, ...] = ()
    more: tuple[Stack, ...] = ()

    @property
    def blocks(self) -> int:
        return len(self.body.inputs) - len(self.others)


def kernel_of(
    a: Stack, b: Stack, d: Stack, behind: Behind | None = None, tiling: Tiling | TileRates = H100,
    made: tuple[Made | None, Made | None] = (None, None),
) -> Kernel | None:  # fmt: skip
    """Make the kernel of d = a @ b, or of what is made of that: then d is the first result. None where the
    library is to multiply. `tiling`: the rates by which it is chosen, or the one to take; with that,
    matrices may have several dtypes, of whose widest sums are. `made`: what a and b are made of as they
    are read; the other operands of this come last."""
    more = (*behind.more, *behind.others) if behind is not None else ()
    stacks = [a, b, d, *more]
    alike = behind is not None or a.dtype == b.dtype == d.dtype
    if len(d.shape) > 2 + LIMITS.axes or not (alike or isinstance(tiling, Tiling)):
        return None
    if d.strides[-1] != 1 and d.strides[-2] == 1:  # its transpose has neighbours in rows
        if behind is not None and behind.blocks > 1:
            return None
        stacks, sides = [transposed(s) for s in (b, a, d, *more)], (1, 0)
    else:
        sides = (0, 1)
    (m, k), n = stacks[0].shape[-2:], stacks[1].shape[-1]
    extents, count = (m, n, k), math.prod(stacks[2].shape[:-2])
    chosen = tiling if isinstance(tiling, Tiling) else tiling_of(*extents, count, a.dtype, tiling)
    if chosen is None:
        return None
    return TileText(chosen, stacks, sides, extents, behind, made).kernel()


class TileText:
    """The text of a kernel that multiplies tiles in registers."""

    prefix = "product"
    along = False  # whether a team has all tiles of its rows, one after the other

    def __init__(
        self, tiling: Tiling, stacks: Sequence[Stack], sides: tuple[int, int],
        extents: tuple[int, int, int], behind: Behind | None = None,
        made: tuple[Made | None, Made | None] = (None, None),
    ) -> None:  # fmt: skip
        """`sides`: which operands of the caller are the left and the right one."""
        self.sides, self.behind = sides, behind
        self.results = range(2, 3 + (len(behind.more) if behind is not None else 0))
        self.made = [made[side] for side in sides]
        self.late: list[list[int]] = [[], []]
        places = [*sides, *range(2, len(stacks))]  # of the kernel's operands
        all_stacks = [*stacks]
        count = len(stacks)
        for side in (0, 1):  # in the caller's order
            own, one = sides.index(side), made[side]
            for other in one.others if one is not None else ():
                self.late[own].append(len(all_stacks))
                all_stacks.append(transposed(other) if sides != (0, 1) else other)
                places.append(count)
                count += 1
        self.stacks, self.places = all_stacks, places
        self.m, self.n, self.k = extents
        read = [m.dtype if m else s.dtype for m, s in zip(self.made, stacks[:2], strict=True)]
        self.dtype = max(read, key=lambda dtype: dtype.itemsize)
        self.outer = stacks[2].shape[:-2]
        known = numbers(behind.body) if behind is not None else {}
        self.known = {part: f"known{n}" for n, part in enumerate(known)}
        self.numbers = tuple(known.values())
        self.lines, self.values = self._elements()
        staged = len(self.lines.text) * tiling.down * tiling.across > LIMITS.unrolled
        full = replace(tiling, staged=staged)
        fits = full.shared_bytes(self.k, self.dtype.itemsize) <= LIMITS.shared
        self.tiling = full if fits else tiling

    def _elements(self) -> tuple[CudaLines, list[str]]:
        """Write what makes an element of each result of sums `sum0`, `sum1`, ... at `row` and `column`."""
        lines, behind = CudaLines(), self.behind
        if behind is None:
            return lines, ["sum0"]
        count = behind.blocks
        loads = [Value(lines, f"sum{n}", s.dtype) for n, s in enumerate(behind.body.inputs[:count])]
        for n, spec in enumerate(behind.body.inputs[count:], self.results.stop):
            at = f"(const u8*)(p{n} + (row * down{n} + column * across{n}))"
            loads.append(lines.load(at, spec.dtype))
        made, _ = element(behind.body, lines, loads, self.known)
        return lines, [value.name for _, value in made]

    def kernel(self) -> Kernel:
        t, axes = self.tiling, range(len(self.outer))
        tiles = t.tiles(self.m, 1 if self.along else self.n) * math.prod(self.outer)
        given = [f"u8* q{n}" for n in range(1 + max(self.places))]
        names = {0: ("down0", "deep0"), 1: ("deep1", "across1")}
        facts = [tiles, self.m, self.n // t.blocks, self.k, *self.outer]
        given += [f"s64 {x}" for x in ("tiles", "rows", "columns", "terms")]
        given += [f"s64 extent{axis}" for axis in axes]
        for n, s in enumerate(self.stacks):
            down, across = names.get(n, (f"down{n}", f"across{n}"))
            given += [f"s64 {down}", f"s64 {across}", *(f"s64 outer{n}_{x}" for x in axes)]
            facts += [*s.strides[-2:], *s.strides[:-2]]
        given += [f"s64 bits{n}" for n in range(len(self.numbers))]
        facts += self.numbers
        code = [*self._place(), *self._loop(), *self._end()]
        made = self._maker(0), self._maker(1), *sorted(self.lines.declared)
        grid = -(-tiles // t.together), 1
        return whole(
            self.prefix, given, code, {"\n".join([self._constants() + _SIDE, *made])}, grid,
            tuple(facts), threads=t.threads,
        )  # fmt: skip

    def _loop(self) -> list[str]:
        return [line for part in (BEGIN, MULTIPLY, END) for line in part.splitlines()]

    def _maker(self, side: int) -> str:
        """Write what makes an element of a matrix, which begins `from` terms behind the first one."""
        lines, made = CudaLines(), self.made[side]
        if made is None:
            return (
                f"struct Made{side} {{ s64 from; enum {{ ALIKE = 1 }}; template <typename F>\n"
                "  __device__ inline E operator()(F x, int line, int k) const { return (E)x; } };"
            )
        members, loads = ["s64 from;"], []
        kinds = [s.dtype for s in made.body.inputs]
        loads.append(lines.write("x != 0" if kinds[0] == bool_ else "x", kinds[0]))
        for n, dtype in enumerate(kinds[1:], 1):
            members.append(f"const {memory_type(dtype)}* p{n}; s64 line{n}, term{n};")
            steps = self.stacks[self.late[side][n - 1]].strides[-2:]
            line, term = steps if side == 0 else steps[::-1]
            far = [f"line * line{n}"] * (line != 0) + [f"(from + k) * term{n}"] * (term != 0)
            at = f"(u8*)(p{n} + ({' + '.join(far) or '0'}))"
            loads.append(lines.load(at, dtype))
        ((_, value),), _ = element(made.body, lines, loads, {})
        code = "\n".join([*lines.text, f"return {value.name};"])
        return "\n".join([
            *sorted(lines.declared), f"struct Made{side} {{", *members, "enum { ALIKE = 0 };",
            f"__device__ inline E operator()({memory_type(kinds[0])} x, int line, int k) const {{",
            code, "}", "};",
        ])  # fmt: skip

    def _constants(self) -> str:
        t, size = self.tiling, self.dtype.itemsize
        (va, a_deep), (vb, b_deep) = self._vector(0), self._vector(1)
        through = t.through(self.n, self.k) if self.along else self.k
        shared = -(-t.shared_bytes(through, size) // 16)
        known = {
            "BM": t.rows, "BN": t.columns, "BK": t.depth, "TM": t.down, "TN": t.across,
            "VM": min(t.down, 16 // size), "VN": min(t.across, 16 // size),
            "SLICES": t.slices, "TOGETHER": t.together, "TEAM": t.team,
            "BUFFERS": t.buffers(through), "PM": t.rows + LIMITS.pad, "PN": t.columns + LIMITS.pad,
            "VA": va, "VB": vb, "A_DEEP": int(a_deep), "B_DEEP": int(b_deep),
            "VD": self._stored(), "ROOM": shared, "SPAN": t.span,
        }  # fmt: skip
        text = ", ".join(f"{name} = {value}" for name, value in known.items())
        kinds = zip("ABE", [*(s.dtype for s in self.stacks[:2]), self.dtype], strict=True)
        types = "".join(f"typedef {memory_type(dtype)} {name}; " for name, dtype in kinds)
        return f"{types}\nenum {{ {text} }};\n"

    def _vector(self, n: int) -> tuple[int, bool]:
        """How many elements of an operand are read at once, and whether they lie along the terms."""
        s, t, most = self.stacks[n], self.tiling, 16 // self.stacks[n].dtype.itemsize
        down, along = s.strides[-2:] if n == 0 else s.strides[-2:][::-1]
        lines, count = (t.rows, self.m) if n == 0 else (t.span, self.n // t.blocks)
        far = (*s.strides[:-2], *(() if n == 0 or t.blocks == 1 else (count * s.strides[-1],)))
        for step, other, deep, extent, side in (
            (along, down, True, self.k, t.depth),
            (down, along, False, count, lines),
        ):
            if step == 1 and extent > 1:
                wide = most
                while wide > 1 and any(x % wide for x in (other, *far, side)):
                    wide //= 2
                return wide, deep
        return 1, abs(along) < abs(down)

    def _stored(self) -> int:
        """How many elements of a row of each result are written at once."""
        wide = self.tiling.across
        for n in self.results:
            s = self.stacks[n]
            # of a thread's, which lie side by side in a vector of shared memory
            wide = min(wide, 16 // max(s.dtype.itemsize, self.dtype.itemsize))
            while wide > 1 and (s.strides[-1] != 1 or any(x % wide for x in s.strides[:-1])):
                wide //= 2
        return wide

    def _place(self) -> list[str]:
        """Which tile is whose, and where its matrices begin."""
        t = self.tiling
        code = [
            "const u32 t = threadIdx.x % TEAM;",
            "const int slice = threadIdx.x / TEAM % SLICES;",
            "const int mine = threadIdx.x / (TEAM * SLICES);",
            "const int tx = (int)(t % (BN / TN)), ty = (int)(t / (BN / TN));",
            "const u32 number = blockIdx.x * TOGETHER + mine;",
            "const bool here = number < (u32)tiles;",
            "u32 rest = here ? number : 0;",
        ]
        for name, extent, own in (("n0", "columns", t.span), ("m0", "rows", t.rows)):
            if self.along and name == "n0":
                code.append("s64 n0 = 0;")
                continue
            if (self.n // t.blocks if name == "n0" else self.m) <= own:
                code.append(f"const s64 {name} = 0;")
                continue
            code += [
                f"const u32 {name}_count = (u32)(({extent} + {own - 1}) / {own});",
                f"const s64 {name} = (s64)(rest % {name}_count) * {own};",
                f"rest /= {name}_count;",
            ]
        axes = range(len(self.outer))
        for axis in reversed(axes):
            last = axis == 0
            place = "rest" if last else f"rest % (u32)extent{axis}"
            code.append(f"const s64 o{axis} = {place};")
            code += [] if last else [f"rest /= (u32)extent{axis};"]
        for n, given in enumerate(self.places):
            first = {0: "m0 * down0", 1: "n0 * across1"}.get(n, f"m0 * down{n} + n0 * across{n}")
            first = f"m0 * down{n}" if n in self.late[0] else first
            first = f"n0 * across{n}" if n in self.late[1] else first
            more = "".join(f" + o{x} * outer{n}_{x}" for x in axes)
            kind = f"{'' if n in self.results else 'const '}{memory_type(self.stacks[n].dtype)}"
            stays = "const " if n != 1 or not self.along else ""
            code.append(f"{kind}* {stays}p{n} = ({kind}*)q{given} + ({first}{more});")
        for side, name in enumerate(("left_made", "other_made")):
            lies = (("down", "across"), ("across", "down"))[side]
            told = [f"p{n}, {lies[0]}{n}, {lies[1]}{n}" for n in self.late[side]]
            code.append(f"Made{side} {name} = {{{', '.join(['0', *told])}}};")
        code.append(f"const bool wide0 = ((u64)p0 & {self._mask(0)}) == 0;")
        code.append(f"const bool wide1 = ((u64)p1 & {self._mask(1)}) == 0;")
        code.append("const int below = (int)(rows - m0 < BM ? rows - m0 : BM);")
        code.append("int right = (int)(columns - n0 < SPAN ? columns - n0 : SPAN);")
        code.append(f"const s64 along = {'(columns + BN - 1) / BN' if self.along else '1'};")
        return code

    def _mask(self, n: int) -> int:
        return self._vector(n)[0] * self.stacks[n].dtype.itemsize - 1

    def _end(self) -> list[str]:
        code = known_numbers(self.behind.body, self.known) if self.behind is not None else []
        pairs = [*zip(self.results, self.values, strict=True)]
        if self.tiling.is_staged:
            code += _STAGED.splitlines()
            for n in range(self.tiling.blocks):
                at = f"at / SPAN * BN + {n} * SPAN + at % SPAN"
                code += [f"E sum{n} = parts[{at}];", "#pragma unroll"]
                code.append("for (int n = 1; n < SLICES; ++n)")
                code.append(f"  sum{n} = sum{n} + parts[n * (BM * BN) + {at}];")
            code += self.lines.text
            code += [f"p{n}[row * down{n} + column * across{n}] = {x};" for n, x in pairs]
            return [*code, "}"]
        masks = [(n, self._stored() * self.stacks[n].dtype.itemsize - 1) for n in self.results]
        code += [f"const bool wide{n} = ((u64)p{n} & {mask}) == 0;" for n, mask in masks]
        code += _STORED.splitlines()
        kinds = {n: memory_type(self.stacks[n].dtype) for n in self.results}
        code += [f"Beside<{kinds[n]}, VD> whole{n};" for n in self.results]
        code += [*_ELEMENT.splitlines(), *self.lines.text]
        code += [*(f"whole{n}.at[v] = {x};" for n, x in pairs), "}"]
        for n in self.results:
            vector = f"Beside<{kinds[n]}, VD>"
            to = f"p{n} + (row * down{n} + first * across{n})"
            code.append(f"if (first + VD <= right && wide{n}) *({vector}*)({to}) = whole{n};")
            code += [
                "else {",
                "#pragma unroll",
                "for (int v = 0; v < VD; ++v) if (first + v < right)",
            ]
            code.append(f"  p{n}[row * down{n} + (first + v) * across{n}] = whole{n}.at[v];")
            code.append("}")
        return [*code, "}", "}"]


_SIDE = """
template <typename F, int LINES, int PITCH, int V, bool DEEP, int NEAR> struct Side {
  enum { COUNT = LINES * BK / V, EACH = (COUNT + TEAM - 1) / TEAM };
  enum { W = V * sizeof(E) <= 16 ? V : 16 / sizeof(E) };
  Beside<F, V> held[EACH];
  s64 gap;  // lines behind so many that are near each other
  __device__ static inline int line_of(u32 t, u32 n) {
    return DEEP ? (t + n * TEAM) / (BK / V) : (t + n * TEAM) % (LINES / V) * V;
  }
  __device__ static inline int term_of(u32 t, u32 n) {
    return DEEP ? (t + n * TEAM) % (BK / V) * V : (t + n * TEAM) / (LINES / V);
  }
  __device__ inline s64 place_of(int line) const {
    return NEAR < LINES ? line + line / NEAR * gap : line;
  }
  __device__ inline void take(const F* p, s64 down, s64 along, int lines, int terms, u32 t, bool wide) {
    if (lines >= NEAR && terms >= BK && wide && COUNT % TEAM == 0) {
      #pragma unroll
      for (int n = 0; n < EACH; ++n)
        held[n] = *(const Beside<F, V>*)(p + (place_of(line_of(t, n)) * down + term_of(t, n) * along));
    } else {
      #pragma unroll
      for (int n = 0; n < EACH; ++n) {
        const int line = line_of(t, n), k = term_of(t, n);
        #pragma unroll
        for (int v = 0; v < V; ++v) {
          const bool in = line % NEAR + (DEEP ? 0 : v) < lines && k + (DEEP ? v : 0) < terms;
          held[n].at[v] = in && t + n * TEAM < COUNT ? p[place_of(line) * down + k * along + v] : 0;
        }
      }
    }
  }
  template <bool ALL, typename M>
  __device__ inline void put_as(E* to, u32 t, const M& made, int lines, int terms) const {
    #pragma unroll
    for (int n = 0; n < EACH; ++n) {
      if (COUNT % TEAM && t + n * TEAM >= COUNT) break;
      const int line = line_of(t, n), k = term_of(t, n);
      E some[V];
      #pragma unroll
      for (int v = 0; v < V; ++v) {
        const int at = line + (DEEP ? 0 : v), term = k + (DEEP ? v : 0);
        some[v] = ALL || (at < lines && term < terms) ? made(held[n].at[v], at, term) : 0;
      }
      if (DEEP) {
        #pragma unroll
        for (int v = 0; v < V; ++v) to[(k + v) * PITCH + line] = some[v];
      } else {
        #pragma unroll
        for (int v = 0; v < V; v += W) {
          Beside<E, W> part;
          #pragma unroll
          for (int w = 0; w < W; ++w) part.at[w] = some[v + w];
          *(Beside<E, W>*)(to + k * PITCH + line + v) = part;
        }
      }
    }
  }
  template <typename M>
  __device__ inline void put(E* to, u32 t, const M& made, int lines, int terms) const {
    if (M::ALIKE || (lines >= LINES && terms >= BK)) put_as<true>(to, t, made, lines, terms);
    else put_as<false>(to, t, made, lines, terms);
  }
};
__device__ inline float added(float x, float y, float z) { return fmaf(x, y, z); }
__device__ inline double added(double x, double y, double z) { return fma(x, y, z); }"""
BEGIN = """\
__shared__ Beside<u32, 4> room_[ROOM];
E* const room = (E*)room_ + (mine * SLICES + slice) * (BUFFERS * BK * (PM + PN));
Side<A, BM, PM, VA, A_DEEP, BM> left;
Side<B, BN, PN, VB, B_DEEP, SPAN> other;
other.gap = columns - SPAN;
E sums[TM][TN];
#pragma unroll
for (int i = 0; i < TM; ++i) {
  #pragma unroll
  for (int j = 0; j < TN; ++j) sums[i][j] = 0;
}
const s64 turns = (terms + BK * SLICES - 1) / (BK * SLICES) * along;
s64 first = slice * BK;
#define ostinato_left(k) (int)(terms - (k) < BK ? terms - (k) : BK)
left.take(p0 + first * deep0, down0, deep0, below, ostinato_left(first), t, wide0);
other.take(p1 + first * deep1, across1, deep1, right, ostinato_left(first), t, wide1);
left_made.from = other_made.from = first;
left.put(room, t, left_made, below, ostinato_left(first));
other.put(room + BK * PM, t, other_made, right, ostinato_left(first));
__syncthreads();
for (s64 turn = 0; turn < turns; ++turn) {
  const E* const x = room + (int)(turn % BUFFERS) * (BK * (PM + PN));
  const E* const y = x + BK * PM;
  const bool more = turn + 1 < turns;
  first += BK * SLICES;"""
MULTIPLY = """\
  if (more) {
    left.take(p0 + first * deep0, down0, deep0, below, ostinato_left(first), t, wide0);
    other.take(p1 + first * deep1, across1, deep1, right, ostinato_left(first), t, wide1);
  }
  #pragma unroll
  for (int k = 0; k < BK; ++k) {
    Beside<E, VM> a[TM / VM];
    Beside<E, VN> b[TN / VN];
    #pragma unroll
    for (int i = 0; i < TM / VM; ++i)
      a[i] = *(const Beside<E, VM>*)(x + k * PM + i * (BM / (TM / VM)) + ty * VM);
    #pragma unroll
    for (int j = 0; j < TN / VN; ++j)
      b[j] = *(const Beside<E, VN>*)(y + k * PN + j * (BN / (TN / VN)) + tx * VN);
    #pragma unroll
    for (int i = 0; i < TM; ++i) {
      #pragma unroll
      for (int j = 0; j < TN; ++j)
        sums[i][j] = added(a[i / VM].at[i % VM], b[j / VN].at[j % VN], sums[i][j]);
    }
  }
  if (more) {
    E* const to = room + (int)((turn + 1) % BUFFERS) * (BK * (PM + PN));
    left_made.from = other_made.from = first;
    left.put(to, t, left_made, below, ostinato_left(first));
    other.put(to + BK * PM, t, other_made, right, ostinato_left(first));
  }"""
END = """\
  __syncthreads();
}"""
ROW = "(i / VM) * (BM / (TM / VM)) + ty * VM + i % VM"
COLUMN = "(j / VN) * (BN / (TN / VN)) + tx * VN + j % VN"
_STORED = f"""\
if (!here) return;
#pragma unroll
for (int i = 0; i < TM; ++i) {{
  const s64 row = {ROW};
  if (row >= below) continue;
  #pragma unroll
  for (int j = 0; j < TN; j += VD) {{
    const s64 first = {COLUMN};"""
_ELEMENT = """\
#pragma unroll
for (int v = 0; v < VD; ++v) {
  const s64 column = first + v;
  if (column >= right) continue;
  const E sum0 = sums[i][j + v];"""
_STAGED = f"""\
E* const parts = (E*)room_ + mine * (SLICES * BM * BN);
#pragma unroll
for (int i = 0; i < TM; ++i) {{
  #pragma unroll
  for (int j = 0; j < TN; ++j)
    parts[slice * (BM * BN) + ({ROW}) * BN + {COLUMN}] = sums[i][j];
}}
__syncthreads();
if (!here) return;
for (int at = slice * TEAM + t; at < BM * SPAN; at += TEAM * SLICES) {{
  const s64 row = at / SPAN, column = at % SPAN;
  if (row >= below || column >= right) continue;"""
