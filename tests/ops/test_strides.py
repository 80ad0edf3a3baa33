"""Slices in steps and updates there are each other's adjoints: both are windows on one index, so on rows
in parts both are done where the rows lie, and what is sent is what lies elsewhere."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from ostinato.planner.seeing.explain import facts

import ostinato as ost
from tests.sessions import use

WORKERS = (2, 3, 4, 5)
WIDE = 2000  # columns: rows that are cheaper sent to a neighbour than to all


def collectives(f: Any) -> dict[str, int]:
    found: dict[str, int] = facts(f.plan)["collectives"]
    return found


def slices(draw: random.Random, size: int) -> slice:
    """Some slice of two elements or more, one way or the other."""
    while True:
        ends = [draw.choice([None, draw.randint(-size, size)]) for _ in range(2)]
        cut = slice(*ends, draw.choice([-3, -2, -1, 2, 3, 5]))
        if len(range(size)[cut]) > 1:
            return cut


def squares_of(cut: slice) -> Any:
    return lambda x: (x[cut] ** 2).sum()


def updating(cut: slice, mode: str) -> Any:
    return lambda x, v: getattr(x.at[cut], mode)(v)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_slice_and_its_gradient_go_where_the_rows_are(workers: int) -> None:
    draw = random.Random(workers)
    for _ in range(6):
        size = draw.randint(4 * workers, 40)
        cut, x = slices(draw, size), np.random.default_rng(0).normal(size=(size, WIDE))
        wanted = np.zeros_like(x)
        wanted[cut] = 2 * x[cut]
        with use((workers,)):
            f = ost.compile(ost.grad(squares_of(cut)))
            found = f(ost.asarray(x, split=0))
            np.testing.assert_allclose(np.asarray(found), wanted, err_msg=f"{cut} of {size}")
        assert {*collectives(f)} <= {"halo"}, f"{cut} of {size}: {collectives(f)}"


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("step", [2, 3])
def test_nothing_is_sent_where_parts_are_even(workers: int, step: int) -> None:
    x = np.random.default_rng(0).normal(size=(workers * step * 2, 3))
    with use((workers,)):
        f = ost.compile(ost.grad(lambda x: (x[::step] ** 2).sum()))
        found = np.asarray(f(ost.asarray(x, split=0)))
    np.testing.assert_allclose(found[::step], 2 * x[::step])
    assert not found[1::step].any()
    assert not collectives(f)


@pytest.mark.parametrize("mode", ["set", "add", "multiply", "min", "max"])
def test_updates_in_steps(mode: str) -> None:
    """Of rows in parts, with what lies in parts, too."""
    draw = random.Random(mode)
    for workers in WORKERS:
        size = draw.randint(4 * workers, 40)
        cut = slices(draw, size)
        r = np.random.default_rng(workers)
        x, v = r.normal(size=(size, WIDE)), r.normal(size=(len(range(size)[cut]), WIDE))
        wanted = x.copy()
        numpys = {"set": lambda _, b: b, "min": np.minimum, "max": np.maximum}
        wanted[cut] = numpys.get(mode, getattr(np, mode, None))(x[cut], v)
        with use((workers,)):
            f = ost.compile(updating(cut, mode))
            found = f(ost.asarray(x, split=0), ost.asarray(v, split=0))
            np.testing.assert_allclose(np.asarray(found), wanted, err_msg=f"{cut} of {size}")
        assert {*collectives(f)} <= {"halo"}, f"{cut} of {size}: {collectives(f)}"
