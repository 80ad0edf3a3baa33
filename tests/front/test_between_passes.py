"""Files that vanish or are cut off while rows of them are brought into order: one sentence, or the rows
that were there; nothing is left beside the target."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core import exchange

import ostinato as ost
from ostinato import streaming
from ostinato.errors import DataFileError
from tests.front.test_streaming import loaded, small_blocks
from tests.sessions import use

__all__ = ["small_blocks"]  # a fixture

COLUMNS = ["a", "b", "c"]
KINDS = {
    "x.npy": None,
    "x.h5": "x",
    "x.zarr": None,
    "x.npz": "x",
    "x.parquet": COLUMNS,
    "x.csv": COLUMNS,
}
STAY = ("x.npy", "x.npz", "x.h5")  # open all the time: of these a name is not needed


def made(path: Path, value: np.ndarray[Any, Any]) -> None:
    match path.suffix:
        case ".npy":
            np.save(path, value)
        case ".npz":
            np.savez_compressed(path, x=value)
        case ".zarr":
            with use():
                ost.save(path, value)
        case ".h5":
            with pytest.importorskip("h5py").File(path, "w") as file:
                file.create_dataset("x", data=value, chunks=(100, 3))
        case suffix:
            arrow = pytest.importorskip("pyarrow")
            table = arrow.table({name: value[:, k] for k, name in enumerate(COLUMNS)})
            if suffix == ".csv":
                pytest.importorskip("pyarrow.csv").write_csv(table, path)
            else:
                pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=500)


def vanishes(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def is_cut_off(path: Path) -> None:
    """In the middle of what it is, or of its last chunk."""
    file = path if path.is_file() else max(p for p in path.iterdir() if p.name != "zarr.json")
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize("change", [vanishes, is_cut_off])
@pytest.mark.parametrize("name", KINDS)
def test_a_file_changes_between_two_passes(
    tmp_path: Path, name: str, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "CHUNK", 4000)
    value = np.random.default_rng(0).normal(size=(3001, 3)).round(2)
    made(tmp_path / name, value)
    write, passes = streaming._write, iter(range(9))

    def writes(*given: Any) -> None:
        write(*given)
        if next(passes) == 0:
            change(tmp_path / name)

    monkeypatch.setattr(streaming, "_write", writes)
    with use((2,), memory_limit=20_000):
        x = ost.load(tmp_path / name, dataset=KINDS[name], resident=False)
        ordered = ost.take(x, ost.argsort(x[:, 1]), axis=0)
        if name in STAY and change is vanishes:
            ost.save(tmp_path / "y.npy", ordered)
            expected = value[np.argsort(value[:, 1], kind="stable")]
            np.testing.assert_array_equal(loaded(tmp_path / "y.npy"), expected)
            assert next(passes) == 3, "keys, rows, and their merge"
            return
        with pytest.raises(
            DataFileError, match=rf"^file \S+{name}: got .+; needed .+\.py:\d+\)\.$"
        ):
            ost.save(tmp_path / "y.npy", ordered)
    assert next(passes) == 1
    assert {p.name for p in tmp_path.iterdir()} <= {name}
