"""What is joined from pieces that are made of files, as one function of files that are joined.

before                                             after
%1 = slice(%0; starts=(0, 0), sizes=(1, 4))        %1 = join_files(pad_file(first row), pad_file(others))
%2 = exp(others) : float32[8,4]                    %2 = exp(read(pad_file(others; before=1)))
%3 = concat(%1, %2; axis=0) : float32[9,4]         %3 = where(iota(9) < 1, read(%1), %2)

A `concat` along the axis in which files are read has to have all that is joined. Functions of rows need
not: pieces that are the same function of other files are that function of these files, joined. Of
different functions each is made for all rows, of a file with zeros where the others stand, and `where`
takes its own rows of each. So boundaries that a stencil leaves as they were, rows that are rolled, and
what is put around others go block by block as all else does."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Indices
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.expressions import Expression, iota, where
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import made_of

from .file_parts import infer, is_parallel
from .file_views import Part

FUNCTIONS = 4  # different ones that are joined, each of which is made for all rows
RANGES = 16  # of rows in which one of them stands
NEAR = 1 << 16  # bytes between two pieces of a file that are sooner read than left out


@dataclass(frozen=True, slots=True)
class Piece:
    """A value, and where along an axis it stands."""

    value: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Lies:
    """Rows of a file, or parts of them: in place k stands row `shift + step * k`."""

    root: int
    rest: tuple[Part, ...]
    shift: int
    step: int


def in_one(graph: Graph, files: Collection[int], target: Target, most: int) -> Graph:
    """The graph in which no more than `most` bytes are joined of what is made of files, where that can be
    told by rows."""
    made = made_of(graph, files)
    if not any(_is_joined(graph, k, made, most) for k in range(len(graph.nodes))):
        return graph
    found, changed = _Joiner(graph, files, made, target, most), False
    for k, node in enumerate(graph.nodes):
        value = found.joined(k) if _is_joined(graph, k, made, most) else None
        if value is not None:
            changed = True
            found.values.append(value)
            continue
        inputs = [found.values[v] for v in node.inputs]
        found.values.extend(found.builder.add(node.op, inputs, node.params, node.specs, node.line))
    return found.builder.graph([found.values[v] for v in graph.outputs]) if changed else graph


def _is_joined(graph: Graph, k: int, made: Collection[int], most: int) -> bool:
    node = graph.nodes[k]
    joins = OPS[node.op].moves.joins and node.kw["axis"] == 0
    return joins and node.specs[0].nbytes > most and graph.starts[k] in made


class _Joiner:
    def __init__(
        self,
        graph: Graph,
        files: Collection[int],
        made: Collection[int],
        target: Target,
        most: int,
    ) -> None:
        self.graph, self.files, self.made, self.most = graph, files, made, most
        self.bits = target.numerics != "any-workers"
        self.builder = Builder(graph.inputs)
        self.values: list[int] = list(range(len(graph.inputs)))
        self.kinds: dict[tuple[int, int], Hashable] = {}
        self.join = ""  # the op that joins
        self.lying: list[tuple[Lies, int, int]] = []  # rows of files that are read anyway

    def joined(self, k: int) -> int | None:
        """What a node joins, as one function of rows; None if it is none, or of too many."""
        node = self.graph.nodes[k]
        total, pieces = node.specs[0].shape[0], self._pieces(node, 0)
        groups: dict[Hashable, list[Piece]] = {}
        for piece in pieces:
            kind = self.kind(piece.value, 0)
            if kind is None:
                return None
            groups.setdefault(kind, []).append(piece)
        ranges = [_ranges(group) for group in groups.values()]
        if len(groups) > FUNCTIONS or (len(groups) > 1 and sum(map(len, ranges)) > RANGES):
            return None
        self.join = node.op
        self.lying.clear()
        for group in groups.values():
            self._note(group, 0)
        found = [
            Expression(self.builder, self.in_row(group, 0, total), node.line).astype(
                node.specs[0].dtype
            )
            for group in groups.values()
        ]
        order = sorted(range(len(found)), key=lambda g: len(ranges[g]))
        *others, last = order
        value = found[last]
        rows = iota(self.builder, (total, *(1,) * (value.spec.ndim - 1)), 0, node.line)
        for g in others:
            value = where(_within(rows, ranges[g], total), found[g], value)
        return value.value

    def seen(self, v: int) -> tuple[int, list[Part]] | None:
        """The file of which a value shows a part, and which one; None if it is more than that."""
        graph, cuts = self.graph, list[list[Part]]()
        while True:
            k = graph.producers[v]
            node = graph.nodes[k] if k >= 0 else None
            if node is not None and (
                node.op == "slice_file" or OPS[node.op].moves.selects == "slices"
            ):
                kw = node.kw
                cuts.append([*zip(kw["starts"], kw["sizes"], kw["steps"], strict=True)])
            elif v in self.files:
                break
            elif node is None or node.op != "read":
                return None
            (v,) = node.inputs if node is not None else ()
        parts = [(0, n, 1) for n in graph.specs[v].shape]
        for cut in reversed(cuts):
            both = zip(parts, cut, strict=True)
            parts = [(a + by * b, n, by * step) for (a, _, by), (b, n, step) in both]
        return v, parts

    def _pieces(self, node: Node, begin: int) -> list[Piece]:
        """What a node joins, from a place on; of what is itself joined, what that joins."""
        found: list[Piece] = []
        for v in node.inputs:
            k, end = self.graph.producers[v], begin + self.graph.specs[v].shape[0]
            maker = self.graph.nodes[k] if k >= 0 else None
            if maker is not None and OPS[maker.op].moves.joins and maker.kw["axis"] == 0:
                found += self._pieces(maker, begin)
            elif end > begin:
                found.append(Piece(v, begin, end))
            begin = end
        return found

    # -- which function of rows -------------------------------------------------------------
    def kind(self, v: int, axis: int) -> Hashable:
        """What pieces have in common that are the same function of rows along an axis; None of what is
        no such function."""
        if (v, axis) not in self.kinds:
            self.kinds[v, axis] = self._kind(v, axis)
        return self.kinds[v, axis]

    def _kind(self, v: int, axis: int) -> Hashable:
        spec, k = self.graph.specs[v], self.graph.producers[v]
        rest = (*spec.shape[:axis], -1, *spec.shape[axis + 1 :])
        if (seen := self.seen(v)) is not None:
            layout = self.graph.specs[seen[0]].layout
            return ("file", spec.dtype, layout, rest) if axis == 0 else None
        if v not in self.made:
            node = self.graph.nodes[k] if k >= 0 else None
            if node is not None and node.op == "full":
                return "full", node.kw["value"], type(node.kw["value"]), spec.dtype, rest
            if node is not None and node.op == "iota":
                return "iota", v, axis
            return ("memory", spec.dtype, rest) if spec.nbytes <= self.most or k < 0 else None
        node = self.graph.nodes[k]
        indices = self._by_rows(node, axis)
        if indices is None:
            return None
        label, below = indices.outs[0][axis], list[Hashable]()
        for u, dims in zip(node.inputs, indices.ins, strict=True):
            own = self.kind(u, dims.index(label)) if label in dims else ("same", u)
            if own is None:
                return None
            below.append((own, dims.index(label) if label in dims else -1))
        return node.op, _params(node, axis, -1), rest, tuple(below)

    def _by_rows(self, node: Node, axis: int) -> Indices | None:
        """The indices of a node of which rows along an axis are made of the same rows of its operands."""
        op = OPS[node.op]
        moves = (
            op.scalar
            or op.moves.joins
            or op.moves.as_joined
            or op.moves.repeats
            or op.moves.same_elements
        )
        moves = moves or op.moves.selects == "slices"
        rows = self.bits and op.kernel is not None and not op.run.placed and not op.element.draws
        if len(node.specs) > 1 or any(node.subgraphs()) or not (moves or rows):
            return None
        ins = tuple(self.graph.specs[u].bare for u in node.inputs)
        indices = op.indices(ins, tuple(s.bare for s in node.specs), node.kw)
        label = indices.outs[0][axis]
        return indices if is_parallel(indices, label, op) and not op.run.notes else None

    def _note(self, group: Sequence[Piece], axis: int) -> None:
        """Take down which rows of files are read."""
        if self.seen(group[0].value) is not None:
            self.lying += [(self._lies(p), p.begin, p.end) for p in group]
            return
        for _, own, inner in self._below(group, axis):
            if inner >= 0:
                self._note(own, inner)

    def _below(self, group: Sequence[Piece], axis: int) -> list[tuple[int, list[Piece], int]]:
        """Of what a group of pieces is made: each operand in the first, in all, and its axis of rows."""
        first = group[0].value
        if self.seen(first) is not None or first not in self.made:
            return []
        node = self.graph.nodes[self.graph.producers[first]]
        indices = self._by_rows(node, axis)
        assert indices is not None, "it has a kind"
        label, found = indices.outs[0][axis], list[tuple[int, list[Piece], int]]()
        for j, (u, dims) in enumerate(zip(node.inputs, indices.ins, strict=True)):
            own = [
                Piece(self.graph.nodes[self.graph.producers[p.value]].inputs[j], p.begin, p.end)
                for p in group
            ]
            found.append((u, own, dims.index(label) if label in dims else -1))
        return found

    # -- that function of all rows ------------------------------------------------------------
    def in_row(self, group: Sequence[Piece], axis: int, total: int) -> int:
        """Pieces of one kind, one behind the other, with anything between them."""
        first = group[0].value
        spec, k = self.graph.specs[first], self.graph.producers[first]
        shape = (*spec.shape[:axis], total, *spec.shape[axis + 1 :])
        line = self.graph.nodes[k].line if k >= 0 else ""
        if len(group) == 1 and spec.shape == shape:
            return self.values[first]
        if self.seen(first) is not None:
            return self._files(group, total, line)
        if first not in self.made:
            return self._in_memory(group, axis, total, line)
        node = self.graph.nodes[k]
        inputs = [
            self.in_row(own, inner, total) if inner >= 0 else self.values[u]
            for u, own, inner in self._below(group, axis)
        ]
        kw = dict(_params(node, axis, total))
        made = infer(OPS[node.op].infer, [self.builder.specs[v].bare for v in inputs], kw)
        assert made is not None, f"{node.op} of other rows"
        assert made[0].shape == shape, f"{node.op} of other rows"
        return self.builder.add(node.op, inputs, kw, made, line)[0]

    def _in_memory(self, group: Sequence[Piece], axis: int, total: int, line: str) -> int:
        """What is no larger than pieces are, or in memory anyway."""
        spec, k = self.graph.specs[group[0].value], self.graph.producers[group[0].value]
        node = self.graph.nodes[k] if k >= 0 else None
        if node is not None and OPS[node.op].element.source and "shape" in node.kw:
            kw = node.kw
            kw["shape"] = (*spec.shape[:axis], total, *spec.shape[axis + 1 :])
            made = Expression(self.builder, self.builder.call(node.op, line=line, **kw), line)
            if node.op == "full" or kw["axis"] != axis:
                return made.value
            place, begin = made, 0
            for p in group:
                first = made.constant(p.begin - begin, made.dtype)
                zero = made.constant(0, made.dtype)
                place, begin = place - where(made >= p.begin, first, zero), p.begin
            return place.value

        parts, at = list[int](), 0

        def zeros(n: int) -> None:
            shape = (*spec.shape[:axis], n, *spec.shape[axis + 1 :])
            if n:
                parts.append(
                    self.builder.call("full", shape=shape, value=0, dtype=spec.dtype, line=line)
                )

        for p in group:
            zeros(p.begin - at)
            parts.append(self.values[p.value])
            at = p.end
        zeros(total - at)
        return self.builder.call(self.join, *parts, axis=axis, line=line)

    def _lies(self, piece: Piece) -> Lies:
        seen = self.seen(piece.value)
        assert seen is not None, "it has a kind"
        root, ((start, _, step), *rest) = seen
        return Lies(root, tuple(rest), start - step * piece.begin, step)

    def _files(self, group: Sequence[Piece], total: int, line: str) -> int:
        """Rows of files, with rows that are read anyway between them, or zeros."""
        rows: list[tuple[Lies, int, int]] = []
        for p in group:
            lies = self._lies(p)
            last = rows[-1][2] if rows and rows[-1][0] == lies else -1
            if last == p.begin or (last >= 0 and self._is_read(lies, last, p.begin)):
                rows[-1] = lies, rows[-1][1], p.end
            else:
                rows.append((lies, p.begin, p.end))
        rows[0] = self._wider(*rows[0], 0, rows[0][1])
        rows[-1] = self._wider(*rows[-1], rows[-1][2], total)
        found, at = [], 0
        for k, (lies, begin, end) in enumerate(rows):
            after = total - end if k + 1 == len(rows) else 0
            value, widths = (
                self._part(lies, begin, end, line),
                {"before": begin - at, "after": after},
            )
            found.append(
                self._stored("pad_file", [value], widths, line) if any(widths.values()) else value
            )
            at = end
        return self._stored("join_files", found, {}, line) if len(found) > 1 else found[0]

    def _wider(self, lies: Lies, begin: int, end: int, lo: int, hi: int) -> tuple[Lies, int, int]:
        """Rows with those in front of them, or behind them, that are there and read anyway."""
        n = self.graph.specs[lies.root].shape[0]
        lo, hi = max(lo, -lies.shift), min(hi, n - lies.shift)
        if lo >= hi or not self._is_read(lies, lo, hi):
            return lies, begin, end
        return lies, min(begin, lo), max(end, hi)

    def _is_read(self, lies: Lies, lo: int, hi: int) -> bool:
        """Whether others read these rows of the file, or they are few."""
        if lies.step != 1:
            return False
        spec = self.graph.specs[lies.root]
        row = math.prod(n for _, n, _ in lies.rest) * spec.dtype.itemsize
        if (hi - lo) * row <= NEAR:
            return True
        near = NEAR // max(row, 1)
        return any(
            (other.root, other.rest, other.step) == (lies.root, lies.rest, 1)
            and abs(other.shift - lies.shift) <= near
            and begin <= lo + near
            and hi - near <= end
            for other, begin, end in self.lying
        )

    def _part(self, lies: Lies, begin: int, end: int, line: str) -> int:
        first = lies.shift + lies.step * begin, end - begin, lies.step
        parts, value = (first, *lies.rest), self.values[lies.root]
        if parts == tuple((0, n, 1) for n in self.graph.specs[lies.root].shape):
            return value
        names = ("starts", "sizes", "steps")
        kw = {name: tuple(p[j] for p in parts) for j, name in enumerate(names)}
        return self._stored("slice_file", [value], kw, line)

    def _stored(self, op: str, values: Sequence[int], kw: dict[str, Any], line: str) -> int:
        ins = [self.builder.specs[v] for v in values]
        made = OPS[op].infer(*(s.bare for s in ins), **kw)
        assert isinstance(made, Spec)
        return self.builder.add(
            op, values, kw, (Spec(made.shape, made.dtype, ins[0].layout),), line
        )[0]


def _ranges(group: Sequence[Piece]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for p in group:
        if found and found[-1][1] == p.begin:
            found[-1] = found[-1][0], p.end
        else:
            found.append((p.begin, p.end))
    return found


def _within(rows: Expression, ranges: Sequence[tuple[int, int]], total: int) -> Expression:
    """Which rows are in one of these ranges."""
    found: Expression | None = None
    for lo, hi in ranges:
        bounds = [rows >= lo] * (lo > 0) + [rows < hi] * (hi < total)
        here = bounds[0] & bounds[1] if len(bounds) > 1 else bounds[0]
        found = here if found is None else found | here
    assert found is not None
    return found


def _params(node: Node, axis: int, size: int) -> tuple[tuple[str, Any], ...]:
    """A node's parameters for another number of rows."""
    kw = node.kw
    for name in ("shape", "sizes"):
        if name in kw:
            kw[name] = (*kw[name][:axis], size, *kw[name][axis + 1 :])
    return tuple(sorted(kw.items()))
