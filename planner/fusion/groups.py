"""Which elementwise operations and reductions of rows become one kernel, and that kernel as a node.

An operation joins the kernel of one that it reads, if nothing else that it reads waits for that
(`convex.py`); and the latest kernel over the same elements, if that then waits for nothing that stands
behind it. Kernels stand where their first operation stood, or as soon as their operands exist."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import DType, is_float
from ostinato.ops.jit.labels import combines, reads_elsewhere
from ostinato.ops.jit.loops import COUNTED
from ostinato.ops.jit.registers import order_for_registers
from ostinato.ops.jit.values import can_combine
from ostinato.planner.passes.order import meetings, schedule
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import inline, reading, reorder

from .convex import LATER, NOW, Group, Space, Unit, Units
from .joins import BOXES, JOINED, boxes, cuts_of, work_in
from .sinking import sink

NODES, OPERANDS = 128, 16  # of one kernel at the most
G = TypeVar("G", bound=Unit)
# an op's name and dtypes, and its result's
Lowers = Callable[[str, tuple[DType, ...], DType], bool]


def groups_of(
    graph: Graph,
    target: Target,
    alone: Container[int],
    lowers: Lowers,
    products: Mapping[int, Container[int] | None] = MappingProxyType({}),
    late: Container[int] = (),
    most: int = NODES,
    sinks: bool = False,
) -> list[Group]:
    """`alone`: operations that stay by themselves. `products` begin kernels, with what may follow in
    these, if that is not all; the casts of their right matrices that are `late` are a part of them.
    Numbers of elements that only such operations read are made by each of their kernels. A kernel may
    have `most`, if registers are enough. `sinks`: they go to the kernels that read them."""

    def joins(k: int) -> bool:
        return fits(graph, k, lowers) and k not in late and k not in alone

    def counting(k: int) -> bool:
        return joins(k) and graph.nodes[k].op != JOINED

    found: dict[Group, None] = {}
    latest: dict[Space, Group] = {}
    home: dict[int, Group] = {}  # of values
    units = Units(graph, target.workers)
    for k, node in enumerate(graph.nodes):
        product = k in products and k not in alone
        rows = 0 if product or k in alone else rows_of(graph, node, lowers)
        v = graph.starts[k]
        counts = node.op == COUNTED and v not in graph.outputs and all(map(counting, graph.uses[v]))
        looks = _is_part(node) and _stays_view(graph, k, lowers)
        if counts or looks or not (product or joins(k)):
            units.alone(k)
            continue
        spec = graph.specs[node.inputs[0]] if rows else node.specs[0]
        space = spec.shape, spec.layout
        moves = node.op == JOINED  # and so reads what is in memory
        read = [v for v in node.inputs if not _is_constant(graph, v)]
        read = read if moves else [_behind_count(graph, v) for v in read]
        near = [home[v] for v in node.inputs if v in home and home[v].space == space and not moves]
        near += [latest[space]] if space in latest else []
        near = [g for g in near if not rows or g.rows in (0, rows)]
        near = [g for g in near if (rows <= 1 or not g.product) and not product]
        near = [g for g in near if g.behind is None or k in g.behind]
        own = Group(space=space, product=product, behind=products.get(k), rows=rows)
        own.cuts = cuts_of(node) if node.op == JOINED else frozenset()
        own.numbered = _is_numbered(graph, node)
        near = [g for g in near if _suit(graph, target, (node,), own, g)]
        near.sort(key=lambda g: g.behind is None)
        near = [g for g in near if len(g.members) < most]
        group = _joined(read, near, {} if moves else home, units)
        if group is None:
            group = own
            found[group] = None
            if not product:
                latest[space] = group
        if product:
            if (rounded := graph.producers[node.inputs[1]]) in late:
                units.merge(group, units.of[rounded])
                group.members.append(rounded)
                read[1:] = graph.nodes[rounded].inputs
            group.place = min(graph.uses[graph.starts[k]], default=k)  # where it is read first
        group.members.append(k)
        group.cuts |= own.cuts
        group.numbered |= own.numbered
        group.work += _work(graph, node)
        group.work += sum(_behind_count(graph, u) != u for u in node.inputs if not moves)
        group.operands |= dict.fromkeys(v for v in read if moves or home.get(v) is not group)
        units.join(k, group)
        if rows:
            group.rows = rows
        else:
            home[graph.starts[k]] = group
        for other in dict.fromkeys(home[v] for v in node.inputs if v in home):
            fits_both = len(other.members) + len(group.members) <= most
            if other in found and fits_both and _absorbs(graph, target, group, other, home, units):
                del found[other]
                if latest[space] is other:
                    latest[space] = group
    return _finished(graph, [*found], sinks)


def _finished(graph: Graph, groups: Sequence[Group], sinks: bool) -> list[Group]:
    left = sink(graph, groups) if sinks else groups
    return [part for g in left for part in divided(graph, g)]


def _joined(
    operands: Sequence[int], near: Sequence[Group], home: Mapping[int, Group], units: Units
) -> Group | None:
    """The group for an operation: one that needs not wait, or one that it reads."""
    later: list[Group] = []
    for group in near:
        outside = [v for v in operands if home.get(v) is not group]
        stranger = len(outside) == len(operands) and group.operands.keys().isdisjoint(operands)
        # what has but its shape may need more later, and what another product waits for is made there
        if stranger and group.product:
            continue
        if len({*group.operands, *outside}) > (OPERANDS // 2 if stranger else OPERANDS):
            continue
        joins = units.joins(group, outside)
        if joins == NOW:
            return group
        if joins == LATER and len(outside) < len(operands):
            later.append(group)
    return later[0] if later else None


def _absorbs(
    graph: Graph, target: Target, group: Group, other: Group, home: dict[int, Group], units: Units
) -> bool:
    """Whether a group takes in another one that it reads."""
    if other is group or other.product or group.space != other.space:
        return False
    if group.product and not _leads_to(graph, other, group):
        return False
    if not _suit(graph, target, [graph.nodes[k] for k in other.members], other, group):
        return False
    members = [*other.members, *group.members]
    read = (group, other) if group.product else (other, group)  # a product's operands come first
    operands = [v for g in read for v in g.operands if home.get(v) is not other]
    if len({*operands}) > OPERANDS:
        return False
    if 0 < min(group.rows, other.rows) != max(group.rows, other.rows):
        return False
    values = {v for k in other.members for v in graph.outs(k)}
    moved = (graph.nodes[k].inputs for k in group.members if graph.nodes[k].op == JOINED)
    if not values.isdisjoint(v for ins in moved for v in ins):
        return False
    if not values.isdisjoint(operands) or not units.merges(group, other):
        return False
    home.update((v, group) for v in values if home.get(v) is other)
    group.members, group.operands = sorted(members), dict.fromkeys(operands)
    group.work, group.rows = group.work + other.work, max(group.rows, other.rows)
    group.cuts, group.numbered = group.cuts | other.cuts, group.numbered or other.numbered
    units.merge(group, group, other)
    return True


def _leads_to(graph: Graph, other: Group, product: Group) -> bool:
    """Whether elements that are made for a product's kernel alone may be made in it."""
    made = {v for k in other.members for v in graph.outs(k)}
    inside = {*other.members, *product.members}
    behind = product.behind is None or all(k in product.behind for k in other.members)
    alone = made.isdisjoint(graph.outputs) and all(inside.issuperset(graph.uses[v]) for v in made)
    multiplied = [*product.operands][:2]
    return behind and alone and not other.rows and made.isdisjoint(multiplied)


def divided(graph: Graph, group: Group, registers: int = 128) -> list[Group]:
    """A long kernel as several where its values do not fit into registers of 4 bytes: cut where few of these
    wait."""
    if len(group.members) <= NODES:
        return [group]
    group.members, taken = order_for_registers(graph, group.members)
    if max(taken) <= registers:
        return [group]
    parts, first = [], 0
    while first < len(group.members):
        begin, end = first + NODES // 2, first + NODES
        rest = len(group.members) <= end
        cut = len(group.members) if rest else min(range(begin, end), key=taken.__getitem__) + 1
        parts.append(replace(group, members=group.members[first:cut]))
        first = cut
    for part in parts:
        made = {v for k in part.members for v in graph.outs(k)}
        read = [v if graph.nodes[k].op == JOINED else _behind_count(graph, v)
                for k in part.members for v in graph.nodes[k].inputs]  # fmt: skip
        part.operands = {v: None for v in read if v not in made and not _is_constant(graph, v)}
        part.start = min(part.members)
        part.rows = group.rows * any(op_of(graph.nodes[k].op).reduce for k in part.members)
    return parts


def _suit(graph: Graph, target: Target, nodes: Sequence[Node], one: Group, other: Group) -> bool:
    """Whether a kernel may have both, of which one has these nodes: what is cut into boxes knows no numbers
    of elements and is behind no product, and its reductions leave terms that have to be as exact."""
    cuts = one.cuts | other.cuts
    if not cuts:
        return True
    if one.numbered or other.numbered or one.product or other.product or boxes(cuts) > BOXES:
        return False
    reduced = [*nodes, *(graph.nodes[k] for k in other.members)] if one.rows or other.rows else []
    sums = [(n, r) for n in reduced if (r := OPS[n.op].reduce)]
    differ = any(
        _is_half(n.specs[0].dtype) or r.element != "{0}" or "axes" not in n.kw for n, r in sums
    )
    return not differ and not (reduced and target.numerics == "any-workers")


def _is_half(dtype: DType) -> bool:
    return is_float(dtype) and dtype.itemsize == 2


def _is_numbered(graph: Graph, node: Node) -> bool:
    if node.op == JOINED:
        return False
    return OPS[node.op].element.draws or any(_behind_count(graph, v) != v for v in node.inputs)


def _is_constant(graph: Graph, v: int) -> bool:
    k = graph.producers[v]
    return k >= 0 and graph.nodes[k].op == "constant"


def _behind_count(graph: Graph, v: int) -> int:
    """Count what a kernel reads to have this value."""
    k = graph.producers[v]
    return graph.nodes[k].inputs[0] if k >= 0 and graph.nodes[k].op == COUNTED else v


def is_gemm(graph: Graph, node: Node, least: int) -> bool:
    """Whether a node multiplies stacks of matrices, each row with more than so many numbers, and none of
    the workers leaves an addend."""
    product = OPS[node.op].product if node.op in OPS else None
    if product is None or not product.gemm:
        return False
    specs = [*(graph.specs[v] for v in node.inputs), *node.specs]
    if any(s.ndim < 2 or s.layout is None for s in specs):
        return False
    left, _, made = (s.layout for s in specs if s.layout is not None)
    k, n = left.largest(specs[0].shape)[-1], made.largest(specs[2].shape)[-1]
    return not made.partial_axes and n * k > least and node.inputs[0] != node.inputs[1]


def is_elementwise(graph: Graph, node: Node, lowers: Lowers) -> bool:
    if node.op == JOINED:
        return True
    if len(node.specs) != 1 or node.op not in OPS or not OPS[node.op].scalar:
        return False
    spec = node.specs[0]
    if spec.size == 0 or spec.layout is None:
        return False
    return lowers(node.op, tuple(graph.specs[v].dtype for v in node.inputs), spec.dtype)


def fits(graph: Graph, k: int, lowers: Lowers) -> bool:
    """Whether kernels can do it, if it is no product."""
    node = graph.nodes[k]
    return is_elementwise(graph, node, lowers) or rows_of(graph, node, lowers) > 0


def _work(graph: Graph, node: Node) -> int:
    """How many simple operations it is for an element."""
    if OPS[node.op].element.draws:
        return 10
    if node.op == JOINED:
        return work_in(node)
    pairs = any(graph.specs[v].dtype.kind == "c" for v in node.inputs)
    return 0 if _is_part(node) else 4 if pairs else 1


def _is_part(node: Node) -> bool:
    """Whether it is the real or the imaginary part of its operand, which is only looked at elsewhere."""
    return bool(OPS[node.op].view and OPS[node.op].scalar)


def _stays_view(graph: Graph, k: int, lowers: Lowers) -> bool:
    """Whether a part of complex numbers is better looked at: kernels neither make these nor read anything
    else of them, or do not read the part."""

    def able(j: int) -> bool:
        return fits(graph, j, lowers)

    (v,), (made,) = graph.nodes[k].inputs, graph.outs(k)
    maker = graph.producers[v]
    if maker >= 0 and able(maker):
        return False
    return not any(map(able, graph.uses[made])) or not any(able(j) for j in graph.uses[v] if j != k)


def rows_of(graph: Graph, node: Node, lowers: Lowers) -> int:
    """Over how many of the last axes a node reduces; 0 if kernels cannot."""
    if op_of(node.op).reduce is None or len(node.inputs) != 1 or len(node.specs) != 1:
        return 0
    spec, made = graph.specs[node.inputs[0]], node.specs[0]
    kind, axes = combines(graph, node)
    last = tuple(range(spec.ndim - len(axes), spec.ndim))
    if not axes or axes != last or spec.layout is None:
        return 0
    if spec.size == 0 or not can_combine(kind, made.dtype):
        return 0
    return len(axes) if lowers(node.op, (spec.dtype,), made.dtype) else 0


# -- kernels ---------------------------------------------------------------------------------
class Made(NamedTuple):
    """A group as a node over its operands, the values that are read of it, and what has to be looked at
    before."""

    node: Node
    values: list[int]
    checks: Sequence[Node] = ()


def with_kernels(
    graph: Graph,
    target: Target,
    groups: Sequence[G],
    kernel: Callable[[Graph, G, Container[int]], Made],
    results: Container[int] = (),
) -> Graph:
    """Each group as one node; the views, the numbers and the counts that only kernels read are gone. `results`:
    views that are results of their groups, too."""
    views = {k for g in groups for k in g.members if reads_elsewhere(graph.nodes[k])}
    looks = {k for k in views if k not in results}
    gone = {k for g in groups for k in g.members if op_of(graph.nodes[k].op).computes} - looks
    read = {v for g in groups for v in g.operands} | {*graph.outputs}
    for k, node in reversed([*enumerate(graph.nodes)]):
        unseen = node.op == COUNTED or k in looks or not op_of(node.op).computes
        if unseen and read.isdisjoint(graph.outs(k)):
            gone.add(k)
        if k not in gone:
            read.update(node.inputs)
    first: dict[int, list[G]] = {}
    for g in groups:
        first.setdefault(g.start, []).append(g)
    nodes: list[Node] = []
    made: list[int] = []  # the values of nodes, by their numbers in the graph
    checked: dict[Node, int] = {}
    for k, node in enumerate(graph.nodes):
        for g in first.get(k, ()):
            one, values, checks = kernel(graph, g, read)
            for check in checks:
                if check not in checked:
                    checked[check] = len(graph.specs) + len(checked)
                    nodes.append(check)
                    made.append(checked[check])
            ins = (*one.inputs, *(checked[c] for c in checks))
            nodes.append(reading(one, ins))
            made += values
        if k not in gone:
            nodes.append(node)
            made += graph.outs(k)
    number = {v: n for n, v in enumerate((*range(len(graph.inputs)), *made))}
    nodes = [reading(n, [number[v] for v in n.inputs]) for n in nodes]
    outputs = tuple([number[v] for v in graph.outputs])
    raw = Graph(graph.inputs, tuple(nodes), outputs)
    return reorder(raw, schedule(raw, meetings(raw, target.workers)))


def kernel_of(graph: Graph, group: Group, read: Container[int]) -> Made:
    kind = f"fused{'_matmul' * group.product}{'_rows' * (group.rows > 0)}"
    joins = any(graph.nodes[k].op == JOINED for k in group.members)
    kind = "fused_joins" if joins and not group.rows else kind
    return node_of(graph, group, read, kind)


def node_of(
    graph: Graph,
    group: Unit,
    read: Container[int],
    kind: str,
    checks: Sequence[Node] = (),
    **params: Any,
) -> Made:
    """The operations of a unit as the body of a node."""
    operands = list(group.operands)
    body = Builder([*(graph.specs[v] for v in operands), *(c.specs[0] for c in checks)])
    known = {v: n for n, v in enumerate(operands)}
    made: list[int] = []
    for k in group.members:
        node = graph.nodes[k]
        for v in node.inputs:
            if v not in known:  # a number, or those of elements
                number = graph.nodes[graph.producers[v]]
                ins = [known[u] for u in number.inputs]
                known[v] = body.add(number.op, ins, number.params, number.specs)[0]
        ins = [known[u] for u in node.inputs]
        if node.op == JOINED:
            outs = tuple(inline(body, node.kw["body"], ins))
        else:
            outs = body.add(node.op, ins, node.params, node.specs, node.line)
        known.update(zip(graph.outs(k), outs, strict=True))
        if not (op_of(node.op).rearranges or reads_elsewhere(node)):
            made += [v for v in graph.outs(k) if v in read]
    given = {"body": body.graph([known[v] for v in made]), **params}
    specs, line = tuple([graph.specs[v] for v in made]), graph.nodes[group.members[-1]].line
    return Made(Node(kind, tuple(operands), tuple(given.items()), specs, line), made, checks)
