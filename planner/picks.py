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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.collective import STORED
from ostinato.ops.graph import Builder, Graph, Node
from ostinato.ops.index import Indices
from ostinato.ops.registry import OPS
from ostinato.ops.spec import Shape, Spec, int64

from .plan import Target

AGAIN = 0.5  # of a value that is also read as a whole, what may be made once more
CLOSE = 1 << 12  # bytes between two parts of a file that are sooner read than left out
JOINED = 1 << 20  # bytes of parts that are read as one; under a memory limit less
ROW = 1 << 16  # bytes of a row that is read for one element
SPARSE = 8  # times as much between the first and the last as is wanted
MOST = 1 << 14  # nodes that are made in parts

Part = tuple[int, int, int]  # of an axis a start, a size and a step

_VIEWS = ("reshape", "expand_dims", "squeeze", "permute_dims", "broadcast_to")


@dataclass(frozen=True, slots=True)
class Cut:
    """Of some axes a start, a size and a step."""

    parts: tuple[tuple[int, int, int, int], ...]  # axis first

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(part[0] for part in self.parts)

    def on(self, axes: dict[int, int]) -> Cut | None:
        parts = tuple((axes[a], *rest) for a, *rest in self.parts if a in axes)
        return Cut(tuple(sorted(parts))) if parts else None  # type: ignore[arg-type]

    def then(self, other: Cut) -> Cut:
        """This one, then another of what it leaves."""
        parts = {a: (start, size, step) for a, start, size, step in self.parts}
        for a, start, size, step in other.parts:
            begin, _, by = parts.get(a, (0, 0, 1))
            parts[a] = begin + by * start, size, by * step
        return Cut(tuple((a, *part) for a, part in sorted(parts.items())))

    def shape(self, builder: Builder, shape: Shape) -> Shape:
        sizes = {a: size for a, _, size, _ in self.parts}
        return tuple(sizes.get(d, n) for d, n in enumerate(shape))


def cut_of(parts: Iterable[Part], shape: Shape) -> Cut | None:
    """What is cut of an array of this shape, if anything is."""
    found = [
        (d, start, size, step if size > 1 else 1)
        for d, ((start, size, step), n) in enumerate(zip(parts, shape, strict=True))
        if (start, size, step if size > 1 else 1) != (0, n, 1)
    ]
    return Cut(tuple(found)) if found else None


@dataclass(frozen=True, slots=True)
class Pick:
    """Places along an axis."""

    axis: int
    places: int  # a value, with one axis

    @property
    def axes(self) -> tuple[int, ...]:
        return (self.axis,)

    def on(self, axes: dict[int, int]) -> Pick | None:
        return Pick(axes[self.axis], self.places) if self.axis in axes else None

    def shape(self, builder: Builder, shape: Shape) -> Shape:
        return (*shape[: self.axis], *builder.specs[self.places].shape, *shape[self.axis + 1 :])


Look = Cut | Pick
Seen = tuple[int, tuple[Look, ...]]  # a value, and how it is looked at, one after the other
Made = tuple[Sequence[Seen], Callable[[Sequence[int]], int]]  # of what, and how


def read_parts(graph: Graph, files: Iterable[int], target: Target) -> Graph:
    """The graph with slices and picks at its files. Those of files lie in files, too."""
    files = set(files)
    if not any(node.op in ("slice", "take") for node in graph.nodes):
        return graph
    found = _Parts(graph, files, target)
    return found.run() if found.any else graph


class _Parts:
    def __init__(self, graph: Graph, files: set[int], target: Target) -> None:
        self.graph, self.target = graph, target
        self.leads = self._leads(files)
        self.files = files
        self.any = any(n.op in ("slice", "take") and n.inputs[0] in self.leads for n in graph.nodes)
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
            if node.op in ("slice", "take") and node.inputs[0] in self.leads:
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
            if node.op in ("slice", "take") and node.inputs[0] in self.leads:
                self.values.append(self._looked(node, k))
                continue
            inputs = [self.values[v] for v in node.inputs]
            self.values.extend(builder.add(node.op, inputs, node.params, node.specs, node.line))
        limit = self.target.memory_limit
        most = JOINED if limit is None else min(JOINED, limit // 16)
        return _together(builder.graph([self.values[v] for v in graph.outputs]), most)

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
        return self._in_shape(made, node.specs[0], node.line)

    def _in_shape(self, value: int, spec: Spec, line: str) -> int:
        if self.builder.specs[value].shape == spec.shape:
            return value
        params = {"shape": spec.shape}
        return self.builder.add("reshape", (value,), params, (spec.bare,), line)[0]

    def _before(self, node: Node, looks: tuple[Look, ...]) -> Seen | None:
        """What a slice or a take sees, seen through it as well; None if that cannot be said."""
        kw, (shape, *_) = node.kw, (self.graph.specs[v].shape for v in node.inputs)
        if node.op == "slice":
            cut = cut_of(zip(kw["starts"], kw["sizes"], kw["steps"], strict=True), shape)
            if cut and looks and isinstance(looks[0], Cut):
                return node.inputs[0], (cut.then(looks[0]), *looks[1:])
            return node.inputs[0], (*((cut,) if cut else ()), *looks)
        v, i = node.inputs
        spec = self.graph.specs[i]
        if spec.ndim != 1 and looks:
            return None
        places = self._in_shape(self.values[i], Spec((spec.size,), spec.dtype), node.line)
        return v, (Pick(kw["axis"], places), *looks)

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
            if node.op in ("slice", "take"):
                before = self._before(node, looks)
                if before is not None:
                    return (before,), lambda made: made[0]
            else:
                found = self._through(node, v - self.graph.starts[k], looks)
                if found is not None:
                    return found
        return ((v, looks[:-1]),), lambda made: self._look(made[0], looks[-1], line)

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
            return builder.add("take", (value, look.places), params, (made,), line)[0]
        full = [(0, n, 1) for n in spec.shape]
        for d, *part in look.parts:
            full[d] = part  # type: ignore[call-overload]
        before = builder.maker(value)
        source, name = value, "slice_file" if stored else "slice"
        if before is not None and before.op == name:
            (source,), old = before.inputs, before.kw
            full = [
                (s + t * start, size, t * step)
                for s, t, (start, size, step) in zip(old["starts"], old["steps"], full, strict=True)
            ]
        starts, sizes, steps = (tuple(p[k] for p in full) for k in range(3))
        params = {"starts": starts, "sizes": sizes, "steps": steps}
        return builder.add(name, (source,), params, (made,), line)[0]

    # -- one operation ----------------------------------------------------------------------
    def _through(self, node: Node, output: int, looks: tuple[Look, ...]) -> Made | None:
        """How to make a part of a node's result of parts of its operands, if its indices say so."""
        ins = tuple(self.graph.specs[v].bare for v in node.inputs)
        op, kw = OPS[node.op], node.kw
        bits = self.target.numerics != "any-workers"
        rows = bits and op.kernel is not None and not op.placed
        if not (op.scalar or node.op in (*_VIEWS, "concat") or rows):
            return None
        outs = tuple(s.bare for s in node.specs)
        indices = op.indices(ins, outs, kw)
        touched = {d for look in looks for d in look.axes}
        dims = indices.outs[output]
        if len(looks) == 1 and node.op == "concat" and node.kw["axis"] in touched:
            return self._through_concat(node, looks[0])
        if len(looks) == 1 and node.op == "reshape":
            return self._through_reshape(node, looks[0])
        if not all(_is_parallel(indices, dims[d], node.op) for d in touched):
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

    def _through_concat(self, node: Node, look: Look) -> Made | None:
        """Of each operand what is wanted of it."""
        axis = node.kw["axis"]
        if not isinstance(look, Cut):
            return None
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
                found.append((v, (cut,)))
            offset += n
        if not found:
            return None
        found = found if step > 0 else found[::-1]
        shape = look.shape(self.builder, node.specs[0].shape)
        made = Spec(shape, node.specs[0].dtype)

        def build(values: Sequence[int]) -> int:
            kinds = {self.builder.specs[v].dtype for v in values}
            if len(values) > 1 or kinds != {made.dtype}:
                return self.builder.add("concat", values, node.params, (made,), node.line)[0]
            return values[0]

        return found, build

    def _through_reshape(self, node: Node, look: Look) -> Made | None:
        """Of a reshape's operand the rows that have what is wanted."""
        (x,), spec = node.inputs, node.specs[0]
        old, new = self.graph.specs[x].shape, spec.shape
        if 0 in (*old, *look.shape(self.builder, new)):
            return None
        folds = [_Fold(olds, news, old, new, look) for olds, news in groups(old, new)]
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
        return self._in_shape(value, Spec(shape, self.builder.specs[value].dtype), line)

    def _cut(self, value: int, parts: Sequence[Part], line: str) -> int:
        cut = cut_of(parts, self.builder.specs[value].shape)
        return self._look(value, cut, line) if cut else value

    def _rows_of(self, node: Node, look: Look, folds: Sequence[_Fold], fold: _Fold) -> Made:
        """Single elements of a fold: the rows that have them, and of each row its element."""
        builder, line = self.builder, node.line
        flat = fold.places(builder, look, line)
        inner = builder.call("constant", value=fold.inner, dtype=int64)
        row = builder.call("floor_divide", flat, inner, line=line)
        (count,) = builder.specs[flat].shape

        def build(values: Sequence[int]) -> int:
            (value,) = values
            shapes = [f.new_sizes if f is not fold else (count, fold.inner) for f in folds]
            value = self._shaped(value, shapes, line)
            if fold.inner > 1:
                axis = 1 + sum(len(s) for s in shapes[: folds.index(fold)])
                ones = [1] * builder.specs[value].ndim
                ones[axis - 1] = count
                place = builder.call("remainder", flat, inner, line=line)
                place = self._in_shape(place, Spec(tuple(ones), int64), line)
                value = builder.call("take_along_axis", value, place, line=line, axis=axis)
            shape = look.shape(builder, node.specs[0].shape)
            return self._in_shape(value, Spec(shape, node.specs[0].dtype), line)

        return ((node.inputs[0], (Pick(fold.big, row),)),), build

    def _spec(self, seen: Seen) -> Spec:
        v, looks = seen
        spec = self.graph.specs[v]
        shape = spec.shape
        for look in looks:
            shape = look.shape(self.builder, shape)
        return Spec(shape, spec.dtype)


def _infer(rule: Callable[..., Any], ins: Sequence[Spec], kw: dict[str, Any]) -> Any:
    try:
        made = rule(*ins, **kw)
    except Exception:  # of a rule that wants other extents
        return None
    return made if isinstance(made, tuple) else (made,)


def _is_parallel(indices: Indices, label: str | None, name: str) -> bool:
    """Whether a part of an index is made of just this part of the operands."""
    if label is None or label in indices.chunked or label in dict(indices.parts):
        return False
    found = [dims for dims in indices.ins if any(getattr(c, "label", c) == label for c in dims)]
    plain = all([getattr(c, "label", c) for c in dims].count(label) == 1 for dims in found)
    return plain and all(label in dims for dims in found) and bool(found or name == "broadcast_to")


# -- reshapes -----------------------------------------------------------------------------------
def groups(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Neighbouring dimensions of both that have the same elements."""
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + len(olds), j + len(news)
        left, right = math.prod(old[d] for d in olds), math.prod(new[d] for d in news)
        while left != right:
            if left < right:
                olds, left, i = [*olds, i], left * old[i], i + 1
            else:
                news, right, j = [*news, j], right * new[j], j + 1
        yield olds, news


class _Fold:
    """What is wanted of a group of dimensions, and the rows of the old ones that have it."""

    def __init__(
        self, olds: list[int], news: list[int], old: Shape, new: Shape, look: Look
    ) -> None:
        self.news, self.new_sizes = news, tuple(new[d] for d in news)
        self.is_touched = any(d in news for d in look.axes)
        self.size = math.prod(self.new_sizes)
        self.big = next((d for d in olds if old[d] > 1), olds[0] if olds else -1)
        self.inner = self.size // (old[self.big] if self.big >= 0 else 1)
        given = {a: (s, n, t) for a, s, n, t in look.parts} if isinstance(look, Cut) else {}
        self.parts: list[Part] = [given.get(d, (0, new[d], 1)) for d in news]
        self.between = self.rest = self.parts
        if not self.is_touched:
            return
        ends = [sorted((s, s + step * (n - 1))) for s, n, step in self.parts]
        steps = [math.prod(self.new_sizes[d + 1 :]) for d in range(len(news))]
        p = next((d for d, (lo, hi) in enumerate(ends) if lo < hi), len(news) - 1)
        begin = sum(lo * n for (lo, _), n in zip(ends[: p + 1], steps, strict=False))
        span = ends[p][1] - ends[p][0] + 1
        end = begin + span * steps[p]
        self.is_sparse = end - begin > SPARSE * math.prod(n for _, n, _ in self.parts)
        self.rows: list[tuple[int, Part]] = []
        size, left, low, high = self.size, self.size, begin, end
        for d in olds:  # down to the dimension along which more than one place is needed
            left //= old[d]
            first, last = low // left, -(-high // left)
            self.rows.append((d, (first, last - first, 1)))
            low, high, size = low - first * left, high - first * left, (last - first) * left
            if last - first > 1:
                break
        self.between = [(low, end - begin, 1)]
        self.shapes: tuple[Shape, Shape] = (
            (size,),
            (*(1,) * p, span, *self.new_sizes[p + 1 :]),
        )
        start, count, step = self.parts[p]
        self.rest = [*[(0, 1, 1)] * p, (start - ends[p][0], count, step), *self.parts[p + 1 :]]

    def places(self, builder: Builder, look: Look, line: str) -> int:
        """The number of each wanted element in the group; one behind all, if it is nowhere."""

        def number(value: int) -> int:
            return builder.call("constant", value=value, dtype=int64)

        def call(op: str, *values: int) -> int:
            return builder.call(op, *values, line=line)

        picks = isinstance(look, Pick)
        sizes = [n for _, n, _ in self.parts]
        if isinstance(look, Pick):
            sizes[self.news.index(look.axis)] = builder.specs[look.places].size
        total, wrong = number(0), number(0)
        for d, (start, n, step) in enumerate(self.parts):
            if isinstance(look, Pick) and self.news[d] == look.axis:
                own = builder.call("astype", look.places, line=line, dtype=int64)
                below = call("less", own, number(-n))
                wrong = call("logical_or", below, call("greater_equal", own, number(n)))
                own = call("where", call("less", own, number(0)), call("add", own, number(n)), own)
                shape = tuple(m if k == d else 1 for k, m in enumerate(sizes))
                own = builder.call("reshape", own, line=line, shape=shape)
                wrong = builder.call("reshape", wrong, line=line, shape=shape)
            else:
                own = builder.call("iota", line=line, shape=tuple(sizes), axis=d, dtype=int64)
                own = call("add", call("multiply", own, number(step)), number(start))
            by = math.prod(self.new_sizes[d + 1 :])
            total = call("add", total, call("multiply", own, number(by)))
        if picks:
            total = call("where", wrong, number(self.size), total)
        return builder.call("reshape", total, line=line, shape=(math.prod(sizes),))


# -- parts that are near each other ------------------------------------------------------------
Box = tuple[Part, ...]


def _together(graph: Graph, most: int) -> Graph:
    """Parts that have the same rows are read as one, and so are small ones that overlap, or nearly."""
    parts: dict[int, dict[int, Box]] = {}
    for k, node in enumerate(graph.nodes):
        readers = [graph.nodes[u] for u in graph.uses[graph.starts[k]]] if node.specs else []
        stays = any(n.op in STORED or any(n.subgraphs()) for n in readers)
        if node.op == "slice_file" and node.specs[0].size and not stays:
            kw = node.kw
            box = tuple(zip(kw["starts"], kw["sizes"], kw["steps"], strict=True))
            parts.setdefault(node.inputs[0], {})[k] = box
    hulls: dict[int, Box] = {}
    for v, boxes in parts.items():
        spec = graph.specs[v]
        whole = v in graph.outputs or any(
            graph.nodes[u].op not in STORED and not any(graph.nodes[u].subgraphs())
            for u in graph.uses[v]
        )
        rows: dict[Part, list[int]] = {}
        for k, box in boxes.items():
            rows.setdefault(box[0], []).append(k)
        for row, same in rows.items():
            all_ = [*same, -1] if whole and row == (0, spec.shape[0], 1) else same
            hull = _hull([boxes[k] if k >= 0 else _all(spec.shape) for k in all_])
            if len(all_) > 1 and (-1 in all_ or _inner(hull) * spec.dtype.itemsize <= ROW):
                hulls.update(dict.fromkeys(same, hull))
        small = {k: box for k, box in boxes.items() if k not in hulls}
        hulls.update(_small(small, spec.dtype.itemsize, most))
    return _read_as_one(graph, hulls) if hulls else graph


def _read_as_one(graph: Graph, hulls: dict[int, Box]) -> Graph:
    """The graph that reads these boxes, and of each in memory what is wanted."""
    builder, values = Builder(graph.inputs), list(range(len(graph.inputs)))
    for k, node in enumerate(graph.nodes):
        hull = hulls.get(k)
        inputs = [values[v] for v in node.inputs]
        if hull is None:
            values.extend(builder.add(node.op, inputs, node.params, node.specs, node.line))
            continue
        (source,), file = inputs, graph.specs[node.inputs[0]]
        starts, sizes, steps = (tuple(p[j] for p in hull) for j in range(3))
        if hull != _all(file.shape):
            params = {"starts": starts, "sizes": sizes, "steps": steps}
            made = Spec(sizes, file.dtype, file.layout)
            (source,) = builder.add("slice_file", inputs, params, (made,), node.line)
        (value,) = builder.add("read", (source,), (), (Spec(sizes, file.dtype),), node.line)
        kw = node.kw
        kw["starts"] = tuple(
            (a - b) // by for a, b, by in zip(kw["starts"], starts, steps, strict=True)
        )
        kw["steps"] = tuple(a // by for a, by in zip(kw["steps"], steps, strict=True))
        full = (kw["starts"], kw["sizes"]) == ((0,) * len(sizes), sizes) and set(kw["steps"]) == {1}
        if not full:
            (value,) = builder.add("slice", (value,), kw, (node.specs[0].bare,), node.line)
        values.append(value)
    return builder.graph([values[v] for v in graph.outputs])


def _all(shape: Shape) -> Box:
    return tuple((0, n, 1) for n in shape)


def _inner(box: Box) -> int:
    return math.prod(n for _, n, _ in box[1:])


def _hull(boxes: Sequence[Box]) -> Box:
    """The smallest box that has them all; an axis that is the same in all stays as it is."""
    found = []
    for parts in zip(*boxes, strict=True):
        if len(set(parts)) == 1:
            found.append(parts[0])
            continue
        ends = [e for start, n, step in parts for e in (start, start + step * (n - 1))]
        found.append((min(ends), max(ends) + 1 - min(ends), 1))
    return tuple(found)


def _small(boxes: dict[int, Box], size: int, most: int) -> dict[int, Box]:
    """Groups of small boxes, each of which is little more than all that are in it."""
    found: dict[int, Box] = {}
    group: list[int] = []
    hull: Box = ()
    held = 0

    def close() -> None:
        if len(group) > 1:
            found.update(dict.fromkeys(group, hull))

    for k in sorted(boxes, key=lambda k: (min(_ends(boxes[k])), k)):
        own = math.prod(n for _, n, _ in boxes[k])
        new = _hull([hull, boxes[k]]) if group else boxes[k]
        enough = min((held + own) * size + CLOSE, most)
        if group and math.prod(n for _, n, _ in new) * size <= enough:
            hull, held = new, held + own
        else:
            close()
            group, hull, held = [], boxes[k], own
        group.append(k)
    close()
    return found


def _ends(box: Box) -> tuple[int, int]:
    start, n, step = box[0] if box else (0, 1, 1)
    return start, start + step * (n - 1)
