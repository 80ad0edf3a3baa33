"""Caches on disk and their place: no bit is another, whatever was killed, full, damaged or changed."""

from __future__ import annotations

import errno
import importlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from ostinato.io_pipeline.feed import sample_disk
from ostinato.io_pipeline.feed.content import Unhashable, fingerprint
from ostinato.io_pipeline.feed.fields import fields_of
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.sample_disk import Disk

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.io_pipeline.pictures import encoded, folder, picture
from tests.io_pipeline.test_pipes import joined, same

ROOT = Path(__file__).resolve().parents[2]
MADE: list[int] = []


def count(x: Any) -> Any:
    MADE.append(1)
    return x


@pytest.fixture(autouse=True)
def nothing_made() -> Iterator[None]:
    MADE.clear()
    yield
    MADE.clear()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return folder(tmp_path / "images", 12)


def base(images: Path) -> Pipe:
    made = ost.io.images(str(images), labels="folder").shuffle(seed=3)
    return made.decode().map(count, on="image")


def behind(pipe: Pipe) -> Pipe:
    made = pipe.random_resized_crop(16).random_flip().normalize()
    return made.batch(4, tail="keep").to("numpy")


def on_disk(images: Path, home: Path, memory: int = 0, **more: Any) -> Pipe:
    """As another run would write it, in which nothing was counted yet."""
    MADE.clear()
    return behind(base(images).cache(memory, disk=home, **more))


# -- what is kept ------------------------------------------------------------------------------
def test_another_run_begins_with_what_is_on_disk(images: Path, tmp_path: Path) -> None:
    wanted = [joined(behind(base(images)).epoch(e)) for e in range(2)]
    for memory, made in ((0, 12), (1 << 30, 0), (0, 0)):
        pipe = on_disk(images, tmp_path / "kept", memory)
        for epoch in range(2):
            same(joined(pipe.epoch(epoch)), wanted[epoch])
            assert len(MADE) == made
    (home,) = (tmp_path / "kept").iterdir()
    assert len([*home.glob("*.data")]) == 1
    assert json.loads((home / "cache.json").read_text())["ostinato"] == "samples of a pipe"


@pytest.mark.parametrize("change", ["size", "time", "new", "order", "label"])
def test_only_files_that_changed_are_read_again(images: Path, tmp_path: Path, change: str) -> None:
    list(on_disk(images, tmp_path / "kept").epoch(0))
    path = images / "b" / "004.jpg"
    if change == "size":
        path.write_bytes(encoded(picture(99), quality=80))
    elif change == "time":
        os.utime(path, ns=(1, 1))
    elif change == "new":
        (images / "b" / "000.jpg").write_bytes(encoded(picture(99)))
    elif change == "order":
        path.rename(images / "a" / "999.jpg")
    else:
        (images / "aa").mkdir()
        (images / "aa" / "0.jpg").write_bytes(path.read_bytes())  # others have other numbers
    found = joined(on_disk(images, tmp_path / "kept").epoch(1))
    assert len(MADE) == (9 if change == "label" else 1)
    same(found, joined(behind(base(images)).epoch(1)))


class Row(NamedTuple):
    x: int


def leaves() -> dict[str, Any]:
    return {
        "a": np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::-1],
        "b": np.float32(2.5),
        "c": (b"\0bytes", "words \u00e9", None, True),
        "d": [1, 2.5, float("inf"), np.zeros((0, 3))],
        "e": np.array([1, 2], ml_dtypes.bfloat16),
        "f": np.array(["x", "yz"]),
        "g": np.array(3, ">f8"),
    }


def test_leaves_of_all_kinds_come_back_as_they_were(tmp_path: Path) -> None:
    for k, one in enumerate((leaves(), 5, (np.ones(3),), "word")):
        fields, values = fields_of(one)
        kept = Disk(tmp_path, "0" * 32, 1 << 20, "")
        key = bytes([k]) * 16
        kept.put(key, values, fields)
        again = Disk(tmp_path, "0" * 32, 1 << 20, "").get(key)
        assert again is not None
        assert again[1] == fields
        for a, b in zip(again[0], values, strict=True):
            assert type(a) is type(b)
            if isinstance(a, (np.ndarray, np.generic)):
                assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
            else:
                assert a == b
    fields, values = fields_of({"a": object(), "b": 1})
    kept.put(b"1" * 16, values, fields)
    kept.put(b"2" * 16, [1], fields_of(Row(1))[0])
    assert kept.get(b"1" * 16) is kept.get(b"2" * 16) is None
    assert not kept.is_closed


# -- what goes wrong ---------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(8))
def test_what_is_damaged_is_made_again(images: Path, tmp_path: Path, seed: int) -> None:
    wanted = joined(on_disk(images, tmp_path / "kept").epoch(0))
    rng = np.random.default_rng(seed)
    (home,) = (tmp_path / "kept").iterdir()
    for ending in ("data", "index"):
        (path,) = home.glob(f"*.{ending}")
        data = bytearray(path.read_bytes())
        if seed % 3 == 0:
            data = data[: int(rng.integers(0, len(data)))]
        elif seed % 3 == 1:
            for at in rng.integers(0, len(data), 3):
                data[at] ^= int(rng.integers(1, 256))
        else:
            data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        path.write_bytes(data)
    same(joined(on_disk(images, tmp_path / "kept").epoch(0)), wanted)
    assert 0 < len(MADE) <= 12
    same(joined(on_disk(images, tmp_path / "kept").epoch(0)), wanted)


def test_mutated_files_are_misses_and_never_other_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = {bytes([k]) * 16: fields_of((np.full(40, k), f"{k}", leaves())) for k in range(5)}
    kept = Disk(tmp_path, "0" * 32, 1 << 20, "")
    for key, (fields, values) in samples.items():
        kept.put(key, values, fields)
    files = [*(tmp_path / ("0" * 32)).glob("*.*[ax]")]
    whole, found = {path: path.read_bytes() for path in files}, 0
    assert len(whole) == 2
    for k in range(200):
        for path, data in whole.items():
            changed = bytearray(data)
            for at in rng.integers(0, len(data), k % 4):
                changed[at] = int(rng.integers(0, 256))
            path.write_bytes(changed if k % 5 else data[: int(rng.integers(0, len(data)))])
        again = Disk(tmp_path, "0" * 32, 1 << 20, "")
        for key, (fields, values) in samples.items():
            sample = again.get(key)
            if sample is not None:
                found += 1
                assert sample[1] == fields
                np.testing.assert_equal(sample[0], values)
    assert 150 < found < 970


def test_a_full_disk_is_told_once_and_changes_no_bit(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = joined(behind(base(images)).epoch(0))
    left, write = [3 * 48 * 64 * 3], os.write

    def full(handle: int, data: Any) -> int:
        if len(data) > left[0]:
            if left[0]:
                left[0] -= (some := write(handle, data[: left[0]]))
                return some
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= len(data)
        return write(handle, data)

    monkeypatch.setattr(sample_disk.os, "write", full)
    pipe = on_disk(images, tmp_path / "kept")
    with pytest.warns(UserWarning, match="the disk is full. It stays as it is") as told_of:
        found = [joined(pipe.epoch(0)) for _ in range(2)]
    same(found[0] + found[1], wanted * 2)
    assert len(told_of) == 1
    assert "test_pipes.py" in told_of[0].filename  # who takes the batches
    monkeypatch.undo()
    same(joined(on_disk(images, tmp_path / "kept").epoch(0)), wanted)
    assert 8 <= len(MADE) < 12  # what was written whole is believed


def test_a_folder_that_cannot_be_written_is_no_error(images: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    pipe = on_disk(images, tmp_path / "kept", disk_bytes=1 << 30)
    with pytest.warns(UserWarning, match="could not be opened"):
        found = joined(pipe.epoch(0))
    same(found, joined(behind(base(images)).epoch(0)))


def test_what_a_killed_process_left_is_not_believed(images: Path, tmp_path: Path) -> None:
    code = f"""
import os, signal, itertools
from pathlib import Path
from tests.io_pipeline.test_cached import on_disk
epoch = on_disk(Path({str(images)!r}), Path({str(tmp_path / "kept")!r})).epoch(0)
next(epoch)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60)
    assert ran.returncode == -9
    (home,) = (tmp_path / "kept").iterdir()
    (path,) = home.glob("*.data")
    path.write_bytes(path.read_bytes()[:-5000])
    MADE.clear()
    wanted = joined(behind(base(images)).epoch(0))
    same(joined(on_disk(images, tmp_path / "kept").epoch(0)), wanted)
    assert 1 <= len(MADE) <= 9


def test_processes_share_a_folder(images: Path, tmp_path: Path) -> None:
    code = f"""
import hashlib, sys
from pathlib import Path
from tests.io_pipeline.test_cached import on_disk
pipe = on_disk(Path({str(images)!r}), Path({str(tmp_path / "kept")!r}))
made = hashlib.blake2b()
for epoch in range(3):
    for x, y in pipe.epoch(epoch):
        made.update(x.tobytes() + y.tobytes())
print(made.hexdigest())
"""
    two = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    said = {p.communicate(timeout=120)[0] for p in two}
    assert len(said) == 1
    assert len(said.pop()) > 20
    list(on_disk(images, tmp_path / "kept").epoch(0))
    assert MADE == []


def test_what_another_process_adds_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_disk, "NEWS", 0.0)
    a, b = (Disk(tmp_path, "0" * 32, 1 << 20, "") for _ in range(2))
    fields, values = fields_of(np.arange(5))
    a.put(b"x" * 16, values, fields)
    found = b.get(b"x" * 16)
    assert found is not None
    np.testing.assert_array_equal(found[0][0], np.arange(5))
    b.put(b"y" * 16, values, fields)
    b.put(b"x" * 16, values, fields)
    assert a.get(b"y" * 16) is not None
    assert len([*(tmp_path / ("0" * 32)).glob("*.data")]) == 2


def test_there_is_a_limit(images: Path, tmp_path: Path) -> None:
    each = 48 * 64 * 3 + 400
    pipe = on_disk(images, tmp_path / "kept", disk_bytes=5 * each)
    list(pipe.epoch(0))  # which warns of nothing
    assert sum(f.stat().st_size for f in (tmp_path / "kept").rglob("*.data")) <= 5 * each
    list(on_disk(images, tmp_path / "kept", disk_bytes=5 * each).epoch(0))
    assert 7 <= len(MADE) <= 8


def test_what_others_left_goes_first(tmp_path: Path) -> None:
    fields, values = fields_of(np.zeros(1000))
    old, used, new = (Disk(tmp_path, c * 32, 20_000, "") for c in "123")
    for home in (old, used):
        home.put(b"k" * 16, values, fields)
        home.look()
    os.utime(old.home / "lock", (1, 1))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "0.data").write_bytes(b"a user's")
    del old
    new.look()
    new.put(b"a" * 16, values, fields)
    new.put(b"b" * 16, values, fields)
    assert not (tmp_path / ("1" * 32)).exists()
    assert new.get(b"b" * 16) is None  # the other one is in use
    assert used.get(b"k" * 16) is not None
    assert (tmp_path / "mine" / "0.data").exists()


# -- what may be told from run to run ----------------------------------------------------------
def test_what_cannot_be_told_is_refused(tmp_path: Path) -> None:
    state = object()
    x = np.arange(6)
    with pytest.raises(
        ArgumentError, match=r"cache \(.*test_cached.py.*an object of type object, read as 'state'"
    ):
        ost.io.arrays(x).map(lambda x: (x, state)).cache(disk=tmp_path)
    with pytest.raises(ArgumentError, match="samples of items, which may be others in each run"):
        ost.io.samples([1, 2]).cache(disk=tmp_path)
    with pytest.raises(ArgumentError, match=r"needed 'end' or 'auto'"):
        ost.io.arrays(x).cache(where="best")
    pipe = ost.io.samples(list(x)).map(lambda x: x * 2 if state else x)
    for version, made in (("1", x * 2), ("1", x * 2)):
        kept = pipe.cache(0, disk=tmp_path, version=version).batch(6).to("numpy")
        np.testing.assert_array_equal(next(kept.epoch(0)), made)


def test_packages_may_lie_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own, or those of an environment that this one sees: they are told by name and version."""
    for at, is_told in ((tmp_path / "lib" / "site-packages", True), (tmp_path / "mine", False)):
        at.mkdir(parents=True)
        (at / "of_others.py").write_text("class Sum:\n    def __call__(self, x):\n        return x")
        monkeypatch.syspath_prepend(at)
        made = importlib.import_module("of_others").Sum()
        made.__name__ = "Sum"
        if is_told:
            assert fingerprint(made) == fingerprint(made)
        else:
            with pytest.raises(Unhashable):
                fingerprint(made)
        del sys.modules["of_others"]


def test_functions_are_told_by_all_that_they_read() -> None:
    def made(k: Any, c: str = "+ 1", default: int = 0) -> Any:
        known = {"k": k, "np": np}
        exec(f"def helper(x): return x {c}\ndef f(x, d={default}): return helper(x) * k", known)
        known["helper"].__module__ = known["f"].__module__ = __name__  # type: ignore[attr-defined]
        return known["f"]

    k = 3
    known = [
        made(2), made(3), made(2, "+ 2"), made(2, "- 1"), made(2, default=1), made((2, {"a": 1})),
        made(np.arange(3)), made(np.arange(4)), made(np.float32(1)), made(len), made(np.exp),
        made(lambda x: x), made(lambda x: x + 1), made(lambda x: x + k),
    ]  # fmt: skip
    assert len({fingerprint(f) for f in known}) == len(known)
    assert fingerprint(made(2)) == fingerprint(made(2))
    before, k = fingerprint(known[-1]), 4
    assert fingerprint(known[-1]) != before
    for value in (object(), open, iter([1]), np.array([object()])):
        if value is not open:
            with pytest.raises(Unhashable):
                fingerprint(value)
    assert fingerprint(known) == fingerprint(known)


def test_rows_in_memory_are_told_by_their_content(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(4, 3)
    for made in (4, 0, 1, 0):
        x[2] += made == 1
        MADE.clear()
        pipe = ost.io.arrays(x, kinds=["data"]).map(count).cache(0, disk=tmp_path)
        np.testing.assert_array_equal(next(pipe.batch(4).to("numpy").epoch(0)), x)
        assert len(MADE) == made


# -- where it is -------------------------------------------------------------------------------
def slow(x: Any) -> Any:
    return np.sort(np.tile(x, 20_000))[::20_000]


def wide(x: Any) -> Any:
    return np.repeat(x, 4000)


def narrow(x: Any) -> Any:
    return x[::4000]


@pytest.mark.parametrize(
    ("stages", "room", "cut"),
    [
        ((slow, wide), 1 << 20, 1),  # there is room for four of the wide ones
        ((wide, narrow, slow, wide), 1 << 20, 3),
        ((slow,), 1 << 30, 1),
        ((slow, wide, narrow), 1 << 20, 3),
    ],
)
def test_the_place_is_where_it_saves_most(stages: tuple[Any, ...], room: int, cut: int) -> None:
    x = np.random.default_rng(0).random((100, 8))

    def pipe(auto: bool) -> Pipe:
        made = ost.io.arrays(x, kinds=["data"])
        for stage in stages:
            made = made.map(stage)
        return (made.cache(room, where="auto") if auto else made).batch(10).to("numpy")

    found = pipe(True)
    for epoch in range(3):
        same(joined(found.epoch(epoch)), joined(pipe(False).epoch(epoch)))
    assert found.source.cut in {cut, 1 if stages[0] is slow else cut}  # type: ignore[attr-defined]
    assert 0 < found.source.space.used <= room  # type: ignore[attr-defined]


def test_a_chosen_place_is_found_again_on_disk(images: Path, tmp_path: Path) -> None:
    source = ost.io.images(str(images)).decode().map(count).center_crop(20)
    wanted = joined(source.batch(4).to("numpy").epoch(0))

    def pipe() -> Pipe:
        MADE.clear()
        made = source.cache(0, disk=tmp_path / "kept", where="auto")
        return made.batch(4).to("numpy").run_with(threads=1)

    first = pipe()
    for _ in range(2):
        same(joined(first.epoch(0)), wanted)
    assert first.source.cut == 3  # type: ignore[attr-defined]
    assert "cache behind center_crop: 0 samples in memory (0 MB), 12 on disk" in first.explain()
    (kept,) = first.stats()["kept"]
    assert kept == {"behind": "center_crop", "samples": 0, "memory": 0, "disk": 12}
    second = pipe()
    assert second.source.cut == 3  # type: ignore[attr-defined]
    same(joined(second.epoch(0)), wanted)
    assert MADE == []


@pytest.mark.parametrize("cut", range(4))
def test_any_place_gives_the_same(images: Path, cut: int) -> None:
    """Also in front of a crop, for which a decoder would leave the rest out."""
    plain = ost.io.images(str(images)).decode().center_crop(20).map(np.negative)
    pipe = plain.cache(where="auto").batch(4).to("numpy")
    pipe.source.cut = cut  # type: ignore[attr-defined]
    for _ in range(2):
        same(joined(pipe.epoch(0)), joined(plain.batch(4).to("numpy").epoch(0)))
    kept = {v.shape for values, _ in pipe.source._kept.values() for v in values if cut}  # type: ignore[attr-defined]
    assert kept == ({(48, 64, 3)} if cut == 1 else {(20, 20, 3)} if cut else set())


def test_errors_of_a_chosen_place_name_their_stage(tmp_path: Path) -> None:
    pipe = ost.io.arrays(np.arange(60)).map(lambda x: x).map(lambda x: 1 // (x - 50))
    pipe = pipe.cache(where="auto").batch(4).to("numpy")
    with pytest.raises(SampleError, match=r"row 50 of .* got map \(.*test_cached.py:\d+\)"):
        list(itertools.chain(pipe.epoch(0)))
