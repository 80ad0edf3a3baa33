"""Where the elements of joins, rolls, pads, updates and slices lie: kernels read them there.

    joined = concat(u[-1:], u[:-1])       at 0: u at n - 1; from 1 on: u at i - 1
    joined + u                            two boxes: [0, 1) reads u[n-1:], u[:1]; [1, n) reads u[:-1], u[1:]

In a box that no piece's edge cuts, each element of a value in it is made of elements of operands that lie at
fixed distances: what is left there are operations on elements, over views. `boxes_of` finds these boxes and
what is done in each. Where an operand's dimension lies in a result follows from the index rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import plain
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Window
from ostinato.ops.core.layout import Box
from ostinato.ops.core.registry import OPS, Piece
from ostinato.ops.core.spec import DType, Shape, Spec

from .labels import combines


class Along(NamedTuple):
    """Where something lies along one of its dimensions: at `offset + step*i` for the index `i` of an axis of
    the loops, or at `offset` where that is -1."""

    axis: int
    offset: int
    step: int

    def position(self, i: int) -> int:
        return self.offset + self.step * i


Look = tuple[Along, ...]  # at a value, from a kernel's loops: for each dimension
Dims = tuple[Along, ...]  # of an operand, over the dimensions of a result


# -- which operations move -------------------------------------------------------------------
def is_join(node: Node) -> bool:
    """Whether it puts its result together of pieces at known places."""
    return OPS[node.op].moves.pieces is not None and bool(OPS[node.op].run.placed)


def is_move(node: Node) -> bool:
    """Whether each element of its result is one of its operands', or a number, or several at one place
    combined, and where they lie is known."""
    op = OPS[node.op]
    looks = op.moves.selects == "slices" or op.renames_axes or op.turns_axes or op.moves.repeats
    return len(node.specs) == 1 and ((op.is_view and looks) or is_join(node))


def dims_of(
    node: Node, ins: Sequence[Spec], out: Spec, spread: bool = True
) -> tuple[Dims, ...] | None:
    """Dimensions of each operand; None if some dimension is not affine in one of the result. `spread`: those
    of one element go along with none."""
    try:
        indices = OPS[node.op].indices(tuple(ins), (out,), node.kw)
    except (IndexError, ValueError):
        return None
    if indices.chunked or indices.parts or indices.reduce:
        return None
    places = {label: d for d, label in enumerate(indices.outs[0]) if label is not None}
    found = []
    for spec, own in zip(ins, indices.ins, strict=True):
        dims = [_along(dim, n, places, spread) for dim, n in zip(own, spec.shape, strict=True)]
        if any(d is None for d in dims):
            return None
        found.append(tuple(d for d in dims if d is not None))
    return tuple(found)


def _along(dim: str | Window | None, n: int, places: dict[str, int], spread: bool) -> Along | None:
    if n == 1 and not isinstance(dim, Window) and (spread or dim not in places):
        return Along(-1, 0, 0)
    if isinstance(dim, Window):
        simple = dim.size == 1 and dim.over is None and dim.every == 1 and dim.label in places
        return Along(places[dim.label], dim.offset, dim.stride) if simple else None
    return Along(places[dim], 0, 1) if dim in places else None


def pieces_of(node: Node, ins: Sequence[Shape]) -> Sequence[Piece] | None:
    """The pieces of a join, later ones over earlier ones; None if it is not known where."""
    found = OPS[node.op].moves.pieces
    pieces = found(ins, **plain(node.kw)) if found is not None else None
    if pieces is None or any(p.places or p.picks for p in pieces):
        return None
    return pieces if all(s.step in (None, 1) for p in pieces for s in p.at) else None


def edges(pieces: Sequence[Piece], shape: Shape) -> Iterator[tuple[int, int]]:
    """The places along axes where pieces begin and end inside of a join."""
    for piece in pieces:
        for d, part in enumerate(piece.at):
            lo, hi, _ = part.indices(shape[d])
            yield from ((d, x) for x in (lo, hi) if 0 < x < shape[d])


Known = tuple[int | None, ...]  # a shape, as far as operands say it


def shapes_of(body: Graph, given: Sequence[Shape]) -> list[Shape]:
    """The shape of each value, where operands have these: parts of what the body was made for. Along what no
    operand has, it is as what is made of it, and else as there."""
    found: list[Known] = [*given]
    for k, node in enumerate(body.nodes):
        found.append(_local(body, k, [found[v] for v in node.inputs]))
    for k in reversed(range(len(body.nodes))):
        _tell_operands(body, k, found)
    return [
        tuple([whole if n is None else n for n, whole in zip(own, spec.shape, strict=True)])
        for own, spec in zip(found, body.specs, strict=True)
    ]


def _tell_operands(body: Graph, k: int, found: list[Known]) -> None:
    """Say along what an operand such as a number for all elements has as many as the result here."""
    node, made = body.nodes[k], found[body.outs(k)[0]]
    if all(None not in found[v] for v in node.inputs):
        return
    kept, lies = _lies(body, k)
    here = {(d, 0, 1): (n, m) for d, n, m in zip(kept, made, node.specs[0].shape, strict=True)}
    for v, dims in zip(node.inputs, lies, strict=True):
        told = [
            here[at][0] if n is None and at in here and here[at][1] == m else n
            for n, at, m in zip(found[v], dims, body.specs[v].shape, strict=True)
        ]
        found[v] = tuple(told)


def _lies(body: Graph, k: int) -> tuple[Sequence[int], Sequence[Dims]]:
    """The axes that a result keeps, and where along all of them operands lie."""
    node, (spec,) = body.nodes[k], body.nodes[k].specs
    specs = [body.specs[v] for v in node.inputs]
    if is_move(node):
        found = dims_of(node, specs, spec, spread=False)
        assert found is not None
        return range(spec.ndim), found
    _, axes = combines(body, node)
    ndim = max((s.ndim for s in specs), default=0)
    lies = [tuple([Along(d + ndim - s.ndim, 0, 1) for d in range(s.ndim)]) for s in specs]
    return [d for d in range(ndim) if d not in axes], lies


def _local(body: Graph, k: int, ins: Sequence[Known]) -> Known:
    node, (spec,) = body.nodes[k], body.nodes[k].specs
    specs = [body.specs[v] for v in node.inputs]
    if OPS[node.op].moves.selects:  # along what it does not cut it has what is here
        kw = node.kw
        cut = zip(ins[0], specs[0].shape, kw["starts"], kw["sizes"], kw["steps"], strict=True)
        return tuple(here if (a, n, s) == (0, m, 1) else n for here, m, a, n, s in cut)
    kept, lies = _lies(body, k)
    made: list[int | None] = []
    for d, n in zip(kept, spec.shape, strict=True) if specs else ((0, n) for n in spec.shape):
        here = [
            local
            for own, dims, s in zip(ins, lies, specs, strict=True)
            for local, at, m in zip(own, dims, s.shape, strict=True)
            if at == (d, 0, 1) and m == n
        ]
        known = [m for m in here if m is not None]
        # of one row, which is here or elsewhere, or everywhere, too, none may be here
        made.append(min(known) if known else n if is_join(node) and not here else None)
    return tuple(made)


# -- what is done in a box -------------------------------------------------------------------
class Cell(NamedTuple):
    """A number that a join has in a place, read like an operand, so that one text does for all boxes."""

    value: Any
    dtype: DType


@dataclass(frozen=True, slots=True)
class Part:
    """A box of the loops, and what is done there: a body of single elements over these looks at operands
    (or cells)."""

    box: Box
    body: Graph
    reads: tuple[tuple[int | Cell, Look], ...]

    def offset_and_strides(self, read: int, steps: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """How far from its operand's first element a read begins, and its strides over the
        loops, where the operand has such steps."""
        _, look = self.reads[read]
        strides = [0] * len(self.box)
        offset = 0
        for along, step in zip(look, steps, strict=True):
            lo = self.box[along.axis][0] if along.axis >= 0 else 0
            offset += step * along.position(lo)
            if along.axis >= 0:
                strides[along.axis] += step * along.step
        return offset, tuple(strides)


class _Cut(Exception):
    """A box has to be cut at this index of an axis."""

    def __init__(self, axis: int, place: int) -> None:
        super().__init__()
        self.axis, self.place = axis, place


@lru_cache(256)
def boxes_of(body: Graph, given: tuple[Shape, ...], shape: Shape) -> tuple[Part, ...]:
    """The boxes of loops over such a shape, in order, for operands of these shapes."""
    shapes = shapes_of(body, given)
    waiting: list[Box] = [tuple((0, n) for n in shape)] if math.prod(shape) else []
    found = []
    while waiting:
        box = waiting.pop()
        try:
            found.append(_Inside(body, shapes, box).part())
        except _Cut as cut:
            lo, hi = box[cut.axis]
            halves = (cut.place, hi), (lo, cut.place)
            waiting += [(*box[: cut.axis], one, *box[cut.axis + 1 :]) for one in halves]
    return tuple(found)


class _Inside:
    """What a body's values are in one box."""

    def __init__(self, body: Graph, shapes: Sequence[Shape], box: Box) -> None:
        self.body, self.shapes, self.box = body, shapes, box
        self.reads: dict[tuple[int | Cell, Look], int] = {}
        self.nodes: list[tuple[str, tuple[int, ...], Any, DType]] = []  # read -k is input k - 1
        self.known: dict[tuple[int, Look], int] = {}

    def part(self) -> Part:
        body = self.body
        whole = tuple(Along(d, 0, 1) for d in range(len(self.box)))
        made = []
        for v in body.outputs:
            k = body.producers[v]
            if k >= 0 and OPS[body.nodes[k].op].reduce:
                node = body.nodes[k]
                before = self.value(node.inputs[0], whole)
                made.append(self.add(node.op, (before,), node.params, node.specs[0].dtype))
            else:
                made.append(self.value(v, whole))
        dtypes = [x.dtype if isinstance(x, Cell) else body.specs[x].dtype for x, _ in self.reads]
        shape, count = (2,) * len(self.box), len(dtypes)  # the same for all boxes
        builder = Builder([Spec(shape, dtype) for dtype in dtypes])
        values = [*range(count)]
        for op, ins, params, dtype in self.nodes:
            given = [-1 - v if v < 0 else values[count + v] for v in ins]
            own = shape[len(dict(params)["axes"]) :] if OPS[op].reduce else shape
            values += builder.add(op, given, params, (Spec(own, dtype),))
        outs = [-1 - v if v < 0 else values[count + v] for v in made]
        graph = Graph(builder.inputs, tuple(builder.nodes), tuple(outs))
        return Part(self.box, graph, tuple(self.reads))

    def add(self, op: str, ins: tuple[int, ...], params: Any, dtype: DType) -> int:
        self.nodes.append((op, ins, params, dtype))
        return len(self.nodes) - 1

    def read(self, what: int | Cell, look: Look) -> int:
        return -1 - self.reads.setdefault((what, look), len(self.reads))

    def value(self, v: int, look: Look) -> int:
        """A value that is looked at so: a node's number, or that of what is read, below zero."""
        aligned = len(look) - len(self.shapes[v])
        look = tuple(
            Along(-1, 0, 0) if n == 1 else at
            for at, n in zip(look[aligned:], self.shapes[v], strict=True)
        )
        if (v, look) not in self.known:
            self.known[v, look] = self.made(v, look)
        return self.known[v, look]

    def made(self, v: int, look: Look) -> int:
        body = self.body
        k = body.producers[v]
        if k < 0:
            return self.read(v, look)
        node, dtype = body.nodes[k], body.specs[v].dtype
        if OPS[node.op].element.source == "value":
            return self.add("constant", (), (("dtype", dtype), ("value", node.kw["value"])), dtype)
        if not is_move(node):
            ins = tuple([self.value(u, look) for u in node.inputs])
            return self.add(node.op, ins, node.params, dtype)
        specs = [Spec(self.shapes[u], body.specs[u].dtype) for u in node.inputs]
        dims = dims_of(node, specs, Spec(self.shapes[v], dtype))
        assert dims is not None
        if not is_join(node):
            return self.value(node.inputs[0], seen(look, dims[0]))
        return self.joined(v, node, dims, look)

    def joined(self, v: int, node: Node, dims: Sequence[Dims], look: Look) -> int:
        pieces = pieces_of(node, [self.shapes[u] for u in node.inputs])
        assert pieces is not None
        dtype, over, found = self.body.specs[v].dtype, list[Piece](), 0
        for piece in reversed(pieces):
            if self.is_inside(piece, look, self.shapes[v]):
                over.append(piece)
                if not piece.combine:
                    break
        for n, piece in enumerate(reversed(over)):
            if piece.operand < 0:
                one = self.read(Cell(piece.value, dtype), (Along(-1, 0, 0),))
            else:
                u = node.inputs[piece.operand]
                one = self.value(u, seen(look, dims[piece.operand]))
                one = self.cell(one, dtype)
                if self.body.specs[u].dtype != dtype:
                    one = self.add("astype", (one,), (("dtype", dtype),), dtype)
            found = self.add(piece.combine, (found, one), (), dtype) if n else one
        return found

    def cell(self, found: int, dtype: DType) -> int:
        """A number in the place of an operand is read as one."""
        if found < 0 or self.nodes[found][0] != "constant":
            return found
        value, own = dict(self.nodes[found][2])["value"], self.nodes[found][3]
        return self.read(Cell(value, own), (Along(-1, 0, 0),))

    def is_inside(self, piece: Piece, look: Look, shape: Shape) -> bool:
        """Whether the box is in a piece; it is cut if a part of it is."""
        cut: _Cut | None = None
        for at, part, n in zip(look, piece.at, shape, strict=False):
            lo, hi, _ = part.indices(n)
            begin, end = self.box[at.axis] if at.axis >= 0 else (0, 1)
            first, last = indices_in(at, lo, hi)
            first, last = max(first, begin), min(last, end)
            if first >= last:
                return False
            if (first, last) != (begin, end):
                cut = _Cut(at.axis, first if first > begin else last)
        if cut is not None:
            raise cut
        return True


def indices_in(at: Along, lo: int, hi: int) -> tuple[int, int]:
    """The range of indices whose places are in another one."""
    if at.axis < 0 or at.step == 0:
        return (0, 1 << 62) if lo <= at.offset < hi else (0, 0)
    if at.step > 0:
        return -((at.offset - lo) // at.step), -((at.offset - hi) // at.step)
    back = -at.step
    return -((hi - 1 - at.offset) // back), (at.offset - lo) // back + 1


def seen(look: Look, dims: Dims) -> Look:
    """An operand, where a result is looked at so."""
    found = []
    for d in dims:
        if d.axis < 0:
            found.append(Along(-1, d.offset, 0))
        else:
            at = look[d.axis]
            step = d.step * at.step
            found.append(Along(at.axis if step else -1, d.offset + d.step * at.offset, step))
    return tuple(found)


def has_moves(body: Graph) -> bool:
    return any(is_move(node) for node in body.nodes)
