"""Products of a matrix's transpose with itself: one triangle of them, against NumPy in double
precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.spec import Spec
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.kernels import gemm, syrk
from ostinato.ops.cpu.kernels.gemm import mirrored_product
from ostinato.ops.cpu.kernels.syrk import cut_of, pays, triangle
from ostinato.ops.cpu.threads import blas

from tests.thorough import some

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

DTYPES = [np.float32, np.float64]
LIES = ["rows", "columns", "rows apart", "columns apart"]


def numbers(depth: int, columns: int, dtype: Any, lies: str = "rows") -> np.ndarray:
    """A matrix with something else between what is apart."""
    shape = (depth, columns) if lies.startswith("rows") else (columns, depth)
    whole = np.full((shape[0], shape[1] + 5), np.nan, dtype)
    x = whole[:, : shape[1]]
    x[...] = np.random.default_rng((depth, columns)).normal(size=shape)
    x = x if lies.endswith("apart") else x.copy()
    return x if lies.startswith("rows") else x.T


def squared(x: np.ndarray, out: np.ndarray, threads: int = 2) -> np.ndarray:
    room = np.empty(cut_of(x.shape, x.dtype).bytes(threads), np.int8)
    f = triangle(x, out, threads, room)
    assert f is not None
    out[...] = np.nan
    f(x, out)
    return out


def check(x: np.ndarray, out: np.ndarray) -> None:
    y = squared(x, out)
    wide = x.astype(np.float64)
    size = np.abs(wide).T @ np.abs(wide)
    steps = min(len(x), 200)  # of rounding: within a chunk, over chunks, over parts
    assert (np.abs(y - wide.T @ wide) <= size * steps * np.finfo(x.dtype).eps / 2).all()
    np.testing.assert_array_equal(y, y.T)


@settings(deadline=None, max_examples=60)
@given(
    depth=st.one_of(st.integers(1, 300), st.integers(2000, 5000)),
    columns=st.integers(1, 150),
    dtype=st.sampled_from(DTYPES),
    lies=st.sampled_from(LIES),
    turned=st.booleans(),
)
def test_matrices_of_any_form(
    depth: int, columns: int, dtype: Any, lies: str, turned: bool
) -> None:
    x = numbers(depth, columns, dtype, lies)
    if x.strides.count(x.itemsize) == 0:
        return
    out = np.empty((columns, columns + 3), dtype)[:, :columns]
    check(x, out.T if turned else out)


@pytest.mark.skipif(blas() is None, reason="NumPy has another library than OpenBLAS")
@settings(deadline=None, max_examples=30)
@given(
    depth=st.integers(1, 300),
    columns=st.one_of(st.integers(1, 150), st.integers(500, 700)),
    dtype=st.sampled_from(DTYPES),
    lies=st.sampled_from(LIES),
    turned=st.booleans(),
    blocks=st.sampled_from([(16, 32), (16, 64), (128, 512)]),
)
def test_large_results_in_blocks(
    depth: int, columns: int, dtype: Any, lies: str, turned: bool, blocks: tuple[int, int]
) -> None:
    x = numbers(depth, columns, dtype, lies)
    out = np.full((columns, columns + 3), np.nan, dtype)
    room = out[:, :columns].T if turned else out[:, :columns]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm, "SMALLEST", blocks[0])
        patch.setattr(gemm, "LARGEST", blocks[1])
        f = mirrored_product(x, room, 2)
    if f is None:
        assert 1 in (depth, columns), "what is one row or one column may lie in any way"
        return
    f(x, room)
    wide = x.astype(np.float64)
    size = np.abs(wide).T @ np.abs(wide)
    assert (np.abs(room - wide.T @ wide) <= size * depth * np.finfo(dtype).eps).all()
    np.testing.assert_array_equal(room, room.T)
    assert np.isnan(out[:, columns:]).all(), "what is beside stays"


@pytest.mark.skipif(blas() is None, reason="NumPy has another library than OpenBLAS")
def test_blocks_of_large_results_are_half_of_them() -> None:
    """Each element below the diagonal is in one block, and few above are."""
    for columns in (1, 100, 129, 1000, 1537):
        times = np.zeros((columns, columns), int)
        for i, j, rows, width in gemm._below(0, columns):
            times[i : i + rows, j : j + width] += 1
        assert (np.tril(times) == np.tril(np.ones_like(times))).all()
        assert times.sum() <= columns * (columns + 1) / 2 + columns * gemm.SMALLEST / 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(70_001, 65), (9000, 300), (40_000, 16)])
def test_long_sums(shape: tuple[int, int], dtype: Any) -> None:
    for lies in some(LIES, 2, DTYPES.index(dtype)):
        check(numbers(*shape, dtype, lies), np.empty(shape[1:] * 2, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit(dtype: Any) -> None:
    x = numbers(20_000, 70, dtype)
    found = {squared(x, np.empty((70, 70), dtype), count).tobytes() for count in (1, 2, 3, 7)}
    assert len(found) == 1


@pytest.mark.parametrize("lies", LIES[:2])
def test_infinities_and_nan_stay_in_their_columns(lies: str) -> None:
    x = numbers(5000, 37, np.float32, lies)
    x[100, 3], x[200, 20], x[300, 36] = np.nan, np.inf, -np.inf
    y = squared(x, np.empty((37, 37), np.float32))
    with np.errstate(invalid="ignore"):
        right = x.T.astype(np.float64) @ x.astype(np.float64)
    np.testing.assert_allclose(y, right, rtol=1e-3, atol=0.1)
    assert np.isfinite(y).sum() == 34**2


def test_narrower_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As processors have them that this one is not."""
    for bits in (128, 256):
        monkeypatch.setattr(syrk, "vector_bits", lambda bits=bits: bits)
        for dtype in DTYPES:
            for lies in LIES[:2]:
                check(numbers(5000, 53, dtype, lies), np.empty((53, 53), dtype))


def test_what_lies_in_no_order_is_left() -> None:
    wide = np.zeros((200, 40))
    for x in (wide[::2, ::2], wide[:, ::-1], np.broadcast_to(wide[0], wide.shape)):
        room = np.empty(cut_of(x.shape, x.dtype).bytes(1), np.int8)
        assert triangle(x, np.empty((x.shape[1],) * 2), 1, room) is None


def test_what_it_is_for() -> None:
    def worth(*shape: int, dtype: str = "float32") -> bool:
        return pays(Spec(shape, np.dtype(dtype)))

    assert worth(2_000_000, 64)
    assert worth(8192, 512, dtype="float64")
    assert not worth(2_000_000, 8)
    assert not worth(1000, 64)  # too few rows for threads to share
    assert worth(10_000, 8192) == (blas() is not None)  # too large a result to keep several
    assert worth(100, 400) == (blas() is not None)
    assert not worth(8, 400)  # more is copied than multiplied
    for dtype in ("int32", "float16", "complex64"):
        assert not worth(2_000_000, 64, dtype=dtype)
