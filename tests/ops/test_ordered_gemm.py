"""Products whose sums are made in order: of integers against NumPy's, of floats against a plain loop."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.kernels import ordered_gemm
from ostinato.ops.cpu.kernels.gemm import make_ordered_product, product

import ostinato as ost
from tests.helpers import on

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())


def laid(x: np.ndarray, how: str) -> np.ndarray:
    match how:
        case "turned":
            return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        case "backwards":
            return x[..., ::-1, ::-1]
        case "apart":
            return np.repeat(x, 2, -1)[..., ::2]
        case "repeated":
            return np.broadcast_to(x[..., :1, :], x.shape)
        case "first":
            return x[(0,) * (x.ndim - 2)]
    return x


LIES = st.sampled_from(["plain", "plain", "turned", "backwards", "apart", "repeated", "first"])


@settings(deadline=None, max_examples=75)
@given(
    m=st.sampled_from([4, 5, 9, 40]),
    n=st.sampled_from([4, 7, 24, 49, 60]),
    k=st.sampled_from([1, 3, 30, 256, 300]),
    batch=st.sampled_from([(), (3,), (2, 3)]),
    dtype=st.sampled_from(ordered_gemm.INTEGERS),
    left=LIES,
    right=LIES,
    goes=st.sampled_from(["plain", "turned", "apart rows"]),
)
def test_products_are_numpys(
    m: int, n: int, k: int, batch: tuple[int, ...], dtype: str, left: str, right: str, goes: str
) -> None:
    rng = np.random.default_rng((m, n, k))
    a = laid(rng.integers(0, 2**62, (*batch, m, k)).astype(dtype), left)
    b = laid(rng.integers(0, 2**62, (*batch, k, n)).astype(dtype), right)
    wanted = a @ b
    room = np.full((*wanted.shape[:-1], n + 5), 7, dtype)
    out = room[..., :n] if goes == "apart rows" else laid(np.full_like(wanted, 7), goes)
    with mock.patch.multiple(ordered_gemm, QUICK=100, GRAIN=100):
        found = [product(a, b, out, threads) for threads in (1, 5)]
    for kernel in found:
        assert kernel is not None
        out[...] = 7
        kernel(a, b, out)
        np.testing.assert_array_equal(out, wanted)
    assert np.all(room[..., n:] == 7)


@settings(deadline=None, max_examples=50)
@given(
    m=st.sampled_from([1, 2, 4, 9, 40]),
    n=st.sampled_from([1, 3, 7, 24, 49]),
    k=st.sampled_from([1, 3, 30, 256, 300]),
    batch=st.sampled_from([(), (3,), (2, 3)]),
    dtype=st.sampled_from(["float32", "float64"]),
    left=LIES,
    right=LIES,
    goes=st.sampled_from(["plain", "turned", "apart rows"]),
)
def test_floats_are_added_in_order(
    m: int, n: int, k: int, batch: tuple[int, ...], dtype: str, left: str, right: str, goes: str
) -> None:
    """To the bit, however matrices lie: each product is rounded, and added to those before it."""
    rng = np.random.default_rng((m, n, k))
    a = laid(rng.normal(size=(*batch, m, k)).astype(dtype), left)
    b = laid(rng.normal(size=(*batch, k, n)).astype(dtype), right)
    wanted = np.zeros_like(a @ b)
    for t in range(k):
        wanted += a[..., :, t, None] * b[..., None, t, :]
    room = np.full((*wanted.shape[:-1], n + 5), 7, dtype)
    out = room[..., :n] if goes == "apart rows" else laid(np.full_like(wanted, 7), goes)
    with mock.patch.multiple(ordered_gemm, QUICK=100, GRAIN=100):
        found = [make_ordered_product(a, b, out, threads) for threads in (1, 5)]
    for kernel in found:
        assert kernel is not None
        out[...] = 7
        kernel(a, b, out)
        assert out.tobytes() == wanted.tobytes()
    assert np.all(room[..., n:] == 7)


def test_what_numpy_keeps() -> None:
    def made(m: int, n: int, left: str, right: str) -> object:
        a, b = np.zeros((m, 8), left), np.zeros((8, n), right)
        return product(a, b, np.zeros((m, n), np.result_type(a, b)), 1)

    assert made(1, 8, "int64", "int64") is None
    assert made(8, 8, "int32", "int64") is None
    assert made(8, 8, "int8", "int8") is None
    assert made(8, 8, "int32", "int32") is not None


@pytest.mark.parametrize("workers", [1, 3])
def test_a_compiled_function_uses_it(workers: int) -> None:
    a = np.random.default_rng(0).integers(-(2**40), 2**40, (30, 20))
    with on(workers):
        found = ost.compile(lambda a: a @ a.T + 1)(ost.asarray(a, split=0))
        np.testing.assert_array_equal(np.asarray(found), a @ a.T + 1)
