"""What needs all rows of a file at once, as an algorithm that works through blocks of them.

before                                           after
%1 = read(%0) : float32[9000,4]                  %1 = read(%0) : float32[9000,4]
%2 = cumulative_sum(%1; axis=0, ...)             %2 = accumulate(%1; axis=0, monoid='sum', ...)
return %2                                        return %2

Operations that bring algorithms for what lies in parts on workers (`Op.algorithms`) are given parts
that are blocks of the file as well: each worker's rows, in as many turns as its blocks take. The layouts
are chosen for the algorithm then, and `split_time` cuts it into these turns. What is no larger than
a block stays as it is. The pass is idempotent."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.planned.reproducible import FIXED
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import inline, replace

from . import blocking

SHARE = 16  # of the memory limit: a block of a file that algorithms work on
TALL = 4  # times as many rows as columns has what is worth an algorithm for tall matrices


def work_in_blocks(graph: Graph, target: Target) -> Graph:
    """The pass; nothing for a graph that reads no files."""
    made = _made_of_files(graph)
    if not made:
        return graph
    found = {
        k: algorithm
        for k, node in enumerate(graph.nodes)
        if (algorithm := _algorithm(graph, node, made, target)) is not None
    }

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        inputs, inner, line = graph.nodes[k].inputs, found[k], graph.nodes[k].line
        nodes = tuple([Node(n.op, n.inputs, n.params, n.specs, line) for n in inner.nodes])
        whole = Graph(inner.inputs, nodes, inner.outputs)
        return inline(builder, whole, [values[v] for v in inputs])

    # algorithms are made of such, too
    return work_in_blocks(replace(graph, found, make), target) if found else graph


def _made_of_files(graph: Graph) -> set[int]:
    found = set[int]()
    for k, node in enumerate(graph.nodes):
        if node.op == "read" or any(v in found for v in node.inputs):
            found.update(graph.outs(k))
    return found


def _algorithm(graph: Graph, node: Node, made: Collection[int], target: Target) -> Graph | None:
    """Find a graph that does the same as a node, on blocks of rows of its operands; None if nothing
    does, or if nothing is so large."""
    algorithms = OPS[node.op].parallel.algorithms
    if algorithms is None or node.op in FIXED.values():
        return None
    ins = [graph.specs[v] for v in node.inputs]
    found = [s for v, s in zip(node.inputs, ins, strict=True) if v in made and s.ndim]
    large = max(found, key=lambda s: s.nbytes, default=None)
    turns = 0 if large is None else turns_of(large, target)
    if large is None or turns < 2:
        return None
    if OPS[node.op].run.dense and large.shape[0] ** 2 < TALL * large.size:
        return None
    mesh, blocks = (*target.mesh, turns), target.numerics == "any-workers"
    rows = Layout(mesh, (0,) * len(mesh), (), blocks).on_disk
    specs = tuple(
        [s.at(rows if s.shape[:1] == large.shape[:1] else Layout.whole(mesh)) for s in ins]
    )
    return next(iter(algorithms(specs, node.specs, node.kw)), None)


def turns_of(spec: Spec, target: Target) -> int:
    """In how many each worker goes through its rows."""
    limit, workers = target.memory_limit, target.workers
    size = blocking.READ_BYTES
    size = size if limit is None else min(size, max(limit // SHARE, 1))
    most = min(spec.shape[0] // workers, blocking.most_turns(target))
    return min(-(-spec.nbytes // (workers * size)), most)
