"""Lines in order of which only a few neighbours are read: nothing is put in order, these are found.

before                                           after
%1 = sort(%0; axis=0) : float32[n,16]            %1 = full(; value=7) : int64[1,1]
%2 = slice(%1; starts=(7, 0)) : float32[1,16]    %2 = order_statistics(%0, %1; axes=(0,)) : float32[16,1]
return %2                                        %3 = reshape(%2) : float32[1,16]
                                                 return %3

Bits are the same. Plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.array.expressions import permuted, reshaped
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Spec, int64
from ostinato.ops.gpu.loops.selects import MAX_RANKS
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace


def select_ranks(graph: Graph, target: Target) -> Graph:
    """The pass."""
    ranks = {k: r for k in range(len(graph.nodes)) if (r := _ranks(graph, k))}
    of = {j: k for k in ranks for j in graph.uses[graph.starts[k]]}  # each slice

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, (v, *_) = graph.nodes[k], graph.nodes[k].inputs
        made, line, read = node.specs[0], node.line, ranks[of.get(k, k)]
        axis = graph.nodes[of.get(k, k)].kw["axis"]
        if k in of:
            starts = tuple([n - read.start * (d == axis) for d, n in enumerate(node.kw["starts"])])
            if builder.specs[values[v]].shape == made.shape:
                return [values[v]]
            params = {**node.kw, "starts": starts}
            return builder.add(node.op, [values[v]], params, node.specs, line)
        last, (*left,) = made.ndim - 1, (*made.shape[:axis], *made.shape[axis + 1 :])
        row = Spec((*(1,) * last, len(read)), int64, made.layout)
        how = {"shape": row.shape, "dtype": int64}
        places = builder.add("full", (), {**how, "value": read.start}, (row,), line)
        if len(read) > 1:
            places += builder.add("iota", (), {**how, "axis": last}, (row,), line)
            places = builder.add(MONOIDS["sum"].ufunc, places, (), (row,), line)
        found = Spec((*left, len(read)), made.dtype, made.layout)
        name, params = OPS[node.op].moves.ranked, {"axes": (axis,)}
        (y,) = builder.add(name, [values[v], *places], params, (found,), line)
        turned = Spec((*left[:axis], len(read), *left[axis:]), made.dtype, made.layout)
        if len(read) == 1:
            return [reshaped(builder, y, turned, line)]
        return [permuted(builder, y, (*range(axis), last, *range(axis, last)), turned, line)]

    return replace(graph, {**ranks, **of}, make, lambda g: select_ranks(g, target))


def _ranks(graph: Graph, k: int) -> range | None:
    """The ranks from the first to the last that is read of a node's result, if these are few."""
    node, v, made = graph.nodes[k], graph.starts[k], graph.nodes[k].specs[0]
    users, whole = [graph.nodes[j] for j in graph.uses[v]], made.layout and made.layout.is_whole
    rising = op_of(node.op).moves.ranked and not node.kw.get("descending", False)
    sliced = all(OPS[u.op].moves.selects == "slices" for u in users)
    if not (rising and users and sliced and whole) or v in graph.outputs:
        return None
    axis = node.kw["axis"]
    parts = [[u.kw[key][axis] for key in ("starts", "sizes", "steps")] for u in users]
    read = range(min(p[0] for p in parts), max(at + (many - 1) * by + 1 for at, many, by in parts))
    return read if 0 < len(read) <= MAX_RANKS else None
