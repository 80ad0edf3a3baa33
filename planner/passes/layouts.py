"""Which index goes to which mesh axis: the cut in space.

before                                        after
(%0: float32[8,4] @ split 0 of 2, %1: ...)    (%0: float32[8,4] @ split 0 of 2, %1: float32[4,3] @ whole of 2)
%2 = matmul(%0, %1) : float32[8,3]            %2 = matmul(%0, %1) : float32[8,3] @ split 0 of 2
%3 = sum(%2; axes=(0,), ...) : float32[3]     %3 = sum(%2; ...) : float32[3] @ partial sum of 2
return %3                                     %4 = relayout(%3) : float32[3] @ whole of 2
                                              return %4

Each node has several ways to give its indices to mesh axes (`layouts/shardings.py`); each takes time, and
so does bringing its operands to where it needs them (`layouts/costs.py`). The choice for all nodes that
takes the least time is searched (`layouts/search.py`): nodes are variables, operands tie two of them
together. Bodies of loops are part of the same search, with what they take times the turns; the state
of a loop is a variable of its own, so what is needed in another layout is brought there before the loop
if that is cheaper. What an iteration makes and only the next one reads may be carried as it is made,
as addends or in parts; then the next one begins with the collective, and waits where it reads. Of equal
ones, the choice that cuts least is taken.

before                                               after
(%0: ..., %2: float32[9] @ whole of 2)               (%0: ..., %2: float32[9] @ partial sum of 2)
%3 = multiply(%2, %1) : float32[9]                   %3 = relayout(%2) : float32[9] @ whole of 2
%4 = sum(%0; ...) : float32[9] @ partial sum of 2    %4 = multiply(%3, %1) : float32[9]
%5 = relayout(%4) : float32[9] @ whole of 2          %5 = sum(%0; ...) : float32[9] @ partial sum of 2
return %3, %5                                        return %4, %5

All that is added up, as if nothing ran beside anything. So it is searched again with a share of what
relayouts take, as if kernels hid the rest, and where that is another choice, both are run on the model
of the machine, with their collectives beside their kernels: the one that takes less is taken.

Results go where they are cheapest for this plan and the next: one that looks like an operand may come
back as it, so bringing it to the operand's layout counts; others count as whole along mesh axes along
which nobody asked for parts, and so do sums that are no larger than what they were made from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from ostinato.ops.array.shape import split_of
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, Mesh, Shape
from ostinato.ops.core.operand import FREE, Split, Wish
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Spec
from ostinato.ops.planned.collective import STORED
from ostinato.planner.layouts.costs import kernel_seconds, relayout_seconds, repeats
from ostinato.planner.layouts.options import (
    ADDING,
    CUT,
    ONE,
    SEVERAL,
    Addends,
    Options,
    candidates,
    cuts,
    options,
    summed,
)
from ostinato.planner.layouts.search import Answer, Problem, Table, solve
from ostinato.planner.layouts.shardings import SUM, added
from ostinato.planner.machine import Machine
from ostinato.planner.plan import Target, largest_part, local_bytes
from ostinato.planner.policy import Precision, policy_of
from ostinato.planner.rewrite import inline, squared
from ostinato.planner.simulation import unmade_seconds

from ostinato.errors import LayoutError

from .blocking import roughly
from .buckets import fill_buckets
from .communicate import communicate
from .narrow_sums import sent_narrow
from .overlap import overlap

LATER = 1.001  # what the next plan would have to move is better moved now
TOO_LARGE = 1e3  # seconds for a message that exceeds the memory
HIDDEN = 0.3  # of what relayouts take, where most of it is hidden behind kernels
SOONER = 0.99  # of the time: what is taken for that, though relayouts and kernels add up to more
MUCH_SOONER = 0.95  # the same for where operands lie, which others read, too
NEARLY = 1.02  # of what the best choice costs: others are weighed as programs
WEIGHED = 500  # nodes of a graph whose choices are; of larger ones that takes too long
NEVER = 1e6  # seconds for what is not to be chosen
MOVE = 1e-13  # seconds by which leaving a value where it is is preferred, of two that cost the same


def choose_layouts(graph: Graph, target: Target, told: dict[str, float] | None = None) -> Graph:
    """The pass. It is idempotent only up to `relayout` nodes: a graph that has layouts is not
    planned again. `told` is told the answer's gap."""
    inputs = given(graph, target)
    best = lay_out(graph, inputs, target, told=told)
    if target.workers == 1 or not graph.nodes:
        return best
    ends, gap = [s.layout for s in best.out_specs], dict[str, float]()
    other = lay_out(graph, inputs, target, ends, gap, HIDDEN)
    if other == best:
        return best
    as_summed, as_hidden = sent(best, target), sent(other, target)
    seconds = [unmade_seconds(g, target.machine, target.mesh) for g in (as_summed, as_hidden)]
    if seconds[1] > SOONER * seconds[0]:
        return best
    limit = target.memory_limit
    if limit is not None:  # what is hidden needs room meanwhile
        peak = roughly(as_hidden, target)
        if peak > limit and peak > roughly(as_summed, target):
            return best
    if told is not None:
        told.update(gap)
    return other


def overlapped_seconds(graph: Graph, target: Target) -> float:
    """Estimate the seconds of a graph with layouts, whose collectives run beside its kernels."""
    return unmade_seconds(sent(graph, target), target.machine, target.mesh)


def sent(graph: Graph, target: Target) -> Graph:
    return overlap(fill_buckets(communicate(graph, target), target), target)


def given(graph: Graph, target: Target) -> list[Spec]:
    """A graph's operands; those that have no layout are whole."""
    whole = Layout.whole(target.mesh)
    return [s if s.layout is not None else s.at(whole) for s in graph.inputs]


def lay_out(
    graph: Graph,
    inputs: Sequence[Spec],
    target: Target,
    wanted: Sequence[Layout | None] | None = None,
    told: dict[str, float] | None = None,
    share: float = 1.0,
) -> Graph:
    """The graph over inputs in these layouts; its outputs where they are cheapest, or in the layouts
    that are wanted. Of what relayouts take, a share counts."""
    if target.workers == 1:
        return _alone(graph, inputs, target)
    search = _Search(target, target.machine, share)
    laid = search.graph(graph, [_fixed(s) for s in inputs], 1, True)
    ends = search.ends(laid, wanted or [None] * len(graph.outputs))
    answer = solve(search.problem)
    if told is not None:
        told["gap"] = answer.gap
    return _emitted(laid, ends, inputs, target, answer.values)


def _emitted(
    laid: _Laid, ends: Sequence[_Ref], inputs: Sequence[Spec], target: Target, values: Sequence[int]
) -> Graph:
    emit, builder = _Emit(target, values), Builder(inputs)
    outs = emit.graph(builder, laid, range(len(inputs)))
    pairs = zip(outs, ends, strict=True)
    return builder.graph([emit.brought(builder, v, emit.layout(ref)) for v, ref in pairs])


def twins(graph: Graph) -> dict[int, int]:
    """Outputs that may be the state of the next call: each with the operand that looks like it, in their
    order."""
    free = {
        v: s for v, s in enumerate(graph.inputs) if s.ndim and not (s.layout and s.layout.stored)
    }
    found = {}
    for k, v in enumerate(graph.outputs):
        spec = graph.specs[v]
        twin = next((i for i, s in free.items() if s.bare == spec.bare), None)
        if v >= len(graph.inputs) and twin is not None:
            del free[twin]
            found[k] = twin
    return found


def places(
    graph: Graph,
    target: Target,
    free: Collection[int],
    dearer: float,
    told: dict[str, Graph] | None = None,
) -> list[Graph]:
    """The graph with operands, of those that may lie anywhere, where it runs fastest again and again,
    if a byte of a worker's memory that an operand takes costs so many seconds. After the best one
    others may come that take hardly longer by what is counted here, which kernels are not: there the
    largest of these operands lies elsewhere. `told` is told how the best one is laid out."""
    inputs, made = given(graph, target), list[Graph]()
    largest = max(free, key=lambda k: inputs[k].nbytes, default=-1)
    near = list[list[Spec]]()
    for share in (1.0, HIDDEN):
        search = _Search(target, target.machine, share)
        pairs = enumerate(inputs)
        refs = [search.anywhere(s, dearer) if k in free else _fixed(s) for k, s in pairs]
        laid = search.graph(graph, refs, 1, True)
        ends = search.ends(laid, [None] * len(graph.outputs))

        def lie(answer: Answer, refs: list[_Ref] = refs) -> list[Spec]:
            emit = _Emit(target, answer.values)
            return [s.at(emit.layout(r)) for s, r in zip(inputs, refs, strict=True)]

        best = solve(search.problem)
        made.append(_emitted(laid, ends, lie(best), target, best.values))
        if share == 1.0 and largest >= 0 and len(graph.nodes) <= WEIGHED:
            variable = refs[largest].variable
            chosen = best.values[variable]
            for answer in _elsewhere(search.problem, variable, chosen):
                if answer.cost <= NEARLY * best.cost:
                    near.append(lie(answer))
    first, other = made
    if other.inputs != first.inputs:
        one, two = (
            overlapped_seconds(g, target) + dearer * sum([local_bytes(g.inputs[k]) for k in free])
            for g in made
        )
        first = other if two < MUCH_SOONER * one else first
    if told is not None:
        told["laid"] = first
    found = [first.inputs, *[specs for s in near if (specs := tuple(s)) != first.inputs]]
    return [Graph(specs, graph.nodes, graph.outputs) for specs in found]


def _elsewhere(problem: Problem, variable: int, chosen: int) -> Iterator[Answer]:
    """The cheapest choice with each other value of a variable."""
    costs = problem.costs[variable]
    for value in range(len(costs)):
        if value != chosen:
            alone = np.full_like(costs, NEVER)
            alone[value] = costs[value]
            problem.costs[variable] = alone
            yield solve(problem)
    problem.costs[variable] = costs


def resolve(split: Split, mesh: Mesh, shape: Shape, blocks: bool = False) -> Layout:
    """The layout that a user's `split=` means on a mesh. What may lie anywhere, and is used before
    anything was planned for it, is cut along its longest axis."""
    ndim = len(shape)
    if split == FREE:
        split = max(range(ndim), key=lambda d: shape[d]) if ndim else None
    found = split_of(split.on(len(mesh)) if isinstance(split, Wish) else split, ndim)
    given = found if isinstance(found, tuple) else (found,) * len(mesh)
    if len(given) != len(mesh):
        got = f"{len(given)} entries for a mesh of {len(mesh)} axes"
        needed = "one entry per mesh axis, or one number for all"
        raise LayoutError.because(f"split={split}", got=got, needed=needed)
    return Layout(mesh, given, (), blocks)


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
    return resolve(kw["split"], mesh, node.specs[0].shape, blocks)


# -- the search ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Ref:
    """A value's layout for each choice of a variable; the only one if there is no variable (-1)."""

    variable: int
    layouts: tuple[Layout, ...]


@dataclass(slots=True)
class _Laid:
    """A graph within the search."""

    graph: Graph
    inputs: list[_Ref]  # as they come
    refs: list[_Ref]  # of all values; inputs where they are brought for all who read them
    options: dict[int, Options] = field(default_factory=dict)  # of nodes
    variables: dict[int, int] = field(default_factory=dict)
    bodies: dict[int, dict[str, _Laid]] = field(default_factory=dict)
    around: dict[int, list[_Ref]] = field(default_factory=dict)  # operands as a loop takes them
    state: dict[int, list[_Ref]] = field(default_factory=dict)  # where its bodies leave results

    def result(self, v: int) -> _Ref:
        """A value as it is given to who stands behind the graph: an input as it came."""
        return self.inputs[v] if v < len(self.inputs) else self.refs[v]


@dataclass(slots=True)
class _Search:
    target: Target
    machine: Machine
    share: float = 1.0  # of what relayouts take, that counts
    problem: Problem = field(default_factory=Problem)
    counted: dict[tuple[int, int], Table] = field(default_factory=dict)  # options' costs, by id
    scaled: dict[tuple[int, float], tuple[Table, Table]] = field(default_factory=dict)
    lines: dict[tuple[int, int, float], tuple[Table, Table]] = field(default_factory=dict)
    alone: dict[tuple[float, ...], Table] = field(default_factory=dict)  # costs, by what they are

    @property
    def blocks(self) -> bool:
        return self.target.numerics == "any-workers"

    @property
    def whole(self) -> Layout:
        return Layout.whole(self.target.mesh)

    def graph(
        self,
        graph: Graph,
        inputs: Sequence[_Ref],
        weight: int,
        outermost: bool = False,
        fixed: int = 0,
    ) -> _Laid:
        """Adds a graph that runs so many times. Inputs that several read may be brought once for all;
        not the first ones, if these are `fixed`, as operands of a loop are that do not change."""
        laid = _Laid(graph, list(inputs), list(inputs))
        read = _readers(graph, outermost)
        sooner = weight * self.share  # what an iteration begins with has all of it to hide behind
        for v, ref in enumerate(inputs):
            if v < fixed or not graph.uses[v] or ref.layouts[0].mesh != self.target.mesh:
                continue
            if ref.variable >= 0 and (read[v] != ONE or self.share < 1.0):
                laid.refs[v] = self.placed(graph.specs[v], ref, ref.layouts, sooner)
            elif outermost and ref.variable < 0 and read[v] != ONE:
                laid.refs[v] = self.gathered(graph.specs[v], ref, weight)
        for k, node in enumerate(graph.nodes):
            laid.refs.extend(self.node(laid, k, node, read, weight))
        return laid

    def gathered(self, spec: Spec, ref: _Ref, weight: int) -> _Ref:
        (given,) = ref.layouts
        if given.is_whole or given.stored:
            return ref
        layouts = (given, Layout(given.mesh, (None,) * len(given.mesh), (), given.blocks))
        return self.placed(spec, ref, layouts, weight)

    def anywhere(self, spec: Spec, dearer: float) -> _Ref:
        """An operand that lies where it is best, at so many seconds per byte."""
        kinds = candidates(spec, self.target.mesh, self.blocks)
        costs = [CUT * cuts(w) + dearer * local_bytes(spec.at(w)) for w in kinds]
        key = tuple(costs)
        return _Ref(self.problem.variable(self.alone.setdefault(key, np.array(key))), tuple(kinds))

    def read(self, node: Node, given: Layout, weight: int) -> _Ref:
        """Lay out what is read of a file: in parts if nothing else was said, as files are slow."""
        if not given.is_whole or self.target.workers == 1:
            return _Ref(-1, (given,))
        kinds = candidates(node.specs[0].bare, self.target.mesh, self.blocks)
        parts = [largest_part(node.specs[0].at(w)) for w in kinds]
        costs = [weight * kernel_seconds(self.machine, node, (), (p,)) for p in parts]
        return _Ref(self.problem.variable(np.array(costs)), tuple(kinds))

    def placed(self, spec: Spec, ref: _Ref, layouts: Sequence[Layout], weight: float) -> _Ref:
        """A value that is brought to one of these layouts."""
        key = tuple([CUT * cuts(w) for w in layouts])
        variable = self.problem.variable(self.alone.setdefault(key, np.array(key)))
        self.needs(ref, spec, layouts, variable, weight)
        return _Ref(variable, tuple(layouts))

    def needs(
        self,
        ref: _Ref,
        spec: Spec,
        layouts: Sequence[Layout],
        variable: int,
        weight: float,
        share: float = 1.0,
    ) -> None:
        """Counts what it takes to bring a value to where each choice of a variable needs it."""
        if ref.variable == variable:
            return
        wire = "" if self.blocks else self.target.precision
        limit, sizes = self.target.memory_limit, _sizes(wire, spec.dtype)
        table = _table(self.machine, spec.shape, sizes, ref.layouts, tuple(layouts), limit)
        table = self.times(table, weight * self.share)
        if variable < 0:
            self.problem.more(ref.variable, self.line(table, 1, share))
        elif ref.variable < 0:
            self.problem.more(variable, self.line(table, 0))
        else:
            self.problem.pair(ref.variable, variable, table)

    def line(self, table: Table, axis: int, share: float = 1.0) -> Table:
        """The first row of a table, or the first column: one array for all who share the table."""
        key = id(table), axis, share
        if key not in self.lines:
            first = table[0] if axis == 0 else table[:, 0]
            self.lines[key] = table, first * share
        return self.lines[key][1]

    def times(self, table: Table, factor: float) -> Table:
        """A table so many times as large: one for all who share it, as the search does its work once."""
        if factor == 1.0:
            return table
        key = id(table), factor
        if key not in self.scaled:
            self.scaled[key] = table, table * factor
        return self.scaled[key][1]

    def node(self, laid: _Laid, k: int, node: Node, read: Sequence[int], weight: int) -> list[_Ref]:
        graph = laid.graph
        refs = [laid.refs[v] for v in node.inputs]
        match node.op:
            case "read":
                return [self.read(node, refs[0].layouts[0].resident, weight)]
            case "slice_file" | "merge_file":
                return [_Ref(-1, refs[0].layouts)]
            case "join_files":
                return [_Ref(-1, refs[-1].layouts)]
            case "take_file":
                places = graph.specs[node.inputs[0]]
                if not refs[0].layouts[0].stored:
                    whole = Layout.whole(refs[1].layouts[0].mesh)
                    self.needs(refs[0], places, (whole,), -1, weight)
                return [_Ref(-1, refs[1].layouts)]
            case "resplit":
                end = _Ref(-1, (_resplit_layout(node, self.target),))
                self.needs(refs[0], graph.specs[node.inputs[0]], end.layouts, -1, weight)
                return [end]
            case "loop":
                return self.loop(laid, k, node, refs, weight)
            case "while":
                return self.while_(laid, k, node, refs, weight)
            case "branch":
                return self.branch(laid, k, node, refs, weight)
        ins = [graph.specs[v].bare for v in node.inputs]
        seen = tuple([read[v] for v in graph.outs(k)])
        addends: Addends = ((),) * len(refs)
        if added(node, ins):
            addends = tuple([_addends(r) for r in refs])
        near = []
        if OPS[node.op].parallel.algorithms is not None:
            pairs = zip(refs, ins, strict=True)
            near = [_near(r, s, self.target.mesh, self.blocks) for r, s in pairs]
        product = OPS[node.op].product
        halved = product is not None and product.squared in described(self.target.device).natives
        twice = halved and squared(graph, node) >= 0
        chosen = options(node, ins, addends, seen, self.target, self.machine, near, lay_out, twice)
        variable = self.problem.variable(self.costs(chosen, weight))
        reads = zip(node.inputs, chosen.needs, strict=True)
        for v, needs in dict.fromkeys(reads):  # what is read twice is brought once
            self.needs(laid.refs[v], graph.specs[v].bare, needs, variable, weight)
        laid.options[k], laid.variables[k] = chosen, variable
        return [_Ref(variable, ends) for ends in chosen.ends]

    def costs(self, chosen: Options, weight: int) -> Table:
        """Return the costs of choices, all times together."""
        if weight == 1 and self.share == 1.0:
            return chosen.costs
        key = id(chosen), weight
        if key not in self.counted:
            hidden = (1 - self.share) * chosen.relayouts
            self.counted[key] = (chosen.costs - hidden) * weight
        return self.counted[key]

    def ends(self, laid: _Laid, wanted: Sequence[Layout | None]) -> list[_Ref]:
        """Where the outputs of the outermost graph are left, which counts."""
        graph, state = laid.graph, twins(laid.graph)
        asked = _asked(graph, laid.inputs, self.target)
        found = []
        for k, (v, end) in enumerate(zip(graph.outputs, wanted, strict=True)):
            spec, ref = graph.specs[v], laid.refs[v]
            found.append(ref if end is None else _Ref(-1, (end,)))
            if v < len(graph.inputs):
                found[k] = laid.inputs[v] if end is None else found[k]
                continue
            if end is not None:
                self.needs(ref, spec, (end,), -1, 1)
                continue
            if any(w.partial_axes for w in ref.layouts):  # a loop's
                kinds = candidates(spec.bare, self.target.mesh, self.blocks)
                ref = found[k] = self.placed(spec, ref, kinds, 1)
            other = laid.inputs[state[k]] if k in state else None
            if other is not None and not _stored(other):
                lies = [w.without_halos for w in other.layouts]
                self.needs(ref, spec, lies, other.variable, 1, LATER)
            elif ref.variable >= 0:
                self.comes(laid, v, spec, ref, asked[v])
        return found

    def comes(self, laid: _Laid, v: int, spec: Spec, ref: _Ref, asked: set[int]) -> None:
        """A result counts as whole along mesh axes along which nobody asked for parts. So does a sum, if
        a replica is no larger than the parts that it was made from."""
        made = self.sums(laid, v, spec)
        machine, costs = self.machine, np.zeros(len(ref.layouts))
        for c, end in enumerate(ref.layouts):
            whole = end
            for axis, split in enumerate(end.splits):
                if split is not None and (axis not in asked or (made and axis in made[c])):
                    whole = whole.with_split(axis, None)
            took = relayout_seconds(machine, spec.shape, spec.dtype.itemsize, end, whole)
            costs[c] = LATER * self.share * took
        if costs.any():
            key = tuple(costs.tolist())
            self.problem.more(ref.variable, self.alone.setdefault(key, costs))

    def sums(self, laid: _Laid, v: int, spec: Spec) -> list[tuple[int, ...]]:
        """List for each choice the axes along which small sums are made."""
        k = laid.graph.producers[v]
        if k not in laid.options:
            return []
        node, chosen = laid.graph.nodes[k], laid.options[k]
        ins = [laid.graph.specs[u].bare for u in node.inputs]
        found: list[tuple[int, ...]] = []
        for c, made in enumerate(chosen.gives[v - laid.graph.starts[k]]):
            axes = made.partial_axes
            parts = sum([local_bytes(s.at(chosen.needs[j][c])) for j, s in enumerate(ins)])
            small = axes and local_bytes(spec.at(summed(made))) <= parts
            found.append(axes if small else ())
        return found

    # -- control flow --------------------------------------------------------------------------
    def loop(
        self, laid: _Laid, k: int, node: Node, refs: Sequence[_Ref], weight: int
    ) -> list[_Ref]:
        kw = node.kw
        nc, ns, _ = kw["counts"]
        body: Graph = kw["body"]
        inside = weight * max(1, repeats(node))
        specs = [laid.graph.specs[v] for v in node.inputs]
        consts = self.loop_operands(specs[:nc], refs[:nc], weight)
        sums = [] if self.blocks else _sums(body, 1 + nc, ns)
        state = self.loop_operands(specs[nc : nc + ns], refs[nc : nc + ns], weight, True, sums)
        stacks, items = [], []
        for s, r in zip(specs[nc + ns :], refs[nc + ns :], strict=True):
            one = Spec(s.shape[1:], s.dtype)
            kinds = candidates(one, self.target.mesh, self.blocks)
            stack = self.placed(s, r, [_stacked(w) for w in kinds], weight)
            stacks.append(stack)
            items.append(_Ref(stack.variable, tuple(kinds)))
        inputs = [_Ref(-1, (self.whole,)), *consts, *state, *items]
        inner = self.graph(body, inputs, inside, fixed=1 + nc)
        ends = list(state)
        for v, ref in zip(body.outputs[:ns], state, strict=True):
            self.back(inner.result(v), body.specs[v], ref, inside)
        ends.extend([inner.result(v) for v in body.outputs[ns:]])
        laid.bodies[k], laid.around[k] = {"body": inner}, [*consts, *state, *stacks]
        laid.state[k] = ends
        return [*state, *(_Ref(r.variable, tuple(map(_stacked, r.layouts))) for r in ends[ns:])]

    def loop_operands(
        self,
        specs: Sequence[Spec],
        refs: Sequence[_Ref],
        weight: int,
        free: bool = False,
        sums: Collection[int] = (),
    ) -> list[_Ref]:
        """Operands of a loop, each in one layout in all turns; state may have any, and sums may be
        addends until the last turn."""
        made = []
        for k, (spec, ref) in enumerate(zip(specs, refs, strict=True)):
            fixed = ref.variable < 0 and ref.layouts[0].is_whole and not free
            if _stored(ref) or fixed:
                made.append(ref)
                continue
            found = dict.fromkeys(candidates(spec, self.target.mesh, self.blocks))
            if len(set(ref.layouts)) <= 4:
                lies = [w.without_halos for w in ref.layouts if not w.partial_axes]
                found.update(dict.fromkeys(lies))
            if k in sums:
                kinds = itertools.product(
                    *[(None, SUM) if n > 1 else (None,) for n in self.target.mesh]
                )
                found.update(dict.fromkeys([Layout(self.target.mesh, s) for s in kinds]))
            made.append(self.placed(spec, ref, list(found), weight))
        return made

    def back(self, ref: _Ref, spec: Spec, state: _Ref, weight: int) -> None:
        """Require that what a body makes comes back as the state of the next iteration."""
        if ref.variable == state.variable and ref.layouts == state.layouts:
            return
        self.needs(ref, spec, state.layouts, state.variable, weight)

    def while_(
        self, laid: _Laid, k: int, node: Node, refs: Sequence[_Ref], weight: int
    ) -> list[_Ref]:
        kw = node.kw
        nc, _ = kw["counts"]
        inside = weight * max(1, repeats(node))
        specs = [laid.graph.specs[v] for v in node.inputs]
        consts = self.loop_operands(specs[:nc], refs[:nc], weight)
        sums = [] if self.blocks else _sums(kw["body"], nc, len(specs) - nc)
        state = self.loop_operands(specs[nc:], refs[nc:], weight, True, sums)
        body = self.graph(kw["body"], [*consts, *state], inside, fixed=nc)
        test = self.graph(kw["condition"], [*consts, *state], inside, fixed=nc)
        for v, ref in zip(kw["body"].outputs, state, strict=True):
            self.back(body.result(v), kw["body"].specs[v], ref, inside)
        (v,) = kw["condition"].outputs
        self.needs(test.result(v), kw["condition"].specs[v], (self.whole,), -1, inside)
        laid.bodies[k], laid.around[k] = {"body": body, "condition": test}, [*consts, *state]
        laid.state[k] = state
        return state

    def branch(
        self, laid: _Laid, k: int, node: Node, refs: Sequence[_Ref], weight: int
    ) -> list[_Ref]:
        kw = node.kw
        specs = [laid.graph.specs[v] for v in node.inputs]
        self.needs(refs[0], specs[0], (self.whole,), -1, weight)
        inputs = self.loop_operands(specs[1:], refs[1:], weight)
        fixed = len(inputs)
        sides = {s: self.graph(kw[s], inputs, weight, fixed=fixed) for s in ("then", "otherwise")}
        ends = []
        for n, spec in enumerate(node.specs):
            kinds = candidates(spec.bare, self.target.mesh, self.blocks)
            variable = self.problem.variable(np.array([CUT * cuts(w) for w in kinds]))
            ends.append(_Ref(variable, tuple(kinds)))
            for name, side in sides.items():
                self.back(side.result(kw[name].outputs[n]), spec.bare, ends[-1], weight)
        laid.bodies[k], laid.around[k] = dict(sides), inputs
        laid.state[k] = ends
        return ends


@lru_cache(256)
def _sizes(precision: str, dtype: DType) -> tuple[int, int]:
    """The bytes of a number, and of one in addends that are sent."""
    policy = policy_of(precision) if precision else None
    to = policy.sent(dtype) if isinstance(policy, Precision) else None
    return dtype.itemsize, (dtype if to is None else to).itemsize


@lru_cache(1 << 14)
def _table(
    machine: Machine,
    shape: Shape,
    sizes: tuple[int, int],  # of a number, and of one in addends that are sent
    has: tuple[Layout, ...],
    needs: tuple[Layout, ...],
    limit: int | None,
) -> Table:
    """Tabulate the seconds from each layout to each other one."""
    rows, columns = list(dict.fromkeys(has)), list(dict.fromkeys(needs))
    itemsize, addend = sizes

    def seconds(a: Layout, b: Layout) -> float:
        if a is b:
            return 0.0
        narrow = addend < itemsize and sent_narrow(shape, itemsize, a, b)
        found = relayout_seconds(machine, shape, addend if narrow else itemsize, a, b)
        size = math.prod(b.largest(shape)) * itemsize
        if found and limit is not None and size > limit:  # turns could not make it smaller
            found += TOO_LARGE * size / limit
        if not found and _lies_apart(a, b, shape):
            found = machine.moving_seconds(size, size) / 10
        return found + MOVE + machine.call_seconds / 10  # a slice is a node, too

    costs = np.array([[seconds(a, b) for b in columns] for a in rows])
    at = {w: i for i, w in enumerate(rows)}, {w: i for i, w in enumerate(columns)}
    return costs[np.ix_([at[0][w] for w in has], [at[1][w] for w in needs])]


def _lies_apart(has: Layout, needs: Layout, shape: Shape) -> bool:
    """Whether a worker's slice is a part of each row, and not of all rows: it is read less well."""
    cut = [d for d, s in zip(needs.splits, has.splits, strict=False) if d != s]
    return any(isinstance(d, int) and math.prod(shape[:d]) > 1 for d in cut)


def _asked(graph: Graph, inputs: Sequence[_Ref], target: Target) -> list[set[int]]:
    """Find for each value the mesh axes along which a user cut what it is made from."""

    def axes(layout: Layout) -> set[int]:
        if layout.mesh != target.mesh:
            return set() if layout.is_whole else set(range(len(target.mesh)))
        return {a for a, s in enumerate(layout.splits) if s is not None}

    found = [set[int]().union(*map(axes, r.layouts)) for r in inputs]  # in all that it may have
    for node in graph.nodes:
        cut = axes(_resplit_layout(node, target)) if node.op == "resplit" else set[int]()
        found += [cut.union(*[found[v] for v in node.inputs])] * len(node.specs)
    return found


def _readers(graph: Graph, outermost: bool) -> list[int]:
    """Who reads each value; results are read, too, and those of bodies may stay addends."""
    adds = [OPS[n.op].parallel.adds or OPS[n.op].is_view or any(n.subgraphs()) for n in graph.nodes]
    found = []
    for users in map(set, graph.uses):
        several = ADDING if any(adds[k] for k in users) else SEVERAL
        found.append(several if len(users) > 1 else ONE)
    for v in graph.outputs:
        if v >= len(graph.inputs):
            found[v] = SEVERAL if outermost else ADDING
    return found


def _sums(body: Graph, first: int, count: int) -> list[int]:
    """Find the states of a loop that may be addends from iteration to iteration: what nobody reads
    but the node that adds to it, and what each turn makes as a sum. `first`: the input that is the
    first of the state."""
    found = []
    for k, v in enumerate(body.outputs[:count]):
        made, users = body.producers[v], set(body.uses[first + k])
        grows = made >= 0 and users == {made} and OPS[body.nodes[made].op].parallel.adds
        if grows or _sums_up(body, v):
            found.append(k)
    return found


def _sums_up(graph: Graph, v: int) -> bool:
    """Whether a value is a sum of terms, or of what is: workers that have some terms make addends."""
    k = graph.producers[v]
    if k < 0 or any(graph.nodes[k].subgraphs()):
        return False
    node = graph.nodes[k]
    ins = [graph.specs[u].bare for u in node.inputs]
    indices = OPS[node.op].indices(tuple(ins), node.specs, node.kw)
    if any(monoid == SUM.monoid for _, monoid in indices.reduce):
        return len(node.specs) == 1
    return any(all(_sums_up(graph, node.inputs[j]) for j in g) for g in added(node, ins))


def _addends(ref: _Ref) -> tuple[int, ...]:
    """The mesh axes along which a value may come as addends of a sum."""
    return tuple(sorted({a for w in ref.layouts for a in w.partial_axes if w.splits[a] == SUM}))


def _fixed(spec: Spec) -> _Ref:
    assert spec.layout is not None
    return _Ref(-1, (spec.layout,))


def _stored(ref: _Ref) -> bool:
    return ref.layouts[0].stored


def _near(ref: _Ref, spec: Spec, mesh: Mesh, blocks: bool) -> list[Layout]:
    """The layouts in which a value may come to an algorithm."""
    if ref.variable < 0:
        return [ref.layouts[0].without_halos]
    rest = (None,) * (len(mesh) - 1)
    dims = range(max(0, spec.ndim - 2), spec.ndim)
    return [Layout.whole(mesh), *(Layout(mesh, (d, *rest), (), blocks) for d in dims)]


def _stacked(layout: Layout) -> Layout:
    """The layout of the stack of arrays that have this one each."""
    splits = tuple(s + 1 if isinstance(s, int) else s for s in layout.splits)
    return Layout(layout.mesh, splits, (), layout.blocks)


# -- the graph ---------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Emit:
    """Makes the graph of what was chosen."""

    target: Target
    chosen: Sequence[int]
    pinned: set[int] = field(default_factory=set)  # values that users want where they are

    def layout(self, ref: _Ref) -> Layout:
        return ref.layouts[self.chosen[ref.variable] if ref.variable >= 0 else 0]

    def graph(self, builder: Builder, laid: _Laid, inputs: Sequence[int]) -> list[int]:
        """The outputs of a graph over these values."""
        values = list(inputs)
        for v, ref in enumerate(laid.refs[: len(inputs)]):
            values[v] = self.brought(builder, inputs[v], self.layout(ref))
        for k, node in enumerate(laid.graph.nodes):
            values.extend(self.node(builder, laid, k, node, [values[v] for v in node.inputs]))
        return [inputs[v] if v < len(inputs) else values[v] for v in laid.graph.outputs]

    def brought(self, builder: Builder, value: int, layout: Layout, line: str = "") -> int:
        maker = None if value in self.pinned else builder.maker(value)
        if maker is not None and maker.op == "relayout" and len(maker.inputs) == 1:
            (before,) = maker.inputs  # it was brought from where it is wanted
            value = before if builder.specs[before].layout is layout else value
        return self.all_brought(builder, (value,), (layout,), line)[0]

    def all_brought(
        self, builder: Builder, values: Sequence[int], layouts: Sequence[Layout], line: str
    ) -> Sequence[int]:
        specs = [builder.specs[v] for v in values]
        if all(s.layout is w for s, w in zip(specs, layouts, strict=True)):
            return values
        made = [s.at(w) for s, w in zip(specs, layouts, strict=True)]
        return builder.add("relayout", values, (), made, line)

    def node(
        self, builder: Builder, laid: _Laid, k: int, node: Node, inputs: Sequence[int]
    ) -> Sequence[int]:
        if k in laid.bodies:
            return self.control(builder, laid, k, node, inputs)
        if k not in laid.options:
            refs = laid.refs[laid.graph.starts[k] :][: len(node.specs)]
            ends = [self.layout(r) for r in refs]
            if node.op == "resplit":
                there = self.brought(builder, inputs[0], ends[0], node.line)
                self.pinned.add(there)
                return [there]
            lies = builder.specs[inputs[0]].layout if inputs else None
            if node.op == "take_file" and not (lies and lies.stored):
                whole = Layout.whole(ends[0].mesh)
                inputs = [self.brought(builder, inputs[0], whole), inputs[1]]
            made = [s.at(w) for s, w in zip(node.specs, ends, strict=True)]
            return builder.add(node.op, inputs, node.params, made, node.line)
        chosen, c = laid.options[k], self.chosen[laid.variables[k]]
        operands = [
            self.brought(builder, v, needs[c], node.line)
            for v, needs in zip(inputs, chosen.needs, strict=True)
        ]
        graph = chosen.graphs[c]
        if graph is not None:
            return inline(builder, _at(graph, node.line), operands)
        made = [s.at(g[c]) for s, g in zip(node.specs, chosen.gives, strict=True)]
        outs = builder.add(node.op, operands, node.params, made, node.line)
        ends = [e[c] for e in chosen.ends]
        if any(s.layout is not None and s.layout.partial_axes for s in made):
            return self.all_brought(builder, outs, ends, node.line)
        return [self.brought(builder, v, e, node.line) for v, e in zip(outs, ends, strict=True)]

    def control(
        self, builder: Builder, laid: _Laid, k: int, node: Node, inputs: Sequence[int]
    ) -> Sequence[int]:
        kw, around = node.kw, [self.layout(r) for r in laid.around[k]]
        ends = [self.layout(r) for r in laid.state[k]]
        given = inputs
        if node.op == "branch":
            test, *given = inputs
        operands = [self.brought(builder, v, w) for v, w in zip(given, around, strict=True)]
        bodies = {}
        for name, inner in laid.bodies[k].items():
            specs = [
                s.at(self.layout(r)) for s, r in zip(inner.graph.inputs, inner.inputs, strict=True)
            ]
            within = Builder(specs)
            outs = self.graph(within, inner, range(len(specs)))
            wanted = [Layout.whole(self.target.mesh)] if name == "condition" else ends
            outs = [self.brought(within, v, w) for v, w in zip(outs, wanted, strict=True)]
            bodies[name] = within.graph(outs)
        if node.op == "branch":
            operands = [self.brought(builder, test, Layout.whole(self.target.mesh)), *operands]
        if node.op == "loop":
            ns = kw["counts"][1]
            ends = [*ends[:ns], *map(_stacked, ends[ns:])]
        made = [s.at(w) for s, w in zip(node.specs, ends, strict=True)]
        return builder.add(node.op, operands, {**kw, **bodies}, made, node.line)


def _at(graph: Graph, line: str) -> Graph:
    """A graph that an operation brought, as the user's line that asked for it."""
    nodes = tuple([Node(n.op, n.inputs, n.params, n.specs, line, n.key) for n in graph.nodes])
    return Graph(graph.inputs, nodes, graph.outputs)
