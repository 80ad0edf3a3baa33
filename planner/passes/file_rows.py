"""Rows of files counted otherwise where they are read: the first axes in one row, or every other row beside
the one that follows it.

before                                              after
%1 = slice(%0; starts=(0, 0), steps=(2, 1), ...)    %1 = read(%0) : float32[10,4]
%2 = slice(%0; starts=(1, 0), steps=(2, 1), ...)    %2 = slice(%1; starts=(0, 0), steps=(2, 1), ...)
                                                    %3 = slice(%1; starts=(1, 0), steps=(2, 1), ...)

So is read once what each of several operations would read for itself, and blocks need not begin where
rows do."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ostinato.ops.array.expressions import Expression
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.planned.collective import STORED

from .file_joins import CLOSE, Box, all_parts, read_as_one
from .file_views import groups

NEIGHBOURS = 16  # rows that are read together, of which each is wanted by somebody


def interleaved(graph: Graph, files: Collection[int]) -> Graph:
    """The graph that reads every other row, or such, together with those between that others want, where
    all would be read for each of them."""
    alike: dict[tuple[int, int], list[int]] = {}
    for k, node in enumerate(graph.nodes):
        if node.op != "slice_file" or node.inputs[0] not in files:
            continue
        spec, step = graph.specs[node.inputs[0]], node.kw["steps"][0]
        row = spec.nbytes // max(spec.shape[0], 1)
        readers = [graph.nodes[u] for u in graph.uses[graph.starts[k]]]
        stays = any(n.op in STORED or any(n.subgraphs()) for n in readers)
        if 1 < step <= NEIGHBOURS and row * (step - 1) <= CLOSE and not stays:
            alike.setdefault((node.inputs[0], step), []).append(k)
    hulls: dict[int, Box] = {}
    for (v, _), ks in alike.items():
        rows = [_rows_of(graph.nodes[k]) for k in ks if graph.specs[graph.starts[k]].size]
        if len(rows) > 1:
            first, end = min(a for a, _ in rows), max(b for _, b in rows)
            hull = ((first, end - first, 1), *all_parts(graph.specs[v].shape[1:]))
            hulls.update(dict.fromkeys(ks, hull))
    return read_as_one(graph, hulls)


def _rows_of(node: Node) -> tuple[int, int]:
    """The range of rows in which those of a slice are."""
    start, count, step = (node.kw[name][0] for name in ("starts", "sizes", "steps"))
    return start, start + step * (count - 1) + 1


def merge_rows(graph: Graph, files: Collection[int]) -> Graph:
    """The graph that counts the first axes of files in one row where these are read, if it does so after
    functions of elements: one row goes on from block to block, wherever rows begin."""

    def rule(node: Node) -> Sequence[int] | None:
        if not OPS[node.op].reshapes or not node.specs[0].size:
            return None
        shape, new = graph.specs[node.inputs[0]].shape, node.specs[0].shape
        olds, news = next(groups(shape, new), ([], []))
        axes = len(olds)
        if len(news) != 1 or sum(shape[d] > 1 for d in olds) < 2:
            return None
        if not _is_of_files(graph, node.inputs[0], files):
            return None
        row = _row(graph, node.inputs[0], axes, files, builder, values)
        return [Expression(builder, row, node.line).reshape(*new).value]

    builder, values = Builder(graph.inputs), list(range(len(graph.inputs)))
    for node in graph.nodes:
        inputs = [values[v] for v in node.inputs]
        made = rule(node)
        values.extend(made or builder.add(node.op, inputs, node.params, node.specs, node.line))
    return builder.graph([values[v] for v in graph.outputs])


def _is_of_files(graph: Graph, v: int, files: Collection[int]) -> bool:
    """Whether a value is a function of elements of files that are all of its shape, and of numbers."""
    if v in files:
        return True
    k = graph.producers[v]
    node = graph.nodes[k] if k >= 0 else None
    if node is None or not OPS[node.op].scalar or len(node.specs) > 1:
        return False
    wide = [u for u in node.inputs if graph.specs[u].ndim]
    same = all(graph.specs[u].shape == graph.specs[v].shape for u in wide)
    return same and bool(wide) and all(_is_of_files(graph, u, files) for u in wide)


def _row(
    graph: Graph, v: int, axes: int, files: Collection[int], builder: Builder, values: Sequence[int]
) -> int:
    """A value with its first axes counted in one row."""
    spec = graph.specs[v]
    shape = (math.prod(spec.shape[:axes]), *spec.shape[axes:])
    node = graph.nodes[graph.producers[v]] if v not in files else None
    if node is None:
        made = Spec((shape[0], *(1,) * (axes - 1), *shape[1:]), spec.dtype, spec.layout)
        (merged,) = builder.add("merge_file", (values[v],), {"axes": axes}, (made,))
        return Expression(builder, merged).reshape(*shape).value
    inputs = [
        _row(graph, u, axes, files, builder, values) if graph.specs[u].ndim else values[u]
        for u in node.inputs
    ]
    specs = (Spec(shape, spec.dtype),)
    return builder.add(node.op, inputs, node.params, specs, node.line)[0]
