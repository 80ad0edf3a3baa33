"""The command `ostinato`, also `python -m ostinato`."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import command_cache, command_calibrate, command_info, command_run, settings
from .errors import OstinatoError

PLAIN = argparse.RawDescriptionHelpFormatter
ROOT = Path(__file__).resolve().parents[1]

_ABOUT = """Plans that run again and again.

    ostinato info                        what is installed, and what is missing
    ostinato run -n 4 train.py           a script on four processes
    ostinato worker tcp://host:8786 -n 4 workers for a Dask cluster that is running
    ostinato cache list                  plans that are kept on disk
    ostinato tune train.py               time what only timing can decide
    ostinato calibrate                   measure what this machine can do
    ostinato bench dispatch              measure against other libraries

Each says more with --help."""

_TUNE = """Run a script, and time what only timing can decide for the plans that it makes: which library
multiplies, how many rows a kernel takes at a time, whether operations are one kernel or several, one
thread or all. What is found is kept for this machine, and used by every later run.

    ostinato tune train.py --epochs 1
    ostinato tune --seconds 300 train.py

A run without this command does the same, for at most OSTINATO_TUNE_SECONDS (2) in all, and only for what
was not timed before; OSTINATO_TUNE=off never does."""

_BENCH = """Measure against other libraries, as `python -m benchmarks` in a checkout does, which is needed.

    ostinato bench                          the suites that there are
    ostinato bench cluster --workload null  what an order costs on two processes"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status. If who reads its output leaves, as `head` does, it ends."""
    try:
        try:
            return _main(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 128 + signal.SIGPIPE


def commands() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from ostinato import __version__

    parser = argparse.ArgumentParser("ostinato", description=_ABOUT, formatter_class=PLAIN)
    parser.add_argument("--version", action="version", version=f"ostinato {__version__}")
    below = parser.add_subparsers(dest="command", metavar="command")
    command_info.add(below)
    command_run.add(below)
    command_cache.add(below)
    command_calibrate.add(below)
    tune = below.add_parser(
        "tune", help="time a script's choices", description=_TUNE, formatter_class=PLAIN
    )
    tune.add_argument("--seconds", type=_seconds, default=60.0, help="at most so many (60)")
    tune.add_argument("script", help="a Python file")
    rest = tune.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    rest.required = False  # so that nobody is told to give some
    tune.set_defaults(do=lambda a: _tune(a.script, a.arguments, a.seconds))
    bench = below.add_parser(
        "bench", help="measure against others", description=_BENCH, formatter_class=PLAIN
    )
    bench.add_argument("arguments", nargs=argparse.REMAINDER, help="of python -m benchmarks")
    bench.set_defaults(do=lambda a: _bench(a.arguments))
    return parser


def _main(arguments: Sequence[str] | None) -> int:
    parser = commands()
    asked = parser.parse_args(arguments)
    if asked.command is None:
        parser.print_help()
        return 0
    try:
        return int(asked.do(asked))
    except OstinatoError as error:
        print(f"ostinato {asked.command}: {error}", file=sys.stderr)
        return 2


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise argparse.ArgumentTypeError(f"got {text}; needed a number of seconds above 0, such as 300")


def _bench(arguments: Sequence[str]) -> int:
    if not (ROOT / "benchmarks" / "__main__.py").is_file():
        print(
            "ostinato bench: the benchmarks are part of a checkout, and this is an installed package; "
            "clone the repository and run `python -m benchmarks` in it",
            file=sys.stderr,
        )
        return 2
    return subprocess.call([sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT)


def _tune(script: str, arguments: Sequence[str], seconds: float) -> int:
    from .sessions import budget, timed

    if not Path(script).is_file():
        print(f"ostinato tune: {script} is no file; give a Python script", file=sys.stderr)
        return 2
    settings.tune, settings.tune_again = "on", True
    budget.seconds, budget.site = seconds, seconds / 4
    before, sys.argv = sys.argv, [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = before
        sys.path.pop(0)
        print(_found(timed(), budget.spent, seconds), file=sys.stderr)
    return 0


def _found(lines: Sequence[str], spent: float, most: float) -> str:
    """Describe what timing showed."""
    from ostinato.ops.core import disk_cache

    there = disk_cache.open_cache(settings.cache).where("tuned")
    where = f"kept in {there}" if there else "kept nowhere, since OSTINATO_CACHE is off"
    head = f"ostinato tune: {len(lines)} choices timed in {spent:.1f} s of {most:.0f}, {where}"
    if not lines:
        head += "; nothing that takes long enough has other ways"
    return "\n".join([head, *(f"  {line}" for line in lines)])
