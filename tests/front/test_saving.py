"""Arrays into files: every worker writes its part, each byte has one writer, and trouble leaves the old file."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.io_pipeline import array_files as files
from ostinato.io_pipeline import sinks
from ostinato.io_pipeline.chunks import ChunkSource
from ostinato.io_pipeline.sinks import NpySink, Sink, ZarrSink, open_sink
from ostinato.ops.core import disk, exchange
from ostinato.ops.core.exchange import chunks_of, held_pieces, written
from ostinato.ops.core.layout import Layout, intersect, volume
from ostinato.ops.core.spec import DTYPES

import ostinato as ost
from ostinato.errors import DataFileError
from tests.sessions import MESHES, use

KINDS = (".npy", ".h5", ".zarr")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == ".h5":
        pytest.importorskip("h5py")
    return str(request.param)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Any:
    chunks_of.cache_clear()
    monkeypatch.setattr(exchange, "CHUNK", 64)
    yield
    chunks_of.cache_clear()


def numbers(shape: tuple[int, ...], dtype: Any = "f4") -> np.ndarray:
    return (np.random.default_rng(1).normal(size=shape) * 50).astype(dtype)


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# -- who writes what -----------------------------------------------------------------------------
def splits(mesh: tuple[int, ...], ndim: int) -> Any:
    return st.tuples(
        *(st.one_of(st.none(), *([st.integers(0, ndim - 1)] * (ndim > 0))) for _ in mesh)
    )


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.data())
def test_each_element_has_one_writer(data: Any) -> None:
    mesh = data.draw(st.sampled_from(MESHES))
    shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=3)))
    layout = Layout(mesh, data.draw(splits(mesh, len(shape))), blocks=data.draw(st.booleans()))
    chunks = data.draw(st.one_of(st.none(), st.tuples(*(st.integers(1, 5) for _ in shape))))
    count = np.zeros(shape, int)
    for rank, boxes in enumerate(written(layout, shape, chunks)):
        for box in boxes:
            at = tuple(slice(lo, hi) for lo, hi in box)
            count[at] += 1
            assert volume(intersect(layout.box(shape, rank), box)), "it has some of it"
            again = np.zeros(shape, int)
            for holder, piece in held_pieces(layout, shape, box):
                assert intersect(layout.box(shape, holder), piece) == piece
                again[tuple(slice(lo, hi) for lo, hi in piece)] += 1
            assert (again[at] == 1).all()
            assert again.sum() == volume(box)
    assert (count == 1).all()


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_chunks_are_parts_where_these_are_of_one_size(workers: int) -> None:
    layout = Layout((workers,), (0,))
    shape = (4800 * workers, 4096)
    chunks = chunks_of(layout, shape, 4)
    assert math.prod(chunks) * 4 <= exchange.CHUNK
    for rank, boxes in enumerate(written(layout, shape, chunks)):
        part = layout.box(shape, rank)
        assert all(intersect(part, box) == box for box in boxes), "no worker needs another's rows"
        assert len(boxes) == 3


# -- what was saved is loaded ----------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype(tmp_path: Path, kind: str, dtype: Any) -> None:
    value = numbers((7, 5), "f8").astype(dtype)
    path = tmp_path / f"x{kind}"
    with use((3,)):
        if dtype == ost.bfloat16 and kind != ".zarr":
            with pytest.raises(
                DataFileError, match=r"got dtype bfloat16, for which .*test_saving.py:\d+\)"
            ):
                ost.save(path, ost.asarray(value))
            return
        ost.save(path, ost.asarray(value, split=0))
        found = ost.load(path)
        assert found.dtype == dtype
        assert np.asarray(found).tobytes() == value.tobytes()
    assert left(tmp_path) == [path.name], "nothing half written stays"


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (10,), (13, 6), (5, 4, 3)], ids=str)
def test_any_layout(
    tmp_path: Path,
    kind: str,
    mesh: tuple[int, ...],
    shape: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = numbers(shape)
    path = tmp_path / f"x{kind}"
    for numerics, long in (
        ("same-plan", sinks.MIN_PWRITE_BYTES),
        ("any-workers", 1),
    ):  # by copies, and pwrite
        monkeypatch.setattr(sinks, "MIN_PWRITE_BYTES", long)
        with use(mesh, numerics):
            for split in (None, *range(len(shape))):
                ost.save(path, ost.asarray(value, split=split))
                np.testing.assert_array_equal(np.asarray(ost.load(path, split=split)), value)
                np.testing.assert_array_equal(np.asarray(ost.load(path)), value)


@pytest.mark.usefixtures("small_chunks")
def test_other_libraries_read_it(tmp_path: Path) -> None:
    value = numbers((13, 6))
    with use((3, 2)):
        x = ost.asarray(value, split=(0, 1))
        for name in KINDS:
            ost.save(tmp_path / f"x{name}", x + 1)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), value + 1)
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_array_equal(file["data"], value + 1)
    found = zarr.open(tmp_path / "x.zarr", mode="r")
    assert found.metadata.zarr_format == 3
    assert found.nchunks == 6
    np.testing.assert_array_equal(found[...], value + 1)
    for dtype in DTYPES.values():
        if dtype != ost.bfloat16:
            ost.save(tmp_path / "y.zarr", value.astype(dtype))
            read = zarr.open(tmp_path / "y.zarr", mode="r")
            assert read.dtype == dtype
            np.testing.assert_array_equal(read[...], value.astype(dtype))


def test_values_that_are_pending_and_values_in_files(tmp_path: Path, kind: str) -> None:
    value = numbers((1000, 8))
    np.save(tmp_path / "a.npy", value)
    with use((2,)):
        stored = ost.load(tmp_path / "a.npy", resident=False, split=0)
        ost.save(tmp_path / f"b{kind}", stored)
        ost.save(tmp_path / f"c{kind}", stored * 2)
    ost.save(tmp_path / f"d{kind}", value.tolist())
    np.testing.assert_array_equal(np.asarray(ost.load(tmp_path / f"b{kind}")), value)
    np.testing.assert_array_equal(np.asarray(ost.load(tmp_path / f"c{kind}")), value * 2)
    np.testing.assert_array_equal(np.asarray(ost.load(tmp_path / f"d{kind}")), value.astype("f8"))


def test_a_file_goes_to_another_block_after_block(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = numbers((5000, 8))
    np.save(tmp_path / "a.npy", value)
    chunks_of.cache_clear()
    monkeypatch.setattr(exchange, "CHUNK", 16_000)
    sizes: list[int] = []
    read = files.NpySource.read
    monkeypatch.setattr(
        files.NpySource, "read", lambda s, out, box: (sizes.append(out.nbytes), read(s, out, box))
    )
    ost.save(tmp_path / f"b{kind}", ost.load(tmp_path / "a.npy", resident=False))
    chunks_of.cache_clear()
    assert sum(sizes) == value.nbytes
    assert max(sizes) <= 16_000
    np.testing.assert_array_equal(np.asarray(ost.load(tmp_path / f"b{kind}")), value)


# -- each its part ---------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", [2, 3])
def test_each_worker_reads_and_writes_its_part_only(
    tmp_path: Path, kind: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = numbers((600, 8))
    path = tmp_path / f"x{kind}"
    wrote: list[Any] = []
    got: list[Any] = []
    for found in (NpySink, sinks.Hdf5Sink, ZarrSink):
        write = found.write

        def counted(self: Any, part: Any, box: Any, write: Any = write) -> Any:
            wrote.append(box)
            return write(self, part, box)

        monkeypatch.setattr(found, "write", counted)
    for source in (files.NpySource, files.Hdf5Source, ChunkSource):
        read = source.read

        def seen(self: Any, out: Any, box: Any, read: Any = read) -> None:
            got.append((box, out.nbytes))
            read(self, out, box)

        monkeypatch.setattr(source, "read", seen)
    with use((workers,)):
        parts = {((k * 600 // workers, (k + 1) * 600 // workers), (0, 8)) for k in range(workers)}
        ost.save(path, ost.asarray(value, split=0))
        assert set(wrote) == parts
        assert len(wrote) == workers
        x = ost.load(path, split=0)
        assert {box for box, _ in got} == parts
        assert sum(size for _, size in got) == value.nbytes
        np.testing.assert_array_equal(np.asarray(x), value)
        wrote.clear()
        ost.save(path, ost.asarray(value))
        assert wrote == [((0, 600), (0, 8))], "of replicas, one is written"


def test_of_a_chunk_only_what_is_wanted_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = numbers((600, 8))
    ost.save(tmp_path / "x.zarr", value)
    sizes: list[int] = []
    preadv = os.preadv
    monkeypatch.setattr(
        os,
        "preadv",
        lambda *a: sizes.append(preadv(*a)) or sizes[-1],  # type: ignore[func-returns-value]
    )
    with use((3,)):
        x = ost.load(tmp_path / "x.zarr", split=0)
    np.testing.assert_array_equal(np.asarray(x), value)
    assert sizes == [value.nbytes // 3] * 3


def test_writing_parses_nothing(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers are threads, and Python 3.11's parser of literals is for one at a time."""
    value = numbers((12, 3))
    sink = open_sink(tmp_path / f"x{kind}", None, (12, 3), value.dtype, (12, 3))
    sink.create()

    def parse(*_: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    with monkeypatch.context() as patch:
        patch.setattr("ast.literal_eval", parse)
        sink.write(value, ((0, 12), (0, 3)))
    sink.finish()
    np.testing.assert_array_equal(np.asarray(ost.load(tmp_path / f"x{kind}")), value)


def test_sources_and_sinks_are_data(tmp_path: Path, kind: str) -> None:
    value = numbers((12, 3))
    sink = open_sink(
        tmp_path / f"x{kind}", "a" if kind != ".npy" else None, (12, 3), value.dtype, (5, 3)
    )
    sink.create()
    for box in (((0, 5), (0, 3)), ((5, 10), (0, 3)), ((10, 12), (0, 3))):
        (lo, hi), _ = box
        sinks.from_data(json.loads(json.dumps(sink.as_data()))).write(value[lo:hi], box)
    sinks.from_data(json.loads(json.dumps(sink.as_data()))).finish()
    source = files.open_source(tmp_path / f"x{kind}")
    again = files.from_data(json.loads(json.dumps(source.as_data())))
    out = np.empty((12, 3), "f4")
    again.read(out, ((0, 12), (0, 3)))
    np.testing.assert_array_equal(out, value)
    ost.save(tmp_path / f"x{kind}", value[:5], dataset="a" if kind != ".npy" else None)
    with pytest.raises(DataFileError, match="all workers have the same file"):
        files.from_data(source.as_data())


# -- stores with several ---------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", [".h5", ".zarr"])
def test_datasets_beside_each_other(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("h5py")
    zarr = pytest.importorskip("zarr")
    path = tmp_path / f"s{suffix}"
    a, b, c = numbers((3, 4)), numbers((5,), "i4"), numbers((2, 2), "c8")
    ost.save(path, a, dataset="group/a")
    ost.save(path, b, dataset="group/deep/b")
    ost.save(path, c, dataset="/c/")
    ost.save(path, b, dataset="group/a")
    for name, value in (("group/a", b), ("group/deep/b", b), ("c", c)):
        np.testing.assert_array_equal(np.asarray(ost.load(path, dataset=name)), value)
        if suffix == ".zarr":
            np.testing.assert_array_equal(zarr.open(path, mode="r")[name][...], value)
    with pytest.raises(
        DataFileError, match=r"needed the name of one of them|something else than an array there"
    ):
        ost.save(path, a)
    with pytest.raises(DataFileError, match=r"something else than an array there|another name"):
        ost.save(path, a, dataset="group")
    with pytest.raises(DataFileError, match=r"no group of Zarr version 3|another name"):
        ost.save(path, a, dataset="c/inner")
    assert left(tmp_path) == [path.name]
    if suffix == ".zarr":
        assert left(path) == ["c", "group", "zarr.json"]


@pytest.mark.parametrize(
    "names", [("a", "b"), ("g/a", "g/b"), ("g/a", "b"), ("g", "g/a"), ("a", "a")]
)
def test_two_writers_of_one_new_store(tmp_path: Path, kind: str, names: tuple[str, str]) -> None:
    """Both arrays are there, or who comes last is told."""
    if kind == ".npy":
        return
    path, value = tmp_path / f"s{kind}", numbers((4, 3))
    pair = [open_sink(path, name, (4, 3), value.dtype, (4, 3)) for name in names]
    for k, sink in enumerate(pair):
        sink.create()
        sink.write(value + k, ((0, 4), (0, 3)))
    pair[0].finish()
    if kind == ".h5" or names[1].startswith(names[0] + "/"):
        with pytest.raises(DataFileError, match=r"one writer at a time|no group of Zarr"):
            pair[1].finish()
        pair[1].discard()
    else:
        pair[1].finish()
        np.testing.assert_array_equal(np.asarray(ost.load(path, dataset=names[1])), value + 1)
    if names[0] != names[1]:
        np.testing.assert_array_equal(np.asarray(ost.load(path, dataset=names[0])), value)
    assert left(tmp_path) == [path.name]
    assert not [p for p in path.rglob("*") if p.name.endswith(".part")]


def test_what_is_beside_the_one_dataset_of_a_file_stays(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for add in (
        lambda file: file.attrs.update(unit="m"),
        lambda file: file.create_group("empty"),
        lambda file: file["g"].attrs.update(unit="m"),
    ):
        path = tmp_path / "x.h5"
        ost.save(path, [1.0], dataset="g/a")
        with h5py.File(path, "a") as file:
            add(file)
        ost.save(path, [1.0, 2.0])
        with h5py.File(path) as file:
            assert "empty" in file or "unit" in {**file.attrs, **file["g"].attrs}
            assert file["g/a"][...].tolist() == [1, 2]
        path.unlink()


def test_a_file_does_not_grow_as_it_is_replaced(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    path, sizes = tmp_path / "x.h5", []
    for _ in range(3):
        ost.save(path, np.ones(10_000), dataset="g/a")
        sizes.append(path.stat().st_size)
    assert sizes == sizes[:1] * 3


# -- trouble -----------------------------------------------------------------------------------------
def test_places_that_cannot_be_written(tmp_path: Path, kind: str) -> None:
    with pytest.raises(
        DataFileError, match=r"got suffix '.txt'; needed .npy or .h5 or .hdf5 or .zarr"
    ):
        ost.save(tmp_path / "x.txt", [1.0])
    message = r"got no folder to write it to; needed a folder that exists; make it first \(.*test_saving.py:\d+\)"
    with pytest.raises(DataFileError, match=message):
        ost.save(tmp_path / "no" / f"x{kind}", [1.0])
    (tmp_path / f"y{kind}").mkdir()
    (tmp_path / f"y{kind}" / "mine").write_text("kept")
    with pytest.raises(DataFileError):
        ost.save(tmp_path / f"y{kind}", [1.0])
    assert (tmp_path / f"y{kind}" / "mine").read_text() == "kept"
    assert left(tmp_path) == [f"y{kind}"]


def test_names_of_datasets(tmp_path: Path) -> None:
    for name in ("../x", "a//b", "", "/", "a/./b"):
        for suffix in (".zarr", ".h5"):
            with pytest.raises(DataFileError, match="needed names, with one / between them"):
                ost.save(tmp_path / f"x{suffix}", [1.0], dataset=name)
    with pytest.raises(DataFileError, match=r"dataset='a'; needed a .h5 or .zarr, which may hold"):
        ost.save(tmp_path / "x.npy", [1.0], dataset="a")
    ost.save(tmp_path / "x.npy", [1.0])
    with pytest.raises(
        DataFileError, match=r"dataset='a'; needed a .npz, .h5 or .zarr, which may hold"
    ):
        ost.load(tmp_path / "x.npy", dataset="a")
    assert left(tmp_path) == ["x.npy"]


def test_names_that_are_taken(tmp_path: Path) -> None:
    (tmp_path / "x.zarr").write_text("mine")
    with pytest.raises(DataFileError, match="something else than an array there"):
        ost.save(tmp_path / "x.zarr", [1.0])
    assert (tmp_path / "x.zarr").read_text() == "mine"
    assert left(tmp_path) == ["x.zarr"]


def test_a_link_leads_to_what_is_written(tmp_path: Path, kind: str) -> None:
    file, link = tmp_path / f"y{kind}", tmp_path / f"link{kind}"
    ost.save(file, [1.0])
    link.symlink_to(file)
    ost.save(link, [2.0])
    assert ost.load(file).tolist() == [2.0]
    assert link.is_symlink()
    assert left(tmp_path) == [link.name, file.name]
    other = tmp_path / f"other{kind}"
    other.symlink_to(tmp_path / "bare")
    sink = open_sink(other, "a" if kind != ".npy" else None, (1,), np.dtype("f4"), (1,))
    assert type(sinks.from_data(sink.as_data())) is type(sink), "whatever the file is called"


def test_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(
        DataFileError, match="no h5py to write it with; needed h5py; install it: pip install h5py"
    ):
        ost.save(tmp_path / "x.h5", [1.0])
    monkeypatch.setitem(__import__("sys").modules, "zarr", None)
    ost.save(tmp_path / "x.zarr", [1.0])
    assert ost.load(tmp_path / "x.zarr").tolist() == [1.0], "needs no library"


@pytest.mark.parametrize("fails", ["create", "write", "finish"])
def test_what_fails_leaves_the_old_file(
    tmp_path: Path, kind: str, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = numbers((40, 3))
    path = tmp_path / f"x{kind}"
    ost.save(path, old)
    found = {".npy": NpySink, ".h5": sinks.Hdf5Sink, ".zarr": ZarrSink}[kind]
    begun = getattr(found, fails)
    calls = []

    def full(self: Sink, *args: Any) -> Any:
        calls.append(args)
        if fails != "write" or len(calls) == 2:
            with self.trouble():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return begun(self, *args)

    monkeypatch.setattr(found, fails, full)
    with (
        use((2,)),
        pytest.raises(
            DataFileError, match=r"No space left on device; needed a place to write 960 bytes to"
        ),
    ):
        ost.save(path, ost.asarray(numbers((80, 3)), split=0))
    assert left(tmp_path) == [path.name]
    np.testing.assert_array_equal(np.asarray(ost.load(path)), old)


def test_no_space_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, at: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(os, "pwrite", None)
    with pytest.raises(
        DataFileError,
        match=r"x.npy: got No space left on device; needed .* 1200 bytes .*test_saving.py:",
    ):
        ost.save(tmp_path / "x.npy", numbers((100, 3)))
    assert left(tmp_path) == []
    monkeypatch.undo()
    write = os.write

    def no_block(handle: int, data: bytes) -> int:  # nor one for the lock's own text
        return full(handle, 0, 0) if data.startswith(disk._MARK) else write(handle, data)

    monkeypatch.setattr(os, "write", no_block)
    handles = os.listdir("/proc/self/fd")
    with pytest.raises(DataFileError, match="got No space left on device; needed a place"):
        ost.save(tmp_path / "x.npy", numbers((100, 3)))
    assert os.listdir(tmp_path) == []
    assert os.listdir("/proc/self/fd") == handles
    monkeypatch.undo()

    def unable(handle: int, at: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unable)
    ost.save(tmp_path / "x.npy", numbers((100, 3)))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), numbers((100, 3)))


def test_without_an_exchange_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_exchange", lambda a, b: False)
    for value in ([1.0], [2.0, 3.0]):
        ost.save(tmp_path / "x.zarr", value)
        assert ost.load(tmp_path / "x.zarr").tolist() == value
    assert left(tmp_path) == ["x.zarr"]
