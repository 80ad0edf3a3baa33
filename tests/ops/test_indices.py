"""The one fact from which every way to cut an operation follows, by brute force: each label of each
sample is cut in parts, one of them perhaps empty; the parts are computed on their own, and put side
by side or combined with the label's monoid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops import OPS, Graph, Node
from ostinato.ops.core.index import Indices, Window
from ostinato.ops.core.layout import grid_bounds
from ostinato.ops.core.monoid import MONOIDS
from ostinato.planner.layouts.shardings import added, extents_of

from tests.fake_xp import from_host, to_host

from .nodes import SAMPLED, Box, blank, extent, ins_of, nodes_of, place, run, same

Part = dict[int, tuple[int, int]]  # a part of a label, for each extent that the label has
Way = list[Part]  # all parts of a label


def labels_of(dim: Any) -> tuple[str, ...]:
    if isinstance(dim, Window):
        return dim.labels
    return () if dim is None else (dim,)


def splittable(indices: Indices) -> list[str]:
    """Labels that stand once in each array, in one of them alone, and are in a result or have a monoid."""
    arrays = [[c for d in dims for c in labels_of(d)] for dims in (*indices.ins, *indices.outs)]
    every = dict.fromkeys(c for labels in arrays for c in labels)
    return [
        c
        for c in every
        if all(labels.count(c) <= 1 for labels in arrays)
        and any(c in dims for dims in (*indices.ins, *indices.outs))
        and (any(c in dims for dims in indices.outs) or indices.monoid(c))
    ]


def extents(indices: Indices, label: str, ins: Sequence[Any], outs: Sequence[Any]) -> list[int]:
    """The sizes of the dimensions that carry a label: first those of results, then operands."""
    pairs = zip((*indices.outs, *indices.ins), (*outs, *ins), strict=True)
    return [
        n for dims, spec in pairs for dim, n in zip(dims, spec.shape, strict=True) if dim == label
    ]


def ways(indices: Indices, label: str, node: Node, ins: Sequence[Any]) -> list[Way]:
    """Some ways to cut a label."""
    sizes = sorted(set(extents(indices, label, ins, node.specs)))
    if len(sizes) == 1:
        (n,) = sizes
        if label in dict(indices.parts):
            bounds = dict(indices.parts)[label]
            return [[{n: (0, k)}, {n: (k, n)}] for k in bounds]
        a, b = (n + 1) // 2, min(n, (n + 2) // 3)
        return [
            [{n: (0, a)}, {n: (a, a)}, {n: (a, n)}],
            [{n: (0, b)}, {n: (b, min(n, 2 * b))}, {n: (min(n, 2 * b), n)}],
        ]
    small, large = sizes
    bounds = dict(indices.parts).get(label)
    if bounds is not None:  # where parts begin
        return [
            [{small: (0, k), large: (0, bounds[k])}, {small: (k, small), large: (bounds[k], large)}]
            for k in range(small + 1)
        ]
    if node.op.startswith("block_"):  # where blocks of the fixed grid begin
        k = small // 2
        at = grid_bounds(large)[k]
        return [[{small: (0, k), large: (0, at)}, {small: (k, small), large: (at, large)}]]
    assert label in indices.chunked, f"{node}: {label!r} has extents {sizes}"
    steps = math.gcd(small, large)
    k, a, b = (steps + 1) // 2, small // steps, large // steps
    return [
        [{small: (0, k * a), large: (0, k * b)}, {small: (k * a, small), large: (k * b, large)}]
    ]


def box_of(dims: Sequence[Any], shape: Sequence[int], cut: dict[str, Part], counts: Any) -> Box:
    """What is needed, or made, of one array."""
    box = []
    for dim, n in zip(dims, shape, strict=True):
        label = next((c for c in labels_of(dim) if c in cut), None)
        if label is None:
            box.append((0, n))
        elif isinstance(dim, Window):
            box.append(dim.overlap(label, counts).image(*cut[label][counts[label]], n))
        else:
            box.append(cut[label][n])
    return tuple(box)


def part_of(x: Any, box: Box) -> Any:
    return x[(*(slice(lo, hi) for lo, hi in box), ...)]


def check(
    graph: Graph, node: Node, operands: Any, made: Any, chosen: dict[str, Way], xp: Any = np
) -> None:
    """The node part by part, with arrays of `xp`, is the node at once."""
    move, back = (from_host, to_host) if xp is not np else (np.asarray, np.asarray)
    ins = ins_of(graph, node)
    indices = OPS[node.op].indices(ins, node.specs, node.kw)
    counts = extents_of(indices, ins, node.specs)
    reduced = [c for c in chosen if not any(c in dims for dims in indices.outs)]
    parallel = [c for c in chosen if c not in reduced]
    found, ends = [blank(y.shape, y.dtype) for y in made], dict[Any, Any]()
    for here in itertools.product(*(chosen[c] for c in parallel)):
        state: list[Any] | None = None
        for there in itertools.product(*(chosen[c] for c in reduced)):
            cut = dict(zip((*parallel, *reduced), (*here, *there), strict=True))
            pairs = zip(indices.ins, operands, strict=True)
            needs = [box_of(dims, x.shape, cut, counts) for dims, x in pairs]
            gives = [
                box_of(dims, y.shape, cut, counts)
                for dims, y in zip(indices.outs, made, strict=True)
            ]
            parts = [
                move(np.ascontiguousarray(part_of(x, box)).reshape(extent(box)))
                for x, box in zip(operands, needs, strict=True)
            ]
            with np.errstate(all="ignore"):
                at = place(graph, node, needs, gives)
                addends = run(graph, node, parts, at, xp=xp, ends=ends)
                if state is None:
                    state = [y.copy() for y in addends]
                else:
                    monoid = indices.monoid(reduced[0])
                    MONOIDS[str(monoid)].combine(xp, state, state, addends)
        assert state is not None
        for target, value, box in zip(found, state, gives, strict=True):
            part_of(target, box)[...] = back(value)
    for y, wanted in zip(found, made, strict=True):
        same(y, wanted, f"{node} with {list(chosen)} cut")


@pytest.mark.parametrize("name", SAMPLED)
def test_indices(name):
    for graph, node, operands, made in nodes_of(name):
        ins = ins_of(graph, node)
        indices = OPS[name].indices(ins, node.specs, node.kw)
        for dims, x in zip((*indices.ins, *indices.outs), (*operands, *made), strict=True):
            assert len(dims) == x.ndim, f"{node}: {dims} for shape {x.shape}"
        found = {c: ways(indices, c, node, ins) for c in splittable(indices)}
        for label, each in found.items():
            for way in each:
                check(graph, node, operands, made, {label: way})
        for a, b in itertools.combinations(found, 2):
            if indices.monoid(a) == indices.monoid(b) or not (
                indices.monoid(a) and indices.monoid(b)
            ):
                check(graph, node, operands, made, {a: found[a][0], b: found[b][0]})


@pytest.mark.parametrize("name", SAMPLED)
def test_addends(name):
    """What a node makes of the addends of its operands adds up to what it makes of their sums."""
    r = np.random.default_rng(1)
    for graph, node, operands, made in nodes_of(name):
        for group in added(node, ins_of(graph, node)):
            some, rest = list(operands), list(operands)
            with np.errstate(all="ignore"):
                for k in group:
                    some[k] = (r.normal(size=operands[k].shape) * 2).astype(operands[k].dtype)
                    rest[k] = operands[k] - some[k]
                parts = [run(graph, node, given)[0] for given in (some, rest)]
                if made[0].dtype.kind in "iu":
                    np.testing.assert_array_equal(parts[0] + parts[1], made[0])
                    continue
                off = np.abs(parts[0].astype(complex) + parts[1] - made[0])
                values = np.concatenate(
                    [np.abs(np.ravel(x).astype(complex)) for x in (*rest, *made)]
                )
                scale = 1 + np.max(values, where=np.isfinite(values), initial=0)
            near = 0.1 if min(x.dtype.itemsize for x in (*rest, *made)) <= 2 else 1e-5
            assert not (off > near * scale).any(), f"{node}: {group}"


# -- the test itself -----------------------------------------------------------------------
def test_a_wrong_rule_is_found(monkeypatch):
    """Without its offset, a slice reads the wrong rows."""
    import dataclasses

    def wrong(ins: Any, outs: Any, p: Any) -> Indices:
        labels = tuple("ab"[: outs[0].ndim])
        return Indices((labels,), (labels,))

    monkeypatch.setitem(OPS, "sort", dataclasses.replace(OPS["sort"], indices=wrong))
    with pytest.raises(AssertionError, match="sort"):
        test_indices("sort")


def test_every_reduction_is_cut():
    """Where a label is reduced, cutting it is what the test is for."""
    reducing = {"sum", "mean", "prod", "min", "max", "any", "all", "moments", "matmul", "einsum"}
    for name in (*sorted(reducing), "argmin_pair", "take"):
        labels = set()
        for graph, node, *_ in nodes_of(name):
            indices = OPS[name].indices(ins_of(graph, node), node.specs, node.kw)
            labels |= {c for c in splittable(indices) if indices.monoid(c)}
        assert labels, name
