"""All that is to be learnt of a GPU in ten minutes, as one command: `python -m benchmarks.gpu day`.

    rows       of `benchmarks gpu`, ours, in one process; with the kernels that PyTorch's profiler saw
    tests      those that ask a GPU, then all of tests/ops, tests/planner and tests/front there, in 16
               processes; a test has 60 seconds
    rows       of JAX, then of what needs no compiler, then of PyTorch, so that nobody's search for the fastest
               takes the time of others; `--autotune 0`: JAX does not time its products, which is sooner

Each result is in a file of the output folder as soon as it is there: tests.txt, *.xml, rows.json (a line a
row; what follows with the same names is newer), rows.txt, plans.txt. What there is no time for is left out,
and said so."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from . import machine, runner, table
from .workload import OURS, System, Workload, agree, summary, workloads

ORDER = ("ostinato", "jax", "cupy", "torch/eager", "torch")
LIMIT = 45.0  # seconds without a word, after which a row is given up
OWN_ROWS, TESTS = 0.3, 0.6  # shares of the time after which these have ended
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
    parser.add_argument("--systems", default=",".join(ORDER), help="in this order")
    parser.add_argument(
        "--autotune", type=int, default=4, help="XLA's level: 4 its own choice, 0 none (sooner)"
    )
    given = parser.parse_args(args)
    begin, folder = time.monotonic(), Path(given.out)
    end = begin + 60 * given.minutes
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["BENCHMARK_PLANS"] = str((folder / "plans.txt").resolve())
    flag = f"--xla_gpu_autotune_level={given.autotune}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    print(f"XLA_FLAGS={os.environ['XLA_FLAGS']}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started ends, too
    which = [w for w in given.workload.split(",") if w]
    with tempfile.TemporaryDirectory() as wanted:
        numpy = multiprocessing.get_context("spawn").Process(
            target=answers, args=(Path(wanted), which), daemon=True
        )
        numpy.start()
        good = all_of_it(given, Record(folder, which), Path(wanted), begin, end)
        numpy.kill()
    return 0 if good else 1


def all_of_it(
    given: argparse.Namespace, record: Record, wanted: Path, begin: float, end: float
) -> bool:
    """Whether tests and rows were right."""
    systems = given.systems.split(",")
    own = [system for system in systems if system == OURS]
    bad = list[runner.Row]()

    def say(some: Iterator[runner.Row]) -> None:
        for row in some:
            if row.get("problem") not in (None, "absent", "skipped"):
                bad.append(row)
            took = f"{1e6 * row['median_s']:.1f} us" if row["median_s"] else row.get("note", "")
            print(row["workload"], row["system"], row.get("problem", ""), took, flush=True)

    alone = given.no_tests and len(own) == len(systems)
    say(rows(record, own, wanted, end if alone else begin + OWN_ROWS * (end - begin)))
    good = given.no_tests or tested(record.folder, begin + TESTS * (end - begin))
    say(rows(record, [system for system in systems if system not in own], wanted, end))
    say(compared(record, wanted))
    return good and not bad


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
            *(sys.executable, "-m", "pytest", "-q", "-n", str(min(16, os.cpu_count() or 1))),
            *("-p", "no:benchmark"),  # where it is installed it warns that it does nothing
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
def answers(folder: Path, which: Sequence[str]) -> None:
    """What NumPy computes, in files: made while tests run, by processors that a GPU leaves idle."""
    for workload in asked(which):
        made = folder / f"{workload.name}.json"
        made.with_suffix(".part").write_text(json.dumps(summary(workload.expect())))
        made.with_suffix(".part").rename(made)


def asked(which: Sequence[str]) -> list[Workload]:
    suite = workloads(importlib.import_module(MODULE))
    return [w for w in suite if not which or w.name in which]


class Record:
    """Rows in files, each as soon as it is there."""

    def __init__(self, folder: Path, which: Sequence[str]) -> None:
        self.folder, self.suite = folder, asked(which)
        self.machine = runner.probe() | {"gpus": machine.gpus()}
        self.done: dict[str, list[runner.Row]] = {w.name: [] for w in self.suite}
        self.answers: list[tuple[runner.Row, Any]] = []  # rows that NumPy has not computed yet
        self.lines = folder / "rows.json"
        self.lines.write_text("")
        flags = os.environ.get("XLA_FLAGS", "")
        self.head = f"{machine.in_words(self.machine)}\nXLA_FLAGS={flags}"
        self.add({"machine": self.machine, "XLA_FLAGS": flags})

    def add(self, row: runner.Row) -> None:
        with self.lines.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if "median_s" not in row:
            return
        done = self.done[row["workload"]]
        if not any(row is one for one in done):
            done.append(row)
        texts = [
            f"{w.name}: {w.about}\n{table.table(self.done[w.name])}"
            for w in self.suite
            if self.done[w.name]
        ]
        (self.folder / "rows.txt").write_text("\n\n".join([self.head, *texts]) + "\n")


def rows(record: Record, systems: Sequence[str], wanted: Path, end: float) -> Iterator[runner.Row]:
    """System by system, each row in the files before the next one begins. All have equal shares of the time,
    and half as much again of what others may need less."""
    for k, system in enumerate(systems):
        left = end - time.monotonic()
        share = left / (len(systems) - k) * (1 if k + 1 == len(systems) else 1.5)
        until = min(end, time.monotonic() + share)
        suite = [w for w in record.suite if system in w.cases]
        for row in measured(suite, system, wanted, until):
            if "answer" in row:
                record.answers.append((row, row.pop("answer")))
            record.add(row)
            if "kernels" not in row:
                yield row


def compared(record: Record, wanted: Path) -> Iterator[runner.Row]:
    """The rows whose answers were wrong, of those that were there before NumPy's."""
    for row, answer in record.answers:
        (workload,) = [w for w in record.suite if w.name == row["workload"]]
        expected = wanted / f"{workload.name}.json"
        if not expected.exists():
            row["note"] = "not compared: NumPy's answer was not there in time"
        elif note := agree(answer, json.loads(expected.read_text()), workload.tolerance):
            row |= {"problem": "wrong", "note": note}
        else:
            continue
        record.add(row)
        yield row


def measured(
    suite: Sequence[Workload], system: str, wanted: Path, until: float
) -> Iterator[runner.Row]:
    """A process for all rows; where one ends it or takes too long, another one goes on behind that row."""
    left = {w.name: w for w in suite}
    if left and (absent := runner.missing(suite[0].system(system))):
        for name in left:
            yield runner.row(name, system, (), ("absent", f"{absent} is missing"))
        return
    while left and time.monotonic() < until - 5:
        with Process(next(iter(left.values())).system(system), system, list(left)) as process:
            for line in process.lines(until, LIMIT):
                if "kernels" in line:
                    yield {"workload": line["row"], "system": system, "kernels": line["kernels"]}
                    continue
                workload = left.pop(line["row"])
                yield judged(workload, system, line, wanted)
            if left and process.why:
                name = next(iter(left))
                yield runner.row(name, system, (), ("failed", process.why))
                del left[name]
    for name in left:
        yield runner.row(name, system, (), ("skipped", "there was no time left"))


def judged(workload: Workload, system: str, line: dict[str, Any], wanted: Path) -> runner.Row:
    if "failed" in line:
        return runner.row(workload.name, system, (), ("failed", line["failed"]))
    expected, note = wanted / f"{workload.name}.json", None
    later = {} if expected.exists() else {"answer": line["answer"]}
    if not later:
        note = agree(line["answer"], json.loads(expected.read_text()), workload.tolerance)
    row = runner.row(workload.name, system, line["samples"], ("wrong", note) if note else None)
    return row | {"first_s": line["first"], **later}


class Process:
    """One that measures rows of a system and says a line for each."""

    def __init__(self, kind: System, system: str, names: Sequence[str]) -> None:
        self.why = ""
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the process)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu_system", system, ",".join(names)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=runner.ROOT,
            env=runner.environment(kind),
            start_new_session=True,
        )

    def lines(self, until: float, limit: float) -> Iterator[dict[str, Any]]:
        """Until it ends, or says nothing for too long."""
        assert self.process.stdout is not None
        while True:
            patience = min(limit, until - time.monotonic())
            timer = threading.Timer(max(0.1, patience), self.kill)
            timer.start()
            line = self.process.stdout.readline()
            late = not timer.is_alive()
            timer.cancel()
            if not line.endswith("\n"):
                self.errors.seek(0)
                said = [x for x in self.errors.read().splitlines() if x.strip()]
                self.why = (
                    f"took longer than {patience:.0f} s" if late else (said or ["it ended"])[-1]
                )
                return
            yield json.loads(line)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()
