"""Several elementwise operations as one, and reductions of their results over the last axes: what
the planner makes of chains, so that what lies between never goes to memory. On CPUs it is machine
code (native.py); this kernel is for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .graph import Graph
from .native import REDUCTIONS
from .registry import ANY, OPS, Params, Specs, op
from .spec import Spec


def _infer(*ins: Spec, body: Graph) -> Specs:
    return body.out_specs


def _cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    body: Graph = p["body"]
    flops = sum(
        OPS[n.op].cost(tuple(body.specs[v] for v in n.inputs), n.specs, n.kw)[0]
        for n in body.nodes
        if n.op != "constant"
    )
    return flops, float(sum(s.nbytes for s in (*ins, *outs)))


def _kernel(xp: Any, out: Any, *xs: Any, body: Graph) -> None:
    """Node by node."""
    outs: Sequence[Any] = out if isinstance(out, tuple) else (out,)
    values = list(xs)
    for node in body.nodes:
        ins, spec = [values[v] for v in node.inputs], node.specs[0]
        if node.op == "constant":
            values.append(xp.asarray(node.kw["value"], spec.dtype))
            continue
        rule, params = OPS[node.op], node.kw
        shape = np.broadcast_shapes(*(x.shape for x in ins))
        if node.op in REDUCTIONS:
            shape = tuple(n for d, n in enumerate(shape) if d not in params["axes"])
        made = xp.empty(shape, spec.dtype)
        if rule.scratch is not None:
            specs = tuple(body.specs[v] for v in node.inputs)
            needs = rule.scratch([x.shape for x in ins], [shape], (*specs, spec), **params)
            params["scratch"] = tuple(xp.empty(s.shape, s.dtype) for s in needs)
        if rule.kernel is None:
            getattr(xp, rule.ufunc)(*ins, out=made)
        else:
            rule.kernel(xp, made, *ins, **params)
        values.append(made)
    for target, v in zip(outs, body.outputs, strict=True):
        xp.copyto(target, values[v])


FUSED = ("fused", "fused_rows")

op("fused", infer=_infer, kernel=_kernel, cost=_cost, overwrite=ANY)
op("fused_rows", infer=_infer, kernel=_kernel, cost=_cost)  # with reductions over the last axes
