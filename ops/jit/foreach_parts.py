"""Kernels over several groups of arrays, of which each group has the same expression and extents of its own
(what others call multi-tensor, or foreach): their body has the parts one behind the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec

FOREACH = "fused_foreach"


@dataclass(frozen=True, slots=True)
class Member:
    """One group of arrays: a kernel's node, and which operands and results of the whole it has."""

    node: Node
    operands: tuple[int, ...]
    results: tuple[int, ...]

    def places(self, operands: int) -> list[int]:
        """Where its own stand among so many operands, and results."""
        return [*self.operands, *(operands + k for k in self.results)]


def parts_of(node: Node) -> list[Member]:
    """The parts of a node, as their kernels were by themselves."""
    body: Graph = node.kw["body"]
    given, found = node.kw["parts"], []
    size, many = len(body.nodes) // len(given), len(body.outputs) // len(given)
    for k, operands in enumerate(given):
        nodes = range(k * size, (k + 1) * size)
        results = tuple(range(k * many, (k + 1) * many))
        own = extracted(body, nodes, operands, [body.outputs[r] for r in results])
        specs = tuple([node.specs[r] for r in results])
        found.append(Member(kernel_of(own, operands, specs, node.line), tuple(operands), results))
    return found


def extracted(
    body: Graph, nodes: Sequence[int], operands: Sequence[int], outputs: Sequence[int]
) -> Graph:
    """Some nodes of a graph, which read these of its values, as one of their own."""
    known = {v: n for n, v in enumerate(operands)}
    made = []
    for k in nodes:
        node = body.nodes[k]
        ins = tuple([known[v] for v in node.inputs])
        made.append(Node(node.op, ins, node.params, node.specs, node.line, node.key))
        for v in body.outs(k):
            known[v] = len(known)
    inputs = tuple([body.specs[v] for v in operands])
    return Graph(inputs, tuple(made), tuple([known[v] for v in outputs]))


def kernel_of(body: Graph, inputs: Sequence[int], specs: Sequence[Spec], line: str) -> Node:
    """The kernel of one part, or of what is left of one."""
    kind = "fused" + "_rows" * reduces(body)
    return Node(kind, tuple(inputs), (("body", body),), tuple(specs), line)


def reduces(body: Graph) -> bool:
    return any(OPS[n.op].reduce for n in body.nodes)


def written_over(node: Node, result: int) -> tuple[int, ...]:
    """The operands whose memory a result may take."""
    over: tuple[tuple[int, ...], ...] = node.kw["over"]
    return over[result * len(over) // len(node.specs)]


def overs_of(body: Graph, parts: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """For each part the operands that no other part reads, as parts run in no order; none, where sums are made
    while others still read."""
    if reduces(body):
        return ((),) * len(parts)
    readers = Counter(n for operands in parts for n in {*operands})
    return tuple([tuple([n for n in operands if readers[n] == 1]) for operands in parts])
