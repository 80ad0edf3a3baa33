"""Counts, histograms and groups: NumPy's values in every layout, one all-reduce of what was
counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.array.segments import UFUNCS
from ostinato.ops.core.monoid import identity
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.kernels import tally

import ostinato as ost
from ostinato.errors import ArgumentError, DataDependentShapeError, DTypeError, ShapeError
from tests.helpers import assert_same, compare_all
from tests.sessions import use
from tests.thorough import some

from .samples import grouped, tallied
from .test_quantiles import sent

R = np.random.default_rng(1)
IDS = R.integers(0, 5, 40)
ROWS = R.normal(size=(40, 3))
ODD = np.array([0.0, 1.0, 4.0, -1.0, 4.5, np.nan, np.inf, 3.9999, 2.0])


# -- machine code ------------------------------------------------------------------------------
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 4, 7, 50]), min_size=1, max_size=3),
    last=st.integers(0, 3),
    count=st.sampled_from([1, 4, 40]),
    dtype=st.sampled_from(["int8", "uint8", "int16", "int32", "int64", "uint64"]),
    threads=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
    first=st.booleans(),
)
def test_counting(
    shape: list[int], last: int, count: int, dtype: str, threads: int, seed: int, first: bool
) -> None:
    """Along the last axes, or the first ones: then lines lie beside each other."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-3 if dtype[0] == "i" else 0, count + 2, shape).astype(dtype)
    axes = tuple(range(min(last, len(shape) - 1), len(shape)))
    axes = tuple(range(len(axes))) if first else axes
    left = [n for d, n in enumerate(shape) if d not in axes]
    out = np.full((*left, count), 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally, "GRAIN", 8)
        patch.setattr(tally, "BLOCK", 16)
        tally._text.cache_clear()
        made = tally.counting_kernel(x, out, axes, threads)
        tally._text.cache_clear()
    assert made is not None
    for _ in range(2):  # tables are empty again
        made(x, out)
        np.testing.assert_array_equal(out, tallied(x, axes, count))


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
@pytest.mark.parametrize("monoid", ["sum", "prod", "min", "max"])
def test_folding(monoid: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    x = (1 + rng.random(1003) / 50 if monoid == "prod" else rng.normal(size=1003) * 3).astype(dtype)
    if dtype[0] == "f" and monoid in ("min", "max"):
        x[77] = np.nan
    ids = rng.integers(-1, 9, 1003)
    wanted = grouped(x, ids, 8, getattr(np, UFUNCS[monoid]), identity(monoid, x.dtype))
    seen = set()
    for threads in (1, 2, 3, 5):
        out = np.full(8, 7, dtype)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tally, "GRAIN", 8)
            made = tally.folding_kernel(monoid, x, ids, out, threads)
        assert made is not None
        for _ in range(2):  # tables are as they were
            made(x, ids, out)
            np.testing.assert_allclose(out, wanted, rtol=1e-4)
            seen.add(out.tobytes())
    assert len(seen) == 1  # threads change no bit


# -- counts ------------------------------------------------------------------------------------
def test_bincount() -> None:
    assert_same(lambda k: ost.bincount(k, length=7), lambda k: np.bincount(k, minlength=7), IDS)
    assert_same(
        lambda k, w: ost.bincount(k, w, length=5), lambda k, w: np.bincount(k, w), IDS, ROWS[:, 0]
    )
    with use((2,)):
        k = ost.asarray(IDS, split=0)
        np.testing.assert_array_equal(np.asarray(ost.bincount(k)), np.bincount(IDS))
        assert ost.bincount(k, minlength=9).shape == (9,)
        assert ost.bincount(np.zeros(0, int), minlength=2).tolist() == [0, 0]
        assert ost.bincount([True, False, True]).tolist() == [1, 2]
        assert ost.bincount([1, 9, -1], length=3).tolist() == [0, 1, 0]


def test_counting_is_one_all_reduce() -> None:
    with use((2,)):
        k = ost.asarray(R.integers(0, 100, 50_000), split=0)
        for function, size in (
            (lambda k: ost.bincount(k, length=100), 800),
            (lambda k: ost.segment_sum(k * 0.5, k, 100), 800),
            (lambda k: ost.groupby(k, size=100).mean(k), 1600),
            (lambda k: ost.histogram(k, 50, (0, 100))[0], 400),
        ):
            f = ost.compile(function)
            f(k)
            messages = sent(f, 2)
            assert {name for name, _ in messages} <= {"all_reduce", "reduce_scatter"}
            assert sum(n for _, n in messages) == size


# -- histograms --------------------------------------------------------------------------------
BINS: list[Any] = [10, 1, 37, "sqrt", "rice", "sturges", "scott", "fd", "doane", "auto"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize("bins", BINS)
def test_bins_of_one_width(dtype: str, bins: Any) -> None:
    x = (R.normal(size=(50, 6)) * 5).astype(dtype)
    if dtype == "int64" and bins in ("scott", "fd", "doane", "auto"):
        return  # NumPy has rules of its own for whole numbers
    turn = BINS.index(bins) + len(dtype)
    for between in some([None, (-3, 4), (-3.5, 7.25)], 3, turn):
        wanted = np.histogram(x, bins, between)
        with use((2,)):
            found = ost.histogram(ost.asarray(x, split=0), bins, between)
            compare_all(found, wanted, f"{dtype} {bins} {between}", 1e-6)
            np.testing.assert_array_equal(np.asarray(found[0]), wanted[0])
            edges = ost.histogram_bin_edges(x, bins, between)
            np.testing.assert_allclose(np.asarray(edges), wanted[1], rtol=1e-6)


def test_edges_belong_to_bins_as_numpy_says() -> None:
    edges = np.array([0.0, 1.0, 1.5, 4.0])
    for bins, between in ((4, (0, 4)), (edges, None), (edges.tolist(), None)):
        assert_same(
            lambda x, b=bins, r=between: ost.histogram(x, b, r),
            lambda x, b=bins, r=between: np.histogram(x, b, r),
            ODD,
        )
    for n in (3, 7, 10, 49):  # where arithmetic alone would miss an edge
        x = np.linspace(0, 1, n + 1)
        np.testing.assert_array_equal(
            np.asarray(ost.histogram(x, n)[0]), np.histogram(x, n)[0], str(n)
        )


def test_densities_and_weights() -> None:
    x, w = R.normal(size=60), R.random(60)
    for density in (False, True):
        assert_same(
            lambda x, w, d=density: ost.histogram(x, 8, (-2, 2), d, w),
            lambda x, w, d=density: np.histogram(x, 8, (-2, 2), d, w),
            x,
            w,
            few=True,
        )
        assert_same(
            lambda x, w, d=density: ost.histogram2d(x, w, (4, [0, 0.5, 1]), density=d),
            lambda x, w, d=density: np.histogram2d(x, w, (4, [0, 0.5, 1]), density=d),
            x,
            w,
            few=True,
        )
    assert_same(
        lambda x: ost.histogramdd(x, (2, 3, 4))[0], lambda x: np.histogramdd(x, (2, 3, 4))[0], ROWS
    )
    with use():
        found = ost.histogramdd(ROWS, 3, [(-1, 1)] * 3, weights=ROWS[:, 0])
        wanted = np.histogramdd(ROWS, 3, [(-1, 1)] * 3, weights=ROWS[:, 0])
        compare_all(found[0], wanted[0], "weights")
        assert ost.histogram(ost.zeros(0), 3)[0].tolist() == [0, 0, 0]
        assert ost.histogram([2.0, 2.0], 2)[0].tolist() == np.histogram([2.0, 2.0], 2)[0].tolist()


# -- groups ------------------------------------------------------------------------------------
def by_hand(x: Any, ids: Any, function: Any) -> Any:
    return np.stack([function(x[ids == k]) for k in range(5)])


@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "mean", "var", "std"])
def test_groups(name: str) -> None:
    def wanted(x: Any, ids: Any) -> Any:
        return by_hand(x, ids, lambda rows: getattr(np, name)(rows, axis=0))

    assert_same(lambda x, i: getattr(ost.groupby(i, size=5), name)(x), wanted, ROWS, IDS)
    if name not in ("var", "std"):
        assert_same(
            lambda x, i: getattr(ost, f"segment_{name}")(x, i, 5), wanted, ROWS[:, 0], IDS, few=True
        )


def test_groups_of_many_rows() -> None:
    """Machine code, also where a row is in no group."""
    ids = R.integers(0, 50, 20_000)
    x = R.normal(size=(20_000, 2)).astype(np.float32)
    for low in (0, -1):
        ids[7] = low
        keep = ids >= 0
        wanted = np.zeros((50, 2))
        np.add.at(wanted, ids[keep], x[keep])
        for workers in (1, 2):
            with use((workers,)):
                given = ost.asarray(x, split=0), ost.asarray(ids, split=0)
                compare_all(ost.segment_sum(*given, 50), wanted.astype(np.float32), "", 1e-4, 1e-4)
                top = np.full((50, 2), -np.inf, np.float32)
                np.maximum.at(top, ids[keep], x[keep])
                compare_all(ost.segment_max(*given, 50), top, "max")


def test_groups_of_each_element() -> None:
    """One operation, whether elements share their groups or not."""
    ids = R.integers(-1, 5, (3, 40))
    x = R.normal(size=(3, 40))
    with use():
        for axes, wanted in (
            ((0, None), [np.bincount(ids[0][ids[0] >= 0], w[ids[0] >= 0], 5) for w in x]),
            ((None, 0), [np.bincount(k[k >= 0], x[0][k >= 0], 5) for k in ids]),
            ((0, 0), [np.bincount(k[k >= 0], w[k >= 0], 5) for w, k in zip(x, ids, strict=True)]),
        ):
            mapped = ost.compile(ost.vmap(lambda x, k: ost.segment_sum(x, k, 5), in_axes=axes))
            given = x if axes[0] == 0 else x[0], ids if axes[1] == 0 else ids[0]
            found = mapped(*map(ost.asarray, given))
            np.testing.assert_allclose(np.asarray(found), wanted)
            assert "loop" not in {n.op for n in mapped.plan.program.graph.nodes}


def test_what_groups_give_back() -> None:
    with use():
        g = ost.groupby([0, 2, 0, 7], size=3)
        assert g.count().tolist() == [2, 0, 1]
        np.testing.assert_array_equal(np.asarray(g.mean([1, 2, 3, 4])), [2, np.nan, 2])
        np.testing.assert_array_equal(
            np.asarray(g.of_each(ost.asarray([1.0, 2.0, 3.0]))), [1, 3, 1, np.nan]
        )
        assert g.of_each([1, 2, 3]).tolist() == [1, 3, 1, 0]
        assert ost.groupby([0, 2]).size == 3
        assert ost.segment_sum(np.ones(3, np.int8), [0, 0, 1]).dtype == np.int64
        assert ost.segment_mean(np.ones(3, np.float16), [0, 0, 1], 2).dtype == np.float16
        labels, ids = ost.unique_inverse(ost.asarray([30, 10, 30]), size=2)
        assert ost.groupby(ids, size=2).sum([1.0, 2.0, 4.0]).tolist() == [2, 5]
        assert labels.tolist() == [10, 30]


def test_a_products_gradient_where_rows_are_0() -> None:
    x, ids = np.array([2.0, 0, 3, 0, 0, 5]), np.array([0, 0, 0, 1, 1, 2])
    with use((2,)):
        slope = ost.grad(lambda x: ost.segment_prod(x, ids, 3).sum())(ost.asarray(x, split=0))
        assert slope.tolist() == [0, 6, 0, 0, 0, 1]


# -- errors ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ost.bincount([[1]]), ShapeError, "one axis"),
        (lambda: ost.bincount([0.5]), DTypeError, "whole numbers"),
        (lambda: ost.bincount([-1]), ArgumentError, "none below 0"),
        (lambda: ost.histogram(ODD, 0), ArgumentError, "0 bins"),
        (lambda: ost.histogram(ODD, 3, (2, 1)), ArgumentError, "that go up"),
        (lambda: ost.histogram(ODD, [2.0, 1.0]), ArgumentError, "edges that go down"),
        (lambda: ost.histogram(ODD[:5], "best"), ArgumentError, "bins='best'"),
        (lambda: ost.histogram(ODD, 3, (0, 1), weights=[1.0]), ShapeError, "weights of shape"),
        (lambda: ost.histogramdd([[1.0], [1.0, 2.0]]), ShapeError, "as long as each other"),
        (lambda: ost.histogramdd(ROWS, [2, 2]), ArgumentError, "one for each of 3"),
        (lambda: ost.segment_sum(ROWS, IDS[:3], 5), ShapeError, "for each row"),
        (lambda: ost.groupby(ROWS, size=5), ShapeError, "a whole number per row"),
        (lambda: ost.groupby(IDS, size=5).of_each([1.0]), ShapeError, "5 rows"),
    ],
)
def test_what_is_refused(call: Any, error: Any, says: str) -> None:
    with use(), pytest.raises(error, match=says):
        call()


def test_sizes_are_needed_where_values_are_not_known() -> None:
    with use():
        for function in (ost.bincount, lambda k: ost.groupby(k).count()):
            with pytest.raises(DataDependentShapeError, match="while"):
                ost.compile(lambda k, f=function: f(k))(ost.asarray(IDS))
