"""What is seen of a file in parts is read in parts: slices and picks go to the file through what is made
of it.

before                                           after
(%0: float32[9,4] @ whole of 1 on disk)          (%0: float32[9,4] @ whole of 1 on disk)
%1 = exp(%0) : float32[9,4]                      %1 = slice_file(%0; starts=(5, 0), ...) : ... on disk
%2 = slice(%1; starts=(5, 0), ...)               %2 = exp(%1) : float32[2,4]
return %2                                        return %2

Which index of an operand a part of a result needs, the op's own indices say: one that is parallel, and
stands in the operands as it is, is cut there alike. Little is made twice: what is read in parts that
overlap much, or as a whole too, stays whole, unless the parts are small beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Indices
from ostinato.ops.core.registry import OPS, Op
from ostinato.ops.core.spec import Shape, Spec, int64
from ostinato.ops.expressions import Expression, where
from ostinato.planner.plan import Target

from .file_joins import together
from .file_views import Cut, Fold, Look, Part, Pick, cut_of, groups

AGAIN = 0.5  # of a value that is also read as a whole, what may be made once more
JOINED = 1 << 20  # bytes of parts that are read as one; under a memory limit less
ROW = 1 << 16  # bytes of a row that is read for one element
FEW = 8  # operands of a concat, of each of which places are picked
MOST = 1 << 14  # nodes that are made in parts


Seen = tuple[int, tuple[Look, ...]]  # a value, and how it is looked at, one after the other
Made = tuple[Sequence[Seen], Callable[[Sequence[int]], int]]  # of what, and how


def read_parts(graph: Graph, files: Iterable[int], target: Target) -> Graph:
    """The graph with slices and picks at its files. Those of files lie in files, too."""
    files = set(files)
    if not any(OPS[node.op].selects for node in graph.nodes):
        return graph
    found = _Parts(graph, files, target)
    return found.run() if found.any else graph


class _Parts:
    def __init__(self, graph: Graph, files: set[int], target: Target) -> None:
        self.graph, self.target = graph, target
        self.leads = self._leads(files)
        self.files = files
        self.any = any(OPS[n.op].selects and n.inputs[0] in self.leads for n in graph.nodes)
        self.passes = self._passes() if self.any else set()
        self.builder = Builder(graph.inputs)
        self.values: list[int] = list(range(len(graph.inputs)))
        self.known: dict[Seen, int] = {}

    # -- what may go through what -----------------------------------------------------------
    def _leads(self, files: set[int]) -> set[int]:
        """Values that are made of files."""
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
            passes = 0 < part <= (AGAIN if all_ else 1) and not any(node.subgraphs())
            if OPS[node.op].selects and node.inputs[0] in self.leads:
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
            if OPS[node.op].selects and node.inputs[0] in self.leads:
                self.values.append(self._looked(node, k))
                continue
            inputs = [self.values[v] for v in node.inputs]
            self.values.extend(builder.add(node.op, inputs, node.params, node.specs, node.line))
        limit = self.target.memory_limit
        most = JOINED if limit is None else min(JOINED, limit // 16)
        return together(builder.graph([self.values[v] for v in graph.outputs]), most)

    def _looked(self, node: Node, k: int) -> int:
        """A slice, or what is taken, wherever it is made."""
        (spec,) = node.specs
        if not spec.size:
            params = {"shape": spec.shape, "value": 0, "dtype": spec.dtype}
            return self.builder.add("full", (), params, node.specs, node.line)[0]
        seen = self._before(node, ())
        if seen is None:
            inputs = [self.values[v] for v in node.inputs]
            return self.builder.add(node.op, inputs, node.params, node.specs, node.line)[0]
        made = self._made(seen, node.line)
        return self._in_shape(made, node.specs[0].shape, node.line)

    def _in_shape(self, value: int, shape: Shape, line: str) -> int:
        return Expression(self.builder, value, line).reshape(*shape).value

    def _before(self, node: Node, looks: tuple[Look, ...]) -> Seen | None:
        """What a slice or a take sees, seen through it as well; None if that cannot be said."""
        kw, (shape, *_) = node.kw, (self.graph.specs[v].shape for v in node.inputs)
        if OPS[node.op].selects == "slices":
            cut = cut_of(zip(kw["starts"], kw["sizes"], kw["steps"], strict=True), shape)
            if cut and node.inputs[0] not in self.files:
                looks, cut = self._picked_first(cut, looks, shape, node.line)
            if cut and looks and isinstance(looks[0], Cut):
                return node.inputs[0], (cut.then(looks[0]), *looks[1:])
            return node.inputs[0], (*((cut,) if cut else ()), *looks)
        v, i = node.inputs
        spec = self.graph.specs[i]
        if spec.ndim != 1 and looks:
            return None
        places = self._in_shape(self.values[i], (spec.size,), node.line)
        return v, (Pick(kw["axis"], places), *looks)

    def _picked_first(
        self, cut: Cut, looks: tuple[Look, ...], shape: Shape, line: str
    ) -> tuple[tuple[Look, ...], Cut | None]:
        """Places along an axis that is cut, and that nothing else looks at before, as places in what was
        cut."""
        for n, look in enumerate(looks):
            if not isinstance(look, Pick) or look.axis not in cut.axes:
                continue
            if not any(look.axis in before.axes for before in looks[:n]):
                own, rest = self._picked_of_cut(cut, look, shape, line)
                return (*looks[:n], own, *looks[n + 1 :]), rest
        return looks, cut

    def _picked_of_cut(
        self, cut: Cut, pick: Pick, shape: Shape, line: str
    ) -> tuple[Pick, Cut | None]:
        """Places in a cut as places in what was cut, and what else is cut."""
        (part,) = (p for p in cut.parts if p[0] == pick.axis)
        axis, start, size, step = part
        own = Expression(self.builder, pick.places, line).astype(int64)
        own = where(own < 0, own + size, own)
        outside = shape[axis]
        own = where((own < 0) | (own >= size), outside, own * step + start)
        rest = tuple(p for p in cut.parts if p is not part)
        return Pick(axis, own.value), Cut(rest) if rest else None

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
        v, looks = seen
        if not looks:
            return (), lambda _: self.values[v]
        k = self.graph.producers[v]
        if k >= 0 and v in self.passes and v in self.leads and len(self.builder.nodes) < MOST:
            node = self.graph.nodes[k]
            if OPS[node.op].selects:
                before = self._before(node, looks)
                if before is not None:
                    return (before,), lambda made: made[0]
            else:
                found = self._through(node, v - self.graph.starts[k], looks)
                if found is not None:
                    return found
                if len(looks) > 1 and OPS[node.op].reshapes:
                    return self._one_first(v, looks, line)
        return ((v, looks[:-1]),), lambda made: self._look(made[0], looks[-1], line)

    def _one_first(self, v: int, looks: tuple[Look, ...], line: str) -> Made:
        """Of several looks the one that leaves least, of those that may as well come first; then the
        others."""
        shape = self.graph.specs[v].shape
        free = [
            (math.prod(look.shape(self.builder, shape)), n)
            for n, look in enumerate(looks)
            if not {*look.axes} & {a for before in looks[:n] for a in before.axes}
        ]
        _, first = min(free)
        rest = [look for n, look in enumerate(looks) if n != first]

        def build(values: Sequence[int]) -> int:
            (value,) = values
            for look in rest:
                value = self._look(value, look, line)
            return value

        return ((v, (looks[first],)),), build

    def _look(self, value: int, look: Look, line: str) -> int:
        """A node that looks at a value which is there, or at a file."""
        builder, spec = self.builder, self.builder.specs[value]
        stored = spec.layout is not None and spec.layout.stored
        shape = look.shape(builder, spec.shape)
        made = Spec(shape, spec.dtype, spec.layout if stored else None)
        if isinstance(look, Pick):
            params: dict[str, Any] = {"axis": look.axis}
            if stored:
                return builder.add("take_file", (look.places, value), params, (made,), line)[0]
            places = Expression(builder, look.places, line)
            return Expression(builder, value, line).take(places, look.axis).value
        full = [(0, n, 1) for n in spec.shape]
        for d, *part in look.parts:
            full[d] = part  # type: ignore[call-overload]
        before = builder.maker(value)
        source = value
        if before is not None and before.op == "slice_file" if stored else _is_slice(before):
            assert before is not None
            (source,), old = before.inputs, before.kw
            full = [
                (s + t * start, size, t * step)
                for s, t, (start, size, step) in zip(old["starts"], old["steps"], full, strict=True)
            ]
        starts, sizes, steps = (tuple(p[k] for p in full) for k in range(3))
        if not stored:
            return Expression(builder, source, line).slice(full).value
        params = {"starts": starts, "sizes": sizes, "steps": steps}
        return builder.add("slice_file", (source,), params, (made,), line)[0]

    # -- one operation ----------------------------------------------------------------------
    def _through(self, node: Node, output: int, looks: tuple[Look, ...]) -> Made | None:
        """How to make a part of a node's result of parts of its operands, if its indices say so."""
        ins = tuple(self.graph.specs[v].bare for v in node.inputs)
        op, kw = OPS[node.op], node.kw
        bits = self.target.numerics != "any-workers"
        rows = bits and op.kernel is not None and not op.placed
        if not (op.scalar or op.same_elements or op.joins or op.repeats or rows):
            return None
        outs = tuple(s.bare for s in node.specs)
        indices = op.indices(ins, outs, kw)
        touched = {d for look in looks for d in look.axes}
        dims = indices.outs[output]
        if op.joins and node.kw["axis"] in touched:
            return self._through_concat(node, looks)
        if len(looks) == 1 and op.same_elements and op.kernel is not None:
            return self._through_reshape(node, looks[0])
        if not all(_is_parallel(indices, dims[d], op) for d in touched):
            return None
        labels = {dims[d]: d for d in touched}
        operands: list[Seen] = []
        for v, own in zip(node.inputs, indices.ins, strict=True):
            axes = {labels[c]: d for d, c in enumerate(own) if isinstance(c, str) and c in labels}
            moved = tuple(m for look in looks if (m := look.on(axes)) is not None)
            operands.append((v, moved))
        shape = outs[output].shape
        for look in looks:
            shape = look.shape(self.builder, shape)
        if "shape" in kw:
            kw["shape"] = shape
        made = _infer(op.infer, [self._spec(s) for s in operands], kw)
        if made is None or made[output] != Spec(shape, outs[output].dtype):
            return None

        def build(values: Sequence[int]) -> int:
            return self.builder.add(node.op, values, kw, made, node.line)[output]

        return operands, build

    def _through_concat(self, node: Node, looks: tuple[Look, ...]) -> Made | None:
        """Of each operand what is wanted of it, if one look cuts where they are joined."""
        axis = node.kw["axis"]
        (at, look), *more = ((n, look) for n, look in enumerate(looks) if axis in look.axes)
        if more:
            return None
        shape = node.specs[0].shape
        for each in looks:
            shape = each.shape(self.builder, shape)
        made = Spec(shape, node.specs[0].dtype)

        def instead(own: Look) -> tuple[Look, ...]:
            return (*looks[:at], own, *looks[at + 1 :])

        if isinstance(look, Pick):
            few = len(node.inputs) <= FEW
            return self._picked_of_each(node, look, instead, made) if few else None
        parts = {a: tuple(part) for a, *part in look.parts}
        start, size, step = parts.pop(axis)
        found: list[Seen] = []
        offset = 0
        for v in node.inputs:
            n = self.graph.specs[v].shape[axis]
            ends = (offset - start, offset + n - 1 - start)  # start + step * k lies between
            low, high = ends if step > 0 else (-ends[1], -ends[0])
            first, last = max(-(-low // abs(step)), 0), min(high // abs(step), size - 1)
            if first <= last:
                own = (axis, start + step * first - offset, last - first + 1, step)
                cut = Cut(tuple(sorted((own, *((a, *p) for a, p in parts.items())))))  # type: ignore[arg-type]
                found.append((v, instead(cut)))
            offset += n
        if not found:
            return None
        found = found if step > 0 else found[::-1]

        def build(values: Sequence[int]) -> int:
            kinds = {self.builder.specs[v].dtype for v in values}
            if len(values) > 1 or kinds != {made.dtype}:
                return self.builder.add(node.op, values, node.params, (made,), node.line)[0]
            return values[0]

        return found, build

    def _picked_of_each(
        self, node: Node, look: Pick, instead: Callable[[Look], tuple[Look, ...]], made: Spec
    ) -> Made:
        """The places that are in an operand, its first where they are not; then of each what is its
        own. Places outside of all are outside of the last operand."""
        builder, line = self.builder, node.line
        extents = [self.graph.specs[v].shape[look.axis] for v in node.inputs]
        own = Expression(builder, look.places, line).astype(int64)
        own = where(own < 0, own + sum(extents), own)
        found: list[tuple[int, Expression]] = []
        masks: list[Expression] = []
        end = 0
        for v, n in zip(node.inputs, extents, strict=True):
            begin, end = end, end + n
            if n:
                masks.append((own >= begin) & (own < end))
                found.append((v, where(masks[-1], own - begin, own.number(0))))
        v, last = found[-1]
        found[-1] = v, where((own < 0) | (own >= end), end, last)
        ones = [1] * len(made.shape)
        ones[look.axis] = made.shape[look.axis]

        def build(values: Sequence[int]) -> int:
            *first, value = (Expression(builder, v, line).astype(made.dtype) for v in values)
            for mask, other in zip(masks, first, strict=False):
                value = where(mask.reshape(*ones), other, value)
            return value.value

        return [(v, instead(Pick(look.axis, place.value))) for v, place in found], build

    def _through_reshape(self, node: Node, look: Look) -> Made | None:
        """Of a reshape's operand the rows that have what is wanted."""
        (x,), spec = node.inputs, node.specs[0]
        old, new = self.graph.specs[x].shape, spec.shape
        if 0 in (*old, *look.shape(self.builder, new)):
            return None
        folds = [Fold(olds, news, old, new, look) for olds, news in groups(old, new)]
        touched = [f for f in folds if f.is_touched]
        beside = math.prod(f.size for f in folds if not f.is_touched) * spec.dtype.itemsize
        if len(touched) == 1 and (isinstance(look, Pick) or touched[0].is_sparse):
            fold = touched[0]
            return self._rows_of(node, look, folds, fold) if fold.inner * beside <= ROW else None
        if isinstance(look, Pick):
            return None
        rows: list[Part] = [(0, n, 1) for n in old]
        for fold in touched:
            for d, part in fold.rows:
                rows[d] = part
        cut = cut_of(rows, old)

        def build(values: Sequence[int]) -> int:
            (value,) = values
            shapes = [f.new_sizes if f not in touched else f.shapes[0] for f in folds]
            value = self._shaped(value, shapes, node.line)
            value = self._cut(value, [part for f in folds for part in f.between], node.line)
            shapes = [f.new_sizes if f not in touched else f.shapes[1] for f in folds]
            value = self._shaped(value, shapes, node.line)
            return self._cut(value, [part for f in folds for part in f.rest], node.line)

        return ((x, (cut,) if cut else ()),), build

    def _shaped(self, value: int, shapes: Sequence[Shape], line: str) -> int:
        shape = tuple(n for part in shapes for n in part)
        return self._in_shape(value, shape, line)

    def _cut(self, value: int, parts: Sequence[Part], line: str) -> int:
        cut = cut_of(parts, self.builder.specs[value].shape)
        return self._look(value, cut, line) if cut else value

    def _rows_of(self, node: Node, look: Look, folds: Sequence[Fold], fold: Fold) -> Made:
        """Single elements of a fold: the rows that have them, and of each row its element."""
        builder, line = self.builder, node.line
        flat = fold.places(builder, look, line)
        (count,) = flat.shape

        def build(values: Sequence[int]) -> int:
            (value,) = values
            shapes = [f.new_sizes if f is not fold else (count, fold.inner) for f in folds]
            rows = Expression(builder, self._shaped(value, shapes, line), line)
            if fold.inner > 1:
                axis = 1 + sum(len(s) for s in shapes[: folds.index(fold)])
                ones = [1] * len(rows.shape)
                ones[axis - 1] = count
                rows = rows.take_along_axis((flat % fold.inner).reshape(*ones), axis)
            return rows.reshape(*look.shape(builder, node.specs[0].shape)).value

        row = (flat // fold.inner).value
        return ((node.inputs[0], (Pick(fold.big, row),)),), build

    def _spec(self, seen: Seen) -> Spec:
        v, looks = seen
        spec = self.graph.specs[v]
        shape = spec.shape
        for look in looks:
            shape = look.shape(self.builder, shape)
        return Spec(shape, spec.dtype)


def _is_slice(node: Node | None) -> bool:
    return node is not None and OPS[node.op].selects == "slices"


def _infer(rule: Callable[..., Any], ins: Sequence[Spec], kw: dict[str, Any]) -> Any:
    try:
        made = rule(*ins, **kw)
    except Exception:  # of a rule that wants other extents
        return None
    return made if isinstance(made, tuple) else (made,)


def _is_parallel(indices: Indices, label: str | None, op: Op) -> bool:
    """Whether a part of an index is made of just this part of the operands."""
    if label is None or label in indices.chunked or label in dict(indices.parts):
        return False
    found = [dims for dims in indices.ins if any(getattr(c, "label", c) == label for c in dims)]
    plain = all([getattr(c, "label", c) for c in dims].count(label) == 1 for dims in found)
    return plain and all(label in dims for dims in found) and bool(found or op.repeats)
