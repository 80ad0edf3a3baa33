"""Groups of nodes that become one each: no path of the graph may leave a group and return.

    %1 = exp(%0)        {%1, %3} is no group: %2 would have to run after it, as it reads %1,
    %2 = sort(%1)       and before it, as %3 reads %2
    %3 = add(%1, %2)

Nodes are seen one by one, operands first, and join groups of those before them. Each unit (a group, or
a node that is alone) has a bit, that of its first node, and knows as a bit set what has to run before it;
where a group begins to wait for more, so does all that waits for it. What only looks at values, or is made
of nothing, has no bit, and what stood long before loses it: nothing joins it any more.

No group begins to wait for anything large if what it reads takes more memory until then than what it makes.
Workers meet in collectives: these keep their order, and no group begins to wait for one, as what reads the
group might be sent meanwhile. Random numbers may wait for anything, rather than go to memory."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec
from ostinato.planner.passes.order import meetings

NEGLIGIBLE_BYTES = 1 << 16  # bytes that matter to nobody
NEVER, LATER, NOW = range(3)
WINDOW_NODES = 4096  # nodes after which nothing joins a group, as bit sets would take memory


@dataclass(eq=False, slots=True, kw_only=True)
class Unit:
    bits: int = 0  # its own, and those of units that it took in
    before: int = 0  # these, and all that it waits for
    place: int = -1  # where it stands: at its first node, or behind all that it waits for
    members: list[int] = field(default_factory=list)
    operands: dict[int, None] = field(default_factory=dict)  # in order
    start: int = -1  # its first node


Space = tuple[Shape, Layout | None]  # the elements that an operation works on


@dataclass(eq=False, slots=True)
class Group(Unit):
    space: Space
    rows: int = 0  # how many of the last axes are reduced
    product: bool = False  # whether it begins with a product
    behind: Container[int] | None = None  # what may follow a product; None: all that is elementwise
    work: int = 0  # operations
    cuts: frozenset[tuple[int, int]] = frozenset()  # where joins in it are cut, along which axes
    numbered: bool = False  # whether it asks for elements' numbers


class Units:
    """The units of the nodes that were seen."""

    def __init__(self, graph: Graph, workers: int) -> None:
        self.graph = graph
        self.of: list[Unit] = []
        self._first = 0  # the node of the first bit
        uses = graph.uses
        self._behind = [
            {u for v in graph.outs(k) for u in uses[v]} for k in range(len(graph.nodes))
        ]
        met = meetings(graph, workers)
        self._met = sum(1 << k for k in met)
        self._next = dict(pairwise(met))  # which has to follow
        self._last = {b: a for a, b in self._next.items()}
        self._large = self._met  # what takes memory to speak of, or has to be waited for
        draws = any(OPS[node.op].element.draws for node in graph.nodes)
        self._other = 0 if draws else -1  # what is not made of random numbers alone

    # -- questions -------------------------------------------------------------------------
    def joins(self, unit: Unit, values: Iterable[int]) -> int:
        """Whether a unit may read these values, too: NEVER, NOW as they are there where it stands, or
        LATER if it has to wait for them."""
        makers = self._makers(values)
        if not (unit.members or unit.bits):
            return NOW
        if not unit.bits or any(m.before & unit.bits for m in makers):
            return NEVER
        if self._ready(makers) < unit.place:
            return NOW
        return LATER if self._may_wait(unit, self._before(makers)) else NEVER

    def merges(self, reader: Unit, read: Unit) -> bool:
        """Whether two may be one, of which one reads the other."""
        outside = [m for m in self._makers((*reader.operands, *read.operands))
                   if m not in (reader, read)]  # fmt: skip
        both = reader.bits | read.bits
        if not (reader.bits and read.bits) or any(m.before & both for m in outside):
            return False
        at_once = self._ready(outside) < min(reader.place, read.place)
        return at_once or self._may_wait(read, self._before(outside))

    def _makers(self, values: Iterable[int]) -> list[Unit]:
        producers = self.graph.producers
        return [self.of[k] for v in values if (k := producers[v]) >= 0]

    def _before(self, units: Iterable[Unit]) -> int:
        found = 0
        for unit in units:
            found |= unit.before
        return found

    def _ready(self, units: Iterable[Unit]) -> int:
        return max((unit.place for unit in units), default=-1)

    def _may_wait(self, unit: Unit, before: int) -> bool:
        more = before & ~unit.before & self._large
        if not more or not unit.bits & self._other:
            return True
        return not more & self._met and not self._holds(unit)

    def _holds(self, unit: Unit) -> bool:
        """Whether what is read by a unit alone takes more memory than what others read of it."""
        graph, seen = self.graph, len(self.of)

        def only_here(v: int) -> bool:
            mine = all(u < seen and self.of[u] is unit for u in graph.uses[v])
            return mine and v not in graph.outputs

        makers = ((v, graph.producers[v]) for v in unit.operands)
        held = [v for v, k in makers if k >= 0 and self.of[k].bits and only_here(v)]
        if not held:
            return False
        made = [v for k in unit.members for v in graph.outs(k) if self.of[k] is unit]
        shown = [v for v in made if not only_here(v)]
        return self._size(graph.specs[v] for v in held) > self._size(graph.specs[v] for v in shown)

    def _size(self, specs: Iterable[Spec]) -> int:
        return sum(s.nbytes for s in specs)

    # -- changes ---------------------------------------------------------------------------
    def alone(self, k: int) -> None:
        """The next node is no part of a group, yet."""
        node, bit = self.graph.nodes[k], self._bit(k)
        makers = self._makers(node.inputs)
        if k in self._last:
            makers.append(self.of[self._last[k]])
        unit = Unit(before=self._before(makers), place=self._ready(makers), members=[k])
        if node.inputs and not OPS[node.op].is_view:
            unit.bits, unit.place, unit.start = bit, k, k
            unit.before |= unit.bits
            self._note(node, unit)
        self.of.append(unit)

    def join(self, k: int, unit: Unit) -> None:
        """The next node is one of this unit."""
        bit = self._bit(k)
        if not unit.bits:
            unit.bits, unit.start = bit, k
        self._note(self.graph.nodes[k], unit)
        self.of.append(unit)
        self._wait(unit, k)

    def merge(self, unit: Unit, *others: Unit) -> None:
        """One unit takes the place of some."""
        unit.place, place = -1, min(other.place for other in others)
        unit.start = min(other.start for other in others)
        for other in others:
            unit.bits |= other.bits
            for k in other.members:
                if self.of[k] is other:
                    self.of[k] = unit
        self._wait(unit, place)

    def _bit(self, k: int) -> int:
        """The bit of the next node."""
        if k - self._first >= 2 * WINDOW_NODES:
            by, self._first = k - WINDOW_NODES - self._first, k - WINDOW_NODES
            for unit in dict.fromkeys(self.of):
                unit.bits >>= by
                unit.before >>= by
            self._met, self._large = self._met >> by, self._large >> by
            self._other >>= by
        return 1 << (k - self._first)

    def _note(self, node: Node, unit: Unit) -> None:
        if self._size(node.specs) > NEGLIGIBLE_BYTES:
            self._large |= unit.bits
        if self._other >= 0 and not OPS[node.op].element.draws:
            makers = self._makers(v for v in node.inputs if self.graph.specs[v].shape)
            drawn = makers and all(m.bits and not m.bits & self._other for m in makers)
            if not (drawn and OPS[node.op].scalar):
                self._other |= unit.bits

    def _wait(self, unit: Unit, place: int) -> None:
        """A unit waits for its operands, and what waits for it does, too."""
        makers = [m for m in self._makers(unit.operands) if m is not unit]
        before, ready = self._before(makers) | unit.bits, self._ready(makers)
        place = max(place if unit.place < 0 else unit.place, ready + 1)
        waiting, seen = [unit], len(self.of)
        while waiting:
            unit = waiting.pop()
            if before & ~unit.before or place > unit.place:
                unit.before |= before
                unit.place = max(unit.place, place)
                for k in unit.members:
                    if self.of[k] is unit:
                        waiting += [self.of[u] for u in self._behind[k] if u < seen]
                        if (after := self._next.get(k, seen)) < seen:
                            waiting.append(self.of[after])
