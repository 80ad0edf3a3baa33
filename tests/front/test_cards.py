"""What notebooks show: cards of arrays, sessions, clusters, compiled functions and plans."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.layout import Layout

import ostinato as ost
from ostinato.cards import drawing
from tests.front.test_seeing import Balanced
from tests.runtime.browser import CHROMIUM, Browser
from tests.sessions import use

SVG = "{http://www.w3.org/2000/svg}"


def read(page: str) -> str:
    """What can be read of it; it closes its tags."""
    found = Balanced()
    found.feed(page.replace("<br>", ""))
    assert not found.open
    return re.sub(r"\s+", " ", found.text)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Of a drawing: each block's extent, its colour, and what is told of it."""
    (svg,) = re.findall(r"<svg.*?</svg>", page, re.S)
    found = []
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        rect, told = group.find(f"{SVG}rect"), group.find(f"{SVG}title")
        assert rect is not None
        assert told is not None
        found.append(("x".join(rect.attrib[k] for k in ("width", "height")), rect.attrib["fill"], told.text or ""))  # fmt: skip
    return found


# -- arrays --------------------------------------------------------------------------------
def test_an_arrays_card_has_facts_and_values() -> None:
    with use():
        page = ost.asarray(np.arange(6.0).reshape(2, 3))._repr_html_()
    text = read(page)
    for fact in ("shape 2 × 3", "dtype float64", "bytes 48 B", "[[0., 1., 2.], [3., 4., 5.]]"):
        assert fact.replace(" ", "") in text.replace(" ", ""), fact
    assert "layout" not in text, "one worker has one"
    assert [told for _, _, told in blocks(page)] == ["[0:2, 0:3]"]


def test_a_layout_is_drawn_as_blocks() -> None:
    with use((3, 2)):
        page = ost.ones((60, 40), split=(0, 1))._repr_html_()
        found = blocks(page)
    assert [told for _, _, told in found] == [
        f"[{20 * a}:{20 * a + 20}, {20 * b}:{20 * b + 20}] on worker {2 * a + b}"
        for a in range(3)
        for b in range(2)
    ]
    assert len({size for size, _, _ in found}) == 1
    assert len({colour for _, colour, _ in found}) == 6
    assert "layoutsplit 0 on axis 0, split 1 on axis 1 of 3x2" in read(page)
    assert "18.8 KiB, at most 3.12 KiB on each worker" in read(page)


def test_replicas_share_a_block() -> None:
    with use((3, 2)):
        told = [t for _, _, t in blocks(ost.ones((60, 40), split=(0, None))._repr_html_())]
        whole = [t for _, _, t in blocks(ost.ones((60, 40))._repr_html_())]
    assert told == [
        f"[{20 * a}:{20 * a + 20}, 0:40] on workers {2 * a}, {2 * a + 1}" for a in range(3)
    ]
    assert whole == ["[0:60, 0:40] on workers 0–5"]


def test_what_is_split_is_drawn() -> None:
    """Of three dimensions the one that is split, whichever it is."""
    layout = Layout((3,), (0,))
    found = blocks(drawing((30, 1, 500), layout))
    assert len(found) == 3
    assert found[0][2] == "[0:10, 0:1, 0:500] on worker 0"
    widths = {float(size.split("x")[0]) for size, _, _ in found}
    assert widths == {220.0}


def test_parts_that_are_empty_are_not_drawn() -> None:
    with use((3,)):
        found = blocks(ost.ones(2, split=0)._repr_html_())
    assert [t for _, _, t in found] == ["[0:1] on worker 0", "[1:2] on worker 1"]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (1, 1, 1), (10**6,), (2, 10**6)])
def test_any_shape_has_a_card(shape: tuple[int, ...]) -> None:
    with use():
        page = ost.zeros(shape)._repr_html_()
    read(page)
    assert ("<svg" in page) == (0 not in shape and shape != ())
    assert len(page) < 4000


def test_what_has_no_value_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    with use():
        ost.compile(lambda x: said.append(x._repr_html_()) or x + 1)(ost.ones(3))
        ost.save(tmp_path / "x.npy", ost.ones((50, 2)))
        stored = ost.load(tmp_path / "x.npy", resident=False)._repr_html_()
    assert "not known while a function is traced" in read(said[0])
    assert "in a file" in read(stored)
    assert "[[" not in stored, "it is not read for that"


def test_thousands_of_workers_take_no_room() -> None:
    page = drawing((10_000, 10_000), Layout((64, 64), (0, 1)))
    assert len(blocks(page)) == 64


# -- sessions, functions, plans ------------------------------------------------------------
@pytest.mark.cpu_only
def test_a_session() -> None:
    with use((2,)) as session:
        f = ost.compile(lambda x: ost.tanh(x) + 1)
        f(ost.ones(8, split=0)).numpy()
        text = read(session._repr_html_())
    assert "workers 2, threads of this process".replace(" ", "") in text.replace(" ", "")
    for word in ("mesh", "cpu", "same-plan", "as-written", f.plan.id[:12], "<lambda>"):
        assert word in text
    with ost.connect() as own:
        pass
    assert "Session, closed" in read(own._repr_html_())


def test_a_compiled_function() -> None:
    with use():
        f = ost.compile(lambda x, scale=2.0: x * scale)
        assert "has not been called yet" in read(f._repr_html_())
        f(ost.ones((3, 3)))
        f(ost.ones((4, 3)))
        text = read(f._repr_html_())
    assert "compiled <lambda>(x, scale=2.0)" in text
    assert "2 plans, 0 hits, 2 misses" in text
    assert "x: float64[4,3]" in text
    assert "x.shape: (3, 3) -> (4, 3)" in text, "why the last plan was needed"


def test_a_plan_has_a_legend() -> None:
    with use((2,)):
        f = ost.compile(lambda x: ost.tanh(x @ x.T) @ x)
        f(ost.ones((90, 70), split=0)).numpy()
    plan = f.plan
    text = read(plan._repr_html_())
    for name in ("operands", "results", "intermediates"):
        assert len(re.findall(rf"{name} [\d.]+ (?:B|KiB|MiB)", text)) == 2
    widths = re.findall(r"height:10px;width:([\d.]+)%", plan._repr_html_())
    assert sum(map(float, widths)) == pytest.approx(100, abs=0.2)


def test_lines_of_notebooks_are_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "/tmp/ipykernel_12/345.py"
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={name: 3}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    scope: dict[str, Any] = {}
    exec(compile("import ostinato as ost\ndef f(x):\n  return x @ x\n", name, "exec"), scope)
    with use():
        f = ost.compile(scope["f"])
        f(ost.ones((30, 30)))
        assert "In[3]:3" in read(f.plan._repr_html_())
        assert "In[3]:3" in f.plan.explain()
        assert "ipykernel" not in f.plan.explain()


# -- in a browser --------------------------------------------------------------------------
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_cards_stay_within_their_boxes(tmp_path: Path) -> None:
    """In a cell 700 pixels wide."""
    with use((3, 2)) as session:
        x, y = ost.ones((60, 40), split=(0, 1)), ost.ones((400, 400), split=(None, 0))
        f = ost.compile(lambda x, y: ost.tanh(x @ y[:40]).sum(0))
        f(x, y).numpy()
        shown = [x, y, ost.ones(1000, split=0), ost.ones((2, 1000)), f, f.plan, session]
        pages = [each._repr_html_() for each in shown]
    path = tmp_path / "cards.html"
    cells = "".join(f'<div class="cell" style="width:700px">{page}</div>' for page in pages)
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{cells}")
    with Browser() as browser:
        browser.open(f"file://{path}")
        browser.until(f"document.querySelectorAll('.cell').length == {len(pages)}")
        outside = browser.value(
            """[...document.querySelectorAll('.cell')].map(cell => {
              const box = cell.firstElementChild.getBoundingClientRect();
              const scrolls = node => node && node !== cell.firstElementChild
                && (getComputedStyle(node).overflowX === 'auto' || scrolls(node.parentElement));
              return [...cell.querySelectorAll('*')].filter(node => {
                const r = node.getBoundingClientRect();
                return !scrolls(node) && (r.right > box.right + 1 || r.bottom > box.bottom + 1)
              }).length + (box.width > 701)
            })"""
        )
        assert outside == [0] * len(pages)
        assert browser.errors == []
