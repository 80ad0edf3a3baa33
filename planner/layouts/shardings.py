"""The ways to run a node on a mesh: which index goes to which mesh axis, what that needs and gives.

    matmul(a, b): m k, k n -> m n, on a mesh of one axis

    index    needs                      gives
    none     a whole, b whole           whole
    m        a split 0, b whole         split 0
    n        a whole, b split 1         split 1
    k        a split 1, b split 0       partial sum

    add(a, b): m n, m n -> m n
    +0       a and b addends            addends: who reads them may add more, and sum once

All follows from the operation's indices, and from which of its operands are added up (`adds`); no kind
of parallelism is known by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from ostinato.ops.core.graph import Node
from ostinato.ops.core.index import Indices, Window
from ostinato.ops.core.layout import (
    Layout,
    Mesh,
    Overlap,
    Partial,
    Placement,
    every_bounds,
)
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Spec, is_inexact
from ostinato.planner.plan import Target


@dataclass(frozen=True, slots=True)
class Sharding:
    """One way to run a node: the layouts that its operands need and its results come in."""

    labels: tuple[str | None, ...]  # per mesh axis
    needs: tuple[Layout, ...]
    gives: tuple[Layout, ...]


SUM = Partial("sum")
MAX_LABELS = 8  # labels, of which those with one place stay whole
ADDED = "+"  # and the number of a group of operands: the label of what is given to addends


def shardings(
    node: Node, operands: Sequence[Spec], target: Target, addends: Sequence[Collection[int]] = ()
) -> Iterator[Sharding]:
    """The ways to give a node's indices to mesh axes; the first gives none away. `addends`: of each
    operand the mesh axes along which it may come as addends of a sum."""
    indices = OPS[node.op].indices(tuple(operands), node.specs, node.kw)
    extents = extents_of(indices, operands, node.specs)
    blocks = target.numerics == "any-workers"
    labels = [c for c in extents if may_split(indices, c, node, blocks)]
    if len(labels) > MAX_LABELS:
        labels = [c for c in labels if extents[c] > 1]
    sums = [] if blocks else list(enumerate(added(node, operands)))
    kinds: list[list[str | None]] = []
    for axis, n in enumerate(target.mesh):
        kinds.append([None, *labels] if n > 1 else [None])
        for g, group in sums if n > 1 else ():
            if all(axis in addends[k] for k in group):
                kinds[-1].append(f"{ADDED}{g}")
    for chosen in itertools.product(*kinds):
        sharding = sharding_of(indices, extents, operands, node, chosen, target.mesh, blocks)
        if sharding is not None:
            yield sharding


def sharding_to(
    node: Node, operands: Sequence[Spec], end: Layout, target: Target, overlapping: bool = False
) -> Sharding | None:
    """The way to run a node whose result comes in a layout; None if there is none. `overlapping`: operands
    come with just as much of their neighbours as it needs, so results may overlap."""
    if node.op in ("relayout", "resplit", "mark") or end.mesh != target.mesh or end.partial_axes:
        return None
    if end.windows and operands and not overlapping:
        return None
    indices = OPS[node.op].indices(tuple(operands), node.specs, node.kw)
    blocks = target.numerics == "any-workers"
    chosen = tuple(indices.outs[0][s] if isinstance(s, int) else None for s in end.splits)
    seen = {c: w for d, w in end.windows if (c := indices.outs[0][d]) is not None}
    if any((c is None) != (s is None) for c, s in zip(chosen, end.splits, strict=True)):
        return None
    if any(c is not None and not may_split(indices, c, node, blocks) for c in chosen):
        return None
    extents = extents_of(indices, operands, node.specs)
    sharding = sharding_of(indices, extents, operands, node, chosen, target.mesh, blocks, seen)
    return sharding if sharding is not None and sharding.gives == (end,) else None


def added(node: Node, operands: Sequence[Spec]) -> tuple[tuple[int, ...], ...]:
    """The operands that may come as addends of sums, together, of which the node makes addends."""
    op, (out, *others) = OPS[node.op], node.specs
    groups = op.parallel.adds
    if op.moves.concatenates:
        groups = (tuple(range(len(operands))),)
    elif (op.is_view and op.made_by == "users") or op.moves.converts:
        groups = ((0,),)
    elif "value" in node.kw:  # a constant, or around an array
        groups = (tuple(range(len(operands))),) if node.kw["value"] == 0 else ()
    if others or not groups or out.dtype.kind in "bU":
        return ()
    return tuple(
        [
            group
            for group in groups
            if all(_widens(operands[k].dtype, out.dtype) for k in group)
            and all(s.size == 1 for k, s in enumerate(operands) if k not in group)
        ]
    )


def _widens(has: DType, gets: DType) -> bool:
    """Whether addends may be converted, so that their sum is as exact."""
    if has == gets:
        return True
    wider = has.itemsize <= gets.itemsize and (has.kind == "c") <= (gets.kind == "c")
    return wider and is_inexact(has) and is_inexact(gets)


def labels_of(indices: Indices, node: Node, operands: Sequence[Spec], axis: int) -> set[str | None]:
    """Labels that a mesh axis is given to, as the layouts say: one label, or nothing; None for what cannot be
    cut, and several if the layouts do not agree."""
    found = set[str | None]()
    held: list[set[str | None]] = []
    for dims, spec in zip((*indices.ins, *indices.outs), (*operands, *node.specs), strict=True):
        split = _split(spec, axis)
        if isinstance(split, int):
            dim = dims[split]
            held.append({*dim.labels} if isinstance(dim, Window) else {dim})
    if held:  # a window's dimension has two labels; other arrays tell which of them is cut
        found = set.intersection(*held) or set.union(*held)
    come = tuple([k for k, s in enumerate(operands) if _split(s, axis) == SUM])
    if not found and (come or any(_split(s, axis) == SUM for s in node.specs)):
        groups = added(node, operands)
        found.add(f"{ADDED}{groups.index(come)}" if come in groups else None)
    return found


def _split(spec: Spec, axis: int) -> Placement:
    assert spec.layout is not None
    return spec.layout.splits[axis]


def extents_of(indices: Indices, ins: Sequence[Spec], outs: Sequence[Spec]) -> dict[str, int]:
    found: dict[str, int] = {}
    for dims, spec in zip((*indices.outs, *indices.ins), (*outs, *ins), strict=True):
        for dim, n in zip(dims, spec.shape, strict=True):
            if isinstance(dim, str):
                found.setdefault(dim, n)
    for dim in itertools.chain(*indices.ins):
        if isinstance(dim, Window) and dim.over is not None:
            found.setdefault(dim.over, dim.size)
    return found


def may_split(indices: Indices, label: str, node: Node, blocks: bool) -> bool:
    """A label that stands once in each array that has it, and is parallel or has a monoid. What stands
    in windows alone is in no part's place, so that no worker would know which of it is its own."""
    for dims in indices.ins:
        if sum(label in d.labels if isinstance(d, Window) else d == label for d in dims) > 1:
            return False
    if any(dims.count(label) > 1 for dims in indices.outs):
        return False
    if any(label in dims for dims in indices.outs):
        return True
    name = indices.monoid(label)
    if name is None or not any(label in dims for dims in indices.ins):
        return False
    return MONOIDS[name].exact or not blocks or not any(is_inexact(s.dtype) for s in node.specs)


def sharding_of(
    indices: Indices,
    extents: dict[str, int],
    operands: Sequence[Spec],
    node: Node,
    chosen: tuple[str | None, ...],
    mesh: Mesh,
    blocks: bool,
    seen: Mapping[str, Overlap] = MappingProxyType({}),
) -> Sharding | None:
    """The way that gives these labels to mesh axes. `seen`: of labels of which workers have windows of
    another index's parts, and not parts of their own, these windows."""
    if any(is_rigid(indices, node, label) for label in seen):
        return None
    needs = []
    groups = added(node, operands) if any(c and c[0] == ADDED for c in chosen) else ()
    for k, dims in enumerate(indices.ins):
        splits: list[Placement] = []
        windows: dict[int, Overlap] = {}
        for label in chosen:
            place: Placement = None
            if label is not None and label[0] == ADDED:
                splits.append(SUM if k in groups[int(label[1:])] else None)
                continue
            for d, dim in enumerate(dims):
                if label is not None and dim == label:
                    place = d
                    if label in seen:
                        windows[d] = seen[label]
                elif isinstance(dim, Window) and label is not None and label in dim.labels:
                    if label == dim.over and dim.label in chosen:
                        continue  # of two labels that are cut, one cuts the dimension
                    window = dim.overlap(label, extents)
                    place, windows[d] = (
                        d,
                        composed(seen[label], window) if label in seen else window,
                    )
            splits.append(place)
        needs.append((splits, windows))
    made = []
    for k, spec in enumerate(operands):
        splits, windows = needs[k]
        kept = tuple(sorted((d, w) for d, w in windows.items() if not w.covers(spec.shape[d])))
        made.append(Layout(mesh, tuple(splits), kept, blocks))
    gives = []
    for dims, spec in zip(indices.outs, node.specs, strict=True):
        placed: list[Placement] = []
        for label in chosen:
            if label is None:
                placed.append(None)
            elif label in dims:
                placed.append(dims.index(label))
            elif label[0] == ADDED:
                placed.append(SUM)
            elif any(label in o for o in indices.outs):
                placed.append(None)
            else:
                placed.append(Partial(str(indices.monoid(label))))
        cut = ((d, seen[c]) for d, c in enumerate(dims) if c is not None and c in seen)
        kept = tuple([(d, w) for d, w in cut if not w.covers(spec.shape[d])])
        gives.append(Layout(mesh, tuple(placed), kept, blocks))
    for label in indices.chunked.intersection(c for c in chosen if c is not None):
        if not _chunks_agree(indices, label, chosen, operands, node.specs, mesh, blocks):
            return None
    for label, bounds in indices.parts:
        if label in chosen and not _parts_agree(
            indices, label, bounds, made, gives, operands, node
        ):
            return None
    return Sharding(chosen, tuple(made), tuple(gives))


def composed(seen: Overlap, window: Overlap) -> Overlap:
    """Compose windows: those of outputs `seen`, as windows of the operand of which these outputs
    read windows.
    """
    far, every = seen.reach - 1, seen.every * window.every
    step = window.stride * seen.stride
    first = seen.every * window.offset + window.stride * seen.offset + min(window.stride * far, 0)
    last = first + seen.every * (window.reach - 1) + abs(window.stride) * far
    common = math.gcd(step, every)
    first, last = -(-first // common), last // common
    affine = first, step // common, last - first + 1, every // common
    return Overlap(seen.count, *affine, seen.low, seen.high, seen.piece)


def is_rigid(indices: Indices, node: Node, label: str) -> bool:
    """Whether an index can be cut into parts of its own only: these must not overlap, nor begin anywhere
    else."""
    goes_on = OPS[node.op].run.carries_state and indices.outs[0][node.kw["axis"]] == label
    return goes_on or label in indices.chunked or any(label == c for c, _ in indices.parts)


def _parts_agree(
    indices: Indices,
    label: str,
    bounds: Sequence[int],
    needs: Sequence[Layout],
    gives: Sequence[Layout],
    operands: Sequence[Spec],
    node: Node,
) -> bool:
    """Whether each worker gets whole parts, and the rows of just these parts."""
    held = [
        (spec.shape[d], every_bounds(layout, spec.shape[d], d))
        for dims, layout, spec in zip(
            (*indices.ins, *indices.outs), (*needs, *gives), (*operands, *node.specs), strict=True
        )
        for d, dim in enumerate(dims)
        if dim == label
    ]
    starts = np.array(bounds)
    rows = [(starts[lo], starts[hi]) if n == len(bounds) - 1 else (lo, hi) for n, (lo, hi) in held]
    whole = bool(rows) and bool(np.isin(rows[0], starts).all())
    return whole and all(np.array_equal(rows[0], r) for r in rows)


def _chunks_agree(
    indices: Indices,
    label: str,
    chosen: tuple[str | None, ...],
    operands: Sequence[Spec],
    outs: Sequence[Spec],
    mesh: Mesh,
    blocks: bool,
) -> bool:
    """Whether a cut of a folded group falls on the same elements before and after the reshape."""
    x, y = operands[0].shape, outs[0].shape
    n, m = x[indices.ins[0].index(label)], y[indices.outs[0].index(label)]
    layout = Layout(mesh, tuple(0 if c == label else None for c in chosen), (), blocks)
    # compare as fractions of the group: n parts and m parts of the same elements
    (first,), (other,) = layout.local_shape((n,), 0), layout.local_shape((m,), 0)
    if first * m != other * n:
        return False
    pairs = zip(every_bounds(layout, n, 0), every_bounds(layout, m, 0), strict=True)
    return max(n, m) > 0 and all(bool((a * m == b * n).all()) for a, b in pairs)
