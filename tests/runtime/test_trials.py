"""Timing in turn: who is slow drops out, who fails is no way, and time that is up is up."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from ostinato.planner.plan import Program
from ostinato.runtime import trials as module
from ostinato.runtime.trials import ROUNDS, TRUSTED, trials

import ostinato as ost
from tests.sessions import use


def program(function: Any, n: int = 20_000) -> Program:
    with use():
        return ost.compile(function).plan_for(ost.zeros(n, dtype=ost.float32)).program


def slow(x: Any) -> Any:
    return ost.repeat(200, lambda y: ost.sin(y), x)


def test_rounds_have_all_that_are_left() -> None:
    found = trials([program(lambda x: x + 1), program(slow), program(lambda x: x + 2)], 5.0, 1)
    assert TRUSTED < len(found) <= ROUNDS
    assert all(0 < row[k] < math.inf for row in found for k in (0, 2))
    assert all(math.isfinite(row[1]) == (k < TRUSTED) for k, row in enumerate(found))


def test_the_first_stays_however_slow() -> None:
    found = trials([program(slow), program(lambda x: x + 1)], 5.0, 1)
    assert all(math.isfinite(row[0]) for row in found)


def test_who_fails_is_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = program(lambda x: x + 1), program(slow)
    bind = module.bind

    def broken(p: Program, *rest: Any) -> Any:
        if p is bad:
            raise RuntimeError("no")
        return bind(p, *rest)

    monkeypatch.setattr(module, "bind", broken)
    found = trials([good, bad, program(lambda x: x + 2)], 2.0, 1)
    assert found
    assert all(row[1] == math.inf and row[2] < math.inf for row in found)
    assert trials([bad, good], 2.0, 1) == []
    assert trials([good, bad], 2.0, 1) == []


def test_without_time_there_are_no_rounds() -> None:
    assert trials([program(slow), program(slow)], 0.0, 1) == []
    start = time.perf_counter()
    many = [program(slow, 200_000)] * 40
    assert len(trials(many, 0.05, 1)) < ROUNDS
    assert time.perf_counter() - start < 20  # not 40 programs, 25 rounds
