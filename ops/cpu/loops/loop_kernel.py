"""Loops as one kernel: all turns, and all that a turn does, in machine code of their own.

A body's values are made as they are needed. A number is a register. What is elementwise, or looks at
another value, is made where it is read, and what is read again, or elsewhere than it is made, lies in the
kernel's own memory (`Buffer`). Values of one shape, of which each reads the others in step only, are made
in one loop over elements:

    x' = x + far * p        for i: x[i] = x[i] + far * p[i]; r[i] = r[i] - far * ap[i]
    r' = r - far * ap

What is carried is written where it lies if nobody reads its old value later, or only the element that is
written. Else it goes to a second buffer, and the two change places. An update of some elements writes
these. So the kernel does what the turns' operations say, element by element in their order; sums are free
in order within CHUNK_ELEMENTS, as in all kernels."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.device import InTurns
from ostinato.ops.core.graph import Graph, Items, Node
from ostinato.ops.core.registry import OPS, Scratch
from ostinato.ops.core.spec import Shape, Spec, int8, int64, real_of, strided_like
from ostinato.ops.cpu.jit.code import address_of, symbol
from ostinato.ops.cpu.jit.emitter import loop_facts
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits
from ostinato.ops.cpu.jit.parallel import CALLS, TABLES
from ostinato.ops.flow.control import FLOW, ONE_KERNEL, WHOLE
from ostinato.ops.jit.values import Unsupported, Value

from .loop_operations import LOOKS, Operations
from .loop_tiles import TiledLoop, spec_of, tiles
from .loop_values import Buffer, Carried, Frame, Index, Seen, Strided, Strides, is_whole
from .loop_writer import SCOPES

# Of single elements in a turn; with more, other kernels' vectors are worth their calls.
MAX_SCALAR_INSTRUCTIONS = 10_000
MAX_OPERATIONS = 1000  # in all; what is longer compiles too long
SLICE_SECONDS = 2e-3  # after which others may have the interpreter
INSTRUCTION_SECONDS = 2.5e-10  # at most, on average, as most of an index are none
UNKNOWN_TURNS = 100  # of a loop inside that ends by itself
# Facts: turns, threads; first turn and end of this call; where it came, and whether the condition ended it;
# the memory.
FACTS = 8


class LoopKernel(Operations):
    """Writes a loop."""

    def made(self, frame: Frame, k: int, node: Node, ins: list[Seen]) -> Sequence[Seen]:
        op, spec = OPS[node.op], node.specs[0] if node.specs else None
        if spec is None or not all(s.size for s in node.specs):
            raise Unsupported(node.op)
        if op.element.source:
            return [self.source(node, spec)]
        if node.op in LOOKS:
            return [self.looked(node, ins[0], spec)]
        if op.scalar and not op.element.draws and len(node.specs) == 1:
            return [self.elementwise(node, ins, spec)]
        if op.reduce and op.product is None and len(ins) == 1:
            return self.reduced(frame, k, node, ins[0])
        if op.reduce and op.product and op.product.gemm:
            return [self.product(frame, k, node, *ins)]
        if op.moves.selects == "places":
            return [self.taken(node, spec, *ins)]
        if node.op == "put":
            return [self.updated(frame, k, node, *ins)]
        self.is_nested |= node.op in FLOW and (node.op != "loop" or self.is_inside)
        if node.op == "loop":
            return self.inner_loop(frame, k, node, ins)
        if node.op == "while":
            return self.inner_while(frame, k, node, ins)
        if node.op == "branch":
            return self.branch(frame, k, node, ins)
        if op.moves.pieces is not None:
            pieces = op.moves.pieces([x.shape for x in ins], **node.kw)
            if pieces is not None and pieces[0].picks:
                return [self.box(spec, pieces[0], ins)]
            if pieces is not None:
                return [self.together(frame, k, node, ins, pieces)]
        raise Unsupported(node.op)

    # -- loops and branches inside
    def inner_loop(self, frame: Frame, k: int, node: Node, ins: list[Seen]) -> list[Seen]:
        kw, outs = node.kw, list(frame.graph.outs(k))
        nc, ns, _ = kw["counts"]
        if not kw["trips"]:
            raise Unsupported("no turns")
        carried, consts, items, ends = self.entered(frame, node, ins, nc, ns, outs)
        stacks, reads = [], dict.fromkeys((r for x in ins for r in x.reads), False)
        for v in outs[ns:]:
            spec = frame.graph.specs[v].bare
            stacks.append((self.home(frame, v, reads), spec))
        self.flush()
        with self.loop(str(kw["trips"])) as t:
            i = self.counted(t, kw["trips"], kw["reverse"])
            self.turn(kw["body"], i, consts, carried, items, stacks)
        made = self.left(carried, ends)
        return [*made, *(self.stored(spec, to) for to, spec in stacks)]

    def inner_while(self, frame: Frame, k: int, node: Node, ins: list[Seen]) -> list[Seen]:
        kw, outs = node.kw, list(frame.graph.outs(k))
        nc, ns = kw["counts"]
        carried, consts, _, ends = self.entered(frame, node, ins, nc, ns, outs)
        turns = self.code.cell(int64)
        self.code.put(turns, self.code.lines.constant(0, int64))
        is_bounded = kw["most"] >= 0
        scale, before = self.scale, self.instructions
        self.scale *= max(kw["most"], 1) if is_bounded else UNKNOWN_TURNS
        with self.code.until() as ends_if, self.scope():
            now = self.code.get(turns, int64)
            if is_bounded:
                ends_if((now >= kw["most"]).name)
            self.asked(kw["condition"], kw["body"], consts, carried, ends_if)
            self.code.put(turns, now + 1)
            if not is_bounded:
                self.pause((self.instructions - before) // self.scale)
        self.scale = scale
        return self.left(carried, ends)

    def pause(self, instructions: int) -> None:
        """After a turn of so many: if all since the last pause took long, others have the interpreter, and
        a signal may end the kernel. Nobody knows before how long such a loop takes."""
        code = self.code
        if not self.worked:
            self.worked = code.cell(int64)
            code.entry.append(f"  store i64 0, ptr {self.worked}")
            code.lines.declared |= {
                "declare ptr @PyEval_SaveThread()",
                "declare void @PyEval_RestoreThread(ptr)",
                "declare i32 @PyErr_CheckSignals()",
            }
        count = code.get(self.worked, int64) + max(instructions, 1)
        code.put(self.worked, count)
        with code.when((count >= int(SLICE_SECONDS / INSTRUCTION_SECONDS)).name):
            code.put(self.worked, code.lines.constant(0, int64))
            state = code.let("call ptr @PyEval_SaveThread()")
            code.add(f"call void @PyEval_RestoreThread(ptr {state})")
            signal = code.let("call i32 @PyErr_CheckSignals()")
            n = code.names = code.names + 1
            ends = code.let(f"icmp ne i32 {signal}, 0")
            code.add(f"br i1 {ends}, label %raised, label %goes_on_{n}")
            code.lines.text.append(f"goes_on_{n}:")

    def asked(
        self,
        condition: Graph,
        body: Graph,
        consts: Sequence[Seen],
        carried: Sequence[Carried],
        ends_if: Callable[[str], None],
    ) -> None:
        """A turn of a loop that ends by itself."""
        states = self.begun(carried)
        with self.writing(()):
            (go,) = self.body(condition, [*consts, *states])
            self.flush()
        ends_if((~self.number(go)).name)
        with self.writing(carried):
            self.finish(carried, self.body(body, [*consts, *states], carried))

    def entered(
        self, frame: Frame, node: Node, ins: list[Seen], nc: int, ns: int, outs: list[int]
    ) -> tuple[list[Carried], list[Seen], list[Seen], list[Strided | None]]:
        """Set up a loop: its carried values, constants and scanned operands, and where carried values end."""
        consts, items = [self.solid(x) for x in ins[:nc]], [self.solid(x) for x in ins[nc + ns :]]
        carried, ends = list[Carried](), list[Strided | None]()
        for j, x in enumerate(ins[nc : nc + ns]):
            spec = Spec(x.shape, x.dtype)
            if x.is_number:
                cell = self.code.cell(x.dtype)
                self.code.put(cell, self.number(x))
                carried.append(Carried(spec, cell))
                ends.append(None)
                continue
            others = [
                y
                for n, y in enumerate((*consts, *items, *ins[nc : nc + ns]))
                if n != len(consts) + len(items) + j
            ]
            to = self.taken_over(frame, x, others)
            if to is None:
                reads = dict.fromkeys((r for y in (x, *others) for r in y.reads), False)
                to = self.home(frame, outs[j], reads)
                self.put(x, to)
            ends.append(to)
            carried.append(self.buffers(spec, to.at))
        self.flush()
        for c, end in zip(carried, ends, strict=True):
            if c.room is not None and end is not None:
                self.code.add(f"store ptr {end.at}, ptr {c.room.cell}")
        return carried, consts, items, ends

    def taken_over(self, frame: Frame, x: Seen, others: Sequence[Seen]) -> Strided | None:
        """The memory that a value leaves to what follows, if nobody else reads it."""
        if x.lies is None or x.lies.room is None or not is_whole(x):
            return None
        room = x.lies.room
        later = [*others, *(frame.values[u] for u in frame.alive())]
        if room not in self.writable or any(room in y.reads for y in later):
            return None
        return x.lies

    def buffers(self, spec: Spec, first: str) -> Carried:
        """Two of them, of which the first is there."""
        cells = [self.code.name("buffer") for _ in range(2)]
        self.code.entry += [f"  {cell} = alloca ptr" for cell in cells]
        first_one, second = (Buffer(first, spec.size, cell) for cell in cells)
        return Carried(spec, "", first_one, second)

    def begun(self, carried: Sequence[Carried]) -> list[Seen]:
        """The state as a turn finds it."""
        states = []
        for c in carried:
            if c.room is None or c.other is None:
                states.append(self.known(self.code.get(c.cell, c.spec.dtype), c.spec.shape))
                continue
            for room in (c.room, c.other):
                room.at = self.code.let(f"load ptr, ptr {room.cell}", "at")
            strides = strided_like(c.spec.shape, c.spec.dtype).strides
            states.append(self.stored(c.spec, Strided(c.room.at, strides, c.room)))
        return states

    def turn(
        self,
        body: Graph,
        index: Value,
        consts: Sequence[Seen],
        carried: Sequence[Carried],
        items: Sequence[Seen],
        stacks: Sequence[tuple[Strided, Spec]],
    ) -> None:
        i = index.name
        given = [self.known(index), *consts, *self.begun(carried)]
        given += [self.item(x, i) for x in items]
        ys = []
        for to, spec in stacks:
            room = Buffer(self.part(to, 0, i).at, math.prod(spec.shape[1:]))
            ys.append(Carried(Spec(spec.shape[1:], spec.dtype), "", room))
        with self.writing(carried):
            self.finish([*carried, *ys], self.body(body, given, [*carried, *ys]))

    def item(self, x: Seen, i: str) -> Seen:
        """A turn's part of what a loop goes through."""
        spec, reads = Spec(x.shape[1:], x.dtype), dict.fromkeys(x.reads, False)
        if x.lies is not None:
            found = self.stored(spec, self.part(x.lies, 0, i), reads)
        else:

            def element(rest: Index) -> Value:
                return self.element(x, (i, *rest))

            found = Seen(spec.shape, spec.dtype, element, reads, work=x.work)
        return self.known(self.number(found), spec.shape) if spec.size == 1 else found

    @contextlib.contextmanager
    def writing(self, carried: Sequence[Carried]) -> Iterator[None]:
        """A body that may write over what it carries, and nothing else of what is outside."""
        outer, before, inside = self.writable, len(self.code.lines.text), self.is_inside
        self.is_inside = any(c.cell or c.other is not None for c in carried)
        self.writable = {r for c in carried for r in (c.room, c.other) if r is not None}
        yield
        self.writable, self.is_inside = outer, inside
        self.instructions += self.scale * (len(self.code.lines.text) - before)

    def finish(self, carried: Sequence[Carried], results: Sequence[Seen]) -> None:
        """Put what a turn made where the next one finds it."""
        moved, swapped, numbers = list[tuple[Seen, Strided]](), list[Carried](), list[Any]()
        for c, x in zip(carried, results, strict=False):
            if c.room is None and c.other is None and c.cell:
                numbers.append((c.cell, self.number(x)))
            if c.room is None:
                continue
            if (
                c.other is not None
                and x.lies is not None
                and x.lies.room is c.other
                and is_whole(x)
            ):
                swapped.append(c)
                continue
            strides = strided_like(c.spec.shape, c.spec.dtype).strides
            moved.append((x, Strided(c.room.at, strides, c.room)))
        self.arrive(moved)
        for cell, value in numbers:
            self.code.put(cell, value)
        for c in swapped:
            assert c.room is not None
            assert c.other is not None
            self.code.add(f"store ptr {c.other.at}, ptr {c.room.cell}")
            self.code.add(f"store ptr {c.room.at}, ptr {c.other.cell}")

    def arrive(self, pairs: Sequence[tuple[Seen, Strided]]) -> None:
        """Values to where they are read next."""
        left = [(x, to) for x, to in pairs if x.lies is None or x.lies != to]
        rooms = [to.room for _, to in left]
        apart = []
        for n, (x, to) in enumerate(left):
            clash = any(r in x.reads for m, r in enumerate(rooms) if m != n and r is not None)
            assert to.room is not None
            x = self.copied(x) if clash or not x.reads.get(to.room, True) else x
            apart.append((x, to))
        if any(x is not y for (x, _), (y, _) in zip(left, apart, strict=True)):
            self.flush()
        for x, to in apart:
            self.put(x, to)
        self.flush()

    def left(self, carried: Sequence[Carried], ends: Sequence[Strided | None]) -> list[Seen]:
        """Return a loop's results."""
        made = []
        for c, end in zip(carried, ends, strict=True):
            if c.room is None or c.other is None or end is None:
                made.append(self.known(self.code.get(c.cell, c.spec.dtype), c.spec.shape))
                continue
            self.brought(c, end)
            made.append(self.stored(c.spec, end))
        return made

    def brought(self, c: Carried, end: Strided) -> None:
        """From the second buffer to where a loop ends, if it is there."""
        assert c.room is not None
        assert c.other is not None
        if not c.is_other_used:
            return
        own = self.allocate(c.spec)
        self.code.entry.append(f"  store ptr {own.at}, ptr {c.other.cell}")
        at = self.code.let(f"load ptr, ptr {c.room.cell}", "at")
        apart = self.code.let(f"icmp ne ptr {at}, {end.at}")
        with self.code.when(apart), self.scope():
            strides = strided_like(c.spec.shape, c.spec.dtype).strides
            self.bring(self.stored(c.spec, Strided(at, strides, c.other)), c.spec, end)
            self.code.add(f"store ptr {own.at}, ptr {c.other.cell}")

    def branch(self, frame: Frame, k: int, node: Node, ins: list[Seen]) -> list[Seen]:
        flag = self.number(ins[0])
        operands = [self.solid(x) for x in ins[1:]]
        self.flush()
        cells, ends, homes = list[str](), list[Strided | None](), list[Carried]()
        taken = set[Buffer]()
        for v in frame.graph.outs(k):
            spec = frame.graph.specs[v].bare
            cells.append(self.code.cell(spec.dtype) if spec.size == 1 else "")
            end: Strided | None = None
            for x in operands if spec.size != 1 else ():
                others = [y for y in operands if y is not x]
                if (x.shape, x.dtype) == (spec.shape, spec.dtype):
                    end = self.taken_over(frame, x, others)
                    if end is not None and end.room not in taken:
                        break
                    end = None
            if end is None and spec.size != 1:
                reads = dict.fromkeys((r for x in operands for r in x.reads), False)
                end = self.home(frame, v, reads)
            if end is not None and end.room is not None:
                taken.add(end.room)
            ends.append(end)
            homes.append(Carried(spec, "", None if end is None else end.room))
        for condition, side in ((flag, node.kw["then"]), (~flag, node.kw["otherwise"])):
            with self.code.when(condition.name), self.scope():
                writable, self.writable = self.writable, {*taken}
                results = self.body(side, operands, homes)
                for cell, x in zip(cells, results, strict=True):
                    if cell:
                        self.code.put(cell, self.number(x))
                self.arrive(
                    [(x, to) for x, to in zip(results, ends, strict=True) if to is not None]
                )
                self.writable = writable
        made = []
        for v, cell, end in zip(frame.graph.outs(k), cells, ends, strict=True):
            spec = frame.graph.specs[v].bare
            if end is None:
                made.append(self.known(self.code.get(cell, spec.dtype), spec.shape))
            else:
                made.append(self.stored(spec, end))
        return made

    def counted(self, turn: str, trips: int, reverse: bool) -> Value:
        """The number of the element that is a turn's."""
        t = Value(self.code.lines, turn, int64)
        return self.code.lines.constant(trips - 1, int64) - t if reverse else t

    # -- the whole
    def kernel(self, node: Node, given: Sequence[tuple[Spec, Strides]]) -> None:
        """All turns from the first to the last that a call is asked for."""
        code, kw = self.code, node.kw
        if not all(spec.size for spec, _ in given):
            raise Unsupported("nothing")
        if node.op == WHOLE:
            self.program(node, given)
            return
        nc, ns = kw["counts"][:2]
        count = len(node.inputs)
        lies = [Strided(f"%data_{n}", strides) for n, (_, strides) in enumerate(given)]
        begin, end = (self.fact(n, "i64") for n in (2, 3))

        with code.when(code.let(f"icmp eq i64 {begin}, 0")):
            for j in range(ns):
                first, out = lies[nc + j], lies[count + j]
                with code.when(code.let(f"icmp ne ptr {first.at}, {out.at}")), self.scope():
                    spec = given[nc + j][0]
                    own = Strided(first.at, first.strides, Buffer(first.at, spec.size))
                    self.bring(self.stored(spec, own), spec, out)
        self.instructions = self.slow = 0  # of turns, not of what is copied before the first
        if node.op == "fused_loop":
            cut = tiles(node, *(tuple(x) for x in zip(*given, strict=True)))
            if cut is None:
                carried = self.counting(node, kw["body"], given, lies, begin, end)
            else:
                carried = self.run_tiles(node, cut, given, lies, begin, end)
            for c, out in zip(carried, lies[count:], strict=False):
                if c.room is None:
                    code.store(code.get(c.cell, c.spec.dtype), out.at)
            code.add(f"store i64 {end}, ptr {self.fact_at(4)}")
            return
        consts, carried, _ = self.whole(node, given, lies)
        turns = code.cell(int64)
        code.put(turns, Value(code.lines, begin, int64))
        with code.until() as ends_if, self.scope():
            now = code.get(turns, int64)
            code.add(f"store i64 {now.name}, ptr {self.fact_at(4)}")
            ends_if((now >= Value(code.lines, end, int64)).name)
            code.add(f"store i64 1, ptr {self.fact_at(5)}")
            self.asked(kw["condition"], kw["body"], consts, carried, ends_if)
            code.add(f"store i64 0, ptr {self.fact_at(5)}")
            code.put(turns, now + 1)
        for c, out in zip(carried, lies[count:], strict=False):
            if c.room is None:
                code.store(code.get(c.cell, c.spec.dtype), out.at)
            else:
                self.brought(c, out)

    def place_operand(self, spec: Spec, lies: Strided) -> Seen:
        """An operand, of which a number is read at once."""
        x = self.stored(spec, lies)
        return self.known(self.number(x), spec.shape) if spec.size == 1 else x

    def whole(
        self, node: Node, given: Sequence[tuple[Spec, Strides]], lies: Sequence[Strided]
    ) -> tuple[list[Seen], list[Carried], list[Seen]]:
        """Constants, the state, and what a loop goes through, of operands and results that lie so."""
        (nc, ns), count, code = node.kw["counts"][:2], len(node.inputs), self.code
        consts = [self.place_operand(given[n][0], lies[n]) for n in range(nc)]
        items = [self.stored(given[n][0], lies[n]) for n in range(nc + ns, count)]
        carried = []
        for j in range(ns):
            spec, out = given[count + j][0], lies[count + j]
            if spec.size == 1:
                carried.append(Carried(spec, code.cell(spec.dtype)))
                code.put(carried[-1].cell, code.load(out.at, spec.dtype))
            else:
                carried.append(self.buffers(spec, out.at))
                code.add(f"store ptr {out.at}, ptr {carried[-1].room.cell}")  # type: ignore[union-attr]
        return consts, carried, items

    def counting(
        self,
        node: Node,
        body: Graph,
        given: Sequence[tuple[Spec, Strides]],
        lies: Sequence[Strided],
        begin: str,
        end: str,
    ) -> list[Carried]:
        """These turns of a loop that counts them; its state, of which numbers are in their cells."""
        kw, (_, ns, _), count = node.kw, node.kw["counts"], len(node.inputs)
        consts, carried, items = self.whole(node, given, lies)
        stacks = [(lies[n], given[n][0].bare) for n in range(count + ns, len(lies))]
        with self.code.loop(begin, end) as t, self.scope():
            i = self.counted(t, kw["trips"], kw["reverse"])
            self.turn(body, i, consts, carried, items, stacks)
        for c, out in zip(carried, lies[count:], strict=False):
            if c.room is not None:
                self.brought(c, out)
        return carried

    def run_tiles(
        self,
        node: Node,
        cut: TiledLoop,
        given: Sequence[tuple[Spec, Strides]],
        lies: Sequence[Strided],
        begin: str,
        end: str,
    ) -> list[Carried]:
        """Run all turns for some rows, then for the next ones."""
        self.is_tiled, before = True, self.instructions
        sizes = [(spec_of(s.bare, a, cut.rows), steps)
                 for (s, steps), a in zip(given, cut.axes, strict=True)]  # fmt: skip
        with self.loop(str(cut.many)) as tile:
            first = self.times(tile, cut.rows)
            parts = [x if a is None else self.moved(x, {a: first})
                     for x, a in zip(lies, cut.axes, strict=True)]  # fmt: skip
            carried = self.counting(node, cut.body, sizes, parts, begin, end)
            self.pause((self.instructions - before) // self.scale * node.kw["trips"])
        return carried

    def program(self, node: Node, given: Sequence[tuple[Spec, Strides]]) -> None:
        """A graph in which loops are some of the operations."""
        count, values = len(node.inputs), list[Seen]()
        lies = [Strided(f"%data_{n}", strides) for n, (_, strides) in enumerate(given)]
        for (spec, _), own in zip(given[:count], lies, strict=False):
            x = self.stored(spec, own)
            values.append(self.known(self.number(x), spec.shape) if spec.size == 1 else x)
        ends = [
            Carried(spec, "", Buffer(own.at, spec.size))
            for (spec, _), own in zip(given[count:], lies[count:], strict=True)
        ]
        with self.writing(ends):
            self.finish(ends, self.body(node.kw["body"], values, ends))

    def bring(self, x: Seen, spec: Spec, to: Strided) -> None:
        with self.loops(spec.shape, real_of(spec.dtype).itemsize) as index:
            self.code.store(self.element(x, index), self.address(to, index))

    def fact_at(self, n: int) -> str:
        return self.code.let(f"getelementptr i64, ptr %meta, i64 {n}", "fact")

    def fact(self, n: int, kind: str) -> str:
        return self.code.let(f"load {kind}, ptr {self.fact_at(n)}", "fact")

    def text(self, many: int) -> str:
        code = self.code
        data = []
        for n in range(many):
            data += [
                f"  %object_{n} = call ptr @array(ptr %args, i64 {n})",
                f"  %data_{n} = call ptr @array(ptr %object_{n}, i64 2)",
            ]
        ends = [
            *("  call void @Py_IncRef(ptr @none)", "  ret ptr @none", "outside:"),
            *(
                f"  %{name} = load i64, ptr {at}"
                for name, at in (("at", self.place), ("of", self.size))
            ),
            f"  %words = load ptr, ptr {self.said}",
            "  %said = call ptr (ptr, ptr, ...) @PyErr_Format(ptr @index_error, ptr %words, i64 %at, i64 %of)",
            *("  br label %raised", "raised:", "  ret ptr null", "}"),
        ]
        allocas = [line for line in code.entry if " alloca " in line]
        rest = [line for line in code.entry if " alloca " not in line]
        head = _HEAD.replace("MANY", str(many))
        lines = [
            *(head, *allocas, *data, *rest, "  br label %start", "start:"),
            *(*code.lines.text, *ends, *sorted(code.lines.declared)),
            *("!0 = distinct !{!0, !2}", "!1 = distinct !{}"),
            *('!2 = !{!"llvm.loop.parallel_accesses", !1}', loop_facts(vector_bits())),
            *SCOPES,
        ]
        return TABLES + CALLS + "\n".join(lines)


_HEAD = """
declare void @Py_IncRef(ptr)
declare ptr @PyErr_Format(ptr, ptr, ...)
@none = external global i8
@index_error = external global i8

define ptr @run(ptr %self, ptr %args, i64 %given) {
  %right = call i1 @are_arrays(ptr %args, i64 %given, i64 MANY)
  br i1 %right, label %good, label %bad
bad:
  ret ptr null
good:
  %meta = call ptr @array(ptr %self, i64 2)
  %made = call ptr @turns(ptr %args, ptr %meta)
  ret ptr %made
}

define internal ptr @turns(ptr %args, ptr %meta) {
entry:
  %room = call ptr @array(ptr %meta, i64 6)"""


# -- functions -----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Written:
    """A loop's text, and the memory that it needs."""

    text: str
    bytes: int
    instructions: int  # of a turn, about
    is_tiled: bool  # and gives the interpreter away from tile to tile


@lru_cache(512)
def written(node: Node, specs: tuple[Spec, ...], strides: tuple[Strides, ...]) -> Written | None:
    """A loop over operands and results that lie so; None if it cannot be one kernel."""
    writer = LoopKernel()
    try:
        with np.errstate(all="ignore"):
            writer.kernel(node, list(zip(specs, strides, strict=True)))
    except Unsupported:
        return None
    judged = strides == _in_order(specs)  # as a plan is made; its kernels run however operands lie
    if judged and writer.slow > MAX_SCALAR_INSTRUCTIONS and not writer.is_nested:
        return None
    return Written(writer.text(len(specs)), writer.bytes, writer.instructions, writer.is_tiled)


def _alone(op: str, params: Items, count: int, specs: tuple[Spec, ...]) -> Node:
    """A loop as a node of its own, whose parameters compare to the bit."""
    return Node(op, tuple(range(count)), params, specs[count:])


def _written_in_order(op: str, node: Node, specs: tuple[Spec, ...]) -> Written | None:
    """Write the kernel of a loop whose operands and results lie in order."""
    own = _alone(op, node.params, len(node.inputs), specs)
    return written(own, specs, _in_order(specs))


def is_short_program(node: Node, specs: tuple[Spec, ...]) -> bool:
    """Whether a graph with loops, as a node, can be a kernel for which others may wait."""
    found = _written_in_order(node.op, node, specs)
    return found is not None and found.instructions * INSTRUCTION_SECONDS < SLICE_SECONDS


def loop_text(node: Node, specs: tuple[Spec, ...]) -> str:
    """The text of a loop's kernel, where operands and results lie in order."""
    found = _written_in_order(node.op, node, specs)
    assert found is not None, "it was one when the plan was made"
    return found.text


def fits_one_kernel(node: Node, specs: tuple[Spec, ...]) -> bool:
    """Whether a loop whose operands and results lie in order can be a kernel."""
    return _written_in_order(ONE_KERNEL[node.op], node, specs) is not None


def _params(kw: Mapping[str, Any]) -> Items:
    return tuple(sorted((name, x) for name, x in kw.items() if name != "scratch"))


def turns_scratch(
    op: str, ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], **kw: Any
) -> Sequence[Scratch]:
    """Size the buffers between a turn's operations, and the second ones of carried values."""
    bare = tuple(s.bare for s in specs)
    found = written(_alone(op, _params(kw), len(ins), bare), bare, _in_order(bare))
    return [] if found is None else [Scratch((found.bytes,), int8)]


def _in_order(specs: Sequence[Spec]) -> tuple[Strides, ...]:
    return tuple(strided_like(s.shape, s.dtype).strides for s in specs)


def all_turns(
    op: str, arrays: Sequence[Any], threads: int, *, scratch: Sequence[Any], **kw: Any
) -> Callable[..., None] | InTurns | None:
    """The function of a loop whose operands and results lie so."""
    specs = tuple(Spec(x.shape, x.dtype) for x in arrays)
    strides = tuple(x.strides for x in arrays)
    count = len(arrays) - len(kw["body"].outputs)
    found = written(_alone(op, _params(kw), count, specs), specs, strides)
    if found is None:
        return None
    symbol("PyErr_Format", address_of(ctypes.pythonapi, "PyErr_Format"))
    symbol("index_error", IndexError)
    symbol("PyErr_CheckSignals", address_of(ctypes.pythonapi, "PyErr_CheckSignals"))
    turns = kw.get("trips", kw.get("most", 1))
    facts = np.zeros(FACTS, np.int64)
    facts[:4] = 1, 0, 0, turns
    (room,) = scratch
    facts[6] = room.ctypes.data
    function = function_of(found.text, facts, room)
    step = max(1, int(SLICE_SECONDS / (found.instructions * INSTRUCTION_SECONDS)))
    if 0 <= turns <= step or op == WHOLE or found.is_tiled:
        return function

    def run(begin: int, end: int, *arrays: Any) -> None:
        facts[2:4] = begin, end
        function(*arrays)

    return InTurns(run, turns, step, facts[4:6])
