"""Values that are read again much later are made again then, instead of being kept, where memory is
short.

before, with a memory limit                      after
%2 = tanh(%1) : float32[n,n]                     %2 = tanh(%1) : float32[n,n]
%3 = matmul(%2, %0) : float32[n,n]               %3 = matmul(%2, %0) : float32[n,n]
...                                              ...
%9 = matmul(%8, %0) : float32[n,n]               %9 = matmul(%8, %0) : float32[n,n]
%10 = multiply(%9, %2) : float32[n,n]            %10 = barrier(%1, %9; outputs=1) : float32[n,n]
return %10                                       %11 = tanh(%10) : float32[n,n]
                                                 %12 = multiply(%9, %11) : float32[n,n]
                                                 return %12

A value that is made again is read through a `barrier`, which is nothing but an order: not before what
stands behind it exists. So no pass takes both for one, and the bits are those of the first time.

What a running order holds at each moment follows from the program that it becomes. At the fullest
moment each value that nobody reads then could be dropped after its last reader so far, and be made
again before the next one, from what is there, or from what is made again itself. It takes seconds, and
frees bytes; what it is made of has to stay for that, or is made again, too. The least seconds for a byte
come first, until it fits. If that does not do, what is kept is cut into stretches, of which only the
beginnings stay (checkpoints), and each is made again as a whole where it is read first: so a network of n
layers needs about the memory of the root of n, and one more forward pass."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import Device, described
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.flow.control import CONTROL
from ostinato.ops.planned.collective import COLLECTIVES, STORED
from ostinato.planner.lowering import rules
from ostinato.planner.plan import Program, Target, largest_part, local_bytes, peak_bytes
from ostinato.planner.prediction import work_of
from ostinato.planner.rewrite import map_bodies, reorder, with_nodes

from .blocking import running
from .memory import Lifetime, find_roots, usage

KEPT_RATIO = 16  # times smaller than what is made of it: kept rather than made again
WORTH = 2000  # a value is looked at if it is at least this part of the limit
LONGEST = 1000  # nodes that one value is made of again
AWAITED_KERNELS = 8  # kernels for which what is made again waits, rather than being made once more
CHECKPOINTS = (3, 6, 12, 24)  # parts of what is kept over a moment, each made again as a whole
ROUNDS, TRIES = 4, 4  # of the search, and of its aim, which single kernels may miss
LOWERED = 12_000  # nodes of graphs that are looked at as programs, about
MARGIN = 500  # the part of the limit that it aims lower than it missed
NEARER = 0.99  # of the peak before: a round that brings less is the last
_NEVER = {
    *COLLECTIVES,
    *CONTROL,
    *STORED,
    *("relayout", "addend", "round_addends", "start", "wait", "constant", "read", "write"),
}


# -- what is held when ---------------------------------------------------------------------------
@dataclass(slots=True)
class Held:
    """What a graph's program holds, kernel by kernel, by the graph's own values."""

    program: Program
    usage: list[int]  # bytes while each kernel runs
    when: list[int]  # for each node of the graph the kernel that does it; -1: none, or unknown
    stays: dict[int, Lifetime]
    base: list[int]  # for each value the one whose memory it looks at
    results: set[int]  # values that become results
    makes: list[int]  # for each kernel a value of the graph that it makes; -1: none is known

    @property
    def slack(self) -> int:
        """Count the bytes that the arena has in addition: gaps, and what single kernels need."""
        return self.program.arena_bytes - max(self.usage, default=0)


def followed(graph: Graph, target: Target, donated: Sequence[int]) -> Program:
    """The program of a graph, in which lines are numbers of the graph's nodes."""
    return running(_numbered(graph), target, donated)


def held(graph: Graph, program: Program, device: Device) -> Held:
    """Find what the program of a graph holds, in which that can be `followed`."""
    when = [-1] * len(graph.nodes)
    known = _followed(graph, program.graph, when)
    slots, kernels, root = program.slots, program.graph, find_roots(program)
    used, lives = usage(program, device)
    stays = {known[v]: life for v, life in lives.items() if v in known}
    results = {known[v] for v, s in enumerate(slots) if s.kind == "output" and v in known}
    base = list(range(len(graph.specs)))
    for v, mine in known.items():
        if root[v] != v and known.get(root[v], -1) in looks_of(graph, mine):
            base[mine] = known[root[v]]
    for v in range(len(graph.inputs), len(graph.specs)):
        if base[v] == v and v not in stays and (seen := looked_at(graph, v)) >= 0:
            base[v] = base[seen]
    makes = [-1] * len(kernels.nodes)
    for v, mine in known.items():
        k = kernels.producers[v]
        if k >= 0 and slots[v].kind in ("arena", "output") and not kernels.specs[v].pending:
            makes[k] = mine
    return Held(program, used, when, stays, base, results, makes)


def _numbered(graph: Graph) -> Graph:
    """The graph with its nodes' numbers for lines, which passes carry along."""
    nodes = [
        Node(n.op, n.inputs, n.params, n.specs, str(k), n.key) for k, n in enumerate(graph.nodes)
    ]
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _followed(graph: Graph, kernels: Graph, when: list[int]) -> dict[int, int]:
    """For values of kernels those of the graph; notes `when` nodes of the graph are done first."""
    known = {v: v for v in range(len(graph.inputs))}

    def origin(node: Node, j: int) -> int:
        """The value of the graph that a node's j-th result is; -1 if that is none."""
        if not node.line.isdigit():
            return -1
        mine = graph.nodes[int(node.line)]
        if node.op not in (mine.op, "wait") or len(node.specs) != len(mine.specs):
            return -1
        a, b = node.specs[j], mine.specs[j]
        same = (a.shape, a.dtype, a.layout) == (b.shape, b.dtype, b.layout)
        return graph.starts[int(node.line)] + j if same else -1

    for time, node in enumerate(kernels.nodes):
        body = node.kw.get("body") if OPS[node.op].made_by == "machine" else None
        inside = body.nodes if isinstance(body, Graph) else (node,)
        for n in inside:
            if n.line.isdigit() and when[int(n.line)] < 0:
                when[int(n.line)] = time
        for j, v in enumerate(kernels.outs(time)):
            if isinstance(body, Graph):
                w = body.outputs[j]
                k = body.producers[w]
                mine = origin(body.nodes[k], w - body.starts[k]) if k >= 0 else -1
            else:
                mine = origin(node, j)
            if mine >= 0:
                known[v] = mine
    return known


def looked_at(graph: Graph, v: int) -> int:
    """The value that this one is another look at; -1 if it is none."""
    k = graph.producers[v]
    if k < 0:
        return -1
    node = graph.nodes[k]
    if node.op == "barrier":
        return node.inputs[v - graph.starts[k]]
    return node.inputs[0] if OPS[node.op].view is not None else -1


def looks_of(graph: Graph, v: int) -> Iterator[int]:
    """Yield what a value is another look at, and what that is one of."""
    while (v := looked_at(graph, v)) >= 0:
        yield v


def read_by(node: Node) -> tuple[int, ...]:
    """List the operands that a node's results are made of; for others a `barrier` only waits."""
    return node.inputs[: len(node.specs)] if node.op == "barrier" else node.inputs


# -- what is made again --------------------------------------------------------------------------
# a node is done again before one kernel, for those until another
Copies = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Step:
    """Values dropped and made again: what that changes."""

    early: dict[int, int]  # for each value the last kernel that reads it before
    at: dict[int, int]  # and the one before which it is made again
    gain: int = 0  # bytes, at the fullest moment
    seconds: float = 0.0
    copies: dict[int, Copies] = field(default_factory=dict)  # of nodes that are done again
    stay: dict[int, int] = field(default_factory=dict)  # what stays longer, or is kept at all
    between: dict[int, int] = field(default_factory=dict)  # what was gone, and is made on the way
    change: list[tuple[int, int, int]] = field(default_factory=list)  # first, last kernel; bytes


class Search:
    """What to make again so that the arena stays within a number of bytes."""

    def __init__(self, graph: Graph, target: Target, found: Held, least: int) -> None:
        self.graph, self.target, self.found = graph, target, found
        self.usage = np.array(found.usage or [0], np.int64)
        self.least = least  # bytes of a value that is worth it
        self.dearest = np.inf  # seconds for a byte, above which nothing is made again
        self.fused = bool(rules(target).passes)
        self.times = self._times()
        self.until = {v: s.until for v, s in found.stays.items()}
        self.reads = {v: sorted(s.reads) for v, s in found.stays.items()}
        self.dropped: dict[int, int] = {}  # values, and their last kernels before
        self.copies: dict[int, Copies] = {}  # of nodes that are done again
        self.steps: list[_Step] = []
        self._seconds: dict[int, float] = {}
        self.looks: dict[int, list[int]] = {}
        for v, b in enumerate(found.base):
            if v != b:
                self.looks.setdefault(b, []).append(v)

    def _times(self) -> list[int]:
        """For each node a kernel's number, none before those of its operands."""
        graph, found = self.graph, list[int]()
        for k, node in enumerate(graph.nodes):
            before = [found[p] for v in node.inputs if (p := graph.producers[v]) >= 0]
            found.append(max([self.found.when[k], *before]))
        return found

    def fit(self, most: int) -> bool:
        """Whether there are steps after which the usage is at most this; they are taken."""
        waiting: list[tuple[float, bool, tuple[int, ...]]] = []
        full = -1
        while int(self.usage.max()) > most:
            at = int(self.usage.argmax())
            if not waiting:
                if full == at:
                    return False
                full = at
                waiting = list(self._candidates(at, most))
                heapq.heapify(waiting)
                continue
            _, deep, values = heapq.heappop(waiting)
            step = self._step(values, at, deep)
            if step is None or not self._helps(step, most):
                continue
            if sum(map(len, self.copies.values())) > len(self.graph.nodes):
                return False  # on average each was made twice
            rate = step.seconds / step.gain
            if rate > self.dearest:
                return False
            if waiting and rate > waiting[0][0] * (1 + 1e-9) + 1e-30:
                heapq.heappush(waiting, (rate, deep, values))
                continue
            self._take(step)
            full = -1
        return True

    def _candidates(self, at: int, most: int) -> Iterator[tuple[float, bool, tuple[int, ...]]]:
        """Values to drop over a moment, with the seconds for a byte: from what is kept for that, or,
        `deep`, from what is there anyway; and together those that are made of the same that is kept."""
        together: dict[tuple[int, ...], list[int]] = {}
        for v, until in list(self.until.items()):
            stay = self.found.stays.get(v)
            if stay is None or stay.size < self.least or not stay.made < at < until:
                continue
            step = self._step((v,), at, False)
            if step is not None and self._helps(step, most):
                yield step.seconds / step.gain, False, (v,)
            kept = () if step is None else tuple(sorted(w for w in step.stay if self._ends(w) < at))
            if kept:
                together.setdefault(kept, []).append(v)
            if kept or step is None:
                step = self._step((v,), at, True)
                if step is not None and self._helps(step, most):
                    yield step.seconds / step.gain, True, (v,)
        for values in together.values():
            if len(values) > 1:
                step = self._step(tuple(values), at, False)
                if step is not None and self._helps(step, most):
                    yield step.seconds / step.gain, False, tuple(values)

    def checkpoint(self, parts: int) -> None:
        """Keep, of what is kept over the fullest moment, only what so many stretches begin with, and make each
        stretch but the last again as a whole where it is read first."""
        at, kept = int(self.usage.argmax()), set[int]()
        for values in list(self._stretches(at, parts))[-2::-1]:
            step = self._step([v for v in values if v not in kept], at, True)
            if step is not None and step.gain > 0:
                self._take(step)
                kept.update(step.stay)

    def _stretches(self, at: int, parts: int) -> Iterator[tuple[int, ...]]:
        """Values that were made one after the other and are kept over a moment, in so many parts."""
        stays = self.found.stays
        over = [v for v, until in self.until.items() if v in stays and stays[v].made < at < until]
        over = [v for v in over if stays[v].size >= self.least and self._again(v)]
        over.sort(key=lambda v: stays[v].made)
        ends = [len(over) * n // parts for n in range(parts + 1)]
        yield from (tuple(over[a:b]) for a, b in itertools.pairwise(ends) if a < b)

    def _ends(self, v: int) -> int:
        """The last kernel for which a value is kept."""
        return self.until[v] if v in self.until else self.times[self.graph.producers[v]] - 1

    def _step(self, values: Sequence[int], moment: int, deep: bool) -> _Step | None:
        """Find what dropping values over a moment would change; None if that cannot be."""
        step = _Step({}, {})
        later: dict[int, list[int]] = {}
        for v in values:
            stay = self.found.stays[v]
            if v in self.dropped or not stay.made < moment < self.until[v]:
                continue
            if v in self.found.results or moment in self.reads[v] or not self._again(v):
                continue
            later[v] = [r for r in self.reads[v] if r > moment]
            if later[v]:
                step.early[v] = max([r for r in self.reads[v] if r < moment], default=stay.made)
                step.at[v] = min(later[v])
        for v in sorted(step.at, key=lambda v: step.at[v]):
            if not self._closure(step, v, moment if deep else 0):
                return None
        change = step.change
        for v in step.at:
            size, maker = self.found.stays[v].size, self.graph.nodes[self.graph.producers[v]]
            step.gain += size
            change.append((step.early[v] + 1, self.until[v], -size))
            inside = self.fused and bool(OPS[maker.op].scalar)
            if not (inside and len(set(later[v])) == 1):
                change.append((step.at[v], max(later[v]), size))
        change.extend((time, time, size) for time, size in self._passing(step))
        for w, until in step.stay.items():
            begin = self._ends(w) + 1
            change.append((begin, until, self._size(w)))
            if begin <= moment:
                step.gain -= self._size(w)
        change.extend(self._waiting(step))
        return step if step.at else None

    def _passing(self, step: _Step) -> Iterator[tuple[int, int]]:
        """The most bytes that are there at once, of what is made on the way to others, by the kernel before
        which that happens."""
        graph, ends = self.graph, dict[int, list[tuple[int, int]]]()
        for w, time in step.between.items():
            k = graph.producers[w]
            if self.fused and OPS[graph.nodes[k].op].scalar:
                continue
            reads = [u for x in (w, *self.looks.get(w, ())) for u in graph.uses[x]]
            ends_now = (time, time) in step.copies[k]
            last = max((u for u in reads if (time, time) in step.copies.get(u, ())), default=k)
            last = last if ends_now else len(graph.nodes)
            ends.setdefault(time, []).extend(((k, self._size(w)), (last + 1, -self._size(w))))
        for time, changes in ends.items():
            yield time, max(itertools.accumulate(size for _, size in sorted(changes)))

    def _waiting(self, step: _Step) -> Iterator[tuple[int, int, int]]:
        """From when to when what is made again once waits for others that read it, and its bytes."""
        for k, copies in step.copies.items():
            size = sum(self._size(w) for w in self.graph.outs(k) if self.found.base[w] == w)
            before = self.copies.get(k, ())
            for n, (begin, end) in enumerate(copies):
                first, last = before[n] if n < len(before) else (begin, begin)
                yield begin, first - 1, size
                yield last + 1, end, size

    def _helps(self, step: _Step, most: int) -> bool:
        """Whether enough is gained, and no other moment becomes as full as the fullest."""
        if step.gain * 8 <= sum(self._size(v) for v in step.at):
            return False
        lows = [(a, b) for a, b, size in step.change if size > 0 and a <= b]
        if not lows:
            return True
        first, last = min(a for a, _ in lows), max(b for _, b in lows)
        before = self.usage[first : last + 1]
        after = before.copy()
        for a, b, size in step.change:
            a, b = max(a, first), min(b, last)
            if a <= b:
                after[a - first : b - first + 1] += size
        rises = after > before
        return not rises.any() or int(after[rises].max()) < max(int(self.usage.max()), most)

    def _again(self, v: int) -> bool:
        """Whether a value, and all that looks at it, could be made again."""
        makers = [self.graph.producers[w] for w in (v, *self.looks.get(v, ()))]
        return all(k >= 0 and self.graph.nodes[k].op not in _NEVER for k in makers)

    def _size(self, v: int) -> int:
        stay = self.found.stays.get(v)
        return stay.size if stay is not None else local_bytes(self.graph.specs[v])

    def _closure(self, step: _Step, value: int, moment: int) -> bool:
        """All that has to be done again for a value, down to what is there then; what is gone before
        the moment is made again, too."""
        graph, at, base = self.graph, step.at[value], self.found.base
        small = self._size(value) // KEPT_RATIO
        waiting, seen = [graph.producers[value]], set[int]()
        while waiting:
            k = waiting.pop()
            if k in seen:
                continue
            seen.add(k)
            if graph.nodes[k].op in _NEVER or len(seen) > LONGEST:
                return False
            copies = list(step.copies.get(k, self.copies.get(k, ())))
            mine = len(self.copies.get(k, ()))  # those of this step serve all of it
            near = (
                n
                for n, (a, b) in enumerate(copies)
                if a - AWAITED_KERNELS <= at <= b + AWAITED_KERNELS or n >= mine
            )
            n = next(near, len(copies))
            if n == len(copies):
                copies.append((at, at))
                step.seconds += self._seconds_of(k)
                is_there = False
            else:
                begin, end = copies[n]
                copies[n], is_there = (min(begin, at), max(end, at)), begin <= at
            step.copies[k] = tuple(copies)
            if is_there:
                continue
            for u in read_by(graph.nodes[k]):
                b = base[u]
                p = graph.producers[b]
                if p < 0 or graph.nodes[p].op == "constant" or b in self.found.results:
                    continue
                is_over = self._ends(b) < moment and self._size(b) > small and self._again(b)
                if is_over and b in self.until and b not in self.dropped and b not in step.stay:
                    step.between[b] = min(step.between.get(b, at), at)
                elif not self._is_gone(b, at, step, small):
                    if self._ends(b) < at:
                        step.stay[b] = max(step.stay.get(b, 0), at)
                    continue
                waiting.append(p)
                while u != b:
                    waiting.append(graph.producers[u])
                    u = looked_at(graph, u)
        return True

    def _is_gone(self, b: int, at: int, step: _Step, small: int) -> bool:
        """Whether a value is not there any more before a kernel, nor better kept until then."""
        if b in step.early:
            return at > step.early[b]
        if b in self.dropped:
            return at > self.dropped[b]
        if b in self.until or b in step.stay:
            return False
        return self._size(b) > small or self.times[self.graph.producers[b]] < 0

    def _seconds_of(self, k: int) -> float:
        found = self._seconds.get(k)
        if found is None:
            node, machine = self.graph.nodes[k], self.target.machine
            found = 0.0
            if OPS[node.op].view is None and node.op != "barrier":
                work = work_of(self.graph, node)
                alone = OPS[node.op].run.dense or not self.fused
                moved = work.moved if alone else 0.0
                parts = [largest_part(self.graph.specs[v]) for v in node.inputs]
                if not alone:
                    moved = max((s.nbytes for s in parts), default=0) / 4
                found = work.seconds(machine, machine.moving_seconds(moved, max(moved, 1e9)))
                found += machine.call_seconds if alone else 0.0
            self._seconds[k] = found
        return found

    def _take(self, step: _Step) -> None:
        for a, b, size in step.change:
            if a <= b:
                self.usage[a : b + 1] += size
        self.copies.update(step.copies)
        for v, early in step.early.items():
            k, at = self.graph.producers[v], step.at[v]
            end = max(r for r in self.reads[v] if r > early)
            there = [(a, max(b, end) if a <= at <= b else b) for a, b in self.copies[k]]
            self.copies[k] = tuple(there)
            self.dropped[v] = self.until[v] = early
        for w in step.between:
            self.dropped[w] = self.until[w]
        for w, until in step.stay.items():
            self.until[w] = until
            self.reads.setdefault(w, []).append(until)
        self.steps.append(step)

    # -- the graph -----------------------------------------------------------------------------
    def graph_with(self) -> Graph:
        graph, base = self.graph, self.found.base
        builder = Builder(graph.inputs)
        first = list(range(len(graph.inputs))) + [-1] * (len(graph.specs) - len(graph.inputs))
        second: dict[int, int] = {}
        latest, here = [], -1
        for v in self.found.makes:
            latest.append(here)  # of the kernels before
            here = v if v >= 0 else here

        def is_late(u: int, time: int) -> bool:
            b = base[u]
            return u in second and b in self.dropped and time > self.dropped[b]

        def delayed(u: int, time: int) -> int:
            """A value, but not before the kernels ahead of this one have run."""
            p = graph.producers[u]
            if p >= 0 and graph.nodes[p].op == "constant":
                if first[u] < 0:  # it stands behind what is made again
                    (first[u],) = do(p, ())
                return first[u]
            after = latest[time]
            ready = [first[after]] if after >= 0 and first[after] >= 0 else []
            spec = graph.specs[u]
            return builder.add("barrier", (first[u], *ready), {"outputs": 1}, (spec,))[0]

        def do(k: int, read: Sequence[int]) -> tuple[int, ...]:
            node = graph.nodes[k]
            return builder.add(node.op, read, node.params, node.specs, node.line)

        again = {(time, k) for k, copies in self.copies.items() for time, _ in copies}
        for time, k in tuple(again):  # with all that looks at what they make
            looks = [w for v in graph.outs(k) for w in self.looks.get(v, ())]
            again |= {(time, graph.producers[w]) for w in looks}
        waiting = sorted(again, reverse=True)
        for time, k in sorted((time, k) for k, time in enumerate(self.times)):
            while waiting and waiting[-1][0] <= time:
                at, j = waiting.pop()
                node, read = graph.nodes[j], list[int]()
                for u in read_by(node):
                    inner = u in second and base[u] not in self.until
                    read.append(second[u] if inner or is_late(u, at) else delayed(u, at))
                made = read if node.op == "barrier" else do(j, read)
                second.update(zip(graph.outs(j), made, strict=True))
            inputs = graph.nodes[k].inputs
            made = do(k, [second[u] if is_late(u, time) else first[u] for u in inputs])
            for v, new in zip(graph.outs(k), made, strict=True):
                first[v] = new
        outputs = tuple([first[v] for v in graph.outputs])
        return _living(Graph(builder.inputs, tuple(builder.nodes), outputs))


def _living(graph: Graph) -> Graph:
    """Without what nothing reads; all else stands where it stood."""
    read, kept = {*graph.outputs}, list[int]()
    for k in reversed(range(len(graph.nodes))):
        if not read.isdisjoint(graph.outs(k)):
            read.update(graph.nodes[k].inputs)
            kept.append(k)
    return reorder(graph, kept[::-1])


class _Programs:
    """What graphs become, each followed once: searches that differ may make the same graph."""

    def __init__(self, target: Target, donated: Sequence[int]) -> None:
        self.target, self.donated = target, donated
        self.known: dict[Graph, Held] = {}
        self.left = LOWERED  # nodes of graphs that may still be looked at as programs

    @property
    def is_spent(self) -> bool:
        return self.left <= 0 and len(self.known) >= TRIES

    def held(self, graph: Graph, program: Program) -> Held:
        return held(graph, program, described(self.target.device))

    def __call__(self, graph: Graph) -> Held:
        if graph not in self.known:
            self.left -= len(graph.nodes)
            self.known[graph] = self.held(graph, followed(graph, self.target, self.donated))
        return self.known[graph]


def recomputed(
    graph: Graph, program: Program, target: Target, donated: Sequence[int], limit: int
) -> tuple[Graph, Program]:
    """The graph with values made again until it fits, or as far as that goes; and its program."""
    programs = _Programs(target, donated)
    best = graph, programs.held(graph, program)
    for _ in range(ROUNDS):
        here = best
        for search in (_round, _within):
            if peak_bytes(best[1].program) <= limit or programs.is_spent:
                return best[0], best[1].program
            found = search(*here, programs, limit)
            best = min(best, found, key=lambda f: peak_bytes(f[1].program))
        if peak_bytes(best[1].program) > peak_bytes(here[1].program) * NEARER:
            break
    return best[0], best[1].program


def recomputed_below(
    graph: Graph, program: Program, target: Target, limit: int, dearest: float
) -> Graph:
    """The graph with values made again as long as a byte costs less than so many seconds."""
    found = held(graph, program, described(target.device))
    search = Search(graph, target, found, max(limit // WORTH, 1))
    search.dearest = dearest
    search.fit(limit - (peak_bytes(program) - program.arena_bytes) - found.slack)
    return search.graph_with() if search.steps else graph


def _within(graph: Graph, found: Held, programs: _Programs, limit: int) -> tuple[Graph, Held]:
    """Recompute in the bodies of the node that runs when memory is fullest, if it has some."""
    program, target = found.program, programs.target
    fullest = program.graph.nodes[program.peak_node] if program.peak_node >= 0 else None
    if fullest is None or fullest.op not in CONTROL or not fullest.line.isdigit():
        return graph, found
    over, k = peak_bytes(program) - limit, int(fullest.line)

    def less(body: Graph) -> Graph:
        alone = followed(body, target, ())
        return recomputed(body, alone, target, (), peak_bytes(alone) - over)[0]

    node = map_bodies(graph.nodes[k], less)
    made = with_nodes(graph, [*graph.nodes[:k], node, *graph.nodes[k + 1 :]])
    return (graph, found) if made is graph else (made, programs(made))


def _round(graph: Graph, found: Held, programs: _Programs, limit: int) -> tuple[Graph, Held]:
    """A search, and another one where its program misses by far."""
    outside = peak_bytes(found.program) - found.program.arena_bytes
    most, least = limit - outside - found.slack, max(limit // WORTH, 1)
    best = graph, found
    for search in _searches(graph, found, programs.target, most, least)[: TRIES // 2]:
        seen = _aimed(search, best, programs, limit, most)
        best = min(best, seen, key=lambda f: peak_bytes(f[1].program))
        if peak_bytes(best[1].program) <= limit or programs.is_spent:
            break
    return best


def _aimed(
    search: Search, best: tuple[Graph, Held], programs: _Programs, limit: int, most: int
) -> tuple[Graph, Held]:
    """Follow a search, with its aim set again as far as it missed, and a little further each time."""
    margin, made = limit // MARGIN, search.graph
    for _ in range(TRIES):
        before, nearer = made, limit // MARGIN
        fits = search.fit(most)
        while fits and (made := search.graph_with()) == before:  # it had room for the rest
            most -= nearer
            nearer *= 2
            fits = search.fit(most)
        if not fits and (made := search.graph_with()) == before:
            break
        seen = made, programs(made)
        best = min(best, seen, key=lambda f: peak_bytes(f[1].program))
        missed = peak_bytes(seen[1].program) - limit
        if missed <= 0 or not fits or programs.is_spent or 2 * missed > most:  # or is far off
            break
        most = min(most, int(search.usage.max())) - missed - margin
        margin *= 2
    return best


def _searches(graph: Graph, found: Held, target: Target, most: int, least: int) -> list[Search]:
    """Value by value, and with checkpoints: those that fit, by their time, and then by what they need."""
    ranked: list[tuple[bool, float, int, Search]] = []
    for n, parts in enumerate((0, *CHECKPOINTS)):
        search = Search(graph, target, found, least)
        if parts:
            search.checkpoint(parts)
        fits = search.fit(most)
        cost = sum(s.seconds for s in search.steps) if fits else float(search.usage.max())
        ranked.append((not fits, cost, n, search))
    return [search for *_, search in sorted(ranked, key=lambda r: r[:3])]
