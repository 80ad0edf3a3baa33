"""Runs of a bound program that a device repeats as one call: on a GPU, one CUDA graph.

    first run        operation by operation, as a rehearsal
    second run       is taken down with the addresses of its operands and results, and launched
    from then on     launched, if operands and results lie where they lay in a run that was taken down

Buffers of results are used in turn, and so are weights that a plan was given, so few forms of a program
serve all its runs. What is small and lies elsewhere each time, such as a learning rate or a loss that
somebody keeps, has a place of its own: it is copied there before, or from there after. A program that
cannot be taken down, or whose large operands are new in each run, runs operation by operation, and
`why` says so in explain.

Messages between devices are part of what is taken down. Then all workers take down the same run, and launch
what they took down together, wherever operands lie on each: before a run they agree on which form, by a
number that each tells the others."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from ostinato.ops.collective import collective_of
from ostinato.ops.core.device import Device, Function, Repeater
from ostinato.ops.core.graph import Node
from ostinato.ops.core.registry import OPS
from ostinato.planner.plan import Program
from ostinato.planner.title import title

from ostinato import settings

from .bind import Bound
from .messages.communicator import Communicator

FORMS = 16  # of one program at once
MOST_TAKEN = 48  # times that it is taken down before it must have been launched more often
SMALL = 1 << 18  # bytes of what is copied to a place of its own
WINDOW = 32  # numbers of forms that are told apart, twice those that are kept
MOVING = "its operands lie elsewhere in each run"
MOST_CALLS = 20_000  # in one run: more would take gigabytes
_ON_HOST = {  # what decides, reads or writes there
    "while": "the host looks at its condition",
    "branch": "the host looks at its condition",
    "blocks": "it runs block by block, with files",
    "read": "it reads a file",
    "write": "it writes a file",
}


class Replay:
    """A bound program on one worker."""

    def __init__(
        self,
        bound: Bound,
        program: Program,
        device: Device,
        repeater: Repeater,
        why: str,
        name: str,
        agree: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self.agree = agree  # with other workers, on what all do
        self.next = 0  # number of the next form that all make
        self.bound, self.name = bound, name
        self.device, self.repeater = device, repeater
        self.count = len(program.graph.inputs)
        self.why = why  # it is not launched as a whole
        self.is_rehearsed = False
        self.forms: dict[tuple[int, ...], Function] = {}
        self.numbered: dict[
            int, tuple[tuple[int, ...], Function]
        ] = {}  # those that all workers made
        self.places: dict[int, Any] = {}  # of operands and results that lie elsewhere each time
        self.taken = self.launched = 0

    @property
    def how(self) -> str:
        """It is run, for people."""
        if self.why:
            return f"operation by operation: {self.why}"
        forms = len(self.forms) + len(self.numbered)
        if not forms:
            return "operation by operation so far"
        return f"as one graph, in {forms} form{'s' if forms > 1 else ''} by where its operands lie"

    def run(self, *arrays: Any) -> None:
        """Operands and results."""
        if self.agree is not None:
            self._run_with_others(self.agree, arrays)
        elif self.why:
            self.bound.call(*arrays)
        elif not self.is_rehearsed:
            with self.repeater.rehearsal():
                self.bound.call(*arrays)
            self.is_rehearsed = True
        else:
            launch = self.forms.get(key := self._key(arrays))
            if launch is None:
                launch = self._form(key, arrays)
            if launch is None:
                self.bound.call(*arrays)
            else:
                self._launch(launch, arrays)

    def _run_with_others(
        self, agree: Callable[[int], Sequence[int]], arrays: Sequence[Any]
    ) -> None:
        """As all can: launched, if all have a form of one number for where their arrays lie; taken down, if
        all are as far as that; else operation by operation."""
        key, enough = self._key(arrays), self._is_enough()
        can = int(self.is_rehearsed and not self.why and not enough)
        mine = sum(1 << n % WINDOW for n, (at, _) in self.numbered.items() if at == key)
        said = agree(self.next << WINDOW + 1 | can << WINDOW | mine)
        common = functools.reduce(operator.and_, said)
        if known := common & (1 << WINDOW) - 1:
            first = (known & -known).bit_length() - 1
            self._launch(
                next(f for n, (_, f) in self.numbered.items() if n % WINDOW == first), arrays
            )
        elif common >> WINDOW & 1:
            number = max(word >> WINDOW + 1 for word in said)
            made = self._taken(key, arrays)
            if all(agree(int(made is not None))) and made is not None:
                at, launch = made
                old = [n for n in self.numbered if n <= number - FORMS]
                for n in old:
                    del self.numbered[n]
                self.numbered[number], self.next = (at, launch), number + 1
                self._launch(launch, arrays)
            else:
                self._give_up(self.why or "another worker could not take it down")
                self.bound.call(*arrays)
        else:
            if enough and not self.why:
                self._give_up(MOVING)
            with contextlib.nullcontext() if self.why else self.repeater.rehearsal():
                self.bound.call(*arrays)
            self.is_rehearsed = True

    def _key(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        where, places = self.repeater.where, self.places
        if not places:
            return tuple([where(x) for x in arrays])
        return tuple([0 if k in places else where(x) for k, x in enumerate(arrays)])

    def _launch(self, launch: Function, arrays: Sequence[Any]) -> None:
        copy, count = self.device.xp.copyto, self.count
        for k, place in self.places.items():
            if k < count:
                copy(place, arrays[k])
        launch()
        for k, place in self.places.items():
            if k >= count:
                copy(arrays[k], place)
        self.launched += 1

    # -- forms -----------------------------------------------------------------------------
    def _form(self, key: tuple[int, ...], arrays: Sequence[Any]) -> Function | None:
        """One for arrays that lie here."""
        if self._is_enough():
            self._give_up(MOVING)
            return None
        made = self._taken(key, arrays)
        if made is None:
            return None
        if len(self.forms) == FORMS:
            del self.forms[next(iter(self.forms))]
        key, launch = made
        self.forms[key] = launch
        return launch

    def _is_enough(self) -> bool:
        return self.taken >= MOST_TAKEN and self.launched < 2 * self.taken

    def _taken(
        self, key: tuple[int, ...], arrays: Sequence[Any]
    ) -> tuple[tuple[int, ...], Function] | None:
        """A run taken down, and for arrays that lie where; None if it cannot be, and why is known."""
        if self._give_places(key, arrays):
            key = self._key(arrays)
        given = [self.places.get(k, x) for k, x in enumerate(arrays)]
        try:
            made = self.repeater.taken(lambda: self.bound.call(*given))
        except Exception as error:
            row = self.bound.row_of(error, self.name)
            self._give_up(f"{_told(row.node) if row is not None else 'a run'}: {error}")
            return None
        self.taken += 1
        return key, made

    def _give_places(self, key: tuple[int, ...], arrays: Sequence[Any]) -> bool:
        """To small ones that lie where they did in no form."""
        known = [*self.forms, *(at for at, _ in self.numbered.values())]
        if not known:
            return False
        moved = [
            k
            for k, at in enumerate(key)
            if k not in self.places
            and arrays[k].nbytes <= SMALL
            and all(form[k] != at for form in known)
        ]
        if moved:
            self.forms.clear()
            self.numbered.clear()
        for k in moved:
            self.places[k] = self.device.empty(arrays[k].shape, arrays[k].dtype)
        return bool(moved)

    def _give_up(self, why: str) -> None:
        self.why = why
        self.forms.clear()
        self.numbered.clear()
        self.places.clear()


def why_not(program: Program, communicator: Communicator) -> str:
    """Why a program cannot be taken down, as far as that can be seen; or nothing."""
    if settings.check_nan:
        return "the host looks for NaN"
    if any(s.layout is not None and s.layout.stored for s in program.graph.inputs):
        return "it reads a file"
    calls, why = _calls(program, communicator)
    if not why and calls > MOST_CALLS:
        return f"a run is {calls:,} operations"
    return why


def _calls(program: Program, communicator: Communicator) -> tuple[int, str]:
    count = 0
    for k, node in enumerate(program.graph.nodes):
        specs = [program.graph.specs[v] for v in node.inputs]
        stored = any(s.layout is not None and s.layout.stored for s in specs)
        reason = _ON_HOST.get(node.op, "it reads a file" if stored else "")
        if _sends(node, communicator.size) and not communicator.in_graphs:
            reason = "workers meet on the host"
        if reason:
            return 0, f"{_told(node)}: {reason}"
        turns = int(node.kw["trips"]) if node.op == "loop" else 1
        inner = 0
        for body in program.bodies.get(k, ()) if node.op == "loop" else ():
            calls, why = _calls(body, communicator)
            if why:
                return 0, why
            inner += calls
        count += turns * inner if inner else 1
    return count, ""


def has_messages(program: Program, workers: int) -> bool:
    """Whether its workers talk to each other."""
    bodies = [body for found in program.bodies.values() for body in found]
    nodes = program.graph.nodes
    return any(_sends(n, workers) for n in nodes) or any(has_messages(b, workers) for b in bodies)


def _sends(node: Node, workers: int) -> bool:
    return bool(collective_of(node.op, node.kw)) or (OPS[node.op].goes_on and workers > 1)


def _told(node: Node) -> str:
    return f"{title(node)} ({node.line})" if node.line else title(node)
