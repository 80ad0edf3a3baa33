"""What the iterations of a loop call, on its way to machine code: if all of them are kernels, no iteration
needs Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ostinato.ops.core.device import Recorder, Repeated
from ostinato.ops.cpu.jit.llvm import is_kernel
from ostinato.ops.cpu.jit.sequence import SETS, Address, Call, sequence

from .boxed_loops import Boxes
from .copies import Pieces

Spots = Sequence[Address]


class Record(Recorder):
    """A loop's lines, and which of them machine code can do."""

    def __init__(self, fixed: Mapping[str, Any]) -> None:
        super().__init__()
        self.fixed = fixed
        self.held: list[Any] = []  # of the fixed ones, those whose addresses calls have
        self.calls: list[tuple[Callable[..., None], Sequence[Spots]]] = []
        self.places: dict[str, Spots] = {}  # of names of the loop

    @property
    def is_whole(self) -> bool:
        return self.lines == self.known and len(self.calls) > 0

    @property
    def count(self) -> int:
        return len(self.calls)

    def call(self, function: Any, arrays: Sequence[str], out: Any) -> None:
        """Record the call of a kernel, or of those of a result's pieces."""
        spots = [self.spots(name) for name in arrays]
        if is_kernel(function):
            self.known += 1
            self.calls.append((function, spots))
        elif isinstance(function, Boxes):
            self.known += 1
            self.held.append(function.held)
            for kernel, given in function.calls:
                places = [
                    [s] * SETS if s.array < 0 else moved(spots[s.array], s.offset) for s in given
                ]
                self.calls.append((kernel, places))
        elif isinstance(function, Pieces):
            self.known += 1
            for part, piece in function.parts:
                if piece.is_whole and arrays[piece.operand] == arrays[-1]:
                    continue  # it is there
                there = moved(spots[-1], distance(out, out[piece.at]))
                self.calls.append((part, piece.given(spots, there)))

    def view(self, name: str, source: str, whole: Any, part: Any) -> None:
        self.known += 1
        self.places[name] = moved(self.spots(source), distance(whole, part))

    def item(self, name: str, source: str, step: int) -> None:
        self.known += 1
        self.places[name] = [s._replace(step=step) for s in self.spots(source)]

    def carried(self, name: str, *buffers: str) -> None:
        self.places[name] = [self.spots(b)[0] for b in buffers]

    def spots(self, name: str) -> Spots:
        if name in self.places:
            return self.places[name]
        if name in self.fixed:
            self.held.append(self.fixed[name])
            return [Address(-1, address(self.fixed[name]))] * SETS
        return [Address(self.outside.setdefault(name, len(self.outside)), 0)] * SETS

    def repeat(self, index: Any, last: int) -> Repeated:
        return sequence(self._called(), len(self.outside), index=index, last=last, held=self.held)

    def repeat_while(self, asked: int, test: Any) -> Repeated:
        condition = self._called(0, asked)
        calls, many = self._called(asked), len(self.outside)
        return sequence(calls, many, condition=condition, test=test, held=self.held)

    def _called(self, begin: int = 0, end: int | None = None) -> list[Call]:
        return [Call(kernel, spots) for kernel, spots in self.calls[begin:end]]


def address(x: Any) -> int:
    return int(x.__array_interface__["data"][0])


def distance(x: Any, view: Any) -> int:
    """Bytes from where an array begins to where a view of it does."""
    return address(view) - address(x)


def moved(spots: Spots, offset: int) -> Spots:
    return [s._replace(offset=s.offset + offset) for s in spots]
