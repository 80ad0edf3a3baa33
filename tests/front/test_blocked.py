"""Algorithms on arrays in files that are larger than the memory limit: the values of NumPy, few bytes read and
written more than once, a peak below the limit, and nothing left behind."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import merging, sinks
from ostinato.io_pipeline.array_files import NpySource
from ostinato.ops.core.build import Builder
from ostinato.ops.core.encode import Malformed
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.targets import targets
from ostinato.planner.check import check_layouts
from ostinato.planner.plan import Plan, Target
from ostinato.runtime import bound_values

import ostinato as ost
from ostinato import settings, streaming
from ostinato.errors import DataFileError
from ostinato.sessions import Session
from tests.front.test_streaming import KINDS, kind, loaded, moved, needs, small_blocks, value
from tests.planner.test_blocking import turns as turns_of
from tests.sessions import use
from tests.thorough import some, turns

__all__ = ["kind", "moved", "small_blocks", "value"]  # fixtures

MESHES: tuple[tuple[int, ...], ...] = ((1,), (2,), (3,), (2, 2))
LIMIT = 24_000
BY_NUMPY = {
    "cumulative_sum": np.cumsum,
    "cumulative_prod": np.cumprod,
    "cumulative_max": np.maximum.accumulate,
    "cumulative_min": np.minimum.accumulate,
}


def last_plan(session: Session) -> Plan:
    return list(session.plans.plans.values())[-1]


# -- running sums ------------------------------------------------------------------------------
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod", "cumulative_max"])
def test_running_sums_of_a_file(
    tmp_path: Path, value: Any, kind: str, mesh: Any, axis: int, name: str, moved: Counter[str]
) -> None:
    """Along the axis that is cut they go on from block to block, and from worker to worker."""
    by_numpy: Any = BY_NUMPY[name]
    with use(mesh, memory_limit=LIMIT) as session:
        x = ost.load(tmp_path / "x.npy", resident=False)
        moved.clear()
        ost.save(tmp_path / f"y{kind}", getattr(ost, name)(x / 2, axis=axis) + 1)
        assert value.nbytes <= moved["read"] <= 1.1 * value.nbytes
        assert value.nbytes <= moved["written"] <= 1.1 * value.nbytes
        plan = last_plan(session)
        assert plan.peak_bytes <= LIMIT < value.nbytes
        assert min(turns_of(plan)) >= 17 // math.prod(mesh)
        found = loaded(tmp_path / f"y{kind}")
        wanted = by_numpy((value / 2).astype(np.longdouble), axis) + 1
        rounds = 64 * np.finfo(float).eps * (np.abs(wanted).max() if "sum" in name else 0)
        np.testing.assert_allclose(found, wanted.astype(float), rtol=1e-12, atol=rounds)
    assert not targets


@pytest.mark.parametrize("mesh", MESHES[:3])
def test_what_is_made_of_running_sums(tmp_path: Path, value: Any, mesh: Any) -> None:
    """Results that are read, and several of them."""
    with use(mesh, memory_limit=LIMIT) as session:
        x = ost.load(tmp_path / "x.npy", resident=False)
        walk = ost.cumulative_sum(x, axis=0)
        highest, lowest = walk.max(axis=0), ost.cumulative_sum(x - 1, axis=0).min()
        ost.evaluate(highest, lowest)
        assert last_plan(session).peak_bytes <= LIMIT
        np.testing.assert_allclose(np.asarray(highest), np.cumsum(value, 0).max(0))
        np.testing.assert_allclose(float(lowest), np.cumsum(value - 1, 0).min())


@pytest.mark.parametrize("seed", some(range(60)))
def test_running_sums_of_any_file(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    r, rng = random.Random(seed), np.random.default_rng(seed)
    dtype = np.dtype(r.choice(["bool", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]))
    shape = [r.randint(30, 900), *(r.randint(1, 4) for _ in range(r.randint(0, 2)))]
    made = rng.integers(0, 2, shape) if dtype.kind in "bu" else rng.normal(size=shape) * 2
    made = made.astype(dtype)
    axis, name = r.randrange(len(shape)), r.choice([*BY_NUMPY])
    if dtype.kind == "b" or (dtype.kind == "c" and name.endswith(("max", "min"))):
        name = "cumulative_sum"
    size = r.randint(60, 4000)
    np.save(tmp_path / "x.npy", made)
    monkeypatch.setattr("ostinato.planner.passes.blocking.READ_BYTES", size)
    with use(r.choice(MESHES), r.choice(["same-plan", "any-workers"])) as session:
        x = ost.load(tmp_path / "x.npy", resident=False, split=r.choice([None, 0]))
        y = getattr(ost, name)(x, axis=axis)
        ost.save(tmp_path / "y.zarr", y)
        wide = made.astype("f4") if dtype == "f2" else made
        with np.errstate(all="ignore"):
            expected = BY_NUMPY[name](wide, axis=axis).astype(y.dtype)  # type: ignore[operator]
        found = loaded(tmp_path / "y.zarr")
        if dtype.kind in "biu" or session.target.numerics == "same-plan":
            assert turns_of(last_plan(session)) or made.nbytes <= size * session.workers
        if dtype.kind in "biu":
            np.testing.assert_array_equal(found, expected)
        else:
            most = float(np.abs(expected[np.isfinite(expected)]).max())
            close = {"rtol": 1e-2 if dtype == "f2" else 1e-4 if dtype.itemsize < 8 else 1e-9}
            np.testing.assert_allclose(found, expected, atol=most * 1e-5, **close)


def test_products_overflow_where_numpys_do(tmp_path: Path) -> None:
    """A block's own product would, though the line's does not."""
    made = np.repeat([1e-100, 1e100, 1e-100], [600, 3, 600])
    made[3:600], made[603:] = 1.0, 1.0
    np.save(tmp_path / "x.npy", made)
    with use((2,), memory_limit=1000):
        y = ost.cumulative_prod(ost.load(tmp_path / "x.npy", resident=False))
        ost.save(tmp_path / "y.npy", y)
    np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), np.cumprod(made))


def test_a_plan_with_running_sums_is_a_file_too(tmp_path: Path, value: Any) -> None:
    with use((2,)):
        f = ost.compile(lambda x: ost.cumulative_sum(x, axis=0).max(axis=0), memory_limit=LIMIT)
        x = ost.load(tmp_path / "x.npy", resident=False)
        expected = np.asarray(f(x))
        np.testing.assert_allclose(expected, np.cumsum(value, 0).max(0))
        f.plan.to_file(tmp_path / "p")
        again = Plan.from_file(tmp_path / "p")
        assert again.lowered == f.plan.lowered
        np.testing.assert_array_equal(np.asarray(ost.run(again, x)), expected)


@pytest.mark.parametrize("mesh", [(1,), (3,)])
def test_trouble_in_a_block_reaches_who_waits(
    tmp_path: Path, value: Any, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers wait for what those before them end with."""
    read, count = NpySource.read, iter(range(10**6))

    def fails(self: NpySource, out: Any, box: Any) -> None:
        if next(count) == 3:
            raise OSError(5, "input/output error")
        read(self, out, box)

    with use(mesh, memory_limit=LIMIT):
        y = ost.cumulative_sum(ost.load(tmp_path / "x.npy", resident=False), axis=0)
        before = sorted(p.name for p in tmp_path.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(NpySource, "read", fails)
            with pytest.raises(Exception, match="input/output"):
                ost.save(tmp_path / "y.npy", y)
        assert sorted(p.name for p in tmp_path.iterdir()) == before
        ost.save(tmp_path / "y.npy", y)
    np.testing.assert_allclose(loaded(tmp_path / "y.npy"), np.cumsum(value, 0))


def test_sums_that_do_not_go_on_are_seen(
    tmp_path: Path, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above find workers that begin anew."""
    del value
    monkeypatch.setattr(bound_values, "neighbours", lambda *_: (None, None))
    x = np.load(tmp_path / "x.npy")
    with use((3,), memory_limit=LIMIT):
        ost.save(
            tmp_path / "y.npy",
            ost.cumulative_sum(ost.load(tmp_path / "x.npy", resident=False), axis=0),
        )
    assert not np.allclose(loaded(tmp_path / "y.npy"), np.cumsum(x, 0))


# -- scans -------------------------------------------------------------------------------------
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_scan_reads_batch_after_batch(
    tmp_path: Path, mesh: Any, scaled: bool, moved: Counter[str]
) -> None:
    """Also of what is made of a file, which is made of each batch by itself."""
    made = np.random.default_rng(6).normal(size=(40, 60, 5))
    np.save(tmp_path / "b.npy", made)
    limit = made.nbytes // 3

    def step(w: Any, batch: Any) -> tuple[Any, Any]:
        slope = batch.T @ (batch @ w - 1) / 60
        return w - 0.1 * slope, (slope * slope).sum()

    w, slopes = np.zeros(5), []
    for batch in made * 2 if scaled else made:
        w, slope = step(w, batch)
        slopes.append(slope)
    with use(mesh, memory_limit=limit) as session:
        x = ost.load(tmp_path / "b.npy", resident=False)
        moved.clear()
        end, found = ost.scan(step, ost.zeros(5), x * 2 if scaled else x)
        ost.evaluate(end, found)
        assert moved["read"] <= 1.1 * made.nbytes
        assert last_plan(session).peak_bytes <= limit
        np.testing.assert_allclose(np.asarray(end), w, rtol=1e-9)
        np.testing.assert_allclose(np.asarray(found), slopes, rtol=1e-9)


# -- tall matrices -----------------------------------------------------------------------------
TALL = 7901, 4
SMALL = 80_000  # bytes of memory


@pytest.fixture
def tall(tmp_path: Path) -> Any:
    made = np.random.default_rng(1).normal(size=TALL) @ np.diag(10.0 ** -np.arange(4.0))
    np.save(tmp_path / "a.npy", made)
    return made


def signed(a: Any) -> tuple[Any, Any]:
    """NumPy's QR, the diagonal of R positive."""
    q, r = np.linalg.qr(a)
    signs = np.sign(np.diagonal(r))
    return q * signs, signs[:, None] * r


@pytest.mark.parametrize("mesh", MESHES)
def test_singular_values_of_a_file(
    tmp_path: Path, tall: Any, mesh: Any, moved: Counter[str]
) -> None:
    """One pass: the blocks' triangles are all that stays."""
    with use(mesh, memory_limit=SMALL) as session:
        a = ost.load(tmp_path / "a.npy", resident=False)
        moved.clear()
        found = np.asarray(ost.linalg.svdvals(a - 1))
        assert tall.nbytes <= moved["read"] <= 1.1 * tall.nbytes
        assert last_plan(session).peak_bytes <= SMALL < tall.nbytes / 3
        np.testing.assert_allclose(found, np.linalg.svd(tall - 1, compute_uv=False), rtol=1e-9)


@pytest.mark.parametrize("mesh", MESHES)
def test_qr_of_a_file(tmp_path: Path, tall: Any, kind: str, mesh: Any, moved: Counter[str]) -> None:
    """Two passes over the file, for R and for Q, which goes to a file itself."""
    with use(mesh, memory_limit=SMALL) as session:
        a = ost.load(tmp_path / "a.npy", resident=False)
        q, r = ost.linalg.qr(a)
        moved.clear()
        ost.save(tmp_path / f"q{kind}", q)
        assert 2 * tall.nbytes <= moved["read"] <= 2.2 * tall.nbytes
        assert tall.nbytes <= moved["written"] <= 1.1 * tall.nbytes
        assert last_plan(session).peak_bytes <= SMALL
        moved.clear()
        upper = np.asarray(r)
        assert moved["read"] <= 1.1 * tall.nbytes
        assert last_plan(session).peak_bytes <= SMALL
    left = loaded(tmp_path / f"q{kind}")
    expected, triangle = signed(tall)
    np.testing.assert_allclose(left.T @ left, np.eye(4), atol=1e-13)
    np.testing.assert_allclose(left @ upper, tall, atol=1e-13)
    np.testing.assert_allclose(upper, triangle, atol=1e-12)
    np.testing.assert_allclose(left, expected, atol=1e-9)


@pytest.mark.parametrize("mesh", some(MESHES, 2, 1))
def test_what_rests_on_qr(tmp_path: Path, tall: Any, mesh: Any) -> None:
    """Singular vectors, principal components, least squares."""
    b = np.random.default_rng(2).normal(size=(len(tall), 2))
    np.save(tmp_path / "b.npy", b)
    with use(mesh, memory_limit=SMALL) as session:
        a = ost.load(tmp_path / "a.npy", resident=False)
        u, s, vh = ost.linalg.svd(a, full_matrices=False)
        ost.save(tmp_path / "u.npy", u * s)
        assert last_plan(session).peak_bytes <= SMALL
        np.testing.assert_allclose(loaded(tmp_path / "u.npy") @ np.asarray(vh), tall, atol=1e-12)
        found = ost.linalg.lstsq(a, ost.load(tmp_path / "b.npy", resident=False))
        ost.evaluate(found.x)
        assert last_plan(session).peak_bytes <= SMALL
        expected = np.linalg.lstsq(tall, b, rcond=None)[0]
        np.testing.assert_allclose(np.asarray(found.x), expected, rtol=1e-7)
        _, s, vh = ost.linalg.svd(a - a.mean(axis=0), full_matrices=False)
        ost.evaluate(s, vh)
        assert last_plan(session).peak_bytes <= SMALL
        centred = tall - tall.mean(0)
        np.testing.assert_allclose(
            np.asarray(s), np.linalg.svd(centred, compute_uv=False), rtol=1e-8
        )
        scores = np.asarray(((a - a.mean(axis=0)) @ vh.T).var(axis=0))
        np.testing.assert_allclose(scores * len(tall), np.asarray(s) ** 2, rtol=1e-8)


@pytest.mark.parametrize("seed", range(20))
def test_factors_of_any_tall_file(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of matrices that lack rank."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    dtype = np.dtype(r.choice(["f4", "f8", "c8", "c16"]))
    m, n = r.randint(200, 900), r.randint(1, 6)
    made = rng.normal(size=(m, n)) + (1j * rng.normal(size=(m, n)) if dtype.kind == "c" else 0)
    if n > 1 and r.random() < 0.3:
        made[:, -1] = made[:, 0] * 2
    made = made.astype(dtype)
    np.save(tmp_path / "a.npy", made)
    monkeypatch.setattr("ostinato.planner.passes.blocking.READ_BYTES", r.randint(600, 4000))
    close = 1e-4 if dtype.itemsize // (1 + (dtype.kind == "c")) == 4 else 1e-11
    with use(r.choice(MESHES), r.choice(["same-plan", "any-workers"])):
        a = ost.load(tmp_path / "a.npy", resident=False, split=r.choice([None, 0]))
        q, upper = ost.linalg.qr(a)
        ost.save(tmp_path / "q.npy", q)
        left = loaded(tmp_path / "q.npy")
        np.testing.assert_allclose(left.conj().T @ left, np.eye(n), atol=close)
        np.testing.assert_allclose(left @ np.asarray(upper), made, atol=20 * close)
        expected = np.linalg.svd(made, compute_uv=False)
        np.testing.assert_allclose(
            np.asarray(ost.linalg.svdvals(a)), expected, atol=20 * close * expected[0]
        )


# -- order -------------------------------------------------------------------------------------
SHAPES = [(9001,), (3001, 3), (2001, 2, 2)]
ORDERS = [
    ((9001,), "f8", False),
    ((9001,), "f4", True),
    ((3001, 3), "i2", True),
    ((2001, 4), "f8", False),
]


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch, moved: Counter[str]) -> Counter[str]:
    """Bytes that were read of sorted runs, beside those that were moved otherwise."""
    read, lock = merging.fill, threading.Lock()

    def fills(handle: int, out: Any, at: int) -> bool:
        with lock:
            moved["merged"] += out.nbytes
        return read(handle, out, at)

    monkeypatch.setattr(merging, "fill", fills)
    return moved


@pytest.mark.parametrize(("mesh", "shape", "kind"), turns(MESHES, SHAPES, KINDS), ids=str)
def test_a_file_is_sorted_by_an_external_merge(
    tmp_path: Path, kind: str, mesh: Any, shape: Any, merged: Counter[str]
) -> None:
    """Read, written as runs, and read as these: once each; and nothing of it stays."""
    needs(kind)
    falls = len(shape) == 2
    made = np.random.default_rng(3).normal(size=shape).round(2)
    np.save(tmp_path / "x.npy", made)
    limit = made.nbytes // 2
    with use(mesh, memory_limit=limit // math.prod(mesh)) as session:
        x = ost.load(tmp_path / "x.npy", resident=False)
        merged.clear()
        ost.save(tmp_path / f"y{kind}", ost.sort(x * 2, axis=0, descending=falls) / 2)
        size = made.nbytes
        assert size <= merged["read"] <= 1.1 * size
        assert size <= merged["merged"] <= 1.1 * size
        assert 2 * size <= merged["written"] <= 2.2 * size
        for plan in list(session.plans.plans.values())[-2:]:
            assert plan.peak_bytes <= limit // math.prod(mesh)
        found = loaded(tmp_path / f"y{kind}")
    expected = np.sort(made, axis=0)
    np.testing.assert_array_equal(found, expected[::-1] if falls else expected)
    assert {p.name for p in tmp_path.iterdir()} == {"x.npy", f"y{kind}"}
    assert not targets


@pytest.mark.parametrize("seed", some(range(60), 3, 1))
def test_sorting_any_file(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any dtype, many equal numbers, NaN and infinities; what is read of the order, and not only all."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    dtype = np.dtype(r.choice(["bool", "i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8"]))
    shape = [r.randint(100, 1500), *(r.randint(1, 3) for _ in range(r.randint(0, 2)))]
    wide = 10.0 ** r.randint(0, 4) if dtype.itemsize > 2 else 50.0
    made = rng.normal(size=shape) * wide
    made = (abs(made) if dtype.kind == "u" else made).astype(dtype)
    if dtype.kind == "f":
        made[rng.random(shape) < 0.05] = r.choice([np.nan, np.inf, -np.inf, -0.0])
    np.save(tmp_path / "x.npy", made)
    monkeypatch.setattr("ostinato.planner.passes.blocking.READ_BYTES", r.randint(400, 6000))
    monkeypatch.setattr("ostinato.planner.external.memory", lambda: made.nbytes)
    falls = r.random() < 0.5
    expected = np.sort(made, axis=0)
    expected = expected[::-1] if falls else expected
    with use(r.choice(MESHES), r.choice(["same-plan", "any-workers"])):
        x = ost.load(tmp_path / "x.npy", resident=False, split=r.choice([None, 0]))
        y = ost.sort(x, axis=0, descending=falls)
        ost.save(tmp_path / "y.npy", y)
        np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), expected)
        lo = r.randint(0, shape[0] // 2)
        np.testing.assert_array_equal(np.asarray(y[lo : lo + 40]), expected[lo : lo + 40])
    assert {p.name for p in tmp_path.iterdir()} == {"x.npy", "y.npy"}


@pytest.mark.parametrize(
    ("mesh", "case"),
    [(mesh, case) for n, mesh in enumerate(MESHES) for case in some(ORDERS, 2, n)],
    ids=str,
)
def test_places_of_a_file_in_order(
    tmp_path: Path, mesh: Any, case: tuple[Any, str, bool], merged: Counter[str]
) -> None:
    """Of equal keys, both zeros and NaN the first one comes first; the file is read once, and so are
    keys and places of the runs."""
    shape, dtype, falls = case
    rng = np.random.default_rng(3)
    made = rng.normal(size=shape).round(1).astype(dtype)
    if made.dtype.kind == "f":
        made[rng.random(shape) < 0.05] = -0.0
        made[rng.random(shape) < 0.05] = np.nan
    np.save(tmp_path / "x.npy", made)
    limit = made.nbytes // 2
    with use((1,)):
        expected = np.asarray(ost.argsort(made, axis=0, descending=falls))
    with use(mesh, memory_limit=limit // math.prod(mesh)) as session:
        x = ost.load(tmp_path / "x.npy", resident=False)
        merged.clear()
        ost.save(tmp_path / "y.npy", ost.argsort(x, axis=0, descending=falls))
        pairs = made.size * 2 * max(made.itemsize, 4)
        assert made.nbytes <= merged["read"] <= 1.1 * made.nbytes
        assert pairs <= merged["merged"] <= 1.1 * pairs
        assert last_plan(session).peak_bytes <= limit // math.prod(mesh)
        np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), expected)
        found = np.asarray(ost.argsort(x, axis=0, descending=falls)[700:705])
        np.testing.assert_array_equal(found, expected[700:705])
    if not falls:
        np.testing.assert_array_equal(expected, np.argsort(made, axis=0, kind="stable"))
    assert {p.name for p in tmp_path.iterdir()} == {"x.npy", "y.npy"}


@pytest.mark.parametrize(
    ("mesh", "split"), [(mesh, s) for n, mesh in enumerate(MESHES) for s in some([None, 0], 2, n)]
)
def test_rows_of_a_file_at_places_in_a_file(
    tmp_path: Path, mesh: Any, split: Any, moved: Counter[str]
) -> None:
    """Places are read block by block, once, as rows are; those from the end, and of slices, too."""
    rng = np.random.default_rng(4)
    made, places = rng.normal(size=(700, 600)), rng.integers(-700, 700, 900).astype("i4")
    places[-1] = 699
    np.save(tmp_path / "x.npy", made)
    np.save(tmp_path / "p.npy", places)
    limit = made.nbytes // 4 // math.prod(mesh)
    with use(mesh, memory_limit=limit) as session:
        x = ost.load(tmp_path / "x.npy", resident=False, split=split)
        p = ost.load(tmp_path / "p.npy", resident=False, split=split)
        moved.clear()
        ost.save(tmp_path / "y.npy", ost.take(x, p, axis=0) * 2)
        size = 900 * 600 * 8
        assert 0 < moved["read"] <= 1.1 * (size + places.nbytes)
        assert last_plan(session).peak_bytes <= limit
        np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), made[places] * 2)
        np.testing.assert_array_equal(np.asarray(x[p][5:700:9, 3]), made[places][5:700:9, 3])
        again = ost.take(ost.take(x, p, axis=0), p[:40] % 700, axis=0)
        np.testing.assert_array_equal(np.asarray(again), made[places][places[:40] % 700])
        np.save(tmp_path / "q.npy", places + 1)
        outside = ost.take(x, ost.load(tmp_path / "q.npy", resident=False), axis=0)
        with pytest.raises(Exception, match="index 700 is out of bounds for an axis with 700"):
            ost.save(tmp_path / "z.npy", outside)


@pytest.mark.parametrize("mesh", [(1,), (3,)])
@pytest.mark.parametrize("error", [OSError(28, "no space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("when", [3, 30])
def test_sorting_that_fails_leaves_nothing(
    tmp_path: Path, mesh: Any, error: BaseException, when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While runs are made, and while they are merged."""
    made = np.random.default_rng(4).normal(size=9001)
    np.save(tmp_path / "x.npy", made)
    put, count = sinks._put, iter(range(10**6))

    def fails(handle: int, stretch: Any, at: int) -> None:
        if next(count) == when:
            raise error
        put(handle, stretch, at)

    with use(mesh, memory_limit=made.nbytes // 3):
        y = ost.sort(ost.load(tmp_path / "x.npy", resident=False))
        with monkeypatch.context() as patch:
            patch.setattr(sinks, "_put", fails)
            patch.setattr(sinks, "MIN_PWRITE_BYTES", 1)
            with pytest.raises(BaseException, match=r"no space|") as caught:
                ost.save(tmp_path / "y.npy", y)
            assert isinstance(caught.value, KeyboardInterrupt | DataFileError)
        assert next(count) > when
        assert {p.name for p in tmp_path.iterdir()} == {"x.npy"}
        ost.save(tmp_path / "y.npy", y)
    np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), np.sort(made))
    assert not targets


def test_what_is_read_of_an_order_is_sorted_beside_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folder for what is there for a while, if there is no cache."""
    made = np.random.default_rng(5).normal(size=(3001, 2))
    np.save(tmp_path / "x.npy", made)
    (tmp_path / "later").mkdir()
    monkeypatch.setattr(settings, "cache", None)
    monkeypatch.setattr(streaming, "gettempdir", lambda: str(tmp_path / "later"))
    read, seen = merging.SortedRuns.read, Counter[int]()

    def reads(self: Any, out: Any, box: Any) -> None:
        seen[len(list((tmp_path / "later").iterdir()))] += 1
        read(self, out, box)

    monkeypatch.setattr(merging.SortedRuns, "read", reads)
    with use((2,), memory_limit=10_000):
        x = ost.load(tmp_path / "x.npy", resident=False)
        y = ost.sort(ost.abs(x), axis=0)
        found = np.asarray(y[1500]), np.asarray((y - 1).mean(axis=0))
    assert set(seen) == {1}
    assert not list((tmp_path / "later").iterdir())
    np.testing.assert_array_equal(found[0], np.sort(abs(made), 0)[1500])
    np.testing.assert_allclose(found[1], abs(made).mean(0) - 1)


def test_plans_in_which_workers_hand_over_in_each_turn_are_refused() -> None:
    """What goes on is cut in turns along its own axis, if workers have parts of that."""
    spec, outer = Spec((8, 6), np.dtype("f8")), Layout((2,), (0,))
    for cut, axis in ((1, 1), (1, 0), (0, 0)):
        inner = spec.at(outer.cut_in_time(3, cut))
        body = Builder([inner])
        params = {"axis": axis, "monoid": "sum", "dtype": spec.dtype}
        body.add("accumulate", (0,), params, [inner])
        builder = Builder([spec.at(outer)])
        turned = {"body": body.graph([1]), "turns": 3}
        builder.add("blocks", (0,), turned, [spec.at(outer)])
        if (cut, axis) == (1, 0):
            with pytest.raises(Malformed, match="hand over in each turn"):
                check_layouts(builder.graph([1]), Target(mesh=(2,)))
        else:
            check_layouts(builder.graph([1]), Target(mesh=(2,)))


# -- in compiled functions -----------------------------------------------------------------------
@pytest.mark.parametrize("workers", [1, 4])
def test_a_compiled_function_sorts_a_file_in_runs(
    tmp_path: Path, workers: int, moved: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again in every call, of whatever it is given then; the plans are made once."""
    monkeypatch.setattr(settings, "cache", str(tmp_path / "cache"))
    made = np.random.default_rng(3).normal(size=20_000)
    np.save(tmp_path / "x.npy", made)

    @ost.compile
    def summary(x: Any, c: Any) -> Any:
        y = ost.sort(x * c)
        return y[:5], (y * y).sum(), y[10_000], ost.argsort(x)[:7]

    with use((workers,), memory_limit=LIMIT) as session:
        x = ost.load(tmp_path / "x.npy", resident=False)
        for c in (1.0, -3.0, 2.0):
            moved.clear()
            expected = np.sort(made * c)
            found = [np.asarray(v) for v in summary(x, c)]
            assert moved["written"] <= 1.1 * 3 * made.nbytes, "keys, and keys with places"
            np.testing.assert_allclose(found[0], expected[:5])
            np.testing.assert_allclose(found[1], (made * c) @ (made * c))
            np.testing.assert_allclose(found[2], expected[10_000])
            np.testing.assert_array_equal(found[3], np.argsort(made, kind="stable")[:7])
        assert (summary.hits, len(summary.entries)) == (2, 1)
        assert len(session.plans.plans) == 3, "of two sorts and of the rest"
        assert all(p.peak_bytes <= LIMIT for p in session.plans.plans.values())
    assert not [p for p in (tmp_path / "cache").rglob("*") if "runs" in p.name]


@pytest.mark.parametrize("compiled", [False, True])
def test_an_order_that_is_a_result_outlives_its_file(tmp_path: Path, compiled: bool) -> None:
    made = np.random.default_rng(3).normal(size=3000)
    np.save(tmp_path / "x.npy", made)
    order = ost.compile(ost.argsort) if compiled else ost.argsort
    with use(memory_limit=3 * made.nbytes):
        found = order(ost.load(tmp_path / "x.npy", resident=False))
        np.testing.assert_array_equal(found, np.argsort(made, kind="stable"))
