"""Numbers that are made of a few sums go into the kernels that read them, each of which makes its own.

before                                      after
%2 = divide(%0, %1) : float32[]             %2 = divide(%0, %1) : float32[n]
%3 = multiply(%2, %x) : float32[n]          %3 = multiply(%2, %x) : float32[n]

The step of a conjugate gradient is such a number. By itself it is a launch, which takes longer than all of its
readers' operations. Bits are the same. This belongs to this machine: plan files hold the graph without
it."""

from __future__ import annotations

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import op_of
from ostinato.ops.core.spec import Spec
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import rewrite_bodies


def spread_numbers(graph: Graph, target: Target) -> Graph:
    """The pass."""
    graph = rewrite_bodies(graph, lambda g: spread_numbers(g, target))
    numbers = {graph.starts[k] for k in range(len(graph.nodes)) if _is_number(graph, k)}
    if not numbers:
        return graph
    builder, values = Builder(graph.inputs), list(range(len(graph.inputs)))
    for k, node in enumerate(graph.nodes):
        ins = [values[v] for v in node.inputs]
        for place, v in enumerate(node.inputs):
            if v in numbers:
                maker, (made,) = graph.nodes[graph.producers[v]], node.specs
                spec = Spec(made.shape, graph.specs[v].dtype, made.layout)
                given = [values[u] for u in maker.inputs]
                (ins[place],) = builder.add(maker.op, given, maker.params, (spec,), maker.line)
        if graph.starts[k] in numbers:
            values.append(-1)
        else:
            values += builder.add(node.op, ins, node.params, node.specs, node.line)
    return builder.graph([values[v] for v in graph.outputs])


def _is_number(graph: Graph, k: int) -> bool:
    """Whether a node makes a number of sums that only elements are made of."""
    node, op = graph.nodes[k], op_of(graph.nodes[k].op)
    v = graph.starts[k]
    simple = bool(op.scalar) and not op.work[1] and len(node.inputs) > 1
    if not simple or node.specs[0].shape or v in graph.outputs:
        return False
    makers = [graph.producers[u] for u in node.inputs]
    if any(graph.specs[u].shape for u in node.inputs) or any(
        m < 0 or op_of(graph.nodes[m].op).reduce is None for m in makers
    ):
        return False
    users = dict.fromkeys(graph.uses[v])
    return bool(users) and all(_is_of_elements(graph, u) for u in users)


def _is_of_elements(graph: Graph, k: int) -> bool:
    node = graph.nodes[k]
    return bool(op_of(node.op).scalar) and len(node.specs) == 1 and bool(node.specs[0].shape)
