"""Small all-reduces become one: what a message costs before its first byte is paid once.

before                                          after
%4 = all_reduce(%2) : float32[256]              %4, %5 = all_reduce(%2, %3)
%5 = multiply(%4, 0.1)                          %6 = multiply(%4, 0.1)
%6 = all_reduce(%3) : float32[10]               return %6, %5
return %5, %6

A sum is small if its bytes take less time than the start of its message, on the link it takes, and a
bucket holds some of these. It starts when the last of its operands is there, so it is closed as soon as
a sum comes that depends on one in it: a network's slopes, from the last layer to the first, fill one
bucket after the other. Combined or not, the same numbers are added in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.spec import Spec
from ostinato.planner.machine import Machine
from ostinato.planner.plan import Target, largest_part
from ostinato.planner.rewrite import reading, reorder, rewrite_bodies

from .order import schedule

ROOM = 8  # messages' starts that the bytes of a bucket may take


@dataclass(slots=True)
class _Bucket:
    limit: float  # bytes
    nodes: list[int] = field(default_factory=list)
    size: int = 0


def fill_buckets(graph: Graph, target: Target) -> Graph:
    """The pass. Idempotent, as a sum of several arrays is not small again."""
    if target.workers == 1:
        return graph
    graph = rewrite_bodies(graph, lambda g: fill_buckets(g, target))
    buckets = [b.nodes for b in _buckets(graph, target.machine) if len(b.nodes) > 1]
    return _together(graph, buckets) if buckets else graph


def _buckets(graph: Graph, machine: Machine) -> list[_Bucket]:
    found: list[_Bucket] = []
    open_: dict[object, int] = {}  # by who takes part and what is combined
    # the buckets that a value needs
    behind: list[frozenset[int]] = [frozenset()] * len(graph.inputs)
    for k, node in enumerate(graph.nodes):
        needs = frozenset[int]().union(*[behind[v] for v in node.inputs])
        spec = graph.specs[node.inputs[0]] if node.inputs else None
        limit = _limit(node, spec, machine)
        if spec is not None and limit:
            open_ = {kind: b for kind, b in open_.items() if b not in needs}
            kind = (node.key, spec.dtype, spec.layout and spec.layout.mesh)
            size = largest_part(spec).nbytes
            at = open_.get(kind)
            if at is None or found[at].size + size > found[at].limit:
                at = open_[kind] = len(found)
                found.append(_Bucket(limit))
            found[at].nodes.append(k)
            found[at].size += size
            needs |= {at}
        behind += [needs] * len(node.specs)
    return found


def _limit(node: Node, spec: Spec | None, machine: Machine) -> float:
    """The bytes of a bucket for a small sum; 0 if it is none."""
    if node.op != "all_reduce" or len(node.inputs) > 1 or spec is None or spec.layout is None:
        return 0.0
    if MONOIDS[node.kw["monoid"]].width > 1:
        return 0.0
    links = machine.links(spec.layout.mesh)
    at_once = min([links[a].seconds * links[a].bandwidth for a in node.kw["axes"]])
    return ROOM * at_once if largest_part(spec).nbytes <= at_once else 0.0


def _together(graph: Graph, buckets: Sequence[Sequence[int]]) -> Graph:
    gone = {k for bucket in buckets for k in bucket}
    number = list(range(len(graph.inputs))) + [-1] * (len(graph.specs) - len(graph.inputs))
    count, nodes = len(graph.inputs), list[Node]()
    for ks in [*([k] for k in range(len(graph.nodes)) if k not in gone), *buckets]:
        members = [graph.nodes[k] for k in ks]
        first = members[0]
        nodes.append(
            Node(
                first.op,
                tuple([v for n in members for v in n.inputs]),
                first.params,
                tuple([s for n in members for s in n.specs]),
                first.line,
                first.key,
            )
        )
        for k in ks:
            for v in graph.outs(k):
                number[v], count = count, count + 1
    nodes = [reading(n, [number[v] for v in n.inputs]) for n in nodes]
    made = Graph(graph.inputs, tuple(nodes), tuple([number[v] for v in graph.outputs]))
    return reorder(made, schedule(made))
