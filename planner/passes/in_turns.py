"""A part of a graph that runs in turns, and what one turn does. It grows from a value and one of its axes:
along the nodes that keep the index, and back to what is only read in blocks.

before                                            after, the part around %3 along its axis 0
%2 = slice(%0; starts=(0,), ...) : float32[n]     %2 = blocks(%0; turns=16, body={
%3 = add(%2, %0) : float32[n]                         ... the same nodes, at windows on %0
return %3                                             })
                                                  return %2

Each reader of a value asks for windows on it, the last one first (`_made`). What is made of files alone is
made where it is wanted, and does not move between workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Dim, Indices, Window
from ostinato.ops.core.layout import Layout, Overlap, Partial, Placement, extents
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.flow.control import CONTROL
from ostinato.ops.planned.collective import COLLECTIVES, MOVING, STORED
from ostinato.planner.layouts.shardings import (
    Sharding,
    extents_of,
    is_rigid,
    labels_of,
    may_split,
    sharding_of,
)
from ostinato.planner.plan import Target, local_bytes

from .memory import leading

TURN_BYTES = 20_000  # what could be moved while one node starts
MOVES = (*MOVING, "narrow")  # what moves: what is made of files alone needs not
_ALONE = (
    *COLLECTIVES,
    *CONTROL,
    "narrow",
    "addend",
    "round_addends",
    "relayout",
    "start",
    "wait",
    "barrier",
    "constant",
    "read",
    *STORED,
)


def shortest(spec: Spec, dim: int) -> int:
    """The smallest extent that any worker has."""
    assert spec.layout is not None
    return extents(spec.layout, spec.shape[dim], dim)[0]


# -- a part of a graph ---------------------------------------------------------------------
@dataclass(slots=True)
class Part:
    """Nodes that run in turns."""

    graph: Graph
    target: Target
    turns: int
    shardings: dict[int, Sharding] = field(default_factory=dict)  # how each node runs
    cut: dict[int, int] = field(default_factory=dict)  # of values made here: the axis that is cut
    after: set[int] = field(default_factory=set)  # values that need the end of the last turn
    rigid: set[int] = field(default_factory=set)  # values of which no blocks may overlap
    moved: dict[int, int] = field(default_factory=dict)  # what need not move: values, as they were

    @property
    def later(self) -> set[int]:
        """Nodes that run after the last turn."""
        producers = self.graph.producers
        return {producers[v] for v in self.after} - self.shardings.keys()

    def results(self, keep: float) -> list[int]:
        """List the results of the iterations: addends, all of a node's together, and what is read
        later or is a result. Larger values than `keep` are computed again where they are read.
        """
        graph, later = self.graph, self.later
        found: list[int] = []
        for k in sorted(self.shardings):
            outs = list(graph.outs(k))
            if not self.after.isdisjoint(outs):
                found.extend(outs)
                continue
            for v in outs:
                read = any(u in later for u in graph.uses[v])
                small = local_bytes(graph.specs[v]) <= keep
                if v in graph.outputs or (read and small):
                    found.append(v)
        return found

    def price(self, keep: float) -> float:
        """Count the bytes that iterations move in addition: operands that are read whole in each,
        addends, the start of each node, and what is computed again, by later nodes or where blocks
        overlap.
        """
        graph = self.graph
        whole = {
            v: local_bytes(graph.specs[v])
            for k, sharding in self.shardings.items()
            for v, need in zip(graph.nodes[k].inputs, sharding.needs, strict=True)
            if v not in self.cut and need.splits[-1] is None
        }
        results = self.results(keep)
        added = sum(3 * local_bytes(graph.specs[v]) for v in results if v not in self.cut)
        each = sum(whole.values()) + added + TURN_BYTES * len(self.shardings)
        later = self.later
        again = sum(
            2 * local_bytes(graph.specs[v])
            for v in self.cut
            if v not in results and any(u in later for u in graph.uses[v])
        )
        return (self.turns - 1) * each + 2 * again + 2 * self.overlap(keep)

    def overlap(self, keep: float) -> int:
        """Bytes that turns make again, since their blocks overlap with others."""
        graph, results = self.graph, self.results(keep)
        total = 0
        made = _made(self, results) if results else None
        for k, shardings in made.nodes.items() if made is not None else ():
            for n, v in enumerate(graph.outs(k)):
                if v in self.cut:
                    spec = graph.specs[v]
                    blocks = sum(local_bytes(spec.at(sharding.gives[n])) for sharding in shardings)
                    if len(shardings) > 1 or shardings[0].gives[n].windows:
                        total += max(self.turns * blocks - local_bytes(spec), 0)
        return total


def grow(
    graph: Graph, target: Target, value: int, dim: int, turns: int, moves: bool = True
) -> Part | None:
    """The part around a value, cut along one of its axes; None if nothing can run so. `moves`: what is
    made of files alone is made where it would come to, and does not move."""
    part = Part(graph, target, turns)
    seed = graph.producers[value]
    label = _out_label(graph, seed, value, dim) if seed >= 0 else None
    start = label is not None and _fit(part, seed, label) is not None
    for k, node in enumerate(graph.nodes):
        if any(v in part.after for v in node.inputs):
            part.after.update(graph.outs(k))
            continue
        if moves and node.op in MOVES:
            (v,) = node.inputs
            at = part.cut.get(v, dim if v == value and not start else -1)
            if at >= 0 and _move(part, k, at):
                continue
        if start and k == seed:
            wanted = label
        else:
            wanted = _label(part, k, None if start else (value, dim))
        sharding = _fit(part, k, wanted) if wanted is not None else None
        if sharding is not None:
            _join(part, k, sharding)
        elif any(v in part.cut for v in node.inputs):
            part.after.update(graph.outs(k))
    if not part.shardings:
        return None
    _pull(part, moves)
    if _beside(part):
        _pull(part, moves)
    return part


def _beside(part: Part) -> bool:
    """Take in what else can be made of blocks of files that are read anyway; whether there was any."""
    graph, found = part.graph, False
    blocks: dict[int, int] = {}  # what is read, and the axis that is cut
    for k, sharding in part.shardings.items():
        for v, need in zip(graph.nodes[k].inputs, sharding.needs, strict=True):
            maker, split = graph.producers[v], need.splits[-1]
            if maker >= 0 and graph.nodes[maker].op == "read" and isinstance(split, int):
                blocks[v] = split
    for k, node in enumerate(graph.nodes) if blocks else ():
        outs = graph.outs(k)
        if k in part.shardings or not part.after.isdisjoint((*outs, *node.inputs)):
            part.after.update(outs if not part.after.isdisjoint(node.inputs) else ())
            continue
        cut = {
            v: d
            for v, d in ((v, part.cut.get(v, blocks.get(v))) for v in node.inputs)
            if d is not None
        }
        if not cut or node.op in _ALONE or not _is_last(part, k):
            continue
        ins = zip(node.inputs, indices_at(graph, k).ins, strict=True)
        labels = {named(dims[cut[v]]) for v, dims in ins if v in cut}
        label = labels.pop() if len(labels) == 1 else None
        fits = _fit(part, k, label) if label is not None else None
        if fits is not None and all(
            cut.get(v, need.splits[-1]) == need.splits[-1]
            for v, need in zip(node.inputs, fits.needs, strict=True)
        ):
            _join(part, k, fits)
            found = True
    return found


def _is_last(part: Part, k: int) -> bool:
    """Whether nothing that runs in turns needs what a node makes."""
    todo, seen = [k], {k}
    while todo:
        for v in part.graph.outs(todo.pop()):
            for u in part.graph.uses[v]:
                if u in part.shardings:
                    return False
                if u not in seen:
                    seen.add(u)
                    todo.append(u)
    return True


def _move(part: Part, k: int, dim: int) -> bool:
    """Take in a node that moves what is made of files alone, if it does."""
    graph, node = part.graph, part.graph.nodes[k]
    (v,), (spec,) = node.inputs, node.specs
    here, there = graph.specs[v].layout, spec.layout
    assert here is not None
    assert there is not None
    if not _is_of_files(graph, v, dim) or there.partial_axes:
        return False
    ends = [w.cut_in_time(part.turns, dim) for w in (here, there)]
    part.shardings[k] = Sharding(("",) * len(ends[0].mesh), (ends[0],), (ends[1],))
    part.cut[graph.starts[k]] = dim
    part.moved[graph.starts[k]] = v
    return True


def _is_of_files(graph: Graph, v: int, dim: int) -> bool:
    """Whether any part of a value along an axis can be made of parts of files, and of what all have."""
    todo, seen = [(v, dim)], {(v, dim)}
    while todo:
        v, dim = todo.pop()
        k = graph.producers[v]
        node = graph.nodes[k] if k >= 0 else None
        if node is None or (node.op in _ALONE and node.op not in ("read", *MOVES)):
            return False
        if node.op == "read":
            continue
        found = [(node.inputs[0], dim)] if node.op in MOVES else []
        if node.op not in MOVES:
            indices = indices_at(graph, k)
            label = _out_label(graph, k, v, dim)
            if label is None or is_rigid(indices, node, label):
                return False
            for u, dims in zip(node.inputs, indices.ins, strict=True):
                lies = graph.specs[u].layout
                at = [
                    d
                    for d, c in enumerate(dims)
                    if label in (c.labels if isinstance(c, Window) else (c,))
                ]
                found += [(u, d) for d in at]
                if not at and (lies is None or not lies.is_whole):
                    return False
        todo += [f for f in found if f not in seen]
        seen.update(found)
    return True


def _join(part: Part, k: int, sharding: Sharding) -> None:
    part.shardings[k] = sharding
    rigid = _is_rigid(part, k, sharding)
    for v, gives in zip(part.graph.outs(k), sharding.gives, strict=True):
        split = gives.splits[-1]
        if isinstance(split, int):
            part.cut[v] = split
            part.rigid.update((v,) if rigid else ())
        elif split is not None:
            part.after.add(v)


def _is_rigid(part: Part, k: int, sharding: Sharding) -> bool:
    """Whether what a node makes in turns cannot be made in blocks that overlap."""
    node, label = part.graph.nodes[k], sharding.labels[-1]
    assert label is not None
    rigid = any(v in part.rigid for v in node.inputs)
    return rigid or is_rigid(indices_at(part.graph, k), node, label)


def indices_at(graph: Graph, k: int) -> Indices:
    node = graph.nodes[k]
    return OPS[node.op].indices(tuple(graph.specs[v] for v in node.inputs), node.specs, node.kw)


def _out_label(graph: Graph, k: int, value: int, dim: int) -> str | None:
    if graph.nodes[k].op in _ALONE:
        return None
    dims = indices_at(graph, k).outs[value - graph.starts[k]]
    return dims[dim] if dim < len(dims) else None


def _label(part: Part, k: int, seed: tuple[int, int] | None) -> str | None:
    """The index along which a node would run in turns, since its operands come so."""
    node = part.graph.nodes[k]
    of_seed = seed is not None and seed[0] in node.inputs
    if node.op in _ALONE or not (of_seed or any(v in part.cut for v in node.inputs)):
        return None
    if OPS[node.op].moves.concatenates and any(_is_product(part, v) for v in node.inputs):
        return None  # of which each turn would make more than its part
    ins = indices_at(part.graph, k).ins
    operands = list(zip(node.inputs, ins, strict=True))
    labels = {named(dims[part.cut[v]]) for v, dims in operands if v in part.cut}
    if not labels and seed is not None:
        found = {named(dims[seed[1]]) for v, dims in operands if v == seed[0]}
        labels = set(sorted(x for x in found if x is not None)[:1])
    return labels.pop() if len(labels) == 1 else None


def _is_product(part: Part, v: int) -> bool:
    """Whether a value is made of products that do not run in turns."""
    todo, seen = [v], set[int]()
    while todo:
        k = -1 if (v := todo.pop()) in part.cut or v in seen else part.graph.producers[v]
        seen.add(v)
        if k >= 0 and (OPS[part.graph.nodes[k].op].product or any(part.graph.nodes[k].subgraphs())):
            return True
        todo += part.graph.nodes[k].inputs if k >= 0 else ()
    return False


def named(dim: Dim) -> str | None:
    """The index of outputs that a dimension carries."""
    return dim.label if isinstance(dim, Window) else dim


def _fit(part: Part, k: int, label: str, short: bool = False) -> Sharding | None:
    """The way to run a node in turns along an index, its parts as they lie; None if there is
    none. `short`: there may be less of it than turns."""
    graph, target = part.graph, part.target
    node = graph.nodes[k]
    if node.op in _ALONE:
        return None
    ins = [graph.specs[v] for v in node.inputs]
    indices = indices_at(graph, k)
    blocks = target.numerics == "any-workers"
    space = _space(indices, ins, node, target)
    if space is None or not may_split(indices, label, node, blocks):
        return None
    reaches = [
        v
        for v, dims in zip(node.inputs, indices.ins, strict=True)
        if any(isinstance(d, Window) and label in d.labels for d in dims)
    ]
    if not part.rigid.isdisjoint(reaches):
        return None
    mesh = (*target.mesh, part.turns)
    extents = extents_of(indices, ins, node.specs)
    seen = {
        c: w
        for dims, spec in zip(indices.outs, node.specs, strict=True)
        for d, w in (spec.layout.windows if spec.layout is not None else ())
        if (c := dims[d]) is not None
    }
    sharding = sharding_of(indices, extents, ins, node, (*space, label), mesh, blocks, seen)
    if sharding is None:
        return None
    cuts = [w.splits[-1] for w in sharding.gives]
    if (
        OPS[node.op].run.carries_state
        and cuts[0] != (axis := node.kw["axis"])
        and axis in sharding.gives[0].splits
    ):
        return None  # a worker would have to hand over in each turn
    whole = [v for v, cut in zip(graph.outs(k), cuts, strict=True) if cut is None]
    if len(whole) == len(cuts) or any(_is_read(graph, v) for v in whole):
        return None
    if any(not holds(s, w.without_last_axis) for w, s in zip(sharding.needs, ins, strict=True)):
        return None
    if any(
        w.without_last_axis is not s.layout for w, s in zip(sharding.gives, node.specs, strict=True)
    ):
        return None
    if any(
        v in part.cut and part.cut[v] != w.splits[-1]
        for v, w in zip(node.inputs, sharding.needs, strict=True)
    ):
        return None
    arrays = zip((*ins, *node.specs), (*sharding.needs, *sharding.gives), strict=True)
    sizes = [shortest(s, d) for s, w in arrays if isinstance(d := w.splits[-1], int) and s.size]
    return sharding if reaches or short or min(sizes, default=0) >= part.turns else None


def holds(spec: Spec, need: Layout) -> bool:
    """Whether each worker has what is needed of a value, or more than that."""
    lies = spec.layout
    assert lies is not None
    return lies is need or (
        not lies.partial_axes and not need.partial_axes and lies.has_copy(need, spec.shape)
    )


def _is_read(graph: Graph, v: int) -> bool:
    return bool(graph.uses[v]) or v in graph.outputs


def _space(
    indices: Indices, ins: Sequence[Spec], node: Node, target: Target
) -> tuple[str | None, ...] | None:
    """The index that each mesh axis cuts now; None if that cannot be said."""
    chosen: list[str | None] = []
    for axis in range(len(target.mesh)):
        labels = labels_of(indices, node, ins, axis)
        if len(labels) > 1 or None in labels:
            return None
        chosen.append(labels.pop() if labels else None)
    return tuple(chosen)


def _pull(part: Part, moves: bool) -> None:
    """Take in what is only read in blocks, from the last to the first."""
    graph = part.graph
    wanted: dict[int, set[int | None]] = {}
    overlaps: set[int] = set()  # values that are read in windows

    def want(k: int) -> None:
        label, outs = part.shardings[k].labels[-1], graph.outs(k)
        moved = {graph.producers[v] for v in part.moved}
        operands = zip(
            graph.nodes[k].inputs, part.shardings[k].needs, indices_at(graph, k).ins, strict=True
        )
        for v, need, dims in operands:
            split = need.splits[-1]
            wanted.setdefault(v, set()).add(split if isinstance(split, int) else None)
            if need.windows or k in moved or (label in dims and not overlaps.isdisjoint(outs)):
                overlaps.add(v)

    for k in reversed(range(len(graph.nodes))):
        outs = graph.outs(k)
        if k in part.shardings:
            want(k)
        cuts = set().union(*(wanted.get(v, set()) for v in outs))
        if k in part.shardings or len(cuts) != 1 or any(v in part.after for v in outs):
            continue
        (dim,) = cuts
        if dim is not None and moves and graph.nodes[k].op in MOVES and _move(part, k, dim):
            want(k)
            continue
        value = next(v for v in outs if v in wanted)
        label = _out_label(graph, k, value, dim) if dim is not None else None
        short = bool(part.moved) and not overlaps.isdisjoint(
            outs
        )  # else workers have no edges of it
        sharding = _fit(part, k, label, short) if label is not None else None
        if sharding is None or any(w.splits[-1] not in (dim, None) for w in sharding.gives):
            continue
        if _is_rigid(part, k, sharding) and not overlaps.isdisjoint(outs):
            continue
        _join(part, k, sharding)
        want(k)


# -- the part as a node --------------------------------------------------------------------
def emit(graph: Graph, part: Part, keep: float, value: int) -> tuple[Graph, int] | None:
    """The graph with the part as one node, and where a value is in it, if it still is; None if the
    part would leave nothing."""
    results = part.results(keep)
    if not results:  # what is smallest, as something has to stay
        left = [local_bytes(graph.specs[v]) for v in part.results(math.inf)]
        results = part.results(min(left, default=0))
    if not results:
        return None
    found = _body(part, results)
    if found is None:
        return None
    taken, body = found
    later = part.later
    builder = Builder(graph.inputs)
    own = list(range(len(graph.inputs))) + [-1] * (len(graph.specs) - len(graph.inputs))

    def put(k: int, values: Sequence[int]) -> None:
        node = graph.nodes[k]
        made = builder.add(
            node.op, [values[v] for v in node.inputs], node.params, node.specs, node.line
        )
        for v, new in zip(graph.outs(k), made, strict=True):
            own[v] = new

    for k in range(
        len(graph.nodes)
    ):  # also those of the part: who needs more of them than it gives
        if k not in later:
            put(k, own)
    operands = []
    for v, spec in zip(taken, body.inputs, strict=True):
        k = graph.producers[v]
        assert spec.layout is not None
        if k >= 0 and graph.nodes[k].op == "read" and spec.layout.splits[-1] is not None:
            operands.append(own[graph.nodes[k].inputs[0]])  # a block of a file is read by itself
        else:
            operands.append(own[v])
    specs = [graph.specs[v] for v in results]
    line = graph.nodes[max(part.shardings)].line
    params = {"body": body, "turns": part.turns}
    made = builder.add("blocks", operands, params, specs, line)
    for v, new in zip(results, made, strict=True):
        own[v] = new
    for k in sorted(later):
        put(k, own)
    both = builder.graph([*(own[v] for v in graph.outputs), own[value]])
    *outputs, at = both.outputs
    read, count = {*outputs}, len(both.nodes)
    while count and read.isdisjoint(both.outs(count - 1)):  # what only the value needs is last
        count -= 1
    return Graph(both.inputs, both.nodes[:count], tuple(outputs)), at


@dataclass(slots=True)
class _Made:
    """What one turn reads from outside and makes: each value once for blocks that overlap much, and apart
    for blocks that have little in common."""

    nodes: dict[int, list[Sharding]]  # each time that a node runs
    inputs: list[tuple[int, Layout]]
    numbers: set[int]


def _made(part: Part, results: Sequence[int]) -> _Made | None:
    """Find all that has to be made for the results, the last node first: each reader asks for
    windows on what it reads. None where workers do not have these.
    """
    graph = part.graph
    asked: dict[int, list[Layout]] = {}

    def ask(v: int, need: Layout) -> bool:
        source = _source(part, v)
        known = asked.setdefault(source, [])
        if need not in known:
            known.append(need)
        whole = any(s is None for s in need.splits[:-1])
        return source == v or not whole or need.without_last_axis.splits == _splits(graph, source)

    for v in results:
        k = graph.producers[v]
        if not ask(v, part.shardings[k].gives[v - graph.starts[k]]):
            return None
    found, numbers = dict[int, list[Sharding]](), set[int]()
    for k in sorted(part.shardings, reverse=True):
        outs = [v for v in graph.outs(k) if v in asked]
        for v in outs:
            for layout in _merged(asked[v], graph.specs[v], part.cut.get(v, -1)):
                sharding = _sharding_to(part, k, v, layout)
                if sharding is None:
                    return None
                if sharding not in found.setdefault(k, []):
                    found[k].append(sharding)
        for sharding in found.get(k, ()):
            for v, need in zip(graph.nodes[k].inputs, sharding.needs, strict=True):
                if graph.producers[v] >= 0 and graph.nodes[graph.producers[v]].op == "constant":
                    numbers.add(v)
                elif not ask(v, need):
                    return None  # all workers would make all of it
    inputs = []
    for v, layouts in asked.items():
        k = graph.producers[v]
        if k not in part.shardings:
            is_file, spec = k >= 0 and graph.nodes[k].op == "read", graph.specs[v]
            layouts = _file_blocks(layouts, spec) if is_file else layouts
            inputs += [(v, need) for need in layouts]
            for need in layouts:
                if not (is_file and need.splits[-1] is not None) and not holds(
                    spec, need.without_last_axis
                ):
                    return None
    return _Made(dict(sorted(found.items())), inputs, numbers)


def _splits(graph: Graph, v: int) -> tuple[Placement, ...]:
    layout = graph.specs[v].layout
    assert layout is not None
    return layout.splits


def _source(part: Part, v: int) -> int:
    """Return the value that this one was before it moved."""
    while v in part.moved:
        v = part.moved[v]
    return v


def _file_blocks(layouts: Sequence[Layout], spec: Spec) -> list[Layout]:
    """Blocks of what a file has, as few as may be."""
    whole = [w for w in layouts if not isinstance(w.splits[-1], int)]
    dims = list(dict.fromkeys(w.splits[-1] for w in layouts if isinstance(w.splits[-1], int)))
    return whole + [
        w for d in dims for w in _merged([w for w in layouts if w.splits[-1] == d], spec, d)
    ]


def _merged(layouts: Sequence[Layout], spec: Spec, dim: int) -> list[Layout]:
    """Merge blocks that overlap or follow each other."""
    if dim < 0 or len(layouts) < 2:
        return list(layouts)
    plain = Overlap(spec.shape[dim], 0, 1, 1)
    groups: dict[tuple[Layout, int, int, int], list[Overlap]] = {}
    windows = [(_windowed(w, dim, plain, spec), w.window(dim) or plain) for w in layouts]
    for first, w in sorted(windows, key=lambda w: (w[1].offset, w[1].reach)):
        same = groups.setdefault((first, w.count, w.stride, w.every), [])
        step = abs(w.stride) * (w.count // first.mesh[-1])  # from one turn to the next
        if same and w.offset <= same[-1].offset + same[-1].reach + step:
            same[-1] = same[-1].around(w)
        else:
            same.append(w)
    return [_windowed(f, dim, w, spec) for (f, *_), same in groups.items() for w in same]


def _windowed(layout: Layout, dim: int, window: Overlap, spec: Spec) -> Layout:
    others = [(d, w) for d, w in layout.windows if d != dim]
    own = [] if window.covers(spec.shape[dim]) else [(dim, window)]
    return Layout(
        layout.mesh,
        layout.splits,
        tuple(sorted([*others, *own], key=lambda w: w[0])),
        layout.blocks,
    )


def _sharding_to(part: Part, k: int, v: int, layout: Layout) -> Sharding | None:
    """The way to run a node in turns that make a value in a layout."""
    sharding, graph = part.shardings[k], part.graph
    node, n = graph.nodes[k], v - graph.starts[k]
    if layout is sharding.gives[n]:
        return sharding
    ins, indices = [graph.specs[u] for u in node.inputs], indices_at(graph, k)
    dims = indices.outs[n]
    labels = tuple([dims[s] if isinstance(s, int) else None for s in layout.splits])
    seen = {c: w for d, w in layout.windows if (c := dims[d]) is not None}
    blocks = part.target.numerics == "any-workers"
    extents = extents_of(indices, ins, node.specs)
    made = sharding_of(indices, extents, ins, node, labels, layout.mesh, blocks, seen)
    return made if made is not None and made.gives[n] is layout else None


def _body(part: Part, results: Sequence[int]) -> tuple[list[int], Graph] | None:
    """Make the body of one iteration, and list what the iterations read from outside."""
    graph, turns = part.graph, part.turns
    made = _made(part, results)
    if made is None:
        return None
    builder = Builder([graph.specs[v].at(need) for v, need in made.inputs])
    own: dict[int, dict[Layout, int]] = {}
    for n, (v, need) in enumerate(made.inputs):
        own.setdefault(v, {})[need] = n
    for v in sorted(made.numbers):
        node = graph.nodes[graph.producers[v]]
        spec = node.specs[0]
        assert spec.layout is not None
        there = spec.layout.cut_in_time(turns, None)
        own[v] = {there: builder.add("constant", (), node.params, [spec.at(there)])[0]}

    def read(v: int, need: Layout, dim: Dim, line: str) -> int:
        v = _source(part, v)
        if v in made.numbers:
            return next(iter(own[v].values()))
        if need in own[v]:
            return own[v][need]
        spec = graph.specs[v]
        around = [w for w in own[v] if w.splits == need.splits and w.has_copy(need, spec.shape)]
        least = min(around, key=lambda w: w.largest(spec.shape))
        if isinstance(dim, Window) and need.windows:
            return own[v][least]
        (own[v][need],) = builder.add("narrow", (own[v][least],), (), (spec.at(need),), line)
        return own[v][need]

    for k, shardings in made.nodes.items():
        node = graph.nodes[k]
        for sharding in shardings:
            operands = zip(node.inputs, sharding.needs, indices_at(graph, k).ins, strict=True)
            values = [
                read(v, need, dims[d] if isinstance(d := need.splits[-1], int) else None, node.line)
                for v, need, dims in operands
            ]
            specs = [s.at(w) for s, w in zip(node.specs, sharding.gives, strict=True)]
            for v, w, value in zip(
                graph.outs(k),
                sharding.gives,
                builder.add(node.op, values, node.params, specs, node.line),
                strict=True,
            ):
                own.setdefault(v, {})[w] = value
    outputs = []
    for v in results:
        k = graph.producers[v]
        line = graph.nodes[k].line
        value = read(v, part.shardings[k].gives[v - graph.starts[k]], None, line)
        spec = builder.specs[value]
        assert spec.layout is not None
        maker = builder.maker(value)
        is_view = maker is not None and maker.op == "narrow"
        if is_view or (not isinstance(spec.layout.splits[-1], Partial) and not leading(spec)):
            outputs.append(
                builder.add("copy", (value,), (), (spec,), line)[0]
            )  # kernels write in order
        else:
            outputs.append(value)
    return [v for v, _ in made.inputs], builder.graph(outputs)
