"""What a plan's picture says in colours and lines."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

from ostinato.planner.seeing.picture import svg

import ostinato as ost


def network(ws: Any, x: Any) -> Any:
    for w in ws:
        x = ost.tanh(x @ w)
    return x


def test_boxes_have_the_colour_of_their_layout_and_lines_the_width_of_their_bytes(
    tmp_path: Path,
) -> None:
    ws = [ost.spec((8192, 32_768)), ost.spec((32_768, 8192))]
    plan = ost.plan(network, ws, ost.spec((64, 8192), split=0), mesh=8, machine="h200-ib")
    path = tmp_path / "plan.svg"
    plan.draw(path)
    picture = xml.parse(path).getroot()
    text = svg(plan)
    assert [t for t in re.findall(r">([^<>]+)</text>", text) if t == "split 1 of 8"]
    boxes = [e for e in picture.iter() if e.tag.endswith("rect") and e.get("rx") == "6"]
    legend = [e for e in picture.iter() if e.tag.endswith("rect") and e.get("rx") == "3"]
    layouts = {str(s.layout) for s in plan.program.graph.specs}
    assert {e.get("fill") for e in legend} >= {b.get("fill") for b in boxes}
    assert {e.get("stroke") for e in legend} >= {b.get("stroke") for b in boxes}
    assert len({e.get("fill") for e in legend}) >= 2
    assert {t.text for t in picture.iter() if t.tag.endswith("text")} & layouts
    widths: dict[str, float] = {}
    for line in picture.iter():
        if line.tag.endswith("path") and len(line):
            widths[str(line[0].text)] = float(str(line.get("stroke-width")))
    assert widths["128 MiB"] == 7 == max(widths.values())
    assert widths["2 MiB"] < widths["128 MiB"]


def test_of_one_worker_boxes_have_the_colour_of_what_is_done() -> None:
    x = ost.spec((64, 64))
    text = svg(ost.plan(network, [x], x, mesh=1))
    for said, fill in (
        ("operand", "#e8eef6"),
        ("product of matrices", "#fdf3dd"),
        ("result", "#e4f2e6"),
    ):
        assert re.search(rf'rx="6" fill="{fill}"', text), said
        assert re.search(rf'rx="3" fill="{fill}".*>{said}</text>', text), said
