"""Which elements are positive, as bits: what the slope of a relu has to know of what was given to it.

Libraries of products write these bits with a relu, and read them where they multiply for its slope: of a
row, from the lowest bit of its first byte on, to a multiple of 128 bits. The planner puts both in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.graph import Node
from ..core.index import Indices
from ..core.parameters import unfit
from ..core.registry import Params, Specs, op
from ..core.spec import Shape, Spec, float32, is_float, uint8

LINE = 16  # bytes: a row has a multiple of them
BITS, MASKED = "positive_bits", "where_positive"


def bytes_of(columns: int) -> int:
    """Return the bytes of a row of bits."""
    return -(-columns // (8 * LINE)) * LINE


def local_shape(node: Node, shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that one of these makes of parts of such shapes; None of any other."""
    if node.op == BITS:
        return (*shapes[0][:-1], node.specs[0].shape[-1])
    return shapes[1] if node.op == MASKED else None


def _indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    return Indices((("i", None),) * len(ins), (("i", None),))


def _powers(xp: Any) -> Any:
    return xp.left_shift(xp.ones(8, uint8), xp.arange(8, dtype=uint8))


def _bits_rule(x: Spec) -> Spec:
    if x.ndim != 2 or not is_float(x.dtype):
        raise unfit(BITS, (x,), "a matrix of floats")
    return Spec((x.shape[0], bytes_of(x.shape[1])), uint8)


def _bits_kernel(xp: Any, out: Any, x: Any) -> None:
    wide = xp.zeros((out.shape[0], 8 * out.shape[1]), uint8)
    known = x if x.dtype.itemsize > 2 else x.astype(float32)  # not all libraries compare bfloat16
    xp.copyto(wide[:, : x.shape[1]], known > 0, casting="unsafe")
    octets = wide.reshape((*out.shape, 8)) * _powers(xp)
    xp.copyto(out, octets.sum(-1, dtype=uint8))


op(BITS, infer=_bits_rule, made_by="machine", indices=_indices, kernel=_bits_kernel)


def _masked_rule(bits: Spec, x: Spec) -> Spec:
    if x.ndim != 2 or bits.shape != (x.shape[0], bytes_of(x.shape[1])) or bits.dtype != uint8:
        raise unfit(MASKED, (bits, x), "a matrix, and bits for its elements")
    return x.bare


def _masked_kernel(xp: Any, out: Any, bits: Any, x: Any) -> None:
    """Write elements that have their bit, and else 0, word by word."""
    word = np.dtype(f"u{x.dtype.itemsize}")
    found = xp.bitwise_and(bits[:, :, None], _powers(xp)) != 0
    mine = found.reshape((bits.shape[0], -1))[:, : x.shape[1]]
    xp.copyto(out.view(word), xp.where(mine, x.view(word), word.type(0)))


op(MASKED, infer=_masked_rule, made_by="machine", indices=_indices, kernel=_masked_kernel)
