"""Samples in tar files: what was put in comes out, in any order; what no one writes in good faith is refused."""

from __future__ import annotations

import io
import itertools
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed.shards import Shards, members

import ostinato as ost
from ostinato.errors import ArgumentError, DataFileError, SampleError
from tests.io_pipeline.pictures import encoded, picture

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def packed(
    path: Path, entries: Sequence[tuple[str, bytes]], form: str = "gnu", **more: Any
) -> Path:
    with tarfile.open(path, "w", format=FORMATS[form]) as tar:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return path


def dataset(root: Path, shards: int = 3, each: int = 7) -> list[Path]:
    found = []
    for s in range(shards):
        entries = []
        for k in range(each):
            n = s * each + k
            out = io.BytesIO()
            np.save(out, np.full(3, n))
            parts = [
                ("jpg", encoded(picture(n))), ("cls", str(n).encode()), ("v.npy", out.getvalue()),
                ("json", json.dumps({"n": n}).encode()),
            ]  # fmt: skip
            entries += [(f"dir/{n:04d}.{ending}", data) for ending, data in parts]
        found.append(packed(root / f"s-{s:03d}.tar", entries))
    return found


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("length", [10, 99, 100, 101, 180, 300])
def test_members_are_where_they_are(tmp_path: Path, form: str, length: int) -> None:
    stem = ("a" * 40 + "/") * 7
    names = [(stem + "é" * 100)[-length - k :].lstrip("/") + f"{k}.x" for k in range(4)]
    names = (
        names if form != "ustar" or length < 90 else [f"{n}/{k}.x" for k, n in enumerate("abcd")]
    )
    entries = [(name, bytes([k]) * (k * 600)) for k, name in enumerate(names)]
    path = packed(tmp_path / "t.tar", entries, form)
    found, content = members(str(path)), path.read_bytes()
    assert [m.name for m in found] == names
    assert [content[m.offset : m.offset + m.size] for m in found] == [d for _, d in entries]


def test_samples_are_members_of_a_name(tmp_path: Path) -> None:
    dataset(tmp_path)
    pipe = ost.io.shards(str(tmp_path / "s-{000..002}.tar"), ("png;jpg", "cls", "v.npy", "json"))
    assert len(pipe.source) == 21
    made = pipe.shuffle(seed=1, block=7).decode().batch(7).to("numpy")
    seen = []
    for x, y, v, data in made.epoch(0):
        assert x.shape == (7, 48, 64, 3)
        np.testing.assert_array_equal(v, y[:, None].repeat(3, 1))
        np.testing.assert_array_equal([d["n"] for d in data], y)
        assert len({*(y // 7)}) == 1
        seen += y.tolist()
    assert sorted(seen) == list(range(21))
    (first,) = itertools.islice(
        ost.io.shards([tmp_path / "s-000.tar"], "cls").to("numpy").epoch(0), 1
    )
    assert first == 0


def test_many_shards_share_few_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.io_pipeline.feed.shards.OPEN", 2)
    dataset(tmp_path, 9, 4)
    pipe = ost.io.shards(str(tmp_path), "cls").shuffle(seed=2).batch(4).to("numpy")
    found = np.concatenate(list(pipe.run_with(threads=4).epoch(0)))
    np.testing.assert_array_equal(np.sort(found), np.arange(36))
    assert len(pipe.source._open) <= 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["/etc/passwd.cls", "../../up.cls", "a/../../b.cls", ".."])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    path = packed(tmp_path / "t.tar", [("a.cls", b"1"), (name, b"1")])
    with pytest.raises(DataFileError, match=r"a member called .*names within .*test_shards.py"):
        ost.io.shards(path, "cls")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    path = packed(tmp_path / "t.tar", [("a.cls", b"")], type=kind, linkname="/etc/passwd")
    with pytest.raises(DataFileError, match="a link or a device"):
        ost.io.shards(path, "cls")


def test_damaged_shards_are_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "t.tar", [("a.cls", b"1" * 2000), ("b.cls", b"2")])
    whole = path.read_bytes()
    for content, said in (
        (b"", "cut off"),
        (whole[:1500], "cut off"),
        (whole[:300], "cut off"),
        (b"\x1f\x8b" + whole[2:], "which is not compressed"),
        (whole.replace(b"00000003720", b"77777777777", 1), "no header"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataFileError, match=said):
            ost.io.shards(path, "cls")
    path.write_bytes(whole)
    for missing, fields in (("png", ("cls", "png")), ("cls or txt", ("txt;cls", "cls"))):
        if missing == "png":
            with pytest.raises(DataFileError, match="a sample 'a' without png"):
                ost.io.shards(path, fields)
    with pytest.raises(DataFileError, match="no such file"):
        ost.io.shards([tmp_path / "none.tar"])
    with pytest.raises(ArgumentError, match="no file for"):
        ost.io.shards(str(tmp_path / "*.none"))


def test_a_shard_that_shrinks_is_an_error_that_names_it(tmp_path: Path) -> None:
    (path,) = dataset(tmp_path, 1)
    pipe = ost.io.shards(path, ("jpg", "cls")).decode().batch(2).to("numpy")
    whole = path.read_bytes()
    path.write_bytes(whole[:9000])
    with pytest.raises(
        SampleError, match=r"s-000\.tar, member dir/000\d, in read .*another size or time than"
    ):
        list(pipe.epoch(0))
    path.write_bytes(whole)
    pipe = (
        ost.io.shards(path, ("jpg", "cls"))
        .decode()
        .batch(2, drop_last=True)
        .to("numpy")
        .run_with(threads=1)
    )
    assert len(list(pipe.epoch(0))) == 3
    os.truncate(path, 9000)  # while it is open
    with pytest.raises(SampleError, match="less than when it was opened"):
        list(pipe.epoch(1))


def test_mutated_shards_never_crash(tmp_path: Path) -> None:
    (path,) = dataset(tmp_path, 1, 3)
    whole, rng, good = path.read_bytes(), np.random.default_rng(0), 0
    headers = [m.offset - 512 for m in members(str(path))]
    for k in range(2000):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            at = (
                int(rng.choice(headers)) + int(rng.integers(0, 512))
                if k % 2
                else int(rng.integers(0, len(data)))
            )
            data[at] = int(rng.integers(0, 256))
        path.write_bytes(data if k % 3 else data[: int(rng.integers(0, len(data)))])
        try:
            found = Shards([str(path)], ["jpg", "cls", "v.npy"])
            for n in range(len(found)):
                found.read(n)
            good += 1
        except (DataFileError, ValueError, EOFError, SyntaxError, MemoryError):
            pass
    assert 100 < good < 1900
