"""What is only read in parts is only made in parts.

before                                            after
%1 = iota() : int64[6] @ whole of 2               %1 = iota() : int64[6] @ split 0 of 2
%2 = multiply(%1, %1) : int64[6] @ whole of 2     %2 = multiply(%1, %1) : int64[6] @ split 0 of 2
%3 = relayout(%2) : int64[6] @ split 0 of 2       %3 = add(%0, %2) : int64[6] @ split 0 of 2
%4 = add(%0, %3) : int64[6] @ split 0 of 2        return %3
return %4

Layouts are chosen from the operands to the results, so what begins whole (numbers made out of
nothing, replicas) stays whole until somebody asks for parts. This pass goes back from there, as
long as each worker has what it needs for its part. What is made out of nothing is not sent, if it is
sooner made where it is needed: a window of ones."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.spec import Spec
from ostinato.planner.layouts.costs import kernel_seconds, together_seconds
from ostinato.planner.layouts.shardings import Sharding, sharding_to
from ostinato.planner.plan import Target, largest_part

from .reads import seen_as

Wanted = list[set[Layout | None]]


def make_parts(graph: Graph, target: Target) -> Graph:
    if target.workers == 1:
        return graph
    _, moved, cut = _wishes(graph, target)
    builder = Builder(graph.inputs)
    values = list(range(len(graph.inputs)))

    def moved_to(value: int, layout: Layout | None, line: str) -> int:
        spec = builder.specs[value]
        if spec.layout is layout:
            return value
        return builder.add("relayout", (value,), (), (spec.at(layout),), line)[0]

    for k, node in enumerate(graph.nodes):
        inputs = [values[v] for v in node.inputs]
        specs = node.specs
        if k in moved:
            inputs = [
                moved_to(v, n, node.line) for v, n in zip(inputs, moved[k].needs, strict=True)
            ]
            specs = (specs[0].at(moved[k].gives[0]),)
        elif node.op == "relayout" and len(inputs) == 1:
            made = _made_again(builder, inputs[0], specs[0], target)
            values.append(moved_to(inputs[0], specs[0].layout, node.line) if made is None else made)
            continue
        elif any(node.subgraphs()):
            for j, layout in cut.get(k, {}).items():
                inputs[j] = moved_to(inputs[j], layout, node.line)
            node = _with_bodies(node, [builder.specs[v] for v in inputs], target)
        values.extend(builder.add(node.op, inputs, node.params, specs, node.line))
    return builder.graph([values[v] for v in graph.outputs])


def _made_again(builder: Builder, value: int, end: Spec, target: Target) -> int | None:
    """Make what is made of nothing as it is wanted, if that takes less time than to send it."""
    maker, has = builder.maker(value), builder.specs[value]
    if maker is None or maker.inputs or len(maker.specs) > 1 or end.layout is None:
        return None
    if has.layout is None or has.layout.has_copy(end.layout, end.shape):
        return None
    if sharding_to(maker, (), end.layout, target) is None:
        return None
    again = kernel_seconds(target.machine, maker, (), (largest_part(end),))
    if again >= together_seconds(target.machine, (has,), (end,)):
        return None
    return builder.add(maker.op, (), maker.params, (end,), maker.line)[0]


def _wishes(
    graph: Graph, target: Target
) -> tuple[Wanted, dict[int, Sharding], dict[int, dict[int, Layout]]]:
    """In which layouts each value is wanted; the nodes to run in another way; the operands of loops
    and branches to take in another layout. From the last node to the first, each says what it wants;
    one whose result is wanted in one layout only is run to give that."""
    wanted: Wanted = [set() for _ in graph.specs]
    for v in graph.outputs:
        wanted[v].add(graph.specs[v].layout)
    moved: dict[int, Sharding] = {}
    cut: dict[int, dict[int, Layout]] = {}
    for k in reversed(range(len(graph.nodes))):
        node = graph.nodes[k]
        ins = [graph.specs[v] for v in node.inputs]
        needs = [s.layout for s in (node.specs if node.op == "relayout" else ins)]
        if any(node.subgraphs()):
            cut[k] = _operands(node, ins, target)
            for j, layout in cut[k].items():
                needs[j] = layout
        elif len(node.specs) == 1:
            end = _another(node.specs[0], wanted[graph.starts[k]])
            sharding = sharding_to(node, ins, end, target) if end is not None else None
            if sharding is not None and node.op == "read":  # any part of a file is as near
                moved[k] = Sharding(
                    sharding.labels, tuple(s.layout for s in ins if s.layout), sharding.gives
                )
            elif sharding is not None and all(map(has_part, ins, sharding.needs)):
                moved[k] = sharding
                needs = list(sharding.needs)
        for v, need in zip(node.inputs, needs, strict=True):
            wanted[v].add(need)
    return wanted, moved, cut


def _another(spec: Spec, ends: set[Layout | None]) -> Layout | None:
    """The one layout that is wanted, if it is another and a part of what there is."""
    if len(ends) != 1:
        return None
    (end,) = ends
    return end if end is not None and end is not spec.layout and has_part(spec, end) else None


def has_part(spec: Spec, end: Layout) -> bool:
    return spec.layout is not None and spec.layout.has_copy(end, spec.shape)


# -- loops and branches --------------------------------------------------------------------
def _operands(node: Node, ins: Sequence[Spec], target: Target) -> dict[int, Layout]:
    """Operands that all bodies want in one other layout."""
    wishes = {name: _wishes(g, target)[0] for name, g in node.subgraphs()}
    found = {}
    for j, places in seen_as(node).items():
        end = _another(ins[j], set().union(*(wishes[name][v] for name, v in places)))
        if end is not None:
            found[j] = end
    return found


def _with_bodies(node: Node, ins: Sequence[Spec], target: Target) -> Node:
    """Bodies that take operands as they lie now: here, or around the node, they may have been cut."""
    inputs = {name: list(g.inputs) for name, g in node.subgraphs()}
    for j, places in seen_as(node).items():
        for name, v in places:
            inputs[name][v] = inputs[name][v].at(ins[j].layout)
    bodies = {
        name: make_parts(Graph(tuple(inputs[name]), g.nodes, g.outputs), target)
        for name, g in node.subgraphs()
    }
    params = tuple((name, bodies.get(name, value)) for name, value in node.params)
    return Node(node.op, node.inputs, params, node.specs, node.line)
