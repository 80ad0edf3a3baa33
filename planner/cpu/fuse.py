"""Elementwise operations over the same elements, and reductions of their rows, become one kernel.

before                                  after
%1 = multiply(%0, 2) : float32[n]       %1 = fused(%0; body={
%2 = exp(%1) : float32[n]                   %1 = multiply(%0, 2)
%3 = add(%2, %0) : float32[n]               ... })
return %3                               return %1

A kernel stands where its first operation stood, so an operation may join one if all else that it
reads exists by then. This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec, float32
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.jit.scalar import can_cast, can_lower, has_own_bits
from ostinato.ops.cpu.jit.values import can_add
from ostinato.ops.cpu.kernels.gemm_epilogue import BEGINS, ENOUGH, multiplies
from ostinato.ops.cpu.kernels.gemm_tiles import form_of
from ostinato.ops.cpu.loops.labels import (
    GATHERS,
    MOMENTS,
    POSITIONS,
    PRODUCTS,
    SHORT,
    SOURCES,
    SUMS,
    VIEWS,
    analyse_in_order,
)
from ostinato.ops.expressions import cast
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import in_order_of, map_bodies, needed

from .fuse_stages import PRODUCT, Nested, checks_of, has_stages, nests, small_first
from .narrow_operands import uncast
from .random import draw_in_kernels
from .symmetric import squared_by

WORTH = 16384  # elements times operations that are worth kernels
BESIDE = 2048  # and that are worth one more, in a plan that has some, or has large reductions
CALL = 64  # elements that a call in a loop counts as, at the least
UNKNOWN = 100  # turns of a loop that ends when it ends
LARGE = 4096  # elements, where the bits must not depend on what is beside
NODES, OPERANDS = 128, 16  # of one kernel at the most
NARROWEST = 16  # columns of a product in blocks of rows
HALVED = 128  # terms from which half of a symmetric product outweighs what is done with the whole
DEEPEST = 1024  # terms of its sums; beyond, passing over the product once more costs little


Space = tuple[Shape, Layout | None]  # the elements that an operation works on


@dataclass(slots=True)
class _Group:
    start: int
    space: Space
    rows: int = 0  # how many of the last axes are reduced
    product: bool = False  # whether it begins with a product
    work: int = 0  # operations
    members: list[int] = field(default_factory=list)
    operands: dict[int, None] = field(default_factory=dict)  # in order


def fuse(graph: Graph, target: Target, larger: bool = True, turns: int = 1) -> Graph:
    """The pass; nothing changes where kernels cannot be generated. Without the `larger` ones none has
    stages or a product. `turns`: how often all of it is done.
    """
    graph = _looks_early(draw_in_kernels(graph, target, turns))
    if larger:
        graph = _round_late(graph, target)
    nested: list[Nested] = []
    if larger and target.numerics != "any-workers" and has_stages(graph, turns):
        graph = small_first(graph)
        nested = _worthy_nests(graph, target, set(), turns)
        if freed := _behind_products(graph, target, nested):
            nested = _worthy_nests(graph, target, freed, turns)
    alone = {k for g in nested for k in g.members}
    if not larger:
        alone |= {k for k, n in enumerate(graph.nodes) if n.op in BEGINS}
    groups = _worthy_groups(graph, target, alone, nested, turns)
    if (groups or nested) and why_not():
        groups, nested = [], []
    if not groups and not nested and not any(True for n in graph.nodes for _ in n.subgraphs()):
        return graph
    first: dict[int, list[_Group | Nested]] = {}
    groups = sorted(groups, key=lambda g: not g.product)  # products first, which others may read
    everything: list[_Group | Nested] = [*groups, *nested]
    for group in everything:
        first.setdefault(group.start, []).append(group)
    inside = {k for g in groups for k in g.members}
    inside |= _gone(graph, inside, nested)
    builder = Builder(graph.inputs)
    values: dict[int, int] = {v: v for v in range(len(graph.inputs))}
    for k, node in enumerate(graph.nodes):
        for g in first.get(k, ()):
            _emit(graph, g, inside, builder, values)
        if k in inside:
            continue
        node = map_bodies(node, partial(fuse, target=target, turns=turns * _turns(node)))
        made = builder.add(
            node.op, [values[v] for v in node.inputs], node.params, node.specs, node.line
        )
        values.update(zip(graph.outs(k), made, strict=True))
    return _in_order(builder, [values[v] for v in graph.outputs])


def _looks_early(graph: Graph) -> Graph:
    """What only looks at a value comes behind what makes it, so that kernels that read it may begin there."""
    place = [-1] * len(graph.inputs)  # of the operation that each value is made, or looked at, from
    keys = []
    for k, node in enumerate(graph.nodes):
        looks = node.op in OPS and OPS[node.op].only_looks and len(node.inputs) == 1
        keys.append(place[node.inputs[0]] if looks else k)
        place += [keys[k]] * len(node.specs)
    order = sorted(range(len(keys)), key=lambda k: (keys[k], keys[k] != k, k))
    return graph if order == list(range(len(order))) else in_order_of(graph, order)


def _in_order(builder: Builder, outputs: Sequence[int]) -> Graph:
    """As it was built: collectives begin and end where they did."""
    return Graph(builder.inputs, tuple(builder.nodes), tuple(outputs))


def _gone(graph: Graph, flat: set[int], nested: Sequence[Nested]) -> set[int]:
    """What is nowhere but in kernels: their operations, and the views and numbers that only they
    read.
    """
    home = {k: g for g in nested for k in g.members}
    found = {k for k in home if graph.nodes[k].op not in VIEWS}
    for k in reversed(range(len(graph.nodes))):
        node, v = graph.nodes[k], graph.starts[k]
        if node.op not in (*SOURCES, *VIEWS) or v in graph.outputs or not graph.uses[v]:
            continue
        members = {*home[k].members} if node.op in VIEWS and k in home else home
        if node.op in VIEWS and k not in home:
            continue
        if all(
            (u in found and u in members) or (u in flat and node.op == "constant")
            for u in graph.uses[v]
        ):
            found.add(k)
    return found


# -- what goes together --------------------------------------------------------------------
def _library_functions(graph: Graph, target: Target) -> set[int]:
    """Functions that are to be NumPy's."""
    if target.math != "libm":
        return set()
    return {k for k, n in enumerate(graph.nodes) if n.op in OPS and has_own_bits(n.op)}


def _turns(node: Node) -> int:
    """How often a node does what is inside of it."""
    if node.op == "while":
        return int(node.kw["most"]) if node.kw["most"] >= 0 else UNKNOWN
    return int(node.kw["trips"]) if node.op == "loop" else 1


def _work(size: int, turns: int) -> int:
    """Elements, where each call of NumPy's in a loop counts as some."""
    return size if turns == 1 else max(size, CALL) * turns


def _worthy_nests(graph: Graph, target: Target, alone: set[int], turns: int) -> list[Nested]:
    """Those that do more than flat kernels can, and enough of it."""
    found = []
    for g in nests(graph, alone | _library_functions(graph, target)):
        nodes = [graph.nodes[k] for k in g.members]
        spaces = [
            [graph.specs[v].size for v in (*n.inputs[n.op in GATHERS :], *graph.outs(k))]
            for k, n in zip(g.members, nodes, strict=True)
        ]
        work = sum(_work(max(sizes), turns) for sizes in spaces)
        more = (*POSITIONS, *PRODUCTS, *GATHERS, *MOMENTS)
        plain = not g.consumed and all(
            n.op not in more and (n.op not in SUMS or _has_rows(graph, n)) for n in nodes
        )
        one = sum(n.op not in VIEWS for n in nodes) == 1
        one = one and nodes[-1].op in (*PRODUCTS, *GATHERS)
        pairs = _is_of_pairs(g) and not any(_reads_product(graph, n, target) for n in nodes)
        if (not plain or pairs) and not one and work >= BESIDE and _can_be(graph, g):
            found.append(g)
    return found


def _reads_product(graph: Graph, node: Node, target: Target) -> bool:
    """Whether it could be done with the rows of a product, as those are made."""
    makers = [graph.nodes[k] for v in node.inputs if (k := graph.producers[v]) >= 0]
    return any(_is_product(graph, n, target) for n in makers)


def _behind_products(graph: Graph, target: Target, nested: Sequence[Nested]) -> set[int]:
    """Operations of nests that are better done where their product is made, since their values go
    to memory anyway.
    """
    inside = {k for g in nested for k in g.members}
    products = {k for k, n in enumerate(graph.nodes) if _is_product(graph, n, target)} - inside
    found: set[int] = set()
    for g in nested:
        found |= _ways_to_memory(graph, g, products, inside)
        for k in g.members:
            node = graph.nodes[k]
            space = [(s.shape, s.layout) for s in node.specs]
            follows = any(
                graph.producers[v] in products | found
                and [(graph.specs[v].shape, graph.specs[v].layout)] == space
                for v in node.inputs
            )
            (v, *_) = graph.outs(k)
            stays = v not in graph.outputs and inside.issuperset(graph.uses[v])
            if follows and not stays and _is_elementwise(graph, node):
                found.add(k)
    return found


def _ways_to_memory(
    graph: Graph, group: Nested, products: Container[int], inside: Container[int]
) -> set[int]:
    """Of a nest what leads from a product to a value that goes to memory, by elements of the product
    and of what is outside.
    """
    chain: dict[int, bool] = {}  # whether a value of those behind goes there
    for k in group.members:
        node, shape = graph.nodes[k], graph.nodes[k].specs[0].shape
        makers = [graph.producers[v] for v in node.inputs]
        follows = any(
            (m in products or m in chain) and graph.specs[v].shape == shape
            for m, v in zip(makers, node.inputs, strict=True)
        )
        others = all(m in chain or m not in inside for m in makers)
        if follows and others and _is_elementwise(graph, node):
            (v, *_) = graph.outs(k)
            chain[k] = v in graph.outputs or any(u not in inside for u in graph.uses[v])
    for k in reversed(chain):
        chain[k] = chain[k] or any(chain.get(u, False) for u in graph.uses[graph.outs(k)[0]])
    return {k for k, leads in chain.items() if leads}


def _is_product(graph: Graph, node: Node, target: Target) -> bool:
    """Whether blocks of a product's rows may be followed at once by what is behind it."""
    product = OPS[node.op].product
    if product is None or not product.gemm or target.numerics == "any-workers":
        return False
    specs = [*(graph.specs[v] for v in node.inputs), *node.specs]
    if specs[2].dtype != float32 or specs[0].dtype != specs[1].dtype or why_not():
        return False
    if not multiplies(specs[0].dtype) or any(s.ndim < 2 or s.layout is None for s in specs):
        return False
    layouts = [s.layout for s in specs if s.layout is not None]
    if layouts[2].partial_axes or node.inputs[0] == node.inputs[1]:
        return False
    (*batches, m, n), k = layouts[2].largest(specs[2].shape), layouts[0].largest(specs[0].shape)[-1]
    rows = m * math.prod(batches)
    if k >= HALVED and squared_by(graph, node) >= 0:
        return False
    enough = rows >= ENOUGH and n >= NARROWEST
    return enough and n * k > PRODUCT and k <= DEEPEST


def _round_late(graph: Graph, target: Target) -> Graph:
    """Products that round operands of the plan as they read them: each has a cast of its own, which
    will be a part of it. What is computed on the way is rounded where it is made.
    """
    builder, values, changed = Builder(graph.inputs), list(range(len(graph.inputs))), False
    for node in graph.nodes:
        ins = [values[v] for v in node.inputs]
        rounds = node.op == "wide_matmul"
        source, views = uncast(graph, node.inputs[1]) if rounds else (0, None)
        if views is not None and _may_round(graph, node, source, target):
            at, layout = values[source], graph.specs[source].layout
            for view in views:
                layout = view.specs[0].layout
                spec = Spec(view.specs[0].shape, float32, layout)
                (at,) = builder.add(view.op, [at], view.params, (spec,), view.line)
            spec = graph.specs[node.inputs[1]]
            ins[1] = cast(builder, at, spec, node.line)
            changed = True
        values += builder.add(node.op, ins, node.params, node.specs, node.line)
    return needed(builder, [values[v] for v in graph.outputs]) if changed else graph


def _may_round(graph: Graph, node: Node, source: int, target: Target) -> bool:
    dtypes = [graph.specs[v].dtype for v in node.inputs]
    if graph.producers[source] >= 0 or graph.specs[source].dtype != float32:
        return False
    form = form_of(dtypes[0], right=float32)
    even = graph.specs[node.inputs[0]].shape[-1] % 2 == 0
    return form is not None and even and _is_product(graph, node, target)


def _rounded_late(graph: Graph, alone: Container[int]) -> set[int]:
    """The casts that are a part of products."""
    return {
        graph.producers[n.inputs[1]]
        for k, n in enumerate(graph.nodes)
        if n.op == "wide_matmul" and k not in alone and _is_rounded_late(graph, n.inputs[1])
    }


def _is_rounded_late(graph: Graph, v: int) -> bool:
    k = graph.producers[v]
    if k < 0 or not OPS[graph.nodes[k].op].converts or len(graph.uses[v]) > 1 or v in graph.outputs:
        return False
    source = graph.nodes[k].inputs[0]
    while (maker := graph.producers[source]) >= 0 and OPS[graph.nodes[maker].op].only_looks:
        source = graph.nodes[maker].inputs[0]
    return maker < 0 and graph.specs[source].dtype == float32


def _is_of_pairs(group: Nested) -> bool:
    """Whether rows of one operand meet those of another."""
    rows, dims = {*group.rows()}, group.labels.dims
    tables = [{*dims[v]} - {None} for v in group.operands]
    return any(len(own) > 1 and own & rows != rows for own in tables)


def _can_be(graph: Graph, group: Nested) -> bool:
    """Whether the values of a unit fit into cache, for operands in order."""
    node = _body(graph, group, {*group.members})
    specs = [*node.body.inputs, *(graph.specs[v] for v in node.made)]
    shapes = [s.layout.largest(s.shape) for s in specs if s.layout is not None]
    return analyse_in_order(node.body, node.dims, group.rows(), shapes) is not None


def _worthy_groups(
    graph: Graph, target: Target, alone: set[int], nested: Sequence[Nested], turns: int
) -> list[_Group]:
    """Without small ones, whose operations then stand by themselves, each in its place."""
    alone = alone | _library_functions(graph, target)
    begin = {k: g.start for g in nested for k in g.members if graph.nodes[k].op not in VIEWS}
    groups = _groups(graph, target, alone, begin)
    some = nested or any(_is_worth(g, target, WORTH, turns) for g in groups)
    least = min(BESIDE, WORTH) if some else WORTH
    if turns > 1 and sum(_work(math.prod(g.space[0]), turns) * g.work for g in groups) >= WORTH:
        least = 1  # as a turn needs no Python only if all of it are kernels
    while True:
        groups = _groups(graph, target, alone, begin)
        small = [k for g in groups if not _is_worth(g, target, least, turns) for k in g.members]
        if not small:
            return groups
        alone.update(small)


def _groups(
    graph: Graph, target: Target, alone: set[int], begin: Mapping[int, int]
) -> list[_Group]:
    found: list[_Group] = []
    latest: dict[Space, _Group] = {}
    home: dict[int, _Group] = {}  # of values
    ready = [-1] * len(graph.inputs)  # after which node each value exists
    late = _rounded_late(graph, alone)
    for k, node in enumerate(graph.nodes):
        if k in late:
            ready.append(k)
            continue
        product = None if k in alone else _product_group(graph, k, target, begin, found)
        if product is not None:
            found.append(product)
            home[len(ready)] = product
            ready.append(product.start)
            continue
        rows = 0 if k in alone else _rows(graph, node)
        if k in alone or not (rows or _is_elementwise(graph, node)):
            ready.extend([-1 if node.op == "constant" else begin.get(k, k)] * len(node.specs))
            continue
        spec = graph.specs[node.inputs[0]] if rows else node.specs[0]
        space = spec.shape, spec.layout
        near = [home[v] for v in node.inputs if v in home and home[v].space == space]
        near += [latest[space]] if space in latest else []
        outside = [v for v in node.inputs if not _is_constant(graph, v)]
        near = [g for g in near if not rows or g.rows in (0, rows)]
        near = [g for g in near if rows <= 1 or not g.product]
        joined = next((g for g in near if _may_join(outside, g, home, ready)), None)
        if joined is None:
            joined = latest[space] = _Group(k, space)
            found.append(joined)
        group = joined
        group.members.append(k)
        group.work += 10 if OPS[node.op].draws else 1
        group.operands |= dict.fromkeys(v for v in outside if home.get(v) is not group)
        if rows:
            group.rows = rows
        else:
            home[len(ready)] = group
        ready.append(group.start)
    return found


def _product_group(
    graph: Graph, k: int, target: Target, begin: Mapping[int, int], others: Sequence[_Group]
) -> _Group | None:
    """What may follow a product in its kernel, which stands where the product is read first."""
    node, (v, *_) = graph.nodes[k], graph.outs(k)
    if not graph.uses[v] or not _is_product(graph, node, target):
        return None
    rounded = _is_rounded_late(graph, node.inputs[1])
    start = min(begin.get(u, u) for u in graph.uses[v])
    if any(g.product and g.start == start for g in others):
        if not rounded:
            return None
        start = k
    space = node.specs[0].shape, node.specs[0].layout
    a, b = node.inputs
    if not rounded:
        return _Group(start, space, 0, True, 1, [k], dict.fromkeys(node.inputs))
    maker = graph.producers[b]
    operands = dict.fromkeys((a, graph.nodes[maker].inputs[0]))
    return _Group(start, space, 0, True, 1, [maker, k], operands)


def _may_join(
    operands: Sequence[int], group: _Group, home: dict[int, _Group], ready: Sequence[int]
) -> bool:
    outside = [v for v in operands if home.get(v) is not group]
    return (
        all(ready[v] < group.start for v in outside)
        and len(group.members) < NODES
        and len({*group.operands, *outside}) <= OPERANDS
    )


def _is_constant(graph: Graph, v: int) -> bool:
    k = graph.producers[v]
    return k >= 0 and graph.nodes[k].op == "constant"


def _is_elementwise(graph: Graph, node: Node) -> bool:
    if len(node.specs) != 1 or node.op not in OPS or not OPS[node.op].scalar:
        return False
    spec = node.specs[0]
    if spec.size == 0 or spec.layout is None or spec.layout.partial_axes:
        return False
    return can_lower(node.op, tuple(graph.specs[v].dtype for v in node.inputs), spec.dtype)


def _rows(graph: Graph, node: Node) -> int:
    """Over how many of the last axes a node reduces; 0 if kernels cannot."""
    if node.op not in SUMS:
        return 0
    spec, made = graph.specs[node.inputs[0]], node.specs[0]
    axes = node.kw["axes"]
    last = tuple(range(spec.ndim - len(axes), spec.ndim))
    if not axes or tuple(sorted(axes)) != last or spec.layout is None or spec.layout.partial_axes:
        return 0
    if spec.size == 0 or spec.dtype.kind == "c" or not can_add(made.dtype):
        return 0
    return len(axes) if can_cast((spec.dtype,), made.dtype) else 0


def _has_rows(graph: Graph, node: Node) -> bool:
    """Whether it reduces rows that are long enough for flat kernels."""
    terms = graph.specs[node.inputs[0]].size // max(node.specs[0].size, 1)
    return _rows(graph, node) > 0 and terms > SHORT


def _is_worth(group: _Group, target: Target, least: int, turns: int) -> bool:
    if group.product:
        return len(group.members) > 1
    size = math.prod(group.space[0])
    if target.numerics == "any-workers":
        return size >= LARGE
    return _work(size, turns) * group.work >= least


@dataclass(slots=True)
class _Made:
    """A group as the body of one node."""

    body: Graph
    made: list[int]  # the values that others read
    dims: tuple[tuple[int, ...], ...] = ()


def _emit(
    graph: Graph,
    group: _Group | Nested,
    gone: Container[int],
    builder: Builder,
    values: dict[int, int],
) -> None:
    """The group as one node."""
    found = _body(graph, group, gone)
    line = graph.nodes[group.members[-1]].line
    specs = [graph.specs[v] for v in found.made]
    params: dict[str, Any] = {"body": found.body}
    ins = [values[v] for v in group.operands]
    if isinstance(group, Nested):
        kind = "fused_nest"
        for c in checks_of(graph, group):
            ins += builder.add("in_bounds", [values[c.places]], c.params, [c.spec], c.node.line)
        params |= {"dims": found.dims, "rows": group.rows()}
    else:
        kind = f"fused{'_matmul' * group.product}{'_rows' * (group.rows > 0)}"
    outs = builder.add(kind, ins, params, specs, line)
    values.update(zip(found.made, outs, strict=True))


def _body(graph: Graph, group: _Group | Nested, gone: Container[int]) -> _Made:
    members = {k for k in group.members if k in gone}
    operands = list(group.operands)
    checks = list(checks_of(graph, group)) if isinstance(group, Nested) else []
    body = Builder([*(graph.specs[v] for v in operands), *(c.spec for c in checks)])
    known = {v: n for n, v in enumerate(operands)}
    made: list[int] = []
    for k in group.members:
        node = graph.nodes[k]
        for v in node.inputs:
            if v not in known:  # a number
                number = graph.nodes[graph.producers[v]]
                known[v] = body.add(number.op, (), number.params, number.specs)[0]
        ins = [known[u] for u in node.inputs]
        outs = body.add(node.op, ins, node.params, node.specs, node.line)
        known.update(zip(graph.outs(k), outs, strict=True))
        if node.op in VIEWS:
            continue
        made += [
            v
            for v in graph.outs(k)
            if v in graph.outputs or any(u not in members for u in graph.uses[v])
        ]
    dims: tuple[tuple[int, ...], ...] = ()
    if isinstance(group, Nested):
        labels = group.labels.dims
        dims = tuple(tuple(-1 if x is None else x for x in labels[v]) for v in operands)
        dims += ((),) * len(checks)
    return _Made(body.graph([known[v] for v in made]), made, dims)
