"""A Program bound to one worker: one straight Python function.

Every view into the arena is made once, now, and is a constant of the function; what depends on
operands is a local variable. So an iteration is a list of calls such as `add(v3, v1, v7)`, nested
in real `for`, `while` and `if` where the program has loops and branches. The text is made of
generated names only, never of anything that a plan contains.

    def run(i0, i1, o0):
        f2(i0, i1, v2)
        k3(xp, o0, v2, **p3)

On a device that repeats runs, what it repeats stands in segments (capture_segments.py), behind all
views of operands."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from ostinato.ops.core.device import Device, InTurns, Prepackable, Recorder, plain
from ostinato.ops.core.divided import divided_kernel, division_of
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import around
from ostinato.ops.core.notes import Notes
from ostinato.ops.core.registry import OPS, Place
from ostinato.ops.core.spec import is_inexact, strided_like
from ostinato.ops.flow.control import CONTROL
from ostinato.ops.planned.collective import STORED, collective_of
from ostinato.ops.planned.offloaded import OFFLOADED, STASH
from ostinato.planner.passes.memory import body_order, contiguous, is_joined, part_getter, replaced
from ostinato.planner.plan import ONE_THREAD, Program
from ostinato.planner.title import title

from ostinato import settings

from .bound import Bound, Row, Stop, may_note
from .bound_values import RowOf
from .capture_segments import Parts
from .control_flow import SLICE, ControlFlow, Inner
from .disk_store import DiskStore
from .messages.collectives import Start, staged, starter
from .messages.communicator import Communicator
from .packed_weights import PrepackedOperand
from .run_progress import Span

CONSTANT = 1 << 12  # bytes of what is made once for all turns
STRETCHED_NODES = 256  # of a program, from which stretches of it are left to machine code ...
MIN_STRETCH_CALLS = 16  # ... that have so many calls
_OUT_BY_NAME = ("maximum", "minimum")  # NumPy wants to be sure that `out` is no third operand


def bind(
    program: Program,
    rank: int,
    communicator: Communicator,
    device: Device,
    arena: Any,
    name: str,
    threads: int = 1,
    timed: bool = False,
    row_of: RowOf | None = None,
    notes: Notes | None = None,
    parts: Parts | None = None,
    folder: str | None = None,
) -> Bound:
    """The function that runs a program on one worker. `row_of` makes rows that do more than to add up;
    `notes` has what kernels of a device find wrong; `parts`: of what is repeated; `folder`: for values
    that leave memory for a while."""
    binder = _Binder(rank, communicator, device, arena, threads, timed, row_of, notes, parts)
    binder.folder = folder
    graph = program.graph
    ins = [f"i{k}" for k in range(len(graph.inputs))]
    outs = [f"o{k}" for k in range(len(graph.outputs))]
    binder.write(f"def run({', '.join((*ins, *outs))}):")
    binder.depth += 1
    binder.looks = {name_: (k, None) for k, name_ in enumerate(ins)}
    for names, specs in ((ins, graph.inputs), (outs, graph.out_specs)):
        for name_, spec in zip(names, specs, strict=True):
            if spec.layout is not None and not spec.layout.stored:
                binder.shown[name_] = strided_like(binder.shape(spec), spec.dtype)
    if timed:
        binder.names["talk"] = communicator
        binder.write("t0 = t1 = mark(); c0 = talk.talking")
    with device.together():
        if parts is None and device.is_host and not timed and len(graph.nodes) >= STRETCHED_NODES:
            binder.bind_stretches(program, ins, outs)
        elif parts is None:
            binder.program(program, ins, outs, 0)
        else:
            binder.bind_parts(program, ins, outs, parts)
    if row_of is not None and graph.nodes:
        whole = binder.name("r", row_of(graph.nodes[-1], 0, "run", name))
        binder.write(f"{whole}.span(device, t1, mark())")
    binder.write("return")
    source = "\n".join(binder.text)
    if settings.debug >= 4:
        print(f"# {name}, worker {rank}\n{source}", file=sys.stderr)
    exec(compile(source, name, "exec"), binder.names)
    call = binder.names.pop("run")  # no circle: with the last who calls it, all it holds is gone
    return Bound(
        call,
        source,
        binder.rows,
        binder.lines,
        binder.stays,
        binder.map,
        binder.conditional,
        binder.stops,
        binder.away,
    )


@dataclass(slots=True)
class _Stretch:
    """Nodes whose calls machine code may do."""

    record: Recorder
    first: int  # of the nodes
    begun: int  # lines before it
    seconds: float = 0.0  # that it takes, about


class _Binder(ControlFlow):
    """Binds a program: its nodes one after the other."""

    # -- a program -------------------------------------------------------------------------
    def program(
        self,
        program: Program,
        ins: Sequence[str],
        outs: Sequence[str],
        base: int,
        given: Sequence[bool] | None = None,
    ) -> None:
        graph = program.graph
        in_order = contiguous(graph, given)
        names: list[str] = list(ins)
        for k in range(len(graph.nodes)):
            self.name_results(program, k, names, outs, base)
            self.lines_of(program, k, names, base, in_order)

    def bind_stretches(self, program: Program, ins: Sequence[str], outs: Sequence[str]) -> None:
        """The whole program. Machine code does stretches of it, of calls one after the other that take
        some milliseconds at the most: as of a loop of Python's, each of whose iterations is recorded."""
        graph = program.graph
        in_order = contiguous(graph)
        names: list[str] = list(ins)
        stretch: _Stretch | None = None
        for k, node in enumerate(graph.nodes):
            op = OPS[node.op]
            apart = (
                node.op in CONTROL
                or op.run.bounds_checked
                or op.run.may_be_singular
                or node.op in OFFLOADED
                or collective_of(node.op, node.kw)
            )
            if stretch is not None and (apart or stretch.seconds > SLICE):
                self.end_stretch(program, stretch, k, names)
                stretch = None
            if stretch is None and not apart:
                self.record, self.looked = self.device.recorder(self.fixed), {}
                stretch = _Stretch(self.record, k, len(self.text))
            before, stays = len(self.text), len(self.stays)
            self.name_results(program, k, names, outs, 0)
            self.lines_of(program, k, names, 0, in_order)
            if stretch is None:
                continue
            record = stretch.record
            if record.lines == record.known and len(self.stays) == stays:
                stretch.seconds += Span(0, 0, graph, node).seconds
                continue
            if record.count < MIN_STRETCH_CALLS:
                stretch = self.record = None
                continue
            self.unwrite(before)  # what machine code does not do stands behind what it does
            del names[graph.starts[k] :], self.stays[stays:]
            self.end_stretch(program, stretch, k, names)
            stretch = None
            self.name_results(program, k, names, outs, 0)
            self.lines_of(program, k, names, 0, in_order)
        if stretch is not None:
            self.end_stretch(program, stretch, len(graph.nodes), names)

    def end_stretch(
        self, program: Program, stretch: _Stretch, k: int, names: Sequence[str]
    ) -> None:
        """Leave it to machine code, if it has enough calls; looks that later ones have stay."""
        graph, record, self.record = program.graph, stretch.record, None
        if record.count < MIN_STRETCH_CALLS:
            return
        self.unwrite(stretch.begun)
        row = Row(graph.nodes[stretch.first], self.depth)
        made = range(graph.starts[stretch.first], len(names))
        read = {names[v] for v in made if graph.uses[v] and graph.uses[v][-1] >= k}
        for name, (_, source) in reversed(self.looked.items()):
            if name in read:
                read.add(source)
        for name, (look, source) in self.looked.items():
            if name in read:
                self.write(f"{name} = {look}({source})", row)
        begun = len(self.text)
        run = self.name("q", record.repeat(None, -1).run)
        self.write(f"{run}({', '.join(('0', '1', *record.outside))})", row)
        self.map.spans.append(Span(begun + 1, begun + 1, graph, row.node))
        self.stops.append(Stop(begun + 1, self.depth, row))

    def bind_parts(
        self, program: Program, ins: Sequence[str], outs: Sequence[str], parts: Parts
    ) -> None:
        """The whole program, as parts that are repeated and what is not. What only looks at operands comes
        first, as it does no more than to name memory."""
        graph = program.graph
        in_order = contiguous(graph)
        names: list[str] = list(ins)
        self.names["parts"] = parts
        for k, node in enumerate(graph.nodes):
            self.name_results(program, k, names, outs, 0)
            if self.is_view(program, k):
                self.views(program, k, node, Row(node, self.depth), names, graph.starts[k])
        rest = [k for k in range(len(graph.nodes)) if not self.is_view(program, k)]
        for is_apart, run in itertools.groupby(rest, lambda k: k in parts.apart):
            begun = len(self.text)
            self.is_repeated = not is_apart
            if self.is_repeated:
                self.write(f"while parts.next({parts.count}):")
                self.depth += 1
                self.write("try:")
                self.depth += 1
            before = len(self.text)
            for k in run:
                self.lines_of(program, k, names, 0, in_order)
            if self.is_repeated:
                self.depth -= 2
            if self.is_repeated and len(self.text) == before:
                self.unwrite(begun)
            elif self.is_repeated:
                self.write(f"        parts.done({parts.count})")
                self.write("    except BaseException as error:")
                self.write(f"        if not parts.forgives({parts.count}, error): raise")
                parts.count += 1
        self.is_repeated = False

    def is_view(self, program: Program, k: int) -> bool:
        node = program.graph.nodes[k]
        if not node.specs or program.slots[program.graph.starts[k]].kind != "alias":
            return False
        return node.op != "wait" and node.op not in STORED

    def name_results(
        self, program: Program, k: int, names: list[str], outs: Sequence[str], base: int
    ) -> None:
        """Where a node's results lie, as far as that is no look at others."""
        graph, node = program.graph, program.graph.nodes[k]
        for j, (v, spec) in enumerate(zip(graph.outs(k), node.specs, strict=True)):
            slot = program.slots[v]
            match slot.kind:
                case "output":
                    names.append(outs[slot.at])
                case "arena":
                    names.append(self.stored(base + slot.at, self.shape(spec), spec.dtype))
                case "constant":
                    value = self.xp.empty((), spec.dtype)
                    with np.errstate(all="ignore"):
                        value[...] = node.kw["value"]
                    names.append(self.array(value))
                case "alias":
                    names.append(names[node.inputs[j]] if node.op == "wait" else "")
                case "part":
                    names.append(self.part(program, v, outs, base))
                case _:
                    names.append("None")

    def lines_of(
        self, program: Program, k: int, names: list[str], base: int, in_order: Sequence[bool]
    ) -> None:
        graph, node = program.graph, program.graph.nodes[k]
        row = (self.row_of or Row)(node, self.depth)
        begun = len(self.text)
        before = self.begin_range(row)
        self.node(program, k, node, row, names, graph.starts[k], base, in_order)
        if before > begun and len(self.text) == before:
            self.unwrite(begun)
        elif before > begun:
            self.write("end_range()")
        if len(self.text) > before:
            self.map.spans.append(Span(before + 1, len(self.text), graph, node))
        if not self.loops and len(self.text) > before:
            self.stops.append(Stop(len(self.text), self.depth, row))
        if self.timed and len(self.text) > before:
            self.rows.append(row)
            stamp = self.name("r", row)
            self.write(f"{stamp}.span(device, t0, mark())")
            self.write(f"c1 = talk.talking; {stamp}.talking += c1 - c0; c0 = c1; t0 = mark()")

    def begin_range(self, row: Row) -> int:
        """Tell a profiler of the device; how many lines there are then."""
        ranges = self.device.ranges() if self.timed and self.row_of is not None else None
        if ranges is not None:
            begin, self.names["end_range"] = ranges
            self.write(f"{self.name('h', partial(begin, title(row.node)))}()")
        return len(self.text)

    def node(
        self,
        program: Program,
        k: int,
        node: Node,
        row: Row,
        names: list[str],
        first: int,
        base: int,
        in_order: Sequence[bool],
    ) -> None:
        graph, op = program.graph, OPS[node.op]
        ins = [names[v] for v in node.inputs]
        if node.specs and program.slots[first].kind == "alias":
            self.views(program, k, node, row, names, first)
            return
        outs = names[first : first + len(node.specs)]
        if node.op == "constant" or is_joined(program, k) or (op.moves.pieces and ins == outs):
            return  # there is nothing to do, or to copy
        if not op.moves.concatenates and (box := replaced(graph, k)) is not None:
            for slab in around(box, self.shape(node.specs[0])):
                self.copy_part(ins[0], outs[0], slab, row)
            return
        if (
            self.record is not None
            and op.kernel is not None
            and self.is_fixed(program, node, first)
        ):
            value = self.xp.empty(self.shape(node.specs[0]), node.specs[0].dtype)
            at = {"at": self.place_of(graph, node)} if op.run.placed else {}
            op.kernel(self.xp, value, **node.kw, **at)
            names[first] = self.array(value)
            return
        if node.op == "blocks" or node.op in CONTROL:
            inner = Inner(program, k, node, row, ins, outs, base)
            orders = (body_order(graph, k, in_order),) if node.op == "blocks" else ()
            getattr(self, f"{node.op}_")(inner, *orders)
            return
        if collective_of(node.op, node.kw):
            self.collective(graph, node, row, ins, outs)
            return
        if node.op in OFFLOADED:
            self.offload(graph, k, row, names)
            return
        watched = [
            out
            for out, spec in zip(outs, node.specs, strict=True)
            if settings.check_nan and node.op != "read" and out != "None" and is_inexact(spec.dtype)
            if not op.run.carries_state  # from NaN that its operand had before
        ]
        if watched:  # now, as the result may take an operand's memory
            before, is_kernel = self.local("b"), isinstance(node.kw.get("body"), Graph)
            look = "kept_if_numbers" if is_kernel else "has_nan"
            self.write(f"{before} = {look}({', '.join(ins)})", row)
        needs, more = self.scratch(graph, node)
        scratch = tuple(
            self.place(base + offset, s.shape, s.dtype)
            for offset, s in zip(program.scratch[k], (*needs, *more), strict=False)
        )
        chained = op.run.carries_state and not self.turns[0]
        if op.run.carries_state and self.turns[0]:
            scratch = self.ends[k]
        if chained:
            self.take_over(node, scratch, row)
        self.call(graph, k, row, ins, outs, scratch, len(needs), in_order)
        if chained:
            self.hand_over(node, scratch, row)
        if watched:
            self.write(f"check_nan({self.name('n', node)}, {before}, ({', '.join(watched)},))", row)

    def call(
        self,
        graph: Graph,
        k: int,
        row: Row,
        ins: Sequence[str],
        outs: Sequence[str],
        scratch: tuple[Any, ...],
        own: int,
        in_order: Sequence[bool],
    ) -> None:
        """Write the call of the device's kernel, of a function of NumPy's, or of the op's own kernel,
        whose scratch comes first."""
        node = graph.nodes[k]
        op = OPS[node.op]
        kernel = self.native(graph, k, ins, outs, scratch[own:])
        if isinstance(kernel, InTurns):
            self.all_turns(kernel, (*ins, *outs), row)
        elif kernel is not None:
            keeps = kernel if isinstance(kernel, Prepackable) else None
            function = kernel.function if isinstance(kernel, Prepackable) else kernel
            if self.notes is not None and op.run.bounds_checked:
                function = self.notes.site(node).watching(function)
            name = self.name("g", function)
            if keeps is not None and ins[1] in self.looks:
                self.stays.append(PrepackedOperand(*self.looks[ins[1]], keeps, self.names, name))
            self.write(f"{name}({', '.join((*ins, *outs))})", row)
            if self.record is not None:
                self.record.call(function, (*ins, *outs), self.strided_like(outs[0]))
        elif (
            op.run.ufunc
            and (op.kernel is None or (not own and all(in_order[v] for v in node.inputs)))
            and not plain(node.kw)
        ):
            f = self.ufuncs.get(op.run.ufunc) or self.name("f", getattr(self.xp, op.run.ufunc))
            self.ufuncs[op.run.ufunc] = f
            by_name = op.run.ufunc in _OUT_BY_NAME or op.run.dense  # CuPy's products take no other
            out = f"out={outs[0]}" if by_name else outs[0]
            self.write(f"{f}({', '.join((*ins, out))})", row)
        else:
            params, place = plain(node.kw), ""
            turn, ranks = self.turns
            if op.run.placed and turn:
                place = (
                    f", at={self.name('a', [self.place_of(graph, node, r) for r in ranks])}[{turn}]"
                )
            elif op.run.placed:
                params["at"] = self.place_of(graph, node)
            if op.run.scratch is not None:
                params["scratch"] = scratch[:own]
            kernel_ = self.bind_kernel(graph, node)
            if self.notes is not None and may_note(op):
                kernel_ = self.notes.site(node).watching(kernel_)
            f = self.name("k", kernel_)
            out = outs[0] if len(outs) == 1 else f"({', '.join(outs)})"
            place += f", **{self.name('p', params)}" if params else ""
            if node.op == "write" and ins[0] in self.behind:
                place += f", later={self.behind[ins[0]]}.put"
            self.write(f"{f}({', '.join(('xp', out, *ins))}{place})", row)

    def bind_kernel(self, graph: Graph, node: Node) -> Callable[..., None]:
        """The op's kernel. One that reads a file writes to the host's memory."""
        kernel, device = OPS[node.op].kernel, self.device
        assert kernel is not None
        layouts = [graph.specs[v].layout for v in node.inputs]
        if device.is_host or not any(x is not None and x.stored for x in layouts):
            return kernel

        def staged(xp: Any, out: Any, *files: Any, **params: Any) -> None:
            made = np.empty(out.shape, out.dtype)
            kernel(np, made, *files, **params)
            xp.copyto(out, device.from_host(made))

        return staged

    def is_fixed(self, program: Program, node: Node, first: int) -> bool:
        """Tell whether it is made of nothing, the same in each turn, and small: then it is made now."""
        _, ranks = self.turns
        return (
            not node.inputs
            and OPS[node.op].run.scratch is None
            and not ranks
            and program.slots[first].kind == "arena"
            and node.specs[0].nbytes <= CONSTANT
        )

    def views(
        self, program: Program, k: int, node: Node, row: Row, names: list[str], first: int
    ) -> None:
        graph, op = program.graph, OPS[node.op]
        if node.op == "wait":
            self.write(f"{self.requests[names[node.inputs[0]]]}.wait()", row)
        if node.op in STORED:
            names[first] = self.local("x")
            operands = [self.on_host(names, graph, v) for v in node.inputs]
            operands.append(f"**{self.name('p', node.kw)}")
            self.write(f"{names[first]} = {self.name('w', op.view)}({', '.join(operands)})", row)
            return
        for j in range(len(node.specs)):
            source = names[node.inputs[j]]
            if op.view is None:
                names[first + j] = source
                continue
            at, params, xp, view = self.place_of(graph, node), node.kw, self.xp, op.view

            def look(
                x: Any, at: Place = at, params: Any = params, xp: Any = xp, view: Any = view
            ) -> Any:
                return view(xp, x, at, **params)

            names[first + j] = self.seen(source, look, row, partial(look, xp=np))

    def on_host(self, names: Sequence[str], graph: Graph, v: int) -> str:
        """Name what readers of files want to see: places along an axis, or a file."""
        layout = graph.specs[v].layout
        if self.device.is_host or layout is None or layout.stored:
            return names[v]
        return f"{self.name('h', self.device.to_host)}({names[v]})"

    def copy_part(self, source: str, target: str, box: tuple[slice, ...], row: Row) -> None:
        x, y = (self.seen(name, itemgetter(box), row) for name in (source, target))
        before, after, kernel = self.strided_like(x), self.strided_like(y), None
        if self.record is not None and before is not None and after is not None:
            kernel = self.device.copying_part(before, after, self.threads)
        if self.record is None or kernel is None:
            self.write(f"copyto({y}, {x})", row)
            return
        self.write(f"{self.name('g', kernel)}({x}, {y})", row)
        self.record.call(kernel, (x, y), after)

    def part(self, program: Program, v: int, outs: Sequence[str], base: int) -> str:
        """Where a value is made in what it will be joined to."""
        graph, whole = program.graph, program.slots[v].at
        slot, spec = program.slots[whole], graph.specs[whole]
        if slot.kind == "output":
            source = outs[slot.at]
        else:
            source = self.stored(base + slot.at, self.shape(spec), spec.dtype)
        place_of = partial(self.place_of, graph)
        return self.seen(source, part_getter(graph, v, self.shape, place_of))

    # -- generated kernels -----------------------------------------------------------------
    def native(
        self, graph: Graph, k: int, ins: Sequence[str], outs: Sequence[str], scratch: Sequence[Any]
    ) -> Callable[..., None] | Prepackable | InTurns | None:
        """A function of arrays that lie as these do in every run; None if there is no better one
        than the op's kernel."""
        node, arrays = graph.nodes[k], [self.strided_like(name) for name in (*ins, *outs)]
        specs = (*(graph.specs[v] for v in node.inputs), *node.specs)
        threads = 1 if node.kw.get("way") == ONE_THREAD else self.threads
        if (parts := division_of(node, specs[: len(ins)])) is not None:
            place = self.place_of(graph, node)
            return divided_kernel(
                self.device, node, specs, self.shape, arrays, threads, scratch, place, parts
            )
        if any(x is None for x in arrays):
            return self.device.dynamic_kernel(node, specs, scratch)
        often = self.record is not None
        at = self.one_place(graph, node)
        read_next = often or any(graph.uses[v] for v in graph.outs(k))
        return self.device.kernel(
            node, specs, self.shape, arrays, threads, scratch, often, at, read_next
        )

    def one_place(self, graph: Graph, node: Node) -> Place | None:
        """Where a native kernel works that asks for it; None where what it depends on differs from turn to
        turn."""
        native = self.device.natives.get(node.op)
        if native is None or native.placed is None:
            return None
        turn, ranks = self.turns
        places = [self.place_of(graph, node, rank) for rank in (ranks if turn else (None,))]
        return places[0] if len({native.placed(at, node.kw) for at in places}) == 1 else None

    # -- what leaves memory for a while ----------------------------------------------------
    def offload(self, graph: Graph, k: int, row: Row, names: list[str]) -> None:
        """Begin to bring a value to its place elsewhere, or back. What was stashed is known by its request."""
        node, first, request = graph.nodes[k], graph.starts[k], self.local("q")
        if self.away is None:
            self.away = self.device.away() or DiskStore(self.folder)
        if node.op == STASH:
            spec = graph.specs[node.inputs[0]]
            size = math.prod(self.shape(spec)) * spec.dtype.itemsize
            self.elsewhere[request] = self.away.place(size)
            source, at, names[first] = names[node.inputs[0]], self.elsewhere[request], request
            begin = self.away.stash
        else:
            source, at = names[first], self.elsewhere[names[node.inputs[0]]]
            begin = self.away.fetch
        self.requests[names[first]] = request
        self.write(f"{request} = {self.name('s', partial(begin, at))}({source})", row)

    # -- collectives -----------------------------------------------------------------------
    def collective(
        self, graph: Graph, node: Node, row: Row, ins: Sequence[str], outs: Sequence[str]
    ) -> None:
        kind = collective_of(node.op, node.kw)
        start = self.name("s", self.starter(graph, node, kind, ins, outs))
        call = f"{start}(({', '.join(ins)},), ({', '.join(outs)},))"
        if node.op != "start":
            self.write(f"{call}.wait()", row)
            return
        self.requests[outs[0]] = self.local("q")
        overlap = self.name("h", self.communicator.overlap)
        self.write(f"{self.requests[outs[0]]} = {overlap}({call})", row)

    def starter(
        self, graph: Graph, node: Node, kind: str, ins: Sequence[str], outs: Sequence[str]
    ) -> Start:
        """Make what starts it; on another device by way of the host's memory."""
        if self.device.is_host or self.communicator.on_device:
            from_, to = ([self.fixed.get(name) for name in names] for names in (ins, outs))
            return starter(self.communicator, graph, node, kind, from_, to)
        specs, place = [graph.specs[v] for v in node.inputs], self.device.staging
        given, made = ([place(self.shape(s), s.dtype) for s in of] for of in (specs, node.specs))
        start = starter(self.communicator, graph, node, kind, given, made)
        return staged(start, given, made, self.device)
