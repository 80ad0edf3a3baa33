"""Random numbers as elementwise operations on the numbers of elements, so that kernels take them in.

before                                           after
%2 = random_bits(%1) : uint32[n]                 %2 = first_number() : int64[1]
%3 = less(%2, %0) : bool[n]                      %3 = numbers(%2) : int64[n]
return %3                                        %4 = bits32(%1, %3, 4) : uint32[n]
                                                 %5 = less(%4, %0) : bool[n]
                                                 return %5

An element's number is its place among all of the global array, row by row; `numbers` has no memory
(ops/planned/element_ids.py)."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec, int64
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

from .counting import numbers_of, row_steps

# elements, outside of loops; only this decides, so that no layout changes a bit
MIN_DRAWN_ELEMENTS = 4096


def draw_in_kernels(graph: Graph, target: Target, turns: int = 1) -> Graph:
    """The pass. `turns`: how often all of it is done."""
    least = MIN_DRAWN_ELEMENTS if turns == 1 else 1
    drawn = {k for k, node in enumerate(graph.nodes) if _is_drawn(node, target, least)}

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        return _drawn(builder, node, [values[v] for v in node.inputs], target)

    return replace(graph, drawn, make) if drawn else graph


def _is_drawn(node: Node, target: Target, least: int) -> bool:
    drawn = OPS[node.op].element.random_in_kernel
    large = node.specs[0].size >= least
    return drawn is not None and large and drawn(node.kw, target.math) != ""


def _drawn(builder: Builder, node: Node, inputs: Sequence[int], target: Target) -> Sequence[int]:
    """The numbers of the elements, and what is drawn for them."""
    numbers = numbers_of(builder, node.specs[0], 0, row_steps(node.specs[0].shape))
    drawn = OPS[node.op].element.random_in_kernel
    assert drawn is not None
    name = drawn(node.kw, target.math)
    if "stream" not in node.kw:
        return builder.add(name, (*inputs, numbers), {}, node.specs, node.line)
    assert node.specs[0].layout is not None
    layout = Layout.whole(node.specs[0].layout.mesh)
    params = {"value": node.kw["stream"], "dtype": int64}
    (stream,) = builder.add("constant", (), params, (Spec((), int64, layout),))
    return builder.add(name, (*inputs, numbers, stream), {}, node.specs, node.line)
