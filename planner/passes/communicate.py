"""Each `relayout` becomes the collective that it is; halos of one value become one.

before                                                   after
%1 = relayout(%0) : ... @ partial sum -> whole           %1 = all_reduce(%0; axes=(0,), monoid='sum')
%1 = relayout(%0) : ... @ split 0 -> whole               %1 = all_gather(%0)
%1 = relayout(%0) : ... @ split 0 -> window 6:0:1:1      %1 = halo(%0) : ... @ window 6:0:1:3
%2 = relayout(%0) : ... @ split 0 -> window 6:2:1:1
%1 = relayout(%0) : ... @ sums on axes 0, 1 -> whole     %1 = reduce_scatter(%0; axes=(1,))
 (where the links of axis 0 are slow, and it is large)   %2 = all_reduce(%1; axes=(0,))
                                                         %3 = all_gather(%2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Window
from ostinato.ops.core.layout import Layout, Partial
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.traffic import legs, moved, scatters
from ostinato.planner.layouts.costs import relayout_seconds
from ostinato.planner.machine import Machine
from ostinato.planner.plan import Target, largest_part
from ostinato.planner.rewrite import Values, rebuild


def communicate(graph: Graph, target: Target) -> Graph:
    """The pass. A graph without relayouts stays as it is."""
    if target.workers == 1:
        return graph
    merged = _merged_halos(graph, target)
    exact = _exactly_read(graph) if merged else set()
    fetched: dict[tuple[int, Layout], tuple[int, tuple[int, ...]]] = {}

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        if node.op == "widen_sum":
            return _scattered_wide(builder, node, inputs[0])
        if node.op != "relayout":
            return None
        ends = [layout_of(s) for s in node.specs]
        if len(inputs) == 1 and (halo := merged.get((node.inputs[0], ends[0]))) is not None:
            made = _fetched(builder, inputs[0], *halo, fetched, node.line, target.machine)
            return _just(builder, made, node) if (node.inputs[0], ends[0]) in exact else made
        return _lower(builder, inputs, ends, node.line, target.machine)

    return rebuild(graph, rule, lambda g: communicate(g, target))


def _fetched(
    b: Builder,
    value: int,
    halo: Halo,
    own: bool,
    fetched: dict[tuple[int, Layout], tuple[int, tuple[int, ...]]],
    line: str,
    machine: Machine,
) -> Sequence[int]:
    """Windows that are fetched once, in the value's own order of axes if somebody reads them so, and are
    then looked at in others."""
    spec, key = b.specs[value].at(halo.here), (halo.root, halo.end)
    if key not in fetched:
        order, end = halo.order, halo.here
        if own:
            for _ in halo.steps:
                maker = b.maker(value)
                assert maker is not None
                (value,) = maker.inputs
            order, end = tuple(range(len(order))), halo.end
        (made,) = _lower(b, (value,), (end,), line, machine)
        fetched[key] = made, order
    made, order = fetched[key]
    axes = tuple([order.index(d) for d in halo.order])
    if axes == tuple(range(len(axes))):
        return (made,)
    return b.add(halo.steps[0], (made,), {"axes": axes}, (spec,), line)


def _just(b: Builder, values: Sequence[int], node: Node) -> Sequence[int]:
    """Narrow what was fetched to what a relayout gives."""
    (v,), (spec,) = values, node.specs
    return (
        values
        if b.specs[v].layout is spec.layout
        else b.add("narrow", (v,), (), (spec,), node.line)
    )


def _exactly_read(graph: Graph) -> set[tuple[int, Layout]]:
    """The windows of values, as relayouts give them, that somebody reads place by place."""
    found = set[tuple[int, Layout]]()
    for k, node in enumerate(graph.nodes):
        if node.op == "relayout" and (end := layout_of(node.specs[0])).windows:
            v = graph.starts[k]
            if any(reads_place_by_place(graph, graph.nodes[u], v, end) for u in graph.uses[v]):
                found.add((node.inputs[0], end))
    return found


def reads_place_by_place(graph: Graph, node: Node, v: int, end: Layout) -> bool:
    """Whether a node reads a value with halos so that more of it would be an operand of another shape."""
    if any(node.subgraphs()) or node.op == "relayout":
        return False
    ins = tuple([graph.specs[u] for u in node.inputs])
    indices = OPS[node.op].indices(ins, node.specs, node.kw)
    return any(
        u == v and not isinstance(dims[d], Window)
        for u, dims in zip(node.inputs, indices.ins, strict=True)
        for d, _ in end.windows
    )


def _scattered_wide(builder: Builder, node: Node, v: int) -> Sequence[int] | None:
    """Let a reduce-scatter give the wider dtype itself, so that its result is not rounded again."""
    maker = builder.maker(v)
    if maker is None or maker.op != "reduce_scatter":
        return None
    params = {**maker.kw, **node.kw}
    return builder.add(maker.op, maker.inputs, params, node.specs, maker.line)


def layout_of(spec: Spec) -> Layout:
    assert spec.layout is not None
    return spec.layout


def _lower(
    b: Builder, values: Sequence[int], ends: Sequence[Layout], line: str, machine: Machine
) -> Sequence[int]:
    """Combine what comes as addends, then move what is left to move, then begin what shall be addends."""
    several = len(values) > 1
    ways = [
        legs(layout_of(b.specs[v]), end, b.specs[v].shape, several)
        for v, end in zip(values, ends, strict=True)
    ]
    for k, each in enumerate(ways[0].sums):
        monoid = layout_of(b.specs[values[0]]).splits[each.axes[0]]
        assert isinstance(monoid, Partial)
        specs = [
            b.specs[v].at(_with(w.sums[k].there, layout_of(b.specs[v]), w.stays))
            for v, w in zip(values, ways, strict=True)
        ]
        if not several and not each.scatters:
            values = [_all_reduce(b, values[0], specs[0], each.axes, monoid.monoid, line, machine)]
            continue
        name = "reduce_scatter" if each.scatters else "all_reduce"
        values = b.add(name, values, {"monoid": monoid.monoid, "axes": each.axes}, specs, line)
    made = []
    for v, way, end in zip(values, ways, ends, strict=True):
        spec = b.specs[v]
        if layout_of(spec).windows and way.move[0] is not layout_of(spec):  # they do not suffice
            spec = spec.at(way.move[0])
            (v,) = b.add("narrow", (v,), (), (spec,), line)
        there = _with(way.move[1], layout_of(spec), way.stays)
        if layout_of(spec) is not there:
            kind = kind_of(spec, there)
            (v,) = b.add(kind, (v,), (), (spec.at(there),), line)
        if way.begins:
            (v,) = b.add("addend", (v,), (), (spec.at(end),), line)
        made.append(v)
    return made


def _all_reduce(
    b: Builder, value: int, end: Spec, axes: Sequence[int], monoid: str, line: str, machine: Machine
) -> int:
    """A sum along several axes at once, or first within the last one, if that is sooner done."""
    spec, mesh = b.specs[value], layout_of(end).mesh
    here, last = layout_of(spec), max(axes)
    others = tuple([a for a in axes if a != last])
    _, nested = machine.all_reduce(mesh, axes, largest_part(spec).nbytes)
    stays = len(here.partial_axes) > len(axes)  # addends, of which parts cannot be gathered
    for d in range(spec.ndim) if nested and not stays else ():
        there = here.with_split(last, d)
        if spec.shape[d] >= mesh[last] and scatters(here, there.without(others), last):
            params = {"monoid": monoid, "axes": (last,)}
            (part,) = b.add("reduce_scatter", (value,), params, (spec.at(there),), line)
            sums = spec.at(there.without(others))
            whole = _all_reduce(b, part, sums, others, monoid, line, machine)
            return b.add("all_gather", (whole,), (), (end,), line)[0]
    params = {"monoid": monoid, "axes": tuple(axes)}
    return b.add("all_reduce", (value,), params, (end,), line)[0]


def _with(layout: Layout, addends: Layout, axes: Sequence[int]) -> Layout:
    for a in axes:
        layout = layout.with_split(a, addends.splits[a])
    return layout


def kind_of(spec: Spec, end: Layout) -> str:
    """Which collective turns an array into a layout; `narrow` if all of it is there already."""
    here, stays = layout_of(spec), layout_of(spec).partial_axes
    if here.without(stays).has_copy(end.without(stays), spec.shape):
        return "narrow"
    if end.windows:
        return "halo"
    gathers = here.mesh == end.mesh and all(
        e in (h, None) for h, e in zip(here.splits, end.splits, strict=True)
    )
    if not gathers:
        return "all_to_all"
    return "broadcast" if here.parts(spec.shape) == 1 and end.is_whole else "all_gather"


@dataclass(frozen=True, slots=True)
class Halo:
    """What a relayout to windows asks for, said of the value whose axes were only put in another order."""

    root: int
    order: tuple[int, ...]  # of each axis here, which one it is there
    steps: Sequence[str]  # transposes between the two
    end: Layout

    @property
    def here(self) -> Layout:
        """The layout as this order of axes has it."""
        return turned(self.end, [self.order.index(d) for d in range(len(self.order))])


def turned(layout: Layout, at: Sequence[int]) -> Layout:
    """The layout of an array whose axes went to these places."""
    splits = tuple([at[s] if isinstance(s, int) else s for s in layout.splits])
    windows = tuple(sorted((at[d], w) for d, w in layout.windows))
    return Layout(layout.mesh, splits, windows, layout.blocks)


def halo_of(graph: Graph, value: int, end: Layout) -> Halo:
    order, steps = tuple(range(graph.specs[value].ndim)), list[str]()
    while (k := graph.producers[value]) >= 0 and OPS[(node := graph.nodes[k]).op].turns_axes:
        order, (value,) = tuple([node.kw["axes"][d] for d in order]), node.inputs
        steps.append(node.op)
    return Halo(value, order, steps, turned(end, order))


def _merged_halos(graph: Graph, target: Target) -> dict[tuple[int, Layout], tuple[Halo, bool]]:
    """For windows on one value that are less or sooner fetched together, in whatever orders its axes are
    read, the window around them; and whether the value is read in its own order, too."""
    groups: dict[Any, dict[tuple[int, Layout], Halo]] = {}
    for node in graph.nodes:
        if (
            node.op == "relayout"
            and len(node.inputs) == 1
            and (end := layout_of(node.specs[0])).windows
        ):
            halo = halo_of(graph, node.inputs[0], end)
            steps = tuple((d, w.count, w.stride, w.every) for d, w in halo.end.windows)
            kind = halo.root, end.mesh, halo.end.splits, end.blocks, steps
            groups.setdefault(kind, {})[node.inputs[0], end] = halo
    found = {}
    for (value, *_), asked in groups.items():
        spec = graph.specs[value]
        here = layout_of(spec)
        ends = list(dict.fromkeys([h.end for h in asked.values()]))
        around = ends[0]
        for end in ends[1:]:
            around = _around(around, end)
        if len(asked) > 1 and not here.partial_axes:
            took = partial(relayout_seconds, target.machine, spec.shape, spec.dtype.itemsize, here)
            sent = partial(moved, here, shape=spec.shape)
            if any(f(around) <= sum(f(h.end) for h in asked.values()) for f in (took, sent)):
                own = any(not h.steps for h in asked.values())
                found.update({k: (replace(h, end=around), own) for k, h in asked.items()})
    return found


def _around(a: Layout, b: Layout) -> Layout:
    windows = [(d, v.around(w)) for (d, v), (_, w) in zip(a.windows, b.windows, strict=True)]
    return Layout(a.mesh, a.splits, tuple(windows), a.blocks)
