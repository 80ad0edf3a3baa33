"""All that is to be learnt of a GPU in ten minutes, as one command: `python -m benchmarks.gpu day`.

    tests      those that ask a GPU, then all of tests/ops, tests/planner and tests/front there, in 12
               processes; a test has 60 seconds, all of them have less than half of the time
    rows       of `benchmarks gpu`, one after the other: of all of them ours and JAX, then what needs no
               compiler, then PyTorch, so that nobody's search for the fastest takes the time of others

Each result is in a file of the output folder as soon as it is there: tests.txt, *.xml, rows.json (a line a
row), rows.txt, plans.txt. What there is no time for is left out, and said so."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from . import machine, runner, table
from .workload import Workload, workloads

GROUPS = (("ostinato", "jax"), ("cupy", "torch/eager"), ("torch",))  # who comes first
SUITES = (
    ("gpu", ("-m", "gpu", "tests/runtime/test_on_gpu.py")),
    ("ops", ("tests/ops",)),
    ("planner and front", ("tests/planner", "tests/front")),
)
MODULE = "benchmarks.gpu"


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu day", description=__doc__)
    parser.add_argument("--out", default=os.environ.get("OUT", "gpu-day"), help="a folder")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all of it")
    parser.add_argument("--no-tests", action="store_true", help="rows only")
    parser.add_argument("--workload", default="", help="rows, by their names")
    given = parser.parse_args(args)
    begin, folder = time.monotonic(), Path(given.out)
    end = begin + 60 * given.minutes
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["BENCHMARK_PLANS"] = str((folder / "plans.txt").resolve())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started ends, too
    good = given.no_tests or tested(folder, begin + 0.45 * (end - begin))
    which = [w for w in given.workload.split(",") if w]
    for row in rows(folder, which, end):
        good = good and row.get("problem") in (None, "absent", "skipped")
    return 0 if good else 1


# -- tests -----------------------------------------------------------------------------------
def tested(folder: Path, end: float) -> bool:
    """Suite by suite, each with what the ones before have left."""
    good, device = True, os.environ.get("BENCHMARK_DEVICE", "cuda")
    for name, paths in SUITES:
        left = end - time.monotonic()
        if left < 10:
            print(f"tests of {name}: skipped, there was no time left", flush=True)
            continue
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-n", str(min(12, os.cpu_count() or 1))),
            *("-o", "faulthandler_timeout=60", "-o", "faulthandler_exit_on_timeout=true"),
            f"--junit-xml={folder.resolve() / name.split()[0]}.xml",
            *paths,
        ]
        print(f"{' '.join(command)}, at most {left:.0f} s", flush=True)
        with (folder / "tests.txt").open("a") as log:
            good = finished(command, {"OSTINATO_DEVICE": device}, log, left) and good
    return good


def finished(command: Sequence[str], variables: dict[str, str], log: IO[str], limit: float) -> bool:
    """Whether a command ended well in this time; what it started ends with it."""
    process = subprocess.Popen(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=runner.ROOT,
        env=os.environ | variables,
        start_new_session=True,
    )
    try:
        return process.wait(limit) == 0
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it tells what it found so far
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


# -- rows ------------------------------------------------------------------------------------
def rows(folder: Path, which: Sequence[str], end: float) -> Iterator[runner.Row]:
    """Each in the files before the next one begins."""
    found = runner.probe() | {"gpus": machine.gpus()}
    suite = [w for w in workloads(importlib.import_module(MODULE)) if not which or w.name in which]
    done: dict[str, list[runner.Row]] = {w.name: [] for w in suite}
    with (folder / "rows.json").open("w") as file:
        file.write(json.dumps({"machine": found}) + "\n")
        for workload, names, until in turns(suite, end):
            for row in measured(workload, names, until):
                file.write(json.dumps(row) + "\n")
                file.flush()
                done[workload.name].append(row)
                yield row
            texts = [
                f"{w.name}: {w.about}\n{table.table(done[w.name])}" for w in suite if done[w.name]
            ]
            (folder / "rows.txt").write_text("\n\n".join([machine.in_words(found), *texts]) + "\n")
            print(texts[[w.name for w in suite if done[w.name]].index(workload.name)], flush=True)


def turns(suite: Sequence[Workload], end: float) -> Iterator[tuple[Workload, list[str], float]]:
    """Who is measured, group by group; each turn may take a fair share of what is left, and a half more."""
    for systems in GROUPS:
        asked = [(w, [n for n in w.cases if n in systems]) for w in suite]
        asked = [(w, names) for w, names in asked if names]
        for k, (workload, names) in enumerate(asked):
            left = end - time.monotonic()
            share = 1.5 * left / (len(asked) - k)
            yield workload, names, min(end, time.monotonic() + share)


def measured(workload: Workload, names: Sequence[str], until: float) -> Iterator[runner.Row]:
    absent = {n: runner.missing(workload.system(n)) for n in names}
    for n in names:
        if absent[n]:
            why = f"{absent[n]} is missing"
            yield runner.row(workload.name, n, (), ("absent", why))
    names = [n for n in names if not absent[n]]
    if time.monotonic() >= until - 1:
        for n in names:
            yield runner.row(workload.name, n, (), ("skipped", "there was no time left"))
        return
    try:
        short = replace(workload, seconds=min(workload.seconds, 2.0))  # they are fast here
        yield from runner.run_workload(MODULE, short, names, 1, runner.ROUNDS, until)
    except Exception as error:
        for n in names:
            why = f"{type(error).__name__}: {error}"[:300]
            yield runner.row(workload.name, n, (), ("failed", why))
