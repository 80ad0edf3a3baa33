"""Kernels in stages, whole: units in turns, and what is combined over the rows.

A turn is a range of units that one thread works on. What is summed over rows is summed in chunks of
about CHUNK rows, and chunks are added with compensation, turn by turn; turns depend on extents
only, so the number of threads changes no bit. Means and squared deviations of units, or of chunks,
are put together by Chan's formula, in double precision."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from ostinato.ops.core.spec import DType, float64, int64, real_of
from ostinato.ops.cpu.jit.emitter import loop_facts, memory_type
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.loops.schedule import ABREAST, Nest
from ostinato.ops.jit.combining import chan, compensated, moved
from ostinato.ops.jit.elements import Env
from ostinato.ops.jit.kept_values import grouped
from ostinato.ops.jit.stage_values import Reduction
from ostinato.ops.jit.values import Value, cast, fma

from .stages import StageWriter, chunk_units, cleared

TURNS = 64  # whose sums over rows wait to be put together, and
WAITING = LIMITS.waiting_bytes
# groups: for so many, sums of all rows are faster than finding each row's own
MAX_SWEPT_GROUPS = 16


class Kernel(StageWriter):
    """Writes the functions of a kernel."""

    states: dict[int, dict[str, str]]  # of the turn
    block: str  # where it is kept which block of the lane is packed
    nth: str  # which row of its chunk a unit is

    def rows(self, unit: str) -> None:
        """Where the operands begin in a unit."""
        nest, code = self.nest, self.code
        rest, env = unit, Env()
        for n, x in reversed(list(enumerate(nest.rows))):
            extent = self.fact("extent", x)
            if x == nest.lane:
                blocks = code.let(f"add i64 {extent}, {nest.lanes - 1}")
                many = code.let(f"udiv i64 {blocks}, {nest.lanes}")
            elif x == nest.abreast:
                blocks = code.let(f"add i64 {extent}, {ABREAST - 1}")
                many = code.let(f"udiv i64 {blocks}, {ABREAST}")
            else:
                many = extent
            index = code.let(f"urem i64 {rest}, {many}") if n else rest
            rest = code.let(f"udiv i64 {rest}, {many}") if n else rest
            if x == nest.lane:
                index = code.times(index, str(nest.lanes))
                left = code.let(f"sub i64 {extent}, {index}")
                code.add(f"%count = add i64 {code.least(left, str(nest.lanes))}, 0")
            elif x == nest.abreast:
                index = code.times(index, str(ABREAST))
                left = code.let(f"sub i64 {extent}, {index}")
                code.add(f"%abreast = add i64 {code.least(left, str(ABREAST))}, 0")
                code.add(f"%all_abreast = icmp eq i64 %abreast, {ABREAST}")
                code.add("%few_abreast = xor i1 %all_abreast, 1")
            env[x] = self.begins[x] = index
        for a, lies in enumerate(nest.strides):
            at = f"%data_{a}"
            for x in nest.rows:
                if x in lies:
                    step = code.times(env[x], self.fact("stride", a, x))
                    at = code.let(f"getelementptr i8, ptr {at}, i64 {step}", "a")
            code.add(f"%at_{a} = getelementptr i8, ptr {at}, i64 0")
        if nest.packed:
            self.pack()

    def pack(self) -> None:
        """Operands into cache, when a block of the lane begins; the other rows go on with them."""
        code, block = self.code, self.begins.get(self.nest.lane, "0")
        last = code.get(self.block, int64).name
        with code.when(code.let(f"icmp ne i64 {last}, {block}")):
            code.put(self.block, Value(code.lines, block, int64))
            for v in sorted(self.nest.packed):
                self.hold(v)

    def function(self) -> str:
        """A range of turns, or of units if nothing is combined over rows."""
        code = self.code
        self.block = code.cell(int64)
        code.put(self.block, code.lines.constant(-1, int64))
        if not self.nest.gathered:
            with code.loop("%lo", "%hi") as unit:
                self.rows(unit)
                self.unit()
        else:
            with code.loop("%lo", "%hi") as turn:
                self.turn(turn)
        room, each = self.entry_slot(4, "ptr"), self.entry_slot(5, "i64")
        mine = [f"  %mine = mul i64 %thread, {each}",
                f"  %room = getelementptr i8, ptr {room}, i64 %mine"]  # fmt: skip
        head = "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {"
        return self.whole(head, "data", [*mine, *self.bases])

    def whole(self, head: str, name: str, more: Sequence[str]) -> str:
        """A function; its operands' addresses are called so."""
        slots = []
        for a in range(len(self.nest.strides)):
            slots += [f"  %slot_{a} = getelementptr ptr, ptr %data, i64 {a}",
                      f"  %{name}_{a} = load ptr, ptr %slot_{a}"]  # fmt: skip
        text = [head, "entry:", *self.code.entry, *more, *slots, "  br label %start", "start:"]
        return "\n".join([*text, *self.code.lines.text, "  ret void", "}"])

    # -- turns
    def turn(self, turn: str) -> None:
        """Chunk after chunk of units; what they sum is added to what waits for the end."""
        code, found = self.code, self.nest.gathered
        begin = code.times(turn, self.entry_slot(3, "i64"))
        end = code.least(code.sum(begin, self.entry_slot(3, "i64")), self.entry_slot(2, "i64"))
        step = chunk_units(self.nest)
        self.states = {v: self.state(v, turn) for v in found}
        for v in found:
            self.begin(v)
        with code.loop(begin, end, step) as chunk:
            stop = code.least(code.sum(chunk, str(step)), end)
            with code.loop(chunk, stop) as unit:
                self.rows(unit)
                self.nth = code.sum(code.let(f"sub i64 {unit}, {chunk}"), "1")
                self.unit()
                for v in found:
                    if self.has_unit_moments(v):
                        self.count_rows(v, "%count" if self.nest.across else "1")
            for v in found:
                if self.nest.reductions[v].kind != "moments":
                    self.fold(v)
                elif not self.has_unit_moments(v):
                    self.fold_moments(v, code.let(f"sub i64 {stop}, {chunk}"))

    def has_unit_moments(self, v: int) -> bool:
        """Whether moments are those of a unit; else they are made row by row, chunk by chunk."""
        r = self.nest.reductions[v]
        return r.kind == "moments" and self.nest.lane in r.over

    def state(self, v: int, turn: str) -> dict[str, str]:
        """Where a turn keeps its totals, what they lost, and how many rows it has seen."""
        code = self.code
        begin = code.times(turn, self.entry_slot(7, "i64"))
        at = code.let(f"getelementptr i8, ptr {self.entry_slot(6, 'ptr')}, i64 {begin}", "a")
        return {
            kind: code.let(f"getelementptr i8, ptr {at}, i64 {self.fact(kind, v)}", "a")
            for kind in ("total", "lost", "done")
        }

    def kept(self, v: int) -> DType:
        """The dtype of totals: moments' are doubles."""
        moments = self.nest.reductions[v].kind == "moments"
        return float64 if moments else self.body.specs[v].dtype

    def element(self, base: str, i: str, dtype: DType) -> str:
        return self.code.let(f"getelementptr {memory_type(dtype)}, ptr {base}, i64 {i}", "a")

    def begin(self, v: int) -> None:
        code, r, dtype = self.code, self.nest.reductions[v], self.body.specs[v].dtype
        kept, state = self.kept(v), self.states[v]
        start = self.start(r, dtype)
        zero = code.lines.constant(0, kept)
        code.put(state["done"], code.lines.constant(0, float64))
        with code.loop("0", self.fact("count", v), lanes=cleared(kept)) as i:
            whole = zero if r.kind == "moments" else start
            self.store(whole, self.element(state["total"], i, kept))
            self.store(zero, self.element(state["lost"], i, kept))
            self.store(start, self.element(self.base("part", v), i, dtype))
            if r.kind == "moments":
                self.store(start, self.element(self.base("part2", v), i, dtype))

    def fold(self, v: int) -> None:
        """A chunk's sums onto a turn's."""
        code, dtype = self.code, self.body.specs[v].dtype
        r, state = self.nest.reductions[v], self.states[v]
        with code.loop("0", self.fact("count", v), lanes=real_of(dtype).itemsize) as i:
            part = self.element(self.base("part", v), i, dtype)
            total = self.element(state["total"], i, dtype)
            more, whole = self.load(part, dtype), self.load(total, dtype)
            if _is_float_sum(r, dtype):
                lost = self.element(state["lost"], i, dtype)
                whole, gone = compensated(whole, self.load(lost, dtype), more)
                self.store(gone, lost)
            else:
                whole = self.joined(r.kind, whole, more)
            self.store(whole, total)
            if cleared(dtype):
                self.store(self.start(r, dtype), part)
        if not cleared(dtype):
            with code.loop("0", self.fact("count", v)) as i:
                self.store(self.start(r, dtype), self.element(self.base("part", v), i, dtype))

    # -- sums of what each row belongs to
    def grouped(self, first: int, r: Reduction) -> tuple[int, int, int] | None:
        """Find the label of the groups, each row's group and the summand, if rows are summed by
        group."""
        if not self.nest.across or r.over != {self.nest.lane}:
            return None
        return grouped(self.nest, first, self.nest.held, MAX_SWEPT_GROUPS)

    def sum_groups(self, first: int, label: int, position: int, summed: int) -> None:
        """Row after row onto the sums of its group, instead of all groups' sums of all rows."""
        nest, code, dtype = self.nest, self.code, self.body.specs[first].dtype
        rest = [x for x in self.apart(first) if x != label]
        one = code.lines.constant(1, dtype)
        with code.loop("0", "%count") as i:
            group = cast(self.value(position, {nest.lane: i}), int64).name
            inside = code.let(f"icmp ult i64 {group}, {self.extent(label)}")
            with code.when(inside), contextlib.ExitStack() as loops:
                env = {nest.lane: i, label: group}
                for x in rest:
                    size = real_of(dtype).itemsize if x == rest[-1] else 0
                    env[x] = loops.enter_context(code.loop("0", self.extent(x), lanes=size))
                at = self.held_at(first, env, self.base("part", first))
                more = one if summed < 0 else self.made(summed, env)
                self.store(self.load(at, dtype) + more, at)

    # -- moments
    def reduce(self, first: int) -> None:
        if self.nest.reductions[first].kind != "moments":
            groups = self.grouped(first, self.nest.reductions[first])
            if groups is None:
                super().reduce(first)
            else:
                self.sum_groups(first, *groups)
        elif self.has_unit_moments(first):
            self.moments_of_unit(first)
        else:
            self.moments_by_rows(first)

    def moments_of_unit(self, v: int) -> None:
        """The mean of a unit's elements, then their squared deviations."""
        nest, code, r = self.nest, self.code, self.nest.reductions[v]
        dtype, x = self.body.specs[v].dtype, r.node.inputs[0]
        over = sorted(label for label in r.over if label not in nest.rows and label != nest.lane)
        rows = self.real("%count" if nest.across else "1")
        inner = self.inner_count(v)
        many = cast(rows * inner, dtype)

        def total(term: Callable[[Value], Value], env: Env) -> Value:
            cell = code.cell(dtype)
            code.put(cell, code.lines.constant(0, dtype))
            with self.loops(over, env) as here, self.lanes(dtype.itemsize) as lane:
                made = term(self.value(x, here | lane))
                code.put(cell, self.joined("sum", code.get(cell, dtype), made, free=True))
            return code.get(cell, dtype)

        with self.loops(self.apart(v), {}) as env:
            mean = total(lambda a: a, env) / many
            square = total(lambda a: (a - mean) * (a - mean), env)
            before = code.get(self.states[v]["done"], float64)
            index = self.flat(v, env)
            wide = [cast(y, float64) for y in (mean, square)]
            self.merge(v, index, before, rows, inner, *wide)

    def moments_by_rows(self, v: int) -> None:
        """One more row onto the means and squared deviations of a chunk (Welford)."""
        r, dtype = self.nest.reductions[v], self.body.specs[v].dtype
        nth = cast(self.real(self.nth), dtype)
        share = 1.0 / nth
        with self.loops(self.apart(v), {}) as env, self.along(v) as lane:
            here = env | lane
            at = [self.held_at(v, here, self.base(kind, v)) for kind in ("part", "part2")]
            mean, square = (self.load(a, dtype) for a in at)
            x = self.value(r.node.inputs[0], here)
            off = x - mean
            new = moved(mean, off, share, x)
            self.store(new, at[0])
            self.store(fma(off, x - new, square), at[1])

    def fold_moments(self, v: int, count: str) -> None:
        """A chunk's moments onto a turn's."""
        code, dtype = self.code, self.body.specs[v].dtype
        rows, one = self.real(count), code.lines.constant(1, float64)
        before = code.get(self.states[v]["done"], float64)
        zero = code.lines.constant(0, dtype)
        with code.loop("0", self.fact("count", v), lanes=8) as i:
            at = [self.element(self.base(kind, v), i, dtype) for kind in ("part", "part2")]
            mean, square = (cast(self.load(a, dtype), float64) for a in at)
            self.merge(v, i, before, rows, one, mean, square)
            for a in at:
                self.store(zero, a)
        self.count_rows(v, count)

    def merge(
        self, v: int, i: str, before: Value, rows: Value, inner: Value, mean: Value, square: Value
    ) -> None:
        """Moments of more rows onto a turn's (Chan)."""
        state = self.states[v]
        at = [self.element(state[kind], i, float64) for kind in ("total", "lost")]
        old, squares = (self.load(a, float64) for a in at)
        made = chan(before, old, squares, rows, mean, square, inner)
        for value, address in zip(made, at, strict=True):
            self.store(value, address)

    def count_rows(self, v: int, count: str) -> None:
        at = self.states[v]["done"]
        self.code.put(at, self.code.get(at, float64) + self.real(count))

    def real(self, whole: str) -> Value:
        return cast(Value(self.code.lines, whole, int64), float64)

    def inner_count(self, v: int) -> Value:
        """How many elements of a row are reduced."""
        nest, found = self.nest, self.code.lines.constant(1, float64)
        for label in nest.reductions[v].over:
            if label not in nest.rows:
                found = self.real(self.extent(label)) * found
        return found

    def flat(self, v: int, env: Env) -> str:
        """The number of an element among a value's."""
        index = "0"
        for label in self.nest.inner(v):
            index = self.code.sum(self.code.times(index, self.span(label)), env[label])
        return index

    # -- the end
    def finish(self) -> str:
        """Puts the turns' sums together, in their order."""
        for v in self.nest.gathered:
            if self.nest.reductions[v].kind == "moments":
                self.end_moments(v)
            else:
                self.end(v)
        return self.whole("define internal void @finish(ptr %data, ptr %meta) {", "at", ())

    def end(self, v: int) -> None:
        code, r, dtype = self.code, self.nest.reductions[v], self.body.specs[v].dtype
        total, lost = code.cell(dtype), code.cell(dtype)
        with self.loops(self.nest.inner(v), {}) as env:
            code.put(total, self.start(r, dtype))
            code.put(lost, code.lines.constant(0, dtype))
            with code.loop("0", self.entry_slot(0, "i64")) as turn:
                state, i = self.state(v, turn), self.flat(v, env)
                whole = code.get(total, dtype)
                more = self.load(self.element(state["total"], i, dtype), dtype)
                if _is_float_sum(r, dtype):
                    made, kept = compensated(whole, code.get(lost, dtype), more)
                    gone = self.load(self.element(state["lost"], i, dtype), dtype)
                    code.put(total, made)
                    code.put(lost, kept + gone)
                else:
                    code.put(total, self.joined(r.kind, whole, more))
            found = code.get(total, dtype)
            if _is_float_sum(r, dtype):
                found = found + code.get(lost, dtype)
            self.put_out(v, self.shared(v, found), env)

    def end_moments(self, v: int) -> None:
        code, dtype = self.code, self.body.specs[v].dtype
        cells = [code.cell(float64) for _ in range(3)]
        zero, inner = code.lines.constant(0, float64), self.inner_count(v)
        with self.loops(self.nest.inner(v), {}) as env:
            for cell in cells:
                code.put(cell, zero)
            with code.loop("0", self.entry_slot(0, "i64")) as turn:
                state, i = self.state(v, turn), self.flat(v, env)
                rows, mean, square = (code.get(cell, float64) for cell in cells)
                more = code.get(state["done"], float64)
                theirs = [self.load(self.element(state[kind], i, float64), float64)
                          for kind in ("total", "lost")]  # fmt: skip
                made = chan(rows, mean, square, more, theirs[0], theirs[1], inner)
                for cell, value in zip(cells, (rows + more, *made), strict=True):
                    code.put(cell, value)
            rows, mean, square = (code.get(cell, float64) for cell in cells)
            self.put_out(v, cast(mean, dtype), env)
            self.put_out(v + 1, cast(square, dtype), env)
        rows = code.get(cells[0], float64)
        self.put_out(v - 1, rows * inner, {})

    def put_out(self, v: int, found: Value, env: Env) -> None:
        for k, u in enumerate(self.body.outputs, self.nest.operands):
            if u == v:
                self.store(found, self.place(k, env))


def _is_float_sum(r: Reduction, dtype: DType) -> bool:
    return r.kind == "sum" and dtype.kind in "fc"


def nest_text(nest: Nest, bits: int) -> str:
    """The functions of a kernel, for flat.py to call, with vectors of so many bits."""
    body, end = Kernel(nest, bits), Kernel(nest, bits)
    functions = [body.function(), end.finish()]
    declared = sorted(body.code.lines.declared | end.code.lines.declared)
    return "\n".join([*declared, *functions, loop_facts(bits)])
