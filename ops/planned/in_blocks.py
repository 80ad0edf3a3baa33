"""Sums and products whose bits are the same for any number of workers, written with the operations of
reproducible.py: what ops register as `in_blocks`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..array.expressions import Expression
from ..core.graph import Node
from ..core.index import product_labels, subscripts
from ..core.spec import float32, is_float


def _wide(x: Expression) -> Expression:
    """Half precision is accumulated in float32, as it is elsewhere."""
    return x.astype(float32) if is_float(x.dtype) and x.dtype.itemsize == 2 else x


def _total(x: Expression, axes: Sequence[int], monoid: str = "sum") -> Expression:
    for axis in sorted(axes, reverse=True):
        x = x.call("fixed_sum", axis=axis, monoid=monoid)
    return x


def total(node: Node, x: Expression) -> Sequence[Expression]:
    """A sum or a product of elements."""
    dtype = node.kw["dtype"]
    return (_total(_wide(x.astype(dtype)), node.kw["axes"], node.op).astype(dtype),)


def mean(node: Node, x: Expression) -> Sequence[Expression]:
    made = _total(_wide(x), node.kw["axes"]) / float(node.kw["count"])
    return (made.astype(node.specs[0].dtype),)


def moments(node: Node, x: Expression) -> Sequence[Expression]:
    """Count, mean, and the squares of what is left without the mean: two sums, since a tree has no
    state of three."""
    axes = node.kw["axes"]
    count = float(math.prod(x.shape[a] for a in axes))
    middle = _total(x, axes) / count
    rest = x - middle.expand_dims(*axes).broadcast_to(x.shape)
    if rest.dtype.kind == "c":
        real, imag = rest.parts()
        squares = real.square() + imag.square()
    else:
        squares = rest.square()
    number = x.constant(count, node.specs[0].dtype)
    return number, middle, _total(squares, axes)


def _product(node: Node, left: Expression, right: Expression) -> Expression:
    """Multiply matrices in fixed blocks."""
    return _wide(left).call("fixed_matmul", _wide(right)).astype(node.specs[0].dtype)


def matmul(node: Node, left: Expression, right: Expression) -> Sequence[Expression]:
    """Vectors as a row and a column."""
    left = left.reshape(1, *left.shape) if len(left.shape) == 1 else left
    right = right.reshape(*right.shape, 1) if len(right.shape) == 1 else right
    return (_product(node, left, right).reshape(*node.specs[0].shape),)


def einsum(node: Node, left: Expression, right: Expression) -> Sequence[Expression]:
    """As a matmul of folded operands; of several axes that are summed only the last within it, so that
    workers who have parts of the others need not bring them together."""
    text = node.kw["text"]
    (a, b), out = subscripts(text)
    batch, rows, columns, summed = product_labels(text)
    first, outer, summed = len(batch), summed[:-1], summed[-1:]
    batch += outer
    sizes = dict(zip((*a, *b), (*left.shape, *right.shape), strict=True))

    def fold(x: Expression, labels: str, *groups: str) -> Expression:
        x = x.permute_dims(*(labels.index(c) for c in batch + "".join(groups)))
        sides = (math.prod(sizes[c] for c in g) for g in groups)
        return x.reshape(*(sizes[c] for c in batch), *sides)

    made = _product(node, fold(left, a, rows, summed), fold(right, b, summed, columns))
    order = batch + rows + columns
    made = made.reshape(*(sizes[c] for c in order))
    made = _total(made, range(first, first + len(outer)))
    order = order[:first] + order[first + len(outer) :]
    return (made.permute_dims(*(order.index(c) for c in out)),)
