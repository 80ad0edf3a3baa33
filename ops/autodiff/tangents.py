"""Forward-mode gradients, Term by Term: what a change of the variables does to the outputs.

An operation's gradient is linear in what it is given, so its transpose is the operation's own
derivative: the gradient of the gradient, of one operation at a time. What of it is not needed is
never part of a graph, so `d sin(x)` is `dx * cos(x)`. Loops and conditions say themselves what they
do (`Op.forward`): they carry the changes of their state beside it, keep nothing, and may end when
data says so."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from ostinato.errors import GradientError

from ..array.casts import astype
from ..array.creation import eye
from ..array.shape import reshape, zero_of
from ..core.apply import apply, apply_all
from ..core.array import Array, Term, term_of
from ..core.graph import Graph
from ..core.spec import Spec, is_inexact
from ..core.trace import array_of, inline, quiet
from ..core.user_line import on_behalf, short
from .batching import each
from .gradient import fitted, terms_between, vjp

Tangents = Sequence[Array | None]
MOST_CALLS = 64  # of a gradient in Python, for a change


def push(
    outputs: Sequence[Array], variables: Sequence[Array], tangents: Tangents
) -> tuple[list[Array], list[Array | None]]:
    """The outputs, and how they change if the variables change so; None where they do not. Each
    variable is a Term of its own."""
    refs = [term_of(v) for v in variables]
    roots = [term_of(y) for y in outputs]
    known: dict[tuple[int, int], tuple[Array, Array | None]] = {}
    for (term, k), x, t in zip(refs, variables, tangents, strict=True):
        known[id(term), k] = x, t
    for term in terms_between(roots, {id(t) for t, _ in refs}):
        found = [known.get((id(t), k), (array_of(t, k), None)) for t, k in term.inputs]
        values, changes = [x for x, _ in found], [t for _, t in found]
        same = all(term_of(x) == ref for x, ref in zip(values, term.inputs, strict=True))
        with on_behalf(term.line):
            made, moved = _one(term, values, changes, same)
        for k, pair in enumerate(zip(made, moved, strict=True)):
            known[id(term), k] = pair
    kept = [*variables, *outputs]  # Terms are identified by address while this runs
    ends = [known.get((id(t), k), (y, None)) for (t, k), y in zip(roots, outputs, strict=True)]
    del kept
    return [y for y, _ in ends], [t for _, t in ends]


def _one(
    term: Term, values: Sequence[Array], changes: Tangents, same: bool
) -> tuple[Sequence[Array], Tangents]:
    """One operation's results, and how they change."""
    assert term.op is not None
    params = dict(term.params)
    moving = any(t is not None for t in changes)
    if moving and term.op.forward is not None and term.rule is None:
        made = term.op.forward(changes, *values, **params)
        if made is not None:
            count = len(term.specs)
            return made[:count], made[count:]
    if same or term.rule is not None:
        results: Sequence[Array] = [array_of(term, k) for k in range(len(term.specs))]
    else:
        again = {k: quiet(v) if isinstance(v, Graph) else v for k, v in params.items()}
        results = apply_all(term.op.name, *values, **again)
    if not moving:
        return results, [None] * len(results)
    rule: Callable[..., Any] | None = term.rule or term.op.grad
    if rule is None:
        raise GradientError.because(
            f"jvp of {term.op.name}",
            got="an operation that has no gradient",
            needed="operations with a gradient between the variables and the result",
            do="cut it off with ost.stop_gradient, or give your own with ost.custom_gradient",
            line=short(term.line),
        )

    def back(gs: Sequence[Array | None]) -> list[tuple[Array, Array]]:
        """Cotangents of what changes, and its changes."""
        single = len(results) == 1
        cts = rule(gs[0] if single else gs, results[0] if single else results, *values, **params)
        return [
            (fitted(ct, x.spec), t)
            for ct, x, t in zip(cts, values, changes, strict=True)
            if ct is not None and t is not None
        ]

    live = [k for k, y in enumerate(results) if is_inexact(y.dtype)]
    seeds = {
        k: apply("full", shape=results[k].shape, value=0, dtype=results[k].dtype) for k in live
    }
    pairs = back([seeds.get(k) for k in range(len(results))])
    moved: list[Array | None] = [None] * len(results)
    between = terms_between(
        [term_of(ct) for ct, _ in pairs], {id(term_of(s)[0]) for s in seeds.values()}
    )
    opaque = next((t for t in between if t.op is not None and t.op.name == "callback"), None)
    if opaque is not None:
        for k in live:
            moved[k] = _by_units(back, [y.spec for y in results], k, opaque)
        return results, moved
    found = vjp([ct for ct, _ in pairs], list(seeds.values()), [t for _, t in pairs])
    for k, t in zip(live, found, strict=True):
        moved[k] = t
    return results, moved


def _by_units(
    back: Callable[[Sequence[Array | None]], Sequence[tuple[Array, Array]]],
    specs: Sequence[Spec],
    k: int,
    opaque: Term,
) -> Array:
    """How a result changes whose gradient calls a function in Python, which nobody can transpose: by
    the gradient of each of its elements."""
    spec = specs[k]
    if spec.size > MOST_CALLS:
        name = dict(opaque.params)["calls"].split()[0]
        raise GradientError.because(
            f"jvp of callback({name})",
            got=f"{spec.size} results, whose gradient calls {name}, in Python, once for each",
            needed=f"{MOST_CALLS} at most",
            do="use ost.vjp, or write gradient= with ost's functions, which are transposed",
            line=short(opaque.line),
        )

    def element(unit: Array) -> list[Array]:
        gs: list[Array | None] = [None] * len(specs)
        gs[k] = unit
        terms = [
            apply("sum", ct * t, axes=tuple(range(t.ndim)), dtype=t.dtype) for ct, t in back(gs)
        ]
        return [astype(functools.reduce(operator.add, terms), spec.dtype)]

    units = reshape(eye(spec.size, dtype=spec.dtype), (spec.size, *spec.shape))
    found, _ = each(element, [(units, True)], spec.size)[0]
    return reshape(found, spec.shape)


def pushed(
    graph: Graph, args: Sequence[Array], tangents: Tangents
) -> tuple[list[Array], list[Array | None]]:
    """Push tangents through a graph: what it makes of its inputs, and how that changes; what
    happens in it does so elsewhere."""
    own = [apply("mark", x) for x in args]
    return push(inline(quiet(graph), own), own, tangents)


def solid(t: Array | None, x: Array) -> Array:
    """A change, or a cotangent, where there must be one."""
    return zero_of(x) if t is None else fitted(t, x.spec)
