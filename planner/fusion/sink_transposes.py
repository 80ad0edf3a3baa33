"""What is made of a transpose element by element or joined, and only multiplied or reduced then, is made as
its operand lies, and turned afterwards.

before                                                after
%1 = permute_dims(%0; axes=(1, 0)) : float32[8,n]     %1 = mean(%0; axes=(0,)) : float32[8]
%2 = mean(%1; axes=(1,)) : float32[8]                 %2 = expand_dims(%1; axes=(1,)) : float32[8,1]
%3 = expand_dims(%2; axes=(1,)) : float32[8,1]        %3 = permute_dims(%2; axes=(1, 0)) : float32[1,8]
%4 = subtract(%1, %3) : float32[8,n]                  %4 = subtract(%0, %3) : float32[n,8]
%5 = permute_dims(%4; axes=(1, 0)) : float32[n,8]     %5 = permute_dims(%4; axes=(1, 0)) : float32[8,n]
%6 = matmul(%4, %5) : float32[8,8]                    %6 = matmul(%5, %4) : float32[8,8]
return %6                                             return %6

Kernels write their results in order, so one that reads a transpose goes through memory crosswise; products
read transposes as they are, and reductions have other axes. The transpose of a product, such as the slopes of
weights that are read as `x @ w.T`, is the product of both transposes; repeated operands are read as they are,
so that what is one is seen to be. Sums of other rows have other bits, so nothing is turned under `any-workers`.
This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from ostinato.ops.array.expressions import permuted, prepend_axes
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import Device, described
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Spec
from ostinato.ops.jit.library_steps import SCALARS
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

MIN_SUNK_ELEMENTS = 4096  # elements of what is turned
Axes = tuple[int, ...]


@dataclass(slots=True)
class _Turned:
    """Values as their operands lie: `turns` says how a value's axes are found there."""

    graph: Graph
    turns: dict[int, Axes] = field(default_factory=dict)
    lies: dict[int, Spec] = field(default_factory=dict)
    chosen: set[int] = field(default_factory=set)  # nodes
    steps: set[int] = field(default_factory=set)  # values that a product's library may make with it


def _read_as_it_is(graph: Graph) -> Graph:
    """Operands that are repeated along axes of others are read without that, as slopes repeat sums."""

    def repeated(v: int) -> int:
        k = graph.producers[v]
        return graph.nodes[k].inputs[0] if k >= 0 and op_of(graph.nodes[k].op).moves.repeats else v

    found = dict[int, list[int]]()
    for k, node in enumerate(graph.nodes):
        if not op_of(node.op).scalar or all(repeated(v) == v for v in node.inputs):
            continue
        read = list(node.inputs)
        for j, v in enumerate(node.inputs):
            rest = [graph.specs[w].shape for w in (*read[:j], *read[j + 1 :])]
            if rest and np.broadcast_shapes(*rest) == node.specs[0].shape:
                read[j] = repeated(v)
        found[k] = read

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        read = [values[v] for v in found[k]]
        return builder.add(node.op, read, node.params, node.specs, node.line)

    return replace(graph, found, make)


def _turn_products(graph: Graph) -> Graph:
    """Products of which kernels read the transpose alone are made so."""
    found = dict[int, Node]()
    for k, node in enumerate(graph.nodes):
        if not op_of(node.op).turns_axes or graph.producers[node.inputs[0]] < 0:
            continue
        (v,), axes, (turned,) = node.inputs, node.kw["axes"], graph.outs(k)
        product = graph.nodes[graph.producers[v]]
        ranks = {graph.specs[w].ndim for w in product.inputs}
        if (
            (kind := op_of(product.op).product) is not None
            and kind.gemm
            and ranks == {len(axes)}
            and axes == _swapped(len(axes))
            and graph.uses[v] == (k,)
            and all(map(_is_plain, [graph.specs[w] for w in product.inputs]))
            and v not in graph.outputs
            and graph.specs[v].size >= MIN_SUNK_ELEMENTS
            and any(op_of(graph.nodes[u].op).scalar for u in graph.uses[turned])
        ):
            found[k] = product

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        product, axes = found[k], graph.nodes[k].kw["axes"]
        a, b = [
            permuted(builder, values[v], axes, _turned_spec(graph.specs[v], axes), product.line)
            for v in product.inputs
        ]
        specs = graph.nodes[k].specs
        return builder.add(product.op, (b, a), product.params, specs, product.line)

    return replace(graph, found, make)


def _swapped(ndim: int) -> Axes:
    return (*range(ndim - 2), ndim - 1, ndim - 2)


def _is_plain(spec: Spec) -> bool:
    """Whether its layout says no more than which axes are cut."""
    layout = spec.layout
    return layout is None or not (layout.windows or layout.blocks or layout.stored)


def _turned_spec(spec: Spec, axes: Axes) -> Spec:
    layout = spec.layout
    if layout is not None:
        cuts = [axes.index(s) if isinstance(s, int) else s for s in layout.splits]
        layout = Layout(layout.mesh, tuple(cuts))
    return Spec(tuple([spec.shape[a] for a in axes]), spec.dtype, layout)


def sink_transposes(graph: Graph, target: Target) -> Graph:
    if target.numerics == "any-workers":
        return graph
    if target.memory_limit is None:  # what is read as it is may be made later, and wait
        graph = _turn_products(_read_as_it_is(graph))
    turns = any(OPS[n.op].turns_axes for n in graph.nodes)
    found = _found(graph, described(target.device)) if turns else _Turned(graph)
    made: dict[int, int] = {}  # as they lie, of the new graph

    def lying(values: Sequence[int], v: int) -> int:
        k = graph.producers[v]
        return made[v] if v in made else values[graph.nodes[k].inputs[0]]

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, v = graph.nodes[k], graph.starts[k]
        if OPS[node.op].turns_axes:
            (u,) = node.inputs
            axes = tuple([found.turns[u][a] for a in node.kw["axes"]])
            if axes == tuple(range(len(axes))):
                return (made[u],)
            return (permuted(builder, made[u], axes, node.specs[0], node.line),)
        first = next(u for u in node.inputs if u in found.turns)
        turn = found.turns[first]
        if v not in found.turns:  # a reduction
            axes = tuple(sorted(turn[a] for a in node.kw["axes"]))
            source = (lying(values, first),)
            return builder.add(node.op, source, {**node.kw, "axes": axes}, node.specs, node.line)
        ins = [
            lying(values, u) if u in found.turns else _back(builder, values[u], turn)
            for u in node.inputs
        ]
        params = {**node.kw}
        if OPS[node.op].moves.concatenates:
            params["axis"] = turn[params["axis"]]
        (made[v],) = builder.add(node.op, ins, params, (found.lies[v],), node.line)
        return (permuted(builder, made[v], turn, node.specs[0], node.line),)

    return replace(graph, found.chosen, make, lambda g: sink_transposes(g, target))


def _back(builder: Builder, value: int, turn: Axes) -> int:
    """A value that is repeated, or a number, as what it meets lies."""
    spec, ndim = builder.specs[value], len(turn)
    if not spec.shape:
        return value
    if spec.ndim < ndim:
        value = prepend_axes(builder, value, ndim - spec.ndim)
    spec, axes = builder.specs[value], np.argsort(turn).tolist()
    turned = Spec(tuple([spec.shape[a] for a in axes]), spec.dtype, spec.layout)
    return permuted(builder, value, axes, turned)


# -- what is turned --------------------------------------------------------------------------
def _found(graph: Graph, device: Device) -> _Turned:
    """From the first node to the last what could be, then back what is welcome so; until all is."""
    unwelcome: set[int] = set()
    while True:
        found = _possible(graph, device, unwelcome)
        wrong = {
            k
            for k in found.chosen
            if (v := graph.starts[k]) in found.turns and not _is_welcome(found, v)
        }
        if not wrong:
            return found
        unwelcome |= wrong


def _possible(graph: Graph, device: Device, unwelcome: set[int]) -> _Turned:
    found = _Turned(graph)
    made = set[int]()  # values that are made as they lie
    for k, node in enumerate(graph.nodes):
        v = graph.starts[k]
        if OPS[node.op].turns_axes:
            (u,) = node.inputs
            if u in made:
                found.chosen.add(k)
            elif graph.specs[u].size >= MIN_SUNK_ELEMENTS:
                found.turns[v], found.lies[v] = node.kw["axes"], graph.specs[u]
                if _takes_steps(graph, u, device):
                    found.steps.add(v)
        elif k in unwelcome:
            continue
        elif (spec := _lying(found, node)) is not None:
            turned = [u for u in node.inputs if u in found.turns]
            found.turns[v], found.lies[v] = found.turns[turned[0]], spec
            if found.steps.issuperset(turned) and OPS[node.op].scalar in SCALARS:
                found.steps.add(v)
            found.chosen.add(k)
            made.add(v)
        elif _is_other_reduction(found, node):
            found.chosen.add(k)
    return found


def _lying(found: _Turned, node: Node) -> Spec | None:
    """Return the spec of an elementwise operation or a join that is made as its operands lie, if all
    large ones lie alike."""
    op, specs = OPS[node.op], [found.graph.specs[u] for u in node.inputs]
    turned, joins = [u for u in node.inputs if u in found.turns], op.moves.concatenates
    if not (turned and (joins or (op.scalar and op.aligns)) and len(node.specs) == 1):
        return None
    (out,), (first, *_) = node.specs, turned
    lies = found.lies[first]
    for u, spec in zip(node.inputs, specs, strict=True):
        if u in found.turns:
            alike = found.turns[u] == found.turns[first] and found.lies[u].layout is lies.layout
            if not alike or not (joins or spec.shape == out.shape) or spec.layout is not out.layout:
                return None
        elif joins or spec.size == out.size or spec.ndim > out.ndim or not _is_everywhere(spec):
            return None
    shape = [out.shape[a] for a in np.argsort(found.turns[first])]
    return Spec(tuple(shape), out.dtype, lies.layout)


def _is_everywhere(spec: Spec) -> bool:
    layout = spec.layout
    return layout is None or not (layout.windows or any(s is not None for s in layout.splits))


def _is_other_reduction(found: _Turned, node: Node) -> bool:
    """Whether a reduction of what is turned is one along other axes, whose results lie the same."""
    op = op_of(node.op)
    if op.reduce is None or "axes" not in op.takes or node.inputs[0] not in found.turns:
        return False
    turn = found.turns[node.inputs[0]]
    rest = [a for d, a in enumerate(turn) if d not in node.kw["axes"]]
    return bool(node.kw["axes"]) and rest == sorted(rest)


def _takes_steps(graph: Graph, v: int, device: Device) -> bool:
    """Whether a value is a product, or made of one element by element, of a library that may do that."""
    size = graph.specs[v].size
    while (k := graph.producers[v]) >= 0:
        op = OPS[graph.nodes[k].op]
        if not op.moves.keeps_order and op.scalar not in SCALARS:
            break
        equal = [u for u in graph.nodes[k].inputs if graph.specs[u].size == size]
        if not equal:  # made of smaller ones, such as a row and a column
            return False
        v = equal[-1]
    native = device.natives.get(graph.nodes[k].op) if k >= 0 else None
    if native is None:
        return False
    return native.behind is not None or (
        native.placed is not None and OPS[graph.nodes[k].op].product is not None
    )


def _reads_elements(node: Node) -> bool:
    """Whether what reads a turned value does it crosswise, and no copy."""
    op = op_of(node.op)
    return bool(op.scalar or op.reduce or op.product)


def _is_welcome(found: _Turned, v: int) -> bool:
    """Whether those who read a value as well read it turned, or it is better turned when all is done."""
    graph, (*batches, a, b) = found.graph, found.turns[v]
    if v in found.steps and all(
        k in found.chosen or not _reads_elements(graph.nodes[k]) for k in graph.uses[v]
    ):
        return True
    matrices = batches == [*range(len(batches))]
    for k in graph.uses[v]:
        product = OPS[graph.nodes[k].op].product
        multiplies = product is not None and product.gemm and matrices and a > b
        if not multiplies and k not in found.chosen:
            return False
    return bool(graph.uses[v]) and v not in graph.outputs
