"""Elements of joins, rolls and pads in CUDA: which piece has one is asked index by index, and of pieces that
lie in memory only the address is chosen, so that there is one load.

    const u8* a3 = x0 < f2 ? q0 + f3 + f4 * x0 : q0 + f4 * x0 + ...;

What is not memory is made at an index inside of its piece, whatever the element's own is. The places where
pieces begin are given to the kernel, so its text has none of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS, Piece
from ostinato.ops.core.spec import DType, Shape, Spec, bool_, real_of
from ostinato.ops.jit.combining import Combination, results
from ostinato.ops.jit.loops import Loops
from ostinato.ops.jit.moves import (
    Along,
    Look,
    dims_of,
    indices_in,
    is_join,
    is_move,
    pieces_of,
    seen,
    shapes_of,
)
from ostinato.ops.jit.scalar import lower, number
from ostinato.ops.jit.values import Value, where

from ..jit.lines import CudaLines, memory_type
from .flat import ElementWriter, kernel_by
from .text import Kernel


@dataclass(frozen=True, slots=True)
class _Index:
    """What an axis' index is called here, and which range it is in."""

    name: str
    lo: int
    hi: int


_Env = tuple[_Index, ...]


@dataclass(frozen=True, slots=True)
class _Address:
    text: str


class MovedWriter(ElementWriter):
    """The text of a body with moves."""

    def __init__(self, body: Graph, shape: Shape, arrays: Sequence[Any], axes: int) -> None:
        count = len(body.inputs)
        kept = len(shape) - axes if axes else len(shape) - 1
        self.shape, self.kept = shape, kept
        self.steps_of = [x.strides for x in arrays]  # along each one's own dimensions
        self.shapes = shapes_of(body, [x.shape for x in arrays[:count]])
        extents = (*shape[:kept], math.prod(shape[kept:]))
        nothing = (0,) * len(extents)
        ends = [
            (*x.strides, 0) if _is_sum(body, v) else nothing
            for v, x in zip(body.outputs, arrays[count:], strict=True)
        ]
        super().__init__(body, Loops(extents, (*[nothing] * count, *ends)))
        self.told: dict[int, str] = {}
        self.made: dict[tuple[int, Look, _Env], Value | _Address] = {}
        self.clamps: dict[_Index, _Index] = {}

    # -- what it is given
    def parameters(self) -> list[str]:
        return [*super().parameters(), *(f"s64 {name}" for name in self.told.values())]

    def facts(self) -> tuple[int, ...]:
        return (*super().facts(), *self.told)

    def fact(self, value: int) -> str:
        """A number that depends on shapes."""
        if -1 <= value <= 1:
            return f"({value})"
        return self.told.setdefault(value, f"f{len(self.told)}")

    # -- an element
    def one(self, lines: CudaLines) -> list[Combination]:
        self.made = {}
        env = [_Index(f"x{d}", 0, n) for d, n in enumerate(self.shape[: self.kept])]
        inner = self.shape[self.kept :]
        if len(inner) == 1:
            env.append(_Index("i", 0, inner[0]))
        else:
            lines.text.append("s64 left = i;")
            for d in reversed(range(self.kept, len(self.shape))):
                n = self.fact(self.shape[d])
                lines.text.append(f"const s64 x{d} = {f'left % {n}' if d > self.kept else 'left'};")
                lines.text += [f"left /= {n};"] if d > self.kept else []
            env += [_Index(f"x{self.kept + d}", 0, n) for d, n in enumerate(inner)]
        whole = tuple(Along(d, 0, 1) for d in range(len(self.shape)))
        body, env_ = self.body, tuple(env)
        made = {}
        for v in body.outputs:
            if _is_sum(body, v):
                (u,) = body.nodes[body.producers[v]].inputs
                one = self.value(lines, u, whole, env_)
                made[v] = lower(body.nodes[body.producers[v]].op, [one], body.specs[v].dtype)
            else:
                made[v] = self.value(lines, v, whole, env_)
        stored, sums = results(body, made, self.known)
        for k, value in stored:
            at = self.address_of(k, whole, env_)
            lines.store(at, value)
        return sums

    def address_of(self, k: int, look: Look, env: _Env) -> str:
        """The address of an operand's or a result's element."""
        return " + ".join([f"q{k}", *self.steps_to(k, look, env)])

    def steps_to(self, k: int, look: Look, env: _Env) -> list[str]:
        """How far an operand's or a result's element is from the first, as terms."""
        steps, offset, along = self.steps_of[k], 0, dict[int, int]()
        for at, step in zip(look, steps, strict=True):
            offset += step * at.offset
            if at.axis >= 0:
                along[at.axis] = along.get(at.axis, 0) + step * at.step
        terms = [f"{self.fact(step)} * {env[axis].name}" for axis, step in along.items() if step]
        return [*terms, self.fact(offset)] if offset else terms

    def value(self, lines: CudaLines, v: int, look: Look, env: _Env) -> Value:
        found = self.found(lines, v, look, env)
        return self.loaded(lines, found, self.body.specs[v].dtype)

    def loaded(self, lines: CudaLines, found: Value | _Address, dtype: DType) -> Value:
        if isinstance(found, Value):
            return found
        return lines.load(found.text, dtype)

    def found(self, lines: CudaLines, v: int, look: Look, env: _Env) -> Value | _Address:
        """Where a value's element lies, or what it is."""
        shape = self.shapes[v]
        look = tuple(
            Along(-1, 0, 0) if n == 1 else at
            for at, n in zip(look[len(look) - len(shape) :], shape, strict=True)
        )
        key = (v, look, env)
        if key not in self.made:
            self.made[key] = self.make(lines, v, look, env)
        return self.made[key]

    def make(self, lines: CudaLines, v: int, look: Look, env: _Env) -> Value | _Address:
        body = self.body
        k = body.producers[v]
        if k < 0 and v in self.counted:
            terms = [f"*(const s64*)q{v}", *self.steps_to(v, look, env)]
            return lines.write(" + ".join(terms), body.specs[v].dtype)
        if k < 0:
            return _Address(self.address_of(v, look, env))
        node, dtype = body.nodes[k], body.specs[v].dtype
        if OPS[node.op].element.source == "value":
            return number(lines, node, v, lambda u, part: self.known_number(lines, u, part))
        if not is_move(node):
            ins = [self.value(lines, u, look, env) for u in node.inputs]
            return lower(node.op, ins, dtype)
        specs = [Spec(self.shapes[u], body.specs[u].dtype) for u in node.inputs]
        dims = dims_of(node, specs, Spec(self.shapes[v], dtype))
        assert dims is not None
        if not is_join(node):
            return self.found(lines, node.inputs[0], seen(look, dims[0]), env)
        pieces = pieces_of(node, [self.shapes[u] for u in node.inputs])
        assert pieces is not None
        looks = [seen(look, own) for own in dims]
        made: Value | _Address | None = None
        for piece in pieces:  # later ones over earlier ones
            inside = _inside(piece, look, self.shapes[v], env)
            if inside is None:
                continue
            made = self.overlaid(lines, made, piece, node.inputs, looks, dtype, env, inside)
        assert made is not None
        return made

    def overlaid(
        self,
        lines: CudaLines,
        before: Value | _Address | None,
        piece: Piece,
        inputs: Sequence[int],
        looks: Sequence[Look],
        dtype: DType,
        env: _Env,
        inside: dict[int, tuple[int, int]],
    ) -> Value | _Address:
        """A piece over what was there."""
        tests = []
        for axis, (lo, hi) in inside.items():
            at = env[axis]
            tests += [f"{at.name} >= {self.fact(lo)}"] if lo > at.lo else []
            tests += [f"{at.name} < {self.fact(hi)}"] if hi < at.hi else []
        one: Value | _Address
        if piece.operand < 0:
            one = lines.constant(piece.value, dtype)
        else:
            u, look = inputs[piece.operand], looks[piece.operand]
            one = self.found(lines, u, look, self.clamped(lines, u, env, inside))
        if before is None or (not tests and not piece.combine):
            return one
        if piece.combine:
            a, b = self.loaded(lines, before, dtype), self.loaded(lines, one, dtype)
            one = lower(piece.combine, [a, b], dtype)
            before = a
        test = " && ".join(tests) or "true"
        if isinstance(before, _Address) and isinstance(one, _Address):
            name = f"a{lines.count}"
            lines.count += 1
            lines.text.append(f"u8* const {name} = {test} ? {one.text} : {before.text};")
            return _Address(name)
        if isinstance(before, Value) and isinstance(one, Value):
            return where(lines.write(test, bool_), one, before)
        value, address = (one, before) if isinstance(one, Value) else (before, one)
        assert isinstance(value, Value)
        assert isinstance(address, _Address)
        read = f"*(const {memory_type(dtype)}*)({address.text})"
        read = f"({read} != 0)" if dtype == bool_ else read
        then = f"{read} : {value.name}" if address is one else f"{value.name} : {read}"
        return lines.write(f"{test} ? {then}", dtype)

    def clamped(
        self, lines: CudaLines, v: int, env: _Env, inside: dict[int, tuple[int, int]]
    ) -> _Env:
        """Indices inside of a piece, for what is made there and not only looked at."""
        found = list(env)
        for axis, (lo, hi) in inside.items():
            at = env[axis]
            if (lo, hi) == (at.lo, at.hi):
                continue
            wanted = _Index(at.name, lo, hi)
            if not self.is_memory(v) and wanted not in self.clamps:
                low, high, name = self.fact(lo), self.fact(hi - 1), f"c{len(self.clamps)}"
                text = f"{at.name} < {low} ? {low} : {at.name} > {high} ? {high} : {at.name}"
                lines.text.append(f"const s64 {name} = {text};")
                self.clamps[wanted] = _Index(name, lo, hi)
            found[axis] = wanted if self.is_memory(v) else self.clamps[wanted]
        return tuple(found)

    def is_memory(self, v: int) -> bool:
        """Whether an address is all that is made of a value, wherever it is read."""
        k = self.body.producers[v]
        if k < 0:
            return True
        node = self.body.nodes[k]
        if not is_move(node) or not all(map(self.is_memory, node.inputs)):
            return False
        pieces = pieces_of(node, [self.shapes[u] for u in node.inputs]) if is_join(node) else ()
        return pieces is not None and not any(p.combine or p.operand < 0 for p in pieces)

    def known_number(self, lines: CudaLines, v: int, part: int) -> Value | None:
        name = self.known.get((v, part))
        return None if name is None else Value(lines, name, real_of(self.body.specs[v].dtype))


def _is_sum(body: Graph, v: int) -> bool:
    k = body.producers[v]
    return k >= 0 and bool(OPS[body.nodes[k].op].reduce)


def _inside(piece: Piece, look: Look, shape: Shape, env: _Env) -> dict[int, tuple[int, int]] | None:
    """By axis of the loops, the range of indices that are in a piece, if any can be."""
    found: dict[int, tuple[int, int]] = {}
    for at, part, n in zip(look, piece.at, shape, strict=False):
        lo, hi, _ = part.indices(n)
        first, last = indices_in(at, lo, hi)
        if at.axis < 0:
            if first >= last:
                return None
            continue
        here = env[at.axis]
        lo, hi = found.get(at.axis, (here.lo, here.hi))
        found[at.axis] = max(first, lo), min(last, hi)
        if found[at.axis][0] >= found[at.axis][1]:
            return None
    return found


def moved_kernel(body: Graph, shape: Shape, arrays: Sequence[Any], axes: int) -> Kernel:
    """The kernel of a body with moves, for operands and results that lie so; the last `axes` of its elements
    are reduced."""
    return kernel_by(MovedWriter(body, shape, arrays, axes))
