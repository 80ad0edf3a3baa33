"""Runs suites: each system in processes of its own, all of them in turn, so that whatever else the
machine does hits all alike.

For a workload all systems are started and made ready, one by one, and their answers compared with
what is expected. Then they are asked for samples one after the other, round after round, while those that
are not asked are stopped: some wait awake, and would take the processors from the others. This
happens `repeat` times, with new processes each time; a row is the median of all samples. Every
process has the same two processors and as many threads."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import machine
from .workload import SYSTEMS, System, Workload, agree, split_name, summary, workloads

ROOT = Path(__file__).resolve().parent.parent
REPEAT = 2
ROUNDS = 20

Row = dict[str, Any]


def run(
    module: str,
    only: Sequence[str] = (),
    repeat: int = REPEAT,
    rounds: int = ROUNDS,
    which: Sequence[str] = (),
    until: float | None = None,
) -> Iterator[Row]:
    """The rows of a suite, workload by workload, as long as there is time (`until`, of the monotonic
    clock); who still runs then is ended, and what fails takes nobody else with it."""
    told: set[str] = set()
    for workload in workloads(importlib.import_module(module)):
        if which and not any(workload.name.startswith(w) for w in which):
            continue
        names = [n for n in workload.cases if not only or {n, split_name(n)[0]} & {*only}]
        absent = {n: missing(workload.system(n)) for n in names}
        for n in names:
            if absent[n] and split_name(n)[0] not in told:
                told.add(split_name(n)[0])
                yield absence(split_name(n)[0], absent[n], workload.system(n))
        names = [n for n in names if not absent[n]]
        if until is not None and time.monotonic() > until:
            for n in names:
                yield row(workload.name, n, (), ("skipped", "there was no time left"))
            continue
        try:
            yield from run_workload(module, workload, names, repeat, rounds, until)
        except Exception as error:  # of what is expected, or of a machine that starts no process
            why = f"{type(error).__name__}: {error}"[:300]
            for n in names:
                yield row(workload.name, n, (), ("failed", why))


def run_workload(
    module: str,
    workload: Workload,
    names: Sequence[str],
    repeat: int,
    rounds: int,
    until: float | None = None,
) -> Iterator[Row]:
    """One row for each case, when all of them have ended."""
    wanted = summary(workload.expect())
    samples: dict[str, list[float]] = {n: [] for n in names}
    problems: dict[str, tuple[str, str]] = {}
    notes: dict[str, str] = {}
    for _ in range(repeat):
        children: dict[str, Child] = {}
        try:
            for n in names:
                if n in problems:
                    continue
                children[n] = Child(module, workload, n, until)
                problem = children[n].ready(wanted)
                if problem:
                    problems[n] = problem
                children[n].signal(signal.SIGSTOP)
            going = [n for n in children if n not in problems]
            _sample(children, going, samples, problems, notes, rounds, workload.seconds / repeat)
        finally:
            for child in children.values():
                child.signal(signal.SIGCONT)
                child.leave()
            for child in children.values():
                child.close()
    for n in names:
        yield row(workload.name, n, samples[n], problems.get(n), notes.get(n, ""))


def _sample(
    children: dict[str, Child],
    going: Sequence[str],
    samples: dict[str, list[float]],
    problems: dict[str, tuple[str, str]],
    notes: dict[str, str],
    rounds: int,
    seconds: float,
) -> None:
    """Rounds of one sample each. Who has used up its time sits out the rest."""
    spent = dict.fromkeys(going, 0.0)
    for k in range(rounds):
        for n in (*going[k % len(going) :], *going[: k % len(going)]) if going else ():
            if n in problems or (k and spent[n] >= seconds):
                continue
            children[n].signal(signal.SIGCONT)
            start = time.perf_counter()
            found = children[n].ask("sample")
            spent[n] += time.perf_counter() - start
            children[n].signal(signal.SIGSTOP)
            if "seconds" in found:
                samples[n].append(found["seconds"])
                notes[n] = found.get("note", "")
            else:
                problems[n] = ("failed", found.get("failed", "no answer"))


def row(
    workload: str,
    name: str,
    samples: Sequence[float],
    problem: tuple[str, str] | None,
    note: str = "",
) -> Row:
    system, variant = split_name(name)
    good = samples if problem is None else ()
    made: Row = {
        "workload": workload,
        "system": system,
        "variant": variant,
        "median_s": statistics.median(good) if good else None,
        "min_s": min(good) if good else None,
        "max_s": max(good) if good else None,
        "n": len(good),
    }
    if problem is not None:
        made["problem"], made["note"] = problem
    elif note:
        made["note"] = note
    return made


def absence(name: str, module: str, system: System) -> Row:
    return row("", name, (), ("absent", f"{module} is missing: {system.install}"))


def missing(needs: System) -> str:
    """What a system needs and does not find; empty if it has all."""
    for name in needs.modules:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return name
    return "" if not needs.launch or program(needs.launch[0]) else needs.launch[0]


def program(name: str) -> str | None:
    """A program beside this Python, or else on the path."""
    beside = os.path.dirname(sys.executable)
    return shutil.which(name, path=os.pathsep.join((beside, os.environ.get("PATH", ""))))


# -- processes -----------------------------------------------------------------------------
class Child:
    """A process that measures one case when it is asked."""

    def __init__(
        self, module: str, workload: Workload, name: str, until: float | None = None
    ) -> None:
        system = workload.system(name)
        self.workload, self.name, self.until = workload, name, until
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the process)
        with settled():
            self.process = subprocess.Popen(
                command(system, "-m", "benchmarks.child", module, workload.name, name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                cwd=ROOT,
                env=environment(system),
                start_new_session=True,
            )

    def ready(self, wanted: dict[str, Any]) -> tuple[str, str] | None:
        """Wait for it; the problem if there is one."""
        first = self.hear()
        if "answer" in first:
            most = self.workload.tolerances.get(self.name, self.workload.tolerance)
            note = agree(first["answer"], wanted, most)
            return ("wrong", note) if note else None
        if "absent" in first:
            return "absent", first["absent"]
        return "failed", first.get("failed", "no answer")

    def ask(self, what: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
        except OSError:
            return {"failed": self.last_words()}
        return self.hear()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        limit = self.workload.limit
        if self.until is not None:
            limit = min(limit, max(0.0, self.until - time.monotonic()))
        timer = threading.Timer(limit, self.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            late = not timer.is_alive()
            timer.cancel()
        if late:
            return {"failed": f"took longer than {limit:.0f} s"}
        try:
            return dict(json.loads(line))
        except ValueError:
            return {"failed": self.last_words()}

    def last_words(self) -> str:
        self.errors.seek(0)
        lines = [line for line in self.errors.read().splitlines() if line.strip()]
        return lines[-1][:300] if lines else "ended without a word"

    def signal(self, number: int) -> None:
        """To this process and all that came of it, in whatever session they are."""
        for process in family(self.process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)

    def kill(self) -> None:
        """This process and those that it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()

    def leave(self) -> None:
        """Ask it to end."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def close(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps it
            self.process.wait(timeout=10)
        self.process.stdout.close()
        self.errors.close()


def family(process: int) -> list[int]:
    """A process and its descendants; alone where the system does not tell."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = entry.read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(entry.parent.name))
    found = [process]
    for member in found:  # grows meanwhile
        found += children.get(member, ())
    return found


def command(system: System, *args: str) -> list[str]:
    """The command that starts Python for a system."""
    launch = [program(system.launch[0]) or "", *system.launch[1:]] if system.launch else []
    return [*launch, sys.executable, *args]


def environment(system: System) -> dict[str, str]:
    """The variables of a system's process. Thread counts have to be known before it imports."""
    made = {**os.environ, **threads(min(system.threads, machine.THREADS)), **system.variables}
    made["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return made


def threads(n: int) -> dict[str, str]:
    """What tells libraries how many threads to use; XLA reads NPROC."""
    names = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "NUMBA", "BLIS", "VECLIB_MAXIMUM")
    return {**{f"{name}_NUM_THREADS": str(n) for name in names}, "NPROC": str(machine.THREADS)}


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """What is started within stays on the processors that we measure on."""
    cpus = machine.two_cpus()
    before = os.sched_getaffinity(0) if cpus else cpus
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, before)


def probe() -> dict[str, Any]:
    """The machine as systems see it."""
    with settled():
        made = subprocess.run(
            [sys.executable, "-m", "benchmarks.machine"],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
            cwd=ROOT,
            env={**machine.fast_products(), **environment(SYSTEMS["numpy"])},
        )
    return dict(json.loads(made.stdout))
