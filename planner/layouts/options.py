"""What may be chosen for one node: a way to run it, and where its results then go.

Results that come as addends are summed on their way to the one who reads them, unless that one adds
them to others first. If several read them, it is chosen here where the sums go: whole, in parts, or
nowhere yet; addends that belong together (a minimum and its place) are summed at once. So is whether
parts that several read are gathered once for all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, Mesh, Placement
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.traffic import scatters
from ostinato.planner.machine import Machine
from ostinato.planner.plan import Target, local_bytes

from .costs import graph_seconds, sharding_seconds, together_seconds
from .shardings import SUM, Sharding, shardings

Function = Callable[..., Any]
Solved = Callable[[Graph, Sequence[Spec], Target, Sequence[Layout | None]], Graph]

CUT = 1e-12  # seconds by which what cuts less is preferred, of two that cost the same
MAX_LAYOUTS = 64  # layouts that are tried for what has no way to run, such as the state of a loop

ONE, SEVERAL, ADDING = range(3)  # who reads a result; some of those who are ADDING may take addends
Seen = tuple[int, ...]  # of each result
Addends = tuple[
    tuple[int, ...], ...
]  # of each operand, the mesh axes along which it may be addends


@dataclass(frozen=True, slots=True)
class Options:
    """Of each choice: the layouts that operands are needed in, those in which results are made and
    those in which they are left, and the seconds of all but the operands' relayouts."""

    needs: tuple[tuple[Layout, ...], ...]  # [operand][choice]
    gives: tuple[tuple[Layout, ...], ...]  # [result][choice]
    ends: tuple[tuple[Layout, ...], ...]  # [result][choice]
    graphs: tuple[Graph | None, ...]  # what is run instead of the node
    costs: np.ndarray[Any, Any]
    relayouts: np.ndarray[Any, Any]  # what they take of that


def options(
    node: Node,
    ins: Sequence[Spec],
    addends: Addends,
    seen: Seen,
    target: Target,
    machine: Machine,
    near: Sequence[Sequence[Layout]],
    solved: Solved,
    squared: bool = False,
) -> Options:
    """The choices for a node: ways to run it, and its algorithms. `near` are layouts in which its
    operands may come, for algorithms, whose graphs are `solved`; `squared`: of a product."""
    bare = Node(node.op, (), node.params, tuple([s.bare for s in node.specs]), "", node.key)
    op, asked = OPS[node.op], (bare, tuple(ins), addends, seen, target, machine)
    if op.parallel.algorithms is None:
        return _direct(*asked, squared)
    return _with_algorithms(
        *asked, tuple(map(tuple, near)), op.parallel.algorithms, op.cost, solved
    )


@lru_cache(1 << 10)
def _with_algorithms(
    bare: Node,
    ins: tuple[Spec, ...],
    addends: Addends,
    seen: Seen,
    target: Target,
    machine: Machine,
    near: tuple[tuple[Layout, ...], ...],
    algorithms: Function,
    cost: Function,  # of the operation, by which `direct` is found
    solved: Solved,
) -> Options:
    """Once for all nodes that are alike: each algorithm's layouts are a search of their own."""
    direct = _direct(bare, ins, addends, seen, target, machine)
    made: list[tuple[tuple[Layout, ...], Graph, float]] = []
    for layouts in itertools.islice(itertools.product(*near), 16):
        specs = tuple([s.at(w) for s, w in zip(ins, layouts, strict=True)])
        whole = Layout.whole(target.mesh)
        parts = sum([local_bytes(s) for s in specs])
        wanted = [whole if s.nbytes <= parts else None for s in bare.specs]
        for g in algorithms(specs, bare.specs, bare.kw):
            graph = solved(g, specs, target, wanted)
            made.append((layouts, graph, graph_seconds(machine, graph)))
    if not made:
        return direct
    ends = [tuple([s.layout or Layout.whole(target.mesh) for s in g.out_specs]) for _, g, _ in made]
    return Options(
        tuple([(*n, *(w[k] for w, _, _ in made)) for k, n in enumerate(direct.needs)]),
        tuple([(*g, *(e[k] for e in ends)) for k, g in enumerate(direct.gives)]),
        tuple([(*d, *(e[k] for e in ends)) for k, d in enumerate(direct.ends)]),
        (*direct.graphs, *(g for _, g, _ in made)),
        np.concatenate([direct.costs, [s for _, _, s in made]]),
        np.concatenate([direct.relayouts, np.zeros(len(made))]),
    )


@lru_cache(1 << 14)
def _direct(
    node: Node,
    ins: tuple[Spec, ...],
    addends: Addends,
    seen: Seen,
    target: Target,
    machine: Machine,
    squared: bool = False,
) -> Options:
    choices: list[tuple[Sharding, tuple[Layout, ...]]] = []
    costs, moves = [], []
    for sharding in shardings(node, ins, target, addends):
        cost = sharding_seconds(machine, node, ins, sharding, squared)
        cost += CUT * sum([c is not None for c in sharding.labels])
        for ends in _ends(node, sharding, seen, target.numerics == "any-workers"):
            made = [s.at(g) for s, g in zip(node.specs, sharding.gives, strict=True)]
            left = [s.at(e) for s, e in zip(node.specs, ends, strict=True)]
            moves.append(together_seconds(machine, made, left))
            costs.append(cost + moves[-1])
            choices.append((sharding, ends))
    return Options(
        tuple([tuple([w.needs[k] for w, _ in choices]) for k in range(len(ins))]),
        tuple([tuple([w.gives[k] for w, _ in choices]) for k in range(len(node.specs))]),
        tuple([tuple([e[k] for _, e in choices]) for k in range(len(node.specs))]),
        (None,) * len(choices),
        np.array(costs),
        np.array(moves),
    )


def _ends(node: Node, sharding: Sharding, seen: Seen, blocks: bool) -> list[tuple[Layout, ...]]:
    """Where a node's results may be left, of those that a way makes."""
    addends = any(g.partial_axes for g in sharding.gives)
    if addends and len(node.specs) > 1:
        return [tuple([summed(g) for g in sharding.gives])]
    if not any(seen) or len(node.specs) > 1:
        return [sharding.gives]
    (spec,), (gives,) = node.specs, sharding.gives
    if addends:
        stay = seen == (ADDING,) and all(gives.splits[a] == SUM for a in gives.partial_axes)
        return [(end,) for end in [*([gives] if stay else []), *sums_of(spec, gives, blocks)]]
    axes = [a for a, s in enumerate(gives.splits) if s is not None]
    found = [gives]
    for axis in axes:
        found += [w.with_split(axis, None) for w in found]
    return [(w,) for w in found]


def summed(layout: Layout) -> Layout:
    for axis in layout.partial_axes:
        layout = layout.with_split(axis, None)
    return layout


def sums_of(spec: Spec, gives: Layout, blocks: bool) -> list[Layout]:
    """Where the sum of addends may go: whole or in parts, along each axis."""
    found = [gives]
    for axis in gives.partial_axes:
        more = []
        for here in found:
            more.append(here.with_split(axis, None))
            for d, size in enumerate(spec.shape):
                there = Layout(here.mesh, here.with_split(axis, d).splits, (), blocks)
                if size >= here.mesh[axis] and scatters(here, summed(there), axis):
                    more.append(there)
        found = more
    return found


def candidates(spec: Spec, mesh: Mesh, blocks: bool) -> list[Layout]:
    """The layouts that a value may have; those that cut least first."""
    places: list[list[Placement]] = []
    for n in mesh:
        dims = [d for d, size in enumerate(spec.shape) if size >= n > 1]
        places.append([None, *dims])
    found = [Layout(mesh, splits, (), blocks) for splits in itertools.product(*places)]
    found.sort(key=cuts)
    return found[:MAX_LAYOUTS]


def cuts(layout: Layout) -> int:
    return sum([s is not None for s in layout.splits])
