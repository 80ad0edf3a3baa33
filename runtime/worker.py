"""A worker: the store of its parts of arrays, one arena, and the plans that it has bound.

An iteration is `run(id, operand handles, result handles)`. Buffers of results come from a pool and
go back to it when their array is freed, so a plan that runs again and again allocates nothing."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.spec import Spec
from ostinato.planner.plan import Plan

from .bind import Bound, bind
from .communicator import Communicator

POOLED = 4  # buffers of one kind that wait for use at the most
CLOCKED = 16  # the first runs are measured, then every so many
TIMED = 3  # the run of a plan that is timed step by step
WORTH_TIMING = 20e-6  # seconds; shorter runs are not
FEW = 2000  # nodes; longer plans are not timed step by step

Home = list[Any]  # where a buffer waits when it is free


@dataclass(slots=True)
class Loaded:
    """A plan on this worker."""

    plan: Plan
    bound: Bound | None = None
    results: tuple[tuple[tuple[int, ...], np.dtype[Any], Home], ...] = ()
    reuse: tuple[tuple[int, int], ...] = ()
    runs: int = 0
    clocked: int = 0  # runs that were measured, and what they took together
    seconds: float = 0.0
    best: float = float("inf")
    timed: Bound | None = None


class Worker:
    def __init__(self, rank: int, communicator: Communicator, xp: Any = np) -> None:
        self.rank = rank
        self.communicator = communicator
        self.xp = xp
        self.store: dict[int, tuple[Any, Home | None]] = {}
        self.plans: dict[str, Loaded] = {}
        self.arena: Any = _block(xp, 0)
        self.pool: dict[tuple[tuple[int, ...], Any], Home] = {}
        self.allocations = 0
        self.context = contextvars.copy_context()
        self.context.run(np.seterr, all="ignore")

    # -- operands --------------------------------------------------------------------------
    def put(self, handle: int, value: Any) -> None:
        self.store[handle] = (value, None)

    def get(self, handle: int, export: bool = False) -> Any:
        """This worker's part. Once exported, others may see its memory, and it will not be used
        again for something else.
        """
        value, _ = self.store[handle]
        if export:
            self.store[handle] = (value, None)
        return value

    def free(self, handle: int) -> None:
        value, home = self.store.pop(handle, (None, None))
        if home is not None and len(home) < POOLED:
            home.append(value)

    # -- plans -----------------------------------------------------------------------------
    def load(self, plan: Plan) -> None:
        self.plans.setdefault(plan.id, Loaded(plan))

    def unload(self, plan_id: str) -> None:
        self.plans.pop(plan_id, None)

    def _bind(self, loaded: Loaded, timed: bool = False) -> Bound:
        program = loaded.plan.program
        if program.arena_bytes > self.arena.size:
            self.arena = _block(self.xp, program.arena_bytes)
            for other in self.plans.values():  # they were bound to the old one
                other.bound = None
        specs = program.graph.out_specs
        loaded.results = tuple((*_local(s, self.rank), self._home(s)) for s in specs)
        loaded.reuse = program.reuse
        return bind(
            program,
            self.rank,
            self.communicator,
            self.xp,
            self.arena,
            f"<plan {loaded.plan.id}>",
            timed,
        )

    def _home(self, spec: Spec) -> Home:
        return self.pool.setdefault(_local(spec, self.rank), [])

    def run(self, plan_id: str, ins: Sequence[int], outs: Sequence[int]) -> None:
        """Run a plan over stored operands; its results are stored under the given handles, all or
        none.
        """
        self.step(self.plans[plan_id], ins, outs)

    def step(self, loaded: Loaded, ins: Sequence[int], outs: Sequence[int]) -> None:
        """`run`, for who has the loaded plan at hand."""
        bound = loaded.bound
        if bound is None:
            bound = loaded.bound = self._bind(loaded)
        loaded.runs += 1
        clocked = loaded.runs < CLOCKED or not loaded.runs % CLOCKED
        if loaded.runs == TIMED:
            bound = self._timing(loaded, bound)
        store = self.store
        arrays = [store[h][0] for h in ins]
        for shape, dtype, home in loaded.results:
            if home:
                arrays.append(home.pop())
            else:
                arrays.append(self.xp.empty(shape, dtype))
                self.allocations += 1
        first = len(ins)
        for k, j in loaded.reuse:
            arrays[first + k] = arrays[j]
        if clocked:
            start = time.perf_counter()
        try:
            self.context.run(bound.call, *arrays)
        except BaseException as error:
            for k, (_, _, home) in enumerate(loaded.results):
                if not any(k == r for r, _ in loaded.reuse):
                    home.append(arrays[first + k])
            raise bound.blame(error, f"<plan {loaded.plan.id}>") from (
                None if error.__cause__ else error
            )
        if clocked:
            took = time.perf_counter() - start
            loaded.seconds += took
            loaded.clocked += 1
            if took < loaded.best:
                loaded.best = took
        for handle, result in zip(outs, loaded.results):  # noqa: B905  (one per result, and this is every iteration)
            store[handle] = (arrays[first], result[2])
            first += 1

    def _timing(self, loaded: Loaded, bound: Bound) -> Bound:
        """The same function with a clock between its steps, for this one run."""
        if loaded.best < WORTH_TIMING or len(loaded.plan.program.graph.nodes) > FEW:
            return bound
        loaded.timed = self._bind(loaded, timed=True)
        return loaded.timed


def _local(spec: Spec, rank: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    assert spec.layout is not None
    return spec.layout.local_shape(spec.shape, rank), spec.dtype


def _block(xp: Any, size: int) -> Any:
    """Memory that starts on a cache line."""
    if size == 0:
        return xp.empty(0, np.uint8)
    raw = xp.empty(size + 64, np.uint8)
    skip = -raw.ctypes.data % 64 if xp is np else 0
    return raw[skip : skip + size]
