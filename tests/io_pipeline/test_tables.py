"""Rows of Parquet and CSV files: what was written comes out, read by blocks; what is damaged has a name."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import tables as files_of_tables
from ostinato.io_pipeline.feed import table_rows as tables
from ostinato.io_pipeline.feed.described import as_data, from_data
from ostinato.io_pipeline.feed.table_rows import Table
from ostinato.io_pipeline.tables import Blocks

import ostinato as ost
from ostinato.errors import ArgumentError, DataFileError, SampleError
from tests.io_pipeline.pictures import encoded, picture
from tests.io_pipeline.test_pipes import joined, same

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ROOT = Path(__file__).resolve().parents[2]


def written(home: Path, rows: int = 100, files: int = 2, group: int = 16) -> str:
    rng = np.random.default_rng(0)
    for k in range(files):
        n = np.arange(k * rows, (k + 1) * rows)
        columns = {
            "n": n,
            "x": rng.random(rows).astype("f4"),
            "label": n % 5,
            "name": [f"row {i} é" for i in n],
            "row": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(n, 3)), 3),
            "some": [list(range(i % 4)) for i in n],
            "image": [encoded(picture(int(i) % 3)) for i in n],
        }
        pq.write_table(pa.table(columns), home / f"{k}.parquet", row_group_size=group)
    return str(home / "*.parquet")


def test_rows_are_dicts(tmp_path: Path) -> None:
    where = written(tmp_path)
    pipe = ost.io.table(where).shuffle(seed=3, block=16, window=2).decode().resize((8, 8))
    seen: list[int] = []
    for batch in (
        pipe.map(lambda s: {**s, "some": len(s["some"])}).batch(9, tail="keep").to("numpy")
    ):
        assert batch["image"].shape[1:] == (8, 8, 3)
        np.testing.assert_array_equal(batch["label"], batch["n"] % 5)
        np.testing.assert_array_equal(batch["some"], batch["n"] % 4)
        np.testing.assert_array_equal(batch["row"], batch["n"][:, None].repeat(3, 1))
        assert batch["name"] == [f"row {n} é" for n in batch["n"]]
        seen += batch["n"].tolist()
    assert sorted(seen) == list(range(200))
    assert len(ost.io.table(where)) == 200
    (row,) = itertools.islice(ost.io.table(where, ["name", "n"]).to("numpy").epoch(0), 1)
    assert row == {"name": "row 0 é", "n": 0}


def test_numbers_are_gathered_as_they_are_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = written(tmp_path)
    pipe = ost.io.table(where, ["x", "n", "row"], dtypes={"n": "int16"}).shuffle(seed=1)
    pipe = pipe.batch(11, tail="keep").to("numpy").run_with(threads=3)
    found = list(pipe.epoch(0))
    assert found[0]["n"].dtype == np.int16
    monkeypatch.setattr(Table, "forms", lambda self: None)
    for a, b in zip(found, pipe.epoch(0), strict=True):
        same(a.values(), b.values())


def test_only_columns_and_groups_that_are_asked_for_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, reads = written(tmp_path), list[tuple[Any, Any]]()
    really = Blocks.read_block
    monkeypatch.setattr(
        Blocks, "read_block", lambda self, *of: reads.append((self, of[0])) or really(self, *of)
    )

    def read_of(pipe: Any) -> list[Any]:
        """Threads of an epoch that nobody goes on with may still read."""
        return [block for table, block in reads if table is pipe.source.table]

    pipe = ost.io.table(where, ["name"]).shuffle(seed=1, block=16).batch(16).to("numpy")
    list(itertools.islice(pipe.run_with(threads=1, ahead=0).epoch(0), 3))
    read = read_of(pipe)
    assert 1 <= len(read) <= 8
    assert len({*read}) == len(read)
    assert [*pipe.source.table._kept.popitem()[1]] == ["name"]  # type: ignore[attr-defined]
    monkeypatch.setattr(tables, "KEPT", 0)
    pipe = ost.io.table(where, ["name"]).batch(200).to("numpy").run_with(threads=1)
    list(pipe.epoch(0))
    assert len(read_of(pipe)) == 14


CSV = "n,x,name,flag\n" + "".join(
    f"{k},{k / 4},{chr(97 + k % 26)},{str(k % 2 == 0).lower()}\n" + "\n" * (k % 9 == 0)
    for k in range(300)
)


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("lines", [50, 1 << 20])
def test_lines_of_csv_are_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, ends: str
) -> None:
    monkeypatch.setattr(files_of_tables, "LINES", lines)
    monkeypatch.setattr(files_of_tables, "TAIL_BYTES", 5)
    (tmp_path / "a.csv").write_bytes(CSV.replace("\n", ends).encode())
    (tmp_path / "b.tsv").write_bytes(CSV.replace(",", "\t").rstrip("\n").encode())
    pipe = ost.io.table(tmp_path).shuffle(seed=2).batch(50).to("numpy")
    assert len(pipe.source) == 600
    seen = []
    for batch in pipe.epoch(0):
        assert batch["n"].dtype == np.int64
        np.testing.assert_array_equal(batch["x"], batch["n"] / 4)
        np.testing.assert_array_equal(batch["flag"], batch["n"] % 2 == 0)
        assert batch["name"] == [chr(97 + n % 26) for n in batch["n"]]
        seen += batch["n"].tolist()
    assert sorted(seen) == sorted([*range(300)] * 2)
    typed = ost.io.table(tmp_path / "a.csv", ["n"], dtypes={"n": "float32"}).batch(3).to("numpy")
    assert next(typed.epoch(0))["n"].dtype == np.float32


def test_row_groups_that_become_large_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 20000
    numbers = pa.array(np.arange(n) // 5000)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4 * n)), 4)
    texts = pa.array(["x" * 1000] * n)
    table = pa.table({"n": numbers, "lists": lists, "text": texts})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=n)
    assert (tmp_path / "x.parquet").stat().st_size < 20000
    monkeypatch.setattr(files_of_tables, "WHOLE", 1 << 16)
    found = Blocks([str(tmp_path / "x.parquet")], None, None)
    assert all(b.rows * 48 <= 1 << 16 for b in found.blocks)
    assert found.rows == n
    monkeypatch.setattr(tables, "KEPT", 1 << 17)
    batches = [*ost.io.table(tmp_path / "x.parquet").batch(3000).to("numpy").epoch(0)]
    np.testing.assert_array_equal(np.concatenate([b["n"] for b in batches]), np.arange(n) // 5000)
    assert len({id(text) for text in batches[0]["text"]}) < 10  # rows share what is the same
    assert {*batches[-1]["text"]} == {"x" * 1000}
    monkeypatch.setattr(files_of_tables, "WHOLE", 1 << 24)
    assert len(Blocks([str(tmp_path / "x.parquet")], None, None).blocks) == 1


def test_values_that_lack(tmp_path: Path) -> None:
    table = pa.table({"a": [1, None, 3], "b": [0.5, None, 1.5], "c": ["x", "y", None]})
    pq.write_table(table, tmp_path / "x.parquet")
    found = next(ost.io.table(tmp_path, ["b"]).batch(3).to("numpy").epoch(0))
    np.testing.assert_array_equal(found["b"], [0.5, np.nan, 1.5])
    for column, row in (("a", 1), ("c", 2)):
        with pytest.raises(
            SampleError, match=rf"x\.parquet, row {row}, in read .*no value in column '{column}'"
        ):
            list(ost.io.table(tmp_path, [column]).batch(3).to("numpy").epoch(0))
    kept = ost.io.table(tmp_path, ["a"]).on_error("skip").batch(3).to("numpy")
    np.testing.assert_array_equal(next(kept.epoch(0))["a"], [1, 3])


def test_damaged_tables_are_errors_that_name_them(tmp_path: Path) -> None:
    written(tmp_path, files=1)
    path = tmp_path / "0.parquet"
    whole = path.read_bytes()
    pipe = ost.io.table(path, ["n"]).batch(4).to("numpy")
    path.write_bytes(whole + b"more")
    with pytest.raises(SampleError, match=r"0\.parquet.*another size or time than before"):
        list(pipe.epoch(0))
    for content in (b"", b"PAR1", whole[:1000], bytes(3000)):
        path.write_bytes(content)
        with pytest.raises(DataFileError, match=r"0\.parquet: got .*table.*test_tables\.py"):
            ost.io.table(path)
    path.unlink()
    with pytest.raises(DataFileError, match=r"0\.parquet: got no such file"):
        ost.io.table(path)
    broken = tmp_path / "x.csv"
    broken.write_text("a,b\n1,2\n3\n")
    with pytest.raises(DataFileError, match=r"x\.csv: got .*Expected 2 columns, got 1"):
        ost.io.table(broken)
    broken.write_text('a,b\n1,"two\nlines"\n3,4\n')
    with pytest.raises(
        SampleError, match=r"x\.csv: got 2 rows in a block of 3 lines; needed a line"
    ):
        list(ost.io.table(broken).batch(1).to("numpy").epoch(0))
    with pytest.raises(ArgumentError, match=r"no file for .*needed files that end with \.parquet"):
        ost.io.table(tmp_path / "*.none")
    broken.write_text("a,b\n1,2\n")
    with pytest.raises(DataFileError, match=r"no column 'c'; needed columns of a, b"):
        ost.io.table(broken, ["c"])
    with pytest.raises(ArgumentError, match=r"dtypes=\{'a': 'what'\}; needed dtypes of numbers"):
        ost.io.table(broken, dtypes={"a": "what"})


def test_mutated_tables_never_crash(tmp_path: Path) -> None:
    """In a process of its own: what comes are rows, or an error of ours."""
    code = f"""
from pathlib import Path
import numpy as np
from ostinato.errors import DataFileError
from ostinato.io_pipeline.feed.table_rows import Table
from tests.io_pipeline.test_tables import CSV, written
home, rng, counts = Path({str(tmp_path)!r}), np.random.default_rng(0), [0, 0]
written(home, 40, 1)
for path in (home / "0.parquet", home / "x.csv"):
    whole = path.read_bytes() if path.suffix == ".parquet" else CSV.encode()
    for k in range(300):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            low = 0 if k % 2 or path.suffix == ".csv" else len(whole) - 3000
            data[int(rng.integers(low, len(data)))] = int(rng.integers(0, 256))
        path.write_bytes(data if k % 4 else data[: int(rng.integers(0, len(data)))])
        try:
            table = Table([str(path)])
            for n in range(min(len(table), 1000)):
                table.read(n)
            counts[0] += 1
        except DataFileError:
            counts[1] += 1
print(*counts)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    good, refused = map(int, ran.stdout.split())
    assert good + refused == 600
    assert min(good, refused) > 50


def test_tables_are_told_to_others_and_kept_on_disk(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    where = written(tmp_path / "t")
    pipe = ost.io.table(where, ["n", "x"]).shuffle(seed=1).batch(8).to("numpy")
    other = from_data(as_data(pipe))
    assert other.identity() == pipe.identity()
    for a, b in zip(pipe.epoch(0), other.epoch(0), strict=True):
        same(a.values(), b.values())
    kept = ost.io.table(where, ["n"]).cache(0, disk=tmp_path / "kept").batch(50).to("numpy")
    first = joined(b["n"] for b in kept.epoch(0))
    again = ost.io.table(where, ["n"]).cache(0, disk=tmp_path / "kept").batch(50).to("numpy")
    same(joined(b["n"] for b in again.epoch(0)), first)
    assert len(again.source.disk) == 200  # type: ignore[attr-defined]


def test_without_pyarrow_there_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where: Any = written(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    files_of_tables._pyarrow.cache_clear()
    with pytest.raises(
        ArgumentError, match=r"no pyarrow; needed it; pip install 'ostinato\[feed\]'"
    ):
        ost.io.table(where)
    files_of_tables._pyarrow.cache_clear()
