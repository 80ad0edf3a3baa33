"""Runs of a bound program that a device repeats as one call: on a GPU, one CUDA graph.

    first run        operation by operation, as a warm-up
    second run       is captured with the addresses of its operands and results, and launched
    from then on     launched, if operands and results lie where they lay in a run that was captured

Buffers of results are used in turn, and so are weights that a plan was given, so few forms of a program
serve all its runs. What is small and lies elsewhere each time, such as a learning rate or a loss that
somebody keeps, has a place of its own: it is copied there before, or from there after; a single operation
is asked for sooner than copied for. What cannot be captured runs apart, operation by operation, and what lies
between is captured in segments (capture_segments.py). What something else spoiled is captured once more,
soon, then after twice as many runs each time; a program whose large operands are new in each run runs
operation by operation. `how` says so in explain.

Messages between devices are part of what is captured. Then all workers capture the same run, and launch
what they took down together, wherever operands lie on each: before a run they agree on which form, by a
number that each tells the others."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ostinato.ops.core.device import Device, Function, GraphCapture
from ostinato.ops.core.graph import Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.planned.collective import collective_of
from ostinato.planner.plan import Program
from ostinato.planner.title import title

from ostinato import settings

from .bound import Bound
from .capture_segments import OURS, Parts, with_messages
from .messages.communicator import Communicator

FORMS = 16  # of one program at once
MAX_CAPTURES = 48  # times that it is captured before it must have been launched more often
# forms before what is small gets a place: results that are used in turn need two or three
ALIKE = 3
MAX_COPIED_BYTES = 1 << 18  # bytes of what is copied to a place of its own
WINDOW = 32  # numbers of forms that are told apart, twice those that are kept
MOVING = "its operands lie elsewhere in each run"
ALONE = "it is one operation, and what is small lies elsewhere in each run"
MOST_CALLS = 20_000  # in one run: more would take gigabytes
TOLD = 3  # operations that are named
MAX_REBINDS = 16  # times that it is bound anew without what could not be captured
# What workers tell each other of a part: that it could be captured, that it could not, that something else
# spoiled it, or at which node it could not.
NOBODY, SOMEWHERE, SPOILED, AT = 0, 1, 2, 3
_CONDITIONAL = ("while", "branch")
_ON_HOST = {  # what decides, reads or writes there
    "blocks": "it runs block by block, with files",
    "read": "it reads a file",
    "write": "it writes a file",
    "stash": "it leaves memory for a while",
    "fetch": "it comes back to memory",
}


class Replay:
    """A program on one worker. `apart`: nodes that no graph has, and why; `counted`: as `Parts`."""

    bound: Bound

    def __init__(
        self,
        program: Program,
        device: Device,
        capture: GraphCapture,
        why: str,
        apart: Mapping[int, str],
        counted: Collection[int],
        name: str,
        agree: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self.agree = agree  # with other workers, on what all do
        self.next = 0  # number of the next form that all make
        self.program, self.name = program, name
        self.device, self.capture = device, capture
        self.count = len(program.graph.inputs)
        given = (*program.graph.inputs, *program.graph.out_specs)
        self.files = {k for k, s in enumerate(given) if s.layout is not None and s.layout.stored}
        self.why = why  # it is not launched as a whole
        self.apart, self.counted = dict(apart), counted
        self.parts: Parts | None = None if why else self._parts()
        self.is_stale = False  # it has to be bound anew
        self.missed = 0
        self.is_warm = False
        self.forms: dict[tuple[int, ...], Sequence[Function]] = {}
        # those that all workers made
        self.numbered: dict[int, tuple[tuple[int, ...], Sequence[Function]]] = {}
        self.places: dict[int, Any] = {}  # of operands and results that lie elsewhere each time
        self.taken = self.launched = 0
        self.rests = self.rested = 0  # runs before it is captured once more; as it was at first

    def _parts(self) -> Parts:
        apart = with_messages(self.program.graph, self.apart)
        return Parts(self.capture, apart, self.counted, self.agree)

    def renew(self, bound: Bound) -> None:
        """It was bound with these parts."""
        self.bound, self.is_stale, self.is_warm = bound, False, False
        if self.parts is not None and not self.parts.count and not self.why:
            told = self._explain_apart()
            self._give_up(told or "it asks for nothing")

    @property
    def how(self) -> str:
        """It is run, for people."""
        if self.why:
            return f"operation by operation: {self.why}"
        forms = len(self.forms) + len(self.numbered)
        if not forms and self.rested:
            return "operation by operation so far: something else spoiled it while it was captured"
        if not forms:
            return f"operation by operation so far{self._unknown()}"
        count = self.parts.count if self.parts is not None else 1
        apart = f", and operation by operation {self._explain_apart()}" if self.apart else ""
        graphs = "one graph" if count == 1 else f"{count} graphs"
        return f"as {graphs}, in {forms} form{'s' if forms > 1 else ''} by where its operands lie{apart}"

    def _explain_apart(self) -> str:
        graph, slots = self.program.graph, self.program.slots
        found = [
            f"{_told(graph.nodes[k])}: {why}"
            for k, why in sorted(self.apart.items())
            if not graph.nodes[k].specs or slots[graph.starts[k]].kind != "alias"
        ]
        more = f"; and {len(found) - TOLD} more" if len(found) > TOLD else ""
        return "; ".join(found[:TOLD]) + more

    def _unknown(self) -> str:
        found = [node for what, node in self.bound.conditional if not what.is_known]
        if not found:
            return ""
        seen = "has gone one way only" if found[0].op == "branch" else "has not turned yet"
        return f": {_told(found[0])} {seen}"

    def run(self, *arrays: Any) -> None:
        """Operands and results."""
        if self.agree is not None:
            self._run_with_others(self.agree, arrays)
        elif self.why:
            self._run(arrays)
        elif not self.is_warm:
            self._warm_up(arrays)
        else:
            graphs = self.forms.get(key := self._key(arrays))
            if graphs is not None:
                self._launch(graphs, arrays)
            elif self.rests:
                self.rests -= 1
                self._run(arrays)
            elif self._is_enough():
                self._give_up(MOVING)
                self._run(arrays)
            else:
                self._take(key, arrays)

    def _run(self, arrays: Sequence[Any]) -> None:
        """Operation by operation."""
        if self.parts is None:
            self.bound.call(*arrays)
        else:
            self.parts.run(lambda: self.bound.call(*arrays))

    def _warm_up(self, arrays: Sequence[Any]) -> None:
        assert self.parts is not None
        self.parts.warm_up(lambda: self.bound.call(*arrays))
        self.is_warm = all(what.is_known for what, _ in self.bound.conditional)

    def _run_with_others(
        self, agree: Callable[[int], Sequence[int]], arrays: Sequence[Any]
    ) -> None:
        """As all can: launched, if all have a form of one number for where their arrays lie; captured, if
        all are as far as that; else operation by operation."""
        key, enough = self._key(arrays), self._is_enough()
        can = int(self.is_warm and not self.why and not enough and not self.rests)
        mine = sum(1 << n % WINDOW for n, (at, _) in self.numbered.items() if at == key)
        said = agree(self.next << WINDOW + 1 | can << WINDOW | mine)
        common = functools.reduce(operator.and_, said)
        if known := common & (1 << WINDOW) - 1:
            first = (known & -known).bit_length() - 1
            self._launch(
                next(f for n, (_, f) in self.numbered.items() if n % WINDOW == first), arrays
            )
        elif common >> WINDOW & 1:
            self._take(key, arrays, max(word >> WINDOW + 1 for word in said))
        else:
            if enough and not self.why:
                self._give_up(MOVING)
            self.rests = max(self.rests - 1, 0)
            if self.why:
                self._run(arrays)
            else:
                self._warm_up(arrays)

    def _key(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        where, elsewhere = self.capture.where, self.places.keys() | self.files
        if not elsewhere:
            return tuple([where(x) for x in arrays])
        return tuple([0 if k in elsewhere else where(x) for k, x in enumerate(arrays)])

    def _launch(self, graphs: Sequence[Function], arrays: Sequence[Any]) -> None:
        parts = self.parts
        assert parts is not None
        if not self.places:  # a frame of Python takes as long as a tenth of a launch
            parts.launch(graphs, lambda: self.bound.call(*arrays))
        else:
            self._copy_in(arrays)
            parts.launch(graphs, lambda: self.bound.call(*self._given(arrays)))
            self._copy_out(arrays)
        self.launched += 1

    def _given(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return [self.places.get(k, x) for k, x in enumerate(arrays)]

    def _copy_in(self, arrays: Sequence[Any]) -> None:
        pairs = [(x, arrays[k]) for k, x in self.places.items() if k < self.count]
        self.capture.copy_all(pairs)

    def _copy_out(self, arrays: Sequence[Any]) -> None:
        pairs = [(arrays[k], x) for k, x in self.places.items() if k >= self.count]
        self.capture.copy_all(pairs)

    # -- forms -----------------------------------------------------------------------------
    def _is_enough(self) -> bool:
        return self.taken >= MAX_CAPTURES and self.launched < 2 * self.taken

    def _take(self, key: tuple[int, ...], arrays: Sequence[Any], number: int | None = None) -> None:
        """A run that is captured as it runs: a form for arrays that lie here, by the number that all
        workers have for it."""
        parts = self.parts
        assert parts is not None
        if moved := self._moved(key, arrays):
            if self._is_one():
                self._give_up(ALONE)
                self._run(arrays)
                return
            self._give_places(moved, arrays)
            key = self._key(arrays)
        given = self._given(arrays)
        self._copy_in(arrays)
        made = parts.take(lambda: self.bound.call(*given))
        self._copy_out(arrays)
        if made is None:
            self._miss(parts.error)
            return
        self.taken += 1
        self.rested = 0
        if number is not None:
            for n in [n for n in self.numbered if n <= number - FORMS]:
                del self.numbered[n]
            self.numbered[number], self.next = (key, made), number + 1
        else:
            if len(self.forms) == FORMS:
                del self.forms[next(iter(self.forms))]
            self.forms[key] = made
        self.launched += 1

    def _miss(self, error: Exception | None) -> None:
        """Let what could not be captured run apart from now on, on all workers."""
        assert error is not None
        k, why = self._node_of(error), str(error)
        row = self.bound.row_of(error, self.name)
        if row is not None and k is not None and row.node is not self.program.graph.nodes[k]:
            why = f"{_told(row.node)}: {why}"
        mine = NOBODY if why == OURS else SOMEWHERE if k is None else AT + k
        mine = SPOILED if self.capture.was_spoiled(error) else mine
        said = {*self.agree(mine)} if self.agree is not None else {mine}
        if SPOILED in said:
            self.rests = self.rested = min(max(2 * self.rested, 1), MAX_CAPTURES)
            return
        self.missed += 1
        if SOMEWHERE in said or said == {NOBODY} or self.missed > MAX_REBINDS:
            self._give_up(f"a run: {why}")
            return
        self._forget()
        for code in said - {NOBODY}:
            found = _alike(self.program, code - AT)
            self.apart |= dict.fromkeys(found, why if code == mine else OURS)
        self.parts, self.is_stale = self._parts(), True

    def _node_of(self, error: BaseException) -> int | None:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != self.name:
            trace = trace.tb_next
        graph, line = self.program.graph, trace.tb_lineno if trace is not None else 0
        for span in self.bound.map.spans:
            if span.graph is graph and span.first <= line <= span.last:
                return next(k for k, node in enumerate(graph.nodes) if node is span.node)
        return None

    def _moved(self, key: tuple[int, ...], arrays: Sequence[Any]) -> Sequence[int]:
        """Small ones that lie where they did in no form, of which there are some."""
        known = [*self.forms, *(at for at, _ in self.numbered.values())]
        if len(known) < ALIKE:
            return ()
        return [
            k
            for k, at in enumerate(key)
            if k not in self.places
            and k not in self.files
            and arrays[k].nbytes <= MAX_COPIED_BYTES
            and all(form[k] != at for form in known)
        ]

    def _is_one(self) -> bool:
        """Whether it asks the device for one operation, and nobody has to agree."""
        graph, slots = self.program.graph, self.program.slots
        asked = [
            k
            for k, n in enumerate(graph.nodes)
            if n.specs and slots[graph.starts[k]].kind != "alias"
        ]
        return len(asked) == 1 and self.agree is None and not self.program.bodies

    def _give_places(self, moved: Sequence[int], arrays: Sequence[Any]) -> None:
        self.forms.clear()
        self.numbered.clear()
        for k in moved:
            self.places[k] = self.device.empty(arrays[k].shape, arrays[k].dtype)

    def _give_up(self, why: str) -> None:
        self.why = why
        self._forget()

    def _forget(self) -> None:
        self.forms.clear()
        self.numbered.clear()
        self.places.clear()


def _alike(program: Program, k: int) -> Sequence[int]:
    """A node, and those that are the same operation in the same dtypes, of which the same is to be expected."""
    graph = program.graph

    def about(n: Node) -> Any:
        return n.op, *(graph.specs[v].dtype for v in n.inputs), *(s.dtype for s in n.specs)

    node = graph.nodes[k]
    if k in program.bodies:
        return (k,)
    return [j for j, other in enumerate(graph.nodes) if about(other) == about(node)]


def why_not(
    program: Program, communicator: Communicator, unconditional: str
) -> tuple[str, dict[int, str], Collection[int]]:
    """Why a program cannot be captured, or nothing; which of its nodes cannot, as far as that can be seen;
    and of which loops a device counts the turns. `unconditional`: why it looks at no condition."""
    if settings.check_nan:
        return "the host looks for NaN", {}, ()
    if communicator.one_queue and has_messages(program, communicator.size):
        return (
            "workers meet on the host, and a graph is no part of the queue that they share",
            {},
            (),
        )
    asked, calls, apart = _Asked(communicator, unconditional), 0, {}
    for k in range(len(program.graph.nodes)):
        count, why = asked.calls(program, k)
        if not why and count > MOST_CALLS:
            why = f"a run is {count:,} operations"
        if why:
            apart[k] = why
        else:
            calls += count
    why = f"a run is {calls:,} operations" if calls > MOST_CALLS else ""
    return why, apart, asked.counted


class _Asked:
    """What a graph would be asked for."""

    def __init__(self, communicator: Communicator, unconditional: str) -> None:
        self.size, self.in_graphs = communicator.size, communicator.in_graphs
        self.unconditional = unconditional
        self.counted: set[int] = set()

    def calls(self, program: Program, k: int, inside: str = "") -> tuple[int, str]:
        """By a node, and why it cannot be; `inside`: of what that the device looks at."""
        graph, node = program.graph, program.graph.nodes[k]
        stored = any((x := graph.specs[v].layout) is not None and x.stored for v in node.inputs)
        if reason := _ON_HOST.get(node.op, "it reads a file" if stored else ""):
            return 0, reason
        if OPS[node.op].run.host_callback:
            return 0, "the host calls it"
        if _sends(node, self.size) and not self.in_graphs:
            return 0, "workers meet on the host"
        if _sends(node, self.size) and inside:
            return 0, f"messages are no part of a {inside}"
        if node.op in _CONDITIONAL and self.unconditional:
            return 0, f"the host looks at its condition: {self.unconditional}"
        inside, inner = node.op if node.op in _CONDITIONAL else inside, 0
        bodies = program.bodies.get(k, ())
        for body in bodies:
            for j, other in enumerate(body.graph.nodes):
                calls, why = self.calls(body, j, inside)
                if why:
                    return 0, f"{_told(other)}: {why}"
                inner += calls
        turns = int(node.kw["trips"]) if node.op == "loop" else 1
        if turns * inner > MOST_CALLS >= inner and self._counts(node, bodies):
            self.counted.add(id(node))
            turns = 1
        return (turns * inner if inner else 1), ""

    def _counts(self, node: Node, bodies: Sequence[Program]) -> bool:
        """Whether all turns of a loop are the same but for their number."""
        _, states, read = node.kw["counts"]
        same = not read and len(node.specs) == states and not node.kw["reverse"]
        return (
            same and not self.unconditional and not any(has_messages(b, self.size) for b in bodies)
        )


def has_messages(program: Program, workers: int) -> bool:
    """Whether its workers talk to each other."""
    bodies = [body for found in program.bodies.values() for body in found]
    nodes = program.graph.nodes
    return any(_sends(n, workers) for n in nodes) or any(has_messages(b, workers) for b in bodies)


def _sends(node: Node, workers: int) -> bool:
    return bool(collective_of(node.op, node.kw)) or (OPS[node.op].run.carries_state and workers > 1)


def _told(node: Node) -> str:
    return f"{title(node)} ({node.line})" if node.line else title(node)
