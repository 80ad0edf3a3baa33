"""What single nodes of a program take on a machine: the work of a kernel, and the way of a collective.

    %2 = fused(%0, %1; body={multiply, add, exp})     3 sums and products, 1 function an element; %0 and %1
                                                      come from where they lie: cache or memory
    %3 = all_reduce(%2; axes=(0, 1))                  8 x NVLink, then 256 x InfiniBand, and back

A kernel takes the longer of computing and moving, and its start. What it reads comes from the cache that
holds all that was looked at since it was looked at last; so the work of a node depends on those before
it (`Reuse`). `planner/simulation.py` puts nodes together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, Mesh, bounds_of_many
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.traffic import held, moved
from ostinato.ops.planned.collective import REDUCING, collective_of
from ostinato.ops.planned.offloaded import OFFLOADED

from .layouts.costs import REPEATED, UNTIL, move_legs, repeats
from .machine import MACHINES, Machine, known
from .passes.loop_casts import LOOPS
from .passes.memory import carried_in_place, is_joined, is_update, replaced
from .plan import Program, Target, largest_part, peak_bytes

Part = Callable[[Spec], Spec]  # what a worker has of an array, as an array of its own


@dataclass(frozen=True, slots=True)
class GpuKernels:
    """GPUs' kernels (ops/gpu) beside the operations that are counted: instructions as NVIDIA's assembler has
    them for an H100; those of which a quarter as many are started count four times."""

    staged: float = 30.0  # for an operation of a product in stages, read from shared memory
    short_term: float = 20.0  # for a term of a short sum, read from there, too
    term: float = 12.0  # for one of another reduction, which keeps what rounding loses
    running: float = 90.0  # for an element of a running sum, which a warp makes in five steps
    step: float = 20.0  # for one of a time step, whose neighbours are in shared memory
    step_reads: int = 9  # up to so many of these
    short: int = 32  # terms of a short sum
    held: int = 8  # of one that its readers make in registers
    results: int = 1024  # up to which all blocks wait for what the last one combines
    line: int = 1 << 14  # elements of a line; of more, one block has a multiprocessor's registers
    tile: int = 32  # side of a product, up to which its tiles are ours


GPU = GpuKernels()


def machine_of(target: Target) -> Machine:
    """By which times of a plan are predicted: the one that it was made for, if that was said; else this one
    as it was measured, or the nominal one."""
    if target.machine.name in MACHINES:
        return known(target.device, target.mesh)
    return target.machine


def again(node: Node) -> str:
    """How often the bodies of a node run, behind its name; of a loop that ends when it ends, how often
    they are taken to."""
    about = "" if node.op in REPEATED else "about "
    return f" x {about}{repeats(node)}" if node.op in (*REPEATED, *UNTIL) else ""


def runs(program: Program, k: int) -> bool:
    """Whether anything is left to do for a node."""
    graph = program.graph
    node = graph.nodes[k]
    if node.op == "constant" or is_joined(program, k):
        return False
    return node.op == "wait" or program.slots[graph.starts[k]].kind != "alias"


# -- kernels -------------------------------------------------------------------------------------
@dataclass(slots=True)
class Work:
    """What a kernel does on one worker."""

    dtype: str
    dense: float = 0.0  # operations of products
    factors: float = 0.0  # of factorizations
    simple: float = 0.0  # sums and products of elements
    functions: float = 0.0  # exp and its like
    moved: float = 0.0  # bytes read and written
    elements: float = math.inf  # of the largest array
    by_elements: float = 0.0  # operations of products that a kernel of elements does
    # On a GPU:
    slots: float = 0.0  # instructions of kernels beside those above
    results: float = 0.0  # elements of products that its library's tiles have
    passes: float = 1.0  # over what is moved
    line: float = 0.0  # elements that a block has from the first read to the last write
    combines: bool = False  # all blocks' results in the end

    @property
    def operations(self) -> float:
        return self.dense + self.factors + self.simple

    def seconds(self, machine: Machine, moving: float) -> float:
        """Without its start; `moving`: seconds for what it reads and writes."""
        if not machine.units:
            work = self.dense, self.factors, self.simple, self.functions
            return machine.work_seconds(self.dtype, *work, moving)
        # whose library multiplies by other means, and by tiles of its own
        dense, simple = self.dense - self.by_elements, self.simple + self.by_elements / 2
        work = dense, self.factors, simple + self.slots, self.functions
        taken = machine.work_seconds(
            self.dtype,
            *work,
            moving * self.passes,
            alone=self.line > GPU.line,
            results=self.results if dense else 0.0,
        )
        taken = taken if dense else taken / machine.busy(self.elements)
        return taken + self.combines * machine.combine_seconds


def work_of(graph: Graph, node: Node, part: Part = largest_part) -> Work:
    """Count the work of a node on a worker that has these parts."""
    ins = tuple([part(graph.specs[v]) for v in node.inputs])
    outs = tuple(map(part, node.specs))
    dtype = next((s.dtype.name for s in (*ins, *outs) if s.dtype.kind in "fcV"), "int64")
    found = Work(dtype, elements=max((s.size for s in (*ins, *outs)), default=0))
    op, body = OPS[node.op], node.kw.get("body")
    if op.made_by == "machine" and isinstance(body, Graph):
        _count_all(found, node, body, part)
        found.moved = float(sum(s.nbytes for s in (*ins, *outs)))
        found.by_elements = 0.0 if op.run.dense else found.dense
        _count_slots(found, body, part)
        found.line *= any(s.size >= found.elements for s in outs)
    else:
        found.moved = _count(found, node, ins, part)
        passes = op.parallel.passes
        found.passes = passes(ins, outs, node.kw) if passes is not None else 1.0
    return found


def _count_all(found: Work, node: Node, body: Graph, part: Part) -> None:
    """Adds the operations of a kernel's body, as often as they are done."""
    inside = Work(found.dtype, elements=0.0)
    for n in body.nodes:
        inner, ins = n.kw.get("body"), tuple([part(body.specs[v]) for v in n.inputs])
        if isinstance(inner, Graph):
            _count_all(inside, n, inner, part)
        elif n.inputs or OPS[n.op].element.draws:
            _count(inside, n, ins, part)
        terms, made = (max((s.size for s in some), default=0) for some in (ins, map(part, n.specs)))
        inside.elements = max(inside.elements, terms, made)
    times = repeats(node)
    found.elements = max(found.elements, inside.elements)
    found.dense += times * inside.dense
    found.results += times * inside.results
    found.factors += times * inside.factors
    found.simple += times * inside.simple
    found.functions += times * inside.functions


def _count_slots(found: Work, body: Graph, part: Part) -> None:
    """Adds what a GPU's kernel does beside its operations. A short sum that a long one combines is in
    registers."""
    parts = [part(s).size for s in body.specs]
    held = [frozenset[int]() for _ in parts]  # short sums of which each value is made
    short = set[int]()
    for k, n in enumerate(body.nodes):
        (v, *_), inner = body.outs(k), n.kw.get("body")
        terms, made = max((parts[u] for u in n.inputs), default=0), max(parts[v], 1)
        flows = frozenset[int]().union(*(held[u] for u in n.inputs))
        if isinstance(inner, Graph):
            found.slots += GPU.step * made * (repeats(n) == 1)
        elif OPS[n.op].element.running:
            found.slots += GPU.running * made
        elif OPS[n.op].reduce is None or terms <= made:
            held[v] = flows
        elif terms <= GPU.short * made:
            short.add(v)
            found.slots += GPU.short_term * terms
            held[v] = frozenset((v,) if terms <= GPU.held * made else ())
        else:
            found.slots += GPU.term * terms - GPU.short_term * sum(
                parts[body.nodes[body.producers[u]].inputs[0]] for u in flows & short
            )
            short -= flows
            found.line = max(found.line, terms / made)
            found.combines |= made <= GPU.results


def _count(found: Work, node: Node, ins: tuple[Spec, ...], part: Part) -> float:
    """Adds a node's operations; the bytes that it moves."""
    op, outs = OPS[node.op], tuple(map(part, node.specs))
    if op.is_view or not any(s.size for s in outs):  # on a worker of which the part is empty
        return 0.0
    flops, moved = op.cost(ins, outs, node.kw)
    if op.run.dense and (op.product is not None or op.made_by == "machine"):
        found.dense += flops
        if min(outs[0].shape[-2:], default=0) > GPU.tile:
            found.results += outs[0].size
    elif op.run.dense:
        found.factors += flops
    elif op.moves.pieces is not None:  # each element comes from somewhere, and goes to one place
        moved = 2.0 * sum(s.nbytes for s in outs)
    elif op.scalar or op.element.draws:
        simple, functions = op.work
        size = max((s.size for s in outs), default=0)
        found.simple += simple * size
        found.functions += functions * size
    else:
        found.simple += flops
    return moved


@dataclass(slots=True)
class Reuse:
    """How many bytes were looked at since a value was looked at last, in a program that runs again and
    again."""

    program: Program
    part: Part
    footprint: float = 0.0  # all its memory
    turn: float = 0.0  # all that a run looks at
    now: float = 0.0
    last: dict[int, float] = field(default_factory=dict)  # of each value that is no view of another
    roots: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        program, graph = self.program, self.program.graph
        self.footprint = float(peak_bytes(program))
        for v in range(len(program.slots)):
            while program.slots[v].kind in ("alias", "part"):
                v = program.slots[v].at
            self.roots.append(v)
        for k, node in enumerate(graph.nodes):
            if runs(program, k):
                self.turn += sum(self._bytes(v) for v in (*node.inputs, *graph.outs(k)))

    def _bytes(self, v: int) -> float:
        spec = self.program.graph.specs[v]
        return 0.0 if spec.pending else float(self.part(spec).nbytes)

    def seconds(self, k: int, machine: Machine, moved: float) -> float:
        """Estimate the seconds that a node reads and writes; `moved` of the bytes of its operands
        and results."""
        graph, before = self.program.graph, self.now
        ins, outs = graph.nodes[k].inputs, graph.outs(k)
        sizes: dict[tuple[int, bool], float] = {}
        for v, is_made in [*((v, False) for v in dict.fromkeys(ins)), *((v, True) for v in outs)]:
            at = self.roots[v], is_made
            sizes[at] = sizes.get(at, 0.0) + self._bytes(v)
        total = sum(sizes.values())
        spent = touched = 0.0
        for (root, _), size in sizes.items():
            size = min(size, self._bytes(root))  # looks at one array that overlap are one
            since = before - self.last[root] if root in self.last else self.turn
            if self.program.slots[root].kind == "arena" and root not in self.last:
                since = min(since, self.program.arena_bytes)
            among = min(max(since, size), self.footprint)
            spent += machine.moving_seconds(size, among)
            touched += size
        for root, _ in sizes:
            self.last[root] = before
        self.now = before + touched
        return spent * moved / total if total else 0.0


# -- collectives ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Leg:
    """What a collective does along one axis of the mesh, or between workers of which several differ."""

    level: int  # of the machine's links
    seconds: float
    sent: int  # bytes that cross there, over all workers


def legs(node: Node, ins: Sequence[Spec], machine: Machine) -> list[Leg]:
    """A collective's way, link by link."""
    kind = collective_of(node.op, node.kw)
    found: list[Leg] = []
    if kind in REDUCING:
        return list(_reducing(kind, ins, node.kw["axes"], machine))
    for has, gets in zip(ins, node.specs, strict=True):
        here, there = has.layout, gets.layout
        assert here is not None
        assert there is not None
        found += _moving(has, here, there, machine)
    return found


def _reducing(
    kind: str, ins: Sequence[Spec], axes: Sequence[int], machine: Machine
) -> Iterator[Leg]:
    """Along several axes at once, all talk to all: over the slowest of their links."""
    lies = [s.layout for s in ins if s.layout is not None]
    mesh = lies[0].mesh
    levels = machine.levels_of(mesh)
    parts = sum([held(w, s.shape) * s.dtype.itemsize for w, s in zip(lies, ins, strict=True)])
    size = float(sum([largest_part(s).nbytes for s in ins]))
    inner = sorted((a for a in axes if mesh[a] > 1), reverse=True)
    n = math.prod([mesh[a] for a in inner])
    slowest = min([machine.levels[levels[a]][1] for a in axes], key=lambda link: link.bandwidth)
    time = slowest.all_reduce if kind == "all_reduce" else slowest.reduce_scatter
    parts = (2 if kind == "all_reduce" else 1) * parts // n
    near = 1
    for a in inner:  # of what a worker sends, what goes to those who are no nearer than this
        last, sent = a == inner[-1], parts * (mesh[a] - 1) * near
        yield Leg(levels[a], time(n, size) if last else 0.0, sent)
        near *= mesh[a]


def _moving(spec: Spec, here: Layout, there: Layout, machine: Machine) -> Iterator[Leg]:
    """Iterate over the legs of a move; all that is left crosses along the last axis."""
    mesh, item = here.mesh, spec.dtype.itemsize
    left = moved(here, there, spec.shape) * item
    if left == 0:
        return
    way = move_legs(machine, spec.shape, item, here, there)
    axes = [a for a, n in enumerate(mesh) if n > 1 and here.splits[a] != there.splits[a]]
    more = math.prod(mesh[a] for a in axes)
    for k, (level, seconds) in enumerate(way):
        sent = left if k == len(way) - 1 else left * (mesh[axes[k]] - 1) // (more - 1)
        yield Leg(level, seconds, sent)
        if k < len(way) - 1:
            left, more = left - sent, more // mesh[axes[k]]


def bytes_sent(node: Node, ins: Sequence[Spec]) -> int:
    """Count the bytes that cross between workers in one collective, over all workers."""
    kind = collective_of(node.op, node.kw)
    total = 0
    for has, gets in zip(ins, node.specs, strict=True):
        here, there = has.layout, gets.layout
        assert here is not None
        assert there is not None
        if kind in REDUCING:
            group = math.prod(here.mesh[a] for a in node.kw["axes"])
            share = 2 if kind == "all_reduce" else 1
            parts = held(here, has.shape)
            total += share * parts * (group - 1) // group * has.dtype.itemsize
        else:
            total += moved(here, there, has.shape) * has.dtype.itemsize
    return total


# -- node by node --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PredictedStep:
    """One node of a program, as far as people care."""

    node: Node
    depth: int
    collective: str
    operations: float  # on the worker with the largest parts
    moved: float  # bytes read and written there
    sent: int  # bytes that cross between workers, all together
    predicted: float  # seconds
    turns: int  # how often it runs
    copied: int | None = None  # bytes, of an update or what a loop carries; 0: all is in place


def steps(
    program: Program, machine: Machine, depth: int = 0, turns: int = 1
) -> Iterator[PredictedStep]:
    """The nodes in running order, those of bodies behind their loop."""
    graph, reuse = program.graph, Reuse(program, largest_part)
    call = call_seconds(program, machine, depth)
    for k, node in enumerate(graph.nodes):
        if node.op == "wait" or not runs(program, k):
            continue
        ins = [graph.specs[v] for v in node.inputs]
        kind = collective_of(node.op, node.kw)
        inner: Sequence[Program] = program.bodies.get(k, ())
        if kind:
            sent = bytes_sent(node, ins)
            predicted = sum(leg.seconds for leg in legs(node, ins, machine))
            reuse.seconds(k, machine, 0.0)
            yield PredictedStep(node, depth, kind, 0.0, 0.0, sent, predicted, turns)
        elif node.op in OFFLOADED:
            size = largest_part(ins[0]).nbytes
            reuse.seconds(k, machine, 0.0)
            seconds = machine.offload.message(size)
            yield PredictedStep(node, depth, "", 0.0, float(size), 0, seconds, turns)
        elif inner:
            reuse.seconds(k, machine, 0.0)
            twice = _second_buffers(program, k) if node.op in LOOPS else None
            yield PredictedStep(node, depth, "", 0.0, 0.0, 0, 0.0, turns, twice)
            rows = [list(steps(b, machine, depth + 1, turns * repeats(node))) for b in inner]
            if node.op == "branch":  # counts as its longer side
                longer = max(rows, key=lambda side: sum(s.predicted * s.turns for s in side))
                rows = [
                    side if side is longer else [replace(s, predicted=0.0) for s in side]
                    for side in rows
                ]
            for side in rows:
                yield from side
        else:
            work, copied = work_of(graph, node), _copied(program, k)
            if copied is not None:
                written = 0 if replaced(graph, k) else sum(largest_part(s).nbytes for s in ins[1:])
                work.moved = 2.0 * (copied + written)
            moving = reuse.seconds(k, machine, work.moved)
            predicted = call + work.seconds(machine, moving)
            yield PredictedStep(
                node, depth, "", work.operations, work.moved, 0, predicted, turns, copied
            )


def _second_buffers(program: Program, k: int) -> int:
    """The bytes that a loop carries in two buffers, of which it reads one while it writes the other."""
    node = program.graph.nodes[k]
    stays = carried_in_place(node, program.bodies[k])
    carried = node.specs[: node.kw["counts"][1]] if node.op in LOOPS else ()
    return sum(largest_part(s).nbytes for j, s in enumerate(carried) if j not in stays)


def _copied(program: Program, k: int) -> int | None:
    """The bytes that an update copies before it writes a part; None of what is no update."""
    node = program.graph.nodes[k]
    if OPS[node.op].run.overwrite != (0,):
        return None
    whole = largest_part(node.specs[0]).nbytes
    if replaced(program.graph, k):  # of which the rest was made there
        return whole - largest_part(program.graph.specs[node.inputs[1]]).nbytes
    return 0 if is_update(program, k) else whole


def call_seconds(program: Program, machine: Machine, depth: int) -> float:
    """To start a kernel of it: in loops that need no Python, less."""
    if depth == 0 or machine.again_seconds is None:
        return machine.call_seconds
    talks = any(collective_of(n.op, n.kw) for n in program.graph.nodes)
    return machine.call_seconds if talks else machine.again_seconds


def local(mesh: Mesh, rank: int) -> Part:
    """Make a function from a spec to what a worker has of it; of those in turns, in the first one."""
    workers, found = math.prod(mesh), dict[Spec, Spec]()

    def part(spec: Spec) -> Spec:
        if spec.layout is None or spec.layout.is_whole:
            return spec
        if spec not in found:
            layout = spec.layout
            coords = layout.coords(rank * (layout.workers // workers))
            bounds = (bounds_of_many(layout, n, d, coords) for d, n in enumerate(spec.shape))
            shape = tuple([int(hi - lo) for lo, hi in bounds])
            found[spec] = Spec(shape, spec.dtype)
        return found[spec]

    return part
