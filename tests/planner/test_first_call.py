"""What a second process does not do again: it runs no pass for a program that the cache has. Counted, not
timed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.tree import flatten
from ostinato.ops.cpu import device
from ostinato.planner import file
from ostinato.planner.plan import Plan

import ostinato as ost
from ostinato import nn, settings
from tests.programs import make_program


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings, "cache", tmp_path)
    return tmp_path


def net(x: Any, w: Any, v: Any) -> Any:
    def loss(w: Any) -> Any:
        y = nn.relu(nn.conv(x, w, padding=1))
        return ((y - y.mean((0, 2, 3), keepdims=True)) ** 2).mean() + (y @ v).sum()

    return ost.value_and_grad(loss)(w)


def draws(x: Any) -> Any:
    return ost.sort(x + ost.random.normal(x.shape), 0), ost.concatenate([x, x.T]) * 2


def loops(x: Any) -> Any:
    y, ys = ost.scan(lambda c, row: (c * 0.5 + row, ost.cumsum(c)), x[0], x)
    z = ost.while_loop(lambda c: c.sum() < 1e3, lambda c: c @ c.T + 1, ost.exp(-x))
    return y, ys, ost.cond(x[0, 0] > 0, lambda a: a @ a, lambda a: a - 1, z)


def ones(*shape: int) -> Any:
    return np.linspace(0.1, 0.5, int(np.prod(shape))).reshape(shape)


PROGRAMS = [
    (net, ones(2, 3, 8, 8), ones(4, 3, 3, 3), ones(8, 5)),
    (draws, ones(40, 40)),
    (loops, ones(6, 6)),
]


def plan_of(function: Any, arrays: Any, split: Any = None) -> tuple[Plan, str, list[Any]]:
    f = ost.compile(function)
    made = f(*[ost.asarray(x, split=split) for x in arrays])
    return f.plan, f.misses[-1].source, [np.asarray(x) for x in flatten(made)[0]]


def lowers_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> Any:
        raise AssertionError("a pass ran")

    monkeypatch.setattr(file, "program_of", never)
    monkeypatch.setattr(file, "done_so", never)


def test_a_program_from_the_cache_is_the_one_that_was_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to the places of all values, of random programs and of loops and networks, on workers, too."""
    made = {}
    cases: list[tuple[Any, Any, int, Any]] = [(f, xs, 1, None) for f, *xs in PROGRAMS]
    for seed in range(12):
        program = make_program(random.Random(seed), 4 + seed % 9)
        split = 0 if seed % 3 and all(x.ndim for x in program.inputs) else None
        cases.append((program.by_ostinato, program.inputs, 1 + seed % 2, split))
    for again in (False, True):
        for k, (function, arrays, workers, split) in enumerate(cases):
            with ost.connect(mesh=(workers,)):
                ost.random.seed(k)
                plan, source, results = plan_of(function, arrays, split)
            before = made.setdefault(k, (plan, results))
            if again:
                assert source == "disk"
                assert plan.program == before[0].program
                assert plan == before[0]
                for a, b in zip(results, before[1], strict=True):
                    np.testing.assert_array_equal(a, b)
        lowers_no_more(monkeypatch)


@pytest.mark.parametrize("what", ["processor_in_words", "most_threads", "describe_library"])
def test_on_another_machine_its_passes_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with ost.connect():
        plan, _, results = plan_of(PROGRAMS[0][0], PROGRAMS[0][1:])
    ran = []
    made = file.program_of
    monkeypatch.setattr(file, "program_of", lambda *args: ran.append(1) or made(*args))
    monkeypatch.setattr(device, what, lambda: "another")
    with ost.connect():
        again, source, found = plan_of(PROGRAMS[0][0], PROGRAMS[0][1:])
    assert ran
    assert source == "disk"
    assert again.lowered == plan.lowered
    np.testing.assert_array_equal(found[0], results[0])


def test_no_library_is_loaded_where_nothing_is_multiplied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostinato.planner.cpu import prepack

    def never() -> Any:
        raise AssertionError("loaded")

    monkeypatch.setattr(device, "describe_library", never)
    monkeypatch.setattr(prepack, "library", never)
    for source in ("made", "disk"):
        with ost.connect():
            assert plan_of(lambda x: ost.exp(x).sum(0) * 2, [ones(30, 40)])[1] == source
