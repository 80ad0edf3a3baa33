"""Loops over the elements of arrays that lie somehow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec

from .labels import combines

COUNTED = "counted"  # numbers of elements (ops/planned/element_ids.py)


@dataclass(frozen=True, slots=True)
class Loops:
    """Extents and, for each operand, strides of a nest of loops; neighbours that can be are one."""

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    tiled: tuple[int, int, int] | None = None  # if the last two loops make a tile: which loop goes
    # from row to row of tiles (from column to column the third last one does), and the extents of all
    # of a few elements that are done together in each turn of the last loop: where each operand lies
    beside: tuple[tuple[int, ...], ...] = ()


def loops_over(shape: Shape, strides: Sequence[Sequence[int]], apart: int = -1) -> Loops:
    """The fewest loops that visit all elements, in the order of the result; the axis `apart` begins
    a loop of its own."""
    extents: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(shape):
        if n == 1 and len(shape) > 1 and d != apart:
            continue
        joins = (
            bool(extents)
            and d != apart
            and all(mine[-1] == own[d] * n for mine, own in zip(steps, strides, strict=True))
        )
        for mine, own in zip(steps, strides, strict=True):
            if joins:
                mine[-1] = own[d]
            else:
                mine.append(own[d])
        if joins:
            extents[-1] *= n
        else:
            extents.append(n)
    if not extents:
        extents, steps = [1], [[0] for _ in strides]
    return Loops(tuple(extents), tuple(map(tuple, steps)))


def loops_of(shape: Shape, strides: Sequence[Sequence[int]], axes: int) -> Loops | None:
    """Merge axes into loops where the last `axes` are reduced, which have to be one loop; a single
    row is no loop."""
    apart = len(shape) - axes if axes else -1
    loops = loops_over(shape, strides, apart)
    if axes and math.prod(shape[apart:]) != loops.extents[-1]:
        return None
    if axes and loops.extents[:-1] and math.prod(loops.extents[:-1]) == 1:
        return Loops(loops.extents[-1:], tuple(s[-1:] for s in loops.strides))
    return loops


def space(node: Node, shape: Callable[[Spec], Shape]) -> tuple[Graph, Shape, int]:
    """The body of a kernel's node, the elements that are here, and how many of the last axes are reduced."""
    body: Graph = node.kw["body"]
    sums = [n for n in body.nodes if OPS[n.op].reduce]
    axes = len(combines(body, sums[0])[1]) if sums else 0
    whole = shape(body.specs[sums[0].inputs[0]] if sums else node.specs[0])
    return body, whole, axes


def strides_over(
    body: Graph, shape: Shape, arrays: Sequence[Any], axes: int
) -> list[tuple[int, ...]]:
    """List the strides of operands and results along each axis of the elements, of which the last
    `axes` are reduced."""
    found = []
    for array, v in zip(arrays, (*range(len(body.inputs)), *body.outputs), strict=True):
        k = body.producers[v]
        if axes and k >= 0 and OPS[body.nodes[k].op].reduce:
            found.append((*array.strides, *[0] * axes))
        else:
            found.append(_repeated(array, shape))
    return found


def _repeated(array: Any, shape: Shape) -> tuple[int, ...]:
    """Strides of an array, which is repeated along axes that it has not."""
    own = zip(array.shape, array.strides, strict=True)
    steps = tuple([0 if n == 1 else step for n, step in own])
    return (*(0,) * (len(shape) - len(steps)), *steps)


def dense_loops(body: Graph, shape: Shape, arrays: Sequence[Any], axes: int) -> Loops | None:
    """The loops over a part's elements, of which all are reduced or none: the outermost axis is that along
    which they are farthest apart, so that those of dense arrays are one loop in whatever order they lie."""
    strides = strides_over(body, shape, arrays, axes)
    order = sorted(range(len(shape)), key=lambda d: -max(abs(own[d]) for own in strides))
    turned = [tuple([own[d] for d in order]) for own in strides]
    return loops_of(tuple([shape[d] for d in order]), turned, axes)
