"""One more index in front of everything: what operations are under `vmap`, Term by Term.

    exp(x)             i -> i            of (n, i)       exp(x)
    sum(x, axes=(0,))  i j -> j          of (n, i, j)    sum(x, axes=(1,))
    x @ y              i k, k -> i       of (n, k) y     y @ x.T

Most of it follows from two facts that an operation has anyway. What its parameters are (`takes`)
says what they become; its index rule (`indices`) then says whether the first axis is one more
parallel index of all that have it, and if so, the operation does the same to each element. Where
operands may lack the axis, or products become larger ones, the operation has a rule of its own
(`Op.batched`). What has neither is done element by element, by a loop.

All is made of operations that users type, so it has gradients and layouts like what they type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ostinato.errors import OstinatoError

from ..array.shape import broadcast_to, reshape
from ..core.apply import act, apply_all, as_specs
from ..core.array import Array, Term, Trace, placeholder, term_of
from ..core.array_methods import functions
from ..core.graph import Graph
from ..core.registry import Op, lookup
from ..core.spec import Shape, Spec
from ..core.trace import Ref, array_of
from ..core.user_line import on_behalf

Mapped = tuple[Array, bool]  # and whether its first axis is the one that was added


def item_of(x: Mapped) -> Spec:
    """Return the spec of one element."""
    array, has = x
    return Spec(array.shape[has:], array.dtype)


def given_axis(x: Mapped, size: int) -> Array:
    """An operand that has the axis, perhaps as a repetition."""
    array, has = x
    return array if has else broadcast_to(reshape(array, (1, *array.shape)), (size, *array.shape))


def aligned(x: Mapped, rank: int) -> Array:
    """An operand whose elements have as many axes as others', if it has the added one."""
    array, has = x
    missing = rank + 1 - array.ndim
    if not has or missing <= 0:
        return array
    return reshape(array, (array.shape[0], *(1,) * missing, *array.shape[1:]))


# -- one operation ---------------------------------------------------------------------------
def batched(op: Op, params: Mapping[str, Any], xs: Sequence[Mapped], size: int) -> list[Mapped]:
    """Apply an operation to operands of which some have one more axis in front."""
    if not any(has for _, has in xs):
        return [(y, False) for y in apply_all(op.name, *[x for x, _ in xs], **params)]
    made: Sequence[Mapped] | None = None
    made = op.batched(size, *xs, **params) if op.batched is not None else _led(op, params, xs, size)
    return list(made) if made is not None else _by_turns(op, params, xs)


def _led(
    op: Op, params: Mapping[str, Any], xs: Sequence[Mapped], size: int
) -> Sequence[Mapped] | None:
    """The operation itself with its parameters moved by an axis, if its indices say that the axis is
    one of them."""
    if params.keys() - op.takes.keys():
        return None
    items = as_specs(op.infer(*map(item_of, xs), **params))
    operands = (
        [aligned(x, len(items[0].shape)) for x in xs]
        if op.aligns
        else [given_axis(x, size) for x in xs]
    )
    led = {name: op.takes[name].led(value, size) for name, value in params.items()}
    ins = tuple(x.spec.bare for x in operands)
    try:
        outs = as_specs(op.infer(*ins, **led))
    except OstinatoError:  # it has a fixed number of axes
        return None
    has = [whole.shape == (size, *item.shape) for whole, item in zip(outs, items, strict=True)]
    if any(not h and a.shape != b.shape for h, a, b in zip(has, outs, items, strict=True)):
        return None
    fronts = [not op.aligns or own for _, own in xs]
    if not _is_parallel(op, ins, outs, led, fronts, has):
        return None
    return list(zip(apply_all(op.name, *operands, **led), has, strict=True))


def _is_parallel(
    op: Op,
    ins: tuple[Spec, ...],
    outs: tuple[Spec, ...],
    params: Mapping[str, Any],
    fronts: Sequence[bool],
    has: Sequence[bool],
) -> bool:
    """Whether the first axes are one index, which nothing is done to."""
    rule = op.indices(ins, outs, params)
    first = {labels[0] for labels, own in zip(rule.outs, has, strict=True) if own}
    if len(first) != 1:
        return False
    (label,) = first
    if not isinstance(label, str) or label in rule.chunked:
        return False
    if rule.monoid(label) is not None or any(label == name for name, _ in rule.parts):
        return False
    return all(
        [d == label for d in dims] == [own and k == 0 for k in range(len(dims))]
        for dims, own in zip(rule.ins, fronts, strict=True)
    )


def _by_turns(op: Op, params: Mapping[str, Any], xs: Sequence[Mapped]) -> list[Mapped]:
    """One element after the other."""

    def turn(state: None, items: Sequence[Array]) -> tuple[None, list[Array]]:
        own = iter(items)
        operands = [next(own) if has else x for x, has in xs]
        return None, list(apply_all(op.name, *operands, **params))

    _, made = functions["scan"](turn, None, [x for x, has in xs if has])
    return [(y, True) for y in made]


# -- graphs and Terms ------------------------------------------------------------------------
def batched_graph(graph: Graph, xs: Sequence[Mapped], size: int) -> list[Mapped]:
    """A graph's outputs of operands of which some have the axis."""
    values = list(xs)
    for node in graph.nodes:
        with on_behalf(node.line):
            operands = [values[v] for v in node.inputs]
            values.extend(batched(lookup(node.op), node.kw, operands, size))
    return [values[v] for v in graph.outputs]


class Batch:
    """The Terms of one element's computation, and what they are for all elements at once."""

    def __init__(self, trace: Trace, size: int) -> None:
        self.trace = trace
        self.size = size
        self.known: dict[tuple[int, int], Mapped] = {}
        self.kept: list[Term] = []  # which are identified by address

    def enter(self, spec: Spec, whole: Array) -> Array:
        """An element of an operand, which is known as a whole."""
        item = placeholder(spec, -1, self.trace)
        term, k = term_of(item)
        self.kept.append(term)
        self.known[id(term), k] = whole, True
        return item

    def compute(self, items: Sequence[Array]) -> list[Mapped]:
        """Compute these for all elements. What is to happen for one, happens for all."""
        acts, self.trace.acts = self.trace.acts, []
        refs = [term_of(x) for x in (*items, *acts)]
        for root, k in refs:
            stack = [] if self._is_known(root, k) else [root]
            while stack:
                term = stack[-1]
                if (id(term), 0) in self.known:
                    stack.pop()
                    continue
                waiting = [t for t, j in term.inputs if not self._is_known(t, j)]
                if waiting:
                    stack.extend(waiting)
                    continue
                stack.pop()
                self._make(term)
        found = [self._value(ref) for ref in refs]
        for y, _ in found[len(items) :]:
            act(y)
        return found[: len(items)]

    def _is_known(self, term: Term, k: int) -> bool:
        return self.trace not in term.traces or (id(term), k) in self.known

    def _value(self, ref: Ref) -> Mapped:
        term, k = ref
        if self.trace not in term.traces:
            return array_of(term, k), False
        return self.known[id(term), k]

    def _make(self, term: Term) -> None:
        assert term.op is not None
        xs = [self._value(ref) for ref in term.inputs]
        with on_behalf(term.line):
            made = batched(term.op, dict(term.params), xs, self.size)
        self.kept.append(term)
        for k, y in enumerate(made):
            self.known[id(term), k] = y


def spread_axis(size: int, xs: Sequence[Mapped], wanted: Sequence[bool]) -> list[Array]:
    """Operands that have the axis where it is wanted."""
    return [given_axis(x, size) if want else x[0] for x, want in zip(xs, wanted, strict=True)]


def flags_of(graph: Graph, specs: Sequence[Spec], has: Sequence[bool], size: int) -> list[bool]:
    """Which outputs of a graph get the axis, if these of its inputs have it."""
    trace = Trace("vmap")
    xs = [
        (placeholder(_with_axis(s.bare, h, size), k, trace), h)
        for k, (s, h) in enumerate(zip(specs, has, strict=True))
    ]
    return [own for _, own in batched_graph(graph, xs, size)]


def _with_axis(spec: Spec, has: bool, size: int) -> Spec:
    shape: Shape = (size, *spec.shape) if has else spec.shape
    return Spec(shape, spec.dtype)


def each(function: Callable[..., Sequence[Array]], xs: Sequence[Mapped], size: int) -> list[Mapped]:
    """Apply a function of one element to all of them."""
    batch = Batch(Trace("vmap"), size)
    own = [batch.enter(item_of(x), x[0]) if x[1] else x[0] for x in xs]
    return batch.compute(function(*own))
