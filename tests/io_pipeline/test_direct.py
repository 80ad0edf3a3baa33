"""Writes past the system's cache of pages: the same bytes in the file, whatever goes which way."""

from __future__ import annotations

import errno
import fcntl
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import direct, sinks, source
from ostinato.io_pipeline.direct import PAGE, Writing

import ostinato as ost

SIZE = 40 * PAGE + 100


@pytest.fixture
def ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes that went past the cache and through it."""
    if not _lets_pass(tmp_path):
        pytest.skip("a file system that lets nothing past its cache")
    found: Counter[str] = Counter()
    write = os.pwrite

    def counted(handle: int, data: Any, at: int) -> int:
        past = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT
        count = write(handle, data, at)
        found["past" if past else "through"] += count
        return count

    monkeypatch.setattr(os, "pwrite", counted)
    for module in (direct, sinks):
        monkeypatch.setattr(module, "MIN_DIRECT_FILE_BYTES", 1 << 10)
    monkeypatch.setattr(direct, "MIN_DIRECT_BYTES", 4 * PAGE)
    monkeypatch.setattr(direct, "BUFFER", 8 * PAGE)
    monkeypatch.setattr(direct, "_buffers", direct._Buffers())
    return found


def _lets_pass(folder: Path) -> bool:
    (folder / "probe").touch()
    try:
        os.close(os.open(folder / "probe", os.O_WRONLY | os.O_DIRECT))
    except (OSError, AttributeError):
        return False
    return True


def _memory(size: int, skip: int) -> np.ndarray[Any, Any]:
    """Bytes that begin so far behind a page."""
    raw = np.empty(size + 2 * PAGE, np.uint8)
    begin = -raw.ctypes.data % PAGE + skip
    made = raw[begin : begin + size]
    made[...] = np.random.default_rng(skip).integers(0, 256, size)
    return made


@pytest.mark.parametrize("at", [0, 100, PAGE - 1, PAGE])
@pytest.mark.parametrize("skip", [0, 64])
def test_whole_pages_go_past(tmp_path: Path, ways: Counter[str], at: int, skip: int) -> None:
    data = _memory(SIZE, skip)
    with Writing(str(tmp_path / "x"), SIZE, os.O_CREAT) as file:
        file.put(data, at)
        file.sync()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "x", np.uint8)[at:], data)
    assert sum(ways.values()) == SIZE, "each byte once"
    assert ways["through"] < 2 * PAGE


def test_short_stretches_and_small_files_go_through(tmp_path: Path, ways: Counter[str]) -> None:
    with Writing(str(tmp_path / "x"), SIZE, os.O_CREAT) as file:
        file.put(_memory(3 * PAGE, 0), 0)
    with Writing(str(tmp_path / "y"), 1 << 9, os.O_CREAT) as file:
        file.put(_memory(SIZE, 0), 0)
    assert ways == {"through": 3 * PAGE + SIZE}


@pytest.mark.parametrize("which", ["open", "pwrite"])
def test_what_may_not_pass_goes_through(
    tmp_path: Path, ways: Counter[str], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system says so when the file is opened, or when it is written to."""
    called = getattr(os, which)

    def refuses(what: Any, *args: Any) -> int:
        flags = args[0] if which == "open" else fcntl.fcntl(what, fcntl.F_GETFL)
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return int(called(what, *args))

    monkeypatch.setattr(os, which, refuses)
    data = _memory(SIZE, 0)
    with Writing(str(tmp_path / "x"), SIZE, os.O_CREAT) as file:
        file.put(data, 0)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "x", np.uint8), data)
    assert ways == {"through": SIZE}


@pytest.mark.parametrize("kind", [".npy", ".h5", ".zarr"])
def test_large_arrays_begin_on_a_page(tmp_path: Path, ways: Counter[str], kind: str) -> None:
    """So all of them goes past but for the last page; others read them as ever."""
    if kind == ".h5":
        pytest.importorskip("h5py")
    value = np.random.default_rng(0).random((64, 1000))
    ost.save(path := tmp_path / f"x{kind}", value)
    assert sum(ways.values()) == value.nbytes
    assert ways["through"] < PAGE
    np.testing.assert_array_equal(np.asarray(ost.load(path)), value)
    if kind == ".npy":
        lies = np.load(path, mmap_mode="r")
        assert lies.offset == PAGE  # type: ignore[attr-defined]
        np.testing.assert_array_equal(lies, value)


# -- reading -------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [".npy", ".h5", ".zarr"])
def test_files_too_large_for_the_cache_are_read_once(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces, of which the system is told that nobody reads them again; where it does not know that,
    as ever."""
    if kind == ".h5":
        pytest.importorskip("h5py")
    value = np.random.default_rng(0).random((64, 1000))
    ost.save(path := tmp_path / f"x{kind}", value)
    flags: Counter[int] = Counter()
    read = os.preadv

    def counted(handle: int, buffers: Any, at: int, flag: int = 0) -> int:
        if flag and not known:
            raise OSError(errno.EOPNOTSUPP, "no")
        count = read(handle, buffers, at)
        flags[flag] += count
        return count

    monkeypatch.setattr(os, "preadv", counted)
    monkeypatch.setattr(source, "PASSING", 1 << 12)
    for memory, known in ((value.nbytes, True), (value.nbytes, False), (value.nbytes * 100, True)):
        monkeypatch.setattr(source, "_memory", lambda memory=memory: memory)
        flags.clear()
        found = ost.load(path, resident=False)
        np.testing.assert_array_equal(np.asarray(found), value)
        often = source.DONTCACHE if known and memory == value.nbytes else 0
        assert value.nbytes <= flags[often] <= 1.2 * value.nbytes
        assert flags.total() <= 1.2 * value.nbytes
