"""Random numbers as elementwise operations on the numbers of elements, so that kernels take them in.

before                                           after
%2 = random_bits(%1) : uint32[n]                 %2 = first_number() : int64[1]
%3 = less(%2, %0) : bool[n]                      %3 = numbers(%2) : int64[n]
return %3                                        %4 = bits32(%1, %3, 4) : uint32[n]
                                                 %5 = less(%4, %0) : bool[n]
                                                 return %5

`numbers` has no memory: it only tells kernels where elements are among all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, all_coords, bounds_of_many
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec, int64
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

LARGE = 4096  # elements, outside of loops; only this decides, so that no layout changes a bit


def draw_in_kernels(graph: Graph, target: Target, turns: int = 1) -> Graph:
    """The pass. `turns`: how often all of it is done."""
    least = LARGE if turns == 1 else 1
    drawn = {k for k, node in enumerate(graph.nodes) if _is_drawn(node, target, least)}

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        return _drawn(builder, node, [values[v] for v in node.inputs], target)

    return replace(graph, drawn, make) if drawn else graph


def _is_drawn(node: Node, target: Target, least: int) -> bool:
    drawn = OPS[node.op].drawn
    large = node.specs[0].size >= least
    return drawn is not None and large and drawn(node.kw, target.math) != ""


def _drawn(builder: Builder, node: Node, inputs: Sequence[int], target: Target) -> Sequence[int]:
    """The numbers of the elements, and what is drawn for them."""
    numbers = _numbers(builder, node.specs[0])
    drawn = OPS[node.op].drawn
    assert drawn is not None
    name = drawn(node.kw, target.math)
    if "stream" not in node.kw:
        return builder.add(name, (*inputs, numbers), {}, node.specs, node.line)
    assert node.specs[0].layout is not None
    layout = Layout.whole(node.specs[0].layout.mesh)
    params = {"value": node.kw["stream"], "dtype": int64}
    (stream,) = builder.add("constant", (), params, (Spec((), int64, layout),))
    return builder.add(name, (*inputs, numbers, stream), {}, node.specs, node.line)


def _numbers(builder: Builder, spec: Spec) -> int:
    """The numbers of a value's elements among all of the global array, row by row."""
    layout, shape = spec.layout, spec.shape
    assert layout is not None
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    coords = all_coords(layout.mesh, range(len(layout.mesh)))
    first: Any = np.zeros(layout.mesh, np.int64)
    for d, step in enumerate(strides):
        first = first + bounds_of_many(layout, shape[d], d, coords)[0] * step
    firsts = tuple(first.ravel().tolist())
    each = Layout(layout.mesh, (0,) * len(layout.mesh))
    own = Spec((layout.workers,), int64, each)
    made = builder.add("first_number", (), {"numbers": firsts}, (own,))
    return builder.add("numbers", made, {"shape": shape}, (Spec(shape, int64, layout),))[0]
