"""Which operations make a kernel in stages: reductions, products with short indices, and what is
elementwise around them, as long as one index runs through all of them (`ops/nest.py`).

    d = ((x[:, None] - c) ** 2).sum(-1)         i k d -> i k
    near = one_hot(d.argmin(1), 8)              i k -> i -> i k'      all of them have i: one kernel,
    near.T @ x, near.sum(0)                     i k', i d -> k' d     sums over i at its end

An operation joins the kernel of one that it reads, or that reads what it reads, if their labels fit,
if an index is left that all of them have and none needs complete, and if all else that it reads
exists where the kernel begins."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ostinato.ops.collective import collective_of
from ostinato.ops.graph import Graph, Node
from ostinato.ops.labels import (
    HELD,
    POSITIONS,
    PRODUCTS,
    REDUCING,
    SHORT,
    SOURCES,
    SUMS,
    VIEWS,
    Fit,
    Labels,
)
from ostinato.ops.registry import OPS
from ostinato.ops.scalar import can_lower
from ostinato.ops.spec import Spec

SMALL = 1 << 16  # bytes that need no kernel, and may be made at any time
ROWS = 256  # fewer are not worth cutting
PRODUCT = 1024  # multiplications of a row: libraries are better at more
NODES, OPERANDS = 128, 16


@dataclass(eq=False, slots=True)
class Nested:
    """Operations that make one kernel."""

    start: int
    labels: Labels = field(default_factory=Labels)
    common: frozenset[int] | None = None  # labels that may be rows
    members: list[int] = field(default_factory=list)
    made: set[int] = field(default_factory=set)  # the values of members
    operands: dict[int, None] = field(default_factory=dict)
    lost: dict[int, frozenset[int]] = field(default_factory=dict)  # what values were reduced over
    reduced: set[int] = field(default_factory=set)
    consumed: bool = False  # whether a member reads what another one reduced

    def rows(self) -> tuple[int, ...]:
        """The labels to cut, the larger steps first."""
        extents, common = self.labels.extents, self.common or frozenset()
        parallel = [x for x in common if x not in self.reduced]
        if not parallel or math.prod(extents[x] for x in parallel) < ROWS:
            return (max(common, key=lambda x: extents[x]),)
        largest = max(parallel, key=lambda x: extents[x])
        others = {x for dims in self.labels.dims.values() for x in dims if x is not None}
        if any(extents[x] > SHORT for x in others - set(parallel)):
            return tuple(sorted(parallel))
        return (largest,)


def nests(graph: Graph, alone: Collection[int] = ()) -> list[Nested]:
    """The groups, in the order in which they begin; `alone` are in none."""
    near = _region(graph, alone)
    if not near:
        return []
    found: list[Nested] = []
    home: dict[int, Nested] = {}  # of values that members make
    readers: dict[int, Nested] = {}  # of what comes from outside, the latest
    ready = [-1] * len(graph.inputs)
    for k, node in enumerate(graph.nodes):
        outs = graph.outs(k)
        group = _join(graph, k, home, readers, ready) if k in near else None
        if group is None and k in near:
            group = Nested(k)
            if _try(graph, k, group, ready):
                found.append(group)
            else:
                group = None
        if group is None:
            moment = -1 if node.op in SOURCES else k
            if node.op in VIEWS:
                moment = ready[node.inputs[0]]
            ready.extend([moment] * len(node.specs))
            continue
        ready.extend([group.start] * len(node.specs))
        home.update(dict.fromkeys(outs, group))
        readers.update(dict.fromkeys(group.operands, group))
    return [g for g in found if any(graph.nodes[k].op in REDUCING for k in g.members)]


def has_reductions(graph: Graph) -> bool:
    """Whether there is something large that kernels in stages are for."""
    return any(
        node.op in REDUCING and any(graph.specs[v].nbytes > SMALL for v in node.inputs)
        for node in graph.nodes
    )


def small_first(graph: Graph) -> Graph:
    """What is small and made of small things only comes first, as kernels that read it may begin
    early.
    """
    early = [s.nbytes <= SMALL for s in graph.inputs]
    chosen: list[int] = []
    for k, node in enumerate(graph.nodes):
        small = (
            node.op in OPS
            and not any(True for _ in node.subgraphs())
            and not collective_of(node.op, node.kw)
            and node.op not in ("wait", "barrier")
            and all(s.nbytes <= SMALL for s in node.specs)
            and all(early[v] for v in node.inputs)
        )
        early += [small] * len(node.specs)
        if small:
            chosen.append(k)
    if chosen == list(range(len(chosen))):
        return graph
    first = {*chosen}
    order = [*chosen, *(k for k in range(len(graph.nodes)) if k not in first)]
    number = list(range(len(graph.inputs))) + [-1] * (len(graph.specs) - len(graph.inputs))
    nodes, count = [], len(graph.inputs)
    for k in order:
        node = graph.nodes[k]
        nodes.append(replace(node, inputs=tuple(number[v] for v in node.inputs)))
        for v in graph.outs(k):
            number[v], count = count, count + 1
    return Graph(graph.inputs, tuple(nodes), tuple(number[v] for v in graph.outputs))


def _region(graph: Graph, alone: Collection[int]) -> set[int]:
    """The operations that are connected with a reduction by others that kernels can do."""
    able = [k not in alone and _is_able(graph, node) for k, node in enumerate(graph.nodes)]
    if not any(a and n.op in REDUCING for a, n in zip(able, graph.nodes, strict=True)):
        return set()
    found: set[int] = set()
    seen: set[int] = set()
    for k, node in enumerate(graph.nodes):
        if not able[k] or node.op not in REDUCING or k in seen:
            continue
        stack = [k]
        while stack:
            j = stack.pop()
            if j in seen:
                continue
            seen.add(j)
            look = graph.nodes[j].op in (*VIEWS, *SOURCES)
            if not able[j] and not look:
                continue
            if able[j]:
                found.add(j)
            if graph.nodes[j].op in SOURCES:
                continue
            stack += [p for v in graph.nodes[j].inputs if (p := graph.producers[v]) >= 0]
            stack += [u for v in graph.outs(j) for u in graph.uses[v]]
    return found


# -- what kernels can do -------------------------------------------------------------------
def _is_able(graph: Graph, node: Node) -> bool:
    if node.op in (*VIEWS, *SOURCES) or node.op not in OPS:
        return False
    ins = [graph.specs[v] for v in node.inputs]
    if not all(map(_is_plain, (*ins, *node.specs))):
        return False
    if any(s.layout is not None and s.layout.partial_axes for s in ins):
        return False
    partial = any(s.layout is not None and s.layout.partial_axes for s in node.specs)
    kinds = tuple(s.dtype for s in ins)
    out = node.specs[0].dtype
    if node.op in SUMS:
        return bool(node.kw["axes"]) and out.kind in "iuf" and can_lower("astype", kinds, out)
    if node.op == "moments":
        return (
            bool(node.kw["axes"])
            and not partial
            and can_lower("square", kinds, node.specs[1].dtype)
        )
    if node.op in POSITIONS:
        return not partial and out.kind in "iuf" and can_lower("astype", kinds, out)
    if node.op in PRODUCTS:
        same = all(d == out for d in kinds) and len(kinds) == 2
        return same and out.kind == "f" and can_lower("add", (out, out), out)
    if not OPS[node.op].scalar or len(node.specs) != 1 or partial:
        return False
    return can_lower(node.op, kinds, out)


def _is_plain(spec: Spec) -> bool:
    """Whether each worker's part is a range of whole indices, and an extent of 1 is nowhere 0."""
    layout = spec.layout
    if spec.size == 0 or layout is None or layout.windows:
        return False
    return not any(isinstance(d, int) and spec.shape[d] == 1 for d in layout.splits)


# -- joining -------------------------------------------------------------------------------
def _join(
    graph: Graph,
    k: int,
    home: dict[int, Nested],
    readers: dict[int, Nested],
    ready: Sequence[int],
) -> Nested | None:
    """The group that a node joined."""
    sources = [v for u in graph.nodes[k].inputs for v in (u, *_behind(graph, u))]
    near = [home[v] for v in sources if v in home] + [readers[v] for v in sources if v in readers]
    return next((g for g in dict.fromkeys(near) if _try(graph, k, g, ready)), None)


def _behind(graph: Graph, v: int) -> Iterator[int]:
    """What a value is a view of, and what that is a view of."""
    k = graph.producers[v]
    while k >= 0 and graph.nodes[k].op in VIEWS:
        v = graph.nodes[k].inputs[0]
        yield v
        k = graph.producers[v]


def _try(graph: Graph, k: int, group: Nested, ready: Sequence[int]) -> bool:
    """Whether a node fits into a group; if so, it is a member, with the views that it reads."""
    node = graph.nodes[k]
    if len(group.members) >= NODES:
        return False
    views = [p for v in node.inputs for p in _views(graph, v, group)]
    labels = Labels(list(group.labels.extents), dict(group.labels.dims))
    for p in views:
        fit = _fit(graph, p, labels)
        if fit is None:
            return False
        labels.take(fit, graph.outs(p))
    fit = _fit(graph, k, labels, len(group.labels.extents))
    if fit is None:
        return False
    made = group.made | {v for p in views for v in graph.outs(p)}
    outside = [
        v
        for p in (*views, k)
        for v in graph.nodes[p].inputs
        if v not in made and not _is_source(graph, v)
    ]
    if any(ready[v] >= group.start for v in outside):
        return False
    if len({*group.operands, *outside}) > OPERANDS:
        return False
    lost = frozenset(
        x for p in (*views, k) for v in graph.nodes[p].inputs for x in group.lost.get(v, ())
    )
    common = fit.labels - lost
    common = common if group.common is None else common & group.common
    if node.op in POSITIONS:
        common -= fit.reduced
    labels.take(fit, graph.outs(k))
    if not _is_worthwhile(node, fit, common, labels):
        return False
    group.labels, group.common = labels, common
    group.members += [p for p in views if p not in group.members]
    group.members.append(k)
    group.made = made | {*graph.outs(k)}
    group.operands |= dict.fromkeys(outside)
    group.reduced |= fit.reduced
    group.consumed |= bool(lost)
    gone = lost | fit.reduced
    group.lost |= dict.fromkeys(graph.outs(k), gone)
    for p in views:
        group.lost |= dict.fromkeys(graph.outs(p), lost)
    return True


def _views(graph: Graph, v: int, group: Nested) -> list[int]:
    """The views between a value and what it shows, the first one first."""
    found: list[int] = []
    k = graph.producers[v]
    while k >= 0 and graph.nodes[k].op in VIEWS and v not in group.labels.dims:
        spec = graph.nodes[k].specs[0]
        if not _is_plain(spec) or (spec.layout is not None and spec.layout.partial_axes):
            break
        found.append(k)
        v = graph.nodes[k].inputs[0]
        k = graph.producers[v]
    return list(reversed(found))


def _is_source(graph: Graph, v: int) -> bool:
    k = graph.producers[v]
    return k >= 0 and graph.nodes[k].op in SOURCES


def _fit(graph: Graph, k: int, labels: Labels, loose: int = 1 << 30) -> Fit | None:
    node = graph.nodes[k]
    specs = [graph.specs[v] for v in node.inputs]
    for v in node.inputs:
        p = graph.producers[v]
        if p >= 0 and graph.nodes[p].op == "iota" and _is_split(graph.nodes[p]):
            return None
    rule = OPS[node.op].indices(tuple(specs), node.specs, node.kw)
    return labels.fit(rule, node.inputs, specs, node.specs, loose)


def _is_split(iota: Node) -> bool:
    layout = iota.specs[0].layout
    return layout is None or iota.kw["axis"] in layout.splits


def _is_worthwhile(node: Node, fit: Fit, common: frozenset[int], labels: Labels) -> bool:
    """Whether enough rows are left, of which each fits into cache."""
    extents = labels.extents
    rows = max((extents[x] for x in common), default=0)
    if rows < ROWS:
        return False
    best = max(common, key=lambda x: extents[x])
    others = [extents[x] for x in fit.labels if x != best]
    if node.op in PRODUCTS and (math.prod(others) > PRODUCT or max(others, default=0) > SHORT):
        return False
    parallel = [extents[x] for x in common - fit.reduced]
    row = math.prod(extents[x] for x in fit.labels) // max(rows, math.prod(parallel))
    return row * node.specs[0].dtype.itemsize <= HELD // 8
