"""Which operation of a kernel made NaN first: what the kernel was given is kept, and if it makes NaN of it, its
operations are done one by one on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.device import Device, plain
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.jit.moves import shapes_of


def has_nan(xp: Any, *arrays: Any) -> bool:
    return any(x.dtype.kind in "fcV" and bool(xp.isnan(x).any()) for x in arrays)


def kept_if_numbers(device: Device, *arrays: Any) -> bool | list[Any]:
    """Copies on the host of a kernel's operands, whose memory it may write over; True if they have NaN."""
    return has_nan(device.xp, *arrays) or [np.array(device.to_host(x)) for x in arrays]


def first_with_nan(
    node: Node, given: Sequence[Any], outs: Sequence[Any], most: int = 1 << 30
) -> tuple[Node, Sequence[Any]]:
    """The first operation of a kernel with NaN, and what it made; the kernel and its results where its
    operations cannot be done like that, give other bits, or make more than `most` bytes, or where it is a
    loop, whose body reads the number of the turn, too."""
    body: Graph = node.kw["body"]
    if len(given) != len(body.inputs):
        return node, outs
    shapes = shapes_of(body, [x.shape for x in given])
    sizes = zip(shapes, body.specs, strict=True)
    if sum(math.prod(n) * s.dtype.itemsize for n, s in sizes) > most:
        return node, outs
    values = list(given)
    for k, one in enumerate(body.nodes):
        made = _done(body, k, [values[v] for v in one.inputs], shapes)
        if made is None:
            return node, outs
        if has_nan(np, *made):
            return one, made
        values += made
    return node, outs


def _done(body: Graph, k: int, ins: Sequence[Any], shapes: Sequence[Any]) -> list[Any] | None:
    """Do an operation by its own kernel or NumPy; None where these have to know more."""
    node = body.nodes[k]
    if node.op == "constant":
        return [np.asarray(node.kw["value"], node.specs[0].dtype)]
    op = OPS.get(node.op)
    if op is None or op.run.placed or op.run.scratch or not (op.kernel or op.run.ufunc):
        return None
    made = [np.empty(shapes[v], body.specs[v].dtype) for v in body.outs(k)]
    with np.errstate(all="ignore"):
        if op.run.ufunc:
            getattr(np, op.run.ufunc)(*ins, out=made[0])
        elif op.kernel:
            out = made[0] if len(made) == 1 else tuple(made)
            op.kernel(np, out, *ins, **plain(node.kw))
    return made
