"""What a graph needs in files of its own before it can run within the memory there is: orders, and rows
that are brought into another order.

    sort(x)                 keys in sorted runs; read as one, merged
    argsort(x)              the same, with the places that the keys come from
    take(x, argsort(k))     rows in the order of their keys, run by run; merged by the keys
    take(x, places)         places in order, so that each row's page is read once; rows in runs of where
                            they go; merged by that
    concat([f(x), g(x)])    what is joined, as it is

Each is a graph whose result goes into a file, run by run of what fits into memory, and a word on how the
rest reads any part of the whole from there (io_pipeline/merging.py). So a file is read and written once
or twice more, and never once for each block of the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np
from ostinato.ops.array.expressions import Expression, where
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Window
from ostinato.ops.core.layout import Layout, every_bounds
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec, int64, is_inexact, uint32, uint64
from ostinato.ops.planned.collective import STRETCH

from .layouts.shardings import is_rigid
from .machine import memory
from .passes.file_blocks import turns_of
from .passes.in_turns import named
from .passes.reads import is_stored, read_files
from .plan import Target
from .rewrite import inline

SHARE = 4  # of the memory there is: what takes more than such a part of it is not kept unasked
SORTING = 3  # times a value: what it takes to sort it in memory
JOINING = 2  # times a value: what it takes to join it, or to see it in other places
PLACES = 6  # times that a place is read or written on the way
WORTH = 2.0  # times what bringing rows into order moves, from which on they are not read one by one


@dataclass(frozen=True, slots=True)
class Read:
    """What the rest reads of files with runs: what lies in the last one as it is, its keys in order, the
    places that these come from, in order or as they follow each other in the runs; or its rows in the
    order of the keys in the file before."""

    how: Literal["as_it_is", "sorted", "order", "places", "rows"]
    spec: Spec  # of the keys or places
    bounds: tuple[int, ...] = ()  # where runs begin and end
    falls: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What a graph needs in a file of its own before the rest can run."""

    graph: Graph | None  # whose result goes into it, made of all operands so far; None for no more
    reads: Read  # one operand more for the rest


def is_large(spec: Spec, target: Target) -> bool:
    """Whether to keep an array in memory would leave little for anything else."""
    return spec.nbytes * SHARE > memory_of(target)


def memory_of(target: Target) -> int:
    """Bytes of memory that all workers may take together."""
    limit = target.memory_limit
    return memory() if limit is None else limit * target.workers


def split_sorts(graph: Graph, target: Target) -> tuple[list[Step], Graph]:
    """Split a graph into what it would have to sort as a whole, step by step, and the rest, which
    has one operand more for each: runs that fit into memory are put in order and written to a file,
    of which the rest reads any places of the order (io_pipeline/merging.py)."""
    steps = list[Step]()
    while True:
        taken, ordered = _first_to_take(graph, target), _first_to_sort(graph, target)
        if taken is not None and (ordered is None or not _follows(graph, taken, ordered)):
            more, graph = _taken_at(graph, taken, target)
        elif ordered is not None:
            more, graph = _sorted_at(graph, ordered, target)
        elif (v := _first_to_keep(graph, target)) is not None:
            more, graph = _kept_at(graph, v, target)
        else:
            return steps, graph
        steps += more


def _has_no_room(spec: Spec, target: Target) -> bool:
    """Whether memory cannot hold it beside what sorting it takes."""
    return spec.nbytes * SORTING > memory_of(target)


def _made(graph: Graph, target: Target) -> set[int]:
    """Values that are made of files, or drawn, where memory has no room to sort them."""
    found = {v for v, spec in enumerate(graph.inputs) if is_stored(spec)}
    for k, node in enumerate(graph.nodes):
        drawn = OPS[node.op].element.random_in_kernel and _has_no_room(
            graph.specs[graph.starts[k]], target
        )
        if drawn or not found.isdisjoint(node.inputs):
            found.update(graph.outs(k))
    return found


def _first_to_sort(graph: Graph, target: Target) -> int | None:
    """The first node that sorts what is made of files, and too large, along the axis in which it is
    read."""
    made = _made(graph, target)
    for k, node in enumerate(graph.nodes):
        if node.op not in ("sort", "argsort") or node.inputs[0] not in made:
            continue
        spec = graph.specs[node.inputs[0]]
        if node.kw["axis"] == 0 and is_large(spec, target) and turns_of(spec, target) > 1:
            return k
    return None


def _sorted_at(graph: Graph, k: int, target: Target) -> tuple[list[Step], Graph]:
    """Make the steps that put in order what a node sorts, and the graph that reads that."""
    node, spec = graph.nodes[k], graph.specs[graph.nodes[k].inputs[0]]
    bounds, falls = _bounds(spec, target), node.kw["descending"]
    runs = _runs_of(graph, node, bounds)
    kind = runs.out_specs[0].dtype

    if node.op == "argsort":
        reads = Read("order", Spec(spec.shape, int64), bounds)
    else:
        reads = Read("sorted", Spec(spec.shape, kind), bounds, falls)
    made = _on_disk(reads.spec, target)

    def read(builder: Builder, value: int) -> int:
        if node.op == "sort":
            return builder.call("sorted_numbers", value, of=spec.dtype, line=node.line)
        if made.shape == node.specs[0].shape:
            return value
        order = Expression(builder, value, node.line)
        return order.slice([(0, n, 1) for n in node.specs[0].shape]).value

    return [Step(runs, reads)], _without(graph, k, made, read)


def _on_disk(spec: Spec, target: Target) -> Spec:
    return spec.at(Layout.whole(target.mesh).on_disk)


def _runs_of(graph: Graph, node: Node, bounds: tuple[int, ...]) -> Graph:
    """The keys of what a node sorts, of each column a row, in sorted runs; of an `argsort` with the
    places that they come from."""
    builder = Builder(graph.inputs)
    (value,) = inline(builder, Graph(graph.inputs, graph.nodes, node.inputs), _inputs(graph))
    spec, op = builder.specs[value], "sort_of_parts"
    if node.op == "argsort" and is_inexact(spec.dtype):  # to which both zeros are alike
        x = Expression(builder, value, node.line)
        value = where(x.call("equal", x.number(0)), 0, x).value
    keys = builder.call("sort_keys", value, line=node.line)
    if node.op == "argsort":
        small = builder.specs[keys].dtype.itemsize <= 4 and spec.shape[0] <= 1 << 32
        wide = Expression(builder, keys, node.line).astype(uint32 if small else uint64)
        wide = wide.call("bitwise_invert") if node.kw["descending"] else wide
        keys, op = wide.value, "order_of_parts"
    table = spec.shape[0], math.prod(spec.shape[1:])
    return builder.graph([_in_runs(builder, keys, op, table, bounds, node.line)])


def _in_runs(
    builder: Builder, keys: int, op: str, table: Shape, bounds: tuple[int, ...], line: str
) -> int:
    if builder.specs[keys].shape != table:
        keys = builder.call("reshape", keys, shape=table, line=line)
    rows = builder.call("permute_dims", keys, axes=(1, 0), line=line)
    rows = builder.call("resplit", rows, split=1, mesh=None, line=line)
    return builder.call(op, rows, bounds=bounds, line=line)


def _inputs(graph: Graph) -> list[int]:
    return [*range(len(graph.inputs))]


def _bounds(spec: Spec, target: Target) -> tuple[int, ...]:
    """Where runs begin and end: each worker's rows, in as many turns as they take."""
    mesh = (*target.mesh, turns_of(spec, target))
    rows = Layout(mesh, (0,) * len(mesh), (), target.numerics == "any-workers")
    starts, _ = every_bounds(rows, spec.shape[0], 0)
    return (*starts.tolist(), spec.shape[0])


def _without(graph: Graph, k: int, made: Spec, read: Callable[[Builder, int], int]) -> Graph:
    """The graph over one more operand, from which it reads what a node made."""
    builder = Builder([*graph.inputs, made])
    values = list(range(len(graph.inputs)))
    for j, other in enumerate(graph.nodes):
        if j == k:
            values.append(read(builder, len(graph.inputs)))
            continue
        inputs = [values[v] for v in other.inputs]
        values.extend(builder.add(other.op, inputs, other.params, other.specs, other.line))
    for v in graph.outputs:  # a result stays, and the file goes
        if values[v] == len(graph.inputs):
            (values[v],) = builder.add("read", (values[v],), (), (made.bare,), graph.nodes[k].line)
    return builder.graph([values[v] for v in graph.outputs])


# -- what is made to be joined, or to be read in another place ---------------------------------
def _first_to_keep(graph: Graph, target: Target) -> int | None:
    """A value that lies in no file, and of which rows are joined with others to what memory has no room
    for, or that is itself such and read in other places; nothing where that can be told by rows."""
    joined, cut = _first_to_join(graph, target), _first_to_cut(graph, target)
    if joined is None and cut is None:
        return None
    ready = read_files(graph, target)
    made = _made(ready, target)
    known = _in_windows(ready, made)
    for node in ready.nodes:
        if made.isdisjoint(node.inputs) or not node.specs or is_stored(node.specs[0]):
            continue
        moved = _moved(ready, node)
        if known.issuperset(made.intersection(moved or node.inputs)):
            continue
        if joined is not None and moved and _is_beyond(node.specs[0], target):
            return joined
        if cut is not None and _cuts_rows(ready, node) and _is_beyond_file(ready, node, target):
            return cut
    return None


def _in_windows(graph: Graph, made: Set[int]) -> set[int]:
    """Values of which any rows can be made of some rows of files, so that a cut in time makes those that
    windows on them show."""
    rows = {v: 0 for v, spec in enumerate(graph.inputs) if is_stored(spec)}
    for k, node in enumerate(graph.nodes):
        outs = graph.outs(k)
        if node.op == "read" or is_stored(node.specs[0]):
            rows.update(dict.fromkeys(outs, 0))
            continue
        if made.isdisjoint(node.inputs) or any(node.subgraphs()):
            continue
        ins = tuple(graph.specs[v] for v in node.inputs)
        indices = OPS[node.op].indices(ins, node.specs, node.kw)
        most = max(graph.specs[v].nbytes for v in (*node.inputs, *outs))
        operands = [
            (v, d)
            for v, d in zip(node.inputs, indices.ins, strict=True)
            if v in made and graph.specs[v].nbytes * 2 > most
        ]
        if not all(v in rows for v, _ in operands):
            continue
        labels = {named(d[rows[v]]) for v, d in operands}
        labels = labels or {*indices.outs[0][:1]}  # what is repeated is small
        label = labels.pop() if len(labels) == 1 else None
        if label is not None and label in indices.outs[0] and not is_rigid(indices, node, label):
            rows.update({v: d.index(label) for v, d in zip(outs, indices.outs, strict=True)})
    return set(rows)


def _first_to_cut(graph: Graph, target: Target) -> int | None:
    made = _made(graph, target)
    for node in graph.nodes:
        if made.isdisjoint(node.inputs[:1]) or not _cuts_rows(graph, node):
            continue
        (v, *_) = node.inputs
        if v >= len(graph.inputs) and not _joins(graph, v) and _is_beyond_file(graph, node, target):
            return v
    return None


def _cuts_rows(graph: Graph, node: Node) -> bool:
    if not OPS[node.op].moves.selects or not graph.specs[node.inputs[0]].ndim:
        return False
    if OPS[node.op].moves.selects != "slices":
        return bool(node.kw["axis"] == 0)
    return (node.kw["sizes"][0], node.kw["steps"][0]) != (graph.specs[node.inputs[0]].shape[0], 1)


def _is_beyond_file(graph: Graph, node: Node, target: Target) -> bool:
    """Whether memory has no room for a node's operand, which lies in no file."""
    spec = graph.specs[node.inputs[0]]
    return not is_stored(spec) and _is_beyond(spec, target)


def _first_to_join(graph: Graph, target: Target) -> int | None:
    """A value of which rows are joined with others to what memory has no room for, and that lies in no
    file."""
    if not (made := _made(graph, target)):
        return None
    in_parts = _in_parts(graph)
    for k, node in enumerate(graph.nodes):
        if not node.specs or graph.starts[k] in in_parts:
            continue
        moved = _moved(graph, node)
        if made.isdisjoint(moved) or not _is_beyond(node.specs[0], target):
            continue
        for v in moved:
            while v >= len(graph.inputs) and graph.nodes[graph.producers[v]].op == "slice":
                (v,) = graph.nodes[graph.producers[v]].inputs
            if v >= len(graph.inputs) and not _joins(graph, v):
                return v
    return None


def _moved(graph: Graph, node: Node) -> list[int]:
    """The operands of a node whose rows stand in other places of its result: what is joined, padded, or
    put into others."""
    op, ins = OPS[node.op], tuple(graph.specs[v] for v in node.inputs)
    if op.moves.selects or len(node.specs) != 1 or not node.specs[0].ndim or any(node.subgraphs()):
        return []
    indices = op.indices(ins, node.specs, node.kw)
    label = indices.outs[0][0] if indices.outs[0] else None
    reads = zip(node.inputs, indices.ins, strict=True)
    return [v for v, dims in reads if any(isinstance(c, Window) and c.label == label for c in dims)]


def _in_parts(graph: Graph) -> dict[int, float]:
    """Values of which only some places are wanted, which are made by themselves, and how many of all;
    functions of elements and what joins beside each other let them through."""
    found: dict[int, float] = {}
    for v in reversed(range(len(graph.specs))):
        shares = [_share(graph, k, v, found) for k in graph.uses[v]]
        if shares and v not in graph.outputs and None not in shares:
            found[v] = sum(share for share in shares if share is not None)
    return found


def _share(graph: Graph, k: int, v: int, found: dict[int, float]) -> float | None:
    """How much of a value a node wants; None for all."""
    node, size = graph.nodes[k], graph.specs[v].size
    if OPS[node.op].moves.selects:
        less = node.inputs[0] == v and node.specs[0].size < size
        return node.specs[0].size / size if less else None
    through = OPS[node.op].scalar or OPS[node.op].moves.concatenates
    return found.get(graph.starts[k]) if through else None


def _joins(graph: Graph, v: int) -> bool:
    node = graph.nodes[graph.producers[v]]
    return OPS[node.op].moves.concatenates and node.kw["axis"] == 0


def _is_beyond(spec: Spec, target: Target) -> bool:
    return target.memory_limit is not None and spec.nbytes * JOINING > memory_of(target)


def _kept_at(graph: Graph, v: int, target: Target) -> tuple[list[Step], Graph]:
    """Make the step that writes a value to a file, and the graph that reads it there."""
    k, spec = graph.producers[v], graph.specs[v]
    builder = Builder(graph.inputs)
    kept = builder.graph(inline(builder, Graph(graph.inputs, graph.nodes, (v,)), _inputs(graph)))
    step = Step(kept, Read("as_it_is", spec.bare))
    return [step], _without(graph, k, _on_disk(spec.bare, target), lambda _, value: value)


# -- rows in another order -------------------------------------------------------------------
def _first_to_take(graph: Graph, target: Target) -> int | None:
    """The first node that takes small rows of a large file from places all over it, so many that block
    by block of the result most of the file would be read each time."""
    files, in_parts = (
        {v for v, spec in enumerate(graph.inputs) if is_stored(spec)},
        _in_parts(graph),
    )
    for k, node in enumerate(graph.nodes):
        if files.isdisjoint(node.inputs):
            continue
        files.update(graph.outs(k))
        if node.op == "take" and node.kw["axis"] == 0 and node.inputs[0] in files:
            x, i = (graph.specs[v] for v in node.inputs)
            share = min(in_parts.get(graph.starts[k], 1), 1)
            if i.ndim == 1 and _is_worth(x, i, node.specs[0], share, target):
                return k
    return None


def _is_worth(x: Spec, i: Spec, made: Spec, share: float, target: Target) -> bool:
    if not (made.size and is_large(x, target) and share * made.nbytes * SHARE > memory_of(target)):
        return False
    blocks = target.workers * turns_of(made, target)
    page = max(made.nbytes // i.size, STRETCH)  # what is read for one row
    each = min(x.nbytes, -(-i.size // blocks) * page)
    moved = x.nbytes + 2 * made.nbytes + 8 * PLACES * i.size
    return blocks > 1 and share * blocks * each > WORTH * moved


def _taken_at(graph: Graph, k: int, target: Target) -> tuple[list[Step], Graph]:
    """Make the steps that bring the rows that a node takes into runs, and the graph that merges
    these."""
    order = _order_of(graph, k)
    return _by_places(graph, k, target) if order is None else _by_keys(graph, k, order, target)


def _order_of(graph: Graph, k: int) -> Node | None:
    """The node that puts the rows that a node takes in the order of keys, one for each."""
    x, i = graph.nodes[k].inputs
    order = graph.nodes[graph.producers[i]] if _is_made(graph, i) else None
    if order is None or order.op != "argsort":
        return None
    rows = graph.specs[x].shape[:1]
    return order if order.specs[0].shape == rows == graph.specs[order.inputs[0]].shape else None


def _follows(graph: Graph, k: int, ordered: int) -> bool:
    """Whether another node has to put something in order before one can take its rows."""
    order = _order_of(graph, k)
    x, i = graph.nodes[k].inputs
    todo, seen = [x, i] if order is None else [x, *order.inputs], set[int]()
    while todo:
        maker = graph.producers[todo.pop()]
        if maker >= 0 and maker not in seen:
            seen.add(maker)
            todo.extend(graph.nodes[maker].inputs)
    return ordered in seen


def _wider(rows: Spec) -> Spec:
    """Rows, or their keys and places where these are more: as many of both fit into memory."""
    keys = Spec((rows.shape[0], 2), uint64)
    return max(rows, keys, key=lambda s: s.nbytes)


def _is_made(graph: Graph, v: int) -> bool:
    return graph.producers[v] >= 0


def _by_keys(graph: Graph, k: int, order: Node, target: Target) -> tuple[list[Step], Graph]:
    """Rows in the order of keys that they have, one each: those of a run are next to each other."""
    node = graph.nodes[k]
    bounds = _bounds(_wider(graph.specs[node.inputs[0]]), target)
    runs = _runs_of(graph, order, bounds)
    return _merged(graph, k, [], graph, node.inputs[0], runs, target)


def _by_places(graph: Graph, k: int, target: Target) -> tuple[list[Step], Graph]:
    """Rows at any places. These are sorted first, then the file is read once from front to end."""
    node = graph.nodes[k]
    x, i = (graph.specs[v] for v in node.inputs)
    builder = Builder(graph.inputs)
    (value,) = inline(builder, Graph(graph.inputs, graph.nodes, node.inputs[1:]), _inputs(graph))
    place = Expression(builder, value, node.line)
    rows, past = x.shape[0], place.number(min(x.shape[0], np.iinfo(i.dtype).max))
    if i.dtype.kind == "i":
        place = place.astype(int64)
        past = place.number(rows)
        place = where(place.call("less", place.number(0)), place + rows, place)
        place = where(place.call("less", place.number(0)), past, place)  # where nothing is
    place = place.call("minimum", past)
    keys, bounds = place.astype(uint64).value, _bounds(_wider(i), target)
    places = builder.graph(
        [_in_runs(builder, keys, "order_of_parts", (i.size, 1), bounds, node.line)]
    )
    listed = Spec((i.size,), int64)
    steps = [
        Step(places, Read("sorted", listed, bounds)),
        Step(None, Read("order", listed, bounds)),
    ]
    specs = [_on_disk(listed, target)] * 2
    wider = Builder([*graph.inputs, *specs])
    (rows,) = inline(wider, Graph(graph.inputs, graph.nodes, node.inputs[:1]), _inputs(graph))
    at = Expression(wider, len(graph.inputs), node.line)
    taken = Expression(wider, rows, node.line).take(at, 0).value
    goes = Expression(wider, len(graph.inputs) + 1, node.line).astype(uint64).value
    bounds_of_rows = _bounds(_wider(node.specs[0]), target)
    runs = _in_runs(wider, goes, "order_of_parts", (i.size, 1), bounds_of_rows, node.line)
    whole = wider.graph([taken, runs])
    first, second = whole.outputs
    made = Graph(whole.inputs, whole.nodes, (second,))
    return _merged(graph, k, steps, whole, first, made, target)


def _merged(
    graph: Graph, k: int, steps: list[Step], within: Graph, rows: int, runs: Graph, target: Target
) -> tuple[list[Step], Graph]:
    """Rows, a value of a graph, in runs as those of their keys; and the graph that reads what a node made
    from these. `steps`: what comes before."""
    node = graph.nodes[k]
    spec, kind, line = within.specs[rows].bare, runs.out_specs[0].dtype, node.line
    (bounds,) = (n.kw["bounds"] for n in runs.nodes if "bounds" in n.kw)
    places = Spec(spec.shape[:1], int64)
    builder = Builder([*within.inputs, _on_disk(places, target)])
    (value,) = inline(builder, Graph(within.inputs, within.nodes, (rows,)), _inputs(within))
    made = builder.call("rows_of_parts", value, len(within.inputs), bounds=bounds, line=line)

    keys = Spec(places.shape, kind)
    steps = [
        *steps,
        Step(runs, Read("places", places, bounds)),
        Step(builder.graph([made]), Read("rows", keys, bounds)),
    ]
    between = [*builder.graph([made]).inputs[len(graph.inputs) :]]
    wider = Graph((*graph.inputs, *between), *_shifted(graph, len(between)))
    return steps, _without(wider, k, _on_disk(spec, target), lambda _, v: v)


def _shifted(graph: Graph, more: int) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Nodes and outputs of a graph that is given more operands."""
    first = len(graph.inputs)

    def position(v: int) -> int:
        return v if v < first else v + more

    nodes = [
        Node(n.op, tuple(map(position, n.inputs)), n.params, n.specs, n.line) for n in graph.nodes
    ]
    return tuple(nodes), tuple(map(position, graph.outputs))
