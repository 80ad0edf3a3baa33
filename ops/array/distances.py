"""Squared distances of all pairs from products: |x|² + |c|² - 2 x·c, which loses digits where a
distance is short beside the lengths. What lost more than three bits is made anew from differences,
so each result is as good as a sum of squares, but for these three bits."""

from __future__ import annotations

from typing import Any

from ostinato.errors import DTypeError

from ..core.index import Indices
from ..core.parameters import unfit
from ..core.registry import Params, Specs, op
from ..core.spec import Spec, float32, float64

CANCELLING_SHARE = 1 / 8  # of the squared lengths: a shorter distance is made from differences


def _indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    return Indices((("i", "j"), ("i",), ("j",), ("i", None), ("j", None)), (("i", "j"),))


def _kernel(xp: Any, out: Any, products: Any, a: Any, b: Any, x: Any, c: Any) -> None:
    size = a[:, None] + b
    made = size - 2 * products
    far = made > size * CANCELLING_SHARE
    xp.copyto(out, made)
    for i in range(len(x)):
        (near,) = xp.nonzero(~far[i])
        out[i, near] = xp.square(x[i] - c[near]).sum(-1)


def _cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    return 4.0 * outs[0].size, float(sum(s.nbytes for s in (*ins, *outs)))


# What the planner makes of differences that are squared and summed.
def _rule(products: Spec, a: Spec, b: Spec, x: Spec, c: Spec) -> Spec:
    ins = (products, a, b, x, c)
    shapes = products.shape, (*a.shape, *b.shape), (*x.shape[:1], *c.shape[:1])
    square = len(set(shapes)) == 1 and [s.ndim for s in ins] == [2, 1, 1, 2, 2]
    if not square or x.shape[1] != c.shape[1]:
        raise unfit("pair_distances", ins, "lengths of rows, of columns, and both tables")
    if len({s.dtype for s in ins}) > 1 or products.dtype not in (float32, float64):
        raise unfit("pair_distances", ins, "float32 or float64 everywhere", DTypeError)
    return products.bare


op(
    "pair_distances",
    infer=_rule,
    made_by="passes",
    indices=_indices,
    kernel=_kernel,
    cost=_cost,
    overwrite=(0,),
)
