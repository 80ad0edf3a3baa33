"""What is cast is sent in the narrower dtype: a widening cast comes after the relayout, a narrowing one
before it, if nobody reads what was sent otherwise.

before                                                 after
%1 = astype(%0) : float32[8] @ split 0                 %1 = relayout(%0) : bfloat16[8] @ whole
%2 = relayout(%1) : float32[8] @ whole                 %2 = astype(%1) : float32[8] @ whole

%1 = relayout(%0) : float32[8] @ whole                 %1 = astype(%0) : bfloat16[8] @ split 0
%2 = astype(%1) : bfloat16[8] @ whole                  %2 = relayout(%1) : bfloat16[8] @ whole

Addends are combined as wide as they are."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.array.expressions import cast
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Spec, is_inexact, promote
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import Values, rebuild


def send_narrow(graph: Graph, target: Target) -> Graph:
    """The pass. A graph on one worker stays as it is."""
    if target.workers == 1:
        return graph
    early = _rounded_by_all(graph)

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        if not _moves(graph, node):
            if (
                OPS[node.op].moves.converts
                and builder.specs[inputs[0]].dtype == node.specs[0].dtype
            ):
                return inputs  # was sent so
            return None
        (v,), (end,) = inputs, node.specs
        narrow = early.get((node.inputs[0], end.layout))
        if narrow is not None:
            v = cast(builder, v, _as(builder.specs[v], narrow), node.line)
        else:
            v = _before_widening(builder, v)
        sent = builder.add(node.op, (v,), (), (_as(end, builder.specs[v].dtype),), node.line)
        if narrow is not None or builder.specs[v].dtype == end.dtype:
            return sent
        return (cast(builder, sent[0], end, node.line),)

    return rebuild(graph, rule, lambda g: send_narrow(g, target))


def _as(spec: Spec, dtype: DType) -> Spec:
    return Spec(spec.shape, dtype, spec.layout)


def _moves(graph: Graph, node: Node) -> bool:
    """Whether it moves one array between workers, without adding."""
    if node.op != "relayout" or len(node.inputs) != 1:
        return False
    layout = graph.specs[node.inputs[0]].layout
    return layout is not None and not layout.partial_axes and not layout.stored


def _rounded_by_all(graph: Graph) -> dict[tuple[int, Layout | None], DType]:
    """Find relayouts whose readers all round to one narrower dtype, and this dtype, by what moves
    where."""
    found: dict[tuple[int, Layout | None], DType] = {}
    for k, node in enumerate(graph.nodes):
        v = graph.starts[k]
        if not _moves(graph, node) or v in graph.outputs:
            continue
        readers = [graph.nodes[u] for u in graph.uses[v]]
        to = {r.specs[0].dtype for r in readers}
        if len(to) != 1 or not all(OPS[r.op].moves.converts for r in readers):
            continue
        (dtype,) = to
        if is_inexact(dtype) and dtype.itemsize < node.specs[0].dtype.itemsize:
            found[node.inputs[0], node.specs[0].layout] = dtype
    return found


def _before_widening(builder: Builder, v: int) -> int:
    """A value as it was before a cast that lost nothing, seen as it is seen since."""
    maker = builder.maker(v)
    if maker is None or len(maker.inputs) != 1:
        return v
    wide = builder.specs[v].dtype
    if OPS[maker.op].moves.converts:
        source = maker.inputs[0]
        narrow = builder.specs[source].dtype
        exact = narrow.itemsize < wide.itemsize and promote(narrow, wide) == wide
        same = builder.specs[source].layout is builder.specs[v].layout
        return source if exact and same and is_inexact(narrow) else v
    if OPS[maker.op].moves.same_elements and OPS[maker.op].is_view:
        source = _before_widening(builder, maker.inputs[0])
        if source != maker.inputs[0]:
            spec = _as(maker.specs[0], builder.specs[source].dtype)
            return builder.add(maker.op, (source,), maker.params, (spec,), maker.line)[0]
    return v
