"""The command `ostinato`, also `python -m ostinato`."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from . import settings

_TUNE = """Run a script, and time what only timing can decide for the plans that it makes: which library
multiplies, how many rows a kernel takes at a time, whether operations are one kernel or several, one
thread or all. What is found is kept for this machine, and used by every later run.

    ostinato tune train.py --epochs 1
    ostinato tune --seconds 300 train.py

A run without this command does the same, for at most OSTINATO_TUNE_SECONDS (2) in all, and only for what
was not timed before; OSTINATO_TUNE=off never does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("ostinato", description="Plans that run again and again.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    tune = commands.add_parser(
        "tune", help="time a script's choices", description=_TUNE, formatter_class=plain
    )
    tune.add_argument("--seconds", type=_positive, default=60.0, help="at most so many (60)")
    tune.add_argument("script", help="a Python file")
    tune.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    asked = parser.parse_args(arguments)
    return _tune(asked.script, asked.arguments, asked.seconds)


def _positive(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text}: needed more than 0 seconds")
    return seconds


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
    """What timing showed, for people."""
    kept = settings.cache / "tuned" if settings.cache is not None else None
    where = f"kept in {kept}" if kept else "kept nowhere, since OSTINATO_CACHE is off"
    head = f"ostinato tune: {len(lines)} choices timed in {spent:.1f} s of {most:.0f}, {where}"
    if not lines:
        head += "; nothing that takes long enough has other ways"
    return "\n".join([head, *(f"  {line}" for line in lines)])
