"""Where parts of sorted runs end: as sorting all of them says, by few looks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.merging import cut

KINDS = {
    "any": lambda rng, size: rng.integers(0, 1 << 62, size),
    "few keys": lambda rng, size: rng.integers(0, 4, size),
    "one key": lambda rng, size: np.full(size, 7),
    "in order already": lambda rng, size: np.arange(size),
    "the other way around": lambda rng, size: np.arange(size)[::-1],
}


class Seen:
    """A row of keys that counts how often it is looked at."""

    def __init__(self, keys: Any) -> None:
        self.keys, self.looks = keys, 0

    def __getitem__(self, places: Any) -> Any:
        self.looks += 1
        return self.keys[places]


def runs_of(kind: str, lengths: list[int]) -> tuple[Any, Any]:
    """Keys in sorted runs, and the runs' bounds."""
    bounds = np.cumsum([0, *lengths])
    keys = KINDS[kind](np.random.default_rng(0), bounds[-1]).astype("u8")
    for lo, hi in itertools.pairwise(bounds):
        keys[lo:hi].sort()
    return keys, bounds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [[1], [9], [0, 3, 0, 1, 7], [40] * 30], ids=len)
def test_parts_end_where_sorting_says(kind: str, lengths: list[int]) -> None:
    """Of equal keys those of earlier runs come first, and within a run those before."""
    keys, bounds = runs_of(kind, lengths)
    run = np.repeat(np.arange(len(lengths)), lengths)[np.argsort(keys, kind="stable")]
    for left in range(0, len(keys) + 1, max(1, len(keys) // 50)):
        ends = cut(keys, bounds[:-1], bounds[1:], left)
        expected = bounds[:-1] + np.bincount(run[:left], minlength=len(lengths))
        np.testing.assert_array_equal(ends, expected)


def test_many_runs_take_no_more_looks_than_few() -> None:
    looks = []
    for count in (4, 400):
        keys, bounds = runs_of("any", [500] * count)
        row = Seen(keys)
        cut(row, bounds[:-1], bounds[1:], len(keys) // 3)
        looks.append(row.looks)
    assert looks[1] <= 3 * looks[0], "of a hundred times as many runs"
