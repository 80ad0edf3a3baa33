"""Values that are read again much later go to the host's memory, or to a disk, and come back before that.

before, with a memory limit                after
%2 = tanh(%0) : float32[n,n]               %2 = tanh(%0) : float32[n,n]
%3 = matmul(%2, %1) : float32[n,n]         %3 = matmul(%2, %1) : float32[n,n]
...                                        %4 = stash(%2) : float32[n,n] pending
                                           ...
                                           %6 = wait(%4, %2) : float32[n,n]
                                           ...
                                           %9 = fetch(%6; turn=0) : float32[n,n] pending
%9 = matmul(%8, %1) : float32[n,n]         %10 = matmul(%8, %1) : float32[n,n]
%10 = multiply(%9, %2) : float32[n,n]      %11 = wait(%9, %6) : float32[n,n]
return %10                                 %12 = multiply(%10, %11) : float32[n,n]
                                           return %12

The last means to stay within a limit, of programs whose order is known: it changes no kernel, nor when it
runs, so all bits stay. Between two kernels that read a value its place in the arena is free. At the fullest
moment that value goes which saves most bytes, over all moments that are too full, for each second of the
link; where the others leave room, it leaves later and comes back sooner, so that both are hidden behind
kernels. In loops the same is done in the body. Idempotent: what fits stays as it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from ostinato.ops.core.device import Device, described
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.flow.control import CONTROL
from ostinato.ops.planned.collective import collective_of
from ostinato.ops.planned.offloaded import FETCH, OFFLOADED, STASH
from ostinato.planner.layouts.costs import repeats
from ostinato.planner.machine import Machine
from ostinato.planner.plan import Program, Target, peak_bytes
from ostinato.planner.prediction import legs, runs, work_of
from ostinato.planner.rewrite import map_bodies

from .memory import assign_memory, find_roots, usage

DEFAULT, OFF, ON, HOST, DISK = "", "off", "on", "host", "disk"  # of targets; or a folder
# Values are looked at that are at least the share "worth" of the limit; "tries" graphs are made with halves
# apart, and as many with all at once, which needs least; "margin" is the share of the limit by which it aims
# lower than it missed, and "exposed" what a second counts that no kernel hides.
ASSUMED = {"worth": 1 / 4000, "tries": 4.0, "margin": 1 / 500, "exposed": 4.0}


def place_of(target: Target) -> str:
    """Where values of a target go: the host's memory, a disk, or nowhere."""
    asked, is_host = target.offload, described(target.device).is_host
    if asked == OFF or (asked == DEFAULT and is_host):
        return ""
    return DISK if is_host else HOST


def named_place(place: str) -> str:
    return "the host's memory" if place == HOST else "a disk"


def offload(program: Program, target: Target, device: Device, reuse: Sequence[int] = ()) -> Program:
    """The pass, of a program whose places are assigned. Where it cannot fit, what comes nearest."""
    limit = target.memory_limit
    if limit is None or not place_of(target) or peak_bytes(program) <= limit:
        return program
    best, made = program, {program.graph: peak_bytes(program)}
    for early in (True, False):
        most = limit - (peak_bytes(program) - program.arena_bytes) - _slack(program, device)
        margin, last = int(limit * ASSUMED["margin"]) + 1, len(made) + ASSUMED["tries"]
        while most > 0 and len(made) < last:
            moves = _Moves(program, target, device, most, max(int(limit * ASSUMED["worth"]), 1))
            fits = moves.choose()
            graph = moves.graph(early)
            missed = 0
            if graph not in made:  # else it had room for the rest
                found = assign_memory(graph, device, reuse)
                made[graph] = peak_bytes(found)
                best = min(best, found, key=peak_bytes)
                missed = made[graph] - limit
                if missed <= 0:
                    return found
            if not fits:
                break
            most -= missed + margin
            margin *= 2
    return best


def _slack(program: Program, device: Device) -> int:
    """Count the bytes that the arena has in addition to what it holds at the fullest moment."""
    return program.arena_bytes - max(usage(program, device)[0], default=0)


@dataclass(slots=True)
class _Gap:
    """A value that nobody reads between two kernels."""

    value: int
    begin: int  # the kernel that makes it or reads it last
    end: int  # the one that reads it next
    size: int
    stash: int = -1  # the kernel before which it begins to go, if it did not go before
    gone: int = -1  # before which it is there
    fetch: int = -1  # before which it begins to come back


@dataclass(slots=True)
class _Half:
    """Something that is done before a kernel."""

    kind: str
    gap: _Gap
    turn: int = 0


class _Moves:
    """What leaves memory, and when, so that the usage stays within a number of bytes."""

    def __init__(
        self, program: Program, target: Target, device: Device, most: int, least: int
    ) -> None:
        self.program, self.target, self.device = program, target, device
        self.most, self.least = most, least
        used, self.lives = usage(program, device)
        self.usage = np.array(used or [0], np.int64)
        self.base = find_roots(program)
        self.link = target.machine.offload
        self.clock = np.concatenate([[0.0], np.cumsum(seconds_of(program, target.machine))])
        self.taken: list[_Gap] = []
        self.inner: dict[int, list[_Moves]] = {}
        self.gaps = list(self._gaps())
        columns = [(g.begin + 1, g.end, g.size, g.value) for g in self.gaps]
        self.table = np.array(columns, np.int64).reshape(-1, 4).T

    def _gaps(self) -> Iterator[_Gap]:
        graph = self.program.graph
        for v, life in self.lives.items():
            maker = graph.nodes[life.made]
            if life.size < self.least or graph.specs[v].pending or maker.op in OFFLOADED:
                continue
            at = sorted({life.made, *life.reads})
            for begin, end in itertools.pairwise(at):
                if end - begin > 1 and graph.nodes[end].op != "wait":  # else it is on its way
                    yield _Gap(v, begin, end, life.size)

    # -- which ---------------------------------------------------------------------------------
    def choose(self) -> bool:
        """Whether the usage is at most that much, with what is taken."""
        begin, end, size, value = self.table
        seconds = self.link.seconds + size / self.link.bandwidth
        hidden = self.clock[end] - self.clock[begin] if len(begin) else np.zeros(0)
        is_free, went = np.ones(len(begin), bool), np.zeros(len(begin), bool)
        while int(self.usage.max()) > self.most:
            at = int(self.usage.argmax())
            over = (begin <= at) & (at < end) & is_free
            if not over.any():
                if self._inside(at):
                    continue
                return False
            excess = np.maximum(self.usage - self.most, 0)
            all_, many = (np.concatenate([[0], np.cumsum(x)]) for x in (excess, excess > 0))
            chosen = np.flatnonzero(over)
            a, b, n = begin[chosen], end[chosen], size[chosen]
            saved = np.minimum(n * (many[b] - many[a]), all_[b] - all_[a])
            cost = seconds[chosen] * np.where(went[chosen], 1, 2)
            cost = cost + ASSUMED["exposed"] * np.maximum(cost - hidden[chosen], 0)
            k = int(chosen[np.argmax(saved / cost)])
            self.usage[begin[k] : end[k]] -= size[k]
            self.taken.append(self.gaps[k])
            is_free[k] = False
            went |= value == value[k]
        return True

    def _inside(self, at: int) -> bool:
        """Whether less is needed in the bodies of a node."""
        node, bodies = self.program.graph.nodes[at], self.program.bodies.get(at, ())
        if at in self.inner or node.op not in CONTROL or node.op == "blocks" or not bodies:
            return False
        over = int(self.usage[at]) - self.most
        largest = max(p.arena_bytes for p in bodies)
        self.inner[at] = []
        for body in bodies:
            most = largest - over - _slack(body, self.device)
            moves = _Moves(body, self.target, self.device, most, self.least)
            moves.choose()
            self.inner[at].append(moves)
        left = max(m.peak for m in self.inner[at])
        self.usage[at] -= largest - left
        return left < largest

    @property
    def peak(self) -> int:
        return int(self.usage.max()) + _slack(self.program, self.device)

    # -- when ----------------------------------------------------------------------------------
    def _times(self, early: bool) -> list[_Gap]:
        """The gaps in order, with their halves where they are hidden, as far as there is room."""
        gaps, went = sorted(self.taken, key=lambda g: (g.begin, g.value)), set[int]()
        end = 0.0
        for gap in gaps:
            gap.gone, gap.stash = gap.begin + 1, -1
            gap.fetch = gap.end
            if gap.value in went:
                continue
            went.add(gap.value)
            gap.stash = gap.begin + 1
            end = max(end, self.clock[gap.stash]) + self.link.message(gap.size)
            while early and gap.gone < gap.end and self.clock[gap.gone] < end:
                if not self._has_room(gap.gone, gap.size):
                    break
                gap.gone += 1
        begin = np.inf
        for gap in sorted(gaps, key=lambda g: -g.end) if early else ():
            begin = min(begin, self.clock[gap.end]) - self.link.message(gap.size)
            while gap.fetch > gap.gone and self.clock[gap.fetch] > begin:
                if not self._has_room(gap.fetch - 1, gap.size):
                    break
                gap.fetch -= 1
        return gaps

    def _has_room(self, k: int, size: int) -> bool:
        fits = bool(self.usage[k] + size <= self.most)
        self.usage[k] += size * fits
        return fits

    # -- the graph -----------------------------------------------------------------------------
    def graph(self, early: bool) -> Graph:
        if not self.taken and not self.inner:
            return self.program.graph
        gaps = self._times(early)
        halves: dict[int, list[_Half]] = {}
        for turn, gap in enumerate(gaps):
            if gap.stash >= 0:
                halves.setdefault(gap.stash, []).append(_Half(STASH, gap))
                halves.setdefault(gap.gone, []).append(_Half("gone", gap))
            halves.setdefault(gap.fetch, []).append(_Half(FETCH, gap, turn))
            halves.setdefault(gap.end, []).append(_Half("back", gap))
        for row in halves.values():
            row.sort(key=lambda half: _ORDER.index(half.kind))
        return _Rewritten(self, halves).graph(early)


_ORDER = (STASH, "gone", FETCH, "back")


class _Rewritten:
    """A program's graph, with what leaves and comes back."""

    def __init__(self, moves: _Moves, halves: dict[int, list[_Half]]) -> None:
        self.moves, self.halves = moves, halves
        self.given, self.base = moves.program.graph, moves.base
        self.nodes: list[Node] = []
        self.count = len(self.given.inputs)
        self.new = {v: v for v in range(self.count)}
        self.back: dict[int, int] = {}  # of values that came back: as what
        self.out: set[int] = set()  # values that are not there
        self.away: dict[int, int] = {}  # pending or not, where they are
        self.coming: dict[int, int] = {}
        self.looks: dict[tuple[int, int], int] = {}  # at what came back

    def add(self, node: Node, inputs: Sequence[int]) -> range:
        made = range(self.count, self.count + len(node.specs))
        self.nodes.append(Node(node.op, tuple(inputs), node.params, node.specs, node.line))
        self.count += len(node.specs)
        return made

    def read(self, v: int) -> int:
        """A value as it is now."""
        root = self.base[v]
        if root not in self.back:
            return self.new[v]
        if v == root:
            return self.back[v]
        key = v, self.back[root]
        if key not in self.looks:
            node = self.given.nodes[self.given.producers[v]]
            j = v - self.given.starts[self.given.producers[v]]
            seen = self.read(node.inputs[j])
            if OPS[node.op].view is not None:
                look = Node(node.op, (), node.params, (node.specs[j],), node.line)
                seen = self.add(look, (seen,))[0]
            self.looks[key] = seen
        return self.looks[key]

    def half(self, half: _Half) -> None:
        v, spec = half.gap.value, self.given.specs[half.gap.value]
        line = self.given.nodes[self.given.producers[v]].line
        pending = type(spec)(spec.shape, spec.dtype, spec.layout, True)
        match half.kind:
            case "stash":
                node = Node(STASH, (), (), (pending,), line)
                self.away[v] = self.add(node, (self.read(v),))[0]
            case "gone":
                node = Node("wait", (), (), (spec,), line)
                self.away[v] = self.add(node, (self.away[v], self.read(v)))[0]
            case "fetch":
                node = Node(FETCH, (), (("turn", half.turn),), (pending,), line)
                self.coming[v] = self.add(node, (self.away[v],))[0]
            case _:
                node = Node("wait", (), (), (spec,), line)
                self.back[v] = self.add(node, (self.coming[v], self.away[v]))[0]
                self.out.discard(v)

    def graph(self, early: bool) -> Graph:
        given, begins = self.given, dict[int, list[int]]()
        for gap in self.moves.taken:
            begins.setdefault(gap.begin, []).append(gap.value)
        alias = [slot.kind == "alias" for slot in self.moves.program.slots]
        for k, node in enumerate(given.nodes):
            for half in self.halves.get(k, ()):
                self.half(half)
            outs = given.outs(k)
            if len(outs) and alias[outs[0]]:
                if any(self.base[v] in self.out or self.base[v] in self.back for v in outs):
                    continue  # looked at where somebody reads it
                count = len(outs)
                order = [u for u in node.inputs[count:] if self.base[u] not in self.out]
                inputs = [self.read(u) for u in (*node.inputs[:count], *order)]
                self.new.update(zip(outs, self.add(node, inputs), strict=True))
                continue
            if k in self.moves.inner:
                bodies = iter([m.graph(early) for m in self.moves.inner[k]])

                def changed(_: Graph, bodies: Iterator[Graph] = bodies) -> Graph:
                    return next(bodies)

                node = map_bodies(node, changed)
            self.new.update(
                zip(outs, self.add(node, [self.read(u) for u in node.inputs]), strict=True)
            )
            self.out.update(begins.get(k, ()))
        return Graph(given.inputs, tuple(self.nodes), tuple([self.read(v) for v in given.outputs]))


def seconds_of(program: Program, machine: Machine) -> list[float]:
    """About what each node of a program takes."""
    graph, found = program.graph, list[float]()
    for k, node in enumerate(graph.nodes):
        ins = [graph.specs[v] for v in node.inputs]
        if k in program.bodies:
            inner = max((sum(seconds_of(b, machine)) for b in program.bodies[k]), default=0.0)
            found.append(inner * repeats(node))
        elif collective_of(node.op, node.kw):
            found.append(sum(leg.seconds for leg in legs(node, ins, machine)))
        elif node.op == "wait" or node.op in OFFLOADED or not runs(program, k):
            found.append(0.0)
        else:
            work = work_of(graph, node)
            moving = machine.moving_seconds(work.moved, max(work.moved, 1e9))
            found.append(machine.call_seconds + work.seconds(machine, moving))
    return found
