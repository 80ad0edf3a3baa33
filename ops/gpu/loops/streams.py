"""Kernels in stages whose threads keep in registers what they read, and read several vectors before they use
the first one. They need no tiles in shared memory:

    lines      all is made along one long index, as by a softmax or a layer norm: a warp or a block does all
               stages of a line. Each thread has the same elements in all stages, so that a line is read once
               where its threads have registers for it.
    columns    all that is combined is combined over rows, whose columns lie side by side: each thread has
               the same columns in all rows
    planes     all that is combined is combined over what lies side by side, and over rows outside of what
               has a result each, as over all pixels of a channel: a warp or a block has one of these, or a
               part of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ostinato.ops.core.graph import Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import bool_, float64
from ostinato.ops.jit.elements import Env
from ostinato.ops.jit.kept_values import MAX_FIXED_EXTENT, MAX_THREAD_TERMS, kept, step
from ostinato.ops.jit.labels import reads_elsewhere
from ostinato.ops.jit.moves import is_join
from ostinato.ops.jit.random_bits import numbers_in
from ostinato.ops.jit.values import Value, cast

from ..jit.lines import c_type, memory_type
from . import stages
from .flat import MOST_ROWS, team_of
from .schedule import BLOCKS, LEFT, SOME, THREADS, VECTOR, WAITING, WARP, WRITTEN, Tiles
from .stages import MULTIPROCESSORS, Finish, Writer
from .text import Kernel
from .totals import Total, merge_warps, reduce_block, reduce_warp

KEPT = 32  # registers of what a thread keeps of a line
TEAMS = (WARP, THREADS, 2 * THREADS, 4 * THREADS)  # threads that share a line


def kernel_of(nest: Tiles) -> Kernel:
    """The kernel of a nest; what is combined over rows has a second one behind it, unless one block
    does all."""
    return stream_of(nest) or stages.kernel_of(nest)


def stream_of(nest: Tiles) -> Kernel | None:
    """The kernel of a nest that is one of these."""
    elsewhere = [*filter(reads_elsewhere, nest.body.nodes)]
    if nest.running or not nest.reductions or not all(map(is_join, elsewhere)):
        return None
    lines = None if elsewhere else _lines_of(nest)
    writer = lines or _columns_of(nest) or _planes_of(nest)
    return writer.kernel() if writer else None


def _long(nest: Tiles, labels: Iterable[int]) -> set[int]:
    return {x for x in labels if nest.extents[x] > 1}


def _beside(nest: Tiles, near: int) -> int:
    """Neighbours along an index that are one vector wherever one begins, if the array does."""
    body = nest.body
    sizes = [s.dtype.itemsize for v, s in enumerate(body.specs) if near in nest.dims[v]]
    each = VECTOR // max(sizes)
    while each > 1 and nest.extents[near] % each:
        each //= 2
    for a, lies in enumerate(nest.strides):
        size = body.specs[nest.value_of(a)].dtype.itemsize
        while each > 1 and lies.get(near) == size and any(
            step % (each * size) for x, step in lies.items() if x != near and nest.extents[x] > 1
        ):  # fmt: skip
            each //= 2
    return max(1, each)


class StreamWriter(Writer):
    """Writes loops in which a thread reads several groups of neighbours before it uses the first one."""

    def __init__(self, nest: Tiles, each: int, along: Iterable[int]) -> None:
        super().__init__(nest)
        self.each, self.along = each, frozenset(along)  # what is read has one of these indices
        self.which = {f"beside{j}": j for j in range(each)}
        self.streams: dict[int, str] = {}  # operands in registers, by place
        self.fleeting = self.turn = "k"  # which group of those that are read again, and of others
        self.declares: list[str] = []
        self.reads: list[str] = []
        self.stores: list[str] = []
        self.results_now: dict[int, str] = {}
        self.joins: dict[int, str] = {}  # and what joins have, by value
        self.before: dict[tuple[int, tuple[str, ...]], Value] = {}  # what is known where both are
        self.is_ahead = False  # whether what is written now stands there
        self.still = {x: "0" for x, n in enumerate(nest.extents) if n == 1}
        self.many = self.blocks = 1  # blocks each of which leaves something

    def aligned(self) -> None:
        """Say which operands and results are read and written as vectors."""
        for a, _ in enumerate(self.nest.strides):
            if self.is_beside(a) and a not in self.counted:
                size = self.each * self.body.specs[self.nest.value_of(a)].dtype.itemsize
                self.add(f"const bool wide{a} = ((u64)q{a} & {size - 1}) == 0;")

    def neighbours(self) -> Iterator[Env]:
        for name in self.which:
            yield self.still | {self.nest.near: name}

    def stays(self, a: int) -> bool:
        """Whether an operand stays in registers when it was read."""
        return False

    def batch(
        self, many: int, here: Sequence[str], inside: str, element: Callable[[], None]
    ) -> None:
        """Some groups, all of which are read before the first is used. `here` says where one is."""
        at, before = len(self.code.text), dict(self.streams)
        self.before, self.joins = dict(self.memo), {}
        self.declares, self.reads, self.stores, self.results_now = [], [], [], {}
        self.many = many
        head = f"#pragma unroll\nfor (u32 n = 0; n < {many}; ++n)"
        with self.block(head):
            self.add(*here)
            with self.block(f"if ({inside})"):
                element()
                self.add(*self.stores)
        loads = [f"{head} {{", *here, f"if ({inside}) {{", *self.reads, "}", "}"]
        self.code.text[at:at] = [*self.declares, *(loads if self.reads else ())]
        self.streams = before | {a: x for a, x in self.streams.items() if self.stays(a)}

    def loaded(self, a: int, env: Env) -> Value:
        near, lies, dtype = self.nest.near, self.nest.strides[a], self.body.specs[a].dtype
        if not self.is_known_ahead(lies, env):
            return super().loaded(a, env)
        if a not in self.streams:
            self.stream(a, env)
        index = self.turn if self.stays(a) else self.fleeting
        j = self.which[env[near]] if near in self.nest.strides[a] else 0
        text = f"{self.streams[a]}[{index}].at[{j}]"
        return self.code.write(f"{text} != 0" if dtype == bool_ else text, dtype)

    def is_known_ahead(self, labels: Collection[int], env: Env) -> bool:
        """Whether an element of something with these indices is one of a group's, and which one is known before
        anything is made of what is read."""
        late = not self.found_late.isdisjoint(env[x] for x in labels if x in env)
        ours = env.get(self.nest.near, "beside0") in self.which
        return ours and not late and not self.along.isdisjoint(labels)

    def elsewhere(self, v: int, node: Node, env: Env) -> Value:
        """Find ahead what a join has, too: all that is read for it is on its way with the rest, though it is
        no vector, as it lies where only tests know."""
        labels, near = self.nest.labels(v), self.nest.near
        if self.is_ahead or not self.is_known_ahead(labels, env):
            return super().elsewhere(v, node, env)
        each, j = (self.each, self.which[env[near]]) if near in labels else (1, 0)
        dtype = self.body.specs[v].dtype
        if v not in self.joins:
            self.joins[v] = self.name("v")
            self.declare(v, self.joins[v], f"{memory_type(dtype)}, {each}")
        text = f"{self.joins[v]}[{self.fleeting}].at[{j}]"

        def find() -> None:
            self.add(f"{text} = {super(StreamWriter, self).elsewhere(v, node, env).name};")

        later, self.memo, self.is_ahead = self.memo, self.before, True
        self.reads += self.written(find)
        self.memo, self.is_ahead = later, False
        return self.code.write(f"{text} != 0" if dtype == bool_ else text, dtype)

    def stream(self, a: int, env: Env) -> None:
        """Read an operand into registers."""
        near, name = self.nest.near, self.name("v")
        kind = memory_type(self.body.specs[a].dtype)
        each = self.each if near in self.nest.strides[a] else 1
        self.declare(a, name, f"{kind}, {each}")
        index = self.turn if self.stays(a) else self.fleeting
        if self.is_beside(a):
            at = self.place(a, {**env, near: "first"})
            self.reads.append(f"{name}[{index}] = taken<{kind}, {each}>({at}, wide{a});")
        else:
            for j in range(each):
                at = self.place(a, {**env, near: f"beside{j}"})
                self.reads.append(f"{name}[{index}].at[{j}] = *(const {kind}*)({at});")
        self.streams[a] = name

    def declare(self, a: int, name: str, kind: str) -> None:
        self.declares.append(f"Beside<{kind}> {name}[{self.many}];")

    def result(self, a: int, env: Env) -> None:
        """Write an element of a result; neighbours are written together."""
        v = self.nest.value_of(a)
        made, near = self.value(v, env), self.nest.near
        if not self.is_beside(a):
            self.write(self.place(a, env), False, made)
            return
        kind = f"{memory_type(made.dtype)}, {self.each}"
        if a not in self.results_now:
            name = self.results_now[a] = self.name("w")
            self.add(f"Beside<{kind}> {name};")
            at = self.place(a, {**env, near: "first"})
            self.stores.append(f"put<{kind}>({at}, {name}, wide{a});")
        self.add(f"{self.results_now[a]}.at[{self.which[env[near]]}] = {made.name};")

    def leave(self, first: int, total: Total, env: Env) -> None:
        """Leave what a turn has combined, or all of it."""
        if self.blocks == 1 and not self.nest.behind:
            self.put_out(first, total, env)
            return
        self.told("waiting", self.waiting)
        self.add("u8* const state = room + waiting * blockIdx.x;")
        i = self.number_in(first, env)
        for k, (name, dtype, _) in enumerate(total.registers):
            self.add(f"*({c_type(dtype)}*)({self.state_at(first, k, i)}) = {name};")

    def left(self, prefix: str, parts: int, threads: int = THREADS, blocks: int = 1) -> Kernel:
        """The kernel, and what puts together what its blocks leave."""
        ends = self.blocks > 1 or self.nest.behind
        then = Finish(self.nest, self.blocks).kernel() if ends else None
        room = self.blocks * self.waiting if then else 0
        return self.finished(prefix, (self.blocks, parts), room, then, threads, blocks)

    def written(self, write: Callable[[], None]) -> list[str]:
        """The statements that are written meanwhile."""
        at, memo = len(self.code.text), dict(self.memo)
        write()
        made, self.memo = self.code.text[at:], memo
        del self.code.text[at:]
        return made

    def groups(self) -> list[str]:
        """Where the neighbours of a group are."""
        return [f"const u32 {name} = first + {j};" for name, j in self.which.items()]


# -- lines ---------------------------------------------------------------------------------------
def _lines_of(nest: Tiles) -> StreamWriter | None:
    near, rows = nest.near, {*nest.rows}
    values = range(len(nest.body.specs))
    if near in rows or any(_long(nest, nest.labels(v)) - rows - {near} for v in values):
        return None
    for v, r in nest.reductions.items():
        if _long(nest, r.over) != {near} and (
            v not in nest.gathered or near in r.over or r.kind == "moments"
            or _long(nest, r.over) != _long(nest, rows)
        ):  # fmt: skip
            return None
    if all(v in nest.gathered for v in nest.reductions):
        return None
    writer = LineWriter(replace(nest, cut={}, held=set(), inlined=set()))
    return writer if writer.is_fixed or not writer.abreast else None


class LineWriter(StreamWriter):
    """Writes all stages of a line."""

    def __init__(self, nest: Tiles) -> None:
        super().__init__(nest, _beside(nest, nest.near), {nest.near})
        self.dear = {v for v in kept(nest, {nest.near}) if self.is_along(v)}
        self.made_before: set[int] = set()  # values of the line that are in registers
        self.is_fixed = True
        operands = {a for a in range(nest.operands) if self.is_along(a) and len(nest.labels(a)) > 1}
        self.lasting: list[str] = []  # what declares the arrays of what stays
        self.newly: set[int] = set()
        self.staying = self.dear | (operands - numbers_in(nest.body))
        # what is combined over rows: a line's numbers, and its elements, of which threads keep their own's sums
        self.gathered = nest.gathered
        self.abreast = [v for v in self.gathered if self.is_along(v)]
        once = self.live() + len(self.abreast)  # what is read again, or kept
        words = self.live() + sum(
            d.itemsize // 4 for v in self.abreast for _, d, _ in self.total(v).registers
        )
        terms, words = nest.extents[nest.near], max(1, words)
        for team in TEAMS[1:] if self.abreast else TEAMS:
            each = self.each
            while each > 1 and terms < team * each:
                each //= 2
            turns = -(-terms // (each * team))
            if turns * each * words <= KEPT or team == TEAMS[-1]:
                break
        if turns * each * words > KEPT or turns * each * len(nest.body.nodes) > WRITTEN:
            self.is_fixed, self.staying, self.dear = False, set(), set()
            team = THREADS if terms <= TEAMS[-1] * self.each else TEAMS[-1]
            each = self.each
            turns = -(-terms // (each * team))
        if not once and team > team_of(terms, nest.units):
            self.is_fixed, self.staying, self.dear = False, set(), set()
            team, each = WARP, self.each  # so little is put together
            turns = -(-terms // (each * team))
        self.each, self.team, self.turns = each, team, turns
        self.which = {f"beside{j}": j for j in range(each)}
        self.threads = max(team, THREADS)
        while (
            self.threads > team and not self.gathered and nest.units * team < BLOCKS * self.threads
        ):
            self.threads //= 2
        self.is_fixed &= not self.abreast or 2 * terms >= team

    def is_along(self, v: int) -> bool:
        return self.nest.near in self.nest.labels(v)

    def stays(self, a: int) -> bool:
        return a in self.staying

    # -- what is in registers
    def passes(self) -> list[list[int]]:
        """List the values that each loop along a line is for."""
        every = self.nest.reductions.items()
        found = [[*r.node.inputs] for v, r in every if v not in self.gathered]
        return [*found, [v for v in self.last_values() if self.is_along(v)]]

    def last_values(self) -> list[int]:
        """List the values of which results are made, and sums over rows."""
        own = [v for v in self.body.outputs if not self.nest.gathers(v)]
        return [*own, *(v for f in self.gathered for v in self.nest.reductions[f].node.inputs)]

    def leaves(self, values: Collection[int], made: Collection[int]) -> set[int]:
        """Find what elements of these are made of: what is in memory or in registers, and numbers of the line;
        and what is put into registers meanwhile."""
        found, todo = set[int](), [*values]
        while todo:
            v = todo.pop()
            if v in found:
                continue
            if v in made or not self.is_along(v) or v < self.nest.operands:
                found.add(v)
            else:
                found |= {v} & self.staying
                todo += self.body.nodes[self.body.producers[v]].inputs
        return found

    def live(self) -> int:
        """Registers of 4 bytes that an element of a line needs between two loops."""
        used, made = [], set[int]()
        for values in self.passes():
            used.append(self.leaves(values, made) & self.staying)
            made |= used[-1]
        most = 0
        for n in range(1, len(used)):
            before, after = set[int]().union(*used[:n]), set[int]().union(*used[n:])
            sizes = [self.body.specs[v].dtype.itemsize for v in before & after]
            most = max(most, sum(-(-size // 4) for size in sizes))
        return most

    def declare(self, a: int, name: str, kind: str) -> None:
        if self.stays(a):
            self.lasting.append(f"Beside<{kind}> {name}[{self.turns}];")
        else:
            super().declare(a, name, kind)

    def _value(self, v: int, env: Env) -> Value:
        if v not in self.dear or env.get(self.nest.near) not in self.which:
            return self.made(v, env)
        dtype = self.body.specs[v].dtype
        at = f"kept{v}[k].at[{self.which[env[self.nest.near]]}]"
        if v in self.made_before:
            return self.code.write(f"{at} != 0" if dtype == bool_ else at, dtype)
        made = self.made(v, env)
        self.add(f"{at} = {made.name};")
        self.newly.add(v)
        return made

    # -- loops
    def line(self, values: Collection[int], element: Callable[[Env], None]) -> None:
        needed = self.leaves(values, self.made_before)
        for v in sorted(needed):
            if not self.is_along(v):
                self.value(v, self.still)  # once, ahead of the loop
        fleeting = [
            self.body.specs[v].dtype
            for v in needed
            if self.is_along(v) and v < self.nest.operands and not self.stays(v)
        ]
        many = self.turns if self.is_fixed else MAX_THREAD_TERMS
        if fleeting:
            words = sum(-(-d.itemsize * self.each // 4) for d in fleeting)
            many = min(many, max(1, WAITING // words))
        self.newly, self.fleeting = set(), "n"
        terms = self.told(f"e{self.nest.near}", self.nest.extents[self.nest.near])
        at_once = self.each * self.team
        turns = str(self.turns) if self.is_fixed else f"({terms} + {at_once - 1}) / {at_once}"
        here = [
            f"const u32 k = begin + n, first = {self.each} * (lane + {self.team} * k);",
            *self.groups(),
        ]
        inside = f"first < (u32){terms}"
        if self.is_fixed and self.turns % many:
            inside = f"k < {self.turns} && {inside}"

        def group() -> None:
            for env in self.neighbours():
                element(env)

        unrolled = "#pragma unroll\n" if self.is_fixed else "#pragma unroll 1\n"
        with self.block(f"{unrolled}for (u32 begin = 0; begin < {turns}; begin += {many})"):
            self.batch(many, here, inside, group)
        self.made_before |= self.newly

    def reduce(self, first: int) -> None:
        r = self.nest.reductions[first]
        total = self.total(first, self.turns * self.each > MAX_FIXED_EXTENT)
        self.add(*total.declared())
        self.line(r.node.inputs, lambda env: self.accumulate(r, total, env))
        self.add(*reduce_warp(self.code, [total]))
        if self.team > WARP:
            self.add(*reduce_block(self.code, [total], threads=self.team))
        self.add(*(f"{name} = from_first_lane({name});" for name, *_ in total.registers))
        found = total.found(self.code)
        found[0] = self.shared(first, found[0])
        for v, made in enumerate(found, first):
            self.memo[v, tuple(["0" for x in self.nest.labels(v) if x in self.still])] = made

    def results(self) -> None:
        nest = self.nest
        outputs = [
            (a, v) for a, v in enumerate(self.body.outputs, nest.operands) if not nest.gathers(v)
        ]
        along = [a for a, v in outputs if self.is_along(v)]

        def put(env: Env) -> None:
            for a in along:
                self.result(a, env)
            for first in self.abreast:
                total = self.own(first, env)
                self.accumulate(nest.reductions[first], total, env)

        if along or self.abreast:
            self.line([v for v in self.last_values() if self.is_along(v)], put)
        for first in self.gathered:
            if first not in self.abreast:
                self.accumulate(nest.reductions[first], self.total(first), self.still)
        if len(along) < len(outputs):
            with self.block("if (lane == 0)"):
                for a, v in outputs:
                    if a not in along:
                        self.write(self.place(a, self.still), False, self.value(v, self.still))

    def own(self, first: int, env: Env) -> Total:
        """Find what a thread has combined over rows of one of its elements."""
        return self.total(first, n=f"{first}[k].at[{self.which[env[self.nest.near]]}]")

    def kernel(self) -> Kernel:
        self.aligned()
        units, lines = self.nest.units, self.threads // self.team
        self.add(f"const u32 lane = threadIdx.x % {self.team};")
        if not self.gathered:
            self.add(f"const s64 unit = (s64)blockIdx.x * {lines} + threadIdx.x / {self.team};")
            with self.block(f"if (unit < {self.told('units', units)})"):
                self.unit()
            return self.finished("lines", (-(-units // lines), 1), 0, None, self.threads)
        most = max(1, min(BLOCKS, units // lines, self.nest.moved // (LEFT * self.waiting)))
        each = -(-units // most)
        self.blocks = -(-units // each)
        for first in self.gathered:
            self.open(first)
        end, of_block = self.told("units", units), self.told("each", each)
        self.add(
            f"const s64 next = {of_block} * (blockIdx.x + 1), end = next < {end} ? next : {end};"
        )
        head = f"for (s64 unit = {of_block} * blockIdx.x + threadIdx.x / {self.team}; unit < end;"
        with self.block(f"{head} unit += {lines})"):
            self.unit()
            if self.team > WARP:
                self.add("__syncthreads();")
        self.add(*(f"u8* const p{a} = q{a};" for a in range(len(self.nest.strides))))
        for first in self.gathered:
            with self.block(""):
                self.end(first, lines)
        return self.left("lines", 1, self.threads)

    def unit(self) -> None:
        """All stages of a line."""
        self.rows()
        for v in sorted(self.dear):
            kind = f"{memory_type(self.body.specs[v].dtype)}, {self.each}"
            self.add(f"Beside<{kind}> kept{v}[{self.turns}];")
        at, self.lasting = len(self.code.text), list[str]()
        for first in sorted(self.nest.reductions):
            if first not in self.gathered:
                self.reduce(first)
        self.results()
        self.code.text[at:at] = self.lasting

    def open(self, first: int) -> None:
        """Nothing is combined over rows yet."""
        for name, dtype, begins in self.total(first).registers:
            kind = c_type(dtype)
            if first not in self.abreast:
                self.add(f"{kind} {name} = {begins};")
                continue
            self.add(f"Beside<{kind}, {self.each}> {name}[{self.turns}];")
            loops = [
                f"for (u32 k = 0; k < {self.turns}; ++k)",
                f"for (u32 j = 0; j < {self.each}; ++j)",
            ]
            for loop in loops:
                self.add("#pragma unroll", loop)
            self.add(f"{name}[k].at[j] = {begins};")

    def end(self, first: int, lines: int) -> None:
        """A block's of what is combined over rows."""
        if first in self.abreast:
            terms = self.told(f"e{self.nest.near}", self.nest.extents[self.nest.near])
            with self.block(f"#pragma unroll\nfor (u32 k = 0; k < {self.turns}; ++k)"):
                self.add(
                    f"const u32 first = {self.each} * (lane + {self.team} * k);", *self.groups()
                )
                with self.block(f"if (first < (u32){terms})"):
                    for env in self.neighbours():
                        with self.block(""):
                            self.leave(first, self.own(first, env), env)
            return
        total = self.total(first)

        def leave(column: str = "") -> list[str]:
            return self.written(lambda: self.leave(first, total, self.still))

        if self.threads == THREADS and lines > 1:
            self.add(*merge_warps(self.code, [total], 1, leave))
        else:
            self.add("if (threadIdx.x == 0) {", *leave(), "}")


# -- columns and planes --------------------------------------------------------------------------
def _over_rows(nest: Tiles) -> tuple[set[int], frozenset[int], int] | None:
    """The labels that all is combined over, those of what is combined, and that of neighbours in memory; None
    where reductions differ in these."""
    long = _long(nest, nest.rows)
    if not long or any(_long(nest, r.over) != long for r in nest.reductions.values()):
        return None
    if any(OPS[node.op].moves.places for node in nest.body.nodes):
        return None
    columns, *others = {frozenset(_long(nest, nest.labels(v))) for v in nest.reductions}
    if others:
        return None
    joins = any(map(reads_elsewhere, nest.body.nodes))  # which find what has other labels
    for v in range(len(nest.body.specs)):
        own = _long(nest, nest.labels(v))
        is_result = v in nest.body.outputs and not nest.gathers(v)
        if (own - columns - long and not joins) or (is_result and own != columns | long):
            return None
    return long, columns, min(columns | long, key=lambda x: step(nest, x) or 0)


def _columns_of(nest: Tiles) -> StreamWriter | None:
    found = _over_rows(nest)
    if found is None or found[2] in found[0]:
        return None
    long, _, near = found
    one = replace(nest, cut=dict.fromkeys(long, 1), near=near, held=set(), inlined=set())
    writer = ColumnWriter(one, long)
    return writer if writer.parts <= MOST_ROWS and writer.rows_inside < 1 << 31 else None


def _planes_of(nest: Tiles) -> StreamWriter | None:
    found = _over_rows(nest)
    if found is None or found[2] not in found[0] or not found[1]:
        return None
    long, _, near = found
    one = replace(nest, cut=dict.fromkeys(long, 1), near=near, held=set(), inlined=set())
    writer = PlaneWriter(one, long)
    return writer if writer.parts <= MOST_ROWS and writer.rows_inside < 1 << 31 else None


class RowWriter(StreamWriter):
    """Writes sums over rows, and what is made on the way. `order`: the labels of rows, from outer ones on; one
    number counts them all."""

    def __init__(self, nest: Tiles, each: int, long: Collection[int]) -> None:
        super().__init__(nest, each, long)
        self.order = sorted(long, key=lambda x: (x == nest.near, -(step(nest, x) or 0)))
        self.fleeting = "n"
        (first, *_) = nest.reductions
        self.columns = nest.inner(first)
        words = sum(
            -(-s.dtype.itemsize * (each if nest.near in lies else 1) // 4)
            for s, lies in zip(nest.body.inputs, nest.strides, strict=False)
            if not self.along.isdisjoint(lies)
        )
        most = MAX_THREAD_TERMS if all(r.kind != "moments" for r in nest.reductions.values()) else 4
        self.at_once = 1 << (max(1, min(most, WAITING // max(1, words))).bit_length() - 1)
        if len(nest.body.nodes) * each * self.at_once > WRITTEN:
            self.at_once = 1
        self.rows_inside = math.prod(nest.extents[x] for x in self.order)

    def _value(self, v: int, env: Env) -> Value:
        return self.made(v, env)

    def rows_at(self, row: str, labels: Sequence[int], prefix: str) -> tuple[list[str], Env]:
        """The indices of what a number counts; each is called by a prefix."""
        if len(labels) == 1:
            return [], {labels[0]: row}
        env: Env = {}
        code, rest = list[str](), f"(u32)({row})"
        for x in reversed(labels[1:]):
            extent, env[x] = f"(u32){self.told(f'e{x}', self.nest.extents[x])}", f"{prefix}{x}"
            code += [f"const u32 {env[x]} = {rest} % {extent};"]
            code += [f"const u32 {prefix}{x}_rest = {rest} / {extent};"]
            rest = f"{prefix}{x}_rest"
        return code, env | {labels[0]: rest}

    def begin_rows(self) -> None:
        """Where operands, results and rows begin."""
        self.aligned()
        for x in self.nest.rows:
            self.add(f"const s64 begin{x} = 0;")
        self.add(*(f"u8* const p{a} = q{a};" for a in range(len(self.nest.strides))))

    def same_in_rows(self, spots: Sequence[Env]) -> None:
        """Make what is the same in all rows ahead of them."""
        nest = self.nest
        for v in range(len(self.body.specs)):
            own = _long(nest, nest.labels(v))
            if own and own <= {*self.columns} and not nest.gathers(v):
                for spot in spots:
                    self.value(v, spot)

    def element(self, totals: dict[int, list[Total]], spots: Sequence[Env]) -> None:
        """All of one row."""
        nest = self.nest
        for spot in spots:
            for first, some in totals.items():
                one = some[self.which[spot[nest.near]] % len(some)]
                r = nest.reductions[first]
                if r.kind == "moments":
                    one.take(self.code, self.value(r.node.inputs[0], spot))
                else:
                    self.accumulate(r, one, spot)
            for a, v in enumerate(self.body.outputs, nest.operands):
                if not nest.gathers(v):
                    self.result(a, spot)

    def begin_near(self, first: int, some: Sequence[Total], spots: Sequence[Env]) -> None:
        """Moments begin with a number that is near what follows."""
        before, self.along = self.along, frozenset[int]()  # which is read apart
        for one, spot in zip(some, spots, strict=True):
            x = self.value(self.nest.reductions[first].node.inputs[0], spot)
            self.add(f"{one.registers[0][0]} = {cast(x, float64).name};")
        self.along = before

    def sweep(
        self, totals: dict[int, list[Total]], every: int, env: Env, spots: Sequence[Env],
        labels: Sequence[int], more: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Combine the rows between `from` and `end`, of which a thread has those that are `every` apart.
        `labels`: of what is counted; `more`: statements behind what finds them."""
        flat = [one for some in totals.values() for one in some]
        self.add(*(line for one in flat for line in one.declared()))
        own, at = self.rows_at("from", labels, "b")
        for first, some in totals.items():
            if self.nest.reductions[first].kind == "moments":
                with self.block("if (from < end)"):
                    self.add(*own)
                    first_spots = [env | spot | at for spot in spots]
                    if len(some) < len(spots):
                        near = {self.nest.near: f"{self.each} * {at[labels[-1]]}"}
                        first_spots = [env | at | near]
                    self.begin_near(first, some, first_spots)
        code, at = self.rows_at("row", labels, "r")
        here = [f"const s64 row = at + {every} * n;", *code, *more]
        inside = {x: name for x, name in at.items() if x != self.nest.near}
        steps = [env | spot | inside for spot in spots]
        with self.block(f"for (s64 at = from; at < end; at += {every * self.at_once})"):
            self.add(*(line for one in flat for line in one.opened()))
            self.batch(self.at_once, here, "row < end", lambda: self.element(totals, steps))
            left = f"(end - at + {every - 1}) / {every}"
            for some in totals.values():
                beside = self.each // len(some)
                count = f"(double)({beside} * ({left} < {self.at_once} ? {left} : {self.at_once}))"
                for one in some if some[0].kind == "moments" else ():
                    one.close(self.code, count)


class ColumnWriter(RowWriter):
    """Writes sums over rows of which each thread has the same columns."""

    def __init__(self, nest: Tiles, long: Collection[int]) -> None:
        each, taken = _beside(nest, nest.near), 0
        for v, r in nest.reductions.items():
            registers = Total(r.kind, nest.body.specs[v].dtype, "").registers
            taken += sum(d.itemsize // 4 for _, d, _ in registers) * (1 + (r.kind == "moments"))
        while each > 1 and each * taken > WAITING:
            each //= 2
        super().__init__(nest, each, long)
        (first, *_) = nest.reductions
        self.groups_of_row = nest.volume(first) // self.each
        self.abreast = min(WARP, 1 << (self.groups_of_row - 1).bit_length())
        self.parts = -(-self.groups_of_row // self.abreast)
        self.high = THREADS // self.abreast
        turns = min(BLOCKS // self.parts, self.rows_inside // (self.high * self.at_once))
        turns = max(1, min(turns, nest.moved // (LEFT * self.waiting)))
        self.rows_each = -(-self.rows_inside // turns)
        self.blocks = -(-self.rows_inside // self.rows_each)

    def kernel(self) -> Kernel:
        nest, near = self.nest, self.nest.near
        self.begin_rows()
        self.add(f"const u32 group = blockIdx.y * {self.abreast} + threadIdx.x % {self.abreast};")
        volume = self.volume(self.columns, self.each)
        self.add(f"const bool is_column = group < {volume};")
        self.add("const u32 within = is_column ? group : 0;")
        env = self.still | self.apart("within", self.columns, self.each)
        self.add(f"const u32 first = {self.each} * {env[near]};", *self.groups())
        rows = self.told("rows", self.rows_inside)
        each = self.told("each", self.rows_each)
        self.add(f"const s64 from = each * blockIdx.x + threadIdx.x / {self.abreast};")
        self.add(f"const s64 next = {each} * (blockIdx.x + 1);")
        self.add(f"const s64 end = is_column ? (next < {rows} ? next : {rows}) : 0;")
        spots = [env | one for one in self.neighbours()]
        self.same_in_rows(spots)
        totals = {
            first: [self.total(first, n=f"{first}_{j}") for j in range(self.each)]
            for first in nest.reductions
        }
        self.sweep(totals, self.high, {}, spots, self.order)
        for first, some in totals.items():
            self.add(*reduce_warp(self.code, some, apart=self.abreast))

            def put(column: str, first: int = first, total: Total = some[0]) -> None:
                self.add(f"const u32 at = blockIdx.y * {self.abreast} + {column} / {self.each};")
                with self.block(f"if (at < {volume})"):
                    spot = self.still | self.apart("at", self.columns, self.each)
                    self.add(
                        f"const u32 found = {self.each} * {spot[near]} + {column} % {self.each};"
                    )
                    self.leave(first, total, spot | {near: "found"})

            def leave(column: str, put: Callable[[str], None] = put) -> list[str]:
                return self.written(lambda: put(column))

            with self.block(""):
                self.add(*merge_warps(self.code, some, self.abreast, leave))
        return self.left("columns", self.parts, blocks=BLOCKS // MULTIPROCESSORS)


class PlaneWriter(RowWriter):
    """Writes sums over neighbours and rows, one for each of what lies between these."""

    def __init__(self, nest: Tiles, long: Collection[int]) -> None:
        super().__init__(nest, _beside(nest, nest.near), long)
        (first, *_) = nest.reductions
        self.groups_inside = self.rows_inside // self.each
        many, at_once = nest.volume(first), THREADS * self.at_once
        self.team = WARP if self.groups_inside <= SOME and many >= BLOCKS else THREADS
        self.parts = -(-many * self.team // THREADS)
        turns = min(2 * BLOCKS // self.parts, self.groups_inside // at_once)
        turns = max(1, min(turns, nest.moved // (LEFT * self.waiting)))
        self.rows_each = -(-self.groups_inside // turns)
        self.blocks = -(-self.groups_inside // self.rows_each)

    def rows_at(self, row: str, labels: Sequence[int], prefix: str) -> tuple[list[str], Env]:
        """Neighbours are counted in groups."""
        near, extent = self.nest.near, self.nest.extents[self.nest.near]
        told = f"(u32){self.told(f'g{near}', extent // self.each)}"
        inner = f"{prefix}{near}"
        code = [f"const u32 {inner} = (u32)({row}) % {told};"]
        if len(labels) == 1:
            return code, {near: inner}
        code.append(f"const u32 {inner}_rest = (u32)({row}) / {told};")
        more, env = super().rows_at(f"{inner}_rest", labels[:-1], prefix)
        return [*code, *more], env | {near: inner}

    def kernel(self) -> Kernel:
        nest, near = self.nest, self.nest.near
        self.begin_rows()
        self.add(f"const u32 lane = threadIdx.x % {self.team};")
        unit = f"blockIdx.y * {THREADS // self.team} + threadIdx.x / {self.team}"
        self.add(
            f"const u32 unit = {unit};", f"const bool is_one = unit < {self.volume(self.columns)};"
        )
        self.add("const u32 within = is_one ? unit : 0;")
        env = self.still | self.apart("within", self.columns, 1)
        rows, each = self.told("rows", self.groups_inside), self.told("each", self.rows_each)
        self.add(f"const s64 from = {each} * blockIdx.x + lane, next = {each} * (blockIdx.x + 1);")
        self.add(f"const s64 end = is_one ? (next < {rows} ? next : {rows}) : 0;")
        self.same_in_rows([env])
        totals = {first: [self.total(first)] for first in nest.reductions}
        first = f"const u32 first = {self.each} * r{near};"
        self.sweep(
            totals, self.team, env, [*self.neighbours()], self.order, [first, *self.groups()]
        )
        every = [one for some in totals.values() for one in some]
        self.add(*reduce_warp(self.code, every))
        if self.team > WARP:
            self.add(*reduce_block(self.code, every))
        with self.block("if (lane == 0 && is_one)"):
            for made, some in totals.items():
                with self.block(""):
                    self.leave(made, some[0], env)
        return self.left("planes", self.parts, blocks=BLOCKS // MULTIPROCESSORS)
