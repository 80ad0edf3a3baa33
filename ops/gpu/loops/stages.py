"""Kernels in stages as CUDA C++: reductions, products and what is made of them, a tile of rows at a time.

A block of threads does one stage of a unit after another (`schedule.py` says what a unit is); what lies between
stays in shared memory. A result of a reduction is made by one thread, by a warp or by the whole block. What is
reduced over rows is combined unit by unit for each turn, a range of units; a second kernel puts the turns
together, in their order. Who combines what depends on extents only, so the same bits come out in each run and
on each GPU. There are no atomic operations."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, bool_, int64
from ostinato.ops.jit.combining import carried
from ostinato.ops.jit.elements import Elements, Env
from ostinato.ops.jit.kept_values import MAX_FIXED_EXTENT, MAX_THREAD_TERMS, grouped
from ostinato.ops.jit.random_bits import numbers_in
from ostinato.ops.jit.scalar import numbers
from ostinato.ops.jit.stage_values import Reduction
from ostinato.ops.jit.values import Value, cast, fma, where

from ..jit.lines import CudaLines, c_type, literal, memory_type
from .schedule import BLOCKS, LEFT, THREADS, WARP, Tiles, line_of
from .text import Kernel, known_numbers, whole
from .totals import APART, Total, merge_columns, merge_warps, reduce_block, reduce_warp

GROUPS = 16  # for more, each row is added to its own group's sum
MOST_SHARED = 40 << 10  # bytes of a block's values and sums
MULTIPROCESSORS = BLOCKS // 4  # that these keep busy
NEIGHBOUR = "beside"  # how the index of one of a few neighbours is called


@dataclass(slots=True)
class Group:
    """Neighbours that a thread does together."""

    first: str  # the first one's index
    begins: list[str] = field(
        default_factory=list
    )  # what stands before them: vectors that are read
    ends: list[str] = field(
        default_factory=list
    )  # what stands behind them: vectors that are written
    vectors: dict[tuple[str, bool], str] = field(
        default_factory=dict
    )  # how those at an address are called
    memo: dict[tuple[int, tuple[str, ...]], Value] = field(
        default_factory=dict
    )  # what is known there


class Writer(Elements):
    """Writes the stages of a unit."""

    nest: Tiles

    def __init__(self, nest: Tiles) -> None:
        self.nest, self.body = nest, nest.body
        self.held, self.counted = nest.held, numbers_in(nest.body)
        self.known = {part: f"known{n}" for n, part in enumerate(numbers(nest.body))}
        self.code = CudaLines()
        self.memo: dict[tuple[int, tuple[str, ...]], Value] = {}
        self.group: Group | None = None
        self.found_late: set[str] = set()  # places that each neighbour finds for itself
        self.given: dict[str, int] = {}  # what the kernel is told: whole numbers
        self.each = nest.beside
        self.names = 0
        self.state: dict[tuple[int, int], int] = {}  # where a turn keeps what it combines
        self.waiting = 0  # bytes of all that
        for first in nest.gathered:
            for k, (_, dtype, _) in enumerate(self.total(first).registers):
                self.state[first, k] = self.waiting
                self.waiting += -(-nest.volume(first) * dtype.itemsize // 64) * 64

    @property
    def lines(self) -> CudaLines:
        return self.code

    def add(self, *text: str) -> None:
        self.code.text += text

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}_{self.names}"

    def told(self, name: str, value: int) -> str:
        self.given[name] = value
        return name

    # -- what it is told
    def number(self, v: int, part: int = 0) -> Value | None:
        name = self.known.get((v, part))
        return None if name is None else Value(self.code, name, self.body.specs[v].dtype)

    def extent(self, label: int) -> str:
        n = self.nest.extents[label]
        if label not in self.nest.rows and n <= MAX_FIXED_EXTENT:
            return str(n)
        return self.told(f"e{label}", n)

    def width(self, label: int) -> str:
        """Elements of a unit along a label; a tile's rows may be fewer."""
        return str(self.nest.cut[label]) if label in self.nest.cut else f"(u32){self.extent(label)}"

    def count(self, label: int) -> str:
        return f"count{label}" if label in self.nest.cut else f"(u32){self.extent(label)}"

    def index(self, label: int | None, env: Env) -> Value:
        name = "0" if label is None else env.get(label, "0")
        if label in self.nest.rows:
            name = f"begin{label} + {name}" if label in self.nest.cut else f"begin{label}"
        return Value(self.code, f"(u64)({name})", int64)

    def guarded(self, inside: Value, other: Value, make: Callable[[], Value]) -> Value:
        name = self.name("g")
        self.add(f"{c_type(other.dtype)} {name} = {other.name};")
        with self.block(f"if ({inside.name})"):
            self.add(f"{name} = {make().name};")
        return Value(self.code, name, other.dtype)

    # -- memory
    def is_late(self, place: Value) -> None:
        self.found_late.add(place.name)

    def place_along(self, label: int, places: int, env: Env) -> Value:
        """Whether it is inside is looked at later: until then it is anywhere inside. Neighbours that have
        one place find it before they are read at once."""
        text, memo, group = self.code.text, self.memo, self.group
        ahead = group is not None and self.nest.near not in self.nest.labels(places)
        if group is not None and ahead:
            self.code.text, self.memo, self.group = group.begins, group.memo, None
        index = super().place_along(label, places, env)
        size = Value(self.lines, self.extent(label), int64)
        found = where(index < 0, index.like(0), where(index < size, index, index.like(0)))
        self.code.text, self.memo, self.group = text, memo, group
        if not ahead:
            self.is_late(found)
        return found

    def place(self, a: int, env: Env) -> str:
        """The address of an operand's or result's element."""
        text = f"p{a}"
        size = self.body.specs[self.nest.value_of(a)].dtype.itemsize
        for x, step in self.nest.strides[a].items():
            if self.nest.is_inside(x):
                told = str(size) if step == size else self.told(f"s{a}_{x}", step)
                text += f" + {told} * (s64){env[x]}"
        return text

    def held_at(self, v: int, env: Env) -> str:
        """The address of a held value's element."""
        nest, index = self.nest, ""
        inner = nest.inner(v)
        for x in inner:
            width = self.width(x)
            if x == inner[-1] and nest.padded(v):
                width = str(nest.width(x) + 1)
            index = f"(({index}) * {width} + {env[x]})" if index else f"(u32){env[x]}"
        begin = self.told(f"h{v}", self.begins(v))
        return f"held + {begin} + {self.body.specs[v].dtype.itemsize} * ({index or 0})"

    def begins(self, v: int) -> int:
        """Where a held value begins."""
        return sum(self.nest.room(u) for u in self.held if u < v)

    def read(self, address: str, together: bool, dtype: DType) -> Value:
        kind = memory_type(dtype)
        text = self.beside(address, dtype) if together else f"*(const {kind}*)({address})"
        return self.code.write(f"{text} != 0" if dtype == bool_ else text, dtype)

    def write(self, address: str, together: bool, value: Value) -> None:
        kind = memory_type(value.dtype)
        to = self.beside(address, value.dtype, True) if together else f"*({kind}*)({address})"
        self.add(f"{to} = {value.name};")

    def beside(self, address: str, dtype: DType, writes: bool = False) -> str:
        """One of a few neighbours, all of which are read, or written, at once."""
        group, kind = self.group, f"Beside<{memory_type(dtype)}, {self.each}>"
        assert group is not None
        if (address, writes) not in group.vectors:
            name = group.vectors[address, writes] = self.name("v")
            read = "" if writes else f" = *(const {kind}*)({address})"
            group.begins.append(f"{kind} {name}{read};")
            if writes:
                group.ends.append(f"*({kind}*)({address}) = {name};")
        return f"{group.vectors[address, writes]}.at[j]"

    def is_beside(self, a: int) -> bool:
        """Whether an operand's or result's neighbours are those of threads."""
        size = self.body.specs[self.nest.value_of(a)].dtype.itemsize
        return self.nest.strides[a].get(self.nest.near) == size

    def grouped_at(self, env: Env) -> Env | None:
        """Where the group begins in which an element is, if there are groups now."""
        near = self.nest.near
        if self.group is None or env.get(near) != NEIGHBOUR:
            return None
        if not self.found_late.isdisjoint(env.values()):
            return None
        return {**env, near: self.group.first}

    # -- values
    def value(self, v: int, env: Env) -> Value:
        key = (v, tuple(env[x] for x in self.nest.labels(v) if x in env))
        if key not in self.memo:
            self.memo[key] = self._value(v, env)
        return self.memo[key]

    def _value(self, v: int, env: Env) -> Value:
        if v in self.nest.inlined:
            return self.few(v, env)
        if v not in self.held:
            return self.made(v, env)
        return self.read(*self.held_near(v, env), self.body.specs[v].dtype)

    def held_near(self, v: int, env: Env) -> tuple[str, bool]:
        """The address of a held value's element, or of the group that it is one of."""
        whole = self.grouped_at(env)
        in_line = self.nest.inner(v)[-1:] == (self.nest.near,) and not self.nest.padded(v)
        if whole is None or not in_line:
            return self.held_at(v, env), False
        return self.held_at(v, whole), True

    def near_place(self, a: int, env: Env) -> tuple[str, bool]:
        """Find the place of an element of an operand or a result, and whether neighbours share it."""
        whole = self.grouped_at(env)
        if whole is None or not self.is_beside(a):
            return self.place(a, env), False
        return self.place(a, whole), True

    def loaded(self, a: int, env: Env) -> Value:
        return self.read(*self.near_place(a, env), self.body.specs[a].dtype)

    def counting(self, a: int, env: Env) -> Value:
        text = f"p{a}"
        for x, step in self.nest.strides[a].items():
            if self.nest.is_inside(x):
                text += f" + {self.told(f's{a}_{x}', step)} * (s64){env[x]}"
        return self.code.write(f"*(const s64*)q{a} + ({text} - q{a})", int64)

    # -- loops
    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write a block in braces; what is known of elements there is not known behind it."""
        memo, self.memo = self.memo, dict(self.memo)
        self.add(f"{head} {{")
        yield
        self.add("}")
        self.memo = memo

    def apart(self, n: str, labels: Sequence[int], each: int) -> Env:
        """The indices of what is counted by `n`, the last label's in groups of `each`."""
        env: Env = {}
        rest = n
        for k, x in reversed([*enumerate(labels)]):
            width = self.width(x)
            if each > 1 and k == len(labels) - 1:
                width = f"(({width} + {each - 1}) / {each})"
            name = self.name("i")
            if k:
                self.add(f"const u32 {name} = {rest} % {width};")
                rest = f"({rest} / {width})"
            else:
                self.add(f"const u32 {name} = {rest};")
            env[x] = name
        return env

    def volume(self, labels: Sequence[int], each: int = 1) -> str:
        """How many that are."""
        widths = [self.width(x) for x in labels]
        if each > 1:
            widths[-1] = f"(({widths[-1]} + {each - 1}) / {each})"
        return " * ".join(widths) or "1"

    def inside(self, env: Env) -> str:
        """Whether rows are some of the tile's."""
        tests = [f"{env[x]} < {self.count(x)}" for x in self.nest.cut if x in env]
        return " && ".join(tests) or "true"

    @contextlib.contextmanager
    def loops(self, labels: Sequence[int], env: Env) -> Iterator[Env]:
        """Loops of one thread, one in the other."""
        with contextlib.ExitStack() as stack:
            found = dict(env)
            for x in labels:
                found[x] = self.name("i")
                head = f"for (u32 {found[x]} = 0; {found[x]} < {self.count(x)}; ++{found[x]})"
                stack.enter_context(self.block(head))
            yield found

    @contextlib.contextmanager
    def spread(self, labels: Sequence[int], team: int = 1) -> Iterator[Env]:
        """All elements, each of which is a team's."""
        first = "threadIdx.x" if team == 1 else f"threadIdx.x / {team}"
        first = "0" if team == THREADS else first
        n = self.name("n")
        head = f"for (u32 {n} = {first}; {n} < {self.volume(labels)}; {n} += {THREADS // team})"
        with self.block(head):
            env = self.apart(n, labels, 1)
            with self.block(f"if ({self.inside(env)})"):
                yield env

    def loop_groups(
        self, labels: Sequence[int], team: int, fixed: Env, body: Callable[[Env], None]
    ) -> None:
        """Elements, of which each thread of a team does a few neighbours at once, where they lie so. What is
        done is written twice: for groups that are read and written as vectors, and for others."""
        near = self.nest.near
        each = self.each if labels and labels[-1] == near else 1
        n = self.name("n")
        first = "threadIdx.x" if team == THREADS else f"threadIdx.x % {team}"
        with self.block(
            f"for (u32 {n} = {first}; {n} < {self.volume(labels, each)}; {n} += {team})"
        ):
            env = self.apart(n, labels, each)
            if each == 1:
                with self.block(f"if ({self.inside(env)})"):
                    body(fixed | env)
                return
            begin, end, here = self.name("first"), self.count(near), fixed | env | {near: NEIGHBOUR}
            self.add(f"const u32 {begin} = {each} * {env.pop(near)};")
            with self.block(f"if ({self.inside(env)})"):
                with self.block(f"if (wide && {begin} + {each} <= {end})"):
                    self.group = Group(begin)
                    at = len(self.code.text)
                    with self.block(f"#pragma unroll\nfor (u32 j = 0; j < {each}; ++j)"):
                        self.add(f"const u32 {NEIGHBOUR} = {begin} + j;")
                        body(here)
                    self.code.text[at:at] = self.group.begins
                    self.add(*self.group.ends)
                    self.group = None
                with self.block(f"else for (u32 j = 0; j < {each} && {begin} + j < {end}; ++j)"):
                    self.add(f"const u32 {NEIGHBOUR} = {begin} + j;")
                    body(here)

    # -- stages
    def unit(self) -> None:
        nest, body = self.nest, self.body
        for v in sorted(self.held):
            if v < nest.operands:
                self.hold(v, line_of(nest, v))
        for k, node in enumerate(body.nodes):
            for v in body.outs(k):
                if v in nest.running:
                    self.run(v)
                elif v in nest.reductions:
                    self.reduce(v)
                elif v in self.held and not OPS[node.op].reduce:
                    self.hold(v)
        self.results()

    def hold(self, v: int, line: int = -1) -> None:
        """A value into shared memory; an operand along its own line, perhaps."""

        def keep(env: Env) -> None:
            made = self.made(v, env)
            self.write(*self.held_near(v, env), made)

        if line >= 0:
            with self.spread(self.nest.inner(v, line)) as env:
                keep(env)
        else:
            self.loop_groups(self.nest.inner(v), THREADS, {}, keep)
        self.add("__syncthreads();")

    def results(self) -> None:
        """Write what is no sum over rows to its place; results with the same indices together."""
        nest, alike = self.nest, dict[tuple[int, ...], list[tuple[int, int]]]()
        for a, v in enumerate(self.body.outputs, nest.operands):
            if nest.gathers(v):
                continue
            line = line_of(nest, a) if v in self.held else -1
            if line >= 0:
                with self.spread(nest.inner(v, line)) as env:
                    self.write(self.place(a, env), False, self.value(v, env))
            else:
                alike.setdefault(nest.inner(v), []).append((a, v))
        for labels, some in alike.items():

            def put(env: Env, some: Sequence[tuple[int, int]] = some) -> None:
                for value, a in [(self.value(v, env), a) for a, v in some]:
                    self.write(*self.near_place(a, env), value)

            self.loop_groups(labels, THREADS, {}, put)

    def total(self, first: int, keeps: bool = True, n: str = "") -> Total:
        r = self.nest.reductions[first]
        return Total(r.kind, self.body.specs[first].dtype, n or str(first), keeps)

    def run(self, v: int) -> None:
        """Combine the state that is carried along a thread's index with one element after the other."""
        if self.nest.running[v] == self.nest.near:
            self.scan(v)
            return
        label, dtype = self.nest.running[v], self.body.specs[v].dtype
        node, name = self.body.nodes[self.body.producers[v]], self.name("carried")
        with self.spread([x for x in self.nest.inner(v) if x != label]) as env:
            self.add(f"{c_type(dtype)} {name} = {literal(0, dtype)};")
            with self.loops((label,), env) as here:
                x = cast(self.value(node.inputs[0], here), dtype)
                before = Value(self.code, name, dtype)
                made = carried(OPS[node.op].element.running, before, x)
                first = self.index(label, here) == 0
                self.add(f"{name} = {where(first, x, made).name};")
                self.write(self.held_at(v, here), False, before)
        self.add("__syncthreads();")

    def few(self, first: int, env: Env) -> Value:
        """A result of few terms, where it is needed."""
        total = self.total(first, False, self.name("few"))
        self.add(*total.declared())
        for spot in self.spots(self.nest.over(first)):
            self.accumulate(self.nest.reductions[first], total, env | spot)
        (found,) = total.found(self.code)
        return self.shared(first, found)

    def spots(self, labels: Sequence[int]) -> list[Env]:
        """All indices along short labels, as numbers."""
        every = itertools.product(*(range(self.nest.extents[x]) for x in labels))
        return [dict(zip(labels, map(str, at), strict=True)) for at in every]

    def scan(self, v: int) -> None:
        """Combine what is carried along an index, of which a warp has 32 neighbours at a time: in pairs."""
        label, dtype = self.nest.running[v], self.body.specs[v].dtype
        node, lines = self.body.nodes[self.body.producers[v]], self.nest.inner(v)[:-1]
        kind, carry, sum_, i = c_type(dtype), *map(self.name, ("carried", "sum", "i"))

        def both(before: str) -> str:
            x, y = (Value(self.code, name, dtype) for name in (before, sum_))
            return carried(OPS[node.op].element.running, x, y).name

        with self.spread(lines, WARP) as env:
            self.add(f"{kind} {carry} = {literal(0, dtype)};")
            end = f"(u32){self.extent(label)}"
            with self.block(f"for (u32 begin = 0; begin < {end}; begin += {WARP})"):
                self.add(f"const u32 lane = threadIdx.x % {WARP}, {i} = begin + lane;")
                self.add(f"{kind} {sum_} = {literal(0, dtype)};")
                here = {**env, label: i}
                with self.block(f"if ({i} < {end})"):
                    self.add(f"{sum_} = {cast(self.value(node.inputs[0], here), dtype).name};")
                with self.block(f"#pragma unroll\nfor (u32 far = 1; far < {WARP}; far *= 2)"):
                    self.add(f"const {kind} before = from_lane_before({sum_}, far);")
                    self.add(f"if (lane >= far) {sum_} = {both('before')};")
                self.add(
                    f"if (begin) {sum_} = {both(carry)};", f"{carry} = from_last_lane({sum_});"
                )
                with self.block(f"if ({i} < {end})"):
                    self.write(self.held_at(v, here), False, Value(self.code, sum_, dtype))
        self.add("__syncthreads();")

    def reduce(self, first: int) -> None:
        nest, r = self.nest, self.nest.reductions[first]
        if first in nest.inlined:
            return
        if nest.gathers(first) and (groups := grouped(nest, first, self.held, GROUPS)) is not None:
            self.sum_groups(first, *groups)
            return
        team, over = nest.team(first), nest.over(first)
        total = self.total(first, nest.terms(first) > MAX_FIXED_EXTENT)
        if nest.is_by_columns(first):
            self.reduce_columns(first, r, total)
            return
        abreast = nest.abreast(first)
        spots = self.spots(abreast)
        totals = [total] if len(spots) == 1 else [
            self.total(first, total.keeps, f"{first}_{n}") for n in range(len(spots))
        ]  # fmt: skip
        with self.spread([x for x in nest.inner(first) if x not in abreast], team) as env:
            self.add(*(line for one in totals for line in one.declared()))

            def more(here: Env) -> None:
                for one, spot in zip(totals, spots, strict=True):
                    self.accumulate(r, one, here | spot)

            if team == 1:
                with self.loops(over, env) as here:
                    more(here)
            else:
                self.loop_groups(over, team, env, more)
                self.add(*reduce_warp(self.code, totals))
            if team == THREADS:
                self.add("__syncthreads();", *reduce_block(self.code, totals))
            lane = "threadIdx.x" if team == THREADS else f"threadIdx.x % {team}"
            with self.block(f"if ({lane} == 0)"):
                for one, spot in zip(totals, spots, strict=True):
                    self.keep(first, one, env | spot)
        if not nest.gathers(first):
            self.add("__syncthreads();")

    def reduce_columns(self, first: int, r: Reduction, total: Total) -> None:
        """Neighbours make neighbouring results; of each, every warp combines some terms."""
        nest, over = self.nest, self.nest.over(first)
        labels, n, first_n = nest.inner(first), self.name("n"), self.name("n")
        volume, warps = self.volume(labels), THREADS // WARP
        with self.block(f"for (u32 {first_n} = 0; {first_n} < {volume}; {first_n} += {WARP})"):
            self.add(f"const u32 {n} = {first_n} + threadIdx.x % {WARP};", *total.declared())
            env = self.apart(n, labels, 1)
            there = f"{n} < {volume} && {self.inside(env)}"
            with self.block(f"if ({there})"):
                m = self.name("n")
                head = f"for (u32 {m} = threadIdx.x / {WARP}; {m} < {self.volume(over)};"
                with self.block(f"{head} {m} += {warps})"):
                    here = env | self.apart(m, over, 1)
                    with self.block(f"if ({self.inside(here)})"):
                        self.accumulate(r, total, here)
            self.add(*merge_columns(self.code, total))
            with self.block(f"if (threadIdx.x < {WARP} && {there})"):
                self.keep(first, total, env)
            self.add("__syncthreads();")

    def accumulate(self, r: Reduction, total: Total, env: Env) -> None:
        """One more element."""
        x = r.node.inputs[0]
        if MONOIDS[r.kind].width == 2:
            (label,) = r.over or (None,)
            total.add(self.code, self.value(x, env), self.index(label, env))
        elif r.kind == "moments":
            total.add(self.code, self.value(x, env))
        else:
            self.combine(total, self.addends(r, total.dtype, env))

    def combine(self, total: Total, found: Sequence[Value]) -> None:
        """Onto a total; products are added without being rounded first, where nothing is kept of that."""
        if len(found) == 1:
            total.add(self.code, found[0])
        elif total.dtype.kind == "f" and len(total.registers) == 1:
            (now,) = total.values(self.code)
            total.set(self.code, [fma(found[0], found[1], now)])
        else:
            total.add(self.code, found[0] * found[1])

    def keep(self, first: int, total: Total, env: Env) -> None:
        """Keep what was combined, in shared memory, or onto what a turn has."""
        if self.nest.gathers(first):
            self.fold(first, total, env)
            return
        found = total.found(self.code)
        found[0] = self.shared(first, found[0])
        for v, made in enumerate(found, first):
            self.write(self.held_at(v, env), False, made)

    # -- over rows
    def state_at(self, first: int, register: int, i: str) -> str:
        """Where a turn keeps what it has combined."""
        begin = self.told(f"z{first}_{register}", self.state[first, register])
        size = self.total(first).registers[register][1].itemsize
        return f"state + {begin} + {size} * (s64)({i})"

    def number_in(self, v: int, env: Env) -> str:
        """The number of an element of what is combined over rows."""
        index = ""
        for x in self.nest.inner(v):
            index = f"({index} * {self.width(x)} + {env[x]})" if index else env[x]
        return index or "0"

    @contextlib.contextmanager
    def changed(self, first: int, i: str) -> Iterator[Total]:
        """Load what an iteration has combined, and store it when it is changed."""
        state = self.total(first, n="_now")
        with self.block(""):
            for k, (name, dtype, _) in enumerate(state.registers):
                kind = c_type(dtype)
                self.add(f"{kind} {name} = *(const {kind}*)({self.state_at(first, k, i)});")
            yield state
            for k, (name, dtype, _) in enumerate(state.registers):
                self.add(f"*({c_type(dtype)}*)({self.state_at(first, k, i)}) = {name};")

    def fold(self, first: int, total: Total, env: Env) -> None:
        """A unit's onto a turn's."""
        names = [name for name, *_ in total.registers]
        with self.changed(first, self.number_in(first, env)) as state:
            state.merge(self.code, [*names, *["0"] * (len(state.registers) - len(names))])

    def sum_groups(self, first: int, label: int, position: int, summed: int) -> None:
        """Row after row onto the sums of its group, instead of all groups' sums of all rows."""
        nest, dtype = self.nest, self.body.specs[first].dtype
        rest = [x for x in nest.inner(first) if x != label]
        with self.spread(rest) as env, self.loops([*nest.cut], env) as here:
            group = cast(self.value(position, here), int64)
            with self.block(f"if ({group.name} < (u64){self.extent(label)})"):
                one = self.code.constant(1, dtype)
                more = one if summed < 0 else self.value(summed, here)
                i = self.number_in(first, here | {label: f"(u32){group.name}"})
                with self.changed(first, i) as state:
                    state.add(self.code, more)

    def put_out(self, first: int, total: Total, env: Env) -> None:
        self.put_all([(first, total)], env)

    def put_all(self, totals: Sequence[tuple[int, Total]], env: Env) -> None:
        """Write what was combined, and what is made of that when all of it is there."""
        made = dict[int, Value]()
        for first, total in totals:
            found = total.found(self.code)
            made[first] = self.shared(first, found[0])
            if total.kind == "moments":
                made |= {first + 1: found[1], first - 1: found[2]}
            elif len(found) == 2:
                made[first + 1] = found[1]  # where the best stands
        env = {x: "0" for x, n in enumerate(self.nest.extents) if n == 1} | env
        for v, one in made.items():
            made[v] = cast(one, self.body.specs[v].dtype)
            self.memo[v, tuple([env[x] for x in self.nest.labels(v) if x in env])] = made[v]
        for a, v in enumerate(self.body.outputs, self.nest.operands):
            if v in made or v in self.nest.behind:
                self.write(self.place(a, env), False, made[v] if v in made else self.value(v, env))

    # -- whole kernels
    def kernel(self) -> Kernel:
        nest = self.nest
        units, gathered = nest.units, nest.gathered
        held = sum(nest.room(v) for v in self.held)
        waiting = self.waiting
        in_shared = held + waiting <= MOST_SHARED
        most = units
        if gathered:
            most = max(1, min(BLOCKS, nest.moved // (LEFT * waiting)))
        each = -(-units // most)
        turns = -(-units // each)
        self.unit()
        stages, self.code.text = self.code.text, []
        self.add(f"const bool wide = {self.alignment()};")
        if any(map(nest.is_by_columns, nest.reductions)):
            self.add(f"__shared__ Beside<u32, 4> columns[{3 * APART // 16}];")
            self.add("u8* const apart = (u8*)columns;")
        shared = -(-(held + waiting * in_shared) // 1024) * 1024
        if shared:
            self.add(f"__shared__ Beside<u32, 4> shared[{shared // 16}];")
            self.add("u8* const held = (u8*)shared;")
        if gathered:
            self.told("waiting", waiting)
            place = f"held + {held}" if in_shared else "room + waiting * blockIdx.x"
            self.add(f"u8* const state = {place};")
            for first in gathered:
                self.begin(first)
            self.add("__syncthreads();")
        if each > 1:
            self.told("units", units)
            end = f"(blockIdx.x + 1) * {self.told('each', each)}"
            self.add("const s64 first_unit = each * blockIdx.x;")
            self.add(f"const s64 end_unit = {end} < units ? {end} : units;")
            head = "for (s64 unit = first_unit; unit < end_unit; ++unit)"
        else:
            head = ""
            self.add("const s64 unit = blockIdx.x;")
        with self.block(head):
            self.rows()
            self.add(*stages)
            if each > 1 or in_shared:
                self.add("__syncthreads();")
        if gathered and in_shared:
            self.add(f"for (u32 i = threadIdx.x; i < waiting / 4; i += {THREADS})")
            self.add("((u32*)(room + waiting * blockIdx.x))[i] = ((const u32*)state)[i];")
        then = Finish(nest, turns).kernel() if gathered else None
        return self.finished("nest", (turns, 1), turns * waiting, then)

    def finished(
        self,
        prefix: str,
        grid: tuple[int, int],
        room: int,
        then: Kernel | None,
        threads: int = THREADS,
        blocks: int = 1,
    ) -> Kernel:
        """The kernel of what has been written."""
        given = [f"u8* q{a}" for a in range(len(self.nest.strides))]
        given += [f"s64 {name}" for name in self.given]
        given += [f"s64 bits{n}" for n in range(len(self.known))]
        given += ["u8* room"] if room else []
        code = [*known_numbers(self.body, self.known), *self.code.text]
        facts = (*self.given.values(), *numbers(self.body).values())
        declared = self.code.declared
        return whole(prefix, given, code, declared, grid, facts, room, then, threads, blocks)

    def alignment(self) -> str:
        """Whether groups of neighbours begin where vectors do, wherever they are."""
        near, tests = self.nest.near, list[str]()
        for a, lies in enumerate(self.nest.strides):
            if not self.is_beside(a) or a in self.counted or self.each == 1:
                continue
            size = self.body.specs[self.nest.value_of(a)].dtype.itemsize * self.each
            steps = [self.told(f"s{a}_{x}", step) for x, step in lies.items() if x != near]
            tests.append(f"((s64)q{a}{''.join(f' | {s}' for s in steps)}) % {size} == 0")
        if near not in self.nest.rows and self.each > 1:
            tests.append(f"{self.extent(near)} % {self.each} == 0")
        return " && ".join(tests) or "true"

    def begin(self, first: int) -> None:
        """Nothing is combined yet."""
        for k, (_, dtype, begins) in enumerate(self.total(first).registers):
            i = self.name("i")
            volume = self.volume(self.nest.inner(first))
            self.add(f"for (u32 {i} = threadIdx.x; {i} < {volume}; {i} += {THREADS})")
            self.add(f"*({c_type(dtype)}*)({self.state_at(first, k, i)}) = {begins};")

    def rows(self) -> None:
        """Where a unit begins along its rows, and where operands and results begin there."""
        nest, rest = self.nest, "unit"
        for n, x in reversed([*enumerate(nest.rows)]):
            extent, index, steps = self.extent(x), rest, nest.cut.get(x, 1)
            if n:
                many = f"(({extent} + {steps - 1}) / {steps})"
                index, rest = f"{rest} % {many}", f"({rest} / {many})"
            self.add(f"const s64 begin{x} = ({index}) * {steps};")
            if x in nest.cut:
                left = f"{extent} - begin{x}"
                self.add(f"const u32 count{x} = {left} < {steps} ? (u32)({left}) : {steps};")
        for a, lies in enumerate(nest.strides):
            further = [
                f" + {self.told(f's{a}_{x}', lies[x])} * begin{x}" for x in nest.rows if x in lies
            ]
            self.add(f"u8* const p{a} = q{a}{''.join(further)};")


class Finish(Writer):
    """Writes the kernel that puts the turns together, in their order."""

    def __init__(self, nest: Tiles, turns: int) -> None:
        super().__init__(nest)
        self.turns = turns

    def kernel(self) -> Kernel:
        self.told("turns", self.turns)
        self.told("waiting", self.waiting)
        self.add(*(f"u8* const p{a} = q{a};" for a in range(len(self.nest.strides))))
        gathered = self.nest.gathered
        each = [gathered] if self.nest.behind else [[first] for first in gathered]
        blocks = max(map(self.end, each))
        return self.finished("turns", (blocks, 1), self.turns * self.waiting, None)

    def end(self, some: Sequence[int]) -> int:
        """All turns' results of these; how many blocks that takes. A block's threads share the turns of one
        result, or of some neighbours where there are many, and read several turns before they combine them."""
        nest, totals = self.nest, [self.total(first) for first in some]
        volume, labels = nest.volume(some[0]), nest.inner(some[0])
        beside = 1
        while beside < WARP and volume >= 2 * beside * MULTIPROCESSORS:
            beside *= 2
        threads = THREADS // beside
        at_once = min(MAX_THREAD_TERMS, 1 << (-(-self.turns // threads) - 1).bit_length())
        with self.block(f"if (blockIdx.x * {beside} < {self.volume(labels)})"):
            self.add(f"const u32 e = blockIdx.x * {beside} + threadIdx.x % {beside};")
            self.add(f"const u32 n = e < {self.volume(labels)} ? e : 0;")
            self.add(*(line for total in totals for line in total.declared()))
            head = f"for (s64 first = threadIdx.x / {beside}; first < turns; "
            with self.block(f"{head}first += {at_once * threads})"):
                again = f"#pragma unroll\nfor (u32 k = 0; k < {at_once}; ++k)"
                there = f"first + {threads} * k < turns"
                for name, dtype, _ in (one for total in totals for one in total.registers):
                    self.add(f"{c_type(dtype)} more_{name}[{at_once}];")
                with self.block(f"{again} if ({there})"):
                    self.add(f"const u8* state = room + waiting * (first + {threads} * k);")
                    for first, total in zip(some, totals, strict=True):
                        for k, (name, dtype, _) in enumerate(total.registers):
                            at = self.state_at(first, k, "n")
                            self.add(f"more_{name}[k] = *(const {c_type(dtype)}*)({at});")
                with self.block(f"{again} if ({there})"):
                    for total in totals:
                        total.merge(self.code, [f"more_{name}[k]" for name, *_ in total.registers])
            self.add(*reduce_warp(self.code, totals, apart=beside))

            def leave(column: str) -> list[str]:
                at, memo = len(self.code.text), dict(self.memo)
                self.add(f"const u32 found = blockIdx.x * {beside} + {column};")
                with self.block(f"if (found < {self.volume(labels)})"):
                    self.put_all([*zip(some, totals, strict=True)], self.apart("found", labels, 1))
                made, self.memo = self.code.text[at:], memo
                del self.code.text[at:]
                return made

            for n, total in enumerate(
                totals, 1
            ):  # the same threads have all of them when the last one is
                last = n == len(totals)
                self.add(*merge_warps(self.code, [total], beside, leave if last else lambda _: []))
        return -(-volume // beside)


def kernel_of(nest: Tiles) -> Kernel:
    """The kernel of a nest; what is combined over rows has a second one behind it."""
    return Writer(nest).kernel()
