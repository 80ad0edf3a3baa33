"""Large copies by threads: joined, reshaped, turned, of any dtype and layout."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.build import Builder
from ostinato.ops.core.registry import Piece
from ostinato.ops.core.spec import Spec
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.loops import copies, flat
from ostinato.ops.cpu.loops.copies import Pieces, copy_of_pieces

import ostinato as ost
from tests import sessions

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())

DTYPES = ["float32", "float64", "int16", "uint8", "bool", "complex64"]
MOVES: dict[str, Any] = {
    "roll": lambda xp, x: xp.roll(x, 3, 0),
    "roll twice": lambda xp, x: xp.roll(x, (2, -1), (0, 1)),
    "concat": lambda xp, x: xp.concat([x[:, ::2], x[:, 1:], x[:, :0]], 1),
    "stack": lambda xp, x: xp.stack([x, x[::-1], x], 1),
    "turned": lambda xp, x: x.T.reshape(-1),
    "backwards": lambda xp, x: x[::-1, ::-1].reshape(-1, 2),
    "copy": lambda xp, x: x.T.copy(),
}


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 40),
    columns=st.sampled_from([2, 4, 34]),
    dtype=st.sampled_from(DTYPES),
    move=st.sampled_from(list(MOVES)),
    workers=st.sampled_from([1, 1, 3]),
)
def test_what_moves_is_what_numpy_moves(
    rows: int, columns: int, dtype: str, move: str, workers: int
) -> None:
    x = np.random.default_rng((rows, columns)).integers(0, 9, (rows, columns)).astype(dtype)
    f = MOVES[move]
    tiny = {"LEAST_TILED": 1, "FAR_APART": 2, "GRAIN": 1}
    with (
        mock.patch.object(copies, "MIN_THREADED_BYTES", 1),
        mock.patch.multiple(flat, **tiny),
        sessions.use((workers,)),
    ):
        y = ost.compile(lambda x: f(ost, x))(ost.asarray(x, split=0 if workers > 1 else None))
        np.testing.assert_array_equal(np.asarray(y), f(np, x))


def test_which_copies_are_shared() -> None:
    x = np.zeros((600, 900), np.float32)
    both = np.zeros((1200, 900), np.float32)
    whole, joined = [Piece(0)], [Piece(0, (slice(600),)), Piece(1, (slice(600, 1200),))]
    assert copy_of_pieces(joined, [x, x, both], 2) is not None
    assert copy_of_pieces(whole, [x.T, np.empty(540_000, np.float32)], 2) is not None
    assert copy_of_pieces(whole, [x[:9], both[:9]], 2) is None, "too small"
    assert copy_of_pieces(whole, [x[:9], both[:9]], 2, often=True) is not None
    assert copy_of_pieces(whole, [x.T, np.empty((1080_000,), np.float32)[::2]], 2) is None, (
        "no order"
    )
    assert copy_of_pieces(joined, [x, both, both], 2) is None, "more than there is room for"
    z, made = np.arange(540_000).reshape(900, 600).T * (1 + 2j), np.empty((600, 900), "c16")
    copy = copy_of_pieces(whole, [z, made], 2)
    assert copy is not None
    copy(z, made)
    np.testing.assert_array_equal(made, z)


def test_a_piece_without_elements_is_no_piece() -> None:
    """The other one takes what it needs of the operands, not all of them."""
    x, none, made = np.arange(12.0).reshape(3, 4), np.empty((0, 4)), np.empty((3, 4))
    copy = copy_of_pieces([Piece(0), Piece(1, (slice(0, 0),))], [x, none, made], 1, often=True)
    assert copy is not None
    copy(x, none, made)
    np.testing.assert_array_equal(made, x)


@pytest.mark.parametrize(("shape", "axis"), [((5,), 0), ((4, 5), 0), ((4, 5), 1), ((2, 3, 4), 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
def test_at_a_place_that_is_found_out_as_it_runs(
    shape: tuple[int, ...], axis: int, dtype: str
) -> None:
    def number(k: int) -> Any:
        return np.array(k, np.int64)

    rng, size = np.random.default_rng(axis), shape[axis]
    where: Any = {"places": (1,), "axes": (axis,), "bounds": ("index",)}
    x = rng.integers(0, 9, shape).astype(dtype)
    v = np.array(rng.integers(0, 9, x.take(0, axis).shape)).astype(dtype)
    picked = np.zeros(v.shape, dtype)
    pick = copy_of_pieces([Piece(0, picks=True, **where)], [x, number(0), picked], 1, True)
    assert pick is not None
    for k in range(-size, size):
        pick(x, number(k), picked)
        np.testing.assert_array_equal(picked, x.take(k, axis))
        for adds in (False, True)[: 1 + (dtype != "bool")]:
            wanted, found = x.copy(), np.zeros(shape, dtype)
            key = (*(slice(None),) * axis, k)
            wanted[key] = v + wanted[key] * adds if adds else v
            pieces = [Piece(0), Piece(2, combine="add" * adds, **where)]
            put = copy_of_pieces(pieces, [x, number(0), v, found], 1, True)
            assert put is not None
            put(x, number(k), v, found)
            np.testing.assert_array_equal(found, wanted)
    for k in (size, -size - 1, 1 << 62):
        with pytest.raises(IndexError, match=f"index {k} is out of bounds for an axis with {size}"):
            pick(x, number(k), picked)
    with pytest.raises(TypeError):
        pick(x, 1, picked)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_around_copies(dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    out = np.zeros((4, 10), dtype)[:, ::2]
    made = copy_of_pieces(
        [Piece(-1, value=7), Piece(0, (slice(1, 3), slice(1, 4)))], [x, out], 1, True
    )
    assert isinstance(made, Pieces)
    made(x, out)
    np.testing.assert_array_equal(out, np.pad(x, 1, constant_values=np.asarray(7).astype(dtype)))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_rows_that_are_slices_are_reduced_by_a_kernel(axes: int) -> None:
    """Operands whose last axes are no single loop are copied first, and only they."""
    rng = np.random.default_rng(axes)
    whole = rng.standard_normal((5, 12, 14, 9)).astype(np.float32)
    x, y = whole[:4, 1:11, 2:12, ::2], np.ascontiguousarray(whole[:1, :10, :10, :5])
    scale = whole[:4, :1, :1, :1] if axes == 3 else np.float32(2)
    last = tuple(range(4 - axes, 4))
    builder = Builder([Spec(np.shape(a), np.dtype(np.float32)) for a in (x, y, scale)])
    made = builder.call("multiply", builder.call("multiply", 0, 1), 2)
    body = builder.graph([builder.call("sum", made, axes=last, dtype=np.dtype(np.float32))])
    out = np.empty(x.shape[: 4 - axes], np.float32)
    arrays = [x, y, np.asarray(scale), out]
    function = copies.copy_by_rows(body, x.shape, arrays, 2, axes)
    assert function is not None
    for _ in range(2):
        out[...] = np.nan
        function(*arrays)
        expected = (x.astype(np.float64) * y * scale).sum(last)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
        x[...] += 1  # it is read anew


def test_a_gradient_through_slices_needs_no_numpy() -> None:
    def loss(k: Any, x: Any) -> Any:
        out = sum(k[i, j] * x[i : 62 + i, j : 62 + j] for i in range(3) for j in range(3))
        return ost.sum(ost.tanh(out) ** 2)

    rng = np.random.default_rng(0)
    k, x = (ost.asarray(rng.standard_normal(shape)) for shape in ((3, 3), (64, 64)))
    made = []

    def seen(*given: Any) -> Any:
        made.append(copies.copy_by_rows(*given))
        return made[-1]

    with mock.patch("ostinato.ops.cpu.cpu_device.copy_by_rows", seen):
        slope = np.asarray(ost.compile(ost.grad(loss))(k, x))
    assert made
    assert None not in made
    by_step = np.empty((3, 3))
    for place in np.ndindex(3, 3):
        near = [np.asarray(k).copy() for _ in range(2)]
        near[0][place] += 1e-5
        near[1][place] -= 1e-5
        up, down = (float(loss(ost.asarray(n), x)) for n in near)
        by_step[place] = (up - down) / 2e-5
    np.testing.assert_allclose(slope, by_step, rtol=1e-5, atol=1e-5)
