"""Kernels of a GPU along lines, run on the host: order, running sums, counts, ranges of places."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.array.sorting import keys_of, numbers_of
from ostinato.ops.core.device import DEVICES
from ostinato.ops.core.spec import bfloat16
from ostinato.ops.gpu.loops import scans, selects, sorts
from ostinato.ops.gpu.loops.scans import running
from ostinato.ops.gpu.loops.selects import first_places, selected
from ostinato.ops.gpu.loops.sorts import sorted_lines
from ostinato.ops.gpu.loops.tallies import range_of, step_of, tally
from ostinato.ops.gpu.loops.text import OPTIONS, Kernel

import ostinato as ost
from tests import nvrtc
from tests.cuda_host import COMPILER, HostKernel
from tests.fake_device import KERNELS
from tests.thorough import few

needs_compiler = pytest.mark.skipif(not COMPILER, reason="needs a C++ compiler")
needs_nvrtc = pytest.mark.skipif(
    not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12"
)
UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
LAID = st.sampled_from(["plain", "turned", "backwards", "apart"])


def run(kernel: Kernel | None, *arrays: np.ndarray) -> None:
    assert kernel is not None
    room = [np.zeros(kernel.room, np.uint8)] if kernel.room else []
    while kernel is not None:
        facts = map(np.int64, kernel.facts)
        made = HostKernel(kernel.text, kernel.name, OPTIONS)
        made(kernel.grid, (kernel.threads,), [*arrays, *facts, *room])
        kernel = kernel.then


def laid(x: np.ndarray, how: str) -> np.ndarray:
    """The same elements with other steps."""
    match how:
        case "turned":
            return np.asfortranarray(x)
        case "backwards":
            return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
        case "apart":
            return np.repeat(x, 2, -1)[..., ::2]
    return x


def numbers(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    """Few different ones, with zeros of both signs, NaN of both and infinities."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    if kind.kind in "biu":
        info = np.iinfo(kind) if kind.kind != "b" else np.iinfo("u1")
        x = rng.integers(max(info.min, -5), 9, shape)
        x[rng.random(shape) < 0.1] = info.max if info.max < 2**62 else 2**62
        return x.astype(kind)
    x = rng.integers(-5, 5, shape).astype("f4")
    for value in (np.nan, -np.nan, -0.0, np.inf, -np.inf):
        x[rng.random(shape) < 0.08] = value
    return x.astype(kind)


def order_of(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """A stable order, to which NaN is the largest."""
    x = x.astype("f4") if x.dtype == bfloat16 else x
    if not descending:
        return np.argsort(x, axis, kind="stable")
    back = np.argsort(np.flip(x, axis), axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(back, axis)


SHAPES = st.sampled_from(
    [((1,), 0), ((5,), 0), ((3, 40), 1), ((40, 9), 0), ((700, 5), 0), ((2, 1100), 1), ((2, 3, 65, 4), 2)]
)  # fmt: skip


@needs_compiler
@settings(max_examples=few(48), deadline=None)
@given(SHAPES, st.sampled_from(["f4", "f8", "i2", "u1", "f2", "i8", "?", bfloat16]), LAID, LAID,
       st.booleans(), st.integers(0, 99))  # fmt: skip
def test_lines_are_in_order(
    case: Any, dtype: Any, given: str, made: str, descending: bool, seed: int
) -> None:
    (shape, axis), x = case, laid(numbers(case[0], dtype, seed), given)
    out = laid(np.zeros(shape, dtype), made)
    run(sorted_lines(x, out, axis, descending), x, out)
    wanted = np.take_along_axis(x, order_of(x, axis, descending), axis)
    np.testing.assert_array_equal(out.astype("f8"), wanted.astype("f8"))
    if out.dtype.kind not in "biu":  # of two zeros the negative one is first
        rising = np.flip(out, axis) if descending else out
        zeros = np.where(rising == 0, np.signbit(rising.astype("f4")), False)
        signs = np.diff(zeros.astype("i1"), axis=axis)
        both = np.diff((rising == 0).astype("i1"), axis=axis) == 0
        assert not (signs[both] > 0).any()


@needs_compiler
@settings(max_examples=few(48), deadline=None)
@given(SHAPES, st.sampled_from(["f4", "i4", "i2", "u1", "f2", "?", bfloat16]), LAID,
       st.booleans(), st.integers(0, 99))  # fmt: skip
def test_places_are_stable(case: Any, dtype: Any, given: str, descending: bool, seed: int) -> None:
    (shape, axis), x = case, laid(numbers(case[0], dtype, seed), given)
    count = max(1, shape[axis] * 2 // 3)
    out = np.full((*shape[:axis], count, *shape[axis + 1 :]), -1)
    run(sorted_lines(x, out, axis, descending, places=True), x, out)
    wanted = np.take(order_of(x, axis, descending), np.arange(count), axis)
    np.testing.assert_array_equal(out, wanted)


@needs_compiler
def test_long_lines_are_a_blocks_up_to_a_limit() -> None:
    for n, dtype in ((9000, "f4"), (4100, "f8")):
        x = numbers((n,), dtype, n)
        out = np.zeros(n, dtype)
        kernel = sorted_lines(x, out, 0)
        assert kernel is not None
        assert kernel.threads == 512
        run(kernel, x, out)
        np.testing.assert_array_equal(out, np.sort(x))
    for n, dtype in ((16384, "f4"), (8192, "f8")):
        assert sorted_lines(np.zeros(n, dtype), np.zeros(n, dtype), 0) is not None
        assert sorted_lines(np.zeros(n + 1, dtype), np.zeros(n + 1, dtype), 0) is None


RANKED = [(1,), (7,), (5, 40), (9, 300), (3, 1500), (2, 3, 1100), (9, 1300), (5000,)]


def at_ranks(x: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """By what sorts keys: NaN is the largest, and of two zeros the negative one comes first."""
    real = x.dtype.kind not in "biu"
    keys = np.sort(keys_of(np, x) if real else x, -1)
    found = np.take_along_axis(keys, ranks, -1)
    return numbers_of(np, found, x.dtype) if real else found


@needs_compiler
@settings(max_examples=few(56), deadline=None)
@given(st.sampled_from(RANKED), st.sampled_from(["f4", "f8", "i2", "u1", "f2", "i8", "?", bfloat16]),
       st.sampled_from([1, 3, 9]), LAID, LAID, st.booleans(), st.integers(0, 99))  # fmt: skip
def test_elements_of_ranks_are_found(
    shape: Any, dtype: Any, count: int, given: str, made: str, alike: bool, seed: int
) -> None:
    x, rng = laid(numbers(shape, dtype, seed), given), np.random.default_rng(seed)
    ranks = rng.integers(0, shape[-1], (count,) if alike else (*shape[:-1], count))
    ranks = np.broadcast_to(ranks, (*shape[:-1], count))
    out = laid(np.zeros(ranks.shape, dtype), made)
    with mock.patch.object(selects, "AHEAD", 2):  # so that several blocks share shorter lines
        run(selected(x, out, ranks), x, out, ranks)
    assert out.tobytes() == at_ranks(x, ranks).tobytes()


@needs_compiler
def test_long_lines_are_shared_and_short_ones_are_not() -> None:
    rng = np.random.default_rng(0)
    for shape, several, launches in (((1024,), 0, 1), ((700, 1025), 0, 1), ((20_000,), 1, 3)):
        x = rng.normal(size=shape).astype("f4")
        ranks = np.broadcast_to([0, shape[-1] // 2, shape[-1] - 1], (*shape[:-1], 3))
        out = np.zeros(ranks.shape, "f4")
        kernel = selected(x, out, ranks)
        assert kernel is not None
        run(kernel, x, out, ranks)
        assert (out == at_ranks(x, ranks)).all()
        chain = [kernel]
        while chain[-1].then is not None:
            chain.append(chain[-1].then)
        assert len(chain) == launches
        assert (kernel.room > 0) == several
    many, x = np.arange(33), np.zeros(20_000)
    assert selected(x, many.astype("f8"), many) is None
    run(selected(x[:2000], out := np.ones(33), many), x[:2000], out, many)
    assert not out.any()


KINDS = [("sum", "f4", "f4"), ("sum", "f2", "f4"), ("sum", "i4", "i8"), ("sum", "?", "i8"),
         ("prod", "f8", "f8"), ("prod", "u1", "u8"), ("max", "f4", "f4"), ("min", "f2", "f2"),
         ("max", bfloat16, bfloat16), ("min", "i2", "i2"), ("max", "?", "?")]  # fmt: skip
SCANNED = [((1,), 0), ((3, 300), 1), ((9000,), 0), ((40, 100), 0), ((3, 9, 50), 1), ((1030, 5), 0),
           ((70, 7), 1)]  # fmt: skip


@needs_compiler
@settings(max_examples=few(56), deadline=None)
@given(st.sampled_from(SCANNED), st.sampled_from(KINDS), LAID, LAID, st.integers(0, 99))
def test_each_element_is_made_of_all_before(
    case: Any, kinds: Any, given: str, made: str, seed: int
) -> None:
    (shape, axis), (kind, taken, dtype) = case, kinds
    x = numbers(shape, taken, seed)
    if kind in ("sum", "prod") and x.dtype.kind == "f":
        x = np.random.default_rng(seed).uniform(0.99, 1.01, shape).astype(taken)
    x, out = laid(x, given), laid(np.zeros(shape, dtype), made)
    with mock.patch.object(scans, "PARTS", 7):
        kernel = running(x, out, axis, kind)
    run(kernel, x, out)
    wide = "f4" if dtype == bfloat16 else dtype
    wanted = UFUNCS[kind].accumulate(x.astype(wide), axis=axis)
    if kind in ("sum", "prod") and out.dtype.kind == "f":
        np.testing.assert_allclose(out, wanted, 2e-5 if out.itemsize < 8 else 1e-11)
    else:
        np.testing.assert_array_equal(out.astype(wide), wanted)


@needs_compiler
def test_running_sums_keep_the_sign_of_zeros_and_where_they_are_written() -> None:
    x = np.full(9000, -0.0, "f4")
    run(running(x, x, 0, "sum"), x, x)
    assert np.signbit(x).all()
    y = np.ones((600, 40))
    run(running(y, y, 0, "sum"), y, y)
    np.testing.assert_array_equal(y, np.arange(1.0, 601)[:, None] + np.zeros(40))


@needs_compiler
@pytest.mark.parametrize("dtype", ["i8", "i4", "u1", "u8"])
def test_counts_and_ranges(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for shape, count in (((3, 5000), 40), ((1, 700), 9000), ((1, 20000), 1)):
        x = rng.integers(-3 if dtype[0] == "i" else 0, 200, shape).astype(dtype)
        out = np.zeros((shape[0], count), np.int64)
        run(tally(x, shape[0], count), x, out)
        rows = [np.bincount(r[(r >= 0) & (r < count)].astype(int), minlength=count) for r in x]
        np.testing.assert_array_equal(out, rows)
        seen = np.array([5, -1])
        run(range_of(x), x, seen)
        assert (seen == [min(5, x.min()), x.max()]).all()
    apart = rng.integers(0, 9, (30, 2)).astype(dtype)
    assert step_of(apart[:, 0]) == 2 * apart.itemsize
    assert step_of(apart.T) is None
    assert tally(apart.T, 1, 9) is None
    out = np.zeros(9, np.int64)
    run(tally(apart[:, 0], 1, 9), apart[:, 0], out)
    np.testing.assert_array_equal(out, np.bincount(apart[:, 0].astype(int), minlength=9))


@needs_compiler
def test_plans_use_them() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 40)).astype("f4")
    k = rng.integers(0, 50, 3000)
    long = rng.normal(size=20_000).astype("f4")
    with mock.patch.object(sorts, "MOST_THREADS", 4), ost.connect(device=KERNELS):
        np.testing.assert_array_equal(ost.sort(ost.asarray(long)), np.sort(long))
    with ost.connect(device=KERNELS):
        given = ost.asarray(x)
        for axis in (0, 1):
            np.testing.assert_array_equal(ost.sort(given, axis), np.sort(x, axis))
            found = ost.argsort(given, axis, descending=True)
            np.testing.assert_array_equal(found, order_of(x, axis, True))
            np.testing.assert_array_equal(
                ost.cumulative_max(given, axis), np.maximum.accumulate(x, axis)
            )
            np.testing.assert_allclose(ost.cumsum(given, axis), np.cumsum(x, axis), 1e-4, 1e-4)
            for name in ("fft", "ifft"):
                found = getattr(ost.fft, name)(given, axis=axis)
                np.testing.assert_allclose(found, getattr(np.fft, name)(x, axis=axis), 0, 1e-4)
            found = ost.fft.fft(given[:, :1], axis=axis, norm="ortho")
            wanted = np.fft.fft(x[:, :1], axis=axis, norm="ortho")
            np.testing.assert_allclose(found, wanted, 0, 1e-4)
        np.testing.assert_array_equal(ost.bincount(ost.asarray(k), length=45), np.bincount(k)[:45])
        taken = ost.take(given, ost.asarray(k), axis=0)
        np.testing.assert_array_equal(taken, x[k])
        with pytest.raises(IndexError, match="300"):
            np.asarray(ost.take(given, ost.asarray(k + 280), axis=0))


@needs_compiler
def test_quantiles_read_lines_where_they_lie() -> None:
    x = numbers((30, 9, 70), "f4", 3)
    with ost.connect(device=KERNELS):
        given = ost.asarray(x)
        for axes in (0, 1, 2, (0, 1), (1, 2), (0, 2), None):
            np.testing.assert_array_equal(
                ost.nanmedian(given, axis=axes), np.nanmedian(x, axis=axes)
            )
            np.testing.assert_array_equal(ost.median(given, axis=axes), np.median(x, axis=axes))


def found_first(x: np.ndarray, count: int, descending: bool) -> np.ndarray:
    kernels = first_places(x, count, descending)
    assert kernels is not None
    lines, shape = x.size // x.shape[-1], x.shape[:-1]
    last, seen = np.zeros(lines, "u8"), np.zeros(lines, "u4")
    kept = np.zeros((lines, count), "u8")
    ordered = np.zeros_like(kept)
    run(kernels[0], x, last, np.array([count - 1]))
    run(kernels[1], x, last, seen, kept)
    run(kernels[2], kept, ordered)
    assert (seen == count).all()
    return (ordered.astype("i8") & (1 << kernels[3]) - 1).reshape(*shape, count)


@needs_compiler
@settings(max_examples=few(32), deadline=None)
@given(st.sampled_from([(5000,), (2, 900), (3, 2, 300)]),
       st.sampled_from(["f4", "i4", "i2", "u1", "f2", "?", bfloat16]),
       st.sampled_from(["plain", "backwards", "apart"]), st.booleans(), st.integers(1, 37),
       st.integers(0, 99))  # fmt: skip
def test_the_first_ones_are_found_with_places_in_order(
    shape: Any, dtype: Any, how: str, descending: bool, count: int, seed: int
) -> None:
    """With many equal ones, NaN and zeros of both signs: the earlier place comes first."""
    x = laid(numbers(shape, dtype, seed), how)
    wanted = order_of(x, x.ndim - 1, descending)[..., :count]
    np.testing.assert_array_equal(found_first(x, count, descending), wanted)


def test_when_the_first_ones_are_collected() -> None:
    """Each element is read once a digit, and once more; else CuPy puts all in order."""
    kernels = first_places(np.zeros((4, 1 << 20), "f4"), 100, True)
    assert kernels is not None
    turns, kernel = 0, kernels[0]
    while kernel is not None:
        turns, kernel = turns + 1, kernel.then
    assert turns == 5  # 32 bits of an element and 20 of its place
    assert kernels[0].grid == (512, 1)
    assert kernels[1].grid == (512, 1)
    assert first_places(np.zeros(64_000, "f4"), 8_000, True) is not None
    assert first_places(np.zeros(64_000, "f4"), 8_001, True) is None
    assert first_places(np.zeros((80_000, 4), "f4").T, 10, True) is None
    assert first_places(np.zeros(80_000, "f8"), 10, True) is None


@needs_compiler
def test_top_elements_of_long_lines_are_not_sorted() -> None:
    x = numbers((3, 20_000), "f4", 5)
    compiled: dict[str, Any] = {}
    with ost.connect(device=KERNELS), mock.patch.object(DEVICES[KERNELS], "_compiled", compiled):
        for largest in (True, False):
            made, places = map(np.asarray, ost.topk(ost.asarray(x), 50, largest=largest))
            wanted = found_first(x, 50, largest)
            np.testing.assert_array_equal(places, wanted)
            np.testing.assert_array_equal(made, np.take_along_axis(x, wanted, 1))
            turned = ost.topk(ost.asarray(np.ascontiguousarray(x[:1].T)), 50, axis=0)[1]
            np.testing.assert_array_equal(np.asarray(turned)[:, 0], found_first(x[:1], 50, True)[0])
    assert (
        sum(name.startswith("first_") for name in compiled) == 3
    )  # of keys that rise or fall, and of one line


CASES = {
    "first ones": lambda: collected(2),
    "the last of these": lambda: collected(1),
    "ranks": lambda: select("f4", (16, 200_001), 3, turned=True),
    "ranks of rows": lambda: select("f8", (4096, 4096), 1),
    "ranks of short rows": lambda: select("i2", (4096, 128), 3),
    "columns": lambda: sorted_lines(np.empty((4096, 8), "f4"), np.empty((4096, 8), "f4"), 0),
    "rows": lambda: sorted_lines(np.empty((8, 300), "f8"), np.empty((8, 300), "f8"), 1, True),
    "places": lambda: sorted_lines(np.empty((8, 64), "f2"), np.empty((8, 64), "i8"), 1, False, True),
    "long": lambda: running(np.empty(1 << 20, "f4"), np.empty(1 << 20, "f4"), 0, "sum"),
    "extremes": lambda: running(np.empty((99, 80), bfloat16), np.empty((99, 80), bfloat16), 0, "max"),
    "counts": lambda: tally(np.empty(9000, "i4"), 1, 100),
    "many counts": lambda: tally(np.empty(9000, "i8"), 1, 10_000),
    "range": lambda: range_of(np.empty(9000, "i2")),
}  # fmt: skip


def collected(kernels: int) -> Kernel | None:
    made = first_places(np.empty((2, 1 << 20), "f4"), 64, True)
    return made and (made[0] if kernels == 1 else made[1])


def select(dtype: str, shape: tuple[int, int], count: int, turned: bool = False) -> Kernel | None:
    x = np.empty(shape[::-1], dtype).T if turned else np.empty(shape, dtype)
    return selected(x, np.empty((shape[0], count), dtype), np.empty((shape[0], count), np.int64))


@needs_nvrtc
@pytest.mark.parametrize("case", CASES)
def test_nvrtc_compiles_them(case: str) -> None:
    kernel = CASES[case]()
    while kernel is not None:
        made = nvrtc.compiled(kernel.text, OPTIONS)
        assert ".local" not in made, "some array is not in registers"
        if case == "long":
            assert "ld.global.v4" in made or "ld.global.nc.v4" in made
        kernel = kernel.then
