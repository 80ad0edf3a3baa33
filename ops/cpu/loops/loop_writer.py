"""Loops over elements of a kernel's values: indices, memory, and what is made in one loop."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.bounds import inside, outside
from ostinato.ops.core.graph import Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec, int64, real_of, strided_like
from ostinato.ops.cpu.jit.emitter import FREE, Code
from ostinato.ops.cpu.jit.llvm import vector_bits
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.scalar import lower
from ostinato.ops.jit.values import Value, cast, where

from .loop_masks import masked_by
from .loop_values import Buffer, Index, Seen, Strided, fit, limited

MIN_VECTOR_ELEMENTS = 8  # of a loop that has vectors
# From which what is left over does not matter; of fewer, the last one overlaps the one before.
MIN_VECTORS_WITH_REST = 8
# What no turn writes, and that stores are elsewhere.
FIXED, NOT_FIXED = ", !alias.scope !42", ", !noalias !42"
SCOPES = ("!40 = distinct !{!40}", "!41 = distinct !{!41, !40}", "!42 = !{!41}")


class Writer:
    """Writes a loop."""

    def __init__(self) -> None:
        self.code = Code()
        self.code.stored = NOT_FIXED
        self.memo: dict[tuple[Seen, Index], Value] = {}
        # what is made, as it is read, and where it goes
        self.pending: list[tuple[Seen, Seen, Strided]] = []
        self.moving: set[str] = set()  # registers that depend on the innermost loop's index
        self.before: list[str] | None = None  # where what does not depend on it is written
        self.bytes = 0
        self.size = self.code.cell(int64)  # of the axis that an index is outside of
        self.place = self.code.cell(int64)
        self.worked = ""  # instructions since others could run, if turns count them
        self.said = self.code.cell(int64)  # where the words about that are
        self.flats = dict[Seen, Seen | None]()
        self.slow = 0  # of a turn's instructions, those of elements one by one
        self.is_inside = False  # a turn
        self.is_tiled = False  # whether some rows' turns run before others'
        self.is_nested = False  # whether there are loops or branches inside
        self.writable = set[Buffer]()  # memory that the body may write over
        self.scale = 1  # how often what is written now is done in a turn
        self.instructions = 0  # of a turn

    # -- indices
    def plus(self, a: str, b: str) -> str:
        if a.lstrip("-").isdigit() and b.lstrip("-").isdigit():
            return str(int(a) + int(b))
        if "0" in (a, b):
            return b if a == "0" else a
        return self.index(f"add nsw i64 {a}, {b}", a, b)

    def times(self, a: str, n: int) -> str:
        if a.isdigit() or n in (0, 1):
            return str(int(a) * n) if a.isdigit() else a if n else "0"
        return self.index(f"mul nsw i64 {a}, {n}", a)

    def index(self, text: str, *of: str) -> str:
        """A register with an index that depends on others."""
        with self.hoisted(of):
            name = self.code.let(text)
        if not self.moving.isdisjoint(of):
            self.moving.add(name)
        return name

    @contextlib.contextmanager
    def hoisted(self, of: Sequence[str]) -> Iterator[None]:
        """Write what only depends on these before the innermost loop, if they are known there."""
        lines = self.code.lines
        here = lines.text
        if self.before is not None and self.moving.isdisjoint(of):
            lines.text = self.before
        yield
        lines.text = here

    def element(self, x: Seen, index: Index) -> Value:
        """An element, which may have been made before."""
        found = self.memo.get((x, index))
        if found is None:
            with self.hoisted(index):
                found = x.element(index)
            self.memo[x, index] = found
        return found

    def number(self, x: Seen) -> Value:
        """The one element of an array."""
        return self.element(x, ("0",) * len(x.shape))

    def known(self, value: Value, shape: Shape = ()) -> Seen:
        return Seen(shape, value.dtype, lambda _: value)

    # -- memory
    def allocate(self, spec: Spec) -> Strided:
        """Memory of its own for an array, in order."""
        name = self.code.name("room")
        self.code.entry.append(f"  {name} = getelementptr i8, ptr %room, i64 {self.bytes}")
        self.bytes += -(-max(spec.nbytes, 1) // LIMITS.line) * LIMITS.line
        room = Buffer(name, spec.size)
        self.writable.add(room)
        return Strided(name, strided_like(spec.shape, spec.dtype).strides, room)

    def address(self, lies: Strided, index: Index) -> str:
        offset = "0"
        for i, step in zip(index, lies.strides, strict=True):
            offset = self.plus(offset, self.times(i, step)) if i != "0" else offset
        if offset == "0":
            return lies.at
        return self.index(f"getelementptr i8, ptr {lies.at}, i64 {offset}", offset)

    def stored(self, spec: Spec, lies: Strided, reads: Mapping[Buffer, bool] | None = None) -> Seen:
        def element(index: Index) -> Value:
            known = FIXED if lies.room is None else ""
            return self.code.load(self.address(lies, index), spec.dtype, known)

        if reads is None:
            reads = {} if lies.room is None else {lies.room: True}
        return Seen(spec.shape, spec.dtype, element, reads, lies)

    def part(self, x: Strided, axis: int, index: str) -> Strided:
        """At a place along an axis."""
        offset = self.times(index, x.strides[axis])
        at = x.at
        if offset != "0":
            at = self.index(f"getelementptr i8, ptr {at}, i64 {offset}", offset)
        return Strided(at, (*x.strides[:axis], *x.strides[axis + 1 :]), x.room)

    def view_of(
        self, x: Strided, spec: Spec, look: Callable[[Any], Any]
    ) -> tuple[Shape, Strided] | None:
        """The shape and strides of a view; None if it has to be copied."""
        whole = strided_like(spec.shape, spec.dtype, x.strides)
        try:
            seen = look(whole)
        except ValueError:
            return None
        if not np.may_share_memory(seen, whole) and seen.size:
            return None
        far = _begin(seen) - _begin(whole)
        at = self.plus_bytes(x.at, far)
        return seen.shape, Strided(at, seen.strides, x.room)

    def plus_bytes(self, at: str, far: int) -> str:
        return self.code.let(f"getelementptr i8, ptr {at}, i64 {far}") if far else at

    # -- loops over elements
    @contextlib.contextmanager
    def loops(
        self, shape: Shape, size: int = 0, parallel: bool = True, again: bool = False
    ) -> Iterator[Index]:
        """Loops over an array's elements, the innermost in vectors of elements of so many bytes. `again`:
        what is made reads nothing that is written."""
        with contextlib.ExitStack() as stack:
            inner = max((d for d, n in enumerate(shape) if n > 1), default=-1)
            index: list[str] = []
            for d, n in enumerate(shape):
                if n == 1:
                    index.append("0")
                elif d == inner:
                    lanes = size if parallel else 0
                    index.append(stack.enter_context(self.inner(str(n), lanes, again=again)))
                else:
                    index.append(stack.enter_context(self.loop(str(n))))
            if inner < 0:
                stack.enter_context(self.scope())
            yield tuple(index)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Where values are made that are not known behind it."""
        memo, moving, before = self.memo, self.moving, self.before
        self.memo, self.moving, self.before = dict(memo), set(moving), None
        yield
        self.memo, self.moving, self.before = memo, moving, before

    @contextlib.contextmanager
    def loop(self, end: str, step: int = 1, begin: str = "0") -> Iterator[str]:
        scale = self.scale
        self.scale *= -(-int(end) // step)
        with self.code.loop(begin, end, step) as i, self.scope():
            yield i
        self.scale = scale

    @contextlib.contextmanager
    def inner(
        self, end: str, lanes: int = 0, begin: str = "0", turns: int = 0, again: bool = False
    ) -> Iterator[str]:
        """An innermost loop; what does not depend on its index is written before it. `again`: elements may be
        made twice."""
        code = self.code
        before, inside = code.lines.text, list[str]()
        name = code.name("lane")
        with self.scope():
            self.moving, self.before = {name}, before
            code.lines.text = inside
            yield name
            code.lines.text = before
        n = turns or int(end)
        width = (
            MIN_VECTOR_ELEMENTS if lanes == FREE else vector_bits() // 8 // lanes if lanes else 1
        )
        # the last ones are made twice
        if again and lanes != FREE and n % width and width < n < MIN_VECTORS_WITH_REST * width:
            with code.loop("0", str(-(-n // width))) as c:
                first = code.least(code.times(c, str(width)), str(n - width))
                with code.loop("0", str(width), lanes=lanes, kept=True) as i:
                    code.add(f"{name} = add i64 {first}, {i}")
                    code.lines.text.extend(inside)
        else:
            with code.loop(begin, end, lanes=_lanes(n, lanes), kept=n <= 2 * width) as i:
                code.add(f"{name} = add i64 {i}, 0")
                code.lines.text.extend(inside)
        count = self.scale * len(inside) * (-(-n // width) if n >= MIN_VECTOR_ELEMENTS else n)
        self.instructions += count
        if width == 1 or n < MIN_VECTOR_ELEMENTS:
            self.slow += count

    # -- elementwise values
    def elementwise(self, node: Node, ins: Sequence[Seen], spec: Spec) -> Seen:
        def element(index: Index) -> Value:
            given = [self.element(x, fit(index, x.shape)) for x in ins]
            return lower(node.op, given, spec.dtype)

        reads: dict[Buffer, bool] = {}
        for x in ins:
            same = x.shape == spec.shape
            for room, in_step in x.reads.items():
                reads[room] = reads.get(room, True) and in_step and same
        work = sum(OPS[node.op].work) + sum(x.work for x in ins)
        masked = masked_by(node, ins, spec.shape)
        return Seen(
            spec.shape, spec.dtype, element, reads, work=work, made=(node, ins), masked=masked
        )

    def flat_of(self, x: Seen) -> Seen | None:
        """A value as one row of elements, if all that it is made of are such."""
        if x not in self.flats:
            self.flats[x] = self._flat_of(x)
        return self.flats[x]

    def _flat_of(self, x: Seen) -> Seen | None:
        spec = Spec((math.prod(x.shape),), x.dtype)
        if x.is_number:  # of at most one axis, as the rows are
            return self.known(self.number(x)) if len(x.shape) > 1 else x
        if x.lies is not None:
            own = Strided(x.lies.at, (x.dtype.itemsize,), x.lies.room)
            whole = x.lies.strides == strided_like(x.shape, x.dtype).strides
            return self.stored(spec, own) if whole else None
        if x.made is None:
            return None
        node, ins = x.made
        flats = [self.flat_of(y) for y in ins if y.is_number or y.shape == x.shape]
        if len(flats) < len(ins) or None in flats:
            return None
        return self.elementwise(node, [y for y in flats if y is not None], spec)

    def flat(self, index: Index, shape: Shape) -> str:
        """The number of an element."""
        found = "0"
        for i, n in zip(index, shape, strict=True):
            found = self.plus(self.times(found, n), i)
        return found

    # -- what is written
    def flush(self) -> None:
        """Make what waits, in one loop."""
        waiting, self.pending = self.pending, []
        if not waiting:
            return
        size = max(real_of(x.dtype).itemsize for x, _, _ in waiting)
        if sum(n > 1 for n in waiting[0][0].shape) > 1:
            waiting = self.as_rows(waiting)
        rooms = {to.room for _, _, to in waiting}
        again = all(rooms.isdisjoint(x.reads) for x, _, _ in waiting)
        with self.loops(limited(waiting[0][0].shape), size, again=again) as index:
            values = []
            for x, read, _ in waiting:
                values.append(self.element(x, index))
                self.memo[read, index] = values[-1]
            for value, (_, _, to) in zip(values, waiting, strict=True):
                self.code.store(value, self.address(to, index))

    def as_rows(
        self, waiting: list[tuple[Seen, Seen, Strided]]
    ) -> list[tuple[Seen, Seen, Strided]]:
        """Turn copies into copies of rows, if all of them can be."""
        self.flats = {}
        found = []
        for x, read, to in waiting:
            flat, own = self.flat_of(x), self.flat_of(read)
            if flat is None or own is None or to.strides != strided_like(x.shape, x.dtype).strides:
                return waiting
            found.append((flat, own, Strided(to.at, (x.dtype.itemsize,), to.room)))
        return found

    def settle(self, *xs: Seen) -> None:
        """Make what waits, if one of these reads it."""
        rooms = {to.room for _, _, to in self.pending}
        if any(room in rooms for x in xs for room in x.reads):
            self.flush()

    def put(self, x: Seen, to: Strided, shape: Shape | None = None) -> Seen:
        """A value to memory; its elements as they are read from there. It may wait for others of its shape."""
        assert to.room is not None
        read = self.stored(Spec(x.shape, x.dtype), to)
        if self.pending:
            fits = self.pending[0][0].shape == x.shape
            for old, _, target in self.pending:
                assert target.room is not None
                fits = fits and x.reads.get(target.room, True) and old.reads.get(to.room, True)
                fits = fits and target.room is not to.room
            if not fits:
                self.flush()
        self.pending.append((x, read, to))
        return read

    def copied(self, x: Seen) -> Seen:
        """In memory of its own, whatever happens to what it is made of."""
        return self.put(x, self.allocate(Spec(x.shape, x.dtype)))

    def solid(self, x: Seen) -> Seen:
        """As one whose elements are only read."""
        return self.copied(x) if x.is_moved and x.work and not x.is_mask else x

    def check(self, place: Value, size: int, extent: int = 1, bounds: str = "index") -> str:
        """A place counted from the front; the kernel ends where it is outside (ops/core/bounds.py)."""
        code, (back, last) = self.code, inside(size, extent, bounds)
        place = cast(place, int64)
        found = where(place < back, place + size, place)
        if bounds == "clip":
            found = where(found < 0, 0, where(found > last, last, found))
            return where(found < 0, 0, found).name
        wrong = (found < 0) | (found > last)
        n = code.names = code.names + 1
        code.add(f"br i1 {wrong.name}, label %bad_{n}, label %good_{n}")
        code.lines.text.append(f"bad_{n}:")
        code.put(self.place, place)
        code.put(self.size, code.lines.constant(size, int64))
        code.add(
            f"store ptr {self.words(outside('%lld', '%lld', extent, bounds))}, ptr {self.said}"
        )
        code.add("br label %outside")
        code.lines.text.append(f"good_{n}:")
        return found.name

    def words(self, text: str) -> str:
        """A name for what an error says."""
        name = f"@words_{len(text)}_{sum(map(ord, text))}"
        kind = f"[{len(text) + 1} x i8]"
        self.code.lines.declared.add(f'{name} = private constant {kind} c"{text}\\00"')
        return name


def _lanes(n: int, size: int) -> int:
    """The bytes that a loop of so many turns is to count for an element, so that its vectors are no longer
    than it is; of few vectors and more, LLVM makes what is best, and of so few elements that it says where
    it cannot do as it is told."""
    if size in (0, FREE):
        return size
    if n < 4:
        return FREE
    width = vector_bits() // 8 // size
    if n >= width and n % width and n < MIN_VECTORS_WITH_REST * width:
        return FREE
    while width > max(n, 1) and size < 16:
        width, size = width // 2, 2 * size
    return size


def _begin(x: Any) -> int:
    return int(x.__array_interface__["data"][0])
