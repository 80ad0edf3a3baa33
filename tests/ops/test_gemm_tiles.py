"""Blocks of products by our own tiles, of each kind that this processor has, against NumPy."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.spec import bfloat16, empty_aligned, float32
from ostinato.ops.cpu.jit.llvm import linked
from ostinato.ops.cpu.kernels import gemm_epilogue, gemm_tiles
from ostinato.ops.cpu.kernels.gemm_tiles import CALLED, GemmKey, gemm_key

import ostinato as ost

BF16 = np.dtype(ml_dtypes.bfloat16)
KINDS = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "i1": ctypes.c_bool}
FORMS = [
    form._replace(amx=amx)
    for dtype, right in ((float32, float32), (bfloat16, bfloat16), (bfloat16, float32))
    for turned in (False, True)
    if (form := gemm_key(dtype, turned, right)) is not None
    for amx in sorted({False, form.amx})
]


EXTENTS = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 48, 49, 64, 100, 130]))


def block(form: GemmKey, a: Any, b: Any) -> Any:
    """A product, and that nothing is written behind a block or its panels."""
    (m, k), n = a.shape[:: -1 if form.turned else 1], b.shape[1]
    (above, below), width = form.beyond, form.width(n)
    rows = empty_aligned((above + m + below + 64, width), float32)
    panels = form.panel_bytes(m, k)
    room = empty_aligned((panels + 4096,), np.dtype(np.uint8))
    rows[:], room[:] = 7, 0x7F  # of which NaN is made, where a sum has more than its terms
    ahead = np.array([a.ctypes.data, 0, a.ctypes.data, 0, 0, a.ctypes.data])
    turned = b.strides[1] != b.itemsize
    kinds = [KINDS[word] for word in CALLED.split(", ")]
    linked(gemm_tiles._text(form)).function(None, *kinds)(
        a.ctypes.data, a.strides[0], m, b.ctypes.data, b.strides[turned], turned, n, k,
        rows[above:].ctypes.data, rows.strides[0], room.ctypes.data, ahead.ctypes.data,
    )  # fmt: skip
    assert (room[panels:] == 0x7F).all()
    assert (rows[above + m + below :] == 7).all()
    return rows[above : above + m, :n]


@pytest.mark.skipif(not FORMS, reason="this processor has no tiles")
@settings(deadline=None, max_examples=150)
@given(
    which=st.integers(0, max(len(FORMS) - 1, 0)), extents=st.tuples(EXTENTS, EXTENTS, EXTENTS),
    apart=st.sampled_from([0, 3, 16]), right=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_block(which: int, extents: Any, apart: int, right: bool, seed: int) -> None:
    """By sums of whole numbers, which are exact in any order."""
    form, (m, n, k), rng = FORMS[which], extents, np.random.default_rng(seed)
    k *= form.pairs
    m = m if form.amx else max(m, form.rows)

    def matrix(rows: int, columns: int, dtype: Any, lies_turned: bool) -> Any:
        if lies_turned:
            return matrix(columns, rows, dtype, False).T
        whole = rng.integers(-8, 9, (rows, columns + apart)).astype(dtype)
        whole[:, columns:] = np.nan  # what lies beside is no term
        return whole[:, :columns]

    kind = np.dtype(np.float32) if form.pairs == 1 else BF16
    a = matrix(*((k, m) if form.turned else (m, k)), kind, False)
    b = matrix(k, n, np.dtype(np.float32) if form.rounded else kind, right)
    left = (a.T if form.turned else a).astype(np.float64)
    np.testing.assert_array_equal(block(form, a, b), left @ b.astype(np.float64))


@pytest.mark.skipif(not any(f.amx for f in FORMS), reason="this processor has no AMX")
def test_kernels_take_what_multiplies_squares() -> None:
    """For weights that are rounded as they are packed, and for slopes, of which both lie transposed."""
    x, w, m = (np.random.default_rng(k).standard_normal(s, np.float32)
               for k, s in enumerate([(128, 96), (96, 96), (96, 96)]))  # fmt: skip
    taken, real = [], gemm_tiles.block_function

    def seen(form: GemmKey) -> str:
        taken.append(form)
        return real(form)

    with pytest.MonkeyPatch.context() as patch, ost.connect():
        patch.setattr(gemm_epilogue, "block_function", seen)
        gemm_epilogue._text.cache_clear()
        f = ost.compile(lambda x, w, m: (ost.tanh(x @ w), m - 0.1 * (x.T @ x)),
                        precision="mixed_bf16")  # fmt: skip
        made, slopes = f(*map(ost.asarray, (x, w, m)))
    assert {(f.turned, f.rounded) for f in taken if f.amx} == {(False, True), (True, False)}
    assert all(f.amx for f in taken)
    rounded = [v.astype(BF16).astype(np.float64) for v in (x, w)]
    np.testing.assert_allclose(np.asarray(made), np.tanh(rounded[0] @ rounded[1]), atol=1e-4)
    np.testing.assert_allclose(np.asarray(slopes), m - 0.1 * rounded[0].T @ rounded[0], atol=1e-4)
