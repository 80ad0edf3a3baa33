"""Shared and needless work away. Every rule leaves each bit of the result as it was.

before                                   after
(%0: float32[4,8])                       (%0: float32[4,8])
%1 = permute_dims(%0; axes=(1, 0))       %1 = exp(%0)
%2 = permute_dims(%1; axes=(1, 0))       return %1
%3 = exp(%2)
return %3
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.array.expressions import Expression
from ostinato.ops.array.sliding import spelled
from ostinato.ops.core.build import Builder
from ostinato.ops.core.exact import exact_items
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Spec, bfloat16, is_float, is_inexact, is_integer, real_of
from ostinato.ops.flow.control import relabel
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import Values, inline, rebuild, rewrite_bodies

from .loop_casts import LOOPS
from .loop_turns import several_at_once

Rule = Callable[["_State", Node], "Sequence[int] | None"]


def simplify(graph: Graph, target: Target) -> Graph:
    """The pass. Bodies of loops and branches are simplified too."""
    graph = rewrite_bodies(graph, lambda g: simplify(g, target))
    twins = _longer_twins(graph)

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        twin = twins.get(node, node)
        made = Node(twin.op, inputs, twin.params, twin.specs, twin.line)
        found = _simpler(_State(builder, target.workers == 1), made)
        mean = (node.op, twin.op) == ("mean", "moments")
        return found[1:2] if mean else found

    return rebuild(graph, rule)


@dataclass(slots=True)
class _State:
    """What rules can see."""

    builder: Builder
    alone: bool

    def maker(self, value: int) -> Node | None:
        return self.builder.maker(value)

    def spec(self, value: int) -> Spec:
        return self.builder.specs[value]

    def number(self, value: int) -> Any:
        """The number that a value is everywhere; None if it is none."""
        node = self.builder.maker(value)
        return (
            dict(node.params)["value"]
            if node is not None and node.op in ("constant", "full")
            else None
        )

    def add(
        self, op: str, inputs: Sequence[int], params: dict[str, Any], node: Node
    ) -> tuple[int, ...]:
        """A node in the place of another."""
        return self.builder.add(op, inputs, params, node.specs, node.line)


def _simpler(s: _State, node: Node) -> Sequence[int]:
    special = _RULES.get(node.op)
    found = special(s, node) if special is not None else None
    if found is None and OPS[node.op].scalar:
        found = _pointwise(s, node)
    if found is None:
        found = s.builder.add(node.op, node.inputs, node.params, node.specs, node.line)
    return found


_RULES: dict[str, Rule] = {}


def on(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for name in names:
            _RULES[name] = rule
        return rule

    return register


# -- identities ----------------------------------------------------------------------------
@on("mark", "stop_gradient", "copy")
def _identity(s: _State, node: Node) -> Sequence[int] | None:
    return node.inputs


@on("custom", "with_gradient", "solution")
def _first_inputs(s: _State, node: Node) -> Sequence[int] | None:
    return node.inputs[: len(node.specs)]


@on("resplit")
def _resplit(s: _State, node: Node) -> Sequence[int] | None:
    return node.inputs if s.alone else None


@on("call")
def _call(s: _State, node: Node) -> Sequence[int] | None:
    return inline(s.builder, node.kw["body"], node.inputs)


@on("correlation")
def _products_of_windows(s: _State, node: Node) -> Sequence[int] | None:
    x, w = (Expression(s.builder, v, node.line) for v in node.inputs)
    return (spelled(x, w, **node.kw).value,)


# -- moving elements -----------------------------------------------------------------------
def _full(s: _State, value: Any, node: Node) -> Sequence[int]:
    (spec,) = node.specs
    if not spec.shape:
        return s.add("constant", (), {"value": value, "dtype": spec.dtype}, node)
    return s.add("full", (), {"shape": spec.shape, "value": value, "dtype": spec.dtype}, node)


_FOLDS = ("reshape", "expand_dims", "squeeze")


@on("permute_dims", "broadcast_to", "slice", *_FOLDS)
def _move(s: _State, node: Node) -> Sequence[int] | None:
    """Simplify moves of a number everywhere, to the same shape, and twice in a row."""
    (x,), (spec,), kw = node.inputs, node.specs, node.kw
    number = s.number(x)
    if number is not None:
        return _full(s, number, node)
    if node.op not in ("permute_dims", "slice") and s.spec(x).shape == spec.shape:
        return node.inputs
    before = s.maker(x)
    if before is None or before.op not in (node.op, *(_FOLDS if node.op in _FOLDS else ())):
        return None
    origin = s.spec(before.inputs[0])
    old = before.kw
    match node.op:
        case "permute_dims":
            axes = tuple(old["axes"][a] for a in kw["axes"])
            if axes == tuple(range(len(axes))):
                return before.inputs
            return s.add("permute_dims", before.inputs, {"axes": axes}, node)
        case "broadcast_to":
            return s.add("broadcast_to", before.inputs, kw, node)
        case "slice":
            starts = tuple(
                o + t * n for o, t, n in zip(old["starts"], old["steps"], kw["starts"], strict=True)
            )
            steps = tuple(o * n for o, n in zip(old["steps"], kw["steps"], strict=True))
            if (starts, spec.shape, steps) == ((0,) * spec.ndim, origin.shape, (1,) * spec.ndim):
                return before.inputs
            return s.add(
                "slice",
                before.inputs,
                {"starts": starts, "sizes": spec.shape, "steps": steps},
                node,
            )
    if origin.shape == spec.shape:
        return before.inputs
    if before.op == node.op == "reshape":
        return s.add("reshape", before.inputs, kw, node)
    return None


@on("astype")
def _astype(s: _State, node: Node) -> Sequence[int] | None:
    dtype, (x,) = node.kw["dtype"], node.inputs
    if s.spec(x).dtype == dtype:
        return node.inputs
    number = s.number(x)
    if number is not None:
        with np.errstate(all="ignore"):
            return _full(s, np.asarray(number, s.spec(x).dtype).astype(dtype).item(), node)
    before = s.maker(x)
    if before is not None and before.op == "astype":
        origin = s.spec(before.inputs[0]).dtype
        if _keeps_all(origin, before.kw["dtype"]):  # nothing was lost on the way
            return (
                before.inputs if origin == dtype else s.add("astype", before.inputs, node.kw, node)
            )
    return None


def _keeps_all(old: DType, new: DType) -> bool:
    """Whether a dtype holds every number of another; NumPy also calls int64 to float64 safe."""
    if is_integer(old) and is_inexact(new):
        return 8 * old.itemsize <= np.finfo(real_of(new)).nmant if new != bfloat16 else False
    return bool(np.can_cast(old, new, "safe"))


# -- arithmetic ----------------------------------------------------------------------------
@on("matmul")
def _product(s: _State, node: Node) -> Sequence[int] | None:
    """Simplify a product without terms, as the first of a factorization's."""
    nothing = s.spec(node.inputs[0]).shape[-1] == 0
    return _full(s, np.zeros((), node.specs[0].dtype).item(), node) if nothing else None


@on("negative", "conj", "bitwise_invert", "logical_not")
def _twice(s: _State, node: Node) -> Sequence[int] | None:
    before = s.maker(node.inputs[0])
    if before is not None and before.op == node.op and s.spec(before.inputs[0]) is node.specs[0]:
        return before.inputs
    return None


@on("multiply", "divide", "subtract", "add")
def _neutral(s: _State, node: Node) -> Sequence[int] | None:
    """x*1, 1*x, x/1, x-0 and, for integers, x+0. A float's x+0 is left alone: it turns -0.0 into
    0.0; so do parts of complex numbers in all of these."""
    (spec,), (x, y) = node.specs, node.inputs
    neutral = 1 if node.op in ("multiply", "divide") else 0
    if spec.dtype.kind == "c" or (node.op == "add" and is_float(spec.dtype)):
        return None
    for number, other in (
        (s.number(y), x),
        *(((s.number(x), y),) if node.op in ("multiply", "add") else ()),
    ):
        if number == neutral and math.copysign(1, number) > 0 and s.spec(other) is spec:
            return (other,)
    return None


@on("where")
def _where(s: _State, node: Node) -> Sequence[int] | None:
    c, x, y = node.inputs
    known = s.number(c)
    kept = x if known or x == y else y
    return (kept,) if (known is not None or x == y) and s.spec(kept) is node.specs[0] else None


def _pointwise(s: _State, node: Node) -> Sequence[int] | None:
    """Numbers among themselves are computed now; an array that is one number everywhere becomes
    that number."""
    op, (spec,) = OPS[node.op], node.specs
    numbers = [s.number(v) for v in node.inputs]
    if all(n is not None for n in numbers):
        return _computed(s, node, numbers) if op.run.scratch is None else None
    changed = list(node.inputs)
    for k, (v, n) in enumerate(zip(node.inputs, numbers, strict=True)):
        if n is None or not s.spec(v).shape:
            continue
        rest = [s.spec(w).shape for j, w in enumerate(changed) if j != k]
        if np.broadcast_shapes(*rest) == spec.shape:
            kind = s.spec(v).dtype
            changed[k] = s.builder.add(
                "constant", (), {"value": n, "dtype": kind}, (Spec((), kind),), node.line
            )[0]
    if tuple(changed) == node.inputs:
        return None
    return _simpler(s, Node(node.op, tuple(changed), node.params, node.specs, node.line))


def _computed(s: _State, node: Node, numbers: Sequence[Any]) -> Sequence[int]:
    args = [np.asarray(n, s.spec(v).dtype) for n, v in zip(numbers, node.inputs, strict=True)]
    return _full(s, computed(node, args).item(), node)


def computed(node: Node, args: Sequence[Any]) -> Any:
    """Compute now what an operation on elements makes of these arrays."""
    op = OPS[node.op]
    out = np.empty(np.broadcast_shapes(*[x.shape for x in args]), node.specs[0].dtype)
    with np.errstate(all="ignore"):
        if op.run.ufunc:
            getattr(np, op.run.ufunc)(*args, out=out)
        else:
            assert op.kernel is not None
            op.kernel(np, out, *args, **node.kw)
    return out


# -- what loops carry ----------------------------------------------------------------------
@on("loop", "while")
def _carried_along(s: _State, node: Node) -> Sequence[int] | None:
    """Make constants of what a loop hands on as it came, in every iteration."""
    kw, first = node.kw, LOOPS[node.op]
    nc, ns = kw["counts"][:2]
    body: Graph = kw["body"]
    same = [j for j in range(ns) if body.outputs[j] == first + nc + j]
    left = [j for j in range(ns) if j not in same]
    if not same or (not left and len(body.outputs) == ns):
        return several_at_once(s.builder, node) if node.op == "loop" else None
    order = [*range(nc), *(nc + j for j in (*same, *left)), *range(nc + ns, len(node.inputs))]
    where = {first + v: first + k for k, v in enumerate(order)} | {v: v for v in range(first)}
    given = dict(node.params)
    for name, graph in node.subgraphs():
        count = len(graph.inputs)
        old = {to: v for v, to in where.items()}
        inputs = [graph.inputs[old[v]] for v in range(count)]
        moved = relabel(graph, inputs, [where[v] for v in range(count)])
        if name == "body":
            outs = [v for j, v in enumerate(moved.outputs) if j not in same]
            moved = Graph(moved.inputs, moved.nodes, tuple(outs))
        given[name] = moved
    given["counts"] = (nc + len(same), len(left), *kw["counts"][2:])
    specs = tuple([x for j, x in enumerate(node.specs) if j not in same])
    made = iter(s.builder.add(node.op, [node.inputs[v] for v in order], given, specs, node.line))
    return [node.inputs[nc + j] if j in same else next(made) for j in range(len(node.specs))]


@on("branch")
def _given_once(s: _State, node: Node) -> Sequence[int] | None:
    """An operand that both sides take is one operand."""
    operands = list(dict.fromkeys(node.inputs[1:]))
    if len(operands) == len(node.inputs) - 1:
        return _same_on_both_sides(s, node)
    specs = [s.spec(v).bare for v in operands]
    given = dict(node.params)
    for name, side in node.subgraphs():
        given[name] = relabel(side, specs, [operands.index(v) for v in node.inputs[1:]])
    inputs = (node.inputs[0], *operands)
    return _simpler(s, Node(node.op, inputs, tuple(sorted(given.items())), node.specs, node.line))


def _same_on_both_sides(s: _State, node: Node) -> Sequence[int] | None:
    """Drop results of a branch that both sides hand on as they came."""
    sides = dict(node.subgraphs())
    pairs = list(zip(*(g.outputs for g in sides.values()), strict=True))
    same = [j for j, vs in enumerate(pairs) if len({*vs}) == 1 and vs[0] < len(node.inputs) - 1]
    if not same:
        return None
    left = [j for j in range(len(pairs)) if j not in same]
    made: Sequence[int] = ()
    if left:
        given = dict(node.params)
        for name, g in sides.items():
            given[name] = Graph(g.inputs, g.nodes, tuple([g.outputs[j] for j in left]))
        specs = tuple([node.specs[j] for j in left])
        made = s.builder.add(node.op, node.inputs, given, specs, node.line)
    rest = iter(made)
    return [node.inputs[1 + pairs[j][0]] if j in same else next(rest) for j in range(len(pairs))]


# -- two results of one computation --------------------------------------------------------
def _longer_twins(graph: Graph) -> dict[Node, Node]:
    """Nodes in whose place another may stand that computes the same and more: its first results are
    theirs.

    `mean` where `moments` of the same axes is computed anyway, and loops that differ in what they
    yield (a gradient makes a second loop, which also yields the states)."""
    moments = {(n.inputs, n.key): n for n in graph.nodes if n.op == "moments"}
    twins: dict[Node, Node] = {}
    longest: dict[Any, Node] = {}
    loops = [n for n in graph.nodes if n.op == "loop"]
    for n in loops:
        best = longest.setdefault(_turns(n), n)
        if len(n.specs) > len(best.specs):
            longest[_turns(n)] = n
    for n in loops:
        best = longest[_turns(n)]
        if best is not n and best.kw["body"].outputs[: len(n.specs)] == n.kw["body"].outputs:
            twins[n] = best
    for n in graph.nodes:
        if (
            n.op == "mean"
            and (found := moments.get((n.inputs, exact_items([("axes", n.kw["axes"])]))))
            is not None
        ):
            twins[n] = found
    return twins


def _turns(node: Node) -> Any:
    kw = node.kw
    return (
        node.inputs,
        kw["body"].inputs,
        kw["body"].nodes,
        kw["trips"],
        kw["counts"],
        kw["reverse"],
    )
