"""A plan, run on the model of a machine: discrete events.

    worker class 0  |matmul|fused|        wait|fused|matmul|
    InfiniBand             |all_reduce        |

Workers whose parts are all of one size do the same at the same time, so they are one class: 2,048 workers
are a handful of classes. Each class has a stream on which it computes, and one for each kind of link. A
kernel runs when those before it are done; a collective begins when the last of those who take part has
come to it, and when the links are free. One that was started goes on beside the kernels until somebody
waits for it, as far as the machine can (`Machine.background`).

Loops are run until an iteration takes as long as the one before; the others are then known. A `while` is
taken to run as often as `repeats` says, a `branch` as its longer side. What files take is left out."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, Mesh, bounds_of_many, coords_of_many
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.user_line import misfit
from ostinato.ops.planned.collective import REDUCING, collective_of
from ostinato.ops.planned.offloaded import OFFLOADED

from ostinato.errors import ArgumentError, MemoryLimitError

from .layouts.costs import kernel_work, repeats
from .machine import Machine, resolve
from .plan import Again, Plan, Program, export, functions, largest_part, local_bytes
from .prediction import Leg, Part, Reuse, call_seconds, legs, local, machine_of, runs, work_of
from .title import title

COMPUTE = -1  # the stream of kernels; others have the number of a level of links
MOST_EVENTS = 20_000
SAME = 1e-9  # of a second, by which iterations may differ that count as equal
TRIES = 6  # iterations until a loop is taken to be steady


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a class of workers does."""

    workers: int  # which class
    stream: int
    start: float
    end: float
    name: str
    line: str
    times: int = 1  # iterations that it stands for
    dense: bool = False  # whether it is a product, or has one


@dataclass(frozen=True, slots=True)
class WorkerClass:
    """Workers that do the same at the same time."""

    workers: int
    first: int  # a rank among them
    computing: float  # seconds
    waiting: float  # for collectives


@dataclass(frozen=True, slots=True)
class LinkUse:
    name: str
    bytes: int  # that cross there in a run, over all workers
    seconds: float  # in which a worker's is in use
    collectives: int


@dataclass(frozen=True)
class Simulation:
    """What a run of a plan takes on the model of a machine."""

    machine: Machine
    mesh: Mesh
    seconds: float
    classes: tuple[WorkerClass, ...]
    links: tuple[LinkUse, ...]
    peak_bytes: int  # of the worker with the largest parts
    events: tuple[Event, ...]
    program: Program | None = field(default=None, compare=False, repr=False)
    again: Again | None = field(default=None, compare=False, repr=False)

    @property
    def workers(self) -> int:
        return math.prod(self.mesh)

    @property
    def computing(self) -> float:
        """Seconds in kernels, on average over the workers."""
        return sum(c.workers * c.computing for c in self.classes) / self.workers

    @property
    def imbalance(self) -> float:
        """How much longer than the average the slowest worker computes: 0 where all do the same."""
        most = max(c.computing for c in self.classes)
        return most / self.computing - 1 if self.computing else 0.0

    @property
    def fits(self) -> bool:
        """Whether the memory of a worker is enough."""
        return self.peak_bytes <= self.machine.memory

    @property
    def streams(self) -> dict[int, str]:
        """The names of streams that were in use."""
        used = {e.stream for e in self.events}
        names = {k: link_name(self.machine, k) for k in range(len(self.machine.levels) + 1)}
        return {k: name for k, name in {COMPUTE: "kernels", **names}.items() if k in used}

    # -- other numbers of workers ------------------------------------------------------------
    @property
    def limits(self) -> tuple[Any, ...]:
        """List what it waits for, the most important first: each a `what`, and the share of its
        time that it `saves` if this were twice as fast."""
        found: tuple[Any, ...] = functions["limits"](self)
        return found

    def scaling(self, counts: Sequence[int], weak: bool = False) -> list[Scaled]:
        """Simulate on other numbers of workers, planned anew for each. Strong: the arrays stay as
        large as they are; weak: extents along which they are split grow as the workers do. A number
        on which the plan does not fit into memory has no time."""
        if self.again is None:
            got = "a plan of arrays that exist"
            needed = "one that can be made again"
            do = "make it by ost.plan(function, ost.spec(...), mesh=..., machine=...)"
            raise misfit(ArgumentError, "scaling", got=got, needed=needed, do=do)
        rows: list[Scaled] = []
        for count in counts:
            mesh = mesh_of(count, self.mesh)
            try:
                found = self.again(mesh, weak).simulate(self.machine)
                rows.append(Scaled(count, mesh, found.seconds, found.peak_bytes))
            except MemoryLimitError:
                rows.append(Scaled(count, mesh, math.inf, 0))
        first = next((r for r in rows if r.seconds < math.inf), None)
        if first is None:
            return rows
        return [replace(r, efficiency=_efficiency(first, r, weak)) for r in rows]

    def __str__(self) -> str:
        return str(functions["simulation_in_words"](self))

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write it as a trace for chrome://tracing or Perfetto (JSON)."""
        functions["trace"](self, path)


@dataclass(frozen=True, slots=True)
class Scaled:
    """A simulation on another number of workers."""

    workers: int
    mesh: Mesh
    seconds: float
    peak_bytes: int
    efficiency: float = 1.0  # against the smallest number on which it fits

    def __str__(self) -> str:
        return str(functions["scaled_in_words"](self))


def _efficiency(first: Scaled, row: Scaled, weak: bool) -> float:
    if row.seconds in (0.0, math.inf):
        return 0.0
    more = 1.0 if weak else row.workers / first.workers
    return first.seconds / row.seconds / more


def mesh_of(count: int, like: Mesh) -> Mesh:
    """A mesh of so many workers whose inner axes are those of another one, as far as they divide it."""
    found, left = [], count
    for n in reversed(like[1:]):
        found.append(math.gcd(left, n))
        left //= found[-1]
    return (left, *reversed(found))


@export
def simulated(plan: Plan, machine: Machine | str | os.PathLike[str] | None = None) -> Simulation:
    """Simulate a plan on a machine: `Plan.simulate`."""
    model = machine_of(plan.target) if machine is None else resolve(machine)
    found = simulate(plan.program, model, plan.target.mesh, plan.peak_bytes)
    return replace(found, again=plan.again)


def link_name(machine: Machine, level: int) -> str:
    if level == len(machine.levels):
        return machine.offload.name or "elsewhere"
    return machine.levels[level][1].name or (f"link {level}" if len(machine.levels) > 1 else "link")


Classes = tuple[np.ndarray[Any, Any], list[int]]  # of each worker, and the first of each


def simulate(
    program: Program,
    machine: Machine,
    mesh: Mesh,
    peak_bytes: int = 0,
    classes: Classes | None = None,
) -> Simulation:
    """One run of a program that was run before. The host starts it while a device runs the one before,
    unless workers have to meet. `classes`: those of its workers, where they are known."""
    ids, firsts = classes or worker_classes(program, mesh)
    counts = np.bincount(ids, minlength=len(firsts)).tolist()
    run = _Run(machine, mesh, ids, [local(mesh, r) for r in firsts])
    is_ahead = not described(machine.device).is_host and math.prod(mesh) == 1
    run.now[:] = 0.0 if is_ahead else machine.run_seconds
    run.program(program)
    kinds = tuple(
        WorkerClass(n, r, float(run.busy[c]), float(run.waited[c]))
        for c, (n, r) in enumerate(zip(counts, firsts, strict=True))
    )
    links = tuple(
        LinkUse(link_name(machine, k), run.sent[k], run.used[k], run.count[k])
        for k in range(len(machine.levels))
        if run.count[k]
    )
    least = machine.run_seconds if is_ahead else 0.0
    end = float(max(least, run.now.max(), max((f.max() for f in run.free), default=0.0)))
    events = tuple(run.events)
    return Simulation(machine, mesh, end, kinds, links, peak_bytes, events, program)


def unmade_seconds(graph: Graph, machine: Machine, mesh: Mesh) -> float:
    """Estimate the seconds of a graph on the worker that has most to do, before kernels are made of
    it."""
    run = _Run(machine, mesh, np.zeros(math.prod(mesh), np.int64), [largest_part], silent=True)
    run.program(graph)
    return float(max(run.now.max(), *(f.max() for f in run.free)))


# -- which workers do the same -------------------------------------------------------------------
def worker_classes(program: Program, mesh: Mesh) -> Classes:
    """The class of each worker, and the first worker of each class."""
    workers = math.prod(mesh)
    ids = np.zeros(workers, np.int64)
    ranks = np.arange(workers)
    for layout, size, dim in dict.fromkeys(_cuts(program)):
        turns = layout.workers // workers
        lo, hi = bounds_of_many(layout, size, dim, coords_of_many(layout.mesh, ranks * turns))
        ids = _refined(ids, np.broadcast_to(hi - lo, ids.shape))
    groups = dict.fromkeys(_groups(program))
    count = 0
    while groups and count < (count := int(ids.max()) + 1) < 64:
        for axes in groups:  # those who meet others are others
            ids = _refined(ids, _company(ids, mesh, axes))
    _, firsts, ids = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[ids], sorted(firsts.tolist())


def _refined(ids: Any, by: Any) -> Any:
    if by.min() == by.max():
        return ids
    kinds = _numbered(by)
    return _numbered(ids * (int(kinds.max()) + 1) + kinds)


def _numbered(keys: Any) -> Any:
    """For each key, how many different ones are smaller. Keys that lie close together are not sorted."""
    least = int(keys.min())
    span = int(keys.max()) - least + 1
    if span > 8 * len(keys):
        return np.unique(keys, return_inverse=True)[1]
    seen = np.zeros(span, bool)
    seen[keys - least] = True
    return (np.cumsum(seen) - 1)[keys - least]


def _cuts(program: Program) -> Iterator[tuple[Layout, int, int]]:
    """Dimensions that are cut, in a program and its bodies."""
    for graph in _graphs(program):
        for spec in graph.specs:
            layout = spec.layout
            if layout is not None and not layout.is_whole and not layout.stored:
                for dim, size in enumerate(spec.shape):
                    if layout.axes(dim):
                        yield layout, size, dim


def _graphs(program: Program) -> Iterator[Graph]:
    yield program.graph
    for bodies in program.bodies.values():
        for body in bodies:
            yield from _graphs(body)


def _groups(program: Program) -> Iterator[tuple[int, ...]]:
    for graph in _graphs(program):
        for node in graph.nodes:
            if collective_of(node.op, node.kw):
                yield _meeting(node, [graph.specs[v] for v in node.inputs])


def _meeting(node: Node, ins: Sequence[Spec]) -> tuple[int, ...]:
    """The axes of the mesh along which those stand who take part in a collective."""
    kind = collective_of(node.op, node.kw)
    here, there = ins[0].layout, node.specs[0].layout
    assert here is not None
    if kind in REDUCING:
        return tuple(sorted(node.kw["axes"]))
    if there is None or here.mesh != there.mesh:
        return tuple(range(len(here.mesh)))
    axes = [a for a in range(len(here.mesh)) if here.splits[a] != there.splits[a]]
    return tuple(axes or range(len(here.mesh)))


def _company(ids: Any, mesh: Mesh, axes: Sequence[int]) -> Any:
    """For each worker a number for the set of classes in its group."""
    others = [a for a in range(len(mesh)) if a not in axes]
    order = [*others, *axes]
    extents = [mesh[a] for a in order]
    groups = math.prod(mesh[a] for a in others)
    rows = ids.reshape(mesh).transpose(order).reshape(groups, -1)
    there = np.zeros((groups, int(ids.max()) + 1), bool)
    there[np.arange(groups)[:, None], rows] = True
    kinds = np.unique(there, axis=0, return_inverse=True)[1].reshape(-1)
    each = np.repeat(kinds, rows.shape[1]).reshape(extents)
    return each.transpose(np.argsort(order)).reshape(-1)


# -- events --------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Pending:
    """A collective that was started."""

    start: Any  # of each class
    seconds: Any
    legs: list[Leg]
    name: str
    line: str
    share: float | None = None  # that goes on meanwhile, if not the machine's


class _Kernels:
    """What the kernels of a program take, each class of workers having its parts."""

    def __init__(
        self, program: Program, machine: Machine, parts: Sequence[Part], depth: int
    ) -> None:
        self.program, self.graph, self.machine = program, program.graph, machine
        self.reuse = [Reuse(program, part) for part in parts]
        self.call = call_seconds(program, machine, depth)

    def runs(self, k: int) -> bool:
        return runs(self.program, k)

    def bodies(self, k: int) -> Sequence[Program]:
        return self.program.bodies.get(k, ())

    def spent(self, k: int) -> tuple[Any, bool]:
        """Seconds of each class, and whether it is a product, or has one."""
        spent, dense = [], False
        for known in self.reuse:
            work = work_of(self.graph, self.graph.nodes[k], known.part)
            moving = known.seconds(k, self.machine, work.moved)
            dense |= work.dense > 0
            spent.append(self.call + work.seconds(self.machine, moving))
        return np.array(spent), dense

    def looked_at(self, k: int) -> None:
        for known in self.reuse:
            known.seconds(k, self.machine, 0.0)


class _Unmade:
    """A graph of which no kernels are made yet: nodes take what the search for layouts counts, on the
    worker that has most to do."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self.graph, self.machine = graph, machine
        self.root = list(range(len(graph.specs)))  # what a value is a look at
        self.bytes = [0 if s.pending else local_bytes(s) for s in graph.specs]
        self.last: dict[int, int] = {}  # of each value, the bytes that were looked at before
        self.now = 0
        self.work: dict[Any, tuple[float, float]] = {}  # of nodes that are alike
        for k, node in enumerate(graph.nodes):
            if node.op == "wait" or OPS[node.op].view is not None:
                for v, seen in zip(graph.outs(k), node.inputs, strict=False):
                    self.root[v], self.bytes[v] = self.root[seen], 0
        self.all = sum(self.bytes)

    def runs(self, k: int) -> bool:
        return self.graph.nodes[k].op != "constant"

    def bodies(self, k: int) -> Sequence[Graph]:
        return [g for _, g in self.graph.nodes[k].subgraphs()]

    def spent(self, k: int) -> tuple[Any, bool]:
        node = self.graph.nodes[k]
        if OPS[node.op].view is not None:
            return np.zeros(1), False
        read = tuple([self.graph.specs[v] for v in node.inputs])
        alike = node.op, node.key, read, node.specs
        if alike not in self.work:
            ins, outs = ([largest_part(s) for s in some] for some in (read, node.specs))
            self.work[alike] = kernel_work(self.machine, node, ins, outs)
        computing, touched = self.work[alike]
        moving = touched * self.looked_at(k)
        return np.array([self.machine.call_seconds + max(computing, moving)]), False

    def looked_at(self, k: int) -> float:
        """The seconds for a byte of what a node reads and writes, from a cache that holds all that was
        looked at since."""
        spent, before = 0.0, self.now
        for v in dict.fromkeys((*self.graph.nodes[k].inputs, *self.graph.outs(k))):
            v = self.root[v]
            size = self.bytes[v]
            since = before - self.last[v] if v in self.last else self.all
            spent += self.machine.moving_seconds(size, max(since, size))
            self.last[v], self.now = before, self.now + size
        return spent / max(self.now - before, 1)


@dataclass(slots=True)
class _Run:
    """The state of all classes."""

    machine: Machine
    mesh: Mesh
    ids: Any
    parts: list[Part]
    now: Any = field(init=False)  # when each class is done with what it was asked
    busy: Any = field(init=False)  # seconds in kernels
    waited: Any = field(init=False)
    free: list[Any] = field(init=False)  # of each level, when a class's link is
    sent: list[int] = field(init=False)
    used: list[float] = field(init=False)
    count: list[int] = field(init=False)
    events: list[Event] = field(default_factory=list)
    company: dict[tuple[int, ...], Any] = field(default_factory=dict)
    silent: bool = False  # whether what happens is drawn

    def __post_init__(self) -> None:
        classes, levels = len(self.parts), len(self.machine.levels)
        self.now, self.busy, self.waited = (np.zeros(classes) for _ in range(3))
        self.free = [np.zeros(classes) for _ in range(levels + 1)]  # the last: to the host, a disk
        self.sent, self.used, self.count = [0] * levels, [0.0] * levels, [0] * levels

    # -- programs --------------------------------------------------------------------------
    def program(self, program: Program | Graph, depth: int = 0) -> None:
        kernels: _Kernels | _Unmade = (
            _Unmade(program, self.machine)
            if isinstance(program, Graph)
            else _Kernels(program, self.machine, self.parts, depth)
        )
        graph = kernels.graph
        pending: dict[int, _Pending] = {}
        for k, node in enumerate(graph.nodes):
            if not kernels.runs(k):
                continue
            inner = kernels.bodies(k)
            ins = [graph.specs[v] for v in node.inputs]
            if node.op == "wait":
                self.wait(pending[graph.starts[graph.producers[node.inputs[0]]]])
            elif node.op in OFFLOADED:
                pending[graph.starts[k]] = self.offload(node, ins[0])
            elif collective_of(node.op, node.kw):
                started = self.collective(node, ins)
                if node.op == "start":
                    pending[graph.starts[k]] = started
                else:
                    self.until(started.start + started.seconds)
            elif inner:
                self.bodies(node, inner, depth + 1)
            else:
                self.kernel(node, *kernels.spent(k))
                continue
            kernels.looked_at(k)

    def bodies(self, node: Node, inner: Sequence[Program | Graph], depth: int) -> None:
        if node.op == "branch":
            self.longest(inner, depth)
            return
        trips = repeats(node)
        begun, took, done = self.state(), math.nan, 0
        while done < trips:
            begun = self.state()
            self.silent, was = self.silent or done > 2, self.silent
            for body in inner:
                self.program(body, depth)
            self.silent = was
            done += 1
            last, took = took, float((self.now - begun[0]).max())
            if abs(took - last) <= SAME or done == TRIES:
                break
        self.again(node, trips - done, begun)

    def again(self, node: Node, times: int, begun: Sequence[Any]) -> None:
        """As many more iterations as the last one was."""
        if times <= 0:
            return
        start = self.now.copy()
        now, busy, waited, free, sent, used, count = begun
        step = float((self.now - now).max())
        self.now += times * step
        self.busy += times * (self.busy - busy)
        self.waited += times * (self.waited - waited)
        for f, g in zip(self.free, free, strict=True):
            f += np.where(f > g, times * step, 0.0)
        for k in range(len(self.sent)):
            self.sent[k] += times * (self.sent[k] - sent[k])
            self.used[k] += times * (self.used[k] - used[k])
            self.count[k] += times * (self.count[k] - count[k])
        self.draw(COMPUTE, start, self.now, f"{times} more iterations", node.line, times)

    def longest(self, inner: Sequence[Program | Graph], depth: int) -> None:
        ends = []
        begun = self.state()
        for body in inner:
            self.restore(begun)
            self.program(body, depth)
            ends.append(self.state())
        self.restore(max(ends, key=lambda state: float(state[0].max())))

    def state(self) -> tuple[Any, ...]:
        arrays = self.now.copy(), self.busy.copy(), self.waited.copy()
        lists = [f.copy() for f in self.free], list(self.sent), list(self.used), list(self.count)
        return *arrays, *lists

    def restore(self, state: tuple[Any, ...]) -> None:
        self.now, self.busy, self.waited = (x.copy() for x in state[:3])
        self.free = [f.copy() for f in state[3]]
        self.sent, self.used, self.count = (list(x) for x in state[4:])

    # -- nodes -----------------------------------------------------------------------------
    def kernel(self, node: Node, spent: Any, dense: bool) -> None:
        start = self.now.copy()
        self.now += spent
        self.busy += spent
        self.draw(COMPUTE, start, self.now, title(node), node.line, dense=dense)

    def collective(self, node: Node, ins: Sequence[Spec]) -> _Pending:
        """It begins when the last of each group has come, and the links are free."""
        way = legs(node, ins, self.machine)
        group = _meeting(node, ins)
        begin = self.last_of(self.now, group)
        at = begin
        for leg in way:
            free = self.free[leg.level]
            at = np.maximum(at, self.last_of(free, group))
            begin = at if leg is way[0] else begin
            end = at + leg.seconds
            self.free[leg.level] = end
            # else its end is not known yet
            if node.op != "start" or self.machine.background == 1.0:
                self.draw(leg.level, at, end, collective_of(node.op, node.kw), node.line)
            self.sent[leg.level] += leg.sent
            self.used[leg.level] += leg.seconds
            self.count[leg.level] += 1
            at = end
        seconds = float((at - begin).max()) if way else 0.0
        return _Pending(begin, seconds, way, collective_of(node.op, node.kw), node.line)

    def offload(self, node: Node, value: Spec) -> _Pending:
        """To the host or a disk, or back: one after the other, beside kernels."""
        link = self.machine.offload
        seconds = np.array([link.message(part(value).nbytes) for part in self.parts])
        begin = np.maximum(self.now, self.free[-1])
        self.free[-1] = begin + seconds
        self.draw(len(self.free) - 1, begin, self.free[-1], node.op, node.line)
        return _Pending(begin, seconds, [], node.op, node.line, 1.0)

    def wait(self, started: _Pending) -> None:
        """Wait for a started collective: what did not go on in the background is done now."""
        share = self.machine.background if started.share is None else started.share
        done = share * np.maximum(0.0, self.now - started.start)
        left = np.maximum(0.0, started.seconds - done)
        end = np.maximum(self.now, started.start) + left
        if share < 1.0:
            for leg in started.legs:
                self.free[leg.level] = np.maximum(self.free[leg.level], end)
            if started.legs:
                last = started.legs[-1].level
                self.draw(last, started.start, end, started.name, started.line)
        self.until(end)

    def until(self, end: Any) -> None:
        later = np.maximum(self.now, end)
        self.waited += later - self.now
        self.now = later

    def last_of(self, times: Any, group: tuple[int, ...]) -> Any:
        """The latest time in the group of each class."""
        if len(times) == 1:
            return times.copy()
        met = self.company.get(group)
        if met is None:
            met = self.company[group] = self._met(group)
        return np.where(met, times[None, :], -np.inf).max(1)

    def _met(self, group: Sequence[int]) -> Any:
        """Which classes stand in a group with each class."""
        others = [a for a in range(len(self.mesh)) if a not in group]
        rows = self.ids.reshape(self.mesh).transpose([*others, *group])
        rows = rows.reshape(math.prod(self.mesh[a] for a in others), -1)
        classes = len(self.parts)
        there = np.zeros((len(rows), classes), bool)
        there[np.arange(len(rows))[:, None], rows] = True
        return (there.T.astype(np.int64) @ there.astype(np.int64)) > 0

    def draw(
        self,
        stream: int,
        start: Any,
        end: Any,
        name: str,
        line: str,
        times: int = 1,
        dense: bool = False,
    ) -> None:
        if self.silent or len(self.events) >= MOST_EVENTS:
            return
        for c, (a, b) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
            if b > a:
                self.events.append(Event(c, stream, a, b, name, line, times, dense))
