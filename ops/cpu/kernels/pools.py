"""Reductions of windows by workers that have parts: a kernel in stages for the part, whose windows begin as
those of the whole do there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ostinato.ops.core.build import Builder
from ostinato.ops.core.registry import OPS, Params, Place
from ostinato.ops.core.spec import Spec
from ostinato.ops.cpu.fused import stages
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.jit.stage_values import label


def pool_begins(at: Place, p: Params) -> tuple[tuple[int, ...], ...]:
    """Where the first window of a part begins in the parts of those operands that may be read in windows,
    before `every` thins them."""
    space = slice(-len(p["extents"]) - 1, -1)
    read = at.ins[max(len(at.ins) - 2, 0) :]  # of three operands the first lies as the result does
    steps = p["offsets"], p["strides"], p["every"], at.outs[0][space]
    return tuple([
        tuple([o + s * y[0] - e * x[0] for o, s, e, y, x in zip(*steps, box[space], strict=True)])
        for box in read
    ])  # fmt: skip


def pool_kernel(
    name: str, arrays: Sequence[Any], threads: int, *, scratch: Sequence[Any], at: Place, **p: Any
) -> Any:
    """The kernel of one reduction of windows of parts that lie so; None if there is none."""
    if why_not() or arrays[-1].dtype.char not in "fdil" or 0 in arrays[-1].shape:
        return None
    shapes = (*at.in_shapes, *at.out_shapes)
    *ins, out = [Spec(shape, x.dtype) for shape, x in zip(shapes, arrays, strict=True)]
    made = Builder(ins)
    (result,) = made.add(name, range(len(ins)), p, [out])
    rule = OPS[name].indices(tuple(ins), (out,), p)
    labels, fresh = dict[Any, int](), itertools.count()
    dims = tuple([
        tuple([
            -1 if n == 1 else labels.setdefault(d if isinstance(d, str) else (k, i), next(fresh))
            for i, (d, n) in enumerate(zip(own, x.shape, strict=True))
        ])
        for k, (own, x) in enumerate(zip(rule.ins, ins, strict=True))
    ])  # fmt: skip
    body = made.graph([result])
    found = label(body, dims, (), [x.shape for x in arrays], [x.strides for x in arrays])
    if found is None:
        return None
    rows = found.labels(result)
    return stages(arrays, threads, scratch=scratch, at=at, body=body, dims=dims, rows=rows)
