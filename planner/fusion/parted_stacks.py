"""What is stacked, and then only computed with plane by plane, stays apart: operations are done to each
plane, and joined is only what somebody wants whole, if that is less than was joined before.

before                                              after
%2 = expand_dims(%0; axes=(0,)) : float32[1,9]      %2 = multiply(%0, %1) : float32[9]
%3 = expand_dims(%1; axes=(0,)) : float32[1,9]      %3 = add(%0, %1) : float32[9]
%4 = concat(%2, %3; axis=0) : float32[2,9]          %4 = multiply(%2, %3) : float32[9]
%5 = prod(%4; axes=(0,), ...) : float32[9]          return %4
%6 = sum(%4; axes=(0,), ...) : float32[9]
%7 = multiply(%5, %6) : float32[9]
return %7

Sums of planes are added in order, so nothing is changed under `any-workers`, which has an order of its own.
This belongs to kernels: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ostinato.ops.array.expressions import joined, plane, sliced, without_axis
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

MAX_PLANES = 16  # planes of a stack
GROWTH = 256  # operations on planes that become of one stack and what is made of it


@dataclass(slots=True)
class _Stacks:
    """Values that can be had plane by plane: the axis of each; and who begins them."""

    axes: dict[int, int] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)


def part_stacks(graph: Graph, target: Target) -> Graph:
    found = _Stacks() if target.numerics == "any-workers" else _found(graph)
    planes: dict[int, list[int]] = {}  # of a value, of the new graph

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, v = graph.nodes[k], graph.starts[k]
        if v in found.axes:
            planes[v] = _planes(builder, node, found.axes[v], planes, values)
            if (
                all(_reads_planes(graph, j, v, found) for j in graph.uses[v])
                and v not in graph.outputs
            ):
                return (planes[v][0],)  # which nobody reads as such
            return (joined(builder, planes[v], found.axes[v], node.specs[0], node.line),)
        (u, *_) = node.inputs
        return (_read(builder, node, planes[u], found.axes[u]),)

    chosen = {graph.producers[v] for v in found.axes} | {
        k
        for v in found.axes
        for k in graph.uses[v]
        if graph.starts[k] not in found.axes and _reads_planes(graph, k, v, found)
    }
    return replace(graph, chosen, make, lambda g: part_stacks(g, target))


def _planes(
    builder: Builder, node: Node, axis: int, planes: dict[int, list[int]], values: Sequence[int]
) -> list[int]:
    (spec,) = node.specs
    if OPS[node.op].moves.concatenates:
        return [values[v] for v in node.inputs]
    one = Spec((*spec.shape[:axis], 1, *spec.shape[axis + 1 :]), spec.dtype, spec.layout)
    made: list[int] = []
    for n in range(spec.shape[axis]):
        inputs = [
            planes[u][n] if u in planes else plane(builder, values[u], axis - spec.ndim, n)
            for u in node.inputs
        ]
        made += builder.add(node.op, inputs, node.params, (one,), node.line)
    return made


def _read(builder: Builder, node: Node, planes: Sequence[int], axis: int) -> int:
    """A plane, or part of one; or all of them combined."""
    (spec,) = node.specs
    if OPS[node.op].moves.selects == "slices":
        starts = list(node.kw["starts"])
        v, starts[axis] = planes[starts[axis]], 0
        return v if builder.specs[v] == spec else sliced(builder, v, starts, spec, node.line)
    (total, *others) = planes
    for v in others:
        (total,) = builder.add(
            MONOIDS[node.op].ufunc, (total, v), (), (builder.specs[total],), node.line
        )
    return without_axis(builder, total, axis, spec, node.line)


# -- which stay apart --------------------------------------------------------------------------
def _found(graph: Graph) -> _Stacks:
    """All that are begun together and made of each other, if fewer are joined then."""
    able = _Stacks()
    for k, node in enumerate(graph.nodes):
        v = graph.starts[k]
        if OPS[node.op].moves.concatenates:
            axis, (spec,) = node.kw["axis"], node.specs
            planes = all(graph.specs[u].shape[axis] == 1 for u in node.inputs)
            whole = spec.layout is None or spec.layout.is_whole
            if planes and whole and 1 < len(node.inputs) <= MAX_PLANES:
                able.axes[v] = axis
                able.begun.add(v)
        elif (axis_ := _stays_apart(graph, node, able)) >= 0:
            able.axes[v] = axis_
    kept = _Stacks()
    for group in _together(graph, able):
        wanted = [v for v in group if _is_wanted(graph, v, able)]
        work = sum(graph.specs[v].shape[able.axes[v]] for v in group if v not in able.begun)
        if len(wanted) < len(group & able.begun) and work <= GROWTH:
            kept.axes |= {v: able.axes[v] for v in group}
            kept.begun |= group & able.begun
    return kept


def _stays_apart(graph: Graph, node: Node, able: _Stacks) -> int:
    """The axis along which an operation on elements has planes, as its operands that are stacked; or -1."""
    stacks = [u for u in node.inputs if u in able.axes]
    op = OPS[node.op]
    if (
        not (stacks and op.scalar and op.aligns and len(node.specs) == 1)
        or op.element.draws
        or op.run.placed
    ):
        return -1
    (spec,), axis = node.specs, able.axes[stacks[0]]
    whole = spec.layout is None or spec.layout.is_whole
    alike = all(able.axes[u] == axis and graph.specs[u].shape == spec.shape for u in stacks)
    return axis if whole and alike else -1


def _reads_planes(graph: Graph, k: int, v: int, able: _Stacks) -> bool:
    node, axis = graph.nodes[k], able.axes[v]
    if graph.starts[k] in able.axes:
        return True
    if OPS[node.op].moves.selects == "slices":
        return bool(node.kw["sizes"][axis] == 1)
    folds = node.op in MONOIDS and MONOIDS[node.op].ufunc and node.kw.get("axes") == (axis,)
    return bool(folds) and node.specs[0].dtype == graph.specs[v].dtype


def _is_wanted(graph: Graph, v: int, able: _Stacks) -> bool:
    """Whether somebody wants it whole."""
    return v in graph.outputs or not all(_reads_planes(graph, k, v, able) for k in graph.uses[v])


def _together(graph: Graph, able: _Stacks) -> list[set[int]]:
    """Stacks that are made of each other."""
    groups: list[set[int]] = []
    for v in able.axes:
        before = graph.nodes[graph.producers[v]].inputs if v not in able.begun else ()
        near = {v, *(u for u in before if u in able.axes)}
        for group in [g for g in groups if g & near]:
            near |= group
            groups.remove(group)
        groups.append(near)
    return groups
