"""Files that are written block after block as their arrays are made: the same numbers as NumPy's, each byte
read and written once, little in memory, and the old file or the whole new one."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import sinks
from ostinato.io_pipeline.array_files import NpySource
from ostinato.io_pipeline.sinks import open_sink
from ostinato.ops.core import exchange
from ostinato.ops.core.exchange import chunks_of
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.targets import targets
from ostinato.planner import external
from ostinato.planner.passes import blocking
from ostinato.planner.passes.memory import BUFFERS
from ostinato.runtime.bound_values import is_server
from ostinato.runtime.read_ahead import WriteBehind

import ostinato as ost
from ostinato import streaming
from ostinato.errors import DataFileError
from tests.planner.test_blocking import turns
from tests.planner.test_memory import check_memory
from tests.sessions import forget_plans, use

ROWS, COLUMNS = 1501, 6
BLOCK = 4096


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is cut in blocks in earnest is large."""
    monkeypatch.setattr(blocking, "READ_BYTES", BLOCK)
    monkeypatch.setattr(streaming, "READ_BYTES", BLOCK)
    forget_plans()
    chunks_of.cache_clear()
    monkeypatch.setattr(exchange, "CHUNK", 5000)
    yield
    forget_plans()
    chunks_of.cache_clear()


KINDS = (".npy", ".h5", ".zarr")


def needs(kind: str) -> None:
    if kind == ".h5":
        pytest.importorskip("h5py")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    needs(request.param)
    return str(request.param)


@pytest.fixture
def value(tmp_path: Path) -> np.ndarray[Any, Any]:
    made = np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    np.save(tmp_path / "x.npy", made)
    return made


def loaded(path: Path) -> np.ndarray[Any, Any]:
    return np.asarray(ost.load(path))


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes that were read and written, and the most at once."""
    found: Counter[str] = Counter()
    read, put, lock = NpySource.read, sinks._put, threading.Lock()  # workers are threads

    def reads(self: NpySource, out: Any, box: Any) -> None:
        with lock:
            found["read"] += out.nbytes
        read(self, out, box)

    def puts(handle: int, stretch: Any, at: int) -> None:
        with lock:
            found["written"] += stretch.nbytes
            found["most"] = max(found["most"], stretch.nbytes)
        put(handle, stretch, at)

    monkeypatch.setattr(NpySource, "read", reads)
    monkeypatch.setattr(sinks, "_put", puts)
    monkeypatch.setattr(sinks, "MIN_PWRITE_BYTES", 1)
    return found


@pytest.mark.parametrize("mesh", [(1,), (2,), (3,), (2, 2)])
@pytest.mark.parametrize("numerics", ["same-plan", "any-workers"])
def test_each_byte_is_read_and_written_once(
    tmp_path: Path, value: np.ndarray, kind: str, mesh: Any, numerics: str, moved: Counter[str]
) -> None:
    with use(mesh, numerics) as session:
        x = ost.load(tmp_path / "x.npy", resident=False)
        y = ost.exp(x) * 2 + x.astype("float32")
        moved.clear()
        ost.save(tmp_path / f"y{kind}", y)
        size = y.spec.nbytes
        assert y._operand is None, "it was not kept"
        assert size <= moved["read"] <= 1.1 * size
        assert size <= moved["written"] <= 1.1 * size
        assert moved["most"] <= size / 12
        plan = list(session.plans.plans.values())[-1]
        (count,) = turns(plan)
        assert count >= 17 // math.prod(mesh)
        assert plan.peak_bytes < size / (4 if numerics == "same-plan" else 2)
        expected = np.exp(value) * 2 + value.astype("f4")
        np.testing.assert_allclose(loaded(tmp_path / f"y{kind}"), expected, atol=1e-12)
    assert not targets


@pytest.mark.parametrize("mesh", [(1,), (3,)])
@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("dtype", ["bool", "int8", "float32", "complex64"])
def test_any_dtype_and_split(
    tmp_path: Path, value: np.ndarray, kind: str, mesh: Any, split: int, dtype: str
) -> None:
    with use(mesh):
        x = ost.load(tmp_path / "x.npy", resident=False, split=split)
        wide = ost.concat([x, -x], axis=1) * 3
        y = (wide > 0) if dtype == "bool" else wide.astype(dtype)
        ost.save(tmp_path / f"y{kind}", y)
        expected = np.concatenate([value, -value], 1) * 3
        expected = expected > 0 if dtype == "bool" else expected.astype(dtype)
        np.testing.assert_array_equal(loaded(tmp_path / f"y{kind}"), expected)


def test_three_axes_and_rows_of_several_files(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 400, 7, 5)).astype("f4")
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    w = rng.normal(size=(5, 9)).astype("f4")
    with use((2,)):
        y = (ost.load(tmp_path / "a.npy", resident=False) + ost.load(tmp_path / "b.npy")) @ w
        ost.save(tmp_path / f"y{kind}", y)
        np.testing.assert_allclose(loaded(tmp_path / f"y{kind}"), (a + b) @ w, atol=1e-4)


def test_what_a_reduction_leaves_is_used_in_each_block(tmp_path: Path, value: np.ndarray) -> None:
    with use() as session:
        x = ost.load(tmp_path / "x.npy", resident=False)
        ost.save(tmp_path / "y.npy", (x - x.mean(axis=0)) / x.std(axis=0))
        plan = list(session.plans.plans.values())[-1]
        assert plan.peak_bytes < value.nbytes / 2
        expected = (value - value.mean(axis=0)) / value.std(axis=0)
        np.testing.assert_allclose(loaded(tmp_path / "y.npy"), expected, atol=1e-12)


def test_what_files_have_no_part_in_is_kept(tmp_path: Path) -> None:
    """Only what there is no room for is written as it is made."""
    with use():
        y = ost.arange(6000.0) * 2
        ost.save(tmp_path / "y.npy", y)
        assert y._operand is not None
    with ost.connect(memory_limit=100_000) as session:
        y = ost.sin(ost.arange(60_000.0))
        ost.save(tmp_path / "y.npy", y)
        assert y._operand is None
        assert list(session.plans.plans.values())[-1].peak_bytes <= 100_000
    with use():
        again = ost.sin(ost.arange(60_000.0))
        np.testing.assert_array_equal(np.asarray(again), loaded(tmp_path / "y.npy"))


def test_a_mean_beside_does_not_keep_the_array(tmp_path: Path, value: np.ndarray) -> None:
    with ost.connect(memory_limit=2 * value.nbytes // 3) as session:
        y = ost.exp(ost.load(tmp_path / "x.npy", resident=False))
        mean = y.mean()
        ost.evaluate(mean)
        assert y._operand is None
        assert list(session.plans.plans.values())[-1].peak_bytes < value.nbytes / 3
        ost.save(tmp_path / "y.npy", y - mean)
    np.testing.assert_allclose(float(mean), np.exp(value).mean())
    np.testing.assert_allclose(loaded(tmp_path / "y.npy"), np.exp(value) - np.exp(value).mean())


def test_onto_the_file_that_is_read(tmp_path: Path, value: np.ndarray) -> None:
    with use((2,)):
        for _ in range(2):
            ost.save(tmp_path / "x.npy", ost.load(tmp_path / "x.npy", resident=False) + 1)
    np.testing.assert_allclose(loaded(tmp_path / "x.npy"), value + 2)


# -- writing behind ------------------------------------------------------------------------------
def test_a_block_is_written_while_the_next_one_is_made() -> None:
    """In as many buffers as there are, and no more."""
    writer = WriteBehind([[t] for t in range(4)])
    begun, goes_on = threading.Event(), threading.Event()
    done: list[int] = []

    def slow() -> None:
        begun.set()
        assert goes_on.wait(30)
        done.append(0)

    assert writer.take() == [0]
    writer.put(slow)
    assert begun.wait(30)
    assert writer.take() == [1], "while the first is being written"
    writer.put(lambda: done.append(1))
    third: list[Any] = []
    waits = threading.Thread(target=lambda: third.append(writer.take()))
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    assert not third
    assert not done
    goes_on.set()
    waits.join(30)
    assert third == [[2]]
    writer.put(lambda: done.append(2))
    writer.finish()
    assert done == [0, 1, 2]
    writer.close()
    assert writer.thread is not None
    assert not writer.thread.is_alive()


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_write_that_fails_is_raised_and_no_other_begins(turn: int) -> None:
    writer, done = WriteBehind([[t] for t in range(3)]), []

    def write(t: int) -> None:
        if t == turn:
            raise DataFileError("full")
        done.append(t)

    def run() -> None:
        for t in range(3):
            writer.take()
            writer.put(partial(write, t))
        writer.finish()

    with pytest.raises(DataFileError, match="full"):
        run()
    writer.close()
    assert done == [*range(turn)]


def test_who_closes_waits_for_the_write_that_is_going_on_only() -> None:
    writer, done = WriteBehind([[0], [1]]), []
    begun, goes_on = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert goes_on.wait(30)
        done.append(0)

    for job in (slow, lambda: done.append(1)):
        writer.take()
        writer.put(job)
    assert begun.wait(30)
    closes = threading.Thread(target=writer.close)
    closes.start()
    closes.join(0.2)
    assert closes.is_alive()
    goes_on.set()
    closes.join(30)
    assert done == [0]


@pytest.mark.cpu_only
@pytest.mark.parametrize("mesh", [(1,), (2,)])
def test_reading_making_and_writing_overlap(
    tmp_path: Path, value: np.ndarray, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first block is being written, the next one is made and those behind it are read; the memory
    of all is in the plan."""
    begun: Counter[int] = Counter()  # reads of each worker, by its thread
    places: set[int] = set()
    threads: Counter[str] = Counter()
    read, write = NpySource.read, sinks.Sink._write_at
    ahead, first = threading.Event(), threading.Lock()

    def reads(self: NpySource, out: Any, box: Any) -> None:
        begun[threading.get_ident()] += 1
        if min(begun.values()) == 2 * BUFFERS and len(begun) == math.prod(mesh):
            ahead.set()
        read(self, out, box)

    def writes(self: Any, begin: int, part: Any, box: Any) -> None:
        if first.acquire(blocking=False):
            assert ahead.wait(30), "nothing goes on meanwhile"
            assert max(begun.values()) <= 2 * BUFFERS or math.prod(mesh) > 1
            threads.update(t.name for t in threading.enumerate())
        places.add(part.__array_interface__["data"][0])
        write(self, begin, part, box)

    monkeypatch.setattr(NpySource, "read", reads)
    monkeypatch.setattr(sinks.Sink, "_write_at", writes)
    with use(mesh) as session:
        y = ost.exp(ost.load(tmp_path / "x.npy", resident=False))
        ost.save(tmp_path / "y.npy", y)
        plan = list(session.plans.plans.values())[-1]
        assert turns(plan) >= [3]
        check_memory(plan.program)
    assert len(places) == BUFFERS * math.prod(mesh)
    assert 1 <= threads["ostinato-writer"] <= math.prod(mesh)
    assert threads["ostinato-reader"] >= 1
    assert not [
        t for t in threading.enumerate() if t.name in ("ostinato-writer", "ostinato-reader")
    ]
    np.testing.assert_allclose(loaded(tmp_path / "y.npy"), np.exp(value))


@pytest.mark.parametrize("mesh", [(1,), (2,)])
def test_what_is_written_may_be_a_view_or_what_was_read(
    tmp_path: Path, value: np.ndarray, mesh: Any
) -> None:
    with use(mesh) as session:
        x = ost.load(tmp_path / "x.npy", resident=False)
        for k, (y, expected) in enumerate(
            [
                (ost.exp(x)[:, ::-1], np.exp(value)[:, ::-1]),
                (x[:, ::-1], value[:, ::-1]),
                (ost.exp(x).reshape(ROWS, 3, 2), np.exp(value).reshape(ROWS, 3, 2)),
                (
                    ost.broadcast_to(ost.exp(x[:, :1]), value.shape),
                    np.exp(value[:, :1]) + 0 * value,
                ),
            ]
        ):
            ost.save(tmp_path / f"{k}.npy", y)
            check_memory(list(session.plans.plans.values())[-1].program)
            np.testing.assert_allclose(loaded(tmp_path / f"{k}.npy"), expected)


@pytest.mark.parametrize("last", [False, True])
def test_the_end_of_a_disk(
    tmp_path: Path, value: np.ndarray, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails in the background fails the save, also the last one; no write follows."""
    put, sizes = sinks._put, []
    failed: list[int] = []

    def full(handle: int, stretch: Any, at: int) -> None:
        assert not failed, "a write behind one that failed"
        sizes.append(stretch.nbytes)
        if sum(sizes) >= (value.nbytes if last else value.nbytes // 2):
            failed.append(at)
            raise OSError(28, "No space left on device")
        put(handle, stretch, at)

    monkeypatch.setattr(sinks, "_put", full)
    monkeypatch.setattr(sinks, "MIN_PWRITE_BYTES", 1)
    with use():
        y = ost.exp(ost.load(tmp_path / "x.npy", resident=False))
        with pytest.raises(DataFileError, match="No space left"):
            ost.save(tmp_path / "y.npy", y)
    assert failed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.npy"]
    assert not [
        t for t in threading.enumerate() if t.name in ("ostinato-writer", "ostinato-reader")
    ]


@pytest.mark.parametrize("mesh", [(1,), (3,)])
def test_trouble_in_the_middle_leaves_the_old_file(
    tmp_path: Path, value: np.ndarray, kind: str, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, put = tmp_path / f"y{kind}", sinks._put
    ost.save(path, np.arange(5.0))
    there, count = sorted(p.name for p in tmp_path.iterdir()), iter(range(10**6))

    def full(handle: int, stretch: Any, at: int) -> None:
        if next(count) > 7:
            raise OSError(28, "no space left on device")
        put(handle, stretch, at)

    with use(mesh):
        y = ost.exp(ost.load(tmp_path / "x.npy", resident=False))
        monkeypatch.setattr(sinks, "_put", full)
        monkeypatch.setattr(sinks, "MIN_PWRITE_BYTES", 1)
        with pytest.raises(DataFileError, match="no space left") as caught:
            ost.save(path, y)
        assert "test_streaming.py" in str(caught.value)
        monkeypatch.undo()
        assert sorted(p.name for p in tmp_path.iterdir()) == there
        np.testing.assert_array_equal(loaded(path), np.arange(5.0))
        np.testing.assert_allclose(np.asarray(y), np.exp(value))
    assert not targets


def test_boxes_of_a_zarr_in_any_order(tmp_path: Path) -> None:
    """Also those that do not follow its chunks."""
    value = np.arange(11 * 7.0).reshape(11, 7)
    sink = open_sink(tmp_path / "y.zarr", None, value.shape, value.dtype, (4, 3))
    sink.create()
    cuts = [((lo, hi), (a, b)) for lo, hi in [(5, 11), (0, 5)] for a, b in [(2, 7), (0, 2)]]
    for (lo, hi), (a, b) in cuts:
        sink.write(value[lo:hi, a:b], ((lo, hi), (a, b)))
    sink.finish()
    np.testing.assert_array_equal(loaded(tmp_path / "y.zarr"), value)
    zarr = pytest.importorskip("zarr")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "y.zarr")[...], value)


SCRIPT = """
import resource, sys
import ostinato as ost
source, goal, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
with ost.connect(workers=workers):
    small = ost.load(source, resident=False)[:1000]
    ost.evaluate(ost.exp(small) * 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    y = ost.exp(ost.load(source, resident=False)) * 2
    ost.save(goal, y)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.cpu_only
@pytest.mark.parametrize("workers", [1, 2])
def test_memory_of_a_process(tmp_path: Path, workers: int) -> None:
    """Far less than the array's 512 MiB, of which there is no file full: it has holes."""
    shape = (1 << 16, 1 << 10)
    made = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "f8", shape)
    made[::4096, 7] = 1.0
    made.flush()
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            SCRIPT,
            *map(str, (tmp_path / "x.npy", tmp_path / "y.npy", workers)),
        ],
        env={**os.environ, "OSTINATO_CACHE": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ran.stdout) < 288 << 10  # two blocks read and two written each, and what aligns them
    found = np.load(tmp_path / "y.npy", mmap_mode="r")
    np.testing.assert_allclose(found[4095:4098, 6:9], np.exp(made[4095:4098, 6:9]) * 2)


def test_what_memory_has_no_room_for_is_made_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no file is read and there is no limit."""
    monkeypatch.setattr(external, "memory", lambda: 100_000)
    with use() as session:
        y = ost.sin(ost.arange(50_000.0))
        ost.save(tmp_path / "y.npy", y)
        assert list(session.plans.plans.values())[-1].peak_bytes < y.spec.nbytes / 8
    np.testing.assert_allclose(loaded(tmp_path / "y.npy"), np.sin(np.arange(50_000.0)), atol=1e-12)


def test_of_workers_with_the_same_part_one_writes() -> None:
    spec = Spec((8, 8), np.dtype("f4"), Layout((2, 3), (0, None)))
    assert [is_server(spec, rank) for rank in range(6)] == [True, False, False] * 2
