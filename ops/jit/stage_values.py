"""What a kernel in stages computes: values over labelled indices, and what is combined along which.

The `rows` are labels that every operation has: they are what a kernel cuts in time, into units. How its loops
run (ops/cpu/loops/schedule.py, ops/gpu/loops/schedule.py) and who writes them
(ops/cpu/loops/stages.py in LLVM's language, ops/gpu/loops/stages.py in CUDA C++) are other questions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Dim, Indices, Window
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS, Params, Place
from ostinato.ops.core.spec import Shape, strided_like

from .labels import Dims, Fit, Labels, combines, gives_places, indices_of, reads_elsewhere, turns_of
from .random_bits import numbers_in


@dataclass(frozen=True, slots=True)
class Reduction:
    """A value made by combining others along labels."""

    node: Node
    over: frozenset[int]
    kind: str  # its monoid
    # Of windows: the labels, as its index rule calls them, and that rule, for what is on this worker.
    letters: Mapping[str, int] | None = None
    rule: Indices | None = None


@dataclass
class Stages:
    """A body whose values are labelled, for operands and results that lie somehow."""

    body: Graph
    dims: list[Dims]
    extents: list[int]
    rows: tuple[int, ...]
    reductions: dict[int, Reduction]  # by their first value; moments by their mean
    strides: list[dict[int, int]]  # of each operand and result, in bytes
    operands: int
    running: dict[int, int] = field(default_factory=dict)  # along which labels values are combined
    behind: frozenset[int] = frozenset()  # values that are made of what is combined over the rows
    begins: Mapping[int, int] = field(default_factory=dict)  # of labels: of this worker's part

    def labels(self, v: int) -> tuple[int, ...]:
        return tuple(x for x in self.dims[v] if x is not None)

    @property
    def gathered(self) -> list[int]:
        """List the values that are combined over the rows; of moments, the means."""
        return [v for v, r in self.reductions.items() if r.over & set(self.rows)]

    @property
    def gathers_exactly(self) -> bool:
        """Whether what is combined over the rows has the same bits however they are cut."""
        return all(
            MONOIDS[self.reductions[v].kind].exact or self.body.specs[v].dtype.kind in "biu"
            for v in self.gathered
        )

    def gathers(self, v: int) -> bool:
        """Whether a value is combined over the rows, or made of what is, and so done at the end only."""
        k = self.body.producers[v]
        return v in self.behind or (k >= 0 and any(u in self.gathered for u in self.body.outs(k)))

    def iterates(self, k: int) -> frozenset[int]:
        """The labels of a node's own work."""
        found: frozenset[int] = frozenset()
        for v in self.body.outs(k):
            found |= frozenset(self.labels(v))
            found |= self.reductions[v].over if v in self.reductions else frozenset()
        return found

    def works(self, k: int) -> bool:
        """Whether a node's elements are made, and not read elsewhere."""
        node = self.body.nodes[k]
        return OPS[node.op].computes and not reads_elsewhere(node)

    def overlaps(self, a: int) -> bool:
        """Whether elements of an operand are the same ones along several labels, as those of windows are."""
        lies, size = self.strides[a], self.body.specs[self.value_of(a)].dtype.itemsize
        far = sum(abs(step) * (self.extents[x] - 1) for x, step in lies.items())
        return far < (math.prod(self.extents[x] for x in lies) - 1) * size

    def slid_with(self, a: int, row: int) -> list[int]:
        """The labels along which windows of an operand slide as they do from row to row: what one row reads,
        the next one reads, too."""
        lies = {x: n for x, n in self.strides[a].items() if n}
        return [
            x for x, n in lies.items() if x not in self.rows and x != row and n == lies.get(row)
        ]

    def value_of(self, a: int) -> int:
        """The value of an operand or a result, by its place among them."""
        return a if a < self.operands else self.body.outputs[a - self.operands]

    def source_of(self, v: int, converted: bool = False) -> int:
        """Find the value that this one is a view of, or is `converted` from."""
        k = self.body.producers[v]
        while k >= 0 and ((op := OPS[self.body.nodes[k].op]).rearranges or
                          (converted and op.moves.converts)):  # fmt: skip
            v = self.body.nodes[k].inputs[0]
            k = self.body.producers[v]
        return v


def stages_of(
    body: Graph,
    dims: Sequence[Sequence[int]],
    rows: Sequence[int],
    shapes: Sequence[Shape],
    strides: Sequence[Sequence[int]],
    apart: int = 0,
    begins: Sequence[Sequence[int]] = (),
) -> Stages | None:
    """The stages of a body for operands and results that lie so; None if no kernel can do it. Moments that are
    not over rows are spelled out, and indices that always follow each other are one; but rows of at least so
    many elements stay `apart`, of which the next one reads what windows of one read. `begins`: of operands and
    results, where their parts do."""
    found = label(body, dims, rows, shapes, strides, begins)
    if found is not None and any(r.kind == "moments" for r in found.reductions.values()):
        found = label(_spelled(found), dims, rows, shapes, strides, begins)
    if found is not None:
        join_neighbours(found, apart)
        found.behind = _behind(found)
    return found


def _behind(nest: Stages) -> frozenset[int]:
    found = set[int]()
    seen = {u for v in nest.gathered for u in nest.body.outs(nest.body.producers[v])}
    for k, node in enumerate(nest.body.nodes if seen else ()):
        if not seen.isdisjoint(node.inputs):
            found |= {*nest.body.outs(k)}
            seen |= {*nest.body.outs(k)}
    return frozenset(found)


def strides_in_order(
    body: Graph, shapes: Sequence[Shape], steps: Sequence[Sequence[int]] = ()
) -> list[Sequence[int]]:
    """List the strides of operands and results whose elements lie one behind the other; `steps`: of
    operands that are windows, how many elements it is to the next one along each axis."""
    specs = (*body.inputs, *body.out_specs)
    found = [strided_like(shape, s.dtype).strides for shape, s in zip(shapes, specs, strict=True)]
    for k, own in enumerate(steps):
        found[k] = tuple([n * specs[k].dtype.itemsize for n in own]) if own else found[k]
    return found


def label(
    body: Graph,
    dims: Sequence[Sequence[int]],
    rows: Sequence[int],
    shapes: Sequence[Shape],
    strides: Sequence[Sequence[int]],
    begins: Sequence[Sequence[int]] = (),
) -> Stages | None:
    """A body with labels: `dims` are its operands' (-1 for none), `shapes`, `strides` and `begins` those of
    operands and results on this worker."""
    labels = Labels([0] * (1 + max((x for own in dims for x in own), default=-1)))
    for k, own in enumerate(dims):
        labels.dims[k] = tuple(None if x < 0 else x for x in own)
        for label, n in zip(labels.dims[k], body.inputs[k].shape, strict=True):
            if label is not None:
                labels.extents[label] = n
    fixed = range(len(labels.extents))

    def fit(k: int) -> Fit | None:
        node = body.nodes[k]
        specs = [body.specs[v] for v in node.inputs]
        rule = indices_of(node, specs)
        return labels.fit(rule, node.inputs, specs, node.specs, fixed, turns_of(node, specs))

    turns: dict[int, dict[str, int]] = {}  # labels of windows, which stand nowhere else
    for k, node in enumerate(body.nodes):
        if not OPS[node.op].element.source:
            found = fit(k)
            if found is None:
                return None
            labels.take(found, body.outs(k))
            if (counts := turns_of(node, [body.specs[v] for v in node.inputs])) is not None:
                turns[k] = {c: found.letters[c] for c in counts if c in found.letters}
    if labels.repeats:
        return None
    reductions: dict[int, Reduction] = {}
    for k, node in enumerate(body.nodes):
        if OPS[node.op].reduce and (found := fit(k)) is not None:
            kind, _ = combines(body, node)
            first = body.starts[k] + (kind == "moments")
            if k in turns:
                rule = indices_of(node, [body.specs[v] for v in node.inputs])
                named = zip(rule.outs[0], labels.dims[first], strict=True)
                letters = {c: x for c, x in named if c is not None and x is not None} | turns[k]
                over = frozenset(turns[k].values())
                reductions[first] = Reduction(node, over, kind, letters)
            else:
                reductions[first] = Reduction(node, found.reduced, kind)
    for k, node in enumerate(body.nodes):  # numbers that only results are
        for v in body.outs(k):
            labels.dims.setdefault(v, (None,) * node.specs[0].ndim)
    extents, steps = list(labels.extents), []
    places = (*range(len(body.inputs)), *body.outputs)
    for v, shape, own in zip(places, shapes, strides, strict=True):
        lies = {}
        for label, n, step in zip(labels.dims[v], shape, own, strict=True):
            if label is not None:
                extents[label], lies[label] = n, step
        steps.append(lies)
    every = [labels.dims[v] for v in range(len(body.specs))]
    low = {x: n for v, own in zip(places, begins, strict=False) for x, n in zip(every[v], own, strict=True)
           if x is not None}  # fmt: skip
    for v, r in reductions.items():
        if r.letters is not None:
            if not _lies_somewhere(body, v, every[v], steps):
                return None
            reductions[v] = replace(r, rule=_local(body, r, every, low))
    running = {
        v: label
        for v, node in zip(body.starts, body.nodes, strict=False)
        if OPS[node.op].element.running and (label := every[v][node.kw["axis"]]) is not None
    }
    made = Stages(body, every, extents, tuple(rows), reductions, steps, len(body.inputs), running)
    made.begins = low
    return made


def _lies_somewhere(body: Graph, v: int, dims: Dims, steps: Sequence[Mapping[int, int]]) -> bool:
    """Whether an operand or a result says how much of each cut dimension of a value is on this worker."""
    layout, known = body.specs[v].layout, {x for lies in steps for x in lies}
    cut = {d for d in layout.splits if isinstance(d, int)} if layout is not None else set()
    return all(dims[d] is None or dims[d] in known for d in cut)


def _local(body: Graph, r: Reduction, dims: Sequence[Dims], low: Mapping[int, int]) -> Indices:
    """The rule of a reduction of windows, from a part of its results to parts of its operands."""
    letters = r.letters or {}
    rule = OPS[r.node.op].indices(
        tuple([body.specs[v] for v in r.node.inputs]), r.node.specs, r.node.kw
    )

    def moved(d: Dim, x: int | None) -> Dim:
        if not isinstance(d, Window):
            return d
        there, here = (low.get(-1 if y is None else y, 0) for y in (x, letters.get(d.label)))
        return replace(d, offset=d.offset + d.stride * here - d.every * there)

    ins = [tuple(map(moved, own, dims[v])) for v, own in zip(r.node.inputs, rule.ins, strict=True)]
    return replace(rule, ins=tuple(ins))


def begins_at(at: Place | None, p: Params) -> tuple[tuple[int, ...], ...]:
    """Where the parts of a kernel's operands and results begin, if it reads windows of some."""
    moving = any(OPS[n.op].reduce and OPS[n.op].run.placed for n in p["body"].nodes)
    boxes = (*at.ins, *at.outs) if at is not None and moving else ()
    return tuple([tuple([lo for lo, _ in box]) for box in boxes])


def windows_at(at: Place, p: Params) -> Any:
    """Where its windows begin in its operands: of its place, all that a kernel of such parts depends on."""
    if not (begins := begins_at(at, p)):
        return ()
    shapes = [tuple([hi - lo for lo, hi in box]) for box in (*at.ins, *at.outs)]
    found = label(p["body"], p["dims"], p["rows"], shapes, shapes, begins)
    return found and tuple([r.rule.ins for r in found.reductions.values() if r.rule is not None])


def join_neighbours(nest: Stages, apart: int = 0) -> None:
    """Indices that always follow each other, in memory too, become one."""
    whole = {x for v, own in enumerate(nest.dims) if _counts(nest.body, v) for x in own}
    whole |= {*nest.running.values()}
    apart = 0 if nest.gathered else apart
    for outer, inner in _neighbours(nest):
        if outer in whole or inner in whole or not _are_one(nest, outer, inner):
            continue
        n = nest.extents[inner]
        if apart and n >= apart and any(nest.slid_with(a, outer) for a in range(nest.operands)):
            continue
        nest.extents[outer] *= n
        nest.extents[inner] = 1
        nest.dims = [tuple(None if x == inner else x for x in own) for own in nest.dims]
        nest.rows = tuple(dict.fromkeys(outer if x == inner else x for x in nest.rows))
        for lies in nest.strides:
            if inner in lies:
                lies[outer] = lies.pop(inner)
        for v, r in nest.reductions.items():
            nest.reductions[v] = replace(r, over=r.over - {inner})


def _neighbours(nest: Stages) -> Iterator[tuple[int, int]]:
    """Pairs of labels that follow each other in an operand, the last ones first."""
    for v in range(nest.operands):
        labels = nest.labels(v)
        yield from reversed([*itertools.pairwise(labels)])


def _counts(body: Graph, v: int) -> bool:
    """Whether an index's own number matters to a value."""
    k = body.producers[v]
    readers = [body.nodes[u] for u in body.uses[v]]
    if any(_moves(body, n) for n in readers) or (k >= 0 and _moves(body, body.nodes[k])):
        return True
    made = OPS[body.nodes[k].op] if k >= 0 else None
    return v in numbers_in(body) or (
        made is not None and (made.element.source == "index" or bool(made.moves.places))
    ) or any(OPS[n.op].moves.places or gives_places(body, n) for n in readers)  # fmt: skip


def _moves(body: Graph, node: Node) -> bool:
    return reads_elsewhere(node) or turns_of(node, [body.specs[v] for v in node.inputs]) is not None


def _are_one(nest: Stages, outer: int, inner: int) -> bool:
    if any((outer in r.over) != (inner in r.over) for r in nest.reductions.values()):
        return False
    for own in nest.dims:
        known = [x for x in own if x is not None]
        places = [known.index(x) for x in (outer, inner) if x in known]
        if places and (len(places) < 2 or places[1] != places[0] + 1):
            return False
    n = nest.extents[inner]
    return all(lies[outer] == lies[inner] * n for lies in nest.strides if outer in lies)


def _spelled(nest: Stages) -> Graph:
    """The body with moments, but for those over the rows, as a mean and a sum of squared deviations: of
    the elements that are here."""
    body, whole = nest.body, nest.gathered
    builder = Builder(body.inputs)
    values = list(range(len(body.inputs)))
    for k, node in enumerate(body.nodes):
        ins = [values[v] for v in node.inputs]
        if node.op != "moments" or body.starts[k] + 1 in whole:
            values += builder.add(node.op, ins, node.params, node.specs, node.line)
            continue
        (x,), axes = ins, node.kw["axes"]
        count = math.prod(nest.extents[i] for i in nest.reductions[body.starts[k] + 1].over)
        n = builder.call("constant", value=float(count), dtype=node.specs[0].dtype)
        # Not by the rule of `mean`, which is one of whole arrays.
        params = {"axes": axes, "count": count}
        (mean,) = builder.add("mean", (x,), params, (node.specs[1].bare,), node.line)
        spread = builder.call("expand_dims", mean, axes=axes) if axes else mean
        off = builder.call("square", builder.call("subtract", x, spread))
        square = builder.call("sum", off, axes=axes, dtype=node.specs[2].dtype, line=node.line)
        values += [n, mean, square]
    return Graph(builder.inputs, tuple(builder.nodes), tuple(values[v] for v in body.outputs))
