"""Reverse-mode gradients, Term by Term.

Gradients are built with the operations that users type, so they are graph like everything else:
they have gradients, and the planner treats them as it treats the rest. Complex values follow JAX:
the cotangent of z = x + iy is df/dx - i df/dy, so that the rules of holomorphic functions hold
without conjugates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ostinato.errors import ArgumentError, GradientError

from ..array.arithmetic import convert
from ..array.shape import sum_to, zero_of
from ..core.apply import act, apply, apply_all
from ..core.array import Array, Term, Watch, term_of
from ..core.graph import Graph
from ..core.index import aligned, pointwise
from ..core.parameters import GRAPH, PLACES, joined, unfit, whole
from ..core.registry import Specs, op, stream_cost
from ..core.spec import Spec, is_inexact
from ..core.trace import Ref, acts, array_of, inline, quiet, subgraph
from ..core.user_line import misfit, on_behalf, short
from .batching import Mapped, batched_graph, flags_of, given_axis


# -- identities that only gradients see; the planner removes all but `barrier` -------------
def _firsts(*xs: Spec, outputs: int) -> Specs:
    if outputs > len(xs):
        raise unfit("a barrier", xs, f"{outputs} operands or more")
    return tuple(x.bare for x in xs[:outputs])


_FIRST = {"outputs": whole(1)}


op(
    "mark",
    infer=lambda x: x.bare,
    indices=lambda i, o, p: pointwise(i, o),
    kernel=lambda xp, out, x: xp.copyto(out, x),
    grad=lambda g, y, x: (g,),
)


def _barrier_batched(size: int, *xs: Mapped, outputs: int) -> Sequence[Mapped]:
    """Each result has the axis if its operand has it."""
    made = apply_all("barrier", *[x for x, _ in xs], outputs=outputs)
    return [(y, own) for y, (_, own) in zip(made, xs, strict=False)]


# results, arguments: with a gradient in Python (`Term.rule`)
op("custom", infer=_firsts, takes=_FIRST, indices=aligned, cost=stream_cost(0))


# results, arguments, and what else the gradient uses: with a gradient that is a graph
def _with_rule(*xs: Spec, outputs: int, back: Graph, args: int, to: tuple[int, ...]) -> Specs:
    if outputs + args > len(xs) or len(to) != len(back.outputs) or any(k >= args for k in to):
        raise unfit("a gradient", xs, f"{outputs} results and {args} arguments")
    joined("with_gradient", (*xs[:outputs], *xs[outputs + args :]), back.inputs)
    joined("with_gradient", back.out_specs, [xs[outputs + k] for k in to])
    return tuple(x.bare for x in xs[:outputs])


def _with_grad(
    g: Any, y: Any, *xs: Array, outputs: int, back: Graph, args: int, to: tuple[int, ...]
) -> Sequence[Array | None]:
    gs = [g] if outputs == 1 else list(g)
    given = [zero_of(x) if ct is None else ct for ct, x in zip(gs, xs, strict=False)]
    found: list[Array | None] = [None] * len(xs)
    for k, ct in zip(to, inline(back, [*given, *xs[outputs + args :]]), strict=True):
        found[outputs + k] = ct
    return found


def _with_batched(
    size: int, *xs: Mapped, outputs: int, back: Graph, args: int, to: tuple[int, ...]
) -> Sequence[Mapped]:
    results, given, outer = xs[:outputs], xs[outputs : outputs + args], xs[outputs + args :]

    def rule(gs: Sequence[Array]) -> list[Array | None]:
        cts: list[Array | None] = [None] * args
        made = batched_graph(back, [*((g, True) for g in gs), *outer], size)
        for k, ct in zip(to, made, strict=True):
            whole = given_axis(ct, size)
            own = given[k][1]  # else what each element gives is added up
            cts[k] = whole if own else apply("sum", whole, axes=(0,), dtype=whole.dtype)
        return cts

    made = _with_gradient([given_axis(x, size) for x in results], [x for x, _ in given], rule)
    return [(y, True) for y in made]


op(
    "with_gradient",
    infer=_with_rule,
    takes={**_FIRST, "back": GRAPH, "args": whole(0), "to": PLACES},
    indices=aligned,
    batched=_with_batched,
    grad=_with_grad,
    cost=stream_cost(0),
)
op(
    "barrier",
    infer=_firsts,
    takes=_FIRST,
    indices=aligned,
    batched=_barrier_batched,
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
    return vjp(inline(quiet(body), again), again, gs)


def _call_batched(size: int, *xs: Mapped, body: Graph) -> Sequence[Mapped]:
    has = [own for _, own in xs]

    def run(*args: Array) -> list[Array]:
        made = batched_graph(body, list(zip(args, has, strict=True)), size)
        return [y for y, _ in made]

    made = checkpointed(run, [x for x, _ in xs])
    return list(zip(made, flags_of(body, body.inputs, has, size), strict=True))


op(
    "call",
    infer=_call_rule,
    takes={"body": GRAPH},
    grad=_call_grad,
    batched=_call_batched,
    indices=aligned,
    cost=stream_cost(0),
)


def mark(x: Array, watch: Watch) -> Array:
    """Mark a value as a variable of its own, whose dependents keep their history while the watch is
    active."""
    made = apply("mark", x)
    term, _ = term_of(made)
    term.traces = term.traces | {watch}
    return made


# -- the sweep -----------------------------------------------------------------------------
def terms_between(roots: Sequence[Ref], variables: set[int]) -> list[Term]:
    """The Terms between variables and roots, each after what it needs; only those that depend on a
    variable, by way of floating values (nothing flows through whole numbers)."""
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
        floating = [t for t, k in _flowing(term) if is_inexact(t.specs[k].dtype)]
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


def _flowing(term: Term) -> Sequence[Ref]:
    """The inputs by which an operation's results depend on variables."""
    name = term.op.name if term.op is not None else ""
    if name not in ("stop_gradient", "custom", "with_gradient"):
        return term.inputs
    if name == "stop_gradient":
        return ()
    params = dict(term.params)
    first = params["outputs"]
    return term.inputs[first : first + params.get("args", len(term.inputs))]


def fitted(ct: Array, spec: Spec) -> Array:
    """A cotangent in the shape and dtype of what it belongs to."""
    return convert(sum_to(ct, spec.shape), spec.dtype)


def added(a: Array, b: Array) -> Array:
    """The sum of two slopes. One that is zeros but for some places is added to the other there."""
    for x, y in ((a, b), (b, a)):
        steps, (term, _) = list[Term](), term_of(y)
        while term.op is not None and term.op.run.overwrite == (0,) and "mode" in term.op.takes:
            steps.append(term)
            term, _ = term.inputs[0]
        is_zero = term.op is not None and term.op.name == "full" and dict(term.params)["value"] == 0
        if steps and is_zero and x.spec.bare == y.spec.bare and _adds(steps):
            for step in reversed(steps):
                params = {**dict(step.params), "mode": "add"}
                rest = [array_of(t, j) for t, j in step.inputs[1:]]
                assert step.op is not None
                x = apply(step.op.name, x, *rest, **params)
            return x
    return a + b


def _adds(steps: Sequence[Term]) -> bool:
    """Whether updates of zeros, the last one first, add up; the first may set places that stand once."""
    first = dict(steps[-1].params)
    is_set = first["mode"] == "set" and "starts" in first
    later = [dict(step.params)["mode"] for step in steps]
    return all(mode == "add" for mode in later[:-1]) and (first["mode"] == "add" or is_set)


def vjp(
    outputs: Sequence[Array], variables: Sequence[Array], cotangents: Sequence[Array | None]
) -> list[Array | None]:
    """Compute what each variable contributes to the outputs, weighted by their cotangents; None
    where it contributes nothing."""
    refs = [term_of(v) for v in variables]
    roots = [term_of(y) for y in outputs]
    order = terms_between(roots, {id(t) for t, _ in refs})
    found: dict[tuple[int, int], Array] = {}
    keep = [*variables, *outputs]  # Terms are identified by address while this runs

    def give(term: Term, k: int, ct: Array | None) -> None:
        if ct is None or not is_inexact(term.specs[k].dtype):
            return
        ct = fitted(ct, term.specs[k])
        before = found.get((id(term), k))
        found[id(term), k] = ct if before is None else added(before, ct)

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
        # whose rule is the user's, has its line
        with on_behalf(term.line if term.rule is None else ""):
            cts = rule(gs[0] if single else gs, y, *inputs, **dict(term.params))
            for (t, k), ct in zip(term.inputs, cts, strict=True):
                give(t, k, ct)
        keep.extend(inputs)
    return [found.get((id(t), k)) for t, k in refs]


def attach_rule(
    results: Sequence[Array],
    args: Sequence[Array],
    rule: Callable[[Sequence[Array | None]], Sequence[Array | None]],
) -> list[Array]:
    """The results, with a gradient of the caller's own towards the arguments. Where it is asked for
    only once these have become part of a graph, as bodies of loops are, it is traced at once."""

    def counted(gs: Sequence[Array | None]) -> Sequence[Array | None]:
        cts = list(rule(gs))
        if len(cts) != len(args):
            got = f"{len(cts)} cotangents"
            needed = f"one for each of {len(args)} array arguments (None for no gradient)"
            raise misfit(ArgumentError, "custom gradient", got=got, needed=needed)
        return cts

    if any(trace.inner for x in (*results, *args) for trace in term_of(x)[0].traces):
        return _with_gradient(results, args, counted)
    made = apply_all("custom", *results, *args, outputs=len(results))
    term, _ = term_of(made[0])
    term.rule = lambda g, y, *inputs, outputs: (
        *(None for _ in results),
        *counted((g,) if outputs == 1 else g),
    )
    return list(made)


def _with_gradient(
    results: Sequence[Array],
    args: Sequence[Array],
    rule: Callable[[Sequence[Array]], Sequence[Array | None]],
) -> list[Array]:
    """The node of a rule; what the rule uses from around it becomes further operands."""
    to: list[int] = []

    def back(*gs: Array) -> list[Array]:
        cts = rule(gs)
        to[:] = [k for k, ct in enumerate(cts) if ct is not None]
        return [fitted(ct, x.spec) for ct, x in zip(cts, args, strict=True) if ct is not None]

    graph, outer = subgraph(back, [y.spec for y in results], "a custom gradient")
    facts = {"outputs": len(results), "back": graph, "args": len(args), "to": tuple(to)}
    return list(apply_all("with_gradient", *results, *args, *outer, **facts))


def checkpointed(function: Callable[..., Sequence[Array]], args: Sequence[Array]) -> list[Array]:
    """The results, whose intermediates are computed again for gradients instead of kept."""
    body, outer = subgraph(function, [x.spec for x in args], "checkpoint")
    made = apply_all("call", *args, *outer, body=body)
    if made and acts(body):
        act(made[0])
    return list(made)
