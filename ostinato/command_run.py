"""`ostinato run` and `ostinato worker`: processes under mpiexec, that end with this command."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ostinato.runtime.crew import preload
from ostinato.runtime.crew.keeper import FOLDER, Job

from . import settings
from .cluster import NEEDS, check_installed, home, mpiexec

_RUN = """Run a script on several processes. It calls ost.connect(): there the first process goes on and works,
too, and the others serve it. The exit status is the script's; Ctrl-C ends all.

    ostinato run -n 4 train.py --epochs 3
    ostinato run -n 4 --stats train.py

While it runs, a terminal shows a line per plan (pip install rich): its id, the function, how often it ran,
and how long a run took. --stats prints these lines at the end, without a terminal, too."""

_WORKER = """Start workers of a Dask cluster that is running, under one mpiexec, so that they reach each other
by MPI. A program then attaches with ost.connect("tcp://...") or ost.connect(client).

    dask scheduler --host 127.0.0.1 --port 8786
    ostinato worker tcp://127.0.0.1:8786 -n 4
    ostinato worker --scheduler-file scheduler.json -n 4"""

KINDLY = 4.0  # seconds to end, by each of two signals, before being killed
EVERY = 0.25  # seconds between two looks at the counters
AFTER = 2.0  # seconds for the script to say first that it lost a worker
LOOK = 4  # of these between two looks whether a process was stopped


def add(commands: Any) -> None:
    plain = argparse.RawDescriptionHelpFormatter
    run = commands.add_parser(
        "run", help="a script on several processes", description=_RUN, formatter_class=plain
    )
    run.add_argument("-n", type=_count, default=os.cpu_count() or 1, help="processes (all cores)")
    run.add_argument("--stats", action="store_true", help="print the plans at the end")
    run.add_argument("script", help="a Python file")
    rest = run.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    rest.required = False  # so that nobody is told to give some
    run.set_defaults(do=lambda a: run_script(a.n, a.script, a.arguments, a.stats))
    worker = commands.add_parser(
        "worker", help="workers of a Dask cluster", description=_WORKER, formatter_class=plain
    )
    worker.add_argument("address", nargs="?", help="of the scheduler, e.g. tcp://10.0.0.1:8786")
    worker.add_argument("--scheduler-file", help="in which the scheduler wrote its address")
    worker.add_argument("--interface", help="of the network to use, e.g. ib0")
    worker.add_argument("-n", type=_count, default=os.cpu_count() or 1, help="workers (all cores)")
    worker.set_defaults(do=lambda a: start_workers(a.n, a.address, a.scheduler_file, a.interface))


def _count(text: str) -> int:
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"got {text}; needed a whole number of 1 or more")


def _refused(command: str, why: str) -> int:
    print(f"ostinato {command}: {why}", file=sys.stderr)
    return 2


# -- a script ------------------------------------------------------------------------------
_KILLED = (signal.SIGKILL, 128 + signal.SIGKILL)  # a job's status when one of its processes was
_WORDS = (
    "ostinato run: a process was killed, perhaps for want of memory, and the job is over; what its workers "
    "held is lost: start again (a checkpoint keeps values)."
)

_STOPPED = (
    "ostinato: process {} was stopped for {:g} s, and the job is over; what its workers held is lost: start "
    "again (a checkpoint keeps values)."
)


# Launchers make one status of those of all processes: 11 of one that SIGINT ended and one that was killed.
# A shell around the first says which is the script's; what signals ask for is asked of both.
_SAYS = f'trap : INT TERM HUP USR1; "$@"; said=$?; echo $said > "${FOLDER}/status"; exit $said'


def run_script(count: int, script: str, arguments: Sequence[str], stats: bool) -> int:
    if not Path(script).is_file():
        return _refused("run", f"{script} is no file; give a Python script")
    python = [sys.executable, script, *arguments]
    others = (":", "-n", str(count - 1), *python) if count > 1 else ()
    command = [*mpiexec(), "-n", "1", "sh", "-c", _SAYS, "sh", *python, *others]
    with _job("run") as job:
        counters = job.folder / "plans.json"
        with _shown(counters) as show:
            status, was_asked = _attend(job, command, {"OSTINATO_WATCH": str(counters)}, show)
        if status in _KILLED:  # mpich's launcher may have ended the script before it could tell
            print(_WORDS, file=sys.stderr)
        if not was_asked:
            with contextlib.suppress(OSError, ValueError):  # of a shell that was killed, too
                status = int((job.folder / "status").read_text())
        if stats:
            print(format_plans(_read(counters)), file=sys.stderr)
    return status


def _read(counters: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads(counters.read_text()))
    except (OSError, ValueError):
        return []


HEADS = ("plan", "function", "runs", "a run")


def cells(plans: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Cells of the table, those that took longest first."""
    for p in sorted(plans, key=lambda p: -p["runs"] * p["seconds"]):
        yield p["plan"][:12], p["name"], f"{p['runs']:,}", _time(p["seconds"])


def _time(seconds: float) -> str:
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def format_plans(plans: Sequence[dict[str, Any]]) -> str:
    """As text."""
    if not plans:
        return "ostinato run: no plan ran"
    rows = [HEADS, *cells(plans)]
    wide = [max(len(row[k]) for row in rows) for k in range(4)]
    return "\n".join(
        f"{a:<{wide[0]}}  {b:<{wide[1]}}  {c:>{wide[2]}}  {d:>{wide[3]}}" for a, b, c, d in rows
    )


@contextlib.contextmanager
def _shown(counters: Path) -> Iterator[Callable[[], None]]:
    """Make a function to call now and then: it draws the lines anew, where somebody sees them."""
    try:
        if not sys.stderr.isatty():
            raise ImportError
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table
    except ImportError:
        yield lambda: None
        return

    def table() -> Any:
        made = Table(box=None)
        for k, head in enumerate(HEADS):
            made.add_column(head, justify="right" if k > 1 else "left")
        for row in cells(_read(counters)):
            made.add_row(*row)
        return made

    with Live(console=Console(stderr=True), auto_refresh=False, redirect_stdout=False) as live:
        yield lambda: live.update(table(), refresh=True)
        live.update(table(), refresh=True)


# -- workers -------------------------------------------------------------------------------
def start_workers(count: int, address: str | None, file: str | None, interface: str | None) -> int:
    if (address is None) == (file is None):
        return _refused("worker", "give the scheduler's address, or --scheduler-file FILE")
    if address is not None and "://" not in address:
        port = "" if address.rpartition(":")[2].isdecimal() else ":8786"
        return _refused("worker", f"got {address}; needed an address such as tcp://{address}{port}")
    if file is not None and not Path(file).is_file():
        return _refused("worker", f"{file} is no file; the scheduler has not written it")
    check_installed("ostinato worker", NEEDS)
    command = [
        *mpiexec(),
        *("-n", str(count), sys.executable, "-m", "dask_mpi.cli"),
        *([address] if address is not None else ["--scheduler-file", str(file)]),
        *("--no-scheduler", "--worker-class", "distributed.Worker", "--nthreads", "1"),
        *("--memory-limit", "0", "--name", f"ostinato-{os.getpid()}"),
        *(("--interface", interface) if interface is not None else ()),
    ]
    with _job("worker") as job:
        return _attend(job, command, preload.environment())[0]


# -- both ----------------------------------------------------------------------------------
@contextlib.contextmanager
def _job(name: str) -> Iterator[Job]:
    """Processes of which nothing is left."""
    job = Job(name)
    try:
        yield job
    finally:
        job.leave()


def _attend(
    job: Job, command: Sequence[str], more: dict[str, str], show: Callable[[], None] = lambda: None
) -> tuple[int, bool]:
    """Run to the end, or until somebody wants an end; the exit status as a shell has it, and whether
    somebody did."""
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    path = [home(), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)} | more
    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    status: int | None = None
    looks, limit = itertools.count(1), settings.heartbeat + AFTER
    try:
        job.begin(command, environment)
        job.start()
        while not asked and (status := job.poll(EVERY)) is None:
            show()
            if next(looks) % LOOK == 0 and (stopped := job.stopped(limit)) is not None:
                print(_STOPPED.format(stopped, limit), file=sys.stderr)
                job.end((signal.SIGTERM, EVERY))
                return 1, True
        show()
        return (128 + asked[0], True) if asked else (int(status or 0), False)
    finally:
        if status is None or status in _KILLED:
            job.end((signal.SIGINT, KINDLY), (signal.SIGTERM, KINDLY))
        for number, handler in before.items():
            signal.signal(number, handler)
