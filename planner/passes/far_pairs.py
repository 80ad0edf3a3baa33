"""Differences of all pairs of rows that are squared and summed become a product, where rows are long.

before                                              after
%2 = expand_dims(%0; axes=(1,)) : float32[n,1,d]    %2 = the mean of %1's rows where finite : float32[d]
%3 = subtract(%2, %1) : float32[n,k,d]              %3, %4 = %0 - %2, %1 - %2
%4 = square(%3) : float32[n,k,d]                    %5, %6 = the sums of their rows' squares
%5 = sum(%4; axes=(2,)) : float32[n,k]              %7 = matmul(%3, %4.T) : float32[n,k]
return %5                                           %8 = pair_distances(%7, %5, %6, %0, %1)

A product needs one instruction for each pair of elements, and differences two. What the product
needs besides is worth it where rows are long (for each pair, a look at how many digits were lost)
and where there are many of both (rows less the middle go to memory and back). Extents of the whole
decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.spec import Spec, float32, float64
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import Values, rebuild

MIN_ROW_ELEMENTS = 96  # elements of a row
MIN_ROWS = 128  # rows of each operand
MIN_PAIRS = 1 << 16


def multiply_differences(graph: Graph, target: Target) -> Graph:
    """The pass; nothing under `any-workers`, where bits must not depend on what is beside."""
    if target.numerics == "any-workers":
        return graph
    found = {node for node in graph.nodes if _is_of_pairs(graph, node)}

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        return (_by_product(builder, node, inputs[0]),) if node in found else None

    has_bodies = any(True for node in graph.nodes for _ in node.subgraphs())
    if not found and not has_bodies:
        return graph
    return rebuild(graph, rule, lambda g: multiply_differences(g, target))


def _is_of_pairs(graph: Graph, node: Node) -> bool:
    """Whether a node sums squared differences of rows, which nothing else reads."""
    if node.op != "sum" or node.kw["axes"] != (2,):
        return False
    square = _only_for(graph, node)
    if square is None or square.op not in ("square", "multiply") or len({*square.inputs}) > 1:
        return False
    apart = _only_for(graph, square)
    if apart is None or apart.op != "subtract" or not _pays(apart.specs[0]):
        return False
    specs = [graph.specs[v] for v in apart.inputs]
    same = {s.dtype for s in (*specs, *square.specs, *node.specs)} == {apart.specs[0].dtype}
    return same and {_repeated(s, apart.specs[0]) for s in specs} == {0, 1}


def _only_for(graph: Graph, node: Node) -> Node | None:
    """Return the node that makes a node's operand, if that is for nobody else."""
    v = node.inputs[0]
    k = graph.producers[v]
    alone = len({*graph.uses[v]}) == 1 and v not in graph.outputs
    return graph.nodes[k] if k >= 0 and alone else None


def _pays(spec: Spec) -> bool:
    if spec.ndim != 3 or spec.dtype not in (float32, float64):
        return False
    n, k, d = spec.shape
    return d >= MIN_ROW_ELEMENTS and min(n, k) >= MIN_ROWS and n * k >= MIN_PAIRS


def _repeated(spec: Spec, whole: Spec) -> int:
    """The axis along which a table of rows is repeated, if it is only that one; else -1."""
    shape = (1,) * (3 - spec.ndim) + spec.shape
    lacks = [d for d in range(3) if shape[d] != whole.shape[d]]
    return lacks[0] if len(lacks) == 1 else -1


def _by_product(b: Builder, node: Node, squares: int) -> int:
    line = node.line

    def call(op: str, *values: int, **params: Any) -> int:
        return b.call(op, *values, line=line, **params)

    square = b.maker(squares)
    apart = b.maker(square.inputs[0]) if square is not None else None
    assert apart is not None
    whole = apart.specs[0]
    rows = sorted(apart.inputs, key=lambda v: -_repeated(b.specs[v], whole))
    tables = [_table(b, v, call) for v in rows]
    fewer = min(tables, key=lambda v: b.specs[v].size)
    zero = call("constant", value=0.0, dtype=whole.dtype)
    good = call("where", call("isfinite", fewer), fewer, zero)  # so that a bad row spoils no other
    middle = call("mean", good, axes=(0,), count=b.specs[fewer].shape[0])
    x, c = (call("subtract", v, middle) for v in tables)
    a, q = (call("sum", call("square", v), axes=(1,), dtype=whole.dtype) for v in (x, c))
    product = call("matmul", x, call("permute_dims", c, axes=(1, 0)))
    return call("pair_distances", product, a, q, *tables)


def _table(b: Builder, v: int, call: Callable[..., int]) -> int:
    """The rows that a value repeats."""
    maker = b.maker(v)
    if maker is not None and maker.op == "expand_dims" and b.specs[maker.inputs[0]].ndim == 2:
        return maker.inputs[0]
    axes = tuple(d for d, n in enumerate(b.specs[v].shape[:-1]) if n == 1)
    return call("squeeze", v, axes=axes) if b.specs[v].ndim == 3 else v
