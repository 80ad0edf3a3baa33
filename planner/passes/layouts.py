"""Which index goes to which mesh axis: the cut in space.

before                                        after
(%0: float32[8,4] @ split 0 of 2, %1: ...)    (%0: float32[8,4] @ split 0 of 2, %1: float32[4,3] @ whole of 2)
%2 = matmul(%0, %1) : float32[8,3]            %2 = matmul(%0, %1) : float32[8,3] @ split 0 of 2
%3 = sum(%2; axes=(0,), ...) : float32[3]     %3 = sum(%2; ...) : float32[3] @ partial sum of 2
return %3                                     %4 = relayout(%3) : float32[3] @ whole of 2
                                              return %4

Node by node, in order: each way to give the node's indices to mesh axes needs its operands in
certain layouts and leaves its results in others; the way that moves the fewest bytes is taken. Of
equal ones, the one that cuts least: what is whole stays whole until a cut operand or a `resplit`
asks for parts. A reduction's result becomes whole (all-reduce), unless a `resplit` takes it
elsewhere or a replica would outgrow the parts it was made from (reduce-scatter)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from ostinato.ops.collective import STORED
from ostinato.ops.core.array import Split, Wish
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import Indices, Reach
from ostinato.ops.core.layout import (
    Layout,
    Mesh,
    Partial,
    Placement,
    Window,
    every_bounds,
)
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec, is_inexact
from ostinato.ops.core.traffic import moved
from ostinato.ops.shape import split_of
from ostinato.planner.machine import NOMINAL
from ostinato.planner.plan import Target, largest_part, local_bytes

from ostinato.errors import LayoutError


def choose_layouts(graph: Graph, target: Target) -> Graph:
    """The pass. It is idempotent only up to `relayout` nodes: a graph that has layouts is not
    planned again.
    """
    specs = [s if s.layout is not None else s.at(Layout.whole(target.mesh)) for s in graph.inputs]
    return _lay_out(graph, specs, target)


def resolve(split: Split, mesh: Mesh, ndim: int, blocks: bool = False) -> Layout:
    """The layout that a user's `split=` means on a mesh."""
    found = split_of(split.on(len(mesh)) if isinstance(split, Wish) else split, ndim)
    given = found if isinstance(found, tuple) else (found,) * len(mesh)
    if len(given) != len(mesh):
        raise LayoutError.because(
            f"split={split}",
            got=f"{len(given)} entries for a mesh of {len(mesh)} axes",
            needed="one entry per mesh axis, or one number for all",
        )
    return Layout(mesh, given, (), blocks)


# -- one graph -----------------------------------------------------------------------------
def _lay_out(
    graph: Graph,
    inputs: Sequence[Spec],
    target: Target,
    wanted: Sequence[Layout | None] | None = None,
) -> Graph:
    """The graph over inputs in these layouts; its outputs as they come, or in the layouts that are
    wanted.
    """
    if target.workers == 1:
        return _alone(graph, inputs, target)
    state = _Planner(Builder(inputs), target, list(range(len(inputs))))
    pinned = _pins(graph, target)
    for k, node in enumerate(graph.nodes):
        state.values.extend(state.node(node, [pinned.get(v) for v in graph.outs(k)]))
    outputs = [state.values[v] for v in graph.outputs]
    if wanted is not None:
        outputs = [
            v if w is None else state.relayout(v, w) for v, w in zip(outputs, wanted, strict=True)
        ]
    return state.builder.graph(outputs)


def _alone(graph: Graph, inputs: Sequence[Spec], target: Target) -> Graph:
    """One worker has everything."""
    whole = Layout.whole(target.mesh)

    def body(g: Graph) -> Graph:
        files = [s.layout is not None and s.layout.stored for s in g.inputs]
        lies = [whole.on_disk if file else whole for file in files]
        return _alone(g, [s.at(w) for s, w in zip(g.inputs, lies, strict=True)], target)

    nodes = tuple(
        [
            Node(
                n.op,
                n.inputs,
                tuple([(k, body(v)) if isinstance(v, Graph) else (k, v) for k, v in n.params]),
                tuple([s.at(whole.on_disk if n.op in STORED else whole) for s in n.specs]),
                n.line,
            )
            for n in graph.nodes
        ]
    )
    return Graph(tuple(inputs), nodes, graph.outputs)


def _pins(graph: Graph, target: Target) -> dict[int, Layout]:
    """Values that nobody reads but `resplit` to one layout: they may as well be made there."""
    found = {}
    outputs = set(graph.outputs)
    for v, users in enumerate(graph.uses):
        nodes = {graph.nodes[k] for k in users}
        if v not in outputs and len(nodes) == 1 and (node := next(iter(nodes))).op == "resplit":
            found[v] = _resplit_layout(node, target)
    return found


def _resplit_layout(node: Node, target: Target) -> Layout:
    kw = node.kw
    mesh = kw["mesh"] or target.mesh
    count = 1
    for n in mesh:
        count *= n
    if count != target.workers:
        raise LayoutError.because(
            f"resplit to mesh {mesh}",
            got=f"{target.workers} workers",
            needed=f"a mesh of {target.workers}",
            line=node.line,
        )
    blocks = target.numerics == "any-workers"
    return resolve(kw["split"], mesh, node.specs[0].ndim, blocks)


# -- one node ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a node: the layouts that its operands need and its results come in."""

    labels: tuple[str | None, ...]  # per mesh axis
    needs: tuple[Layout, ...]
    gives: tuple[Layout, ...]
    fresh: tuple[int, ...] = ()  # axes whose label no operand is cut along yet
    reduces: bool = False


@dataclass(slots=True)
class _Planner:
    builder: Builder
    target: Target
    values: list[int]  # of the old graph's values

    @property
    def blocks(self) -> bool:
        return self.target.numerics == "any-workers"

    def layout(self, value: int) -> Layout:
        found = self.builder.specs[value].layout
        assert found is not None
        return found

    def relayout(self, value: int, layout: Layout) -> int:
        return self.relayout_all((value,), (layout,))[0]

    def relayout_all(
        self, values: Sequence[int], layouts: Sequence[Layout], line: str = ""
    ) -> tuple[int, ...]:
        specs = [self.builder.specs[v] for v in values]
        if all(s.layout is w for s, w in zip(specs, layouts, strict=True)):
            return tuple(values)
        made = [s.at(w) for s, w in zip(specs, layouts, strict=True)]
        return self.builder.add("relayout", values, (), made, line)

    def node(self, node: Node, pins: Sequence[Layout | None]) -> Sequence[int]:
        inputs = [self.values[v] for v in node.inputs]
        match node.op:
            case "read":
                (spec,) = node.specs
                lies = self.layout(inputs[0]).resident
                return self.builder.add("read", inputs, (), (spec.at(lies),), node.line)
            case "slice_file" | "merge_file":
                return self.builder.add(
                    node.op,
                    inputs,
                    node.params,
                    (node.specs[0].at(self.layout(inputs[0])),),
                    node.line,
                )
            case "take_file":
                lies = self.layout(inputs[1])
                places = self.relayout(inputs[0], Layout.whole(lies.mesh))
                return self.builder.add(
                    node.op, (places, inputs[1]), node.params, (node.specs[0].at(lies),), node.line
                )
            case "resplit":
                return (
                    self.relayout_all(inputs, (_resplit_layout(node, self.target),), node.line)[0],
                )
            case "loop":
                return self.loop(node, inputs)
            case "while":
                return self.while_(node, inputs)
            case "branch":
                return self.branch(node, inputs)
        way, price = self.best(node, inputs, pins)
        algorithms = OPS[node.op].algorithms
        if algorithms is not None:
            ins = tuple(self.builder.specs[v] for v in inputs)
            whole = Layout.whole(self.target.mesh)
            parts = sum(local_bytes(s) for s in ins)
            wanted = [
                pin or (whole if s.nbytes <= parts else None)
                for s, pin in zip(node.specs, pins, strict=True)
            ]
            direct = price_of_way(node, ins, way, price)
            made = [
                _lay_out(g, ins, self.target, wanted) for g in algorithms(ins, node.specs, node.kw)
            ]
            best = min(made, key=seconds, default=None)
            if best is not None and seconds(best) < direct:
                return self.include(best, inputs, node.line)
        return self.emit(node, inputs, way, pins)

    def include(self, graph: Graph, inputs: Sequence[int], line: str) -> list[int]:
        values = list(inputs)
        for node in graph.nodes:
            values.extend(
                self.builder.add(
                    node.op, [values[v] for v in node.inputs], node.params, node.specs, line
                )
            )
        return [values[v] for v in graph.outputs]

    def best(
        self, node: Node, inputs: Sequence[int], pins: Sequence[Layout | None]
    ) -> tuple[Way, int]:
        specs = [self.builder.specs[v] for v in inputs]
        best: tuple[tuple[int, int, int], Way] | None = None
        for order, way in enumerate(ways(node, specs, self.target, pins)):
            price = sum(_bytes(s, need) for s, need in zip(specs, way.needs, strict=True))
            for spec, gives, pin in zip(node.specs, way.gives, pins, strict=True):
                end = pin if pin is not None else self.settled(spec, gives, way, specs)
                price += _bytes(spec.at(gives), end) + self._scattering(spec, gives, way, pin)
            rank = (price, sum(c is not None for c in way.labels), order)
            if best is None or rank < best[0]:
                best = rank, way
        assert best is not None, f"{node.op} has no way to run"
        return best[1], best[0][0]

    def _scattering(self, spec: Spec, gives: Layout, way: Way, pin: Layout | None) -> int:
        """What it costs to gather a reduction's result that only this way of running it would split:
        such results are small, and whoever reads them wants them whole."""
        if pin is not None or not way.fresh or not way.reduces or gives.partial_axes:
            return 0
        whole = gives
        for axis in way.fresh:
            if isinstance(gives.splits[axis], int):
                whole = whole.with_split(axis, None)
        return _bytes(spec.at(gives), whole)

    def emit(
        self, node: Node, inputs: Sequence[int], way: Way, pins: Sequence[Layout | None]
    ) -> Sequence[int]:
        operands = [
            self.relayout_all((v,), (n,), node.line)[0]
            for v, n in zip(inputs, way.needs, strict=True)
        ]
        specs = [self.builder.specs[v] for v in inputs]
        made = [s.at(g) for s, g in zip(node.specs, way.gives, strict=True)]
        outs = self.builder.add(node.op, operands, node.params, made, node.line)
        if not any(g.partial_axes for g in way.gives):
            return outs
        ends = [
            pin if pin is not None and len(outs) == 1 else self.settled(s, g, way, specs)
            for s, g, pin in zip(node.specs, way.gives, pins, strict=True)
        ]
        return self.relayout_all(outs, ends, node.line)

    def settled(self, spec: Spec, gives: Layout, way: Way, operands: Sequence[Spec]) -> Layout:
        """Where a result goes that came as addends: whole, or in parts if a replica would outgrow
        what it was made from.
        """
        if not gives.partial_axes:
            return gives
        end = gives
        for axis in gives.partial_axes:
            end = end.with_split(axis, None)
        parts = sum(local_bytes(s.at(need)) for s, need in zip(operands, way.needs, strict=True))
        if len(way.gives) == 1 and local_bytes(spec.at(end)) > parts:
            for axis in gives.partial_axes:
                free = [
                    d
                    for d in range(spec.ndim)
                    if d not in end.splits and spec.shape[d] >= gives.mesh[axis]
                ]
                if free:
                    end = end.with_split(axis, max(free, key=lambda d: (spec.shape[d], -d)))
        return end

    # -- control flow ----------------------------------------------------------------------
    def loop(self, node: Node, inputs: Sequence[int]) -> Sequence[int]:
        kw = node.kw
        nc, ns, _ = kw["counts"]
        consts, carry, xs = list(inputs[:nc]), list(inputs[nc : nc + ns]), list(inputs[nc + ns :])
        xs = [self.relayout(v, self._turnable(v)) for v in xs]
        body: Graph = kw["body"]
        index = body.inputs[0].at(Layout.whole(self.target.mesh))
        specs = self.builder.specs
        items = [_slice_spec(specs[v]) for v in xs]

        def laid(state: Sequence[Spec], wanted: Sequence[Layout | None] | None) -> Graph:
            return _lay_out(
                body, [index, *(specs[v] for v in consts), *state, *items], self.target, wanted
            )

        state = [specs[v] for v in carry]
        natural = laid(state, None)
        ends = [s.layout for s in natural.out_specs[:ns]]
        if ends != [s.layout for s in state]:
            carry = [
                self.relayout(v, end) if end is not None else v
                for v, end in zip(carry, ends, strict=True)
            ]
            state = [specs[v] for v in carry]
            natural = laid(state, [*ends, *(None for _ in natural.outputs[ns:])])
        made = [
            s.at(_carried(o.layout, 0))
            for s, o in zip(node.specs[:ns], natural.out_specs, strict=False)
        ] + [
            s.at(_carried(o.layout, 1))
            for s, o in zip(node.specs[ns:], natural.out_specs[ns:], strict=True)
        ]
        params = {**kw, "body": natural}
        return self.builder.add("loop", [*consts, *carry, *xs], params, made, node.line)

    def _turnable(self, value: int) -> Layout:
        """A layout in which each worker has all turns: what was split along them is split along
        another axis, if one is long enough.
        """
        spec = self.builder.specs[value]
        layout = self.layout(value)
        for axis, split in enumerate(layout.splits):
            if split == 0:
                free = [
                    d
                    for d in range(1, spec.ndim)
                    if d not in layout.splits and spec.shape[d] >= layout.mesh[axis]
                ]
                layout = layout.with_split(
                    axis, max(free, key=lambda d: spec.shape[d]) if free else None
                )
        return layout

    def while_(self, node: Node, inputs: Sequence[int]) -> Sequence[int]:
        kw = node.kw
        nc, _ = kw["counts"]
        consts, carry = list(inputs[:nc]), list(inputs[nc:])
        specs = self.builder.specs
        body: Graph = kw["body"]

        def laid(state: Sequence[Spec], wanted: Sequence[Layout | None] | None) -> Graph:
            return _lay_out(body, [*(specs[v] for v in consts), *state], self.target, wanted)

        state = [specs[v] for v in carry]
        natural = laid(state, None)
        ends = [s.layout for s in natural.out_specs]
        if ends != [s.layout for s in state]:
            carry = [
                self.relayout(v, end) if end is not None else v
                for v, end in zip(carry, ends, strict=True)
            ]
            state = [specs[v] for v in carry]
            natural = laid(state, ends)
        whole = [Layout.whole(self.target.mesh)]
        test = _lay_out(kw["condition"], [*(specs[v] for v in consts), *state], self.target, whole)
        made = [s.at(o.layout) for s, o in zip(node.specs, natural.out_specs, strict=True)]
        params = {**kw, "body": natural, "condition": test}
        return self.builder.add("while", [*consts, *carry], params, made, node.line)

    def branch(self, node: Node, inputs: Sequence[int]) -> Sequence[int]:
        kw = node.kw
        test = self.relayout(inputs[0], Layout.whole(self.target.mesh))
        specs = [self.builder.specs[v] for v in inputs[1:]]
        ends = [s.layout for s in _lay_out(kw["then"], specs, self.target).out_specs]
        sides = {
            side: _lay_out(kw[side], specs, self.target, ends) for side in ("then", "otherwise")
        }
        made = [s.at(end) for s, end in zip(node.specs, ends, strict=True)]
        return self.builder.add("branch", [test, *inputs[1:]], sides, made, node.line)


def _carried(layout: Layout | None, shift: int) -> Layout:
    """The layout of the stack of arrays that have this one each."""
    assert layout is not None
    splits = tuple(s + shift if isinstance(s, int) else s for s in layout.splits)
    return Layout(layout.mesh, splits, (), layout.blocks)


def _slice_spec(spec: Spec) -> Spec:
    assert spec.layout is not None
    return Spec(spec.shape[1:], spec.dtype, _carried(spec.layout, -1))


def _bytes(spec: Spec, end: Layout) -> int:
    assert spec.layout is not None
    return moved(spec.layout, end, spec.shape) * spec.dtype.itemsize


# -- what an algorithm takes -----------------------------------------------------------------
def seconds(graph: Graph) -> float:
    """What a graph with layouts takes on the nominal machine."""
    return sum(_node_seconds(node, [graph.specs[v] for v in node.inputs]) for node in graph.nodes)


def _node_seconds(node: Node, ins: Sequence[Spec]) -> float:
    if node.op == "relayout":
        pairs = [(s, out.layout) for s, out in zip(ins, node.specs, strict=True) if out.layout]
        return _message_seconds(sum(_bytes(s, end) for s, end in pairs), pairs[0][1].workers)
    inner = [seconds(g) for _, g in node.subgraphs()]
    if inner:
        return max(inner) * node.kw.get("trips", max(1, node.kw.get("most", 0) // 2))
    return _kernel_seconds(
        node, [largest_part(s) for s in ins], [largest_part(s) for s in node.specs]
    )


def _message_seconds(moved: int, workers: int) -> float:
    return NOMINAL.message_seconds(moved / workers) if moved else 0.0


def _kernel_seconds(node: Node, ins: Sequence[Spec], outs: Sequence[Spec]) -> float:
    if OPS[node.op].view is not None:
        return 0.0
    flops, touched = OPS[node.op].cost(tuple(ins), tuple(outs), node.kw)
    return NOMINAL.kernel_seconds(flops, touched, OPS[node.op].dense)


def price_of_way(node: Node, ins: Sequence[Spec], way: Way, price: int) -> float:
    """What a node takes that is run in a way, which moves so many bytes."""
    needs = [largest_part(s.at(n)) for s, n in zip(ins, way.needs, strict=True)]
    gives = [largest_part(s.at(g)) for s, g in zip(node.specs, way.gives, strict=True)]
    return _message_seconds(price, way.gives[0].workers) + _kernel_seconds(node, needs, gives)


# -- the ways to run a node ----------------------------------------------------------------
def ways(
    node: Node, operands: Sequence[Spec], target: Target, pins: Sequence[Layout | None] = ()
) -> Iterator[Way]:
    """The ways to give a node's indices to mesh axes; the first gives none away. An axis along
    which nothing is cut yet, and no result has to be, is not given away."""
    used = [
        any(
            s.layout is not None
            and (s.layout.mesh != target.mesh or s.layout.splits[a] is not None)
            for s in operands
        )
        or any(p is not None and (p.mesh != target.mesh or p.splits[a] is not None) for p in pins)
        for a in range(len(target.mesh))
    ]
    indices = OPS[node.op].indices(tuple(operands), node.specs, node.kw)
    extents = _extents(indices, operands, node.specs)
    blocks = target.numerics == "any-workers"
    labels = [c for c in extents if _may_split(indices, c, node, blocks)]
    axes = [[None, *labels] if in_use else [None] for in_use in used]
    for chosen in itertools.product(*axes):
        way = _way(indices, extents, operands, node, chosen, target.mesh, blocks)
        if way is not None:
            yield way


def way_to(node: Node, operands: Sequence[Spec], end: Layout, target: Target) -> Way | None:
    """The way to run a node whose result comes in a layout; None if there is none."""
    if node.op in ("relayout", "resplit", "mark") or end.mesh != target.mesh or end.partial_axes:
        return None
    indices = OPS[node.op].indices(tuple(operands), node.specs, node.kw)
    blocks = target.numerics == "any-workers"
    chosen = tuple(indices.outs[0][s] if isinstance(s, int) else None for s in end.splits)
    if any((c is None) != (s is None) for c, s in zip(chosen, end.splits, strict=True)):
        return None
    if any(c is not None and not _may_split(indices, c, node, blocks) for c in chosen):
        return None
    extents = _extents(indices, operands, node.specs)
    way = _way(indices, extents, operands, node, chosen, target.mesh, blocks)
    return way if way is not None and way.gives == (end,) else None


def _extents(indices: Indices, ins: Sequence[Spec], outs: Sequence[Spec]) -> dict[str, int]:
    found: dict[str, int] = {}
    for dims, spec in zip((*indices.outs, *indices.ins), (*outs, *ins), strict=True):
        for dim, n in zip(dims, spec.shape, strict=True):
            if isinstance(dim, str):
                found.setdefault(dim, n)
    return found


def _may_split(indices: Indices, label: str, node: Node, blocks: bool) -> bool:
    """A label that stands once in each array that has it, and is parallel or has a monoid."""
    for dims in indices.ins:
        if sum(d == label or (isinstance(d, Reach) and d.label == label) for d in dims) > 1:
            return False
    if any(dims.count(label) > 1 for dims in indices.outs):
        return False
    if any(label in dims for dims in indices.outs):
        return True
    name = indices.monoid(label)
    if name is None:
        return False
    return MONOIDS[name].exact or not blocks or not any(is_inexact(s.dtype) for s in node.specs)


def _way(
    indices: Indices,
    extents: dict[str, int],
    operands: Sequence[Spec],
    node: Node,
    chosen: tuple[str | None, ...],
    mesh: Mesh,
    blocks: bool,
) -> Way | None:
    needs = []
    for dims in indices.ins:
        splits: list[Placement] = []
        windows: dict[int, Window] = {}
        for label in chosen:
            place = None
            for d, dim in enumerate(dims):
                if label is not None and dim == label:
                    place = d
                elif label is not None and isinstance(dim, Reach) and dim.label == label:
                    place = d
                    windows[d] = Window(extents[label], dim.offset, dim.stride, dim.reach)
            splits.append(place)
        needs.append((splits, windows))
    made = []
    for k, spec in enumerate(operands):
        splits, windows = needs[k]
        kept = tuple(sorted((d, w) for d, w in windows.items() if not w.covers(spec.shape[d])))
        made.append(Layout(mesh, tuple(splits), kept, blocks))
    gives = []
    for dims in indices.outs:
        placed: list[Placement] = []
        for label in chosen:
            if label is None:
                placed.append(None)
            elif label in dims:
                placed.append(dims.index(label))
            elif any(label in o for o in indices.outs):
                placed.append(None)
            else:
                placed.append(Partial(str(indices.monoid(label))))
        gives.append(Layout(mesh, tuple(placed), (), blocks))
    for label in indices.chunked.intersection(c for c in chosen if c is not None):
        if not _chunks_agree(indices, label, chosen, operands, node.specs, mesh, blocks):
            return None
    for label, bounds in indices.parts:
        if label in chosen and not _parts_agree(
            indices, label, bounds, made, gives, operands, node
        ):
            return None
    reduces = bool(indices.reduce) or OPS[node.op].algorithms is not None
    fresh = tuple(
        a
        for a, label in enumerate(chosen)
        if label is not None
        and all(
            s.layout is None or s.layout.splits[a : a + 1] != need.splits[a : a + 1]
            for s, need in zip(operands, made, strict=True)
            if isinstance(need.splits[a], int)
        )
    )
    return Way(chosen, tuple(made), tuple(gives), fresh, reduces)


def _parts_agree(
    indices: Indices,
    label: str,
    bounds: Sequence[int],
    needs: Sequence[Layout],
    gives: Sequence[Layout],
    operands: Sequence[Spec],
    node: Node,
) -> bool:
    """Whether each worker gets whole parts, and the rows of just these parts."""
    held = [
        (spec.shape[d], every_bounds(layout, spec.shape[d], d))
        for dims, layout, spec in zip(
            (*indices.ins, *indices.outs), (*needs, *gives), (*operands, *node.specs), strict=True
        )
        for d, dim in enumerate(dims)
        if dim == label
    ]
    starts = np.array(bounds)
    rows = [(starts[lo], starts[hi]) if n == len(bounds) - 1 else (lo, hi) for n, (lo, hi) in held]
    return bool(rows) and all(np.array_equal(rows[0], r) for r in rows)


def _chunks_agree(
    indices: Indices,
    label: str,
    chosen: tuple[str | None, ...],
    operands: Sequence[Spec],
    outs: Sequence[Spec],
    mesh: Mesh,
    blocks: bool,
) -> bool:
    """Whether a cut of a folded group falls on the same elements before and after the reshape."""
    x, y = operands[0].shape, outs[0].shape
    n, m = x[indices.ins[0].index(label)], y[indices.outs[0].index(label)]
    layout = Layout(mesh, tuple(0 if c == label else None for c in chosen), (), blocks)
    # compare as fractions of the group: n parts and m parts of the same elements
    (first,), (other,) = layout.local_shape((n,), 0), layout.local_shape((m,), 0)
    if first * m != other * n:
        return False
    pairs = zip(every_bounds(layout, n, 0), every_bounds(layout, m, 0), strict=True)
    return max(n, m) > 0 and all(bool((a * m == b * n).all()) for a, b in pairs)
