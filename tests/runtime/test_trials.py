"""Timing in turn: who is slow drops out, who fails is no way, and time that is up is up."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from ostinato.ops.cpu.cpu_device import CPU
from ostinato.planner.plan import Program
from ostinato.runtime import timing as module
from ostinato.runtime.timing import ROUNDS, TRUSTED, trials

import ostinato as ost
from tests.sessions import use


def program(function: Any, n: int = 20_000) -> Program:
    with use():
        return ost.compile(function).plan_for(ost.zeros(n, dtype=ost.float32)).program


def slow(x: Any) -> Any:
    return ost.repeat(200, lambda y: ost.sin(y), x)


def test_rounds_have_all_that_are_left() -> None:
    found = trials([program(lambda x: x + 1), program(slow), program(lambda x: x + 2)], 5.0, 1, CPU)
    assert TRUSTED < len(found) <= ROUNDS
    assert all(0 < row[k] < math.inf for row in found for k in (0, 2))
    assert all(math.isfinite(row[1]) == (k < TRUSTED) for k, row in enumerate(found))


def test_the_first_stays_however_slow() -> None:
    found = trials([program(slow), program(lambda x: x + 1)], 5.0, 1, CPU)
    assert all(math.isfinite(row[0]) for row in found)


def test_who_fails_is_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = program(lambda x: x + 1), program(slow)
    bind = module.bind

    def broken(p: Program, *rest: Any) -> Any:
        if p is bad:
            raise RuntimeError("no")
        return bind(p, *rest)

    monkeypatch.setattr(module, "bind", broken)
    found = trials([good, bad, program(lambda x: x + 2)], 2.0, 1, CPU)
    assert found
    assert all(row[1] == math.inf and row[2] < math.inf for row in found)
    assert trials([bad, good], 2.0, 1, CPU) == []
    assert trials([good, bad], 2.0, 1, CPU) == []


@pytest.mark.parametrize(
    ("limit", "bound", "rounds"), [(0, 1, 0), (9, 1, 0), (99, 10, 3), (300, 31, 2), (9999, 40, 25)]
)
def test_when_time_is_up_it_is_up(
    limit: float, bound: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To compile takes five seconds, each run one."""
    now, binds = 0.0, 0

    def run(*arrays: Any) -> None:
        nonlocal now
        now += 1

    def bind(*given: Any) -> Any:
        nonlocal now, binds
        now, binds = now + 5, binds + 1
        return SimpleNamespace(call=run, stays=())

    monkeypatch.setattr(module, "bind", bind)
    monkeypatch.setattr(module, "clock", lambda: now)
    found = trials([program(slow)] * 40, limit, 1, CPU)
    assert (binds, len(found)) == (bound, rounds)
    assert now <= 6 + max(1, limit), "what comes after the first is compiled counts"
