"""Elementwise operations over the same elements, and reductions of their rows, become one kernel.

before                                  after
%1 = multiply(%0, 2) : float32[n]       %1 = fused(%0; body={
%2 = exp(%1) : float32[n]                   %1 = multiply(%0, 2)
%3 = add(%2, %0) : float32[n]               ... })
return %3                               return %1

What goes together is decided in planner/fusion; here is what pays on a CPU, and what begins with a
product. This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from functools import partial

from ostinato.ops.array.expressions import cast
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import float32
from ostinato.ops.cpu.fused import STEPS, WITH_PRODUCT
from ostinato.ops.cpu.jit.lines import can_lower
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.kernels.gemm_epilogue import MIN_ROWS, multiplies
from ostinato.ops.cpu.kernels.gemm_tiles import gemm_key
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.loops.schedule import analyse_in_order
from ostinato.ops.jit.labels import reads_elsewhere
from ostinato.ops.jit.scalar import differs
from ostinato.planner.fusion.convex import Group
from ostinato.planner.fusion.counting import count_in_kernels, differs_by_part
from ostinato.planner.fusion.groups import (
    Made,
    fits,
    groups_of,
    is_elementwise,
    is_gemm,
    kernel_of,
    with_kernels,
)
from ostinato.planner.fusion.horizontal import components, form_of
from ostinato.planner.fusion.joins import gather_joins, spread_joins
from ostinato.planner.fusion.kernel_draws import draw_in_kernels
from ostinato.planner.fusion.narrow_operands import uncast
from ostinato.planner.fusion.stage_groups import (
    PRODUCT,
    Nested,
    count_apart,
    does_more,
    fits_by,
    has_stages,
    is_single,
    nest_of,
    worthy_nests,
)
from ostinato.planner.fusion.window_kernels import (
    reads_windows,
    with_copies,
    with_products,
    with_windows,
)
from ostinato.planner.layouts.costs import UNKNOWN
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import is_kernel, looked_at, map_bodies, replace, with_nodes

from .symmetric import squared_by

LARGER = ("fused_nest", STEPS, *WITH_PRODUCT)  # kernels that can come apart again
WORTH = 16384  # elements times operations that are worth kernels
BESIDE = 2048  # and that are worth one more, in a plan that has some, or has large reductions
OFTEN = 16  # kernels of one form, from which they are worth it, however small
CALL = 64  # elements that a call in a loop counts as, at the least
MIN_FUSED_ELEMENTS = 4096  # elements, where the bits must not depend on what is beside
NARROWEST = 16  # columns of a product in blocks of rows
HALVED = 128  # terms from which half of a symmetric product outweighs what is done with the whole
DEEPEST = 1024  # terms of its sums; beyond, passing over the product once more costs little


def fuse(graph: Graph, target: Target, larger: bool = True, turns: int = 1) -> Graph:
    """The pass; nothing changes where kernels cannot be generated. Without the `larger` ones none has
    stages or a product. `turns`: how often all of it is done."""
    if not why_not():
        graph = draw_in_kernels(graph, target, turns)
        graph = count_in_kernels(graph, can_lower, turns, differs_by_part)
    nested: list[Nested] = []
    if larger:
        graph = _round_late(graph, target)
        graph = graph if target.numerics == "any-workers" else with_products(graph, target)
        if target.numerics != "any-workers" and (
            has_stages(graph, turns) or reads_windows(graph, target)
        ):
            graph = with_copies(count_apart(graph, can_lower), target)
            graph, nested = with_windows(
                graph, target, lambda g: _worthy_nests(g, target, set(), turns)
            )
            if freed := _behind_products(graph, target, nested):
                nested = _worthy_nests(graph, target, freed, turns)
            if nested and not why_not():
                graph = with_kernels(graph, target, nested, _kernel)
    if not why_not():
        graph = count_in_kernels(graph, can_lower, turns)
        graph = gather_joins(graph, partial(fits, graph, lowers=can_lower))
    alone = set() if larger else {k for k, n in enumerate(graph.nodes) if op_of(n.op).product}
    groups = _worthy_groups(graph, target, alone, bool(nested), turns)
    if groups and not why_not():
        graph = with_kernels(graph, target, groups, _kernel)
    graph = spread_joins(graph)

    def inside(node: Node) -> Node:
        return map_bodies(node, partial(fuse, target=target, turns=turns * turns_of(node)))

    return with_nodes(graph, [n if is_kernel(n) else inside(n) for n in graph.nodes])


# -- what goes together --------------------------------------------------------------------
def _library_functions(graph: Graph, target: Target) -> set[int]:
    """Functions that are to be NumPy's."""
    if target.math != "libm":
        return set()
    return {
        k
        for k, n in enumerate(graph.nodes)
        if n.op in OPS and differs(n.op, [graph.specs[v].dtype for v in n.inputs])
    }


def turns_of(node: Node) -> int:
    """How often a node does what is inside of it."""
    if node.op == "while":
        return int(node.kw["most"]) if node.kw["most"] >= 0 else UNKNOWN
    return int(node.kw["trips"]) if node.op == "loop" else 1


def _work(size: int, turns: int) -> int:
    """Elements, where each call of NumPy's in a loop counts as some."""
    return size if turns == 1 else max(size, CALL) * turns


def _worthy_nests(graph: Graph, target: Target, alone: set[int], turns: int) -> list[Nested]:
    """Find the nests that do more than flat kernels can, and enough of it."""

    def is_worth(g: Nested) -> bool:
        nodes = [graph.nodes[k] for k in g.members]
        spaces = [
            [
                graph.specs[v].size
                for v in (*n.inputs[bool(OPS[n.op].moves.places) :], *graph.outs(k))
            ]
            for k, n in zip(g.members, nodes, strict=True)
        ]
        work = sum(_work(max(sizes), turns) for sizes in spaces)
        pairs = _is_of_pairs(graph, g) and not any(_reads_product(graph, n, target) for n in nodes)
        more = (does_more(graph, g, can_lower) or pairs) and not is_single(graph, g)
        return more and work >= BESIDE

    alone = alone | _library_functions(graph, target)
    if target.memory_limit is not None and target.memory_limit < 8 * LIMITS.unit_bytes:
        # which a kernel with running sums holds for each thread
        alone |= {k for k, n in enumerate(graph.nodes) if OPS[n.op].element.running}
    return worthy_nests(graph, target, can_lower, alone, is_worth, _fits)


def _reads_product(graph: Graph, node: Node, target: Target) -> bool:
    """Whether it could be done with the rows of a product, as those are made."""
    makers = [graph.nodes[k] for v in node.inputs if (k := graph.producers[v]) >= 0]
    return any(_is_product(graph, n, target) for n in makers)


def _behind_products(graph: Graph, target: Target, nested: Sequence[Nested]) -> set[int]:
    """Operations of nests that are better done where their product is made, since their values go
    to memory anyway."""
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
            if follows and not stays and is_elementwise(graph, node, can_lower):
                found.add(k)
    return found


def _ways_to_memory(
    graph: Graph, group: Nested, products: Container[int], inside: Container[int]
) -> set[int]:
    """Find the nodes of a nest that lead from a product to a value that goes to memory, by elements
    of the product and of what is outside."""
    chain: dict[int, bool] = {}  # whether a value of those behind goes there
    late: set[int] = set()  # what is behind and does something else
    for k in group.members:
        node, shape = graph.nodes[k], graph.nodes[k].specs[0].shape
        makers = [graph.producers[v] for v in node.inputs]
        behind = [(m in products or m in chain) for m in makers]
        follows = any(
            b and graph.specs[v].shape == shape for b, v in zip(behind, node.inputs, strict=True)
        )
        if follows and late.isdisjoint(makers) and is_elementwise(graph, node, can_lower):
            (v, *_) = graph.outs(k)
            chain[k] = v in graph.outputs or any(u not in inside for u in graph.uses[v])
        elif any(behind) or not late.isdisjoint(makers):
            late.add(k)
    for k in reversed(chain):
        chain[k] = chain[k] or any(chain.get(u, False) for u in graph.uses[graph.outs(k)[0]])
    return {k for k, leads in chain.items() if leads}


def _is_product(graph: Graph, node: Node, target: Target) -> bool:
    """Whether blocks of a product's rows may be followed at once by what is behind it."""
    if target.numerics == "any-workers" or not is_gemm(graph, node, PRODUCT):
        return False
    specs = [*(graph.specs[v] for v in node.inputs), *node.specs]
    if specs[2].dtype != float32 or specs[0].dtype != specs[1].dtype or why_not():
        return False
    layouts = [s.layout for s in specs if s.layout is not None]
    if not multiplies(specs[0].dtype):
        return False
    (*batches, m, n), k = layouts[2].largest(specs[2].shape), layouts[0].largest(specs[0].shape)[-1]
    rows = m * math.prod(batches)
    if k >= HALVED and squared_by(graph, node) >= 0:
        return False
    enough = rows >= MIN_ROWS and n >= NARROWEST
    return enough and k <= DEEPEST


def _round_late(graph: Graph, target: Target) -> Graph:
    """Products that round operands of the plan as they read them: each has a cast of its own, which
    will be a part of it. What is computed on the way is rounded where it is made."""
    rounds = {
        k: found
        for k, node in enumerate(graph.nodes)
        if node.op == "wide_matmul" and (found := _may_round(graph, node, target))
    }

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, (source, views) = graph.nodes[k], rounds[k]
        left, right = node.inputs
        rounded = cast(
            builder, looked_at(builder, values[source], views), graph.specs[right], node.line
        )
        return builder.add(node.op, (values[left], rounded), node.params, node.specs, node.line)

    return replace(graph, rounds, make)


def _may_round(graph: Graph, node: Node, target: Target) -> tuple[int, list[Node]] | None:
    """The operand of the plan that a product's right matrix rounds, and how it looks at it."""
    source, views = uncast(graph, node.inputs[1])
    if views is None or graph.producers[source] >= 0 or graph.specs[source].dtype != float32:
        return None
    form = gemm_key(graph.specs[node.inputs[0]].dtype, right=float32)
    even = graph.specs[node.inputs[0]].shape[-1] % 2 == 0
    may = form is not None and even and _is_product(graph, node, target)
    return (source, views) if may else None


def _rounded_late(graph: Graph, alone: Container[int]) -> set[int]:
    """The casts that are a part of products."""
    return {
        graph.producers[n.inputs[1]]
        for k, n in enumerate(graph.nodes)
        if n.op == "wide_matmul" and k not in alone and _is_rounded_late(graph, n.inputs[1])
    }


def _is_rounded_late(graph: Graph, v: int) -> bool:
    k = graph.producers[v]
    if (
        k < 0
        or not OPS[graph.nodes[k].op].moves.converts
        or len(graph.uses[v]) > 1
        or v in graph.outputs
    ):
        return False
    source = graph.nodes[k].inputs[0]
    while (maker := graph.producers[source]) >= 0 and OPS[graph.nodes[maker].op].is_view:
        source = graph.nodes[maker].inputs[0]
    return maker < 0 and graph.specs[source].dtype == float32


def _is_of_pairs(graph: Graph, group: Nested) -> bool:
    """Whether rows of one operand meet those of another."""
    looks = [graph.nodes[k] for k in group.members if reads_elsewhere(graph.nodes[k])]
    moved = {v for node in looks for v in node.inputs}
    rows, dims = {*group.rows()}, group.labels.dims
    tables = [{*dims[v]} - {None} for v in group.operands if v not in moved]
    return any(len(own) > 1 and own & rows != rows for own in tables)


_fits = fits_by(analyse_in_order)


def _worthy_groups(
    graph: Graph, target: Target, alone: set[int], beside: bool, turns: int
) -> list[Group]:
    """Without small ones, whose operations then stand by themselves. `beside`: there are others."""
    alone = alone | _library_functions(graph, target)
    groups = _groups(graph, target, alone)
    often = _often(graph, target, groups)
    some = beside or bool(often) or any(_is_worth(g, target, WORTH, turns) for g in groups)
    least = min(BESIDE, WORTH) if some else WORTH
    if turns > 1 and sum(_work(math.prod(g.space[0]), turns) * g.work for g in groups) >= WORTH:
        least = 1  # as a turn needs no Python only if all of it are kernels
    while small := [
        k
        for g in groups
        if not (g in often or _is_worth(g, target, least, turns) or _makes_parts(graph, target, g))
        for k in g.members
    ]:
        alone.update(small)
        groups = _groups(graph, target, alone)
        often = _often(graph, target, groups)
    return groups


def _often(graph: Graph, target: Target, groups: Sequence[Group]) -> set[Group]:
    """Find the groups of which there are many of one form, as in a loop of Python's, each of whose
    iterations was recorded: machine code is made once for all of them, and does them one after the
    other."""
    if target.numerics == "any-workers":
        return set()
    forms = {g: _form(graph, g) for g in groups if g.work and not g.product}
    count = Counter(forms.values())
    found = {g for g, form in forms.items() if count[form] >= OFTEN}
    return found | _worth_together(graph, [*forms])


def _worth_together(graph: Graph, groups: Sequence[Group]) -> set[Group]:
    """Find the groups that have a piece which becomes one kernel with those of others, of any shape, which
    are enough together (planner/fusion/horizontal.py), or many."""
    work, count, found = Counter[object](), Counter[object](), dict[object, set[Group]]()
    for g in groups:
        for members in components(graph, g.members):
            if form := form_of(graph, members):
                work[form.key] += math.prod(g.space[0]) * len(members)
                count[form.key] += 1
                found.setdefault(form.key, set()).add(g)
    worth = {form for form in found if work[form] >= WORTH or count[form] >= OFTEN}
    return set[Group]().union(*(found[form] for form in worth if len(found[form]) > 1))


def _form(graph: Graph, group: Group) -> tuple[object, ...]:
    """Make a key that groups have in common whose kernels are made by one text, about."""
    nodes = [graph.nodes[k] for k in group.members]
    ranks = [(s.dtype, s.ndim) for n in nodes for s in n.specs]
    return (*[(n.op, n.key) for n in nodes], *ranks, len(group.operands))


def _makes_parts(graph: Graph, target: Target, group: Group) -> bool:
    """Whether all that it makes is joined to one array with what other kernels make, as the edges of
    what a stencil gives. Then nothing is left to do for `concat` (planner/passes/memory.py); of several
    arrays all would have to be there from the first kernel on."""
    if target.numerics == "any-workers" or group.rows or group.product:
        return False
    members, joins = {*group.members}, set[int]()
    for v in (graph.starts[k] for k in members):
        joins |= {-1} if v in graph.outputs else set()
        joins |= {_join_of(graph, u) for u in graph.uses[v] if u not in members}
    return len(joins) == 1 and -1 not in joins


def _join_of(graph: Graph, k: int) -> int:
    """The node that joins what this one looks at with what kernels make, if that is much; or -1."""
    while OPS[graph.nodes[k].op].renames_axes and len(graph.uses[graph.starts[k]]) == 1:
        (k,) = graph.uses[graph.starts[k]]
    node = graph.nodes[k]
    if not OPS[node.op].moves.concatenates or node.specs[0].size < WORTH:
        return -1
    makers = [graph.producers[_behind_names(graph, v)] for v in node.inputs]
    able = all(m >= 0 and is_elementwise(graph, graph.nodes[m], can_lower) for m in makers)
    return k if able else -1


def _behind_names(graph: Graph, v: int) -> int:
    while (k := graph.producers[v]) >= 0 and OPS[graph.nodes[k].op].renames_axes:
        (v,) = graph.nodes[k].inputs
    return v


def _groups(graph: Graph, target: Target, alone: set[int]) -> list[Group]:
    products = {k: None for k, n in enumerate(graph.nodes) if _is_product(graph, n, target)}
    return groups_of(graph, target, alone, can_lower, products, _rounded_late(graph, alone))


def _is_worth(group: Group, target: Target, least: int, turns: int) -> bool:
    if group.product:
        return len(group.members) > 1
    size = math.prod(group.space[0])
    if target.numerics == "any-workers":
        return size >= MIN_FUSED_ELEMENTS and group.work > 0
    return _work(size, turns) * group.work >= least


# -- kernels ---------------------------------------------------------------------------------
def _kernel(graph: Graph, group: Group | Nested, read: Container[int]) -> Made:
    if isinstance(group, Group):
        return kernel_of(graph, group, read)
    return nest_of(graph, group, read)
