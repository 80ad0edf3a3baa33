"""Loops of a known number of turns: `repeat` and `scan`, as one node `loop`.

It carries a state through `trips` turns, reads slices of `xs` and stacks what each turn yields."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from ostinato.errors import ArgumentError, ShapeError

from ..array.concatenation import repeat_elements
from ..array.shape import moveaxis, whole_number, zero_of
from ..autodiff.batching import Mapped, batched_graph, spread_axis
from ..autodiff.gradient import added, vjp
from ..autodiff.tangents import Tangents, pushed, solid
from ..core.apply import apply_all, as_array, constant
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.graph import Graph
from ..core.index import opaque
from ..core.parameters import FLAG, GRAPH, PLACES, joined, unfit, whole
from ..core.registry import Params, Specs, op
from ..core.spec import Spec, is_inexact
from ..core.trace import inline, quiet, subgraph
from ..core.tracebacks import door
from ..core.tree import flatten, unflatten
from ..core.user_line import misfit
from ..random.seeds import seeds
from .control import (
    INDEX,
    ONE_KERNEL,
    CarriedState,
    Number,
    Retrace,
    S,
    Three,
    Tree,
    Two,
    WithTangents,
    acting,
    graph_cost,
    grow_axes,
    leaves_of,
    relabel,
)

__all__ = ["repeat", "scan"]


Y = TypeVar("Y")


def _loop_rule(
    *xs: Spec, body: Graph, trips: int, counts: tuple[int, int, int], reverse: bool
) -> Specs:
    if len(counts) != 3 or sum(counts) != len(xs) or len(body.outputs) < counts[1]:
        raise unfit("loop", xs, f"{counts} constants, states and operands to go through")
    outs = [s.bare for s in body.out_specs]
    split = counts[0] + counts[1]
    if any(x.shape[:1] != (trips,) for x in xs[split:]):
        raise unfit("loop", xs[split:], f"a first axis of {trips} each")
    joined("loop", (INDEX, *xs[:split], *map(item_of, xs[split:])), body.inputs)
    joined("loop", outs[: counts[1]], xs[counts[0] : split])
    return (*outs[: counts[1]], *(Spec((trips, *s.shape), s.dtype) for s in outs[counts[1] :]))


def _loop_cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    flops, moved = graph_cost(p["body"])
    return flops * p["trips"], moved * p["trips"]


def _loop_grad(
    g: Any, y: Any, *xs: Array, body: Graph, trips: int, counts: tuple[int, int, int], reverse: bool
) -> Sequence[Array | None]:
    """A loop the other way round. It reads the states that a first loop stacked, and computes each
    turn again."""
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
    consts = WithTangents(xs[:nc], tangents[:nc], "given")
    carry = WithTangents(xs[nc:split], tangents[nc:split], "inexact")
    items = WithTangents(xs[split:], tangents[split:], "given")
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


def _loop_batched(
    size: int, *xs: Mapped, body: Graph, trips: int, counts: tuple[int, int, int], reverse: bool
) -> Sequence[Mapped]:
    """One loop for all elements. A state has the axis if it has it after some turn."""
    nc, ns, _ = counts
    has, made = grow_axes(body, xs, nc, ns, size, 1)
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


LOOP: dict[str, Any] = {
    "infer": _loop_rule,
    "takes": {"body": GRAPH, "trips": whole(0), "counts": PLACES, "reverse": FLAG},
    "indices": opaque,
    "cost": _loop_cost,
}
op("loop", **LOOP, batched=_loop_batched, forward=_loop_forward, grad=_loop_grad)
op(ONE_KERNEL["loop"], **LOOP, made_by="machine")


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
    specs = [INDEX, *(x.spec for x in (*consts, *carry)), *(item_of(x.spec) for x in xs)]
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
    return acting(made, body)


def item_of(spec: Spec) -> Spec:
    return Spec(spec.shape[1:], spec.dtype)


def _run_loop(
    function: Callable[[Array, Any, Any], tuple[Any, Any]],
    init: Any,
    items: Any,
    trips: int,
    reverse: bool,
    what: str,
) -> tuple[Any, Any]:
    state = CarriedState(init, what)
    count = len(state.carry)
    xs, items_structure = leaves_of(items)
    yielded: list[Any] = []

    def turn(index: Array, *args: Array) -> list[Array]:
        given = unflatten(items_structure, args[count:])
        with seeds.folding(index):
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
        outs, y_structure = leaves_of(y)
        yielded[:] = [y_structure]
        return [*leaves, *outs] or [constant(False)]  # before which all has happened

    while True:
        with contextlib.suppress(Retrace):
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
    if callable(x):
        got = "a function in the place of the number of turns"
        needed = "the number, the function and the first state"
        do = "write repeat(n, function, state)"
        raise misfit(ArgumentError, "repeat", got=got, needed=needed, do=do)
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
        needed = "arrays with a common first axis, or length="
        raise misfit(ShapeError, "scan", got=" and ".join(given) or "neither", needed=needed)
    trips = lengths.pop()
    assert trips is not None
    return _run_loop(lambda index, s, x: function(s, x), init, xs, trips, reverse, "scan")
