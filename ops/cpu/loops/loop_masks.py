"""Masked values in a loop's kernel: reductions need only the range where a mask is true.

    sum(where(iota < end, x, 0))        for i in [0, end): sum += x[i]

A mask is a comparison of places along an axis with a number that is the same for all of them, or several
that all have to hold. Outside of it there is one number; if that changes no total, nobody has to see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ostinato.ops.core.graph import Node
from ostinato.ops.core.spec import Shape
from ostinato.ops.jit.values import Lines

from .loop_values import Limit, Masked, Seen

# Comparisons of a place with a number, and the same with the number first.
TURNED = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
    "equal": "equal",
}
BEGINS = {"greater": 1, "greater_equal": 0, "equal": 0}  # behind the number
ENDS = {"less": 0, "less_equal": 1, "equal": 1}


def masked_by(node: Node, ins: Sequence[Seen], shape: Shape) -> Masked | None:
    """Apply an elementwise operation to masked operands."""
    if node.op in TURNED:
        return _compared(node, *ins)
    if node.op.endswith("_and") and all(x.dtype.kind == "b" for x in ins):
        return _both(*(x.masked for x in ins))
    if node.op == "where" and (mask := ins[0].masked) is not None and mask.inside is None:
        _, inside, outside = ins
        alike = inside.dtype == outside.dtype == node.specs[0].dtype
        if alike and outside.is_number and _along(ins[0], mask.axis) == shape[mask.axis]:
            number = outside.element(("0",) * len(outside.shape)).name
            return Masked(mask.axis, mask.limits, inside, number)
    return None


def _compared(node: Node, a: Seen, b: Seen) -> Masked | None:
    op = node.op
    if a.index is None:
        a, b, op = b, a, TURNED[op]
    if a.index is None or not b.is_number or (a.dtype.kind, b.dtype.kind) != ("i", "i"):
        return None
    return Masked(a.index, (Limit(b, BEGINS.get(op), ENDS.get(op)),))


def _both(a: Masked | None, b: Masked | None) -> Masked | None:
    if a is None or b is None or a.axis != b.axis or a.inside or b.inside:
        return None
    return Masked(a.axis, (*a.limits, *b.limits))


def _along(x: Seen, axis: int) -> int:
    return x.shape[axis] if -axis <= len(x.shape) else 1


def looked_at(node: Node, x: Seen, made: Seen) -> Seen:
    """View a mask, of places along another axis."""
    axis = x.index if x.masked is None else x.masked.axis
    if axis is None or (x.masked is not None and x.masked.inside is not None):
        return made
    if node.op == "expand_dims":
        old = [d for d in range(len(made.shape)) if d not in node.kw["axes"]]
        axis = old[axis] - len(made.shape)
    elif node.op != "broadcast_to" or x.shape[axis] != made.shape[axis]:
        return made
    if x.masked is None:
        return replace(made, index=axis)
    return replace(made, masked=replace(x.masked, axis=axis))


def has_outside(x: Seen, axis: int, number: Any, lines: Lines) -> bool:
    """Whether an array is this number, to the bit, outside of a range along this axis."""
    masked = x.masked
    if masked is None or masked.inside is None or masked.axis != axis - len(x.shape):
        return False
    return masked.outside == lines.constant(number, x.dtype).name


def is_alike(a: Seen, b: Seen) -> bool:
    """Whether two have the same mask."""
    return a.masked is not None and b.masked is not None and a.masked.limits == b.masked.limits
