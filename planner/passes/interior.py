"""What reads a halo is computed in pieces: what needs none of it while it travels, the edges behind it.

before                                                    after
%2 = start(%0; collective='halo')                         %2 = start(%0; collective='halo', edges=(...))
%3 = wait(%2, %0) : float32[8] @ split 0 window ...       %3 = narrow(%0) : float32[8] @ ... inner
%4 = correlate(%3, %1) : float32[8] @ split 0             %4 = correlate(%3, %1) : float32[8] @ ... inner
return %4                                                 %5 = wait(%2, %0) : float32[8] @ split 0 window ...
                                                          %6 = narrow(%5) : float32[8] @ ... low
                                                          %7 = correlate(%6, %1) : float32[8] @ ... low
                                                          %8 = join_pieces(%4, %7) : float32[8] @ split 0
                                                          return %8

So is what follows element by element, and what reads windows of that, as the steps behind one wider halo do:
its interior is what needs interiors alone. What others read is joined, which copies nothing, as kernels write
pieces where they belong in the whole. `edges`: all that anybody reads of what came, so that the rest of a
worker's own part is not copied. Cut is what saves more time than its kernels take to start: a message that
other work hides already is left as it is. This belongs to this machine: plan files hold the graph without it.
Idempotent: nothing that waits reads more than edges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Window
from ostinato.ops.core.layout import Layout, Overlap, Region, all_coords, bounds_of_many, extents
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.planned.collective import PIECES, collective_of
from ostinato.planner.layouts.costs import kernel_seconds, relayout_seconds
from ostinato.planner.layouts.shardings import Sharding, sharding_to
from ostinato.planner.machine import Machine
from ostinato.planner.plan import Target, largest_part
from ostinato.planner.rewrite import Bodies, replace

from .communicate import layout_of
from .parts import has_part

WORTH = 2.0  # times what more kernels take to start, that has to be saved
MIN_SAVED_SECONDS = 1e-6  # however soon kernels start
THIN = 2.0  # times its ends, that a part has at least
Axes = tuple[int, ...]  # of a mesh
Pieces = Mapping[Axes, Region]  # of what these axes cut; of others, all
Piece = frozenset[tuple[Axes, Region]] | None  # None is the interior


def split_interiors(graph: Graph, target: Target) -> Graph:
    if target.workers == 1:
        return graph
    found = _Found(graph, target)
    bodies = partial(split_interiors, target=target)
    groups = [g for g in found.groups() if g.nodes]
    chosen = _worth(graph, target.machine, found, groups)
    if not chosen:
        return replace(graph, (), lambda b, k, values: (), bodies)
    return _InPieces(found, chosen).graph(bodies)


# -- what can be cut -----------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class _Group:
    """Nodes whose results are cut alike, in pieces of `ends` of what mesh axes cut."""

    nodes: list[int] = field(default_factory=list)
    ends: dict[Axes, tuple[int, int]] = field(default_factory=dict)
    waits: set[int] = field(default_factory=set)  # the halos that it needs, as values
    reads: list[_Group] = field(default_factory=list)  # in windows
    stage: int = 0  # how many such are before it
    is_read: bool = False  # so that its ends stay

    def pieces(self) -> list[Pieces]:
        """The interior, and slabs around it, which have no element in common."""
        found, inner = (
            list[Pieces](),
            {a: Region.INNER for a, ends in self.ends.items() if any(ends)},
        )
        for n, a in enumerate(inner):
            before = dict(itertools.islice(inner.items(), n))
            low, high = self.ends[a]
            found += [before | {a: Region.LOW}] if low else []
            found += [before | {a: Region.HIGH}] if high else []
        return [inner, *found]

    def layout(self, spec: Spec, piece: Pieces) -> Layout:
        """Where a piece of a result lies; its ends are those of what comes with halos itself."""
        here = spec.layout
        assert here is not None
        windows = []
        for d, n in enumerate(spec.shape):
            a, wide = here.axes(d), here.window(d)
            if a not in piece:
                windows += [(d, wide)] if wide is not None else []
                continue
            low, high = self.ends[a]
            begin, end = (wide.offset, wide.offset + wide.reach - 1) if wide is not None else (0, 0)
            if piece[a] == Region.INNER:
                begin, low, high = 0, low + begin, high - end
            elif piece[a] == Region.HIGH:
                begin = end
            count = wide.count if wide is not None else n
            windows.append((d, Overlap(count, begin, 1, 1, 1, low, high, piece[a])))
        return Layout(here.mesh, here.splits, tuple(windows), here.blocks)

    def may_have(self, spec: Spec) -> bool:
        """Whether a result has such pieces: one with halos, if these are places around parts that have as
        many as there are at both ends."""
        here = spec.layout
        assert here is not None
        for d, wide in here.windows:
            if (wide.stride, wide.every, wide.piece) != (1, 1, 0):
                return False
            low, high = self.ends.get(here.axes(d), (0, 0))
            least, _ = extents(here.without_halos, wide.count, d)
            if least < low + max(high, wide.offset):
                return False
        return True


class _Found:
    """Who reads halos, and what follows from that alone."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        self.own: dict[int, int] = {}  # of what has a halo, what it was added to
        self.looks: dict[int, int] = {}  # of looks at such, what they look at
        self.narrowed: dict[int, int] = {}  # of what is in pieces and narrowed, the wider value
        self.made: dict[int, _Group] = {}  # by results
        self.behind = [0] * len(graph.inputs)  # the halos that each value needs, as bits
        for k, node in enumerate(graph.nodes):
            bits = 0
            for v in node.inputs:
                bits |= self.behind[v]
            v = graph.starts[k]
            if (x := self._added_to(k)) is not None:
                self.own[v] = x
                bits |= 1 << v
            self.behind += [bits] * len(node.specs)
            if node.op == "narrow" and (u := self.source(node.inputs[0])) in self.made:
                self.narrowed[v] = u
            elif len(node.specs) == 1 and not self._look(k):
                self._follow(k)

    def groups(self) -> list[_Group]:
        """List those that end with what is worth a place of its own: no looks, nor what is only reduced."""
        graph, found = self.graph, list(dict.fromkeys(self.made.values()))
        found.sort(key=lambda g: g.stage)
        for group in reversed(found):
            for k in sorted(group.nodes, reverse=True):
                v, op = graph.starts[k], OPS[graph.nodes[k].op]
                readers = [graph.nodes[u] for u in graph.uses[v]]
                reduced = op.scalar and all(OPS[n.op].reduce is not None for n in readers)
                is_read = any(graph.starts[u] in self.made for u in self._readers(v))
                if not is_read and (op.view or (reduced and v not in graph.outputs)):
                    group.nodes.remove(k)
                    del self.made[v]
        return found

    def _added_to(self, k: int) -> int | None:
        """Find what a node adds a halo to."""
        graph, node = self.graph, self.graph.nodes[k]
        if node.op == "wait":
            node = graph.nodes[graph.producers[node.inputs[0]]]
        if collective_of(node.op, node.kw) != "halo" or graph.nodes[k].op == "start":
            return None
        x = node.inputs[0]
        here, there = graph.specs[x].layout, node.specs[0].layout
        assert there is not None
        return x if here is there.without_halos else None

    def root(self, v: int) -> int | None:
        """Find the value with a halo that this one looks at, or is."""
        while v in self.looks:
            v = self.looks[v]
        return v if v in self.own else None

    def _look(self, k: int) -> bool:
        """Whether a node only looks at what has a halo, in another order of axes or another shape."""
        node, v = self.graph.nodes[k], self.graph.starts[k]
        layout = node.specs[0].layout
        if not OPS[node.op].moves.same_elements or OPS[node.op].view is None:
            return False
        if self.root(node.inputs[0]) is None or layout is None or not layout.windows:
            return False
        self.looks[v] = node.inputs[0]
        return True

    def source(self, v: int) -> int:
        """The value of which this one is what each worker narrowed it to."""
        return self.narrowed.get(v, v)

    def _readers(self, v: int) -> list[int]:
        """The nodes that read a value in pieces, also narrowed."""
        uses, starts = self.graph.uses, self.graph.starts
        each = [uses[starts[k]] if starts[k] in self.narrowed else (k,) for k in uses[v]]
        return [*itertools.chain(*each)]

    def _follow(self, k: int) -> None:
        """Let a node join a group, or begin one, if it can be done in pieces."""
        graph, node = self.graph, self.graph.nodes[k]
        spec, op = node.specs[0], OPS[node.op]
        roots = [self.root(u) for u in node.inputs]
        before = [self.made.get(self.source(u)) for u in node.inputs]
        pieces = [j for j, g in enumerate(before) if g is not None or roots[j] is not None]
        sharding = self.way(k, spec.layout) if pieces and not op.run.carries_state else None
        if sharding is None:
            return
        group, needs = _Group(), sharding.needs
        for j, g in enumerate(before):
            if g is not None:
                alike = op.scalar or op.view is not None
                alike = alike and graph.specs[node.inputs[j]].layout is needs[j]
                group.stage = max(group.stage, g.stage + (not alike))
        merged = dict.fromkeys([g for g in before if g is not None and g.stage == group.stage])
        for j in pieces:
            if (g := before[j]) not in merged:
                ends = self._ends(node, j, needs[j], g)
                if ends is None:
                    return
                group.ends = _wider(group.ends, ends)
                group.reads += [g] if g is not None else []
                group.waits |= (
                    g.waits if g is not None else {w for w in roots[j : j + 1] if w is not None}
                )
        for g in merged:
            group.ends, group.waits = _wider(group.ends, g.ends), group.waits | g.waits
            group.nodes, group.reads = group.nodes + g.nodes, group.reads + g.reads
        group.nodes.append(k)
        bits = sum(1 << w for w in group.waits)
        for j, u in enumerate(node.inputs):
            if j not in pieces and (
                self.behind[u] & bits or not has_part(graph.specs[u], needs[j])
            ):
                return
        lies = [layout_of(graph.nodes[n].specs[0]) for n in group.nodes]
        around = {frozenset([(w.axes(d), window) for d, window in w.windows]) for w in lies}
        if len(around) > 1 or not group.may_have(spec):
            return
        if any(g.is_read and g.ends != group.ends for g in merged):
            return
        inner = self.way(k, group.layout(spec, group.pieces()[0]))
        if inner is None or not all(
            self._interior(node.inputs[j], group if before[j] in merged else before[j]).has_copy(
                inner.needs[j], graph.specs[node.inputs[j]].shape
            )
            for j in pieces
        ):
            return
        for g in group.reads:
            g.is_read = True
        self.made.update({graph.starts[n]: group for n in group.nodes})

    def _interior(self, v: int, group: _Group | None) -> Layout:
        """Where that lies of an operand which needs no halo: in pieces, or what has one."""
        spec = self.graph.specs[self.source(v)]
        if group is None:
            return layout_of(spec).without_halos
        return group.layout(spec, group.pieces()[0])

    def way(self, k: int, end: Layout | None) -> Sharding | None:
        """The way to run a node whose result comes in a layout, which may be a piece."""
        node = self.graph.nodes[k]
        if end is None or end.stored:
            return None
        ins = [self.graph.specs[u] for u in node.inputs]
        return sharding_to(node, ins, end, self.target, True)

    def _ends(
        self, node: Node, j: int, need: Layout, group: _Group | None
    ) -> dict[Axes, tuple[int, int]] | None:
        """How many results at the ends of parts need more of an operand than its interior, on any worker;
        None where that is no matter of ends."""
        graph, spec = self.graph, self.graph.specs[self.source(node.inputs[j])]
        has, (made, *_) = self._interior(node.inputs[j], group), node.specs
        gives = layout_of(made)
        if has.splits != need.splits or not has_part(spec, need):
            return None
        indices = OPS[node.op].indices(
            tuple([graph.specs[u] for u in node.inputs]), node.specs, node.kw
        )
        found = dict[Axes, tuple[int, int]]()
        for d, size in enumerate(spec.shape):
            axes, dim = has.axes(d), indices.ins[j][d]
            if not axes or (group is None and need.window(d) is None):
                continue
            window = Window(dim) if isinstance(dim, str) else dim
            if window is None or window.label not in indices.outs[0] or window.stride < 1:
                return None
            out = indices.outs[0].index(window.label)
            if gives.axes(out) != axes:
                return None
            found[axes] = _at_ends(has, size, d, window, gives, made.shape[out], out)
        return found


def _wider(
    a: Mapping[Axes, tuple[int, int]], b: Mapping[Axes, tuple[int, int]]
) -> dict[Axes, tuple[int, int]]:
    pairs = {k: (a.get(k, (0, 0)), b.get(k, (0, 0))) for k in sorted({*a, *b})}
    return {k: (max(x[0], y[0]), max(x[1], y[1])) for k, (x, y) in pairs.items()}


def _at_ends(
    has: Layout, size: int, d: int, window: Window, gives: Layout, extent: int, out: int
) -> tuple[int, int]:
    """How many results at the lower and the upper end of a part need more than these places."""
    coords = all_coords(has.mesh, has.axes(d))
    lo, hi = bounds_of_many(has, size, d, coords)
    begin, end = bounds_of_many(gives, extent, out, coords)
    every, step = window.every, window.stride
    first = window.offset + min(0, window.dilation * (window.size - 1))
    low = -((first - every * (lo - 1) - 1) // step) - begin  # the first whose windows begin here
    high = end - 1 - (every * hi - window.reach - first) // step  # behind the last that ends here
    low = np.where(lo > 0, np.clip(low, 0, end - begin), 0)
    high = np.where(hi < size, np.clip(high, 0, end - begin), 0)
    return int(low.max()), int(high.max())


# -- what is worth it ------------------------------------------------------------------------------
def _worth(graph: Graph, machine: Machine, found: _Found, groups: Sequence[_Group]) -> list[_Group]:
    """The groups that save more than they cost, of those whose interior is within all parts."""
    exposed = {w: _exposed(graph, machine, w, x) for w, x in found.own.items()}
    chosen = dict[_Group, None]()
    for last in groups:
        several = [last]
        for group in several:
            several += [g for g in group.reads if g not in chosen and g not in several]
        spent = cost = 0.0
        for group in several:
            inner, *ends = group.pieces()
            if not inner or any(_is_thin(graph, group, k) for k in group.nodes):
                break
            spent += sum(_inner_seconds(graph, machine, group, k, inner) for k in group.nodes)
            calls = 1 + sum(OPS[graph.nodes[k].op].run.dense for k in group.nodes)
            cost += len(ends) * calls * machine.call_seconds
        else:
            saved = machine.background * min(spent, sum(exposed[w] for w in last.waits))
            if saved > WORTH * max(MIN_SAVED_SECONDS, cost):
                chosen.update(dict.fromkeys(several))
                for w in last.waits:
                    exposed[w] -= min(exposed[w], saved)
    return list(chosen)


def _exposed(graph: Graph, machine: Machine, wait: int, x: int) -> float:
    """Seconds of a halo's messages that no other work hides."""
    spec, k = graph.specs[x], graph.producers[wait]
    assert spec.layout is not None
    there = graph.specs[wait].layout
    assert there is not None
    took = relayout_seconds(machine, spec.shape, spec.dtype.itemsize, spec.layout, there)
    hidden = 0.0
    if graph.nodes[k].op == "wait":
        for n in range(graph.producers[graph.nodes[k].inputs[0]] + 1, k):
            hidden += _seconds(graph, machine, n)
    return max(0.0, took - machine.background * hidden)


def _seconds(graph: Graph, machine: Machine, k: int) -> float:
    node = graph.nodes[k]
    if any(node.subgraphs()) or not (OPS[node.op].kernel or OPS[node.op].run.ufunc):
        return 0.0
    ins = [largest_part(graph.specs[v]) for v in node.inputs]
    return kernel_seconds(machine, node, ins, [largest_part(s) for s in node.specs])


def _inner_seconds(graph: Graph, machine: Machine, group: _Group, k: int, inner: Pieces) -> float:
    spec = graph.nodes[k].specs[0]
    part, whole = (
        math.prod(w.largest(spec.shape)) for w in (group.layout(spec, inner), layout_of(spec))
    )
    return _seconds(graph, machine, k) * part / max(whole, 1)


def _is_thin(graph: Graph, group: _Group, k: int) -> bool:
    """Whether a worker's part is not much more than its ends."""
    spec, layout = graph.nodes[k].specs[0], layout_of(graph.nodes[k].specs[0])
    return any(
        THIN * sum(ends) > layout.largest(spec.shape)[d]
        for a, ends in group.ends.items()
        for d in range(spec.ndim)
        if layout.axes(d) == a
    )


# -- the pieces -----------------------------------------------------------------------------------
class _InPieces:
    """The graph with chosen groups in pieces."""

    def __init__(self, found: _Found, chosen: Sequence[_Group]) -> None:
        self.found, self.old = found, found.graph
        self.group = {k: g for g in chosen for k in g.nodes}
        self.made: dict[tuple[int, Piece], int] = {}  # a value, which piece: of the new graph
        self.waits = {w for g in chosen for w in g.waits}
        self.edges = {w: e for w in self.waits if (e := self._edges(w)) is not None}

    def graph(self, bodies: Bodies) -> Graph:
        nodes = {*self.group}
        for w in self.waits:
            k = self.old.producers[w]
            node = self.old.nodes[k]
            nodes.add(k if node.op == "halo" else self.old.producers[node.inputs[0]])
        return replace(self.old, nodes, self._make, bodies)

    def _make(self, builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = self.old.nodes[k]
        if k in self.group:
            return (self._in_pieces(builder, k, values),)
        inputs = [values[v] for v in node.inputs]
        if node.op == "start":
            (wait,) = self.old.uses[self.old.starts[k]]
            more = self._more(self.old.starts[wait])
            return builder.add("start", inputs, {**node.kw, **more}, node.specs, node.line)
        spec = node.specs[0]
        params = {"collective": "halo", **node.kw, **self._more(self.old.starts[k])}
        pending = Spec(spec.shape, spec.dtype, spec.layout, True)
        (request,) = builder.add("start", inputs, params, (pending,), node.line)
        return builder.add("wait", (request, *inputs), (), (spec,), node.line)

    def _more(self, wait: int) -> dict[str, tuple[Layout, ...]]:
        return {"edges": self.edges[wait]} if wait in self.edges else {}

    def _edges(self, wait: int) -> tuple[Layout, ...] | None:
        """All that is read of what came, if only edges read it."""
        found = dict[Layout, None]()
        for k in self.old.uses[wait]:
            group = self.group.get(k)
            if group is None or wait in self.old.outputs:
                return None
            node = self.old.nodes[k]
            for piece in group.pieces()[1:]:
                sharding = self.found.way(k, group.layout(node.specs[0], piece))
                assert sharding is not None
                needs = zip(node.inputs, sharding.needs, strict=True)
                found.update(dict.fromkeys([n for v, n in needs if v == wait]))
        return tuple(found)

    def _in_pieces(self, builder: Builder, k: int, values: Sequence[int]) -> int:
        """A node's pieces, and what they are together, if anybody else reads that."""
        node, v, group = self.old.nodes[k], self.old.starts[k], self.group[k]
        (spec,) = node.specs
        made = list[int]()

        def read(u: int, need: Layout) -> int:
            u = self.found.source(u)
            x = self.made.get((u, key), values[u])
            if key is None and self.found.root(u) in self.waits:
                x = self._own(builder, u, values)
            elif not layout_of(builder.specs[x]).has_copy(need, builder.specs[x].shape):
                x = values[u]  # of several pieces
            there = builder.specs[x].at(need)
            return (
                x
                if builder.specs[x] is there
                else builder.add("narrow", (x,), (), (there,), node.line)[0]
            )

        for piece in group.pieces():
            end, key = group.layout(spec, piece), frozenset(piece.items()) if made else None
            sharding = self.found.way(k, end)
            assert sharding is not None
            ins = [read(u, need) for u, need in zip(node.inputs, sharding.needs, strict=True)]
            made += builder.add(node.op, ins, node.params, (spec.at(end),), node.line)
            self.made[v, key] = made[-1]
        return builder.add(PIECES, made, (), (spec,), node.line)[0]

    def _own(self, builder: Builder, u: int, values: Sequence[int]) -> int:
        """Make what a value with a halo is without it."""
        if u in self.found.own:
            return values[self.found.own[u]]
        node = self.old.nodes[self.old.producers[u]]
        before = self._own(builder, self.found.looks[u], values)
        (spec,) = node.specs
        here = spec.at(layout_of(spec).without_halos)
        return builder.add(node.op, (before,), node.params, (here,), node.line)[0]
