"""Rows of `benchmarks gpu` of one system in one process, which imports, connects and warms up once.

    python -m benchmarks.gpu_system SYSTEM ROW,ROW,...

A line as JSON for each row as soon as it is measured: `first` (seconds of the first call), `answer` and
`samples`; then, where PyTorch's profiler finds kernels, one for each row with `kernels`: name, how many in an
iteration, microseconds of one."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

from . import peers
from .child import Alone, warm_up
from .workload import OURS, Case, summary, workloads

SAMPLES = 9
PROFILED = 3  # iterations


def main(system: str, names: list[str]) -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not for the parent
    found = {w.name: w for w in workloads(importlib.import_module("benchmarks.gpu"))}
    ready: dict[str, Case] = {}
    for name in names:
        try:
            begin = time.perf_counter()
            case = found[name].cases[system]()
            answer = summary(case.answer())
            first = time.perf_counter() - begin
            team = Alone(case)
            n = warm_up(team)
            samples = [team.run(n) / n / case.per for _ in range(SAMPLES)]
            ready[name] = case
            line: dict[str, Any] = {"first": first, "answer": answer, "samples": samples}
        except Exception as error:
            traceback.print_exc()
            line = {"failed": f"{type(error).__name__}: {error}"[:300]}
        out.write(json.dumps({"row": name, **line}) + "\n")
    if (kept := os.environ.get("BENCHMARK_PLANS")) and system == OURS:
        with open(kept, "a") as file:
            file.write(peers.ostinato_plans())
    if peers.DEVICE != "cpu":
        for name, kernels in profiled(ready):
            out.write(json.dumps({"row": name, "kernels": kernels}) + "\n")


def profiled(ready: dict[str, Case]) -> Iterator[tuple[str, list[tuple[str, float, float]]]]:
    with contextlib.suppress(ImportError):
        from torch.profiler import (  # type: ignore[import-not-found, unused-ignore]
            ProfilerActivity,
            profile,
        )

        for name, case in ready.items():
            if case.loop is None:
                continue
            case.loop(1)
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                case.loop(PROFILED)
            yield (
                name,
                [
                    (e.key[:120], e.count / PROFILED, e.device_time_total / e.count)
                    for e in sorted(seen.key_averages(), key=lambda e: -e.device_time_total)
                    if e.device_time_total
                ],
            )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","))
