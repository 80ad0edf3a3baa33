"""Rows in a few blocks, each without the columns that a mask known at planning takes out of all its rows.

before                                              after, for each of k blocks of rows
%4 = matmul(%0, %1) : float32[n,n]                  %4 = matmul(%0, %1) : float32[n/k,m], of its columns
%5 = where(%3, %4, -inf) : float32[n,n]             %5 = where(%3, %4, -inf) : float32[n/k,m]
%6 = exp(%5) : float32[n,n]                         %6 = exp(%5) : float32[n/k,m]
%7 = matmul(%6, %2) : float32[n,d]                  %7 = matmul(%6, %2) : float32[n/k,d], of its first m rows
return %7                                           return the blocks' %7, joined

A mask follows from numbers and places alone. What is made of it has a known element behind it where no finite
operand (of PROBES) changes that: `-inf` less anything, `exp(-inf)`, 0 times any. Elements that only these
read are not needed (%4), nor are those that change nothing in a sum or maximum (%6). Sums over rows, as slopes
have them, are sums of blocks. So NaN and infinities behind a mask are not read, and spoil nothing there.

The nominal machine's price decides, so that who reads a plan file finds the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.array.expressions import Expression, joined, padded, sliced
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node, canonical
from ostinato.ops.core.monoid import MONOIDS, identity
from ostinato.ops.core.registry import OPS, Op, Place
from ostinato.ops.core.spec import Spec, bool_
from ostinato.planner.layouts.costs import graph_seconds
from ostinato.planner.machine import NOMINAL
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace, rewrite_bodies

from .simplify import computed

ROWS = {2: 256, 4: 256}  # from which on so many blocks may pay; the price takes one of them
TABLE = 1 << 27  # bytes of a mask, or of what it is made of, at the most
PROBES = (-3e9, -1.5, -1.0, -1e-9, 0.0, 1e-9, 1.0, 1.5, 3e9)  # in the place of what is not known

Axes = tuple[int | None, int | None]  # of a value: its rows', and its columns'
NONE: Axes = (None, None)
Block = tuple[tuple[int, int], tuple[int, int]]  # rows and columns


def skip_masked(graph: Graph, target: Target) -> Graph:
    """The pass: on one worker whose memory is not short, where sums may be added in another order."""
    if target.workers > 1 or target.numerics == "any-workers" or target.memory_limit is not None:
        return graph
    graph = rewrite_bodies(graph, lambda g: skip_masked(g, target))
    whole, chosen = graph_seconds(NOMINAL, graph), list[_Blocks]()
    found = [(graph_seconds(NOMINAL, _made(graph, [cut])), cut) for cut in _cuts(graph)]
    for seconds, cut in sorted(found, key=lambda f: f[0]):
        if seconds < whole and all(cut.nodes.keys().isdisjoint(c.nodes) for c in chosen):
            chosen.append(cut)
    return _made(graph, chosen) if chosen else graph


def _masks(graph: Graph) -> set[int]:
    """Find values that follow from comparisons of numbers and places, and are read by others; and all that
    these are made of."""
    able, masks = set[int](), set[int]()
    for k, node in enumerate(graph.nodes):
        op, v, ins = OPS[node.op], graph.starts[k], {*node.inputs}
        known = op.element.source or _is_computed(op) or (op.is_view and op.view is not None)
        if known and len(node.specs) == 1 and node.specs[0].size and able >= ins:
            able.add(v)
            if node.specs[0].dtype == bool_ or masks & ins:
                masks.add(v)
    found = {v for v in masks if any(graph.starts[u] not in able for u in graph.uses[v])}
    for k in reversed(range(len(graph.nodes))):
        if graph.starts[k] in found:
            found.update(graph.nodes[k].inputs)
    return found


def _is_computed(op: Op) -> bool:
    return bool(op.scalar) and not (op.element.draws or op.run.placed or op.run.scratch)


@np.errstate(all="ignore")
def _known(graph: Graph) -> dict[int, Any]:
    """Masks that follow from numbers and places, what they are made of, and single numbers, with steps of 0
    along axes that do not change them."""
    masks, found = _masks(graph), dict[int, Any]()
    for k, node in enumerate(graph.nodes):
        op, spec, kw, x = OPS[node.op], node.specs[0], node.kw, None
        is_mask = graph.starts[k] in masks
        if not (is_mask or op.scalar or op.element.source) or not found.keys() >= {*node.inputs}:
            continue
        xs = [found[v] for v in node.inputs]
        if op.element.source == "value":
            x = np.asarray(kw["value"], spec.dtype)
        elif op.element.source == "index" and is_mask and spec.shape[kw["axis"]] <= TABLE:
            x = np.arange(spec.shape[kw["axis"]], dtype=spec.dtype)
            x = x.reshape([-1 if d == kw["axis"] else 1 for d in range(spec.ndim)])
        elif _is_computed(op):
            xs = [y[tuple([slice(None if step else 1) for step in y.strides])] for y in xs]
            size = math.prod(np.broadcast_shapes(*[y.shape for y in xs])) * spec.dtype.itemsize
            if size <= (TABLE if is_mask else spec.dtype.itemsize):
                x = computed(node, xs)
        elif op.view is not None and op.is_view and len(xs) == 1:
            boxes = [tuple([(0, n) for n in s]) for s in (xs[0].shape, spec.shape)]
            at = Place((boxes[0],), (boxes[1],), (xs[0].shape,), (spec.shape,))
            x = op.view(np, xs[0], at, **kw)
        if x is not None:
            found[graph.starts[k]] = np.broadcast_to(x, spec.shape)
    return found


def _cuts(graph: Graph) -> Iterator[_Blocks]:
    """Regions that could be cut: by what stands in a corner of a mask, in each order of its axes."""
    known = _known(graph)
    for v, x in known.items():
        axes = [d for d, step in enumerate(x.strides) if step and x.shape[d] > 1]
        read = any(not known.keys() >= {*graph.outs(u)} for u in graph.uses[v])
        if not read or len(axes) != 2:
            continue
        x = x[tuple([slice(None) if d in axes else 0 for d in range(x.ndim)])]
        for value in (
            {x[0, -1].item(), x[-1, 0].item()} if x.size >= min(ROWS.values()) ** 2 else ()
        ):
            for table, order in ((x, axes), (x.T, axes[::-1])):
                region = _Region(graph, known, v, (order[0], order[1]), value)
                for blocks in _blocks(table != value) if region.pays else ():
                    yield _Blocks(region, region.nodes, blocks, {})


def _blocks(wanted: Any) -> Iterator[list[Block]]:
    """Blocks of as many rows, and the columns that one of them wants."""
    n, m = wanted.shape
    some = wanted.any(1)
    low = np.where(some, wanted.argmax(1), m)
    high = np.where(some, m - wanted[:, ::-1].argmax(1), 0)
    for count in [c for c, rows in ROWS.items() if n >= rows]:
        made = list[Block]()
        for a, b in itertools.pairwise(n * k // count for k in range(count + 1)):
            c = min(int(low[a:b].min()), m - 1) // 16 * 16  # where kernels' vectors begin
            made.append(((a, b), (c, min(m, -(-max(int(high[a:b].max()), c + 1) // 16) * 16))))
        if any(c > 0 or d < m for _, (c, d) in made):
            yield made


# -- what is cut -------------------------------------------------------------------------------
class _Cut(NamedTuple):
    """Axes of a node's operands and result, and the monoid by which it reduces."""

    ins: tuple[Axes, ...]
    out: Axes
    monoid: str


class _Region:
    """Nodes that are made in blocks: behind a mask, those whose results nothing else reads, and what leads
    from a block's rows back to it."""

    def __init__(self, graph: Graph, known: dict[int, Any], v: int, axes: Axes, value: Any) -> None:
        self.graph, self.known, self.behind = graph, known, {v: value}
        self.axes: dict[int, Axes] = {v: axes}
        self.nodes: dict[int, _Cut] = {}
        for k in range(len(graph.nodes)):
            self._follow(k)
        for k in reversed(range(len(graph.nodes))):
            self._lead(k)
        while apart := {k for k, c in self.nodes.items() if None not in c.out} - {
            k for k, c in self.nodes.items() if self._reads(k) == {c.out}
        }:
            for k in apart:  # which somebody else reads, so it is made whole
                del self.nodes[k]
        self._add_rows()

    def cut(self, k: int, places: Sequence[int], axes: Axes | None = None) -> _Cut | None:
        """How a node is cut where its operands in these places, or its result, have their axes."""
        node, op = self.graph.nodes[k], OPS[self.graph.nodes[k].op]
        able = op.scalar or op.reduce or op.rearranges
        if len(node.specs) > 1 or op.element.draws or not able:
            return None
        indices = op.indices(tuple([self.graph.specs[v] for v in node.inputs]), node.specs, node.kw)
        given = [(indices.ins[p], self.axes[node.inputs[p]]) for p in places]
        given += [(indices.outs[0], axes)] if axes is not None else []
        found = {tuple([None if d is None else (dims[d],) for d in own]) for dims, own in given}
        names = [name and name[0] for name in found.pop()]
        if found or any(n in indices.chunked or not isinstance(n, str | None) for n in names):
            return None

        def find(dims: Sequence[Any]) -> Axes:
            row, column = (dims.index(c) if c is not None and c in dims else None for c in names)
            return row, column

        monoid = "".join({m for _, m in indices.reduce})
        return _Cut(tuple(map(find, indices.ins)), find(indices.outs[0]), monoid)

    def _follow(self, k: int) -> None:
        """Find what stands behind the mask in a node's result; or that it reduces what changes nothing."""
        graph, node, op = self.graph, self.graph.nodes[k], OPS[self.graph.nodes[k].op]
        places = [p for p, v in enumerate(node.inputs) if v in self.behind]
        cut = self.cut(k, places) if places else None
        if cut is None or any(cut.ins[p] != self.axes[node.inputs[p]] for p in places):
            return
        (v,), (spec,) = graph.outs(k), node.specs
        numbers = {u: self.known[u].flat[0].item() for u in node.inputs
                   if u in self.known and not any(self.known[u].strides)}  # fmt: skip
        values = [self.behind.get(u, numbers.get(u)) for u in node.inputs]
        if op.scalar and not op.run.placed:
            element = self._element(node, values)
        elif op.reduce and cut.monoid in MONOIDS and MONOIDS[cut.monoid].ufunc:
            factors = [values[f] for f in op.reduce.factors or ()]
            element = values[0] if op.reduce.element == "{0}" else 0 if 0 in factors else None
            rounds = cut.out[0] is None and spec.dtype.itemsize < 4  # in each block
            if element is None or rounds or element != identity(cut.monoid, spec.dtype):
                return
        else:
            element = values[0] if op.rearranges else None
        if None in cut.out or element is not None:
            self.nodes[k], self.axes[v] = cut, cut.out
            if None not in cut.out:
                self.behind[v] = element

    def _element(self, node: Node, values: Sequence[Any]) -> Any:
        """Compute the one element that an operation makes, whatever those are that are not known (None)."""
        dtypes = [self.graph.specs[v].dtype for v in node.inputs]
        probes = [*PROBES, *(x for x in values if x is not None and abs(x) < math.inf)]
        with np.errstate(all="ignore"):
            xs = [
                np.unique(
                    [*np.asarray(probes).astype(t), *_ends(t)] if x is None else np.asarray([x], t)
                )
                for x, t in zip(values, dtypes, strict=True)
            ]
        made = computed(node, [x.reshape(-1, *[1] * p) for p, x in enumerate(xs)])
        found = {*made[made == made].tolist()}  # 0/0 is not asked
        return found.pop() if len(found) == 1 else None

    def _reads(self, k: int) -> set[Axes]:
        """The axes that blocks read of a node's result, and none for who needs what is behind the mask."""
        graph, (v, *_) = self.graph, self.graph.outs(k)
        found = {NONE} if v in graph.outputs else set[Axes]()
        for u in graph.uses[v]:
            cut = self.nodes.get(u)
            inner = cut is not None and (v in self.behind or None not in cut.out)
            places = [p for p, w in enumerate(graph.nodes[u].inputs) if w == v]
            found |= {cut.ins[p] for p in places} if cut is not None and inner else {NONE}
        return found

    def _lead(self, k: int) -> None:
        """Take in a value that is read behind masks only: it needs no element there."""
        (v, *_), axes = self.graph.outs(k), self._reads(k)
        if (
            len(axes) == 1
            and None not in next(iter(axes))
            and not {v} & (self.axes | self.known).keys()
        ):
            self.axes[v] = axes.pop()
            if cut := self.cut(k, (), self.axes[v]):
                self.nodes[k] = cut

    def _add_rows(self) -> None:
        """Take in what is made of a block's rows, and read in it again."""
        graph, made = self.graph, dict[int, _Cut]()
        rows = {v for k, c in self.nodes.items() if c.out[0] is not None and c.out[1] is None
                for v in graph.outs(k)}  # fmt: skip
        for k, node in enumerate(graph.nodes):
            places = [p for p, v in enumerate(node.inputs) if v in rows]
            if k not in self.nodes and places and not OPS[node.op].product:
                cut = self.cut(k, places)
                if cut is not None and cut.out[0] is not None:
                    made[k], self.axes[graph.starts[k]] = cut, cut.out
                    rows.add(graph.starts[k])
        for k in sorted(made, reverse=True):
            if any(u in self.nodes for u in graph.uses[graph.starts[k]]):
                self.nodes[k] = made[k]

    @property
    def pays(self) -> bool:
        """Whether it has products, and reduces rows by them only: kernels have what else is reduced in hand,
        which a combination of blocks would write."""
        products = {k for k in self.nodes if OPS[self.graph.nodes[k].op].product}
        return bool(products) and products >= {k for k, c in self.nodes.items() if c.out[0] is None}


def _ends(dtype: np.dtype[Any]) -> Sequence[Any]:
    """The least and the greatest number."""
    if dtype.kind not in "iuf":
        return ()
    ends = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return [dtype.type(ends.min), dtype.type(ends.max)]


# -- blocks ------------------------------------------------------------------------------------
class _Blocks(NamedTuple):
    """A region in these blocks, and what is made of its values in each of them."""

    region: _Region
    nodes: dict[int, _Cut]
    blocks: list[Block]
    parts: dict[tuple[int, Axes], list[int]]

    def make(self, builder: Builder, k: int, values: Sequence[int]) -> int:
        """The node in each block; its result whole, unless only blocks read it."""
        cut, node, v = self.nodes[k], self.region.graph.nodes[k], self.region.graph.starts[k]
        made = self.parts[v, cut.out] = self._nodes(builder, node, cut, values)
        (spec,), (row, column) = node.specs, cut.out
        if row is not None:
            return -1 if column is not None else joined(builder, made, row, spec, node.line)
        monoid = MONOIDS[cut.monoid]
        nothing = identity(cut.monoid, spec.dtype)
        for n, (_, (a, b)) in enumerate(self.blocks):
            if column is not None and b - a < spec.shape[column]:
                made[n] = padded(builder, made[n], column, a, spec, node.line, nothing)
        return reduce(lambda x, y: builder.call(monoid.ufunc, x, y, line=node.line), made)

    def _nodes(self, builder: Builder, node: Node, cut: _Cut, values: Sequence[int]) -> list[int]:
        operands = [self._operand(builder, v, axes, values)
                    for v, axes in zip(node.inputs, cut.ins, strict=True)]  # fmt: skip
        made, first = list[int](), 0
        for n, block in enumerate(self.blocks):
            box, params = _box(node.specs[0], cut.out, block), node.kw
            if "shape" in params:
                params["shape"] = tuple([b - a for a, b in box])
            inputs = [parts[n] for parts in operands]
            x = Expression(builder, builder.call(node.op, *inputs, line=node.line, **params))
            if OPS[node.op].element.source == "index":
                first = box[params["axis"]][0]  # which counts from where a block begins
            made.append((x + first if first else x).value)
        return made

    def _operand(self, builder: Builder, v: int, axes: Axes, values: Sequence[int]) -> list[int]:
        """An operand in each block: made there, or cut."""
        if axes == NONE:
            return [values[v]] * len(self.blocks)
        if (v, axes) not in self.parts:
            graph = self.region.graph
            spec, k = graph.specs[v], graph.producers[v]
            node = graph.nodes[k]
            cut = self.region.cut(k, (), axes) if v in self.region.known else None
            if v in self.region.known and not node.inputs:
                cut = _Cut((), axes, "")
            self.parts[v, axes] = self._nodes(builder, node, cut, values) if cut else [
                _sliced(builder, values[v], _box(spec, axes, block)) for block in self.blocks
            ]  # fmt: skip
        return self.parts[v, axes]


def _box(spec: Spec, axes: Axes, block: Block) -> list[tuple[int, int]]:
    return [block[axes.index(d)] if d in axes else (0, n) for d, n in enumerate(spec.shape)]


def _sliced(builder: Builder, v: int, box: Sequence[tuple[int, int]]) -> int:
    whole, spec = builder.specs[v], Spec(tuple([b - a for a, b in box]), builder.specs[v].dtype)
    return v if spec.shape == whole.shape else sliced(builder, v, [a for a, _ in box], spec)


def _made(graph: Graph, cuts: Sequence[_Blocks]) -> Graph:
    makers = {k: cut for cut in cuts for k in cut.nodes}
    for cut in cuts:
        cut.parts.clear()
    return canonical(replace(graph, makers, lambda b, k, values: [makers[k].make(b, k, values)]))
