"""Kernels in stages: reductions, products and what is made of them, block after block of rows.

A kernel's values run over labelled indices, as the ops' index rules connect them. The `rows` are
labels that every operation has: they are what is cut in time, into units, and shared among threads.
In a unit, stage follows stage, and what lies between stays in cache:

    distances -> argmin -> one_hot -> matmul        rows: i; k, d are short; lanes along i
    max -> exp -> sum -> divide  (softmax)          rows: i; lanes along j

Each stage is a nest of loops, the innermost along the `lane`: the rows themselves where all else
is short (a unit is then up to 256 rows), or else the index with most of the work. What is
reduced over rows is summed in chunks, whose sums are added with compensation, turn by turn; turns
depend on extents only, so the number of threads changes no bit."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, bool_, int64, real_of
from ostinato.ops.cpu.jit.emitter import Code, memory_type
from ostinato.ops.cpu.jit.lines import LlvmLines, llvm_type, number_at
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.loops.schedule import ABREAST, Nest
from ostinato.ops.jit.combining import (
    carried,
    compensated,
    first_of,
    has_order,
    is_free,
    joined,
    ordered,
    unordered,
    whole_of,
)
from ostinato.ops.jit.elements import Elements, Env
from ostinato.ops.jit.kept_values import MAX_FIXED_EXTENT
from ostinato.ops.jit.labels import reads_elsewhere
from ostinato.ops.jit.random_bits import numbers_in
from ostinato.ops.jit.scalar import numbers
from ostinato.ops.jit.stage_values import Reduction
from ostinato.ops.jit.values import Value, cast, where

from .squares import BYTES, CALLED, Square
from .walks import goes_along, waits

CHUNK, ROWS = 1024, 256  # elements whose order of summing is free; rows that are summed in one go
UNROLLED = LIMITS.unrolled
LINE = LIMITS.line


# -- what a kernel is told -----------------------------------------------------------------
FRONT = 8  # turns, threads, units, units of a turn; address and bytes of a thread's, a turn's room


@dataclass(frozen=True, slots=True)
class Facts:
    """The meta array of a kernel: where it has which number, and the numbers behind its front."""

    places: dict[tuple[str, int, int], int]
    values: list[int]
    room: int  # bytes that a thread needs
    waiting: int  # bytes that a turn's sums need
    units: int


def chunk_units(nest: Nest) -> int:
    """How many units are summed in one go."""
    return CHUNK // nest.lanes if nest.across else ROWS


def facts(nest: Nest) -> Facts:
    places: dict[tuple[str, int, int], int] = {}
    values: list[int] = []

    def put(value: int, kind: str, a: int, b: int = -1) -> int:
        places[kind, a, b] = FRONT + len(values)
        values.append(value)
        return value

    for label, n in enumerate(nest.extents):
        put(n, "extent", label)
    for k, lies in enumerate(nest.strides):
        for label, step in lies.items():
            put(step, "stride", k, label)
    for (v, part), bits in numbers(nest.body).items():
        put(bits, "number", v, part)
    room = waiting = 0
    for v in sorted(nest.held):
        put(room, "held", v)
        room += nest.held_bytes(v)
    for v, label in nest.running.items():
        put(room, "carry", v)
        room += -(-nest.held_bytes(v) // nest.width(label) // LINE) * LINE
    for v in nest.gathered:
        put(nest.volume(v), "count", v)
        double = 2 if nest.reductions[v].kind == "moments" else 1
        put(room, "part", v)
        put(room + nest.held_bytes(v), "part2", v)
        room += double * nest.held_bytes(v)
        put(waiting, "total", v)
        put(waiting + double * nest.held_bytes(v), "lost", v)
        waiting += 2 * double * nest.held_bytes(v)
        put(waiting, "done", v)
        waiting += 64
    steps = {nest.lane: nest.lanes} if nest.across else {}
    steps |= {nest.abreast: ABREAST} if nest.abreast >= 0 else {}
    units = math.prod(-(-nest.extents[x] // steps.get(x, 1)) for x in nest.rows)
    return Facts(places, values, room, waiting, units)


def cleared(dtype: DType) -> int:
    """The bytes of elements of which a loop that clears them makes vectors; 0 where LLVM makes a call of
    the two parts' zeros."""
    return 0 if dtype.kind == "c" else dtype.itemsize


class StageWriter(Elements):
    """Writes the stages of a unit."""

    nest: Nest

    def __init__(self, nest: Nest, bits: int) -> None:
        self.nest = nest
        self.bits = bits  # of a vector
        self.body = nest.body
        self.counted, self.held = numbers_in(nest.body), nest.held
        looks = [n for n in nest.body.nodes if reads_elsewhere(n)]
        self.read_elsewhere = {x for n in looks for v in n.inputs for x in nest.labels(v)}
        self.facts = facts(nest)
        self.code = Code()
        self.outer = self.code.lines.text  # where what does not depend on the lane goes
        self.memo: dict[tuple[int, tuple[str, ...]], Value] | None = None  # within a lane
        self.known: set[str] = set()  # names that the entry defines
        self.begins: Env = {}  # where a unit begins, along its rows
        self.bases: list[str] = []  # what lies in this thread's room
        self.left = ""  # elements of the tile of the index that sums run along

    @property
    def lines(self) -> LlvmLines:
        return self.code.lines

    # -- facts
    def fact(self, kind: str, a: int, b: int = -1) -> str:
        """A number from the meta array, loaded once at the entry."""
        return self.entry_slot(self.facts.places[kind, a, b], "i64")

    def entry_slot(self, place: int, kind: str) -> str:
        key = f"%meta_{place}"
        if key not in self.known:
            self.known.add(key)
            self.code.entry += [
                f"  {key}_p = getelementptr i64, ptr %meta, i64 {place}",
                f"  {key} = load {kind}, ptr {key}_p",
            ]
        return key

    def number(self, v: int, part: int = 0) -> Value | None:
        """Load the kernel's argument for a constant's value, or for a mean's divisor."""
        place = self.facts.places.get(("number", v, part))
        if place is None:
            return None
        dtype = real_of(self.body.specs[v].dtype)
        return Value(self.code.lines, self.entry_slot(place, llvm_type(dtype)), dtype)

    def extent(self, label: int) -> str:
        if label == self.nest.walked and self.left:
            return self.left
        if label == self.nest.abreast:
            return "%abreast"
        return str(self.nest.extents[label]) if self.is_short(label) else self.fact("extent", label)

    def is_short(self, label: int) -> bool:
        nest = self.nest
        apart = label not in nest.rows and label not in (nest.lane, nest.walked)
        return apart and nest.extents[label] <= MAX_FIXED_EXTENT

    def span(self, label: int) -> str:
        """How many elements a held value has room for along a label."""
        nest = self.nest
        fixed = label in (nest.walked, nest.abreast) or (label == nest.lane and nest.across)
        return str(nest.width(label)) if fixed else self.extent(label)

    # -- addresses
    def held_at(self, v: int, env: Env, base: str = "", but: int = -1) -> str:
        """The address of a held value's element; `but`: of what has all of its labels but one."""
        nest, code = self.nest, self.code
        index = "0"
        for x in (x for x in nest.inner(v) if x != but):
            index = env[x] if index == "0" else code.sum(code.times(index, self.span(x)), env[x])
        base = base or self.base("held", v)
        kind = memory_type(self.body.specs[v].dtype)
        return code.let(f"getelementptr {kind}, ptr {base}, i64 {index}", "a")

    def base(self, kind: str, v: int) -> str:
        """Where something of this thread (held, part) or of this turn (total, lost) begins."""
        key = f"%{kind}_{v}"
        if key not in self.known:
            self.known.add(key)
            offset = self.fact(kind, v)
            if kind in ("held", "carry", "part", "part2"):
                self.bases.append(f"  {key} = getelementptr i8, ptr %room, i64 {offset}")
        return key

    def place(self, a: int, env: Env) -> str:
        """The address of an operand's or result's element."""
        nest, code = self.nest, self.code
        v = a if a < nest.operands else self.body.outputs[a - nest.operands]
        dtype = self.body.specs[v].dtype
        at = f"%at_{a}"
        lane = nest.lane if nest.lane in nest.strides[a] else -1
        beside = nest.slid_with(a, nest.abreast)[:1]
        for x in nest.strides[a]:
            if x == nest.abreast and not beside:
                at = self.further(at, env[x], a, x)
            elif x != lane and (x not in nest.rows):
                index = code.sum(self.begins[x], env[x]) if x in self.begins else env[x]
                if x in beside:  # one address, that several rows know by one name
                    index = code.sum(index, env[nest.abreast])
                if x in self.read_elsewhere and nest.strides[a][x] == dtype.itemsize:
                    at = code.let(f"getelementptr {memory_type(dtype)}, ptr {at}, i64 {index}", "a")
                    continue
                at = self.further(at, index, a, x)
        if lane >= 0:
            if nest.strides[a][lane] == dtype.itemsize:
                return code.let(
                    f"getelementptr {memory_type(dtype)}, ptr {at}, i64 {env[lane]}", "a"
                )
            return self.further(at, env[lane], a, lane)
        return at

    def further(self, at: str, index: str, a: int, label: int) -> str:
        """The address of an element of an operand that is so many elements away along a label."""
        step = self.code.times(index, self.fact("stride", a, label))
        return self.code.let(f"getelementptr i8, ptr {at}, i64 {step}", "a")

    def load(self, address: str, dtype: DType) -> Value:
        return self.code.load(address, dtype)

    def store(self, value: Value, address: str) -> None:
        self.code.store(value, address)

    # -- values
    def value(self, v: int, env: Env) -> Value:
        """A value's element; what does not depend on the lane is found out before its loop."""
        nest, lines = self.nest, self.code.lines
        if self.memo is None:
            return self._value(v, env)
        key = (v, tuple(env[x] for x in nest.labels(v) if x in env))
        if key not in self.memo:
            here = lines.text
            if nest.lane not in nest.labels(v):
                lines.text = self.outer
            self.memo[key] = self._value(v, env)
            lines.text = here
        return self.memo[key]

    def _value(self, v: int, env: Env) -> Value:
        if v in self.nest.held:
            return self.load(self.held_at(v, env), self.body.specs[v].dtype)
        return self.made(v, env)

    def loaded(self, a: int, env: Env) -> Value:
        return self.load(self.place(a, env), self.body.specs[a].dtype)

    def counting(self, a: int, env: Env) -> Value:
        name = self.code.name("n").removeprefix("%")
        text = self.code.lines.text
        return number_at(self.code.lines, text, name, f"%data_{a}", self.place(a, env))

    def picked_at(self, x: int, env: Env) -> Value:
        outer, memo = self.outer, self.memo
        # what depends on this index comes behind it, and nobody else's values are those
        self.outer, self.memo = self.code.lines.text, None if memo is None else dict(memo)
        found = self.value(x, env)
        self.outer, self.memo = outer, memo
        return found

    def guarded(self, inside: Value, other: Value, make: Callable[[], Value]) -> Value:
        code, outer, memo = self.code, self.outer, self.memo
        cell = code.cell(other.dtype)
        code.put(cell, other)
        # what is found out in the branch is known nowhere else
        self.outer, self.memo = code.lines.text, None if memo is None else dict(memo)
        with code.when(inside.name):
            code.put(cell, make())
        self.outer, self.memo = outer, memo
        return code.get(cell, other.dtype)

    def index(self, label: int | None, env: Env) -> Value:
        name = "0" if label is None else env.get(label, "0")
        if label in self.begins:
            name = self.code.sum(self.begins[label], name)
        return Value(self.code.lines, name, int64)

    @contextlib.contextmanager
    def lanes(self, size: int, begin: str = "0", end: str = "") -> Iterator[Env]:
        """The innermost loop, along the lane; what is invariant is written before it."""
        code, nest = self.code, self.nest
        end = end or ("%count" if nest.across else self.extent(nest.lane))
        before, inside = code.lines.text, list[str]()
        memo, outer = self.memo, self.outer
        self.outer, self.memo = before, {}
        # the header is written behind the invariants
        n = code.names = code.names + 1
        code.lines.text = inside
        yield {nest.lane: f"%lane_{n}"}
        code.lines.text = before
        vectors = nest.extents[nest.lane] * size // (self.bits // 8)
        few = 2 - vectors % 2 if not nest.across and 0 < vectors < 4 else 0
        with code.loop(begin, end, lanes=size, vectors=few) as i:
            code.add(f"%lane_{n} = add i64 {i}, 0")
            before.extend(inside)
        self.memo, self.outer = memo, outer

    @contextlib.contextmanager
    def loops(self, labels: Sequence[int], env: Env) -> Iterator[Env]:
        """Loops over labels, one in the other."""
        with contextlib.ExitStack() as stack:
            found = dict(env)
            for x in labels:
                found[x] = stack.enter_context(self.code.loop("0", self.extent(x)))
            yield found

    def pieces(self, label: int, windows: bool = False) -> Iterator[tuple[bool, list[str]]]:
        """An index in steps of UNROLLED: each time whether it is the only one, and the indices. A long one
        is so only along `windows`, of which totals stay in registers for so many turns."""
        code = self.code
        if not self.is_short(label):
            begin = "0"
            if windows:
                begin = code.let(f"and i64 {self.extent(label)}, {-UNROLLED}")
                with code.loop("0", begin, UNROLLED) as i:
                    yield False, [code.sum(i, str(k)) for k in range(UNROLLED)]
            with code.loop(begin, self.extent(label)) as i:
                yield False, [i]
            return
        n = self.nest.extents[label]
        whole = n - n % UNROLLED
        if whole == UNROLLED:
            yield n == whole, [str(k) for k in range(whole)]
        elif whole:
            with code.loop("0", str(whole), UNROLLED) as i:
                yield False, [code.sum(i, str(k)) for k in range(UNROLLED)]
        if n > whole:
            yield not whole, [str(k) for k in range(whole, n)]

    # -- combining
    def joined(self, kind: str, a: Value, b: Value, free: bool = False) -> Value:
        return joined(kind, a, b, "reassoc contract" if free else "")

    def free(self, r: Reduction, total: Value, env: Env) -> Value:
        """The total with one more, in any order; products may be rounded first."""
        found = self.addends(r, total.dtype, env)
        if len(found) == 2 and total.dtype.kind == "f":
            a, b = found
            text = f"fmul contract {a.kind} {a.name}, {b.name}"
            return self.joined("sum", total, self.code.lines.write(text, total.dtype), True)
        if len(found) == 2:
            return self.joined("sum", total, found[0] * found[1], total.dtype.kind == "c")
        return self.joined(r.kind, total, found[0], True)

    # -- stages
    def unit(self) -> None:
        nest, every = self.nest, range(len(self.body.nodes))
        self.hold_operands(nest.held - nest.packed, along=False)
        if nest.tiled < 0:
            self.stages(every)
        else:
            late = waits(nest, nest.tiled)
            self.stages([k for k in every if k not in late and not goes_along(nest, k, nest.tiled)])
            self.walk([k for k in every if goes_along(nest, k, nest.tiled)])
            self.stages([k for k in every if k in late])
        self.write_results(along=False)

    def hold_operands(self, which: Collection[int], along: bool) -> None:
        for v in sorted(which):
            if v < self.nest.operands and along == (self.nest.tiled in self.nest.labels(v)):
                self.hold(v)

    def write_results(self, along: bool) -> None:
        for a, v in enumerate(self.body.outputs, self.nest.operands):
            if not self.nest.gathers(v) and along == (self.nest.tiled in self.nest.labels(v)):
                self.write(v, a)

    def stages(self, which: Iterable[int]) -> None:
        """These nodes, of which some make nothing that is kept."""
        nest, body = self.nest, self.body
        for k in which:
            for v in body.outs(k):
                if v in nest.running:
                    self.run(v)
                elif v in nest.reductions:
                    self.reduce(v)
                elif v in nest.held and not OPS[body.nodes[k].op].reduce:
                    self.hold(v)

    # -- running sums
    def walk(self, along: Sequence[int]) -> None:
        """Tile after tile of the index that sums run along."""
        nest, code, label = self.nest, self.code, self.nest.tiled
        ends = [v for v, r in nest.reductions.items() if label in r.over and not nest.gathers(v)]
        for v in ends:
            with self.loops(self.apart(v), {}) as env, self.along(v) as lane:
                self.store_all(v, self.begun(v), env | lane)
        extent = self.extent(label)
        with code.loop("0", extent, nest.tile) as begin:
            rest = code.let(f"sub i64 {extent}, {begin}")
            self.begins[label], self.left = begin, code.least(rest, str(nest.tile))
            self.hold_operands(nest.held, along=True)
            self.stages(along)
            self.write_results(along=True)
            del self.begins[label]
            self.left = ""
        for v in ends:
            self.share(v)

    def run(self, v: int) -> None:
        """Combine the state of a running value with one element after the other."""
        label = self.nest.running[v]
        node, dtype = self.body.nodes[self.body.producers[v]], self.body.specs[v].dtype
        with self.loops([x for x in self.apart(v) if x != label], {}) as env:
            for _, indices in self.pieces(label, True):
                first = self.index(label, {label: indices[0]}) == 0
                with self.along(v) as lane:
                    carry = self.held_at(v, env | lane, self.base("carry", v), label)
                    total = self.load(carry, dtype)
                    for i in indices:
                        here = {**env, **lane, label: i}
                        x = cast(self.value(node.inputs[0], here), dtype)
                        made = carried(OPS[node.op].element.running, total, x)
                        total = where(first, x, made) if i == indices[0] else made
                        self.store(total, self.held_at(v, here))
                    self.store(total, carry)

    def along(self, v: int, size: int = -1) -> contextlib.AbstractContextManager[Env]:
        """The lanes, if a value has them."""
        if self.nest.lane not in self.nest.labels(v):
            return contextlib.nullcontext({})
        return self.lanes(real_of(self.body.specs[v].dtype).itemsize if size < 0 else size)

    def apart(self, v: int) -> list[int]:
        return [x for x in self.nest.inner(v) if x != self.nest.lane]

    def hold(self, v: int) -> None:
        if v < self.nest.operands and (column := self.columns(v)) is not None:
            self.transpose(v, column)
            return
        with self.loops(self.apart(v), {}) as env, self.along(v) as lane:
            here = env | lane
            self.store(self.made(v, here), self.held_at(v, here))

    def columns(self, a: int) -> int | None:
        """The label along which the rows of an operand or a result are contiguous and short."""
        nest = self.nest
        v = a if a < nest.operands else self.body.outputs[a - nest.operands]
        dtype = self.body.specs[v].dtype
        if not nest.across or nest.lane not in nest.strides[a] or dtype == bool_:
            return None
        for x, step in nest.strides[a].items():
            near = step == dtype.itemsize and (self.is_short(x) or x == nest.walked)
            if near and dtype.itemsize in (4, 8, 16):
                return x
        return None

    def transpose(self, v: int, column: int) -> None:
        """Rows of an operand as lanes, square by square."""
        nest, code, dtype = self.nest, self.code, self.body.specs[v].dtype
        size, line = BYTES // dtype.itemsize, LINE // dtype.itemsize
        each = max(1, line // nest.extents[column])  # rows of a line of the cache
        with self.loops([x for x in self.apart(v) if x != column], {}) as env:
            last = code.let("sub i64 %count, 1")
            # the next unit's
            ahead = code.times(self.fact("stride", v, nest.lane), str(nest.lanes))
            with code.loop("0", "%count", size) as row:
                for begin, width in self.squares(column, size):
                    here = {**env, nest.lane: row, column: begin}
                    rows = self.place(v, here), self.fact("stride", v, nest.lane)
                    lanes = self.held_at(v, here), self.held_step(v, column)
                    rest = code.let(f"sub i64 {last}, {row}")
                    self.square("rows", dtype, (*rows, *lanes, rest, str(width), ahead, str(each)))

    def square(self, source: str, dtype: DType, given: Sequence[str]) -> None:
        """Call the function of a square; of these arguments, the first and the third are addresses."""
        square = Square(source, dtype.itemsize, given[5] if given[5].isdigit() else "part")
        self.code.lines.declared.add(square.declared)
        kinds = CALLED.split(", ")
        named = [f"{kind} {name}" for kind, name in zip(kinds, given, strict=True)]
        self.code.add(f"call void {square.name}({', '.join(named)})")

    def held_step(self, v: int, column: int) -> str:
        """The bytes from one element of a held value to the next along a label."""
        step, own = str(self.body.specs[v].dtype.itemsize), self.nest.inner(v)
        for x in own[own.index(column) + 1 :]:
            step = self.code.times(step, self.span(x))
        return step

    def squares(self, column: int, size: int) -> Iterator[tuple[str, int | str]]:
        """Where squares begin along rows, and how wide they are: of rows that are no short ones, as wide as
        is said when it runs."""
        if not self.is_short(column):
            with self.code.loop("0", self.extent(column), size) as begin:
                rest = self.code.let(f"sub i64 {self.extent(column)}, {begin}")
                yield begin, self.code.least(rest, str(size))
            return
        n = self.nest.extents[column]
        yield from [(str(begin), min(size, n - begin)) for begin in range(0, n, size)]

    def transpose_back(self, v: int, a: int, column: int) -> None:
        """Lanes as rows of a result, square by square."""
        nest, code, dtype = self.nest, self.code, self.body.specs[v].dtype
        size = BYTES // dtype.itemsize
        with self.loops([x for x in self.apart(v) if x != column], {}) as env:
            last = code.let("sub i64 %count, 1")
            with code.loop("0", "%count", size) as row:
                for begin, width in self.squares(column, size):
                    here = {**env, nest.lane: row, column: begin}
                    lanes = self.held_at(v, here), self.held_step(v, column)
                    rows = self.place(a, here), self.fact("stride", a, nest.lane)
                    rest = code.let(f"sub i64 {last}, {row}")
                    self.square("lanes", dtype, (*lanes, *rows, rest, str(width), "0", "1"))

    def write(self, v: int, a: int) -> None:
        """A result to its place."""
        if v in self.nest.held and (column := self.columns(a)) is not None:
            self.transpose_back(v, a, column)
            return
        with self.loops(self.apart(v), {}) as env, self.along(v) as lane:
            here = env | lane
            self.store(self.value(v, here), self.place(a, here))

    def reduce(self, first: int) -> None:
        r = self.nest.reductions[first]
        if self.nest.lane not in r.over:
            self.reduce_aside(first, r)
        elif MONOIDS[r.kind].width == 2:
            self.find_along(first, r)
        else:
            self.reduce_along(first, r)

    def targets(self, first: int, r: Reduction) -> tuple[list[int], str]:
        """The values that a reduction makes, and where they wait."""
        many = len(r.node.specs)
        values = [first + j for j in range(many)]
        return values, "part" if self.nest.gathers(first) else "held"

    def reduce_aside(self, first: int, r: Reduction) -> None:
        """Over other labels than the lane: element by element of the lane."""
        nest, body, code = self.nest, self.body, self.code
        values, home = self.targets(first, r)
        gathers = home == "part"
        slides = any(nest.overlaps(a) for a in range(nest.operands))
        over = sorted(x for x in r.over if x not in nest.rows)
        outer, last = over[:-1], over[-1] if over else None
        short = last is None or (self.is_short(last) and nest.extents[last] <= UNROLLED)
        tiled = nest.tiled in r.over and not gathers
        alone = not gathers and not outer and short and not tiled
        dtypes = [body.specs[v].dtype for v in values]

        def step(env: Env, indices: Sequence[str], total: list[Value]) -> list[Value]:
            for i in indices:
                here = env if last is None else {**env, last: i}
                if len(total) == 1:
                    total = [self.added(r, total[0], here)]
                else:
                    x = self.value(r.node.inputs[0], here)
                    place = self.index(last, here).name if last == nest.tiled else i
                    total = list(self.better(r.kind, total[0], total[1], x, place))
            return total

        def combine(env: Env, indices: Sequence[str]) -> list[tuple[Value, str]]:
            at = [self.held_at(v, env, self.base(home, v)) for v in values]
            total = self.begun(first) if alone else list(map(self.load, at, dtypes))
            total = step(env, indices, total)
            if alone and len(total) == 1:
                total = [self.shared(first, total[0])]
            return list(zip(total, at, strict=True))

        def sweep(env: Env, rows: Sequence[Env]) -> None:
            """All that is combined, of so many rows at a time."""
            if not gathers and not alone and not tiled:
                for row in rows:
                    with self.along(first, cleared(dtypes[0])) as lane:
                        self.store_all(first, self.begun(first), env | row | lane)
            with self.loops(outer, env) as inside:
                pieces = [(True, ["0"])] if last is None else self.pieces(last, slides or tiled)
                for _, indices in pieces:
                    with self.along(first) as lane:
                        made = [combine(inside | row | lane, indices) for row in rows]
                        for value, address in itertools.chain(*made):
                            self.store(value, address)

        apart = self.apart(first)
        if nest.abreast in apart:
            apart.remove(nest.abreast)
            with code.when("%all_abreast"), self.loops(apart, {}) as env:
                sweep(env, [{nest.abreast: str(i)} for i in range(ABREAST)])
            with code.when("%few_abreast"), self.loops([nest.abreast, *apart], {}) as env:
                sweep(env, [{}])
        else:
            with self.loops(apart, {}) as env:
                sweep(env, [{}])
        if not gathers and not alone and not tiled:
            self.share(first)

    def begun(self, first: int) -> list[Value]:
        """List the initial values of a reduction."""
        r = self.nest.reductions[first]
        found = [self.start(r, self.body.specs[first].dtype)]
        return [*found, self.code.lines.constant(0, int64)] if len(r.node.specs) > 1 else found

    def store_all(self, first: int, made: Sequence[Value], env: Env) -> None:
        """The values of a reduction to where they are held."""
        for v, value in enumerate(made, first):
            self.store(value, self.held_at(v, env))

    def share(self, first: int) -> None:
        """Divide held totals that are means."""
        if self.number(first) is None:
            return
        with self.loops(self.apart(first), {}) as env, self.along(first) as lane:
            at = self.held_at(first, env | lane)
            self.store(self.shared(first, self.load(at, self.body.specs[first].dtype)), at)

    def reduce_along(self, first: int, r: Reduction) -> None:
        """Over the lane, and perhaps more; several results at a time."""
        nest, code = self.nest, self.code
        dtype = self.body.specs[first].dtype
        _, home = self.targets(first, r)
        over = sorted(x for x in r.over if x not in nest.rows and x != nest.lane)
        apart = self.apart(first)
        size = real_of(dtype).itemsize if is_free(r.kind) else 0
        long = r.kind == "sum" and dtype.kind in "fc" and not nest.across

        def totals(indices: Sequence[Env], begin: str = "0", end: str = "") -> list[str]:
            if has_order(r.kind, dtype):
                return [self.best_along(r.kind, r.node.inputs[0], over, i) for i in indices]
            cells = [code.cell(dtype) for _ in indices]
            for cell in cells:
                code.put(cell, self.start(r, dtype))
            with self.loops(over, {}) as env, self.lanes(size, begin, end) as lane:
                for cell, more in zip(cells, indices, strict=True):
                    code.put(cell, self.free(r, code.get(cell, dtype), env | lane | more))
            return cells

        def chunked(indices: Sequence[Env]) -> list[str]:
            """Sums of CHUNK elements, added with compensation."""
            sums = [code.cell(dtype) for _ in indices]
            lost = [code.cell(dtype) for _ in indices]
            for cell in (*sums, *lost):
                code.put(cell, self.start(r, dtype))
            with code.loop("0", self.extent(nest.lane), CHUNK) as i:
                end = code.least(code.sum(i, str(CHUNK)), self.extent(nest.lane))
                for s, gone, cell in zip(sums, lost, totals(indices, i, end), strict=True):
                    more = code.get(cell, dtype)
                    made, kept = compensated(code.get(s, dtype), code.get(gone, dtype), more)
                    code.put(s, made)
                    code.put(gone, kept)
            for s, gone in zip(sums, lost, strict=True):
                code.put(s, code.get(s, dtype) + code.get(gone, dtype))
            return sums

        with self.loops(apart[:-1], {}) as env:
            pieces = self.pieces(apart[-1]) if apart else [(True, [""])]
            for _, names in pieces:
                indices = [{**env, apart[-1]: i} if apart else env for i in names]
                for cell, here in zip((chunked if long else totals)(indices), indices, strict=True):
                    at = self.held_at(first, here, self.base(home, first))
                    total = code.get(cell, dtype)
                    if home == "part":
                        self.store(self.joined(r.kind, self.load(at, dtype), total), at)
                    else:
                        self.store(self.shared(first, total), at)

    def best_along(self, kind: str, x: int, over: Sequence[int], fixed: Env) -> str:
        """A cell with the best of a value's floats along the lane and others, NaN before all."""
        code, dtype = self.code, self.body.specs[x].dtype
        whole = whole_of(dtype)
        most, found = code.cell(whole), code.cell(dtype)
        code.put(most, code.lines.constant(first_of(kind, whole), whole))
        with self.loops(over, {}) as env, self.lanes(dtype.itemsize) as lane:
            more = ordered(kind, self.value(x, fixed | env | lane))
            code.put(most, self.joined(kind, code.get(most, whole), more))
        code.put(found, unordered(code.get(most, whole)))
        return found

    def find_along(self, first: int, r: Reduction) -> None:
        """The best along the lane, then the first position that has it."""
        code, x = self.code, r.node.inputs[0]
        dtype = self.body.specs[first].dtype
        kind = MONOIDS[r.kind].order
        with self.loops(self.apart(first), {}) as env:
            position = code.cell(int64)
            code.put(position, code.lines.constant(2**62, int64))
            if has_order(kind, dtype):
                best = self.best_along(kind, x, (), env)
            else:
                best = code.cell(dtype)
                code.put(best, self.start(r, dtype))
                with self.lanes(dtype.itemsize) as lane:
                    more = self.value(x, env | lane)
                    code.put(best, self.joined(kind, code.get(best, dtype), more))
            found = code.get(best, dtype)
            with self.lanes(dtype.itemsize) as lane:
                element = self.value(x, env | lane)
                hit = element == found
                if dtype.kind == "f":
                    hit = hit | ((element != element) & (found != found))
                index = Value(code.lines, lane[self.nest.lane], int64)
                candidate = where(hit, index, 2**62)
                code.put(position, self.joined("min", code.get(position, int64), candidate))
            for v, cell, dtype_of in ((first, best, dtype), (first + 1, position, int64)):
                self.store(code.get(cell, dtype_of), self.held_at(v, env))
