"""Sums of windows of one series, such as its autocorrelation at several lags, have all its elements as terms:
zeros behind those that a window lacks. So they are one kernel, which reads the series once.

before                                        after
%1 = slice(%0; 2 and later) : float32[n-2]    %1 = slice(%0; 2 and later) : float32[n-2]
%2 = slice(%0; up to n-2) : float32[n-2]      %2 = slice(%0; up to n-2) : float32[n-2]
%3 = multiply(%1, %2) : float32[n-2]          %3 = multiply(%1, %2) : float32[n-2]
%4 = sum(%3) : float32[]                      %4 = pad(%3; 0, 2 behind) : float32[n]
                                              %5 = sum(%4) : float32[]

A kernel combines what has one form (`fuse`), and chooses zeros as it makes an element. What windows are of may
be the series or what is made of it, element by element. Few sums stay apart, as kernels without joins read
vectors. This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ostinato.ops.array.expressions import padded
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

MIN_SUMS = 3  # of one series


def align_sums(graph: Graph, target: Target) -> Graph:
    """The pass."""
    groups: dict[tuple[int, ...], list[int]] = {}
    windowed = _windowed(graph) if target.numerics != "any-workers" else set[int]()
    for k, node in enumerate(graph.nodes):
        if not windowed.isdisjoint(node.inputs) and (series := _series_of(graph, k, windowed)):
            groups.setdefault(series, []).append(k)
    longer: dict[int, int] = {}
    for series, sums in groups.items():
        n = graph.specs[series[0]].shape[0]
        terms = {k: graph.specs[graph.nodes[k].inputs[0]].shape[0] for k in sums}
        if len(sums) >= MIN_SUMS and len({*terms.values()}) > 1:
            longer |= {k: n for k, m in terms.items() if m < n}

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        (v,) = node.inputs
        whole = Spec((longer[k],), graph.specs[v].dtype, graph.specs[v].layout)
        terms = padded(builder, values[v], 0, 0, whole, node.line)
        return builder.add(node.op, [terms], node.params, node.specs, node.line)

    return replace(graph, [*longer], make, lambda g: align_sums(g, target))


def _series_of(graph: Graph, k: int, windowed: Collection[int]) -> tuple[int, ...]:
    """Find what a sum's terms are windows of, if that has one axis and nearly as many elements."""
    node, op = graph.nodes[k], OPS[graph.nodes[k].op]
    if op.reduce is None or len(node.inputs) != 1 or len(node.specs) != 1 or node.specs[0].ndim:
        return ()
    spec = graph.specs[node.inputs[0]]
    is_sum = {kind for _, kind in op.indices((spec,), node.specs, node.kw).reduce} == {"sum"}
    if not is_sum or (op.reduce.factors is None and op.reduce.element != "{0}"):
        return ()
    if spec.ndim != 1 or spec.dtype.kind not in "fiu" or not (spec.layout and spec.layout.is_whole):
        return ()
    series = _windows(graph, node.inputs[0], windowed)
    shapes = {graph.specs[u].shape for u in series}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 1:
        return ()
    lacking = shape[0] - spec.shape[0]
    return series if 0 <= lacking <= shape[0] // 8 else ()


def _windows(graph: Graph, v: int, windowed: Collection[int]) -> tuple[int, ...]:
    """The arrays that terms are windows of, or all of."""
    found, todo, seen = set[int](), [v], set[int]()
    while todo:
        u = todo.pop()
        if u in seen or graph.specs[u].ndim == 0:
            continue
        seen.add(u)
        if u not in windowed:
            found.add(u)
        elif _is_slice(node := graph.nodes[graph.producers[u]]):
            found.add(node.inputs[0])
        else:
            todo += node.inputs
    return tuple(sorted(found))


def _is_slice(node: Node) -> bool:
    return OPS[node.op].moves.selects == "slices" and len(node.kw.get("steps", ())) == 1


def _windowed(graph: Graph) -> set[int]:
    """Windows of arrays of one axis, and what is made of some, element by element."""
    found = set[int]()
    for k, node in enumerate(graph.nodes):
        if _is_slice(node):
            is_one = node.kw["steps"] == (1,)
        else:
            is_one = bool(OPS[node.op].scalar) and not found.isdisjoint(node.inputs)
        if is_one:
            found.update(graph.outs(k))
    return found
