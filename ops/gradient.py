"""Reverse-mode gradients, Term by Term.

Gradients are built with the operations that users type, so they are graph like everything else:
they have gradients, and the planner treats them as it treats the rest. Complex values follow JAX:
the cotangent of z = x + iy is df/dx - i df/dy, so that the rules of holomorphic functions hold
without conjugates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ostinato.errors import ArgumentError, GradientError

from .core.array import Array, Term, Watch, apply, apply_all, term_of
from .core.graph import Graph
from .core.index import Indices, pointwise
from .core.parameters import GRAPH, joined, unfit, whole
from .core.registry import Params, Specs, op, stream_cost
from .core.spec import Spec, is_inexact
from .core.trace import Ref, array_of, inline, subgraph
from .core.user_line import misfit, short
from .elementwise import convert
from .shape import sum_to


# -- identities that only gradients see; the planner removes all but `barrier` -------------
def _firsts(*xs: Spec, outputs: int) -> Specs:
    if outputs > len(xs):
        raise unfit("a barrier", xs, f"{outputs} operands or more")
    return tuple(x.bare for x in xs[:outputs])


_FIRST = {"outputs": whole(1)}


def _aligned(ins: Specs, outs: Specs, p: Params) -> Indices:
    """Each output lies as its own operand does; they share no index."""
    labels = [tuple(f"{k}.{d}" for d in range(s.ndim)) for k, s in enumerate(ins)]
    return Indices(tuple(labels), tuple(labels[: len(outs)]))


op(
    "mark",
    infer=lambda x: x.bare,
    indices=lambda i, o, p: pointwise(i, o),
    kernel=lambda xp, out, x: xp.copyto(out, x),
    grad=lambda g, y, x: (g,),
)
op("custom", infer=_firsts, takes=_FIRST, indices=_aligned, cost=stream_cost(0))
op(
    "barrier",
    infer=_firsts,
    takes=_FIRST,
    indices=_aligned,
    grad=lambda g, y, *xs, outputs: (*((g,) if outputs == 1 else g), *(None for _ in xs[outputs:])),
    cost=stream_cost(0),
)


def _call_rule(*xs: Spec, body: Graph) -> Specs:
    joined("call", xs, body.inputs)
    return tuple(s.bare for s in body.out_specs)


def _call_grad(g: Any, y: Any, *xs: Array, body: Any) -> Sequence[Array | None]:
    """Compute the body again from its inputs, not before g is known, and differentiate that."""
    gs = (g,) if isinstance(g, Array) else tuple(g)
    ready = [x for x in gs if x is not None]
    again = apply_all("barrier", *xs, *ready, outputs=len(xs))
    return vjp(inline(body, again), again, gs)


op(
    "call",
    infer=_call_rule,
    takes={"body": GRAPH},
    grad=_call_grad,
    indices=_aligned,
    cost=stream_cost(0),
)


def mark(x: Array, watch: Watch) -> Array:
    """The same value as a variable of its own, whose dependents keep their history while the watch
    is active.
    """
    made = apply("mark", x)
    term, _ = term_of(made)
    term.traces = term.traces | {watch}
    return made


# -- the sweep -----------------------------------------------------------------------------
def _order(roots: Sequence[Ref], variables: set[int]) -> list[Term]:
    """The Terms between variables and roots, each after what it needs; only those that depend on a
    variable, by way of floating values (nothing flows through whole numbers).
    """
    depends: dict[int, bool] = {}
    order: list[Term] = []
    stack = [t for t, _ in roots]
    while stack:
        term = stack[-1]
        if id(term) in depends:
            stack.pop()
            continue
        if id(term) in variables:
            depends[id(term)] = True
            stack.pop()
            continue
        floating = [t for t, k in term.inputs if is_inexact(t.specs[k].dtype)]
        waiting = [t for t in floating if id(t) not in depends]
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        found = any(depends[id(t)] for t in floating)
        depends[id(term)] = found
        if found:
            order.append(term)
    return order


def _fit(ct: Array, spec: Spec) -> Array:
    """A cotangent in the shape and dtype of what it belongs to."""
    return convert(sum_to(ct, spec.shape), spec.dtype)


def vjp(
    outputs: Sequence[Array], variables: Sequence[Array], cotangents: Sequence[Array | None]
) -> list[Array | None]:
    """What each variable contributes to the outputs, weighted by their cotangents; None where it
    contributes nothing.
    """
    refs = [term_of(v) for v in variables]
    roots = [term_of(y) for y in outputs]
    order = _order(roots, {id(t) for t, _ in refs})
    found: dict[tuple[int, int], Array] = {}
    keep = [*variables, *outputs]  # Terms are identified by address while this runs

    def give(term: Term, k: int, ct: Array | None) -> None:
        if ct is None or not is_inexact(term.specs[k].dtype):
            return
        ct = _fit(ct, term.specs[k])
        before = found.get((id(term), k))
        found[id(term), k] = ct if before is None else before + ct

    for (term, k), ct in zip(roots, cotangents, strict=True):
        give(term, k, ct)
    for term in reversed(order):
        gs = [found.pop((id(term), k), None) for k in range(len(term.specs))]
        if all(g is None for g in gs):
            continue
        assert term.op is not None
        rule: Callable[..., Sequence[Array | None]] | None = term.rule or term.op.grad
        if rule is None:
            raise GradientError.because(
                f"gradient of {term.op.name}",
                got="an operation that has none",
                needed="operations with a gradient between the variables and the result",
                do="cut it off with ost.stop_gradient, or give your own with ost.custom_gradient",
                line=short(term.line),
            )
        inputs = [array_of(t, k) for t, k in term.inputs]
        single = len(term.specs) == 1
        y = array_of(term, 0) if single else [array_of(term, k) for k in range(len(term.specs))]
        cts = rule(gs[0] if single else gs, y, *inputs, **dict(term.params))
        keep.extend(inputs)
        for (t, k), ct in zip(term.inputs, cts, strict=True):
            give(t, k, ct)
    return [found.get((id(t), k)) for t, k in refs]


def attach_rule(
    results: Sequence[Array],
    args: Sequence[Array],
    rule: Callable[[Sequence[Array | None]], Sequence[Array | None]],
) -> list[Array]:
    """The results, with a gradient of the caller's own towards the arguments."""
    made = apply_all("custom", *results, *args, outputs=len(results))
    term, _ = term_of(made[0])

    def whole(g: Any, y: Any, *inputs: Array, outputs: int) -> Sequence[Array | None]:
        gs = (g,) if outputs == 1 else g
        cts = list(rule(gs))
        if len(cts) != len(args):
            raise misfit(
                ArgumentError,
                "custom gradient",
                got=f"{len(cts)} cotangents",
                needed=f"one for each of {len(args)} array arguments (None for no gradient)",
            )
        return (*(None for _ in results), *cts)

    term.rule = whole
    return list(made)


def checkpointed(function: Callable[..., Sequence[Array]], args: Sequence[Array]) -> list[Array]:
    """The results, whose intermediates are computed again for gradients instead of kept."""
    body, outer = subgraph(function, [x.spec for x in args], "checkpoint")
    return list(apply_all("call", *args, *outer, body=body))
