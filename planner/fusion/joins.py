"""Joins, rolls, pads and updates, and slices of them, become one node each with all that leads to them,
which kernels take in as they do an operation on elements (ops/jit/moves.py).

before                                                   after
%1 = slice(%0; starts=(8,), ...) : float32[1]            %1 = joined(%0; body={
%2 = slice(%0; starts=(0,), ...) : float32[8]                %1 = slice(%0; ...)
%3 = concat(%1, %2; axis=0) : float32[9]                     %2 = slice(%0; ...)
%4 = multiply(%3, %0) : float32[9]                           %3 = concat(%1, %2; axis=0) }) : float32[9]
return %4                                                %2 = multiply(%1, %0) : float32[9]
                                                         return %2

What is read at several places is made at each of them if that is cheap, and else is in memory: so each time
step of a stencil is one kernel. What no kernel took in becomes again what it was (`spread_joins`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.registry import OPS
from ostinato.ops.jit.loops import COUNTED
from ostinato.ops.jit.moves import boxes_of, dims_of, edges, is_join, is_move, pieces_of
from ostinato.planner.rewrite import inline, replace

JOINED = "joined"
AGAIN = 32  # operations on an element that are rather done again than written and read ...
AGAIN_MIXED = 8  # ... and where each of many boxes would have a text of its own
DEAR = 8  # operations that a function counts as
NODES, OPERANDS, BOXES = 64, 12, 64  # of one node at the most
ROW, ROWS = 8, 512  # elements of a row on average, where there are more rows

Able = Callable[[int], bool]  # whether kernels can do a node, which is no move


def gather_joins(
    graph: Graph, able: Able, windows: bool = False, kept: Container[int] = ()
) -> Graph:
    """The graph with such nodes; with `windows`, those of slices of what is made of slices, too. What the
    nodes `kept` make is in memory."""
    if not windows and not any(is_join(node) for node in graph.nodes):
        return graph
    found = _Found(graph, able, windows, kept)
    roots = {k: body for k in found.roots() if (body := found.body(k)) is not None}

    def make(builder: Builder, k: int, values: list[int]) -> tuple[int, ...]:
        node, (operands, body) = graph.nodes[k], roots[k]
        ins = [values[v] for v in operands]
        return builder.add(JOINED, ins, {"body": body}, node.specs, node.line)

    return replace(graph, roots, make)  # type: ignore[arg-type]


def spread_joins(graph: Graph) -> Graph:
    chosen = [k for k, node in enumerate(graph.nodes) if node.op == JOINED]

    def make(builder: Builder, k: int, values: list[int]) -> list[int]:
        node = graph.nodes[k]
        return inline(builder, node.kw["body"], [values[v] for v in node.inputs])

    return replace(graph, chosen, make) if chosen else graph  # type: ignore[arg-type]


def work_in(node: Node) -> int:
    """Operations on an element of one of these nodes."""
    body: Graph = node.kw["body"]
    return sum(OPS[n.op].element.source != "value" and not is_move(n) for n in body.nodes)


def cuts_of(node: Node) -> frozenset[tuple[int, int]]:
    """Where one of these nodes is cut along which axes."""
    return frozenset(_cuts(node.kw["body"]))


def boxes(cuts: Iterable[tuple[int, int]]) -> int:
    """How many boxes there are of all these cuts at the most."""
    return math.prod(1 + n for n in Counter(axis for axis, _ in cuts).values())


def _cuts(body: Graph) -> set[tuple[int, int]]:
    parts = boxes_of(body, tuple([s.shape for s in body.inputs]), body.out_specs[0].shape)
    return {(d, lo) for p in parts for d, (lo, _) in enumerate(p.box) if lo > 0}


@dataclass
class _Found:
    """What each value is to kernels that read it elsewhere than where they write."""

    graph: Graph
    able: Able
    windows: bool = False
    kept: Container[int] = ()
    moves: set[int] = field(default_factory=set)  # nodes
    work: dict[int, int] = field(default_factory=dict)  # to make an element wherever it is read
    joins: set[int] = field(default_factory=set)  # values that are not just views of memory
    mixed: set[int] = field(default_factory=set)  # which are computed otherwise from place to place
    readers: dict[int, int] = field(default_factory=dict)  # at how many places an element is read
    inside: set[int] = field(default_factory=set)  # values that are made where they are read

    def __post_init__(self) -> None:
        graph = self.graph
        nodes = range(len(graph.nodes))
        self.moves = {k for k in nodes if is_move(graph.nodes[k]) and is_known(graph, k)}
        self.moves -= {k for k in self.moves if self._stays(k)}
        for k in reversed(nodes):
            for v in graph.outs(k):
                heads = {self._head(j) for j in graph.uses[v]}
                self.readers[v] = sum(
                    self.readers[graph.starts[j]] if j in self.moves else 1 for j in heads
                )
        for k in nodes:
            if k in self.moves or self._is_made(k):
                self._weigh(k)

    def _weigh(self, k: int) -> None:
        """Price a node's value that is made wherever it is read, and decide whether it is."""
        graph, node, v = self.graph, self.graph.nodes[k], self.graph.starts[k]
        before = [u for u in node.inputs if u in self.inside]
        works = [self.work[u] for u in before] or [0]  # of a join each element has one of them
        work = self.work[v] = max(works) if is_join(node) else sum(works)
        if k not in self.moves:
            work = self.work[v] = work + work_of(node)
        if k not in self.moves or is_join(node) or not self.joins.isdisjoint(before):
            self.joins.add(v)
        if not self.mixed.isdisjoint(before) or (is_join(node) and work and self._differs(node)):
            self.mixed.add(v)
        known = all(j in self.moves or self.able(j) for j in graph.uses[v])
        again = 0 if self._is_piece(v) else self.readers[v] - 1
        most = AGAIN_MIXED if v in self.mixed else AGAIN
        if k in self.kept:
            return
        if known and v not in graph.outputs and work * again <= most:
            self.inside.add(v)

    def _stays(self, k: int) -> bool:
        """Whether it changes a small part of what is in memory, which can stay there."""
        graph, node = self.graph, self.graph.nodes[k]
        if OPS[node.op].run.overwrite != (0,) or self._source(node.inputs[0]) < 0:
            return False
        before, value = (graph.specs[v] for v in node.inputs)
        read = all(j not in self.moves and self.able(j) for j in graph.uses[graph.starts[k]])
        wanted = graph.starts[k] in graph.outputs or not read
        return wanted and 2 * value.size <= before.size

    def _is_piece(self, v: int) -> bool:
        """Whether all that is done with a value is to join it with others, so that the whole is in memory."""
        heads = {self._head(j) for j in self.graph.uses[v]}
        if len(heads) != 1:
            return False
        (k,) = heads
        node = self.graph.nodes[k]
        return (
            k in self.moves
            and is_join(node)
            and any(self._source(u) not in (v, -1) for u in node.inputs)
        )

    def _differs(self, node: Node) -> bool:
        """Whether a join has something else in some places."""
        pieces = pieces_of(node, [self.graph.specs[u].shape for u in node.inputs]) or ()
        return len({*map(self._source, node.inputs)}) > 1 or any(p.operand < 0 for p in pieces)

    def _source(self, v: int) -> int:
        """The value that a piece of a join is a part of; -1 for numbers."""
        while (k := self.graph.producers[v]) in self.moves and not is_join(self.graph.nodes[k]):
            (v,) = self.graph.nodes[k].inputs
        return -1 if k >= 0 and OPS[self.graph.nodes[k].op].element.source == "value" else v

    def _head(self, k: int) -> int:
        """The join that a move is a piece of, or that move."""
        while k in self.moves and not is_join(self.graph.nodes[k]):
            uses = self.graph.uses[self.graph.starts[k]]
            if len(uses) != 1 or uses[0] not in self.moves:
                break
            (k,) = uses
        return k

    def _is_made(self, k: int) -> bool:
        """Whether it makes elements that can be made anywhere."""
        node = self.graph.nodes[k]
        if OPS[node.op].element.source == "value":
            return True
        counts = any(
            (m := self.graph.producers[v]) >= 0 and self.graph.nodes[m].op == COUNTED
            for v in node.inputs
        )
        op = OPS[node.op]
        ok = bool(op.scalar and op.aligns) and not (
            op.element.draws or op.run.placed or op.view or counts
        )
        return ok and node.op != COUNTED and self.able(k)

    def roots(self) -> list[int]:
        graph, found = self.graph, list[int]()
        for k in sorted(self.moves):
            v = graph.starts[k]
            if v not in self.joins:
                continue
            read = any(j not in self.moves and self.able(j) for j in graph.uses[v])
            if read or (v not in self.inside and self.work[v] and is_join(graph.nodes[k])):
                found.append(k)
        return found

    def _is_reduced(self, v: int) -> bool:
        """Whether a value, or what is made of its elements, is reduced: kernels that reduce read memory
        faster."""
        graph, waiting, known = self.graph, [v], {v}
        while waiting:
            for k in graph.uses[waiting.pop()]:
                node = graph.nodes[k]
                if node.op in OPS and OPS[node.op].reduce:
                    return True
                made = {*graph.outs(k)} - known if k not in self.moves and self.able(k) else set()
                known |= made
                waiting += made
        return False

    def body(self, k: int) -> tuple[list[int], Graph] | None:
        """All that leads to a root, and what that reads; None if it is too much, or cut too small."""
        graph, inside, waiting = self.graph, set[int](), [k]
        leaves = dict[int, None]()
        while waiting:
            j = waiting.pop()
            if j in inside:
                continue
            inside.add(j)
            for v in graph.nodes[j].inputs:
                maker = graph.producers[v]
                if maker >= 0 and (v in self.inside or graph.nodes[maker].op == "constant"):
                    waiting.append(maker)
                else:
                    leaves[v] = None
        operands = sorted(leaves)
        joins = any(is_join(graph.nodes[j]) for j in inside)
        windows = self.windows and not self._is_reduced(graph.starts[k])
        if not (joins or windows) or len(inside) > NODES or len(operands) > OPERANDS:
            return None
        builder = Builder([graph.specs[v] for v in operands])
        known = {v: n for n, v in enumerate(operands)}
        for j in sorted(inside):
            node = graph.nodes[j]
            (known[graph.starts[j]],) = builder.add(
                node.op, [known[v] for v in node.inputs], node.params, node.specs, node.line
            )
        body = builder.graph([known[graph.starts[k]]])
        return (operands, body) if _is_in_few_boxes(body) else None


def work_of(node: Node) -> int:
    """Simple operations on an element that it is as dear as."""
    simple, functions = OPS[node.op].work
    return 0 if OPS[node.op].element.source == "value" else math.ceil(simple + DEAR * functions)


def is_known(graph: Graph, k: int) -> bool:
    """Whether it moves what each worker has to places that this worker has."""
    node, (spec,) = graph.nodes[k], graph.nodes[k].specs
    specs = [graph.specs[v] for v in node.inputs]
    if any(_is_mixed(s.layout) or s.dtype != spec.dtype for s in (*specs, spec)) or not spec.size:
        return False
    if 0 in (s.size for s in specs):
        return False
    dims = dims_of(node, specs, spec)
    if dims is None:
        return False
    if is_join(node):
        pieces = pieces_of(node, [s.shape for s in specs])
        if pieces is None or any(p.combine and p.operand < 0 for p in pieces):
            return False
        cut = {d for d, _ in edges(pieces, spec.shape)}
    elif OPS[node.op].moves.selects:
        kw, n = node.kw, specs[0].shape
        cut = {d for d in range(spec.ndim) if (kw["starts"][d], kw["sizes"][d], kw["steps"][d])
               != (0, n[d], 1)}  # fmt: skip
    else:
        cut = {*range(spec.ndim)}
    here = [s.layout for s in (*specs, spec)]
    if all(layout is None or layout.is_whole for layout in here):
        return True
    return all(layout == spec.layout for layout in here) and cut.isdisjoint(
        spec.layout.splits if spec.layout is not None else ()
    )


def _is_mixed(layout: Layout | None) -> bool:
    """Whether workers have more than whole parts of their own."""
    return layout is None or bool(layout.windows or layout.blocks or layout.partial_axes)


def _is_in_few_boxes(body: Graph) -> bool:
    """Whether boxes are few, and their rows long."""
    (spec,) = body.out_specs
    cuts = _cuts(body)
    if boxes(cuts) > BOXES:
        return False
    parts = boxes_of(body, tuple([s.shape for s in body.inputs]), spec.shape)
    last = max((d for d, _ in cuts), default=0)
    rows = sum(math.prod(hi - lo for lo, hi in p.box[:last]) for p in parts)
    return rows <= max(ROWS, spec.size // ROW)
