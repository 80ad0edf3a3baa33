"""An operation by windows of which each worker has all becomes the one that does the same, which kernels know.

before                                                    after
%2 = take_near(%0, %1; axis=1, near=(1, 2, -1, 1))        %2 = take(%0, %1; axis=1)
 (where %0 is whole along axis 1)

Its windows only tell layouts which neighbours' edges are needed. This belongs to this machine: plan files
hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Window
from ostinato.ops.core.registry import OPS
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace


def close_windows(graph: Graph, target: Target) -> Graph:
    """The pass. Idempotent."""
    found = {k for k, node in enumerate(graph.nodes) if _has_all(graph, node)}

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, here = graph.nodes[k], OPS[graph.nodes[k].op].parallel.here
        assert here is not None
        name, params = here(node.kw)
        return builder.add(name, [values[v] for v in node.inputs], params, node.specs, node.line)

    return replace(graph, found, make, lambda g: close_windows(g, target))


def _has_all(graph: Graph, node: Node) -> bool:
    """Whether no dimension that is read by windows, nor a result's along which it writes, is cut."""
    op = OPS[node.op]
    if op.parallel.here is None:
        return False
    ins = [graph.specs[v] for v in node.inputs]
    indices = op.indices(tuple(ins), node.specs, node.kw)
    return not any(
        isinstance(dim, Window) and spec.layout is not None and spec.layout.axes(d)
        for dims, spec in zip(indices.ins, ins, strict=True)
        for d, dim in enumerate(dims)
    )
