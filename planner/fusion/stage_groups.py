"""Which operations make a kernel in stages: reductions, products with short indices, and what is
elementwise around them, as long as one index runs through all of them (`ops/jit/stage_values.py`).

    d = ((x[:, None] - c) ** 2).sum(-1)         i k d -> i k
    near = one_hot(d.argmin(1), 8)              i k -> i -> i k'      all of them have i: one kernel,
    near.T @ x, near.sum(0)                     i k', i d -> k' d     sums over i at its end

An operation joins the kernel of one that it reads, or that reads what it reads, if their labels fit,
if an index is left that all of them have and none needs complete, and if nothing else that it reads
waits for the kernel (`convex.py`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import plain
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Indices, Window
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Spec, bool_
from ostinato.ops.jit.kept_values import MAX_FIXED_EXTENT
from ostinato.ops.jit.labels import (
    Fit,
    Labels,
    combines,
    gives_places,
    indices_of,
    reads_elsewhere,
    turns_of,
    walks_of,
)
from ostinato.ops.jit.scalar import CAST, SQUARE
from ostinato.ops.jit.stage_values import label
from ostinato.ops.jit.values import can_add, can_combine
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import is_windowed, replace

from .around import (
    UNIT,
    Over,
    is_one_reduction,
    is_shared,
    largest_labels,
    long_labels,
    outer_labels,
    would_idle,
)
from .convex import LATER, NEVER, NOW, Unit, Units
from .counting import steps_of
from .groups import NODES, OPERANDS, Lowers, Made, node_of, rows_of

NEGLIGIBLE_BYTES = 1 << 16  # bytes that need no kernel
ROWS = 16  # fewer are not worth cutting
LINES = 1024  # of running sums; fewer, which are longer, are cut themselves
PRODUCT = 1024  # multiplications of a row: libraries are better at more
MAX_ROW_BYTES = 1 << 22  # bytes of a row of a stage at the most
LONG_WINDOW = 1 << 4  # elements of windows of which products are summed
SHARED = 2  # elements of windows for each of an operand's, from which they share most of them
Fits = Callable[..., bool]  # (**parameters of a kernel) -> whether it can be one


def fits_by(analyse: Callable[..., object]) -> Fits:
    """Whether a body can be a kernel on a device, by what schedules its loops there."""

    @lru_cache(1 << 10)
    def fits(
        body: Graph,
        dims: tuple[tuple[int, ...], ...],
        rows: tuple[int, ...],
        steps: tuple[tuple[int, ...], ...] = (),
    ) -> bool:
        specs = (*body.inputs, *body.out_specs)
        shapes = [s.layout.largest(s.shape) for s in specs if s.layout is not None]
        return analyse(body, dims, rows, shapes, steps=steps) is not None

    return fits


@dataclass(eq=False, slots=True)
class Nested(Unit):
    """Operations that make one kernel, and the views that they read."""

    labels: Labels = field(default_factory=Labels)
    common: frozenset[int] | None = None  # labels that may be rows
    made: set[int] = field(default_factory=set)  # the values of members
    lost: dict[int, frozenset[int]] = field(default_factory=dict)  # what values were reduced over
    reduced: set[int] = field(default_factory=set)
    overs: set[Over] = field(default_factory=set)
    looped: set[int] = field(default_factory=set)  # what its loops run over
    slid: set[int] = field(default_factory=set)  # labels of operands that are windows
    order: tuple[int, ...] = ()  # labels of what is made of windows, as its axes are
    consumed: bool = False  # whether a member reads what another one reduced
    behind: bool = False  # whether some do when all has been reduced
    # units that keep a device busy whose blocks share long reductions, of places too
    blocks: int = 0

    def rows(self) -> tuple[int, ...]:
        """The labels to cut, the larger steps first."""
        extents, common = self.labels.extents, self.common or frozenset()
        parallel = [x for x in common if x not in self.reduced]
        longest = max(common, key=lambda x: extents[x])
        rows = math.prod(extents[x] for x in parallel)
        shared = rows < self.blocks and extents[longest] > ROWS * self.blocks
        if self.blocks and parallel and (around := self.around()):
            return around
        if not parallel or rows < ROWS or shared:
            return (longest,)
        least = rows // 4 if self.blocks else rows  # of fewer columns some blocks would have none
        outside = common.difference(parallel)
        if outer := outer_labels(self.labels, outside, frozenset(parallel), least):
            return (max(outer, key=lambda x: extents[x]),)
        if windows := [x for x in parallel if x in self.slid]:
            return tuple(sorted({*windows} - self.whole(self.order)))
        if inner := self.whole(self.parallel_order(parallel), self.reduced):
            return tuple(sorted({*parallel} - inner))
        largest = max(parallel, key=lambda x: extents[x])
        if any(extents[x] > MAX_FIXED_EXTENT for x in self.looped - {largest}):
            return tuple(sorted(parallel))
        return (largest,)

    def overs_now(self, labels: Labels) -> set[Over]:
        return {(labels.now(over), labels.now(kept)) for over, kept in self.overs}

    def around(self) -> tuple[int, ...]:
        """All labels along which members reduce, if these are the same for all, some of them lie outside of
        others, of which there are few."""
        common = self.common or frozenset()
        over, kept = long_labels(self.labels, self.overs)
        if self.consumed or self.slid or not is_one_reduction(self.labels, self.overs, common):
            return ()
        if not self.behind and not would_idle(self.labels, over, kept, self.blocks):
            return ()
        order = largest_labels(self.labels)
        if not over <= {*order}:
            return ()
        return tuple([x for x in order if x in self.reduced])

    def parallel_order(self, parallel: Sequence[int]) -> tuple[int, ...]:
        """The parallel labels of the largest operand in order, if the last one of all is among them."""
        extents, largest = self.labels.extents, tuple[int, ...]()
        for v in self.operands:
            own = tuple([x for x in self.labels.dims[v] if x is not None])
            if math.prod(extents[x] for x in own) > math.prod(extents[x] for x in largest):
                largest = own
        order = tuple([x for x in largest if x in parallel])
        return order if order[-1:] == largest[-1:] and len(order) == len(parallel) else ()

    def whole(self, order: Sequence[int], beside: Collection[int] = ()) -> set[int]:
        """The last labels, of which a unit has all elements, beside some others: to begin a unit takes longer
        than a vector or two, and neighbours lie together."""
        extents, found = self.labels.extents, set[int]()
        rows, inner = (math.prod(extents[x] for x in some) for some in (order, beside))
        for x in reversed(order[1:]) if not self.blocks else ():
            inner, rows = inner * extents[x], rows // extents[x]
            few = inner <= ROWS * MAX_FIXED_EXTENT and rows >= MAX_FIXED_EXTENT
            if len(found) == 2 or not few or inner < ROWS:
                break
            found.add(x)
        return found


def nests(
    graph: Graph, workers: int, lowers: Lowers, alone: Collection[int] = (), blocks: int = 0
) -> list[Nested]:
    """The groups, in the order in which they begin; `alone` are in none."""
    near = _region(graph, lowers, alone)
    if not near:
        return []
    found: dict[Nested, None] = {}
    home: dict[int, Nested] = {}  # of values that members make
    readers: dict[int, Nested] = {}  # of what comes from outside, the latest
    units = Units(graph, workers)
    for k, node in enumerate(graph.nodes):
        group = _join(graph, k, home, readers, units) if k in near else None
        if group is None:
            group = Nested(blocks=blocks)
            if k not in near or _try(graph, k, group, units) != NOW:
                units.alone(k)
                continue
            found[group] = None
        units.join(k, group)
        home.update(dict.fromkeys(graph.outs(k), group))
        for other in dict.fromkeys(home[v] for u in node.inputs for v in (u, *_behind(graph, u))
                                   if v in home):  # fmt: skip
            if other is group or other not in found:  # which became a part of this one
                continue
            if (made := _both(graph, group, other, units)) is not None:
                units.merge(made, group, other)
                del found[group], found[other]
                found[made], group = None, made
                home.update(dict.fromkeys(made.made, made))
        readers.update(dict.fromkeys(group.operands, group))
    staged = [g for g in found if any(_is_staged(graph.nodes[k]) for k in g.members)]
    return sorted(staged, key=lambda g: g.start)


def worthy_nests(
    graph: Graph,
    target: Target,
    lowers: Lowers,
    alone: set[int],
    is_worth: Callable[[Nested], bool],
    fits: Fits,
    blocks: int = 0,
) -> list[Nested]:
    """Choose the nests that pay and can be. Of those of which a unit has no room, running sums
    stay by themselves, or else the last reduction does. Readers outside of nests make what takes less memory
    as they need it."""
    paying = [g for g in nests(graph, target.workers, lowers, alone, blocks) if is_worth(g)]
    found = [g for g in paying if can_be(graph, g, fits)]
    freed = left_to_readers(graph, found)
    for g in paying:
        if g not in found:
            staged = [k for k in g.members if _is_staged(graph.nodes[k])]
            runs = {k for k in staged if op_of(graph.nodes[k].op).element.running}
            freed |= runs or {*staged[1:][-1:]}
    if not freed:
        return found
    return worthy_nests(graph, target, lowers, alone | freed, is_worth, fits, blocks)


def left_to_readers(graph: Graph, found: Sequence[Nested]) -> set[int]:
    """Find elementwise members at the ends of nests that make much more than they read, such as sums for all
    pairs of rows, which nodes outside of nests that are elementwise, too, may make instead."""
    inside, freed = {k for g in found for k in g.members}, set[int]()
    for g in found:
        late: dict[int, None] = {}
        for k in reversed(g.members):
            (v, *more), op = graph.outs(k), op_of(graph.nodes[k].op)
            if more or v in graph.outputs or not op.scalar or op.reduce or op.element.source:
                continue
            others = [u for u in graph.uses[v] if u not in late]
            if inside.isdisjoint(others) and all(map(partial(_is_scalar_of, graph, v), others)):
                late[k] = None
        made = {v for k in late for v in graph.outs(k)}
        read = {v for k in late for v in graph.nodes[k].inputs} - made
        kept = sum(min(graph.specs[u].nbytes for u in (v, *_behind(graph, v))) for v in read)
        gone = sum(graph.specs[v].nbytes for v in made if not late.keys() >= {*graph.uses[v]})
        if gone > max(4 * kept, NEGLIGIBLE_BYTES):
            freed |= {*late}
    return freed


def _is_scalar_of(graph: Graph, v: int, k: int) -> bool:
    """Whether a node makes one element of each of a value."""
    node = graph.nodes[k]
    return bool(op_of(node.op).scalar) and node.specs[0].shape == graph.specs[v].shape


def count_apart(graph: Graph, lowers: Lowers) -> Graph:
    """Moments of parts, and how many elements these have, which is known without them."""
    read = {v for n in graph.nodes for v in n.inputs} | {*graph.outputs}
    chosen = [
        k
        for k, n in enumerate(graph.nodes)
        if op_of(n.op).reduce
        and len(n.specs) == 3
        and graph.starts[k] in read
        and _is_able(graph, n, lowers)
    ]

    def made(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        inputs = [values[v] for v in node.inputs]
        count = builder.add("count", inputs, node.params, node.specs[:1], node.line)
        return [*count, *builder.add(node.op, inputs, node.params, node.specs, node.line)[1:]]

    return replace(graph, chosen, made)


def has_stages(graph: Graph, turns: int = 1) -> bool:
    """Whether there is something large that kernels in stages are for, or that is done often."""
    return any(
        _is_staged(node)
        and any(graph.specs[v].nbytes * turns > NEGLIGIBLE_BYTES for v in node.inputs)
        for node in graph.nodes
    )


def _region(graph: Graph, lowers: Lowers, alone: Collection[int]) -> set[int]:
    """The operations that are connected with a reduction, or a gather, by others that kernels can
    do."""
    able = [k not in alone and _is_able(graph, node, lowers) for k, node in enumerate(graph.nodes)]
    if not any(a and _is_staged(n) for a, n in zip(able, graph.nodes, strict=True)):
        return set()
    found: set[int] = set()
    seen: set[int] = set()
    for k, node in enumerate(graph.nodes):
        if not able[k] or not _is_staged(node) or k in seen:
            continue
        stack = [k]
        while stack:
            j = stack.pop()
            if j in seen:
                continue
            seen.add(j)
            op = op_of(graph.nodes[j].op)
            if not able[j] and op.computes:
                continue
            if able[j]:
                found.add(j)
            if op.element.source:
                continue
            stack += [p for v in graph.nodes[j].inputs if (p := graph.producers[v]) >= 0]
            stack += [u for v in graph.outs(j) for u in graph.uses[v]]
    return found


# -- what groups are for -------------------------------------------------------------------
def does_more(graph: Graph, group: Nested, lowers: Lowers) -> bool:
    """Whether flat kernels could not do it as well."""
    nodes = [graph.nodes[k] for k in group.members]
    if group.consumed or any(_overlaps(graph, v) for v in group.operands):
        return True
    return any(_is_staged(n) and not has_rows(graph, n, lowers) for n in nodes)


def _is_staged(node: Node) -> bool:
    """Whether only kernels in stages can do it, or flat ones along the last axes."""
    op = op_of(node.op)
    return op.reduce is not None or bool(op.moves.places or op.element.running)


def is_single(graph: Graph, group: Nested) -> bool:
    """Whether it is a product, a gather or running sums and nothing else, which have kernels of their own."""
    nodes = [graph.nodes[k] for k in group.members]
    one, last = sum(not _is_look(graph, k) for k in group.members) == 1, OPS[nodes[-1].op]
    known = last.moves.places or last.element.running or (last.reduce and last.product)
    ours = _is_of_lines(graph, nodes[-1]) or slides(graph, nodes[-1])
    return bool(one and known) and not ours


def slides(graph: Graph, node: Node) -> bool:
    """Whether it combines windows that overlap, or of what was joined, which libraries and flat kernels
    would have copied."""
    return OPS[node.op].reduce is not None and any(_overlaps(graph, v, 0) for v in node.inputs)


def walks(graph: Graph, k: int) -> list[int]:
    """List the operands of which a node reduces windows, each element read where it lies."""
    node = graph.nodes[k]
    return [node.inputs[a] for a in walks_of(node, [graph.specs[v] for v in node.inputs])]


def is_apart(graph: Graph, v: int) -> bool:
    """Whether a value is a transpose whose last axis is another one in memory."""
    k = graph.producers[v]
    if k < 0 or not OPS[graph.nodes[k].op].turns_axes:
        return False
    lies, last = graph.specs[graph.nodes[k].inputs[0]].shape, graph.nodes[k].kw["axes"][-1]
    return lies[last] > 1 and math.prod(lies[last + 1 :]) > 1


def _overlaps(graph: Graph, v: int, share: int = SHARED) -> bool:
    """Whether a value is a look at windows that share most of their elements."""
    k = graph.producers[v]
    while k >= 0 and op_of(graph.nodes[k].op).is_view:
        node = graph.nodes[k]
        if is_windowed(graph, node):
            return node.specs[0].size > share * graph.specs[node.inputs[0]].size
        k = graph.producers[node.inputs[0]]
    return False


def _is_of_lines(graph: Graph, node: Node) -> bool:
    """Whether it multiplies each of many lines with one other line, which no library does."""
    product = OPS[node.op].product
    if product is None or not product.gemm or any(graph.specs[v].ndim < 3 for v in node.inputs):
        return False
    return node.specs[0].shape[-2:] == (1, 1) and node.specs[0].size >= ROWS


def has_rows(graph: Graph, node: Node, lowers: Lowers) -> bool:
    """Whether it reduces rows that are long enough for flat kernels."""
    terms = graph.specs[node.inputs[0]].size // max(node.specs[0].size, 1)
    return rows_of(graph, node, lowers) > 0 and terms > MAX_FIXED_EXTENT


def can_be(graph: Graph, group: Nested, fits: Fits) -> bool:
    """Whether the values of a unit fit into cache, for operands in order."""
    members = {*group.members}
    outs = [v for k in members for v in graph.outs(k)]
    read = {v for v in outs if v in graph.outputs or not members.issuperset(graph.uses[v])}
    node, _, _ = nest_of(graph, group, read)
    return fits(**node.kw)


def nest_of(graph: Graph, group: Nested, read: Container[int]) -> Made:
    """A group as a node."""
    checks, labels = checks_of(graph, group), group.labels.dims
    dims = tuple(tuple(-1 if x is None else x for x in labels[v]) for v in group.operands)
    dims = (*dims, *((),) * len(checks))
    facts: dict[str, Any] = {"dims": dims, "rows": group.rows()}
    known = sorted({x for own in dims for x in own if x >= 0})
    more = any(reads_elsewhere(graph.nodes[k]) or walks(graph, k) for k in group.members)
    if more or not {*facts["rows"]} <= {*known}:  # labels that no operand has are numbered anew
        place = {x: n for n, x in enumerate(known)}
        facts["dims"] = tuple([tuple([place.get(x, -1) for x in own]) for own in dims])
        facts["rows"] = _in_body(graph, group, read, checks, facts)
    steps = [steps_of(graph, v) if _overlaps(graph, v) else () for v in group.operands]
    if any(steps):
        facts["steps"] = tuple(steps)
    return node_of(graph, group, read, "fused_nest", checks, **facts)


def _in_body(
    graph: Graph, group: Nested, read: Container[int], checks: Sequence[Node], facts: dict[str, Any]
) -> tuple[int, ...]:
    """The rows as the kernel will number them."""
    marked = [Node(n.op, n.inputs, n.params, n.specs, str(k), n.key)
              for k, n in enumerate(graph.nodes)]  # fmt: skip
    whole = Graph(graph.inputs, tuple(marked), graph.outputs)
    body: Graph = node_of(whole, group, read, "fused_nest", checks).node.kw["body"]
    shapes = [s.shape for s in (*body.inputs, *body.out_specs)]
    stages = label(body, facts["dims"], (), shapes, shapes)
    if stages is None:
        return facts["rows"]  # of what is no kernel
    numbers: dict[int | None, int | None] = {}
    for n, v in enumerate(group.operands):
        numbers |= dict(zip(group.labels.dims[v], stages.dims[n], strict=True))
    for k, node in enumerate(body.nodes):
        if node.line:  # sources have none, so they are known by who reads them
            j = int(node.line)
            ins = zip(graph.nodes[j].inputs, node.inputs, strict=True)
            for v, u in (*ins, *zip(graph.outs(j), body.outs(k), strict=True)):
                numbers |= dict(zip(group.labels.dims[v], stages.dims[u], strict=True))
    found = [numbers[x] for x in group.rows()]
    return tuple([x for x in found if x is not None])


# -- what kernels can do -------------------------------------------------------------------
def _is_able(graph: Graph, node: Node, lowers: Lowers) -> bool:
    op = op_of(node.op)
    runs = op.element.running
    if not (op.scalar or op.reduce or op.moves.places or runs) or not op.computes:
        return False
    ins = [graph.specs[v] for v in node.inputs]
    walked = walks_of(node, ins)
    if not all(_is_plain(s, k in walked) for k, s in enumerate((*ins, *node.specs))):
        return False
    partial = any(s.layout is not None and s.layout.partial_axes for s in node.specs)
    kinds = tuple(s.dtype for s in ins)
    out = node.specs[0].dtype
    if op.reduce:
        kind, axes = combines(graph, node)
        if len(node.specs) == 3:
            real = all(d.kind != "c" for d in kinds)
            return bool(axes) and real and lowers(SQUARE, kinds, node.specs[1].dtype)
        if op.product:  # of others the sums are exact, and libraries convert what they read
            same = all(d == out for d in kinds) and len(kinds) == 2
            ours = out.kind in "fc" or slides(graph, node)
            return same and ours and lowers(CAST, kinds[:1], out) and can_combine(kind, out)
        known = can_combine(kind, out) and lowers(node.op, kinds, out)
        if walked:
            return known and len({*kinds, out}) == 1 and out.kind in "biuf"
        return known and bool(axes) and not (partial and gives_places(graph, node))
    if op.moves.places:
        return not partial and _can_gather(node, ins, lowers)
    if runs:
        known = can_combine(runs, out) and lowers(CAST, kinds, out)
        return known and not partial and ins[0].shape == node.specs[0].shape
    return len(node.specs) == 1 and lowers(node.op, kinds, out)


def _can_gather(node: Node, ins: Sequence[Spec], lowers: Lowers) -> bool:
    """One element of each line, if all of the line is there. A part at one place is sooner copied: then
    what it is of can be written over."""
    axis, (x, places, *added) = node.kw["axis"], ins
    if not places.shape:
        return False
    if x.layout is None or axis in x.layout.splits or places.dtype.kind not in "iu":
        return False
    if OPS[node.op].moves.selects != "places" and places.shape[axis] != 1:
        return False
    if any(s.dtype != x.dtype or not can_add(s.dtype) for s in added):
        return False
    return lowers(CAST, (x.dtype,), x.dtype)


def _is_plain(spec: Spec, windows: bool = False) -> bool:
    """Whether each worker's part is a range of whole indices, and an extent of 1 is nowhere 0."""
    layout = spec.layout
    if spec.size == 0 or layout is None or (layout.windows and not windows):
        return False
    return not any(isinstance(d, int) and spec.shape[d] == 1 for d in layout.splits)


# -- joining -------------------------------------------------------------------------------
def _join(
    graph: Graph, k: int, home: dict[int, Nested], readers: dict[int, Nested], units: Units
) -> Nested | None:
    """The group that a node joined."""
    sources = [v for u in graph.nodes[k].inputs for v in (u, *_behind(graph, u))]
    near = [home[v] for v in sources if v in home] + [readers[v] for v in sources if v in readers]
    later: list[Nested] = []
    for group in dict.fromkeys(near):
        found = _try(graph, k, group, units)
        if found == NOW:
            return group
        later += [group] * (found == LATER)
    return next((g for g in later if _try(graph, k, g, units, wait=True) == NOW), None)


def _both(graph: Graph, one: Nested, other: Nested, units: Units) -> Nested | None:
    """Two groups, of which one reads the other, as one."""
    labels = _labels_of_both(one.labels, other.labels)
    if labels is None or not units.merges(one, other):
        return None
    made = _renamed(other, labels)
    made.bits, made.place = one.bits | other.bits, len(graph.nodes)
    for k in sorted({*one.members} - {*other.members}):
        node = graph.nodes[k]
        if not _is_look(graph, k):
            if _try(graph, k, made, units) != NOW:
                return None
            continue
        outside = [v for v in node.inputs if v not in made.made and not _is_source(graph, v)]
        made.operands |= dict.fromkeys(outside)
        made.members.append(k)
        made.made |= {*graph.outs(k)}
        lost = frozenset(x for v in node.inputs for x in made.lost.get(v, ()))
        made.lost |= dict.fromkeys(graph.outs(k), lost)
    made.members.sort()
    read = (v for k in made.members for v in graph.nodes[k].inputs)
    made.operands = {v: None for v in read if v in made.operands and v not in made.made}
    return made


def _renamed(group: Nested, labels: Labels) -> Nested:
    """A copy of a group in labels that its own were joined with; windows' turns have new ones."""
    for x in sorted(group.looped - labels.joined.keys()):
        labels.joined[x] = len(labels.extents)
        labels.extents.append(group.labels.extents[x])
    made = dataclasses.replace(
        group,
        before=0,
        labels=labels,
        members=[*group.members],
        operands={**group.operands},
        made={*group.made},
        common=labels.now(group.common or ()),
        lost={v: labels.now(own) for v, own in group.lost.items()},
        reduced={*labels.now(group.reduced)},
        overs=group.overs_now(labels),
        looped={*labels.now(group.looped)},
        slid={*labels.now(group.slid)},
        order=tuple([labels.joined[x] for x in group.order]),
    )
    labels.joined = {}
    return made


def _labels_of_both(one: Labels, other: Labels) -> Labels | None:
    """The values that both know say which labels are the same; the other's turn out to be those of one."""
    same: dict[int, int] = {}
    for v in one.dims.keys() & other.dims.keys():
        for mine, its in zip(one.dims[v], other.dims[v], strict=True):
            if its is not None and (mine is None or same.setdefault(its, mine) != mine):
                return None
    made = Labels(list(one.extents), dict(one.dims), same)
    for dims in other.dims.values():
        for x in dims:
            if x is not None and x not in same:
                same[x] = len(made.extents)
                made.extents.append(other.extents[x])
    for v, dims in other.dims.items():
        made.dims.setdefault(v, tuple(None if x is None else same[x] for x in dims))
    return None if made.repeats else made


def _behind(graph: Graph, v: int) -> Iterator[int]:
    """Yield what a value is a view of, and what that is a view of."""
    k = graph.producers[v]
    while k >= 0 and op_of(graph.nodes[k].op).rearranges:
        v = graph.nodes[k].inputs[0]
        yield v
        k = graph.producers[v]


def _try(graph: Graph, k: int, group: Nested, units: Units, wait: bool = False) -> int:
    """Whether a node fits into a group: NOW, and then it is a member, with the views that it reads; LATER,
    if the group may `wait` for what it reads; or NEVER."""
    node = graph.nodes[k]
    if len(group.members) >= NODES:
        return NEVER
    views, labels, fit = _seen_and_fit(graph, k, group)
    if fit is None:
        return NEVER
    read = walks(graph, k)
    if read and not group.made.isdisjoint(u for v in read for u in (v, *_behind(graph, v))):
        return NEVER
    if group.order and not read and any(is_apart(graph, v) for v in node.inputs):
        return NEVER  # kernels of elements go through such ones in tiles
    made = group.made | {v for p in views for v in graph.outs(p)}
    given = [v for p in (*views, k) for v in graph.nodes[p].inputs]
    outside = [v for v in given if v not in made and not _is_source(graph, v)]
    joins = units.joins(group, outside)
    if joins == NEVER or (joins == LATER and not wait):
        return joins
    if OPS[node.op].moves.places and not _is_inside(graph, node, group):
        return NEVER
    if len({*group.operands, *outside}) > OPERANDS:
        return NEVER
    lost = labels.now(x for v in given for x in group.lost.get(v, ()))
    behind = _is_behind(node, group, fit, labels, lost)
    common = fit.labels - lost
    if group.common is not None:
        common = labels.now(group.common) if behind else common & labels.now(group.common)
    positions = gives_places(graph, node)
    if (positions and not group.blocks) or OPS[node.op].moves.places == "read":
        common -= fit.reduced
    if OPS[node.op].element.running:
        common -= {fit.outs[0][node.kw["axis"]]}
    if read:
        common -= fit.reduced
    lost_here = (labels.now(group.common or ()) | fit.labels) - common
    if positions or read:  # which there is no other way to do
        lost_here -= fit.reduced
    if OPS[node.op].element.running:
        lost_here -= {fit.outs[0][node.kw["axis"]]}
    labels.take(fit, graph.outs(k))
    rows = math.prod(labels.extents[x] for x in common)
    apart = outer_labels(labels, lost_here, common, rows) or (
        group.blocks and would_idle(labels, lost_here, common, group.blocks, UNIT["elements"])
    )
    lines = min(LINES, group.blocks // 4) if group.blocks else LINES
    if not behind and (not _is_worthwhile(graph, node, fit, common, labels, lines) or apart):
        return NEVER
    overs = group.overs_now(labels)
    overs |= {(fit.reduced, fit.labels - fit.reduced)} if OPS[node.op].reduce else set()
    if (group.behind and not behind and (lost or not is_one_reduction(labels, overs, common))) or (
        (read or group.slid) and is_shared(labels, overs, group.blocks)
    ):
        return NEVER
    group.labels, group.common = labels, common
    group.members += [p for p in views if p not in group.members]
    group.members.append(k)
    group.made = made | {*graph.outs(k)}
    group.operands |= dict.fromkeys(outside)
    group.reduced = {*labels.now(group.reduced), *fit.reduced}
    group.overs = overs
    group.looped = {*labels.now(group.looped), *_looped(node, fit)}
    _slide(graph, group, fit, (read, views, outside))
    group.behind |= behind
    group.consumed |= bool(lost) and not behind
    gone = lost | fit.reduced
    if labels.joined:
        group.lost = {v: labels.now(own) for v, own in group.lost.items()}
        labels.joined = {}
    group.lost |= dict.fromkeys(graph.outs(k), gone)
    for p in views:
        group.lost |= dict.fromkeys(graph.outs(p), lost)
    return NOW


def _seen_and_fit(graph: Graph, k: int, group: Nested) -> tuple[list[int], Labels, Fit | None]:
    """The views that a node reads, a group's labels with theirs, and how the node fits these, if it does: with
    views read as what they show, else as they are."""
    fixed = {x for v in group.operands for x in group.labels.dims[v]}
    for through in (True, False):
        views, labels = _seen(graph, graph.nodes[k], group, through)
        # new labels, and those of numbers, may turn out to be others
        fit = _fit(graph, k, labels, fixed)
        if fit is not None and not (labels.joined and labels.repeats):
            return views, labels, fit
    return views, labels, None


def _slide(
    graph: Graph, group: Nested, fit: Fit, of: tuple[list[int], list[int], list[int]]
) -> None:
    """Know which labels run over windows: those that a member reads where they lie, and others."""
    labels, (read, views, outside) = group.labels, of
    group.slid = {*labels.now(group.slid)}
    group.order = tuple([labels.joined.get(x, x) for x in group.order])
    if read:
        group.slid |= fit.labels - fit.reduced
        group.order = tuple([x for x in fit.outs[0] if x is not None])
    for p in views:
        group.slid |= {x for v in graph.outs(p) for x in labels.dims[v]
                       if x is not None and _overlaps(graph, v, 0)}  # fmt: skip
    for v in outside:
        group.slid |= {x for x in labels.dims[v] if x is not None and _overlaps(graph, v)}


def _seen(
    graph: Graph, node: Node, group: Nested, through: bool = True
) -> tuple[list[int], Labels]:
    """The views that a node reads, and a group's labels with theirs. Not `through` them, what they give is
    read as it is: of one value along two indices, as all pairs of its rows are, only so."""
    views: list[int] = []
    labels = Labels(list(group.labels.extents), dict(group.labels.dims))
    for v in node.inputs if through else ():
        labels, found = _labelled(
            graph, [p for p in _views(graph, v, group) if p not in views], labels
        )
        views += found
    return views, labels


def _views(graph: Graph, v: int, group: Nested) -> list[int]:
    """The views and the joins between a value and what it shows, the first one first."""
    k = graph.producers[v]
    if k < 0 or v in group.labels.dims or not _is_look(graph, k):
        return []
    if not _is_plain(graph.nodes[k].specs[0]):
        return []
    found = [p for u in dict.fromkeys(graph.nodes[k].inputs) for p in _views(graph, u, group)]
    return [*dict.fromkeys(found), k]


def _is_look(graph: Graph, k: int) -> bool:
    """Whether a node's elements are its operands', which the kernel of who reads them finds."""
    node = graph.nodes[k]
    if op_of(node.op).rearranges:
        return True
    return _is_edge(graph, k) and _has_join(graph, k) and _is_known(graph, node)


def _has_join(graph: Graph, k: int) -> bool:
    """Whether it shows what has edges, which would have to be in memory first, or windows that are only
    reduced, of which lanes are found better where they are read."""
    while k >= 0 and op_of(graph.nodes[k].op).is_view:
        if is_windowed(graph, graph.nodes[k]):
            if _is_only_reduced(graph, k):
                return True
            if _overlaps(graph, graph.outs(k)[0], LONG_WINDOW):
                return False  # tests of each element cost more than memory for what has edges
        k = graph.producers[graph.nodes[k].inputs[0]]
    return k >= 0 and _is_edge(graph, k)


def _is_edge(graph: Graph, k: int) -> bool:
    """Whether it is read elsewhere, and of one value at the most: to choose among several for each element
    takes longer than to join them."""
    node = graph.nodes[k]
    return reads_elsewhere(node) and sum(not _is_source(graph, v) for v in node.inputs) < 2


def _is_only_reduced(graph: Graph, k: int) -> bool:
    readers = [OPS[graph.nodes[u].op] for v in graph.outs(k) for u in graph.uses[v]]
    return bool(readers) and all(op.reduce and not op.product for op in readers)


def _is_known(graph: Graph, node: Node) -> bool:
    """Whether it is known where each element is, on this worker."""
    (spec,) = node.specs
    specs = [graph.specs[v] for v in node.inputs]
    if not all(map(_is_plain, (*specs, spec))) or spec.dtype.kind not in "biuf":
        return False
    rule = OPS[node.op].indices(tuple(specs), node.specs, node.kw)
    if rule.chunked or rule.parts or any(d is None for dims in rule.ins for d in dims):
        return False
    moved = {c for dims in rule.ins for d in dims if isinstance(d, Window) for c in d.labels}
    for s, dims in zip((*specs, spec), (*rule.ins, *rule.outs), strict=True):
        assert s.layout is not None
        cut = {d for d, c in enumerate(dims) if isinstance(c, Window) or c in moved}
        if not cut.isdisjoint(s.layout.splits):
            return False
    if (pieces_of := OPS[node.op].moves.pieces) is None:
        return True
    pieces = pieces_of([s.shape for s in specs], **plain(node.kw))
    return pieces is not None and not any(p.places or p.picks for p in pieces)


def _labelled(graph: Graph, views: Sequence[int], labels: Labels) -> tuple[Labels, list[int]]:
    """A value's views, up to one whose indices are others than its operand's: what that gives is read
    as it is."""
    made, found = labels, list[int]()
    for p in views:
        before = made if found else Labels(list(labels.extents), dict(labels.dims))
        fit = _fit(graph, p, before)
        if fit is None:
            made, found = labels, []
        else:
            before.take(fit, graph.outs(p))
            made, found = before, [*found, p]
    return made, found


def _looped(node: Node, fit: Fit) -> set[int]:
    """The labels that a node's own loops run over."""
    if OPS[node.op].moves.places == "read":
        return {x for dims in fit.outs for x in dims if x is not None}
    return {*fit.labels}


def _is_inside(graph: Graph, node: Node, group: Nested) -> bool:
    """Whether places are in bounds, or can be looked at before the kernel begins."""
    v = node.inputs[1]
    v = next((u for u in (v, *_behind(graph, v)) if graph.producers[u] < 0 or
              not op_of(graph.nodes[graph.producers[u]].op).rearranges), v)  # fmt: skip
    maker = graph.producers[v]
    if maker < 0 or v not in group.made:
        return maker < 0 or not op_of(graph.nodes[maker].op).element.source
    found = graph.nodes[maker]
    if not gives_places(graph, found):
        return False
    _, axes = combines(graph, found)
    most = math.prod(graph.specs[found.inputs[0]].shape[a] for a in axes)
    return most <= graph.specs[node.inputs[0]].shape[node.kw["axis"]]


def checks_of(graph: Graph, group: Nested) -> list[Node]:
    """List the checks before a kernel begins: whether the operands that say where something
    is gathered are places in it."""
    found: dict[tuple[int, int], Node] = {}
    for k in group.members:
        node = graph.nodes[k]
        if not OPS[node.op].moves.places:
            continue
        x, v = node.inputs[:2]
        size, layout = graph.specs[x].shape[node.kw["axis"]], graph.specs[x].layout
        assert layout is not None
        spec = Spec((), bool_, Layout.whole(layout.mesh))
        params = (("name", node.op), ("size", size))
        for u in (v, *_behind(graph, v)):
            if u in group.operands:
                found.setdefault((u, size), Node("check_bounds", (u,), params, (spec,), node.line))
    return list(found.values())


def _is_source(graph: Graph, v: int) -> bool:
    k = graph.producers[v]
    return k >= 0 and bool(op_of(graph.nodes[k].op).element.source)


def _fit(
    graph: Graph, k: int, labels: Labels, fixed: Collection[int | None] | None = None
) -> Fit | None:
    node = graph.nodes[k]
    specs = [graph.specs[v] for v in node.inputs]
    for v in node.inputs:
        p = graph.producers[v]
        if (
            p >= 0
            and op_of(graph.nodes[p].op).element.source == "index"
            and _is_split(graph.nodes[p])
        ):
            return None
    rule, turns = _rules(node, tuple(specs))
    return labels.fit(rule, node.inputs, specs, node.specs, fixed, turns)


@lru_cache(1 << 12)
def _rules(node: Node, specs: tuple[Spec, ...]) -> tuple[Indices, Mapping[str, int] | None]:
    """A node's indices and the extents of its windows, for all groups that it may join."""
    return indices_of(node, specs), turns_of(node, specs)


def _is_split(iota: Node) -> bool:
    layout = iota.specs[0].layout
    return layout is None or iota.kw["axis"] in layout.splits


def _is_behind(node: Node, group: Nested, fit: Fit, labels: Labels, lost: frozenset[int]) -> bool:
    """Whether a node's elements are made of what blocks of a GPU have reduced together, one of each; and there
    is much of that."""
    if not group.blocks or not lost or not OPS[node.op].scalar or group.consumed or group.slid:
        return False
    overs = group.overs_now(labels)
    if group.common is None or not is_one_reduction(labels, overs, labels.now(group.common)):
        return False
    over, kept = long_labels(labels, overs)
    extents = [*labels.extents, *fit.extents]
    own = {x for x in fit.labels if extents[x] > 1}
    if not own <= kept or over != frozenset(x for x in lost if labels.extents[x] > 1):
        return False
    return over <= {*largest_labels(labels)} and would_idle(
        labels, over, kept, group.blocks, UNIT["elements"]
    )


def _is_worthwhile(
    graph: Graph, node: Node, fit: Fit, common: frozenset[int], labels: Labels, lines: int
) -> bool:
    """Whether enough rows are left, of which each fits into cache."""
    extents = labels.extents
    rows = max((extents[x] for x in common), default=0)
    if rows < ROWS:
        return False
    best = max(common, key=lambda x: extents[x])
    looped = _looped(node, fit)
    others = [extents[x] for x in looped if x != best]
    libraries = math.prod(others) > PRODUCT or max(others, default=0) > MAX_FIXED_EXTENT
    if OPS[node.op].product and libraries and not slides(graph, node):
        return False
    parallel = [extents[x] for x in common - fit.reduced]
    if OPS[node.op].element.running and math.prod(parallel) < lines:
        return False
    row = math.prod(extents[x] for x in looped) // max(rows, math.prod(parallel))
    return row * node.specs[0].dtype.itemsize <= MAX_ROW_BYTES
