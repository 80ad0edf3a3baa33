"""Searches by machine code, against NumPy's."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.kernels import searchsorted
from ostinato.ops.cpu.kernels.searchsorted import searching_kernel

import ostinato as ost
from tests.helpers import on
from tests.thorough import few

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())

DTYPES = ["float32", "float64", "int8", "int64", "uint8", "uint64", "bool"]


def numbers(shape: tuple[int, ...], dtype: str, seed: int, odd: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 60, shape)
    if dtype[0] == "i":
        x -= 30
    x = x.astype(dtype)
    if dtype[0] == "f":
        for value in (np.nan, np.inf, -np.inf, -0.0):
            x[rng.random(shape) < odd] = value
    return x


@settings(deadline=None, max_examples=few(75))
@given(
    n=st.integers(1, 70),
    shape=st.lists(st.sampled_from([1, 3, 24, 50]), min_size=0, max_size=3),
    dtype=st.sampled_from(DTYPES),
    odd=st.sampled_from([0, 0.2, 1]),
    table=st.sampled_from(["plain", "backwards", "apart", "repeated"]),
    lies=st.sampled_from(["plain", "turned", "backwards", "apart", "repeated"]),
    threads=st.sampled_from([1, 3]),
)
def test_places_are_numpys(
    n: int, shape: list[int], dtype: str, odd: float, table: str, lies: str, threads: int
) -> None:
    x, v = np.sort(numbers((n,), dtype, 1, odd)), numbers(tuple(shape), dtype, 2, odd)
    match table:
        case "backwards":
            x = x[::-1].copy()[::-1]
        case "apart":
            x = np.repeat(x, 3)[::3]
        case "repeated":
            x = np.broadcast_to(x[0], x.shape)
    if lies == "turned":
        v = v.T
    elif shape and lies != "plain":
        v = {
            "backwards": lambda: v[::-1],
            "apart": lambda: np.repeat(v, 2, -1)[..., ::2],
            "repeated": lambda: np.broadcast_to(v[:1], v.shape),
        }[lies]()
    room = np.full((*v.shape, 2), -7)
    with mock.patch.multiple(searchsorted, QUICK=50, GRAIN=20, WIDE=searchsorted.CHAINS):
        for side in ("left", "right"):
            for out in (room[..., 0], np.full(v.shape, -7)):
                kernel = searching_kernel(x, v, out, side == "right", threads)
                assert kernel is not None
                kernel(x, v, out)
                np.testing.assert_array_equal(out, np.searchsorted(x, v, side=side))
    assert np.all(room[..., 1] == -7)


def test_large_tables() -> None:
    rng = np.random.default_rng(0)
    x = np.sort(rng.normal(size=100_003))
    v = np.concatenate([x, rng.normal(size=50_001), x + 1])
    out = np.empty(v.shape, np.int64)
    searching_kernel(x, v, out, False, 2)(x, v, out)
    np.testing.assert_array_equal(out, np.searchsorted(x, v))


def test_what_numpy_keeps() -> None:
    for x, v in ((np.zeros(0), np.zeros(3)), (np.zeros(3), np.zeros((2, 0)))):
        assert searching_kernel(x, v, np.empty(v.shape, np.int64), False, 1) is None
    half = np.zeros(3, np.float16)
    assert searching_kernel(half, half, np.empty(3, np.int64), False, 1) is None


def test_loops_of_short_turns_call_it() -> None:
    table, v = np.arange(10.0), np.array([0.5, 3.0, 11.0])

    def f(v: ost.Array) -> ost.Array:
        return ost.repeat(3, lambda v: ost.searchsorted(table, v).astype("float64") + 0.5, v)

    with on(1):
        found = np.asarray(ost.compile(f)(ost.asarray(v)))
    for _ in range(3):
        v = np.searchsorted(table, v) + 0.5
    np.testing.assert_array_equal(found, v)
