"""Predicted scaling of networks: docs/planner.md has what `python -m benchmarks scaling` prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scaling

DOC = Path(__file__).resolve().parents[2] / "docs" / "planner.md"


def rows() -> dict[int, list[int]]:
    """Of GPUs, the figures of AlexNet's table."""
    text = DOC.read_text().partition("## Published scaling")[2].partition("What differs")[0]
    found = [[int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", line)]
             for line in text.splitlines() if re.match(r"\| \d", line)]  # fmt: skip
    return {first: rest for first, *rest in found}


def test_published_figures_are_those_of_the_table() -> None:
    table = rows()
    assert tuple(table) == scaling.COUNTS
    assert tuple(r[1] for r in table.values()) == scaling.PUBLISHED["alexnet, 1024"][0]
    assert tuple(r[3] for r in table.values()) == scaling.PUBLISHED["alexnet, 256"][0]


@pytest.mark.parametrize(
    ("which", "column", "workers"), [("alexnet, 1024", 0, 32), ("alexnet, 256", 2, 1)]
)
def test_predicted_figures_are_what_is_printed(which: str, column: int, workers: int) -> None:
    ((_, images, _),) = scaling.predicted(which, (workers,))
    assert images == pytest.approx(rows()[workers][column], rel=0.01)


def test_volumes_are_cut_by_sample_first_and_by_depth_where_there_are_fewer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[object, object]] = []

    def seconds(made: object, x: Any, *rest: object, mesh: object, **on: object) -> float:
        seen.append((mesh, x.split))
        return 0.5

    monkeypatch.setattr(scaling, "seconds", seconds)
    assert scaling.main(["--only", "cosmoflow", "--cube", "16"]) == 0
    assert ((1, 8), (0, 2)) in seen, "a sample on 8 GPUs"
    assert ((128, 16), (0, 2)) in seen, "128 samples on 2,048"
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [line[:3] for line in lines if line[0] == "strong"] == [
        ["strong", "512", "128"], ["strong", "2048", "128"]
    ]  # fmt: skip
