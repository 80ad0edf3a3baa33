"""Loops that run as long as a condition holds, which is a graph of its own: the node `while`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, overload

from ostinato.errors import GradientError

from ..array.shape import whole_number
from ..autodiff.batching import Mapped, batched_graph, flags_of, spread_axis
from ..autodiff.tangents import Tangents, pushed, solid
from ..core.apply import apply, apply_all
from ..core.array import Array
from ..core.array_methods import export
from ..core.graph import Graph
from ..core.index import opaque
from ..core.parameters import GRAPH, PLACES, joined, unfit, whole
from ..core.registry import Specs, op
from ..core.spec import Spec, bool_
from ..core.trace import inline, subgraph
from ..core.tracebacks import door
from ..core.user_line import misfit
from ..random.seeds import seeds
from .control import (
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
    relabel,
    select_each,
    truth_of,
)

__all__ = ["while_loop"]


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
    got = "a number of turns that depends on data"
    needed = "a number known beforehand"
    do = "use ost.repeat or ost.scan, or cut it off with ost.stop_gradient"
    raise misfit(GradientError, "gradient of while_loop", got=got, needed=needed, do=do)


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
    carry = WithTangents(xs[nc:], tangents[nc:], "inexact")

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
    has, _ = grow_axes(body, xs, nc, ns, size, 0)
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
        kept = select_each(busy, turn(*old), old)
        return [*kept, busy & test(*kept)]

    made = _while(go_on, masked, [*carry, test(*carry)], most)
    return [(y, True) for y in made[:-1]]


WHILE: dict[str, Any] = {
    "infer": _while_rule,
    "takes": {"condition": GRAPH, "body": GRAPH, "counts": PLACES, "most": whole(-1)},
    "indices": opaque,
    "cost": lambda ins, outs, p: graph_cost(p["body"]),
}
op("while", **WHILE, batched=_while_batched, forward=_while_forward, grad=_while_grad)
op(ONE_KERNEL["while"], **WHILE, made_by="machine")


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
    carried = CarriedState(state, "while_loop")
    limit = -1 if most is None else whole_number(most, "while_loop", 0)

    def go_on(*args: Array) -> list[Array]:
        return [truth_of(condition(carried.enter(args)), "while_loop")]

    def turn(*args: Array) -> list[Array]:
        return carried.leave(function(carried.enter(args)))

    with seeds.refused("while_loop"):
        while True:
            with contextlib.suppress(Retrace):
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
    return acting(made, test, body)
