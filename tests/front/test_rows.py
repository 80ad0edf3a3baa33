"""Rows of files in another order, with less memory than they take: the values of NumPy, few bytes read and
written more than once, and nothing left behind."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import array_files as files
from ostinato.io_pipeline import source
from ostinato.ops.core import exchange
from ostinato.ops.planned import collective
from ostinato.planner import external
from ostinato.planner.passes import file_parts, reads

import ostinato as ost
from tests.front.test_streaming import loaded, moved, small_blocks
from tests.sessions import use
from tests.thorough import some

__all__ = ["moved", "small_blocks"]  # fixtures

ROWS = 10_000
LIMIT = 80_000  # half of the rows


@pytest.fixture
def x(tmp_path: Path) -> np.ndarray[Any, Any]:
    made = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("f4")
    np.save(tmp_path / "x.npy", made)
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes that come from files, of whatever kind."""
    found: Counter[str] = Counter()
    preadv, lock = os.preadv, threading.Lock()
    monkeypatch.setattr(files, "HEADER", 256)

    def counted(*args: Any) -> int:
        count = preadv(*args)
        with lock:
            found["read"] += count
        return count

    monkeypatch.setattr(os, "preadv", counted)
    return found


def file(path: Path) -> ost.Array:
    return ost.load(path, resident=False)


@pytest.mark.parametrize("workers", [1, 4])
def test_rows_in_random_order(
    tmp_path: Path, x: Any, workers: int, read: Counter[str], moved: Counter[str]
) -> None:
    """In the order that they have in memory. They are read as they lie and once more as runs, with the
    keys and places of each."""
    with use((workers,), memory_limit=LIMIT // workers) as session:
        shuffled = ost.random.permutation(file(tmp_path / "x.npy"), seed=5)
        moved.clear()
        read.clear()
        ost.save(tmp_path / "y.npy", shuffled)
        keys = 16 * ROWS
        assert read["read"] <= 1.1 * (2 * x.nbytes + 2 * keys)
        assert moved["written"] <= 1.1 * (2 * x.nbytes + keys)
        assert all(p.peak_bytes <= LIMIT // workers for p in session.plans.plans.values())
        assert {p.name for p in tmp_path.iterdir()} == {"x.npy", "y.npy"}
    with use():
        order = np.asarray(ost.random.permutation(ROWS, seed=5))
    np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), x[order])


def test_part_of_rows_in_random_order(tmp_path: Path, x: Any, read: Counter[str]) -> None:
    """Most of them are brought into order as all are; of few, their pages are read."""
    with use():
        order = np.asarray(ost.random.permutation(ROWS, seed=5))
    with use(memory_limit=LIMIT) as session:
        for part, most in ((slice(2000, 9900), 2.7 * x.nbytes), (slice(5), 0.5 * x.nbytes)):
            read.clear()
            shuffled = ost.random.permutation(file(tmp_path / "x.npy"), seed=5)
            ost.save(tmp_path / "y.npy", shuffled[part] * 2)
            assert read["read"] <= most
            np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), x[order][part] * 2)
        assert all(p.peak_bytes <= LIMIT for p in session.plans.plans.values())


@pytest.mark.parametrize("workers", [1, 4])
def test_a_random_order_itself(tmp_path: Path, workers: int) -> None:
    with use((workers,), memory_limit=LIMIT // workers):
        ost.save(tmp_path / "y.npy", ost.random.permutation(ROWS, seed=5))
    with use():
        order = np.asarray(ost.random.permutation(ROWS, seed=5))
    np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), order)


@pytest.mark.parametrize("falls", [False, True])
@pytest.mark.parametrize("kind", [".npy", ".h5", ".zarr"])
def test_rows_in_the_order_of_a_column(
    tmp_path: Path, x: Any, kind: str, falls: bool, read: Counter[str]
) -> None:
    """Of equal ones the first comes first; what is made of the rows on the way is, too."""
    if kind == ".h5":
        pytest.importorskip("h5py")
    keys = x[:, 1].round(1)
    with use((2,), memory_limit=LIMIT // 2):
        y = file(tmp_path / "x.npy")
        order = ost.argsort(ost.round(y[:, 1] * 10), descending=falls)
        read.clear()
        ost.save(tmp_path / f"y{kind}", ost.take(y * 2, order, axis=0) + 1)
        assert read["read"] <= 4.5 * x.nbytes
    expected = np.argsort(-keys if falls else keys, kind="stable")
    np.testing.assert_array_equal(loaded(tmp_path / f"y{kind}"), x[expected] * 2 + 1)


def test_rows_in_the_order_of_two_columns(tmp_path: Path, x: Any, read: Counter[str]) -> None:
    """And numbers in order, in the order of others: what is sorted first is what others wait for."""
    with use(memory_limit=LIMIT // 4):
        y = file(tmp_path / "x.npy")
        read.clear()
        order = ost.lexsort((y[:, 1], ost.round(y[:, 0])))
        ost.save(tmp_path / "y.npy", ost.take(y, order, axis=0))
        assert read["read"] <= 12 * x.nbytes  # most are keys and places, of 8 bytes beside 4
        ost.save(tmp_path / "z.npy", ost.take(ost.sort(y[:, 2]), ost.argsort(y[:, 1])))
    rows = np.lexsort((x[:, 1], x[:, 0].round()))
    np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), x[rows])
    columns = np.sort(x[:, 2])[np.argsort(x[:, 1], kind="stable")]
    np.testing.assert_array_equal(loaded(tmp_path / "z.npy"), columns)


@pytest.mark.parametrize(("workers", "dtype"), [(1, "i4"), (1, "u8"), (4, "i4")])
def test_rows_at_any_places(
    tmp_path: Path, x: Any, workers: int, dtype: str, read: Counter[str]
) -> None:
    """Some of them many times. Each page of the file is read once."""
    places = np.random.default_rng(1).integers(0, ROWS, ROWS).astype(dtype)
    places[:99], places[-1] = 7, ROWS - 1
    if dtype == "i4":
        places[100:3000] -= ROWS
    np.save(tmp_path / "p.npy", places)
    with use((workers,), memory_limit=LIMIT) as session:
        y = ost.take(file(tmp_path / "x.npy"), file(tmp_path / "p.npy"), axis=0)
        read.clear()
        ost.save(tmp_path / "y.npy", y)
        assert read["read"] <= 1.2 * (2 * x.nbytes + 8 * external.PLACES * ROWS + places.nbytes)
        assert all(p.peak_bytes <= LIMIT for p in session.plans.plans.values())
        for outside in (ROWS, -ROWS - 1):
            np.save(tmp_path / "p.npy", np.append(places[1:].astype("i8"), outside))
            rows = ost.take(file(tmp_path / "x.npy"), file(tmp_path / "p.npy"), axis=0)
            with pytest.raises(Exception, match=f"is out of bounds for an axis with {ROWS}"):
                ost.save(tmp_path / "z.npy", rows)
    found = x[places.astype("i8")]
    np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), found)
    assert {p.name for p in tmp_path.iterdir()} == {"x.npy", "p.npy", "y.npy"}


def test_a_compiled_function_takes_rows_in_order(tmp_path: Path, x: Any) -> None:
    @ost.compile
    def steps(y: Any) -> Any:
        walk = ost.take(y, ost.argsort(y[:, 0]), axis=0)
        return ost.cumulative_sum(walk, axis=0).max(axis=0), walk[:3]

    with use((2,), memory_limit=LIMIT // 2):
        for _ in range(2):
            highest, first = (np.asarray(v) for v in steps(file(tmp_path / "x.npy")))
    expected = x[np.argsort(x[:, 0], kind="stable")]
    np.testing.assert_allclose(highest, np.cumsum(expected, 0).max(0), rtol=1e-4)
    np.testing.assert_array_equal(first, expected[:3])


def test_rows_in_order_beside_rows_as_they_lie(tmp_path: Path, x: Any) -> None:
    """And beside the next ones of both."""
    with use(memory_limit=LIMIT):
        y = file(tmp_path / "x.npy")
        walk = ost.take(y, ost.argsort(y[:, 0]), axis=0)
        ost.save(tmp_path / "y.npy", walk[1:] - walk[:-1] + y[1:] * y[:-1])
    expected = x[np.argsort(x[:, 0], kind="stable")]
    np.testing.assert_allclose(
        loaded(tmp_path / "y.npy"), np.diff(expected, axis=0) + x[1:] * x[:-1], rtol=1e-6
    )


def test_few_rows_and_long_ones_are_read_where_they_lie(tmp_path: Path, x: Any) -> None:
    """No file is made of them."""
    long = np.random.default_rng(0).normal(size=(64, 2048))
    np.save(tmp_path / "long.npy", long)
    places = np.random.default_rng(1).integers(0, 64, 64)
    with use(memory_limit=long.nbytes // 4) as session:
        ost.save(tmp_path / "y.npy", ost.take(file(tmp_path / "long.npy"), places, axis=0))
        few = np.asarray(ost.take(file(tmp_path / "x.npy"), places, axis=0))
        assert len(session.plans.plans) == 2
    np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), long[places])
    np.testing.assert_array_equal(few, x[places])


def test_places_in_no_order_are_read_once_per_block(tmp_path: Path, read: Counter[str]) -> None:
    """However many there are beside what is noted at once."""
    made = np.arange(1 << 19, dtype="f4")
    np.save(tmp_path / "x.npy", made)
    lies = source.Part(files.open_source(tmp_path / "x.npy"), [range(len(made))])
    places = np.random.default_rng(1).permutation(len(made))
    out = np.empty(len(made), "f4")
    read.clear()
    lies.taken(places, 0).read(out, ((0, len(made)),))
    np.testing.assert_array_equal(out, made[places])
    few = source.LITTLE // source.SORTED
    assert len(made) > 8 * (source.LITTLE // source.NOTES), "else it shows nothing"
    assert read["read"] <= 1.1 * made.nbytes * -(
        -len(made) // max(few, out.nbytes // source.SORTED)
    )


# -- neighbours ----------------------------------------------------------------------------------
JOINS: dict[str, tuple[Any, float, float]] = {  # how often all is read, and the result written
    "roll": (lambda m, x: m.roll(x, 7, axis=0), 1, 1),
    "of what was made": (lambda m, x: m.roll(x * 2, -7, axis=0), 1, 1),
    "a difference to it": (lambda m, x: x - m.roll(x, 1, axis=0), 1, 1),
    "a sum of it": (lambda m, x: (m.roll(x * 2, 1, axis=0) > 1).sum(axis=1), 1, 1),
    "concat": (lambda m, x: m.concatenate([x[:100], x * 2, x[-5:]]), 1.02, 1),
    "and between": (
        lambda m, x: m.concatenate([x * k for k in range(1, 4)])[5000:29_000:3],
        2.4,
        1,
    ),
    "backwards": (lambda m, x: m.concatenate([x * 2, x + 1])[15_000:99:-1], 1.5, 1),
    "flip": (lambda m, x: m.flip(x, axis=0), 1, 1),
    "a stencil": (lambda m, x: (x * 3)[2:] - (x * 3)[1:-1] + (x * 3)[:-2], 1, 1),
    "slopes": (lambda m, x: m.gradient(x, axis=0), 1, 1),
    "slopes of what was made": (lambda m, x: m.gradient(x * 2, axis=0) * x, 1, 1),
    "convolve": (lambda m, x: m.convolve(x[:, 0], [1, 2, 3, 4, 5], "same"), 1, 1),
    "windows": (
        lambda m, x: (
            (np.lib.stride_tricks if m is np else ost)
            .sliding_window_view(x, 5, axis=0)
            .max(axis=-1)
        ),
        1,
        1,
    ),
    "every other one": (lambda m, x: x[2::2] * 2 - x[:-2:2], 1, 1),
    "pairs": (lambda m, x: x.reshape(-1, 2, 4)[:, 1] - x[::2], 1, 1),
    "every third one": (
        lambda m, x: x[1:9001:3, 1:] + x[5::3, :-1][:3000] * x[::3, :3][:3000],
        1,
        1,
    ),
    "other columns": (lambda m, x: x[1:, 1:] * 2 - x[:-1, :-1], 2, 1),
    "far ones": (lambda m, x: x[3000:] * 2 - x[:-3000], 1.4, 1),
    "a padded one": (lambda m, x: (p := m.pad(x * 3, ((1, 1), (0, 0))))[2:] - p[:-2], 1, 1),
    "differences of an order": (lambda m, x: m.diff(m.sort(x, axis=0), axis=0), 2, 2),
    "pad": (lambda m, x: m.pad(x, ((3, 5), (0, 0))), 1, 1),
    "pad of what was made": (
        lambda m, x: m.pad(x * 2, ((3000, 0), (1, 2)), constant_values=7) + 1,
        1,
        1,
    ),
    "edge": (lambda m, x: m.pad(x * 2, ((3000, 5), (0, 1)), mode="edge"), 1, 1),
    "wrap": (lambda m, x: m.pad(x * 2, ((30, 5), (0, 0)), mode="wrap"), 1, 1),
    "reflect": (lambda m, x: m.pad(x, ((30, 5), (0, 0)), mode="reflect"), 1, 1),
    "tile": (lambda m, x: m.tile(x, (3, 1)), 1, 1),
    "tile of what was made": (lambda m, x: m.tile(x * 2, (3, 2)) + 1, 1, 1),
    "tile along a new axis": (lambda m, x: m.tile(x * 2, (2, 1, 1)), 1, 1),
    "tile many times": (lambda m, x: m.tile(x * 2, (40, 1)), 1, 1),
    "in rows": (lambda m, x: m.stack([x, x * 2], axis=1).reshape(10_000, 8), 1, 1),
    "repeat": (lambda m, x: m.repeat(x[:9973], 3, axis=0), 1, 1),
    "repeat of what was made": (lambda m, x: m.repeat(x[:9973] * 2, 3, axis=0) + 1, 1, 1),
    "a padded running sum": (lambda m, x: m.pad(m.cumsum(x, axis=0), ((30, 5), (0, 0))), 2, 2),
    "a running sum put into others": (
        lambda m, x: put(x * 2, np.s_[50:], m.cumsum(x, axis=0)[:-50]),
        3,
        2,
    ),
    "in one row": (lambda m, x: (x[:9973] * 2).reshape(-1), 1, 1),
    "stack": (lambda m, x: m.stack([x, x * 2]), 1, 1),
    "stack of columns": (lambda m, x: m.stack([x * 3, x * 2], axis=-1), 1, 1),
    "block": (lambda m, x: m.block([[x, x * 2], [x * 3, x]]), 1, 1),
    "an inner part set": (lambda m, x: put(x, np.s_[1:-1], (x[2:] + x[:-2]) / 2), 1, 1),
    "of rows and columns": (
        lambda m, x: put(
            x,
            np.s_[1:-1, 1:-1],
            (x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]) / 4,
        ),
        1,
        1,
    ),
    "set twice": (
        lambda m, x: put(
            y := put(x, np.s_[1:-1], (x[2:] + x[:-2]) / 2), np.s_[1:-1], (y[2:] + y[:-2]) / 2
        ),
        1,
        1,
    ),
    "rows and columns twice": (
        lambda m, x: (
            put(y := put(x, np.s_[9:-25, 1:], x[0, 1:]), np.s_[3:-3, 1], 5) - m.roll(y, 2, axis=0)
        ),
        1,
        1,
    ),
    "added in place": (lambda m, x: put(x * 2, np.s_[50:-3], x[53:] + x[50:-3]), 1, 1),
    "a number in place": (lambda m, x: put(x, np.s_[5:-70, 1], 9), 1, 1),
    "the first row": (lambda m, x: put(x * 2, np.s_[0], 1), 1, 1),
    "columns": (lambda m, x: put(x, np.s_[:, 1:-1], (x[:, 2:] - x[:, :-2]) / 2), 1, 1),
    "two functions": (lambda m, x: m.concatenate([x[:100], x[90:] * 2, x[-7:] + 1]), 1, 1),
    "edges of all sides": (lambda m, x: m.pad(x * 2, 1, mode="edge"), 1, 1),
    "differences of running sums": (
        lambda m, x: (c := m.cumsum(m.round(x), axis=0))[50:] - c[:-50],
        2,
        2,
    ),
    "running sums, backwards": (lambda m, x: m.flip(m.cumsum(m.round(x), axis=0), axis=0), 2, 2),
    "pairs in a row": (lambda m, x: (x * 2).reshape(5000, 8) + 1, 1, 1),
    "running, in a row": (lambda m, x: m.cumsum(m.round(x[:9973]).reshape(-1)), 1, 1),
}
SUMS: dict[str, Any] = {  # of all that is joined, which is kept nowhere
    "rolls": lambda m, x: m.roll(x * 2, 1, axis=0) + m.roll(x, -1, axis=0) - x,
    "pads": lambda m, x: m.pad(x * 3, ((1, 1), (0, 0)))[2:] + m.pad(x, ((1, 1), (0, 0)))[:-2],
    "padded all around": lambda m, x: m.pad(x + 1, 2),
    "concat": lambda m, x: m.concatenate([x[:100], x[90:] * 2, x[-7:] + 1]),
    "concat of concat": lambda m, x: m.concatenate(
        [x[:5000] * 2, m.concatenate([x[77:3000], x[:77] + 1])]
    ),
    "of functions of it": lambda m, x: m.concatenate(
        [x[:4000], m.exp(m.concatenate([x[50:] * 2, x[:5]])) + 1]
    )[:ROWS],
    "steps": lambda m, x: put(x, np.s_[1:-1], (x[2:] + x[:-2]) / 2) - x,
    "products": lambda m, x: m.concatenate([x[:3], x @ (x[:4] * 2), x[-3:]]),
    "rows apart": lambda m, x: (x * 2).reshape(1000, 10, 4).std(axis=1),
    "convolve": lambda m, x: m.convolve(x.reshape(-1), [1, 2, 3], "same"),
}


def put(x: Any, key: Any, values: Any) -> Any:
    """NumPy's x[key] = values, as a copy."""
    if not isinstance(x, np.ndarray):
        return x.at[key].set(values)
    made = x.copy()
    made[key] = values
    return made


@pytest.mark.parametrize("limit", [LIMIT, None])
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_joined_rows(
    tmp_path: Path,
    x: Any,
    name: str,
    limit: int | None,
    read: Counter[str],
    moved: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All is read once, and nothing is written on the way."""
    monkeypatch.setattr(reads, "MIN_FILE_JOIN_BYTES", 4096)
    monkeypatch.setattr(file_parts, "JOINED", 4096)
    with use(memory_limit=limit) as session:
        y = (SUMS[name](ost, file(tmp_path / "x.npy")) ** 2).sum(axis=0)
        moved.clear()
        read.clear()
        found = np.asarray(y)
        assert read["read"] <= 1.1 * x.nbytes
        assert not moved["written"]
        assert all(p.peak_bytes <= (limit or 3 * LIMIT) for p in session.plans.plans.values())
    np.testing.assert_allclose(found, (SUMS[name](np, x) ** 2).sum(axis=0), rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "workers"), [(name, n) for k, name in enumerate(JOINS) for n in some([1, 4], 2, k)]
)
def test_rows_beside_others(
    tmp_path: Path, x: Any, name: str, workers: int, read: Counter[str], moved: Counter[str]
) -> None:
    """No more is read and written than there is."""
    function, reads, writes = JOINS[name]
    expected = function(np, x)
    if "running" in name:  # NumPy's sums of 10,000 floats are no better
        expected = function(np, x.astype("f8")).astype(expected.dtype)
    with use((workers,), memory_limit=LIMIT // workers) as session:
        y = function(ost, file(tmp_path / "x.npy"))
        moved.clear()
        read.clear()
        ost.save(tmp_path / "y.npy", y)
        assert read["read"] <= 1.1 * reads * x.nbytes
        assert moved["written"] <= 1.1 * writes * expected.nbytes
        assert all(p.peak_bytes <= LIMIT // workers for p in session.plans.plans.values())
    rounds = 64 * np.finfo("f4").eps * np.abs(expected).max() if "running" in name else 1e-6
    np.testing.assert_allclose(loaded(tmp_path / "y.npy"), expected, rtol=1e-5, atol=rounds)
    assert {p.name for p in tmp_path.iterdir()} == {"x.npy", "y.npy"}


@pytest.mark.parametrize("kind", [".h5", ".zarr"])
def test_pieces_in_chunks(
    tmp_path: Path, x: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that begin in the middle of chunks."""
    if kind == ".h5":
        pytest.importorskip("h5py")
    monkeypatch.setattr(exchange, "CHUNK", 5000)
    for name in ("edge", "tile of what was made", "concat", "stack"):
        with use((2,), memory_limit=LIMIT // 2):
            ost.save(tmp_path / f"y{kind}", JOINS[name][0](ost, file(tmp_path / "x.npy")))
        np.testing.assert_array_equal(loaded(tmp_path / f"y{kind}"), JOINS[name][0](np, x))


def test_a_first_axis_of_one(tmp_path: Path, x: Any, moved: Counter[str]) -> None:
    """The next one is cut."""
    np.save(tmp_path / "x.npy", x[None])
    with use():
        ost.save(tmp_path / "y.npy", file(tmp_path / "x.npy") * 2)
    assert moved["most"] <= 4096
    np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), x[None] * 2)


BESIDE: dict[str, Any] = {  # functions of rows of two files
    "weights": lambda m, x, w: (x * abs(w)[:, None]).sum(axis=0) / abs(w).sum(),
    "products": lambda m, x, w: (x.T @ w) / (w @ w) + w.max(),
    "centred": lambda m, x, w: ((x - x.mean(axis=0)).T @ (w - w.mean())) / len(x),
    "of three": lambda m, x, w: m.stack([(x[:, 0] * w).sum(), (w > 0).sum(), (x[:, 1] > w).sum()]),
}


@pytest.mark.parametrize(
    ("name", "workers"), [(name, n) for k, name in enumerate(BESIDE) for n in some([1, 4], 1, k)]
)
def test_files_that_are_read_beside_each_other(
    tmp_path: Path, x: Any, name: str, workers: int, read: Counter[str]
) -> None:
    """Each once, or, where a mean is needed first, twice."""
    w = np.random.default_rng(1).normal(size=ROWS).astype("f4")
    np.save(tmp_path / "w.npy", w)
    with use((workers,), memory_limit=LIMIT) as session:
        y = BESIDE[name](ost, file(tmp_path / "x.npy"), file(tmp_path / "w.npy"))
        read.clear()
        found = np.asarray(y)
        assert read["read"] <= (2.1 if name == "centred" else 1.1) * (x.nbytes + w.nbytes)
        assert all(p.peak_bytes <= LIMIT for p in session.plans.plans.values())
    np.testing.assert_allclose(found, BESIDE[name](np, x, w), rtol=1e-3, atol=1e-3)


def test_what_goes_to_many_places_is_made_once(tmp_path: Path, x: Any) -> None:
    with use(memory_limit=LIMIT) as session:
        ost.save(tmp_path / "y.npy", ost.tile(file(tmp_path / "x.npy") * 2, (5, 1)))
        (plan,) = session.plans.plans.values()
    assert str(plan.lowered).count("write(") == 1


def test_axes_that_are_counted_in_one_row() -> None:
    """Also a part that has not all of the inner ones."""
    whole = np.arange(4 * 3 * 5 * 2).reshape(4, 3, 5, 2)
    for box in (((1, 3), (0, 3), (0, 5)), ((1, 3), (1, 3), (2, 4)), ((0, 4), (0, 2), (0, 5))):
        found = np.full((60, 2), -1)
        part = whole[tuple(slice(lo, hi) for lo, hi in box)]
        for begin, piece in collective._in_rows(part, box, (4, 3, 5)):
            found[begin : begin + len(piece)] = piece
        expected = np.full(whole.shape, -1)
        expected[tuple(slice(lo, hi) for lo, hi in box)] = part
        np.testing.assert_array_equal(found, expected.reshape(60, 2))


FOUND: dict[str, tuple[Any, Any]] = {
    "nonzero": (
        lambda x: ost.nonzero(x[:, 1] > 3, size=20)[0],
        lambda x: np.resize(np.append(np.nonzero(x[:, 1] > 3)[0], np.zeros(20)), 20),
    ),
    "unique_counts": (
        lambda x: ost.unique_counts(ost.round(x[:, 0]), size=9)[1],
        lambda x: np.append(np.unique(np.round(x[:, 0]), return_counts=True)[1], [0] * 9)[:9],
    ),
    "histogram": (
        lambda x: ost.histogram(x, 7, (-2, 2))[0],
        lambda x: np.histogram(x, 7, (-2, 2))[0],
    ),
    "segment_mean": (
        lambda x: ost.segment_mean(x[:, 0], ost.astype(x[:, 1] > 0, "int32"), 2),
        lambda x: [x[x[:, 1] <= 0, 0].mean(), x[x[:, 1] > 0, 0].mean()],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_in_a_file(tmp_path: Path, x: Any, name: str) -> None:
    """Block by block, in less memory than all would take."""
    ours, by_numpy = FOUND[name]
    with use((2,), memory_limit=LIMIT // 4) as session:
        found = np.asarray(ours(file(tmp_path / "x.npy")))
        assert all(p.peak_bytes <= LIMIT // 4 for p in session.plans.plans.values())
    np.testing.assert_allclose(found, by_numpy(x), rtol=1e-5, atol=1e-6)


# -- memory --------------------------------------------------------------------------------------
SPARE = 2 << 20  # bytes: notes of places, pages that are looked at, Python's own objects


@pytest.mark.cpu_only
@pytest.mark.parametrize("what", ["sort", "argsort", "permutation", "take", "roll"])
def test_memory_stays_within_the_limit(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it: what the plan counts, and what reading takes beside that."""
    monkeypatch.undo()  # blocks as large as the limit lets them be
    limit, rows = 4 << 20, 1 << 19
    made = np.random.default_rng(0).integers(0, rows, rows)
    np.save(tmp_path / "x.npy", made)
    np.save(tmp_path / "rows.npy", np.empty((rows, 2), "f4"))
    with use(memory_limit=limit) as session:
        y = file(tmp_path / "x.npy")
        if what == "take":
            y = ost.take(file(tmp_path / "rows.npy"), y, axis=0)
        elif what == "permutation":
            y = ost.random.permutation(y, seed=1)
        else:
            y = ost.roll(y, 3, axis=0) if what == "roll" else getattr(ost, what)(y)
        ost.save(tmp_path / "y.npy", y)
        arena = max(p.arena_bytes for p in session.plans.plans.values())  # which is there by now
        tracemalloc.start()
        ost.save(tmp_path / "y.npy", y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert arena + peak <= limit + SPARE
