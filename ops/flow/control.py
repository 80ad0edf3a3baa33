"""Control flow as nodes: graphs inside a graph, run by the workers without a message per turn.

`loop` carries a state through `trips` turns, reads slices of `xs` and stacks what each turn yields:
repeat and scan. `while` runs as long as its condition graph says so. `branch` runs one of two
graphs. `blocks` is what the planner makes of a part of a graph that runs block after block of an
index: a split in time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, GradientError, ShapeError

from ..array.concatenation import repeat_elements
from ..array.elementwise import where
from ..array.shape import moveaxis, reshape, whole_number, zero_of
from ..autodiff.batching import Mapped, batched_graph, flags_of, given_axis, spread_axis
from ..autodiff.gradient import added, vjp
from ..autodiff.tangents import Tangents, pushed, solid
from ..core.array import (
    DEFAULTS,
    Array,
    Operandish,
    act,
    apply,
    apply_all,
    as_array,
    constant,
    export,
    in_dtype,
    weak_dtype,
    weak_kind,
)
from ..core.build import Builder
from ..core.graph import Graph, Node
from ..core.index import Indices
from ..core.parameters import FLAG, GRAPH, PLACES, joined, unfit, whole
from ..core.registry import Params, Specs, lookup, op
from ..core.spec import Spec, bool_, int64, is_inexact
from ..core.trace import acts, inline, quiet, subgraph
from ..core.tracebacks import door
from ..core.tree import flatten, paths, unflatten
from ..core.user_line import misfit
from ..random.seeds import seeds

__all__ = [
    "cond",
    "repeat",
    "scan",
    "while_loop",
]

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
Y = TypeVar("Y")


def _opaque(ins: Specs, outs: Specs, p: Params) -> Indices:
    """The layout pass looks inside; from outside nothing can be cut."""
    return Indices(tuple((None,) * s.ndim for s in ins), tuple((None,) * s.ndim for s in outs))


def graph_cost(graph: Graph) -> tuple[float, float]:
    flops = moved = 0.0
    for node in graph.nodes:
        f, b = lookup(node.op).cost(tuple(graph.specs[v] for v in node.inputs), node.specs, node.kw)
        flops, moved = flops + f, moved + b
    return flops, moved


# -- loop ----------------------------------------------------------------------------------
def _loop_rule(
    *xs: Spec, body: Graph, trips: int, counts: tuple[int, int, int], reverse: bool
) -> Specs:
    if len(counts) != 3 or sum(counts) != len(xs) or len(body.outputs) < counts[1]:
        raise unfit("loop", xs, f"{counts} constants, states and operands to go through")
    outs = [s.bare for s in body.out_specs]
    split = counts[0] + counts[1]
    if any(x.shape[:1] != (trips,) for x in xs[split:]):
        raise unfit("loop", xs[split:], f"a first axis of {trips} each")
    joined("loop", (INDEX, *xs[:split], *map(_item, xs[split:])), body.inputs)
    joined("loop", outs[: counts[1]], xs[counts[0] : split])
    return (*outs[: counts[1]], *(Spec((trips, *s.shape), s.dtype) for s in outs[counts[1] :]))


def _loop_cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    flops, moved = graph_cost(p["body"])
    return flops * p["trips"], moved * p["trips"]


def _loop_grad(
    g: Any, y: Any, *xs: Array, body: Graph, trips: int, counts: tuple[int, int, int], reverse: bool
) -> Sequence[Array | None]:
    """A loop the other way round. It reads the states that a first loop stacked, and computes each
    turn again.
    """
    nc, ns, nx = counts
    body = quiet(body)
    gs = [g] if isinstance(g, Array) else list(g)
    consts, carry, items = xs[:nc], xs[nc : nc + ns], xs[nc + ns :]
    stacking = Graph(body.inputs, body.nodes, (*body.outputs, *range(1 + nc, 1 + nc + ns)))
    again = apply_all("loop", *xs, body=stacking, trips=trips, counts=counts, reverse=reverse)
    states = again[len(body.outputs) :]

    def moving(spec: Spec) -> bool:
        return is_inexact(spec.dtype)

    live_carry = [k for k in range(ns) if moving(carry[k].spec)]
    live_ys = [k for k in range(len(body.outputs) - ns) if gs[ns + k] is not None]
    live_consts = [k for k in range(nc) if moving(consts[k].spec)]
    live_items = [k for k in range(nx) if moving(items[k].spec)]
    start = [gs[k] if gs[k] is not None else zero_of(carry[k]) for k in live_carry]
    start += [zero_of(consts[k]) for k in live_consts]
    fed = [*states, *items, *(gs[ns + k] for k in live_ys)]

    def turn(*args: Array) -> list[Array]:
        index, rest = args[0], list(args[1:])
        constants, rest = rest[:nc], rest[nc:]
        by_carry, rest = rest[: len(live_carry)], rest[len(live_carry) :]
        by_consts, rest = rest[: len(live_consts)], rest[len(live_consts) :]
        state, rest = rest[:ns], rest[ns:]
        slices, by_ys = rest[:nx], rest[nx:]
        results = inline(body, [index, *constants, *state, *slices])
        cts: list[Array | None] = [None] * len(results)
        for k, ct in zip(live_carry, by_carry, strict=True):
            cts[k] = ct
        for k, ct in zip(live_ys, by_ys, strict=True):
            cts[ns + k] = ct
        back = vjp(results, [*constants, *state, *slices], cts)

        by_state, by_slices = back[nc : nc + ns], back[nc + ns :]
        return [
            *(solid(by_state[k], state[k]) for k in live_carry),
            *(
                acc if (slope := back[k]) is None else added(acc, slope)
                for k, acc in zip(live_consts, by_consts, strict=True)
            ),
            *(solid(by_slices[k], slices[k]) for k in live_items),
        ]

    made = _loop(turn, consts, start, fed, trips, not reverse, "the gradient of a loop")
    found: list[Array | None] = [None] * len(xs)
    for k, ct in zip((*(nc + k for k in live_carry), *live_consts), made, strict=False):
        found[k] = ct
    for k, ct in zip(live_items, made[len(start) :], strict=True):
        found[nc + ns + k] = ct
    return found


def _loop_forward(
    tangents: Tangents,
    *xs: Array,
    body: Graph,
    trips: int,
    counts: tuple[int, int, int],
    reverse: bool,
) -> Sequence[Array | None]:
    """A loop that carries the changes of its state beside it."""
    nc, ns, _ = counts
    split, outs = nc + ns, body.out_specs
    consts = _Beside(xs[:nc], tangents[:nc], "given")
    carry = _Beside(xs[nc:split], tangents[nc:split], "inexact")
    items = _Beside(xs[split:], tangents[split:], "given")
    stacked = [k for k in range(ns, len(outs)) if is_inexact(outs[k].dtype)]

    def turn(index: Array, *args: Array) -> list[Array]:
        ends = len(consts.both), len(consts.both) + len(carry.both)
        given = (
            consts.parted(args[: ends[0]]),
            carry.parted(args[ends[0] : ends[1]]),
            items.parted(args[ends[1] :]),
        )
        inputs = [index, *(x for values, _ in given for x in values)]
        changes = [None, *(t for _, own in given for t in own)]
        made, moved = pushed(body, inputs, changes)
        return [
            *made[:ns],
            *(solid(moved[k], made[k]) for k in carry.live),
            *made[ns:],
            *(solid(moved[k], made[k]) for k in stacked),
        ]

    found = _loop(turn, consts.both, carry.both, items.both, trips, reverse, "jvp of a loop")
    states, stacks = found[: len(carry.both)], found[len(carry.both) :]
    values, changes = carry.parted(states)
    ys = stacks[: len(outs) - ns]
    by_ys = dict(zip(stacked, stacks[len(ys) :], strict=True))
    return [*values, *ys, *changes, *(by_ys.get(k) for k in range(ns, len(outs)))]


class _Beside:
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


def _loop_batched(
    size: int, *xs: Mapped, body: Graph, trips: int, counts: tuple[int, int, int], reverse: bool
) -> Sequence[Mapped]:
    """One loop for all elements. A state has the axis if it has it after some turn."""
    nc, ns, _ = counts
    has, made = _grown(body, xs, nc, ns, size, 1)
    states = has[nc : nc + ns]
    items = [moveaxis(x, 0, 1) if own else x for x, own in xs[nc + ns :]]

    def turn(index: Array, *args: Array) -> list[Array]:
        given = [(index, False), *zip(args, has, strict=True)]
        found = batched_graph(body, given, size)
        return [*spread_axis(size, found[:ns], states), *(y for y, _ in found[ns:])]

    carry = spread_axis(size, xs[nc : nc + ns], states)
    consts = [x for x, _ in xs[:nc]]
    found = _loop(turn, consts, carry, items, trips, reverse, "vmap of a loop")
    stacks = zip(found[ns:], made[ns:], strict=True)
    return [
        *zip(found[:ns], states, strict=True),
        *((moveaxis(y, 1, 0) if own else y, own) for y, own in stacks),
    ]


def _grown(
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


LOOP: dict[str, Any] = {
    "infer": _loop_rule,
    "takes": {"body": GRAPH, "trips": whole(0), "counts": PLACES, "reverse": FLAG},
    "indices": _opaque,
    "cost": _loop_cost,
}
op(
    "loop",
    **LOOP,
    batched=_loop_batched,
    forward=_loop_forward,
    grad=_loop_grad,
)


def _loop(
    turn: Callable[..., Sequence[Array]],
    consts: Sequence[Array],
    carry: Sequence[Array],
    xs: Sequence[Array],
    trips: int,
    reverse: bool,
    what: str,
) -> tuple[Array, ...]:
    """The node of a turn; what the turn uses from outside becomes further constants."""
    specs = [INDEX, *(x.spec for x in (*consts, *carry)), *(_item(x.spec) for x in xs)]
    graph, outer = subgraph(turn, specs, what)
    nc, no, rest = len(consts), len(outer), len(carry) + len(xs)
    body = relabel(
        graph,
        (
            *graph.inputs[: 1 + nc],
            *(x.spec.bare for x in outer),
            *graph.inputs[1 + nc : 1 + nc + rest],
        ),
        [*range(1 + nc), *range(1 + nc + no, 1 + nc + no + rest), *range(1 + nc, 1 + nc + no)],
    )
    made = apply_all(
        "loop",
        *(*consts, *outer, *carry, *xs),
        body=body,
        trips=trips,
        counts=(nc + no, len(carry), len(xs)),
        reverse=reverse,
    )
    return _acting(made, body)


def _acting(made: tuple[Array, ...], *bodies: Graph) -> tuple[Array, ...]:
    """The results of a node with bodies. What is to happen in these, does."""
    if any(map(acts, bodies)):
        act(made[0])
    return made


def _item(spec: Spec) -> Spec:
    return Spec(spec.shape[1:], spec.dtype)


def _leaves(tree: Any, what: str) -> tuple[list[Array], Any]:
    leaves, structure = flatten(tree)
    return [as_array(x) for x in leaves], structure


class _Again(Exception):
    """A number in the state took another dtype, so the turn has to be looked at again."""


class _State:
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
        """What the state is after a turn."""
        leaves, found = flatten(results)
        if found != self.structure:
            raise misfit(
                ArgumentError,
                self.what,
                got=f"a state {found} coming out",
                needed=f"the structure that goes in, {self.structure}",
            )
        adapted = [self._adapt(k, y) for k, y in enumerate(leaves)]
        if any(adapted):
            raise _Again
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
        self.carry[k] = in_dtype(self.given[k], dtype)
        return True

    def result(self, made: Sequence[Array]) -> Any:
        return self.enter(made)


_KINDS = [bool, int, float, complex]


def _check_state(
    before: Sequence[Array], after: Sequence[Array], names: Sequence[str], what: str
) -> None:
    for x, y, name in zip(before, after, names, strict=True):
        if x.shape != y.shape:
            raise misfit(
                ShapeError,
                what,
                got=f"{name or 'the state'} of shape {x.shape} going in and {y.shape} coming out",
                needed="the same shape in every turn",
            )
        if x.dtype != y.dtype:
            raise misfit(
                DTypeError,
                what,
                got=f"{name or 'the state'} of dtype {x.dtype.name} going in and {y.dtype.name} coming out",
                needed="the same dtype in every turn",
                do=f"start with .astype(ost.{y.dtype.name}), or convert what the turn returns",
            )


def _run_loop(
    function: Callable[[Array, Any, Any], tuple[Any, Any]],
    init: Any,
    items: Any,
    trips: int,
    reverse: bool,
    what: str,
) -> tuple[Any, Any]:
    state = _State(init, what)
    count = len(state.carry)
    xs, items_structure = _leaves(items, what)
    yielded: list[Any] = []

    def turn(index: Array, *args: Array) -> list[Array]:
        given = unflatten(items_structure, args[count:])
        with seeds.fold_turn(index):
            made = function(index, state.enter(args[:count]), given)
        if not (isinstance(made, (tuple, list)) and len(made) == 2):
            raise misfit(
                ArgumentError,
                what,
                got=f"a {type(made).__name__} coming out of the function",
                needed="a pair: the state after the turn, and what it yields",
                do="return state, None if it yields nothing",
            )
        after, y = made
        leaves = state.leave(after)
        outs, y_structure = _leaves(y, what)
        yielded[:] = [y_structure]
        return [*leaves, *outs] or [constant(False)]  # before which all has happened

    while True:
        with contextlib.suppress(_Again):
            made = _loop(turn, (), state.carry, xs, trips, reverse, what)
            break
    (y_structure,) = yielded
    return state.result(made[:count]), unflatten(
        y_structure, made[count : count + y_structure.leaves]
    )


@overload
def repeat(x: int, repeats: Callable[[Array], Number], /, state: Number) -> Array: ...


@overload
def repeat(
    x: int, repeats: Callable[[Two], tuple[Number, Number]], /, state: tuple[Number, Number]
) -> Two: ...


@overload
def repeat(
    x: int,
    repeats: Callable[[Three], tuple[Number, Number, Number]],
    /,
    state: tuple[Number, Number, Number],
) -> Three: ...


@overload
def repeat(x: int, repeats: Callable[[Any], Tree], /, state: Tree) -> Any: ...


@overload
def repeat(x: int, repeats: Callable[[S], S], /, state: S) -> S: ...


@overload
def repeat(x: Operandish, repeats: Operandish, /, *, axis: int | None = ...) -> Array: ...


@overload
def repeat(x: Operandish, repeats: Operandish, axis: int | None, /) -> Array: ...


@export
@door
def repeat(x: Any, repeats: Any, /, state: Any = None, *, axis: int | None = None) -> Any:
    """`repeat(n, function, state)`: the state after the function was applied n times.

    `repeat(array, repeats)`: the standard's function, each element again and again.

    >>> ost.repeat(3, lambda x: 0.5 * x, 8.0)
    Array(1., dtype=float64)
    >>> ost.repeat(ost.arange(3), 2)
    Array([0, 0, 1, 1, 2, 2], dtype=int64)
    """
    if not callable(repeats):
        return repeat_elements(x, repeats, axis if state is None else state)
    function, trips = repeats, whole_number(x, "repeat", 0)
    return _run_loop(lambda index, s, _: (function(s), None), state, None, trips, False, "repeat")[
        0
    ]


@overload
def scan(
    function: Callable[[Array, Any], tuple[Number, Y]],
    init: Number,
    xs: Any = ...,
    *,
    length: int | None = ...,
    reverse: bool = ...,
) -> tuple[Array, Y]: ...


@overload
def scan(
    function: Callable[[Two, Any], tuple[tuple[Number, Number], Y]],
    init: tuple[Number, Number],
    xs: Any = ...,
    *,
    length: int | None = ...,
    reverse: bool = ...,
) -> tuple[Two, Y]: ...


@overload
def scan(
    function: Callable[[Three, Any], tuple[tuple[Number, Number, Number], Y]],
    init: tuple[Number, Number, Number],
    xs: Any = ...,
    *,
    length: int | None = ...,
    reverse: bool = ...,
) -> tuple[Three, Y]: ...


@overload
def scan(
    function: Callable[[Any, Any], tuple[Tree, Y]],
    init: Tree,
    xs: Any = ...,
    *,
    length: int | None = ...,
    reverse: bool = ...,
) -> tuple[Any, Y]: ...


@overload
def scan(
    function: Callable[[S, Any], tuple[S, Y]],
    init: S,
    xs: Any = ...,
    *,
    length: int | None = ...,
    reverse: bool = ...,
) -> tuple[S, Y]: ...


@export
@door
def scan(
    function: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`state, y = function(state, x)` for each x along the first axis; the last state and the ys,
    stacked.

    >>> ost.scan(lambda total, x: (total + x, total), 0, ost.arange(4))
    (Array(6, dtype=int64), Array([0, 0, 1, 3], dtype=int64))
    """
    leaves = [as_array(x) for x in flatten(xs)[0]]
    length = None if length is None else whole_number(length, "scan", 0)
    lengths = {x.shape[0] if x.ndim else None for x in leaves}
    lengths |= set() if length is None else {length}
    if len(lengths) != 1 or None in lengths:
        given = [str(x.shape) for x in leaves] + ([] if length is None else [f"length={length}"])
        raise misfit(
            ShapeError,
            "scan",
            got=" and ".join(given) or "neither",
            needed="arrays with a common first axis, or length=",
        )
    trips = lengths.pop()
    assert trips is not None
    return _run_loop(lambda index, s, x: function(s, x), init, xs, trips, reverse, "scan")


# -- blocks --------------------------------------------------------------------------------
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
    indices=_opaque,
    cost=lambda ins, outs, p: graph_cost(p["body"]),
)


# -- while ---------------------------------------------------------------------------------
def _while_rule(
    *xs: Spec, condition: Graph, body: Graph, counts: tuple[int, int], most: int
) -> Specs:
    if len(counts) != 2 or sum(counts) != len(xs):
        raise unfit("while", xs, f"{counts} constants and states")
    for graph in (condition, body):
        joined("while", xs, graph.inputs)
    joined("while", body.out_specs, xs[counts[0] :])
    joined("while", condition.out_specs, (Spec((), bool_),))
    return tuple(s.bare for s in body.out_specs)


def _while_grad(g: Any, y: Any, *xs: Array, **_: Any) -> Sequence[Array | None]:
    raise misfit(
        GradientError,
        "gradient of while_loop",
        got="a number of turns that depends on data",
        needed="a number known beforehand",
        do="use ost.repeat or ost.scan, or cut it off with ost.stop_gradient",
    )


def _while_forward(
    tangents: Tangents,
    *xs: Array,
    condition: Graph,
    body: Graph,
    counts: tuple[int, int],
    most: int,
) -> Sequence[Array | None]:
    """A loop that carries the changes of its state beside it; they have no say in when it ends."""
    nc = counts[0]
    consts, by_consts = xs[:nc], tangents[:nc]
    carry = _Beside(xs[nc:], tangents[nc:], "inexact")

    def go_on(*args: Array) -> list[Array]:
        return inline(condition, [*consts, *carry.parted(args)[0]])

    def turn(*args: Array) -> list[Array]:
        values, changes = carry.parted(args)
        made, moved = pushed(body, [*consts, *values], [*by_consts, *changes])
        return [*made, *(solid(moved[k], made[k]) for k in carry.live)]

    values, changes = carry.parted(_while(go_on, turn, carry.both, most))
    return [*values, *changes]


def _while_batched(
    size: int, *xs: Mapped, condition: Graph, body: Graph, counts: tuple[int, int], most: int
) -> Sequence[Mapped]:
    """One loop until all elements are done; those that are keep their state."""
    nc, ns = counts
    has, _ = _grown(body, xs, nc, ns, size, 0)
    states, consts = has[nc:], list(xs[:nc])
    (each,) = flags_of(condition, condition.inputs, has, size)

    def test(*args: Array) -> Array:
        return batched_graph(condition, [*consts, *zip(args, states, strict=True)], size)[0][0]

    def turn(*args: Array) -> list[Array]:
        made = batched_graph(body, [*consts, *zip(args, states, strict=True)], size)
        return spread_axis(size, made, states)

    if not each:
        carry = spread_axis(size, xs[nc:], states)
        made = _while(lambda *args: [test(*args)], turn, carry, most)
        return list(zip(made, states, strict=True))
    states = [True] * ns
    carry = spread_axis(size, xs[nc:], states)

    def go_on(*args: Array) -> list[Array]:
        return [apply("any", args[-1], axes=(0,))]

    def masked(*args: Array) -> list[Array]:
        old, busy = args[:-1], args[-1]
        kept = _chosen(busy, turn(*old), old)
        return [*kept, busy & test(*kept)]

    made = _while(go_on, masked, [*carry, test(*carry)], most)
    return [(y, True) for y in made[:-1]]


def _chosen(mask: Array, yes: Sequence[Array], no: Sequence[Array]) -> list[Array]:
    """For each element one or the other."""
    return [
        where(reshape(mask, (*mask.shape, *(1,) * (a.ndim - 1))), a, b)
        for a, b in zip(yes, no, strict=True)
    ]


WHILE: dict[str, Any] = {
    "infer": _while_rule,
    "takes": {"condition": GRAPH, "body": GRAPH, "counts": PLACES, "most": whole(-1)},
    "indices": _opaque,
    "cost": lambda ins, outs, p: graph_cost(p["body"]),
}
op(
    "while",
    **WHILE,
    batched=_while_batched,
    forward=_while_forward,
    grad=_while_grad,
)


def _truth(x: Any, what: str) -> Array:
    found = as_array(x)
    if found.shape or found.dtype != bool_:
        raise misfit(
            DTypeError,
            what,
            got=f"a condition {found.spec.bare}",
            needed="one bool",
            do="use .all() or .any()",
        )
    return found


@overload
def while_loop(
    condition: Callable[[Array], Any],
    function: Callable[[Array], Number],
    state: Number,
    *,
    most: int | None = ...,
) -> Array: ...


@overload
def while_loop(
    condition: Callable[[Two], Any],
    function: Callable[[Two], tuple[Number, Number]],
    state: tuple[Number, Number],
    *,
    most: int | None = ...,
) -> Two: ...


@overload
def while_loop(
    condition: Callable[[Three], Any],
    function: Callable[[Three], tuple[Number, Number, Number]],
    state: tuple[Number, Number, Number],
    *,
    most: int | None = ...,
) -> Three: ...


@overload
def while_loop(
    condition: Callable[[Any], Any],
    function: Callable[[Any], Tree],
    state: Tree,
    *,
    most: int | None = ...,
) -> Any: ...


@overload
def while_loop(
    condition: Callable[[S], Any], function: Callable[[S], S], state: S, *, most: int | None = ...
) -> S: ...


@export
@door
def while_loop(
    condition: Callable[[Any], Any],
    function: Callable[[Any], Any],
    state: Any,
    *,
    most: int | None = None,
) -> Any:
    """The state after the function was applied for as long as the condition holds, `most` times at
    the most.

    >>> ost.while_loop(lambda x: x < 100, lambda x: 2 * x, 1)
    Array(128, dtype=int64)
    """
    carried = _State(state, "while_loop")
    limit = -1 if most is None else whole_number(most, "while_loop", 0)

    def go_on(*args: Array) -> list[Array]:
        return [_truth(condition(carried.enter(args)), "while_loop")]

    def turn(*args: Array) -> list[Array]:
        return carried.leave(function(carried.enter(args)))

    with seeds.refused("while_loop"):
        while True:
            with contextlib.suppress(_Again):
                made = _while(go_on, turn, carried.carry, limit)
                break
    return carried.result(made)


def _while(
    go_on: Callable[..., Sequence[Array]],
    turn: Callable[..., Sequence[Array]],
    carry: Sequence[Array],
    most: int,
) -> tuple[Array, ...]:
    """The node of a turn; what it and its condition use from outside become constants."""
    specs = [x.spec for x in carry]
    body, outer_body = subgraph(turn, specs, "while_loop")
    test, outer_test = subgraph(go_on, specs, "while_loop")
    ns, nt, nb = len(carry), len(outer_test), len(outer_body)
    inputs = (*outer_test, *outer_body, *carry)
    bare = [x.spec.bare for x in inputs]
    test = relabel(test, bare, [*range(nt + nb, nt + nb + ns), *range(nt)])
    body = relabel(body, bare, [*range(nt + nb, nt + nb + ns), *range(nt, nt + nb)])
    made = apply_all("while", *inputs, condition=test, body=body, counts=(nt + nb, ns), most=most)
    return _acting(made, test, body)


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


for _name, _facts in ((ONE_KERNEL["loop"], LOOP), (ONE_KERNEL["while"], WHILE)):
    op(_name, **_facts, made_by="machine")


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
    indices=_opaque,
    cost=lambda ins, outs, p: graph_cost(p["body"]),
    made_by="machine",
)


# -- branch --------------------------------------------------------------------------------
def _branch_grad(
    g: Any, y: Any, *xs: Array, then: Graph, otherwise: Graph
) -> Sequence[Array | None]:
    gs = [g] if isinstance(g, Array) else list(g)
    operands = xs[1:]
    weights = [ct for ct in gs if ct is not None]
    live = [k for k, x in enumerate(operands) if is_inexact(x.dtype)]

    def side(graph: Graph) -> Callable[..., list[Array]]:
        def back(*args: Array) -> list[Array]:
            values, cts = args[: len(operands)], iter(args[len(operands) :])
            results = inline(quiet(graph), values)
            found = vjp(results, values, [None if ct is None else next(cts) for ct in gs])
            return [solid(found[k], values[k]) for k in live]

        return back

    made = _branch(xs[0], (*operands, *weights), side(then), side(otherwise))
    found: list[Array | None] = [None] * len(xs)
    for k, ct in zip(live, made, strict=True):
        found[1 + k] = ct
    return found


def _branch_rule(*xs: Spec, then: Graph, otherwise: Graph) -> Specs:
    if not xs or xs[0].shape or xs[0].dtype != bool_:
        raise unfit("cond", xs[:1], "a condition bool[]")
    for graph in (then, otherwise):
        joined("cond", xs[1:], graph.inputs)
    joined("cond", otherwise.out_specs, then.out_specs)
    return tuple(s.bare for s in then.out_specs)


def _branch_forward(
    tangents: Tangents, test: Array, *xs: Array, then: Graph, otherwise: Graph
) -> Sequence[Array | None]:
    """Each side with its changes."""
    outs = then.out_specs
    moving = [k for k, s in enumerate(outs) if is_inexact(s.dtype)]
    given = _Beside(xs, tangents[1:], "given")

    def side(graph: Graph) -> Callable[..., list[Array]]:
        def run(*args: Array) -> list[Array]:
            made, moved = pushed(graph, *given.parted(args))
            return [*made, *(solid(moved[k], made[k]) for k in moving)]

        return run

    found = _branch(test, given.both, side(then), side(otherwise))
    by_outs = dict(zip(moving, found[len(outs) :], strict=True))
    return [*found[: len(outs)], *(by_outs.get(k) for k in range(len(outs)))]


def _branch_batched(
    size: int, test: Mapped, *xs: Mapped, then: Graph, otherwise: Graph
) -> Sequence[Mapped]:
    """Of a condition for each element both sides run, and each takes its own."""
    if test[1]:
        sides = [batched_graph(g, xs, size) for g in (then, otherwise)]
        yes, no = [[given_axis(y, size) for y in made] for made in sides]
        return [(y, True) for y in _chosen(test[0], yes, no)]
    has = [own for _, own in xs]
    flags = [flags_of(g, g.inputs, has, size) for g in (then, otherwise)]
    wanted = [a or b for a, b in zip(*flags, strict=True)]

    def side(graph: Graph) -> Callable[..., list[Array]]:
        def run(*args: Array) -> list[Array]:
            made = batched_graph(graph, list(zip(args, has, strict=True)), size)
            return spread_axis(size, made, wanted)

        return run

    made = _branch(test[0], [x for x, _ in xs], side(then), side(otherwise))
    return list(zip(made, wanted, strict=True))


op(
    "branch",
    infer=_branch_rule,
    takes={"then": GRAPH, "otherwise": GRAPH},
    indices=_opaque,
    batched=_branch_batched,
    forward=_branch_forward,
    grad=_branch_grad,
    cost=lambda ins, outs, p: max(graph_cost(p["then"]), graph_cost(p["otherwise"])),
)


@overload
def cond(
    condition: Operandish,
    then: Callable[..., Number],
    otherwise: Callable[..., Number],
    *operands: Any,
) -> Array: ...


@overload
def cond(
    condition: Operandish, then: Callable[..., S], otherwise: Callable[..., S], *operands: Any
) -> S: ...


@export
@door
def cond(
    condition: Operandish, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any
) -> Any:
    """`then(*operands)` if the condition holds, else `otherwise(*operands)`; only one of them
    runs.

    >>> ost.cond(True, lambda x: x + 1, lambda x: x - 1, 10)
    Array(11, dtype=int64)
    """
    test = _truth(condition, "cond")
    leaves, structure = _leaves(operands, "cond")
    kinds = [weak_kind(x) for x in flatten(operands)[0]]
    shapes: list[Any] = []

    def side(function: Callable[..., Any]) -> Callable[..., list[Array]]:
        def run(*args: Array) -> list[Array]:
            for x, kind in zip(args, kinds, strict=True):
                x.weak = kind
            outs, found = _leaves(function(*unflatten(structure, args)), "cond")
            shapes.append((found, [x.spec.bare for x in outs]))
            return outs or [constant(False)]  # before which all has happened

        return run

    made = _branch(test, leaves, side(then), side(otherwise), lambda: _same_sides(*shapes))
    return unflatten(shapes[0][0], made[: shapes[0][0].leaves])


def _branch(
    test: Array,
    leaves: Sequence[Array],
    then: Callable[..., Sequence[Array]],
    otherwise: Callable[..., Sequence[Array]],
    check: Callable[[], None] = lambda: None,
) -> tuple[Array, ...]:
    """The node of two sides; what either uses from outside becomes further operands."""
    specs = [x.spec for x in leaves]
    yes, outer_yes = subgraph(then, specs, "cond", hoist=False)  # only one of them is to run
    no, outer_no = subgraph(otherwise, specs, "cond", hoist=False)
    check()
    n, ny, nn = len(leaves), len(outer_yes), len(outer_no)
    inputs = (*leaves, *outer_yes, *outer_no)
    bare = [x.spec.bare for x in inputs]
    yes = relabel(yes, bare, [*range(n), *range(n, n + ny)])
    no = relabel(no, bare, [*range(n), *range(n + ny, n + ny + nn)])
    return _acting(apply_all("branch", test, *inputs, then=yes, otherwise=no), yes, no)


def _same_sides(yes: Any, no: Any) -> None:
    if yes != no:
        raise misfit(
            ShapeError,
            "cond",
            got=f"{_describe(yes)} from one side and {_describe(no)} from the other",
            needed="results of the same structure, shapes and dtypes",
        )


def _describe(side: tuple[Any, list[Spec]]) -> str:
    return f"{side[0]} of {', '.join(map(str, side[1]))}"
