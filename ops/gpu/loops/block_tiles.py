"""Several steps over the same elements as one CUDA kernel (ops/jit/step_tiles.py): a block has a tile of the
results, and what it needs between the steps stays in shared memory.

    a block's tile of w            [t, t + 32)
    step 1 reads, of v             [t - 1, t + 33)     shared memory
    step 0 makes these, of u       [t - 2, t + 34)     memory

Around a tile all is computed again. What would lie behind the end of an array is what lies at its begin, so
there too each element is one that exists, and rolls find theirs in the tile; whether somebody needs it does
not matter. Of a tile whose steps all are in the middle of the arrays, which is nearly each, it is known which
piece of a join has an element, so that text asks about nothing. Where vectors are not aligned a third text
goes element by element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import Shape, strided_like
from ostinato.ops.jit.moves import Along, Look
from ostinato.ops.jit.registers import order_for_registers
from ostinato.ops.jit.scalar import numbers
from ostinato.ops.jit.step_tiles import Steps, steps_along

from ..jit.lines import CudaLines
from .moved import MovedWriter, _Address, _Base, _beside_of, _Env, _Index
from .schedule import BLOCKS, THREADS, VECTOR, WARP, WRITTEN
from .text import Kernel, known_numbers, whole

SIZES: dict[int, tuple[Shape, ...]] = {  # of tiles, by how many axes there are
    1: ((8192,), (4096,), (2048,), (1024,)),
    2: ((64, 128), (32, 128), (32, 64), (16, 128), (16, 64)),
    3: ((8, 16, 64), (8, 16, 32), (8, 8, 64), (8, 8, 32)),
}
ROOM = 46 << 10  # bytes of shared memory; there are 48 KiB without asking for more

FUNCTIONS = """\
template <typename T> __device__ inline T wrapped(T x, T n) {
  return x < 0 ? x + n : x >= n ? x - n : x;
}
template <typename T> __device__ inline T held_at(T x, T n, T last) {
  x = wrapped<T>(x, n);
  return x < 0 ? 0 : x > last ? last : x;
}"""


@dataclass(frozen=True, slots=True)
class BlockTile:
    """A block's part of the results, and how much more it makes of each step, before that and behind."""

    along: tuple[Steps, ...]  # as they are cut along each axis
    sizes: Shape
    around: tuple[tuple[tuple[int, int], ...], ...]
    rows: ClassVar[int] = 2  # that a thread makes at once, as they read the same neighbours

    @property
    def body(self) -> Graph:
        return self.along[0].body

    @property
    def shape(self) -> Shape:
        return self.along[0].shapes[self.body.outputs[0]]

    def extents(self, k: int) -> Shape:
        return tuple([a + n + b for n, (a, b) in zip(self.sizes, self.around[k], strict=True)])

    def again(self, k: int) -> float:
        """How often a step makes an element, on average."""
        return math.prod(self.extents(k)) / math.prod(self.sizes)

    def places(self) -> tuple[dict[int, int], int]:
        """Where what lies between the steps begins in shared memory, and how much there is."""
        slots, sizes = self.along[0].slots(), dict[int, int]()
        for v, slot in slots.items():
            volume = math.prod(self.extents(self.body.producers[v]))
            size = -(-volume * self.body.specs[v].dtype.itemsize // VECTOR) * VECTOR
            sizes[slot] = max(sizes.get(slot, 0), size)
        firsts = [0, *itertools.accumulate(sizes[slot] for slot in range(len(sizes)))]
        return {v: firsts[slot] for v, slot in slots.items()}, firsts[-1]

    def middle(self, k: int) -> tuple[tuple[int, int], ...]:
        """The box in which most of a step's elements are computed in one way."""
        boxes = [part.box for part in self.along[0].parts[k]]
        return max(boxes, key=lambda box: math.prod(hi - lo for lo, hi in box))


@lru_cache(256)
def tile_of(body: Graph, given: tuple[Shape, ...], each: int) -> BlockTile | None:
    """The tiles of which least is computed again, for operands of these shapes, where a thread makes `each`
    neighbours; None if there can be none."""
    (ndim,) = {s.ndim for s in body.out_specs}
    along = [steps_along(body, given, d) for d in range(ndim)] if ndim in SIZES else []
    known = tuple([steps for steps in along if steps is not None])
    if not known or len(known) < ndim:
        return None
    if any(dim != d for d, steps in enumerate(known) for dim in steps.axes.values()):
        return None
    found = list[tuple[float, BlockTile]]()
    for sizes in SIZES[ndim]:
        around = _around(known, sizes, each)
        if around is None:
            continue
        tile = BlockTile(known, sizes, around)
        steps = range(len(body.nodes))
        small = any(m > n for k in steps for m, n in zip(tile.extents(k), tile.shape, strict=True))
        many = math.prod(-(-n // m) for n, m in zip(tile.shape, sizes, strict=True))
        if tile.places()[1] <= ROOM and many >= BLOCKS // 2 and not small:
            found.append((sum(map(tile.again, steps)), tile))
    return min(found, key=lambda one: one[0], default=(0, None))[1]


def _around(
    along: Sequence[Steps], sizes: Shape, each: int
) -> tuple[tuple[tuple[int, int], ...], ...] | None:
    """How much more than a tile each step makes; None if what lies between has other extents and is read from
    both of its ends. Rows are in pairs, and have whole vectors, of which some may be of nothing."""
    body, last = along[0].body, len(along) - 1
    shapes = [along[0].shapes[v] for v in along[0].axes]
    found = [[(0, 0)] * len(along) for _ in body.nodes]
    for k in reversed(range(len(body.nodes))):
        for d, steps in enumerate(along):
            a, b = found[k][d]
            if d == last - 1:
                b += -(a + sizes[d] + b) % BlockTile.rows
            found[k][d] = (-(-a // each) * each, -(-b // each) * each) if d == last else (a, b)
            for v, further in itertools.chain(*steps.reads[k]):
                n, j = steps.shapes[v][d], body.producers[v]
                near = (further + n // 2) % n - n // 2
                if near != further and len({shape[d] for shape in shapes}) > 1:
                    return None
                before, behind = found[j][d]
                found[j][d] = max(before, a - near), max(behind, b + near)
    return tuple(map(tuple, found))


def neighbours_of(body: Graph, arrays: Sequence[Any]) -> int:
    """How many neighbours of a row a thread makes, for operands and results that lie so."""
    graphs = [node.kw["body"] for node in body.nodes]
    sizes = [graph.specs[v].dtype.itemsize for graph in graphs for v in _in_memory(graph)]
    waits = [order_for_registers(g, range(len(g.nodes)))[1] for g in graphs]
    if max((max(own, default=0) for own in waits), default=0) > WARP // 2:
        return 1
    each = VECTOR // max(4, *sizes)
    while each > 1 and each * sum(len(g.nodes) for g in graphs) > 2 * WRITTEN:
        each //= 2
    for x, s in zip(arrays, (*body.inputs, *body.out_specs), strict=True):
        size = s.dtype.itemsize
        if not x.shape or x.shape[-1] == 1:
            continue
        if x.strides[-1] != size:
            return 1
        outer = [step for n, step in zip(x.shape[:-1], x.strides, strict=False) if n > 1]
        while each > 1 and any(step % (each * size) for step in outer):
            each //= 2
    steps = steps_along(body, tuple([x.shape for x in arrays[: len(body.inputs)]]), 0)
    made = [] if steps is None else [steps.shapes[v][-1] for v in steps.axes]
    while each > 1 and any(n % each for n in made):
        each //= 2
    return each


def _in_memory(graph: Graph) -> list[int]:
    return [*range(len(graph.inputs)), *graph.outputs]


@dataclass(frozen=True, slots=True)
class _Held:
    """A value in shared memory: where it begins, its bytes from one element to the next along each axis, its
    elements, those that are there, and how many of these lie before the tile."""

    first: int
    steps: tuple[int, ...]
    shape: Shape
    extents: Shape
    before: tuple[int, ...]


class StepWriter(MovedWriter):
    """The text of one step."""

    def __init__(self, tile: BlockTile, k: int, given: Sequence[Any], base: int) -> None:
        """`given`: how operands and results of all steps lie; its numbers are those from `base` on."""
        node, self.tile, self.step = tile.body.nodes[k], tile, k
        shapes, body = tile.along[0].shapes, node.kw["body"]
        values = (*node.inputs, *tile.body.outs(k))
        outside = {v: n for n, v in enumerate((*range(len(tile.body.inputs)), *tile.body.outputs))}
        like = [
            given[outside[v]] if v in outside else strided_like(shapes[v], tile.body.specs[v].dtype)
            for v in values
        ]
        super().__init__(body, shapes[tile.body.starts[k]], like, 0)
        self.known = {part: f"known{base + n}" for n, part in enumerate(numbers(body))}
        places, _ = tile.places()
        self.held = {n: self._held(v, places[v]) for n, v in enumerate(values) if v in places}
        self.outside = {n: outside[v] for n, v in enumerate(values) if v in outside}
        self.before = tuple([a for a, _ in tile.around[k]])
        self.inside, self.rows_, self.each = False, 1, 1

    def _held(self, v: int, first: int) -> _Held:
        k, size = self.tile.body.producers[v], self.tile.body.specs[v].dtype.itemsize
        extents = self.tile.extents(k)
        steps = tuple([size * math.prod(extents[d + 1 :]) for d in range(len(extents))])
        before = tuple([a for a, _ in self.tile.around[k]])
        return _Held(first, steps, self.tile.along[0].shapes[v], extents, before)

    def text(self, inside: bool, rows: int, each: int) -> tuple[list[str], set[str]]:
        """Write this step of a block, and what that needs. `inside`: where no array ends."""
        self.inside, self.rows_, self.each = inside, rows, each
        self.begin()
        self.some(CudaLines())  # which says what is read
        self.begin(self.read)
        lines, last, place = CudaLines(), len(self.shape) - 1, self.place
        names = [f"x{d}" if d < last else "first" for d in range(last + 1)]
        for r, row in enumerate(self.some(lines)):
            look = self.look(r, 0)
            for k in row[0]:
                kind = _beside_of(self.dtypes[k], each)
                lines.text.append(f"{kind} v{k}_{r};")
                for j, made in enumerate(row):
                    lines.store(f"(u8*)&v{k}_{r}.at[{j}]", made[k])
                to = self.address_of(lines, k, look, self.env())
                lines.text.append(f"*({kind}*)({to.base} + {to.off}) = v{k}_{r};")
                if k in self.outside:
                    self.vectored[k] = max(each * self.dtypes[k].itemsize, self.vectored.get(k, 1))
        extents, ends = self.tile.extents(self.step), self.step == len(self.tile.body.nodes) - 1
        many = [each if d == last else rows if d == last - 1 else 1 for d in range(last + 1)]
        counts = [-(-n // m) for n, m in zip(extents, many, strict=True)]
        code = [f"u8* const q{n} = g{g};" for n, g in self.outside.items()]
        code += ["#pragma unroll 1"]
        code += [f"for (u32 j = threadIdx.x; j < {math.prod(counts)}u; j += {THREADS}) {{"]
        for d, name in enumerate(names):
            index = f"j / {math.prod(counts[d + 1 :])}u" if d < last else "j"
            index += f" % {counts[d]}u" if d else ""
            code.append(f"const {place} l{d} = ({place})({index}) * {many[d]};")
            at, n = f"begin{d} - {self.before[d]} + l{d}", self.fact(self.shape[d])
            at = at if inside or ends else f"wrapped<{place}>({at}, {n})"
            code.append(f"const {place} {name} = {at};")
            code += [f"if ({name} >= {n}) continue;"] if ends and not inside else []
        return [*code, *lines.text, "}"], lines.declared

    def look(self, r: int, j: int) -> Look:
        """One of the elements that a thread makes, from its first one's index."""
        last = len(self.shape) - 1
        more = {last: j} | ({last - 1: r} if last else {})
        return tuple([Along(d, more.get(d, 0), 1) for d in range(last + 1)])

    def some(self, lines: CudaLines) -> list[list[dict[int, Any]]]:
        """The results of these, row by row."""
        rows, env = range(self.rows_ if len(self.shape) > 1 else 1), self.env()
        return [
            [dict(self.outputs(lines, self.look(r, j), env)[0]) for j in range(self.each)]
            for r in rows
        ]

    def env(self) -> _Env:
        found, last = list[_Index](), len(self.shape) - 1
        box = self.tile.middle(self.step) if self.inside else [(0, n) for n in self.shape]
        for d, (lo, hi) in enumerate(box):
            every = self.each if d == last else 1
            many = every if d == last else self.rows_ if d == last - 1 else 1
            lo, hi = -(-lo // every) * every, (hi - many) // every * every + 1
            found.append(_Index("first" if d == last else f"x{d}", lo, hi, lo, hi, every))
        return tuple(found)

    def address_of(self, lines: CudaLines, k: int, look: Look, env: _Env) -> _Address:
        """Also of what is in shared memory."""
        held = self.held.get(k)
        if held is None:
            return super().address_of(lines, k, look, env)
        mine = k >= len(self.body.inputs)
        known = mine or self.inside
        if known and all(at.axis == d and at.step == 1 for d, at in enumerate(look)):
            shifts = [a - b for a, b in zip(held.before, self.before, strict=True)]
            places = [(f"l{d}", at.offset + shifts[d]) for d, at in enumerate(look)]
        else:
            places = [self.place_in(lines, held, d, at, env) for d, at in enumerate(look)]
        terms = [f"{step} * {name}" for step, (name, _) in zip(held.steps, places, strict=True)]
        base = self.named(lines, "u8* const", " + ".join((f"held + {held.first}", *terms)))
        self.bases[base] = _Base((), min(VECTOR, self.each * self.dtypes[k].itemsize))
        off = sum(step * more for step, (_, more) in zip(held.steps, places, strict=True))
        return _Address(base, off)

    def place_in(
        self, lines: CudaLines, held: _Held, d: int, at: Along, env: _Env
    ) -> tuple[str, int]:
        """Where an element is along an axis, of those that are there: the name of a place, and how far from
        it. One that nobody wants is another one."""
        each = self.each if d == len(self.shape) - 1 else 1
        index = env[at.axis] if at.axis >= 0 else None
        assert at.step == (index is not None)
        whole_ = index is not None and index.every % each == 0
        more = at.offset % each if whole_ else 0
        place = f"{at.offset - more + held.before[d]} - begin{d}"
        place = place if index is None else f"{index.name} + {place}"
        n, last = self.fact(held.shape[d]), held.extents[d] - (each if whole_ else 1)
        text = f"held_at<{self.place}>({place}, {n}, {last})"
        return self.named(lines, self.place, text), more


def steps_kernel(body: Graph, arrays: Sequence[Any]) -> Kernel | None:
    """The kernel of a body of steps, for operands and results that lie so."""
    each, count = neighbours_of(body, arrays), len(body.inputs)
    tile = tile_of(body, tuple([x.shape for x in arrays[:count]]), each)
    if tile is None:
        return None
    steps = range(len(body.nodes))
    told, writers, bits = dict[int, str](), list[StepWriter](), list[int]()
    for k in steps:
        writers.append(writer := StepWriter(tile, k, arrays, len(bits)))
        bits += numbers(writer.body).values()
        writer.told = told
    for writer in writers:
        writer.place = "s64" if any(w.place == "s64" for w in writers) else "s32"
    place, ndim, first = writers[0].place, len(tile.shape), writers[0]
    lows = [max(tile.middle(k)[d][0] + tile.around[k][d][0] for k in steps) for d in range(ndim)]
    highs = [
        min(tile.middle(k)[d][1] - tile.around[k][d][1] - n for k in steps)
        for d, n in enumerate(tile.sizes)
    ]
    has_middle = all(lo <= hi for lo, hi in zip(lows, highs, strict=True))
    tests = [
        f"begin{d} >= {first.fact(lo)} && begin{d} <= {first.fact(hi)}"
        for d, (lo, hi) in enumerate(zip(lows, highs, strict=True))
    ]
    declared = {FUNCTIONS}

    def all_steps(inside: bool, rows: int, each: int) -> list[str]:
        code = list[str]()
        for writer in writers:
            text, needs = writer.text(inside, rows, each)
            declared.update(needs)
            code += ["__syncthreads();"] * bool(code) + ["{", *text, "}"]
        return code

    code = [line for w in writers for line in known_numbers(w.body, w.known)]
    _, size = tile.places()
    code += [
        f"__shared__ Beside<u32, 4> room_[{-(-size // VECTOR) + 2}];",
        "u8* const held = (u8*)(room_ + 1);",  # what nobody needs may be of what lies around
    ]
    rest = "blockIdx.x"
    tiles = [-(-n // m) for n, m in zip(tile.shape, tile.sizes, strict=True)]
    for d, (many, m) in reversed([*enumerate(zip(tiles, tile.sizes, strict=True))]):
        code += [f"const u32 tiles{d} = (u32){first.fact(many)}, rest{d} = {rest} / tiles{d};"]
        code += [f"const {place} begin{d} = ({place})({rest} - rest{d} * tiles{d}) * {m};"]
        rest = f"rest{d}"
    middle = all_steps(True, tile.rows, each) if has_middle else []
    around = all_steps(False, 1, each)
    vectored = {(w.outside[k], n) for w in writers for k, n in w.vectored.items() if n > 1}
    aligned = " && ".join(f"((u64)g{k} & {n - 1}) == 0" for k, n in sorted(vectored)) or "true"
    if vectored:
        code += [f"const bool aligned = {aligned};"]
        around = ["if (aligned) {", *around, "} else {", *all_steps(False, 1, 1), "}"]
        tests.append("aligned")
    if middle:
        code += [f"if ({' && '.join(tests)}) {{", *middle, "} else {", *around, "}"]
    else:
        code += around
    given = [f"u8* g{k}" for k in range(len(arrays))]
    given += [f"s64 bits{n}" for n in range(len(bits))] + [f"s64 {name}" for name in told.values()]
    grid = math.prod(tiles), 1
    return whole("steps", given, code, declared, grid, (*bits, *told))
