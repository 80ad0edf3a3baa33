"""Files behind addresses: the same samples and arrays as from a disk, many requests at a time, tries again."""

from __future__ import annotations

import functools
import http.server
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import remote
from ostinato.io_pipeline import source as source_of_files
from ostinato.io_pipeline.array_files import open_source
from ostinato.io_pipeline.feed.described import as_data, from_data
from ostinato.ops.core.tree import flatten
from PIL import Image

import ostinato as ost
from ostinato.errors import DataFileError, SampleError
from tests.io_pipeline.pictures import folder
from tests.io_pipeline.test_shards import dataset

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402


class Flaky(MemoryFileSystem):  # type: ignore[misc, unused-ignore]
    """A store that fails now and then, and tells how many ask at a time."""

    protocol = "flaky"
    fails: Any = staticmethod(lambda name, n: None)  # of the n-th request of a file
    meet: threading.Barrier | None = None  # where requests wait for others
    asked: dict[str, int]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("flaky://", "memory://")))

    def unstrip_protocol(self, name: str) -> str:
        return f"flaky://{name}"

    def _asked(self, name: str) -> None:
        Flaky.asked[name] = Flaky.asked.get(name, 0) + 1
        error = Flaky.fails(name, Flaky.asked[name])
        if error is not None:
            raise error

    def cat_file(self, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
        if Flaky.meet is not None:
            Flaky.meet.wait(20)
        self._asked(path)
        return bytes(super().cat_file(path, start, end, **more))


fsspec.register_implementation("flaky", Flaky, clobber=True)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    monkeypatch.setattr(Flaky, "asked", {}, raising=False)
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """One of each."""
    folder(tmp_path / "images", 8)
    (tmp_path / "tar").mkdir()
    dataset(tmp_path / "tar", 2)
    rows = np.arange(600.0).reshape(100, 6)
    np.save(tmp_path / "x.npy", rows)
    Image.fromarray(np.arange(48 * 64, dtype="u1").reshape(48, 64)).save(tmp_path / "mask.png")
    np.save(tmp_path / "turned.npy", np.asfortranarray(rows))
    np.savez(tmp_path / "plain.npz", a=rows, b=rows + 1)
    np.savez_compressed(tmp_path / "small.npz", a=rows)
    ost.save(tmp_path / "x.zarr", rows)
    ost.save(tmp_path / "x.h5", rows, dataset="a")
    lines = ["a,b", *(f"{k},{k / 2}" for k in range(100))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": np.arange(100), "b": np.arange(100) / 2})
    pytest.importorskip("pyarrow.parquet").write_table(
        table, tmp_path / "t.parquet", row_group_size=30
    )
    return tmp_path


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Files, and ranges of them."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path, asked = self.translate_path(self.path), self.headers.get("Range")
        if asked is None or os.path.isdir(path):
            return super().do_GET()
        data = Path(path).read_bytes()
        lo, _, hi = asked.removeprefix("bytes=").partition("-")
        part = data[int(lo) : int(hi) + 1 if hi else None]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {lo}-{int(lo) + len(part) - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(part)
        return None


@pytest.fixture(params=["memory", "http"])
def there(request: pytest.FixtureRequest, files: Path) -> Iterator[str]:
    """The address of the folder."""
    if request.param == "memory":
        fsspec.filesystem("memory").put(str(files), "/top", recursive=True)
        yield "memory://top"
        return
    pytest.importorskip("aiohttp")
    handler = functools.partial(Ranges, directory=str(files))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def equal(far: Any, lies: Any) -> None:
    """The same leaves in each batch or sample."""
    assert len(far) == len(lies)
    for a, b in zip(far, lies, strict=True):
        for x, y in zip(flatten(a)[0], flatten(b)[0], strict=True):
            np.testing.assert_array_equal(x, y)


def test_the_same_as_from_a_disk(there: str, files: Path) -> None:
    for name, inner in (
        ("x.npy", None),
        ("turned.npy", None),
        ("plain.npz", "b"),
        ("small.npz", "a"),
        ("x.h5", "a"),
        ("x.zarr", None),
        ("t.parquet", ["b", "a"]),
        ("t.csv", "b"),
    ):
        lies, far = (
            ost.load(f"{root}/{name}", dataset=inner, resident=False) for root in (files, there)
        )
        assert (far.shape, far.dtype) == (lies.shape, lies.dtype)
        for key in (slice(None), slice(5, 60, 7), [3, 90, 41, 42, 7], (..., slice(-2, None))):
            np.testing.assert_array_equal(np.asarray(far[key]), np.asarray(lies[key]), name)


def test_pipes_are_the_same(there: str, files: Path) -> None:
    def pipes(root: Any) -> list[Any]:
        found = sorted((files / "images").rglob("*.jpg"))
        names = [f"{root}/{p.relative_to(files)}" for p in found]
        tars = [f"{root}/tar/s-00{k}.tar" for k in range(2)]
        return [
            ost.io.images(names).shuffle(1).decode().resize((8, 8)).batch(3),
            ost.io.images(names, masks=[f"{root}/mask.png"] * 8).decode().center_crop(8).batch(2),
            ost.io.shards(tars, ("jpg", "cls")).shuffle(2).decode().resize((8, 8)).batch(4),
            ost.io.table(f"{root}/t.parquet").shuffle(1, block=10).batch(7),
            ost.io.table(f"{root}/t.csv").batch(7),
            ost.io.arrays(f"{root}/x.npy").shuffle(3).batch(9),
            ost.io.arrays(f"{root}/x.zarr").batch(9),
        ]

    for far, lies in zip(pipes(there), pipes(files), strict=True):
        for epoch in range(2):
            equal([*far.to("numpy").epoch(epoch)], [*lies.to("numpy").epoch(epoch)])
    told = from_data(as_data(pipes(there)[0]))
    equal([*told.epoch(1)], [*pipes(files)[0].to("numpy").epoch(1)])


def test_patterns_and_folders(files: Path) -> None:
    fsspec.filesystem("memory").put(str(files), "/top", recursive=True)
    for pattern in ("images/**/*.jpg", "images"):
        far, lies = (
            ost.io.images(f"{root}/{pattern}", labels="folder") for root in ("memory://top", files)
        )
        assert len(far) == len(lies) == 8
        equal([*far.decode().to("numpy").epoch(0)], [*lies.decode().to("numpy").epoch(0)])
    assert len(ost.io.shards("memory://top/tar/s-{000..001}.tar", ("jpg", "cls"))) == 14


# -- requests ----------------------------------------------------------------------------------
def test_many_requests_are_in_flight(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("flaky")
    fs.put(str(files), "/top", recursive=True)
    monkeypatch.setattr(Flaky, "meet", threading.Barrier(8))  # none is answered before 8 are asked
    pipe = ost.io.images("flaky://top/images/**/*.jpg").decode().resize((8, 8)).batch(8).to("numpy")
    assert len(next(pipe.run_with(threads=1, tune=False).epoch(0))) == 8
    monkeypatch.setattr(remote, "PIECE", 512)
    x = np.empty(4096, np.uint8)
    assert remote.Address("flaky://top/x.npy").fill(x, 128)
    np.testing.assert_array_equal(x.view(np.float64), np.arange(512.0))
    monkeypatch.setattr(Flaky, "meet", None)
    source = ost.load("flaky://top/x.npy", resident=False)
    monkeypatch.setattr(Flaky, "meet", threading.Barrier(4))
    np.testing.assert_array_equal(np.asarray(source[:4, :2]), np.arange(24.0).reshape(4, 6)[:, :2])
    monkeypatch.setattr(Flaky, "meet", None)
    monkeypatch.setattr(source_of_files, "CLOSE", 8)
    rows = np.empty((4, 6))
    opened = open_source("flaky://top/x.npy")
    monkeypatch.setattr(Flaky, "meet", threading.Barrier(4))
    opened.taken(np.array([0, 20, 40, 60]), 0).read(rows, ((0, 4), (0, 6)))
    np.testing.assert_array_equal(rows, np.arange(600.0).reshape(100, 6)[:61:20])


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), TimeoutError()])
def test_what_fails_is_asked_for_again(
    files: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fsspec.filesystem("flaky").put(str(files), "/top", recursive=True)
    monkeypatch.setattr(Flaky, "fails", staticmethod(lambda name, n: error if n < 4 else None))
    pipe = ost.io.images("flaky://top/images").decode().resize((8, 8)).batch(8).to("numpy")
    lies = ost.io.images(files / "images").decode().resize((8, 8)).batch(8).to("numpy")
    equal([*pipe.epoch(0)], [*lies.epoch(0)])
    np.testing.assert_array_equal(ost.load("flaky://top/x.npy"), np.load(files / "x.npy"))
    assert {n for name, n in Flaky.asked.items() if "images" in name} == {4}


class Status(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (FileNotFoundError("x"), 1),
        (PermissionError(), 1),
        (Status(403), 1),
        (Status(503), 5),
        (OSError(), 5),
    ],
)
def test_what_stays_wrong_is_a_fault(
    files: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, tries: int
) -> None:
    fsspec.filesystem("flaky").put(str(files), "/top", recursive=True)
    bad = next(n for n in fsspec.filesystem("flaky").find("/top/images"))
    monkeypatch.setattr(
        Flaky, "fails", staticmethod(lambda name, n: error if name == bad else None)
    )
    pipe = ost.io.images("flaky://top/images").on_error("skip").decode().resize((8, 8)).batch(8)
    (batch,) = pipe.to("numpy").epoch(0)
    assert len(batch) == 7
    assert Flaky.asked[bad] == tries
    with pytest.raises(SampleError, match=rf"file flaky://{bad}: got {type(error).__name__}"):
        list(ost.io.images("flaky://top/images").decode().to("numpy").epoch(0))


# -- what cannot be ----------------------------------------------------------------------------
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        DataFileError, match=r"got no package for s3:// .*pip install 'ostinato\[remote\]'"
    ):
        ost.load("s3://bucket/x.npy")
    with pytest.raises(DataFileError, match=r"pip install 'ostinato\[remote\]'"):
        ost.io.images("s3://bucket/*.jpg")


def test_what_is_not_there_and_what_is_written() -> None:
    with pytest.raises(DataFileError, match=r"file memory://none\.npy: got FileNotFoundError"):
        ost.load("memory://none.npy")
    with pytest.raises(DataFileError, match="an address that fsspec knows"):
        ost.load("nowhere://x.npy")
    for name in ("x.npy", "x.h5", "x.zarr"):
        with pytest.raises(DataFileError, match="an address, behind which nothing is written"):
            ost.save(f"memory://{name}", ost.arange(3))
    with pytest.raises(DataFileError, match="an address, behind which nothing is written"):
        ost.save_state("memory://run", {"w": ost.arange(3)}, step=1)
    assert not os.path.exists("memory:")
