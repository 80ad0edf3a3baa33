"""Loops whose turns are short become one kernel: all turns in machine code, their state in memory.

before                                     after
%2 = loop(%0, %1; body={                   %2 = fused_loop(%0, %1; body={
    %3 = multiply(%1, %2) : float32[8]         %3 = multiply(%1, %2) : float32[8]
    ... }, trips=100) : float32[8]             ... }, trips=100) : float32[8]

These are loops of elementwise operations, of elements and rows that are read and written at places, of
short sums and products, with loops and branches of such inside (ops/cpu/loops/loop_kernel.py). What has
more to do in a turn stays as it is: threads and libraries do that faster than it takes to call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Spec
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.loops.loop_kernel import MAX_OPERATIONS, fits_one_kernel, is_short_program
from ostinato.ops.flow.control import ONE_KERNEL, WHOLE
from ostinato.ops.jit.scalar import differs
from ostinato.planner.layouts.costs import UNTIL
from ostinato.planner.passes.loop_casts import LOOPS
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import is_kernel, map_bodies, replace, with_nodes

from .fuse import CALL, WORTH, turns_of
from .rolls import slice_rolls

MAX_COPIED_BYTES = 1 << 18  # bytes of operands and results that may be copied


def make_loop_kernels(graph: Graph, target: Target, turns: int = 1) -> Graph:
    """The pass; nothing changes where kernels cannot be generated. `turns`: how often all of it is done."""
    if why_not():
        return graph
    graph = with_sources(graph)
    loops = {
        k: map_bodies(node, partial(slice_rolls, target=target))
        for k, node in enumerate(graph.nodes)
        if node.op in ONE_KERNEL
    }
    chosen = {k for k, node in loops.items() if _may_be(graph, node, target, turns)}
    if chosen and turns == 1 and (whole := _whole(slice_rolls(graph, target))) is not None:
        return whole

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = loops[k]
        ins = [values[v] for v in node.inputs]
        return builder.add(ONE_KERNEL[node.op], ins, node.params, node.specs, node.line)

    def inside(node: Node) -> Node:
        inner = partial(make_loop_kernels, target=target, turns=turns * turns_of(node))
        return map_bodies(node, inner)

    others = [n if k in chosen or is_kernel(n) else inside(n) for k, n in enumerate(graph.nodes)]
    return replace(with_nodes(graph, others), chosen, make)


def _whole(graph: Graph) -> Graph | None:
    """The graph as one kernel, if all of it can be, and is short: what stands around a loop costs more
    than its turns then."""
    specs = (*graph.inputs, *graph.out_specs)
    made = {*graph.outputs}
    if sum(s.nbytes for s in specs) > MAX_COPIED_BYTES or len(made) < len(graph.outputs):
        return None
    if len(graph.nodes) < 2 or not all(map(_is_here, graph.specs)):
        return None
    if any(n.op in UNTIL for n in graph.nodes):  # whose turns may be any number
        return None
    # with the bits that other kernels give
    if any(op_of(n.op).parallel.in_blocks for n in graph.nodes):
        return None
    if any(graph.producers[v] < 0 for v in made) or len(graph.nodes) > MAX_OPERATIONS:
        return None
    builder = Builder(graph.inputs)
    ins, params = range(len(graph.inputs)), (("body", graph),)
    node = Node(WHOLE, tuple(ins), params, graph.out_specs, graph.nodes[-1].line)
    if not is_short_program(node, tuple(s.bare for s in specs)):
        return None
    outs = builder.add(WHOLE, ins, params, graph.out_specs, node.line)
    return Graph(builder.inputs, tuple(builder.nodes), tuple(outs))


def _may_be(graph: Graph, node: Node, target: Target, turns: int) -> bool:
    """Whether a loop can be one kernel, and is long enough."""
    inside = list(_all_nodes(node))
    calls = sum(n for n, _ in inside) * turns
    if calls * CALL < WORTH or len(inside) > MAX_OPERATIONS:
        return False
    specs = (*(graph.specs[v] for v in node.inputs), *node.specs)
    if not all(map(_is_here, (*specs, *(s for _, n in inside for s in n.specs)))):
        return False
    if any(_has_other_bits(n, target) for _, n in inside):
        return False
    return fits_one_kernel(node, tuple(s.bare for s in specs))


def _all_nodes(node: Node, times: int = 1) -> Iterator[tuple[int, Node]]:
    """Iterate over the nodes of a node's bodies, each with how often it runs."""
    times *= turns_of(node)
    for _, body in node.subgraphs():
        for inner in body.nodes:
            yield times, inner
            yield from _all_nodes(inner, times)


def _is_here(spec: Spec) -> bool:
    return spec.layout is None or (spec.layout.is_whole and not spec.layout.stored)


def _has_other_bits(node: Node, target: Target) -> bool:
    """Whether a policy wants other bits of it than kernels give: NumPy's, or those of a fixed order."""
    own = OPS[node.op].scalar and differs(node.op, [s.dtype for s in node.specs])
    if target.math == "libm" and own:
        return True
    adds = OPS[node.op].parallel.in_blocks and node.specs[0].dtype.kind == "f"
    return target.numerics == "any-workers" and bool(own or adds)


def with_sources(graph: Graph) -> Graph:
    """The graph whose loops have what is made of nothing, as counts, in their bodies."""
    chosen = {
        k
        for k, node in enumerate(graph.nodes)
        if node.op in ONE_KERNEL and any(map(_is_source(graph), _constants(node)))
    }

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        moved = [n for n, v in enumerate(_constants(node)) if _is_source(graph)(v)]
        kept = [n for n in range(len(node.inputs)) if n not in moved]
        params = dict(node.kw)
        for name, body in node.subgraphs():
            first = LOOPS[node.op]
            inputs = [s for n, s in enumerate(body.inputs) if n - first not in moved]
            inner = Builder(inputs)
            own = iter(range(len(inputs)))
            numbers = list[int]()
            for n in range(len(body.inputs)):
                if n - first in moved:
                    source = graph.nodes[graph.producers[node.inputs[n - first]]]
                    numbers += inner.add(source.op, (), source.params, source.specs, source.line)
                else:
                    numbers.append(next(own))
            for other in body.nodes:
                ins = [numbers[v] for v in other.inputs]
                numbers += inner.add(other.op, ins, other.params, other.specs, other.line)
            outputs = tuple(numbers[v] for v in body.outputs)
            params[name] = Graph(inner.inputs, tuple(inner.nodes), outputs)
        nc, *rest = node.kw["counts"]
        params["counts"] = (nc - len(moved), *rest)
        ins = [values[node.inputs[n]] for n in kept]
        return builder.add(node.op, ins, params, node.specs, node.line)

    return replace(graph, chosen, make)


def _constants(node: Node) -> Sequence[int]:
    return node.inputs[: node.kw["counts"][0]]


def _is_source(graph: Graph) -> Callable[[int], bool]:
    return lambda v: (
        (k := graph.producers[v]) >= 0 and bool(op_of(graph.nodes[k].op).element.source)
    )
