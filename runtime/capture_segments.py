"""The parts of a bound program that a device repeats as one call each. Between them is what runs apart, one
operation after another, as it cannot be repeated: who asks the host in the middle.

    while parts.next(0):
        try:
            f2(i0, v1)
            f3(v1, v2)
            parts.done(0)
        except BaseException as error:
            if not parts.forgives(0, error): raise
    f4(v2, v3)

These lines run in four ways: RUN does all of it; WARM_UP, too, and finds what is needed to capture parts;
CAPTURE captures each part, and launches it before it goes on; LAUNCH launches what was captured. A part
that cannot be captured runs operation by operation in the same run, which computed nothing of it so
far; one that something else spoiled is captured once more before that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ostinato.ops.core.device import Function, GraphCapture
from ostinato.ops.core.graph import Graph
from ostinato.ops.planned.collective import collective_of
from ostinato.ops.planned.offloaded import OFFLOADED

RUN, WARM_UP, CAPTURE, LAUNCH = "runs", "warms up", "is captured", "is launched"
OURS = "another worker could not capture it"
MAX_RECAPTURES = 2  # times in one run that what something else spoiled is captured once more


class Parts:
    """Of one bound program. `apart`: the nodes that are in none; `counted`: loops, by the ids of their nodes,
    whose turns the device counts."""

    def __init__(
        self,
        capture: GraphCapture,
        apart: Collection[int],
        counted: Collection[int],
        agree: Callable[[int], Sequence[int]] | None,
    ) -> None:
        self.capture, self.apart, self.agree = capture, apart, agree
        self.counted = counted
        self.count = 0
        self.mode = RUN
        self.graphs: list[Function] = []
        self.error: Exception | None = None  # why a part could not be captured
        self.missed = self.over = -1  # which part that was, and which has just run
        self.open: contextlib.AbstractContextManager[Any] | None = None
        self.made: list[Function] = []
        self.again = 0  # times that parts of this run were captured once more

    # -- what a run is -------------------------------------------------------------------------
    def run(self, run: Callable[[], None]) -> None:
        """Whatever became of the run before."""
        self._go(RUN, run)

    def warm_up(self, run: Callable[[], None]) -> None:
        self._go(WARM_UP, run)

    def take(self, run: Callable[[], None]) -> Sequence[Function] | None:
        """The run, and its parts as functions; None if one could not be captured."""
        self.graphs, self.error = [], None
        self._go(CAPTURE, run)
        made, self.graphs = self.graphs, []
        return made if self.error is None else None

    def launch(self, graphs: Sequence[Function], run: Callable[[], None]) -> None:
        if len(graphs) == 1 and not self.apart:
            graphs[0]()
            return
        self.graphs = [*graphs]
        self._go(LAUNCH, run)

    def _go(self, mode: str, run: Callable[[], None]) -> None:
        self.mode, self.missed, self.over, self.open = mode, -1, -1, None
        self.again = 0
        try:
            run()
        finally:
            self.mode = RUN

    # -- what its lines call -------------------------------------------------------------------
    def next(self, k: int) -> bool:
        """Whether to go through the part, perhaps once more."""
        if self.over == k:
            self.over = -1
            return False
        if self.mode == LAUNCH:
            self.graphs[k]()
            return False
        if self.mode == WARM_UP:
            self.open = self.capture.warm_up()
            self.open.__enter__()
        elif self.mode == CAPTURE and self.missed != k:
            self.open = capturing = self.capture.capturing()
            self.made = capturing.__enter__()
        return True

    def done(self, k: int) -> None:
        """To its end."""
        if self.open is None:
            self.over = k
            return
        opened, self.open = self.open, None
        try:
            opened.__exit__(None, None, None)
        except Exception as error:
            if self.mode == WARM_UP:
                raise
            self._misses(k, error)
            return
        if self.mode == WARM_UP:
            self.over = k
            return
        if self.agree is not None and not all(self.agree(1)):
            self._misses(k, RuntimeError(OURS), is_told=True)
            return
        graph, self.made = self.made[0], []
        self.graphs.append(graph)
        graph()
        self.over = k

    def forgives(self, k: int, error: BaseException) -> bool:
        """Whether the part is gone through once more, after an error."""
        if self.open is None:
            return False
        opened, self.open = self.open, None
        with contextlib.suppress(BaseException):  # it raises the error again
            opened.__exit__(type(error), error, error.__traceback__)
        if self.mode == WARM_UP or not isinstance(error, Exception):
            return False
        self._misses(k, error)
        return True

    def _misses(self, k: int, error: Exception, is_told: bool = False) -> None:
        alone = self.agree is None
        if alone and self.again < MAX_RECAPTURES and self.capture.was_spoiled(error):
            self.again += 1
            return
        if self.agree is not None and not is_told:
            self.agree(0)
        self.missed = k
        self.error = self.error or error


def with_messages(graph: Graph, apart: Collection[int]) -> set[int]:
    """Add messages that are under way while something runs apart to it."""
    found, waits = set(apart), {}
    for k, node in enumerate(graph.nodes):
        if node.op == "wait":
            waits[graph.producers[node.inputs[0]]] = k
    pairs = [
        (k, w) for k, w in waits.items() if collective_of(graph.nodes[k].op, graph.nodes[k].kw)
    ]
    for k, w in waits.items():
        if graph.nodes[k].op in OFFLOADED:  # on a stream of its own
            found |= {k, w}
    grows = True
    while grows:
        grows = False
        for start, wait in pairs:
            crosses = any(start < k < wait for k in found) or len({start, wait} & found) == 1
            if crosses and not {start, wait} <= found:
                found |= {start, wait}
                grows = True
    return found
