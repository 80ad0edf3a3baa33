"""What is rolled in several ways, as a periodic grid's neighbours are, is copied once with edges from the
other end around it; each roll is then a slice of that, which kernels read as they do any neighbour.

before                                                  after
%1 = slice(%0; starts=(8,), ...) : float32[1]           %1 = slice(%0; starts=(8,), ...) : float32[1]
%2 = slice(%0; starts=(0,), ...) : float32[8]           %2 = slice(%0; starts=(0,), ...) : float32[1]
%3 = concat(%1, %2; axis=0) : float32[9]                %3 = concat(%1, %0, %2; axis=0) : float32[11]
%4 = slice(%0; starts=(1,), ...) : float32[8]           %4 = slice(%3; starts=(0,), ...) : float32[9]
%5 = slice(%0; starts=(0,), ...) : float32[1]           %5 = slice(%3; starts=(2,), ...) : float32[9]
%6 = concat(%4, %5; axis=0) : float32[9]                %6 = add(%4, %5) : float32[9]
%7 = add(%3, %6) : float32[9]                           return %6
return %7

Loop kernels are made of it (loop_kernels.py); other kernels read each roll where it lies
(planner/fusion/joins.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ostinato.ops.array.expressions import joined, sliced
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

MAX_GROWTH = 1.5  # times as large as what is rolled the copy may be
Shifts = dict[int, int]  # by axis, forth or back


@dataclass(frozen=True, slots=True)
class _Roll:
    source: int
    shifts: Shifts


def slice_rolls(graph: Graph, target: Target) -> Graph:
    """The graph with such copies, and the bodies of its loops."""
    rolls = _rolls(graph)
    edges = _edges(graph, rolls)
    chosen = {
        graph.producers[v]: r
        for v, r in rolls.items()
        if r.source in edges and _is_read(graph, v, rolls)
    }
    copies: dict[int, int] = {}  # of a source, of the new graph

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        roll, (spec,) = chosen[k], graph.nodes[k].specs
        around = edges[roll.source]
        if roll.source not in copies:
            line = graph.nodes[k].line
            copies[roll.source] = _surrounded(builder, values[roll.source], around, line)
        starts = [0] * spec.ndim
        for axis, (before, _) in around.items():
            starts[axis] = before - roll.shifts.get(axis, 0)
        return (sliced(builder, copies[roll.source], starts, spec, graph.nodes[k].line),)

    return replace(graph, chosen, make, lambda g: slice_rolls(g, target))


# -- what is rolled ----------------------------------------------------------------------------
def _rolls(graph: Graph) -> dict[int, _Roll]:
    """Values that are others, or rolls of others, rolled along one axis."""
    found: dict[int, _Roll] = {}
    for k, node in enumerate(graph.nodes):
        if not OPS[node.op].moves.concatenates or len(node.inputs) != 2:
            continue
        parts = [graph.nodes[p] for v in node.inputs if (p := graph.producers[v]) >= 0]
        axis, (spec,) = node.kw["axis"], node.specs
        if len(parts) < 2 or any(OPS[p.op].moves.selects != "slices" for p in parts):
            continue
        (v,), (w,) = parts[0].inputs, parts[1].inputs
        n, by = spec.shape[axis], parts[0].specs[0].shape[axis]
        starts = [0] * spec.ndim
        is_back = parts[1].kw["starts"] == tuple(starts)
        starts[axis] = n - by
        rolled = v == w and is_back and parts[0].kw["starts"] == tuple(starts)
        straight = all(set(p.kw["steps"]) == {1} for p in parts)
        if rolled and straight and graph.specs[v] == spec and _is_here(spec, axis):
            before = found.get(v, _Roll(v, {}))
            if axis not in before.shifts:
                shift = by if 2 * by <= n else by - n
                found[graph.starts[k]] = _Roll(before.source, {**before.shifts, axis: shift})
    return found


def _is_here(spec: Spec, axis: int) -> bool:
    """Whether every worker has all along the axis."""
    layout = spec.layout
    return layout is None or not (layout.windows or layout.blocks or axis in layout.splits)


def _is_read(graph: Graph, v: int, rolls: Mapping[int, _Roll]) -> bool:
    """Whether kernels read it, and not only who rolls it further; nobody else does."""
    readers = _readers(graph, v, rolls)
    return (
        bool(readers)
        and v not in graph.outputs
        and all(OPS[graph.nodes[k].op].scalar for k in readers)
    )


def _readers(graph: Graph, v: int, rolls: Mapping[int, _Roll]) -> list[int]:
    found = []
    for k in graph.uses[v]:
        cuts = OPS[graph.nodes[k].op].moves.selects == "slices"
        if not (cuts and all(graph.starts[j] in rolls for j in graph.uses[graph.starts[k]])):
            found.append(k)
    return found


def _edges(graph: Graph, rolls: Mapping[int, _Roll]) -> dict[int, dict[int, tuple[int, int]]]:
    """By what is rolled in more ways than a copy has edges along axes: how many elements are around it
    along each, before and after."""
    found: dict[int, dict[int, tuple[int, int]]] = {}
    saved: dict[int, int] = {}
    for v, roll in rolls.items():
        if _is_read(graph, v, rolls):
            around = found.setdefault(roll.source, {})
            for axis, shift in roll.shifts.items():
                before, after = around.get(axis, (0, 0))
                around[axis] = max(before, shift), max(after, -shift)
            saved[roll.source] = saved.get(roll.source, 0) + 1
    return {
        v: dict(sorted(around.items()))
        for v, around in found.items()
        if saved[v] > len(around) and _growth(graph.specs[v], around) <= MAX_GROWTH
    }


def _growth(spec: Spec, around: Mapping[int, tuple[int, int]]) -> float:
    return math.prod(1 + sum(edge) / spec.shape[axis] for axis, edge in around.items())


# -- the copy ------------------------------------------------------------------------------
def _surrounded(builder: Builder, v: int, around: Mapping[int, tuple[int, int]], line: str) -> int:
    """A copy with elements of the other end around it: so many before and after along axes."""
    for axis, edges in around.items():
        v = _surrounded_along(builder, v, axis, *edges, line)
    return v


def _surrounded_along(
    builder: Builder, v: int, axis: int, before: int, after: int, line: str
) -> int:
    spec = builder.specs[v]
    n = spec.shape[axis]

    def resized(size: int) -> Spec:
        shape = (*spec.shape[:axis], size, *spec.shape[axis + 1 :])
        return Spec(shape, spec.dtype, spec.layout)

    def part(size: int, start: int = 0) -> int:
        starts = [start * (d == axis) for d in range(spec.ndim)]
        return sliced(builder, v, starts, resized(size), line)

    parts = [part(before, n - before)] if before else []
    parts += [v, part(after)] if after else [v]
    return joined(builder, parts, axis, resized(n + before + after), line)
