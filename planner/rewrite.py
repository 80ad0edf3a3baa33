"""How passes are written: walk a graph, build another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Window
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec

Values = tuple[int, ...]


Bodies = Callable[[Graph], Graph]


def rebuild(
    graph: Graph,
    rule: Callable[[Builder, Node, Values], Sequence[int] | None],
    bodies: Bodies | None = None,
) -> Graph:
    """The graph in canonical order, with each node replaced by what the rule makes of it over its new
    inputs; kept where the rule says None, with its `bodies` changed.

    A rule may make more values than the node had; the first ones take its place."""
    builder = Builder(graph.inputs)
    values = list(range(len(graph.inputs)))
    for node in graph.nodes:
        inputs = tuple([values[v] for v in node.inputs])
        made = rule(builder, node, inputs)
        if made is None:
            node = map_bodies(node, bodies) if bodies is not None else node
            made = builder.add(node.op, inputs, node.params, node.specs, node.line)
        assert len(made) >= len(node.specs), f"{node.op}: {len(made)} values for {len(node.specs)}"
        values.extend(made[: len(node.specs)])
    return builder.graph([values[v] for v in graph.outputs])


def replace(
    graph: Graph,
    chosen: Collection[int],
    make: Callable[[Builder, int, Sequence[int]], Sequence[int]],
    bodies: Bodies | None = None,
) -> Graph:
    """The graph with what is made of the chosen nodes, over the values made so far, in their place, and
    without what nothing reads any more; all others stand where they stood, with their `bodies` changed.
    """
    changed = graph if bodies is None else rewrite_bodies(graph, bodies)
    if not chosen:
        return changed
    builder = Builder(graph.inputs)
    values = list(range(len(graph.inputs)))
    for k, node in enumerate(changed.nodes):
        if k in chosen:
            made = make(builder, k, values)
        else:
            inputs = [values[v] for v in node.inputs]
            made = builder.add(node.op, inputs, node.params, node.specs, node.line)
        values.extend(made[: len(node.specs)])
    outputs = [values[v] for v in graph.outputs]
    whole = Graph(builder.inputs, tuple(builder.nodes), tuple(outputs))
    read, kept = {*outputs}, list[int]()
    for k in reversed(range(len(whole.nodes))):
        if not read.isdisjoint(whole.outs(k)):
            read.update(whole.nodes[k].inputs)
            kept.append(k)
    return reorder(whole, kept[::-1])


def rewrite_bodies(graph: Graph, change: Bodies) -> Graph:
    """The graph with all bodies changed but those of kernels."""
    if not graph.has_bodies:
        return graph
    return with_nodes(graph, [n if is_kernel(n) else map_bodies(n, change) for n in graph.nodes])


def with_nodes(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """The graph with these nodes; itself if they are the same."""
    same = graph.nodes == (nodes := tuple(nodes))
    return graph if same else Graph(graph.inputs, nodes, graph.outputs)


def is_kernel(node: Node) -> bool:
    """Whether this machine made it of others."""
    return OPS[node.op].made_by == "machine"


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


def map_bodies(node: Node, change: Bodies) -> Node:
    if not any(isinstance(v, Graph) for _, v in node.params):
        return node
    params = tuple((k, change(v) if isinstance(v, Graph) else v) for k, v in node.params)
    return Node(node.op, node.inputs, params, node.specs, node.line)


def reading(node: Node, inputs: Sequence[int]) -> Node:
    """The node over other operands."""
    return Node(node.op, tuple(inputs), node.params, node.specs, node.line, node.key)


def reorder(graph: Graph, order: Sequence[int]) -> Graph:
    """Put the nodes in another order."""
    if list(order) == list(range(len(graph.nodes))):
        return graph
    number = list(range(len(graph.inputs))) + [-1] * (len(graph.specs) - len(graph.inputs))
    nodes, count = [], len(graph.inputs)
    for k in order:
        nodes.append(reading(graph.nodes[k], [number[v] for v in graph.nodes[k].inputs]))
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


def is_windowed(graph: Graph, node: Node) -> bool:
    """Whether it looks at its operand through windows, along indices of their own."""
    if not OPS[node.op].is_view:
        return False
    specs = tuple([graph.specs[v] for v in node.inputs])
    dims = OPS[node.op].indices(specs, node.specs, node.kw).ins[0]
    return any(isinstance(d, Window) and d.over is not None for d in dims)


def squared(graph: Graph, node: Node) -> int:
    """The right value of a product that multiplies a matrix with its own transpose; else -1."""
    product = OPS[node.op].product
    if product is None or not product.squared:
        return -1
    left, right = node.inputs[product.left], node.inputs[product.right]
    alike = right == _transposed(graph, left) or left == _transposed(graph, right)
    return right if alike else -1


def _transposed(graph: Graph, v: int) -> int:
    """The matrix that a value is the transpose of; else -1."""
    k = graph.producers[v]
    if k < 0:
        return -1
    node = graph.nodes[k]
    swaps = node.kw.get("axes") == (1, 0) and node.specs[0].ndim == 2
    return node.inputs[0] if swaps and OPS[node.op].moves.same_elements else -1
