"""What any schedule of stages looks at: where neighbours lie, what is read whole, and which values are better
made once and kept than made again."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Window
from ostinato.ops.core.registry import OPS, Reduce

from .labels import reads_elsewhere, turns_of
from .moves import is_join
from .random_bits import numbers_in
from .stage_values import Stages

# terms that one thread combines, and sooner again than it keeps what they make
MAX_THREAD_TERMS = 8
MAX_FIXED_EXTENT = 64  # an index of at most so many turns is written for their number


def step(stages: Stages, label: int) -> int | None:
    """The bytes between neighbours along a label, in the largest array that has it."""
    body = stages.body
    found: dict[int, int] = {}
    for v, lies in zip((*range(stages.operands), *body.outputs), stages.strides, strict=True):
        if label in lies:
            size = math.prod(stages.extents[x] for x in lies) * body.specs[v].dtype.itemsize
            found[size] = min(found.get(size, 1 << 62), abs(lies[label]))
    return found[max(found)] if found else _step_elsewhere(stages, label)


def _step_elsewhere(stages: Stages, label: int) -> int | None:
    """Find it through windows, where no array has the label itself."""
    for k, node in enumerate(stages.body.nodes):
        v = stages.body.starts[k]
        specs = tuple([stages.body.specs[u] for u in node.inputs])
        moves = reads_elsewhere(node) or turns_of(node, specs) is not None
        if not moves or label not in stages.dims[v]:
            continue
        rule = OPS[node.op].indices(specs, node.specs, node.kw)
        own = rule.outs[0][stages.dims[v].index(label)]
        for u, dims in zip(node.inputs, rule.ins, strict=True):
            for d, dim in zip(stages.dims[u], dims, strict=True):
                if isinstance(dim, Window) and own in dim.labels and d is not None:
                    each = dim.stride if own == dim.label else dim.dilation
                    if (found := step(stages, d)) is not None:
                        return abs(each) * found
    return None


def is_near(stages: Stages, label: int) -> bool:
    """Whether neighbours along a label are neighbours in the largest array that has it; what windows make
    lies nowhere else than where kernels put it."""
    if not any(label in lies for lies in stages.strides):
        return step(stages, label) is not None
    sizes = {s.dtype.itemsize for s in stages.body.specs}
    return step(stages, label) in sizes


def is_apart(stages: Stages, v: int, lies: Mapping[int, int], label: int) -> bool:
    """Whether the neighbours along a label are no neighbours in memory."""
    return lies.get(label, 0) not in (0, stages.body.specs[v].dtype.itemsize)


def is_swept(body: Graph, v: int) -> bool:
    """Whether all of a value is read, and not only what is picked from it."""
    if v in numbers_in(body):
        return False
    for k in body.uses[v]:
        node = body.nodes[k]
        if OPS[node.op].rearranges:
            if is_swept(body, body.starts[k]):
                return True
        elif OPS[node.op].moves.places != "read" or v in node.inputs[1:]:
            return True
    return False


# -- what is made once -----------------------------------------------------------------------
def kept(stages: Stages, at_once: Collection[int], short: Collection[int] = ()) -> set[int]:
    """The values that are made once and kept: what is reduced, and what is dear and read again and again,
    beside along labels of which many elements are made `at_once`. Reductions that are `short` are made
    where they are read, if that is little work."""
    body = stages.body
    # whose loops they are, and what these run over
    readers: list[set[tuple[int, frozenset[int]]]] = [set() for _ in body.specs]
    for v in body.outputs:
        readers[v].add((~v, frozenset(stages.labels(v))))
    found: set[int] = set()
    for k in reversed(range(len(body.nodes))):
        node, first = body.nodes[k], body.starts[k]
        op = OPS[node.op]
        if op.reduce:
            loops = {(first, stages.iterates(k))}
            if first in short and _is_as_short_again(stages, node, first, readers[first], at_once):
                loops = {(by, labels | stages.iterates(k)) for by, labels in readers[first]}
            else:
                found |= {v for v in body.outs(k) if not stages.gathers(v)}
        elif first in stages.running:
            found.add(first)
            loops = {(first, stages.iterates(k))}
        elif op.moves.places == "read":  # of what it picks from, the elements are made once more
            found.add(first)
            readers[node.inputs[1]].add((first, stages.iterates(k)))
            continue
        elif (
            op.computes
            and first not in stages.behind
            and _again(stages, first, readers[first], at_once) > 1
            and not is_cheap(body, first)
        ):
            found.add(first)
            loops = {(first, stages.iterates(k))}
        else:
            loops = readers[first]
        for v in node.inputs:
            readers[v] |= loops
    return found


def _again(
    stages: Stages,
    v: int,
    readers: Collection[tuple[int, frozenset[int]]],
    at_once: Collection[int],
) -> int:
    """How often an element would be made where it is read."""
    own = {*stages.labels(v), *at_once}
    return sum(math.prod(stages.extents[x] for x in labels - own) for _, labels in readers)


def _is_as_short_again(
    stages: Stages,
    node: Node,
    v: int,
    readers: Collection[tuple[int, frozenset[int]]],
    at_once: Collection[int],
) -> bool:
    times = _again(stages, v, readers, at_once)
    terms = math.prod(stages.extents[x] for x in stages.reductions[v].over)
    cheap = all(is_cheap(stages.body, u) for u in node.inputs)
    return times <= 1 or (cheap and times * terms <= MAX_THREAD_TERMS)


def is_cheap(body: Graph, v: int, depth: int = 2) -> bool:
    """Whether a value is as quickly made again as it is read."""
    k = body.producers[v]
    if k < 0:
        return True
    node, op = body.nodes[k], OPS[body.nodes[k].op]
    if op.element.source or op.reduce:
        return True
    if op.rearranges:
        return is_cheap(body, node.inputs[0], depth)
    if reads_elsewhere(node) and (is_join(node) or op.moves.selects == "slices"):
        return all(is_cheap(body, u, depth) for u in node.inputs)
    return op.is_cheap and depth > 0 and all(is_cheap(body, u, depth - 1) for u in node.inputs)


# -- sums of what each row belongs to --------------------------------------------------------
def chosen(stages: Stages, v: int, known: Collection[int]) -> tuple[int, int] | None:
    """Find the label of a one-hot value, and the position that it is made of, which is an operand
    or `known`."""
    body = stages.body
    v = stages.source_of(v, converted=True)
    k = body.producers[v]
    if k < 0 or body.nodes[k].op != "equal":
        return None
    for a, b in (body.nodes[k].inputs, body.nodes[k].inputs[::-1]):
        position, line = stages.source_of(a), stages.source_of(b)
        maker = body.producers[line]
        if maker < 0 or OPS[body.nodes[maker].op].element.source != "index":
            continue
        label = stages.dims[line][body.nodes[maker].kw["axis"]]
        whole = body.specs[position].dtype.kind in "iu"
        there = position in known or position < stages.operands
        if label is not None and label not in stages.labels(position) and whole and there:
            return label, position
    return None


def grouped(
    stages: Stages, first: int, known: Collection[int], few: int
) -> tuple[int, int, int] | None:
    """Analyse a sum of rows by groups: the label of the groups, more than a few; each row's group;
    and what is summed; -1 for ones."""
    r, dtype = stages.reductions[first], stages.body.specs[first].dtype
    plain = OPS[r.node.op].reduce in (Reduce(), Reduce("{0} * {1}"))
    if r.kind != "sum" or not plain or not r.over <= {*stages.rows} or not r.over:
        return None
    ins = r.node.inputs
    pairs = [(ins[0], -1)] if len(ins) == 1 else [(ins[0], ins[1]), (ins[1], ins[0])]
    for hot, other in pairs:
        found = chosen(stages, hot, known)
        if found is None or stages.extents[found[0]] <= few:
            continue
        label, position = found
        rest = {*stages.labels(first)} - {label, *stages.rows}
        if other < 0:
            return (label, position, -1) if not rest else None
        u = stages.source_of(other)
        own = {*stages.labels(u)} - {*stages.rows}
        if u < stages.operands and own == rest and stages.body.specs[u].dtype == dtype:
            return label, position, u
    return None
