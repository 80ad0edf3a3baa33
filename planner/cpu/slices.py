"""Of what is made of an operand element by element, and read in slices only, just these are made, each
by the kernel that reads it: the channels of a picture that was cast, neighbours of a scaled signal.

before                                                after
(%0: uint8[9,3])                                      (%0: uint8[9,3])
%1 = astype(%0; dtype=dtype float32) : float32[9,3]   %1 = slice(%0; starts=(0, 2), ...) : uint8[9,1]
%2 = slice(%1; starts=(0, 2), ...) : float32[9,1]     %2 = astype(%1; dtype=dtype float32) : float32[9,1]
return %2                                             return %2

Where slices overlap, only cheap operations are done again, and no more than `AGAIN` times; what is read in
more than a few slices stays whole. This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence, Set

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import looked_at, replace

AGAIN = 2  # times that an element is computed at the most, on average
MAX_SLICES = 4  # slices of a value, for each of which all that leads to it is one more node


def slice_first(graph: Graph, target: Target) -> Graph:
    cut = _cut(graph)
    looks: dict[int, tuple[int, list[Node]]] = {}  # what is cut, and how values look at it
    for k, node in enumerate(graph.nodes if cut else ()):
        # or looks at what is cut, which then still is cut
        cuts = OPS[node.op].moves.selects == "slices"
        v = node.inputs[0] if cuts or OPS[node.op].renames_axes else -1
        if v in looks or (v in cut and cuts):
            source, before = looks.get(v, (v, []))
            looks[graph.starts[k]] = source, [*before, node]

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        return (_made(graph, builder, values, cut, *looks[graph.starts[k]]),)

    chosen = {graph.producers[v] for v in looks}
    return replace(graph, chosen, make, lambda g: slice_first(g, target))


def _cut(graph: Graph) -> set[int]:
    """Values that are made of operands and numbers element by element, and read in slices only."""
    if not any(_is_slice(node) for node in graph.nodes):
        return set()
    begins = set(range(len(graph.inputs)))
    for k, node in enumerate(graph.nodes):
        spec, v = node.specs[0], graph.starts[k]
        if len(node.specs) > 1 or spec.pending:
            continue
        looks = OPS[node.op].is_view and len(node.inputs) == 1
        number = node.op == "constant" and not spec.shape
        alike = OPS[node.op].scalar and all(_alike(graph, u, spec) for u in node.inputs)
        if (looks or number or alike) and begins.issuperset(node.inputs):
            begins.add(v)
    slices: dict[int, set[int]] = {}  # of which values, and which nodes they are
    for k in reversed(range(len(graph.nodes))):
        node, v = graph.nodes[k], graph.starts[k]
        (spec, *_) = node.specs
        if not OPS[node.op].scalar or not spec.shape or v not in begins or v in graph.outputs:
            continue
        found = set[int]()
        for j in graph.uses[v]:
            found |= {j} if _is_slice(graph.nodes[j]) else slices.get(graph.starts[j], {ALL})
        often = sum(graph.nodes[j].specs[0].size for j in found if j != ALL)
        most = AGAIN if OPS[node.op].is_cheap else 1
        if 0 < len(found) <= MAX_SLICES and ALL not in found and often <= most * spec.size:
            slices[v] = found
    return set(slices)


def _is_slice(node: Node) -> bool:
    return OPS[node.op].moves.selects == "slices"


ALL = -1  # in the place of a slice: who reads it whole


def _alike(graph: Graph, v: int, spec: Spec) -> bool:
    """Whether an operand has an element for each of the result, in the same place, or one for all."""
    own = graph.specs[v]
    return own.shape == () or (own.shape == spec.shape and own.layout == spec.layout)


def _made(
    graph: Graph,
    builder: Builder,
    values: Sequence[int],
    cut: Set[int],
    source: int,
    looks: Sequence[Node],
) -> int:
    """Make the slice of a value from slices of its operands."""
    leads, waiting = {source}, [source]
    while waiting:
        node = graph.nodes[graph.producers[waiting.pop()]]
        more = cut & {*node.inputs} - leads
        leads |= more
        waiting += more
    seen, known = looks[-1].specs[0], dict[int, int]()
    for v in sorted(leads):
        node = graph.nodes[graph.producers[v]]
        for u in node.inputs:
            if u not in known:
                known[u] = looked_at(builder, values[u], looks if graph.specs[u].shape else ())
        spec = Spec(seen.shape, graph.specs[v].dtype, seen.layout)
        inputs = [known[u] for u in node.inputs]
        (known[v],) = builder.add(node.op, inputs, node.params, (spec,), node.line)
    return known[source]
