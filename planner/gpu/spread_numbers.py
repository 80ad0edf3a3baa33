"""Numbers that are made of a few sums go into the kernels that read them, each of which makes its own.

before                                      after
%2 = divide(%0, %1) : float32[]             %2 = divide(%0, %1) : float32[n]
%3 = multiply(%2, %x) : float32[n]          %3 = multiply(%2, %x) : float32[n]

The step of a conjugate gradient is such a number. By itself it is a launch, which takes longer than all of its
readers' operations. Bits are the same.

Its next direction is a vector that a product with a matrix waits for, and others only what comes behind
that: sums over the rows of the matrix make its elements as they read what it is made of, each row all of them,
as memory is waited for meanwhile; and the first kernel behind makes them once more, and writes them.

before                                      after
%2 = add(%r, %p) : float32[k]               %2 = add(%r, %p) : float32[k]
%3 = multiply(%a, %2) : float32[m,k]        %3 = add(%r, %p) : float32[m,k]
%4 = sum(%3; axes=(1,)) : float32[m]        %4 = multiply(%a, %3) : float32[m,k]
%5 = multiply(%2, %4) : float32[k]          ...

This belongs to this machine: plan files hold the graph without it."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import op_of
from ostinato.ops.core.spec import Spec
from ostinato.planner.plan import Target
from ostinato.planner.prediction import machine_of
from ostinato.planner.rewrite import replace, rewrite_bodies


def spread_numbers(graph: Graph, target: Target) -> Graph:
    """The pass."""
    graph = rewrite_bodies(graph, lambda g: spread_numbers(g, target))
    numbers = {graph.starts[k] for k in range(len(graph.nodes)) if _is_number(graph, k)}
    if not numbers:
        return graph
    builder, values = Builder(graph.inputs), list(range(len(graph.inputs)))
    for k, node in enumerate(graph.nodes):
        ins = [values[v] for v in node.inputs]
        for place, v in enumerate(node.inputs):
            if v in numbers:
                maker, (made,) = graph.nodes[graph.producers[v]], node.specs
                spec = Spec(made.shape, graph.specs[v].dtype, made.layout)
                given = [values[u] for u in maker.inputs]
                (ins[place],) = builder.add(maker.op, given, maker.params, (spec,), maker.line)
        if graph.starts[k] in numbers:
            values.append(-1)
        else:
            values += builder.add(node.op, ins, node.params, node.specs, node.line)
    return builder.graph([values[v] for v in graph.outputs])


def _is_number(graph: Graph, k: int) -> bool:
    """Whether a node makes a number of sums that only elements are made of."""
    node, op = graph.nodes[k], op_of(graph.nodes[k].op)
    v = graph.starts[k]
    simple = bool(op.scalar) and not op.work[1] and bool(node.inputs)
    if not simple or node.specs[0].shape or v in graph.outputs:
        return False
    makers = [graph.producers[u] for u in node.inputs]
    if any(graph.specs[u].shape for u in node.inputs) or any(
        m < 0 or op_of(graph.nodes[m].op).reduce is None for m in makers
    ):
        return False
    users = dict.fromkeys(graph.uses[v])
    return bool(users) and all(_is_of_elements(graph, u) for u in users)


def _is_of_elements(graph: Graph, k: int) -> bool:
    node = graph.nodes[k]
    return bool(op_of(node.op).scalar) and len(node.specs) == 1 and bool(node.specs[0].shape)


def spread_vectors(graph: Graph, target: Target) -> Graph:
    """A part of `fuse`, behind the choice of kernels in stages, whose sums of sums are two launches."""
    depths = _depths(graph)
    found = {k: cone for k in range(len(graph.nodes)) if (cone := _cone(graph, k, depths, target))}

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, known = graph.nodes[k], dict[int, int]()
        for maker in found[k]:
            own = graph.nodes[maker]
            spec = Spec(node.specs[0].shape, own.specs[0].dtype, node.specs[0].layout)
            given = [known.get(v, values[v]) for v in own.inputs]
            made = builder.add(own.op, given, own.params, (spec,), own.line)
            known[graph.starts[maker]] = made[0]
        ins = [known.get(v, values[v]) for v in node.inputs]
        return builder.add(node.op, ins, node.params, node.specs, node.line)

    return replace(graph, found, make)


def _depths(graph: Graph) -> list[int]:
    """Count the kernels that each value waits for, one after the other: all that is no element of others."""
    found = [0] * len(graph.inputs)
    for node in graph.nodes:
        waits = bool(node.inputs) and not (op_of(node.op).scalar or op_of(node.op).is_view)
        found += [max([found[v] for v in node.inputs], default=0) + waits] * len(node.specs)
    return found


def _cone(graph: Graph, k: int, depths: Sequence[int], target: Target) -> list[int]:
    """The nodes that make a vector of what is there before, in order, where sums of rows begin with node `k`,
    which reads it, and where no other kernel has to make it then."""
    node, machine = graph.nodes[k], machine_of(target)
    made, readers = node.specs[0], [graph.nodes[u] for u in graph.uses[graph.starts[k]]]
    sums = all(op_of(n.op).reduce and n.kw.get("axes") == (made.ndim - 1,) for n in readers)
    if not (op_of(node.op).scalar and readers and sums and made.ndim > 1):
        return []
    for v in node.inputs:
        late, waiting, found = depths[v], [v], set[int]()
        if graph.specs[v].shape != made.shape[-1:] or not late or v in graph.outputs:
            continue
        if any(depths[graph.starts[u]] <= late for u in graph.uses[v] if u != k):
            continue
        while waiting:
            w = waiting.pop()
            if depths[w] == late and graph.specs[w].shape:
                found.add(graph.producers[w])
                waiting += graph.nodes[graph.producers[w]].inputs
        ops = [op_of(graph.nodes[j].op) for j in found]
        if not all(op.scalar and not op.work[1] and not op.element.draws for op in ops):
            continue
        # a term is added by eight operations, with what rounding loses
        work = made.size * (8 + sum(op.work[0] for op in ops))
        adding = machine.flops_seconds(work, False, made.dtype.name)
        if adding - machine.moving_seconds(made.nbytes, made.nbytes) < machine.call_seconds:
            return sorted(found)
    return []
