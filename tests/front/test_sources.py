"""Arrays of npz files and tables, and arrays that a program makes block by block: the same numbers as NumPy's, each
part read by who needs it, no more of it than is needed, and trouble has a name."""

from __future__ import annotations

import itertools
import time
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import array_files as files
from ostinato.io_pipeline import members, tables
from ostinato.io_pipeline.array_files import NpzSource, open_source
from ostinato.io_pipeline.blocks import FromIterable
from ostinato.io_pipeline.source import fill
from ostinato.io_pipeline.tables import Blocks
from ostinato.ops.core import exchange
from ostinato.ops.core.exchange import chunks_of
from ostinato.planner.passes import blocking
from ostinato.runtime import engine

import ostinato as ost
from ostinato import streaming
from ostinato.errors import ArgumentError, DataFileError
from tests.sessions import forget_plans, use

BLOCK = 4096
VALUE = np.random.default_rng(0).normal(size=(1501, 6))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is read block after block in earnest is large."""
    monkeypatch.setattr(blocking, "READ_BYTES", BLOCK)
    monkeypatch.setattr(streaming, "READ_BYTES", BLOCK)
    forget_plans()
    yield
    forget_plans()


def same(found: Any, expected: Any) -> None:
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(np.asarray(found), expected)


# -- npz -------------------------------------------------------------------------------------------
SAVES = [np.savez, np.savez_compressed]


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("resident", [True, False])
def test_members_of_npz(tmp_path: Path, save: Any, workers: int, resident: bool) -> None:
    columns, none = np.asfortranarray(VALUE[:, :3]), np.zeros((0, 4), "i2")
    swapped = VALUE.astype(">f4")
    save(
        tmp_path / "x.npz", a=VALUE, columns=columns, one=np.float32(7), none=none, swapped=swapped
    )
    expected = {"a": VALUE, "columns": columns, "one": np.float32(7), "none": none}
    with use((workers,)):
        for name, wanted in {**expected, "swapped": VALUE.astype("f4")}.items():
            x = ost.load(tmp_path / "x.npz", dataset=name, resident=resident)
            assert x.shape == wanted.shape
            same(x, wanted)
        x = ost.load(tmp_path / "x.npz", dataset="a", resident=resident, split=0)
        np.testing.assert_allclose(np.asarray(x.mean(axis=0)), VALUE.mean(0), atol=1e-12)
        same(x[1490:3:-7, 1::2], VALUE[1490:3:-7, 1::2])
        for name in ("a", "columns"):
            y = ost.load(tmp_path / "x.npz", dataset=name, resident=resident)
            ost.save(tmp_path / "y.npy", y + 1)
            same(ost.load(tmp_path / "y.npy"), expected[name] + 1)
    save(tmp_path / "one.npz", VALUE)
    same(ost.load(tmp_path / "one.npz", resident=resident)[5], VALUE[5])


def test_parts_of_what_is_stored_are_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "x.npz", a=VALUE, b=VALUE + 1)
    read: Counter[str] = Counter()

    def counted(handle: int, out: np.ndarray[Any, Any], at: int) -> bool:
        read["bytes"] += out.nbytes
        return fill(handle, out, at)

    monkeypatch.setattr(files, "filler", lambda handle, size: partial(counted, handle))
    source = open_source(tmp_path / "x.npz", "b")
    read.clear()
    out = np.empty((100, 6))
    source.read(out, ((700, 800), (0, 6)))
    same(out, VALUE[700:800] + 1)
    assert read["bytes"] == out.nbytes
    with use((2,)):
        x = ost.load(tmp_path / "x.npz", dataset="a", resident=False, split=0)
        read.clear()
        np.testing.assert_allclose(float(x.sum()), VALUE.sum())
        assert read["bytes"] < 1.2 * VALUE.nbytes


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes that were inflated."""
    found: Counter[str] = Counter()
    more = members.ArchiveMember._more

    def counted(self: Any, state: Any, most: int) -> bytes:
        made = more(self, state, most)
        found["bytes"] += len(made)
        return made

    monkeypatch.setattr(members.ArchiveMember, "_more", counted)
    return found


def test_what_is_deflated_is_inflated_once_if_it_is_read_in_order(
    tmp_path: Path, inflated: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=VALUE)
    monkeypatch.setattr(members, "APART", 10_000)
    with use() as session:
        x = ost.load(tmp_path / "x.npz", resident=False)
        inflated.clear()
        ost.save(tmp_path / "y.npy", ost.exp(x))
        assert VALUE.nbytes <= inflated["bytes"] <= VALUE.nbytes + 200
        inflated.clear()
        float(ost.exp(x).sum())
        assert VALUE.nbytes <= inflated["bytes"] <= VALUE.nbytes + 200
        inflated.clear()
        same(x[700:702], VALUE[700:702])
        assert inflated["bytes"] < 11_000, "from the nearest place that was passed"
        assert session.workers == 1
    np.testing.assert_allclose(np.asarray(ost.load(tmp_path / "y.npy")), np.exp(VALUE))


def test_any_place_of_what_is_deflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order, by several threads."""
    monkeypatch.setattr(members, "APART", 3000)
    monkeypatch.setattr(members, "TAKEN", 100)
    monkeypatch.setattr(members, "SKIPPED", 777)
    np.savez_compressed(tmp_path / "x.npz", a=VALUE)
    source, rng = open_source(tmp_path / "x.npz"), np.random.default_rng(1)
    for _ in range(100):
        lo, hi = sorted(rng.integers(0, 1502, 2))
        a, b = sorted(rng.integers(0, 7, 2))
        out = np.empty((hi - lo, b - a))
        source.read(out, ((lo, hi), (a, b)))
        same(out, VALUE[lo:hi, a:b])
    assert isinstance(source, NpzSource)
    member = source.get.__self__  # type: ignore[attr-defined]
    assert len(member.points) > 10
    assert len(member.ended) <= members.READERS


def test_little_memory_for_what_is_deflated(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(4 << 20))
    source, out = open_source(tmp_path / "x.npz"), np.empty(1 << 16)
    tracemalloc.start()
    for lo in range(0, 4 << 20, 1 << 16):
        source.read(out, ((lo, lo + (1 << 16)),))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20


@pytest.mark.parametrize("save", SAVES)
def test_npz_that_is_damaged(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "x.npz"

    def refused(match: str, dataset: str | None = None) -> None:
        for resident in (True, False):
            with pytest.raises(DataFileError, match=match) as caught:
                np.asarray(ost.load(path, resident=resident, dataset=dataset))
            assert "\n" not in str(caught.value)

    save(path, a=VALUE, b=VALUE)
    refused("no dataset= and the datasets a, b; needed the name of one of them")
    refused("dataset='c' and the datasets a, b", "c")
    save(path, a=VALUE)
    whole = path.read_bytes()
    for keep in (0, 10, 4000, len(whole) - 5):
        path.write_bytes(whole[:keep])
        refused(r"x\.npz: got .* a file that np\.savez wrote")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "1")
    refused(r"the datasets none")
    for body in (b"", b"\x93NUMPY", b"something else"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", body)
        refused("an array that np.save wrote")
    path.write_bytes(whole)
    source = open_source(path)
    path.write_bytes(whole[:-1] + b"x")
    with pytest.raises(DataFileError, match="other content than when it was opened"):
        source.read(np.empty(VALUE.shape), ((0, 1501), (0, 6)))


def test_deflated_numbers_that_differ_from_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=np.arange(50_000))
    whole, seen = path.read_bytes(), set()
    for at in range(200, len(whole) - 200, len(whole) // 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])
        with pytest.raises(DataFileError, match="needed") as caught:
            np.asarray(ost.load(path))
        seen.add("checksum" in str(caught.value))
    assert seen == {True, False}
    np.savez(path, a=np.array([{}], object))
    with pytest.raises(DataFileError, match=r"got Python objects, .* pickles are never read"):
        ost.load(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", b"1")
    with pytest.raises(DataFileError, match=r"deflate, as np\.savez has it"):
        ost.load(path)


def test_pipes_take_members(tmp_path: Path) -> None:
    for save in SAVES:
        save(tmp_path / "x.npz", x=VALUE, label=np.arange(1501))
        pipe = ost.io.arrays(str(tmp_path / "x.npz")).shuffle(seed=1).batch(50).to("numpy")
        for batch in pipe.epoch(0):
            same(batch["x"], VALUE[batch["label"]])


# -- tables ----------------------------------------------------------------------------------------
GROUP = 100


def columns(pa: Any) -> dict[str, Any]:
    n = np.arange(1501)
    lacks = [None if k % 7 == 0 else k / 2 for k in range(1501)]
    rows = pa.FixedSizeListArray.from_arrays(pa.array(VALUE[:, :3].reshape(-1)), 3)
    return {
        "n": n,
        "x": VALUE[:, 0],
        "half": VALUE[:, 1].astype("f4"),
        "is": n % 3 == 0,
        "lacks": lacks,
        "name": [f"row {k}" for k in n],
        "rows": rows,
        "holes": [None if k == 1400 else k for k in range(1501)],
    }


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns(pa)), path, row_group_size=GROUP)
    return path


@pytest.fixture
def csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(tables, "LINES", 5000)
    path = tmp_path / "t.tsv"
    lines = ["n\tx\thalf\tname", *(f"{k}\t{a!r}\t{k / 2}\trow {k}" for k, a in
             enumerate(VALUE[:, 0].tolist()))]  # fmt: skip
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("resident", [True, False])
def test_columns_of_parquet(parquet: Path, workers: int, resident: bool) -> None:
    def load(dataset: Any) -> Any:
        return ost.load(parquet, dataset=dataset, resident=resident, split=0)

    n = np.arange(1501)
    with use((workers,)):
        same(load("n"), n)
        same(load("half"), VALUE[:, 1].astype("f4"))
        same(load("is"), n % 3 == 0)
        same(load("lacks"), np.where(n % 7 == 0, np.nan, n / 2))
        same(load("rows"), VALUE[:, :3])
        same(load("rows")[77:1300:5, 1:], VALUE[77:1300:5, 1:3])
        two = np.stack([VALUE[:, 1].astype("f4"), n], 1)
        same(load(["half", "n"]), two.astype("f8"))
        same(load(["n"]), n[:, None])
        same(load(("half", "n", "x"))[:, 1:], np.stack([n, VALUE[:, 0]], 1))
        np.testing.assert_allclose(float(load("x").mean()), VALUE[:, 0].mean(), atol=1e-12)
        ost.save(parquet.with_name("y.npy"), ost.exp(load(["x", "half"])) * 2)
        expected = np.exp(np.stack([VALUE[:, 0], VALUE[:, 1].astype("f4")], 1)) * 2
        np.testing.assert_allclose(np.load(parquet.with_name("y.npy")), expected)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("resident", [True, False])
def test_columns_of_csv(csv: Path, workers: int, resident: bool) -> None:
    with use((workers,)):
        same(ost.load(csv, dataset="n", resident=resident, split=0), np.arange(1501))
        x = ost.load(csv, dataset=["n", "x"], resident=resident)
        same(x, np.stack([np.arange(1501), VALUE[:, 0]], 1))
        plain = csv.with_name("t.csv")
        plain.write_text("a,b\n1,2\n3,4.5\n")
        same(ost.load(plain, resident=resident), [[1, 2], [3, 4.5]])


@pytest.mark.parametrize("workers", [1, 2])
def test_each_row_group_is_read_once_and_only_what_is_asked_for(
    parquet: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, tuple[str, ...]]] = []
    really = Blocks.read_block

    def seen(self: Blocks, block: Any, names: Any) -> Any:
        read.append((block.number, tuple(names)))
        return really(self, block, names)

    monkeypatch.setattr(Blocks, "read_block", seen)
    monkeypatch.setattr(tables, "KEPT_BYTES", 0)
    with use((workers,)):
        x = ost.load(parquet, dataset="x", resident=False, split=0)
        assert not read
        ost.save(parquet.with_name("y.npy"), ost.exp(x))
        # one that two turns have a part of may have made room for the other worker's by then
        assert 16 <= len(read) <= 16 + 3 * (workers - 1)
        read.clear()
        same(x[250:260], VALUE[250:260, 0])
        assert {k for k, _ in read} <= {2}
        wide = ost.load(parquet, dataset=["x", "n", "half"], resident=False)
        same(wide[930:935, 1:2], np.arange(930.0, 935.0)[:, None])
        assert read[-1] == (9, ("n",))


def test_tables_that_are_no_numbers(parquet: Path, csv: Path, tmp_path: Path) -> None:
    def refused(path: Path, dataset: Any, match: str, reads: bool = False) -> None:
        with pytest.raises(DataFileError, match=match) as caught:
            np.asarray(ost.load(path, dataset=dataset, resident=not reads))
        assert "test_sources.py" in str(caught.value) or reads

    refused(parquet, None, "column 'name' of string; needed numbers; name the columns .*'n', 'x'")
    refused(csv, None, r"t\.tsv: got column 'name' of string")
    refused(csv, "name", "column 'name' of string; needed numbers")
    refused(parquet, ["x", "rows"], "column 'rows' of rows of numbers")
    refused(parquet, "what", "no column 'what'; needed columns of n, x")
    refused(parquet, "holes", "no value in column 'holes', of rows 1400 to 1500")
    refused(parquet, "holes", "no value in column 'holes', of rows 1400 to 1500", True)
    same(ost.load(parquet, dataset="holes", resident=False)[:1000], np.arange(1000))
    whole = parquet.read_bytes()
    for content in (b"", whole[:3000], bytes(3000)):
        parquet.write_bytes(content)
        refused(parquet, "n", r"t\.parquet: got .*; needed a table in Parquet or CSV")
    parquet.unlink()
    refused(parquet, "n", r"t\.parquet: got no such file")
    (tmp_path / "folder.csv").mkdir()
    refused(tmp_path / "folder.csv", None, "got is a directory")
    empty = tmp_path / "e.csv"
    empty.write_text("a,b\n")
    refused(empty, None, "column 'a' of null; needed numbers")
    with pytest.raises(DataFileError, match="one name; of a table, several columns"):
        ost.load(tmp_path / "x.npz", dataset=["a", "b"])


def test_a_table_that_changes(parquet: Path) -> None:
    x = ost.load(parquet, dataset="x", resident=False)
    parquet.write_bytes(parquet.read_bytes() + b"more")
    with use(), pytest.raises(DataFileError, match="another size or time than before"):
        np.asarray(x + 1)


@pytest.mark.parametrize("workers", [1, 3])
def test_row_groups_are_cut_for_who_reads_in_order(
    parquet: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is decoded once, from page to page, and little of it is there at once."""
    monkeypatch.setattr(tables, "CUT", 256)
    monkeypatch.setattr(tables, "KEPT_BYTES", 0)
    begun: list[int] = []
    rows: list[int] = []
    cursor, read = tables._Cursor, Blocks.read_block

    def seen(self: Blocks, block: Any, names: Any) -> Any:
        rows.append(block.rows)
        return read(self, block, names)

    monkeypatch.setattr(tables, "_Cursor", lambda *of: begun.append(of[1]) or cursor(*of))
    monkeypatch.setattr(Blocks, "read_block", seen)
    n = np.arange(1501)
    with use((workers,)):
        x = ost.load(parquet, dataset="x", resident=False, split=0)
        np.testing.assert_allclose(float(x.mean()), VALUE[:, 0].mean(), atol=1e-12)
        few = 0 if workers == 1 else 2 * workers  # one that two workers have a part of
        assert set(begun) == set(range(15)), "the last group is no larger than a block"
        assert len(begun) <= 15 + few
        assert max(rows) == 32
        assert 1501 <= sum(rows) <= 1501 + 32 * few
        same(x[::-7], VALUE[::-7, 0])
        same(x[310:340], VALUE[310:340, 0])
        load = partial(ost.load, parquet, resident=False)
        same(load(dataset="is"), n % 3 == 0)
        same(load(dataset="lacks"), np.where(n % 7 == 0, np.nan, n / 2))
        same(load(dataset="rows")[5:-3], VALUE[5:-3, :3])
        two = np.stack([VALUE[:, 1].astype("f4"), n], 1)
        same(load(dataset=["half", "n"]), two.astype("f8"))
        with pytest.raises(DataFileError, match="no value in column 'holes', of rows 1400 to 1432"):
            np.asarray(load(dataset="holes"))


# -- what a program makes --------------------------------------------------------------------------
def pieces(lengths: Any = 97) -> Iterator[np.ndarray[Any, Any]]:
    for lo in range(0, 1501, lengths):
        yield VALUE[lo : lo + lengths]


@pytest.mark.parametrize("workers", [1, 3])
def test_blocks_of_a_function(tmp_path: Path, workers: int) -> None:
    asked: list[Any] = []

    def block(at: tuple[slice, ...]) -> Any:
        asked.append(at)
        return VALUE[at]

    with use((workers,)):
        x = ost.from_blocks(block, VALUE.shape, "float64", split=0)
        assert not asked
        ost.save(tmp_path / "y.npy", ost.exp(x) * 2)
        rows = sorted((s.start, s.stop) for s, _ in asked)
        assert len(rows) >= 17
        assert rows[0][0] == 0
        assert rows[-1][1] == 1501
        assert all(a[1] == b[0] for a, b in itertools.pairwise(rows)), "each once"
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), np.exp(VALUE) * 2)
        normed = (x - x.mean(axis=0)) / x.std(axis=0)
        expected = (VALUE - VALUE.mean(0)) / VALUE.std(0)
        np.testing.assert_allclose(np.asarray(normed), expected, atol=1e-12)
        asked.clear()
        same(x[10:20, 2:4], VALUE[10:20, 2:4])
        assert sum(rows.stop - rows.start for rows, _ in asked) == 10
        assert all(cut == slice(2, 4) for _, cut in asked)
        ost.save(tmp_path / "x.zarr", x)
        same(ost.load(tmp_path / "x.zarr"), VALUE)
        same(ost.from_blocks(lambda at: np.float32(3), (), "float64"), np.float64(3))


def slowly(x: Any) -> Any:
    time.sleep(0.001)  # so that other threads could take the next one
    return x


def test_pieces_of_an_iterator_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with use():
        for length in (1, 97, 5000):
            x = ost.from_blocks(pieces(length), VALUE.shape, "float64")
            ost.save(tmp_path / "y.npy", ost.exp(x))
            np.testing.assert_allclose(np.load(tmp_path / "y.npy"), np.exp(VALUE))
            if length > 1501:
                same(x, VALUE)  # of which one piece has all
                continue
            with pytest.raises(ArgumentError, match="second read of row 0, which an iter") as e:
                np.asarray(x)
            assert "save it to a file first" in str(e.value)
        monkeypatch.setattr(engine, "MIN_THREADED_BYTES", 0)
        monkeypatch.setattr(exchange, "CHUNK", 5000)
        chunks_of.cache_clear()
        x = ost.from_blocks(map(slowly, pieces()), VALUE.shape, "float64")
        ost.save(tmp_path / "x.npy", x)
        chunks_of.cache_clear()
        same(np.load(tmp_path / "x.npy"), VALUE)
        x = ost.from_blocks(pieces(), VALUE.shape, "float64")
        same(x[500:600, 1:3], VALUE[500:600, 1:3])
        same(x[590:], VALUE[590:])
        x = ost.from_blocks(pieces(), VALUE.shape, "float64")
        with pytest.raises(ArgumentError, match="second read"):
            np.asarray(x - x.mean(axis=0))
    x = ost.from_blocks(pieces(), VALUE.shape, "float64")
    with use((2,)), pytest.raises(ArgumentError, match="an iterator for 2 workers"):
        np.asarray(x + 1)


@pytest.mark.parametrize("workers", [1, 3])
def test_pieces_that_can_be_had_again(tmp_path: Path, workers: int) -> None:
    begun = []

    class Again:
        def __iter__(self) -> Iterator[Any]:
            begun.append(1)
            return pieces()

    with use((workers,)):
        for given in (Again(), list(pieces())):
            x = ost.from_blocks(given, VALUE.shape, "float64", split=0)
            normed = (x - x.mean(axis=0)) / x.std(axis=0)
            expected = (VALUE - VALUE.mean(0)) / VALUE.std(0)
            ost.save(tmp_path / "y.npy", normed)
            np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, atol=1e-12)
    assert len(begun) <= 4 * workers


def test_readers_of_other_parts_go_on_where_they_are() -> None:
    """Two that take turns begin once each, and pass each piece once."""
    passed = []

    class Again:
        def __iter__(self) -> Iterator[Any]:
            for piece in pieces():
                passed.append(len(piece))
                yield piece

    source = FromIterable(Again(), VALUE.shape, VALUE.dtype)
    for lo in range(0, 700, 100):
        for begin in (lo, 700 + lo):
            out = np.empty((100, VALUE.shape[1]))
            source.read(out, ((begin, begin + 100), (0, VALUE.shape[1])))
            np.testing.assert_array_equal(out, VALUE[begin : begin + 100])
    assert sum(passed) <= 700 + 1400 + 2 * 97


def test_the_nearest_place_of_what_is_deflated(
    tmp_path: Path, inflated: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that was passed before, where no read has ended nearer."""
    monkeypatch.setattr(members, "APART", 5000)
    np.savez_compressed(tmp_path / "x.npz", a=VALUE)
    source, row = open_source(tmp_path / "x.npz"), VALUE[:1].nbytes
    out = np.empty((1, VALUE.shape[1]))
    for k in (1400, 3, 1300):
        inflated.clear()
        source.read(out, ((k, k + 1), (0, VALUE.shape[1])))
        np.testing.assert_array_equal(out, VALUE[k : k + 1])
    assert inflated["bytes"] <= 5000 + 2 * row, "the read of row 3 ended far before it"


def test_blocks_that_are_not_as_was_said() -> None:
    def refused(blocks: Any, match: str, dtype: Any = "float64") -> None:
        with use(), pytest.raises(ArgumentError, match=match):
            np.asarray(ost.from_blocks(blocks, VALUE.shape, dtype) + 1)

    refused(lambda at: VALUE, r"a block of shape \(1501, 6\); needed \(\d+, 6\), as its slices say")
    refused(lambda at: VALUE[at] * 1j, "a block of complex128; needed one of float64")
    refused([VALUE[:100], VALUE[:100].T], r"a block of shape \(6, 100\); needed rows of 6")
    refused([1.0, 2.0], r"a block of shape \(\)")
    refused([VALUE[:1000]], "an end after 1000 rows; needed 1501")
    refused(lambda at: VALUE[at], "a block of float64; needed one of int8", "int8")
    with pytest.raises(ArgumentError, match="got int; needed a function, or arrays"):
        ost.from_blocks(5, (3,), "float64")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="pieces of a single number"):
        ost.from_blocks([1.0], (), "float64")
    with pytest.raises(ArgumentError, match="extents of 0 or more"):
        ost.from_blocks([1.0], (-1,), "float64")
    same(ost.from_blocks(lambda at: np.ones((7, 2), "f4"), (7, 2), "float64"), np.ones((7, 2)))
    same(ost.from_blocks([], (0, 2), "float64"), np.ones((0, 2)))


def test_what_a_function_of_the_user_raises_comes_out() -> None:
    def block(at: Any) -> Any:
        raise KeyError("no such sensor")

    with use(), pytest.raises(Exception, match="no such sensor"):
        np.asarray(ost.from_blocks(block, VALUE.shape, "float64") + 1)


def test_steps_of_what_can_be_read_once(tmp_path: Path) -> None:
    """Rows beside each other are copied from what was read before, in order."""
    made = np.random.default_rng(0).normal(size=(10_000, 4)).astype("f4")
    steps: dict[str, Any] = {
        "differences": lambda m, x: m.diff(x, axis=0),
        "an inner part": lambda m, x: (
            x.at[1:-1].set((x[2:] + x[:-2]) / 2)
            if m is ost
            else np.concatenate([x[:1], (x[2:] + x[:-2]) / 2, x[-1:]])
        ),
        "around": lambda m, x: m.pad(x * 2, 1)[3:] + m.pad(x, 1)[:-3],
    }
    for name, step in steps.items():
        with use(memory_limit=80_000):
            pieces = (made[k : k + 500] for k in range(0, len(made), 500))
            x = ost.from_blocks(pieces, made.shape, "float32")
            ost.save(tmp_path / "y.npy", step(ost, x))
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), step(np, made), 1e-6, err_msg=name)
