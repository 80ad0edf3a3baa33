"""One of two graphs, as a condition on data says: the node `branch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from ostinato.errors import ShapeError

from ..autodiff.batching import Mapped, batched_graph, flags_of, given_axis, spread_axis
from ..autodiff.gradient import vjp
from ..autodiff.tangents import Tangents, pushed, solid
from ..core.apply import apply_all, constant
from ..core.array import Array, weak_kind
from ..core.array_methods import Operandish, export
from ..core.graph import Graph
from ..core.index import opaque
from ..core.parameters import GRAPH, joined, unfit
from ..core.registry import Specs, op
from ..core.spec import Spec, bool_, is_inexact
from ..core.trace import inline, quiet, subgraph
from ..core.tracebacks import door
from ..core.tree import flatten, unflatten
from ..core.user_line import misfit
from .control import (
    Number,
    S,
    WithTangents,
    acting,
    graph_cost,
    leaves_of,
    relabel,
    select_each,
    truth_of,
)

__all__ = ["cond"]


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
    given = WithTangents(xs, tangents[1:], "given")

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
    """Run both sides of a condition for each element, which takes its own."""
    if test[1]:
        sides = [batched_graph(g, xs, size) for g in (then, otherwise)]
        yes, no = [[given_axis(y, size) for y in made] for made in sides]
        return [(y, True) for y in select_each(test[0], yes, no)]
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
    indices=opaque,
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
    """`then(*operands)` if the condition holds, else `otherwise(*operands)`; only one of them runs.

    >>> ost.cond(True, lambda x: x + 1, lambda x: x - 1, 10)
    Array(11, dtype=int64)
    """
    test = truth_of(condition, "cond")
    leaves, structure = leaves_of(operands)
    kinds = [weak_kind(x) for x in flatten(operands)[0]]
    shapes: list[Any] = []

    def side(function: Callable[..., Any]) -> Callable[..., list[Array]]:
        def run(*args: Array) -> list[Array]:
            for x, kind in zip(args, kinds, strict=True):
                x.weak = kind
            outs, found = leaves_of(function(*unflatten(structure, args)))
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
    return acting(apply_all("branch", test, *inputs, then=yes, otherwise=no), yes, no)


def _same_sides(yes: Any, no: Any) -> None:
    if yes != no:
        got = f"{_describe(yes)} from one side and {_describe(no)} from the other"
        needed = "results of the same structure, shapes and dtypes"
        raise misfit(ShapeError, "cond", got=got, needed=needed)


def _describe(side: tuple[Any, list[Spec]]) -> str:
    return f"{side[0]} of {', '.join(map(str, side[1]))}"
