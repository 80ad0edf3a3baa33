"""Products of a matrix with one vector become products of elements and sums of rows, which kernels of our own
do together with what is before and behind them.

before                                      after
%2 = matmul(%0, %1) : float32[m]            %2 = multiply(%0, %1) : float32[m,k]
%3 = divide(1, %2) : float32[m]             %3 = sum(%2; axes=(1,)) : float32[m]
                                            %4 = divide(1, %3) : float32[m]

The matrix is read once by either, so memory bounds both. What lies across, as a transpose does, is the
library's, which adds up columns as fast, and so is a column to which the library adds another one in
the same call. This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.array.expressions import reshaped
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Spec, float32, float64
from ostinato.planner.fusion.groups import is_gemm
from ostinato.planner.fusion.stage_groups import PRODUCT, slides
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace


def sum_rows(graph: Graph, target: Target) -> Graph:
    """The pass."""
    fixed = target.numerics == "any-workers"
    found = [] if fixed else [k for k in range(len(graph.nodes)) if _is_vector_product(graph, k)]
    found = [k for k in found if not _has_epilogue(graph, k, target)]

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        (a, v), (made,), line = node.inputs, node.specs, node.line
        matrix = graph.specs[a]
        x = values[v]
        if graph.specs[v].ndim == 2:
            x = reshaped(builder, x, Spec(matrix.shape[1:], matrix.dtype, made.layout), line)
        (terms,) = builder.add(MONOIDS["prod"].ufunc, [values[a], x], (), (matrix,), line)
        flat = Spec(matrix.shape[:1], made.dtype, made.layout)
        how = (("axes", (1,)), ("dtype", made.dtype))
        (total,) = builder.add("sum", [terms], how, (flat,), line)
        return [total if made.ndim == 1 else reshaped(builder, total, made, line)]

    return replace(graph, found, make, lambda g: sum_rows(g, target))


def _has_epilogue(graph: Graph, k: int, target: Target) -> bool:
    """Whether the library does more in its call, which it does of matrices."""
    device, fast = described(target.device), target.numerics == "fast"
    return is_gemm(graph, graph.nodes[k], PRODUCT) and bool(device.epilogue_of(graph, k, fast))


def _is_vector_product(graph: Graph, k: int) -> bool:
    node = graph.nodes[k]
    product = OPS[node.op].product if node.op in OPS else None
    if product is None or not product.gemm or node.params or slides(graph, node):
        return False
    (a, v), (made,) = [graph.specs[v] for v in node.inputs], node.specs
    specs = (a, v, made)
    if any(s.layout is None or not s.layout.is_whole for s in specs) or a.ndim != 2:
        return False
    alike = {s.dtype for s in specs}
    if (
        len(alike) > 1
        or alike.isdisjoint((float32, float64))
        or v.shape not in (a.shape[1:], (a.shape[1], 1))
    ):
        return False
    maker = graph.producers[node.inputs[0]]
    return maker < 0 or not op_of(graph.nodes[maker].op).rearranges
