"""Where a graph has a relu and its slope, which asks of the same elements whether they are positive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ostinato.ops.array.bits import bytes_of
from ostinato.ops.core.graph import Graph


@dataclass(frozen=True, slots=True)
class Relu:
    """Nodes: the choice that is a relu, and those that are its slope."""

    where: int
    slopes: tuple[int, ...]


def relus(graph: Graph) -> Iterator[Relu]:
    """Iterate over the ReLUs of matrices whose rows are whole, where all that reads the question is
    one of these.
    """
    for k in range(len(graph.nodes)):
        if (found := _relu(graph, k)) is not None:
            yield found


def _relu(graph: Graph, k: int) -> Relu | None:
    """Find the ReLU of which a node is the question."""
    node = graph.nodes[k]
    if node.op != "less_equal" or not _is_zero(graph, node.inputs[1]):
        return None
    x, (asked,) = node.inputs[0], graph.outs(k)
    users = sorted({*graph.uses[asked]})
    if {x, asked} & {*graph.outputs} or not all(_chooses(graph, u, asked) for u in users):
        return None
    own = [u for u in users if graph.nodes[u].inputs[2] == x]
    slopes = [u for u in users if u not in own]
    if len(own) != 1 or not slopes or own[0] > slopes[0] or {*graph.uses[x]} != {k, *own}:
        return None
    spec = graph.specs[x]
    others = [graph.specs[graph.nodes[u].inputs[2]] for u in slopes]
    whole = spec.ndim == 2 and spec.layout is not None and 1 not in spec.layout.splits
    alike = all(
        (s.shape, s.dtype, s.layout) == (spec.shape, spec.dtype, spec.layout) for s in others
    )
    if not whole or not alike or bytes_of(spec.shape[1]) == spec.shape[1] * spec.dtype.itemsize:
        return None  # of bits as large as the result, that could take their place
    return Relu(own[0], tuple(slopes))


def _chooses(graph: Graph, k: int, asked: int) -> bool:
    """Whether a node is 0 where that was asked for, and else something."""
    node = graph.nodes[k]
    return node.op == "where" and node.inputs[0] == asked and _is_zero(graph, node.inputs[1])


def _is_zero(graph: Graph, v: int) -> bool:
    k = graph.producers[v]
    return k >= 0 and graph.nodes[k].op == "constant" and graph.nodes[k].kw["value"] == 0
