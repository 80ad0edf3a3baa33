"""A state that becomes another one's, as in u, v -> v, f(u, v), is copied in each turn.
Several turns in one begin each state as itself, and write what they make over what they read last.

before                                       after
%2, %3 = loop(%0, %1; trips=8, body=(        %2, %3 = loop(%0, %1; trips=4, body=(
    (%0: int64, %1: f64[n], %2: f64[n])          (%0: int64, %1: f64[n], %2: f64[n])
    %3 = subtract(%2, %1)                        %3 = subtract(%2, %1)
    return %2, %3))                              %4 = subtract(%3, %2)
                                                 return %3, %4))"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.array.expressions import Expression, constant
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec, int64
from ostinato.planner.rewrite import inline

MAX_UNROLLED_TURNS = 4  # turns in one
MIN_MOVED_BYTES = 1 << 12  # bytes that are worth it


def several_at_once(builder: Builder, node: Node) -> Sequence[int] | None:
    """The loop with several turns in one, and those that are left behind it; None if each begins as itself
    anyway, or makes what is stacked."""
    kw, body, trips = node.kw, node.kw["body"], node.kw["trips"]
    nc, ns, _ = kw["counts"]
    first = 1 + nc
    comes = [v - first if first <= v < first + ns else None for v in body.outputs[:ns]]
    moved = sum(s.nbytes for j, s in zip(comes, node.specs, strict=False) if j is not None)
    count = _turns(comes)
    hosts = any(OPS[n.op].run.host_callback or any(n.subgraphs()) for n in body.nodes)
    if len(node.specs) > ns or kw["reverse"] or hosts or moved < MIN_MOVED_BYTES:
        return None
    if count is None or trips < count:
        return None
    many, consts = trips // count, node.inputs[:nc]
    states, stacks = node.inputs[nc : nc + ns], node.inputs[nc + ns :]
    items = [_rows(builder, x, 0, many * count, (many, count), node.line) for x in stacks]
    params = {**kw, "body": _together(body, count, nc, ns), "trips": many}
    made = builder.add("loop", (*consts, *states, *items), params, node.specs, node.line)
    for t in range(many * count, trips):
        index = constant(builder, t, int64, node.line).value
        items = [_rows(builder, x, t, 1, (), node.line) for x in stacks]
        made = tuple(inline(builder, body, [index, *consts, *made, *items]))
    return made


def _turns(comes: Sequence[int | None]) -> int | None:
    """After how many turns no state is what another one was; `comes`: which one each is after one. None for
    one, or too many."""
    now: list[int | None] = list(range(len(comes)))
    for count in range(1, MAX_UNROLLED_TURNS + 1):
        now = [None if j is None else now[j] for j in comes]
        if all(j is None or j == k for k, j in enumerate(now)):
            return count if count > 1 else None
    return None


def _together(body: Graph, count: int, nc: int, ns: int) -> Graph:
    """A body that does what so many turns did."""
    split = 1 + nc + ns
    rows = [Spec((count, *s.shape), s.dtype) for s in body.inputs[split:]]
    made = Builder((*body.inputs[:split], *rows))
    consts, states = [*range(1, 1 + nc)], [*range(1 + nc, split)]
    for k in range(count):
        index = (Expression(made, 0) * count + k).value if 0 in _read(body) else 0
        items = [_rows(made, split + j, k, 1, (), "") for j in range(len(rows))]
        states = inline(made, body, [index, *consts, *states, *items])
    return made.graph(states)


def _read(body: Graph) -> set[int]:
    return {v for n in body.nodes for v in n.inputs} | {*body.outputs}


def _rows(builder: Builder, x: int, start: int, size: int, lead: tuple[int, ...], line: str) -> int:
    """Some rows of an array, in a shape of their own."""
    whole = Expression(builder, x, line)
    rest = whole.shape[1:]
    part = whole
    if size < whole.shape[0]:
        part = whole.slice([(start, size, 1), *((0, n, 1) for n in rest)])
    return part.reshape(*lead, *rest).value
