"""Assignments to what NumPy would have made views: who writes one is told, and nobody else."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import AssignmentWarning
from tests.sessions import use


@contextmanager
def heard() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as found, use():
        warnings.simplefilter("always")
        yield found


def named(x: Any) -> None:
    row = x[0]
    row += 1


def in_a_loop(x: Any) -> None:
    for row in x:
        row *= 2


def of_a_slice(x: Any) -> None:
    part = x[1:, ::2]
    part[0] = 7


def of_a_view(x: Any) -> None:
    row = x[1:][0]
    row -= 1


def chained(x: Any) -> None:
    x[0][1] = 5


def chained_and_added(x: Any) -> None:
    x[0][1:] += 5


def handed_on(x: Any) -> None:
    def change(row: Any) -> None:
        row /= 2

    change(x[2])


def filled(x: Any) -> None:
    row = x[0]
    row[...] = 0


@pytest.mark.parametrize(
    "change",
    [named, in_a_loop, of_a_slice, of_a_view, chained, chained_and_added, handed_on, filled],
)
def test_what_numpy_writes_through_is_told(change: Callable[[Any], None]) -> None:
    x = np.ones((3, 4))
    change(x)
    assert (x != 1).any(), "NumPy's changes"
    with heard() as found:
        y = ost.ones((3, 4))
        change(y)
        np.testing.assert_array_equal(y, np.ones((3, 4)))
    assert found
    for one in found:
        assert one.category is AssignmentWarning
        assert one.filename == __file__
        text = Path(__file__).read_text().splitlines()[one.lineno - 1]
        assert "=" in text
        assert f"{Path(__file__).name}:{one.lineno}): got float64[" in str(one.message)
        assert "of float64[3,4]" in str(one.message) or "from float64[3,4]" in str(one.message)


def own_lines(x: Any) -> None:
    x[0] += 1
    x[1, 2:] *= 3
    x[x > 3] -= 1
    x += 1
    x[:] = x * 2
    x.T[0].copy()[0] = 5


def copies(x: Any) -> None:
    row = x[0].copy()
    row += 1
    row[0] = 2
    other = x[1] + 0
    other += 1
    rows = x[[0, 1]]
    rows += 1
    picked = x[x > 0]
    picked += 1


def of_what_is_gone(x: Any) -> None:
    row = (x * 2)[0]
    row += 1
    last = [x * 3][-1][1:]
    last[0] = 1


def numbers(x: Any) -> None:
    total = x[0, 0]
    total += x[1, 1]


def renamed(x: Any) -> None:
    row = x[0]
    row = row * 2
    row += 1


def in_attributes(x: Any) -> None:
    class Holder:
        def __init__(self) -> None:
            self.table = x * 1

    holder = Holder()
    holder.table[0] += 1
    holder.table += 1
    held = {"x": x * 1}
    held["x"][0] += 1
    held["x"] += 1


@pytest.mark.parametrize(
    "change", [own_lines, copies, of_what_is_gone, numbers, renamed, in_attributes]
)
def test_what_numpy_does_too_is_not_told(change: Callable[[Any], None]) -> None:
    x = np.ones((3, 4))
    change(x)
    with heard() as found:
        y = ost.ones((3, 4))
        change(y)
        gc.collect()
        np.testing.assert_array_equal(y, x)
    assert not found, [str(w.message) for w in found]


def test_it_is_told_once_at_a_line_and_not_to_libraries() -> None:
    with heard() as found:
        warnings.simplefilter("default", AssignmentWarning)
        y = ost.ones((3, 4))
        for k in range(3):
            row = y[k]
            row += 1
            row += 1  # which is no part of y any more
        assert len(found) == 1
        scope = {"y": y}
        code = "row = y[0]\nrow += 1"
        exec(compile(code, "/usr/lib/python3/site-packages/library.py", "exec"), scope)
        assert len(found) == 1
        exec(compile(code, "mine.py", "exec"), scope)
        assert len(found) == 2


def test_compiled_functions_and_gradients_are_not_told() -> None:
    with heard() as found:

        @ost.compile
        def f(x: Any) -> Any:
            row = x[0]
            row += 1
            return row.sum()

        f(ost.ones((3, 4)))
        ost.grad(f)(ost.ones((3, 4)))
        assert not found
