"""Reads before what writes there: where a value is updated in place, all who read the old one run first, and
of what is read later, if it is a small part, a copy is made.

before                                       after
(%0: float64[9,9], %1: int64[])              (%0: float64[9,9], %1: int64[])
%2 = slice(%0; starts=(3, 0), ...)           %2 = slice(%0; starts=(3, 0), ...)
%3 = put(%0, %1, %2; axis=0, mode='set')     %3 = copy(%2)
%4 = put(%3, %1, %2; axis=0, mode='add')     %4 = put(%0, %1, %3; axis=0, mode='set')
%5 = copy(%0)                                ...
return %4, %5

(`%5` runs before `%4`.) Part of `assign_memory`, which then finds that the update may be in place. Workers
meet in the order in which they did. Idempotent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import ANY, OPS
from ostinato.ops.flow.control import CARRYING, begun_as
from ostinato.ops.jit.foreach_parts import FOREACH, written_over

from .order import meets

MAX_ORDERED_NODES = 4000  # longer graphs stay as they are: this may take as long as their square
MAX_COPIED_PART = 0.5  # of a value, so that it is updated in place


def overs(graph: Graph, k: int, j: int) -> list[int]:
    """The operands over which a node's j-th result may be written, as far as the node is concerned."""
    node, spec = graph.nodes[k], graph.nodes[k].specs[j]
    found: Iterable[int] = ()
    if node.op in CARRYING:
        begin = begun_as(node, j)
        found = () if begin is None else (node.inputs[begin],)
    elif node.op == "branch":
        sides = [origins(g, g.outputs[j]) for _, g in node.subgraphs()]
        found = [node.inputs[1 + v] for v in sorted(set.intersection(*sides))]
    elif node.op == FOREACH:
        found = [node.inputs[n] for n in written_over(node, j)]
    else:
        overwrite = OPS[node.op].run.may_overwrite(len(node.specs))
        found = (
            node.inputs
            if overwrite == ANY
            else [v for n, v in enumerate(node.inputs) if n in overwrite]
        )
    return [v for v in found if graph.specs[v] is spec]


def origins(graph: Graph, v: int) -> set[int]:
    """The inputs over which a value may be written, operation by operation."""
    return {w for w in (v, *(w for _, w in _chain(graph, v))) if graph.producers[w] < 0}


def _chain(graph: Graph, v: int) -> Iterator[tuple[int, int]]:
    """The nodes that lead to a value, and the operand over which each may write."""
    stack, seen = [v], {v}
    while stack:
        w = stack.pop()
        k = graph.producers[w]
        if k < 0:
            continue
        for x in overs(graph, k, w - graph.starts[k]):
            yield k, x
            if x not in seen:
                seen.add(x)
                stack.append(x)


def read_first(
    graph: Graph, views: Sequence[bool], given: Collection[int], own: Mapping[int, int]
) -> Graph:
    """The graph in that order, of which some nodes are views; operands that were given away, and results of
    which each may be written over one operand."""
    inputs = {*given, *own.values()}
    writers = {
        k: node.inputs[0]
        for k, node in enumerate(graph.nodes)
        if OPS[node.op].run.overwrite == (0,)
        and (graph.producers[node.inputs[0]] >= 0 or node.inputs[0] in inputs)
    }
    for result, v in own.items():
        writers |= {k: w for k, w in _chain(graph, graph.outputs[result]) if w == v}
    if not writers or len(graph.nodes) > MAX_ORDERED_NODES:
        return graph
    order = _Order(graph, views, writers)
    for k in writers:
        order.settle(k)
    return order.graph() if order.changed else graph


class _Order:
    def __init__(self, graph: Graph, views: Sequence[bool], writers: dict[int, int]) -> None:
        self.given, self.writers = graph, writers
        self.line = list(range(len(graph.nodes)))
        self.at = {j: n for n, j in enumerate(self.line)}  # where each stands
        self.copies: dict[int, tuple[int, Node]] = {}  # by their node: the value that each copies
        self.instead: dict[tuple[int, int], int] = {}  # readers of a value, and the copy they read
        self.changed = False
        self.root = list(range(len(graph.specs)))
        self.readers: dict[int, list[tuple[int, int]]] = {}  # of a root: who, and which value
        for k, node in enumerate(graph.nodes):
            for v in node.inputs[len(node.specs) if views[k] else 0 :]:
                self.readers.setdefault(self.root[v], []).append((k, v))
            if views[k]:
                for v, source in zip(graph.outs(k), node.inputs, strict=False):
                    self.root[v] = self.root[source]

    def settle(self, k: int) -> None:
        """Let all who read what a node updates run before it, if that can be."""
        graph, v = self.given, self.writers[k]
        if self.root[v] != v or graph.nodes[k].inputs.count(v) != 1:
            return
        at = self.at
        late = [(j, w) for j, w in self.readers[v] if at[j] > at[k] or (j == k and w != v)]
        if not late:
            return
        after = {k, *self._behind(k, max(at[j] for j, _ in late))}
        moved = self._before([j for j, _ in late if j not in after], k)
        if moved is None:  # then all read copies
            moved, after = set(), {j for j, _ in late}
        kept = [(j, w) for j, w in late if j in after]  # who reads later what was there
        wanted = {w for _, w in kept}
        if (
            v in wanted
            or sum(graph.specs[w].nbytes for w in wanted) > MAX_COPIED_PART * graph.specs[v].nbytes
        ):
            return
        shown = self._before([graph.producers[w] for w in wanted], k)
        if shown is None:
            return
        moved |= shown
        first, early = [j for j in self.line if j in moved], dict[int, int]()
        for w in sorted(wanted):
            maker = graph.nodes[graph.producers[w]]
            made = len(graph.nodes) + len(self.copies)
            self.copies[made] = w, Node("copy", (), (), (graph.specs[w],), maker.line)
            self.instead |= {(j, w): made for j, x in kept if x == w}
            sent = [self._start(j) for j, x in kept if x == w and graph.nodes[j].op == "wait"]
            if sent := [j for j in sent if at[j] < at[k]]:  # messages read it until they end
                self.instead |= {(j, w): made for j in sent}
                early[made] = min(at[j] for j in sent)
            else:
                first.append(made)
        rest = [j for j in self.line[at[k] :] if j not in moved]
        self.line[at[k] :] = [*first, *rest]
        for made in sorted(early, key=early.__getitem__, reverse=True):
            self.line.insert(early[made], made)
        self.at = {j: n for n, j in enumerate(self.line)}
        self.changed = self.changed or bool(first or early)

    def _start(self, wait: int) -> int:
        """The node that began the message which another one waits for."""
        return self.given.producers[self.given.nodes[wait].inputs[0]]

    def _behind(self, k: int, last: int) -> set[int]:
        """The nodes up to there that need what a node makes."""
        graph, found = self.given, {k}
        stack = [k]
        while stack:
            j = stack.pop()
            more = [u for v in self._outs(j) for u in graph.uses[v]]
            for u in more:
                if u not in found and self.at[u] <= last:
                    found.add(u)
                    stack.append(u)
        return found - {k}

    def _before(self, nodes: Sequence[int], k: int) -> set[int] | None:
        """These nodes and all that has to run before them, as far as it stands behind a node; None if workers
        meet there."""
        graph, at, found = self.given, self.at, set[int]()
        stack = [j for j in nodes if j >= 0 and at[j] > at[k]]
        while stack:
            j = stack.pop()
            if j in found:
                continue
            found.add(j)
            if j in self.copies:
                needs = [graph.producers[self.copies[j][0]]]
            else:
                node = graph.nodes[j]
                if meets(node):
                    return None
                needs = [self.instead.get((j, v), graph.producers[v]) for v in node.inputs]
            stack += [r for r in needs if r >= 0 and at[r] > at[k]]
        return found

    def _outs(self, j: int) -> Iterable[int]:
        return () if j in self.copies else self.given.outs(j)

    def graph(self) -> Graph:
        given, nodes = self.given, list[Node]()
        values = dict(enumerate(range(len(given.inputs))))
        made: dict[int, int] = {}  # values of copies
        count = len(given.inputs)
        for j in self.line:
            if j in self.copies:
                w, node = self.copies[j]
                nodes.append(Node(node.op, (values[w],), node.params, node.specs, node.line))
                made[j] = count
            else:
                node = given.nodes[j]
                inputs = tuple(
                    [
                        made[self.instead[j, v]] if (j, v) in self.instead else values[v]
                        for v in node.inputs
                    ]
                )
                nodes.append(Node(node.op, inputs, node.params, node.specs, node.line))
                values |= {v: count + n for n, v in enumerate(given.outs(j))}
            count += len(nodes[-1].specs)
        return Graph(given.inputs, tuple(nodes), tuple([values[v] for v in given.outputs]))
