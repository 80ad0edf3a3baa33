"""Under `mixed_bf16`: what float32 products multiply is rounded to bfloat16, once for each value; sums,
results, and all that is no product stay float32.

before                                     after
%2 = matmul(%0, %1) : float32[4,5]         %2 = astype(%0; dtype=dtype bfloat16) : bfloat16[4,6]
return %2                                  %3 = astype(%2; dtype=dtype float32) : float32[4,6]
                                           %4 = astype(%1; dtype=dtype bfloat16) : bfloat16[6,5]
                                           %5 = astype(%4; dtype=dtype float32) : float32[6,5]
                                           %6 = matmul(%3, %5) : float32[4,5]
                                           return %6

This says what is computed, on every machine alike. One that multiplies bfloat16 into float32 reads the
rounded values as they are (narrow_operands.py); others multiply them in float32."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.spec import Spec, bfloat16, float32
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import Values, map_bodies, rebuild

PRODUCTS = ("matmul",)
SAME_ELEMENTS = ("permute_dims", "reshape", "expand_dims", "squeeze")  # views that lose none


def mix_precision(graph: Graph, target: Target) -> Graph:
    """The pass; nothing unless the target asks for `mixed_bf16`."""
    if target.precision != "mixed_bf16":
        return graph

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        node = map_bodies(node, lambda g: mix_precision(g, target))
        specs = [*(builder.specs[v] for v in inputs), *node.specs]
        if node.op in PRODUCTS and all(s.dtype == float32 for s in specs):
            inputs = tuple([_rounded(builder, v, node.line) for v in inputs])
        return builder.add(node.op, inputs, node.params, node.specs, node.line)

    return rebuild(graph, rule)


def _rounded(builder: Builder, v: int, line: str) -> int:
    """A value's nearest numbers of bfloat16, as float32. What is seen turned or reshaped is rounded
    as it was before, so that both need one rounding.
    """
    maker = builder.maker(v)
    if maker is not None and maker.op in SAME_ELEMENTS and len(maker.inputs) == 1:
        source = _rounded(builder, maker.inputs[0], line)
        return builder.add(maker.op, (source,), maker.params, maker.specs, maker.line)[0]
    if _is_rounded(builder, maker):
        return v
    for dtype in (bfloat16, float32):
        spec = Spec(builder.specs[v].shape, dtype)
        (v,) = builder.add("astype", (v,), {"dtype": dtype}, (spec,), line)
    return v


def _is_rounded(builder: Builder, maker: Node | None) -> bool:
    if maker is None or maker.op != "astype":
        return False
    return builder.specs[maker.inputs[0]].dtype == bfloat16
