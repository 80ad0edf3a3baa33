"""The values of a program that is being bound: names, places in the arena, views, what lies where.

A name stands for a constant of the function (`fixed`) or for what differs from run to run (`shown`: an
array that lies as it does, without memory)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from ostinato.ops.core.device import Branch, Device, Loop, Recorder
from ostinato.ops.core.divided import scratch_of
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.notes import Notes
from ostinato.ops.core.registry import OPS, Place, Scratch
from ostinato.ops.core.spec import Spec

from ostinato.errors import NaNError

from .bound import Row, Stop
from .capture_segments import Parts
from .messages.communicator import Communicator
from .nan_search import first_with_nan, has_nan, kept_if_numbers
from .packed_weights import PrepackedOperand
from .read_ahead import ReadAhead, WriteBehind
from .run_progress import Map

Look = Callable[[Any], Any]
RowOf = Callable[..., "Row"]


class Values:
    """Text of the function as it grows, and the values that it names."""

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
        self.names |= {"has_nan": partial(has_nan, self.xp)}
        self.names["kept_if_numbers"] = partial(kept_if_numbers, device)
        self.names["check_nan"] = partial(_check_nan, self.xp)
        self.fixed: dict[str, Any] = {}  # names that are the same array in every run
        self.shown: dict[str, Any] = {}  # the others: arrays that lie like them, without memory
        self.looks: dict[str, tuple[int, Look | None]] = {}  # at operands: which one, and how
        self.looked: dict[str, tuple[str, str]] = {}  # of these, by which look, at what
        self.stays: list[PrepackedOperand] = []
        self.count = 0
        self.ufuncs: dict[str, str] = {}
        self.requests: dict[str, str] = {}  # of pending values
        self.away: Any = None  # places of values that leave memory for a while
        self.elsewhere: dict[str, int] = {}  # of these, where they are
        self.folder: str | None = None
        self.places: dict[Any, str] = {}
        self.turns: tuple[str, list[int]] = ("", [])  # the turn's name, and the rank in each
        self.behind: dict[str, str] = {}  # of what turns write: who writes it
        self.ends: dict[int, tuple[Any, ...]] = {}  # what nodes that go on keep from turn to turn
        self.record: Recorder | None = None  # of the innermost loop
        self.loops = 0  # around what is written now
        self.stops: list[Stop] = []  # of what was written outside of them
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
        once is written in place."""
        key = (offset, tuple(shape), dtype)
        if key not in self.places:
            self.places[key] = self.array(self.place(*key))
        return self.places[key]

    def shape(self, spec: Spec) -> tuple[int, ...]:
        assert spec.layout is not None
        return spec.layout.local_shape(spec.shape, self.rank)

    def place_of(self, graph: Graph, node: Node, rank: int | None = None) -> Place:
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
        """Tell whether what a worker makes of a replica is an addend that others have."""
        if made.layout is None or len(ins) != 1 or ins[0].layout is None:
            return False
        before, coords = ins[0].layout, made.layout.coords(rank)
        return any(coords[a] and before.splits[a] is None for a in made.layout.partial_axes)

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

    def strided_like(self, name: str) -> Any:
        """An array that lies as this name's does in every run; None if that is not known."""
        return self.fixed[name] if name in self.fixed else self.shown.get(name)

    def scratch(self, graph: Graph, node: Node) -> tuple[Sequence[Scratch], Sequence[Scratch]]:
        """List what the op's own kernel needs here, and the device's."""
        specs = (*(graph.specs[v] for v in node.inputs), *node.specs)
        shapes, count = [self.shape(s) for s in specs], len(node.inputs)
        return scratch_of(self.device, node, shapes[:count], shapes[count:], specs)

    def unwrite(self, begin: int) -> None:
        """Take back what was written since."""
        del self.text[begin:]
        self.map.cut(begin)
        while self.stops and self.stops[-1].line > begin:
            self.stops.pop()
        self.lines = {line: row for line, row in self.lines.items() if line <= begin}

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
    """Tell whether it is this one of the workers with the same part who gives it away."""
    layout = spec.layout
    assert layout is not None
    pairs = zip(layout.splits, layout.coords(rank), strict=True)
    return all(split is not None or not place for split, place in pairs)


def _in_turn(first: Look | None, second: Look) -> Look:
    return second if first is None else lambda x: second(first(x))


def _check_nan(xp: Any, node: Node, before: bool | list[Any], outs: Sequence[Any]) -> None:
    """Raises if a result has a NaN where no operand had one; `before`: whether one had, or what operands
    a kernel was given."""
    if before is not True and has_nan(xp, *outs):
        if before:
            node, outs = first_with_nan(node, before, outs)
            xp = np if isinstance(outs[0], np.ndarray) else xp
        count = sum(int(xp.isnan(x).sum()) for x in outs)
        raise NaNError.because(
            node.op,
            got=f"{count} NaN in {node.specs[0].bare} from operands that have none",
            needed="numbers",
            do="look at the operands' ranges, e.g. for 0/0, log of a negative number, inf - inf",
            line=node.line,
        )
