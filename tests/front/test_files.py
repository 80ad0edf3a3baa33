"""Arrays in files: what is read is what was written, no more of it is in memory than may be, and trouble has a name."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.io_pipeline import source as io_source
from ostinato.io_pipeline.array_files import NpySource, open_source
from ostinato.io_pipeline.chunks import ChunkSource
from ostinato.io_pipeline.source import runs
from ostinato.ops.core import disk
from ostinato.ops.core.spec import DTYPES
from ostinato.runtime.read_ahead import ReadAhead

import ostinato as ost
from ostinato.errors import ArgumentError, DataFileError, DTypeError, MemoryLimitError
from tests.planner.test_blocking import MIB, kmeans, turns
from tests.sessions import use

NUMPY = [d for d in DTYPES.values() if d.kind in "biufc"]


def written(folder: Path, value: Any, name: str = "x.npy") -> Path:
    np.save(folder / name, value)
    return folder / name


def numbers(*shape: int, dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


# -- the same array ----------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", NUMPY, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("resident", [True, False])
def test_what_was_saved_is_loaded(tmp_path: Path, dtype: Any, order: Any, resident: bool) -> None:
    value = np.asarray((numbers(7, 5, 3, dtype="f8") * 50).astype(dtype), order=order)
    for swapped in (value, value.astype(value.dtype.newbyteorder(">"))):
        with use((2,)):
            x = ost.load(written(tmp_path, swapped), resident=resident, split=1)
            assert (x.shape, x.dtype) == (value.shape, value.dtype)
            np.testing.assert_array_equal(np.asarray(x), value)
            np.testing.assert_array_equal(np.asarray(ost.flip(x, axis=0)), value[::-1])


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1,), (1, 1, 1)])
def test_empty_and_single(tmp_path: Path, shape: tuple[int, ...]) -> None:
    value = np.ones(shape, "f4")
    for resident in (True, False):
        x = ost.load(written(tmp_path, value), resident=resident)
        np.testing.assert_array_equal(np.asarray(x + 1), value + 1)


def test_save(tmp_path: Path) -> None:
    x = ost.random.normal((100, 3), seed=1)
    ost.save(tmp_path / "y.npy", x * 2)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.asarray(x * 2))
    np.testing.assert_array_equal(np.asarray(ost.load(tmp_path / "y.npy")), np.asarray(x * 2))
    with pytest.raises(DataFileError, match=r"got suffix '.txt'; needed .npy"):
        ost.save(tmp_path / "y.txt", x)
    with pytest.raises(DataFileError, match=r"got dtype bfloat16, for which .npy has no name"):
        ost.save(tmp_path / "z.npy", x.astype(ost.bfloat16))
    assert [p.name for p in tmp_path.iterdir()] == ["y.npy"], "nothing half written stays"


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.data())
def test_any_box_of_a_file(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 6), max_size=4)))
    box = tuple(
        tuple(sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n))))) for n in shape
    )
    whole = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    out = np.full([hi - lo for lo, hi in box], -1)
    for place, start in runs(out, box, shape):
        flat = place.reshape(-1)
        flat[...] = whole.reshape(-1)[start : start + flat.size]
    expected = whole[tuple(slice(lo, hi) for lo, hi in box)]
    np.testing.assert_array_equal(out, expected)
    with tempfile.TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(io_source, "MAX_GAP_BYTES", 8 * data.draw(st.integers(0, 40)))
        patch.setattr(io_source, "SLAB", 8 * data.draw(st.integers(0, 80)))
        file.write(b"head" + whole.tobytes())
        file.flush()
        found = np.full_like(out, -1)
        assert (
            io_source.read_box(partial(io_source.fill, file.fileno()), found, box, shape, 4) is None
        )
        np.testing.assert_array_equal(found, expected)


def test_parts_of_parts(tmp_path: Path) -> None:
    """Of a part in a row, backwards, and of places: those that a plan may have let go of, too."""
    value = numbers(6, 5)
    for order in ("C", "F"):
        np.save(tmp_path / "x.npy", np.asarray(value, order=order))  # type: ignore[call-overload]
        file, rows, columns = (
            NpySource(str(tmp_path / "x.npy")),
            np.array([4, -6, 4]),
            np.array([3]),
        )
        part = file.taken(rows, 0).taken(columns, 1)
        rows[:] = 5
        found = np.empty((3, 1), "f4")
        part.read(found, ((0, 3), (0, 1)))
        np.testing.assert_array_equal(found, value[[4, 0, 4]][:, [3]])
        for places in (
            [1, 3, 3],
            [1, 1, 2],
            [2, 1, 0],
            [0, 1, 2],
            [5, 3, 4],
        ):  # of a run, some twice
            found = np.empty((3, 5), "f4")
            file.taken(np.array(places), 0).read(found, ((0, 3), (0, 5)))
            np.testing.assert_array_equal(found, value[places])
        row = file.merged(2)
        assert row.shape == (30, 1)
        for start, size, step in ((3, 20, 1), (29, 14, -2), (6, 3, 1), (4, 1, 1), (0, 30, 1)):
            cut = row.sliced((start, 0), (size, 1), (step, 1))
            found = np.empty((size, 1), "f4")
            cut.read(found, ((0, size), (0, 1)))
            wanted = value.reshape(-1)[start + step * np.arange(size)]
            np.testing.assert_array_equal(found[:, 0], wanted)
            found = np.empty((size - size // 2, 1), "f4")
            cut.read(found, ((size // 2, size), (0, 1)))
            np.testing.assert_array_equal(found[:, 0], wanted[size // 2 :])
        with pytest.raises(IndexError, match="index 30 is out of bounds for an axis with 30"):
            row.taken(np.array([30]), 0)


def test_columns_are_not_read_number_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, calls, preadv = numbers(5000, 16), [], os.preadv
    file = NpySource(str(written(tmp_path, value)))
    monkeypatch.setattr(os, "preadv", lambda *a: calls.append(a) or preadv(*a))
    for column in (0, 7, 15):
        out = np.empty((5000, 1), "f4")
        file.read(out, ((0, 5000), (column, column + 1)))
        np.testing.assert_array_equal(out, value[:, column : column + 1])
    assert len(calls) < 20


# -- block after block ---------------------------------------------------------------------------
def least_squares(x: Any) -> Any:
    return x.T @ x, x.T @ x[:, 0]


def normalised(x: Any) -> Any:
    return (((x - x.mean(0)) / x.std(0)) ** 4).mean(0)


def steps(x: Any) -> Any:
    """The file goes along into the loop, and so does what is made of its rows in front of it."""
    y = x * 0.5
    return ost.repeat(3, lambda c: kmeans(y, c), x[:5] + 0.0)


WORK = {
    "mean": (lambda x: x.mean(0), 1),
    "kmeans": (lambda x: kmeans(x, ost.arange(5)[:, None] / 4 - ost.zeros((5, 8))), 1),
    "least_squares": (least_squares, 1),
    "normalised": (normalised, 2),
    "labels": (lambda x: (x * 2).argmin(1), 1),
    "steps": (steps, None),
}


@pytest.mark.parametrize("mesh", [(1,), (2,), (3,)], ids=str)
@pytest.mark.parametrize("name", WORK)
def test_each_row_is_read_once_in_a_pass(
    name: str, mesh: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, passes = WORK[name]
    value = numbers(120_001, 8)
    boxes: list[tuple[int, int]] = []
    read = NpySource.read

    def counted(self: Any, out: Any, box: Any) -> None:
        boxes.append(box[0])
        read(self, out, box)

    with use(mesh):
        expected = ost.compile(function)(ost.asarray(value, split=0))
        f = ost.compile(function, memory_limit=2 * MIB)
        x = ost.load(written(tmp_path, value), resident=False, split=0)
        monkeypatch.setattr(NpySource, "read", counted)
        found = f(x)
        assert f.plan.peak_bytes <= 2 * MIB
        assert max(turns(f.plan)) > 1
        if passes is not None:
            rows = np.zeros(len(value), int)
            for lo, hi in boxes:
                rows[lo:hi] += 1
            assert (rows == passes).all()
        pairs = (
            zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        )
        for a, b in pairs:
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=1e-3)


@pytest.mark.cpu_only
def test_no_more_than_the_limit_is_allocated(tmp_path: Path) -> None:
    """64 MiB under a limit of 8 MiB."""
    path = written(tmp_path, numbers(2 * MIB, 8))
    with ost.connect(memory_limit=8 * MIB):
        fs = [ost.compile(WORK[name][0]) for name in ("mean", "kmeans", "least_squares")]
        x = ost.load(path, resident=False)
        for f in fs:
            f(x)  # its kernels are made
        tracemalloc.start()
        try:
            for f in fs:
                f(x)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 * MIB
        for f in fs:
            assert f.plan.peak_bytes <= 8 * MIB


RESIDENT_SET = """
import sys, numpy as np, ostinato as ost
def high(): return int(next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1])
small, large = sys.argv[1:]
with ost.connect(memory_limit=8 << 20):
    f = ost.compile(lambda x: (ost.tanh(x).mean(0), x.T @ x))
    [np.asarray(y) for y in f(ost.load(small, resident=False))]
    before = high()
    [np.asarray(y) for y in f(ost.load(large, resident=False))]
    print(high() - before)
"""


@pytest.mark.cpu_only
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
def test_the_process_stays_small(tmp_path: Path) -> None:
    """What the system counts: 96 MiB of file, and hardly more memory than for 12 MiB of it."""
    value = numbers(3 * MIB, 8)
    small = written(tmp_path, value[: len(value) // 8], "small.npy")
    large = written(tmp_path, value, "large.npy")
    run = subprocess.run(
        [sys.executable, "-c", RESIDENT_SET, str(small), str(large)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) * 1024 < 12 * MIB


def test_without_a_limit_files_are_read_in_blocks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostinato.planner import pipeline
    from ostinato.planner.passes import blocking

    monkeypatch.setattr(blocking, "READ_BYTES", MIB)
    monkeypatch.setattr(pipeline, "READ_BYTES", MIB)
    monkeypatch.setattr(pipeline, "memory", lambda: MIB)
    x = ost.load(written(tmp_path, numbers(100_000, 8)), resident=False)
    with ost.connect():
        f = ost.compile(lambda x: x.mean(0))
        f(x)
        assert turns(f.plan) == [4]
        assert f.plan.peak_bytes < 2.5 * MIB
        g = ost.compile(lambda x: ost.sort(x, axis=0)[0])
        with pytest.raises(
            MemoryLimitError,
            match=r"sort of float32\[100000,8\], which lies in a file .*test_files.py:\d+\): got an operation that "
            r"needs all rows at once, .* MiB per worker; needed one that can work through blocks of rows; "
            r"work through parts of it, or split it over workers on more machines",
        ):
            g(x)


def test_any_workers_reads_the_same_bits(tmp_path: Path) -> None:
    value = numbers(100_000, 8)
    path = written(tmp_path, value)
    found = []
    for workers, resident in ((1, True), (1, False), (3, False)):
        with use((workers,), "any-workers"):
            f = ost.compile(normalised, memory_limit=None if resident else 2 * MIB)
            found.append(np.asarray(f(ost.load(path, resident=resident, split=0))).tobytes())
    assert found[0] == found[1] == found[2]


def test_a_plan_of_a_file_is_a_file(tmp_path: Path) -> None:
    with use((2,)):
        x = ost.load(written(tmp_path, numbers(120_000, 8)), resident=False, split=0)
        f = ost.compile(steps, memory_limit=2 * MIB)
        expected = np.asarray(f(x))
        f.plan.to_file(tmp_path / "p")
        again = ost.Plan.from_file(tmp_path / "p")
        assert again.lowered == f.plan.lowered
        np.testing.assert_array_equal(np.asarray(ost.run(again, x)), expected)


def test_showing_a_file_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ost.load(written(tmp_path, numbers(10, 2)), resident=False)
    monkeypatch.setattr(NpySource, "read", None)
    assert repr(x) == "Array(float32[10,2], in a file)"
    assert x.shape == (10, 2)


# -- reading ahead -------------------------------------------------------------------------------
class Slow:
    """A file whose reads are seen, and may fail."""

    def __init__(self, fails: int = -1) -> None:
        self.seen: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.fails = fails

    def read(self, out: Any, box: Any) -> None:
        ((turn, _),) = box
        if turn == self.fails:
            raise DataFileError("gone")
        out[...] = turn
        self.seen.put(turn)


def blocks(count: int) -> list[Any]:
    buffers = np.zeros((2, 3))
    return [[(buffers[t % 2], ((t, t + 1),))] for t in range(count)]


def test_the_next_block_is_read_while_one_is_worked_on() -> None:
    source = Slow()
    reader = ReadAhead(blocks(5), [source])
    (first,) = reader.take()
    assert [source.seen.get(timeout=30), source.seen.get(timeout=30)] == [0, 1]
    assert first[0] == 0
    assert source.seen.empty(), "a third would be written over the first"
    (second,) = reader.take()
    assert source.seen.get(timeout=30) == 2
    assert second[0] == 1
    reader.close()
    assert not reader.thread.is_alive()


def test_a_read_that_fails_is_raised_where_it_is_wanted() -> None:
    reader = ReadAhead(blocks(5), [Slow(fails=1)])
    reader.take()
    with pytest.raises(DataFileError, match="gone"):
        reader.take()
    reader.close()


@pytest.mark.parametrize("columns", [(0, 3), (1, 3)])
def test_rows_that_several_show_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: tuple[int, int]
) -> None:
    """Where they are of the same columns: one read in each turn, of what no turn has had before."""
    x = numbers(100, 3)
    whole = NpySource(str(written(tmp_path, x)))
    shown = [whole.sliced((k, 0), (96, 3), (1, 1)) for k in (1, 4, 0)]
    seen: list[Any] = []
    read = NpySource.read

    def counted(self: Any, out: Any, box: Any) -> None:
        seen.append(box)
        read(self, out, box)

    monkeypatch.setattr(NpySource, "read", counted)
    wanted = [(0, 3), (0, 3), columns]
    rooms = [[np.empty((32, b - a), x.dtype) for a, b in wanted] for _ in range(2)]
    steps = [
        [(out, ((lo, lo + 32), cut)) for out, cut in zip(rooms[t % 2], wanted, strict=True)]
        for t, lo in enumerate((0, 32, 64))
    ]
    reader = ReadAhead(steps, shown)
    for lo in (0, 32, 64):
        for found, first, (a, b) in zip(reader.take(), (1, 4, 0), wanted, strict=True):
            np.testing.assert_array_equal(found, x[lo + first : lo + first + 32, a:b])
    reader.close()
    if columns == (0, 3):
        assert [rows for rows, _ in seen] == [(4, 36), (1, 4), (0, 1), (36, 68), (68, 100)]


# -- trouble ---------------------------------------------------------------------------------------
def test_missing_unknown_and_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': 7}    ")
    (tmp_path / "no.npy").write_bytes(b"something else")
    whole = written(tmp_path, np.ones((100, 3))).read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-8])
    for name, message in (
        ("nothing.npy", r"test_files.py:\d+|No such file"),
        ("x.txt", r"got suffix '.txt'; needed .npy or .h5 or .hdf5 or .zarr"),
        ("bad.npy", "needed an array that np.save wrote"),
        ("no.npy", "needed an array that np.save wrote"),
        ("cut.npy", r"got 2520 bytes; needed 2528, as its header says; it is cut off"),
    ):
        for resident in (True, False):
            with pytest.raises(DataFileError, match=message):
                ost.load(tmp_path / name, resident=resident)
    with pytest.raises(OSError):
        ost.load(tmp_path / "nothing.npy")


class Hostile:
    def __reduce__(self) -> Any:
        return Path.touch, (Path(os.environ["OSTINATO_HOSTILE"]),)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_HOSTILE", str(tmp_path / "ran"))
    np.save(tmp_path / "x.npy", np.array([Hostile()], object), allow_pickle=True)
    for resident in (True, False):
        with pytest.raises(DataFileError, match=r"got Python objects, .* pickles are never read"):
            ost.load(tmp_path / "x.npy", resident=resident)
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Hostile()))
    assert (tmp_path / "ran").exists(), "it would have run"


@pytest.mark.parametrize("dtype", ["U4", "M8[s]", "i4,f4", "f16"])
def test_dtypes_that_arrays_cannot_have(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(DataFileError, match=r"got dtype .*; needed one of bool, int8"):
        ost.load(written(tmp_path, np.zeros(3, dtype)))


def test_a_file_that_changes_or_shrinks(tmp_path: Path) -> None:
    value = numbers(100_000, 8)
    path = written(tmp_path, value)
    with ost.connect(memory_limit=MIB):
        f = ost.compile(lambda x: x.mean(0))
        x = ost.load(path, resident=False)
        np.testing.assert_allclose(np.asarray(f(x)), value.mean(0), atol=1e-6)
        os.truncate(path, 2_000_000)
        with pytest.raises(
            DataFileError, match=r"other content than when it was opened|it was cut off meanwhile"
        ):
            f(x)
        np.save(path, value + 1)
        with pytest.raises(DataFileError, match=r"other content than .*; load it again"):
            f(x)
        y = ost.load(path, resident=False)
        np.testing.assert_allclose(np.asarray(f(y)), value.mean(0) + 1, atol=1e-5)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("name", ["x.npy", "x.h5", "x.zarr", "group.zarr"])
def test_who_reads_what_is_replaced_has_the_old_content(
    tmp_path: Path, workers: int, name: str
) -> None:
    """By one in the same chunks, or in others; and when it is read no more, nothing of it is left."""
    value, path = numbers(64, 8), tmp_path / name
    inner = "a" if name in ("x.h5", "group.zarr") else None
    ost.save(path, value, dataset=inner)
    old = ost.load(path, dataset=inner, resident=False)
    for k in (1, 2):
        with use((workers,)):
            ost.save(path, ost.asarray(value + k, split=0), dataset=inner)
        new = ost.load(path, dataset=inner, resident=False)
        np.testing.assert_array_equal(np.asarray(new), value + k)
    np.testing.assert_array_equal(np.asarray(old), value)
    np.testing.assert_array_equal(np.asarray(old[3:9].sum()), value[3:9].sum())
    np.testing.assert_array_equal(np.asarray(new), value + 2)
    del old, new
    gc.collect()
    assert [p.name for p in tmp_path.rglob("*.part")] == []


@pytest.mark.parametrize("name", ["x.h5", "x.zarr"])
def test_who_reads_while_others_save_has_the_old_or_the_new_content(
    tmp_path: Path, name: str
) -> None:
    path, saved = tmp_path / name, threading.Event()

    def save(k: int) -> None:
        ost.save(path, np.full((300, 40), float(k)))

    def save_all() -> None:
        for k in range(1, 40):
            save(k)
        saved.set()

    save(0)
    thread = threading.Thread(target=save_all)
    thread.start()
    seen = [0.0]
    while not saved.is_set():
        found = np.unique(np.asarray(ost.load(path, resident=len(seen) % 2 > 0)))
        assert found.size == 1
        seen.append(float(found[0]))
    thread.join()
    assert seen == sorted(seen)
    gc.collect()
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_store_that_others_write_to(tmp_path: Path) -> None:
    """In its place, which can be seen by its header alone."""
    value, path = numbers(64, 8), tmp_path / "x.zarr"
    ost.save(path, value)
    x = ost.load(path, resident=False)
    (path / "zarr.json").write_bytes((path / "zarr.json").read_bytes())
    for use_it in (lambda: np.asarray(x.sum()), lambda: np.asarray(x)):
        with pytest.raises(DataFileError, match=r"other content than .*; load it again"):
            use_it()


# -- other formats ---------------------------------------------------------------------------------
def test_libraries_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, suffix in (("h5py", "h5"), ("zarr", "zarr")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(DataFileError, match=f"install it: pip install {name}"):
            ost.load(tmp_path / f"x.{suffix}")


def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    value = numbers(60_000, 8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("group/x", data=value, chunks=(1000, 8), compression="gzip")
    both(tmp_path / "x.h5", value)
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file["y"] = value[:3]
    with pytest.raises(
        DataFileError, match=r"no dataset= and the datasets group/x, y; needed the name"
    ):
        ost.load(tmp_path / "x.h5")
    both(tmp_path / "x.h5", value, "group/x")
    with pytest.raises(DataFileError, match="dataset='z' and the datasets group/x, y"):
        ost.load(tmp_path / "x.h5", dataset="z")
    (tmp_path / "bad.h5").write_bytes(b"no")
    with pytest.raises(DataFileError, match="needed an HDF5 file that can be read"):
        ost.load(tmp_path / "bad.h5")


def test_a_store_with_one_array_and_with_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which nobody has to name, and which need no library."""
    monkeypatch.setitem(sys.modules, "zarr", None)
    path, value = tmp_path / "x.zarr", numbers(60_000, 8)
    ost.save(path, value, dataset="group/a")
    both(path, value)
    both(path, value, "group/a")
    ost.save(path, value, dataset="b")
    with pytest.raises(DataFileError, match="no dataset= and the datasets b, group/a; needed the"):
        ost.load(path)


def test_zarr(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    value = numbers(60_000, 8)
    array = zarr.open(
        str(tmp_path / "x.zarr"), mode="w", shape=value.shape, chunks=(999, 8), dtype="f4"
    )
    array[...] = value
    both(tmp_path / "x.zarr", value)
    group = zarr.open_group(str(tmp_path / "g.zarr"), mode="w")
    group.create_array("inner", shape=value.shape, chunks=(5000, 8), dtype="f4")[...] = value
    both(tmp_path / "g.zarr", value, "inner")
    with pytest.raises(DataFileError, match="got no folder of that name; needed a Zarr store"):
        ost.load(tmp_path / "nothing.zarr")


@pytest.mark.parametrize("version", [2, 3])
def test_compressed_stores(version: int, tmp_path: Path) -> None:
    """Read without Zarr's library, where their codec is a known one."""
    zarr, numcodecs = pytest.importorskip("zarr"), pytest.importorskip("numcodecs")
    codecs = {
        2: (
            *(numcodecs.Zlib(), numcodecs.GZip(), numcodecs.BZ2(), numcodecs.Blosc(), None),
            numcodecs.Zstd(),
            numcodecs.LZ4(),
        ),
        3: (zarr.codecs.GzipCodec(), zarr.codecs.BloscCodec(), zarr.codecs.ZstdCodec(), None),
    }
    value = numbers(1000, 7)
    for k, codec in enumerate(codecs[version]):
        path = tmp_path / f"{k}.zarr"
        array = zarr.create_array(
            str(path),
            shape=value.shape,
            dtype="f4",
            chunks=(300, 4),
            compressors=codec,
            zarr_format=version,
            fill_value=3,
        )
        array[:900] = value[:900]
        expected = np.concatenate([value[:900], np.full((100, 7), 3, "f4")])
        found = open_source(path)
        assert isinstance(found, ChunkSource), codec
        out = np.empty((500, 5), "f4")
        found.read(out, ((450, 950), (1, 6)))
        np.testing.assert_array_equal(out, expected[450:950, 1:6])
        np.testing.assert_array_equal(np.asarray(ost.load(path)), expected)


def test_filters_of_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    value = numbers(1000, 7)
    ways: tuple[dict[str, Any], ...] = (
        {"compression": "gzip"},
        {"compression": "gzip", "shuffle": True},
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"compression": "lzf", "shuffle": True},
        {"fletcher32": True},
        {"scaleoffset": 0},
        {},
    )
    for dtype in ("f4", ">i8", "?", "c16"):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            for k, way in enumerate(ways):
                if "scaleoffset" in way and dtype != ">i8":
                    continue
                x = file.create_dataset(f"x{k}", (1000, 7), dtype, chunks=(300, 4), **way)
                x[:900] = value[:900].astype(dtype)
        with h5py.File(tmp_path / "x.h5") as file:
            for name in file:
                found = np.asarray(ost.load(tmp_path / "x.h5", dataset=name)[450:950, 1:6])
                np.testing.assert_array_equal(found, file[name][450:950, 1:6], err_msg=name)


def both(path: Path, value: np.ndarray, dataset: str | None = None) -> None:
    """Resident and block after block."""
    np.testing.assert_array_equal(np.asarray(ost.load(path, dataset=dataset)), value)
    with use((2,)):
        f = ost.compile(least_squares, memory_limit=MIB)
        x = ost.load(path, dataset=dataset, resident=False, split=0)
        for a, b in zip(f(x), least_squares(value.astype("f8")), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-4, atol=1)
        assert max(turns(f.plan)) > 1


def test_xarray() -> None:
    xarray = pytest.importorskip("xarray")
    value = numbers(4, 6)
    x = xarray.DataArray(value, dims=("time", "x"), coords={"time": range(4)})
    with use((2,)):
        found = ost.asarray(x, split=1)
        assert found.split == 1
        np.testing.assert_array_equal(np.asarray(found), value)
        np.testing.assert_array_equal(np.asarray(ost.ones((4, 6), dtype="f4") + x), value + 1)
        np.testing.assert_array_equal(np.asarray(ost.compile(lambda x: x * 2)(x)), value * 2)
    with pytest.raises(
        ArgumentError, match=r"got Dataset; needed numbers .* create an xarray.DataArray"
    ):
        ost.asarray(xarray.Dataset({"x": x}))
    with pytest.raises(DTypeError, match=r"got dtype datetime64\[ns\]; needed one of bool"):
        ost.asarray(xarray.DataArray(np.array(["2020-01-01"], "M8[ns]")))


def test_who_stops_reading_while_a_writer_ends_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader finds the writer's lock held, and the writer has found the reader's."""
    path = tmp_path / "x.zarr"
    ost.save(path, np.zeros((30, 4)))
    readers, removed, tries = [disk.Held(str(path))], disk._remove, []

    def remove(folder: Any) -> bool:
        tries.append(removed(folder))
        if tries == [False, False]:  # the second is the writer's last
            readers.clear()
        return tries[-1]

    monkeypatch.setattr(disk, "_remove", remove)
    ost.save(path, np.ones((30, 4)))
    assert not readers
    assert [p.name for p in tmp_path.iterdir()] == ["x.zarr"]
