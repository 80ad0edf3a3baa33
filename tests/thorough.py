"""What only a run with OSTINATO_TRUST=thorough does; each other run does a part of it.

Random tests draw a third of their examples: `settings(max_examples=few(75))`. Of cases that differ in what does
not matter to each other (dtypes of a factorization, meshes of a gradient, halves that are computed as float32),
each has its turn with some of the others: `some(CASES, of=3)`, `turns(MESHES, SHAPES, KINDS)`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")
THOROUGH = os.environ.get("OSTINATO_TRUST") == "thorough"


def few(count: int) -> int:
    """A third of them, unless a thorough run was asked for."""
    return count if THOROUGH else -(-count // 3)


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
