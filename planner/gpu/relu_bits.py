"""A product with a relu behind it keeps which elements are positive as bits, and a product that is multiplied
by that relu's slope reads them; its columns' sums, which are a bias's slope, are made with it.

before                                        after
%2 = matmul(%0, %1)                           %2, %3 = fused_matmul(%0, %1; body={
%3 = less_equal(%2, 0)                            matmul, less_equal, where, positive_bits })
%4 = where(%3, 0, %2)                         ...
...                                           %8, %9 = fused_matmul(%6, %7, %3; body={
%8 = matmul(%6, %7)                               matmul, where_positive, sum })
%9 = where(%3, 0, %8)
%10 = sum(%9; axes=(0,))

Each of these is one call of the library that multiplies, if it says that it has both (`is_one_call`): so
neither what is given to the relu nor what comes before its slope goes to memory. Rows have to be whole, as
bits are counted from their begin. Only where `numerics="fast"`: see ops/gpu/epilogue.py; of what is
exactly 0, the library may take either slope. A sum of floats that is a kernel's own keeps what rounding
loses, the library's does not."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ostinato.ops.array.bits import BITS, MASKED, bytes_of
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.spec import Spec, uint8
from ostinato.ops.gpu.relus import Relu, relus
from ostinato.planner.fusion.convex import Group
from ostinato.planner.fusion.groups import is_gemm, kernel_of, with_kernels
from ostinato.planner.fusion.stage_groups import PRODUCT
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace


def keep_bits(graph: Graph, target: Target) -> Graph:
    """A part of the pass `fuse`."""
    found = sorted(relus(graph), key=lambda r: r.where)
    while found:
        changed = _with_bits(graph, found)
        groups = {g.members[0]: g for g in _groups(changed, target)}
        inside = {k for g in groups.values() for k in g.members}
        nodes = [*enumerate(changed.nodes)]
        bits = [k for k, n in nodes if n.op == BITS]  # in the order of `found`
        good = [{k, *changed.uses[changed.starts[k]]} <= inside for k in bits]
        if all(good):
            return with_kernels(changed, target, [*groups.values()], kernel_of)
        found = [r for r, is_good in zip(found, good, strict=True) if is_good]
    return graph


def _with_bits(graph: Graph, found: Sequence[Relu]) -> Graph:
    slopes = {k: r for r in found for k in r.slopes}
    relus = {r.where: r for r in found}
    bits: dict[Relu, int] = {}

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        ins = [values[v] for v in node.inputs]
        if k in slopes:
            given = (bits[slopes[k]], ins[2])
            return builder.add(MASKED, given, (), node.specs, node.line)
        (spec,) = node.specs
        assert spec.layout is not None
        layout = Layout(spec.layout.mesh, spec.layout.splits)
        of = Spec((spec.shape[0], bytes_of(spec.shape[1])), uint8, layout)
        made = builder.add(node.op, ins, node.params, node.specs, node.line)
        (bits[relus[k]],) = builder.add(BITS, (ins[2],), (), (of,), node.line)
        return made

    return replace(graph, {*slopes, *relus}, make)


def _groups(graph: Graph, target: Target) -> list[Group]:
    """Products that make or read bits, each with all that is one call with it."""
    device, found = described(target.device), []
    for k, node in enumerate(graph.nodes):
        if not is_gemm(graph, node, PRODUCT) or node.specs[0].ndim != 2:
            continue
        members = [k, *device.epilogue_of(graph, k, True)]
        while any(graph.nodes[m].op in (BITS, MASKED) for m in members):
            group = _group(graph, members)
            if device.is_one_call(_body(kernel_of(graph, group, _shown(graph, members)).node)):
                found.append(group)
                break
            members.pop()  # without the sums
    return found


def _group(graph: Graph, members: Sequence[int]) -> Group:
    (spec,), start = graph.nodes[members[0]].specs, members[0]
    space = spec.shape, spec.layout
    group = Group(space=space, product=True, members=sorted(members), start=start)
    group.operands = dict.fromkeys(_read(graph, members))
    return group


def _shown(graph: Graph, members: Collection[int]) -> set[int]:
    """The values that others read."""
    inside = {v for m in members for v in graph.outs(m)}
    return {v for v in inside if v in graph.outputs or not {*graph.uses[v]} <= {*members}}


def _body(node: Node) -> Graph:
    body = node.kw["body"]
    assert isinstance(body, Graph)
    return body


def _read(graph: Graph, members: Collection[int]) -> list[int]:
    inside = {v for k in members for v in graph.outs(k)}
    read = [v for k in members for v in graph.nodes[k].inputs if v not in inside]
    return [v for v in read if (p := graph.producers[v]) < 0 or graph.nodes[p].op != "constant"]
