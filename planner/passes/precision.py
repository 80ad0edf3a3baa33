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
rounded values as they are (cpu/narrow_operands.py); others multiply them in float32."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import bfloat16, float32
from ostinato.ops.expressions import Expression
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import Values, rebuild


def mix_precision(graph: Graph, target: Target) -> Graph:
    """The pass; nothing unless the target asks for `mixed_bf16`."""
    if target.precision != "mixed_bf16":
        return graph

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        specs = [*(builder.specs[v] for v in inputs), *node.specs]
        product = OPS[node.op].product
        if product is None or any(s.dtype != float32 for s in specs):
            return None
        multiplied = (product.left, product.right)
        inputs = tuple(
            _rounded(builder, v, node.line) if j in multiplied else v for j, v in enumerate(inputs)
        )
        return builder.add(node.op, inputs, node.params, node.specs, node.line)

    return rebuild(graph, rule, lambda g: mix_precision(g, target))


def _rounded(builder: Builder, v: int, line: str) -> int:
    """A value's nearest numbers of bfloat16, as float32. What is seen turned or reshaped is rounded
    as it was before, so that both need one rounding.
    """
    maker = builder.maker(v)
    if maker is not None and OPS[maker.op].same_elements:
        source = _rounded(builder, maker.inputs[0], line)
        return builder.add(maker.op, (source,), maker.params, maker.specs, maker.line)[0]
    if _is_rounded(builder, maker):
        return v
    return Expression(builder, v, line).astype(bfloat16).astype(float32).value


def _is_rounded(builder: Builder, maker: Node | None) -> bool:
    if maker is None or not OPS[maker.op].converts:
        return False
    return builder.specs[maker.inputs[0]].dtype == bfloat16
