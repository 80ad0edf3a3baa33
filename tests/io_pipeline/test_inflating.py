"""Compressed chunks in several threads: their numbers, holes and errors."""

from __future__ import annotations

import gzip
import itertools
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import array_files as files
from ostinato.io_pipeline import chunks, inflate, source, thread_counts
from ostinato.io_pipeline.array_files import open_source

from ostinato.errors import DataFileError

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

BOXES = (
    ((0, 23), (0, 31), (0, 17)),
    ((8, 23), (0, 31), (5, 17)),
    ((3, 20), (10, 30), (0, 10)),
    ((0, 8), (10, 20), (5, 10)),
)
CODECS: dict[str, Any] = {
    "zstd": lambda: zarr.codecs.ZstdCodec(),
    "gzip": lambda: zarr.codecs.GzipCodec(),
    "blosc": lambda: zarr.codecs.BloscCodec(cname="lz4"),
}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_counts, "MIN_THREADED_BYTES", 1)


@pytest.fixture(params=["deflate", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "zlib":
        monkeypatch.setattr(inflate, "_libdeflate", lambda: None)
    elif inflate._libdeflate() is None:
        pytest.skip("no deflate")
    return str(request.param)


def numbers(dtype: str, shape: tuple[int, ...] = (23, 31, 17)) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) % 97).astype(dtype)


def check(path: Path, x: np.ndarray, boxes: Any = BOXES) -> None:
    opened = open_source(path)
    for box in boxes:
        room = np.full([hi - lo + 2 for lo, hi in box], 7, x.dtype)
        out = room[tuple(slice(1, -1) for _ in box)] if len(box) == 1 else room[1:-1]
        out = out[:, : box[1][1] - box[1][0], : box[2][1] - box[2][0]] if len(box) == 3 else out
        opened.kept = source.ChunkCache()  # type: ignore[attr-defined]
        opened.read(out, box)
        np.testing.assert_array_equal(out, x[tuple(slice(*b) for b in box)])
        out[...] = 7
        assert (room == 7).all()  # nothing beside it was written to


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_hdf5(dtype: str, shuffle: bool, library: str, tmp_path: Path) -> None:
    x = numbers(dtype)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(8, 10, 5), compression="gzip", shuffle=shuffle)
    check(tmp_path / "x.h5", x)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", [2, 3])
def test_zarr(codec: str, version: int, tmp_path: Path) -> None:
    x = numbers("f4")
    if version == 2:
        from numcodecs import LZ4, Blosc, Zstd

        made: Any = {"zstd": Zstd(), "gzip": LZ4(), "blosc": Blosc()}[codec]
    else:
        made = CODECS[codec]()
    z = zarr.create_array(
        tmp_path / "x.zarr", shape=x.shape, chunks=(8, 10, 5), dtype="f4", compressors=made,
        zarr_format=version, fill_value=3.0,
    )  # fmt: skip
    z[:16] = x[:16]
    x[16:] = 3.0
    check(tmp_path / "x.zarr", x)


@pytest.mark.parametrize("codec", [*CODECS, None])
@pytest.mark.parametrize("where", ["start", "end"])
def test_shards(codec: str | None, where: str, tmp_path: Path) -> None:
    x = numbers("f4")
    z = zarr.create_array(
        tmp_path / "x.zarr", shape=x.shape, chunks=(4, 5, 5), dtype="f4", fill_value=3.0,
        compressors=None if codec is None else CODECS[codec](),
        shards={"shape": (8, 10, 15), "index_location": where},
    )  # fmt: skip
    z[:16] = x[:16]
    z[20:, :9] = x[20:, :9]  # of a shard only some chunks
    x[16:20], x[20:, 9:] = 3.0, 3.0
    assert isinstance(open_source(tmp_path / "x.zarr"), chunks.ShardSource)
    check(tmp_path / "x.zarr", x)


def test_shards_that_are_damaged(tmp_path: Path) -> None:
    x = numbers("f4", (8, 8))
    path = tmp_path / "x.zarr"
    zarr.create_array(path, shape=x.shape, chunks=(2, 2), shards=(4, 8), dtype="f4")[...] = x
    shard = path / "c" / "0" / "0"
    whole = shard.read_bytes()
    out, said = np.empty((8, 8), "f4"), list[str]()
    for at in (*range(0, len(whole), 7), len(whole) - 1):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            open_source(path).read(out, ((0, 8), (0, 8)))
        except DataFileError as error:
            said.append(str(error))
        else:  # the codec had no checksum of its own
            assert at < len(whole) - 16 * 8 - 4
    assert all("chunk c/0/0" in text for text in said)
    shard.write_bytes(whole)
    opened = open_source(path)
    for k in range(2):  # written again, which shows by its time
        opened.read(out, ((0, 8), (0, 8)))
        np.testing.assert_array_equal(out, x + k)
        zarr.open(path, mode="r+")[...] = x + 1
    for keep in (0, 3, len(whole) // 2, len(whole) - 1):
        shard.write_bytes(whole[:keep])
        with pytest.raises(DataFileError, match="chunk c/0/0"):
            open_source(path).read(out, ((0, 8), (0, 8)))


@pytest.mark.parametrize("asked", [0, 3, 1000])
def test_where_chunks_of_hdf5_lie(
    asked: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of many chunks the library lists all once, since it looks for each of them through all."""
    monkeypatch.setattr(files, "ASKED", asked)
    x = numbers("u2")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset(
            "x", shape=x.shape, dtype="u2", chunks=(3, 4, 9), compression="gzip"
        )
        made[:15], made[18:, 8:] = x[:15], x[18:, 8:]
        x[15:18], x[18:, :8] = 0, 0
    check(tmp_path / "x.h5", x)
    found = open_source(tmp_path / "x.h5")
    assert isinstance(found, files.Hdf5Source)
    table, known = found.table, found.data.id.get_chunk_info_by_coord
    assert table is not None
    for at in itertools.product(range(0, 23, 3), range(0, 31, 4), (0, 9)):
        assert table.find(at) == files._place(known(at))
    assert len(table.numbers) == (0 if asked == 1000 else 5 * 8 * 2 + 2 * 6 * 2)


@pytest.mark.parametrize("ndim", range(1, 6))
def test_dimensions(ndim: int, tmp_path: Path) -> None:
    x = numbers("i4", (9, 8, 7, 6, 5)[:ndim])
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(4, 3, 4, 5, 2)[:ndim], compression="gzip")
    out, opened = np.zeros(x.shape, "i4"), open_source(tmp_path / "x.h5")
    opened.read(out, tuple((0, n) for n in x.shape))
    np.testing.assert_array_equal(out, x)


def test_damage_is_told(library: str, tmp_path: Path) -> None:
    x = numbers("u1")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("x", data=x, chunks=(8, 10, 5), compression="gzip")
        stored = made.id.get_chunk_info_by_coord((8, 10, 5))
    z = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(8, 10, 5), dtype="u1")
    z[:] = x
    data = bytearray((tmp_path / "x.h5").read_bytes())
    data[stored.byte_offset + 9 : stored.byte_offset + 15] = b"damage"
    (tmp_path / "x.h5").write_bytes(data)
    chunk = tmp_path / "x.zarr" / "c" / "1" / "1" / "1"
    chunk.write_bytes(chunk.read_bytes()[:-5])
    for name, what in (("x.h5", "the chunk at"), ("x.zarr", "chunk c/1/1/1")):
        with pytest.raises(DataFileError, match=what):
            open_source(tmp_path / name).read(np.empty(x.shape, "u1"), BOXES[0])


@pytest.mark.parametrize("pack", [zlib.compress, gzip.compress])
def test_no_more_is_inflated_than_was_said(pack: Any, library: str) -> None:
    data = pack(bytes(1000))
    assert bytes(inflate.inflated("gzip", data, 1000)) == bytes(1000)
    for other, size in (
        (data, 999),
        (data, 1001),
        (data + b"x", 1000),
        (data + pack(b"y"), 1000),
        (data[:-1], 1000),
        (data[:-1] + b"x", 1000),
        (b"", 1),
    ):
        with pytest.raises(ValueError, match="which"):
            inflate.inflated("gzip", other, size)
    assert len(inflate.inflated("gzip", data + pack(b"y"), 1001)) == 1001  # of two members


def test_what_lies_elsewhere_in_a_file(tmp_path: Path) -> None:
    """A user's block moves all addresses; byte order and other filters are HDF5's own."""
    x = numbers("f4")
    for k, (more, dtype) in enumerate(
        itertools.product(({}, {"userblock_size": 512}), ("<f4", ">f4"))
    ):
        with h5py.File(tmp_path / f"{k}.h5", "w", **more) as file:
            file.create_dataset("x", data=x.astype(dtype), chunks=(8, 10, 5), compression="gzip")
        check(tmp_path / f"{k}.h5", x)
    with h5py.File(tmp_path / "sums.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(8, 10, 5), compression="gzip", fletcher32=True)
    check(tmp_path / "sums.h5", x)
