"""Blocks of products in tiles: what they are, however the matrices lie and are cut."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.spec import DType, bfloat16, float32
from ostinato.ops.cpu.jit.llvm import linked
from ostinato.ops.cpu.kernels import gemm_tiles

KINDS = [(float32, float32), (bfloat16, bfloat16), (bfloat16, float32)]
SHAPES = [(8, 16, 2), (33, 70, 200), (132, 16, 130), (9, 129, 98), (40, 48, 1024), (64, 264, 30)]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).uniform(-1, 1, shape).astype(np.float32)


def lines(size: int) -> np.ndarray:
    """So many bytes from the beginning of a line of the cache."""
    whole = np.full(size + 64, 255, np.uint8)
    return whole[-whole.ctypes.data % 64 :][:size]


def gemm_key(left: DType, right: DType, turned: bool) -> gemm_tiles.GemmKey:
    form = gemm_tiles.gemm_key(left, turned, right)
    if form is None:
        pytest.skip("this processor has no such tiles")
    return form


def block(form: gemm_tiles.GemmKey, a: Any, b: Any, turned_b: bool) -> np.ndarray:
    """The product of the matrices that lie so; `a` is transposed if the form says so."""
    rows, columns = a.shape[form.turned], b.shape[1 - turned_b]
    depth, width = a.shape[1 - form.turned], form.width(columns)
    above, below = form.beyond
    place = lines(4 * width * (above + rows + below)).view(np.float32).reshape(-1, width)
    room, none = lines(form.panel_bytes(rows, depth)), np.zeros(gemm_tiles.AREA, np.uint8)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    kinds = {"ptr": pointer, "i64": number, "i1": ctypes.c_bool}
    given = [kinds[kind] for kind in gemm_tiles.CALLED.split(", ")]
    made = place[above:]
    linked(gemm_tiles._text(form)).function(None, *given)(
        *(a.ctypes.data, a.strides[0], rows, b.ctypes.data, b.strides[0], turned_b, columns),
        *(depth, made.ctypes.data, made.strides[0], room.ctypes.data, none.ctypes.data),
    )
    return made[:rows, :columns]


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("kinds", KINDS)
def test_blocks(kinds: tuple[DType, DType], turned: tuple[bool, bool]) -> None:
    form = gemm_key(*kinds, turned[0])
    for m, n, k in SHAPES:
        a = numbers(*((k, m) if turned[0] else (m, k))).astype(kinds[0])
        b = numbers(*((n, k) if turned[1] else (k, n))).astype(kinds[1])
        made = block(form, a, b, turned[1])
        left, right = (x.astype(kinds[0]).astype(np.float64) for x in (a, b))
        exact = (left.T if turned[0] else left) @ (right.T if turned[1] else right)
        assert np.abs(made - exact).max() <= k * 2.0**-22


@pytest.mark.parametrize("kinds", KINDS)
def test_bits_depend_on_row_and_column_only(kinds: tuple[DType, DType]) -> None:
    form = gemm_key(*kinds, False)
    a, b = numbers(70, 130).astype(kinds[0]), numbers(130, 150).astype(kinds[1])
    whole = block(form, a, b, False)
    turned = np.ascontiguousarray(b.T)
    for rows in (slice(0, 9), slice(13, 70)):
        for columns in (slice(0, 33), slice(32, 150), slice(149, 150)):
            np.testing.assert_array_equal(block(form, a[rows], b[:, columns], False),
                                          whole[rows, columns])  # fmt: skip
            np.testing.assert_array_equal(block(form, a[rows], turned[columns], True),
                                          whole[rows, columns])  # fmt: skip


def test_rounding_on_the_way_changes_no_bit() -> None:
    a, b = numbers(20, 64).astype(bfloat16), numbers(64, 50)
    first = block(gemm_key(bfloat16, bfloat16, False), a, b.astype(bfloat16), False)
    late = block(gemm_key(bfloat16, float32, False), a, b, False)
    np.testing.assert_array_equal(first, late)


def test_what_is_beside_a_matrix_is_not_read() -> None:
    """Numbers that are none lie around it."""
    form = gemm_key(float32, float32, False)
    around = np.full((60, 90), np.nan, np.float32)
    for turned_b in (False, True):
        around[5:45, 3:53] = numbers(40, 50)
        b = around[5:45, 3:53]
        a = numbers(11, 50 if turned_b else 40)
        made = block(form, a, b, turned_b)
        np.testing.assert_allclose(made, a @ (b.T if turned_b else b), atol=1e-5)
