"""The command for a day with a GPU: who is measured when, what is kept, and what is left out."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from benchmarks import gpu, gpu_day, gpu_rows, runner
from benchmarks.libraries import NumPy, Ostinato
from benchmarks.workload import System, summary


def test_a_system_that_searches_for_the_fastest_comes_last() -> None:
    assert gpu_day.ORDER[:2] == ("ostinato", "jax")
    assert gpu_day.ORDER[-1] == "torch"
    assert {*gpu_day.ORDER} == {name for w in gpu.WORKLOADS for name in w.cases}


def said(lines: Any, then: str = "") -> Any:
    """A process that says this for the rows it is asked for, and ends."""

    class Process:
        why = then

        def __init__(self, kind: Any, system: str, names: Any) -> None:
            self.system, self.names = system, names

        def __enter__(self) -> Process:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def lines(self, until: float, limit: float) -> Any:
            yield from (line for line in lines(self.system, self.names))

    return Process


def test_each_row_is_in_a_file_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a process ends in the middle of its rows: another one goes on behind that row."""
    answer = summary(np.arange(8.0))

    def lines(system: str, names: Any) -> Any:
        for name in names:
            if name == "copy":
                return
            yield {"row": name, "first": 1.0, "answer": answer, "samples": [1e-6, 2e-6]}
        yield {"row": names[-1], "kernels": [["k", 1, 2.0]]}

    for name in ("null", "copy", "poly"):
        (tmp_path / f"{name}.json").write_text(json.dumps(answer))
    monkeypatch.setattr(gpu_day, "Process", said(lines, "it broke"))
    monkeypatch.setattr(runner, "probe", lambda: {"numpy": "2", "python": "3"})
    monkeypatch.setattr(runner, "missing", lambda system: "")
    monkeypatch.setattr(gpu_day.machine, "gpus", list)
    monkeypatch.setattr(gpu_day.machine, "in_words", str)
    end, which, found = time.monotonic() + 100, ["null", "copy", "poly"], []
    for row in gpu_day.rows(tmp_path, which, ["ostinato", "jax"], tmp_path, end):
        found.append((row["workload"], row["system"], row.get("problem")))
        kept = (tmp_path / "rows.json").read_text().splitlines()
        assert json.loads(kept[-1]) == row
    assert found == [
        (name, system, "failed" if name == "copy" else None)
        for system in ("ostinato", "jax")
        for name in which
    ]
    assert "it broke" in (tmp_path / "rows.json").read_text()
    assert (tmp_path / "rows.json").read_text().count("kernels") == 2
    late = list(gpu_day.rows(tmp_path, which, ["jax"], tmp_path, time.monotonic()))
    assert {row["problem"] for row in late} == {"skipped"}


def test_rows_of_a_system_are_measured_in_one_process(tmp_path: Path) -> None:
    """The real one, which also ends one that says nothing."""
    kind = System((), variables={"BENCHMARK_DEVICE": "cpu", "BENCHMARK_SCALE": "0.0001"})
    with gpu_day.Process(kind, "ostinato", ["zscores", "nothing", "walk"]) as process:
        lines = list(process.lines(time.monotonic() + 100, 60))
    assert [line["row"] for line in lines] == ["zscores", "nothing", "walk"]
    assert "KeyError" in lines[1]["failed"]
    assert all(min(lines[k]["samples"]) > 0 for k in (0, 2))
    with gpu_day.Process(kind, "ostinato", ["zscores"]) as process:
        assert list(process.lines(time.monotonic() + 100, 0.1)) == []
        assert "took longer" in process.why


def test_tests_that_take_too_long_end(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        endless = [sys.executable, "-c", "while True: pass"]
        assert not gpu_day.finished(endless, {}, log, 0.2)
        assert gpu_day.finished([sys.executable, "-c", ""], {}, log, 60)


@pytest.mark.parametrize("row", gpu_rows.ROWS, ids=lambda row: row[0].name)
def test_rows_compute_what_numpy_does(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHMARK_SCALE", "0.0005")
    workload, function, operands = row
    operands.cache_clear()
    given = operands()
    wanted = function(NumPy(), *given)
    found = np.asarray(function(Ostinato(ost), *map(ost.asarray, given)))
    operands.cache_clear()
    np.testing.assert_allclose(found, wanted, workload.tolerance, 1e-3 * np.abs(wanted).max())
