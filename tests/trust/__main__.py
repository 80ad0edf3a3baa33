"""`python -m tests.trust [--thorough] [CLASS ...]`: a line for each class of promises, with what was counted.

A class is one of the files `tests/trust/test_*.py`, whose docstring's first line says what it promises; what its
tests tally is added up. `--thorough` runs as many trials as an audit would, which takes much longer."""

from __future__ import annotations

import argparse
import ast
import collections
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent


class Counter:
    """A plugin of pytest: what passed, failed and was skipped, and what tests tallied."""

    def __init__(self) -> None:
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.tallies: collections.Counter[str] = collections.Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if report.outcome == "failed":
            print(f"{report.nodeid} ({report.when})\n{report.longreprtext[-4000:]}", flush=True)
        if report.when == "call":
            for what, count in report.user_properties:
                self.tallies[what] += count


def promise(path: Path) -> str:
    """The first line of a file's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or path.stem).splitlines()[0].rstrip(".")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trust", description=__doc__)
    parser.add_argument("--thorough", action="store_true", help="as many trials as an audit needs")
    names = [p.stem.removeprefix("test_") for p in sorted(HERE.glob("test_*.py"))]
    parser.add_argument("classes", nargs="*", metavar="CLASS", help=", ".join(names))
    asked = parser.parse_args()
    if unknown := [n for n in asked.classes if n not in names]:
        parser.error(f"no class {unknown[0]!r}; there are {', '.join(names)}")
    if asked.thorough:
        os.environ["OSTINATO_TRUST"] = "thorough"
    failed = 0
    for name in asked.classes or names:
        path, counter, start = HERE / f"test_{name}.py", Counter(), time.monotonic()
        code = pytest.main(
            [str(path), "-p", "no:terminal", "-o", "addopts=--strict-markers -p no:cacheprovider"],
            [counter],
        )
        bad = code not in (0, 5) or counter.outcomes["failed"] > 0
        failed += bad
        counts = [
            f"{n} tests" if w == "passed" else f"{n} {w}" for w, n in counter.outcomes.items()
        ]
        counts += [f"{n:,} {what}" for what, n in counter.tallies.items()]
        print(
            f"{'FAILED' if bad else 'ok    '} {name:<12} {promise(path)}: {', '.join(counts)}"
            f" in {time.monotonic() - start:.0f} s",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
