"""Machine code that reads and updates at places, against NumPy: any dtype, strides, sharing."""

from __future__ import annotations

from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.array.slicing import COMBINES
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.llvm import is_kernel
from ostinato.ops.cpu.kernels import gather_scatter

import ostinato as ost
from ostinato.errors import BoundsError
from tests.helpers import on
from tests.thorough import few

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())

MODES = ["set", "add", "multiply", "min", "max"]
DTYPES = ["f4", "f8", "i1", "u2", "i4", "u8", "i8", "?", "bfloat16", "f2", "c8", "c16"]
PLACES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
# what threads share, if a few elements are much
SHARING = [
    {},
    {"WIDE": 1 << 30, "FAR_BYTES": 1 << 30, "COLUMNS": 1 << 30},
    {"WIDE": 0, "FAR_BYTES": 0, "COLUMNS": 1 << 30, "BLOCK": 4},
    {"COLUMNS": 1},
]


def numbers(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    found = rng.integers(-4 if dtype[0] in "ifcb" else 0, 5, shape)
    if dtype[0] not in "fcb":
        return found.astype(dtype)
    special = rng.choice([0.0, -0.0, np.nan, np.inf], shape)
    mixed = np.where(rng.random(shape) < 0.2, special, found * 0.7)
    return mixed.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def spread(rng: Any, x: Any) -> Any:
    """The same elements, elsewhere in memory."""
    order = rng.permutation(x.ndim)
    gaps = rng.integers(1, 3, x.ndim)
    room = np.zeros([x.shape[d] * gaps[d] for d in order], x.dtype)
    view = room.transpose(np.argsort(order))[(..., *(slice(None, None, int(g)) for g in gaps))]
    if x.ndim and rng.random() < 0.5:
        view = view[tuple(slice(None, None, -1) if k % 2 else slice(None) for k in range(x.ndim))]
    view[...] = x
    return view


def laid(rng: Any, x: Any) -> Any:
    return spread(rng, np.asarray(x)) if rng.random() < 0.5 else np.asarray(x)


def places(rng: Any, shape: tuple[int, ...], size: int, dtype: str) -> Any:
    return rng.integers(0 if dtype[0] == "u" else -size, size, shape).astype(dtype)


def same(found: Any, wanted: Any) -> None:
    """To the last bit, but for which NaN it is."""
    if wanted.dtype.kind not in "iub":
        as_numbers = np.complex128 if wanted.dtype.kind == "c" else np.float64
        found, wanted = found.astype(as_numbers), wanted.astype(as_numbers)
        both = [np.stack([x.real, x.imag]) for x in (found, wanted)]
        np.testing.assert_array_equal(*[np.signbit(x) & ~np.isnan(x) for x in both])
    np.testing.assert_array_equal(found, wanted)


shapes = st.sampled_from([(3,), (9, 5), (4, 7, 3), (2, 5, 70), (1, 6, 2), (3, 1, 2, 5), (70,)])


@settings(deadline=None, max_examples=few(60))
@given(
    seed=st.integers(0, 10**6),
    shape=shapes,
    count=st.sampled_from([(), (1,), (7,), (30,), (2, 3), (3, 1, 2)]),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(PLACES),
    mode=st.sampled_from(MODES),
    threads=st.sampled_from([1, 2, 3, 5]),
    sharing=st.sampled_from(SHARING),
)
def test_put(
    seed: int,
    shape: tuple[int, ...],
    count: tuple[int, ...],
    dtype: str,
    kind: str,
    mode: str,
    threads: int,
    sharing: dict[str, int],
) -> None:
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(0, len(shape)))
    x, i = numbers(rng, shape, dtype), laid(rng, places(rng, count, shape[axis], kind))
    v = laid(rng, numbers(rng, (*shape[:axis], *count, *shape[axis + 1 :]), dtype))
    if rng.random() < 0.3:  # the same for all
        x, v = (np.broadcast_to(a.reshape(-1)[0], a.shape) for a in (x, v))
    out = laid(rng, np.zeros(shape, x.dtype))
    if rng.random() < 0.3:
        out[...] = x
        x = out
    wanted, key = x.copy(), (*(slice(None),) * axis, i)
    with mock.patch.multiple(gather_scatter, GRAIN=1, MIN_VECTOR_ELEMENTS=1, **sharing):
        made = gather_scatter.putting([x, i, v, out], threads, axis=axis, mode=mode)
    known = not (dtype == "f2" and mode != "set") and not (
        dtype[0] == "c" and mode not in ("set", "add")
    )
    assert (made is not None) == known
    if made is None:
        return
    assert is_kernel(made), "loops may call it"
    with np.errstate(all="ignore"):
        if mode == "set":
            for n in np.ndindex(count):  # NumPy does not say which one comes last
                wanted[(*key[:-1], i[n])] = v[(*(slice(None),) * axis, *n)]
        else:
            getattr(np, COMBINES[mode]).at(wanted, key, v)
    for _ in range(2):
        was = None if x is out else x.copy()
        made(x, i, v, out)
        same(out, wanted)
        if was is None:
            break
        same(x, was)


@settings(deadline=None, max_examples=few(30))
@given(
    seed=st.integers(0, 10**6),
    shape=shapes,
    count=st.sampled_from([(), (1,), (7,), (30,), (2, 3)]),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(PLACES),
    threads=st.sampled_from([1, 2, 5]),
)
def test_take(
    seed: int,
    shape: tuple[int, ...],
    count: tuple[int, ...],
    dtype: str,
    kind: str,
    threads: int,
) -> None:
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(0, len(shape)))
    x, i = laid(rng, numbers(rng, shape, dtype)), laid(rng, places(rng, count, shape[axis], kind))
    if rng.random() < 0.2:
        x = np.broadcast_to(x.reshape(-1)[0], shape)
    wanted = np.take(x, i, axis)
    out = laid(rng, np.zeros(wanted.shape, x.dtype))
    with mock.patch.multiple(gather_scatter, GRAIN=1, MIN_VECTOR_ELEMENTS=1):
        made = gather_scatter.taking([x, i, out], threads, axis=axis)
    assert made is not None
    assert is_kernel(made)
    made(x, i, out)
    same(out, wanted)


@settings(deadline=None, max_examples=few(40))
@given(
    seed=st.integers(0, 10**6),
    shape=shapes,
    count=st.sampled_from([1, 2, 30]),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(PLACES),
    threads=st.sampled_from([1, 2, 5]),
    sharing=st.sampled_from(SHARING),
)
def test_along_an_axis(
    seed: int,
    shape: tuple[int, ...],
    count: int,
    dtype: str,
    kind: str,
    threads: int,
    sharing: dict[str, int],
) -> None:
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(0, len(shape)))
    some = (*shape[:axis], count, *shape[axis + 1 :])
    x, i = laid(rng, numbers(rng, shape, dtype)), laid(rng, places(rng, some, shape[axis], kind))
    v = laid(rng, numbers(rng, some, dtype))
    if rng.random() < 0.4:  # one line of places for all, which is repeated
        i = i[tuple(slice(None) if d == axis else slice(1) for d in range(i.ndim))]
    every = np.broadcast_to(i, some)
    out, picked = laid(rng, np.zeros(shape, x.dtype)), laid(rng, np.zeros(some, x.dtype))
    with mock.patch.multiple(gather_scatter, GRAIN=1, MIN_VECTOR_ELEMENTS=1, **sharing):
        take = gather_scatter.take_along_kernel([x, i, picked], threads, axis=axis)
        add = gather_scatter.adding_along([x, every, v, out], threads, axis=axis)
    assert take is not None
    take(x, i, picked)
    same(picked, np.take_along_axis(x, every.astype("i8"), axis))
    assert (add is None) == (dtype == "f2")
    if add is None:
        return
    grid = list(np.ogrid[tuple(slice(n) for n in some)])
    grid[axis] = every
    wanted = x.copy()
    with np.errstate(all="ignore"):
        np.add.at(wanted, tuple(grid), v)
    add(x, every, v, out)
    same(out, wanted)


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("threads", [1, 4])
def test_nothing_is_written_if_a_place_is_outside(kind: str, threads: int) -> None:
    size, last = 100, np.iinfo(kind).max
    bad = [size, last] if kind[0] == "u" else [size, last, -size - 1, np.iinfo(kind).min]
    x, v, out = np.ones((size, 3)), np.ones((40, 3)), np.zeros((size, 3))
    picked, answer = np.zeros((40, 3)), np.zeros((), bool)
    for shape in ((40,), (8, 5)):
        i = np.zeros(shape, kind)
        values, found = v.reshape(*shape, 3), picked.reshape(*shape, 3)
        with mock.patch.multiple(gather_scatter, GRAIN=1, MIN_VECTOR_ELEMENTS=1):
            put = gather_scatter.putting([x, i, values, out], threads, axis=0, mode="add")
            take = gather_scatter.taking([x, i, found], threads, axis=0)
            look = gather_scatter.inside([i, answer], threads, size=size)
        assert put is not None
        assert take is not None
        assert look is not None
        for wrong in bad:
            i[...] = 0
            i[-1] = wrong
            text = f"index {wrong} is out of bounds for an axis with {size} elements"
            for made, arrays in (
                (put, (x, i, values, out)),
                (take, (x, i, found)),
                (look, (i, answer)),
            ):
                with pytest.raises(IndexError, match=text):
                    made(*arrays)
        assert not out.any()
        i[...] = 0
        look(i, answer)
        put(x, i, values, out)
        assert answer
        assert out[0, 0] == 41
        answer[()], out[...] = False, 0
        with pytest.raises(TypeError):
            put(x, i, 1, out)


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "c8", "f2"])
def test_elements_one_by_one_are_looked_at_in_blocks(kind: str, dtype: str) -> None:
    """From the front and from behind; a bad place in any block is found, and nothing is read there."""
    rng, size = np.random.default_rng(1), 100
    x, i = numbers(rng, (size,), dtype), places(rng, (3001,), size, kind)
    out = np.zeros(3001, x.dtype)
    with mock.patch.multiple(gather_scatter, GRAIN=1000):
        take = gather_scatter.taking([x, i, out], 3, axis=0)
    assert take is not None
    take(x, i, out)
    same(out, x[i])
    last = np.iinfo(kind).max
    for at in (0, 1500, 3000):
        for wrong in [size, last] if kind[0] == "u" else [size, last, -size - 1]:
            bad = i.copy()
            bad[at] = wrong
            with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
                take(x, bad, out)


def test_the_lowest_of_bad_places_is_named_as_numpy_names_it() -> None:
    with on(1):
        i = ost.asarray([[1, 9], [-8, -9]])
        with pytest.raises(BoundsError, match="index -9 is out of bounds"):
            np.asarray(ost.zeros(5).at[i].add(1.0))


def test_loops_may_contain_updates_of_several_places() -> None:
    i, x = np.array([[0, 2], [2, 2], [-1, 1]]), np.arange(4.0)

    def turn(state: Any, i: Any) -> Any:
        state = state.at[i].add(state[1] + 1)
        return state, ost.take(state, i)

    with on(1):
        found, rows = ost.compile(lambda x, i: ost.scan(turn, x, i))(x, i)
        wanted, taken = x.copy(), []
        for k in i:
            np.add.at(wanted, k, wanted[1] + 1)
            taken.append(wanted[k])
        np.testing.assert_array_equal(np.asarray(found), wanted)
        np.testing.assert_array_equal(np.asarray(rows), taken)
