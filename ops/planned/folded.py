"""An einsum that sums over several axes as a product of matrices of the parts that workers have.

    btk,btn->kn        (b t) k, (b t) n -> k n, where b is cut at the most, in parts of one size

`planner/fusion/fold_products.py` puts it into graphs whose layouts are known."""

from __future__ import annotations

import math

from ..core.build import Builder
from ..core.graph import Node
from ..core.index import product_labels, subscripts
from ..core.layout import Layout
from ..core.spec import Spec


def einsum(builder: Builder, node: Node, inputs: list[int]) -> int | None:
    """The product in its place; None where there is none."""
    text = node.kw["text"]
    batch, rows, columns, summed = product_labels(text)
    if batch or len(rows) != 1 or len(columns) != 1 or len(summed) < 2:
        return None
    (left, right), out = subscripts(text)
    sides = [(inputs[0], left, rows), (inputs[1], right, columns)]
    if out != rows + columns:
        sides.reverse()
    matrices = [_matrix(builder.specs[v], labels, summed, kept) for v, labels, kept in sides]
    found = []
    for k, ((v, labels, kept), matrix) in enumerate(zip(sides, matrices, strict=True)):
        if matrix is None:
            return None
        (v,) = builder.add("reshape", (v,), {"shape": matrix.shape}, (matrix,), node.line)
        is_turned = labels.startswith(kept) if k else labels.endswith(kept)
        found.append(_turned(builder, v, node.line) if is_turned else v)
    return builder.add("matmul", found, (), node.specs, node.line)[0]


def _matrix(spec: Spec, labels: str, summed: str, kept: str) -> Spec | None:
    """An operand with its summed axes as one; None if a worker's part would not be a part of that."""
    layout = spec.layout
    if labels not in (summed + kept, kept + summed) or layout is None:
        return None
    if layout.windows or layout.blocks or layout.partial_axes:
        return None
    first, end = labels.index(summed[0]), labels.index(summed[-1]) + 1
    cuts = math.prod([layout.mesh[a] for a in layout.axes(first)])
    if any(layout.axes(d) for d in range(first + 1, end)) or spec.shape[first] % cuts:
        return None
    shape = (*spec.shape[:first], math.prod(spec.shape[first:end]), *spec.shape[end:])
    gone = len(summed) - 1
    splits = tuple([s - gone if isinstance(s, int) and s > first else s for s in layout.splits])
    return Spec(shape, spec.dtype, Layout(layout.mesh, splits))


def _turned(builder: Builder, v: int, line: str) -> int:
    spec = builder.specs[v]
    assert spec.layout is not None
    splits = tuple([1 - s if isinstance(s, int) else s for s in spec.layout.splits])
    turned = Spec(spec.shape[::-1], spec.dtype, Layout(spec.layout.mesh, splits))
    return builder.add("permute_dims", (v,), {"axes": (1, 0)}, (turned,), line)[0]
