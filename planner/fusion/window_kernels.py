"""Sums of products over windows as what kernels know: their operands surrounded with zeros, the looks at
windows of these, and a sum of products of that.

    conv(x, w)  becomes  einsum(slide(pad(x)), w)        (ops/array/spelled_windows.py)

All follows from the index rule and from what the operation says of its elements (`product`). The
kernel reads pads and looks where they are (ops/jit/elements.py), so nothing of this is in memory. What no
kernel took in is done by the operation's own kernel: nothing of it is spelled. Windows that are reduced
alone, as those of pools, need none of it: kernels read each element where it lies (`turns_of`).

    conv(x, w)  becomes  matmul(w, reshape(permute_dims(slide(pad(x)))))

where many channels are summed for many results: to copy windows costs as much as some twenty products of
each element, and a library then takes a quarter of the time of the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from ostinato.ops.array.spelled_windows import matrices_of, multiply, multiply_whole, spell
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import Device, described
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.index import Indices, Window
from ostinato.ops.core.registry import OPS, Reduce, op_of
from ostinato.ops.core.spec import float32, float64, is_float
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

from .stage_groups import LONG_WINDOW, Nested, is_apart, walks

# Of products that are a library's. On a GPU a kernel takes up to a hundred times as long as a product, and the
# operation's own one is calls for each element of a window.
MIN_EXTENTS = {"columns": 16, "summed": 128, "summed of few columns": 1 << 12}
MAX_COPIED_BYTES = {"cpu": 1 << 28, "gpu": 1 << 32}


def with_windows(
    graph: Graph, target: Target, nested: Callable[[Graph], list[Nested]]
) -> tuple[Graph, list[Nested]]:
    """The graph with those spelled that became parts of kernels, and all kernels in stages."""
    chosen = _chosen(graph, target)
    while chosen:
        whole, ends = _spelled(graph, chosen)
        found = nested(whole)
        inside = {k for group in found for k in group.members}
        done = {k for k, end in ends.items() if whole.producers[end] in inside}
        if done == chosen:
            return whole, found
        chosen = done
    return graph, nested(graph)


def with_products(graph: Graph, target: Target) -> Graph:
    """The graph with those spelled as products of matrices that are faster so: windows are copied then,
    which costs as much as some multiplications of each element, and these are what libraries are for."""
    if target.memory_limit is not None or target.workers > 1:
        return graph
    chosen = {k for k in _chosen(graph, target) if _multiplies(graph, k, MAX_COPIED_BYTES["cpu"])}
    return _spelled(graph, chosen, multiply)[0] if chosen else graph


def with_copies(graph: Graph, target: Target) -> Graph:
    """The graph with copies of what windows are reduced of, where neighbours along its last axis, as those
    of channels, are apart: kernels go along these, and windows read each element again and again."""
    if target.memory_limit is not None:
        return graph
    chosen = {
        k
        for k, node in enumerate(graph.nodes)
        if any(is_apart(graph, v) for v in node.inputs) and walks(graph, k)
    }
    copied: dict[int, int] = {}

    def made(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        for v in node.inputs:
            if v not in copied and is_apart(graph, v):
                (copied[v],) = builder.add("copy", (values[v],), (), (graph.specs[v],), node.line)
        inputs = [copied.get(v, values[v]) for v in node.inputs]
        return builder.add(node.op, inputs, node.params, node.specs, node.line)

    return replace(graph, chosen, made)


def with_gpu_products(graph: Graph, target: Target) -> Graph:
    """Spell those where libraries are faster still: also of halves, into wider dtypes too, and of few columns
    if sums are long. Each is one product."""
    if target.workers > 1:
        return graph
    chosen = dict[int, str]()
    limit = min(MAX_COPIED_BYTES["gpu"], (target.memory_limit or math.inf) / 16)
    for k, node in enumerate(graph.nodes):
        if OPS[node.op].product is not None and _can_spell(graph, k, target, wide=True):
            specs = tuple([graph.specs[v] for v in node.inputs])
            dims = OPS[node.op].indices(specs, node.specs, node.kw).outs[0]
            ones = "".join(
                c for c, n in zip(dims, node.specs[0].shape, strict=True) if c and n == 1
            )
            if _multiplies(graph, k, limit, described(target.device), ones):
                chosen[k] = ones

    def made(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = graph.nodes[k]
        return [multiply_whole(builder, node, [values[v] for v in node.inputs], chosen[k])]

    return replace(graph, chosen, made)


def _multiplies(
    graph: Graph, k: int, limit: float, gpu: Device | None = None, ones: str = ""
) -> bool:
    node, op = graph.nodes[k], OPS[graph.nodes[k].op]
    (out,), specs = node.specs, tuple([graph.specs[v] for v in node.inputs])
    kind = specs[0].dtype
    halves = gpu is not None and gpu.widens(kind, kind, float32)
    if not op.product or not (kind in (float32, float64) or halves):
        return False
    rule = op.indices(specs, node.specs, node.kw)
    if (m := matrices_of(rule, ones)) is None:
        return False
    extents = dict(zip(rule.outs[0], out.shape, strict=True))
    for s, dims in zip(specs, rule.ins, strict=True):
        for n, d in zip(s.shape, dims, strict=True):
            extents |= {d.over: d.size} if isinstance(d, Window) else {d: n}
    columns, summed = (math.prod(extents[c] for c in part) for part in (m.columns, m.summed))
    copied = kind.itemsize * (out.size // columns) * summed
    many = columns >= MIN_EXTENTS["columns"] or (
        gpu is not None and summed >= MIN_EXTENTS["summed of few columns"]
    )
    pays = many and summed >= MIN_EXTENTS["summed"]
    return pays and copied <= limit


def reads_windows(graph: Graph, target: Target) -> bool:
    """Whether anything may be spelled."""
    return bool(_chosen(graph, target))


def _chosen(graph: Graph, target: Target) -> set[int]:
    return {k for k in range(len(graph.nodes)) if _can_spell(graph, k, target)}


def _can_spell(graph: Graph, k: int, target: Target, wide: bool = False) -> bool:
    """Whether it reads windows, each worker has all of what these cross, and no library does it. `wide`: also
    products into a wider dtype, and in memory whatever that takes."""
    node, op = graph.nodes[k], op_of(graph.nodes[k].op)
    widens = wide and op.product is not None and "dtype" in node.kw
    if node.op not in OPS or not op.product:
        return False  # windows that are reduced alone are read by kernels as they are
    if (op.made_by == "machine" and not widens) or len(node.specs) != 1:
        return False
    specs = [graph.specs[v] for v in node.inputs]
    if described(target.device).does(node, specs):
        return False
    if any(s.layout is None or s.layout.windows or not s.size for s in (*specs, *node.specs)):
        return False
    if any(not (s.dtype.kind in "biuf" or is_float(s.dtype)) for s in specs):
        return False
    if len({s.dtype for s in (specs if widens else (*specs, *node.specs))}) > 1:
        return False
    rule = op.indices(tuple(specs), node.specs, node.kw)
    windows = [d for dims in rule.ins for d in dims if isinstance(d, Window)]
    if not any(d.over is not None and d.size > 1 for d in windows) or rule.chunked or rule.parts:
        return False
    if not wide and target.memory_limit and math.prod(d.size for d in windows) > LONG_WINDOW:
        return False  # what has edges is then in memory
    if any(d is None for dims in (*rule.ins, *rule.outs) for d in dims):
        return False
    if any(d.over is None for d in windows) or not _is_plain(rule, op.reduce):
        return False
    cut = {c for d in windows for c in d.labels}
    for s, dims in zip((*specs, *node.specs), (*rule.ins, *rule.outs), strict=True):
        assert s.layout is not None
        own = {d for d, c in enumerate(dims) if isinstance(c, Window) or c in cut}
        if s.layout.partial_axes or not own.isdisjoint(s.layout.splits):
            return False
    return True


def _is_plain(rule: Indices, how: Reduce | None) -> bool:
    """Whether products are summed as they are."""
    if {kind for _, kind in rule.reduce} != {"sum"}:
        return False
    return how is None or (not how.divisor and how.factors is not None)


def _spelled(
    graph: Graph, chosen: Collection[int], as_others: Callable[..., int] = spell
) -> tuple[Graph, dict[int, int]]:
    """The graph with these spelled, and the value of each there."""
    builder, ends = Builder(graph.inputs), dict[int, int]()
    values = list(range(len(graph.inputs)))
    for k, node in enumerate(graph.nodes):
        ins = [values[v] for v in node.inputs]
        if k in chosen:
            ends[k] = as_others(builder, node, ins)
            values.append(ends[k])
        else:
            values += builder.add(node.op, ins, node.params, node.specs, node.line)
    outputs = tuple([values[v] for v in graph.outputs])
    return Graph(builder.inputs, tuple(builder.nodes), outputs), ends
