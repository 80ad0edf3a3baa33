"""Reductions of masked arrays in loops' kernels look at the range where the mask is true, and only there."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.cpu.loops.loop_operations import Operations

import ostinato as ost
from tests import sessions

TURNS = 300
NEUTRAL: dict[str, tuple[float, float]] = {  # of floats, of integers
    "sum": (0.0, 0),
    "prod": (1.0, 1),
    "max": (-np.inf, np.iinfo(np.int64).min),
    "min": (np.inf, np.iinfo(np.int64).max),
}
COMPARED: list[Callable[[Any, Any], Any]] = [
    lambda i, k: i < k,
    lambda i, k: i <= k,
    lambda i, k: i > k,
    lambda i, k: i >= k,
    lambda i, k: i == k,
    lambda i, k: k > i,
    lambda i, k: k <= i,
]


@pytest.fixture
def narrowed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The axes that were narrowed, so far."""
    found, real = list[int](), Operations.narrowed

    def watched(self: Operations, x: Any, axis: int) -> Any:
        found.append(axis)
        return real(self, x, axis)

    monkeypatch.setattr(Operations, "narrowed", watched)
    return found


def turns(f: Callable[[Any, Any, Any], Any], x: Any, begin: int, step: int) -> tuple[Any, Any]:
    """What f makes of NumPy's arrays and of ours, with k = begin, begin + step, ..."""
    ks = begin + step * np.arange(TURNS)
    wanted = np.stack([f(np, x, k) for k in ks])
    with sessions.use():
        g = ost.compile(lambda x, ks: ost.scan(lambda s, k: (s, f(ost, x, k)), 0.0, ks)[1])
        made = np.asarray(g(x, ks))
    return made, wanted


@pytest.mark.parametrize("seed", range(16))
def test_any_masked_reduction(seed: int, narrowed: list[int]) -> None:
    rng = random.Random(seed)
    kind, axis = rng.choice([*NEUTRAL]), rng.choice([0, 1, -1])
    n = rng.choice([1, 3, 17, 40])
    shape = (n,) if axis == -1 else (5, n) if axis else (n, 1)
    shape = shape if seed % 5 else (2500,)
    axis = axis if seed % 5 else -1
    numbers = np.random.default_rng(seed)
    x = numbers.standard_normal(shape) if seed % 3 else numbers.integers(-3, 4, shape)
    if seed % 3 and kind in ("max", "min"):
        x.flat[rng.randrange(x.size)] = np.nan
    compared = [rng.choice(COMPARED) for _ in range(rng.choice([1, 1, 2]))]
    across = rng.randrange(-3, 9)

    def f(xp: Any, x: Any, k: Any) -> Any:
        i = xp.arange(x.shape[axis])
        mask = compared[0](i, k)
        for c in compared[1:]:
            mask = mask & c(i, across)
        mask = mask[:, None] if axis == 0 else mask
        return getattr(xp, kind)(xp.where(mask, x, NEUTRAL[kind][x.dtype.kind != "f"]), axis=axis)

    made, wanted = turns(f, x, -5, 1 if shape[axis] < 1000 else 11)
    np.testing.assert_allclose(made, wanted, rtol=1e-12, atol=1e-12)
    assert n == 1 or shape == (n, 1) or narrowed


def test_products_of_both_masked(narrowed: list[int]) -> None:
    def f(xp: Any, x: Any, k: Any) -> Any:
        mask = xp.arange(50) < k
        return xp.where(mask, x[0], 0.0) @ xp.where(mask, x[1], 0.0)

    made, wanted = turns(f, np.random.default_rng(0).standard_normal((2, 50)), -100, 1)
    np.testing.assert_allclose(made, wanted, rtol=1e-12, atol=1e-12)
    assert narrowed


@pytest.mark.parametrize("case", ["one side", "other mask", "other number", "a maximum"])
def test_what_every_element_matters_for(case: str, narrowed: list[int]) -> None:
    def f(xp: Any, x: Any, k: Any) -> Any:
        i = xp.arange(50)
        a = xp.where(i < k, x[0], 0.0)
        if case == "one side":  # inf * 0 is NaN
            return a @ x[1]
        if case == "other mask":
            return a @ xp.where(i < k + 1, x[1], 0.0)
        if case == "other number":
            return xp.sum(xp.where(i < k, x[0], 2.0))
        return xp.max(xp.where(i < k, x[0], -0.0))

    x = np.random.default_rng(0).standard_normal((2, 50))
    x[1, 30] = np.inf
    with np.errstate(invalid="ignore"):
        made, wanted = turns(f, x, -100, 1)
    np.testing.assert_allclose(made, wanted, rtol=1e-12, atol=1e-12)
    assert not narrowed


def test_a_mask_that_is_made_outside_of_a_loop_inside(narrowed: list[int]) -> None:
    def inner(xp: Any, x: Any, k: Any, repeat: Any) -> Any:
        mask = xp.arange(30) >= k
        return repeat(7, lambda s: 0.5 * s + xp.sum(xp.where(mask, x * s, 0.0)), x[0])

    def repeat(n: int, step: Callable[[Any], Any], s: Any) -> Any:
        for _ in range(n):
            s = step(s)
        return s

    def f(xp: Any, x: Any, k: Any) -> Any:
        return inner(xp, x, k, repeat if xp is np else ost.repeat)

    made, wanted = turns(f, np.random.default_rng(0).standard_normal(30) / 9, -20, 1)
    np.testing.assert_allclose(made, wanted, rtol=1e-12, atol=1e-12)
    assert narrowed
