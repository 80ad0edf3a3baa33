"""Tiles of a loop's state: all turns for some rows, then for the next.

A turn that reads all of a large state, or one element of each of its lines, has lost from the cache what
the next turn reads. Where no row's turns read another row, they may all run before the next row's do:

    for t: for i: for j: x[i, j, t] = f(x[i, j, t - 1])
    for i: for t: for j: x[i, j, t] = f(x[i, j, t - 1])      a tile: of one i

The rows are an axis that all arrays of the state have, and which the indices of all operations of the body
carry on as it is. The body of a tile is that of the loop, with fewer rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Items, Node
from ostinato.ops.core.index import Indices
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec
from ostinato.ops.cpu.limits import LIMITS

from .loop_values import MAX_LOOP_ELEMENTS, Strides

CACHED_BYTES = 1 << 17  # of a turn, which the next one finds in the cache
TILE_BYTES = 1 << 15  # of a turn over a tile
MIN_TILE_ELEMENTS = 32  # of a loop inside, for vectors
MAX_TURN_ELEMENTS = 4 * MAX_LOOP_ELEMENTS  # of more, threads are worth their calls


class TiledLoop(NamedTuple):
    many: int
    rows: int  # of a tile
    axes: tuple[int | None, ...]  # of operands and results, along which they are cut
    body: Graph


@lru_cache(256)
def tiles(node: Node, specs: tuple[Spec, ...], strides: tuple[Strides, ...]) -> TiledLoop | None:
    """How the turns of a loop over such operands and results may be cut, if that is worth it."""
    body, (nc, ns, _) = node.kw["body"], node.kw["counts"]
    states = [s for s in specs[nc : nc + ns] if s.size > 1]
    if not states or any(any(n.subgraphs()) for n in body.nodes):
        return None
    least = min(s.size for s in states)
    for axis in range(min(s.ndim for s in states)):
        (extent, *others) = {s.shape[axis] for s in states}
        if others:
            continue
        begin = [j for j in range(ns) if specs[nc + j].size > 1]
        both = [v for j in begin for v in (1 + nc + j, body.outputs[j])]
        found = _cut(body, dict.fromkeys(both, axis))
        rows = 0 if found is None else _rows(body, found, extent, least, strides[: nc + ns])
        made = _with_rows(body, found, rows) if found and 0 < rows < extent else None
        if found and made:
            inputs = [found.get(1 + k) for k in range(len(node.inputs))]
            cuts = [*inputs, *(found.get(v) for v in body.outputs)]
            through = {*range(nc + ns, len(inputs)), *range(len(inputs) + ns, len(cuts))}
            axes = [a if a is None or k not in through else a + 1 for k, a in enumerate(cuts)]
            return TiledLoop(extent // rows, rows, tuple(axes), made)
    return None


def _indices(graph: Graph, node: Node) -> Indices:
    ins = tuple(graph.specs[v] for v in node.inputs)
    return OPS[node.op].indices(ins, node.specs, node.kw)


def _cut(body: Graph, begin: Mapping[int, int]) -> dict[int, int] | None:
    """The axis of each value that has these rows; None if rows read others."""
    axes, before = dict(begin), -1
    known = [_indices(body, node) for node in body.nodes]
    while len(axes) != before:
        before = len(axes)
        for k, node in enumerate(body.nodes):
            values = [*node.inputs, *body.outs(k)]
            dims = [*known[k].ins, *known[k].outs]
            labels = {d[axes[v]] for v, d in zip(values, dims, strict=True) if v in axes}
            if not labels:
                continue
            (label, *others) = labels
            if others or not isinstance(label, str) or not _goes_on(known[k], label, node):
                return None
            for v, d in zip(values, dims, strict=True):
                if label in d and axes.setdefault(v, d.index(label)) != d.index(label):
                    return None
    return axes


def _goes_on(indices: Indices, label: str, node: Node) -> bool:
    """Whether an operation does the same to rows, wherever they are."""
    special = {*(a for a, _ in indices.reduce), *indices.chunked, *(a for a, _ in indices.parts)}
    if label in special or not all(label in d for d in indices.outs):
        return False
    return any(label in d for d in indices.ins) or not OPS[node.op].run.placed


def _rows(
    body: Graph, axes: Mapping[int, int], extent: int, state: int, strides: Sequence[Strides]
) -> int:
    """How many rows a tile has, of states of so many elements at least; 0 if the cache holds what a turn
    reads, or a tile has nothing for vectors."""
    touched = sum(_touched(body, 1 + k, x) for k, x in enumerate(strides) if 1 + k in axes)
    made = [
        v for k, n in enumerate(body.nodes) if OPS[n.op].scalar for v in body.outs(k) if v in axes
    ]
    sizes = [body.specs[v].size for v in made]
    if touched < CACHED_BYTES or not made or max(sizes) > MAX_TURN_ELEMENTS:
        return 0
    ends = any(axes[v] == body.specs[v].ndim - 1 for v in made)  # there, rows are elements
    least = MIN_TILE_ELEMENTS if ends else -(-MIN_TILE_ELEMENTS * extent // min(sizes))
    found = [b for b in range(least, extent + 1) if extent % b == 0 and b * state > extent]
    fits = [b for b in found if b * touched <= TILE_BYTES * extent]
    return fits[-1] if fits else found[0] if found else 0


def _touched(body: Graph, v: int, strides: Strides) -> float:
    """The bytes that a turn asks memory for of a value, and a later turn again."""
    spec = body.specs[v]
    users = [body.nodes[k] for k in body.uses[v]]
    picked = [n.kw["axis"] for n in users if _picks(body, n) and n.inputs[0] == v]
    if len(picked) < len(users) or not picked:
        return float(spec.nbytes)
    steps = [abs(strides[a]) for a in picked]
    if max(steps) >= LIMITS.line:
        return 0.0
    return min(1.0, LIMITS.line / (max(steps) * spec.shape[picked[0]])) * spec.nbytes


def _picks(body: Graph, node: Node) -> bool:
    """Whether it reads or writes at one place along an axis of its first operand."""
    return OPS[node.op].run.placed and "axis" in node.kw and body.specs[node.inputs[1]].size == 1


def _with_rows(body: Graph, axes: Mapping[int, int], rows: int) -> Graph | None:
    """The body for so many rows."""

    def cut(v: int) -> Spec:
        return spec_of(body.specs[v].bare, axes.get(v), rows)

    made = Builder([cut(v) for v in range(len(body.inputs))])
    values = [*range(len(body.inputs))]
    for k, node in enumerate(body.nodes):
        specs = tuple(cut(v) for v in body.outs(k))
        params: Items | None = node.params
        if any(v in axes for v in body.outs(k)):
            v = body.outs(k)[0]
            params = _params(node, [cut(w) for w in node.inputs], specs, axes[v], body.specs[v])
        if params is None:
            return None
        values += made.add(node.op, [values[w] for w in node.inputs], params, specs, node.line)
    return made.graph([values[v] for v in body.outputs])


def _params(
    node: Node, ins: Sequence[Spec], outs: Sequence[Spec], axis: int, old: Spec
) -> Items | None:
    """The parameters with which an operation makes so many rows: the same, or with a shape of these."""
    for params in (node.params, tuple(_reshaped(node.params, axis, old.shape, outs[0].shape))):
        try:
            found = OPS[node.op].infer(*ins, **dict(params))
        except (ValueError, TypeError, IndexError):
            continue
        shapes = [s.shape for s in ([found] if isinstance(found, Spec) else found)]
        if shapes == [s.shape for s in outs]:
            return params
    return None


def _reshaped(params: Items, axis: int, old: Shape, new: Shape) -> Iterator[tuple[str, object]]:
    for name, x in params:
        is_shape = isinstance(x, tuple) and len(x) == len(old) and x[axis] == old[axis]
        yield name, _resized(x, axis, new[axis]) if is_shape else x


def _resized(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def spec_of(spec: Spec, axis: int | None, rows: int) -> Spec:
    """The spec of so many rows of an array that has them along an axis."""
    return spec if axis is None else Spec(_resized(spec.shape, axis, rows), spec.dtype)
