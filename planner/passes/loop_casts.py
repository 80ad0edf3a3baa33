"""What every turn of a loop would round alike is rounded once, before the loop.

before                                            after
%2 = loop(%0, %1; body=(                          %2 = astype(%1; dtype=dtype bfloat16)
    (%0: int64, %1: float32[9], %2: float32)      %3 = loop(%2, %0; body=(
    %3 = astype(%1; dtype=dtype bfloat16)             (%0: int64, %1: bfloat16[9], %2: float32)
    ...                                               ..."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Spec, is_inexact

from .storage import cast_once

LOOPS = {"loop": 1, "while": 0}  # inputs of a body before its constants
Cast = tuple[int, DType]  # of this constant, to this dtype


def cast_before(builder: Builder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    """A loop over these operands, whose bodies find their constants cast."""
    params, first = dict(node.params), LOOPS[node.op]
    count, *others = params["counts"]
    bodies = dict(node.subgraphs())
    casts = list(dict.fromkeys(c for g in bodies.values() for c in _casts(g, first, count)))
    if not casts:
        return builder.add(node.op, inputs, params, node.specs, node.line)
    read = {v - first for g in bodies.values() for v in _read(g, first, count)}
    kept = [k for k in range(count) if k in read or k not in {c for c, _ in casts}]
    for name, body in bodies.items():
        params[name] = _given(body, first, count, kept, casts)
    params["counts"] = (len(kept) + len(casts), *others)
    given = [cast_once(builder, inputs[k], dtype, node.line) for k, dtype in casts]
    operands = [*(inputs[k] for k in kept), *given, *inputs[count:]]
    return builder.add(node.op, operands, params, node.specs, node.line)


def _cast(graph: Graph, node: Node, first: int, count: int) -> Cast | None:
    """Whether a node rounds a constant of the loop."""
    if not OPS[node.op].moves.converts:
        return None
    (v,), dtype = node.inputs, node.specs[0].dtype
    inside = first <= v < first + count and is_inexact(dtype)
    narrows = dtype.itemsize < graph.specs[v].dtype.itemsize
    return (v - first, dtype) if inside and narrows else None


def _casts(graph: Graph, first: int, count: int) -> list[Cast]:
    found = [_cast(graph, node, first, count) for node in graph.nodes]
    return [c for c in found if c is not None]


def _read(graph: Graph, first: int, count: int) -> list[int]:
    """Constants that are read as they are, too."""
    found = [v for node in graph.nodes if not _cast(graph, node, first, count) for v in node.inputs]
    return [v for v in (*found, *graph.outputs) if first <= v < first + count]


def _given(
    graph: Graph, first: int, count: int, kept: Sequence[int], casts: Sequence[Cast]
) -> Graph:
    """A body that is given its constants cast."""
    specs = graph.inputs[first : first + count]
    new = [Spec(specs[k].shape, dtype) for k, dtype in casts]
    behind = first + len(kept) + len(casts)
    builder = Builder(
        (*graph.inputs[:first], *(specs[k] for k in kept), *new, *graph.inputs[first + count :])
    )
    values = list(range(first)) + [-1] * count
    for n, k in enumerate(kept):
        values[first + k] = first + n
    values += range(behind, behind + len(graph.inputs) - first - count)
    for node in graph.nodes:
        cast = _cast(graph, node, first, count)
        if cast is not None:
            values.append(first + len(kept) + casts.index(cast))
            continue
        made = builder.add(
            node.op, [values[v] for v in node.inputs], node.params, node.specs, node.line
        )
        values.extend(made)
    return builder.graph([values[v] for v in graph.outputs])
