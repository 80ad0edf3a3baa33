"""plan.why: the next best layouts of an array, what they cost more and where."""

from __future__ import annotations

import re
from typing import Any

import pytest

import ostinato as ost


def step(w: Any, x: Any) -> Any:
    y = ost.tanh(x @ w)
    return w - x.T @ y, y.sum(0)


def plan(rows: int = 8192, machine: str = "h200-ib") -> Any:
    x = ost.spec((rows, 512), split=0)
    return ost.plan(step, ost.spec((512, 512)), x, mesh=8, machine=machine)


def test_the_next_best_layouts_with_what_they_cost_and_where() -> None:
    made = plan()
    head, *rows = made.why("w").splitlines()
    assert head.startswith("w: whole of 8 takes ")
    assert head.endswith("(h200-ib machine)")
    assert [row.split("  ")[1] for row in rows] == ["split 0 of 8", "split 1 of 8"]
    for row in rows:
        assert re.search(r"\+[\d.]+ µs +all_gather of float32\[512,512\] \+[\d.]+ µs", row)


def test_the_cause_is_the_line_that_asks_for_it() -> None:
    text = plan(rows=1 << 20, machine="cpu-10gbe").why("x")
    assert re.search(r"split 1 of 8 .* \+[\d.]+ ms \(tests/planner/test_why.py:\d+\)", text), text
    assert "more memory per worker" in text, "of a replica"


def test_results_and_those_that_have_no_choice() -> None:
    made = plan()
    assert made.why("result 0").startswith("result 0: ")
    alone = ost.plan(step, ost.spec((8, 8)), ost.spec((8, 8)))
    assert alone.why("w") == "w: one worker has all of it"
    with pytest.raises(ost.errors.ArgumentError, match="one of w, x, result 0, result 1"):
        made.why("z")


def test_the_machine_that_decided_is_in_the_file(tmp_path: Any) -> None:
    made = plan(machine="cpu-10gbe")
    made.to_file(tmp_path / "p.plan")
    again = ost.Plan.from_file(tmp_path / "p.plan")
    assert again.target.machine == made.target.machine
    assert again.why("w") == made.why("w")
