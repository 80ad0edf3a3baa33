"""What people see of a plan: text, differences, a picture, HTML, and the ladder of OSTINATO_DEBUG."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.encode import digest
from ostinato.ops.core.show import parse
from ostinato.planner.machine import Link, Machine, Rate
from ostinato.planner.seeing.explain import explain, steps
from ostinato.planner.shown import Text

import ostinato as ost
from tests.sessions import use


def lloyd(x: Any, c: Any) -> Any:
    d = ((x[:, None, :] - c[None]) ** 2).sum(-1)
    near = ost.nn.one_hot(d.argmin(1), c.shape[0])
    return (near.T @ x) / near.sum(0)[:, None]


def a_plan(mesh: tuple[int, ...] = (2,), runs: int = 5) -> Any:
    with use(mesh):
        f = ost.compile(lloyd)
        x = ost.random.normal((20_000, 8), seed=1, split=0)
        c = x[:4].resplit(None)
        for _ in range(runs):
            c = f(x, c)
        assert np.isfinite(np.asarray(c)).all()
        return f.plan


@pytest.mark.cpu_only
def test_explain_shows_what_was_decided_and_what_it_cost() -> None:
    text = a_plan().explain()
    assert re.search(r"plan [0-9a-f]{12} for 2 x cpu \(mesh 2\), numerics same-plan", text)
    assert "takes   x: float32[20000,8] @ split 0 of 2, c: float32[4,8] @ whole of 2" in text
    assert "9 operations, 1 all_reduce" in text
    assert re.search(r"memory  [\d.]+ [KM]iB per worker: operands", text)
    assert re.search(r"fused\(.* +float32\[4,8\] +partial sum of 2 .*test_seeing.py:\d+", text)
    assert re.search(r"all_reduce.*288 B sent", text)
    assert re.search(r"predicted [\d.]+ (ms|µs) per run; 288 B between workers", text)
    assert re.search(r"measured  [\d.]+ (ms|µs) at best, [\d.]+ (ms|µs) on average, 5 runs", text)
    line = next(x for x in text.splitlines() if x.startswith("fused("))
    assert len(re.findall(r"[\d.]+ (?:ms|µs|ns)", line)) == 2, "predicted and measured"
    assert "memory is fullest at" in text
    assert "planned in" in text


def test_lines_are_not_too_long() -> None:
    """Of a plan with many operands and results, in words and as graphs, which still parse."""

    def step(ps: Any, x: Any) -> Any:
        def loss(ps: Any) -> Any:
            return sum(ost.tanh(x @ p).sum() for p in ps)

        value, slopes = ost.value_and_grad(loss)(ps)
        return [p - s for p, s in zip(ps, slopes, strict=True)], value

    for mesh in ((1,), (3,)):
        with use(mesh):
            plan = ost.plan(step, [ost.spec((4, 4))] * 40, ost.spec((500, 4)))
            graphs = [plan.traced, plan.lowered, plan.program.graph]
            texts = [str(plan), plan.explain(), plan.diff(plan), *map(str, graphs)]
            for graph in graphs:
                assert digest(parse(str(graph))) == digest(graph)
        assert max(len(line) for text in texts for line in text.splitlines()) <= 200
        assert str(plan).count("float32[4,4]") == 80
    apart = "it's said, " * 30
    assert Text(apart).split() == apart.split()


def test_backwards_lines_are_those_of_the_way_forward() -> None:
    def loss(w: Any, x: Any) -> Any:
        h = ost.tanh(x @ w)  # 1
        return (h**3).mean()  # 2

    @ost.custom_gradient
    def own(x: Any) -> Any:
        return x, lambda g: g * 7.5  # 4

    first = loss.__code__.co_firstlineno
    graph = ost.plan(ost.grad(loss), ost.spec((3, 2)), ost.spec((5, 3))).lowered
    lines = [int(n.line.rpartition(":")[2]) - first for n in graph.nodes if n.op != "constant"]
    assert set(lines) == {1, 2}
    graph = ost.plan(ost.grad(lambda x: own(x).sum()), ost.spec((3,))).traced
    (line,) = [n.line for n in graph.nodes if n.op == "multiply"]
    assert line.endswith(f":{first + 6}")  # 4


def test_texts_and_pictures_show_themselves(tmp_path: Path) -> None:
    plan = a_plan()
    for text in (plan.explain(), plan.diff(plan), plan.why("x"), plan.source()):
        assert repr(text) == str(text)
        assert text.splitlines()[0][:20] in unescape(text._repr_html_())
    assert "<table" in plan.explain()._repr_html_()
    picture = plan.draw()
    assert ET.fromstring(picture._repr_svg_()).tag.endswith("svg")
    assert len(repr(picture)) < 100
    assert plan.draw(tmp_path / "plan.svg") == (tmp_path / "plan.svg").read_text()


def test_explain_before_a_run() -> None:
    with use():
        f = ost.compile(lambda x: x + 1.2345)
        text = f.plan_for(ost.ones(3)).explain()
    assert "measured  not yet" in text
    assert "layout" not in text, "one worker has one layout"


def test_a_plan_without_operations_is_explained() -> None:
    with use():
        for function in (lambda x: x, lambda x: None):
            plan = ost.compile(function).plan_for(ost.ones(3))
            assert "runs    0 operations" in plan.explain()
            assert "0 operations" in plan._repr_html_()


def test_explain_reaches_into_loops() -> None:
    with use():
        f = ost.compile(lambda x: ost.repeat(7, lambda s: ost.tanh(s @ s), x))
        f(ost.ones((4, 4)))
        text = f.plan.explain()
    assert "loop x 7" in text
    assert re.search(r"^  matmul", text, re.M)


@pytest.mark.cpu_only
def test_summary_and_repr() -> None:
    plan = a_plan()
    assert str(plan).startswith(f"plan {plan.id[:12]} for 2 x cpu")
    assert repr(plan) == f"<Plan {plan.id[:12]}: {len(plan.program.graph.nodes)} nodes>"


@pytest.mark.cpu_only
def test_diff() -> None:
    with use():
        f = ost.compile(lambda x: ost.tanh(x @ x.T).sum())
        a = f.plan_for(ost.ones((3, 3)))
        b = f.plan_for(ost.ones((4, 3)))
        g = ost.compile(lambda x: ost.sin(x @ x.T).sum(), numerics="any-workers")
        c = g.plan_for(ost.ones((3, 3)))
    assert a.diff(a) == f"the same plan, {a.id[:12]}"
    text = a.diff(b)
    assert "x: float64[3,3] @ whole of 1 -> float64[4,3] @ whole of 1" in text
    assert "-matmul() -> float64[3,3]" in text
    assert "+matmul() -> float64[4,4]" in text
    text = a.diff(c)
    assert "policy" in text
    assert "any-workers" in text
    assert "-tanh()" in text
    assert "+sin()" in text


def test_a_picture(tmp_path: Path) -> None:
    plan = a_plan()
    path = tmp_path / "plan.svg"
    plan.draw(path)
    root = ET.parse(path).getroot()
    assert root.tag.endswith("svg")
    texts = [t.text or "" for t in root.iter() if t.tag.endswith("text")]
    assert any(t.startswith("fused(") for t in texts)
    assert "all_reduce" in texts
    assert "x" in texts
    assert "result 0" in texts
    boxes = [
        tuple(float(r.attrib[k]) for k in ("x", "y", "width", "height"))
        for r in root.iter()
        if r.tag.endswith("rect") and "x" in r.attrib
    ]
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for k, (x, y, w, h) in enumerate(boxes):
        assert 0 <= x <= width - w
        assert 0 <= y <= height - h
        for a, b, v, g in boxes[:k]:
            assert x + w <= a or a + v <= x or y + h <= b or b + g <= y, "boxes do not overlap"


def test_files_are_for_whom_umask_says(tmp_path: Path) -> None:
    plan = a_plan()
    before = os.umask(0o027)
    try:
        plan.draw(tmp_path / "plan.svg")
        plan.to_file(tmp_path / "a.plan")
    finally:
        os.umask(before)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.plan", "plan.svg"]
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o640}


def test_a_picture_needs_a_folder(tmp_path: Path) -> None:
    plan = a_plan()
    said = (
        r"plan\.svg: got No such file or directory; needed a folder that exists and may be written"
    )
    with pytest.raises(ost.errors.DataFileError, match=said):
        plan.draw(tmp_path / "nowhere" / "plan.svg")


class Balanced(HTMLParser):
    """Fails on tags that do not close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_for_notebooks() -> None:
    page = Balanced()
    page.feed(a_plan()._repr_html_())
    assert not page.open
    assert "all_reduce" in page.text
    assert "measured" in page.text
    assert "float32[20000,8]" in page.text


def run_child(code: str, **env: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OSTINATO_CACHE": "off", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stderr


CODE = """
import ostinato as ost
f = ost.compile(lambda x: ost.tanh(x @ x) + 1)
f(ost.ones((3, 3))); f(ost.ones((3, 3))); f(ost.ones((4, 4)))
"""


def test_the_debug_ladder() -> None:
    assert run_child(CODE, OSTINATO_DEBUG="0") == ""
    one = run_child(CODE, OSTINATO_DEBUG="1")
    assert re.search(r"ostinato: <lambda> plan [0-9a-f]{8} made in [\d.]+ ms\n", one)
    assert "differs in x.shape: (3, 3) -> (4, 4)" in one
    two = run_child(CODE, OSTINATO_DEBUG="2")
    assert re.search(r"\d choose_layouts +\d+ -> +\d+ nodes +[\d.]+ ms", two)
    assert "= matmul(" in run_child(CODE, OSTINATO_DEBUG="3")
    assert "def run(i0, o0):" in run_child(CODE, OSTINATO_DEBUG="4")


def test_dump(tmp_path: Path) -> None:
    run_child(CODE, OSTINATO_DUMP=str(tmp_path))
    names = sorted(p.name.split("_", 2)[2] for p in tmp_path.iterdir())
    assert "00_traced.txt" in names
    assert any(name.endswith("_choose_layouts.txt") for name in names)
    assert any("matmul" in p.read_text() for p in tmp_path.glob("*_program.txt"))


def test_predictions_follow_the_machine() -> None:
    plan = a_plan()
    slow = Machine(
        "slow",
        call_seconds=1.0,
        stream=((1.0, 1.0),),
        products=(Rate("float32", 1.0),),
        elements=(("float32", 1.0),),
        functions=(("float32", 1.0),),
        levels=((0, Link(1.0, 1.0)),),
    )
    assert sum(s.predicted for s in steps(plan.program, slow)) > 1e6
    assert "per run" in explain(plan, None, slow)


@pytest.mark.parametrize("value", ["off", "0", "none"])
def test_the_cache_can_be_off(value: str, tmp_path: Path) -> None:
    run_child(CODE, OSTINATO_CACHE=value, HOME=str(tmp_path))
    assert not list(tmp_path.iterdir())
