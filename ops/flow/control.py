"""Control flow as nodes: graphs inside a graph, run by the workers without a message per turn.

What `loop` (repeat_scan.py), `while` (while_loops.py) and `branch` (branches.py) share: the state that
turns carry, and the graphs of users' functions. `blocks` is what the planner makes of a part of a
graph that runs block after block of an index: a split in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..array.elementwise import where
from ..array.shape import reshape
from ..autodiff.batching import Mapped, flags_of
from ..autodiff.tangents import Tangents, solid
from ..core.apply import act, as_array, as_array_of, weak_dtype
from ..core.array import DEFAULTS, Array, weak_kind
from ..core.build import Builder
from ..core.graph import Graph, Node
from ..core.index import opaque
from ..core.parameters import GRAPH, joined, whole
from ..core.registry import Specs, lookup, op
from ..core.spec import Spec, bool_, int64, is_inexact
from ..core.trace import acts
from ..core.tree import flatten, paths, unflatten
from ..core.user_line import misfit

INDEX = Spec((), int64)
ONE_KERNEL = {"loop": "fused_loop", "while": "fused_while"}  # where all turns are one kernel
FLOW = (*ONE_KERNEL, "branch")  # what users' functions have
CONTROL = (*FLOW, "blocks")
CARRYING = (*ONE_KERNEL, *ONE_KERNEL.values())  # a state from turn to turn

# What is given as numbers comes back as arrays, which a type can say of one number and of a few beside
# each other, but of no tree; objects have fields that say what they are.
Number: TypeAlias = Array | complex | np.ndarray[Any, Any] | np.generic
Two: TypeAlias = tuple[Array, Array]
Three: TypeAlias = tuple[Array, Array, Array]
Tree: TypeAlias = tuple[Any, ...] | list[Any] | dict[Any, Any]
S = TypeVar("S")  # a state


def graph_cost(graph: Graph) -> tuple[float, float]:
    flops = moved = 0.0
    for node in graph.nodes:
        f, b = lookup(node.op).cost(tuple(graph.specs[v] for v in node.inputs), node.specs, node.kw)
        flops, moved = flops + f, moved + b
    return flops, moved


class WithTangents:
    """Operands, and behind them the changes of those that have some."""

    def __init__(self, xs: Sequence[Array], tangents: Tangents, which: str) -> None:
        self.count = len(xs)
        self.live = [
            k
            for k, (x, t) in enumerate(zip(xs, tangents, strict=True))
            if t is not None or (which == "inexact" and is_inexact(x.dtype))
        ]
        self.both = [*xs, *(solid(tangents[k], xs[k]) for k in self.live)]

    def parted(self, both: Sequence[Array]) -> tuple[list[Array], list[Array | None]]:
        """These, and the change of each."""
        changes: list[Array | None] = [None] * self.count
        for k, t in zip(self.live, both[self.count :], strict=True):
            changes[k] = t
        return list(both[: self.count]), changes


def grow_axes(
    body: Graph, xs: Sequence[Mapped], first: int, count: int, size: int, before: int
) -> tuple[list[bool], list[bool]]:
    """Which operands have the axis in every turn, and which results; states are `count` of them, from
    `first` on. The body is given so many others before."""
    has = [own for _, own in xs]
    while True:
        made = flags_of(body, body.inputs, [*[False] * before, *has], size)
        grown = [a or b for a, b in zip(has[first : first + count], made[:count], strict=True)]
        if grown == has[first : first + count]:
            return has, made
        has[first : first + count] = grown


def acting(made: tuple[Array, ...], *bodies: Graph) -> tuple[Array, ...]:
    """The results of a node with bodies. What is to happen in these, does."""
    if any(map(acts, bodies)):
        act(made[0])
    return made


def leaves_of(tree: Any) -> tuple[list[Array], Any]:
    leaves, structure = flatten(tree)
    return [as_array(x) for x in leaves], structure


class Retrace(Exception):
    """A number in the state took another dtype, so the turn has to be looked at again."""


class CarriedState:
    """What goes from turn to turn. Python numbers in it are as weak as they are elsewhere: they take
    the dtype that the turn makes of them."""

    def __init__(self, tree: Any, what: str) -> None:
        self.what = what
        self.given, self.structure = flatten(tree)
        self.names = paths(self.structure, "state")
        self.kinds = [weak_kind(x) for x in self.given]
        self.carry = [as_array(x) for x in self.given]

    def enter(self, args: Sequence[Array]) -> Any:
        """The state at the beginning of a turn."""
        for x, kind in zip(args, self.kinds, strict=True):
            x.weak = kind
        return unflatten(self.structure, args)

    def leave(self, results: Any) -> list[Array]:
        """Leave a turn: check and adapt the state after it."""
        leaves, found = flatten(results)
        if found != self.structure:
            needed = f"the structure that goes in, {self.structure}"
            raise misfit(ArgumentError, self.what, got=f"a state {found} coming out", needed=needed)
        adapted = [self._adapt(k, y) for k, y in enumerate(leaves)]
        if any(adapted):
            raise Retrace
        after = [as_array(y) for y in leaves]
        _check_state(self.carry, after, self.names, self.what)
        return after

    def _adapt(self, k: int, y: Any) -> bool:
        """Whether a number became something else than it was."""
        kind = self.kinds[k]
        if kind is None:
            return False
        other = weak_kind(y)
        if other is not None:
            if _KINDS.index(other) <= _KINDS.index(kind):
                return False
            self.kinds[k], dtype = other, DEFAULTS[other]
        else:
            y = as_array(y)
            dtype = y.dtype
            if y.shape or weak_dtype(kind, dtype) != dtype:
                return False
            self.kinds[k] = None
        self.carry[k] = as_array_of(self.given[k], dtype)
        return True

    def result(self, made: Sequence[Array]) -> Any:
        return self.enter(made)


_KINDS = [bool, int, float, complex]


def _check_state(
    before: Sequence[Array], after: Sequence[Array], names: Sequence[str], what: str
) -> None:
    for x, y, name in zip(before, after, names, strict=True):
        if x.shape != y.shape:
            got = f"{name or 'the state'} of shape {x.shape} going in and {y.shape} coming out"
            raise misfit(ShapeError, what, got=got, needed="the same shape in every turn")
        if x.dtype != y.dtype:
            got = f"{name or 'the state'} of dtype {x.dtype.name} going in and {y.dtype.name} coming out"
            do = f"start with .astype(ost.{y.dtype.name}), or convert what the turn returns"
            raise misfit(DTypeError, what, got=got, needed="the same dtype in every turn", do=do)


# The body's values have their whole shapes, and layouts with one more mesh axis, the last one: the
# turn. So a turn is to a block what a rank is to a part: what is cut along it is read and written
# block by block, and addends of turns are combined as addends of workers are.
def _blocks_rule(*xs: Spec, body: Graph, turns: int) -> Specs:
    joined("blocks", xs, body.inputs)
    return tuple(s.bare for s in body.out_specs)


op(
    "blocks",
    infer=_blocks_rule,
    takes={"body": GRAPH, "turns": whole(2, 1 << 20)},
    made_by="passes",
    indices=opaque,
    cost=lambda ins, outs, p: graph_cost(p["body"]),
)


def select_each(mask: Array, yes: Sequence[Array], no: Sequence[Array]) -> list[Array]:
    """For each element one or the other."""
    return [
        where(reshape(mask, (*mask.shape, *(1,) * (a.ndim - 1))), a, b)
        for a, b in zip(yes, no, strict=True)
    ]


def truth_of(x: Any, what: str) -> Array:
    found = as_array(x)
    if found.shape or found.dtype != bool_:
        got = f"a condition {found.spec.bare}"
        raise misfit(DTypeError, what, got=got, needed="one bool", do="use .all() or .any()")
    return found


def relabel(graph: Graph, inputs: Sequence[Spec], values: list[int]) -> Graph:
    """The graph over other inputs; `values` says which of them each old one is."""
    builder = Builder(inputs)
    for node in graph.nodes:
        values.extend(
            builder.add(
                node.op, [values[v] for v in node.inputs], node.params, node.specs, node.line
            )
        )
    return builder.graph([values[v] for v in graph.outputs])


def begun_as(node: Node, j: int) -> int | None:
    """Which operand of a loop its j-th result begins as; None of what is stacked."""
    constants, states = node.kw["counts"][:2]
    return constants + j if j < states else None


WHOLE = "fused_whole"  # a graph with such loops that is one kernel, too


def _whole_rule(*xs: Spec, body: Graph) -> Specs:
    joined(WHOLE, xs, body.inputs)
    return tuple(s.bare for s in body.out_specs)


op(
    WHOLE,
    infer=_whole_rule,
    takes={"body": GRAPH},
    indices=opaque,
    cost=lambda ins, outs, p: graph_cost(p["body"]),
    made_by="machine",
)
