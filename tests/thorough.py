"""How much a run tries: OSTINATO_TRUST=thorough all, =quick the least (`make quick`), otherwise a part.

Random tests draw a sixth of their examples: `settings(max_examples=few(75))`. Of cases that differ in what does
not matter to each other (dtypes of a factorization, meshes of a gradient, halves that are computed as float32),
each has its turn with some of the others: `some(CASES, of=3)`, `turns(MESHES, SHAPES, KINDS)`.

A quick run starts no process and writes no file: it leaves out tests that ask for a folder, and files of tests that
name what starts processes; and tests of which tests/seconds.txt says that they are long. Of a test's cases it takes the
first and one in eight of the others."""

from __future__ import annotations

import ast
import itertools
import os
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
THOROUGH = os.environ.get("OSTINATO_TRUST") == "thorough"
QUICK = os.environ.get("OSTINATO_TRUST") == "quick"
ONE_IN = 8  # cases of a test in a quick run
FOLDERS = {"tmp_path", "tmp_path_factory"}
STARTS = {"subprocess", "multiprocessing", "clusters", "nvrtc", "cuda_host", "LocalCluster", "fork"}


def few(count: int) -> int:
    """A sixth of them, or in a quick run a twelfth, unless a thorough run was asked for."""
    return count if THOROUGH else -(-count // (12 if QUICK else 6))


def some(cases: Sequence[T], of: int = 3, first: int = 0) -> list[T]:
    """One of so many of them, unless a thorough run was asked for."""
    return list(cases if THOROUGH else cases[first % of :: of])


def turns(first: Sequence[Any], second: Sequence[Any], *others: Sequence[Any]) -> list[Any]:
    """Each of the first with each of the second, and the others in turn; in a thorough run, all with all."""
    if THOROUGH:
        return list(itertools.product(first, second, *others))
    return [
        (a, b, *(other[(j + k) % len(other)] for other in others))
        for j, a in enumerate(first)
        for k, b in enumerate(second)
    ]


@cache
def starts_processes(path: Path) -> bool:
    """Whether the text of a file of tests names what starts processes or compilers."""
    names, text = set[str](), path.read_text()
    if not any(name in text for name in STARTS):
        return False
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {part for a in node.names for part in a.name.split(".")}
            names |= set((getattr(node, "module", None) or "").split("."))
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return bool(names & STARTS)


def is_quick(item: Any) -> bool:
    """Whether a test without its cases belongs to a quick run."""
    marks = any(item.get_closest_marker(name) for name in ("slow", "install"))
    return not (marks or FOLDERS & set(item.fixturenames) or starts_processes(item.path))


def quick(items: Iterable[Any], long: Container[str]) -> list[Any]:
    """Of each test that is quick, and not among the long ones, the first case and one in eight of the others."""
    found, seen = [], Counter[str]()
    for item in items:
        test = item.nodeid.partition("[")[0]
        seen[test] += 1
        if seen[test] % ONE_IN == 1 and test.removeprefix("tests/") not in long and is_quick(item):
            found.append(item)
    return found
