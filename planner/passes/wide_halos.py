"""One wider halo in front of a chain takes the place of one for each window, where that takes less time.

before                                                   after
%1 = relayout(%0) : ... @ split 0 window 6:-1:1:3        %1 = relayout(%0) : ... @ split 0 window 6:-2:1:5
%2 = correlate(%1) : ... @ split 0                       %2 = correlate(%1) : ... @ split 0 window 6:-1:1:3
%3 = relayout(%2) : ... @ split 0 window 6:-1:1:3        %3 = correlate(%2) : ... @ split 0
%4 = correlate(%3) : ... @ split 0                       return %3
return %4

What reads a halo of a value is given it by whoever makes that value: each worker makes the edges of its
neighbours' parts, too, of operands with wider halos (`composed` windows). Places outside of an array stay
padding, since a window ends where its array does; all others have the numbers that their owner makes of them.
Who reads parts without halos looks at these within what is wider.

Each value is either sent to who needs its edges, or made with edges. That is a local search: what is sent is
made instead, and so is all before it up to what is sent anyway, where the price falls; and back, since a long
chain is best cut into several. The price is what messages take that nothing hides, and what kernels take more
of. Last, the model of the machine runs both graphs. Idempotent: what is sent is sent again."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, Overlap, all_coords, bounds_of_many
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.planner.layouts.costs import kernel_seconds, relayout_seconds
from ostinato.planner.layouts.shardings import sharding_to
from ostinato.planner.lowering import lower
from ostinato.planner.plan import Target, largest_part
from ostinato.planner.rewrite import Values, rebuild
from ostinato.planner.simulation import simulate, unmade_seconds

from .blocking import roughly
from .communicate import Halo, halo_of, reads_place_by_place, turned
from .interior import MIN_SAVED_SECONDS, THIN, WORTH, split_interiors
from .layouts import sent
from .turn_blocks import best_turns, grouped, may_be_grouped, together


def widen_halos(graph: Graph, target: Target) -> Graph:
    made = _widened(graph, target) if target.workers > 1 else graph
    limit = target.memory_limit
    if made is graph or limit is None:
        return made
    peak = roughly(sent(made, target), target)
    return made if peak <= limit or peak <= roughly(sent(graph, target), target) else graph


def _widened(graph: Graph, target: Target) -> Graph:
    if graph.has_bodies:
        graph = rebuild(graph, partial(_grouped, target), partial(_widened, target=target))
    chains = Chains(graph, target)
    if not chains.search():
        return graph
    made = chains.graph_made()
    return made if _is_better(made, graph, target) else graph


def _grouped(target: Target, builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
    """A loop with several turns in one, if these then take less time."""
    if not may_be_grouped(node) or not Chains(node.kw["body"], target).halos:
        return None
    made = dict[int, Graph]()

    def body(turns: int) -> Graph:
        if turns not in made:
            made[turns] = _widened(together(node, turns), target)
        return made[turns]

    def seconds(turns: int) -> float:
        each, several = [sum(_adds(n, g) for n in g.nodes) for g in (body(1), body(turns))]
        fewer = turns == 1 or several < turns * each
        return _turns_seconds(target, node, body(turns)) if fewer else math.inf

    turns = best_turns(node, seconds)
    if turns > 1:
        return grouped(builder, node, inputs, turns, body)
    bodies = (node.kw["body"], body(1))
    best = (
        min(bodies, key=lambda g: _turns_seconds(target, node, g))
        if bodies[0] != bodies[1]
        else bodies[0]
    )
    return builder.add(node.op, inputs, {**node.kw, "body": best}, node.specs, node.line)


def _turns_seconds(target: Target, node: Node, body: Graph) -> float:
    """Estimate the seconds of one of many turns of a loop as it will run, since what one turn does in place
    may have to be copied where there are several in one."""
    builder, trips = Builder(body.inputs[1:]), 16
    params = {**node.kw, "body": body, "trips": trips}
    outs = builder.add("loop", range(len(builder.inputs)), params, node.specs)
    ends = range(len(builder.inputs) - len(outs), len(builder.inputs))
    program = lower(sent(builder.graph(outs), target), target, tuple(ends), tuple(ends))
    return simulate(program, target.machine, target.mesh).seconds / trips


def _is_better(made: Graph, graph: Graph, target: Target) -> bool:
    """Whether it is sooner done, by more than what is foretold may be off: work that is added is certain."""
    new, old = (seconds_of(sent(g, target), target) for g in (made, graph))
    return new <= 0.95 * old


def seconds_of(graph: Graph, target: Target) -> float:
    """Estimate the seconds of a graph whose interiors are computed while halos travel."""
    return unmade_seconds(split_interiors(graph, target), target.machine, target.mesh)


class Chains:
    """Which values are made with halos (`wide`), and what follows from that."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target, self.machine = graph, target, target.machine
        self.halos = {
            graph.starts[k]: n.inputs[0] for k, n in enumerate(graph.nodes) if _adds(n, graph)
        }
        self.wide: set[int] = set()
        self.asked: list[dict[int, tuple[Layout, ...]]] = [{} for _ in graph.specs]
        self.roots: dict[int, Halo] = {}
        self.members: dict[int, list[int]] = {}
        self.lies: dict[int, Layout] = {}
        self.found: dict[tuple[int, Layout], tuple[Layout, ...] | None] = {}
        self.spent: dict[tuple[int, Layout], float] = {}
        self.hidden: dict[int, float] = {}
        self.undo: list[tuple[int, int, tuple[Layout, ...] | None]] = []
        if self.halos:
            for v in graph.outputs:
                self.asked[self.source(v)][-1] = (self.own(self.source(v)),)
            for k in reversed(range(len(graph.nodes))):
                self._ask(k)
            self.undo.clear()

    def own(self, v: int) -> Layout:
        layout = self.graph.specs[v].layout
        assert layout is not None
        return layout

    def source(self, v: int) -> int:
        """The value that a node reads, with a halo or without."""
        return self.halos.get(v, v)

    # -- who needs what ----------------------------------------------------------------------------
    def way(self, k: int, end: Layout) -> tuple[Layout, ...] | None:
        """In which layouts a node needs its operands to give its result in this one."""
        graph, node = self.graph, self.graph.nodes[k]
        if (k, end) not in self.found:
            ins = [graph.specs[v] for v in node.inputs]
            sharding = sharding_to(node, ins, end, self.target, True)
            self.found[k, end] = None if sharding is None else sharding.needs
        return self.found[k, end]

    def layout_of(self, v: int) -> Layout:
        return self.asked_of(v) if v in self.wide else self.own(v)

    def asked_of(self, v: int) -> Layout:
        """All that is read of a value."""
        if v not in self.lies:
            ends = tuple(dict.fromkeys(itertools.chain(*self.asked[v].values())))
            self.lies[v] = around(self.graph.specs[v], self.own(v), ends)
        return self.lies[v]

    def needs(self, k: int) -> list[Layout] | None:
        """How a node reads its operands; None if there is no way to do so."""
        graph, node = self.graph, self.graph.nodes[k]
        ends = [self.own(v) for v in node.inputs]
        v = graph.starts[k]
        if v in self.wide and (end := self.layout_of(v)) is not self.own(v):
            wanted = self.way(k, end)
            if wanted is None:
                return None
            for j, need in enumerate(wanted):
                own = self.own(self.source(node.inputs[j]))
                if not own.has_copy(need, graph.specs[node.inputs[j]].shape):
                    if own is not need.without_halos:
                        return None
                    ends[j] = need
                else:
                    ends[j] = need if need.windows else own
        return ends

    def _ask(self, k: int) -> bool:
        """Say what a node needs of its operands; False if there is no way."""
        node = self.graph.nodes[k]
        if self.graph.starts[k] in self.halos:
            return True
        ends = self.needs(k)
        if ends is None:
            return False
        asks: dict[int, dict[Layout, None]] = {}
        for v, end in zip(node.inputs, ends, strict=True):
            u = self.source(v)
            here = self.own(u)
            fits = end is here or here.has_copy(end, self.graph.specs[u].shape)
            asks.setdefault(u, {})[here if fits else end] = None
        for u, layouts in asks.items():
            if self.asked[u].get(k) != (new := tuple(layouts)):
                self.undo.append((u, k, self.asked[u].get(k)))
                self.asked[u][k] = new
                self.lies.pop(u, None)
        return True

    def sent(self, v: int) -> list[Layout]:
        """The layouts with halos in which a value is asked for."""
        own = self.own(v)
        asked = dict.fromkeys(itertools.chain(*self.asked[v].values()))
        return [end for end in asked if end is not own]

    def root(self, v: int) -> int:
        """The value of which this one is a look with axes in another order: what is sent."""
        if v not in self.roots:
            self.roots[v] = halo_of(self.graph, v, self.own(v))
            self.members.setdefault(self.roots[v].root, []).append(v)
        return self.roots[v].root

    def is_sent(self, root: int) -> bool:
        return any(v not in self.wide and self.sent(v) for v in self.members.get(root, ()))

    def may_be_wide(self, v: int) -> bool:
        graph = self.graph
        if (k := graph.producers[v]) < 0 or v in self.halos:
            return False
        node = graph.nodes[k]
        run = OPS[node.op].run
        if any(node.subgraphs()) or run.host_callback or run.carries_state or len(node.specs) > 1:
            return False
        lies = [self.own(u) for u in (v, *node.inputs)]
        return not lies[0].partial_axes and not any(layout.stored for layout in lies)

    # -- what it costs -----------------------------------------------------------------------------
    def node_price(self, k: int) -> float:
        """How much longer a node takes with halos."""
        v = self.graph.starts[k]
        if v not in self.wide or (end := self.layout_of(v)) is self.own(v):
            return 0.0
        return self.seconds(k, end) - self.seconds(k, self.own(v))

    def seconds(self, k: int, end: Layout) -> float:
        """Seconds of a node that gives its result in this layout."""
        graph, node = self.graph, self.graph.nodes[k]
        if (k, end) not in self.spent:
            ins = [graph.specs[v] for v in node.inputs]
            needs = self.way(k, end) if end is not self.own(graph.starts[k]) else None
            if needs is not None:
                ins = [s.at(n) for s, n in zip(ins, needs, strict=True)]
            outs = [largest_part(node.specs[0].at(end))]
            took = kernel_seconds(self.machine, node, [largest_part(s) for s in ins], outs)
            self.spent[k, end] = took
        return self.spent[k, end]

    def sent_price(self, root: int) -> float:
        """Seconds of the messages of a value that nothing hides."""
        graph, ends, readers = self.graph, dict[Layout, None](), set[int]()
        for v in self.members.get(root, ()):
            if v not in self.wide and (sent := self.sent(v)):
                halo = self.roots[v]
                ends.update(dict.fromkeys([turned(e, halo.order) for e in sent]))
                readers.update(k for k, asked in self.asked[v].items() if {*asked} & {*sent})
        if not ends:
            return 0.0
        spec, own = graph.specs[root], self.own(root)
        whole = around(spec, own, tuple(ends))
        cost = partial(relayout_seconds, self.machine, spec.shape, spec.dtype.itemsize, own)
        took = min(cost(whole), sum(map(cost, ends)))
        pieces = 0
        for d, n in enumerate(own.largest(spec.shape)):
            more = whole.largest(spec.shape)[d] - n
            pieces += 2 * (more > 0)
            if more * THIN > n:
                return took
        saved = self.machine.background * min(took, sum(map(self.hiding_seconds, readers)))
        starts = 2 * pieces * self.machine.call_seconds
        return (
            took - max(0.0, saved - starts)
            if saved > WORTH * max(MIN_SAVED_SECONDS, starts)
            else took
        )

    def hiding_seconds(self, k: int) -> float:
        """Seconds of a reader and what follows element by element, which its message may hide behind."""
        if k < 0:
            return 0.0
        if k not in self.hidden:
            graph, seen, total = self.graph, {k}, 0.0
            stack = [k]
            while stack and len(seen) < 64:
                n = stack.pop()
                node = graph.nodes[n]
                if not any(node.subgraphs()) and graph.starts[n] not in self.halos:
                    outs = [largest_part(s) for s in node.specs]
                    ins = [largest_part(graph.specs[v]) for v in node.inputs]
                    total += kernel_seconds(self.machine, node, ins, outs)
                for u in graph.uses[graph.starts[n]] if len(node.specs) == 1 else ():
                    op = OPS[graph.nodes[u].op]
                    if u not in seen and (op.scalar or op.view is not None):
                        seen.add(u)
                        stack.append(u)
            self.hidden[k] = total
        return self.hidden[k]

    # -- the search --------------------------------------------------------------------------------
    def search(self) -> bool:
        """Find what is best made with halos; whether anything is."""
        # what is behind is wide
        roots = sorted({self.root(v) for v in self.halos.values()}, reverse=True)
        roots = [r for r in roots if self.may_be_wide(r)]
        for _ in range(4 if roots else 0):  # there and back
            better = [self.change(r, True) < 0.0 for r in roots if self.is_sent(r)]
            back = [r for r in roots if self.wide & {*self.members[r]}]
            back = back[:: 1 + len(back) // 16]  # a long chain has equals
            prices = {r: self.change(r, False, keep=False) for r in back}
            back = sorted((r for r in back if prices[r] < 0.0), key=prices.__getitem__)
            better += [self.change(r, False) < 0.0 for r in back]
            if not any(better):
                break
        return any(self.layout_of(v) is not self.own(v) for v in self.wide)

    def change(self, root: int, on: bool, keep: bool = True) -> float:
        """Seconds that it takes more to make a value, and looks at it, with halos, or to send these instead;
        so it stays if that is less, and is to be kept."""
        before, changed = {*self.wide}, {root}
        prices: dict[tuple[bool, int], float] = {}
        sent = dict[int, bool]()
        new = [
            v
            for v in self.members[root]
            if (self.sent(v) and self.may_be_wide(v) if on else v in before)
        ]
        possible = True
        while new and possible:
            for u in new:
                self._note(prices, sent, u)
                changed.add(self.root(u))
                (self.wide.add if on else self.wide.discard)(u)
            touched = self._spread(prices, sent, [self.graph.producers[u] for u in new])
            possible = touched is not None
            new = [
                u
                for u in touched or ()
                if on and u not in self.wide and self.sent(u) and self.may_be_wide(u)
                if self.root(u) in changed or not sent[self.root(u)]
            ]
        found = math.inf
        if possible:
            now = ((self.node_price if node else self.sent_price)(k) for node, k in prices)
            found = sum(now) - sum(prices.values())
        if keep and found < -MIN_SAVED_SECONDS:
            self.undo.clear()
            return found
        while self.undo:
            u, k, old = self.undo.pop()
            self.lies.pop(u, None)
            if old is None:
                del self.asked[u][k]
            else:
                self.asked[u][k] = old
        self.wide = before
        return min(found, 0.0) if found < -MIN_SAVED_SECONDS and not keep else 0.0

    def _note(self, prices: dict[tuple[bool, int], float], sent: dict[int, bool], u: int) -> None:
        """Remember what a value costs before it changes."""
        root, k = self.root(u), self.graph.producers[u]
        if (False, root) not in prices:
            prices[False, root], sent[root] = self.sent_price(root), self.is_sent(root)
        if k >= 0 and (True, k) not in prices:
            prices[True, k] = self.node_price(k)

    def _spread(
        self, prices: dict[tuple[bool, int], float], sent: dict[int, bool], begin: Iterable[int]
    ) -> list[int] | None:
        """Let nodes say again what they need, from the last to the first; the values of which others are asked
        now, or None if a node cannot be done so."""
        heap, queued, touched = [-k for k in begin], {*begin}, dict[int, None]()
        heapq.heapify(heap)
        while heap:
            k = -heapq.heappop(heap)
            sources = dict.fromkeys(map(self.source, self.graph.nodes[k].inputs))
            for u in sources:
                self._note(prices, sent, u)
            before = {u: self.layout_of(u) for u in sources}
            mark = len(self.undo)
            if not self._ask(k):
                return None
            touched.update(dict.fromkeys([u for u, _, _ in self.undo[mark:]]))
            for u in sources:
                maker = self.graph.producers[u]
                if self.layout_of(u) is not before[u] and maker >= 0 and maker not in queued:
                    queued.add(maker)
                    heapq.heappush(heap, -maker)
        return list(touched)

    # -- the graph ---------------------------------------------------------------------------------
    def _at_once(self, v: int) -> Layout | None:
        """Find what is sent of a value of which halos in other steps are asked for, too, if once is best."""
        ends = self.sent(v) if v not in self.wide else []
        kinds = {tuple((d, w.count, w.stride, w.every) for d, w in end.windows) for end in ends}
        spec, own = self.graph.specs[v], self.own(v)
        whole = around(spec, own, tuple(ends))
        cost = partial(relayout_seconds, self.machine, spec.shape, spec.dtype.itemsize, own)
        return whole if len(kinds) > 1 and cost(whole) <= sum(map(cost, ends)) else None

    def graph_made(self) -> Graph:
        graph, builder = self.graph, Builder(self.graph.inputs)
        values = list(range(len(graph.inputs)))
        together = {v: end for v in self.roots if (end := self._at_once(v)) is not None}

        def read(v: int, end: Layout, node: Node | None = None) -> int:
            u = self.source(v)
            x, line = values[u], node.line if node is not None else ""
            spec = builder.specs[x]
            if spec.layout is not end and u in together and end.windows:
                (x,) = builder.add("relayout", (x,), (), (spec.at(together[u]),), line)
                spec = builder.specs[x]
                if node is not None and not reads_place_by_place(graph, node, v, end):
                    return x
            if spec.layout is end:
                return x
            return builder.add("relayout", (x,), (), (spec.at(end),), line)[0]

        for k, node in enumerate(graph.nodes):
            v = graph.starts[k]
            if v in self.halos:
                values.append(-1)
                continue
            ends = self.needs(k)
            assert ends is not None
            ins = [read(u, end, node) for u, end in zip(node.inputs, ends, strict=True)]
            specs = (node.specs[0].at(self.layout_of(v)),) if v in self.wide else node.specs
            values.extend(builder.add(node.op, ins, node.params, specs, node.line))
        return builder.graph([read(v, self.own(v)) for v in graph.outputs])


def _adds(node: Node, graph: Graph) -> bool:
    """Whether a node adds halos to a value's parts."""
    if node.op != "relayout" or len(node.inputs) > 1:
        return False
    here, end = graph.specs[node.inputs[0]].layout, node.specs[0].layout
    assert end is not None
    return bool(end.windows) and here is end.without_halos


@lru_cache(1 << 14)
def around(spec: Spec, own: Layout, ends: tuple[Layout, ...]) -> Layout:
    """The layout with all that others have, and a value's own parts: one of them, or one around them all."""
    several = list(dict.fromkeys((own, *ends)))
    if len(several) == 1:
        return own
    for end in several[1:]:
        if all(end.has_copy(e, spec.shape) for e in several):
            return end
    windows = []
    for d in sorted({d for end in several for d, _ in end.windows}):
        window = _window_around(spec, own, several, d)
        if not window.covers(spec.shape[d]):
            windows.append((d, window))
    return Layout(own.mesh, own.splits, tuple(windows), own.blocks)


def _window_around(spec: Spec, own: Layout, ends: Sequence[Layout], d: int) -> Overlap:
    size = spec.shape[d]
    found = [end.window(d) or Overlap(size, 0, 1, 1) for end in ends]
    if len({(w.count, w.stride, w.every) for w in found}) == 1:
        whole = found[0]
        for window in found[1:]:
            whole = whole.around(window)
        return whole
    coords = all_coords(own.mesh, own.axes(d))
    lo, hi = bounds_of_many(own, size, d, coords)
    low = high = 0
    for end in ends:  # which move in other steps: so much more at both ends of each part
        begin, last = bounds_of_many(end, size, d, coords)
        some = begin < last
        low = max(low, int(((lo - begin) * some).max()))
        high = max(high, int(((last - hi) * some).max()))
    return Overlap(size, -low, 1, low + high + 1)
