"""What it costs to trace and plan graphs of 10 to 10,000 nodes, and to find plans again.

The graphs are drawn at random from a fixed seed: elementwise operations, matrix products,
reductions and reshapes of small arrays, no two alike and none without use.

trace       the function as a graph                     jax: jit(f).trace(...)
plan        the graph as a plan                         jax: .lower().compile()
trace+plan  both
first_call  the first call: trace, plan, bind, run
hit         a call of a function that is planned; numpy: the same calls, eagerly
memory_hit  the first call of another function that is the same program, in the same process
disk_hit    the first call in a new process whose cache folder has the plan; imports do not count

And what a planner asks about layouts on 65,536 workers, each time of a size that nobody asked before:

moved    how many elements cross between workers
largest  the largest part
there    whether each worker has all that it needs
"""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .workload import Case, Numbers, Workload

SIZES = (10, 100, 1000, 10_000)
JAX_MOST = 1000  # nodes; XLA takes minutes for ten thousand
WEIGHTS = 4
INPUTS = 2 + WEIGHTS
SIDE = 8
SHOWN = 16  # values on the way that are results too


# -- programs ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Step:
    """One node: a function of the array API by name."""

    function: str
    operands: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Program:
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


BOUNDED = ("sin", "cos", "tanh")  # results within -1 .. 1
PAIRED = ("add", "subtract", "multiply", "maximum", "minimum")
REDUCED = ("mean", "max", "min", "sum")
MATRIX, VECTOR, FLAT = (SIDE, SIDE), (SIDE,), (SIDE * SIDE,)


class _Writer:
    """Draws a program step by step. Values stay small, so that libraries can be compared."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.steps: list[Step] = []
        self.shapes: list[tuple[int, ...]] = [MATRIX] * INPUTS
        self.sizes = [1.0] * INPUTS  # how large elements can be
        self.unread = deque([0, 1])
        self.seen: set[Any] = set()

    def add(
        self,
        function: str,
        operands: Sequence[int],
        shape: tuple[int, ...],
        size: float,
        options: tuple[tuple[str, Any], ...] = (),
    ) -> bool:
        """Write a step, unless there is one like it."""
        key = (function, tuple(sorted(operands)), options)
        if key in self.seen:
            return False
        self.seen.add(key)
        self.steps.append(Step(function, tuple(operands), options))
        for v in operands:
            if v in self.unread:
                self.unread.remove(v)
        self.unread.append(len(self.shapes))
        self.shapes.append(shape)
        self.sizes.append(size)
        return True

    def other(self, shape: tuple[int, ...], but: int) -> int | None:
        """A value of this shape, unread or recent."""
        waiting = [v for v in self.unread if self.shapes[v] == shape and v != but]
        if waiting and self.random.random() < 0.8:
            return waiting[0]
        recent = range(max(0, len(self.shapes) - 24), len(self.shapes))
        found = [v for v in recent if self.shapes[v] == shape and v != but]
        return self.random.choice(found) if found else None

    def write(self) -> None:
        pick = self.random.choice
        x = self.unread[0] if self.unread and self.random.random() < 0.8 else len(self.shapes) - 1
        shape, size = self.shapes[x], self.sizes[x]
        if size > 2:
            if not self.add(pick(BOUNDED), [x], shape, 1.0):
                self.add("multiply", [x, x], shape, 1.0)
            return
        kind = self.random.random()
        if shape == VECTOR or kind < 0.45:
            y = self.other(MATRIX if shape == VECTOR else shape, x)
            if y is None:
                self.add(pick(BOUNDED), [x], shape, 1.0)
                return
            function = pick(PAIRED)
            a, b = size, self.sizes[y]
            made = {"multiply": a * b, "add": a + b, "subtract": a + b}.get(function, max(a, b))
            self.add(function, [y, x], self.shapes[y], made)
        elif kind < 0.65:
            self.add(pick(BOUNDED), [x], shape, 1.0)
        elif shape == MATRIX and kind < 0.8:
            weight = 2 + self.random.randrange(WEIGHTS)
            self.add("matmul", [x, weight], shape, size * 1.5)
        elif shape == MATRIX and kind < 0.92:
            function = pick(REDUCED)
            made = size * SIDE if function == "sum" else size
            self.add(function, [x], VECTOR, made, (("axis", pick((0, 1))),))
        elif x < INPUTS or self.steps[x - INPUTS].function != "reshape":
            to = FLAT if shape == MATRIX else MATRIX
            self.add("reshape", [x], to, size, (("shape", to),))


@functools.cache
def program(nodes: int) -> Program:
    """A program of so many steps, the same in every process."""
    writer = _Writer(f"ostinato {nodes}")
    while len(writer.steps) < nodes:
        writer.write()
    shown = range(
        INPUTS, len(writer.shapes), max(1, nodes // SHOWN)
    )  # so that all of it is checked
    return Program(tuple(writer.steps), tuple(dict.fromkeys((*shown, *writer.unread))))


def inputs() -> list[Numbers]:
    """Two matrices of numbers, and rotations as weights."""
    rng = np.random.default_rng(11)
    found = [rng.uniform(-1, 1, MATRIX) for _ in range(2)]
    found += [np.linalg.qr(rng.standard_normal(MATRIX))[0] for _ in range(WEIGHTS)]
    return [np.ascontiguousarray(x, np.float32) for x in found]


def evaluate(library: Any, program: Program, values: Sequence[Any]) -> list[Any]:
    """The program, by the functions of a library."""
    known = list(values)
    functions = {s.function: getattr(library, s.function) for s in program.steps}
    for step in program.steps:
        operands = [known[v] for v in step.operands]
        known.append(functions[step.function](*operands, **dict(step.options)))
    return [known[v] for v in program.outputs]


def joined(results: Sequence[Any]) -> Numbers:
    """All results in one array."""
    return np.concatenate([np.asarray(x).reshape(-1) for x in results])


def expected(nodes: int) -> Numbers:
    return joined(evaluate(np, program(nodes), inputs()))


def function_of(library: Any, nodes: int) -> Callable[..., list[Any]]:
    """The program as a function; a new one each time, as for whoever sees it first."""
    steps = program(nodes)

    def drawn(*values: Any) -> list[Any]:
        return evaluate(library, steps, values)

    return drawn


def clocked(run: Callable[[], Any], prepare: Callable[[], Any] = gc.collect) -> float:
    prepare()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


# -- ostinato ------------------------------------------------------------------------------
class Planned:
    """The stages of a first call, one by one."""

    def __init__(self, nodes: int) -> None:
        from ostinato.planner.pipeline import make_plan
        from ostinato.planner.plan import Key

        import ostinato as ost

        self.ost, self.nodes = ost, nodes
        self.key, self.make_plan = Key, make_plan
        self.session = ost.connect()
        self.values = [ost.asarray(x) for x in inputs()]
        ost.evaluate(self.values)
        self.specs = [self.session.hold_array(x).spec for x in self.values]

    def trace(self) -> Any:
        from ostinato.ops.core.array import placeholder, term_of
        from ostinato.ops.core.trace import collect

        from ostinato.reading import CompileTrace

        trace = CompileTrace("drawn")
        args = [placeholder(s, k, trace) for k, s in enumerate(self.specs)]
        results = function_of(self.ost, self.nodes)(*args)
        return collect([term_of(x) for x in results], self.specs, trace).graph

    def plan(self, graph: Any) -> Any:
        plan = self.make_plan(self.key(graph, self.session.target))
        assert plan.id
        return plan

    def compiled(self) -> Any:
        return self.ost.compile(function_of(self.ost, self.nodes))

    def call(self, function: Any) -> Numbers:
        return joined(function(*self.values))

    def answer(self) -> Numbers:
        graph = self.trace()
        if len(graph.nodes) != self.nodes:
            raise ValueError(f"{len(graph.nodes)} nodes instead of {self.nodes}")
        return self.call(self.compiled())

    def renew(self) -> None:
        """Other workers, who know no plan yet."""
        self.session.close()
        self.session = self.ost.connect()
        self.values = [self.ost.asarray(x) for x in inputs()]
        for x in self.values:
            self.session.hold_array(x)
        gc.collect()


def ostinato_trace(nodes: int) -> Case:
    stages = Planned(nodes)
    return Case(stages.answer, clock=lambda: clocked(stages.trace))


def ostinato_plan(nodes: int) -> Case:
    stages = Planned(nodes)

    def clock() -> float:
        graph = stages.trace()  # a new one, since a graph remembers what was asked of it
        return clocked(lambda: stages.plan(graph))

    return Case(stages.answer, clock=clock)


def ostinato_both(nodes: int) -> Case:
    stages = Planned(nodes)
    return Case(stages.answer, clock=lambda: clocked(lambda: stages.plan(stages.trace())))


def ostinato_first(nodes: int) -> Case:
    stages = Planned(nodes)

    def clock() -> float:
        stages.renew()
        return clocked(lambda: stages.call(stages.compiled()))

    return Case(stages.answer, clock=clock)


def ostinato_hit(nodes: int) -> Case:
    stages = Planned(nodes)
    compiled = stages.compiled()

    def loop(n: int) -> None:
        for _ in range(n):
            compiled(*stages.values)

    return Case(lambda: stages.call(compiled), loop)


def ostinato_memory(nodes: int) -> Case:
    stages = Planned(nodes)

    def clock() -> float:
        compiled = stages.compiled()
        seconds = clocked(lambda: stages.call(compiled))
        source = compiled.misses[-1].source
        if source != "memory":
            raise ValueError(f"the plan came from {source}, not from memory")
        return seconds

    return Case(stages.answer, clock=clock)


# -- jax -----------------------------------------------------------------------------------
class Jitted:
    """The same stages in JAX."""

    def __init__(self, nodes: int) -> None:
        import jax  # type: ignore[import-not-found, unused-ignore]

        self.jax, self.nodes = jax, nodes
        self.values = [jax.device_put(x) for x in inputs()]

    def jitted(self) -> Any:
        return self.jax.jit(function_of(self.jax.numpy, self.nodes))

    def call(self, function: Any) -> Numbers:
        return joined(function(*self.values))

    def answer(self) -> Numbers:
        return self.call(self.jitted())

    def forget(self) -> None:
        self.jax.clear_caches()
        gc.collect()

    def trace(self) -> Any:
        return self.jitted().trace(*self.values)


def jax_trace(nodes: int) -> Case:
    stages = Jitted(nodes)
    return Case(stages.answer, clock=lambda: clocked(stages.trace, stages.forget))


def jax_plan(nodes: int) -> Case:
    stages = Jitted(nodes)

    def clock() -> float:
        stages.forget()
        traced = stages.trace()
        return clocked(lambda: traced.lower().compile())

    return Case(stages.answer, clock=clock)


def jax_both(nodes: int) -> Case:
    stages = Jitted(nodes)
    return Case(
        stages.answer,
        clock=lambda: clocked(lambda: stages.trace().lower().compile(), stages.forget),
    )


def jax_first(nodes: int) -> Case:
    stages = Jitted(nodes)
    return Case(stages.answer, clock=lambda: clocked(stages.answer, stages.forget))


def jax_hit(nodes: int) -> Case:
    stages = Jitted(nodes)
    jitted = stages.jitted()

    def loop(n: int) -> None:
        for _ in range(n):
            results = jitted(*stages.values)
        stages.jax.block_until_ready(results)

    return Case(lambda: stages.call(jitted), loop)


def jax_memory(nodes: int) -> Case:
    stages = Jitted(nodes)
    return Case(stages.answer, clock=lambda: clocked(stages.answer))


# -- numpy ---------------------------------------------------------------------------------
def numpy_hit(nodes: int) -> Case:
    eager, values = function_of(np, nodes), inputs()

    def loop(n: int) -> None:
        for _ in range(n):
            eager(*values)

    return Case(lambda: joined(eager(*values)), loop)


# -- new processes -------------------------------------------------------------------------
def disk_hit(system: str, nodes: int) -> Case:
    """Each sample is a process; the first one of all fills the folder."""
    folder = tempfile.TemporaryDirectory(prefix="ostinato-bench-")
    caches = {
        "OSTINATO_CACHE": folder.name,
        "JAX_COMPILATION_CACHE_DIR": folder.name,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def start() -> dict[str, Any]:
        made = subprocess.run(
            [sys.executable, "-m", "benchmarks.planning", system, str(nodes)],
            env={**os.environ, **caches},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return dict(json.loads(made.stdout))

    def again() -> dict[str, Any]:
        found = start()
        if found["source"] != "disk":
            raise ValueError(f"the plan came from {found['source']}, not from disk")
        return found

    def answer() -> Any:
        assert folder.name  # which lives as long as the case
        start()
        return again()["answer"]

    return Case(answer, clock=lambda: float(again()["seconds"]))


def first_call(system: str, nodes: int) -> dict[str, Any]:
    """The first call in this process."""
    stages: Planned | Jitted = Planned(nodes) if system == "ostinato" else Jitted(nodes)
    program(nodes)
    hits: list[str] = []
    if isinstance(stages, Jitted):
        from jax import monitoring

        monitoring.register_event_listener(lambda event, **_: hits.append(event))
    start = time.perf_counter()
    function = stages.compiled() if isinstance(stages, Planned) else stages.jitted()
    answer = stages.call(function)
    seconds = time.perf_counter() - start
    if isinstance(stages, Planned):
        source = function.misses[-1].source
    else:
        source = "disk" if "/jax/compilation_cache/cache_hits" in hits else "made"
    return {"seconds": seconds, "source": source, "answer": answer.tolist()}


# -- the suite -----------------------------------------------------------------------------
def workload(nodes: int) -> Workload:
    stages: dict[str, Callable[[int], Case]] = {
        "ostinato/trace": ostinato_trace,
        "ostinato/plan": ostinato_plan,
        "ostinato/trace+plan": ostinato_both,
        "ostinato/first_call": ostinato_first,
        "ostinato/hit": ostinato_hit,
        "ostinato/memory_hit": ostinato_memory,
        "ostinato/disk_hit": functools.partial(disk_hit, "ostinato"),
        "numpy/hit": numpy_hit,
    }
    if nodes <= JAX_MOST:
        stages |= {
            "jax/trace": jax_trace,
            "jax/plan": jax_plan,
            "jax/trace+plan": jax_both,
            "jax/first_call": jax_first,
            "jax/hit": jax_hit,
            "jax/memory_hit": jax_memory,
            "jax/disk_hit": functools.partial(disk_hit, "jax"),
        }
    return Workload(
        f"nodes-{nodes}",
        f"a random graph of {nodes:,} nodes",
        functools.partial(expected, nodes),
        {name: functools.partial(make, nodes) for name, make in stages.items()},
        tolerance=2e-3,
    )


# -- questions about layouts ---------------------------------------------------------------
MESHES = ((65536,), (256, 256))
CHANGES = ("rows to columns", "rows to whole", "rows in rows", "axes cross", "halo")
FIRST, STEP, ASKED = 10_000_019, 7919, 200  # sizes


def layouts(mesh: tuple[int, ...]) -> dict[str, tuple[Any, Any]]:
    """What workers have and need: a matrix, and what is asked for depends on its rows."""
    from ostinato.ops.core.layout import Layout

    every, n = Layout(mesh, (0,) * len(mesh)), len(mesh)
    first = Layout(mesh, (0,) + (1,) * (n - 1))
    return {
        "rows to columns": (every, Layout(mesh, (1,) * n)),
        "rows to whole": (every, Layout.whole(mesh)),
        "rows in rows": (Layout(mesh, (0,) + (None,) * (n - 1)), every),
        "axes cross": (first, Layout(mesh, (1,) + (0,) * (n - 1))),
        "halo": (every, None),
    }


def question(mesh: tuple[int, ...], name: str, rows: int) -> tuple[Any, Any, tuple[int, int]]:
    from ostinato.ops.core.layout import Layout, Overlap

    has, needs = layouts(mesh)[name]
    halo = Layout(mesh, has.splits, ((0, Overlap(rows - 2, 0, 1, 3)),))
    return has, needs or halo, (rows, 65536 * 3 + 5)


def answers(mesh: tuple[int, ...], name: str) -> Numbers:
    """To all questions, of one size."""
    from ostinato.ops.core.traffic import moved

    has, needs, shape = question(mesh, name, FIRST)
    found = moved(has, needs, shape), *needs.largest(shape), has.has_copy(needs, shape)
    return np.array(found, float)


def one_by_one(mesh: tuple[int, ...], name: str) -> Numbers:
    """The same, from the parts of all workers."""
    has, needs, shape = question(mesh, name, FIRST)
    first, end, lo, hi = (
        np.array([[side[k] for side in w.box(shape, rank)] for rank in range(w.workers)])
        for w, k in ((has, 0), (has, 1), (needs, 0), (needs, 1))
    )
    common = np.maximum(0, np.minimum(end, hi) - np.maximum(first, lo))
    crossing = (np.prod(hi - lo, 1) - np.prod(common, 1)).sum()
    return np.array((crossing, *(hi - lo).max(0), (common == hi - lo).all()), float)


def questions(mesh: tuple[int, ...], name: str, ask: Callable[..., Any]) -> Case:
    sizes = iter(range(FIRST + STEP, 1 << 40, STEP))

    def clock() -> float:
        new = [question(mesh, name, next(sizes)) for _ in range(ASKED)]
        return clocked(lambda: [ask(*q) for q in new])

    return Case(functools.partial(answers, mesh, name), clock=clock, per=ASKED)


def asked(mesh: tuple[int, ...], name: str) -> Workload:
    from ostinato.ops.core.layout import Layout
    from ostinato.ops.core.traffic import moved

    ways: dict[str, Callable[..., Any]] = {
        "moved": moved,
        "largest": lambda has, needs, shape: needs.largest(shape),
        "there": Layout.has_copy,
    }
    return Workload(
        f"layouts-{'x'.join(map(str, mesh))}-{name.replace(' ', '-')}",
        f"{name}, {' x '.join(f'{n:,}' for n in mesh)} workers",
        functools.partial(one_by_one, mesh, name),
        {f"ostinato/{way}": functools.partial(questions, mesh, name, f) for way, f in ways.items()},
    )


WORKLOADS = (
    *(workload(n) for n in SIZES),
    *(asked(mesh, name) for mesh in MESHES for name in CHANGES),
)

if __name__ == "__main__":
    print(json.dumps(first_call(sys.argv[1], int(sys.argv[2]))))
