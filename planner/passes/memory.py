"""Where each value lives: Graph -> Program.

One walk over the nodes in running order. A value that a node makes gets a place in the arena (or is
a result, which has memory of its own), a view shares the place of what it views, and a place is
free again after its last reader. An elementwise result takes over the place of an operand that dies
there. What kernels make for a `concat` only is made where that puts it. What a loop carries is updated
where it lies if its body reads the old value no more when it writes the new one; else it alternates
between two buffers. Sizes are those of the largest part that any worker holds, so that one assignment
serves all.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import Device
from ostinato.ops.core.divided import division_of, scratch_of
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Partial, different_shapes, slices
from ostinato.ops.core.registry import ANY, OPS, Place
from ostinato.ops.core.spec import Shape, Spec
from ostinato.ops.flow.control import CONTROL, ONE_KERNEL, begun_as
from ostinato.ops.jit.foreach_parts import FOREACH, written_over
from ostinato.ops.planned.collective import PIECES
from ostinato.ops.planned.offloaded import FETCH, STASH
from ostinato.planner.plan import Program, Slot, local_bytes
from ostinato.planner.rewrite import replace

from .loop_casts import LOOPS
from .reads_first import origins, read_first

ALIGN = 64
BUFFERS = 2  # of each file that is read or written block after block, used in turn
RUN = 128  # bytes in a row, from which kernels write to parts of what is joined


def assign_memory(
    graph: Graph,
    device: Device,
    donated: Sequence[int] = (),
    in_order: Sequence[bool] | None = None,
    own: Mapping[int, int] | None = None,
) -> Program:
    """The pass, for the kernels of a device. Operands that were given away (`donated`) may take results,
    of a body only the one that is their next value (`own`: results, and which operand each may be written
    over); `in_order` says which operands lie in order without gaps, if not all."""
    graph = own_turned(own_outputs(graph, in_order), device)
    order = contiguous(graph, in_order)
    views = [is_view(graph, k, order) for k in range(len(graph.nodes))]
    graph = read_first(graph, views, donated, own or {})
    return _Assigner(graph, device, donated, in_order, own).run()


def own_outputs(graph: Graph, given: Sequence[bool] | None = None) -> Graph:
    """Each output a value of its own that a node makes: views, inputs, numbers and repeated outputs
    are copied."""
    seen: set[int] = set()
    extra: list[Node] = []
    outputs = []
    count = len(graph.specs)
    in_order = contiguous(graph, given)
    for v in graph.outputs:
        k = graph.producers[v]
        fresh = k >= 0 and graph.nodes[k].op != "constant" and not is_view(graph, k, in_order)
        if fresh and v not in seen:
            seen.add(v)
            outputs.append(v)
        else:
            line = graph.nodes[k].line if k >= 0 else ""
            extra.append(Node("copy", (v,), (), (graph.specs[v],), line))
            outputs.append(count)
            count += 1
    return Graph(graph.inputs, (*graph.nodes, *extra), tuple(outputs)) if extra else graph


def own_turned(graph: Graph, device: Device) -> Graph:
    """Copy to the order in which kernels read it what a library writes in any for the same price, as slopes of
    filters: so it is made there, and no kernel reads it crosswise."""

    def is_crosswise(k: int) -> bool:
        v = graph.starts[k]
        looked = any(OPS[graph.nodes[u].op].view for u in graph.uses[v])
        turns = OPS[graph.nodes[k].op].turns_axes and not looked
        return turns and find_before_copy(graph, v, device) >= 0

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node, read = graph.nodes[k], [values[v] for v in graph.nodes[k].inputs]
        turned = builder.add(node.op, read, node.params, node.specs, node.line)
        return builder.add("copy", turned, (), node.specs, node.line)

    return replace(graph, [k for k in range(len(graph.nodes)) if is_crosswise(k)], make)


def is_view(graph: Graph, k: int, in_order: Sequence[bool]) -> bool:
    """Whether a node's result is another look at its operand's memory."""
    node = graph.nodes[k]
    if node.op in ("barrier", "wait"):
        return True
    op = OPS[node.op]
    return op.view is not None and (not op.reshapes or in_order[node.inputs[0]])


def contiguous(graph: Graph, given: Sequence[bool] | None = None) -> list[bool]:
    """For each value whether its elements lie in order without gaps, on every worker."""
    found = [True] * len(graph.inputs) if given is None else list(given)
    for node in graph.nodes:
        op = OPS[node.op]
        for spec in node.specs:
            if op.view is None:
                piece = any(graph.nodes[u].op == PIECES for u in graph.uses[len(found)])
                found.append(
                    found[node.inputs[0]]
                    if node.op == "barrier"
                    else not piece or leading(spec, slice(None))
                )
            elif op.moves.keeps_order:
                found.append(found[node.inputs[0]] or op.reshapes)
            else:
                found.append(found[node.inputs[0]] and _leads(graph, node))
    return found


def body_order(graph: Graph, k: int, in_order: Sequence[bool]) -> list[bool] | None:
    """Tell which operands of a node's bodies lie in order; None where all of them do."""
    node = graph.nodes[k]
    if node.op != "blocks":
        return None
    body: Graph = node.kw["body"]
    return [in_order[v] and leading(spec) for v, spec in zip(node.inputs, body.inputs, strict=True)]


def leading(spec: Spec, axes: slice = slice(-1, None)) -> bool:
    """Whether the blocks of an array that is cut into turns, or along these axes of the mesh, are in order
    where the whole is."""
    assert spec.layout is not None
    cut = [s for s in spec.layout.splits[axes] if isinstance(s, int)]
    return all(n <= 1 for n in spec.layout.largest(spec.shape)[: max(cut, default=0)])


def _leads(graph: Graph, node: Node) -> bool:
    """Whether a slice or narrow cuts nothing but the first axis, and without steps."""
    before, after = graph.specs[node.inputs[0]], node.specs[0]
    if OPS[node.op].moves.selects == "slices":
        kw = node.kw
        return (
            all(s == 1 for s in kw["steps"][:1])
            and before.shape[1:] == after.shape[1:]
            and all(
                (start, step) == (0, 1)
                for start, step in zip(kw["starts"][1:], kw["steps"][1:], strict=True)
            )
        )
    if node.op == "narrow":
        assert after.layout is not None
        assert before.layout is not None
        cut = {s for s in after.layout.splits if isinstance(s, int)}
        return cut <= {0}
    return False


def joined(graph: Graph, device: Device) -> dict[int, int]:
    """Find the values that kernels make for a `concat` that joins nothing else, to replace most of an
    array, or for a result that only has another shape or order: for each value the joined one."""
    found: dict[int, int] = {}
    for k, node in enumerate(graph.nodes):
        if replaced(graph, k) is not None:
            found[node.inputs[1]] = graph.starts[k]
        if node.op == "copy" and (v := find_before_copy(graph, node.inputs[0], device, k)) >= 0:
            found[v] = graph.starts[k]
        if node.op == PIECES:
            parts = [w if _is_piece(graph, k, w) else -1 for w in node.inputs]
        elif OPS[node.op].moves.concatenates:
            parts = [_before_join(graph, k, w) for w in node.inputs]
        else:
            continue
        if all(v >= 0 for v in parts):
            found |= dict.fromkeys(parts, graph.starts[k])
    return found


def replaced(graph: Graph, k: int) -> tuple[slice, ...] | None:
    """Where in the result of an update its second operand is made by a kernel, if it is most of it: what
    is left of the first operand is copied."""
    node = graph.nodes[k]
    op = OPS[node.op]
    if op.moves.pieces is None or op.run.overwrite != (0,) or len(node.inputs) != 2:
        return None
    before, value = (graph.specs[v] for v in node.inputs)
    v, k_made = node.inputs[1], graph.producers[node.inputs[1]]
    is_whole = all(s.layout is None or s.layout.is_whole for s in (before, value, *node.specs))
    if k_made < 0 or not is_whole or 2 * value.size <= before.size or v in graph.outputs:
        return None
    made = graph.nodes[k_made]
    draws = any(OPS[n.op].element.draws for _, g in made.subgraphs() for n in g.nodes)
    if not OPS[made.op].run.writes_parts or draws or len(made.specs) > 1 or graph.uses[v] != (k,):
        return None
    parts = op.moves.pieces([before.shape, value.shape], **node.kw)
    if (
        parts is None
        or len(parts) != 2
        or not parts[0].is_whole
        or parts[1].places
        or parts[1].combine
    ):
        return None
    at = parts[1].at
    in_rows = value.shape[-1] * value.dtype.itemsize >= RUN
    return at if in_rows and all(s.step in (None, 1) for s in at) else None


def _before_join(graph: Graph, k: int, w: int) -> int:
    """The value that a kernel makes for this operand of a `concat` and for nobody else; -1 if it is
    something else, or lies in so short rows that it is better copied."""
    node, axis = graph.nodes[k], graph.nodes[k].kw["axis"]
    before, after = graph.specs[w], node.specs[0]
    here = after.layout is not None and before.layout == after.layout
    cut = after.layout.splits if after.layout is not None else ()
    if not here or axis in cut or before.dtype != after.dtype or before.pending:
        return -1
    if math.prod(before.shape[axis:]) * before.dtype.itemsize < RUN:
        return -1
    readers: tuple[int, ...] = (k,)
    while (
        (maker := graph.producers[w]) >= 0 and graph.uses[w] == readers and w not in graph.outputs
    ):
        made = graph.nodes[maker]
        if OPS[made.op].run.writes_parts and not any(
            OPS[n.op].element.draws for n in made.kw["body"].nodes
        ):
            return w
        if not OPS[made.op].renames_axes:
            break
        (w,), readers = made.inputs, (maker,)
    return -1


def _is_piece(graph: Graph, k: int, w: int) -> bool:
    """Whether a kernel makes it for this node, and for others only to read it."""
    made = graph.nodes[graph.producers[w]]
    op = OPS[made.op]
    able = op.view is None and bool(op.kernel or op.run.ufunc)
    able &= len(made.specs) == 1 or op.run.writes_parts
    joins = [u for u in graph.uses[w] if _joins(graph.nodes[u])]
    return able and joins == [k] and w not in graph.outputs


def find_before_copy(graph: Graph, v: int, device: Device, reader: int = -1) -> int:
    """The value that a node makes for this reader of `v` and for nobody else, where `v` has another shape, or
    its axes in another order if a library may write so; -1 if it is something else."""
    ends, turns, reshapes = [graph.specs[v]], False, False
    while (maker := graph.producers[v]) >= 0:
        if v in graph.outputs or (reader >= 0 and graph.uses[v] != (reader,)):
            return -1
        node, op = graph.nodes[maker], OPS[graph.nodes[maker].op]
        if not (op.moves.same_elements and op.view):
            native = device.natives.get(node.op)
            able = op.view is None and node.op not in (*CONTROL, "constant")
            able &= len(node.specs) == 1 and not node.specs[0].pending and len(ends) > 1
            able &= all(s.layout is None or s.layout.is_whole for s in ends)  # parts may differ
            if turns:
                may_turn = native.turns if native is not None and not reshapes else None
                able = able and may_turn is not None and may_turn(graph, maker)
            return v if able else -1
        turns, reshapes = turns or op.turns_axes, reshapes or op.reshapes
        (v,), reader = node.inputs, maker
        ends.append(graph.specs[v])
    return -1


def _joins(node: Node) -> bool:
    """Whether a node's operands can be made in their place in its result."""
    return OPS[node.op].moves.concatenates or node.op == "copy" or node.op == PIECES


def is_joined(program: Program, k: int) -> bool:
    """Whether nothing is left to do for a node, as it joins what was made in its place."""
    graph, slots = program.graph, program.slots
    if not _joins(graph.nodes[k]):
        return False
    v = graph.nodes[k].inputs[0]
    while slots[v].kind == "alias":
        v = slots[v].at
    return slots[v] == Slot("part", graph.starts[k])


def is_update(program: Program, k: int) -> bool:
    """Whether a node writes over a part of its first operand, and leaves the rest as it is."""
    node, slots = program.graph.nodes[k], program.slots
    if not node.inputs or OPS[node.op].run.overwrite != (0,):
        return False
    before, after = slots[node.inputs[0]], slots[program.graph.starts[k]]
    if before.kind == "input" and after.kind == "output":
        return (after.at, before.at) in program.reuse
    return before == after and after.kind in ("arena", "output")


def part_getter(
    graph: Graph, v: int, shape_of: Callable[[Spec], Shape], place_of: Callable[[Node], Place]
) -> Callable[[Any], Any]:
    """Make a function from a joined array to the part in which a value is made."""
    k, *others = graph.uses[v]
    k = next((u for u in others if graph.nodes[u].op == PIECES), k)
    if graph.nodes[k].op == PIECES:
        boxes = place_of(graph.nodes[k])
        own = slices(boxes.ins[graph.nodes[k].inputs.index(v)], boxes.outs[0])
        return lambda whole: whole[own]
    if (at := replaced(graph, k)) is not None:
        return lambda whole: whole[at]
    looks = list[Node]()
    while not _joins(graph.nodes[k]):
        looks.append(graph.nodes[k])
        v = graph.starts[k]
        (k,) = graph.uses[v]
    node = graph.nodes[k]
    cut: tuple[slice, ...] = ()
    if node.op != "copy":
        axis = node.kw["axis"]
        extents = [shape_of(graph.specs[w])[axis] for w in node.inputs]
        begin = sum(extents[: node.inputs.index(v)])
        cut = (*(slice(None),) * axis, slice(begin, begin + extents[node.inputs.index(v)]))

    def part(whole: Any) -> Any:
        found = whole[cut] if cut else whole
        for look in reversed(looks):
            if OPS[look.op].turns_axes:
                found = found.transpose(sorted(range(found.ndim), key=look.kw["axes"].__getitem__))
            else:
                found = found.reshape(shape_of(graph.specs[look.inputs[0]]))
        return found

    return part


class Arena:
    """Free places by offset; the best fit is taken, and the arena grows where none fits."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []
        self.end = 0

    def take(self, size: int) -> int:
        size = -(-max(size, 1) // ALIGN) * ALIGN
        fits = [(length, offset) for offset, length in self.free if length >= size]
        if fits:
            length, offset = min(fits)
            k = bisect.bisect_left(self.free, (offset, 0))
            if length == size:
                del self.free[k]
            else:
                self.free[k] = (offset + size, length - size)
            return offset
        if self.free and sum(self.free[-1]) == self.end:
            offset, _ = self.free.pop()
        else:
            offset = self.end
        self.end = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        size = -(-max(size, 1) // ALIGN) * ALIGN
        k = bisect.bisect_left(self.free, (offset, 0))
        if k < len(self.free) and offset + size == self.free[k][0]:
            size += self.free.pop(k)[1]
        if k and sum(self.free[k - 1]) == offset:
            offset, size = self.free[k - 1][0], self.free[k - 1][1] + size
            self.free[k - 1] = (offset, size)
        else:
            self.free.insert(k, (offset, size))


class _Assigner:
    def __init__(
        self,
        graph: Graph,
        device: Device,
        donated: Sequence[int],
        in_order: Sequence[bool] | None,
        own: Mapping[int, int] | None,
    ) -> None:
        self.graph = graph
        self.device = device
        self.own = own
        self.donated = list(donated if own is None else dict.fromkeys(own.values()))
        self.bodies: dict[int, tuple[Program, ...]] = {}
        self.reuse: list[tuple[int, int]] = []
        self.arena = Arena()
        self.slots: list[Slot] = [Slot("input", k) for k in range(len(graph.inputs))]
        self.root = list(range(len(graph.specs)))  # what each value's memory belongs to
        self.contiguous = contiguous(graph, in_order)
        self.joined = joined(graph, device)
        self.early: dict[int, Slot] = {}  # of what is joined, from its first part on
        self.result = {v: k for k, v in enumerate(graph.outputs)}
        self.last = self._last_reads()
        self.taken: set[int] = set()  # values whose memory another took over
        self.begun: set[int] = set()  # results whose memory was written already
        self._reach_back()

    def _last_reads(self) -> list[int]:
        """For each root the last node that reads it, through whatever view."""
        graph = self.graph
        last = [-1] * len(graph.specs)
        for k, node in enumerate(graph.nodes):
            for v in node.inputs:
                last[self.root[v]] = k
            if is_view(graph, k, self.contiguous):
                for v, source in zip(graph.outs(k), node.inputs, strict=False):
                    self.root[v] = self.root[source]
            for v in graph.outs(k):
                last[self.root[v]] = max(last[self.root[v]], k)
        for v in graph.outputs:
            last[self.root[v]] = len(graph.nodes)
        for v, whole in self.joined.items():  # who reads a part reads what it is joined to
            last[self.root[whole]] = max(last[self.root[whole]], last[v])
        return last

    def run(self) -> Program:
        graph = self.graph
        scratch: list[tuple[int, ...]] = []
        bases: dict[int, int] = {}
        dying: list[list[int]] = [[] for _ in graph.nodes]
        for v, k in enumerate(self.last):
            if 0 <= k < len(graph.nodes) and self.root[v] == v:
                dying[k].append(v)
        fullest, peak_node = -1, -1
        for k, node in enumerate(graph.nodes):
            if node.op in CONTROL:
                self.bodies[k] = self._programs(k, node)
            if node.op == "constant":
                self.slots.append(Slot("constant", k))
            elif is_view(graph, k, self.contiguous):
                self.slots.extend(
                    Slot("alias", source)
                    for _, source in zip(node.specs, node.inputs, strict=False)
                )
            else:
                for v in graph.outs(k):
                    self.slots.append(self._place(k, node, v))
            sizes = self._scratch_sizes(k, node)
            places = tuple(self.arena.take(n) for n in sizes)
            if node.op in CONTROL:
                need = max((p.arena_bytes for p in self.bodies[k]), default=0)
                bases[k] = self.arena.take(need)
            if self.arena.end > fullest:
                fullest, peak_node = self.arena.end, k
            if node.op in CONTROL:
                self.arena.give(bases[k], need)
            for place, n in zip(places, sizes, strict=True):
                self.arena.give(place, n)
            for v in dying[k]:
                slot = self.slots[v]
                if slot.kind == "arena" and v not in self.taken:
                    self.arena.give(slot.at, local_bytes(graph.specs[v]))
            scratch.append(places)
        return Program(
            graph,
            tuple(self.slots),
            tuple(scratch),
            self.bodies,
            bases,
            self.arena.end,
            peak_node,
            tuple(self.reuse),
        )

    def _place(self, k: int, node: Node, v: int) -> Slot:
        graph = self.graph
        if v in self.joined:
            whole = self.joined[v]
            if whole not in self.early:
                if whole in self.result:
                    self._over_donated(k, node, whole)
                join = graph.producers[whole]
                self.early[whole] = self._place(join, graph.nodes[join], whole)
            return Slot("part", whole)
        if v in self.early:
            return self.early[v]
        if v in self.result:
            self._over_donated(k, node, v)
            return Slot("output", self.result[v])
        if self.last[v] <= k and len(node.specs) > 1 and OPS[node.op].kernel is not None:
            return Slot("none")
        if node.op == STASH:  # it lies elsewhere
            return Slot("none")
        spec = graph.specs[v]
        heir = self._overwrites(k, node, v)
        if heir is not None and self.slots[heir].kind == "arena":
            self.taken.add(heir)
            return self.slots[heir]
        return Slot("arena", self.arena.take(local_bytes(spec)))

    def _over_donated(self, k: int, node: Node, v: int) -> None:
        """Write a result over an operand that was given away and is not read any more.

        Decided where the result's memory is first written; later would be too late."""
        if self.result[v] in self.begun:
            return
        self.begun.add(self.result[v])
        spec = self.graph.specs[v]
        for j in self.donated:
            if self.own is not None and self.own.get(self.result[v]) != j:
                continue
            mine = self.graph.inputs[j]
            if (mine.shape, mine.dtype, mine.layout) != (spec.shape, spec.dtype, spec.layout):
                continue
            here = v in self.graph.outs(k) and j in node.inputs
            here = here and all(self.root[w] != j or w == j for w in node.inputs)
            overwrite = self._overwrite(k, node, v)
            over = here and (
                overwrite == ANY or any(node.inputs[n : n + 1] == (j,) for n in overwrite)
            )
            once = overwrite == ANY or node.inputs.count(j) == 1
            if self.last[j] < k or (self.last[j] == k and over and once):
                self.donated.remove(j)
                self.reuse.append((self.result[v], j))
                return

    def _reach_back(self) -> None:
        """Results of elementwise chains are made in the result's memory from the first link on."""
        for v, k in list(self.result.items()):
            heir: int | None = v
            while heir is not None:
                maker = self.graph.producers[heir]
                node = self.graph.nodes[maker]
                heir = None if node.op in CONTROL else self._overwrites(maker, node, heir)
                if heir is not None and (
                    heir in self.result
                    or self.graph.producers[heir] < 0
                    or self.graph.nodes[self.graph.producers[heir]].op == "constant"
                ):
                    heir = None
                if heir is not None:
                    self.result[heir] = k

    def _overwrite(self, k: int, node: Node, v: int) -> Any:
        """Which operands' memory a result may take: numbers of operands, or ANY."""
        if node.inputs[1:2] and self.joined.get(node.inputs[1]) == v:
            return ()  # a kernel writes it while it reads them
        if node.op in ONE_KERNEL.values():
            operand = begun_as(node, v - self.graph.starts[k])
            return () if operand is None else (operand,)
        if node.op in CONTROL:
            operand = carried_in_place(node, self.bodies[k]).get(v - self.graph.starts[k])
            return () if operand is None else (operand,)
        if node.op == FOREACH:
            return written_over(node, v - self.graph.starts[k])
        return OPS[node.op].run.may_overwrite(len(node.specs))

    def _overwrites(self, k: int, node: Node, made: int) -> int | None:
        """An operand that dies here and whose memory the result may take."""
        overwrite, spec = self._overwrite(k, node, made), self.graph.specs[made]
        native = self.device.natives.get(node.op)
        if native is not None and native.adds_to is not None:
            overwrite = native.adds_to(node.kw)
        for n, v in enumerate(node.inputs) if overwrite else ():
            if overwrite != ANY and n not in overwrite:
                continue
            mine, root = self.graph.specs[v], self.root[v]
            if (
                (root == v or self._came_back(v))
                and self.last[root] == k
                and not any(self.root[w] == root and w != v for w in node.inputs)
                and (node.inputs.count(v) == 1 or overwrite == ANY)
                and (mine.shape, mine.dtype, mine.layout) == (spec.shape, spec.dtype, spec.layout)
                and root not in self.taken
            ):
                return root
        return None

    def _came_back(self, v: int) -> bool:
        """Whether it was fetched, and is the only look at what was."""
        graph, root = self.graph, self.root[v]
        made = graph.producers[root]
        return (
            made >= 0
            and graph.nodes[made].op == FETCH
            and graph.uses[root] == (graph.producers[v],)
        )

    def _scratch_sizes(self, k: int, node: Node) -> list[int]:
        graph = self.graph
        if node.op in LOOPS:  # a second buffer for each carried value
            carried, stays = node.kw["counts"][1], carried_in_place(node, self.bodies[k])
            return [0 if j in stays else local_bytes(s) for j, s in enumerate(node.specs[:carried])]
        if node.op == "blocks":
            (body,) = self._bodies(k, node)
            kept = [*read_ahead(graph, node), *written_specs(node, body)]
            turned = [local_bytes(s) for s in kept for _ in range(BUFFERS)]
            ends = [
                n for j in going_on(body) for n in scratch_bytes(self.device, body, body.nodes[j])
            ]
            return turned + [local_bytes(s) for s in addends(node)] + ends
        return scratch_bytes(self.device, graph, node)

    def _programs(self, k: int, node: Node) -> tuple[Program, ...]:
        """The bodies' programs. Of what a loop carries each result may be written over its last value."""
        order = body_order(self.graph, k, self.contiguous)
        bodies = self._bodies(k, node)
        own: Mapping[int, int] = {}
        if node.op in LOOPS:
            first = LOOPS[node.op] + node.kw["counts"][0]
            own = {j: first + j for j in range(node.kw["counts"][1])}
        if node.op == "branch":
            return self._sides(bodies)
        return tuple(
            assign_memory(g, self.device, (), order, own if n == 0 else {})
            for n, g in enumerate(bodies)
        )

    def _sides(self, sides: Sequence[Graph]) -> tuple[Program, ...]:
        """The programs of a branch. Where both sides can, they write a result over one operand."""
        own = {
            j: min(both)
            for j in range(len(sides[0].outputs))
            if (both := set.intersection(*(origins(g, g.outputs[j]) for g in sides)))
        }
        while True:
            made = tuple(assign_memory(g, self.device, (), None, own) for g in sides)
            left = dict(set.intersection(*(set(p.reuse) for p in made)))
            if left == own:
                return made
            own = left

    def _bodies(self, k: int, node: Node) -> list[Graph]:
        graphs = [g for _, g in node.subgraphs()]
        if node.op != "blocks":
            return graphs
        return [with_written(g, body_order(self.graph, k, self.contiguous)) for g in graphs]


def carried_in_place(node: Node, bodies: Sequence[Program]) -> dict[int, int]:
    """Find what a loop carries, or a branch takes, and updates where it lies: the results, and
    which operands they begin as."""
    before = {**LOOPS, "branch": -1}.get(node.op)
    return {} if before is None else {j: v - before for j, v in bodies[0].reuse}


def read_ahead(graph: Graph, node: Node) -> list[Spec]:
    """The operands of `blocks` that are read from files: one block while another is worked on."""
    return [
        spec
        for v, spec in zip(node.inputs, node.kw["body"].inputs, strict=True)
        if (lies := graph.specs[v].layout) is not None and lies.stored
    ]


def with_written(body: Graph, in_order: Sequence[bool] | None) -> Graph:
    """The body of `blocks` with what it makes for files among its results, at the end: turns make it in
    one buffer after the other, since a block is written while the next one is made. What is read
    from a file and written as it is stays where it was read."""
    writes = [k for k, node in enumerate(body.nodes) if node.op == "write"]
    if not writes:
        return body
    order, taken = contiguous(body, in_order), set(body.outputs)

    def is_made(v: int) -> bool:
        while (k := body.producers[v]) >= 0 and is_view(body, k, order):
            v = body.nodes[k].inputs[0]
        return k >= 0 and body.nodes[k].op != "constant"

    copied, made = [], []
    for k in writes:
        v = body.nodes[k].inputs[0]
        if not is_made(v):
            continue
        made.append(k)
        if v in taken or is_view(body, body.producers[v], order):
            copied.append(k)
        taken.add(v)

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        node = body.nodes[k]
        x, target = (values[v] for v in node.inputs)
        (x,) = builder.add("copy", (x,), (), (builder.specs[x],), node.line)
        return builder.add(node.op, (x, target), node.params, node.specs, node.line)

    found = replace(body, copied, make)
    wrote = [node.inputs[0] for node in found.nodes if node.op == "write"]
    behind = [v for k, v in zip(writes, wrote, strict=True) if k in made]
    return Graph(found.inputs, found.nodes, (*found.outputs, *behind))


def written_specs(node: Node, body: Graph) -> tuple[Spec, ...]:
    """Return the specs of what iterations of `blocks` make for files."""
    return body.out_specs[len(node.specs) :]


def addends(node: Node) -> list[Spec]:
    """List the specs of which iterations of `blocks` leave one addend each."""
    found: list[Spec] = node.kw["body"].out_specs
    return [s for s in found if s.layout is not None and isinstance(s.layout.splits[-1], Partial)]


def going_on(body: Graph) -> list[int]:
    """The nodes in turns of which the next one needs what the last one ended with."""
    return [j for j, node in enumerate(body.nodes) if OPS[node.op].run.carries_state]


@dataclass(slots=True)
class Lifetime:
    """A value that has a place in the arena of its program."""

    size: int
    made: int  # the kernel that makes it
    until: int  # the last one that needs it
    reads: list[int]  # those that read it


def bytes_of_values(program: Program) -> int:
    """Count the most bytes of values that are there at once, without what single kernels need."""
    found = lifetimes(program)[1]
    for k, bodies in program.bodies.items():
        found[k] += max(map(bytes_of_values, bodies), default=0)
    return max(found, default=0)


def usage(program: Program, device: Device) -> tuple[list[int], dict[int, Lifetime]]:
    """Find the bytes of the arena while each kernel runs, and where values stay."""
    stays, found = lifetimes(program)
    for k, places in enumerate(program.scratch):
        if places and k not in program.bodies:
            found[k] += sum(scratch_bytes(device, program.graph, program.graph.nodes[k]))
    for k, bodies in program.bodies.items():
        found[k] += max((p.arena_bytes for p in bodies), default=0)
    return found, stays


def find_roots(program: Program) -> list[int]:
    """For each value of a program what it looks at, or itself."""
    found = list(range(len(program.slots)))
    for v, slot in enumerate(program.slots):
        if slot.kind == "alias":
            found[v] = found[slot.at]
    return found


def lifetimes(program: Program) -> tuple[dict[int, Lifetime], list[int]]:
    """Values in the arena, and the bytes that they take while each kernel runs, without what only it needs."""
    graph, slots, root = program.graph, program.slots, find_roots(program)
    reads: dict[int, list[int]] = {}
    for k, node in enumerate(graph.nodes):
        if not node.specs or slots[graph.starts[k]].kind != "alias":
            for v in node.inputs:
                reads.setdefault(root[v], []).append(k)
    change = [0] * (len(graph.nodes) + 1)
    found: dict[int, Lifetime] = {}
    ends: dict[int, tuple[int, int]] = {}  # of places: who had them last until when, and its size
    for v, slot in enumerate(slots):
        if slot.kind == "arena":
            size, made, mine = local_bytes(graph.specs[v]), graph.producers[v], reads.get(v, [])
            found[v] = Lifetime(size, made, max(mine, default=made), mine)
            begin = made + (ends.get(slot.at) == (made, size))  # in the place of what dies there
            ends[slot.at] = found[v].until, size
            change[begin] += size
            change[found[v].until + 1] -= size
    return found, list(itertools.accumulate(change[:-1]))


def scratch_bytes(device: Device, graph: Graph, node: Node) -> list[int]:
    """The memory that a node's kernel needs beside operands and results, enough for each worker: smaller
    parts may need more than larger ones."""
    specs = (*(graph.specs[v] for v in node.inputs), *node.specs)
    if not device.has_scratch(node) and division_of(node, specs[: len(node.inputs)]) is None:
        return []
    parts = different_shapes(tuple([(s.layout, s.shape) for s in specs if s.layout is not None]))
    count = len(node.inputs)
    sizes = [
        [math.prod(s.shape) * s.dtype.itemsize for s in sum(found, ())]
        for found in (scratch_of(device, node, p[:count], p[count:], specs) for p in parts)
    ]
    return [max(each) for each in itertools.zip_longest(*sizes, fillvalue=0)]
