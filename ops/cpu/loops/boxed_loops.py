"""Kernels that read joins, rolls and pads where their pieces lie (ops/jit/moves.py): box by box, each the same
loops over other parts of the operands, so that one text does for most of them.

    edges first, [0, 1) x ...; then all that is inside, [1, n-1) x [1, m-1); ...

Machine code calls them one after the other (jit/sequence.py). Reductions leave a term for each row of a box,
and one more kernel combines these."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec, empty_aligned
from ostinato.ops.cpu.jit.sequence import SETS, Address, Call, sequence
from ostinato.ops.jit.combining import start_of
from ostinato.ops.jit.labels import combines
from ostinato.ops.jit.loops import Loops
from ostinato.ops.jit.moves import Cell, Part, boxes_of

from .flat import SHARE, loops_kernel, native_kernel

Kernel = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Boxes:
    """A function of arrays, and the calls that it consists of."""

    run: Kernel
    calls: Sequence[tuple[Kernel, Sequence[Address]]]
    held: Any

    def __call__(self, *arrays: Any) -> None:
        self.run(0, 1, *arrays)


def boxed_kernel(
    body: Graph, shape: Shape, arrays: Sequence[Any], threads: int, axes: int, share: int = SHARE
) -> Boxes:
    """The kernel of a body with moves for operands and results that lie so; the last `axes` of its elements
    are reduced."""
    count, last = len(body.inputs), len(shape) - 1
    parts = boxes_of(body, tuple([x.shape for x in arrays[:count]]), tuple(shape))
    kept = [d for d in range(last) if any(hi - lo > 1 for hi, lo in (_range(p, d) for p in parts))]
    along = any(hi - lo > 1 for hi, lo in (_range(p, last) for p in parts if shape))
    if shape and (axes or along or not kept):
        kept.append(last)
    begins = sorted({p.box[last][0] for p in parts if axes})
    terms = _terms(body, shape, len(begins)) if axes else {}
    cells = Cells(max(shape, default=1))

    def lies(part: Part) -> list[_Strided]:
        found = []
        for n, (what, _) in enumerate(part.reads):
            if isinstance(what, Cell):
                row = cells.row(what)
                found.append(
                    _Strided(-1, row.ctypes.data, [row.itemsize * (d == kept[-1]) for d in kept])
                )
            else:
                offset, steps = part.offset_and_strides(n, arrays[what].strides)
                found.append(_Strided(what, offset, [steps[d] for d in kept]))
        for n, v in enumerate(body.outputs):
            out = terms.get(v, arrays[count + n])
            steps = (*out.strides[:-1], 0) if v in terms else out.strides
            offset = sum(step * lo for step, (lo, _) in zip(steps, part.box, strict=True))
            if v in terms:
                offset += out.ctypes.data + out.strides[-1] * begins.index(part.box[last][0])
            found.append(
                _Strided(-1 if v in terms else count + n, offset, [steps[d] for d in kept])
            )
        return found

    extents = [[hi - lo for hi, lo in (_range(p, d) for d in kept)] for p in parts]
    where = [lies(part) for part in parts]
    groups = _groups(extents, where)
    calls = list[tuple[Kernel, Sequence[Address]]]()
    for part, sizes, own in zip(parts, extents, where, strict=True):
        loops = Loops(
            tuple([math.prod(sizes[g] for g in group) for group in groups]) or (1,),
            tuple([tuple([x.steps[group[-1]] for group in groups]) or (0,) for x in own]),
        )
        kernel = loops_kernel(_of_rows(part.body), loops, threads, min(axes, 1), share)
        calls.append((kernel, [Address(x.array, x.offset) for x in own]))
    for n, v in enumerate(body.outputs, count):
        if v in terms:
            given = Address(-1, terms[v].ctypes.data), Address(n, 0)
            calls.append((_combining(body, v, terms[v], arrays[n], threads, axes), given))
    spots = [Call(kernel, [[s] * SETS for s in given]) for kernel, given in calls]
    held = (cells.made, terms)
    return Boxes(sequence(spots, len(arrays), held=held).run, calls, held)


class _Strided(NamedTuple):
    """Where an array's part begins, of this one or (-1) at this address, and its steps from turn to turn."""

    array: int
    offset: int
    steps: Sequence[int]


class Cells:
    """Rows of one number each."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.made: dict[Any, Any] = {}

    def row(self, cell: Cell) -> Any:
        value = np.asarray(cell.value).astype(cell.dtype)
        key = cell.dtype, value.tobytes()
        if key not in self.made:
            self.made[key] = empty_aligned((self.longest,), cell.dtype)
            self.made[key][...] = value
        return self.made[key]


def _range(part: Part, d: int) -> tuple[int, int]:
    lo, hi = part.box[d]
    return hi, lo


def _groups(
    extents: Sequence[Sequence[int]], where: Sequence[Sequence[_Strided]]
) -> list[tuple[int, ...]]:
    """Axes that are one loop, in all boxes."""
    groups: list[tuple[int, ...]] = []
    for d in range(len(extents[0]) if extents else 0):
        joins = d > 0 and all(
            sizes[d - 1] == 1 or all(x.steps[d - 1] == x.steps[d] * sizes[d] for x in own)
            for sizes, own in zip(extents, where, strict=True)
        )
        groups = [*groups[:-1], (*groups[-1], d)] if joins else [*groups, (d,)]
    return groups


# -- reductions ------------------------------------------------------------------------------
def _maker(body: Graph, v: int) -> Node | None:
    k = body.producers[v]
    return body.nodes[k] if k >= 0 and OPS[body.nodes[k].op].reduce else None


def _terms(body: Graph, shape: Shape, columns: int) -> dict[int, Any]:
    """For each reduction what the rows of boxes give, beside each other for boxes of the same rows. Where no
    box begins in a row, nothing changes what is there at first."""
    found = {}
    for v in body.outputs:
        if (node := _maker(body, v)) is not None:
            found[v] = empty_aligned((*shape[:-1], columns), node.specs[0].dtype)
            found[v][...] = start_of(combines(body, node)[0], found[v].dtype)
    return found


def _of_rows(body: Graph) -> Graph:
    """The body with sums of its rows that are not yet divided."""
    nodes = [_undivided(body, n) for n in body.nodes]
    return Graph(body.inputs, tuple(nodes), body.outputs)


def _undivided(body: Graph, node: Node) -> Node:
    reduce = OPS[node.op].reduce
    if reduce is None or not reduce.divisor:
        return node
    op, _ = combines(body, node)
    params = tuple([(name, x) for name, x in node.params if name in OPS[op].takes])
    return Node(op, node.inputs, params, node.specs, node.line)


def _combining(body: Graph, v: int, terms: Any, out: Any, threads: int, axes: int) -> Kernel:
    node = _maker(body, v)
    assert node is not None
    builder = Builder([Spec(terms.shape, terms.dtype)])
    made = builder.graph(builder.add(node.op, (0,), node.params, (Spec(out.shape, out.dtype),)))
    strides = [terms.strides, (*out.strides, *[0] * axes)]
    kernel = native_kernel(made, terms.shape, strides, threads, axes)
    assert kernel is not None
    return kernel
