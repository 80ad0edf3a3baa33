"""Elements of joins, rolls, pads and windows in CUDA: which piece has one is chosen without a branch.

    const s32 n1 = x0 + (x0 >= 1 ? 0 : f2);                   // a roll: another index
    const u8* const n2 = x0 < f3 ? q0 + ... : q1 + ...;       // a join of what is in memory: another address
    const float t4 = n3 ? t1 : t2;                            // of what is made here: both, and one of them

So all that a thread reads is on its way at once. What is read outside of a piece is read inside of its array,
and not used. A thread makes some neighbours, each with a text of its own, in which the ends of rows are asked
about only where they can be: what they read together is one vector, what they compute is computed once. A
block's threads make a tile, so that what lies next to it comes from the cache of a multiprocessor: a
thousand of these together ask the cache of level 2 for little more than memory has to give. The places where
pieces begin are given to the kernel, so its text has none of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ostinato.ops.core.graph import Graph, Node
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
from ostinato.ops.jit.registers import order_for_registers
from ostinato.ops.jit.scalar import lower, number
from ostinato.ops.jit.values import Value, where

from ..jit.lines import CudaLines, memory_type
from .flat import MOST_ROWS, ElementWriter, kernel_by
from .schedule import BLOCKS, THREADS, VECTOR, WARP
from .text import Kernel

TILE_2, TILE_3 = (1, 8, 32), (4, 4, 16)  # threads of a block along the last three axes


@dataclass(frozen=True, slots=True)
class _Index:
    """What an axis' index is called here, the range in which elements are wanted, the one in which it is
    whatever is wanted, and of what it is a multiple."""

    name: str
    lo: int
    hi: int
    first: int
    end: int
    every: int = 1

    def clipped(self, lo: int, hi: int) -> tuple[int, int]:
        """The part of a range that it can be in."""
        lo, hi = max(lo, self.lo), min(hi, self.hi)
        return -(-lo // self.every) * self.every, (hi - 1) // self.every * self.every + 1


_Env = tuple[_Index, ...]


@dataclass(frozen=True, slots=True)
class _Address:
    base: str  # a pointer's name
    off: int  # bytes


@dataclass(frozen=True, slots=True)
class _Base:
    """What is known of a pointer: of which arrays, to what bytes it is aligned if these are to as many as
    it takes, and how far around it their memory goes."""

    arrays: tuple[int, ...]
    align: int
    before: int = 0
    behind: int = 0


class MovedWriter(ElementWriter):
    """The text of a body with moves."""

    def __init__(self, body: Graph, shape: Shape, arrays: Sequence[Any], axes: int) -> None:
        count = len(body.inputs)
        self.arrays = [(x.shape, x.strides) for x in arrays]
        if not shape:  # one element, as that of a row
            shape, ends = (1,), [((1,), (x.dtype.itemsize,)) for x in arrays[count:]]
            self.arrays[count:] = ends
        kept = len(shape) - axes if axes else len(shape) - 1
        self.shape, self.kept, self.reduces = shape, kept, axes > 0
        self.shapes = shapes_of(body, [x.shape for x in arrays[:count]])
        extents = (*shape[:kept], math.prod(shape[kept:]))
        nothing = (0,) * len(extents)
        sums = [
            (*x.strides, 0) if _is_sum(body, v) else nothing
            for v, x in zip(body.outputs, arrays[count:], strict=True)
        ]
        super().__init__(body, Loops(extents, (*[nothing] * count, *sums)))
        self.told: dict[int, str] = {}
        self.vectored: dict[int, int] = {}  # to what bytes arrays have to be aligned
        self.begin()

    def begin(self, wanted: dict[str, set[int]] | None = None) -> None:
        """Forget what a text has. `wanted`: what all of it reads, if that may be vectors."""
        self.made: dict[tuple[int, Look, _Env], Value | _Address] = {}
        self.names: dict[tuple[str, str], str] = {}
        self.bases: dict[str, _Base] = {}
        self.loads: dict[_Address, Value] = {}
        self.read: dict[str, set[int]] = {}
        self.wanted = wanted or {}

    def reach(self) -> int:
        spans = [sum(abs(s) * n for n, s in zip(*x, strict=True)) for x in self.arrays]
        return max(math.prod(self.shape), *(2 * n for n in spans))

    # -- what it is given
    def parameters(self) -> list[str]:
        return [*super().parameters(), *(f"s64 {name}" for name in self.told.values())]

    def facts(self) -> tuple[int, ...]:
        return (*super().facts(), *self.told)

    def fact(self, value: int) -> str:
        """A number that depends on shapes; small ones are part of the text."""
        if abs(value) <= VECTOR:
            return f"({value})"
        return f"({self.place}){self.told.setdefault(value, f'f{len(self.told)}')}"

    def rows(self) -> list[str]:
        return super().rows() if self.reduces else []

    # -- which thread has which
    def count_beside(self) -> int:
        count, inner = len(self.body.inputs), self.shape[-1]
        if max(order_for_registers(self.body, range(len(self.body.nodes)))[1], default=0) > WARP:
            return 1
        sizes = [0 if k in self.counted else d.itemsize for k, d in enumerate(self.dtypes)]
        each = VECTOR // max(2, *sizes)
        while each > 1 and each * len(self.body.nodes) > 1024:
            each //= 2  # or the text takes long to compile
        for k, (size, (shape, steps)) in enumerate(zip(sizes, self.arrays, strict=True)):
            if k in self.counted:
                continue
            lies = bool(steps) and (steps[-1] == size or shape[-1] == 1)
            if not lies and k >= count:
                return 1
            outer = [s for n, s in zip(shape[:-1], steps, strict=False) if n > 1] if lies else []
            while each > 1 and (inner % each or any(s % (each * size) for s in outer)):
                each //= 2
        while each > 1 and math.prod(self.shape) < BLOCKS * THREADS * each:
            each //= 2  # of few elements, so that more multiprocessors have some
        return each

    def share_rows(self, each: int, turn: Sequence[str]) -> tuple[list[str], tuple[int, int]]:
        """A block has a tile of the last three axes."""
        *outer, inner = self.shape
        if not outer:
            return super().share_rows(each, turn)
        place, kind, along = self.place, self.index, -(-inner // each)
        *_, far, near = 1, *outer
        wide = _tile(far, near, along)
        tile = [*(1,) * (len(outer) - 2), *wide[3 - min(len(self.shape), 3) : 2]]
        inside = [f"threadIdx.x / {wide[1] * wide[2]}", f"threadIdx.x / {wide[2]} % {wide[1]}"]
        inside = [*("0",) * (len(outer) - 2), *inside[-len(outer) :]]
        ends = [f"({place})e{d}" for d in range(len(self.shape))]
        lane = f"(({place})blockIdx.x * {wide[2]} + threadIdx.x % {wide[2]})"
        code = [f"const {place} first = {lane} * {each};", f"if (first >= {ends[-1]}) return;"]
        tiles = [-(-n // t) for n, t in zip(outer, tile, strict=True)]
        code += [
            f"const {kind} tiles{d} = (({kind})e{d} + {t - 1}) / {t};" for d, t in enumerate(tile)
        ]
        count = " * ".join(f"tiles{d}" for d in range(len(outer)))
        code += [f"for ({kind} o = blockIdx.y; o < {count}; o += gridDim.y) {{"]
        rest = "o"
        for d in reversed(range(len(outer))):
            if d:
                code.append(f"const {kind} rest{d} = {self.divided(rest, f'tiles{d}', tiles[d])};")
            own = f"({rest} - rest{d} * tiles{d})" if d else rest
            code.append(f"const {place} x{d} = ({place})({own} * {tile[d]} + {inside[d]});")
            code += [f"if (x{d} >= {ends[d]}) continue;"] if tile[d] > 1 else []
            rest = f"rest{d}"
        grid = -(-along // wide[2]), min(math.prod(tiles), MOST_ROWS)
        return [*code, *turn, "}"], grid

    # -- an element
    def one(self, lines: CudaLines) -> list[Combination]:
        self.begin()
        env = self.outer_indices()
        inner = self.shape[self.kept :]
        lines.text.append(f"const {self.place} i0 = ({self.place})i;")
        if len(inner) == 1:
            env.append(_Index("i0", 0, inner[0], 0, inner[0]))
        else:
            lines.text.append(f"{self.place} left = i0;")
            for d in reversed(range(self.kept, len(self.shape))):
                n, place = self.fact(self.shape[d]), f"const {self.place} x{d}"
                lines.text.append(f"{place} = {f'left % {n}' if d > self.kept else 'left'};")
                lines.text += [f"left /= {n};"] if d > self.kept else []
            env += [_Index(f"x{self.kept + d}", 0, n, 0, n) for d, n in enumerate(inner)]
        look = tuple(Along(d, 0, 1) for d in range(len(self.shape)))
        stored, sums = self.outputs(lines, look, tuple(env))
        for k, value in stored:
            at = self.address_of(lines, k, look, tuple(env))
            lines.store(f"{at.base} + {at.off}", value)
        return sums

    def outer_indices(self) -> list[_Index]:
        return [_Index(f"x{d}", 0, n, 0, n) for d, n in enumerate(self.shape[: self.kept])]

    def outputs(
        self, lines: CudaLines, look: Look, env: _Env
    ) -> tuple[list[tuple[int, Value]], list[Combination]]:
        body, made = self.body, {}
        for v in body.outputs:
            if _is_sum(body, v):
                (u,) = body.nodes[body.producers[v]].inputs
                one = self.value(lines, u, look, env)
                made[v] = lower(body.nodes[body.producers[v]].op, [one], body.specs[v].dtype)
            else:
                made[v] = self.value(lines, v, look, env)
        return results(body, made, self.known)

    # -- neighbours
    def vectors(self, lines: CudaLines, each: int) -> None:
        self.begin()
        self.lanes(CudaLines(), each)  # which says what is read
        self.begin(self.read)
        stored = self.lanes(lines, each)
        for k in stored[0]:
            lines.text.append(f"{_beside_of(self.dtypes[k], each)} v{k};")
            for j, made in enumerate(stored):
                lines.store(f"(u8*)&v{k}.at[{j}]", made[k])
        look = tuple(Along(d, 0, 1) for d in range(len(self.shape)))
        for k in stored[0]:
            at, kind = (
                self.address_of(lines, k, look, self.env_of(each)),
                _beside_of(self.dtypes[k], each),
            )
            lines.text.append(f"*({kind}*)({at.base} + {at.off}) = v{k};")
            self.vectored[k] = max(each * self.dtypes[k].itemsize, self.vectored.get(k, 1))

    def aligned(self, each: int) -> str:
        return " && ".join(f"((u64)q{k} & {n - 1}) == 0" for k, n in self.vectored.items())

    def lanes(self, lines: CudaLines, each: int) -> list[dict[int, Value]]:
        """The results of some neighbours, of which each is looked at from the first one's index."""
        last, env = len(self.shape) - 1, self.env_of(each)
        outer = tuple(Along(d, 0, 1) for d in range(last))
        looks = [(*outer, Along(last, j, 1)) for j in range(each)]
        return [dict(self.outputs(lines, look, env)[0]) for look in looks]

    def env_of(self, each: int) -> _Env:
        end = self.shape[-1] - each + 1
        return (*self.outer_indices(), _Index("first", 0, end, 0, end, each))

    # -- what is in memory
    def named(self, lines: CudaLines, kind: str, text: str) -> str:
        """A name of an expression, which is written once."""
        if (kind, text) not in self.names:
            name = self.names[kind, text] = f"n{len(self.names)}"
            lines.text.append(f"const {kind} {name} = {text};")
        return self.names[kind, text]

    def address_of(self, lines: CudaLines, k: int, look: Look, env: _Env) -> _Address:
        """The address of an operand's or a result's element: of another one where none is wanted there and
        its own were outside of the array."""
        shape, steps = self.arrays[k]
        offset, inner, along = 0, 0, dict[int, int]()
        for at, step in zip(look, steps, strict=True):
            offset += step * at.offset
            if at.axis >= 0:
                along[at.axis] = along.get(at.axis, 0) + step * at.step
            if at.axis == len(self.shape) - 1:
                inner += step * at.offset
        along = {axis: step for axis, step in along.items() if step}
        ends = [step * (n - 1) for n, step in zip(shape, steps, strict=True)]
        least, most = sum(min(x, 0) for x in ends), sum(max(x, 0) for x in ends)
        indices = {axis: env[axis] for axis in along}
        for axis in sorted(along):
            low, high = _limits(offset, along, indices)
            if least <= low and high <= most:
                break
            indices[axis] = self.clamped(lines, indices[axis])
        low, high = _limits(offset, along, indices)
        near = 4 * VECTOR  # places that share an address
        off = (inner + near // 2) % near - near // 2
        terms = [
            index.name if along[axis] == 1 else f"{self.fact(along[axis])} * {index.name}"
            for axis, index in indices.items()
        ]
        terms += [self.fact(offset - off)] if offset != off else []
        text = f"q{k} + ({' + '.join(terms)})" if terms else f"q{k}"
        base = self.named(lines, "u8*" if k >= len(self.body.inputs) else "u8* const", text)
        steps_ = [along[axis] * index.every for axis, index in indices.items()]
        align = math.gcd(VECTOR, offset - off, *steps_)
        self.bases[base] = _Base((k,), align, low - off - least, most - (high - off))
        return _Address(base, off)

    def clamped(self, lines: CudaLines, index: _Index) -> _Index:
        """An index that is where elements are wanted."""
        if (index.lo, index.hi) == (index.first, index.end):
            return index
        name, low, high = index.name, self.fact(index.lo), self.fact(index.hi - 1)
        if index.first < index.lo:
            name = self.named(lines, self.place, f"{name} < {low} ? {low} : {name}")
        if index.hi < index.end:
            name = self.named(lines, self.place, f"{name} > {high} ? {high} : {name}")
        return replace(index, name=name, first=index.lo, end=index.hi)

    def value(self, lines: CudaLines, v: int, look: Look, env: _Env) -> Value:
        found = self.found(lines, v, look, env)
        return self.loaded(lines, found, self.body.specs[v].dtype)

    def loaded(self, lines: CudaLines, found: Value | _Address, dtype: DType) -> Value:
        if isinstance(found, Value):
            return found
        if found not in self.loads:
            self.read.setdefault(found.base, set()).add(found.off)
            first, many = self.vector_of(found, dtype)
            if many == 1:
                self.loads[found] = lines.load(f"{found.base} + {found.off}", dtype)
            else:
                kind, name = _beside_of(dtype, many), f"w{lines.count}"
                lines.text.append(
                    f"const {kind} {name} = *(const {kind}*)({found.base} + {first});"
                )
                for j in range(many):
                    one = _Address(found.base, first + dtype.itemsize * j)
                    if one.off in self.wanted[found.base]:
                        self.loads[one] = lines.load(f"(u8*)&{name}.at[{j}]", dtype)
        return self.loads[found]

    def vector_of(self, found: _Address, dtype: DType) -> tuple[int, int]:
        """Where the vector begins in which something is read with others, and how many it has."""
        base, wanted, size = (
            self.bases[found.base],
            self.wanted.get(found.base, set()),
            dtype.itemsize,
        )
        best, most = (found.off, 1), 1
        bytes_ = 2 * size
        while bytes_ <= base.align:
            first = found.off // bytes_ * bytes_
            own = [off for off in range(first, first + bytes_, size) if off in wanted]
            inside = -base.before <= first and first + bytes_ - size <= base.behind
            if len(own) > most and (inside or len(own) * size == bytes_):
                best, most = (first, bytes_ // size), len(own)
            bytes_ *= 2
        if best[1] > 1:
            for k in base.arrays:
                self.vectored[k] = max(best[1] * size, self.vectored.get(k, 1))
        return best

    # -- what is made
    def found(self, lines: CudaLines, v: int, look: Look, env: _Env) -> Value | _Address:
        """Where a value's element lies, or what it is."""
        shape = self.shapes[v]
        look = tuple(
            Along(-1, 0, 0) if n == 1 and not _is_first(at, env) else at
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
            steps = zip(look, self.arrays[v][1], strict=True)
            parts = [(at, step) for at, step in steps if step]
            terms = [f"{self.fact(step * at.offset)}" for at, step in parts if at.offset]
            terms += [
                f"{self.fact(step * at.step)} * {env[at.axis].name}"
                for at, step in parts
                if at.axis >= 0
            ]
            return lines.write(" + ".join([f"*(const s64*)q{v}", *terms]), body.specs[v].dtype)
        if k < 0:
            return self.address_of(lines, v, look, env)
        node, dtype = body.nodes[k], body.specs[v].dtype
        if OPS[node.op].element.source == "value":
            return number(lines, node, v, lambda u, part: self.known_number(lines, u, part))
        if not is_move(node):
            ins = [self.value(lines, u, look, env) for u in node.inputs]
            return lower(node.op, ins, dtype)
        if not is_join(node):
            return self.found(lines, node.inputs[0], self.operand_looks(v, look)[0], env)
        looks, over = self.operand_looks(v, look), [*self.pieces(node, look, self.shapes[v], env)]
        if (turned := self.turned(lines, node, looks, over, env)) is not None:
            return self.found(lines, *turned)
        made: Value | _Address | None = None
        for piece, inside in over:  # later ones over earlier ones
            made = self.overlaid(lines, made, piece, node.inputs, looks, dtype, env, inside)
        assert made is not None
        return made

    def operand_looks(self, v: int, look: Look) -> list[Look]:
        """How the operands of a move are looked at."""
        body, node = self.body, self.body.nodes[self.body.producers[v]]
        specs = [Spec(self.shapes[u], body.specs[u].dtype) for u in node.inputs]
        dims = dims_of(node, specs, Spec(self.shapes[v], body.specs[v].dtype))
        assert dims is not None
        return [seen(look, own) for own in dims]

    def pieces(
        self, node: Node, look: Look, shape: Shape, env: _Env
    ) -> Iterator[tuple[Piece, dict[int, tuple[int, int]]]]:
        """The pieces of a join that are looked at, and where that is."""
        pieces = pieces_of(node, [self.shapes[u] for u in node.inputs])
        assert pieces is not None
        for piece in pieces:
            if (inside := _inside(piece, look, shape, env)) is not None:
                yield piece, inside

    def turned(
        self,
        lines: CudaLines,
        node: Node,
        looks: Sequence[Look],
        over: Sequence[tuple[Piece, dict[int, tuple[int, int]]]],
        env: _Env,
    ) -> tuple[int, Look, _Env] | None:
        """The one value that all pieces of a join are of, as a roll's are, looked at from another index."""
        if len(over) < 2 or any(p.combine or p.operand < 0 for p, _ in over):
            return None
        roots = [self.root(node.inputs[p.operand], looks[p.operand]) for p, _ in over]
        cut = {a for _, inside in over for a, at in inside.items() if at != (env[a].lo, env[a].hi)}
        if len({u for u, _ in roots}) > 1 or len(cut) != 1:
            return None
        (axis,), (u, look) = cut, roots[0]
        places = [d for d, at in enumerate(look) if at.axis == axis]
        if len(places) != 1 or abs(look[places[0]].step) != 1:
            return None
        (d,), index = places, env[axis]
        offsets = [own[d].offset for _, own in roots]
        if any(_moved(own, d, 0) != _moved(look, d, 0) for _, own in roots):
            return None
        order = sorted(range(len(over)), key=lambda n: over[n][1].get(axis, (index.lo, index.hi)))
        ranges = [over[n][1].get(axis, (index.lo, index.hi)) for n in order]
        ends = [-(-hi // index.every) * index.every for _, hi in ranges]
        if [lo for lo, _ in ranges] != [index.lo, *ends[:-1]] or ranges[-1][1] != index.hi:
            return None
        _, most = max((hi - lo, n) for n, (lo, hi) in zip(order, ranges, strict=True))
        by = [look[d].step * (offsets[n] - offsets[most]) for n in order]
        text = self.fact(by[0])
        for (lo, _), more in zip(ranges[1:], by[1:], strict=True):
            text = f"({index.name} >= {self.fact(lo)} ? {self.fact(more)} : {text})"
        lows = [lo + more for (lo, _), more in zip(ranges, by, strict=True)]
        highs = [hi + more for (_, hi), more in zip(ranges, by, strict=True)]
        made = _Index(
            self.named(lines, self.place, f"{index.name} + {text}"),
            min(lows),
            max(highs),
            min(*lows, index.first + by[0]),
            max(*highs, index.end + by[-1]),
            math.gcd(index.every, *by),
        )
        look = _moved(look, d, offsets[most])
        return u, look, (*env[:axis], made, *env[axis + 1 :])

    def root(self, v: int, look: Look) -> tuple[int, Look]:
        """The value that another one is a view of, and how that is looked at."""
        while (k := self.body.producers[v]) >= 0:
            node = self.body.nodes[k]
            if not is_move(node) or is_join(node):
                break
            look = look[len(look) - len(self.shapes[v]) :]
            look, v = self.operand_looks(v, look)[0], node.inputs[0]
        return v, look

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
        tests, wanted = [], [*env]
        for axis, (lo, hi) in inside.items():
            at = env[axis]
            wanted[axis] = replace(at, lo=lo, hi=hi)
            tests += [f"{at.name} >= {self.fact(lo)}"] if lo > at.lo else []
            tests += [f"{at.name} < {self.fact(hi)}"] if hi < at.hi else []
        one: Value | _Address
        if piece.operand < 0:
            one = lines.constant(piece.value, dtype)
        else:
            one = self.found(lines, inputs[piece.operand], looks[piece.operand], tuple(wanted))
        if before is None or (not tests and not piece.combine):
            return one
        if piece.combine:
            before = self.loaded(lines, before, dtype)
            one = lower(piece.combine, [before, self.loaded(lines, one, dtype)], dtype)
        test = self.named(lines, "bool", " && ".join(tests)) if tests else "true"
        if isinstance(before, _Address) and isinstance(one, _Address):
            return one if one == before else self.either(lines, test, one, before)
        one, before = (self.loaded(lines, x, dtype) for x in (one, before))
        return where(Value(lines, test, bool_), one, before)

    def either(self, lines: CudaLines, test: str, one: _Address, other: _Address) -> _Address:
        both, off = [one, other], one.off if one.off == other.off else 0
        texts = [x.base if x.off == off else f"{x.base} + {x.off}" for x in both]
        base = self.named(lines, "u8* const", f"{test} ? {texts[0]} : {texts[1]}")
        known = [self.bases[x.base] for x in both]
        align = math.gcd(*(x.align for x in known), *(x.off - off for x in both))
        arrays = tuple({k: None for x in known for k in x.arrays})
        self.bases[base] = _Base(arrays, align, -VECTOR, -VECTOR)
        return _Address(base, off)

    def known_number(self, lines: CudaLines, v: int, part: int) -> Value | None:
        name = self.known.get((v, part))
        return None if name is None else Value(lines, name, real_of(self.body.specs[v].dtype))


def _beside_of(dtype: DType, many: int) -> str:
    return f"Beside<{memory_type(dtype)}, {many}>"


def _is_sum(body: Graph, v: int) -> bool:
    k = body.producers[v]
    return k >= 0 and bool(OPS[body.nodes[k].op].reduce)


def _is_first(at: Along, env: _Env) -> bool:
    """Whether all that is wanted along a dimension is its first place, as in a piece of one row: where that
    lies is then said as of other rows, which may be read anyway."""
    if at.axis < 0:
        return False
    lo, hi = env[at.axis].lo, env[at.axis].hi
    return hi - lo == 1 and at.position(lo) == 0


def _moved(look: Look, d: int, offset: int) -> Look:
    """A look whose place along a dimension is another one."""
    return (*look[:d], look[d]._replace(offset=offset), *look[d + 1 :])


def _limits(offset: int, along: dict[int, int], indices: dict[int, _Index]) -> tuple[int, int]:
    """The least and the greatest place that is read, whatever is wanted."""
    ends = [(along[a] * at.first, along[a] * (at.end - 1)) for a, at in indices.items()]
    return offset + sum(map(min, ends)), offset + sum(map(max, ends))


def _tile(far: int, near: int, along: int) -> tuple[int, int, int]:
    """Threads of a block along the last three axes: no more than there are elements, if others have more."""
    most = [1 << (n - 1).bit_length() for n in (far, near, along)]
    wanted = TILE_3 if far > 1 and near > 1 else TILE_2
    tile = [min(pair) for pair in zip(wanted, most, strict=True)]
    while math.prod(tile) < THREADS:
        room = [d for d in (2, 1, 0) if tile[d] < most[d]]
        tile[room[0] if room else 2] *= 2
    return tile[0], tile[1], tile[2]


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
        here = replace(env[at.axis])
        if at.axis in found:
            here = replace(here, lo=found[at.axis][0], hi=found[at.axis][1])
        found[at.axis] = here.clipped(first, last)
        if found[at.axis][0] >= found[at.axis][1]:
            return None
    return found


def moved_kernel(body: Graph, shape: Shape, arrays: Sequence[Any], axes: int) -> Kernel:
    """The kernel of a body with moves, for operands and results that lie so; the last `axes` of its elements
    are reduced."""
    return kernel_by(MovedWriter(body, shape, arrays, axes))
