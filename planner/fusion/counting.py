"""Counts as elementwise operations on the numbers of elements, so that kernels count by themselves.

before                                           after
%1 = iota(axis=0) : float32[n]                   %1 = constant(0) : int64[]
%2 = multiply(%0, %1) : float32[n]               %2 = numbers(%1) : int64[n]
return %2                                        %3 = counted(%2) : float32[n]
                                                 %4 = multiply(%0, %3) : float32[n]
                                                 return %4

Looks at a count are counts, too, from elsewhere on and in other steps: slices, new axes, rows of a long
line. Each kernel that reads a count takes `counted` in (groups.py); it is an array only where something
else reads it. Kernels in stages know their own indices, so they have read their counts before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, all_coords, bounds_of_many
from ostinato.ops.core.registry import OPS, Place
from ostinato.ops.core.spec import Shape, Spec, int64
from ostinato.ops.jit.loops import COUNTED
from ostinato.planner.rewrite import replace

from .groups import Lowers

MIN_READ_ELEMENTS = 4096  # elements of what reads a count, outside of loops


@dataclass(frozen=True, slots=True)
class _Count:
    """Numbers that begin somewhere and grow by so much along each axis."""

    first: int
    steps: tuple[int, ...]


def count_in_kernels(
    graph: Graph,
    lowers: Lowers,
    turns: int = 1,
    only: Callable[[Spec, Sequence[int]], bool] = lambda spec, steps: True,
) -> Graph:
    """The pass. `turns`: how often all of it is done; `only`: of which values, by the steps of their
    axes."""
    counts = dict(_counts(graph))
    chosen = {
        graph.producers[v]: count
        for v, count in counts.items()
        if _is_wanted(graph, v, counts, turns)
        and only(graph.specs[v], count.steps)
        and lowers(COUNTED, (int64,), graph.specs[v].dtype)
    }

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, count = graph.nodes[k], chosen[k]
        (spec,) = node.specs
        numbers = numbers_of(builder, spec, count.first, count.steps)
        return builder.add(COUNTED, (numbers,), {"dtype": spec.dtype}, node.specs, node.line)

    return replace(graph, chosen, make) if chosen else graph


def _is_wanted(graph: Graph, v: int, counts: dict[int, _Count], turns: int) -> bool:
    """Whether something large reads it as it is."""
    sizes = [graph.specs[v].size] if v in graph.outputs else []
    for k in graph.uses[v]:
        outs = graph.outs(k)
        if not counts.keys() >= {*outs}:
            sizes += [graph.specs[u].size for u in (v, *outs)]
    return max(sizes, default=0) * turns >= MIN_READ_ELEMENTS


# -- what is a count -------------------------------------------------------------------------
def _counts(graph: Graph) -> Iterator[tuple[int, _Count]]:
    found: dict[int, _Count] = {}
    for k, node in enumerate(graph.nodes):
        made = None
        if node.op == "iota":
            shape, axis = node.kw["shape"], node.kw["axis"]
            made = _Count(0, tuple([int(d == axis) for d in range(len(shape))]))
        elif len(node.inputs) == 1 and (source := found.get(node.inputs[0])) is not None:
            made = _looked(node, graph.specs[node.inputs[0]].shape, source)
        (spec, *_) = node.specs
        if made is not None and spec.size and spec.layout is not None:
            found[graph.starts[k]] = made
            yield graph.starts[k], made


def steps_of(graph: Graph, v: int) -> tuple[int, ...]:
    """How many elements it is to the next one along each axis of a look, where that which is looked at lies
    in order."""
    k = graph.producers[v]
    if k >= 0 and (OPS[graph.nodes[k].op].is_view or OPS[graph.nodes[k].op].reshapes):
        node = graph.nodes[k]
        (source,) = node.inputs
        made = _looked(node, graph.specs[source].shape, _Count(0, steps_of(graph, source)))
        return row_steps(node.specs[0].shape) if made is None else made.steps
    return row_steps(graph.specs[v].shape)


def _looked(node: Node, shape: Shape, source: _Count) -> _Count | None:
    """Count a view: NumPy finds its strides, with a byte for each number."""
    rule, to = OPS[node.op], node.specs[0].shape
    if rule.view is None or not (rule.is_view or rule.reshapes):
        return None
    memory = np.empty(1, np.int8)
    x = np.lib.stride_tricks.as_strided(memory, shape, source.steps)
    if rule.is_view:
        boxes = [tuple([(0, n) for n in s]) for s in (shape, to)]
        x = rule.view(np, x, Place((boxes[0],), (boxes[1],), (shape,), (to,)), **node.kw)
    else:
        try:
            x = x.reshape(to, copy=False)  # a copy would read what is nowhere
        except ValueError:
            return None
    if x.shape != to:
        return None
    first = source.first + x.__array_interface__["data"][0] - memory.ctypes.data
    return _Count(first, x.strides)


# -- numbers ---------------------------------------------------------------------------------
def row_steps(shape: Shape) -> tuple[int, ...]:
    """Steps from one element to the next along each axis, where all are counted row by row."""
    return tuple([math.prod(shape[d + 1 :]) for d in range(len(shape))])


def differs_by_part(spec: Spec, steps: Sequence[int]) -> bool:
    """Whether these numbers begin elsewhere on each worker."""
    layout = spec.layout
    return layout is not None and any(step and layout.axes(d) for d, step in enumerate(steps))


def numbers_of(builder: Builder, spec: Spec, first: int, steps: Sequence[int]) -> int:
    """The numbers of a value's elements: of the first one of the global array, and how they grow."""
    layout, shape = spec.layout, spec.shape
    assert layout is not None
    begin: Any = first
    if differs_by_part(spec, steps):
        coords = all_coords(layout.mesh, range(len(layout.mesh)))
        begin = np.full(layout.mesh, first, np.int64)
        for d, step in enumerate(steps):
            begin = begin + bounds_of_many(layout, shape[d], d, coords)[0] * step
        each = Spec((layout.workers,), int64, Layout(layout.mesh, (0,) * len(layout.mesh)))
        numbers = np.maximum(begin, 0).ravel().tolist()  # an empty part may begin before all
        params: dict[str, Any] = {"numbers": tuple(numbers)}
        made = builder.add("first_number", (), params, (each,))
    else:
        params = {"value": first, "dtype": int64}
        made = builder.add("constant", (), params, (Spec((), int64, Layout.whole(layout.mesh)),))
    given = {"shape": shape, "steps": tuple(steps)}
    return builder.add("numbers", made, given, (Spec(shape, int64, layout),))[0]
