"""What lies in a file is read where it is needed, in the bodies of loops too.

before                                        after
(%0: float32[9,4] @ whole of 1 on disk)       (%0: float32[9,4] @ whole of 1 on disk)
%1 = exp(%0) : float32[9,4]                   %1 = read(%0) : float32[9,4]
%2 = sum(%1; axes=(0,), ...) : float32[4]     %2 = exp(%1) : float32[9,4]
return %2                                     %3 = sum(%2; axes=(0,), ...) : float32[4]
                                              return %3

A loop takes along the file itself. What was made of each row of the file in front of the loop is
made within, again in every turn: the alternative is to keep all of it in memory. Idempotent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ostinato.ops.array.expressions import Expression
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.flow.control import FLOW
from ostinato.ops.planned.collective import STORED
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import inline

from .file_joins import MIN_FILE_JOIN_BYTES, joined, written_once
from .file_joins import SHARE as JOINED
from .file_parts import read_parts
from .file_rows import interleaved, merge_rows

# bytes that are not read at once for a loop that wants them row by row,
MAX_WHOLE_READ_BYTES = 1 << 22
SHARE = 8  # nor such a part of the memory limit


def read_files(graph: Graph, target: Target) -> Graph:
    """The pass; nothing for a graph whose operands are in memory."""
    return _with_reads(graph, [v for v, s in enumerate(graph.inputs) if is_stored(s)], target)


def is_stored(spec: Spec) -> bool:
    return spec.layout is not None and spec.layout.stored


def seen_as(node: Node) -> dict[int, list[tuple[str, int]]]:
    """Operands that bodies only read: which inputs of which graphs they are."""
    match node.op:
        case "branch":
            count = range(1, len(node.inputs))
            return {j: [("then", j - 1), ("otherwise", j - 1)] for j in count}
        case "loop":
            return {j: [("body", 1 + j)] for j in range(node.kw["counts"][0])}
        case "while":
            return {j: [("body", j), ("condition", j)] for j in range(node.kw["counts"][0])}
    return {}


def _with_reads(graph: Graph, files: Iterable[int], target: Target) -> Graph:
    """The graph with a `read` in front of who needs one of these inputs, or a part of it, in memory."""
    given = set(files)
    if not given:
        return graph
    limit = target.memory_limit
    most = MIN_FILE_JOIN_BYTES if limit is None else min(MIN_FILE_JOIN_BYTES, limit // JOINED)
    graph = read_parts(graph, given, target)
    graph = joined(written_once(graph), given, most)
    graph = interleaved(graph, given | _stored(graph))
    graph = merge_rows(graph, given | _stored(graph))
    files = given | _stored(graph)
    rows = _rows(graph, files)
    builder = Builder(graph.inputs)
    values = list(range(len(graph.inputs)))

    def read(v: int, line: str) -> int:
        return builder.add("read", (values[v],), (), (graph.specs[v].bare,), line)[0]

    for node in graph.nodes:
        inputs: Sequence[int] = node.inputs
        if node.op == "loop":
            node = _by_turns(graph, node, rows, target)
        if node.op in FLOW:
            node, inputs = _take_along(graph, node, rows, files, target)
        stays = seen_as(node) if node.op in FLOW else ()
        operands = [
            read(v, node.line)
            if v in files and node.op not in ("read", *STORED) and j not in stays
            else values[v]
            for j, v in enumerate(inputs)
        ]
        values.extend(builder.add(node.op, operands, node.params, node.specs, node.line))
    outputs = [
        read(v, "") if v in files and v >= len(graph.inputs) else values[v] for v in graph.outputs
    ]
    return builder.graph(outputs)


def _stored(graph: Graph) -> set[int]:
    return {graph.starts[k] for k, node in enumerate(graph.nodes) if node.op in STORED}


def _rows(graph: Graph, files: set[int]) -> dict[int, int]:
    """Values that have a row for each row of a file, made of nothing else that is so long; and the
    axis of their rows."""
    found = dict.fromkeys((v for v in files if graph.specs[v].ndim), 0)
    for k, node in enumerate(graph.nodes):
        known = node.op in FLOW or graph.starts[k] in found
        if known or not any(v in found for v in node.inputs) or len(node.specs) > 1:
            continue
        ins = tuple(graph.specs[v] for v in node.inputs)
        indices = OPS[node.op].indices(ins, node.specs, node.kw)
        labels = {
            dims[found[v]] for v, dims in zip(node.inputs, indices.ins, strict=True) if v in found
        }
        label = labels.pop() if len(labels) == 1 else None
        if isinstance(label, str) and label in indices.outs[0]:
            found[graph.starts[k]] = indices.outs[0].index(label)
    return found


def _by_turns(graph: Graph, node: Node, rows: dict[int, int], target: Target) -> Node:
    """The loop that looks at large arrays of files' rows by its turn's number, where it had of each a
    row handed in."""
    kw = node.kw
    (nc, ns, _), body = kw["counts"], kw["body"]
    begin, limit = nc + ns, target.memory_limit
    most = MAX_WHOLE_READ_BYTES if limit is None else min(MAX_WHOLE_READ_BYTES, limit // SHARE)
    moved = [
        j
        for j, v in enumerate(node.inputs)
        if j >= begin and rows.get(v) == 0 and graph.specs[v].nbytes > most
    ]
    if not moved:
        return node
    stay = [j for j in range(len(node.inputs)) if j not in moved]
    order = [*stay[:nc], *moved, *stay[nc:]]
    specs = [graph.specs[node.inputs[j]].bare if j in moved else body.inputs[1 + j] for j in order]
    builder = Builder([body.inputs[0], *specs])
    turn = Expression(builder, 0, node.line).reshape(1)
    values = [0] * len(body.inputs)
    for at, j in enumerate(order, 1):
        values[1 + j] = at
        if j in moved:
            large = Expression(builder, at, node.line)
            values[1 + j] = large.take(turn, 0).reshape(*body.inputs[1 + j].shape).value
    kw["body"] = builder.graph(inline(builder, body, values))
    kw["counts"] = (nc + len(moved), ns, len(stay) - begin)
    inputs = tuple(node.inputs[j] for j in order)
    return Node("loop", inputs, tuple(sorted(kw.items())), node.specs, node.line)


def _take_along(
    graph: Graph, node: Node, rows: dict[int, int], files: set[int], target: Target
) -> tuple[Node, list[int]]:
    """The node of control flow whose bodies make themselves what has rows of a file; and its
    operands."""
    seen = seen_as(node)
    sunk = {
        j: _cone(graph, node.inputs[j], rows, files)
        for j in seen
        if node.inputs[j] in rows and node.inputs[j] not in files
    }
    more = list(dict.fromkeys(v for outer, _ in sunk.values() for v in outer))
    first, last = min(seen, default=0), max(seen, default=-1) + 1
    order = [*range(first), *(j for j in seen if j not in sunk), *range(last, len(node.inputs))]
    kept = [j for j in order if j < last]
    inputs = [node.inputs[j] for j in kept] + more + [node.inputs[j] for j in order if j >= last]
    params = node.kw
    for name, body in node.subgraphs():
        params[name] = _sinking(graph, node, name, body, sunk, kept, more)
    if "counts" in params:
        gone = len(sunk) - len(more)
        params["counts"] = (params["counts"][0] - gone, *params["counts"][1:])
    made = Node(node.op, tuple(inputs), tuple(sorted(params.items())), node.specs, node.line)
    places = seen_as(made)
    for name, body in made.subgraphs():
        taken = {v: j for j in places for n, v in places[j] if n == name and inputs[j] in files}
        specs = [
            graph.specs[inputs[taken[v]]] if v in taken else s for v, s in enumerate(body.inputs)
        ]
        params[name] = _with_reads(Graph(tuple(specs), body.nodes, body.outputs), taken, target)
    return Node(node.op, made.inputs, tuple(sorted(params.items())), node.specs, node.line), inputs


def _sinking(
    graph: Graph,
    node: Node,
    name: str,
    body: Graph,
    sunk: dict[int, tuple[list[int], Graph]],
    kept: Sequence[int],
    more: Sequence[int],
) -> Graph:
    """A body that makes some of its operands itself."""
    seen = {j: v for j, places in seen_as(node).items() for n, v in places if n == name}
    first, last = min(seen.values(), default=0), max(seen.values(), default=-1) + 1
    old = [*range(first), *(seen[j] for j in kept if j in seen), *range(last, len(body.inputs))]
    extra = [graph.specs[v].bare for v in more]
    at = len([v for v in old if v < last])
    specs = [body.inputs[v] for v in old]
    builder = Builder([*specs[:at], *extra, *specs[at:]])
    new = {v: n if n < at else n + len(extra) for n, v in enumerate(old)}
    outside = {v: at + n for n, v in enumerate(more)}
    for j, (outer, cone) in sunk.items():
        new[seen[j]] = inline(builder, cone, [outside[v] for v in outer])[0]
    return builder.graph(inline(builder, body, [new[v] for v in range(len(body.inputs))]))


def _cone(
    graph: Graph, value: int, rows: dict[int, int], files: set[int]
) -> tuple[list[int], Graph]:
    """Find the graph that makes a value of the rows of files: its operands, and the nodes between."""
    nodes: set[int] = set()
    outer: dict[int, None] = {}
    todo = [value]
    while todo:
        v = todo.pop()
        k = graph.producers[v]
        if k >= 0 and v not in files and (v in rows or graph.nodes[k].op == "constant"):
            nodes.add(k)
            todo.extend(graph.nodes[k].inputs)
        else:
            outer[v] = None
    builder = Builder([graph.specs[v].bare for v in outer])
    own = {v: n for n, v in enumerate(outer)}
    for k in sorted(nodes):
        node = graph.nodes[k]
        made = builder.add(
            node.op, [own[v] for v in node.inputs], node.params, node.specs, node.line
        )
        own.update(zip(graph.outs(k), made, strict=True))
    return list(outer), builder.graph([own[value]])
