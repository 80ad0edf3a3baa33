"""Seconds of processor that tests take, children's too, by the last record (tests/seconds.txt): whole files, by which
`make test` begins with the longest, and single tests that are too long for a quick run.

    OSTINATO_TEST_SECONDS=raw.txt make test        # appends each test's to raw.txt
    python -m tests.seconds raw.txt                # writes what the record keeps of these

Files that did not run stay as they were, if they are still there: so some may be timed alone."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

RECORD = Path(__file__).with_suffix(".txt")
FILES, TESTS = 3.0, 0.25  # seconds from which files are in the record, and tests


def recorded() -> dict[str, float]:
    """Seconds of files (`ops/test_ops.py`) and of the longest case of tests (`ops/test_ops.py::test_scalar`)."""
    lines = (line.split() for line in RECORD.read_text().splitlines())
    return {name: float(seconds) for seconds, name in lines}


def used() -> float:
    return sum(os.times()[:4])


def note(name: str, seconds: float) -> None:
    with open(os.environ["OSTINATO_TEST_SECONDS"], "a") as file:
        file.write(f"{seconds:.2f} {name}\n")


def condensed(raw: str, before: dict[str, float] | None = None) -> str:
    """What the record keeps of lines such as `0.31 tests/test_site.py::test_page[3]`, and of one `before` about other
    files: the longest first, files before tests."""
    files, tests = Counter[str](), dict[str, float]()
    for line in raw.splitlines():
        text, _, name = line.partition(" ")
        path, _, test = name.removeprefix("tests/").partition("::")
        files[path] += float(text)
        key = f"{path}::{test.partition('[')[0]}"
        tests[key] = max(tests.get(key, 0.0), float(text))
    others = {n: s for n, s in (before or {}).items() if (path := n.partition("::")[0]) not in files
              and (RECORD.parent / path).exists()}  # fmt: skip
    files.update({n: s for n, s in others.items() if "::" not in n})
    tests |= {n: s for n, s in others.items() if "::" in n}
    kept = [(s, n) for n, s in files.most_common() if s >= FILES]
    kept += sorted(((s, n) for n, s in tests.items() if s >= TESTS), key=lambda one: one[1])
    return "".join(f"{seconds:.2f} {name}\n" for seconds, name in kept)


if __name__ == "__main__":
    RECORD.write_text(condensed(Path(sys.argv[1]).read_text(), recorded()))
