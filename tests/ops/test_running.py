"""Running sums and products by machine code, against NumPy's."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.spec import bfloat16
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.kernels import scan
from ostinato.ops.cpu.kernels.scan import running_kernel

import ostinato as ost
from ostinato.errors import DTypeError
from tests.helpers import on
from tests.thorough import few

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())

KINDS = [
    ("float32", "float32"),
    ("float32", "float64"),
    ("float64", "float32"),
    ("float64", "float64"),
    ("int32", "int64"),
    ("int64", "int64"),
    ("uint8", "uint64"),
    ("uint16", "int32"),
    ("bool", "int64"),
    ("int16", "float32"),
    ("bfloat16", "float32"),
]


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bfloat16":
        return rng.normal(size=shape).astype(bfloat16)
    if dtype[0] == "f":
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 2**60, shape).astype(dtype)


def laid(x: np.ndarray, how: str) -> np.ndarray:
    """A view of other steps, with as many axes."""
    match how:
        case "turned":
            return x.T
        case "backwards":
            return x[..., ::-1][::-1]
        case "apart":
            return np.repeat(x, 2, -1)[..., ::2]
        case "repeated":
            return np.broadcast_to(x[:1], x.shape)
    return x


def exactly(x: np.ndarray, axis: int, product: bool, dtype: str) -> np.ndarray:
    ufunc = np.multiply if product else np.add
    with np.errstate(all="ignore"):
        return ufunc.accumulate(x, axis=axis, dtype=dtype)


def made(
    x: np.ndarray, axis: int, product: bool, dtype: str, threads: int, how: str = "plain"
) -> np.ndarray:
    """By a kernel, which leaves alone what lies between the result's elements."""
    room = np.full((*x.shape, 2), 7, dtype)
    out = {
        "turned": lambda: np.full(x.shape[::-1], 7, dtype).T,
        "apart": lambda: room[..., 0],
        "backwards": lambda: np.full(x.shape, 7, dtype)[::-1],
    }.get(how, lambda: np.full(x.shape, 7, dtype))()
    kernel = running_kernel(x, out, axis, product, threads)
    assert kernel is not None
    kernel(x, out)
    assert np.all(room[..., 1] == 7)
    return out


@settings(deadline=None, max_examples=few(50))
@given(
    shape=st.lists(st.sampled_from([1, 2, 5, 8, 17, 40]), min_size=1, max_size=3),
    kind=st.sampled_from(KINDS),
    lies=st.sampled_from(["plain", "plain", "turned", "backwards", "apart", "repeated"]),
    goes=st.sampled_from(["plain", "plain", "turned", "apart", "backwards"]),
    product=st.booleans(),
    axis=st.integers(0, 2),
)
def test_short_lines_have_numpys_bits(
    shape: list[int], kind: tuple[str, str], lies: str, goes: str, product: bool, axis: int
) -> None:
    source, dtype = kind
    x = laid(numbers(tuple(shape), source, len(shape)), lies)
    axis %= x.ndim
    with mock.patch.object(scan, "QUICK", 100), mock.patch.object(scan, "GRAIN", 50):
        found = made(x, axis, product, dtype, 3, goes)
    assert found.tobytes() == exactly(x, axis, product, dtype).tobytes()


@settings(deadline=None, max_examples=few(40))
@given(
    n=st.sampled_from([64, 65, 200, 401]),
    others=st.sampled_from([(1, 0), (3, 0), (50, 0), (3, 1), (50, 1), (300, 1)]),
    kind=st.sampled_from([KINDS[0], KINDS[1], KINDS[4], KINDS[8], KINDS[10]]),
    lies=st.sampled_from(["plain", "plain", "backwards", "apart"]),
    product=st.booleans(),
)
def test_long_lines_are_cut_by_their_extent_only(
    n: int, others: tuple[int, int], kind: tuple[str, str], lies: str, product: bool
) -> None:
    """The same bits for any number of threads and in any place; for integers NumPy's."""
    (many, side), (source, dtype) = others, kind
    x = numbers((n, many), source)
    x = laid(x if side else np.ascontiguousarray(x.T), lies)
    axis = 1 - side
    few = {"MIN_CUT_LINE": 64, "QUICK": 0, "GRAIN": 1}
    with mock.patch.multiple(scan, **few):
        found = [made(x, axis, product, dtype, threads) for threads in (1, 2, 8)]
        line = made(np.moveaxis(x, axis, -1)[-1].copy(), 0, product, dtype, 2)
    wanted = exactly(x, axis, product, dtype)
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    assert np.moveaxis(found[0], axis, -1)[-1].tobytes() == line.tobytes()
    if dtype[0] != "f" or product:
        assert found[0].tobytes() == wanted.tobytes()
    else:
        exact = np.cumsum(x.astype(np.longdouble), axis)
        bound = 2 * n * np.finfo(dtype).eps * np.cumsum(np.abs(x.astype(np.float64)), axis)
        assert np.all(np.abs(found[0] - exact) <= bound)


def test_long_sums_are_nearer_than_one_after_the_other() -> None:
    found, numpys = [], []
    for seed in range(5):
        x = numbers((100_000,), "float32", seed)
        exact = np.cumsum(x.astype(np.float64))
        found.append(np.abs(made(x, 0, False, "float32", 2) - exact).mean())
        numpys.append(np.abs(np.cumsum(x) - exact).mean())
    assert sum(found) < sum(numpys)


@pytest.mark.parametrize("shape", [(10_000,), (20, 10_000), (100, 300)])
@pytest.mark.parametrize("axis", [0, -1])
def test_what_is_no_number_is_seen_from_there_on(shape: tuple[int, ...], axis: int) -> None:
    x = np.ones(shape, np.float32)
    line = np.moveaxis(x, axis, -1)
    n = line.shape[-1]
    line[..., n // 3] = np.inf
    line[..., n // 2] = -np.inf
    line[..., n - 2] = np.nan
    for product in (False, True):
        found = made(x, axis % x.ndim, product, "float32", 2)
        np.testing.assert_array_equal(found, exactly(x, axis, product, "float32"))
    zero = np.full(shape, -0.0, np.float32)
    assert np.signbit(made(zero, axis % x.ndim, False, "float32", 2)).all()


def test_products_that_pass_a_zero_stay_zero() -> None:
    x = np.full(20_000, 1e30, np.float32)
    x[0] = 0
    assert not made(x, 0, True, "float32", 2).any()


def test_what_numpy_keeps() -> None:
    for source, dtype in (
        ("complex64", "complex64"),
        ("float16", "float32"),
        ("float32", "int32"),
        ("int8", "int8"),
    ):
        x = np.zeros(4, source)
        assert running_kernel(x, np.zeros(4, dtype), 0, False, 2) is None
    assert running_kernel(np.zeros((0, 3)), np.zeros((0, 3)), 0, False, 2) is None


def test_loops_and_plans_use_it() -> None:
    x = numbers((50, 40), "float32")

    def f(x: Any) -> Any:
        return ost.cumulative_sum(x, axis=1) + ost.cumulative_prod(x, axis=0)

    with on(1):
        found = np.asarray(ost.compile(f)(ost.asarray(x)))
    np.testing.assert_array_equal(found, np.cumsum(x, 1) + np.cumprod(x, 0))


def test_extremes_so_far_by_numpys_names() -> None:
    x = numbers((50, 40), "float32")
    with on(1):
        y = ost.asarray(x)
        for ufunc in (np.maximum, np.minimum):
            found: Any = ufunc.accumulate(y, axis=1)  # type: ignore[call-overload]
            assert isinstance(found, ost.Array)
            np.testing.assert_array_equal(np.asarray(found), ufunc.accumulate(x, axis=1))
        with pytest.raises(DTypeError, match="a dtype with an order"):
            ost.cumulative_max(ost.asarray(x) * 1j, axis=0)
