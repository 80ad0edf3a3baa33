"""Gradients of what a solver found, from what it is a solution of, not from how it was found.

    x = solution(found, *given; law)      `law(x, *given)` is zero, or what else its kind says

The operation gives what it is given; only gradients see it (the planner takes it away). As its law is
a graph, it stays what it is inside loops, and under `vmap`, where it remembers for each map which of
its operands have an axis (`levels`).

Of roots, the implicit function theorem: where F(x, p) = 0, a cotangent g of x gives -λ ∂F/∂p with
λ ∂F/∂x = g, a linear system, solved as `method` says. That solution is one, too, so there are
gradients of any order, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..array.shape import stop_gradient, zero_of
from ..autodiff.batching import Mapped, each, given_axis
from ..autodiff.tangents import Tangents, solid
from ..core.apply import apply, apply_all
from ..core.array import Array
from ..core.graph import Graph
from ..core.index import aligned
from ..core.parameters import GRAPH, PLACES, SHARE, TEXT, unfit, whole
from ..core.registry import Specs, op, stream_cost
from ..core.spec import Spec, is_inexact
from ..core.trace import subgraph

Rule = Callable[..., Sequence[Array | None]]
KINDS: dict[str, Rule] = {}  # (gs, xs, given, law, **how) -> the cotangents of what is given
FORWARDS: dict[str, Rule] = {}  # (changes of what is given, xs, given, law, **how) -> of xs


def kind(name: str) -> Callable[[Rule], Rule]:
    """Register the gradient of what solutions of a kind depend on."""

    def register(rule: Rule) -> Rule:
        KINDS[name] = rule
        return rule

    return register


def forward(name: str) -> Callable[[Rule], Rule]:
    """Register how solutions of a kind change, where that is not best had from their gradient."""

    def register(rule: Rule) -> Rule:
        FORWARDS[name] = rule
        return rule

    return register


def _firsts(
    *xs: Spec,
    law: Graph,
    kind: str,
    count: int,
    levels: tuple[int, ...],
    method: str,
    rtol: float,
    atol: float,
    most: int,
) -> Specs:
    if count > len(xs) or kind not in KINDS or len(levels) % (1 + len(xs)):
        raise unfit("a solution", xs, f"{count} operands or more, and a kind of laws")
    return tuple(x.bare for x in xs[:count])


def _grad(
    g: Any, y: Any, *operands: Array, count: int, levels: tuple[int, ...], **how: Any
) -> Sequence[Array | None]:
    gs = [g] if count == 1 else list(g)
    ys = [y] if count == 1 else list(y)
    cts = [ct if ct is not None else zero_of(x) for ct, x in zip(gs, ys, strict=True)]
    made = _of_level(levels, cts, ys, operands[count:], how)
    return [*[None] * count, *made]


def _of_level(
    levels: tuple[int, ...],
    cts: Sequence[Array],
    ys: Sequence[Array],
    given: Sequence[Array],
    how: Mapping[str, Any],
) -> list[Array | None]:
    """Cotangents of what is given, for each element of the outermost map."""
    if not levels:
        kind, own = how["kind"], {k: v for k, v in how.items() if k != "kind"}
        return list(KINDS[kind](cts, ys, given, **own))
    count, width = len(ys), 1 + len(ys) + len(given)
    size, flags, inner = levels[0], levels[1 + count : width], levels[width:]
    places = [k for k, x in enumerate(given) if is_inexact(x.dtype)]

    def element(*args: Array) -> list[Array]:
        own, others, rest = args[:count], args[count : 2 * count], args[2 * count :]
        found = _of_level(inner, own, others, rest, how)
        return [solid(found[k], rest[k]) for k in places]

    xs: list[Mapped] = [(x, True) for x in (*cts, *ys)]
    xs += [(x, bool(has)) for x, has in zip(given, flags, strict=True)]
    made: list[Array | None] = [None] * len(given)
    for k, ct in zip(places, each(element, xs, size), strict=True):
        whole = given_axis(ct, size)
        made[k] = whole if flags[k] else apply("sum", whole, axes=(0,), dtype=whole.dtype)
    return made


def _forward(
    tangents: Tangents, *operands: Array, count: int, levels: tuple[int, ...], **how: Any
) -> Sequence[Array | None] | None:
    if how["kind"] not in FORWARDS:
        return None
    ys, given = operands[:count], operands[count:]
    moved = _moved(levels, tangents[count:], ys, given, how)
    made = apply_all("solution", *operands, count=count, levels=levels, **how)
    return [*made, *moved]


def _moved(
    levels: tuple[int, ...],
    changes: Tangents,
    ys: Sequence[Array],
    given: Sequence[Array],
    how: Mapping[str, Any],
) -> list[Array | None]:
    """Changes of what was found, for each element of the outermost map."""
    if not levels:
        kind, own = how["kind"], {k: v for k, v in how.items() if k != "kind"}
        return list(FORWARDS[kind](changes, ys, given, **own))
    count, width = len(ys), 1 + len(ys) + len(given)
    size, flags, inner = levels[0], levels[1 + count : width], levels[width:]
    live = [k for k, t in enumerate(changes) if t is not None]

    def element(*args: Array) -> list[Array]:
        own, rest = args[:count], args[count : count + len(given)]
        there: list[Array | None] = [None] * len(given)
        for k, t in zip(live, args[count + len(given) :], strict=True):
            there[k] = t
        found = _moved(inner, there, own, rest, how)
        return [solid(t, y) for t, y in zip(found, own, strict=True)]

    xs: list[Mapped] = [(y, True) for y in ys]
    xs += [(x, bool(has)) for x, has in zip(given, flags, strict=True)]
    xs += [(t, bool(flags[k])) for k in live if (t := changes[k]) is not None]
    return [given_axis(t, size) for t in each(element, xs, size)]


def _batched(
    size: int, *xs: Mapped, count: int, levels: tuple[int, ...], **how: Any
) -> Sequence[Mapped]:
    operands = [given_axis(x, size) if k < count else x[0] for k, x in enumerate(xs)]
    flags = [1 if k < count else int(has) for k, (_, has) in enumerate(xs)]
    made = apply_all("solution", *operands, count=count, levels=(size, *flags, *levels), **how)
    return [(y, True) for y in made]


op(
    "solution",
    infer=_firsts,
    takes={
        "law": GRAPH,
        "kind": TEXT,
        "count": whole(1),
        "levels": PLACES,
        "method": TEXT,
        "rtol": SHARE,
        "atol": SHARE,
        "most": whole(0),
    },
    indices=aligned,
    grad=_grad,
    forward=_forward,
    batched=_batched,
    cost=stream_cost(0),
)


def solution(
    found: Sequence[Array],
    law: Callable[..., Sequence[Array]],
    specs: Sequence[Spec],
    *,
    kind: str,
    given: Sequence[Array] = (),
    method: str = "dense",
    rtol: float = 0.0,
    atol: float = 0.0,
    most: int = 0,
) -> list[Array]:
    """Give what a solver found the gradient of what it is a solution of. The law takes Arrays of
    these specs; what it uses from around it is what the solution depends on, and so is `given`."""
    graph, outer = subgraph(law, specs, "a solution")
    made = apply_all(
        "solution",
        *(stop_gradient(x) for x in found),
        *given,
        *outer,
        law=graph,
        kind=kind,
        count=len(found),
        levels=(),
        method=method,
        rtol=float(rtol),
        atol=float(atol),
        most=int(most),
    )
    return list(made)
