"""What the turns of a loop call, on its way to machine code: if all of them are kernels, no turn needs
Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ostinato.ops.cpu.jit.llvm import is_kernel
from ostinato.ops.cpu.jit.sequence import SETS, Call, Spot
from ostinato.ops.cpu.loops.copies import Pieces

Spots = Sequence[Spot]


class Record:
    """A loop's lines, and which of them machine code can do."""

    def __init__(self, fixed: Mapping[str, Any]) -> None:
        self.fixed = fixed
        self.lines = 0
        self.known = 0
        self.stays = 0  # operands that products outside may keep
        self.calls: list[tuple[Callable[..., None], Sequence[Spots]]] = []
        self.places: dict[str, Spots] = {}  # of names of the loop
        self.outside: dict[str, int] = {}  # names that are given to it, by their number

    @property
    def is_whole(self) -> bool:
        return self.lines == self.known and len(self.calls) > 0

    def call(self, kernel: Any, arrays: Sequence[str], out: Any) -> None:
        """Of a kernel, or of those of a result's pieces; the (last) result lies so."""
        spots = [self.spots(name) for name in arrays]
        if is_kernel(kernel):
            self.known += 1
            self.calls.append((kernel, spots))
        elif isinstance(kernel, Pieces):
            self.known += 1
            for part, piece in kernel.parts:
                there = moved(spots[-1], distance(out, out[piece.at]))
                self.calls.append((part, [*piece.of(spots), there]))

    def view(self, name: str, source: str, offset: int) -> None:
        self.known += 1
        self.places[name] = moved(self.spots(source), offset)

    def item(self, name: str, source: str, step: int) -> None:
        """The part of an array that is this turn's."""
        self.known += 1
        self.places[name] = [s._replace(step=step) for s in self.spots(source)]

    def carried(self, name: str, *buffers: str) -> None:
        """What lies elsewhere in the first turn, and in odd and even ones."""
        self.places[name] = [self.spots(b)[0] for b in buffers]

    def spots(self, name: str) -> Spots:
        if name in self.places:
            return self.places[name]
        if name in self.fixed:
            return [Spot(-1, address(self.fixed[name]))] * SETS
        return [Spot(self.outside.setdefault(name, len(self.outside)), 0)] * SETS

    def sequenced(self, begin: int = 0, end: int | None = None) -> list[Call]:
        return [Call(kernel, spots) for kernel, spots in self.calls[begin:end]]


def address(x: Any) -> int:
    return int(x.__array_interface__["data"][0])


def distance(x: Any, view: Any) -> int:
    """Bytes from where an array begins to where a view of it does."""
    return address(view) - address(x)


def moved(spots: Spots, offset: int) -> Spots:
    return [s._replace(offset=s.offset + offset) for s in spots]
