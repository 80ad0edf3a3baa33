"""Squared distances of all pairs from products, where digits were lost from differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.array import distances
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.kernels.distance_pairs import pair_distances

DTYPES = [np.float32, np.float64]


def direct(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return ((x[:, None] - c[None]) ** 2).sum(-1)


def operands(x: np.ndarray, c: np.ndarray) -> list[np.ndarray]:
    """As the planner makes them."""
    with np.errstate(all="ignore"):
        middle = c.mean(0)
        a, b = x - middle, c - middle
        return [a @ b.T, (a * a).sum(1), (b * b).sum(1), x, c]


def ways(given: list[np.ndarray]) -> list[np.ndarray]:
    """By NumPy, and by machine code in one thread, in three, and over its operand."""
    results = [np.empty_like(given[0])]
    with np.errstate(all="ignore"):
        distances._kernel(np, results[0], *given)
    for threads in (1, 3) if not why_not() else ():
        for out in (np.full_like(given[0], np.nan), given[0].copy()):
            mine = [out if threads == 3 else given[0], *given[1:]]
            f = pair_distances([*mine, out], threads)
            assert f is not None
            if threads == 3:
                out[...] = given[0]
            f(*mine, out)
            results.append(out)
    return results


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 150), st.integers(1, 300)),
    dtype=st.sampled_from(DTYPES),
    apart=st.sampled_from([1.0, 1e-3, 1e-6, 0.0]),
    offset=st.sampled_from([0.0, 1e4]),
    steps=st.booleans(),
)
def test_each_distance_has_its_digits(
    shape: Any, dtype: Any, apart: float, offset: float, steps: bool
) -> None:
    n, k, d = shape
    rng = np.random.default_rng(shape)
    c = (rng.normal(size=(k, d)) + offset).astype(dtype)
    x = (c[rng.integers(k, size=n)] + apart * rng.normal(size=(n, d))).astype(dtype)
    if steps:
        x, c = np.repeat(x, 2, 0)[::2], np.concatenate([c, c], 1)[:, :d]
    right = direct(x.astype(np.longdouble), c.astype(np.longdouble))
    for y in ways(operands(x, c)):
        assert (np.abs(y - right) <= right * 8 * np.finfo(dtype).eps * (4 + d**0.5)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_is_where_it_was(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x, c = rng.normal(size=(20, 130)).astype(dtype), rng.normal(size=(150, 130)).astype(dtype)
    large, small = np.finfo(dtype).max / 8, np.finfo(dtype).tiny
    x[1, 3], x[2, 4], x[3, 5] = np.nan, np.inf, -np.inf
    x[4] = c[7] = large  # whose squares are infinite, and whose difference is not
    x[5], c[8], c[9] = small, small * 2, 0
    x[6, 0], c[10, 0] = np.inf, np.inf
    right = direct(x, c)
    for y in ways(operands(x, c)):
        np.testing.assert_array_equal(np.isnan(y), np.isnan(right))
        np.testing.assert_array_equal(np.isinf(y), np.isinf(right))
        np.testing.assert_allclose(y, right, rtol=1e-5)


def test_zeros() -> None:
    x, c = np.zeros((20, 100), np.float32), np.zeros((70, 100), np.float32)
    for y in ways(operands(x, c)):
        assert not y.any()


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_only_near_ones_are_made_anew() -> None:
    """Products that say something else show which were believed."""
    rng = np.random.default_rng(1)
    x, c = rng.normal(size=(30, 128)), rng.normal(size=(200, 128))
    c[::10] = x[:20] * 1.001
    given = operands(x, c)
    given[0][...] -= 1e-3
    wrong = ways(given)
    for y in wrong:
        anew = np.isclose(y, direct(x, c), rtol=1e-12)
        assert anew.sum() == 20
        assert all(anew[i, 10 * i] for i in range(20))
