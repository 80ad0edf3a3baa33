"""One system at one workload, in a process of its own; told by its parent when to measure.

    python -m benchmarks.child MODULE WORKLOAD SYSTEM[/VARIANT]

It says `{"answer": ...}` once it is ready; then each line that it reads is a request for one
sample, answered by `{"seconds": ..., "took": ...}`. Several ranks do this together: rank 0 reads
and answers, the others are asked now and then and meanwhile sleep, so as not to disturb others."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any

from .peers import ostinato_plans
from .workload import OURS, Case, split_name, summary, workloads

LEAST = 0.02  # seconds of one sample
ANSWER, STOP = -1, -2
clock = time.process_time if os.environ.get("BENCHMARK_CPU_TIME") else time.perf_counter


class Alone:
    """A case in this process."""

    rank = 0

    def __init__(self, case: Case) -> None:
        self.case = case

    def answer(self) -> Any:
        return self.case.answer()

    def run(self, n: int) -> float:
        """Seconds of n iterations."""
        case = self.case
        if case.clock is not None:
            return sum(case.clock() for _ in range(n))
        assert case.loop is not None
        start = clock()
        case.loop(n)
        return clock() - start

    def stop(self) -> None:
        pass


class Together(Alone):
    """A case that all ranks run at the same time."""

    def __init__(self, case: Case) -> None:
        from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]

        super().__init__(case)
        self.world: Any = MPI.COMM_WORLD
        self.rank = int(self.world.Get_rank())

    def answer(self) -> Any:
        self.tell(ANSWER)
        return super().answer()

    def run(self, n: int) -> float:
        self.tell(n)
        return self.turn(n)

    def turn(self, n: int) -> float:
        self.world.Barrier()
        start = time.perf_counter()
        super().run(n)
        self.world.Barrier()
        return time.perf_counter() - start

    def tell(self, n: int) -> None:
        for rank in range(1, self.world.Get_size()):
            self.world.send(n, dest=rank)

    def follow(self) -> None:
        """What ranks other than 0 do."""
        while True:
            while not self.world.Iprobe(source=0):
                time.sleep(0.0005)
            n = self.world.recv(source=0)
            if n == STOP:
                return
            if n == ANSWER:
                super().answer()
            else:
                self.turn(n)

    def stop(self) -> None:
        self.tell(STOP)


def warm_up(team: Alone) -> int:
    """Iterations that make a sample long enough. They also are the warm-up."""
    n = 1
    while True:
        seconds = team.run(n)
        if seconds >= LEAST:
            return n
        n = max(2 * n, int(n * 1.2 * LEAST / max(seconds, 1e-7)))


def main(module: str, name: str, system: str) -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not for the parent

    def say(**facts: Any) -> None:
        out.write(json.dumps(facts) + "\n")

    kind = None
    try:
        found = {w.name: w for w in workloads(importlib.import_module(module))}[name]
        kind = found.system(system)
        case = found.cases[system]()
        team = Together(case) if kind.ranks > 1 else Alone(case)
        if team.rank > 0:
            assert isinstance(team, Together)
            team.follow()
            return
        answer = summary(team.answer())
        n = 1 if case.clock is not None else warm_up(team)
        say(answer=answer, iterations=n)
        while sys.stdin.readline().strip():
            took = team.run(n)
            noted = {} if case.note is None else {"note": case.note()}
            say(seconds=took / n / case.per, took=took, **noted)
        team.stop()
        if (kept := os.environ.get("BENCHMARK_PLANS")) and split_name(system)[0] == OURS:
            with open(kept, "a") as file:
                file.write(f"== {name}, {system}\n\n{ostinato_plans()}\n\n")
    except ModuleNotFoundError as error:
        say(absent=str(error.name))
    except Exception as error:
        traceback.print_exc()
        say(failed=f"{type(error).__name__}: {error}"[:300])
        if kind is not None and kind.launch:
            out.flush()
            os._exit(1)  # the other ranks must not wait for this one


if __name__ == "__main__":
    main(*sys.argv[1:])
