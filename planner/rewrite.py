"""How passes are written: walk a graph, build another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.spec import Spec

Values = tuple[int, ...]


def rebuild(
    graph: Graph,
    rule: Callable[[Builder, Node, Values], Sequence[int] | None],
    keep_order: bool = False,
) -> Graph:
    """The graph with each node replaced by what the rule makes of it over its new inputs; kept
    where the rule says None. In canonical order, unless the nodes are to stand where they stood.

    A rule may make more values than the node had; the first ones take its place.
    """
    builder = Builder(graph.inputs)
    values = list(range(len(graph.inputs)))
    for node in graph.nodes:
        inputs = tuple([values[v] for v in node.inputs])
        made = rule(builder, node, inputs)
        if made is None:
            made = builder.add(node.op, inputs, node.params, node.specs, node.line)
        assert len(made) >= len(node.specs), f"{node.op}: {len(made)} values for {len(node.specs)}"
        values.extend(made[: len(node.specs)])
    outputs = [values[v] for v in graph.outputs]
    return needed(builder, outputs) if keep_order else builder.graph(outputs)


def inline(builder: Builder, graph: Graph, inputs: Sequence[int]) -> list[int]:
    """A graph's outputs as values of another."""
    values = list(inputs)
    for node in graph.nodes:
        values.extend(
            builder.add(
                node.op, [values[v] for v in node.inputs], node.params, node.specs, node.line
            )
        )
    return [values[v] for v in graph.outputs]


def map_bodies(node: Node, change: Callable[[Graph], Graph]) -> Node:
    """The node with its subgraphs changed."""
    if not any(isinstance(v, Graph) for _, v in node.params):
        return node
    params = tuple((k, change(v) if isinstance(v, Graph) else v) for k, v in node.params)
    return Node(node.op, node.inputs, params, node.specs, node.line)


def in_order_of(graph: Graph, order: Sequence[int]) -> Graph:
    """The same nodes in another order."""
    if list(order) == list(range(len(graph.nodes))):
        return graph
    number = list(range(len(graph.inputs))) + [-1] * (len(graph.specs) - len(graph.inputs))
    nodes, count = [], len(graph.inputs)
    for k in order:
        node = graph.nodes[k]
        inputs = tuple(number[v] for v in node.inputs)
        nodes.append(Node(node.op, inputs, node.params, node.specs, node.line, node.key))
        for v in graph.outs(k):
            number[v], count = count, count + 1
    return Graph(graph.inputs, tuple(nodes), tuple(number[v] for v in graph.outputs))


def looked_at(builder: Builder, value: int, looks: Sequence[Node]) -> int:
    """A value seen as these nodes see another, one after the other."""
    dtype = builder.specs[value].dtype
    for look in looks:
        (seen,) = look.specs
        spec = Spec(seen.shape, dtype, seen.layout)
        (value,) = builder.add(look.op, (value,), look.params, (spec,), look.line)
    return value


def needed(builder: Builder, outputs: Sequence[int]) -> Graph:
    """Without nodes that nothing reads any more; the others in their order."""
    graph = Graph(builder.inputs, tuple(builder.nodes), tuple(outputs))
    needed = set(outputs)
    kept = []
    for k in reversed(range(len(graph.nodes))):
        if not needed.isdisjoint(graph.outs(k)):
            needed.update(graph.nodes[k].inputs)
            kept.append(k)
    return in_order_of(graph, kept[::-1])
