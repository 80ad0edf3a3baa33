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

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.collective import STORED, collective_of
from ostinato.ops.control import CONTROL, graph_cost
from ostinato.ops.core.device import (
    Branch,
    Device,
    InTurns,
    Loop,
    Prepackable,
    Recorder,
    Repeated,
    plain,
)
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Partial, around, slices
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.notes import Notes
from ostinato.ops.core.registry import OPS, Place, Scratch
from ostinato.ops.core.spec import Spec, is_inexact, lying
from ostinato.planner.passes.memory import (
    BUFFERS,
    addends,
    body_order,
    contiguous,
    going_on,
    in_part,
    in_place,
    is_joined,
    is_update,
    replaced,
    written_behind,
)
from ostinato.planner.plan import ONE_THREAD, Program
from ostinato.planner.title import title

from ostinato import settings
from ostinato.errors import (
    BoundsError,
    ExecutionError,
    LinAlgError,
    MemoryLimitError,
    NaNError,
    OstinatoError,
)

from .capture_segments import Parts
from .messages.collectives import Start, staged, starter
from .messages.communicator import Communicator
from .packed_weights import PrepackedOperand
from .read_ahead import ReadAhead, Step, WriteBehind
from .run_progress import BYTES, CALL, FLOPS, Map, Span, Turns

Look = Callable[[Any], Any]
RowOf = Callable[..., "Row"]
SLICE = 2e-3  # seconds of turns after which others may have the interpreter
CONSTANT = 1 << 12  # bytes of what is made once for all turns
MOST_GOING = 1000  # spans of one row that wait to be counted
SHORT = 10  # of so many turns each is short enough for what Python does to matter
MANY = 256  # operations of a program, from which stretches of it are left to machine code ...
FEW = 16  # ... that have so many calls
_OUT_BY_NAME = ("maximum", "minimum")  # NumPy wants to be sure that `out` is no third operand


@dataclass(slots=True)
class Row:
    """A line of the function: the node that it runs, and the seconds that it took when it was
    timed, and those of them that were communication.
    """

    node: Node
    depth: int
    seconds: float = 0.0
    talking: float = 0.0
    count: int = 0
    going: list[tuple[Any, Any]] = field(default_factory=list)  # between marks to which the device
    # has not come yet

    def span(self, device: Device, first: Any, last: Any) -> None:
        """It ran between these marks."""
        self.count += 1
        self.going.append((first, last))
        if len(self.going) == MOST_GOING:
            device.clock()
        self.settle(device)

    def settle(self, device: Device) -> None:
        """Count what is known by now."""
        found = [device.seconds(*marks) for marks in self.going]
        self.seconds += sum(took for took in found if took is not None)
        self.going[:] = [m for m, took in zip(self.going, found, strict=True) if took is None]


class _Stop(NamedTuple):
    """The last line that runs an operation."""

    line: int
    depth: int
    row: Row | None


@dataclass
class Bound:
    """A program as a function of operands and results."""

    call: Callable[..., None]
    source: str
    rows: list[Row]
    lines: dict[int, Row] = field(default_factory=dict)  # line of the source -> what it runs
    stays: list[PrepackedOperand] = field(default_factory=list)  # operands that products may keep
    map: Map = field(default_factory=Map)  # of what its lines do, for who asks how far it is
    conditional: list[tuple[Loop | Branch, Node]] = field(default_factory=list)
    stops: list[_Stop] = field(default_factory=list)  # of what its lines run, in order

    def timed(self, name: str, communicator: Communicator) -> Bound:
        """The same function with a clock between its steps; it has all that this one was made of."""
        names = {**self.call.__globals__, "talk": communicator}
        first, *lines = self.source.split("\n")
        text = [first, "    t0 = t1 = mark(); c0 = talk.talking"]
        now, ends = {1: 1}, iter([*self.stops, _Stop(0, 0, None)])
        end = next(ends)
        for n, line in enumerate(lines, 2):
            text.append(line)
            now[n] = len(text)
            while end.line == n:
                indent, stamp = "    " * end.depth, f"row{len(names)}"
                names[stamp] = end.row
                text.append(f"{indent}{stamp}.span(device, t0, mark())")
                text.append(
                    f"{indent}c1 = talk.talking; {stamp}.talking += c1 - c0; c0 = c1; t0 = mark()"
                )
                end = next(ends)
        source = "\n".join(text)
        exec(compile(source, name, "exec"), names)
        rows = [end.row for end in self.stops if end.row is not None]
        at = {now[line]: row for line, row in self.lines.items()}
        return Bound(names.pop("run"), source, rows, at, self.stays, self.map.moved(now))

    def row_of(self, error: BaseException, name: str) -> Row | None:
        """The line of the function in which it was raised."""
        row, trace = None, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == name:
                row = self.lines.get(trace.tb_lineno)
            trace = trace.tb_next
        return row

    def blame(self, error: BaseException, name: str, more: str = "") -> BaseException:
        """The error as the user should see it: with the operation, at the line that wrote it."""
        if isinstance(error, OstinatoError) or not isinstance(error, Exception):
            return error
        row = self.row_of(error, name)
        kind: type[OstinatoError] = ExecutionError
        if isinstance(error, IndexError):
            kind = BoundsError
        elif isinstance(error, np.linalg.LinAlgError):
            kind = LinAlgError
        elif isinstance(error, MemoryError):
            kind = MemoryLimitError
        if row is None:
            return kind.because("a plan's run", got=f"{type(error).__name__}: {error}{more}")
        return blamed(row.node, kind, f"{error}{more}")


def blamed(node: Node, kind: type[OstinatoError], got: str) -> OstinatoError:
    """What is wrong with an operation, at the line that wrote it."""
    inner = list(_factors(node)) if kind is LinAlgError else []
    if len(inner) == 1:  # all turns of a loop are one call
        node = inner[0]
    name = node.op.removesuffix("_file").removesuffix("_places")
    name = node.kw["name"] if node.op == "in_bounds" else name
    path, _, number = node.line.rpartition(":")
    number, _, other = number.partition(" (")  # what users call it, if that is not its name
    line = f"{path}:{number}" if path else ""
    return kind.because(other.rstrip(")") or name, got=got, line=line)


def may_fail_later(program: Program) -> bool:
    """Whether kernels of a device may find places outside, which is known when somebody looks."""
    bodies = [body for found in program.bodies.values() for body in found]
    return any(OPS[n.op].run.bounds_checked for n in program.graph.nodes) or any(
        map(may_fail_later, bodies)
    )


def _factors(node: Node) -> Iterator[Node]:
    """What may not exist of a matrix, in the bodies of a node."""
    for value in node.kw.values():
        for inner in value.nodes if isinstance(value, Graph) else ():
            if OPS[inner.op].run.may_be_singular:
                yield inner
            yield from _factors(inner)


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
) -> Bound:
    """The function that runs a program on one worker. `row_of` makes rows that do more than to add up;
    `notes` has what kernels of a device find wrong; `parts`: of what is repeated."""
    binder = _Binder(rank, communicator, device, arena, threads, timed, row_of, notes, parts)
    graph = program.graph
    ins = [f"i{k}" for k in range(len(graph.inputs))]
    outs = [f"o{k}" for k in range(len(graph.outputs))]
    binder.write(f"def run({', '.join((*ins, *outs))}):")
    binder.depth += 1
    binder.looks = {name_: (k, None) for k, name_ in enumerate(ins)}
    for names, specs in ((ins, graph.inputs), (outs, graph.out_specs)):
        for name_, spec in zip(names, specs, strict=True):
            if spec.layout is not None and not spec.layout.stored:
                binder.shown[name_] = lying(binder.shape(spec), spec.dtype)
    if timed:
        binder.names["talk"] = communicator
        binder.write("t0 = t1 = mark(); c0 = talk.talking")
    with device.together():
        if parts is None and device.is_host and not timed and len(graph.nodes) >= MANY:
            binder.in_stretches(program, ins, outs)
        elif parts is None:
            binder.program(program, ins, outs, 0)
        else:
            binder.in_parts(program, ins, outs, parts)
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
    )


@dataclass(slots=True)
class _Stretch:
    """Nodes whose calls machine code may do."""

    record: Recorder
    first: int  # of the nodes
    begun: int  # lines before it
    seconds: float = 0.0  # that it takes, about


class _Binder:
    def __init__(
        self,
        rank: int,
        communicator: Communicator,
        device: Device,
        arena: Any,
        threads: int,
        timed: bool,
        row_of: RowOf | None,
        notes: Notes | None,
        parts: Parts | None,
    ) -> None:
        self.row_of, self.notes, self.parts = row_of, notes, parts
        self.is_repeated = False  # what is written now
        self.conditional: list[tuple[Loop | Branch, Node]] = []
        self.rank = rank
        self.communicator = communicator
        self.device, self.xp = device, device.xp
        self.arena = arena
        self.threads = threads
        self.timed = timed
        self.text: list[str] = []
        self.lines: dict[int, Row] = {}
        self.rows: list[Row] = []
        self.depth = 0
        self.names: dict[str, Any] = {
            "xp": self.xp,
            "mark": device.mark,
            "device": device,
            "copyto": self.xp.copyto,
        }
        self.names |= {"ReadAhead": ReadAhead, "WriteBehind": WriteBehind}
        self.names |= {"has_nan": partial(_has_nan, self.xp)}
        self.names["check_nan"] = partial(_check_nan, self.xp)
        self.fixed: dict[str, Any] = {}  # names that are the same array in every run
        self.shown: dict[str, Any] = {}  # the others: arrays that lie like them, without memory
        self.looks: dict[str, tuple[int, Look | None]] = {}  # at operands: which one, and how
        self.looked: dict[str, tuple[str, str]] = {}  # of these, by which look, at what
        self.stays: list[PrepackedOperand] = []
        self.count = 0
        self.ufuncs: dict[str, str] = {}
        self.requests: dict[str, str] = {}  # of pending values
        self.places: dict[Any, str] = {}
        self.turns: tuple[str, list[int]] = ("", [])  # the turn's name, and the rank in each
        self.behind: dict[str, str] = {}  # of what turns write: who writes it
        self.ends: dict[int, tuple[Any, ...]] = {}  # what nodes that go on keep from turn to turn
        self.record: Recorder | None = None  # of the innermost loop
        self.loops = 0  # around what is written now
        self.stops: list[_Stop] = []  # of what was written outside of them
        self.map = Map()

    def write(self, line: str, row: Row | None = None) -> None:
        self.text.append("    " * self.depth + line)
        if self.record is not None:
            self.record.lines += 1
        if row is not None:
            self.lines[len(self.text)] = row

    def name(self, prefix: str, value: Any) -> str:
        """A name for a constant of the function."""
        self.count += 1
        made = f"{prefix}{self.count}"
        self.names[made] = value
        return made

    def array(self, value: Any) -> str:
        made = self.name("v", value)
        self.fixed[made] = value
        return made

    def local(self, prefix: str) -> str:
        """A name for something that differs from run to run."""
        self.count += 1
        return f"{prefix}{self.count}"

    # -- values ----------------------------------------------------------------------------
    def place(self, offset: int, shape: Sequence[int], dtype: Any) -> Any:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self.arena[offset : offset + size].view(dtype).reshape(tuple(shape))

    def stored(self, offset: int, shape: Sequence[int], dtype: Any) -> str:
        """A place by name. The same place has one name and is one array object, which NumPy sees at
        once is written in place.
        """
        key = (offset, tuple(shape), dtype)
        if key not in self.places:
            self.places[key] = self.array(self.place(*key))
        return self.places[key]

    def shape(self, spec: Spec) -> tuple[int, ...]:
        assert spec.layout is not None
        return spec.layout.local_shape(spec.shape, self.rank)

    def at(self, graph: Graph, node: Node, rank: int | None = None) -> Place:
        ins = [graph.specs[v] for v in node.inputs]
        here = self.rank if rank is None else rank
        if OPS[node.op].run.host_callback:
            is_first = self.rank == 0
        elif node.op == "write":
            is_first = is_server(ins[0], here)
        else:
            is_first = not any(self.begins(ins, s, here) for s in node.specs)

        def boxes(specs: Sequence[Spec]) -> Any:
            return tuple(s.layout.box(s.shape, here) for s in specs if s.layout is not None)

        return Place(
            boxes(ins),
            boxes(node.specs),
            tuple(s.shape for s in ins),
            tuple(s.shape for s in node.specs),
            is_first,
        )

    def begins(self, ins: Sequence[Spec], made: Spec, rank: int) -> bool:
        """Whether what a worker makes of a replica is an addend that others have."""
        if made.layout is None or len(ins) != 1 or ins[0].layout is None:
            return False
        before, coords = ins[0].layout, made.layout.coords(rank)
        return any(coords[a] and before.splits[a] is None for a in made.layout.partial_axes)

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

    def in_stretches(self, program: Program, ins: Sequence[str], outs: Sequence[str]) -> None:
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
            if record.count < FEW:
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
        if record.count < FEW:
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
        self.stops.append(_Stop(begun + 1, self.depth, row))

    def in_parts(
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
            self.stops.append(_Stop(len(self.text), self.depth, row))
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
            at = {"at": self.at(graph, node)} if op.run.placed else {}
            op.kernel(self.xp, value, **node.kw, **at)
            names[first] = self.array(value)
            return
        if node.op == "blocks":
            self.blocks_(program, k, row, ins, outs, base, body_order(graph, k, in_order))
            return
        if node.op in CONTROL:
            getattr(self, f"{node.op}_")(program, k, node, row, ins, outs, base)
            return
        if collective_of(node.op, node.kw):
            self.collective(graph, node, row, ins, outs)
            return
        watched = [
            out
            for out, spec in zip(outs, node.specs, strict=True)
            if settings.check_nan and node.op != "read" and out != "None" and is_inexact(spec.dtype)
            if not op.run.carries_state  # from NaN that its operand had before
        ]
        if watched:  # now, as the result may take an operand's memory
            before = self.local("b")
            self.write(f"{before} = has_nan({', '.join(ins)})", row)
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
        kernel = self.native(graph, node, ins, outs, scratch[len(needs) :])
        if isinstance(kernel, InTurns):
            self.all_turns(kernel, (*ins, *outs), row)
        elif kernel is not None:
            keeps = kernel if isinstance(kernel, Prepackable) else None
            function = kernel if keeps is None else keeps.function
            name = self.name("g", function)
            if keeps is not None and ins[1] in self.looks:
                self.stays.append(PrepackedOperand(*self.looks[ins[1]], keeps, self.names, name))
            self.write(f"{name}({', '.join((*ins, *outs))})", row)
            if self.record is not None:
                self.record.call(function, (*ins, *outs), self.lies(outs[0]))
        elif (
            op.run.ufunc
            and (op.kernel is None or (not needs and all(in_order[v] for v in node.inputs)))
            and not plain(node.kw)
        ):
            f = self.ufuncs.get(op.run.ufunc) or self.name("f", getattr(self.xp, op.run.ufunc))
            self.ufuncs[op.run.ufunc] = f
            out = f"out={outs[0]}" if op.run.ufunc in _OUT_BY_NAME else outs[0]
            self.write(f"{f}({', '.join((*ins, out))})", row)
        else:
            params, place = plain(node.kw), ""
            turn, ranks = self.turns
            if op.run.placed and turn:
                place = f", at={self.name('a', [self.at(graph, node, r) for r in ranks])}[{turn}]"
            elif op.run.placed:
                params["at"] = self.at(graph, node)
            if op.run.scratch is not None:
                params["scratch"] = scratch[: len(needs)]
            kernel_ = self.in_memory(graph, node)
            if self.notes is not None and op.run.bounds_checked:
                kernel_ = self.notes.site(node).watching(kernel_)
            f = self.name("k", kernel_)
            out = outs[0] if len(outs) == 1 else f"({', '.join(outs)})"
            place += f", **{self.name('p', params)}" if params else ""
            if node.op == "write" and ins[0] in self.behind:
                place += f", later={self.behind[ins[0]]}.put"
            self.write(f"{f}({', '.join(('xp', out, *ins))}{place})", row)
        if chained:
            self.hand_over(node, scratch, row)
        if watched:
            self.write(f"check_nan({self.name('n', node)}, {before}, ({', '.join(watched)},))", row)

    def in_memory(self, graph: Graph, node: Node) -> Callable[..., None]:
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
        """Whether it is made of nothing, the same in each turn, and small: then it is made now."""
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
            at, params, xp, view = self.at(graph, node), node.kw, self.xp, op.view

            def look(
                x: Any, at: Place = at, params: Any = params, xp: Any = xp, view: Any = view
            ) -> Any:
                return view(xp, x, at, **params)

            names[first + j] = self.seen(source, look, row, partial(look, xp=np))

    def on_host(self, names: Sequence[str], graph: Graph, v: int) -> str:
        """What whoever reads files wants to see: places along an axis, or a file."""
        layout = graph.specs[v].layout
        if self.device.is_host or layout is None or layout.stored:
            return names[v]
        return f"{self.name('h', self.device.to_host)}({names[v]})"

    def seen(
        self, source: str, look: Look, row: Row | None = None, shown: Look | None = None
    ) -> str:
        """A name for a look at an array. `shown`: the same at NumPy's that lies like it."""
        if source in self.fixed:
            return self.array(look(self.fixed[source]))
        made = self.local("x")
        if self.shown.get(source) is not None:
            self.shown[made] = (shown or look)(self.shown[source])
        if source in self.looks:
            which, before = self.looks[source]
            self.looks[made] = which, _in_turn(before, look)
        self.looked[made] = self.name("w", look), source
        self.write(f"{made} = {self.looked[made][0]}({source})", row)
        like = self.shown.get(made)
        if self.record is not None and like is not None:
            self.record.view(made, source, self.shown[source], like)
        return made

    def copy_part(self, source: str, target: str, box: tuple[slice, ...], row: Row) -> None:
        x, y = (self.seen(name, itemgetter(box), row) for name in (source, target))
        before, after, kernel = self.lies(x), self.lies(y), None
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
        return self.seen(source, in_part(graph, v, self.shape))

    # -- generated kernels -----------------------------------------------------------------
    def lies(self, name: str) -> Any:
        """An array that lies as this name's does in every run; None if that is not known."""
        return self.fixed[name] if name in self.fixed else self.shown.get(name)

    def native(
        self,
        graph: Graph,
        node: Node,
        ins: Sequence[str],
        outs: Sequence[str],
        scratch: Sequence[Any],
    ) -> Callable[..., None] | Prepackable | InTurns | None:
        """A function of arrays that lie as these do in every run; None if there is no better one
        than the op's kernel.
        """
        arrays = [self.lies(name) for name in (*ins, *outs)]
        specs = (*(graph.specs[v] for v in node.inputs), *node.specs)
        if any(x is None for x in arrays):
            return self.device.dynamic_kernel(node, specs, scratch)
        threads = 1 if node.kw.get("way") == ONE_THREAD else self.threads
        often = self.record is not None
        at = self.one_place(graph, node)
        return self.device.kernel(node, specs, self.shape, arrays, threads, scratch, often, at)

    def one_place(self, graph: Graph, node: Node) -> Place | None:
        """Where a native kernel works that asks for it; None where that differs from turn to turn."""
        native = self.device.natives.get(node.op)
        if native is None or not native.placed:
            return None
        turn, ranks = self.turns
        places = {self.at(graph, node, rank) for rank in (ranks if turn else (None,))}
        return places.pop() if len(places) == 1 else None

    def scratch(self, graph: Graph, node: Node) -> tuple[Sequence[Scratch], Sequence[Scratch]]:
        """What the op's own kernel needs here, and the device's."""
        specs = (*(graph.specs[v] for v in node.inputs), *node.specs)
        if not self.device.has_scratch(node):
            return (), ()
        shapes, count = [self.shape(s) for s in specs], len(node.inputs)
        return self.device.scratch(node, shapes[:count], shapes[count:], specs)

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
        """What starts it; on another device by way of the host's memory."""
        if self.device.is_host or self.communicator.on_device:
            from_, to = ([self.fixed.get(name) for name in names] for names in (ins, outs))
            return starter(self.communicator, graph, node, kind, from_, to)
        specs, place = [graph.specs[v] for v in node.inputs], self.device.staging
        given, made = ([place(self.shape(s), s.dtype) for s in of] for of in (specs, node.specs))
        start = starter(self.communicator, graph, node, kind, given, made)
        return staged(start, given, made, self.device)

    # -- what goes on from worker to worker ------------------------------------------------
    def take_over(self, node: Node, ends: Sequence[Any], row: Row) -> None:
        """Begin with what the worker before ended with, if there is one."""
        before, _ = neighbours(node, self.rank, self.communicator.size)
        for end in ends if before is not None else ():
            receive = self.name("h", partial(_receive, self.communicator, self.device, end))
            self.write(f"{receive}({before})", row)

    def hand_over(self, node: Node, ends: Sequence[Any], row: Row) -> None:
        """Tell the worker behind what this one ended with."""
        _, behind = neighbours(node, self.rank, self.communicator.size)
        for end in ends if behind is not None else ():
            send = self.name("h", partial(_send, self.communicator, self.device, end))
            self.write(f"{send}({behind})", row)

    # -- control flow ----------------------------------------------------------------------
    def spare(
        self, program: Program, k: int, count: int, ends: Sequence[str], base: int
    ) -> list[str]:
        """The second buffers of carried values; the first ones of those that are updated in place."""
        node = program.graph.nodes[k]
        stays = in_place(node, program.bodies[k])
        return [
            ends[j] if j in stays else self.stored(base + offset, self.shape(spec), spec.dtype)
            for j, (offset, spec) in enumerate(
                zip(program.scratch[k], node.specs[:count], strict=True)
            )
        ]

    def settle_in_place(
        self, inits: Sequence[str], ends: Sequence[str], spare: Sequence[str], row: Row
    ) -> list[str]:
        """What carried values begin as: those that are updated in place are brought there."""
        found = list(inits)
        for j, (init, end, other) in enumerate(zip(inits, ends, spare, strict=True)):
            if other == end:
                self.write(f"if {init} is not {end}: copyto({end}, {init})", row)
                found[j] = end
        return found

    def turn(self, c: Sequence[str], n: Sequence[str], s: Sequence[str]) -> None:
        """The written buffer is read next, the other one written; unless somebody else has failed."""
        before = len(self.text)
        if self.communicator.size > 1:
            self.write(f"{self.name('h', self.communicator.check)}()")
        for cj, nj, sj in zip(c, n, s, strict=True):
            if nj != cj:
                self.write(f"{cj}, {nj}, {sj} = {nj}, {sj}, {nj}")
        if self.record is not None:
            self.record.known += len(self.text) - before

    def begin(
        self, inits: Sequence[str], firsts: Sequence[str], seconds: Sequence[str]
    ) -> list[list[str]]:
        """Names for each value as it is, as it becomes, and for the buffer after that; one for what is
        updated in place."""
        names: list[list[str]] = [[], [], []]
        for values in zip(inits, firsts, seconds, strict=True):
            if values[0] == values[1] == values[2]:
                locals_ = [values[0]] * 3
            else:
                locals_ = [self.local(p) for p in "cns"]
                for value, local in zip(values, locals_, strict=True):
                    self.write(f"{local} = {value}")
            for own, local in zip(names, locals_, strict=True):
                own.append(local)
        return names

    def show_carried(
        self,
        specs: Sequence[Spec],
        inits: Sequence[str],
        *names: list[str],
    ) -> None:
        """Carried values lie in order in their buffers; where they begin elsewhere, nothing is known."""
        for j, (spec, init) in enumerate(zip(specs, inits, strict=True)):
            like = lying(self.shape(spec), spec.dtype)
            first = self.lies(init)
            for which, name in enumerate(n[j] for n in names):
                known = which > 0 or (first is not None and first.strides == like.strides)
                self.shown[name] = like if known else None

    def loop_(
        self,
        program: Program,
        k: int,
        node: Node,
        row: Row,
        ins: Sequence[str],
        outs: Sequence[str],
        base: int,
    ) -> None:
        kw = node.kw
        nc, ns, _ = kw["counts"]
        trips = kw["trips"]
        consts, inits, xs = ins[:nc], ins[nc : nc + ns], ins[nc + ns :]
        ends = outs[:ns]
        spare = self.spare(program, k, ns, ends, base)
        if trips == 0:
            for end, init in zip(ends, inits, strict=True):
                self.write(f"copyto({end}, {init})", row)
            return
        if self.is_repeated and self.parts is not None and id(node) in self.parts.counted:
            self.counted_(program, k, row, ins, ends, spare, base)
            return
        inits = self.settle_in_place(inits, ends, spare, row)
        begin = len(self.text)
        buffers = [inits, *((ends, spare) if trips % 2 else (spare, ends))]
        c, n, s = self.begin(*buffers)
        self.show_carried(node.specs[:ns], inits, c, n, s)
        index = self.array(self.xp.zeros((), np.int64))
        i = self.local("t")  # "i" are the inputs
        order = f"range({trips - 1}, -1, -1)" if kw["reverse"] else f"range({trips})"
        with self.recorded(c, n, buffers) as record:
            self.write(f"for {i} in {order}:")
            turns = self.turn_by(i, trips, node.kw["reverse"])
            self.depth += 1
            self.write(f"{index}[()] = {i}")
            record.known += 2
            items = [self.item(x, "x", i) for x in xs]
            yields = [self.item(y, "y", i) if y != "None" else y for y in outs[ns:]]
            self.program(
                program.bodies[k][0],
                [index, *consts, *c, *items],
                [*n, *yields],
                base + program.bases[k],
            )
            self.turn(c, n, s)
            self.depth -= 1
            turns.last = len(self.text)
        step = _at_once(program.bodies[k][0])
        if self.is_sequence(record, step):
            self.unwrite(begin)
            last = trips - 1 if kw["reverse"] else -1
            made = record.repeat(self.fixed[index], last)
            t = self.local("t")
            self.write(f"for {t} in range(0, {trips}, {step}):")
            turns = self.turn_by(t, trips)
            self.in_turns(made, record, f"{t}, min({t} + {step}, {trips})", row)
            turns.last = len(self.text)

    def all_turns(self, kernel: InTurns, names: Sequence[str], row: Row) -> None:
        """A loop that is one kernel, some turns at a time."""
        run, state, t = self.name("g", kernel.run), self.name("v", kernel.state), self.local("u")
        self.write(f"{t} = 0")
        self.write("while True:")
        shown = self.turn_by(t, kernel.turns)
        self.depth += 1
        if self.communicator.size > 1:
            self.write(f"{self.name('h', self.communicator.check)}()")
        end = f"{t} + {kernel.step}"
        end = f"min({end}, {kernel.turns})" if kernel.turns >= 0 else end
        self.write(f"{run}({t}, {end}, {', '.join(names)})", row)
        self.write(f"{t} = int({state}[0])")
        last = f" or {t} == {kernel.turns}" if kernel.turns >= 0 else ""
        self.write(f"if {state}[1]{last}: break")
        self.depth -= 1
        shown.last = len(self.text)

    def counted_(
        self,
        program: Program,
        k: int,
        row: Row,
        ins: Sequence[str],
        ends: Sequence[str],
        spare: Sequence[str],
        base: int,
    ) -> None:
        """A loop whose turns the device counts, where it is repeated."""
        node, count, trips = program.graph.nodes[k], len(ends), program.graph.nodes[k].kw["trips"]
        consts, buffers = ins[: len(ins) - count], [ins[len(ins) - count :], ends, spare]
        c, n, s = self.begin(*buffers)
        self.show_carried(node.specs, buffers[0], c, n, s)
        index, turns = self.array(self.xp.zeros((), np.int64)), self.local("u")
        loop = self.looping(None, trips, node, c, buffers)
        with self.recorded(c, n, buffers):
            self.write(f"{turns} = 0")
            self.write("while True:")
            shown = self.turn_by(turns, trips)
            self.depth += 1
            self.write(f"if {loop}.ends({turns}): break", row)
            self.write(f"{loop}.number({index}, {turns})", row)
            self.write(f"{turns} += 1")
            self.program(program.bodies[k][0], [index, *consts, *c], n, base + program.bases[k])
            self.turn(c, n, s)
            self.depth -= 1
            shown.last = len(self.text)
        for cj, end in zip(c, ends, strict=True):
            self.write(f"if {cj} is not {end}: copyto({end}, {cj})", row)

    def looping(
        self,
        test: Any,
        most: int,
        node: Node,
        c: Sequence[str],
        buffers: Sequence[Sequence[str]],
    ) -> str:
        """A name for who knows whether there is one more turn; what the first one reads is set."""
        assert self.parts is not None
        loop = self.parts.repeater.loop(test, most)
        self.conditional.append((loop, node))
        name = self.name("l", loop)
        given = ", ".join(f"({''.join(f'{x}, ' for x in names)})" for names in buffers)
        self.write(f"{''.join(f'{x}, ' for x in c)}= {name}.begin({given})")
        return name

    def turn_by(self, name: str, trips: int, reverse: bool = False, begin: int = 0) -> Turns:
        """What follows runs again and again; the variable tells which turn it is."""
        first = trips - 1 if reverse else begin
        made = Turns(len(self.text), name, first, -1 if reverse else 1, max(trips, 0))
        self.map.turns.append(made)
        return made

    def item(self, stack: str, prefix: str, i: str) -> str:
        """A turn's part of an array."""
        name, whole = self.local(prefix), self.lies(stack)
        self.write(f"{name} = {stack}[{i}, ...]")
        if whole is not None:
            self.shown[name] = lying(whole.shape[1:], whole.dtype, whole.strides[1:])
            if self.record is not None:
                self.record.item(name, stack, whole.strides[0])
        return name

    @contextlib.contextmanager
    def recorded(
        self, c: Sequence[str], n: Sequence[str], buffers: Sequence[Sequence[str]]
    ) -> Iterator[Recorder]:
        """What a loop's turns do is taken down, and timed as a whole; it is no part of what is outside."""
        outer, self.record = self.record, self.device.recorder(self.fixed)
        timed, self.timed = self.timed, False
        self.loops += 1
        for cj, nj, init, first, second in zip(c, n, *buffers, strict=True):
            self.record.carried(cj, init, first, second)
            self.record.carried(nj, first, second, first)
        self.record.stays = len(self.stays)
        yield self.record
        self.record, self.timed = outer, timed
        self.loops -= 1
        if outer is not None:
            outer.lines += 1

    def is_sequence(self, record: Recorder, step: int) -> bool:
        """Whether to leave its turns to machine code, if they are short; no operand is kept for them."""
        found = record.is_whole and step >= SHORT
        if found:
            del self.stays[record.stays :]
        return found

    def unwrite(self, begin: int) -> None:
        """Take back what was written since."""
        del self.text[begin:]
        self.map.cut(begin)
        while self.stops and self.stops[-1].line > begin:
            self.stops.pop()
        self.lines = {line: row for line, row in self.lines.items() if line <= begin}

    def in_turns(self, made: Repeated, record: Recorder, turns: str, row: Row) -> None:
        """In a loop, some turns of another one."""
        given = ", ".join((turns, *record.outside))
        self.depth += 1
        if self.communicator.size > 1:
            self.write(f"{self.name('h', self.communicator.check)}()")
        self.write(f"{self.name('q', made.run)}({given})", row)
        self.depth -= 1

    def blocks_(
        self,
        program: Program,
        k: int,
        row: Row,
        ins: Sequence[str],
        outs: Sequence[str],
        base: int,
        given: Sequence[bool] | None,
    ) -> None:
        """Turns whose blocks have the same shapes run the same lines."""
        node, body = program.graph.nodes[k], program.bodies[k][0]
        rank, turns = self.rank, node.kw["turns"]
        ranks = range(rank * turns, (rank + 1) * turns)
        files = [name for name, spec in self.files(program, k, ins) if spec is not None]
        reader, writer = self.local("q"), self.local("q")
        writes = written_behind(node, body.graph)
        if writes:
            steps = self.name("h", self.buffers(program, k, len(files), writes, ranks, base))
            self.write(f"{writer} = WriteBehind({steps})")
        if files:
            steps = self.name("h", self.reads(program, k, ins, ranks, base))
            self.write(f"{reader} = ReadAhead({steps}, ({', '.join(files)},))")
        if files or writes:
            self.write("try:")
            self.depth += 1
        shapes = [
            [s.layout.local_shape(s.shape, r) for s in body.graph.specs if s.layout is not None]
            for r in ranks
        ]
        ends = [t for t in range(1, turns) if shapes[t] != shapes[t - 1]]
        for first, end in itertools.pairwise((0, *ends, turns)):
            self.rank = ranks[first]
            kept = self.kept(program, k, base, len(files) + len(writes))
            self.rank, self.ends = rank, {j: own for j, _, own in kept}
            for _, inner, own in () if first else kept:
                self.take_over(inner, own, row)
            t = self.local("u")
            self.write(f"for {t} in range({end - first}):")
            shown = self.turn_by(t, turns, begin=first)
            self.depth += 1
            self.rank, self.turns = ranks[first], (t, list(ranks[first:end]))
            read, made = ([self.local("x") for _ in each] for each in (files, writes))
            if files:
                self.write(f"{', '.join(read)}, = {reader}.take()", row)
                if not self.device.is_host:
                    move = self.name("h", self.device.from_host)
                    self.write(f"{', '.join(read)}, = map({move}, ({', '.join(read)},))", row)
            if files:
                self.waited(node, "wait for a block")
            if writes:
                self.write(f"{', '.join(made)}, = {writer}.take()", row)
                self.waited(node, "wait for a write")
                self.behind |= dict.fromkeys(made, writer)
            for name, spec in zip(made, writes, strict=True):
                self.shown[name] = lying(self.shape(spec), spec.dtype)
            self.one_turn(program, k, row, ins, outs, base, given, not first, read, made)
            self.depth -= 1
            shown.last = len(self.text)
            self.rank, self.turns = rank, ("", [])
        for _, inner, own in kept:
            self.hand_over(inner, own, row)
        self.ends = {}
        if writes:
            self.write(f"{writer}.finish()", row)
            self.waited(node, "wait for a write")
        if files or writes:
            self.depth -= 1
            self.write("finally:")
        for name in [name for name, does in ((reader, files), (writer, writes)) if does]:
            self.write(f"    {name}.close()")

    def kept(
        self, program: Program, k: int, base: int, turned: int
    ) -> list[tuple[int, Node, tuple[Any, ...]]]:
        """The nodes in turns that go on from what was before, as all turns would see them at once, and
        where they keep that: behind what is read and written in turn, and addends."""
        outer, body = program.graph.nodes[k], program.bodies[k][0].graph
        places = iter(program.scratch[k][BUFFERS * turned + len(addends(outer)) :])
        found = []
        for j in going_on(body):
            node = body.nodes[j]
            needs, _ = self.scratch(body, node)
            own = [self.place(base + next(places), s.shape, s.dtype) for s in needs]
            specs = [s.at(s.layout.at_once) for s in node.specs if s.layout is not None]
            seen = Node(node.op, (), node.params, tuple(specs), node.line)
            found.append((j, seen, tuple(own)))
        return found

    def waited(self, node: Node, what: str) -> None:
        """In profiles, the wait for a file is a row of its own."""
        if self.timed and self.row_of is not None:
            wait = self.name("r", self.row_of(node, self.depth, "file", what))
            self.write(f"{wait}.span(device, t0, mark()); t0 = mark()")

    def files(
        self, program: Program, k: int, ins: Sequence[str]
    ) -> Iterator[tuple[str, Spec | None]]:
        """The operands of `blocks`; with the spec of their blocks, if they lie in files."""
        node, body = program.graph.nodes[k], program.bodies[k][0].graph
        for name, v, spec in zip(ins, node.inputs, body.inputs, strict=True):
            lies = program.graph.specs[v].layout
            yield name, spec if lies is not None and lies.stored else None

    def reads(
        self, program: Program, k: int, ins: Sequence[str], ranks: Sequence[int], base: int
    ) -> list[Step]:
        """Where the block of each file goes in each turn, and which block it is."""
        specs = [spec for _, spec in self.files(program, k, ins) if spec]
        steps: list[Step] = []
        for t, r in enumerate(ranks):
            step = []
            for j, spec in enumerate(specs):
                assert spec.layout is not None
                at = base + program.scratch[k][BUFFERS * j + t % BUFFERS]
                form = spec.layout.local_shape(spec.shape, r), spec.dtype
                out = self.place(at, *form) if self.device.is_host else np.empty(*form)
                step.append((out, spec.layout.box(spec.shape, r)))
            steps.append(step)
        return steps

    def buffers(
        self,
        program: Program,
        k: int,
        files: int,
        writes: Sequence[Spec],
        ranks: Sequence[int],
        base: int,
    ) -> list[list[Any]]:
        """Where each turn makes what is written."""
        places = program.scratch[k][BUFFERS * files :]
        return [
            [
                self.place(base + places[BUFFERS * j + t % BUFFERS], shape, spec.dtype)
                for j, spec in enumerate(writes)
                if spec.layout is not None
                for shape in (spec.layout.local_shape(spec.shape, r),)
            ]
            for t, r in enumerate(ranks)
        ]

    def one_turn(
        self,
        program: Program,
        k: int,
        row: Row,
        ins: Sequence[str],
        outs: Sequence[str],
        base: int,
        given: Sequence[bool] | None,
        begins: bool,
        read: Sequence[str],
        written: Sequence[str],
    ) -> None:
        body = program.bodies[k][0]
        t, _ = self.turns
        files, unread = list(self.files(program, k, ins)), iter(read)
        items = []
        node = program.graph.nodes[k]
        around = [program.graph.specs[v] for v in node.inputs]
        for (name, file), outer, spec in zip(files, around, body.graph.inputs, strict=True):
            items.append(self.block(name, outer, spec) if file is None else next(unread))
            if file is not None:
                self.shown[items[-1]] = lying(self.shape(spec), spec.dtype)
        made: list[str] = []
        states: list[tuple[str, list[str], list[str]]] = []  # monoids, what they have, what comes
        places = iter(program.scratch[k][BUFFERS * (len(read) + len(written)) :])
        for out, outer, spec in zip(outs, node.specs, node.kw["body"].out_specs, strict=True):
            assert spec.layout is not None
            split = spec.layout.splits[-1]
            if not isinstance(split, Partial):
                made.append(self.block(out, outer, spec))
                continue
            addend = self.stored(base + next(places), self.shape(spec), spec.dtype)
            made.append(addend)
            if begins:
                made[-1] = self.local("y")
                self.shown[made[-1]] = lying(self.shape(spec), spec.dtype)
                self.write(f"{made[-1]} = {addend} if {t} else {out}")
            if not states or len(states[-1][1]) == MONOIDS[states[-1][0]].width:
                states.append((split.monoid, [], []))
            states[-1][1].append(out)
            states[-1][2].append(addend)
        self.program(body, items, [*made, *written], base + program.bases[k], given)
        for monoid, has, comes in states:
            f = self.name("m", MONOIDS[monoid].combine)
            state, addend = (f"({', '.join(names)},)" for names in (has, comes))
            when = f"if {t}: " if begins else ""
            self.write(f"{when}{f}(xp, {state}, {state}, {addend})", row)

    def block(self, name: str, outer: Spec, spec: Spec) -> str:
        """What one turn sees of an array that lies outside."""
        layout, whole, (t, ranks) = spec.layout, outer.layout, self.turns
        assert layout is not None
        assert whole is not None
        if layout.at_once is whole and not isinstance(layout.splits[-1], int):
            return name
        count = layout.mesh[-1]
        cuts = [slices(layout.box(spec.shape, r), whole.box(spec.shape, r // count)) for r in ranks]
        made = self.local("x")
        lies = self.lies(name)
        if lies is not None:
            self.shown[made] = lying(self.shape(spec), spec.dtype, lies.strides)
        self.write(f"{made} = {name}[{self.name('c', cuts)}[{t}]]")
        return made

    def while_(
        self,
        program: Program,
        k: int,
        node: Node,
        row: Row,
        ins: Sequence[str],
        outs: Sequence[str],
        base: int,
    ) -> None:
        kw = node.kw
        nc, ns = kw["counts"]
        body, condition = program.bodies[k]
        spare = self.spare(program, k, ns, outs, base)
        inits = self.settle_in_place(ins[nc:], outs, spare, row)
        begin = len(self.text)
        buffers = [inits, outs, spare]
        c, n, s = self.begin(*buffers)
        self.show_carried(node.specs, inits, c, n, s)
        test = self.array(self.xp.zeros((), np.bool_))
        inner = base + program.bases[k]
        turns = self.local("u")
        most = kw["most"]
        limit = f" or {turns} == {most}" if most >= 0 else ""
        ends = f"not {test}[()]{limit}"
        if self.parts is not None and self.is_repeated:
            name = self.looping(self.fixed[test], most, node, c, buffers)
            ends = f"{name}.ends({turns})"
        with self.recorded(c, n, buffers) as record:
            self.write(f"{turns} = 0")
            self.write("while True:")
            shown = self.turn_by(turns, most)
            self.depth += 1
            self.program(condition, [*ins[:nc], *c], [test], inner)
            asked = record.count
            self.write(f"if {ends}: break", row)
            self.write(f"{turns} += 1")
            record.known += 4
            self.program(body, [*ins[:nc], *c], n, inner)
            self.turn(c, n, s)
            self.depth -= 1
            shown.last = len(self.text)
        step = _at_once(program.bodies[k][0])
        if asked and self.is_sequence(record, step):
            self.unwrite(begin)
            made = record.repeat_while(asked, self.fixed[test])
            end = f"{turns} + {step}"
            end = f"min({end}, {most})" if most >= 0 else end
            state = self.name("v", made.state)
            self.write(f"{turns} = 0")
            self.write("while True:")
            shown = self.turn_by(turns, most)
            self.in_turns(made, record, f"{turns}, {end}", row)
            self.write(f"    {turns} = int({state}[0])")
            self.write(f"    if {state}[1]{limit}: break")
            shown.last = len(self.text)
            for cj, init, first, second in zip(c, *buffers, strict=True):
                if cj != first:
                    self.write(
                        f"{cj} = {first} if {turns} % 2 else {second} if {turns} else {init}"
                    )
        for cj, end in zip(c, outs, strict=True):
            if cj != end:
                self.write(f"if {cj} is not {end}: copyto({end}, {cj})", row)

    def branch_(
        self,
        program: Program,
        k: int,
        node: Node,
        row: Row,
        ins: Sequence[str],
        outs: Sequence[str],
        base: int,
    ) -> None:
        otherwise, then = program.bodies[k]
        flag = f"{ins[0]}[()]"
        depth = self.depth
        if self.parts is not None and self.is_repeated:
            branch, flag = self.parts.repeater.branch(), self.local("b")
            self.conditional.append((branch, node))
            self.write(f"for {flag} in {self.name('l', branch)}.sides({ins[0]}):", row)
            self.depth += 1
        for head, side in ((f"if {flag}:", then), ("else:", otherwise)):
            self.write(head)
            self.depth += 1
            self.write("pass")
            self.program(side, ins[1:], outs, base + program.bases[k])
            self.depth -= 1
        self.depth = depth


def neighbours(node: Node, rank: int, workers: int) -> tuple[int | None, int | None]:
    """The workers that have the parts before and behind along the axis on which a node goes on."""
    (spec,) = node.specs
    layout = spec.layout
    assert layout is not None
    axes, own = layout.axes(node.kw["axis"]), layout.coords(rank)
    others = [a for a in range(len(own)) if a not in axes]
    line = [r for r in range(workers) if all(layout.coords(r)[a] == own[a] for a in others)]
    k = line.index(rank)
    return (line[k - 1] if k else None), (line[k + 1] if k + 1 < len(line) else None)


def _receive(communicator: Communicator, device: Device, end: Any, source: int) -> None:
    is_there = device.is_host or communicator.on_device
    made = end if is_there else np.empty(end.shape, end.dtype)
    communicator.receive(made, source)
    if made is not end:
        device.xp.copyto(end, device.from_host(made))


def _send(communicator: Communicator, device: Device, end: Any, to: int) -> None:
    communicator.send(end if communicator.on_device else device.to_host(end), to)


def is_server(spec: Spec, rank: int) -> bool:
    """Whether it is this one of the workers with the same part who gives it away."""
    layout = spec.layout
    assert layout is not None
    pairs = zip(layout.splits, layout.coords(rank), strict=True)
    return all(split is not None or not place for split, place in pairs)


def _at_once(program: Program) -> int:
    """Turns in a slice of time."""
    body = program.graph
    flops, moved = graph_cost(body)
    moved -= sum(2 * n.specs[0].nbytes for k, n in enumerate(body.nodes) if is_update(program, k))
    seconds = flops / FLOPS + moved / BYTES + CALL * (1 + len(body.nodes))
    return max(1, int(SLICE / seconds))


def _in_turn(first: Look | None, second: Look) -> Look:
    return second if first is None else lambda x: second(first(x))


def _has_nan(xp: Any, *arrays: Any) -> bool:
    return any(x.dtype.kind in "fcV" and bool(xp.isnan(x).any()) for x in arrays)


def _check_nan(xp: Any, node: Node, before: bool, outs: Sequence[Any]) -> None:
    """Raises if a result has a NaN where no operand had one."""
    if not before and _has_nan(xp, *outs):
        count = sum(int(xp.isnan(x).sum()) for x in outs)
        raise NaNError.because(
            node.op,
            got=f"{count} NaN in {node.specs[0].bare} from operands that have none",
            needed="numbers",
            do="look at the operands' ranges, e.g. for 0/0, log of a negative number, inf - inf",
            line=node.line,
        )
