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


def test_ours_and_jax_come_first_and_a_compiler_that_searches_last() -> None:
    order = [(w.name, n) for w, names, _ in gpu_day.turns(gpu.WORKLOADS, 1e18) for n in names]
    assert len(order) == len({*order}) == sum(len(w.cases) for w in gpu.WORKLOADS)
    group = [next(k for k, g in enumerate(gpu_day.GROUPS) if n in g) for _, n in order]
    assert group == sorted(group)
    assert {*order[:2]} == {("null", "ostinato"), ("null", "jax")}


def test_no_turn_takes_the_time_of_those_behind_it() -> None:
    end = time.monotonic() + 300
    for workload, _, until in gpu_day.turns(gpu.WORKLOADS, end):
        assert until <= end, workload.name
        assert until - time.monotonic() < 300, workload.name
    first = next(gpu_day.turns(gpu.WORKLOADS, end))[2]
    assert first - time.monotonic() < 2 * 300 / len(gpu.WORKLOADS)


def test_each_row_is_in_a_file_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(module: str, workload: Any, names: Any, *more: Any) -> Any:
        if workload.name == "copy":
            raise OSError("no process")
        yield from (runner.row(workload.name, n, [1e-6], None) for n in names)

    found = {"numpy": "2", "python": "3"}
    monkeypatch.setattr(runner, "probe", lambda: found)
    monkeypatch.setattr(runner, "run_workload", made)
    monkeypatch.setattr(runner, "missing", lambda system: "")
    monkeypatch.setattr(gpu_day.machine, "gpus", list)
    monkeypatch.setattr(gpu_day.machine, "in_words", str)
    seen = 0
    for row in gpu_day.rows(tmp_path, ["null", "copy"], time.monotonic() + 100):
        seen += 1
        lines = (tmp_path / "rows.json").read_text().splitlines()
        assert json.loads(lines[-1]) == row
        assert len(lines) == 1 + seen
    assert seen == 4 + 5
    assert "no process" in (tmp_path / "rows.json").read_text()
    late = list(gpu_day.rows(tmp_path, ["null"], time.monotonic()))
    assert {row["problem"] for row in late} == {"skipped"}


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
