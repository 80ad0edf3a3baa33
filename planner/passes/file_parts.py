"""What is seen of a file in parts is read in parts: slices and picks go to the file through what is made
of it.

before                                           after
(%0: float32[9,4] @ whole of 1 on disk)          (%0: float32[9,4] @ whole of 1 on disk)
%1 = exp(%0) : float32[9,4]                      %1 = slice_file(%0; starts=(5, 0), ...) : ... on disk
%2 = slice(%1; starts=(5, 0), ...)               %2 = exp(%1) : float32[2,4]
return %2                                        return %2

All that only moves elements, from a slice down to the file, is one look at the file (`file_views.py`).
Functions of elements let it through to their operands. Of other ops their own indices say which part
of an operand a part of a result needs: one that is parallel, and stands in the operands as it is, is
cut there alike. Little is made twice: what is read in parts that overlap much, or as a whole too,
stays whole, unless the parts are small beside it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ostinato.ops.array.expressions import Expression, where
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Indices
from ostinato.ops.core.registry import OPS, Op
from ostinato.ops.core.spec import Shape, Spec
from ostinato.planner.machine import memory
from ostinato.planner.plan import Target

from .file_joins import together
from .file_views import TABLE, FoldedError, Index, Looks, TooLargeError, View, all_of, along, spans

AGAIN = 0.5  # of a value that is also read as a whole, what may be made once more
OFTEN = 8.0  # and what memory has no room for,
BESIDE = 4  # as others need some of it, too
JOINED = 1 << 20  # bytes of parts that are read as one; under a memory limit less
MAX_CONCAT_OPERANDS = 8  # operands of a concat, of each of which places are picked
MAX_NODES = 1 << 14  # nodes that are made in parts

Seen = tuple[int, View]  # a value, and how it is looked at
Made = tuple[Sequence[Seen], Callable[[Sequence[int]], int]]  # of what, and how


def read_parts(graph: Graph, files: Iterable[int], target: Target) -> Graph:
    """The graph with slices and picks at its files. Those of files lie in files, too."""
    files = set(files)
    if not any(OPS[node.op].moves.selects for node in graph.nodes):
        return graph
    found = _Parts(graph, files, target)
    return found.run() if found.any else graph


class _Parts:
    def __init__(self, graph: Graph, files: set[int], target: Target) -> None:
        self.graph, self.target, self.files = graph, target, files
        limit = target.memory_limit
        self.room = memory() if limit is None else limit * target.workers
        self.leads = self._leads(files)
        self.any = any(OPS[n.op].moves.selects and n.inputs[0] in self.leads for n in graph.nodes)
        self.passes = self._passes() if self.any else set()
        self.builder = Builder(graph.inputs)
        self.values: list[int] = list(range(len(graph.inputs)))
        self.known: dict[Seen, int] = {}
        self.looks = Looks(self.builder, TABLE if limit is None else min(TABLE, limit // 64))

    # -- what may go through what -----------------------------------------------------------
    def _leads(self, files: set[int]) -> set[int]:
        found = set(files)
        for k, node in enumerate(self.graph.nodes):
            if any(v in found for v in node.inputs) and not any(node.subgraphs()):
                found.update(self.graph.outs(k))
        return found

    def _passes(self) -> set[int]:
        """Values to make in parts: no more of them, all parts together, than there is."""
        graph = self.graph
        parts, whole = [0.0] * len(graph.specs), [False] * len(graph.specs)
        found = set[int]()
        for v in graph.outputs:
            whole[v] = True
        for k in reversed(range(len(graph.nodes))):
            node, outs = graph.nodes[k], graph.outs(k)
            part, all_ = max(parts[v] for v in outs), any(whole[v] for v in outs)
            most = AGAIN if all_ else 1
            if sum(graph.specs[v].nbytes for v in outs) > self.room / BESIDE:
                most = OFTEN
            passes = 0 < part <= most and not any(node.subgraphs())
            if OPS[node.op].moves.selects and node.inputs[0] in self.leads:
                share = graph.specs[outs[0]].size / max(graph.specs[node.inputs[0]].size, 1)
                share *= part if passes and not all_ else 1
                parts[node.inputs[0]] += max(share, 1e-15)
                found.update(outs)
                for v in node.inputs[1:]:
                    whole[v] = True
                continue
            found.update(outs if passes and outs[0] in self.leads else ())
            for v in node.inputs:
                parts[v] += part if passes else 0
                whole[v] |= all_ or not passes
        return found

    # -- a walk -----------------------------------------------------------------------------
    def run(self) -> Graph:
        graph, builder = self.graph, self.builder
        for k, node in enumerate(graph.nodes):
            looked = self._looked(node, k) if self._is_look(node) else None
            if looked is not None:
                self.values.append(looked)
                continue
            inputs = [self.values[v] for v in node.inputs]
            self.values.extend(builder.add(node.op, inputs, node.params, node.specs, node.line))
        limit = self.target.memory_limit
        most = JOINED if limit is None else min(JOINED, limit // 16)
        return together(builder.graph([self.values[v] for v in graph.outputs]), most)

    def _is_look(self, node: Node) -> bool:
        return bool(OPS[node.op].moves.selects) and node.inputs[0] in self.leads

    def _looked(self, node: Node, k: int) -> int | None:
        """A slice, or what is taken, wherever it is made; None where that gains nothing."""
        (spec,) = node.specs
        if not spec.size:
            params = {"shape": spec.shape, "value": 0, "dtype": spec.dtype}
            return self.builder.add("full", (), params, node.specs, node.line)[0]
        self.looks.checks.clear()
        try:
            seen = self._under((self.graph.starts[k], all_of(spec.shape)))
            if seen[0] not in self.files and not self._may_pass(seen[0]):
                return None
            found = self._full(self._made(seen, node.line), spec.shape, node.line)
            if self.looks.checks:
                values = (found, *self.looks.checks)
                (found,) = self.builder.add(
                    "barrier", values, {"outputs": 1}, (spec.bare,), node.line
                )
            return found
        except TooLargeError:
            return None

    def _may_pass(self, v: int) -> bool:
        return v in self.passes and v in self.leads and len(self.builder.nodes) < MAX_NODES

    def _full(self, value: int, shape: Shape, line: str) -> int:
        """With what was left out, as it is the same all along."""
        if self.builder.specs[value].shape == shape:
            return value
        return Expression(self.builder, value, line).broadcast_to(shape).value

    def _under(self, seen: Seen) -> Seen:
        """Follow a view through all nodes that only move elements."""
        while True:
            v, view = seen
            k = self.graph.producers[v]
            if v in self.files or k < 0 or v not in self.leads:
                return seen
            node = self.graph.nodes[k]
            before = None
            if OPS[node.op].moves.concatenates:
                with contextlib.suppress(FoldedError):
                    before = self._one_source(node, view)
            else:
                old = self.graph.specs[node.inputs[0]].shape if node.inputs else ()
                values = [self.values[u] for u in node.inputs]
                with contextlib.suppress(FoldedError):
                    under = self.looks.through(node, old, view, values)
                    before = None if under is None else (node.inputs[0], under)
            if before is None:
                return seen
            seen = before

    def _made(self, seen: Seen, line: str) -> int:
        """A value as it is looked at, made of its operands as they are looked at."""
        ways: dict[Seen, Made] = {}
        waiting = [seen]
        while waiting:
            here = waiting[-1]
            if here not in self.known:
                made = ways.get(here)
                if made is None:
                    made = ways[here] = self._way(here, line)
                more = [s for s in made[0] if s not in self.known]
                if more:
                    waiting.extend(more)
                    continue
                self.known[here] = made[1]([self.known[s] for s in made[0]])
            waiting.pop()
        return self.known[seen]

    def _way(self, seen: Seen, line: str) -> Made:
        under = self._under(seen)
        if under != seen:
            return (under,), lambda made: made[0]
        v, view = seen
        if view != all_of(self.graph.specs[v].shape) and self._may_pass(v):
            node = self.graph.nodes[self.graph.producers[v]]
            found = self._through(node, v - self.graph.starts[self.graph.producers[v]], view)
            if found is not None:
                return found
        return (), lambda _: self.looks.look(self.values[v], view, line)

    # -- one operation ----------------------------------------------------------------------
    def _through(self, node: Node, output: int, view: View) -> Made | None:
        """How to make a part of a node's result of parts of its operands, if its indices say so."""
        op = OPS[node.op]
        with contextlib.suppress(FoldedError):
            if op.scalar:
                return self._elements(node, output, view)
            if op.moves.concatenates:
                return self._through_concat(node, view)
        moves = op.scalar or op.moves.concatenates or op.moves.repeats or op.moves.same_elements
        bits = self.target.numerics != "any-workers"
        rows = bits and op.kernel is not None and not op.run.placed and not any(node.subgraphs())
        return self._rows(node, output, view) if moves or rows else None

    def _elements(self, node: Node, output: int, view: View) -> Made:
        """Functions of elements, of each operand as much as of the result."""
        shape = node.specs[output].shape
        operands = []
        for v in node.inputs:
            own = self.graph.specs[v].shape
            repeated = self.looks.repeated(view, shape, own, node.line)
            operands.append((v, repeated if own else View((), ())))

        def build(values: Sequence[int]) -> int:
            ins = [self.builder.specs[v].bare for v in values]
            made = infer(OPS[node.op].infer, ins, node.kw)
            return self.builder.add(node.op, values, node.params, made, node.line)[output]

        return operands, build

    def _rows(self, node: Node, output: int, view: View) -> Made | None:
        """Parts along axes that are parallel; of the result in parts, what is wanted of it."""
        ins = tuple(self.graph.specs[v].bare for v in node.inputs)
        outs, line = tuple(s.bare for s in node.specs), node.line
        op, shape = OPS[node.op], node.specs[output].shape
        indices = op.indices(ins, outs, node.kw)
        dims = indices.outs[output]
        rest, cut = list(view.indices), dict[str, tuple[int, Index]]()  # along dimension 0
        taken: set[int] = set()
        axes = [axes.start for axes in spans(view)]
        for k in sorted(range(len(axes)), key=lambda k: -shape[axes[k]]):
            index, d = view.indices[k], axes[k]
            label, own = dims[d] if index.span == 1 else None, self.looks.dims(index)
            size = math.prod(view.shape[j] for j in own)
            is_less = size < shape[d] and not taken.intersection(own)
            if not (is_less and label is not None and is_parallel(indices, label, op)):
                continue
            taken.update(own)
            if len(own) <= 1 and index.table < 0:
                step = dict(index.steps).get(own[0] if own else -1, 1)
                cut[label] = size, along(0, size, index.start, step)
                rest[k] = along(own[0], size) if own else Index()
            else:
                places = self.looks.table(index, view.shape, line).reshape(size)
                cut[label] = size, self.looks.listed(places)
                by = [math.prod(view.shape[j] for j in own[n + 1 :]) for n in range(len(own))]
                rest[k] = Index(0, tuple(zip(own, by, strict=True)))
        if not cut:
            return None
        operands = [
            (v, self._cut_along(self.graph.specs[v].shape, own, cut))
            for v, own in zip(node.inputs, indices.ins, strict=True)
        ]
        parts = [Spec(s.shape, self.graph.specs[v].dtype) for v, s in operands]
        wanted = tuple(cut[c][0] if c in cut else n for c, n in zip(dims, shape, strict=True))
        kw = node.kw
        if "shape" in kw:
            kw["shape"] = wanted
        made = infer(op.infer, parts, kw)
        if made is None or made[output] != Spec(wanted, outs[output].dtype):
            return None

        def build(values: Sequence[int]) -> int:
            full = [
                self._full(v, s.shape, line) for v, (_, s) in zip(values, operands, strict=True)
            ]
            value = self.builder.add(node.op, full, kw, made, line)[output]
            return self.looks.look(value, View(view.shape, tuple(rest)), line)

        return operands, build

    def _cut_along(
        self, shape: Shape, dims: Sequence[Any], cut: dict[str, tuple[int, Index]]
    ) -> View:
        """The look at an operand of which some indices are cut."""
        found = []
        sizes = tuple(cut[c][0] if c in cut else n for c, n in zip(dims, shape, strict=True))
        for d, (label, n) in enumerate(zip(dims, shape, strict=True)):
            size, index = cut.get(label, (n, along(0, n)))
            if index.table >= 0:
                ones = [size if k == d else 1 for k in range(len(shape))]
                index = self.looks.listed(Expression(self.builder, index.table).reshape(*ones))
            found.append(replace(index, steps=tuple((d, s) for _, s in index.steps)))
        return View(sizes, tuple(found))

    # -- what is joined -----------------------------------------------------------------------
    def _one_source(self, node: Node, view: View) -> Seen | None:
        """Slices of one value, one behind the other, as one look at it."""
        axis = node.kw["axis"]
        makers = [self.graph.producers[v] for v in node.inputs]
        cuts = [self.graph.nodes[k] for k in makers if k >= 0]
        slices = all(OPS[n.op].moves.selects == "slices" for n in cuts) and len(cuts) == len(makers)
        if not slices or len({n.inputs[0] for n in cuts}) > 1:
            return None
        if len({tuple(_but(n.kw[name], axis) for name in ("starts", "steps")) for n in cuts}) > 1:
            return None
        view = self.looks.apart(view, node.specs[0].shape, node.line)
        if self._is_one_part(node, view):
            return None
        own = self.looks.table(view.indices[axis], view.shape, node.line)
        end, place = 0, own.number(0)
        for cut in cuts:
            size = cut.kw["sizes"][axis]
            here = (own - end) * cut.kw["steps"][axis] + cut.kw["starts"][axis]
            place, end = where(own >= end, here, place), end + size
        kw = cuts[0].kw
        kw["starts"], kw["steps"] = (
            (*kw[name][:axis], plain, *kw[name][axis + 1 :])
            for name, plain in (("starts", 0), ("steps", 1))
        )
        first = Node(
            cuts[0].op, cuts[0].inputs, tuple(sorted(kw.items())), cuts[0].specs, node.line
        )
        indices = (*view.indices[:axis], self.looks.listed(place), *view.indices[axis + 1 :])
        x = first.inputs[0]
        under = self.looks.through(first, self.graph.specs[x].shape, View(view.shape, indices), ())
        return None if under is None else (x, under)

    def _is_one_part(self, node: Node, view: View) -> bool:
        """Whether what is wanted of what is joined goes on in equal steps, along one dimension."""
        index = view.indices[node.kw["axis"]]
        return index.table < 0 and len(index.steps) <= 1

    def _through_concat(self, node: Node, view: View) -> Made | None:
        """Make a part of a concat from the parts of its operands."""
        axis, line, made = node.kw["axis"], node.line, node.specs[0].dtype
        view = self.looks.apart(view, node.specs[0].shape, line)
        if not self._is_one_part(node, view):
            few = len(node.inputs) <= MAX_CONCAT_OPERANDS
            return self._picked_of_each(node, view) if few else None
        index = view.indices[axis]
        dim, step = index.steps[0] if index.steps else (-1, 1)
        size, start = view.shape[dim] if index.steps else 1, index.start
        found: list[Seen] = []
        offset = 0
        for v in node.inputs:
            n = self.graph.specs[v].shape[axis]
            ends = (offset - start, offset + n - 1 - start)  # start + step * k lies between
            low, high = ends if step > 0 else (-ends[1], -ends[0])
            first, last = max(-(-low // abs(step)), 0), min(high // abs(step), size - 1)
            if first <= last:
                part = view if dim < 0 else self.looks.part_of(view, dim, first, last - first + 1)
                own = part.indices[axis]
                moved = replace(own, start=own.start - offset)
                indices = (*part.indices[:axis], moved, *part.indices[axis + 1 :])
                found.append((v, View(part.shape, indices)))
            offset += n
        found = found if step > 0 else found[::-1]

        def build(values: Sequence[int]) -> int:
            if len(values) == 1:
                return Expression(self.builder, values[0], line).astype(made).value
            shapes = [self.looks.reduced(part) for _, part in found]
            values = [self._full(v, s, line) for v, s in zip(values, shapes, strict=True)]
            ins = [self.builder.specs[v].bare for v in values]
            kw = {**node.kw, "axis": dim}
            specs = infer(OPS[node.op].infer, ins, kw)
            return self.builder.add(node.op, values, kw, specs, line)[0]

        return found, build

    def _picked_of_each(self, node: Node, view: View) -> Made:
        """The places that are in an operand, its nearest where they are not; then of each what is its
        own."""
        axis, line, dtype = node.kw["axis"], node.line, node.specs[0].dtype
        own = self.looks.table(view.indices[axis], view.shape, line)
        found: list[Seen] = []
        masks: list[Expression] = []
        end = 0
        for v in node.inputs:
            n = self.graph.specs[v].shape[axis]
            begin, end = end, end + n
            if n:
                masks.append(own < end)
                inner = where(own >= begin, own - begin, own.number(0))
                inner = where(masks[-1], inner, own.number(n - 1))
                place = self.looks.listed(inner)
                indices = (*view.indices[:axis], place, *view.indices[axis + 1 :])
                found.append((v, View(view.shape, indices)))

        def build(values: Sequence[int]) -> int:
            *first, value = (Expression(self.builder, v, line).astype(dtype) for v in values)
            for mask, other in zip(masks[-2::-1], first[::-1], strict=True):
                value = where(mask, other, value)
            return value.value

        return found, build


def _but(values: Sequence[int], axis: int) -> Sequence[int]:
    return (*values[:axis], *values[axis + 1 :])


def infer(rule: Callable[..., Any], ins: Sequence[Spec], kw: dict[str, Any]) -> Any:
    try:
        made = rule(*ins, **kw)
    except Exception:  # of a rule that wants other extents
        return None
    return made if isinstance(made, tuple) else (made,)


def is_parallel(indices: Indices, label: str | None, op: Op) -> bool:
    """Whether a part of an index is made of just this part of the operands."""
    if label is None or label in indices.chunked or label in dict(indices.parts):
        return False
    found = [dims for dims in indices.ins if any(getattr(c, "label", c) == label for c in dims)]
    plain = all([getattr(c, "label", c) for c in dims].count(label) == 1 for dims in found)
    return plain and all(label in dims for dims in found) and bool(found or op.moves.repeats)
