"""A bound program: the function, the lines that it consists of, and what each of them took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.device import Branch, Device, Loop
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, Op
from ostinato.planner.plan import Program

from ostinato.errors import (
    BoundsError,
    ExecutionError,
    LinAlgError,
    MemoryLimitError,
    OstinatoError,
)

from .messages.communicator import Communicator
from .packed_weights import PrepackedOperand
from .run_progress import Map

MOST_GOING = 1000  # spans of one row that wait to be counted


@dataclass(slots=True)
class Row:
    """A line of the function: the node that it runs, and the seconds that it took when it was
    timed, and those of them that were communication."""

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


class Stop(NamedTuple):
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
    stops: list[Stop] = field(default_factory=list)  # of what its lines run, in order
    away: Any = None  # places of values that leave memory for a while

    def timed(self, name: str, communicator: Communicator) -> Bound:
        """Put a clock between the function's steps; the new one has all that this one was made of."""
        names = {**self.call.__globals__, "talk": communicator}
        first, *lines = self.source.split("\n")
        text = [first, "    t0 = t1 = mark(); c0 = talk.talking"]
        now, ends = {1: 1}, iter([*self.stops, Stop(0, 0, None)])
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
        moved = self.map.moved(now)
        return Bound(names.pop("run"), source, rows, at, self.stays, moved, away=self.away)

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
    """Make the error of an operation, at the line that wrote it."""
    inner = list(_factors(node)) if kind is LinAlgError else []
    if len(inner) == 1:  # all turns of a loop are one call
        node = inner[0]
    name = node.op.removesuffix("_file").removesuffix("_places")
    name = node.kw["name"] if node.op == "check_bounds" else name
    path, _, number = node.line.rpartition(":")
    number, _, other = number.partition(" (")  # what users call it, if that is not its name
    line = f"{path}:{number}" if path else ""
    return kind.because(other.rstrip(")") or name, got=got, line=line)


def may_fail_later(program: Program) -> bool:
    """Tell whether kernels of a device may find places outside or a matrix without such factors, known when
    somebody looks."""
    return _has(program, may_note)


def calls_blas(program: Program) -> bool:
    """Tell whether kernels may call NumPy's products, of which the library has threads of its own."""
    return _has(program, lambda op: op.run.dense or op.run.host_callback)


def _has(program: Program, is_it: Callable[[Op], bool]) -> bool:
    """Whether a program, or a body of it, has such an operation."""
    bodies = [body for found in program.bodies.values() for body in found]
    found = any(is_it(OPS[n.op]) for n in program.graph.nodes)
    return found or any(_has(body, is_it) for body in bodies)


def may_note(op: Op) -> bool:
    """Whether a kernel may find something wrong that a device notes."""
    return op.run.bounds_checked or op.run.may_be_singular or op.element.refuses


def _factors(node: Node) -> Iterator[Node]:
    """Find what may not exist of a matrix, in the bodies of a node."""
    for value in node.kw.values():
        for inner in value.nodes if isinstance(value, Graph) else ():
            if OPS[inner.op].run.may_be_singular:
                yield inner
            yield from _factors(inner)
