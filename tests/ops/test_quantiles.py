"""Quantiles by every method of NumPy's, in every layout; nobody gathers what is split."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.io_pipeline.array_files import NpySource
from ostinato.ops.array.quantiles import METHODS
from ostinato.ops.array.selection import _radix_select
from ostinato.ops.cpu.cpu_device import CPU
from ostinato.ops.cpu.kernels.ranks import _spread, order_statistics
from ostinato.planner.passes import blocking

import ostinato as ost
from ostinato.errors import ArgumentError, BoundsError, DTypeError
from tests.helpers import MESHES, assert_same, compare_all
from tests.sessions import forget_plans, use
from tests.thorough import few, some

from .samples import at_ranks

R = np.random.default_rng(0)
X = R.normal(size=(7, 6))
GAPS = np.where(R.random((7, 6)) < 0.3, np.nan, X)
GAPS[2] = np.nan
ONE = some(MESHES, 3, 1)  # of three workers: the medians of X go everywhere
SHARES = [0.0, 0.1, 0.5, 0.73, 1.0]
MESSAGES = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "broadcast", "halo")


def sent(f: Any, workers: int) -> list[tuple[str, int]]:
    """The messages of a compiled function: what kind, and the bytes of a result."""
    graph = f.plan.program.graph
    found = []
    for node in graph.nodes:
        name = node.kw.get("collective", node.op) if node.op == "start" else node.op
        if name in MESSAGES:
            found.append((name, sum(s.nbytes for s in node.specs)))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_numpys(method: str) -> None:
    for axis in (None, 0, 1, (0, 1)):
        for n in (1, 2, 7):
            x = X[:n]
            with use():
                found = ost.quantile(x, SHARES, axis, method=method)
            wanted = np.quantile(x, SHARES, axis, method=method)
            compare_all(found, wanted, f"{method} of {n} along {axis}")
    with use():
        found = ost.nanquantile(GAPS, SHARES, 1, method=method)
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning, match="All-NaN"):
        wanted = np.nanquantile(GAPS, SHARES, 1, method=method)
    compare_all(found, wanted, method)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.filterwarnings("ignore:All-NaN")
def test_in_every_layout(axis: Any) -> None:
    assert_same(lambda x: ost.median(x, axis), lambda x: np.median(x, axis), X)
    assert_same(
        lambda x: ost.percentile(x, [5, 50, 97], axis, keepdims=True),
        lambda x: np.percentile(x, [5, 50, 97], axis, keepdims=True),
        X,
        meshes=ONE,
    )
    assert_same(
        lambda x: ost.nanquantile(x, 0.4, axis),
        lambda x: np.nanquantile(x, 0.4, axis),
        GAPS,
        meshes=ONE,
    )
    assert_same(lambda x: ost.median(x, axis), lambda x: np.median(x, axis), GAPS, meshes=ONE)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool"])
def test_dtypes(dtype: str) -> None:
    x = (R.normal(size=50) * 9).astype(dtype)
    for workers in (1, 3):
        with use((workers,)):
            found = ost.quantile(ost.asarray(x, split=0), 0.3)
            wanted = np.quantile(x.astype(np.float64), 0.3)
            assert found.dtype == (dtype if dtype[0] == "f" else "float64")
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-3)


@settings(deadline=None, max_examples=few(60))
@given(
    shape=st.lists(st.sampled_from([1, 2, 5, 40]), min_size=1, max_size=3),
    first=st.integers(0, 2),
    dtype=st.sampled_from(["float32", "float64", "float16", "int8", "uint64", "bool"]),
    own=st.booleans(),
    turned=st.booleans(),
    seed=st.integers(0, 99),
)
def test_elements_at_ranks(
    shape: list[int], first: int, dtype: str, own: bool, turned: bool, seed: int
) -> None:
    """By selection on a CPU, and by digits as where lines are split."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=shape) * 3).astype(dtype)
    if dtype[0] == "f":
        x[rng.random(shape) < 0.1] = np.nan
    x = x.T if turned else x
    axes = tuple(range(min(first, x.ndim - 1), x.ndim))
    n = math.prod(x.shape[a] for a in axes)
    left = x.shape[: axes[0]] if own else (1,) * axes[0]
    ranks = rng.integers(0, n, (*left, 3))
    wanted = at_ranks(x, ranks, axes)
    out = np.empty_like(wanted)
    room = [np.empty(x.shape, x.dtype)]
    made = CPU.natives["order_statistics"].make([x, ranks, out], 1, scratch=room, axes=axes)
    kept = x.copy()
    made(x, ranks, out)
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(x, kept)
    with use():
        found = _radix_select(ost.asarray(x), ost.asarray(ranks), axes)
        np.testing.assert_array_equal(np.asarray(found), wanted)


def test_weights_are_numpys() -> None:
    w = R.integers(0, 4, X.shape).astype(float)
    w[:, 0] += 1
    for axis in (None, 0, 1):
        assert_same(
            lambda x, w, a=axis: ost.quantile(x, SHARES, a, method="inverted_cdf", weights=w),
            lambda x, w, a=axis: np.quantile(x, SHARES, a, method="inverted_cdf", weights=w),
            X,
            w + (axis == 0),
            meshes=ONE,
        )
    with use((2,)):
        x = ost.asarray(X, split=0)
        found = ost.percentile(x, 40, 1, method="inverted_cdf", weights=[0.5, 1, 2, 0, 0, 1])
        wanted = np.percentile(X, 40, 1, method="inverted_cdf", weights=[0.5, 1, 2, 0, 0, 1])
        compare_all(found, wanted, "weights of an axis")
        gaps = np.where(np.isnan(GAPS), 9.0, GAPS)
        found = ost.nanquantile(GAPS, 0.4, method="inverted_cdf", weights=w + 1)
        wanted = np.quantile(gaps, 0.4, method="inverted_cdf", weights=(w + 1) * ~np.isnan(GAPS))
        compare_all(found, wanted, "NaN left out")
        assert np.isnan(ost.quantile(GAPS, 0.4, method="inverted_cdf", weights=w))
        slope = ost.grad(
            lambda x: ost.quantile(x, 0.5, method="inverted_cdf", weights=[1.0, 5.0, 1.0])
        )
        assert slope(ost.asarray([3.0, 1.0, 2.0])).tolist() == [0, 1, 0]


def test_what_is_odd() -> None:
    with use():
        inf = math.inf
        for x, wanted in (
            ([1.0, inf], [1, inf, inf]),
            ([-inf, 1.0, 2.0], [-inf, -inf, 2]),
            ([inf] * 3, [inf] * 3),  # there is nothing in between
            ([0.0, -0.0], [0, 0, 0]),
        ):
            assert ost.quantile(ost.asarray(x), [0, 0.25, 1]).tolist() == wanted
        assert np.isnan(ost.median(ost.zeros(0)))
        assert ost.median(ost.zeros((0, 3)), axis=0).shape == (3,)
        assert ost.median(ost.zeros((0, 3)), axis=1).shape == (0,)
        assert ost.quantile(X, np.zeros((0,)), axis=0).shape == (0, 6)
        assert ost.quantile(X.astype(np.float32), np.float64(0.5)).dtype == np.float64
        assert float(ost.median(3)) == 3


def test_shares_that_are_not_known_yet() -> None:
    with use((2,)):
        f = ost.compile(lambda x, q: ost.quantile(x, q, axis=0))
        for q in (0.2, 0.9):
            found = f(ost.asarray(X, split=0), ost.asarray([q, 0.5]))
            compare_all(found, np.quantile(X, [q, 0.5], axis=0), "traced")
        assert len(ost.session().plans.plans) > 0


@pytest.mark.parametrize(("dtype", "rounds"), [("float32", 3), ("float64", 6)])
def test_selection_sends_counts_only(dtype: str, rounds: int) -> None:
    """An all-reduce of a digit's counts in each round, for two ranks and the last, which may be
    NaN. Two workers would gather the line: each has more to count than to select."""
    x = R.normal(size=500_000).astype(dtype)
    with use((4,)):
        f = ost.compile(ost.median)
        found = f(ost.asarray(x, split=0))
        compare_all(found, np.median(x), "split")
        messages = sent(f, 4)
        sums = [name for name, _ in messages if name != "all_gather"]  # of parts of sums
        assert {*sums} <= {"all_reduce", "reduce_scatter"}
        assert rounds <= len(sums) <= 3 * rounds  # of three ranks, together or one by one
        assert sum(n for name, n in messages if name in sums) <= 3 * 8 * (rounds << 11)
        assert max(n for _, n in messages) <= 3 * 8 * (1 << 11)


def test_gradients() -> None:
    """Shared by what is equal."""
    with use():
        g = ost.grad(lambda x: ost.median(x))
        np.testing.assert_allclose(np.asarray(g(ost.asarray([3.0, 1.0, 2.0]))), [0, 0, 1])
        np.testing.assert_allclose(np.asarray(g(ost.asarray([3.0, 1.0]))), [0.5, 0.5])
        np.testing.assert_allclose(np.asarray(g(ost.asarray([2.0, 2.0, 1.0]))), [0.5, 0.5, 0])
    x = R.normal(size=(5, 4))

    def wanted(x: Any) -> Any:
        made = np.zeros_like(x)
        made[np.argsort(x, 0)[3], np.arange(4)] = 1
        return made

    slope = ost.grad(lambda x: ost.quantile(x, 0.75, axis=0).sum())
    assert_same(lambda x: slope(x), wanted, x)


def test_partitions() -> None:
    x = R.normal(size=(6, 9))
    for axis in (0, 1, -1, None):
        with use((2,)):
            found = np.asarray(ost.partition(ost.asarray(x, split=0), (1, -2), axis))
            places = np.asarray(ost.argpartition(ost.asarray(x, split=1), (1, -2), axis))
        lines = x if axis is not None else x.reshape(-1)
        d = -1 if axis is None else axis
        ordered = np.sort(lines, d)
        for made in (found, np.take_along_axis(lines, places, d)):
            np.testing.assert_array_equal(np.take(made, [1, -2], d), np.take(ordered, [1, -2], d))
            np.testing.assert_array_equal(np.sort(made, d), ordered)
            assert (np.take(made, [0], d) <= np.take(made, [1], d)).all()


def test_numpys_functions_take_ours() -> None:
    """With NumPy's dtypes."""
    x, k = X.astype(np.float32), R.integers(0, 9, 20)
    for call in (
        lambda a, k: np.median(a, axis=1),
        lambda a, k: np.quantile(a, 0.3, axis=0),
        lambda a, k: np.quantile(a, [0.3, 0.5]),
        lambda a, k: np.nanpercentile(a, [30, 50], axis=1, keepdims=True),
        lambda a, k: np.histogram(a, 5),
        lambda a, k: np.histogram2d(a[0], a[1], 3),
        lambda a, k: np.bincount(k),
        lambda a, k: np.bincount(k, k),
        lambda a, k: np.partition(k, 5)[5],
        lambda a, k: np.lexsort((k, k[::-1])),
        lambda a, k: np.union1d(k, k + 3),
        lambda a, k: np.setdiff1d(k, k + 3),
        lambda a, k: np.isin(k, k[:3]),
    ):
        with use((2,)):
            found = call(ost.asarray(x), ost.asarray(k))
            compare_all(found, call(x, k), "np", 1e-5)


def test_lexsort() -> None:
    a, b = R.integers(0, 3, (2, 4, 9))
    assert_same(lambda a, b: ost.lexsort([a, b]), lambda a, b: np.lexsort([a, b]), a, b)
    with use():
        np.testing.assert_array_equal(np.asarray(ost.lexsort([a, b], 0)), np.lexsort([a, b], 0))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ost.quantile(X, 1.5), ArgumentError, "numbers from 0 to 1"),
        (lambda: ost.percentile(X, -1), ArgumentError, "numbers from 0 to 100"),
        (lambda: ost.quantile(X, 0.5, method="best"), ArgumentError, "method='best'"),
        (lambda: ost.median(X + 1j), DTypeError, "a dtype with an order"),
        (lambda: ost.partition(X, 9), BoundsError, "as the axis has 6"),
        (lambda: ost.argpartition(X + 1j, 0), DTypeError, "a dtype with an order"),
        (lambda: ost.quantile(X, 0.5, weights=X), ArgumentError, "'inverted_cdf'"),
        (lambda: ost.quantile(X, [[0.5]]), ArgumentError, "a row of them"),
    ],
)
def test_what_is_refused(call: Any, error: Any, says: str) -> None:
    with use(), pytest.raises(error, match=says):
        call()


LONG = 40_000


def _lines() -> dict[str, Any]:
    r = np.random.default_rng(5)
    normal = r.normal(size=LONG).astype(np.float32)
    gaps = np.where(r.random(LONG) < 0.3, np.nan, normal)
    misled = normal.copy()
    misled[_spread(LONG)] = 9.0  # all that a sample sees
    return {
        "normal": normal,
        "sorted": np.sort(r.normal(size=LONG)),
        "backwards": -np.arange(LONG, dtype=np.int32),
        "a period": np.sin(np.arange(LONG) * (2 * np.pi / 64)),
        "few numbers": r.integers(0, 3, LONG),
        "one number": np.zeros(LONG),
        "gaps": gaps,
        "nothing": np.full(LONG, np.nan),
        "infinite": np.where(r.random(LONG) < 0.5, np.inf, normal),
        "misled": misled,
        "steps": np.repeat(normal, 3)[::3],
    }


@pytest.mark.parametrize("name", _lines())
def test_ranks_of_a_long_line(name: str) -> None:
    """Each rank is found, also where a sample tells nothing; and the line stays as it is."""
    x = _lines()[name]
    r = np.random.default_rng(1)
    for many in (1, 2, 7):
        ranks = r.integers(0, LONG, many)
        ranks = np.concatenate([ranks, ranks[:1] + (ranks[:1] < LONG - 1), [0, LONG - 1]])
        room, out = np.empty_like(x), np.empty(len(ranks), x.dtype)
        before = x.copy()
        run = order_statistics([x, ranks, out], 1, axes=(0,), scratch=[room])
        assert run is not None
        run(x, ranks, out)
        np.testing.assert_array_equal(out, np.sort(x)[ranks])
        np.testing.assert_array_equal(x, before)


def test_ranks_of_long_lines_of_their_own() -> None:
    x = np.random.default_rng(2).normal(size=(3, LONG // 2, 2))
    ranks = np.random.default_rng(3).integers(0, LONG, (3, 4))
    room, out = np.empty_like(x), np.empty((3, 4))
    for line in (x, x[:, ::-1], np.asarray(x, order="F")):
        run = order_statistics([line, ranks, out], 1, axes=(1, 2), scratch=[room])
        assert run is not None
        run(line, ranks, out)
        wanted = np.take_along_axis(np.sort(line.reshape(3, -1), axis=1), ranks, axis=1)
        np.testing.assert_array_equal(out, wanted)


# -- from files --------------------------------------------------------------------------------
@pytest.mark.parametrize("mesh", [(1,), (2,)])
@pytest.mark.parametrize(
    ("dtype", "passes"), [("float64", 4), ("float32", 2), ("float16", 1), ("int64", 4)]
)
def test_a_long_file_is_read_in_few_passes(
    dtype: str, passes: int, mesh: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are digits of 16 bits, of all quantiles together; the numbers are NumPy's."""
    monkeypatch.setattr(blocking, "READ_BYTES", 1 << 22)
    count = [0]
    read = NpySource.read

    def counted(self: Any, out: Any, *args: Any) -> Any:
        count[0] += out.nbytes
        return read(self, out, *args)

    monkeypatch.setattr(NpySource, "read", counted)
    x = (np.random.default_rng(1).normal(size=3_000_000) * 100).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    forget_plans()
    with use(mesh):
        lazy = ost.load(tmp_path / "x.npy", resident=False, split=0)
        for q in ([0.5], [0.1, 0.9]):
            count[0] = 0
            found = ost.compile(lambda x, q=q: ost.quantile(x, q, method="lower"))(lazy)
            np.testing.assert_array_equal(found, np.quantile(x, q, method="lower"))
            assert count[0] == passes * x.nbytes
    forget_plans()
