"""Kernels with the same expression over arrays of different shapes become one over all of them, as the
updates of a network's parameters, or the sums of their squares.

before                                          after
%4 = fused(%0, %1; body={                       %4, %5 = fused_foreach(%0, %1, %2, %3; body={
    %2 = multiply(%0, 0.9) : float32[64]            %4 = multiply(%0, 0.9) : float32[64]
    %3 = add(%2, %1) : float32[64]                  %5 = add(%4, %1) : float32[64]
    return %3 }) : float32[64]                      %6 = multiply(%2, 0.9) : float32[9,64]
%5 = fused(%2, %3; body={                           %7 = add(%6, %3) : float32[9,64]
    %2 = multiply(%0, 0.9) : float32[9,64]          return %5, %7
    %3 = add(%2, %1) : float32[9,64]            }; parts=((0, 1), (2, 3))) : float32[64], float32[9,64]
    return %3 }) : float32[9,64]                return %4, %5
return %4, %5

Of a kernel each connected piece is looked at by itself, as it may have joined others of its shape by chance.
Pieces go together that are equally far from the graph's results, on the longest way: so none leads to
another, however many groups there are, and all is found in one walk. A piece does not wait if what it reads
is made in the graph, read by nobody else and so much that to keep it until then takes longer than a kernel's
start; and not across what workers meet in, if somebody meets behind it. This belongs to this machine: plan
files hold the graph without it. Idempotent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from ostinato.ops.core.exact import exact_items
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Spec
from ostinato.ops.jit.foreach_parts import FOREACH, extracted, kernel_of, overs_of
from ostinato.ops.jit.labels import combines, reads_elsewhere
from ostinato.ops.jit.scalar import numbers
from ostinato.planner.passes.order import meetings, schedule
from ostinato.planner.plan import Target, local_bytes
from ostinato.planner.rewrite import reading, reorder, rewrite_bodies

from .convex import NEGLIGIBLE_BYTES


def fuse_horizontally(graph: Graph, target: Target) -> Graph:
    graph = rewrite_bodies(graph, partial(fuse_horizontally, target=target))
    wholes = _alike(graph, target)
    return _with_wholes(graph, target, wholes) if wholes else graph


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a kernel that nothing but the shape joins to the rest."""

    kernel: int  # its node
    nodes: Sequence[int]  # of its body
    operands: Sequence[int]  # by their places among the kernel's
    results: Sequence[int]


def _alike(graph: Graph, target: Target) -> list[list[Component]]:
    """The pieces that become one kernel."""
    kernels = [k for k, n in enumerate(graph.nodes) if _is_flat(n)]
    if len(kernels) < 2:
        return []
    met = meetings(graph, target.workers)
    levels, between = _levels(graph, met), _meetings_near(graph, met)
    found: dict[Any, list[Component]] = {}
    for k in kernels:
        body: Graph = graph.nodes[k].kw["body"]
        made = [n for n, node in enumerate(body.nodes) if node.op != "constant"]
        for members in components(body, made):
            form = form_of(body, members)
            if form is None or not _may_wait(graph, target, k, form.operands):
                continue
            places = {v: n for n, k in enumerate(form.members) for v in body.outs(k)}
            results = [n for n, v in enumerate(body.outputs) if v in places]
            results.sort(key=lambda n: places[body.outputs[n]])
            read = {body.producers[v] for n in members for v in body.nodes[n].inputs}
            nodes = [n for n in sorted(read) if n >= 0 and body.nodes[n].op == "constant"]
            piece = Component(k, nodes + form.members, form.operands, results)
            where = tuple([places[body.outputs[n]] for n in results])
            found.setdefault((levels[k], between[k], form.key, where), []).append(piece)
    wholes = []
    for pieces in found.values():
        body = graph.nodes[pieces[0].kernel].kw["body"]
        most = _most(len(pieces[0].operands) + len(pieces[0].results), len(numbers(body)))
        parts = [pieces[n : n + most] for n in range(0, len(pieces), most)]
        wholes += [p for p in parts if len({piece.kernel for piece in p}) > 1]
    return wholes


def _is_flat(node: Node) -> bool:
    return node.op.removesuffix("_rows") == "fused"


def _most(arrays: int, constants: int) -> int:
    """How many parts a kernel may have: CUDA gives it 4 KiB of addresses, extents and blocks, numbers and where
    there is room."""
    return (4096 - 8 * (constants + 2)) // (8 * (arrays + 2))


def _levels(graph: Graph, met: Sequence[int]) -> list[int]:
    """How many nodes are behind each, on the longest way, without small ones that are no kernels."""
    found, follows = [0] * len(graph.nodes), dict(pairwise(met))
    counts = [_is_flat(n) or sum(s.nbytes for s in n.specs) > NEGLIGIBLE_BYTES for n in graph.nodes]
    for k in reversed(range(len(graph.nodes))):
        behind = [u for v in graph.outs(k) for u in graph.uses[v]]
        behind += [follows[k]] if k in follows else []
        found[k] = max([counts[u] + found[u] for u in behind], default=0)
    return found


def _meetings_near(graph: Graph, met: Sequence[int]) -> list[tuple[int, int]]:
    """For nodes that lead to a meeting of workers the first such, and the last one that leads to them."""
    count, place = len(graph.nodes), {k: n for n, k in enumerate(met)}
    before, after = [-1] * count, [place.get(k, count) for k in range(count)]
    for k, node in enumerate(graph.nodes):
        makers = [p for v in node.inputs if (p := graph.producers[v]) >= 0]
        before[k] = max([place.get(k, -1), *(before[p] for p in makers)])
    for k in reversed(range(count)):
        readers = [u for v in graph.outs(k) for u in graph.uses[v]]
        after[k] = min([after[k], *(after[u] for u in readers)])
    return [(a, b if a < count else -1) for a, b in zip(after, before, strict=True)]


def _may_wait(graph: Graph, target: Target, k: int, operands: Iterable[int]) -> bool:
    """Whether what only this kernel reads may be kept for the time of a kernel's start."""
    kept = 0
    for n in operands:
        v = graph.nodes[k].inputs[n]
        if graph.producers[v] >= 0 and v not in graph.outputs and {*graph.uses[v]} == {k}:
            kept += local_bytes(graph.specs[v])
    return target.machine.moving_seconds(kept, kept) <= target.machine.call_seconds


# -- expressions -------------------------------------------------------------------------------
def components(graph: Graph, members: Sequence[int]) -> list[list[int]]:
    """The nodes in groups that share no value, but numbers."""
    first: dict[int, int] = {}  # who has a value, of those seen so far
    group = {k: k for k in members}

    def root(k: int) -> int:
        while group[k] != k:
            group[k] = k = group[group[k]]
        return k

    for k in members:
        node = graph.nodes[k]
        for v in (*node.inputs, *graph.outs(k)):
            if graph.specs[v].shape or graph.producers[v] in group:
                group[root(k)] = root(first.setdefault(v, k))
    found: dict[int, list[int]] = {}
    for k in members:
        found.setdefault(root(k), []).append(k)
    return [*found.values()]


class Form(NamedTuple):
    """An expression: what nodes compute, of arrays of one shape and of numbers, without saying which shape."""

    key: tuple[Any, ...]
    members: list[int]  # in an order that only the expression decides
    operands: list[int]


def form_of(graph: Graph, members: Sequence[int]) -> Form | None:
    """None if nodes do anything else."""
    params = dict[int, Any]()
    spaces = set[tuple[Any, Any]]()
    for k in members:
        node, op = graph.nodes[k], op_of(graph.nodes[k].op)
        if len(node.specs) > 1:
            return None
        if op.reduce is not None:
            params[k] = _whole_reduction(graph, node)
        elif op.scalar and not (op.element.draws or op.element.source or reads_elsewhere(node)):
            params[k] = node.key
            spaces.add((node.specs[0].shape, node.specs[0].layout))
        spaces |= {(s.shape, s.layout) for v in node.inputs if (s := graph.specs[v]).shape}
        if params.get(k) is None or len(spaces) > 1 or ((), node.specs[0].layout) in spaces:
            return None
    names, operands, said = dict[int, Any](), list[int](), list[Any]()
    ordered = _sorted(graph, members, params)
    for place, k in enumerate(ordered):
        node = graph.nodes[k]
        for v in node.inputs:
            if v not in names:
                names[v] = _number(graph, v)
                if names[v] is None:
                    names[v] = len(operands), *_kind(graph.specs[v])
                    operands.append(v)
        names[graph.starts[k]] = "made", place
        said.append((node.op, params[k], *_kind(node.specs[0]), *[names[v] for v in node.inputs]))
    return Form(tuple(said), ordered, operands)


def _kind(spec: Spec) -> tuple[str, bool]:
    return spec.dtype.name, bool(spec.shape)


def _number(graph: Graph, v: int) -> Any:
    """A constant's parameters."""
    k = graph.producers[v]
    return graph.nodes[k].key if k >= 0 and graph.nodes[k].op == "constant" else None


def _sorted(graph: Graph, members: Sequence[int], params: Mapping[int, Any]) -> list[int]:
    """The nodes, operands first, beginning with what leads to a result that none of them reads; where there are
    several, by what is computed."""
    said, read = dict[int, int](), set[int]()
    for k in members:
        node = graph.nodes[k]
        ins = [said.get(graph.producers[v], (_number(graph, v), *_kind(graph.specs[v])))
               for v in node.inputs]  # fmt: skip
        said[k] = hash((node.op, params[k], *_kind(node.specs[0]), *ins))
        read |= {graph.producers[v] for v in node.inputs}
    found, waiting = dict[int, None](), [k for k in members if k not in read]
    waiting.sort(key=lambda k: said[k], reverse=True)
    while waiting:
        makers = [m for v in graph.nodes[waiting[-1]].inputs
                  if (m := graph.producers[v]) in said and m not in found]  # fmt: skip
        if makers:
            waiting += makers[::-1]
        else:
            found[waiting.pop()] = None
    return [*found]


def _whole_reduction(graph: Graph, node: Node) -> Any:
    """A reduction's parameters, if it is one of all elements, to a number that is these combined."""
    reduce = OPS[node.op].reduce
    if reduce is None or reduce.divisor or len(node.inputs) > 1 or node.specs[0].shape:
        return None
    if len(combines(graph, node)[1]) < graph.specs[node.inputs[0]].ndim:
        return None
    return exact_items([(name, x) for name, x in node.params if name != "axes"])


# -- kernels -----------------------------------------------------------------------------------
def _with_wholes(graph: Graph, target: Target, wholes: Sequence[Sequence[Component]]) -> Graph:
    """The graph with pieces in the kernels that they make together, and without them elsewhere."""
    first = {min(p.kernel for p in pieces): list[Sequence[Component]]() for pieces in wholes}
    gone: dict[int, set[int]] = {}  # of kernels, the results that pieces make
    for pieces in wholes:
        first[min(p.kernel for p in pieces)].append(pieces)
        for piece in pieces:
            gone.setdefault(piece.kernel, set()).update(piece.results)
    nodes: list[Node] = []
    made = [*range(len(graph.inputs))]  # the values of nodes, by their numbers in the graph
    for k, node in enumerate(graph.nodes):
        for pieces in first.get(k, ()):
            nodes.append(_whole(graph, pieces))
            made += [graph.starts[p.kernel] + r for p in pieces for r in p.results]
        left = [r for r in range(len(node.specs)) if r not in gone.get(k, ())]
        if left:
            nodes.append(node if k not in gone else _rest(node, left))
            made += [graph.starts[k] + r for r in left]
    number = {v: n for n, v in enumerate(made)}
    nodes = [reading(n, [number[v] for v in n.inputs]) for n in nodes]
    raw = Graph(graph.inputs, tuple(nodes), tuple([number[v] for v in graph.outputs]))
    return reorder(raw, schedule(raw, meetings(raw, target.workers)))


def _whole(graph: Graph, pieces: Sequence[Component]) -> Node:
    places: dict[int, int] = {}  # of what they read, among its operands
    bodies, parts, specs = list[Graph](), list[tuple[int, ...]](), list[Spec]()
    for piece in pieces:
        node = graph.nodes[piece.kernel]
        body: Graph = node.kw["body"]
        outputs = [body.outputs[r] for r in piece.results]
        bodies.append(extracted(body, piece.nodes, piece.operands, outputs))
        read = [node.inputs[n] for n in piece.operands]
        parts.append(tuple([places.setdefault(v, len(places)) for v in read]))
        specs += [node.specs[r] for r in piece.results]
    nodes, outputs, count = list[Node](), list[int](), len(places)
    for body, part in zip(bodies, parts, strict=True):
        known = [*part, *range(count, count + len(body.nodes))]  # each makes one
        nodes += [reading(n, [known[v] for v in n.inputs]) for n in body.nodes]
        outputs += [known[v] for v in body.outputs]
        count += len(body.nodes)
    whole = Graph(tuple([graph.specs[v] for v in places]), tuple(nodes), tuple(outputs))
    params = ("body", whole), ("over", overs_of(whole, parts)), ("parts", tuple(parts))
    return Node(FOREACH, tuple(places), params, tuple(specs), graph.nodes[pieces[-1].kernel].line)


def _rest(node: Node, results: Collection[int]) -> Node:
    """A kernel with only these of its results."""
    body: Graph = node.kw["body"]
    wanted = [body.outputs[r] for r in results]
    read, kept = {*wanted}, list[int]()
    for k in reversed(range(len(body.nodes))):
        if not read.isdisjoint(body.outs(k)):
            kept.append(k)
            read.update(body.nodes[k].inputs)
    operands = [n for n in range(len(body.inputs)) if n in read]
    left = extracted(body, kept[::-1], operands, wanted)
    specs = [node.specs[r] for r in results]
    return kernel_of(left, [node.inputs[n] for n in operands], specs, node.line)
