"""Vectors that products with a matrix wait for, and numbers made of sums, are made by the kernels that read them,
on a GPU: how many launches solvers' steps are, and values against NumPy's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from ostinato.planner import machine
from ostinato.planner.gpu import fuse, spread_numbers
from ostinato.planner.prediction import runs

import ostinato as ost
from benchmarks import gpu_rows
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS

STEPS = 4


def gradients(xp: Any, a: Any, b: Any) -> Any:
    return gpu_rows.gradients(xp, a, b, STEPS)


def both_gradients(xp: Any, a: Any, b: Any) -> Any:
    """Of a matrix and its transpose, whose products are a library's."""
    x, r, s, p, t = b * 0, b, b, b, b
    squares = xp.sum(r * s)
    for _ in range(STEPS):
        q = a @ p
        step = squares / xp.sum(t * q)
        x, r, s = x + step * p, r - step * q, s - step * (a.T @ t)
        new = xp.sum(r * s)
        p, t, squares = r + new / squares * p, s + new / squares * t, new
    return x


def powers(xp: Any, a: Any, v: Any) -> Any:
    for _ in range(STEPS):
        w = a @ v
        v = w / xp.sqrt(xp.sum(w * w))
    return v


def descent(xp: Any, a: Any, b: Any) -> Any:
    x = b * 0
    for _ in range(STEPS):
        r = b - a @ x
        x = x + xp.sum(r * r) / xp.sum(r * (a @ r)) * r
    return x


def plan_of(function: Any, n: int) -> Any:
    given = [ost.spec((n, n), "float32"), ost.spec((n,), "float32")]
    return ost.plan(lambda a, b: function(ost, a, b), *given, machine="h100", device=KERNELS)


def planned(function: Any, n: int = 4096) -> list[str]:
    plan = plan_of(function, n)
    graph = plan.program.graph
    return [node.op for k, node in enumerate(graph.nodes) if runs(plan.program, k)]


def test_a_step_of_conjugate_gradients_is_three_launches() -> None:
    """A product, the sum behind it with the direction, and the sum of squares with what is updated."""
    assert len(planned(gradients)) == 1 + 3 * STEPS
    assert planned(gradients).count("fused") == 1  # the last update of x


def test_numbers_of_one_sum_are_made_by_who_reads_them() -> None:
    assert len(planned(powers)) == 2 * STEPS


def test_what_a_library_multiplies_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = planned(both_gradients, 20_000)
    monkeypatch.setattr(fuse, "spread_vectors", lambda graph, target: graph)
    assert len(planned(both_gradients, 20_000)) - len(with_it) == STEPS - 1


def passed(xp: Any, a: Any, v: Any) -> Any:
    """What is a function of a vector."""
    for _ in range(STEPS):
        w = a @ v
        v = xp.exp(w / xp.sum(w * w)) - 1
    return v


def residual(xp: Any, a: Any, b: Any) -> Any:
    """What another kernel makes anyway, as soon as it can."""
    q = a @ b
    r = b - xp.sum(b * q) * q
    return xp.sum(r * r), a @ r


@pytest.mark.parametrize("function", [passed, residual, powers])
def test_functions_and_what_is_made_anyway_stay(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_it = str(plan_of(function, 20_000).program.graph)
    monkeypatch.setattr(fuse, "spread_vectors", lambda graph, target: graph)
    assert (str(plan_of(function, 20_000).program.graph) == with_it) == (function is not powers)


def test_where_memory_is_not_waited_for_vectors_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    h100 = machine.resolve("h100")
    slow = tuple([(name, rate / 100) for name, rate in h100.elements])
    slower = dataclasses.replace(h100, elements=slow)
    monkeypatch.setattr(spread_numbers, "machine_of", lambda target: slower)
    assert len(planned(gradients)) == 4 * STEPS


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("function", [gradients, both_gradients, powers, descent])
def test_values(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "_staged", lambda *_, **__: [])
    monkeypatch.setattr(spread_numbers, "machine_of", lambda target: machine.resolve("h100"))
    found: list[int] = []
    cone = spread_numbers._cone
    monkeypatch.setattr(spread_numbers, "_cone", lambda *x: found.append(len(c := cone(*x))) or c)
    rng = np.random.default_rng(7)
    a = rng.standard_normal((70, 70)).astype("f4")
    a, b = (a + a.T) / 20 + 4 * np.eye(70, dtype="f4"), rng.standard_normal(70).astype("f4")
    wanted = function(np, a.astype("f8"), b.astype("f8"))
    with ost.connect(device=KERNELS):
        f = ost.compile(lambda a, b: function(ost, a, b))
        first, second = (np.asarray(f(a, b)) for _ in range(2))
    np.testing.assert_allclose(first, wanted, 1e-4, 1e-5)
    np.testing.assert_array_equal(first, second)
    assert any(found)
