"""Operations of a loop's body as instructions: what is elementwise, looks, updates, sums, products."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ostinato.ops.array.slicing import COMBINES
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import around, whole_box
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS, Piece, Place
from ostinato.ops.core.spec import DType, Shape, Spec, bool_, int64, real_of, strided_like
from ostinato.ops.cpu.jit.emitter import FREE
from ostinato.ops.flow.control import FLOW
from ostinato.ops.jit.combining import (
    compensated,
    first_of,
    has_order,
    is_free,
    joined,
    ordered,
    start_of,
    unordered,
    whole_of,
)
from ostinato.ops.jit.labels import combines
from ostinato.ops.jit.scalar import lower
from ostinato.ops.jit.values import Unsupported, Value, can_add, can_combine, cast, where

from .loop_masks import has_outside, is_alike, looked_at
from .loop_values import (
    Buffer,
    Carried,
    Frame,
    Index,
    Seen,
    Strided,
    fit,
    homes_of,
    is_whole,
    limited,
)
from .loop_writer import Writer

CHUNK_ELEMENTS = 1024  # elements whose order of summing is free
PRODUCT_ROWS = 4  # of a product that are summed together, as they read the same
MAX_PRODUCT_MULTIPLICATIONS = 1 << 17  # multiplications of a product


class Operations(Writer):
    """Writes a body."""

    # -- bodies
    def body(
        self, graph: Graph, values: Sequence[Seen], states: Sequence[Carried | None] = ()
    ) -> list[Seen]:
        """Write a body's operations; what its results are. `states`: where results go, if anywhere."""
        frame = Frame(graph, values, homes_of(graph, states))
        for n, k in enumerate(frame.order):
            frame.at = n
            self.node(frame, k)
        frame.at = len(frame.order) - 1
        return [frame.values[v] for v in graph.outputs]

    def node(self, frame: Frame, k: int) -> None:
        graph, node = frame.graph, frame.graph.nodes[k]
        ins = [frame.values[v] for v in node.inputs]
        made = self.made(frame, k, node, ins)
        for v, x in zip(graph.outs(k), made, strict=True):
            if x.is_number:
                self.settle(x)
                x = self.known(self.number(x), x.shape)
            elif x.is_moved and self.is_kept(frame, v, x):
                x = self.put(x, self.home(frame, v, x.reads))
            frame.values[v] = x

    def is_kept(self, frame: Frame, v: int, x: Seen) -> bool:
        """Whether a value goes to memory."""
        graph = frame.graph
        if v in frame.homes:
            return True
        if not x.work or x.is_mask:
            return False
        uses = [graph.nodes[u] for u in graph.uses[v]]
        if len(uses) + graph.outputs.count(v) > 1:
            return True
        return any(_repeats(n) or n.specs[0].size > math.prod(x.shape) for n in uses)

    def home(self, frame: Frame, v: int, reads: Mapping[Buffer, bool]) -> Strided:
        """Where a value is made whole that reads such memory."""
        spec = frame.graph.specs[v]
        state = frame.homes.get(v)
        strides = strided_like(spec.shape, spec.dtype).strides
        for room in () if state is None else (state.room, state.other):
            if room is None or state is None:
                continue
            later = [frame.values[u] for u in frame.alive() if u in frame.values]
            if reads.get(room, True) and not any(room in x.reads for x in later):
                state.is_other_used |= room is state.other
                return Strided(room.at, strides, room)
        return self.allocate(spec)

    def made(self, frame: Frame, k: int, node: Node, ins: list[Seen]) -> Sequence[Seen]:
        """The results of an operation."""
        raise NotImplementedError

    # -- elementwise, and looks
    def source(self, node: Node, spec: Spec) -> Seen:
        if OPS[node.op].element.source == "index":
            axis = node.kw["axis"]

            def count(index: Index) -> Value:
                return cast(Value(self.code.lines, index[axis], int64), spec.dtype)

            return Seen(spec.shape, spec.dtype, count, index=axis - len(spec.shape))
        number = self.code.lines.constant(node.kw["value"], spec.dtype)
        return Seen(spec.shape, spec.dtype, lambda _: number)

    def looked(self, node: Node, x: Seen, spec: Spec) -> Seen:
        """Another look at a value, whose elements are in memory: who looks finds them by other indices than
        those that one loop makes and reads."""
        self.settle(x)
        op, kw = OPS[node.op], node.kw
        follows = op.moves.same_elements and op.moves.keeps_order
        reads = {room: in_step and follows for room, in_step in x.reads.items()}
        if x.lies is not None and op.view is not None:
            at = Place((whole_box(x.shape),), (whole_box(spec.shape),), (x.shape,), (spec.shape,))

            def look(whole: Any) -> Any:  # never a copy: there are no elements to read
                seen = whole if node.op == "reshape" else op.view(np, whole, at, **kw)  # type: ignore[misc]
                return seen if seen.shape == spec.shape else seen.reshape(spec.shape, copy=False)

            found = self.view_of(x.lies, Spec(x.shape, x.dtype), look)
            if found is not None:
                return self.stored(spec.bare, found[1], reads)
        change = LOOKS[node.op]

        def element(index: Index) -> Value:
            return self.element(x, change(self, index, x.shape, spec.shape, kw))

        made = Seen(spec.shape, spec.dtype, element, reads, work=x.work)
        return looked_at(node, x, made)

    def taken(self, node: Node, spec: Spec, x: Seen, places: Seen) -> Seen:
        """The elements at a place along an axis, or at some."""
        axis, size, many = node.kw["axis"], x.shape[node.kw["axis"]], len(places.shape)
        reads = dict.fromkeys(x.reads, False)
        if places.is_number:
            self.settle(places)
            place = self.check(self.number(places), size)
            if x.lies is not None and not many:
                return self.stored(spec.bare, self.part(x.lies, axis, place), reads)

            def here(index: Index) -> Value:
                return self.element(x, (*index[:axis], place, *index[axis + many :]))

            return Seen(spec.shape, spec.dtype, here, reads, work=x.work)
        places = self.checked(places, size)

        def element(index: Index) -> Value:
            at = self.element(places, index[axis : axis + many]).name
            if not self.moving.isdisjoint(index[axis : axis + many]):
                self.moving.add(at)
            return self.element(x, (*index[:axis], at, *index[axis + many :]))

        for room in places.reads:
            reads[room] = False
        return Seen(spec.shape, spec.dtype, element, reads, work=x.work + 1)

    def checked(self, places: Seen, size: int) -> Seen:
        """Places counted from the front, in memory."""
        made = self.allocate(Spec(places.shape, int64))
        self.flush()
        with self.loops(limited(places.shape), parallel=False) as index:
            self.before = None
            place = self.check(self.element(places, index), size)
            self.code.store(Value(self.code.lines, place, int64), self.address(made, index))
        return self.stored(Spec(places.shape, int64), made)

    # -- updates
    def base(self, frame: Frame, v: int, x: Seen, spec: Spec, read: Sequence[Seen]) -> Strided:
        """A value's memory to write over, if nobody reads what was there; or a copy."""
        self.flush()
        if x.lies is not None and x.lies.room is not None and is_whole(x):
            room = x.lies.room
            later = [u for u in frame.alive() if room in frame.values[u].reads]
            cost = sum(math.prod(frame.values[u].shape) for u in later)
            if room in self.writable and cost < spec.size:
                for u in later:  # what is small is read before
                    frame.values[u] = self.copied(frame.values[u])
                self.flush()
                return x.lies
        reads = dict.fromkeys((r for y in read for r in y.reads), False)
        to = self.home(frame, v, {**x.reads, **reads})
        if not (x.lies is not None and x.lies.at == to.at):
            self.put(x, to)
            self.flush()
        return to

    def updated(self, frame: Frame, k: int, node: Node, x: Seen, places: Seen, v: Seen) -> Seen:
        """With other elements at a place along an axis, or at some, one after the other."""
        axis, mode, spec = node.kw["axis"], node.kw["mode"], node.specs[0].bare
        size, many = x.shape[axis], len(places.shape)
        rooms = [y.lies.room for y in (x,) if y.lies is not None]
        if (v.is_moved and any(room in v.reads for room in rooms)) or (
            v.lies is not None and any(room in v.reads for room in rooms)
        ):
            v = self.copied(v)
        if not places.is_number:
            places = self.checked(places, size)
        elif many:
            places = self.known(self.number(places), places.shape)
        place = self.check(self.number(places), size) if places.is_number else ""
        (made,) = frame.graph.outs(k)
        to = self.base(frame, made, x, spec, (v, places))
        self.settle(v)

        def write(at: Strided, index: Index, rest: Index) -> None:
            address = self.address(at, rest)
            more = self.element(v, index)
            if mode != "set":
                more = lower(
                    COMBINES[mode], [self.code.load(address, spec.dtype), more], spec.dtype
                )
            self.code.store(more, address)

        if place:
            rest = (*x.shape[:axis], *x.shape[axis + 1 :])
            at = self.part(to, axis, place)
            near = _near(at, rest, real_of(spec.dtype).itemsize)
            with self.loops(limited(rest), near) as index:
                write(at, (*index[:axis], *("0",) * many, *index[axis:]), index)
        else:
            with self.loops(limited(v.shape), parallel=False) as index:
                self.before = None
                here = self.element(places, index[axis : axis + many]).name
                write(to, index, (*index[:axis], here, *index[axis + many :]))
        return self.stored(spec, to)

    def together(
        self, frame: Frame, k: int, node: Node, ins: Sequence[Seen], pieces: Sequence[Piece]
    ) -> Seen:
        spec, (made,) = node.specs[0].bare, frame.graph.outs(k)
        if len(pieces) == 1 and pieces[0].is_whole and ins[pieces[0].operand].shape == spec.shape:
            return ins[pieces[0].operand]
        first, rest, ins = pieces[0], pieces[1:], list(ins)
        under = first.is_whole or (first.operand < 0 and not first.at)
        read = dict.fromkeys(
            (r for p in rest if p.operand >= 0 for r in ins[p.operand].reads), False
        )
        if not (under and rest):  # one beside the other
            rest = pieces
            to = self.home(frame, made, dict.fromkeys((r for x in ins for r in x.reads), False))
        elif first.is_whole and not self.is_apart(frame, made, ins, first, rest):
            lies = ins[first.operand].lies
            for p in rest:
                if p.operand >= 0 and lies is not None and lies.room in ins[p.operand].reads:
                    ins[p.operand] = self.copied(ins[p.operand])
            others = [ins[p.operand] for p in rest if p.operand >= 0]
            to = self.base(frame, made, ins[first.operand], spec, others)
        else:  # what is around the only piece, or all
            x = self.filled(first, spec) if first.operand < 0 else ins[first.operand]
            to = self.home(frame, made, dict.fromkeys((*read, *x.reads), False))
            self.flush()
            alone = len(rest) == 1 and not rest[0].combine
            alone = alone and all(cut.step in (None, 1) for cut in rest[0].at)
            slabs = around(rest[0].at, spec.shape) if alone else [()]
            for slab in slabs:
                self.paste(x, spec, slab, to, slab)
        self.flush()
        for piece in rest:
            x = self.filled(piece, spec) if piece.operand < 0 else ins[piece.operand]
            if piece.places:
                begins = self.begins(piece, spec.shape, x.shape, ins)
                self.paste(
                    x, spec, (), self.moved(to, begins), self.cuts(piece, x.shape), piece.combine
                )
            else:
                self.paste(x, spec, (), to, piece.at, piece.combine)
        return self.stored(spec, to)

    def begins(
        self, piece: Piece, whole: Shape, part: Shape, ins: Sequence[Seen]
    ) -> dict[int, str]:
        """Where a part begins along some axes of a whole."""
        found = {}
        for place, a, bounds in zip(piece.places, piece.axes, piece.bounds, strict=True):
            self.settle(ins[place])
            found[a] = self.check(self.number(ins[place]), whole[a], part[a], bounds)
        return found

    def moved(self, x: Strided, begins: Mapping[int, str]) -> Strided:
        """An array from there on."""
        at = x.at
        for a, begin in begins.items():
            offset = self.times(begin, x.strides[a])
            at = self.index(f"getelementptr i8, ptr {at}, i64 {offset}", offset)
        return Strided(at, x.strides, x.room)

    def cuts(self, piece: Piece, part: Shape) -> Sequence[slice]:
        """Which elements these are, counted from where the part begins."""
        at = [*piece.at, *[slice(None)] * (len(part) - len(piece.at))]
        return [slice(0, part[d]) if d in piece.axes else cut for d, cut in enumerate(at)]

    def box(self, spec: Spec, piece: Piece, ins: Sequence[Seen]) -> Seen:
        """Take a box of an array."""
        x, spec = ins[piece.operand], spec.bare
        if len(x.shape) != len(spec.shape):
            raise Unsupported("a box with fewer axes")
        reads = dict.fromkeys(x.reads, False)
        begins = self.begins(piece, x.shape, spec.shape, ins)
        if x.lies is not None:
            return self.stored(spec, self.moved(x.lies, begins), reads)

        def element(index: Index) -> Value:
            here = (self.plus(i, begins.get(d, "0")) for d, i in enumerate(index))
            return self.element(x, tuple(here))

        return Seen(spec.shape, spec.dtype, element, reads, work=x.work)

    def is_apart(
        self, frame: Frame, v: int, ins: Sequence[Seen], first: Piece, rest: Sequence[Piece]
    ) -> bool:
        """Whether a large update reads the neighbours of what it writes, and has a second buffer."""
        x = ins[first.operand]
        if v not in frame.homes or x.lies is None or any(p.places for p in rest):
            return False
        others = [ins[p.operand] for p in rest if p.operand >= 0]
        size = sum(math.prod(y.shape) for y in others if x.lies.room in y.reads)
        return 2 * size > math.prod(x.shape)

    def filled(self, piece: Piece, spec: Spec) -> Seen:
        number = self.code.lines.constant(piece.value, spec.dtype)
        return Seen(spec.shape, spec.dtype, lambda _: number)

    def paste(
        self,
        x: Seen,
        spec: Spec,
        cut: Sequence[slice],
        to: Strided,
        at: Sequence[slice],
        combine: str = "",
    ) -> None:
        """A part of a value to where it is in a result."""
        look = self.view_of(to, spec, lambda whole: whole[tuple(at)])
        assert look is not None
        shape, there = look
        starts = [s.indices(n)[0] for s, n in zip(cut, x.shape, strict=False)]
        starts += [0] * (len(x.shape) - len(starts))
        if not math.prod(shape):
            return
        if len(x.shape) != len(shape) or (not cut and x.shape not in (shape, spec.shape)):
            raise Unsupported("pieces of another shape")
        again = to.room not in x.reads and not combine
        size = real_of(x.dtype).itemsize
        with self.loops(limited(shape), _near(there, shape, size), again=again) as index:
            here = tuple(self.plus(i, str(n)) for i, n in zip(index, starts, strict=True))
            value, address = self.element(x, here), self.address(there, index)
            if combine:
                value = lower(combine, [self.code.load(address, spec.dtype), value], spec.dtype)
            self.code.store(value, address)

    # -- reductions
    def reduced(self, frame: Frame, k: int, node: Node, x: Seen) -> list[Seen]:
        graph, specs = frame.graph, [s.bare for s in node.specs]
        kind, axes = combines(graph, node)
        dtype = specs[0].dtype
        count = math.prod(x.shape[a] for a in axes)
        known = can_combine(kind, dtype) or (dtype == bool_ and MONOIDS[kind].scalar)
        if not known or not count or dtype.kind == "c":
            raise Unsupported(node.op)
        left = [d for d in range(len(x.shape)) if d not in axes]
        self.settle(x)
        bounds: tuple[str, str] | None = None
        single = len(axes) == MONOIDS[kind].width == 1 and x.dtype == dtype
        if single and has_outside(x, axes[0], start_of(kind, dtype), self.code.lines):
            x, bounds = self.narrowed(x, axes[0])
        values = list(graph.outs(k))

        def joint(outer: Index, inner: Index) -> Index:
            index = ["0"] * len(x.shape)
            for d, i in (*zip(left, outer, strict=True), *zip(axes, inner, strict=True)):
                index[d] = i
            return tuple(index)

        def more(index: Index) -> Value:
            return lower(node.op, [self.element(x, index)], dtype)

        over = limited(tuple(x.shape[a] for a in axes), x.shape)
        if specs[0].size == 1:
            totals = self.total(
                *(kind, dtype, over, lambda inner: more(joint(("0",) * len(left), inner)), axes),
                bounds,
            )
            done = self.shared(node, totals)
            return [self.known(y, s.shape) for y, s in zip(done, specs, strict=True)]
        targets = [self.home(frame, v, dict.fromkeys(x.reads, False)) for v in values]
        self.flush()
        if left and left[-1] > max(axes) and x.shape[left[-1]] > 1 and dtype != bool_:
            if kind == "sum" and count > CHUNK_ELEMENTS:
                raise Unsupported("long sums over rows")
            self.scatter_rows(node, kind, specs, targets, over, lambda o, i: more(joint(o, i)))
        else:
            with self.nest(specs[0].shape) as outer:
                totals = self.total(
                    *(kind, dtype, over, lambda inner: more(joint(outer, inner)), axes), bounds
                )
                for y, to in zip(self.shared(node, totals), targets, strict=True):
                    self.code.store(y, self.address(to, outer))
        return [self.stored(s, to) for s, to in zip(specs, targets, strict=True)]

    @contextlib.contextmanager
    def nest(self, shape: Shape) -> Iterator[Index]:
        """Loops with others inside."""
        with contextlib.ExitStack() as stack:
            yield tuple("0" if n == 1 else stack.enter_context(self.loop(str(n))) for n in shape)

    def begin(self, kind: str, dtype: DType) -> list[Value]:
        lines = self.code.lines
        found = [lines.constant(start_of(kind, dtype), dtype)]
        return [*found, lines.constant(0, int64)] if MONOIDS[kind].width == 2 else found

    def step(self, kind: str, total: list[Value], x: Value, i: str, flags: str) -> list[Value]:
        """The total with one more element, the i-th."""
        if len(total) == 2:
            best, position = total
            wins = x > best if MONOIDS[kind].order == "max" else x < best
            if x.dtype.kind == "f":
                wins = (wins | (x != x)) & (best == best)
            return [where(wins, x, best), where(wins, Value(self.code.lines, i, int64), position)]
        return [joined(kind, total[0], x, flags)]

    def total(
        self,
        kind: str,
        dtype: DType,
        shape: Shape,
        more: Callable[[Index], Value],
        axes: Sequence[int],
        bounds: tuple[str, str] | None = None,
    ) -> list[Value]:
        """Reduce elements, in registers of memory meanwhile; of a single axis, `bounds` may say which."""
        code = self.code
        by_order = has_order(kind, dtype)
        inside = whole_of(dtype) if by_order else dtype
        if by_order and bounds is not None:  # of what is outside
            start = [ordered(kind, code.lines.constant(start_of(kind, dtype), dtype))]
        elif by_order:
            start = [code.lines.constant(first_of(kind, inside), inside)]
        else:
            start = self.begin(kind, dtype)
        cells = [code.cell(x.dtype) for x in start]

        def clear() -> None:
            for cell, x in zip(cells, start, strict=True):
                code.put(cell, x)

        def add(index: Index) -> None:
            x = more(index)
            with self.here():
                x = ordered(kind, x) if by_order else x
                now = [code.get(cell, s.dtype) for cell, s in zip(cells, start, strict=True)]
                flat = self.flat(index, shape) if len(cells) == 2 else "0"
                for cell, y in zip(
                    cells, self.step(kind, now, x, flat, "reassoc contract"), strict=True
                ):
                    code.put(cell, y)

        lanes = (
            0
            if len(cells) == 2 or not is_free(kind)
            else FREE
            if dtype == bool_
            else dtype.itemsize
        )
        long = kind == "sum" and dtype.kind == "f" and math.prod(shape) > CHUNK_ELEMENTS
        clear()
        if not long and bounds is not None:
            with self.inner(bounds[1], lanes, bounds[0], shape[0]) as i:
                add((i,))
        elif not long:
            with self.loops(shape, lanes) as index:
                add(index)
        else:
            whole, lost = code.cell(dtype), code.cell(dtype)
            for cell in (whole, lost):
                code.put(cell, start[0])

            def fold() -> None:
                made, gone = compensated(
                    code.get(whole, dtype), code.get(lost, dtype), code.get(cells[0], dtype)
                )
                code.put(whole, made)
                code.put(lost, gone)
                clear()

            with self.nest(shape[:-1]) as outer, self.loop(str(shape[-1]), CHUNK_ELEMENTS) as c:
                begin, end = c, code.least(code.sum(c, str(CHUNK_ELEMENTS)), str(shape[-1]))
                if bounds is not None:
                    begin, end = self.common((begin, end), bounds)
                with self.inner(end, lanes, begin, min(CHUNK_ELEMENTS, shape[-1])) as i:
                    add((*outer, i))
                fold()
            code.put(cells[0], code.get(whole, dtype) + code.get(lost, dtype))
        found = [code.get(cell, s.dtype) for cell, s in zip(cells, start, strict=True)]
        return [unordered(found[0])] if by_order else found

    def narrowed(self, x: Seen, axis: int) -> tuple[Seen, tuple[str, str]]:
        """Narrow a masked array to the range in which it has elements of its own, which is returned, too."""
        assert x.masked is not None
        assert x.masked.inside is not None
        size, lines = x.shape[axis], self.code.lines
        low, high = lines.constant(0, int64), lines.constant(size, int64)
        for number, begins, ends in x.masked.limits:
            self.settle(number)
            n = cast(self.number(number), int64)
            n = where(n < -1, lines.constant(-1, int64), n)
            n = where(n > size, lines.constant(size, int64), n)
            if begins is not None:
                low = where(n + begins > low, n + begins, low)
            if ends is not None:
                high = where(n + ends < high, n + ends, high)
        high = where(high < low, low, high)
        inside = x.masked.inside
        if inside.shape == x.shape:
            return inside, (low.name, high.name)

        def element(index: Index) -> Value:
            return self.element(inside, fit(index, inside.shape))

        return Seen(x.shape, x.dtype, element, x.reads, work=x.work), (low.name, high.name)

    def common(self, a: tuple[str, str], b: tuple[str, str]) -> tuple[str, str]:
        """Intersect two ranges, of which the second may be empty."""
        (low, high), (begin, end) = ([Value(self.code.lines, n, int64) for n in r] for r in (a, b))
        low, high = where(begin > low, begin, low), where(end < high, end, high)
        return low.name, where(high < low, low, high).name

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Keep what is written in the innermost loop."""
        before, self.before = self.before, None
        yield
        self.before = before

    def shared(self, node: Node, total: list[Value]) -> list[Value]:
        """Divide the total of a mean."""
        how = OPS[node.op].reduce
        if how is None or not how.divisor:
            return total
        count = self.code.lines.constant(float(node.kw[how.divisor]), total[0].dtype)
        return [total[0] / count]

    def scatter_rows(
        self,
        node: Node,
        kind: str,
        specs: Sequence[Spec],
        targets: Sequence[Strided],
        over: Shape,
        more: Callable[[Index, Index], Value],
    ) -> None:
        code, size = self.code, max(s.dtype.itemsize for s in specs)
        kept, start = [s.dtype for s in specs], self.begin(kind, specs[0].dtype)
        by_order = has_order(kind, kept[0])
        if by_order:
            kept = [whole_of(kept[0])]
            start = [code.lines.constant(first_of(kind, kept[0]), kept[0])]
        with self.loops(specs[0].shape, size) as index:
            for x, to in zip(start, targets, strict=True):
                code.store(x, self.address(to, index))
        *outer, inner = specs[0].shape
        nests = self.nest(tuple(outer)), self.nest(over)
        with nests[0] as before, nests[1] as reduced, self.inner(str(inner), size) as i:
            index = (*before, i)
            x = more(index, reduced)
            x = ordered(kind, x) if by_order else x
            at = [self.address(to, index) for to in targets]
            now = [code.load(a, dtype) for a, dtype in zip(at, kept, strict=True)]
            place = self.flat(reduced, over)
            for y, a in zip(self.step(kind, now, x, place, "contract"), at, strict=True):
                code.store(y, a)
        how = OPS[node.op].reduce
        if by_order or (how is not None and how.divisor):
            with self.loops(specs[0].shape, size) as index:
                address = self.address(targets[0], index)
                y = code.load(address, kept[0])
                code.store(unordered(y) if by_order else self.shared(node, [y])[0], address)

    # -- products
    def product(self, frame: Frame, k: int, node: Node, a: Seen, b: Seen) -> Seen:
        spec, (made,) = node.specs[0].bare, frame.graph.outs(k)
        n = a.shape[-1] if a.shape else 0
        flat = len(a.shape) in (1, 2) and len(b.shape) in (1, 2) and n
        if not flat or not can_add(spec.dtype) or a.dtype != b.dtype or a.dtype != spec.dtype:
            raise Unsupported("this product")
        if spec.size * n > MAX_PRODUCT_MULTIPLICATIONS or n > CHUNK_ELEMENTS:
            raise Unsupported("a large product")
        if spec.size == 1:
            return self.inner_product(a, b, spec)
        a, b = self.solid(a), self.solid(b)
        self.settle(a, b)
        rows, columns = len(a.shape) == 2, len(b.shape) == 2
        dtype = spec.dtype

        def times(outer: Index, i: str) -> tuple[Value, Value]:
            left = self.element(a, (outer[0], i) if rows else (i,))
            return left, self.element(b, (i, outer[-1]) if columns else (i,))

        def product(outer: Index, i: str) -> Value:
            x, y = times(outer, i)
            with self.here():
                return _multiplied(x, y)

        def added(total: Value, outer: Index, i: str) -> Value:
            more = product(outer, i)
            with self.here():
                return joined("sum", total, more, "reassoc contract")

        code = self.code
        to = self.home(frame, made, dict.fromkeys((*a.reads, *b.reads), False))
        self.flush()
        aside = (columns and spec.shape[-1] > 1 and _step(b, 1) == dtype.itemsize) or (
            not columns and _step(a, 0) == dtype.itemsize and _step(a, 1) != dtype.itemsize
        )
        if aside:  # along the result's last axis
            *outer, inner = spec.shape
            with self.nest(tuple(outer)) as before:
                with self.inner(str(inner), dtype.itemsize) as j:
                    zero = code.lines.constant(0, dtype)
                    code.store(zero, self.address(to, (*before, j)))
                for begin, end, step in _steps(n, PRODUCT_ROWS):
                    with self.loop(str(end), step, str(begin)) as i:
                        terms = [self.plus(i, str(m)) for m in range(step)]
                        with self.inner(str(inner), dtype.itemsize) as j:
                            index = (*before, j)
                            address = self.address(to, index)
                            total = code.load(address, dtype)
                            more = product(index, terms[0])
                            with self.here():  # of which the next one waits for the sum only
                                for term in terms[1:]:
                                    more = joined("sum", more, product(index, term), "contract")
                                total = joined("sum", total, more, "contract")
                            code.store(total, address)
            return self.stored(spec, to)
        *outer, last = spec.shape
        with self.nest(tuple(outer)) as before:
            for begin, end, step in _steps(last, PRODUCT_ROWS):
                with self.loop(str(end), step, str(begin)) as first:
                    places = [(*before, self.plus(first, str(m))) for m in range(step)]
                    cells = [code.cell(dtype) for _ in places]
                    for cell in cells:
                        code.put(cell, code.lines.constant(0, dtype))
                    with self.inner(str(n), dtype.itemsize) as i:
                        for cell, index in zip(cells, places, strict=True):
                            code.put(cell, added(code.get(cell, dtype), index, i))
                    for cell, index in zip(cells, places, strict=True):
                        code.store(code.get(cell, dtype), self.address(to, index))
        return self.stored(spec, to)

    def inner_product(self, a: Seen, b: Seen, spec: Spec) -> Seen:
        code, dtype, n = self.code, spec.dtype, a.shape[-1]
        rows, columns = a.shape[:-1], b.shape[1:]
        bounds = "0", str(n)
        alike = not rows and not columns and is_alike(a, b)
        if alike and all(has_outside(x, 0, 0, code.lines) for x in (a, b)):  # 0 * inf is no 0
            (a, bounds), (b, _) = self.narrowed(a, 0), self.narrowed(b, 0)
        self.settle(a, b)
        cell = code.cell(dtype)
        code.put(cell, code.lines.constant(0, dtype))
        with self.inner(bounds[1], dtype.itemsize, bounds[0], n) as i:
            x = self.element(a, (*("0" for _ in rows), i))
            y = self.element(b, (i, *("0" for _ in columns)))
            with self.here():
                more = _multiplied(x, y)
                code.put(cell, joined("sum", code.get(cell, dtype), more, "reassoc contract"))
        return self.known(code.get(cell, dtype), spec.shape)


def _dropped(w: Writer, index: Index, old: Shape, new: Shape, kw: Mapping[str, Any]) -> Index:
    return tuple(i for d, i in enumerate(index) if d not in kw["axes"])


def _inserted(w: Writer, index: Index, old: Shape, new: Shape, kw: Mapping[str, Any]) -> Index:
    rest = iter(index)
    return tuple("0" if d in kw["axes"] else next(rest) for d in range(len(old)))


def _turned(w: Writer, index: Index, old: Shape, new: Shape, kw: Mapping[str, Any]) -> Index:
    found = dict(zip(kw["axes"], index, strict=True))
    return tuple(found[d] for d in range(len(old)))


def _repeated(w: Writer, index: Index, old: Shape, new: Shape, kw: Mapping[str, Any]) -> Index:
    return fit(index, old)


def _sliced(w: Writer, index: Index, old: Shape, new: Shape, kw: Mapping[str, Any]) -> Index:
    found = []
    for i, start, step in zip(index, kw["starts"], kw["steps"], strict=True):
        by = w.times(i, step) if step >= 0 else w.index(f"mul nsw i64 {i}, {step}", i)
        found.append(w.plus(by, str(start)))
    return tuple(found)


def _reshaped(w: Writer, index: Index, old: Shape, new: Shape, kw: Mapping[str, Any]) -> Index:
    kept = [(i, n) for i, n in zip(index, new, strict=True) if n > 1]
    if [n for _, n in kept] == [n for n in old if n > 1]:
        rest = iter(i for i, _ in kept)
        return tuple("0" if n == 1 else next(rest) for n in old)
    flat, found = w.flat(index, new), list[str]()
    for n in reversed(old):
        found.append("0" if n == 1 else w.index(f"urem i64 {flat}, {n}", flat))
        flat = flat if n == 1 else w.index(f"udiv i64 {flat}, {n}", flat)
    return tuple(reversed(found))


LOOKS: dict[str, Callable[..., Index]] = {
    "expand_dims": _dropped,
    "squeeze": _inserted,
    "permute_dims": _turned,
    "broadcast_to": _repeated,
    "slice": _sliced,
    "reshape": _reshaped,
}


def _multiplied(x: Value, y: Value) -> Value:
    """A product that may become one instruction with the sum it is added to."""
    return x.lines.do("fmul contract", x.dtype, x, y) if x.dtype.kind == "f" else x * y


def _step(x: Seen, axis: int) -> int | None:
    return None if x.lies is None else x.lies.strides[axis]


def _steps(n: int, size: int) -> Iterator[tuple[int, int, int]]:
    """A range in steps of some size, and what is left one by one."""
    whole = n - n % size
    if whole:
        yield 0, whole, size
    if n > whole:
        yield whole, n, 1


def _near(x: Strided, shape: Shape, size: int) -> int:
    """The size of elements that are written side by side; of others, LLVM says if vectors are worth it."""
    steps = [step for step, n in zip(x.strides, shape, strict=True) if n > 1]
    return size if not steps or steps[-1] == size else FREE


def _repeats(node: Node) -> bool:
    """Whether it reads elements of an operand again and again."""
    return (OPS[node.op].product is not None and node.specs[0].size > 1) or node.op in FLOW
