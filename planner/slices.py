"""Of what is made of an operand element by element, and read in slices only, just these are made, each
by the kernel that reads it: the channels of a picture that was cast, neighbours of a scaled signal.

before                                                after
(%0: uint8[9,3])                                      (%0: uint8[9,3])
%1 = astype(%0; dtype=dtype float32) : float32[9,3]   %1 = slice(%0; starts=(0, 2), ...) : uint8[9,1]
%2 = slice(%1; starts=(0, 2), ...) : float32[9,1]     %2 = astype(%1; dtype=dtype float32) : float32[9,1]
return %2                                             return %2

Where slices overlap, only cheap operations are done again, and no more than `AGAIN` times. This belongs to
this machine: plan files hold the graph without it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ostinato.ops.graph import Builder, Graph, Node
from ostinato.ops.labels import CHEAP
from ostinato.ops.registry import OPS
from ostinato.ops.spec import Spec

from .narrow import needed
from .plan import Target
from .rewrite import map_bodies

AGAIN = 2  # times that an element is computed at the most, on average


def slice_first(graph: Graph, target: Target) -> Graph:
    """The pass."""
    if target.device != "cpu":
        return graph
    cut = _cut(graph)
    builder, values = Builder(graph.inputs), list(range(len(graph.inputs)))
    changed = bool(cut)
    looks: dict[int, tuple[int, list[Node]]] = {}  # what is cut, and how values look at it
    for k, node in enumerate(graph.nodes):
        whole = map_bodies(node, lambda g: slice_first(g, target))
        changed |= whole is not node
        v = node.inputs[0] if node.op in ("slice", *_AFTER) else -1
        if v in looks or (v in cut and node.op == "slice"):
            source, before = looks.get(v, (v, []))
            look = looks[graph.starts[k]] = source, [*before, node]
            values.append(_made(graph, builder, values, cut, *look))
            continue
        inputs = [values[v] for v in node.inputs]
        values.extend(builder.add(node.op, inputs, whole.params, node.specs, node.line))
    return needed(builder, [values[v] for v in graph.outputs]) if changed else graph


_AFTER = ("squeeze", "expand_dims")  # a slice that is looked at in such ways still is one


def _cut(graph: Graph) -> set[int]:
    """Values that are made of operands and numbers element by element, and read in slices only."""
    begins = set(range(len(graph.inputs)))
    for k, node in enumerate(graph.nodes):
        spec, v = node.specs[0], graph.starts[k]
        if len(node.specs) > 1 or spec.pending:
            continue
        looks = OPS[node.op].only_looks and len(node.inputs) == 1
        number = node.op == "constant" and not spec.shape
        alike = OPS[node.op].scalar and all(_alike(graph, u, spec) for u in node.inputs)
        if (looks or number or alike) and begins.issuperset(node.inputs):
            begins.add(v)
    read: dict[int, float] = {}  # how often an element is, on average
    for k in reversed(range(len(graph.nodes))):
        node, v = graph.nodes[k], graph.starts[k]
        if not OPS[node.op].scalar or v not in begins or v in graph.outputs:
            continue
        size, often = max(math.prod(node.specs[0].shape), 1), 0.0
        for j in graph.uses[v]:
            (*_, spec), w = graph.nodes[j].specs, graph.starts[j]
            is_slice = graph.nodes[j].op == "slice"
            often += math.prod(spec.shape) / size if is_slice else read.get(w, math.inf)
        if 0 < often <= (AGAIN if node.op in CHEAP else 1):
            read[v] = often
    return set(read)


def _alike(graph: Graph, v: int, spec: Spec) -> bool:
    """Whether an operand has an element for each of the result, in the same place, or one for all."""
    own = graph.specs[v]
    return own.shape == () or (own.shape == spec.shape and own.layout == spec.layout)


def _made(
    graph: Graph,
    builder: Builder,
    values: Sequence[int],
    cut: Collection[int],
    v: int,
    looks: Sequence[Node],
) -> int:
    """What is seen of a value, made of what is seen of its operands."""
    dtype, made = graph.specs[v].dtype, values[v]
    if not graph.specs[v].shape:
        return made
    if v in cut:
        node, seen = graph.nodes[graph.producers[v]], looks[-1].specs[0]
        inputs = [_made(graph, builder, values, cut, u, looks) for u in node.inputs]
        found = Spec(seen.shape, dtype, seen.layout)
        return builder.add(node.op, inputs, node.params, (found,), node.line)[0]
    for look in looks:
        found = Spec(look.specs[0].shape, dtype, look.specs[0].layout)
        (made,) = builder.add(look.op, (made,), look.params, (found,), look.line)
    return made
