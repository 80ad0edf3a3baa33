"""What a library does behind a product as it writes it: steps from value to value, each of which adds,
multiplies or cuts off below 0.

    %2 = conv(%0, %1)      %3 = squeeze(%2)      %5 = add(%3, %4)      %6 = where(%5 <= 0, 0, %5)

Which operations these are follows from the expressions of their elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec, is_float

_BINARY = {"{0} + {1}": "+", "{0} - {1}": "-", "{0} * {1}": "*", "{0} / {1}": "/"}
_CHOICE = "({1} if {0} else {2})"
_SIGNS = {"{0} <= {1}": True, "{0} >= {1}": False}  # of those below 0, or of others
SCALARS = {*_BINARY, *_SIGNS, _CHOICE}


class LibraryStep(NamedTuple):
    """What is done to a value: "+", "-", "*", "/" with an operand, or a number if that is negative; or "relu",
    what is below 0 times `number`."""

    kind: str
    operand: int = -1  # a value of the graph
    number: float = 0.0
    nodes: tuple[int, ...] = ()  # that do it
    sign: int = -1  # the value that says where it is below 0, or is not
    made: int = -1


def steps_behind(graph: Graph, k: int) -> list[LibraryStep]:
    """The steps behind a product, each of which is all that reads the one before; what only looks at it is one,
    too, of kind ""."""
    v, found = graph.starts[k], list[LibraryStep]()
    while len(found) < 12 and v not in graph.outputs and graph.uses[v]:
        step = _step(graph, v, graph.specs[graph.starts[k]])
        if step is None:
            break
        found.append(step)
        v = step.made
    while found and not found[-1].kind:
        found.pop()
    return found


def _step(graph: Graph, v: int, product: Spec) -> LibraryStep | None:
    readers = [*dict.fromkeys(graph.uses[v])]
    spec, node = graph.specs[v], graph.nodes[readers[0]]
    if not is_float(spec.dtype) or any(len(graph.nodes[u].specs) != 1 for u in readers):
        return None
    if len(readers) > 1:
        return _cut_off(graph, v, readers)
    op, made = OPS[node.op], graph.starts[readers[0]]
    if op.moves.same_elements and not op.turns_axes and len(node.inputs) == 1:
        return LibraryStep("", nodes=(readers[0],), made=made) if _joins_last(spec, node) else None
    kind = _BINARY.get(op.scalar)
    if kind is None or node.specs[0].bare is not spec.bare or node.inputs.count(v) > 1:
        return None
    other = node.inputs[node.inputs[0] == v]
    if node.inputs[0] != v and kind in "-/":
        return None
    number = number_of(graph, other)
    if number is not None:
        able = number != 0 or kind in "+-"
        return LibraryStep(kind, -1, number, (readers[0],), made=made) if able else None
    beside = graph.specs[other]
    whole = beside.bare is spec.bare and beside.layout == spec.layout
    each = beside.size == spec.shape[-1] == beside.shape[-1] if beside.ndim else False
    if not (whole or each) or beside.dtype != spec.dtype:
        return None
    return LibraryStep(kind, other, 0.0, (readers[0],), made=made)


def _joins_last(spec: Spec, node: Node) -> bool:
    """Whether a look at a product makes one axis of the last two, and both are here whole."""
    before, after = spec.shape, node.specs[0].shape
    layout = spec.layout
    whole = before[-2] == 1 or layout is None or not any(
        s in (spec.ndim - 1, spec.ndim - 2) for s in layout.splits
    )  # fmt: skip
    return after == (*before[:-2], before[-2] * before[-1]) and whole


def _cut_off(graph: Graph, v: int, readers: Sequence[int]) -> LibraryStep | None:
    """A choice between a value and 0, or a share of it, by whether it is below 0."""
    signs = [u for u in readers if OPS[graph.nodes[u].op].scalar in _SIGNS]
    chosen = [u for u in readers if OPS[graph.nodes[u].op].scalar == _CHOICE]
    rest = [u for u in readers if u not in (*signs, *chosen)]
    if len(signs) != 1 or len(chosen) != 1 or len(rest) > 1:
        return None
    sign, choice = graph.nodes[signs[0]], graph.nodes[chosen[0]]
    below = _SIGNS[OPS[sign.op].scalar]
    (says,), (made,) = graph.outs(signs[0]), graph.outs(chosen[0])
    low, high = choice.inputs[1:] if below else choice.inputs[:0:-1]
    if sign.inputs[0] != v or number_of(graph, sign.inputs[1]) != 0:
        return None
    if choice.inputs[0] != says or high != v or choice.specs[0].bare is not graph.specs[v].bare:
        return None
    slope = number_of(graph, low) if not rest else None
    if rest:
        share = graph.nodes[rest[0]]
        if (
            OPS[share.op].scalar != "{0} * {1}"
            or share.inputs[0] != v
            or low not in graph.outs(rest[0])
        ):
            return None
        if [*dict.fromkeys(graph.uses[low])] != chosen or low in graph.outputs:
            return None
        slope = number_of(graph, share.inputs[1])
    if slope is None or slope < 0 or (not rest and slope != 0):
        return None
    return LibraryStep("relu", -1, slope, (signs[0], *rest, chosen[0]), says, made)


def number_of(graph: Graph, v: int) -> float | None:
    k = graph.producers[v]
    if k < 0 or graph.nodes[k].op != "constant":
        return None
    value = graph.nodes[k].kw["value"]
    return float(value) if isinstance(value, (int, float)) else None


def done(xp: Any, made: Any, steps: Sequence[LibraryStep], values: Any) -> Any:
    """The steps by an `xp`, one after the other, in place; `values` of operands."""
    for step in steps:
        if step.kind == "relu":
            made[...] = xp.where(made <= 0, made * step.number if step.number else 0, made)
        elif step.kind:
            other = values[step.operand] if step.operand >= 0 else step.number
            f = {"+": xp.add, "-": xp.subtract, "*": xp.multiply, "/": xp.divide}[step.kind]
            f(made, other, out=made)
    return made
