"""Control flow of a program that is being bound: loops, branches and cuts in time, as lines of the function.

    for t2 in range(0, 100, 1):      a loop; its carried values alternate between two buffers
        v1[()] = t2
        f3(c4, v5, n6)
        c4, n6, s7 = n6, s7, n6

Turns that are short are left to machine code, or to what the device repeats."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.device import InTurns, Recorder, Repeated
from ostinato.ops.core.graph import Node
from ostinato.ops.core.layout import Partial, slices
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.spec import Spec, strided_like
from ostinato.ops.flow.control import graph_cost
from ostinato.planner.passes.memory import (
    BUFFERS,
    addends,
    carried_in_place,
    going_on,
    is_update,
    written_specs,
)
from ostinato.planner.plan import Program

from .bound import Row
from .bound_values import Values
from .read_ahead import Step
from .run_progress import BYTES, CALL, FLOPS, Turns

SLICE = 2e-3  # seconds of turns after which others may have the interpreter
SHORT_LOOP_STEPS = 10  # of so many turns each is short enough for what Python does to matter


@dataclass(frozen=True, slots=True)
class Inner:
    """A node with bodies as it is bound: its line in profiles, what its operands and results are called,
    and where in the arena its program begins."""

    program: Program
    k: int
    node: Node
    row: Row
    ins: Sequence[str]
    outs: Sequence[str]
    base: int

    @property
    def bodies(self) -> Sequence[Program]:
        return self.program.bodies[self.k]

    @property
    def body_base(self) -> int:
        return self.base + self.program.bases[self.k]

    @property
    def places(self) -> Sequence[int]:
        """Where what turns need besides begins."""
        return [self.base + offset for offset in self.program.scratch[self.k]]


class ControlFlow(Values):
    """Binds `loop`, `while`, `branch` and `blocks`."""

    def program(
        self,
        program: Program,
        ins: Sequence[str],
        outs: Sequence[str],
        base: int,
        given: Sequence[bool] | None = None,
    ) -> None:
        """Write the lines of a program, such as a body."""
        raise NotImplementedError

    def spare(self, at: Inner, count: int) -> list[str]:
        """The second buffers of carried values; the first ones of those that are updated in place."""
        stays = carried_in_place(at.node, at.bodies)
        return [
            at.outs[j] if j in stays else self.stored(place, self.shape(spec), spec.dtype)
            for j, (place, spec) in enumerate(zip(at.places, at.node.specs[:count], strict=True))
        ]

    def settle_in_place(
        self, inits: Sequence[str], ends: Sequence[str], spare: Sequence[str], row: Row
    ) -> list[str]:
        """Find what carried values begin as: those that are updated in place are brought there."""
        found = list(inits)
        for j, (init, end, other) in enumerate(zip(inits, ends, spare, strict=True)):
            if other == end:
                self.write(f"if {init} is not {end}: copyto({end}, {init})", row)
                found[j] = end
        return found

    def turn(self, c: Sequence[str], n: Sequence[str], s: Sequence[str]) -> None:
        """The written buffer is read next, the other one written; unless somebody else has failed."""
        before = len(self.text)
        if self.communicator.size > 1:
            self.write(f"{self.name('h', self.communicator.check)}()")
        for cj, nj, sj in zip(c, n, s, strict=True):
            if nj != cj:
                self.write(f"{cj}, {nj}, {sj} = {nj}, {sj}, {nj}")
        if self.record is not None:
            self.record.known += len(self.text) - before

    def begin(
        self, inits: Sequence[str], firsts: Sequence[str], seconds: Sequence[str]
    ) -> list[list[str]]:
        """Names for each value as it is, as it becomes, and for the buffer after that; one for what is
        updated in place."""
        names: list[list[str]] = [[], [], []]
        for values in zip(inits, firsts, seconds, strict=True):
            if values[0] == values[1] == values[2]:
                locals_ = [values[0]] * 3
            else:
                locals_ = [self.local(p) for p in "cns"]
                for value, local in zip(values, locals_, strict=True):
                    self.write(f"{local} = {value}")
            for own, local in zip(names, locals_, strict=True):
                own.append(local)
        return names

    def show_carried(self, specs: Sequence[Spec], inits: Sequence[str], *names: list[str]) -> None:
        """Carried values lie in order in their buffers; where they begin elsewhere, nothing is known."""
        for j, (spec, init) in enumerate(zip(specs, inits, strict=True)):
            like = strided_like(self.shape(spec), spec.dtype)
            first = self.strided_like(init)
            for which, name in enumerate(n[j] for n in names):
                known = which > 0 or (first is not None and first.strides == like.strides)
                self.shown[name] = like if known else None

    def loop_(self, at: Inner) -> None:
        node, row, kw = at.node, at.row, at.node.kw
        nc, ns, _ = kw["counts"]
        trips = kw["trips"]
        consts, inits, xs = at.ins[:nc], at.ins[nc : nc + ns], at.ins[nc + ns :]
        ends = at.outs[:ns]
        spare = self.spare(at, ns)
        if trips == 0:
            for end, init in zip(ends, inits, strict=True):
                self.write(f"copyto({end}, {init})", row)
            return
        if self.is_repeated and self.parts is not None and id(node) in self.parts.counted:
            self.counted_(at, spare)
            return
        inits = self.settle_in_place(inits, ends, spare, row)
        begin = len(self.text)
        buffers = [inits, *((ends, spare) if trips % 2 else (spare, ends))]
        c, n, s = self.begin(*buffers)
        self.show_carried(node.specs[:ns], inits, c, n, s)
        index = self.array(self.xp.zeros((), np.int64))
        i = self.local("t")  # "i" are the inputs
        order = f"range({trips - 1}, -1, -1)" if kw["reverse"] else f"range({trips})"
        with self.recorded(c, n, buffers) as record:
            self.write(f"for {i} in {order}:")
            turns = self.turn_by(i, trips, kw["reverse"])
            self.depth += 1
            self.write(f"{index}[()] = {i}")
            record.known += 2
            items = [self.item(x, "x", i) for x in xs]
            yields = [self.item(y, "y", i) if y != "None" else y for y in at.outs[ns:]]
            given = [index, *consts, *c, *items]
            self.program(at.bodies[0], given, [*n, *yields], at.body_base)
            self.turn(c, n, s)
            self.depth -= 1
            turns.last = len(self.text)
        step = _at_once(at.bodies[0])
        if self.is_sequence(record, step):
            self.unwrite(begin)
            last = trips - 1 if kw["reverse"] else -1
            made = record.repeat(self.fixed[index], last)
            t = self.local("t")
            self.write(f"for {t} in range(0, {trips}, {step}):")
            turns = self.turn_by(t, trips)
            self.bind_turns(made, record, f"{t}, min({t} + {step}, {trips})", row)
            turns.last = len(self.text)

    def all_turns(self, kernel: InTurns, names: Sequence[str], row: Row) -> None:
        """A loop that is one kernel, some turns at a time."""
        run, state, t = self.name("g", kernel.run), self.name("v", kernel.state), self.local("u")
        self.write(f"{t} = 0")
        self.write("while True:")
        shown = self.turn_by(t, kernel.turns)
        self.depth += 1
        if self.communicator.size > 1:
            self.write(f"{self.name('h', self.communicator.check)}()")
        end = f"{t} + {kernel.step}"
        end = f"min({end}, {kernel.turns})" if kernel.turns >= 0 else end
        self.write(f"{run}({t}, {end}, {', '.join(names)})", row)
        self.write(f"{t} = int({state}[0])")
        last = f" or {t} == {kernel.turns}" if kernel.turns >= 0 else ""
        self.write(f"if {state}[1]{last}: break")
        self.depth -= 1
        shown.last = len(self.text)

    def counted_(self, at: Inner, spare: Sequence[str]) -> None:
        """A loop whose turns the device counts, where it is repeated."""
        node, row, ends, trips = at.node, at.row, at.outs, at.node.kw["trips"]
        first = len(at.ins) - len(ends)
        consts, inits = at.ins[:first], self.settle_in_place(at.ins[first:], ends, spare, row)
        buffers = [inits, ends, spare]
        c, n, s = self.begin(*buffers)
        self.show_carried(node.specs, buffers[0], c, n, s)
        index, turns = self.array(self.xp.zeros((), np.int64)), self.local("u")
        loop = self.looping(None, trips, node, c, buffers)
        with self.recorded(c, n, buffers):
            self.write(f"{turns} = 0")
            self.write("while True:")
            shown = self.turn_by(turns, trips)
            self.depth += 1
            self.write(f"if {loop}.ends({turns}): break", row)
            self.write(f"{loop}.number({index}, {turns})", row)
            self.write(f"{turns} += 1")
            self.program(at.bodies[0], [index, *consts, *c], n, at.body_base)
            self.turn(c, n, s)
            self.depth -= 1
            shown.last = len(self.text)
        for cj, end in zip(c, ends, strict=True):
            self.write(f"if {cj} is not {end}: copyto({end}, {cj})", row)

    def looping(
        self, test: Any, most: int, node: Node, c: Sequence[str], buffers: Sequence[Sequence[str]]
    ) -> str:
        """A name for who knows whether there is one more turn; what the first one reads is set, unless it is
        updated in place."""
        assert self.parts is not None
        loop = self.parts.capture.loop(test, most)
        self.conditional.append((loop, node))
        name = self.name("l", loop)
        moves = [names for names in zip(c, *buffers, strict=True) if len({*names}) > 1]
        given = [f"({''.join(f'{x}, ' for x in names)})" for names in zip(*moves, strict=True)]
        local, *places = given or ["()"] * 4
        begin = f"{name}.begin({', '.join(places)})"
        self.write(f"{local[1:-1]}= {begin}" if moves else begin)
        return name

    def turn_by(self, name: str, trips: int, reverse: bool = False, begin: int = 0) -> Turns:
        """Note that what follows runs again and again; the variable tells which turn it is."""
        first = trips - 1 if reverse else begin
        made = Turns(len(self.text), name, first, -1 if reverse else 1, max(trips, 0))
        self.map.turns.append(made)
        return made

    def item(self, stack: str, prefix: str, i: str) -> str:
        """A turn's part of an array."""
        name, whole = self.local(prefix), self.strided_like(stack)
        self.write(f"{name} = {stack}[{i}, ...]")
        if whole is not None:
            self.shown[name] = strided_like(whole.shape[1:], whole.dtype, whole.strides[1:])
            if self.record is not None:
                self.record.item(name, stack, whole.strides[0])
        return name

    @contextlib.contextmanager
    def recorded(
        self, c: Sequence[str], n: Sequence[str], buffers: Sequence[Sequence[str]]
    ) -> Iterator[Recorder]:
        """Record what a loop's turns do, timed as a whole; it is no part of what is outside."""
        outer, self.record = self.record, self.device.recorder(self.fixed)
        timed, self.timed = self.timed, False
        self.loops += 1
        for cj, nj, init, first, second in zip(c, n, *buffers, strict=True):
            self.record.carried(cj, init, first, second)
            self.record.carried(nj, first, second, first)
        self.record.stays = len(self.stays)
        yield self.record
        self.record, self.timed = outer, timed
        self.loops -= 1
        if outer is not None:
            outer.lines += 1

    def is_sequence(self, record: Recorder, step: int) -> bool:
        """Decide whether machine code does its turns, if they are short; no operand is kept for them."""
        found = record.is_whole and step >= SHORT_LOOP_STEPS
        if found:
            del self.stays[record.stays :]
        return found

    def bind_turns(self, made: Repeated, record: Recorder, turns: str, row: Row) -> None:
        """In a loop, some turns of another one."""
        given = ", ".join((turns, *record.outside))
        self.depth += 1
        if self.communicator.size > 1:
            self.write(f"{self.name('h', self.communicator.check)}()")
        self.write(f"{self.name('q', made.run)}({given})", row)
        self.depth -= 1

    def blocks_(self, at: Inner, given: Sequence[bool] | None) -> None:
        """Turns whose blocks have the same shapes run the same lines."""
        node, row, body = at.node, at.row, at.bodies[0]
        rank, turns = self.rank, node.kw["turns"]
        ranks = range(rank * turns, (rank + 1) * turns)
        files = [name for name, spec in self.files(at) if spec is not None]
        reader, writer = self.local("q"), self.local("q")
        writes = written_specs(node, body.graph)
        if writes:
            steps = self.name("h", self.buffers(at, len(files), writes, ranks))
            self.write(f"{writer} = WriteBehind({steps})")
        if files:
            steps = self.name("h", self.reads(at, ranks))
            self.write(f"{reader} = ReadAhead({steps}, ({', '.join(files)},))")
        if files or writes:
            self.write("try:")
            self.depth += 1
        shapes = [
            [s.layout.local_shape(s.shape, r) for s in body.graph.specs if s.layout is not None]
            for r in ranks
        ]
        ends = [t for t in range(1, turns) if shapes[t] != shapes[t - 1]]
        for first, end in itertools.pairwise((0, *ends, turns)):
            self.rank = ranks[first]
            kept = self.kept(at, len(files) + len(writes))
            self.rank, self.ends = rank, {j: own for j, _, own in kept}
            for _, inner, own in () if first else kept:
                self.take_over(inner, own, row)
            t = self.local("u")
            self.write(f"for {t} in range({end - first}):")
            shown = self.turn_by(t, turns, begin=first)
            self.depth += 1
            self.rank, self.turns = ranks[first], (t, list(ranks[first:end]))
            read, made = ([self.local("x") for _ in each] for each in (files, writes))
            if files:
                self.write(f"{', '.join(read)}, = {reader}.take()", row)
                if not self.device.is_host:
                    move = self.name("h", self.device.from_host)
                    self.write(f"{', '.join(read)}, = map({move}, ({', '.join(read)},))", row)
            if files:
                self.waited(node, "wait for a block")
            if writes:
                self.write(f"{', '.join(made)}, = {writer}.take()", row)
                self.waited(node, "wait for a write")
                self.behind |= dict.fromkeys(made, writer)
            for name, spec in zip(made, writes, strict=True):
                self.shown[name] = strided_like(self.shape(spec), spec.dtype)
            self.one_turn(at, given, not first, read, made)
            self.depth -= 1
            shown.last = len(self.text)
            self.rank, self.turns = rank, ("", [])
        for _, inner, own in kept:
            self.hand_over(inner, own, row)
        self.ends = {}
        if writes:
            self.write(f"{writer}.finish()", row)
            self.waited(node, "wait for a write")
        if files or writes:
            self.depth -= 1
            self.write("finally:")
        for name in [name for name, does in ((reader, files), (writer, writes)) if does]:
            self.write(f"    {name}.close()")

    def kept(self, at: Inner, turned: int) -> list[tuple[int, Node, tuple[Any, ...]]]:
        """The nodes in turns that go on from what was before, as all turns would see them at once, and
        where they keep that: behind what is read and written in turn, and addends."""
        body = at.bodies[0].graph
        places = iter(at.places[BUFFERS * turned + len(addends(at.node)) :])
        found = []
        for j in going_on(body):
            node = body.nodes[j]
            needs, _ = self.scratch(body, node)
            own = [self.place(next(places), s.shape, s.dtype) for s in needs]
            specs = [s.at(s.layout.without_last_axis) for s in node.specs if s.layout is not None]
            seen = Node(node.op, (), node.params, tuple(specs), node.line)
            found.append((j, seen, tuple(own)))
        return found

    def waited(self, node: Node, what: str) -> None:
        """In profiles, the wait for a file is a row of its own."""
        if self.timed and self.row_of is not None:
            wait = self.name("r", self.row_of(node, self.depth, "file", what))
            self.write(f"{wait}.span(device, t0, mark()); t0 = mark()")

    def files(self, at: Inner) -> Iterator[tuple[str, Spec | None]]:
        """The operands of `blocks`; with the spec of their blocks, if they lie in files."""
        for name, v, spec in zip(at.ins, at.node.inputs, at.bodies[0].graph.inputs, strict=True):
            lies = at.program.graph.specs[v].layout
            yield name, spec if lies is not None and lies.stored else None

    def reads(self, at: Inner, ranks: Sequence[int]) -> list[Step]:
        """Where the block of each file goes in each turn, and which block it is."""
        specs = [spec for _, spec in self.files(at) if spec]
        steps, places = list[Step](), at.places
        for t, r in enumerate(ranks):
            step = []
            for j, spec in enumerate(specs):
                assert spec.layout is not None
                place = places[BUFFERS * j + t % BUFFERS]
                form = spec.layout.local_shape(spec.shape, r), spec.dtype
                out = self.place(place, *form) if self.device.is_host else np.empty(*form)
                step.append((out, spec.layout.box(spec.shape, r)))
            steps.append(step)
        return steps

    def buffers(
        self, at: Inner, files: int, writes: Sequence[Spec], ranks: Sequence[int]
    ) -> list[list[Any]]:
        """Where each turn makes what is written."""
        places = at.places[BUFFERS * files :]
        return [
            [
                self.place(places[BUFFERS * j + t % BUFFERS], shape, spec.dtype)
                for j, spec in enumerate(writes)
                if spec.layout is not None
                for shape in (spec.layout.local_shape(spec.shape, r),)
            ]
            for t, r in enumerate(ranks)
        ]

    def one_turn(
        self,
        at: Inner,
        given: Sequence[bool] | None,
        begins: bool,
        read: Sequence[str],
        written: Sequence[str],
    ) -> None:
        body, node = at.bodies[0], at.node
        t, _ = self.turns
        files, unread = list(self.files(at)), iter(read)
        items = []
        around = [at.program.graph.specs[v] for v in node.inputs]
        for (name, file), outer, spec in zip(files, around, body.graph.inputs, strict=True):
            items.append(self.block(name, outer, spec) if file is None else next(unread))
            if file is not None:
                self.shown[items[-1]] = strided_like(self.shape(spec), spec.dtype)
        made: list[str] = []
        states: list[tuple[str, list[str], list[str]]] = []  # monoids, what they have, what comes
        places = iter(at.places[BUFFERS * (len(read) + len(written)) :])
        for out, outer, spec in zip(at.outs, node.specs, node.kw["body"].out_specs, strict=True):
            assert spec.layout is not None
            split = spec.layout.splits[-1]
            if not isinstance(split, Partial):
                made.append(self.block(out, outer, spec))
                continue
            addend = self.stored(next(places), self.shape(spec), spec.dtype)
            made.append(addend)
            if begins:
                made[-1] = self.local("y")
                self.shown[made[-1]] = strided_like(self.shape(spec), spec.dtype)
                self.write(f"{made[-1]} = {addend} if {t} else {out}")
            if not states or len(states[-1][1]) == MONOIDS[states[-1][0]].width:
                states.append((split.monoid, [], []))
            states[-1][1].append(out)
            states[-1][2].append(addend)
        self.program(body, items, [*made, *written], at.body_base, given)
        for monoid, has, comes in states:
            f = self.name("m", MONOIDS[monoid].combine)
            state, addend = (f"({', '.join(names)},)" for names in (has, comes))
            when = f"if {t}: " if begins else ""
            self.write(f"{when}{f}(xp, {state}, {state}, {addend})", at.row)

    def block(self, name: str, outer: Spec, spec: Spec) -> str:
        """Name what one turn sees of an array that lies outside."""
        layout, whole, (t, ranks) = spec.layout, outer.layout, self.turns
        assert layout is not None
        assert whole is not None
        if layout.without_last_axis is whole and not isinstance(layout.splits[-1], int):
            return name
        count = layout.mesh[-1]
        cuts = [slices(layout.box(spec.shape, r), whole.box(spec.shape, r // count)) for r in ranks]
        made = self.local("x")
        lies = self.strided_like(name)
        if lies is not None:
            self.shown[made] = strided_like(self.shape(spec), spec.dtype, lies.strides)
        self.write(f"{made} = {name}[{self.name('c', cuts)}[{t}]]")
        return made

    def while_(self, at: Inner) -> None:
        node, row, ins, outs, kw = at.node, at.row, at.ins, at.outs, at.node.kw
        nc, ns = kw["counts"]
        body, condition = at.bodies
        spare = self.spare(at, ns)
        inits = self.settle_in_place(ins[nc:], outs, spare, row)
        begin = len(self.text)
        buffers = [inits, outs, spare]
        c, n, s = self.begin(*buffers)
        self.show_carried(node.specs, inits, c, n, s)
        test = self.array(self.xp.zeros((), np.bool_))
        inner = at.body_base
        turns = self.local("u")
        most = kw["most"]
        limit = f" or {turns} == {most}" if most >= 0 else ""
        ends = f"not {test}[()]{limit}"
        if self.parts is not None and self.is_repeated:
            name = self.looping(self.fixed[test], most, node, c, buffers)
            ends = f"{name}.ends({turns})"
        with self.recorded(c, n, buffers) as record:
            self.write(f"{turns} = 0")
            self.write("while True:")
            shown = self.turn_by(turns, most)
            self.depth += 1
            self.program(condition, [*ins[:nc], *c], [test], inner)
            asked = record.count
            self.write(f"if {ends}: break", row)
            self.write(f"{turns} += 1")
            record.known += 4
            self.program(body, [*ins[:nc], *c], n, inner)
            self.turn(c, n, s)
            self.depth -= 1
            shown.last = len(self.text)
        step = _at_once(body)
        if asked and self.is_sequence(record, step):
            self.unwrite(begin)
            made = record.repeat_while(asked, self.fixed[test])
            end = f"{turns} + {step}"
            end = f"min({end}, {most})" if most >= 0 else end
            state = self.name("v", made.state)
            self.write(f"{turns} = 0")
            self.write("while True:")
            shown = self.turn_by(turns, most)
            self.bind_turns(made, record, f"{turns}, {end}", row)
            self.write(f"    {turns} = int({state}[0])")
            self.write(f"    if {state}[1]{limit}: break")
            shown.last = len(self.text)
            for cj, init, first, second in zip(c, *buffers, strict=True):
                if cj != first:
                    self.write(
                        f"{cj} = {first} if {turns} % 2 else {second} if {turns} else {init}"
                    )
        for cj, end in zip(c, outs, strict=True):
            if cj != end:
                self.write(f"if {cj} is not {end}: copyto({end}, {cj})", row)

    def branch_(self, at: Inner) -> None:
        otherwise, then = at.bodies
        ins, flag = at.ins, f"{at.ins[0]}[()]"
        depth = self.depth
        if self.parts is not None and self.is_repeated:
            branch, flag = self.parts.capture.branch(), self.local("b")
            self.conditional.append((branch, at.node))
            self.write(f"for {flag} in {self.name('l', branch)}.sides({ins[0]}):", at.row)
            self.depth += 1
        for head, side in ((f"if {flag}:", then), ("else:", otherwise)):
            self.write(head)
            self.depth += 1
            self.write("pass")
            self.program(side, ins[1:], at.outs, at.body_base)
            self.depth -= 1
        self.depth = depth


def _at_once(program: Program) -> int:
    """Turns in a slice of time."""
    body = program.graph
    flops, moved = graph_cost(body)
    moved -= sum(2 * n.specs[0].nbytes for k, n in enumerate(body.nodes) if is_update(program, k))
    seconds = flops / FLOPS + moved / BYTES + CALL * (1 + len(body.nodes))
    return max(1, int(SLICE / seconds))
