"""Warnings of traces that are long, or are made for each new value."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import unrolled
from ostinato.errors import TraceWarning
from tests.sessions import use


@pytest.fixture(autouse=True)
def _one_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(unrolled, "_told", set())
    with use():
        yield


def told(f: Callable[..., Any], *given: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        f(*given)
    return [str(w.message) for w in found if w.category is TraceWarning]


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line and "line_of" not in line)


def test_a_long_loop_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.tracing.MIN_UNROLLED", 40)
    monkeypatch.setattr(unrolled, "MIN_UNROLLED", 40)

    def running(x: Any, turns: int) -> Any:
        y = x.copy()
        for _ in range(1):
            for k in range(1, turns):  # the inner loop
                y[k] = y[k] + 0.5 * y[k - 1]
                y[k] = y[k] * 0.25
        return y

    f, x = ost.compile(running), np.arange(30.0)
    (message,) = told(f, x, 30)
    assert f"test_unrolled.py:{line_of('# the inner loop')}" in message
    assert "ost.repeat" in message
    assert told(f, x, 29) == []  # it was said
    assert told(ost.compile(lambda x: x + 1), x) == []


def test_short_loops_and_our_own_algorithms_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.tracing.MIN_UNROLLED", 20)
    monkeypatch.setattr(unrolled, "MIN_UNROLLED", 20)

    def f(x: Any) -> Any:
        for _ in range(3):
            x = x * 0.5 + 1
        return ost.fft.fft(ost.linalg.svd(x).S)

    assert told(ost.compile(f), np.random.default_rng(0).random((6, 5))) == []


def test_masks_of_numbers_are_named() -> None:
    """They make each new number another trace, which computes."""

    def f(centre: float, turns: int) -> Any:
        c = ost.linspace(-2, 1, 40_000) + centre
        z = ost.zeros(40_000)
        for _ in range(turns):  # numbers that decide how often are as they were
            m = abs(z) < 2
            if not m.any():  # the mask
                break
            z[m] = z[m] ** 2 + c[m]
        return z

    def plain(x: Any, centre: float) -> Any:
        return x[:, None] * ost.where(x > centre, 1.0, 0.0) if centre < 5 else x

    compiled = ost.compile(f)
    (message,) = told(compiled, 0.25, 2)
    assert f"test_unrolled.py:{line_of('# the mask')}" in message
    assert "ost.where" in message
    assert told(compiled, 0.5, 2) == []
    assert told(ost.compile(plain), np.arange(3.0), 0.5) == []
    few = ost.compile(lambda x, n: x[ost.arange(3) < n])
    assert told(few, np.arange(3.0), 2) == []
