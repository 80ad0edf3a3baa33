"""python -m benchmarks SUITE [--json] [--only SYSTEM,...] [--workload NAME,...] [--repeat N] [--scale F]"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import machine, runner, table
from .workload import split_name, workloads

SUITES = (
    "dispatch",
    "planning",
    "compiling",
    "kernels",
    "products",
    "breadth",
    "everyday",
    "loops",
    "networks",
    "busy",
    "cluster",
    "keep",
    "pipeline",
    "predict",
    "planner",
    "overlap",
    "layouts",
    "scaling",
    "space",
    "time",
    "gpu",
)
# Which compare with nobody.
ALONE = ("predict", "planner", "overlap", "layouts", "scaling", "space", "time")
RESULTS = Path(__file__).resolve().parent / "results"


def suites() -> str:
    """A line per suite."""
    lines = []
    for name in SUITES:
        module = importlib.import_module(f"benchmarks.{name}")
        about = (module.__doc__ or "").strip().splitlines()[0]
        lines.append(f"{name:<10} {about}")
    return "\n".join(lines)


def main(args: Sequence[str]) -> int:
    if args and args[0] in ALONE:
        return int(importlib.import_module(f"benchmarks.{args[0]}").main(args[1:]))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", nargs="?", choices=SUITES)
    parser.add_argument("--json", action="store_true", help="one line of JSON per row")
    parser.add_argument("--only", default="", help="systems, e.g. numpy,jax,torch/compile")
    parser.add_argument("--workload", default="", help="workloads, by how their names begin")
    parser.add_argument("--repeat", type=int, help="processes per system (2)")
    parser.add_argument(
        "--minutes", type=float, help="for all of it; what is left then is left out"
    )
    parser.add_argument("--scale", type=float, help="of the extents of kernels, e.g. 0.1")
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="time of one processor, where others use the machine, too: waiting does not count",
    )
    parser.add_argument("--save", action="store_true", help="keep the rows in benchmarks/results")
    given = parser.parse_args(args)
    if given.suite is None:
        print(suites())
        return 0
    until = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    repeat, good = given.repeat or runner.REPEAT, True
    if given.scale is not None:
        os.environ["BENCHMARK_SCALE"] = str(given.scale)  # for this process's children, too
    if given.cpu:
        machine.THREADS = 1
        os.environ |= {"BENCHMARK_CPU_TIME": "1", "BENCHMARK_THREADS": "1"}
    only = [s for s in given.only.split(",") if s]
    suite = workloads(importlib.import_module(f"benchmarks.{given.suite}"))
    known = dict.fromkeys(m for w in suite for n in w.cases for m in (split_name(n)[0], n))
    unknown = sorted(set(only) - set(known))
    if unknown:
        parser.error(f"--only: got {', '.join(unknown)}; needed some of {', '.join(known)}")
    which = [w for w in given.workload.split(",") if w]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its children, too, end
    found = runner.probe()
    keep = _keeper(given.suite) if given.save else lambda line: line
    if given.suite == "gpu":
        found |= {"date": f"{datetime.datetime.now():%Y-%m-%d %H:%M}", "gpus": machine.gpus()}
    line = keep(json.dumps({"machine": found}))
    print(line if given.json else machine.in_words(found), flush=True)
    floors = {w.name: machine.floor(found, w) for w in suite}
    printer = table.Printer({w.name: w.about for w in suite}, floors)
    for row in runner.run(f"benchmarks.{given.suite}", only, repeat, which=which, until=until):
        line = keep(json.dumps({**row, "floor_s": floors.get(row["workload"], 0)}))
        good = good and row.get("problem") in (None, "absent")
        if given.json:
            print(line, flush=True)
        else:
            printer.add(row)
    if not given.json:
        printer.end()
    return 0 if good else 1


def _keeper(suite: str) -> Callable[[str], str]:
    """Writes down each line when it is there, as a machine may be taken away before the last."""
    path = _file(suite, "json")
    print(path, file=sys.stderr)

    def keep(line: str) -> str:
        with path.open("a") as file:
            file.write(line + "\n")
        return line

    return keep


def _file(name: str, kind: str) -> Path:
    """A new one among the results."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}{_rehearsed()}-{datetime.date.today():%Y-%m-%d}.{kind}"
    path.write_text("")
    return path


def _rehearsed() -> str:
    """What the names of files have that are not of a GPU."""
    device = os.environ.get("BENCHMARK_DEVICE", "cuda")
    return "" if device == "cuda" else f"-on-{device}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
